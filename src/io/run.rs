//! The loop: waits for events, feeds them to the core, and carries out the outputs of the core.
//!
//! `serving` is the start, `steps` a step of the core, `hearing` the input of clients, `fairness`
//! backpressure and disconnects, `recall` the lookups for messages, `leaving` the shutdown.
//!
//! Owns: the events that the loop waits for, backpressure, and timers.
//! Never: answers a client by itself, except after a panic, when its request cannot be stored, and
//! with answers from other threads.

mod fairness;
mod hearing;
mod leaving;
mod recall;
mod serving;
mod steps;
#[cfg(test)]
mod tests;

use anyhow::bail;
use tokio::sync::mpsc;
use tokio::time::{timeout, Instant};

use self::leaving::{Departure, CLOSE_WITHIN, UNSENT_REASON};
pub use self::serving::{print_urls, serve, Exit, RunOptions, StateError};
use self::serving::{scratch_in, shell_scripts};
use super::configuration::Configuration;
use super::descriptors::no_thread;
use super::directories::{CheckFor, Directories};
use super::events::{Events, Interests, LoopEvent};
use super::fronts::{Fronts, JoinRequest};
use super::git::{GitOutcome, GitProgram, GitQueue};
use super::held::ChangedSince;
use super::link::{ConnectionAcceptor, Links, TransportEvent};
use super::listen::listeners::Listeners;
use super::persistence::{OpenedPersistence, Persistence};
use super::ptys::Ptys;
use super::readers::Readers;
use super::resources::{JobOutcome, ResourceAnswer, Resources, WritableFolders};
use super::sources::{Clock, CountedIds, RandomIds};
use super::states::StateWriters;
use super::telemetry::COLLECTED_FOR;
use super::time_zones;
use super::upkeep::Upkeep;
use super::watches::Watches;
use crate::backend::mcp::McpServer;
use crate::backend::probe::ProbeResult;
use crate::backend::AnsweredAgentSessions;
use crate::backend::{Agents, Backend, Report};
use crate::host::effects::{AgentDescription, KnownConversation};
use crate::host::effects::{ClientMcp, ClientMessage, Ids, Input, Now, Output, Timer};
use crate::host::log::ReplayWindow;
use crate::host::{self, AutomationRules, AutomationSettings, Host, NextRelease, Start};
use crate::os::hangup::LeaveReason;
use crate::os::paths;
use crate::versions::dialect::Dialect;
use crate::versions::{Edges, Outgoing};
use crate::watches::engine::WatchReport as Watched;

/// Folder in the state folder that records unfinished changes of files elsewhere.
const UNFINISHED: &str = "unfinished";

/// Number of consecutive idle rounds after which deterministic mode considers all agents blocked.
const QUIET_TURNS: usize = 4;

struct Sidecar {
    options: RunOptions,
    host: Host,
    edges: Edges,
    /// Messages to a client that result from one output; empty in between.
    outgoing: Vec<Outgoing>,
    /// Messages to the core that result from one message of a client; empty in between.
    fed: Vec<ClientMessage>,
    agents: Agents,
    clock: Clock,
    /// Time shared by consecutive inputs that have only independent outputs; `None` otherwise.
    now: Option<Now>,
    ids: Box<dyn Ids>,
    outputs: Vec<Output>,
    /// Set if a message of a client has caused some of them.
    outputs_of_client: bool,
    unsettled_bytes: usize,
    persistence: Persistence,
    /// `None` if everything is in memory.
    readers: Option<Readers>,
    /// Changes since the oldest pending read.
    changes: ChangedSince,
    resources: Resources,
    watches: Watches,
    ptys: Ptys,
    git: GitQueue,
    states: StateWriters,
    directories: Directories,
    acceptor: ConnectionAcceptor,
    links: Links,
    /// `None` if no fronts can join.
    fronts: Option<Fronts>,
    listeners: Listeners,
    /// Configured agents; `None` if they cannot change.
    configuration: Option<Configuration>,
    built_in: Vec<String>,
    /// Checks files that others may change; `None` in deterministic mode.
    upkeep: Option<Upkeep>,
    timers: Vec<(Instant, Timer)>,
    /// Time at which collected log records are sent to clients; `None` if none are pending.
    logs_due: Option<Instant>,
    departure: Departure,
}

