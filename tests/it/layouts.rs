//! Stores that earlier programs have written, as text.
//!
//! Owns: what a client is told by a program that finds such a store.
//! Never: writes one anew: what an earlier program has left is only ever added to.
//!
//! The layout 3 was left by a process that was killed: in `kept` a turn with a tool call was over,
//! `removed` was disposed of, and in `running` one turn was over and the next one had said 48
//! bytes. The layout 4 was left in the same way; in `kept` a second turn was over, and there was a
//! fork of its chat that ends at the first one.

use std::collections::BTreeSet;
use std::path::Path;

use rusqlite::Connection;
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::keeping::{chat_of, Client, DATABASE, ROOT};
use crate::support::Process;

const KEPT: &str = "ahp-session:/kept";
const RUNNING: &str = "ahp-session:/running";

/// The last number that its client may have seen.
const LAST: u64 = 46;

fn put(folder: &Path, layout: &str) {
    Connection::open(folder.join(DATABASE)).unwrap().execute_batch(layout).unwrap();
}

fn version(folder: &Path) -> i64 {
    let database = Connection::open(folder.join(DATABASE)).unwrap();
    database.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
}

/// The text of a turn's Markdown.
fn text(turn: &Value) -> String {
    let parts = turn["responseParts"].as_array().unwrap().iter();
    parts.filter(|part| part["kind"] == "markdown").filter_map(|part| part["content"].as_str()).collect()
}

/// Replays after each sequence number contain the actions of their channels, and the states are
/// unchanged.
#[test]
fn store_of_layout_3_is_migrated_with_its_states_and_replays() {
    let folder = TempDir::new().unwrap();
    put(folder.path(), include_str!("layouts/3.sql"));
    assert_eq!(version(folder.path()), 3);
    let mut client = Client::before_the_handshake(Process::start_on(folder.path(), &[]));
    let (kept_chat, running_chat) = (chat_of(KEPT), chat_of(RUNNING));
    let channels = [KEPT, &kept_chat, RUNNING, &running_chat];
    for cursor in [6, 12, 30, 40] {
        let params = json!({ "clientId": "me", "lastSeenServerSeq": cursor, "subscriptions": channels });
        let answer = client.ask("reconnect", params);
        let actions = answer["result"]["actions"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let before = actions.iter().filter(|it| it["serverSeq"].as_u64().unwrap() <= LAST);
        let mut seqs = BTreeSet::new();
        for envelope in before {
            let (channel, name) = (&envelope["channel"], envelope["action"]["type"].as_str().unwrap());
            let of_kind = match channel.as_str().unwrap() {
                KEPT | RUNNING => "session",
                _ => "chat",
            };
            assert!(name.starts_with(of_kind), "{envelope}");
            assert!(channels.contains(&channel.as_str().unwrap()), "{envelope}");
            seqs.insert(envelope["serverSeq"].as_u64().unwrap());
        }
        // All but what was told of the session that is gone, and of the root.
        let of_removed = [4, 17, 18, 19, 20, 21, 22, 23, 24];
        let of_root = [25];
        let expected: BTreeSet<u64> = (cursor + 1..=LAST).collect();
        let gone: BTreeSet<u64> = expected.difference(&seqs).copied().collect();
        assert!(
            gone.iter().all(|seq| of_removed.contains(seq) || of_root.contains(seq)),
            "after {cursor}: {gone:?}"
        );
    }
    // Who follows the root does not know that it has a configuration, and no action says so.
    let params = json!({ "clientId": "me", "lastSeenServerSeq": 40, "subscriptions": [ROOT, KEPT] });
    let answer = client.ask("reconnect", params);
    let values = &answer["result"]["snapshots"][0]["state"]["config"]["values"];
    assert_eq!(*values, json!({}), "{answer}");
    let kept = client.state(&kept_chat);
    assert_eq!(kept["turns"].as_array().unwrap().iter().map(text).collect::<Vec<_>>(), ["one"]);
    let running = client.state(&running_chat);
    let told: Vec<String> = running["turns"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(told[0], "three");
    assert_eq!(told[1].len(), 48, "{running}");
    assert_eq!(running["turns"][1]["state"], "error");
    assert_eq!(client.sessions(), [KEPT, RUNNING]);
    client.turn(&kept_chat, "turn-2", "/say four");
    client.end();
    assert!(version(folder.path()) > 3);

    let mut client = Client::start(folder.path());
    let turns = client.state(&kept_chat)["turns"].as_array().unwrap().iter().map(text).collect::<Vec<_>>();
    assert_eq!(turns, ["one", "four"]);
    client.end();
}

#[test]
fn store_of_layout_4_is_migrated_and_forks_share_texts() {
    let folder = TempDir::new().unwrap();
    put(folder.path(), include_str!("layouts/4.sql"));
    assert_eq!(version(folder.path()), 4);
    let mut client = Client::start(folder.path());
    let texts = |client: &mut Client, chat: &str| -> Vec<String> {
        client.state(chat)["turns"].as_array().unwrap().iter().map(text).collect()
    };
    let (kept_chat, fork, other) = (chat_of(KEPT), "ahp-chat:/fork", "ahp-chat:/other");
    assert_eq!(texts(&mut client, &kept_chat), ["one", "another"]);
    assert_eq!(texts(&mut client, fork), ["one"]);
    let running = texts(&mut client, &chat_of(RUNNING));
    assert_eq!((&*running[0], running[1].len()), ("three", 48));
    let source = json!({ "kind": "fork", "chat": kept_chat, "turnId": "turn-2" });
    let answer = client.ask("createChat", json!({ "channel": KEPT, "chat": other, "source": source }));
    assert!(answer["error"].is_null(), "{answer}");
    assert_eq!(texts(&mut client, other), ["one", "another"]);
    client.turn(other, "turn-3", "/say five");
    client.end();
    let count = |table: &str| -> i64 {
        let database = Connection::open(folder.path().join(DATABASE)).unwrap();
        database.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    // The turns that are shared: two of `other`, whose texts are those of the chat that it is a
    // fork of.
    assert_eq!((count("turns") - count("texts"), count("shared_texts")), (2, 2));

    let mut client = Client::start(folder.path());
    assert_eq!(texts(&mut client, other), ["one", "another", "five"]);
    client.dispatch(&kept_chat, json!({ "type": "chat/truncated" }));
    assert_eq!(texts(&mut client, &kept_chat), [""; 0]);
    assert_eq!(texts(&mut client, other), ["one", "another", "five"]);
    client.end();
    assert_eq!((count("turns") - count("texts"), count("shared_texts")), (0, 0));
}
