//! A process with other agents than the one before it.
//!
//! Owns: two processes on one state folder, started differently.
//! Never: looks at sessions.

use serde_json::{json, Value};
use tempfile::TempDir;

use crate::support::Process;

const GUARDED: [&str; 2] = ["--script-resource", "https://api.example"];

/// Reconnects with this cursor; returns the replayed actions and the root state afterwards.
fn reconnect(host: &mut Process, cursor: u64) -> (Value, Value) {
    let params = json!({ "clientId": "me", "lastSeenServerSeq": cursor, "subscriptions": ["ahp-root://"] });
    host.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": "reconnect", "params": params }).to_string());
    let replayed = host.next()["result"]["actions"].clone();
    let params = json!({ "channel": "ahp-root://" });
    host.say(&json!({ "jsonrpc": "2.0", "id": 2, "method": "subscribe", "params": params }).to_string());
    (replayed, host.next()["result"]["snapshot"].clone())
}

#[test]
fn reconnecting_client_receives_agents_changed_after_an_upgrade() {
    let folder = TempDir::new().unwrap();
    let mut host = Process::start_on(folder.path(), &[]);
    let hello = json!({
        "clientId": "me", "protocolVersions": ["1.0.0"], "initialSubscriptions": ["ahp-root://"],
    });
    host.say(&json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello }).to_string());
    let mut root = host.next()["result"]["snapshots"][0].clone();
    host.end();
    assert_eq!(host.rest(), Vec::<Value>::new());

    for (arguments, changed) in
        [(&[][..], false), (&GUARDED[..], true), (&GUARDED[..], false), (&[][..], true)]
    {
        let mut host = Process::start_on(folder.path(), arguments);
        let cursor = root["fromSeq"].as_u64().unwrap();
        let (replayed, now) = reconnect(&mut host, cursor);
        let told: Vec<&Value> =
            replayed.as_array().unwrap().iter().map(|envelope| &envelope["action"]).collect();
        if changed {
            let [action] = told[..] else { panic!("{told:?}") };
            assert_eq!(action["type"], "root/agentsChanged");
            assert_eq!(action["agents"], now["state"]["agents"]);
        } else {
            assert_eq!(told, Vec::<&Value>::new());
            assert_eq!(root["state"], now["state"]);
        }
        root = now;
        host.end();
        host.rest();
    }
}
