//! Inputs and outputs of the core: plain data.
//!
//! Owns: [`Input`] and [`Output`], the messages between the core and the backends ([`Command`],
//! [`Event`]), and what the caller lends to each step ([`Now`], [`Ids`]).
//! Never: acts, or uses terms of an agent protocol, so that every kind of backend fits.

mod adoption;
mod agents;
mod events;
mod frames;
mod git;
mod ids;
mod ptys;
mod records;
mod requests;
mod resources;
mod rope;
mod states;

use std::time::Duration;

use ahp_types::state::ResourceChangeType;

use super::{Findings, LoadedSession};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::RequestId;

pub use adoption::*;
pub use agents::*;
pub use events::*;
pub use frames::*;
pub use git::*;
pub use ids::*;
pub use ptys::*;
pub use records::*;
pub use requests::*;
pub use resources::*;
pub use rope::{Rope, LARGE_BYTES};
pub use states::*;

/// Time of a step, given by the caller of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since 1970 by the wall clock, for display.
    pub unix_ms: i64,
    /// Milliseconds by a clock that never goes back, for durations.
    pub monotonic_ms: u64,
}

/// Source of fresh ids.
pub trait Ids {
    /// Returns an id that was never returned before.
    fn fresh(&mut self) -> String;
}

/// Input of the core.
#[derive(Debug)]
pub enum Input {
    /// A client has connected and has sent nothing yet.
    Opened {
        /// Connection.
        connection: ConnectionId,
        /// The `file:` URI of the folder at which the client should start browsing.
        default_directory: Option<String>,
    },
    /// A client sent a message.
    Received {
        /// Connection.
        connection: ConnectionId,
        /// Message.
        message: ClientMessage,
        /// Results of the lookups that the message required; `None` if nothing was looked up.
        prefetched: Option<Box<Prefetched>>,
    },
    /// A page of the list was read for a request, and sessions have changed since the read began.
    Listed {
        /// Connection of the request.
        connection: ConnectionId,
        /// Id of the request.
        id: RequestId,
        /// Requested page.
        page: Page,
        /// Sessions that were read, as they were then.
        listed: Listed,
    },
    /// An agent has answered about the sessions that it stores.
    AgentSessions {
        /// Connection of the request.
        connection: ConnectionId,
        /// Id of the request.
        id: RequestId,
        /// Request.
        request: Box<AgentSessionsRequest>,
        /// Answer.
        answer: Result<AgentSessionsAnswer, AgentSessionsFailure>,
        /// Conversations of stored sessions, as they were after the answer.
        known: Vec<KnownConversation>,
    },
    /// A client can no longer send, but still receives. Its turns end as `how` says; then its
    /// connection is closed ([`Output::Disconnected`], [`Output::Closed`]).
    Ended {
        /// Connection.
        connection: ConnectionId,
        /// End of the client's turns.
        how: Shutdown,
        /// Time within which the client is expected back, under any client id; `None` if its
        /// connection was not lost.
        expected: Option<Duration>,
    },
    /// A connection has closed.
    Closed(ConnectionId),
    /// A client received an error for its `initialize`, which the core had accepted: the connection
    /// is as before `initialize`.
    NotAdmitted(ConnectionId),
    /// A backend reports something about a chat's conversation.
    Agent(ChatKey, Event),
    /// Agents offered from now on, as their operator describes them, in their order; and what they
    /// may be given of clients' plugins.
    Agents(Vec<AgentDescription>, ClientMcp),
    /// Description that a probed agent has given of itself.
    Probed {
        /// Provider id.
        provider: String,
        /// Description.
        description: Box<SelfDescription>,
    },
    /// A watch that the core itself has requested has started; its channel.
    Watches(String),
    /// A watch that the core itself has requested could not start; its channel.
    WatchFailed(String),
    /// Watched files have changed.
    FilesChanged {
        /// Channel of the watch.
        watch: String,
        /// Changed files and folders, each with the kind of change; at least one.
        changes: Vec<(String, ResourceChangeType)>,
    },
    /// Outcome of reverting files.
    Reverted {
        /// Request.
        request: Box<RevertRequest>,
        /// Outcome for each of the files.
        outcomes: Vec<RevertOutcome>,
    },
    /// Watches that must start before a message of this connection is handled have no room.
    WatchesLackRoom(ConnectionId),
    /// Report on the program in a terminal.
    Pty(TerminalKey, PtyEvent),
    /// Findings about the directories of a run that is to begin.
    DirectoriesChecked(AutomationRunKey, Findings),
    /// Report on the git job with this number.
    Git(u64, GitReport),
    /// Expiry of a requested timer.
    Timer(Timer),
    /// End of the input of all clients: the host shuts down.
    Shutdown(Shutdown),
    /// The last input of a batch was handled: held summaries, in which several changes are merged,
    /// are sent.
    BatchEnded,
    /// A step ends: changes become records before any output of the step goes out.
    Save,
    /// Session loaded from the store because its turn was interrupted.
    Restored(Box<LoadedSession>),
    /// A session exists but cannot be read.
    Unreadable {
        /// Known URIs of the session and its chats.
        uris: Vec<String>,
        /// Reason, for people.
        reason: String,
    },
    /// Failure of the store; `None` when the store has recovered.
    Failing(Option<Failing>),
}

