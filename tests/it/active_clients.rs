//! Clients that take part in a session, where a transcript cannot go: several connections at once, and the time
//! that a client has to come back.
//!
//! Owns: a host in memory, one session of it, and clients that each have a connection of their own.
//! Never: waits; a timer runs out when a test says so.

use std::time::Duration;

use ahp_sidecar::host::effects::{
    ChatKey, Command, ConnectionId, Event, Frame, Input, Output, PermissionKind, PermissionOption, RunId,
    Timer, ToolGate, ToolOutcome, TurnEvent,
};
use serde_json::{json, Value};

use crate::support::core::{opened, said, Core, CHAT, SESSION};

const ONE: ConnectionId = ConnectionId(1);
const OTHER: ConnectionId = ConnectionId(2);
const BACK: ConnectionId = ConnectionId(3);

struct World {
    core: Core,
    chat: ChatKey,
    outputs: Vec<Output>,
}

impl World {
    /// A session that `one` has made and that `one` and `other` follow, both active with the tool `look`.
    fn new() -> Self {
        let mut world = Self { core: Core::new(), chat: ChatKey(0), outputs: Vec::new() };
        world.open(ONE, "one");
        world.open(OTHER, "other");
        world.ask(ONE, "createSession", json!({ "channel": SESSION }));
        world.chat = opened(&world.outputs);
        world.feed(Input::Agent(world.chat, Event::Opened));
        for (connection, client) in [(ONE, "one"), (OTHER, "other")] {
            world.ask(connection, "subscribe", json!({ "channel": SESSION }));
            world.take_part(connection, client);
        }
        world
    }

    fn feed(&mut self, input: Input) {
        self.outputs.extend(self.core.feed(input));
    }

    fn open(&mut self, connection: ConnectionId, client: &str) {
        self.feed(Input::Opened { connection, default_directory: None });
        let hello = json!({ "clientId": client, "protocolVersions": ["1.0.0"] });
        self.ask(connection, "initialize", hello);
    }

    fn say(&mut self, connection: ConnectionId, message: Value) {
        self.feed(said(connection, message));
    }

    fn ask(&mut self, connection: ConnectionId, method: &str, params: Value) {
        self.say(connection, json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
    }

    fn dispatch(&mut self, connection: ConnectionId, channel: &str, action: Value) {
        let params = json!({ "channel": channel, "clientSeq": 1, "action": action });
        self.say(connection, json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params }));
    }

    fn take_part(&mut self, connection: ConnectionId, client: &str) {
        let client = json!({ "clientId": client, "tools": [{ "name": "look" }] });
        let action = json!({ "type": "session/activeClientSet", "activeClient": client });
        self.dispatch(connection, SESSION, action);
    }

    /// A client begins a turn in which the agent calls `look`; returns the run.
    fn call(&mut self, connection: ConnectionId, turn: &str) -> RunId {
        let run = self.start(connection, turn);
        self.want(run);
        run
    }

    fn start(&mut self, connection: ConnectionId, turn: &str) -> RunId {
        let message = json!({ "text": "go", "origin": { "kind": "user" } });
        let action = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message });
        self.dispatch(connection, CHAT, action);
        let run = self.commands().into_iter().rev().find_map(|command| match command {
            Command::StartTurn { run, .. } => Some(run),
            _ => None,
        });
        run.expect("a run was started")
    }

    /// The agent waits for what comes of its call.
    fn want(&mut self, run: RunId) {
        let event = TurnEvent::ClientTool {
            id: "call".to_owned(),
            name: "look".to_owned(),
            input: "{}".to_owned(),
            message: "Look".into(),
        };
        self.feed(Input::Agent(self.chat, Event::Turn(run, event)));
    }

    fn deliver(&mut self, connection: ConnectionId, turn: &str) {
        let result = json!({ "success": true, "pastTenseMessage": "Looked" });
        let action = json!({
            "type": "chat/toolCallComplete", "turnId": turn, "toolCallId": "call", "result": result,
        });
        self.dispatch(connection, CHAT, action);
    }

    fn commands(&self) -> Vec<Command> {
        let commands = self.outputs.iter().filter_map(|output| match output {
            Output::Agent(_, command) => Some((**command).clone()),
            _ => None,
        });
        commands.collect()
    }

    /// What the agent was told of its call: whether it succeeded, if it is over.
    fn told(&self) -> Option<bool> {
        self.commands().into_iter().rev().find_map(|command| match command {
            Command::ToolResult { result, .. } => Some(result.success),
            _ => None,
        })
    }

    /// The timers of clients that are gone.
    fn absences(&self) -> Vec<Timer> {
        let timers = self.outputs.iter().filter_map(|output| match output {
            Output::Timer(timer @ Timer::Absence(_), after) => {
                assert_eq!(*after, Duration::from_secs(10));
                Some(*timer)
            }
            _ => None,
        });
        timers.collect()
    }

    /// The session's state, as a client is shown it.
    fn session(&mut self) -> Value {
        self.ask(OTHER, "subscribe", json!({ "channel": SESSION }));
        let result = self.outputs.iter().rev().find_map(|output| match output {
            Output::Frame(_, Frame::Result { result, .. }) => Some(result.clone()),
            _ => None,
        });
        let result: Value = serde_json::from_slice(&result.unwrap()).unwrap();
        result["snapshot"]["state"].clone()
    }

    fn owner(&mut self) -> Value {
        self.session()["inputNeeded"][0]["clientId"].clone()
    }
}

