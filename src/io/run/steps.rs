//! A step of the core: its input, its outputs, and their effects when the step ends.
//!
//! Owns: the order of a step: the core handles input, records are committed, outputs take effect.
//! Never: waits for the disk or a client; only small commits, without a sync, run on this thread.

use std::panic::{catch_unwind, AssertUnwindSafe};

use tokio::time::Instant;

use super::leaving::{file_system_timeout, UNSENT_REASON};
use super::{Exit, Sidecar};
use crate::host::effects::{ConnectionId, Frame, Input, Output, Timer};
use crate::io::directories::CheckFor;
use crate::io::link::{LargeWrite, Links};
use crate::io::readers::{listing, ListRequest};
use crate::io::states::{Piece, PieceEnd};
use crate::io::telemetry::COLLECTED_FOR;
use crate::trace;
use crate::versions::Outgoing;
use crate::wire::errors::RpcError;
use crate::wire::rpc::RequestId;

/// Error message for the client after a panic, which is logged where it happens.
const INTERNAL_ERROR: &str =
    "an internal error occurred while the request was handled; the log of the host has the details";

/// Maximum size of unread output of a client that gets log records, in bytes.
const LOGS_BELOW_BYTES: usize = 64 << 10;

impl Sidecar {
    pub(super) fn send_frame(&mut self, connection: ConnectionId, frame: &Frame) {
        // Frames for a closed connection are dropped.
        if let Some(link) = self.links.get_mut(connection) {
            link.note_committed(frame);
            let begun = trace::now();
            self.edges.translate_frame(connection, frame, &mut self.outgoing);
            let bytes = begun.map(|_| self.outgoing.iter().map(Outgoing::bytes).sum());
            self.send(connection, is_answer(frame), false);
            if let (Some(begun), Some(bytes)) = (begun, bytes) {
                trace::frame_is_queued(connection.0, begun, is_answer(frame), bytes);
            }
        }
    }

    /// Sends translated messages in order. With `ahead`, they overtake queued deltas.
    fn send(&mut self, connection: ConnectionId, is_answer: bool, ahead: bool) {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        for message in outgoing.drain(..) {
            if let Some(link) = self.links.get_mut(connection).filter(|_| is_answer) {
                link.outbox.note_answer(message.bytes());
            }
            self.send_one(connection, message, ahead);
        }
        self.outgoing = outgoing;
    }

    fn send_one(&mut self, connection: ConnectionId, what: Outgoing, ahead: bool) {
        let Some(link) = self.links.get_mut(connection) else { return };
        let Some(what) = link.queue_behind(what) else { return };
        let line = match what {
            Outgoing::Unwritten(_) if link.drops_output => return,
            Outgoing::Deltas(run, Some(delay)) => {
                return link.outbox.push_within(run, delay, Instant::now().into_std());
            }
            Outgoing::Deltas(run, None) => return link.outbox.push_deltas(run),
            Outgoing::Unwritten(what) if !self.options.deterministic => {
                link.outbox.expect(what.bytes);
                link.writing = Some(LargeWrite::new(self.states.begin(connection, *what)));
                return;
            }
            what => what.now(),
        };
        if ahead {
            link.outbox.push_ahead(line);
        } else {
            link.outbox.push(line);
        }
    }

    pub(super) fn answer(&mut self, connection: ConnectionId, frame: &Frame) {
        if frame.answers().is_none_or(|id| self.mark_answered(connection, id)) {
            self.send_frame(connection, frame);
        }
    }

    /// Notes that a request is answered. Returns false if it is not pending.
    pub(super) fn mark_answered(&mut self, connection: ConnectionId, id: &RequestId) -> bool {
        let Some(link) = self.links.get_mut(connection) else { return false };
        let is_pending = link.unanswered.settle(id);
        if !is_pending {
            tracing::error!(connection = connection.0, ?id, "a second answer to a request was dropped");
        }
        is_pending
    }

    /// Feeds the core what it needs to answer a request. The connection stays open until the answer
    /// is committed.
    pub(super) fn feed_answer(&mut self, connection: ConnectionId, id: &RequestId, input: Input) {
        self.feed_request(Some((connection, id.clone())), input);
        match self.links.get_mut(connection) {
            Some(link) if answers(&self.outputs, connection, id) => link.uncommitted_answers.push(id.clone()),
            Some(_) => drop(self.mark_answered(connection, id)),
            None => {}
        }
    }

