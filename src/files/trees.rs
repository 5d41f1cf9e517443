//! Folders with everything in them, and files: made, moved, copied and removed.
//!
//! What is copied is made beside its destination and takes its place in one step. How much there is is counted before
//! anything is done. A link is copied, moved or removed as the link that it is, and nothing on another file system is
//! touched that is mounted in a folder.
//!
//! Owns: doing it below [`Folders`], and how much of it is done at once.
//! Never: removes or replaces a folder that somebody works in, or the host's own files; reads what is no regular file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{
    fchmod, fstat, mkdirat, openat, readlinkat, renameat, renameat_with, statat, symlinkat, unlinkat,
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat, CWD,
};
use rustix::io::Errno;

use super::folders::{identity, must_be_file, Folders, Identity, Last, Missing, Place, Refusal, CAREFULLY};
use super::writing::{must_be_on_a_disk, name_beside};

/// So many files and folders are copied or removed at once.
const ENTRIES_MAX: u64 = 100_000;

/// So much is copied at once, in bytes.
const BYTES_MAX: u64 = 4 << 30;

/// So deep in each other are folders that are copied or removed.
const DEPTH_MAX: usize = 128;

/// What is done with all that is in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Copied,
    Removed,
}

/// What was counted, or done.
#[derive(Debug, Default)]
struct Tally {
    entries: u64,
    bytes: u64,
}

