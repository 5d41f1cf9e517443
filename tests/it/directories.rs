//! Working directories, where a transcript cannot go: agents that can do less, and messages that
//! come faster than a file system answers.
//!
//! Owns: a host in memory with an agent of some ability, and a whole process that reads ahead.
//! Never: makes a directory.

use ahp_sidecar::backend::{script::Script, Backend};
use ahp_sidecar::host::effects::{Command, ConnectionId, Event, Frame, Output};
use ahp_types::state::AgentCapabilities;
use serde_json::{json, Value};

use crate::support::core::{Core, CHAT, SESSION};
use crate::support::world::World;
use crate::support::Process;

const CLIENT: ConnectionId = ConnectionId(1);

/// A client, and a host whose agent says something of working in several directories.
struct Worker {
    world: World,
}

impl Worker {
    fn new(several: Value) -> Self {
        let mut agent = Script.describe();
        let capabilities: AgentCapabilities =
            serde_json::from_value(json!({ "multipleWorkingDirectories": several })).unwrap();
        agent.info.capabilities = Some(capabilities);
        let mut world = World::new(Core::with(agent));
        world.arrive(CLIENT, "me");
        Self { world }
    }

    /// Creates a session in these directories; returns whether that succeeded.
    fn create(&mut self, directories: &[&str]) -> bool {
        let params = json!({ "channel": SESSION, "workingDirectories": directories });
        let answer = self.world.ask(CLIENT, "createSession", params);
        assert!(answer.as_ref().err().is_none_or(|error| error.code == -32602), "{answer:?}");
        answer.is_ok()
    }

    /// Why a change is refused; none when it is not. What is not refused changes something.
    fn change(&mut self, channel: &str, name: &str, directories: &[&str]) -> Option<String> {
        self.world.take();
        let mut action = json!({ "type": name, "directory": directories[0] });
        if let Some(replacement) = directories.get(1) {
            action["replacement"] = (*replacement).into();
        }
        let refused = self.world.dispatch(CLIENT, channel, action);
        let is_for_it_alone = |output: &Output| matches!(output, Output::Frame(_, Frame::Answer(_)));
        assert_eq!(self.world.outputs.iter().any(is_for_it_alone), refused.is_some(), "{refused:?}");
        refused
    }
}

const SET: &str = "session/workingDirectorySet";
const REMOVED: &str = "session/workingDirectoryRemoved";
const REPLACED: &str = "session/workingDirectoryReplaced";
const CHOSEN: &str = "chat/workingDirectorySet";

#[test]
fn agent_with_one_working_directory_cannot_change_it() {
    let mut worker = Worker::new(Value::Null);
    assert!(!worker.create(&["file:///a", "file:///b"]));
    assert!(worker.create(&["file:///a", "file:///a/"]), "one in two spellings");
    let stays = "the agent `script` stays in the directory that its session was created with";
    for (channel, name, directories) in [
        (SESSION, SET, &["file:///b"][..]),
        (SESSION, REMOVED, &["file:///a"]),
        (SESSION, REPLACED, &["file:///a", "file:///b"]),
        (CHAT, "chat/workingDirectorySet", &["file:///a"]),
        (CHAT, "chat/workingDirectoryRemoved", &["file:///a"]),
    ] {
        assert_eq!(worker.change(channel, name, directories).as_deref(), Some(stays), "{name}");
    }
}

#[test]
fn primary_directory_changes_follow_the_capabilities_of_the_agent() {
    // Whether the first one may be removed, and whether it may be replaced.
    for (several, removed, replaced) in [
        (json!({}), true, false),
        (json!({ "immutablePrimary": true }), false, false),
        (json!({ "primaryReplacement": true }), false, true),
        (json!({ "immutablePrimary": true, "primaryReplacement": true }), false, true),
    ] {
        let mut worker = Worker::new(several.clone());
        assert!(worker.create(&["file:///a", "file:///b"]));
        let changed = worker.change(SESSION, REPLACED, &["file:///a", "file:///c"]);
        assert_eq!(changed.is_none(), replaced, "{several}: {changed:?}");
        let first = if replaced { "file:///c" } else { "file:///a" };
        let changed = worker.change(SESSION, REMOVED, &[first]);
        assert_eq!(changed.is_none(), removed, "{several}: {changed:?}");
        // The others come and go.
        assert_eq!(worker.change(SESSION, SET, &["file:///d"]), None);
        assert_eq!(worker.change(SESSION, REPLACED, &["file:///d", "file:///e"]), None);
        assert_eq!(worker.change(SESSION, REMOVED, &["file:///e"]), None);
    }
}

#[test]
fn directory_already_present_under_another_spelling_is_refused() {
    let mut worker = Worker::new(json!({ "primaryReplacement": true }));
    assert!(worker.create(&["file:///a"]));
    assert_eq!(worker.change(CHAT, "chat/workingDirectorySet", &["file:/a"]), None);
    let there = "`file:///a` is a working directory already";
    for (channel, name, directories) in [
        (SESSION, SET, &["file:///a/"][..]),
        (SESSION, REPLACED, &["file:///a", "file:/a"]),
        (CHAT, "chat/workingDirectorySet", &["file:///a/"]),
    ] {
        assert_eq!(worker.change(channel, name, directories).as_deref(), Some(there), "{name}");
    }
}

