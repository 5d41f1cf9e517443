//! Connections: received lines, queued output, and the writer of each one.
//!
//! Owns: accepting connections ([`ConnectionAcceptor`]), the table of open ones ([`Links`]), the
//! order in which they are served, and the limit on input that is read ahead.
//! Never: knows the transport of a connection, or the meaning of a line.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::backlog::Backlog;
use super::held::HeldMessage;
use super::outbox::{Outbox, OutboxLimits};
use super::states::OngoingWrite;
use super::unanswered::UnansweredRequests;
use crate::codec::InputLine;
use crate::host::effects::{ConnectionId, Frame, Shutdown};
use crate::trace;
use crate::versions::dialect::Dialect;
use crate::versions::Outgoing;
use crate::wire::rpc::RequestId;

/// Maximum number of batches of lines that a connection may queue for the loop.
const BATCHES_MAX: usize = 2;

/// Bytes of an unfinished message between wakeups of the loop, which checks the memory of clients.
const WAKE_EVERY: usize = 1 << 20;

/// Maximum size of a chunk for a writer, in bytes.
pub const CHUNK_BYTES: usize = 256 << 10;

/// Length below which lines are copied into one buffer, so that one call writes many, in bytes.
/// Longer lines report their progress after each chunk.
pub(super) const COPY_BELOW: usize = 64 << 10;

/// Lines of one read, or the error that ends the input.
pub type LineBatch = io::Result<Vec<InputLine>>;

/// Event of a connection.
#[derive(Debug)]
pub enum TransportEvent {
    /// New connection.
    Opened(Box<Link>),
    /// Received lines, or the end of the input.
    LinesReceived(ConnectionId),
    /// Outcome of writing a chunk.
    Written(ConnectionId, WriteOutcome),
    /// Request to end the connection now.
    LeaveRequested(ConnectionId),
}

/// Outcome of a chunk, or a part of it.
#[derive(Debug)]
pub enum WriteOutcome {
    /// Number of bytes written since the last report.
    Bytes(usize),
    /// Closed reader.
    Gone,
    /// Closed reader of a client whose earlier lines are still handled. Output to it is dropped.
    Unread,
    /// Write error that is not a closed reader, for example a full disk.
    Failed(io::Error),
}

/// Consequence of the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnClose {
    /// The process serves this connection, and ends with it.
    Leave,
    /// Other connections are not affected.
    Close,
}

/// Settings of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// `file:` URI announced to the client as its starting point.
    pub default_directory: Option<String>,
    /// Maximum length of an input line, in bytes.
    pub line_bytes_max: usize,
    /// Treatment of the client's turns when its input ends.
    pub on_eof: Shutdown,
    /// Version to assume if the first messages do not name one.
    pub assume_version: Option<Dialect>,
    /// Time within which the client is expected back after a lost connection; `None` if it is not.
    pub returns_within: Option<Duration>,
    /// Time for which a client may block agents while another reads; `None` for the default.
    pub stall_limit: Option<Duration>,
}

/// Writer of a connection's lines, one chunk at a time.
pub trait LineSink: Send {
    /// Writes the next chunk; the one before is finished. Returns the number of bytes already
    /// written; [`Receipts`] report the rest.
    fn write(&mut self, chunk: Vec<Bytes>) -> usize;

    /// Drops unwritten output, and sends the client this reason if that is still possible.
    fn cut_off(&mut self, _why: &str) {}
}

/// Accepts new connections.
#[derive(Debug, Clone)]
pub struct ConnectionAcceptor {
    limits: OutboxLimits,
    backlog: Backlog,
    news: mpsc::UnboundedSender<TransportEvent>,
    last: Arc<AtomicU32>,
}

impl ConnectionAcceptor {
    /// Creates an acceptor with limits per connection, and the receiver of the connections' events.
    pub fn new(limits: OutboxLimits) -> (Self, mpsc::UnboundedReceiver<TransportEvent>) {
        let (news, receiver) = mpsc::unbounded_channel();
        (Self { limits, backlog: Backlog::default(), news, last: Arc::default() }, receiver)
    }

