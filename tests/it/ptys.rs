//! Terminals into which clients type: who may do what with them, how long they stay, and what their mirrors are.
//!
//! Owns: a host in memory with clients, and what programs in terminals do as a test has it.
//! Never: starts a program; `process::shells` does.

use ahp_sidecar::host::effects::{
    ConnectionId, Frame, Input, Output, PtyCommand, PtyEvent, Record, TerminalKey, Timer,
};
use ahp_sidecar::host::limits::Limits;
use ahp_sidecar::wire::terminals::{SCROLLBACK_BYTES_CUT, SCROLLBACK_BYTES_MAX};
use ahp_types::state::{TerminalContentPart, TerminalState};
use proptest::prelude::*;
use serde_json::{json, Value};

use crate::support::core::{said, Core, CHAT, SESSION};
use crate::support::mirrors::{terminal_in, text_of_terminal, TerminalMirror};

const A: ConnectionId = ConnectionId(1);
const B: ConnectionId = ConnectionId(2);
const TERMINAL: &str = "agenthost-terminal:///one";
const SECRET: &str = "hunter2";

struct World {
    core: Core,
    outputs: Vec<Output>,
    records: Vec<Record>,
    requests: u64,
}

impl World {
    /// Two clients, `a` and `b`, and a session.
    fn new() -> Self {
        Self::limited(Limits::default())
    }

    fn limited(limits: Limits) -> Self {
        let mut world =
            Self { core: Core::limited(limits), outputs: Vec::new(), records: Vec::new(), requests: 0 };
        world.arrive(A, "a");
        world.arrive(B, "b");
        world.ask(A, "createSession", json!({ "channel": SESSION })).unwrap();
        world
    }

    fn arrive(&mut self, connection: ConnectionId, name: &str) {
        self.feed(Input::Opened { connection, default_directory: Some("file:///home".to_owned()) });
        let hello = json!({ "channel": "ahp-root://", "clientId": name, "protocolVersions": ["1.0.0"],
            "initialSubscriptions": ["ahp-root://"] });
        self.ask(connection, "initialize", hello).unwrap();
    }

    fn feed(&mut self, input: Input) {
        let outputs = self.core.feed_and_save(input);
        self.records.extend(outputs.iter().filter_map(|output| match output {
            Output::Record(record) => Some(record.clone()),
            _ => None,
        }));
        self.outputs.extend(outputs);
    }

    /// What was put out since it was last asked for.
    fn lines(&mut self) -> Vec<(ConnectionId, Value)> {
        let frames = std::mem::take(&mut self.outputs).into_iter().filter_map(|output| {
            let Output::Frame(connection, frame) = output else { return None };
            let read = |line: &[u8]| serde_json::from_slice::<Value>(line).unwrap();
            let line = match frame {
                Frame::Action(action) => read(&action.line),
                Frame::Answer(line) => read(&line),
                Frame::Result { result, .. } => json!({ "result": read(&result) }),
                Frame::Error { error, .. } => json!({ "error": error.code, "message": error.message }),
                _ => return None,
            };
            Some((connection, line))
        });
        frames.collect()
    }

    fn say(&mut self, connection: ConnectionId, method: &str, params: Value) {
        self.requests += 1;
        let id = self.requests;
        self.feed(said(connection, json!({ "id": id, "method": method, "params": params })));
    }

    /// What a request is answered at once, or with which error.
    fn ask(&mut self, connection: ConnectionId, method: &str, params: Value) -> Result<Value, i64> {
        self.lines();
        self.say(connection, method, params);
        let lines = self.lines().into_iter().filter(|(to, _)| *to == connection);
        let mut answers = lines.filter_map(|(_, line)| match (line.get("result"), line.get("error")) {
            (Some(result), _) => Some(Ok(result.clone())),
            (_, Some(error)) => Some(Err(error.as_i64().unwrap())),
            _ => None,
        });
        answers.next().expect("an answer")
    }

    /// Asks for a terminal; its key, or the error.
    fn create(&mut self, connection: ConnectionId, params: Value) -> Result<TerminalKey, i64> {
        self.lines();
        self.say(connection, "createTerminal", params);
        let started = self.outputs.iter().find_map(|output| match output {
            Output::Pty(key, PtyCommand::Start(_)) => Some(*key),
            _ => None,
        });
        let Some(key) = started else {
            let (_, line) = self.lines().remove(0);
            return Err(line["error"].as_i64().unwrap_or_else(|| panic!("{line}")));
        };
        self.pty(key, PtyEvent::Started { program: "sh".to_owned() });
        Ok(key)
    }

