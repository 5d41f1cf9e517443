//! Errors with which the host refuses an agent's requests.
//!
//! Owns: these errors with their codes and messages, and the codes of agents' errors that matter.
//! Never: decides that a request is refused.

use std::io;
use std::path::{Path, PathBuf};

use crate::files::folders::PathRefusal;

pub mod code {
    pub const INVALID_REQUEST: i64 = -32600;
    pub const METHOD_NOT_FOUND: i64 = -32601;
    pub const INVALID_PARAMS: i64 = -32602;
    pub const INTERNAL: i64 = -32603;
    /// ACP: the user must log in first.
    pub const AUTH_REQUIRED: i64 = -32000;
    /// ACP: the file or session does not exist.
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    pub const WITHDRAWN: i64 = -32800;
}

/// Reason for which an agent's request is refused, as the message of the error response.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    // Invalid requests.
    #[error("the method is not supported")]
    MethodNotServed,
    #[error("the params are invalid")]
    ParamsDoNotFit,
    #[error("the params are invalid: {0}")]
    ParamsUnreadable(serde_json::Error),
    #[error("the id is too long")]
    IdTooLong,
    #[error("another request with this id is still unanswered")]
    IdTaken,
    #[error("too many requests of this agent are unanswered")]
    TooManyRequests,
    #[error("withdrawn")]
    Withdrawn,

    // Requests at the wrong time.
    #[error("the session is unknown, or was closed")]
    NoSuchSession,
    #[error("the session is closed")]
    SessionClosed,
    #[error("no turn is running")]
    NoTurnRuns,
    #[error("the turn was cancelled")]
    TurnCancelled,

    // Files.
    #[error("the text exceeds {0} bytes")]
    TextTooLong(usize),
    #[error("`{}`: {refusal}", path.display())]
    Path { path: PathBuf, refusal: PathRefusal },
    #[error("`{}`: the requested text exceeds {max} bytes; request fewer lines", path.display())]
    FileTooLong { path: PathBuf, max: usize },
    #[error("`{}`: the requested line begins after the first {max} bytes", path.display())]
    LineTooFar { path: PathBuf, max: u64 },
    #[error("`{}`: it is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    #[error("`{}`: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// No thread could be started for the work.
    #[error("{0}")]
    NotTried(io::Error),

    // Terminals.
    #[error("the environment variable `{}` has an invalid name or value", .0.escape_debug())]
    NoVariable(String),
    #[error("a command must not contain NUL characters")]
    Nul,
    #[error("the session has {0} unreleased terminals, the maximum")]
    TooManyTerminals(usize),
    #[error("there is no terminal `{}`", .0.escape_debug())]
    NoTerminal(String),
    #[error("`{0}`: no such program on the search path (`PATH`)")]
    NotOnSearchPath(String),
    #[error("the path `{}` is not UTF-8", .0.display())]
    PathNotText(PathBuf),
    /// The guard reports that the command could not be started.
    #[error("`{title}` cannot be started: {why}")]
    NotStarted { title: String, why: String },
    /// The guard could not be started.
    #[error("`{program}` cannot be started: {error}")]
    StartFailed { program: String, error: io::Error },
}

impl RequestError {
    pub fn of_path(path: &Path, refusal: PathRefusal) -> Self {
        Self::Path { path: path.to_owned(), refusal }
    }

    pub fn code(&self) -> i64 {
        match self {
            Self::MethodNotServed => code::METHOD_NOT_FOUND,
            Self::Path { refusal, .. } if refusal.is_missing() => code::RESOURCE_NOT_FOUND,
            Self::Path { refusal: PathRefusal::Failed(_), .. } => code::INTERNAL,
            Self::Read { .. } | Self::NotTried(_) | Self::StartFailed { .. } => code::INTERNAL,
            Self::Withdrawn => code::WITHDRAWN,
            _ => code::INVALID_PARAMS,
        }
    }
}
