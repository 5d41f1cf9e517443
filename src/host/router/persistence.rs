//! Saving, evicting and restoring sessions.
//!
//! Owns: the row of a session, to which several owners contribute; which session is idle; and the
//! order in which the owners restore one.
//! Never: evicts a session that has subscribers, is working, or is not saved.

use std::borrow::Cow;

use ahp_types::state::{Customization, SessionSummary};
use bytes::Bytes;

use crate::host::agents::conversations;
use crate::host::catalogue::idle::{IDLE_EVERY, LARGE_BYTES};
use crate::host::catalogue::loaded::{LoadedChat, LoadedHeader, LoadedSession};
use crate::host::catalogue::rows::SessionBody;
use crate::host::catalogue::summaries::Summaries;
use crate::host::catalogue::{idle, loaded, save, Catalogue};
use crate::host::changes::Changes;
use crate::host::effects::{ChannelId, Output, Record, SessionRow};
use crate::host::ledger::Ledger;
use crate::host::model::{Session, SessionKey};
use crate::host::terminals::background;
use crate::host::{
    annotations, canvases, catalogue, clients, customizations, terminals, ChatKey, Host, Step,
};
use crate::wire::channels::ChannelKind;

impl Host {
    /// Inserts a session from the store. A turn that was running when its process ended is ended
    /// once, with an error that is resumable if its agent can resume.
    pub(in crate::host) fn restore(&mut self, step: &mut Step<'_>, loaded: LoadedSession) {
        let LoadedSession { key, uris, deaths, made } = loaded;
        if self.catalogue.disposed.contains(key) || self.ledger.channels.sessions.contains_key(&key) {
            return;
        }
        let is_taken = |uri: &&String| self.ledger.channels.by_uri.contains_key(*uri);
        if let Some(taken) = uris.iter().find(is_taken) {
            tracing::error!(
                session = uris[0],
                taken,
                "a session is left out: another channel has a URI of it"
            );
            let reason = format!("another channel has the URI `{taken}`");
            let left_out: Vec<String> = uris.iter().filter(|uri| !is_taken(uri)).cloned().collect();
            self.ledger.note_unreadable(left_out.into_iter().map(|uri| (uri, reason.clone())));
            return;
        }
        let (LoadedHeader { mut session, annotations, repository }, chats) = match made {
            Ok(made) => made,
            Err(reason) => {
                tracing::error!(session = uris[0], reason, "a session cannot be read");
                self.ledger.note_unreadable(uris.into_iter().map(|uri| (uri, reason.clone())));
                return;
            }
        };
        for uri in &uris {
            self.ledger.note_readable(uri);
        }
        let repaired = loaded::repair_catalogue(&mut session, &chats);
        self.ledger.channels.by_uri.insert(session.channel.uri.clone(), key.into());
        session.stopped_servers = self.catalogue.stopped_servers.remove(&key).unwrap_or_default();
        let creating = session.is_creating();
        let sent = session.sent_summary.clone();
        session.summary_sent_at = self.catalogue.evicted.remove(key);
        self.ledger.channels.sessions.insert(key, session);
        annotations::add_annotations(&mut self.ledger, key, annotations);
        if let Some(status) = repository {
            self.changes.statuses.restore_status(key, status);
        }
        let keys: Vec<(ChatKey, bool, bool)> =
            chats.iter().map(|it| (it.key, it.is_cut, it.has_ended)).collect();
        for LoadedChat { key, mut chat, is_cut, .. } in chats {
            if is_cut {
                // A cut chat cannot be replayed from older cursors.
                chat.channel.born_at = self.ledger.head() + 1;
            }
            self.ledger.channels.by_uri.insert(chat.channel.uri.clone(), key.into());
            self.ledger.channels.chats.insert(key, chat);
        }
        self.ledger.note_use(key);
        // A version that did not know these members may have written the summary.
        let is_other =
            |summary: SessionSummary| (summary.meta, summary.annotations) != (sent.meta, sent.annotations);
        if self.ledger.channels.summary(key).is_some_and(is_other) {
            self.ledger.session_changed(key);
        }
        self.clients.await_clients(&mut self.ledger, step, key);
        // No conversation is open, and the configuration may have changed.
        self.plugins.follow_session(&mut self.ledger, &mut self.relays, step, key);
        customizations::refresh_session(&mut self.ledger, step, key);
        for (chat, is_cut, has_ended) in keys {
            background::background_work_lost(&mut self.ledger, step, chat);
            canvases::canvases_lost(&mut self.ledger, step, chat);
            loaded::end_interrupted_turn(&mut self.ledger, &self.agents, step, chat, is_cut, deaths);
            if has_ended {
                loaded::save_ended_turn(&mut self.ledger, step, chat, deaths);
            }
        }
        self.changes.checkpoints.checkpoint_imported(&mut self.ledger, step, key);
        // Before anything else: a message may continue the turn that has ended.
        self.deliver(step);
        self.changes.checkpoints.repeat_interrupted_checkpoint(&mut self.ledger, step, key);
        if repaired {
            let default = self
                .ledger
                .channels
                .sessions
                .known(key)
                .and_then(|session| session.state.default_chat.clone());
            catalogue::chats::set_movable(&mut self.ledger, step, &default.unwrap_or_default(), false);
            catalogue::sync_session(&mut self.ledger, step, key);
        }
        if creating {
            conversations::open_session(&mut self.ledger, &self.agents, step, key);
        }
    }
}

