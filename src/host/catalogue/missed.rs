//! Changes in the list of sessions that a client has missed, besides the actions that are replayed
//! to it.
//!
//! Owns: telling it, behind the answer to its `reconnect`, of the sessions that came, went and
//! changed meanwhile: notifications are no part of a replay.
//! Never: reads the store. What happened before memory begins was read of it, with the sessions in
//! which that was.

use std::collections::{BTreeMap, BTreeSet};

use ahp_types::notifications::{
    PartialSessionSummary, SessionAddedParams, SessionRemovedParams, SessionSummaryChangedParams,
};
use ahp_types::state::SessionSummary;
use serde::Deserialize;

use crate::host::catalogue::Catalogue;
use crate::host::effects::{ActionLine, ChannelId, ChatKey, ConnectionId, Frame, Output, Past};
use crate::host::ledger::Ledger;
use crate::host::model::{Session, SessionKey};
use crate::host::{watches, Step, StoredSummary};
use crate::wire::action_lines::envelope_of;
use crate::wire::rpc::to_sorted_json;

/// Sessions of which a client has missed something.
#[derive(Debug, Default)]
pub(in crate::host) struct Missed {
    /// Sessions that the client does not know.
    added: BTreeSet<SessionKey>,
    /// Sessions that have changed.
    changed: BTreeSet<SessionKey>,
    /// Sessions that the client does not know and that are not in memory.
    stored_added: Vec<SessionSummary>,
    stored_changed: Vec<SessionSummary>,
    /// The URIs of those that are gone.
    removed: BTreeSet<String>,
    /// The channels that it goes on with.
    followed: Vec<ChannelId>,
}

/// Sessions that are not in memory any more, for as long as memory knows what happened in them
/// last.
#[derive(Debug, Default)]
pub(in crate::host) struct EvictedSessions(BTreeMap<SessionKey, EvictedSession>);

#[derive(Debug)]
struct EvictedSession {
    kept: StoredSummary,
    chats: Vec<ChatKey>,
    /// The sequence's head when it was let go: nothing happened in it since.
    head: u64,
}

impl EvictedSessions {
    /// A session is let go, with these chats. Those are forgotten of which memory knows nothing
    /// behind `floor`.
    pub(in crate::host) fn note(
        &mut self,
        key: SessionKey,
        session: Session,
        chats: Vec<ChatKey>,
        head: u64,
        floor: u64,
    ) {
        self.0.retain(|_, session| session.head > floor);
        let kept =
            StoredSummary { summary: session.sent_summary, shown_at: session.shown_at, is_removed: false };
        self.0.insert(key, EvictedSession { kept, chats, head });
    }

    /// A session is in memory again.
    pub(in crate::host) fn remove(&mut self, key: SessionKey) {
        self.0.remove(&key);
    }

    /// The sessions in which something may have happened behind this cursor, by their chats.
    fn by_chats(&self, cursor: u64) -> BTreeMap<ChatKey, SessionKey> {
        let sessions = self.0.iter().filter(|(_, session)| session.head > cursor);
        sessions.flat_map(|(key, session)| session.chats.iter().map(|chat| (*chat, *key))).collect()
    }
}

impl Missed {
    /// A session that is not in memory is told of as it is kept.
    fn add_stored(&mut self, kept: &StoredSummary, cursor: u64) {
        let list = if kept.shown_at > cursor { &mut self.stored_added } else { &mut self.stored_changed };
        list.push(kept.summary.clone());
    }

    /// Restricts the changes to those for a client that goes on with these channels.
    pub(in crate::host) fn of_subscriptions(self, followed: Vec<ChannelId>) -> Self {
        Self { followed, ..self }
    }
}

