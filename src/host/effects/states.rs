//! States of channels and completed turns of chats, as clients receive them.
//!
//! Owns: how a state is serialized: completed turns, which are JSON text already, are spliced in
//! when the state is written.
//! Never: looks up a state, or decides which part of it a client receives.

use ahp_types::actions::{ChatTurnsLoadedAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::{SnapshotState, Turn};
use bytes::Bytes;
use serde_json::{json, Value};

use super::{Frame, RequestId, Rope};
use crate::host::ledger::contents::turn_for_clients;
use crate::state::history::CompletedTurn;
use crate::state::reduce::Conversation;
use crate::wire::action_lines::{begin_line, end_line};
use crate::wire::channels::ChannelKind;
use crate::wire::methods::Method;

/// State of a channel at a position in the sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelSnapshot {
    /// Kind of the channel.
    pub kind: ChannelKind,
    /// URI of the channel.
    pub channel: String,
    /// State; for a chat, without its completed turns.
    pub state: SnapshotState,
    /// Members of the state that the official crates do not have.
    pub beside: JsonObject,
    /// For a chat, the completed turns to send, oldest first.
    pub turns: Vec<CompletedTurn>,
    /// Sequence number of the last action that the state includes.
    pub from_seq: i64,
}

impl ChannelSnapshot {
    /// Returns the provider of a session; `None` for other kinds.
    pub fn provider(&self) -> Option<&str> {
        match &self.state {
            SnapshotState::Session(session) => Some(&session.provider),
            _ => None,
        }
    }

    /// Returns whether all completed turns are in memory.
    pub fn is_in_memory(&self) -> bool {
        self.turns.iter().all(CompletedTurn::is_in_memory)
    }

    /// Returns the size of the completed turns, in bytes.
    pub fn turns_bytes(&self) -> usize {
        self.turns.iter().map(CompletedTurn::bytes).sum()
    }

    /// Returns the JSON text with its sequence number; `adjust` adjusts all but the turns.
    fn rope(self, adjust: &mut dyn FnMut(&mut Value)) -> Rope {
        let mut snapshot = json!({ "fromSeq": self.from_seq, "resource": self.channel });
        snapshot["state"] = Value::Object(self.to_object());
        adjust(&mut snapshot);
        let state = with_turns(snapshot["state"].take(), &self.channel, self.turns);
        let mut members = Rope::members_of(snapshot);
        members.insert("state".to_owned(), state);
        Rope::object(members)
    }

    /// Returns the state as a JSON object; for a chat, without its completed turns.
    pub fn to_object(&self) -> JsonObject {
        match serde_json::to_value(&self.state) {
            Ok(Value::Object(mut state)) => {
                state.extend(self.beside.clone());
                state
            }
            _ => JsonObject::new(),
        }
    }

    /// Returns a copy of the chat's state, to which actions can be applied; `None` for other kinds.
    pub fn to_conversation(&self) -> Option<Conversation> {
        let SnapshotState::Chat(state) = &self.state else { return None };
        Some(Conversation::new((**state).clone(), self.turns.iter().cloned().collect()))
    }
}

/// Result with the states of channels, which may be large.
#[derive(Debug, Clone, PartialEq)]
pub struct LargeStates {
    /// Method of the request.
    pub method: Method,
    /// Other members of the result.
    pub members: JsonObject,
    /// States of the channels.
    pub states: Vec<ChannelSnapshot>,
    /// Approximate size of the states as JSON text, in bytes.
    pub bytes: usize,
}

impl LargeStates {
    /// Returns the kinds of the channels, in the order of the states.
    pub fn kinds(&self) -> Vec<ChannelKind> {
        self.states.iter().map(|state| state.kind).collect()
    }

    /// Returns whether all states are completely in memory.
    pub fn is_in_memory(&self) -> bool {
        self.states.iter().all(ChannelSnapshot::is_in_memory)
    }

    /// Returns the answer to the request of this id; building it takes long.
    pub fn answer(self, id: RequestId) -> Frame {
        let (method, states) = (self.method, self.kinds());
        Frame::Result { id, method, result: self.json().into(), states }
    }

    /// Returns the result as JSON text.
    pub fn json(self) -> Vec<u8> {
        self.rope(&mut |_| {}).into_text()
    }

    /// Returns the JSON text of the result; `adjust` adjusts all but the turns.
    pub fn rope(self, adjust: &mut dyn FnMut(&mut Value)) -> Rope {
        let mut members: Value = self.members.into_iter().collect();
        adjust(&mut members);
        let mut members = Rope::members_of(members);
        let mut snapshots = self.states.into_iter().map(|state| state.rope(adjust));
        if self.method == Method::Subscribe {
            members.extend(snapshots.next().map(|snapshot| ("snapshot".to_owned(), snapshot)));
        } else {
            members.insert("snapshots".to_owned(), Rope::list(snapshots));
        }
        Rope::object(members)
    }
}

/// Completed turns of a chat that are sent to a client which lacks them.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedTurns {
    /// URI of the chat.
    pub chat: String,
    /// Turns to send, oldest first.
    pub turns: Vec<CompletedTurn>,
    /// Cursor for earlier turns; `None` if there are none.
    pub next_cursor: Option<String>,
    /// Sequence number of the last action that was sent to the client before.
    pub server_seq: u64,
}

impl LoadedTurns {
    /// Returns whether all turns are in memory.
    pub fn is_in_memory(&self) -> bool {
        self.turns.iter().all(CompletedTurn::is_in_memory)
    }

    /// Returns the size of the turns, in bytes.
    pub fn bytes(&self) -> usize {
        self.turns.iter().map(CompletedTurn::bytes).sum()
    }

    /// Returns the line that carries the turns.
    pub fn line(self) -> Bytes {
        let channel = self.chat.clone();
        self.rope(&channel).into_text().into()
    }

    /// Returns the JSON text for a client that knows the chat by the URI `channel`.
    pub fn rope(self, channel: &str) -> Rope {
        let action = ChatTurnsLoadedAction { turns: Vec::new(), turns_next_cursor: self.next_cursor };
        let action = serde_json::to_value(StateAction::ChatTurnsLoaded(action)).unwrap_or_default();
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        begin_line(&mut before, channel);
        end_line(&mut behind, self.server_seq, None, None);
        let mut line = Rope::from(before);
        line.append(with_turns(action, &self.chat, self.turns));
        line.text(&behind);
        line
    }
}

/// Returns a completed turn as clients receive it; `None` if its text cannot be parsed, which is
/// logged.
pub fn turn_to_send(chat: &str, turn: &CompletedTurn) -> Option<Turn> {
    CompletedTurn::new(turn.id(), turn_for_clients(chat, turn)).read()
}

/// Adds completed turns of a chat to an object, as clients receive them.
fn with_turns(object: Value, chat: &str, turns: Vec<CompletedTurn>) -> Rope {
    let mut members = Rope::members_of(object);
    if !turns.is_empty() {
        members.insert("turns".to_owned(), Rope::turns(chat, turns));
    }
    Rope::object(members)
}
