//! A host in memory with everything around it: clients behind their edges and outboxes, simulated
//! backends, a clock that moves when told to.
//!
//! `requests` is what clients ask, `connections` how it reaches the host, `hearing` what the host
//! puts out.
//!
//! Owns: carrying a schedule out, step by step, and what every single step must obey: each request
//! and each action is answered once, each sequenced action reaches exactly the subscribers of its
//! channel, in order.
//! Never: lets anything happen that is not in the schedule, until its end.

mod connections;
mod hearing;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ahp_sidecar::backend::mcp::{McpServer, McpTransport, SecretText};
use ahp_sidecar::backend::{script::Script, Backend};
use ahp_sidecar::conform::mirror::ChannelMirror;
use ahp_sidecar::host::effects::{
    ActionLine, AgentDescription, ChatKey, ClientMcp, ConnectionId, Event, Frame, Ids, Input, Now, Output,
    Prefetched, Record, SessionKey, Shutdown, Timer,
};
use ahp_sidecar::host::{listing, log::ReplayWindow, Config, Host, Start};
use ahp_sidecar::io::backlog::Backlog;
use ahp_sidecar::io::outbox::{Outbox, OutboxLimits};
use ahp_sidecar::state::texts::{TextSource, TurnText};
use ahp_sidecar::store::memory::Memory;
use ahp_sidecar::versions::dialect::Dialect;
use ahp_sidecar::versions::{Edges, Outgoing};
use ahp_sidecar::wire::action_lines::split_lines;
use ahp_sidecar::wire::annotations::annotations_uri;
use ahp_sidecar::wire::methods::Method;
use ahp_sidecar::wire::references::MessageReferences;
use ahp_sidecar::wire::rpc::Incoming;
use ahp_types::commands::{Implementation, ReconnectResult};
use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::state::{SessionLifecycle, SessionState, Snapshot, SnapshotState};
use anyhow::{ensure, Context, Result};
use bytes::Bytes;
use serde_json::{json, Value};

use super::agent::Agent;
use super::bridged::Bridged;
use super::checks;
use super::client::Mirror;
use super::lines::{self, Asked, Line};
use super::schedule::{Cursor, End, From, Report, Schedule, Step, Wish};
use super::speech;
use super::truth::Truth;

/// Time to wait for events of a backend that is a program, in a step of a schedule and when the
/// schedule is over.
const HEARD_FOR: Duration = Duration::from_millis(30);
const HEARD_AT_LAST_FOR: Duration = Duration::from_secs(100);

/// A mention that channels are gone stands between the lines under this mark, which no line begins
/// with.
const GONE: &[u8] = b"gone ";

/// The connection that looks at the state.
const OBSERVER: ConnectionId = ConnectionId(0);

/// The names that sessions are created under; the last ones are refused.
const NAMES: [&str; 7] = [
    "ahp-session:/1",
    "script:/2",
    "ahp-session:/3",
    "ahp-session:/1/deeper",
    "any:x",
    "ahp-chat:/1",
    "nonsense",
];

/// The names that further chats are opened under; the last ones are refused.
const CHATS: [&str; 6] =
    ["ahp-chat:/a", "ahp-chat:/b", "ahp-chat:/c", "ahp-chat:/a/deeper", "ahp-chat://default/x", "nonsense"];

/// Storage from which a text can be read again.
#[derive(Debug)]
struct Shelf(Vec<u8>);

impl TextSource for Shelf {
    fn read(&self) -> std::result::Result<Bytes, String> {
        Ok(Bytes::copy_from_slice(&self.0))
    }

    fn was_read(&self, _: &TurnText) {}
}

