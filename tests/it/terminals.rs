//! Terminals of agents' commands, where a transcript cannot go: what is told while a command runs.
//!
//! Owns: a host in memory, one chat of it, an agent that says what a test has it say, and the mirror of a client.
//! Never: runs a command.

use ahp::reducers::apply_action_to_terminal;
use ahp_sidecar::host::effects::{
    ChatKey, Command, ConnectionId, Event, Frame, Input, Output, Record, RunId, SavedChat, SavedSession,
    TerminalEvent, ToolGate, ToolOutcome, TurnEnd, TurnEvent,
};
use ahp_sidecar::host::LoadedSession;
use ahp_sidecar::wire::terminals::{OUTPUT_BYTES_KEPT, SCROLLBACK_BYTES_MAX};
use ahp_types::actions::ActionEnvelope;
use ahp_types::state::{TerminalState, ToolResultContent, ToolResultTerminalContent};
use proptest::prelude::*;
use serde_json::{json, Value};

use crate::support::core::{opened, said, Core, CHAT, SESSION};
use crate::support::mirrors::{terminal_in, text_of_terminal, TerminalMirror};

const CLIENT: ConnectionId = ConnectionId(1);
const OBSERVER: ConnectionId = ConnectionId(2);

struct World {
    core: Core,
    chat: ChatKey,
    run: RunId,
    outputs: Vec<Output>,
}

/// A terminal, as its agent has a call show it.
fn shown(name: &str) -> Vec<ToolResultContent> {
    vec![ToolResultContent::Terminal(ToolResultTerminalContent {
        resource: name.to_owned(),
        title: "x".to_owned(),
        is_pty: None,
        result: None,
    })]
}

impl World {
    /// A chat in which a call runs that shows a terminal, and a client that follows the chat.
    fn new() -> (Self, String) {
        let (core, chat, run) = (Core::new(), ChatKey(0), RunId(0));
        let mut world = Self { core, chat, run, outputs: Vec::new() };
        world.feed(Input::Opened { connection: CLIENT, default_directory: None });
        let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
        world.say(json!({ "id": 1, "method": "initialize", "params": hello }));
        world.say(json!({ "id": 2, "method": "createSession", "params": { "channel": SESSION } }));
        world.chat = opened(&world.outputs);
        world.hear(Event::Opened);
        world.say(json!({ "id": 3, "method": "subscribe", "params": { "channel": CHAT } }));
        world.start("t1");
        world.call("c");
        world.print(TerminalEvent::Opened { call: "c".to_owned(), title: "make".to_owned(), detaches: true });
        world.report(TurnEvent::ToolContent { id: "c".to_owned(), content: shown("one") });
        let content = world.told("chat/toolCallContentChanged");
        let uri = content["content"][0]["resource"].as_str().unwrap().to_owned();
        (world, uri)
    }

