//! Messages that are commands: when they are run, how they end, and what becomes of what waits behind them.
//!
//! Owns: a host in memory with one chat, and what commands do as a test has it.
//! Never: runs a command; the transcripts do.

use std::time::Duration;

use ahp_sidecar::host::effects::{
    ChatKey, Command, ConnectionId, Event, Frame, Input, Output, PtyCommand, PtyEvent, RunId, TerminalKey,
    Timer, Transcript, TurnEnd, TurnEvent,
};
use ahp_sidecar::host::limits::Limits;
use ahp_sidecar::host::LoadedSession;
use ahp_sidecar::wire::terminals::{OUTPUT_BYTES_KEPT, SCROLLBACK_BYTES_MAX};
use serde_json::{json, Value};

use crate::support::core::{opened, said, saved, Core, CHAT, SESSION};

const CLIENT: ConnectionId = ConnectionId(1);

struct World {
    core: Core,
    outputs: Vec<Output>,
    chat: ChatKey,
    requests: u64,
}

impl World {
    /// A chat whose agent is there.
    fn new(limits: Limits) -> Self {
        let mut world = Self::creating(limits);
        world.feed(Input::Agent(world.chat, Event::Opened));
        world
    }

    /// One whose agent is not there yet.
    fn creating(limits: Limits) -> Self {
        let core = Core::limited(limits);
        let mut world = Self { core, outputs: Vec::new(), chat: ChatKey(0), requests: 0 };
        world.feed(Input::Opened { connection: CLIENT, default_directory: None });
        world.ask(
            "initialize",
            json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] }),
        );
        world.ask("createSession", json!({ "channel": SESSION }));
        world.chat = opened(&world.outputs);
        world.ask("subscribe", json!({ "channel": CHAT }));
        world
    }

    fn feed(&mut self, input: Input) {
        let outputs = self.core.feed_and_save(input);
        self.outputs.extend(outputs);
    }

    fn ask(&mut self, method: &str, params: Value) {
        self.requests += 1;
        self.feed(said(CLIENT, json!({ "id": self.requests, "method": method, "params": params })));
    }

    fn dispatch(&mut self, action: Value) {
        let params = json!({ "channel": CHAT, "clientSeq": 1, "action": action });
        self.feed(said(CLIENT, json!({ "method": "dispatchAction", "params": params })));
    }

    fn start(&mut self, turn: &str, text: &str) {
        let message = json!({ "text": text, "origin": { "kind": "user" } });
        self.dispatch(json!({ "type": "chat/turnStarted", "turnId": turn, "message": message }));
    }

    fn pend(&mut self, kind: &str, id: &str, text: &str) {
        let message = json!({ "text": text, "origin": { "kind": "user" } });
        self.dispatch(
            json!({ "type": "chat/pendingMessageSet", "kind": kind, "id": id, "message": message }),
        );
    }

    /// The command that was started since it was last asked for anything: its terminal and its line.
    fn started(&self) -> Option<(TerminalKey, String)> {
        self.outputs.iter().find_map(|output| match output {
            Output::Pty(key, PtyCommand::Start(launch)) => Some((*key, launch.command.clone().unwrap())),
            _ => None,
        })
    }

    fn pty(&mut self, key: TerminalKey, event: PtyEvent) {
        self.feed(Input::Pty(key, event));
    }

    /// The turn that an agent was told to run: what it was told, with what was run before.
    fn told_agent(&self) -> Option<(RunId, String, Vec<String>)> {
        self.outputs.iter().find_map(|output| match output {
            Output::Agent(_, command) => match &**command {
                Command::StartTurn { run, message, attached } => {
                    let attached = attached.iter().map(|it| it.text.clone()).collect();
                    Some((*run, message.text.clone(), attached))
                }
                _ => None,
            },
            _ => None,
        })
    }

    /// What its agent is told of commands with its next message.
    fn told_of_commands(&mut self) -> Vec<Transcript> {
        self.actions();
        self.start("told", "go on");
        let attached = self.outputs.iter().find_map(|output| match output {
            Output::Agent(_, command) => match &**command {
                Command::StartTurn { attached, .. } => Some(attached.clone()),
                _ => None,
            },
            _ => None,
        });
        attached.expect("its agent was told to start")
    }

    /// A command is run that prints this and ends well; what its call says.
    fn ran(&mut self, turn: &str, line: &str, printed: &str) -> Value {
        self.actions();
        self.start(turn, line);
        let (key, _) = self.started().unwrap();
        self.pty(key, PtyEvent::Data(printed.to_owned()));
        self.pty(key, PtyEvent::Exited(Some(0)));
        self.result().1["content"].take()
    }

    fn ended_a_program(&self) -> bool {
        self.outputs.iter().any(|output| matches!(output, Output::Pty(_, PtyCommand::End)))
    }

    /// The actions that were told since it was last asked for them.
    fn actions(&mut self) -> Vec<Value> {
        let outputs = std::mem::take(&mut self.outputs);
        let frames = outputs.into_iter().filter_map(|output| match output {
            Output::Frame(_, Frame::Action(line)) => Some(line.line),
            Output::Frame(_, Frame::Answer(line)) => Some(line),
            _ => None,
        });
        frames
            .map(|line| serde_json::from_slice::<Value>(&line).unwrap()["params"]["action"].take())
            .collect()
    }

    /// The result of the call that is over.
    fn result(&mut self) -> (Vec<String>, Value) {
        let actions = self.actions();
        let names = actions.iter().filter_map(|it| it["type"].as_str().map(str::to_owned)).collect();
        let complete = actions.into_iter().find(|it| it["type"] == "chat/toolCallComplete");
        (names, complete.map_or(Value::Null, |it| it["result"].clone()))
    }
}

