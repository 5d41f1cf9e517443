//! Messages for a client that comes back while the host has gone on.
//!
//! Owns: that sessions which memory has let go meanwhile are no exception.
//! Never: starts a host again.

use serde_json::json;

use super::{actions, folder, turn, World, SESSION};
use crate::io::persistence::CommitEvent;
use crate::io::store_failure::StoreFailure;
use crate::wire::uris::default_chat_of;

#[tokio::test]
async fn changes_of_sessions_outside_memory_are_sent_on_reconnect() {
    let folder = folder();
    let mut world = World::on(folder.path()).await;
    let mut maker = world.client("maker", "1.0.0").await;
    let [named, new] = [SESSION, "ahp-session:/new"];
    for session in [named, "ahp-session:/same"] {
        world.ask(&mut maker, "createSession", json!({ "channel": session })).await;
    }
    let mut away = world.open(false);
    let params = json!({ "clientId": "away", "protocolVersions": ["1.0.0"] });
    let welcome = world.ask(&mut away, "initialize", params).await;
    let cursor = welcome["result"]["serverSeq"].as_u64().expect("a number");
    away.lines = None;
    maker.dispatches(named, json!({ "type": "session/titleChanged", "title": "another" }));
    world.ask(&mut maker, "createSession", json!({ "channel": new })).await;
    let chat = default_chat_of(new);
    world.ask(&mut maker, "subscribe", json!({ "channel": chat })).await;
    maker.dispatches(&chat, turn("t", "/say words"));
    world.until(|_| actions(&maker.looks()).contains(&"chat/turnComplete")).await;
    world.ask(&mut maker, "unsubscribe", json!({ "channel": chat })).await;
    world.make_many(&mut maker, "other").await;
    world.settle().await;
    assert!(!world.remembers(named) && !world.remembers(new) && !world.remembers("ahp-session:/same"));

    let mut back = world.open(false);
    let params = json!({ "clientId": "away", "lastSeenServerSeq": cursor, "subscriptions": ["ahp-root://"] });
    back.asks("reconnect", params);
    world.settle().await;
    let messages = back.looks();
    assert_eq!(messages[0]["result"]["type"], "replay", "{messages:?}");
    let about = |method: &str, uri: &str| {
        let of = |message: &&serde_json::Value| {
            message["params"]["session"] == uri || message["params"]["summary"]["resource"] == uri
        };
        messages
            .iter()
            .filter(|message| message["method"] == method)
            .find(of)
            .map(|message| message["params"].clone())
    };
    let changed = about("root/sessionSummaryChanged", named).expect("it has changed");
    assert_eq!(changed["changes"]["title"], "another");
    assert!(about("root/sessionAdded", new).is_some(), "it was added");
    assert!(
        about("root/sessionAdded", named).is_none() && about("root/sessionSummaryChanged", new).is_none()
    );
    assert!(!messages.iter().any(|message| message.to_string().contains("ahp-session:/same")));
}

#[tokio::test]
async fn client_whose_reconnect_failed_with_the_store_may_initialize() {
    let folder = folder();
    let mut world = World::on(folder.path()).await;
    let mut maker = world.client("maker", "1.0.0").await;
    world.ask(&mut maker, "createSession", json!({ "channel": SESSION })).await;
    let mut back = world.open(false);
    world.settle().await;
    let mut commits = Vec::new();
    maker.dispatches(SESSION, json!({ "type": "session/titleChanged", "title": "another" }));
    world.go_on_without_store(&mut commits).await;
    let params = json!({ "clientId": "maker", "lastSeenServerSeq": 0, "subscriptions": ["ahp-root://"] });
    let asked = back.asks("reconnect", params);
    world.go_on_without_store(&mut commits).await;
    let reason = "the disk is full".to_owned();
    let failure = StoreFailure { reason, is_long: true, is_for_good: false };
    world.sidecar.receive_commit_event(CommitEvent::Failing(failure));
    world.go_on_without_store(&mut commits).await;
    let refused = back.answer_to(asked);
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
    let asked = back.asks("initialize", json!({ "clientId": "maker", "protocolVersions": ["1.0.0"] }));
    world.go_on_without_store(&mut commits).await;
    let answer = back.answer_to(asked);
    assert!(answer["result"].is_object(), "{answer}");
}
