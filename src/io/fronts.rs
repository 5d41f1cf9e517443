//! The host's side of its fronts: processes that lend it their stdin and stdout.
//!
//! Owns: the conditions for joining (same user, link version and settings); the work before a front
//! is served (listening, rereading the configuration file); its messages; and noticing its end.
//! Never: serves a client; a front's stdin and stdout are a connection like any other.

use std::collections::BTreeMap;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, PipeReader, PipeWriter};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{ready, Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing_subscriber::filter::Targets;

use super::configuration::Configuration;
use super::descriptors::{self, SpareFile};
use super::half_open::{self, HalfOpen};
use super::hello::{
    differences, differences_of_guest, environment, Hello, HelloLine, HelloVersion, LINE_BYTES_MAX, LINK,
};
use super::link::{ConnectionAcceptor, ConnectionSettings, OnClose, Receipts};
use super::listen::listeners::Listeners;
use super::log::{LogReader, LogReaders};
use super::stdio::{self, Stdout};
use super::upkeep::{locked, SocketFile, Upkeep};
use crate::config::ConfigurationReading;
use crate::host::effects::ConnectionId;
use crate::os::hangup::{self, LeaveReason};
use crate::os::lending;
use crate::os::limits::are_files_exhausted;
use crate::os::sockets::{
    foreign_peer, listen, split, AsyncListener, LocalListener, LocalReadHalf, LocalWriteHalf, Stream,
};
use crate::status::{EXIT_FAILURE, EXIT_STATE};
use crate::store::folder::LockId;
use crate::sync::lock;

/// Time limit for the hello of a front, and for the first front of a new host.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Socket of a host, and conditions for the fronts that join there.
#[derive(Debug)]
pub struct HostSocket {
    /// Socket that listens for fronts.
    pub listener: LocalListener,
    /// Path of the socket, which is removed when the host ends.
    pub path: PathBuf,
    /// Settings that the host runs with: see [`Hello::settings`].
    pub settings: BTreeMap<String, String>,
    /// Readers of the log, which fronts join.
    pub log_readers: LogReaders,
    /// Set if the host stays when all fronts are gone.
    pub stays: bool,
    /// Lock that permits this process to listen; `None` if its identity cannot be determined.
    pub lock: Option<LockId>,
}

/// Sends the reason to all waiting fronts. To be called when no more fronts can arrive.
pub fn refuse_all(listener: &LocalListener, why: &str, status: u8) {
    let answer = HelloLine::Refused { why: why.to_owned(), status }.to_line();
    if let Err(error) = listener.set_nonblocking(true) {
        tracing::debug!(%error, "fronts that wait cannot be told why they are refused");
        return;
    }
    while let Ok((mut front, _)) = listener.accept() {
        if let Err(error) = io::Write::write_all(&mut front, &answer) {
            tracing::debug!(%error, "a front that is refused has gone before it was told why");
        }
    }
}

/// Request of a front that its client be served.
#[derive(Debug)]
pub struct JoinRequest {
    hello: Hello,
    stdin: File,
    stdout: File,
    stream: Stream,
    /// Results of the preparation; `None` until it is done.
    prepared: Option<Preparation>,
}

/// Results of the work that a front has requested before its client is served.
#[derive(Debug)]
struct Preparation {
    /// URLs of the requested listeners, or the reason why there are none.
    listening: Result<Vec<String>, String>,
    /// Files through which clients of these listeners connect.
    files: Vec<PathBuf>,
    /// The configuration file; `None` unless it was reread.
    reading: Option<Box<ConfigurationReading>>,
}

impl JoinRequest {
    /// Takes the files through which others connect to the listeners that this front has requested.
    pub fn take_files(&mut self) -> Vec<PathBuf> {
        self.prepared.as_mut().map(|done| std::mem::take(&mut done.files)).unwrap_or_default()
    }

    /// Takes the configuration file, if it was reread for this front.
    pub fn take_reading(&mut self) -> Option<ConfigurationReading> {
        self.prepared.as_mut()?.reading.take().map(|reading| *reading)
    }
}

/// Parts of the host that are needed to serve fronts.
pub struct FrontServices<'a> {
    /// Acceptor of the fronts' connections.
    pub acceptor: &'a ConnectionAcceptor,
    /// The host's listeners.
    pub listeners: &'a Listeners,
    /// The agents in force; `None` if they cannot change.
    pub configuration: Option<&'a Configuration>,
    /// The thread that reads the configuration file.
    pub upkeep: Option<&'a Upkeep>,
}

