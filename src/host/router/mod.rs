//! Router: the steps of each input that involve several owners.
//!
//! Owns: [`Host`], which holds the owners of all state; those steps and their order; when turns
//! begin and end; which idle sessions are evicted; and which owners react to a fact.
//! Never: holds other state, or decides what an action means.
//!
//! In reading order: `requests` and `answers`, `connections` and `disconnects`; `kinds` (actions
//! and facts by kind of channel), `dispatch` (actions of clients), `chat_actions`; `turns`,
//! `reports` (events of agents), `commands` (in terminals); `adoption` (of sessions that agents
//! store), `chat_requests`, `disposal`, `moves`; `plugin_steps` and `automation_steps`;
//! `persistence` (save, evict, restore), and `lookups` (data to read first).

mod adoption;
mod answers;
mod automation_steps;
mod chat_actions;
mod chat_requests;
mod commands;
mod connections;
mod disconnects;
mod dispatch;
mod disposal;
mod kinds;
mod lookups;
mod moves;
mod persistence;
mod plugin_steps;
mod reports;
mod requests;
mod turns;

use std::collections::{BTreeMap, VecDeque};

use ahp_types::actions::{RootAgentsChangedAction, StateAction};
use ahp_types::commands::Implementation;

use crate::host::agents::AgentRegistry;
use crate::host::automations::{runs, schedules};
use crate::host::catalogue::{summaries, Catalogue};
use crate::host::changes::Changes;
use crate::host::chats::calls;
use crate::host::configuration::directories::Findings;
use crate::host::effects::{ClientMessage, Frame, Ids, Input, Now, Output, Prefetched, Record, Timer};
use crate::host::ledger::{Connection, Ledger};
use crate::host::model::ChannelId;
use crate::host::router::adoption::AnsweredRequest;
use crate::host::terminals::ptys;
use crate::host::{agents, clients, customizations, plugins, relays, terminals, watches, Config, Step};
use crate::wire::methods::Method;
use crate::wire::rpc::{Incoming, MethodName, RequestId};

/// State machine of the host, driven by [`Host::handle`].
#[derive(Debug)]
pub struct Host {
    /// Name and version of the host, for clients.
    server_info: Implementation,
    ledger: Ledger,
    agents: AgentRegistry,
    catalogue: Catalogue,
    clients: clients::Clients,
    relays: relays::Relays,
    plugins: plugins::Plugins,
    summaries: summaries::Summaries,
    changes: Changes,
}

impl Host {
    /// Creates a host without sessions.
    pub fn new(mut config: Config) -> Self {
        let agents = agents::AgentRegistry::at_start(std::mem::take(&mut config.agents), &config.start);
        let mut ledger = Ledger::at_start(&config);
        ledger.channels.root.state.agents = agents.infos(&ledger.channels.root.decisions);
        Self {
            ledger,
            catalogue: Catalogue::new(config.memory_budget),
            clients: clients::Clients::default(),
            relays: relays::Relays::default(),
            plugins: plugins::Plugins::default(),
            summaries: summaries::Summaries::default(),
            agents,
            changes: Changes::new(config.limits.checkpoint_timeout_ms),
            server_info: config.server_info,
        }
    }

