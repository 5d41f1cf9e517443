//! Contents of files, converted as git would write them into the folder.
//!
//! Owns: reading contents, for clients and for reverting, and their limits.
//! Never: writes one.

use std::ffi::OsString;
use std::fs;

use super::program::GitError;
use super::repository::Repository;
use crate::host::effects::GitContent;

/// Maximum length of a content that a client reads, in bytes.
const CONTENT_BYTES_MAX: u64 = 16 << 20;

/// Returns a content for a client, as git would write it into this file.
pub fn content_of(repository: &Repository, content: &GitContent, file: &str) -> Result<Vec<u8>, GitError> {
    match content_up_to(CONTENT_BYTES_MAX, repository, content, file) {
        // The target of a link is not stored by a scan, so it is read from the folder.
        Err(error) if content.is_link() => {
            let path = repository.path_of(file).ok_or(error)?;
            let text = fs::read_link(repository.root.join(path))?.into_os_string().into_encoded_bytes();
            let link = repository.input(&text)?;
            let id = repository.run(["hash-object", "--no-filters", "--stdin"]).reads(link).line()?;
            match id == content.blob {
                true => Ok(text),
                false => Err(GitError::Beyond("the link has another target now".to_owned())),
            }
        }
        found => found,
    }
}

/// Returns a content of at most `bytes_max` bytes, as git would write it into this file.
pub fn content_up_to(
    bytes_max: u64,
    repository: &Repository,
    content: &GitContent,
    file: &str,
) -> Result<Vec<u8>, GitError> {
    must_be_readable(repository, &content.blob, bytes_max)?;
    let run = match repository.path_of(file).filter(|_| !content.is_link()) {
        Some(path) => {
            let mut named = OsString::from("--path=");
            named.push(path);
            repository.run(["cat-file", "--filters"]).with([named]).with([&content.blob])
        }
        None => repository.run(["cat-file", "blob", &content.blob]),
    };
    run.with_output_of(bytes_max.saturating_mul(2)).output()
}

/// Returns the bytes with this object id, unconverted.
pub fn bytes_of(repository: &Repository, blob: &str) -> Result<Vec<u8>, GitError> {
    let bytes_max = repository.limits.each;
    must_be_readable(repository, blob, bytes_max)?;
    repository.run(["cat-file", "blob", blob]).with_output_of(bytes_max).output()
}

/// Returns whether a text can be an object id.
pub fn is_id(blob: &str) -> bool {
    !blob.is_empty() && blob.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn must_be_readable(repository: &Repository, blob: &str, bytes_max: u64) -> Result<(), GitError> {
    if !is_id(blob) {
        return Err(GitError::Beyond("this content was not checkpointed".to_owned()));
    }
    let size = repository.run(["cat-file", "-s", blob]).line()?;
    if size.parse::<u64>().is_ok_and(|size| size > bytes_max) {
        return Err(GitError::Beyond(format!("the content has {size} bytes (limit {bytes_max})")));
    }
    Ok(())
}
