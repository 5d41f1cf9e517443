//! Requests that older clients send before an earlier one was answered, as in one write.
//!
//! Owns: a host in memory behind the version edge, whose answers are held back until everything was
//! said.
//! Never: runs an agent; what it would be told is what matters.

use std::path::Path;

use ahp_sidecar::host::effects::{ConnectionId, Event, Output};
use ahp_sidecar::wire::annotations::annotations_uri;
use serde_json::{json, Value};

use crate::support::core::{opens, SESSION};
use crate::support::edged::EdgedWorld;
use crate::support::world::ROOT;
use crate::support::Process;

const CLIENT: ConnectionId = ConnectionId(1);

/// A client that reads nothing before it has said everything.
struct Hasty {
    edged: EdgedWorld,
}

impl Hasty {
    fn new() -> Self {
        let mut edged = EdgedWorld::new();
        edged.world.open(CLIENT);
        Self { edged }
    }

    /// One that has said that it is of this version.
    fn of(version: &str) -> Self {
        let mut client = Self::new();
        let hello = json!({ "channel": ROOT, "clientId": "me", "protocolVersions": [version] });
        client.ask("initialize", hello);
        client
    }

    fn ask(&mut self, method: &str, params: Value) {
        self.edged.request(CLIENT, method, params);
        self.open_agents();
    }

    fn tell(&mut self, method: &str, params: Value) {
        self.edged.notify(CLIENT, method, params);
        self.open_agents();
    }

    /// Agents open as soon as they are told to; what clients hear of that is left out.
    fn open_agents(&mut self) {
        let mut outputs = self.edged.world.take();
        // What comes later than what was asked for behind it.
        let is_read_elsewhere = outputs.iter().any(|output| matches!(output, Output::List(..)));
        assert!(!is_read_elsewhere, "a handshake waits for the store after it was heard");
        let opened: Vec<_> = opens(&outputs).collect();
        opened.into_iter().for_each(|chat| self.edged.world.agent(chat, Event::Opened));
        outputs.retain(|output| matches!(output, Output::Frame(..)));
        self.edged.world.outputs = outputs;
    }

    /// Delivers the pending messages and returns them: answers by their ids, other messages by
    /// their methods.
    fn delivered(&mut self) -> Vec<String> {
        self.edged.deliver();
        self.open_agents();
        let name = |line: &Value| match line["method"].as_str() {
            Some("action") => line["params"]["action"]["type"].as_str().unwrap_or_default().to_owned(),
            Some("notification") => {
                line["params"]["notification"]["type"].as_str().unwrap_or_default().to_owned()
            }
            Some(method) => method.to_owned(),
            None => line["id"].to_string(),
        };
        self.edged.told.drain(..).map(|(_, line)| name(&line)).collect()
    }
}

#[test]
fn subscription_dropped_before_its_answer_receives_no_actions() {
    let mut client = Hasty::of("0.3.0");
    client.ask("createSession", json!({ "channel": SESSION }));
    client.ask("subscribe", json!({ "channel": SESSION }));
    client.tell("unsubscribe", json!({ "channel": SESSION }));
    assert_eq!(client.delivered(), ["1", "2", "3"]);
    let message = json!({ "text": "Hello", "origin": { "kind": "user" } });
    let action = json!({ "type": "session/turnStarted", "turnId": "t", "message": message });
    client.tell("dispatchAction", json!({ "channel": SESSION, "clientSeq": 1, "action": action }));
    assert_eq!(client.delivered(), [""; 0]);
    client.ask("subscribe", json!({ "channel": SESSION }));
    let action = json!({ "type": "session/turnCancelled", "turnId": "t" });
    client.tell("dispatchAction", json!({ "channel": SESSION, "clientSeq": 2, "action": action }));
    assert_eq!(client.delivered(), ["4", "session/turnCancelled"]);
}

#[test]
fn annotations_action_of_a_version_without_annotations_is_rejected() {
    for version in ["0.2.0", "0.3.0", "0.4.0"] {
        let mut client = Hasty::of(version);
        client.ask("createSession", json!({ "channel": SESSION }));
        let annotations = annotations_uri(SESSION);
        client.ask("subscribe", json!({ "channel": annotations }));
        client.delivered();
        let annotation = json!({ "id": "a", "turnId": "", "resource": "file:///a", "resolved": false,
            "entries": [{ "id": "e", "text": "x" }] });
        let action = json!({ "type": "annotations/set", "annotation": annotation });
        client.tell("dispatchAction", json!({ "channel": annotations, "clientSeq": 1, "action": action }));
        client.edged.deliver();
        let told: Vec<Value> = client.edged.told.drain(..).map(|(_, line)| line["params"].clone()).collect();
        let answers: Vec<&Value> = told.iter().filter(|it| it["origin"]["clientSeq"] == 1).collect();
        assert_eq!(answers.len(), 1, "{version}: {told:?}");
        let reason = answers[0]["rejectionReason"].as_str();
        assert_eq!(reason.is_some(), version != "0.4.0", "{version}: {told:?}");
        assert_eq!(answers[0]["action"]["type"], "annotations/set", "{version}");
        client.edged.world.arrive(ConnectionId(9), "other");
        let state = client.edged.world.state(ConnectionId(9), &annotations);
        let count = state["annotations"].as_array().map(Vec::len);
        assert_eq!(count, Some(usize::from(version == "0.4.0")), "{version}: nothing was done");
    }
}

