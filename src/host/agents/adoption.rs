//! Adopted sessions: sessions that an agent stores, from its own terminal program for example, and
//! with which a session of the host goes on.
//!
//! Owns: the setting by which clients list and adopt such sessions, and the answers to them.
//! Never: asks an agent itself, or adopts a session that the host goes on with already.

use ahp_types::commands::{
    CreateSessionParams, ResolveSessionConfigResult, SessionConfigCompletionsResult, SessionConfigValueItem,
};
use ahp_types::state::SessionConfigPropertySchema;
use serde_json::{json, Value};

use crate::host::agents::AgentRegistry;
use crate::host::catalogue::chats::Beginning;
use crate::host::configuration::requests::find_agent;
use crate::host::effects::{
    AgentDescription, AgentSession, AgentSessionsAnswer, AgentSessionsFailure, AgentSessionsPurpose,
    AgentSessionsQuery, AgentSessionsRequest, ConnectionId, Handle, KnownConversation, OpenFailure,
    ReadAgentSession,
};
use crate::host::ledger::Ledger;
use crate::host::{catalogue, Step};
use crate::wire::errors::RpcError;
use crate::wire::methods::ConfigCompletionsParams;
use crate::wire::uris::canonical_file;

/// Setting of a new session with the agent's name of the session to adopt.
pub const ADOPT: &str = "adoptSession";

/// Name in a session's `_meta` of the data about an adopted session, by the URI of the chat.
const ADOPTED: &str = "adoptedSession";

/// Maximum number of sessions in an answer; those beyond it are found by more text.
const COMPLETIONS_MAX: usize = 200;

/// Adds the setting to the settings of a new session, if the agent's sessions can be adopted.
pub(crate) fn add_setting(agent: &AgentDescription, resolved: &mut ResolveSessionConfigResult) {
    if agent.adopts != Some(true) || agent.config.properties.contains_key(ADOPT) {
        return;
    }
    let property = json!({
        "type": "string",
        "title": "Continue",
        "description": "Session of the agent to go on with, such as one from its own terminal program",
        "enum": [],
        "enumDynamic": true,
    });
    match serde_json::from_value::<SessionConfigPropertySchema>(property) {
        Ok(property) => drop(resolved.schema.properties.insert(ADOPT.to_owned(), property)),
        Err(error) => tracing::error!(%error, "the setting `{ADOPT}` cannot be described"),
    }
}

/// Returns the request that answers a query for values of the setting; `None` if the client asks
/// for values of another one.
pub(crate) fn completion_request(
    ledger: &Ledger,
    agents: &AgentRegistry,
    step: &Step<'_>,
    connection: ConnectionId,
    params: &ConfigCompletionsParams,
) -> Result<Option<AgentSessionsRequest>, RpcError> {
    let agent = find_agent(agents, params.provider.as_deref())?;
    if params.property != ADOPT || agent.config.properties.contains_key(ADOPT) || !may_adopt(agent) {
        return Ok(None);
    }
    let directory = params.working_directory.as_deref().map(|uri| {
        canonical_file(uri)
            .map_err(|why| RpcError::invalid_params(format_args!("`workingDirectory`: `{uri}` {why}")))
    });
    let query = AgentSessionsQuery::List { directory: directory.transpose()? };
    let filter = params.query.clone().unwrap_or_default();
    let purpose = AgentSessionsPurpose::Complete(filter);
    request(ledger, agents, step, connection, agent, query, purpose).map(Some)
}

/// Returns the request that a `createSession` with the setting requires; `None` without it.
pub(crate) fn adoption_request(
    ledger: &Ledger,
    agents: &AgentRegistry,
    step: &Step<'_>,
    connection: ConnectionId,
    params: &mut CreateSessionParams,
) -> Result<Option<AgentSessionsRequest>, RpcError> {
    let agent = find_agent(agents, params.provider.as_deref())?;
    if agent.config.properties.contains_key(ADOPT) {
        return Ok(None);
    }
    let Some(value) = params.config.as_mut().and_then(|config| config.remove(ADOPT)) else {
        return Ok(None);
    };
    let name = match value {
        Value::String(name) if name.is_empty() => return Ok(None),
        Value::Null => return Ok(None),
        Value::String(name) => name,
        _ => {
            return Err(RpcError::invalid_params(format_args!("`config.{ADOPT}` must be of type string")));
        }
    };
    if !may_adopt(agent) {
        return Err(RpcError::invalid_params(format_args!(
            "`config.{ADOPT}`: the agent `{}` does not list its sessions, or does not load them",
            agent.info.provider
        )));
    }
    ledger.check_store()?;
    catalogue::sessions::check_new_uri(ledger, &params.channel)?;
    refuse_known(&known_in_memory(ledger), &agent.info.provider, &name)?;
    params.provider = Some(agent.info.provider.clone());
    let directories =
        catalogue::sessions::new_directories(&step.findings, agent, params.working_directories.take())?;
    let directory = directories.as_ref().and_then(|directories| directories.first().cloned());
    params.working_directories = directories;
    let query = AgentSessionsQuery::Read { name, directory };
    let purpose = AgentSessionsPurpose::Adopt(Box::new(params.clone()));
    request(ledger, agents, step, connection, agent, query, purpose).map(Some)
}

/// Returns whether the agent's sessions can be adopted, as far as is known.
fn may_adopt(agent: &AgentDescription) -> bool {
    agent.adopts.unwrap_or(agent.may_have_more_settings)
}

