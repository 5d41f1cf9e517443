//! The states of channels, and completed turns of chats, as clients are given them.
//!
//! Owns: how a state is told whose completed turns are text already: they are put into it as they
//! are, when it is written.
//! Never: looks for a state, or decides what a client is given of it.

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

/// The state of a channel, and where it stands in the sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelSnapshot {
    /// The kind of the channel.
    pub kind: ChannelKind,
    /// The channel's URI.
    pub channel: String,
    /// The state; of a chat, without its completed turns.
    pub state: SnapshotState,
    /// Of a chat, its completed turns as far as they are told, oldest first.
    pub turns: Vec<CompletedTurn>,
    /// The last action that it knows of.
    pub from_seq: i64,
}

impl ChannelSnapshot {
    /// The provider, if it is a session.
    pub fn provider(&self) -> Option<&str> {
        match &self.state {
            SnapshotState::Session(session) => Some(&session.provider),
            _ => None,
        }
    }

    /// Returns whether all of its completed turns are in memory.
    pub fn is_in_memory(&self) -> bool {
        self.turns.iter().all(CompletedTurn::is_in_memory)
    }

    /// The size of the completed turns in it, in bytes.
    pub fn turns_bytes(&self) -> usize {
        self.turns.iter().map(CompletedTurn::bytes).sum()
    }

    /// Returns its JSON text with its sequence number; `said` adjusts all of it but the turns.
    fn rope(self, said: &mut dyn FnMut(&mut Value)) -> Rope {
        let mut snapshot = json!({ "fromSeq": self.from_seq, "resource": self.channel });
        // It cannot fail: see `to_json`.
        snapshot["state"] = serde_json::to_value(&self.state).unwrap_or_default();
        said(&mut snapshot);
        let state = with_turns(snapshot["state"].take(), &self.channel, self.turns);
        let mut members = Rope::members_of(snapshot);
        members.insert("state".to_owned(), state);
        Rope::object(members)
    }

    /// The state as a value; of a chat, without its completed turns.
    pub fn to_object(&self) -> JsonObject {
        match serde_json::to_value(&self.state) {
            Ok(Value::Object(state)) => state,
            _ => JsonObject::new(),
        }
    }

    /// The chat, if it is one, to follow what happens in it.
    pub fn to_conversation(&self) -> Option<Conversation> {
        let SnapshotState::Chat(state) = &self.state else { return None };
        Some(Conversation::new((**state).clone(), self.turns.iter().cloned().collect()))
    }
}

/// A result with the states of channels, which may be large.
#[derive(Debug, Clone, PartialEq)]
pub struct LargeStates {
    /// Method of the request.
    pub method: Method,
    /// Other members of the result.
    pub members: JsonObject,
    /// The states.
    pub states: Vec<ChannelSnapshot>,
    /// The size of the JSON text of the states in bytes; nearly.
    pub bytes: usize,
}

impl LargeStates {
    /// The kinds of the channels, in the order of their states.
    pub fn kinds(&self) -> Vec<ChannelKind> {
        self.states.iter().map(|state| state.kind).collect()
    }

    /// Returns whether all that is in them is in memory.
    pub fn is_in_memory(&self) -> bool {
        self.states.iter().all(ChannelSnapshot::is_in_memory)
    }

    /// The answer to the request of this id, which takes long to make.
    pub fn answer(self, id: RequestId) -> Frame {
        let (method, states) = (self.method, self.kinds());
        Frame::Result { id, method, result: self.json().into(), states }
    }

    /// The result, as JSON text.
    pub fn json(self) -> Vec<u8> {
        self.rope(&mut |_| {}).into_text()
    }

    /// Returns the JSON text of the result; `said` adjusts all of it but the turns.
    pub fn rope(self, said: &mut dyn FnMut(&mut Value)) -> Rope {
        let mut members: Value = self.members.into_iter().collect();
        said(&mut members);
        let mut members = Rope::members_of(members);
        let mut snapshots = self.states.into_iter().map(|state| state.rope(said));
        if self.method == Method::Subscribe {
            members.extend(snapshots.next().map(|snapshot| ("snapshot".to_owned(), snapshot)));
        } else {
            members.insert("snapshots".to_owned(), Rope::list(snapshots));
        }
        Rope::object(members)
    }
}

/// Completed turns of a chat that a client is told because it lacks them.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedTurns {
    /// The URI of the chat.
    pub chat: String,
    /// These, oldest first.
    pub turns: Vec<CompletedTurn>,
    /// Cursor for earlier turns, if there are any.
    pub next_cursor: Option<String>,
    /// The number of the last action that the client was told before.
    pub server_seq: u64,
}

impl LoadedTurns {
    /// Returns whether all of them are in memory.
    pub fn is_in_memory(&self) -> bool {
        self.turns.iter().all(CompletedTurn::is_in_memory)
    }

    /// The size of the turns, in bytes.
    pub fn bytes(&self) -> usize {
        self.turns.iter().map(CompletedTurn::bytes).sum()
    }

    /// The line that tells of them.
    pub fn line(self) -> Bytes {
        let channel = self.chat.clone();
        self.rope(&channel).into_text().into()
    }

    /// Returns the JSON text for a client that has this name for the chat.
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

/// A completed turn of a chat as clients are told it. None when its text is no turn, which was
/// logged.
pub fn turn_to_send(chat: &str, turn: &CompletedTurn) -> Option<Turn> {
    CompletedTurn::new(turn.id(), turn_for_clients(chat, turn)).read()
}

/// An object with these turns of a chat in it, as clients are told them.
fn with_turns(object: Value, chat: &str, turns: Vec<CompletedTurn>) -> Rope {
    let mut members = Rope::members_of(object);
    if !turns.is_empty() {
        members.insert("turns".to_owned(), Rope::turns(chat, turns));
    }
    Rope::object(members)
}
