//! File edits that tool calls of turns report: the content of a file before and after a call.
//!
//! Owns: extracting edits from results of calls, ids of contents, and numbers of added and removed
//! lines.
//! Never: reads a file, so changes by commands are not known here.

use std::collections::{BTreeSet, HashMap};

use ahp_types::common::JsonObject;
use ahp_types::state::{ContentRef, FileEditSide, ResponsePart, ToolCallState, ToolResultContent, Turn};
use base64::prelude::{Engine, BASE64_STANDARD};
use memchr::memmem;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::line_diff;
use crate::wire::tool_calls::{KIND, LOCATIONS};
use crate::wire::uris::is_absolute_path;

/// Prefix of the data URI that holds a side of an edit in a state.
pub const INLINE: &str = "data:text/plain;charset=utf-8;base64,";

/// Returns a reference that has the text in its own URI, so that the text exists as long as the
/// turn.
pub fn inline(text: &str) -> ContentRef {
    ContentRef {
        uri: format!("{INLINE}{}", BASE64_STANDARD.encode(text)),
        size_hint: i64::try_from(text.len()).ok(),
        content_type: Some("text/plain".to_owned()),
        nonce: None,
    }
}

/// Returns the id of a content, which is unique in its chat.
pub fn id_of(inline: &str) -> String {
    Uuid::new_v5(&Uuid::NAMESPACE_URL, inline.as_bytes()).simple().to_string()
}

/// Returns whether JSON text may contain sides of edits.
pub fn may_hold_sides(text: &[u8]) -> bool {
    memmem::find(text, INLINE.as_bytes()).is_some()
}

/// A whole file, as a call reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditContent {
    /// Id in its chat: equal contents have equal ids.
    pub id: String,
    /// Size in bytes.
    pub bytes: i64,
}

/// Numbers of lines that an edit adds and removes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineCounts {
    /// Number of added lines.
    pub added: i64,
    /// Number of removed lines.
    pub removed: i64,
}

impl LineCounts {
    /// Compares two texts.
    pub fn between(before: &str, after: &str) -> Self {
        let (added, removed) = line_diff::count(before, after);
        Self { added: added.into(), removed: removed.into() }
    }
}

/// Change of a file, with its content on both sides; `C` refers to the content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDiff<C> {
    /// URI (`file:`) of the file; its former one if it was removed.
    pub file: String,
    /// Former URI, if the file was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed_from: Option<String>,
    /// Content before; `None` if the file did not exist.
    pub before: Option<C>,
    /// Content now; `None` if the file does not exist any more.
    pub after: Option<C>,
    /// Numbers of changed lines; `None` if the file has no lines.
    pub lines: Option<LineCounts>,
}

/// Edit of a file by a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallEdit {
    /// The change.
    #[serde(flatten)]
    pub diff: FileDiff<EditContent>,
    /// Time at which the call ended, in milliseconds since 1970; 0 if the call has no
    /// [`EDITED_AT`].
    pub at: i64,
}

/// Member of `_meta` with the time at which a call that has edited files ended. Times within a
/// session are distinct and in the order of the edits, so that edits of several chats can be merged
/// in order.
pub const EDITED_AT: &str = "editedAt";

/// Returns the end time of a call from its `_meta`, in milliseconds since 1970; 0 if it is missing.
pub fn edited_at(meta: Option<&JsonObject>) -> i64 {
    meta.and_then(|meta| meta.get(EDITED_AT)?.as_i64()).unwrap_or(0)
}

impl CallEdit {
    /// Returns the edit of a file; `None` unless both sides are inline and of one file.
    fn of(before: Option<&FileEditSide>, after: Option<&FileEditSide>, at: i64) -> Option<Self> {
        let file = &after.or(before)?.uri;
        let sides = [before, after].into_iter().flatten();
        // Only inline contents have an id and can be compared.
        if !sides.clone().all(|side| side.content.uri.starts_with(INLINE) && side.uri == *file) {
            return None;
        }
        let text =
            |side: Option<&FileEditSide>| side.map_or(Some(String::new()), |side| text_of(&side.content.uri));
        let (old, new) = (text(before)?, text(after)?);
        let content = |side: &FileEditSide, text: &str| EditContent {
            id: id_of(&side.content.uri),
            bytes: i64::try_from(text.len()).unwrap_or(i64::MAX),
        };
        let diff = FileDiff {
            file: file.clone(),
            renamed_from: None,
            before: before.map(|side| content(side, &old)),
            after: after.map(|side| content(side, &new)),
            lines: Some(LineCounts::between(&old, &new)),
        };
        Some(Self { diff, at })
    }

    /// Returns the edits among the results of a call that ended at `at` (milliseconds since 1970).
    pub fn all_in(content: &[ToolResultContent], at: i64) -> Vec<Self> {
        let edits = content.iter().filter_map(|content| match content {
            ToolResultContent::FileEdit(edit) => Self::of(edit.before.as_ref(), edit.after.as_ref(), at),
            _ => None,
        });
        edits.collect()
    }

    /// Returns the contents in the results of calls, by id. Decodes all of them.
    pub fn texts_in<'a>(calls: impl IntoIterator<Item = &'a ToolCallState>) -> HashMap<String, String> {
        let edits = calls.into_iter().filter_map(produced_by).flatten().filter_map(|content| match content {
            ToolResultContent::FileEdit(edit) => Some([&edit.before, &edit.after]),
            _ => None,
        });
        let sides = edits.flatten().flatten().map(|side| &side.content.uri);
        sides.filter_map(|inline| text_of(inline).map(|text| (id_of(inline), text))).collect()
    }

    /// Returns whether one of the sides is the content with this id.
    pub fn has(&self, id: &str) -> bool {
        [&self.diff.before, &self.diff.after].into_iter().flatten().any(|side| side.id == id)
    }
}

