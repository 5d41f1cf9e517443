//! The leader of a session: this program in a hidden mode, for the moment between the guard of a
//! program that is typed into and that program, into which it turns.
//!
//! Owns: that the program leads a session whose terminal is its own, and that a program which
//! cannot be started is told of as such.
//! Never: starts another process, or says anything in the terminal.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{ioctl_tiocsctty, setsid, Pid};

use crate::backend::acp::guard::{close_output, leave_folder, number_of};

/// The exit status of a leader that has not turned into its command.
const NOT_STARTED: u8 = 127;

/// Turns into a command, as the leader of a session whose terminal is our stdin and stdout. Why
/// that is not possible is said on stderr, which closes when the command runs.
pub fn run(command: &[OsString]) -> u8 {
    if let Ok(told) = io::stderr().as_fd().try_clone_to_owned() {
        let error = lead(command);
        // The guard waits for it, or is gone.
        std::fs::File::from(told).write_all(error.to_string().as_bytes()).unwrap_or_default();
    }
    NOT_STARTED
}

/// Turns into a command; comes back only with why it could not.
fn lead(command: &[OsString]) -> io::Error {
    let begun = || -> io::Result<Command> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        setsid()?;
        ioctl_tiocsctty(io::stdin())?;
        rustix::stdio::dup2_stderr(io::stdin())?;
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(command)
    };
    match begun() {
        Ok(mut command) => command.exec(),
        Err(error) => error,
    }
}

/// Starts a command that has the terminal which is our stdout, by way of `leader`.
///
/// # Errors
/// When it cannot be started.
pub(super) fn start(mut leader: Command, command: &[OsString]) -> io::Result<Pid> {
    let (mut told, tells) = io::pipe()?;
    let terminal = || io::stdout().as_fd().try_clone_to_owned();
    leader.arg("--").args(command);
    leader.stdin(Stdio::from(terminal()?)).stdout(Stdio::from(terminal()?)).stderr(tells);
    let mut started = leader.spawn()?;
    leave_folder();
    // Nobody but the command has the terminal, and the other end of what is told.
    drop(leader);
    close_output()?;
    let mut why = String::new();
    told.read_to_string(&mut why)?;
    if why.is_empty() {
        return number_of(&started);
    }
    started.wait()?;
    Err(io::Error::other(why))
}
