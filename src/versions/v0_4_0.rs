//! 0.4.0, as it differs from 0.5.0: a session's state contains its summary, with times as numbers;
//! model and agent are chosen for a session, not for a message; and there is one active client.
//!
//! A client's choice becomes the selection of the session's default chat. The client is shown that
//! selection: from the draft, else from the last message.

use ahp_types::state::Message;
use jiff::Timestamp;
use serde_json::{json, Value};

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{
    self, Context, IncomingAction, IncomingCall, OutgoingAction, OutgoingNotice, OutgoingState, StepFacts,
    VersionStep,
};
use super::translation::lists_first_chat;
use crate::host::effects::DispatchMode;
use crate::state::history::CompletedTurn;
use crate::state::reduce::Conversation;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::selection::{Selection, SelectionChange, SELECTED};
use crate::wire::uris;

pub struct V0_4_0;

impl VersionStep for V0_4_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_4_0,
            losses: &[
                "what the user is writing",
                "what a chat is doing; its row in the session has it",
                "active clients but the first",
                "progress notifications",
                "settings that are no text: they are shown as text",
                "that no model is selected any more, where a newer client takes turns or a draft back",
                "in what is told of the list of sessions, that no model or agent is selected any more; the \
                 list has it",
                "a model or agent that is selected for one chat only: what is shown is the session's",
            ],
            lacks: &[
                "chat/draftChanged",
                "chat/activityChanged",
                "session/activeClientSet",
                "session/activeClientRemoved",
            ],
            // No action would update it.
            drops: &[(Node::Chat, &["activity"])],
        }
    }

    fn call_up(&self, call: &mut IncomingCall, _context: &mut Context<'_>) -> Result<(), RpcError> {
        if matches!(call.method.as_str(), "createSession" | "createChat") {
            let mut take = |member| call.params.remove(member).filter(|value: &Value| !value.is_null());
            call.options.selection = Selection { model: take("model"), agent: take("agent") };
        }
        Ok(())
    }

    fn action_up(&self, incoming: &mut IncomingAction, context: &mut Context<'_>) {
        let member = |name| incoming.action.get(name).filter(|value| !value.is_null()).cloned();
        match incoming.name() {
            "session/modelChanged" => {
                let change = SelectionChange::Model(member("model").unwrap_or_default());
                incoming.mode = DispatchMode::Selecting { change, for_all_chats: context.knows_chats };
            }
            "session/agentChanged" => {
                let change = SelectionChange::Agent(member("agent"));
                incoming.mode = DispatchMode::Selecting { change, for_all_chats: context.knows_chats };
            }
            "session/activeClientChanged" => become_active(incoming, context.client_id),
            "session/activeClientToolsChanged" => {
                incoming.mode = DispatchMode::OfferingTools(member("tools").unwrap_or_default());
            }
            "chat/turnStarted" | "chat/pendingMessageSet" | "chat/truncated" => {
                incoming.mode = DispatchMode::Selected;
            }
            _ => {}
        }
    }

    /// Refuses to let a client leave or join while another one is shown as active: the client sees
    /// only one, and takes an acknowledged action for applied.
    fn refusal(&self, action: &Object, context: &Context<'_>) -> Option<String> {
        let first = node::text(context.active.first()?.as_object()?, "clientId")?;
        if node::text(action, "type") != Some("session/activeClientChanged") || first == context.client_id {
            return None;
        }
        Some(if action.get("activeClient").is_some_and(Value::is_object) {
            format!("this client is active already; `{first}` is shown, which came first")
        } else {
            format!("the active client is `{first}`, not this one")
        })
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
                selection_of_meta(object);
            }
            Node::Message => settings_of_model(object),
            Node::Root | Node::Session => {
                object.values_mut().for_each(make_enums_text);
                let first = object.get("activeClients").and_then(|clients| clients.get(0)).cloned();
                object.extend(first.map(|first| ("activeClient".to_owned(), first)));
            }
            _ => {}
        }
    }

    fn shots_down(&self, outgoing_states: &mut Vec<OutgoingState>, _context: &mut Context<'_>) {
        let choices: Vec<(String, Selection)> = outgoing_states
            .iter()
            .filter(|outgoing| outgoing.kind == ChannelKind::Chat)
            .map(|outgoing| (outgoing.channel.clone(), selection_in(&outgoing.state)))
            .collect();
        for outgoing in outgoing_states.iter_mut().filter(|outgoing| outgoing.kind == ChannelKind::Session) {
            let Some(mut summary) = outgoing.summary.clone() else { continue };
            // The selection comes from the chat, as it does for actions; the list's may differ.
            summary.retain(|member, _| !matches!(member.as_str(), "model" | "agent"));
            let chat = uris::default_chat_of(&outgoing.channel);
            let choice = choices.iter().find(|(channel, _)| *channel == chat);
            if let Some((_, choice)) = choice.filter(|_| lists_first_chat(&outgoing.state, &outgoing.channel))
            {
                summary.extend(choice.model.clone().map(|model| ("model".to_owned(), model)));
                summary.extend(choice.agent.clone().map(|agent| ("agent".to_owned(), agent)));
            }
            outgoing.state.insert("summary".to_owned(), Value::Object(summary));
        }
        for outgoing in outgoing_states {
            outgoing.state.remove("draft");
        }
    }

    fn action_down(&self, outgoing: OutgoingAction, context: &mut Context<'_>) -> Vec<OutgoingAction> {
        match outgoing.name() {
            "session/activeClientSet" | "session/activeClientRemoved" => {
                vec![active_client_now(outgoing.channel, context)]
            }
            "chat/draftChanged" | "chat/turnStarted" | "chat/truncated"
                if !context.is_first_chat_elsewhere =>
            {
                let mut all = match context.at_end {
                    Some(chat) => choice_in(&outgoing.channel, chat),
                    None => choice_change(&outgoing, context.chat),
                };
                all.insert(0, outgoing);
                all
            }
            _ => vec![outgoing],
        }
    }

    fn notice_down(&self, notice: OutgoingNotice, _context: &mut Context<'_>) -> Option<OutgoingNotice> {
        (notice.method != "root/progress").then_some(notice)
    }
}

