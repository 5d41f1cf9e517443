//! Clients of older versions beside those of the newest one.
//!
//! Owns: what they see of chats that move, of channels with several names and of resumed turns.
//! Never: repeats what the transcripts of each version show.

use serde_json::{json, Value};

use super::{turn, Client, World, SESSION};
use crate::wire::annotations::annotations_uri;
use crate::wire::uris::default_chat_of;

const OTHER: &str = "ahp-session:/other";
const SECOND: &str = "ahp-chat:/second";

/// Returns the ids of the completed turns in a snapshot that answers a `subscribe`.
fn turns(answer: &Value) -> Vec<&str> {
    let turns = answer["result"]["snapshot"]["state"]["turns"].as_array();
    let turns = turns.unwrap_or_else(|| panic!("no turns: {answer}"));
    turns.iter().filter_map(|turn| turn["id"].as_str()).collect()
}

/// Returns the actions that a client received, each without its channel and numbers.
fn actions_of(client: &mut Client) -> Vec<Value> {
    let messages = client.looks().into_iter().filter(|message| message["method"] == "action");
    messages.map(|mut message| message["params"]["action"].take()).collect()
}

async fn subscribe(world: &mut World, client: &mut Client, channel: &str) -> Value {
    let answer = world.ask(client, "subscribe", json!({ "channel": channel })).await;
    assert_eq!(answer["error"], Value::Null, "{channel}");
    answer
}

/// Moves the first chat of a session, which has the turn `first`, to another session. Returns the
/// client that did so.
async fn first_chat_moved(world: &mut World, before: &mut [&mut Client]) -> Client {
    let mut newest = world.client("newest", "1.0.0").await;
    for session in [SESSION, OTHER] {
        world.ask(&mut newest, "createSession", json!({ "channel": session })).await;
    }
    let chat = default_chat_of(SESSION);
    world.ask(&mut newest, "createChat", json!({ "channel": SESSION, "chat": SECOND })).await;
    newest.dispatches(&chat, turn("first", "/say one"));
    world.settle().await;
    for client in before {
        assert_eq!(turns(&subscribe(world, client, SESSION).await), ["first"]);
    }
    newest.dispatches(SESSION, json!({ "type": "session/defaultChatChanged", "defaultChat": SECOND }));
    world.settle().await;
    let destination = json!({ "kind": "session", "session": OTHER });
    let moved =
        world.ask(&mut newest, "moveChat", json!({ "channel": chat, "destination": destination })).await;
    assert_eq!(moved["error"], Value::Null, "{moved}");
    newest
}

#[tokio::test]
async fn session_is_no_conversation_before_0_4_0_while_its_first_chat_is_elsewhere() {
    let mut world = World::in_memory();
    let mut old = world.client("old", "0.3.0").await;
    let mut newest = first_chat_moved(&mut world, &mut [&mut old]).await;
    let chat = default_chat_of(SESSION);
    let mut late = world.client("late", "0.3.0").await;
    assert_eq!(turns(&subscribe(&mut world, &mut late, SESSION).await), [""; 0]);
    let fetched = world.ask(&mut late, "fetchTurns", json!({ "channel": SESSION })).await;
    assert_eq!(fetched["error"]["code"], -32001, "{fetched}");
    let mut stranger = world.client("stranger", "0.3.0").await;
    let message = json!({ "text": "/say two", "origin": { "kind": "user" } });
    let started =
        json!({ "type": "session/turnStarted", "session": SESSION, "turnId": "second", "message": message });
    for client in [&mut late, &mut stranger] {
        client.dispatches(SESSION, started.clone());
        world.settle().await;
        let echo = client.looks().into_iter().find(|message| message["method"] == "action").expect("an echo");
        assert!(echo["params"]["rejectionReason"].is_string(), "{echo}");
        assert_eq!(echo["params"]["action"], started);
    }
    for client in [&mut old, &mut late] {
        actions_of(client);
    }
    newest.dispatches(&chat, turn("third", "/say three"));
    world.settle().await;
    for client in [&mut old, &mut late] {
        assert_eq!(actions_of(client), [Value::Null; 0]);
    }
    assert_eq!(turns(&subscribe(&mut world, &mut newest, &chat).await), ["first", "third"]);
    // Once it is back, the session is a conversation again.
    let destination = json!({ "kind": "session", "session": SESSION });
    world.ask(&mut newest, "moveChat", json!({ "channel": chat, "destination": destination })).await;
    newest.dispatches(&chat, turn("fourth", "/say four"));
    world.settle().await;
    let types: Vec<_> = actions_of(&mut late).iter().map(|action| action["type"].clone()).collect();
    assert!(types.contains(&json!("session/turnStarted")), "{types:?}");
    assert_eq!(turns(&subscribe(&mut world, &mut late, SESSION).await), ["first", "third", "fourth"]);
}

