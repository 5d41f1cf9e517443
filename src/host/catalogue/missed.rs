//! Changes in the list of sessions that a client has missed, besides the actions that are replayed
//! to it.
//!
//! Owns: notifications of added, removed and changed sessions after the answer to `reconnect`; a
//! replay contains no notifications.
//! Never: reads the store. Actions older than memory, and their sessions, were read beforehand.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

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

/// Number of disposed sessions that are remembered at least: more than are disposed of during one
/// read of the store.
const DISPOSED_MIN: usize = 1000;

#[derive(Debug, Default)]
pub(in crate::host) struct Missed {
    /// Sessions that the client does not know.
    added: BTreeSet<SessionKey>,
    changed: BTreeSet<SessionKey>,
    /// Summaries of sessions that the client does not know and that are not in memory.
    stored_added: Vec<SessionSummary>,
    stored_changed: Vec<SessionSummary>,
    /// URIs of sessions that no longer exist.
    removed: BTreeSet<String>,
    /// Channels that the client remains subscribed to.
    followed: Vec<ChannelId>,
}

/// Evicted sessions, for as long as the actions in memory include their latest ones.
#[derive(Debug, Default)]
pub(in crate::host) struct EvictedSessions(BTreeMap<SessionKey, EvictedSession>);

#[derive(Debug)]
struct EvictedSession {
    kept: StoredSummary,
    chats: Vec<ChatKey>,
    summary_sent_at: Option<u64>,
    /// Head of the sequence at eviction; the session has no later action.
    head: u64,
}

impl EvictedSessions {
    /// Records the eviction of a session, and drops the records that have neither actions after
    /// `floor` nor a summary sent since.
    pub(in crate::host) fn note(
        &mut self,
        key: SessionKey,
        session: Session,
        chats: Vec<ChatKey>,
        head: u64,
        floor: u64,
    ) {
        self.0.retain(|_, session| session.head > floor || session.summary_sent_at >= Some(floor));
        let summary_sent_at = session.summary_sent_at;
        let kept =
            StoredSummary { summary: session.sent_summary, shown_at: session.shown_at, is_removed: false };
        self.0.insert(key, EvictedSession { kept, chats, summary_sent_at, head });
    }

    /// Removes the record of a session. Returns the head of the sequence when a change of its
    /// summary was last sent.
    pub(in crate::host) fn remove(&mut self, key: SessionKey) -> Option<u64> {
        self.0.remove(&key)?.summary_sent_at
    }

    /// Returns the evicted sessions that may have actions after `cursor`, by their chats.
    fn by_chats(&self, cursor: u64) -> BTreeMap<ChatKey, SessionKey> {
        let sessions = self.0.iter().filter(|(_, session)| session.head > cursor);
        sessions.flat_map(|(key, session)| session.chats.iter().map(|chat| (*chat, *key))).collect()
    }
}

/// Sessions disposed of by this process: the actions in memory may include theirs, and a store read
/// that began earlier may still return them.
#[derive(Debug, Default)]
pub(in crate::host) struct DisposedSessions {
    keys: HashSet<SessionKey>,
    /// Sessions in the order of their disposal, each with the head of the sequence at that time.
    order: VecDeque<(SessionKey, u64)>,
}

impl DisposedSessions {
    /// Records the disposal of a session, and drops the oldest records that have no actions after
    /// `floor`.
    pub(in crate::host) fn note(&mut self, key: SessionKey, head: u64, floor: u64) {
        self.keys.insert(key);
        self.order.push_back((key, head));
        while self.order.len() > DISPOSED_MIN && self.order[0].1 <= floor {
            self.order.pop_front().map(|(key, _)| self.keys.remove(&key));
        }
    }

    pub(in crate::host) fn contains(&self, key: SessionKey) -> bool {
        self.keys.contains(&key)
    }
}

impl Missed {
    fn add_stored(&mut self, kept: &StoredSummary, cursor: u64) {
        let list = if kept.shown_at > cursor { &mut self.stored_added } else { &mut self.stored_changed };
        list.push(kept.summary.clone());
    }

