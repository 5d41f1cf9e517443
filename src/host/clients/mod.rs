//! Clients that take part in sessions: their presence, and the tool calls that run on them.
//!
//! Owns: absences (an active client that may come back), disconnects, the shutdown of the host,
//! choosing the client that a tool call runs on, and ending a call whose client is gone.
//! Never: decides what a client may report of a call: `host::actions` does.

pub(super) mod connections;
pub(super) mod disconnects;
pub(super) mod shutdown;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ahp_types::actions::{
    ActionOrigin, SessionActiveClientRemovedAction, SessionActiveClientSetAction, StateAction,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{SessionActiveClient, ToolCallState, ToolDefinition};
use serde::Deserialize;
use serde_json::Value;

use crate::host::agents::conversations;
use crate::host::chats::calls::{self, CallRef, Readiness};
use crate::host::clients::disconnects::{owner_of, Disconnect};
use crate::host::clients::shutdown::ShuttingDown;
use crate::host::effects::{ChatKey, Command, ConnectionId, Output, Timer};
use crate::host::facts::Fact;
use crate::host::ledger::Ledger;
use crate::host::locale::Language;
use crate::host::model::{AgentLink, ChannelId, SessionKey};
use crate::host::refusal::Refusal;
use crate::host::Step;
use crate::wire::channels::ChannelKind;
use crate::wire::tool_calls::{client_of_call, tool_call_id};

/// Time after which an absent active client is removed and its tool calls fail.
const ABSENCE_MAX: Duration = Duration::from_secs(10);

/// Client that may `reconnect`.
#[derive(Debug)]
pub(super) struct KnownClient {
    pub(super) id: String,
    /// Language of its last `initialize`: a `reconnect` names none.
    pub(super) language: Language,
}

/// Active, disconnected and expected clients.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// Recently admitted clients, newest last.
    pub(super) known: VecDeque<KnownClient>,
    /// Absent active clients, by the numbers of their timers.
    absences: BTreeMap<u64, (SessionKey, String)>,
    /// Clients that can no longer send, until their turns are over.
    pub(super) disconnects: BTreeMap<ConnectionId, Disconnect>,
    /// Lost connections whose clients are expected back.
    pub(super) expected: BTreeSet<ConnectionId>,
    /// Set while the host shuts down.
    pub(super) shutdown: Option<ShuttingDown>,
}

impl Clients {
    /// Starts absence timers where a client is active, unless another of its connections is present
    /// there.
    pub(super) fn client_disconnected(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, client_id: &str) {
        ledger.touch(ChannelKind::Terminal);
        for session in sessions_with(ledger, client_id) {
            if !is_present(ledger, session, client_id) {
                self.await_client(ledger, step, session, client_id);
            }
        }
    }

    /// Starts the absence timers of a restored session's active clients that are not present.
    pub(super) fn await_clients(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
        let Some(session) = ledger.channels.sessions.known(key) else { return };
        let active = session.state.active_clients.iter().map(|client| client.client_id.clone());
        for client in active.collect::<Vec<_>>() {
            if !is_present(ledger, key, &client) {
                self.await_client(ledger, step, key, &client);
            }
        }
    }

    fn await_client(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
        client_id: &str,
    ) {
        let known = (session, client_id.to_owned());
        if self.absences.values().any(|absence| *absence == known) {
            return;
        }
        let number = ledger.fresh_key();
        self.absences.insert(number, known);
        step.emit(Output::Timer(Timer::Absence(number), ABSENCE_MAX));
    }

    /// Cancels the absence timer of a client that has returned to a session.
    pub(super) fn client_returned(&mut self, session: SessionKey, client_id: &str) {
        self.absences.retain(|_, (of, client)| *of != session || client != client_id);
    }

    /// Removes an active client that has not come back in time.
    pub(super) fn absence_expired(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, number: u64) {
        let Some((session, client_id)) = self.absences.remove(&number) else { return };
        // The session may have been removed by now.
        if ledger.channels.sessions.contains_key(&session) && !is_present(ledger, session, &client_id) {
            self.remove_active_client(ledger, step, session, &client_id, None);
        }
    }

    /// Removes a reconnected client from the sessions that it does not subscribe to again.
    pub(super) fn leave_other_sessions(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        client_id: &str,
        kept: &BTreeSet<ChannelId>,
    ) {
        for session in sessions_with(ledger, client_id) {
            if kept.contains(&session.into()) {
                continue;
            }
            // While the store fails, no action may occur that the answer's snapshots would contain.
            if ledger.failing().is_some() {
                self.await_client(ledger, step, session, client_id);
            } else {
                self.leave_session(ledger, step, session, client_id);
            }
        }
    }

