//! 0.4.0, as it differs from 0.5.0: a session's state holds its summary, with times as numbers; the model and
//! the agent are chosen for a session, not for a message; and there is one active client.
//!
//! What such a client chooses is the model of the chat's draft to the newest version. What it is shown is the
//! choice of the draft, else that of the last message.

use ahp_types::state::{ChatState, Message};
use jiff::Timestamp;
use serde_json::{json, Value};

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{Call, Chain, Notice, Reply, Scene, Shot, Step, Told};
use crate::wire::errors::RpcError;
use crate::wire::uris;

/// See the module.
pub struct V0_4_0;

/// What is chosen for the next message.
#[derive(Debug, Default, Clone, PartialEq)]
struct Choice {
    model: Option<Value>,
    agent: Option<Value>,
}

impl Step for V0_4_0 {
    fn dialect(&self) -> Dialect {
        Dialect::V0_4_0
    }

    fn losses(&self) -> &'static [&'static str] {
        &[
            "what the user is writing",
            "what a chat is doing; its row in the session has it",
            "active clients but the first",
            "progress notifications",
            "settings that are no text: they are shown as text",
        ]
    }

    fn lacks(&self) -> &'static [&'static str] {
        &[
            "chat/draftChanged",
            "chat/activityChanged",
            "session/activeClientSet",
            "session/activeClientRemoved",
        ]
    }

    fn call_up(&self, call: &mut Call, _scene: &mut Scene<'_>) -> Result<(), RpcError> {
        let chat = match call.method.as_str() {
            "createSession" => node::text(&call.params, "channel").map(uris::default_chat_of),
            "createChat" => node::text(&call.params, "chat").map(str::to_owned),
            _ => return Ok(()),
        };
        let chosen = Choice {
            model: call.params.remove("model").filter(|model| !model.is_null()),
            agent: call.params.remove("agent").filter(|agent| !agent.is_null()),
        };
        if chosen != Choice::default() {
            let draft = chosen.clone().put_into(None);
            // Refused now rather than when it is too late.
            if let Err(why) = serde_json::from_value::<Message>(draft.clone()) {
                return Err(RpcError::invalid_params(format_args!("`model` or `agent`: {why}")));
            }
            if let Some(Value::Object(message)) = call.params.get_mut("initialMessage") {
                chosen.choose_for(message);
            }
            call.reply = Reply::Selects { chat: chat.unwrap_or_default(), draft };
        }
        Ok(())
    }

    fn action_up(&self, told: &mut Told, scene: &mut Scene<'_>) {
        let current = scene.chat.map(Choice::of).unwrap_or_default();
        match told.name() {
            "session/modelChanged" => {
                let model = Some(told.action.get("model").cloned().unwrap_or_default());
                select(told, Choice { model, ..current }, scene.chat);
            }
            "session/agentChanged" => {
                let agent = told.action.get("agent").filter(|agent| !agent.is_null()).cloned();
                select(told, Choice { agent, ..current }, scene.chat);
            }
            "session/activeClientChanged" => become_active(told, scene),
            // Where it is not active there is nothing to change, and the core says so.
            "session/activeClientToolsChanged" => {
                let own = own_among(scene.active, scene.client_id);
                if let (Some(mut client), Some(tools)) = (own.cloned(), told.action.remove("tools")) {
                    client["tools"] = tools;
                    told.action.insert("type".to_owned(), "session/activeClientSet".into());
                    told.action.insert("activeClient".to_owned(), client);
                }
            }
            "chat/turnStarted" | "chat/pendingMessageSet" => {
                if let Some(Value::Object(message)) = told.action.get_mut("message") {
                    current.choose_for(message);
                }
            }
            _ => {}
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        match node {
            Node::SessionSummary => {
                for member in ["createdAt", "modifiedAt"] {
                    let time = object.get(member).and_then(Value::as_str).and_then(|time| time.parse().ok());
                    if let Some(time) = time.map(Timestamp::as_millisecond) {
                        object.insert(member.to_owned(), time.into());
                    }
                }
            }
            Node::Message => {
                if let Some(Value::Object(config)) =
                    object.get_mut("model").and_then(|it| it.get_mut("config"))
                {
                    config.values_mut().for_each(make_text);
                }
            }
            Node::Root | Node::Session => {
                object.values_mut().for_each(make_enums_text);
                let first = object.get("activeClients").and_then(|clients| clients.get(0)).cloned();
                object.extend(first.map(|first| ("activeClient".to_owned(), first)));
            }
            // Nothing would tell that it changes.
            Node::Chat => {
                object.remove("activity");
            }
            _ => {}
        }
    }

    fn shots_down(&self, shots: &mut Vec<Shot>, _scene: &mut Scene<'_>) {
        let choices: Vec<(String, Choice)> = shots
            .iter()
            .filter(|shot| Node::of_state(&shot.state) == Node::Chat)
            .map(|shot| (shot.channel.clone(), Choice::in_state(&shot.state)))
            .collect();
        for shot in shots.iter_mut().filter(|shot| Node::of_state(&shot.state) == Node::Session) {
            let Some(mut summary) = shot.summary.clone() else { continue };
            let chat = uris::default_chat_of(&shot.channel);
            if let Some((_, choice)) = choices.iter().find(|(channel, _)| *channel == chat) {
                summary.extend(choice.model.clone().map(|model| ("model".to_owned(), model)));
                summary.extend(choice.agent.clone().map(|agent| ("agent".to_owned(), agent)));
            }
            shot.state.insert("summary".to_owned(), Value::Object(summary));
        }
        for shot in shots {
            shot.state.remove("draft");
        }
    }

    fn action_down(&self, told: Told, scene: &mut Scene<'_>) -> Vec<Told> {
        match told.name() {
            "session/activeClientSet" | "session/activeClientRemoved" => {
                vec![active_client_now(told.channel, scene)]
            }
            "chat/draftChanged" | "chat/turnStarted" | "chat/truncated" => {
                let mut all = choice_change(&told, scene.chat);
                all.insert(0, told);
                all
            }
            _ => vec![told],
        }
    }

    fn notice_down(&self, notice: Notice, _scene: &mut Scene<'_>) -> Option<Notice> {
        (notice.method != "root/progress").then_some(notice)
    }
}