    /// A terminal of the client `a`, which follows it.
    fn created(&mut self) -> TerminalKey {
        let key = self.create(A, of_a(TERMINAL)).unwrap();
        self.ask(A, "subscribe", json!({ "channel": TERMINAL })).unwrap();
        key
    }

    fn pty(&mut self, key: TerminalKey, event: PtyEvent) {
        self.feed(Input::Pty(key, event));
    }

    fn dispatch(&mut self, connection: ConnectionId, uri: &str, action: &Value) {
        let params = json!({ "channel": uri, "clientSeq": 1, "action": action });
        self.feed(said(connection, json!({ "method": "dispatchAction", "params": params })));
    }

    /// Why an action on the terminal is refused; nothing when it is not.
    fn act(&mut self, connection: ConnectionId, action: Value) -> Option<String> {
        self.lines();
        self.dispatch(connection, TERMINAL, &action);
        let mut lines = self.lines().into_iter().filter(|(to, _)| *to == connection);
        lines.find_map(|(_, line)| Some(line["params"]["rejectionReason"].as_str()?.to_owned()))
    }

    fn input(&mut self, connection: ConnectionId, text: &str) -> Option<String> {
        self.act(connection, json!({ "type": "terminal/input", "data": text }))
    }

    /// The timers that were asked for, since it was last asked for anything.
    fn timers(&self) -> Vec<(Timer, u64)> {
        let timers = self.outputs.iter().filter_map(|output| match output {
            Output::Timer(timer @ Timer::Terminal(..), after) => Some((*timer, after.as_secs())),
            _ => None,
        });
        timers.collect()
    }

    fn is_there(&mut self) -> bool {
        let found = self.ask(B, "subscribe", json!({ "channel": TERMINAL }));
        self.feed(said(B, json!({ "method": "unsubscribe", "params": { "channel": TERMINAL } })));
        match found {
            Ok(_) => true,
            Err(code) => {
                assert_eq!(code, -32001);
                false
            }
        }
    }

    /// The terminal's state, as whoever asks now is told it.
    fn fresh(&mut self) -> TerminalState {
        let answer = self.ask(B, "subscribe", json!({ "channel": TERMINAL })).unwrap();
        self.feed(said(B, json!({ "method": "unsubscribe", "params": { "channel": TERMINAL } })));
        terminal_in(&answer["snapshot"])
    }

    fn has_ended_a_program(&self) -> bool {
        self.outputs.iter().any(|output| matches!(output, Output::Pty(_, PtyCommand::End)))
    }

    /// The list in the root state, by its latest change since it was last asked for anything.
    fn listed(&mut self) -> Option<Value> {
        let lines = self.lines().into_iter().rev().map(|(_, line)| line["params"]["action"].clone());
        lines.into_iter().find(|it| it["type"] == "root/terminalsChanged").map(|it| it["terminals"].clone())
    }
}

fn of_client(uri: &str, client: &str) -> Value {
    json!({ "channel": uri, "claim": { "kind": "client", "clientId": client } })
}

fn of_a(uri: &str) -> Value {
    of_client(uri, "a")
}

fn of_session() -> Value {
    json!({ "kind": "session", "session": SESSION, "chat": CHAT })
}

fn with(mut params: Value, member: &str, value: Value) -> Value {
    params[member] = value;
    params
}