    fn start(&mut self, turn: &str) {
        self.outputs.clear();
        let message = json!({ "text": "go", "origin": { "kind": "user" } });
        let action = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message });
        let params = json!({ "channel": CHAT, "clientSeq": 1, "action": action });
        self.say(json!({ "method": "dispatchAction", "params": params }));
        let started = self.outputs.iter().find_map(|output| match output {
            Output::Agent(_, command) => match &**command {
                Command::StartTurn { run, .. } => Some(*run),
                _ => None,
            },
            _ => None,
        });
        self.run = started.unwrap();
    }

    fn call(&mut self, id: &str) {
        let (name, display_name) = ("sh".to_owned(), "sh".to_owned());
        self.report(TurnEvent::ToolStarted { id: id.to_owned(), name, display_name });
        let (input, message) = ("x".to_owned(), "x".into());
        self.report(TurnEvent::ToolReady { id: id.to_owned(), input, message, gate: ToolGate::Open });
    }

    /// A call shows a terminal, and is over.
    fn call_shows(&mut self, id: &str, name: &str) {
        self.call(id);
        self.report(TurnEvent::ToolContent { id: id.to_owned(), content: shown(name) });
        let outcome = ToolOutcome { success: true, message: "x".into(), content: shown(name), error: None };
        self.report(TurnEvent::ToolDone { id: id.to_owned(), outcome, review: false });
    }

    fn feed(&mut self, input: Input) {
        self.outputs.extend(self.core.feed(input));
    }

    fn say(&mut self, message: Value) {
        self.feed(said(CLIENT, message));
    }

    fn hear(&mut self, event: Event) {
        self.feed(Input::Agent(self.chat, event));
    }

    fn report(&mut self, event: TurnEvent) {
        self.hear(Event::Turn(self.run, event));
    }

    fn print(&mut self, event: TerminalEvent) {
        self.hear(Event::Terminal { name: "one".to_owned(), event });
    }

    fn data(&mut self, text: impl Into<String>) {
        self.print(TerminalEvent::Data(text.into()));
    }

    fn done(&mut self) {
        let outcome = ToolOutcome { success: true, message: "x".into(), content: shown("one"), error: None };
        self.report(TurnEvent::ToolDone { id: "c".to_owned(), outcome, review: false });
    }

    /// What was put out for the client since it was last asked for.
    fn lines(&mut self) -> Vec<Value> {
        let lines = self.all_lines().into_iter();
        lines.filter(|(to, _)| *to == CLIENT).map(|(_, line)| line).collect()
    }

    /// What was put out since it was last asked for, and for whom.
    fn all_lines(&mut self) -> Vec<(ConnectionId, Value)> {
        let outputs = std::mem::take(&mut self.outputs);
        let frames = outputs.into_iter().filter_map(|output| {
            let Output::Frame(connection, frame) = output else { return None };
            let line = match frame {
                Frame::Action(action) => serde_json::from_slice(&action.line).unwrap(),
                Frame::Answer(line) => serde_json::from_slice(&line).unwrap(),
                Frame::Result { result, .. } => serde_json::from_slice(&result).unwrap(),
                Frame::Error { error, .. } => json!({ "error": error.code }),
                _ => return None,
            };
            Some((connection, line))
        });
        frames.collect()
    }

    /// The state of a terminal, as somebody sees it who has seen nothing before.
    fn fresh(&mut self, uri: &str) -> TerminalState {
        let message = |value: Value| said(OBSERVER, value);
        self.feed(message(json!({ "id": 1, "method": "subscribe", "params": { "channel": uri } })));
        self.feed(message(json!({ "method": "unsubscribe", "params": { "channel": uri } })));
        let lines = self.all_lines().into_iter();
        let mut answers = lines.filter(|(to, _)| *to == OBSERVER).map(|(_, line)| line);
        terminal_in(&answers.next().unwrap()["snapshot"])
    }

    /// The last action of this name that was told.
    fn told(&mut self, name: &str) -> Value {
        let lines = self.lines().into_iter().rev();
        let mut actions = lines.map(|line| line["params"]["action"].clone());
        actions.find(|action| action["type"] == name).unwrap_or_else(|| panic!("no {name} was told"))
    }

    /// The state of a terminal, which the client follows from now on.
    fn follow(&mut self, uri: &str) -> TerminalState {
        self.lines();
        self.say(json!({ "id": 4, "method": "subscribe", "params": { "channel": uri } }));
        terminal_in(&self.lines().remove(0)["snapshot"])
    }

    fn leave(&mut self, uri: &str) {
        self.say(json!({ "method": "unsubscribe", "params": { "channel": uri } }));
    }

    /// What the mirror of a client is that is told what was put out.
    fn mirror(&mut self, mut state: TerminalState, uri: &str) -> TerminalState {
        for line in self.lines().into_iter().filter(|line| line["params"]["channel"] == uri) {
            let envelope: ActionEnvelope = serde_json::from_value(line["params"].clone()).unwrap();
            apply_action_to_terminal(&mut state, &envelope.action);
        }
        state
    }
}

