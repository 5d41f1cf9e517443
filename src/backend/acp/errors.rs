//! Errors with which the host refuses an agent's requests.
//!
//! Owns: the table of these errors, each with its code and the sentence that the agent reads; and
//! the codes that mean something to us in what agents answer.
//! Never: decides that something is not done.

use std::io;
use std::path::{Path, PathBuf};

use crate::files::folders::PathRefusal;

/// The codes of errors, of JSON-RPC and of ACP.
pub mod code {
    /// JSON-RPC: this is no request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// JSON-RPC: no such method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// JSON-RPC: the parameters do not fit.
    pub const INVALID_PARAMS: i64 = -32602;
    /// JSON-RPC: it went wrong.
    pub const INTERNAL: i64 = -32603;
    /// ACP: the user must log in first.
    pub const AUTH_REQUIRED: i64 = -32000;
    /// ACP: there is no such file or session.
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// ACP: the request was withdrawn.
    pub const WITHDRAWN: i64 = -32800;
}

/// Why a request of an agent's is not done. Its `Display` is the message of the error that answers
/// it.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    // The request itself.
    /// We have no such method, or have not offered it.
    #[error("this method is not served")]
    MethodNotServed,
    /// Parameters that do not fit the method.
    #[error("the parameters do not fit")]
    ParamsDoNotFit,
    /// Parameters that cannot be read, with the reason.
    #[error("the parameters do not fit: {0}")]
    ParamsUnreadable(serde_json::Error),
    /// Ids are kept until they are answered.
    #[error("the id is too long")]
    IdTooLong,
    /// Two requests have one id.
    #[error("a request with this id is not answered yet")]
    IdTaken,
    /// More unanswered requests of the agent than the host keeps.
    #[error("too many requests of this agent wait for an answer")]
    TooManyRequests,
    /// The agent has withdrawn it.
    #[error("withdrawn")]
    Withdrawn,

    // When it comes.
    /// Request about a session that nobody has opened.
    #[error("no such session")]
    NoSuchSession,
    /// Request that was unanswered when its conversation was closed.
    #[error("the session is closed")]
    SessionClosed,
    /// Request that is served only while a turn runs.
    #[error("no turn runs")]
    NoTurnRuns,
    /// The turn that it belongs to was cancelled.
    #[error("the turn was cancelled")]
    TurnCancelled,

    // Files.
    /// More text than is taken at once.
    #[error("a text has at most {0} bytes")]
    TextTooLong(usize),
    /// The path is not for this conversation, or the system refuses it.
    #[error("`{}`: {refusal}", path.display())]
    Path {
        /// The path that was named.
        path: PathBuf,
        /// Why not.
        refusal: PathRefusal,
    },
    /// A file, or the part of it that was asked for, is too long.
    #[error("`{}`: it is more than {max} bytes: ask for fewer lines", path.display())]
    FileTooLong {
        /// The file.
        path: PathBuf,
        /// Maximum number of bytes that are read.
        max: usize,
    },
    /// The first line that was asked for is too far from the beginning.
    #[error("`{}`: that line is more than {max} bytes away", path.display())]
    LineTooFar {
        /// The file.
        path: PathBuf,
        /// Maximum number of bytes that are skipped before the line.
        max: u64,
    },
    /// The file holds something else than text.
    #[error("`{}`: it is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    /// Reading failed half-way.
    #[error("`{}`: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// We have no thread to do it on.
    #[error("{0}")]
    NotTried(io::Error),

    // Terminals.
    /// No environment can hold it.
    #[error("`{}` is no variable", .0.escape_debug())]
    NoVariable(String),
    /// The system takes no such argument.
    #[error("a command holds no NUL")]
    Nul,
    /// Terminals are open until the agent releases them.
    #[error("there are {0} terminals that are not released")]
    TooManyTerminals(usize),
    /// There is none of this name, or no longer.
    #[error("there is no terminal `{}`", .0.escape_debug())]
    NoTerminal(String),
    /// A program that is named without a folder is nowhere.
    #[error("`{0}`: No such file on the search path")]
    NotOnSearchPath(String),
    /// Commands are shown, so their path must be text.
    #[error("`{}` is not a path that is text", .0.display())]
    PathNotText(PathBuf),
    /// The command could be found and not started.
    #[error("`{title}` cannot be started: {why}")]
    NotStarted {
        /// The command.
        title: String,
        /// Reason that the guard reports.
        why: String,
    },
    /// We could not even try to start it.
    #[error("`{program}` cannot be started: {error}")]
    StartFailed {
        /// The program.
        program: String,
        /// Error of the system.
        error: io::Error,
    },
}

impl RequestError {
    /// A path is not served.
    pub fn of_path(path: &Path, refusal: PathRefusal) -> Self {
        Self::Path { path: path.to_owned(), refusal }
    }

    /// The code of the error.
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
