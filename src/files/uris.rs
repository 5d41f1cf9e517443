//! `file:` URIs.
//!
//! Owns: conversion between `file:` URIs and paths.
//! Never: checks whether a file exists.

use std::path::{Path, PathBuf};

use crate::os::paths;
use crate::wire::errors::RpcError;

/// Maximum length of a path in the system, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;

/// Returns the `file:` URI of an absolute path.
pub fn uri_of(path: &Path) -> String {
    format!("file://{}", paths::to_uri(path))
}

/// Returns the path of a `file:` URI. A `..` is kept, since its target depends on the file system.
///
/// # Errors
/// `-32602` when the URI names no file of this machine.
pub fn path_of(uri: &str) -> Result<PathBuf, RpcError> {
    let wrong = |what: &str| Err(RpcError::invalid_params(format_args!("`{uri}` {what}")));
    let rest = match uri.split_once(':') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("file") => rest,
        _ => return wrong("has a scheme that this host does not support"),
    };
    if rest.contains(['?', '#']) {
        return wrong("has a query or a fragment");
    }
    let path = match rest.strip_prefix("//") {
        None => rest,
        Some(rest) => {
            let (host, _) = rest.split_once('/').unwrap_or((rest, ""));
            if !(host.is_empty() || host.eq_ignore_ascii_case("localhost")) {
                return wrong("names no file of this machine");
            }
            &rest[host.len()..]
        }
    };
    if !path.starts_with('/') {
        return wrong("names no file of this machine");
    }
    paths::of_uri(path).or_else(wrong)
}

/// Returns whether a path of one list equals, contains or is inside a path of the other one.
pub fn overlap(some: &[PathBuf], others: &[PathBuf]) -> bool {
    let meet = |one: &PathBuf| others.iter().any(|two| one.starts_with(two) || two.starts_with(one));
    some.iter().any(meet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_become_paths() {
        let path = |uri| path_of(uri).map_err(|error| error.code);
        for (uri, named) in [
            ("file:///a%20b/%C3%A4%25.txt", "/a b/ä%.txt"),
            ("file://localhost/x", "/x"),
            ("file:/x", "/x"),
            ("FILE:///x/%2e%2E/y", "/x/../y"),
            // Decoded once.
            ("file:///%252f", "/%2f"),
        ] {
            assert_eq!(path(uri), Ok(PathBuf::from(named)), "{uri}");
        }
        for uri in [
            "file://other/x",
            "file://localhostx/x",
            "file:///x%00",
            "file:///a%2Fb",
            "file:///a%2fb",
            "file:///a?b",
            "file:x",
            "https://x/",
            "/x",
        ] {
            assert_eq!(path(uri), Err(-32602), "{uri}");
        }
    }

    #[test]
    fn paths_become_uris() {
        assert_eq!(uri_of(Path::new("/a b/ä%.txt")), "file:///a%20b/%C3%A4%25.txt");
        assert_eq!(uri_of(Path::new("/")), "file:///");
    }
}