/// Runs a host through a schedule.
pub struct World {
    host: Host,
    ids: CountedIds,
    unix_ms: i64,
    monotonic_ms: u64,
    clients: Vec<Client>,
    connections: BTreeMap<ConnectionId, Connection>,
    edges: Edges,
    last_connection: u32,
    agents: BTreeMap<ChatKey, Agent>,
    /// Driver of backends that are programs; `None` if the schedule simulates them.
    bridged: Option<Bridged>,
    timers: Vec<Timer>,
    done: Vec<bool>,
    /// Sessions and chats that are gone since the step began.
    gone: Vec<String>,
    /// The URIs of the sessions and chats that are kept, and whose chats they are.
    sessions: BTreeMap<SessionKey, String>,
    chats: BTreeMap<ChatKey, (SessionKey, String)>,
    kept: Memory,
    merge: bool,
    backlog: Backlog,
    /// Number of times that turns were loaded for clients.
    loaded: usize,
    /// Start of the clock of the outboxes.
    begin: Instant,
    pub truth: Truth,
    /// Outputs of the host, in order.
    outputs: Vec<Output>,
    /// The texts of turns that the store could give back: none of them stays in memory longer than
    /// a step.
    shelved: Vec<TurnText>,
}

/// A client and its connection, if it has one.
pub struct Client {
    id: String,
    connection: Option<ConnectionId>,
    pub mirror: Mirror,
    last_seq: i64,
}

/// A connection, as the host knows it. The client may have lost it already.
struct Connection {
    outbox: Outbox,
    /// Channels that the host must deliver to the connection.
    subscribed: BTreeSet<String>,
    /// True if the request being answered returns the client to the root channel.
    returns_to_root: bool,
    client_id: Option<String>,
    /// The newest number that it was sent.
    sent: u64,
}

struct CountedIds(u64);

impl Ids for CountedIds {
    fn fresh(&mut self) -> String {
        self.0 += 1;
        format!("fresh-{}", self.0)
    }
}

/// Observations of a step while its outputs are checked.
#[derive(Default)]
struct Seen {
    /// Each action that was sequenced, by its number: its channel and its line.
    sequenced: BTreeMap<u64, (String, Bytes)>,
    /// Connections that received each action, by its sequence number.
    delivered: BTreeMap<u64, BTreeSet<ConnectionId>>,
    /// Answers to requests and to lines that are none.
    answers: Vec<(ConnectionId, Value)>,
    /// Actions that were answered to their sender alone, as they stand there.
    acknowledged: Vec<Value>,
    /// Origins of sequenced actions.
    origins: Vec<(String, i64)>,
    created: Vec<String>,
}

/// Adds MCP servers to an agent, of which one is off and one is unusable.
fn with_servers(mut agent: AgentDescription) -> AgentDescription {
    let servers = speech::SERVERS[..3].iter().map(|name| McpServer {
        client_id: None,
        name: (*name).to_owned(),
        uri: "file:///config.toml".to_owned(),
        range: None,
        agents: None,
        enabled: *name != "two",
        transport: match *name {
            "broken" => Err("broken".to_owned()),
            _ => Ok(McpTransport::Stdio {
                command: SecretText::literal(*name),
                folder: "/".into(),
                args: Vec::new(),
                env: BTreeMap::new(),
            }),
        },
    });
    agent.info.customizations = Some(servers.map(|server| server.customization()).collect());
    agent
}

impl World {
    /// Carries a schedule out and checks everything; returns what the host has put out.
    pub fn run(schedule: &Schedule) -> Result<Vec<Output>> {
        Self::new(schedule)?.play(schedule)
    }

    /// Runs the schedule with backends that are programs and report their own events.
    pub fn run_bridged(schedule: &Schedule) -> Result<Vec<Output>> {
        let mut world = Self::new(schedule)?;
        world.bridged = Some(Bridged::new("script"));
        world.play(schedule)
    }

    fn play(self, schedule: &Schedule) -> Result<Vec<Output>> {
        let mut world = self;
        for (at, step) in schedule.steps.iter().enumerate() {
            world.step(step).with_context(|| format!("at step {at}, {step:?}"))?;
        }
        world.end(schedule.end).context("at the end")?;
        Ok(world.outputs)
    }