    /// Returns the counter of queued bytes that connections share.
    pub fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Opens a connection, whose lines go to the sink that `writer` makes. The connection's input
    /// is sent through the returned value, and ends when that is dropped.
    ///
    /// # Errors
    /// When the sink cannot be made.
    pub fn open<W: LineSink + 'static>(
        &self,
        on_close: OnClose,
        terms: ConnectionSettings,
        writer: impl FnOnce(Receipts) -> io::Result<W>,
    ) -> io::Result<ClientLines> {
        let id = ConnectionId(self.last.fetch_add(1, Ordering::Relaxed));
        let stall_limit = terms.stall_limit.unwrap_or(self.limits.stall_limit);
        let (batches, lines) = mpsc::channel(BATCHES_MAX);
        let is_lost = Arc::new(AtomicBool::new(false));
        let received = PartialMessage { id, news: self.news.clone(), bytes: Arc::default() };
        let writer = Box::new(writer(Receipts { id, news: self.news.clone() })?);
        let link = Link {
            id,
            on_close,
            terms,
            outbox: Outbox::new(OutboxLimits { stall_limit, ..self.limits }, self.backlog.clone()),
            held: None,
            unanswered: UnansweredRequests::default(),
            uncommitted_answers: Vec::new(),
            drops_output: false,
            writing: None,
            received: Arc::clone(&received.bytes),
            closing: false,
            has_departed: false,
            cut: false,
            unreadable: None,
            leave_by: None,
            lines,
            unhandled: Vec::new().into_iter(),
            unhandled_bytes: 0,
            may_have_more: false,
            has_ended: false,
            writer,
            being_written: 0,
            progress_at: Instant::now(),
            is_lost: Arc::clone(&is_lost),
        };
        send_event(&self.news, TransportEvent::Opened(Box::new(link)));
        Ok(ClientLines { id, batches: Some(batches), received, is_lost, news: self.news.clone() })
    }
}

fn send_event(to: &mpsc::UnboundedSender<TransportEvent>, news: TransportEvent) -> bool {
    let sent = to.send(news).is_ok();
    if !sent {
        tracing::debug!("news of a connection was dropped: the host has left");
    }
    sent
}

/// Reports of a writer about its chunk.
#[derive(Debug, Clone)]
pub struct Receipts {
    id: ConnectionId,
    news: mpsc::UnboundedSender<TransportEvent>,
}

impl Receipts {
    /// Sends a report. Returns false if the host has left.
    pub fn send(&self, written: WriteOutcome) -> bool {
        send_event(&self.news, TransportEvent::Written(self.id, written))
    }

    /// Reports a closed reader noticed without a write. Returns false if the host has left.
    pub fn report_closed_reader(&self) -> bool {
        self.send(WriteOutcome::Gone)
    }

    /// Requests the end of the connection. Returns false if the host has left.
    pub fn request_leave(&self) -> bool {
        send_event(&self.news, TransportEvent::LeaveRequested(self.id))
    }
}

#[derive(Debug, Default)]
struct ReceivedBytes {
    /// Size of the incomplete message.
    unfinished: AtomicUsize,
    /// Size of the batches queued for the loop. Updated per batch, because two threads share it.
    complete: AtomicUsize,
}

/// Counter of the incomplete message that a connection's reader holds.
#[derive(Debug, Clone)]
pub struct PartialMessage {
    id: ConnectionId,
    news: mpsc::UnboundedSender<TransportEvent>,
    bytes: Arc<ReceivedBytes>,
}

impl PartialMessage {
    /// Creates a counter whose changes are not reported.
    #[cfg(test)]
    pub fn detached() -> Self {
        Self { id: ConnectionId(0), news: mpsc::unbounded_channel().0, bytes: Arc::default() }
    }

    /// Sets the size of the incomplete message in memory, in bytes.
    pub fn set_unfinished(&self, bytes: usize) {
        let before = self.bytes.unfinished.swap(bytes, Ordering::Relaxed);
        if bytes / WAKE_EVERY > before / WAKE_EVERY {
            send_event(&self.news, TransportEvent::LinesReceived(self.id));
        }
    }

    fn add_complete(&self, batch: &LineBatch) {
        if let Ok(lines) = batch {
            self.bytes.complete.fetch_add(bytes_of(lines), Ordering::Relaxed);
        }
    }
}