/// Agents and rules that a process offers.
struct Offered {
    backends: Vec<Box<dyn Backend>>,
    servers: Vec<McpServer>,
    /// MCP servers of clients' plugins that are allowed.
    client_mcp: ClientMcp,
    /// Rules of automations; `None` if there are none.
    automations: Option<AutomationRules>,
    /// Set if the host goes on without clients.
    stays: bool,
}

/// Returns the members of the next release that the core sends in this version, if any.
fn next_release(version: Dialect) -> Option<NextRelease> {
    (version >= Dialect::V1_1_0).then_some(NextRelease { path_style: paths::STYLE })
}

fn core_config(
    options: &RunOptions,
    agents: Vec<AgentDescription>,
    (client_mcp, automations): (ClientMcp, Option<AutomationSettings>),
    start: Start,
    has_store: bool,
) -> host::Config {
    host::Config {
        server_info: ahp_types::commands::Implementation {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            title: None,
        },
        agents,
        client_mcp,
        automations,
        next: next_release(Dialect::spoken(options.preview)),
        root_schema: host::nothing_to_configure(),
        replay_window: ReplayWindow::default(),
        start,
        limits: options.limits,
        memory_budget: if has_store { options.memory_budget } else { usize::MAX },
    }
}

impl Sidecar {
    fn new(
        options: RunOptions,
        offered: Offered,
        opened: OpenedPersistence,
        leave_reasons: mpsc::UnboundedReceiver<LeaveReason>,
        join_requests: mpsc::UnboundedReceiver<JoinRequest>,
    ) -> (Self, Events) {
        let Offered { backends, servers, client_mcp, automations, stays } = offered;
        let OpenedPersistence { persistence, start, events: committed, readers } = opened;
        let has_store = !readers.is_empty();
        let last_key = start.last_key;
        let (mut agents, reports) = Agents::new(backends);
        agents.offer_servers(servers);
        let described = agents.describe();
        let providers = described.iter().map(|agent| agent.info.provider.clone()).collect();
        // Nothing is sent by itself where nothing is stored.
        let automations = automations.filter(|_| has_store).map(|rules| AutomationSettings {
            rules,
            zones: time_zones::of_system(),
            stays,
        });
        let config = core_config(&options, described, (client_mcp, automations), start, has_store);
        let host = Host::new(config);
        let (clock, ids): (_, Box<dyn Ids>) = if options.deterministic {
            // The store may have the ids of earlier processes.
            (Clock::Fixed, Box::new(CountedIds(last_key)))
        } else {
            (Clock::Real(std::time::Instant::now()), Box::new(RandomIds))
        };
        let (readers, read) = Readers::new(readers, options.limits);
        let (acceptor, links) = ConnectionAcceptor::new(options.outbox);
        let (directories, looked) = Directories::new();
        let writable = WritableFolders::new(&options.write_roots, &options.own_files);
        let writable = match &options.state_folder {
            Some(folder) => writable.remembering(folder.join(UNFINISHED)),
            None => writable,
        };
        let program = GitProgram {
            guard: options.guard.clone(),
            is_on: options.limits.checkpoint_timeout_ms > 0,
            folder: scratch_in(options.state_folder.as_deref()),
            checkpoint_file_bytes_max: options.limits.checkpoint_file_bytes_max,
            filters: options.git_filters.clone(),
        };
        let (git, git_events) = GitQueue::new(program);
        let (watches, watched) = Watches::new(options.deterministic, writable.unwatched());
        let (resources, answered) = Resources::new(writable);
        let (ptys, pty_reports) =
            Ptys::new(options.guard.clone(), shell_scripts(&options), options.deterministic);
        let (states, pieces) = StateWriters::new();
        let log_exports = options.log_exports.clone();
        if options.deterministic {
            log_exports.fix_time(clock.now().unix_ms);
        }
        let listeners = Listeners::new(options.state_folder.clone());
        let sidecar = Self {
            edges: Edges::new(providers).speaking(Dialect::spoken(options.preview)),
            options,
            host,
            outgoing: Vec::new(),
            fed: Vec::new(),
            agents,
            clock,
            now: None,
            ids,
            outputs: Vec::new(),
            outputs_of_client: false,
            unsettled_bytes: 0,
            persistence,
            readers: has_store.then_some(readers),
            changes: ChangedSince::default(),
            resources,
            watches,
            ptys,
            git,
            states,
            directories,
            acceptor,
            links: Links::default(),
            fronts: None,
            listeners,
            configuration: None,
            built_in: Vec::new(),
            upkeep: None,
            timers: Vec::new(),
            logs_due: None,
            departure: Departure::default(),
        };
        (
            sidecar,
            Events {
                links,
                agents: reports,
                committed,
                read,
                directories: looked,
                resources: answered,
                watches: watched,
                ptys: pty_reports,
                git: git_events,
                pieces,
                join_requests,
                log_exports,
                upkeep: mpsc::unbounded_channel().1,
                leave_reasons,
            },
        )
    }