/// Moves the selection out of a summary's `_meta`.
fn selection_of_meta(summary: &mut Object) {
    let Some(Value::Object(meta)) = summary.get_mut("_meta") else { return };
    let selected = meta.remove(SELECTED);
    if meta.is_empty() {
        summary.remove("_meta");
    }
    if let Some(Value::Object(mut selected)) = selected {
        settings_of_model(&mut selected);
        summary.append(&mut selected);
    }
}

/// Turns the settings of the selected model into texts.
fn settings_of_model(object: &mut Object) {
    if let Some(Value::Object(config)) = object.get_mut("model").and_then(|it| it.get_mut("config")) {
        config.values_mut().for_each(make_text);
    }
}

/// Returns the selection in a chat's state.
fn selection_in(state: &Object) -> Selection {
    let last = state.get("turns").and_then(Value::as_array).and_then(|turns| turns.last());
    let message = state.get("activeTurn").or(last).and_then(|turn| turn.get("message"));
    Selection::of(state.get("draft").unwrap_or(&Value::Null), message.unwrap_or(&Value::Null))
}

/// Returns a message in this version's form; null if there is none.
fn shown(message: Option<&Message>) -> Value {
    let mut message = serde_json::to_value(message).unwrap_or_default();
    if let Value::Object(message) = &mut message {
        V0_4_0.node_down(Node::Message, message);
    }
    message
}

fn last_selection(chat: &Conversation) -> Value {
    let running = chat.state().active_turn.as_ref().map(|turn| &turn.message);
    shown(running.or_else(|| chat.history().last_message()))
}

/// Returns the actions that update a session's selection after an action on its default chat.
fn choice_change(outgoing: &OutgoingAction, chat: Option<&Conversation>) -> Vec<OutgoingAction> {
    let Some(session) = uris::session_of_default_chat(&outgoing.channel) else { return Vec::new() };
    let null = Value::Null;
    let member = |name| outgoing.action.get(name).unwrap_or(&null);
    let draft = shown(chat.and_then(|chat| chat.state().draft.as_ref()));
    let last = chat.map(last_selection).unwrap_or_default();
    let before = Selection::of(&draft, &last);
    let after = match outgoing.name() {
        "chat/draftChanged" => Selection::of(member("draft"), &last),
        "chat/turnStarted" => Selection::of(&draft, member("message")),
        _ => {
            let kept = node::text(&outgoing.action, "turnId").zip(chat);
            let kept = kept.and_then(|(id, chat)| chat.history().get(id)).and_then(CompletedTurn::message);
            Selection::of(&draft, &shown(kept.as_ref()))
        }
    };
    let changes = [after.model != before.model, after.agent != before.agent];
    choice(&session, &after, changes)
}

/// Returns the actions that set the final selection, for a replayed action. The selection before
/// and after that action is unknown.
fn choice_in(channel: &str, chat: &Conversation) -> Vec<OutgoingAction> {
    let Some(session) = uris::session_of_default_chat(channel) else { return Vec::new() };
    let chosen = Selection::of(&shown(chat.state().draft.as_ref()), &last_selection(chat));
    choice(&session, &chosen, [true, true])
}

/// Returns the actions that set a session's model and agent, each if its flag is set.
fn choice(session: &str, chosen: &Selection, [model, agent]: [bool; 2]) -> Vec<OutgoingAction> {
    let changed = |name: &str, member: &str, value: &Option<Value>| {
        let mut outgoing = OutgoingAction::new(session, json!({ "type": name }));
        outgoing.action.extend(value.clone().map(|value| (member.to_owned(), value)));
        outgoing
    };
    // The action cannot clear the model.
    let model =
        (model && chosen.model.is_some()).then(|| changed("session/modelChanged", "model", &chosen.model));
    let agent = agent.then(|| changed("session/agentChanged", "agent", &chosen.agent));
    model.into_iter().chain(agent).collect()
}

/// Turns a change of the one active client into one of several.
fn become_active(incoming: &mut IncomingAction, me: &str) {
    if incoming.action.get("activeClient").is_some_and(Value::is_object) {
        return incoming.rename("session/activeClientSet");
    }
    incoming.rename("session/activeClientRemoved");
    incoming.action.insert("clientId".to_owned(), me.into());
}

/// Makes the action that sets the first of the active clients.
fn active_client_now(channel: String, context: &mut Context<'_>) -> OutgoingAction {
    let outgoing = |name: &str, client: Value| {
        OutgoingAction::new(&channel, json!({ "type": name, "activeClient": client }))
    };
    let first = context.active.first().and_then(|first| {
        // The client, in the form of the newer neighbour.
        let set = outgoing("session/activeClientSet", first.clone());
        step::action_down(context.newer, set, context).pop()?.action.remove("activeClient")
    });
    outgoing("session/activeClientChanged", first.unwrap_or_default())
}

fn make_text(value: &mut Value) {
    if !value.is_string() {
        *value = Value::String(value.to_string());
    }
}

/// Turns the choices of settings into texts: 0.4.0 has no others.
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
