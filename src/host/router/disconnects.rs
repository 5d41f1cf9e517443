//! The end of connections, and of the host.
//!
//! Owns: the cleanup by each owner when a connection closes, draining a client's turns before that,
//! and deciding when the host has nothing left to do.
//! Never: blocks: deadlines are timers like any other.

use std::time::Duration;

use crate::host::agents::AgentRegistry;
use crate::host::catalogue::ahead;
use crate::host::changes::Changes;
use crate::host::chats::calls;
use crate::host::clients::disconnects::Disconnect;
use crate::host::clients::shutdown::ShuttingDown;
use crate::host::clients::Clients;
use crate::host::configuration::selection;
use crate::host::effects::{ConnectionId, Output, Shutdown, Timer};
use crate::host::ledger::{Connection, Ledger};
use crate::host::terminals::ptys;
use crate::host::{Host, Step};

use super::{kinds, plugin_steps};

impl Host {
    /// Removes a connection and its subscriptions. After [`Output::Closed`], it gets no output.
    pub(super) fn close_connection(&mut self, step: &mut Step<'_>, connection: ConnectionId) {
        let (plugins, relays) = (&mut self.plugins, &mut self.relays);
        plugin_steps::end_fetches_from(&mut self.ledger, plugins, relays, step, connection);
        self.relays.end_to(step, connection);
        self.relays.end_for(step, connection);
        self.changes.connection_closed(connection);
        self.agents.remove_tokens(connection);
        selection::connection_closed(&mut self.ledger, connection);
        if !self.ledger.presence.connections.contains_key(&connection) {
            return;
        }
        for target in self.ledger.subscriptions.of(connection).collect::<Vec<_>>() {
            kinds::unsubscribe(&mut self.ledger, &mut self.changes, connection, target);
        }
        let client = self.ledger.presence.connections.remove(&connection);
        if let Some(client_id) = client.and_then(|client| client.client_id) {
            self.clients.client_disconnected(&mut self.ledger, step, &client_id);
            self.relays.note_disconnected(client_id);
        }
        self.clients.decline_unseen_questions(&mut self.ledger, step);
        ahead::start_unsubscribed_timers(&mut self.ledger, step);
        step.emit(Output::Closed(connection));
    }

    /// Starts the disconnect of a client that can no longer send. The connection receives actions
    /// until the client's turns are over, and is then closed.
    pub(super) fn disconnect(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        how: Shutdown,
        expected: Option<Duration>,
    ) {
        let Some(client) = self.ledger.presence.connections.get(&connection) else { return };
        let client_id = client.client_id.clone();
        let expected = expected.filter(|within| !within.is_zero());
        let (plugins, relays) = (&mut self.plugins, &mut self.relays);
        plugin_steps::end_fetches_from(&mut self.ledger, plugins, relays, step, connection);
        self.relays.end_to(step, connection);
        if expected.is_some() || how == Shutdown::Cancel {
            self.relays.end_for(step, connection);
        }
        if let Some(disconnect) = self.clients.disconnects.get_mut(&connection) {
            // The disconnect may still have been in its draining phase.
            disconnect.cancelling |= how == Shutdown::Cancel;
        } else {
            let cancelling = how == Shutdown::Cancel;
            let (is_lost, client_id) = (expected.is_some() && !cancelling, client_id.clone());
            let disconnect = Disconnect { client_id, is_lost, cancelling, cut: false, over: false };
            self.clients.disconnects.insert(connection, disconnect);
            self.ledger.presence.leaving.insert(connection);
        }
        if let (Some(within), Some(_), Shutdown::Drain(_)) = (expected, &client_id, how) {
            self.clients.expected.insert(connection);
            step.emit(Output::Timer(Timer::Return(connection), within));
        }
        match how {
            Shutdown::Cancel => {
                for chat in self.clients.chats_of_disconnected(&self.ledger, connection) {
                    self.cancel_turn(step, chat);
                }
            }
            Shutdown::Drain(limit)
                if !self.clients.chats_of_disconnected(&self.ledger, connection).is_empty()
                    || self.relays.has_pending_of(connection)
                    || self.changes.has_operations_for(Some(connection))
                    || ptys::are_starting(&self.ledger, Some(connection)) =>
            {
                step.emit(Output::Timer(Timer::Disconnect(connection), limit));
            }
            Shutdown::Drain(_) => {}
        }
        if self.clients.may_questions_be_answered(&self.ledger) {
            if let Some(client_id) = client_id {
                self.clients.client_disconnected(&mut self.ledger, step, &client_id);
            }
        } else {
            self.clients.decline_pending(&mut self.ledger, step);
        }
        self.clients.decline_unseen_questions(&mut self.ledger, step);
    }

    /// Cancels the turns of a disconnected client that have not ended in time.
    pub(super) fn disconnect_expired(&mut self, step: &mut Step<'_>, connection: ConnectionId) {
        let left = self.clients.chats_of_disconnected(&self.ledger, connection);
        self.relays.end_for(step, connection);
        let Some(disconnect) = self.clients.disconnects.get_mut(&connection) else { return };
        disconnect.cancelling = true;
        disconnect.cut |= !left.is_empty();
        for chat in left {
            self.cancel_turn(step, chat);
        }
    }

