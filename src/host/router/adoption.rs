//! Creation of sessions, of which some adopt a session that an agent stores.
//!
//! Owns: the two steps of an adoption: the request to the agent, and the new session with the turns
//! of the answer, which is stored and announced as a whole or not at all.
//! Never: decides what can be adopted; `agents::adoption` does.

use ahp_types::commands::CreateSessionParams;
use serde_json::Value;

use crate::host::agents::adoption::{adoption_request, evaluate, meta_of, Adoption};
use crate::host::agents::AgentRegistry;
use crate::host::catalogue;
use crate::host::catalogue::chats::Beginning;
use crate::host::catalogue::sessions::NewSession;
use crate::host::changes::Changes;
use crate::host::clients;
use crate::host::effects::{
    AgentSessionsAnswer, AgentSessionsFailure, AgentSessionsRequest, ConnectionId, Frame, KnownConversation,
    Output, SessionOptions,
};
use crate::host::ledger::Ledger;
use crate::host::router::answers::{Answer, NULL};
use crate::host::router::disposal::announce_session;
use crate::host::Step;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{to_sorted_json, RequestId};
use crate::wire::uris::default_chat_of;

/// Answer of an agent about the sessions that it stores, with the request.
pub(super) struct AnsweredRequest {
    pub(super) connection: ConnectionId,
    pub(super) id: RequestId,
    pub(super) request: AgentSessionsRequest,
    pub(super) answer: Result<AgentSessionsAnswer, AgentSessionsFailure>,
    /// Conversations of stored sessions.
    pub(super) known: Vec<KnownConversation>,
}

/// Creates a session, or requests the one that it adopts from the agent.
pub(super) fn create_session(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    connection: ConnectionId,
    mut params: CreateSessionParams,
    options: &SessionOptions,
) -> Result<Answer, RpcError> {
    if options.fork.is_none() {
        if let Some(request) = adoption_request(ledger, agents, step, connection, &mut params)? {
            return Ok(Answer::AgentSessions(Box::new(request)));
        }
    }
    catalogue::sessions::create_session(ledger, agents, step, connection, params, options)
        .map(Answer::Created)
}

/// Answers a client's request with the answer of an agent.
pub(super) fn agent_sessions_answered(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    changes: &mut Changes,
    step: &mut Step<'_>,
    answered: AnsweredRequest,
) {
    let AnsweredRequest { connection, id, request, answer, known } = answered;
    if ledger.presence.client_of(connection).is_none() {
        return tracing::debug!("an answer about an agent's sessions was dropped: its client has left");
    }
    let (method, result, new) = match evaluate(ledger, agents, request, answer, known) {
        Ok(Adoption::Values(values)) => {
            (Method::SessionConfigCompletions, to_sorted_json(&values).into(), None)
        }
        Ok(Adoption::Session(params, beginning, data)) => {
            match adopt_session(ledger, agents, step, connection, *params, *beginning, data) {
                Ok(new) => (Method::CreateSession, NULL, Some(new)),
                Err(error) => {
                    return step.emit(Output::Frame(connection, Frame::Error { id: Some(id), error }))
                }
            }
        }
        Err(error) => return step.emit(Output::Frame(connection, Frame::Error { id: Some(id), error })),
    };
    step.emit(Output::Frame(connection, Frame::result(id, method, result)));
    if let Some(new) = new {
        let key = new.session;
        announce_session(ledger, agents, changes, step, new);
        clients::plugins_may_differ(ledger, step, key);
    }
}

fn adopt_session(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    connection: ConnectionId,
    params: CreateSessionParams,
    beginning: Beginning,
    data: Value,
) -> Result<NewSession, RpcError> {
    ledger.check_store()?;
    catalogue::sessions::check_new_uri(ledger, &params.channel)?;
    // The agent has just used the directories.
    step.findings = params.working_directories.iter().flatten().map(|it| (it.clone(), Ok(()))).collect();
    let meta = meta_of(&default_chat_of(&params.channel), data);
    let options = SessionOptions::default();
    let new = catalogue::sessions::create_session_with(
        ledger, agents, step, connection, params, &options, beginning,
    )?;
    if let Some(session) = ledger.channels.sessions.known_mut(new.session) {
        session.state.meta = Some(meta);
    }
    Ok(new)
}