#[test]
fn a_terminal_is_made_as_it_may_be() {
    let mut world = World::new();
    let long = |bytes: usize| "x".repeat(bytes);
    let uri = |bytes: usize| format!("x:/{}", long(bytes - 3));
    let refused = [
        (-32602, of_a("ahp-session:/x")),
        (-32602, of_a("ahp-terminal:/YQ.1")),
        (-32602, of_a("no uri")),
        (-32602, of_a(&uri(4097))),
        (-32010, of_a(SESSION)),
        (-32010, of_a("ahp-root://")),
        (-32009, of_client(TERMINAL, "b")),
        (-32001, with(of_a(TERMINAL), "claim", with(of_session(), "session", json!("ahp-session:/x")))),
        (-32001, with(of_a(TERMINAL), "claim", with(of_session(), "chat", json!("ahp-chat:/x")))),
        (-32602, with(of_a(TERMINAL), "name", json!(long(1025)))),
        (-32602, with(of_a(TERMINAL), "name", json!("a\nb"))),
        (-32602, with(of_a(TERMINAL), "cols", json!(0))),
        (-32602, with(of_a(TERMINAL), "cols", json!(1001))),
        (-32602, with(of_a(TERMINAL), "rows", json!(-1))),
        (-32602, with(of_a(TERMINAL), "rows", json!(i64::MAX))),
        (-32602, with(of_a(TERMINAL), "cwd", json!("https://x"))),
        (-32602, json!({ "channel": TERMINAL })),
    ];
    for (code, params) in refused {
        assert_eq!(world.create(A, params.clone()), Err(code), "{params}");
    }
    let largest = with(with(of_a(&uri(4096)), "cols", json!(1000)), "rows", json!(1));
    world.create(A, with(largest, "name", json!(long(1024)))).unwrap();
    world.create(A, with(of_a("ahp-terminal:/mine"), "claim", of_session())).unwrap();
    world.created();
    assert_eq!(world.create(A, of_a(TERMINAL)), Err(-32010));
    assert_eq!(world.ask(B, "createSession", json!({ "channel": TERMINAL })), Err(-32003));
    let mut world = World::limited(Limits { ptys: 0, ..Limits::default() });
    assert_eq!(world.create(A, of_a(TERMINAL)), Err(-32009));
}

#[test]
fn as_many_programs_run_as_may() {
    let mut world = World::limited(Limits { ptys: 10, ..Limits::default() });
    let keys: Vec<_> = (0..8).map(|number| world.create(A, of_a(&format!("x:/{number}"))).unwrap()).collect();
    assert_eq!(world.create(A, of_a("x:/8")), Err(-32602), "of one client");
    for number in 0..2 {
        world.create(B, of_client(&format!("y:/{number}"), "b")).unwrap();
    }
    assert_eq!(world.create(B, of_client("y:/2", "b")), Err(-32602), "of all");
    world.pty(keys[0], PtyEvent::Exited(None));
    world.create(A, of_a("x:/8")).unwrap();
}

#[test]
fn a_host_has_thirty_two_programs_and_no_more() {
    let mut world = World::new();
    let mut create = |client: u32, number: u32| {
        let name = format!("client-{client}");
        if number == 0 {
            world.arrive(ConnectionId(10 + client), &name);
        }
        let uri = format!("x:/{client}/{number}");
        world.create(ConnectionId(10 + client), of_client(&uri, &name))
    };
    for (client, number) in (0..4).flat_map(|client| (0..8).map(move |number| (client, number))) {
        create(client, number).unwrap();
    }
    assert_eq!(create(4, 0), Err(-32602));
}

#[test]
fn a_screen_has_between_one_and_a_thousand_columns_and_rows() {
    let sizes = [(0, false), (1, true), (2, true), (999, true), (1000, true), (1001, false)];
    let both = sizes.iter().flat_map(|size| [(size.0, 24, size.1), (80, size.0, size.1)]);
    for (cols, rows, fits) in both {
        let mut world = World::new();
        let made = world.create(A, with(with(of_a("x:/1"), "cols", json!(cols)), "rows", json!(rows)));
        assert_eq!(made.is_ok(), fits, "made with {cols}x{rows}");
        world.created();
        let refused = world.act(A, json!({ "type": "terminal/resized", "cols": cols, "rows": rows }));
        assert_eq!(refused.is_none(), fits, "{cols}x{rows}: {refused:?}");
        let (cols, rows) = if fits { (cols, rows) } else { (80, 24) };
        let fresh = world.fresh();
        assert_eq!((fresh.cols, fresh.rows), (Some(cols), Some(rows)));
    }
}

#[test]
fn a_title_has_at_most_so_many_bytes_whoever_gives_it() {
    let ä = "ä".repeat(511);
    for (title, fits) in [(format!("{ä}a"), true), (format!("{ä}ä"), true), (format!("{ä}äa"), false)] {
        let mut world = World::new();
        assert_eq!(world.create(A, with(of_a("x:/1"), "name", json!(title))).is_ok(), fits);
        world.created();
        let refused = world.act(A, json!({ "type": "terminal/titleChanged", "title": title }));
        assert_eq!(refused.is_none(), fits, "{} bytes: {refused:?}", title.len());
    }
    // A shell is called by the name of its file, which may be longer than that.
    let mut world = World::new();
    world.lines();
    world.say(A, "createTerminal", of_a(TERMINAL));
    let key = world.timers().first().map(|(timer, _)| *timer);
    let Some(Timer::Terminal(key, _)) = key else { panic!("it is not started") };
    world.pty(key, PtyEvent::Started { program: format!("{ä}äa") });
    assert_eq!(world.fresh().title, format!("{ä}ä"));
}