impl Input {
    /// Returns the input for a message that required no lookups.
    pub fn received(connection: ConnectionId, message: impl Into<ClientMessage>) -> Self {
        Self::Received { connection, message: message.into(), prefetched: None }
    }
}

/// Reason why a session or chat cannot be read until commits succeed again.
pub const NOT_STORED_YET: &str = "its newest state is not stored yet";

/// Results of the lookups that a message required, made before it is handled. Sessions that were
/// restored to memory since then take precedence.
#[derive(Debug, Default)]
pub struct Prefetched {
    /// Stored actions behind the cursor of a `reconnect`; `None` if the store cannot continue
    /// exactly from there.
    pub past: Option<Past>,
    /// Findings about directories.
    pub findings: Findings,
    /// Sessions that the channels belong to.
    pub restored: Vec<LoadedSession>,
    /// Watches that the message requires and that were absent, each started, or with the error that
    /// prevents it.
    pub watches: Vec<(String, Result<(), RpcError>)>,
    /// URIs of channels that exist but cannot be read, each with the reason, for people.
    pub unreadable: Vec<(String, String)>,
}

/// Failure of the store to commit. Outputs since the last commit are held back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// Reason, for people.
    pub reason: String,
    /// Last committed sequence number.
    pub safe: u64,
}

/// End of running turns when no client, or not the client that began them, can send any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Turns continue until they end or this time is up; questions that no client can answer are
    /// declined.
    Drain(Duration),
    /// Turns are cancelled now.
    Cancel,
}

/// Timer of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timer {
    /// Deadline for turns to end after the end of input.
    Drain,
    /// Deadline for the turns of one disconnected client.
    Disconnect(ConnectionId),
    /// Deadline for the client of this lost connection to return.
    Return(ConnectionId),
    /// End of the time for which summaries are held back while turns stream.
    Summaries,
    /// A session's interrupted turn was ended, and the process has survived that.
    Recovered(SessionKey),
    /// A session's resumed turn has not ended the process.
    Trial(SessionKey),
    /// Timeout of a request relayed to a client.
    Relay(u64),
    /// Deadline for fetching a plugin from its client; with the number of the fetch.
    Plugin(u64),
    /// End of the debounce of changes in a session's repository.
    Refresh(SessionKey),
    /// End of the time for which a repository without subscribers stays watched; with the number of
    /// that time.
    Linger(SessionKey, u64),
    /// Timeout of the checkpoint that a turn waits for; with the number of its job.
    Checkpoint(u64),
    /// Timeout of a watch without subscribers; with the number of that time.
    Watch(WatchKey, u64),
    /// Timeout of a terminal without its first subscriber, or whose holder is gone; with the number
    /// of that time.
    Terminal(TerminalKey, u64),
    /// Time limit of the command in a terminal.
    Command(TerminalKey),
    /// Next look at the schedules of automations; with the number of the timer.
    Automations(u64),
    /// Time limit of a run of an automation.
    AutomationRun(AutomationRunKey),
    /// Next try to start the agent of a run.
    AutomationRetry(AutomationRunKey),
    /// Deadline for an absent active client to return; with the number of the absence.
    Absence(u64),
    /// Timeout of a session that was made ahead of use and has no subscribers; with the number of
    /// that time.
    UnsubscribedSession(SessionKey, u64),
}

