//! 1.0.0, as it differs from 1.1.0, which is a preview: hosts do not say how their paths look,
//! and chats have one steering message, not a list of them.

use serde_json::Value;

use super::dialect::Dialect;
use super::node::Node;
use super::step::{Context, IncomingAction, StepFacts, VersionStep};

/// Actions that 1.0.0 does not have.
const LACKED: [&str; 2] = ["chat/steeringMessageSet", "chat/steeringMessageRemoved"];

/// Difference of 1.0.0 from 1.1.0.
pub struct V1_0_0;

impl VersionStep for V1_0_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V1_0_0,
            losses: &["steering messages but the single one"],
            lacks: &LACKED,
            drops: &[(Node::Chat, &["steeringMessages"])],
        }
    }

    fn action_up(&self, incoming: &mut IncomingAction, _context: &mut Context<'_>) {
        let name = incoming.name();
        if LACKED.contains(&name) {
            // The core refuses it by this name.
            let unknown = format!("{name} of 1.1.0");
            incoming.rename(&unknown);
        }
    }

    fn result_down(&self, method: &str, result: &mut Value, _context: &mut Context<'_>) {
        if let ("initialize", Value::Object(result)) = (method, result) {
            result.remove("environment");
            result.remove("steeringMessages");
        }
    }
}
