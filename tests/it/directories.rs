//! Working directories, where a transcript cannot go: agents that can do less, and messages that come faster than
//! a file system answers.
//!
//! Owns: a host in memory with an agent of some ability, and a whole process that reads ahead.
//! Never: makes a directory.

use ahp_sidecar::backend::{script::Script, Backend};
use ahp_sidecar::host::effects::{ConnectionId, Frame, Input, Output, Recalled};
use ahp_sidecar::wire::names::Named;
use ahp_sidecar::wire::rpc::Incoming;
use ahp_types::state::AgentCapabilities;
use serde_json::{json, Value};

use crate::support::core::{Core, CHAT, SESSION};
use crate::support::Process;

const CLIENT: ConnectionId = ConnectionId(1);

struct World {
    core: Core,
    outputs: Vec<Output>,
}

impl World {
    /// A host whose agent says this of working in several directories.
    fn new(several: Value) -> Self {
        let mut agent = Script.describe();
        let capabilities: AgentCapabilities =
            serde_json::from_value(json!({ "multipleWorkingDirectories": several })).unwrap();
        agent.info.capabilities = Some(capabilities);
        let mut world = Self { core: Core::with(agent), outputs: Vec::new() };
        world.feed(Input::Opened { connection: CLIENT, default_directory: None });
        world.ask("initialize", json!({ "clientId": "me", "protocolVersions": ["1.0.0"] }));
        world
    }

    fn feed(&mut self, input: Input) {
        self.outputs.extend(self.core.feed(input));
    }

    /// Says a message. Every directory that it names is there.
    fn say(&mut self, message: Value) {
        let message = Incoming::parse(&message.to_string().into());
        let findings = Named::of(&message).directories.into_iter().map(|uri| (uri, Ok(()))).collect();
        let recalled = Recalled { findings, ..Recalled::default() };
        self.feed(Input::Said { connection: CLIENT, message, recalled });
    }

    fn ask(&mut self, method: &str, params: Value) {
        self.say(json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
    }

    /// Whether a session is created in these directories.
    fn create(&mut self, directories: &[&str]) -> bool {
        self.outputs.clear();
        self.ask("createSession", json!({ "channel": SESSION, "workingDirectories": directories }));
        let mut answers = self.outputs.iter().filter_map(|output| match output {
            Output::Frame(_, Frame::Result { .. }) => Some(true),
            Output::Frame(_, Frame::Error { error, .. }) => {
                assert_eq!(error.code, -32602, "{error}");
                Some(false)
            }
            _ => None,
        });
        answers.next().unwrap()
    }

    /// Why a change is refused; none when it is not.
    fn change(&mut self, channel: &str, name: &str, directories: &[&str]) -> Option<String> {
        self.outputs.clear();
        let mut action = json!({ "type": name, "directory": directories[0] });
        if let Some(replacement) = directories.get(1) {
            action["replacement"] = (*replacement).into();
        }
        let params = json!({ "channel": channel, "clientSeq": 1, "action": action });
        self.say(json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params }));
        let mut answers = self.outputs.iter().filter_map(|output| match output {
            Output::Frame(_, Frame::Answer(line)) => Some(serde_json::from_slice::<Value>(line).unwrap()),
            _ => None,
        });
        answers.next().map(|answer| answer["params"]["rejectionReason"].as_str().unwrap().to_owned())
    }
}

const SET: &str = "session/workingDirectorySet";
const REMOVED: &str = "session/workingDirectoryRemoved";
const REPLACED: &str = "session/workingDirectoryReplaced";

#[test]
fn an_agent_that_works_in_one_directory_stays_there() {
    let mut world = World::new(Value::Null);
    assert!(!world.create(&["file:///a", "file:///b"]));
    assert!(world.create(&["file:///a", "file:///a/"]), "one in two spellings");
    let stays = "the agent `script` stays in the directory that its session was created with";
    for (channel, name, directories) in [
        (SESSION, SET, &["file:///b"][..]),
        (SESSION, REMOVED, &["file:///a"]),
        (SESSION, REPLACED, &["file:///a", "file:///b"]),
        (CHAT, "chat/workingDirectorySet", &["file:///a"]),
        (CHAT, "chat/workingDirectoryRemoved", &["file:///a"]),
    ] {
        assert_eq!(world.change(channel, name, directories).as_deref(), Some(stays), "{name}");
    }
}

#[test]
fn what_becomes_of_the_first_directory_is_said_by_the_agent() {
    // Whether the first one may be removed, and whether it may be replaced.
    for (several, removed, replaced) in [
        (json!({}), true, false),
        (json!({ "immutablePrimary": true }), false, false),
        (json!({ "primaryReplacement": true }), false, true),
        (json!({ "immutablePrimary": true, "primaryReplacement": true }), false, true),
    ] {
        let mut world = World::new(several.clone());
        assert!(world.create(&["file:///a", "file:///b"]));
        let changed = world.change(SESSION, REPLACED, &["file:///a", "file:///c"]);
        assert_eq!(changed.is_none(), replaced, "{several}: {changed:?}");
        let first = if replaced { "file:///c" } else { "file:///a" };
        let changed = world.change(SESSION, REMOVED, &[first]);
        assert_eq!(changed.is_none(), removed, "{several}: {changed:?}");
        // The others come and go.
        assert_eq!(world.change(SESSION, SET, &["file:///d"]), None);
        assert_eq!(world.change(SESSION, REPLACED, &["file:///d", "file:///e"]), None);
        assert_eq!(world.change(SESSION, REMOVED, &["file:///e"]), None);
    }
}

#[test]
fn what_is_there_under_another_spelling_is_refused_rather_than_acknowledged() {
    let mut world = World::new(json!({ "primaryReplacement": true }));
    assert!(world.create(&["file:///a"]));
    assert_eq!(world.change(CHAT, "chat/workingDirectorySet", &["file:/a"]), None);
    let there = "`file:///a` is a working directory already";
    for (channel, name, directories) in [
        (SESSION, SET, &["file:///a/"][..]),
        (SESSION, REPLACED, &["file:///a", "file:/a"]),
        (CHAT, "chat/workingDirectorySet", &["file:///a/"]),
    ] {
        assert_eq!(world.change(channel, name, directories).as_deref(), Some(there), "{name}");
    }
}

#[test]
fn what_is_said_while_directories_are_looked_at_is_heard_afterwards() {
    let mut host = Process::start(&[]);
    let mut lines = vec![json!({
        "id": 0, "method": "initialize", "params": { "clientId": "me", "protocolVersions": ["1.0.0"] },
    })];
    for number in 1..=40 {
        let session = format!("ahp-session:/{number}");
        let params = json!({ "channel": session, "workingDirectories": ["file:///usr", "file:///etc"] });
        lines.push(json!({ "id": 2 * number - 1, "method": "createSession", "params": params }));
        lines.push(json!({ "id": 2 * number, "method": "subscribe", "params": { "channel": session } }));
    }
    let all: String = lines
        .into_iter()
        .map(|mut line| {
            line["jsonrpc"] = "2.0".into();
            format!("{line}\n")
        })
        .collect();
    host.say_bytes(all.as_bytes());
    host.end();
    let answers: Vec<Value> =
        host.rest().into_iter().filter(|message| message.get("method").is_none()).collect();
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(answer["id"], number);
        assert!(answer.get("error").is_none(), "{answer}");
    }
    assert_eq!(answers.len(), 81);
    assert_eq!(host.wait().code(), Some(0));
}
