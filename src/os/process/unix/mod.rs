//! Unix: guards, which are this program in another mode.
//!
//! Owns: the parts that the host uses.
//! Never: knows how descendants of a guard are found: that differs between Unix systems.

mod guard;
mod guards;
pub mod lifeline;
mod pipes;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

#[cfg(all(target_os = "linux", not(feature = "portable")))]
use super::linux as half;
#[cfg(any(feature = "portable", not(target_os = "linux")))]
use super::portable as half;

pub use self::guard::{arguments, run_if_asked, GUARD};
pub(super) use self::guard::{kill_group, leave_group, ProcessTree, POLL_INTERVAL};
pub use self::guards::{Guard, GuardProgram};
pub use self::pipes::{AgentPipe, Control, Lifeline, OutputPipe};

/// Makes this process the leader of a session and a group of its own: signals to the group of the
/// process that has started it do not reach it.
///
/// # Errors
/// When it leads a group already.
pub fn leave_session() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Returns the number of the signal that ended a process.
pub fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// Returns the name of a signal, such as `SIGKILL`.
pub fn signal_name(signal: i32) -> String {
    // The standard library formats the name: `signal: 9 (SIGKILL)`.
    let how = ExitStatus::from_raw(signal).to_string();
    let name = how.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    name.map_or_else(|| format!("signal {signal}"), |(name, _)| name.to_owned())
}
