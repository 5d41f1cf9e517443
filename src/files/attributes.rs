//! Attributes of a file besides its content, which a rewrite preserves.
//!
//! Owns: copying the mode, owner, access control list and extended attributes of the replaced file.
//! Never: copies set-user-ID and set-group-ID bits or capabilities, which any write clears, or
//! attributes that only the system sets.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, Gid, Mode, Stat, Uid, XattrFlags};
use rustix::io::Errno;

/// Maximum size of the list of attribute names, and of each value, in bytes.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// Prefixes of attributes that are not copied.
const NOT_OURS: [&[u8]; 2] = [b"security.", b"trusted."];

/// Gives a file the mode of another one and, if permitted, its owner.
pub(super) fn have_mode_and_owner(file: impl AsFd, other: &Stat) -> io::Result<()> {
    let made = fstat(&file)?;
    let mode = Mode::from_raw_mode(other.st_mode & 0o777);
    if (made.st_uid, made.st_gid) != (other.st_uid, other.st_gid) {
        // No other user may read the file before its mode is final.
        fchmod(&file, mode & Mode::RWXU)?;
        let (user, group) = (Uid::from_raw(other.st_uid), Gid::from_raw(other.st_gid));
        if let Err(error) = fchown(&file, Some(user), Some(group)) {
            tracing::debug!(%error, "the owner of a written file cannot be set, so it belongs to the host's user now");
        }
    }
    Ok(fchmod(&file, mode)?)
}

/// Copies the extended attributes that the file system supports. An access control list includes
/// the mode, so the mode must be set before.
pub(super) fn have_attributes(file: impl AsFd, other: impl AsFd) {
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    // A file system without attributes has none to lose.
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