#[test]
fn a_client_that_follows_a_terminal_has_what_it_shows() {
    let (mut world, uri) = World::new();
    world.data("before ");
    let state = world.follow(&uri);
    assert_eq!((text_of_terminal(&state).as_str(), state.title.as_str()), ("before ", "make"));
    assert_eq!(state.is_pty, Some(false));
    world.data("one ");
    world.data("two");
    world.print(TerminalEvent::Cleared);
    world.data("three");
    world.print(TerminalEvent::Exited(Some(3)));
    // Nothing follows an end.
    world.data("four");
    world.print(TerminalEvent::Exited(Some(4)));
    let mirror = world.mirror(state, &uri);
    assert_eq!(text_of_terminal(&mirror), "three");
    assert_eq!(mirror, world.follow(&uri));
    world.done();
    let done = world.told("chat/toolCallComplete");
    let result = json!({ "exitCode": 3, "preview": "three", "truncated": true });
    assert_eq!(done["result"]["content"][0]["result"], result);
    // It is made again of the call when nobody follows it any more.
    world.leave(&uri);
    assert_eq!(mirror, world.follow(&uri));
}

#[test]
fn what_is_too_much_is_cut_at_its_beginning() {
    let (mut world, uri) = World::new();
    let line = |number: usize| format!("{number:0>62}\n");
    let state = world.follow(&uri);
    let enough = SCROLLBACK_BYTES_MAX / line(0).len();
    let all: String = (0..enough).map(line).collect();
    let rest = SCROLLBACK_BYTES_MAX - all.len();
    world.data(all + &"x".repeat(rest));
    let mirror = world.mirror(state, &uri);
    assert_eq!(mirror, world.follow(&uri), "as much as may be");
    world.data("y");
    let mirror = world.mirror(mirror, &uri);
    let shown = text_of_terminal(&world.follow(&uri));
    assert!(shown.len() < SCROLLBACK_BYTES_MAX && shown.starts_with('0') && shown.find('\n') == Some(62));
    assert!(text_of_terminal(&mirror).ends_with(&shown));
    world.print(TerminalEvent::Exited(None));
    let mirror = world.mirror(mirror, &uri);
    let kept = world.follow(&uri);
    assert!(
        text_of_terminal(&kept).len() <= OUTPUT_BYTES_KEPT
            && text_of_terminal(&mirror).ends_with(&text_of_terminal(&kept))
    );
    assert_eq!(mirror.lifecycle, kept.lifecycle);
    world.done();
    let done = world.told("chat/toolCallComplete");
    assert_eq!(done["result"]["content"][0]["result"]["truncated"], true);
    world.leave(&uri);
    assert_eq!(world.follow(&uri), kept);
}

#[test]
fn so_much_is_kept_of_a_command_that_has_ended_and_more_is_cut() {
    for (bytes, is_cut) in
        [(OUTPUT_BYTES_KEPT - 1, false), (OUTPUT_BYTES_KEPT, false), (OUTPUT_BYTES_KEPT + 1, true)]
    {
        let (mut world, uri) = World::new();
        world.data("x".repeat(bytes));
        assert_eq!(text_of_terminal(&world.follow(&uri)).len(), bytes);
        world.print(TerminalEvent::Exited(Some(0)));
        assert_eq!(text_of_terminal(&world.follow(&uri)).len(), bytes.min(OUTPUT_BYTES_KEPT));
        world.done();
        let result = world.told("chat/toolCallComplete")["result"]["content"][0]["result"].clone();
        assert_eq!(result["preview"].as_str().unwrap().len(), bytes.min(OUTPUT_BYTES_KEPT));
        assert_eq!(result["truncated"] == true, is_cut, "{bytes} bytes");
    }
}

