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

pub use self::half::{receive, take_over, LentFile, LentPipes, StartedHost, HANDS_OVER};

/// Output of the host that this process prints. It gets a message after each part, and closes when
/// all is printed. `None` if the host prints itself.
#[derive(Debug)]
pub struct Printing(Option<Receiver<()>>);

impl Printing {
    /// Waits until all output is printed, or until nothing was printed for `idle`: a terminal may
    /// be stopped (`^S`).
    pub fn finish(self, idle: Duration) {
        let Some(printed) = self.0 else { return };
        loop {
            match printed.recv_timeout(idle) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    return tracing::debug!("the reader of stdout takes too long to read the last lines");
                }
            }
        }
    }
}
