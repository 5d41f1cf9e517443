//! A large state, which is made JSON text while other clients are served.
//!
//! Owns: that nothing overtakes it on its connection, and that no other client waits for it.
//! Never: measures how long anything takes.

use serde_json::{json, Value};
use tokio::sync::mpsc;

use super::{turn, Bytes, Client, Sidecar, World, WriteOutcome, SESSION};
use crate::io::link::Link;
use crate::io::states::{Piece, PieceEnd};
use crate::wire::uris::default_chat_of;

/// One for each way in which an answer is made.
const VERSIONS: &[&str] = &["1.0.0", "0.9.0", "0.8.0", "0.3.0"];

/// Returns the parameters by which a client of this version subscribes to the turns of the session.
fn opening(version: &str) -> Value {
    let has_chats = version > "0.3.0";
    let channel = if has_chats { default_chat_of(SESSION) } else { SESSION.to_owned() };
    json!({ "channel": channel, "resource": channel })
}

/// Returns the actions among these messages.
fn actions_in(messages: Vec<Value>) -> Vec<Value> {
    messages.into_iter().filter(|message| message["method"] == "action").collect()
}

/// The answer to this request, when it is there.
async fn answer(world: &mut World, client: &mut Client, id: u64) -> Value {
    let mut answer = Value::Null;
    world
        .until(|_| {
            answer = client.looks().into_iter().find(|message| message["id"] == id).unwrap_or_default();
            !answer.is_null()
        })
        .await;
    answer
}

/// From now on what is made comes only when it is let.
pub(super) fn hold_back(world: &mut World) -> mpsc::UnboundedReceiver<Piece> {
    std::mem::replace(&mut world.events.pieces, mpsc::unbounded_channel().1)
}

/// A world with a large chat, and its client.
async fn with_a_large_chat() -> (World, Client) {
    let mut world = World::in_memory();
    let mut acts = world.client("acts", "1.0.0").await;
    let chat = default_chat_of(SESSION);
    world.ask(&mut acts, "createSession", json!({ "channel": SESSION })).await;
    world.ask(&mut acts, "subscribe", json!({ "channel": chat })).await;
    acts.dispatches(&chat, turn("large", "/stream 3 400000"));
    world.until(|_| super::actions(&acts.looks()).contains(&"chat/turnComplete")).await;
    (world, acts)
}

#[tokio::test]
async fn nothing_overtakes_a_large_state_and_nobody_else_waits_for_it() {
    for version in VERSIONS {
        let (mut world, mut acts) = with_a_large_chat().await;
        let mut opens = world.client("opens", version).await;
        let made = hold_back(&mut world);
        let asked = opens.asks("subscribe", opening(version));
        world.until(|sidecar| sidecar.links.iter().any(|link| link.writing.is_some())).await;
        opens.looks();

        let pinged = opens.asks("ping", json!({ "channel": "ahp-root://" }));
        let answer = world.ask(&mut acts, "ping", json!({ "channel": "ahp-root://" })).await;
        assert!(answer["error"].is_null(), "{answer}");
        acts.dispatches(&default_chat_of(SESSION), turn("small", "/say more"));
        world.until(|_| super::actions(&acts.looks()).contains(&"chat/turnComplete")).await;
        assert!(opens.looks().is_empty(), "{version}: something came before the state");

        world.events.pieces = made;
        let mut messages = Vec::new();
        world
            .until(|_| {
                messages.extend(opens.looks());
                super::actions(&messages).iter().any(|name| name.ends_with("/turnComplete"))
            })
            .await;
        let place = |id: u64| messages.iter().position(|message| message["id"] == id).expect("an answer");
        let first_action =
            messages.iter().position(|message| message["method"] == "action").expect("an action");
        assert!(place(asked) < first_action && place(asked) < place(pinged), "{version}");
        let state = &messages[place(asked)]["result"]["snapshot"];
        let mut actions = messages.iter().filter(|message| message["method"] == "action");
        let is_behind = |message: &Value| message["params"]["serverSeq"].as_u64() > state["fromSeq"].as_u64();
        assert!(state["state"].is_object() && actions.all(is_behind), "{version}");
    }
}

