//! Terminals into which clients type: who may do what with them, how long they stay, and what their
//! mirrors are.
//!
//! Owns: a host in memory with clients, and what programs in terminals do as a test has it.
//! Never: starts a program; `process::shells` does.

use ahp_sidecar::backend::{script::Script, Backend};
use ahp_sidecar::host::effects::{
    ChannelId, ConnectionId, Frame, Input, Output, PtyCommand, PtyEvent, Record, TerminalKey, Timer,
};
use ahp_sidecar::host::limits::Limits;
use ahp_sidecar::host::Start;
use ahp_sidecar::wire::terminals::{SCROLLBACK_BYTES_CUT, SCROLLBACK_BYTES_MAX};
use ahp_types::state::{TerminalContentPart, TerminalState};
use proptest::prelude::*;
use serde_json::{json, Value};

use crate::support::core::{Core, CHAT, SESSION};
use crate::support::followers::{moves, Followers, Moves, MOVES};
use crate::support::mirrors::{terminal_in, text_of_terminal};
use crate::support::world::{World, ROOT};

const A: ConnectionId = ConnectionId(1);
const B: ConnectionId = ConnectionId(2);
const TERMINAL: &str = "agenthost-terminal:///one";
const SECRET: &str = "hunter2";

/// Two clients, `a` and `b`, and a session: what they do with terminals, most of all with one.
struct Ptys {
    world: World,
}

impl Ptys {
    fn new() -> Self {
        Self::limited(Limits::default())
    }

    fn limited(limits: Limits) -> Self {
        let mut ptys = Self { world: World::saving(Core::limited(limits)) };
        ptys.arrive(A, "a");
        ptys.arrive(B, "b");
        ptys.world.create_session(A);
        ptys
    }

    fn arrive(&mut self, connection: ConnectionId, name: &str) {
        self.world.feed(Input::Opened { connection, default_directory: Some("file:///home".to_owned()) });
        self.world.greet(connection, name, &[ROOT]);
    }

    /// Sends a request and returns its immediate result or error code.
    fn ask(&mut self, connection: ConnectionId, method: &str, params: Value) -> Result<Value, i32> {
        self.world.ask(connection, method, params).map_err(|error| error.code)
    }

    /// Asks for a terminal; its key, or the error.
    fn create(&mut self, connection: ConnectionId, params: Value) -> Result<TerminalKey, i32> {
        let before = self.world.outputs.len();
        self.world.request(connection, "createTerminal", params);
        let outcome = self.world.outputs[before..].iter().find_map(|output| match output {
            Output::Pty(key, PtyCommand::Start(_)) => Some(Ok(*key)),
            Output::Frame(to, Frame::Error { error, .. }) if *to == connection => Some(Err(error.code)),
            _ => None,
        });
        let key = outcome.expect("it is started or refused")?;
        self.world.pty(key, PtyEvent::Started { program: "sh".to_owned() });
        Ok(key)
    }

    /// Asks for the terminal, which is not started yet.
    fn asked(&mut self) -> TerminalKey {
        self.world.take();
        self.world.request(A, "createTerminal", of_a(TERMINAL));
        let [(Timer::Terminal(key, _), _)] = self.timers()[..] else { panic!("it is not started") };
        key
    }

    /// A terminal of the client `a`, which follows it.
    fn created(&mut self) -> TerminalKey {
        let key = self.create(A, of_a(TERMINAL)).unwrap();
        self.world.subscribe(A, TERMINAL);
        key
    }

    /// Why an action on the terminal is refused; nothing when it is not.
    fn act(&mut self, connection: ConnectionId, action: Value) -> Option<String> {
        self.world.dispatch(connection, TERMINAL, action)
    }

    fn input(&mut self, connection: ConnectionId, text: &str) -> Option<String> {
        self.act(connection, json!({ "type": "terminal/input", "data": text }))
    }

    /// The timers of terminals that were asked for, each with its seconds.
    fn timers(&self) -> Vec<(Timer, u64)> {
        let timers = self.world.timers().filter(|(timer, _)| matches!(timer, Timer::Terminal(..)));
        timers.map(|(timer, after)| (timer, after.as_secs())).collect()
    }

