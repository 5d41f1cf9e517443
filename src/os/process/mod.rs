//! Programs that end with this process, with everything that they start.
//!
//! On Unix, each program has a guard: this program in another mode, as its parent. On Windows, the
//! system ends all processes of a job when its last handle is closed.
//!
//! Owns: starting agents, commands and programs in terminals; ending all of their processes; and
//! how each of them has ended.
//! Never: reads or writes the output of a program.

#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod linux;
#[cfg(all(unix, any(feature = "portable", not(target_os = "linux"))))]
mod portable;
mod reading;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};

pub use self::reading::{read_both, PipeName};
#[cfg(unix)]
use self::unix as half;
#[cfg(windows)]
use self::windows as half;

#[cfg(unix)]
pub use self::half::lifeline;
pub use self::half::{
    arguments, leave_session, run_if_asked, signal_name, signal_of, AgentPipe, Control, Guard, GuardProgram,
    Lifeline, GUARD,
};

/// Time for an agent to exit after its stdin has ended, and for any program to exit when asked to.
pub const EXIT_GRACE: Duration = Duration::from_millis(500);

/// Offset from the number of a fatal signal to an exit status, as in shells.
pub const BY_SIGNAL: i32 = 128;

/// Kind of a guarded program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarded {
    /// Agent, which may exit by itself when its stdin ends.
    Agent,
    /// Command without a terminal and without stdin.
    Command,
    /// Program in a pseudo terminal.
    InTerminal,
}

/// Report on a guarded command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardReport {
    /// Start of the command.
    Started,
    /// Reason for which the command could not be started.
    NotStarted(String),
    /// Exit status of the command.
    Exited(u32),
    /// Number of the signal that ended the command.
    Killed(i32),
}

/// Stdin of an agent. Dropping it ends the agent, because the lifeline ends too.
#[derive(Debug)]
pub struct AgentStdin {
    /// Pipe to the agent.
    pub pipe: AgentPipe,
    /// Handle whose end is the end of the agent.
    pub lifeline: Lifeline,
}

/// Output of a command.
#[derive(Debug)]
pub struct CommandOutput(half::OutputPipe);

impl AsyncRead for CommandOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}
