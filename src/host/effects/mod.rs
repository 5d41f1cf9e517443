//! Inputs and outputs of the core: plain data.
//!
//! Owns: [`Input`] and [`Output`], the words that the core and the backends use with each other
//! ([`Command`], [`Event`]), and what the caller lends to each step ([`Now`], [`Ids`]).
//! Never: acts. Free of the words of any agent protocol, so that every kind of backend fits.

mod agents;
mod events;
mod git;
mod ids;
mod ptys;
mod records;
mod requests;
mod rope;
mod states;

use std::time::Duration;

use ahp_types::commands::{
    ContentEncoding, ResourceCopyParams, ResourceDeleteParams, ResourceMkdirParams, ResourceMoveParams,
    ResourceRequestParams, ResourceWriteParams,
};
use ahp_types::state::ResourceChangeType;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::changes::sides::RevertedFile;
use super::{Findings, LoadedSession};
use crate::wire::action_lines::DeltaLines;
use crate::wire::changesets::ChangesetScope;
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::RequestId;
use crate::wire::watches::Watched;

pub use agents::*;
pub use events::*;
pub use git::*;
pub use ids::*;
pub use ptys::*;
pub use records::*;
pub use requests::*;
pub use rope::{Rope, LARGE_BYTES};
pub use states::*;

/// The time, as the caller of the core sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since 1970 by the wall clock: what is shown to people.
    pub unix_ms: i64,
    /// Milliseconds by a clock that never goes back: what durations are measured with.
    pub monotonic_ms: u64,
}

/// Source of fresh ids.
pub trait Ids {
    /// An id that was never given before.
    fn fresh(&mut self) -> String;
}

/// Input of the core.
#[derive(Debug)]
pub enum Input {
    /// A client has connected; it has not said anything.
    Opened {
        /// Connection.
        connection: ConnectionId,
        /// The `file:` URI of the folder that it is to start browsing at.
        default_directory: Option<String>,
    },
    /// A client said something.
    Received {
        /// Connection.
        connection: ConnectionId,
        /// Message.
        message: ClientMessage,
        /// Results of the lookups that the message required; `None` if nothing was looked up.
        prefetched: Option<Box<Prefetched>>,
    },
    /// A page of the list was read for a request, and sessions have changed since that began.
    Listed {
        /// Connection of the request.
        connection: ConnectionId,
        /// Id of the request.
        id: RequestId,
        /// Requested page.
        page: Page,
        /// Sessions that were read.
        listed: Listed,
    },
    /// A client can say nothing any more, and is still told what happens. Its turns are ended in
    /// this way; when they are over, its connection is ([`Output::Disconnected`],
    /// [`Output::Closed`]).
    Ended {
        /// Connection.
        connection: ConnectionId,
        /// In this way.
        how: Shutdown,
        /// Time within which the client is expected back, under whatever name, if it has lost its
        /// connection.
        expected: Option<Duration>,
    },
    /// A client is gone.
    Closed(ConnectionId),
    /// A client was not told that its `initialize` was heard, but that it failed: it has not begun.
    NotAdmitted(ConnectionId),
    /// A backend reports something about a chat's conversation.
    Agent(ChatKey, Event),
    /// The agents that are offered from now on, as their operator describes them, in their order.
    Agents(Vec<AgentDescription>),
    /// Description that a probed agent has given of itself.
    Probed {
        /// Provider id.
        provider: String,
        /// Description.
        said: Box<SelfDescription>,
    },
    /// Start of a watch that the core itself has asked for: its channel.
    Watches(String),
    /// Files have changed that are watched.
    FilesChanged {
        /// The channel of the watch.
        watch: String,
        /// Each file and folder, with what has become of it; at least one.
        changes: Vec<(String, ResourceChangeType)>,
    },
    /// Outcome of reverting files.
    Reverted {
        /// Request.
        request: Box<RevertRequest>,
        /// Outcome for each of the files.
        outcomes: Vec<RevertOutcome>,
    },
    /// Watches that must begin before a message of this connection is handled have no room.
    WatchesLackRoom(ConnectionId),
    /// Something is heard of the program in a terminal.
    Pty(TerminalKey, PtyEvent),
    /// Report about the git job of this number.
    Git(u64, GitReport),
    /// A timer that was asked for has run out.
    Timer(Timer),
    /// No client can say anything any more.
    Shutdown(Shutdown),
    /// The last input of a batch was handled: summaries that were held back, so that several
    /// changes are told as one, are sent.
    BatchEnded,
    /// A step ends: what has changed becomes records, before anything of the step goes out.
    Save,
    /// A session comes back from the store, because its turn was interrupted.
    Restored(Box<LoadedSession>),
    /// A session is there but cannot be read.
    Unreadable {
        /// The URIs of the session and its chats, as far as they are known.
        uris: Vec<String>,
        /// Why, for people.
        reason: String,
    },
    /// Failure of the store, or its end.
    Failing(Option<Failing>),
}