#[test]
fn fetching_turns_ends_no_subscription() {
    let mut client = Hasty::of("0.3.0");
    client.ask("createSession", json!({ "channel": SESSION }));
    client.ask("subscribe", json!({ "channel": SESSION }));
    client.ask("fetchTurns", json!({ "channel": SESSION }));
    assert_eq!(client.delivered(), ["1", "2", "3", "4"]);
    let message = json!({ "text": "Hello", "origin": { "kind": "user" } });
    let action = json!({ "type": "session/turnStarted", "turnId": "t", "message": message });
    client.tell("dispatchAction", json!({ "channel": SESSION, "clientSeq": 1, "action": action }));
    assert_eq!(client.delivered()[0], "session/turnStarted");
}

#[test]
fn late_handshake_answer_ends_no_subscription() {
    let mut client = Hasty::new();
    client.ask("initialize", json!({ "clientId": "me", "protocolVersions": ["0.1.0"] }));
    // The list that its answer is made of is read elsewhere.
    let handshake = client.edged.world.take();
    client.ask("createSession", json!({ "session": "script:/s" }));
    client.ask("subscribe", json!({ "resource": "script:/s" }));
    assert_eq!(client.delivered().last().map(String::as_str), Some("3"));
    client.edged.world.outputs = handshake;
    assert_eq!(client.delivered(), ["1"]);
    let action = json!({
        "type": "session/turnStarted", "session": "script:/s", "turnId": "t", "userMessage": { "text": "Hello" },
    });
    client.tell("dispatchAction", json!({ "clientSeq": 1, "action": action }));
    assert_eq!(client.delivered()[0], "session/turnStarted");
}

#[test]
fn client_that_unsubscribes_the_root_at_once_receives_session_notifications() {
    let mut client = Hasty::new();
    let root = "agenthost:/root";
    let hello = json!({ "clientId": "me", "protocolVersions": ["0.1.0"], "initialSubscriptions": [root] });
    client.ask("initialize", hello);
    client.tell("unsubscribe", json!({ "resource": root }));
    assert_eq!(client.delivered(), ["1"]);
    client.ask("createSession", json!({ "session": "script:/s" }));
    assert_eq!(client.delivered(), ["2", "notify/sessionAdded"]);
}

#[test]
fn selections_apply_to_the_messages_behind_them() {
    let mut client = Hasty::of("0.4.0");
    client.ask("createSession", json!({ "channel": SESSION, "model": { "id": "m1" } }));
    client.ask("subscribe", json!({ "channel": SESSION }));
    let active = json!({ "clientId": "me", "tools": [] });
    for (seq, action) in [
        json!({ "type": "session/agentChanged", "agent": { "uri": "agent:/a" } }),
        json!({ "type": "session/modelChanged", "model": { "id": "m2" } }),
        json!({ "type": "session/activeClientChanged", "activeClient": active }),
        json!({ "type": "session/activeClientToolsChanged", "tools": [{ "name": "look" }] }),
    ]
    .into_iter()
    .enumerate()
    {
        client.tell("dispatchAction", json!({ "channel": SESSION, "clientSeq": seq, "action": action }));
    }
    let told = client.delivered();
    assert_eq!(told[..3], ["1", "2", "3"]);
    client.ask("subscribe", json!({ "channel": SESSION }));
    client.edged.deliver();
    let (_, shown) = &client.edged.told[0];
    let state = &shown["result"]["snapshot"]["state"];
    assert_eq!(state["summary"]["model"], json!({ "id": "m2" }));
    assert_eq!(state["summary"]["agent"], json!({ "uri": "agent:/a" }));
    assert_eq!(state["activeClient"]["tools"], json!([{ "name": "look" }]));
}

/// In one write, in each of several processes on a folder: `first` and, behind it, a turn and a new
/// session. The answer to `first`, and all that is told behind it.
fn answer_and_rest(folder: &Path, first: &Value, life: usize) -> (Value, Vec<Value>) {
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
fn actions_caused_behind_an_old_handshake_follow_its_answer() {
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
        let (answer, told) = answer_and_rest(&folder, first, life);
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