impl Choice {
    /// That of a draft, and where it says nothing that of the last message.
    fn between(draft: &Value, said: &Value) -> Self {
        let of = |member| {
            let given = draft.get(member).filter(|chosen| !chosen.is_null());
            given.or_else(|| said.get(member).filter(|chosen| !chosen.is_null())).cloned()
        };
        Self { model: of("model"), agent: of("agent") }
    }

    fn of(chat: &ChatState) -> Self {
        Self::between(&draft_of(chat), &said_last(chat))
    }

    fn in_state(state: &Object) -> Self {
        let last = state.get("turns").and_then(Value::as_array).and_then(|turns| turns.last());
        let said = state.get("activeTurn").or(last).and_then(|turn| turn.get("message"));
        Self::between(state.get("draft").unwrap_or(&Value::Null), said.unwrap_or(&Value::Null))
    }

    /// What is chosen is chosen for this message too, unless it says otherwise.
    fn choose_for(self, message: &mut Object) {
        for (member, chosen) in [("model", self.model), ("agent", self.agent)] {
            if let (false, Some(chosen)) = (message.contains_key(member), chosen) {
                message.insert(member.to_owned(), chosen);
            }
        }
    }

    /// The draft with this choice.
    fn put_into(self, draft: Option<&Message>) -> Value {
        let mut draft = match draft.map(serde_json::to_value) {
            Some(Ok(draft)) => draft,
            _ => json!({ "text": "", "origin": { "kind": "user" } }),
        };
        for (member, chosen) in [("model", self.model), ("agent", self.agent)] {
            if let (Some(draft), Some(chosen)) = (draft.as_object_mut(), chosen) {
                draft.insert(member.to_owned(), chosen);
            }
        }
        draft
    }
}

fn draft_of(chat: &ChatState) -> Value {
    serde_json::to_value(&chat.draft).unwrap_or_default()
}

fn said_last(chat: &ChatState) -> Value {
    let running = chat.active_turn.as_ref().map(|turn| &turn.message);
    serde_json::to_value(running.or(chat.turns.last().map(|turn| &turn.message))).unwrap_or_default()
}

/// Makes of a client's choice the draft that says it.
fn select(told: &mut Told, choice: Choice, chat: Option<&ChatState>) {
    let draft = choice.put_into(chat.and_then(|chat| chat.draft.as_ref()));
    told.channel = uris::default_chat_of(&told.channel);
    told.action = Object::new();
    told.action.insert("type".to_owned(), "chat/draftChanged".into());
    told.action.insert("draft".to_owned(), draft);
}

