//! Shared by all Unix systems: the parent, and the thread that watches.
//!
//! Owns: the identity of the parent, and starting the thread.
//! Never: waits.

use std::fs::File;
use std::io::{self, PipeReader};
use std::thread;
use std::time::Duration;

use rustix::process::{getppid, Pid};

#[cfg(any(feature = "portable", not(target_os = "linux")))]
use super::events::watch;
#[cfg(all(target_os = "linux", not(feature = "portable")))]
use super::linux::watch;
use super::LeaveReason;

/// Interval of checks for the parent where the system cannot report its end.
pub(super) const PARENT_EVERY: Duration = Duration::from_secs(1);

/// Process that has started this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent(pub(super) Pid);

/// Returns the parent process, unless that is the init process, which adopts orphans.
pub fn parent() -> Option<Parent> {
    getppid().filter(|parent| !parent.is_init()).map(Parent)
}

/// Starts a thread that watches the reader of `stdout` and the parent, if given. Ends when the
/// other end of `stop` is closed, or when `report` returns false.
///
/// # Errors
/// When the system starts no thread.
pub fn start(
    stdout: Option<File>,
    parent: Option<Parent>,
    stop: Option<PipeReader>,
    report: impl Fn(LeaveReason) -> bool + Send + 'static,
) -> io::Result<()> {
    let work = move || {
        if let Err(error) = watch(stdout.as_ref(), parent, stop.as_ref(), &report) {
            tracing::error!(%error, "neither the reader of stdout nor the parent can be watched");
        }
    };
    thread::Builder::new().name("watch".to_owned()).spawn(work).map(drop)
}

/// Reports the end of the parent, once. Returns false if the receiver is gone.
pub(super) fn check_parent(parent: &mut Option<Parent>, report: &impl Fn(LeaveReason) -> bool) -> bool {
    let gone = parent.is_some_and(|parent| getppid() != Some(parent.0));
    if gone {
        *parent = None;
    }
    !gone || report(LeaveReason::Parent)
}

pub(super) fn report_closed_reader(report: &impl Fn(LeaveReason) -> bool) {
    if !report(LeaveReason::Reader) {
        tracing::debug!("the end of the parent or the reader was ignored: the process is leaving");
    }
}
