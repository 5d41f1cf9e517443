//! Changed files with both sides, as clients are shown them and as they are reverted.
//!
//! Owns: where the content of a side is found, and which edit a revert is.
//! Never: looks for a change, or at a file.

use ahp_types::state::{ChangesetFile, ContentRef, FileEdit, FileEditDiffStats, FileEditSide};
use serde::{Deserialize, Serialize};

use crate::host::changes::checkpointed::CheckpointedFolder;
use crate::host::effects::{GitContent, GitRevert};
use crate::state::edits::{CallEdit, EditContent, FileDiff, LineCounts};
use crate::wire::uris::content_uri;

/// Version of a file of which nobody knows what was in it, and the mode that it is shown with.
const UNKNOWN: &str = "unknown";
const UNKNOWN_MODE: u32 = 0o100_644;

/// A file that a client has had taken back to what it was before, which is an edit, too. Kept with
/// the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevertedFile {
    /// Scope of the changeset in which the file was reverted.
    pub(in crate::host) scope: String,
    /// From what was there to what is there now. All that were taken back at once have one time.
    pub(in crate::host) edit: CallEdit,
    pub(super) before_in: Option<ContentPlace>,
    pub(super) after_in: Option<ContentPlace>,
    /// Git keeps what it was: what must be in it for it to be taken back, and what is in it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::host) kept: Option<GitRevert>,
    /// The permissions of the file, where it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::host) mode: Option<u32>,
    /// The host has ended before it was known whether that was done: it can be taken back, and
    /// hides nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::host) is_unsure: bool,
    /// Set when the file had the wanted content already: the change is hidden, and restoring it
    /// touches nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(in crate::host) is_untouched: bool,
}

/// The turn in which a content is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::host) struct ContentPlace {
    /// The URI of the chat.
    pub(super) chat: String,
    pub(super) turn: String,
}

impl RevertedFile {
    /// Returns the reverts of a changed file, with no time yet. A renamed one is two files.
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
                kept: changed.is_stored().then(|| GitRevert {
                    file: file.to_owned(),
                    now: after.and_then(SideContent::kept),
                    wanted: before.and_then(SideContent::kept),
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

    /// The permissions of the file, where it was removed and they are known.
    pub fn mode(&self) -> Option<u32> {
        self.mode
    }

    /// Returns whether the change that was reverted is of this chat.
    pub(in crate::host) fn is_of(&self, chat: &str) -> bool {
        [&self.before_in, &self.after_in].into_iter().flatten().any(|place| place.chat == chat)
    }

    /// Returns the change that was reverted: the file, and its content before and after.
    pub(in crate::host) fn change(&self) -> (&str, Option<&str>, Option<&str>) {
        let [before, after] = [&self.edit.diff.before, &self.edit.diff.after]
            .map(|side| side.as_ref().map(|content| content.id.as_str()));
        (&self.edit.diff.file, before, after)
    }
}

/// A side of a changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::host) enum SideContent {
    /// In a call of this turn, which has reported it.
    Reported { place: ContentPlace, content: EditContent },
    /// In git; clients fetch it by this URI.
    Kept { uri: String, content: GitContent },
}

impl SideContent {
    /// Returns the id of a side's content, which equal contents share.
    fn content(&self) -> EditContent {
        match self {
            Self::Reported { content, .. } => content.clone(),
            Self::Kept { content, .. } => {
                EditContent { id: format!("{:o}-{}", content.mode, content.blob), bytes: 0 }
            }
        }
    }

    fn place(&self) -> Option<ContentPlace> {
        match self {
            Self::Reported { place, .. } => Some(place.clone()),
            Self::Kept { .. } => None,
        }
    }

    fn kept(&self) -> Option<GitContent> {
        match self {
            Self::Reported { .. } => None,
            Self::Kept { content, .. } => Some(content.clone()),
        }
    }

    /// As clients are shown it, of the file of this URI.
    fn shown(&self, name: &str, file: &str) -> FileEditSide {
        let content = match self {
            Self::Reported { place, content } => {
                let path = file.strip_prefix("file://").unwrap_or("/");
                ContentRef {
                    uri: content_uri(&place.chat, &content.id, name, path),
                    size_hint: Some(content.bytes),
                    content_type: Some("text/plain".to_owned()),
                    nonce: None,
                }
            }
            Self::Kept { uri, content } => {
                // What is under the same name may be another content.
                let nonce = (uri == file).then(|| content.blob.clone());
                ContentRef { uri: uri.clone(), size_hint: None, content_type: None, nonce }
            }
        };
        FileEditSide { uri: file.to_owned(), content }
    }
}

impl FileDiff<SideContent> {
    /// One of which git knows both sides. What is behind may be what is in the folder now.
    pub(in crate::host) fn of(
        change: &FileDiff<GitContent>,
        session: &str,
        folder: &CheckpointedFolder,
        is_now: bool,
    ) -> Self {
        let side = |name: &str, file: &str, content: &GitContent| {
            let path = file.strip_prefix("file://").unwrap_or("/");
            // Reading a link leads to another file, so that what the link says is a content of
            // ours.
            let uri = match is_now && name == "after" && !content.is_link() {
                true => file.to_owned(),
                false => folder.uri_of(session, content, name, path),
            };
            SideContent::Kept { uri, content: content.clone() }
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

    /// One that a call has changed without saying what was in it before, and of which git does not
    /// know it.
    pub(super) fn unknown(
        file: &str,
        version: Option<&str>,
        session: &str,
        folder: &CheckpointedFolder,
    ) -> Self {
        let content = |blob: &str| GitContent { blob: blob.to_owned(), mode: UNKNOWN_MODE };
        let before = content(UNKNOWN);
        let path = file.strip_prefix("file://").unwrap_or("/");
        let uri = folder.uri_of(session, &before, "before", path);
        Self {
            file: file.to_owned(),
            renamed_from: None,
            before: Some(SideContent::Kept { uri, content: before }),
            after: version
                .map(|version| SideContent::Kept { uri: file.to_owned(), content: content(version) }),
            lines: None,
        }
    }

    /// Returns the version by which a review is remembered: it changes when either side does.
    pub(in crate::host) fn version(&self) -> String {
        let id = |side: &Option<SideContent>| side.as_ref().map_or(String::new(), |side| side.content().id);
        format!("{}:{}", id(&self.before), id(&self.after))
    }

    /// Returns whether a client names the file by this URI.
    pub(in crate::host) fn is_called(&self, uri: &str) -> bool {
        self.file == uri || self.renamed_from.as_deref() == Some(uri)
    }

    /// Returns whether git has its sides.
    fn is_stored(&self) -> bool {
        [&self.before, &self.after].into_iter().flatten().any(|side| matches!(side, SideContent::Kept { .. }))
    }

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