impl Catalogue {
    /// The sessions in which something has happened behind this cursor. `past` is what the store
    /// has of that; its sessions are taken.
    pub(in crate::host) fn missed_since(
        &self,
        ledger: &Ledger,
        cursor: u64,
        past: Option<&mut Past>,
    ) -> Missed {
        let mut missed = Missed::default();
        let (past, kept) = match past {
            Some(past) => (past.actions.as_slice(), std::mem::take(&mut past.sessions)),
            None => Default::default(),
        };
        let was_removed = |kept: &Option<StoredSummary>| kept.as_ref().is_none_or(|kept| kept.is_removed);
        let is_gone =
            |key: &SessionKey| self.disposed.contains(key) || kept.get(key).is_some_and(was_removed);
        let chats_let_go = self.evicted.by_chats(cursor);
        let mut dropped = BTreeSet::new();
        let recent = ledger.actions_since(cursor);
        for (target, line) in past.iter().chain(recent).filter(|(_, line)| line.server_seq > cursor) {
            let in_memory = ledger.channels.session_of(*target);
            let Some(key) = in_memory.or_else(|| chats_let_go.get(&target.chat()?).copied()) else {
                continue;
            };
            match ledger.channels.sessions.get(&key) {
                Some(session) if session.ahead => {}
                Some(session) if session.shown_at > cursor => {
                    missed.added.insert(key);
                }
                Some(_) => {
                    missed.changed.insert(key);
                }
                None if is_gone(&key) => missed.removed.extend(channel_of(line)),
                None if self.evicted.0.contains_key(&key) => {
                    dropped.insert(key);
                }
                None => {}
            }
        }
        let is_absent =
            |key: &SessionKey| !ledger.channels.sessions.contains_key(key) && !self.disposed.contains(key);
        for (key, kept) in &kept {
            // What memory remembers of it is as young or younger.
            let is_told = !dropped.contains(key) && is_absent(key);
            if let Some(kept) = kept.as_ref().filter(|kept| !kept.is_removed && is_told) {
                missed.add_stored(kept, cursor);
            }
        }
        for session in dropped.iter().filter_map(|key| self.evicted.0.get(key)) {
            missed.add_stored(&session.kept, cursor);
        }
        missed
    }
}

/// Tells a client that is back what it has missed. It comes directly behind the answer: whoever
/// lists the sessions after that knows what this changes, or has it changed already.
pub(in crate::host) fn send_missed(
    ledger: &Ledger,
    step: &mut Step<'_>,
    connection: ConnectionId,
    missed: Missed,
) {
    let channel = &ledger.channels.root.channel.uri;
    let mut notify = |method, params: Vec<u8>| {
        let params = params.into();
        step.emit(Output::Frame(connection, Frame::Notification { method, params }));
    };
    for session in missed.removed {
        let params = SessionRemovedParams { channel: channel.clone(), session };
        notify("root/sessionRemoved", to_sorted_json(&params));
    }
    let in_memory = |keys: BTreeSet<SessionKey>| {
        keys.into_iter().filter_map(|key| Some(ledger.channels.sessions.known(key)?.sent_summary.clone()))
    };
    for summary in in_memory(missed.added).chain(missed.stored_added) {
        let params = SessionAddedParams { channel: channel.clone(), summary };
        notify("root/sessionAdded", to_sorted_json(&params));
    }
    for summary in in_memory(missed.changed).chain(missed.stored_changed) {
        let (session, changes) = (summary.resource.clone(), all_of(&summary));
        let params = SessionSummaryChangedParams { channel: channel.clone(), session, changes };
        notify("root/sessionSummaryChanged", to_sorted_json(&params));
    }
    watches::notify_possible_changes(ledger, step, connection, &missed.followed);
}

/// Returns all members of a summary that can change.
fn all_of(summary: &SessionSummary) -> PartialSessionSummary {
    PartialSessionSummary {
        title: Some(summary.title.clone()),
        status: Some(summary.status),
        activity: Some(summary.activity.clone().unwrap_or_default()),
        modified_at: Some(summary.modified_at.clone()),
        working_directories: summary.working_directories.clone(),
        annotations: summary.annotations.clone(),
        changes: summary.changes.clone(),
        chats: summary.chats.clone(),
        default_chat: summary.default_chat.clone(),
        meta: Some(summary.meta.clone().unwrap_or_default()),
        ..PartialSessionSummary::default()
    }
}

/// The channel that an action was on.
fn channel_of(line: &ActionLine) -> Option<String> {
    #[derive(Deserialize)]
    struct Envelope {
        channel: String,
    }
    serde_json::from_slice::<Envelope>(&envelope_of(&line.line)).ok().map(|envelope| envelope.channel)
}
