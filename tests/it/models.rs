//! Messages that choose a model, of an agent that has some.
//!
//! Owns: a host in memory whose agent publishes models.
//! Never: runs an agent; what it would be told is what matters.

use ahp_sidecar::backend::{script::Script, Backend};
use ahp_sidecar::host::effects::{
    AgentDescription, Command, ConnectionId, Event, Frame, Input, Output, Record, SavedChat, SavedSession,
};
use ahp_sidecar::host::LoadedSession;
use ahp_sidecar::versions::Edges;
use ahp_sidecar::wire::rpc::Incoming;
use serde_json::{json, Value};

use crate::support::core::{opened, said, Core, CHAT, SESSION};

const CLIENT: ConnectionId = ConnectionId(1);

/// An agent with two models, one of which can be configured.
fn agent() -> AgentDescription {
    let mut agent = Script.describe();
    let effort = json!({ "type": "string", "title": "Effort", "enum": ["low", "high"] });
    let size = json!({ "type": "integer", "title": "Size" });
    let schema = json!({ "type": "object", "properties": { "effort": effort, "size": size } });
    agent.info.models = serde_json::from_value(json!([
        { "id": "large", "provider": "script", "name": "Large", "configSchema": schema },
        { "id": "small", "provider": "script", "name": "Small" },
    ]))
    .unwrap();
    agent
}

fn say(host: &mut Core, method: &str, params: Value, id: Option<u64>) -> Vec<Output> {
    let mut message = json!({ "method": method, "params": params });
    if let Some(id) = id {
        message["id"] = id.into();
    }
    host.feed(said(CLIENT, message))
}

/// Starts a turn whose message selects this model: returns the model that the agent receives, or
/// the reason of the refusal.
fn start(model: Value) -> Result<String, String> {
    let mut host = Core::with(agent());
    host.feed(Input::Opened { connection: CLIENT, default_directory: None });
    say(&mut host, "initialize", json!({ "clientId": "me", "protocolVersions": ["1.0.0"] }), Some(1));
    let created = say(&mut host, "createSession", json!({ "channel": SESSION }), Some(2));
    host.feed(Input::Agent(opened(&created), Event::Opened));
    let message = json!({ "text": "Hello", "origin": { "kind": "user" }, "model": model });
    let action = json!({ "type": "chat/turnStarted", "turnId": "t", "message": message });
    let params = json!({ "channel": CHAT, "clientSeq": 1, "action": action });
    let outputs = say(&mut host, "dispatchAction", params, None);
    let told = outputs.iter().find_map(|output| match output {
        Output::Agent(_, command) => match &**command {
            Command::StartTurn { message, .. } => Some(Ok(message.model.clone().unwrap().id)),
            _ => None,
        },
        Output::Frame(_, Frame::Answer(line)) => {
            let answer: Value = serde_json::from_slice(line).unwrap();
            Some(Err(answer["params"]["rejectionReason"].as_str().unwrap().to_owned()))
        }
        _ => None,
    });
    told.unwrap()
}

#[test]
fn message_may_choose_only_models_of_its_agent() {
    assert_eq!(start(json!({ "id": "small" })), Ok("small".to_owned()));
    assert_eq!(start(json!({ "id": "large", "config": { "effort": "high" } })), Ok("large".to_owned()));
    for (model, why) in [
        (json!({ "id": "huge" }), "the agent `script` has no model `huge`"),
        (
            json!({ "id": "large", "config": { "effort": "most" } }),
            "`model.config.effort` must be one of \"low\", \"high\", not \"most\"",
        ),
        (
            json!({ "id": "small", "config": { "effort": "low" } }),
            "`model.config.effort` is no setting of this model",
        ),
    ] {
        assert_eq!(start(model), Err(why.to_owned()));
    }
}

