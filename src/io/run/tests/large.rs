//! A large state, which is made JSON text while others are heard.
//!
//! Owns: that nothing overtakes it on its connection, and that nobody else waits for it.
//! Never: measures how long anything takes.

use serde_json::json;
use tokio::sync::mpsc;

use super::{turn, Client, World, SESSION};
use crate::io::states::Made;
use crate::wire::uris::default_chat_of;

/// From now on what is made comes only when it is let.
fn hold_back(world: &mut World) -> mpsc::UnboundedReceiver<Made> {
    std::mem::replace(&mut world.events.states, mpsc::unbounded_channel().1)
}

/// A world with a chat in which much was said, and who said it.
async fn with_a_large_chat() -> (World, Client) {
    let mut world = World::in_memory();
    let mut acts = world.client("acts", "1.0.0").await;
    let chat = default_chat_of(SESSION);
    world.ask(&mut acts, "createSession", json!({ "channel": SESSION })).await;
    world.ask(&mut acts, "subscribe", json!({ "channel": chat })).await;
    acts.dispatches(&chat, turn("large", "/stream 3 500000"));
    world.until(|_| super::actions(&acts.looks()).contains(&"chat/turnComplete")).await;
    (world, acts)
}

#[tokio::test]
async fn nothing_overtakes_a_large_state_and_nobody_else_waits_for_it() {
    for version in ["1.0.0", "0.9.0"] {
        let (mut world, mut acts) = with_a_large_chat().await;
        let mut opens = world.client("opens", version).await;
        let made = hold_back(&mut world);
        let asked = opens.asks("subscribe", json!({ "channel": default_chat_of(SESSION) }));
        world.until(|sidecar| sidecar.links.iter().any(|link| link.behind.is_some())).await;
        opens.looks();

        let pinged = opens.asks("ping", json!({ "channel": "ahp-root://" }));
        let answer = world.ask(&mut acts, "ping", json!({ "channel": "ahp-root://" })).await;
        assert!(answer["error"].is_null(), "{answer}");
        acts.dispatches(&default_chat_of(SESSION), turn("small", "/say more"));
        world.until(|_| super::actions(&acts.looks()).contains(&"chat/turnComplete")).await;
        assert!(opens.looks().is_empty(), "{version}: something came before the state");

        world.events.states = made;
        let mut told = Vec::new();
        world
            .until(|_| {
                told.extend(opens.looks());
                super::actions(&told).iter().any(|name| name.ends_with("/turnComplete"))
            })
            .await;
        let place = |id: u64| told.iter().position(|told| told["id"] == id).expect("an answer");
        let first_action = told.iter().position(|told| told["method"] == "action").expect("an action");
        assert!(place(asked) < first_action && place(asked) < place(pinged), "{version}");
        let state = &told[place(asked)]["result"]["snapshot"];
        let mut actions = told.iter().filter(|told| told["method"] == "action");
        let is_behind =
            |told: &serde_json::Value| told["params"]["serverSeq"].as_u64() > state["fromSeq"].as_u64();
        assert!(state["state"].is_object() && actions.all(is_behind), "{version}");
    }
}

/// The clients of such a version share what is known of the states: told again, later, an action would change them twice.
#[tokio::test]
async fn where_actions_are_made_of_states_a_large_state_is_told_in_its_place() {
    for (version, channel) in [("0.8.0", default_chat_of(SESSION)), ("0.3.0", SESSION.to_owned())] {
        let (mut world, _acts) = with_a_large_chat().await;
        let mut opens = world.client("opens", version).await;
        let _made = hold_back(&mut world);
        let asked = opens.asks("subscribe", json!({ "channel": channel }));
        world.settle().await;
        assert!(opens.answers().contains(&asked), "{version}");
    }
}

#[tokio::test]
async fn two_large_states_come_one_after_the_other_and_to_a_client_that_has_said_all() {
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