    async fn run_to_the_end(&mut self, events: Events) -> anyhow::Result<Exit> {
        let exit = self.run(events).await;
        if timeout(CLOSE_WITHIN, self.close_listeners()).await.is_err() {
            tracing::warn!("the host leaves while it begins to listen on another address");
        }
        self.stop_agents().await;
        self.close_store();
        exit
    }

    /// Closes the ways in. Later fronts start another host, which waits for the folder's lock.
    async fn close_listeners(&mut self) {
        if let Some(fronts) = &mut self.fronts {
            fronts.close();
        }
        self.listeners.close().await;
    }

    async fn run(&mut self, mut events: Events) -> anyhow::Result<Exit> {
        self.end_interrupted_turns(&mut events).await;
        self.begin().map_err(no_thread)?;
        loop {
            if let Some(exit) = self.turn(&mut events).await? {
                return Ok(exit);
            }
        }
    }

    fn begin(&mut self) -> std::io::Result<()> {
        self.readers.as_mut().map_or(Ok(()), Readers::begin)
    }

    async fn turn(&mut self, events: &mut Events) -> anyhow::Result<Option<Exit>> {
        let event = events.next(self.wants()).await;
        self.now = None;
        let is_pty = matches!(event, LoopEvent::Pty(_));
        let mut exit = self.take_in(event)?;
        if is_pty {
            // Programs report as fast as they are handled, so other tasks get a turn in between.
            tokio::task::yield_now().await;
        }
        if exit.is_none() && self.options.deterministic {
            exit = self.run_until_quiet(events).await?;
        }
        if exit.is_none() {
            exit = self.receive_from_clients(events).await?;
        }
        if exit.is_some() {
            return Ok(exit);
        }
        self.settle();
        self.cut_off();
        // Disconnecting feeds the core: turns are cancelled, and timers start. Each round closes
        // connections, so the rounds end.
        while !self.outputs.is_empty() {
            self.end_step();
        }
        if (self.departure.is_drained || self.idle().is_some()) && self.persistence.is_failing() {
            bail!(UNSENT_REASON);
        }
        self.start_resources();
        let written = self.links.iter().all(|link| link.outbox.bytes() == 0);
        if self.departure.input_has_ended && self.persistence.has_failed_for_good() && written {
            bail!("the store has failed for good: changes that were not yet sent to clients are lost");
        }
        Ok(self.finished())
    }

