//! The loop: takes what waits, feeds it to the core, and does what the core asks.
//!
//! `steps` is what a step of the core consists of, `recall` what is read from the store when a message names it.
//!
//! Owns: what is waited for, what is read when too much waits to be written, timers, signals, and the end of the
//! process.
//! Never: answers a client by itself, except when serving it failed inside.

mod recall;
mod steps;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{bail, Context};
use tokio::sync::mpsc;
use tokio::time::{sleep_until, Instant};

use super::codec::Line;
use super::directories::{found, Directories, Held};
use super::keeper::{Keeper, Kept};
use super::outbox::{Outbox, OutboxLimits};
use super::resources::{Answered, Resources};
use super::signals::catch_signals;
use super::sources::{Clock, CountedIds, RandomIds};
use super::stdio::{self, Batch, Writer, Written};
use super::watch::{self, Loss};
use crate::backend::{Agents, Backend, Report};
use crate::host::effects::{ConnectionId, Ids, Input, Output, Shutdown, Timer};
use crate::host::limits::Limits;
use crate::host::log::Window;
use crate::host::{self, directories_in, Findings, Host, Start};
use crate::store::folder;
use crate::store::memory::Memory;
use crate::store::{StatePlace, StoreOptions};
use crate::versions::dialect::Dialect;
use crate::versions::{Edges, Line as Told};
use crate::wire::errors::RpcError;
use crate::wire::rpc::Incoming;

/// How a process serves.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `file:` URI told to clients as their starting point.
    pub default_directory: Option<String>,
    /// The longest line that is read, in bytes.
    pub line_bytes_max: usize,
    /// What running turns get when stdin ends.
    pub at_end: Shutdown,
    /// Leave when the process that started us is gone.
    pub watch_parent: bool,
    /// A fixed clock, counted ids, and one input at a time.
    pub deterministic: bool,
    /// The version of clients whose first messages do not tell it.
    pub assume_version: Option<Dialect>,
    /// How large things may get.
    pub limits: Limits,
    /// What may wait to be written.
    pub outbox: OutboxLimits,
    /// Where sessions are kept.
    pub state: StatePlace,
    /// How much is kept there of what is over.
    pub store: StoreOptions,
}

/// Why the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All done, or nobody is left to read it, or we were asked to.
    Done,
    /// Done, but something was declined or cut because nobody was left to answer.
    Cut,
}

/// The one connection of a stdio host.
const STDIO: ConnectionId = ConnectionId(0);

/// How much is given to the writer at once, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// How many reports of agents are taken in one step.
const REPORTS_AT_ONCE: usize = 256;

/// So many sessions that nobody uses stay in memory when the store has them all.
const IDLE_SESSIONS_MAX: usize = 64;

/// How long the last frames may take to get out when we were asked to leave.
const LEAVE_WITHIN: Duration = Duration::from_millis(1500);

/// How long the agents are waited for, which begin to leave when we do.
const AGENTS_WITHIN: Duration = Duration::from_millis(1900);

/// In deterministic mode, everything that can run has run when agents had this many turns in a row and
/// said nothing.
const QUIET_TURNS: usize = 4;

/// Serves one client on stdin and stdout until the end.
///
/// # Errors
/// When the process has no usable stdin, stdout, or signals.
pub fn serve(options: Options, backends: Vec<Box<dyn Backend>>) -> anyhow::Result<Exit> {
    let parent = options.watch_parent.then(watch::parent).flatten();
    let (keeper, start, kept) = open_keeper(&options.state, options.store)?;
    let (stdin, stdout) = stdio::take()?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
    let exit = runtime.block_on(async {
        let (losses, lost) = mpsc::unbounded_channel();
        catch_signals(&losses)?;
        watch::start(stdout.try_clone().context("cannot watch stdout")?.into(), parent, losses);
        let lines = stdio::read_lines(stdin, options.line_bytes_max);
        let (writer, written) = Writer::start(stdout).context("cannot write to stdout")?;
        let (agents, reports) = Agents::new(backends);
        let (resources, answered) = Resources::new();
        let mut sidecar = Sidecar::new(options, agents, writer, keeper, start, resources);
        let events = Events { lines, reports, written, lost, kept, resources: answered };
        let exit = sidecar.run(events).await;
        if !sidecar.leaves_at_once {
            // Their guards see to it, whether or not we hear of it.
            if tokio::time::timeout(AGENTS_WITHIN, sidecar.agents.stop()).await.is_err() {
                tracing::warn!("agents take long to end");
            }
        }
        let exit = exit?;
        match sidecar.unreadable {
            None => Ok(exit),
            Some(error) => Err(error).context("stdin cannot be read"),
        }
    });
    // A thread may be stuck in a read or a write for ever.
    runtime.shutdown_background();
    exit
}

