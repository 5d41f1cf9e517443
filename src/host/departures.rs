//! The end of one client among others: it can say nothing any more, and its turns are given what it
//! asked for.
//!
//! Owns: which turns are those of a client that can say nothing any more, letting them end or
//! cancelling them, and when its connection is over.
//! Never: touches a turn of a client that is still there, or waits; time limits are timers like any
//! other.
//!
//! A client that has ended its input has left for good. One whose connection was lost is expected
//! back for a while, perhaps under another name, as an editor's window that is loaded anew: until
//! then nothing is declined for want of clients, and what it has begun is not ended as long as
//! anybody is there.

use crate::host::ahead;
use crate::host::calls;
use crate::host::clients::Clients;
use crate::host::ledger::Connection;
use crate::host::ledger::Ledger;
use crate::host::selection;
use crate::host::shutdown;
use std::time::Duration;

use super::effects::{ChatKey, ConnectionId, Output, Shutdown, Timer};
use super::{Host, Step};

/// A client that can say nothing any more, until its turns are over.
#[derive(Debug)]
pub(super) struct Departure {
    client_id: Option<String>,
    /// Its connection was lost.
    is_lost: bool,
    /// Its turns are cancelled, and no new one begins.
    cancelling: bool,
    /// Something was declined or cut.
    cut: bool,
    /// Its turns are over.
    over: bool,
}

impl Host {
    /// Forgets a connection and its subscriptions. Nothing is said to it behind [`Output::Closed`].
    pub(super) fn close_connection(&mut self, step: &mut Step<'_>, connection: ConnectionId) {
        self.relays.end_to(step, connection);
        self.relays.end_for(step, connection);
        self.changes.connection_closed(connection);
        self.agents.forget_tokens(connection);
        selection::connection_closed(&mut self.ledger, connection);
        let Some(_client) = self.ledger.presence.connections.get(&connection) else { return };
        for target in self.ledger.subscriptions.of(connection).collect::<Vec<_>>() {
            self.unsubscribe(connection, target);
        }
        let client = self.ledger.presence.connections.remove(&connection);
        if let Some(client_id) = client.and_then(|client| client.client_id) {
            self.clients.client_left(&mut self.ledger, step, &client_id);
            self.relays.note_gone(client_id);
        }
        shutdown::decline_all_unseen(&mut self.ledger, step);
        ahead::watch_unfollowed(&mut self.ledger, step);
        step.say(Output::Closed(connection));
    }

    /// Forgets who a connection belongs to, and its subscriptions: it begins anew.
    pub(super) fn forget_client(&mut self, connection: ConnectionId) {
        let Some(client) = self.ledger.presence.connections.get(&connection) else { return };
        let default_directory = client.default_directory.clone();
        for target in self.ledger.subscriptions.of(connection).collect::<Vec<_>>() {
            self.unsubscribe(connection, target);
        }
        self.agents.forget_tokens(connection);
        self.ledger
            .presence
            .connections
            .insert(connection, Connection { default_directory, ..Connection::default() });
    }

    /// The client of a connection can say nothing any more. It is told what happens until its turns
    /// are over; then its connection is closed.
    pub(super) fn depart(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        how: Shutdown,
        expected: Option<Duration>,
    ) {
        let Some(client) = self.ledger.presence.connections.get(&connection) else { return };
        let client_id = client.client_id.clone();
        let expected = expected.filter(|within| !within.is_zero());
        self.relays.end_to(step, connection);
        if expected.is_some() || how == Shutdown::Cancel {
            self.relays.end_for(step, connection);
        }
        if let Some(departure) = self.clients.departures.get_mut(&connection) {
            // It waited for its turns, and does not any more.
            departure.cancelling |= how == Shutdown::Cancel;
        } else {
            let cancelling = how == Shutdown::Cancel;
            let (is_lost, client_id) = (expected.is_some() && !cancelling, client_id.clone());
            let departure = Departure { client_id, is_lost, cancelling, cut: false, over: false };
            self.clients.departures.insert(connection, departure);
            self.ledger.presence.leaving.insert(connection);
        }
        if let (Some(within), Some(_), Shutdown::Drain(_)) = (expected, &client_id, how) {
            self.clients.expected.insert(connection);
            step.say(Output::Timer(Timer::Return(connection), within));
        }
        match how {
            Shutdown::Cancel => {
                for chat in self.clients.chats_left_by(&self.ledger, connection) {
                    self.cancel_turn(step, chat);
                }
            }
            Shutdown::Drain(limit)
                if !self.clients.chats_left_by(&self.ledger, connection).is_empty()
                    || self.relays.has_pending_of(connection) =>
            {
                step.say(Output::Timer(Timer::Departure(connection), limit));
            }
            Shutdown::Drain(_) => {}
        }
        if self.clients.may_anybody_answer(&self.ledger) {
            if let Some(client_id) = client_id {
                self.clients.client_left(&mut self.ledger, step, &client_id);
            }
        } else {
            self.clients.decline_all_that_waits(&mut self.ledger, step);
        }
        shutdown::decline_all_unseen(&mut self.ledger, step);
    }

