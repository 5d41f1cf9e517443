//! Clients that take part in a session, where a transcript cannot go: several connections at once,
//! and the time that a client has to come back.
//!
//! Owns: a host in memory, one session of it, and clients that each have a connection of their own.
//! Never: waits; a timer runs out when a test says so.

use std::time::Duration;

use ahp_sidecar::host::effects::{
    ChatKey, Command, ConnectionId, Input, PermissionKind, PermissionOption, RunId, Timer, ToolGate,
    ToolOutcome, TurnEnd, TurnEvent,
};
use serde_json::{json, Value};

use crate::support::core::{Core, CHAT, SESSION};
use crate::support::world::World;

const ONE: ConnectionId = ConnectionId(1);
const OTHER: ConnectionId = ConnectionId(2);
const BACK: ConnectionId = ConnectionId(3);

/// A session that `one` has made and that `one` and `other` follow, both active with the tool
/// `look`.
struct Shared {
    world: World,
    chat: ChatKey,
}

impl Shared {
    fn new() -> Self {
        let mut world = World::new(Core::new());
        world.arrive(ONE, "one");
        world.arrive(OTHER, "other");
        let chat = world.open_session(ONE);
        let mut session = Self { world, chat };
        for (connection, client) in [(ONE, "one"), (OTHER, "other")] {
            session.world.subscribe(connection, SESSION);
            session.take_part(connection, client);
        }
        session
    }

    fn take_part(&mut self, connection: ConnectionId, client: &str) {
        let client = json!({ "clientId": client, "tools": [{ "name": "look" }] });
        let action = json!({ "type": "session/activeClientSet", "activeClient": client });
        self.world.dispatch(connection, SESSION, action);
    }

    /// A client begins a turn in which the agent calls `look`; returns the run.
    fn call(&mut self, connection: ConnectionId, turn: &str) -> RunId {
        let run = self.start(connection, turn);
        self.want(run);
        run
    }

    fn start(&mut self, connection: ConnectionId, turn: &str) -> RunId {
        self.world.start(connection, CHAT, turn, "go");
        self.world.started()
    }

    /// The agent waits for what comes of its call.
    fn want(&mut self, run: RunId) {
        let event = TurnEvent::ClientTool {
            id: "call".to_owned(),
            name: "look".to_owned(),
            input: "{}".to_owned(),
            message: "Look".into(),
        };
        self.world.report(self.chat, run, event);
    }

    fn deliver(&mut self, connection: ConnectionId, turn: &str) {
        let result = json!({ "success": true, "pastTenseMessage": "Looked" });
        let action = json!({
            "type": "chat/toolCallComplete", "turnId": turn, "toolCallId": "call", "result": result,
        });
        self.world.dispatch(connection, CHAT, action);
    }

    /// Tells whether the tool call succeeded, as the agent was notified; `None` while it is
    /// pending.
    fn call_result(&self) -> Option<bool> {
        self.world.commands().rev().find_map(|command| match command {
            Command::ToolResult { result, .. } => Some(result.success),
            _ => None,
        })
    }

    /// The timers of clients that are gone.
    fn absences(&self) -> Vec<Timer> {
        let timers = self.world.timers().filter(|(timer, _)| matches!(timer, Timer::Absence(_)));
        timers.inspect(|(_, after)| assert_eq!(*after, Duration::from_secs(10))).map(|it| it.0).collect()
    }

    /// The session's state, as a client is shown it.
    fn state(&mut self) -> Value {
        self.world.state(OTHER, SESSION)
    }

    fn owner(&mut self) -> Value {
        self.state()["inputNeeded"][0]["clientId"].clone()
    }
}

#[test]
fn client_that_started_the_turn_receives_the_tool_call() {
    for (asker, owner) in [(ONE, "one"), (OTHER, "other")] {
        let mut session = Shared::new();
        session.call(asker, "t");
        assert_eq!(session.owner(), owner);
    }
}

