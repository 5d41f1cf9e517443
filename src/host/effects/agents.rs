//! Commands of the core to a backend about one chat's conversation, and descriptions of agents.
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

/// Description of an agent that a backend gives without starting anything.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentDescription {
    /// Agent as clients see it in the root state.
    pub info: AgentInfo,
    /// Schema of `createSession.config`.
    pub config: SessionConfigSchema,
    /// Commands with which a line of a message can begin, in the order to offer them.
    pub commands: Vec<AgentCommand>,
    /// Set if it can resume any turn that was interrupted by the end of the process. Otherwise the
    /// [`Handle`] of a conversation tells.
    pub resumes: bool,
    /// Set if it takes in messages while it works. Otherwise such a message is the next one.
    pub steers: bool,
    /// Set if it may have settings beyond the schema, because it has not said yet which it has.
    pub may_have_more_settings: bool,
    /// Identity beyond the provider id: descriptions of another agent with this id do not hold for
    /// this one.
    pub identity: String,
}

/// Description that an agent gives once it runs; `None` for what it has not said. What one report
/// leaves out stays as it was. Stored, and valid for the next process until the agent says
/// otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SelfDescription {
    /// Title for people; that of the operator comes first.
    pub title: Option<String>,
    /// Version.
    pub version: Option<String>,
    /// The models that a message can choose among.
    pub models: Option<Vec<SessionModelInfo>>,
    /// Settings of its sessions, with the values of a new one.
    pub config: Option<SessionConfigSchema>,
    /// Commands with which a line of a message can begin, in the order to offer them.
    pub commands: Option<Vec<AgentCommand>>,
    /// Capabilities.
    pub capabilities: Option<AgentCapabilities>,
    /// Resources for which it needs tokens.
    pub protected_resources: Option<Vec<ProtectedResourceMetadata>>,
    /// Set if it takes in messages while it works.
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
    /// Name.
    pub name: String,
    /// Description for people.
    pub description: String,
    /// Hint for people about the argument, if there is one.
    pub argument_hint: Option<String>,
}

/// Command to a backend about one chat's conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Open a conversation. Answered by [`Event::Opened`] or [`Event::OpenFailed`].
    Open(OpenConversation),
    /// Run a turn. Answered by events of this run and at last by one [`TurnEvent::Ended`].
    StartTurn {
        /// This attempt.
        run: RunId,
        /// Message of the user.
        message: Message,
        /// Transcripts of the chats that the user attached.
        attached: Vec<Transcript>,
    },
    /// Go on with a turn that ended in an error which the backend called resumable. Answered like
    /// [`Command::StartTurn`].
    ResumeTurn {
        /// This attempt.
        run: RunId,
        /// Message of the user that began the turn.
        message: Message,
        /// Transcripts of the chats that the user attached.
        attached: Vec<Transcript>,
        /// Parts of the turn so far, its error last: they tell where to go on, because the
        /// conversation may have been opened anew since.
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
        /// All settings, valid by the agent's own schema.
        all: JsonObject,
        /// The settings that are not what they were.
        changed: BTreeSet<String>,
        /// Number of the change in the conversation, from 1.
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
        /// Set if the call may run.
        approved: bool,
    },
    /// A result that had to be confirmed was.
    ResultConfirmed {
        /// The attempt that asked.
        run: RunId,
        /// The tool call.
        tool_call_id: String,
        /// Set if the agent may use the result.
        approved: bool,
    },
    /// A tool call that was to run on a client is over: the client has finished it, or nobody will.
    ToolResult {
        /// The attempt that called.
        run: RunId,
        /// The tool call.
        tool_call_id: String,
        /// Result of the call.
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
        /// Message of the user.
        message: Message,
        /// Transcripts of the chats that the user attached.
        attached: Vec<Transcript>,
    },
    /// The user does not want to wait for the command in a terminal: it goes on, and the call that
    /// waits for it ends with what there is.
    Background {
        /// Name of the terminal for the backend.
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

    /// Returns the secret, which only the resource may see that it is for.
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

/// Request to open a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenConversation {
    /// Provider id of the agent.
    pub provider: String,
    /// `file:` URIs; the first is where the agent works.
    pub working_directories: Vec<String>,
    /// The session's configuration, valid by the agent's own schema.
    pub config: JsonObject,
    /// The tokens that the agent may use, of those that it declares resources for.
    pub tokens: Tokens,
    /// Earlier turns, if the conversation must be taken up anew or continues another one.
    pub history: Vec<CompletedTurn>,
    /// The name of the last [`Event::Handle`] that was reported; none when the history is not what
    /// the agent knows.
    pub handle: Option<String>,
    /// The name of the conversation that this one goes on from, while the agent knows of that just
    /// what the history is: a copy of it needs not be told.
    pub copy_of: Option<String>,
    /// Transcripts of chats that the user attached to messages of the history, by the id of the
    /// turn: of the newest ones, as far as they are stored.
    pub attached: BTreeMap<String, Vec<Transcript>>,
    /// The part of what was said before that the user opened the conversation about.
    pub selection: Option<String>,
    /// Tools as in [`Command::ClientTools`] when the conversation opens.
    pub client_tools: Vec<ToolDefinition>,
}

/// Subject of a transcript.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TranscriptOf {
    /// A chat: who said what, oldest first. Chats that were attached there are mentioned, not
    /// followed.
    #[default]
    Chat,
    /// Annotations: each with the file, the lines and what was said to them.
    Annotations,
    /// Commands that the user has run since the agent's last message: each line with its exit code
    /// and output.
    Commands,
}

impl TranscriptOf {
    fn is_chat(&self) -> bool {
        *self == Self::Chat
    }
}

/// Transcript of an attached chat, up to the turn that the attachment names, or of attached
/// annotations, as of when the message was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transcript {
    /// Subject.
    #[serde(default, skip_serializing_if = "TranscriptOf::is_chat")]
    pub of: TranscriptOf,
    /// The URI of the channel. The store has had it under the name of the first kind.
    #[serde(rename = "chat")]
    pub resource: String,
    /// Label of the attachment.
    pub label: String,
    /// Text.
    pub text: String,
    /// The beginning is not there, because it would be too much.
    pub cut: bool,
}

/// Name of a conversation for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The name, which means nothing to anybody else.
    pub name: String,
    /// Set if the agent can take the conversation up after it or the host has ended, and resume a
    /// turn that was interrupted by that.
    pub resumes: bool,
}

/// A model of which no more is known than this.
pub fn named_model(id: &str, provider: &str, name: &str) -> SessionModelInfo {
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
