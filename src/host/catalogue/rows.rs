//! JSON text of the session and chat rows in the store.
//!
//! Owns: the format, which the host and the offline commands for sessions share; and reading the
//! actions that were stored after a chat's row.
//! Never: decides when a row is written.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use ahp_types::actions::{ActionEnvelope, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::notifications::SessionSummaryChangedParams;
use ahp_types::state::{
    Annotation, ChatState, ChatSummary, PendingMessage, SessionChatSummary, SessionState, SessionSummary,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::host::changes::checkpointed::CheckpointedFolder;
use crate::host::changes::sides::RevertedFile;
use crate::host::chats::attached::Attached;
use crate::host::customizations::SessionDecisions;
use crate::host::effects::{is_zero, RepositoryStatus, Rope};
use crate::host::model::{ReviewMarks, TitleBy};
use crate::state::steering::SteeringChange;
use crate::wire::action_lines::envelope_of;
use crate::wire::rpc::{to_json, to_sorted_json};
use crate::wire::selection::SelectionChange;

/// Content of a session's row.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionBody<'a> {
    /// State, with the rows of the session's chats.
    pub state: Cow<'a, SessionState>,
    pub(in crate::host) created_at: Cow<'a, str>,
    /// Head of the sequence when the session was created.
    pub born_at: u64,
    pub(in crate::host) config: Cow<'a, JsonObject>,
    pub(in crate::host) title_by: TitleBy,
    /// `serverSeq` at which the session was first shown; `None` if it was shown when created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::host) shown_at: Option<u64>,
    /// Reviewed files of its changesets.
    #[serde(default, skip_serializing_if = "ReviewMarks::is_empty")]
    pub(in crate::host) reviewed: Cow<'a, ReviewMarks>,
    #[serde(default, skip_serializing_if = "<[Annotation]>::is_empty")]
    pub(in crate::host) annotations: Cow<'a, [Annotation]>,
    /// Files that clients have reverted.
    #[serde(rename = "discarded", default, skip_serializing_if = "<[RevertedFile]>::is_empty")]
    pub(in crate::host) reverted: Cow<'a, [RevertedFile]>,
    /// Decisions of clients about plugins, for this session; `None` if there are no plugins, or the
    /// row is older than the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::host) decided: Option<Cow<'a, SessionDecisions>>,
    #[serde(rename = "kept", default, skip_serializing_if = "has_no_checkpoints")]
    pub(in crate::host) checkpoints: Cow<'a, CheckpointedFolder>,
    /// Last observed status of the session's repository.
    #[serde(rename = "seen", default, skip_serializing_if = "Option::is_none")]
    pub(in crate::host) repository: Option<Cow<'a, RepositoryStatus>>,
}

/// Content of a chat's row.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChatBody<'a> {
    /// State without completed turns, which are rows of their own.
    pub state: Cow<'a, ChatState>,
    /// Head of the sequence when the chat was created.
    pub born_at: u64,
    pub(in crate::host) title_by: TitleBy,
    /// Ids of turns that were removed from the chat; they must not be used again.
    pub(in crate::host) removed_turns: Cow<'a, BTreeSet<String>>,
    /// Ids of the pending messages that have started turns.
    pub consumed: BTreeSet<String>,
    /// Selection changes that wait until no turn runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::host) selecting: Vec<SelectionChange>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(in crate::host) following: BTreeSet<String>,
    /// Clients that have sent pending messages, by message id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(in crate::host) senders: BTreeMap<String, String>,
    /// Queued messages that stand for turns whose start had to wait.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(in crate::host) turns_queued: BTreeSet<String>,
    /// Steering messages with which the next turn begins.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(in crate::host) undelivered_steering: BTreeSet<String>,
    /// Steering messages that the agent of the running turn was sent and has not accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::host) sent_steering: Vec<PendingMessage>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(in crate::host) sent_listed: Vec<PendingMessage>,
    /// List of steering messages, which only clients of 1.1.0 have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) steering_messages: Vec<PendingMessage>,
    pub(in crate::host) progress: BTreeMap<String, u64>,
    /// Number of stored turns before the chat's own, which only its agent knows.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub context_turns: usize,
    #[serde(default, skip_serializing_if = "Attached::is_empty")]
    pub(in crate::host) attached: Cow<'a, Attached>,
    #[serde(default)]
    pub(in crate::host) handle: Option<String>,
    /// Set if the agent can resume the conversation by its handle.
    #[serde(default)]
    pub(in crate::host) resumes: bool,
}