impl Input {
    /// A client said something for which nothing had to be looked up.
    pub fn received(connection: ConnectionId, message: impl Into<ClientMessage>) -> Self {
        Self::Received { connection, message: message.into(), prefetched: None }
    }
}

/// Results of the lookups that a message required, made before it is handled. What has come back to
/// memory meanwhile takes precedence.
#[derive(Debug, Default)]
pub struct Prefetched {
    /// Stored actions behind the cursor of a `reconnect`; `None` if the store cannot continue
    /// exactly from there.
    pub past: Option<Past>,
    /// Findings about directories.
    pub findings: Findings,
    /// The sessions that the channels belong to.
    pub restored: Vec<LoadedSession>,
    /// The watches that it follows and that were not there, each with why it cannot begin if it has
    /// not.
    pub watches: Vec<(String, Result<(), RpcError>)>,
    /// URIs of channels that are there but cannot be read, each with the reason, for people.
    pub unreadable: Vec<(String, String)>,
}

/// The store does not take anything now; what has happened since it did is told to nobody yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// Why, for people.
    pub reason: String,
    /// The last sequence number that is safe.
    pub safe: u64,
}

/// How running turns are ended when nobody, or not the client that began them, can say anything any
/// more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// They go on until they end or the time is up; what nobody can answer is declined.
    Drain(Duration),
    /// They are cancelled now.
    Cancel,
}

/// Timer of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timer {
    /// The time for turns to end after the end of input is up.
    Drain,
    /// End of the time for the turns of one disconnected client.
    Disconnect(ConnectionId),
    /// A client that has lost this connection was expected back until now.
    Return(ConnectionId),
    /// Summaries that were held back while turns stream are to be told.
    Summaries,
    /// A session's interrupted turn was ended, and the process is still there.
    Recovered(SessionKey),
    /// A session whose turn was taken up again has not brought the process down.
    Trial(SessionKey),
    /// A client was asked this, and has had the time to answer.
    Relay(u64),
    /// End of the debounce of changes in a session's repository.
    Refresh(SessionKey),
    /// A repository that nobody follows any more was watched for long enough; with the number of
    /// that time.
    Linger(SessionKey, u64),
    /// The time for which a turn waits until its folder is kept is up; with the number under which
    /// that was asked.
    Checkpoint(u64),
    /// The time of a watch that nobody follows, to be followed again, is up; with the number of
    /// that time.
    Watch(WatchKey, u64),
    /// The time of a terminal that nobody has followed yet, or whose holder is gone, is up; with
    /// the number of that time.
    Terminal(TerminalKey, u64),
    /// The time is up that the command in a terminal may run.
    Command(TerminalKey),
    /// The time of an active client to come back, counted among all such times, is up.
    Absence(u64),
    /// The time of a session that was made ahead of use, and that nobody follows, to be followed
    /// again is up; with the number of that time.
    UnsubscribedSession(SessionKey, u64),
}

/// Output of the core: a request to its surroundings. Outputs are carried out in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Send this to a connection.
    Frame(ConnectionId, Frame),
    /// The turns of a client that can say nothing any more are over.
    Disconnected {
        /// Connection, which is closed now.
        connection: ConnectionId,
        /// Something was declined because nobody was left to answer, or a turn was cut by the time
        /// limit.
        cut: bool,
    },
    /// Answer a request with states that are so large that it takes long to make JSON text of them:
    /// that is made where nobody waits for it but this connection, to which all that comes behind
    /// this is sent behind it.
    States(ConnectionId, RequestId, Box<LargeStates>),
    /// Tell a connection completed turns, of which the same is true.
    Turns(ConnectionId, Box<LoadedTurns>),
    /// End of a connection: its client is gone, and nothing more is sent to it.
    Closed(ConnectionId),
    /// Keep this: it must be safe before any frame of the same step goes out.
    Record(Record),
    /// Tell a backend. Boxed, because commands are large and outputs, most of them frames and
    /// records of deltas, are moved often.
    Agent(ChatKey, Box<Command>),
    /// Find out what an agent says of itself, by beginning a conversation with it that nobody takes
    /// part in. Answered by [`Input::Probed`].
    Probe {
        /// Provider id.
        provider: String,
        /// The tokens that it may use.
        tokens: Tokens,
    },
    /// Answer a request with a page of the list of sessions, as it is when this step is safe.
    List(ConnectionId, RequestId, Page),
    /// Answer a request about a file or folder.
    Resource(ConnectionId, RequestId, Resource),
    /// Do this with the program in a terminal.
    Pty(TerminalKey, PtyCommand),
    /// Have git do this. Answered by [`Input::Git`] with the number.
    Git(u64, Box<GitJob>),
    /// Watch for the core itself, under the name of this channel, if that can be. What it has said
    /// before is undone by as many [`Output::Unwatch`].
    Watch(String),
    /// Watch no more for this channel.
    Unwatch(String),
    /// Have those watches begun that had no room, for the message of this connection: there is as
    /// much as there can be.
    BeginWatches(ConnectionId),
    /// Come back with [`Input::Timer`] after this time.
    Timer(Timer, Duration),
    /// A shutdown is complete: no turn is left.
    Done {
        /// Something was declined because nobody was left to answer, or a turn was cut by the time
        /// limit.
        cut: bool,
    },
}

