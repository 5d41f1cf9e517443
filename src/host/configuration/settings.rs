//! How sessions are configured while they are there: what clients choose, and what agents make of
//! it.
//!
//! Owns: a session's configuration after its creation, and telling its agents of it.
//! Never: checks what a client chooses; that is in `values` (`check_change`), before.
//!
//! What a session can be configured by is its agent's to say, and may change. No action carries
//! that: a client learns it with the next state. That something has changed is told, by all values.

use std::collections::{BTreeMap, BTreeSet};

use ahp_types::actions::{SessionConfigChangedAction, StateAction};
use ahp_types::common::JsonObject;
use ahp_types::state::SessionConfigState;

use crate::host::agents::AgentRegistry;
use crate::host::effects::{ChatKey, Command};
use crate::host::ledger::Ledger;
use crate::host::model::{AgentLink, SessionKey};
use crate::host::Step;

/// Configuration of a session as its chat's agent knows it, or is yet to be sent it.
#[derive(Debug, Default)]
pub(crate) struct SentSettings {
    /// Number of changes that were sent.
    count: u64,
    /// The settings of which the agent may not have heard, each with the number of its last change.
    unacknowledged: BTreeMap<String, u64>,
}

/// The agent of a chat says how the session is configured.
pub(crate) fn agent_is_configured(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    chat: ChatKey,
    mut config: SessionConfigState,
    spreads: bool,
    heard: u64,
) {
    let next = ledger.head() + 1;
    let Some(told) = ledger.channels.chats.known_mut(chat) else { return };
    let key = told.session;
    told.settings_sent.unacknowledged.retain(|_, number| *number > heard);
    let Some(session) = ledger.channels.sessions.known_mut(key) else { return };
    // What was changed since is not the agent's to say yet.
    for name in told.settings_sent.unacknowledged.keys() {
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
        // A cursor from before does not lead to what can be chosen now.
        session.channel.born_at = next;
    }
    session.state.config = Some(SessionConfigState { schema: config.schema, values: before.clone() });
    let action = SessionConfigChangedAction { config: config.values, replace: Some(true) };
    ledger.sequence(step, key, StateAction::SessionConfigChanged(action), None);
    send_configuration(ledger, step, key, &before, Some((chat, spreads)));
}

/// Tells the agents of a session how it is configured now, which was this before; those that open
/// later are told then. `by`: the chat whose agent has said so itself, which is not told, and
/// whether it is for the others.
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
    for chat in
        ledger.channels.chats_in(key).into_iter().filter(|chat| by.is_none_or(|(told, _)| told != *chat))
    {
        send_settings(ledger, step, chat, &all, &changed);
    }
}

/// Tells a chat's agent of settings that have changed; one that is opening, when it is open.
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
    let told = &mut chat.settings_sent;
    told.count += 1;
    told.unacknowledged.extend(changed.iter().map(|name| (name.clone(), told.count)));
    if chat.agent == AgentLink::Open {
        let (all, changed, number) = (all.clone(), changed.clone(), told.count);
        step.send_to_agent(key, Command::Configure { all, changed, number });
    }
}

/// Tells a chat's agent, which is open now, what has changed meanwhile.
pub(crate) fn send_due_settings(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let changed: BTreeSet<String> = chat.settings_sent.unacknowledged.keys().cloned().collect();
    let Some(session) = ledger.channels.sessions.known(chat.session).filter(|_| !changed.is_empty()) else {
        return;
    };
    let all = session.config.clone();
    send_settings(ledger, step, key, &all, &changed);
}