/// Sends a message as a client of 0.3.0 and returns the answers, line by line.
fn say_as_0_3_0(host: &mut Core, edges: &mut Edges, message: &Value) -> Vec<Value> {
    let (mut fed, mut told) = (Vec::new(), Vec::new());
    edges.up(CLIENT, Incoming::parse(&message.to_string().into()), &mut fed);
    for message in fed {
        for output in host.feed(Input::received(CLIENT, message)) {
            match output {
                Output::Frame(connection, frame) => edges.down(connection, &frame, &mut told),
                Output::Agent(chat, command) if matches!(*command, Command::Open(_)) => {
                    host.feed(Input::Agent(chat, Event::Opened));
                }
                _ => {}
            }
        }
    }
    told.iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[test]
fn model_selected_by_an_older_client_must_be_one_of_the_agent() {
    let (mut host, mut edges) = (Core::with(agent()), Edges::new(vec!["script".to_owned()]));
    host.feed(Input::Opened { connection: CLIENT, default_directory: None });
    let mut ask = |id: u64, method: &str, params: Value| {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        say_as_0_3_0(&mut host, &mut edges, &message)
    };
    ask(
        1,
        "initialize",
        json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["0.3.0"] }),
    );
    let refused = ask(2, "createSession", json!({ "channel": SESSION, "model": { "id": "huge" } }));
    let why = "invalid params: the agent `script` has no model `huge`";
    assert_eq!(refused[0]["error"], json!({ "code": -32602, "message": why }));
    ask(3, "createSession", json!({ "channel": SESSION, "model": { "id": "small" } }));
    let mut select = |seq: u64, model: Value| {
        let action = json!({ "type": "session/modelChanged", "model": model });
        let params = json!({ "channel": SESSION, "clientSeq": seq, "action": action });
        let message = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
        say_as_0_3_0(&mut host, &mut edges, &message).pop()
    };
    let refused = select(1, json!({ "id": "huge" })).unwrap();
    assert_eq!(refused["params"]["rejectionReason"], "the agent `script` has no model `huge`");
    let refused = select(2, json!({ "id": "large", "config": { "size": "big" } })).unwrap();
    assert_eq!(
        refused["params"]["rejectionReason"],
        "`model.config.size` must be of type integer, not string"
    );
    // That version has settings that are text, and no others.
    assert_eq!(select(3, json!({ "id": "large", "config": { "effort": "low", "size": "5" } })), None);
    let mut ask = |id: u64, method: &str, params: Value| {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        say_as_0_3_0(&mut host, &mut edges, &message)
    };
    let shown = ask(4, "subscribe", json!({ "channel": SESSION }));
    let summary = &shown[0]["result"]["snapshot"]["state"]["summary"];
    assert_eq!(summary["model"], json!({ "id": "large", "config": { "effort": "low", "size": "5" } }));
}

/// Applies actions of a newer client while an older one, which had selected `small`, is
/// disconnected. Returns the model and agent that the older one holds after it reconnects, and
/// those in a fresh snapshot.
fn selected_after(actions: &[Value]) -> [(Value, Value); 2] {
    let newer = ConnectionId(2);
    let (mut host, mut edges) = (Core::with(agent()), Edges::new(vec!["script".to_owned()]));
    host.feed(Input::Opened { connection: CLIENT, default_directory: None });
    host.feed(Input::Opened { connection: newer, default_directory: None });
    let ask = |host: &mut Core, edges: &mut Edges, id: u64, method: &str, params: Value| {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        say_as_0_3_0(host, edges, &message).pop().unwrap_or_default()
    };
    let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["0.3.0"] });
    ask(&mut host, &mut edges, 1, "initialize", hello);
    ask(&mut host, &mut edges, 2, "createSession", json!({ "channel": SESSION, "model": { "id": "small" } }));
    let snapshot = ask(&mut host, &mut edges, 3, "subscribe", json!({ "channel": SESSION }));
    let seen = &snapshot["result"]["snapshot"]["fromSeq"];
    let mut held =
        (json!("small"), snapshot["result"]["snapshot"]["state"]["summary"]["agent"]["uri"].clone());
    host.feed(Input::Closed(CLIENT));
    edges.close(CLIENT);
    let hello = json!({ "clientId": "newer", "protocolVersions": ["1.0.0"] });
    host.feed(said(newer, json!({ "id": 1, "method": "initialize", "params": hello })));
    for (seq, action) in actions.iter().enumerate() {
        let params = json!({ "channel": CHAT, "clientSeq": seq, "action": action });
        host.feed(said(newer, json!({ "method": "dispatchAction", "params": params })));
    }
    host.feed(Input::Opened { connection: CLIENT, default_directory: None });
    let back = json!({ "channel": "ahp-root://", "clientId": "me", "lastSeenServerSeq": seen,
        "subscriptions": [SESSION] });
    let replay = ask(&mut host, &mut edges, 4, "reconnect", back);
    assert_eq!(replay["result"]["type"], "replay", "{replay}");
    for missed in replay["result"]["actions"].as_array().unwrap() {
        let action = &missed["action"];
        match action["type"].as_str().unwrap() {
            "session/modelChanged" => held.0 = action["model"]["id"].clone(),
            "session/agentChanged" => held.1 = action["agent"]["uri"].clone(),
            _ => {}
        }
    }
    let snapshot = ask(&mut host, &mut edges, 5, "subscribe", json!({ "channel": SESSION }));
    let summary = &snapshot["result"]["snapshot"]["state"]["summary"];
    [held, (summary["model"]["id"].clone(), summary["agent"]["uri"].clone())]
}