fn is_before(names: &[String], first: &str, second: &str) -> bool {
    let at =
        |name: &str| names.iter().position(|it| it == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
    at(first) < at(second)
}

#[test]
fn a_command_is_run_and_its_agent_is_told_of_it_with_the_next_message() {
    let mut world = World::new(Limits::default());
    world.actions();
    world.start("t1", "! ls -l ");
    assert_eq!(world.told_agent(), None, "it is nothing for the agent");
    let limit = world.outputs.iter().any(
        |it| matches!(it, Output::Timer(Timer::Command(_), after) if *after == Duration::from_secs(30 * 60)),
    );
    assert!(limit);
    let (key, line) = world.started().unwrap();
    assert_eq!(line, "ls -l");
    world.pty(key, PtyEvent::Started { program: "sh".to_owned() });
    // While it runs it may seem to wait; then the chat says so, until it prints something.
    world.actions();
    world.pty(key, PtyEvent::Waits);
    world.pty(key, PtyEvent::Waits);
    world.pty(key, PtyEvent::Data("\x1b[1mab\x1b[m\r\n".to_owned()));
    let told: Vec<Value> =
        world.actions().iter().filter(|it| it["type"] == "chat/activityChanged").cloned().collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0]["activity"].as_str().unwrap().contains("wait") && told[1].get("activity").is_none());
    world.pty(key, PtyEvent::Exited(Some(0)));
    let (names, result) = world.result();
    assert!(is_before(&names, "chat/toolCallComplete", "chat/turnComplete"));
    assert_eq!(result["content"][0]["result"], json!({ "exitCode": 0, "preview": "\x1b[1mab\x1b[m\r\n" }));
    assert_eq!((&result["success"], &result["content"][1]["text"]), (&json!(true), &json!("ab\n")));
    world.start("t2", "!false");
    let (key, _) = world.started().unwrap();
    world.pty(key, PtyEvent::Exited(Some(1)));
    let (_, result) = world.result();
    assert_eq!((&result["success"], &result["error"]["message"]), (&json!(false), &json!("exit code 1")));
    // Both, in their order, and once.
    world.start("t3", "what was that?");
    let (run, text, attached) = world.told_agent().unwrap();
    assert_eq!((text.as_str(), attached.len()), ("what was that?", 1));
    assert!(attached[0].find("ls -l") < attached[0].find("exit code 1"), "{attached:?}");
    world.feed(Input::Agent(world.chat, Event::Turn(run, TurnEvent::Ended(TurnEnd::Complete))));
    world.actions();
    world.start("t4", "and now?");
    assert_eq!(world.told_agent().unwrap().2, Vec::<String>::new());
}

