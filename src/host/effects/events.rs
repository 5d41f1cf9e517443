//! Events that a backend reports about one chat's conversation.
//!
//! Owns: [`Event`], and [`TurnEvent`] for a turn that runs.
//! Never: acts, or names a concept of one agent protocol: every kind of backend uses these events.

use std::fmt;

use ahp_types::common::{JsonObject, StringOrMarkdown};
use ahp_types::state::{ChatInputQuestion, FileEdit, SessionConfigState, ToolResultContent, UsageInfo};
use serde_json::Value;

#[cfg(doc)]
use super::Command;
use super::{Handle, RunId, SelfDescription};
use crate::wire::rpc::json_bytes;

/// Report of a backend about one chat's conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Open conversation, ready for turns.
    Opened,
    /// Progress of the opening, for clients that asked for it; any number of times.
    Opening {
        /// Amount that is done, in a unit of the backend's choice.
        done: u64,
        /// Total amount, in the same unit; `None` if unknown.
        total: Option<u64>,
        /// Description of the current step, for people.
        message: Option<String>,
    },
    /// Opening that waits for the user to do something elsewhere, such as logging in in a browser;
    /// any number of times.
    Awaits {
        /// Description of the user's task, for people.
        what: String,
    },
    /// Failure to open the conversation.
    OpenFailed {
        /// Kind of the failure.
        kind: OpenFailure,
        /// Reason, for people.
        reason: String,
    },
    /// Name of the conversation for the agent: stored, and passed back when the conversation is
    /// reopened. `None` if the agent does not remember the conversation, or not yet.
    Handle(Option<Handle>),
    /// Changes in the agent's description, for all of its sessions.
    Described(Box<SelfDescription>),
    /// Current settings of the session according to the agent, including changes that it has not
    /// received yet. A value that differs from [`Command::Configure`] was not accepted.
    Configured {
        /// All settings.
        config: Box<SessionConfigState>,
        /// Set if changes also apply to the session's other conversations.
        spreads: bool,
        /// Number of the last change that the settings take into account.
        acknowledged: u64,
    },
    /// Name that the agent gives the session.
    Title(String),
    /// Fact about the conversation for which the protocol has no member: stored, and shown to
    /// clients that look for it. Replaces the last note of this name.
    Note {
        /// Name of the note.
        name: String,
        /// Value; `None` to remove the note.
        value: Option<Value>,
    },
    /// MCP servers that the agent was given, all of them, as far as the backend knows.
    McpServers(Vec<McpServerReport>),
    /// Invalid or expired token for a resource. Answered by [`Command::Tokens`] if there is another
    /// token.
    TokenRefused {
        /// Resource, as the agent declares it.
        resource: String,
    },
    /// Refusal to work without a login. The agent needs a token for one of the optional resources
    /// that it declares; a token that it already has is not valid.
    LoginRequired,
    /// Work of the agent while no run of the host is active. Answered by [`Command::OwnTurn`] when
    /// a turn is open for it. If the host has started another turn before, the work belongs to that
    /// turn and there is no answer.
    Begins(TurnCause),
    /// Event of a run.
    Turn(RunId, TurnEvent),
    /// Command that the agent has left running in the background; replaces an earlier one with this
    /// id. `None` if the command has ended. Background commands end with the conversation.
    Background {
        /// Agent's id of the command.
        id: String,
        /// The command.
        command: Option<BackgroundCommand>,
    },
    /// Page that the agent shows beside the chat, or has closed.
    Canvas {
        /// Backend's name of the canvas, unique in the conversation; clients see it as the title.
        name: String,
        /// Address of the page; `None` if the canvas is closed.
        url: Option<PageUrl>,
    },
    /// Event of a terminal that runs a command of the agent; the terminal may outlast its run.
    Terminal {
        /// Backend's name of the terminal, unique in the conversation.
        name: String,
        /// Event of the terminal.
        event: TerminalEvent,
    },
    /// Close of the conversation between runs. A run that was started at the same time was not
    /// received; the conversation is reopened for it, without notice to clients.
    Left,
    /// Unexpected loss of the backend, and of every run with it. The conversation is reopened for
    /// the next turn; an interrupted run can be resumed if the conversation's [`Handle`] says so.
    Died {
        /// Reason, for people.
        reason: String,
    },
}