/// Evicts the least recently used idle sessions while idle ones exceed the memory budget. Their
/// rows in the store are up to date.
pub(in crate::host) fn evict_idle_sessions(
    ledger: &mut Ledger,
    changes: &mut Changes,
    catalogue: &mut Catalogue,
    summaries: &Summaries,
    step: &mut Step<'_>,
) {
    let left = ledger.take_left();
    if catalogue.budget == usize::MAX {
        return;
    }
    let mut left = left.iter().filter_map(|key| ledger.channels.sessions.get(key));
    catalogue.is_due |= left.any(|session| idle::memory_bytes(ledger, session) >= LARGE_BYTES);
    let is_due = catalogue.is_due || ledger.uses() >= catalogue.last_eviction_use + IDLE_EVERY;
    if !is_due || ledger.failing().is_some() {
        return;
    }
    (catalogue.is_due, catalogue.last_eviction_use) = (false, ledger.uses());
    let sessions = ledger.channels.sessions.iter();
    let idle = sessions
        .filter(|(key, session)| is_idle(ledger, changes, session) && !summaries.is_pending(ledger, **key));
    let mut idle: Vec<(u64, SessionKey, usize)> =
        idle.map(|(key, session)| (session.used, *key, idle::memory_bytes(ledger, session))).collect();
    let mut bytes: usize = idle.iter().map(|(_, _, bytes)| bytes).sum();
    // A session that alone exceeds the budget is evicted first, to spare the others.
    idle.sort_unstable_by_key(|(used, _, bytes)| (*bytes <= catalogue.budget, *used));
    for (_, key, its_bytes) in idle {
        if bytes <= catalogue.budget {
            break;
        }
        bytes -= its_bytes;
        evict(ledger, changes, catalogue, step, key);
    }
}

pub(super) fn evict(
    ledger: &mut Ledger,
    changes: &mut Changes,
    catalogue: &mut Catalogue,
    step: &mut Step<'_>,
    key: SessionKey,
) {
    let chats = ledger.channels.chats_in(key);
    let mut uris = Vec::with_capacity(chats.len() + 1);
    clients::plugins_may_differ(ledger, step, key);
    changes.remove_changesets_of(ledger, key);
    annotations::remove_annotations_of(ledger, key);
    for &chat in &chats {
        conversations::close_conversation(ledger, step, chat);
        terminals::remove_terminals_of(ledger, chat);
        canvases::remove_canvases_of(ledger, chat);
        if let Some(chat) = ledger.channels.chats.remove(&chat) {
            ledger.channels.by_uri.remove(&chat.channel.uri);
            uris.push(chat.channel.uri);
        }
    }
    if let Some(mut session) = ledger.channels.sessions.remove(&key) {
        ledger.channels.by_uri.remove(&session.channel.uri);
        uris.push(session.channel.uri.clone());
        step.emit(Output::Record(Record::Evicted(uris)));
        let stopped = std::mem::take(&mut session.stopped_servers);
        if !stopped.is_empty() {
            catalogue.stopped_servers.insert(key, stopped);
        }
        catalogue.evicted.note(key, session, chats, ledger.head(), ledger.floor());
    }
}

/// Saves everything that has changed, then evicts idle sessions.
pub(in crate::host) fn save(
    ledger: &mut Ledger,
    changes: &mut Changes,
    catalogue: &mut Catalogue,
    summaries: &Summaries,
    step: &mut Step<'_>,
) {
    let unsaved = ledger.take_dirty();
    if !unsaved.is_empty() {
        let used = ledger.next_use();
        for id in &unsaved {
            let session = ledger.channels.session_of(*id);
            if let Some(session) = session.and_then(|key| ledger.channels.sessions.known_mut(key)) {
                session.used = used;
            }
        }
    }
    for id in unsaved {
        save_channel(ledger, changes, step, id);
    }
    evict_idle_sessions(ledger, changes, catalogue, summaries, step);
}

