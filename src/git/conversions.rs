//! Files that git converts between repository and folder: line endings, encodings, and `$Id$`
//! keywords.
//!
//! The stored content of such a file need not give its bytes back: git takes a file for unchanged
//! that differs only in its line endings.
//!
//! Owns: finding files that may be converted, storing the bytes that git would not give back, and
//! recognising contents that stand for a file, as LFS pointers do.
//! Never: changes a file.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::checkpoints::ref_of;
use super::program::GitError;
use super::repository::Repository;

/// Attributes that make git convert a file.
const CHANGING: [&str; 6] = ["text", "eol", "crlf", "ident", "working-tree-encoding", "filter"];

/// Returns the files that git may convert.
pub fn may_change(repository: &Repository, paths: &[PathBuf]) -> Result<Vec<PathBuf>, GitError> {
    if paths.is_empty() || repository.changes_line_ends() {
        return Ok(paths.to_vec());
    }
    let attributes =
        attributes(repository, paths.iter().map(|path| path.as_os_str().as_encoded_bytes()), &CHANGING)?;
    let changing = attributes.iter().filter(|it| match it.name.as_slice() {
        b"filter" => repository.runs_filter(&it.value),
        _ => !matches!(it.value.as_slice(), b"unspecified" | b"unset"),
    });
    let changing: HashSet<&[u8]> = changing.map(|it| &*it.path).collect();
    Ok(paths.iter().filter(|path| changing.contains(path.as_os_str().as_encoded_bytes())).cloned().collect())
}

/// Attribute of a file, as `git check-attr` prints it.
pub struct Attribute {
    /// Path of the file in the repository.
    pub path: Vec<u8>,
    name: Vec<u8>,
    /// Value of the attribute.
    pub value: Vec<u8>,
}

/// Returns these attributes of each file.
pub fn attributes<'a>(
    repository: &Repository,
    paths: impl IntoIterator<Item = &'a [u8]>,
    names: &[&str],
) -> Result<Vec<Attribute>, GitError> {
    let paths: Vec<u8> = paths.into_iter().flat_map(|path| [path, b"\0"].concat()).collect();
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let run = repository.run(["check-attr", "--stdin", "-z"]).with(names).reads(repository.input(&paths)?);
    let output = run.output()?;
    let words: Vec<&[u8]> = output.split(|byte| *byte == 0).collect();
    let all = words.chunks_exact(3).map(|words| Attribute {
        path: words[0].to_vec(),
        name: words[1].to_vec(),
        value: words[2].to_vec(),
    });
    Ok(all.collect())
}

/// Prefix of the pointer files that LFS stores in place of contents.
pub const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Returns whether these bytes are a pointer that a configured filter would replace with the file's
/// content.
pub fn is_for_a_filter(repository: &Repository, path: &Path, bytes: &[u8]) -> Result<bool, GitError> {
    let filters = repository.filters();
    if filters.is_empty() || !is_pointer(bytes) {
        return Ok(false);
    }
    let found = attributes(repository, [path.as_os_str().as_encoded_bytes()], &["filter"])?;
    Ok(found.iter().any(|filter| filters.contains(&*filter.value)))
}

/// Returns whether these bytes are an LFS pointer.
pub fn is_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(POINTER)
}

/// Stores these bytes without conversion. Returns their object id.
pub fn store_bytes(repository: &Repository, bytes: &[u8]) -> Result<String, GitError> {
    store_file(repository, repository.input(bytes)?)
}

/// Stores the bytes of a file without conversion. Returns their object id.
pub fn store_file(repository: &Repository, file: File) -> Result<String, GitError> {
    repository.run(["hash-object", "-w", "--no-filters", "--stdin"]).reads(file).line()
}

/// Retains these objects by a ref of the host's own.
pub fn keep_reachable(
    repository: &Repository,
    (namespace, number): (&str, u64),
    blobs: &[String],
) -> Result<(), GitError> {
    let entries: String = blobs.iter().map(|blob| format!("100644 blob {blob}\t{blob}\n")).collect();
    let entries = repository.input(entries.as_bytes())?;
    let tree = repository.run(["mktree"]).reads(entries).line()?;
    repository.run(["update-ref", "--no-deref", &ref_of(namespace, number), &tree]).output().map(drop)
}
