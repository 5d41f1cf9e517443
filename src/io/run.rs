//! The loop: takes what waits, feeds it to the core, and does what the core asks.
//!
//! `serving` is how a process begins, `steps` what a step of the core consists of, `hearing` how
//! clients are heard, `fairness` who waits for clients that do not read, `recall` what is looked up
//! when a message names it, `leaving` how the process ends.
//!
//! Owns: what is waited for, what is not read when too much waits to be written, and timers.
//! Never: answers a client by itself, except when serving it failed inside.

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
use tokio::time::Instant;

use self::leaving::NOT_TOLD;
pub use self::serving::{print_urls, serve, serve_fronts, Exit, RunOptions, StateError};
use self::serving::{scratch_of, shell_scripts};
use super::configuration::Configuration;
use super::descriptors::no_thread;
use super::directories::Directories;
use super::events::{Events, LoopEvent, Wants};
use super::fronts::{Fronts, Knock};
use super::git::{GitAsker, GitOutcome, GitProgram};
use super::held::ChangedSince;
use super::keeper::{Keeper, Opened};
use super::link::{Door, LinkNews, Links};
use super::listen::listeners::Listeners;
use super::ptys::Ptys;
use super::readers::Readers;
use super::resources::{Ground, JobOutcome, Resources};
use super::sources::{Clock, CountedIds, RandomIds};
use super::states::StateWriters;
use super::upkeep::Upkeep;
use super::watch::Loss;
use super::watches::Watches;
use crate::backend::meeting::Meeting;
use crate::backend::{Agents, Backend, Report};
use crate::host::effects::{ConnectionId, Ids, Input, Output, Timer};
use crate::host::log::ReplayWindow;
use crate::host::{self, Host};
use crate::versions::{Edges, Outgoing};
use crate::watches::engine::WatchReport as Watched;
use crate::wire::rpc::Incoming;

/// The folder, in that of the state, in which it is remembered what is not finished in others.
const UNFINISHED: &str = "unfinished";

/// In deterministic mode, everything that can run has run when agents had this many turns in a row
/// and said nothing.
const QUIET_TURNS: usize = 4;

struct Sidecar {
    options: RunOptions,
    host: Host,
    edges: Edges,
    /// Messages to a client that follow from one output; empty in between.
    told: Vec<Outgoing>,
    /// Messages to the core that follow from one of a client; empty in between.
    fed: Vec<Incoming>,
    agents: Agents,
    clock: Clock,
    ids: Box<dyn Ids>,
    /// Outputs of the core in this step.
    outputs: Vec<Output>,
    /// Some of that was caused by what a client said.
    outputs_of_client: bool,
    unsettled_bytes: usize,
    keeper: Keeper,
    /// None where everything is in memory.
    readers: Option<Readers>,
    /// Changes while messages wait for reads.
    changes: ChangedSince,
    resources: Resources,
    watches: Watches,
    ptys: Ptys,
    git: GitAsker,
    states: StateWriters,
    directories: Directories,
    /// Acceptor of connections.
    door: Door,
    links: Links,
    /// The processes that lend us their stdin and stdout; none where we have our own.
    fronts: Option<Fronts>,
    /// Listeners.
    listeners: Listeners,
    /// The agents in force; none where they cannot change.
    configuration: Option<Configuration>,
    /// Provider ids of the agents that the program has built in.
    built_in: Vec<String>,
    /// Looks at what others may change under us.
    upkeep: Option<Upkeep>,
    timers: Vec<(Instant, Timer)>,
    /// Set when nothing is left to do but to write what waits.
    done: Option<Exit>,
    /// Set when the input did not end but fail.
    unreadable: Option<std::io::Error>,
    /// Set when we were asked to leave: by when.
    leave_by: Option<Instant>,
    /// Until when the agents are waited for, once they have been told to leave.
    agents_by: Option<Instant>,
    /// We were asked to leave twice.
    leaves_at_once: bool,
    /// Set when nobody can send anything any more.
    input_has_ended: bool,
    /// The time that turns were given after the end of input is up.
    drained: bool,
}