/// Why a host cannot begin to serve: its state folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct StateError(anyhow::Error);

fn open_keeper(
    state: &StatePlace,
    store: StoreOptions,
) -> Result<(Keeper, Start, mpsc::UnboundedReceiver<Kept>), StateError> {
    match state {
        StatePlace::Folder(asked) => folder::chosen(asked.as_deref())
            .map_err(anyhow::Error::from)
            .and_then(|folder| Keeper::open(&folder, store))
            .map_err(StateError),
        StatePlace::Memory => {
            let (_, kept) = mpsc::unbounded_channel();
            Ok((Keeper::Memory(Memory::default()), Start::default(), kept))
        }
    }
}

/// Everything that the loop waits for, besides timers and signals.
struct Events {
    lines: mpsc::Receiver<Batch>,
    reports: mpsc::Receiver<Report>,
    written: mpsc::UnboundedReceiver<Written>,
    lost: mpsc::UnboundedReceiver<Loss>,
    kept: mpsc::UnboundedReceiver<Kept>,
    resources: mpsc::UnboundedReceiver<Answered>,
}

struct Sidecar {
    options: Options,
    host: Host,
    edges: Edges,
    /// What is said to a client because of one output; empty in between.
    told: Vec<Told>,
    /// What the core is to hear of one message; empty in between.
    fed: Vec<Incoming>,
    agents: Agents,
    clock: Clock,
    ids: Box<dyn Ids>,
    /// What the core asks for in this step.
    outputs: Vec<Output>,
    unsettled_bytes: usize,
    keeper: Keeper,
    outbox: Outbox,
    resources: Resources,
    directories: Directories,
    /// Set while the directories that a message names are looked at: nothing more is heard before it.
    held: Option<Held>,
    writer: Writer,
    timers: Vec<(Instant, Timer)>,
    /// Set when nothing is left to do but to write what waits.
    done: Option<Exit>,
    /// Set when the input did not end but fail.
    unreadable: Option<std::io::Error>,
    /// Set when we were asked to leave: by when.
    leave_by: Option<Instant>,
    /// We were asked to leave twice.
    leaves_at_once: bool,
    /// The time that turns were given after the end of input is up.
    drained: bool,
}

impl Sidecar {
    fn new(
        options: Options,
        agents: Agents,
        writer: Writer,
        keeper: Keeper,
        start: Start,
        resources: Resources,
    ) -> Self {
        let described = agents.describe();
        let providers = described.iter().map(|agent| agent.info.provider.clone()).collect();
        let host = Host::new(host::Config {
            server_info: ahp_types::commands::Implementation {
                name: env!("CARGO_PKG_NAME").to_owned(),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                title: None,
            },
            default_directory: options.default_directory.clone(),
            agents: described,
            replay_window: Window::default(),
            start,
            limits: options.limits,
            idle_sessions_max: if keeper.reader().is_some() { IDLE_SESSIONS_MAX } else { usize::MAX },
        });
        let edges = Edges::new(providers, options.assume_version);
        let (clock, ids): (_, Box<dyn Ids>) = if options.deterministic {
            (Clock::Fixed, Box::new(CountedIds::default()))
        } else {
            (Clock::Real(std::time::Instant::now()), Box::new(RandomIds))
        };
        Self {
            outbox: Outbox::new(options.outbox),
            options,
            host,
            edges,
            told: Vec::new(),
            fed: Vec::new(),
            agents,
            clock,
            ids,
            outputs: Vec::new(),
            unsettled_bytes: 0,
            keeper,
            resources,
            directories: Directories::default(),
            held: None,
            writer,
            timers: Vec::new(),
            done: None,
            unreadable: None,
            leave_by: None,
            leaves_at_once: false,
            drained: false,
        }
    }

