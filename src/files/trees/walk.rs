//! Traversal of folders.
//!
//! Owns: the limits of entries, bytes and depth, and the refusal of mounts inside a folder.
//! Never: changes a file.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{fstat, openat, statat, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::files::folders::{identity, PathRefusal, DEPTH_MAX, NONBLOCKING};

/// Maximum number of files and folders that one operation copies or removes.
pub(super) const ENTRIES_MAX: u64 = 100_000;

pub(super) const BYTES_MAX: u64 = 4 << 30;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) entries: u64,
    bytes: u64,
}

impl Tally {
    pub(super) fn add_entry(&mut self) -> Result<(), PathRefusal> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(PathRefusal::Unfit(format!("it has more than {ENTRIES_MAX} files and folders")));
        }
        Ok(())
    }

    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(super) fn must_not_be_too_much(&self) -> Result<(), PathRefusal> {
        match self.bytes > BYTES_MAX {
            true => Err(too_many_bytes()),
            false => Ok(()),
        }
    }
}

pub(super) fn too_many_bytes() -> PathRefusal {
    PathRefusal::Unfit(format!("it has more than {BYTES_MAX} bytes"))
}

/// Mount that contains a file. The device alone is not enough, since a file system may be mounted
/// again inside itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mount {
    device: u64,
    /// Mount number; `None` where the system has none.
    id: Option<u64>,
}

impl Mount {
    pub(super) fn of(folder: BorrowedFd<'_>) -> Result<Self, PathRefusal> {
        Ok(Self { device: identity(&fstat(folder)?).0, id: mount_id(folder, OsStr::new(""))? })
    }

    /// Returns the metadata of a name in a folder, if it exists. Refuses another mount.
    pub(super) fn metadata_of(
        self,
        folder: BorrowedFd<'_>,
        name: &OsStr,
    ) -> Result<Option<Stat>, PathRefusal> {
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

    pub(super) fn open_folder(self, folder: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, PathRefusal> {
        let opened = open_folder(folder, name)?;
        self.must_be(Self::of(opened.as_fd())?)?;
        Ok(opened)
    }

    pub(super) fn must_be(self, other: Self) -> Result<(), PathRefusal> {
        match self == other {
            true => Ok(()),
            false => Err(PathRefusal::Unfit("another file system is mounted in it".to_owned())),
        }
    }
}

/// Returns the mount number of an entry; `None` if the system does not report it.
#[cfg(target_os = "linux")]
pub(super) fn mount_id(folder: BorrowedFd<'_>, name: &OsStr) -> Result<Option<u64>, Errno> {
    use rustix::fs::{statx, StatxFlags};

    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    match statx(folder, name, flags, StatxFlags::MNT_ID) {
        Ok(known) if known.stx_mask & StatxFlags::MNT_ID.bits() != 0 => Ok(Some(known.stx_mnt_id)),
        Ok(_) | Err(Errno::NOSYS) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn mount_id(_: BorrowedFd<'_>, _: &OsStr) -> Result<Option<u64>, Errno> {
    Ok(None)
}

pub(super) fn deeper(depth: usize) -> Result<usize, PathRefusal> {
    match depth + 1 {
        deep if deep < DEPTH_MAX => Ok(deep),
        _ => Err(PathRefusal::Unfit(format!("folders are more than {DEPTH_MAX} deep in it"))),
    }
}

pub(super) fn is_folder(known: &Stat) -> bool {
    FileType::from_raw_mode(known.st_mode) == FileType::Directory
}

pub(super) fn mode_of(known: &Stat) -> Mode {
    Mode::from_raw_mode(known.st_mode & 0o777)
}

pub(super) fn open_folder(folder: impl AsFd, name: impl AsRef<Path>) -> Result<OwnedFd, PathRefusal> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | NONBLOCKING;
    Ok(openat(folder, name.as_ref(), flags, Mode::empty())?)
}

pub(super) fn names_in(folder: BorrowedFd<'_>, tally: &mut Tally) -> Result<Vec<OsString>, PathRefusal> {
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

/// Returns whether a folder is empty, without listing a large one.
pub(super) fn is_empty(folder: BorrowedFd<'_>) -> Result<bool, PathRefusal> {
    for entry in Dir::read_from(folder)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}
