//! The host's side of its guards.
//!
//! Owns: starting guards, and acting for a guard that was stopped or killed by its program. Where
//! the system supports it, the host adopts the processes that a killed guard leaves behind, so that
//! it can find them.
//! Never: knows which program a guard has started.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::{kill_process, kill_process_group, Pid, RawPid, Signal};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::signal::unix::{signal, SignalKind};
use tokio_util::sync::CancellationToken;

use super::pipes::Control;
use super::{guard, half, lifeline};
use crate::os::blocking::on_a_thread;
use crate::os::process::{AgentStdin, CommandOutput, Guarded, EXIT_GRACE};
use crate::sync::lock;

/// Time until a stopping guard is killed: it first asks its processes to exit, then kills them.
const GUARD_WITHIN: Duration = EXIT_GRACE.saturating_mul(3);

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
            started: Arc::new(StartedGuards { adopts: half::adopt_for_host(), ..StartedGuards::default() }),
            ..self
        }
    }

    /// Returns the path of this program.
    pub fn program(&self) -> &std::path::Path {
        &self.path
    }

    /// Returns a command that starts a program under a guard. Arguments, environment and working
    /// directory given to it are the program's.
    pub fn command(&self, guarded: Guarded, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).args(guard::flag(guarded)).arg("--").arg(program);
        command
    }

    /// Starts an agent; returns its guard, stdin, stdout and stderr. Requires a runtime.
    ///
    /// # Errors
    /// When this program cannot be started again, or no more files can be opened.
    pub fn start_agent(
        &self,
        mut command: Command,
    ) -> io::Result<(Guard, AgentStdin, ChildStdout, ChildStderr)> {
        let (reader, writer) = io::pipe()?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (mut guard, lifeline) = self.start(command)?;
        lifeline::send(&lifeline, reader.as_fd())?;
        let (stdout, stderr) = (guard.child.stdout.take(), guard.child.stderr.take());
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(io::Error::other("the agent has no stdout or stderr"));
        };
        let (mut acknowledgement, lifeline) = lifeline.into_split();
        tokio::spawn(async move {
            // The guard acknowledges its end of the pipe, or has exited.
            acknowledgement.read(&mut [0]).await.map(drop).unwrap_or_default();
            drop(reader);
        });
        let input = AgentStdin { pipe: pipe::Sender::from_owned_fd(writer.into())?, lifeline };
        Ok((guard, input, stdout, stderr))
    }

    /// Starts a command; returns its guard, the connection to it, and the command's output.
    /// Requires a runtime.
    ///
    /// # Errors
    /// When this program cannot be started again, or no more files can be opened.
    pub fn start_command(&self, mut command: Command) -> io::Result<(Guard, Control, CommandOutput)> {
        let (reader, writer) = io::pipe()?;
        // A single pipe preserves the order of stdout and stderr.
        command.stdout(writer.try_clone()?).stderr(writer);
        let (guard, control) = self.start(command)?;
        Ok((guard, Control::new(control), CommandOutput::new(reader)?))
    }

    /// Starts a program in a terminal, given the program's side of it; returns also the connection
    /// to the guard. Requires a runtime.
    ///
    /// # Errors
    /// When this program cannot be started again.
    pub fn start_in_terminal(&self, mut command: Command, terminal: OwnedFd) -> io::Result<(Guard, Control)> {
        command.stdout(terminal).stderr(Stdio::null());
        let (guard, control) = self.start(command)?;
        Ok((guard, Control::new(control)))
    }

    /// Starts a guard in a group of its own; returns also the host's end of its lifeline. Other
    /// pipes and files given to `command` are closed on the host's side.
    fn start(&self, mut command: Command) -> io::Result<(Guard, UnixStream)> {
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
                format!("{name} cannot start its own executable, `{path}`, as the guard process: {error}");
            io::Error::new(error.kind(), why)
        })?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        guards.extend(pid.map(Pid::as_raw_pid));
        drop(guards);
        Ok((Guard { child, pid, started: Arc::clone(&self.started) }, control))
    }
}

