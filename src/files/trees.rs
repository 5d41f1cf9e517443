//! Creating, moving, copying and removing files and folders with their content.
//!
//! A copy is created beside its destination and takes its place in one step. Entries and bytes are
//! counted before an operation starts. A link is moved or removed itself, and so is a link copied
//! that is in a folder; one that is named as the source of a copy is followed. Other file systems
//! mounted in a folder are not touched. A move to another file system renames the source to
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
use std::io::{self, ErrorKind};
use std::path::Path;

use self::copying::{copy_file, CopyRecord, CopySource, Copying, CreatedCopy};
pub(super) use self::names::rename_back;
use self::names::{
    is_another_name, is_same_entry, must_be_replaceable, of_destination, put_aside, put_back, put_in_place,
};
use self::walk::{deeper, names_in, Mount, Tally};
use super::facts::etag;
use super::folders::{must_be_file, FinalLink, Folders, MissingFolders, PathRefusal, ResolvedPath};
use super::replacement::temporary_name;
use super::unfinished::{TemporaryName, UnfinishedNote};
use super::writing::must_be_on_a_disk;
use crate::os::facts::{Facts, FileKind};
use crate::os::paths::canonical;
use crate::os::walk::Folder;
use crate::os::write::sync;

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
        let is_there = place.folder.facts_of(name).is_ok();
        if !is_there {
            self.must_not_be_too_deep(&place.path)?;
        }
        match place.folder.create_folder(name, 0o777) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                match place.folder.facts_of(name)?.is_folder() {
                    true => Ok(()),
                    false => Err(PathRefusal::Exists),
                }
            }
            made => Ok(made?),
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
        let known = place.folder.facts_of(name)?;
        if !known.is_folder() {
            return Ok(place.folder.remove(name)?);
        }
        match place.folder.remove_folder(name) {
            Err(error) if is_not_empty(&error) && with_content => {}
            Err(error) if is_not_empty(&error) => {
                return Err(PathRefusal::Unfit("it is a folder that is not empty".to_owned()));
            }
            Err(error) if error.kind() == ErrorKind::NotADirectory => return Err(PathRefusal::Changed),
            removed => return Ok(removed?),
        }
        let folder = place.folder.open_folder(name)?;
        self.count(&folder, TreeOperation::Removed)?;
        let mut done = Tally::default();
        let removed = self.empty(&folder, Mount::of(&folder)?, TreeOperation::Removed, 0, &mut done);
        drop(folder);
        let removed = removed.and_then(|()| Ok(place.folder.remove_folder(name)?));
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
        let known = place.folder.facts_of(name)?;
        if known.is_folder() || etag(&known) != version {
            return Err(PathRefusal::Changed);
        }
        let aside = temporary_name();
        let remembered = self.remember(TemporaryName::Aside, &place, &aside, name);
        put_aside(&place.folder, name, &aside)?;
        let facts = |known: &Facts| (known.identity, known.size, known.modified);
        let remove = || -> Result<(), PathRefusal> {
            if facts(&place.folder.facts_of(&aside)?) != facts(&known) {
                return Err(PathRefusal::Changed);
            }
            Ok(place.folder.remove(&aside)?)
        };
        remove().or_else(|refusal| put_back(&place, &aside, name, (remembered, refusal)))
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
        // An entry is not in its own way, which only a file system that ignores case can ask.
        let only_if_free = only_if_free && !is_same_entry(&source, name, &target)?;
        let there = self.free_or_replaceable(&target, only_if_free).map_err(of_destination)?;
        must_be_on_a_disk(&source.folder)?;
        must_be_on_a_disk(&target.folder)?;
        // A missing source is reported before an obstacle at the target.
        let known = source.folder.facts_of(name)?;
        let is_twin = !only_if_free && is_another_name(&source, name, &known, &target, there)?;
        match put_in_place(&source.folder, name, &target.folder, there, only_if_free) {
            // `rename` succeeds without an effect if both names are links to one file.
            Ok(()) if is_twin => self.take_name(&source, name, &known, &target, there),
            Err(PathRefusal::Failed(error)) if error.kind() == ErrorKind::CrossesDevices => {
                must_be_replaceable(known.is_folder(), &target, there)?;
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
        known: &Facts,
        target: &ResolvedPath,
        there: &OsString,
    ) -> Result<(), PathRefusal> {
        let aside = temporary_name();
        let remembered = self.remember(TemporaryName::Aside, source, &aside, name);
        match put_aside(&source.folder, name, &aside) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            put => put?,
        }
        let take = || -> Result<(), PathRefusal> {
            if source.folder.facts_of(&aside)?.identity != known.identity {
                return Err(PathRefusal::Changed);
            }
            // No effect again, unless the two names denote the same entry (for example on a file
            // system that ignores case), or the other name has been removed.
            put_in_place(&source.folder, &aside, &target.folder, there, false)?;
            remove_if_there(&source.folder, &aside)
        };
        take().or_else(|refusal| put_back(source, &aside, name, (remembered, refusal)))
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
        let remembered = self.remember(TemporaryName::Aside, source, &aside, name);
        match put_aside(&source.folder, name, &aside) {
            // A folder in a lower layer of an overlay cannot be renamed: it is copied, and removed
            // as far as it is unchanged.
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                return self.move_what_is_aside(source, name, target, there, only_if_free);
            }
            put => put?,
        }
        let moved = self.move_what_is_aside(source, &aside, target, there, only_if_free);
        moved.or_else(|refusal| put_back(source, &aside, name, (remembered, refusal)))
    }

    fn move_what_is_aside(
        &self,
        source: &ResolvedPath,
        aside: &OsString,
        target: &ResolvedPath,
        there: &OsString,
        only_if_free: bool,
    ) -> Result<(), PathRefusal> {
        let known = source.folder.facts_of(aside)?;
        self.must_not_be_one_of_own(&known)?;
        let moved = match known.kind {
            FileKind::Link => CopySource::Link(source.folder.read_link(aside)?, known),
            _ => CopySource::open(&source.folder, aside)?,
        };
        if let CopySource::Folder(folder) = &moved {
            self.count(folder, TreeOperation::Removed)?;
        }
        let record = self.copy_to(&moved, target, there, only_if_free)?;
        let removed = self.remove_what_was_copied(&source.folder, aside, moved, &record);
        removed.map_err(|refusal| PathRefusal::Partly("it was copied".to_owned(), refusal.into()))
    }

    /// Removes the source of a copy, if it is unchanged since.
    fn remove_what_was_copied(
        &self,
        folder: &Folder,
        name: &OsString,
        copied: CopySource,
        record: &CopyRecord,
    ) -> Result<(), PathRefusal> {
        let CopySource::Folder(inside) = copied else {
            record.must_hold(&folder.facts_of(name)?)?;
            return Ok(folder.remove(name)?);
        };
        let (operation, mut done) = (TreeOperation::Moved(record), Tally::default());
        self.count(&inside, operation)?;
        let removed = self.empty(&inside, Mount::of(&inside)?, operation, 0, &mut done);
        drop(inside);
        let removed = removed.and_then(|()| match folder.remove_folder(name) {
            Err(error) if is_not_empty(&error) => Err(PathRefusal::Changed),
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
        let from = canonical(from)?;
        let source = CopySource::at(&from)?;
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
        match target.folder.facts_of(name) {
            Ok(_) if only_if_free => Err(PathRefusal::Exists),
            Ok(_) => {
                self.must_hold_no_top(target)?;
                Ok(name)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(name),
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
                if let Err(error) = self.remove_what_was_made(&to.folder, &new, is_folder) {
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
        to: &Folder,
        name: &OsString,
    ) -> Result<CreatedCopy, PathRefusal> {
        let mut copy = CreatedCopy::default();
        match source {
            CopySource::Link(target, known) => {
                copy.record.add(known);
                to.create_link(target, name)?;
            }
            CopySource::File(file, known) => {
                copy.record.add(known);
                sync(&copy_file(file, known, to, name, &mut Tally::default())?)?;
            }
            CopySource::Folder(folder) => {
                self.count(folder, TreeOperation::Copied)?;
                let known = folder.facts()?;
                to.create_folder(name, 0o700)?;
                let made = to.open_folder(name)?;
                let mut copying = Copying {
                    mount: Mount::of(folder)?,
                    made: made.facts()?.identity,
                    way: Vec::new(),
                    done: Tally::default(),
                    copy,
                };
                copying.copy_below(folder, &made, 0)?;
                copying.end(&made, &known)?;
                copy = copying.copy;
                // An open folder cannot be renamed on every system.
                copy.made = (!copy.to_close.is_empty()).then_some(made);
            }
        }
        Ok(copy)
    }

    pub(super) fn remove_copy(&self, folder: &Folder, name: &OsString) -> Result<(), PathRefusal> {
        let is_folder = folder.facts_of(name)?.is_folder();
        self.remove_what_was_made(folder, name, is_folder)
    }

    fn remove_what_was_made(
        &self,
        folder: &Folder,
        name: &OsString,
        is_folder: bool,
    ) -> Result<(), PathRefusal> {
        if !is_folder {
            return remove_if_there(folder, name);
        }
        let made = match folder.open_folder(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            made => made?,
        };
        self.empty(&made, Mount::of(&made)?, TreeOperation::Removed, 0, &mut Tally::default())?;
        drop(made);
        Ok(folder.remove_folder(name)?)
    }

    /// Checks the limits and the entries of a folder before it is copied or removed.
    fn count(&self, folder: &Folder, operation: TreeOperation<'_>) -> Result<(), PathRefusal> {
        self.count_below(folder, Mount::of(folder)?, operation, 0, &mut Tally::default())
    }

    fn count_below(
        &self,
        folder: &Folder,
        mount: Mount,
        operation: TreeOperation<'_>,
        depth: usize,
        tally: &mut Tally,
    ) -> Result<(), PathRefusal> {
        for name in names_in(folder, tally)? {
            let Some(known) = mount.metadata_of(folder, &name)? else { continue };
            self.must_be_free_for(operation, &known)?;
            match known.kind {
                FileKind::Folder => {
                    let below = mount.open_folder(folder, &name)?;
                    self.count_below(&below, mount, operation, deeper(depth)?, tally)?;
                }
                FileKind::File => {
                    tally.add_bytes(known.size);
                    if matches!(operation, TreeOperation::Copied) {
                        tally.must_not_be_too_much()?;
                    }
                }
                FileKind::Other if matches!(operation, TreeOperation::Copied) => must_be_file(&known)?,
                FileKind::Link | FileKind::Other => {}
            }
        }
        Ok(())
    }

    /// Refuses a file of the host's own or, for a move, one that has changed since it was copied.
    fn must_be_free_for(&self, operation: TreeOperation<'_>, known: &Facts) -> Result<(), PathRefusal> {
        match operation {
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
        folder: &Folder,
        mount: Mount,
        operation: TreeOperation<'_>,
        depth: usize,
        done: &mut Tally,
    ) -> Result<(), PathRefusal> {
        for name in names_in(folder, &mut Tally::default())? {
            let Some(known) = mount.metadata_of(folder, &name)? else { continue };
            self.must_be_free_for(operation, &known)?;
            let removed = if known.is_folder() {
                let below = mount.open_folder(folder, &name)?;
                self.must_not_be_one_of_own(&below.facts()?)?;
                self.empty(&below, mount, operation, deeper(depth)?, done)?;
                drop(below);
                folder.remove_folder(&name)
            } else {
                folder.remove(&name)
            };
            match removed {
                Ok(()) => done.add_entry()?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Removes an entry that is no folder. One that is gone already is not an error.
fn remove_if_there(folder: &Folder, name: &OsString) -> Result<(), PathRefusal> {
    match folder.remove(name) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn is_not_empty(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists)
}

fn partly(done: &Tally, what: &str, refusal: PathRefusal) -> PathRefusal {
    match done.entries {
        0 => refusal,
        entries => PathRefusal::Partly(format!("{entries} files and folders {what}"), refusal.into()),
    }
}

fn name_of(place: &ResolvedPath) -> Result<&OsString, PathRefusal> {
    place.name.as_ref().ok_or_else(|| PathRefusal::Unfit("it is a working directory of a session".to_owned()))
}
