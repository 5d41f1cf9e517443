//! One client among others can say nothing any more.
//!
//! Owns: what becomes of its turns, of those of others, and of what waits for an answer.
//! Never: waits for a time to pass.

use std::time::Duration;

use serde_json::json;

use super::{actions, turn, Client, World, SESSION};
use crate::host::effects::{Input, Shutdown, Timer};
use crate::wire::uris::default_chat_of;

const OTHER: &str = "ahp-session:/other";

const DRAIN: Shutdown = Shutdown::Drain(Duration::from_secs(1000));

/// A client that has a session of its own, whose turns get this at its end.
async fn client_with_session(world: &mut World, name: &str, session: &str, on_eof: Shutdown) -> Client {
    let mut client = world.open_with(false, on_eof);
    let params = json!({ "clientId": name, "protocolVersions": ["1.0.0"] });
    world.ask(&mut client, "initialize", params).await;
    world.ask(&mut client, "createSession", json!({ "channel": session })).await;
    world.ask(&mut client, "subscribe", json!({ "channel": default_chat_of(session) })).await;
    client
}

async fn two(on_eof: Shutdown) -> (World, Client, Client) {
    let mut world = World::in_memory();
    let stays = client_with_session(&mut world, "stays", SESSION, DRAIN).await;
    let leaves = client_with_session(&mut world, "leaves", OTHER, on_eof).await;
    (world, stays, leaves)
}

#[tokio::test]
async fn its_turns_are_cancelled_and_those_of_others_go_on() {
    let (mut world, mut stays, mut leaves) = two(Shutdown::Cancel).await;
    for session in [SESSION, OTHER] {
        world.ask(&mut stays, "subscribe", json!({ "channel": default_chat_of(session) })).await;
    }
    stays.dispatches(&default_chat_of(SESSION), turn("mine", "/hang"));
    leaves.dispatches(&default_chat_of(OTHER), turn("theirs", "/hang"));
    world.settle().await;
    leaves.lines = None;
    world.settle().await;
    assert_eq!(actions(&leaves.looks()).last(), Some(&"chat/turnCancelled"), "it is told to its end");
    assert!(leaves.chunks.is_closed(), "the connection is still there");
    let messages = stays.looks();
    let cancelled: Vec<_> = messages
        .iter()
        .filter(|message| message["params"]["action"]["type"] == "chat/turnCancelled")
        .collect();
    assert_eq!(cancelled.len(), 1, "{cancelled:?}");
    assert_eq!(cancelled[0]["params"]["channel"], default_chat_of(OTHER));
    assert_eq!(world.sidecar.host.running_turns(), 1);
}

#[tokio::test]
async fn drain_timeout_of_a_client_begins_before_its_messages_are_committed() {
    let folder = super::folder();
    let mut world = World::on(folder.path()).await;
    let mut leaves = client_with_session(&mut world, "leaves", SESSION, DRAIN).await;
    let mut commits = Vec::new();
    leaves.dispatches(&default_chat_of(SESSION), turn("t", "/hang"));
    // What was said is safe when the thread of the store has had its time, and nobody has heard of
    // it.
    while commits.is_empty() {
        world.go_on_without_store(&mut commits).await;
    }
    leaves.lines = None;
    world.go_on_without_store(&mut commits).await;
    assert!(actions(&leaves.looks()).is_empty(), "the store has taken what was said");
    let mut timers = world.sidecar.timers.iter();
    assert!(
        timers.any(|(_, timer)| *timer == Timer::Disconnect(leaves.id)),
        "it has all the time in the world"
    );
}

/// Two clients in a chat. The turn of the one that has left asks something.
async fn two_where_one_leaves_what_it_asked() -> (World, Client, Client, String) {
    let (mut world, mut stays, mut leaves) = two(DRAIN).await;
    let chat = default_chat_of(OTHER);
    world.ask(&mut stays, "subscribe", json!({ "channel": chat })).await;
    leaves.dispatches(&chat, turn("asks", "/ask shell\n/say on it goes"));
    world.settle().await;
    leaves.lines = None;
    world.settle().await;
    (world, stays, leaves, chat)
}

#[tokio::test]
async fn what_others_can_answer_is_declined_when_they_are_gone_too() {
    let (mut world, mut stays, mut leaves, _) = two_where_one_leaves_what_it_asked().await;
    assert!(!leaves.chunks.is_closed(), "its turn is not over");
    assert_eq!(world.sidecar.host.running_turns(), 1);
    // No client is left that has the turn or could answer.
    stays.lines = None;
    world.settle().await;
    assert_eq!(world.sidecar.host.running_turns(), 0);
    let messages = leaves.looks();
    assert_eq!(actions(&messages).last(), Some(&"chat/turnComplete"), "{messages:?}");
    assert!(leaves.chunks.is_closed() && stays.chunks.is_closed());
    assert_eq!(world.sidecar.links.iter().count(), 0);
}