/// Guard that was started.
#[derive(Debug)]
pub struct Guard {
    child: Child,
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
            () = overdue => self.end_late().await,
        };
        self.has_ended(&status).await;
        status
    }

    /// Kills the program and the guard at once, with all of their processes. Returns the guard's
    /// exit status.
    ///
    /// # Errors
    /// When the exit status is unknown.
    pub async fn kill(&mut self) -> io::Result<ExitStatus> {
        self.kill_group();
        if let Err(error) = self.child.start_kill() {
            tracing::debug!(%error, "a guard has ended meanwhile");
        }
        let status = self.child.wait().await;
        self.has_ended(&status).await;
        status
    }

    /// Kills what a guard with this exit status has left behind.
    async fn has_ended(&mut self, status: &io::Result<ExitStatus>) {
        if let Some(pid) = self.pid.filter(|_| status.is_ok()) {
            self.started.guards().remove(&pid.as_raw_pid());
        }
        if status.as_ref().is_ok_and(|status| status.code().is_none()) {
            // The guard was killed. The group keeps its number while it has members.
            self.kill_tree().await;
        }
        let started = Arc::clone(&self.started);
        if let Err(error) = on_a_thread(move || started.kill_orphans()).await {
            tracing::warn!(%error, "the search for processes left behind by a guard failed");
        }
    }

    /// Ends a guard that is late, and that is not reaped yet, so that the group still has its
    /// number.
    async fn end_late(&mut self) -> io::Result<ExitStatus> {
        if !half::LATE_GUARD_WITHIN.is_zero() {
            // The program may have stopped its guard, in the group or outside.
            for send in [kill_process, kill_process_group] {
                if let Some(Err(error)) = self.pid.map(|pid| send(pid, Signal::CONT)) {
                    tracing::debug!(%error, "a late guard cannot be continued");
                }
            }
            if let Ok(status) = tokio::time::timeout(half::LATE_GUARD_WITHIN, self.child.wait()).await {
                return status;
            }
        }
        self.kill_group();
        if let Err(error) = self.child.start_kill() {
            tracing::debug!(%error, "a guard has ended meanwhile");
        }
        self.child.wait().await
    }

    /// Kills the processes of the killed guard, as far as they can be found.
    async fn kill_tree(&self) {
        let Some(pid) = self.pid else { return };
        if let Err(error) = on_a_thread(move || half::kill_tree(pid)).await {
            tracing::warn!(%error, "only the process group of a killed guard is ended");
            self.kill_group();
        }
    }

    fn kill_group(&self) {
        if let Some(Err(error)) = self.pid.map(|pid| kill_process_group(pid, Signal::KILL)) {
            tracing::debug!(%error, "the process group of a guard cannot be killed: nothing is left of it");
        }
    }
}

impl StartedGuards {
    fn guards(&self) -> MutexGuard<'_, BTreeSet<RawPid>> {
        lock(&self.guards)
    }

    /// Kills the orphans of killed guards, with all of their descendants.
    fn kill_orphans(&self) {
        if self.adopts {
            let _one = lock(&self.ending);
            half::kill_orphans(|process| self.guards().contains(&process));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_was_moved_is_not_taken_for_what_it_guards() {
        let program = GuardProgram::new("/no/such/program".into(), Vec::new());
        let error = program.start(program.command(Guarded::Agent, "x")).unwrap_err().to_string();
        let ours = "ahp-sidecar cannot start its own executable, `/no/such/program`";
        assert!(error.starts_with(ours), "{error}");
    }

    #[tokio::test]
    async fn who_adopts_nobody_kills_none_of_its_children() {
        let program = GuardProgram::new("true".into(), Vec::new());
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (mut guard, _lifeline) = program.start(program.command(Guarded::Agent, "x")).unwrap();
        assert!(guard.ended(&CancellationToken::new()).await.unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
