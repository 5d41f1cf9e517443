//! Checkpoints: snapshots of a repository's folder.
//!
//! A checkpoint is a tree of the folder, retained by a ref of the host's own. If large or surplus
//! files need a version, it is a commit without parents whose message lists these versions.
//!
//! Owns: making and comparing checkpoints, retaining those of an imported session, and removing
//! those of a session.
//! Never: touches a ref that is not the host's.

use crate::host::effects::GitContent;
use crate::state::edits::FileDiff;
use std::collections::BTreeMap;

use percent_encoding::{percent_decode_str, percent_encode};

use super::compare::{compared, with_versions, HOW};
use super::contents::is_id;
use super::conversions;
use super::flags;
use super::grafts;
use super::index::{is_left_out, FolderTree};
use super::large::{mode_in, version_of, LargeEntry, Versions, WantedContents, IN_TREE};
use super::program::GitError;
use super::repository::Repository;
use super::scan::StatusScope;
use crate::host::effects::Checkpoint;
use crate::os::paths::from_bytes;
use crate::os::paths::ESCAPED;

const REFS: &str = "refs/ahp-sidecar/";

/// Maximum number of refs per session; the oldest are removed first.
const CHECKPOINTS_MAX: u64 = 1000;

/// Number of checkpoints between two removals of the oldest.
const THINNED_EVERY: u64 = 50;

/// Author, committer and dates of checkpoints.
const BY: [(&str, &str); 6] = [
    ("GIT_AUTHOR_NAME", "ahp-sidecar"),
    ("GIT_AUTHOR_EMAIL", "ahp-sidecar@localhost"),
    // Fixed dates: an unchanged folder gives the same commit.
    ("GIT_AUTHOR_DATE", "@0 +0000"),
    ("GIT_COMMITTER_NAME", "ahp-sidecar"),
    ("GIT_COMMITTER_EMAIL", "ahp-sidecar@localhost"),
    ("GIT_COMMITTER_DATE", "@0 +0000"),
];

/// Makes a checkpoint of the folder. Unchanged files reuse contents of the `last` checkpoint.
pub fn checkpoint(
    repository: &Repository,
    (namespace, number): (&str, u64),
    last: Option<&Checkpoint>,
) -> Result<Checkpoint, GitError> {
    let kept = checkpoint_folder(repository, (namespace, number), last)?;
    // This also runs for an unchanged folder: each turn has two numbers, and `number` may be a
    // multiple of the interval only in checkpoints without changes.
    if number > CHECKPOINTS_MAX && number % THINNED_EVERY == 0 {
        if let Err(error) = remove_oldest(repository, namespace) {
            tracing::warn!(%error, "the oldest checkpoints of a session cannot be removed");
        }
    }
    Ok(kept)
}

fn checkpoint_folder(
    repository: &Repository,
    (namespace, number): (&str, u64),
    last: Option<&Checkpoint>,
) -> Result<Checkpoint, GitError> {
    let before = match last.filter(|last| last.left_out > 0) {
        // If the versions cannot be read, the contents are stored again.
        Some(last) => versions_of(repository, last).unwrap_or_default(),
        None => Versions::new(),
    };
    let known = match last {
        Some(last) => stored_in(repository, last, &before)?,
        None => BTreeMap::new(),
    };
    let stored_before = last.map_or(0, |last| last.large_bytes);
    let room = repository.limits.session.saturating_sub(stored_before);
    let wanted = WantedContents::All { known: &known, room };
    let hidden = flags::hidden(repository)?;
    let FolderTree { tree, mut versions, stored, .. } =
        grafts::folder_tree(repository, wanted, StatusScope::Whole(&hidden))?;
    // An unchanged file stays listed, even if git tracks or ignores it now.
    for (path, version) in before {
        let version = version.strip_prefix(IN_TREE).unwrap_or(&version);
        if version_of(&repository.root.join(from_bytes(&path))).as_deref() == Some(version) {
            versions.entry(path).or_insert_with(|| format!("{IN_TREE}{version}"));
        }
    }
    if let Some(last) = last.filter(|last| last.tree == tree && last.left_out == 0 && versions.is_empty()) {
        return Ok(last.clone());
    }
    let commit = if versions.is_empty() {
        tree.clone()
    } else {
        let message = repository.input(message_of(&versions).as_bytes())?;
        let mut run = repository.run(["commit-tree", "--no-gpg-sign", "-F", "-", &tree]).reads(message);
        for (name, value) in BY {
            run = run.env(name, value);
        }
        run.line()?
    };
    repository.run(["update-ref", "--no-deref", &ref_of(namespace, number), &commit]).output()?;
    let large_bytes = stored_before.saturating_add(stored);
    Ok(Checkpoint { commit, tree, left_out: versions.len(), large_bytes })
}

/// Returns the contents of large files that a checkpoint has stored, with their versions, by path.
fn stored_in(
    repository: &Repository,
    checkpoint: &Checkpoint,
    versions: &Versions,
) -> Result<BTreeMap<Vec<u8>, (String, LargeEntry)>, GitError> {
    // `cat-file` reads lines, so a file whose name has a line break is stored again.
    let stored = versions.iter().filter(|(path, _)| !path.contains(&b'\n') && !is_left_out(versions, path));
    let stored: Vec<(&Vec<u8>, &str)> =
        stored.filter_map(|(path, version)| Some((path, version.strip_prefix(IN_TREE)?))).collect();
    if stored.is_empty() {
        return Ok(BTreeMap::new());
    }
    let lines = stored.iter().flat_map(|(path, _)| [checkpoint.tree.as_bytes(), b":", path, b"\n"].concat());
    let output = repository.objects("--batch-check", &lines.collect::<Vec<u8>>())?;
    let output = String::from_utf8_lossy(&output);
    let found = output.lines().zip(stored).filter_map(|(line, (path, version))| {
        let (id, kind) = line.split_once(' ')?;
        let entry = (format!("{:o}", mode_in(version)), id.to_owned());
        kind.starts_with("blob ").then(|| (path.clone(), (version.to_owned(), entry)))
    });
    Ok(found.collect())
}

