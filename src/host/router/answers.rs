//! Answers to requests, before they are written.
//!
//! Owns: the kinds of answers: those that are known at once, and those that are made elsewhere.
//! Never: makes one.

use ahp_types::commands::InvokeChangesetOperationParams;
use bytes::Bytes;

use crate::host::catalogue::missed::Missed;
use crate::host::catalogue::sessions::NewSession;
use crate::host::clients::connections::Subscribed;
use crate::host::effects::{Page, Resource};
use crate::host::relays::Relay;
use crate::host::terminals::ptys::NewPty;

/// The result of methods that answer nothing.
pub(super) const NULL: Bytes = Bytes::from_static(b"null");

/// The result of methods that answer an object with nothing in it.
pub(super) const EMPTY: Bytes = Bytes::from_static(b"{}");

/// Result of a handler.
pub(crate) enum Answer {
    /// A result; JSON text.
    Json(Bytes),
    /// A result with states of channels, which is answered when it is written.
    States(Subscribed),
    /// A session whose coming into being is told after the answer.
    Created(NewSession),
    /// Answer to a `reconnect`, with the notifications that follow it.
    Returned(Subscribed, Missed),
    /// A page of the list of sessions, which is answered when this step is safe.
    Page(Page),
    /// Request to the client that serves a file; answered when that client has answered.
    Relay(Relay),
    /// A terminal that is to be made, which is answered when its program has started.
    Terminal(Box<NewPty>),
    /// Operation on the files of a changeset; answered when it is done.
    Operation(Box<InvokeChangesetOperationParams>),
    /// Content of a file or folder; answered when it has been read.
    Resource(Resource),
}