/// Returns whether a session may be evicted: it has no subscribers and no work in progress.
pub(super) fn is_idle(ledger: &Ledger, changes: &Changes, session: &Session) -> bool {
    session.channel.subscribers.is_empty()
        && !session.ahead
        && !session.is_creating()
        && terminals::has_idle_terminals(ledger, session)
        && canvases::has_no_canvases(ledger, session)
        && changes.has_idle_changesets(ledger, session)
        && !changes.checkpoints.has_job_for(ledger, session)
        && annotations::has_idle_annotations(ledger, session)
        && idle::its_chats(ledger, session).all(|chat| {
            let in_background = chat.conversation.state().background_work.as_ref();
            chat.channel.subscribers.is_empty()
                && chat.run.is_none()
                && chat.own_turn_cause.is_none()
                && chat.cancelled_run.is_none()
                && !chat.opening_waits
                && in_background.is_none_or(Vec::is_empty)
        })
}

/// Saves the row of a channel in its present state.
pub(in crate::host) fn save_channel(
    ledger: &mut Ledger,
    changes: &Changes,
    step: &mut Step<'_>,
    id: ChannelId,
) {
    match id.kind {
        ChannelKind::Session => save_session(ledger, changes, step, id.key.into()),
        ChannelKind::Chat => save::save_chat(ledger, step, id.key.into()),
        ChannelKind::Root => ledger.channels.root.save(step),
        #[cfg(test)]
        ChannelKind::Sample => {
            if let Some(sample) = ledger.channels.samples.get(&id.key.into()) {
                sample.save(step, id);
            }
        }
        ChannelKind::Automations => {
            ledger.channels.automations.values().for_each(|list| list.save(step));
        }
        ChannelKind::AutomationRun => {
            let key = id.key.into();
            ledger.channels.automation_runs.get(&key).into_iter().for_each(|run| run.save(step, key));
        }
        ChannelKind::Terminal | ChannelKind::Watch | ChannelKind::Annotations => {}
        ChannelKind::Changeset | ChannelKind::Canvas => {}
    }
}

pub(in crate::host) fn save_session(
    ledger: &mut Ledger,
    changes: &Changes,
    step: &mut Step<'_>,
    key: SessionKey,
) {
    if ledger.channels.sessions.known(key).is_some_and(|session| !session.ahead) {
        if let Some(row) = session_row(ledger, changes, key) {
            step.emit(Output::Record(Record::Session(row)));
        }
    }
}

/// Saves a chat that has moved to another session, after that session.
pub(in crate::host) fn save_moved(ledger: &mut Ledger, changes: &Changes, step: &mut Step<'_>, key: ChatKey) {
    let session = ledger.channels.chats.known(key).map(|chat| chat.session);
    if let Some(row) = session.and_then(|session| session_row(ledger, changes, session)) {
        step.emit(Output::Record(Record::Session(row)));
    }
    save::save_whole_chat(ledger, step, key);
}

pub(super) fn session_row(ledger: &mut Ledger, changes: &Changes, key: SessionKey) -> Option<SessionRow> {
    let summary = ledger.channels.summary(key)?;
    let session = ledger.channels.sessions.known_mut(key)?;
    let summary = session.written_rows.summary(summary);
    let chats = std::mem::take(&mut session.state.chats);
    let rows = session.written_rows.whole.list(&chats);
    let row = session_row_with(ledger, changes, key, summary, rows);
    if let Some(session) = ledger.channels.sessions.known_mut(key) {
        session.state.chats = chats;
    }
    row
}

/// Returns a session's row with the rows of its chats as text; its state must not contain them.
pub(super) fn session_row_with(
    ledger: &Ledger,
    changes: &Changes,
    key: SessionKey,
    summary: Bytes,
    rows: Vec<u8>,
) -> Option<SessionRow> {
    let session = ledger.channels.sessions.known(key)?;
    let mut customizations = session.state.customizations.iter().flatten();
    let has_plugins = customizations.any(|it| matches!(it, Customization::Plugin(_)));
    let has_decisions = has_plugins || !session.decided.is_empty();
    let body = SessionBody {
        state: Cow::Borrowed(&session.state),
        created_at: Cow::Borrowed(&session.created_at),
        born_at: session.channel.born_at,
        config: Cow::Borrowed(&session.config),
        title_by: session.title_by,
        reviewed: Cow::Borrowed(&session.reviewed),
        annotations: Cow::Borrowed(annotations::annotations_of(ledger, key)),
        reverted: Cow::Borrowed(&session.reverted),
        decided: has_decisions.then_some(Cow::Borrowed(&session.decided)),
        checkpoints: Cow::Borrowed(&session.checkpoints),
        repository: changes.statuses.status_to_save(key),
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
