//! Backups of files before they change: no operation removes the last copy of a user's content.
//!
//! A content that is about to be replaced or removed is nearly always in a checkpoint. But that
//! checkpoint may have been removed, and the file may differ from git's content in its line
//! endings. So each operation verifies it.
//!
//! Owns: storing missing contents, and the ref that retains all of them.
//! Never: changes a file of the folder.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::contents::content_up_to;
use super::conversions::{self, may_change};
use super::large::open_regular;
use super::program::GitError;
use super::repository::Repository;
use crate::host::effects::{GitContent, GitRevert};

/// Stores and retains the contents of files that are about to change. Returns object ids of bytes
/// by path: of files that git would not give back exactly, and of those that their change names by
/// version only.
///
/// # Errors
/// When git fails, or a file has changed: nothing may be changed then.
pub fn back_up(
    repository: &Repository,
    (files, found): (Vec<(&Path, &GitRevert)>, &HashMap<PathBuf, GitContent>),
    by: (&str, u64),
) -> Result<HashMap<PathBuf, String>, GitError> {
    let now = |path: &Path| found.get(path);
    let files: HashMap<PathBuf, &GitRevert> = files
        .into_iter()
        .filter(|(path, _)| now(path).is_some())
        .map(|(path, file)| (path.to_owned(), file))
        .collect();
    let paths: Vec<PathBuf> = files.keys().cloned().collect();
    let mut kept = HashMap::new();
    for path in may_change(repository, &paths)? {
        let (Some(file), Some(now)) = (files.get(&path), now(&path).filter(|now| !now.is_link())) else {
            continue;
        };
        let mut bytes = Vec::new();
        open_regular(&repository.root.join(&path))?.read_to_end(&mut bytes)?;
        if bytes != content_up_to(repository.limits.each, repository, now, &file.file)? {
            kept.insert(path, conversions::store_bytes(repository, &bytes)?);
        }
    }
    let contents: BTreeMap<&str, &PathBuf> =
        paths.iter().filter_map(|path| Some((now(path)?.blob.as_str(), path))).collect();
    store_missing(repository, &contents)?;
    let mut blobs: Vec<String> =
        contents.into_keys().map(str::to_owned).chain(kept.values().cloned()).collect();
    blobs.sort_unstable();
    blobs.dedup();
    if !blobs.is_empty() {
        conversions::keep_reachable(repository, by, &blobs)?;
    }
    for path in paths {
        // A change that names this side by its version only has no object id of it, so return the
        // found one.
        let is_version = files[&path].now.as_ref().is_some_and(|now| !now.is_stored());
        if let Some(now) = now(&path).filter(|_| is_version) {
            kept.entry(path).or_insert_with(|| now.blob.clone());
        }
    }
    Ok(kept)
}

/// Stores the contents that the repository lacks: their commits or checkpoints were removed, or an
/// examination has discarded them.
fn store_missing(repository: &Repository, contents: &BTreeMap<&str, &PathBuf>) -> Result<(), GitError> {
    if contents.is_empty() {
        return Ok(());
    }
    let asked: String = contents.keys().map(|id| format!("{id}\n")).collect();
    let output = repository.objects("--batch-check", asked.as_bytes())?;
    for id in String::from_utf8_lossy(&output).lines().filter_map(|line| line.strip_suffix(" missing")) {
        let Some(path) = contents.get(id) else { continue };
        let at = repository.root.join(path);
        let stored = match fs::read_link(&at) {
            Ok(link) => {
                let link = repository.input(link.as_os_str().as_encoded_bytes())?;
                conversions::store_file(repository, link)?
            }
            Err(_) => {
                let mut named = OsString::from("--path=");
                named.push(path);
                let run = repository.run(["hash-object", "-w", "--stdin"]).with([named]);
                run.reads(open_regular(&at)?).line()?
            }
        };
        if stored != id {
            // No file is reverted. A retry finds the newer version.
            return Err(GitError::Beyond(format!("`{}` is being changed", path.display())));
        }
    }
    Ok(())
}