    fn wants(&self) -> Interests {
        let held_back = self.links.iter().filter_map(|link| link.outbox.due()).min();
        let over = self.links.iter().filter_map(|link| link.leave_by);
        let first_front = self.fronts.as_ref().and_then(Fronts::first_front_deadline).map(Instant::from_std);
        let timers = self.timers.iter().map(|&(at, _)| at);
        Interests {
            reports: self.has_room_for_agents(),
            ptys: self.has_room_for_agents(),
            due: timers
                .chain(self.departure.by)
                .chain(over)
                .chain(self.next_disconnect())
                .chain(first_front)
                .chain(self.logs_due)
                .chain(held_back.map(Instant::from_std))
                .min(),
            unhandled_input: !self.departure.has_begun() && self.has_client_input(),
        }
    }

    fn take_in(&mut self, event: LoopEvent) -> anyhow::Result<Option<Exit>> {
        match event {
            LoopEvent::Link(TransportEvent::Opened(link)) => {
                self.edges.open(link.id, link.terms.assume_version);
                let default_directory = link.terms.default_directory.clone();
                self.feed(Input::Opened { connection: link.id, default_directory });
                self.links.insert(*link);
                self.fronts.iter_mut().for_each(Fronts::cancel_end);
            }
            LoopEvent::Link(TransportEvent::LinesReceived(connection)) => self.links.note_event(connection),
            LoopEvent::Link(TransportEvent::Written(connection, written)) => {
                return self.receive_write_outcome(connection, written)
            }
            LoopEvent::Reports(reports) => self.receive_reports(reports),
            LoopEvent::Probed(provider, met) => self.receive_probe(provider, *met),
            LoopEvent::AgentSessions(answered) => self.receive_agent_sessions(*answered),
            LoopEvent::Committed(kept) => self.receive_commit_event(kept),
            LoopEvent::Read(connection, read) => self.receive_read(connection, read),
            LoopEvent::DirectoriesFound(CheckFor::Message(connection), findings) => {
                self.receive_directories(connection, findings)
            }
            LoopEvent::DirectoriesFound(CheckFor::Run(run), findings) => {
                self.feed(Input::DirectoriesChecked(run, findings))
            }
            LoopEvent::Resource(answered) => self.receive_answer(answered),
            LoopEvent::WatchesStarted(connection, begun) => self.receive_watches(connection, begun),
            LoopEvent::OwnWatch(channel, true) => self.feed(Input::Watches(channel)),
            LoopEvent::OwnWatch(channel, false) => self.feed(Input::WatchFailed(channel)),
            LoopEvent::Changed(Watched { watch, changes }) => {
                self.feed(Input::FilesChanged { watch, changes })
            }
            LoopEvent::Pty(report) => {
                if let Some((terminal, event)) = self.ptys.accept(report) {
                    self.feed(Input::Pty(terminal, event));
                }
            }
            LoopEvent::Git(news) => {
                for outcome in self.git.handle(news) {
                    self.receive_git(outcome);
                }
            }
            LoopEvent::Piece(piece) => self.receive_piece(piece),
            LoopEvent::Link(TransportEvent::LeaveRequested(connection)) => self.cut_short(connection),
            LoopEvent::FrontJoins(join_request) => self.receive_join_request(*join_request),
            LoopEvent::Upkeep(news) => return Ok(self.receive_upkeep(news)),
            LoopEvent::Leave(loss) => return Ok(self.receive_leave_reason(loss)),
            LoopEvent::TimerDue if self.departure.by.is_some_and(|by| by <= Instant::now()) => {
                return Ok(Some(self.departure.done.unwrap_or(Exit::Done)));
            }
            LoopEvent::TimerDue => self.fire_timers(),
            LoopEvent::LogsPending => {
                let due = Instant::now().checked_add(COLLECTED_FOR);
                self.logs_due = self.logs_due.or(due);
            }
            LoopEvent::InputPending => {}
        }
        Ok(None)
    }

    /// Returns the number of bytes on their way to clients that no outbox counts yet.
    fn in_flight_bytes(&self) -> usize {
        self.persistence.held_bytes() + self.unsettled_bytes
    }

    fn start_resources(&mut self) {
        let coming = self.in_flight_bytes();
        let links = &mut self.links;
        self.resources.start(&mut self.git, |connection| {
            links.get_mut(connection).is_none_or(|link| link.outbox.has_room_for_clients(coming))
        });
    }

