//! Actions that a loss of power must not undo.
//!
//! Owns: which actions are written through to the disk before any client receives them.
//! Never: looks at a disk; that a commit which is to be synced is synced is shown where the store
//! is tested.

use super::*;
use crate::host::effects::{Output, Record};

/// The names of the actions that were sequenced in one step, and whether the step is to be synced.
struct Sequenced {
    actions: Vec<String>,
    synced: bool,
}

impl Sequenced {
    fn of(outputs: &[Output]) -> Self {
        let records = || {
            outputs.iter().filter_map(|output| match output {
                Output::Record(record) => Some(record),
                _ => None,
            })
        };
        let name = |record: &Record| match record {
            Record::Action(_, action) => {
                let line: Value = serde_json::from_slice(&action.line).unwrap();
                Some(line["params"]["action"]["type"].as_str().unwrap().to_owned())
            }
            _ => None,
        };
        Self {
            actions: records().filter_map(name).collect(),
            synced: records().any(|record| *record == Record::Sync),
        }
    }
}

/// The steps up to the one in which this was sequenced.
async fn steps_until(world: &mut World, action: &str) -> Vec<Sequenced> {
    let mut steps: Vec<Sequenced> = Vec::new();
    let run = async {
        while !steps.iter().any(|step| step.actions.iter().any(|name| name == action)) {
            while let Some(event) =
                world.events.now(Interests { reports: true, ..Interests::default() }).await
            {
                assert_eq!(world.sidecar.take_in(event).unwrap(), None, "the loop goes on");
            }
            world.sidecar.receive_from_clients(&mut world.events).await.unwrap();
            steps.push(Sequenced::of(&world.sidecar.outputs));
            world.sidecar.settle();
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HUNG, run).await.expect("it does not come");
    steps
}

#[tokio::test]
async fn decision_and_end_of_a_turn_are_synced_before_they_are_sent() {
    let mut world = World::in_memory();
    let mut client = world.client("c", "1.0.0").await;
    world.ask(&mut client, "createSession", json!({ "channel": SESSION })).await;
    let chat = default_chat_of(SESSION);
    world.ask(&mut client, "subscribe", json!({ "channel": chat })).await;
    let mut steps = Vec::new();

    client.dispatches(
        &chat,
        turn("t1", "/ask shell\n/question [{\"kind\":\"text\",\"id\":\"q\",\"message\":\"?\"}]"),
    );
    steps.extend(steps_until(&mut world, "chat/toolCallReady").await);
    world.settle().await;
    let messages = client.looks();
    let ready =
        messages.iter().find(|message| message["params"]["action"]["type"] == "chat/toolCallReady").unwrap();
    let call = &ready["params"]["action"]["toolCallId"];
    client.dispatches(
        &chat,
        json!({ "type": "chat/toolCallConfirmed", "turnId": "t1", "toolCallId": call,
        "approved": true, "confirmed": "user-action" }),
    );
    steps.extend(steps_until(&mut world, "chat/inputRequested").await);
    world.settle().await;
    let messages = client.looks();
    let asks =
        messages.iter().find(|message| message["params"]["action"]["type"] == "chat/inputRequested").unwrap();
    let request = &asks["params"]["action"]["request"]["id"];
    client.dispatches(
        &chat,
        json!({ "type": "chat/inputCompleted", "requestId": request, "response": "decline" }),
    );
    steps.extend(steps_until(&mut world, "chat/turnComplete").await);

    client.dispatches(&chat, turn("t2", "/error no"));
    steps.extend(steps_until(&mut world, "chat/error").await);

    client.dispatches(&chat, turn("t3", "/hang"));
    steps.extend(steps_until(&mut world, "chat/turnStarted").await);
    client.dispatches(&chat, json!({ "type": "chat/turnCancelled", "turnId": "t3" }));
    steps.extend(steps_until(&mut world, "chat/turnCancelled").await);

    for action in [
        "chat/toolCallConfirmed",
        "chat/inputCompleted",
        "chat/turnComplete",
        "chat/error",
        "chat/turnCancelled",
    ] {
        let step = steps.iter().find(|step| step.actions.iter().any(|name| name == action));
        assert!(step.unwrap_or_else(|| panic!("no {action}")).synced, "{action}");
    }
    let streams = steps.iter().find(|step| step.actions.iter().any(|name| name == "chat/toolCallReady"));
    assert!(!streams.unwrap().synced, "a sync costs too much for what can be done again");
}
