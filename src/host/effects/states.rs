//! The states of channels as clients are given them.
//!
//! Owns: how a state is told whose completed turns are text already: they are put into it as they are.
//! Never: looks for a state, or decides what a client is given of it.

use std::collections::BTreeMap;

use ahp_types::common::JsonObject;
use ahp_types::state::SnapshotState;
use serde::Serialize;
use serde_json::Value;

use super::{Frame, RequestId};
use crate::host::contents::{told_turn, told_turns};
use crate::state::history::CompletedTurn;
use crate::state::reduce::Conversation;
use crate::wire::channels::ChannelKind;
use crate::wire::methods::Method;
use crate::wire::rpc::{sorted, to_json, to_sorted_json};

/// The state of a channel, and where it stands in the sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct ToldState {
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

impl ToldState {
    /// The provider, if it is a session.
    pub fn provider(&self) -> Option<&str> {
        match &self.state {
            SnapshotState::Session(session) => Some(&session.provider),
            _ => None,
        }
    }

    /// The size of the completed turns in it, in bytes.
    pub fn turns_bytes(&self) -> usize {
        self.turns.iter().map(|turn| turn.text().len()).sum()
    }

    /// It and where it stands, as JSON text.
    pub fn to_json(&self) -> Vec<u8> {
        let resource = to_json(&self.channel);
        let from_seq = to_json(&self.from_seq);
        let members = [("fromSeq", &from_seq[..]), ("resource", &resource), ("state", &self.state_json())];
        text_of_object(members)
    }

    fn state_json(&self) -> Vec<u8> {
        if self.turns.is_empty() {
            return to_sorted_json(&self.state);
        }
        with_turns(&self.state, &self.channel, &self.turns)
    }

    /// The state as a value, with its turns.
    pub fn to_object(&self) -> serde_json::Map<String, Value> {
        let mut state = match serde_json::to_value(&self.state) {
            Ok(Value::Object(state)) => state,
            _ => return serde_json::Map::new(),
        };
        if !self.turns.is_empty() {
            let told = self.turns.iter().map(|turn| told_turn(&self.channel, turn.text()));
            let turns = told.map(|turn| serde_json::from_slice(&turn).unwrap_or_default()).collect();
            state.insert("turns".to_owned(), Value::Array(turns));
        }
        state
    }

    /// The chat, if it is one, to follow what happens in it.
    pub fn to_conversation(&self) -> Option<Conversation> {
        let SnapshotState::Chat(state) = &self.state else { return None };
        let told = self.turns.iter().map(|turn| turn.with_text(told_turn(&self.channel, turn.text())));
        Some(Conversation::new((**state).clone(), told.collect()))
    }
}

/// A result with the states of channels, which may be large.
#[derive(Debug, Clone, PartialEq)]
pub struct LargeStates {
    /// What is answered.
    pub method: Method,
    /// What the result says besides.
    pub besides: JsonObject,
    /// The states.
    pub states: Vec<ToldState>,
    /// The size of the JSON text of the states in bytes; nearly.
    pub bytes: usize,
}

impl LargeStates {
    /// The kinds of the channels, in the order of their states.
    pub fn kinds(&self) -> Vec<ChannelKind> {
        self.states.iter().map(|state| state.kind).collect()
    }

    /// The answer to the request of this id, which takes long to make.
    pub fn answer(self, id: RequestId) -> Frame {
        let (method, states) = (self.method, self.kinds());
        Frame::Result { id, method, result: self.json().into(), states }
    }

    /// The result, as JSON text.
    pub fn json(self) -> Vec<u8> {
        let mut members: BTreeMap<&str, Vec<u8>> =
            self.besides.iter().map(|(name, value)| (&**name, sorted(value.clone()))).collect();
        let mut snapshots = self.states.iter().map(ToldState::to_json);
        if self.method == Method::Subscribe {
            members.extend(snapshots.next().map(|snapshot| ("snapshot", snapshot)));
        } else {
            let list = snapshots.collect::<Vec<_>>().join(&b","[..]);
            members.insert("snapshots", [b"[", &list[..], b"]"].concat());
        }
        text_of_object(members.iter().map(|(name, value)| (*name, &value[..])))
    }
}

/// The JSON text of an object with these turns of a chat in it, as clients are told them.
pub fn with_turns(object: &impl Serialize, chat: &str, turns: &[CompletedTurn]) -> Vec<u8> {
    let Ok(Value::Object(object)) = serde_json::to_value(object) else { return Vec::new() };
    let members = object.into_iter().map(|(name, value)| (name, sorted(value)));
    let mut members: BTreeMap<String, Vec<u8>> = members.collect();
    members.insert("turns".to_owned(), told_turns(chat, turns));
    text_of_object(members.iter().map(|(name, value)| (&**name, &value[..])))
}

/// A JSON object of these members, in this order; their values are JSON text.
fn text_of_object<'a>(members: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut text = b"{".to_vec();
    for (name, value) in members {
        if text.len() > 1 {
            text.push(b',');
        }
        text.extend_from_slice(&to_json(name));
        text.push(b':');
        text.extend_from_slice(value);
    }
    text.push(b'}');
    text
}
