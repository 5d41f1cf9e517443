//! Why the store cannot be used.
//!
//! Owns: the one list of reasons, what people are told of each, and which of them are for good.
//! Never: decides what follows.

use std::io;

use rusqlite::ErrorCode;
use rustix::process::{getrlimit, Resource};

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Database of a newer version of this program.
    #[error("the store {0} was written by a newer version of this program (schema {1}); it was not touched")]
    Newer(String, i64),
    /// Database of another program.
    #[error("{0} is not a store of this program; it was not touched")]
    Foreign(String),
    /// A row is not what was written.
    #[error("{0} is damaged: it is not what was written")]
    Damaged(String),
    /// A store was here, and is not any more.
    #[error(
        "{0} {1}, although sessions were kept in it; nothing was changed: put a copy of it back, or remove the folder to begin anew"
    )]
    Lost(String, &'static str),
    /// Damage that cannot be repaired.
    #[error(
        "{0}; nothing was removed: `ahp-sidecar sessions list` and `sessions export URI` still read what can be read, and `sessions restore --from FILE` brings it into another folder"
    )]
    BeyondMending(Box<StoreError>),
    /// Damage that cannot be repaired, and hides all sessions.
    #[error(
        "{0}; no session can be found in it any more, and nothing was removed: put a copy of it back, or remove the folder to begin anew"
    )]
    BeyondReading(Box<StoreError>),
    /// The mark beside it cannot be read or written.
    #[error("{0} cannot be read or written: {1}{limit}", limit = file_limit_now())]
    Mark(String, io::Error),
    /// Taking up what ran in a session has ended so many processes in a row that it is not tried
    /// any more.
    #[error(
        "the host has ended {0} times in a row while the turn that ran in it was taken up, so it is left alone; \
        `--quarantine-after 0` has it tried again, and `ahp-sidecar sessions export` writes down what is in it"
    )]
    LeftAlone(u32),
    /// A file of it was moved or removed while it was open.
    #[error("{0} is gone: it was moved or removed while it was in use ({1})")]
    Gone(String, io::Error),
    /// Anything else that SQLite says.
    #[error("the store failed: {0}{limit}", limit = file_limit(.0))]
    Sqlite(#[from] rusqlite::Error),
}

impl StoreError {
    /// Returns whether the database is damaged.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged(_) => true,
            // The last is said of a table or an index that is missing.
            Self::Sqlite(error) => {
                is_unreadable(error)
                    || matches!(error, rusqlite::Error::SqlInputError { .. })
                    || error.sqlite_error_code() == Some(ErrorCode::Unknown)
            }
            _ => false,
        }
    }

    /// Returns whether the failure is permanent: not so where there may be room again, or a file
    /// may be unlocked or come back.
    pub fn is_for_good(&self) -> bool {
        match self {
            Self::Gone(..) | Self::Mark(..) => false,
            Self::Sqlite(error) => !matches!(
                error.sqlite_error_code(),
                Some(
                    ErrorCode::DiskFull
                        | ErrorCode::SystemIoFailure
                        | ErrorCode::CannotOpen
                        | ErrorCode::DatabaseBusy
                        | ErrorCode::DatabaseLocked
                        | ErrorCode::FileLockingProtocolFailed
                        | ErrorCode::OutOfMemory
                        | ErrorCode::OperationInterrupted
                        | ErrorCode::OperationAborted
                )
            ),
            _ => true,
        }
    }

    /// Names the damaged object in an error about damage.
    pub(super) fn on(self, what: impl Fn() -> String) -> Self {
        match self {
            Self::Damaged(row) => Self::Damaged(format!("{row}, of {},", what())),
            Self::Sqlite(error) => damaged_if(what)(error),
            other => other,
        }
    }
}

/// Returns a hint for an error of SQLite, which does not tell a failing disk from a file that may
/// not grow.
fn file_limit(error: &rusqlite::Error) -> String {
    let may_be_it = matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::DiskFull | ErrorCode::CannotOpen)
    );
    if may_be_it {
        file_limit_now()
    } else {
        String::new()
    }
}

fn file_limit_now() -> String {
    match getrlimit(Resource::Fsize).current {
        Some(bytes) => {
            format!(" (no file of this process may be larger than {bytes} bytes, see `ulimit -f`)")
        }
        None => String::new(),
    }
}

/// Names the damaged object in an error of SQLite that means damage.
pub(super) fn damaged_if(what: impl Fn() -> String) -> impl Fn(rusqlite::Error) -> StoreError {
    move |error| if is_unreadable(&error) { StoreError::Damaged(what()) } else { StoreError::Sqlite(error) }
}

/// Returns whether a page or a value is not what was written.
fn is_unreadable(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        || matches!(
            error,
            rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::Utf8Error(..)
                | rusqlite::Error::InvalidColumnType(..)
        )
}
