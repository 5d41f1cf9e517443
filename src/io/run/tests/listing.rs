//! The list of sessions, which is read from the store while sessions change.
//!
//! Owns: that a list agrees with what its client was last sent, whenever the store was read.
//! Never: lets the store be read by itself.

use serde_json::{json, Value};
use tempfile::TempDir;

use super::{folder, Client, World};
use crate::host::effects::Frame;
use crate::wire::errors::RpcError;
use crate::wire::rpc::Incoming;

/// The list as it is read now, and nothing changes meanwhile.
async fn listed(world: &mut World, client: &mut Client, params: Value) -> Value {
    let id = client.asks("listSessions", params);
    world.settle().await;
    world.deliver_next().await;
    answer_to(client, id)
}

fn answer_to(client: &mut Client, id: u64) -> Value {
    let answer = client.answer_to(id);
    assert!(answer["error"].is_null(), "{answer}");
    answer["result"].clone()
}

fn resources(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["resource"].as_str().unwrap()).collect()
}

async fn create(world: &mut World, client: &mut Client, name: &str) {
    world.ask(client, "createSession", json!({ "channel": name })).await;
    world.settle().await;
}

const ONE: &str = "ahp-session:/1";
const TWO: &str = "ahp-session:/2";
const THREE: &str = "ahp-session:/3";
const FOUR: &str = "ahp-session:/4";

/// A world with three sessions, who has made them, and who is going to list them.
async fn with_three(folder: &TempDir) -> (World, Client, Client) {
    let mut world = World::on(folder.path()).await;
    let mut other = world.client("other", "1.0.0").await;
    for session in [ONE, TWO, THREE] {
        create(&mut world, &mut other, session).await;
    }
    let lists = world.client("lists", "1.0.0").await;
    (world, other, lists)
}

/// A session gets another title, one goes and one comes.
async fn change(world: &mut World, client: &mut Client) {
    client.dispatches(ONE, json!({ "type": "session/titleChanged", "title": "Another" }));
    world.ask(client, "disposeSession", json!({ "channel": TWO })).await;
    create(world, client, FOUR).await;
}

#[tokio::test]
async fn change_during_the_read_of_the_list_is_in_it_as_last_sent() {
    for is_read_before in [true, false] {
        let folder = folder();
        let (mut world, mut other, mut lists) = with_three(&folder).await;
        let id = lists.asks("listSessions", json!({}));
        world.settle().await;
        let job = world.next_job().expect("a read");
        let read = if is_read_before {
            let read = world.read(job);
            change(&mut world, &mut other).await;
            read
        } else {
            change(&mut world, &mut other).await;
            world.read(job)
        };
        world.deliver_late(read).await;
        let list = answer_to(&mut lists, id);
        let mut all = resources(&list);
        all.sort_unstable();
        assert_eq!(all, [ONE, THREE, FOUR], "{is_read_before}");
        let titles = list["items"].as_array().unwrap().iter().filter(|item| item["title"] == "Another");
        assert_eq!(titles.count(), 1, "{is_read_before}: {list}");
        assert_eq!(list, listed(&mut world, &mut lists, json!({})).await, "{is_read_before}");
    }
}

#[tokio::test]
async fn a_page_that_was_read_before_sessions_changed_is_a_page_of_what_they_are_now() {
    let folder = folder();
    let (mut world, mut other, mut lists) = with_three(&folder).await;
    let id = lists.asks("listSessions", json!({ "limit": 2 }));
    world.settle().await;
    let read = world.read_next();
    create(&mut world, &mut other, FOUR).await;
    world.deliver_late(read).await;
    let first = answer_to(&mut lists, id);
    assert_eq!(resources(&first), [FOUR, THREE]);
    let rest = json!({ "limit": 2, "cursor": first["nextCursor"] });
    let rest = listed(&mut world, &mut lists, rest).await;
    assert_eq!(resources(&rest), [TWO, ONE]);
    assert!(rest["nextCursor"].is_null(), "{rest}");
}

#[tokio::test]
async fn second_answer_to_a_request_is_dropped() {
    let mut world = World::in_memory();
    let mut client = world.client("lists", "1.0.0").await;
    let answer = world.ask(&mut client, "listSessions", json!({ "channel": "ahp-root://" })).await;
    assert!(answer["result"]["items"].is_array(), "{answer}");
    let line = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"listSessions"}}"#, answer["id"]);
    let Incoming::Request { id, .. } = Incoming::parse(&line.into()) else { panic!() };
    let again = Frame::Error { id: Some(id), error: RpcError::internal("again") };
    world.sidecar.answer(client.id, &again);
    let pinged = client.asks("ping", json!({ "channel": "ahp-root://" }));
    world.settle().await;
    assert_eq!(client.answers(), [pinged]);
}

#[tokio::test]
async fn list_that_waits_for_a_commit_is_sent_after_the_end_of_input() {
    let folder = folder();
    let (mut world, other, mut lists) = with_three(&folder).await;
    let id = lists.asks("listSessions", json!({}));
    world.settle().await;
    let read = world.read_next();
    lists.lines = None;
    world.settle().await;
    let mut commits = Vec::new();
    other.dispatches(ONE, json!({ "type": "session/titleChanged", "title": "Another" }));
    while commits.is_empty() {
        world.go_on_without_store(&mut commits).await;
    }
    world.deliver(read);
    world.go_on_without_store(&mut commits).await;
    assert!(lists.looks().is_empty() && !lists.chunks.is_closed());
    for event in commits {
        assert_eq!(world.sidecar.take_in(event).unwrap(), None);
    }
    world.sidecar.settle();
    world.settle().await;
    assert_eq!((lists.answers(), lists.chunks.is_closed()), (vec![id], true));
}

#[tokio::test]
async fn lists_of_one_client_do_not_delay_the_reads_of_another() {
    let folder = folder();
    let (mut world, mut other, mut lists) = with_three(&folder).await;
    for _ in 0..20 {
        lists.asks("listSessions", json!({}));
        world.settle().await;
    }
    let id = other.asks("listSessions", json!({}));
    world.settle().await;
    let mut before = 0;
    while !other.answers().contains(&id) {
        world.deliver_next().await;
        before += 1;
    }
    assert!(before <= 6, "it was the {before}th of 21");

    // The rest is dropped with its connection.
    world.sidecar.give_up(lists.id, String::new());
    world.settle().await;
    let mut after = 0;
    while let Some(job) = world.next_job() {
        world.deliver_late(world.read(job)).await;
        after += 1;
    }
    assert!(after <= 4, "{after} lists were read for nobody");
}
