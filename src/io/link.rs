//! Connections: what the client of each one says, what waits to be written to it, and what takes it
//! away.
//!
//! Owns: the way in for new connections ([`ConnectionAcceptor`]), the table of those that are there
//! ([`Links`]), whose turn it is to be heard, and how much is read ahead of it.
//! Never: knows what kind of pipe a connection is, or what a line means.

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
use crate::host::effects::{ConnectionId, Shutdown};
use crate::versions::dialect::Dialect;
use crate::versions::Outgoing;

/// Maximum number of batches of lines of a connection that wait for the loop.
const BATCHES_MAX: usize = 2;

/// Bytes of an unfinished message after each of which the loop is woken, to look at what all
/// connections hold.
const WAKE_EVERY: usize = 1 << 20;

/// Maximum amount given to a writer at once, in bytes.
pub const CHUNK_BYTES: usize = 256 << 10;

/// Lines shorter than this are copied together before they are written, so that one call writes
/// many. Of a longer one it is told after each chunk of it that this much is out.
pub(super) const COPY_BELOW: usize = 64 << 10;

/// Lines that were read at once, or why nothing more can be read.
pub type LineBatch = io::Result<Vec<InputLine>>;

/// Event of a connection.
#[derive(Debug)]
pub enum TransportEvent {
    /// There is a new one.
    Opened(Box<Link>),
    /// Received lines, or the end of the input.
    LinesReceived(ConnectionId),
    /// Outcome of the chunk that the writer was given.
    Written(ConnectionId, WriteOutcome),
    /// Request to end now.
    LeaveRequested(ConnectionId),
}

/// Outcome of a chunk, or a part of it.
#[derive(Debug)]
pub enum WriteOutcome {
    /// Number of further bytes that were written.
    Bytes(usize),
    /// Closed reader.
    Gone,
    /// Closed reader of a client whose earlier lines are still received: all that it would be sent
    /// is dropped.
    Unread,
    /// Write error that is not a closed reader, for example a full disk.
    Failed(io::Error),
}

/// Consequence of the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnClose {
    /// The process was there for this connection, and leaves.
    Leave,
    /// None for others.
    Close,
}

/// Settings of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// The `file:` URI that it is told as its starting point.
    pub default_directory: Option<String>,
    /// Maximum length of an input line, in bytes, in bytes.
    pub line_bytes_max: usize,
    /// Treatment of the client's turns when its input ends.
    pub at_end: Shutdown,
    /// Version to assume if the first messages do not tell it.
    pub assume_version: Option<Dialect>,
    /// Within what time its client is expected back when its connection is lost; none: it is not.
    pub returns_within: Option<Duration>,
    /// Time that its client may keep agents waiting without reading, where another client reads;
    /// `None` for that of all.
    pub patience: Option<Duration>,
}

/// Writer of a connection's lines. It is given one chunk at a time.
pub trait LineSink: Send {
    /// Gives it the next chunk: the one before is out. Returns how many bytes are out already; when
    /// the others are, its [`Receipts`] say so.
    fn write(&mut self, chunk: Vec<Bytes>) -> usize;

    /// Gives up what is not out, and tells the client this reason if it can still be told anything.
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
    /// Creates an acceptor, and the receiver of the events of its connections. What waits to be
    /// written has these limits on each connection.
    pub fn new(limits: OutboxLimits) -> (Self, mpsc::UnboundedReceiver<TransportEvent>) {
        let (news, heard) = mpsc::unbounded_channel();
        (Self { limits, backlog: Backlog::default(), news, last: Arc::default() }, heard)
    }

