//! Limit of open files of this process.
//!
//! Owns: checking the limit at the start, because running out later would fail whatever is opened
//! next; and a spare file, so that a connection can be refused with a reason when no more files can
//! be opened.
//! Never: gives the last files to a connection.

use std::fs::File;
use std::io;

use crate::os::limits::{self, are_files_exhausted, files_up_to, limit_behind, placeholder, NumberedFile};

/// Number of files that a host opens before any client connects, with a margin.
const HOST: usize = 40;

/// Number of files reserved for the store (which else could not commit), git, agents and terminals.
const MARGIN: u64 = 24;

/// Number of files that a command for stored sessions opens.
const SESSIONS: usize = 12;

/// Error: too few files can be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "only {there} more files can be opened ({error}; {limit} in all, see `ulimit -n`), and at least {wanted} are needed"
)]
pub struct TooFewDescriptors {
    there: usize,
    wanted: usize,
    limit: String,
    error: io::Error,
}

/// Returns the error for a thread that cannot be started.
pub fn no_thread(error: io::Error) -> anyhow::Error {
    let limit = limit_behind(&error);
    anyhow::Error::new(error).context(format!("a thread cannot be started{limit}"))
}

/// Checks that a host can open enough files once it has raised its limit.
///
/// # Errors
/// When it can open too few.
pub fn expect_for_host() -> Result<(), TooFewDescriptors> {
    let given = limits::raise();
    let enough = expect(HOST);
    if let Some(given) = given {
        limits::lower(given);
    }
    enough
}

/// Checks that a command for stored sessions can open enough files.
///
/// # Errors
/// When it can open too few.
pub fn expect_for_sessions() -> Result<(), TooFewDescriptors> {
    expect(SESSIONS)
}

fn expect(wanted: usize) -> Result<(), TooFewDescriptors> {
    let mut open = Vec::with_capacity(wanted);
    for there in 0..wanted {
        match placeholder() {
            Ok(file) => open.push(file),
            // A system without such a file has other problems.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(TooFewDescriptors { there, wanted, limit: limit(), error }),
        }
    }
    Ok(())
}

fn limit() -> String {
    limits::current().map_or("any number".to_owned(), |files| files.to_string())
}

/// Returns whether a new connection leaves fewer files than are reserved.
pub fn leaves_too_few(connection: &impl NumberedFile) -> bool {
    let Some(limit) = limits::current() else { return false };
    files_up_to(connection) + MARGIN.min(limit / 4) > limit
}

/// Returns the message for a client that is refused because no more files can be opened.
pub fn exhausted() -> String {
    let why = match limits::current() {
        Some(files) => format!("it can open no more files ({files} at once, see `ulimit -n`)"),
        None => "the system has too many open files".to_owned(),
    };
    format!(
        "the host (process {}) cannot take one more connection: {why}; close another window, or start the host anew \
         with a higher limit",
        std::process::id()
    )
}

/// File that is closed to make room for a connection that is refused with a reason.
#[derive(Debug)]
pub struct SpareFile(Option<File>);

impl SpareFile {
    /// Opens the spare file. Without one, excess connections wait in the listener's queue.
    pub fn open() -> Self {
        Self(placeholder().ok())
    }

    /// Closes the spare file if this error says that files ran out. Returns whether one is free
    /// now.
    pub fn make_room(&mut self, error: &io::Error) -> bool {
        are_files_exhausted(error) && self.0.take().is_some()
    }

    /// Reopens the spare file, once the refused connection is closed.
    pub fn reclaim(&mut self) {
        self.0 = self.0.take().or_else(|| placeholder().ok());
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn only_exhausted_files_are_a_reason_to_make_room() {
        let mut spare = SpareFile::open();
        assert!(!spare.make_room(&io::ErrorKind::ConnectionAborted.into()));
        let exhausted = io::Error::from_raw_os_error(Errno::MFILE.raw_os_error());
        assert!(spare.make_room(&exhausted) && !spare.make_room(&exhausted));
        spare.reclaim();
        assert!(spare.make_room(&exhausted));
    }
}
