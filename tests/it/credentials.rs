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
use ahp_sidecar::host::effects::{ConnectionId, Event, Frame, Output, Token};
use ahp_sidecar::wire::errors::RpcError;
use ahp_sidecar::wire::rpc::Incoming;
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::support::core::Core;
use crate::support::sidecar_on;
use crate::support::world::{World, ROOT};

const RESOURCE: &str = "https://api.example";
const SECRET: &str = "c0ffee-is-no-secret";
const CLIENT: ConnectionId = ConnectionId(1);

/// The code of an answer, or 0 when it is no error.
fn code(answer: &Result<Value, RpcError>) -> i32 {
    answer.as_ref().err().map_or(0, |error| error.code)
}

/// Returns the host's answers to these requests, each made at its second: 0 or the error code.
fn answers(requests: &[(u64, &str, Value)]) -> Vec<i32> {
    let mut world = World::new(Core::with(GuardedScript { resource: RESOURCE.to_owned() }.describe()));
    world.arrive(CLIENT, "me");
    let answered = requests.iter().map(|(second, method, params)| {
        let line = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let message = Incoming::parse(&line.to_string().into());
        assert!(!format!("{message:?}").contains(SECRET));
        world.at(*second).ask(CLIENT, method, params.clone())
    });
    let answered: Vec<_> = answered.collect();
    assert!(!format!("{answered:?} {world:?}").contains(SECRET));
    answered.iter().map(code).collect()
}

#[test]
fn token_is_valid_until_its_expiry() {
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

/// A reported login requirement may be outdated: users also log in outside of the host.
#[test]
fn login_requirement_reported_by_an_agent_expires() {
    let mut agent = Script.describe();
    let ways = json!([
        { "resource": "login:/a", "required": false }, { "resource": "login:/b", "required": false }
    ]);
    agent.info.protected_resources = Some(serde_json::from_value(ways).unwrap());
    let mut world = World::new(Core::with(agent));
    world.arrive(CLIENT, "me");
    assert_eq!(create(&mut world, 0, "a"), Ok(Value::Null));
    needs_login(&mut world, 1);
    let needed = create(&mut world, 10, "b").unwrap_err();
    let message = "Script needs a token for `login:/a` or `login:/b`";
    assert_eq!((needed.code, needed.message.as_str()), (-32007, message));
    assert_eq!(create(&mut world, 11, "b"), Ok(Value::Null));
    needs_login(&mut world, 12);
    assert_eq!(code(&create(&mut world, 12, "c")), -32007);
    // One of them is enough.
    let pushed = world.ask(CLIENT, "authenticate", json!({ "resource": "login:/b", "token": SECRET }));
    assert_eq!(code(&pushed), 0);
    assert_eq!(code(&create(&mut world, 12, "c")), 0);
    world.ask(CLIENT, "ping", json!({ "channel": ROOT })).unwrap();
    assert_eq!(notified(&world), ["login:/a required", "login:/b required"].repeat(2));
    // It had that of the new session, and another one.
    needs_login(&mut world, 13);
    assert_eq!(notified(&world)[4..], ["login:/a required", "login:/b expired"]);
    assert_eq!(code(&create(&mut world, 13, "d")), -32007);
}

/// Creates a session at this second and returns the answer.
fn create(world: &mut World, second: u64, name: &str) -> Result<Value, RpcError> {
    let params = json!({ "channel": format!("ahp-session:/{name}") });
    world.at(second).ask(CLIENT, "createSession", params)
}

/// The agent of the last session reports it.
fn needs_login(world: &mut World, second: u64) {
    let chat = world.opened();
    world.at(second).agent(chat, Event::LoginRequired);
}

/// Returns the login notifications to the client, each with its reason.
fn notified(world: &World) -> Vec<String> {
    let notified = world.outputs.iter().filter_map(|output| match output {
        Output::Frame(_, Frame::Notification { method: "auth/required", params }) => {
            let params: Value = serde_json::from_slice(params).unwrap();
            let (resource, why) = (&params["resource"]["resource"], &params["reason"]);
            Some(format!("{} {}", resource.as_str().unwrap(), why.as_str().unwrap()))
        }
        _ => None,
    });
    notified.collect()
}

#[test]
fn tokens_are_in_no_log_debug_output_or_file() {
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
