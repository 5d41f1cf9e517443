//! The host's side of its fronts: processes that lend their stdin and stdout to it.
//!
//! Owns: who may join (the same user, in the same words, with the same settings), having done what
//! a front asks for before it is served (listening, reading a configuration file that has changed),
//! what it is told of its client and of the log, and noticing that it is gone.
//! Never: serves a client; its stdin and stdout are a connection like any other.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSliceMut, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as Listener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::geteuid;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing_subscriber::filter::Targets;

use super::configuration::Configuration;
use super::descriptors::{self, SpareFile};
use super::half_open::{self, HalfOpen};
use super::hello::{differences, environment, Hello, HelloLine, HelloVersion, LINE_BYTES_MAX, LINK};
use super::link::{ConnectionAcceptor, ConnectionSettings, OnClose, Receipts};
use super::listen::listeners::Listeners;
use super::log::{LogReader, LogReaders};
use super::stdio::{self, Stdout};
use super::upkeep::{SocketFile, Upkeep};
use super::watch::{self, LeaveReason};
use crate::config::ConfigurationReading;
use crate::host::effects::ConnectionId;
use crate::status::{EXIT_FAILURE, EXIT_STATE};
use crate::store::folder::LockId;

/// Time that a front has to say hello, and that a new host waits for its first front.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Socket of a host, and conditions for the fronts that join there.
#[derive(Debug)]
pub struct HostSocket {
    /// Socket that listens for fronts.
    pub listener: Listener,
    /// The socket's file, which goes when the host does.
    pub path: PathBuf,
    /// Settings that the host runs with: see [`Hello::settings`].
    pub settings: BTreeMap<String, String>,
    /// Readers of the log, which fronts join.
    pub log_readers: LogReaders,
    /// Set when the host is there for others, too, and stays when all fronts are gone.
    pub stays: bool,
    /// The lock under which it listens; `None` where it cannot be seen.
    pub lock: Option<LockId>,
}

impl HostSocket {
    /// Returns what is needed to bind the socket anew when its file is removed.
    pub fn socket_file(&self) -> Option<SocketFile> {
        Some(SocketFile::new(self.path.clone(), self.lock.clone()?))
    }

    /// Tells everybody who has come why the host cannot be joined. To be called when nobody can
    /// come any more.
    pub fn refuse(self, why: &str, status: u8) {
        let answer = HelloLine::Refused { why: why.to_owned(), status }.to_line();
        if let Err(error) = self.listener.set_nonblocking(true) {
            tracing::debug!(%error, "fronts that wait cannot be told why they are refused");
            return;
        }
        while let Ok((mut front, _)) = self.listener.accept() {
            if let Err(error) = io::Write::write_all(&mut front, &answer) {
                tracing::debug!(%error, "a front that is refused has gone before it was told why");
            }
        }
    }
}

/// Request of a front, which has said hello, to have its client served.
#[derive(Debug)]
pub struct JoinRequest {
    hello: Hello,
    stdin: File,
    stdout: File,
    stream: UnixStream,
    /// `None` until what it has asked for is done.
    prepared: Option<Preparation>,
}

/// Results of what a front has asked for before its client is served.
#[derive(Debug)]
struct Preparation {
    /// URLs of the listeners that it has asked for; or why there are none.
    listening: Result<Vec<String>, String>,
    /// Files by which clients of those connect.
    files: Vec<PathBuf>,
    /// The configuration file, where it was read anew.
    reading: Option<Box<ConfigurationReading>>,
}

impl JoinRequest {
    /// Returns the files by which others connect that this front has had the host listen for.
    pub fn take_files(&mut self) -> Vec<PathBuf> {
        self.prepared.as_mut().map(|done| std::mem::take(&mut done.files)).unwrap_or_default()
    }

    /// Returns the configuration file, where it was read anew for this front.
    pub fn take_reading(&mut self) -> Option<ConfigurationReading> {
        self.prepared.as_mut()?.reading.take().map(|reading| *reading)
    }
}

/// Parts of the host that fronts are served with.
pub struct FrontServices<'a> {
    /// Acceptor of their connections.
    pub acceptor: &'a ConnectionAcceptor,
    /// The host's listeners.
    pub listeners: &'a Listeners,
    /// The agents in force, where they can change.
    pub configuration: Option<&'a Configuration>,
    /// The thread that reads the configuration file.
    pub upkeep: Option<&'a Upkeep>,
}

