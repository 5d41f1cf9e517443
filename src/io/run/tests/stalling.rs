//! Clients that do not read, beside others that do.
//!
//! Owns: for whom agents wait, and who is cut off and when.
//! Never: waits for a time to pass.

use super::*;
use crate::io::link::Link;

/// Much less than a turn of these tests.
const FEW: usize = 10_000;

const NEVER: Duration = Duration::from_secs(1 << 20);

fn limits(clients_above: usize, stall_limit: Duration) -> OutboxLimits {
    OutboxLimits { agents_above: FEW, clients_above, stall_limit, ..OutboxLimits::default() }
}

/// A world in which a client that does not read has begun a turn that is more than may wait for it.
async fn stalled(limits: OutboxLimits, on_eof: Shutdown) -> (World, Client) {
    let mut world = World::with(Persistence::in_memory(), limits);
    world.sidecar.begin().unwrap();
    let stuck = world.open_with(true, on_eof);
    let chat = default_chat_of(SESSION);
    let ask = |id: u64, method: &str, params: Value| json!({ "id": id, "method": method, "params": params });
    stuck.sends(&[
        ask(1, "initialize", json!({ "clientId": "stuck", "protocolVersions": ["1.0.0"] })),
        ask(2, "createSession", json!({ "channel": SESSION, "provider": "script" })),
        ask(3, "subscribe", json!({ "channel": chat })),
    ]);
    world.settle().await;
    let message = json!({ "text": "/stream 3000 100", "origin": { "kind": "user" } });
    stuck.dispatches(
        &chat,
        json!({ "type": "chat/turnStarted", "turnId": "t", "startedAt": "2026-01-01T00:00:00Z", "message": message }),
    );
    world.settle().await;
    assert_eq!(world.sidecar.host.running_turns(), 1, "the agent waits for the only client there is");
    (world, stuck)
}

/// Another client comes, and the turn goes on to its end.
async fn another_comes(world: &mut World) -> Client {
    // One that is connected and has not begun does not count.
    let _silent = world.open(false);
    world.settle().await;
    assert_eq!(world.sidecar.host.running_turns(), 1);
    let other = world.client("reads", "1.0.0").await;
    world.until(|sidecar| sidecar.host.running_turns() == 0).await;
    world.settle().await;
    other
}

#[tokio::test]
async fn agents_do_not_wait_for_one_client_where_another_reads() {
    let (mut world, stuck) = stalled(limits(usize::MAX, NEVER), Shutdown::Drain(NEVER)).await;
    another_comes(&mut world).await;
    assert!(!stuck.chunks.is_closed(), "it has time yet");
    // It reads at last, and receives everything.
    let mut stuck = stuck;
    let mut messages = stuck.looks();
    while actions(&messages).last() != Some(&"chat/turnComplete") {
        let bytes = world.sidecar.links.get_mut(stuck.id).unwrap().outbox.bytes();
        assert!(bytes > 0, "nothing waits for it: {:?}", actions(&messages));
        assert!(stuck.receipts.as_ref().unwrap().send(WriteOutcome::Bytes(bytes)));
        world.settle().await;
        messages.extend(stuck.looks());
    }
}

