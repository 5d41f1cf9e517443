//! Agents that speak the Agent Client Protocol (ACP, version 1) on their stdin and stdout.
//!
//! In reading order: [`guard`] (nothing of an agent outlives us), `descendants` (whom it ends),
//! [`lifeline`] (what it holds on to), [`guards`] (our side of them), `process` (one process),
//! `peer` (one connection), `agent` (an agent that is started when it is needed, and again when
//! it has died), `program` (where it is), `quirks` (what is known of certain agents), `login`
//! (what it needs for that), `conversation` (one chat), `calls`, `content` and
//! `options` (what its messages mean), `client_tools` (how it uses the tools of clients),
//! `extra_meta` (what has no place), `errors` (what its requests are refused with), `blocking`
//! (what may take long), `edits` (what changes are of files), `files` and `terminals` (what it
//! may do to the user's machine through us).
//!
//! Owns: what an agent is, as its operator describes it, and being a backend.
//! Never: runs anything but what the operator named, or puts anything from a client into an
//! argument.
#![doc = include_str!("README.md")]

mod agent;
mod blocking;
mod calls;
mod client_tools;
mod content;
mod conversation;
#[cfg(target_os = "linux")]
mod descendants;
mod edits;
mod errors;
mod extra_meta;
mod files;
pub mod guard;
pub mod guards;
pub mod lifeline;
mod login;
pub(crate) mod options;
mod peer;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod quirks;
mod terminals;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::common::JsonObject;
use ahp_types::state::{AgentCapabilities, AgentInfo, MultipleChatsCapability, SessionConfigSchema};

use self::agent::Agent;
pub use self::client_tools::relay;
use self::guards::GuardProgram;
use self::quirks::AgentQuirks;
use super::{Backend, HostLine, RunningConversation, Stopping};
use crate::host::effects::{AgentDescription, OpenConversation};

/// An agent, as its operator describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSpec {
    /// Provider id of the agent.
    pub name: String,
    /// Name that clients display; `None` for the provider id.
    pub title: Option<String>,
    /// Description that clients display.
    pub description: Option<String>,
    /// The program.
    pub program: PathBuf,
    /// Command-line arguments of the program.
    pub arguments: Vec<OsString>,
    /// Variables that are added to the environment.
    pub environment: BTreeMap<String, String>,
    /// Working directory of the program, and of sessions without a folder of their own; `None` for
    /// the host's.
    pub directory: Option<PathBuf>,
    /// Set when the agent keeps one session at a time: each session gets a process of its own.
    pub one_session: bool,
    /// Maximum time for an answer when the agent starts or opens a session.
    pub start_limit: Duration,
    /// Maximum time for the agent to stop work that was cancelled.
    pub cancel_limit: Duration,
    /// Maximum duration of a turn, including the time for which it waits for the user; `None` for
    /// no limit.
    pub turn_limit: Option<Duration>,
    /// Time after which an unused agent is stopped.
    pub idle_limit: Duration,
    /// Services of the host that the agent may use.
    pub offers: Offers,
    /// Set when the agent is given the tools of clients.
    pub client_tools: bool,
    /// Starting values of the options of its sessions, by their ids: texts, `true` or `false`.
    pub config: JsonObject,
}

/// Services of the host that an agent may use, and is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offers {
    /// Read files in the session's working directories. Unless it is said, all agents may but
    /// those whose quirks say otherwise.
    pub reading: Option<bool>,
    /// Write them.
    pub writing: bool,
    /// Run commands in terminals.
    pub terminals: bool,
}

/// An agent, as a backend.
#[derive(Debug)]
pub struct Acp {
    agent: Arc<Agent>,
}

impl Acp {
    /// Creates the agent that an operator describes. Starts nothing.
    pub fn new(spec: AgentSpec, guard: GuardProgram) -> Self {
        Self { agent: Arc::new(Agent::new(spec, guard)) }
    }

    /// Returns the words in which the agent says by itself that nobody is logged in, and what can
    /// be done.
    pub fn missing_login(&self) -> Option<String> {
        let said = self.agent.history().connections.last()?.logged_out()?;
        Some(format!("it says \"{said}\". {}", self.agent.login_advice()))
    }

    /// Returns what is known of the agent besides what it says; `None` if it has not said what it
    /// is.
    pub fn quirks(&self) -> Option<AgentQuirks> {
        self.agent.history().quirks
    }
}

impl Backend for Acp {
    fn describe(&self) -> AgentDescription {
        let AgentSpec { name, title, description, program, arguments, config, .. } = &self.agent.spec;
        let mut identity = format!("{program:?} {arguments:?}");
        if !config.is_empty() {
            // The defaults that it was known by may be others.
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
                // Each chat is a session of the agent's.
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
            may_have_more_settings: true,
            // No more is kept of it: there may be secrets among the arguments.
            identity: format!("{:08x}", crc32fast::hash(identity.as_bytes())),
        }
    }

    fn converse(&self, open: OpenConversation, line: HostLine) -> RunningConversation {
        Box::pin(conversation::converse(Arc::clone(&self.agent), open, line))
    }

    fn stop(&self) -> Stopping {
        let agent = Arc::clone(&self.agent);
        Box::pin(async move {
            tokio::join!(agent.stop(), agent.commands.stop(), agent.client_tools.stop());
        })
    }
}
