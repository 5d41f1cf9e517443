//! Processes that are spawned on the state folder of a host that listens: they join it.

use std::path::{Path, PathBuf};

use serde_json::{json, Value};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::Message;

use super::{Client, Host};
use crate::support::{program, window_on, Process};

const SESSION: &str = "ahp-session:/s";
const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246L3M";
const ANY_PORT: &str = "ws://127.0.0.1:0";

fn state() -> (TempDir, PathBuf) {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("state");
    (outer, folder)
}

fn asks(process: &mut Process, id: u64, method: &str, params: Value) -> Value {
    process.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
    process.until(|message| message["id"] == id).pop().unwrap()
}

/// A process that an editor has spawned, whose client has shaken hands.
fn window(folder: &Path, name: &str) -> Process {
    let mut process = Process::spawn(window_on(folder));
    let hello = json!({ "clientId": name, "protocolVersions": ["1.0.0"] });
    let answer = asks(&mut process, 1, "initialize", hello);
    assert!(answer["result"].is_object(), "{answer}");
    process
}

fn begins(process: &mut Process, turn: &str, text: &str) {
    let message = json!({ "text": text, "origin": { "kind": "user" } });
    let action = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message });
    let params = json!({ "channel": CHAT, "clientSeq": 1, "action": action });
    process.say(&json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params }).to_string());
}

fn is_completion(message: &Value) -> bool {
    message["params"]["action"]["type"] == "chat/turnComplete"
}

/// A client over a WebSocket hears the end of a turn.
fn hears_completion(client: &mut Client) {
    while !client.told.iter().any(is_completion) {
        let told = client.hears();
        client.told.push(told);
    }
    client.told.clear();
}

#[test]
fn window_on_the_folder_of_a_serving_host_joins_it_and_leaves_it_running() {
    let (_outer, folder) = state();
    let host = Host::on(&folder, &[ANY_PORT]);
    let mut connected = host.connect();
    connected.initializes("connected", "0.9.0");
    for name in ["first", "second"] {
        let mut window = window(&folder, name);
        if name == "first" {
            let created = asks(&mut window, 2, "createSession", json!({ "channel": SESSION }));
            assert_eq!(created["error"], Value::Null, "{created}");
            let answer = connected.asks("subscribe", json!({ "channel": CHAT }));
            assert!(answer["result"]["snapshot"].is_object(), "{answer}");
        }
        asks(&mut window, 3, "subscribe", json!({ "channel": CHAT }));
        begins(&mut window, name, "/say all hear this");
        window.until(is_completion);
        hears_completion(&mut connected);
        window.end();
        window.rest();
        assert_eq!(window.wait().code(), Some(0), "the last one does not wait for the host");
    }
    connected.is_served();
    // What a window has begun is ended with it as it has asked, whatever others are there.
    let mut command = window_on(&folder);
    command.args(["--on-eof", "exit"]);
    let mut leaves = Process::spawn(command);
    asks(&mut leaves, 1, "initialize", json!({ "clientId": "leaves", "protocolVersions": ["1.0.0"] }));
    begins(&mut leaves, "hangs", "/hang");
    leaves.end();
    leaves.rest();
    assert_eq!(leaves.wait().code(), Some(0));
    while !connected.told.iter().any(|told| told["params"]["action"]["type"] == "chat/turnCancelled") {
        let told = connected.hears();
        connected.told.push(told);
    }
    // The end of the host is that of each window.
    let mut stays = window(&folder, "stays");
    let log = host.leave();
    stays.rest();
    assert_eq!(stays.wait().code(), Some(5), "{log:?}");
    assert!(!folder.join("host.sock").exists(), "its socket is there");
}

#[test]
fn window_with_other_agents_than_a_serving_host_is_refused() {
    let (_outer, folder) = state();
    let _host = Host::on(&folder, &[ANY_PORT]);
    let mut command = window_on(&folder);
    command.args(["--agent", "other=false"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the agent `other`"), "{said}");
}

#[test]
fn window_does_not_join_an_exclusive_serving_host() {
    let (_outer, folder) = state();
    let mut command = program();
    command.args(["serve", "--exclusive", "--state-dir"]).arg(&folder);
    let host = Host::spawn(command, &[ANY_PORT]);
    let output = window_on(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    host.leave();
}

#[test]
fn line_ends_inside_a_message_start_no_line_of_another_client() {
    let (_outer, folder) = state();
    let host = Host::on(&folder, &[ANY_PORT]);
    let mut window = window(&folder, "window");
    let mut files = host.connect();
    files.initializes("files", "1.0.0");
    // A request that the host relays: its answer is in the line of another client.
    let list = json!({ "channel": "ahp-root://", "uri": "virtual://files/x" });
    window.say(&json!({ "jsonrpc": "2.0", "id": 2, "method": "resourceList", "params": list }).to_string());
    let asked = files.hears();
    assert_eq!(asked["method"], "resourceList", "{asked}");
    let forged = r#"{"jsonrpc":"2.0","method":"root/forged","params":{}}"#;
    let answer = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{\"entries\":[],\"x\":\n{forged}\r\n}}}}",
        asked["id"]
    );
    files.socket.send(Message::text(answer)).unwrap();
    let line = window.next_line().unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!((&answer["id"], &answer["result"]["entries"]), (&json!(2), &json!([])), "{answer}");
    // A refusal and an acknowledgement repeat the action.
    let act = |of: &str, action: &str| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"dispatchAction\",\"params\":{{\"channel\":\"{of}\",\
             \"clientSeq\":1,\"action\":{{{action}}}}}}}"
        )
    };
    files.asks("createSession", json!({ "channel": SESSION }));
    files.asks("subscribe", json!({ "channel": SESSION }));
    for (channel, members, is_refused) in [
        (SESSION, ["\"type\": \"session/titleChanged\",", "\"title\": 5"], true),
        ("ahp-root://", ["\"type\": \"root/configChanged\",", "\"config\": {}"], false),
    ] {
        let spaced = |space: &str| act(channel, &members.map(|member| format!("{space}{member}")).concat());
        files.socket.send(Message::text(spaced("\r\n  "))).unwrap();
        let answer = files.hears();
        assert_eq!(answer["params"]["rejectionReason"].is_string(), is_refused, "{answer}");
        assert_eq!(answer["params"]["origin"]["clientId"], "files", "{answer}");
        window.say(&spaced("\r "));
        let line = window.next_line().unwrap();
        assert!(line.contains(r#""clientId":"window""#) && !line.contains('\r'), "{line:?}");
    }
}