#[tokio::test]
async fn state_that_is_translated_counts_for_its_client_until_it_has_gone_out() {
    const SAID: usize = 1_200_000;
    let (mut world, _acts) = with_a_large_chat().await;
    for (version, is_copied) in [("1.0.0", false), ("0.9.0", true), ("0.3.0", true)] {
        let mut opens = world.client(version, version).await;
        let own = |sidecar: &Sidecar| sidecar.links.iter().map(Link::own_bytes).max().unwrap();
        let made = hold_back(&mut world);
        let asked = opens.asks("subscribe", opening(version));
        world.until(|sidecar| sidecar.links.iter().any(|link| link.writing.is_some())).await;
        while made.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(own(&world.sidecar) >= SAID, is_copied, "{version}");
        world.events.pieces = made;
        answer(&mut world, &mut opens, asked).await;
        world.settle().await;
        assert!(own(&world.sidecar) < SAID, "{version}: {}", own(&world.sidecar));
    }
}

/// The clients of such a version share what is known of the states: an action changes them once,
/// whoever waits.
#[tokio::test]
async fn clients_of_a_version_receive_the_same_while_one_waits_for_a_large_state() {
    for version in ["0.8.0", "0.3.0"] {
        let (mut world, mut acts) = with_a_large_chat().await;
        let mut follows = world.client("follows", version).await;
        let asked = follows.asks("subscribe", opening(version));
        answer(&mut world, &mut follows, asked).await;
        let mut opens = world.client("opens", version).await;
        let made = hold_back(&mut world);
        opens.asks("subscribe", opening(version));
        world.until(|sidecar| sidecar.links.iter().any(|link| link.writing.is_some())).await;
        opens.looks();
        follows.looks();
        let chat = default_chat_of(SESSION);
        for (turn_id, text) in [("more", "/say more"), ("fails", "/error no"), ("last", "/say last")] {
            acts.dispatches(&chat, turn(turn_id, text));
            let ends = |name: &&str| ["chat/turnComplete", "chat/error"].contains(name);
            world.until(|_| super::actions(&acts.looks()).iter().any(ends)).await;
        }
        world.settle().await;
        world.events.pieces = made;
        let expected = actions_in(follows.looks());
        assert!(expected.len() > 5, "{version}: {expected:?}");
        let mut messages = Vec::new();
        world
            .until(|_| {
                messages.extend(actions_in(opens.looks()));
                messages.len() >= expected.len()
            })
            .await;
        assert_eq!(messages, expected, "{version}");
    }
}

/// Replacements of some actions for clients of such a version depend on the chat's state: also of
/// one that was large, and that no other client of this version is subscribed to.
#[tokio::test]
async fn messages_behind_a_large_state_are_translated_with_it() {
    let (mut world, mut acts) = with_a_large_chat().await;
    let chat = default_chat_of(SESSION);
    acts.dispatches(&chat, turn("fails", "/error-resumable no\n/say on"));
    world.until(|_| super::actions(&acts.looks()).contains(&"chat/error")).await;
    let mut opens = world.client("opens", "0.8.0").await;
    let asked = opens.asks("subscribe", opening("0.8.0"));
    let state = answer(&mut world, &mut opens, asked).await;
    assert_eq!(state["result"]["snapshot"]["state"]["turns"][1]["id"], "fails");
    acts.dispatches(&chat, json!({ "type": "chat/turnResume", "turnId": "fails" }));
    world.until(|_| super::actions(&acts.looks()).contains(&"chat/turnComplete")).await;
    world.settle().await;
    let messages = opens.looks();
    // It knows of no turn that goes on: it is reverted and sent again.
    let began = super::actions(&messages).into_iter().take(2).collect::<Vec<_>>();
    assert_eq!(began, ["chat/truncated", "chat/turnStarted"]);
}

