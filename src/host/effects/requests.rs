//! Messages of clients as the core receives them, with requests beyond the protocol.
//!
//! Owns: the list of those requests. The core answers them from its own state at that time, which
//! no other module knows as exactly.
//! Never: part of any JSON: no client can send such a request.

use serde_json::Value;

use crate::wire::methods::Method;
use crate::wire::rpc::{Incoming, Params, RequestId};
use crate::wire::selection::{Selection, SelectionChange};

/// Message of a client.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientMessage {
    /// Message of the protocol.
    Protocol(Incoming),
    /// Request beyond the protocol, with the id to answer; `None` if it is not answered.
    Internal(Option<RequestId>, Box<InternalRequest>),
}

/// Request beyond the protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum InternalRequest {
    /// Answers the states of these channels. Unlike requests of the protocol that answer a state,
    /// no subscription begins and no window moves.
    Preview(Vec<String>),
    /// Answers the core's names of those of these URIs that are other names of a channel.
    Names(Vec<String>),
    /// Answers the summaries of these sessions, or of all, if they are in memory. The answer is
    /// immediate, whereas `listSessions` reads the store and cannot name sessions.
    Summaries(Option<Vec<String>>),
    /// Creates a session, as `createSession` does with these params. The first notification of the
    /// session shows these options, so they cannot be set later.
    CreateSession(Params, SessionOptions),
    /// Creates a chat, as `createChat` does with these params. A first message that names no model
    /// or agent is for the selected ones.
    CreateChat(Params, Selection),
    /// Dispatches an action, as `dispatchAction` does with these params. If a session is given, the
    /// action is refused unless its channel is a chat of that session.
    Dispatch(Params, DispatchMode, Option<String>),
    /// Serves this method with these params. Their channel is not found unless it is a chat of this
    /// session.
    OfSession(Method, Params, String),
    /// Notes the abilities of the client.
    Note(Abilities),
}

/// Options of a new session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionOptions {
    /// Source session and turn of the fork (JSON); `None` if the session is no fork.
    pub fork: Option<Value>,
    /// Initial selection.
    pub selection: Selection,
    /// Set if the session may stay unused: it is not listed or stored until a turn begins in it.
    pub ahead: bool,
}

/// Effect of a dispatched action besides its own. It depends on the running turn and the selection
/// at the time when the action is handled, which only the core knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum DispatchMode {
    /// No further effect.
    #[default]
    Plain,
    /// The selection of the chat applies: a message that names no model or agent is for those
    /// selected when its turn begins, and a truncation leaves them selected.
    Selected,
    /// Selects another model or agent in a session, for the turns after the running one. The action
    /// itself is only echoed.
    Selecting {
        /// New selection.
        change: SelectionChange,
        /// Set if chats other than the session's own follow the selection of the session.
        for_all_chats: bool,
    },
    /// Replaces the tools (JSON) of the active client, which is otherwise unchanged.
    OfferingTools(Value),
}

/// Abilities of a connection's client. Requests, questions and resumed turns go only to clients
/// that can handle them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Set if the client can show questions, so that its user can answer them.
    pub sees_questions: bool,
    /// Set if the client answers requests.
    pub answers_requests: bool,
    /// Set if the client can resume a turn; others are sent the turn anew.
    pub resumes_turns: bool,
}

impl Default for Abilities {
    fn default() -> Self {
        Self { sees_questions: true, answers_requests: true, resumes_turns: true }
    }
}

impl ClientMessage {
    /// Returns whether the message is a note of the host's own edge, which needs nothing stored.
    pub fn is_note(&self) -> bool {
        matches!(self, Self::Internal(_, request) if matches!(**request, InternalRequest::Note(_)))
    }

    /// Returns the id of a request that must be answered.
    pub fn request_id(&self) -> Option<&RequestId> {
        match self {
            Self::Protocol(Incoming::Request { id, .. }) | Self::Internal(Some(id), _) => Some(id),
            _ => None,
        }
    }
}

impl From<Incoming> for ClientMessage {
    fn from(message: Incoming) -> Self {
        Self::Protocol(message)
    }
}
