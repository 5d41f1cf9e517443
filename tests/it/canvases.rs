//! Canvases, where a transcript cannot go: records, debug output, limits.
//!
//! Owns: a host in memory whose agent shows pages, and a client that follows the chat.
//! Never: repeats what transcripts show.

use ahp_sidecar::host::effects::{ChatKey, Command, ConnectionId, Event, Output, PageUrl};
use ahp_sidecar::wire::uris::default_chat_of;
use serde_json::{json, Value};

use crate::support::core::{Core, SESSION};
use crate::support::world::World;

const CLIENT: ConnectionId = ConnectionId(1);

const URL: &str = "http://127.0.0.1/?s3cret";

/// A session whose chat a client follows.
fn world() -> (World, ChatKey) {
    let mut world = World::saving(Core::new());
    world.arrive(CLIENT, "me");
    let chat = world.open_session(CLIENT);
    world.subscribe(CLIENT, &default_chat_of(SESSION));
    (world, chat)
}

fn shows(world: &mut World, chat: ChatKey, name: &str, url: Option<&str>) {
    let url = url.map(|url| PageUrl(url.to_owned()));
    world.agent(chat, Event::Canvas { name: name.to_owned(), url });
}

fn canvases(world: &mut World) -> Vec<String> {
    let state = world.state(CLIENT, &default_chat_of(SESSION));
    let all = state["canvases"].as_array().into_iter().flatten();
    all.map(|it| it["resource"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn url_is_sent_to_subscribers_and_is_in_no_record_or_debug_output() {
    let (mut world, chat) = world();
    world.take();
    shows(&mut world, chat, "a", Some(URL));
    let canvas = canvases(&mut world).remove(0);
    assert_eq!(world.state(CLIENT, &canvas)["url"], URL);
    shows(&mut world, chat, "a", Some("http://127.0.0.1/?another-s3cret"));
    let outputs = world.take();
    let records: Vec<&Output> = outputs.iter().filter(|it| matches!(it, Output::Record(_))).collect();
    assert!(!records.is_empty());
    for record in records {
        // Lines are bytes, which debug output escapes like ASCII text.
        let text = match record {
            Output::Record(ahp_sidecar::host::effects::Record::Action(_, action)) => {
                String::from_utf8_lossy(&action.line).into_owned()
            }
            record => format!("{record:?}"),
        };
        assert!(!text.contains("s3cret"), "{text}");
    }
    let event = Event::Canvas { name: "a".to_owned(), url: Some(PageUrl(URL.to_owned())) };
    assert!(!format!("{event:?}").contains("s3cret"));
}

#[test]
fn url_is_gone_when_its_agent_has_ended() {
    let (mut world, chat) = world();
    shows(&mut world, chat, "a", Some(URL));
    let canvas = canvases(&mut world).remove(0);
    world.subscribe(CLIENT, &canvas);
    world.take();
    world.agent(chat, Event::Died { reason: "it has died".to_owned() });
    let told = world.actions(CLIENT);
    let changed = |it: &&Value| it["type"] == "canvas/stateChanged";
    let changed = told.iter().find(changed).unwrap_or_else(|| panic!("{told:?}"));
    assert_eq!(changed["canvas"]["url"], Value::Null);
    assert_eq!(world.state(CLIENT, &canvas)["url"], Value::Null);
}

#[test]
fn url_is_removed_when_the_host_closes_the_conversation() {
    let (mut world, chat) = world();
    shows(&mut world, chat, "a", Some(URL));
    let canvas = canvases(&mut world).remove(0);
    world.start(CLIENT, &default_chat_of(SESSION), "t1", "hi");
    let truncated = json!({ "type": "chat/truncated" });
    assert_eq!(world.dispatch(CLIENT, &default_chat_of(SESSION), truncated), None);
    assert!(world.commands().any(|command| matches!(command, Command::Close)));
    assert_eq!(world.state(CLIENT, &canvas)["url"], Value::Null);
}

#[test]
fn canvases_beyond_the_limit_are_not_shown() {
    let (mut world, chat) = world();
    (0..17).for_each(|number| shows(&mut world, chat, &format!("{number}"), Some(URL)));
    assert_eq!(canvases(&mut world).len(), 16);
    shows(&mut world, chat, "0", None);
    shows(&mut world, chat, &"x".repeat(1025), Some(URL));
    assert_eq!(canvases(&mut world).len(), 15);
    shows(&mut world, chat, &"x".repeat(1024), Some(URL));
    assert_eq!(canvases(&mut world).len(), 16);
}
