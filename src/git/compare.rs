//! Differences between two trees.
//!
//! Owns: running `git diff-tree`, parsing its output, and adding the versions of files whose
//! contents are not checkpointed.
//! Never: reads a content.

use crate::state::edits::FileDiff;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::large::{mode_in, version_of, Versions, IN_TREE};
use super::program::{GitError, GitRun};
use super::repository::Repository;
use crate::host::effects::GitContent;
use crate::os::paths::from_bytes;
use crate::state::edits::LineCounts;

/// Mode of a submodule, which is no file.
const SUBMODULE: u32 = 0o160_000;

/// Size above which git does not count lines of a content.
const LINES_BYTES_MAX: &str = "10m";

/// Arguments with which git compares trees.
pub const HOW: [&str; 11] = [
    "-r",
    "-M",
    "--raw",
    "--numstat",
    "-z",
    "--no-abbrev",
    "--no-ext-diff",
    "--no-textconv",
    "--ignore-submodules=all",
    "--no-color",
    "--no-relative",
];

/// Runs a comparison with [`HOW`] and parses its output.
pub fn compared(repository: &Repository, run: GitRun<'_>) -> Result<Vec<FileDiff<GitContent>>, GitError> {
    let output = run.set(&[("core.bigFileThreshold".into(), LINES_BYTES_MAX.into())]).output()?;
    Ok(read(repository, &output))
}

/// Parses the output of `git diff-tree` with [`HOW`].
fn read(repository: &Repository, output: &[u8]) -> Vec<FileDiff<GitContent>> {
    let mut words = output.split(|byte| *byte == 0).peekable();
    let mut changes: Vec<FileDiff<GitContent>> = Vec::new();
    let mut counts: BTreeMap<String, Option<LineCounts>> = BTreeMap::new();
    while let Some(word) = words.next() {
        if let [b':', modes @ ..] = word {
            let modes = String::from_utf8_lossy(modes).into_owned();
            let facts: Vec<&str> = modes.split(' ').collect();
            let [old_mode, new_mode, old, new, how] = facts[..] else { continue };
            let Some(path) = words.next() else { break };
            let is_renamed = how.starts_with(['R', 'C']);
            let (from, to) = match is_renamed.then(|| words.next()) {
                Some(Some(to)) => (Some(path), to),
                Some(None) => break,
                None => (None, path),
            };
            let side = |mode: &str, blob: &str| {
                let mode = u32::from_str_radix(mode, 8).ok()?;
                (mode != 0 && mode != SUBMODULE).then(|| GitContent { blob: blob.to_owned(), mode })
            };
            let (before, after) = (side(old_mode, old), side(new_mode, new));
            if before.is_some() || after.is_some() {
                changes.push(FileDiff {
                    file: repository.uri_of(to),
                    renamed_from: from.map(|from| repository.uri_of(from)),
                    before,
                    after,
                    lines: None,
                });
            }
        } else if let Some((added, removed, path)) = numbers(word) {
            let path = match path {
                // Both names of a renamed file follow.
                [] => {
                    words.next();
                    words.next()
                }
                path => Some(path),
            };
            let lines = added.zip(removed).map(|(added, removed)| LineCounts { added, removed });
            counts.extend(path.map(|path| (repository.uri_of(path), lines)));
        }
    }
    for change in &mut changes {
        change.lines = counts.get(&change.file).copied().flatten();
    }
    changes
}

/// Parses the numbers of added and removed lines (`None` for a binary file). Returns them with the
/// rest of the word.
fn numbers(word: &[u8]) -> Option<(Option<i64>, Option<i64>, &[u8])> {
    let mut parts = word.splitn(3, |byte| *byte == b'\t');
    let mut number = || Some(std::str::from_utf8(parts.next()?).ok()?.parse().ok());
    let (added, removed) = (number()?, number()?);
    Some((added, removed, parts.next()?))
}

/// Adds the versions of files whose contents are not checkpointed, on either side.
pub fn with_versions(
    repository: &Repository,
    changes: Vec<FileDiff<GitContent>>,
    before: &Versions,
    after: &Versions,
) -> Vec<FileDiff<GitContent>> {
    let paths: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    if paths.is_empty() {
        return changes;
    }
    let uris: BTreeSet<String> = paths.iter().map(|path| repository.uri_of(path)).collect();
    let mut changes: Vec<Option<FileDiff<GitContent>>> =
        with_names_apart(changes, &uris).into_iter().map(Some).collect();
    let positions = changes.iter().flatten().map(|change| change.file.clone()).zip(0..);
    let positions: HashMap<String, usize> = positions.collect();
    for path in paths {
        let (before, after) = (before.get(path).map(String::as_str), after.get(path).map(String::as_str));
        let uri = repository.uri_of(path);
        let bare = |version: &str| version.strip_prefix(IN_TREE).unwrap_or(version).to_owned();
        let change = positions.get(&uri).and_then(|position| changes.get_mut(*position));
        if before.map(bare) == after.map(bare) {
            change.map(Option::take);
            continue;
        }
        let unknown = |version: Option<&str>| {
            let version = version.filter(|version| !version.starts_with(IN_TREE))?;
            Some(GitContent { blob: version.to_owned(), mode: mode_in(version) })
        };
        let sides = (unknown(before), unknown(after));
        if let Some(change) = change.and_then(Option::as_mut) {
            change.before = change.before.take().or(sides.0);
            change.after = change.after.take().or(sides.1);
            if [&change.before, &change.after].into_iter().flatten().any(|side| !side.is_stored()) {
                change.lines = None;
            }
            continue;
        }
        let (old, new) = match sides {
            // Both trees have the same content under this name.
            (None, None) => continue,
            // The file was removed, or git no longer lists it.
            (Some(old), None) if after.is_none() => {
                let now = version_of(&repository.root.join(from_bytes(path)));
                (Some(old), unknown(now.as_deref()))
            }
            sides => sides,
        };
        if old != new {
            let (file, renamed_from, lines) = (uri, None, None);
            changes.push(Some(FileDiff { file, renamed_from, before: old, after: new, lines }));
        }
    }
    changes.into_iter().flatten().collect()
}

/// Splits renames that involve one of these files: its versions tell whether it is unchanged.
fn with_names_apart(
    changes: Vec<FileDiff<GitContent>>,
    uris: &BTreeSet<String>,
) -> Vec<FileDiff<GitContent>> {
    let mut apart = Vec::new();
    for change in changes {
        match &change.renamed_from {
            Some(from) if uris.contains(from) || uris.contains(&change.file) => {
                let (file, renamed_from) = (from.clone(), None);
                apart.push(FileDiff { file, renamed_from, before: change.before, after: None, lines: None });
                apart.push(FileDiff {
                    file: change.file,
                    renamed_from: None,
                    before: None,
                    after: change.after,
                    lines: None,
                });
            }
            _ => apart.push(change),
        }
    }
    apart
}
