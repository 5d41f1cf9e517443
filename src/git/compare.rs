//! What differs between two trees.
//!
//! Owns: asking git, reading what it says, and putting what is known of files whose contents are not kept beside it.
//! Never: looks into a content.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::index::LeftOut;
use super::program::{GitError, GitRun, Until};
use super::repository::Repository;
use crate::host::effects::{GitContent, KeptChange};
use crate::state::edits::LineCounts;

/// The mode of a repository in a repository, which is no file.
const SUBMODULE: u32 = 0o160_000;

/// A mode of a file, for one of which nothing but its name is known.
const FILE: u32 = 0o100_644;

/// The arguments with which git compares trees, whatever is configured.
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

/// What a run of git that compares with [`HOW`] says.
///
/// # Errors
/// When git fails.
pub fn compared(repository: &Repository, run: GitRun<'_>, until: Until) -> Result<Vec<KeptChange>, GitError> {
    let said = run.output(until)?;
    Ok(read(repository, &said))
}

/// One word of what is parted by NUL.
fn read(repository: &Repository, said: &[u8]) -> Vec<KeptChange> {
    let mut words = said.split(|byte| *byte == 0).peekable();
    let mut changes: Vec<KeptChange> = Vec::new();
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
                changes.push(KeptChange {
                    file: repository.uri_of(to),
                    renamed_from: from.map(|from| repository.uri_of(from)),
                    before,
                    after,
                    lines: None,
                });
            }
        } else if let Some((added, removed, path)) = numbers(word) {
            let path = match path {
                // Of one that is renamed both names follow.
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

/// How many lines were added and removed, none of a file that has no lines; and what is behind that.
fn numbers(word: &[u8]) -> Option<(Option<i64>, Option<i64>, &[u8])> {
    let mut parts = word.splitn(3, |byte| *byte == b'\t');
    let mut number = || Some(std::str::from_utf8(parts.next()?).ok()?.parse().ok());
    let (added, removed) = (number()?, number()?);
    Some((added, removed, parts.next()?))
}

/// Puts in what is known of files whose contents are not kept, on either side.
pub fn with_left_out(
    repository: &Repository,
    mut changes: Vec<KeptChange>,
    before: &LeftOut,
    after: &LeftOut,
) -> Vec<KeptChange> {
    let paths: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    for path in paths {
        let is_same = before.get(path) == after.get(path);
        let uri = repository.uri_of(path);
        if is_same {
            // In one of the two its content is kept.
            changes.retain(|change| change.file != uri || change.renamed_from.is_some());
            continue;
        }
        let found = changes.iter_mut().find(|change| change.file == uri);
        let unknown = |is_there: bool| is_there.then(|| GitContent { blob: String::new(), mode: FILE });
        match found {
            Some(change) => {
                change.before = change.before.take().or(unknown(before.contains_key(path)));
                change.after = change.after.take().or(unknown(after.contains_key(path)));
                change.lines = None;
            }
            None => {
                // What git has under this name is the same in both.
                let is_there = |side: &LeftOut| {
                    side.contains_key(path) || repository.root.join(Path::new(&lossless(path))).exists()
                };
                changes.push(KeptChange {
                    file: uri,
                    renamed_from: None,
                    before: unknown(before.contains_key(path)),
                    after: unknown(is_there(after)),
                    lines: None,
                });
            }
        }
    }
    changes
}

fn lossless(path: &[u8]) -> std::ffi::OsString {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(path.to_vec())
}
