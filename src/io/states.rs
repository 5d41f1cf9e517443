//! Threads that write long messages in pieces.
//!
//! Owns: the threads that do it, one for each, so that a long chat holds up nobody but who opens
//! it; and that a thread is never further ahead of its client than a few pieces, so that memory
//! holds no more of it.
//! Never: decides what takes long, or when a piece goes out.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use super::outbox::Outbox;
use crate::host::effects::ConnectionId;
use crate::versions::DeferredMessage;
use crate::wire::rpc::RequestId;

/// How large a piece is, in bytes, but for the last one.
const PIECE_BYTES: usize = 256 << 10;

/// Maximum number of bytes in flight to a client, roughly.
const AHEAD_BYTES: usize = 4 * PIECE_BYTES;

/// A piece that was written, and whose it is.
#[derive(Debug)]
pub struct Piece {
    pub connection: ConnectionId,
    pub text: Bytes,
    /// Set for the last piece, with how the writing has ended.
    pub last: Option<PieceEnd>,
}

/// How writing has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceEnd {
    All,
    /// The rest is missing.
    Failed,
}

/// Message that is being written for a connection.
#[derive(Debug)]
pub struct OngoingWrite {
    /// The request that it answers, if it is an answer.
    pub id: Option<RequestId>,
    /// Set once some of it has gone out.
    pub has_begun: bool,
    /// Number of bytes that are still expected.
    expected: usize,
    /// Each lets the thread give one more piece. The thread ends when this is gone.
    wanted: Sender<()>,
    /// Number of pieces that were requested and have not arrived.
    wanted_now: usize,
    /// Number of bytes that the thread holds for this client alone.
    held: Arc<AtomicUsize>,
}

impl OngoingWrite {
    /// Takes in a piece, which is to be put into the queue then.
    pub fn take_in(&mut self, piece: &Piece, outbox: &mut Outbox) {
        let all = piece.last.is_some() || piece.text.len() > self.expected;
        let come = if all { self.expected } else { piece.text.len() };
        outbox.expected_come(come);
        self.expected -= come;
        self.wanted_now = self.wanted_now.saturating_sub(1);
        self.has_begun |= !piece.text.is_empty();
    }

    /// Returns the number of bytes that are in memory for this client alone and have not gone out:
    /// of what is translated for it.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Ends the thread: nobody wants the rest.
    pub fn cancel(self, outbox: &mut Outbox) {
        outbox.expected_come(self.expected);
    }

    /// Lets the thread go on, as far as there is room.
    pub fn go_on(&mut self, outbox: &Outbox) {
        while outbox.unread() + self.wanted_now * PIECE_BYTES < AHEAD_BYTES {
            // A thread that has ended wants nothing.
            if self.wanted.send(()).is_err() {
                return;
            }
            self.wanted_now += 1;
        }
    }
}

/// Starts the threads.
#[derive(Debug)]
pub struct StateWriters {
    pieces: mpsc::UnboundedSender<Piece>,
}

impl StateWriters {
    /// Returns the starter, and the receiver of what is written.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Piece>) {
        let (pieces, receiver) = mpsc::unbounded_channel();
        (Self { pieces }, receiver)
    }

    /// Begins to write something that a client is told.
    pub fn begin(&self, connection: ConnectionId, what: DeferredMessage) -> OngoingWrite {
        let (wanted, go_on) = channel();
        let (id, expected) = (what.id.clone(), what.bytes);
        let mut pieces = Pieces {
            connection,
            buffer: BytesMut::new(),
            pieces: self.pieces.clone(),
            go_on,
            is_over: false,
        };
        let failed = Piece { connection, text: Bytes::new(), last: Some(PieceEnd::Failed) };
        let held = Arc::new(AtomicUsize::new(0));
        let holding = Arc::clone(&held);
        let work = move || {
            // A panic is logged where it happens.
            let holds = |bytes| holding.store(bytes, Ordering::Relaxed);
            let written =
                catch_unwind(AssertUnwindSafe(|| what.write(&mut |text| pieces.take(text), &holds)));
            pieces.end(if written.is_ok() { PieceEnd::All } else { PieceEnd::Failed });
        };
        if let Err(error) = thread::Builder::new().name("state".to_owned()).spawn(work) {
            tracing::error!(%error, "no thread can be started to write a large state");
            if self.pieces.send(failed).is_err() {
                tracing::debug!("a large state was dropped: the host is leaving");
            }
        }
        OngoingWrite { id, has_begun: false, expected, wanted, wanted_now: 0, held }
    }
}

/// Makes pieces of one size of what is written.
struct Pieces {
    connection: ConnectionId,
    buffer: BytesMut,
    pieces: mpsc::UnboundedSender<Piece>,
    go_on: Receiver<()>,
    /// Set when nobody wants the rest.
    is_over: bool,
}

impl Pieces {
    /// Takes more text; false when nobody wants it.
    fn take(&mut self, mut text: Bytes) -> bool {
        while !text.is_empty() && !self.is_over {
            let part = text.split_to(text.len().min(PIECE_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(&part);
            if self.buffer.len() == PIECE_BYTES {
                self.give(None);
            }
        }
        !self.is_over
    }

    fn end(&mut self, how: PieceEnd) {
        if !self.is_over {
            self.give(Some(how));
        }
    }

    /// Gives what there is when it is wanted.
    fn give(&mut self, last: Option<PieceEnd>) {
        let text = self.buffer.split().freeze();
        let piece = Piece { connection: self.connection, text, last };
        self.is_over = self.go_on.recv().is_err() || self.pieces.send(piece).is_err();
        if self.is_over {
            tracing::debug!("a large state is not written to its end: its client has gone");
        }
    }
}
