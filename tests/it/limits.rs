//! How large turns and states may get, in a host in memory.
//!
//! Owns: turns that are one byte under, at and over the limit, those that a store brings back, and
//! states that clients fill.
//! Never: uses the limits of a real host, which are large.

use ahp_sidecar::host::effects::{
    ChatKey, ChatRow, Command, ConnectionId, Input, Output, RunId, SavedChat, SavedSession, TextKind,
    ToolGate, TurnEnd, TurnEvent,
};
use ahp_sidecar::host::limits::{Limits, ReplayFilter};
use ahp_sidecar::host::LoadedSession;
use serde_json::{json, Value};

use crate::support::core::{saved, Core, CHAT, SESSION};
use crate::support::world::{message, World};

const CLIENT: ConnectionId = ConnectionId(1);

/// A client, and a chat whose agent is open.
struct Chat {
    /// With everything that was put out.
    world: World,
    key: ChatKey,
}

impl Chat {
    fn new(limits: Limits) -> Self {
        let mut world = World::saving(Core::limited(limits));
        world.arrive(CLIENT, "me");
        let key = world.open_session(CLIENT);
        Self { world, key }
    }

    fn dispatch(&mut self, channel: &str, action: Value) -> Option<String> {
        self.world.dispatch(CLIENT, channel, action)
    }

    /// Starts a turn; returns its run.
    fn start(&mut self, turn: &str) -> RunId {
        self.world.start(CLIENT, CHAT, turn, "go");
        self.world.started()
    }

    fn report(&mut self, run: RunId, event: TurnEvent) {
        self.world.report(self.key, run, event);
    }

    fn text(&mut self, run: RunId, text: &str) {
        self.report(run, TurnEvent::Text(TextKind::Markdown, text.to_owned()));
    }

    /// The parts of the turn that runs.
    fn parts(&mut self) -> Value {
        self.world.state(CLIENT, CHAT)["activeTurn"]["responseParts"].take()
    }
}

fn last_turn(world: &mut World) -> Value {
    world.state(CLIENT, CHAT)["turns"].as_array_mut().unwrap().pop().unwrap()
}

/// A client of another host, to which a store brings back the session.
fn brought_back(saved: SavedSession, limits: Limits) -> World {
    let mut world = World::saving(Core::limited(limits));
    world.arrive(CLIENT, "me");
    world.feed(Input::Restored(Box::new(LoadedSession::of(saved, &limits))));
    world
}

/// Returns the bytes of a turn's parts.
fn bytes_of(parts: &Value) -> usize {
    parts.as_array().unwrap().iter().map(|part| part.to_string().len()).sum()
}

fn of_turns(turn_bytes: usize) -> Limits {
    Limits { turn_bytes, ..Limits::default() }
}

fn of_states(state_bytes: usize) -> Limits {
    Limits { state_bytes, ..Limits::default() }
}

/// Reports text that needs escaping and a tool call.
fn speak(chat: &mut Chat, run: RunId) {
    chat.text(run, "begin \"\n\u{1}ä");
    chat.text(run, " and more \\");
    let (name, display_name) = ("echo".to_owned(), "Echo".to_owned());
    chat.report(run, TurnEvent::ToolStarted { id: "c".to_owned(), name, display_name });
    chat.text(run, "one");
    chat.text(run, " last");
}

#[test]
fn turn_over_its_byte_limit_ends_and_its_agent_is_cancelled() {
    let mut chat = Chat::new(Limits::default());
    let run = chat.start("t");
    speak(&mut chat, run);
    let parts = chat.parts();
    let bytes = bytes_of(&parts);

    for (limit, ends) in [(bytes + 1, false), (bytes, false), (bytes - 1, true)] {
        let mut chat = Chat::new(of_turns(limit));
        let run = chat.start("t");
        speak(&mut chat, run);
        if !ends {
            assert_eq!(chat.parts(), parts, "{limit}");
            continue;
        }
        let is_told = chat.world.commands().any(|command| *command == Command::Cancel { run });
        assert!(is_told, "its agent was not told");
        let turn = last_turn(&mut chat.world);
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
        chat.text(run, "late");
        assert_eq!(last_turn(&mut chat.world), turn);
        // The next turn waits for the agent to have stopped, and has all the room.
        chat.report(run, TurnEvent::Ended(TurnEnd::Cancelled));
        let run = chat.start("t2");
        chat.text(run, "fine");
        chat.report(run, TurnEvent::Ended(TurnEnd::Complete));
        assert_eq!(last_turn(&mut chat.world)["state"], "complete");
    }
}

#[test]
fn replaced_content_counts_once_toward_the_turn_limit() {
    let mut chat = Chat::new(of_turns(3000));
    let run = chat.start("t");
    let id = || "c".to_owned();
    chat.report(
        run,
        TurnEvent::ToolStarted { id: id(), name: "shell".to_owned(), display_name: "Shell".to_owned() },
    );
    for _ in 0..50 {
        chat.report(run, TurnEvent::ToolInput { id: id(), delta: "more".to_owned() });
    }
    let input = "x".repeat(200);
    chat.report(run, TurnEvent::ToolReady { id: id(), input, message: "runs".into(), gate: ToolGate::Open });
    for _ in 0..20 {
        let text = json!({ "type": "text", "text": "x".repeat(1000) });
        let content = vec![serde_json::from_value(text).unwrap()];
        chat.report(run, TurnEvent::ToolContent { id: id(), content });
    }
    assert_eq!(chat.world.state(CLIENT, CHAT)["activeTurn"]["id"], "t");
    for _ in 0..500 {
        chat.report(run, TurnEvent::ToolInput { id: id(), delta: "ignored".to_owned() });
    }
    assert_eq!(chat.world.state(CLIENT, CHAT)["activeTurn"]["id"], "t");
}