    /// Removes an active client from a session unless another of its connections subscribes.
    pub(super) fn leave_session(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
        client_id: &str,
    ) {
        let channel = session.into();
        let subscribes = |(connection, _)| ledger.subscriptions.contains(connection, channel);
        if !ledger.presence.connections_of(client_id).any(subscribes) {
            self.remove_active_client(ledger, step, session, client_id, None);
        }
    }

    /// Removes an active client from a session. The tool calls that run on it fail.
    pub(super) fn remove_active_client(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        key: SessionKey,
        client_id: &str,
        origin: Option<ActionOrigin>,
    ) {
        self.client_returned(key, client_id);
        if !is_active(ledger, key, client_id) {
            return;
        }
        let removed = SessionActiveClientRemovedAction { client_id: client_id.to_owned() };
        ledger.sequence(step, key, StateAction::SessionActiveClientRemoved(removed), origin);
        for chat in ledger.channels.chats_in(key) {
            for call in calls_on(ledger, chat, client_id) {
                fail_client_call(ledger, step, &call, "the client that ran the tool has disconnected");
            }
        }
        send_tools_of_session(ledger, step, key);
        plugins_may_differ(ledger, step, key);
    }

    /// Returns the active client that a tool is to run on, with its definition of the tool. Present
    /// clients precede absent ones, then the client that began the turn precedes the others.
    fn provider_of(&self, ledger: &Ledger, key: ChatKey, tool: &str) -> Option<(String, ToolDefinition)> {
        let chat = ledger.channels.chats.known(key)?;
        let owner = owner_of(ledger, key);
        let is_absent = |client: &str| {
            self.absences.values().any(|(session, absent)| *session == chat.session && absent == client)
        };
        let session = ledger.channels.sessions.known(chat.session)?;
        let offers = session.state.active_clients.iter().filter_map(|client| {
            let offered = client.tools.iter().find(|offered| offered.name == tool)?;
            Some((client.client_id.as_str(), offered))
        });
        let (client, offered) =
            offers.min_by_key(|(client, _)| (is_absent(client), owner != Some(*client)))?;
        Some((client.to_owned(), offered.clone()))
    }

    /// Starts a call of a client's tool, and chooses the client.
    pub(super) fn start_client_call(
        &self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        call: &CallRef,
        tool: String,
        meta: Option<JsonObject>,
    ) {
        let provider = self.provider_of(ledger, call.key, &tool);
        let (client, tool_title) = provider.map(|(client, definition)| (client, definition.title)).unzip();
        let display = tool_title.flatten().unwrap_or_else(|| tool.clone());
        calls::start_call(ledger, step, call.clone(), tool, display, meta, client);
    }

    /// Makes a call ready to run on its client; the agent waits for the result.
    pub(super) fn call_on_client(
        &self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        call: CallRef,
        tool: String,
        ready: Readiness,
    ) {
        let why = format!("no active client of this session offers the tool `{tool}`");
        let begun =
            |ledger: &Ledger| ledger.channels.chats.known(call.key)?.conversation.tool(&call.id).cloned();
        if begun(ledger).is_none() {
            self.start_client_call(ledger, step, &call, tool, None);
        }
        let Some(state) = begun(ledger) else { return };
        let session = ledger.channels.chats.known(call.key).map(|chat| chat.session);
        let is_there = |client| session.is_some_and(|session| is_active(ledger, session, client));
        let is_offered = client_of_call(&state).is_some_and(is_there);
        match state {
            ToolCallState::Streaming(_) => calls::call_is_ready(ledger, step, call.clone(), ready),
            // The call runs on its client already, or will when the user has allowed it.
            ToolCallState::Running(_) | ToolCallState::PendingConfirmation(_) => {}
            // The agent received the outcome before.
            _ => return,
        }
        if !is_offered {
            fail_client_call(ledger, step, &call, &why);
        }
    }
}

