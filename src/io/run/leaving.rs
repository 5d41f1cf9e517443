//! Shutdown of the process.
//!
//! Owns: the consequence of each reason to leave, and the time limits of the shutdown.
//! Never: ends a turn; the core does.

use std::time::Duration;

use tokio::time::Instant;

use super::{Exit, Sidecar};
use crate::host::effects::{Input, Shutdown};
use crate::os::hangup::LeaveReason;

/// Time limit for the last frames after a request to leave.
pub(super) const LEAVE_WITHIN: Duration = Duration::from_millis(1500);

/// Time limit for the agents, which begin to stop when the host does.
pub(super) const AGENTS_WITHIN: Duration = Duration::from_millis(1900);

/// Time limit for closing the store, and for closing the listeners. The next process finishes an
/// incomplete close.
pub(super) const CLOSE_WITHIN: Duration = Duration::from_millis(500);

/// Time limit for closing the store after a request to leave.
const CLOSE_IN_HASTE: Duration = Duration::from_millis(100);

/// Maximum time from a request to leave to the end of the process.
const GONE_WITHIN: Duration = Duration::from_secs(2);
const _: () = assert!(
    LEAVE_WITHIN.as_millis() <= AGENTS_WITHIN.as_millis()
        && AGENTS_WITHIN.as_millis() + CLOSE_IN_HASTE.as_millis() <= GONE_WITHIN.as_millis()
);

/// Reason why a client whose input has ended misses output.
pub(super) const UNSENT_REASON: &str =
    "the store failed until the end: changes that were not yet sent to clients are lost";

/// Returns how long to wait for a blocked file system once everything else has ended.
pub(super) fn file_system_timeout(how: Shutdown) -> Duration {
    match how {
        Shutdown::Drain(limit) => limit,
        Shutdown::Cancel => LEAVE_WITHIN,
    }
}

/// Progress of the process towards its end.
#[derive(Debug, Default)]
pub(super) struct Departure {
    /// Exit that follows as soon as queued output is written.
    pub(super) done: Option<Exit>,
    /// Error with which stdin has ended.
    pub(super) unreadable: Option<std::io::Error>,
    pub(super) input_has_ended: bool,
    /// Set when turns have had their time after the end of stdin, at once if they are cancelled.
    pub(super) is_drained: bool,
    /// Deadline for the end of the loop; `None` until the process was asked to leave, or only a
    /// blocked file system is left to wait for.
    pub(super) by: Option<Instant>,
    /// Deadline for the end of the agents; `None` until they were asked to stop.
    pub(super) agents_by: Option<Instant>,
    /// Set by a second request to leave.
    is_immediate: bool,
}

impl Departure {
    /// Returns whether no more input is handled.
    pub(super) fn has_begun(&self) -> bool {
        self.by.is_some()
    }
}

impl Sidecar {
    /// Handles a reason to leave. Returns the exit if it follows at once.
    pub(super) fn receive_leave_reason(&mut self, loss: LeaveReason) -> Option<Exit> {
        let why = match loss {
            LeaveReason::Reader => return Some(Exit::Done),
            LeaveReason::Parent => "the parent process has ended",
            LeaveReason::Asked(signal) => signal,
        };
        self.leave(why).then_some(Exit::Done)
    }

    /// Begins to leave. Returns true for a second request, which ends the process at once.
    fn leave(&mut self, why: &str) -> bool {
        tracing::info!(why, "leaving");
        if self.departure.has_begun() {
            self.departure.is_immediate = true;
            return true;
        }
        let now = Instant::now();
        self.departure.by = Some(now + LEAVE_WITHIN);
        self.departure.agents_by = Some(now + AGENTS_WITHIN);
        self.feed(Input::Shutdown(Shutdown::Cancel));
        // Runs while queued output is written.
        tokio::spawn(self.agents.stop());
        false
    }

    /// Returns the exit if no work is left. Limits the wait for a blocked file system.
    pub(super) fn finished(&mut self) -> Option<Exit> {
        let written = self.links.iter().all(|link| link.outbox.bytes() == 0);
        let read = self.readers.as_ref().is_none_or(|readers| readers.is_idle());
        let exit = self
            .departure
            .done
            .or(self.idle())
            .filter(|_| self.persistence.is_settled() && read && written)?;
        if self.resources.is_idle() {
            return Some(exit);
        }
        let limit = file_system_timeout(self.options.terms.on_eof);
        self.departure.by = self.departure.by.or(Instant::now().checked_add(limit));
        None
    }

    /// Returns the exit if the host serves fronts, no client is left, and no turn or git job runs.
    pub(super) fn idle(&self) -> Option<Exit> {
        let fronts = self.fronts.as_ref()?;
        let is_idle = fronts.are_gone()
            && self.links.iter().count() == 0
            && self.host.running_turns() == 0
            && self.git.is_idle();
        is_idle.then_some(Exit::Done)
    }

    /// Stops agents, terminals and git with all their child processes.
    pub(super) async fn stop_agents(&mut self) {
        if self.departure.is_immediate {
            return;
        }
        let by = self.departure.agents_by.unwrap_or_else(|| Instant::now() + AGENTS_WITHIN);
        // The guards end these processes even if this times out.
        let all = async { tokio::join!(self.agents.stop(), self.ptys.stop(), self.git.stop()) };
        if tokio::time::timeout_at(by, all).await.is_err() {
            tracing::warn!("the host leaves before its agents and terminals have ended: they take too long");
        }
    }

    pub(super) fn close_store(&mut self) {
        if self.departure.is_immediate {
            return;
        }
        let was_asked = self.departure.has_begun();
        self.persistence.close(if was_asked { CLOSE_IN_HASTE } else { CLOSE_WITHIN });
    }
}
