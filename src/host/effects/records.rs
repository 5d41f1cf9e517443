//! Records for the store, and the data that is read back from it.
//!
//! Owns: the records and rows that a step produces; the form in which sessions, past actions and
//! the list of sessions are read; and the list entry of a session that cannot be loaded.
//! Never: reads or writes anything, or depends on the store's format.

use std::collections::BTreeMap;
use std::ops::Range;

use ahp_types::state::SessionStatus;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use super::{ActionLine, ChannelId, ChatKey, SessionKey};
use crate::host::StoredSummary;
use crate::state::history::CompletedTurn;
use crate::state::status::with_activity;
use crate::wire::rpc::sorted;

/// Record of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// Sequenced action.
    Action(ChannelId, ActionLine),
    /// New or changed session.
    Session(SessionRow),
    /// Removal of a session.
    SessionRemoved(SessionKey),
    /// New or changed chat.
    Chat(ChatRow),
    /// Removal of a chat.
    ChatRemoved {
        /// Key of the chat.
        key: ChatKey,
        /// URI of the chat.
        uri: String,
    },
    /// New or changed channel of a kind that has no records of its own.
    Channel(ChannelRow),
    /// Removal of such a channel.
    ChannelRemoved(ChannelId),
    /// Completed turn of a chat, at this index from 0.
    Turn(ChatKey, u64, CompletedTurn),
    /// Completed turns that a chat shares with another one, at the same indexes, without writing
    /// them again.
    TurnsShared {
        /// Chat that has the turns.
        from: ChatKey,
        /// New chat.
        to: ChatKey,
        /// Indexes of the turns.
        places: Range<u64>,
    },
    /// Number of completed turns that a chat retains; later ones are removed.
    TurnsCut(ChatKey, u64),
    /// Progress of the agent in the running turn.
    Progress(ChatKey, u64),
    /// Start of a resumption of this session's interrupted turn, which may crash the process: if
    /// the process ends before one of the next two records, the store counts that as a failure of
    /// the session.
    Trial(SessionKey),
    /// End of the interrupted turn without a crash. The failure count stays, because a client may
    /// ask to resume the turn.
    Recovered(SessionKey),
    /// Failure to read a session with an interrupted turn: the process does not end by it, and the
    /// list shows the session as failed.
    Unreadable(SessionKey),
    /// End of the resumed turn without a crash: the failure count is reset.
    Survived(SessionKey),
    /// Protocol version of a client, stored for its reconnect.
    Client {
        /// Client id.
        id: String,
        /// Name of the version.
        version: &'static str,
    },
    /// Checksum of the agents as clients last received them.
    Agents(u32),
    /// Description that an agent has given of itself, as JSON text.
    AgentDescribed {
        /// Provider id of the agent.
        provider: String,
        /// Complete description.
        description: Bytes,
    },
    /// URIs of a session and its chats that have left memory. Nothing is stored; until this step is
    /// committed, what the store has of them is old.
    Evicted(Vec<String>),
    /// Request to make this step durable against power loss.
    Sync,
}

impl Record {
    /// Returns the approximate size, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Action(_, action) => action.line.len(),
            Self::Session(row) => row.summary.len() + row.body.len(),
            Self::Chat(row) => row.body.len(),
            Self::Channel(row) => row.body.len(),
            Self::Turn(_, _, turn) => turn.bytes(),
            Self::AgentDescribed { description, .. } => description.len(),
            _ => 0,
        }
    }
}

/// Stored form of a session without its chats.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    /// Key of the session.
    pub key: SessionKey,
    /// URI of the session.
    pub uri: String,
    /// Time of the last modification, by which the list is sorted.
    pub modified_at: String,
    /// Summary for `listSessions`, as JSON text.
    pub summary: Bytes,
    /// Remaining state, as JSON text.
    pub body: Bytes,
}