#[test]
fn what_a_shell_has_shown_is_kept_up_to_a_limit_and_cut_only_past_it() {
    let mut world = World::new();
    let key = world.created();
    let line = format!("{}\r\n", "x".repeat(62));
    let before = line.repeat(SCROLLBACK_BYTES_MAX / line.len() - 1);
    world.pty(key, PtyEvent::Data(before));
    world.pty(key, PtyEvent::Data("y".repeat(line.len() - 1)));
    assert_eq!(text_of_terminal(&world.fresh()).len(), SCROLLBACK_BYTES_MAX - 1);
    world.pty(key, PtyEvent::Data("z".to_owned()));
    assert_eq!(text_of_terminal(&world.fresh()).len(), SCROLLBACK_BYTES_MAX);
    world.pty(key, PtyEvent::Data("!".to_owned()));
    let text = text_of_terminal(&world.fresh());
    assert!(text.len() <= SCROLLBACK_BYTES_CUT && text.len() > SCROLLBACK_BYTES_CUT - line.len());
    assert!(text.starts_with(&line) && text.ends_with("yz!"));
    // As much stays when the shell has ended.
    world.pty(key, PtyEvent::Exited(Some(0)));
    assert_eq!(text_of_terminal(&world.fresh()), text);
}

#[test]
fn a_program_that_cannot_be_started_leaves_nothing() {
    let mut world = World::new();
    world.lines();
    world.say(A, "createTerminal", of_a(TERMINAL));
    let Some(Output::Pty(key, PtyCommand::Start(launch))) =
        world.outputs.iter().find(|output| matches!(output, Output::Pty(..)))
    else {
        panic!("nothing is started");
    };
    let (key, launch) = (*key, launch.clone());
    assert_eq!(
        (launch.directory.as_deref(), launch.size.cols, launch.size.rows),
        (Some("file:///home"), 80, 24)
    );
    // It is nobody else's meanwhile, and answered once.
    world.outputs.clear();
    assert_eq!(world.ask(B, "createTerminal", of_client(TERMINAL, "b")), Err(-32010));
    world.pty(key, PtyEvent::NotStarted("no such file".to_owned()));
    let lines = world.lines();
    assert_eq!(
        lines[0],
        (A, json!({ "error": -32603, "message": "not possible now: no such file" })),
        "{lines:?}"
    );
    assert!(!world.is_there());
    assert!(world.listed().is_none());
    world.created();
    world.lines();
    // One that is ended before it has started.
    world.say(B, "createTerminal", of_client("x:/2", "b"));
    world.say(B, "disposeTerminal", json!({ "channel": "x:/2" }));
    let answers: Vec<_> =
        world.lines().into_iter().filter(|(to, it)| *to == B && it.get("params").is_none()).collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
}

#[test]
fn only_who_has_a_terminal_types_into_it() {
    let mut world = World::new();
    let key = world.created();
    world.ask(B, "subscribe", json!({ "channel": TERMINAL })).unwrap();
    let all = |world: &mut World, connection| {
        let resized = json!({ "type": "terminal/resized", "cols": 10, "rows": 10 });
        let titled = json!({ "type": "terminal/titleChanged", "title": "x" });
        let actions = [
            json!({ "type": "terminal/input", "data": "x" }),
            resized,
            titled,
            json!({ "type": "terminal/cleared" }),
        ];
        actions.map(|action| world.act(connection, action).is_some())
    };
    assert_eq!(all(&mut world, B), [true; 4]);
    assert_eq!(all(&mut world, A), [false; 4]);
    let claim = |claim: Value| json!({ "type": "terminal/claimed", "claim": claim });
    let clients = |client: &str| json!({ "kind": "client", "clientId": client });
    assert!(world.act(B, claim(clients("b"))).is_some(), "what another one has");
    assert!(world.act(A, claim(clients("b"))).is_some(), "for another one");
    assert_eq!(world.act(A, claim(of_session())), None);
    assert_eq!(world.listed(), None, "nothing has changed since");
    // What a session has is for all who follow it.
    assert!(!all(&mut world, B)[0]);
    world.feed(said(B, json!({ "method": "unsubscribe", "params": { "channel": TERMINAL } })));
    assert!(all(&mut world, B)[0]);
    assert_eq!(world.ask(B, "disposeTerminal", json!({ "channel": TERMINAL })), Err(-32009));
    world.ask(B, "subscribe", json!({ "channel": TERMINAL })).unwrap();
    assert_eq!(world.act(B, claim(clients("b"))), None);
    assert!(world.act(A, claim(clients("a"))).is_some());
    assert_eq!(world.ask(A, "disposeTerminal", json!({ "channel": TERMINAL })), Err(-32009));
    world.pty(key, PtyEvent::Exited(Some(0)));
    assert!(world.input(B, "x").is_some(), "into what has ended");
    assert_eq!(world.ask(A, "disposeTerminal", json!({ "channel": TERMINAL })), Ok(Value::Null));
    assert!(!world.is_there());
    assert_eq!(world.ask(A, "disposeTerminal", json!({ "channel": TERMINAL })), Err(-32008));
}