    fn new(schedule: &Schedule) -> Result<Self> {
        let config = Config {
            server_info: Implementation { name: "host".to_owned(), version: None, title: None },
            client_mcp: ClientMcp::None,
            agents: vec![with_servers(Script.describe())],
            automations: None,
            next: None,
            root_schema: speech::root_schema(),
            replay_window: ReplayWindow { actions_max: schedule.window, ..ReplayWindow::default() },
            start: Start::default(),
            memory_budget: usize::MAX,
            limits: Default::default(),
        };
        let client = |number| Client {
            id: format!("client-{number}"),
            connection: None,
            mirror: Mirror::default(),
            last_seq: 0,
        };
        let mut world = Self {
            host: Host::new(config),
            ids: CountedIds(0),
            unix_ms: 1_700_000_000_000,
            monotonic_ms: 5_000,
            clients: (0..schedule.clients).map(client).collect(),
            connections: BTreeMap::new(),
            edges: Edges::new(vec!["script".to_owned()]),
            last_connection: 0,
            agents: BTreeMap::new(),
            bridged: None,
            timers: Vec::new(),
            done: Vec::new(),
            gone: Vec::new(),
            sessions: BTreeMap::new(),
            chats: BTreeMap::new(),
            kept: Memory::default(),
            merge: schedule.merge,
            backlog: Backlog::default(),
            loaded: 0,
            begin: Instant::now(),
            truth: Truth::default(),
            outputs: Vec::new(),
            shelved: Vec::new(),
        };
        world.open(OBSERVER)?;
        let begin = json!({ "clientId": "observer", "protocolVersions": ["1.0.0"] });
        ensure!(world.say(OBSERVER, &request(0, "initialize", begin))?.is_ok(), "no handshake");
        let root = world.observe(ROOT_RESOURCE_URI)?;
        world.truth.channels.insert(ROOT_RESOURCE_URI.to_owned(), ChannelMirror::new(root));
        for client in 0..world.clients.len() {
            world.initialize(client, 0)?;
        }
        Ok(world)
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match *step {
            Step::Time { ms, back } => {
                self.monotonic_ms += u64::from(ms);
                self.unix_ms += if back { -2 * i64::from(ms) } else { i64::from(ms) };
                Ok(())
            }
            Step::Settle => self.feed(Input::BatchEnded).map(|_| ()),
            Step::Timers => self.fire_timers(),
            Step::Read { client, bytes } => self.read(self.client(client), bytes.into()),
            Step::Compare => self.compare(),
            Step::Lose { client, heard } => self.lose(self.client(client), heard),
            Step::Reconnect { client, cursor, leave_out } => {
                self.reconnect(self.client(client), cursor, leave_out)
            }
            Step::Initialize { client, channels } => self.initialize(self.client(client), channels),
            Step::Subscribe { client, channel, turns, delay } => {
                self.subscribe(self.client(client), channel, turns, delay)
            }
            Step::Fetch { client, chat, from } => self.fetch(self.client(client), chat, from),
            Step::Unsubscribe { client, channel } => self.unsubscribe(self.client(client), channel),
            Step::Create { client, name, how } => self.create(self.client(client), name, how),
            Step::Dispose { client, session } => self.dispose(self.client(client), session),
            Step::OpenChat { client, session, name, how, from, turn } => {
                self.open_chat(self.client(client), session, name, (how, from, turn))
            }
            Step::CloseChat { client, chat } => self.close_chat(self.client(client), chat),
            Step::MoveChat { client, chat, to, after } => {
                self.move_chat(self.client(client), chat, to, after)
            }
            Step::List { client, limit } => self.list(self.client(client), limit),
            Step::Dispatch { client, chat, ref wish, damage } => {
                let Some(chat) = self.chat(chat) else { return Ok(()) };
                let client = self.client(client);
                let id = self.clients[client].id.clone();
                let (channel, mut action) = speech::say(&id, wish, damage, &chat, &self.truth);
                if let Some(bridged) = &mut self.bridged {
                    bridged.instruct(&mut action);
                }
                self.dispatch(client, &channel, action, wish)
            }
            Step::Report { chat, ref report } => self.report(chat, report),
            Step::Nonsense { client, which } => self.talk_nonsense(self.client(client), which),
        }
    }