impl Output {
    /// Returns whether it neither shows nor changes anything stored: it holds whatever becomes of
    /// the records of its step and earlier ones, so it need not wait for them.
    pub fn is_independent_of_store(&self) -> bool {
        match self {
            Self::Frame(_, Frame::Result { method, .. }) => *method == Method::Ping,
            Self::Frame(_, Frame::Error { error, .. }) => error.is_about_the_message(),
            // What may be changed follows from what sessions there are.
            Self::Resource(_, _, resource) => {
                !matches!(resource, Resource::Change { .. } | Resource::Revert { .. })
            }
            _ => false,
        }
    }

    /// Returns the length of its text to be written, roughly, in bytes.
    pub fn frame_bytes(&self) -> usize {
        match self {
            Self::Frame(_, frame) => frame.bytes(),
            Self::States(_, _, states) => states.bytes,
            Self::Turns(_, turns) => turns.bytes(),
            _ => 0,
        }
    }
}

/// Something to be sent to one connection, as the newest version of the protocol says it.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// A request is answered; `result` is JSON text.
    Result {
        /// The id that the client gave.
        id: RequestId,
        /// Method of the request.
        method: Method,
        /// The result.
        result: Bytes,
        /// The kinds of the channels whose states are in it, in their order.
        states: Vec<ChannelKind>,
    },
    /// A request, or a line that was none, is answered with an error.
    Error {
        /// The id, where there is one to echo.
        id: Option<RequestId>,
        /// Error.
        error: RpcError,
    },
    /// A sequenced action, serialised once and shared by all who get it.
    Action(ActionLine),
    /// Sequenced actions that append text to a part, and for how many milliseconds the client has
    /// said that such may be held back to be merged.
    Deltas(DeltaRun, Option<u64>),
    /// An action for one client alone, which is no change: refused, or acknowledged because it
    /// changed nothing, or turns that are loaded. A whole line.
    Answer(Bytes),
    /// A request to the client; `params` is JSON text.
    Request {
        /// Id, unique among all requests of the host.
        number: u64,
        /// Method.
        method: &'static str,
        /// Params.
        params: Bytes,
    },
    /// A protocol notification; `params` is JSON text.
    Notification {
        /// Method.
        method: &'static str,
        /// Params.
        params: Bytes,
    },
}

impl Frame {
    /// An answer in which no channel's state is; `result` is JSON text.
    pub fn result(id: RequestId, method: Method, result: Bytes) -> Self {
        Self::Result { id, method, result, states: Vec::new() }
    }

    /// Returns the id of the request that it answers.
    pub fn answers(&self) -> Option<&RequestId> {
        match self {
            Self::Result { id, .. } => Some(id),
            Self::Error { id, .. } => id.as_ref(),
            _ => None,
        }
    }

    /// Returns the length of its text to be written, roughly, in bytes.
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

/// A sequenced action as a whole line of the newest version, its newline included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionLine {
    /// The line.
    pub line: Bytes,
    /// Sequence number.
    pub server_seq: u64,
    /// Set when the line only appends text to a part: such lines of one part may be merged while
    /// they wait.
    pub delta: Option<PartKey>,
}

/// Consecutive actions that append text to one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaRun {
    /// The part.
    pub part: PartKey,
    /// Sequence number of the first one.
    pub first_seq: u64,
    /// Their lines.
    pub lines: DeltaLines,
}

impl DeltaRun {
    /// Returns each of the actions.
    pub fn actions(&self) -> impl Iterator<Item = ActionLine> + '_ {
        let line_of = |(line, server_seq)| ActionLine { line, server_seq, delta: Some(self.part) };
        self.lines.each().zip(self.first_seq..).map(line_of)
    }
}

/// A part of an answer, to tell deltas that may be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartKey {
    /// The run that writes it.
    pub run: RunId,
    /// Number in the run.
    pub part: u32,
}

