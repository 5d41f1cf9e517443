//! What the core and the backends say to each other about one chat's conversation.
//!
//! Owns: the words: a backend is told [`Command`]s and reports [`Event`]s.
//! Never: acts. Free of the words of any agent protocol, so that every kind of backend fits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ahp_types::common::{JsonObject, StringOrMarkdown};
use ahp_types::state::{
    AgentCapabilities, AgentInfo, ChatInputAnswer, ChatInputQuestion, ChatInputResponseKind, FileEdit,
    Message, ProtectedResourceMetadata, ResponsePart, SessionConfigSchema, SessionConfigState,
    SessionModelInfo, ToolCallResult, ToolDefinition, ToolResultContent, Turn, UsageInfo,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::RunId;
use crate::wire::rpc::to_json;

/// What a backend says of itself, without starting anything.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentDescription {
    /// What clients are shown in the root state.
    pub info: AgentInfo,
    /// What `createSession.config` may hold.
    pub config: SessionConfigSchema,
    /// What a line of a message can begin with to mean something special, in the order to offer them.
    pub commands: Vec<AgentCommand>,
    /// Whether it can go on with any turn that was interrupted by the end of the process. Where that depends on
    /// the conversation, its [`Handle`] tells.
    pub resumes: bool,
    /// Whether it takes in what the user adds while it works. Otherwise that is the next message.
    pub steers: bool,
    /// Whether it may have settings that are not in the schema, because it has not said yet which it has.
    pub may_have_more_settings: bool,
    /// What it is, beyond its provider id: what another agent of this id said of itself is not true of this one.
    pub identity: String,
}

/// What an agent says of itself once it runs; members that it has said nothing of are none. What one report
/// leaves out stays what it was. Kept, and true for the next process until the agent says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SelfDescription {
    /// What it calls itself, for people; what its operator calls it comes first.
    pub title: Option<String>,
    /// Its version, as it says it.
    pub version: Option<String>,
    /// The models that a message can choose among.
    pub models: Option<Vec<SessionModelInfo>>,
    /// What its sessions can be configured by, with what a new one has unless told otherwise.
    pub config: Option<SessionConfigSchema>,
    /// What a line of a message can begin with to mean something special, in the order to offer them.
    pub commands: Option<Vec<AgentCommand>>,
    /// What it can do.
    pub capabilities: Option<AgentCapabilities>,
    /// What it needs tokens for.
    pub protected_resources: Option<Vec<ProtectedResourceMetadata>>,
}

impl SelfDescription {
    /// Takes in what is new; whether anything is.
    pub fn learn(&mut self, news: Self) -> bool {
        let before = self.clone();
        let Self { title, version, models, config, commands, capabilities, protected_resources } = news;
        self.title = title.or(self.title.take());
        self.version = version.or(self.version.take());
        self.models = models.or(self.models.take());
        self.config = config.or(self.config.take());
        self.commands = commands.or(self.commands.take());
        self.capabilities = capabilities.or(self.capabilities.take());
        self.protected_resources = protected_resources.or(self.protected_resources.take());
        *self != before
    }
}

/// Something special that a user can say to an agent: `/` and the name, at the beginning of a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCommand {
    /// Its name.
    pub name: String,
    /// What it does, for people.
    pub description: String,
    /// What is to follow the name, for people, if anything is.
    pub argument_hint: Option<String>,
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
        /// What was said in the chats that the user attached.
        attached: Vec<Transcript>,
    },
    /// Go on with a turn that ended in an error which the backend called resumable. Answered like
    /// [`Command::StartTurn`].
    ResumeTurn {
        /// This attempt.
        run: RunId,
        /// What the user said when the turn began.
        message: Message,
        /// What was said in the chats that the user attached.
        attached: Vec<Transcript>,
        /// What the turn holds so far, its error last: where to go on is to be found in it, because the
        /// conversation may have been opened anew since.
        so_far: Vec<ResponsePart>,
        /// The last [`TurnEvent::Progress`] that was reported in this turn.
        progress: Option<u64>,
    },
    /// The session's configuration was changed.
    Configure {
        /// All of it, valid by the agent's own schema.
        all: JsonObject,
        /// The settings that are not what they were.
        changed: BTreeSet<String>,
        /// Which change this is, counted in the conversation from 1.
        number: u64,
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
    /// A tool call that was to run on a client is over: the client has finished it, or nobody will.
    ToolResult {
        /// The attempt that called.
        run: RunId,
        /// The tool call.
        tool_call_id: String,
        /// What came of it.
        result: ToolCallResult,
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
        /// What was said in the chats that the user attached.
        attached: Vec<Transcript>,
    },
    /// The directories that the agent works in have changed. True for what it does next; under a running turn
    /// that may be the next turn.
    WorkIn {
        /// `file:` URIs; the first is where the agent works.
        directories: Vec<String>,
    },
    /// The tokens that the agent may use from now on, instead of those that it had.
    Tokens(Tokens),
    /// The tools that active clients of the session offer are these now. Called by [`TurnEvent::ClientTool`].
    ClientTools {
        /// As the clients say them, sorted by their names, one for each name.
        tools: Vec<ToolDefinition>,
    },
    /// The conversation is over; nothing more is heard of it.
    Close,
}

