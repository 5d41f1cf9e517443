//! Sessions that nobody uses: how much memory they may take, and which of them go.
//!
//! Owns: which session is idle, what it takes in memory, and letting those that were used least
//! recently go until the rest is within the budget. A session that is needed again is loaded (see
//! `loaded`).
//! Never: lets go of a session that somebody follows, that works, or that the store does not have
//! as it is.

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

/// What is so large is looked for at once, in bytes.
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
    /// This session was used just now, and perhaps never again: it was loaded, or somebody has
    /// stopped following it. A large one does not stay until others were used so often that idle
    /// ones are looked for.
    pub(super) fn note_use(&mut self, key: SessionKey) {
        self.uses += 1;
        let is_large =
            self.ledger.channels.sessions.get(&key).is_some_and(|it| self.memory_bytes(it) >= LARGE_BYTES);
        self.idle_due |= is_large;
        if let Some(session) = self.ledger.channels.sessions.get_mut(&key) {
            session.used = self.uses;
        }
    }

    /// Lets the least recently used of the idle sessions out of memory, if they take more than they
    /// may. The store has all of them as they are.
    pub(super) fn let_idle_sessions_go(&mut self, step: &mut Step<'_>) {
        let is_due = self.idle_due || self.uses >= self.idle_looked_for + IDLE_EVERY;
        if !is_due || self.ledger.failing().is_some() || self.config.memory_budget == usize::MAX {
            return;
        }
        (self.idle_due, self.idle_looked_for) = (false, self.uses);
        let sessions = self.ledger.channels.sessions.iter();
        let idle = sessions.filter(|(key, session)| self.is_idle(session) && !self.summaries.mentions(**key));
        let mut idle: Vec<(u64, SessionKey, usize)> =
            idle.map(|(key, session)| (session.used, *key, self.memory_bytes(session))).collect();
        let mut bytes: usize = idle.iter().map(|(_, _, bytes)| bytes).sum();
        // One that alone takes more than all may does not push out the others.
        idle.sort_unstable_by_key(|(used, _, bytes)| (*bytes <= self.config.memory_budget, *used));
        for (_, key, its_bytes) in idle {
            if bytes <= self.config.memory_budget {
                break;
            }
            bytes -= its_bytes;
            self.let_go(step, key);
        }
    }

    fn let_go(&mut self, step: &mut Step<'_>, key: SessionKey) {
        let chats = self.chats_of(key);
        self.forget_changesets_of(key);
        self.remove_annotations_of(key);
        for &chat in &chats {
            self.close_conversation(step, chat);
            self.forget_terminals_of(chat);
            if let Some(chat) = self.ledger.channels.chats.remove(&chat) {
                self.ledger.channels.by_uri.remove(&chat.channel.uri);
            }
        }
        if let Some(session) = self.ledger.channels.sessions.remove(&key) {
            self.ledger.channels.by_uri.remove(&session.channel.uri);
            self.let_go_lately.note(key, session, chats, self.ledger.head(), self.ledger.floor());
        }
    }

    /// Whether nobody would notice that a session is not in memory.
    fn is_idle(&self, session: &Session) -> bool {
        session.channel.subscribers.is_empty()
            && !session.ahead
            && session.state.lifecycle != SessionLifecycle::Creating
            && self.has_idle_terminals(session)
            && self.has_idle_changesets(session)
            && !self.asks_git_for(session)
            && self.has_idle_annotations(session)
            && self.its_chats(session).all(|chat| {
                let in_background = chat.conversation.state().background_work.as_ref();
                chat.channel.subscribers.is_empty()
                    && chat.run.is_none()
                    && chat.begins.is_none()
                    && chat.settling.is_none()
                    && in_background.is_none_or(Vec::is_empty)
            })
    }

    /// What a session takes in memory, nearly, in bytes.
    fn memory_bytes(&self, session: &Session) -> usize {
        SESSION_BYTES
            + self.annotations_bytes(session)
            + self.its_chats(session).map(Chat::memory_bytes).sum::<usize>()
    }

    fn its_chats<'a>(&'a self, session: &'a Session) -> impl Iterator<Item = &'a Chat> {
        self.ledger.channels.chats_of(session).filter_map(|key| self.ledger.channels.chats.known(key))
    }
}
