//! Commands of the core to a backend about one chat's conversation, and descriptions of agents.
//!
//! Owns: [`Command`]; the reports of backends are [`Event`]s.
//! Never: acts, or names a concept of one agent protocol: every kind of backend uses these
//! commands.

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

/// Description of an agent that a backend gives without starting it.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentDescription {
    /// Agent as clients see it in the root state.
    pub info: AgentInfo,
    /// Schema of `createSession.config`.
    pub config: SessionConfigSchema,
    /// Commands with which a line of a message can begin, in display order.
    pub commands: Vec<AgentCommand>,
    /// Set if the agent can resume any turn that the end of the process interrupted; otherwise the
    /// conversation's [`Handle`] decides.
    pub resumes: bool,
    /// Set if the agent accepts messages while it works; otherwise such a message is queued.
    pub steers: bool,
    /// Set if sessions that the agent stores can be adopted; `None` if that is not known yet.
    pub adopts: Option<bool>,
    /// Set if the agent may have settings beyond the schema because it has not reported them yet.
    pub may_have_more_settings: bool,
    /// Identity of the agent's program. Stored descriptions of another identity with this provider
    /// id are not used.
    pub identity: String,
}

/// Description that a running agent reports; `None` for members that it did not report, which keep
/// their previous value. Stored, and valid for the next process until the agent reports another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SelfDescription {
    /// Title for people; the operator's title has precedence.
    pub title: Option<String>,
    /// Version of the agent.
    pub version: Option<String>,
    /// Models that a message can select.
    pub models: Option<Vec<SessionModelInfo>>,
    /// Schema of the session settings, with their defaults.
    pub config: Option<SessionConfigSchema>,
    /// Commands with which a line of a message can begin, in display order.
    pub commands: Option<Vec<AgentCommand>>,
    /// Capabilities of the agent.
    pub capabilities: Option<AgentCapabilities>,
    /// Resources for which the agent needs tokens.
    pub protected_resources: Option<Vec<ProtectedResourceMetadata>>,
    /// Set if the agent accepts messages while it works.
    pub steers: Option<bool>,
    /// Set if the agent lists the sessions that it stores, and replays them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adopts: Option<bool>,
}

impl SelfDescription {
    /// Merges a new report; returns whether anything has changed.
    pub fn learn(&mut self, news: Self) -> bool {
        let before = self.clone();
        let Self {
            title,
            version,
            models,
            config,
            commands,
            capabilities,
            protected_resources,
            steers,
            adopts,
        } = news;
        self.title = title.or(self.title.take());
        self.version = version.or(self.version.take());
        self.models = models.or(self.models.take());
        self.config = config.or(self.config.take());
        self.commands = commands.or(self.commands.take());
        self.capabilities = capabilities.or(self.capabilities.take());
        self.protected_resources = protected_resources.or(self.protected_resources.take());
        self.steers = steers.or(self.steers);
        self.adopts = adopts.or(self.adopts);
        *self != before
    }
}

/// Slash command of an agent: `/` and the name, at the beginning of a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCommand {
    /// Name without the slash.
    pub name: String,
    /// Description for people.
    pub description: String,
    /// Hint for people about the argument; `None` if the command takes none.
    pub argument_hint: Option<String>,
}

