//! Messages that a reconnecting client missed while the host was restarted.
//!
//! Owns: sessions that came, went and changed before the host ended, and what is told of them
//! behind a replay.
//! Never: looks at the list: who gets a replay does not ask for it again.

use std::collections::BTreeMap;

use ahp_sidecar::wire::annotations::annotations_uri;
use serde_json::{json, Value};
use tempfile::tempdir;

use crate::keeping::{chat_of, Client, ROOT};
use crate::support::Process;

const GONE: &str = "ahp-session:/gone";
const CHANGED: &str = "ahp-session:/changed";
const NEW: &str = "ahp-session:/new";
const SAME: &str = "ahp-session:/same";

fn has_a_turn(client: &mut Client, session: &str) {
    let chat = chat_of(session);
    client.state(&chat);
    client.start_turn(&chat, &format!("turn-of-{session}"), "/say words");
    client.until("chat/turnComplete");
}

/// Returns the notifications of the root channel that follow the answer to `reconnect`, up to the
/// answer to a later request.
fn notifications_after(client: &mut Client, cursor: u64) -> Vec<Value> {
    let params =
        json!({ "channel": ROOT, "clientId": "me", "lastSeenServerSeq": cursor, "subscriptions": [ROOT] });
    let answer = client.ask("reconnect", params);
    assert_eq!(answer["result"]["type"], "replay", "{answer}");
    client.heard.clear();
    client.about("ping", ROOT);
    std::mem::take(&mut client.heard)
}

#[test]
fn reconnecting_client_receives_session_changes_from_before_the_restart() {
    let folder = tempdir().unwrap();
    let mut client = Client::start(folder.path());
    for session in [GONE, CHANGED, SAME] {
        client.create(session);
        has_a_turn(&mut client, session);
    }
    let cursor = client.ask(
        "reconnect",
        json!({ "channel": ROOT, "clientId": "me", "lastSeenServerSeq": 0,
        "subscriptions": [ROOT] }),
    );
    let snapshots = cursor["result"]["snapshots"].as_array();
    let cursor = match snapshots {
        Some(snapshots) => snapshots[0]["fromSeq"].as_u64().unwrap(),
        None => {
            let actions = cursor["result"]["actions"].as_array().unwrap();
            actions.iter().filter_map(|action| action["serverSeq"].as_u64()).max().unwrap()
        }
    };
    // An action of another channel of the session.
    client.state(&annotations_uri(GONE));
    let annotation = json!({ "id": "a", "origin": { "session": GONE }, "resource": "file:///x", "resolved": false,
        "entries": [{ "id": "e", "text": "x" }] });
    client.dispatch(&annotations_uri(GONE), json!({ "type": "annotations/set", "annotation": annotation }));
    client.until("annotations/set");
    let disposed = client.about("disposeSession", GONE);
    assert_eq!(disposed["error"], Value::Null, "{disposed}");
    client.dispatch(CHANGED, json!({ "type": "session/titleChanged", "title": "another title" }));
    client.create(NEW);
    has_a_turn(&mut client, NEW);
    client.process.end();
    assert!(client.process.wait().success());

    let mut client = Client::before_the_handshake(Process::start_on(folder.path(), &[]));
    let told = notifications_after(&mut client, cursor);
    let of = |method: &str| -> Vec<&Value> {
        told.iter().filter(|it| it["method"] == method).map(|it| &it["params"]).collect()
    };
    let removed = of("root/sessionRemoved");
    assert_eq!(removed.iter().map(|it| &it["session"]).collect::<Vec<_>>(), [GONE], "{told:#?}");
    let added = of("root/sessionAdded");
    assert_eq!(added.iter().map(|it| &it["summary"]["resource"]).collect::<Vec<_>>(), [NEW], "{told:#?}");
    let changed = of("root/sessionSummaryChanged");
    let changed: Vec<_> = changed.iter().filter(|it| it["session"] != SAME).collect();
    assert_eq!(changed.iter().map(|it| &it["session"]).collect::<Vec<_>>(), [CHANGED], "{told:#?}");
    assert_eq!(changed[0]["changes"]["title"], "another title");
}

#[test]
fn title_that_a_user_has_confirmed_is_kept_from_the_agent_after_a_restart() {
    let folder = tempdir().unwrap();
    let chat = chat_of(SAME);
    let mut client = Client::start(folder.path());
    client.create(SAME);
    client.state(&chat);
    client.turn(&chat, "t1", "/title Fix");
    client.dispatch(SAME, json!({ "type": "session/titleChanged", "title": "Fix" }));
    client.about("ping", ROOT);
    client.end();
    let mut client = Client::start(folder.path());
    client.state(&chat);
    client.turn(&chat, "t2", "/title Another");
    assert_eq!(client.state(SAME)["title"], "Fix");
}

#[test]
fn terminals_after_a_restart_have_uris_of_their_own() {
    let folder = tempdir().unwrap();
    let chat = chat_of(SAME);
    let mut client = Client::start(folder.path());
    client.create(SAME);
    let mut shown = BTreeMap::new();
    for text in ["one", "two"] {
        client.state(&chat);
        client.turn(&chat, text, &vec![format!("/terminal {text}"); 4].join("\n"));
        let turns = client.state(&chat)["turns"].take();
        let parts = turns.as_array().unwrap().last().unwrap()["responseParts"].to_string();
        let uris = parts.split("\"ahp-terminal:").skip(1).map(|rest| rest.split('"').next().unwrap());
        shown.extend(uris.map(|uri| (format!("ahp-terminal:{uri}"), text)));
        client.end();
        client = Client::start(folder.path());
    }
    assert_eq!(shown.len(), 8, "{shown:#?}");
    for (uri, text) in shown {
        let state = client.state(&uri);
        assert!(state["content"].to_string().contains(text), "{uri}: {state}");
    }
}

#[test]
fn client_returning_after_a_purge_gets_snapshots() {
    let folder = tempdir().unwrap();
    let mut client = Client::of(Process::start_on(folder.path(), &["--trash-days", "0"]));
    client.create(SAME);
    client.create(GONE);
    let cursor = client.about("subscribe", ROOT)["result"]["snapshot"]["fromSeq"].take();
    has_a_turn(&mut client, GONE);
    let disposed = client.about("disposeSession", GONE);
    assert_eq!(disposed["error"], Value::Null, "{disposed}");
    client.end();

    let mut client = Client::before_the_handshake(Process::start_on(folder.path(), &[]));
    let params =
        json!({ "channel": ROOT, "clientId": "me", "lastSeenServerSeq": cursor, "subscriptions": [ROOT] });
    let answer = client.ask("reconnect", params);
    assert_eq!(answer["result"]["type"], "snapshot", "{answer}");
    assert_eq!(client.sessions(), [SAME]);
}