#[tokio::test]
async fn draft_of_a_chat_that_has_moved_selects_nothing_in_its_former_session() {
    let mut world = World::in_memory();
    let newest = first_chat_moved(&mut world, &mut []).await;
    let chat = default_chat_of(SESSION);
    let mut old = world.client("old", "0.4.0").await;
    for channel in [SESSION, &chat] {
        subscribe(&mut world, &mut old, channel).await;
    }
    let draft = json!({ "text": "", "origin": { "kind": "user" }, "model": { "id": "fast" } });
    newest.dispatches(&chat, json!({ "type": "chat/draftChanged", "draft": draft }));
    world.settle().await;
    assert_eq!(actions_of(&mut old), [Value::Null; 0]);
    let state = subscribe(&mut world, &mut old, SESSION).await;
    assert_eq!(state["result"]["snapshot"]["state"]["summary"]["model"], Value::Null, "{state}");
}

#[tokio::test]
async fn session_whose_chat_is_in_use_elsewhere_names_that_chat_when_it_cannot_be_created() {
    let mut world = World::in_memory();
    let mut newest = first_chat_moved(&mut world, &mut []).await;
    world.ask(&mut newest, "disposeSession", json!({ "channel": SESSION })).await;
    let created = world.ask(&mut newest, "createSession", json!({ "channel": SESSION })).await;
    assert_eq!(created["error"]["code"], -32003, "{created}");
    let message = format!("`{}` is already in use", default_chat_of(SESSION));
    assert_eq!(created["error"]["message"], message);
}

#[tokio::test]
async fn channel_subscribed_to_by_another_name_has_its_state_and_actions_in_every_version() {
    let mut world = World::in_memory();
    let mut newest = world.client("newest", "1.0.0").await;
    world.ask(&mut newest, "createSession", json!({ "channel": SESSION })).await;
    let (alias, chat) = ("script:/s", default_chat_of(SESSION));
    subscribe(&mut world, &mut newest, &chat).await;
    newest.dispatches(&chat, turn("t", "/terminal words"));
    world.settle().await;
    let received = Value::from(newest.looks()).to_string();
    let terminal = received.split('"').find(|word| word.starts_with("ahp-terminal:")).expect("a terminal");
    for version in ["0.9.0", "0.5.0", "0.4.0"] {
        let channels = [
            (alias.to_owned(), SESSION.to_owned()),
            (default_chat_of(alias), chat.clone()),
            (annotations_uri(alias), annotations_uri(SESSION)),
            (format!("{alias}/changeset/session"), format!("{SESSION}/changeset/session")),
            (terminal.replace(":/", ":///"), terminal.to_owned()),
        ];
        let mut one_by_one = world.client(&format!("{version} one by one"), version).await;
        for (alias, name) in &channels {
            let answer = subscribe(&mut world, &mut one_by_one, alias).await;
            assert_eq!(answer["result"]["snapshot"]["resource"], **name, "{version}: {answer}");
        }
        let mut at_once = world.open(false);
        let aliases: Vec<&String> = channels.iter().map(|(alias, _)| alias).collect();
        let params =
            json!({ "clientId": version, "protocolVersions": [version], "initialSubscriptions": aliases });
        let welcome = world.ask(&mut at_once, "initialize", params).await;
        let snapshots = welcome["result"]["snapshots"].as_array().unwrap();
        let resources: Vec<_> = snapshots.iter().map(|snapshot| &snapshot["resource"]).collect();
        let names: Vec<_> = channels.iter().map(|(_, name)| name).collect();
        assert_eq!(resources, names, "{version}: {welcome}");
        for client in [&mut one_by_one, &mut at_once] {
            client.looks();
            let renamed = json!({ "type": "session/titleChanged", "title": format!("for {version}") });
            newest.dispatches(SESSION, renamed.clone());
            world.settle().await;
            assert_eq!(actions_of(client), [renamed], "{version}");
            newest.dispatches(SESSION, json!({ "type": "session/titleChanged", "title": "" }));
            world.settle().await;
            client.looks();
            // The subscription ends under the name under which it began.
            client.sends(&[json!({ "method": "unsubscribe", "params": { "channel": alias } })]);
            newest.dispatches(SESSION, json!({ "type": "session/titleChanged", "title": version }));
            world.settle().await;
            assert_eq!(actions_of(client), [Value::Null; 0], "{version}");
        }
    }
}