#[derive(Debug)]
struct Front {
    stream: Arc<FrontStream>,
    /// Task that reads from the front, if the connection was opened.
    hears: Option<JoinHandle<()>>,
    /// Ends the threads on the front's stdin and stdout when it is dropped.
    _stop: PipeWriter,
}

/// The fronts of a host.
#[derive(Debug)]
pub struct Fronts {
    settings: BTreeMap<String, String>,
    log_readers: LogReaders,
    socket: Arc<Mutex<SocketFile>>,
    listens: JoinHandle<()>,
    join_requests: mpsc::UnboundedSender<JoinRequest>,
    served: BTreeMap<ConnectionId, Front>,
    /// Fronts of the last clients. They end when the host does, or when another client connects.
    last: Vec<Arc<FrontStream>>,
    /// Set once a front has arrived, even if it was refused.
    has_come: bool,
    /// Number of fronts whose preparation is in progress.
    coming_again: usize,
    stays: bool,
    since: Instant,
}

impl Fronts {
    /// Listens for fronts. The receiver gets their hellos. Must be called inside a runtime.
    pub fn listen(place: HostSocket) -> io::Result<(Self, mpsc::UnboundedReceiver<JoinRequest>)> {
        let HostSocket { listener, path, settings, log_readers, stays, lock } = place;
        let listener = listen(listener)?;
        let (join_requests, knocked) = mpsc::unbounded_channel();
        let listens = tokio::spawn(accept_all(listener, join_requests.clone()));
        Ok((
            Self {
                settings,
                log_readers,
                socket: Arc::new(Mutex::new(SocketFile::new(path, lock))),
                listens,
                join_requests,
                served: BTreeMap::new(),
                last: Vec::new(),
                has_come: false,
                coming_again: 0,
                stays,
                since: Instant::now(),
            },
            knocked,
        ))
    }

    /// Returns the socket's file, for the upkeep thread.
    pub fn socket_file(&self) -> Arc<Mutex<SocketFile>> {
        Arc::clone(&self.socket)
    }

    /// Returns whether all fronts are gone, none is expected, and the host does not stay.
    pub fn are_gone(&self) -> bool {
        let has_waited = self.has_come || self.since.elapsed() >= HELLO_WITHIN;
        !self.stays && self.served.is_empty() && self.coming_again == 0 && has_waited
    }

    /// Returns the deadline for the first front; `None` if it has passed, if one has arrived, or if
    /// the host stays.
    pub fn first_front_deadline(&self) -> Option<Instant> {
        let is_expected = !self.stays && !self.has_come && self.since.elapsed() < HELLO_WITHIN;
        is_expected.then(|| self.since + HELLO_WITHIN)
    }

    /// Replaces the socket after its file was removed.
    pub fn listen_anew(&mut self, listener: LocalListener) {
        match listen(listener) {
            Ok(listener) => {
                self.listens.abort();
                self.listens = tokio::spawn(accept_all(listener, self.join_requests.clone()));
            }
            Err(error) => {
                tracing::error!(%error, "no front can join the host any more: its socket cannot be listened on")
            }
        }
    }

