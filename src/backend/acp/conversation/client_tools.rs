//! Calls of clients' tools, through the MCP server that the agent was given.
//!
//! Owns: the calls that wait for a client, each answered once, however the turn ends; and notifying
//! clients if their tools do not reach the agent.
//! Never: runs a client's tool outside of a turn.

use std::collections::HashMap;

use agent_client_protocol_schema::v1::McpServer;
use ahp_types::state::{ToolCallResult, ToolDefinition};
use serde_json::{json, Value};

use super::requests::REQUESTS_MAX;
use super::{AcpConversation, Next, PromptRun};
use crate::backend::acp::agent::Agent;
use crate::backend::acp::client_tools::listener::ToolServer;
use crate::backend::acp::client_tools::{refusal, result, ClientToolCall, OfferedTools, ToolServerEvent};
use crate::backend::acp::extra_meta;
use crate::backend::acp::peer::PeerMessage;

/// Reason why tools do not reach an agent whose operator has disabled them.
const TURNED_OFF: &str = "clients' tools are disabled for this agent (`client_tools = false`)";

/// Reason why a call that needed the user's permission is refused.
const DENIED: &str = "the user denied this call";

/// Reason why tools do not reach an agent that ignores such MCP servers.
const NOT_STARTED: &str = "the agent has not started the MCP server that offers clients' tools";

#[derive(Debug)]
pub(super) struct ClientTools {
    server: Result<ToolServer, String>,
    entry: Option<McpServer>,
    /// Set if the agent was given the server.
    is_given: bool,
    /// Calls that wait for a client, by their ids in the turn.
    waiting: HashMap<String, ClientToolCall>,
    /// Results of calls that clients have completed before the agent requested them.
    early: HashMap<String, Value>,
    /// Offered tools, if there is no server.
    unreachable: OfferedTools,
}

impl ClientTools {
    /// Serves the tools that clients offer when a conversation opens.
    pub(super) async fn new(agent: &Agent, tools: Vec<ToolDefinition>) -> Self {
        let unreachable = OfferedTools::new(tools.clone());
        let (mut server, mut entry) = (Err(TURNED_OFF.to_owned()), None);
        if agent.spec.client_tools {
            let served = agent.client_tools.serve(tools).await;
            let served = served.and_then(|server| Ok((server.entry()?, server)));
            match served {
                Ok((served_entry, serving)) => (server, entry) = (Ok(serving), Some(served_entry)),
                Err(error) => {
                    tracing::warn!(
                        agent = agent.spec.name,
                        "the MCP server for clients' tools cannot be started: {error:#}"
                    );
                    server = Err(format!("{error:#}"));
                }
            }
        }
        Self { server, entry, is_given: false, waiting: HashMap::new(), early: HashMap::new(), unreachable }
    }

    /// Returns the server for the agent. An agent that shares servers among sessions is given it
    /// only if there are tools, since each such session needs a process of its own.
    pub(super) fn servers(&mut self, is_shared: bool) -> Vec<McpServer> {
        let has_tools = self.server.as_ref().is_ok_and(ToolServer::has_tools);
        self.is_given = has_tools || !is_shared;
        self.entry.iter().filter(|_| self.is_given).cloned().collect()
    }

    /// Returns whether the agent must be given the server anew to list the tools of clients.
    fn is_out_of_date(&self) -> bool {
        self.server.as_ref().is_ok_and(|server| match self.is_given {
            true => server.is_out_of_date(),
            false => server.has_tools(),
        })
    }

    /// Waits for the agent's next event, for ever if there is no server.
    pub(super) async fn next_event(&mut self) -> Option<ToolServerEvent> {
        match &mut self.server {
            Ok(server) => server.next_event().await,
            Err(_) => std::future::pending().await,
        }
    }
}

impl AcpConversation {
    pub(super) fn offer_client_tools(&mut self, tools: Vec<ToolDefinition>) {
        match &mut self.client_tools.server {
            Ok(server) => server.offer(tools),
            Err(_) => self.client_tools.unreachable = OfferedTools::new(tools),
        }
        self.client_tools_are_offered();
    }

    /// Passes the offered tools to the calls, or notes that the tools do not reach the agent.
    pub(super) fn client_tools_are_offered(&mut self) {
        match &self.client_tools.server {
            Ok(server) => self.calls.offer(server.offered()),
            Err(why) => {
                let why = why.clone();
                self.note_unreachable(&why);
            }
        }
    }

