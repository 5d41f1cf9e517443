//! Messages that are commands: when they are run, how they end, and what becomes of what waits
//! behind them.
//!
//! Owns: a host in memory with one chat, and what commands do as a test has it.
//! Never: runs a command; the transcripts do.

use std::time::Duration;

use ahp_sidecar::host::effects::{
    ChatKey, Command, ConnectionId, Event, Input, Output, PtyCommand, PtyEvent, RunId, TerminalKey, Timer,
    Transcript, TurnEnd, TurnEvent,
};
use ahp_sidecar::host::limits::Limits;
use ahp_sidecar::host::LoadedSession;
use ahp_sidecar::wire::terminals::{OUTPUT_BYTES_KEPT, SCROLLBACK_BYTES_MAX};
use serde_json::{json, Value};

use crate::support::core::{saved, Core, CHAT};
use crate::support::world::World;

const CLIENT: ConnectionId = ConnectionId(1);

/// A chat, and the one client that types into it.
struct Chat {
    world: World,
    key: ChatKey,
}

impl Chat {
    /// One whose agent is there.
    fn new(limits: Limits) -> Self {
        let mut chat = Self::creating(limits);
        chat.world.agent(chat.key, Event::Opened);
        chat
    }

    /// One whose agent is not there yet.
    fn creating(limits: Limits) -> Self {
        let mut world = World::saving(Core::limited(limits));
        world.arrive(CLIENT, "me");
        let key = world.create_session(CLIENT);
        world.subscribe(CLIENT, CHAT);
        Self { world, key }
    }

    fn start(&mut self, turn: &str, text: &str) {
        self.world.start(CLIENT, CHAT, turn, text);
    }

    /// The command that was started since it was last asked for actions: its terminal and its line.
    fn started(&self) -> Option<(TerminalKey, String)> {
        self.world.outputs.iter().find_map(|output| match output {
            Output::Pty(key, PtyCommand::Start(launch)) => Some((*key, launch.command.clone().unwrap())),
            _ => None,
        })
    }

    /// The turn that an agent was told to run: what it was told, with what was run before.
    fn agent_prompt(&self) -> Option<(RunId, String, Vec<Transcript>)> {
        self.world.commands().find_map(|command| match command {
            Command::StartTurn { run, message, attached } => {
                Some((*run, message.text.clone(), attached.clone()))
            }
            _ => None,
        })
    }

    /// Starts a turn and returns the transcripts of commands that its agent receives with the
    /// message.
    fn attached_commands(&mut self) -> Vec<Transcript> {
        self.actions();
        self.start("told", "go on");
        self.agent_prompt().expect("its agent was told to start").2
    }

    /// A command is run that prints this and ends well; what its call says.
    fn ran(&mut self, turn: &str, line: &str, printed: &str) -> Value {
        self.actions();
        self.start(turn, line);
        let (key, _) = self.started().unwrap();
        self.world.pty(key, PtyEvent::Data(printed.to_owned()));
        self.world.pty(key, PtyEvent::Exited(Some(0)));
        self.result().1["content"].take()
    }

    fn ended_a_program(&self) -> bool {
        self.world.outputs.iter().any(|output| matches!(output, Output::Pty(_, PtyCommand::End)))
    }