    /// Serves or refuses a front. A request that takes time is admitted again when it is prepared.
    pub fn admit(&mut self, mut join_request: JoinRequest, with: &FrontServices<'_>) {
        let differ = self.differences(&join_request.hello, with.configuration);
        // A refused front counts, too: perhaps no other front will arrive.
        self.has_come = true;
        self.coming_again -= usize::from(join_request.prepared.is_some());
        if !differ.is_empty() {
            let why = format!(
                "the host that serves this state folder (process {}) runs with other settings ({}): end the other \
                 windows, use its settings here, or choose another folder with `--state-dir`",
                std::process::id(),
                differ.join(", ")
            );
            return refuse(&join_request.stream, why, EXIT_STATE);
        }
        let listening = match join_request.prepared.take().map(|done| done.listening) {
            Some(Ok(listening)) => listening,
            Some(Err(why)) => {
                tracing::info!(why, "a front was refused: the host cannot listen where it asked for");
                return refuse(&join_request.stream, why, EXIT_FAILURE);
            }
            None => {
                let is_other =
                    |here: &&Configuration| here.is_other_content(&join_request.hello.configuration);
                let reads = with.configuration.filter(is_other).and(with.upkeep);
                if join_request.hello.listening.is_some() || reads.is_some() {
                    return self.prepare(join_request, with, reads);
                }
                Vec::new()
            }
        };
        let outdated = with.configuration.and_then(|here| here.outdated(&join_request.hello.configuration));
        let JoinRequest { hello, stdin, stdout, stream, .. } = join_request;
        let (reader, writer) = split(stream);
        let front = Arc::new(FrontStream::new(writer));
        let files = (stdin, stdout);
        if let Err(error) = self.serve(&hello, files, (reader, &front), with.acceptor, (listening, outdated))
        {
            tracing::error!(%error, "a client that has joined cannot be served");
            front.send(&if are_files_exhausted(&error) {
                HelloLine::Refused { why: descriptors::exhausted(), status: EXIT_FAILURE }
            } else {
                let why = format!("the host of this state folder cannot serve one more client: {error}");
                HelloLine::Refused { why, status: EXIT_STATE }
            });
        }
    }

    /// Returns the names of settings for which a front is refused.
    fn differences(&self, hello: &Hello, configuration: Option<&Configuration>) -> Vec<String> {
        if hello.guest {
            return differences_of_guest(&hello.settings, &self.settings);
        }
        let mut differ = differences(&hello.settings, &self.settings);
        differ.extend(configuration.into_iter().flat_map(|here| here.differences(&hello.configuration)));
        differ
    }

    /// Does the work that a front requests, and then submits the front again.
    fn prepare(&mut self, mut join_request: JoinRequest, with: &FrontServices<'_>, reads: Option<&Upkeep>) {
        let (join_requests, acceptor, listeners) =
            (self.join_requests.clone(), with.acceptor.clone(), with.listeners.clone());
        let reading = reads.map(Upkeep::read_configuration);
        self.coming_again += 1;
        tokio::spawn(async move {
            let reading = match reading {
                Some(reading) => reading.await.map(Box::new),
                None => None,
            };
            let (mut listening, mut files) = (Ok(Vec::new()), Vec::new());
            if let Some(asked) = join_request.hello.listening.take() {
                files.clone_from(&asked.files);
                let terms = ConnectionSettings::from(join_request.hello.terms.clone());
                listening =
                    listeners.ask(asked, &acceptor, &terms).await.map_err(|error| format!("{error:#}"));
            }
            join_request.prepared = Some(Preparation { listening, files, reading });
            if join_requests.send(join_request).is_err() {
                tracing::debug!("a front was refused: the host is leaving");
            }
        });
    }

    fn serve(
        &mut self,
        hello: &Hello,
        (stdin, stdout): (File, File),
        (reader, stream): (LocalReadHalf, &Arc<FrontStream>),
        acceptor: &ConnectionAcceptor,
        (listening, outdated): (Vec<String>, Option<String>),
    ) -> io::Result<()> {
        let differs = differences(&hello.environment, &environment(hello.environment.keys().cloned()));
        let (stopped, stop) = io::pipe()?;
        let watched = (stdout.try_clone()?, stopped.try_clone()?);
        let terms = ConnectionSettings::from(hello.terms.clone());
        let line_bytes_max = terms.line_bytes_max;
        let mut receipts = None;
        let lines = acceptor.open(OnClose::Close, terms, |made| {
            receipts = Some(made.clone());
            Stdout::start(stdout, made)
        })?;
        let connection = lines.connection();
        let hears = match receipts {
            Some(receipts) => {
                watch_reader(watched, receipts.clone())?;
                Some(tokio::spawn(read_leave(reader, receipts)))
            }
            None => None,
        };
        stdio::read_lines(stdin, line_bytes_max, lines, Some(stopped))?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let process = std::process::id();
        stream.send(&HelloLine::Welcome { version, process, differs, listening, outdated });
        tracing::info!(
            connection = connection.0,
            version = hello.version,
            "a client has joined through a front"
        );
        let filter: Targets = hello.log.parse().unwrap_or_default();
        let reads = Arc::clone(stream);
        self.log_readers
            .join(connection.0, LogReader::new(filter, move |line| reads.send(&HelloLine::Log(line))));
        self.served.insert(connection, Front { stream: Arc::clone(stream), hears, _stop: stop });
        Ok(())
    }

