//! Durable writes, and the attributes that a rewritten file keeps.
//!
//! Owns: syncing files and folders to the disk; copying the mode, owner, access control list and
//! extended attributes of a replaced file.
//! Never: copies set-user-ID and set-group-ID bits or capabilities, which any write clears, or
//! attributes that only the system sets.

use std::fs::File;
use std::io;
use std::path::Path;

use super::facts::Facts;

/// Syncs a file's content to the disk; on Apple's systems past the disk's own cache, where the file
/// system can do that.
///
/// # Errors
/// When the disk fails.
pub fn sync(file: &File) -> io::Result<()> {
    half::sync(file)
}

/// Syncs a file to the disk as [`sync`] does, with all of its facts.
///
/// # Errors
/// When the disk fails.
pub fn sync_all(file: &File) -> io::Result<()> {
    half::sync_all(file)
}

/// Returns the largest size in bytes that a file of this process may have; `None` if it has no
/// limit.
pub fn file_size_max() -> Option<u64> {
    half::file_size_max()
}

/// Syncs the names in a folder to the disk. Does nothing on Windows, which writes them with the
/// files.
///
/// # Errors
/// When the disk fails, or the folder cannot be opened.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    half::sync_folder(folder)
}

/// Gives a file the mode of another one and, if permitted, its owner. Windows derives both from the
/// folder.
///
/// # Errors
/// When the mode cannot be set.
pub fn copy_mode_and_owner(file: &File, other: &Facts) -> io::Result<()> {
    half::copy_mode_and_owner(file, other)
}

/// Copies the extended attributes that the file system supports. An access control list includes
/// the mode, so the mode must be set before.
pub fn copy_attributes(file: &File, other: &File) {
    half::copy_attributes(file, other);
}

#[cfg(unix)]
mod half {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    use rustix::fs::{fchmod, fchown, fgetxattr, flistxattr, fsetxattr, Gid, Mode, Uid, XattrFlags};
    use rustix::io::Errno;
    use rustix::process::{getrlimit, Resource};

    use crate::os::facts::{self, Facts};

    /// Maximum size of the list of attribute names, and of each value, in bytes.
    const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

    /// Prefixes of attributes that are not copied.
    const NOT_OURS: [&[u8]; 2] = [b"security.", b"trusted."];

    /// Syncs without emptying the disk's cache, which not every file system on Apple's can.
    #[cfg(target_vendor = "apple")]
    fn sync_less(file: &File, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(_) => Ok(rustix::fs::fsync(file)?),
            None => Err(error),
        }
    }

    #[cfg(not(target_vendor = "apple"))]
    fn sync_less(_: &File, error: io::Error) -> io::Result<()> {
        Err(error)
    }

    pub(super) fn sync(file: &File) -> io::Result<()> {
        file.sync_data().or_else(|error| sync_less(file, error))
    }

    pub(super) fn sync_all(file: &File) -> io::Result<()> {
        file.sync_all().or_else(|error| sync_less(file, error))
    }

    pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
        sync_all(&File::open(folder)?)
    }

    pub(super) fn file_size_max() -> Option<u64> {
        getrlimit(Resource::Fsize).current
    }

    // The type of the bits is smaller on Apple's systems.
    #[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast)]
    pub(super) fn copy_mode_and_owner(file: &File, other: &Facts) -> io::Result<()> {
        let made = facts::of(file)?;
        let mode = Mode::from_raw_mode((other.mode & 0o777) as rustix::fs::RawMode);
        if (made.user, made.group) != (other.user, other.group) {
            // No other user may read the file before its mode is final.
            fchmod(file, mode & Mode::RWXU)?;
            let (user, group) = (Uid::from_raw(other.user), Gid::from_raw(other.group));
            if let Err(error) = fchown(file, Some(user), Some(group)) {
                tracing::debug!(%error, "the owner of a written file cannot be set, so it belongs to the host's user now");
            }
        }
        Ok(fchmod(file, mode)?)
    }

    pub(super) fn copy_attributes(file: &File, other: &File) {
        let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
        // A file system without attributes has none to lose.
        let Ok(length) = flistxattr(other, &mut names[..]) else { return };
        let names = names[..length].split(|byte| *byte == 0);
        for name in names.filter(|name| !name.is_empty() && !NOT_OURS.iter().any(|not| name.starts_with(not)))
        {
            let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
            let given = fgetxattr(other, name, &mut value[..])
                .and_then(|length| fsetxattr(file, name, &value[..length], XattrFlags::empty()));
            match given {
                Ok(()) => {}
                #[cfg(target_os = "linux")]
                Err(Errno::NODATA) => {}
                #[cfg(target_vendor = "apple")]
                Err(Errno::NOATTR) => {}
                Err(error) => {
                    let name = String::from_utf8_lossy(name);
                    tracing::debug!(%error, "a file that was written has lost its attribute `{name}`");
                }
            }
        }
    }
}

#[cfg(windows)]
mod half {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    use crate::os::facts::Facts;

    pub(super) fn sync(file: &File) -> io::Result<()> {
        file.sync_data()
    }

    pub(super) fn sync_all(file: &File) -> io::Result<()> {
        file.sync_all()
    }

    pub(super) fn file_size_max() -> Option<u64> {
        None
    }

    pub(super) fn sync_folder(_: &Path) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn copy_mode_and_owner(_: &File, _: &Facts) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn copy_attributes(_: &File, _: &File) {}
}
