//! Requests of clients, from the message to the answer.
//!
//! Owns: the single place where methods are called and their results become answers.
//! Never: answers a request twice, or not at all: a handler returns exactly one `Answer`.

use ahp_types::commands::{
    ListAutomationTriggerDefinitionsParams, ListAutomationTriggerDefinitionsResult, RunAutomationResult,
};
use serde::Deserialize;
use serde_json::json;

use crate::host::agents::adoption::completion_request;
use crate::host::automations::runs;
use crate::host::catalogue::missed;
use crate::host::clients::connections::{States, Subscribed};
use crate::host::configuration::completions::CompletionTarget;
use crate::host::effects::{
    ClientMessage, ConnectionId, DispatchMode, Frame, InternalRequest, Output, Resource, SessionOptions,
};
use crate::host::ledger::Ledger;
use crate::host::relays::{FileServer, FileServers};
use crate::host::router::answers::{Answer, EMPTY, NULL};
use crate::host::terminals::ptys;
use crate::host::{automations, catalogue, clients, configuration, relays, Host, Step};
use crate::wire::errors::RpcError;
use crate::wire::methods::{ListSessionsParams, Method, MethodKind, IGNORED};
use crate::wire::rpc::{to_json, Incoming, MethodName, Params};

use super::dispatch::is_chat_of;
use super::disposal::announce_session;
use super::{adoption, connections, moves};

impl Host {
    pub(in crate::host) fn dispatch(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        message: ClientMessage,
    ) {
        let (id, served) = match message {
            ClientMessage::Internal(id, request) => (id, self.serve_internal(step, connection, *request)),
            ClientMessage::Protocol(Incoming::Request { id, method: name, params }) => {
                let served = route(&self.ledger, connection, &name)
                    .and_then(|method| Ok((method, self.serve_request(step, connection, method, &params)?)));
                (Some(id), served)
            }
            ClientMessage::Protocol(Incoming::Notification { method: name, params }) => {
                let served = route(&self.ledger, connection, &name).and_then(|method| match method.kind() {
                    MethodKind::Notification => {
                        self.serve_request(step, connection, method, &params).map(|_| ())
                    }
                    MethodKind::Request => Err(RpcError::invalid_request("a request needs an `id`")),
                });
                if let Err(error) = served {
                    let name = name.as_str();
                    if IGNORED.contains(&name) {
                        return tracing::debug!(
                            method = name,
                            "a notification that this host does not use was ignored"
                        );
                    }
                    // A notification has no answer, so only the log can report the error.
                    tracing::warn!(method = name, %error, "a notification was ignored");
                }
                return;
            }
            ClientMessage::Protocol(Incoming::Malformed { id, error }) => {
                tracing::debug!(%error, "a line was rejected: it is not a JSON-RPC message");
                return step.emit(Output::Frame(connection, Frame::Error { id, error }));
            }
            ClientMessage::Protocol(Incoming::Response(reply)) => {
                return self.relays.reply(step, connection, reply);
            }
        };
        let Some(id) = id else {
            if let Err(error) = served {
                tracing::warn!(%error, "a notification of the host's own edge was ignored");
            }
            return;
        };
        let result = |id, method, result| Output::Frame(connection, Frame::result(id, method, result));
        let with_states = |id, method, states| match states {
            Subscribed::States(States { json, kinds: states }) => {
                let frame = Frame::Result { id, method, result: json.into(), states };
                Output::Frame(connection, frame)
            }
            Subscribed::Large(states) => Output::States(connection, id, states),
        };
        match served {
            Ok((method, Answer::Json(json))) => step.emit(result(id, method, json)),
            Ok((method, Answer::States(states))) => step.emit(with_states(id, method, states)),
            Ok((method, Answer::Created(session))) => {
                let key = session.session;
                step.emit(result(id, method, NULL));
                announce_session(&mut self.ledger, &self.agents, &mut self.changes, step, session);
                clients::plugins_may_differ(&self.ledger, step, key);
            }
            Ok((method, Answer::Returned(states, missed))) => {
                step.emit(with_states(id, method, states));
                missed::send_missed(&self.ledger, step, connection, missed);
            }
            Ok((_, Answer::AgentSessions(request))) => {
                step.emit(Output::AgentSessions(connection, id, request));
            }
            Ok((_, Answer::Page(page))) => step.emit(Output::List(connection, id, page)),
            Ok((_, Answer::Relay(relay))) => self.relays.ask(step, connection, id, relay),
            Ok((_, Answer::Terminal(new))) => {
                ptys::create_terminal(&mut self.ledger, step, connection, id, *new)
            }
            Ok((_, Answer::Operation(params))) => {
                self.changes.queue_operation(&self.ledger, step, (connection, id), *params)
            }
            Ok((_, Answer::Resource(resource))) => {
                step.emit(Output::Resource(connection, id, resource));
            }
            Err(error) => step.emit(Output::Frame(connection, Frame::Error { id: Some(id), error })),
        }
        if self.ledger.presence.client_of(connection).is_some() {
            runs::wake(&mut self.ledger, step);
        }
    }

