//! Messages to one connection.
//!
//! Owns: [`Frame`], and the lines of sequenced actions that all subscribers share.
//! Never: translates to another version, or queues.

use bytes::Bytes;

use super::RunId;
use crate::wire::action_lines::DeltaLines;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::RequestId;

/// Message to one connection, in the newest version of the protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Result of a request.
    Result {
        /// Id that the client gave.
        id: RequestId,
        /// Method of the request.
        method: Method,
        /// Result, as JSON text.
        result: Bytes,
        /// Kinds of the channels whose states are in the result, in their order.
        states: Vec<ChannelKind>,
    },
    /// Error answer to a request, or to a line that was not a valid message.
    Error {
        /// Id of the request, if there is one to echo.
        id: Option<RequestId>,
        /// Error.
        error: RpcError,
    },
    /// Sequenced action, serialised once and shared by all subscribers.
    Action(ActionLine),
    /// Sequenced actions that append text to a part. The number is the time in milliseconds for
    /// which the client allows them to be held back and merged; `None` if it has not said so.
    Deltas(DeltaRun, Option<u64>),
    /// Action for one client alone that changes nothing: a refused one, an acknowledged one without
    /// effect, or loaded turns. A whole line.
    Answer(Bytes),
    /// Request to the client.
    Request {
        /// Id, unique among all requests of the host.
        number: u64,
        /// Method.
        method: &'static str,
        /// Params, as JSON text.
        params: Bytes,
    },
    /// Notification of the protocol.
    Notification {
        /// Method.
        method: &'static str,
        /// Params, as JSON text.
        params: Bytes,
    },
}

impl Frame {
    /// Returns an answer without states of channels; `result` is JSON text.
    pub fn result(id: RequestId, method: Method, result: Bytes) -> Self {
        Self::Result { id, method, result, states: Vec::new() }
    }

    /// Returns the id of the request that the frame answers.
    pub fn answers(&self) -> Option<&RequestId> {
        match self {
            Self::Result { id, .. } => Some(id),
            Self::Error { id, .. } => id.as_ref(),
            _ => None,
        }
    }

    /// Returns the approximate length of the serialised frame, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Action(action) => action.line.len(),
            Self::Deltas(run, _) => run.lines.lines().len(),
            Self::Answer(line) => line.len(),
            Self::Result { result, .. } => result.len(),
            Self::Notification { params, .. } | Self::Request { params, .. } => params.len(),
            Self::Error { .. } => 0,
        }
    }
}

/// Sequenced action as a whole line of the newest version, including its newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionLine {
    /// Line.
    pub line: Bytes,
    /// Sequence number.
    pub server_seq: u64,
    /// Part that the line only appends text to: queued lines of one part may be merged. `None` for
    /// other actions.
    pub delta: Option<PartKey>,
}

/// Consecutive actions that append text to one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaRun {
    /// Part.
    pub part: PartKey,
    /// Sequence number of the first action.
    pub first_seq: u64,
    /// Lines of the actions.
    pub lines: DeltaLines,
}

impl DeltaRun {
    /// Returns each of the actions.
    pub fn actions(&self) -> impl Iterator<Item = ActionLine> + '_ {
        let line_of = |(line, server_seq)| ActionLine { line, server_seq, delta: Some(self.part) };
        self.lines.each().zip(self.first_seq..).map(line_of)
    }
}

/// Part of an answer, which identifies deltas that may be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartKey {
    /// Run that writes the part.
    pub run: RunId,
    /// Number of the part in the run.
    pub part: u32,
}