/// A bearer token, which nothing shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token.
    pub fn new(secret: String) -> Self {
        Self(secret)
    }

    /// What only the resource that it is for may see.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Tokens by the resources that they are for.
pub type Tokens = BTreeMap<String, Token>;

/// What a backend needs to open a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenConversation {
    /// Which agent.
    pub provider: String,
    /// `file:` URIs; the first is where the agent works.
    pub working_directories: Vec<String>,
    /// The session's configuration, valid by the agent's own schema.
    pub config: JsonObject,
    /// The tokens that the agent may use, of those that it declares resources for.
    pub tokens: Tokens,
    /// What was said before, when the conversation must be taken up anew or goes on from another one.
    pub history: Vec<Turn>,
    /// The name of the last [`Event::Handle`] that was reported; none when the history is not what the agent knows.
    pub handle: Option<String>,
    /// The name of the conversation that this one goes on from, while the agent knows of that just what the
    /// history is: a copy of it needs not be told.
    pub copy_of: Option<String>,
    /// What was said in chats that the user attached to messages of the history, by the id of the turn: of the
    /// newest ones, as far as they are kept.
    pub attached: BTreeMap<String, Vec<Transcript>>,
    /// The part of what was said before that the user opened the conversation about.
    pub selection: Option<String>,
    /// What [`Command::ClientTools`] says when the conversation opens.
    pub client_tools: Vec<ToolDefinition>,
}

/// What was said in a chat that is attached to a message: up to the turn that the attachment names, as it was
/// when the message was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transcript {
    /// The chat's URI.
    pub chat: String,
    /// What the user calls the attachment.
    pub label: String,
    /// Who said what, oldest first. Chats that were attached there are mentioned, not followed.
    pub text: String,
    /// The beginning is not there, because it would be too much.
    pub cut: bool,
}

/// What a backend reports about one chat's conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The conversation is open.
    Opened,
    /// How far the opening has got, for clients that want to know; may be reported any number of times.
    Opening {
        /// So much is done, in a measure of its own.
        done: u64,
        /// Of so much, if that is known.
        total: Option<u64>,
        /// What is done now, for people.
        message: Option<String>,
    },
    /// The opening waits for the user to do something elsewhere, such as logging in in a browser. May be reported any
    /// number of times.
    Awaits {
        /// What is to be done, for people.
        what: String,
    },
    /// The conversation could not be opened.
    OpenFailed {
        /// What is missing.
        kind: OpenFailure,
        /// Why, for people.
        reason: String,
    },
    /// What the agent calls the conversation: kept, and given back when it is opened again. None when the agent
    /// does not know any more, or not yet, what was said in it.
    Handle(Option<Handle>),
    /// What the agent says of itself, for all of its sessions: what is new of it.
    Described(Box<SelfDescription>),
    /// The session can be configured by this now, and is so: what the agent says, with what it has yet to be told.
    /// Where that is not what [`Command::Configure`] asked for, the agent has not taken it.
    Configured {
        /// All of it.
        config: Box<SessionConfigState>,
        /// What is changed is to be so in the session's other conversations, too.
        spreads: bool,
        /// The number of the last change that is taken into account.
        heard: u64,
    },
    /// The agent gives the session a name.
    Title(String),
    /// Something about the conversation that has no place of its own: kept, and shown to clients that look for
    /// it, in place of the last one of this name.
    Note {
        /// What it is called.
        name: String,
        /// What it is; none when it is not so any more.
        value: Option<Value>,
    },
    /// The token for this resource is no good, or not any more. Followed by [`Command::Tokens`] when there is
    /// another.
    TokenRefused {
        /// The resource, as the agent declares it.
        resource: String,
    },
    /// The agent cannot be used without a login. Of the resources that it declares and that are not required, it
    /// needs a token for one: for another one than it has, if it has any.
    LoginRequired,
    /// Something about a run.
    Turn(RunId, TurnEvent),
    /// The conversation is closed, while nothing ran in it: a run that was started meanwhile was not heard of.
    /// It is opened anew for the next turn, and nobody needs to notice.
    Left,
    /// The backend is gone without a word; every run with it. It is opened anew for the next turn; if the
    /// conversation's [`Handle`] says so, a run that was cut may be resumed.
    Died {
        /// What is known of the death, for people.
        reason: String,
    },
}