fn bytes_of(lines: &[InputLine]) -> usize {
    lines.iter().map(InputLine::len).sum()
}

/// Sender of a client's lines. Dropping it ends the client's input.
#[derive(Debug)]
pub struct ClientLines {
    id: ConnectionId,
    batches: Option<mpsc::Sender<LineBatch>>,
    received: PartialMessage,
    is_lost: Arc<AtomicBool>,
    news: mpsc::UnboundedSender<TransportEvent>,
}

impl ClientLines {
    /// Ends the input because the connection was lost, not closed by the client.
    pub fn close_as_lost(self) {
        self.is_lost.store(true, Ordering::Release);
    }

    /// Sends a batch from a thread, blocking while the queue is full. Returns false if closed.
    pub fn send_blocking(&self, batch: LineBatch) -> bool {
        self.received.add_complete(&batch);
        let sent = self.batches.as_ref().is_some_and(|batches| batches.blocking_send(batch).is_ok());
        sent && send_event(&self.news, TransportEvent::LinesReceived(self.id))
    }

    /// Sends a batch from a task. Returns false if the connection is closed.
    pub async fn send(&self, batch: LineBatch) -> bool {
        let Some(batches) = &self.batches else { return false };
        self.received.add_complete(&batch);
        batches.send(batch).await.is_ok() && send_event(&self.news, TransportEvent::LinesReceived(self.id))
    }

    /// Sends a batch if the queue has room.
    #[cfg(test)]
    pub fn try_send(&self, batch: LineBatch) -> bool {
        if self.batches.as_ref().is_none_or(|batches| batches.capacity() == 0) {
            return false;
        }
        self.received.add_complete(&batch);
        let sent = self.batches.as_ref().is_some_and(|batches| batches.try_send(batch).is_ok());
        sent && send_event(&self.news, TransportEvent::LinesReceived(self.id))
    }

    /// Returns the counter of the incomplete message.
    pub fn received(&self) -> &PartialMessage {
        &self.received
    }

    /// Waits until the connection is closed.
    pub async fn closed(&self) {
        if let Some(batches) = &self.batches {
            batches.closed().await;
        }
    }

    /// Returns the id of the connection.
    pub fn connection(&self) -> ConnectionId {
        self.id
    }
}

impl Drop for ClientLines {
    fn drop(&mut self) {
        self.batches = None;
        send_event(&self.news, TransportEvent::LinesReceived(self.id));
    }
}

/// Connection in the loop, with its input and output.
pub struct Link {
    /// Id, which no other connection of the process gets.
    pub id: ConnectionId,
    /// Consequence of the end of this connection.
    pub on_close: OnClose,
    /// Settings of this connection.
    pub terms: ConnectionSettings,
    /// Queue of lines to be written.
    pub outbox: Outbox,
    /// Message that waits for lookups. Later messages are not received before it.
    pub held: Option<Box<HeldMessage>>,
    /// Requests that are answered elsewhere.
    pub unanswered: UnansweredRequests,
    /// Ids of unanswered requests whose answers wait for a commit.
    pub uncommitted_answers: Vec<RequestId>,
    /// Set if output is dropped because the client does not read any more.
    pub drops_output: bool,
    /// Message that another thread writes in pieces. Such messages are written one after the other.
    pub writing: Option<LargeWrite>,
    received: Arc<ReceivedBytes>,
    /// Set when the connection is to close once queued lines are written.
    pub closing: bool,
    /// Set when the client can send nothing any more and its turns are ending.
    pub has_departed: bool,
    /// Set if something was declined or cut off when the client departed.
    pub cut: bool,
    /// Error with which its input has ended.
    pub unreadable: Option<io::Error>,
    /// Time at which the connection closes, even if answers are pending.
    pub leave_by: Option<Instant>,
    lines: mpsc::Receiver<LineBatch>,
    /// Lines that were received and are not handled.
    unhandled: std::vec::IntoIter<InputLine>,
    unhandled_bytes: usize,
    /// Set if a batch, or the end of the input, may be available.
    may_have_more: bool,
    has_ended: bool,
    writer: Box<dyn LineSink>,
    /// Bytes of the last chunk that are not reported as written.
    being_written: usize,
    /// Time when the client last read, or had nothing to read.
    progress_at: Instant,
    /// Set if the input has ended because the connection was lost.
    is_lost: Arc<AtomicBool>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("id", &self.id).field("on_close", &self.on_close).finish_non_exhaustive()
    }
}

