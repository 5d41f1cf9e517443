//! Records for the store, and what is read back from it.
//!
//! Owns: the records that a step leaves to be kept, the rows in them, and the shapes in which
//! sessions, past actions and the list of sessions are read again; and what is listed of a session
//! that cannot be given out.
//! Never: reads or writes anything; says how the store keeps it.

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
    /// An action was sequenced.
    Action(ChannelId, ActionLine),
    /// A session is new or has changed.
    Session(SessionRow),
    /// A session is gone.
    SessionRemoved(SessionKey),
    /// A chat is new or has changed.
    Chat(ChatRow),
    /// A chat is gone.
    ChatRemoved {
        /// Key.
        key: ChatKey,
        /// URI.
        uri: String,
    },
    /// A channel of a kind that has no records of its own is new or has changed.
    Channel(ChannelRow),
    /// A chat has a completed turn at this place, counted from 0.
    Turn(ChatKey, u64, CompletedTurn),
    /// A chat has completed turns that another one has, at the same places: nothing of them is
    /// written again.
    TurnsShared {
        /// Other chat.
        from: ChatKey,
        /// The new chat.
        to: ChatKey,
        /// Places of the turns.
        places: Range<u64>,
    },
    /// A chat has no more completed turns than so many.
    TurnsCut(ChatKey, u64),
    /// The agent has got so far in the turn that runs.
    Progress(ChatKey, u64),
    /// An interrupted turn of this session is taken up, which may end the process: if the process
    /// ends before one of the next two records, the store counts that against the session.
    Trial(SessionKey),
    /// The interrupted turn was ended, and the process is still there. What was counted so far
    /// stays: a client may ask for the turn to go on.
    Recovered(SessionKey),
    /// The process has outlived the turn that was taken up: what was counted is forgotten.
    Survived(SessionKey),
    /// A client speaks this version of the protocol: remembered for when it comes back.
    Client {
        /// Id.
        id: String,
        /// The version's name.
        version: &'static str,
    },
    /// The checksum of what clients are told of the agents.
    Agents(u32),
    /// Description that the agent of this provider id has given of itself; JSON text.
    AgentSaid {
        /// The provider id.
        provider: String,
        /// Whole description.
        said: Bytes,
    },
    /// Something in this step must survive the loss of power.
    Sync,
}

impl Record {
    /// Returns its size, roughly, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Action(_, action) => action.line.len(),
            Self::Session(row) => row.summary.len() + row.body.len(),
            Self::Chat(row) => row.body.len(),
            Self::Channel(row) => row.body.len(),
            Self::Turn(_, _, turn) => turn.bytes(),
            Self::AgentSaid { said, .. } => said.len(),
            _ => 0,
        }
    }
}

/// Stored form of a session without its chats.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    /// Key.
    pub key: SessionKey,
    /// URI.
    pub uri: String,
    /// When it was modified: what the list is sorted by.
    pub modified_at: String,
    /// Summary for `listSessions`; JSON text.
    pub summary: Bytes,
    /// Rest of the row; JSON text.
    pub body: Bytes,
}

/// Stored form of a channel whose kind has no rows of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelRow {
    /// Id.
    pub id: ChannelId,
    /// Content, which the kind decides; JSON text.
    pub body: Bytes,
}

/// Stored form of a chat without its completed turns.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRow {
    /// Key.
    pub key: ChatKey,
    /// Session of the chat.
    pub session: SessionKey,
    /// URI.
    pub uri: String,
    /// Set if a turn runs in it.
    pub running: bool,
    /// The last sequence number that the row knows of.
    pub as_of: u64,
    /// Rest of the row; JSON text.
    pub body: Bytes,
}

/// A session as it was saved.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedSession {
    /// Row.
    pub row: SessionRow,
    /// Chats, in no order.
    pub chats: Vec<SavedChat>,
    /// Number of processes in a row that have ended while its interrupted turn was resumed, if that
    /// is too high: the turn is given up. Otherwise 0.
    pub deaths: u32,
}

/// A chat as it was saved.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedChat {
    /// Row.
    pub row: ChatRow,
    /// Completed turns, oldest first.
    pub turns: Vec<CompletedTurn>,
    /// The lines of the actions on it that are younger than its row, oldest first.
    pub actions: Vec<Bytes>,
    /// Some of them were left out, because no turn may be as large as all of them make it.
    pub sifted: bool,
    /// Progress of the agent in the running turn.
    pub progress: Option<u64>,
}

/// Stored actions behind a number.
#[derive(Debug, Default)]
pub struct Past {
    /// The actions, in order.
    pub actions: Vec<(ChannelId, ActionLine)>,
    /// The sessions that those are on, or on chats of, as they are kept now; none where one is gone
    /// for good.
    pub sessions: BTreeMap<SessionKey, Option<StoredSummary>>,
}

/// A page of the list of sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Begins behind this place; at the newest when there is none.
    pub after: Option<ListPosition>,
    /// At most so many.
    pub limit: usize,
}

/// A page of the list of sessions, as it was read.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The summaries (JSON text), newest first, each with its session's place.
    pub sessions: Vec<(ListPosition, Bytes)>,
    /// The place of the last one, when there are more behind it.
    pub next: Option<ListPosition>,
}

/// A session's place in the list: newest first, and of two modified at the same time the later one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPosition {
    /// When it was modified.
    pub modified_at: String,
    /// Key.
    pub key: SessionKey,
}

/// The summary that is listed of a session that the store does not give out, because taking up its
/// turn has ended the host too often: it and its chats failed, and nothing runs in it.
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

/// The summary that is listed of a session whose row is damaged: so much is known of it all the
/// same.
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
