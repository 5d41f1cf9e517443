//! 0.5.2, as it differs from 0.6.0: open questions are beside the turn's parts; turns have no
//! times; and no tool waits for authentication.

use serde_json::{json, Value};

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{Context, IncomingAction, OutgoingAction, StepFacts, VersionStep};

pub struct V0_5_2;

impl VersionStep for V0_5_2 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_5_2,
            losses: &[
                "when a turn began and how long it took",
                "that a tool waits for an authentication: it is shown as running",
            ],
            lacks: &["chat/toolCallAuthRequired", "chat/toolCallAuthResolved"],
            drops: &[],
        }
    }

    fn action_up(&self, incoming: &mut IncomingAction, _context: &mut Context<'_>) {
        // The host replaces these times by its own.
        match incoming.name() {
            "chat/turnStarted" => {
                incoming.action.entry("startedAt").or_insert_with(|| "1970-01-01T00:00:00Z".into());
            }
            "chat/turnCancelled" => {
                incoming.action.entry("duration").or_insert_with(|| 0.into());
            }
            "changeset/filesReviewedChanged" => {
                incoming.action.insert("type".to_owned(), "changeset/filesReviewChanged".into());
                node::rename(&mut incoming.action, "fileIds", "files");
            }
            _ => {}
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        match node {
            Node::Chat => {
                let parts = object.get("activeTurn").and_then(|turn| turn.get("responseParts"));
                let parts = parts.and_then(Value::as_array).into_iter().flatten();
                let open: Vec<Value> = parts
                    .filter(|part| is_open(part))
                    .filter_map(|part| part.get("request").cloned())
                    .collect();
                if !open.is_empty() {
                    object.insert("inputRequests".to_owned(), json!(open));
                }
                for turn in node::objects_in(object, "activeTurn") {
                    node::retain(turn, "responseParts", |part| !is_open(part));
                }
            }
            Node::Session => {
                node::retain(object, "inputNeeded", |request| request["kind"] != "toolAuthentication");
            }
            Node::ToolCall if node::text(object, "status") == Some("auth-required") => {
                object.insert("status".to_owned(), "running".into());
            }
            _ => {}
        }
    }

    fn action_down(&self, mut outgoing: OutgoingAction, _context: &mut Context<'_>) -> Vec<OutgoingAction> {
        if outgoing.name() == "changeset/filesReviewChanged" {
            outgoing.action.insert("type".to_owned(), "changeset/filesReviewedChanged".into());
            node::rename(&mut outgoing.action, "files", "fileIds");
        }
        vec![outgoing]
    }
}

fn is_open(part: &Value) -> bool {
    part["kind"] == "inputRequest" && part["response"].is_null()
}
