//! The way of a message through the differences of the versions: up from a client's to the newest
//! one, and down again.
//!
//! Owns: the list of the differences, and their order. To drop a version, drop its module, its line
//! in [`STEPS`], and what `dialect` says of it.
//! Never: knows what a difference is.

use serde_json::Value;

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{
    self, Context, IncomingAction, IncomingCall, OutgoingAction, OutgoingNotice, OutgoingState, Steps,
};
use super::{
    draft, integer, v0_1_0, v0_2_0, v0_3_0, v0_4_0, v0_5_0, v0_5_1, v0_5_2, v0_6_0, v0_7_0, v0_8_0, v0_9_0,
};
use crate::wire::errors::RpcError;

/// Every difference, the newest version's first.
pub static STEPS: Steps = &[
    &v0_9_0::V0_9_0,
    &v0_8_0::V0_8_0,
    &v0_7_0::V0_7_0,
    &v0_6_0::V0_6_0,
    &v0_5_2::V0_5_2,
    &v0_5_1::V0_5_1,
    &v0_5_0::V0_5_0,
    &v0_4_0::V0_4_0,
    &v0_3_0::V0_3_0,
    &v0_2_0::V0_2_0,
    &v0_1_0::V0_1_0,
    &integer::Integer,
    &draft::Draft,
];

/// The steps between the newest version and another one.
#[derive(Clone, Copy)]
pub struct Chain(Steps);

impl Chain {
    /// The steps to `dialect`.
    pub fn to(dialect: Dialect) -> Self {
        let steps = STEPS.iter().take_while(|step| step.facts().dialect >= dialect).count();
        Self(&STEPS[..steps])
    }

    /// Takes a request or notification up.
    ///
    /// # Errors
    /// When it asks for what cannot be given.
    pub fn call_up(self, call: &mut IncomingCall, context: &mut Context<'_>) -> Result<(), RpcError> {
        self.0.iter().rev().try_for_each(|step| step.call_up(call, context))
    }

    /// Takes an action up.
    pub fn action_up(self, said: &mut IncomingAction, context: &mut Context<'_>) {
        self.0.iter().rev().for_each(|step| step.action_up(said, context));
    }

    /// Returns why an action that has changed nothing is refused, if it is.
    pub fn refusal(self, said: &Object, context: &Context<'_>) -> Option<String> {
        self.0.iter().find_map(|step| step.refusal(said, context))
    }

    /// Takes an action down, to all that is told instead of it: often itself, sometimes nothing.
    pub fn action_down(self, told: OutgoingAction, context: &mut Context<'_>) -> Vec<OutgoingAction> {
        step::action_down(self.0, told, context)
    }

    /// Takes states down.
    pub fn shots_down(self, outgoing_states: &mut Vec<OutgoingState>, context: &mut Context<'_>) {
        for step in self.0 {
            for outgoing in &mut *outgoing_states {
                let visit = &mut |node, object: &mut Object| step::node_down(*step, node, object);
                if let Some(node) = Node::of_state(outgoing.kind) {
                    node::each(node, &mut outgoing.state, visit);
                }
                if let Some(summary) = &mut outgoing.summary {
                    node::each(Node::SessionSummary, summary, visit);
                }
            }
            step.shots_down(outgoing_states, context);
        }
    }

    /// Takes a piece down that stands alone.
    pub fn node_down(self, node: Node, object: &mut Object) {
        for step in self.0 {
            node::each(node, object, &mut |node, object| step::node_down(*step, node, object));
        }
    }

    /// Takes a notification down; none when it is not told.
    pub fn notice_down(self, notice: OutgoingNotice, context: &mut Context<'_>) -> Option<OutgoingNotice> {
        self.0.iter().try_fold(notice, |mut notice, step| {
            for member in ["summary", "changes"] {
                for summary in node::objects_in(&mut notice.params, member) {
                    step::node_down(*step, Node::SessionSummary, summary);
                }
            }
            step.notice_down(notice, context)
        })
    }

    /// Takes the result of a method down.
    pub fn result_down(self, method: &str, result: &mut Value, context: &mut Context<'_>) {
        for step in self.0 {
            let (member, node) = match method {
                "listSessions" => ("items", Node::SessionSummary),
                _ => ("turns", Node::Turn),
            };
            let pieces = result.as_object_mut().filter(|_| matches!(method, "listSessions" | "fetchTurns"));
            for piece in pieces.into_iter().flat_map(|result| node::objects_in(result, member)) {
                node::each(node, piece, &mut |node, object| step::node_down(*step, node, object));
            }
            step.result_down(method, result, context);
        }
    }

    /// Takes the envelope of an action down.
    pub fn envelope_down(self, envelope: &mut Object, in_replay: bool) {
        self.0.iter().for_each(|step| step.envelope_down(envelope, in_replay));
    }

    /// Takes an error down.
    pub fn error_down(self, error: &mut RpcError, context: &mut Context<'_>) {
        self.0.iter().for_each(|step| step.error_down(error, context));
    }
}
