//! Atomic replacement of a file or link: the new one is completed beside the old one first.
//!
//! Owns: files and links under temporary names, which are removed on failure.
//! Never: follows a link that is to be replaced.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::folders::{FinalLink, Folders, MissingFolders, PathRefusal, ResolvedPath};
use super::unfinished::{TemporaryName, UnfinishedNote};
use super::writing::{must_be_on_a_disk, KeptRanges};
use crate::os::facts::{self, Facts};
use crate::os::write::{copy_attributes, copy_mode_and_owner, sync};

/// Replacement of a file or link.
#[derive(Debug, Clone, Copy)]
pub enum Replacement<'a> {
    /// File with this content.
    File(&'a [u8]),
    /// Link with this target.
    Link(&'a OsStr),
}

impl Folders {
    /// Creates a link, and the missing folders above it.
    ///
    /// # Errors
    /// When it exists, may not be created, or is outside the folders; created folders may remain.
    pub fn create_link(&self, path: &Path, target: &OsStr) -> Result<(), PathRefusal> {
        self.must_be_made_on_a_disk(path)?;
        let place = self.find(path, MissingFolders::IsMade, FinalLink::Itself)?;
        let Some(name) = &place.name else { return Err(PathRefusal::Exists) };
        self.must_not_be_own(&place)?;
        must_be_on_a_disk(&place.folder)?;
        place.folder.create_link(target, name).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => PathRefusal::Exists,
            _ => error.into(),
        })
    }

    /// Replaces a file or a link. A link is replaced itself; its target does not matter.
    ///
    /// # Errors
    /// When it is a folder, not replaceable, or outside, or the disk is full. Then nothing has
    /// changed.
    pub fn replace(&self, path: &Path, instead: Replacement<'_>) -> Result<(), PathRefusal> {
        let place = self.find(path, MissingFolders::Fails, FinalLink::Itself)?;
        let Some(name) = &place.name else { return Err(PathRefusal::NotAFile("a folder")) };
        self.must_not_be_own(&place)?;
        must_be_on_a_disk(&place.folder)?;
        match instead {
            Replacement::File(content) => {
                let new = ReplacementFile::of(self, &place, name)?;
                new.fill(content, None, KeptRanges::NOTHING)?;
                Ok(new.replace_target(name)?)
            }
            Replacement::Link(target) => {
                let beside = temporary_name();
                place.folder.create_link(target, &beside)?;
                place.folder.rename(&beside, &place.folder, name).map_err(|error| {
                    remove_temporary(&place, &beside);
                    error.into()
                })
            }
        }
    }
}

/// New file that replaces another one. If possible, it has no name until then, so that a killed
/// process leaves nothing behind; otherwise it is next to the old file, recorded as unfinished, and
/// removed on drop. A process killed between naming and renaming a nameless file leaves one
/// temporary file.
pub(super) struct ReplacementFile<'a> {
    place: &'a ResolvedPath,
    /// Temporary name; `None` if the file has no name.
    name: Option<OsString>,
    file: File,
    /// Record of the temporary name. It outlives the name: see the order of `drop`.
    _remembered: Option<UnfinishedNote>,
}

impl<'a> ReplacementFile<'a> {
    /// Creates the file that will replace `target`, which may not exist yet.
    pub(super) fn of(folders: &Folders, place: &'a ResolvedPath, target: &OsStr) -> io::Result<Self> {
        if let Some(file) = place.folder.create_unnamed(0o666) {
            return Ok(Self { place, name: None, file, _remembered: None });
        }
        let name = temporary_name();
        let remembered = folders.remember(TemporaryName::Copy, place, &name, target);
        let file = place.folder.create(&name, 0o666)?;
        Ok(Self { place, name: Some(name), file, _remembered: remembered })
    }

    /// Sets the mode, before the file has content.
    pub(super) fn permit(&self, mode: u32) -> io::Result<()> {
        facts::set_mode(&self.file, mode)
    }