    fn receive_reports(&mut self, reports: Vec<Report>) {
        for (chat, event) in self.agents.accept_all(reports) {
            self.feed(Input::Agent(chat, event));
        }
    }

    fn receive_answer(&mut self, answered: ResourceAnswer) {
        self.resources.answered(&answered);
        let connection = answered.connection;
        match answered.answer {
            JobOutcome::Frame(frame) => self.answer(connection, &frame),
            // The core is always answered, even if the connection is closed.
            JobOutcome::Core(id, input) => self.feed_answer(connection, &id, *input),
        }
    }

    fn receive_git(&mut self, outcome: GitOutcome) {
        match outcome {
            GitOutcome::Core(input) => self.feed(input),
            GitOutcome::Client(answered) => self.receive_answer(answered),
        }
    }

    fn receive_probe(&mut self, provider: String, met: ProbeResult) {
        if let Some((_, why)) = &met.failure {
            tracing::info!(agent = provider, why, "an agent cannot be asked for its settings");
        }
        self.feed(Input::Probed { provider, description: Box::new(met.description) });
    }

    /// Reads which sessions the host knows, for an answer about those of an agent; evicted ones are
    /// in the store only.
    fn receive_agent_sessions(&mut self, answered: AnsweredAgentSessions) {
        match &mut self.readers {
            Some(readers) => readers.conversations(answered),
            None => self.feed_agent_sessions(answered, Vec::new()),
        }
    }

    pub(super) fn feed_agent_sessions(
        &mut self,
        answered: AnsweredAgentSessions,
        known: Vec<KnownConversation>,
    ) {
        self.agents.sessions_answered();
        let AnsweredAgentSessions { connection, id, request, answer } = answered;
        let input = Input::AgentSessions { connection, id: id.clone(), request, answer, known };
        self.feed_answer(connection, &id, input);
    }

    fn fire_timers(&mut self) {
        let now = Instant::now();
        for link in self.links.iter_mut() {
            if link.outbox.due().is_some_and(|due| due <= now.into_std()) {
                link.outbox.release();
            }
        }
        let (due, later) = self.timers.drain(..).partition(|&(at, _)| at <= now);
        self.timers = later;
        let mut due: Vec<(Instant, Timer)> = due;
        due.sort_by_key(|&(at, _)| at);
        for (_, timer) in due {
            self.departure.is_drained |= timer == Timer::Drain;
            self.feed(Input::Timer(timer));
        }
    }

    /// Runs agents until they wait for a client or a timer, or until there is a reason to leave.
    async fn run_until_quiet(&mut self, events: &mut Events) -> anyhow::Result<Option<Exit>> {
        let mut quiet = 0;
        while quiet < QUIET_TURNS {
            self.end_step();
            self.start_resources();
            let event = if self.waits_for_others() {
                let (ptys, due) = (self.has_room_for_agents(), self.departure.by);
                Some(events.next(Interests { ptys, due, ..Interests::default() }).await)
            } else {
                tokio::task::yield_now().await;
                quiet += 1;
                events.now(Interests { reports: true, ptys: true, ..Interests::default() }).await
            };
            let Some(event) = event else { continue };
            quiet = 0;
            let exit = self.take_in(event)?;
            if exit.is_some() {
                return Ok(exit);
            }
        }
        for Watched { watch, changes } in self.watches.scan() {
            self.feed(Input::FilesChanged { watch, changes });
        }
        self.settle();
        Ok(None)
    }

    /// Returns whether work is pending that belongs neither to an agent nor to a client.
    fn waits_for_others(&self) -> bool {
        let reads = self.readers.as_ref().is_some_and(|readers| !readers.is_idle());
        let holds = self.links.iter().any(|link| link.held.is_some());
        !self.persistence.is_settled()
            || !self.resources.is_idle()
            || !self.ptys.are_settled()
            || !self.git.is_idle()
            || !self.agents.has_answered()
            || !self.has_room_for_agents()
            || reads
            || holds
    }
}
