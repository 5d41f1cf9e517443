//! The ledger: states of all channels, the sequence of actions on them, and who receives them.
//!
//! Owns: [`Ledger`], that is, channels by URI and key, `serverSeq`, the replay log, subscriptions
//! with their windows of turns, keys of new things, channels whose rows are out of date, and what
//! keeps the store from taking more.
//! Never: calls another owner, decides whether an action should happen, or knows why it does.
//!
//! In reading order: [`sequence`](Ledger::sequence) (reduce, number, log, send), [`log`] (the
//! replay log), `replay` (answers to clients that come back), `subscriptions`, `windows` (turns
//! that each subscription holds), `rows` (what the store must be given), `derived` (what follows
//! from an action in memory), and `contents` (large contents, which clients are told by a URI).

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
use crate::host::effects::{ChannelId, ChatKey, Failing, RunId, SessionKey};
use crate::host::limits::Limits;
use crate::host::Config;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;

pub(super) use presence::{Connection, Presence};
pub(super) use rows::{RowNote, UNSAVED_BYTES_MAX, UNSAVED_TIMES};
pub(super) use sequence::unsequenced_line;
pub(super) use windows::{cursor_before, Loading, SnapshotRequired};

/// States of all channels, and the one writer of them.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Channels in memory.
    pub(super) channels: Channels,
    /// How large things may get.
    pub(super) limits: Limits,
    /// Last sequence number given.
    head: u64,
    /// Set where cursors of clients of the process before this one mean something.
    pub(super) continues: bool,
    /// Last sequence number of the process before this one.
    first_head: u64,
    log: ReplayLog,
    pub(super) subscriptions: Subscriptions,
    pub(super) presence: Presence,
    /// Channels whose rows in the store are out of date.
    dirty: BTreeSet<ChannelId>,
    /// Sessions that have changed since their summaries were sent.
    changed: BTreeSet<SessionKey>,
    /// Sessions whose changes may be others than before, each with whether their files may be.
    edited: BTreeMap<SessionKey, bool>,
    /// Kinds of channels of which a subscription was made or ended, or something was ended.
    touched: BTreeSet<ChannelKind>,
    /// Number of uses of any session.
    uses: u64,
    /// Sessions that were loaded, or lost a subscriber, since they were taken last.
    left: BTreeSet<SessionKey>,
    /// Set while the store takes nothing.
    failing: Option<Failing>,
    /// URIs of sessions and chats that cannot be read, each with the reason.
    unreadable: HashMap<String, String>,
    /// Last key given.
    last_key: u64,
}

impl Ledger {
    /// Creates the ledger of a host that goes on where the last one ended.
    pub(super) fn at_start(config: &Config) -> Self {
        let channels = Channels::at_start(config);
        let dirty = (!channels.root.was_saved).then_some(ChannelId::ROOT).into_iter().collect();
        Self {
            channels,
            limits: config.limits,
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

    /// Returns the last sequence number given.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Returns the last sequence number that clients may be told: the head, unless the store does
    /// not take it.
    pub(super) fn committed_head(&self) -> u64 {
        self.failing.as_ref().map_or(self.head, |failing| failing.safe)
    }

    /// Returns a key that nothing else has, in this process or an earlier one.
    pub(super) fn fresh_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    /// Returns the id of a new run of a turn.
    pub(super) fn fresh_run(&mut self) -> RunId {
        RunId(self.fresh_key())
    }

    /// Finds the channel of a URI, under its own name or one that some clients use.
    pub(super) fn find(&self, uri: &str) -> Option<ChannelId> {
        self.channels.find(uri)
    }

    /// Finds the session of a URI.
    pub(super) fn find_session(&self, uri: &str) -> Option<SessionKey> {
        self.find(uri)?.session()
    }

    /// Finds the chat of a URI.
    pub(super) fn find_chat(&self, uri: &str) -> Option<ChatKey> {
        self.find(uri)?.chat()
    }

    /// Returns the error for a URI of which no channel is in memory.
    pub(super) fn not_found(&self, uri: &str) -> RpcError {
        match self.unreadable.get(uri) {
            Some(reason) => RpcError::unavailable(format_args!("`{uri}` cannot be read: {reason}")),
            None => RpcError::channel_not_found(uri),
        }
    }

    /// Removes a channel's URI and all subscriptions to it. Its state is left to the caller.
    pub(super) fn unlink(&mut self, target: ChannelId) {
        let Some(channel) = self.channels.get(target) else { return };
        let (uri, subscribers) = (channel.uri.clone(), channel.subscribers.clone());
        self.channels.by_uri.remove(&uri);
        for connection in subscribers {
            self.unsubscribe(connection, target);
        }
    }

    /// Marks the row of a channel as out of date.
    pub(super) fn mark_dirty(&mut self, target: ChannelId) {
        self.dirty.insert(target);
    }

    /// Marks the row of a channel as one that is not to be saved.
    pub(super) fn mark_clean(&mut self, target: ChannelId) {
        self.dirty.remove(&target);
    }

    /// Takes the channels in memory whose rows are out of date. Those that were removed since have
    /// left a record that says so.
    pub(super) fn take_dirty(&mut self) -> BTreeSet<ChannelId> {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|id| self.channels.get(*id).is_some());
        dirty
    }

    /// Returns why the store takes nothing; `None` while it does.
    pub(super) fn failing(&self) -> Option<&Failing> {
        self.failing.as_ref()
    }

    /// Notes that the store takes nothing any more, or does so again.
    pub(super) fn set_failing(&mut self, failing: Option<Failing>) {
        self.failing = failing;
    }

    /// Returns why the session or chat of a URI cannot be read; `None` where nothing says so.
    pub(super) fn why_unreadable(&self, uri: &str) -> Option<&String> {
        self.unreadable.get(uri)
    }

    /// Notes sessions and chats that cannot be read, each with the reason.
    pub(super) fn note_unreadable(&mut self, unreadable: impl IntoIterator<Item = (String, String)>) {
        self.unreadable.extend(unreadable);
    }

    /// Notes that the session or chat of a URI can be read.
    pub(super) fn note_readable(&mut self, uri: &str) {
        self.unreadable.remove(uri);
    }

    /// Checks that state may change: it may not while the store takes nothing.
    ///
    /// # Errors
    /// `-32603` with the reason.
    pub(super) fn check_store(&self) -> Result<(), RpcError> {
        match &self.failing {
            Some(failing) => Err(RpcError::unavailable(&failing.reason)),
            None => Ok(()),
        }
    }
}