#[tokio::test]
async fn who_makes_no_progress_is_cut_off_where_another_reads() {
    let (mut world, mut stuck) = stalled(limits(usize::MAX, Duration::ZERO), Shutdown::Drain(NEVER)).await;
    assert!(!stuck.chunks.is_closed(), "nobody else listens");
    another_comes(&mut world).await;
    assert!(stuck.chunks.is_closed() && world.sidecar.links.get_mut(stuck.id).is_none());
    // It reconnects, and receives what it has missed.
    let seq = stuck.looks().iter().filter_map(|message| message["params"]["serverSeq"].as_u64()).max();
    let mut back = world.open(false);
    let chat = default_chat_of(SESSION);
    let params =
        json!({ "clientId": "stuck", "lastSeenServerSeq": seq.unwrap_or(0), "subscriptions": [chat] });
    back.asks("reconnect", params);
    world.settle().await;
    let messages = back.looks();
    let all = messages.iter().map(Value::to_string).collect::<String>();
    assert!(all.contains("chat/turnComplete") || all.contains(r#""state":"complete""#), "{all:.300}");
}

#[tokio::test]
async fn what_waits_for_one_client_has_a_limit_where_another_reads() {
    let (mut world, stuck) = stalled(limits(4 * FEW, NEVER), Shutdown::Drain(NEVER)).await;
    another_comes(&mut world).await;
    assert!(stuck.chunks.is_closed(), "it keeps more waiting than it may");
}

#[tokio::test]
async fn turns_of_disconnected_client_are_cancelled_without_another_event() {
    let (mut world, stuck) = stalled(limits(4 * FEW, NEVER), Shutdown::Cancel).await;
    let mut other = world.open(false);
    other.asks("initialize", json!({ "clientId": "reads", "protocolVersions": ["1.0.0"] }));
    world.until(|sidecar| sidecar.links.iter().all(|link| link.id != stuck.id)).await;
    assert_eq!(world.sidecar.host.running_turns(), 0);
    assert!(world.sidecar.outputs.is_empty(), "the cancellation would wait for the next event");
}

#[tokio::test]
async fn answers_behind_a_large_state_count_as_requested() {
    let limits = OutboxLimits { clients_above: 2 << 20, stall_limit: NEVER, ..OutboxLimits::default() };
    let mut world = World::with(Persistence::in_memory(), limits);
    world.sidecar.begin().unwrap();
    let mut reads = world.client("reads", "1.0.0").await;
    let sessions = [(SESSION, 3), ("ahp-session:/larger", 9)];
    for (session, count) in sessions {
        let chat = default_chat_of(session);
        world.ask(&mut reads, "createSession", json!({ "channel": session })).await;
        world.ask(&mut reads, "subscribe", json!({ "channel": chat })).await;
        reads.dispatches(&chat, turn("t", &format!("/stream {count} 400000")));
        world.until(|_| actions(&reads.looks()).contains(&"chat/turnComplete")).await;
    }
    let stuck = world.open_with(true, Shutdown::Cancel);
    let ask = |id: u64, method: &str, params: Value| json!({ "id": id, "method": method, "params": params });
    stuck.sends(&[ask(1, "initialize", json!({ "clientId": "stuck", "protocolVersions": ["1.0.0"] }))]);
    world.settle().await;
    stuck.sends(
        &sessions.map(|(session, _)| ask(2, "subscribe", json!({ "channel": default_chat_of(session) }))),
    );
    world.settle().await;
    let link = world.sidecar.links.get_mut(stuck.id).expect("it is disconnected");
    assert!(link.outbox.bytes() > 4_800_000, "{} bytes are queued", link.outbox.bytes());
}

/// A client that subscribes to one session and reads nothing.
async fn reads_nothing(world: &mut World, name: &str) -> Client {
    let stuck = world.open_with(true, Shutdown::Cancel);
    let ask = |id: u64, method: &str, params: Value| json!({ "id": id, "method": method, "params": params });
    stuck.sends(&[
        ask(1, "initialize", json!({ "clientId": name, "protocolVersions": ["1.0.0"] })),
        ask(2, "subscribe", json!({ "channel": default_chat_of(SESSION) })),
    ]);
    world.settle().await;
    stuck
}

/// A world in which these have read nothing of a turn of 600 KB, and the client, behind them, that
/// has begun it.
async fn streaming_beside(stalled: usize, total: usize) -> (World, Vec<Client>) {
    let limits = OutboxLimits { total, ..OutboxLimits::default() };
    let mut world = World::with(Persistence::in_memory(), limits);
    world.sidecar.begin().unwrap();
    let mut reads = world.client("reads", "1.0.0").await;
    world.ask(&mut reads, "createSession", json!({ "channel": SESSION })).await;
    let mut all = vec![];
    for number in 0..stalled {
        all.push(reads_nothing(&mut world, &format!("stuck-{number}")).await);
    }
    reads.dispatches(
        &default_chat_of(SESSION),
        json!({ "type": "chat/turnStarted", "turnId": "t", "startedAt": "2026-01-01T00:00:00Z",
            "message": { "text": "/stream 600 1000", "origin": { "kind": "user" } } }),
    );
    world.settle().await;
    assert_eq!(world.sidecar.host.running_turns(), 0);
    all.push(reads);
    (world, all)
}

#[tokio::test]
async fn same_stream_waits_once_for_all_clients_that_do_not_read() {
    let (world, clients) = streaming_beside(8, 4 << 20).await;
    let waiting: Vec<usize> = world.sidecar.links.iter().map(|link| link.outbox.unread()).collect();
    let all: usize = waiting.iter().sum();
    assert!(waiting.iter().filter(|bytes| **bytes > 600_000).count() == 8, "{waiting:?}");
    let own: usize = world.sidecar.links.iter().map(Link::own_bytes).sum();
    let counted = own + world.sidecar.acceptor.backlog().bytes();
    // Each has as much for itself as waits before anything is merged.
    assert!(counted < 600_000 + 8 * (300 << 10) && counted < all / 2, "{counted} of {all}");
    assert_eq!(world.sidecar.links.iter().count(), clients.len());
}

#[tokio::test]
async fn client_with_most_waiting_is_disconnected_when_all_together_hold_too_much() {
    let (mut world, mut clients) = streaming_beside(1, 1 << 20).await;
    let (reads, stuck) = (clients.remove(1), clients.remove(0));
    assert!(!stuck.chunks.is_closed(), "there is room for what it has waiting");
    // Another one has less, until it has sent a message that is not complete.
    let other = world.open_with(true, Shutdown::Cancel);
    let received = other.lines.as_ref().unwrap().received().clone();
    received.set_unfinished(500_000);
    world.settle().await;
    assert!(stuck.chunks.is_closed() && !other.chunks.is_closed(), "it has most");
    received.set_unfinished(2 << 20);
    world.settle().await;
    assert!(other.chunks.is_closed() && !reads.chunks.is_closed());
}

#[tokio::test]
async fn unhandled_messages_count_until_they_are_handled() {
    let limits = OutboxLimits { total: 1 << 20, clients_above: 1, ..OutboxLimits::default() };
    let mut world = World::with(Persistence::in_memory(), limits);
    world.sidecar.begin().unwrap();
    let stuck = world.open_with(true, Shutdown::Cancel);
    stuck.sends(&[json!({ "id": 1, "method": "ping" })]);
    world.settle().await;
    let held = |world: &World| world.sidecar.links.iter().map(Link::own_bytes).sum::<usize>();
    let answer = held(&world);
    let large = "x".repeat(1000);
    stuck.sends(&[json!({ "id": 2, "method": "ping", "params": { "x": large } })]);
    world.settle().await;
    assert!(held(&world) > answer + 1000, "it is not heard while its answer waits");
    stuck.receipts.as_ref().unwrap().send(WriteOutcome::Bytes(answer));
    world.settle().await;
    assert!(held(&world) < 1000, "it was heard");
}

#[tokio::test]
async fn client_whose_queued_requests_hold_too_much_is_disconnected() {
    let limits = OutboxLimits { total: 4 << 20, ..OutboxLimits::default() };
    let mut world = World::with(Persistence::in_memory(), limits);
    world.sidecar.begin().unwrap();
    world.sidecar.resources.occupy_reads();
    let mut floods = world.client("floods", "1.0.0").await;
    let other = world.client("other", "1.0.0").await;
    let uri = format!("data:,{}", "x".repeat(1 << 20));
    for _ in 0..3 {
        floods.asks("resourceRead", json!({ "channel": "ahp-root://", "uri": uri }));
        world.settle().await;
    }
    assert!(!floods.chunks.is_closed(), "there is room for three");
    floods.asks("resourceRead", json!({ "channel": "ahp-root://", "uri": uri }));
    world.settle().await;
    assert!(floods.chunks.is_closed() && !other.chunks.is_closed());
}

#[tokio::test]
async fn message_counts_until_its_lookup_is_done() {
    let folder = folder();
    let mut world = World::on(folder.path()).await;
    let mut client = world.client("waits", "1.0.0").await;
    let held = |world: &World| world.sidecar.links.iter().map(Link::own_bytes).sum::<usize>();
    let params = json!({ "channel": "ahp-session:/unknown", "_meta": { "x": "x".repeat(1000) } });
    client.asks("subscribe", params);
    world.settle().await;
    assert!(held(&world) > 1000, "it waits for the store");
    world.deliver_next().await;
    assert!(held(&world) < 1000, "it is handled");
}
