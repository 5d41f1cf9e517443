//! Clients that do not read, beside others that do.
//!
//! Owns: for whom agents wait, and who is cut off and when.
//! Never: waits for a time to pass.

use super::*;

/// Much less than a turn of these tests.
const FEW: usize = 10_000;

const NEVER: Duration = Duration::from_secs(1 << 20);

fn limits(clients_above: usize, patience: Duration) -> OutboxLimits {
    OutboxLimits { agents_above: FEW, clients_above, patience, ..OutboxLimits::default() }
}

/// A world in which a client that does not read has begun a turn that is more than may wait for it.
async fn stalled(limits: OutboxLimits) -> (World, Client) {
    let mut world = World::with(Keeper::in_memory(), limits);
    world.sidecar.begin().unwrap();
    let stuck = world.open_with(true, Shutdown::Drain(NEVER));
    let chat = default_chat_of(SESSION);
    let ask = |id: u64, method: &str, params: Value| json!({ "id": id, "method": method, "params": params });
    stuck.says(&[
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
    let (mut world, stuck) = stalled(limits(usize::MAX, NEVER)).await;
    another_comes(&mut world).await;
    assert!(!stuck.chunks.is_closed(), "it has time yet");
    // It reads at last, and was told all.
    let mut stuck = stuck;
    let mut told = stuck.looks();
    while actions(&told).last() != Some(&"chat/turnComplete") {
        let bytes = world.sidecar.links.get_mut(stuck.id).unwrap().outbox.bytes();
        assert!(bytes > 0, "nothing waits for it: {:?}", actions(&told));
        assert!(stuck.receipts.as_ref().unwrap().tell(Written::Bytes(bytes)));
        world.settle().await;
        told.extend(stuck.looks());
    }
}

#[tokio::test]
async fn who_makes_no_progress_is_cut_off_where_another_reads() {
    let (mut world, mut stuck) = stalled(limits(usize::MAX, Duration::ZERO)).await;
    assert!(!stuck.chunks.is_closed(), "nobody else listens");
    another_comes(&mut world).await;
    assert!(stuck.chunks.is_closed() && world.sidecar.links.get_mut(stuck.id).is_none());
    // It comes back, and is told what it has missed.
    let seq = stuck.looks().iter().filter_map(|told| told["params"]["serverSeq"].as_u64()).max();
    let mut back = world.open(false);
    let chat = default_chat_of(SESSION);
    let params =
        json!({ "clientId": "stuck", "lastSeenServerSeq": seq.unwrap_or(0), "subscriptions": [chat] });
    back.asks("reconnect", params);
    world.settle().await;
    let told = back.looks();
    let all = told.iter().map(Value::to_string).collect::<String>();
    assert!(all.contains("chat/turnComplete") || all.contains(r#""state":"complete""#), "{all:.300}");
}

#[tokio::test]
async fn what_waits_for_one_client_has_a_limit_where_another_reads() {
    let (mut world, stuck) = stalled(limits(4 * FEW, NEVER)).await;
    another_comes(&mut world).await;
    assert!(stuck.chunks.is_closed(), "it keeps more waiting than it may");
}