/// Returns the text of an inline content; `None` if the URI is not of that form.
pub fn text_of(inline: &str) -> Option<String> {
    String::from_utf8(BASE64_STANDARD.decode(inline.strip_prefix(INLINE)?).ok()?).ok()
}

/// Returns the edits of a call; none if it has not succeeded.
pub fn edits_of(call: &ToolCallState) -> Vec<CallEdit> {
    let meta = match call {
        ToolCallState::PendingResultConfirmation(call) => call.meta.as_ref(),
        ToolCallState::Completed(call) => call.meta.as_ref(),
        _ => None,
    };
    produced_by(call).map(|content| CallEdit::all_in(content, edited_at(meta))).unwrap_or_default()
}

/// Returns the results of a call; `None` if it has not succeeded.
pub fn produced_by(call: &ToolCallState) -> Option<&[ToolResultContent]> {
    let (success, content) = match call {
        ToolCallState::PendingResultConfirmation(call) => (call.success, &call.content),
        ToolCallState::Completed(call) => (call.success, &call.content),
        _ => return None,
    };
    content.as_deref().filter(|_| success)
}

const CHANGING: [&str; 3] = ["edit", "delete", "move"];

/// Returns the absolute paths of files that the completed calls of a turn (JSON text) report to
/// have changed, with or without their contents.
pub fn changed_paths(text: &[u8]) -> BTreeSet<String> {
    if memmem::find(text, LOCATIONS.as_bytes()).is_none() {
        return BTreeSet::new();
    }
    let Ok(turn) = serde_json::from_slice::<Turn>(text) else { return BTreeSet::new() };
    let done = turn.response_parts.into_iter().filter_map(|part| match part {
        ResponsePart::ToolCall(part) => match part.tool_call {
            ToolCallState::Completed(call) if call.success => call.meta,
            _ => None,
        },
        _ => None,
    });
    let changing = done.filter(|meta| {
        meta.get(KIND).and_then(|kind| kind.as_str()).is_some_and(|kind| CHANGING.contains(&kind))
    });
    let paths = changing.flat_map(|mut meta| {
        let locations = meta.remove(LOCATIONS);
        let locations = locations.as_ref().and_then(|it| it.as_array()).into_iter().flatten();
        let paths = locations.filter_map(|location| Some(location.get("path")?.as_str()?.to_owned()));
        paths.filter(|path| is_absolute_path(path)).collect::<Vec<_>>()
    });
    paths.collect()
}

/// File edits of a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEdits {
    /// Time at which the turn began; empty if it is not known.
    pub started_at: String,
    /// Edits in the order of the calls.
    pub edits: Vec<CallEdit>,
}

impl TurnEdits {
    /// Returns the edits of a completed turn with this JSON text.
    pub fn of(text: &[u8]) -> Self {
        if !may_hold_sides(text) {
            return Self::default();
        }
        // Invalid turns are logged where they are read.
        let Ok(turn) = serde_json::from_slice::<Turn>(text) else { return Self::default() };
        let calls = turn.response_parts.iter().filter_map(|part| match part {
            ResponsePart::ToolCall(part) => Some(&part.tool_call),
            _ => None,
        });
        let edits = calls.flat_map(edits_of).collect();
        Self { started_at: turn.started_at.unwrap_or_default(), edits }
    }

    /// Returns whether there are no edits.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_as_git_counts_them() {
        let counts = |before, after| {
            let counted = LineCounts::between(before, after);
            (counted.added, counted.removed)
        };
        assert_eq!(counts("", ""), (0, 0));
        assert_eq!(counts("", "a\nb\n"), (2, 0));
        assert_eq!(counts("a\nb\n", ""), (0, 2));
        assert_eq!(counts("a\nb\nc\n", "a\n2\nc\n"), (1, 1));
        // A line without an end is another one.
        assert_eq!(counts("a\nb", "a\nb\n"), (1, 1));
    }

    #[test]
    fn paths_are_those_of_calls_that_have_changed_files() {
        let call = |kind: &str, success: bool, path: &str| {
            let meta = serde_json::json!({ KIND: kind, LOCATIONS: [{ "path": path, "line": 3 }] });
            serde_json::json!({ "kind": "toolCall", "toolCall": {
                "status": "completed", "toolCallId": path, "toolName": "x", "displayName": "x",
                "invocationMessage": "x", "confirmed": "not-needed", "success": success,
                "pastTenseMessage": "x", "_meta": meta } })
        };
        let root = if is_absolute_path("/") { "/" } else { r"C:\" };
        let path = |name: &str| format!("{root}{name}");
        let parts = [
            call("edit", true, &path("a")),
            call("delete", true, &path("b")),
            call("read", true, &path("c")),
            call("edit", false, &path("d")),
            call("edit", true, "e"),
        ];
        let turn = serde_json::json!({ "id": "t", "message": { "text": "x", "origin": { "kind": "user" } },
            "responseParts": parts, "state": "complete" });
        let found = changed_paths(turn.to_string().as_bytes());
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [path("a"), path("b")]);
    }
}