    /// Sets the subscribed channels, whose watches are notified of possible changes.
    pub(in crate::host) fn of_subscriptions(self, followed: Vec<ChannelId>) -> Self {
        Self { followed, ..self }
    }
}

impl Catalogue {
    /// Returns the sessions that are new, have actions after `cursor`, or whose summary was sent
    /// since. `past` holds earlier actions from the store; its sessions are taken out. `None` if a
    /// purged session is among them, whose URI is no longer known.
    pub(in crate::host) fn missed_since(
        &self,
        ledger: &Ledger,
        cursor: u64,
        past: Option<&mut Past>,
    ) -> Option<Missed> {
        let mut missed = Missed::default();
        let (past, kept) = match past {
            Some(past) => (past.actions.as_slice(), std::mem::take(&mut past.sessions)),
            None => Default::default(),
        };
        let was_removed = |kept: &Option<StoredSummary>| kept.as_ref().is_none_or(|kept| kept.is_removed);
        let is_gone =
            |key: &SessionKey| self.disposed.contains(*key) || kept.get(key).is_some_and(was_removed);
        let chats_let_go = self.evicted.by_chats(cursor);
        let mut dropped = BTreeSet::new();
        let recent = ledger.actions_since(cursor);
        for (target, line) in past.iter().chain(recent).filter(|(_, line)| line.server_seq > cursor) {
            let in_memory = ledger.channels.session_of(*target);
            let Some(key) = in_memory.or_else(|| chats_let_go.get(&target.chat()?).copied()) else {
                continue;
            };
            match ledger.channels.sessions.get(&key) {
                Some(session) if session.ahead || session.shown_at > cursor => {}
                Some(_) => {
                    missed.changed.insert(key);
                }
                // Other channels of the session have URIs of their own.
                None if is_gone(&key) && target.session().is_some() => {
                    missed.removed.insert(channel_of(line)?);
                }
                None if self.evicted.0.contains_key(&key) => {
                    dropped.insert(key);
                }
                None => {}
            }
        }
        // A session may have no action of its own, for example one for a chat that has moved.
        let sessions = ledger.channels.sessions.iter();
        let new = sessions.filter(|(_, session)| !session.ahead && session.shown_at > cursor);
        missed.added.extend(new.map(|(key, _)| *key));
        // A summary may be sent without an action, such as numbers of changed lines, and after the
        // last action that the client has received.
        let sessions = ledger.channels.sessions.iter().filter(|(_, session)| session.shown_at <= cursor);
        let sent = sessions.filter(|(_, session)| session.summary_sent_at >= Some(cursor));
        missed.changed.extend(sent.map(|(key, _)| *key));
        let sent = self.evicted.0.iter().filter(|(_, session)| session.summary_sent_at >= Some(cursor));
        dropped.extend(sent.map(|(key, _)| *key));
        let is_absent =
            |key: &SessionKey| !ledger.channels.sessions.contains_key(key) && !self.disposed.contains(*key);
        for (key, kept) in &kept {
            // The record in memory is at least as recent as the store's.
            let is_listed = !dropped.contains(key) && is_absent(key);
            if let Some(kept) = kept.as_ref().filter(|kept| !kept.is_removed && is_listed) {
                missed.add_stored(kept, cursor);
            }
        }
        for session in dropped.iter().filter_map(|key| self.evicted.0.get(key)) {
            missed.add_stored(&session.kept, cursor);
        }
        Some(missed)
    }
}

/// Notifies a reconnected client of the sessions that it missed. The notifications directly follow
/// the answer, so that a list requested afterwards already includes them.
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

fn channel_of(line: &ActionLine) -> Option<String> {
    #[derive(Deserialize)]
    struct Envelope {
        channel: String,
    }
    serde_json::from_slice::<Envelope>(&envelope_of(&line.line)).ok().map(|envelope| envelope.channel)
}
