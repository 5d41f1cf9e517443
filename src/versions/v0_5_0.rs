//! 0.5.0, as it differs from 0.5.1: a chat's state has all turns, and `fetchTurns` answers pages of
//! them; only its status shows what a session waits for; and agents do not list capabilities.

use std::num::NonZeroUsize;

use serde_json::Value;

use super::dialect::Dialect;
use super::node::Node;
use super::step::{Context, IncomingCall, Reply, StepFacts, VersionStep};
use crate::wire::errors::RpcError;

pub struct V0_5_0;

impl VersionStep for V0_5_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts {
            dialect: Dialect::V0_5_0,
            losses: &[
                "what a session waits for; its status says that it does",
                "filters of the list of sessions",
            ],
            lacks: &["chat/turnsLoaded", "session/inputNeededSet", "session/inputNeededRemoved"],
            drops: &[
                (Node::Session, &["inputNeeded"]),
                (Node::Agent, &["capabilities"]),
                (Node::Chat, &["turnsNextCursor"]),
            ],
        }
    }

    fn call_up(&self, call: &mut IncomingCall, _context: &mut Context<'_>) -> Result<(), RpcError> {
        match call.method.as_str() {
            // The state has all turns.
            "fetchTurns" => {
                let limit = call.params.get("limit").cloned().unwrap_or_default();
                let limit: Option<NonZeroUsize> = serde_json::from_value(limit)
                    .map_err(|_| RpcError::invalid_params("`limit` must be a number of at least 1"))?;
                let limit = limit.map(NonZeroUsize::get);
                let before = call.params.get("before").and_then(Value::as_str).map(str::to_owned);
                call.reply = Reply::Turns { before, limit };
                call.method = "subscribe".to_owned();
            }
            // The answer has all sessions.
            "listSessions" => {
                call.params.remove("limit");
                call.params.remove("cursor");
            }
            "subscribe" => {
                call.params.remove("view");
                call.params.remove("delivery");
            }
            _ => {}
        }
        Ok(())
    }
}
