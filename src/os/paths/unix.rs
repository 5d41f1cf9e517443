//! Paths that are bytes with slashes between the names.
//!
//! Owns: the half for Unix, as pure functions.
//! Never: asks the file system.

use percent_encoding::percent_encode;

use super::ESCAPED;

/// Maximum length of a path, in bytes.
pub(super) const BYTES_MAX: usize = 4096;

pub(super) fn to_uri(path: &[u8]) -> String {
    percent_encode(path, ESCAPED).to_string()
}

pub(super) fn of_uri(path: &str) -> Result<Vec<u8>, &'static str> {
    super::decoded(path, BYTES_MAX)
}
