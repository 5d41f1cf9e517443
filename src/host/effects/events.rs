//! Events that a backend reports about one chat's conversation.
//!
//! Owns: the words of its reports: [`Event`]s, and the [`TurnEvent`]s of a turn that runs.
//! Never: acts. Free of the words of any agent protocol, so that every kind of backend fits.

use ahp_types::common::{JsonObject, StringOrMarkdown};
use ahp_types::state::{ChatInputQuestion, FileEdit, SessionConfigState, ToolResultContent, UsageInfo};
use serde_json::Value;

#[cfg(doc)]
use super::Command;
use super::{Handle, RunId, SelfDescription};
use crate::wire::rpc::json_bytes;

/// Event that a backend reports about one chat's conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The conversation is open.
    Opened,
    /// Progress of the opening, for clients that want to know; may be reported any number of times.
    Opening {
        /// Amount that is done, in a measure of its own.
        done: u64,
        /// Of so much, if that is known.
        total: Option<u64>,
        /// Description of the current step, for people.
        message: Option<String>,
    },
    /// The opening waits for the user to do something elsewhere, such as logging in in a browser.
    /// May be reported any number of times.
    Awaits {
        /// Description of what the user must do.
        what: String,
    },
    /// The conversation could not be opened.
    OpenFailed {
        /// Kind of the failure.
        kind: OpenFailure,
        /// Why, for people.
        reason: String,
    },
    /// Name of the conversation for the agent: stored, and given back when it is opened again.
    /// `None` if the agent does not remember the conversation any more, or not yet.
    Handle(Option<Handle>),
    /// News in the agent's description, for all of its sessions.
    Described(Box<SelfDescription>),
    /// The session can be configured by this now, and is so: what the agent says, with what it has
    /// yet to be told. Where that is not what [`Command::Configure`] asked for, the agent has not
    /// taken it.
    Configured {
        /// All settings.
        config: Box<SessionConfigState>,
        /// Set if changes apply to the session's other conversations, too.
        spreads: bool,
        /// The number of the last change that is taken into account.
        heard: u64,
    },
    /// The agent gives the session a name.
    Title(String),
    /// Something about the conversation that has no place of its own: kept, and shown to clients
    /// that look for it, in place of the last one of this name.
    Note {
        /// Name.
        name: String,
        /// Value; `None` to remove the note.
        value: Option<Value>,
    },
    /// The token for this resource is no good, or not any more. Followed by [`Command::Tokens`]
    /// when there is another.
    TokenRefused {
        /// The resource, as the agent declares it.
        resource: String,
    },
    /// The agent cannot be used without a login. Of the resources that it declares and that are not
    /// required, it needs a token for one: for another one than it has, if it has any.
    LoginRequired,
    /// The agent works by itself, while nothing of the host's runs in it. Answered by
    /// [`Command::OwnTurn`] once a turn is open for that; if the host has begun another turn
    /// before, what the agent does is of that one, and there is no answer besides.
    Begins(TurnCause),
    /// Something about a run.
    Turn(RunId, TurnEvent),
    /// Command that the agent has left running in the background, in place of an earlier one of
    /// this id; `None` if it has ended. It ends with the conversation, too.
    Background {
        /// The agent's id of it.
        id: String,
        /// The command.
        command: Option<BackgroundCommand>,
    },
    /// Something about a terminal in which a command of the agent's runs. It may outlast the run in
    /// which it began.
    Terminal {
        /// Name of the terminal for the backend, unique in the conversation.
        name: String,
        /// Event.
        event: TerminalEvent,
    },
    /// The conversation is closed, while nothing ran in it: a run that was started meanwhile was
    /// not heard of. It is opened anew for the next turn, and nobody needs to notice.
    Left,
    /// The backend is gone without a word; every run with it. It is opened anew for the next turn;
    /// if the conversation's [`Handle`] says so, a run that was cut may be resumed.
    Died {
        /// Reason, for people.
        reason: String,
    },
}

impl Event {
    /// Returns the memory that it takes while it is queued, roughly, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Turn(_, event) => event.bytes(),
            Self::Terminal { event: TerminalEvent::Data(text), .. } => text.len(),
            _ => 0,
        }
    }
}