#[test]
fn a_call_that_shows_again_what_has_ended_shows_it_as_the_first_one_did() {
    let (mut world, uri) = World::new();
    world.data("done");
    world.print(TerminalEvent::Exited(Some(3)));
    world.done();
    let first = world.told("chat/toolCallComplete")["result"]["content"].clone();
    assert_eq!((&first[0]["resource"], &first[0]["result"]["exitCode"]), (&json!(uri), &json!(3)));
    let kept = world.follow(&uri);
    world.leave(&uri);
    world.call_shows("d", "one");
    let again = world.told("chat/toolCallComplete")["result"]["content"].clone();
    assert_eq!(first, again, "in the same turn");
    world.report(TurnEvent::Ended(TurnEnd::Complete));
    world.start("t2");
    world.call_shows("e", "one");
    let again = world.told("chat/toolCallComplete")["result"]["content"].clone();
    assert_eq!(first, again, "in a later turn");
    assert_eq!(world.follow(&uri), kept);
    world.report(TurnEvent::Ended(TurnEnd::Complete));
    let source = json!({ "kind": "fork", "chat": CHAT, "turnId": "t2" });
    let params = json!({ "channel": SESSION, "chat": "ahp-chat:/fork", "source": source });
    world.say(json!({ "id": 5, "method": "createChat", "params": params }));
    world.lines();
    world.say(json!({ "id": 6, "method": "subscribe", "params": { "channel": "ahp-chat:/fork" } }));
    let fork = world.lines().remove(0)["snapshot"]["state"].to_string();
    let resources =
        fork.split("\"resource\":\"ahp-terminal:").skip(1).map(|rest| rest.split('"').next().unwrap());
    let resources: Vec<String> = resources.map(|rest| format!("ahp-terminal:{rest}")).collect();
    assert_eq!(resources.len(), 3, "{fork}");
    assert!(
        resources.iter().all(|it| *it == resources[0] && *it != uri),
        "one of its own in the fork: {resources:?}"
    );
    assert_eq!(text_of_terminal(&world.follow(&resources[0])), text_of_terminal(&kept));
    world.start("t3");
    // A name that nobody knows is not told.
    world.call_shows("f", "two");
    assert_eq!(world.told("chat/toolCallComplete")["result"].get("content"), None);
}

#[test]
fn what_has_ended_and_is_shown_nowhere_goes() {
    for is_truncated in [false, true] {
        let (mut world, uri) = World::new();
        if !is_truncated {
            // What the call says of it is replaced.
            world.report(TurnEvent::ToolContent { id: "c".to_owned(), content: Vec::new() });
        }
        world.print(TerminalEvent::Exited(Some(0)));
        world.report(TurnEvent::Ended(TurnEnd::Complete));
        if is_truncated {
            let params = json!({ "channel": CHAT, "clientSeq": 8, "action": { "type": "chat/truncated" } });
            world.say(json!({ "method": "dispatchAction", "params": params }));
        }
        world.lines();
        world.say(json!({ "id": 9, "method": "subscribe", "params": { "channel": uri } }));
        assert_eq!(world.lines(), [json!({ "error": -32008 })], "{is_truncated}");
    }
}

#[test]
fn a_command_that_outlasts_its_call_and_its_turn_is_followed_to_its_end() {
    let (mut world, uri) = World::new();
    let state = world.follow(&uri);
    world.done();
    let done = world.told("chat/toolCallComplete");
    assert_eq!(done["result"]["content"][0]["result"], Value::Null);
    world.report(TurnEvent::Ended(TurnEnd::Complete));
    world.data("late");
    world.leave(&uri);
    world.print(TerminalEvent::Exited(Some(0)));
    let after = world.follow(&uri);
    assert_eq!((text_of_terminal(&after).as_str(), after.claim), ("late", state.claim));
}

#[test]
fn commands_end_with_their_agent_and_terminals_with_their_chat() {
    let (mut world, uri) = World::new();
    let state = world.follow(&uri);
    world.hear(Event::Died { reason: "it is dead".to_owned() });
    let mirror = world.mirror(state, &uri);
    assert_eq!(serde_json::to_value(&mirror.lifecycle).unwrap(), json!({ "status": "exited" }));
    assert_eq!(mirror, world.follow(&uri));
    // What has its name in another conversation is another one.
    world.print(TerminalEvent::Data("x".to_owned()));
    assert!(world.lines().is_empty());
    world.say(json!({ "id": 5, "method": "disposeSession", "params": { "channel": SESSION } }));
    world.lines();
    world.say(json!({ "id": 6, "method": "subscribe", "params": { "channel": uri } }));
    assert_eq!(world.lines(), [json!({ "error": -32008 })]);
}

