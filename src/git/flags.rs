//! Files that git was told not to look at: taken as unchanged, or not to be had in the folder.
//!
//! What is in such a file is the user's all the same, and an agent may write it. So checkpoints see
//! through both flags, in copies of the index; what is not committed is shown and committed without
//! such files, as the user has said.
//!
//! Owns: finding them, once for each version of the index.
//! Never: changes a flag.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::index::{listed, IndexEntry, Status};
use super::program::GitError;
use super::repository::Repository;

/// A file that git does not look at.
#[derive(Debug, Clone)]
pub struct FlaggedFile {
    /// The entry of the index.
    pub entry: Arc<IndexEntry>,
    /// Set if git takes the file as unchanged (`assume-unchanged`).
    pub is_assumed_unchanged: bool,
    /// Set if the file need not exist in the folder (`skip-worktree`).
    pub is_elsewhere: bool,
}

/// Fingerprint that tells one version of an index from another.
pub type IndexStamp = (u64, u64, i64, i64);

/// Flagged files of indexes, by the paths of the indexes.
type KnownFlags = HashMap<PathBuf, (IndexStamp, Vec<FlaggedFile>)>;

/// Flagged files of the indexes that were read last.
static KNOWN: Mutex<Option<KnownFlags>> = Mutex::new(None);

/// Maximum number of indexes that are remembered.
const KNOWN_MAX: usize = 64;

/// Returns the fingerprint of a repository's index; `None` if there is no index.
pub fn stamp_of(repository: &Repository) -> Option<IndexStamp> {
    let known = fs::metadata(repository.own.join("index")).ok()?;
    Some((known.ino(), known.len(), known.mtime(), known.mtime_nsec()))
}

/// Returns the flagged files of a repository.
///
/// # Errors
/// When git fails. More entries than git may list at once are taken for files without flags.
pub fn flagged(repository: &Repository) -> Result<Vec<FlaggedFile>, GitError> {
    let index = repository.own.join("index");
    let Some(stamp) = stamp_of(repository) else { return Ok(Vec::new()) };
    let remembered = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((of, files)) = remembered().as_ref().and_then(|known| known.get(&index)) {
        if *of == stamp {
            return Ok(files.clone());
        }
    }
    let said = match repository.run(["ls-files", "-v", "-s", "-z"]).output() {
        Err(GitError::TooMuch) => Vec::new(),
        said => said?,
    };
    let files: Vec<FlaggedFile> = said.split(|byte| *byte == 0).filter_map(flagged_in).collect();
    let mut known = remembered();
    let known = known.get_or_insert_default();
    if known.len() >= KNOWN_MAX {
        known.clear();
    }
    known.insert(index, (stamp, files.clone()));
    Ok(files)
}

/// Returns the flagged files whose contents a checkpoint must have: those that exist in the folder,
/// and those that are taken as unchanged and do not exist any more.
///
/// # Errors
/// When git fails.
pub fn hidden(repository: &Repository) -> Result<Vec<FlaggedFile>, GitError> {
    let mut files = flagged(repository)?;
    let exists = |path: &[u8]| fs::symlink_metadata(repository.root.join(OsStr::from_bytes(path))).is_ok();
    files.retain(|file| !file.is_elsewhere || exists(&file.entry.path));
    Ok(files)
}

/// Adds these files to those that are otherwise in the folder than in the index, perhaps.
pub fn add_to(status: &mut Status, hidden: &[FlaggedFile]) {
    let changed: HashSet<Vec<u8>> = status.changed.iter().cloned().collect();
    let listed: HashSet<Vec<u8>> = status.entries.iter().map(|entry| entry.path.clone()).collect();
    for FlaggedFile { entry, .. } in hidden {
        if !changed.contains(&entry.path) {
            status.changed.push(entry.path.clone());
        }
        if !listed.contains(&entry.path) {
            status.entries.push(IndexEntry::clone(entry));
        }
    }
}

/// Reads an entry of `git ls-files -v -s -z`: a tag, the mode, the id and the stage, and the path.
fn flagged_in(entry: &[u8]) -> Option<FlaggedFile> {
    let [tag, b' ', rest @ ..] = entry else { return None };
    let (is_assumed_unchanged, is_elsewhere) = (tag.is_ascii_lowercase(), tag.eq_ignore_ascii_case(&b'S'));
    if !is_assumed_unchanged && !is_elsewhere {
        return None;
    }
    let (facts, path) = listed(rest)?;
    let [mode, id, "0"] = facts.split(' ').collect::<Vec<_>>()[..] else { return None };
    let (mode, id, path) = (mode.to_owned(), id.to_owned(), path.to_vec());
    let entry = Arc::new(IndexEntry { path, mode, id, is_staged: false });
    Some(FlaggedFile { entry, is_assumed_unchanged, is_elsewhere })
}
