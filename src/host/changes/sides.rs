//! Changed files with both sides, as clients see and revert them.
//!
//! Owns: where the content of a side is stored, and which edit a revert is.
//! Never: detects a change, or reads a file.

use ahp_types::state::{ChangesetFile, ContentRef, FileEdit, FileEditDiffStats, FileEditSide};
use serde::{Deserialize, Serialize};

use crate::host::changes::checkpointed::CheckpointedFolder;
use crate::host::effects::{GitContent, GitRevert};
use crate::state::edits::{CallEdit, EditContent, FileDiff, LineCounts};
use crate::wire::uris::content_uri;

/// Blob and mode of a side whose content is unknown.
const UNKNOWN: &str = "unknown";
const UNKNOWN_MODE: u32 = 0o100_644;

/// File that a client has reverted, which is an edit, too. Saved with the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevertedFile {
    /// Scope of the changeset in which the file was reverted.
    pub(in crate::host) scope: String,
    /// Edit from the content before the revert to the content after it. Files that were reverted
    /// together have the same time.
    pub(in crate::host) edit: CallEdit,
    pub(super) before_in: Option<ContentPlace>,
    pub(super) after_in: Option<ContentPlace>,
    /// Request to revert the file, if git stores its contents.
    #[serde(rename = "kept", default, skip_serializing_if = "Option::is_none")]
    pub(in crate::host) git: Option<GitRevert>,
    /// Permissions of the file, if the revert removed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::host) mode: Option<u32>,
    /// Set if it is not known whether the revert was made, since the host or the work ended before.
    /// The file can be restored, and its change stays visible.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::host) is_unsure: bool,
    /// Set if the file had the wanted content already: the change is hidden; restoring writes
    /// nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::host) is_untouched: bool,
}

/// Turn that contains a content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::host) struct ContentPlace {
    pub(super) chat: String,
    pub(super) turn: String,
}

impl RevertedFile {
    /// Returns the reverts of a changed file, without a time. A renamed file is two files.
    pub(in crate::host) fn all_of(changed: &FileDiff<SideContent>, scope: &str) -> Vec<Self> {
        let file = |file: &str, before: Option<&SideContent>, after: Option<&SideContent>| {
            let lines = changed.lines.unwrap_or_default();
            Self {
                scope: scope.to_owned(),
                edit: CallEdit {
                    diff: FileDiff {
                        file: file.to_owned(),
                        renamed_from: None,
                        before: after.map(SideContent::content),
                        after: before.map(SideContent::content),
                        lines: Some(LineCounts { added: lines.removed, removed: lines.added }),
                    },
                    at: 0,
                },
                before_in: after.and_then(SideContent::place),
                after_in: before.and_then(SideContent::place),
                git: changed.is_in_git().then(|| GitRevert {
                    file: file.to_owned(),
                    now: after.and_then(SideContent::git_content),
                    wanted: before.and_then(SideContent::git_content),
                    bytes_now: None,
                    bytes_wanted: None,
                    mode_wanted: None,
                }),
                mode: None,
                is_unsure: false,
                is_untouched: false,
            }
        };
        let (before, after) = (changed.before.as_ref(), changed.after.as_ref());
        match &changed.renamed_from {
            Some(from) => vec![file(&changed.file, None, after), file(from, before, None)],
            None => vec![file(&changed.file, before, after)],
        }
    }

    /// Returns the permissions of the file; `None` if unknown, or if the revert did not remove it.
    pub fn mode(&self) -> Option<u32> {
        self.mode
    }

    /// Returns whether the reverted change belongs to this chat.
    pub(in crate::host) fn is_of(&self, chat: &str) -> bool {
        [&self.before_in, &self.after_in].into_iter().flatten().any(|place| place.chat == chat)
    }

    /// Returns the file of the reverted change, and the ids of its contents before and after.
    pub(in crate::host) fn change(&self) -> (&str, Option<&str>, Option<&str>) {
        let [before, after] = [&self.edit.diff.before, &self.edit.diff.after]
            .map(|side| side.as_ref().map(|content| content.id.as_str()));
        (&self.edit.diff.file, before, after)
    }
}

/// Place of the content of a side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::host) enum SideContent {
    /// Reported by a tool call of this turn.
    Reported { place: ContentPlace, content: EditContent },
    /// Stored by git, or the file itself; clients fetch it by this URI.
    InGit { uri: String, content: GitContent },
}

