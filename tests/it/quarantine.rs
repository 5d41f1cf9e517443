//! A turn that is given up because taking it up ended the host again and again.
//!
//! Owns: a host in memory that has such a session brought back, what is told of it, and what it may
//! still be asked.
//! Never: counts how often that happened; the store does.

use ahp_sidecar::host::effects::{
    ConnectionId, Event, Frame, Input, Output, Record, SavedChat, SavedSession, Timer,
};
use ahp_sidecar::host::LoadedSession;
use ahp_sidecar::wire::action_lines::envelope_line;
use serde_json::{json, Value};

use crate::support::core::{opened, said, Core, CHAT, SESSION};

const CLIENT: ConnectionId = ConnectionId(1);

fn host() -> Core {
    let mut host = Core::new();
    host.feed_and_save(Input::Opened { connection: CLIENT, default_directory: None });
    let hello = json!({ "clientId": "me", "protocolVersions": ["1.0.0"] });
    say(&mut host, json!({ "id": 1, "method": "initialize", "params": hello }));
    host
}

fn say(host: &mut Core, message: Value) -> Vec<Output> {
    host.feed_and_save(said(CLIENT, message))
}

fn dispatch(host: &mut Core, channel: &str, action: Value) -> Vec<Output> {
    let params = json!({ "channel": channel, "clientSeq": 1, "action": action });
    say(host, json!({ "method": "dispatchAction", "params": params }))
}

/// A channel's state, asked for.
fn state(host: &mut Core, channel: &str) -> Value {
    let outputs = say(host, json!({ "id": 2, "method": "subscribe", "params": { "channel": channel } }));
    let Some(Output::Frame(_, Frame::Result { result, .. })) = outputs.first() else { panic!("{outputs:?}") };
    let mut result: Value = serde_json::from_slice(result).unwrap();
    result["snapshot"]["state"].take()
}

/// Builds the stored form of a session with a running turn.
fn saved() -> SavedSession {
    let mut host = host();
    let mut outputs =
        say(&mut host, json!({ "id": 2, "method": "createSession", "params": { "channel": SESSION } }));
    let chat = opened(&outputs);
    outputs.extend(host.feed_and_save(Input::Agent(chat, Event::Opened)));
    let message = json!({ "text": "/hang", "origin": { "kind": "user" } });
    outputs.extend(dispatch(
        &mut host,
        CHAT,
        json!({ "type": "chat/turnStarted", "turnId": "t1", "message": message }),
    ));
    let (mut session, mut chat) = (None, None);
    for output in outputs {
        match output {
            Output::Record(Record::Session(row)) => session = Some(row),
            Output::Record(Record::Chat(row)) => chat = Some(row),
            _ => {}
        }
    }
    let chat = chat.filter(|row| row.running).expect("a turn runs");
    let chats =
        vec![SavedChat { row: chat, turns: Vec::new(), actions: Vec::new(), sifted: false, progress: None }];
    SavedSession { row: session.unwrap(), chats, deaths: 3 }
}

/// The action of this type among what is to be kept.
fn sequenced(outputs: &[Output], kind: &str) -> Vec<Value> {
    let actions = outputs.iter().filter_map(|output| match output {
        Output::Record(Record::Action(_, line)) => Some(serde_json::from_slice::<Value>(&line.line).unwrap()),
        _ => None,
    });
    actions.map(|mut line| line["params"]["action"].take()).filter(|action| action["type"] == kind).collect()
}

#[test]
fn quarantined_turn_ends_once_with_a_reason_and_the_chat_continues() {
    let mut host = host();
    let outputs =
        host.feed_and_save(Input::Restored(Box::new(LoadedSession::of(saved(), &Default::default()))));
    let [ending] = &sequenced(&outputs, "chat/error")[..] else { panic!("{outputs:?}") };
    assert_eq!((&ending["turnId"], &ending["part"]["resumable"]), (&"t1".into(), &false.into()));
    let why = ending["part"]["error"]["message"].as_str().unwrap();
    assert!(why.contains("3 times"), "{why}");

    // A state says what the action said.
    let chat = state(&mut host, CHAT);
    assert!(chat["activeTurn"].is_null(), "{chat}");
    assert_eq!((&chat["turns"][0]["id"], &chat["turns"][0]["state"]), (&"t1".into(), &"error".into()));
    let parts = chat["turns"][0]["responseParts"].as_array().unwrap();
    assert_eq!(parts.last().unwrap()["error"], ending["part"]["error"]);
    let session = state(&mut host, SESSION);
    assert_eq!((&session["lifecycle"], &session["status"]), (&"ready".into(), &chat["status"]));

    let outputs = dispatch(&mut host, CHAT, json!({ "type": "chat/turnResume", "turnId": "t1" }));
    let [Output::Frame(_, Frame::Answer(line))] = &outputs[..] else { panic!("{outputs:?}") };
    let line: Value = serde_json::from_slice(line).unwrap();
    assert!(line["params"]["rejectionReason"].as_str().unwrap().contains("not resumable"), "{line}");
    let message = json!({ "text": "/say on", "origin": { "kind": "user" } });
    let action = json!({ "type": "chat/turnStarted", "turnId": "t2", "message": message });
    let outputs = dispatch(&mut host, CHAT, action);
    assert_eq!(sequenced(&outputs, "chat/turnStarted").len(), 1, "{outputs:?}");
}

#[test]
fn quarantined_session_can_be_disposed_of() {
    let mut host = host();
    host.feed_and_save(Input::Restored(Box::new(LoadedSession::of(saved(), &Default::default()))));
    let outputs =
        say(&mut host, json!({ "id": 3, "method": "disposeSession", "params": { "channel": SESSION } }));
    assert!(
        outputs.iter().any(|output| matches!(output, Output::Record(Record::SessionRemoved(_)))),
        "{outputs:?}"
    );
}

#[test]
fn row_of_a_turn_that_has_ended_is_saved_again() {
    let mut saved = saved();
    let row = &saved.chats[0].row;
    let cancelled = br#"{"duration":1,"turnId":"t1","type":"chat/turnCancelled"}"#;
    let line = envelope_line(CHAT, cancelled, row.as_of + 1, None, None);
    saved.chats[0].actions.push(line);
    saved.deaths = 0;
    let key = saved.row.key;
    let mut host = host();
    let outputs =
        host.feed_and_save(Input::Restored(Box::new(LoadedSession::of(saved, &Default::default()))));
    assert!(sequenced(&outputs, "chat/error").is_empty(), "{outputs:?}");
    let is_idle = |output: &Output| matches!(output, Output::Record(Record::Chat(row)) if !row.running);
    assert!(outputs.iter().any(is_idle), "{outputs:?}");
    let survives =
        |output: &Output| matches!(output, Output::Timer(Timer::Recovered(session), _) if *session == key);
    assert!(outputs.iter().any(survives), "{outputs:?}");
    assert_eq!(state(&mut host, SESSION)["status"], state(&mut host, CHAT)["status"]);
}
