//! Memory that sessions take.
//!
//! Owns: estimating the bytes of a session with its chats, and how often to search for idle
//! sessions. The router evicts them (`router::persistence`), and `loaded` restores them.
//! Never: evicts a session itself.

use crate::host::annotations;
use crate::host::ledger::Ledger;
use crate::host::model::{Chat, Session};
use crate::state::history::INDEX_BYTES;

/// Overhead of a session besides the text of its chats, in bytes; nearly all sessions have less.
pub const SESSION_BYTES: usize = 16 << 10;

/// Number of uses of sessions between searches for idle ones, which visit all in memory.
pub(in crate::host) const IDLE_EVERY: u64 = 16;

/// Size in bytes of a session that triggers a search for idle ones when loaded or unsubscribed.
pub(in crate::host) const LARGE_BYTES: usize = 1 << 20;

impl Chat {
    /// Estimates the memory of a chat in bytes of JSON text, without data only in the store.
    fn memory_bytes(&self) -> usize {
        let conversation = &self.conversation;
        let context = self.context.len() * INDEX_BYTES;
        let turns = conversation.history().held_bytes() + conversation.turn_bytes();
        self.saved.row_bytes + context + self.preview_bytes + turns
    }
}

/// Estimates the memory of a session with its chats, in bytes.
pub(in crate::host) fn memory_bytes(ledger: &Ledger, session: &Session) -> usize {
    SESSION_BYTES
        + annotations::annotations_bytes(ledger, session)
        + its_chats(ledger, session).map(Chat::memory_bytes).sum::<usize>()
}

pub(in crate::host) fn its_chats<'a>(
    ledger: &'a Ledger,
    session: &'a Session,
) -> impl Iterator<Item = &'a Chat> {
    ledger.channels.chats_of(session).filter_map(|key| ledger.channels.chats.known(key))
}
