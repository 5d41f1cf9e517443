//! Version tokens of files.
//!
//! Owns: the token of a version, which clients send back to change that version only.
//! Never: opens a file.

use crate::os::facts::Facts;

/// Returns the version token of a file: identity, size, and times of modification and change.
pub fn etag(known: &Facts) -> String {
    let [modified, changed] = [known.modified, known.changed]
        .map(|(seconds, nanos)| i128::from(seconds) * 1_000_000_000 + i128::from(nanos));
    let ((device, inode), size) = (known.identity, known.size);
    format!("{device:x}-{inode:x}-{size:x}-{modified:x}-{changed:x}")
}
