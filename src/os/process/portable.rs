//! Unix systems on which no process can adopt orphans: the process group is all that is found.
//!
//! Owns: ending the group of a guard.
//! Never: finds a process that has left the group.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    getpgid, getppid, kill_process_group, setpgid, test_kill_process_group, RawPid, Signal,
};

use super::unix::ProcessTree;
use super::EXIT_GRACE;

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Returns false: a guard cannot adopt orphans.
pub(super) fn adopt_for_guard() -> bool {
    false
}

/// Returns false: the host cannot adopt orphans.
pub(super) fn adopt_for_host() -> bool {
    false
}

/// Asks the group to exit, and kills it if it does not. Returns when it is empty or unkillable.
pub(super) fn end(tree: ProcessTree) {
    // The guard leaves the group, if it can, to survive the signal and report the exit.
    let other = getppid().and_then(|host| getpgid(Some(host)).ok());
    let left = other.is_some_and(|other| setpgid(None, Some(other)).is_ok());
    for signal in [Signal::TERM, Signal::KILL] {
        if kill_process_group(tree.group, signal).is_err() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < EXIT_GRACE {
            if left && test_kill_process_group(tree.group).is_err() {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Does nothing: processes that left the group of a killed guard cannot be found.
pub(super) fn kill_orphans(_is_guard: impl Fn(RawPid) -> bool) {}
