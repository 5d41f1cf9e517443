//! Watching files for clients, on a separate thread.
//!
//! Owns: the thread, the times of scans and coalescing, and the leases of watches for unhandled
//! messages. A host with a fixed clock has no thread and scans on request.
//! Never: decides what may be watched, or notifies clients; changes wait while clients do not read.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use crate::files::folders::HostFile;
use crate::host::effects::ConnectionId;
use crate::os::watch::{Notifier, Wakeup};
use crate::sync::lock;
use crate::watches::engine::{Engine, WatchRefusal, WatchReport, ENTRIES_MAX};
use crate::watches::system::{NoNotifier, WatchTrouble};
use crate::watches::tree::STACK_BYTES;
use crate::wire::errors::RpcError;

/// Time for which events are collected after the first one, to be processed together.
const COALESCE_WITHIN: Duration = Duration::from_millis(75);

/// Interval of scans of folders for which the system reports no events.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Delay before a report is sent again after its channel was full.
const RESEND_INTERVAL: Duration = Duration::from_millis(100);

/// Time limit for starting a watch, for file systems that do not answer.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Capacity of the report channel; further changes wait in the engine.
const REPORTS_MAX: usize = 16;

/// Maximum number of files and folders in a polled watch.
const POLLED_ENTRIES_MAX: usize = 2000;

/// Results of starting watches for a message, by channel.
pub type StartedWatches = Vec<(String, Result<WatchLease, WatchRefusal>)>;

/// Watch that the core does not know yet. Dropping the lease releases the watch.
#[derive(Debug)]
pub struct WatchLease {
    channel: String,
    watcher: Option<Arc<WatcherQueue>>,
}

impl WatchLease {
    /// Leaves the release of the watch to the core.
    pub fn hand_over(mut self) {
        self.watcher = None;
    }
}

impl Drop for WatchLease {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.send(WatchCommand::Release(std::mem::take(&mut self.channel)));
        }
    }
}

#[derive(Debug)]
enum WatchCommand {
    Begin(Vec<String>, oneshot::Sender<StartedWatches>),
    /// Begins a watch of the core.
    BeginOwn(String, oneshot::Sender<Result<(), WatchRefusal>>),
    Release(String),
    Stop,
}

/// Command queue of the watcher thread, with its waker.
#[derive(Debug)]
struct WatcherQueue {
    commands: Mutex<Vec<WatchCommand>>,
    wakeup: Wakeup,
}

impl WatcherQueue {
    fn new() -> io::Result<Self> {
        Ok(Self { commands: Mutex::default(), wakeup: Wakeup::new()? })
    }

    fn send(&self, command: WatchCommand) {
        lock(&self.commands).push(command);
        self.wakeup.wake();
    }

    fn take(&self) -> Vec<WatchCommand> {
        self.wakeup.clear();
        std::mem::take(&mut *lock(&self.commands))
    }
}

/// Handle of the watcher thread, or the engine itself if there is no thread.
#[derive(Debug)]
pub struct Watches {
    watcher: Option<Arc<WatcherQueue>>,
    own: Arc<[HostFile]>,
    /// Set if there is no thread.
    engine: Option<Engine>,
    begun: mpsc::UnboundedSender<(ConnectionId, StartedWatches)>,
    begun_own: mpsc::UnboundedSender<(String, bool)>,
    /// `None` once the thread runs.
    reports: Option<mpsc::Sender<WatchReport>>,
}

/// Receivers of the results of watching.
#[derive(Debug)]
pub struct WatchEvents {
    /// Results of starting watches for a connection's message.
    pub begun: mpsc::UnboundedReceiver<(ConnectionId, StartedWatches)>,
    /// Channels of watches for the core itself, and whether each has started.
    pub begun_own: mpsc::UnboundedReceiver<(String, bool)>,
    /// Changes of watched files.
    pub reports: mpsc::Receiver<WatchReport>,
}

