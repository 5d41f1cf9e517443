//! The ledger: states of all channels, the sequence of actions on them, and who receives them.
//!
//! Owns: [`Ledger`], that is, channels by URI and key, `serverSeq`, the replay log, subscriptions
//! with their windows of turns, new keys, channels whose rows are out of date, and failures of the
//! store.
//! Never: decides whether an action should happen, or calls a function of an owner that changes
//! state; `derived` has the owners' views of an action.
//!
//! In reading order: [`sequence`](Ledger::sequence) (reduce, number, log, send), [`log`] (the
//! replay log), `replay` (answers to clients that reconnect), `subscriptions`, `windows` (turns
//! that each subscription holds), `presence` (connections and who is behind them), `rows` (rows
//! that must be saved), `derived` (in-memory state that follows from an action), and `contents`
//! (large contents, sent to clients as URIs).

pub(in crate::host) mod contents;
mod derived;
pub mod log;
mod presence;
mod replay;
mod rows;
mod sequence;
mod subscriptions;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use log::ReplayLog;
use subscriptions::Subscriptions;

use crate::host::channels::Channels;
use crate::host::effects::{ChannelId, ChatKey, Failing, RunId, SessionKey, NOT_STORED_YET};
use crate::host::limits::Limits;
use crate::host::{Config, NextRelease};
use crate::wire::annotations::session_of_subchannel;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::uris;

pub(super) use presence::{Connection, Presence};
pub(super) use rows::{RowNote, UNSAVED_BYTES_MAX, UNSAVED_TIMES};
pub(super) use sequence::unsequenced_line;
pub(super) use windows::{cursor_before, Loading, SnapshotRequired};

/// States of all channels, and their only writer.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) channels: Channels,
    pub(super) limits: Limits,
    /// Facts for clients of 1.1.0 of the protocol; `None` if the core speaks 1.0.0.
    pub(super) next: Option<NextRelease>,
    /// Latest sequence number assigned.
    head: u64,
    /// Set if cursors that clients received from the previous process are still valid.
    pub(super) continues: bool,
    /// Latest sequence number of the previous process.
    first_head: u64,
    log: ReplayLog,
    pub(super) subscriptions: Subscriptions,
    pub(super) presence: Presence,
    dirty: BTreeSet<ChannelId>,
    /// Sessions that have changed since their summaries were last sent.
    changed: BTreeSet<SessionKey>,
    /// Sessions whose changesets may be out of date; `true` if their files may have changed.
    edited: BTreeMap<SessionKey, bool>,
    /// Kinds of channels in which a channel or subscription began or ended since the last check.
    touched: BTreeSet<ChannelKind>,
    /// Number of uses of all sessions; orders sessions by their latest use.
    uses: u64,
    /// Sessions that were loaded or lost a subscriber since [`Ledger::take_left`].
    left: BTreeSet<SessionKey>,
    /// Set while the store accepts no writes.
    failing: Option<Failing>,
    /// Reasons why sessions and chats cannot be read, by URI.
    unreadable: HashMap<String, String>,
    /// Latest key assigned.
    last_key: u64,
}

impl Ledger {
    pub(super) fn at_start(config: &Config) -> Self {
        let channels = Channels::at_start(config);
        let dirty = (!channels.root.was_saved).then_some(ChannelId::ROOT).into_iter().collect();
        Self {
            channels,
            limits: config.limits,
            next: config.next,
            head: config.start.head,
            continues: config.start.continues,
            first_head: config.start.head,
            log: ReplayLog::new(config.replay_window, config.start.head),
            subscriptions: Subscriptions::default(),
            presence: Presence::default(),
            dirty,
            changed: BTreeSet::new(),
            touched: BTreeSet::new(),
            uses: 0,
            left: BTreeSet::new(),
            edited: BTreeMap::new(),
            failing: None,
            unreadable: HashMap::new(),
            last_key: config.start.last_key,
        }
    }

    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Returns the latest sequence number for clients: the head, or the committed one in a failure.
    pub(super) fn committed_head(&self) -> u64 {
        self.failing.as_ref().map_or(self.head, |failing| failing.safe)
    }

    /// Returns a key that is unique across all processes of this store.
    pub(super) fn fresh_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    pub(super) fn fresh_run(&mut self) -> RunId {
        RunId(self.fresh_key())
    }

    /// Finds a channel by its URI or by an alias that some clients use.
    pub(super) fn find(&self, uri: &str) -> Option<ChannelId> {
        self.channels.find(uri)
    }

    pub(super) fn find_session(&self, uri: &str) -> Option<SessionKey> {
        self.find(uri)?.session()
    }

    pub(super) fn find_chat(&self, uri: &str) -> Option<ChatKey> {
        self.find(uri)?.chat()
    }

    /// Returns the error for a URI that has no channel in memory.
    pub(super) fn not_found(&self, uri: &str) -> RpcError {
        match self.why_unreadable(uri) {
            Some(reason) => RpcError::unavailable(format_args!("`{uri}` cannot be read: {reason}")),
            None => RpcError::channel_not_found(uri),
        }
    }

    /// Removes a channel's URI and its subscriptions. The caller removes the state.
    pub(super) fn unlink(&mut self, target: ChannelId) {
        let Some(channel) = self.channels.get(target) else { return };
        let (uri, subscribers) = (channel.uri.clone(), channel.subscribers.clone());
        self.channels.by_uri.remove(&uri);
        for connection in subscribers {
            self.unsubscribe(connection, target);
        }
    }

    pub(super) fn mark_dirty(&mut self, target: ChannelId) {
        self.dirty.insert(target);
    }

    pub(super) fn is_dirty(&self, target: ChannelId) -> bool {
        self.dirty.contains(&target)
    }

    /// Excludes the row of a channel from the next save.
    pub(super) fn mark_clean(&mut self, target: ChannelId) {
        self.dirty.remove(&target);
    }

    /// Takes the channels in memory whose rows are out of date; removals are recorded separately.
    pub(super) fn take_dirty(&mut self) -> BTreeSet<ChannelId> {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|id| self.channels.get(*id).is_some());
        dirty
    }

    /// Returns the failure of the store; `None` while it accepts writes.
    pub(super) fn failing(&self) -> Option<&Failing> {
        self.failing.as_ref()
    }

    pub(super) fn set_failing(&mut self, failing: Option<Failing>) {
        if failing.is_none() {
            self.unreadable.retain(|_, why| why != NOT_STORED_YET);
        }
        self.failing = failing;
    }

    /// Returns why a session or chat, or the session of this channel, cannot be read; `None` if it
    /// is not known to be unreadable.
    pub(super) fn why_unreadable(&self, uri: &str) -> Option<&String> {
        let why =
            |uri: &str| self.unreadable.get(uri).or_else(|| self.unreadable.get(&uris::plain_form(uri)?));
        why(uri).or_else(|| why(session_of_subchannel(uri)?))
    }

    pub(super) fn note_unreadable(&mut self, unreadable: impl IntoIterator<Item = (String, String)>) {
        self.unreadable.extend(unreadable);
    }

    pub(super) fn note_readable(&mut self, uri: &str) {
        self.unreadable.remove(uri);
    }

    /// Returns `-32603` while the store accepts no writes, because no state may change then.
    pub(super) fn check_store(&self) -> Result<(), RpcError> {
        match &self.failing {
            Some(failing) => Err(RpcError::unavailable(&failing.reason)),
            None => Ok(()),
        }
    }
}