/// A command that an agent has left running when the call was over that began it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackgroundCommand {
    /// Purpose of the command, for people; the command itself if the agent does not say one.
    pub label: String,
    /// The command.
    pub line: String,
}

/// Reason why an agent works although nobody has asked it to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnCause {
    /// The agent goes on by itself, for a reason that it does not say.
    Agent,
    /// Work that the agent had left in the background has ended.
    Background,
}

/// Event that a backend reports about a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminalEvent {
    /// Start of a terminal in a call of the running turn. Nothing about it is sent before, and
    /// content of the call whose `resource` is the name shows it from then on.
    Opened {
        /// The call.
        call: String,
        /// The command, for people.
        title: String,
        /// The call need not wait for the command: it goes on by itself when the backend is told
        /// so, by [`Command::Background`].
        detaches: bool,
    },
    /// The command has printed more.
    Data(String),
    /// Gap: what follows does not continue what came before, because there was too much to send all
    /// of it.
    Cleared,
    /// The command has ended, with this status where it has one. Nothing follows.
    Exited(Option<i64>),
}

/// Kind of a failure to open a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenFailure {
    /// An agent that answers.
    Unavailable,
    /// A login to the agent.
    LoginRequired,
}

impl OpenFailure {
    /// A short machine-readable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unavailable => "agentUnavailable",
            Self::LoginRequired => "authRequired",
        }
    }
}

/// Event that a backend reports about a run.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEvent {
    /// A new part of the answer begins, with this much of its text.
    Part(TextKind, String),
    /// Text that goes on in the part of its kind if that is the last one, else in a new one.
    Text(TextKind, String),
    /// Several such texts, each an action of its own: what waits to be received together is joined.
    Texts(TextKind, Vec<String>),
    /// Something that is said of the conversation, and not by the agent.
    Notice(String),
    /// Current activity of the agent.
    Activity(Option<String>),
    /// Progress in a measure of the agent's own: stored, and given back when the turn is resumed.
    Progress(u64),
    /// An event after which the agent has got so far: both are kept, or neither, so that nothing
    /// which was told is done again when the turn is resumed.
    Last(Box<TurnEvent>, u64),
    /// An event that is no end of the run, and what is told besides it.
    With(Box<TurnEvent>, CallExtras),
    /// Token usage so far.
    Usage(UsageInfo),
    /// A tool call begins; its input may stream.
    ToolStarted {
        /// The agent's own id of the call.
        id: String,
        /// The tool's own name.
        name: String,
        /// The tool's name for people.
        display_name: String,
    },
    /// More of a tool call's input.
    ToolInput {
        /// The call.
        id: String,
        /// JSON text, or whatever the agent calls its input.
        delta: String,
    },
    /// A tool call's input is complete: it runs, or it waits for a permission.
    ToolReady {
        /// The call.
        id: String,
        /// The whole input.
        input: String,
        /// Description of the call, for people.
        message: StringOrMarkdown,
        /// Gate that the call must pass before it runs.
        gate: ToolGate,
    },
    /// A call begins of a tool that an active client of the session carries out. The client begins
    /// when the call runs: a [`TurnEvent::ToolReady`] that asks for a permission may come first,
    /// and the agent must want the result then, by [`TurnEvent::ClientTool`].
    ClientToolStarted {
        /// The agent's own id of the call.
        id: String,
        /// The tool's name, as the client says it.
        name: String,
    },
    /// The agent waits for what comes of a call of a tool that an active client of the session
    /// carries out; the call may have begun before, by [`TurnEvent::ClientToolStarted`]. Answered
    /// by [`Command::ToolResult`], at once when no client offers the tool; not when that was told
    /// before, because the client was done already, nor when the user has denied the call.
    ClientTool {
        /// The agent's own id of the call.
        id: String,
        /// The tool's name, as the client says it.
        name: String,
        /// The whole input.
        input: String,
        /// Description of the call, for people.
        message: StringOrMarkdown,
    },
    /// The host is to run a command in a terminal of the system's, in a call of this id. Answered
    /// by [`Command::ToolResult`].
    Command {
        /// The agent's id of the call.
        id: String,
        /// Line for the user's shell.
        line: String,
    },
    /// Content of a running tool call, in place of what it had.
    ToolContent {
        /// The call.
        id: String,
        /// Complete content of the result.
        content: Vec<ToolResultContent>,
    },
    /// A tool call is over.
    ToolDone {
        /// The call.
        id: String,
        /// How it ended.
        outcome: ToolOutcome,
        /// Set if the user must confirm the result before the agent uses it; answered by
        /// [`Command::ResultConfirmed`].
        review: bool,
    },
    /// The agent asks the user something. Answered by [`Command::Answer`].
    Question {
        /// The agent's id of the question.
        id: String,
        /// Message for people.
        message: Option<String>,
        /// URL for the user to open.
        url: Option<String>,
        /// Questions.
        questions: Vec<ChatInputQuestion>,
    },
    /// The agent does not want to know any more. Not answered.
    QuestionWithdrawn {
        /// The question.
        id: String,
    },
    /// The agent has taken in what the user added, so that it is not told again.
    Steered(String),
    /// The agent does not take in what the user added, while it works on this: it is the message of
    /// the next turn.
    NotSteered(String),
    /// The run is over. Reported exactly once for each run, also for one that was cancelled.
    Ended(TurnEnd),
}

