//! Differences of one version from its newer neighbour.
//!
//! Owns: the shape of that difference ([`VersionStep`]), what of a message it is shown, and the way
//! of an action through several of them. Each difference is a module of its own, `v0_9_0` and so
//! on; `chain` has the list of all of them.
//! Never: remembers anything from one message to the next; what a step must know of the past is
//! lent to it as a [`Context`].

use serde_json::Value;

use super::dialect::Dialect;
use super::names::SessionNames;
use super::node::{self, Node, Object};
use crate::host::effects::{DispatchMode, SessionOptions};
use crate::state::reduce::Conversation;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;

/// Request or notification of a client, on its way up.
#[derive(Debug, Clone, PartialEq)]
pub struct IncomingCall {
    /// The method.
    pub method: String,
    /// Params.
    pub params: Object,
    /// Options of the session that it creates.
    pub options: SessionOptions,
    /// How the answer is made from that of the core.
    pub reply: Reply,
}

/// How the answer to a request is made from that of the core.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Reply {
    /// Answer of the core, translated.
    #[default]
    Same,
    /// Some turns of the chat whose state the core answers.
    Turns {
        /// Turn before which they are; `None` for the newest.
        before: Option<String>,
        /// At most so many.
        limit: Option<usize>,
    },
}

/// A client's action on its way up.
#[derive(Debug, Clone, PartialEq)]
pub struct IncomingAction {
    /// The channel that it is about.
    pub channel: String,
    /// The action.
    pub action: Object,
    /// Meaning besides the action itself.
    pub mode: DispatchMode,
}

impl IncomingAction {
    /// The action's name.
    pub fn name(&self) -> &str {
        node::text(&self.action, "type").unwrap_or_default()
    }

    /// Gives the action another name.
    pub fn rename(&mut self, name: &str) {
        self.action.insert("type".to_owned(), name.into());
    }
}

/// An action on its way down.
#[derive(Debug, Clone, PartialEq)]
pub struct OutgoingAction {
    /// The channel, as the envelope names it.
    pub channel: String,
    /// The action.
    pub action: Object,
}

impl OutgoingAction {
    /// An action with these members on a channel.
    pub fn new(channel: &str, members: Value) -> Self {
        Self { channel: channel.to_owned(), action: node::members(members) }
    }

    /// The action's name.
    pub fn name(&self) -> &str {
        node::text(&self.action, "type").unwrap_or_default()
    }
}

/// A channel's state on its way down.
#[derive(Debug, Clone, PartialEq)]
pub struct OutgoingState {
    /// Of what kind the channel is.
    pub kind: ChannelKind,
    /// URI of the channel, as the core names it.
    pub channel: String,
    /// URI of the channel, as the client names it.
    pub resource: String,
    /// The state.
    pub state: Object,
    /// Summary in the list, for a session of a version that needs it.
    pub summary: Option<Object>,
    /// The last action that it knows of.
    pub from_seq: Value,
}

/// A notification on its way down.
#[derive(Debug, Clone, PartialEq)]
pub struct OutgoingNotice {
    /// The method.
    pub method: String,
    /// Params.
    pub params: Object,
}

/// Context of a translation.
pub struct Context<'a> {
    /// The chat that an action is about, as the newest version sees it and before the action; none
    /// when it is not known.
    pub chat: Option<&'a Conversation>,
    /// Chat after everything that is replayed, for a replayed action: its state before is unknown.
    pub at_end: Option<&'a Conversation>,
    /// Set if the user has read the session of an action: before the action, or after the last one
    /// if several are replayed.
    pub is_read: bool,
    /// The active clients of the session that an action is about, as the newest version sees them
    /// and with what the action changes; none when they are not known.
    pub active: &'a [Value],
    /// The directories of that session before the action; none when they are not known.
    pub directories: &'a [Value],
    /// Clients of this version know that a session has chats.
    pub knows_chats: bool,
    /// Names of sessions for clients of this version.
    pub names: &'a mut SessionNames,
    /// Client that sends it, on the way up.
    pub client_id: &'a str,
    /// On the way down of an action: the differences that lie between the newest version and the
    /// step that is asked, for one that tells something else instead and has to say it as its newer
    /// neighbour does.
    pub newer: Steps,
}

