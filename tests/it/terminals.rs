//! Terminals of agents' commands, where a transcript cannot go: what is told while a command runs.
//!
//! Owns: a host in memory, one chat of it, an agent that says what a test has it say, and the
//! mirror of a client.
//! Never: runs a command.

use ahp::reducers::apply_action_to_terminal;
use ahp_sidecar::host::effects::{
    ChatKey, Command, ConnectionId, Event, Input, Output, Record, RunId, TerminalEvent, ToolGate,
    ToolOutcome, TurnEnd, TurnEvent,
};
use ahp_sidecar::host::LoadedSession;
use ahp_sidecar::wire::terminals::{OUTPUT_BYTES_KEPT, SCROLLBACK_BYTES_MAX};
use ahp_types::actions::ActionEnvelope;
use ahp_types::state::{TerminalState, ToolResultContent, ToolResultTerminalContent};
use proptest::prelude::*;
use serde_json::{json, Value};

use crate::support::core::{saved, Core, CHAT, SESSION};
use crate::support::followers::{moves, Followers, Moves, MOVES};
use crate::support::mirrors::{terminal_in, text_of_terminal};
use crate::support::world::World;

const CLIENT: ConnectionId = ConnectionId(1);
const OBSERVER: ConnectionId = ConnectionId(2);

/// A command that an agent runs, in a call of a chat that a client follows, and the terminal `one`
/// that shows it.
struct Terminal {
    world: World,
    chat: ChatKey,
    run: RunId,
}

