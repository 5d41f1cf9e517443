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
pub(crate) struct Disconnect {
    pub(crate) client_id: Option<String>,
    /// Set when the connection was lost, rather than ended.
    pub(crate) is_lost: bool,
    /// Set when the client's turns are cancelled, and no new one begins.
    pub(crate) cancelling: bool,
    /// Something was declined or cut.
    pub(crate) cut: bool,
    /// Set when the client's turns are over.
    pub(crate) over: bool,
}

impl Clients {
    /// Stops expecting a client back that has lost this connection.
    pub(crate) fn return_expired(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        connection: ConnectionId,
    ) {
        if self.expected.remove(&connection) && !self.may_questions_be_answered(ledger) {
            self.decline_pending(ledger, step);
        }
    }

    pub(crate) fn decline_pending(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        for (chat, id) in calls::all_waiting_for_user(ledger) {
            self.decline_without_clients(ledger, step, chat, &id);
        }
    }

    /// Returns whether a client that can answer questions of agents is connected, or expected back.
    pub(crate) fn may_questions_be_answered(&self, ledger: &Ledger) -> bool {
        ledger.presence.has_clients() || !self.expected.is_empty()
    }

    /// Returns whether the turn of a chat ends with this client, which can send nothing any more:
    /// it has begun the turn, or nobody is left who has.
    fn is_turn_of_disconnected(&self, ledger: &Ledger, key: ChatKey, connection: ConnectionId) -> bool {
        let Some(disconnect) = self.disconnects.get(&connection) else { return false };
        match owner_of(ledger, key) {
            Some(owner) if ledger.presence.can_speak(owner) => false,
            owner if owner == disconnect.client_id.as_deref() => {
                !(disconnect.is_lost && ledger.presence.has_clients())
            }
            owner => {
                let is_of = |other: &Disconnect| owner.is_some() && other.client_id.as_deref() == owner;
                !ledger.presence.has_clients() && !self.disconnects.values().any(is_of)
            }
        }
    }

    pub(crate) fn chats_of_disconnected(&self, ledger: &Ledger, connection: ConnectionId) -> Vec<ChatKey> {
        let running = calls::running_chats(ledger).into_iter();
        running.filter(|chat| self.is_turn_of_disconnected(ledger, *chat, connection)).collect()
    }

    /// Returns whether turns of a chat are being cancelled because its client is gone, so that none
    /// may begin.
    pub(super) fn is_cancelling_for_disconnect(&self, ledger: &Ledger, key: ChatKey) -> bool {
        let disconnects = self.disconnects.iter().filter(|(_, disconnect)| disconnect.cancelling);
        let mut cancelling = disconnects.map(|(connection, _)| *connection);
        cancelling.any(|connection| self.is_turn_of_disconnected(ledger, key, connection))
    }

    /// Notes that something was declined in a chat because no client is left.
    pub(super) fn note_disconnect_cut(&mut self, ledger: &Ledger, key: ChatKey) {
        let left_by: Vec<ConnectionId> = self
            .disconnects
            .keys()
            .copied()
            .filter(|connection| self.is_turn_of_disconnected(ledger, key, *connection))
            .collect();
        for connection in left_by {
            if let Some(disconnect) = self.disconnects.get_mut(&connection) {
                disconnect.cut = true;
            }
        }
    }
}

/// The client whose turn runs in a chat, or ran there last: who queued a message is not known.
fn owner_of(ledger: &Ledger, key: ChatKey) -> Option<&str> {
    let chat = ledger.channels.chats.known(key)?;
    let by = chat.run.as_ref().and_then(|run| run.by.as_deref());
    by.or(chat.requesting_client.as_deref())
}
