//! Facts about files: kind, identity, size, times, permissions, owner.
//!
//! Windows has no permission bits and no user ids: there the bits follow from the attribute
//! "read-only", and the ids are 0. Its identity is the volume's serial number and the file's index.
//!
//! Owns: reading these facts, and setting permission bits.
//! Never: follows a link, unless the function's name says so.

use std::fs::{DirEntry, File, Metadata};
use std::io;
use std::path::Path;

/// Device and inode, which identify a file by any of its names.
pub type Identity = (u64, u64);

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Folder.
    Folder,
    /// Symbolic link, or another reparse point of Windows that leads elsewhere.
    Link,
    /// Device, pipe or socket.
    Other,
}

/// Facts about a file at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Kind of the file.
    pub kind: FileKind,
    /// Identity of the file.
    pub identity: Identity,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last modification of the content, in seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Time of the last change of the content or of these facts; zero on Windows.
    pub changed: (i64, i64),
    /// Permission bits, with those for set-user-ID, set-group-ID and sticky.
    pub mode: u32,
    /// Number of hard links.
    pub links: u64,
    /// User who owns the file.
    pub user: u32,
    /// Group that owns the file.
    pub group: u32,
}

impl Facts {
    /// Returns whether the file is a folder.
    pub fn is_folder(&self) -> bool {
        self.kind == FileKind::Folder
    }

    /// Returns whether the file is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }
}

/// Returns the facts of the file at a path, or of the link there.
///
/// # Errors
/// When there is none, or it cannot be asked.
pub fn at(path: &Path) -> io::Result<Facts> {
    half::at(path)
}

/// Returns the facts of the file at a path, behind any links.
///
/// # Errors
/// When there is none, or it cannot be asked.
pub fn behind(path: &Path) -> io::Result<Facts> {
    half::behind(path)
}

/// Returns the facts of an open file.
///
/// # Errors
/// When the system does not report them.
pub fn of(file: &File) -> io::Result<Facts> {
    half::of(file)
}

/// Returns the facts of an entry of a folder.
///
/// # Errors
/// When it is gone, or cannot be asked.
pub fn of_entry(entry: &DirEntry) -> io::Result<Facts> {
    half::complete(&entry.metadata()?, &entry.path())
}

/// Returns the facts of the file whose metadata was read, not following links, at this path.
///
/// # Errors
/// When the metadata has too little and the file is gone.
pub fn complete(known: &Metadata, path: &Path) -> io::Result<Facts> {
    half::complete(known, path)
}

/// Sets the permission bits of an open file. Does nothing on Windows.
///
/// # Errors
/// When the file belongs to another user, or is on a file system that cannot be changed.
pub fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    half::set_mode(file, mode)
}

#[cfg(unix)]
pub(in crate::os) mod half {
    use std::fs::{self, File, FileType, Metadata, Permissions};
    use std::io;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;

    use super::{Facts, FileKind};

    fn kind_of(kind: FileType) -> FileKind {
        if kind.is_file() {
            FileKind::File
        } else if kind.is_dir() {
            FileKind::Folder
        } else if kind.is_symlink() {
            FileKind::Link
        } else {
            FileKind::Other
        }
    }

    fn of_metadata(known: &Metadata) -> Facts {
        Facts {
            kind: kind_of(known.file_type()),
            identity: (known.dev(), known.ino()),
            size: known.size(),
            modified: (known.mtime(), known.mtime_nsec()),
            changed: (known.ctime(), known.ctime_nsec()),
            mode: known.mode() & 0o7777,
            links: known.nlink(),
            user: known.uid(),
            group: known.gid(),
        }
    }