    /// Writes the new content, with the kept ranges and the attributes of the old file.
    pub(super) fn fill(
        &self,
        content: &[u8],
        before: Option<(&File, &Facts)>,
        kept: KeptRanges,
    ) -> io::Result<()> {
        let mut new = &self.file;
        if let Some((old, known)) = before {
            // Set before the file has content, which other users might read otherwise.
            copy_mode_and_owner(&self.file, known)?;
            copy_attributes(&self.file, old);
        }
        if let Some((mut old, _)) = before.filter(|_| kept.before > 0) {
            old.seek(SeekFrom::Start(0))?;
            io::copy(&mut old.take(kept.before), &mut new)?;
        }
        new.write_all(content)?;
        if let Some((mut old, _)) = before.filter(|_| kept.from < kept.size) {
            old.seek(SeekFrom::Start(kept.from))?;
            io::copy(&mut old.take(kept.size - kept.from), &mut new)?;
        }
        sync(&self.file)
    }

    /// Replaces the file of this name, if it exists.
    pub(super) fn replace_target(mut self, name: &OsString) -> io::Result<()> {
        if self.name.is_none() {
            let beside = temporary_name();
            self.place.folder.give_name(&self.file, &beside)?;
            self.name = Some(beside);
        }
        if let Some(beside) = &self.name {
            self.place.folder.rename(beside, &self.place.folder, name)?;
        }
        self.name = None;
        Ok(())
    }

    /// Takes a free name; fails if it is taken.
    pub(super) fn create_target(mut self, name: &OsString) -> io::Result<()> {
        let folder = &self.place.folder;
        match &self.name {
            None => folder.give_name(&self.file, name),
            Some(beside) => {
                folder.rename_if_free(beside, folder, name)?;
                self.name = None;
                Ok(())
            }
        }
    }
}

impl Drop for ReplacementFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            remove_temporary(self.place, name);
        }
    }
}

fn remove_temporary(place: &ResolvedPath, name: &OsString) {
    if let Err(error) = place.folder.remove(name) {
        let beside = place.path.display();
        tracing::warn!(%error, "a temporary file cannot be removed: `{}` is left beside `{beside}`", name.display());
    }
}

pub(super) fn temporary_name() -> OsString {
    format!(".{}.tmp", uuid::Uuid::new_v4()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::unfinished::Unfinished;

    #[test]
    fn what_is_written_has_no_name_before_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("file");
        let folders = Folders::new(vec![folder.path().to_owned()]);
        let place = folders.find(&path, MissingFolders::Fails, FinalLink::Followed).unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        for content in ["one", "other"] {
            let new = ReplacementFile::of(&folders, &place, place.name.as_ref().unwrap()).unwrap();
            new.fill(content.as_bytes(), None, KeptRanges::NOTHING).unwrap();
            if new.name.is_some() {
                return eprintln!("not tested here: every file has a name");
            }
            assert_eq!(names(), usize::from(content == "other"));
            new.replace_target(place.name.as_ref().unwrap()).unwrap();
            assert_eq!((names(), std::fs::read_to_string(&path).unwrap()), (1, content.to_owned()));
        }
    }

    #[test]
    fn temporary_file_of_a_killed_process_is_removed_at_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let (notes, work) = (folder.path().join("notes"), folder.path().join("work"));
        std::fs::create_dir(&work).unwrap();
        let path = work.canonicalize().unwrap().join("file");
        let (unfinished, _) = Unfinished::open(notes.clone()).unwrap();
        let folders = Folders::new(vec![work.clone()]).remembering(Some(unfinished));
        let place = folders.find(&path, MissingFolders::Fails, FinalLink::Followed).unwrap();
        let new = ReplacementFile::of(&folders, &place, place.name.as_ref().unwrap()).unwrap();
        new.fill(b"new", None, KeptRanges::NOTHING).unwrap();
        // A killed process drops nothing.
        std::mem::forget(new);
        let (_, left) = Unfinished::open(notes).unwrap();
        left.recover();
        assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0);
    }
}