    fn expect_answer(&mut self, connection: ConnectionId, id: &RequestId) {
        if let Some(link) = self.links.get_mut(connection) {
            link.unanswered.add(id.clone());
        }
    }

    /// Feeds the core. Outputs take effect when the step ends.
    pub(super) fn feed(&mut self, input: Input) {
        let request = match &input {
            Input::Received { connection, message, .. } => {
                message.request_id().map(|id| (*connection, id.clone()))
            }
            Input::Listed { connection, id, .. } => Some((*connection, id.clone())),
            _ => None,
        };
        self.feed_request(request, input);
    }

    /// Feeds the core. If it panics, it answers the request with an error.
    fn feed_request(&mut self, request: Option<(ConnectionId, RequestId)>, input: Input) {
        let of_client = matches!(input, Input::Received { .. });
        let span = trace::is_on().then(|| {
            trace::core_begins(match &input {
                Input::Received { connection, .. } => Some(connection.0),
                _ => None,
            })
        });
        let now = *self.now.get_or_insert_with(|| self.clock.now());
        let before = self.outputs.len();
        let (host, ids, outputs) = (&mut self.host, self.ids.as_mut(), &mut self.outputs);
        if !survives(|| host.handle(now, ids, input, outputs)) {
            if let Some((connection, id)) = request.filter(|(from, id)| !answers(outputs, *from, id)) {
                let error = RpcError::internal(INTERNAL_ERROR);
                let failed = Frame::Error { id: Some(id), error };
                outputs.push(Output::Frame(connection, failed));
            }
        }
        span.into_iter().for_each(trace::core_ends);
        if of_client && self.outputs.len() > before {
            if self.outputs[before..].iter().all(Output::is_independent_of_store) && self.may_be_overtaken() {
                // The output is nearly always single: popping from the end avoids a copy.
                self.outputs[before..].reverse();
                while self.outputs.len() > before {
                    let Some(output) = self.outputs.pop() else { break };
                    self.carry_out_ahead(output);
                }
                return;
            }
            self.outputs_of_client = true;
        }
        self.now = None;
        self.unsettled_bytes += self.outputs[before..].iter().map(Output::frame_bytes).sum::<usize>();
    }

    /// Returns whether an output that is independent of the store may overtake held outputs.
    fn may_be_overtaken(&self) -> bool {
        !self.outputs_of_client && self.persistence.may_be_overtaken()
    }

    /// Carries out an independent output, ahead of queued deltas.
    fn carry_out_ahead(&mut self, output: Output) {
        let Output::Frame(connection, frame) = output else { return self.carry_out(output) };
        if self.links.get_mut(connection).is_some() {
            self.edges.translate_frame(connection, &frame, &mut self.outgoing);
            self.send(connection, is_answer(&frame), true);
        }
    }