#[test]
fn what_is_typed_reaches_the_program_alone_and_waits_within_a_limit() {
    let mut world = World::new();
    let key = world.created();
    let piece = "x".repeat(64 << 10);
    assert!(world.input(A, &format!("{piece}y")).unwrap().contains("65536"));
    world.ask(B, "subscribe", json!({ "channel": TERMINAL })).unwrap();
    for _ in 0..15 {
        assert_eq!(world.input(A, &piece), None);
    }
    assert_eq!(world.input(A, &piece[1..]), None);
    assert!(world.input(A, "ab").is_some(), "one too many");
    assert_eq!(world.input(A, "a"), None);
    assert!(world.input(A, "b").is_some());
    world.pty(key, PtyEvent::Took(1));
    world.lines();
    world.dispatch(A, TERMINAL, &json!({ "type": "terminal/input", "data": SECRET[..1].to_owned() }));
    let typed = world.outputs.iter().find_map(|output| match output {
        Output::Pty(_, PtyCommand::Type(typed)) => Some(typed.0.clone()),
        _ => None,
    });
    assert_eq!(typed.as_deref(), Some("h"));
    assert!(world.lines().iter().all(|(to, _)| *to == A), "nobody else is told");
}

#[test]
fn nothing_of_a_terminal_is_written_down_but_how_far_the_sequence_is() {
    let mut world = World::new();
    let key = world.created();
    world.input(A, SECRET);
    world.pty(key, PtyEvent::Data(SECRET.to_owned()));
    let action = json!({ "type": "terminal/titleChanged", "title": "x" });
    assert_eq!(world.act(A, action), None);
    world.pty(key, PtyEvent::Exited(Some(0)));
    let actions = world.records.iter().filter_map(|record| match record {
        Record::Action(channel, line) => Some((channel.terminal(), line.clone())),
        _ => None,
    });
    let actions: Vec<_> = actions.collect();
    let numbers: Vec<u64> = actions.iter().map(|(_, line)| line.server_seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let of_terminal = actions.iter().filter(|(terminal, _)| terminal.is_some());
    let of_terminal: Vec<String> =
        of_terminal.map(|(_, line)| String::from_utf8_lossy(&line.line).into_owned()).collect();
    assert_eq!(of_terminal.len(), 4, "{of_terminal:?}");
    assert!(
        of_terminal.iter().all(|line| line.contains(r#"{"type":"terminal/data","data":""}"#)),
        "{of_terminal:?}"
    );
    let all = format!("{:?}", world.records);
    assert!(!all.contains(SECRET));
}

#[test]
fn a_terminal_that_nobody_follows_or_whose_client_is_gone_ends_after_a_while() {
    let mut world = World::new();
    world.lines();
    world.say(A, "createTerminal", of_a(TERMINAL));
    let timers = world.timers();
    assert!(matches!(timers[..], [(_, 60)]), "{timers:?}");
    let unfollowed = timers[0].0;
    let Timer::Terminal(key, _) = unfollowed else { unreachable!() };
    world.pty(key, PtyEvent::Started { program: "sh".to_owned() });
    world.feed(Input::Timer(unfollowed));
    assert!(world.has_ended_a_program() && world.listed() == Some(json!([])));
    assert!(!world.is_there());

    // One that was followed stays when nobody follows it any more.
    let key = world.created();
    let timers = world.timers();
    world.feed(Input::Timer(timers.first().map_or(Timer::Terminal(key, 0), |(timer, _)| *timer)));
    assert!(world.is_there());

    // Its client leaves, comes back in time, and does not come back.
    world.lines();
    world.feed(Input::Closed(A));
    let gone = world.timers();
    assert!(matches!(gone[..], [(_, 600)]), "{gone:?}");
    assert_eq!(world.input(B, "x").as_deref(), Some("another client has the terminal"));
    world.arrive(ConnectionId(3), "a");
    world.feed(Input::Timer(gone[0].0));
    assert!(world.is_there());
    world.lines();
    world.feed(Input::Closed(ConnectionId(3)));
    let gone = world.timers();
    let claim = json!({ "type": "terminal/claimed", "claim": { "kind": "client", "clientId": "b" } });
    assert_eq!(world.act(B, claim), None, "what nobody has is for whoever takes it");
    world.feed(Input::Timer(gone[0].0));
    assert!(world.is_there());
    world.lines();
    world.arrive(ConnectionId(4), "c");
    world.feed(Input::Closed(B));
    let gone = world.timers();
    world.feed(Input::Timer(gone[0].0));
    assert!(world.has_ended_a_program());
}

#[test]
fn what_programs_call_a_terminal_is_told_until_a_client_names_it() {
    let mut world = World::new();
    let key = world.created();
    world.lines();
    world.pty(key, PtyEvent::Title("vim".to_owned()));
    assert_eq!(world.listed().unwrap()[0]["title"], "vim");
    world.pty(key, PtyEvent::Title("vim".to_owned()));
    world.pty(key, PtyEvent::Title(String::new()));
    assert_eq!(world.listed(), None, "no news");
    world.pty(key, PtyEvent::Directory("file:///a%20b".to_owned()));
    world.pty(key, PtyEvent::Directory("file:///a%20b".to_owned()));
    let told = world.lines();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        told[0].1["params"]["action"],
        json!({ "type": "terminal/cwdChanged", "cwd": "file:///a%20b" })
    );
    assert_eq!(world.act(A, json!({ "type": "terminal/titleChanged", "title": "vim" })), None);
    world.pty(key, PtyEvent::Title("less".to_owned()));
    assert_eq!(world.fresh().title, "vim");
    // So is one that was named when it was made.
    let key = world.create(A, with(of_a("x:/2"), "name", json!("mine"))).unwrap();
    world.pty(key, PtyEvent::Title("less".to_owned()));
    let answer = world.ask(A, "subscribe", json!({ "channel": "x:/2" })).unwrap();
    assert_eq!(answer["snapshot"]["state"]["title"], "mine");
}

#[test]
fn commands_are_parts_of_what_a_terminal_shows() {
    let mut world = World::new();
    let key = world.created();
    let happen = |world: &mut World, events: Vec<PtyEvent>| {
        events.into_iter().for_each(|event| world.pty(key, event));
        json!(world.fresh().content)
    };
    let data = |text: &str| PtyEvent::Data(text.to_owned());
    let begun = |line: &str| PtyEvent::CommandBegun(line.to_owned());
    let command = |number: u64, line: &str, output: &str, code: Option<i64>| {
        let mut part = json!({ "type": "command", "commandId": format!("cmd-{number}"), "commandLine": line,
            "output": output, "timestamp": 0, "isComplete": true, "durationMs": 0 });
        if let Some(code) = code {
            part["exitCode"] = json!(code);
        }
        part
    };
    let plain = |text: &str| json!({ "type": "unclassified", "value": text });
    assert_eq!(world.fresh().supports_command_detection, None);
    let events = vec![
        PtyEvent::CommandDone(Some(1)),
        PtyEvent::DetectsCommands,
        data("$ "),
        begun("ls"),
        data("a"),
        data("b"),
    ];
    happen(&mut world, events);
    assert_eq!(world.fresh().supports_command_detection, Some(true));
    let first = command(1, "ls", "ab", Some(0));
    let shown = happen(&mut world, vec![PtyEvent::CommandDone(Some(0)), data("$ ")]);
    assert_eq!(shown, json!([plain("$ "), first, plain("$ ")]));
    // One that begins before the other has ended: nobody has said how that has.
    let shown = happen(&mut world, vec![begun("one"), begun("two"), data("c"), PtyEvent::CommandDone(None)]);
    let all =
        json!([plain("$ "), first, plain("$ "), command(2, "one", "", None), command(3, "two", "c", None)]);
    assert_eq!(shown, all);
    // With what was shown it is forgotten what runs.
    happen(&mut world, vec![begun("three"), data("d")]);
    assert_eq!(world.act(A, json!({ "type": "terminal/cleared" })), None);
    let shown = happen(&mut world, vec![data("e"), PtyEvent::CommandDone(Some(0)), begun("exit")]);
    assert_eq!(shown[0], plain("e"));
    // The end of the program is that of its command.
    let shown = happen(&mut world, vec![PtyEvent::Exited(Some(4))]);
    assert_eq!(shown[1], command(5, "exit", "", None));
}

#[test]
fn lines_that_print_nothing_are_forgotten_when_they_are_many() {
    let mut world = World::new();
    let key = world.created();
    for number in 1..=1000 {
        world.pty(key, PtyEvent::CommandBegun(number.to_string()));
        world.pty(key, PtyEvent::CommandDone(Some(0)));
    }
    assert_eq!(world.fresh().content.len(), 1000);
    world.pty(key, PtyEvent::CommandBegun("one more".to_owned()));
    let content = world.fresh().content;
    assert_eq!(content.len(), 750);
    let Some(TerminalContentPart::Command(last)) = content.last() else { panic!("{content:?}") };
    assert_eq!(last.command_line, "one more");
}

#[test]
fn terminals_of_a_session_end_with_it_and_go_where_their_chat_goes() {
    let mut world = World::new();
    world.lines();
    world.say(A, "createChat", json!({ "channel": SESSION, "chat": "ahp-chat:/second" }));
    let of_chat = with(of_session(), "chat", json!("ahp-chat:/second"));
    world.create(A, with(of_a(TERMINAL), "claim", of_chat.clone())).unwrap();
    world.ask(A, "subscribe", json!({ "channel": TERMINAL })).unwrap();
    world.ask(A, "createSession", json!({ "channel": "ahp-session:/other" })).unwrap();
    let destination = json!({ "kind": "session", "session": "ahp-session:/other" });
    world.say(A, "moveChat", json!({ "channel": "ahp-chat:/second", "destination": destination }));
    let list = world.listed().expect("a list");
    assert_eq!(list[0]["claim"], with(of_chat, "session", json!("ahp-session:/other")));
    world.lines();
    world.say(A, "disposeSession", json!({ "channel": "ahp-session:/other" }));
    assert!(world.has_ended_a_program());
    let names: Vec<Value> =
        world.lines().into_iter().map(|(_, it)| it["params"]["action"]["type"].clone()).collect();
    let at =
        |name: &str| names.iter().position(|it| it == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
    assert!(at("root/terminalsChanged") < at("root/activeSessionsChanged"));
    assert!(!world.is_there());
}

#[test]
fn of_terminals_whose_program_has_ended_the_oldest_go() {
    let mut world = World::new();
    for number in 0..65 {
        let key = world.create(A, of_a(&format!("x:/{number}"))).unwrap();
        world.pty(key, PtyEvent::Exited(Some(number)));
        let expected = usize::try_from(number + 1).unwrap().min(64);
        assert_eq!(world.listed().unwrap().as_array().unwrap().len(), expected);
    }
    assert_eq!(world.ask(A, "subscribe", json!({ "channel": "x:/0" })), Err(-32001));
    world.ask(A, "subscribe", json!({ "channel": "x:/1" })).unwrap();
}

/// What may happen.
#[derive(Debug, Clone)]
enum Happening {
    Prints(u16),
    Ends,
    Reports(PtyEvent),
    Acts(usize, Value),
    Follows(usize),
    Leaves(usize),
    IsLost(usize),
    ComesBack(usize),
}

/// What a program, or the shell in front of it, may say besides what it prints.
fn reported() -> impl Strategy<Value = PtyEvent> {
    prop_oneof![
        "[ab]".prop_map(PtyEvent::Title),
        "file:///[ab]".prop_map(PtyEvent::Directory),
        Just(PtyEvent::DetectsCommands),
        "[ab]".prop_map(PtyEvent::CommandBegun),
        prop::option::of(0..3_i64).prop_map(PtyEvent::CommandDone),
        Just(PtyEvent::Waits),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    let action = prop_oneof![
        (1..4_i64, 1..4_i64)
            .prop_map(|(cols, rows)| json!({ "type": "terminal/resized", "cols": cols, "rows": rows })),
        Just(json!({ "type": "terminal/cleared" })),
        "[ab]".prop_map(|data| json!({ "type": "terminal/input", "data": data })),
        "[ab]".prop_map(|title| json!({ "type": "terminal/titleChanged", "title": title })),
        "[ab]".prop_map(
            |id| json!({ "type": "terminal/claimed", "claim": { "kind": "client", "clientId": id } })
        ),
        Just(json!({ "type": "terminal/claimed", "claim": of_session() })),
    ];
    prop_oneof![
        8 => (0..2_u16).prop_map(Happening::Prints),
        2 => (0..9000_u16).prop_map(Happening::Prints),
        1 => Just(Happening::Prints(40_000)),
        1 => Just(Happening::Ends),
        8 => reported().prop_map(Happening::Reports),
        8 => (0..2_usize, action).prop_map(|(at, action)| Happening::Acts(at, action)),
        4 => (0..2_usize).prop_map(Happening::Follows),
        2 => (0..2_usize).prop_map(Happening::Leaves),
        3 => (0..2_usize).prop_map(Happening::IsLost),
        4 => (0..2_usize).prop_map(Happening::ComesBack),
    ]
}

/// A client, and its mirror of the terminal.
#[derive(Debug, Default)]
struct Follower {
    connection: Option<ConnectionId>,
    mirror: TerminalMirror,
}

struct Followers {
    world: World,
    key: TerminalKey,
    followers: [Follower; 2],
    connections: u32,
}

impl Followers {
    fn new() -> Self {
        let mut world = World::new();
        let key = world.created();
        // They watch; those that come and go are others of the same name.
        world.feed(said(A, json!({ "method": "unsubscribe", "params": { "channel": TERMINAL } })));
        world.lines();
        Self { world, key, followers: Default::default(), connections: 100 }
    }

    fn connection(&mut self, at: usize) -> (ConnectionId, bool) {
        if let Some(connection) = self.followers[at].connection {
            return (connection, false);
        }
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        self.world.feed(Input::Opened { connection, default_directory: None });
        self.followers[at].connection = Some(connection);
        (connection, true)
    }

    fn happen(&mut self, happening: &Happening) {
        let name = |at: &usize| ["a", "b"][*at];
        match happening {
            Happening::Prints(lines) => {
                let text: String = (0..*lines).map(|line| format!("{line} ä\r\n")).collect();
                self.world.pty(self.key, PtyEvent::Data(format!("{text}$ ")));
            }
            Happening::Reports(event) => self.world.pty(self.key, event.clone()),
            Happening::Ends => self.world.pty(self.key, PtyEvent::Exited(Some(1))),
            Happening::Acts(at, action) => {
                if let Some(connection) = self.followers[*at].connection {
                    self.world.dispatch(connection, TERMINAL, action);
                }
            }
            Happening::Follows(at) => {
                let (connection, is_new) = self.connection(*at);
                if is_new {
                    let hello = json!({ "channel": "ahp-root://", "clientId": name(at), "protocolVersions": ["1.0.0"] });
                    self.world.say(connection, "initialize", hello);
                }
                self.world.say(connection, "subscribe", json!({ "channel": TERMINAL }));
            }
            Happening::Leaves(at) => {
                if let Some(connection) = self.followers[*at].connection {
                    let params = json!({ "channel": TERMINAL });
                    self.world.feed(said(connection, json!({ "method": "unsubscribe", "params": params })));
                }
                self.followers[*at].mirror.state = None;
            }
            Happening::IsLost(at) => {
                if let Some(connection) = self.followers[*at].connection.take() {
                    self.world.feed(Input::Closed(connection));
                }
            }
            Happening::ComesBack(at) => {
                if self.followers[*at].mirror.state.is_some() && self.followers[*at].connection.is_none() {
                    let (connection, _) = self.connection(*at);
                    let params = json!({ "channel": "ahp-root://", "clientId": name(at),
                        "lastSeenServerSeq": self.followers[*at].mirror.cursor, "subscriptions": [TERMINAL] });
                    self.world.say(connection, "reconnect", params);
                }
            }
        }
        self.hear();
    }

    fn hear(&mut self) {
        for (connection, line) in self.world.lines() {
            let found = self.followers.iter_mut().find(|it| it.connection == Some(connection));
            if let Some(follower) = found {
                follower.mirror.read(TERMINAL, &line, &line["result"]);
            }
        }
    }

    fn check(&mut self) {
        let fresh = self.world.fresh();
        for follower in self.followers.iter().filter(|it| it.connection.is_some()) {
            follower.mirror.check(&fresh);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_mirror_of_what_is_typed_into_ends_like_a_fresh_snapshot(
        happenings in prop::collection::vec(happening(), 1..40)
    ) {
        let mut all = Followers::new();
        for happening in &happenings {
            all.happen(happening);
            all.check();
        }
    }
}
