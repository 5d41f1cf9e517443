//! Files and folders of this user alone.
//!
//! On Windows, a folder passes its access list on to what is created in it, and the folders of a
//! user's profile admit no other user; so nothing is restricted there, and every file counts as the
//! user's own.
//!
//! Owns: creating and restricting them, the ids of users, and where a lock names its holder.
//! Never: decides where they are.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::facts::{self, Facts};

/// Permission bits of a private file.
const FILE: u32 = 0o600;

/// Returns options with which a created file is private.
pub fn options() -> OpenOptions {
    half::options()
}

/// Opens a private file for reading and writing; creates it if it does not exist.
///
/// # Errors
/// When it belongs to another user, or cannot be opened.
pub fn file(path: &Path) -> io::Result<File> {
    let file = options().read(true).write(true).create(true).truncate(false).open(path)?;
    restrict(&file)?;
    Ok(file)
}

/// Makes an open file private.
///
/// # Errors
/// When it belongs to another user.
pub fn restrict(file: &File) -> io::Result<()> {
    facts::set_mode(file, FILE)
}

/// Makes the file at a path private.
///
/// # Errors
/// When it belongs to another user.
pub fn restrict_file(path: &Path) -> io::Result<()> {
    half::set_mode(path, FILE)
}

/// Makes the folder at a path private.
///
/// # Errors
/// When it belongs to another user.
pub fn restrict_folder(path: &Path) -> io::Result<()> {
    half::set_mode(path, 0o700)
}

/// Creates a private folder.
///
/// # Errors
/// When the path exists, or its parent does not.
pub fn create_folder(path: &Path) -> io::Result<()> {
    half::create_folder(path, false)
}

/// Creates a private folder, and its missing parents.
///
/// # Errors
/// When it cannot be created.
pub fn create_folders(path: &Path) -> io::Result<()> {
    half::create_folder(path, true)
}

/// Returns the id of the user of this process; 0 on Windows.
pub fn this_user() -> u32 {
    half::this_user()
}

/// Returns whether a file belongs to the user of this process.
pub fn is_ours(known: &Facts) -> bool {
    known.user == half::this_user()
}

/// Returns whether a file belongs to the user who runs this process, or who has become `root` with
/// `sudo`.
pub fn is_trusted(known: &Facts) -> bool {
    let by_sudo = || std::env::var("SUDO_UID").ok().and_then(|user| user.parse().ok());
    is_ours(known) || half::this_user() == 0 && by_sudo() == Some(known.user)
}

/// Writes a new file that its user alone may read.
///
/// # Errors
/// When it exists, or cannot be written; an incomplete file is removed.
pub fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = options().write(true).create_new(true).open(path)?;
    file.write_all(content).inspect_err(|_| {
        if let Err(error) = std::fs::remove_file(path) {
            tracing::warn!(%error, "an incomplete `{}` cannot be removed", path.display());
        }
    })
}

/// Opens the file by which a folder is locked, and returns its path: the folder itself where that
/// can be locked, else a file in it.
///
/// # Errors
/// When it cannot be opened.
pub fn open_folder_lock(folder: &Path) -> io::Result<(File, PathBuf)> {
    half::open_folder_lock(folder)
}

/// Returns the mode of a file as far as it says what others may do; 0 on Windows.
pub fn mode_for_others(known: &Facts) -> u32 {
    if cfg!(unix) {
        known.mode
    } else {
        0
    }
}

/// Returns whether a process of this id exists. Windows does not say: there, every id counts.
pub fn process_exists(process: u32) -> bool {
    half::process_exists(process)
}

/// Returns the path of the file that names the holder of a lock. It is the lock file itself, unless
/// other processes cannot read a locked file.
pub fn holder_path(lock: &Path) -> PathBuf {
    half::holder_path(lock)
}

/// Returns the file that names the holder of a lock, to be written.
///
/// # Errors
/// When it cannot be opened.
pub fn holder_file(lock: &File, path: &Path) -> io::Result<File> {
    half::holder_file(lock, path)
}

#[cfg(unix)]
mod half {
    use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
    use std::path::{Path, PathBuf};

    use rustix::io::Errno;
    use rustix::process::{geteuid, test_kill_process, Pid};

    pub(super) fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.mode(super::FILE);
        options
    }

    pub(super) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
        fs::set_permissions(path, Permissions::from_mode(mode))
    }

    pub(super) fn create_folder(path: &Path, with_parents: bool) -> io::Result<()> {
        DirBuilder::new().recursive(with_parents).mode(0o700).create(path)
    }

    pub(super) fn this_user() -> u32 {
        geteuid().as_raw()
    }

    pub(super) fn process_exists(process: u32) -> bool {
        let process = i32::try_from(process).ok().and_then(Pid::from_raw);
        process.is_some_and(|process| test_kill_process(process) != Err(Errno::SRCH))
    }

    pub(super) fn holder_path(lock: &Path) -> PathBuf {
        lock.to_owned()
    }

    pub(super) fn holder_file(lock: &File, _: &Path) -> io::Result<File> {
        lock.try_clone()
    }

    pub(super) fn open_folder_lock(folder: &Path) -> io::Result<(File, PathBuf)> {
        Ok((File::open(folder)?, folder.to_owned()))
    }
}

#[cfg(windows)]
mod half {
    use std::fs::{DirBuilder, File, OpenOptions};
    use std::io;
    use std::path::{Path, PathBuf};

    pub(super) fn options() -> OpenOptions {
        OpenOptions::new()
    }

    pub(super) fn set_mode(_: &Path, _: u32) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn create_folder(path: &Path, with_parents: bool) -> io::Result<()> {
        DirBuilder::new().recursive(with_parents).create(path)
    }

    pub(super) fn this_user() -> u32 {
        0
    }

    pub(super) fn process_exists(_: u32) -> bool {
        true
    }

    pub(super) fn holder_path(lock: &Path) -> PathBuf {
        lock.with_extension("holder")
    }

    pub(super) fn holder_file(_: &File, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(holder_path(path))
    }

    pub(super) fn open_folder_lock(folder: &Path) -> io::Result<(File, PathBuf)> {
        let path = folder.join("in-use.lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        Ok((file, path))
    }
}