    pub(super) fn carry_out(&mut self, output: Output) {
        match output {
            Output::Frame(connection, frame) => self.send_frame(connection, &frame),
            Output::States(connection, id, states) => {
                if self.links.get_mut(connection).is_some() {
                    self.edges.translate_states(connection, id, *states, &mut self.outgoing);
                    self.send(connection, true, false);
                }
            }
            // The persistence has taken all records.
            Output::Record(_) => {}
            Output::Turns(connection, turns) => {
                if self.links.get_mut(connection).is_some() {
                    self.edges.translate_turns(connection, *turns, &mut self.outgoing);
                    self.send(connection, true, false);
                }
            }
            Output::Disconnected { connection, cut } => {
                if let Some(link) = self.links.get_mut(connection) {
                    link.cut = cut;
                }
            }
            Output::Closed(connection) => {
                self.end_logs(connection);
                if let Some(link) = self.links.get_mut(connection) {
                    link.closing = true;
                }
            }
            Output::List(connection, id, page) => {
                self.expect_answer(connection, &id);
                match (&mut self.readers, self.persistence.memory()) {
                    (Some(readers), _) => {
                        let began = self.persistence.is_settled().then(|| self.changes.now());
                        readers.list(connection, ListRequest { id, page, began });
                    }
                    (None, Some(memory)) => {
                        let listed = listing(id, &memory.list(&page));
                        self.answer(connection, &listed);
                    }
                    (None, None) => {}
                }
            }
            Output::AgentSessions(connection, id, request) => {
                self.expect_answer(connection, &id);
                self.agents.ask_sessions(connection, id, request);
            }
            Output::Resource(connection, id, resource) => {
                self.expect_answer(connection, &id);
                if let Some(resource) = self.git.take(connection, id.clone(), resource, &self.resources.own())
                {
                    self.resources.take(connection, id, resource);
                }
            }
            Output::CheckDirectories(run, uris) => self.directories.check(CheckFor::Run(run), uris),
            Output::Git(number, job) => self.git.ask(number, *job),
            Output::Watch(channel) => self.watches.begin_own(channel),
            Output::Unwatch(channel) => self.watches.release(channel),
            Output::BeginWatches(connection) => self.watches.try_again(connection),
            Output::ExportLogs { connection, channel, lowest } => {
                self.options.log_exports.subscribe(connection, channel, lowest)
            }
            Output::EndLogs(connection, Some(lowest)) => {
                self.options.log_exports.unsubscribe(connection, Some(lowest))
            }
            Output::EndLogs(connection, None) => self.end_logs(connection),
            Output::Pty(terminal, command) => self.ptys.carry_out(terminal, command),
            Output::Agent(chat, command) => self.agents.carry_out(chat, *command),
            Output::Probe { provider, tokens } => self.agents.probe(provider, tokens),
            // A time beyond the range of the clock never comes.
            Output::Timer(timer, after) => {
                self.timers.extend(Instant::now().checked_add(after).map(|at| (at, timer)));
            }
            Output::Done { cut } => {
                self.send_logs(None);
                self.departure.done = Some(if cut { Exit::Cut } else { Exit::Done });
            }
        }
    }

    /// Queues a piece of a large message, and the messages behind it after the last piece.
    pub(super) fn receive_piece(&mut self, piece: Piece) {
        let connection = piece.connection;
        let Some(link) = self.links.get_mut(connection) else { return };
        let Some(mut writing) = link.writing.take() else { return };
        writing.write.take_in(&piece, &mut link.outbox);
        if !piece.text.is_empty() {
            link.outbox.push(piece.text);
        }
        let Some(how) = piece.last else {
            link.writing = Some(writing);
            return;
        };
        if how == PieceEnd::Failed {
            let error = RpcError::internal(INTERNAL_ERROR);
            match writing.write.id {
                Some(id) if !writing.write.has_begun => {
                    self.send_frame(connection, &Frame::Error { id: Some(id), error })
                }
                // An incomplete line cannot be continued.
                _ => return self.give_up(connection, error.message),
            }
        }
        self.send_behind(connection, writing.behind);
    }

    fn send_behind(&mut self, connection: ConnectionId, behind: Vec<Outgoing>) {
        for what in behind {
            if let Some(link) = self.links.get_mut(connection) {
                link.outbox.expected_come(what.bytes());
            }
            self.send_one(connection, what, false);
        }
    }

    /// Drops all output of this client, and cancels the large message that is being written for it.
    pub(super) fn write_nothing_more(&mut self, connection: ConnectionId) {
        let Some(link) = self.links.get_mut(connection) else { return };
        link.drops_output = true;
        if let Some(LargeWrite { write, behind, .. }) = link.writing.take() {
            write.cancel(&mut link.outbox);
            self.send_behind(connection, behind);
        }
    }

    /// Sends pending log records when they are due, behind all other output.
    fn export_logs(&mut self) {
        if !self.options.log_exports.has_streams() {
            self.logs_due = None;
            return;
        }
        let is_due = self.logs_due.is_some_and(|due| due <= Instant::now()) || self.options.deterministic;
        if is_due {
            self.send_logs(None);
            let again = self.options.log_exports.are_pending() && !self.options.deterministic;
            self.logs_due = again.then(|| Instant::now().checked_add(COLLECTED_FOR)).flatten();
        }
    }

