//! Input of clients.
//!
//! Owns: the order of clients, the amount handled per step, and the end of a connection.
//! Never: handles input behind a message that waits for lookups.

use anyhow::Context;
use tokio::time::Instant;

use super::leaving::LEAVE_WITHIN;
use super::{Exit, Sidecar};
use crate::backend::OfferedAgent;
use crate::codec::InputLine;
use crate::config::ConfigurationReading;
use crate::host::effects::{ConnectionId, Input, Shutdown};
use crate::io::events::Events;
use crate::io::fronts::{FrontServices, JoinRequest};
use crate::io::held::HeldMessage;
use crate::io::link::{ClientEvent, Link, OnClose, WriteOutcome, CHUNK_BYTES};
use crate::io::upkeep::UpkeepEvent;
use crate::os::hangup::LeaveReason;
use crate::status::{EXIT_CUT, EXIT_FAILURE};
use crate::trace;
use crate::wire::errors::RpcError;
use crate::wire::rpc::Incoming;

/// Maximum number of lines handled in one step, for all clients combined.
const LINES_AT_ONCE: usize = 256;

impl Sidecar {
    /// Handles queued input of clients that have room for the answers.
    pub(super) async fn receive_from_clients(&mut self, events: &mut Events) -> anyhow::Result<Option<Exit>> {
        for _ in 0..LINES_AT_ONCE {
            if self.departure.has_begun() {
                break;
            }
            let coming = self.in_flight_bytes();
            let event = self.links.next_event(|link| link.outbox.has_room_for_clients(coming));
            match event {
                None => break,
                Some((connection, ClientEvent::Line(line))) => self.receive_line(connection, line),
                Some((connection, ClientEvent::End(failure))) => self.input_ended(connection, failure),
            }
            if self.options.deterministic {
                let exit = self.run_until_quiet(events).await?;
                if exit.is_some() {
                    return Ok(exit);
                }
            } else if self.unsettled_bytes > CHUNK_BYTES {
                self.end_step();
            }
        }
        Ok(None)
    }

    pub(super) fn has_client_input(&self) -> bool {
        let coming = self.in_flight_bytes();
        self.links.any_has_event(|link| link.outbox.has_room_for_clients(coming))
    }

    fn receive_line(&mut self, connection: ConnectionId, line: InputLine) {
        if trace::is_on() {
            if let InputLine::Complete(line) | InputLine::Unterminated(line) = &line {
                trace::client_line(connection.0, line);
            }
        }
        let message = match line {
            InputLine::Complete(line) => Incoming::parse(&line),
            InputLine::Unterminated(line) => match Incoming::parse(&line) {
                // A truncated message was never sent.
                Incoming::Malformed { error, .. } => {
                    tracing::warn!(%error, "the input ended inside a line, which was ignored");
                    return;
                }
                message => message,
            },
            InputLine::TooLong { .. } => {
                let longest = self.links.get_mut(connection).map_or(0, |link| link.terms.line_bytes_max);
                let error = RpcError::invalid_request(format!("a line is longer than {longest} bytes"));
                Incoming::Malformed { id: None, error }
            }
        };
        if message.names_nothing() {
            return self.receive_message(connection, message, None);
        }
        let message = self.edges.with_files(connection, message);
        let named = self.edges.named(connection, &message);
        self.handle_or_hold(connection, HeldMessage::new(message, named));
    }

    fn input_ended(&mut self, connection: ConnectionId, failure: Option<std::io::Error>) {
        let Some(link) = self.links.get_mut(connection) else { return };
        let how = link.terms.on_eof;
        match link.on_close {
            OnClose::Leave => {
                tracing::info!(?failure, "stdin has ended");
                self.end_stdin(how, failure);
            }
            OnClose::Close => {
                tracing::info!(
                    connection = connection.0,
                    ?failure,
                    "a client has closed its side of the connection"
                );
                link.has_departed = true;
                link.unreadable = failure;
                let expected = link.expected();
                self.feed(Input::Ended { connection, how, expected });
            }
        }
    }

    /// Begins to shut down after the end of the client on stdin and stdout.
    pub(super) fn end_stdin(&mut self, how: Shutdown, failure: Option<std::io::Error>) {
        self.departure.unreadable = failure;
        self.departure.input_has_ended = true;
        self.departure.is_drained = how == Shutdown::Cancel;
        self.feed(Input::Shutdown(how));
    }

    /// Handles the hello of a front. A host that is leaving drops it, and the front starts another.
    pub(super) fn receive_join_request(&mut self, mut join_request: JoinRequest) {
        if let Some(reading) = join_request.take_reading() {
            self.take_up(reading);
        }
        self.resources.keep_from_clients(join_request.take_files());
        if let Some(fronts) = self.fronts.as_mut().filter(|_| !self.departure.has_begun()) {
            let with = FrontServices {
                acceptor: &self.acceptor,
                listeners: &self.listeners,
                configuration: self.configuration.as_ref(),
                upkeep: self.upkeep.as_ref(),
            };
            fronts.admit(join_request, &with);
        }
    }

