//! Messages that choose a model, of an agent that has some.
//!
//! Owns: a host in memory whose agent publishes models.
//! Never: runs an agent; what it would be told is what matters.

use ahp_sidecar::backend::{script::Script, Backend};
use ahp_sidecar::host::effects::{AgentDescription, Command, ConnectionId, Event, Frame, Input, Output};
use serde_json::{json, Value};

use crate::support::core::{opened, said, Core, CHAT, SESSION};

const CLIENT: ConnectionId = ConnectionId(1);

/// An agent with two models, one of which can be configured.
fn agent() -> AgentDescription {
    let mut agent = Script.describe();
    let effort = json!({ "type": "string", "title": "Effort", "enum": ["low", "high"] });
    let schema = json!({ "type": "object", "properties": { "effort": effort } });
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

/// What becomes of a turn whose message chooses this: the model that the agent is told, or why it is refused.
fn start(model: Value) -> Result<String, String> {
    let mut host = Core::with(agent());
    host.feed(Input::Opened(CLIENT));
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
fn a_message_chooses_among_the_models_of_its_agent() {
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
