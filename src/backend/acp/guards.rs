//! The host's side of its guards.
//!
//! Owns: starting guards, and acting for a guard that was stopped or killed by its program. Where
//! the system supports it, the host adopts the processes that a killed guard leaves behind, so that
//! it can find them.
//! Never: knows which program a guard has started.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{kill_process, kill_process_group, Pid, RawPid, Signal};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::signal::unix::{signal, SignalKind};
use tokio_util::sync::CancellationToken;

use super::blocking::on_a_thread;
use super::guard;

/// Time until a stopping guard is killed: it first asks its processes to exit, then kills them.
const GUARD_WITHIN: Duration = guard::EXIT_GRACE.saturating_mul(3);

/// Command line that starts guards, with the set of started guards.
#[derive(Debug, Clone)]
pub struct GuardProgram {
    path: PathBuf,
    arguments: Vec<String>,
    started: Arc<StartedGuards>,
}

/// Guards that run, or that have ended and were not waited for yet.
#[derive(Debug, Default)]
struct StartedGuards {
    guards: Mutex<BTreeSet<RawPid>>,
    /// Set when this process adopts orphans: a child that is not a guard was left behind by one.
    adopts: bool,
    /// Lock held while orphans are killed.
    #[cfg(target_os = "linux")]
    ending: Mutex<()>,
}

impl GuardProgram {
    /// Creates a starter of guards from this program's path and its arguments before the command.
    pub fn new(path: PathBuf, arguments: Vec<String>) -> Self {
        Self { path, arguments, started: Arc::default() }
    }

    /// Makes this process adopt what a killed guard leaves behind. Has no effect if this process
    /// has children already, from an earlier program in the same process.
    #[must_use]
    pub fn adopting(self) -> Self {
        Self {
            started: Arc::new(StartedGuards { adopts: adopt_orphans(), ..StartedGuards::default() }),
            ..self
        }
    }

    /// Returns the path of this program.
    pub fn program(&self) -> &std::path::Path {
        &self.path
    }

    /// Returns a command that starts a guard.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        command
    }

    /// Starts a guard in a group of its own; returns also the host's end of its lifeline. Other
    /// pipes and files given to `command` are closed on the host's side.
    ///
    /// # Errors
    /// When this program cannot be started again.
    pub fn start(&self, mut command: Command) -> io::Result<(Guard, UnixStream)> {
        let (control, lifeline) = Socket::pair()?;
        control.set_nonblocking(true)?;
        let control = UnixStream::from_std(control)?;
        command.stdin(OwnedFd::from(lifeline)).process_group(0);
        // Locked until the child is listed, so that it is not mistaken for an orphan.
        let mut guards = self.started.guards();
        let child = command.spawn().map_err(|error| {
            if error.kind() == io::ErrorKind::ArgumentListTooLong {
                // The argument list of the guarded command is too long as well.
                return error;
            }
            let (name, path) = (env!("CARGO_PKG_NAME"), self.path.display());
            let why =
                format!("{name} cannot start its own program once more, `{path}`, as the guard: {error}");
            io::Error::new(error.kind(), why)
        })?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        guards.extend(pid.map(Pid::as_raw_pid));
        drop(guards);
        Ok((Guard { child, pid, started: Arc::clone(&self.started) }, control))
    }
}