/// Message that another thread writes in pieces, and the messages behind it.
#[derive(Debug)]
pub struct LargeWrite {
    /// The message.
    pub write: OngoingWrite,
    /// Messages that are sent after it, in their order.
    pub behind: Vec<Outgoing>,
    /// Bytes of those messages that are lines already.
    behind_bytes: usize,
}

impl LargeWrite {
    /// Creates a write with nothing behind it.
    pub fn new(write: OngoingWrite) -> Self {
        Self { write, behind: Vec::new(), behind_bytes: 0 }
    }
}

/// Event of one connection.
#[derive(Debug)]
pub enum ClientEvent {
    /// Received line.
    Line(InputLine),
    /// End of the input, with the error if reading has failed.
    End(Option<io::Error>),
}

impl Link {
    fn has_event(&self) -> bool {
        !self.has_ended
            && self.held.is_none()
            && (!self.unhandled.as_slice().is_empty() || self.may_have_more)
    }

    fn next_event(&mut self) -> Option<ClientEvent> {
        if self.unhandled.as_slice().is_empty() {
            let end = match self.lines.try_recv() {
                Ok(Ok(lines)) => {
                    self.unhandled_bytes = bytes_of(&lines);
                    self.received.complete.fetch_sub(self.unhandled_bytes, Ordering::Relaxed);
                    self.unhandled = lines.into_iter();
                    None
                }
                Err(mpsc::error::TryRecvError::Empty) => {
                    self.may_have_more = false;
                    return None;
                }
                Ok(Err(failure)) => Some(Some(failure)),
                Err(mpsc::error::TryRecvError::Disconnected) => Some(None),
            };
            if let Some(failure) = end {
                self.has_ended = true;
                return Some(ClientEvent::End(failure));
            }
        }
        let line = self.unhandled.next()?;
        self.unhandled_bytes -= line.len();
        Some(ClientEvent::Line(line))
    }

    /// Queues a message behind the state that is being written, or returns it without such a state.
    pub fn queue_behind(&mut self, what: Outgoing) -> Option<Outgoing> {
        let Some(writing) = &mut self.writing else { return Some(what) };
        self.outbox.expect(what.bytes());
        if !matches!(what, Outgoing::Unwritten(_)) {
            writing.behind_bytes += what.bytes();
        }
        writing.behind.push(what);
        None
    }

    /// Handles the writer's report that this number of bytes is written.
    pub fn written(&mut self, bytes: usize) {
        self.outbox.written(bytes);
        self.being_written = self.being_written.saturating_sub(bytes);
        self.progress_at = Instant::now();
    }

    /// Gives the writer chunks until it is busy or the queue is empty.
    pub fn write(&mut self) {
        while self.being_written == 0 {
            let chunk = self.outbox.take(CHUNK_BYTES);
            if chunk.is_empty() {
                return;
            }
            self.progress_at = Instant::now();
            let bytes: usize = chunk.iter().map(Bytes::len).sum();
            let begun = trace::now();
            let written = self.writer.write(chunk);
            if let Some(begun) = begun {
                trace::chunk_is_written(self.id.0, begun, bytes);
            }
            self.outbox.written(written);
            self.being_written = bytes - written;
        }
    }

    /// Requests more pieces of the message that another thread writes, if the queue has room.
    pub fn have_more_written(&mut self) {
        if let Some(writing) = &mut self.writing {
            writing.write.go_on(&self.outbox);
        }
    }

    /// Returns the time within which a client with a lost connection is expected back, if any.
    pub fn expected(&self) -> Option<Duration> {
        self.terms.returns_within.filter(|_| self.is_lost.load(Ordering::Acquire))
    }

    /// Stops receiving from the client, and drops its held message.
    pub fn stop_receiving(&mut self) {
        self.has_ended = true;
        self.held = None;
    }

