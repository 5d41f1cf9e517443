//! Contents that were given out, and files that become what they were.
//!
//! Owns: reading a content as it would stand in the folder, and making a file that content again if it is what it must be
//! now.
//! Never: writes outside of the folders in which it may, or over what is not known.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::index::{CopiedIndex, Scratch};
use super::program::{GitError, Until};
use super::repository::Repository;
use crate::files::facts::etag;
use crate::files::folders::{Folders, Own, WorkFolder};
use crate::files::uris::path_of;
use crate::files::writing::{Put, Writing};
use crate::host::effects::{GitContent, GitTaken};

/// The longest content that is read, in bytes.
const CONTENT_BYTES_MAX: usize = 16 << 20;

/// The mode of a program.
const PROGRAM: u32 = 0o100_755;

/// A content, as it would stand in the folder in this file.
///
/// # Errors
/// When it is not there any more, or too long.
pub fn content_of(
    repository: &Repository,
    content: &GitContent,
    file: &str,
    until: Until,
) -> Result<Vec<u8>, GitError> {
    let is_id = !content.blob.is_empty() && content.blob.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_id {
        return Err(GitError::Beyond("this content is not kept".to_owned()));
    }
    let size = repository.run(["cat-file", "-s", &content.blob]).line(until)?;
    if size.parse::<usize>().is_ok_and(|size| size > CONTENT_BYTES_MAX) {
        return Err(GitError::Beyond(format!("it is larger than {CONTENT_BYTES_MAX} bytes")));
    }
    match repository.path_of(file).filter(|_| !content.is_link()) {
        Some(path) => {
            let mut named = OsString::from("--path=");
            named.push(path);
            repository.run(["cat-file", "--filters"]).with([named]).with([&content.blob]).output(until)
        }
        None => repository.run(["cat-file", "blob", &content.blob]).output(until),
    }
}

/// The folders below which files may be changed, but for what is the host's own.
pub fn folders(below: &[String], own: &[String]) -> Folders {
    let folders = below.iter().filter_map(|uri| WorkFolder::find(path_of(uri).ok()?).ok());
    let own = own.iter().flat_map(|path| Own::find(Path::new(path)));
    Folders::of(folders.map(Arc::new).collect(), own.collect())
}

/// Makes files what they were, each for itself: one that is not what it must be stays as it is. Why nothing was done to
/// it, if nothing was.
///
/// # Errors
/// When git fails before anything is done.
pub fn take_back(
    repository: &Repository,
    scratch: &Scratch,
    files: &[GitTaken],
    folders: &Folders,
    until: Until,
) -> Result<Vec<Option<String>>, GitError> {
    let index = CopiedIndex::new(repository, scratch, false)?;
    let (tree, _) = index.tree(scratch, until)?;
    let listed = index.run(["ls-tree", "-r", "-z", "--full-tree", &tree]).output(until)?;
    let there = contents_in(&listed);
    let each = files.iter().map(|file| {
        let Some(path) = repository.path_of(&file.file) else {
            return Some("it is not in the repository".to_owned());
        };
        let found = there.get(&path);
        if [&file.now, &file.wanted].into_iter().flatten().any(|side| side.blob.is_empty()) {
            return Some("its content is not kept: it is too large".to_owned());
        }
        let is = |wanted: &Option<GitContent>| wanted.as_ref() == found;
        if is(&file.wanted) {
            // It was done before, and the host has ended before it was known.
            return None;
        }
        if !is(&file.now) {
            return Some("it was changed since".to_owned());
        }
        make(repository, folders, file, until).err()
    });
    Ok(each.collect())
}

/// What `git ls-tree -z` says.
fn contents_in(listed: &[u8]) -> std::collections::HashMap<PathBuf, GitContent> {
    let entries = listed.split(|byte| *byte == 0).filter_map(|entry| {
        let tab = entry.iter().position(|byte| *byte == b'\t')?;
        let facts = String::from_utf8_lossy(&entry[..tab]).into_owned();
        let mut facts = facts.split(' ');
        let mode = u32::from_str_radix(facts.next()?, 8).ok()?;
        let blob = facts.nth(1)?.to_owned();
        Some((PathBuf::from(OsString::from_vec(entry[tab + 1..].to_vec())), GitContent { blob, mode }))
    });
    entries.collect()
}

/// Makes one file what it is to be.
fn make(repository: &Repository, folders: &Folders, file: &GitTaken, until: Until) -> Result<(), String> {
    let path = path_of(&file.file).map_err(|error| error.message)?;
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let is_link = |content: &Option<GitContent>| content.as_ref().is_some_and(GitContent::is_link);
    let Some(wanted) = &file.wanted else {
        return folders.remove(&path, false).map_err(|refusal| told(&refusal));
    };
    let content = content_of(repository, wanted, &file.file, until).map_err(|error| told(&error))?;
    if is_link(&file.now) || (wanted.is_link() && file.now.is_some()) {
        folders.remove(&path, false).map_err(|refusal| told(&refusal))?;
    }
    if wanted.is_link() {
        folders.may_change(&path).map_err(|refusal| told(&refusal))?;
        return symlink(OsString::from_vec(content), &path).map_err(|error| told(&error));
    }
    let known = match &file.now {
        Some(now) if !now.is_link() => {
            let known = folders.open(&path).and_then(|found| Ok(found.metadata()?));
            Some(etag(&known.map_err(|refusal| told(&refusal))?))
        }
        _ => None,
    };
    if known.is_none() {
        // The folder may be gone with the file.
        folders.write(&path, &content).map_err(|refusal| told(&refusal))?;
    } else {
        let put = Put::Truncate(0);
        let writing = Writing { content: &content, put, create_only: false, if_match: known.as_deref() };
        folders.put(&path, &writing).map_err(|refusal| told(&refusal))?;
    }
    set_mode(folders, &path, wanted.mode == PROGRAM)
}

/// Makes a file a program, or none.
fn set_mode(folders: &Folders, path: &Path, is_program: bool) -> Result<(), String> {
    let set = || -> Result<(), crate::files::folders::PathRefusal> {
        let file = folders.open(path)?;
        let mode = file.metadata()?.permissions().mode();
        if (mode & 0o100 != 0) != is_program {
            let wanted = if is_program { mode | (mode & 0o444) >> 2 } else { mode & !0o111 };
            file.set_permissions(Permissions::from_mode(wanted))?;
        }
        Ok(())
    };
    set().map_err(|refusal| refusal.to_string())
}
