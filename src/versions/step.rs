//! What one version says differently from its newer neighbour.
//!
//! Owns: the shape of that difference ([`VersionStep`]) and the way through all of them ([`Chain`]): up from a
//! client's version to the newest one, and down again. Each difference is a module of its own, `v0_9_0` and
//! so on; to drop a version, drop its module and its line in [`STEPS`].
//! Never: remembers anything from one message to the next; what a step must know of the past is lent to it
//! as a [`Scene`].

use ahp_types::state::ChatState;
use serde_json::Value;

use super::dialect::Dialect;
use super::names::Names;
use super::node::{self, Node, Object};
use super::{
    draft, integer, v0_1_0, v0_2_0, v0_3_0, v0_4_0, v0_5_0, v0_5_1, v0_5_2, v0_6_0, v0_7_0, v0_8_0, v0_9_0,
};
use crate::wire::asides::Aside;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;

/// What a client asks: a request or a notification on its way up.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The method.
    pub method: String,
    /// Its params.
    pub params: Object,
    /// What it means besides.
    pub aside: Option<Aside>,
    /// How the answer is made from that of the core.
    pub reply: Reply,
}

/// How the answer to a request is made from that of the core.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Reply {
    /// It is the core's, translated.
    #[default]
    Same,
    /// Some turns of the chat whose state the core answers.
    Turns {
        /// Those before this turn; the newest when there is none.
        before: Option<String>,
        /// At most so many.
        limit: Option<usize>,
    },
}

/// A client's action on its way up.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// The channel that it is about.
    pub channel: String,
    /// The action.
    pub action: Object,
    /// What it means besides.
    pub aside: Option<Aside>,
}

impl Said {
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
pub struct Told {
    /// The channel, as the envelope names it.
    pub channel: String,
    /// The action.
    pub action: Object,
}

impl Told {
    /// The action's name.
    pub fn name(&self) -> &str {
        node::text(&self.action, "type").unwrap_or_default()
    }
}

/// A channel's state on its way down.
#[derive(Debug, Clone, PartialEq)]
pub struct Shot {
    /// Of what kind the channel is.
    pub kind: ChannelKind,
    /// Which channel, as the core names it.
    pub channel: String,
    /// Which channel, as the client names it.
    pub resource: String,
    /// The state.
    pub state: Object,
    /// What the list says of it, when it is a session and its version wants to know.
    pub summary: Option<Object>,
    /// The last action that it knows of.
    pub from_seq: Value,
}

/// A notification on its way down.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// The method.
    pub method: String,
    /// Its params.
    pub params: Object,
}

/// What a step may know besides the message.
pub struct Scene<'a> {
    /// The chat that an action is about, as the newest version sees it and before the action; none when it
    /// is not known.
    pub chat: Option<&'a ChatState>,
    /// The same chat behind all that is replayed, where the action is replayed: nobody knows what was before it.
    pub at_end: Option<&'a ChatState>,
    /// Whether a user has read the session that an action is about: before the action, or after the last one
    /// when several are replayed.
    pub is_read: bool,
    /// The active clients of the session that an action is about, as the newest version sees them and with what
    /// the action changes; none when they are not known.
    pub active: &'a [Value],
    /// The directories of that session before the action; none when they are not known.
    pub directories: &'a [Value],
    /// Clients of this version know that a session has chats.
    pub knows_chats: bool,
    /// What clients of this version call sessions.
    pub names: &'a mut Names,
    /// Who says it, on the way up.
    pub client_id: &'a str,
}

/// The difference between a version and its newer neighbour. What a step does not mention is the same in both.
pub trait VersionStep: Sync {
    /// The older one of the two.
    fn dialect(&self) -> Dialect;

