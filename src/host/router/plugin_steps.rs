//! Plugins of clients, from their publication to what agents are given of them.
//!
//! Owns: the order of these steps: plugins are fetched, the session shows them, and its
//! conversations get their servers.
//! Never: does anything in a step in which no client has published or sent a plugin.

use crate::host::effects::{ConnectionId, SessionKey};
use crate::host::{customizations, Host, Step};

impl Host {
    /// Brings a session in line with the plugins that its active clients publish.
    pub(super) fn follow_plugins(&mut self, step: &mut Step<'_>, session: SessionKey) {
        self.plugins.follow_session(&mut self.ledger, &mut self.relays, step, session);
        if self.ledger.channels.sessions.contains_key(&session) {
            customizations::update_session(&mut self.ledger, step, session);
        }
    }

    /// Passes the answers of clients to the fetches, and asks clients again that are back.
    pub(super) fn settle_plugins(&mut self, step: &mut Step<'_>) {
        if self.plugins.is_idle() {
            return;
        }
        let answers = self.relays.take_fetched();
        let mut changed = self.plugins.answered(&mut self.ledger, &mut self.relays, step, answers);
        changed.dedup();
        for session in changed {
            customizations::update_session(&mut self.ledger, step, session);
        }
        for session in self.plugins.returned(&self.ledger) {
            self.follow_plugins(step, session);
        }
        self.deliver(step);
    }

    pub(super) fn plugin_timed_out(&mut self, step: &mut Step<'_>, number: u64) {
        for session in self.plugins.timed_out(&mut self.ledger, &mut self.relays, step, number) {
            customizations::update_session(&mut self.ledger, step, session);
        }
    }

    /// Ends the fetches from a client that can no longer send.
    pub(super) fn end_fetches_from(&mut self, step: &mut Step<'_>, connection: ConnectionId) {
        for session in self.plugins.connection_ended(&mut self.ledger, &mut self.relays, connection) {
            customizations::update_session(&mut self.ledger, step, session);
        }
    }
}
