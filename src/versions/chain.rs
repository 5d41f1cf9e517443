//! Steps of a message between a client's version and the newest one, in both directions.
//!
//! Owns: the list of the differences, and their order. To drop a version, drop its module, its line
//! in [`STEPS`], and its parts in `dialect`.
//! Never: knows the content of a difference.

use serde_json::Value;

use super::dialect::Dialect;
use super::node::{self, Node, Object};
use super::step::{
    self, Context, IncomingAction, IncomingCall, OutgoingAction, OutgoingNotice, OutgoingState, Steps,
};
use super::{
    draft, integer, v0_1_0, v0_2_0, v0_3_0, v0_4_0, v0_5_0, v0_5_1, v0_5_2, v0_6_0, v0_7_0, v0_8_0, v0_9_0,
    v1_0_0,
};
use crate::wire::errors::RpcError;

/// Every difference, the newest version's first.
pub static STEPS: Steps = &[
    &v1_0_0::V1_0_0,
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

/// Steps between the newest version and another one.
#[derive(Clone, Copy)]
pub struct Chain(Steps);

impl Chain {
    /// Returns the steps to `dialect` from `newest`, which the core speaks.
    pub fn to(dialect: Dialect, newest: Dialect) -> Self {
        let count_from =
            |first: Dialect| STEPS.iter().take_while(|step| step.facts().dialect >= first).count();
        let (begin, end) = (count_from(newest), count_from(dialect));
        Self(STEPS.get(begin..end).unwrap_or_default())
    }

    /// Translates a request or notification to the newest version.
    ///
    /// # Errors
    /// When it asks for something that the host cannot give.
    pub fn call_up(self, call: &mut IncomingCall, context: &mut Context<'_>) -> Result<(), RpcError> {
        self.0.iter().rev().try_for_each(|step| step.call_up(call, context))
    }

    /// Translates a client's action to the newest version.
    pub fn action_up(self, incoming: &mut IncomingAction, context: &mut Context<'_>) {
        self.0.iter().rev().for_each(|step| step.action_up(incoming, context));
    }

    /// Returns why an action that has changed nothing is refused; `None` if it is acknowledged.
    pub fn refusal(self, action: &Object, context: &Context<'_>) -> Option<String> {
        self.0.iter().find_map(|step| step.refusal(action, context))
    }

    /// Translates an action to the client's version. Returns the actions that replace it, if any.
    pub fn action_down(self, outgoing: OutgoingAction, context: &mut Context<'_>) -> Vec<OutgoingAction> {
        step::action_down(self.0, outgoing, context)
    }

    /// Translates states to the client's version.
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

    /// Translates a piece that is not part of a larger one to the client's version.
    pub fn node_down(self, node: Node, object: &mut Object) {
        for step in self.0 {
            node::each(node, object, &mut |node, object| step::node_down(*step, node, object));
        }
    }

    /// Translates a notification to the client's version; `None` drops it.
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

    /// Translates the result of a method to the client's version.
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

    /// Translates the envelope of an action to the client's version.
    pub fn envelope_down(self, envelope: &mut Object, in_replay: bool) {
        self.0.iter().for_each(|step| step.envelope_down(envelope, in_replay));
    }

    /// Translates an error to the client's version.
    pub fn error_down(self, error: &mut RpcError, context: &mut Context<'_>) {
        self.0.iter().for_each(|step| step.error_down(error, context));
    }
}