impl Event {
    /// Returns the bytes that streams carry, of which many may be queued; other events count as
    /// nothing.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Turn(_, event) => event.bytes(),
            Self::Terminal { event: TerminalEvent::Data(text), .. } => text.len(),
            _ => 0,
        }
    }
}

/// Member of an MCP server's `_meta`: its states `starting` and `ready` are assumed, since only the
/// agent knows whether the server runs.
pub const ASSUMED: &str = "ahpSidecar.assumed";

/// Kind of the error of an MCP server whose description is unusable.
pub const SERVER_MISCONFIGURED: &str = "misconfigured";

/// Knowledge of a backend about an MCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServerReport {
    /// Id of the server's customization.
    pub server: String,
    /// Reason why the agent cannot use the server, for people; `None` if the agent was given it.
    pub problem: Option<String>,
}

/// Address of a page, which may be secret and is not in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct PageUrl(pub String);

impl fmt::Debug for PageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a URL of {} bytes", self.0.len())
    }
}

/// Command that an agent left running when the call that started it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackgroundCommand {
    /// Purpose of the command, for people; the command itself if the agent states none.
    pub label: String,
    /// Command line.
    pub line: String,
}

/// Reason why an agent works without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnCause {
    /// Agent that continues by itself, for an unstated reason.
    Agent,
    /// End of work that the agent had left in the background.
    Background,
}

/// Report of a backend about a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminalEvent {
    /// Start of a terminal in a call of the running turn; the first event of a terminal. From then
    /// on, content of the call whose `resource` is the terminal's name shows it.
    Opened {
        /// Id of the call.
        call: String,
        /// Command line, for people.
        title: String,
        /// Set if the command can continue without its call, by [`Command::Background`].
        detaches: bool,
    },
    /// Further output of the command.
    Data(String),
    /// Gap: output was dropped because there was too much to send, so the next output does not
    /// continue the previous.
    Cleared,
    /// Exit of the command, with its status if it has one; the last event.
    Exited(Option<i64>),
}

/// Kind of a failure to open a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenFailure {
    /// Agent that cannot be started or does not answer.
    Unavailable,
    /// Missing login to the agent.
    LoginRequired,
}

impl OpenFailure {
    /// Returns a short machine-readable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unavailable => "agentUnavailable",
            Self::LoginRequired => "authRequired",
        }
    }
}

/// Report of a backend about a run.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEvent {
    /// Start of a new part of the answer, with its first text.
    Part(TextKind, String),
    /// Text that continues the last part if that has this kind, or else starts a new part.
    Text(TextKind, String),
    /// Several texts as in [`TurnEvent::Text`], each its own action; produced by merging queued
    /// events.
    Texts(TextKind, Vec<String>),
    /// Text from the host about the conversation, not from the agent.
    Notice(String),
    /// Current activity of the agent; `None` if there is none to show.
    Activity(Option<String>),
    /// Progress in a unit of the agent's choice: stored, and passed back when the turn is resumed.
    Progress(u64),
    /// Event with the agent's progress after it. Both are stored or neither, so that a resumed turn
    /// repeats no work that clients have seen.
    Last(Box<TurnEvent>, u64),
    /// Event that does not end the run, with additional facts.
    With(Box<TurnEvent>, CallExtras),
    /// Token usage of the run so far.
    Usage(UsageInfo),
    /// Start of a tool call; its input may be streamed.
    ToolStarted {
        /// Agent's id of the call.
        id: String,
        /// Agent's name of the tool.
        name: String,
        /// Name of the tool for people.
        display_name: String,
    },
    /// Further input of a tool call.
    ToolInput {
        /// Id of the call.
        id: String,
        /// JSON text, or any other format that the agent uses as input.
        delta: String,
    },
    /// Complete input of a tool call, which now runs or waits for a permission.
    ToolReady {
        /// Id of the call.
        id: String,
        /// Complete input.
        input: String,
        /// Description of the call, for people.
        message: StringOrMarkdown,
        /// Gate that the call must pass before it runs.
        gate: ToolGate,
    },
    /// Start of a call of a tool that an active client of the session executes. The client begins
    /// when the call runs. A [`TurnEvent::ToolReady`] that asks for a permission may come first;
    /// then the agent must request the result by [`TurnEvent::ClientTool`].
    ClientToolStarted {
        /// Agent's id of the call.
        id: String,
        /// Name of the tool, as the client declares it.
        name: String,
    },
    /// Request for the result of a tool call that an active client of the session executes;
    /// [`TurnEvent::ClientToolStarted`] may have started the call. Answered by
    /// [`Command::ToolResult`], immediately if no client offers the tool. Not answered if the
    /// result was sent before because the client had finished, or if the user has denied the call.
    ClientTool {
        /// Agent's id of the call.
        id: String,
        /// Name of the tool, as the client declares it.
        name: String,
        /// Complete input.
        input: String,
        /// Description of the call, for people.
        message: StringOrMarkdown,
    },
    /// Request to run a command in a terminal of the host, in a call of this id. Answered by
    /// [`Command::ToolResult`].
    Command {
        /// Agent's id of the call.
        id: String,
        /// Command line for the user's shell.
        line: String,
    },
    /// New content of a running tool call, which replaces its earlier content.
    ToolContent {
        /// Id of the call.
        id: String,
        /// Complete content of the result.
        content: Vec<ToolResultContent>,
    },
    /// End of a tool call.
    ToolDone {
        /// Id of the call.
        id: String,
        /// Outcome of the call.
        outcome: ToolOutcome,
        /// Set if the user must confirm the result before the agent uses it; answered by
        /// [`Command::ResultConfirmed`].
        review: bool,
    },
    /// Question of the agent to the user. Answered by [`Command::Answer`].
    Question {
        /// Agent's id of the question.
        id: String,
        /// Message for people.
        message: Option<String>,
        /// URL for the user to open.
        url: Option<String>,
        /// Parts of the question, each with its own answer.
        questions: Vec<ChatInputQuestion>,
    },
    /// Withdrawal of a question by the agent. Not answered.
    QuestionWithdrawn {
        /// Agent's id of the question.
        id: String,
    },
    /// Id of a steering message that the agent has accepted, so that it is not sent again.
    Steered(String),
    /// Id of a steering message that the agent does not accept in this turn; the message begins the
    /// next turn.
    NotSteered(String),
    /// End of the run: exactly one for each run, also for a cancelled one.
    Ended(TurnEnd),
}

