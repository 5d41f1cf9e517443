//! Backups of files that are about to be changed: no operation removes the last copy of what
//! somebody wrote.
//!
//! What is about to be replaced or removed is nearly always in a checkpoint. That checkpoint may be
//! gone by now, and the bytes may differ from what git has of them by their ends of lines; so it is
//! made sure of, each time.
//!
//! Owns: storing what is missing, and the ref that keeps all of it.
//! Never: changes a file of the folder.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::contents::content_up_to;
use super::conversions::{self, may_change};
use super::large::open_regular;
use super::program::GitError;
use super::repository::Repository;
use crate::host::effects::{GitContent, GitRevert};

/// Keeps the contents of files that are about to be changed. Returns the ids of the bytes of those
/// files that git would not give back as they are, and of those whose change knows them by their
/// versions alone.
///
/// # Errors
/// When git fails, or a file has become another one: nothing may be changed then.
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
        // Of a side that is known by its version alone nobody knows the id.
        let is_version = files[&path].now.as_ref().is_some_and(|now| !now.is_stored());
        if let Some(now) = now(&path).filter(|_| is_version) {
            kept.entry(path).or_insert_with(|| now.blob.clone());
        }
    }
    Ok(kept)
}

/// Stores those of the contents of files that the repository does not have: they were committed, or
/// kept, and are not any more, or were only looked at.
fn store_missing(repository: &Repository, contents: &BTreeMap<&str, &PathBuf>) -> Result<(), GitError> {
    if contents.is_empty() {
        return Ok(());
    }
    let asked: String = contents.keys().map(|id| format!("{id}\n")).collect();
    let asked = repository.input(asked.as_bytes())?;
    let said = repository.run(["cat-file", "--batch-check"]).reads(asked).text()?;
    for id in said.lines().filter_map(|line| line.strip_suffix(" missing")) {
        let Some(path) = contents.get(id) else { continue };
        let at = repository.root.join(path);
        let stored = match fs::read_link(&at) {
            Ok(link) => {
                let link = repository.input(link.as_os_str().as_bytes())?;
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
            // Nothing is done to any of them: whoever asks again finds the newer version.
            return Err(GitError::Beyond(format!("`{}` is being changed", path.display())));
        }
    }
    Ok(())
}