/// Builds the action that detaches a command from its call.
fn claimed_for_chat() -> Value {
    json!({ "type": "terminal/claimed", "claim": { "kind": "session", "session": SESSION, "chat": CHAT } })
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

impl Terminal {
    /// With the URI of the terminal.
    fn new() -> (Self, String) {
        Self::of(World::new(Core::new()))
    }

    fn of(mut world: World) -> (Self, String) {
        world.arrive(CLIENT, "me");
        let chat = world.open_session(CLIENT);
        world.subscribe(CLIENT, CHAT);
        let mut terminal = Self { world, chat, run: RunId(0) };
        terminal.start("t1");
        let uri = terminal.show();
        (terminal, uri)
    }

    fn start(&mut self, turn: &str) {
        self.world.take();
        self.world.start(CLIENT, CHAT, turn, "go");
        self.run = self.world.started();
    }

    /// A call begins that shows it; its URI.
    fn show(&mut self) -> String {
        self.call("c");
        self.print(TerminalEvent::Opened { call: "c".to_owned(), title: "make".to_owned(), detaches: true });
        self.report(TurnEvent::ToolContent { id: "c".to_owned(), content: shown("one") });
        let content = self.last_action("chat/toolCallContentChanged");
        content["content"][0]["resource"].as_str().unwrap().to_owned()
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
        self.end_call(id, name);
    }

    fn end_call(&mut self, id: &str, name: &str) {
        let outcome = ToolOutcome { success: true, message: "x".into(), content: shown(name), error: None };
        self.report(TurnEvent::ToolDone { id: id.to_owned(), outcome, review: false });
    }

    fn done(&mut self) {
        self.end_call("c", "one");
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.world.ask(CLIENT, method, params).unwrap()
    }

    fn hear(&mut self, event: Event) {
        self.world.agent(self.chat, event);
    }

    fn report(&mut self, event: TurnEvent) {
        self.world.report(self.chat, self.run, event);
    }

    fn print(&mut self, event: TerminalEvent) {
        self.hear(Event::Terminal { name: "one".to_owned(), event });
    }

    fn data(&mut self, text: impl Into<String>) {
        self.print(TerminalEvent::Data(text.into()));
    }

    /// The last action of this name that was told.
    fn last_action(&mut self, name: &str) -> Value {
        let actions = self.world.actions(CLIENT).into_iter().rev();
        let mut of_name = actions.filter(|action| action["type"] == name);
        of_name.next().unwrap_or_else(|| panic!("no {name} was told"))
    }

    /// The state of a terminal, which the client follows from now on.
    fn follow(&mut self, uri: &str) -> TerminalState {
        self.world.take();
        terminal_in(&self.world.subscribe(CLIENT, uri))
    }

    fn leave(&mut self, uri: &str) {
        self.world.unsubscribe(CLIENT, uri);
    }

    /// A terminal is not there; who asks for it is told that alone.
    fn assert_terminal_is_removed(&mut self, uri: &str) {
        self.world.take();
        let answer = self.world.ask(CLIENT, "subscribe", json!({ "channel": uri }));
        assert_eq!(answer.unwrap_err().code, -32008);
        assert_eq!(self.world.lines_to(CLIENT), Vec::<Value>::new());
    }

    /// Applies the pending actions to the client's copy of the terminal.
    fn mirror(&mut self, mut state: TerminalState, uri: &str) -> TerminalState {
        for line in self.world.lines_to(CLIENT).into_iter().filter(|line| line["params"]["channel"] == uri) {
            let envelope: ActionEnvelope = serde_json::from_value(line["params"].clone()).unwrap();
            apply_action_to_terminal(&mut state, &envelope.action);
        }
        state
    }
}

#[test]
fn terminal_subscriber_has_the_shown_content() {
    let (mut terminal, uri) = Terminal::new();
    terminal.data("before ");
    let state = terminal.follow(&uri);
    assert_eq!((text_of_terminal(&state).as_str(), state.title.as_str()), ("before ", "make"));
    assert_eq!(state.is_pty, Some(false));
    terminal.data("one ");
    terminal.data("two");
    terminal.print(TerminalEvent::Cleared);
    terminal.data("three");
    terminal.print(TerminalEvent::Exited(Some(3)));
    // Nothing follows an end.
    terminal.data("four");
    terminal.print(TerminalEvent::Exited(Some(4)));
    let mirror = terminal.mirror(state, &uri);
    assert_eq!(text_of_terminal(&mirror), "three");
    assert_eq!(mirror, terminal.follow(&uri));
    terminal.done();
    let done = terminal.last_action("chat/toolCallComplete");
    let result = json!({ "exitCode": 3, "preview": "three", "truncated": true });
    assert_eq!(done["result"]["content"][0]["result"], result);
    // It is made again of the call when nobody follows it any more.
    terminal.leave(&uri);
    assert_eq!(mirror, terminal.follow(&uri));
}

#[test]
fn scrollback_beyond_the_limit_is_truncated_at_its_beginning() {
    let (mut terminal, uri) = Terminal::new();
    let line = |number: usize| format!("{number:0>62}\n");
    let state = terminal.follow(&uri);
    let enough = SCROLLBACK_BYTES_MAX / line(0).len();
    let all: String = (0..enough).map(line).collect();
    let rest = SCROLLBACK_BYTES_MAX - all.len();
    terminal.data(all + &"x".repeat(rest));
    let mirror = terminal.mirror(state, &uri);
    assert_eq!(mirror, terminal.follow(&uri), "as much as may be");
    terminal.data("y");
    let mirror = terminal.mirror(mirror, &uri);
    let shown = text_of_terminal(&terminal.follow(&uri));
    assert!(shown.len() < SCROLLBACK_BYTES_MAX && shown.starts_with('0') && shown.find('\n') == Some(62));
    assert!(text_of_terminal(&mirror).ends_with(&shown));
    terminal.print(TerminalEvent::Exited(None));
    let mirror = terminal.mirror(mirror, &uri);
    let kept = terminal.follow(&uri);
    assert!(
        text_of_terminal(&kept).len() <= OUTPUT_BYTES_KEPT
            && text_of_terminal(&mirror).ends_with(&text_of_terminal(&kept))
    );
    assert_eq!(mirror.lifecycle, kept.lifecycle);
    terminal.done();
    let done = terminal.last_action("chat/toolCallComplete");
    assert_eq!(done["result"]["content"][0]["result"]["truncated"], true);
    terminal.leave(&uri);
    assert_eq!(terminal.follow(&uri), kept);
}

#[test]
fn output_of_an_ended_command_is_truncated_at_its_limit() {
    for (bytes, is_cut) in
        [(OUTPUT_BYTES_KEPT - 1, false), (OUTPUT_BYTES_KEPT, false), (OUTPUT_BYTES_KEPT + 1, true)]
    {
        let (mut terminal, uri) = Terminal::new();
        terminal.data("x".repeat(bytes));
        assert_eq!(text_of_terminal(&terminal.follow(&uri)).len(), bytes);
        terminal.print(TerminalEvent::Exited(Some(0)));
        assert_eq!(text_of_terminal(&terminal.follow(&uri)).len(), bytes.min(OUTPUT_BYTES_KEPT));
        terminal.done();
        let result = terminal.last_action("chat/toolCallComplete")["result"]["content"][0]["result"].clone();
        assert_eq!(result["preview"].as_str().unwrap().len(), bytes.min(OUTPUT_BYTES_KEPT));
        assert_eq!(result["truncated"] == true, is_cut, "{bytes} bytes");
    }
}

#[test]
fn call_that_shows_an_ended_command_again_has_the_same_result() {
    let (mut terminal, uri) = Terminal::new();
    terminal.data("done");
    terminal.print(TerminalEvent::Exited(Some(3)));
    terminal.done();
    let first = terminal.last_action("chat/toolCallComplete")["result"]["content"].clone();
    assert_eq!((&first[0]["resource"], &first[0]["result"]["exitCode"]), (&json!(uri), &json!(3)));
    let kept = terminal.follow(&uri);
    terminal.leave(&uri);
    terminal.call_shows("d", "one");
    let again = terminal.last_action("chat/toolCallComplete")["result"]["content"].clone();
    assert_eq!(first, again, "in the same turn");
    terminal.report(TurnEvent::Ended(TurnEnd::Complete));
    terminal.start("t2");
    terminal.call_shows("e", "one");
    let again = terminal.last_action("chat/toolCallComplete")["result"]["content"].clone();
    assert_eq!(first, again, "in a later turn");
    assert_eq!(terminal.follow(&uri), kept);
    terminal.report(TurnEvent::Ended(TurnEnd::Complete));
    let source = json!({ "kind": "fork", "chat": CHAT, "turnId": "t2" });
    let params = json!({ "channel": SESSION, "chat": "ahp-chat:/fork", "source": source });
    terminal.ask("createChat", params);
    let fork = terminal.world.state(CLIENT, "ahp-chat:/fork").to_string();
    let resources =
        fork.split("\"resource\":\"ahp-terminal:").skip(1).map(|rest| rest.split('"').next().unwrap());
    let resources: Vec<String> = resources.map(|rest| format!("ahp-terminal:{rest}")).collect();
    assert_eq!(resources.len(), 3, "{fork}");
    assert!(
        resources.iter().all(|it| *it == resources[0] && *it != uri),
        "one of its own in the fork: {resources:?}"
    );
    assert_eq!(text_of_terminal(&terminal.follow(&resources[0])), text_of_terminal(&kept));
    terminal.start("t3");
    // A name that nobody knows is not told.
    terminal.call_shows("f", "two");
    assert_eq!(terminal.last_action("chat/toolCallComplete")["result"].get("content"), None);
}

#[test]
fn ended_terminal_shown_in_no_call_is_removed() {
    for is_truncated in [false, true] {
        let (mut terminal, uri) = Terminal::new();
        if !is_truncated {
            // What the call says of it is replaced.
            terminal.report(TurnEvent::ToolContent { id: "c".to_owned(), content: Vec::new() });
        }
        terminal.print(TerminalEvent::Exited(Some(0)));
        terminal.report(TurnEvent::Ended(TurnEnd::Complete));
        if is_truncated {
            terminal.world.dispatch(CLIENT, CHAT, json!({ "type": "chat/truncated" }));
        }
        terminal.assert_terminal_is_removed(&uri);
    }
}

#[test]
fn command_that_outlives_its_call_and_turn_is_followed_to_its_end() {
    let (mut terminal, uri) = Terminal::new();
    let state = terminal.follow(&uri);
    terminal.done();
    let done = terminal.last_action("chat/toolCallComplete");
    assert_eq!(done["result"]["content"][0]["result"], Value::Null);
    terminal.report(TurnEvent::Ended(TurnEnd::Complete));
    terminal.data("late");
    terminal.leave(&uri);
    terminal.print(TerminalEvent::Exited(Some(0)));
    let after = terminal.follow(&uri);
    assert_eq!((text_of_terminal(&after).as_str(), after.claim), ("late", state.claim));
}

#[test]
fn commands_end_with_their_agent_and_terminals_with_their_chat() {
    let (mut terminal, uri) = Terminal::new();
    let state = terminal.follow(&uri);
    terminal.hear(Event::Died { reason: "it is dead".to_owned() });
    let mirror = terminal.mirror(state, &uri);
    assert_eq!(serde_json::to_value(&mirror.lifecycle).unwrap(), json!({ "status": "exited" }));
    assert_eq!(mirror, terminal.follow(&uri));
    // What has its name in another conversation is another one.
    terminal.print(TerminalEvent::Data("x".to_owned()));
    assert_eq!(terminal.world.lines_to(CLIENT), Vec::<Value>::new());
    terminal.ask("disposeSession", json!({ "channel": SESSION }));
    terminal.assert_terminal_is_removed(&uri);
}

#[test]
fn command_claimed_for_the_chat_continues_without_its_call() {
    let (mut terminal, uri) = Terminal::new();
    let state = terminal.follow(&uri);
    assert_eq!(terminal.world.dispatch(CLIENT, &uri, claimed_for_chat()), None);
    let background = Command::Background { terminal: "one".to_owned() };
    assert!(terminal.world.commands().any(|command| *command == background), "its agent is told");
    let actions = terminal.world.actions(CLIENT);
    let works: Vec<&Value> = actions.iter().map(|action| &action["work"]).collect();
    let work = json!({ "kind": "shell", "id": uri, "label": "make", "command": "make", "terminal": uri,
        "startedAt": "1970-01-01T00:00:00.000Z" });
    assert_eq!(works, [&Value::Null, &work]);
    // Again: that changes nothing.
    assert_eq!(terminal.world.dispatch(CLIENT, &uri, claimed_for_chat()), None);
    assert_eq!(terminal.world.lines_to(CLIENT).len(), 1);
    terminal.done();
    terminal.data("late");
    terminal.world.take();
    terminal.print(TerminalEvent::Exited(Some(0)));
    assert_eq!(terminal.last_action("chat/backgroundWorkRemoved")["id"], json!(uri));
    let after = terminal.follow(&uri);
    assert_ne!(after.claim, state.claim);
    // It has ended.
    let of_turn = json!({ "kind": "session", "session": SESSION, "chat": CHAT, "turnId": "t1" });
    let of_turn = json!({ "type": "terminal/claimed", "claim": of_turn });
    for (claimed, is_refused) in [(claimed_for_chat(), false), (of_turn, true)] {
        assert_eq!(terminal.world.dispatch(CLIENT, &uri, claimed).is_some(), is_refused);
    }
}

#[test]
fn background_work_of_a_dead_host_is_removed_by_the_next_host() {
    let (mut terminal, uri) = Terminal::of(World::saving(Core::new()));
    terminal.world.dispatch(CLIENT, &uri, claimed_for_chat());
    terminal.done();
    terminal.report(TurnEvent::Ended(TurnEnd::Complete));
    let saved = saved(&terminal.world.take());
    let mut host = Core::new();
    let outputs = host.feed(Input::Restored(Box::new(LoadedSession::of(saved, &Default::default()))));
    let removed = outputs.iter().filter_map(|output| match output {
        Output::Record(Record::Action(_, line)) => serde_json::from_slice::<Value>(&line.line).ok(),
        _ => None,
    });
    let removed: Vec<Value> = removed.map(|line| line["params"]["action"].clone()).collect();
    assert_eq!(removed[0], json!({ "type": "chat/backgroundWorkRemoved", "id": uri }));
    // The chat, its row and its session are not busy with it any more.
    assert_eq!(removed[1], json!({ "type": "chat/activityChanged" }));
    assert_eq!(removed[2]["summary"]["activity"], Value::Null);
    assert_eq!(removed[3], json!({ "type": "session/activityChanged" }));
    assert_eq!(removed.len(), 4);
}

#[test]
fn running_command_moves_with_its_chat() {
    let (mut terminal, _) = Terminal::new();
    terminal.done();
    terminal.report(TurnEvent::Ended(TurnEnd::Complete));
    terminal.world.take();
    // Another chat of the session: the first one stays.
    terminal.ask("createChat", json!({ "channel": SESSION, "chat": "ahp-chat:/b" }));
    terminal.world.start(CLIENT, "ahp-chat:/b", "t2", "go");
    terminal.chat = terminal.world.opened();
    terminal.hear(Event::Opened);
    terminal.run = terminal.world.started();
    terminal.world.subscribe(CLIENT, "ahp-chat:/b");
    let uri = terminal.show();
    let state = terminal.follow(&uri);
    terminal.done();
    terminal.report(TurnEvent::Ended(TurnEnd::Complete));
    terminal.ask("createSession", json!({ "channel": "ahp-session:/o" }));
    let destination = json!({ "kind": "session", "session": "ahp-session:/o" });
    let params = json!({ "channel": "ahp-chat:/b", "destination": destination });
    terminal.ask("moveChat", params);
    let mirror = terminal.mirror(state, &uri);
    let claim = serde_json::to_value(&mirror.claim).unwrap();
    assert_eq!((&claim["session"], &claim["chat"]), (&json!("ahp-session:/o"), &json!("ahp-chat:/b")));
    assert_eq!(mirror, terminal.follow(&uri));
}

#[test]
fn clients_cannot_act_on_a_terminal_of_an_agent() {
    let (mut terminal, uri) = Terminal::new();
    terminal.follow(&uri);
    let claim = json!({ "kind": "client", "clientId": "me" });
    for action in [
        json!({ "type": "terminal/input", "data": "x" }),
        json!({ "type": "terminal/resized", "cols": 1, "rows": 1 }),
        json!({ "type": "terminal/claimed", "claim": claim }),
        json!({ "type": "terminal/titleChanged", "title": "x" }),
        json!({ "type": "terminal/cleared" }),
        json!({ "type": "terminal/data", "data": "x" }),
    ] {
        assert!(terminal.world.dispatch(CLIENT, &uri, action.clone()).is_some(), "{action}");
        assert_eq!(terminal.world.lines_to(CLIENT).len(), 1, "{action}");
    }
}

/// Random event of a test.
#[derive(Debug, Clone)]
enum Happening {
    Data(u16),
    Cleared,
    Exited,
    CallIsOver,
    TurnIsOver,
    AgentIsGone,
    GoesOn,
    Moves(usize, Moves),
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
        MOVES => moves().prop_map(|(at, moves)| Happening::Moves(at, moves)),
    ]
}

