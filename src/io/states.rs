//! Large states that are made JSON text.
//!
//! Owns: the threads that do it, one for each, so that a long chat holds up nobody but who opens it.
//! Never: decides what is large, or when what was made goes out.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread;

use tokio::sync::mpsc;

use crate::host::effects::ConnectionId;
use crate::versions::{Line, Unwritten};
use crate::wire::rpc::RequestId;

/// An answer that was made, and whose it is.
#[derive(Debug)]
pub struct Made {
    /// Whose.
    pub connection: ConnectionId,
    /// The request.
    pub id: RequestId,
    /// The answer; none when it could not be made.
    pub line: Option<Line>,
    /// How many bytes were expected.
    pub expected: usize,
}

/// Where states are made text.
#[derive(Debug)]
pub struct StateWriters {
    made: mpsc::UnboundedSender<Made>,
}

impl StateWriters {
    /// Nothing to do so far; what is made comes out of the receiver.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Made>) {
        let (made, receiver) = mpsc::unbounded_channel();
        (Self { made }, receiver)
    }

    /// Begins to write the answer to a request.
    pub fn make(&self, connection: ConnectionId, answer: Unwritten) {
        let (made, id, expected) = (self.made.clone(), answer.id.clone(), answer.bytes);
        let tell = move |made: &mpsc::UnboundedSender<Made>, line| {
            if made.send(Made { connection, id, line, expected }).is_err() {
                tracing::debug!("a large state was dropped: nobody waits for it any more");
            }
        };
        let tell_made = tell.clone();
        let work = move || {
            // A panic is logged where it happens.
            let line = catch_unwind(AssertUnwindSafe(|| answer.write()));
            tell_made(&made, line.ok());
        };
        if let Err(error) = thread::Builder::new().name("state".to_owned()).spawn(work) {
            tracing::error!(%error, "no thread can be started to write a large state");
            tell(&self.made, None);
        }
    }
}