impl SessionBody<'_> {
    /// Reads a row's text.
    ///
    /// # Errors
    /// Describes why the text is invalid, for people.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        read("session", json)
    }

    /// Marks a session that was imported or restored from the trash: the checkpoints under its
    /// former name may belong to another session, or be deleted.
    pub fn mark_imported(&mut self) {
        self.checkpoints.to_mut().mark_imported();
    }

    /// Returns the row's text; equal sessions give equal bytes.
    pub fn to_json(&self) -> Bytes {
        to_sorted_json(self).into()
    }

    /// Returns the row's text with the rows of its chats replaced by the given text.
    pub(in crate::host) fn to_json_with(&self, chats: Vec<u8>) -> Bytes {
        let mut body = serde_json::to_value(self).unwrap_or_default();
        let mut state = Rope::members_of(body["state"].take());
        state.insert("chats".to_owned(), chats.into());
        let mut members = Rope::members_of(body);
        members.insert("state".to_owned(), Rope::object(state));
        Rope::object(members).into_text().into()
    }
}

/// Latest written rows of a session's chats.
#[derive(Debug, Default)]
pub(in crate::host) struct WrittenRows {
    /// Rows in the session's state.
    pub(in crate::host) whole: WrittenList<ChatSummary>,
    /// Rows in the session's summary.
    pub(in crate::host) short: WrittenList<SessionChatSummary>,
}

/// List with each row's JSON text as last written, so that changing one row rewrites only it.
#[derive(Debug)]
pub(in crate::host) struct WrittenList<T>(Vec<(T, Vec<u8>)>);

impl<T> Default for WrittenList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone + PartialEq + Serialize> WrittenList<T> {
    /// Returns the JSON text of a list; only changed rows are serialized again.
    pub(in crate::host) fn list(&mut self, rows: &[T]) -> Vec<u8> {
        self.0.truncate(rows.len());
        for (at, row) in rows.iter().enumerate() {
            match self.0.get_mut(at) {
                Some((known, _)) if known == row => {}
                Some(known) => *known = (row.clone(), to_sorted_json(row)),
                None => self.0.push((row.clone(), to_sorted_json(row))),
            }
        }
        let mut list = Vec::with_capacity(2 + self.0.iter().map(|(_, text)| text.len() + 1).sum::<usize>());
        list.push(b'[');
        for (at, (_, text)) in self.0.iter().enumerate() {
            list.extend_from_slice(if at > 0 { b"," } else { b"" });
            list.extend_from_slice(text);
        }
        list.push(b']');
        list
    }
}

impl WrittenRows {
    pub(in crate::host) fn summary(&mut self, mut summary: SessionSummary) -> Bytes {
        let (chats, default_chat) = (summary.chats.take(), summary.default_chat.take());
        let mut text = to_json(&summary);
        // The two members come last in a summary.
        text.pop();
        if let Some(chats) = chats {
            text.extend_from_slice(br#","chats":"#);
            text.append(&mut self.short.list(&chats));
        }
        if let Some(default_chat) = default_chat {
            text.extend_from_slice(br#","defaultChat":"#);
            text.append(&mut to_json(&default_chat));
        }
        text.push(b'}');
        text.into()
    }

    /// Returns the params of a `root/sessionSummaryChanged`, as JSON text.
    pub(in crate::host) fn summary_changes(&mut self, mut params: SessionSummaryChangedParams) -> Bytes {
        let Some(chats) = params.changes.chats.take() else { return to_sorted_json(&params).into() };
        let mut params = serde_json::to_value(&params).unwrap_or_default();
        let mut changes = Rope::members_of(params["changes"].take());
        changes.insert("chats".to_owned(), self.short.list(&chats).into());
        let mut members = Rope::members_of(params);
        members.insert("changes".to_owned(), Rope::object(changes));
        Rope::object(members).into_text().into()
    }
}

impl ChatBody<'_> {
    /// Reads a row's text.
    ///
    /// # Errors
    /// Describes why the text is invalid, for people.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        read("chat", json)
    }