    /// Handles one input, and appends all outputs that follow from it to `out`, in order.
    ///
    /// The caller must send [`Input::BatchEnded`] after each batch of inputs, and [`Input::Save`]
    /// before it carries out any output.
    pub fn handle(&mut self, now: Now, ids: &mut dyn Ids, input: Input, out: &mut Vec<Output>) {
        if let Input::Received { connection, message, prefetched: None } = &input {
            if let Some(id) = id_of_ping(message) {
                // A ping changes nothing, so no owner has to react.
                let answer = Frame::result(id.clone(), Method::Ping, answers::NULL);
                return out.push(Output::Frame(*connection, answer));
            }
        }
        // The reports of agents are many, change no connection and answer no client's fetch.
        let may_concern_plugins = !matches!(input, Input::Agent(..));
        let refused_watches = BTreeMap::new();
        let facts = VecDeque::new();
        let step = &mut Step { now, ids, out, past: None, findings: Findings::new(), refused_watches, facts };
        match input {
            Input::Opened { connection, default_directory } => {
                self.announce_agents(step);
                runs::recover(&mut self.ledger, step);
                self.ledger
                    .presence
                    .connections
                    .insert(connection, Connection { default_directory, ..Connection::default() });
            }
            Input::Received { connection, message, prefetched } => {
                if let Some(prefetched) = prefetched {
                    self.apply_prefetched(step, *prefetched);
                }
                self.dispatch(step, connection, message);
            }
            Input::Ended { connection, how, expected } => self.disconnect(step, connection, how, expected),
            Input::Closed(connection) => self.close_connection(step, connection),
            Input::NotAdmitted(connection) => disconnects::remove_client(
                &mut self.ledger,
                &mut self.agents,
                &mut self.clients,
                &mut self.changes,
                step,
                connection,
            ),
            Input::Agent(chat, event) => self.agent_reports(step, chat, event),
            Input::Agents(agents, client_mcp) => {
                self.ledger.channels.root.client_mcp = client_mcp;
                self.agents.agents_are_configured(&mut self.ledger, step, agents);
                customizations::agents_have_changed(&mut self.ledger, step);
            }
            Input::Probed { provider, description } => {
                self.agents.merge_description(&mut self.ledger, step, &provider, *description)
            }
            Input::Timer(timer) => self.timer_expired(step, timer),
            Input::Pty(terminal, event) => self.pty_reports(step, terminal, event),
            Input::Git(number, report) => {
                if let Some(chat) = self.changes.git_reports(&mut self.ledger, step, number, report) {
                    self.advance(step, chat);
                }
            }
            Input::DirectoriesChecked(run, findings) => {
                automation_steps::begin_run(self, step, run, findings)
            }
            Input::Watches(watch) => self.changes.statuses.repository_watch_started(&watch),
            Input::WatchFailed(watch) => self.changes.statuses.repository_watch_failed(&watch),
            Input::FilesChanged { watch, changes } => {
                self.changes.statuses.repository_changed(&self.ledger, step, &watch, &changes);
                watches::send_file_changes(&self.ledger, step, &watch, changes);
            }
            Input::Reverted { request: taken, outcomes } => {
                self.changes.files_reverted(&mut self.ledger, step, *taken, outcomes)
            }
            Input::WatchesLackRoom(connection) => {
                watches::evict_unsubscribed_watches(&mut self.ledger, step, connection)
            }
            Input::Listed { connection, id, page, listed } => {
                disposal::answer_list(
                    &mut self.ledger,
                    &self.catalogue,
                    &mut self.summaries,
                    step,
                    (connection, id),
                    &page,
                    listed,
                );
            }
            Input::AgentSessions { connection, id, request, answer, known } => {
                let (ledger, agents, changes) = (&mut self.ledger, &self.agents, &mut self.changes);
                let answered = AnsweredRequest { connection, id, request: *request, answer, known };
                adoption::agent_sessions_answered(ledger, agents, changes, step, answered);
            }
            Input::Shutdown(how) => {
                runs::sleep(&mut self.ledger);
                self.shut_down(step, how);
            }
            Input::BatchEnded => {
                self.summaries.settle(&mut self.ledger, step);
                self.finish_disconnects(step);
            }
            Input::Save => persistence::save(
                &mut self.ledger,
                &mut self.changes,
                &mut self.catalogue,
                &self.summaries,
                step,
            ),
            Input::Restored(saved) => self.restore(step, *saved),
            Input::Unreadable { uris, reason } => {
                self.ledger.note_unreadable(uris.into_iter().map(|uri| (uri, reason.clone())));
            }
            Input::Failing(failing) => {
                self.ledger.set_failing(failing);
                self.summaries.send_held(&mut self.ledger, step);
            }
        }
        self.deliver(step);
        if may_concern_plugins {
            plugin_steps::settle_plugins(&mut self.ledger, &mut self.plugins, &mut self.relays, step);
            self.deliver(step);
        }
        watches::settle_watches(&mut self.ledger, step);
        terminals::settle_terminals(&mut self.ledger, step);
        self.changes.settle(&mut self.ledger, step);
        disconnects::check_done(&self.ledger, &mut self.clients, &self.changes, step);
        self.check_disconnects();
    }

