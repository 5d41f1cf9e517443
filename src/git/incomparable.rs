//! Files that git does not examine: ignored ones, and those outside the repository.
//!
//! Checkpoints do not contain them, so only the tool calls of an agent report their changes.
//!
//! Owns: telling these files from the others.
//! Never: reads a file.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::flags::flagged;
use super::large::version_of;
use super::program::GitError;
use super::repository::Repository;
use crate::files::folders::real_as_far_as_there;
use crate::files::uris::{path_of, uri_of};
use crate::host::effects::IncomparableFile;

/// Prefix after which a colon at the beginning of a path has no special meaning for git.
const HERE: &[u8] = b"./";

/// Returns the files (`file:` URIs or absolute paths) that git does not examine.
pub fn incomparable(repository: &Repository, files: Vec<String>) -> Result<Vec<IncomparableFile>, GitError> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let as_uri = |file: String| match Path::new(&file).is_absolute() {
        true => uri_of(Path::new(&file)),
        false => file,
    };
    let files: BTreeSet<String> = files.into_iter().map(as_uri).collect();
    let places: Vec<FilePlace> = files.iter().map(|uri| FilePlace::of(repository, uri)).collect();
    let asked: Vec<u8> = places
        .iter()
        .filter_map(|place| match place {
            FilePlace::Below(path) => Some([HERE, path.as_os_str().as_encoded_bytes(), b"\0"].concat()),
            _ => None,
        })
        .flatten()
        .collect();
    let ignored = match asked.is_empty() {
        true => Vec::new(),
        false => {
            let asked = repository.input(&asked)?;
            // `git check-ignore` refuses `GIT_LITERAL_PATHSPECS=1`.
            let run = repository.run(["check-ignore", "--stdin", "-z"]).env("GIT_LITERAL_PATHSPECS", "0");
            match run.reads(asked).output() {
                // Exit status 1: none of them is ignored.
                Err(GitError::Failed { status: Some(1), .. }) => Vec::new(),
                output => output?,
            }
        }
    };
    let ignored: HashSet<&[u8]> =
        ignored.split(|byte| *byte == 0).filter_map(|path| path.strip_prefix(HERE)).collect();
    let flagged = flagged(repository)?;
    // A skip-worktree file that does not exist was removed or never existed; git cannot tell.
    let elsewhere: HashSet<&[u8]> =
        flagged.iter().filter(|file| file.is_elsewhere).map(|file| &*file.entry.path).collect();
    let is_incomparable = |place: &FilePlace| match place {
        FilePlace::Outside => true,
        FilePlace::Elsewhere => false,
        FilePlace::Below(path) => {
            let name = path.as_os_str().as_encoded_bytes();
            let exists = || fs::symlink_metadata(repository.root.join(path)).is_ok();
            ignored.contains(name) || (elsewhere.contains(name) && !exists())
        }
    };
    let found = files.into_iter().zip(&places).filter(|(_, place)| is_incomparable(place));
    let incomparable = found.map(|(file, _)| {
        let version = path_of(&file).ok().and_then(|path| version_of(&path));
        IncomparableFile { file, version }
    });
    Ok(incomparable.collect())
}

enum FilePlace {
    /// Outside the repository, or in another repository within it.
    Outside,
    /// In the repository under another name, by which it is examined.
    Elsewhere,
    /// In the repository, at this path.
    Below(PathBuf),
}

impl FilePlace {
    fn of(repository: &Repository, uri: &str) -> Self {
        let Ok(named) = path_of(uri) else { return Self::Elsewhere };
        let Some(real) = real_path(&named) else { return Self::Outside };
        let Ok(below) = real.strip_prefix(&repository.root) else { return Self::Outside };
        let above = || real.ancestors().skip(1).take_while(|above| *above != repository.root);
        if below.starts_with(".git") || above().any(|above| above.join(".git").exists()) {
            return Self::Outside;
        }
        match repository.path_of(uri) {
            Some(path) if path == below => Self::Below(path),
            _ => Self::Elsewhere,
        }
    }
}

/// Resolves links in the folders of a path, as far as they exist.
fn real_path(path: &Path) -> Option<PathBuf> {
    Some(real_as_far_as_there(path.parent()?)?.join(path.file_name()?))
}
