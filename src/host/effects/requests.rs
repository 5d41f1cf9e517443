//! Messages of clients as the core receives them, with requests that the protocol does not have.
//!
//! Owns: the list of those requests. The core answers them by its own state at that time, which
//! nobody else knows as exactly.
//! Never: part of any JSON: no client can send one.

use serde_json::Value;

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
    /// Answers the states of these channels. No subscription begins, and no window moves, as they
    /// would by any request of the protocol that answers a state.
    Preview(Vec<String>),
    /// Answers the summaries of these sessions, or of all, as far as they are in memory: at once,
    /// where `listSessions` reads the store and names none.
    Summaries(Option<Vec<String>>),
    /// Creates a session, as `createSession` does with these params. The first that is told of it
    /// shows these options, so they cannot come later.
    CreateSession(Params, SessionOptions),
    /// Creates a chat, as `createChat` does with these params. A first message that names no model
    /// or agent is for those that are selected.
    CreateChat(Params, Selection),
    /// Dispatches an action, as `dispatchAction` does with these params.
    Dispatch(Params, DispatchMode),
    /// Notes what the client can do.
    Note(Abilities),
}

/// Options of a new session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionOptions {
    /// The session and the turn that it goes on from (JSON).
    pub fork: Option<Value>,
    /// Selection at the beginning.
    pub selection: Selection,
    /// Set if it may be that nothing is ever said in it: it is not listed or stored until
    /// something begins in it.
    pub ahead: bool,
}

/// Meaning of a dispatched action besides itself. It depends on the turn that runs, and on what is
/// selected, when the action is handled: only the core knows that.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum DispatchMode {
    /// The action and nothing else.
    #[default]
    Plain,
    /// The selection of the chat holds: a message that names no model or agent is for those that
    /// are selected when its turn begins, and a truncation leaves them selected.
    Selected,
    /// Another model or agent is selected in a session, for the turns after the running one. The
    /// action is what is echoed.
    Selecting {
        /// New selection.
        change: SelectionChange,
        /// Chats other than the session's own follow what is selected for the session.
        for_all_chats: bool,
    },
    /// The active client offers these tools (JSON) from now on, and is otherwise as it is then.
    OfferingTools(Value),
}

/// Abilities of a connection's client. Requests and questions go to those alone that can take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Set if it can be shown questions, so that it can answer them.
    pub sees_questions: bool,
    /// Set if it answers requests.
    pub answers_requests: bool,
}

impl Default for Abilities {
    fn default() -> Self {
        Self { sees_questions: true, answers_requests: true }
    }
}

impl ClientMessage {
    /// Returns the id of a request that is to be answered.
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
