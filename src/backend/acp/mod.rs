//! Agents that speak the Agent Client Protocol (ACP, version 1) on their stdin and stdout.
//!
//! In reading order: [`guard`] (nothing of an agent outlives us), [`process`] (one process), [`peer`] (one
//! connection), [`agent`] (an agent that is started when it is needed, and again when it has died),
//! `conversation` (one chat), `calls` and `content` (what its messages mean), `besides` (what has no place),
//! `edits` (what changes are of files).
//!
//! Owns: what an agent is, as its operator describes it, and being a backend.
//! Never: runs anything but what the operator named, or puts anything from a client into an argument.

pub mod agent;
mod besides;
mod calls;
mod content;
mod conversation;
mod edits;
pub mod guard;
mod junk;
pub mod peer;
pub mod process;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ahp_types::state::{AgentInfo, SessionConfigSchema};

use self::agent::Agent;
use self::process::GuardProgram;
use super::{Backend, Conversation, Line, Stopping};
use crate::host::effects::{AgentDescription, OpenConversation};

/// An agent, as its operator describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSpec {
    /// Its provider id.
    pub name: String,
    /// What clients call it.
    pub title: Option<String>,
    /// What clients say about it.
    pub description: Option<String>,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// What is added to the environment.
    pub environment: BTreeMap<String, String>,
    /// Where it runs; else where we do. Sessions without a folder of their own work there too.
    pub directory: Option<PathBuf>,
    /// It keeps one session at a time: each has a process of its own.
    pub one_session: bool,
    /// How long it may take to answer when it starts, or opens a session.
    pub start_limit: Duration,
    /// How long it may take to give up what was cancelled.
    pub cancel_limit: Duration,
    /// How long it is kept running when it is not used.
    pub idle_limit: Duration,
}

/// An agent, as a backend.
#[derive(Debug)]
pub struct Acp {
    agent: Arc<Agent>,
}

impl Acp {
    /// The agent that an operator describes. Starts nothing.
    pub fn new(spec: AgentSpec, guard: GuardProgram) -> Self {
        Self { agent: Arc::new(Agent::new(spec, guard)) }
    }
}

impl Backend for Acp {
    fn describe(&self) -> AgentDescription {
        let AgentSpec { name, title, description, .. } = &self.agent.spec;
        AgentDescription {
            info: AgentInfo {
                provider: name.clone(),
                display_name: title.as_ref().unwrap_or(name).clone(),
                description: description.clone().unwrap_or_default(),
                models: Vec::new(),
                protected_resources: None,
                customizations: None,
                capabilities: None,
            },
            config: SessionConfigSchema {
                r#type: "object".to_owned(),
                properties: Default::default(),
                required: None,
            },
            commands: Vec::new(),
            resumes: false,
        }
    }

    fn converse(&self, open: OpenConversation, line: Line) -> Conversation {
        Box::pin(conversation::converse(Arc::clone(&self.agent), open, line))
    }

    fn stop(&self) -> Stopping {
        let agent = Arc::clone(&self.agent);
        Box::pin(async move { agent.stop().await })
    }
}
