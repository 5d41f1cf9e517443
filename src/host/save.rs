//! What is kept of the state.
//!
//! Owns: which rows a step leaves to be saved. Their text is that of `rows`; how they come back is
//! in `loaded`.
//! Never: writes anything itself; rows go out as records.
//!
//! A session's row is saved whole whenever it has changed. A chat's row is its state without its
//! completed turns, which are rows of their own. While a turn runs the saved actions make up for
//! what the chat's row does not know, so the row is saved again only when they have grown much
//! larger than it, or are many.

use crate::host::annotations;
use crate::host::effects::ChannelId;
use crate::host::ledger::Ledger;
use crate::host::save;
use crate::wire::channels::ChannelKind;
use std::borrow::Cow;
use std::ops::Range;

use ahp_types::state::ChatOrigin;
use bytes::Bytes;

use super::attached;
use super::effects::{ChatRow, Output, Record, SessionRow};
use super::model::{Chat, SessionKey};
use super::rows::{ChatBody, SessionBody};
use super::{ChatKey, Host, Step};
use crate::wire::names::Named;

impl Host {
    /// Leaves the row of a channel to be saved as the channel is now.
    pub(in crate::host) fn save_channel(&mut self, step: &mut Step<'_>, id: ChannelId) {
        match id.kind {
            ChannelKind::Session => self.save_session(step, id.key.into()),
            ChannelKind::Chat => save::save_chat(&mut self.ledger, step, id.key.into()),
            ChannelKind::Root => self.ledger.channels.root.save(step),
            #[cfg(test)]
            ChannelKind::Sample => {
                if let Some(sample) = self.ledger.channels.samples.get(&id.key.into()) {
                    sample.save(step, id);
                }
            }
            ChannelKind::Terminal
            | ChannelKind::Watch
            | ChannelKind::Annotations
            | ChannelKind::Changeset => {}
        }
    }

    /// Leaves everything that has changed to be saved, and then lets sessions that nobody uses out
    /// of memory.
    pub(super) fn save(&mut self, step: &mut Step<'_>) {
        let unsaved = self.ledger.take_dirty();
        if !unsaved.is_empty() {
            let used = self.ledger.next_use();
            for id in &unsaved {
                let session = self.ledger.channels.session_of(*id);
                if let Some(session) = session.and_then(|key| self.ledger.channels.sessions.known_mut(key)) {
                    session.used = used;
                }
            }
        }
        for id in unsaved {
            self.save_channel(step, id);
        }
        self.let_idle_sessions_go(step);
    }

    /// Leaves a session to be saved.
    pub(super) fn save_session(&mut self, step: &mut Step<'_>, key: SessionKey) {
        if self.ledger.channels.sessions.known(key).is_some_and(|session| !session.ahead) {
            if let Some(row) = self.session_row(key) {
                step.say(Output::Record(Record::Session(row)));
            }
        }
    }

    /// Leaves a chat that has another session than before to be saved, behind that session.
    pub(super) fn save_moved(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let session = self.ledger.channels.chats.known(key).map(|chat| chat.session);
        if let Some(row) = session.and_then(|session| self.session_row(session)) {
            step.say(Output::Record(Record::Session(row)));
        }
        save_whole_chat(&mut self.ledger, step, key);
    }

    /// A session's row, whole.
    fn session_row(&mut self, key: SessionKey) -> Option<SessionRow> {
        let summary = self.ledger.channels.summary(key)?;
        let session = self.ledger.channels.sessions.known_mut(key)?;
        let summary = session.written_rows.summary(summary);
        let chats = std::mem::take(&mut session.state.chats);
        let rows = session.written_rows.whole.list(&chats);
        let row = self.session_row_with(key, summary, rows);
        if let Some(session) = self.ledger.channels.sessions.known_mut(key) {
            session.state.chats = chats;
        }
        row
    }

    /// A session's row with this text of the rows of its chats, which are not in its state.
    fn session_row_with(&self, key: SessionKey, summary: Bytes, rows: Vec<u8>) -> Option<SessionRow> {
        let session = self.ledger.channels.sessions.known(key)?;
        let body = SessionBody {
            state: Cow::Borrowed(&session.state),
            created_at: Cow::Borrowed(&session.created_at),
            born_at: session.channel.born_at,
            config: Cow::Borrowed(&session.config),
            title_by: session.title_by,
            reviewed: Cow::Borrowed(&session.reviewed),
            annotations: Cow::Borrowed(annotations::annotations_of(&self.ledger, key)),
            discarded: Cow::Borrowed(&session.discarded),
            kept: Cow::Borrowed(&session.kept),
            seen: self.changes.sights.sight_to_keep(key),
            shown_at: Some(session.shown_at).filter(|at| *at > session.channel.born_at),
        };
        Some(SessionRow {
            key,
            uri: session.channel.uri.clone(),
            modified_at: session.modified_at.clone(),
            summary,
            body: body.to_json_with(rows),
        })
    }

