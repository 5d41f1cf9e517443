//! stdin and stdout, as they are lent to a host.
//!
//! A pipe, a socket or a file is lent itself, a terminal is not. Terminals belong to the jobs of
//! their session, and the host is in another one: it could read input while the front is stopped
//! (`^Z`) or in the background, when that is meant for the shell. Therefore the host gets a pipe,
//! and the front copies the bytes: while the front is stopped, the terminal is neither read nor
//! written.
//!
//! Owns: lending them, receiving them, and handing the state folder over to a new host.
//! Never: interprets a byte.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

#[cfg(unix)]
use self::unix as half;
#[cfg(windows)]
use self::windows as half;

pub use self::half::{hand_over, receive, LentFile, LentPipes};

/// Signal that all output of the host is printed; `None` if stdout is no terminal.
#[derive(Debug)]
pub struct Printing(Option<Receiver<()>>);

impl Printing {
    /// Waits until all output is printed, up to `within`: a terminal may be stopped (`^S`).
    pub fn finish(self, within: Duration) {
        if let Some(printed) = self.0 {
            // The channel carries no message: it closes when the thread ends.
            if printed.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
                tracing::debug!("the terminal takes too long to print the last lines");
            }
        }
    }
}