/// Makes this process adopt orphaned descendants, where the system supports it.
fn adopt_orphans() -> bool {
    #[cfg(target_os = "linux")]
    {
        use super::descendants::{can_be_found, ours, Children};
        let childless = can_be_found() && ours(&Children::snapshot()).is_empty();
        childless && rustix::process::set_child_subreaper(Some(rustix::process::getpid())).is_ok()
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Guard that was started.
#[derive(Debug)]
pub struct Guard {
    /// Process of the guard; its pipes may be taken.
    pub child: Child,
    pid: Option<Pid>,
    started: Arc<StartedGuards>,
}

impl Guard {
    /// Waits as [`Self::ended`] does, and resumes the guard whenever it is stopped.
    ///
    /// # Errors
    /// When the guard's exit status is unknown, or when the signal handler cannot be installed.
    pub async fn keep_running(&mut self, stopped: &CancellationToken) -> io::Result<ExitStatus> {
        let (pid, started) = (self.pid, Arc::clone(&self.started));
        let mut of_children = signal(SignalKind::child())?;
        let mut ended = std::pin::pin!(self.ended(stopped));
        loop {
            tokio::select! {
                biased;
                status = &mut ended => return status,
                // Running guards ignore the signal. No other process has the number of a listed
                // guard.
                Some(()) = of_children.recv() => {
                    let pid = pid.filter(|pid| started.guards().contains(&pid.as_raw_pid()));
                    if let Some(Err(error)) = pid.map(|pid| kill_process(pid, Signal::CONT)) {
                        tracing::debug!(%error, "a guard cannot be resumed");
                    }
                }
            }
        }
    }

    /// Waits until the guard and all of its processes have ended, soon after `stopped` is
    /// cancelled. Returns the guard's exit status.
    ///
    /// # Errors
    /// When the exit status is unknown.
    pub async fn ended(&mut self, stopped: &CancellationToken) -> io::Result<ExitStatus> {
        let overdue = async {
            stopped.cancelled().await;
            tokio::time::sleep(GUARD_WITHIN).await;
        };
        let status = tokio::select! {
            status = self.child.wait() => status,
            () = overdue => {
                // The guard is not reaped yet, so the group still has its number.
                self.kill_group();
                self.child.wait().await
            }
        };
        if let Some(pid) = self.pid.filter(|_| status.is_ok()) {
            self.started.guards().remove(&pid.as_raw_pid());
        }
        if status.as_ref().is_ok_and(|status| status.code().is_none()) {
            // The guard was killed. The group keeps its number while it has members.
            self.kill_group();
        }
        let started = Arc::clone(&self.started);
        if let Err(error) = on_a_thread(move || started.kill_orphans()).await {
            tracing::warn!(%error, "processes that a guard may have left behind cannot be looked for");
        }
        status
    }

    fn kill_group(&self) {
        if let Some(Err(error)) = self.pid.map(|pid| kill_process_group(pid, Signal::KILL)) {
            tracing::debug!(%error, "the process group of a guard cannot be killed: nothing is left of it");
        }
    }
}

impl StartedGuards {
    fn guards(&self) -> MutexGuard<'_, BTreeSet<RawPid>> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the orphans of killed guards, with all of their descendants.
    #[cfg(target_os = "linux")]
    fn kill_orphans(&self) {
        use super::descendants::{self, Children};
        if !self.adopts {
            return;
        }
        let _one = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let left_behind = |children: &Children| {
            let guards = self.guards();
            let mut all = descendants::ours(children);
            all.retain(|child| !guards.contains(child));
            all
        };
        let reap = || {
            for child in left_behind(&Children::snapshot()).into_iter().filter_map(Pid::from_raw) {
                // A process that still runs is found again by the next search.
                rustix::process::waitpid(Some(child), rustix::process::WaitOptions::NOHANG)
                    .map(drop)
                    .unwrap_or_default();
            }
        };
        if !descendants::kill(left_behind, reap, guard::EXIT_GRACE) {
            tracing::warn!("a process that an agent started cannot be killed");
        }
    }

    /// Does nothing: processes that left the group of a killed guard cannot be found.
    #[cfg(not(target_os = "linux"))]
    fn kill_orphans(&self) {
        debug_assert!(!self.adopts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_was_moved_is_not_taken_for_what_it_guards() {
        let program = GuardProgram::new("/no/such/program".into(), Vec::new());
        let error = program.start(program.command()).unwrap_err().to_string();
        let ours = "ahp-sidecar cannot start its own program once more, `/no/such/program`";
        assert!(error.starts_with(ours), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn who_adopts_nobody_kills_none_of_its_children() {
        let program = GuardProgram::new("true".into(), Vec::new());
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (mut guard, _lifeline) = program.start(program.command()).unwrap();
        assert!(guard.ended(&CancellationToken::new()).await.unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
