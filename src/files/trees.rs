//! Creating, moving, copying and removing files and folders with their content.
//!
//! A copy is created beside its destination and takes its place in one step. Entries and bytes are
//! counted before an operation starts. A link is copied, moved or removed itself, and other file
//! systems mounted in a folder are not touched. A move to another file system renames the source to
//! a temporary name, copies it, and removes what is unchanged since the copy.
//!
//! `walk` traverses folders within limits, `copying` creates copies, and `names` renames.
//!
//! Owns: these operations below [`Folders`].
//! Never: removes or replaces a working folder or the host's own files; reads a special file.

mod copying;
mod names;
mod walk;

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{
    fstat, mkdirat, readlinkat, statat, symlinkat, unlinkat, AtFlags, FileType, Mode, Stat, CWD,
};
use rustix::io::Errno;

use self::copying::{copy_file, CopyRecord, CopySource, Copying, CreatedCopy};
use self::names::{
    is, is_another_name, must_be_replaceable, of_destination, put_aside, put_back, put_in_place,
};
use self::walk::{deeper, is_folder, names_in, open_folder, Mount, Tally};
use super::facts::etag_in;
use super::folders::{identity, must_be_file, FinalLink, Folders, MissingFolders, PathRefusal, ResolvedPath};
use super::replacement::temporary_name;
use super::unfinished::{TemporaryName, UnfinishedNote};
use super::writing::must_be_on_a_disk;

#[derive(Debug, Clone, Copy)]
enum TreeOperation<'a> {
    Copied,
    Removed,
    /// Removed, if it is unchanged since it was copied.
    Moved(&'a CopyRecord),
}

