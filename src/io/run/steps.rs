//! A step of the core: what it is fed, what it asks for, and what goes out when the step ends.
//!
//! Owns: the order of a step: the core hears, its records are kept, and only then is anything told or done.
//! Never: waits; what takes time is done elsewhere and heard of later.

use std::panic::{catch_unwind, AssertUnwindSafe};

use tokio::time::Instant;

use super::{Exit, Sidecar, CHUNK_BYTES, STDIO};
use crate::host::effects::{ConnectionId, Frame, Input, Output, Timer};
use crate::wire::errors::RpcError;
use crate::wire::rpc::{Incoming, RequestId};

impl Sidecar {
    /// Sends a frame, as the connection's version says it.
    pub(super) fn tell(&mut self, connection: ConnectionId, frame: &Frame) {
        self.edges.down(connection, frame, &mut self.told);
        for line in self.told.drain(..) {
            match (line.delta, line.delay) {
                (Some(part), Some(delay)) => {
                    self.outbox.push_within(line.bytes, part, delay, Instant::now().into_std());
                }
                _ => self.outbox.push(line.bytes, line.delta),
            }
        }
    }

    /// Feeds the core. What it asks is done when the step ends.
    pub(super) fn feed(&mut self, input: Input) {
        let request = match &input {
            Input::Said(_, Incoming::Request { id, .. }) => Some(id.clone()),
            _ => None,
        };
        let now = self.clock.now();
        let before = self.outputs.len();
        let (host, ids, outputs) = (&mut self.host, self.ids.as_mut(), &mut self.outputs);
        if !survives(|| host.handle(now, ids, input, outputs)) {
            if let Some(id) = request.filter(|id| !answers(outputs, id)) {
                let failed = Frame::Error { id: Some(id), error: RpcError::internal() };
                outputs.push(Output::Frame(STDIO, failed));
            }
        }
        self.unsettled_bytes += self.outputs[before..].iter().map(Output::frame_bytes).sum::<usize>();
    }

    pub(super) fn carry_out(&mut self, output: Output) {
        match output {
            Output::Frame(connection, frame) => self.tell(connection, &frame),
            // Taken by the keeper.
            Output::Record(_) => {}
            Output::List(_, id, page) => {
                if let Some(listed) = self.keeper.list(id, page) {
                    self.hear_keeper(listed);
                }
            }
            Output::Resource(connection, id, resource) => self.resources.take(connection, id, resource),
            Output::Agent(chat, command) => self.agents.carry_out(chat, *command),
            // A time that no clock reaches never comes.
            Output::Timer(timer, after) => {
                self.timers.extend(Instant::now().checked_add(after).map(|at| (at, timer)));
            }
            Output::Done { cut } => self.done = Some(if cut { Exit::Cut } else { Exit::Done }),
        }
    }

    /// Takes it that everything that waited has been taken in, and ends the step.
    pub(super) fn settle(&mut self) {
        self.feed(Input::Settled);
        if self.done.is_some() {
            self.feed(Input::Timer(Timer::Summaries));
        }
        self.end_step();
    }

    /// Ends a step: what has changed is kept, what may be told is told, and the writer gets its next chunk.
    pub(super) fn end_step(&mut self) {
        loop {
            while let Some((connection, message)) = self.edges.take_later() {
                self.feed(Input::Said(connection, message));
            }
            self.feed(Input::Save);
            self.unsettled_bytes = 0;
            let outputs = std::mem::take(&mut self.outputs);
            if outputs.is_empty() {
                break;
            }
            for output in self.keeper.keep(outputs) {
                self.carry_out(output);
            }
            self.answer_what_waits();
        }
        self.write();
    }

    /// Gives the writer chunks until it is busy with one or nothing waits.
    pub(super) fn write(&mut self) {
        if self.done.is_some() {
            self.outbox.release();
        }
        while !self.writer.is_busy() {
            let chunk = self.outbox.take(CHUNK_BYTES);
            if chunk.is_empty() {
                return;
            }
            let written = self.writer.write(chunk);
            self.outbox.written(written);
        }
    }
}

/// Whether something ran to its end, rather than panicking. A panic is logged where it happens.
fn survives(run: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(run)).is_ok()
}

/// Whether a request is answered among these outputs.
fn answers(outputs: &[Output], request: &RequestId) -> bool {
    outputs.iter().any(|output| match output {
        Output::Frame(_, Frame::Result { id, .. }) => id == request,
        Output::Frame(_, Frame::Error { id: Some(id), .. }) => id == request,
        _ => false,
    })
}
