//! Limit of open files of this process.
//!
//! Owns: seeing at the start whether those are enough, and saying so if not (later it would be told
//! of whatever happens to be opened last, or end a library that does not expect it); having as many
//! as the system allows; and a spare one, so that a connection can be told that there are no more.
//! Never: lets a program that we start have more than we were given: some close all that they may
//! have, one by one; gives a connection the last files.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

/// Number of files that a host opens before a client says anything, and some more.
const HOST: usize = 40;

/// Number of files below the limit that connections leave to others: the store, which otherwise
/// could commit nothing, git, agents and terminals.
const MARGIN: u64 = 24;

/// Number of files that maintaining stored sessions opens.
const SESSIONS: usize = 12;

/// Too few files may be opened.
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

/// Returns which limit of the system an error comes from, to be put behind a message; nothing where
/// it comes from none.
pub fn limit_behind(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => " (see `ulimit -n`)",
        Some(Errno::AGAIN) => " (see `ulimit -u`)",
        _ => "",
    }
}

/// Returns the error of a thread that cannot be started.
pub fn no_thread(error: io::Error) -> anyhow::Error {
    let limit = limit_behind(&error);
    anyhow::Error::new(error).context(format!("a thread cannot be started{limit}"))
}

/// Checks that a host can open as many files as it needs, once it has raised its limit.
///
/// # Errors
/// When it cannot.
pub fn expect_for_host() -> Result<(), TooFewDescriptors> {
    let given = raise();
    let enough = expect(HOST);
    if let Some(given) = given {
        lower(given);
    }
    enough
}

/// Checks that as many files can be opened as are needed for looking after stored sessions.
///
/// # Errors
/// When they cannot.
pub fn expect_for_sessions() -> Result<(), TooFewDescriptors> {
    expect(SESSIONS)
}

fn expect(wanted: usize) -> Result<(), TooFewDescriptors> {
    let mut open = Vec::with_capacity(wanted);
    for there in 0..wanted {
        match File::open("/dev/null") {
            Ok(file) => open.push(file),
            // A system without that file has other troubles.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(TooFewDescriptors { there, wanted, limit: limit(), error }),
        }
    }
    Ok(())
}

fn limit() -> String {
    getrlimit(Resource::Nofile).current.map_or("any number".to_owned(), |files| files.to_string())
}

/// Raises the soft limit of open files to the hard one. Returns the limit that this process was
/// given, which the programs that it starts are to have; `None` if it has not changed.
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

/// Lowers the soft limit of open files to what a process was given that has raised it.
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

/// Returns whether the file of a new connection leaves fewer files than others need. A new file has
/// the lowest number that was free, so all below it are open.
pub fn leaves_too_few(connection: &impl AsRawFd) -> bool {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return false };
    let open = u64::try_from(connection.as_raw_fd()).map_or(0, |number| number + 1);
    open + MARGIN.min(limit / 4) > limit
}

/// Returns a sentence for a client that is refused because no more files can be opened.
pub fn exhausted() -> String {
    format!(
        "the host (process {}) cannot take one more connection: it can open no more files ({} at once, see `ulimit -n`); \
         close another window, or start the host anew with a higher limit",
        std::process::id(),
        limit()
    )
}

/// File that is kept open to make room for a connection that is accepted only to be told why it is
/// refused.
#[derive(Debug)]
pub struct SpareFile(Option<File>);

impl SpareFile {
    /// Opens it.
    pub fn open() -> Self {
        // Without one, connections that come too many wait until there is room.
        Self(File::open("/dev/null").ok())
    }

    /// Makes room for one connection where this error says that there is none; false if there is
    /// none to be made.
    pub fn make_room(&mut self, error: &io::Error) -> bool {
        are_exhausted(error) && self.0.take().is_some()
    }

    /// Takes the room back, when the connection is closed.
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
