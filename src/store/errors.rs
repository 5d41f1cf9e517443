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
    #[error("the store {0} was written by a newer version of this program (schema {1}); it was not changed. Update ahp-sidecar, or choose another folder with `--state-dir`")]
    Newer(String, i64),
    /// The database belongs to another program.
    #[error(
        "{0} is not a store of this program; it was not changed. Choose another folder with `--state-dir`"
    )]
    Foreign(String),
    /// A row differs from what was written.
    #[error("{0} is damaged")]
    Damaged(String),
    /// The database existed and is missing or empty now.
    #[error(
        "the database {0} {1}, although sessions were stored in it. Nothing was changed. Restore the file from a backup, or remove its folder to start without sessions"
    )]
    Lost(String, &'static str),
    /// Damage that cannot be repaired, and leaves some sessions readable.
    #[error(
        "the store cannot be repaired: {0}. Nothing was removed. `ahp-sidecar sessions list` and `sessions export URI` still read the undamaged sessions; `sessions restore --from FILE` imports an export into another state folder"
    )]
    BeyondMending(Box<StoreError>),
    /// Damage that cannot be repaired and hides all sessions.
    #[error(
        "the store cannot be repaired, and no session in it is readable: {0}. Nothing was removed. Restore the database from a backup, or remove the state folder to start without sessions"
    )]
    BeyondReading(Box<StoreError>),
    /// The mark beside the database cannot be read or written.
    #[error("{0} cannot be read or written: {1}{limit}", limit = file_limit_now())]
    Mark(String, io::Error),
    /// Restoring the session has ended so many consecutive processes that it is not tried again.
    #[error(
        "the session is quarantined: the host has ended {0} times in a row while it restored the interrupted turn. \
        `--quarantine-after 0` restores the session anyway; `ahp-sidecar sessions export` exports it"
    )]
    LeftAlone(u32),
    /// A file of the database was moved or removed while it was open.
    #[error("{0} was moved or removed while the host had it open ({1})")]
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
            Self::Damaged(row) => Self::Damaged(format!("{row} of {}", what())),
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
            format!(" (the file size limit of this process is {bytes} bytes, see `ulimit -f`)")
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