    fn serve_internal(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        request: InternalRequest,
    ) -> Result<(Method, Answer), RpcError> {
        #[derive(Deserialize)]
        struct Channel {
            channel: String,
        }
        // The nearest method determines which connections may send the request, and when.
        let method = match &request {
            InternalRequest::Note(_) => Method::Ping,
            InternalRequest::Preview(_) | InternalRequest::Names(_) => Method::Subscribe,
            InternalRequest::Summaries(_) => Method::ListSessions,
            InternalRequest::CreateSession(..) => Method::CreateSession,
            InternalRequest::CreateChat(..) => Method::CreateChat,
            InternalRequest::Dispatch(..) => Method::DispatchAction,
            InternalRequest::OfSession(method, ..) => *method,
        };
        route(&self.ledger, connection, &MethodName::Served(method))?;
        let answer = match request {
            InternalRequest::Note(abilities) => {
                self.clients.note_abilities(&mut self.ledger, step, connection, abilities);
                Answer::Json(NULL)
            }
            InternalRequest::Preview(uris) => {
                let (targets, _) = clients::connections::resolve(&self.ledger, &uris);
                Answer::States(self.ledger.states_of(Method::Reconnect, &targets, 0).into())
            }
            InternalRequest::Names(uris) => {
                let names = clients::connections::core_names(&self.ledger, &uris);
                Answer::Json(to_json(&json!({ "names": names })).into())
            }
            InternalRequest::Summaries(uris) => {
                let summaries = catalogue::sessions::summaries_in_memory(&self.ledger, uris.as_deref());
                Answer::Json(summaries.into())
            }
            InternalRequest::CreateSession(params, options) => adoption::create_session(
                &mut self.ledger,
                &self.agents,
                step,
                connection,
                params.read()?,
                &options,
            )?,
            InternalRequest::CreateChat(params, selection) => {
                self.ledger.check_store()?;
                self.create_chat(step, connection, params.read()?, Some(&selection))?;
                Answer::Json(NULL)
            }
            InternalRequest::Dispatch(params, mode, session) => {
                self.dispatch_action(step, connection, params.read()?, &mode, session.as_deref())?;
                Answer::Json(NULL)
            }
            InternalRequest::OfSession(method, params, session) => {
                let chat = self.ledger.find(&params.read::<Channel>()?.channel);
                if !chat.is_some_and(|chat| is_chat_of(&self.ledger, chat, &session)) {
                    return Err(self.ledger.not_found(&session));
                }
                self.serve_request(step, connection, method, &params)?
            }
        };
        Ok((method, answer))
    }