/// Stored form of a channel whose kind has no rows of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelRow {
    /// Id of the channel.
    pub id: ChannelId,
    /// Content as JSON text, in the format of the kind.
    pub body: Bytes,
}

/// Stored form of a chat without its completed turns.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRow {
    /// Key of the chat.
    pub key: ChatKey,
    /// Session of the chat.
    pub session: SessionKey,
    /// URI of the chat.
    pub uri: String,
    /// Set if a turn is running.
    pub running: bool,
    /// Sequence number of the last action that the row includes.
    pub as_of: u64,
    /// Remaining state, as JSON text.
    pub body: Bytes,
}

/// Session as read from the store.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedSession {
    /// Row of the session.
    pub row: SessionRow,
    /// Chats of the session, in no particular order.
    pub chats: Vec<SavedChat>,
    /// Number of consecutive processes that ended while the interrupted turn was resumed, if it
    /// exceeds the limit, so that the turn is abandoned; otherwise 0.
    pub deaths: u32,
}

/// Chat as read from the store.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedChat {
    /// Row of the chat.
    pub row: ChatRow,
    /// Completed turns, oldest first.
    pub turns: Vec<CompletedTurn>,
    /// Lines of the actions after the row, oldest first.
    pub actions: Vec<Bytes>,
    /// Set if actions were skipped because the turn would exceed its size limit.
    pub sifted: bool,
    /// Progress of the agent in the running turn; `None` if it reported none.
    pub progress: Option<u64>,
}

/// Stored actions after a sequence number.
#[derive(Debug, Default)]
pub struct Past {
    /// Actions, in sequence.
    pub actions: Vec<(ChannelId, ActionLine)>,
    /// Current summaries of the sessions of these actions; `None` for a session that was removed.
    pub sessions: BTreeMap<SessionKey, Option<StoredSummary>>,
}

/// Request for a page of the list of sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Position after which the page begins; `None` for the newest session.
    pub after: Option<ListPosition>,
    /// Maximum number of sessions.
    pub limit: usize,
}

/// Page of the list of sessions.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Summaries as JSON text with their positions, newest first.
    pub sessions: Vec<(ListPosition, Bytes)>,
    /// Position of the last entry if the list continues; `None` otherwise.
    pub next: Option<ListPosition>,
}

/// Position in the list of sessions: newest first; ties are broken by key, later sessions first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPosition {
    /// Time of the last modification.
    pub modified_at: String,
    /// Key of the session.
    pub key: SessionKey,
}

/// Returns the listed summary of a session that the store does not load, because resuming its turn
/// has crashed the host too often, or the turn cannot be read: the session and its chats failed,
/// and nothing runs.
pub fn summary_of_abandoned_session(summary: &[u8]) -> Bytes {
    let mut summary: Value = serde_json::from_slice(summary).unwrap_or_default();
    let chats = summary["chats"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let failed = |status: &Value| {
        let flags = status.as_u64().and_then(|status| u32::try_from(status).ok()).unwrap_or_default();
        Value::from(with_activity(flags, SessionStatus::Error.bits()))
    };
    summary["status"] = failed(&summary["status"]);
    let chats = chats.into_iter().map(|mut chat| {
        chat["status"] = failed(&chat["status"]);
        chat
    });
    summary["chats"] = chats.collect();
    if let Some(members) = summary.as_object_mut() {
        members.remove("activity");
    }
    sorted(summary).into()
}

/// Returns the listed summary of a session whose row is damaged, from the columns that can be read.
pub fn summary_of_damaged_session(uri: Option<String>, modified_at: &str) -> Bytes {
    let time = modified_at.parse::<Timestamp>().unwrap_or_default();
    let summary = serde_json::json!({
        "resource": uri.unwrap_or_default(),
        "provider": "unknown",
        "title": "(this session is damaged and cannot be read)",
        "status": SessionStatus::Error,
        "createdAt": format!("{time:.3}"),
        "modifiedAt": format!("{time:.3}"),
    });
    summary.to_string().into()
}