impl Sidecar {
    /// A loop that has not begun, and where what happens to it comes from.
    fn new(
        options: RunOptions,
        backends: Vec<Box<dyn Backend>>,
        opened: Opened,
        lost: mpsc::UnboundedReceiver<Loss>,
        knocks: mpsc::UnboundedReceiver<Knock>,
    ) -> (Self, Events) {
        let Opened { keeper, start, told: kept, readers } = opened;
        let (agents, reports, met) = Agents::new(backends);
        let described = agents.describe();
        let providers = described.iter().map(|agent| agent.info.provider.clone()).collect();
        let host = Host::new(host::Config {
            server_info: ahp_types::commands::Implementation {
                name: env!("CARGO_PKG_NAME").to_owned(),
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                title: None,
            },
            agents: described,
            root_schema: host::nothing_to_configure(),
            replay_window: ReplayWindow::default(),
            start,
            limits: options.limits,
            memory_budget: if readers.is_empty() { usize::MAX } else { options.memory_budget },
        });
        let (clock, ids): (_, Box<dyn Ids>) = if options.deterministic {
            (Clock::Fixed, Box::new(CountedIds::default()))
        } else {
            (Clock::Real(std::time::Instant::now()), Box::new(RandomIds))
        };
        let has_store = !readers.is_empty();
        let (readers, read) = Readers::new(readers, options.limits);
        let (door, links) = Door::new(options.outbox);
        let (directories, looked) = Directories::new();
        let ground = Ground::new(&options.write_roots, &options.own_files);
        let ground = match &options.state_folder {
            Some(folder) => ground.remembering(folder.join(UNFINISHED)),
            None => ground,
        };
        let scratch = scratch_of(&options.state);
        let program = GitProgram {
            guard: options.guard.clone(),
            folder: scratch,
            checkpoint_file_bytes_max: options.limits.checkpoint_file_bytes_max,
            filters: options.git_filters.clone(),
        };
        let (git, heard_of_git) = GitAsker::new(program, &options.own_files);
        let (watches, watched) = Watches::new(options.deterministic, ground.own());
        let (resources, answered) = Resources::new(ground);
        let scripts = shell_scripts(&options);
        let (ptys, heard_of_ptys) = Ptys::new(options.guard.clone(), scripts, options.deterministic);
        let (states, pieces) = StateWriters::new();
        let listeners = Listeners::new(options.state_folder.clone());
        let sidecar = Self {
            edges: Edges::new(providers),
            options,
            host,
            told: Vec::new(),
            fed: Vec::new(),
            agents,
            clock,
            ids,
            outputs: Vec::new(),
            outputs_of_client: false,
            unsettled_bytes: 0,
            keeper,
            readers: has_store.then_some(readers),
            changes: ChangedSince::default(),
            resources,
            watches,
            ptys,
            git,
            states,
            directories,
            door,
            links: Links::default(),
            fronts: None,
            listeners,
            configuration: None,
            built_in: Vec::new(),
            upkeep: None,
            timers: Vec::new(),
            done: None,
            unreadable: None,
            leave_by: None,
            agents_by: None,
            leaves_at_once: false,
            input_has_ended: false,
            drained: false,
        };
        (
            sidecar,
            Events {
                links,
                reports,
                met,
                kept,
                read,
                looked,
                resources: answered,
                watches: watched,
                ptys: heard_of_ptys,
                git: heard_of_git,
                pieces,
                knocks,
                upkeep: mpsc::unbounded_channel().1,
                lost,
            },
        )
    }

    async fn run_to_the_end(&mut self, events: Events) -> anyhow::Result<Exit> {
        let exit = self.run(events).await;
        self.let_nobody_in().await;
        self.stop_agents().await;
        self.close_store();
        exit
    }