/// States that a client begins with, or comes back with, may be large too.
#[tokio::test]
async fn large_states_that_a_client_begins_with_hold_up_nobody_else() {
    for version in VERSIONS {
        let (mut world, mut acts) = with_a_large_chat().await;
        let mut comes = world.open(false);
        let made = hold_back(&mut world);
        let channel = opening(version)["channel"].clone();
        let params =
            json!({ "clientId": "comes", "protocolVersions": [version], "initialSubscriptions": [channel] });
        let asked = comes.asks("initialize", params);
        world.until(|sidecar| sidecar.links.iter().any(|link| link.writing.is_some())).await;
        world.ask(&mut acts, "ping", json!({ "channel": "ahp-root://" })).await;
        assert!(comes.looks().is_empty(), "{version}");
        world.events.pieces = made;
        let welcomed = answer(&mut world, &mut comes, asked).await;
        assert_eq!(welcomed["result"]["protocolVersion"], *version);
        let has_states =
            |message: &Value| message["result"]["snapshots"][0]["state"]["turns"][0]["id"] == "large";
        assert!(has_states(&welcomed), "{version}");

        let mut returns = world.open(false);
        let made = hold_back(&mut world);
        let params =
            json!({ "clientId": "comes", "lastSeenServerSeq": 1_000_000, "subscriptions": [channel] });
        let asked = returns.asks("reconnect", params);
        world.until(|sidecar| sidecar.links.iter().any(|link| link.writing.is_some())).await;
        world.ask(&mut acts, "ping", json!({ "channel": "ahp-root://" })).await;
        assert!(returns.looks().is_empty(), "{version}");
        world.events.pieces = made;
        assert!(has_states(&answer(&mut world, &mut returns, asked).await), "{version}");
    }
}

#[tokio::test]
async fn two_large_states_are_sent_in_order_also_after_the_input_has_ended() {
    let (mut world, _acts) = with_a_large_chat().await;
    let mut opens = world.client("opens", "1.0.0").await;
    let chat = default_chat_of(SESSION);
    let asked = [
        opens.asks("subscribe", json!({ "channel": chat })),
        opens.asks("subscribe", json!({ "channel": chat })),
    ];
    opens.lines = None;
    let mut answered = Vec::new();
    world
        .until(|sidecar| {
            answered.extend(opens.answers());
            sidecar.links.iter().count() == 1
        })
        .await;
    answered.extend(opens.answers());
    assert_eq!(answered, asked);
}

/// A chat of several megabytes is not held whole for a client that does not read it.
#[tokio::test]
async fn what_is_large_is_written_no_further_than_its_client_reads() {
    let (mut world, mut acts) = with_a_large_chat().await;
    let chat = default_chat_of(SESSION);
    for id in ["second", "third"] {
        acts.dispatches(&chat, turn(id, "/stream 3 400000"));
        world.until(|_| super::actions(&acts.looks()).contains(&"chat/turnComplete")).await;
    }
    let mut stuck = world.open(true);
    let params = json!({ "clientId": "stuck", "protocolVersions": ["1.0.0"] });
    stuck.asks("initialize", params);
    world.until(|_| !stuck.looks().is_empty()).await;
    let asked = stuck.asks("subscribe", json!({ "channel": chat }));
    let unread = |sidecar: &Sidecar| sidecar.links.iter().map(|link| link.outbox.unread()).max();
    let mut most = 0;
    let mut messages = Vec::new();
    world
        .until(|sidecar| {
            most = most.max(unread(sidecar).unwrap_or_default());
            // It reads what it was given, as slowly as can be.
            messages.extend(stuck.looks());
            let all = sidecar.links.iter().map(|link| link.outbox.unread()).sum();
            stuck.receipts.as_ref().unwrap().send(WriteOutcome::Bytes(all));
            messages.iter().any(|message| message["id"] == asked)
        })
        .await;
    assert!(messages.iter().any(|message| message.to_string().len() > 3_500_000), "all of it came");
    assert!(most < 2 << 20, "{most} bytes were held");
}

/// A line that cannot be written to its end is not followed by anything: the client comes back.
#[tokio::test]
async fn a_large_state_that_fails_is_an_error_or_the_end_of_the_connection() {
    for has_begun in [false, true] {
        let (mut world, _acts) = with_a_large_chat().await;
        let mut opens = world.client("opens", "1.0.0").await;
        let mut pieces = hold_back(&mut world);
        let asked = opens.asks("subscribe", json!({ "channel": default_chat_of(SESSION) }));
        world.until(|sidecar| sidecar.links.iter().any(|link| link.writing.is_some())).await;
        let connection = opens.id;
        if has_begun {
            let first = pieces.recv().await.expect("a piece");
            world.sidecar.receive_piece(first);
        }
        let failed = Piece { connection, text: Bytes::new(), last: Some(PieceEnd::Failed) };
        world.sidecar.receive_piece(failed);
        world.sidecar.settle();
        let is_there = world.sidecar.links.get_mut(connection).is_some();
        assert_eq!(is_there, !has_begun);
        let messages = opens.looks();
        let is_error = messages.iter().any(|message| message["id"] == asked && message["error"].is_object());
        assert_eq!(is_error, !has_begun, "{messages:?}");
    }
}