#[test]
fn a_command_goes_on_without_its_call_when_a_client_claims_it_for_the_chat() {
    let (mut world, uri) = World::new();
    let state = world.follow(&uri);
    let claim = json!({ "kind": "session", "session": SESSION, "chat": CHAT });
    let claimed = json!({ "type": "terminal/claimed", "claim": claim });
    let claims = |world: &mut World| {
        let params = json!({ "channel": uri, "clientSeq": 2, "action": claimed });
        world.say(json!({ "method": "dispatchAction", "params": params }));
    };
    claims(&mut world);
    let told = world.outputs.iter().any(|output| match output {
        Output::Agent(_, command) => **command == Command::Background { terminal: "one".to_owned() },
        _ => false,
    });
    assert!(told, "its agent is told");
    let lines = world.lines();
    let works: Vec<&Value> = lines.iter().map(|line| &line["params"]["action"]["work"]).collect();
    let work = json!({ "kind": "shell", "id": uri, "label": "make", "command": "make", "terminal": uri,
        "startedAt": "1970-01-01T00:00:00.000Z" });
    assert_eq!(works, [&Value::Null, &work]);
    // Again: that changes nothing.
    claims(&mut world);
    let lines = world.lines();
    assert!(lines.len() == 1 && lines[0]["params"].get("rejectionReason").is_none(), "{lines:?}");
    world.done();
    world.data("late");
    world.lines();
    world.print(TerminalEvent::Exited(Some(0)));
    assert_eq!(world.told("chat/backgroundWorkRemoved")["id"], json!(uri));
    let after = world.follow(&uri);
    assert_ne!(after.claim, state.claim);
    // It has ended.
    let other = json!({ "kind": "session", "session": SESSION, "chat": CHAT, "turnId": "t1" });
    for (claim, is_refused) in [(claim, false), (other, true)] {
        let action = json!({ "type": "terminal/claimed", "claim": claim });
        let params = json!({ "channel": uri, "clientSeq": 3, "action": action });
        world.say(json!({ "method": "dispatchAction", "params": params }));
        assert_eq!(world.lines()[0]["params"].get("rejectionReason").is_some(), is_refused);
    }
}

#[test]
fn what_went_on_behind_a_call_is_told_to_be_over_by_the_host_after() {
    let (mut world, uri) = World::new();
    let claim = json!({ "kind": "session", "session": SESSION, "chat": CHAT });
    let action = json!({ "type": "terminal/claimed", "claim": claim });
    let params = json!({ "channel": uri, "clientSeq": 2, "action": action });
    let mut outputs =
        world.core.feed_and_save(said(CLIENT, json!({ "method": "dispatchAction", "params": params })));
    world.done();
    outputs.extend(std::mem::take(&mut world.outputs));
    world.report(TurnEvent::Ended(TurnEnd::Complete));
    outputs.extend(std::mem::take(&mut world.outputs));
    outputs.extend(world.core.feed(Input::Save));
    let (mut session, mut chat, mut turns) = (None, None, Vec::new());
    for output in outputs {
        match output {
            Output::Record(Record::Session(row)) => session = Some(row),
            Output::Record(Record::Chat(row)) => chat = Some(row),
            Output::Record(Record::Turn(_, _, turn)) => turns.push(turn),
            _ => {}
        }
    }
    let row = chat.unwrap();
    let saved = SavedChat { row, turns, actions: Vec::new(), sifted: false, progress: None };
    let saved = SavedSession { row: session.unwrap(), chats: vec![saved], deaths: 0 };
    let mut host = Core::new();
    let outputs = host.feed(Input::Restored(Box::new(LoadedSession::of(saved, &Default::default()))));
    let removed = outputs.iter().filter_map(|output| match output {
        Output::Record(Record::Action(_, line)) => serde_json::from_slice::<Value>(&line.line).ok(),
        _ => None,
    });
    let removed: Vec<Value> = removed.map(|line| line["params"]["action"].clone()).collect();
    assert_eq!(removed, [json!({ "type": "chat/backgroundWorkRemoved", "id": uri })]);
}