    /// Returns the counter of what connections share of what waits for them.
    pub fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Opens a connection; `writer` makes what takes its lines away. Its client is heard through
    /// what is returned, for as long as that is there.
    ///
    /// # Errors
    /// When there can be no such writer.
    pub fn open<W: LineSink + 'static>(
        &self,
        at_end: OnClose,
        terms: ConnectionSettings,
        writer: impl FnOnce(Receipts) -> io::Result<W>,
    ) -> io::Result<ClientLines> {
        let id = ConnectionId(self.last.fetch_add(1, Ordering::Relaxed));
        let patience = terms.patience.unwrap_or(self.limits.patience);
        let (batches, lines) = mpsc::channel(BATCHES_MAX);
        let is_lost = Arc::new(AtomicBool::new(false));
        let received = PartialMessage { id, news: self.news.clone(), bytes: Arc::default() };
        let writer = Box::new(writer(Receipts { id, news: self.news.clone() })?);
        let link = Link {
            id,
            at_end,
            terms,
            outbox: Outbox::new(OutboxLimits { patience, ..self.limits }, self.backlog.clone()),
            held: None,
            unanswered: UnansweredRequests::default(),
            nobody_reads: false,
            writing: None,
            behind_bytes: 0,
            received: Arc::clone(&received.bytes),
            closing: false,
            has_departed: false,
            cut: false,
            unreadable: None,
            leave_by: None,
            lines,
            unheard: Vec::new().into_iter(),
            unheard_bytes: 0,
            may_have_more: false,
            has_ended: false,
            writer,
            being_written: 0,
            progress_at: Instant::now(),
            is_lost: Arc::clone(&is_lost),
        };
        self.tell(TransportEvent::Opened(Box::new(link)));
        Ok(ClientLines { id, batches: Some(batches), received, is_lost, news: self.news.clone() })
    }

    fn tell(&self, news: TransportEvent) {
        tell(&self.news, news);
    }
}

fn tell(to: &mpsc::UnboundedSender<TransportEvent>, news: TransportEvent) -> bool {
    let heard = to.send(news).is_ok();
    if !heard {
        tracing::debug!("news of a connection was dropped: the host has left");
    }
    heard
}

/// Reports of a writer about its chunk.
#[derive(Debug, Clone)]
pub struct Receipts {
    id: ConnectionId,
    news: mpsc::UnboundedSender<TransportEvent>,
}

impl Receipts {
    /// Tells it; false when nobody wants to know any more.
    pub fn send(&self, written: WriteOutcome) -> bool {
        tell(&self.news, TransportEvent::Written(self.id, written))
    }

    /// Reports a closed reader that was noticed without writing.
    pub fn report_closed_reader(&self) -> bool {
        self.send(WriteOutcome::Gone)
    }

    /// The connection is to end now.
    pub fn request_leave(&self) -> bool {
        tell(&self.news, TransportEvent::LeaveRequested(self.id))
    }
}

/// Bytes of a client that are in memory and were not heard.
#[derive(Debug, Default)]
struct ReceivedBytes {
    /// Size of the message that has begun and is not complete.
    unfinished: AtomicUsize,
    /// Size of the batches of complete messages that wait for the loop. It is changed once for each
    /// batch: two threads use it.
    complete: AtomicUsize,
}

/// Counter of what a connection's reader holds of a message that is not complete.
#[derive(Debug, Clone)]
pub struct PartialMessage {
    id: ConnectionId,
    news: mpsc::UnboundedSender<TransportEvent>,
    bytes: Arc<ReceivedBytes>,
}