    /// The actions that were told since it was last asked for them.
    fn actions(&mut self) -> Vec<Value> {
        self.world.actions(CLIENT)
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
fn command_line_runs_and_is_attached_to_the_next_message_for_the_agent() {
    let mut chat = Chat::new(Limits::default());
    chat.actions();
    chat.start("t1", "! ls -l ");
    assert_eq!(chat.agent_prompt(), None, "it is nothing for the agent");
    let limit = Duration::from_secs(30 * 60);
    assert!(chat.world.timers().any(|(timer, after)| matches!(timer, Timer::Command(_)) && after == limit));
    let (key, line) = chat.started().unwrap();
    assert_eq!(line, "ls -l");
    chat.world.pty(key, PtyEvent::Started { program: "sh".to_owned() });
    // While it runs it may seem to wait; then the chat says so, until it prints something.
    chat.actions();
    chat.world.pty(key, PtyEvent::Waits);
    chat.world.pty(key, PtyEvent::Waits);
    chat.world.pty(key, PtyEvent::Data("\x1b[1mab\x1b[m\r\n".to_owned()));
    let told: Vec<Value> =
        chat.actions().iter().filter(|it| it["type"] == "chat/activityChanged").cloned().collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0]["activity"].as_str().unwrap().contains("wait") && told[1].get("activity").is_none());
    chat.world.pty(key, PtyEvent::Exited(Some(0)));
    let (names, result) = chat.result();
    assert!(is_before(&names, "chat/toolCallComplete", "chat/turnComplete"));
    assert_eq!(result["content"][0]["result"], json!({ "exitCode": 0, "preview": "\x1b[1mab\x1b[m\r\n" }));
    assert_eq!((&result["success"], &result["content"][1]["text"]), (&json!(true), &json!("ab\n")));
    chat.start("t2", "!false");
    let (key, _) = chat.started().unwrap();
    chat.world.pty(key, PtyEvent::Exited(Some(1)));
    let (_, result) = chat.result();
    assert_eq!((&result["success"], &result["error"]["message"]), (&json!(false), &json!("exit code 1")));
    // Both, in their order, and once.
    chat.start("t3", "what was that?");
    let (run, text, attached) = chat.agent_prompt().unwrap();
    assert_eq!((text.as_str(), attached.len()), ("what was that?", 1));
    assert!(attached[0].text.find("ls -l") < attached[0].text.find("exit code 1"), "{attached:?}");
    chat.world.report(chat.key, run, TurnEvent::Ended(TurnEnd::Complete));
    chat.actions();
    chat.start("t4", "and now?");
    assert_eq!(chat.agent_prompt().unwrap().2, []);
}

#[test]
fn command_line_waits_for_session_creation_and_for_the_running_turn() {
    let mut chat = Chat::creating(Limits::default());
    chat.start("t1", "!one");
    assert_eq!(chat.started(), None);
    chat.world.agent(chat.key, Event::Opened);
    let (key, _) = chat.started().unwrap();
    // What comes meanwhile is next.
    chat.actions();
    chat.world.pend(CLIENT, CHAT, "queued", "q1", "!two");
    chat.world.pty(key, PtyEvent::Exited(Some(0)));
    let (key, line) = chat.started().unwrap();
    assert_eq!(line, "two");
    chat.world.pty(key, PtyEvent::Exited(Some(0)));
    chat.actions();
    // An agent is not steered with one.
    chat.start("t3", "work");
    let (run, ..) = chat.agent_prompt().unwrap();
    chat.world.pend(CLIENT, CHAT, "steering", "s1", "!three");
    assert!(!chat.world.commands().any(|command| matches!(command, Command::Steer { .. })));
    assert_eq!(chat.started(), None);
    chat.world.report(chat.key, run, TurnEvent::Ended(TurnEnd::Complete));
    assert_eq!(chat.started().unwrap().1, "three");
}

#[test]
fn command_line_ends_with_its_turn_or_time_limit_but_not_with_the_agent() {
    let mut chat = Chat::new(Limits::default());
    chat.start("t1", "!cat");
    let (key, _) = chat.started().unwrap();
    chat.world.pty(key, PtyEvent::Data("x".to_owned()));
    chat.world.agent(chat.key, Event::Died { reason: "gone".to_owned() });
    chat.actions();
    chat.world.dispatch(CLIENT, CHAT, json!({ "type": "chat/turnCancelled", "turnId": "t1", "duration": 0 }));
    assert!(chat.ended_a_program());
    let (names, result) = chat.result();
    assert!(is_before(&names, "chat/toolCallComplete", "chat/turnCancelled"), "{names:?}");
    assert_eq!((&result["success"], &result["content"][1]["text"]), (&json!(false), &json!("x")));
    assert!(result["content"][0].get("result").is_some(), "{result}");
    chat.start("t2", "!sleep 9999");
    let (key, _) = chat.started().unwrap();
    chat.world.feed(Input::Timer(Timer::Command(key)));
    assert!(chat.ended_a_program());
    let (names, result) = chat.result();
    assert!(is_before(&names, "chat/toolCallComplete", "chat/turnComplete"), "{names:?}");
    assert!(result["error"]["message"].as_str().unwrap().contains("30 minutes"), "{result}");
    // One that cannot be started has ended, too.
    chat.start("t3", "!x");
    let (key, _) = chat.started().unwrap();
    chat.world.pty(key, PtyEvent::NotStarted("no such file".to_owned()));
    let (names, result) = chat.result();
    assert_eq!(result["error"]["message"], "no such file");
    assert!(names.iter().any(|it| it == "chat/turnComplete"));
}