/// A front whose client is served.
#[derive(Debug)]
struct Front {
    stream: Arc<UnixStream>,
    /// Hears what it says; nobody holds the stream then.
    hears: Option<JoinHandle<()>>,
    /// The threads on its stdin and stdout end with it.
    _stop: PipeWriter,
}

/// The fronts of a host.
#[derive(Debug)]
pub struct Fronts {
    settings: BTreeMap<String, String>,
    log_readers: LogReaders,
    path: PathBuf,
    listens: JoinHandle<()>,
    join_requests: mpsc::UnboundedSender<JoinRequest>,
    served: BTreeMap<ConnectionId, Front>,
    /// Fronts whose clients were the last ones: they end when the host does, or when another client
    /// comes.
    last: Vec<Arc<UnixStream>>,
    /// Set once a front has come, even if it was refused.
    has_come: bool,
    /// The socket's file is another host's.
    is_replaced: bool,
    /// Number of fronts that come again when what they have asked for is done.
    coming_again: usize,
    /// Set when the host stays after all fronts are gone.
    stays: bool,
    since: Instant,
}

impl Fronts {
    /// Listens for fronts. Each one that says hello is told by the channel. Must be called inside a
    /// runtime.
    pub fn listen(place: HostSocket) -> io::Result<(Self, mpsc::UnboundedReceiver<JoinRequest>)> {
        let HostSocket { listener, path, settings, log_readers, stays, .. } = place;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let (join_requests, knocked) = mpsc::unbounded_channel();
        let listens = tokio::spawn(accept_all(listener, join_requests.clone()));
        let (served, last) = (BTreeMap::new(), Vec::new());
        Ok((
            Self {
                settings,
                log_readers,
                path,
                listens,
                join_requests,
                served,
                last,
                has_come: false,
                is_replaced: false,
                coming_again: 0,
                stays,
                since: Instant::now(),
            },
            knocked,
        ))
    }

    /// Returns whether the host has no fronts left and none to wait for, and does not stay without
    /// them.
    pub fn are_gone(&self) -> bool {
        let has_waited = self.has_come || self.since.elapsed() >= HELLO_WITHIN;
        !self.stays && self.served.is_empty() && self.coming_again == 0 && has_waited
    }

    /// When it is given up that anybody comes, if nobody ever has.
    pub fn first_front_deadline(&self) -> Option<Instant> {
        (!self.stays && !self.has_come).then(|| self.since + HELLO_WITHIN)
    }

    /// Goes on with another socket, in the place of one that was removed.
    pub fn listen_anew(&mut self, listener: Listener) {
        let listener = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
        match listener {
            Ok(listener) => {
                self.listens.abort();
                self.listens = tokio::spawn(accept_all(listener, self.join_requests.clone()));
            }
            Err(error) => {
                tracing::error!(%error, "no front can join the host any more: its socket cannot be listened on")
            }
        }
    }

    /// Serves the client of a front, or tells it why not. A front that has asked for something that
    /// takes time comes again when that is done.
    pub fn admit(&mut self, mut join_request: JoinRequest, with: &FrontServices<'_>) {
        let mut differ = differences(&join_request.hello.settings, &self.settings);
        let here = with.configuration;
        differ.extend(here.into_iter().flat_map(|here| here.differences(&join_request.hello.configuration)));
        // Also one that is refused has come, and perhaps nobody else will.
        self.has_come = true;
        self.coming_again -= usize::from(join_request.prepared.is_some());
        if !differ.is_empty() {
            let why = format!(
                "the host that serves this state folder (process {}) runs with other settings than these ({}): end the \
                 other windows, say the same here, or have another folder with --state-dir",
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
        let stream = Arc::new(stream);
        if let Err(error) = self.serve(&hello, (stdin, stdout), &stream, with.acceptor, (listening, outdated))
        {
            tracing::error!(%error, "a client that has joined cannot be served");
            if descriptors::are_exhausted(&error) {
                return refuse_for_want_of_files(&stream);
            }
            let why = format!("the host of this state folder cannot serve one more client: {error}");
            refuse(&stream, why, EXIT_STATE);
        }
    }

    /// Does what a front has asked for, and has it come again.
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
        stream: &Arc<UnixStream>,
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
                Some(tokio::spawn(read_leave(Arc::clone(stream), receipts)))
            }
            None => None,
        };
        stdio::read_lines(stdin, line_bytes_max, lines, Some(stopped))?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let process = std::process::id();
        send(stream, &HelloLine::Welcome { version, process, differs, listening, outdated });
        tracing::info!(
            connection = connection.0,
            version = hello.version,
            "a client has joined through a front"
        );
        let filter: Targets = hello.log.parse().unwrap_or_default();
        let reads = Arc::clone(stream);
        self.log_readers
            .join(connection.0, LogReader::new(filter, move |line| send(&reads, &HelloLine::Log(line))));
        self.served.insert(connection, Front { stream: Arc::clone(stream), hears, _stop: stop });
        Ok(())
    }

    /// A client is there, however it has come: no front waits for the end of the host.
    pub fn cancel_end(&mut self) {
        self.last.clear();
    }

    /// Tells the front of a connection that is over how its process is to end: when the host has
    /// let go of the folder, if it `waits` for that and was the last one.
    pub fn send_exit(&mut self, connection: ConnectionId, status: u8, why: Option<String>, waits: bool) {
        self.log_readers.leave(connection.0);
        let Some(front) = self.served.remove(&connection) else { return };
        send(&front.stream, &HelloLine::Over { status, why });
        if let Some(hears) = front.hears {
            hears.abort();
        }
        if waits && !self.stays && self.served.is_empty() {
            self.last.push(front.stream);
        }
    }

    /// Another process serves the folder: the socket there is that one's.
    pub fn are_replaced(&mut self) {
        self.is_replaced = true;
    }

    /// Lets nobody join any more.
    pub fn close(&mut self) {
        self.listens.abort();
        if self.is_replaced {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "the socket of the host is gone already");
        }
    }
}