#[test]
fn a_command_that_runs_goes_where_its_chat_goes() {
    let (mut world, _) = World::new();
    world.done();
    world.report(TurnEvent::Ended(TurnEnd::Complete));
    world.lines();
    // Another chat of the session: the first one stays.
    world.say(
        json!({ "id": 5, "method": "createChat", "params": { "channel": SESSION, "chat": "ahp-chat:/b" } }),
    );
    let message = json!({ "text": "go", "origin": { "kind": "user" } });
    let action = json!({ "type": "chat/turnStarted", "turnId": "t2", "message": message });
    let params = json!({ "channel": "ahp-chat:/b", "clientSeq": 1, "action": action });
    world.say(json!({ "method": "dispatchAction", "params": params }));
    world.chat = opened(&world.outputs);
    world.hear(Event::Opened);
    let started = world.outputs.iter().find_map(|output| match output {
        Output::Agent(_, command) => match &**command {
            Command::StartTurn { run, .. } => Some(*run),
            _ => None,
        },
        _ => None,
    });
    world.run = started.unwrap();
    world.say(json!({ "id": 6, "method": "subscribe", "params": { "channel": "ahp-chat:/b" } }));
    world.call("c");
    world.print(TerminalEvent::Opened { call: "c".to_owned(), title: "make".to_owned(), detaches: true });
    world.report(TurnEvent::ToolContent { id: "c".to_owned(), content: shown("one") });
    let content = world.told("chat/toolCallContentChanged");
    let uri = content["content"][0]["resource"].as_str().unwrap().to_owned();
    let state = world.follow(&uri);
    world.done();
    world.report(TurnEvent::Ended(TurnEnd::Complete));
    world.say(json!({ "id": 7, "method": "createSession", "params": { "channel": "ahp-session:/o" } }));
    let destination = json!({ "kind": "session", "session": "ahp-session:/o" });
    let params = json!({ "channel": "ahp-chat:/b", "destination": destination });
    world.say(json!({ "id": 8, "method": "moveChat", "params": params }));
    let mirror = world.mirror(state, &uri);
    let claim = serde_json::to_value(&mirror.claim).unwrap();
    assert_eq!((&claim["session"], &claim["chat"]), (&json!("ahp-session:/o"), &json!("ahp-chat:/b")));
    assert_eq!(mirror, world.follow(&uri));
}

#[test]
fn clients_change_nothing_of_it() {
    let (mut world, uri) = World::new();
    world.follow(&uri);
    let claim = json!({ "kind": "client", "clientId": "me" });
    for action in [
        json!({ "type": "terminal/input", "data": "x" }),
        json!({ "type": "terminal/resized", "cols": 1, "rows": 1 }),
        json!({ "type": "terminal/claimed", "claim": claim }),
        json!({ "type": "terminal/titleChanged", "title": "x" }),
        json!({ "type": "terminal/cleared" }),
        json!({ "type": "terminal/data", "data": "x" }),
    ] {
        let params = json!({ "channel": uri, "clientSeq": 2, "action": action });
        world.say(json!({ "method": "dispatchAction", "params": params }));
        let lines = world.lines();
        assert!(lines.len() == 1 && lines[0]["params"]["rejectionReason"].is_string(), "{lines:?}");
    }
}

/// What may happen.
#[derive(Debug, Clone)]
enum Happening {
    Data(u16),
    Cleared,
    Exited,
    CallIsOver,
    TurnIsOver,
    AgentIsGone,
    GoesOn,
    Leaves(usize),
    Follows(usize),
    IsLost(usize),
    ComesBack(usize),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => (0..2_u16).prop_map(Happening::Data),
        2 => (0..9000_u16).prop_map(Happening::Data),
        1 => Just(Happening::Data(40_000)),
        1 => Just(Happening::Cleared),
        1 => Just(Happening::Exited),
        1 => Just(Happening::CallIsOver),
        1 => Just(Happening::TurnIsOver),
        1 => Just(Happening::AgentIsGone),
        1 => Just(Happening::GoesOn),
        2 => (0..2_usize).prop_map(Happening::Leaves),
        4 => (0..2_usize).prop_map(Happening::Follows),
        3 => (0..2_usize).prop_map(Happening::IsLost),
        4 => (0..2_usize).prop_map(Happening::ComesBack),
    ]
}

/// A client that follows the terminal, or has.
#[derive(Debug, Default)]
struct Follower {
    connection: Option<ConnectionId>,
    mirror: TerminalMirror,
}

/// The clients of a schedule.
struct Followers<'a> {
    world: &'a mut World,
    uri: String,
    followers: [Follower; 2],
    connections: u32,
}

