//! JSON text that may be large, as what it is made of.
//!
//! Owns: the order of its pieces: text that is there, and turns that are over, each of which is
//! read when it is written. So nobody holds all of it, however long a chat is.
//! Never: decides what is told, or who writes it.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;

use crate::host::ledger::contents::turn_for_clients;
use crate::state::history::CompletedTurn;
use crate::wire::rpc::{sorted, to_json};

/// Text from this size on, in bytes, is large: it takes longer to write than others should wait.
pub const LARGE_BYTES: usize = 1 << 20;

/// JSON text in pieces.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rope(Vec<Strand>);

#[derive(Debug, Clone, PartialEq)]
enum Strand {
    Text(Vec<u8>),
    /// Completed turns of a chat as clients are told them, with commas in between.
    Turns(String, Vec<CompletedTurn>),
}

impl From<Vec<u8>> for Rope {
    fn from(text: Vec<u8>) -> Self {
        Self(vec![Strand::Text(text)])
    }
}

impl Rope {
    /// The list of these completed turns of a chat, as clients are told them.
    pub fn turns(chat: &str, turns: Vec<CompletedTurn>) -> Self {
        let mut list = Self::from(b"[".to_vec());
        list.append(Self::items(chat, turns));
        list.text(b"]");
        list
    }

    /// Returns the items of that list.
    pub fn items(chat: &str, turns: Vec<CompletedTurn>) -> Self {
        Self(vec![Strand::Turns(chat.to_owned(), turns)])
    }

    /// One of these turns.
    pub fn turn(chat: &str, turn: &CompletedTurn) -> Bytes {
        turn_for_clients(chat, turn)
    }

    /// The members of an object, by their names.
    pub fn members_of(object: Value) -> BTreeMap<String, Self> {
        let Value::Object(members) = object else { return BTreeMap::new() };
        members.into_iter().map(|(name, value)| (name, sorted(value).into())).collect()
    }

    /// An object of these members, in this order.
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

    /// A list of these.
    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        let mut rope = Self::from(b"[".to_vec());
        for (number, item) in items.into_iter().enumerate() {
            rope.text(if number > 0 { b"," } else { b"" });
            rope.append(item);
        }
        rope.text(b"]");
        rope
    }

    /// Goes on with this text.
    pub fn text(&mut self, more: &[u8]) {
        match self.0.last_mut() {
            Some(Strand::Text(text)) => text.extend_from_slice(more),
            _ => self.0.push(Strand::Text(more.to_vec())),
        }
    }

    /// Goes on with this.
    pub fn append(&mut self, more: Self) {
        for strand in more.0 {
            match strand {
                Strand::Text(text) => self.text(&text),
                turns => self.0.push(turns),
            }
        }
    }

    /// Hands out its pieces, in order, until one is not taken; each turn's text as `said` says it.
    /// Returns whether all were taken.
    pub fn write(self, said: &mut dyn FnMut(Bytes) -> Bytes, take: &mut dyn FnMut(Bytes) -> bool) -> bool {
        self.0.into_iter().all(|strand| match strand {
            Strand::Text(text) => take(text.into()),
            Strand::Turns(chat, turns) => turns.iter().enumerate().all(|(number, turn)| {
                (number == 0 || take(Bytes::from_static(b","))) && take(said(turn_for_clients(&chat, turn)))
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
