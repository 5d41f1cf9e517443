//! How large turns and states may get, in a host in memory.
//!
//! Owns: turns that are one byte under, at and over the limit, those that a store brings back, and states that clients
//! fill.
//! Never: uses the limits of a real host, which are large.

use ahp_sidecar::host::effects::{
    ChatKey, ChatRow, Command, ConnectionId, Event, Frame, Input, Output, RunId, SavedChat, TextKind,
    TurnEnd, TurnEvent,
};
use ahp_sidecar::host::limits::{Limits, Sieve};
use ahp_sidecar::host::LoadedSession;
use serde_json::{json, Value};

use crate::support::core::{opened, said, saved, Core, CHAT, SESSION};

const CLIENT: ConnectionId = ConnectionId(1);

/// A host with a session that is ready.
struct World {
    host: Core,
    chat: ChatKey,
    /// Everything that it has put out.
    outputs: Vec<Output>,
}

impl World {
    fn new(limits: Limits) -> Self {
        let host = Core::limited(limits);
        let mut world = Self { host, chat: ChatKey(0), outputs: Vec::new() };
        world.feed(Input::Opened { connection: CLIENT, default_directory: None });
        world.ask("initialize", json!({ "clientId": "me", "protocolVersions": ["1.0.0"] }));
        world
    }

    fn with_session(limits: Limits) -> Self {
        let mut world = Self::new(limits);
        world.ask("createSession", json!({ "channel": SESSION }));
        world.chat = opened(&world.outputs);
        world.feed(Input::Agent(world.chat, Event::Opened));
        world
    }

    fn feed(&mut self, input: Input) -> &[Output] {
        let before = self.outputs.len();
        let outputs = self.host.feed_and_save(input);
        self.outputs.extend(outputs);
        &self.outputs[before..]
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let outputs = self.feed(said(CLIENT, json!({ "id": 1, "method": method, "params": params })));
        let answer = outputs.iter().find_map(|output| match output {
            Output::Frame(_, Frame::Result { result, .. }) => Some(serde_json::from_slice(result).unwrap()),
            Output::Frame(_, Frame::Error { error, .. }) => Some(json!({ "error": error.message })),
            _ => None,
        });
        answer.expect("an answer")
    }

    /// Dispatches an action; returns why it was refused, if it was.
    fn dispatch(&mut self, channel: &str, action: Value) -> Option<String> {
        let params = json!({ "channel": channel, "clientSeq": 1, "action": action });
        let outputs = self.feed(said(CLIENT, json!({ "method": "dispatchAction", "params": params })));
        outputs.iter().find_map(|output| match output {
            Output::Frame(_, Frame::Answer(line)) => {
                let line: Value = serde_json::from_slice(line).unwrap();
                line["params"]["rejectionReason"].as_str().map(str::to_owned)
            }
            _ => None,
        })
    }

    fn state(&mut self, channel: &str) -> Value {
        self.ask("subscribe", json!({ "channel": channel }))["snapshot"]["state"].take()
    }

    /// Starts a turn; returns its run.
    fn start(&mut self, turn: &str) -> RunId {
        let message = json!({ "text": "go", "origin": { "kind": "user" } });
        let action = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message });
        assert_eq!(self.dispatch(CHAT, action), None);
        let runs = self.outputs.iter().rev().find_map(|output| match output {
            Output::Agent(_, command) => match **command {
                Command::StartTurn { run, .. } => Some(run),
                _ => None,
            },
            _ => None,
        });
        runs.expect("the agent was told to start")
    }

    fn report(&mut self, run: RunId, event: TurnEvent) -> &[Output] {
        self.feed(Input::Agent(self.chat, Event::Turn(run, event)))
    }

    fn text(&mut self, run: RunId, text: &str) {
        self.report(run, TurnEvent::Text(TextKind::Markdown, text.to_owned()));
    }

    fn last_turn(&mut self) -> Value {
        self.state(CHAT)["turns"].as_array_mut().unwrap().pop().unwrap()
    }
}

fn of_turns(turn_bytes: usize) -> Limits {
    Limits { turn_bytes, ..Limits::default() }
}

fn of_states(state_bytes: usize) -> Limits {
    Limits { state_bytes, ..Limits::default() }
}

/// What the agent says in a turn, with what has to be escaped, and a call.
fn speak(world: &mut World, run: RunId) {
    world.text(run, "begin \"\n\u{1}ä");
    world.text(run, " and more \\");
    let (name, display_name) = ("echo".to_owned(), "Echo".to_owned());
    world.report(run, TurnEvent::ToolStarted { id: "c".to_owned(), name, display_name });
    world.text(run, "one");
    world.text(run, " last");
}