    /// Ends the ways in. Whoever comes from now on starts another host, which waits until we let go
    /// of the folder.
    async fn let_nobody_in(&mut self) {
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

    /// Finishes the start, before anything is received.
    fn begin(&mut self) -> std::io::Result<()> {
        self.readers.as_mut().map_or(Ok(()), Readers::begin)
    }

    /// Takes in what has happened, and what clients have said, and ends the step.
    async fn turn(&mut self, events: &mut Events) -> anyhow::Result<Option<Exit>> {
        let event = events.next(self.wants()).await;
        let is_pty = matches!(event, LoopEvent::Pty(_));
        let mut exit = self.take_in(event)?;
        if is_pty {
            // Another thread reports them, as fast as they are heard: whoever reads and writes here
            // has a turn in between.
            tokio::task::yield_now().await;
        }
        if exit.is_none() && self.options.deterministic {
            exit = self.run_until_quiet(events).await?;
        }
        if exit.is_none() {
            exit = self.hear_clients(events).await?;
        }
        if exit.is_some() {
            return Ok(exit);
        }
        self.settle();
        self.cut_off();
        if (self.drained || self.idle().is_some()) && self.keeper.is_failing() {
            bail!(NOT_TOLD);
        }
        self.start_resources();
        let written = self.links.iter().all(|link| link.outbox.bytes() == 0);
        if self.input_has_ended && self.keeper.is_beyond_hope() && written {
            bail!("the store took nothing any more: what was not told is lost");
        }
        Ok(self.finished())
    }

    fn wants(&self) -> Wants {
        let held_back = self.links.iter().filter_map(|link| link.outbox.due()).min();
        let over = self.links.iter().filter_map(|link| link.leave_by);
        let nobody_comes = self.fronts.as_ref().and_then(Fronts::gives_up_at).map(Instant::from_std);
        let timers = self.timers.iter().map(|&(at, _)| at);
        Wants {
            reports: self.has_room_for_agents(),
            ptys: self.has_room_for_agents(),
            due: timers
                .chain(self.leave_by)
                .chain(over)
                .chain(self.next_cut())
                .chain(nobody_comes)
                .chain(held_back.map(Instant::from_std))
                .min(),
            unheard: self.leave_by.is_none() && self.has_clients_to_hear(),
        }
    }

    /// Takes in one event. The one place where all of them are.
    fn take_in(&mut self, event: LoopEvent) -> anyhow::Result<Option<Exit>> {
        match event {
            LoopEvent::Link(LinkNews::Opened(link)) => {
                self.edges.open(link.id, link.terms.assume_version);
                let default_directory = link.terms.default_directory.clone();
                self.feed(Input::Opened { connection: link.id, default_directory });
                self.links.insert(*link);
                self.fronts.iter_mut().for_each(Fronts::client_has_come);
            }
            LoopEvent::Link(LinkNews::Heard(connection)) => self.links.note_news(connection),
            LoopEvent::Link(LinkNews::Written(connection, written)) => {
                return self.hear_writer(connection, written)
            }
            LoopEvent::Reports(reports) => reports.into_iter().for_each(|report| self.hear_report(report)),
            LoopEvent::Met(provider, met) => self.hear_meeting(provider, *met),
            LoopEvent::Kept(kept) => self.hear_keeper(kept),
            LoopEvent::Read(connection, read) => self.hear_reader(connection, read),
            LoopEvent::Looked(connection, findings) => self.hear_findings(connection, findings),
            LoopEvent::Resource(answered) => {
                self.resources.answered(&answered);
                self.hear_job(answered.connection, answered.answer);
            }
            LoopEvent::Begun(connection, begun) => self.hear_watches(connection, begun),
            LoopEvent::BegunOwn(channel) => self.feed(Input::Watches(channel)),
            LoopEvent::Changed(Watched { watch, changes }) => {
                self.feed(Input::FilesChanged { watch, changes })
            }
            LoopEvent::Pty(report) => {
                if let Some((terminal, event)) = self.ptys.hear(report) {
                    self.feed(Input::Pty(terminal, event));
                }
            }
            LoopEvent::Git(news) => {
                for outcome in self.git.hear(news) {
                    self.hear_git(outcome);
                }
            }
            LoopEvent::Piece(piece) => self.hear_piece(piece),
            LoopEvent::Link(LinkNews::Leaves(connection)) => self.cut_short(connection),
            LoopEvent::Knock(knock) => self.hear_knock(*knock),
            LoopEvent::Upkeep(news) => return Ok(self.hear_upkeep(news)),
            LoopEvent::Lost(loss) => return Ok(self.hear_loss(loss)),
            LoopEvent::Due if self.leave_by.is_some_and(|by| by <= Instant::now()) => {
                return Ok(Some(self.done.unwrap_or(Exit::Done)));
            }
            LoopEvent::Due => self.fire_timers(),
            LoopEvent::Unheard => {}
        }
        Ok(None)
    }

    /// Returns the number of bytes in flight to clients that are in no queue.
    fn coming_bytes(&self) -> usize {
        self.keeper.held_bytes() + self.unsettled_bytes
    }

    /// Begins with reading resources, for clients that have room for the answers.
    fn start_resources(&mut self) {
        let coming = self.coming_bytes();
        let links = &mut self.links;
        self.resources.start(|connection| {
            links.get_mut(connection).is_none_or(|link| link.outbox.has_room_for_clients(coming))
        });
    }

    fn hear_report(&mut self, report: Report) {
        if let Some((chat, event)) = self.agents.hear(report) {
            self.feed(Input::Agent(chat, event));
        }
    }

    fn hear_job(&mut self, connection: ConnectionId, outcome: JobOutcome) {
        match outcome {
            JobOutcome::Frame(frame) => self.answer(connection, &frame),
            // The core hears of what it has asked for in any case.
            JobOutcome::Core(id, input) => {
                self.mark_answered(connection, &id);
                self.feed(*input);
            }
        }
    }

    fn hear_git(&mut self, outcome: GitOutcome) {
        match outcome {
            GitOutcome::Core(input) => self.feed(input),
            GitOutcome::Client(connection, outcome) => self.hear_job(connection, outcome),
        }
    }

    fn hear_meeting(&mut self, provider: String, met: Meeting) {
        if let Some((_, why)) = &met.failure {
            tracing::info!(agent = provider, why, "an agent cannot be asked for its settings");
        }
        self.feed(Input::Probed { provider, said: Box::new(met.said) });
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
            self.drained |= timer == Timer::Drain;
            self.feed(Input::Timer(timer));
        }
    }