/// Output of the core: a request to its surroundings. Outputs are carried out in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Sends a frame to a connection.
    Frame(ConnectionId, Frame),
    /// Reports that the turns of a disconnected client have ended.
    Disconnected {
        /// Connection, which is closed now.
        connection: ConnectionId,
        /// Set if something was declined because no client could answer, or if a turn exceeded the
        /// time limit.
        cut: bool,
    },
    /// Answers a request with states that take long to serialise. A worker does that, so that only
    /// this connection waits; its later frames are sent after the answer.
    States(ConnectionId, RequestId, Box<LargeStates>),
    /// Sends completed turns to a connection, in the same way as [`Self::States`].
    Turns(ConnectionId, Box<LoadedTurns>),
    /// Closes a connection whose client is gone; it receives no more output.
    Closed(ConnectionId),
    /// Stores a record, which must be committed before any frame of the same step goes out.
    Record(Record),
    /// Sends a command to a backend. Boxed because commands are large, and outputs, most of them
    /// frames and records of deltas, are moved often.
    Agent(ChatKey, Box<Command>),
    /// Probes an agent: begins a conversation without turns, to learn the agent's description of
    /// itself. Answered by [`Input::Probed`].
    Probe {
        /// Provider id.
        provider: String,
        /// Tokens that the agent may use.
        tokens: Tokens,
    },
    /// Answers a request from the sessions that an agent stores. Answered by
    /// [`Input::AgentSessions`].
    AgentSessions(ConnectionId, RequestId, Box<AgentSessionsRequest>),
    /// Answers a request with a page of the list of sessions, as of the commit of this step.
    List(ConnectionId, RequestId, Page),
    /// Answers a request about a file or folder.
    Resource(ConnectionId, RequestId, Resource),
    /// Controls the program in a terminal.
    Pty(TerminalKey, PtyCommand),
    /// Checks the directories of a run that is recorded. Answered by [`Input::DirectoriesChecked`].
    CheckDirectories(AutomationRunKey, Vec<String>),
    /// Runs a git job. Answered by [`Input::Git`] with the number.
    Git(u64, Box<GitJob>),
    /// Exports the log to a client. The log is not the core's, which only knows who may have it.
    ExportLogs {
        /// Connection.
        connection: ConnectionId,
        /// Channel in the client's spelling.
        channel: String,
        /// Lowest severity that is exported, by the numbers of OpenTelemetry.
        lowest: u8,
    },
    /// Ends the export of the log to a client from this severity on; `None` for all exports.
    EndLogs(ConnectionId, Option<u8>),
    /// Starts a watch for the core itself, under this channel, if possible. Each start needs an
    /// [`Output::Unwatch`] of its own.
    Watch(String),
    /// Releases a watch of this channel.
    Unwatch(String),
    /// Retries to start the watches that had no room, for the message of this connection. Every
    /// watch that can be evicted was evicted.
    BeginWatches(ConnectionId),
    /// Requests [`Input::Timer`] after this time.
    Timer(Timer, Duration),
    /// Reports that a shutdown is complete: no turn is left.
    Done {
        /// Set if something was declined because no client could answer, or if a turn exceeded the
        /// time limit.
        cut: bool,
    },
}

impl Output {
    /// Returns whether the output neither shows nor changes stored data. Such output stays valid
    /// even if the records of its step or of earlier steps are lost, so it need not wait for them.
    pub fn is_independent_of_store(&self) -> bool {
        match self {
            Self::Frame(_, Frame::Result { method, .. }) => *method == Method::Ping,
            Self::Frame(_, Frame::Error { error, .. }) => error.is_about_the_message(),
            // Which files may be changed depends on which sessions exist.
            Self::Resource(_, _, resource) => {
                !matches!(resource, Resource::Change { .. } | Resource::Revert { .. })
            }
            _ => false,
        }
    }

    /// Returns the approximate length of the serialised output, in bytes.
    pub fn frame_bytes(&self) -> usize {
        match self {
            Self::Frame(_, frame) => frame.bytes(),
            Self::States(_, _, states) => states.bytes,
            Self::Turns(_, turns) => turns.bytes(),
            _ => 0,
        }
    }
}
