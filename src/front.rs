//! Front: the process that an editor has started, whose client the host of the state folder serves.
//!
//! Owns: finding the folder's host, starting it if there is none, lending it stdin and stdout
//! (pipes, where those are terminals: [`LentPipes`]), requesting the settings of this front from
//! it, and exiting with the status that it sends.
//! Never: interprets the messages of its client. A host outlives the front that has started it,
//! even if that is killed.
//!
//! The front that gets the folder's lock starts the host: it listens in the host's place and hands
//! over lock and listener, so that the folder stays locked and can be joined at any time. All other
//! fronts retry until they can connect.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::io::descriptors::no_thread;
use crate::io::hello::{Hello, HelloLine, LEAVE};
use crate::io::log::Log;
use crate::io::run::print_urls;
use crate::io::upkeep::{bind, is_taken};
use crate::os::hangup::{self, LeaveReason, Parent};
use crate::os::lending::{LentPipes, StartedHost, HANDS_OVER};
use crate::os::signals::catch_signals;
use crate::os::sockets::{
    connect_now, into_async, set_timeouts, split, BlockingStream, LocalListener, Stream,
};
use crate::os::{facts, private, stdio};
use crate::places;
use crate::status::{EXIT_GONE, EXIT_STATE, EXIT_USAGE};
use crate::store::folder::{holder_now, FolderError, Holder, StateFolder};

/// Deadline for joining a host, counted from the first attempt.
const JOIN_WITHIN: Duration = Duration::from_secs(10);

/// Interval of attempts to join a host that is starting or exiting.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Time after which a process that holds the folder, and is no host, is reported. Before, the
/// recorded holder may be stale.
const HELD_FOR: Duration = Duration::from_millis(300);

/// Pause before a new host is started after one that has exited at once.
const START_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Maximum time to close the client's connection after a request to exit, and to print the rest.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

const SOCKET: &str = "host.sock";

const NOT_STARTED: &str = "this executable cannot be started as the host";

/// Result of joining a host.
#[derive(Debug)]
pub enum Joined {
    /// A host serves the client.
    Host(Box<HostProcess>),
    /// No host can be started, for this reason: this process holds the folder and serves the
    /// client.
    Alone(StateFolder, anyhow::Error),
}

/// Host that serves the client of this front.
#[derive(Debug)]
pub struct HostProcess {
    stream: BufReader<BlockingStream>,
    process: u32,
    version: String,
    differs: Vec<String>,
    listening: Vec<String>,
    outdated: Option<String>,
}

/// Reason why no host serves this front.
#[derive(Debug, thiserror::Error)]
pub enum NoHost {
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A host runs, but does not serve this front.
    #[error("{why}")]
    Refused {
        /// Reason, for people.
        why: String,
        /// Exit status of the front.
        status: u8,
    },
    /// No host runs, and this process cannot start one, for this reason.
    #[error("{0}")]
    Unstartable(String),
    /// The hosts that this process has started have exited before they could be joined.
    #[error(
        "no host could be started for the state folder {folder} within {seconds} seconds ({last}): see `host.log` \
         there, or run once with `--exclusive` to see the error",
        seconds = JOIN_WITHIN.as_secs()
    )]
    Unstarted {
        /// Path of the state folder.
        folder: String,
        /// Failure of the last attempt.
        last: String,
    },
    /// The deadline for joining has passed.
    #[error(
        "the state folder {folder} is in use by {holder}, and its host could not be joined within {seconds} seconds \
         ({last}): end that process, or choose another folder with `--state-dir`",
        seconds = JOIN_WITHIN.as_secs()
    )]
    TooLate {
        /// Path of the state folder.
        folder: String,
        /// Process that holds the folder, for people.
        holder: String,
        /// Failure of the last attempt.
        last: String,
    },
}

impl NoHost {
    /// Returns the exit status for this failure.
    pub fn status(&self) -> u8 {
        match self {
            Self::Folder(_) | Self::Unstarted { .. } | Self::TooLate { .. } => EXIT_STATE,
            Self::Unstartable(_) => EXIT_USAGE,
            Self::Refused { status, .. } => *status,
        }
    }
}