    /// Lets agents run until they wait for a client or a timer, or until there is a reason to
    /// leave.
    async fn run_until_quiet(&mut self, events: &mut Events) -> anyhow::Result<Option<Exit>> {
        let mut quiet = 0;
        while quiet < QUIET_TURNS {
            self.end_step();
            self.start_resources();
            let event = if self.waits_for_others() {
                Some(events.next(Wants { ptys: self.has_room_for_agents(), ..Wants::default() }).await)
            } else {
                tokio::task::yield_now().await;
                quiet += 1;
                events.now(Wants { reports: true, ptys: true, ..Wants::default() }).await
            };
            let Some(event) = event else { continue };
            quiet = 0;
            let exit = self.take_in(event)?;
            if exit.is_some() {
                return Ok(exit);
            }
        }
        for Watched { watch, changes } in self.watches.step() {
            self.feed(Input::FilesChanged { watch, changes });
        }
        self.settle();
        Ok(None)
    }

    /// Returns whether something is in progress that is neither an agent's nor a client's.
    fn waits_for_others(&self) -> bool {
        let reads = self.readers.as_ref().is_some_and(|readers| !readers.is_idle());
        let holds = self.links.iter().any(|link| link.held.is_some());
        !self.keeper.is_settled()
            || !self.resources.is_idle()
            || !self.ptys.are_settled()
            || !self.git.is_idle()
            || !self.has_room_for_agents()
            || reads
            || holds
    }
}
