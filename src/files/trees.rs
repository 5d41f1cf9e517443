//! Folders with everything in them, and files: made, moved, copied and removed.
//!
//! What is copied is made beside its destination and takes its place in one step. How much there is is counted before
//! anything is done. A link is copied, moved or removed as the link that it is, and nothing is touched that is mounted in
//! a folder. What goes to another file system is put aside, copied, and removed as far as it is what was copied.
//!
//! Owns: doing it below [`Folders`], and how much of it is done at once.
//! Never: removes or replaces a folder that somebody works in, or the host's own files; reads what is no regular file.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
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

use super::folders::{
    identity, must_be_file, Folders, Identity, Last, Missing, PathRefusal, ResolvedPath, CAREFULLY, DEPTH_MAX,
};
use super::unfinished::{OtherName, UnfinishedNote};
use super::writing::{must_be_on_a_disk, name_beside};

/// So many files and folders are copied or removed at once.
const ENTRIES_MAX: u64 = 100_000;

/// So much is copied at once, in bytes.
const BYTES_MAX: u64 = 4 << 30;

/// What is done with all that is in a folder.
#[derive(Debug, Clone, Copy)]
enum Deed<'a> {
    Copied,
    Removed,
    /// Removed, if it is what was copied.
    Moved(&'a CopyRecord),
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
    pub fn make_folder(&self, path: &Path) -> Result<(), PathRefusal> {
        self.must_be_made_on_a_disk(path)?;
        let place = self.find(path, Missing::IsMade, Last::Followed)?;
        let Some(name) = &place.name else { return Ok(()) };
        self.must_not_be_in_own(&place.path)?;
        must_be_on_a_disk(&place.folder)?;
        let is_there = statat(&place.folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if !is_there {
            self.must_not_be_too_deep(&place.path)?;
        }
        match mkdirat(&place.folder, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => match statat(&place.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(known) if is_folder(&known) => Ok(()),
                Ok(_) => Err(PathRefusal::Exists),
                Err(error) => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a file, a link, or a folder: with what is in it, if so asked.
    ///
    /// # Errors
    /// When there is nothing, it is outside, or a folder that is not empty. What was removed before it failed is said.
    pub fn remove(&self, path: &Path, with_content: bool) -> Result<(), PathRefusal> {
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
                return Err(PathRefusal::Unfit("it is a folder that is not empty".to_owned()));
            }
            Err(Errno::NOTDIR) => return Err(PathRefusal::Changed),
            removed => return Ok(removed?),
        }
        let folder = open_folder(&place.folder, name)?;
        self.count(folder.as_fd(), Deed::Removed)?;
        let mut done = Tally::default();
        let removed = self.empty(folder.as_fd(), Mount::of(folder.as_fd())?, Deed::Removed, 0, &mut done);
        let removed = removed.and_then(|()| Ok(unlinkat(&place.folder, name, AtFlags::REMOVEDIR)?));
        removed.map_err(|refusal| partly(&done, "were removed", refusal))
    }

    /// Moves a file, a link or a folder to another place, and what is there is replaced, but for a folder with something in it.
    ///
    /// # Errors
    /// When there is nothing, one of the two is outside, or something is there that is not replaced.
    pub fn rename(&self, from: &Path, to: &Path, only_if_free: bool) -> Result<(), PathRefusal> {
        let source = self.find(from, Missing::Fails, Last::Itself)?;
        let target = self.find(to, Missing::Fails, Last::Itself).map_err(of_destination)?;
        let name = name_of(&source)?;
        self.must_not_be_own(&source)?;
        self.must_hold_no_top(&source)?;
        let there = self.free_or_replaceable(&target, only_if_free).map_err(of_destination)?;
        must_be_on_a_disk(&source.folder)?;
        must_be_on_a_disk(&target.folder)?;
        // What is not there is said before it is said what is in its way.
        let known = statat(&source.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_twin = !only_if_free && is_another_name(&source, name, &known, &target, there)?;
        match put_in_place(&source.folder, name, &target.folder, there, only_if_free) {
            // The system does nothing then, and says that it is done.
            Ok(()) if is_twin => self.take_name(&source, name, &known, &target, there),
            Err(PathRefusal::Failed(error)) if is(&error, Errno::XDEV) => {
                must_be_replaceable(is_folder(&known), &target, there)?;
                self.move_over(&source, name, &target, there, only_if_free)
            }
            moved => moved,
        }
    }

    /// Takes its name from a file that has the one as well that it is to have.
    fn take_name(
        &self,
        source: &ResolvedPath,
        name: &OsString,
        known: &Stat,
        target: &ResolvedPath,
        there: &OsString,
    ) -> Result<(), PathRefusal> {
        let aside = name_beside();
        let _remembered = self.remember(OtherName::Aside, source, &aside, name);
        match put_aside(&source.folder, name, &aside) {
            Err(Errno::NOENT) => return Ok(()),
            put => put?,
        }
        let now = statat(&source.folder, &aside, AtFlags::SYMLINK_NOFOLLOW)?;
        if identity(&now) != identity(known) {
            return put_back(source, &aside, name, PathRefusal::Changed);
        }
        // Nothing again, unless the two names were one that is written in two ways, or the other one is gone by now.
        if let Err(refusal) = put_in_place(&source.folder, &aside, &target.folder, there, false) {
            return put_back(source, &aside, name, refusal);
        }
        match unlinkat(&source.folder, &aside, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves to another file system. What is moved is put aside first: who looks for it by its name finds nothing that he
    /// could still put something into.
    fn move_over(
        &self,
        source: &ResolvedPath,
        name: &OsString,
        target: &ResolvedPath,
        there: &OsString,
        only_if_free: bool,
    ) -> Result<(), PathRefusal> {
        let aside = name_beside();
        let _remembered = self.remember(OtherName::Aside, source, &aside, name);
        match put_aside(&source.folder, name, &aside) {
            // A folder of a lower layer of an overlay has no other name: it goes as far as it is what was copied.
            Err(Errno::XDEV) => return self.move_what_is_aside(source, name, target, there, only_if_free),
            put => put?,
        }
        match self.move_what_is_aside(source, &aside, target, there, only_if_free) {
            Ok(()) => Ok(()),
            Err(refusal) => put_back(source, &aside, name, refusal),
        }
    }

    fn move_what_is_aside(
        &self,
        source: &ResolvedPath,
        aside: &OsString,
        target: &ResolvedPath,
        there: &OsString,
        only_if_free: bool,
    ) -> Result<(), PathRefusal> {
        let known = statat(&source.folder, aside, AtFlags::SYMLINK_NOFOLLOW)?;
        self.must_not_be_one_of_own(&known)?;
        let moved = match FileType::from_raw_mode(known.st_mode) {
            FileType::Symlink => {
                CopySource::Link(readlinkat(&source.folder, aside, Vec::new())?.into_bytes(), known)
            }
            _ => CopySource::open(&source.folder, aside)?,
        };
        if let CopySource::Folder(folder) = &moved {
            self.count(folder.as_fd(), Deed::Removed)?;
        }
        let record = self.copy_to(&moved, target, there, only_if_free)?;
        let removed = self.remove_what_was_copied(&source.folder, aside, &moved, &record);
        removed.map_err(|refusal| PathRefusal::Partly("it was copied".to_owned(), refusal.into()))
    }

    /// Removes what was copied, if it still is what it was then.
    fn remove_what_was_copied(
        &self,
        folder: &OwnedFd,
        name: &OsString,
        copied: &CopySource,
        record: &CopyRecord,
    ) -> Result<(), PathRefusal> {
        let CopySource::Folder(inside) = copied else {
            record.must_hold(&statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?)?;
            return Ok(unlinkat(folder, name, AtFlags::empty())?);
        };
        let (deed, mut done) = (Deed::Moved(record), Tally::default());
        self.count(inside.as_fd(), deed)?;
        let removed = self.empty(inside.as_fd(), Mount::of(inside.as_fd())?, deed, 0, &mut done);
        let removed = removed.and_then(|()| match unlinkat(folder, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(PathRefusal::Changed),
            removed => Ok(removed?),
        });
        removed.map_err(|refusal| partly(&done, "were removed", refusal))
    }

    /// Copies a file, wherever it is, or a folder with everything in it, and what is there is replaced, but for a folder with
    /// something in it.
    ///
    /// # Errors
    /// When there is nothing, the destination is outside, or something is there that is not replaced. Then nothing has
    /// changed.
    pub fn copy(&self, from: &Path, to: &Path, only_if_free: bool) -> Result<(), PathRefusal> {
        let from = from.canonicalize()?;
        let source = CopySource::open(CWD, from.as_os_str())?;
        let last = if only_if_free { Last::Itself } else { Last::Followed };
        let target = self.find(to, Missing::Fails, last).map_err(of_destination)?;
        let there = self.free_or_replaceable(&target, only_if_free).map_err(of_destination)?;
        must_be_on_a_disk(&target.folder)?;
        if matches!(source, CopySource::Folder(_)) && target.path.starts_with(&from) {
            return Err(PathRefusal::Unfit("a folder cannot be copied into itself".to_owned()));
        }
        if target.path == from {
            return Ok(());
        }
        self.copy_to(&source, &target, there, only_if_free).map(drop)
    }

    /// The name that something is to have, if it may be put there.
    fn free_or_replaceable<'a>(
        &self,
        target: &'a ResolvedPath,
        only_if_free: bool,
    ) -> Result<&'a OsString, PathRefusal> {
        let name = match name_of(target) {
            Err(_) if only_if_free => return Err(PathRefusal::Exists),
            name => name?,
        };
        self.must_not_be_own(target)?;
        match statat(&target.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) if only_if_free => Err(PathRefusal::Exists),
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
        source: &CopySource,
        to: &ResolvedPath,
        name: &OsString,
        only_if_free: bool,
    ) -> Result<CopyRecord, PathRefusal> {
        must_be_replaceable(matches!(source, CopySource::Folder(_)), to, name)?;
        let new = name_beside();
        let remembered = self.remember(OtherName::Copy, to, &new, name);
        let placed = self.make_copy(source, &to.folder, &new).and_then(|copy| {
            put_in_place(&to.folder, &new, &to.folder, name, only_if_free)?;
            Ok(copy)
        });
        match placed {
            Ok(copy) => {
                copy.close()
                    .map_err(|refusal| PathRefusal::Partly("it was copied".to_owned(), refusal.into()))?;
                Ok(copy.record)
            }
            Err(refusal) => {
                let is_folder = matches!(source, CopySource::Folder(_));
                if let Err(error) = self.remove_what_was_made(to.folder.as_fd(), &new, is_folder) {
                    tracing::warn!(%error, "what was copied in part cannot be removed: `{}` is left beside `{}`", new.display(), to.path.display());
                    remembered.into_iter().for_each(UnfinishedNote::keep);
                }
                Err(refusal)
            }
        }
    }

    fn make_copy(&self, source: &CopySource, to: &OwnedFd, name: &OsString) -> Result<Copy, PathRefusal> {
        let mut copy = Copy::default();
        match source {
            CopySource::Link(target, known) => {
                copy.record.add(known);
                symlinkat(OsString::from_vec(target.clone()), to, name)?;
            }
            CopySource::File(file, known) => {
                copy.record.add(known);
                copy_file(file, known, to, name, &mut Tally::default())?.sync_data()?;
            }
            CopySource::Folder(folder) => {
                let folder = folder.as_fd();
                self.count(folder, Deed::Copied)?;
                let known = fstat(folder)?;
                mkdirat(to, name, Mode::RWXU)?;
                let made = open_folder(to, name)?;
                let mut copying = Copying {
                    mount: Mount::of(folder)?,
                    made: identity(&fstat(&made)?),
                    way: Vec::new(),
                    done: Tally::default(),
                    copy,
                };
                copying.copy_below(folder, made.as_fd(), 0)?;
                copying.end(&made, &known)?;
                copy = copying.copy;
                copy.made = Some(made);
            }
        }
        Ok(copy)
    }

    /// Removes a copy that nobody goes on with.
    pub(super) fn remove_copy(&self, folder: &OwnedFd, name: &OsString) -> Result<(), PathRefusal> {
        let is_folder = is_folder(&statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?);
        self.remove_what_was_made(folder.as_fd(), name, is_folder)
    }

    fn remove_what_was_made(
        &self,
        folder: BorrowedFd<'_>,
        name: &OsString,
        is_folder: bool,
    ) -> Result<(), PathRefusal> {
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
        self.empty(made.as_fd(), Mount::of(made.as_fd())?, Deed::Removed, 0, &mut Tally::default())?;
        Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?)
    }

    /// Counts what is in a folder that is to be copied or removed.
    fn count(&self, folder: BorrowedFd<'_>, deed: Deed<'_>) -> Result<(), PathRefusal> {
        self.count_below(folder, Mount::of(folder)?, deed, 0, &mut Tally::default())
    }

    fn count_below(
        &self,
        folder: BorrowedFd<'_>,
        mount: Mount,
        deed: Deed<'_>,
        depth: usize,
        tally: &mut Tally,
    ) -> Result<(), PathRefusal> {
        for name in names_in(folder, tally)? {
            let Some(known) = mount.look(folder, &name)? else { continue };
            self.must_be_free_for(deed, &known)?;
            match FileType::from_raw_mode(known.st_mode) {
                FileType::Directory => {
                    let below = mount.open_folder(folder, &name)?;
                    self.count_below(below.as_fd(), mount, deed, deeper(depth)?, tally)?;
                }
                FileType::RegularFile => {
                    tally.add_bytes(u64::try_from(known.st_size).unwrap_or(0));
                    if matches!(deed, Deed::Copied) {
                        tally.must_not_be_too_much()?;
                    }
                }
                FileType::Symlink => {}
                _ if matches!(deed, Deed::Copied) => must_be_file(&known)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// What goes from its place is none of the host's own files, and is what was copied, if it was.
    fn must_be_free_for(&self, deed: Deed<'_>, known: &Stat) -> Result<(), PathRefusal> {
        match deed {
            Deed::Copied => Ok(()),
            Deed::Removed => self.must_not_be_one_of_own(known),
            Deed::Moved(record) => {
                self.must_not_be_one_of_own(known)?;
                record.must_hold(known)
            }
        }
    }

    /// Removes everything in a folder.
    fn empty(
        &self,
        folder: BorrowedFd<'_>,
        mount: Mount,
        deed: Deed<'_>,
        depth: usize,
        done: &mut Tally,
    ) -> Result<(), PathRefusal> {
        for name in names_in(folder, &mut Tally::default())? {
            let Some(known) = mount.look(folder, &name)? else { continue };
            self.must_be_free_for(deed, &known)?;
            let is_folder = is_folder(&known);
            if is_folder {
                let below = mount.open_folder(folder, &name)?;
                self.must_not_be_one_of_own(&fstat(&below)?)?;
                self.empty(below.as_fd(), mount, deed, deeper(depth)?, done)?;
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
}

/// Where something is mounted: the same file system may be mounted again in a folder of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mount {
    device: u64,
    /// Where the system tells it.
    id: Option<u64>,
}

impl Mount {
    fn of(folder: BorrowedFd<'_>) -> Result<Self, PathRefusal> {
        Ok(Self { device: identity(&fstat(folder)?).0, id: mount_id(folder, OsStr::new(""))? })
    }

    /// What has this name, if anything has: nothing else is to be mounted there.
    fn look(self, folder: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Stat>, PathRefusal> {
        let known = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            known => known?,
        };
        let id = match mount_id(folder, name) {
            Err(Errno::NOENT) => return Ok(None),
            id => id?,
        };
        self.must_be(Self { device: identity(&known).0, id })?;
        Ok(Some(known))
    }

    fn open_folder(self, folder: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, PathRefusal> {
        let opened = open_folder(folder, name)?;
        self.must_be(Self::of(opened.as_fd())?)?;
        Ok(opened)
    }

    fn must_be(self, other: Self) -> Result<(), PathRefusal> {
        match self == other {
            true => Ok(()),
            false => Err(PathRefusal::Unfit("another file system is mounted in it".to_owned())),
        }
    }
}

/// The number of the mount that something is on; none where the system does not tell it.
#[cfg(target_os = "linux")]
fn mount_id(folder: BorrowedFd<'_>, name: &OsStr) -> Result<Option<u64>, Errno> {
    use rustix::fs::{statx, StatxFlags};

    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    match statx(folder, name, flags, StatxFlags::MNT_ID) {
        Ok(known) if known.stx_mask & StatxFlags::MNT_ID.bits() != 0 => Ok(Some(known.stx_mnt_id)),
        Ok(_) | Err(Errno::NOSYS) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
fn mount_id(_: BorrowedFd<'_>, _: &OsStr) -> Result<Option<u64>, Errno> {
    Ok(None)
}

/// What was copied, and as what it was.
#[derive(Debug, Default)]
struct CopyRecord(HashMap<Identity, FileVersion>);

/// When a file was written last, and how large it was. A folder is known by what is in it, and a link never changes.
type FileVersion = Option<(i128, i128, i128)>;

impl CopyRecord {
    fn add(&mut self, known: &Stat) {
        self.0.insert(identity(known), version(known));
    }

    fn must_hold(&self, known: &Stat) -> Result<(), PathRefusal> {
        match self.0.get(&identity(known)) {
            Some(copied) if *copied == version(known) => Ok(()),
            _ => Err(PathRefusal::Changed),
        }
    }
}

fn version(known: &Stat) -> FileVersion {
    let is_file = FileType::from_raw_mode(known.st_mode) == FileType::RegularFile;
    is_file.then(|| (known.st_mtime.into(), known.st_mtime_nsec.into(), known.st_size.into()))
}

/// What was made of what is copied.
#[derive(Default)]
struct Copy {
    record: CopyRecord,
    /// The folder, if it is one.
    made: Option<OwnedFd>,
    /// Folders in it that are to be closed to their owner, the innermost first: while they are, nobody could clean up.
    to_close: Vec<ToClose>,
}

struct ToClose {
    way: Vec<OsString>,
    which: Identity,
    mode: Mode,
}

impl Copy {
    /// Gives the modes that were not given before.
    fn close(&self) -> Result<(), PathRefusal> {
        let Some(made) = &self.made else { return Ok(()) };
        for ToClose { way, which, mode } in &self.to_close {
            let mut inner = None;
            for name in way {
                inner = Some(open_folder(inner.as_ref().unwrap_or(made), name)?);
            }
            let folder = inner.as_ref().unwrap_or(made);
            if identity(&fstat(folder)?) != *which {
                return Err(PathRefusal::Changed);
            }
            fchmod(folder, *mode)?;
        }
        Ok(())
    }
}

/// What is copied.
enum CopySource {
    File(File, Stat),
    Folder(OwnedFd),
    Link(Vec<u8>, Stat),
}

impl CopySource {
    /// Opens a file or a folder that is to be copied.
    fn open(folder: impl AsFd, name: impl AsRef<Path>) -> Result<Self, PathRefusal> {
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
    /// Where it is mounted.
    mount: Mount,
    /// What is made, lest it is copied itself.
    made: Identity,
    /// The folders on the way to the one that is copied now.
    way: Vec<OsString>,
    done: Tally,
    copy: Copy,
}

impl Copying {
    fn copy_below(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        depth: usize,
    ) -> Result<(), PathRefusal> {
        for name in names_in(from, &mut self.done)? {
            let Some(known) = self.mount.look(from, &name)? else { continue };
            if identity(&known) == self.made {
                continue;
            }
            match FileType::from_raw_mode(known.st_mode) {
                FileType::Directory => {
                    let below = self.mount.open_folder(from, &name)?;
                    let known = fstat(&below)?;
                    self.copy.record.add(&known);
                    mkdirat(to, &name, Mode::RWXU)?;
                    let made = open_folder(to, &name)?;
                    self.way.push(name);
                    self.copy_below(below.as_fd(), made.as_fd(), deeper(depth)?)?;
                    self.end(&made, &known)?;
                    self.way.pop();
                }
                FileType::Symlink => {
                    self.copy.record.add(&known);
                    symlinkat(readlinkat(from, &name, Vec::new())?, to, &name)?;
                }
                _ => match CopySource::open(from, &name)? {
                    CopySource::File(file, known) => {
                        self.copy.record.add(&known);
                        drop(copy_file(&file, &known, to, &name, &mut self.done)?);
                    }
                    CopySource::Folder(_) | CopySource::Link(..) => return Err(PathRefusal::Changed),
                },
            }
        }
        Ok(())
    }

    /// Gives a folder that was copied its mode, as far as we can still remove what is in it then.
    fn end(&mut self, made: &OwnedFd, known: &Stat) -> Result<(), PathRefusal> {
        let mode = mode_of(known);
        if !mode.contains(Mode::RWXU) {
            let which = identity(&fstat(made)?);
            self.copy.to_close.push(ToClose { way: self.way.clone(), which, mode });
        }
        Ok(fchmod(made, mode | Mode::RWXU)?)
    }
}

/// Copies a file under a new name.
fn copy_file(
    file: &File,
    known: &Stat,
    folder: impl AsFd,
    name: &OsString,
    done: &mut Tally,
) -> Result<File, PathRefusal> {
    done.add_bytes(u64::try_from(known.st_size).unwrap_or(0));
    done.must_not_be_too_much()?;
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
    fn add_entry(&mut self) -> Result<(), PathRefusal> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(PathRefusal::Unfit(format!("it has more than {ENTRIES_MAX} files and folders")));
        }
        Ok(())
    }

    fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn must_not_be_too_much(&self) -> Result<(), PathRefusal> {
        match self.bytes > BYTES_MAX {
            true => Err(too_many_bytes()),
            false => Ok(()),
        }
    }
}

fn too_many_bytes() -> PathRefusal {
    PathRefusal::Unfit(format!("it has more than {BYTES_MAX} bytes"))
}

/// Gives something another name, and says what is in its way.
fn put_in_place(
    from: &OwnedFd,
    name: &OsString,
    to: &OwnedFd,
    new: &OsString,
    only_if_free: bool,
) -> Result<(), PathRefusal> {
    let moved = match only_if_free {
        true => match renameat_with(from, name, to, new, RenameFlags::NOREPLACE) {
            // Not every file system can do that; it was free just now.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => renameat(from, name, to, new),
            moved => moved,
        },
        false => renameat(from, name, to, new),
    };
    let unfit = |why: &str| Err(of_destination(PathRefusal::Unfit(why.to_owned())));
    match moved {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) if only_if_free => Err(of_destination(PathRefusal::Exists)),
        Err(Errno::EXIST | Errno::NOTEMPTY) => unfit("a folder is there that is not empty"),
        Err(Errno::ISDIR) => unfit("a folder is there"),
        Err(Errno::NOTDIR) => unfit("a file is there"),
        Err(Errno::INVAL) => unfit("a folder cannot be moved into itself"),
        Err(error) => Err(error.into()),
    }
}

/// Whether two names are of one file, and are two.
fn is_another_name(
    source: &ResolvedPath,
    name: &OsString,
    known: &Stat,
    target: &ResolvedPath,
    there: &OsString,
) -> Result<bool, PathRefusal> {
    let other = match statat(&target.folder, there, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        other => other?,
    };
    let is_one_name = name == there && identity(&fstat(&source.folder)?) == identity(&fstat(&target.folder)?);
    Ok(!is_folder(known) && known.st_nlink > 1 && identity(known) == identity(&other) && !is_one_name)
}

/// What cannot be replaced in the end is said before anything is copied.
fn must_be_replaceable(by_folder: bool, place: &ResolvedPath, name: &OsString) -> Result<(), PathRefusal> {
    let known = match statat(&place.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        known => known?,
    };
    let unfit = |why: &str| Err(of_destination(PathRefusal::Unfit(why.to_owned())));
    match (by_folder, is_folder(&known)) {
        (false, false) => Ok(()),
        (false, true) => unfit("a folder is there"),
        (true, false) => unfit("a file is there"),
        (true, true) => match open_folder(&place.folder, name).map(|folder| is_empty(folder.as_fd())) {
            Ok(Ok(false)) => unfit("a folder is there that is not empty"),
            // Who may not look will be told in the end.
            _ => Ok(()),
        },
    }
}

/// Gives something a name beside its own, for as long as it is moved.
fn put_aside(folder: &OwnedFd, name: &OsString, aside: &OsString) -> Result<(), Errno> {
    renameat(folder, name, folder, aside)
}

/// Gives back the name that something had, unless somebody else has it by now, and says why it was not moved.
fn put_back(
    place: &ResolvedPath,
    aside: &OsString,
    name: &OsString,
    why: PathRefusal,
) -> Result<(), PathRefusal> {
    // Where the system cannot take care of that, this does nearly.
    let put = match statat(&place.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => put_in_place(&place.folder, aside, &place.folder, name, true),
        Ok(_) => Err(PathRefusal::Exists),
        Err(error) => Err(error.into()),
    };
    match put {
        Ok(()) => Err(why),
        Err(error) => {
            let left = place.path.with_file_name(aside);
            tracing::warn!(%error, "what was to be removed cannot be put back: `{}` is left at `{}`", place.path.display(), left.display());
            Err(PathRefusal::Partly(
                format!("what is left of it was put at `{}`", left.display()),
                why.into(),
            ))
        }
    }
}

fn of_destination(refusal: PathRefusal) -> PathRefusal {
    PathRefusal::Destination(refusal.into())
}

fn partly(done: &Tally, what: &str, refusal: PathRefusal) -> PathRefusal {
    match done.entries {
        0 => refusal,
        entries => PathRefusal::Partly(format!("{entries} files and folders {what}"), refusal.into()),
    }
}

fn name_of(place: &ResolvedPath) -> Result<&OsString, PathRefusal> {
    place.name.as_ref().ok_or_else(|| PathRefusal::Unfit("it is a folder that somebody works in".to_owned()))
}

fn deeper(depth: usize) -> Result<usize, PathRefusal> {
    match depth + 1 {
        deep if deep < DEPTH_MAX => Ok(deep),
        _ => Err(PathRefusal::Unfit(format!("folders are more than {DEPTH_MAX} deep in it"))),
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
fn open_folder(folder: impl AsFd, name: impl AsRef<Path>) -> Result<OwnedFd, PathRefusal> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | CAREFULLY;
    Ok(openat(folder, name.as_ref(), flags, Mode::empty())?)
}

/// The names in a folder, counted.
fn names_in(folder: BorrowedFd<'_>, tally: &mut Tally) -> Result<Vec<OsString>, PathRefusal> {
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

/// Whether nothing is in a folder. What is large is not read to its end.
fn is_empty(folder: BorrowedFd<'_>) -> Result<bool, PathRefusal> {
    for entry in Dir::read_from(folder)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}
