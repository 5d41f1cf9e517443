//! Errors of the store.
//!
//! Owns: the list of errors, their messages, and which of them are permanent.
//! Never: decides on the consequences.

use std::io;

use rusqlite::ErrorCode;

use crate::os::write::file_size_max;

/// Reason why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database belongs to a newer version of this program.
    #[error("the store {0} was written by a newer version of this program (schema {1}); it was not touched")]
    Newer(String, i64),
    /// The database belongs to another program.
    #[error("{0} is not a store of this program; it was not touched")]
    Foreign(String),
    /// A row differs from what was written.
    #[error("{0} is damaged: it is not what was written")]
    Damaged(String),
    /// The database existed and is missing or empty now.
    #[error(
        "{0} {1}, although sessions were kept in it; nothing was changed: put a copy of it back, or remove the folder to begin anew"
    )]
    Lost(String, &'static str),
    /// Damage that cannot be repaired, and leaves some sessions readable.
    #[error(
        "{0}; nothing was removed: `ahp-sidecar sessions list` and `sessions export URI` still read what can be read, and `sessions restore --from FILE` brings it into another folder"
    )]
    BeyondMending(Box<StoreError>),
    /// Damage that cannot be repaired and hides all sessions.
    #[error(
        "{0}; no session can be found in it any more, and nothing was removed: put a copy of it back, or remove the folder to begin anew"
    )]
    BeyondReading(Box<StoreError>),
    /// The mark beside the database cannot be read or written.
    #[error("{0} cannot be read or written: {1}{limit}", limit = file_limit_now())]
    Mark(String, io::Error),
    /// Restoring the session has ended so many consecutive processes that it is not tried again.
    #[error(
        "the host has ended {0} times in a row while the turn that ran in it was taken up, so it is left alone; \
        `--quarantine-after 0` has it tried again, and `ahp-sidecar sessions export` writes down what is in it"
    )]
    LeftAlone(u32),
    /// A file of the database was moved or removed while it was open.
    #[error("{0} is gone: it was moved or removed while it was in use ({1})")]
    Gone(String, io::Error),
    /// Other error of SQLite.
    #[error("the store failed: {0}{limit}", limit = file_limit(.0))]
    Sqlite(#[from] rusqlite::Error),
}

impl StoreError {
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged(_) => true,
            // SQLite reports `Unknown` and SQL input errors for a missing table or index.
            Self::Sqlite(error) => {
                is_unreadable(error)
                    || matches!(error, rusqlite::Error::SqlInputError { .. })
                    || error.sqlite_error_code() == Some(ErrorCode::Unknown)
            }
            _ => false,
        }
    }

    /// Returns whether the failure is permanent. A full disk, or a locked or missing file, is not.
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

/// Returns a hint about the file size limit, which SQLite does not distinguish from a failing disk.
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
    match file_size_max() {
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
