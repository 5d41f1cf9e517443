//! Difference between a version and its newer neighbour.
//!
//! Owns: the shape of a difference ([`VersionStep`]), the pieces of a message that it receives, and
//! the way of an action through several. Each difference is a module, such as `v0_9_0`; `chain`
//! lists them.
//! Never: has state; a step gets what it needs of the past as a [`Context`].

use serde_json::Value;

use super::dialect::Dialect;
use super::names::SessionNames;
use super::node::{self, Node, Object};
use crate::host::effects::{DispatchMode, SessionOptions};
use crate::state::reduce::Conversation;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;

/// Request or notification of a client, on its way to the core.
#[derive(Debug, Clone, PartialEq)]
pub struct IncomingCall {
    /// Name of the method.
    pub method: String,
    /// Params, in the spelling of the version reached so far.
    pub params: Object,
    /// Options of the session that it creates, for which the protocol has no params.
    pub options: SessionOptions,
    /// Source of the answer.
    pub reply: Reply,
    /// Session that the channel must be a chat of; `None` if the channel can be any.
    pub session: Option<String>,
}

/// Source of the answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The core's answer, translated.
    Same,
    /// Completed turns of the chat whose state the core answers.
    Turns {
        /// Id of the turn behind the requested ones; `None` for the newest turns.
        before: Option<String>,
        /// Maximum number of turns; `None` for all.
        limit: Option<usize>,
    },
}

/// A client's action, on its way to the core.
#[derive(Debug, Clone, PartialEq)]
pub struct IncomingAction {
    /// URI of the channel that it changes.
    pub channel: String,
    /// Members of the action.
    pub action: Object,
    /// Meaning of the action for the core.
    pub mode: DispatchMode,
    /// Session that the channel must be a chat of; `None` if the channel can be any.
    pub session: Option<String>,
}

impl IncomingAction {
    /// Returns the `type` of the action.
    pub fn name(&self) -> &str {
        node::text(&self.action, "type").unwrap_or_default()
    }

    /// Replaces the `type` of the action.
    pub fn rename(&mut self, name: &str) {
        self.action.insert("type".to_owned(), name.into());
    }
}

/// Action on its way to a client.
#[derive(Debug, Clone, PartialEq)]
pub struct OutgoingAction {
    /// URI of the channel in the envelope.
    pub channel: String,
    /// Members of the action.
    pub action: Object,
}

impl OutgoingAction {
    /// Makes an action from JSON members.
    pub fn new(channel: &str, members: Value) -> Self {
        Self { channel: channel.to_owned(), action: node::members(members) }
    }

    /// Returns the `type` of the action.
    pub fn name(&self) -> &str {
        node::text(&self.action, "type").unwrap_or_default()
    }
}

/// A channel's state, on its way to a client.
#[derive(Debug, Clone, PartialEq)]
pub struct OutgoingState {
    /// Kind of the channel.
    pub kind: ChannelKind,
    /// URI of the channel by the core's name.
    pub channel: String,
    /// URI of the channel by the client's name.
    pub resource: String,
    /// Members of the state.
    pub state: Object,
    /// Summary in the list; set only for a session in a version that needs it.
    pub summary: Option<Object>,
    /// Sequence number of the last action that the state includes.
    pub from_seq: Value,
}

/// Notification on its way to a client.
#[derive(Debug, Clone, PartialEq)]
pub struct OutgoingNotice {
    /// Name of the method.
    pub method: String,
    /// Params, in the spelling of the version reached so far.
    pub params: Object,
}

/// Context of a translation.
pub struct Context<'a> {
    /// Chat that an action changes, in the newest version and before the action; `None` if unknown.
    pub chat: Option<&'a Conversation>,
    /// Chat after the whole replay, for a replayed action: its state before is unknown.
    pub at_end: Option<&'a Conversation>,
    /// Set if the action's session is marked as read: before the action, or after the whole replay.
    pub is_read: bool,
    /// Active clients of that session in the newest version, after the action; empty if unknown.
    pub active: &'a [Value],
    /// Working directories of that session before the action; empty if unknown.
    pub directories: &'a [Value],
    /// Set if the first chat of that session is in another session.
    pub is_first_chat_elsewhere: bool,
    /// Set if that session has chats besides its first one, before the action.
    pub has_further_chats: bool,
    /// Set if clients of this version know that a session has chats.
    pub knows_chats: bool,
    /// Names of sessions for clients of this version.
    pub names: &'a mut SessionNames,
    /// Id of the client that sent the message or action; empty if there is none.
    pub client_id: &'a str,
    /// Steps between the newest version and the current step, for an action on its way to a client.
    /// A step that adds an action uses them to bring it into its newer neighbour's form.
    pub newer: Steps,
}