impl Watches {
    /// Creates an empty set that ignores the host's own files. Uses no thread if `is_stepped`.
    pub fn new(is_stepped: bool, own: Arc<[HostFile]>) -> (Self, WatchEvents) {
        let (begun, begun_news) = mpsc::unbounded_channel();
        let (begun_own, begun_own_news) = mpsc::unbounded_channel();
        let (reports, reports_receiver) = mpsc::channel(REPORTS_MAX);
        let engine = is_stepped.then(|| Engine::new(Box::new(NoNotifier), Arc::clone(&own), ENTRIES_MAX));
        let watcher = WatcherQueue::new().map(Arc::new);
        let watcher = watcher.map_err(|error| tracing::error!(%error, "files cannot be watched")).ok();
        let watches = Self { watcher, own, engine, begun, begun_own, reports: Some(reports) };
        (watches, WatchEvents { begun: begun_news, begun_own: begun_own_news, reports: reports_receiver })
    }

    /// Starts watches for a message, within a few seconds. Must be called inside a tokio runtime.
    pub fn begin(&mut self, connection: ConnectionId, channels: Vec<String>) {
        let failed = |why: &str| {
            let failed = |channel: &String| (channel.clone(), Err(RpcError::unavailable(why).into()));
            channels.iter().map(failed).collect::<StartedWatches>()
        };
        let begun = self.begun.clone();
        let send = move |watches| {
            if begun.send((connection, watches)).is_err() {
                tracing::debug!("watches that have begun were dropped: the host has left");
            }
        };
        match self.request(|reply| WatchCommand::Begin(channels.clone(), reply)) {
            Some(replied) => {
                let silent = failed("the file system does not answer");
                tokio::spawn(async move {
                    let answer = tokio::time::timeout(START_TIMEOUT, replied).await;
                    send(answer.ok().and_then(Result::ok).unwrap_or(silent));
                });
            }
            None => send(failed("files cannot be watched")),
        }
    }

    /// Starts a watch for the core, which gets an event. Must be called inside a tokio runtime.
    pub fn begin_own(&mut self, channel: String) {
        let begun_own = self.begun_own.clone();
        let replied = self.request(|reply| WatchCommand::BeginOwn(channel.clone(), reply));
        let send = move |has_begun| {
            if begun_own.send((channel, has_begun)).is_err() {
                tracing::debug!("a watch was dropped: the host has left");
            }
        };
        let Some(replied) = replied else { return send(false) };
        tokio::spawn(async move {
            let Ok(begun) = replied.await else { return };
            if let Err(refused) = &begun {
                tracing::info!(
                    why = refused.error.message,
                    "a repository is not watched, so its changes are shown at the next refresh"
                );
            }
            send(begun.is_ok());
        });
    }

    /// Sends a command with a reply to the thread, which is started if necessary. Returns the
    /// receiver of the reply; `None` if no files can be watched.
    fn request<T>(
        &mut self,
        command: impl FnOnce(oneshot::Sender<T>) -> WatchCommand,
    ) -> Option<oneshot::Receiver<T>> {
        let (reply, replied) = oneshot::channel();
        let watcher = Arc::clone(self.watcher.as_ref()?);
        if self.engine.is_none() {
            if let Err(error) = self.start(&watcher, spawn) {
                tracing::error!(%error, "files cannot be watched: the system starts no thread");
                return None;
            }
        }
        watcher.send(command(reply));
        if let Some(engine) = &mut self.engine {
            obey(engine, &watcher);
        }
        Some(replied)
    }

    /// Reports an empty result, so that the connection's message requests its missing watches
    /// again.
    pub fn try_again(&self, connection: ConnectionId) {
        if self.begun.send((connection, StartedWatches::new())).is_err() {
            tracing::debug!("watches that have begun were dropped: the host has left");
        }
    }

    /// Releases a watch of the core, even one that could not begin.
    pub fn release(&self, channel: String) {
        if let Some(watcher) = &self.watcher {
            watcher.send(WatchCommand::Release(channel));
        }
    }

    /// Scans all watched files if there is no thread.
    pub fn scan(&mut self) -> Vec<WatchReport> {
        let (Some(watcher), Some(engine)) = (&self.watcher, &mut self.engine) else { return Vec::new() };
        obey(engine, watcher);
        engine.poll();
        std::iter::from_fn(|| engine.take_changes()).collect()
    }