impl Folders {
    /// Creates a folder, and the missing folders above it. An existing folder is accepted.
    ///
    /// # Errors
    /// When the path exists and is no folder, or is outside the folders.
    pub fn make_folder(&self, path: &Path) -> Result<(), PathRefusal> {
        self.must_be_made_on_a_disk(path)?;
        let place = self.find(path, MissingFolders::IsMade, FinalLink::Followed)?;
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

    /// Removes a file, a link, or a folder; a non-empty one only if `with_content` is set.
    ///
    /// # Errors
    /// When it is missing, outside the folders, or not empty. A failure midway names its progress.
    pub fn remove(&self, path: &Path, with_content: bool) -> Result<(), PathRefusal> {
        let place = self.find(path, MissingFolders::Fails, FinalLink::Itself)?;
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
        self.count(folder.as_fd(), TreeOperation::Removed)?;
        let mut done = Tally::default();
        let removed =
            self.empty(folder.as_fd(), Mount::of(folder.as_fd())?, TreeOperation::Removed, 0, &mut done);
        let removed = removed.and_then(|()| Ok(unlinkat(&place.folder, name, AtFlags::REMOVEDIR)?));
        removed.map_err(|refusal| partly(&done, "were removed", refusal))
    }

    /// Removes a file or a link of this version. A file that has taken its name is put back.
    ///
    /// # Errors
    /// When it has another version, is a folder, or is outside the folders.
    pub fn remove_version(&self, path: &Path, version: &str) -> Result<(), PathRefusal> {
        let place = self.find(path, MissingFolders::Fails, FinalLink::Itself)?;
        let name = name_of(&place)?;
        self.must_not_be_own(&place)?;
        must_be_on_a_disk(&place.folder)?;
        let known = statat(&place.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if is_folder(&known) || etag_in(&known) != version {
            return Err(PathRefusal::Changed);
        }
        let aside = temporary_name();
        let _remembered = self.remember(TemporaryName::Aside, &place, &aside, name);
        put_aside(&place.folder, name, &aside)?;
        let now = statat(&place.folder, &aside, AtFlags::SYMLINK_NOFOLLOW)?;
        let facts = |known: &Stat| (identity(known), known.st_size, known.st_mtime, known.st_mtime_nsec);
        if facts(&now) != facts(&known) {
            return put_back(&place, &aside, name, PathRefusal::Changed);
        }
        Ok(unlinkat(&place.folder, &aside, AtFlags::empty())?)
    }

    /// Moves a file, a link or a folder. Replaces the target, unless that is a folder that is not
    /// empty or `only_if_free` is set.
    ///
    /// # Errors
    /// When the source is missing, a path is outside the folders, or the target is not replaceable.
    pub fn rename(&self, from: &Path, to: &Path, only_if_free: bool) -> Result<(), PathRefusal> {
        let source = self.find(from, MissingFolders::Fails, FinalLink::Itself)?;
        let target = self.find(to, MissingFolders::Fails, FinalLink::Itself).map_err(of_destination)?;
        let name = name_of(&source)?;
        self.must_not_be_own(&source)?;
        self.must_hold_no_top(&source)?;
        let there = self.free_or_replaceable(&target, only_if_free).map_err(of_destination)?;
        must_be_on_a_disk(&source.folder)?;
        must_be_on_a_disk(&target.folder)?;
        // A missing source is reported before an obstacle at the target.
        let known = statat(&source.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_twin = !only_if_free && is_another_name(&source, name, &known, &target, there)?;
        match put_in_place(&source.folder, name, &target.folder, there, only_if_free) {
            // `rename` succeeds without an effect if both names are links to one file.
            Ok(()) if is_twin => self.take_name(&source, name, &known, &target, there),
            Err(PathRefusal::Failed(error)) if is(&error, Errno::XDEV) => {
                must_be_replaceable(is_folder(&known), &target, there)?;
                self.move_over(&source, name, &target, there, only_if_free)
            }
            moved => moved,
        }
    }

    /// Removes the old name of a file that already has the new name as a hard link.
    fn take_name(
        &self,
        source: &ResolvedPath,
        name: &OsString,
        known: &Stat,
        target: &ResolvedPath,
        there: &OsString,
    ) -> Result<(), PathRefusal> {
        let aside = temporary_name();
        let _remembered = self.remember(TemporaryName::Aside, source, &aside, name);
        match put_aside(&source.folder, name, &aside) {
            Err(Errno::NOENT) => return Ok(()),
            put => put?,
        }
        let now = statat(&source.folder, &aside, AtFlags::SYMLINK_NOFOLLOW)?;
        if identity(&now) != identity(known) {
            return put_back(source, &aside, name, PathRefusal::Changed);
        }
        // No effect again, unless the two names denote the same entry (for example on a file system
        // that ignores case), or the other name has been removed.
        if let Err(refusal) = put_in_place(&source.folder, &aside, &target.folder, there, false) {
            return put_back(source, &aside, name, refusal);
        }
        match unlinkat(&source.folder, &aside, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves to another file system. The source gets a temporary name first, so that no process
    /// adds a file to it by its name.
    fn move_over(
        &self,
        source: &ResolvedPath,
        name: &OsString,
        target: &ResolvedPath,
        there: &OsString,
        only_if_free: bool,
    ) -> Result<(), PathRefusal> {
        let aside = temporary_name();
        let _remembered = self.remember(TemporaryName::Aside, source, &aside, name);
        match put_aside(&source.folder, name, &aside) {
            // A folder in a lower layer of an overlay cannot be renamed: it is copied, and removed
            // as far as it is unchanged.
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
            self.count(folder.as_fd(), TreeOperation::Removed)?;
        }
        let record = self.copy_to(&moved, target, there, only_if_free)?;
        let removed = self.remove_what_was_copied(&source.folder, aside, &moved, &record);
        removed.map_err(|refusal| PathRefusal::Partly("it was copied".to_owned(), refusal.into()))
    }

    /// Removes the source of a copy, if it is unchanged since.
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
        let (deed, mut done) = (TreeOperation::Moved(record), Tally::default());
        self.count(inside.as_fd(), deed)?;
        let removed = self.empty(inside.as_fd(), Mount::of(inside.as_fd())?, deed, 0, &mut done);
        let removed = removed.and_then(|()| match unlinkat(folder, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(PathRefusal::Changed),
            removed => Ok(removed?),
        });
        removed.map_err(|refusal| partly(&done, "were removed", refusal))
    }

    /// Copies a file or a folder from anywhere. Replaces the target, unless that is a folder that
    /// is not empty or `only_if_free` is set.
    ///
    /// # Errors
    /// When the source is missing, or the target is outside or not replaceable. Then nothing has
    /// changed.
    pub fn copy(&self, from: &Path, to: &Path, only_if_free: bool) -> Result<(), PathRefusal> {
        let from = from.canonicalize()?;
        let source = CopySource::open(CWD, from.as_os_str())?;
        let last = if only_if_free { FinalLink::Itself } else { FinalLink::Followed };
        let target = self.find(to, MissingFolders::Fails, last).map_err(of_destination)?;
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

    /// Returns the name of the target, if an entry may be put there.
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

    /// Copies to a temporary name beside the target, and then renames the copy.
    fn copy_to(
        &self,
        source: &CopySource,
        to: &ResolvedPath,
        name: &OsString,
        only_if_free: bool,
    ) -> Result<CopyRecord, PathRefusal> {
        must_be_replaceable(matches!(source, CopySource::Folder(_)), to, name)?;
        let new = temporary_name();
        let remembered = self.remember(TemporaryName::Copy, to, &new, name);
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
                    tracing::warn!(%error, "an incomplete copy cannot be removed: `{}` is left beside `{}`", new.display(), to.path.display());
                    remembered.into_iter().for_each(UnfinishedNote::keep);
                }
                Err(refusal)
            }
        }
    }

    fn make_copy(
        &self,
        source: &CopySource,
        to: &OwnedFd,
        name: &OsString,
    ) -> Result<CreatedCopy, PathRefusal> {
        let mut copy = CreatedCopy::default();
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
                self.count(folder, TreeOperation::Copied)?;
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
        self.empty(made.as_fd(), Mount::of(made.as_fd())?, TreeOperation::Removed, 0, &mut Tally::default())?;
        Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?)
    }

    /// Checks the limits and the entries of a folder before it is copied or removed.
    fn count(&self, folder: BorrowedFd<'_>, deed: TreeOperation<'_>) -> Result<(), PathRefusal> {
        self.count_below(folder, Mount::of(folder)?, deed, 0, &mut Tally::default())
    }

    fn count_below(
        &self,
        folder: BorrowedFd<'_>,
        mount: Mount,
        deed: TreeOperation<'_>,
        depth: usize,
        tally: &mut Tally,
    ) -> Result<(), PathRefusal> {
        for name in names_in(folder, tally)? {
            let Some(known) = mount.metadata_of(folder, &name)? else { continue };
            self.must_be_free_for(deed, &known)?;
            match FileType::from_raw_mode(known.st_mode) {
                FileType::Directory => {
                    let below = mount.open_folder(folder, &name)?;
                    self.count_below(below.as_fd(), mount, deed, deeper(depth)?, tally)?;
                }
                FileType::RegularFile => {
                    tally.add_bytes(u64::try_from(known.st_size).unwrap_or(0));
                    if matches!(deed, TreeOperation::Copied) {
                        tally.must_not_be_too_much()?;
                    }
                }
                FileType::Symlink => {}
                _ if matches!(deed, TreeOperation::Copied) => must_be_file(&known)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses a file of the host's own or, for a move, one that has changed since it was copied.
    fn must_be_free_for(&self, deed: TreeOperation<'_>, known: &Stat) -> Result<(), PathRefusal> {
        match deed {
            TreeOperation::Copied => Ok(()),
            TreeOperation::Removed => self.must_not_be_one_of_own(known),
            TreeOperation::Moved(record) => {
                self.must_not_be_one_of_own(known)?;
                record.must_hold(known)
            }
        }
    }

    fn empty(
        &self,
        folder: BorrowedFd<'_>,
        mount: Mount,
        deed: TreeOperation<'_>,
        depth: usize,
        done: &mut Tally,
    ) -> Result<(), PathRefusal> {
        for name in names_in(folder, &mut Tally::default())? {
            let Some(known) = mount.metadata_of(folder, &name)? else { continue };
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

fn partly(done: &Tally, what: &str, refusal: PathRefusal) -> PathRefusal {
    match done.entries {
        0 => refusal,
        entries => PathRefusal::Partly(format!("{entries} files and folders {what}"), refusal.into()),
    }
}

fn name_of(place: &ResolvedPath) -> Result<&OsString, PathRefusal> {
    place.name.as_ref().ok_or_else(|| PathRefusal::Unfit("it is a folder that somebody works in".to_owned()))
}