#[test]
fn a_turn_one_byte_over_the_limit_ends_and_its_agent_stops() {
    let mut world = World::with_session(Limits::default());
    let run = world.start("t");
    speak(&mut world, run);
    let parts = world.state(CHAT)["activeTurn"]["responseParts"].take();
    let bytes = parts.as_array().unwrap().iter().map(|part| part.to_string().len()).sum::<usize>();

    for (limit, ends) in [(bytes + 1, false), (bytes, false), (bytes - 1, true)] {
        let mut world = World::with_session(of_turns(limit));
        let run = world.start("t");
        speak(&mut world, run);
        if !ends {
            assert_eq!(world.state(CHAT)["activeTurn"]["responseParts"], parts, "{limit}");
            continue;
        }
        let told = |output: &Output| matches!(output, Output::Agent(_, command) if matches!(**command, Command::Cancel { run: it } if it == run));
        assert!(world.outputs.iter().any(told), "its agent was not told");
        let turn = world.last_turn();
        let shown = turn["responseParts"].as_array().unwrap();
        let error = &shown.last().unwrap();
        assert_eq!(
            (&error["error"]["errorType"], &error["resumable"]),
            (&"turnTooLarge".into(), &false.into())
        );
        let why = error["error"]["message"].as_str().unwrap();
        assert!(why.contains(&format!("{limit} bytes")), "{why}");
        // What was told is shown, what is open is closed, and what comes later is nothing.
        assert_eq!((&shown[0], &shown[2]), (&parts[0], &parts[2]));
        assert_eq!(shown[1]["toolCall"]["status"], "completed", "{turn}");
        world.text(run, "late");
        assert_eq!(world.last_turn(), turn);
        // The next turn waits for the agent to have stopped, and has all the room.
        world.report(run, TurnEvent::Ended(TurnEnd::Cancelled));
        let run = world.start("t2");
        world.text(run, "fine");
        world.report(run, TurnEvent::Ended(TurnEnd::Complete));
        assert_eq!(world.last_turn()["state"], "complete");
    }
}

#[test]
fn what_takes_the_place_of_something_is_not_counted_twice() {
    let mut world = World::with_session(of_turns(3000));
    let run = world.start("t");
    let id = || "c".to_owned();
    world.report(
        run,
        TurnEvent::ToolStarted { id: id(), name: "shell".to_owned(), display_name: "Shell".to_owned() },
    );
    for _ in 0..50 {
        world.report(run, TurnEvent::ToolInput { id: id(), delta: "more".to_owned() });
    }
    let gate = ahp_sidecar::host::effects::ToolGate::Open;
    let input = "x".repeat(200);
    world.report(run, TurnEvent::ToolReady { id: id(), input, message: "runs".into(), gate });
    for _ in 0..20 {
        let text = json!({ "type": "text", "text": "x".repeat(1000) });
        let content = vec![serde_json::from_value(text).unwrap()];
        world.report(run, TurnEvent::ToolContent { id: id(), content });
    }
    assert_eq!(world.state(CHAT)["activeTurn"]["id"], "t");
    for _ in 0..500 {
        world.report(run, TurnEvent::ToolInput { id: id(), delta: "ignored".to_owned() });
    }
    assert_eq!(world.state(CHAT)["activeTurn"]["id"], "t");
}

#[test]
fn a_turn_that_a_store_brings_back_is_cut_where_it_is_too_large_and_whole_where_it_is_not() {
    let mut world = World::with_session(Limits::default());
    let run = world.start("t");
    speak(&mut world, run);
    let parts = world.state(CHAT)["activeTurn"]["responseParts"].take();
    let bytes = parts.as_array().unwrap().iter().map(|part| part.to_string().len()).sum::<usize>();
    let saved = saved(&world.outputs);
    assert!(saved.chats[0].actions.len() > 3, "most of it is in actions");

    for over in [false, true] {
        let mut world = World::new(of_turns(bytes - usize::from(over)));
        let limits = of_turns(bytes - usize::from(over));
        world.feed(Input::Restored(Box::new(LoadedSession::of(saved.clone(), &limits))));
        let turn = world.last_turn();
        let shown = turn["responseParts"].as_array().unwrap();
        let kind = &shown.last().unwrap()["error"]["errorType"];
        if over {
            assert_eq!(kind, "turnTooLarge");
            assert_eq!(shown[2]["content"], "one las");
        } else {
            assert_eq!(kind, "interrupted");
            assert_eq!(shown[2], parts[2]);
        }
        assert_eq!(shown[0], parts[0]);
    }
}