    /// Lets the fronts of the last clients end at once, because another client is connected.
    pub fn cancel_end(&mut self) {
        self.last.clear();
    }

    /// Sends the exit status to the front of a closed connection. If the front `waits` and was the
    /// last one, its stream stays open until the host has released the folder.
    pub fn send_exit(&mut self, connection: ConnectionId, status: u8, why: Option<String>, waits: bool) {
        self.log_readers.leave(connection.0);
        let Some(front) = self.served.remove(&connection) else { return };
        front.stream.finish(&HelloLine::Over { status, why });
        if let Some(hears) = front.hears {
            hears.abort();
        }
        if waits && !self.stays && self.served.is_empty() {
            self.last.push(front.stream);
        }
    }

    /// Stops listening, and removes the socket's file unless it belongs to another host.
    pub fn close(&mut self) {
        self.listens.abort();
        locked(&self.socket).remove();
    }
}

fn watch_reader((stdout, stopped): (File, PipeReader), receipts: Receipts) -> io::Result<()> {
    let tell = move |loss| matches!(loss, LeaveReason::Reader) && receipts.report_closed_reader();
    hangup::start(Some(stdout), None, Some(stopped), tell)
}

/// Stream to a front that is served.
#[derive(Debug)]
struct FrontStream(Mutex<FrontWriter>);

#[derive(Debug)]
struct FrontWriter {
    stream: LocalWriteHalf,
    /// Rest of a line that the front has not read, and the last line behind it.
    unsent: Vec<u8>,
}

impl FrontStream {
    fn new(stream: LocalWriteHalf) -> Self {
        Self(Mutex::new(FrontWriter { stream, unsent: Vec::new() }))
    }

    /// Sends a line without waiting. A front that does not read loses the line, but no part of one.
    fn send(&self, told: &HelloLine) {
        let mut writer = self.writer();
        // An error is not logged: the log line would be sent to the same front.
        if writer.write_at_once().is_ok_and(|is_all| is_all) {
            writer.unsent = told.to_line();
            writer.write_at_once().unwrap_or_default();
        }
    }

    /// Sends the last line, which a front that does not read gets when it reads again.
    fn finish(self: &Arc<Self>, told: &HelloLine) {
        let mut writer = self.writer();
        writer.unsent.extend(told.to_line());
        if writer.write_at_once().is_ok_and(|is_all| !is_all) {
            let front = Arc::clone(self);
            tokio::spawn(async move {
                // The front may be gone.
                poll_fn(|context| front.writer().poll_write(context)).await.unwrap_or_default();
            });
        }
    }

    fn writer(&self) -> MutexGuard<'_, FrontWriter> {
        lock(&self.0)
    }
}

