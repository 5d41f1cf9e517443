//! Steps by path, in folders that cannot be renamed or removed while they are open.
//!
//! A handle that does not share deletion keeps its folder and all folders above it in place, so a
//! path that was opened name by name leads to the same folder until the handle is closed.
//!
//! Owns: the half for Windows.
//! Never: follows a link, unless its caller says so.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::windows::fs::{symlink_dir, symlink_file, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{FileAccess, MountId};
use crate::os::facts::{self, Facts};

/// Opens folders, too.
const BACKUP_SEMANTICS: u32 = 0x0200_0000;
/// Opens a link itself.
const OPEN_REPARSE_POINT: u32 = 0x0020_0000;
/// Lets others read and write, but not rename or remove.
const SHARE_READ_AND_WRITE: u32 = 0x3;
/// Right to list a folder, or to read a file.
const LIST: u32 = 0x1;
/// Right to ask for the facts of a file, which alone does not keep it in place.
const READ_FACTS: u32 = 0x80;
/// Right to pass through a folder.
const PASS: u32 = 0x20;

const CANT_RESOLVE_FILENAME: i32 = 1921;
const FILENAME_EXCED_RANGE: i32 = 206;
const DIRECTORY: i32 = 267;
const INVALID_FUNCTION: i32 = 1;
const NOT_SUPPORTED: i32 = 50;

#[derive(Debug)]
pub(super) struct Folder {
    /// Keeps the folder in place.
    handle: File,
    path: PathBuf,
}

fn open_folder(path: PathBuf, access: u32) -> io::Result<Folder> {
    let handle = OpenOptions::new()
        .access_mode(access)
        .share_mode(SHARE_READ_AND_WRITE)
        .custom_flags(BACKUP_SEMANTICS | OPEN_REPARSE_POINT)
        .open(&path)?;
    match facts::of(&handle)?.is_folder() {
        true => Ok(Folder { handle, path }),
        false => Err(ErrorKind::NotADirectory.into()),
    }
}

impl Folder {
    pub(super) fn root_of(path: &Path) -> io::Result<Self> {
        let root = path.ancestors().last().filter(|root| root.is_absolute());
        let root = root.ok_or(ErrorKind::InvalidInput)?;
        // In this form, a path may be long, and names such as `aux` are names.
        open_folder(root.canonicalize()?, PASS | READ_FACTS)
    }

    pub(super) fn at(path: &Path) -> io::Result<Self> {
        open_folder(path.to_owned(), LIST | READ_FACTS)
    }

    /// Returns the path of an entry. A name that the system would take for a path is refused.
    fn path_of(&self, name: &OsStr) -> io::Result<PathBuf> {
        let is_other = |byte: &u8| matches!(byte, b'/' | b'\\' | b':' | 0);
        let name_bytes = name.as_encoded_bytes();
        if name == "." {
            return Ok(self.path.clone());
        }
        if name_bytes.is_empty() || name == ".." || name_bytes.iter().any(is_other) {
            return Err(ErrorKind::InvalidFilename.into());
        }
        Ok(self.path.join(name))
    }

    pub(super) fn pass(&self, name: &OsStr) -> io::Result<Self> {
        open_folder(self.path_of(name)?, PASS | READ_FACTS)
    }

    pub(super) fn open_folder(&self, name: &OsStr) -> io::Result<Self> {
        open_folder(self.path_of(name)?, LIST | READ_FACTS)
    }

    pub(super) fn facts(&self) -> io::Result<Facts> {
        facts::of(&self.handle)
    }

    pub(super) fn facts_of(&self, name: &OsStr) -> io::Result<Facts> {
        facts::at(&self.path_of(name)?)
    }

    pub(super) fn mount_of(&self, _: &OsStr) -> io::Result<MountId> {
        // Another volume that is mounted in a folder is a link here.
        Ok(None)
    }

    pub(super) fn is_of_kernel(&self) -> io::Result<bool> {
        Ok(false)
    }

    pub(super) fn may_write(&self, name: &OsStr) -> io::Result<()> {
        may_write(&self.path_of(name)?)
    }

