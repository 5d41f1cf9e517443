//! A kind of channels that only tests have goes everywhere that sessions and chats go.
//!
//! Owns: what clients, the store and the next host see of it.
//! Never: asks the kind itself.

use super::*;

const ONE: &str = "ahp-sample:/1";
const OTHER: &str = "ahp-sample:/2";

fn set(id: &str) -> Value {
    let entry = json!({ "id": "e", "text": "said" });
    let origin = json!({ "session": SESSION, "turnId": "t" });
    let annotation =
        json!({ "id": id, "origin": origin, "resource": "file:///x", "resolved": false, "entries": [entry] });
    json!({ "type": "annotations/set", "annotation": annotation })
}

/// The ids of the annotations in a snapshot that answers a `subscribe`.
fn ids(answer: &Value) -> Vec<&str> {
    let annotations = answer["result"]["snapshot"]["state"]["annotations"].as_array();
    let annotations = annotations.unwrap_or_else(|| panic!("no sample's state: {answer}"));
    annotations.iter().filter_map(|annotation| annotation["id"].as_str()).collect()
}

/// Returns the actions that a client received, each as its channel, and its name or the reason of
/// its rejection.
fn received(client: &mut Client) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let messages = client.looks().into_iter().filter(|message| message["method"] == "action");
    messages
        .map(|message| {
            let envelope = &message["params"];
            let what = match &envelope["rejectionReason"] {
                Value::Null => &envelope["action"]["type"],
                reason => reason,
            };
            (text(&envelope["channel"]), text(what))
        })
        .collect()
}

#[tokio::test]
async fn a_kind_of_channels_needs_a_module_and_a_line() {
    let folder = folder();
    let mut world = World::on(folder.path()).await;
    let mut a = world.client("a", "1.0.0").await;
    let mut b = world.client("b", "0.9.0").await;
    for client in [&mut a, &mut b] {
        for channel in [ONE, OTHER] {
            let answer = world.ask(client, "subscribe", json!({ "channel": channel })).await;
            assert_eq!(ids(&answer), [""; 0], "{answer}");
        }
    }
    // An action is sent to all subscribers, and one that changes nothing to its sender.
    a.dispatches(ONE, set("x"));
    world.settle().await;
    let set_on = |channel: &str| (channel.to_owned(), "annotations/set".to_owned());
    assert_eq!(received(&mut a), [set_on(ONE)]);
    assert_eq!(received(&mut b), [set_on(ONE)]);
    a.dispatches(ONE, set("x"));
    b.dispatches(OTHER, set("y"));
    world.settle().await;
    assert_eq!(received(&mut a), [set_on(ONE), set_on(OTHER)]);
    assert_eq!(received(&mut b), [set_on(OTHER)]);
    // What is not for clients here is refused, with words of the kind.
    let refusals = [
        (
            turn("t", "/say x"),
            "`chat/turnStarted` belongs on a chat's channel, and this is a sample's channel",
        ),
        (json!({ "type": "annotations/removed" }), "`annotations/removed`: missing field `annotationId`"),
        (json!({ "type": "annotations/updated" }), "a sample is not updated"),
    ];
    for (action, why) in refusals {
        a.dispatches(ONE, action);
        world.settle().await;
        assert_eq!(received(&mut a), [(ONE.to_owned(), why.to_owned())]);
    }
    world.ask(&mut a, "createSession", json!({ "channel": SESSION })).await;
    a.dispatches(SESSION, set("z"));
    world.settle().await;
    let elsewhere = "`annotations/set` belongs on the channel of a session's annotations, and this is a session's channel";
    assert_eq!(received(&mut a), [(SESSION.to_owned(), elsewhere.to_owned())]);
    // A client that has unsubscribed receives nothing.
    let seen = world.ask(&mut b, "subscribe", json!({ "channel": ONE })).await;
    assert_eq!(ids(&seen), ["x"]);
    let cursor = seen["result"]["snapshot"]["fromSeq"].as_u64().unwrap();
    b.sends(&[json!({ "method": "unsubscribe", "params": { "channel": ONE } })]);
    world.settle().await;
    a.dispatches(ONE, set("late"));
    world.settle().await;
    assert_eq!(received(&mut a), [set_on(ONE)]);
    assert_eq!(received(&mut b), []);
    drop(world);

    // The next host has its state, and what each of its channels was last sent.
    let mut world = World::on(folder.path()).await;
    for (version, name) in [("1.0.0", "a"), ("0.9.0", "b")] {
        let mut client = world.open(false);
        let params =
            json!({ "clientId": name, "lastSeenServerSeq": cursor, "subscriptions": [ONE, "ahp-sample:/3"] });
        let answer = world.ask(&mut client, "reconnect", params).await;
        let actions = answer["result"]["actions"].as_array().unwrap_or_else(|| panic!("{version}: {answer}"));
        assert_eq!(actions.len(), 1, "{answer}");
        assert_eq!(actions[0]["action"]["annotation"]["id"], "late", "{answer}");
        assert_eq!(answer["result"]["missing"], json!(["ahp-sample:/3"]));
        let answer = world.ask(&mut client, "subscribe", json!({ "channel": ONE })).await;
        assert_eq!(ids(&answer), ["x", "late"]);
        let answer = world.ask(&mut client, "subscribe", json!({ "channel": OTHER })).await;
        assert_eq!(ids(&answer), ["y"]);
    }
}
