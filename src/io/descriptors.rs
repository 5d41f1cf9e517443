//! Limit of open files of this process.
//!
//! Owns: checking the limit at the start, because running out later would fail whatever is opened
//! next; raising it to the maximum; and a spare file, so that a connection can be refused with a
//! reason when no more files can be opened.
//! Never: passes the raised limit on to child processes, some of which close every possible
//! descriptor, one by one; gives the last files to a connection.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

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

/// Returns a note about the system limit behind an error, to append to a message; empty if none.
pub fn limit_behind(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => " (see `ulimit -n`)",
        Some(Errno::AGAIN) => " (see `ulimit -u`)",
        _ => "",
    }
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
    let given = raise();
    let enough = expect(HOST);
    if let Some(given) = given {
        lower(given);
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
        match File::open("/dev/null") {
            Ok(file) => open.push(file),
            // A system without `/dev/null` has other problems.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(TooFewDescriptors { there, wanted, limit: limit(), error }),
        }
    }
    Ok(())
}

fn limit() -> String {
    getrlimit(Resource::Nofile).current.map_or("any number".to_owned(), |files| files.to_string())
}

/// Raises the soft limit of open files to the hard limit. Returns the original limit, which child
/// processes must get; `None` if the limit has not changed.
pub fn raise() -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    let given = limits.current.filter(|given| limits.maximum.is_none_or(|most| *given < most))?;
    match setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }) {
        Ok(()) => Some(given),
        Err(error) => {
            tracing::debug!(%error, "the limit of open files cannot be raised");
            None
        }
    }
}

/// Lowers the soft limit of open files to the original limit that [`raise`] has returned.
pub fn lower(given: u64) {
    let limits = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(given), ..limits }) {
        tracing::debug!(%error, "the limit of open files cannot be lowered");
    }
}

/// Returns whether an error says that no more files can be opened.
pub fn are_exhausted(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE]
        .iter()
        .any(|exhausted| error.raw_os_error() == Some(exhausted.raw_os_error()))
}

/// Returns whether a new connection leaves fewer files than are reserved. A new file gets the
/// lowest free number, so all lower numbers are in use.
pub fn leaves_too_few(connection: &impl AsRawFd) -> bool {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return false };
    let open = u64::try_from(connection.as_raw_fd()).map_or(0, |number| number + 1);
    open + MARGIN.min(limit / 4) > limit
}

/// Returns the message for a client that is refused because no more files can be opened.
pub fn exhausted() -> String {
    format!(
        "the host (process {}) cannot take one more connection: it can open no more files ({} at once, see `ulimit -n`); \
         close another window, or start the host anew with a higher limit",
        std::process::id(),
        limit()
    )
}

/// File that is closed to make room for a connection that is refused with a reason.
#[derive(Debug)]
pub struct SpareFile(Option<File>);

impl SpareFile {
    /// Opens the spare file. Without one, excess connections wait in the listener's queue.
    pub fn open() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Closes the spare file if this error says that files ran out. Returns whether one is free
    /// now.
    pub fn make_room(&mut self, error: &io::Error) -> bool {
        are_exhausted(error) && self.0.take().is_some()
    }

    /// Reopens the spare file, once the refused connection is closed.
    pub fn reclaim(&mut self) {
        self.0 = self.0.take().or_else(|| File::open("/dev/null").ok());
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn error_names_the_limit_that_it_comes_from() {
        let hint = |errno: Errno| limit_behind(&io::Error::from_raw_os_error(errno.raw_os_error()));
        assert_eq!(hint(Errno::MFILE), " (see `ulimit -n`)");
        assert_eq!(hint(Errno::AGAIN), " (see `ulimit -u`)");
        assert_eq!(hint(Errno::NFILE), "");
        assert_eq!(limit_behind(&io::Error::other("x")), "");
    }
}