#[test]
fn command_line_fails_without_a_free_terminal_and_is_a_message_if_disabled() {
    let mut chat = Chat::new(Limits { ptys: 1, ..Limits::default() });
    let claim = json!({ "kind": "client", "clientId": "me" });
    chat.world.request(CLIENT, "createTerminal", json!({ "channel": "x:/1", "claim": claim }));
    chat.actions();
    chat.start("t1", "!ls");
    assert_eq!(chat.started(), None);
    let (names, result) = chat.result();
    assert!(
        result["error"]["message"].as_str().unwrap().contains("this host has 1 running terminals"),
        "{result}"
    );
    assert!(names.iter().any(|it| it == "chat/turnComplete"));
    // A command runs in the last free terminal.
    let mut chat = Chat::new(Limits { ptys: 1, ..Limits::default() });
    assert_eq!(chat.ran("t1", "!ls", "a")[1]["text"], "a");
    // Without terminals it is a message as any other.
    let mut chat = Chat::new(Limits { ptys: 0, ..Limits::default() });
    chat.start("t1", "!ls");
    assert_eq!(chat.started(), None);
    assert_eq!(chat.agent_prompt().unwrap().1, "!ls");
}

#[test]
fn queued_command_lines_without_a_free_terminal_end_on_a_small_stack() {
    let run_queue = || {
        let mut chat = Chat::new(Limits { ptys: 1, ..Limits::default() });
        let claim = json!({ "kind": "client", "clientId": "me" });
        chat.world.request(CLIENT, "createTerminal", json!({ "channel": "x:/1", "claim": claim }));
        chat.start("t1", "work");
        let (run, ..) = chat.agent_prompt().unwrap();
        for number in 0..1000 {
            assert_eq!(chat.world.pend(CLIENT, CHAT, "queued", &format!("q{number}"), "!ls"), None);
        }
        chat.actions();
        chat.world.report(chat.key, run, TurnEvent::Ended(TurnEnd::Complete));
        let actions = chat.actions();
        let of_type = |name: &'static str| actions.iter().filter(move |it| it["type"] == name);
        let started: Vec<_> = of_type("chat/turnStarted").map(|it| it["queuedMessageId"].clone()).collect();
        let queued: Vec<_> = (0..1000).map(|number| json!(format!("q{number}"))).collect();
        assert_eq!((started, of_type("chat/turnComplete").count()), (queued, 1001));
    };
    // The main thread of a program has 1 MiB on Windows.
    std::thread::Builder::new().stack_size(1 << 20).spawn(run_queue).unwrap().join().unwrap();
}

/// Maximum bytes of a command's output in the text of its call, and maximum bytes of all
/// transcripts of commands sent to the agent with a message.
const TEXT_BYTES: usize = 16 << 10;
const TOLD_BYTES: usize = 64 << 10;

#[test]
fn tool_call_of_a_command_line_shows_the_latest_output_up_to_its_limit() {
    let left_out = "(Earlier output is omitted.)\n";
    for (bytes, is_cut) in [(TEXT_BYTES - 1, false), (TEXT_BYTES, false), (TEXT_BYTES + 1, true)] {
        let content = Chat::new(Limits::default()).ran("t", "!a", &format!("{}y", "x".repeat(bytes - 1)));
        let text = content[1]["text"].as_str().unwrap();
        let latest = text.strip_prefix(left_out).unwrap_or(text);
        assert_eq!((latest.len(), latest.len() < text.len()), (bytes.min(TEXT_BYTES), is_cut), "{bytes}");
        assert!(latest.ends_with("xy"));
    }
    // Nor is it all where its terminal has forgotten the beginning.
    let colours = "\x1b[0m".repeat(SCROLLBACK_BYTES_MAX / 4 + 1);
    let content = Chat::new(Limits::default()).ran("t", "!a", &format!("lost{colours}end"));
    assert_eq!(content[1]["text"], format!("{left_out}end"));
    for (bytes, is_cut) in
        [(OUTPUT_BYTES_KEPT - 1, false), (OUTPUT_BYTES_KEPT, false), (OUTPUT_BYTES_KEPT + 1, true)]
    {
        let content = Chat::new(Limits::default()).ran("t", "!a", &"x".repeat(bytes));
        let result = &content[0]["result"];
        assert_eq!(result["preview"].as_str().unwrap().len(), bytes.min(OUTPUT_BYTES_KEPT));
        assert_eq!(result["truncated"] == true, is_cut, "{bytes} bytes");
    }
}