impl SideContent {
    /// Returns an id for the content, which equal contents share.
    fn content(&self) -> EditContent {
        match self {
            Self::Reported { content, .. } => content.clone(),
            Self::InGit { content, .. } => {
                EditContent { id: format!("{:o}-{}", content.mode, content.blob), bytes: 0 }
            }
        }
    }

    fn place(&self) -> Option<ContentPlace> {
        match self {
            Self::Reported { place, .. } => Some(place.clone()),
            Self::InGit { .. } => None,
        }
    }

    fn git_content(&self) -> Option<GitContent> {
        match self {
            Self::Reported { .. } => None,
            Self::InGit { content, .. } => Some(content.clone()),
        }
    }

    fn shown(&self, name: &str, file: &str) -> FileEditSide {
        let content = match self {
            Self::Reported { place, content } => ContentRef {
                uri: content_uri(&place.chat, &content.id, name, file),
                size_hint: Some(content.bytes),
                content_type: Some("text/plain".to_owned()),
                nonce: None,
            },
            Self::InGit { uri, content } => {
                // A nonce identifies the content, because the file can change under the same URI.
                let nonce = (uri == file).then(|| content.blob.clone());
                ContentRef { uri: uri.clone(), size_hint: None, content_type: None, nonce }
            }
        };
        FileEditSide { uri: file.to_owned(), content }
    }
}

impl FileDiff<SideContent> {
    /// Converts a change whose sides git has; with `is_now`, the later side is the current file.
    pub(in crate::host) fn of(
        change: &FileDiff<GitContent>,
        session: &str,
        folder: &CheckpointedFolder,
        is_now: bool,
    ) -> Self {
        let side = |name: &str, file: &str, content: &GitContent| {
            // Reading a link returns its target's content, so the link itself needs a URI of the
            // host.
            let uri = match is_now && name == "after" && !content.is_link() {
                true => file.to_owned(),
                false => folder.uri_of(session, content, name, file),
            };
            SideContent::InGit { uri, content: content.clone() }
        };
        let from = change.renamed_from.as_ref().unwrap_or(&change.file);
        Self {
            file: change.file.clone(),
            renamed_from: change.renamed_from.clone(),
            before: change.before.as_ref().map(|content| side("before", from, content)),
            after: change.after.as_ref().map(|content| side("after", &change.file, content)),
            lines: change.lines,
        }
    }

    /// Describes a file that a call has changed, if neither the call nor git has the earlier
    /// content.
    pub(super) fn unknown(
        file: &str,
        version: Option<&str>,
        session: &str,
        folder: &CheckpointedFolder,
    ) -> Self {
        let content = |blob: &str| GitContent { blob: blob.to_owned(), mode: UNKNOWN_MODE };
        let before = content(UNKNOWN);
        let uri = folder.uri_of(session, &before, "before", file);
        Self {
            file: file.to_owned(),
            renamed_from: None,
            before: Some(SideContent::InGit { uri, content: before }),
            after: version
                .map(|version| SideContent::InGit { uri: file.to_owned(), content: content(version) }),
            lines: None,
        }
    }

    /// Returns the version that a review mark refers to: it changes with either side.
    pub(in crate::host) fn version(&self) -> String {
        let id = |side: &Option<SideContent>| side.as_ref().map_or(String::new(), |side| side.content().id);
        format!("{}:{}", id(&self.before), id(&self.after))
    }

    /// Returns whether a client refers to the file by this URI.
    pub(in crate::host) fn is_called(&self, uri: &str) -> bool {
        self.file == uri || self.renamed_from.as_deref() == Some(uri)
    }

    /// Returns whether git has a side, so that reverting needs it.
    fn is_in_git(&self) -> bool {
        [&self.before, &self.after]
            .into_iter()
            .flatten()
            .any(|side| matches!(side, SideContent::InGit { .. }))
    }

    /// Returns the file as clients see it.
    pub(in crate::host) fn shown(&self, is_reviewed: bool) -> ChangesetFile {
        let from = self.renamed_from.as_ref().unwrap_or(&self.file);
        ChangesetFile {
            id: self.file.clone(),
            edit: FileEdit {
                before: self.before.as_ref().map(|side| side.shown("before", from)),
                after: self.after.as_ref().map(|side| side.shown("after", &self.file)),
                diff: self.lines.map(|lines| FileEditDiffStats {
                    added: Some(lines.added),
                    removed: Some(lines.removed),
                }),
            },
            reviewed: is_reviewed.then_some(true),
            meta: None,
        }
    }
}
