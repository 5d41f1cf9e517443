//! Threads that write large messages in pieces.
//!
//! Owns: the threads, one per message, so that a long chat delays only the client that opens it;
//! and the number of pieces that a thread may be ahead of its client, which bounds the memory.
//! Never: decides which messages are large, or when a piece goes out.

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

/// Size of a piece, in bytes; the last one may be smaller.
const PIECE_BYTES: usize = 256 << 10;

/// Approximate maximum number of bytes in flight to a client.
const AHEAD_BYTES: usize = 4 * PIECE_BYTES;

#[derive(Debug)]
pub struct Piece {
    pub connection: ConnectionId,
    pub text: Bytes,
    /// Set for the last piece.
    pub last: Option<PieceEnd>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceEnd {
    All,
    /// The rest of the message is missing.
    Failed,
}

#[derive(Debug)]
pub struct OngoingWrite {
    pub id: Option<RequestId>,
    pub has_begun: bool,
    expected: usize,
    /// Sends one unit per requested piece. Dropping it ends the thread.
    wanted: Sender<()>,
    wanted_now: usize,
    /// Number of bytes that the thread holds for this client alone.
    held: Arc<AtomicUsize>,
}

impl OngoingWrite {
    /// Accounts for a piece, which the caller then queues.
    pub fn take_in(&mut self, piece: &Piece, outbox: &mut Outbox) {
        let all = piece.last.is_some() || piece.text.len() > self.expected;
        let come = if all { self.expected } else { piece.text.len() };
        outbox.expected_come(come);
        self.expected -= come;
        self.wanted_now = self.wanted_now.saturating_sub(1);
        self.has_begun |= !piece.text.is_empty();
    }

    /// Returns the number of bytes of translated text in memory for this client alone.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub fn cancel(self, outbox: &mut Outbox) {
        outbox.expected_come(self.expected);
    }

    /// Requests pieces as far as the queue has room.
    pub fn go_on(&mut self, outbox: &Outbox) {
        while outbox.unread() + self.wanted_now * PIECE_BYTES < AHEAD_BYTES {
            if self.wanted.send(()).is_err() {
                return;
            }
            self.wanted_now += 1;
        }
    }
}

#[derive(Debug)]
pub struct StateWriters {
    pieces: mpsc::UnboundedSender<Piece>,
}

impl StateWriters {
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Piece>) {
        let (pieces, receiver) = mpsc::unbounded_channel();
        (Self { pieces }, receiver)
    }

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

struct Pieces {
    connection: ConnectionId,
    buffer: BytesMut,
    pieces: mpsc::UnboundedSender<Piece>,
    go_on: Receiver<()>,
    /// Set when the rest is not needed.
    is_over: bool,
}

impl Pieces {
    /// Adds text. Returns false if no more is needed.
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

    fn give(&mut self, last: Option<PieceEnd>) {
        let text = self.buffer.split().freeze();
        let piece = Piece { connection: self.connection, text, last };
        self.is_over = self.go_on.recv().is_err() || self.pieces.send(piece).is_err();
        if self.is_over {
            tracing::debug!("a large state is not written to its end: its client has gone");
        }
    }
}
