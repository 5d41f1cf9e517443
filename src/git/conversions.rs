//! Files that git changes on their way into the folder and out of it: ends of lines, encodings, and
//! its own keywords.
//!
//! What git keeps of such a file need not give its bytes back: one with other ends of lines than it
//! would write is the same to git.
//!
//! Owns: which files these may be, keeping the bytes of those that git would not give back, and
//! which contents are no file's own, but those of which a filter makes it.
//! Never: changes a file.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::checkpoints::ref_of;
use super::index::Scratch;
use super::program::{Deadline, GitError};
use super::repository::Repository;

/// The attributes by which git changes a file.
const CHANGING: [&str; 6] = ["text", "eol", "crlf", "ident", "working-tree-encoding", "filter"];

/// Returns those of these files that git may convert.
///
/// # Errors
/// When git fails.
pub fn may_change(
    repository: &Repository,
    scratch: &Scratch,
    paths: &[PathBuf],
    until: Deadline,
) -> Result<Vec<PathBuf>, GitError> {
    if paths.is_empty() || repository.changes_line_ends() {
        return Ok(paths.to_vec());
    }
    let mut asked = Vec::new();
    for path in paths {
        asked.extend_from_slice(path.as_os_str().as_bytes());
        asked.push(0);
    }
    let asked = scratch.file("converted", &asked)?;
    let said = repository.run(["check-attr", "--stdin", "-z"]).with(CHANGING).reads(asked).output(until)?;
    let words: Vec<&[u8]> = said.split(|byte| *byte == 0).collect();
    let changing = words.chunks_exact(3).filter(|said| match said[1] {
        b"filter" => repository.runs_filter(said[2]),
        _ => !matches!(said[2], b"unspecified" | b"unset"),
    });
    let changing: HashSet<&[u8]> = changing.map(|said| said[0]).collect();
    Ok(paths.iter().filter(|path| changing.contains(path.as_os_str().as_bytes())).cloned().collect())
}

/// Prefix of the pointer files that LFS stores in place of contents.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Returns whether these bytes are a pointer that a configured filter would replace by the file's
/// content.
///
/// # Errors
/// When git fails.
pub fn is_for_a_filter(
    repository: &Repository,
    scratch: &Scratch,
    path: &Path,
    bytes: &[u8],
    until: Deadline,
) -> Result<bool, GitError> {
    let filters = repository.filters();
    if filters.is_empty() || !is_pointer(bytes) {
        return Ok(false);
    }
    let asked = scratch.file("filtered", &[path.as_os_str().as_bytes(), b"\0"].concat())?;
    let said = repository.run(["check-attr", "--stdin", "-z", "filter"]).reads(asked).output(until)?;
    Ok(said.split(|byte| *byte == 0).nth(2).is_some_and(|filter| filters.contains(filter)))
}

/// Returns whether these bytes are an LFS pointer.
pub fn is_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(POINTER)
}

/// Keeps these bytes as they are; what git calls them.
///
/// # Errors
/// When git fails.
pub fn store_bytes(
    repository: &Repository,
    scratch: &Scratch,
    bytes: &[u8],
    until: Deadline,
) -> Result<String, GitError> {
    store_file(repository, scratch.file("bytes", bytes)?, until)
}

/// Keeps the bytes of a file as they are. Returns their id.
///
/// # Errors
/// When git fails.
pub fn store_file(repository: &Repository, file: File, until: Deadline) -> Result<String, GitError> {
    repository.run(["hash-object", "-w", "--no-filters", "--stdin"]).reads(file).line(until)
}

/// Has a ref of our own keep all of these.
///
/// # Errors
/// When git fails, or one of them does not exist.
pub fn keep_reachable(
    repository: &Repository,
    scratch: &Scratch,
    (keeper, number): (&str, u64),
    blobs: &[String],
    until: Deadline,
) -> Result<(), GitError> {
    let entries: String = blobs.iter().map(|blob| format!("100644 blob {blob}\t{blob}\n")).collect();
    let entries = scratch.file("blobs", entries.as_bytes())?;
    let tree = repository.run(["mktree"]).reads(entries).line(until)?;
    repository.run(["update-ref", "--no-deref", &ref_of(keeper, number), &tree]).output(until).map(drop)
}