#[tokio::test]
async fn what_it_asked_is_answered_by_another_client() {
    let (mut world, mut stays, mut leaves, chat) = two_where_one_leaves_what_it_asked().await;
    let messages = stays.looks();
    let ready = messages.iter().find(|message| message["params"]["action"]["type"] == "chat/toolCallReady");
    let call = ready.expect("it asks")["params"]["action"]["toolCallId"].clone();
    let approve = json!({ "type": "chat/toolCallConfirmed", "turnId": "asks", "toolCallId": call,
        "approved": true, "confirmed": "user-action" });
    stays.dispatches(&chat, approve);
    world.settle().await;
    let messages = leaves.looks();
    assert_eq!(actions(&messages).last(), Some(&"chat/turnComplete"), "{messages:?}");
    assert!(leaves.chunks.is_closed());
}

#[tokio::test]
async fn who_comes_back_meanwhile_has_its_turn() {
    let (mut world, _stays, mut leaves) = two(DRAIN).await;
    let chat = default_chat_of(OTHER);
    leaves.dispatches(&chat, turn("long", "/hang"));
    world.settle().await;
    leaves.lines = None;
    world.settle().await;
    assert!(!leaves.chunks.is_closed(), "its turn is not over");
    let mut back = world.open_with(false, DRAIN);
    let params = json!({ "clientId": "leaves", "lastSeenServerSeq": 0, "subscriptions": [chat] });
    world.ask(&mut back, "reconnect", params).await;
    assert!(leaves.chunks.is_closed(), "the old connection is still there");
    world.sidecar.feed(Input::Timer(Timer::Disconnect(leaves.id)));
    world.sidecar.settle();
    world.settle().await;
    assert_eq!(world.sidecar.host.running_turns(), 1);
}

#[tokio::test]
async fn its_turn_is_cut_when_its_time_is_up() {
    let (mut world, _stays, mut leaves) = two(DRAIN).await;
    leaves.dispatches(&default_chat_of(OTHER), turn("long", "/hang"));
    world.settle().await;
    leaves.lines = None;
    world.settle().await;
    world.sidecar.feed(Input::Timer(Timer::Disconnect(leaves.id)));
    world.sidecar.settle();
    world.settle().await;
    assert_eq!(actions(&leaves.looks()).last(), Some(&"chat/turnCancelled"));
    assert!(leaves.chunks.is_closed());
}

/// A client whose turn asks something, and which has lost its connection. Nobody else is there.
async fn one_that_is_lost() -> (World, Client) {
    let mut world = World::in_memory();
    let mut client = client_with_session(&mut world, "first", SESSION, DRAIN).await;
    client.dispatches(&default_chat_of(SESSION), turn("asks", "/ask shell\n/say on it goes"));
    world.settle().await;
    client.lines.take().expect("it can speak").close_as_lost();
    world.settle().await;
    assert_eq!(world.sidecar.host.running_turns(), 1, "it was declined");
    (world, client)
}

#[tokio::test]
async fn what_waits_for_a_client_that_has_lost_its_connection_is_answered_under_whatever_name_it_comes_back()
{
    let (mut world, lost) = one_that_is_lost().await;
    let chat = default_chat_of(SESSION);
    let mut back = world.open(false);
    let params = json!({ "clientId": "second", "protocolVersions": ["1.0.0"] });
    world.ask(&mut back, "initialize", params).await;
    let state = world.ask(&mut back, "subscribe", json!({ "channel": chat })).await;
    assert!(lost.chunks.is_closed(), "the old connection is still there");
    for timer in [Timer::Return(lost.id), Timer::Disconnect(lost.id)] {
        world.sidecar.feed(Input::Timer(timer));
        world.sidecar.settle();
        world.settle().await;
    }
    assert_eq!(world.sidecar.host.running_turns(), 1, "somebody is there who can answer");
    let state = &state["result"]["snapshot"]["state"];
    let call = &state["activeTurn"]["responseParts"][0]["toolCall"]["toolCallId"];
    let approve = json!({ "type": "chat/toolCallConfirmed", "turnId": "asks", "toolCallId": call,
        "approved": true, "confirmed": "user-action" });
    back.dispatches(&chat, approve);
    world.settle().await;
    assert_eq!(actions(&back.looks()).last(), Some(&"chat/turnComplete"), "{state}");
}

#[tokio::test]
async fn what_waits_is_declined_when_nobody_comes_back() {
    let (mut world, lost) = one_that_is_lost().await;
    world.sidecar.feed(Input::Timer(Timer::Return(lost.id)));
    world.sidecar.settle();
    world.settle().await;
    assert_eq!(world.sidecar.host.running_turns(), 0);
    assert!(lost.chunks.is_closed());
}
