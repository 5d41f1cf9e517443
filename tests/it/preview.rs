//! The next version of the protocol beside a released one, on one host.
//!
//! Owns: that clients of the released version see nothing of the next one, and cannot use it.
//! Never: repeats what one client alone is told; golden transcripts have that.
#![cfg(target_os = "linux")]

use std::path::Path;

use serde_json::{json, Value};

use crate::support::{program, window_on, Process};
use crate::windows::state;

const SESSION: &str = "ahp-session:/1";
const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246LzE";

/// Session whose agent opens slowly.
const SLOW: &str = "ahp-session:/2";
const SLOW_CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246LzI";

struct Client {
    process: Process,
    chat: &'static str,
    last: u64,
}

impl Client {
    /// Opens a window of a host whose preview is on, for a client that offers this version.
    fn open(folder: &Path, id: &str, version: &str) -> (Self, Value) {
        let mut command = window_on(folder);
        command.args(["--preview", "1.1"]);
        let mut client = Self { process: Process::spawn(command), chat: CHAT, last: 0 };
        let params = json!({ "channel": "ahp-root://", "clientId": id, "protocolVersions": [version] });
        let hello = client.ask("initialize", params);
        (client, hello)
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let id = self.last;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.process.say(&request.to_string());
        self.process.until(|message| message["id"] == id).pop().unwrap()
    }

    fn follow(&mut self) -> Value {
        let chat = self.chat;
        self.ask("subscribe", json!({ "channel": chat }))["result"]["snapshot"]["state"].take()
    }

    fn dispatch(&mut self, action: Value) {
        self.last += 1;
        let params = json!({ "channel": self.chat, "clientSeq": self.last, "action": action });
        let message = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
        self.process.say(&message.to_string());
    }

    /// Returns the actions up to the first one of this type.
    fn actions_until(&mut self, name: &str) -> Vec<Value> {
        let messages = self.process.until(|message| message["params"]["action"]["type"] == name);
        messages.into_iter().map(|mut message| message["params"].take()).collect()
    }

    fn leave(mut self) {
        self.process.end();
        self.process.rest();
        self.process.wait();
    }
}

fn message(text: &str) -> Value {
    json!({ "text": text, "origin": { "kind": "user" } })
}

fn listed(id: &str, text: &str) -> Value {
    json!({ "type": "chat/steeringMessageSet", "steeringMessage": { "id": id, "message": message(text) } })
}

fn turn(id: &str, text: &str) -> Value {
    json!({ "type": "chat/turnStarted", "turnId": id, "message": message(text) })
}

fn names(actions: &[Value]) -> Vec<&str> {
    actions.iter().filter_map(|envelope| envelope["action"]["type"].as_str()).collect()
}

#[test]
fn client_of_a_released_version_neither_sees_nor_uses_what_the_next_one_adds() {
    let (_outer, folder) = state();
    let (mut next, hello) = Client::open(&folder, "next", "1.1.0");
    assert_eq!(hello["result"]["environment"], json!({ "pathStyle": "posix" }));
    assert_eq!(hello["result"]["steeringMessages"], json!({}));
    let (mut released, hello) = Client::open(&folder, "released", "1.0.0");
    for member in ["environment", "steeringMessages"] {
        assert!(hello["result"].get(member).is_none(), "{hello}");
    }
    next.ask("createSession", json!({ "channel": SESSION, "provider": "script" }));
    next.follow();
    released.follow();

    next.dispatch(turn("t", "/ask one"));
    released.actions_until("chat/toolCallReady");
    next.actions_until("chat/toolCallReady");
    next.dispatch(listed("a", "First"));
    next.dispatch(listed("b", "Second"));
    let told = next.actions_until("chat/steeringMessageRemoved");
    assert!(names(&told).contains(&"chat/steeringMessageSet"), "{told:?}");
    next.actions_until("chat/steeringMessageRemoved");
    released.dispatch(listed("c", "Third"));
    let refused = released.process.until(|message| message["params"]["rejectionReason"].is_string());
    let last = &refused.last().unwrap()["params"];
    assert_eq!(last["action"], listed("c", "Third"), "{last}");
    for told in &refused {
        let name = told["params"]["action"]["type"].as_str().unwrap_or_default();
        let is_own = told["params"]["rejectionReason"].is_string();
        assert!(is_own || !name.starts_with("chat/steeringMessage"), "{told}");
    }
    let decision = json!({ "type": "chat/toolCallConfirmed", "turnId": "t", "toolCallId": "call-1",
        "approved": true });
    released.dispatch(decision);
    let told = released.actions_until("chat/turnComplete");
    assert!(!names(&told).iter().any(|name| name.starts_with("chat/steeringMessage")), "{told:?}");
    next.actions_until("chat/turnComplete");

    // A message that is listed while a session is opening is in the state, for one of both.
    let config = json!({ "openMs": 60_000 });
    let slow = json!({ "channel": SLOW, "provider": "script", "config": config });
    next.ask("createSession", slow);
    for client in [&mut next, &mut released] {
        client.chat = SLOW_CHAT;
        client.follow();
    }
    next.dispatch(turn("t", "/say one"));
    next.dispatch(listed("d", "Fourth"));
    next.actions_until("chat/steeringMessageSet");
    assert_eq!(next.follow()["steeringMessages"][0]["id"], "d");
    for verb in ["export", "show"] {
        let mut command = program();
        command.args(["sessions", verb, SLOW, "--state-dir"]).arg(&folder);
        let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(printed.contains("Fourth"), "{verb}: {printed}");
    }
    assert!(released.follow().get("steeringMessages").is_none());
    next.dispatch(json!({ "type": "chat/turnCancelled", "turnId": "t" }));
    next.actions_until("chat/turnCancelled");
    next.leave();
    released.leave();
}
