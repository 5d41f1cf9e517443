//! Disconnected clients, while others remain.
//!
//! Owns: how each of them leaves, and which turns are theirs. The router lets these turns end or
//! cancels them, and closes the connection.
//! Never: counts a turn of a connected client.
//!
//! A client that has ended its input has left for good. A client that lost its connection is
//! expected back for some time, perhaps under another id, as when an editor's window reloads. Until
//! then its absence declines no question, and its turns go on while any client is connected.

use crate::host::chats::calls;
use crate::host::clients::Clients;
use crate::host::effects::{ChatKey, ConnectionId};
use crate::host::ledger::Ledger;
use crate::host::{automations, Step};

/// Client that can no longer send, until its turns are over.
#[derive(Debug)]
pub(crate) struct Disconnect {
    pub(crate) client_id: Option<String>,
    /// Set if the connection was lost rather than ended.
    pub(crate) is_lost: bool,
    /// Set if the client's turns are cancelled, and no new one begins.
    pub(crate) cancelling: bool,
    /// Set if a question was declined or a turn was cut off.
    pub(crate) cut: bool,
    pub(crate) over: bool,
}

impl Clients {
    /// Stops expecting the client of a lost connection back.
    pub(crate) fn return_expired(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        connection: ConnectionId,
    ) {
        if !self.expected.remove(&connection) {
            return;
        }
        if !self.may_questions_be_answered(ledger) {
            self.decline_pending(ledger, step);
        }
        self.decline_unseen_questions(ledger, step);
    }

    pub(crate) fn decline_pending(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        for (chat, id) in calls::all_calls_and_questions(ledger) {
            self.decline_without_clients(ledger, step, chat, &id);
        }
    }

    /// Returns whether any client, which may answer questions, is connected or expected back.
    pub(crate) fn may_questions_be_answered(&self, ledger: &Ledger) -> bool {
        ledger.presence.has_clients() || !self.expected.is_empty()
    }

    /// Returns whether the turn of a chat ends with this disconnected client: the client began it,
    /// or its client is gone and no client remains.
    fn is_turn_of_disconnected(&self, ledger: &Ledger, key: ChatKey, connection: ConnectionId) -> bool {
        // A run belongs to no client: it ends with the host, which may go on without clients.
        if automations::is_of_run(ledger, key) {
            let may_end = !automations::go_on_without_clients(ledger) && !ledger.presence.has_clients();
            return may_end && self.disconnects.contains_key(&connection);
        }
        let Some(disconnect) = self.disconnects.get(&connection) else { return false };
        match owner_of(ledger, key) {
            Some(owner) if ledger.presence.can_speak(owner) => false,
            // Without an owner, a connection without `initialize` would seem to be the owner's.
            owner if owner.is_some() && owner == disconnect.client_id.as_deref() => {
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

    /// Returns whether a disconnect is cancelling turns of a chat, so that none may begin.
    pub(super) fn is_cancelling_for_disconnect(&self, ledger: &Ledger, key: ChatKey) -> bool {
        let disconnects = self.disconnects.iter().filter(|(_, disconnect)| disconnect.cancelling);
        let mut cancelling = disconnects.map(|(connection, _)| *connection);
        cancelling.any(|connection| self.is_turn_of_disconnected(ledger, key, connection))
    }

    /// Returns whether a disconnect is cancelling the turns of a client, so that none may begin.
    pub(crate) fn is_cancelling_turns_of(&self, ledger: &Ledger, client_id: &str) -> bool {
        let is_its = |it: &Disconnect| it.cancelling && it.client_id.as_deref() == Some(client_id);
        !ledger.presence.can_speak(client_id) && self.disconnects.values().any(is_its)
    }

    /// Records that something was declined in a chat because no client remains.
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

/// Returns the client of a chat's running or latest turn; `None` if none is known.
pub(super) fn owner_of(ledger: &Ledger, key: ChatKey) -> Option<&str> {
    let chat = ledger.channels.chats.known(key)?;
    let by = chat.run.as_ref().and_then(|run| run.by.as_deref());
    by.or(chat.requesting_client.as_deref())
}