impl Followers<'_> {
    /// Somebody's connection, which is there from now on; whether it was not.
    fn connect(&mut self, at: usize) -> (ConnectionId, bool) {
        if let Some(connection) = self.followers[at].connection {
            return (connection, false);
        }
        self.connections += 1;
        let connection = ConnectionId(100 + self.connections);
        self.world.feed(Input::Opened { connection, default_directory: None });
        self.followers[at].connection = Some(connection);
        (connection, true)
    }

    fn say(&mut self, at: usize, message: Value) {
        if let Some(connection) = self.followers[at].connection {
            self.world.feed(said(connection, message));
        }
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Data(lines) => {
                let text: String = (0..*lines).map(|line| format!("{line} ä\n")).collect();
                self.world.data(format!("{text}tail"));
            }
            Happening::Cleared => self.world.print(TerminalEvent::Cleared),
            Happening::Exited => self.world.print(TerminalEvent::Exited(Some(1))),
            Happening::CallIsOver => self.world.done(),
            Happening::TurnIsOver => self.world.report(TurnEvent::Ended(TurnEnd::Complete)),
            Happening::AgentIsGone => self.world.hear(Event::Died { reason: "gone".to_owned() }),
            Happening::GoesOn => {
                let claim = json!({ "kind": "session", "session": SESSION, "chat": CHAT });
                let action = json!({ "type": "terminal/claimed", "claim": claim });
                let params = json!({ "channel": self.uri, "clientSeq": 7, "action": action });
                self.world.say(json!({ "method": "dispatchAction", "params": params }));
            }
            Happening::Leaves(at) => {
                let params = json!({ "channel": self.uri });
                self.say(*at, json!({ "method": "unsubscribe", "params": params }));
                self.followers[*at].mirror.state = None;
            }
            Happening::Follows(at) => {
                if self.connect(*at).1 {
                    let hello = json!({ "channel": "ahp-root://", "clientId": format!("c{at}"),
                        "protocolVersions": ["1.0.0"] });
                    self.say(*at, json!({ "id": 1, "method": "initialize", "params": hello }));
                }
                let params = json!({ "channel": self.uri });
                self.say(*at, json!({ "id": 2, "method": "subscribe", "params": params }));
            }
            Happening::IsLost(at) => {
                if let Some(connection) = self.followers[*at].connection.take() {
                    self.world.feed(Input::Closed(connection));
                }
            }
            Happening::ComesBack(at) => {
                if self.followers[*at].mirror.state.is_some() && self.connect(*at).1 {
                    let params = json!({ "channel": "ahp-root://", "clientId": format!("c{at}"),
                        "lastSeenServerSeq": self.followers[*at].mirror.cursor, "subscriptions": [self.uri] });
                    self.say(*at, json!({ "id": 3, "method": "reconnect", "params": params }));
                }
            }
        }
        self.hear();
    }

    /// Everybody reads what is there to be read.
    fn hear(&mut self) {
        for (connection, line) in self.world.all_lines() {
            let found = self.followers.iter_mut().find(|it| it.connection == Some(connection));
            if let Some(follower) = found {
                follower.mirror.read(&self.uri, &line, &line);
            }
        }
    }

    /// Whoever follows the terminal holds what a fresh snapshot shows, and perhaps more before that.
    fn check(&mut self) {
        let fresh = self.world.fresh(&self.uri);
        for follower in self.followers.iter().filter(|it| it.connection.is_some()) {
            follower.mirror.check(&fresh);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_mirror_of_a_terminal_ends_like_a_fresh_snapshot(
        happenings in prop::collection::vec(happening(), 1..40)
    ) {
        let (mut world, uri) = World::new();
        world.feed(Input::Opened { connection: OBSERVER, default_directory: None });
        let hello = json!({ "channel": "ahp-root://", "clientId": "o", "protocolVersions": ["1.0.0"] });
        world.feed(said(OBSERVER, json!({ "id": 1, "method": "initialize", "params": hello })));
        world.all_lines();
        let mut all = Followers { world: &mut world, uri, followers: Default::default(), connections: 0 };
        for happening in &happenings {
            all.happen(happening);
            all.check();
        }
    }
}
