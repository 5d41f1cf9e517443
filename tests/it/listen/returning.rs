//! Clients that lose their connection, as an editor's window does that is loaded anew, and come
//! back or do not.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::{json, Value};

use super::{Client, Host, ResumedStream};
use crate::support::HUNG;

const SESSION: &str = "ahp-session:/s";
const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246L3M";

fn turn(text: &str) -> Value {
    let message = json!({ "text": text, "origin": { "kind": "user" } });
    let action = json!({ "type": "chat/turnStarted", "turnId": "t", "message": message });
    json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params":
        { "channel": CHAT, "clientSeq": 1, "action": action } })
}

fn until(client: &mut Client, action: &str) -> Value {
    loop {
        let told = client.hears();
        if told["params"]["action"]["type"] == action {
            return told["params"]["action"].clone();
        }
    }
}

/// A client whose turn waits for a permission.
fn asked(host: &Host) -> Client {
    let mut client = host.connect();
    client.initializes("first", "1.0.0");
    client.asks("createSession", json!({ "channel": SESSION }));
    client.asks("subscribe", json!({ "channel": CHAT }));
    client.says(turn("/ask shell\n/say it goes on"));
    until(&mut client, "chat/toolCallReady");
    client
}

/// Connects a new client and returns the state of the chat that it receives.
fn another(host: &Host) -> (Client, Value) {
    let mut client = host.connect();
    client.initializes("second", "1.0.0");
    let mut answer = client.asks("subscribe", json!({ "channel": CHAT }));
    (client, answer["result"]["snapshot"]["state"].take())
}

#[test]
fn pending_permission_survives_a_reload_of_the_only_websocket_client() {
    let host = Host::start(&["--log", "info"]);
    for closes in [true, false] {
        let mut client = asked(&host);
        if closes {
            client.socket.close(None).unwrap();
            while client.socket.read().is_ok() {}
        }
        drop(client);
        // Nobody is there now.
        while !host
            .log
            .recv_timeout(HUNG)
            .expect("it is noticed")
            .contains("a client has closed its side of the connection")
        {}
        let (mut client, state) = another(&host);
        let call = &state["activeTurn"]["responseParts"][0]["toolCall"];
        assert_eq!(call["status"], "pending-confirmation", "{state}");
        let action = json!({ "type": "chat/toolCallConfirmed", "turnId": "t",
            "toolCallId": call["toolCallId"], "approved": true, "confirmed": "user-action" });
        client.says(json!({ "method": "dispatchAction", "params":
            { "channel": CHAT, "clientSeq": 1, "action": action } }));
        until(&mut client, "chat/turnComplete");
        client.asks("disposeSession", json!({ "channel": SESSION }));
    }
}

#[test]
fn pending_permission_is_declined_after_the_reconnect_time_or_end_of_input() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let address = format!("unix:{}", socket.display());
    let declined = |host: &Host| loop {
        let (_, state) = another(host);
        if let Some(turn) = state["turns"].get(0) {
            assert_eq!(turn["responseParts"][0]["toolCall"]["status"], "cancelled", "{state}");
            return;
        }
    };
    let host = Host::start(&["--reconnect-within", "0"]);
    drop(asked(&host));
    declined(&host);
    // Whoever ends its input, and still reads, has left for good.
    let host = Host::listen(&["ws://127.0.0.1:0", &address], &[]);
    let mut pipe = UnixStream::connect(&socket).unwrap();
    for line in [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
            { "channel": "ahp-root://", "clientId": "pipe", "protocolVersions": ["1.0.0"] } }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "createSession", "params": { "channel": SESSION } }),
        turn("/ask shell\n/say it goes on"),
    ] {
        writeln!(pipe, "{line}").unwrap();
    }
    pipe.shutdown(std::net::Shutdown::Write).unwrap();
    std::io::copy(&mut pipe, &mut std::io::sink()).unwrap();
    declined(&host);
}