/// What tells a session that something else is chosen now, because of what happened on its default chat.
fn choice_change(told: &Told, chat: Option<&ChatState>) -> Vec<Told> {
    let Some(session) = uris::session_of_default_chat(&told.channel) else { return Vec::new() };
    let null = Value::Null;
    let member = |name| told.action.get(name).unwrap_or(&null);
    let (draft, said) = (chat.map(draft_of), chat.map(said_last));
    let (draft, said) = (draft.unwrap_or_default(), said.unwrap_or_default());
    let before = Choice::between(&draft, &said);
    let after = match told.name() {
        "chat/draftChanged" => Choice::between(member("draft"), &said),
        "chat/turnStarted" => Choice::between(&draft, member("message")),
        _ => {
            let kept = node::text(&told.action, "turnId")
                .and_then(|id| chat.and_then(|chat| chat.turns.iter().find(|turn| turn.id == id)));
            let said = serde_json::to_value(kept.map(|turn| &turn.message)).unwrap_or_default();
            Choice::between(&draft, &said)
        }
    };
    let mut all = Vec::new();
    let mut tell = |name: &str, member: &str, value: &Option<Value>| {
        let mut action = Object::new();
        action.insert("type".to_owned(), name.into());
        action.extend(value.clone().map(|value| (member.to_owned(), value)));
        all.push(Told { channel: session.clone(), action });
    };
    // That no model is chosen any more cannot be said.
    if after.model != before.model && after.model.is_some() {
        tell("session/modelChanged", "model", &after.model);
    }
    if after.agent != before.agent {
        tell("session/agentChanged", "agent", &after.agent);
    }
    all
}

fn client_id(client: &Value) -> Option<&str> {
    client.get("clientId").and_then(Value::as_str)
}

fn own_among<'a>(active: &'a [Value], own: &str) -> Option<&'a Value> {
    active.iter().find(|client| client_id(client) == Some(own))
}

/// Makes of a client's taking part, or not any more, what it means where there may be several.
///
/// What would change nothing is acknowledged, and then its sender takes it for true: that nobody is active, or
/// that it is while it is shown another one. Both must be refused, so they are left as what cannot be.
fn become_active(told: &mut Told, scene: &mut Scene<'_>) {
    let (active, me) = (scene.active, scene.client_id);
    if !told.action.get("activeClient").is_some_and(Value::is_object) {
        let somebody = active.first().and_then(client_id).unwrap_or(me);
        let gone = if own_among(active, me).is_some() { me } else { somebody };
        told.action.insert("type".to_owned(), "session/activeClientRemoved".into());
        told.action.insert("clientId".to_owned(), gone.into());
        return;
    }
    let mut set = told.clone();
    set.action.insert("type".to_owned(), "session/activeClientSet".into());
    let mut newest = set.clone();
    Chain::to(Dialect::V0_5_0).action_up(&mut newest, scene);
    let is_same = own_among(active, me) == newest.action.get("activeClient");
    if !is_same || active.first().and_then(client_id) == Some(me) {
        *told = set;
    }
}

/// Tells which client is the active one now: the first of those that there are.
fn active_client_now(channel: String, scene: &mut Scene<'_>) -> Told {
    let told = |client: Value| {
        let mut action = Object::new();
        action.insert("type".to_owned(), "session/activeClientChanged".into());
        action.insert("activeClient".to_owned(), client);
        Told { channel: channel.clone(), action }
    };
    let Some(first) = scene.active.first() else { return told(Value::Null) };
    let mut set = told(first.clone());
    set.action.insert("type".to_owned(), "session/activeClientSet".into());
    // As the newer neighbour says it.
    let said = Chain::to(Dialect::V0_5_0).action_down(set, scene).pop();
    told(said.and_then(|mut said| said.action.remove("activeClient")).unwrap_or_default())
}

fn make_text(value: &mut Value) {
    if !value.is_string() {
        *value = Value::String(value.to_string());
    }
}

/// Settings offer texts to choose from, nothing else.
fn make_enums_text(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match value {
                    Value::Array(choices) if name == "enum" => choices.iter_mut().for_each(make_text),
                    value => make_enums_text(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_enums_text),
        _ => {}
    }
}