    /// Notes that a frame is committed and about to be queued.
    pub fn note_committed(&mut self, frame: &Frame) {
        if self.uncommitted_answers.is_empty() {
            return;
        }
        let waiting = |id| self.uncommitted_answers.iter().position(|it| it == id);
        if let Some(at) = frame.answers().and_then(waiting) {
            let id = self.uncommitted_answers.swap_remove(at);
            if !self.unanswered.settle(&id) {
                tracing::error!(?id, "bug in this program: an answer belongs to no request");
            }
        }
    }

    /// Returns whether only answers that are made elsewhere keep the connection open.
    pub fn waits_for_answers_only(&self) -> bool {
        self.closing && !self.unanswered.is_empty() && self.outbox.bytes() == 0
    }

    /// Returns when to disconnect the client unless it reads before. A closing connection has such
    /// a deadline in any case, others only if `others_read`.
    pub fn stalls_at(&self, others_read: bool) -> Option<Instant> {
        let progress = self.progress_at.into_std();
        let over =
            (self.closing && self.on_close == OnClose::Close).then(|| self.outbox.lingers_until(progress));
        let behind = others_read.then(|| self.outbox.stalls_at(progress));
        over.flatten().into_iter().chain(behind.flatten()).min().map(Instant::from_std)
    }

    /// Returns the number of bytes in memory for this connection alone: output that the backlog
    /// does not count, and input that is not handled.
    pub fn own_bytes(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |held| held.message.bytes());
        let behind = match &self.writing {
            Some(writing) => writing.write.held() + writing.behind_bytes,
            None => 0,
        };
        let received = &self.received;
        let waiting = received.unfinished.load(Ordering::Relaxed) + received.complete.load(Ordering::Relaxed);
        self.outbox.own() + behind + held + waiting + self.unhandled_bytes
    }

    /// Returns the number of bytes in memory for this connection, including those that it shares.
    pub fn held_bytes(&self) -> usize {
        self.own_bytes() + self.outbox.unread() - self.outbox.own()
    }

    /// Drops unwritten output in the writer. Sends the client the reason if possible.
    pub fn cut_off(&mut self, why: &str) {
        self.writer.cut_off(why);
    }

    /// Returns whether the connection is closing and has nothing left to write or answer.
    pub fn is_done(&self) -> bool {
        self.closing && self.unanswered.is_empty() && self.outbox.bytes() == 0
    }
}

/// Open connections.
#[derive(Debug, Default)]
pub struct Links {
    /// Sorted by id.
    links: Vec<Link>,
    last_served: Option<ConnectionId>,
}

impl Links {
    /// Adds a connection.
    pub fn insert(&mut self, link: Link) {
        let at = self.links.partition_point(|other| other.id < link.id);
        self.links.insert(at, link);
    }

    fn position(&self, id: ConnectionId) -> Option<usize> {
        self.links.binary_search_by_key(&id, |link| link.id).ok()
    }

