//! Results of request handlers, before they are written.
//!
//! Owns: the kinds of answers, complete or pending.
//! Never: creates one.

use ahp_types::commands::InvokeChangesetOperationParams;
use bytes::Bytes;

use crate::host::catalogue::missed::Missed;
use crate::host::catalogue::sessions::NewSession;
use crate::host::clients::connections::Subscribed;
use crate::host::effects::{AgentSessionsRequest, Page, Resource};
use crate::host::relays::Relay;
use crate::host::terminals::ptys::NewPty;

/// Result of methods that return nothing.
pub(super) const NULL: Bytes = Bytes::from_static(b"null");

/// Result of methods that return an empty object.
pub(super) const EMPTY: Bytes = Bytes::from_static(b"{}");

pub(crate) enum Answer {
    Json(Bytes),
    /// Result with states of channels; answered when it is written.
    States(Subscribed),
    /// New session; announced after the answer.
    Created(NewSession),
    /// Answer to a `reconnect`, with the notifications that follow it.
    Returned(Subscribed, Missed),
    /// Request about the sessions of an agent; answered when the agent has answered.
    AgentSessions(Box<AgentSessionsRequest>),
    /// Page of the list of sessions; answered when this step is committed.
    Page(Page),
    /// Request to the client that serves a file; answered when that client has answered.
    Relay(Relay),
    /// Terminal to be created; answered when its program has started.
    Terminal(Box<NewPty>),
    /// Operation on the files of a changeset; answered when it is done.
    Operation(Box<InvokeChangesetOperationParams>),
    /// Content of a file or folder; answered when it has been read.
    Resource(Resource),
}
