//! Tokens, where a transcript cannot go: how long they are good, and that nothing holds one.
//!
//! Owns: a host in memory whose clock a test moves, and a whole process that logs all that it can.
//! Never: looks for anything but the one token that it has pushed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use ahp_sidecar::backend::script::{GuardedScript, Script};
use ahp_sidecar::backend::Backend;
use ahp_sidecar::host::effects::{
    AgentDescription, ChatKey, Command, ConnectionId, Event, Frame, Input, Output, Token,
};
use ahp_sidecar::wire::rpc::Incoming;
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::support::core::{said, Core};
use crate::support::sidecar_on;

const RESOURCE: &str = "https://api.example";
const SECRET: &str = "c0ffee-is-no-secret";
const CLIENT: ConnectionId = ConnectionId(1);

/// What a host answers to these requests, each made at its second: a code, or 0 when it is none.
fn answers(requests: &[(u64, &str, Value)]) -> Vec<i32> {
    let mut core = Core::with(GuardedScript { resource: RESOURCE.to_owned() }.describe());
    let mut outputs = Vec::new();
    let mut feed = |second: u64, input| outputs.extend(core.feed_at(second, input));
    feed(0, Input::Opened { connection: CLIENT, default_directory: None });
    let hello = json!({ "clientId": "me", "protocolVersions": ["1.0.0"] });
    let hello = (0, "initialize", hello);
    for (second, method, params) in std::iter::once(&hello).chain(requests) {
        let line = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let message = Incoming::parse(&line.to_string().into());
        assert!(!format!("{message:?}").contains(SECRET));
        feed(*second, Input::said(CLIENT, message));
    }
    assert!(!format!("{outputs:?} {core:?}").contains(SECRET));
    let answered = outputs.iter().filter_map(|output| match output {
        Output::Frame(_, Frame::Result { .. }) => Some(0),
        Output::Frame(_, Frame::Error { error, .. }) => Some(error.code),
        _ => None,
    });
    answered.skip(1).collect()
}

