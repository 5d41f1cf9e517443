//! Version tokens of files.
//!
//! Owns: the token of a version, which clients send back to change that version only.
//! Never: opens a file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use rustix::fs::Stat;

/// Returns the version token of a file: identity, size, and times of modification and change.
pub fn etag(known: &Metadata) -> String {
    let modified = (known.mtime().into(), known.mtime_nsec().into());
    token(
        [known.dev(), known.ino(), known.size()],
        [modified, (known.ctime().into(), known.ctime_nsec().into())],
    )
}

/// Returns the version token, given the result of `fstat` or a similar call.
// The types of the members differ between systems.
#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_lossless)]
pub fn etag_in(known: &Stat) -> String {
    let modified = (known.st_mtime as i128, known.st_mtime_nsec as i128);
    let changed = (known.st_ctime as i128, known.st_ctime_nsec as i128);
    token([known.st_dev as u64, known.st_ino as u64, known.st_size as u64], [modified, changed])
}

fn token([device, inode, size]: [u64; 3], times: [(i128, i128); 2]) -> String {
    let [modified, changed] = times.map(|(seconds, nanos)| seconds * 1_000_000_000 + nanos);
    format!("{device:x}-{inode:x}-{size:x}-{modified:x}-{changed:x}")
}