    fn is_there(&mut self) -> bool {
        let found = self.world.fresh(B, TERMINAL);
        assert!(found.as_ref().err().is_none_or(|error| error.code == -32001), "{found:?}");
        found.is_ok()
    }

    /// The terminal's state, as whoever asks now is told it.
    fn fresh(&mut self) -> TerminalState {
        terminal_in(&self.world.fresh(B, TERMINAL).unwrap())
    }

    fn has_ended_a_program(&self) -> bool {
        self.world.outputs.iter().any(|output| matches!(output, Output::Pty(_, PtyCommand::End)))
    }

    /// The list in the root state, by its latest change. Takes what was put out.
    fn listed(&mut self) -> Option<Value> {
        let lines = self.world.lines().into_iter().rev().map(|(_, line)| line["params"]["action"].clone());
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
fn terminal_creation_validates_its_parameters() {
    let mut ptys = Ptys::new();
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
        assert_eq!(ptys.create(A, params.clone()), Err(code), "{params}");
    }
    let largest = with(with(of_a(&uri(4096)), "cols", json!(1000)), "rows", json!(1));
    ptys.create(A, with(largest, "name", json!(long(1024)))).unwrap();
    ptys.create(A, with(of_a("ahp-terminal:/mine"), "claim", of_session())).unwrap();
    ptys.created();
    assert_eq!(ptys.create(A, of_a(TERMINAL)), Err(-32010));
    assert_eq!(ptys.ask(B, "createSession", json!({ "channel": TERMINAL })), Err(-32003));
    let mut ptys = Ptys::limited(Limits { ptys: 0, ..Limits::default() });
    assert_eq!(ptys.create(A, of_a(TERMINAL)), Err(-32009));
}

#[test]
fn terminal_programs_are_limited_per_client_and_per_host() {
    let mut ptys = Ptys::limited(Limits { ptys: 10, ..Limits::default() });
    let keys: Vec<_> = (0..8).map(|number| ptys.create(A, of_a(&format!("x:/{number}"))).unwrap()).collect();
    assert_eq!(ptys.create(A, of_a("x:/8")), Err(-32602), "of one client");
    for number in 0..2 {
        ptys.create(B, of_client(&format!("y:/{number}"), "b")).unwrap();
    }
    assert_eq!(ptys.create(B, of_client("y:/2", "b")), Err(-32602), "of all");
    ptys.world.pty(keys[0], PtyEvent::Exited(None));
    ptys.create(A, of_a("x:/8")).unwrap();
}

#[test]
fn terminal_programs_per_host_are_limited_to_32() {
    let mut ptys = Ptys::new();
    let mut create = |client: u32, number: u32| {
        let name = format!("client-{client}");
        if number == 0 {
            ptys.arrive(ConnectionId(10 + client), &name);
        }
        let uri = format!("x:/{client}/{number}");
        ptys.create(ConnectionId(10 + client), of_client(&uri, &name))
    };
    for (client, number) in (0..4).flat_map(|client| (0..8).map(move |number| (client, number))) {
        create(client, number).unwrap();
    }
    assert_eq!(create(4, 0), Err(-32602));
}

#[test]
fn terminal_size_is_limited_to_1000_columns_and_rows() {
    let sizes = [(0, false), (1, true), (2, true), (999, true), (1000, true), (1001, false)];
    let both = sizes.iter().flat_map(|size| [(size.0, 24, size.1), (80, size.0, size.1)]);
    for (cols, rows, fits) in both {
        let mut ptys = Ptys::new();
        let made = ptys.create(A, with(with(of_a("x:/1"), "cols", json!(cols)), "rows", json!(rows)));
        assert_eq!(made.is_ok(), fits, "made with {cols}x{rows}");
        ptys.created();
        let refused = ptys.act(A, json!({ "type": "terminal/resized", "cols": cols, "rows": rows }));
        assert_eq!(refused.is_none(), fits, "{cols}x{rows}: {refused:?}");
        let (cols, rows) = if fits { (cols, rows) } else { (80, 24) };
        let fresh = ptys.fresh();
        assert_eq!((fresh.cols, fresh.rows), (Some(cols), Some(rows)));
    }
}

#[test]
fn terminal_title_is_limited_to_1024_bytes() {
    let ä = "ä".repeat(511);
    for (title, fits) in [(format!("{ä}a"), true), (format!("{ä}ä"), true), (format!("{ä}äa"), false)] {
        let mut ptys = Ptys::new();
        assert_eq!(ptys.create(A, with(of_a("x:/1"), "name", json!(title))).is_ok(), fits);
        ptys.created();
        let refused = ptys.act(A, json!({ "type": "terminal/titleChanged", "title": title }));
        assert_eq!(refused.is_none(), fits, "{} bytes: {refused:?}", title.len());
    }
    // A shell is called by the name of its file, which may be longer than that.
    let mut ptys = Ptys::new();
    let key = ptys.asked();
    ptys.world.pty(key, PtyEvent::Started { program: format!("{ä}äa") });
    assert_eq!(ptys.fresh().title, format!("{ä}ä"));
}

#[test]
fn terminal_scrollback_is_truncated_only_beyond_its_limit() {
    let mut ptys = Ptys::new();
    let key = ptys.created();
    let line = format!("{}\r\n", "x".repeat(62));
    let before = line.repeat(SCROLLBACK_BYTES_MAX / line.len() - 1);
    ptys.world.pty(key, PtyEvent::Data(before));
    ptys.world.pty(key, PtyEvent::Data("y".repeat(line.len() - 1)));
    assert_eq!(text_of_terminal(&ptys.fresh()).len(), SCROLLBACK_BYTES_MAX - 1);
    ptys.world.pty(key, PtyEvent::Data("z".to_owned()));
    assert_eq!(text_of_terminal(&ptys.fresh()).len(), SCROLLBACK_BYTES_MAX);
    ptys.world.pty(key, PtyEvent::Data("!".to_owned()));
    let text = text_of_terminal(&ptys.fresh());
    assert!(text.len() <= SCROLLBACK_BYTES_CUT && text.len() > SCROLLBACK_BYTES_CUT - line.len());
    assert!(text.starts_with(&line) && text.ends_with("yz!"));
    // As much stays when the shell has ended.
    ptys.world.pty(key, PtyEvent::Exited(Some(0)));
    assert_eq!(text_of_terminal(&ptys.fresh()), text);
}

#[test]
fn terminal_program_that_cannot_start_leaves_no_terminal() {
    let mut ptys = Ptys::new();
    let key = ptys.asked();
    let launch = ptys.world.outputs.iter().find_map(|output| match output {
        Output::Pty(_, PtyCommand::Start(launch)) => Some(launch),
        _ => None,
    });
    let launch = launch.expect("something is started");
    assert_eq!(
        (launch.directory.as_deref(), launch.size.cols, launch.size.rows),
        (Some("file:///home"), 80, 24)
    );
    // It is nobody else's meanwhile, and answered once.
    ptys.world.take();
    assert_eq!(ptys.ask(B, "createTerminal", of_client(TERMINAL, "b")), Err(-32010));
    ptys.world.pty(key, PtyEvent::NotStarted("no such file".to_owned()));
    let (to, told) = &ptys.world.lines()[0];
    let error = json!({ "code": -32603, "message": "not possible now: no such file" });
    assert_eq!((*to, &told["error"]), (A, &error), "{told}");
    assert!(!ptys.is_there());
    assert!(ptys.listed().is_none());
    ptys.created();
    ptys.world.take();
    // One that is ended before it has started.
    ptys.world.request(B, "createTerminal", of_client("x:/2", "b"));
    ptys.world.request(B, "disposeTerminal", json!({ "channel": "x:/2" }));
    let answers: Vec<_> =
        ptys.world.lines().into_iter().filter(|(to, it)| *to == B && it.get("params").is_none()).collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
}

#[test]
fn only_the_owner_of_a_terminal_may_act_on_it() {
    let mut ptys = Ptys::new();
    let key = ptys.created();
    ptys.world.subscribe(B, TERMINAL);
    let all = |ptys: &mut Ptys, connection| {
        let resized = json!({ "type": "terminal/resized", "cols": 10, "rows": 10 });
        let titled = json!({ "type": "terminal/titleChanged", "title": "x" });
        let actions = [
            json!({ "type": "terminal/input", "data": "x" }),
            resized,
            titled,
            json!({ "type": "terminal/cleared" }),
        ];
        actions.map(|action| ptys.act(connection, action).is_some())
    };
    assert_eq!(all(&mut ptys, B), [true; 4]);
    assert_eq!(all(&mut ptys, A), [false; 4]);
    let claim = |claim: Value| json!({ "type": "terminal/claimed", "claim": claim });
    let clients = |client: &str| json!({ "kind": "client", "clientId": client });
    assert!(ptys.act(B, claim(clients("b"))).is_some(), "what another one has");
    assert!(ptys.act(A, claim(clients("b"))).is_some(), "for another one");
    assert_eq!(ptys.act(A, claim(of_session())), None);
    assert_eq!(ptys.listed().unwrap()[0]["claim"], of_session());
    assert_eq!(ptys.listed(), None, "nothing has changed since");
    // What a session has is for all who follow it.
    assert!(!all(&mut ptys, B)[0]);
    ptys.world.unsubscribe(B, TERMINAL);
    assert!(all(&mut ptys, B)[0]);
    assert_eq!(ptys.ask(B, "disposeTerminal", json!({ "channel": TERMINAL })), Err(-32009));
    ptys.world.subscribe(B, TERMINAL);
    assert_eq!(ptys.act(B, claim(clients("b"))), None);
    assert!(ptys.act(A, claim(clients("a"))).is_some());
    assert_eq!(ptys.ask(A, "disposeTerminal", json!({ "channel": TERMINAL })), Err(-32009));
    ptys.world.pty(key, PtyEvent::Exited(Some(0)));
    assert!(ptys.input(B, "x").is_some(), "into what has ended");
    assert_eq!(ptys.ask(A, "disposeTerminal", json!({ "channel": TERMINAL })), Ok(Value::Null));
    assert!(!ptys.is_there());
    assert_eq!(ptys.ask(A, "disposeTerminal", json!({ "channel": TERMINAL })), Err(-32008));
}

#[test]
fn terminal_input_reaches_only_the_program_and_is_limited_while_pending() {
    let mut ptys = Ptys::new();
    let key = ptys.created();
    let piece = "x".repeat(64 << 10);
    assert!(ptys.input(A, &format!("{piece}y")).unwrap().contains("65536"));
    ptys.world.subscribe(B, TERMINAL);
    for _ in 0..15 {
        assert_eq!(ptys.input(A, &piece), None);
    }
    assert_eq!(ptys.input(A, &piece[1..]), None);
    assert!(ptys.input(A, "ab").is_some(), "one too many");
    assert_eq!(ptys.input(A, "a"), None);
    assert!(ptys.input(A, "b").is_some());
    ptys.world.pty(key, PtyEvent::Took(1));
    ptys.world.take();
    assert_eq!(ptys.input(A, &SECRET[..1]), None);
    let typed = ptys.world.outputs.iter().find_map(|output| match output {
        Output::Pty(_, PtyCommand::Type(typed)) => Some(typed.0.clone()),
        _ => None,
    });
    assert_eq!(typed.as_deref(), Some("h"));
    assert!(ptys.world.lines().iter().all(|(to, _)| *to == A), "nobody else is told");
}

#[test]
fn terminal_content_is_not_stored_except_for_sequence_numbers() {
    let mut ptys = Ptys::new();
    let key = ptys.created();
    ptys.input(A, SECRET);
    ptys.world.pty(key, PtyEvent::Data(SECRET.to_owned()));
    let action = json!({ "type": "terminal/titleChanged", "title": "x" });
    assert_eq!(ptys.act(A, action), None);
    ptys.world.pty(key, PtyEvent::Exited(Some(0)));
    let records = ptys.world.outputs.iter().filter_map(|output| match output {
        Output::Record(record) => Some(record),
        _ => None,
    });
    let records: Vec<_> = records.collect();
    let actions = records.iter().filter_map(|record| match record {
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
    let all = format!("{records:?}");
    assert!(!all.contains(SECRET));
}

#[test]
fn terminal_grace_period_is_configurable() {
    let mut ptys = Ptys::limited(Limits { terminal_grace_ms: 7_000, ..Limits::default() });
    ptys.created();
    ptys.world.take();
    ptys.world.feed(Input::Closed(A));
    let gone = ptys.timers();
    assert!(matches!(gone[..], [(_, 7)]), "{gone:?}");
}

#[test]
fn terminal_without_subscribers_or_client_ends_after_the_grace_period() {
    let mut ptys = Ptys::new();
    let key = ptys.asked();
    let [(unfollowed, 60)] = ptys.timers()[..] else { panic!("{:?}", ptys.timers()) };
    ptys.world.pty(key, PtyEvent::Started { program: "sh".to_owned() });
    ptys.world.feed(Input::Timer(unfollowed));
    assert!(ptys.has_ended_a_program() && ptys.listed() == Some(json!([])));
    assert!(!ptys.is_there());

    // One that was followed stays when nobody follows it any more.
    let key = ptys.created();
    ptys.world.take();
    let timers = ptys.timers();
    ptys.world.feed(Input::Timer(timers.first().map_or(Timer::Terminal(key, 0), |(timer, _)| *timer)));
    assert!(ptys.is_there());

    // Its client leaves, comes back in time, and does not come back.
    ptys.world.take();
    ptys.world.feed(Input::Closed(A));
    let gone = ptys.timers();
    assert!(matches!(gone[..], [(_, 600)]), "{gone:?}");
    assert_eq!(ptys.input(B, "x").as_deref(), Some("another client has the terminal"));
    ptys.arrive(ConnectionId(3), "a");
    ptys.world.feed(Input::Timer(gone[0].0));
    assert!(ptys.is_there());
    ptys.world.take();
    ptys.world.feed(Input::Closed(ConnectionId(3)));
    let gone = ptys.timers();
    let claim = json!({ "type": "terminal/claimed", "claim": { "kind": "client", "clientId": "b" } });
    assert_eq!(ptys.act(B, claim), None, "what nobody has is for whoever takes it");
    ptys.world.feed(Input::Timer(gone[0].0));
    assert!(ptys.is_there());
    ptys.world.take();
    ptys.arrive(ConnectionId(4), "c");
    ptys.world.feed(Input::Closed(B));
    let gone = ptys.timers();
    ptys.world.feed(Input::Timer(gone[0].0));
    assert!(ptys.has_ended_a_program());
}

#[test]
fn terminal_title_of_a_program_is_sent_until_a_client_sets_one() {
    let mut ptys = Ptys::new();
    let key = ptys.created();
    ptys.world.take();
    ptys.world.pty(key, PtyEvent::Title("vim".to_owned()));
    assert_eq!(ptys.listed().unwrap()[0]["title"], "vim");
    ptys.world.pty(key, PtyEvent::Title("vim".to_owned()));
    ptys.world.pty(key, PtyEvent::Title(String::new()));
    assert_eq!(ptys.listed(), None, "no news");
    ptys.world.pty(key, PtyEvent::Directory("file:///a%20b".to_owned()));
    ptys.world.pty(key, PtyEvent::Directory("file:///a%20b".to_owned()));
    let told = ptys.world.lines();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        told[0].1["params"]["action"],
        json!({ "type": "terminal/cwdChanged", "cwd": "file:///a%20b" })
    );
    assert_eq!(ptys.act(A, json!({ "type": "terminal/titleChanged", "title": "vim" })), None);
    ptys.world.pty(key, PtyEvent::Title("less".to_owned()));
    assert_eq!(ptys.fresh().title, "vim");
    // So is one that was named when it was made.
    let key = ptys.create(A, with(of_a("x:/2"), "name", json!("mine"))).unwrap();
    ptys.world.pty(key, PtyEvent::Title("less".to_owned()));
    let answer = ptys.ask(A, "subscribe", json!({ "channel": "x:/2" })).unwrap();
    assert_eq!(answer["snapshot"]["state"]["title"], "mine");
}

#[test]
fn commands_are_parts_of_the_terminal_content() {
    let mut ptys = Ptys::new();
    let key = ptys.created();
    let happen = |ptys: &mut Ptys, events: Vec<PtyEvent>| {
        events.into_iter().for_each(|event| ptys.world.pty(key, event));
        json!(ptys.fresh().content)
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
    assert_eq!(ptys.fresh().supports_command_detection, None);
    let events = vec![
        PtyEvent::CommandDone(Some(1)),
        PtyEvent::DetectsCommands,
        data("$ "),
        begun("ls"),
        data("a"),
        data("b"),
    ];
    happen(&mut ptys, events);
    assert_eq!(ptys.fresh().supports_command_detection, Some(true));
    let first = command(1, "ls", "ab", Some(0));
    let shown = happen(&mut ptys, vec![PtyEvent::CommandDone(Some(0)), data("$ ")]);
    assert_eq!(shown, json!([plain("$ "), first, plain("$ ")]));
    // One that begins before the other has ended: nobody has said how that has.
    let shown = happen(&mut ptys, vec![begun("one"), begun("two"), data("c"), PtyEvent::CommandDone(None)]);
    let all =
        json!([plain("$ "), first, plain("$ "), command(2, "one", "", None), command(3, "two", "c", None)]);
    assert_eq!(shown, all);
    // With what was shown it is forgotten what runs.
    happen(&mut ptys, vec![begun("three"), data("d")]);
    assert_eq!(ptys.act(A, json!({ "type": "terminal/cleared" })), None);
    let shown = happen(&mut ptys, vec![data("e"), PtyEvent::CommandDone(Some(0)), begun("exit")]);
    assert_eq!(shown[0], plain("e"));
    // The end of the program is that of its command.
    let shown = happen(&mut ptys, vec![PtyEvent::Exited(Some(4))]);
    assert_eq!(shown[1], command(5, "exit", "", None));
}

#[test]
fn oldest_commands_without_output_are_removed_beyond_1000() {
    let mut ptys = Ptys::new();
    let key = ptys.created();
    for number in 1..=1000 {
        ptys.world.pty(key, PtyEvent::CommandBegun(number.to_string()));
        ptys.world.pty(key, PtyEvent::CommandDone(Some(0)));
    }
    assert_eq!(ptys.fresh().content.len(), 1000);
    ptys.world.pty(key, PtyEvent::CommandBegun("one more".to_owned()));
    let content = ptys.fresh().content;
    assert_eq!(content.len(), 750);
    let Some(TerminalContentPart::Command(last)) = content.last() else { panic!("{content:?}") };
    assert_eq!(last.command_line, "one more");
}

#[test]
fn terminals_of_a_session_end_with_it_and_move_with_their_chat() {
    let mut ptys = Ptys::new();
    ptys.world.take();
    ptys.world.request(A, "createChat", json!({ "channel": SESSION, "chat": "ahp-chat:/second" }));
    let of_chat = with(of_session(), "chat", json!("ahp-chat:/second"));
    ptys.create(A, with(of_a(TERMINAL), "claim", of_chat.clone())).unwrap();
    ptys.world.subscribe(A, TERMINAL);
    ptys.ask(A, "createSession", json!({ "channel": "ahp-session:/other" })).unwrap();
    let destination = json!({ "kind": "session", "session": "ahp-session:/other" });
    ptys.world.request(A, "moveChat", json!({ "channel": "ahp-chat:/second", "destination": destination }));
    let list = ptys.listed().expect("a list");
    assert_eq!(list[0]["claim"], with(of_chat, "session", json!("ahp-session:/other")));
    ptys.world.take();
    ptys.world.request(A, "disposeSession", json!({ "channel": "ahp-session:/other" }));
    assert!(ptys.has_ended_a_program());
    let names: Vec<Value> =
        ptys.world.lines().into_iter().map(|(_, it)| it["params"]["action"]["type"].clone()).collect();
    let at =
        |name: &str| names.iter().position(|it| it == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
    assert!(at("root/terminalsChanged") < at("root/activeSessionsChanged"));
    assert!(!ptys.is_there());
}

#[test]
fn oldest_exited_terminals_beyond_64_are_removed() {
    let mut ptys = Ptys::new();
    for number in 0..65 {
        let key = ptys.create(A, of_a(&format!("x:/{number}"))).unwrap();
        ptys.world.pty(key, PtyEvent::Exited(Some(number)));
        let expected = usize::try_from(number + 1).unwrap().min(64);
        assert_eq!(ptys.listed().unwrap().as_array().unwrap().len(), expected);
    }
    assert_eq!(ptys.ask(A, "subscribe", json!({ "channel": "x:/0" })), Err(-32001));
    ptys.ask(A, "subscribe", json!({ "channel": "x:/1" })).unwrap();
}

/// Random event of a test.
#[derive(Debug, Clone)]
enum Happening {
    Prints(u16),
    Ends,
    Reports(PtyEvent),
    Acts(usize, Value),
    Moves(usize, Moves),
}

/// Generates the reports of a program, or of the shell in front of it, other than output.
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
        MOVES => moves().prop_map(|(at, moves)| Happening::Moves(at, moves)),
    ]
}

fn happen(ptys: &mut Ptys, key: TerminalKey, followers: &mut Followers, happening: &Happening) {
    match happening {
        Happening::Prints(lines) => {
            let text: String = (0..*lines).map(|line| format!("{line} ä\r\n")).collect();
            ptys.world.pty(key, PtyEvent::Data(format!("{text}$ ")));
        }
        Happening::Reports(event) => ptys.world.pty(key, event.clone()),
        Happening::Ends => ptys.world.pty(key, PtyEvent::Exited(Some(1))),
        Happening::Acts(at, action) => {
            if let Some(connection) = followers.connection(*at) {
                ptys.act(connection, action.clone());
            }
        }
        Happening::Moves(at, moves) => followers.go(&mut ptys.world, *at, moves),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_terminal_mirror_equals_a_fresh_snapshot(
        happenings in prop::collection::vec(happening(), 1..40)
    ) {
        let mut ptys = Ptys::new();
        let key = ptys.created();
        // They watch; those that come and go are others of the same name.
        ptys.world.unsubscribe(A, TERMINAL);
        let mut followers = Followers::new(TERMINAL);
        for happening in &happenings {
            happen(&mut ptys, key, &mut followers, happening);
            followers.hear(&mut ptys.world);
            followers.check(&mut ptys.world, B);
        }
    }
}

/// The root state that a process shows whose predecessor has left this.
fn root_behind_a_restart(left: &World, head: u64) -> (World, Value) {
    let mut rows = left.outputs.iter().rev().filter_map(|output| match output {
        Output::Record(Record::Channel(row)) if row.id == ChannelId::ROOT => Some(row.clone()),
        _ => None,
    });
    let start =
        Start { head, continues: true, channels: rows.next().into_iter().collect(), ..Start::default() };
    let mut world = World::saving(Core::after(start, vec![Script.describe()]));
    world.arrive(A, "a");
    let state = world.state(A, ROOT);
    (world, state)
}

/// A client that comes back is told by actions alone, and must have what a snapshot shows.
#[test]
fn terminal_list_after_a_restart_equals_the_one_in_actions() {
    let mut ptys = Ptys::new();
    let (_, root) = root_behind_a_restart(&ptys.world, 1000);
    assert_eq!(root.get("terminals"), None, "nobody was ever told of terminals");
    ptys.created();
    let (world, root) = root_behind_a_restart(&ptys.world, 1000);
    assert_eq!(root["terminals"], json!([]), "an action says that they are gone");
    let (_, root) = root_behind_a_restart(&world, 2000);
    assert_eq!(root["terminals"], json!([]), "the next process shows what that action said");
}
