//! Facts that tell one version of a file from another.
//!
//! Owns: the token that clients are given for it, and give back to change that version and no
//! other.
//! Never: opens anything.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use rustix::fs::Stat;

/// The token of a version: which file it is, how large, and when it and what is said of it have
/// changed last.
pub fn etag(known: &Metadata) -> String {
    let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    format!(
        "{:x}-{:x}-{:x}-{:x}-{:x}",
        known.dev(),
        known.ino(),
        known.size(),
        time(known.mtime(), known.mtime_nsec()),
        time(known.ctime(), known.ctime_nsec()),
    )
}

/// Returns the token of the version that `fstat` and the like have told of.
// The types of the members are not the same on all systems.
#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_lossless)]
pub fn etag_in(known: &Stat) -> String {
    let time = |seconds: i128, nanos: i128| seconds * 1_000_000_000 + nanos;
    format!(
        "{:x}-{:x}-{:x}-{:x}-{:x}",
        known.st_dev as u64,
        known.st_ino as u64,
        known.st_size as u64,
        time(known.st_mtime as i128, known.st_mtime_nsec as i128),
        time(known.st_ctime as i128, known.st_ctime_nsec as i128),
    )
}