fn request(
    ledger: &Ledger,
    agents: &AgentRegistry,
    step: &Step<'_>,
    connection: ConnectionId,
    agent: &AgentDescription,
    query: AgentSessionsQuery,
    purpose: AgentSessionsPurpose,
) -> Result<AgentSessionsRequest, RpcError> {
    agents.check_tokens(ledger, step, connection, agent)?;
    let client = ledger.presence.client_of(connection).unwrap_or_default();
    let tokens = agents.tokens_for_agent(ledger, step, client, agent);
    Ok(AgentSessionsRequest { provider: agent.info.provider.clone(), tokens, query, purpose })
}

/// Returns the conversations of all sessions in memory.
fn known_in_memory(ledger: &Ledger) -> Vec<KnownConversation> {
    let chats = ledger.channels.chats.values().filter_map(|chat| {
        let session = ledger.channels.sessions.known(chat.session)?;
        Some(KnownConversation {
            provider: session.state.provider.clone(),
            name: chat.handle.as_ref()?.name.clone(),
            session: session.channel.uri.clone(),
            is_removed: false,
        })
    });
    chats.collect()
}

/// Fails if a session of the host goes on with this conversation.
fn refuse_known(known: &[KnownConversation], provider: &str, name: &str) -> Result<(), RpcError> {
    let is_it = |it: &&KnownConversation| !it.is_removed && it.provider == provider && it.name == name;
    match known.iter().find(is_it) {
        Some(known) => Err(RpcError::session_goes_on_already(name, &known.session)),
        None => Ok(()),
    }
}

/// Values of the setting, or the beginning of the session that adopts another one.
pub(crate) enum Adoption {
    Values(SessionConfigCompletionsResult),
    Session(Box<CreateSessionParams>, Box<Beginning>, Value),
}

/// Evaluates the agent's answer to a request. `known` are the conversations of stored sessions.
pub(crate) fn evaluate(
    ledger: &Ledger,
    agents: &AgentRegistry,
    request: AgentSessionsRequest,
    answer: Result<AgentSessionsAnswer, AgentSessionsFailure>,
    mut known: Vec<KnownConversation>,
) -> Result<Adoption, RpcError> {
    let AgentSessionsRequest { provider, purpose, .. } = request;
    // A session in memory may have come back from the trash, or been disposed of since the read.
    known.retain(|it| it.is_removed || !ledger.channels.by_uri.contains_key(&it.session));
    known.extend(known_in_memory(ledger));
    let answer = answer.map_err(|AgentSessionsFailure { kind, reason }| match kind {
        OpenFailure::LoginRequired => {
            let agent = agents.of(&provider);
            let resources = agent.and_then(|agent| agent.info.protected_resources.clone());
            RpcError { message: reason, ..RpcError::auth_required(&provider, &resources.unwrap_or_default()) }
        }
        OpenFailure::Unavailable => RpcError::unavailable(reason),
    })?;
    match (answer, purpose) {
        (AgentSessionsAnswer::Listed(sessions), AgentSessionsPurpose::Complete(query)) => {
            let is_foreign = |session: &AgentSession| {
                !known.iter().any(|it| it.provider == provider && it.name == session.name)
            };
            Ok(Adoption::Values(values(sessions.into_iter().filter(is_foreign), &query)))
        }
        (AgentSessionsAnswer::Read(read), AgentSessionsPurpose::Adopt(mut params)) => {
            refuse_known(&known, &provider, &read.session.name)?;
            let ReadAgentSession { session, turns, omitted } = *read;
            if params.working_directories.is_none() {
                params.working_directories = session.directory.map(|directory| vec![directory]);
            }
            let data = json!({ "id": session.name, "turns": turns.len(), "omittedTurns": omitted });
            let title = session.title.as_deref().and_then(catalogue::title_from).or_else(|| {
                let first = turns.iter().find_map(|turn| turn.message());
                first.and_then(|message| catalogue::title_from(&message.text))
            });
            let beginning = Beginning {
                turns,
                title,
                handle: Some(Handle { name: session.name, resumes: true }),
                ..Beginning::default()
            };
            Ok(Adoption::Session(params, Box::new(beginning), data))
        }
        _ => Err(RpcError::internal("the answer of an agent is not the one to its request")),
    }
}

/// Returns the `_meta` of a session that has adopted another one, in the form of notes.
pub(crate) fn meta_of(chat: &str, data: Value) -> ahp_types::common::JsonObject {
    [(ADOPTED.to_owned(), json!({ chat: data }))].into_iter().collect()
}

fn values(sessions: impl Iterator<Item = AgentSession>, query: &str) -> SessionConfigCompletionsResult {
    let query = query.to_lowercase();
    let items = sessions.map(|session| {
        let AgentSession { name, title, directory, modified_at } = session;
        let description: Vec<String> = modified_at.into_iter().chain(directory).collect();
        SessionConfigValueItem {
            label: title.unwrap_or_else(|| name.clone()),
            description: Some(description.join(" ")).filter(|description| !description.is_empty()),
            value: name,
        }
    });
    let fits = |item: &SessionConfigValueItem| {
        let texts = [Some(&item.value), Some(&item.label), item.description.as_ref()];
        texts.into_iter().flatten().any(|text| text.to_lowercase().contains(&query))
    };
    SessionConfigCompletionsResult { items: items.filter(fits).take(COMPLETIONS_MAX).collect() }
}