    /// Returns whether the session must be reopened for its tools, and can be without loss: some
    /// agents list tools only when they are given the server. A session that is not closed before
    /// keeps its server.
    pub(super) fn must_reopen_for_tools(&self) -> bool {
        let must = self.reopening_loses_nothing() && self.client_tools.is_out_of_date();
        if must {
            let agent = &self.agent.spec.name;
            tracing::info!(
                agent,
                "the agent's session is reopened, so that the agent lists the tools of clients"
            );
        }
        must
    }

    /// Returns whether the session can be closed and opened again without loss.
    pub(super) fn reopening_loses_nothing(&self) -> bool {
        let closes = self.running.capabilities.session_capabilities.close.is_some();
        self.session.is_new() || closes && self.can_be_taken_up() && !self.own_turns.has_background()
    }

    pub(super) fn handle_tool_event(&mut self, event: Option<ToolServerEvent>) -> Next {
        match event {
            Some(ToolServerEvent::Listed) => self.note(extra_meta::CLIENT_TOOLS, None),
            Some(ToolServerEvent::Called(called)) => {
                return self.receive(PeerMessage::Called(Box::new(called)))
            }
            Some(ToolServerEvent::Withdrawn(number)) => {
                self.own_turns.drop_held_call(number);
                let mut waiting = self.client_tools.waiting.extract_if(|_, called| called.number == number);
                let withdrawn = waiting.next();
                drop(waiting);
                if let Some((id, _)) = withdrawn {
                    let events = self.calls.withdraw_tool_call(&id);
                    self.send_call_events(events.into_iter().collect());
                }
            }
            // The listener has ended.
            None => self.client_tools.server = Err("the host is shutting down".to_owned()),
        }
        Next::Hear
    }

    /// Passes a call to a client, or refuses it if no turn is running for it.
    pub(super) fn handle_tool_call(&mut self, called: ClientToolCall) {
        if !self.run.as_ref().is_some_and(PromptRun::goes_on) {
            return called
                .answer(refusal("no turn is running: clients' tools can be called only during a turn"));
        }
        if self.client_tools.waiting.len() >= REQUESTS_MAX {
            return called.answer(refusal("too many calls of clients' tools are in progress"));
        }
        let (id, event) = self.calls.wants(&called.tool, &called.arguments, &called.mentions);
        if let Some(result) = self.client_tools.early.remove(&id) {
            return called.answer(result);
        }
        if self.calls.is_denied(&id) {
            return called.answer(refusal(DENIED));
        }
        self.client_tools.waiting.insert(id, called);
        self.send_call_events(vec![event]);
    }

    /// Ends a call that its client has completed, or that no client will run.
    pub(super) fn finish_tool_call(&mut self, id: &str, outcome: &ToolCallResult) {
        match self.client_tools.waiting.remove(id) {
            Some(called) => called.answer(result(outcome)),
            None => drop(self.client_tools.early.insert(id.to_owned(), result(outcome))),
        }
        if let Some(request) = self.calls.end_call(id) {
            self.answer_permission(&request, None);
        }
    }

    pub(super) fn denied_client_tool(&mut self, id: &str) {
        if let Some(called) = self.client_tools.waiting.remove(id) {
            called.answer(refusal(DENIED));
        }
    }

    /// Refuses all calls that wait for a client, and drops results that the agent has not
    /// requested.
    pub(super) fn refuse_client_tools(&mut self, why: &str) {
        self.client_tools.early.clear();
        for (_, called) in self.client_tools.waiting.drain() {
            called.answer(refusal(why));
        }
    }

    /// Notes, at the end of a turn, tools that the agent has not listed by then.
    pub(super) fn check_client_tools(&mut self) {
        if self.client_tools.server.as_ref().is_ok_and(|server| !server.was_listed()) {
            self.note_unreachable(NOT_STARTED);
        }
    }

    /// Notifies clients that their tools do not reach the agent, if any are offered.
    fn note_unreachable(&mut self, why: &str) {
        let offered = match &self.client_tools.server {
            Ok(server) => server.offered(),
            Err(_) => self.client_tools.unreachable.clone().into(),
        };
        let note = (!offered.is_empty()).then(|| {
            tracing::info!(
                agent = self.agent.spec.name,
                why,
                "clients' tools are not available to the agent"
            );
            json!({ "reach": false, "tools": offered.names(), "why": why })
        });
        self.note(extra_meta::CLIENT_TOOLS, note);
    }
}