/// Joins the host of a folder, or starts one with `start`. If `start` is an error, its text says
/// why this process cannot start a host, and only a running host is joined.
///
/// # Errors
/// See [`NoHost`].
pub fn join(
    folder: &Path,
    hello: &Hello,
    lent_pipes: &mut LentPipes,
    start: Result<impl Fn() -> Command, String>,
) -> Result<Joined, NoHost> {
    let begin = Instant::now();
    let mut last = "nothing listens".to_owned();
    let mut held_since: Option<(Holder, Instant)> = None;
    loop {
        if let Some(place) = place_of(folder) {
            let place = place.as_path();
            match connect_now(place).and_then(|stream| say_hello(folder, stream, hello, begin, lent_pipes)) {
                Ok(host) => return host.map(|host| Joined::Host(Box::new(host))),
                Err(error) => last = is_taken(place).unwrap_or_else(|| error.to_string()),
            }
        }
        let held = match &start {
            Ok(start) => StateFolder::hold_for_host(folder).map(|held| (held, start)),
            Err(why) => Err(held_by_others(folder).ok_or_else(|| NoHost::Unstartable(why.clone()))?),
        };
        match held {
            Ok((held, start)) => match start_host(held, hello, begin, lent_pipes, start) {
                Ok(joined) => return joined,
                // The host has exited before it received the hello.
                Err(error) if begin.elapsed() <= JOIN_WITHIN => {
                    last = error.to_string();
                    thread::sleep(START_AGAIN_AFTER);
                }
                Err(error) => {
                    let (folder, last) = (folder.display().to_string(), error.to_string());
                    return Err(NoHost::Unstarted { folder, last });
                }
            },
            Err(held @ FolderError::Held { .. }) => {
                let now = Instant::now();
                let holder = Holder::of(folder).unwrap_or_default();
                let is_host = holder.host.is_some() || !holder.lives();
                let since = held_since.take().filter(|(before, _)| *before == holder && !is_host);
                let since = since.map_or(now, |(_, since)| since);
                if now - since > HELD_FOR {
                    return Err(held.into());
                }
                if now - begin > JOIN_WITHIN {
                    let who = match holder.process {
                        Some(process) if holder.lives() => format!("process {process}"),
                        _ => "another process".to_owned(),
                    };
                    return Err(NoHost::TooLate { folder: folder.display().to_string(), holder: who, last });
                }
                held_since = Some((holder, since));
                thread::sleep(RETRY_INTERVAL);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the path at which a folder's host can be joined; `None` if there is none.
fn place_of(folder: &Path) -> Option<PathBuf> {
    Holder::of(folder).ok()?.host.filter(|place| !place.as_os_str().is_empty())
}

/// Returns the holder of a folder, as an error; `None` if the folder is not held.
fn held_by_others(folder: &Path) -> Option<FolderError> {
    let holder = holder_now(folder).ok().flatten()?;
    let process = holder.process.map_or("another process".to_owned(), |process| format!("process {process}"));
    Some(FolderError::Held { folder: folder.display().to_string(), holder: process })
}

/// Locks a folder for this process as its host. Also returns the socket for fronts and its path, or
/// the reason why there is none.
///
/// # Errors
/// When another process holds the folder, or it cannot be used.
pub fn hold(folder: &Path) -> Result<(StateFolder, anyhow::Result<(LocalListener, PathBuf)>), FolderError> {
    let mut held = StateFolder::hold_for_host(folder)?;
    let listener = listen(held.path());
    held.announce(listener.as_ref().ok().map(|(_, place)| place.as_path()))?;
    Ok((held, listener))
}

/// Starts a host in a folder that this process holds, and joins it. Fails if it exits before the
/// hello.
fn start_host(
    mut held: StateFolder,
    hello: &Hello,
    begin: Instant,
    lent_pipes: &mut LentPipes,
    start: &impl Fn() -> Command,
) -> io::Result<Result<Joined, NoHost>> {
    if !HANDS_OVER {
        return start_host_that_locks(held, hello, begin, lent_pipes, start);
    }
    let started = listen(held.path())
        .and_then(|(listener, place)| {
            held.announce(Some(&place))?;
            let lock = held.lock()?.context("the folder has no lock")?;
            // The connection waits in the socket's backlog until the host accepts it.
            let stream = connect_now(&place).context("the connection to its socket failed")?;
            let host = StartedHost::start(start(), Some((lock, listener))).context(NOT_STARTED)?;
            Ok((stream, host))
        })
        .context("no host can be started for several clients");
    let (stream, host) = match started {
        Ok(started) => started,
        Err(error) => {
            held.announce(None).map_err(io::Error::other)?;
            return Ok(Ok(Joined::Alone(held, error)));
        }
    };
    let folder = held.path().to_owned();
    drop(held);
    // Reaps the host if it exits before this process.
    let waits = thread::Builder::new().name("host".to_owned()).spawn(move || host.wait());
    if let Err(error) = waits {
        tracing::debug!(%error, "the host's end cannot be waited for");
    }
    Ok(say_hello(&folder, stream, hello, begin, lent_pipes)?.map(|host| Joined::Host(Box::new(host))))
}

/// Releases a folder that this process holds, and joins the host that it starts, or another one
/// that holds the folder sooner. Fails if no host listens in time.
fn start_host_that_locks(
    held: StateFolder,
    hello: &Hello,
    begin: Instant,
    lent_pipes: &mut LentPipes,
    start: &impl Fn() -> Command,
) -> io::Result<Result<Joined, NoHost>> {
    let folder = held.path().to_owned();
    drop(held);
    let mut host = match StartedHost::start(start(), None) {
        Ok(host) => host,
        Err(error) => {
            let mut held = StateFolder::hold_for_host(&folder).map_err(io::Error::other)?;
            held.announce(None).map_err(io::Error::other)?;
            return Ok(Ok(Joined::Alone(held, anyhow::Error::new(error).context(NOT_STARTED))));
        }
    };
    loop {
        if let Some(stream) = place_of(&folder).and_then(|place| connect_now(&place).ok()) {
            let joined = say_hello(&folder, stream, hello, begin, lent_pipes)?;
            return Ok(joined.map(|host| Joined::Host(Box::new(host))));
        }
        if let Some(status) = host.exit_status()? {
            return Err(io::Error::other(format!("it has ended with {status}")));
        }
        if begin.elapsed() > JOIN_WITHIN {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Listens in the state folder, or, if a socket's path there is too long or cannot be bound, in the
/// user's runtime folder.
fn listen(folder: &Path) -> anyhow::Result<(LocalListener, PathBuf)> {
    let folder = folder.canonicalize()?;
    let inside = folder.join(SOCKET);
    let error = match bind(&inside) {
        Ok(listener) => return Ok((listener, inside)),
        Err(error) => error,
    };
    let (device, inode) = facts::behind(&folder)?.identity;
    let name = format!("host-{device:x}-{inode:x}.sock");
    let place = runtime_folder().map(|folder| folder.join(name));
    let place = place.with_context(|| format!("{error}, and there is no other folder for its socket"))?;
    let listener = bind(&place).with_context(|| place.display().to_string())?;
    Ok((listener, place))
}

/// Returns a folder for sockets that only this user can access.
fn runtime_folder() -> io::Result<PathBuf> {
    let folder = match places::runtime_folder() {
        Some(folder) => folder.join("ahp-sidecar"),
        None => std::env::temp_dir().join(format!("ahp-sidecar-{}", private::this_user())),
    };
    match private::create_folder(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let there = facts::at(&folder)?;
    if there.is_folder() && private::is_ours(&there) && private::mode_for_others(&there) & 0o077 == 0 {
        Ok(folder)
    } else {
        Err(io::Error::other(format!(
            "`{0}` belongs to or is accessible to other users, so no socket is made there: `chmod 700 {0}`, or set \
             `XDG_RUNTIME_DIR`",
            folder.display()
        )))
    }
}

/// Sends the hello to the host of a folder, and receives its answer. Fails if the host is gone.
fn say_hello(
    folder: &Path,
    stream: BlockingStream,
    hello: &Hello,
    begin: Instant,
    lent_pipes: &mut LentPipes,
) -> io::Result<Result<HostProcess, NoHost>> {
    let left = JOIN_WITHIN.saturating_sub(begin.elapsed()).max(RETRY_INTERVAL);
    set_timeouts(&stream, Some(left))?;
    let mut line = serde_json::to_vec(hello)?;
    line.push(b'\n');
    // A host that refuses the hello may not have read all of it.
    let sent = lent_pipes.lend(&stream, &line);
    let mut stream = BufReader::new(stream);
    let mut answer = String::new();
    match stream.read_line(&mut answer) {
        Ok(0) => return Err(sent.err().unwrap_or(io::ErrorKind::UnexpectedEof.into())),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let why = format!(
                "the host of the state folder {} has not answered within {} seconds: end its process (`ahp-sidecar \
                 status` names it), or choose another folder with `--state-dir`",
                folder.display(),
                JOIN_WITHIN.as_secs()
            );
            return Ok(Err(NoHost::Refused { why, status: EXIT_STATE }));
        }
        Err(error) => return Err(error),
    }
    set_timeouts(stream.get_ref(), None)?;
    Ok(match serde_json::from_str(&answer) {
        Ok(HelloLine::Welcome { version, process, differs, listening, outdated }) => {
            Ok(HostProcess { stream, process, version, differs, listening, outdated })
        }
        Ok(HelloLine::Refused { why, status }) => Err(NoHost::Refused { why, status }),
        _ => {
            let why = format!(
                "the host of the state folder {} gave an answer that this version does not know: end the other \
                 windows, or choose another folder with `--state-dir`",
                folder.display()
            );
            Err(NoHost::Refused { why, status: EXIT_STATE })
        }
    })
}

/// Receiver of the reasons to exit. Signals are caught before the host serves the client, and
/// handled afterwards.
#[derive(Debug)]
pub struct LeaveSignals {
    runtime: Runtime,
    lost: mpsc::UnboundedReceiver<LeaveReason>,
}

impl LeaveSignals {
    /// Catches the signals to exit, and watches the parent process if `parent` is given.
    ///
    /// # Errors
    /// When signals cannot be caught, or the parent cannot be watched.
    pub fn open(parent: Option<Parent>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (losses, lost) = mpsc::unbounded_channel();
        let entered = runtime.enter();
        catch_signals(&losses)?;
        drop(entered);
        if parent.is_some() {
            hangup::start(None, parent, None, move |loss| losses.send(loss).is_ok())?;
        }
        Ok(Self { runtime, lost })
    }
}

/// Waits until the client's connection, the host or the parent process ends; returns the exit
/// status.
///
/// # Errors
/// When the connection to the host cannot be used.
pub fn serve_until_over(
    host: HostProcess,
    lent_pipes: LentPipes,
    ears: LeaveSignals,
    log: &Log,
) -> anyhow::Result<u8> {
    let HostProcess { stream, process, version, differs, listening, outdated } = host;
    print_urls(&listening);
    if let Some(outdated) = outdated {
        tracing::warn!("the host: {outdated}");
    }
    if version != env!("CARGO_PKG_VERSION") {
        tracing::info!(host = version, "the host is another version of this program");
    }
    for name in differs {
        tracing::warn!(name, "an environment variable differs: the host and its agents have that of the front that started the host");
    }
    let printing = lent_pipes.carry(stdio::take()?).map_err(no_thread)?;
    let read_ahead = stream.buffer().to_vec();
    let stream = stream.into_inner();
    let LeaveSignals { runtime, lost } = ears;
    let status = runtime.block_on(async {
        let stream = into_async(stream)?;
        anyhow::Ok(follow_host(stream, read_ahead, lost, log).await)
    });
    runtime.shutdown_background();
    printing.finish(LEAVE_WITHIN);
    status.map(|status| {
        status.unwrap_or_else(|| {
            tracing::error!(process, "the host has ended unexpectedly: start again, and send `reconnect`");
            EXIT_GONE
        })
    })
}

/// Receives the host's lines until it closes the connection. `None` if it has sent no exit status.
async fn follow_host(
    stream: Stream,
    read_ahead: Vec<u8>,
    mut lost: mpsc::UnboundedReceiver<LeaveReason>,
    log: &Log,
) -> Option<u8> {
    let (reader, mut writer) = split(stream);
    let reader = tokio::io::AsyncReadExt::chain(io::Cursor::new(read_ahead), reader);
    let mut lines = tokio::io::BufReader::new(reader).lines();
    let mut status = None;
    let mut leave_by = None;
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => match serde_json::from_str(&line) {
                    Ok(HelloLine::Log(line)) => log.forward(line.into_bytes()),
                    Ok(HelloLine::Over { status: how, why }) => {
                        if let Some(why) = why {
                            tracing::error!("the host: {why}");
                        }
                        status = Some(how);
                    }
                    _ => tracing::warn!("a message of the host was ignored: its kind is unknown"),
                },
                Ok(None) | Err(_) => return status,
            },
            Some(loss) = lost.recv() => {
                let why = if let LeaveReason::Asked(signal) = loss { signal } else { "the parent process has ended" };
                tracing::info!(why, "leaving");
                if leave_by.is_some() || writer.write_all(LEAVE).await.is_err() {
                    return Some(status.unwrap_or(0));
                }
                leave_by = Some(Instant::now() + LEAVE_WITHIN);
            }
            () = sleep_until(leave_by.unwrap_or_else(Instant::now).into()), if leave_by.is_some() => {
                return Some(status.unwrap_or(0));
            }
        }
    }
}