impl TurnEvent {
    /// See [`Event::bytes`].
    fn bytes(&self) -> usize {
        match self {
            Self::Part(_, text) | Self::Text(_, text) | Self::Notice(text) => text.len(),
            Self::Texts(_, texts) => texts.iter().map(String::len).sum(),
            Self::Last(event, _) => event.bytes(),
            Self::With(event, extras) => event.bytes() + extras.bytes(),
            Self::ToolInput { delta: input, .. }
            | Self::ToolReady { input, .. }
            | Self::ClientTool { input, .. } => input.len(),
            Self::ToolContent { content, .. } => json_bytes(content),
            Self::ToolDone { outcome, .. } => json_bytes(&outcome.content),
            Self::Question { questions, .. } => json_bytes(questions),
            _ => 0,
        }
    }
}

impl CallExtras {
    fn bytes(&self) -> usize {
        json_bytes(&self.meta) + json_bytes(&self.edits) + json_bytes(&self.structured)
    }
}

/// Additional facts about an event, which few agents give.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallExtras {
    /// Facts that have no place of their own, by name. Those of a tool call replace all earlier
    /// ones, unless there are none.
    pub meta: JsonObject,
    /// The changes of files that a tool call which asks for a permission is going to make.
    pub edits: Vec<FileEdit>,
    /// Result of a tool call, for programs.
    pub structured: Option<JsonObject>,
}

/// The two kinds of streamed text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// The answer.
    Markdown,
    /// The agent's thinking.
    Reasoning,
}

/// Gate that a tool call must pass before it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolGate {
    /// No gate.
    Open,
    /// No gate any more: the user has allowed the call for good.
    AllowedBefore,
    /// The user's decision among these options. Answered by [`Command::Permission`].
    Ask(Vec<PermissionOption>),
}

/// One way to decide about a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionOption {
    /// The agent's id of the option.
    pub id: String,
    /// Label for people; `None` if the agent gives none and the host's own words are used.
    pub label: Option<String>,
    /// Meaning.
    pub kind: PermissionKind,
}

/// Meaning of a [`PermissionOption`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionKind {
    /// This call may run.
    AllowOnce,
    /// This call and every later one like it may run.
    AllowAlways,
    /// This call may not run.
    RejectOnce,
    /// Neither this call nor any later one like it may run.
    RejectAlways,
}

impl PermissionKind {
    /// Returns whether the call may run.
    pub fn approves(self) -> bool {
        matches!(self, Self::AllowOnce | Self::AllowAlways)
    }
}

/// How a tool call ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutcome {
    /// Set if it has succeeded.
    pub success: bool,
    /// Summary for people.
    pub message: StringOrMarkdown,
    /// Content.
    pub content: Vec<ToolResultContent>,
    /// Why it failed, for people.
    pub error: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEnd {
    /// The agent is done.
    Complete,
    /// Stopped on request.
    Cancelled,
    /// Failure.
    Failed {
        /// A short machine-readable name of the failure.
        kind: String,
        /// Reason, for people.
        message: String,
        /// Set if the backend can resume from here.
        resumable: bool,
    },
}
