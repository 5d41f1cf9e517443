//! Clients that take part in sessions: whether they are there, and the tool calls that run on them.
//!
//! Owns: absences (an active client that may come back), disconnects, the end of the host, choosing
//! the client that a tool call runs on, and the end of a call whose client is gone.
//! Never: decides what a client may say of a call: `host::actions` does.

pub(super) mod connections;
pub(super) mod disconnects;
pub(super) mod shutdown;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ahp_types::actions::{
    ActionOrigin, ChatToolCallReadyAction, ChatToolCallStartAction, SessionActiveClientRemovedAction,
    SessionActiveClientSetAction, StateAction,
};
use ahp_types::common::{JsonObject, StringOrMarkdown};
use ahp_types::state::{
    SessionActiveClient, ToolCallClientContributor, ToolCallConfirmationReason, ToolCallContributor,
    ToolCallState, ToolDefinition, ToolInput,
};
use serde::Deserialize;
use serde_json::Value;

use crate::host::agents::conversations;
use crate::host::chats::calls;
use crate::host::chats::calls::CallRef;
use crate::host::clients::disconnects::Disconnect;
use crate::host::clients::shutdown::ShuttingDown;
use crate::host::effects::{CallExtras, ChatKey, Command, ConnectionId, Output, Timer, ToolOutcome};
use crate::host::facts::Fact;
use crate::host::ledger::Ledger;
use crate::host::model::{AgentLink, ChannelId, SessionKey};
use crate::host::refusal::Refusal;
use crate::host::{catalogue, Step};
use crate::wire::channels::ChannelKind;
use crate::wire::tool_calls::{client_of_call, tool_call_id};

/// Time after which an absent active client is removed and its tool calls fail.
const ABSENCE_MAX: Duration = Duration::from_secs(10);

/// Clients: those that take part in sessions, those that go, and those that are expected back.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// Ids of clients that were given a place in this sequence, the newest last.
    pub(super) known: VecDeque<String>,
    /// Active clients that are not there, by the numbers of their timers.
    absences: BTreeMap<u64, (SessionKey, String)>,
    /// Clients that can say nothing any more, until their turns are over.
    pub(super) disconnects: BTreeMap<ConnectionId, Disconnect>,
    /// Connections that clients have lost who are expected back.
    pub(super) expected: BTreeSet<ConnectionId>,
    /// Set while the host ends.
    pub(super) shutdown: Option<ShuttingDown>,
}

/// A tool call that an agent wants a client to carry out.
#[derive(Debug)]
pub(super) struct ClientToolRequest {
    pub(super) tool: String,
    pub(super) input: String,
    pub(super) message: StringOrMarkdown,
}

impl Clients {
    /// A client has lost a connection. Where it is active and was not there otherwise, it has some
    /// time to come back.
    pub(super) fn client_disconnected(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, client_id: &str) {
        if ledger.presence.can_speak(client_id) {
            return;
        }
        ledger.touch(ChannelKind::Terminal);
        for session in sessions_with(ledger, client_id) {
            self.await_client(ledger, step, session, client_id);
        }
    }