    fn start(
        &mut self,
        watcher: &Arc<WatcherQueue>,
        spawn: impl FnOnce(WatcherWork) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(reports) = self.reports.clone() else { return Ok(()) };
        let (watcher, own) = (Arc::clone(watcher), Arc::clone(&self.own));
        spawn(Box::new(move || {
            let mut engine = engine(own, &watcher.wakeup);
            watch(&mut engine, &watcher, &reports);
        }))?;
        self.reports = None;
        Ok(())
    }
}

type WatcherWork = Box<dyn FnOnce() + Send>;

fn spawn(work: WatcherWork) -> io::Result<()> {
    let thread = thread::Builder::new().name("watches".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(work).map(drop)
}

impl Drop for Watches {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.send(WatchCommand::Stop);
        }
    }
}

fn engine(own: Arc<[HostFile]>, wakeup: &Wakeup) -> Engine {
    match Notifier::new(wakeup).map_err(WatchTrouble::from) {
        Ok(system) => Engine::new(Box::new(system), own, POLLED_ENTRIES_MAX),
        Err(trouble) => {
            tracing::warn!(?trouble, "the system cannot watch files: small folders are polled");
            Engine::without_system(trouble, own, POLLED_ENTRIES_MAX)
        }
    }
}

/// Carries out queued commands. Returns false after a command to stop.
fn obey(engine: &mut Engine, watcher: &Arc<WatcherQueue>) -> bool {
    for command in watcher.take() {
        match command {
            WatchCommand::Begin(channels, reply) => {
                let begin = |channel: String| {
                    let lease = WatchLease { channel: channel.clone(), watcher: Some(Arc::clone(watcher)) };
                    match engine.begin(&channel) {
                        Ok(()) => (channel, Ok(lease)),
                        Err(error) => {
                            lease.hand_over();
                            (channel, Err(error))
                        }
                    }
                };
                // An undelivered reply drops its leases, which releases the watches.
                drop(reply.send(channels.into_iter().map(begin).collect()));
            }
            // The core releases the watch, whether it has begun or not.
            WatchCommand::BeginOwn(channel, reply) => drop(reply.send(engine.begin_own(&channel))),
            WatchCommand::Release(channel) => engine.release(&channel),
            WatchCommand::Stop => return false,
        }
    }
    true
}

fn watch(engine: &mut Engine, watcher: &Arc<WatcherQueue>, reports: &mpsc::Sender<WatchReport>) {
    let (mut look_at, mut around_at, mut again_at) = (None::<Instant>, None::<Instant>, None::<Instant>);
    loop {
        wait(engine, watcher, [look_at, around_at, again_at].into_iter().flatten().min());
        if !obey(engine, watcher) {
            return;
        }
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if engine.read_events() {
            look_at = look_at.or(Some(now + COALESCE_WITHIN));
        }
        if is_due(look_at) {
            look_at = None;
            engine.process_events();
        }
        if is_due(around_at) {
            around_at = None;
            engine.poll();
        }
        around_at = if engine.must_poll() { around_at.or(Some(now + POLL_INTERVAL)) } else { None };
        again_at = None;
        while engine.has_changes() {
            match reports.try_reserve() {
                Ok(place) => {
                    let Some(changes) = engine.take_changes() else { break };
                    place.send(changes);
                }
                Err(mpsc::error::TrySendError::Full(())) => {
                    again_at = Some(now + RESEND_INTERVAL);
                    break;
                }
                Err(mpsc::error::TrySendError::Closed(())) => return,
            }
        }
    }
}

fn wait(engine: &Engine, watcher: &WatcherQueue, until: Option<Instant>) {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    if let Err(error) = watcher.wakeup.wait(engine.notifier(), left) {
        tracing::error!(%error, "file events of the system cannot be waited for, so changes are noticed late");
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watcher_that_did_not_start_is_started_by_the_next_request() {
        let (mut watches, _events) = Watches::new(false, Arc::default());
        let watcher = watches.watcher.clone().unwrap();
        let refused = |_| Err(io::ErrorKind::WouldBlock.into());
        assert!(watches.start(&watcher, refused).is_err() && watches.start(&watcher, refused).is_err());
        watches.start(&watcher, |_| Ok(())).unwrap();
        watches.start(&watcher, |_| panic!("it runs already")).unwrap();
    }
}