    /// Returns whether a connection's client has initialized, and so receives notifications.
    pub fn is_initialized(&self, connection: ConnectionId) -> bool {
        self.ledger.presence.client_of(connection).is_some()
    }

    /// Marks the disconnects that are over.
    pub(super) fn check_disconnects(&mut self) {
        if self.clients.disconnects.is_empty() {
            return;
        }
        let disconnects = self.clients.disconnects.iter().filter(|(_, disconnect)| !disconnect.over);
        let is_starting = |connection: &ConnectionId| ptys::are_starting(&self.ledger, Some(*connection));
        let over: Vec<ConnectionId> = disconnects
            .filter(|(connection, disconnect)| disconnect.cancelling || !is_starting(connection))
            .map(|(connection, _)| *connection)
            .filter(|connection| self.clients.chats_of_disconnected(&self.ledger, *connection).is_empty())
            .filter(|connection| !self.relays.has_pending_of(*connection))
            .filter(|connection| !self.changes.has_operations_for(Some(*connection)))
            .collect();
        for connection in over {
            if let Some(disconnect) = self.clients.disconnects.get_mut(&connection) {
                disconnect.over = true;
            }
        }
    }

    /// Closes the connections of clients whose disconnects are over, after sending held summaries.
    pub(super) fn finish_disconnects(&mut self, step: &mut Step<'_>) {
        let over = self.clients.disconnects.iter().filter(|(_, disconnect)| disconnect.over);
        let over: Vec<ConnectionId> = over.map(|(connection, _)| *connection).collect();
        if !over.is_empty() {
            self.summaries.send_held(&mut self.ledger, step);
        }
        for connection in over {
            let cut = self.clients.disconnects.get(&connection).is_some_and(|disconnect| disconnect.cut);
            step.emit(Output::Disconnected { connection, cut });
            self.close_connection(step, connection);
            let disconnect = self.clients.disconnects.remove(&connection);
            self.ledger.presence.leaving.remove(&connection);
            // Messages that others have queued waited for a cancelled turn of this client.
            if disconnect.is_some_and(|it| it.cancelling) && self.ledger.presence.has_clients() {
                for chat in self.ledger.channels.chats.keys().copied().collect::<Vec<_>>() {
                    self.take_next_queued(step, chat);
                }
            }
        }
    }

    pub(super) fn shut_down(&mut self, step: &mut Step<'_>, how: Shutdown) {
        let cut = self.clients.shutdown.take().is_some_and(|state| state.cut);
        self.relays.end_all(step);
        self.clients.shutdown = Some(ShuttingDown { cancelling: how == Shutdown::Cancel, cut, done: false });
        match how {
            Shutdown::Cancel => {
                for chat in calls::running_chats(&self.ledger) {
                    self.cancel_turn(step, chat);
                }
            }
            Shutdown::Drain(limit) => {
                self.clients.decline_pending(&mut self.ledger, step);
                step.emit(Output::Timer(Timer::Drain, limit));
            }
        }
    }

    pub(super) fn drain_expired(&mut self, step: &mut Step<'_>) {
        let running = calls::running_chats(&self.ledger);
        let Some(state) = &mut self.clients.shutdown else { return };
        state.cancelling = true;
        state.cut |= !running.is_empty();
        for chat in running {
            self.cancel_turn(step, chat);
        }
    }
}

/// Resets a connection to its state before `initialize`, without subscriptions.
pub(super) fn remove_client(
    ledger: &mut Ledger,
    agents: &mut AgentRegistry,
    clients: &mut Clients,
    changes: &mut Changes,
    step: &mut Step<'_>,
    connection: ConnectionId,
) {
    let Some(client) = ledger.presence.connections.get_mut(&connection) else { return };
    let (default_directory, abilities) = (client.default_directory.take(), client.abilities);
    let fresh = Connection { default_directory, abilities, ..Connection::default() };
    let before = std::mem::replace(client, fresh);
    for target in ledger.subscriptions.of(connection).collect::<Vec<_>>() {
        kinds::unsubscribe(ledger, changes, connection, target);
    }
    step.emit(Output::EndLogs(connection, None));
    agents.remove_tokens(connection);
    if let Some(client_id) = before.client_id {
        // The handshake had ended the absence of an active client.
        clients.client_disconnected(ledger, step, &client_id);
    }
}

/// Emits `Done` once, when no turn or job is left.
pub(super) fn check_done(ledger: &Ledger, clients: &mut Clients, changes: &Changes, step: &mut Step<'_>) {
    let Some(state) = clients.shutdown.as_mut().filter(|state| !state.done) else { return };
    let works = !calls::running_chats(ledger).is_empty()
        || !state.cancelling && ptys::are_starting(ledger, None)
        || changes.checkpoints.has_jobs_to_await()
        || changes.has_operations_for(None);
    if !works {
        state.done = true;
        step.emit(Output::Done { cut: state.cut });
    }
}