    pub(super) fn receive_upkeep(&mut self, news: UpkeepEvent) -> Option<Exit> {
        match news {
            UpkeepEvent::Configuration(reading) => self.take_up(*reading),
            UpkeepEvent::Replaced => {
                tracing::error!("another process holds the state folder: its lock was removed");
                return self.receive_leave_reason(LeaveReason::Asked(
                    "another process has taken over the state folder",
                ));
            }
            UpkeepEvent::Socket(listener) => {
                if let Some(fronts) = self.fronts.as_mut().filter(|_| !self.departure.has_begun()) {
                    fronts.listen_anew(listener);
                }
            }
        }
        None
    }

    fn take_up(&mut self, reading: ConfigurationReading) {
        self.resources.keep_from_clients(reading.stamps.keys().cloned().collect());
        let Some(configuration) = &mut self.configuration else { return };
        let Some(mut offered) = configuration.take_up(reading) else { return };
        self.agents.offer_servers(configuration.servers());
        let built_in = self.built_in.iter().cloned().map(OfferedAgent::AsBefore);
        offered.extend(built_in);
        self.agents.replace(offered);
        let described = self.agents.describe();
        self.edges.offer(described.iter().map(|agent| agent.info.provider.clone()).collect());
        let client_mcp = configuration.client_mcp();
        self.feed(Input::Agents(described, client_mcp));
    }

    /// Ends a connection early: turns are cancelled, and queued output is still written.
    pub(super) fn cut_short(&mut self, connection: ConnectionId) {
        let Some(link) = self.links.get_mut(connection) else { return };
        tracing::info!(
            connection = connection.0,
            "a client is disconnected as soon as its pending output is written"
        );
        link.stop_receiving();
        link.has_departed = true;
        link.leave_by = Some(Instant::now() + LEAVE_WITHIN);
        self.feed(Input::Ended { connection, how: Shutdown::Cancel, expected: None });
    }

    pub(super) fn receive_write_outcome(
        &mut self,
        connection: ConnectionId,
        written: WriteOutcome,
    ) -> anyhow::Result<Option<Exit>> {
        let Some(link) = self.links.get_mut(connection) else { return Ok(None) };
        match (written, link.on_close) {
            (WriteOutcome::Bytes(bytes), _) => link.written(bytes),
            (WriteOutcome::Unread, _) => self.write_nothing_more(connection),
            (WriteOutcome::Gone, OnClose::Leave) => return Ok(Some(Exit::Done)),
            (WriteOutcome::Failed(error), OnClose::Leave) => {
                return Err(error).context("stdout cannot be written")
            }
            (written, OnClose::Close) => {
                tracing::info!(connection = connection.0, ?written, "a connection is lost");
                let failure = match written {
                    WriteOutcome::Failed(error) => Some(format!("stdout cannot be written: {error}")),
                    _ => None,
                };
                self.lose(connection, failure);
            }
        }
        Ok(None)
    }

    /// Removes a connection to which nothing more can be sent.
    pub(super) fn lose(&mut self, connection: ConnectionId, failure: Option<String>) {
        let Some(link) = self.links.remove(connection) else { return };
        self.connection_closed(connection);
        if !link.has_departed {
            let (how, expected) = (link.terms.on_eof, link.terms.returns_within);
            self.feed(Input::Ended { connection, how, expected });
        }
        self.feed(Input::Closed(connection));
        // The client is gone, so its front need not wait for the end of the host.
        self.send_exit(&link, failure, false);
    }

    /// Ends what is done for a connection that was removed.
    pub(super) fn connection_closed(&mut self, connection: ConnectionId) {
        self.edges.close(connection);
        self.agents.connection_closed(connection);
        self.resources.connection_closed(connection);
        self.readers.iter_mut().for_each(|readers| readers.connection_closed(connection));
    }

    pub(super) fn send_exit(&mut self, link: &Link, failure: Option<String>, waits: bool) {
        let Some(fronts) = &mut self.fronts else { return };
        let unreadable = link.unreadable.as_ref().map(|error| format!("stdin cannot be read: {error}"));
        let why = failure.or(unreadable);
        let status = match (&why, link.cut) {
            (Some(_), _) => EXIT_FAILURE,
            (None, true) => EXIT_CUT,
            (None, false) => 0,
        };
        // Other clients keep the host running, so the front must not wait for its end.
        let waits = waits && self.links.iter().next().is_none();
        fronts.send_exit(link.id, status, why, waits);
    }
}