impl PartialMessage {
    /// Sets how many bytes of an unfinished message are in memory.
    pub fn set_unfinished(&self, bytes: usize) {
        let before = self.bytes.unfinished.swap(bytes, Ordering::Relaxed);
        if bytes / WAKE_EVERY > before / WAKE_EVERY {
            tell(&self.news, TransportEvent::LinesReceived(self.id));
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
    /// Ends the input because the connection was lost, not because the client has closed it.
    pub fn close_as_lost(self) {
        self.is_lost.store(true, Ordering::Release);
    }

    /// Says it from a thread, and waits while enough is waiting to be heard; false when nobody
    /// hears it any more.
    pub fn send_blocking(&self, batch: LineBatch) -> bool {
        self.received.add_complete(&batch);
        let said = self.batches.as_ref().is_some_and(|batches| batches.blocking_send(batch).is_ok());
        said && tell(&self.news, TransportEvent::LinesReceived(self.id))
    }

    /// Sends a batch from a task.
    pub async fn send(&self, batch: LineBatch) -> bool {
        let Some(batches) = &self.batches else { return false };
        self.received.add_complete(&batch);
        batches.send(batch).await.is_ok() && tell(&self.news, TransportEvent::LinesReceived(self.id))
    }

    /// Sends a batch if there is room for it at once.
    #[cfg(test)]
    pub fn try_send(&self, batch: LineBatch) -> bool {
        if self.batches.as_ref().is_none_or(|batches| batches.capacity() == 0) {
            return false;
        }
        self.received.add_complete(&batch);
        let said = self.batches.as_ref().is_some_and(|batches| batches.try_send(batch).is_ok());
        said && tell(&self.news, TransportEvent::LinesReceived(self.id))
    }

    /// Returns the counter of what was read of an unfinished message.
    pub fn received(&self) -> &PartialMessage {
        &self.received
    }

    /// Waits until nobody hears it any more: the connection is over.
    pub async fn closed(&self) {
        if let Some(batches) = &self.batches {
            batches.closed().await;
        }
    }

    /// Returns the connection.
    pub fn connection(&self) -> ConnectionId {
        self.id
    }
}

impl Drop for ClientLines {
    fn drop(&mut self) {
        self.batches = None;
        tell(&self.news, TransportEvent::LinesReceived(self.id));
    }
}

/// Message behind a state that is being written. Another state is written when the one before it is
/// out.
#[derive(Debug)]
pub struct QueuedMessage {
    /// This.
    pub told: Outgoing,
    /// Set if it is an answer to the client.
    pub is_answer: bool,
}

/// One connection.
pub struct Link {
    /// Id.
    pub id: ConnectionId,
    /// Consequence of its end.
    pub at_end: OnClose,
    /// Settings.
    pub terms: ConnectionSettings,
    /// Queue of lines to be written.
    pub outbox: Outbox,
    /// A message that waits for something to be looked up: nothing more is heard before it.
    pub held: Option<Box<HeldMessage>>,
    /// Requests that are answered elsewhere; a state that is being written is counted by `outbox`.
    pub unanswered: UnansweredRequests,
    /// Set if everything sent to it is dropped.
    pub nobody_reads: bool,
    /// Message that is being written elsewhere, piece by piece, and messages behind it.
    pub writing: Option<(OngoingWrite, Vec<QueuedMessage>)>,
    /// Bytes of the lines that are behind it.
    behind_bytes: usize,
    received: Arc<ReceivedBytes>,
    /// Set when it is over: queued lines are still written.
    pub closing: bool,
    /// Set when its client can send nothing any more, and its turns are being ended.
    pub has_departed: bool,
    /// Something was declined or cut then.
    pub cut: bool,
    /// Error with which its input has ended.
    pub unreadable: Option<io::Error>,
    /// When it is over, whatever is still to be answered.
    pub leave_by: Option<Instant>,
    lines: mpsc::Receiver<LineBatch>,
    /// Lines that were read and not heard.
    unheard: std::vec::IntoIter<InputLine>,
    /// Bytes of those lines.
    unheard_bytes: usize,
    /// Set if there may be a batch, or the end.
    may_have_more: bool,
    has_ended: bool,
    writer: Box<dyn LineSink>,
    /// Number of bytes of the last chunk that the writer has not reported yet.
    being_written: usize,
    /// When it was seen last that the client reads, or that there was nothing to read.
    progress_at: Instant,
    /// Set when its input has ended because the connection was lost.
    is_lost: Arc<AtomicBool>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("id", &self.id).field("at_end", &self.at_end).finish_non_exhaustive()
    }
}

/// Event of one connection.
#[derive(Debug)]
pub enum ClientEvent {
    /// A line.
    Line(InputLine),
    /// End of the input, with the error if it has failed.
    End(Option<io::Error>),
}

impl QueuedMessage {
    /// Returns its size, roughly, in bytes.
    pub fn bytes(&self) -> usize {
        match &self.told {
            Outgoing::Line(line) => line.bytes.len(),
            Outgoing::Deltas(run, _) => run.lines.lines().len(),
            Outgoing::Unwritten(answer) => answer.bytes,
        }
    }
}

impl Link {
    fn has_event(&self) -> bool {
        !self.has_ended && self.held.is_none() && (!self.unheard.as_slice().is_empty() || self.may_have_more)
    }