#[test]
fn client_that_queued_the_message_of_the_turn_receives_the_tool_call() {
    let mut session = Shared::new();
    let first = session.start(ONE, "t");
    session.world.pend(OTHER, CHAT, "queued", "q", "go");
    session.world.report(session.chat, first, TurnEvent::Ended(TurnEnd::Complete));
    let second = session.world.started();
    session.want(second);
    assert_eq!(session.owner(), "other");
}

#[test]
fn connected_client_is_preferred_over_an_absent_one_for_a_tool_call() {
    let mut session = Shared::new();
    session.world.feed(Input::Closed(ONE));
    session.call(OTHER, "t");
    assert_eq!(session.owner(), "other");

    let mut session = Shared::new();
    session.world.dispatch(
        OTHER,
        SESSION,
        json!({ "type": "session/activeClientSet", "activeClient": { "clientId": "other", "tools": [] } }),
    );
    session.world.feed(Input::Closed(ONE));
    session.call(OTHER, "t");
    assert_eq!(session.owner(), "one", "it may come back");
}

#[test]
fn tool_call_waits_for_its_absent_client_and_fails_after_the_timeout() {
    let mut session = Shared::new();
    session.call(ONE, "t");
    session.world.feed(Input::Closed(ONE));
    assert_eq!(session.call_result(), None);
    assert_eq!(session.state()["activeClients"].as_array().unwrap().len(), 2);
    let [timer] = session.absences()[..] else { panic!("{:?}", session.absences()) };
    session.world.feed(Input::Timer(timer));
    assert_eq!(session.call_result(), Some(false));
    let state = session.state();
    assert_eq!(state["activeClients"].as_array().unwrap().len(), 1, "{state}");
    assert_eq!(state["inputNeeded"], Value::Null);
}

#[test]
fn client_that_reconnects_in_time_completes_its_tool_call() {
    let mut session = Shared::new();
    session.call(ONE, "t");
    session.world.feed(Input::Closed(ONE));
    let timers = session.absences();
    session.world.open(BACK);
    let params = json!({ "clientId": "one", "lastSeenServerSeq": 2, "subscriptions": [SESSION] });
    session.world.ask(BACK, "reconnect", params).unwrap();
    timers.into_iter().for_each(|timer| session.world.feed(Input::Timer(timer)));
    assert_eq!(session.call_result(), None);
    session.deliver(OTHER, "t");
    assert_eq!(session.call_result(), None, "only its owner may end it");
    session.deliver(BACK, "t");
    assert_eq!(session.call_result(), Some(true));
}

#[test]
fn client_with_a_new_handshake_stays_active_only_if_it_subscribes() {
    for (says, stays) in [(None, false), (Some("subscribe"), true), (Some("set"), true)] {
        let mut session = Shared::new();
        session.world.feed(Input::Closed(ONE));
        let timers = session.absences();
        session.world.arrive(BACK, "one");
        match says {
            Some("subscribe") => drop(session.world.subscribe(BACK, SESSION)),
            Some(_) => session.take_part(BACK, "one"),
            None => {}
        }
        timers.into_iter().for_each(|timer| session.world.feed(Input::Timer(timer)));
        let clients = session.state()["activeClients"].as_array().unwrap().len();
        assert_eq!(clients, if stays { 2 } else { 1 }, "{says:?}");
    }
}

#[test]
fn client_whose_answer_was_never_stored_is_absent_again() {
    let mut session = Shared::new();
    session.world.feed(Input::Closed(ONE));
    session.world.greet(BACK, "one", &[SESSION]);
    let before = session.absences().len();
    // The store refused the step, so the client was not admitted, and gives up.
    session.world.feed(Input::NotAdmitted(BACK));
    session.world.feed(Input::Closed(BACK));
    let timers = session.absences();
    assert_eq!(timers.len(), before + 1);
    session.world.feed(Input::Timer(timers[before]));
    assert_eq!(session.state()["activeClients"].as_array().unwrap().len(), 1);
}