/// Differences that follow each other, the newest version's first.
pub type Steps = &'static [&'static dyn VersionStep];

/// Takes an action down through these differences, to all that is told instead of it: often itself,
/// sometimes nothing.
pub fn action_down(steps: Steps, told: OutgoingAction, context: &mut Context<'_>) -> Vec<OutgoingAction> {
    let outer = context.newer;
    let mut all = vec![told];
    for (place, step) in steps.iter().enumerate() {
        context.newer = &steps[..place];
        all = all
            .into_iter()
            .flat_map(|mut told| {
                node::each_of_action(&mut told.action, &mut |node, object| node_down(*step, node, object));
                step.action_down(told, context)
            })
            .filter(|told| !step.facts().lacks.contains(&told.name()))
            .collect();
    }
    context.newer = outer;
    all
}

/// Facts about a version.
pub struct StepFacts {
    /// The version.
    pub dialect: Dialect,
    /// Losses of its clients: they cannot be told or say this. The words are the chapter's; each
    /// item holds for all older versions, too.
    pub losses: &'static [&'static str],
    /// Actions that it does not have. They are left out, unless [`VersionStep::action_down`] has
    /// made something else of them.
    pub lacks: &'static [&'static str],
    /// Members that it does not have, by the piece that has them.
    pub drops: &'static [(Node, &'static [&'static str])],
}

/// Changes a piece of a state or an action as a step does. Every piece inside of it is changed
/// already.
pub fn node_down(step: &dyn VersionStep, node: Node, object: &mut Object) {
    for (_, members) in step.facts().drops.iter().filter(|(of, _)| *of == node) {
        object.retain(|member, _| !members.contains(&member.as_str()));
    }
    step.node_down(node, object);
}

/// The difference between a version and its newer neighbour. What a step does not mention is the
/// same in both.
pub trait VersionStep: Sync {
    /// Facts about the older one of the two.
    fn facts(&self) -> &'static StepFacts;

    /// Changes a request or notification of a client; an action in it is changed by
    /// [`VersionStep::action_up`].
    ///
    /// # Errors
    /// When it asks for what cannot be given.
    fn call_up(&self, _call: &mut IncomingCall, _context: &mut Context<'_>) -> Result<(), RpcError> {
        Ok(())
    }

    /// Changes a client's action. What depends on the state that it changes is left to the core, as
    /// a [`DispatchMode`]: the core is ahead of what was sent down.
    fn action_up(&self, _said: &mut IncomingAction, _context: &mut Context<'_>) {}

    /// Returns why an action that has changed nothing, as its client said it, is refused in this
    /// version; `None` if it is acknowledged.
    fn refusal(&self, _said: &Object, _context: &Context<'_>) -> Option<String> {
        None
    }

    /// Changes a piece of a state or an action, without what it drops. Every piece inside of it is
    /// changed already.
    fn node_down(&self, _node: Node, _object: &mut Object) {}

    /// Changes states as wholes, after their pieces.
    fn shots_down(&self, _outgoing_states: &mut Vec<OutgoingState>, _context: &mut Context<'_>) {}

    /// Makes of an action, whose pieces are changed already, what is told instead.
    fn action_down(&self, told: OutgoingAction, _context: &mut Context<'_>) -> Vec<OutgoingAction> {
        vec![told]
    }

    /// Changes a notification; none when it is not told.
    fn notice_down(&self, notice: OutgoingNotice, _context: &mut Context<'_>) -> Option<OutgoingNotice> {
        Some(notice)
    }

    /// Changes the result of a method; snapshots and summaries in it are changed already.
    fn result_down(&self, _method: &str, _result: &mut Value, _context: &mut Context<'_>) {}

    /// Changes the envelope of an action that is told alone, or in the replay of a `reconnect`.
    fn envelope_down(&self, _envelope: &mut Object, _in_replay: bool) {}

    /// Changes an error: its code may be unknown to the older one, and its sentence may name a
    /// session.
    fn error_down(&self, _error: &mut RpcError, _context: &mut Context<'_>) {}
}