#[tokio::test]
async fn session_subscribed_to_by_another_name_has_its_conversation_before_0_4_0() {
    let mut world = World::in_memory();
    let mut newest = world.client("newest", "1.0.0").await;
    world.ask(&mut newest, "createSession", json!({ "channel": SESSION })).await;
    for version in ["0.3.0", "0.2.0"] {
        let mut old = world.client(version, version).await;
        let answer = subscribe(&mut world, &mut old, "script:/s").await;
        assert_eq!(answer["result"]["snapshot"]["resource"], SESSION, "{version}: {answer}");
        newest.dispatches(&default_chat_of(SESSION), turn(version, "/say one"));
        world.settle().await;
        let types: Vec<_> = actions_of(&mut old).iter().map(|action| action["type"].clone()).collect();
        assert!(types.contains(&json!("session/turnComplete")), "{version}: {types:?}");
        old.sends(&[json!({ "method": "unsubscribe", "params": { "channel": "script:/s" } })]);
        newest.dispatches(&default_chat_of(SESSION), turn(&format!("{version}, again"), "/say two"));
        world.settle().await;
        assert_eq!(actions_of(&mut old), [Value::Null; 0], "{version}");
    }
}

/// Makes a chat with the turns `t0` to `t3`, and `t4`, which can be resumed.
async fn chat_to_resume(world: &mut World) -> Client {
    let mut newest = world.client("newest", "1.0.0").await;
    world.ask(&mut newest, "createSession", json!({ "channel": SESSION })).await;
    for number in 0..4 {
        newest.dispatches(&default_chat_of(SESSION), turn(&format!("t{number}"), "/say x"));
        world.settle().await;
    }
    fail(world, &newest, "t4").await;
    newest
}

async fn fail(world: &mut World, newest: &Client, id: &str) {
    newest.dispatches(&default_chat_of(SESSION), turn(id, "/say One\n/error-resumable no\n/say Two"));
    world.settle().await;
}

async fn resume(world: &mut World, newest: &Client, id: &str) {
    newest.dispatches(&default_chat_of(SESSION), json!({ "type": "chat/turnResume", "turnId": id }));
    world.settle().await;
}

/// A client's mirror of the chat: the turns that it has after each of its messages.
struct Mirror {
    client: Client,
    turns: Vec<String>,
}

impl Mirror {
    async fn of(world: &mut World, mut client: Client, window: usize) -> Self {
        let params = json!({ "channel": default_chat_of(SESSION), "view": { "turns": window } });
        let answer = world.ask(&mut client, "subscribe", params).await;
        let turns = turns(&answer).into_iter().map(str::to_owned).collect();
        Self { client, turns }
    }