#[test]
fn selection_after_a_replay_equals_the_state() {
    let turn = |id: &str, more: Value| {
        let mut message = json!({ "text": "Hello", "origin": { "kind": "user" } });
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "type": "chat/turnStarted", "turnId": id, "message": message })
    };
    let cancelled = json!({ "type": "chat/turnCancelled", "turnId": "t1", "duration": 0 });
    let elsewhere = turn("t1", json!({ "model": { "id": "large" }, "agent": { "uri": "agent:/a" } }));
    for actions in [
        vec![elsewhere.clone()],
        vec![elsewhere.clone(), cancelled.clone(), turn("t2", json!({}))],
        vec![elsewhere, cancelled, json!({ "type": "chat/truncated" })],
    ] {
        let [held, shown] = selected_after(&actions);
        assert_eq!(held, shown, "after {actions:?}");
        assert_eq!(shown, (json!("small"), Value::Null), "the draft says it");
    }
}

/// Returns the changes of the session list when a session is loaded in which `small` is selected
/// and whose row was saved with this `_meta` in its summary.
fn list_changes_after_load(meta: &Value) -> Vec<Value> {
    let mut host = Core::with(agent());
    host.feed(Input::Opened { connection: CLIENT, default_directory: None });
    say(&mut host, "initialize", json!({ "clientId": "me", "protocolVersions": ["1.0.0"] }), Some(1));
    let mut outputs = say(&mut host, "createSession", json!({ "channel": SESSION }), Some(2));
    outputs.extend(host.feed_and_save(Input::Agent(opened(&outputs), Event::Opened)));
    let message = json!({ "text": "", "origin": { "kind": "user" }, "model": { "id": "small" } });
    let action = json!({ "type": "chat/draftChanged", "draft": message });
    let params = json!({ "channel": CHAT, "clientSeq": 1, "action": action });
    let draft = json!({ "method": "dispatchAction", "params": params });
    outputs.extend(host.feed_and_save(said(CLIENT, draft)));
    let (mut session, mut chat) = (None, None);
    for output in outputs {
        match output {
            Output::Record(Record::Session(row)) => session = Some(row),
            Output::Record(Record::Chat(row)) => chat = Some(row),
            _ => {}
        }
    }
    let (mut row, chat) = (session.unwrap(), chat.unwrap());
    let mut summary: Value = serde_json::from_slice(&row.summary).unwrap();
    assert_eq!(summary["_meta"], json!({ "selected": { "model": { "id": "small" } } }));
    summary["_meta"] = meta.clone();
    row.summary = summary.to_string().into();
    let chats =
        vec![SavedChat { row: chat, turns: Vec::new(), actions: Vec::new(), sifted: false, progress: None }];

    let mut host = Core::with(agent());
    host.feed(Input::Opened { connection: CLIENT, default_directory: None });
    let hello =
        json!({ "clientId": "me", "protocolVersions": ["1.0.0"], "initialSubscriptions": ["ahp-root://"] });
    say(&mut host, "initialize", hello, Some(1));
    let loaded = LoadedSession::of(SavedSession { row, chats, deaths: 0 }, &Default::default());
    host.feed(Input::Restored(Box::new(loaded)));
    let outputs = host.feed(Input::BatchEnded);
    let told = outputs.iter().filter_map(|output| match output {
        Output::Frame(_, Frame::Notification { method: "root/sessionSummaryChanged", params }) => {
            Some(serde_json::from_slice(params).unwrap())
        }
        _ => None,
    });
    told.map(|mut params: Value| params["changes"].take()).collect()
}

#[test]
fn selection_missing_in_a_saved_session_is_sent_after_its_load() {
    let selected = json!({ "selected": { "model": { "id": "small" } } });
    assert_eq!(list_changes_after_load(&selected), [] as [Value; 0]);
    assert_eq!(list_changes_after_load(&Value::Null), [json!({ "_meta": selected })]);
}

#[test]
fn selection_over_4_kib_is_omitted_from_summaries() {
    let mut host = Core::new();
    host.feed(Input::Opened { connection: CLIENT, default_directory: None });
    say(&mut host, "initialize", json!({ "clientId": "me", "protocolVersions": ["1.0.0"] }), Some(1));
    say(&mut host, "createSession", json!({ "channel": SESSION }), Some(2));
    // `{"agent":{"uri":"…"}}`
    for (length, is_shown) in [(4096 - 20, true), (4096 - 19, false)] {
        let agent = json!({ "uri": "a".repeat(length) });
        let draft = json!({ "text": "", "origin": { "kind": "user" }, "agent": agent });
        let action = json!({ "type": "chat/draftChanged", "draft": draft });
        let params = json!({ "channel": CHAT, "clientSeq": length, "action": action });
        let outputs =
            host.feed_and_save(said(CLIENT, json!({ "method": "dispatchAction", "params": params })));
        let saved = outputs.iter().find_map(|output| match output {
            Output::Record(Record::Session(row)) => Some(&row.summary),
            _ => None,
        });
        let saved: Value = serde_json::from_slice(saved.expect("the session is saved")).unwrap();
        assert_eq!(saved["_meta"]["selected"].is_object(), is_shown, "{length}");
    }
}
