//! Steps of the agent `script` that need a client: client tools, and a token.
//!
//! Owns: these steps, and the variant of the agent that requires a token.
//! Never: shows a token.

use ahp_types::state::{ToolCallResult, ToolDefinition, ToolResultContent};
use serde_json::{json, Value};

use super::steps::tool_and_input;
use super::{converse, Script, ScriptAgent, ScriptReply, Stop};
use crate::backend::{Backend, HostLine, RunningConversation};
use crate::host::effects::{AgentDescription, Event, OpenConversation, TextKind, TurnEvent};

/// Script backend that requires a token for a resource.
#[derive(Debug)]
pub struct GuardedScript {
    /// Identifier of the protected resource.
    pub resource: String,
}

impl Backend for GuardedScript {
    fn describe(&self) -> AgentDescription {
        let resource = serde_json::from_value(json!({
            "resource": self.resource,
            "resource_name": "What the script needs a token for",
        }));
        let mut described = Script.describe();
        described.info.protected_resources = resource.ok().map(|resource| vec![resource]);
        described
    }

    fn converse(&self, open: OpenConversation, line: HostLine) -> RunningConversation {
        let resource = Some(self.resource.clone());
        Box::pin(converse(open, line, resource))
    }
}

impl ScriptAgent {
    /// Returns whether a client offers the tool that a step names.
    pub(super) fn is_clients(&self, rest: &str) -> bool {
        let name = rest.split_whitespace().next().unwrap_or_default();
        self.client_tools.iter().any(|offered| offered == name)
    }

    /// Has a client run a tool, and reports the result.
    pub(super) async fn call_client(&mut self, rest: &str) -> Result<(), Stop> {
        let (name, input) = tool_and_input(rest)?;
        let id = self.next_call();
        let message = format!("Run {name}").into();
        let (name, input) = (name.to_owned(), input.to_owned());
        self.report_turn(TurnEvent::ClientTool { id: id.clone(), name, input, message }).await?;
        let ScriptReply::ToolResult(result) = self.reply_about(&id).await? else { return Ok(()) };
        self.finish(TurnEvent::Part(TextKind::Markdown, text_of(&result))).await
    }

    /// Reports whether the agent has a token, and its length, but never the token.
    pub(super) async fn show_token(&mut self) -> Result<(), Stop> {
        let text = match self.resource.as_ref().and_then(|resource| self.tokens.get(resource)) {
            Some(token) => format!("a token of {} bytes", token.secret().len()),
            None => "no token".to_owned(),
        };
        self.finish(TurnEvent::Part(TextKind::Markdown, text)).await
    }

    /// Reports the token as refused and fails; the turn can be resumed with another token.
    pub(super) async fn refuse_token(&mut self) -> Result<(), Stop> {
        let Some(resource) = self.resource.clone() else {
            return Err(Stop::mistake("/token-refused: this agent needs no token"));
        };
        self.tokens.remove(&resource);
        let message = format!("the token for `{resource}` was rejected; send another one by `authenticate`");
        self.report(Event::TokenRefused { resource }).await?;
        Err(Stop::Failed { message, resumable: true })
    }
}

fn text_of(result: &ToolCallResult) -> String {
    if !result.success {
        let why = result.error.as_ref().and_then(|error| error.get("message")).and_then(Value::as_str);
        return format!("(failed: {})", why.unwrap_or("it does not say why"));
    }
    let texts = result.content.iter().flatten().filter_map(|content| match content {
        ToolResultContent::Text(content) => Some(content.text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

pub(super) fn names_of(tools: &[ToolDefinition]) -> Vec<String> {
    tools.iter().map(|tool| tool.name.clone()).collect()
}
