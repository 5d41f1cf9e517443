//! Agents that speak the Agent Client Protocol (ACP, version 1) on their stdin and stdout.
//!
//! In reading order: [`guard`] (nothing of an agent outlives us), [`process`] (one process), [`peer`] (one
//! connection), [`agent`] (an agent that is started when it is needed, and again when it has died),
//! `conversation` (one chat), `calls` and `content` (what its messages mean).
//!
//! Owns: what an agent is, as its operator describes it, and being a backend.
//! Never: runs anything but what the operator named, or puts anything from a client into an argument.

pub mod agent;
pub mod guard;
mod junk;
pub mod peer;
pub mod process;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

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
    /// How long it may take to answer when it starts, or opens a session.
    pub start_limit: Duration,
    /// How long it may take to give up what was cancelled.
    pub cancel_limit: Duration,
    /// How long it is kept running when it is not used.
    pub idle_limit: Duration,
}