#[test]
fn the_client_that_began_the_turn_gets_the_call() {
    for (asker, owner) in [(ONE, "one"), (OTHER, "other")] {
        let mut world = World::new();
        world.call(asker, "t");
        assert_eq!(world.owner(), owner);
    }
}

#[test]
fn a_client_that_is_there_goes_before_one_that_is_not() {
    let mut world = World::new();
    world.feed(Input::Closed(ONE));
    world.call(OTHER, "t");
    assert_eq!(world.owner(), "other");

    let mut world = World::new();
    world.dispatch(
        OTHER,
        SESSION,
        json!({ "type": "session/activeClientSet", "activeClient": { "clientId": "other", "tools": [] } }),
    );
    world.feed(Input::Closed(ONE));
    world.call(OTHER, "t");
    assert_eq!(world.owner(), "one", "it may come back");
}

#[test]
fn a_call_waits_for_its_client_and_fails_when_that_does_not_come_back() {
    let mut world = World::new();
    world.call(ONE, "t");
    world.feed(Input::Closed(ONE));
    assert_eq!(world.told(), None);
    assert_eq!(world.session()["activeClients"].as_array().unwrap().len(), 2);
    let [timer] = world.absences()[..] else { panic!("{:?}", world.absences()) };
    world.feed(Input::Timer(timer));
    assert_eq!(world.told(), Some(false));
    let session = world.session();
    assert_eq!(session["activeClients"].as_array().unwrap().len(), 1, "{session}");
    assert_eq!(session["inputNeeded"], Value::Null);
}

#[test]
fn a_client_that_comes_back_in_time_ends_its_call() {
    let mut world = World::new();
    world.call(ONE, "t");
    world.feed(Input::Closed(ONE));
    let timers = world.absences();
    world.feed(Input::Opened { connection: BACK, default_directory: None });
    let params = json!({ "clientId": "one", "lastSeenServerSeq": 2, "subscriptions": [SESSION] });
    world.ask(BACK, "reconnect", params);
    timers.into_iter().for_each(|timer| world.feed(Input::Timer(timer)));
    assert_eq!(world.told(), None);
    world.deliver(OTHER, "t");
    assert_eq!(world.told(), None, "only its owner may end it");
    world.deliver(BACK, "t");
    assert_eq!(world.told(), Some(true));
}

#[test]
fn a_client_that_begins_anew_must_say_that_it_goes_on() {
    for (says, stays) in [(None, false), (Some("subscribe"), true), (Some("set"), true)] {
        let mut world = World::new();
        world.feed(Input::Closed(ONE));
        let timers = world.absences();
        world.open(BACK, "one");
        match says {
            Some("subscribe") => world.ask(BACK, "subscribe", json!({ "channel": SESSION })),
            Some(_) => world.take_part(BACK, "one"),
            None => {}
        }
        timers.into_iter().for_each(|timer| world.feed(Input::Timer(timer)));
        let clients = world.session()["activeClients"].as_array().unwrap().len();
        assert_eq!(clients, if stays { 2 } else { 1 }, "{says:?}");
    }
}