/// Something on this machine that a client wants to see.
#[derive(Debug, Clone, PartialEq)]
pub enum Resource {
    /// A file's content.
    Read {
        /// URI (`file:`).
        uri: String,
        /// How the client wants it encoded, if it cares.
        encoding: Option<ContentEncoding>,
    },
    /// A content that git keeps.
    Kept {
        /// The URI that clients call it by.
        uri: String,
        /// The `file:` URI of the repository's folder.
        root: String,
        /// Content in git.
        content: GitContent,
        /// The `file:` URI of the file that it is of.
        file: String,
        /// How the client wants it encoded, if it cares; none where it wants to know what is known
        /// of it.
        encoding: Option<Option<ContentEncoding>>,
    },
    /// A folder's entries.
    List {
        /// URI (`file:`).
        uri: String,
    },
    /// Metadata of a file or folder.
    Resolve {
        /// URI.
        uri: String,
        /// Content in a `data:` URI, if the URI is that of no file.
        content: Option<String>,
        /// Of a link: what it leads to.
        follows_links: bool,
    },
    /// Check whether it can be watched.
    Watch(Watched),
    /// Files that may be meant by what is typed.
    Files(FileCompletionQuery),
    /// Files that are to be what they were.
    Revert {
        /// Files to revert. Answered by [`Input::Reverted`].
        request: Box<RevertRequest>,
        /// The URIs of the folders below which clients may change files.
        below: Vec<String>,
    },
    /// Something that is to be changed.
    Change {
        /// Change.
        change: Box<Change>,
        /// The URIs of the folders below which clients may: those that sessions work in.
        below: Vec<String>,
    },
}

/// Text of a file, `Some(None)` where there is no file; `None` where the text is not known.
pub type FileText = Option<Option<String>>;

/// Files that are to be what they were before, or what they were before that was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct RevertRequest {
    /// Session of the changes.
    pub session: SessionKey,
    /// Scope of the changes.
    pub scope: ChangesetScope,
    /// Set if reverted changes are restored.
    pub restores: bool,
    /// The `file:` URI of the folder of the repository that keeps what they were; none where the
    /// calls have said it.
    pub root: Option<String>,
    /// Under which name, and with which number, what is there is to be kept first.
    pub kept_first: Option<(String, u64)>,
    /// And the bytes that git would not give back, the same way.
    pub bytes_kept: Option<(String, u64)>,
    /// The files.
    pub files: Vec<FileRevert>,
    /// Files that are left alone, each with the reason for people.
    pub left: Vec<String>,
    /// Files that had the wanted content already when they were reverted: they are not touched now,
    /// either.
    pub untouched: Vec<RevertedFile>,
}

/// A file that is to be another one.
#[derive(Debug, Clone, PartialEq)]
pub struct FileRevert {
    /// Stored form.
    pub row: RevertedFile,
    /// Expected text.
    pub now: FileText,
    /// Wanted text.
    pub wanted: FileText,
    /// Expected and wanted content, where git stores both.
    pub kept: Option<GitRevert>,
}

impl FileRevert {
    /// Returns the `file:` URI.
    pub fn uri(&self) -> &str {
        &self.row.edit.diff.file
    }

    /// Returns the file with both texts as calls have reported them.
    pub fn said(&self) -> SaidFile {
        let sides = self.now.clone().zip(self.wanted.clone());
        SaidFile { file: self.uri().to_owned(), sides, mode_wanted: self.row.mode() }
    }
}

/// Outcome for such a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RevertOutcome {
    /// Reverted.
    Done {
        /// Object id of the former bytes, if git would not give them back and they were to be
        /// stored.
        bytes: Option<String>,
        /// Permissions of a file that was removed.
        mode: Option<u32>,
    },
    /// Already as wanted, and not touched.
    Already,
    /// Left alone, with the reason for people.
    Refused(String),
}

/// A change of files that a client asks for, in the words of the protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Of a file.
    Write(ResourceWriteParams),
    /// A folder that is to be made.
    Mkdir(ResourceMkdirParams),
    /// Removal.
    Delete(ResourceDeleteParams),
    /// Move.
    Move(ResourceMoveParams),
    /// Copy.
    Copy(ResourceCopyParams),
    /// Question whether something may be read or changed.
    Ask(ResourceRequestParams),
}

/// Files that may be meant by what is typed in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCompletionQuery {
    /// The `file:` URIs of the directories that they are in.
    pub directories: Vec<String>,
    /// First character of the word that is typed.
    pub mark: char,
    /// The word behind that, up to the cursor.
    pub typed: String,
    /// Beginning and end of the whole word, in UTF-16 code units.
    pub range: (Option<i64>, Option<i64>),
}
