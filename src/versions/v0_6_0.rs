//! 0.6.0, as it differs from 0.7.0: one working directory, no side chats, and tool input is text.

use serde_json::{json, Value};

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{Context, IncomingCall, OutgoingAction, StepFacts, VersionStep};
use crate::wire::errors::RpcError;

pub struct V0_6_0;

impl VersionStep for V0_6_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_6_0,
            losses: &[
                "working directories but the first, and that they change",
                "inputs of tools that are kept elsewhere",
                "side chats are shown as forks",
                "chats that are attached to a message",
            ],
            lacks: &[
                "session/workingDirectorySet",
                "session/workingDirectoryRemoved",
                "chat/workingDirectorySet",
                "chat/workingDirectoryRemoved",
            ],
            drops: &[],
        }
    }

    fn call_up(&self, call: &mut IncomingCall, _context: &mut Context<'_>) -> Result<(), RpcError> {
        match call.method.as_str() {
            "createSession" => {
                if let Some(directory) = call.params.remove("workingDirectory").filter(|it| !it.is_null()) {
                    call.params.entry("workingDirectories").or_insert_with(|| json!([directory]));
                }
            }
            "createChat" => {
                for source in node::objects_in(&mut call.params, "source") {
                    source.entry("kind").or_insert_with(|| "fork".into());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        match node {
            Node::Session | Node::SessionSummary | Node::Chat | Node::ChatSummary => {
                let first = object.get("workingDirectories").and_then(|all| all.get(0)).cloned();
                object.extend(first.map(|first| ("workingDirectory".to_owned(), first)));
                let origin = node::objects_in(object, "origin");
                for origin in origin.filter(|origin| node::text(origin, "kind") == Some("sideChat")) {
                    origin.insert("kind".to_owned(), "fork".into());
                }
            }
            Node::Message => node::retain(object, "attachments", |it| it["type"] != "chat"),
            Node::ToolCall => inline_input(object),
            Node::Agent => {
                let capabilities = object.get_mut("capabilities");
                if let Some(Value::Object(chats)) = capabilities.and_then(|it| it.get_mut("multipleChats")) {
                    chats.remove("sideChat");
                }
            }
            _ => {}
        }
    }

    fn action_down(&self, mut outgoing: OutgoingAction, _context: &mut Context<'_>) -> Vec<OutgoingAction> {
        if outgoing.name() == "chat/toolCallDelta" {
            outgoing.action.entry("content").or_insert_with(|| "".into());
        }
        inline_input(&mut outgoing.action);
        vec![outgoing]
    }
}

/// Removes an input that is no text, which would make the tool call unreadable.
fn inline_input(call: &mut Object) {
    if call.get("toolInput").is_some_and(Value::is_object) {
        call.remove("toolInput");
    }
}
