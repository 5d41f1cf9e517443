//! Steps by `openat` and its siblings.
//!
//! Owns: the half for Unix.
//! Never: follows a link, unless its caller says so.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{
    accessat, fchmod, fstat, mkdirat, openat, readlinkat, renameat, renameat_with, statat, symlinkat,
    unlinkat, AtFlags, Dir, Mode, OFlags, RenameFlags, CWD,
};
use rustix::io::Errno;

use super::{FileAccess, MountId};
use crate::os::facts::half::of_stat;
use crate::os::facts::Facts;

#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[path = "linux.rs"]
mod special;

/// Substitutes for the calls of Linux alone.
#[cfg(not(all(target_os = "linux", not(feature = "portable"))))]
mod special {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::io;
    use std::os::fd::{BorrowedFd, OwnedFd};

    use rustix::fs::{openat, Mode, OFlags};
    use rustix::io::Errno;

    /// Flag of Apple's systems to open a folder that may be searched, but not read.
    #[cfg(target_vendor = "apple")]
    const SEARCH: OFlags = OFlags::from_bits_retain(0x4000_0000);

    /// Opens a folder that may be searched.
    pub(super) fn pass(folder: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        match openat(folder, name, flags, Mode::empty()) {
            // Older systems do not know the flag, and refuse again.
            #[cfg(target_vendor = "apple")]
            Err(Errno::ACCESS) => {
                openat(folder, name, flags | SEARCH, Mode::empty()).map_err(|_| Errno::ACCESS)
            }
            // A link is no folder, whatever the system calls it.
            Err(Errno::LOOP) => Err(Errno::NOTDIR),
            opened => opened,
        }
    }

    pub(super) fn mount_of(_: BorrowedFd<'_>, _: &OsStr) -> Result<super::MountId, Errno> {
        Ok(None)
    }

    pub(super) fn is_of_kernel(_: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(false)
    }

    pub(super) fn create_unnamed(_: BorrowedFd<'_>, _: Mode) -> Option<File> {
        None
    }

    pub(super) fn give_name(_: BorrowedFd<'_>, _: &File, _: &OsStr) -> io::Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }
}

/// Flags with which opening any file neither blocks nor makes it the controlling terminal.
const NONBLOCKING: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl Folder {
    pub(super) fn root_of(_: &Path) -> io::Result<Self> {
        Ok(Self(special::pass(CWD, OsStr::new("/"), FOLDER)?))
    }

    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | FOLDER | OFlags::NOFOLLOW | NONBLOCKING;
        Ok(Self(openat(CWD, path, flags, Mode::empty())?))
    }

    pub(super) fn pass(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(special::pass(self.0.as_fd(), name, FOLDER | OFlags::NOFOLLOW)?))
    }

    pub(super) fn open_folder(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::RDONLY | FOLDER | OFlags::NOFOLLOW | NONBLOCKING;
        Ok(Self(openat(&self.0, name, flags, Mode::empty())?))
    }

    pub(super) fn facts(&self) -> io::Result<Facts> {
        Ok(of_stat(&fstat(&self.0)?))
    }

    pub(super) fn facts_of(&self, name: &OsStr) -> io::Result<Facts> {
        Ok(of_stat(&statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    pub(super) fn mount_of(&self, name: &OsStr) -> io::Result<MountId> {
        Ok(special::mount_of(self.0.as_fd(), name)?)
    }

    pub(super) fn is_of_kernel(&self) -> io::Result<bool> {
        Ok(special::is_of_kernel(self.0.as_fd())?)
    }

    pub(super) fn may_write(&self, name: &OsStr) -> io::Result<()> {
        Ok(accessat(&self.0, name, rustix::fs::Access::WRITE_OK, AtFlags::empty())?)
    }

    pub(super) fn names(&self) -> io::Result<impl Iterator<Item = io::Result<OsString>>> {
        Ok(Dir::read_from(&self.0)?.filter_map(|entry| match entry {
            Ok(entry) => {
                let name = entry.file_name().to_bytes();
                (!matches!(name, b"." | b"..")).then(|| Ok(OsString::from_vec(name.to_vec())))
            }
            Err(error) => Some(Err(error.into())),
        }))
    }

    pub(super) fn open(&self, name: &OsStr, access: FileAccess) -> io::Result<File> {
        let access = match access {
            FileAccess::Read => OFlags::RDONLY,
            FileAccess::Write => OFlags::WRONLY,
            FileAccess::Both => OFlags::RDWR,
        };
        Ok(openat(&self.0, name, access | OFlags::NOFOLLOW | NONBLOCKING, Mode::empty())?.into())
    }

    pub(super) fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | NONBLOCKING;
        Ok(openat(&self.0, name, flags, mode_of(mode))?.into())
    }

    pub(super) fn create_unnamed(&self, mode: u32) -> Option<File> {
        special::create_unnamed(self.0.as_fd(), mode_of(mode))
    }

    pub(super) fn give_name(&self, file: &File, name: &OsStr) -> io::Result<()> {
        special::give_name(self.0.as_fd(), file, name)
    }

    pub(super) fn create_folder(&self, name: &OsStr, mode: u32) -> io::Result<()> {
        Ok(mkdirat(&self.0, name, mode_of(mode))?)
    }

    pub(super) fn create_link(&self, target: &OsStr, name: &OsStr) -> io::Result<()> {
        Ok(symlinkat(target.as_bytes(), &self.0, name)?)
    }

    pub(super) fn read_link(&self, name: &OsStr) -> io::Result<OsString> {
        Ok(OsString::from_vec(readlinkat(&self.0, name, Vec::new())?.into_bytes()))
    }

    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fchmod(&self.0, mode_of(mode))?)
    }

    pub(super) fn rename(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.0, name, &to.0, new)?)
    }

    pub(super) fn rename_if_free(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        Ok(renameat_with(&self.0, name, &to.0, new, RenameFlags::NOREPLACE)?)
    }

    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    pub(super) fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }
}

// The type of the bits is smaller on Apple's systems.
#[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast)]
fn mode_of(mode: u32) -> Mode {
    Mode::from_raw_mode(mode as rustix::fs::RawMode)
}

pub(super) fn may_write(path: &Path) -> io::Result<()> {
    Ok(accessat(CWD, path, rustix::fs::Access::WRITE_OK, AtFlags::empty())?)
}

pub(super) fn open_nonblocking(path: &Path, follows: bool) -> io::Result<File> {
    let follows = if follows { OFlags::empty() } else { OFlags::NOFOLLOW };
    Ok(openat(CWD, path, OFlags::RDONLY | NONBLOCKING | follows, Mode::empty())?.into())
}

pub(super) fn too_many_links() -> io::Error {
    Errno::LOOP.into()
}

pub(super) fn too_long() -> io::Error {
    Errno::NAMETOOLONG.into()
}

pub(super) fn is_unsupported(error: &io::Error) -> bool {
    // The last two are one on Linux.
    let unsupported = [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOTSUP];
    Errno::from_io_error(error).is_some_and(|errno| unsupported.contains(&errno))
}

pub(super) fn no_folder() -> io::Error {
    Errno::NOTDIR.into()
}
