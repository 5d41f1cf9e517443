//! The core alone: a host in memory, with ids that are counted and a clock that stands still until
//! a test moves it.
//!
//! Owns: what every test of the core begins with, and what its session and chat are called.
//! Never: keeps what the host puts out, or judges it.

use ahp_sidecar::backend::{script::Script, Backend};
use ahp_sidecar::host::effects::{
    AgentDescription, ChatKey, Command, ConnectionId, Ids, Input, Now, Output, Record, SavedChat,
    SavedSession,
};
use ahp_sidecar::host::{
    limits::Limits, log::ReplayWindow, AutomationSettings, Config, Host, Start, TimeZones, ZoneDatabase,
};
use ahp_sidecar::wire::rpc::Incoming;
use serde_json::{json, Value};

/// A session, and its first chat.
pub const SESSION: &str = "ahp-session:/s";
pub const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246L3M";

#[derive(Debug)]
struct CountedIds(u64);

impl Ids for CountedIds {
    fn fresh(&mut self) -> String {
        self.0 += 1;
        format!("fresh-{}", self.0)
    }
}

/// No time zone: schedules are no part of these tests.
#[derive(Debug)]
struct NoZones;

impl ZoneDatabase for NoZones {
    fn zone(&self, _name: &str) -> Option<jiff::tz::TimeZone> {
        None
    }
}

/// A host to which nobody has said anything.
#[derive(Debug)]
pub struct Core {
    host: Host,
    ids: CountedIds,
}

impl Core {
    /// With the agent `script`, as it is.
    pub fn new() -> Self {
        Self::with(Script.describe())
    }

    /// Creates a core with these limits.
    pub fn limited(limits: Limits) -> Self {
        Self::of(Script.describe(), limits)
    }

    /// With an agent of this description.
    pub fn with(agent: AgentDescription) -> Self {
        Self::of(agent, Limits::default())
    }

    /// With these agents, beginning where another one has ended.
    pub fn after(start: Start, agents: Vec<AgentDescription>) -> Self {
        Self::begun(start, agents, Limits::default())
    }

    /// With the agent `script`, and with automations, beginning where another one has ended.
    /// `stays`: it goes on without clients.
    pub fn with_automations(start: Start, stays: bool) -> Self {
        let settings = AutomationSettings {
            rules: serde_json::from_value(json!({})).unwrap(),
            zones: TimeZones::new(NoZones),
            stays,
        };
        // Ids are not those of the process before.
        let ids = CountedIds(start.last_key);
        let config = Self::config(start, vec![Script.describe()], Limits::default());
        Self { host: Host::new(Config { automations: Some(settings), ..config }), ids }
    }

    fn of(agent: AgentDescription, limits: Limits) -> Self {
        Self::begun(Start::default(), vec![agent], limits)
    }

    fn begun(start: Start, agents: Vec<AgentDescription>, limits: Limits) -> Self {
        Self { host: Host::new(Self::config(start, agents, limits)), ids: CountedIds(0) }
    }

    fn config(start: Start, agents: Vec<AgentDescription>, limits: Limits) -> Config {
        Config {
            client_mcp: ahp_sidecar::host::effects::ClientMcp::None,
            server_info: serde_json::from_value(json!({ "name": "host" })).unwrap(),
            agents,
            automations: None,
            next: None,
            root_schema: ahp_sidecar::host::nothing_to_configure(),
            replay_window: ReplayWindow::default(),
            start,
            memory_budget: usize::MAX,
            limits,
        }
    }

    /// Feeds an input and returns the outputs.
    pub fn feed(&mut self, input: Input) -> Vec<Output> {
        self.feed_at(0, input)
    }

    /// Feeds an input this many seconds after the start and returns the outputs.
    pub fn feed_at(&mut self, second: u64, input: Input) -> Vec<Output> {
        let now = Now { unix_ms: 0, monotonic_ms: second * 1000 };
        let mut outputs = Vec::new();
        self.host.handle(now, &mut self.ids, input, &mut outputs);
        outputs
    }

    /// Feeds an input and returns the outputs, with the records to be saved.
    pub fn feed_and_save(&mut self, input: Input) -> Vec<Output> {
        let mut outputs = self.feed(input);
        outputs.extend(self.feed(Input::Save));
        outputs
    }
}

/// Builds the input of a message from a connection.
pub fn said(connection: ConnectionId, mut message: Value) -> Input {
    message["jsonrpc"] = "2.0".into();
    Input::received(connection, Incoming::parse(&message.to_string().into()))
}

/// The chats whose agents were told to open.
pub fn opens(outputs: &[Output]) -> impl DoubleEndedIterator<Item = ChatKey> + '_ {
    outputs.iter().filter_map(|output| match output {
        Output::Agent(chat, command) if matches!(**command, Command::Open(_)) => Some(*chat),
        _ => None,
    })
}

/// The last of them.
pub fn opened(outputs: &[Output]) -> ChatKey {
    opens(outputs).next_back().expect("an agent was told to open")
}

/// Returns the stored form of the only session in these outputs, and of its only chat.
pub fn saved(outputs: &[Output]) -> SavedSession {
    let (mut session, mut chat, mut turns, mut actions) = (None, None, Vec::new(), Vec::new());
    for output in outputs {
        match output {
            Output::Record(Record::Session(row)) => session = Some(row.clone()),
            Output::Record(Record::Chat(row)) => {
                actions.clear();
                chat = Some(row.clone());
            }
            Output::Record(Record::Turn(_, _, turn)) => turns.push(turn.clone()),
            Output::Record(Record::Action(channel, line)) if channel.chat().is_some() => {
                actions.push(line.clone());
            }
            _ => {}
        }
    }
    let row = chat.expect("a chat was saved");
    actions.retain(|line| line.server_seq > row.as_of);
    let actions = actions.into_iter().map(|line| line.line).collect();
    let chats = vec![SavedChat { row, turns, actions, sifted: false, progress: None }];
    SavedSession { row: session.expect("a session was saved"), chats, deaths: 0 }
}