/// Fails a call that its client will not finish, and sends the agent the result.
pub(super) fn fail_client_call(ledger: &mut Ledger, step: &mut Step<'_>, call: &CallRef, why: &str) {
    calls::fail_call(ledger, step, call, "Was not carried out", why);
    let run = ledger.channels.chats.known(call.key).and_then(|chat| Some(chat.run.as_ref()?.id));
    if let Some(command) = run.and_then(|run| calls::result_for_agent(ledger, call.key, run, &call.id)) {
        step.send_to_agent(call.key, command);
    }
}

/// Has the plugins of a session fetched and shown if its clients publish or published some.
pub(super) fn plugins_may_differ(ledger: &Ledger, step: &mut Step<'_>, key: SessionKey) {
    let Some(session) = ledger.channels.sessions.known(key) else { return };
    let publishes = |client: &SessionActiveClient| client.customizations.iter().flatten().next().is_some();
    if !session.plugins.is_empty() || session.state.active_clients.iter().any(publishes) {
        step.facts.push_back(Fact::PluginsMayDiffer(key));
    }
}

pub(super) fn send_tools_of_session(ledger: &mut Ledger, step: &mut Step<'_>, session: SessionKey) {
    for chat in ledger.channels.chats_in(session) {
        send_tools(ledger, step, chat);
    }
}

/// Sends the tools of clients to a chat's agent if it is open and has an outdated list.
pub(super) fn send_tools(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey) {
    let Some(chat) = ledger.channels.chats.known_mut(key).filter(|chat| chat.agent == AgentLink::Open) else {
        return;
    };
    let Some(session) = ledger.channels.sessions.known(chat.session) else { return };
    let tools = conversations::tools_of_clients(session);
    if chat.tools_sent != tools {
        chat.tools_sent.clone_from(&tools);
        step.send_to_agent(key, Command::ClientTools { tools });
    }
}

/// Returns the action by which an active client replaces its tools. Refused if the client is not
/// active in the session, or if `tools` is invalid.
pub(super) fn offer_of_tools(
    ledger: &Ledger,
    key: SessionKey,
    client_id: &str,
    tools: &Value,
) -> Result<StateAction, Refusal> {
    let active = ledger.channels.sessions.known(key).map(|session| session.state.active_clients.as_slice());
    let own = active.unwrap_or_default().iter().find(|client| client.client_id == client_id);
    let Some(own) = own else { return Err(Refusal::NotActive) };
    let tools = Vec::<ToolDefinition>::deserialize(tools)
        .map_err(|why| Refusal::Member { member: "tools".to_owned(), problem: why.to_string() })?;
    let active_client = SessionActiveClient { tools, ..own.clone() };
    Ok(StateAction::SessionActiveClientSet(SessionActiveClientSetAction { active_client }))
}

/// Returns whether a connection of a client that can still send subscribes to a session or to a
/// chat of it, and so receives calls of the client's tools.
fn is_present(ledger: &Ledger, session: SessionKey, client_id: &str) -> bool {
    let chats = ledger.channels.chats_in(session);
    let subscribes = |connection| {
        let contains = |channel| ledger.subscriptions.contains(connection, channel);
        contains(session.into()) || chats.iter().any(|chat| contains((*chat).into()))
    };
    let mut connections = ledger.presence.connections_of(client_id);
    connections
        .any(|(connection, _)| !ledger.presence.leaving.contains(&connection) && subscribes(connection))
}

fn is_active(ledger: &Ledger, session: SessionKey, client_id: &str) -> bool {
    ledger.channels.sessions.known(session).is_some_and(|session| {
        session.state.active_clients.iter().any(|client| client.client_id == client_id)
    })
}

fn sessions_with(ledger: &Ledger, client_id: &str) -> Vec<SessionKey> {
    ledger.channels.sessions.keys().copied().filter(|key| is_active(ledger, *key, client_id)).collect()
}

/// Returns the open calls of a chat's running turn that run on a client.
fn calls_on(ledger: &Ledger, key: ChatKey, client_id: &str) -> Vec<CallRef> {
    let Some(chat) = ledger.channels.chats.known(key) else { return Vec::new() };
    let calls = chat.conversation.tools().filter(|call| {
        let open = matches!(
            call,
            ToolCallState::Streaming(_) | ToolCallState::Running(_) | ToolCallState::PendingConfirmation(_)
        );
        open && client_of_call(call) == Some(client_id)
    });
    let turn_id = chat.run.as_ref().map(|run| run.turn_id.clone()).unwrap_or_default();
    calls.map(|call| CallRef { key, turn_id: turn_id.clone(), id: tool_call_id(call).to_owned() }).collect()
}