    pub(super) fn serve_request(
        &mut self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        method: Method,
        params: &Params,
    ) -> Result<Answer, RpcError> {
        let json = |result: Vec<u8>| Answer::Json(result.into());
        let nothing = |()| Answer::Json(NULL);
        let changes_state = matches!(
            method,
            Method::DisposeSession
                | Method::CreateChat
                | Method::DisposeChat
                | Method::MoveChat
                | Method::InvokeChangesetOperation
        );
        if changes_state {
            self.ledger.check_store()?;
        }
        match method {
            Method::Ping => Ok(nothing(())),
            Method::Initialize => self.initialize(step, connection, &params.read()?).map(Answer::States),
            Method::Reconnect => {
                let (states, missed) = self.reconnect(step, connection, &params.read()?)?;
                Ok(Answer::Returned(states, missed))
            }
            Method::Subscribe => connections::serve_subscribe(
                &mut self.ledger,
                &mut self.clients,
                &mut self.changes,
                step,
                connection,
                &params.read()?,
            )
            .map(Answer::States),
            Method::FetchTurns => self.ledger.fetch_turns(step, connection, &params.read()?).map(json),
            Method::Unsubscribe => connections::serve_unsubscribe(
                &mut self.ledger,
                &mut self.clients,
                &mut self.changes,
                step,
                connection,
                &params.read()?,
            )
            .map(nothing),
            Method::ListSessions => {
                let params: ListSessionsParams = params.read()?;
                let page = catalogue::sessions::page_of(&params)?;
                self.summaries.send_all(&mut self.ledger, step);
                Ok(Answer::Page(page))
            }
            Method::CreateSession => adoption::create_session(
                &mut self.ledger,
                &self.agents,
                step,
                connection,
                params.read()?,
                &SessionOptions::default(),
            ),
            Method::DisposeSession => self.dispose_session(step, &params.read()?).map(nothing),
            Method::CreateChat => self.create_chat(step, connection, params.read()?, None).map(nothing),
            Method::DisposeChat => self.dispose_chat(step, &params.read()?).map(nothing),
            Method::MoveChat => {
                moves::move_chat(&mut self.ledger, &self.agents, &self.changes, step, params.read()?)
                    .map(|moved| json(to_json(&moved)))
            }
            Method::Authenticate => self
                .agents
                .authenticate(&mut self.ledger, step, connection, params)
                .map(|()| Answer::Json(EMPTY)),
            Method::ResolveSessionConfig => configuration::requests::resolve_session_config(
                &self.ledger,
                &mut self.agents,
                step,
                connection,
                &params.read()?,
            )
            .map(json),
            Method::SessionConfigCompletions => {
                let params = params.read()?;
                match completion_request(&self.ledger, &self.agents, step, connection, &params)? {
                    Some(request) => Ok(Answer::AgentSessions(Box::new(request))),
                    None => {
                        configuration::requests::session_config_completions(&self.agents, &params).map(json)
                    }
                }
            }
            Method::Completions => Ok(
                match configuration::completions::completions(&self.ledger, &self.agents, &params.read()?)? {
                    CompletionTarget::Known(items) => json(items),
                    CompletionTarget::Files(files) => Answer::Resource(Resource::Files(files)),
                },
            ),
            Method::InvokeChangesetOperation => Ok(Answer::Operation(Box::new(params.read()?))),
            Method::CreateResourceWatch
            | Method::ResourceRead
            | Method::ResourceList
            | Method::ResourceResolve
            | Method::ResourceRequest
            | Method::ResourceWrite
            | Method::ResourceMkdir
            | Method::ResourceMove
            | Method::ResourceCopy
            | Method::ResourceDelete => match self.relays.route(method, params, || servers(&self.ledger))? {
                Some(relay) => Ok(Answer::Relay(relay)),
                None => relays::resources::resource(&self.ledger, method, params).map(Answer::Resource),
            },
            Method::DisposeTerminal => {
                ptys::dispose_terminal(&mut self.ledger, step, connection, &params.read()?).map(nothing)
            }
            // Answered when the program has started, which needs the request's id.
            Method::CreateTerminal => {
                Ok(Answer::Terminal(ptys::new_terminal(&self.ledger, step, connection, params.read()?)?))
            }
            Method::ListAutomationTriggerDefinitions => {
                params.read::<ListAutomationTriggerDefinitionsParams>()?;
                Ok(json(to_json(&ListAutomationTriggerDefinitionsResult { items: Vec::new() })))
            }
            Method::RunAutomation => {
                let resource = runs::request_run(&mut self.ledger, step, params.read()?)?;
                Ok(json(to_json(&RunAutomationResult { resource })))
            }
            Method::FetchAutomationRuns => {
                runs::fetch_runs(&self.ledger, &params.read()?).map(|()| Answer::Json(EMPTY))
            }
            Method::DispatchAction => self
                .dispatch_action(step, connection, params.read()?, &DispatchMode::Plain, None)
                .map(nothing),
        }
    }
}

/// Returns the method of this name, if the connection may call it now.
fn route(ledger: &Ledger, connection: ConnectionId, name: &MethodName) -> Result<Method, RpcError> {
    let method = name.served();
    let live = ledger.presence.client_of(connection).is_some();
    match method {
        Some(Method::Ping | Method::Initialize | Method::Reconnect) => {}
        _ if !live => return Err(RpcError::not_initialized(name.as_str())),
        _ => {}
    }
    match method {
        Some(Method::Initialize) if live => Err(RpcError::invalid_request(
            "this connection is initialized already: `initialize` is sent once, as the first message",
        )),
        Some(
            Method::ListAutomationTriggerDefinitions | Method::RunAutomation | Method::FetchAutomationRuns,
        ) if automations::capabilities(ledger).is_none() => Err(RpcError::method_not_found(name.as_str())),
        Some(method) => Ok(method),
        None => Err(RpcError::method_not_found(name.as_str())),
    }
}

pub(super) fn servers(ledger: &Ledger) -> FileServers<'_> {
    let clients = ledger.presence.connections.iter().map(|(connection, client)| FileServer {
        connection: *connection,
        client_id: client.client_id.as_deref(),
        answers_nothing: !client.abilities.answers_requests,
        is_leaving: ledger.presence.leaving.contains(connection),
    });
    let active = ledger.channels.sessions.values().flat_map(|session| &session.state.active_clients);
    let published = active.flat_map(|client| {
        let published = client.customizations.iter().flatten();
        published.map(|published| (client.client_id.as_str(), published.uri.as_str()))
    });
    FileServers { clients: clients.collect(), published: published.collect() }
}
