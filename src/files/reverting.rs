//! Reverting files to an earlier text.
//!
//! Owns: the check that a file has the expected text before it is reverted.
//! Never: knows the source of the texts, or reads more of a file than the longer of the two.

use std::io::Read;
use std::path::Path;

use super::facts::etag;
use super::folders::{Folders, PathRefusal};
use super::writing::{WriteRequest, PERMISSIONS};
use crate::os::facts;

/// Message for a file that is not reverted because one of its two texts is not stored.
pub const UNKNOWN_SIDE: &str = "its earlier content is no longer known";

/// Result of reverting a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevertedText {
    /// The file has the wanted text already.
    Already,
    /// The file has the wanted text now.
    Done {
        /// Permissions of a removed file, to restore them later; `None` if the file exists.
        mode: Option<u32>,
    },
    /// The file has neither text, and is unchanged.
    ChangedSince,
}

/// Changes a file from the text `now` to `wanted`, where `None` means that the file does not exist.
/// A created file gets the permissions `mode`, if they are known.
///
/// # Errors
/// When it is no regular file, may not be changed, or is outside the folders.
pub fn revert_text(
    folders: &Folders,
    path: &Path,
    (now, wanted): (Option<&str>, Option<&str>),
    mode: Option<u32>,
) -> Result<RevertedText, PathRefusal> {
    let longest = [now, wanted].into_iter().flatten().map(str::len).max().unwrap_or(0);
    let found = match folders.open(path) {
        Ok(found) => {
            let known = facts::of(&found)?;
            let mut text = Vec::new();
            let room = u64::try_from(longest).unwrap_or(u64::MAX).saturating_add(1);
            found.take(room).read_to_end(&mut text)?;
            Some((text, etag(&known), known.mode & PERMISSIONS))
        }
        Err(refusal) if refusal.is_missing() => None,
        Err(refusal) => return Err(refusal),
    };
    let is = |text: Option<&str>| text.map(str::as_bytes) == found.as_ref().map(|(found, ..)| &found[..]);
    if is(wanted) {
        return Ok(RevertedText::Already);
    }
    if !is(now) {
        return Ok(RevertedText::ChangedSince);
    }
    let if_match = found.as_ref().map(|(_, etag, _)| etag.as_str());
    match (wanted, if_match) {
        (Some(text), Some(_)) => {
            folders.put(path, &WriteRequest { if_match, mode, ..WriteRequest::whole(text.as_bytes()) })?;
            Ok(RevertedText::Done { mode: None })
        }
        (Some(text), None) => {
            // The parent folder may have been removed with the file.
            folders.create(path, text.as_bytes(), mode)?;
            Ok(RevertedText::Done { mode: None })
        }
        (None, Some(version)) => {
            folders.remove_version(path, version)?;
            Ok(RevertedText::Done { mode: found.map(|(.., mode)| mode) })
        }
        (None, None) => Ok(RevertedText::Already),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn file_removed_with_its_folders_is_created_with_them() {
        let top = tempfile::tempdir().unwrap();
        let folders = Folders::new(vec![top.path().to_owned()]);
        let path = top.path().join("a/b/file");
        let reverted = revert_text(&folders, &path, (None, Some("text")), Some(0o640)).unwrap();
        assert_eq!(reverted, RevertedText::Done { mode: None });
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(facts::at(&path).unwrap().mode & PERMISSIONS, 0o640);
    }
}