#[test]
fn a_command_waits_for_its_session_and_for_the_turn_that_runs() {
    let mut world = World::creating(Limits::default());
    world.start("t1", "!one");
    assert_eq!(world.started(), None);
    let chat = world.chat;
    world.feed(Input::Agent(chat, Event::Opened));
    let (key, _) = world.started().unwrap();
    // What comes meanwhile is next.
    world.actions();
    world.pend("queued", "q1", "!two");
    world.pty(key, PtyEvent::Exited(Some(0)));
    let (key, line) = world.started().unwrap();
    assert_eq!(line, "two");
    world.pty(key, PtyEvent::Exited(Some(0)));
    world.actions();
    // An agent is not steered with one.
    world.start("t3", "work");
    let (run, ..) = world.told_agent().unwrap();
    world.pend("steering", "s1", "!three");
    assert!(!world
        .outputs
        .iter()
        .any(|it| matches!(it, Output::Agent(_, command) if matches!(&**command, Command::Steer { .. }))));
    assert_eq!(world.started(), None);
    world.feed(Input::Agent(chat, Event::Turn(run, TurnEvent::Ended(TurnEnd::Complete))));
    assert_eq!(world.started().unwrap().1, "three");
}

#[test]
fn a_command_ends_with_its_turn_and_after_its_time_and_not_with_the_agent() {
    let mut world = World::new(Limits::default());
    world.start("t1", "!cat");
    let (key, _) = world.started().unwrap();
    world.pty(key, PtyEvent::Data("x".to_owned()));
    world.feed(Input::Agent(world.chat, Event::Died { reason: "gone".to_owned() }));
    world.actions();
    world.dispatch(json!({ "type": "chat/turnCancelled", "turnId": "t1", "duration": 0 }));
    assert!(world.ended_a_program());
    let (names, result) = world.result();
    assert!(is_before(&names, "chat/toolCallComplete", "chat/turnCancelled"), "{names:?}");
    assert_eq!((&result["success"], &result["content"][1]["text"]), (&json!(false), &json!("x")));
    assert!(result["content"][0].get("result").is_some(), "{result}");
    world.start("t2", "!sleep 9999");
    let (key, _) = world.started().unwrap();
    world.feed(Input::Timer(Timer::Command(key)));
    assert!(world.ended_a_program());
    let (names, result) = world.result();
    assert!(is_before(&names, "chat/toolCallComplete", "chat/turnComplete"), "{names:?}");
    assert!(result["error"]["message"].as_str().unwrap().contains("30 minutes"), "{result}");
    // One that cannot be started has ended, too.
    world.start("t3", "!x");
    let (key, _) = world.started().unwrap();
    world.pty(key, PtyEvent::NotStarted("no such file".to_owned()));
    let (names, result) = world.result();
    assert_eq!(result["error"]["message"], "no such file");
    assert!(names.iter().any(|it| it == "chat/turnComplete"));
}

#[test]
fn a_command_is_run_where_there_is_room_and_only_where_it_may_be() {
    let mut world = World::new(Limits { ptys: 1, ..Limits::default() });
    let claim = json!({ "kind": "client", "clientId": "me" });
    world.ask("createTerminal", json!({ "channel": "x:/1", "claim": claim }));
    world.actions();
    world.start("t1", "!ls");
    assert_eq!(world.started(), None);
    let (names, result) = world.result();
    assert!(result["error"]["message"].as_str().unwrap().contains("all that this host has"), "{result}");
    assert!(names.iter().any(|it| it == "chat/turnComplete"));
    // Without terminals it is a message as any other.
    let mut world = World::new(Limits { ptys: 0, ..Limits::default() });
    world.start("t1", "!ls");
    assert_eq!(world.started(), None);
    assert_eq!(world.told_agent().unwrap().1, "!ls");
}

/// So much of what a command has printed stands in its call as text, and so much its agent is told of all of them.
const TEXT_BYTES: usize = 16 << 10;
const TOLD_BYTES: usize = 64 << 10;

#[test]
fn the_latest_of_what_a_command_has_printed_stands_in_its_call() {
    let left_out = "(What came before is left out.)\n";
    for (bytes, is_cut) in [(TEXT_BYTES - 1, false), (TEXT_BYTES, false), (TEXT_BYTES + 1, true)] {
        let content = World::new(Limits::default()).ran("t", "!a", &format!("{}y", "x".repeat(bytes - 1)));
        let text = content[1]["text"].as_str().unwrap();
        let latest = text.strip_prefix(left_out).unwrap_or(text);
        assert_eq!((latest.len(), latest.len() < text.len()), (bytes.min(TEXT_BYTES), is_cut), "{bytes}");
        assert!(latest.ends_with("xy"));
    }
    // Nor is it all where its terminal has forgotten the beginning.
    let colours = "\x1b[0m".repeat(SCROLLBACK_BYTES_MAX / 4 + 1);
    let content = World::new(Limits::default()).ran("t", "!a", &format!("lost{colours}end"));
    assert_eq!(content[1]["text"], format!("{left_out}end"));
    for (bytes, is_cut) in
        [(OUTPUT_BYTES_KEPT - 1, false), (OUTPUT_BYTES_KEPT, false), (OUTPUT_BYTES_KEPT + 1, true)]
    {
        let content = World::new(Limits::default()).ran("t", "!a", &"x".repeat(bytes));
        let result = &content[0]["result"];
        assert_eq!(result["preview"].as_str().unwrap().len(), bytes.min(OUTPUT_BYTES_KEPT));
        assert_eq!(result["truncated"] == true, is_cut, "{bytes} bytes");
    }
}

