//! Subscriptions: which connection receives the actions on which channel.
//!
//! Owns: making, ending and querying subscriptions, and the sessions that may be unused because
//! they lost a subscriber.
//! Never: knows whose connection it is.

use std::collections::{BTreeMap, BTreeSet};

use crate::host::effects::{ChannelId, ConnectionId, SessionKey};
use crate::host::ledger::Ledger;
use crate::host::model::Subscription;
use crate::wire::channels::ChannelKind;

/// Subscriptions by connection.
#[derive(Debug, Default)]
pub(in crate::host) struct Subscriptions(BTreeMap<ConnectionId, BTreeMap<ChannelId, Subscription>>);

impl Subscriptions {
    pub(in crate::host) fn of(&self, connection: ConnectionId) -> impl Iterator<Item = ChannelId> + '_ {
        self.0.get(&connection).into_iter().flat_map(BTreeMap::keys).copied()
    }

    pub(in crate::host) fn contains(&self, connection: ConnectionId, target: ChannelId) -> bool {
        self.get(connection, target).is_some()
    }

    pub(super) fn get(&self, connection: ConnectionId, target: ChannelId) -> Option<&Subscription> {
        self.0.get(&connection)?.get(&target)
    }

    pub(super) fn get_mut(
        &mut self,
        connection: ConnectionId,
        target: ChannelId,
    ) -> Option<&mut Subscription> {
        self.0.get_mut(&connection)?.get_mut(&target)
    }
}

impl Ledger {
    /// Subscribes a connection to a channel, or changes its existing subscription.
    pub(in crate::host) fn subscribe(
        &mut self,
        connection: ConnectionId,
        target: ChannelId,
        how: Subscription,
    ) {
        if self.subscriptions.0.entry(connection).or_default().insert(target, how).is_none() {
            if let Some(channel) = self.channels.get_mut(target) {
                channel.subscribers.push(connection);
            }
        }
        self.channels.note_subscribed(target);
        self.touch(target.kind);
    }

    pub(in crate::host) fn unsubscribe(&mut self, connection: ConnectionId, target: ChannelId) {
        if let Some(subscriptions) = self.subscriptions.0.get_mut(&connection) {
            subscriptions.remove(&target);
            if subscriptions.is_empty() {
                self.subscriptions.0.remove(&connection);
            }
        }
        if let Some(channel) = self.channels.get_mut(target) {
            channel.subscribers.retain(|&subscriber| subscriber != connection);
        }
        self.touch(target.kind);
        if let Some(session) = self.channels.session_of(target) {
            self.note_use(session);
        }
    }

    /// Records that a channel or subscription of a kind began or ended.
    pub(in crate::host) fn touch(&mut self, kind: ChannelKind) {
        self.touched.insert(kind);
    }

    /// Returns whether a kind of channels was touched since the last call.
    pub(in crate::host) fn take_touched(&mut self, kind: ChannelKind) -> bool {
        self.touched.remove(&kind)
    }

    /// Records a use of a session that may be the last: it was loaded, or lost a subscriber.
    pub(in crate::host) fn note_use(&mut self, key: SessionKey) {
        let used = self.next_use();
        if let Some(session) = self.channels.sessions.get_mut(&key) {
            session.used = used;
            self.left.insert(key);
        }
    }

    /// Counts a use of any session. Returns the new number of uses.
    pub(in crate::host) fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    pub(in crate::host) fn uses(&self) -> u64 {
        self.uses
    }

    /// Takes the sessions that were loaded or lost a subscriber since the last call.
    pub(in crate::host) fn take_left(&mut self) -> BTreeSet<SessionKey> {
        std::mem::take(&mut self.left)
    }
}
