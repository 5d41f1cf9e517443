//! Helpers for tests of one owner.
//!
//! Owns: a configuration with nothing in it, a ledger with one session, and a step whose outputs
//! are returned.
//! Never: makes a whole host.

use std::collections::{BTreeMap, VecDeque};

use ahp_types::actions::{ActionOrigin, ChatTurnStartedAction, StateAction};
use ahp_types::commands::Implementation;
use serde_json::json;

use super::agents::AgentRegistry;
use super::catalogue::row_of;
use super::configuration::directories::Findings;
use super::effects::{
    AgentDescription, ChatKey, ClientMcp, Command, ConnectionId, Ids, Now, Output, Record, RunId, SessionKey,
};
use super::facts::Fact;
use super::ledger::{Connection, Ledger};
use super::limits::Limits;
use super::log::ReplayWindow;
use super::model::{creating_session, empty_chat, AgentLink, Channel, Chat, Run, RunPhase, Session, TitleBy};
use super::{nothing_to_configure, Config, Start, Step};
use crate::state::history::{empty_message, History};
use crate::state::reduce::Conversation;
use crate::wire::uris::default_chat_of;

/// Gives the same id each time.
struct SameId;

impl Ids for SameId {
    fn fresh(&mut self) -> String {
        "id".to_owned()
    }
}

/// Returns the configuration of a host without agents, at its first start.
pub(super) fn config() -> Config {
    Config {
        server_info: Implementation { name: "host".to_owned(), version: None, title: None },
        agents: Vec::new(),
        client_mcp: ClientMcp::All,
        automations: None,
        next: None,
        root_schema: nothing_to_configure(),
        replay_window: ReplayWindow::default(),
        start: Start::default(),
        memory_budget: usize::MAX,
        limits: Limits::default(),
    }
}

