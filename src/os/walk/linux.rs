//! Calls of Linux alone.
//!
//! Owns: passing folders that may not be listed, files without a name, numbers of mounts, and the
//! file systems of the kernel.
//! Never: is needed by another module than `unix`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{linkat, openat, statx, AtFlags, Mode, OFlags, StatxFlags, CWD};
use rustix::io::Errno;

use super::MountId;

/// Folder in which the system shows open files, so that an unnamed one can be linked.
const OPENED: &str = "/proc/self/fd";

/// Opens a folder that may be searched. `O_PATH` needs no permission to list it.
pub(super) fn pass(folder: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    match openat(folder, name, flags | OFlags::PATH, Mode::empty()) {
        // A link is no folder, whatever the system calls it.
        Err(Errno::LOOP) => Err(Errno::NOTDIR),
        opened => opened,
    }
}

pub(super) fn mount_of(folder: BorrowedFd<'_>, name: &OsStr) -> Result<MountId, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let known = statx(folder, name, flags, StatxFlags::MNT_ID);
    or_unknown(known.map(|it| (it.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(it.stx_mnt_id)))
}

/// Takes a missing system call as a missing number; old container runtimes refuse the call.
fn or_unknown(id: Result<MountId, Errno>) -> Result<MountId, Errno> {
    match id {
        Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        id => id,
    }
}

pub(super) fn is_of_kernel(folder: BorrowedFd<'_>) -> Result<bool, Errno> {
    /// `proc`, `sysfs`, `cgroup`, `cgroup2`, `debugfs`, `tracefs`, `securityfs`, `bpf`;
    /// `binfmt_misc`, `configfs`, `efivarfs`, `selinuxfs`, `pstore`, `mqueue`; `devpts`, `fusectl`,
    /// `resctrl`, `smackfs`, `hugetlbfs`, `nsfs`.
    const OF_THE_KERNEL: [u32; 20] = [
        0x9fa0,
        0x6265_6572,
        0x0027_e0eb,
        0x6367_7270,
        0x6462_6720,
        0x7472_6163,
        0x7363_6673,
        0xcafe_4a11,
        0x4249_4e4d,
        0x6265_6570,
        0xde5e_81e4,
        0xf97c_ff8c,
        0x6165_676c,
        0x1980_0202,
        0x1cd1,
        0x6573_5543,
        0x0765_5821,
        0x4341_5d53,
        0x9584_58f6,
        0x6e73_6673,
    ];
    // A signed type must keep its bits in the cast.
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_possible_truncation)]
    let kind = rustix::fs::fstatfs(folder)?.f_type as u32;
    Ok(OF_THE_KERNEL.contains(&kind))
}

pub(super) fn create_unnamed(folder: BorrowedFd<'_>, mode: Mode) -> Option<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = openat(folder, ".", flags, mode).ok()?;
    fs::symlink_metadata(format!("{OPENED}/{}", file.as_raw_fd())).is_ok().then(|| file.into())
}

pub(super) fn give_name(folder: BorrowedFd<'_>, file: &File, name: &OsStr) -> io::Result<()> {
    let opened = format!("{OPENED}/{}", file.as_raw_fd());
    Ok(linkat(CWD, opened, folder, name, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_has_no_number_where_the_call_is_refused() {
        assert_eq!(or_unknown(Ok(Some(3))), Ok(Some(3)));
        for refused in [Errno::NOSYS, Errno::PERM] {
            assert_eq!(or_unknown(Err(refused)), Ok(None));
        }
        assert_eq!(or_unknown(Err(Errno::NOENT)), Err(Errno::NOENT));
    }
}