fn watch_reader((stdout, stopped): (File, PipeReader), receipts: Receipts) -> io::Result<()> {
    let tell = move |loss| matches!(loss, LeaveReason::Reader) && receipts.report_closed_reader();
    watch::start(Some(stdout.into()), None, Some(stopped.into()), tell)
}

/// Tells a front something. One that does not listen is not waited for.
fn send(front: &UnixStream, told: &HelloLine) {
    // Nor is that logged, which it would be told.
    front.try_write(&told.to_line()).unwrap_or_default();
}

fn refuse(front: &UnixStream, why: String, status: u8) {
    send(front, &HelloLine::Refused { why, status });
}

/// Tells a front that the host can open no more files.
fn refuse_for_want_of_files(front: &UnixStream) {
    send(front, &HelloLine::Refused { why: descriptors::exhausted(), status: EXIT_FAILURE });
}

/// Hears what a front says once its client is served: that it is to leave, or nothing any more.
async fn read_leave(stream: Arc<UnixStream>, receipts: Receipts) {
    let mut said = [0; 256];
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut said) {
            Ok(0) => break,
            Ok(_) => {
                if !receipts.request_leave() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    receipts.report_closed_reader();
}

async fn accept_all(listener: UnixListener, join_requests: mpsc::UnboundedSender<JoinRequest>) {
    // One that has to go comes again.
    let (mut half_open, mut spare) = (HalfOpen::default(), SpareFile::open());
    let refuse = async |stream: UnixStream| refuse_for_want_of_files(&stream);
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

/// Hears a front's hello; none when it was refused.
async fn read_hello(stream: UnixStream) -> io::Result<Option<JoinRequest>> {
    if stream.peer_cred()?.uid() != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = Vec::new();
    let mut lent = Vec::new();
    while line.last() != Some(&b'\n') {
        stream.readable().await?;
        let received = stream.try_io(Interest::READABLE, || receive(&stream, &mut line, &mut lent));
        match received {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if line.len() > LINE_BYTES_MAX => return Err(io::ErrorKind::FileTooLarge.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let any: HelloVersion = serde_json::from_slice(&line)?;
    if any.link != LINK {
        let why = format!(
            "the host that serves this state folder (process {}, version {}) and this program (version {}) do not \
             understand each other (link {LINK} and {}): end the other windows, or have another folder with \
             --state-dir",
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
        // The system leaves out those for which there is no room.
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

/// Receives some of a line, and the files that come with it.
fn receive(stream: &UnixStream, line: &mut Vec<u8>, lent: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4096];
    #[cfg(target_os = "linux")]
    let flags = RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = RecvFlags::empty();
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut files, flags)?;
    for message in files.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            for file in files {
                rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::CLOEXEC)?;
                lent.push(file);
            }
        }
    }
    line.extend_from_slice(&bytes[..received.bytes]);
    Ok(received.bytes)
}