#[test]
fn a_client_with_another_connection_is_there() {
    let mut world = World::new();
    world.open(BACK, "one");
    world.feed(Input::Closed(ONE));
    assert_eq!(world.absences(), []);
    // As long as one of its connections follows the session it has not left.
    world.ask(BACK, "subscribe", json!({ "channel": SESSION }));
    world.open(ConnectionId(4), "one");
    world.ask(ConnectionId(4), "subscribe", json!({ "channel": SESSION }));
    let leave = |connection: ConnectionId, world: &mut World| {
        let params = json!({ "channel": SESSION });
        world.say(connection, json!({ "jsonrpc": "2.0", "method": "unsubscribe", "params": params }));
        world.session()["activeClients"].as_array().unwrap().len()
    };
    assert_eq!(leave(BACK, &mut world), 2);
    assert_eq!(leave(ConnectionId(4), &mut world), 1);
}

/// A call that the agent began before it wants the result: with a permission, or without.
#[test]
fn a_client_carries_a_call_out_once_it_runs_and_the_agent_is_told_when_it_asks() {
    let begin = |world: &mut World| {
        let run = world.start(ONE, "t");
        let started = TurnEvent::ClientToolStarted { id: "call".to_owned(), name: "look".to_owned() };
        world.feed(Input::Agent(world.chat, Event::Turn(run, started)));
        run
    };
    let ask = |world: &mut World, run| {
        let option = PermissionOption { id: "yes".to_owned(), label: None, kind: PermissionKind::AllowOnce };
        let asks = TurnEvent::ToolReady {
            id: "call".to_owned(),
            input: "{}".to_owned(),
            message: "Look".into(),
            gate: ToolGate::Ask(vec![option]),
        };
        world.feed(Input::Agent(world.chat, Event::Turn(run, asks)));
    };
    let decide = |world: &mut World, approved: bool| {
        let action = json!({ "type": "chat/toolCallConfirmed", "turnId": "t", "toolCallId": "call",
                             "approved": approved, "selectedOptionId": approved.then_some("yes") });
        world.dispatch(ONE, CHAT, action);
    };

    // It does not run before the agent wants the result.
    let mut world = World::new();
    let run = begin(&mut world);
    assert_eq!(world.session()["inputNeeded"], Value::Null);
    world.want(run);
    assert_eq!(world.owner(), "one");
    world.deliver(ONE, "t");
    assert_eq!(world.told(), Some(true));

    // The client is done before the agent wants the result: it is told once.
    let mut world = World::new();
    let run = begin(&mut world);
    ask(&mut world, run);
    decide(&mut world, true);
    world.deliver(ONE, "t");
    assert_eq!(world.told(), Some(true));
    world.outputs.clear();
    world.want(run);
    assert_eq!(world.commands(), []);

    // The agent wants the result of what the user looks at yet, and then does not allow.
    let mut world = World::new();
    let run = begin(&mut world);
    ask(&mut world, run);
    world.want(run);
    let waits = world.session()["inputNeeded"][0]["kind"].clone();
    assert_eq!((world.told(), waits), (None, json!("toolConfirmation")));
    decide(&mut world, false);
    let denied = |command: &Command| matches!(command, Command::Permission { approved: false, .. });
    assert!(world.commands().iter().any(denied));
    assert_eq!(world.told(), None);

    // The client that it was to run on has left, while nothing ran.
    let mut world = World::new();
    let run = begin(&mut world);
    let removed = json!({ "type": "session/activeClientRemoved", "clientId": "one" });
    world.dispatch(ONE, SESSION, removed);
    assert_eq!(world.told(), Some(false));
    world.outputs.clear();
    world.want(run);
    assert_eq!(world.told(), None);

    // The agent ends the call without having wanted the result: nobody is to carry it out, not even for a moment.
    let mut world = World::new();
    let run = begin(&mut world);
    world.outputs.clear();
    let outcome = ToolOutcome {
        success: false,
        message: "No".into(),
        content: Vec::new(),
        error: Some("no".to_owned()),
    };
    let done = TurnEvent::ToolDone { id: "call".to_owned(), outcome, review: false };
    world.feed(Input::Agent(world.chat, Event::Turn(run, done)));
    let told = format!("{:?}", world.outputs);
    assert!(told.contains("toolCallComplete") && !told.contains("toolClientExecution"), "{told}");
    assert!(!told.contains("not-needed"), "{told}");
}