    /// A session has come back from the store: those of its active clients that are not there have
    /// some time to come back too.
    pub(super) fn await_clients(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, key: SessionKey) {
        let Some(session) = ledger.channels.sessions.known(key) else { return };
        let active = session.state.active_clients.iter().map(|client| client.client_id.clone());
        for client in active.collect::<Vec<_>>() {
            if !ledger.presence.can_speak(&client) {
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

    /// Stops waiting for a client that takes part in a session again.
    pub(super) fn client_returned(&mut self, session: SessionKey, client_id: &str) {
        self.absences.retain(|_, (of, client)| *of != session || client != client_id);
    }

    /// Removes an active client that has not come back in time.
    pub(super) fn absence_expired(&mut self, ledger: &mut Ledger, step: &mut Step<'_>, number: u64) {
        let Some((session, client_id)) = self.absences.remove(&number) else { return };
        // The session may be gone since.
        if ledger.channels.sessions.contains_key(&session) {
            self.remove_active_client(ledger, step, session, &client_id, None);
        }
    }

    /// A client is back and says which channels it goes on with: it leaves the other sessions.
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
            // Nothing may happen now that a snapshot in the answer would show.
            if ledger.failing().is_some() {
                self.await_client(ledger, step, session, client_id);
            } else {
                self.leave_session(ledger, step, session, client_id);
            }
        }
    }

    /// A client does not follow a session any more on one of its connections.
    pub(super) fn leave_session(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
        client_id: &str,
    ) {
        let channel = session.into();
        let follows = ledger.presence.connections.iter().any(|(connection, client)| {
            client.client_id.as_deref() == Some(client_id)
                && ledger.subscriptions.contains(*connection, channel)
        });
        if !follows {
            self.remove_active_client(ledger, step, session, client_id, None);
        }
    }

    /// Takes a client out of a session. The tool calls that run on it fail.
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
                fail_client_call(ledger, step, &call, "the client that the tool ran on is gone");
            }
        }
        send_tools_of_session(ledger, step, key);
    }

    /// The active client of a chat's session that a tool is to run on, with what it says of the
    /// tool. Those that are there go first, and of these the one that began the turn.
    fn provider_of(&self, ledger: &Ledger, key: ChatKey, tool: &str) -> Option<(String, ToolDefinition)> {
        let chat = ledger.channels.chats.known(key)?;
        let requester = chat.run.as_ref().and_then(|run| run.by.as_deref());
        let is_absent = |client: &str| {
            self.absences.values().any(|(session, absent)| *session == chat.session && absent == client)
        };
        let session = ledger.channels.sessions.known(chat.session)?;
        let offers = session.state.active_clients.iter().filter_map(|client| {
            let offered = client.tools.iter().find(|offered| offered.name == tool)?;
            Some((client.client_id.as_str(), offered))
        });
        let (client, offered) =
            offers.min_by_key(|(client, _)| (is_absent(client), requester != Some(*client)))?;
        Some((client.to_owned(), offered.clone()))
    }

    /// An agent begins to call a tool that a client carries out: which client that is, is decided
    /// now.
    pub(super) fn start_client_call(
        &self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        call: &CallRef,
        tool: String,
        meta: Option<JsonObject>,
    ) {
        if ledger
            .channels
            .chats
            .known(call.key)
            .is_some_and(|chat| chat.conversation.tool(&call.id).is_some())
        {
            tracing::warn!(?call, "an agent began the same tool call twice");
            return;
        }
        let provider = self.provider_of(ledger, call.key, &tool);
        let display_name =
            provider.as_ref().and_then(|(_, tool)| tool.title.clone()).unwrap_or_else(|| tool.clone());
        let contributor = provider
            .map(|(client_id, _)| ToolCallContributor::Client(ToolCallClientContributor { client_id }));
        catalogue::end_part(ledger, call.key);
        let started = ChatToolCallStartAction {
            turn_id: call.turn_id.clone(),
            tool_call_id: call.id.clone(),
            meta,
            tool_name: tool,
            display_name,
            intention: None,
            contributor,
        };
        ledger.sequence(step, call.key, StateAction::ChatToolCallStart(started), None);
    }

    /// An agent waits for what comes of a tool that a client carries out.
    pub(super) fn call_on_client(
        &self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        call: CallRef,
        request: ClientToolRequest,
    ) {
        let ClientToolRequest { tool, input, message } = request;
        let nobody = format!("no active client of this session offers the tool `{tool}`");
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
            ToolCallState::Streaming(_) => {}
            // It runs on its client already, or does when the user has allowed it.
            ToolCallState::Running(_) | ToolCallState::PendingConfirmation(_) if is_offered => return,
            ToolCallState::Running(_) | ToolCallState::PendingConfirmation(_) => {
                return fail_client_call(ledger, step, &call, &nobody);
            }
            // The agent was told how it ended.
            _ => return,
        }
        let ready = ChatToolCallReadyAction {
            turn_id: call.turn_id.clone(),
            tool_call_id: call.id.clone(),
            meta: None,
            contributor: None,
            intention: None,
            invocation_message: message,
            tool_input: Some(ToolInput::Inline(input)),
            confirmation_title: None,
            risk_assessment: None,
            edits: None,
            editable: None,
            confirmed: Some(ToolCallConfirmationReason::NotNeeded),
            options: None,
        };
        ledger.sequence(step, call.key, StateAction::ChatToolCallReady(ready), None);
        calls::tool_changed(ledger, step, call.key, &call.id);
        if is_offered {
            step.facts.push_back(Fact::Waits { chat: call.key, id: call.id, is_question: false });
        } else {
            fail_client_call(ledger, step, &call, &nobody);
        }
    }
}

/// Ends a call that its client will not finish, and tells the agent.
pub(super) fn fail_client_call(ledger: &mut Ledger, step: &mut Step<'_>, call: &CallRef, why: &str) {
    let state = ledger.channels.chats.known(call.key).and_then(|chat| chat.conversation.tool(&call.id));
    let content = match state {
        Some(ToolCallState::Running(state)) => state.content.clone().unwrap_or_default(),
        _ => Vec::new(),
    };
    let message = "Was not carried out".into();
    let outcome = ToolOutcome { success: false, message, content, error: Some(why.to_owned()) };
    calls::finish_call(ledger, step, call, outcome, false, CallExtras::default());
    let run = ledger.channels.chats.known(call.key).and_then(|chat| Some(chat.run.as_ref()?.id));
    if let Some(command) = run.and_then(|run| calls::result_for_agent(ledger, call.key, run, &call.id)) {
        step.send_to_agent(call.key, command);
    }
}

/// Tells the agents of a session's chats what tools its clients offer, where they know
/// otherwise.
pub(super) fn send_tools_of_session(ledger: &mut Ledger, step: &mut Step<'_>, session: SessionKey) {
    for chat in ledger.channels.chats_in(session) {
        send_tools(ledger, step, chat);
    }
}

/// Sends the tools of clients to the agent of one chat, once it is open.
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

/// Returns the action by which an active client offers these tools in place of those from before.
///
/// # Errors
/// When it takes no part in the session, or these are no tools.
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

fn is_active(ledger: &Ledger, session: SessionKey, client_id: &str) -> bool {
    ledger.channels.sessions.known(session).is_some_and(|session| {
        session.state.active_clients.iter().any(|client| client.client_id == client_id)
    })
}

/// The sessions in memory that a client is active in.
fn sessions_with(ledger: &Ledger, client_id: &str) -> Vec<SessionKey> {
    ledger.channels.sessions.keys().copied().filter(|key| is_active(ledger, *key, client_id)).collect()
}

/// The calls of a chat's running turn that a client is to finish.
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
