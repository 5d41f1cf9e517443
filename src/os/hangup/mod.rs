//! Detection of the end of the reader of stdout, and of the parent process.
//!
//! Owns: the reasons to leave ([`LeaveReason`]), and noticing that reader or parent is gone, even
//! while nothing is written and a sibling process holds the pipe open.
//! Never: decides about the consequences.

#[cfg(all(unix, any(feature = "portable", not(target_os = "linux"))))]
mod events;
#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod linux;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use self::unix as half;
#[cfg(windows)]
use self::windows as half;

pub use self::half::{parent, start, Parent};

/// Reason why the process must leave.
#[derive(Debug)]
pub enum LeaveReason {
    /// Closed reader of stdout.
    Reader,
    /// End of the parent process.
    Parent,
    /// Signal or other request, by its name in the log.
    Asked(&'static str),
}

#[cfg(test)]
mod tests;