    /// The time is up that the turns of a client were given which can say nothing any more.
    pub(super) fn departure_time_is_up(&mut self, step: &mut Step<'_>, connection: ConnectionId) {
        let left = self.clients.chats_left_by(&self.ledger, connection);
        self.relays.end_for(step, connection);
        let Some(departure) = self.clients.departures.get_mut(&connection) else { return };
        departure.cancelling = true;
        departure.cut |= !left.is_empty();
        for chat in left {
            self.cancel_turn(step, chat);
        }
    }

    /// Whether the client of a connection has been welcomed, so that it is told what happens.
    pub fn is_welcome(&self, connection: ConnectionId) -> bool {
        self.ledger.presence.connections.get(&connection).is_some_and(|client| client.client_id.is_some())
    }

    /// Notes which departures are over.
    pub(super) fn check_departures(&mut self) {
        if self.clients.departures.is_empty() {
            return;
        }
        let departures = self.clients.departures.iter().filter(|(_, departure)| !departure.over);
        let over: Vec<ConnectionId> = departures
            .map(|(connection, _)| *connection)
            .filter(|connection| self.clients.chats_left_by(&self.ledger, *connection).is_empty())
            .filter(|connection| !self.relays.has_pending_of(*connection))
            .filter(|connection| !self.changes.holds_operations(Some(*connection)))
            .collect();
        for connection in over {
            if let Some(departure) = self.clients.departures.get_mut(&connection) {
                departure.over = true;
            }
        }
    }

    /// Closes the connections of clients whose departures are over. Everything that was waiting has
    /// been told.
    pub(super) fn see_off(&mut self, step: &mut Step<'_>) {
        let over = self.clients.departures.iter().filter(|(_, departure)| departure.over);
        let over: Vec<ConnectionId> = over.map(|(connection, _)| *connection).collect();
        if !over.is_empty() {
            self.summaries.send_held(&mut self.ledger, step);
        }
        for connection in over {
            let cut = self.clients.departures.get(&connection).is_some_and(|departure| departure.cut);
            step.say(Output::Departed { connection, cut });
            self.close_connection(step, connection);
            self.clients.departures.remove(&connection);
            self.ledger.presence.leaving.remove(&connection);
        }
    }
}

impl Clients {
    /// A client that has lost this connection is expected no more.
    pub(super) fn return_time_is_up(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        connection: ConnectionId,
    ) {
        if self.expected.remove(&connection) && !self.may_anybody_answer(ledger) {
            self.decline_all_that_waits(ledger, step);
        }
    }

    fn decline_all_that_waits(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        for chat in calls::running_chats(ledger) {
            for id in calls::waiting_for_user(ledger, chat) {
                self.decline_if_alone(ledger, step, chat, &id);
            }
        }
    }

    /// Whether any client is there that can answer what agents ask, or is expected back.
    pub(super) fn may_anybody_answer(&self, ledger: &Ledger) -> bool {
        ledger.presence.is_anybody_left() || !self.expected.is_empty()
    }

    /// Whether what runs in a chat is for this client, which can say nothing any more, to be ended:
    /// it has begun it, or nobody is left who has.
    fn was_left_by(&self, ledger: &Ledger, key: ChatKey, connection: ConnectionId) -> bool {
        let Some(departure) = self.departures.get(&connection) else { return false };
        match owner_of(ledger, key) {
            Some(owner) if ledger.presence.can_speak(owner) => false,
            owner if owner == departure.client_id.as_deref() => {
                !(departure.is_lost && ledger.presence.is_anybody_left())
            }
            owner => {
                let is_of = |other: &Departure| owner.is_some() && other.client_id.as_deref() == owner;
                !ledger.presence.is_anybody_left() && !self.departures.values().any(is_of)
            }
        }
    }

    fn chats_left_by(&self, ledger: &Ledger, connection: ConnectionId) -> Vec<ChatKey> {
        let running = calls::running_chats(ledger).into_iter();
        running.filter(|chat| self.was_left_by(ledger, *chat, connection)).collect()
    }

    /// Whether turns of a chat are being cancelled because its client is gone, so that none may
    /// begin.
    pub(super) fn is_left_for_good(&self, ledger: &Ledger, key: ChatKey) -> bool {
        let departures = self.departures.iter().filter(|(_, departure)| departure.cancelling);
        let mut cancelling = departures.map(|(connection, _)| *connection);
        cancelling.any(|connection| self.was_left_by(ledger, key, connection))
    }

    /// Something was declined in a chat because nobody is left.
    pub(super) fn note_departure_cut(&mut self, ledger: &mut Ledger, key: ChatKey) {
        let left_by: Vec<ConnectionId> = self
            .departures
            .keys()
            .copied()
            .filter(|connection| self.was_left_by(ledger, key, *connection))
            .collect();
        for connection in left_by {
            if let Some(departure) = self.departures.get_mut(&connection) {
                departure.cut = true;
            }
        }
    }
}

/// The client whose turn runs in a chat, or ran there last: who queued a message is not known.
fn owner_of(ledger: &Ledger, key: ChatKey) -> Option<&str> {
    let chat = ledger.channels.chats.known(key)?;
    let by = chat.run.as_ref().and_then(|run| run.by.as_deref());
    by.or(chat.sponsor.as_deref())
}