#[test]
fn an_agent_is_told_of_the_latest_commands_as_far_as_there_is_room() {
    let told = |outputs: &[usize]| {
        let mut world = World::new(Limits::default());
        for (at, bytes) in outputs.iter().enumerate() {
            world.ran(&format!("t{at}"), "!a", &format!("{at}{}", "x".repeat(bytes - 1)));
        }
        let mut told = world.told_of_commands();
        assert!(told.len() <= 1, "{told:?}");
        told.pop().expect("something is told")
    };
    let around = told(&[1]).text.len() - 1;
    let later = [16_000; 4];
    let first = TOLD_BYTES - 4 * (around + 16_000) - around;
    for (first, is_cut) in [(first - 1, false), (first, false), (first + 1, true)] {
        let all = told(&[&[first][..], &later].concat());
        assert_eq!((all.cut, all.text.contains("\n0x")), (is_cut, !is_cut), "{first}");
        assert!(all.text.len() <= TOLD_BYTES && (1..=4).all(|at| all.text.contains(&format!("\n{at}x"))));
    }
}

#[test]
fn an_agent_is_told_of_a_command_that_takes_all_the_room() {
    // What is printed is fenced with more backticks than it has, on both of its sides and those of the line.
    for (line, printed) in [
        ("!a".to_owned(), "`".repeat(TEXT_BYTES)),
        (format!("!{}", "x".repeat(2 * TOLD_BYTES)), "end".to_owned()),
    ] {
        let mut world = World::new(Limits::default());
        world.ran("t1", "!before", "lost");
        world.ran("t2", &line, &printed);
        let told = world.told_of_commands();
        assert_eq!((told.len(), told[0].text.len(), told[0].cut), (1, TOLD_BYTES, true));
        assert!(!told[0].text.contains("before"));
    }
    // Nothing in the line ends what sets it apart.
    let mut world = World::new(Limits::default());
    world.ran("t1", "!echo '````'", "x");
    let told = world.told_of_commands().remove(0).text;
    assert!(told.contains("\n`````\necho '````'\n`````\n"), "{told}");
}

#[test]
fn a_command_that_the_end_of_the_host_has_interrupted_is_not_taken_up_again() {
    let (with, without) = (Limits::default(), Limits { ptys: 0, ..Limits::default() });
    for (text, before, after, is_command) in [
        ("!rm x", with, with, true),
        ("!rm x", with, without, true),
        ("!rm x", without, without, false),
        ("remove x", with, with, false),
    ] {
        let mut world = World::new(before);
        world.start("t", text);
        assert_eq!(world.started().is_some(), is_command);
        let saved = saved(&world.outputs);
        let mut core = Core::limited(after);
        let loaded = LoadedSession::of(saved, &after);
        core.feed(Input::Restored(Box::new(loaded)));
        let mut after = World { core, outputs: Vec::new(), chat: world.chat, requests: 0 };
        after.feed(Input::Opened { connection: CLIENT, default_directory: None });
        let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
        after.ask("initialize", hello);
        after.outputs.clear();
        after.ask("subscribe", json!({ "channel": CHAT }));
        let answer = after.outputs.iter().find_map(|output| match output {
            Output::Frame(_, Frame::Result { result, .. }) => serde_json::from_slice::<Value>(result).ok(),
            _ => None,
        });
        let mut state = answer.expect("an answer")["snapshot"]["state"].take();
        let part = state["turns"][0]["responseParts"].as_array_mut().unwrap().pop().unwrap();
        assert_eq!(part["error"]["errorType"], "interrupted");
        assert_eq!(part["resumable"], !is_command, "{part}");
        // A client that asks all the same is refused, and nothing runs.
        after.dispatch(json!({ "type": "chat/turnResume", "turnId": "t" }));
        assert_eq!(after.started(), None);
    }
}
