//! Files marked assume-unchanged or skip-worktree, which git does not examine.
//!
//! Their contents are the user's all the same, and an agent may write them. So checkpoints ignore
//! both flags, in copies of the index; uncommitted changes and commits respect them, as the user
//! wants.
//!
//! Owns: listing these files, once for each version of the index.
//! Never: changes a flag.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::index::{listed, IndexEntry, Status};
use super::program::GitError;
use super::repository::Repository;
use crate::os::facts;
use crate::os::paths::from_bytes;
use crate::sync::lock;

/// A file that git does not examine.
#[derive(Debug, Clone)]
pub struct FlaggedFile {
    /// Entry in the index.
    pub entry: Arc<IndexEntry>,
    /// Set if git takes the file as unchanged (`assume-unchanged`).
    pub is_assumed_unchanged: bool,
    /// Set if the file need not exist in the folder (`skip-worktree`).
    pub is_elsewhere: bool,
}

/// Fingerprint that distinguishes one version of an index from another.
pub type IndexStamp = (u64, u64, i64, i64);

/// Flagged files with the index's fingerprint, by the path of the index.
type KnownFlags = HashMap<PathBuf, (IndexStamp, Vec<FlaggedFile>)>;

static KNOWN: Mutex<Option<KnownFlags>> = Mutex::new(None);

/// Maximum number of cached indexes; one more clears the cache.
const KNOWN_MAX: usize = 64;

/// Returns the fingerprint of a repository's index; `None` if there is no index.
pub fn stamp_of(repository: &Repository) -> Option<IndexStamp> {
    let known = facts::behind(&repository.own.join("index")).ok()?;
    Some((known.identity.1, known.size, known.modified.0, known.modified.1))
}

/// Returns the flagged files of a repository. If the index is too large for one listing, no file
/// counts as flagged.
pub fn flagged(repository: &Repository) -> Result<Vec<FlaggedFile>, GitError> {
    let index = repository.own.join("index");
    let Some(stamp) = stamp_of(repository) else { return Ok(Vec::new()) };
    let remembered = || lock(&KNOWN);
    if let Some((of, files)) = remembered().as_ref().and_then(|known| known.get(&index)) {
        if *of == stamp {
            return Ok(files.clone());
        }
    }
    let output = match repository.run(["ls-files", "-v", "-s", "-z"]).output() {
        Err(GitError::TooMuch(_)) => Vec::new(),
        output => output?,
    };
    let files: Vec<FlaggedFile> = output.split(|byte| *byte == 0).filter_map(flagged_in).collect();
    let mut known = remembered();
    let known = known.get_or_insert_default();
    if known.len() >= KNOWN_MAX {
        known.clear();
    }
    known.insert(index, (stamp, files.clone()));
    Ok(files)
}

/// Returns the flagged files that a checkpoint must examine: skip-worktree ones only if they exist,
/// others always.
pub fn hidden(repository: &Repository) -> Result<Vec<FlaggedFile>, GitError> {
    let mut files = flagged(repository)?;
    let exists = |path: &[u8]| fs::symlink_metadata(repository.root.join(from_bytes(path))).is_ok();
    files.retain(|file| !file.is_elsewhere || exists(&file.entry.path));
    Ok(files)
}

/// Adds flagged files to those that may differ from the index.
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

/// Parses an entry of `git ls-files -v -s -z`: tag, mode, id, stage, path.
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
