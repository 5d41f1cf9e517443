//! Sessions that nobody uses: how much memory they may take, and which of them go.
//!
//! Owns: which session is idle, what it takes in memory, and letting those that were used least
//! recently go until the rest is within the budget. A session that is needed again is loaded (see
//! `loaded`).
//! Never: lets go of a session that somebody follows, that works, or that the store does not have
//! as it is.

use crate::host::annotations;
use crate::host::conversations;
use crate::host::ledger::Ledger;
use crate::host::terminals;
use ahp_types::state::SessionLifecycle;

use super::model::{Chat, Session, SessionKey};
use super::{Host, Step};
use crate::state::history::INDEX_BYTES;

/// What a session is counted for besides the text of its chats, in bytes: it is no more for nearly
/// all of them.
pub const SESSION_BYTES: usize = 16 << 10;

/// Idle sessions are looked for once in so many steps that change a session: looking takes a step
/// through all that are in memory.
const IDLE_EVERY: u64 = 16;

/// Size in bytes of a session that idle ones are looked for at once because of: it was loaded, or
/// has lost a subscriber, and perhaps nobody uses it again.
const LARGE_BYTES: usize = 1 << 20;

impl Chat {
    /// What it takes in memory, nearly, in bytes: its state as JSON text, without what only the
    /// store must have.
    fn memory_bytes(&self) -> usize {
        let conversation = &self.conversation;
        let context = self.context.len() * INDEX_BYTES;
        self.saved.row_bytes + context + conversation.history().held_bytes() + conversation.turn_bytes()
    }
}

impl Host {
    /// Lets the least recently used of the idle sessions out of memory, if they take more than they
    /// may. The store has all of them as they are.
    pub(super) fn let_idle_sessions_go(&mut self, step: &mut Step<'_>) {
        let left = self.ledger.take_left();
        let mut left = left.iter().filter_map(|key| self.ledger.channels.sessions.get(key));
        self.catalogue.is_due |= left.any(|session| memory_bytes(&self.ledger, session) >= LARGE_BYTES);
        let is_due = self.catalogue.is_due || self.ledger.uses() >= self.catalogue.looked_at_use + IDLE_EVERY;
        if !is_due || self.ledger.failing().is_some() || self.catalogue.budget == usize::MAX {
            return;
        }
        (self.catalogue.is_due, self.catalogue.looked_at_use) = (false, self.ledger.uses());
        let sessions = self.ledger.channels.sessions.iter();
        let idle = sessions.filter(|(key, session)| {
            self.is_idle(session) && !self.summaries.is_pending(&self.ledger, **key)
        });
        let mut idle: Vec<(u64, SessionKey, usize)> =
            idle.map(|(key, session)| (session.used, *key, memory_bytes(&self.ledger, session))).collect();
        let mut bytes: usize = idle.iter().map(|(_, _, bytes)| bytes).sum();
        // One that alone takes more than all may does not push out the others.
        idle.sort_unstable_by_key(|(used, _, bytes)| (*bytes <= self.catalogue.budget, *used));
        for (_, key, its_bytes) in idle {
            if bytes <= self.catalogue.budget {
                break;
            }
            bytes -= its_bytes;
            self.let_go(step, key);
        }
    }

    fn let_go(&mut self, step: &mut Step<'_>, key: SessionKey) {
        let chats = self.ledger.channels.chats_in(key);
        self.changes.forget_changesets_of(&mut self.ledger, key);
        annotations::remove_annotations_of(&mut self.ledger, key);
        for &chat in &chats {
            conversations::close_conversation(&mut self.ledger, step, chat);
            terminals::forget_terminals_of(&mut self.ledger, chat);
            if let Some(chat) = self.ledger.channels.chats.remove(&chat) {
                self.ledger.channels.by_uri.remove(&chat.channel.uri);
            }
        }
        if let Some(session) = self.ledger.channels.sessions.remove(&key) {
            self.ledger.channels.by_uri.remove(&session.channel.uri);
            self.catalogue.evicted.note(key, session, chats, self.ledger.head(), self.ledger.floor());
        }
    }

    /// Whether nobody would notice that a session is not in memory.
    fn is_idle(&self, session: &Session) -> bool {
        session.channel.subscribers.is_empty()
            && !session.ahead
            && session.state.lifecycle != SessionLifecycle::Creating
            && terminals::has_idle_terminals(&self.ledger, session)
            && self.changes.has_idle_changesets(&self.ledger, session)
            && !self.changes.checkpoints.asks_git_for(&self.ledger, session)
            && annotations::has_idle_annotations(&self.ledger, session)
            && its_chats(&self.ledger, session).all(|chat| {
                let in_background = chat.conversation.state().background_work.as_ref();
                chat.channel.subscribers.is_empty()
                    && chat.run.is_none()
                    && chat.begins.is_none()
                    && chat.settling.is_none()
                    && in_background.is_none_or(Vec::is_empty)
            })
    }
}

/// What a session takes in memory, nearly, in bytes.
fn memory_bytes(ledger: &Ledger, session: &Session) -> usize {
    SESSION_BYTES
        + annotations::annotations_bytes(ledger, session)
        + its_chats(ledger, session).map(Chat::memory_bytes).sum::<usize>()
}

fn its_chats<'a>(ledger: &'a Ledger, session: &'a Session) -> impl Iterator<Item = &'a Chat> {
    ledger.channels.chats_of(session).filter_map(|key| ledger.channels.chats.known(key))
}
