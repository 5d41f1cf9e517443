//! Steps below a folder, one name at a time and never through a link.
//!
//! A [`Folder`] is open, so that it stays the same folder while it is used, whatever happens to its
//! name. Each of its functions takes one name in it and does not follow a link that has this name.
//! On Unix, an open folder may be moved. On Windows, it and all folders above it keep their names
//! while it is open, so that a path to it leads nowhere else.
//!
//! Owns: opening, naming, listing and removing entries of a folder.
//! Never: takes a path of several names, unless its function says so.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;

use super::facts::Facts;

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix as half;
#[cfg(windows)]
use windows as half;

#[cfg(test)]
mod tests;

/// Open folder.
#[derive(Debug)]
pub struct Folder(half::Folder);

/// Use of a file that is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAccess {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Reading and writing.
    Both,
}

/// Number of the mount that contains a file; `None` where the system has none. A device alone is
/// not enough on Linux, where a file system may be mounted again inside itself.
pub type MountId = Option<u64>;

impl Folder {
    /// Opens the topmost folder of an absolute path, to go on from there.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn root_of(path: &Path) -> io::Result<Self> {
        half::Folder::root_of(path).map(Self)
    }

    /// Opens a folder by its absolute path, to list and change it. Only the last name of the path
    /// is known to be no link.
    ///
    /// # Errors
    /// When it cannot be opened, or is no folder.
    pub fn at(path: &Path) -> io::Result<Self> {
        half::Folder::at(path).map(Self)
    }

    /// Opens a folder in this one, to go on from there. Needs no permission to list it.
    ///
    /// # Errors
    /// `NotADirectory` when it is no folder, for example a link to one.
    pub fn pass(&self, name: &OsStr) -> io::Result<Self> {
        self.0.pass(name).map(Self)
    }

    /// Opens a folder in this one, to list it.
    ///
    /// # Errors
    /// When it is no folder, or may not be listed.
    pub fn open_folder(&self, name: &OsStr) -> io::Result<Self> {
        self.0.open_folder(name).map(Self)
    }

    /// Returns the facts of this folder.
    ///
    /// # Errors
    /// When the system does not report them.
    pub fn facts(&self) -> io::Result<Facts> {
        self.0.facts()
    }

    /// Returns the facts of an entry.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn facts_of(&self, name: &OsStr) -> io::Result<Facts> {
        self.0.facts_of(name)
    }

    /// Returns the mount of this folder.
    ///
    /// # Errors
    /// When the system does not report it.
    pub fn mount(&self) -> io::Result<MountId> {
        self.0.mount_of(OsStr::new(""))
    }

    /// Returns the mount of an entry.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn mount_of(&self, name: &OsStr) -> io::Result<MountId> {
        self.0.mount_of(name)
    }

    /// Returns whether the folder is on a file system by which the kernel shows itself (`/proc`
    /// and the like), where files and folders have another meaning. Only Linux's are known.
    ///
    /// # Errors
    /// When the system does not report it.
    pub fn is_of_kernel(&self) -> io::Result<bool> {
        self.0.is_of_kernel()
    }

    /// Checks that an entry, or the folder itself for `.`, may be written to.
    ///
    /// # Errors
    /// When it may not, or there is none.
    pub fn may_write(&self, name: &OsStr) -> io::Result<()> {
        self.0.may_write(name)
    }

    /// Returns the names in this folder, without `.` and `..`.
    ///
    /// # Errors
    /// When it may not be listed.
    pub fn names(&self) -> io::Result<impl Iterator<Item = io::Result<OsString>>> {
        self.0.names()
    }

    /// Opens a file. Neither blocks, nor makes a terminal the one that controls this process.
    ///
    /// # Errors
    /// When there is none, it is a link, or it may not be used in this way.
    pub fn open(&self, name: &OsStr, access: FileAccess) -> io::Result<File> {
        self.0.open(name, access)
    }

    /// Creates a file, to be read and written. `mode` are its permission bits before the umask.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken, also by a link.
    pub fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        self.0.create(name, mode)
    }

    /// Creates a file without a name, which is gone when it is closed. `None` if the system cannot
    /// give it a name later.
    pub fn create_unnamed(&self, mode: u32) -> Option<File> {
        self.0.create_unnamed(mode)
    }

    /// Gives a name to a file of [`Folder::create_unnamed`].
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken.
    pub fn give_name(&self, file: &File, name: &OsStr) -> io::Result<()> {
        self.0.give_name(file, name)
    }

    /// Creates a folder. `mode` are its permission bits before the umask.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken, also by a link.
    pub fn create_folder(&self, name: &OsStr, mode: u32) -> io::Result<()> {
        self.0.create_folder(name, mode)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken. On Windows also when the user may create no links.
    pub fn create_link(&self, target: &OsStr, name: &OsStr) -> io::Result<()> {
        self.0.create_link(target, name)
    }

    /// Returns the target of a link.
    ///
    /// # Errors
    /// `InvalidInput` when it is no link.
    pub fn read_link(&self, name: &OsStr) -> io::Result<OsString> {
        self.0.read_link(name)
    }

    /// Sets the permission bits of this folder. Does nothing on Windows.
    ///
    /// # Errors
    /// When it belongs to another user.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.0.set_mode(mode)
    }

    /// Renames an entry, and replaces the one of the new name.
    ///
    /// # Errors
    /// `CrossesDevices` when the other folder is on another file system.
    pub fn rename(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        self.0.rename(name, &to.0, new)
    }

    /// Renames an entry, unless the new name is taken.
    ///
    /// # Errors
    /// `AlreadyExists` when it is taken; one that [`is_unsupported`] when the file system cannot
    /// do so in one step.
    pub fn rename_if_free(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        self.0.rename_if_free(name, &to.0, new)
    }

    /// Removes an entry that is no folder.
    ///
    /// # Errors
    /// When there is none, or it is a folder.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        self.0.remove(name)
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// `DirectoryNotEmpty` or `AlreadyExists` when it is not empty, `NotADirectory` when it is no
    /// folder.
    pub fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        self.0.remove_folder(name)
    }
}

/// Checks that the file at a path may be written to.
///
/// # Errors
/// When it may not, or there is none.
pub fn may_write(path: &Path) -> io::Result<()> {
    half::may_write(path)
}

/// Opens a file of any kind by its path for reading. Neither blocks, nor makes a terminal the one
/// that controls this process. Fails for a link at the end of the path unless `follows` is set.
///
/// # Errors
/// When there is none, or it may not be read.
pub fn open_nonblocking(path: &Path, follows: bool) -> io::Result<File> {
    half::open_nonblocking(path, follows)
}

/// Error of a path with too many links.
pub fn too_many_links() -> io::Error {
    half::too_many_links()
}

/// Returns whether an error means too many links in a path.
pub fn is_too_many_links(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| too_many_links().raw_os_error() == Some(code))
}

/// Error of a name in the middle of a path that is no folder.
pub fn no_folder() -> io::Error {
    half::no_folder()
}

/// Error of a path that is longer than the system allows.
pub fn too_long() -> io::Error {
    half::too_long()
}

/// Returns whether an error means that the path is longer than the system allows.
pub fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| too_long().raw_os_error() == Some(code))
}

/// Returns whether an error means that the file system does not have the operation.
pub fn is_unsupported(error: &io::Error) -> bool {
    half::is_unsupported(error)
}