/// Returns the changes between two checkpoints.
pub fn compare(
    repository: &Repository,
    before: &Checkpoint,
    after: &Checkpoint,
) -> Result<Vec<FileDiff<GitContent>>, GitError> {
    if before == after {
        return Ok(Vec::new());
    }
    [before, after].into_iter().try_for_each(must_be_named)?;
    let run = repository.run(["diff-tree"]).with(HOW).with([&before.tree, &after.tree]);
    let changes = compared(repository, run)?;
    let versions = |checkpoint| versions_of(repository, checkpoint);
    Ok(with_versions(repository, changes, &versions(before)?, &versions(after)?))
}

/// Returns the versions in a checkpoint's message: of large files, and of files whose contents are
/// missing in it or in an earlier checkpoint.
fn versions_of(repository: &Repository, checkpoint: &Checkpoint) -> Result<Versions, GitError> {
    if checkpoint.left_out == 0 {
        return Ok(Versions::new());
    }
    must_be_named(checkpoint)?;
    let output = repository.run(["cat-file", "commit", &checkpoint.commit]).text()?;
    Ok(versions_in(&output))
}

/// Refuses ids that are no object ids: a session's record may have been written by another program.
fn must_be_named(checkpoint: &Checkpoint) -> Result<(), GitError> {
    match is_id(&checkpoint.commit) && is_id(&checkpoint.tree) {
        true => Ok(()),
        false => Err(GitError::Beyond("this state was not checkpointed".to_owned())),
    }
}

/// Retains, under the name `namespace`, those of these checkpoints and contents that still exist.
/// Checkpoints are numbered in their order.
pub fn copy_checkpoints(
    repository: &Repository,
    namespace: &str,
    (checkpoints, contents): (&[String], &[String]),
) -> Result<(), GitError> {
    let asked: String =
        checkpoints.iter().chain(contents).filter(|id| is_id(id)).map(|id| format!("{id}\n")).collect();
    let output = repository.objects("--batch-check", asked.as_bytes())?;
    let output = String::from_utf8_lossy(&output);
    // The second word is `missing` for an id that does not exist.
    let there: BTreeMap<&str, &str> = output.lines().filter_map(|line| line.split_once(' ')).collect();
    let is_there = |id: &str, kinds: &[&str]| {
        there.get(id).and_then(|info| info.split(' ').next()).is_some_and(|kind| kinds.contains(&kind))
    };
    let found = checkpoints.iter().zip(1..).filter(|(id, _)| is_there(id, &["tree", "commit"]));
    let commands: String =
        found.map(|(id, number)| format!("update {} {id}\n", ref_of(namespace, number))).collect();
    if !commands.is_empty() {
        let commands = repository.input(commands.as_bytes())?;
        repository.run(["update-ref", "--no-deref", "--stdin"]).reads(commands).output()?;
    }
    let blobs: Vec<String> = contents.iter().filter(|id| is_there(id, &["blob"])).cloned().collect();
    match blobs.is_empty() {
        true => Ok(()),
        false => conversions::keep_reachable(repository, (namespace, checkpoints.len() as u64 + 1), &blobs),
    }
}

/// Returns the ref that retains a checkpoint. Names sort by number.
pub fn ref_of(namespace: &str, number: u64) -> String {
    format!("{REFS}{namespace}/{number:010}")
}

/// Removes all refs of a session.
pub fn remove_all(repository: &Repository, namespace: &str) -> Result<(), GitError> {
    let names = names_of(repository, namespace)?;
    remove(repository, &names)
}

/// Removes the oldest refs beyond the limit, except the first.
fn remove_oldest(repository: &Repository, namespace: &str) -> Result<(), GitError> {
    let names = names_of(repository, namespace)?;
    let room = usize::try_from(CHECKPOINTS_MAX).unwrap_or(usize::MAX);
    match names.len().checked_sub(room) {
        Some(count @ 1..) => remove(repository, &names[1..=count]),
        _ => Ok(()),
    }
}

fn names_of(repository: &Repository, namespace: &str) -> Result<Vec<String>, GitError> {
    let below = format!("{REFS}{namespace}/");
    let output = repository.run(["for-each-ref", "--format=%(refname)", &below]).text()?;
    Ok(output.lines().map(str::to_owned).collect())
}

fn remove(repository: &Repository, names: &[String]) -> Result<(), GitError> {
    if names.is_empty() {
        return Ok(());
    }
    let commands: String = names.iter().map(|name| format!("delete {name}\n")).collect();
    let commands = repository.input(commands.as_bytes())?;
    repository.run(["update-ref", "--no-deref", "--stdin"]).reads(commands).output().map(drop)
}

const HEADING: &str = "What was in a folder when a turn began or ended.";

fn message_of(versions: &Versions) -> String {
    let lines =
        versions.iter().map(|(path, version)| format!("{version} {}\n", percent_encode(path, ESCAPED)));
    format!("{HEADING}\n\n{}", lines.collect::<String>())
}

fn versions_in(commit: &str) -> Versions {
    let Some((_, message)) = commit.split_once(HEADING) else { return Versions::new() };
    let entries = message.lines().filter_map(|line| {
        let (version, path) = line.rsplit_once(' ')?;
        Some((percent_decode_str(path).collect(), version.to_owned()))
    });
    entries.collect()
}