#[test]
fn agent_receives_the_latest_command_lines_up_to_the_limit() {
    let told = |outputs: &[usize]| {
        let mut chat = Chat::new(Limits::default());
        for (at, bytes) in outputs.iter().enumerate() {
            chat.ran(&format!("t{at}"), "!a", &format!("{at}{}", "x".repeat(bytes - 1)));
        }
        let mut told = chat.attached_commands();
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
fn command_line_is_attached_again_after_a_turn_that_failed_without_an_answer() {
    let mut chat = Chat::new(Limits::default());
    chat.ran("t1", "!echo x", "printed");
    for turn in ["t2", "t3"] {
        chat.actions();
        chat.start(turn, "fix it");
        let (run, _, attached) = chat.agent_prompt().unwrap();
        assert!(attached.len() == 1 && attached[0].text.contains("printed"), "{turn}: {attached:?}");
        let failed = TurnEnd::Failed { kind: "failed".into(), message: "busy".into(), resumable: false };
        chat.world.report(chat.key, run, TurnEvent::Ended(failed));
    }
}

#[test]
fn agent_receives_a_command_line_that_fills_the_limit_alone() {
    // What is printed is fenced with more backticks than it has, on both of its sides and those of
    // the line.
    for (line, printed) in [
        ("!a".to_owned(), "`".repeat(TEXT_BYTES)),
        (format!("!{}", "x".repeat(2 * TOLD_BYTES)), "end".to_owned()),
    ] {
        let mut chat = Chat::new(Limits::default());
        chat.ran("t1", "!before", "lost");
        chat.ran("t2", &line, &printed);
        let told = chat.attached_commands();
        assert_eq!((told.len(), told[0].text.len(), told[0].cut), (1, TOLD_BYTES, true));
        assert!(!told[0].text.contains("before"));
    }
    // Nothing in the line ends what sets it apart.
    let mut chat = Chat::new(Limits::default());
    chat.ran("t1", "!echo '````'", "x");
    let told = chat.attached_commands().remove(0).text;
    assert!(told.contains("\n`````\necho '````'\n`````\n"), "{told}");
}

#[test]
fn command_line_interrupted_by_a_host_crash_is_not_resumable() {
    let (with, without) = (Limits::default(), Limits { ptys: 0, ..Limits::default() });
    for (text, before, after, is_command) in [
        ("!rm x", with, with, true),
        ("!rm x", with, without, true),
        ("!rm x", without, without, false),
        ("remove x", with, with, false),
    ] {
        let mut chat = Chat::new(before);
        chat.start("t", text);
        assert_eq!(chat.started().is_some(), is_command);
        let saved = saved(&chat.world.outputs);
        let mut host = World::saving(Core::limited(after));
        host.feed(Input::Restored(Box::new(LoadedSession::of(saved, &after))));
        host.arrive(CLIENT, "me");
        let mut state = host.state(CLIENT, CHAT);
        let part = state["turns"][0]["responseParts"].as_array_mut().unwrap().pop().unwrap();
        assert_eq!(part["error"]["errorType"], "interrupted");
        assert_eq!(part["resumable"], !is_command, "{part}");
        // A client that asks all the same is refused, and nothing runs.
        let refused = host.dispatch(CLIENT, CHAT, json!({ "type": "chat/turnResume", "turnId": "t" }));
        assert_eq!(refused.is_some(), is_command, "{refused:?}");
        assert_eq!(Chat { world: host, key: chat.key }.started(), None);
    }
}