    /// Takes the next event of its client.
    fn next_event(&mut self) -> Option<ClientEvent> {
        if self.unheard.as_slice().is_empty() {
            let end = match self.lines.try_recv() {
                Ok(Ok(lines)) => {
                    self.unheard_bytes = bytes_of(&lines);
                    self.received.complete.fetch_sub(self.unheard_bytes, Ordering::Relaxed);
                    self.unheard = lines.into_iter();
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
        let line = self.unheard.next()?;
        self.unheard_bytes -= line.len();
        Some(ClientEvent::Line(line))
    }

    /// Puts this behind the state that is being written, if there is one; else gives it back.
    pub fn queue_behind(&mut self, what: QueuedMessage) -> Option<QueuedMessage> {
        let Some((_, behind)) = &mut self.writing else { return Some(what) };
        self.outbox.expect(what.bytes());
        if behind.is_empty() {
            self.behind_bytes = 0;
        }
        if !matches!(what.told, Outgoing::Unwritten(_)) {
            self.behind_bytes += what.bytes();
        }
        behind.push(what);
        None
    }

    /// The writer says that so many bytes are out.
    pub fn written(&mut self, bytes: usize) {
        self.outbox.written(bytes);
        self.being_written = self.being_written.saturating_sub(bytes);
        self.progress_at = Instant::now();
    }

    /// Gives the writer chunks until it is busy with one or nothing waits.
    pub fn write(&mut self) {
        while self.being_written == 0 {
            let chunk = self.outbox.take(CHUNK_BYTES);
            if chunk.is_empty() {
                return;
            }
            self.progress_at = Instant::now();
            let bytes: usize = chunk.iter().map(Bytes::len).sum();
            let written = self.writer.write(chunk);
            self.outbox.written(written);
            self.being_written = bytes - written;
        }
    }

    /// Has as much more written of what is written elsewhere as the client has room for.
    pub fn have_more_written(&mut self) {
        if let Some((writing, _)) = &mut self.writing {
            writing.go_on(&self.outbox);
        }
    }

    /// Within what time its client is expected back, of which nothing more is heard.
    pub fn expected(&self) -> Option<Duration> {
        self.terms.returns_within.filter(|_| self.is_lost.load(Ordering::Acquire))
    }

    /// Stops receiving from its client.
    pub fn stop_receiving(&mut self) {
        self.has_ended = true;
        self.held = None;
    }

    /// Returns whether it is over but for answers that are made elsewhere.
    pub fn waits_for_answers_only(&self) -> bool {
        self.closing && !self.unanswered.is_empty() && self.outbox.bytes() == 0
    }

    /// When it is to be given up, unless its client reads something before: in any case when it is
    /// over, else where `others_read`.
    pub fn stalls_at(&self, others_read: bool) -> Option<Instant> {
        let progress = self.progress_at.into_std();
        let over =
            (self.closing && self.at_end == OnClose::Close).then(|| self.outbox.lingers_until(progress));
        let behind = others_read.then(|| self.outbox.stalls_at(progress));
        over.flatten().into_iter().chain(behind.flatten()).min().map(Instant::from_std)
    }

    /// Returns the number of bytes in memory that this connection alone is the reason for: those
    /// that wait for its client and that the backlog does not count, and those that its client has
    /// sent and that were not heard.
    pub fn own_bytes(&self) -> usize {
        let behind = match &self.writing {
            Some((writing, _)) => writing.held() + self.behind_bytes,
            None => 0,
        };
        let received = &self.received;
        let waiting = received.unfinished.load(Ordering::Relaxed) + received.complete.load(Ordering::Relaxed);
        self.outbox.own() + behind + waiting + self.unheard_bytes
    }

    /// Returns the number of bytes that are in memory for this connection, those that it shares
    /// with others included.
    pub fn held_bytes(&self) -> usize {
        self.own_bytes() + self.outbox.unread() - self.outbox.own()
    }

    /// Gives up what waits for its client, and the connection with it; the client is told why if it
    /// can be.
    pub fn cut_off(&mut self, why: &str) {
        self.writer.cut_off(why);
    }

    /// Returns whether it is over, and nothing is left to be written.
    pub fn is_done(&self) -> bool {
        self.closing && self.unanswered.is_empty() && self.outbox.bytes() == 0
    }
}

/// The connections that are there.
#[derive(Debug, Default)]
pub struct Links {
    /// In the order of their ids.
    links: Vec<Link>,
    /// Connection that was served last.
    last_heard: Option<ConnectionId>,
}

impl Links {
    /// Takes in one more.
    pub fn insert(&mut self, link: Link) {
        let at = self.links.partition_point(|other| other.id < link.id);
        self.links.insert(at, link);
    }

    fn position(&self, id: ConnectionId) -> Option<usize> {
        self.links.binary_search_by_key(&id, |link| link.id).ok()
    }

    /// One of them, if it is still there.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Link> {
        let at = self.position(id)?;
        Some(&mut self.links[at])
    }

    /// Takes one out.
    pub fn remove(&mut self, id: ConnectionId) -> Option<Link> {
        let at = self.position(id)?;
        Some(self.links.remove(at))
    }

    /// Returns all connections.
    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.links.iter()
    }

    /// Returns all connections.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.links.iter_mut()
    }

