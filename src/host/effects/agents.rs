//! What the core and the backends say to each other about one chat's conversation.
//!
//! Owns: the words: a backend is told [`Command`]s and reports [`Event`]s.
//! Never: acts. Free of the words of any agent protocol, so that every kind of backend fits.

use std::collections::BTreeMap;

use ahp_types::common::{JsonObject, StringOrMarkdown};
use ahp_types::state::{
    AgentInfo, ChatInputAnswer, ChatInputQuestion, ChatInputResponseKind, Message, ResponsePart,
    SessionConfigSchema, ToolResultContent, Turn, UsageInfo,
};

use super::RunId;

/// What a backend says of itself, without starting anything.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentDescription {
    /// What clients are shown in the root state.
    pub info: AgentInfo,
    /// What `createSession.config` may hold.
    pub config: SessionConfigSchema,
    /// Whether it can go on with a turn that was interrupted by the end of the process.
    pub resumes: bool,
}

/// What a backend is told about one chat's conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Open a conversation. Answered by [`Event::Opened`] or [`Event::OpenFailed`].
    Open(OpenConversation),
    /// Run a turn. Answered by events of this run and at last by one [`TurnEvent::Ended`].
    StartTurn {
        /// This attempt.
        run: RunId,
        /// What the user said.
        message: Message,
    },
    /// Go on with a turn that ended in an error which the backend called resumable. Answered like
    /// [`Command::StartTurn`].
    ResumeTurn {
        /// This attempt.
        run: RunId,
        /// What the user said when the turn began.
        message: Message,
        /// What the turn holds so far, its error last: where to go on is to be found in it, because the
        /// conversation may have been opened anew since.
        so_far: Vec<ResponsePart>,
        /// The last [`TurnEvent::Progress`] that was reported in this turn.
        progress: Option<u64>,
    },
    /// Stop the run; it must still report its end, which tells that the next one may begin.
    Cancel {
        /// The attempt to stop.
        run: RunId,
    },
    /// A permission that a tool call waited for was decided.
    Permission {
        /// The attempt that asked.
        run: RunId,
        /// The tool call.
        tool_call_id: String,
        /// The option's id among those offered; none when the agent offered none that fits.
        option: Option<String>,
        /// Whether the call may run.
        approved: bool,
    },
    /// A result that had to be confirmed was.
    ResultConfirmed {
        /// The attempt that asked.
        run: RunId,
        /// The tool call.
        tool_call_id: String,
        /// Whether the agent may use the result.
        approved: bool,
    },
    /// A question was settled.
    Answer {
        /// The attempt that asked.
        run: RunId,
        /// The question's id.
        request_id: String,
        /// How.
        response: ChatInputResponseKind,
        /// The answers by question id, in the order of their ids; drafts are none.
        answers: BTreeMap<String, ChatInputAnswer>,
    },
    /// The user adds something while the turn runs. Answered by [`TurnEvent::Steered`] once the agent has it:
    /// what is not answered when the run ends is put back, for the next one.
    Steer {
        /// The running attempt.
        run: RunId,
        /// The pending message's id.
        id: String,
        /// What the user added.
        message: Message,
    },
    /// The conversation is over; nothing more is heard of it.
    Close,
}

/// What a backend needs to open a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenConversation {
    /// Which agent.
    pub provider: String,
    /// `file:` URIs; the first is where the agent works.
    pub working_directories: Vec<String>,
    /// The session's configuration, valid by the agent's own schema.
    pub config: JsonObject,
    /// What was said before, when the conversation must be taken up anew.
    pub history: Vec<Turn>,
    /// The last [`Event::Handle`] that was reported; none when the history is not what the agent knows.
    pub handle: Option<String>,
}

/// What a backend reports about one chat's conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The conversation is open.
    Opened,
    /// The conversation could not be opened.
    OpenFailed {
        /// Why, for people.
        reason: String,
    },
    /// What the agent calls the conversation: kept, and given back when it is opened again.
    Handle(String),
    /// The agent gives the session a name.
    Title(String),
    /// Something about a run.
    Turn(RunId, TurnEvent),
    /// The conversation is closed, while nothing ran in it: a run that was started meanwhile was not heard of.
    /// It is opened anew for the next turn, and nobody needs to notice.
    Left,
    /// The backend is gone without a word; every run with it. It is opened anew for the next turn.
    Died {
        /// What is known of the death, for people.
        reason: String,
    },
}

/// What a backend reports about a run.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEvent {
    /// A new part of the answer begins, with this much of its text.
    Part(TextKind, String),
    /// Text that goes on in the part of its kind if that is the last one, else in a new one.
    Text(TextKind, String),
    /// Something that is said of the conversation, and not by the agent.
    Notice(String),
    /// What the agent is doing now.
    Activity(Option<String>),
    /// How far it has got, in a measure of its own: kept, and given back when the turn is resumed.
    Progress(u64),
    /// An event after which the agent has got so far: both are kept, or neither, so that nothing which was
    /// told is done again when the turn is resumed.
    Last(Box<TurnEvent>, u64),
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
        /// What the call does, for people.
        message: StringOrMarkdown,
        /// Whether it may run.
        gate: ToolGate,
    },
    /// What a running tool call has produced so far; replaces what it had.
    ToolContent {
        /// The call.
        id: String,
        /// All of its content.
        content: Vec<ToolResultContent>,
    },
    /// A tool call is over.
    ToolDone {
        /// The call.
        id: String,
        /// How it ended.
        outcome: ToolOutcome,
        /// Whether the user must confirm the result before the agent uses it; answered by
        /// [`Command::ResultConfirmed`].
        review: bool,
    },
    /// The agent asks the user something. Answered by [`Command::Answer`].
    Question {
        /// The agent's id of the question.
        id: String,
        /// What is asked.
        questions: Vec<ChatInputQuestion>,
    },
    /// The agent has taken in what the user added, so that it is not told again.
    Steered(String),
    /// The run is over. Reported exactly once for each run, also for one that was cancelled.
    Ended(TurnEnd),
}

/// The two kinds of streamed text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// The answer.
    Markdown,
    /// The agent's thinking.
    Reasoning,
}

/// What a tool call needs before it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolGate {
    /// Nothing.
    Open,
    /// Nothing any more: the user has allowed it for good.
    AllowedBefore,
    /// The user's decision among these options. Answered by [`Command::Permission`].
    Ask(Vec<PermissionOption>),
}

/// One way to decide about a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionOption {
    /// The agent's id of the option.
    pub id: String,
    /// What it is called, for people.
    pub label: String,
    /// What it means.
    pub kind: PermissionKind,
}

/// What choosing a [`PermissionOption`] means.
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
    /// Whether the call may run.
    pub fn approves(self) -> bool {
        matches!(self, Self::AllowOnce | Self::AllowAlways)
    }
}

/// How a tool call ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutcome {
    /// Whether it did what it was to do.
    pub success: bool,
    /// What it did, for people.
    pub message: StringOrMarkdown,
    /// What it produced.
    pub content: Vec<ToolResultContent>,
    /// Why it failed, for people.
    pub error: Option<String>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnEnd {
    /// The agent is done.
    Complete,
    /// It stopped because it was told to.
    Cancelled,
    /// It failed.
    Failed {
        /// A short machine-readable name of the failure.
        kind: String,
        /// What went wrong, for people.
        message: String,
        /// Whether the backend can go on from here.
        resumable: bool,
    },
}
