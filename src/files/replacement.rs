//! Atomic replacement of a file or link: the new one is completed beside the old one first.
//!
//! Owns: files and links under temporary names, which are removed on failure.
//! Never: follows a link that is to be replaced.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[cfg(target_os = "linux")]
use rustix::fs::{linkat, CWD};
use rustix::fs::{
    openat, renameat, renameat_with, symlinkat, unlinkat, AtFlags, Mode, OFlags, RenameFlags, Stat,
};
use rustix::io::Errno;

use super::attributes::{have_attributes, have_mode_and_owner};
use super::folders::{FinalLink, Folders, MissingFolders, PathRefusal, ResolvedPath, NONBLOCKING};
use super::writing::{must_be_on_a_disk, KeptRanges};

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
        symlinkat(target, &place.folder, name).map_err(|error| match error {
            Errno::EXIST => PathRefusal::Exists,
            error => error.into(),
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
                let new = ReplacementFile::of(&place)?;
                new.fill(content, None, KeptRanges::NOTHING)?;
                Ok(new.replace_target(name)?)
            }
            Replacement::Link(target) => {
                let beside = temporary_name();
                symlinkat(target, &place.folder, &beside)?;
                renameat(&place.folder, &beside, &place.folder, name).map_err(|error| {
                    remove_temporary(&place, &beside);
                    error.into()
                })
            }
        }
    }
}

/// New file that replaces another one. If possible, it has no name until then, so that a killed
/// process leaves nothing behind; otherwise it is next to the old file, and removed on drop.
pub(super) struct ReplacementFile<'a> {
    place: &'a ResolvedPath,
    /// Temporary name; `None` if the file has no name.
    name: Option<OsString>,
    file: File,
}

/// Folder in which the system shows open files, so that an unnamed one can be linked.
#[cfg(target_os = "linux")]
const OPENED: &str = "/proc/self/fd";

/// Creates an unnamed file; `None` if the system cannot link one later.
#[cfg(target_os = "linux")]
fn open_unnamed(place: &ResolvedPath) -> Option<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = openat(&place.folder, ".", flags, Mode::from_raw_mode(0o666)).ok()?;
    std::fs::symlink_metadata(format!("{OPENED}/{}", file.as_raw_fd())).is_ok().then(|| file.into())
}

#[cfg(not(target_os = "linux"))]
fn open_unnamed(_: &ResolvedPath) -> Option<File> {
    None
}

impl<'a> ReplacementFile<'a> {
    pub(super) fn of(place: &'a ResolvedPath) -> io::Result<Self> {
        if let Some(file) = open_unnamed(place) {
            return Ok(Self { place, name: None, file });
        }
        let name = temporary_name();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | NONBLOCKING;
        let file = openat(&place.folder, &name, flags, Mode::from_raw_mode(0o666))?.into();
        Ok(Self { place, name: Some(name), file })
    }

    /// Sets the mode, before the file has content.
    pub(super) fn permit(&self, mode: u32) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(mode))
    }

    /// Writes the new content, with the kept ranges and the attributes of the old file.
    pub(super) fn fill(
        &self,
        content: &[u8],
        before: Option<(&File, &Stat)>,
        kept: KeptRanges,
    ) -> io::Result<()> {
        let mut new = &self.file;
        if let Some((old, known)) = before {
            // Set before the file has content, which other users might read otherwise.
            have_mode_and_owner(&self.file, known)?;
            have_attributes(&self.file, old);
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
        self.file.sync_data()
    }

    /// Replaces the file of this name, if it exists.
    pub(super) fn replace_target(mut self, name: &OsString) -> io::Result<()> {
        if self.name.is_none() {
            let beside = temporary_name();
            self.take_name(&beside)?;
            self.name = Some(beside);
        }
        if let Some(beside) = &self.name {
            renameat(&self.place.folder, beside, &self.place.folder, name)?;
        }
        self.name = None;
        Ok(())
    }

    /// Takes a free name; fails if it is taken.
    pub(super) fn create_target(mut self, name: &OsString) -> Result<(), Errno> {
        match &self.name {
            None => self.take_name(name),
            Some(beside) => {
                let folder = &self.place.folder;
                renameat_with(folder, beside, folder, name, RenameFlags::NOREPLACE)?;
                self.name = None;
                Ok(())
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn take_name(&self, name: &OsString) -> Result<(), Errno> {
        let opened = format!("{OPENED}/{}", self.file.as_raw_fd());
        linkat(CWD, opened, &self.place.folder, name, AtFlags::SYMLINK_FOLLOW)
    }

    #[cfg(not(target_os = "linux"))]
    fn take_name(&self, _: &OsString) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
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
    if let Err(error) = unlinkat(&place.folder, name, AtFlags::empty()) {
        let beside = place.path.display();
        tracing::warn!(%error, "a temporary file cannot be removed: `{}` is left beside `{beside}`", name.display());
    }
}

pub(super) fn temporary_name() -> OsString {
    format!(".{}.tmp", uuid::Uuid::new_v4()).into()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_has_no_name_before_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("file");
        let folders = Folders::new(vec![folder.path().to_owned()]);
        let place = folders.find(&path, MissingFolders::Fails, FinalLink::Followed).unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        for content in ["one", "other"] {
            let new = ReplacementFile::of(&place).unwrap();
            new.fill(content.as_bytes(), None, KeptRanges::NOTHING).unwrap();
            if new.name.is_some() {
                return eprintln!("not tested here: every file has a name");
            }
            assert_eq!(names(), usize::from(content == "other"));
            new.replace_target(place.name.as_ref().unwrap()).unwrap();
            assert_eq!((names(), std::fs::read_to_string(&path).unwrap()), (1, content.to_owned()));
        }
    }
}
