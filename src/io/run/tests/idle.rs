//! Eviction of idle sessions from memory.
//!
//! Owns: which of them go, and when, as the loop has it. That one comes back as it was is shown
//! elsewhere.
//! Never: measures memory; how large a session is counted is the host's.

use super::*;

const LARGE: &str = "ahp-session:/large";

/// A world with a small session, and behind it one whose turn has so many times 300,000 bytes.
/// Somebody follows both.
async fn with_a_turn(folder: &Path, pieces: usize) -> (World, Client) {
    let mut world = World::on(folder).await;
    let mut client = world.client("c", "1.0.0").await;
    for session in [SESSION, LARGE] {
        world.ask(&mut client, "createSession", json!({ "channel": session })).await;
        world.ask(&mut client, "subscribe", json!({ "channel": default_chat_of(session) })).await;
    }
    client.dispatches(&default_chat_of(LARGE), turn("t", &format!("/stream {pieces} 300000")));
    world.until(|_| actions(&client.looks()).contains(&"chat/turnComplete")).await;
    world.settle().await;
    (world, client)
}

async fn stops_following(world: &mut World, client: &mut Client, session: &str) {
    let params = json!({ "channel": default_chat_of(session) });
    client.sends(&[json!({ "jsonrpc": "2.0", "method": "unsubscribe", "params": params })]);
    world.settle().await;
}

#[tokio::test]
async fn a_session_that_takes_more_than_all_may_goes_when_nobody_follows_it_and_spares_the_others() {
    let folder = folder();
    let (mut world, mut client) = with_a_turn(folder.path(), 4).await;
    stops_following(&mut world, &mut client, SESSION).await;
    assert!(world.remembers(LARGE), "it is followed");
    stops_following(&mut world, &mut client, LARGE).await;
    assert!(!world.remembers(LARGE), "it is larger than what idle sessions may take");
    assert!(world.remembers(SESSION), "a small one was let go instead");
}

#[tokio::test]
async fn the_ones_that_were_used_longest_ago_go_first() {
    let folder = folder();
    let (mut world, mut client) = with_a_turn(folder.path(), 2).await;
    stops_following(&mut world, &mut client, SESSION).await;
    stops_following(&mut world, &mut client, LARGE).await;
    assert!(world.remembers(LARGE), "there is room for it");
    // Many small ones, each of which is used later.
    world.make_many(&mut client, "other").await;
    assert!(!world.remembers(SESSION) && !world.remembers(LARGE), "there is no room left");
    assert!(world.remembers(&format!("ahp-session:/other-{}", MANY - 1)), "it was used last");
}