    fn timer_expired(&mut self, step: &mut Step<'_>, timer: Timer) {
        match timer {
            Timer::Drain => self.drain_expired(step),
            Timer::Return(connection) => self.clients.return_expired(&mut self.ledger, step, connection),
            Timer::Disconnect(connection) => self.disconnect_expired(step, connection),
            Timer::Absence(number) => self.clients.absence_expired(&mut self.ledger, step, number),
            Timer::UnsubscribedSession(session, number) => {
                self.unsubscribed_session_expired(step, session, number);
            }
            Timer::Watch(watch, number) => {
                watches::unsubscribed_watch_expired(&mut self.ledger, step, watch, number)
            }
            Timer::Automations(number) => schedules::timer_expired(&mut self.ledger, step, number),
            Timer::AutomationRun(run) => automation_steps::run_timed_out(self, step, run),
            Timer::AutomationRetry(run) => runs::retry(&mut self.ledger, step, run),
            Timer::Relay(number) => self.relays.time_out(step, number),
            Timer::Plugin(number) => {
                let (plugins, relays) = (&mut self.plugins, &mut self.relays);
                plugin_steps::plugin_timed_out(&mut self.ledger, plugins, relays, step, number);
            }
            Timer::Refresh(session) => self.changes.statuses.debounce_expired(&mut self.ledger, session),
            Timer::Linger(session, number) => self.changes.statuses.linger_expired(session, number),
            Timer::Checkpoint(number) => {
                if let Some(chat) = self.changes.checkpoints.checkpoint_timed_out(&mut self.ledger, number) {
                    self.advance(step, chat);
                }
            }
            Timer::Terminal(terminal, number) => {
                ptys::terminal_expired(&mut self.ledger, step, terminal, number);
            }
            Timer::Command(terminal) => self.command_timed_out(step, terminal),
            Timer::Summaries => self.summaries.send_held(&mut self.ledger, step),
            Timer::Recovered(session) => step.emit(Output::Record(Record::Recovered(session))),
            Timer::Trial(session) => step.emit(Output::Record(Record::Survived(session))),
        }
    }

    fn apply_prefetched(&mut self, step: &mut Step<'_>, prefetched: Prefetched) {
        let Prefetched { past, findings, restored, watches, unreadable } = prefetched;
        watches::apply_watches(&mut self.ledger, step, watches);
        for saved in restored {
            self.restore(step, saved);
        }
        // Channels that were restored since the lookup can be read.
        let absent = unreadable.into_iter().filter(|(uri, _)| !self.ledger.channels.by_uri.contains_key(uri));
        let absent: Vec<_> = absent.collect();
        self.ledger.note_unreadable(absent);
        (step.past, step.findings) = (past, findings);
    }

    /// Sends the agents if they differ from those that the previous process sent. Its clients may
    /// reconnect with the state that they know, and receive only the actions that they missed.
    fn announce_agents(&mut self, step: &mut Step<'_>) {
        if self.agents.note_agents(&self.ledger, step) && self.ledger.continues {
            let agents = self.ledger.channels.root.state.agents.clone();
            let changed = StateAction::RootAgentsChanged(RootAgentsChangedAction { agents });
            self.ledger.sequence(step, ChannelId::ROOT, changed, None);
        }
        ptys::announce_ended_terminals(&mut self.ledger, step);
    }

    /// Returns the number of running turns.
    pub fn running_turns(&self) -> usize {
        calls::running_chats(&self.ledger).len()
    }
}

fn id_of_ping(message: &ClientMessage) -> Option<&RequestId> {
    match message {
        ClientMessage::Protocol(Incoming::Request {
            id, method: MethodName::Served(Method::Ping), ..
        }) => Some(id),
        _ => None,
    }
}