    pub(super) fn names(&self) -> io::Result<impl Iterator<Item = io::Result<OsString>>> {
        Ok(fs::read_dir(&self.path)?.map(|entry| entry.map(|entry| entry.file_name())))
    }

    pub(super) fn open(&self, name: &OsStr, access: FileAccess) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(access != FileAccess::Write)
            .write(access != FileAccess::Read)
            .custom_flags(OPEN_REPARSE_POINT)
            .open(self.path_of(name)?)?;
        match facts::of(&file)?.kind {
            facts::FileKind::Link => Err(too_many_links()),
            _ => Ok(file),
        }
    }

    pub(super) fn create(&self, name: &OsStr, _: u32) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open(self.path_of(name)?)
    }

    pub(super) fn create_unnamed(&self, _: u32) -> Option<File> {
        None
    }

    pub(super) fn give_name(&self, _: &File, _: &OsStr) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(super) fn create_folder(&self, name: &OsStr, _: u32) -> io::Result<()> {
        fs::create_dir(self.path_of(name)?)
    }

    /// Creates a link of the kind that its target has now; that to a missing target is a file's.
    pub(super) fn create_link(&self, target: &OsStr, name: &OsStr) -> io::Result<()> {
        let link = self.path_of(name)?;
        match self.path.join(target).is_dir() {
            true => symlink_dir(target, link),
            false => symlink_file(target, link),
        }
    }

    pub(super) fn read_link(&self, name: &OsStr) -> io::Result<OsString> {
        let path = self.path_of(name)?;
        match facts::at(&path)?.kind {
            facts::FileKind::Link => fs::read_link(path).map(PathBuf::into_os_string),
            _ => Err(ErrorKind::InvalidInput.into()),
        }
    }

    pub(super) fn set_mode(&self, _: u32) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn rename(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        fs::rename(self.path_of(name)?, to.path_of(new)?)
    }

    /// Renames a file by a second name, which is never created over another one. A folder cannot
    /// replace one that is not empty anyway.
    pub(super) fn rename_if_free(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        let (from, target) = (self.path_of(name)?, to.path_of(new)?);
        if facts::at(&from)?.is_file() {
            fs::hard_link(&from, &target)?;
            return fs::remove_file(from);
        }
        match facts::at(&target) {
            Err(error) if error.kind() == ErrorKind::NotFound => fs::rename(from, target),
            Err(error) => Err(error),
            Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        }
    }

    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        let path = self.path_of(name)?;
        // A link to a folder is removed like a folder.
        match fs::symlink_metadata(&path)?.is_symlink() && path.is_dir() {
            true => fs::remove_dir(path),
            false => fs::remove_file(path),
        }
    }

    pub(super) fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        let path = self.path_of(name)?;
        match facts::at(&path)?.is_folder() {
            true => fs::remove_dir(path),
            false => Err(ErrorKind::NotADirectory.into()),
        }
    }
}

pub(super) fn may_write(path: &Path) -> io::Result<()> {
    let known = fs::metadata(path)?;
    if known.is_dir() {
        // Only an attempt would tell more.
        return Ok(());
    }
    OpenOptions::new().write(true).open(path).map(drop)
}

pub(super) fn open_nonblocking(path: &Path, follows: bool) -> io::Result<File> {
    let flags = if follows { 0 } else { OPEN_REPARSE_POINT };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match follows || facts::of(&file)?.kind != facts::FileKind::Link {
        true => Ok(file),
        false => Err(too_many_links()),
    }
}

pub(super) fn too_many_links() -> io::Error {
    io::Error::from_raw_os_error(CANT_RESOLVE_FILENAME)
}

pub(super) fn too_long() -> io::Error {
    io::Error::from_raw_os_error(FILENAME_EXCED_RANGE)
}

pub(super) fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(INVALID_FUNCTION | NOT_SUPPORTED))
        || error.kind() == ErrorKind::Unsupported
}

pub(super) fn no_folder() -> io::Error {
    io::Error::from_raw_os_error(DIRECTORY)
}
