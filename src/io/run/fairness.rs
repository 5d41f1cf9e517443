//! Clients that do not read, and their effect on others.
//!
//! Owns: blocking agents, and disconnecting clients that others would have to wait for or that use
//! too much memory. A disconnected client gets the missed actions when it reconnects.
//! Never: disconnects the only client that reads actions, because agents wait for that client,
//! unless all connections together exceed `--client-memory`.

use tokio::time::Instant;

use super::Sidecar;
use crate::host::effects::ConnectionId;
use crate::io::link::{Link, OnClose};

impl Sidecar {
    /// Returns whether agents may go on: no client's queue is full, or another client reads.
    pub(super) fn has_room_for_agents(&self) -> bool {
        let coming = self.in_flight_bytes();
        let has_room = |link: &Link| link.outbox.has_room_for_agents(coming);
        self.persistence.has_room_for_agents(self.unsettled_bytes)
            && (self.links.iter().all(has_room) || self.links.iter().any(|link| self.reads(link)))
    }

    /// Returns whether a client is initialized and keeps up with its output.
    fn reads(&self, link: &Link) -> bool {
        let listens = !link.closing && !link.has_departed && self.host.is_initialized(link.id);
        listens && link.outbox.has_room_for_agents(self.in_flight_bytes())
    }

    /// Returns when the next client is to be disconnected unless it reads before.
    pub(super) fn next_disconnect(&self) -> Option<Instant> {
        self.due_disconnects().map(|(_, at)| at).min()
    }

    /// Returns the clients that will be disconnected, each with its deadline.
    fn due_disconnects(&self) -> impl Iterator<Item = (ConnectionId, Instant)> + '_ {
        // A client that reads has room, so it is not among them.
        let others_read = self.links.iter().any(|link| self.reads(link));
        self.links.iter().filter_map(move |link| {
            let at = link.stalls_at(others_read)?;
            Some((link.id, at))
        })
    }

    /// Disconnects clients with an expired deadline, and the largest while all use too much memory.
    pub(super) fn cut_off(&mut self) {
        let cuts: Vec<(ConnectionId, Instant)> = self.due_disconnects().collect();
        for (connection, at) in cuts {
            if at > Instant::now() {
                continue;
            }
            let Some(link) = self.links.get_mut(connection) else { continue };
            let bytes = link.outbox.bytes();
            tracing::warn!(
                connection = connection.0,
                bytes,
                "a client is disconnected: it does not read its pending output; it receives everything when it reconnects"
            );
            self.give_up(connection, "its client does not read its pending output".to_owned());
        }
        self.cut_off_largest();
    }

    /// Disconnects clients, the one with the most memory first, while their total exceeds the
    /// limit. The client whose end is the end of the process is spared.
    fn cut_off_largest(&mut self) {
        let (total, mut bytes) = (self.options.outbox.total, self.bytes_of_clients());
        while bytes > total {
            let links = self.links.iter().filter(|link| link.on_close == OnClose::Close);
            let sizes = links.map(|link| (link.held_bytes() + self.queued_bytes(link), link.id));
            let Some((of_largest, connection)) = sizes.max().filter(|(bytes, _)| *bytes > 0) else { return };
            tracing::warn!(
                connection = connection.0,
                bytes = of_largest,
                all = bytes,
                "a client is disconnected: all connections together exceed `--client-memory` ({total} bytes), and this \
                 one has the most; it receives everything when it reconnects"
            );
            let why = format!(
                "all connections together exceed {total} bytes of memory, and this one has the most \
                 ({of_largest}): reconnect"
            );
            self.give_up(connection, why);
            bytes = self.bytes_of_clients();
        }
    }

    /// Returns the bytes queued for clients, or received and not handled. Shared bytes count once.
    /// Requests whose connection is closed do not count: no disconnect would free their memory.
    fn bytes_of_clients(&self) -> usize {
        let own = self.links.iter().map(|link| link.own_bytes() + self.queued_bytes(link));
        self.acceptor.backlog().bytes() + own.sum::<usize>()
    }

    /// Returns the size of a connection's requests that wait for a thread, or that one handles.
    fn queued_bytes(&self, link: &Link) -> usize {
        let reads = self.readers.as_ref().map_or(0, |readers| readers.bytes_of(link.id));
        self.resources.bytes_of(link.id) + reads
    }

    /// Disconnects a client with this reason, and drops its queued output.
    pub(super) fn give_up(&mut self, connection: ConnectionId, why: String) {
        let Some(link) = self.links.get_mut(connection) else { return };
        link.cut_off(&why);
        if link.on_close == OnClose::Leave {
            let how = link.terms.on_eof;
            self.end_stdin(how, None);
        }
        self.lose(connection, Some(why));
    }
}