#[test]
fn loaded_turn_over_its_byte_limit_is_truncated() {
    let mut chat = Chat::new(Limits::default());
    let run = chat.start("t");
    speak(&mut chat, run);
    let parts = chat.parts();
    let bytes = bytes_of(&parts);
    let saved = saved(&chat.world.outputs);
    assert!(saved.chats[0].actions.len() > 3, "most of it is in actions");

    for over in [false, true] {
        let turn = last_turn(&mut brought_back(saved.clone(), of_turns(bytes - usize::from(over))));
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
fn loaded_chat_row_over_the_turn_limit_is_truncated_but_retains_its_draft() {
    let mut chat = Chat::new(Limits::default());
    let run = chat.start("t");
    chat.text(run, &"x".repeat(2 << 20));
    // That made a new row.
    chat.text(run, "y");
    let draft = json!({ "type": "chat/draftChanged", "draft": message("a draft") });
    assert_eq!(chat.dispatch(CHAT, draft), None);
    let saved = saved(&chat.world.outputs);
    assert!(saved.chats[0].row.body.len() > 2 << 20, "the row knows of the text");
    assert_eq!(saved.chats[0].actions.len(), 2);

    let mut world = brought_back(saved, of_turns(1000));
    let chat = world.state(CLIENT, CHAT);
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
fn only_non_turn_actions_behind_an_oversized_row_are_loaded() {
    let mut chat = Chat::new(Limits::default());
    let run = chat.start("t");
    speak(&mut chat, run);
    let draft = json!({ "type": "chat/draftChanged", "draft": message("a draft") });
    assert_eq!(chat.dispatch(CHAT, draft), None);
    let saved = saved(&chat.world.outputs);
    let SavedChat { row, actions, .. } = &saved.chats[0];
    let admitted = |row: &ChatRow, limits: Limits| {
        let mut filter = ReplayFilter::new(limits);
        actions.iter().filter(|line| filter.admits(row, line)).count()
    };
    assert_eq!(admitted(row, of_turns(0)), actions.len());
    let large = ChatRow { body: vec![b' '; 65 << 20].into(), ..row.clone() };
    assert_eq!(admitted(&large, of_turns(0)), 1);
    assert_eq!(admitted(&large, Limits::default()), actions.len());
}

#[test]
fn session_and_chat_states_are_limited_in_bytes() {
    let mut chat = Chat::new(of_states(10_000));
    let draft = |length: usize| json!({ "type": "chat/draftChanged", "draft": message(&"x".repeat(length)) });
    // Exactly as much as there is room for; one draft takes the place of the other.
    let fits = (9000..10_000).rev().find(|length| chat.dispatch(CHAT, draft(*length)).is_none());
    let fits = fits.unwrap();
    assert_eq!(chat.dispatch(CHAT, draft(fits - 1)), None);
    assert_eq!(chat.dispatch(CHAT, draft(fits)), None);
    let refused = chat.dispatch(CHAT, draft(fits + 1)).unwrap();
    assert!(refused.contains("no room"), "{refused}");
    // What makes it smaller is taken.
    assert_eq!(chat.dispatch(CHAT, json!({ "type": "chat/draftChanged" })), None);

    let title = |length: usize| json!({ "type": "session/titleChanged", "title": "x".repeat(length) });
    assert_eq!(chat.dispatch(SESSION, title(2000)), None);
    let refused = chat.dispatch(SESSION, title(9900)).unwrap();
    assert!(refused.contains("the session has"), "{refused}");
    // A chat's name is in its session's state.
    assert!(chat.dispatch(CHAT, title(9900)).unwrap().contains("the session has"));
    assert_eq!(chat.dispatch(SESSION, title(20)), None);
}

#[test]
fn ids_are_limited_to_1024_bytes_and_uris_to_4096() {
    let mut chat = Chat::new(Limits::default());
    let message = message("/hang");
    let start = |length: usize| json!({ "type": "chat/turnStarted", "turnId": "x".repeat(length), "message": message });
    assert!(chat.dispatch(CHAT, start(1025)).unwrap().contains("1024 bytes"));
    assert_eq!(chat.dispatch(CHAT, start(1024)), None);
    let queue = |length: usize| json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": "x".repeat(length), "message": message });
    assert!(chat.dispatch(CHAT, queue(1025)).unwrap().contains("1024 bytes"));
    assert_eq!(chat.dispatch(CHAT, queue(1024)), None);
    let uri = |length: usize| format!("{:x<length$}", "ahp-session:/");
    let mut create = |method: &str, params: Value| chat.world.ask(CLIENT, method, params);
    let refused = create("createSession", json!({ "channel": uri(4097) })).unwrap_err();
    assert!(refused.message.contains("4,096"), "{refused}");
    assert_eq!(create("createSession", json!({ "channel": uri(4096) })), Ok(Value::Null));
    let uri = |length: usize| format!("{:x<length$}", "ahp-chat:/");
    let refused = create("createChat", json!({ "channel": SESSION, "chat": uri(4097) })).unwrap_err();
    assert!(refused.message.contains("4,096"), "{refused}");
    assert_eq!(create("createChat", json!({ "channel": SESSION, "chat": uri(4096) })), Ok(Value::Null));
}
