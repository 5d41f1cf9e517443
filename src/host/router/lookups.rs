//! Lookups: data that must be read before a message is handled.
//!
//! Owns: which channels, actions, watches and texts of turns a message needs that are not in
//! memory, so that they are read while other messages are handled.
//! Never: reads one, or decides anything by them. A text that is missing here and needed later is
//! read synchronously, which delays all clients.

use crate::host::model::Chat;
use crate::host::{Host, LoadedSession};
use crate::state::history::CompletedTurn;
use crate::state::texts::TurnText;
use crate::wire::references::{MessageReferences, ReferencedTurns};
use crate::wire::uris;
use crate::wire::watches::WATCHES_MAX;

/// Maximum bytes of texts that are prefetched where it is not known which of them are needed.
const BYTES_MAX: usize = 32 << 20;

/// Maximum bytes of an attached chat's newest turns that are prefetched; only part is sent.
const ATTACHED_BYTES_MAX: usize = 1 << 20;

fn newest_first(chat: &Chat) -> impl Iterator<Item = &CompletedTurn> {
    chat.conversation.history().turns().iter().rev()
}

impl Host {
    /// Returns the URIs that a message names and that are not in memory. The store knows channels
    /// by their own URIs only.
    pub fn absent_channels(&self, references: &MessageReferences) -> Vec<String> {
        let uris = references.channels.union(&references.attached);
        let absent = uris.filter(|uri| self.ledger.find(uri).is_none());
        let mut absent: Vec<String> =
            absent.flat_map(|uri| uris::plain_form(uri).into_iter().chain([uri.clone()])).collect();
        absent.retain(|uri| !self.ledger.channels.by_uri.contains_key(uri));
        absent
    }

    /// Returns the cursor of a `reconnect` if it is older than the actions in memory.
    pub fn cursor_before_memory(&self, references: &MessageReferences) -> Option<u64> {
        references.cursor.filter(|cursor| *cursor < self.ledger.floor())
    }

    /// Returns the watches to start before a message is handled, limited per connection.
    pub fn watches_to_begin(&self, references: &MessageReferences) -> Vec<String> {
        let absent = references.watches.iter().filter(|uri| self.ledger.find(uri).is_none());
        absent.take(WATCHES_MAX).cloned().collect()
    }

    /// Returns the texts of turns that a message needs and that are not in memory. `restored` are
    /// the sessions that are loaded for the message.
    pub fn texts_needed<'a>(
        &'a self,
        references: &MessageReferences,
        restored: impl Iterator<Item = &'a LoadedSession> + Clone,
    ) -> Vec<TurnText> {
        let chat = |uri: &str| {
            let here = self.ledger.find_chat(uri).and_then(|key| self.ledger.channels.chats.known(key));
            here.or_else(|| restored.clone().find_map(|loaded| loaded.chat(uri)))
        };
        let mut needed = Vec::new();
        let mut need = |turns: &mut dyn Iterator<Item = &CompletedTurn>, bytes_max: usize| {
            let mut bytes = 0;
            for turn in turns.take_while(|turn| {
                bytes += turn.bytes();
                bytes <= bytes_max
            }) {
                if !turn.is_in_memory() {
                    needed.push(turn.place().clone());
                }
            }
        };
        for turns in &references.turns {
            match turns {
                ReferencedTurns::CutBehind { chat: uri, turn } => {
                    let last = chat(uri).and_then(|chat| chat.conversation.history().get(turn));
                    need(&mut last.into_iter(), usize::MAX);
                }
                ReferencedTurns::Through { chat: uri, turn } => {
                    let turns = chat(uri).and_then(|chat| chat.conversation.history().through(turn));
                    let Some((last, earlier)) = turns.and_then(<[_]>::split_last) else { continue };
                    need(&mut std::iter::once(last), usize::MAX);
                    need(&mut earlier.iter().filter(|turn| turn.may_show_terminals()), BYTES_MAX);
                }
                ReferencedTurns::WithContents(uri) => {
                    let turns = chat(uri).into_iter().flat_map(newest_first);
                    need(&mut turns.filter(|turn| turn.may_hold_contents()), BYTES_MAX);
                }
                ReferencedTurns::WithTerminals(uri) => {
                    let turns = chat(uri).into_iter().flat_map(newest_first);
                    need(&mut turns.filter(|turn| turn.may_show_terminals()), BYTES_MAX);
                }
            }
        }
        for uri in &references.attached {
            need(&mut chat(uri).into_iter().flat_map(newest_first), ATTACHED_BYTES_MAX);
        }
        needed
    }
}
