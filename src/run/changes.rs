//! Changes of files that the turns of a run have made.
//!
//! Owns: joining the changesets of several turns, and the paths of files in a patch.
//! Never: talks to the host, or reads a changed file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use ahp_types::state::{ChangesetFile, FileEditDiffStats, FileEditSide};

use super::summary::{ChangedFileSummary, FileChangeKind};
use crate::files::uris::path_of;
use crate::wire::uris::parse_content_uri;

/// Sides of a file before and after the run.
#[derive(Debug, Default)]
struct JoinedChange {
    before: Option<FileEditSide>,
    after: Option<FileEditSide>,
    /// Numbers of lines, if one turn alone has changed the file.
    lines: Option<FileEditDiffStats>,
}

/// Changes of files of several turns, joined.
#[derive(Debug, Default)]
pub struct RunChanges(BTreeMap<String, JoinedChange>);

/// A file that the run has changed.
#[derive(Debug)]
pub struct RunChange {
    /// Description for the summary.
    pub summary: ChangedFileSummary,
    /// Bytes of the path in the patch.
    pub path: Vec<u8>,
    /// URI of the content before; `None` if the file did not exist.
    pub before: Option<String>,
    /// URI of the content after; `None` if the file does not exist any more.
    pub after: Option<String>,
    /// Set if the path is below the root of the patch.
    pub is_inside: bool,
}

/// Mode and object id in the URI of a content that git has; `None` of a member that is unknown.
pub fn named_in(content: &str) -> (Option<u32>, Option<String>) {
    let Some((_, id)) = parse_content_uri(content) else { return (None, None) };
    let mut parts = id.split('-');
    let (Some(mode), Some(blob), Some(_)) = (parts.next(), parts.next(), parts.next()) else {
        return (None, None);
    };
    let is_id = blob.len() >= 40 && blob.bytes().all(|byte| byte.is_ascii_hexdigit());
    (u32::from_str_radix(mode, 8).ok().filter(|mode| *mode != 0), is_id.then(|| blob.to_owned()))
}

impl RunChanges {
    /// Adds the changes of the next turn. A renamed file counts as removed and added.
    pub fn add_turn(&mut self, files: &[ChangesetFile]) {
        for file in files {
            let edit = &file.edit;
            match (&edit.before, &edit.after) {
                (Some(before), Some(after)) if before.uri != after.uri => {
                    self.add(&before.uri, Some(before), None, None);
                    self.add(&after.uri, None, Some(after), None);
                }
                (before, after) => {
                    let uri = before.as_ref().or(after.as_ref()).map_or(file.id.as_str(), |side| &side.uri);
                    self.add(uri, before.as_ref(), after.as_ref(), edit.diff.as_ref());
                }
            }
        }
    }

    fn add(
        &mut self,
        uri: &str,
        before: Option<&FileEditSide>,
        after: Option<&FileEditSide>,
        lines: Option<&FileEditDiffStats>,
    ) {
        match self.0.get_mut(uri) {
            Some(known) => {
                known.after = after.cloned();
                known.lines = None;
            }
            None => {
                let (before, after, lines) = (before.cloned(), after.cloned(), lines.cloned());
                self.0.insert(uri.to_owned(), JoinedChange { before, after, lines });
            }
        }
    }

    /// Returns the changed files, with paths relative to the root if they are below it.
    pub fn files(&self, root: &Path) -> Vec<RunChange> {
        self.0.iter().filter_map(|(uri, change)| change.described(uri, root)).collect()
    }
}

impl JoinedChange {
    fn described(&self, uri: &str, root: &Path) -> Option<RunChange> {
        let content = |side: &Option<FileEditSide>| side.as_ref().map(|side| side.content.uri.clone());
        let (before, after) = (content(&self.before), content(&self.after));
        let change = match (&before, &after) {
            (None, None) => return None,
            (None, Some(_)) => FileChangeKind::Added,
            (Some(_), None) => FileChangeKind::Deleted,
            // Contents of git: the file has its first content again.
            (Some(old), Some(new)) => match (named_in(old), named_in(new)) {
                (old, new) if old.1.is_some() && old == new => return None,
                _ => FileChangeKind::Modified,
            },
        };
        let whole = path_of(uri).unwrap_or_else(|_| PathBuf::from(uri));
        let inside = whole.strip_prefix(root).ok();
        let path = in_patch(inside.unwrap_or(&whole));
        let lines = self.lines.as_ref();
        let summary = ChangedFileSummary {
            path: inside.map_or(whole.to_string_lossy(), |_| String::from_utf8_lossy(&path)).into_owned(),
            change,
            added: lines.and_then(|lines| lines.added),
            removed: lines.and_then(|lines| lines.removed),
            not_in_patch: None,
        };
        let is_inside = inside.is_some();
        Some(RunChange { summary, path, before, after, is_inside })
    }
}

/// Returns the bytes of a path with slashes between its names.
fn in_patch(path: &Path) -> Vec<u8> {
    let parts: Vec<_> = path.iter().map(OsStr::as_encoded_bytes).collect();
    parts.join(&b'/')
}

/// Returns the root of a patch: the repository that contains the folder, else the folder.
pub fn root_of(directory: &Path) -> &Path {
    directory.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(directory)
}