    fn client(&self, index: u8) -> usize {
        usize::from(index) % self.clients.len()
    }

    /// One of the sessions that there are, the newest first.
    fn session(&self, index: u8) -> Option<String> {
        let sessions = &self.truth.sessions;
        sessions.iter().rev().nth(usize::from(index) % sessions.len().max(1)).cloned()
    }

    /// One of the chats that there are, the newest first.
    fn chat(&self, index: u8) -> Option<String> {
        let chats = &self.truth.in_order;
        chats.iter().rev().nth(usize::from(index) % chats.len().max(1)).cloned()
    }

    /// One of the channels that there are, or that there are not.
    fn channel(&self, index: u8) -> String {
        let channels: Vec<_> = self.truth.channels.keys().collect();
        match usize::from(index) % (channels.len() + 2) {
            at if at < channels.len() => channels[at].clone(),
            at if at == channels.len() => "ahp-session:/nobody's".to_owned(),
            _ => ROOT_RESOURCE_URI.to_owned(),
        }
    }

    // Backends and timers.

    fn report(&mut self, index: u8, report: &Report) -> Result<()> {
        if self.bridged.is_some() {
            let busy = self.agents.values().any(Agent::is_busy);
            return if busy { self.hear_program(HEARD_FOR).map(|_| ()) } else { Ok(()) };
        }
        let keys: Vec<ChatKey> =
            self.agents.iter().rev().filter(|(_, agent)| agent.is_up()).map(|(&key, _)| key).collect();
        let Some(&key) = keys.get(usize::from(index) % keys.len().max(1)) else { return Ok(()) };
        match self.agents.get_mut(&key).and_then(|agent| agent.report(report)) {
            Some(event) => self.tell(key, event),
            None => Ok(()),
        }
    }

    /// Takes in the next report of a program, if one comes in this time.
    fn hear_program(&mut self, time: Duration) -> Result<bool> {
        let Some((key, event)) = self.bridged.as_mut().and_then(|bridged| bridged.hear(time)) else {
            return Ok(false);
        };
        self.agents.entry(key).or_default().reports(&event);
        self.tell(key, event).map(|()| true)
    }

    fn tell(&mut self, chat: ChatKey, event: Event) -> Result<()> {
        let seen = self.feed(Input::Agent(chat, event))?;
        ensure!(seen.origins.is_empty(), "an action of the host's has an origin: {:?}", seen.origins);
        Ok(())
    }

    fn fire_timers(&mut self) -> Result<()> {
        for timer in std::mem::take(&mut self.timers) {
            self.feed(Input::Timer(timer))?;
        }
        Ok(())
    }

    // What must hold.

    /// A fresh snapshot.
    pub fn observe(&mut self, channel: &str) -> Result<Snapshot> {
        let subscribe = request(1, "subscribe", json!({ "channel": channel }));
        let answer = self.say(OBSERVER, &subscribe)?.map_err(|code| anyhow::anyhow!("{channel}: {code}"))?;
        self.notify(OBSERVER, "unsubscribe", json!({ "channel": channel }))?;
        match lines::read(&answer, Some(&Asked::Subscribe))? {
            Line::Subscribed(result) => result.snapshot.with_context(|| format!("no snapshot of {channel}")),
            _ => unreachable!("read as such"),
        }
    }

