//! Clients that can say nothing any more, while others go on.
//!
//! Owns: how each of them leaves, and which turns are theirs. The router lets these end or cancels
//! them, and closes the connection.
//! Never: counts a turn of a client that is still there.
//!
//! A client that has ended its input has left for good. One whose connection was lost is expected
//! back for a while, perhaps under another name, as an editor's window that is loaded anew: until
//! then nothing is declined for want of clients, and what it has begun is not ended as long as
//! anybody is there.

use crate::host::chats::calls;
use crate::host::clients::Clients;
use crate::host::effects::{ChatKey, ConnectionId};
use crate::host::ledger::Ledger;
use crate::host::Step;

/// A client that can say nothing any more, until its turns are over.
#[derive(Debug)]
pub(in crate::host) struct Departure {
    pub(in crate::host) client_id: Option<String>,
    /// Set when the connection was lost, rather than ended.
    pub(in crate::host) is_lost: bool,
    /// Set when the client's turns are cancelled, and no new one begins.
    pub(in crate::host) cancelling: bool,
    /// Something was declined or cut.
    pub(in crate::host) cut: bool,
    /// Set when the client's turns are over.
    pub(in crate::host) over: bool,
}

impl Clients {
    /// A client that has lost this connection is expected no more.
    pub(in crate::host) fn return_time_is_up(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        connection: ConnectionId,
    ) {
        if self.expected.remove(&connection) && !self.may_anybody_answer(ledger) {
            self.decline_all_that_waits(ledger, step);
        }
    }

    pub(in crate::host) fn decline_all_that_waits(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        for chat in calls::running_chats(ledger) {
            for id in calls::waiting_for_user(ledger, chat) {
                self.decline_if_alone(ledger, step, chat, &id);
            }
        }
    }

    /// Returns whether a client that can answer questions of agents is connected, or expected back.
    pub(in crate::host) fn may_anybody_answer(&self, ledger: &Ledger) -> bool {
        ledger.presence.is_anybody_left() || !self.expected.is_empty()
    }

    /// Returns whether the turn of a chat ends with this client, which can send nothing any more:
    /// it has begun the turn, or nobody is left who has.
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

    pub(in crate::host) fn chats_left_by(&self, ledger: &Ledger, connection: ConnectionId) -> Vec<ChatKey> {
        let running = calls::running_chats(ledger).into_iter();
        running.filter(|chat| self.was_left_by(ledger, *chat, connection)).collect()
    }

    /// Returns whether turns of a chat are being cancelled because its client is gone, so that none
    /// may begin.
    pub(in crate::host) fn is_left_for_good(&self, ledger: &Ledger, key: ChatKey) -> bool {
        let departures = self.departures.iter().filter(|(_, departure)| departure.cancelling);
        let mut cancelling = departures.map(|(connection, _)| *connection);
        cancelling.any(|connection| self.was_left_by(ledger, key, connection))
    }

    /// Something was declined in a chat because nobody is left.
    pub(in crate::host) fn note_departure_cut(&mut self, ledger: &Ledger, key: ChatKey) {
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