/// Command to a backend about one chat's conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Opening of a conversation. Answered by [`Event::Opened`] or [`Event::OpenFailed`].
    Open(OpenConversation),
    /// Start of a turn. Answered by events of this run, ending with one [`TurnEvent::Ended`].
    StartTurn {
        /// Id of this attempt.
        run: RunId,
        /// Message of the user.
        message: Message,
        /// Transcripts of the chats that the user attached.
        attached: Vec<Transcript>,
    },
    /// Continuation of a turn that ended in an error which the backend called resumable. Answered
    /// like [`Command::StartTurn`].
    ResumeTurn {
        /// Id of this attempt.
        run: RunId,
        /// Message of the user that began the turn.
        message: Message,
        /// Transcripts of the chats that the user attached.
        attached: Vec<Transcript>,
        /// Parts of the turn so far, ending with its error: the position to continue from, because
        /// the conversation may have been reopened since.
        so_far: Vec<ResponsePart>,
        /// Last [`TurnEvent::Progress`] that was reported in this turn.
        progress: Option<u64>,
    },
    /// Permission to start the turn that [`Event::Begins`] requested. Answered like
    /// [`Command::StartTurn`], beginning with the agent's output since that event.
    OwnTurn {
        /// Id of the run for the events of the turn.
        run: RunId,
    },
    /// Change of the session's configuration.
    Configure {
        /// All settings, valid by the agent's own schema.
        all: JsonObject,
        /// Names of the settings that have changed.
        changed: BTreeSet<String>,
        /// Number of the change in the conversation, from 1.
        number: u64,
    },
    /// Cancellation of a run, which must still report its end before the next one starts.
    Cancel {
        /// Id of the attempt to cancel.
        run: RunId,
    },
    /// Decision about the permission for a tool call.
    Permission {
        /// Id of the attempt that asked.
        run: RunId,
        /// Id of the tool call.
        tool_call_id: String,
        /// Id of the chosen option; `None` if the agent offered none that fits.
        option: Option<String>,
        /// Set if the call may run.
        approved: bool,
    },
    /// Confirmation or rejection of a tool call's result.
    ResultConfirmed {
        /// Id of the attempt that asked.
        run: RunId,
        /// Id of the tool call.
        tool_call_id: String,
        /// Set if the agent may use the result.
        approved: bool,
    },
    /// Result of a tool call that was assigned to a client; a failure if no client will execute it.
    ToolResult {
        /// Id of the attempt that called.
        run: RunId,
        /// Id of the tool call.
        tool_call_id: String,
        /// Result of the call.
        result: ToolCallResult,
    },
    /// Response to a question of the agent.
    Answer {
        /// Id of the attempt that asked.
        run: RunId,
        /// Id of the question.
        request_id: String,
        /// Kind of the response: accepted, declined or cancelled.
        response: ChatInputResponseKind,
        /// Submitted answers by question id; drafts are left out.
        answers: BTreeMap<String, ChatInputAnswer>,
    },
    /// Message that the user adds while the turn runs. Answered by [`TurnEvent::Steered`] when the
    /// agent has accepted it; if the run ends first, it is queued again for the next run.
    /// [`TurnEvent::NotSteered`] queues it immediately as the message of the next turn.
    Steer {
        /// Id of the running attempt.
        run: RunId,
        /// Id of the pending message.
        id: String,
        /// Message of the user.
        message: Message,
        /// Transcripts of the chats that the user attached.
        attached: Vec<Transcript>,
    },
    /// Request to continue a terminal's command in the background: the call that waits for it ends
    /// with the output so far.
    Background {
        /// Backend's name of the terminal.
        terminal: String,
    },
    /// Change of the agent's working directories. Effective for its next operation; while a turn
    /// runs, possibly only from the next turn on.
    WorkIn {
        /// `file:` URIs; the first is the current directory of the agent.
        directories: Vec<String>,
    },
    /// Tokens that the agent may use from now on; they replace all previous ones.
    Tokens(Tokens),
    /// Current tools of the session's active clients, which the agent calls by
    /// [`TurnEvent::ClientTool`].
    ClientTools {
        /// Definitions by the clients, sorted by name; names are unique.
        tools: Vec<ToolDefinition>,
    },
    /// Change of the MCP servers that the agent should have. If the agent must reopen the
    /// conversation for that, and can do so now without loss, it leaves ([`Event::Left`]); later
    /// otherwise. Answered by [`Event::McpServers`] unless it leaves.
    McpServers {
        /// Ids of the servers' customizations.
        servers: Vec<String>,
        /// Set to start the servers again even if they are the same.
        restart: bool,
    },
    /// Close of the conversation; no event follows.
    Close,
}

/// Bearer token, which `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Wraps a secret.
    pub fn new(secret: String) -> Self {
        Self(secret)
    }

    /// Returns the secret, which may be sent only to the resource that it is for.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Tokens by resource.
pub type Tokens = BTreeMap<String, Token>;

/// Request to open a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenConversation {
    /// Provider id of the agent.
    pub provider: String,
    /// `file:` URIs; the first is the current directory of the agent.
    pub working_directories: Vec<String>,
    /// Configuration of the session, valid by the agent's own schema.
    pub config: JsonObject,
    /// Tokens for the resources that the agent declares.
    pub tokens: Tokens,
    /// Earlier turns, for a conversation that is reopened or continues another one.
    pub history: Vec<CompletedTurn>,
    /// Name of the last reported [`Event::Handle`]; `None` if the agent's knowledge differs from
    /// the history.
    pub handle: Option<String>,
    /// Name of the conversation to copy, if the agent's knowledge of it equals the history, which
    /// then need not be sent.
    pub copy_of: Option<String>,
    /// Stored transcripts of chats that the user attached to messages of the history, by the
    /// position of the turn in it; only for the newest turns.
    pub attached: BTreeMap<usize, Vec<Transcript>>,
    /// Selected text of an earlier answer about which the user opened the conversation.
    pub selection: Option<String>,
    /// Tools at the time of opening, as in [`Command::ClientTools`].
    pub client_tools: Vec<ToolDefinition>,
    /// MCP servers for the agent, by the ids of their customizations. Answered by
    /// [`Event::McpServers`] before [`Event::Opened`], unless there are none.
    pub mcp_servers: Vec<String>,
    /// Descriptions of those of them that are in plugins of clients.
    pub client_mcp_servers: Vec<ClientMcpServer>,
}

