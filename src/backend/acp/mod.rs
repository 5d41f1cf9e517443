//! Agents that speak the Agent Client Protocol (ACP, version 1) on their stdin and stdout.
//!
//! In reading order: `process` (one process; [`crate::os::process`] ends all that it starts),
//! `peer` (one connection), `agent` (start and restart of an agent), `program` (lookup of its
//! program), `quirks` (peculiarities of certain agents), `login` (authentication), `providers` (of
//! its models), `conversation` (one chat), `calls`, `content` and `options` (translation of its
//! messages), `client_tools` (client tools as an MCP server), `stored_sessions` and `replay`
//! (sessions that the agent has from elsewhere), `extra_meta` (data without a place in the host's
//! protocol), `errors` (errors sent to the agent), `edits` (whole-file edits from diffs), `files`
//! and `terminals` (the agent's access to files and commands through the host).
//!
//! Owns: the operator's description of an agent, and its implementation of [`Backend`].
//! Never: runs anything but the program that the operator named, or puts anything from a client
//! into an argument.
#![doc = include_str!("README.md")]

mod agent;
mod calls;
mod client_tools;
mod content;
mod conversation;
mod edits;
mod errors;
mod extra_meta;
mod files;
mod folder_servers;
mod login;
pub(crate) mod options;
mod peer;
pub(crate) mod process;
pub(crate) mod program;
mod providers;
pub(crate) mod quirks;
pub mod replay;
mod stored_sessions;
mod terminals;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::common::JsonObject;
use ahp_types::state::{AgentCapabilities, AgentInfo, MultipleChatsCapability, SessionConfigSchema};

use self::agent::Agent;
pub use self::client_tools::{relay, SERVER as CLIENT_TOOLS_SERVER};
pub use self::providers::ModelProvider;
use self::quirks::AgentQuirks;
pub use self::stored_sessions::AgentErrand;
use super::{Backend, HostLine, PendingAgentSessions, ReportSender, RunningConversation, Stopping};
use crate::host::effects::{AgentDescription, AgentSessionsQuery, OpenConversation, Tokens};
use crate::os::process::GuardProgram;

/// Silence after which an agent that replays late has replayed all of a loaded session.
const REPLAY_PAUSE: Duration = Duration::from_millis(250);

/// Description of an agent by its operator.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSpec {
    /// Provider id of the agent.
    pub name: String,
    /// Name that clients display; `None` for the provider id.
    pub title: Option<String>,
    /// Description that clients display.
    pub description: Option<String>,
    /// Path or name of the program; a bare name is looked up on the search path.
    pub program: PathBuf,
    /// Command-line arguments of the program.
    pub arguments: Vec<OsString>,
    /// Environment variables added to the host's own.
    pub environment: BTreeMap<String, String>,
    /// Working directory of the program and of sessions without a folder; `None` for the host's.
    pub directory: Option<PathBuf>,
    /// Set when the agent supports one session per process: each session gets a process of its own.
    pub one_session: bool,
    /// Time limit for an answer when the agent starts or opens a session.
    pub start_limit: Duration,
    /// Time limit for the agent to stop cancelled work.
    pub cancel_limit: Duration,
    /// Maximum duration of a turn, including waits for the user; `None` for no limit.
    pub turn_limit: Option<Duration>,
    /// Time after which an idle agent is stopped.
    pub idle_limit: Duration,
    /// Services of the host that the agent may use.
    pub offers: Offers,
    /// Set when the agent receives the tools of clients.
    pub client_tools: bool,
    /// Providers of its models, by the agent's ids.
    pub providers: BTreeMap<String, ModelProvider>,
    /// Initial values of its session options, by option id: strings or booleans.
    pub config: JsonObject,
}

/// Host services announced to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offers {
    /// Reading files in working directories; `None` leaves the decision to the agent's quirks.
    pub reading: Option<bool>,
    /// Writing files in the session's working directories.
    pub writing: bool,
    /// Running commands in terminals.
    pub terminals: bool,
}

/// Backend of an agent that speaks ACP.
#[derive(Debug)]
pub struct Acp {
    agent: Arc<Agent>,
}

impl Acp {
    /// Creates the agent that an operator describes. Starts nothing.
    pub fn new(spec: AgentSpec, guard: GuardProgram) -> Self {
        Self { agent: Arc::new(Agent::new(spec, guard)) }
    }

    /// Returns the agent's report that no user is logged in, with advice; `None` without one.
    pub fn missing_login(&self) -> Option<String> {
        let reply = self.agent.history().connections.last()?.logged_out()?;
        Some(format!("it says \"{reply}\". {}", self.agent.login_advice()))
    }

    /// Carries out an errand about the agent's own sessions or its login.
    ///
    /// # Errors
    /// When the agent cannot be started, lacks the method, or rejects it.
    pub async fn carry_out(&self, errand: &AgentErrand) -> anyhow::Result<()> {
        stored_sessions::carry_out(&self.agent, errand, &ReportSender::detached()).await
    }

    /// Returns the quirks of the agent; `None` if it has not reported its name yet.
    pub fn quirks(&self) -> Option<AgentQuirks> {
        self.agent.history().quirks
    }
}

impl Backend for Acp {
    fn describe(&self) -> AgentDescription {
        let AgentSpec { name, title, description, program, arguments, config, .. } = &self.agent.spec;
        let mut identity = format!("{program:?} {arguments:?}");
        if !config.is_empty() {
            // With other initial values, stored defaults of the agent may be wrong.
            identity.push_str(&format!(" {config:?}"));
        }
        AgentDescription {
            info: AgentInfo {
                provider: name.clone(),
                display_name: title.as_ref().unwrap_or(name).clone(),
                description: description.clone().unwrap_or_default(),
                models: Vec::new(),
                protected_resources: None,
                customizations: None,
                // Each chat is one session of the agent.
                capabilities: Some(AgentCapabilities {
                    multiple_chats: Some(MultipleChatsCapability { fork: Some(true), side_chat: Some(true) }),
                    ..AgentCapabilities::default()
                }),
            },
            config: SessionConfigSchema {
                r#type: "object".to_owned(),
                properties: Default::default(),
                required: None,
            },
            commands: Vec::new(),
            resumes: false,
            steers: false,
            adopts: None,
            may_have_more_settings: true,
            // Stored as a checksum only: the arguments may contain secrets.
            identity: format!("{:08x}", crc32fast::hash(identity.as_bytes())),
        }
    }

    fn converse(&self, open: OpenConversation, line: HostLine) -> RunningConversation {
        Box::pin(conversation::converse(Arc::clone(&self.agent), open, line))
    }

    fn stored_sessions(
        &self,
        query: AgentSessionsQuery,
        tokens: Tokens,
        reports: ReportSender,
    ) -> PendingAgentSessions {
        Box::pin(stored_sessions::answer(Arc::clone(&self.agent), query, tokens, reports))
    }

    fn stop(&self) -> Stopping {
        let agent = Arc::clone(&self.agent);
        Box::pin(async move {
            tokio::join!(agent.stop(), agent.commands.stop(), agent.client_tools.stop());
        })
    }
}
