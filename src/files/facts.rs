//! What tells a version of a file from another one.
//!
//! Owns: the token that clients are given for it, and give back to change that version and no other.
//! Never: opens anything.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The token of a version: which file it is, how large, and when it and what is said of it have changed last.
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