    /// Sends pending log records to this client, or to all. Clients that do not read get none until
    /// they do.
    fn send_logs(&mut self, only: Option<ConnectionId>) {
        let exports = self.options.log_exports.clone();
        let has_room = |links: &Links, connection: ConnectionId| {
            only.is_none_or(|only| only == connection)
                && links.iter().any(|link| link.id == connection && link.outbox.bytes() < LOGS_BELOW_BYTES)
        };
        while let Some((connection, params)) = exports.take(|connection| has_room(&self.links, connection)) {
            let frame = Frame::Notification { method: "otlp/exportLogs", params: params.into() };
            self.send_frame(connection, &frame);
        }
    }

    /// Ends all exports of the log to a client, which gets what is pending.
    fn end_logs(&mut self, connection: ConnectionId) {
        if self.options.log_exports.has_streams() {
            self.send_logs(Some(connection));
            self.options.log_exports.unsubscribe(connection, None);
        }
    }

    /// Ends a batch of inputs and the step.
    pub(super) fn settle(&mut self) {
        self.export_logs();
        self.feed(Input::BatchEnded);
        if self.departure.done.is_some() {
            self.feed(Input::Timer(Timer::Summaries));
        }
        self.end_step();
    }

    /// Ends a step: stores records, carries out committed outputs, and gives writers more chunks.
    pub(super) fn end_step(&mut self) {
        loop {
            while let Some((connection, message)) = self.edges.take_later() {
                self.feed(Input::received(connection, message));
            }
            self.feed(Input::Save);
            self.unsettled_bytes = 0;
            let outputs = std::mem::take(&mut self.outputs);
            if outputs.is_empty() {
                break;
            }
            let reads = self.readers.as_ref().is_some_and(|readers| !readers.is_idle());
            if reads || self.links.iter().any(|link| link.held.is_some()) {
                self.changes.note(&outputs);
            } else {
                self.changes.forget();
            }
            let of_client = std::mem::take(&mut self.outputs_of_client);
            let outputs = self.begin_limits(outputs);
            let begun = trace::now();
            let kept = self.persistence.keep(outputs, of_client);
            if let Some(begun) = begun {
                trace::step_ends(begun, self.persistence.last_held());
            }
            for output in kept {
                self.carry_out(output);
            }
            self.answer_what_waits();
        }
        self.write();
    }

    /// Starts the time limits for turns of disconnected clients without waiting for a commit,
    /// because they apply even while commits fail. Returns the other outputs.
    fn begin_limits(&mut self, mut outputs: Vec<Output>) -> Vec<Output> {
        let is_limit =
            |output: &mut Output| matches!(output, Output::Timer(Timer::Drain | Timer::Disconnect(_), _));
        let limits: Vec<Output> = outputs.extract_if(.., is_limit).collect();
        for limit in limits {
            self.carry_out(limit);
        }
        outputs
    }

    fn write(&mut self) {
        let mut over = Vec::new();
        let (now, is_failing) = (Instant::now(), self.persistence.is_failing());
        for link in self.links.iter_mut() {
            if self.departure.done.is_some() || link.closing {
                link.outbox.release();
            }
            link.write();
            link.have_more_written();
            if link.waits_for_answers_only() || (is_failing && link.has_departed) {
                link.leave_by = link.leave_by.or(now.checked_add(file_system_timeout(link.terms.on_eof)));
            }
            let is_over = link.is_done() || link.leave_by.is_some_and(|by| by <= now);
            over.extend(is_over.then_some(link.id));
        }
        for connection in over {
            let Some(link) = self.links.remove(connection) else { continue };
            self.connection_closed(connection);
            if !link.closing {
                // A deadline has ended it before the core has closed it.
                self.feed(Input::Closed(connection));
            }
            let failure = (is_failing && !link.closing).then(|| UNSENT_REASON.to_owned());
            self.send_exit(&link, failure, true);
        }
    }
}

fn is_answer(frame: &Frame) -> bool {
    matches!(frame, Frame::Result { .. } | Frame::Error { .. })
}

/// Returns whether a function ran without a panic. A panic is logged where it happens.
fn survives(run: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(run)).is_ok()
}

fn answers(outputs: &[Output], from: ConnectionId, request: &RequestId) -> bool {
    outputs.iter().any(|output| match output {
        Output::Frame(to, Frame::Result { id, .. }) | Output::States(to, id, _) => {
            (*to, id) == (from, request)
        }
        Output::Frame(to, Frame::Error { id: Some(id), .. }) => (*to, id) == (from, request),
        _ => false,
    })
}