    async fn run(&mut self, mut events: Events) -> anyhow::Result<Exit> {
        let mut batch = Vec::with_capacity(REPORTS_AT_ONCE);
        let mut listening = true;
        // Lines that were read; each is heard only while there is room for its answer.
        let mut unheard = Vec::new().into_iter();
        self.end_interrupted_turns(&mut events).await;
        self.feed(Input::Opened(STDIO));
        self.settle();
        loop {
            let due = self.outbox.due().map(Instant::from_std);
            let next_timer = self.timers.iter().map(|&(at, _)| at).chain(self.leave_by).chain(due).min();
            let reads = listening
                && unheard.as_slice().is_empty()
                && self.held.is_none()
                && self.leave_by.is_none()
                && self.has_room_for_clients();
            let mut loss = None;
            tokio::select! {
                outcome = events.written.recv() => loss = self.hear_writer(outcome),
                Some(kept) = events.kept.recv() => self.hear_keeper(kept),
                Some((connection, frame)) = events.resources.recv() => {
                    self.resources.answered();
                    self.tell(connection, &frame);
                }
                findings = found(&mut self.held) => self.hear_findings(findings, &mut events).await,
                batch = events.lines.recv(), if reads => match batch {
                    Some(Ok(batch)) => unheard = batch.into_iter(),
                    end => {
                        listening = false;
                        self.input_ended(end.and_then(Result::err));
                    }
                },
                _ = events.reports.recv_many(&mut batch, REPORTS_AT_ONCE), if self.has_room_for_agents() => {
                    for report in batch.drain(..) {
                        self.hear_report(report);
                    }
                }
                () = sleep_until(next_timer.unwrap_or_else(Instant::now)), if next_timer.is_some() => {
                    if self.leave_by.is_some_and(|by| by <= Instant::now()) {
                        return Ok(self.done.unwrap_or(Exit::Done));
                    }
                    self.fire_timers();
                }
                Some(noticed) = events.lost.recv() => loss = Some(noticed),
            }
            if self.options.deterministic && loss.is_none() {
                loss = self.run_until_quiet(&mut events).await;
            }
            if loss.is_none() {
                loss = self.hear_lines(&mut unheard, &mut events).await;
            }
            match loss {
                None => {}
                Some(Loss::Reader) => return Ok(Exit::Done),
                Some(Loss::Writer(error)) => return Err(error).context("stdout cannot be written"),
                Some(Loss::Parent) if self.leave("the parent process is gone") => return Ok(Exit::Done),
                Some(Loss::Asked(signal)) if self.leave(signal) => return Ok(Exit::Done),
                Some(Loss::Parent | Loss::Asked(_)) => {}
            }
            self.settle();
            if self.drained && self.keeper.is_failing() {
                bail!("the store took nothing to the end: what was not told is lost");
            }
            if self.has_room_for_clients() {
                self.resources.start();
            }
            if !listening && self.keeper.is_beyond_hope() && self.outbox.bytes() == 0 {
                bail!("the store took nothing any more: what was not told is lost");
            }
            if let Some(exit) = self.finished() {
                return Ok(exit);
            }
        }
    }

    /// Hears lines that were read, as far as there is room for what they are answered with.
    async fn hear_lines(
        &mut self,
        unheard: &mut std::vec::IntoIter<Line>,
        events: &mut Events,
    ) -> Option<Loss> {
        while self.leave_by.is_none() && self.held.is_none() && self.has_room_for_clients() {
            let line = unheard.next()?;
            self.hear_line(line, events).await;
            if self.options.deterministic {
                let loss = self.run_until_quiet(events).await;
                if loss.is_some() {
                    return loss;
                }
            } else if self.unsettled_bytes > CHUNK_BYTES {
                self.end_step();
            }
        }
        None
    }

    /// Nobody can say anything any more.
    fn input_ended(&mut self, failure: Option<std::io::Error>) {
        tracing::info!(?failure, "stdin has ended");
        self.unreadable = failure;
        self.drained = self.options.at_end == Shutdown::Cancel;
        self.feed(Input::Shutdown(self.options.at_end));
    }

    /// How we leave, when nothing is left to do. A file system that does not answer is not waited for longer than
    /// a turn.
    fn finished(&mut self) -> Option<Exit> {
        let exit = self.done.filter(|_| self.keeper.is_settled() && self.outbox.bytes() == 0)?;
        if self.resources.is_idle() {
            return Some(exit);
        }
        let patience = match self.options.at_end {
            Shutdown::Drain(patience) => patience,
            Shutdown::Cancel => LEAVE_WITHIN,
        };
        self.leave_by = self.leave_by.or(Instant::now().checked_add(patience));
        None
    }

    fn has_room_for_agents(&self) -> bool {
        !self.keeper.is_failing()
            && self.outbox.has_room_for_agents(self.keeper.held_bytes() + self.unsettled_bytes)
    }

    fn has_room_for_clients(&self) -> bool {
        self.outbox.has_room_for_clients(self.keeper.held_bytes() + self.unsettled_bytes)
    }