impl Event {
    /// How much room it takes while it waits to be heard, in bytes, nearly.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Turn(_, event) => event.bytes(),
            _ => 0,
        }
    }
}

/// What is missing when a conversation cannot be opened.
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

/// What an agent calls a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The name, which means nothing to anybody else.
    pub name: String,
    /// Whether the conversation can be taken up by it when the agent, or the host, has ended; and with it a turn
    /// that was cut by that: such a turn may be resumed.
    pub resumes: bool,
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
    /// An event that is no end of the run, and what is told besides it.
    With(Box<TurnEvent>, Besides),
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
    /// A call begins of a tool that an active client of the session carries out. The client begins when the call
    /// runs: a [`TurnEvent::ToolReady`] that asks for a permission may come first, and the agent must want the result
    /// then, by [`TurnEvent::ClientTool`].
    ClientToolStarted {
        /// The agent's own id of the call.
        id: String,
        /// The tool's name, as the client says it.
        name: String,
    },
    /// The agent waits for what comes of a call of a tool that an active client of the session carries out; the call
    /// may have begun before, by [`TurnEvent::ClientToolStarted`]. Answered by [`Command::ToolResult`], at once when no
    /// client offers the tool; not when that was told before, because the client was done already, nor when the user
    /// has denied the call.
    ClientTool {
        /// The agent's own id of the call.
        id: String,
        /// The tool's name, as the client says it.
        name: String,
        /// The whole input.
        input: String,
        /// What the call does, for people.
        message: StringOrMarkdown,
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
        /// What it is about, for people.
        message: Option<String>,
        /// What the user is to open, or to look at.
        url: Option<String>,
        /// What is asked.
        questions: Vec<ChatInputQuestion>,
    },
    /// The agent does not want to know any more. Not answered.
    QuestionWithdrawn {
        /// The question.
        id: String,
    },
    /// The agent has taken in what the user added, so that it is not told again.
    Steered(String),
    /// The run is over. Reported exactly once for each run, also for one that was cancelled.
    Ended(TurnEnd),
}

impl TurnEvent {
    /// See [`Event::bytes`].
    fn bytes(&self) -> usize {
        match self {
            Self::Part(_, text) | Self::Text(_, text) | Self::Notice(text) => text.len(),
            Self::Last(event, _) => event.bytes(),
            Self::With(event, besides) => event.bytes() + besides.bytes(),
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

impl Besides {
    fn bytes(&self) -> usize {
        json_bytes(&self.meta) + json_bytes(&self.edits) + json_bytes(&self.structured)
    }
}

/// How long something is as JSON text.
fn json_bytes(value: &impl Serialize) -> usize {
    to_json(value).len()
}

/// What is told besides an event, by the few agents that say it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Besides {
    /// What has no place of its own, by name. Of a tool call it is all that there is now, and replaces what was
    /// told before, unless it is empty.
    pub meta: JsonObject,
    /// The changes of files that a tool call which asks for a permission is going to make.
    pub edits: Vec<FileEdit>,
    /// What a tool call has produced, for programs.
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
    /// What the agent calls it, for people; when it does not say, the host has words for what it means.
    pub label: Option<String>,
    /// What it means.
    pub kind: PermissionKind,
}

/// A model of which no more is known than this.
pub fn model_called(id: &str, provider: &str, name: &str) -> SessionModelInfo {
    SessionModelInfo {
        id: id.to_owned(),
        provider: provider.to_owned(),
        name: name.to_owned(),
        max_context_window: None,
        max_output_tokens: None,
        max_prompt_tokens: None,
        supports_vision: None,
        policy_state: None,
        config_schema: None,
        meta: None,
    }
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