fn happen(terminal: &mut Terminal, uri: &str, followers: &mut Followers, happening: &Happening) {
    match happening {
        Happening::Data(lines) => {
            let text: String = (0..*lines).map(|line| format!("{line} ä\n")).collect();
            terminal.data(format!("{text}tail"));
        }
        Happening::Cleared => terminal.print(TerminalEvent::Cleared),
        Happening::Exited => terminal.print(TerminalEvent::Exited(Some(1))),
        Happening::CallIsOver => terminal.done(),
        Happening::TurnIsOver => terminal.report(TurnEvent::Ended(TurnEnd::Complete)),
        Happening::AgentIsGone => terminal.hear(Event::Died { reason: "gone".to_owned() }),
        Happening::GoesOn => {
            terminal.world.dispatch(CLIENT, uri, claimed_for_chat());
        }
        Happening::Moves(at, moves) => followers.go(&mut terminal.world, *at, moves),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_agent_terminal_mirror_equals_a_fresh_snapshot(
        happenings in prop::collection::vec(happening(), 1..40)
    ) {
        let (mut terminal, uri) = Terminal::new();
        terminal.world.arrive(OBSERVER, "o");
        let mut followers = Followers::new(&uri);
        for happening in &happenings {
            happen(&mut terminal, &uri, &mut followers, happening);
            followers.hear(&mut terminal.world);
            followers.check(&mut terminal.world, OBSERVER);
        }
    }
}