impl TurnEvent {
    /// Returns the bytes of text and contents; see [`Event::bytes`].
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

/// Additional facts about an event, which few agents report.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallExtras {
    /// Facts for which the protocol has no member, by name. Facts of a tool call replace all of its
    /// earlier ones, unless empty.
    pub meta: JsonObject,
    /// File changes that a tool call would make, when it asks for a permission.
    pub edits: Vec<FileEdit>,
    /// Machine-readable result of a tool call.
    pub structured: Option<JsonObject>,
}

/// Kind of streamed text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// Answer of the agent.
    Markdown,
    /// Reasoning of the agent.
    Reasoning,
}

/// Gate that a tool call must pass before it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolGate {
    /// No permission needed.
    Open,
    /// No permission needed any more: the user has always allowed such calls.
    AllowedBefore,
    /// Decision of the user among these options. Answered by [`Command::Permission`].
    Ask(Vec<PermissionOption>),
}

/// Option that a permission request offers the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionOption {
    /// Agent's id of the option.
    pub id: String,
    /// Label for people; `None` if the host's own label is used.
    pub label: Option<String>,
    /// Effect of choosing the option.
    pub kind: PermissionKind,
}

/// Effect of choosing a [`PermissionOption`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionKind {
    /// Permission for this call.
    AllowOnce,
    /// Permission for this call and every later one like it.
    AllowAlways,
    /// Refusal of this call.
    RejectOnce,
    /// Refusal of this call and every later one like it.
    RejectAlways,
}

impl PermissionKind {
    /// Returns whether the option permits the call.
    pub fn approves(self) -> bool {
        matches!(self, Self::AllowOnce | Self::AllowAlways)
    }
}

/// Outcome of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutcome {
    /// Set if the call succeeded.
    pub success: bool,
    /// Summary for people.
    pub message: StringOrMarkdown,
    /// Content of the result.
    pub content: Vec<ToolResultContent>,
    /// Reason of a failure, for people.
    pub error: Option<String>,
}

/// Outcome of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEnd {
    /// Normal completion.
    Complete,
    /// Cancellation by request.
    Cancelled,
    /// Failure.
    Failed {
        /// Short machine-readable name of the failure.
        kind: String,
        /// Reason, for people.
        message: String,
        /// Set if the backend can resume the turn from here.
        resumable: bool,
    },
}