    /// The URIs that a message names and that are not in memory.
    pub fn absent(&self, named: &Named) -> Vec<String> {
        self.ledger.absent(named)
    }

    /// The cursor of a `reconnect` that reaches further back than what is in memory.
    pub fn cursor_into_the_past(&self, named: &Named) -> Option<u64> {
        self.ledger.cursor_into_the_past(named)
    }
}

/// Leaves a chat to be saved, if what the store has of it does not make up for what has
/// changed.
pub(super) fn save_chat(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let is_kept = ledger.channels.sessions.known(chat.session).is_some_and(|session| !session.ahead);
    if is_kept && chat.saved.row_due {
        save_whole_chat(ledger, step, key);
    }
}

fn save_whole_chat(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let shared = turns_kept_elsewhere(ledger, key);
    let head = ledger.head();
    if let Some(chat) = ledger.channels.chats.known_mut(key) {
        save_chat_row(step, key, chat, shared, head);
    }
}

/// The chat that a new one goes on from, and where the two have the same turns that the store
/// has already.
fn turns_kept_elsewhere(ledger: &Ledger, key: ChatKey) -> Option<(ChatKey, Vec<Range<usize>>)> {
    let chat = ledger.channels.chats.known(key).filter(|chat| !chat.saved.context)?;
    let Some(ChatOrigin::Fork { chat: uri, .. } | ChatOrigin::SideChat { chat: uri, .. }) =
        &chat.conversation.state().origin
    else {
        return None;
    };
    let from = ledger.find_chat(uri)?;
    let source = ledger.channels.chats.known(from).filter(|source| source.saved.context)?;
    let kept = source.context.len() + source.saved.turns.min(source.saved.turns_kept);
    let mut places: Vec<Range<usize>> = Vec::new();
    for (place, (theirs, ours)) in source.all_turns().take(kept).zip(chat.all_turns()).enumerate() {
        match places.last_mut() {
            _ if !theirs.shares_text(ours) => {}
            Some(last) if last.end == place => last.end += 1,
            _ => places.push(place..place + 1),
        }
    }
    Some((from, places))
}

fn save_chat_row(
    step: &mut Step<'_>,
    key: ChatKey,
    chat: &mut Chat,
    shared: Option<(ChatKey, Vec<Range<usize>>)>,
    head: u64,
) {
    attached::forget_what_is_gone(chat);
    let saved = &mut chat.saved;
    let context_turns = chat.context.len();
    if saved.turns_kept < saved.turns {
        step.say(Output::Record(Record::TurnsCut(key, (context_turns + saved.turns_kept) as u64)));
        saved.turns = saved.turns_kept;
    }
    let known = if saved.context { context_turns + saved.turns } else { 0 };
    let (from, shared) = shared.unwrap_or((key, Vec::new()));
    let mut shared = shared.into_iter().peekable();
    let history = chat.conversation.history();
    for (turn, place) in chat.context.iter().chain(history.turns()).skip(known).zip(known..) {
        let range = shared.peek().filter(|range| range.contains(&place)).cloned();
        match range {
            Some(range) if range.start == place => {
                let places = range.start as u64..range.end as u64;
                step.say(Output::Record(Record::TurnsShared { from, to: key, places }));
            }
            Some(_) => {}
            None => step.say(Output::Record(Record::Turn(key, place as u64, turn.clone()))),
        }
        shared.next_if(|range| range.end == place + 1);
    }
    saved.context = true;
    (saved.turns, saved.turns_kept) = (history.len(), history.len());
    let body = ChatBody {
        state: Cow::Borrowed(chat.conversation.state()),
        born_at: chat.channel.born_at,
        title_by: chat.title_by,
        removed_turns: Cow::Borrowed(&chat.removed_turns),
        consumed: chat.consumed.iter().cloned().collect(),
        selecting: chat.selecting.iter().map(|waiting| waiting.change.clone()).collect(),
        following: chat.following.clone(),
        progress: chat.progress.clone(),
        context_turns,
        attached: Cow::Borrowed(&chat.attached),
        handle: chat.handle.as_ref().map(|handle| handle.name.clone()),
        resumes: chat.handle.as_ref().is_some_and(|handle| handle.resumes),
    };
    let body = body.to_json();
    chat.saved.row_due = false;
    chat.saved.behind_bytes = 0;
    chat.saved.row_bytes = body.len();
    step.say(Output::Record(Record::Chat(ChatRow {
        key,
        session: chat.session,
        uri: chat.channel.uri.clone(),
        running: chat.run.is_some(),
        as_of: head,
        body,
    })));
}
