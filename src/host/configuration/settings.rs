//! Configuration of existing sessions: choices of clients, and the response of agents.
//!
//! Owns: a session's configuration after its creation, and sending it to the agents.
//! Never: validates a client's choice; `values::check_change` does that before.
//!
//! The agent decides which settings a session has, and may change them. No action carries a schema,
//! so clients receive a new one with the next snapshot; the action about the change carries all
//! values.

use std::collections::{BTreeMap, BTreeSet};

use ahp_types::actions::{SessionConfigChangedAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::SessionConfigState;

use crate::host::agents::AgentRegistry;
use crate::host::effects::{ChatKey, Command};
use crate::host::ledger::Ledger;
use crate::host::model::{AgentLink, SessionKey};
use crate::host::Step;

/// Configuration that was sent, or is to be sent, to the agent of a chat.
#[derive(Debug, Default)]
pub(crate) struct SentSettings {
    count: u64,
    /// Settings that the agent may not have received yet, with the number of their last change.
    unacknowledged: BTreeMap<String, u64>,
}

pub(crate) fn agent_is_configured(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    chat: ChatKey,
    mut config: SessionConfigState,
    spreads: bool,
    acknowledged: u64,
) {
    let next = ledger.head() + 1;
    let Some(reporter) = ledger.channels.chats.known_mut(chat) else { return };
    let key = reporter.session;
    reporter.settings_sent.unacknowledged.retain(|_, number| *number > acknowledged);
    let Some(session) = ledger.channels.sessions.known_mut(key) else { return };
    // Later changes are not part of the agent's report yet.
    for name in reporter.settings_sent.unacknowledged.keys() {
        if let (Some(value), Some(changed)) = (config.values.get_mut(name), session.config.get(name)) {
            value.clone_from(changed);
        }
    }
    let agent = agents.of(&session.state.provider);
    for (name, property) in &mut config.schema.properties {
        let usual = agent.and_then(|agent| agent.config.properties.get(name));
        property.default = property.default.take().or(usual.and_then(|usual| usual.default.clone()));
    }
    let is_empty = config.schema.properties.is_empty() && config.values.is_empty();
    if session.state.config.as_ref().map_or(is_empty, |shown| *shown == config) {
        return;
    }
    let shown = session.state.config.take();
    let before = shown.as_ref().map(|config| config.values.clone()).unwrap_or_default();
    if shown.is_none_or(|shown| shown.schema != config.schema) {
        // A replay from an earlier sequence number would not contain the new schema.
        session.channel.born_at = next;
    }
    session.state.config = Some(SessionConfigState { schema: config.schema, values: before.clone() });
    let action = SessionConfigChangedAction { config: config.values, replace: Some(true) };
    ledger.sequence(step, key, StateAction::SessionConfigChanged(action), None);
    send_configuration(ledger, step, key, &before, Some((chat, spreads)));
}

/// Sends the configuration to the agents of a session, if it differs from `before`; conversations
/// that open later receive it then. `by`: the chat whose agent has reported the change, which is
/// skipped, and whether the change applies to the other chats.
pub(crate) fn send_configuration(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: SessionKey,
    before: &JsonObject,
    by: Option<(ChatKey, bool)>,
) {
    let Some(session) = ledger.channels.sessions.known_mut(key) else { return };
    let Some(config) = &session.state.config else { return };
    session.config.clone_from(&config.values);
    let all = config.values.clone();
    let names: BTreeSet<&String> = before.keys().chain(all.keys()).collect();
    let changed: BTreeSet<String> =
        names.into_iter().filter(|name| before.get(*name) != all.get(*name)).cloned().collect();
    if changed.is_empty() || by.is_some_and(|(_, spreads)| !spreads) {
        return;
    }
    for chat in ledger
        .channels
        .chats_in(key)
        .into_iter()
        .filter(|chat| by.is_none_or(|(reporter, _)| reporter != *chat))
    {
        send_settings(ledger, step, chat, &all, &changed);
    }
}

/// Sends changed settings to a chat's agent; if it is opening, they are sent when it is open.
fn send_settings(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    all: &JsonObject,
    changed: &BTreeSet<String>,
) {
    let Some(chat) = ledger.channels.chats.known_mut(key).filter(|chat| chat.agent != AgentLink::Closed)
    else {
        return;
    };
    let sent = &mut chat.settings_sent;
    sent.count += 1;
    sent.unacknowledged.extend(changed.iter().map(|name| (name.clone(), sent.count)));
    if chat.agent == AgentLink::Open {
        let (all, changed, number) = (all.clone(), changed.clone(), sent.count);
        step.send_to_agent(key, Command::Configure { all, changed, number });
    }
}

/// Sends a chat's agent the changes that were made while its conversation was opening.
pub(crate) fn send_due_settings(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let changed: BTreeSet<String> = chat.settings_sent.unacknowledged.keys().cloned().collect();
    let Some(session) = ledger.channels.sessions.known(chat.session).filter(|_| !changed.is_empty()) else {
        return;
    };
    let all = session.config.clone();
    send_settings(ledger, step, key, &all, &changed);
}