#[test]
fn client_with_a_second_connection_stays_active() {
    let mut session = Shared::new();
    session.world.arrive(BACK, "one");
    session.world.feed(Input::Closed(ONE));
    // As long as one of its connections follows the session it has not left.
    let [absence] = session.absences()[..] else { panic!("{:?}", session.absences()) };
    session.world.subscribe(BACK, SESSION);
    session.world.feed(Input::Timer(absence));
    session.world.arrive(ConnectionId(4), "one");
    session.world.subscribe(ConnectionId(4), SESSION);
    let leave = |connection: ConnectionId, session: &mut Shared| {
        session.world.unsubscribe(connection, SESSION);
        session.state()["activeClients"].as_array().unwrap().len()
    };
    assert_eq!(leave(BACK, &mut session), 2);
    assert_eq!(leave(ConnectionId(4), &mut session), 1);
}

/// A call that the agent began before it wants the result: with a permission, or without.
#[test]
fn client_tool_runs_once_and_its_result_waits_for_the_agent() {
    let begin = |session: &mut Shared| {
        let run = session.start(ONE, "t");
        let started = TurnEvent::ClientToolStarted { id: "call".to_owned(), name: "look".to_owned() };
        session.world.report(session.chat, run, started);
        run
    };
    let ask = |session: &mut Shared, run| {
        let option = PermissionOption { id: "yes".to_owned(), label: None, kind: PermissionKind::AllowOnce };
        let asks = TurnEvent::ToolReady {
            id: "call".to_owned(),
            input: "{}".to_owned(),
            message: "Look".into(),
            gate: ToolGate::Ask(vec![option]),
        };
        session.world.report(session.chat, run, asks);
    };
    let decide = |session: &mut Shared, approved: bool| {
        let action = json!({ "type": "chat/toolCallConfirmed", "turnId": "t", "toolCallId": "call",
                             "approved": approved, "selectedOptionId": approved.then_some("yes") });
        session.world.dispatch(ONE, CHAT, action);
    };

    // It does not run before the agent wants the result.
    let mut session = Shared::new();
    let run = begin(&mut session);
    assert_eq!(session.state()["inputNeeded"], Value::Null);
    session.want(run);
    assert_eq!(session.owner(), "one");
    session.deliver(ONE, "t");
    assert_eq!(session.call_result(), Some(true));

    // The client is done before the agent wants the result: it is told once.
    let mut session = Shared::new();
    let run = begin(&mut session);
    ask(&mut session, run);
    decide(&mut session, true);
    session.deliver(ONE, "t");
    assert_eq!(session.call_result(), Some(true));
    session.world.outputs.clear();
    session.want(run);
    assert_eq!(session.world.commands().count(), 0);

    // The agent wants the result of what the user looks at yet, and then does not allow.
    let mut session = Shared::new();
    let run = begin(&mut session);
    ask(&mut session, run);
    session.want(run);
    let waits = session.state()["inputNeeded"][0]["kind"].clone();
    assert_eq!((session.call_result(), waits), (None, json!("toolConfirmation")));
    decide(&mut session, false);
    let denied = |command: &Command| matches!(command, Command::Permission { approved: false, .. });
    assert!(session.world.commands().any(denied));
    assert_eq!(session.call_result(), None);

    // The client that it was to run on has left, while nothing ran.
    let mut session = Shared::new();
    let run = begin(&mut session);
    let removed = json!({ "type": "session/activeClientRemoved", "clientId": "one" });
    session.world.dispatch(ONE, SESSION, removed);
    assert_eq!(session.call_result(), Some(false));
    session.world.outputs.clear();
    session.want(run);
    assert_eq!(session.call_result(), None);

    // The agent ends the call without having wanted the result: nobody is to carry it out, not even
    // for a moment.
    let mut session = Shared::new();
    let run = begin(&mut session);
    session.world.outputs.clear();
    let outcome = ToolOutcome {
        success: false,
        message: "No".into(),
        content: Vec::new(),
        error: Some("no".to_owned()),
    };
    let done = TurnEvent::ToolDone { id: "call".to_owned(), outcome, review: false };
    session.world.report(session.chat, run, done);
    let told = format!("{:?}", session.world.outputs);
    assert!(told.contains("toolCallComplete") && !told.contains("toolClientExecution"), "{told}");
    assert!(!told.contains("not-needed"), "{told}");
}
