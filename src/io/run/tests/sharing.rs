//! Sharing of a message by all clients that receive it.
//!
//! Owns: that a line is the same memory for all clients of a version.
//! Never: measures how long that takes.

use std::collections::BTreeSet;

use serde_json::json;

use super::{turn, Client, World, SESSION};
use crate::wire::uris::default_chat_of;

/// Returns the address of the last line that contains `wanted`.
fn place_of(client: &mut Client, wanted: &[u8]) -> *const u8 {
    let mut place = None;
    while let Ok(chunk) = client.chunks.try_recv() {
        let has = |line: &&bytes::Bytes| memchr::memmem::find(line, wanted).is_some();
        place = chunk.iter().find(has).map(|line| line.as_ptr()).or(place);
    }
    place.expect("it is told")
}

#[tokio::test]
async fn a_line_is_made_once_for_all_clients_of_a_version() {
    let mut world = World::in_memory();
    let mut clients = Vec::new();
    for version in ["1.0.0", "0.9.0", "0.5.2"] {
        for number in 0..3 {
            let mut client = world.client(&format!("{version}-{number}"), version).await;
            if clients.is_empty() {
                world.ask(&mut client, "createSession", json!({ "channel": SESSION })).await;
            }
            world.ask(&mut client, "subscribe", json!({ "channel": default_chat_of(SESSION) })).await;
            clients.push(client);
        }
    }
    clients[0].dispatches(&default_chat_of(SESSION), turn("t", "/say once"));
    // A queue gives up what it has given to a writer, so each line is still there to be looked at.
    world.settle().await;
    for of_version in clients.chunks_mut(3) {
        let places: BTreeSet<_> =
            of_version.iter_mut().map(|client| place_of(client, b"chat/turnComplete")).collect();
        assert_eq!(places.len(), 1, "it was made several times");
    }
}