    /// Returns a connection; `None` if it is closed.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Link> {
        let at = self.position(id)?;
        Some(&mut self.links[at])
    }

    /// Removes a connection; `None` if it was removed before.
    pub fn remove(&mut self, id: ConnectionId) -> Option<Link> {
        let at = self.position(id)?;
        Some(self.links.remove(at))
    }

    /// Returns all connections, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.links.iter()
    }

    /// Returns all connections, by id.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.links.iter_mut()
    }

    /// Notes that a batch or the end of the input may be available.
    pub fn note_event(&mut self, id: ConnectionId) {
        if let Some(link) = self.get_mut(id) {
            link.may_have_more = true;
        }
    }

    /// Returns whether any connection that `may` be served has an event.
    pub fn any_has_event(&self, may: impl Fn(&Link) -> bool) -> bool {
        self.links.iter().any(|link| link.has_event() && may(link))
    }

    /// Takes the next event of a connection that `may` be served, round robin.
    pub fn next_event(&mut self, may: impl Fn(&Link) -> bool) -> Option<(ConnectionId, ClientEvent)> {
        let behind = self.last_served.map_or(0, |last| self.links.partition_point(|link| link.id <= last));
        let (before, behind) = self.links.split_at_mut(behind);
        let event = behind.iter_mut().chain(before).find_map(|link| {
            let event = if link.has_event() && may(link) { link.next_event() } else { None };
            event.map(|event| (link.id, event))
        })?;
        self.last_served = Some(event.0);
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: ConnectionSettings = ConnectionSettings {
        default_directory: None,
        line_bytes_max: 1 << 20,
        on_eof: Shutdown::Cancel,
        assume_version: None,
        returns_within: None,
        stall_limit: None,
    };

    struct Nowhere;

    impl LineSink for Nowhere {
        fn write(&mut self, chunk: Vec<Bytes>) -> usize {
            chunk.iter().map(Bytes::len).sum()
        }
    }

    fn line(text: &str) -> InputLine {
        InputLine::Complete(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn take_in(links: &mut Links, news: &mut mpsc::UnboundedReceiver<TransportEvent>) {
        while let Ok(news) = news.try_recv() {
            match news {
                TransportEvent::Opened(link) => links.insert(*link),
                TransportEvent::LinesReceived(id) => links.note_event(id),
                TransportEvent::Written(..) | TransportEvent::LeaveRequested(_) => {}
            }
        }
    }

    #[test]
    fn connections_alternate_line_by_line() {
        let (acceptor, mut news) = ConnectionAcceptor::new(OutboxLimits::default());
        let open = || acceptor.open(OnClose::Close, TERMS, |_| Ok(Nowhere)).unwrap();
        let (one, two, three) = (open(), open(), open());
        assert!(one.try_send(Ok(vec![line("a"), line("b"), line("c")])) && one.try_send(Ok(vec![line("d")])));
        assert!(three.try_send(Ok(vec![line("x"), line("y")])));
        let failure = io::Error::other("torn");
        assert!(two.try_send(Err(failure)));
        drop(three);
        let mut links = Links::default();
        take_in(&mut links, &mut news);
        let mut events = Vec::new();
        while let Some((id, event)) = links.next_event(|_| true) {
            events.push(match event {
                ClientEvent::Line(InputLine::Complete(line)) => {
                    format!("{} {}", id.0, String::from_utf8_lossy(&line))
                }
                ClientEvent::Line(_) => "a bad line".to_owned(),
                ClientEvent::End(failure) => {
                    format!("{} ends{}", id.0, if failure.is_some() { " torn" } else { "" })
                }
            });
        }
        let expected = ["0 a", "1 ends torn", "2 x", "0 b", "2 y", "0 c", "2 ends", "0 d"].map(str::to_owned);
        assert_eq!(events, expected);
        assert!(!links.any_has_event(|_| true));
    }

    #[test]
    fn stall_limit_of_a_connection_overrides_the_default() {
        let (own, of_all) = (Duration::from_secs(7), Duration::from_secs(70));
        let limits = OutboxLimits { agents_above: 1, stall_limit: of_all, ..OutboxLimits::default() };
        let (acceptor, mut news) = ConnectionAcceptor::new(limits);
        for (asked, expected) in [(Some(own), own), (None, of_all)] {
            let terms = ConnectionSettings { stall_limit: asked, ..TERMS };
            let lines = acceptor.open(OnClose::Close, terms, |_| Ok(Nowhere)).unwrap();
            let mut links = Links::default();
            take_in(&mut links, &mut news);
            let link = links.get_mut(lines.connection()).unwrap();
            link.outbox.push(Bytes::from("it waits"));
            assert_eq!(link.stalls_at(true), Some(link.progress_at + expected));
        }
    }

    #[test]
    fn read_ahead_is_limited_to_a_few_batches() {
        let (acceptor, mut news) = ConnectionAcceptor::new(OutboxLimits::default());
        let lines = acceptor.open(OnClose::Close, TERMS, |_| Ok(Nowhere)).unwrap();
        let mut links = Links::default();
        take_in(&mut links, &mut news);
        let sends = || lines.try_send(Ok(vec![line("a"), line("b")]));
        assert!((0..BATCHES_MAX).all(|_| sends()) && !sends());
        take_in(&mut links, &mut news);
        assert!(links.next_event(|_| false).is_none() && !sends(), "nobody was heard");
        assert!(links.next_event(|_| true).is_some() && sends() && !sends());
        assert!(links.next_event(|_| true).is_some() && !sends(), "there is one that was read and not heard");
    }
}
