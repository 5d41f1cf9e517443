//! Model and agent that are selected for messages.
//!
//! Owns: a selection, derived from the drafts and messages of a chat, and a change of one.
//! Never: checks that the model exists.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Member of a session summary's `_meta` that holds a [`Selection`].
pub const SELECTED: &str = "selected";

/// Model and agent of a message, as JSON.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// Model; `None` for the agent's default one.
    pub model: Option<Value>,
    /// Custom agent, if any.
    pub agent: Option<Value>,
}

/// Change of a selection, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SelectionChange {
    /// New model.
    Model(Value),
    /// New agent; `None` for no custom agent.
    Agent(Option<Value>),
}

impl Selection {
    /// Returns the selection in a chat with this draft and last message; each is `null` if missing.
    /// The draft decides. The last message does without a draft, or if the draft has no model.
    pub fn of(draft: &Value, last: &Value) -> Self {
        let member = |message: &Value, name| message.get(name).filter(|value| !value.is_null()).cloned();
        let agent = if draft.is_null() { member(last, "agent") } else { member(draft, "agent") };
        Self { model: member(draft, "model").or_else(|| member(last, "model")), agent }
    }

    /// Applies a change.
    pub fn with(self, change: &SelectionChange) -> Self {
        match change {
            SelectionChange::Model(model) => Self { model: Some(model.clone()), ..self },
            SelectionChange::Agent(agent) => Self { agent: agent.clone(), ..self },
        }
    }
}