    /// Applies the actions received, as the reducer of the official crates does.
    fn update(&mut self) -> &[String] {
        for action in actions_of(&mut self.client) {
            let id = action["turnId"].as_str().unwrap_or_default();
            match action["type"].as_str() {
                Some("chat/turnsLoaded") => {
                    let loaded = action["turns"].as_array().unwrap();
                    let mut all: Vec<_> =
                        loaded.iter().map(|turn| turn["id"].as_str().unwrap().to_owned()).collect();
                    all.retain(|turn| !self.turns.contains(turn));
                    all.append(&mut self.turns);
                    self.turns = all;
                }
                Some("chat/truncated") if id.is_empty() => self.turns.clear(),
                Some("chat/truncated") => {
                    let kept = self.turns.iter().position(|turn| turn == id);
                    self.turns.truncate(kept.map_or(usize::MAX, |at| at + 1));
                }
                Some("chat/turnComplete" | "chat/error") => self.turns.push(id.to_owned()),
                _ => {}
            }
        }
        &self.turns
    }
}

#[tokio::test]
async fn resumed_turn_replaces_itself_in_every_window_of_versions_that_cannot_resume() {
    for windows in [&[1][..], &[1, 2], &[2, 1]] {
        let mut world = World::in_memory();
        let newest = chat_to_resume(&mut world).await;
        let mut mirrors = Vec::new();
        for (number, window) in windows.iter().enumerate() {
            let client = world.client(&number.to_string(), "0.8.0").await;
            mirrors.push(Mirror::of(&mut world, client, *window).await);
        }
        resume(&mut world, &newest, "t4").await;
        for mirror in &mut mirrors {
            let turns = mirror.update();
            assert!(
                turns.ends_with(&["t3".to_owned(), "t4".to_owned()]) && turns.len() == 2,
                "{windows:?}: {turns:?}"
            );
        }
    }
}

#[tokio::test]
async fn client_whose_version_can_resume_gets_no_further_turns_for_a_resume() {
    let mut world = World::in_memory();
    let newest = chat_to_resume(&mut world).await;
    let client = world.client("0.9.0", "0.9.0").await;
    let mut mirror = Mirror::of(&mut world, client, 1).await;
    resume(&mut world, &newest, "t4").await;
    let actions = actions_of(&mut mirror.client);
    assert!(actions.iter().all(|action| action["type"] != "chat/turnsLoaded"), "{actions:?}");
}

#[tokio::test]
async fn chat_left_out_of_a_reconnect_is_translated_from_its_next_snapshot() {
    let mut world = World::in_memory();
    let newest = chat_to_resume(&mut world).await;
    let old = world.client("old", "0.8.0").await;
    let Mirror { client: mut old, .. } = Mirror::of(&mut world, old, 3).await;
    let params = json!({ "clientId": "old", "lastSeenServerSeq": 0, "subscriptions": ["ahp-root://"] });
    let answer = world.ask(&mut old, "reconnect", params).await;
    assert_eq!(answer["error"], Value::Null, "{answer}");
    fail(&mut world, &newest, "t5").await;
    let mut mirror = Mirror::of(&mut world, old, 2).await;
    resume(&mut world, &newest, "t5").await;
    assert_eq!(mirror.update(), ["t4", "t5"]);
}

#[tokio::test]
async fn chat_that_has_the_uri_of_a_former_one_is_translated_from_its_own_snapshot() {
    let mut world = World::in_memory();
    let mut newest = chat_to_resume(&mut world).await;
    let old = world.client("old", "0.8.0").await;
    let Mirror { client: old, .. } = Mirror::of(&mut world, old, 3).await;
    world.ask(&mut newest, "disposeSession", json!({ "channel": SESSION })).await;
    world.ask(&mut newest, "createSession", json!({ "channel": SESSION })).await;
    newest.dispatches(&default_chat_of(SESSION), turn("u0", "/say x"));
    world.settle().await;
    fail(&mut world, &newest, "u1").await;
    let mut mirror = Mirror::of(&mut world, old, 1).await;
    resume(&mut world, &newest, "u1").await;
    assert_eq!(mirror.update(), ["u0", "u1"]);
}