/// Consecutive differences, the newest version's first.
pub type Steps = &'static [&'static dyn VersionStep];

/// Translates an action through these differences, to any number of actions that replace it.
pub fn action_down(steps: Steps, outgoing: OutgoingAction, context: &mut Context<'_>) -> Vec<OutgoingAction> {
    let outer = context.newer;
    let mut all = vec![outgoing];
    for (place, step) in steps.iter().enumerate() {
        context.newer = &steps[..place];
        all = all
            .into_iter()
            .flat_map(|mut outgoing| {
                node::each_of_action(&mut outgoing.action, &mut |node, object| {
                    node_down(*step, node, object)
                });
                step.action_down(outgoing, context)
            })
            .filter(|outgoing| !step.facts().lacks.contains(&outgoing.name()))
            .collect();
    }
    context.newer = outer;
    all
}

/// Facts about the older version of a step.
pub struct StepFacts {
    /// Older version of the step.
    pub dialect: Dialect,
    /// Information that this and all older versions cannot express, in the words of the README.
    pub losses: &'static [&'static str],
    /// Actions that the version does not have. They are dropped, unless
    /// [`VersionStep::action_down`] replaces them.
    pub lacks: &'static [&'static str],
    /// Members that the version does not have, by the kind of piece.
    pub drops: &'static [(Node, &'static [&'static str])],
}

/// Translates one piece of a state or an action. Its inner pieces are translated already.
pub fn node_down(step: &dyn VersionStep, node: Node, object: &mut Object) {
    for (_, members) in step.facts().drops.iter().filter(|(of, _)| *of == node) {
        object.retain(|member, _| !members.contains(&member.as_str()));
    }
    step.node_down(node, object);
}

/// Difference between a version and its newer neighbour. By default, nothing differs.
pub trait VersionStep: Sync {
    /// Returns the facts about the older version.
    fn facts(&self) -> &'static StepFacts;

    /// Translates a request or notification, without an action in it ([`VersionStep::action_up`]).
    ///
    /// # Errors
    /// When the request asks for something that the host cannot give.
    fn call_up(&self, _call: &mut IncomingCall, _context: &mut Context<'_>) -> Result<(), RpcError> {
        Ok(())
    }

    /// Translates a client's action. Effects that depend on the state go to the core as a
    /// [`DispatchMode`], because the core's state is ahead of the client's.
    fn action_up(&self, _incoming: &mut IncomingAction, _context: &mut Context<'_>) {}

    /// Returns why an action that has changed nothing is refused; `None` if it is acknowledged.
    fn refusal(&self, _action: &Object, _context: &Context<'_>) -> Option<String> {
        None
    }

    /// Translates one piece, without the members in `drops`. Inner pieces are translated already.
    fn node_down(&self, _node: Node, _object: &mut Object) {}

    /// Translates whole states, after their pieces.
    fn shots_down(&self, _outgoing_states: &mut Vec<OutgoingState>, _context: &mut Context<'_>) {}

    /// Returns the actions that replace an action, whose pieces are translated already.
    fn action_down(&self, outgoing: OutgoingAction, _context: &mut Context<'_>) -> Vec<OutgoingAction> {
        vec![outgoing]
    }

    /// Translates a notification; `None` drops it.
    fn notice_down(&self, notice: OutgoingNotice, _context: &mut Context<'_>) -> Option<OutgoingNotice> {
        Some(notice)
    }

    /// Translates the result of a method. Its snapshots and summaries are translated already.
    fn result_down(&self, _method: &str, _result: &mut Value, _context: &mut Context<'_>) {}

    /// Translates the envelope of an action, sent alone or in the replay of a `reconnect`.
    fn envelope_down(&self, _envelope: &mut Object, _in_replay: bool) {}

    /// Translates an error: the version may lack its code, and its message may name a session.
    fn error_down(&self, _error: &mut RpcError, _context: &mut Context<'_>) {}
}
