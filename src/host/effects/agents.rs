//! What the core tells a backend about one chat's conversation, and what is known of the agents.
//!
//! Owns: the words of its [`Command`]s; what a backend reports is an [`Event`].
//! Never: acts. Free of the words of any agent protocol, so that every kind of backend fits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ahp_types::common::JsonObject;
use ahp_types::state::{
    AgentCapabilities, AgentInfo, ChatInputAnswer, ChatInputResponseKind, Message, ProtectedResourceMetadata,
    ResponsePart, SessionConfigSchema, SessionModelInfo, ToolCallResult, ToolDefinition,
};

use serde::{Deserialize, Serialize};

use super::RunId;
#[cfg(doc)]
use super::{Event, TurnEvent};
use crate::state::history::CompletedTurn;

/// What a backend says of itself, without starting anything.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentDescription {
    /// What clients are shown in the root state.
    pub info: AgentInfo,
    /// What `createSession.config` may hold.
    pub config: SessionConfigSchema,
    /// What a line of a message can begin with to mean something special, in the order to offer
    /// them.
    pub commands: Vec<AgentCommand>,
    /// Whether it can go on with any turn that was interrupted by the end of the process. Where
    /// that depends on the conversation, its [`Handle`] tells.
    pub resumes: bool,
    /// Whether it takes in what the user adds while it works. Otherwise that is the next message.
    pub steers: bool,
    /// Whether it may have settings that are not in the schema, because it has not said yet which
    /// it has.
    pub may_have_more_settings: bool,
    /// What it is, beyond its provider id: what another agent of this id said of itself is not true
    /// of this one.
    pub identity: String,
}

/// What an agent says of itself once it runs; members that it has said nothing of are none. What
/// one report leaves out stays what it was. Kept, and true for the next process until the agent
/// says otherwise.
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
    /// What a line of a message can begin with to mean something special, in the order to offer
    /// them.
    pub commands: Option<Vec<AgentCommand>>,
    /// What it can do.
    pub capabilities: Option<AgentCapabilities>,
    /// What it needs tokens for.
    pub protected_resources: Option<Vec<ProtectedResourceMetadata>>,
    /// Whether it takes in what the user adds while it works.
    pub steers: Option<bool>,
}

impl SelfDescription {
    /// Takes in what is new; whether anything is.
    pub fn learn(&mut self, news: Self) -> bool {
        let before = self.clone();
        let Self { title, version, models, config, commands, capabilities, protected_resources, steers } =
            news;
        self.title = title.or(self.title.take());
        self.version = version.or(self.version.take());
        self.models = models.or(self.models.take());
        self.config = config.or(self.config.take());
        self.commands = commands.or(self.commands.take());
        self.capabilities = capabilities.or(self.capabilities.take());
        self.protected_resources = protected_resources.or(self.protected_resources.take());
        self.steers = steers.or(self.steers);
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
        /// What the turn holds so far, its error last: where to go on is to be found in it, because
        /// the conversation may have been opened anew since.
        so_far: Vec<ResponsePart>,
        /// The last [`TurnEvent::Progress`] that was reported in this turn.
        progress: Option<u64>,
    },
    /// The turn is open that [`Event::Begins`] asked for. Answered like [`Command::StartTurn`],
    /// from what the agent has said since.
    OwnTurn {
        /// The run that its events are of.
        run: RunId,
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
    /// The user adds something while the turn runs. Answered by [`TurnEvent::Steered`] once the
    /// agent has it: what is not answered when the run ends is put back, for the next one.
    /// [`TurnEvent::NotSteered`] puts it back at once, as the message of the next turn.
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
    /// The user does not want to wait for the command in a terminal: it goes on, and the call that
    /// waits for it ends with what there is.
    Background {
        /// What the backend calls the terminal.
        terminal: String,
    },
    /// The directories that the agent works in have changed. True for what it does next; under a
    /// running turn that may be the next turn.
    WorkIn {
        /// `file:` URIs; the first is where the agent works.
        directories: Vec<String>,
    },
    /// The tokens that the agent may use from now on, instead of those that it had.
    Tokens(Tokens),
    /// The tools that active clients of the session offer are these now. Called by
    /// [`TurnEvent::ClientTool`].
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
    /// What was said before, when the conversation must be taken up anew or goes on from another
    /// one.
    pub history: Vec<CompletedTurn>,
    /// The name of the last [`Event::Handle`] that was reported; none when the history is not what
    /// the agent knows.
    pub handle: Option<String>,
    /// The name of the conversation that this one goes on from, while the agent knows of that just
    /// what the history is: a copy of it needs not be told.
    pub copy_of: Option<String>,
    /// What was said in chats that the user attached to messages of the history, by the id of the
    /// turn: of the newest ones, as far as they are kept.
    pub attached: BTreeMap<String, Vec<Transcript>>,
    /// The part of what was said before that the user opened the conversation about.
    pub selection: Option<String>,
    /// What [`Command::ClientTools`] says when the conversation opens.
    pub client_tools: Vec<ToolDefinition>,
}

/// What a transcript is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TranscriptOf {
    /// A chat: who said what, oldest first. Chats that were attached there are mentioned, not
    /// followed.
    #[default]
    Chat,
    /// Annotations: each with the file, the lines and what was said to them.
    Annotations,
    /// What the user has had run since the agent's last message: each line, how it has ended, and
    /// what it has printed.
    Commands,
}

impl TranscriptOf {
    fn is_chat(&self) -> bool {
        *self == Self::Chat
    }
}

/// What was said in a chat that is attached to a message, up to the turn that the attachment names,
/// or in annotations that are: as it was when the message was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transcript {
    /// What was said where.
    #[serde(default, skip_serializing_if = "TranscriptOf::is_chat")]
    pub of: TranscriptOf,
    /// The URI of the channel. The store has had it under the name of the first kind.
    #[serde(rename = "chat")]
    pub resource: String,
    /// What the user calls the attachment.
    pub label: String,
    /// It, in words.
    pub text: String,
    /// The beginning is not there, because it would be too much.
    pub cut: bool,
}

/// What an agent calls a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The name, which means nothing to anybody else.
    pub name: String,
    /// Whether the conversation can be taken up by it when the agent, or the host, has ended; and
    /// with it a turn that was cut by that: such a turn may be resumed.
    pub resumes: bool,
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
