//! Hints that accompany a message besides its params.
//!
//! Owns: the list of what older versions of the protocol can say and the newest has no member for.
//! The version edge puts it beside the params of a translated message, and the core makes of it
//! what its own state at that time says.
//! Never: part of any JSON: no client can say any of it, and nothing of it is told.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of a [`Selection`] in the `_meta` of a session's summary.
pub const SELECTED: &str = "selected";

/// Hint that accompanies a message besides its params.
#[derive(Debug, Clone, PartialEq)]
pub enum VersionHint {
    /// `initialize`, `reconnect`: the client cannot be shown questions, so it cannot answer any.
    CannotShowQuestions,
    /// `initialize`, `reconnect`: the client answers no requests of the host.
    AnswersNothing,
    /// `reconnect`: the snapshots are for the version edge alone. The client keeps the states that
    /// it has, so the windows of its subscriptions stay as they are.
    EdgeOnly,
    /// `listSessions`: just these sessions, as far as they are in memory.
    OnlySessions(Vec<String>),
    /// `listSessions`: all that are in memory.
    InMemory,
    /// `createSession`, `createChat`: what is selected at the beginning, and where it is begun
    /// from.
    Begins {
        /// For which model and agent the first message is.
        selection: Selection,
        /// `createSession`: the session and the turn that it goes on from (JSON).
        fork: Option<Value>,
    },
    /// `createSession`: whether anything will be said in it is open; the client makes one for each
    /// window.
    MadeAhead,
    /// `dispatchAction` on a session: another model or agent is selected; the action is what its
    /// client said.
    Selects {
        /// New selection.
        change: SelectionChange,
        /// Chats other than the session's own follow what is selected for the session.
        for_all_chats: bool,
    },
    /// `dispatchAction` of a message: where it names no model or agent, it is for those that are
    /// selected when its turn begins.
    Follows,
    /// `dispatchAction` of `chat/truncated`: what is selected stays so.
    KeepsSelection,
    /// `dispatchAction`: the active client that says it offers these tools (JSON) from now on.
    OffersTools(Value),
}

/// For which model and agent a message is (JSON).
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
    /// no model too: older versions have no word for a model that is selected no more.
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