impl FrontWriter {
    /// Writes the rest without waiting. Returns whether that was all.
    fn write_at_once(&mut self) -> io::Result<bool> {
        match self.poll_write(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(written) => written.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(context, &self.unsent)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn refuse(front: &Stream, why: String, status: u8) {
    // The line is the first, so the stream has room for it, unless the front is gone.
    front.try_write(&HelloLine::Refused { why, status }.to_line()).unwrap_or_default();
}

fn refuse_for_want_of_files(front: &Stream) {
    refuse(front, descriptors::exhausted(), EXIT_FAILURE);
}

/// Reads from a front: any data asks to leave, and the end means that the front is gone.
async fn read_leave(mut front: LocalReadHalf, receipts: Receipts) {
    let mut said = [0; 256];
    while let Ok(1..) = front.read(&mut said).await {
        if !receipts.request_leave() {
            return;
        }
    }
    receipts.report_closed_reader();
}

async fn accept_all(listener: AsyncListener, join_requests: mpsc::UnboundedSender<JoinRequest>) {
    // Fronts retry when their handshake is dropped.
    let (mut half_open, mut spare) = (HalfOpen::default(), SpareFile::open());
    let refuse = async |stream: Stream| refuse_for_want_of_files(&stream);
    loop {
        let stream = half_open::accept(&listener, &mut spare, refuse).await;
        let join_requests = join_requests.clone();
        half_open.begin(async move {
            match tokio::time::timeout(HELLO_WITHIN, read_hello(stream)).await {
                Ok(Ok(Some(join_request))) => {
                    if join_requests.send(join_request).is_err() {
                        tracing::debug!("a front was refused: the host is leaving");
                    }
                }
                Ok(Ok(None)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a front was refused: its first line cannot be understood")
                }
                Err(_) => tracing::warn!("a front was refused: it sent no hello in time"),
            }
        });
    }
}

/// Reads a front's hello. Returns `None` if the front was refused.
async fn read_hello(mut stream: Stream) -> io::Result<Option<JoinRequest>> {
    if foreign_peer(&stream)?.is_some() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = Vec::new();
    let mut lent = Vec::new();
    while line.last() != Some(&b'\n') {
        match lending::receive(&mut stream, &mut line, &mut lent).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if line.len() > LINE_BYTES_MAX => return Err(io::ErrorKind::FileTooLarge.into()),
            _ => {}
        }
    }
    let any: HelloVersion = serde_json::from_slice(&line)?;
    if any.link != LINK {
        let why = format!(
            "the host that serves this state folder (process {}, version {}) and this program (version {}) are \
             incompatible (link {LINK} and {}): end the other windows, or choose another folder with `--state-dir`",
            std::process::id(),
            env!("CARGO_PKG_VERSION"),
            any.version,
            any.link
        );
        refuse(&stream, why, EXIT_STATE);
        return Ok(None);
    }
    let hello = serde_json::from_slice(&line)?;
    let mut lent = lent.into_iter();
    let (Some(stdin), Some(stdout)) = (lent.next(), lent.next()) else {
        // The system drops descriptors for which this process has no room.
        refuse_for_want_of_files(&stream);
        return Err(io::Error::other(
            "its stdin and stdout did not come, perhaps because too many files are open",
        ));
    };
    if descriptors::leaves_too_few(&stdin) || descriptors::leaves_too_few(&stdout) {
        tracing::error!("a front is refused: too many files are open");
        refuse_for_want_of_files(&stream);
        return Ok(None);
    }
    let (stdin, stdout) = (stdin.into(), stdout.into());
    Ok(Some(JoinRequest { hello, stdin, stdout, stream, prepared: None }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::upkeep::bind;
    use crate::os::sockets::connect_now;

    #[tokio::test]
    async fn front_that_did_not_read_gets_whole_lines_and_its_exit_status() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.sock");
        let listener = listen(bind(&path).unwrap()).unwrap();
        let client = connect_now(&path).unwrap();
        let (_reader, writer) = split(listener.accept().await.unwrap().0);
        let front = Arc::new(FrontStream::new(writer));
        // Lines that the system takes in parts.
        for _ in 0..100 {
            front.send(&HelloLine::Log("x".repeat(100_000)));
        }
        front.finish(&HelloLine::Over { status: 7, why: None });
        drop(front);
        let read = tokio::task::spawn_blocking(|| io::read_to_string(client)).await.unwrap().unwrap();
        let lines: Vec<HelloLine> = read.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() < 101, "the front did not read");
        assert!(matches!(lines.last(), Some(HelloLine::Over { status: 7, .. })));
    }

    #[tokio::test]
    async fn expired_deadline_of_the_first_front_wakes_the_loop_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.sock");
        let (settings, log_readers) = (BTreeMap::new(), LogReaders::default());
        let listener = bind(&path).unwrap();
        let place = HostSocket { listener, path, settings, log_readers, stays: false, lock: None };
        let (mut fronts, _join_requests) = Fronts::listen(place).unwrap();
        assert!(fronts.first_front_deadline().is_some() && !fronts.are_gone());
        fronts.since = fronts.since.checked_sub(HELLO_WITHIN).unwrap();
        assert!(fronts.first_front_deadline().is_none() && fronts.are_gone());
    }
}
