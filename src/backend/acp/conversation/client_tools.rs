//! Calls that an agent has clients carry out, through the MCP server that it was given.
//!
//! Owns: the calls that wait for a client, each answered once, whatever comes of the turn; and that
//! clients are told when their tools do not reach the agent.
//! Never: has a client carry out anything outside of a turn.

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
use crate::host::effects::Event;

/// Why tools do not reach an agent whose operator does not want that.
const TURNED_OFF: &str = "`client_tools = false` is set for this agent";

/// Why a call is not carried out that the user was asked about.
const DENIED: &str = "the user does not allow this call";

/// Reason for which tools do not reach an agent that takes no MCP servers like that.
const NOT_STARTED: &str = "the agent has not started the MCP server that it was given";

#[derive(Debug)]
pub(super) struct ClientTools {
    server: Result<ToolServer, String>,
    entry: Option<McpServer>,
    /// The calls that wait, by their ids in the turn.
    waiting: HashMap<String, ClientToolCall>,
    /// Results of calls whose clients were done before the agent asked for them.
    early: HashMap<String, Value>,
    /// The tools, where there is no server.
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
                Ok((told, serving)) => (server, entry) = (Ok(serving), Some(told)),
                Err(error) => {
                    tracing::warn!(agent = agent.spec.name, "tools of clients are not served: {error:#}");
                    server = Err(format!("{error:#}"));
                }
            }
        }
        Self { server, entry, waiting: HashMap::new(), early: HashMap::new(), unreachable }
    }

    pub(super) fn servers(&self) -> Vec<McpServer> {
        self.entry.iter().cloned().collect()
    }

    /// Waits for the agent's next event; for ever if there is no server.
    pub(super) async fn hear(&mut self) -> Option<ToolServerEvent> {
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

    /// Makes the offered tools known to the calls, or notes that they do not reach the agent.
    pub(super) fn client_tools_are_offered(&mut self) {
        match &self.client_tools.server {
            Ok(server) => self.calls.offer(server.offered()),
            Err(why) => {
                let why = why.clone();
                self.note_unreachable(&why);
            }
        }
    }

    /// Returns whether the session must be opened anew for its tools, and loses nothing by that:
    /// some agents ask for them only when they are given the server. A session that is not closed
    /// before keeps the server that it has.
    pub(super) fn needs_tools_at_open(&mut self) -> bool {
        let closes = self.running.capabilities.session_capabilities.close.is_some();
        let loses_nothing =
            self.is_new || closes && self.can_be_taken_up() && !self.own_turns.has_background();
        let server = self.client_tools.server.as_ref();
        let must = loses_nothing && server.is_ok_and(ToolServer::is_out_of_date);
        if must {
            let agent = &self.agent.spec.name;
            tracing::info!(agent, "the agent's session is opened anew, so that it gets the tools of clients");
            if self.is_new {
                // Nothing was said in it: another one is as good.
                self.pending.push_back(Event::Handle(None));
            }
        }
        must
    }

    /// Takes in what an agent says through its server.
    pub(super) fn handle_tool_event(&mut self, heard: Option<ToolServerEvent>) -> Next {
        match heard {
            Some(ToolServerEvent::Listed) => self.note(extra_meta::CLIENT_TOOLS, None),
            Some(ToolServerEvent::Called(called)) => return self.hear(PeerMessage::Called(Box::new(called))),
            Some(ToolServerEvent::Withdrawn(number)) => {
                let mut waiting = self.client_tools.waiting.extract_if(|_, called| called.number == number);
                let withdrawn = waiting.next();
                drop(waiting);
                if let Some((id, _)) = withdrawn {
                    let told = self.calls.withdraw_tool_call(&id);
                    self.send_call_events(told.into_iter().collect());
                }
            }
            // Nobody can connect any more.
            None => self.client_tools.server = Err("the host is leaving".to_owned()),
        }
        Next::Hear
    }

    /// Carries out a call, or has it refused where no turn can be for it.
    pub(super) fn handle_tool_call(&mut self, called: ClientToolCall) {
        if !self.run.as_ref().is_some_and(PromptRun::goes_on) {
            return called.answer(refusal("no turn runs: a tool of a client can be called in a turn only"));
        }
        if self.client_tools.waiting.len() >= REQUESTS_MAX {
            return called.answer(refusal("too many calls of tools of clients wait for an answer"));
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

    /// Ends a call whose client has finished it, or that nobody will carry out.
    pub(super) fn finish_tool_call(&mut self, id: &str, outcome: &ToolCallResult) {
        match self.client_tools.waiting.remove(id) {
            Some(called) => called.answer(result(outcome)),
            None => drop(self.client_tools.early.insert(id.to_owned(), result(outcome))),
        }
        if let Some(request) = self.calls.is_over(id) {
            self.answer_permission(&request, None);
        }
    }

    pub(super) fn denied_client_tool(&mut self, id: &str) {
        if let Some(called) = self.client_tools.waiting.remove(id) {
            called.answer(refusal(DENIED));
        }
    }

    /// Refuses all calls that wait for a client, and drops results that the agent has not asked
    /// for.
    pub(super) fn refuse_client_tools(&mut self, why: &str) {
        self.client_tools.early.clear();
        for (_, called) in self.client_tools.waiting.drain() {
            called.answer(refusal(why));
        }
    }

    /// Checks, at the end of a turn, that the agent has asked for the tools: it has had the time.
    pub(super) fn check_client_tools(&mut self) {
        if self.client_tools.server.as_ref().is_ok_and(|server| !server.was_listed()) {
            self.note_unreachable(NOT_STARTED);
        }
    }

    /// Tells clients that their tools do not reach the agent, if there are any.
    fn note_unreachable(&mut self, why: &str) {
        let offered = match &self.client_tools.server {
            Ok(server) => server.offered(),
            Err(_) => self.client_tools.unreachable.clone().into(),
        };
        let note = (!offered.is_empty()).then(|| {
            tracing::info!(agent = self.agent.spec.name, why, "the tools of clients do not reach the agent");
            json!({ "reach": false, "tools": offered.names(), "why": why })
        });
        self.note(extra_meta::CLIENT_TOOLS, note);
    }
}