impl Folders {
    /// Makes a folder, with those above it that are missing. One that is there is good.
    ///
    /// # Errors
    /// When there is something else, or it is outside.
    pub fn make_folder(&self, path: &Path) -> Result<(), Refusal> {
        let place = self.find(path, Missing::IsMade, Last::Followed)?;
        let Some(name) = &place.name else { return Ok(()) };
        self.must_not_be_in_own(&place.path)?;
        match mkdirat(&place.folder, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => match statat(&place.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(known) if is_folder(&known) => Ok(()),
                Ok(_) => Err(Refusal::Exists),
                Err(error) => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a file, a link, or a folder: with what is in it, if so asked.
    ///
    /// # Errors
    /// When there is nothing, it is outside, or a folder that is not empty. What was removed before it failed is said.
    pub fn remove(&self, path: &Path, with_content: bool) -> Result<(), Refusal> {
        let place = self.find(path, Missing::Fails, Last::Itself)?;
        let name = name_of(&place)?;
        self.must_not_be_own(&place)?;
        self.must_hold_no_top(&place)?;
        must_be_on_a_disk(&place.folder)?;
        let known = statat(&place.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if !is_folder(&known) {
            return Ok(unlinkat(&place.folder, name, AtFlags::empty())?);
        }
        match unlinkat(&place.folder, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if with_content => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                return Err(Refusal::Unfit("it is a folder that is not empty".to_owned()));
            }
            Err(Errno::NOTDIR) => return Err(Refusal::Changed),
            removed => return Ok(removed?),
        }
        let folder = open_folder(&place.folder, name)?;
        self.count(folder.as_fd(), Deed::Removed)?;
        let mut done = Tally::default();
        let removed = self.empty(folder.as_fd(), identity(&known).0, 0, &mut done);
        let removed = removed.and_then(|()| Ok(unlinkat(&place.folder, name, AtFlags::REMOVEDIR)?));
        removed.map_err(|refusal| partly(&done, "were removed", refusal))
    }

    /// Moves a file, a link or a folder to another place, and what is there is replaced, but for a folder with something in it.
    ///
    /// # Errors
    /// When there is nothing, one of the two is outside, or something is there that is not replaced.
    pub fn rename(&self, from: &Path, to: &Path, only_if_free: bool) -> Result<(), Refusal> {
        let source = self.find(from, Missing::Fails, Last::Itself)?;
        let target = self.find(to, Missing::Fails, Last::Itself).map_err(of_destination)?;
        let name = name_of(&source)?;
        self.must_not_be_own(&source)?;
        self.must_hold_no_top(&source)?;
        let there = self.free_or_replaceable(&target, only_if_free).map_err(of_destination)?;
        must_be_on_a_disk(&source.folder)?;
        must_be_on_a_disk(&target.folder)?;
        // What is not there is said before it is said what is in its way.
        statat(&source.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match put_in_place(&source.folder, name, &target.folder, there, only_if_free) {
            Err(Refusal::Failed(error)) if is(&error, Errno::XDEV) => {}
            moved => return moved,
        }
        // The two are on different file systems.
        let known = statat(&source.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let file = match FileType::from_raw_mode(known.st_mode) {
            FileType::Symlink => Source::Link(readlinkat(&source.folder, name, Vec::new())?.into_bytes()),
            _ => Source::open(&source.folder, name)?,
        };
        self.copy_to(&file, &target, there, only_if_free)?;
        self.remove(&source.path, true)
            .map_err(|refusal| Refusal::Partly("it was copied".to_owned(), refusal.into()))
    }

    /// Copies a file, wherever it is, or a folder with everything in it, and what is there is replaced, but for a folder with
    /// something in it.
    ///
    /// # Errors
    /// When there is nothing, the destination is outside, or something is there that is not replaced. Then nothing has
    /// changed.
    pub fn copy(&self, from: &Path, to: &Path, only_if_free: bool) -> Result<(), Refusal> {
        let from = from.canonicalize()?;
        let source = Source::open(CWD, from.as_os_str())?;
        let last = if only_if_free { Last::Itself } else { Last::Followed };
        let target = self.find(to, Missing::Fails, last).map_err(of_destination)?;
        let there = self.free_or_replaceable(&target, only_if_free).map_err(of_destination)?;
        must_be_on_a_disk(&target.folder)?;
        if matches!(source, Source::Folder(_)) && target.path.starts_with(&from) {
            return Err(Refusal::Unfit("a folder cannot be copied into itself".to_owned()));
        }
        if target.path == from {
            return Ok(());
        }
        self.copy_to(&source, &target, there, only_if_free)
    }

    /// The name that something is to have, if it may be put there.
    fn free_or_replaceable<'a>(
        &self,
        target: &'a Place,
        only_if_free: bool,
    ) -> Result<&'a OsString, Refusal> {
        let name = match name_of(target) {
            Err(_) if only_if_free => return Err(Refusal::Exists),
            name => name?,
        };
        self.must_not_be_own(target)?;
        match statat(&target.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) if only_if_free => Err(Refusal::Exists),
            Ok(_) => {
                self.must_hold_no_top(target)?;
                Ok(name)
            }
            Err(Errno::NOENT) => Ok(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Copies to a new name beside the destination, and then gives it the name that it is to have.
    fn copy_to(
        &self,
        source: &Source,
        to: &Place,
        name: &OsString,
        only_if_free: bool,
    ) -> Result<(), Refusal> {
        let new = name_beside();
        let copied = match source {
            Source::Link(target) => {
                symlinkat(OsString::from_vec(target.clone()), &to.folder, &new).map_err(Refusal::from)
            }
            Source::File(file, known) => copy_file(file, known, &to.folder, &new, &mut Tally::default())
                .and_then(|copy| Ok(copy.sync_data()?)),
            Source::Folder(folder) => self.copy_folder(folder.as_fd(), &to.folder, &new),
        };
        let placed = copied.and_then(|()| put_in_place(&to.folder, &new, &to.folder, name, only_if_free));
        if placed.is_err() {
            let is_folder = matches!(source, Source::Folder(_));
            if let Err(error) = self.remove_what_was_made(to.folder.as_fd(), &new, is_folder) {
                tracing::warn!(%error, "`{}` is left beside `{}`", new.display(), to.path.display());
            }
        }
        placed
    }

    fn remove_what_was_made(
        &self,
        folder: BorrowedFd<'_>,
        name: &OsString,
        is_folder: bool,
    ) -> Result<(), Refusal> {
        if !is_folder {
            return match unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        let made = match open_folder(folder, name) {
            Err(missing) if missing.is_missing() => return Ok(()),
            made => made?,
        };
        self.empty(made.as_fd(), identity(&fstat(&made)?).0, 0, &mut Tally::default())?;
        Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?)
    }

    /// Counts what is in a folder that is to be copied or removed.
    fn count(&self, folder: BorrowedFd<'_>, deed: Deed) -> Result<(), Refusal> {
        let device = identity(&fstat(folder)?).0;
        self.count_below(folder, device, deed, 0, &mut Tally::default())
    }

    fn count_below(
        &self,
        folder: BorrowedFd<'_>,
        device: u64,
        deed: Deed,
        depth: usize,
        tally: &mut Tally,
    ) -> Result<(), Refusal> {
        for name in names_in(folder, tally)? {
            let known = match statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                known => known?,
            };
            if identity(&known).0 != device {
                return Err(Refusal::Unfit("another file system is mounted in it".to_owned()));
            }
            if deed == Deed::Removed {
                self.must_not_be_one_of_own(&known)?;
            }
            match FileType::from_raw_mode(known.st_mode) {
                FileType::Directory => {
                    let below = open_folder(folder, &name)?;
                    self.count_below(below.as_fd(), device, deed, deeper(depth)?, tally)?;
                }
                FileType::RegularFile => tally.add_bytes(u64::try_from(known.st_size).unwrap_or(0), deed)?,
                FileType::Symlink => {}
                _ if deed == Deed::Copied => must_be_file(&known)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes everything in a folder.
    fn empty(
        &self,
        folder: BorrowedFd<'_>,
        device: u64,
        depth: usize,
        done: &mut Tally,
    ) -> Result<(), Refusal> {
        for name in names_in(folder, &mut Tally::default())? {
            let known = match statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                known => known?,
            };
            if identity(&known).0 != device {
                return Err(Refusal::Unfit("another file system is mounted in it".to_owned()));
            }
            self.must_not_be_one_of_own(&known)?;
            let is_folder = is_folder(&known);
            if is_folder {
                let below = open_folder(folder, &name)?;
                self.must_not_be_one_of_own(&fstat(&below)?)?;
                self.empty(below.as_fd(), device, deeper(depth)?, done)?;
            }
            let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            match unlinkat(folder, &name, flags) {
                Ok(()) => done.add_entry()?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn copy_folder(&self, source: BorrowedFd<'_>, to: &OwnedFd, name: &OsString) -> Result<(), Refusal> {
        self.count(source, Deed::Copied)?;
        let known = fstat(source)?;
        mkdirat(to, name, Mode::RWXU)?;
        let made = open_folder(to, name)?;
        let copying = Copying { device: identity(&known).0, made: identity(&fstat(&made)?) };
        copying.copy_below(source, made.as_fd(), 0, &mut Tally::default())?;
        Ok(fchmod(&made, mode_of(&known))?)
    }
}

/// What is copied.
enum Source {
    File(File, Stat),
    Folder(OwnedFd),
    Link(Vec<u8>),
}

impl Source {
    /// Opens a file or a folder that is to be copied.
    fn open(folder: impl AsFd, name: impl AsRef<Path>) -> Result<Self, Refusal> {
        let (folder, name) = (folder.as_fd(), name.as_ref());
        let known = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if is_folder(&known) {
            return Ok(Self::Folder(open_folder(folder, name)?));
        }
        must_be_file(&known)?;
        let file = openat(folder, name, OFlags::RDONLY | CAREFULLY, Mode::empty())?;
        let known = fstat(&file)?;
        must_be_file(&known)?;
        Ok(Self::File(file.into(), known))
    }
}

/// A folder that is being copied.
struct Copying {
    /// The file system that it is on.
    device: u64,
    /// What is made, lest it is copied itself.
    made: Identity,
}

impl Copying {
    fn copy_below(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        depth: usize,
        done: &mut Tally,
    ) -> Result<(), Refusal> {
        for name in names_in(from, done)? {
            let known = match statat(from, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                known => known?,
            };
            if identity(&known).0 != self.device {
                return Err(Refusal::Unfit("another file system is mounted in it".to_owned()));
            }
            if identity(&known) == self.made {
                continue;
            }
            match FileType::from_raw_mode(known.st_mode) {
                FileType::Directory => {
                    let below = open_folder(from, &name)?;
                    mkdirat(to, &name, Mode::RWXU)?;
                    let made = open_folder(to, &name)?;
                    self.copy_below(below.as_fd(), made.as_fd(), deeper(depth)?, done)?;
                    fchmod(&made, mode_of(&known))?;
                }
                FileType::Symlink => symlinkat(readlinkat(from, &name, Vec::new())?, to, &name)?,
                _ => match Source::open(from, &name)? {
                    Source::File(file, known) => drop(copy_file(&file, &known, to, &name, done)?),
                    Source::Folder(_) | Source::Link(_) => return Err(Refusal::Changed),
                },
            }
        }
        Ok(())
    }
}

/// Copies a file under a new name.
fn copy_file(
    file: &File,
    known: &Stat,
    folder: impl AsFd,
    name: &OsString,
    done: &mut Tally,
) -> Result<File, Refusal> {
    done.add_bytes(u64::try_from(known.st_size).unwrap_or(0), Deed::Copied)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | CAREFULLY;
    let mut copy = File::from(openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?);
    let copied = io::copy(&mut file.take(BYTES_MAX + 1), &mut copy)?;
    if copied > BYTES_MAX {
        return Err(too_many_bytes());
    }
    fchmod(&copy, mode_of(known))?;
    Ok(copy)
}

impl Tally {
    fn add_entry(&mut self) -> Result<(), Refusal> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(Refusal::Unfit(format!("it has more than {ENTRIES_MAX} files and folders")));
        }
        Ok(())
    }

    fn add_bytes(&mut self, bytes: u64, deed: Deed) -> Result<(), Refusal> {
        self.bytes = self.bytes.saturating_add(bytes);
        match deed {
            Deed::Copied if self.bytes > BYTES_MAX => Err(too_many_bytes()),
            Deed::Copied | Deed::Removed => Ok(()),
        }
    }
}

fn too_many_bytes() -> Refusal {
    Refusal::Unfit(format!("it has more than {BYTES_MAX} bytes"))
}

/// Gives something another name, and says what is in its way.
fn put_in_place(
    from: &OwnedFd,
    name: &OsString,
    to: &OwnedFd,
    new: &OsString,
    only_if_free: bool,
) -> Result<(), Refusal> {
    let moved = match only_if_free {
        true => match renameat_with(from, name, to, new, RenameFlags::NOREPLACE) {
            // Not every file system can do that; it was free just now.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => renameat(from, name, to, new),
            moved => moved,
        },
        false => renameat(from, name, to, new),
    };
    let unfit = |why: &str| Err(of_destination(Refusal::Unfit(why.to_owned())));
    match moved {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) if only_if_free => Err(of_destination(Refusal::Exists)),
        Err(Errno::EXIST | Errno::NOTEMPTY) => unfit("a folder is there that is not empty"),
        Err(Errno::ISDIR) => unfit("a folder is there"),
        Err(Errno::NOTDIR) => unfit("a file is there"),
        Err(Errno::INVAL) => unfit("a folder cannot be moved into itself"),
        Err(error) => Err(error.into()),
    }
}

fn of_destination(refusal: Refusal) -> Refusal {
    Refusal::Destination(refusal.into())
}

fn partly(done: &Tally, what: &str, refusal: Refusal) -> Refusal {
    match done.entries {
        0 => refusal,
        entries => Refusal::Partly(format!("{entries} files and folders {what}"), refusal.into()),
    }
}

fn name_of(place: &Place) -> Result<&OsString, Refusal> {
    place.name.as_ref().ok_or_else(|| Refusal::Unfit("it is a folder that somebody works in".to_owned()))
}

fn deeper(depth: usize) -> Result<usize, Refusal> {
    match depth + 1 {
        deep if deep < DEPTH_MAX => Ok(deep),
        _ => Err(Refusal::Unfit(format!("folders are more than {DEPTH_MAX} deep in it"))),
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn is_folder(known: &Stat) -> bool {
    FileType::from_raw_mode(known.st_mode) == FileType::Directory
}

fn mode_of(known: &Stat) -> Mode {
    Mode::from_raw_mode(known.st_mode & 0o777)
}

/// Opens a folder to look at what is in it.
fn open_folder(folder: impl AsFd, name: impl AsRef<Path>) -> Result<OwnedFd, Refusal> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | CAREFULLY;
    Ok(openat(folder, name.as_ref(), flags, Mode::empty())?)
}

/// The names in a folder, counted.
fn names_in(folder: BorrowedFd<'_>, tally: &mut Tally) -> Result<Vec<OsString>, Refusal> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        if name != "." && name != ".." {
            tally.add_entry()?;
            names.push(name);
        }
    }
    Ok(names)
}
