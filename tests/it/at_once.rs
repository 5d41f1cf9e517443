//! What older clients say before anything was answered, as when it all comes in one write.
//!
//! Owns: a host in memory behind the version edge, whose answers are held back until everything was said.
//! Never: runs an agent; what it would be told is what matters.

use std::path::Path;

use ahp_sidecar::host::effects::{Command, ConnectionId, Event, Frame, Input, Output};
use ahp_sidecar::versions::Edges;
use ahp_sidecar::wire::rpc::Incoming;
use serde_json::{json, Value};

use crate::support::core::{Core, SESSION};
use crate::support::Process;

const CLIENT: ConnectionId = ConnectionId(1);

struct World {
    host: Core,
    edges: Edges,
    /// What is on its way to the client.
    frames: Vec<Frame>,
    last: u64,
}

impl World {
    fn new() -> Self {
        let mut host = Core::new();
        host.feed(Input::Opened { connection: CLIENT, default_directory: None });
        Self { host, edges: Edges::new(vec!["script".to_owned()]), frames: Vec::new(), last: 0 }
    }

    fn say(&mut self, message: Value) {
        let mut fed = Vec::new();
        self.edges.up(CLIENT, Incoming::parse(&message.to_string().into()), &mut fed);
        self.feed(fed);
    }

    fn feed(&mut self, fed: Vec<Incoming>) {
        for message in fed {
            for output in self.host.feed(Input::said(CLIENT, message)) {
                match output {
                    Output::Frame(_, frame) => self.frames.push(frame),
                    Output::Agent(chat, command) if matches!(*command, Command::Open(_)) => {
                        self.host.feed(Input::Agent(chat, Event::Opened));
                    }
                    // What comes later than what was asked for behind it.
                    Output::List(..) => panic!("a handshake waits for the store after it was heard"),
                    _ => {}
                }
            }
        }
    }

    fn ask(&mut self, method: &str, params: Value) {
        self.last += 1;
        self.say(json!({ "jsonrpc": "2.0", "id": self.last, "method": method, "params": params }));
    }

    fn tell(&mut self, method: &str, params: Value) {
        self.say(json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// What the client is told, now that it may be: answers by their numbers, the rest by their methods.
    fn told(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        while !self.frames.is_empty() {
            for frame in std::mem::take(&mut self.frames) {
                self.edges.down(CLIENT, &frame, &mut told);
            }
            while let Some((_, message)) = self.edges.take_later() {
                self.feed(vec![message]);
            }
        }
        let name = |line: Value| match line["method"].as_str() {
            Some("action") => line["params"]["action"]["type"].as_str().unwrap_or_default().to_owned(),
            Some("notification") => {
                line["params"]["notification"]["type"].as_str().unwrap_or_default().to_owned()
            }
            Some(method) => method.to_owned(),
            None => line["id"].to_string(),
        };
        told.iter().map(|line| name(serde_json::from_slice(&line.bytes).unwrap())).collect()
    }
}

#[test]
fn what_is_given_up_before_it_was_answered_is_not_told() {
    let mut world = World::new();
    world.ask(
        "initialize",
        json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["0.3.0"] }),
    );
    world.ask("createSession", json!({ "channel": SESSION }));
    world.ask("subscribe", json!({ "channel": SESSION }));
    world.tell("unsubscribe", json!({ "channel": SESSION }));
    assert_eq!(world.told(), ["1", "2", "3"]);
    let message = json!({ "text": "Hello", "origin": { "kind": "user" } });
    let action = json!({ "type": "session/turnStarted", "turnId": "t", "message": message });
    world.tell("dispatchAction", json!({ "channel": SESSION, "clientSeq": 1, "action": action }));
    assert_eq!(world.told(), [""; 0]);
    world.ask("subscribe", json!({ "channel": SESSION }));
    let action = json!({ "type": "session/turnCancelled", "turnId": "t" });
    world.tell("dispatchAction", json!({ "channel": SESSION, "clientSeq": 2, "action": action }));
    assert_eq!(world.told(), ["4", "session/turnCancelled"]);
}

#[test]
fn turns_that_are_looked_at_end_no_subscription() {
    let mut world = World::new();
    world.ask(
        "initialize",
        json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["0.3.0"] }),
    );
    world.ask("createSession", json!({ "channel": SESSION }));
    world.ask("subscribe", json!({ "channel": SESSION }));
    world.ask("fetchTurns", json!({ "channel": SESSION }));
    assert_eq!(world.told(), ["1", "2", "3", "4"]);
    let message = json!({ "text": "Hello", "origin": { "kind": "user" } });
    let action = json!({ "type": "session/turnStarted", "turnId": "t", "message": message });
    world.tell("dispatchAction", json!({ "channel": SESSION, "clientSeq": 1, "action": action }));
    assert_eq!(world.told()[0], "session/turnStarted");
}

