//! Sessions that agents store by themselves: requests of the core about them, and the answers.
//!
//! Owns: these requests and answers.
//! Never: acts, or names a concept of one agent protocol: every kind of backend uses them.

use ahp_types::commands::CreateSessionParams;

use super::{OpenFailure, Tokens};
use crate::state::history::CompletedTurn;

/// Session that an agent stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSession {
    /// Agent's name of its conversation, as in [`Handle`](super::Handle).
    pub name: String,
    /// Title for people.
    pub title: Option<String>,
    /// `file:` URI of the folder that the agent works in; `None` if the agent has not reported it.
    pub directory: Option<String>,
    /// Time of the last change, in the agent's form.
    pub modified_at: Option<String>,
}

/// Question about the sessions that an agent stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentSessionsQuery {
    /// List of the sessions, in the agent's order.
    List {
        /// `file:` URI of the folder of the sessions; `None` for all.
        directory: Option<String>,
    },
    /// One session with its turns.
    Read {
        /// Agent's name of the conversation.
        name: String,
        /// `file:` URI of the folder to work in; `None` for the one in the agent's list.
        directory: Option<String>,
    },
}

/// Request about the sessions that an agent stores, made for a client.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSessionsRequest {
    /// Provider id of the agent.
    pub provider: String,
    /// Tokens that the agent may use.
    pub tokens: Tokens,
    /// Question.
    pub query: AgentSessionsQuery,
    /// Use of the answer.
    pub purpose: AgentSessionsPurpose,
}

/// Use of an answer about the sessions that an agent stores.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentSessionsPurpose {
    /// Values for a setting, of which the client wants those that contain this text.
    Complete(String),
    /// New session that goes on with one of the agent.
    Adopt(Box<CreateSessionParams>),
}

/// Answer about the sessions that an agent stores.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentSessionsAnswer {
    /// Sessions, in the agent's order.
    Listed(Vec<AgentSession>),
    /// Session with its turns.
    Read(Box<ReadAgentSession>),
}

/// Session that was read from an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadAgentSession {
    /// Session.
    pub session: AgentSession,
    /// Latest turns, oldest first.
    pub turns: Vec<CompletedTurn>,
    /// Number of older turns, which were too large or too many.
    pub omitted: u64,
}

/// Reason for which an agent has not answered about its sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSessionsFailure {
    /// Kind of the failure.
    pub kind: OpenFailure,
    /// Reason, for people.
    pub reason: String,
}

/// Conversation of an agent that a session of the host goes on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownConversation {
    /// Provider id of the agent.
    pub provider: String,
    /// Agent's name of the conversation.
    pub name: String,
    /// URI of the session.
    pub session: String,
    /// Set if the session is in the trash.
    pub is_removed: bool,
}
