//! Subscriptions: which connection receives what happens on which channel.
//!
//! Owns: making and ending subscriptions, and the questions that can be asked about them.
//! Never: knows whose connection it is.

use std::collections::BTreeMap;

use super::Ledger;
use crate::host::effects::{ChannelId, ConnectionId};
use crate::host::model::Subscription;

impl Ledger {
    /// Subscribes a connection to a channel, or changes how it is subscribed.
    pub(in crate::host) fn subscribe(
        &mut self,
        connection: ConnectionId,
        target: ChannelId,
        how: Subscription,
    ) {
        if self.subscriptions.entry(connection).or_default().insert(target, how).is_none() {
            if let Some(channel) = self.channels.get_mut(target) {
                channel.subscribers.push(connection);
            }
        }
    }

    /// Ends a connection's subscription to a channel, if there is one.
    pub(in crate::host) fn unsubscribe(&mut self, connection: ConnectionId, target: ChannelId) {
        if let Some(subscriptions) = self.subscriptions.get_mut(&connection) {
            subscriptions.remove(&target);
            if subscriptions.is_empty() {
                self.subscriptions.remove(&connection);
            }
        }
        if let Some(channel) = self.channels.get_mut(target) {
            channel.subscribers.retain(|&subscriber| subscriber != connection);
        }
    }

    /// Returns the channels that a connection is subscribed to.
    pub(in crate::host) fn subscribed(
        &self,
        connection: ConnectionId,
    ) -> impl Iterator<Item = ChannelId> + '_ {
        self.subscriptions.get(&connection).into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// Returns whether a connection is subscribed to a channel.
    pub(in crate::host) fn is_subscribed(&self, connection: ConnectionId, target: ChannelId) -> bool {
        self.subscription(connection, target).is_some()
    }

    pub(super) fn subscription(&self, connection: ConnectionId, target: ChannelId) -> Option<&Subscription> {
        self.subscriptions.get(&connection)?.get(&target)
    }

    pub(super) fn subscription_mut(
        &mut self,
        connection: ConnectionId,
        target: ChannelId,
    ) -> Option<&mut Subscription> {
        self.subscriptions.get_mut(&connection)?.get_mut(&target)
    }
}