    /// The list of all sessions.
    fn observe_list(&mut self) -> Result<Vec<ahp_types::state::SessionSummary>> {
        let answer = self.say(OBSERVER, &request(1, "listSessions", json!({})))?;
        let answer = answer.map_err(|code| anyhow::anyhow!("no list: {code}"))?;
        match lines::read(&answer, Some(&Asked::List))? {
            Line::Listed(result) => Ok(result.items),
            _ => unreachable!("read as such"),
        }
    }

    /// Everybody reads everything, and all mirrors are compared with fresh snapshots.
    fn compare(&mut self) -> Result<()> {
        self.feed(Input::BatchEnded)?;
        self.fire_timers()?;
        // And what waits to be merged need not wait any longer.
        self.connections.values_mut().for_each(|connection| connection.outbox.release());
        for client in 0..self.clients.len() {
            self.read(client, usize::MAX)?;
        }
        let channels: Vec<String> = self.truth.channels.keys().cloned().collect();
        let mut fresh = BTreeMap::new();
        for channel in channels {
            let snapshot = self.observe(&channel)?;
            fresh.insert(channel, snapshot);
        }
        checks::mirror("the records", self.truth.channels.iter(), &fresh)?;
        checks::derived(&fresh)?;
        for (key, agent) in &self.agents {
            // That of a chat which is gone works nowhere.
            let Some((_, chat)) = self.chats.get(key) else { continue };
            checks::agent_works_in_its_directories(agent.works_in(), chat, &fresh)?;
        }
        let list = self.observe_list()?;
        checks::list(&list, &fresh)?;
        for client in &self.clients {
            if client.connection.is_none() {
                continue;
            }
            client.mirror.check_all_answered().with_context(|| client.id.clone())?;
            checks::mirror(&client.id, client.mirror.channels.iter(), &fresh)?;
            if let Some(summaries) = &client.mirror.summaries {
                checks::summaries(summaries, &list).with_context(|| client.id.clone())?;
            }
            let connection = client.connection.and_then(|connection| self.connections.get(&connection));
            let subscribed = connection.context("no such connection")?.subscribed.iter();
            let held = client.mirror.channels.keys();
            ensure!(subscribed.eq(held), "{} holds other channels than it follows", client.id);
        }
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<()> {
        self.compare()?;
        match end {
            End::Finish => {}
            End::Drain | End::DrainTooLong => {
                self.feed(Input::Shutdown(Shutdown::Drain(Duration::from_secs(60))))?;
                checks::no_request_is_pending(&self.truth)?;
            }
            End::Cancel => {
                self.feed(Input::Shutdown(Shutdown::Cancel))?;
            }
        }
        if matches!(end, End::DrainTooLong) {
            self.fire_timers()?;
        }
        if matches!(end, End::Cancel | End::DrainTooLong) {
            self.truth.check_all_ended()?;
        }
        // The drain's time limit stays where it is: every agent finishes before.
        self.timers.retain(|timer| *timer != Timer::Drain);
        self.finish_agents()?;
        self.truth.check_all_ended()?;
        ensure!(self.host.running_turns() == 0, "{} turns are counted as running", self.host.running_turns());
        let ends = usize::from(!matches!(end, End::Finish));
        ensure!(self.done.len() == ends, "the end was said {} times", self.done.len());
        self.compare()
    }

    /// Every backend does what it still owes.
    fn finish_agents(&mut self) -> Result<()> {
        while self.bridged.is_some() && self.agents.values().any(Agent::is_busy) {
            ensure!(self.hear_program(HEARD_AT_LAST_FOR)?, "nothing is heard of {:?}", self.agents);
        }
        for _ in 0..10_000 {
            let busy = self.agents.iter_mut().find_map(|(&key, agent)| Some((key, agent.finish()?)));
            match busy {
                Some((key, event)) => self.tell(key, event)?,
                None => return self.agents.values().try_for_each(Agent::check_idle),
            }
        }
        anyhow::bail!("the agents are never done")
    }
}

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}
