//! Requests of an agent while a turn runs.
//!
//! Owns: answering each request once, however the turn ends.
//! Never: answers a permission with an option that the agent did not offer.

use agent_client_protocol_schema::v1::{
    RequestPermissionOutcome, RequestPermissionResponse, SelectedPermissionOutcome,
};
use serde_json::value::RawValue;
use serde_json::Value;

use super::own_turns::START_TURN;
use super::{questions, AcpConversation, PromptRun};
use crate::backend::acp::calls::PermissionRequest;
use crate::backend::acp::errors::RequestError;
use crate::backend::acp::peer::AgentRequest;

/// Maximum number of unanswered requests of an agent; beyond it, only requests about files are
/// accepted.
pub(super) const REQUESTS_MAX: usize = 1000;

/// Returns the answer to a request that needs a turn while no turn can run.
pub(in crate::backend::acp) fn too_early_answer(method: &str) -> Result<Value, RequestError> {
    match method {
        questions::METHOD => Ok(questions::cancelled()),
        _ => Err(RequestError::NoTurnRuns),
    }
}

impl AcpConversation {
    pub(super) fn decided(&mut self, call: &str, option: Option<String>, approved: bool) {
        let Some((request, events)) = self.calls.decided(call, approved) else { return };
        if let Some(run) = &mut self.run {
            run.has_refused |= !approved;
        }
        self.answer_permission(&request, option);
        if !approved {
            self.denied_client_tool(call);
        }
        self.send_to_host(events);
        self.answer_unanswered(false);
    }

    pub(super) fn answer_permission(&self, request: &AgentRequest, option: Option<String>) {
        let outcome = match option {
            Some(option) => RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option)),
            None => RequestPermissionOutcome::Cancelled,
        };
        // Serialising plain data cannot fail.
        let answer = serde_json::to_value(RequestPermissionResponse::new(outcome)).unwrap_or_default();
        self.receiver.answer(request, Ok(answer));
    }

    pub(super) fn answer_unanswered(&mut self, all: bool) {
        if all {
            self.cancel_questions();
        }
        for request in self.calls.unanswered(all) {
            self.answer_permission(&request, None);
        }
    }

    pub(super) fn asked(&mut self, request: AgentRequest, method: &str, params: &RawValue) {
        // Requests about files do not wait for a user. They are limited in `files` instead: while
        // its queue is full, the agent is not read.
        if self.receiver.unanswered() > REQUESTS_MAX && !method.starts_with("fs/") {
            return self.receiver.answer(&request, Err(RequestError::TooManyRequests));
        }
        match method {
            questions::METHOD => self.handle_elicitation(request, params),
            "session/request_permission" => self.handle_permission_request(request, params),
            START_TURN => self.answer_begin_request(&request),
            method if method.starts_with("fs/") || method.starts_with("terminal/") => {
                self.handle_workspace_request(request, method, params);
            }
            _ => {
                tracing::debug!(
                    agent = self.agent.spec.name,
                    method,
                    "a request of the agent was rejected: the method is not supported"
                );
                self.receiver.answer(&request, Err(RequestError::MethodNotServed));
            }
        }
    }

    fn handle_permission_request(&mut self, request: AgentRequest, params: &RawValue) {
        if !self.run.as_ref().is_some_and(PromptRun::goes_on) {
            return self.answer_permission(&request, None);
        }
        if self.permission_question(&request, params) {
            return;
        }
        match serde_json::from_str::<PermissionRequest>(params.get()) {
            Ok(mut asks) => {
                if self.running.quirks.titles_commands {
                    asks.take_command_from_title();
                }
                let (asked, events) = self.calls.asks(request.clone(), asks);
                self.send_to_host(events);
                if !asked {
                    self.answer_permission(&request, None);
                }
            }
            Err(error) => {
                tracing::warn!(agent = self.agent.spec.name, %error, "a request of the agent was rejected: its params are invalid");
                self.receiver.answer(&request, Err(RequestError::ParamsDoNotFit));
            }
        }
    }
}
