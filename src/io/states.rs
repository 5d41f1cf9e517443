//! Large states that are made JSON text.
//!
//! Owns: the threads that do it, one for each, so that a long chat holds up nobody but who opens it.
//! Never: decides what is large, or when what was made goes out.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread;

use tokio::sync::mpsc;

use crate::host::effects::{ConnectionId, Frame, LargeState};
use crate::wire::errors::RpcError;
use crate::wire::rpc::RequestId;

/// An answer that was made, and whose it is.
#[derive(Debug)]
pub struct Made {
    /// Whose.
    pub connection: ConnectionId,
    /// The answer.
    pub answer: Frame,
    /// How many bytes were expected.
    pub expected: usize,
}

/// Where states are made text.
#[derive(Debug)]
pub struct States {
    made: mpsc::UnboundedSender<Made>,
}

impl States {
    /// Nothing to do so far; what is made comes out of the receiver.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Made>) {
        let (made, receiver) = mpsc::unbounded_channel();
        (Self { made }, receiver)
    }

    /// Begins to make the answer to a request.
    pub fn make(&self, connection: ConnectionId, id: RequestId, state: LargeState) {
        let (made, asked, expected) = (self.made.clone(), id.clone(), state.bytes);
        let failed = |id| Frame::Error { id: Some(id), error: RpcError::internal() };
        let tell = move |made: &mpsc::UnboundedSender<Made>, answer| {
            if made.send(Made { connection, answer, expected }).is_err() {
                tracing::debug!("nobody waits for a state any more");
            }
        };
        let work = move || {
            // A panic is logged where it happens.
            let answer = catch_unwind(AssertUnwindSafe(|| state.answer(asked.clone())));
            tell(&made, answer.unwrap_or_else(|_| failed(asked)));
        };
        if let Err(error) = thread::Builder::new().name("state".to_owned()).spawn(work) {
            tracing::error!(%error, "no thread to write a state with");
            tell(&self.made, failed(id));
        }
    }
}