    /// Returns the row's text; equal chats give equal bytes.
    pub fn to_json(&self) -> Bytes {
        to_sorted_json(self).into()
    }
}

/// Reads an action that was stored after the row of its chat.
///
/// # Errors
/// Describes why the line is invalid, for people.
pub fn read_action(line: &Bytes) -> Result<ActionEnvelope, String> {
    read("action", &envelope_of(line))
}

/// Updates the ids of consumed pending messages by a stored action. The host itself removes such a
/// message, and sets it again if its agent has not accepted it.
pub fn note_consumed(consumed: &mut BTreeSet<String>, envelope: &ActionEnvelope) {
    match (&envelope.action, &envelope.origin) {
        (StateAction::ChatPendingMessageRemoved(removed), None) => {
            consumed.insert(removed.id.clone());
        }
        (StateAction::ChatPendingMessageSet(requeued), None) => {
            consumed.remove(&requeued.id);
        }
        (action @ StateAction::Unknown(_), None) => match SteeringChange::of(action) {
            Some(SteeringChange::Removed { id }) => {
                consumed.insert(id);
            }
            Some(SteeringChange::Set { steering_message }) => {
                consumed.remove(&steering_message.id);
            }
            None => {}
        },
        _ => {}
    }
}

/// Updates the senders of pending messages by a stored action.
pub(in crate::host) fn note_sender(senders: &mut BTreeMap<String, String>, envelope: &ActionEnvelope) {
    let Some(origin) = &envelope.origin else { return };
    let id = match &envelope.action {
        StateAction::ChatPendingMessageSet(set) => set.id.clone(),
        action => match SteeringChange::of(action) {
            Some(SteeringChange::Set { steering_message }) => steering_message.id,
            _ => return,
        },
    };
    senders.insert(id, origin.client_id.clone());
}

pub(in crate::host) fn read<T: for<'a> Deserialize<'a>>(what: &str, json: &[u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|error| format!("the stored {what} cannot be read: {error}"))
}

fn has_no_checkpoints(checkpoints: &CheckpointedFolder) -> bool {
    *checkpoints == CheckpointedFolder::default()
}

#[cfg(test)]
mod tests {
    use ahp_types::notifications::PartialSessionSummary;

    use super::*;

    /// Row as earlier programs wrote it, of which there are many in stores.
    const CHAT: &str = r#"{"attached":{"pending":{"q":[{"chat":"c:/2","cut":false,"label":"l","text":"t"}]},"turns":{}},"bornAt":4,"consumed":["q1"],"contextTurns":2,"following":["q"],"handle":"h","progress":{"t":7},"removedTurns":["t0"],"resumes":true,"selecting":[{"model":{"id":"m"}},{"agent":null}],"state":{"modifiedAt":"2026-01-02T03:04:05.678Z","movable":false,"origin":{"kind":"user"},"resource":"c:/1","status":1,"title":"A","turns":[]},"titleBy":"firstMessage"}"#;
    const PLAIN_CHAT: &str = r#"{"bornAt":4,"consumed":[],"handle":null,"progress":{},"removedTurns":[],"resumes":false,"state":{"modifiedAt":"2026-01-02T03:04:05.678Z","resource":"c:/1","status":1,"title":"A","turns":[]},"titleBy":"nobody"}"#;
    const SESSION: &str = r#"{"bornAt":1,"config":{"a":[1.5]},"createdAt":"2026-01-02T03:04:05.678Z","shownAt":3,"state":{"activeClients":[],"chats":[],"lifecycle":"ready","provider":"script","status":1,"title":"A"},"titleBy":"user"}"#;

