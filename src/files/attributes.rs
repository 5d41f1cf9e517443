//! Attributes of a file besides its content, which stay when it is rewritten.
//!
//! Owns: giving a file the mode, the owner, the access list and the extended attributes of the one
//! whose place it takes.
//! Never: gives it what lets whoever runs it be somebody else (the bits for that, capabilities): as
//! after any write, they are gone; nor what the system alone sets.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, Gid, Mode, Stat, Uid, XattrFlags};
use rustix::io::Errno;

/// The names and the values of attributes have so many bytes at most.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// Attributes that are not carried over.
const NOT_OURS: [&[u8]; 2] = [b"security.", b"trusted."];

/// Gives a file the mode that another one has, and its owner as far as we may say who that is.
pub(super) fn have_mode_and_owner(file: impl AsFd, other: &Stat) -> io::Result<()> {
    let made = fstat(&file)?;
    let mode = Mode::from_raw_mode(other.st_mode & 0o777);
    if (made.st_uid, made.st_gid) != (other.st_uid, other.st_gid) {
        // Nobody reads meanwhile what he may not.
        fchmod(&file, mode & Mode::RWXU)?;
        let (user, group) = (Uid::from_raw(other.st_uid), Gid::from_raw(other.st_gid));
        if let Err(error) = fchown(&file, Some(user), Some(group)) {
            tracing::debug!(%error, "the owner of a written file cannot be set, so it belongs to the host's user now");
        }
    }
    Ok(fchmod(&file, mode)?)
}

/// Gives a file the attributes that another one has, as far as the file system takes them. An
/// access list says again what the mode says: it comes after that.
pub(super) fn have_attributes(file: impl AsFd, other: impl AsFd) {
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    // Where there are none, they are not there to be lost.
    let Ok(length) = flistxattr(&other, &mut names[..]) else { return };
    let names = names[..length].split(|byte| *byte == 0);
    for name in names.filter(|name| !name.is_empty() && !NOT_OURS.iter().any(|not| name.starts_with(not))) {
        let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
        let given = fgetxattr(&other, name, &mut value[..])
            .and_then(|length| fsetxattr(&file, name, &value[..length], XattrFlags::empty()));
        match given {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(error) => {
                let name = String::from_utf8_lossy(name);
                tracing::debug!(%error, "a file that was written has lost its attribute `{name}`");
            }
        }
    }
}