    /// What became of the chunk that was given to the writer: a reason to leave when it could not be written.
    fn hear_writer(&mut self, outcome: Option<Written>) -> Option<Loss> {
        match outcome {
            Some(Written::Bytes(bytes)) => {
                self.outbox.written(bytes);
                self.writer.acknowledged();
                None
            }
            Some(Written::Failed(error)) => Some(Loss::Writer(error)),
            Some(Written::Gone) | None => Some(Loss::Reader),
        }
    }

    /// Begins to leave; true when that was asked for before, so that we leave at once.
    fn leave(&mut self, why: &str) -> bool {
        tracing::info!(why, "leaving");
        if self.leave_by.is_some() {
            self.leaves_at_once = true;
            return true;
        }
        self.leave_by = Some(Instant::now() + LEAVE_WITHIN);
        self.feed(Input::Shutdown(Shutdown::Cancel));
        // While what waits is written.
        tokio::spawn(self.agents.stop());
        false
    }

    async fn hear_line(&mut self, line: Line, events: &mut Events) {
        let message = match line {
            Line::Complete(line) => Incoming::parse(&line),
            Line::Unterminated(line) => match Incoming::parse(&line) {
                // Cut off in the middle: nobody has said it.
                Incoming::Malformed { error, .. } => {
                    tracing::warn!(%error, "the input ended inside a line, which was ignored");
                    return;
                }
                message => message,
            },
            Line::TooLong => Incoming::Malformed {
                id: None,
                error: RpcError::invalid_request(format!(
                    "a line is longer than {} bytes",
                    self.options.line_bytes_max
                )),
            },
        };
        if let Some(client) = self.edges.stranger(&message) {
            self.look_up_client(client);
        }
        let mut fed = std::mem::take(&mut self.fed);
        self.edges.up(STDIO, message, &mut fed);
        self.outputs.extend(self.edges.take_records().into_iter().map(Output::Record));
        let named: BTreeSet<String> = fed.iter().flat_map(directories_in).collect();
        if named.is_empty() {
            self.hear_all(&mut fed, events).await;
            self.fed = fed;
        } else {
            self.held = Some(self.directories.hold(fed, named));
        }
    }

    /// The directories that a message names were looked at: now it can be heard.
    async fn hear_findings(&mut self, findings: Findings, events: &mut Events) {
        let Some(mut fed) = self.held.take().map(Held::into_messages) else { return };
        self.feed(Input::Findings(findings));
        self.hear_all(&mut fed, events).await;
    }

    async fn hear_all(&mut self, fed: &mut Vec<Incoming>, events: &mut Events) {
        for message in fed.iter() {
            self.prepare(message, events).await;
        }
        for message in fed.drain(..) {
            self.feed(Input::Said(STDIO, message));
        }
    }

    fn hear_report(&mut self, report: Report) {
        if let Some((chat, event)) = self.agents.hear(report) {
            self.feed(Input::Agent(chat, event));
        }
    }

    fn fire_timers(&mut self) {
        let now = Instant::now();
        if self.outbox.due().is_some_and(|due| due <= now.into_std()) {
            self.outbox.release();
        }
        let (due, later) = self.timers.drain(..).partition(|&(at, _)| at <= now);
        self.timers = later;
        let mut due: Vec<(Instant, Timer)> = due;
        due.sort_by_key(|&(at, _)| at);
        for (_, timer) in due {
            self.drained |= timer == Timer::Drain;
            self.feed(Input::Timer(timer));
        }
    }

    /// Lets agents run until they wait for a client or a timer, or until there is a reason to leave.
    async fn run_until_quiet(&mut self, events: &mut Events) -> Option<Loss> {
        let mut quiet = 0;
        while quiet < QUIET_TURNS {
            self.end_step();
            if let Ok(loss) = events.lost.try_recv() {
                return Some(loss);
            }
            self.resources.start();
            let waits = self.held.is_some() || !self.resources.is_idle();
            if !self.keeper.is_settled() || !self.has_room_for_agents() || waits {
                let loss = tokio::select! {
                    Some((connection, frame)) = events.resources.recv() => {
                        self.resources.answered();
                        self.tell(connection, &frame);
                        None
                    }
                    findings = found(&mut self.held) => { self.hear_findings(findings, events).await; None }
                    Some(kept) = events.kept.recv() => { self.hear_keeper(kept); None }
                    outcome = events.written.recv() => self.hear_writer(outcome),
                    loss = events.lost.recv() => loss,
                };
                if loss.is_some() {
                    return loss;
                }
                continue;
            }
            tokio::task::yield_now().await;
            quiet += 1;
            while let Ok(report) = events.reports.try_recv() {
                self.hear_report(report);
                quiet = 0;
            }
        }
        self.settle();
        None
    }
}