/// MCP server in a plugin of a client.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientMcpServer {
    /// Id of the server's customization.
    pub id: String,
    /// Name, unique among the servers of the conversation.
    pub name: String,
    /// URI of the file with the description.
    pub uri: String,
    /// Transport.
    pub transport: ClientMcpTransport,
}

/// Way to reach an MCP server of a client's plugin. `Debug` prints the program, and no other value.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientMcpTransport {
    /// Program that speaks MCP on stdin and stdout.
    Program {
        /// Absolute path of the program, or its name on the search path.
        command: String,
        /// Command-line arguments.
        args: Vec<Token>,
        /// Environment variables added to those of the agent.
        env: BTreeMap<String, Token>,
    },
    /// Server at a URL.
    Url {
        /// URL.
        url: Token,
        /// Headers of each request.
        headers: BTreeMap<String, Token>,
        /// Set for the transport SSE, which precedes HTTP.
        sse: bool,
    },
}

impl ClientMcpTransport {
    /// Returns the size of the description, in bytes.
    pub(in crate::host) fn bytes(&self) -> usize {
        let texts = |texts: &BTreeMap<String, Token>| -> usize {
            texts.iter().map(|(name, text)| name.len() + text.secret().len()).sum()
        };
        match self {
            Self::Program { command, args, env } => {
                command.len() + args.iter().map(|arg| arg.secret().len()).sum::<usize>() + texts(env)
            }
            Self::Url { url, headers, .. } => url.secret().len() + texts(headers),
        }
    }
}

/// MCP servers of clients' plugins that the operator lets agents have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientMcp {
    /// No servers.
    #[default]
    None,
    /// Servers at a URL.
    Http,
    /// Also programs, which run on this machine with the rights of the user.
    All,
}

impl ClientMcp {
    /// Returns why an agent may not have a server; `None` if it may.
    pub fn refuses(self, transport: &ClientMcpTransport) -> Option<&'static str> {
        match (transport, self) {
            (ClientMcpTransport::Url { .. }, Self::None) => {
                Some("the operator allows no servers of plugins: `client_mcp` in the configuration file")
            }
            (ClientMcpTransport::Program { .. }, Self::None | Self::Http) => {
                Some("the operator allows no programs of plugins: `client_mcp` in the configuration file")
            }
            _ => None,
        }
    }
}

/// Name of the MCP server by which agents that speak ACP get the tools of clients.
pub const CLIENT_TOOLS_SERVER: &str = "ahpclient";

/// Subject of a transcript.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TranscriptOf {
    /// Messages of a chat, oldest first. Chats attached there are mentioned but not included.
    #[default]
    Chat,
    /// Annotations, each with its file, lines and comments.
    Annotations,
    /// Commands that the user has run since the agent's last message, each with its exit code and
    /// output.
    Commands,
}

impl TranscriptOf {
    fn is_chat(&self) -> bool {
        *self == Self::Chat
    }
}

/// Transcript of an attached chat, up to the turn that the attachment names, or of attached
/// annotations, as of the time when the message was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transcript {
    /// Subject of the transcript.
    #[serde(default, skip_serializing_if = "TranscriptOf::is_chat")]
    pub of: TranscriptOf,
    /// URI of the channel; serialized as `chat`, the first kind of transcript, for compatibility
    /// with stored data.
    #[serde(rename = "chat")]
    pub resource: String,
    /// Label of the attachment.
    pub label: String,
    /// Text of the transcript.
    pub text: String,
    /// Set if the beginning was cut because of the size limit.
    pub cut: bool,
}

/// Name of a conversation for the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// Name, which only the agent can interpret.
    pub name: String,
    /// Set if the agent can reopen the conversation after the agent or the host has restarted, and
    /// resume an interrupted turn.
    pub resumes: bool,
}

/// Returns a model of which only the name is known.
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
