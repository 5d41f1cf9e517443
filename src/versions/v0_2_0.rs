//! 0.2.0, as it differs from 0.3.0: a turn starts with a user's message, whatever its origin; and a
//! client's tools are marked only with the client.

use serde_json::{json, Value};

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{Context, IncomingAction, OutgoingAction, OutgoingState, StepFacts, VersionStep};
use crate::wire::channels::ChannelKind;

pub struct V0_2_0;

impl VersionStep for V0_2_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_2_0,
            losses: &[
                "who said a message",
                "which MCP server a tool belongs to, and the states of MCP servers",
                "where sessions are listed, their changesets",
            ],
            lacks: &["session/mcpServerStateChanged", "changeset/operationStatusChanged"],
            drops: &[],
        }
    }

    fn action_up(&self, incoming: &mut IncomingAction, _context: &mut Context<'_>) {
        node::rename(&mut incoming.action, "userMessage", "message");
        for member in ["message", "userSuggestion"] {
            for message in node::objects_in(&mut incoming.action, member) {
                message.entry("origin").or_insert_with(|| json!({ "kind": "user" }));
            }
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        match node {
            Node::Turn => name_message(object),
            Node::Session => {
                for member in ["steeringMessage", "queuedMessages"] {
                    node::objects_in(object, member).for_each(name_message);
                }
                without_servers(object);
            }
            Node::Agent => without_servers(object),
            Node::ToolCall => name_owner(object),
            _ => {}
        }
    }

    /// Copies a session's changesets into its summary, where 0.2.0 has them.
    fn shots_down(&self, outgoing_states: &mut Vec<OutgoingState>, _context: &mut Context<'_>) {
        for outgoing in outgoing_states.iter_mut().filter(|outgoing| outgoing.kind == ChannelKind::Session) {
            let changesets = outgoing.state.get("changesets").cloned();
            if let Some(Value::Object(summary)) = outgoing.state.get_mut("summary") {
                summary.extend(changesets.map(|changesets| ("changesets".to_owned(), changesets)));
            }
        }
    }

    fn action_down(&self, mut outgoing: OutgoingAction, _context: &mut Context<'_>) -> Vec<OutgoingAction> {
        match outgoing.name() {
            "session/turnStarted" | "session/pendingMessageSet" => {
                name_message(&mut outgoing.action);
            }
            "session/toolCallStart" => name_owner(&mut outgoing.action),
            "session/customizationsChanged" => without_servers(&mut outgoing.action),
            "session/customizationUpdated" if outgoing.action.get("customization").is_some_and(is_server) => {
                return Vec::new();
            }
            _ => {}
        }
        vec![outgoing]
    }
}

/// Removes MCP servers, which are not customizations of their own there.
fn without_servers(holder: &mut Object) {
    node::retain(holder, "customizations", |it| !is_server(it));
}

fn is_server(customization: &Value) -> bool {
    customization["type"] == "mcpServer"
}

/// Copies a message to its former name, with text only if it is the user's: 0.2.0 has no origins.
fn name_message(object: &mut Object) {
    node::alias(object, "message", "userMessage");
    let Some(Value::Object(message)) = object.get_mut("userMessage") else { return };
    let kind = message.get("origin").and_then(|origin| origin.get("kind")).and_then(Value::as_str);
    if kind.is_some_and(|kind| kind != "user") {
        message.insert("text".to_owned(), "".into());
    }
}

/// Names the client that runs a tool, if any.
fn name_owner(call: &mut Object) {
    let Some(Value::Object(contributor)) = call.get("contributor") else { return };
    if node::text(contributor, "kind") == Some("client") {
        let client = contributor.get("clientId").cloned();
        call.extend(client.map(|client| ("toolClientId".to_owned(), client)));
    }
}