    #[test]
    fn rows_are_written_as_they_always_were() {
        for chat in [CHAT, PLAIN_CHAT] {
            assert_eq!(ChatBody::read(chat.as_bytes()).unwrap().to_json(), chat);
        }
        let row = |uri: &str| {
            format!(
                r#"{{"modifiedAt":"2026-01-02T03:04:05.678Z","resource":"{uri}","status":1,"title":"A"}}"#
            )
        };
        let rows = format!(r#""chats":[{},{}]"#, row("c:/1"), row("c:/2"));
        let several = SESSION.replace("\"chats\":[]", &rows);
        let decided = r#""decided":{"me":{"v:/p":{"":false,"mcp=x":null}}},"shownAt"#;
        let decided = SESSION.replace("\"shownAt", decided);
        let undecided = SESSION.replace("\"shownAt", r#""decided":{},"shownAt"#);
        for session in [SESSION, &SESSION.replace("\"shownAt\":3,", ""), &several, &decided, &undecided] {
            let mut body = SessionBody::read(session.as_bytes()).unwrap();
            assert_eq!(body.to_json(), *session);
            let mut written = WrittenList::default();
            let mut chats = std::mem::take(&mut body.state.to_mut().chats);
            for _ in 0..2 {
                assert_eq!(body.to_json_with(written.list(&chats)), *session);
            }
            // One changes, one goes, and all is as if it had been written for the first time.
            chats.iter_mut().for_each(|row| row.title.push('x'));
            chats.pop();
            assert_eq!(written.list(&chats), WrittenList::default().list(&chats));
        }
    }

    #[test]
    fn message_that_was_set_again_by_the_host_is_not_consumed() {
        let line = |action: &str, origin: &str| {
            let json = format!(
                r#"{{"channel":"c:/1","action":{{"type":"chat/pendingMessage{action}}},"serverSeq":1{origin}}}"#
            );
            serde_json::from_str::<ActionEnvelope>(&json).unwrap()
        };
        let removed = |origin| line(r#"Removed","kind":"steering","id":"s""#, origin);
        let set = |origin| {
            let message = r#"{"text":"","origin":{"kind":"user"}}"#;
            line(&format!(r#"Set","kind":"steering","id":"s","message":{message}"#), origin)
        };
        let client = r#","origin":{"clientId":"me","clientSeq":1}"#;
        for (envelopes, is_consumed) in [
            (vec![removed("")], true),
            (vec![removed(client)], false),
            (vec![removed(""), set("")], false),
            (vec![removed(""), set(client)], true),
        ] {
            let mut consumed = BTreeSet::new();
            envelopes.iter().for_each(|envelope| note_consumed(&mut consumed, envelope));
            assert_eq!(consumed.contains("s"), is_consumed, "{envelopes:?}");
        }
    }

    #[test]
    fn a_summary_is_written_as_what_it_is() {
        let short = |title: &str| SessionChatSummary {
            resource: format!("c:/{title}"),
            title: title.to_owned(),
            origin: None,
            interactivity: None,
            status: Some(1),
            changes: None,
        };
        let mut written = WrittenRows::default();
        for (chats, default_chat) in [
            (Some(vec![short("a"), short("b")]), Some("c:/a".to_owned())),
            (Some(vec![short("a"), short("c"), short("d")]), None),
            (Some(Vec::new()), Some("c:/\"".to_owned())),
            (None, None),
        ] {
            let state = SessionBody::read(SESSION.as_bytes()).unwrap().state.into_owned();
            let summary = crate::host::catalogue::summary_of("s:/", &state, "then", "now");
            let summary = SessionSummary { chats, default_chat, ..summary };
            let text = written.summary(summary.clone());
            assert_eq!(serde_json::from_slice::<SessionSummary>(&text).unwrap(), summary);
            let changes = PartialSessionSummary {
                title: Some("new".to_owned()),
                chats: summary.chats,
                ..PartialSessionSummary::default()
            };
            let params =
                SessionSummaryChangedParams { channel: "r:/".into(), session: summary.resource, changes };
            assert_eq!(written.summary_changes(params.clone()), to_sorted_json(&params));
        }
    }

    #[test]
    fn a_row_from_before_there_was_more_to_say_is_read() {
        let older = PLAIN_CHAT.replace("\"handle\":null,", "").replace("\"resumes\":false,", "");
        assert_eq!(ChatBody::read(older.as_bytes()).unwrap().to_json(), PLAIN_CHAT);
        let error = ChatBody::read(SESSION.as_bytes()).unwrap_err();
        assert!(error.starts_with("the stored chat cannot be read: "), "{error}");
    }
}
