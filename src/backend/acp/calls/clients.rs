//! Calls of tools that clients carry out. The agent reports such a call twice: in its own tool-call
//! messages, and to the MCP server that offers the tools, in either order. Some agents name the
//! call's id in both.
//!
//! Owns: matching the two reports, so that clients see one call.
//! Never: has a client run anything but the call that the MCP server received.

use std::sync::Arc;

use agent_client_protocol_schema::v1::{ContentBlock, ToolCallContent};
use serde_json::{json, Value};

use super::{CallReport, CallStage, Calls, TrackedCall};
use crate::backend::acp::client_tools::{self, OfferedTools};
use crate::backend::acp::peer::AgentRequest;
use crate::host::effects::TurnEvent;

impl Calls {
    pub fn offer(&mut self, offered: Arc<OfferedTools>) {
        self.offered = offered;
    }

    /// Records that the agent waits for a client tool's result; returns the call's id and event.
    pub fn wants(&mut self, tool: &str, arguments: &Value, mentions: &[String]) -> (String, TurnEvent) {
        let reported = self.account_of(tool, arguments, mentions);
        let id = reported.unwrap_or_else(|| self.show(tool));
        let call = self.calls.entry(id.clone()).or_default();
        call.wanted = true;
        call.input = Some(arguments.clone());
        if call.stage == CallStage::Begun {
            call.stage = CallStage::Running;
        }
        let message = call.message().into();
        let (name, input) = (tool.to_owned(), arguments.to_string());
        (id.clone(), TurnEvent::ClientTool { id, name, input, message })
    }

    pub fn withdraw_tool_call(&mut self, id: &str) -> Option<TurnEvent> {
        let call = self.calls.get_mut(id).filter(|call| call.stage != CallStage::Over)?;
        Some(call.done(id, false, Some("the agent has cancelled the call".to_owned())))
    }

    pub fn is_denied(&self, id: &str) -> bool {
        self.calls.get(id).is_some_and(|call| call.denied)
    }

    /// Ends a call that the host has finished; returns its pending permission request.
    pub fn end_call(&mut self, id: &str) -> Option<AgentRequest> {
        let call = self.calls.get_mut(id)?;
        // A client may finish before the agent requests the result.
        if call.wanted {
            call.stage = CallStage::Over;
        }
        call.asked.pop_front().map(|(request, _)| request)
    }

    /// Finds the agent's report of the call that it makes now. A call that the user has allowed,
    /// and that a client already runs, must have the same arguments.
    fn account_of(&self, tool: &str, arguments: &Value, mentions: &[String]) -> Option<String> {
        let fits = |call: &TrackedCall| call.input.as_ref() == Some(arguments);
        let open = self.calls.iter().filter(|(_, call)| {
            // A denied call must match too; otherwise it would be carried out as a separate call.
            let is_open = !call.wanted && (call.stage != CallStage::Over || call.denied);
            is_open
                && call.client_tool.as_deref() == Some(tool)
                && (call.stage == CallStage::Begun || fits(call))
        });
        let open: Vec<(&String, &TrackedCall)> = open.collect();
        let own = |id: &str| self.renamed.iter().find(|(_, name)| *name == id).map(|(own, _)| own.as_str());
        let is_mentioned = |id: &str| mentions.iter().any(|mention| mention == own(id).unwrap_or(id));
        let mentioned = open.iter().find(|(id, _)| is_mentioned(id));
        let fitting = || open.iter().find(|(_, call)| fits(call));
        // Some agents report the arguments later.
        let lacks_input = |call: &TrackedCall| call.input.as_ref().is_none_or(|input| *input == json!({}));
        let without_input = || open.iter().find(|(_, call)| lacks_input(call));
        let (id, _) = mentioned.or_else(fitting).or_else(without_input)?;
        Some((*id).clone())
    }

    /// Adds a call that the agent has not reported, under an id that is new in the turn, also if
    /// the turn was resumed.
    fn show(&mut self, tool: &str) -> String {
        let is_free = |id: &String| {
            !self.calls.contains_key(id) && self.renamed.iter().all(|(own, name)| own != id && name != id)
        };
        let mut names = (1_u64..).map(|number| format!("client-tool {number}"));
        let id = names.find(is_free).unwrap_or_default();
        let client_tool = Some(tool.to_owned());
        let call = TrackedCall { client_tool, is_sent: true, unclaimed: true, ..TrackedCall::default() };
        self.calls.insert(id.clone(), call);
        id
    }

    /// Finds a shown call that the agent now reports for the first time.
    pub(super) fn shown_before(&mut self, report: &CallReport) -> Option<String> {
        let tool = self.client_tool(report)?;
        let input = report.update.fields.raw_input.as_ref().and_then(client_tools::arguments);
        let input = input.filter(|input| **input != json!({}));
        let fits = |call: &TrackedCall| {
            call.client_tool.as_ref() == Some(&tool)
                && input.is_none_or(|input| call.input.as_ref() == Some(input))
        };
        let (id, call) = self.calls.iter_mut().find(|(_, call)| call.unclaimed && fits(call))?;
        call.unclaimed = false;
        Some(id.clone())
    }

    /// Returns the client's tool that a report of a call refers to.
    pub(super) fn client_tool(&self, report: &CallReport) -> Option<String> {
        if self.offered.is_empty() {
            return None;
        }
        let fields = &report.update.fields;
        let of_meta = |meta: &Value| meta.get("toolName").and_then(Value::as_str).map(str::to_owned);
        let meta = report.update.meta.clone().map(Value::Object).unwrap_or_default();
        let of_input = fields.raw_input.as_ref().and_then(|input| {
            let part = |name: &str| input.get(name).and_then(Value::as_str);
            Some(format!("{}/{}", part("server")?, part("tool")?))
        });
        let of_meta = [of_meta(&meta), meta.get("claudeCode").and_then(of_meta)];
        let texts = [report.more.name.clone(), fields.title.clone(), of_input].into_iter().chain(of_meta);
        let texts: Vec<String> = texts.flatten().collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        self.offered.tool_of(&texts).map(str::to_owned)
    }
}

impl TrackedCall {
    /// Records the arguments of a call of a client's tool. Some agents give them only in the
    /// content of a permission request, and some ask with something else as input.
    pub(super) fn note_arguments(&mut self, input: Option<&Value>, content: Option<&[ToolCallContent]>) {
        if self.wanted {
            return;
        }
        let is_wrapped = |input: &Value| input.get("server").is_some();
        let is_other = |input: &Value| input.get("server_name").is_some() && self.input.is_some();
        if let Some(input) = input.filter(|input| is_wrapped(input) || !is_other(input)) {
            self.input = client_tools::arguments(input).cloned().or(self.input.take());
        } else if self.input.is_none() {
            let texts = content.into_iter().flatten().filter_map(|content| match content {
                ToolCallContent::Content(content) => match &content.content {
                    ContentBlock::Text(text) => serde_json::from_str::<Value>(&text.text).ok(),
                    _ => None,
                },
                _ => None,
            });
            self.input = texts.into_iter().find(Value::is_object);
        }
    }
}
