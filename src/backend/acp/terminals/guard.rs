//! The guard of one command in a terminal: this program in its hidden mode, as for an agent, with
//! another end.
//!
//! Its stdin is the lifeline. What comes out of it tells the host what becomes of the command, one
//! line each; when nothing more can come in, by the host's will or with its death, all that
//! descends from the command is asked to leave and then killed. The command reads nothing.
//!
//! A program that is typed into has a terminal of the system's, which is our stdout: it leads a
//! session of its own there, whose members descend from it as all others do.
//!
//! Owns: that nothing of a command outlives its terminal, and telling how it ended by itself. What
//! it has left running goes on until then.
//! Never: reads or writes a byte of the command's.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use rustix::process::{Pid, WaitStatus};

use super::leader;
use crate::backend::acp::guard::{lead, lifeline_to_host, start, wait_for};
use crate::backend::acp::lifeline;

/// News of a command, from its guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardReport {
    /// Start of the command.
    Started,
    /// Reason for which the command cannot be started.
    NotStarted(String),
    /// Exit status of the command.
    Exited(u32),
    /// Number of the signal that ended the command.
    Killed(i32),
}

impl GuardReport {
    fn line(&self) -> String {
        match self {
            Self::Started => "started\n".to_owned(),
            Self::NotStarted(why) => format!("failed {}\n", why.replace('\n', " ")),
            Self::Exited(status) => format!("exited {status}\n"),
            Self::Killed(signal) => format!("killed {signal}\n"),
        }
    }

    /// Parses a line from a guard.
    pub fn of_line(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "started" => Some(Self::Started),
            "failed" => Some(Self::NotStarted(rest.to_owned())),
            "exited" => Some(Self::Exited(rest.parse().ok()?)),
            "killed" => Some(Self::Killed(rest.parse().ok()?)),
            _ => None,
        }
    }
}

/// Starts this command and guards it, until nothing of it is left.
///
/// Its stdin must be the socket to the host.
pub fn run(command: &[OsString]) -> u8 {
    u8::from(guard(|| start(command, Stdio::null())).is_err())
}

/// Guards a program that has the terminal which is our stdout. `leader` is how this program is
/// started as its [leader], before the command.
pub fn run_in_terminal(leader: Command, command: &[OsString]) -> u8 {
    u8::from(guard(|| leader::start(leader, command)).is_err())
}

fn guard(start: impl FnOnce() -> io::Result<Pid>) -> io::Result<()> {
    let mut host = lifeline_to_host()?;
    // The thread is there before the command is: nothing runs that nobody could end.
    let (has_begun, begins) = channel();
    let begun = lead().and_then(|family| {
        let host = host.try_clone()?;
        let ending = thread::Builder::new().spawn(move || {
            if begins.recv().is_ok() {
                lifeline::wait_for_the_end(host);
                family.end();
                std::process::exit(0);
            }
        })?;
        Ok((family, ending, start()?))
    });
    let (family, ending, command) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            host.write_all(GuardReport::NotStarted(error.to_string()).line().as_bytes())?;
            return Err(error);
        }
    };
    // The thread waits for it.
    has_begun.send(()).unwrap_or_default();
    // A host that is gone is noticed there.
    host.write_all(GuardReport::Started.line().as_bytes()).unwrap_or_default();
    let status = wait_for(command)?;
    host.write_all(news_of(status).line().as_bytes()).unwrap_or_default();
    // What it has left behind goes on until it ends, or until the host has enough.
    family.wait(ending);
    Ok(())
}

fn news_of(status: WaitStatus) -> GuardReport {
    let exited = status.exit_status().and_then(|status| u32::try_from(status).ok()).map(GuardReport::Exited);
    exited.or_else(|| status.terminating_signal().map(GuardReport::Killed)).unwrap_or(GuardReport::Exited(0))
}
