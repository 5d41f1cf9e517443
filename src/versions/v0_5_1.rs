//! 0.5.1, as it differs from 0.5.2: a turn does not retain questions and their answers.

use serde_json::Value;

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{Context, OutgoingAction, StepFacts, VersionStep};

pub struct V0_5_1;

impl VersionStep for V0_5_1 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_5_1,
            losses: &["questions of a turn once they are answered", "requests to start and stop MCP servers"],
            lacks: &[
                "session/mcpServerStartRequested",
                "session/mcpServerStopRequested",
                "changeset/filesReviewedChanged",
            ],
            drops: &[],
        }
    }

    fn node_down(&self, node: Node, object: &mut Object) {
        if node == Node::Turn {
            node::retain(object, "responseParts", |part| !is_question(part));
        }
    }

    fn result_down(&self, method: &str, result: &mut Value, _context: &mut Context<'_>) {
        if let ("initialize", Value::Object(result)) = (method, result) {
            result.remove("terminalCommandPrefix");
        }
    }

    fn action_down(&self, outgoing: OutgoingAction, _context: &mut Context<'_>) -> Vec<OutgoingAction> {
        if outgoing.name() == "chat/responsePart" && outgoing.action.get("part").is_some_and(is_question) {
            return Vec::new();
        }
        vec![outgoing]
    }
}

fn is_question(part: &Value) -> bool {
    part["kind"] == "inputRequest"
}
