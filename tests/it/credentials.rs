//! Tokens, where a transcript cannot go: how long they are good, and that nothing holds one.
//!
//! Owns: a host in memory whose clock a test moves, and a whole process that logs all that it can.
//! Never: looks for anything but the one token that it has pushed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use ahp_sidecar::backend::script::GuardedScript;
use ahp_sidecar::backend::Backend;
use ahp_sidecar::host::effects::{ConnectionId, Frame, Ids, Input, Now, Output, Token};
use ahp_sidecar::host::{log::Window, Config, Host, Start};
use ahp_sidecar::wire::rpc::Incoming;
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::support::sidecar_on;

const RESOURCE: &str = "https://api.example";
const SECRET: &str = "c0ffee-is-no-secret";
const CLIENT: ConnectionId = ConnectionId(1);

struct CountedIds(u64);

impl Ids for CountedIds {
    fn fresh(&mut self) -> String {
        self.0 += 1;
        format!("fresh-{}", self.0)
    }
}

/// What a host answers to these requests, each made at its second: a code, or 0 when it is none.
fn answers(requests: &[(u64, &str, Value)]) -> Vec<i32> {
    let mut host = Host::new(Config {
        server_info: serde_json::from_value(json!({ "name": "host" })).unwrap(),
        default_directory: None,
        agents: vec![GuardedScript { resource: RESOURCE.to_owned() }.describe()],
        replay_window: Window::default(),
        start: Start::default(),
        idle_sessions_max: usize::MAX,
    });
    let mut ids = CountedIds(0);
    let mut outputs = Vec::new();
    let mut feed = |second: u64, input| {
        let now = Now { unix_ms: 0, monotonic_ms: second * 1000 };
        host.handle(now, &mut ids, input, &mut outputs);
    };
    feed(0, Input::Opened(CLIENT));
    let hello = json!({ "clientId": "me", "protocolVersions": ["1.0.0"] });
    let hello = (0, "initialize", hello);
    for (second, method, params) in std::iter::once(&hello).chain(requests) {
        let line = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let message = Incoming::parse(&line.to_string().into());
        assert!(!format!("{message:?}").contains(SECRET));
        feed(*second, Input::Said(CLIENT, message));
    }
    assert!(!format!("{outputs:?} {host:?}").contains(SECRET));
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