#[test]
fn chat_that_loses_its_last_directory_gets_the_first_one_of_its_session() {
    let mut world = World::new(Core::new());
    world.arrive(CLIENT, "me");
    let target = "ahp-session:/target";
    for (session, directories) in
        [(SESSION, ["file:///a", "file:///b"]), (target, ["file:///c", "file:///d"])]
    {
        let params = json!({ "channel": session, "workingDirectories": directories });
        world.ask(CLIENT, "createSession", params).unwrap();
        let chat = world.opened();
        world.agent(chat, Event::Opened);
    }
    let moved = "ahp-chat:/moved";
    let params = json!({ "channel": SESSION, "chat": moved, "workingDirectories": ["file:///b"] });
    world.ask(CLIENT, "createChat", params).unwrap();
    assert_eq!(world.dispatch(CLIENT, CHAT, json!({ "type": CHOSEN, "directory": "file:///b" })), None);
    let works_in = |world: &mut World, chat: &str, directories: &[&str]| {
        assert_eq!(world.state(CLIENT, chat)["workingDirectories"], json!(directories));
        let told = world.commands().rev().find_map(|command| match command {
            Command::WorkIn { directories } => Some(directories.clone()),
            Command::Open(open) => Some(open.working_directories.clone()),
            _ => None,
        });
        assert_eq!(told.as_deref().unwrap(), directories);
    };
    works_in(&mut world, CHAT, &["file:///b"]);
    let destination = json!({ "kind": "session", "session": target });
    world.ask(CLIENT, "moveChat", json!({ "channel": moved, "destination": destination })).unwrap();
    world.start(CLIENT, moved, "t", "x");
    works_in(&mut world, moved, &["file:///c"]);
    assert_eq!(world.dispatch(CLIENT, SESSION, json!({ "type": REMOVED, "directory": "file:///b" })), None);
    works_in(&mut world, CHAT, &["file:///a"]);
}

#[test]
fn replaced_directory_of_a_session_keeps_its_place_in_the_choices_of_chats() {
    // The choice of the chat, and what becomes of it when `b` is replaced by `d`, and by `c`.
    for (chosen, replacement, then) in [
        (&["b", "c"][..], "d", &["d", "c"][..]),
        (&["c", "b", "a"], "d", &["c", "d", "a"]),
        (&["b", "a", "c"], "c", &["c", "a"]),
        (&["c", "b", "a"], "c", &["c", "a"]),
        (&["a"], "d", &["a"]),
    ] {
        let uris = |names: &[&str]| names.iter().map(|name| format!("file:///{name}")).collect::<Vec<_>>();
        let mut worker = Worker { world: World::new(Core::new()) };
        worker.world.arrive(CLIENT, "me");
        assert!(worker.create(&["file:///a", "file:///b", "file:///c"]));
        let key = worker.world.opened();
        worker.world.agent(key, Event::Opened);
        for directory in uris(chosen) {
            assert_eq!(worker.change(CHAT, CHOSEN, &[&directory]), None);
        }
        assert_eq!(worker.change(SESSION, REPLACED, &["file:///b", &uris(&[replacement])[0]]), None);
        assert_eq!(worker.world.state(CLIENT, CHAT)["workingDirectories"], json!(uris(then)), "{chosen:?}");
        let told = worker.world.commands().find_map(|command| match command {
            Command::WorkIn { directories } => Some(directories.clone()),
            _ => None,
        });
        assert_eq!(told, (chosen != then).then(|| uris(then)), "the agent of {chosen:?} is told once");
    }
}

#[test]
fn empty_choice_of_directories_is_refused() {
    let mut worker = Worker { world: World::new(Core::new()) };
    worker.world.arrive(CLIENT, "me");
    assert!(worker.create(&["file:///a", "file:///b"]));
    let why = "a chat needs a directory of its session: set another one before the last one is removed";
    let empty = json!({ "channel": SESSION, "chat": "ahp-chat:/empty", "workingDirectories": [] });
    let refused = worker.world.ask(CLIENT, "createChat", empty).unwrap_err();
    assert_eq!(
        (refused.code, refused.message),
        (-32602, format!("invalid params: `workingDirectories`: {why}"))
    );
    assert_eq!(worker.change(CHAT, CHOSEN, &["file:///b"]), None);
    let removed = "chat/workingDirectoryRemoved";
    assert_eq!(worker.change(CHAT, removed, &["file:///b"]).as_deref(), Some(why));
    assert_eq!(worker.change(CHAT, CHOSEN, &["file:///a"]), None);
    assert_eq!(worker.change(CHAT, removed, &["file:///b"]), None);
}

#[test]
fn messages_during_a_directory_check_are_served_in_order() {
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
