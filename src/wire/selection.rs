//! Model and agent that are selected for messages.
//!
//! Owns: a selection, as the drafts and messages of a chat say it, and a change of one.
//! Never: checks that there is such a model.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of a [`Selection`] in the `_meta` of a session's summary.
pub const SELECTED: &str = "selected";

/// Model and agent that a message is for (JSON).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// The model; the agent's default one when none is selected.
    pub model: Option<Value>,
    /// The custom agent, if one is selected.
    pub agent: Option<Value>,
}

/// A change of what is selected (JSON).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SelectionChange {
    /// Another model.
    Model(Value),
    /// Another agent, or none.
    Agent(Option<Value>),
}

impl Selection {
    /// Returns the selection in a chat with this draft and last message; each is `null` if there is
    /// none.
    ///
    /// The draft says it. Where there is no draft the last message does, and where the draft names
    /// no model too.
    pub fn of(draft: &Value, last: &Value) -> Self {
        let member = |message: &Value, name| message.get(name).filter(|value| !value.is_null()).cloned();
        let agent = if draft.is_null() { member(last, "agent") } else { member(draft, "agent") };
        Self { model: member(draft, "model").or_else(|| member(last, "model")), agent }
    }

    /// After a change.
    pub fn with(self, change: &SelectionChange) -> Self {
        match change {
            SelectionChange::Model(model) => Self { model: Some(model.clone()), ..self },
            SelectionChange::Agent(agent) => Self { agent: agent.clone(), ..self },
        }
    }
}
