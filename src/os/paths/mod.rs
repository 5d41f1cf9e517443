//! Forms of paths: bytes, `file:` URIs, and the names of special files.
//!
//! `unix` and `windows` are pure and both built everywhere, so that both are tested everywhere; the
//! functions here are those of the system.
//!
//! Owns: conversion of paths to and from bytes and URIs, and the spelling of canonical paths.
//! Never: decides which files may be used.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

#[cfg(test)]
mod tests;
#[cfg(any(unix, test))]
mod unix;
#[cfg(any(windows, test))]
mod windows;

/// Characters escaped in the path of a URI: all but those that every library leaves unescaped.
pub const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Characters escaped in a segment of a canonical URI: all that RFC 3986 does not allow there.
pub const ESCAPED_IN_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Path of the file that is empty and takes everything.
pub const NULL_DEVICE: &str = half::NULL_DEVICE;

/// Set if absolute paths begin with the letter of a drive.
pub const HAS_DRIVES: bool = cfg!(windows);

/// True if usual file systems of this platform ignore the case of names.
pub const IGNORES_CASE: bool = cfg!(any(windows, target_vendor = "apple", feature = "portable"));

/// Form of paths, by its name in the protocol.
pub const STYLE: &str = if cfg!(windows) { "windows" } else { "posix" };

/// Returns the name or path of these bytes, for example of git's output. Windows has UTF-8 only:
/// there, other bytes are replaced.
pub fn from_bytes(bytes: &[u8]) -> Cow<'_, OsStr> {
    half::from_bytes(bytes)
}

/// Returns a relative path with slashes between its names, as git has it.
pub fn with_slashes(path: &Path) -> Cow<'_, Path> {
    half::with_slashes(path)
}

/// Returns the home folder that the environment names; `None` if it names none.
pub fn home() -> Option<PathBuf> {
    half::HOME.iter().find_map(std::env::var_os).map(PathBuf::from)
}

/// Returns a relative path as a URI has it: escaped, with slashes.
pub fn escaped(path: &Path) -> String {
    half::escaped(path)
}

/// Returns what follows `file://` in the URI of an absolute path.
pub fn to_uri(path: &Path) -> String {
    half::to_uri(path)
}

/// Returns the path of a URI's path, which begins with a slash. A `..` is kept, since its target
/// depends on the file system.
///
/// # Errors
/// With the defect as a predicate whose subject is the URI.
pub fn of_uri(path: &str) -> Result<PathBuf, &'static str> {
    half::of_uri(path)
}

/// Returns the canonical path of an existing file. On Windows, in the short form (`C:\…` instead
/// of `\\?\C:\…`) where that names the same file.
///
/// # Errors
/// When the file does not exist, or a folder on the way may not be passed.
pub fn canonical(path: &Path) -> io::Result<PathBuf> {
    half::canonical(path)
}

/// Decodes the path of a URI, within the length that a path may have in the system.
fn decoded(path: &str, bytes_max: usize) -> Result<Vec<u8>, &'static str> {
    // Each byte of a path has at most three characters in a URI.
    if path.len() > 3 * bytes_max {
        return Err("is longer than any path");
    }
    if path.to_ascii_lowercase().contains("%2f") {
        return Err("has a slash in a name");
    }
    let bytes: Vec<u8> = percent_encoding::percent_decode_str(path).collect();
    if bytes.contains(&0) {
        return Err("has a NUL in a name");
    }
    if bytes.len() > bytes_max {
        return Err("is longer than any path");
    }
    Ok(bytes)
}

#[cfg(unix)]
mod half {
    use std::borrow::Cow;
    use std::ffi::OsStr;
    use std::io;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    use super::unix;

    pub(super) const NULL_DEVICE: &str = "/dev/null";

    pub(super) const HOME: &[&str] = &["HOME"];

    pub(super) fn from_bytes(bytes: &[u8]) -> Cow<'_, OsStr> {
        OsStr::from_bytes(bytes).into()
    }

    pub(super) fn with_slashes(path: &Path) -> Cow<'_, Path> {
        path.into()
    }

    pub(super) fn escaped(path: &Path) -> String {
        unix::to_uri(path.as_os_str().as_bytes())
    }

    pub(super) fn to_uri(path: &Path) -> String {
        unix::to_uri(path.as_os_str().as_bytes())
    }

    pub(super) fn of_uri(path: &str) -> Result<PathBuf, &'static str> {
        unix::of_uri(path).map(|bytes| from_bytes(&bytes).into_owned().into())
    }

    pub(super) fn canonical(path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }
}

#[cfg(windows)]
mod half {
    use std::borrow::Cow;
    use std::ffi::{OsStr, OsString};
    use std::io;
    use std::path::{Path, PathBuf};

    use super::windows;

    pub(super) const NULL_DEVICE: &str = "NUL";

    /// Git's programs set the first one, too.
    pub(super) const HOME: &[&str] = &["HOME", "USERPROFILE"];

    pub(super) fn from_bytes(bytes: &[u8]) -> Cow<'_, OsStr> {
        Cow::Owned(OsString::from(String::from_utf8_lossy(bytes).into_owned()))
    }

    pub(super) fn with_slashes(path: &Path) -> Cow<'_, Path> {
        PathBuf::from(path.to_string_lossy().replace('\\', "/")).into()
    }

    pub(super) fn escaped(path: &Path) -> String {
        windows::escaped(&path.to_string_lossy())
    }

    pub(super) fn to_uri(path: &Path) -> String {
        windows::to_uri(&path.to_string_lossy())
    }

    pub(super) fn of_uri(path: &str) -> Result<PathBuf, &'static str> {
        windows::of_uri(path).map(PathBuf::from)
    }

    pub(super) fn canonical(path: &Path) -> io::Result<PathBuf> {
        let real = path.canonicalize()?;
        Ok(real.to_str().and_then(windows::shortened).map(PathBuf::from).unwrap_or(real))
    }
}