    /// Returns the facts in the result of `fstat` or a similar call.
    // The types of the members differ between systems.
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_lossless)]
    #[allow(clippy::useless_conversion, clippy::cast_possible_wrap)]
    pub(in crate::os) fn of_stat(known: &rustix::fs::Stat) -> Facts {
        use rustix::fs::FileType;

        Facts {
            kind: match FileType::from_raw_mode(known.st_mode) {
                FileType::RegularFile => FileKind::File,
                FileType::Directory => FileKind::Folder,
                FileType::Symlink => FileKind::Link,
                _ => FileKind::Other,
            },
            identity: (known.st_dev as u64, known.st_ino as u64),
            size: known.st_size as u64,
            modified: (known.st_mtime as i64, known.st_mtime_nsec as i64),
            changed: (known.st_ctime as i64, known.st_ctime_nsec as i64),
            mode: u32::from(known.st_mode) & 0o7777,
            links: known.st_nlink as u64,
            user: known.st_uid,
            group: known.st_gid,
        }
    }

    pub(super) fn at(path: &Path) -> io::Result<Facts> {
        fs::symlink_metadata(path).map(|known| of_metadata(&known))
    }

    pub(super) fn behind(path: &Path) -> io::Result<Facts> {
        fs::metadata(path).map(|known| of_metadata(&known))
    }

    pub(super) fn of(file: &File) -> io::Result<Facts> {
        file.metadata().map(|known| of_metadata(&known))
    }

    pub(super) fn complete(known: &Metadata, _: &Path) -> io::Result<Facts> {
        Ok(of_metadata(known))
    }

    pub(super) fn set_mode(file: &File, mode: u32) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(mode))
    }
}

#[cfg(windows)]
pub(in crate::os) mod half {
    use std::fs::{File, Metadata, OpenOptions};
    use std::io;
    use std::os::windows::fs::OpenOptionsExt;
    use std::path::Path;

    use winapi_util::file::information;
    use winapi_util::HandleRef;

    use super::{Facts, FileKind};

    const READ_ONLY: u64 = 0x1;
    const FOLDER: u64 = 0x10;
    const DEVICE: u64 = 0x40;
    const REPARSE_POINT: u64 = 0x400;

    /// Opens folders, too.
    const BACKUP_SEMANTICS: u32 = 0x0200_0000;
    /// Opens a link itself.
    const OPEN_REPARSE_POINT: u32 = 0x0020_0000;

    /// Intervals of 100 ns between 1601 and 1970.
    const TICKS_TO_1970: i128 = 116_444_736_000_000_000;

    /// Opens a file of any kind for its facts alone.
    fn open(path: &Path, flags: u32) -> io::Result<File> {
        OpenOptions::new().access_mode(0).custom_flags(BACKUP_SEMANTICS | flags).open(path)
    }

    fn time_of(ticks: Option<u64>) -> (i64, i64) {
        let since = i128::from(ticks.unwrap_or_default()) - TICKS_TO_1970;
        let (seconds, rest) = (since.div_euclid(10_000_000), since.rem_euclid(10_000_000));
        let narrow = |number: i128| i64::try_from(number).unwrap_or_default();
        (narrow(seconds), narrow(rest * 100))
    }

    pub(super) fn at(path: &Path) -> io::Result<Facts> {
        of(&open(path, OPEN_REPARSE_POINT)?)
    }

    pub(super) fn behind(path: &Path) -> io::Result<Facts> {
        of(&open(path, 0)?)
    }

    pub(super) fn of(file: &File) -> io::Result<Facts> {
        let known = information(HandleRef::from_file(file))?;
        let has = |attribute: u64| known.file_attributes() & attribute != 0;
        // A placeholder of a cloud drive is a reparse point, too, but leads nowhere else.
        let is_link = has(REPARSE_POINT) && file.metadata()?.is_symlink();
        let kind = match () {
            () if is_link => FileKind::Link,
            () if has(FOLDER) => FileKind::Folder,
            () if has(DEVICE) => FileKind::Other,
            () => FileKind::File,
        };
        let bits = if kind == FileKind::Folder { 0o777 } else { 0o666 };
        Ok(Facts {
            kind,
            identity: (known.volume_serial_number(), known.file_index()),
            size: known.file_size(),
            modified: time_of(known.last_write_time()),
            changed: (0, 0),
            // The attribute means nothing on a folder.
            mode: if has(READ_ONLY) && kind != FileKind::Folder { bits & 0o555 } else { bits },
            links: known.number_of_links(),
            user: 0,
            group: 0,
        })
    }

    pub(super) fn complete(_: &Metadata, path: &Path) -> io::Result<Facts> {
        at(path)
    }

    pub(super) fn set_mode(_: &File, _: u32) -> io::Result<()> {
        Ok(())
    }
}
