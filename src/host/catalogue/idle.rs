//! Memory that sessions take.
//!
//! Owns: estimating how many bytes a session with its chats takes, and how often idle sessions are
//! looked for. The router evicts them (`router::keeping`), and `loaded` brings them back.
//! Never: evicts a session itself.

use crate::host::annotations;
use crate::host::ledger::Ledger;
use crate::host::model::{Chat, Session};
use crate::state::history::INDEX_BYTES;

/// Overhead of a session besides the text of its chats, in bytes: nearly all sessions have less.
pub const SESSION_BYTES: usize = 16 << 10;

/// Idle sessions are looked for once in so many steps that change a session: looking takes a step
/// through all that are in memory.
pub(in crate::host) const IDLE_EVERY: u64 = 16;

/// Size in bytes of a session that idle ones are looked for at once because of: it was loaded, or
/// has lost a subscriber, and perhaps nobody uses it again.
pub(in crate::host) const LARGE_BYTES: usize = 1 << 20;

impl Chat {
    /// Estimates the memory of a chat, in bytes: its state as JSON text, without what only the
    /// store must have.
    fn memory_bytes(&self) -> usize {
        let conversation = &self.conversation;
        let context = self.context.len() * INDEX_BYTES;
        self.saved.row_bytes + context + conversation.history().held_bytes() + conversation.turn_bytes()
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
