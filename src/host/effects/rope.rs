//! JSON text in pieces, for texts that may be large.
//!
//! Owns: the order of the pieces: text, and completed turns, each of which is read only when it is
//! written, so that writing a long chat does not need its whole text in memory.
//! Never: decides what is sent, or to whom.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;

use crate::host::ledger::contents::turn_for_clients;
use crate::state::history::CompletedTurn;
use crate::wire::rpc::{sorted, to_json};

/// Size from which a text is large, in bytes: writing it would delay other clients.
pub const LARGE_BYTES: usize = 1 << 20;

/// JSON text in pieces.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rope(Vec<Strand>);

#[derive(Debug, Clone, PartialEq)]
enum Strand {
    Text(Vec<u8>),
    /// Completed turns of the chat with this URI, as clients receive them, separated by commas.
    Turns(String, Vec<CompletedTurn>),
}

impl From<Vec<u8>> for Rope {
    fn from(text: Vec<u8>) -> Self {
        Self(vec![Strand::Text(text)])
    }
}

impl Rope {
    /// Returns a JSON list of completed turns of a chat, as clients receive them.
    pub fn turns(chat: &str, turns: Vec<CompletedTurn>) -> Self {
        Self::list([Self::items(chat, turns)])
    }

    /// Returns the items of [`Rope::turns`] without the brackets.
    pub fn items(chat: &str, turns: Vec<CompletedTurn>) -> Self {
        Self(vec![Strand::Turns(chat.to_owned(), turns)])
    }

    /// Returns the JSON text of one turn.
    pub fn turn(chat: &str, turn: &CompletedTurn) -> Bytes {
        turn_for_clients(chat, turn)
    }

    /// Returns the members of an object by name.
    pub fn members_of(object: Value) -> BTreeMap<String, Self> {
        let Value::Object(members) = object else { return BTreeMap::new() };
        members.into_iter().map(|(name, value)| (name, sorted(value).into())).collect()
    }

    /// Returns an object with these members, in this order.
    pub fn object(members: impl IntoIterator<Item = (String, Self)>) -> Self {
        let mut rope = Self::from(b"{".to_vec());
        for (number, (name, value)) in members.into_iter().enumerate() {
            rope.text(if number > 0 { b"," } else { b"" });
            rope.text(&to_json(&name));
            rope.text(b":");
            rope.append(value);
        }
        rope.text(b"}");
        rope
    }

    /// Returns a list of these items.
    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        let mut rope = Self::from(b"[".to_vec());
        for (number, item) in items.into_iter().enumerate() {
            rope.text(if number > 0 { b"," } else { b"" });
            rope.append(item);
        }
        rope.text(b"]");
        rope
    }

    /// Appends text.
    pub fn text(&mut self, more: &[u8]) {
        match self.0.last_mut() {
            Some(Strand::Text(text)) => text.extend_from_slice(more),
            _ => self.0.push(Strand::Text(more.to_vec())),
        }
    }

    /// Appends another rope.
    pub fn append(&mut self, more: Self) {
        for strand in more.0 {
            match strand {
                Strand::Text(text) => self.text(&text),
                turns => self.0.push(turns),
            }
        }
    }

    /// Passes the pieces to `take` in order until it returns false. `adjust` changes each turn's
    /// text. Returns whether `take` accepted all pieces.
    pub fn write(self, adjust: &mut dyn FnMut(Bytes) -> Bytes, take: &mut dyn FnMut(Bytes) -> bool) -> bool {
        self.0.into_iter().all(|strand| match strand {
            Strand::Text(text) => take(text.into()),
            Strand::Turns(chat, turns) => turns.iter().enumerate().all(|(number, turn)| {
                (number == 0 || take(Bytes::from_static(b","))) && take(adjust(turn_for_clients(&chat, turn)))
            }),
        })
    }

    /// Returns the whole text.
    pub fn into_text(self) -> Vec<u8> {
        let mut whole = Vec::new();
        self.write(&mut |turn| turn, &mut |piece| {
            whole.extend_from_slice(&piece);
            true
        });
        whole
    }
}
