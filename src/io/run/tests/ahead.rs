//! Sessions that a window of an editor makes ahead: who receives them, and how long they stay.
//!
//! Owns: that nobody is told before something begins there, and that what nobody follows is
//! disposed of.
//! Never: waits for a time to pass.

use serde_json::{json, Value};

use super::{actions, Client, World};
use crate::host::effects::{Input, Timer};
use crate::wire::uris::default_chat_of;

const AHEAD: &str = "script:/ahead";

fn welcome(name: &str) -> Value {
    json!({ "clientId": name, "protocolVersions": ["1.0.0"], "initialSubscriptions": ["ahp-root://"],
        "clientInfo": { "name": format!("vscode-{name}") } })
}

async fn window(world: &mut World, name: &str) -> Client {
    let mut window = world.open(false);
    world.ask(&mut window, "initialize", welcome(name)).await;
    window
}

/// A window that has made a session, and follows it.
async fn window_with_session(world: &mut World) -> Client {
    let mut window = window(world, "window").await;
    let made = world.ask(&mut window, "createSession", json!({ "channel": AHEAD })).await;
    assert_eq!(made["error"], Value::Null);
    world.ask(&mut window, "subscribe", json!({ "channel": AHEAD })).await;
    window
}

async fn listed(world: &mut World, client: &mut Client) -> Vec<Value> {
    let list = world.ask(client, "listSessions", json!({})).await;
    let items = list["result"]["items"].as_array().unwrap();
    items.iter().map(|item| item["resource"].clone()).collect()
}

async fn leaves(world: &mut World, mut client: Client) {
    client.lines = None;
    world.settle().await;
}

/// Ends the running timers of sessions without subscribers.
async fn time_is_up(world: &mut World) {
    let is_of_session = |timer: &Timer| matches!(timer, Timer::UnsubscribedSession(..));
    let (up, rest) = world.sidecar.timers.drain(..).partition(|(_, timer)| is_of_session(timer));
    world.sidecar.timers = rest;
    let up: Vec<_> = up;
    for (_, timer) in up {
        world.sidecar.feed(Input::Timer(timer));
    }
    world.sidecar.settle();
    world.settle().await;
}

/// Returns whether the session exists, by subscribing to it.
async fn is_there(world: &mut World, client: &mut Client) -> bool {
    let found = world.ask(client, "subscribe", json!({ "channel": AHEAD })).await;
    world.ask(client, "unsubscribe", json!({ "channel": AHEAD })).await;
    found["error"].is_null()
}

#[tokio::test]
async fn session_made_ahead_is_not_sent_to_other_clients_before_its_first_turn() {
    let mut world = World::in_memory();
    let mut other = world.open(false);
    let params = json!({ "clientId": "other", "protocolVersions": ["1.0.0"], "initialSubscriptions": ["ahp-root://"] });
    world.ask(&mut other, "initialize", params).await;
    let mut window = window_with_session(&mut world).await;
    assert_eq!(listed(&mut world, &mut window).await, [Value::Null; 0]);
    assert_eq!(other.looks(), [Value::Null; 0]);
    assert_eq!(listed(&mut world, &mut other).await, [Value::Null; 0]);
    window.dispatches(&default_chat_of(AHEAD), super::turn("t", "/say begun"));
    world.settle().await;
    let messages = other.looks();
    assert_eq!(actions(&messages), ["root/activeSessionsChanged"]);
    let added = messages.iter().find(|message| message["method"] == "root/sessionAdded").unwrap();
    assert_eq!(added["params"]["summary"]["title"], "/say begun");
    assert_eq!(listed(&mut world, &mut other).await, [AHEAD]);
    // A session that has begun stays, also without subscribers.
    leaves(&mut world, window).await;
    time_is_up(&mut world).await;
    assert!(is_there(&mut world, &mut other).await);
}

#[tokio::test]
async fn what_nobody_follows_is_disposed_of() {
    let mut world = World::in_memory();
    let mut other = world.client("other", "1.0.0").await;
    let first = window_with_session(&mut world).await;
    leaves(&mut world, first).await;
    assert!(is_there(&mut world, &mut other).await, "its window may come back");
    time_is_up(&mut world).await;
    assert!(!is_there(&mut world, &mut other).await);
}

#[tokio::test]
async fn a_window_that_comes_back_in_time_finds_it() {
    let mut world = World::in_memory();
    let mut other = world.client("other", "1.0.0").await;
    let first = window_with_session(&mut world).await;
    leaves(&mut world, first).await;
    let mut back = world.open(false);
    let params = json!({ "clientId": "window", "lastSeenServerSeq": 0, "subscriptions": [AHEAD],
        "_meta": { "vscode.telemetryLevel": "off" } });
    let answer = world.ask(&mut back, "reconnect", params).await;
    assert_eq!(answer["result"]["snapshots"][0]["resource"], AHEAD, "{answer}");
    time_is_up(&mut world).await;
    assert!(is_there(&mut world, &mut other).await, "it is followed");
    world.ask(&mut back, "unsubscribe", json!({ "channel": AHEAD })).await;
    time_is_up(&mut world).await;
    assert!(!is_there(&mut world, &mut other).await, "the window shows another one");
}