    /// What its clients cannot be told or say, in the words of the chapter; each counts for all older ones too.
    fn losses(&self) -> &'static [&'static str];

    /// Actions that the older one does not have. They are left out, unless [`VersionStep::action_down`] has made
    /// something else of them.
    fn lacks(&self) -> &'static [&'static str] {
        &[]
    }

    /// Changes a request or notification of a client; an action in it is changed by [`VersionStep::action_up`].
    ///
    /// # Errors
    /// When it asks for what cannot be given.
    fn call_up(&self, _call: &mut Call, _scene: &mut Scene<'_>) -> Result<(), RpcError> {
        Ok(())
    }

    /// Changes a client's action. Of what it changes nothing is known here: what depends on that is left to the
    /// core, as an [`Aside`].
    fn action_up(&self, _said: &mut Said, _scene: &mut Scene<'_>) {}

    /// Changes a piece of a state or an action. Every piece inside of it is changed already.
    fn node_down(&self, _node: Node, _object: &mut Object) {}

    /// Changes states as wholes, after their pieces.
    fn shots_down(&self, _shots: &mut Vec<Shot>, _scene: &mut Scene<'_>) {}

    /// Makes of an action, whose pieces are changed already, what is told instead.
    fn action_down(&self, told: Told, _scene: &mut Scene<'_>) -> Vec<Told> {
        vec![told]
    }

    /// Changes a notification; none when it is not told.
    fn notice_down(&self, notice: Notice, _scene: &mut Scene<'_>) -> Option<Notice> {
        Some(notice)
    }

    /// Changes the result of a method; snapshots and summaries in it are changed already.
    fn result_down(&self, _method: &str, _result: &mut Value, _scene: &mut Scene<'_>) {}

    /// Changes the envelope of an action that is told alone, or in the replay of a `reconnect`.
    fn envelope_down(&self, _envelope: &mut Object, _in_replay: bool) {}

    /// Changes an error: its code may be unknown to the older one, and its sentence may name a session.
    fn error_down(&self, _error: &mut RpcError, _scene: &mut Scene<'_>) {}
}

/// Every difference, the newest version's first.
pub static STEPS: &[&dyn VersionStep] = &[
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
pub struct Chain(&'static [&'static dyn VersionStep]);

impl Chain {
    /// The steps to `dialect`.
    pub fn to(dialect: Dialect) -> Self {
        let steps = STEPS.iter().take_while(|step| step.dialect() >= dialect).count();
        Self(&STEPS[..steps])
    }

    /// Takes a request or notification up.
    ///
    /// # Errors
    /// When it asks for what cannot be given.
    pub fn call_up(self, call: &mut Call, scene: &mut Scene<'_>) -> Result<(), RpcError> {
        self.0.iter().rev().try_for_each(|step| step.call_up(call, scene))
    }

    /// Takes an action up.
    pub fn action_up(self, said: &mut Said, scene: &mut Scene<'_>) {
        self.0.iter().rev().for_each(|step| step.action_up(said, scene));
    }

    /// Takes an action down, to all that is told instead of it: often itself, sometimes nothing.
    pub fn action_down(self, told: Told, scene: &mut Scene<'_>) -> Vec<Told> {
        let mut all = vec![told];
        for step in self.0 {
            all = all
                .into_iter()
                .flat_map(|mut told| {
                    node::each_of_action(&mut told.action, &mut |node, object| step.node_down(node, object));
                    step.action_down(told, scene)
                })
                .filter(|told| !step.lacks().contains(&told.name()))
                .collect();
        }
        all
    }

    /// Takes states down.
    pub fn shots_down(self, shots: &mut Vec<Shot>, scene: &mut Scene<'_>) {
        for step in self.0 {
            for shot in &mut *shots {
                let visit = &mut |node, object: &mut Object| step.node_down(node, object);
                if let Some(node) = Node::of_state(shot.kind) {
                    node::each(node, &mut shot.state, visit);
                }
                if let Some(summary) = &mut shot.summary {
                    node::each(Node::SessionSummary, summary, visit);
                }
            }
            step.shots_down(shots, scene);
        }
    }

    /// Takes a piece down that stands alone.
    pub fn node_down(self, node: Node, object: &mut Object) {
        for step in self.0 {
            node::each(node, object, &mut |node, object| step.node_down(node, object));
        }
    }

    /// Takes a notification down; none when it is not told.
    pub fn notice_down(self, notice: Notice, scene: &mut Scene<'_>) -> Option<Notice> {
        self.0.iter().try_fold(notice, |mut notice, step| {
            for member in ["summary", "changes"] {
                if let Some(Value::Object(summary)) = notice.params.get_mut(member) {
                    step.node_down(Node::SessionSummary, summary);
                }
            }
            step.notice_down(notice, scene)
        })
    }

    /// Takes the result of a method down.
    pub fn result_down(self, method: &str, result: &mut Value, scene: &mut Scene<'_>) {
        for step in self.0 {
            if let (Some(Value::Array(items)), "listSessions") = (result.get_mut("items"), method) {
                for summary in items.iter_mut().filter_map(Value::as_object_mut) {
                    step.node_down(Node::SessionSummary, summary);
                }
            }
            if let (Some(Value::Array(turns)), "fetchTurns") = (result.get_mut("turns"), method) {
                for turn in turns.iter_mut().filter_map(Value::as_object_mut) {
                    node::each(Node::Turn, turn, &mut |node, object| step.node_down(node, object));
                }
            }
            step.result_down(method, result, scene);
        }
    }

    /// Takes the envelope of an action down.
    pub fn envelope_down(self, envelope: &mut Object, in_replay: bool) {
        self.0.iter().for_each(|step| step.envelope_down(envelope, in_replay));
    }

    /// Takes an error down.
    pub fn error_down(self, error: &mut RpcError, scene: &mut Scene<'_>) {
        self.0.iter().for_each(|step| step.error_down(error, scene));
    }
}