/// A client is gone while a long chat is written for it: the rest is not written, for nobody.
#[test]
fn large_state_is_not_written_to_its_end_for_a_disconnected_client() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let host = Host::listen(&[&format!("unix:{}", socket.display())], &["--log", "debug"]);
    let open = |version: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(HUNG)).unwrap();
        let hello = json!({ "channel": "ahp-root://", "clientId": version, "protocolVersions": [version] });
        say(&mut stream, 1, "initialize", &hello);
        stream
    };
    let mut first = open("1.0.0");
    say(&mut first, 2, "createSession", &json!({ "channel": SESSION }));
    say(&mut first, 3, "subscribe", &json!({ "channel": CHAT }));
    for turn in ["t1", "t2", "t3"] {
        let message = json!({ "text": "/stream 8 1000000", "origin": { "kind": "user" } });
        let action = json!({ "type": "chat/turnStarted", "turnId": turn, "message": message });
        say(&mut first, 4, "dispatchAction", &json!({ "channel": CHAT, "clientSeq": 1, "action": action }));
        let ends = |line: &String| line.contains("chat/turnComplete");
        assert!(BufReader::new(&first).lines().map_while(Result::ok).any(|line| ends(&line)));
    }
    for version in ["1.0.0", "0.8.0"] {
        let mut second = open(version);
        say(&mut second, 2, "subscribe", &json!({ "channel": CHAT }));
        let mut lines = BufReader::with_capacity(100, ResumedStream(second.try_clone().unwrap()));
        // The answer to `initialize`, and the beginning of the next one.
        lines.read_line(&mut String::new()).unwrap();
        lines.fill_buf().unwrap();
        drop((second, lines));
        let is_told = |line: &String| line.contains("a large state is not written to its end");
        assert!(
            std::iter::from_fn(|| host.log.recv_timeout(HUNG).ok()).any(|line| is_told(&line)),
            "{version}"
        );
    }
}

fn say(stream: &mut UnixStream, id: u64, method: &str, params: &Value) {
    let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    stream.write_all(format!("{message}\n").as_bytes()).unwrap();
}

#[test]
fn run_of_an_automation_goes_on_when_the_last_client_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "[automations]\n").unwrap();
    let mut command = crate::support::program();
    command.args(["serve", "--state-dir"]).arg(folder.path().join("state")).arg("--config").arg(&config);
    // Turns of a client that leaves are cancelled.
    command.args(["--on-eof", "exit", "--reconnect-within", "0"]);
    let host = Host::spawn(command, &["ws://127.0.0.1:0"]);
    let mut client = host.connect();
    client.initializes("one", "1.0.0");
    let message = json!({ "text": "/sleep 2500\n/say done", "origin": { "kind": "automation" } });
    let definition =
        json!({ "title": "T", "message": message, "session": {}, "enabled": true, "triggers": [] });
    let action = json!({ "type": "automation/createRequested", "resource": "ahp-automation:/a",
        "definition": definition });
    let params = json!({ "channel": "ahp-automations://", "clientSeq": 1, "action": action });
    client.says(json!({ "method": "dispatchAction", "params": params }));
    let params =
        json!({ "channel": "ahp-automations://", "automation": "ahp-automation:/a", "requestId": "r" });
    let run = client.asks("runAutomation", params)["result"]["resource"].as_str().unwrap().to_owned();
    let lifecycle = |client: &mut Client| {
        let mut answer = client.asks("subscribe", json!({ "channel": run }));
        answer["result"]["snapshot"]["state"]["lifecycle"].take()
    };
    while lifecycle(&mut client)["status"] == "pending" {
        client.is_served();
    }
    drop(client);
    let mut client = host.connect();
    client.initializes("two", "1.0.0");
    let first = lifecycle(&mut client);
    let ended = match first["status"] == "running" {
        true => until(&mut client, "automationRun/lifecycleChanged")["lifecycle"].clone(),
        false => first,
    };
    assert_eq!(ended["status"], "completed", "{ended}");
}