#[test]
fn a_row_that_is_too_large_alone_is_cut_and_what_is_besides_the_turn_is_kept() {
    let mut world = World::with_session(Limits::default());
    let run = world.start("t");
    world.text(run, &"x".repeat(2 << 20));
    // That made a new row.
    world.text(run, "y");
    let draft = json!({ "text": "a draft", "origin": { "kind": "user" } });
    assert_eq!(world.dispatch(CHAT, json!({ "type": "chat/draftChanged", "draft": draft })), None);
    let saved = saved(&world.outputs);
    assert!(saved.chats[0].row.body.len() > 2 << 20, "the row knows of the text");
    assert_eq!(saved.chats[0].actions.len(), 2);

    let mut world = World::new(of_turns(1000));
    world.feed(Input::Restored(Box::new(LoadedSession::of(saved, &of_turns(1000)))));
    let chat = world.state(CHAT);
    let text = chat["turns"][0]["responseParts"][0]["content"].as_str().unwrap();
    assert!(text.len() > 900 && text.len() < 1000, "{}", text.len());
    assert_eq!(chat["draft"]["text"], "a draft");
    let kept: usize = world
        .outputs
        .iter()
        .map(|output| match output {
            Output::Record(record) => record.bytes(),
            _ => 0,
        })
        .sum();
    assert!(kept < 10_000, "{kept} bytes are to be kept");
}

#[test]
fn of_what_follows_a_row_that_is_too_large_only_what_is_besides_the_turn_is_read() {
    let mut world = World::with_session(Limits::default());
    let run = world.start("t");
    speak(&mut world, run);
    assert_eq!(
        world.dispatch(
            CHAT,
            json!({ "type": "chat/draftChanged", "draft": { "text": "a draft",
        "origin": { "kind": "user" } } })
        ),
        None
    );
    let saved = saved(&world.outputs);
    let SavedChat { row, actions, .. } = &saved.chats[0];
    let admitted = |row: &ChatRow, limits: Limits| {
        let mut sieve = Sieve::new(limits);
        actions.iter().filter(|line| sieve.admits(row, line)).count()
    };
    assert_eq!(admitted(row, of_turns(0)), actions.len());
    let large = ChatRow { body: vec![b' '; 65 << 20].into(), ..row.clone() };
    assert_eq!(admitted(&large, of_turns(0)), 1);
    assert_eq!(admitted(&large, Limits::default()), actions.len());
}

#[test]
fn a_state_takes_what_it_has_room_for() {
    let mut world = World::with_session(of_states(10_000));
    let message = |length: usize| json!({ "text": "x".repeat(length), "origin": { "kind": "user" } });
    let draft = |length: usize| json!({ "type": "chat/draftChanged", "draft": message(length) });
    // Exactly as much as there is room for; one draft takes the place of the other.
    let fits = (9000..10_000).rev().find(|length| world.dispatch(CHAT, draft(*length)).is_none());
    let fits = fits.unwrap();
    assert_eq!(world.dispatch(CHAT, draft(fits - 1)), None);
    assert_eq!(world.dispatch(CHAT, draft(fits)), None);
    let refused = world.dispatch(CHAT, draft(fits + 1)).unwrap();
    assert!(refused.contains("no room"), "{refused}");
    // What makes it smaller is taken.
    assert_eq!(world.dispatch(CHAT, json!({ "type": "chat/draftChanged" })), None);

    let title = |length: usize| json!({ "type": "session/titleChanged", "title": "x".repeat(length) });
    assert_eq!(world.dispatch(SESSION, title(2000)), None);
    let refused = world.dispatch(SESSION, title(9900)).unwrap();
    assert!(refused.contains("the session has"), "{refused}");
    // A chat's name is in its session's state.
    assert!(world.dispatch(CHAT, title(9900)).unwrap().contains("the session has"));
    assert_eq!(world.dispatch(SESSION, title(20)), None);
}

#[test]
fn ids_and_uris_may_be_long_but_not_endless() {
    let mut world = World::with_session(Limits::default());
    let message = json!({ "text": "/hang", "origin": { "kind": "user" } });
    let start = |length: usize| json!({ "type": "chat/turnStarted", "turnId": "x".repeat(length), "message": message });
    assert!(world.dispatch(CHAT, start(1025)).unwrap().contains("1024 bytes"));
    assert_eq!(world.dispatch(CHAT, start(1024)), None);
    let queue = |length: usize| json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": "x".repeat(length), "message": message });
    assert!(world.dispatch(CHAT, queue(1025)).unwrap().contains("1024 bytes"));
    assert_eq!(world.dispatch(CHAT, queue(1024)), None);
    let uri = |length: usize| format!("{:x<length$}", "ahp-session:/");
    let refused = world.ask("createSession", json!({ "channel": uri(4097) }));
    assert!(refused["error"].as_str().unwrap().contains("4,096"), "{refused}");
    assert!(world.ask("createSession", json!({ "channel": uri(4096) })).is_null());
    let uri = |length: usize| format!("{:x<length$}", "ahp-chat:/");
    let refused = world.ask("createChat", json!({ "channel": SESSION, "chat": uri(4097) }));
    assert!(refused["error"].as_str().unwrap().contains("4,096"), "{refused}");
    assert!(world.ask("createChat", json!({ "channel": SESSION, "chat": uri(4096) })).is_null());
}