#[test]
fn a_handshake_that_is_answered_late_ends_no_subscription() {
    let mut world = World::new();
    world.ask("initialize", json!({ "clientId": "me", "protocolVersions": ["0.1.0"] }));
    // The list that its answer is made of is read elsewhere.
    let handshake = std::mem::take(&mut world.frames);
    world.ask("createSession", json!({ "session": "script:/s" }));
    world.ask("subscribe", json!({ "resource": "script:/s" }));
    assert_eq!(world.told().last().map(String::as_str), Some("3"));
    world.frames = handshake;
    assert_eq!(world.told(), ["1"]);
    let action = json!({
        "type": "session/turnStarted", "session": "script:/s", "turnId": "t", "userMessage": { "text": "Hello" },
    });
    world.tell("dispatchAction", json!({ "clientSeq": 1, "action": action }));
    assert_eq!(world.told()[0], "session/turnStarted");
}

#[test]
fn who_gives_the_root_up_at_once_hears_of_sessions_all_the_same() {
    let mut world = World::new();
    let root = "agenthost:/root";
    let hello = json!({ "clientId": "me", "protocolVersions": ["0.1.0"], "initialSubscriptions": [root] });
    world.ask("initialize", hello);
    world.tell("unsubscribe", json!({ "resource": root }));
    assert_eq!(world.told(), ["1"]);
    world.ask("createSession", json!({ "session": "script:/s" }));
    assert_eq!(world.told(), ["2", "notify/sessionAdded"]);
}

#[test]
fn what_is_selected_counts_for_what_is_said_behind_it() {
    let mut world = World::new();
    world.ask(
        "initialize",
        json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["0.4.0"] }),
    );
    world.ask("createSession", json!({ "channel": SESSION, "model": { "id": "m1" } }));
    world.ask("subscribe", json!({ "channel": SESSION }));
    let client = json!({ "clientId": "me", "tools": [] });
    for (seq, action) in [
        json!({ "type": "session/agentChanged", "agent": { "uri": "agent:/a" } }),
        json!({ "type": "session/modelChanged", "model": { "id": "m2" } }),
        json!({ "type": "session/activeClientChanged", "activeClient": client }),
        json!({ "type": "session/activeClientToolsChanged", "tools": [{ "name": "look" }] }),
    ]
    .into_iter()
    .enumerate()
    {
        world.tell("dispatchAction", json!({ "channel": SESSION, "clientSeq": seq, "action": action }));
    }
    let told = world.told();
    assert_eq!(told[..3], ["1", "2", "3"]);
    world.ask("subscribe", json!({ "channel": SESSION }));
    let mut lines = Vec::new();
    for frame in std::mem::take(&mut world.frames) {
        world.edges.down(CLIENT, &frame, &mut lines);
    }
    let shown: Value = serde_json::from_slice(&lines[0].bytes).unwrap();
    let state = &shown["result"]["snapshot"]["state"];
    assert_eq!(state["summary"]["model"], json!({ "id": "m2" }));
    assert_eq!(state["summary"]["agent"], json!({ "uri": "agent:/a" }));
    assert_eq!(state["activeClient"]["tools"], json!([{ "name": "look" }]));
}

/// In one write, in each of several processes on a folder: `first` and, behind it, a turn and a new session. The
/// answer to `first`, and all that is told behind it.
fn told_behind(folder: &Path, first: &Value, life: usize) -> (Value, Vec<Value>) {
    let mut process = Process::start_on(folder, &[]);
    let session = format!("script:/new-{life}");
    let turn = json!({ "type": "session/turnStarted", "session": "script:/s", "turnId": format!("t{life}"),
        "userMessage": { "text": "/say hello" } });
    let lines = [
        first.clone(),
        json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": { "clientSeq": life, "action": turn } }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "createSession", "params": { "session": session } }),
    ];
    process.say(&lines.map(|line| line.to_string()).join("\n"));
    let mut told = process.until(|message| message["id"] == 2);
    process.end();
    told.extend(process.rest());
    assert_eq!(process.wait().code(), Some(0));
    (told.remove(0), told)
}

#[test]
fn what_an_older_client_says_behind_its_handshake_is_told_behind_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("state");
    let mut process = Process::start_on(&folder, &[]);
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        { "protocolVersion": 1, "clientId": "me", "initialSubscriptions": ["root:/", "script:/s"] } });
    let made =
        json!({ "jsonrpc": "2.0", "id": 2, "method": "createSession", "params": { "session": "script:/s" } });
    process.say(&format!("{hello}\n{made}"));
    process.until(|message| message["params"]["notification"]["type"] == "notify/sessionAdded");
    process.end();
    process.rest();
    let mut seen = 0;
    for life in 1..8 {
        let back = json!({ "jsonrpc": "2.0", "id": 1, "method": "reconnect", "params":
            { "clientId": "me", "lastSeenServerSeq": seen, "subscriptions": ["root:/", "script:/s"] } });
        let first = if life % 2 == 0 { &hello } else { &back };
        let (answer, told) = told_behind(&folder, first, life);
        assert_eq!(answer["id"], 1, "told before the answer: {answer}, then {told:?}");
        let heard = |name: &str| {
            let is_it = |message: &&Value| message["params"]["action"]["type"] == name;
            told.iter().filter(is_it).count()
        };
        let names = ["session/turnStarted", "session/turnComplete", "root/activeSessionsChanged"];
        assert_eq!(names.map(heard), [1, 1, 1], "{told:#?}");
        seen = told.iter().filter_map(|message| message["params"]["serverSeq"].as_u64()).max().unwrap();
    }
}
