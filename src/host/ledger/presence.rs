//! Presence: open connections, and the clients behind them.
//!
//! Owns: [`Presence`], the facts about connections that every owner may read.
//! Never: decides when a client has disconnected; the router and `clients` do, and update them.

use std::collections::{BTreeMap, BTreeSet};

use crate::host::effects::{Abilities, ConnectionId};
use crate::host::locale::Language;

#[derive(Debug, Default)]
pub(in crate::host) struct Connection {
    /// Id of the client; `None` before `initialize`.
    pub(in crate::host) client_id: Option<String>,
    /// `file:` URI of the folder where the client's file browser starts.
    pub(in crate::host) default_directory: Option<String>,
    pub(in crate::host) language: Language,
    /// Abilities of the client.
    pub(in crate::host) abilities: Abilities,
}

#[derive(Debug, Default)]
pub(in crate::host) struct Presence {
    pub(in crate::host) connections: BTreeMap<ConnectionId, Connection>,
    /// Connections whose clients can no longer send.
    pub(in crate::host) leaving: BTreeSet<ConnectionId>,
}

impl Presence {
    /// Returns the client id of a connection; `None` before `initialize`.
    pub(in crate::host) fn client_of(&self, connection: ConnectionId) -> Option<&str> {
        self.connections.get(&connection)?.client_id.as_deref()
    }

    pub(in crate::host) fn connections_of<'a>(
        &'a self,
        client_id: &'a str,
    ) -> impl Iterator<Item = (ConnectionId, &'a Connection)> {
        let all = self.connections.iter().map(|(connection, client)| (*connection, client));
        all.filter(move |(_, client)| client.client_id.as_deref() == Some(client_id))
    }

    /// Returns whether the client of a connection can resume a turn.
    pub(in crate::host) fn resumes_turns(&self, connection: ConnectionId) -> bool {
        self.connections.get(&connection).is_none_or(|client| client.abilities.resumes_turns)
    }

    /// Returns whether any client can still send.
    pub(in crate::host) fn has_clients(&self) -> bool {
        self.speakers().next().is_some()
    }

    /// Returns whether a client can still send.
    pub(in crate::host) fn can_speak(&self, client_id: &str) -> bool {
        self.speakers().any(|(id, _)| id == client_id)
    }

    /// Returns the clients that can still send.
    pub(in crate::host) fn speakers(&self) -> impl Iterator<Item = (&str, &Connection)> {
        let speaks = |connection: &ConnectionId| !self.leaving.contains(connection);
        let clients = self.connections.iter().filter(move |(connection, _)| speaks(connection));
        clients.filter_map(|(_, client)| Some((client.client_id.as_deref()?, client)))
    }
}
