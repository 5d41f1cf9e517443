//! The core: one synchronous state machine that owns every channel, sequences every action, and
//! decides.
//!
//! Owns: the owners below, the order in which they react, and nothing else.
//! Never: does I/O, reads a clock, rolls dice, waits, or knows a version of the protocol other than
//! the newest. Time, ids and the outcomes of everything outside are arguments; the same inputs give
//! the same outputs, byte for byte.
//!
//! In reading order: [`effects`] (inputs and outputs); `ledger` (states of all channels, the
//! sequence of actions on them, and who receives them) with `channels` (the kinds of channels),
//! `model` (the shapes of sessions and chats) and [`state`](crate::state) (reducers); `router`
//! (from an input to an owner, and from what has happened to those who react, see `facts`).
//!
//! Owners are `agents` (what agents are, their credentials and conversations), `catalogue`
//! (sessions and chats as entries: created, listed, forked, moved, saved, evicted, loaded),
//! `changes` (changesets, checkpoints, repositories), `chats` (turns and what is in them),
//! `clients` (connections, active clients, disconnects), `configuration` (models, settings,
//! directories), `relays` (files that clients serve), `terminals`, `watches` and `annotations`. An
//! owner knows the ledger and what it is lent, never the host; tests hold that. Functions of owners
//! call each other directly where one step needs both; a fact (`facts`) is for what must wait until
//! its cause is done, or would close a circle of files.
//!
//! Beside them: `actions` (what clients may dispatch) with `refusal` (why not), [`limits`] (how
//! large things may get), `locale` (the host's own words), and `cursors` (what names the next
//! page).
#![doc = include_str!("README.md")]
#![deny(clippy::disallowed_methods)]

mod actions;
mod agents;
mod annotations;
mod catalogue;
mod changes;
mod channels;
mod chats;
mod clients;
mod configuration;
mod cursors;
pub mod effects;
mod facts;
mod ledger;
pub mod limits;
mod locale;
mod model;
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
use effects::{AgentDescription, ChatKey, Command, Ids, Now, Output};
use facts::Fact;
use jiff::Timestamp;

use crate::wire::errors::RpcError;

pub use ledger::log;
pub use router::Host;

pub use actions::ClientAction;
pub use channels::client_actions;

pub use agents::stored_description;
pub use catalogue::loaded::{LoadedSession, StoredSummary};
pub use catalogue::sessions::listing;
pub use catalogue::{idle, rows};
pub use configuration::directories::Findings;

/// Settings of the host, given once, at its start.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name and version of the program, sent to clients.
    pub server_info: Implementation,
    /// The agents as their operator describes them, in the order in which they are offered; the
    /// first one is the default.
    pub agents: Vec<AgentDescription>,
    /// Schema of the configuration of the host itself, which clients can change.
    pub root_schema: ConfigSchema,
    /// Bounds of the replay log.
    pub replay_window: log::ReplayWindow,
    /// State that the process before this one left.
    pub start: Start,
    /// Maximum memory of idle sessions, in bytes; beyond it they are evicted to the store.
    /// `usize::MAX` without a store: nothing is evicted.
    pub memory_budget: usize,
    /// How large things may get.
    pub limits: limits::Limits,
}

/// State from which a host goes on.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// The number before the first one that may be given.
    pub head: u64,
    /// The last key that was given.
    pub last_key: u64,
    /// Number of sessions in the store.
    pub sessions: u64,
    /// The sequence goes on where another process ended it, so that cursors of its clients mean
    /// something.
    pub continues: bool,
    /// The checksum of what clients were told of the agents, if any were told.
    pub agents: Option<u32>,
    /// Saved self-descriptions of agents, by provider id; JSON text.
    pub said: Vec<(String, Bytes)>,
    /// Saved rows of channels that exist as long as the host does.
    pub channels: Vec<effects::ChannelRow>,
}

/// The schema of a configuration in which there is nothing to configure.
pub fn nothing_to_configure() -> ConfigSchema {
    ConfigSchema { r#type: "object".to_owned(), properties: HashMap::new(), required: None }
}

/// Maximum number of remembered client ids, by which a client that comes back is known.
const CLIENTS_MAX: usize = 256;

/// The longest client id, in bytes: it is remembered, and sent with each action of its client.
const CLIENT_ID_BYTES_MAX: usize = 1024;

/// Context that the caller lends to one step.
struct Step<'a> {
    now: Now,
    ids: &'a mut dyn Ids,
    out: &'a mut Vec<Output>,
    /// Saved actions after the cursor of the `reconnect` that is being handled.
    past: Option<effects::Past>,
    /// Results of looking up the directories that the message names.
    findings: Findings,
    /// The watches that have not begun which the message follows, each with why.
    refused_watches: BTreeMap<String, RpcError>,
    /// Facts that nobody has reacted to yet, the oldest first.
    facts: VecDeque<Fact>,
}

impl Step<'_> {
    fn emit(&mut self, output: Output) {
        self.out.push(output);
    }

    /// Returns how long something has lasted that began at this time by the wall clock, in
    /// milliseconds; 0 where that cannot be told.
    fn lasted_since(&self, started_at: Option<&str>) -> u64 {
        let started = started_at.and_then(|start| start.parse::<Timestamp>().ok());
        let since = started.map_or(0, |start| self.now.unix_ms - start.as_millisecond());
        u64::try_from(since).unwrap_or(0)
    }

    /// Sends a command to the agent of a chat.
    fn send_to_agent(&mut self, chat: ChatKey, command: Command) {
        self.emit(Output::Agent(chat, Box::new(command)));
    }

    /// The wall clock's time as the protocol writes it.
    fn timestamp(&self) -> String {
        let time = Timestamp::from_millisecond(self.now.unix_ms).unwrap_or(Timestamp::UNIX_EPOCH);
        format!("{time:.3}")
    }
}