/// Does something in a step. Returns its outputs.
pub(super) fn outputs_of(act: impl FnOnce(&mut Step<'_>)) -> Vec<Output> {
    step_at(0, act).0
}

/// Does something in a step at this time. Returns its outputs and its facts.
pub(super) fn step_at(monotonic_ms: u64, act: impl FnOnce(&mut Step<'_>)) -> (Vec<Output>, VecDeque<Fact>) {
    step_at_time(Now { unix_ms: 0, monotonic_ms }, act)
}

/// Does something in a step at this time of both clocks.
pub(super) fn step_at_time(now: Now, act: impl FnOnce(&mut Step<'_>)) -> (Vec<Output>, VecDeque<Fact>) {
    let mut out = Vec::new();
    let mut step = Step {
        now,
        ids: &mut SameId,
        out: &mut out,
        past: None,
        findings: Findings::new(),
        refused_watches: BTreeMap::new(),
        facts: VecDeque::new(),
    };
    act(&mut step);
    let facts = step.facts;
    (out, facts)
}

/// Connection and id of the client in the ledgers of [`with_session`].
pub(super) const ME: ConnectionId = ConnectionId(1);
pub(super) const MY_ID: &str = "me";

/// Session, and its only chat, in the ledgers of [`with_session`].
pub(super) const SESSION: SessionKey = SessionKey(1);
pub(super) const CHAT: ChatKey = ChatKey(2);

/// Returns a ledger with a client, a session of the agent `script`, and its chat, which is open.
pub(super) fn with_session() -> Ledger {
    let mut ledger =
        Ledger::at_start(&Config { start: Start { last_key: 9, ..Start::default() }, ..config() });
    connect(&mut ledger, ME, MY_ID);
    add_session(&mut ledger, "ahp-session:/s", (SESSION, CHAT));
    ledger
}

/// Adds a session of the agent `script` to a ledger, and its chat, which is open.
pub(super) fn add_session(ledger: &mut Ledger, uri: &str, (session_key, chat_key): (SessionKey, ChatKey)) {
    let (uri, now) = (uri.to_owned(), "1970-01-01T00:00:00.000Z".to_owned());
    let state = empty_chat(default_chat_of(&uri), "Chat", &now);
    let row = row_of(&state);
    let channel = Channel::new(state.resource.clone(), 0);
    let mut chat = Chat::new(channel, session_key, Conversation::new(state, History::default()));
    chat.agent = AgentLink::Open;
    let state = creating_session(&uri, "script".to_owned(), None, row);
    let config = serde_json::Map::new().into_iter().collect();
    let channel = Channel::new(uri, 0);
    let session = Session::new(channel, state, (now.clone(), now), config, TitleBy::Nobody);
    ledger.channels.by_uri.insert(chat.channel.uri.clone(), chat_key.into());
    ledger.channels.by_uri.insert(session.channel.uri.clone(), session_key.into());
    ledger.channels.chats.insert(chat_key, chat);
    ledger.channels.sessions.insert(session_key, session);
}

/// Adds a client that can speak.
pub(super) fn connect(ledger: &mut Ledger, connection: ConnectionId, client_id: &str) {
    let client = Connection { client_id: Some(client_id.to_owned()), ..Connection::default() };
    ledger.presence.connections.insert(connection, client);
}

/// Returns the chat of a ledger of [`with_session`].
pub(super) fn chat(ledger: &mut Ledger) -> &mut Chat {
    ledger.channels.chats.get_mut(&CHAT).unwrap()
}

/// Starts a turn of the client in the chat; its agent works on it.
pub(super) fn start_turn(ledger: &mut Ledger, turn_id: &str) -> RunId {
    let id = ledger.fresh_run();
    let run =
        Run { phase: RunPhase::Started, by: Some(MY_ID.to_owned()), ..Run::new(id, turn_id.to_owned(), 0) };
    chat(ledger).run = Some(run);
    let started = ChatTurnStartedAction {
        turn_id: turn_id.to_owned(),
        started_at: "1970-01-01T00:00:00.000Z".to_owned(),
        message: empty_message(),
        queued_message_id: None,
        meta: None,
    };
    outputs_of(|step| ledger.sequence(step, CHAT, StateAction::ChatTurnStarted(started), None));
    id
}

/// Returns the origin of an action of the client.
pub(super) fn origin() -> ActionOrigin {
    ActionOrigin { client_id: MY_ID.to_owned(), client_seq: 1 }
}

/// Returns the names of the actions that were sequenced, in their order.
pub(super) fn actions_in(outputs: &[Output]) -> Vec<String> {
    let lines = outputs.iter().filter_map(|output| match output {
        Output::Record(Record::Action(_, action)) => Some(&action.line),
        _ => None,
    });
    lines
        .map(|line| {
            let line: serde_json::Value = serde_json::from_slice(line).unwrap();
            line["params"]["action"]["type"].as_str().unwrap().to_owned()
        })
        .collect()
}

/// Returns the commands that an agent was sent.
pub(super) fn commands_in(outputs: &[Output]) -> Vec<&Command> {
    let commands = outputs.iter().filter_map(|output| match output {
        Output::Agent(CHAT, command) => Some(&**command),
        _ => None,
    });
    commands.collect()
}

/// Returns an agent as its operator describes it: one that says its settings itself.
pub(super) fn agent(provider: &str, identity: &str) -> AgentDescription {
    let info = json!({ "provider": provider, "displayName": provider, "description": "", "models": [] });
    AgentDescription {
        info: serde_json::from_value(info).unwrap(),
        config: serde_json::from_value(json!({ "type": "object", "properties": {} })).unwrap(),
        commands: Vec::new(),
        resumes: false,
        steers: true,
        adopts: Some(false),
        may_have_more_settings: true,
        identity: identity.to_owned(),
    }
}

/// Returns the registry of these agents.
pub(super) fn registry(agents: &[AgentDescription]) -> AgentRegistry {
    AgentRegistry::at_start(agents.to_vec(), &Start::default())
}