    /// The client of a connection has said something, or can say nothing any more.
    pub fn note_event(&mut self, id: ConnectionId) {
        if let Some(link) = self.get_mut(id) {
            link.may_have_more = true;
        }
    }

    /// Returns whether any connection that may be served has an event.
    pub fn any_has_event(&self, may: impl Fn(&Link) -> bool) -> bool {
        self.links.iter().any(|link| link.has_event() && may(link))
    }

    /// Takes the next event of any connection that may be served. They take turns.
    pub fn next_event(&mut self, may: impl Fn(&Link) -> bool) -> Option<(ConnectionId, ClientEvent)> {
        let behind = self.last_heard.map_or(0, |last| self.links.partition_point(|link| link.id <= last));
        let (before, behind) = self.links.split_at_mut(behind);
        let heard = behind.iter_mut().chain(before).find_map(|link| {
            let heard = if link.has_event() && may(link) { link.next_event() } else { None };
            heard.map(|heard| (link.id, heard))
        })?;
        self.last_heard = Some(heard.0);
        Some(heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: ConnectionSettings = ConnectionSettings {
        default_directory: None,
        line_bytes_max: 1 << 20,
        at_end: Shutdown::Cancel,
        assume_version: None,
        returns_within: None,
        patience: None,
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
    fn connections_take_turns_line_by_line() {
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
        let mut heard = Vec::new();
        while let Some((id, said)) = links.next_event(|_| true) {
            heard.push(match said {
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
        assert_eq!(heard, expected);
        assert!(!links.any_has_event(|_| true));
    }

    #[test]
    fn patience_of_a_connection_comes_before_that_of_all() {
        let (own, of_all) = (Duration::from_secs(7), Duration::from_secs(70));
        let limits = OutboxLimits { agents_above: 1, patience: of_all, ..OutboxLimits::default() };
        let (acceptor, mut news) = ConnectionAcceptor::new(limits);
        for (asked, expected) in [(Some(own), own), (None, of_all)] {
            let terms = ConnectionSettings { patience: asked, ..TERMS };
            let lines = acceptor.open(OnClose::Close, terms, |_| Ok(Nowhere)).unwrap();
            let mut links = Links::default();
            take_in(&mut links, &mut news);
            let link = links.get_mut(lines.connection()).unwrap();
            link.outbox.push(Bytes::from("it waits"));
            assert_eq!(link.stalls_at(true), Some(link.progress_at + expected));
        }
    }

    #[test]
    fn no_more_is_read_ahead_than_a_few_batches() {
        let (acceptor, mut news) = ConnectionAcceptor::new(OutboxLimits::default());
        let lines = acceptor.open(OnClose::Close, TERMS, |_| Ok(Nowhere)).unwrap();
        let mut links = Links::default();
        take_in(&mut links, &mut news);
        let says = || lines.try_send(Ok(vec![line("a"), line("b")]));
        assert!((0..BATCHES_MAX).all(|_| says()) && !says());
        take_in(&mut links, &mut news);
        assert!(links.next_event(|_| false).is_none() && !says(), "nobody was heard");
        assert!(links.next_event(|_| true).is_some() && says() && !says());
        assert!(links.next_event(|_| true).is_some() && !says(), "there is one that was read and not heard");
    }
}
