//! The texts of turns that are over, which are read for a message that needs them, or when they are
//! sent, while other clients are served.
//!
//! Owns: which messages wait for them, and that no other client does.
//! Never: looks at how a text is kept.

use std::path::Path;

use serde_json::{json, Value};

use super::large::hold_back;
use super::{actions, folder, turn, Client, World, SESSION};
use crate::wire::uris::default_chat_of;

/// A world on a store in which three turns were said before, and a client that has the last one of
/// them.
async fn with_turns_of_before(folder: &Path) -> (World, Client, String) {
    let chat = default_chat_of(SESSION);
    let mut world = World::on(folder).await;
    let mut before = world.client("before", "1.0.0").await;
    world.ask(&mut before, "createSession", json!({ "channel": SESSION })).await;
    world.ask(&mut before, "subscribe", json!({ "channel": chat })).await;
    for id in ["t1", "t2", "t3"] {
        before.dispatches(&chat, turn(id, &format!("/say in {id}")));
        world.until(|_| actions(&before.looks()).contains(&"chat/turnComplete")).await;
    }
    world.settle().await;
    drop(world);
    let mut world = World::on(folder).await;
    let mut client = world.client("c", "1.0.0").await;
    let view = json!({ "channel": chat, "view": { "turns": 1 } });
    let answer = world.ask(&mut client, "subscribe", view).await;
    assert_eq!(super::messages(&answer), ["/say in t3"]);
    (world, client, chat)
}

/// Checks that another client is answered while the last message of this one waits for texts.
/// Returns the messages that this one receives once they are read.
async fn messages_behind(world: &mut World, client: &mut Client) -> Vec<Value> {
    world.settle().await;
    assert_eq!(client.looks(), [Value::Null; 0]);
    let mut other = world.client("other", "1.0.0").await;
    let answer = world.ask(&mut other, "ping", json!({ "channel": "ahp-root://" })).await;
    assert!(answer.get("result").is_some(), "{answer}");
    let job = world.next_job().expect("the texts are read before the message is heard");
    let read = world.read(job);
    world.deliver(read);
    let messages = messages_at_least(world, client, 2).await;
    assert!(world.next_job().is_none(), "they are read once");
    messages
}

#[tokio::test]
async fn page_of_turns_is_read_while_other_clients_are_served() {
    let folder = folder();
    let (mut world, mut client, chat) = with_turns_of_before(folder.path()).await;
    let pieces = hold_back(&mut world);
    let id = client.asks("fetchTurns", json!({ "channel": chat }));
    world.until(|sidecar| sidecar.links.iter().any(|link| link.writing.is_some())).await;
    let mut other = world.client("other", "1.0.0").await;
    world.ask(&mut other, "ping", json!({ "channel": "ahp-root://" })).await;
    assert_eq!(client.looks(), [Value::Null; 0]);
    assert!(world.next_job().is_none(), "the message waits for nothing");
    world.events.pieces = pieces;
    let messages = messages_at_least(&mut world, &mut client, 2).await;
    let loaded = messages[0]["params"]["action"]["turns"].as_array().expect("the page");
    assert_eq!(loaded.iter().map(|turn| turn["id"].as_str().unwrap()).collect::<Vec<_>>(), ["t2"]);
    assert_eq!((messages.len(), &messages[1]["id"]), (2, &json!(id)));
}

/// Returns the messages that a client receives, once there are at least `count`.
async fn messages_at_least(world: &mut World, client: &mut Client, count: usize) -> Vec<Value> {
    let mut messages = Vec::new();
    world
        .until(|_| {
            messages.extend(client.looks());
            messages.len() >= count
        })
        .await;
    messages
}

#[tokio::test]
async fn turns_for_a_truncation_are_read_while_other_clients_are_served() {
    let folder = folder();
    let (mut world, mut client, chat) = with_turns_of_before(folder.path()).await;
    client.dispatches(&chat, json!({ "type": "chat/truncated", "turnId": "t1" }));
    let messages = messages_behind(&mut world, &mut client).await;
    assert_eq!(actions(&messages)[..2], ["chat/turnsLoaded", "chat/truncated"], "{messages:?}");
}