#[test]
fn a_token_is_good_as_long_as_it_says() {
    let push = |more: Value| {
        let mut params = json!({ "resource": RESOURCE, "token": SECRET });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let create = |name: &str| json!({ "channel": format!("ahp-session:/{name}") });
    let answered = answers(&[
        (0, "authenticate", push(json!({ "expiresIn": 60 }))),
        (59, "createSession", create("a")),
        (60, "createSession", create("b")),
        (61, "authenticate", push(json!({}))),
        (1_000_000_000, "createSession", create("c")),
        (1_000_000_000, "authenticate", push(json!({ "expiresIn": u64::MAX }))),
        (1_000_000_001, "createSession", create("d")),
    ]);
    assert_eq!(answered, [0, 0, -32007, 0, 0, 0, 0]);
}

/// What an agent says of its login may be true no more: people log in elsewhere, too.
#[test]
fn that_an_agent_needs_a_login_is_believed_for_a_while() {
    let mut agent = Script.describe();
    let ways = json!([
        { "resource": "login:/a", "required": false }, { "resource": "login:/b", "required": false }
    ]);
    agent.info.protected_resources = Some(serde_json::from_value(ways).unwrap());
    let mut world = World::new(agent);
    assert_eq!(world.create(0, "a"), (0, String::new()));
    world.hear(1, Event::LoginRequired);
    let needed = "Script needs a token for `login:/a` or `login:/b`";
    assert_eq!(world.create(10, "b"), (-32007, needed.to_owned()));
    assert_eq!(world.create(11, "b"), (0, String::new()));
    world.hear(12, Event::LoginRequired);
    assert_eq!(world.create(12, "c").0, -32007);
    // One of them is enough.
    assert_eq!(world.ask(12, "authenticate", json!({ "resource": "login:/b", "token": SECRET })).0, 0);
    assert_eq!(world.create(12, "c").0, 0);
    let (_, asked) = world.ask(12, "ping", json!({ "channel": "ahp-root://" }));
    assert_eq!(asked, "");
    assert_eq!(world.notified, ["login:/a required", "login:/b required"].repeat(2));
    // It had that of the new session, and another one.
    world.hear(13, Event::LoginRequired);
    assert_eq!(world.notified[4..], ["login:/a required", "login:/b expired"]);
    assert_eq!(world.create(13, "d").0, -32007);
}

/// A host with one agent, and a client.
struct World {
    core: Core,
    /// The chat that was opened last.
    chat: Option<ChatKey>,
    /// What the client was asked for, and why.
    notified: Vec<String>,
}

impl World {
    fn new(agent: AgentDescription) -> Self {
        let mut world = Self { core: Core::with(agent), chat: None, notified: Vec::new() };
        world.feed(0, Input::Opened { connection: CLIENT, default_directory: None });
        world.ask(0, "initialize", json!({ "clientId": "me", "protocolVersions": ["1.0.0"] }));
        world
    }

    fn feed(&mut self, second: u64, input: Input) -> Vec<Output> {
        let outputs = self.core.feed_at(second, input);
        for output in &outputs {
            match output {
                Output::Agent(chat, command) if matches!(**command, Command::Open(_)) => {
                    self.chat = Some(*chat);
                }
                Output::Frame(_, Frame::Notification { method: "auth/required", params }) => {
                    let params: Value = serde_json::from_slice(params).unwrap();
                    let (resource, why) = (&params["resource"]["resource"], &params["reason"]);
                    let told = format!("{} {}", resource.as_str().unwrap(), why.as_str().unwrap());
                    self.notified.push(told);
                }
                _ => {}
            }
        }
        outputs
    }

    /// What the agent of the last session reports.
    fn hear(&mut self, second: u64, event: Event) {
        let chat = self.chat.unwrap();
        self.feed(second, Input::Agent(chat, event));
    }

    /// What a request is answered with: a code, or 0 when it is no error, and the message.
    fn ask(&mut self, second: u64, method: &str, params: Value) -> (i32, String) {
        let request = said(CLIENT, json!({ "id": 1, "method": method, "params": params }));
        let outputs = self.feed(second, request);
        let answer = outputs.into_iter().find_map(|output| match output {
            Output::Frame(_, Frame::Result { .. }) => Some((0, String::new())),
            Output::Frame(_, Frame::Error { error, .. }) => Some((error.code, error.message)),
            _ => None,
        });
        answer.unwrap()
    }

    fn create(&mut self, second: u64, name: &str) -> (i32, String) {
        self.ask(second, "createSession", json!({ "channel": format!("ahp-session:/{name}") }))
    }
}

#[test]
fn nothing_shows_a_token() {
    assert_eq!(format!("{:?}", Token::new(SECRET.to_owned())), "Token(..)");
    let folder = TempDir::new().unwrap();
    let mut command = sidecar_on(folder.path());
    command.args(["--log", "trace", "--script-resource", RESOURCE]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let chat = "ahp-chat://default/YWhwLXNlc3Npb246L3M";
    let say = |text: &str, turn: &str| {
        let message = json!({ "text": text, "origin": { "kind": "user" } });
        let action = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message });
        json!({ "method": "dispatchAction", "params": { "channel": chat, "clientSeq": 1, "action": action } })
    };
    let push = |id: u64, token: Value, resource: &str| {
        let params = json!({ "channel": "ahp-root://", "resource": resource, "token": token });
        json!({ "id": id, "method": "authenticate", "params": params })
    };
    let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
    let lines = [
        json!({ "id": 1, "method": "initialize", "params": hello }),
        push(2, SECRET.into(), RESOURCE),
        push(3, SECRET.into(), "https://elsewhere"),
        push(4, json!({ SECRET: SECRET }), RESOURCE),
        json!({ "method": "authenticate", "params": { "resource": RESOURCE, "token": SECRET } }),
        json!({ "id": 5, "method": "createSession", "params": { "channel": "ahp-session:/s" } }),
        json!({ "id": 6, "method": "subscribe", "params": { "channel": chat } }),
        say("/token\n/token-refused", "t1"),
        push(7, SECRET.into(), RESOURCE),
    ];
    let mut stdin = child.stdin.take().unwrap();
    for mut line in lines {
        line["jsonrpc"] = "2.0".into();
        writeln!(stdin, "{line}").unwrap();
    }
    // Cut off, and so no JSON.
    writeln!(stdin, r#"{{"jsonrpc":"2.0","id":8,"method":"authenticate","params":{{"token":"{SECRET}""#)
        .unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let (said, logged) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let answer = format!("a token of {} bytes", SECRET.len());
    assert!(said.contains(&answer) && said.contains("auth/required"), "{said}");
    assert!(!logged.is_empty());
    for (what, text) in [("stdout", said), ("stderr", logged)] {
        assert!(!text.contains(SECRET), "{what}: {text}");
    }
    for file in files_in(folder.path()) {
        let content = fs::read(&file).unwrap();
        let shows = content.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!shows, "{} holds the token", file.display());
    }
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty());
    files.into_iter().filter(|file| file.is_file()).collect()
}
