//! The core: one synchronous state machine that owns every channel, sequences every action, and
//! decides.
//!
//! Owns: the owners below, and the order in which they react.
//! Never: does I/O, reads a clock, draws random numbers, waits, or knows a protocol version other
//! than the newest. Time, ids and the outcomes of all I/O are arguments; equal inputs give equal
//! outputs, byte for byte.
//!
//! In reading order: [`effects`] (inputs and outputs); `ledger` (states of all channels, the
//! sequence of actions on them, and who receives them) with `channels` (the kinds of channels),
//! `model` (the shapes of sessions and chats) and [`state`](crate::state) (reducers); `router`
//! (leads each input to an owner, and each fact to the owners that react, see `facts`).
//!
//! Owners are `agents` (agents, their credentials and conversations), `catalogue` (sessions and
//! chats as entries: created, listed, forked, moved, saved, evicted, loaded), `changes`
//! (changesets, checkpoints, repositories), `chats` (turns and their content), `clients`
//! (connections, active clients, disconnects), `configuration` (models, settings, directories),
//! `customizations` (MCP servers of agents), `plugins` (of clients), `relays` (files that clients
//! serve), `terminals`, `watches`, `annotations`, `canvases` and `automations`. An owner knows the
//! ledger and its arguments, never the host; tests enforce that. Owners call each other directly
//! where one step needs both; a fact (`facts`) is for a reaction that must wait until its cause is
//! complete, or that would close a cycle of modules.
//!
//! Also here: `actions` (what clients may dispatch) with `refusal` (reasons against it), [`limits`]
//! (size limits), `locale` (the host's own texts), and `cursors` (positions in paged lists).
#![doc = include_str!("README.md")]
#![deny(clippy::disallowed_methods)]

mod actions;
mod agents;
mod annotations;
mod automations;
mod canvases;
mod catalogue;
mod changes;
mod channels;
mod chats;
mod clients;
mod configuration;
mod cursors;
mod customizations;
pub mod effects;
mod facts;
mod ledger;
pub mod limits;
mod locale;
mod model;
pub mod plugins;
mod refusal;
mod relays;
mod router;
mod terminals;
#[cfg(test)]
mod testing;
mod watches;

use std::collections::{BTreeMap, HashMap, VecDeque};

use ahp_types::commands::Implementation;
use ahp_types::state::ConfigSchema;
use bytes::Bytes;
use effects::{AgentDescription, ChatKey, ClientMcp, Command, Ids, Now, Output};
use facts::Fact;
use jiff::Timestamp;

use crate::wire::errors::RpcError;

pub use ledger::log;
pub use router::Host;

pub use actions::ClientAction;
pub use channels::client_actions;

pub use agents::adoption::ADOPT;
pub use agents::stored_description;
pub use automations::{AutomationRules, AutomationSettings, TimeZones, ZoneDatabase};
pub use catalogue::loaded::{LoadedSession, StoredSummary};
pub use catalogue::sessions::listing;
pub use catalogue::{idle, rows};
pub use configuration::directories::Findings;

/// Settings of the host, fixed at its start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name and version of the program, sent to clients.
    pub server_info: Implementation,
    /// Agents as described by the operator, in the order offered; the first is the default.
    pub agents: Vec<AgentDescription>,
    /// MCP servers of clients' plugins that the operator allows.
    pub client_mcp: ClientMcp,
    /// Settings of automations; `None` if they are off.
    pub automations: Option<AutomationSettings>,
    /// Facts for clients of 1.1.0 of the protocol; `None` if the core speaks 1.0.0.
    pub next: Option<NextRelease>,
    /// Schema of the host's own configuration, which clients can change.
    pub root_schema: ConfigSchema,
    /// Bounds of the replay log.
    pub replay_window: log::ReplayWindow,
    /// State that the previous process left.
    pub start: Start,
    /// Maximum memory of idle sessions, in bytes; beyond it they are evicted to the store.
    /// `usize::MAX` without a store: nothing is evicted.
    pub memory_budget: usize,
    /// Size and time limits.
    pub limits: limits::Limits,
}

/// Facts that only clients of 1.1.0 of the protocol receive.
#[derive(Debug, Clone, Copy)]
pub struct NextRelease {
    /// Form of this machine's paths: `posix` or `windows`.
    pub path_style: &'static str,
}

/// State of the previous process, from which a host continues.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// Latest sequence number that may have been assigned; the next one is higher.
    pub head: u64,
    /// Latest key that may have been assigned; the next one is higher.
    pub last_key: u64,
    /// Number of sessions in the store.
    pub sessions: u64,
    /// Set if cursors of the previous process's clients are valid: the sequence continues.
    pub continues: bool,
    /// Checksum of the agents as last sent to clients; `None` if never sent.
    pub agents: Option<u32>,
    /// Stored self-descriptions of agents, by provider id; JSON text.
    pub descriptions: Vec<(String, Bytes)>,
    /// Stored rows of channels that exist as long as the host does.
    pub channels: Vec<effects::ChannelRow>,
}

/// Returns the schema of a configuration without settings.
pub fn nothing_to_configure() -> ConfigSchema {
    ConfigSchema { r#type: "object".to_owned(), properties: HashMap::new(), required: None }
}

/// Maximum number of client ids that are remembered to recognize returning clients.
const CLIENTS_MAX: usize = 256;

/// Context that the caller lends to one step.
struct Step<'a> {
    now: Now,
    ids: &'a mut dyn Ids,
    out: &'a mut Vec<Output>,
    /// Stored actions after the cursor of the `reconnect` that is being handled.
    past: Option<effects::Past>,
    /// Results of looking up the directories that the message names.
    findings: Findings,
    /// Watches that the message subscribes to and that could not start, with the errors.
    refused_watches: BTreeMap<String, RpcError>,
    /// Facts without a reaction yet, oldest first.
    facts: VecDeque<Fact>,
}

impl Step<'_> {
    fn emit(&mut self, output: Output) {
        self.out.push(output);
    }

    /// Returns the milliseconds since a wall-clock time; 0 if it is absent, invalid or future.
    fn lasted_since(&self, started_at: Option<&str>) -> u64 {
        let started = started_at.and_then(|start| start.parse::<Timestamp>().ok());
        let since = started.map_or(0, |start| self.now.unix_ms - start.as_millisecond());
        u64::try_from(since).unwrap_or(0)
    }

    fn send_to_agent(&mut self, chat: ChatKey, command: Command) {
        self.emit(Output::Agent(chat, Box::new(command)));
    }

    /// Returns the wall-clock time in the protocol's format.
    fn timestamp(&self) -> String {
        let time = Timestamp::from_millisecond(self.now.unix_ms).unwrap_or(Timestamp::UNIX_EPOCH);
        format!("{time:.3}")
    }
}
