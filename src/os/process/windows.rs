//! Windows: a job for each program. The system ends all of its processes when the last handle of
//! the job is closed, which happens at the latest when this process ends.
//!
//! Owns: starting a program inside its job, and ending the job.
//! Never: asks a program to exit, except by the end of its stdin or terminal: the system has no
//! signals.

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader};
use std::os::windows::io::OwnedHandle;
use std::os::windows::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use process_wrap::tokio::{ChildWrapper, CommandWrap, CommandWrapper, JobObject, KillOnDrop};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{AgentStdin, CommandOutput, GuardReport, Guarded, EXIT_GRACE};

/// First argument of a guard on other systems.
pub const GUARD: &str = "guard-agent";

/// Returns no arguments: this program is no guard here.
pub fn arguments(_files_max: Option<u64>) -> Vec<String> {
    Vec::new()
}

/// Returns `None`: this program is no guard here.
pub fn run_if_asked(_arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    None
}

/// Does nothing: a process without a console gets no events of one.
pub fn leave_session() -> io::Result<()> {
    Ok(())
}

/// Returns `None`: there are no signals.
pub fn signal_of(_status: ExitStatus) -> Option<i32> {
    None
}

pub fn signal_name(signal: i32) -> String {
    format!("signal {signal}")
}

/// Pipe to an agent's stdin.
pub type AgentPipe = ChildStdin;

/// Ends the agent when it is dropped.
pub type Lifeline = DropGuard;

/// Connection to the task that waits for a command. Dropping it ends the command.
#[derive(Debug)]
pub struct Control {
    reports: mpsc::UnboundedReceiver<GuardReport>,
    release: CancellationToken,
    _release: DropGuard,
}

impl Control {
    pub async fn next(&mut self) -> Option<GuardReport> {
        self.reports.recv().await
    }

    pub async fn close(&mut self) {
        self.release.cancel();
    }
}

/// Pipe from a command, read on threads of the runtime.
pub type OutputPipe = ChildStdout;

impl CommandOutput {
    fn new(reader: PipeReader) -> io::Result<Self> {
        let reader = std::process::ChildStdout::from(OwnedHandle::from(reader));
        Ok(Self(ChildStdout::from_std(reader)?))
    }

    /// Returns an error: a pipe cannot be read without waiting.
    pub fn read_available(&self, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// Starter of programs inside jobs.
#[derive(Debug, Clone)]
pub struct GuardProgram {
    path: PathBuf,
}

/// Keeps a program from opening a console window.
#[derive(Debug)]
struct NoWindow;

impl CommandWrapper for NoWindow {
    fn pre_spawn(&mut self, command: &mut Command, _core: &CommandWrap) -> io::Result<()> {
        const CREATE_SUSPENDED: u32 = 0x4;
        const CREATE_NO_WINDOW: u32 = 0x0800_0000;
        // The job starts the program once it is inside.
        command.creation_flags(CREATE_SUSPENDED | CREATE_NO_WINDOW);
        Ok(())
    }
}

impl GuardProgram {
    pub fn new(path: PathBuf, _arguments: Vec<String>) -> Self {
        Self { path }
    }

    #[must_use]
    pub fn adopting(self) -> Self {
        self
    }

    pub fn program(&self) -> &Path {
        &self.path
    }

    pub fn command(&self, _guarded: Guarded, program: impl AsRef<OsStr>) -> Command {
        let program = Path::new(program.as_ref());
        // A name without a folder is searched for by the system, which knows one ending only.
        let found = match program.components().count() {
            0 | 1 => std::env::var_os("PATH").and_then(|folders| {
                std::env::split_paths(&folders)
                    .filter(|folder| folder.is_absolute())
                    .find_map(|folder| crate::os::programs::program_at(&folder.join(program)))
            }),
            _ => crate::os::programs::program_at(program),
        };
        Command::new(found.unwrap_or_else(|| program.to_owned()))
    }

    pub fn start_agent(
        &self,
        mut command: Command,
    ) -> io::Result<(Guard, AgentStdin, ChildStdout, ChildStderr)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = start(command)?;
        let pipes = (child.stdin().take(), child.stdout().take(), child.stderr().take());
        let (Some(pipe), Some(stdout), Some(stderr)) = pipes else {
            return Err(io::Error::other("the agent lacks a pipe"));
        };
        let (guard, _) = Guard::new(JobProgram::WithPipes(child), Guarded::Agent);
        let lifeline = guard.release.clone().drop_guard();
        Ok((guard, AgentStdin { pipe, lifeline }, stdout, stderr))
    }

    pub fn start_command(&self, mut command: Command) -> io::Result<(Guard, Control, CommandOutput)> {
        let (reader, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let program = JobProgram::WithPipes(start(command)?);
        let (guard, control) = Guard::controlled(program, Guarded::Command);
        Ok((guard, control, CommandOutput::new(reader)?))
    }
}

/// Program in its job, with the waiting for it.
#[derive(Debug)]
enum JobProgram {
    WithPipes(Box<dyn ChildWrapper>),
    InTerminal(conpty_oxide::tokio::Child),
}

impl JobProgram {
    /// Waits until the program has exited; others of its job may go on.
    async fn exited(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::WithPipes(child) => child.inner_mut().wait().await,
            Self::InTerminal(child) => {
                Ok(ExitStatus::from_raw(child.wait().await.map_err(io::Error::other)?.code()))
            }
        }
    }

    /// Waits until the whole job has ended; of a terminal's, until the program has exited, since
    /// then the job is ended.
    async fn ended(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::WithPipes(child) => child.wait().await,
            Self::InTerminal(_) => self.exited().await,
        }
    }

    /// Ends the job.
    fn end(&mut self) -> io::Result<()> {
        match self {
            Self::WithPipes(child) => child.start_kill(),
            Self::InTerminal(child) => child.kill().map_err(io::Error::other),
        }
    }
}

/// Program in its job, and the reports about it.
#[derive(Debug)]
pub struct Guard {
    program: JobProgram,
    guarded: Guarded,
    reports: Option<mpsc::UnboundedSender<GuardReport>>,
    /// Cancelled when the program is to end.
    release: CancellationToken,
}

/// Starts a command inside a job of its own.
fn start(command: Command) -> io::Result<Box<dyn ChildWrapper>> {
    let mut command = CommandWrap::from(command);
    command.wrap(KillOnDrop).wrap(JobObject).wrap(NoWindow);
    command.spawn()
}

impl Guard {
    /// Guards a program that a pseudo console has started inside its job.
    pub fn in_terminal(child: conpty_oxide::tokio::Child) -> (Self, Control) {
        Self::controlled(JobProgram::InTerminal(child), Guarded::InTerminal)
    }

    fn controlled(program: JobProgram, guarded: Guarded) -> (Self, Control) {
        let (guard, reports) = Self::new(program, guarded);
        let release = guard.release.clone();
        let control = Control { reports, _release: release.clone().drop_guard(), release };
        (guard, control)
    }

    fn new(program: JobProgram, guarded: Guarded) -> (Self, mpsc::UnboundedReceiver<GuardReport>) {
        let (reports, receiver) = mpsc::unbounded_channel();
        // Cannot fail: the receiver is here.
        reports.send(GuardReport::Started).unwrap_or_default();
        let release = CancellationToken::new();
        (Self { program, guarded, reports: Some(reports), release }, receiver)
    }

    /// Waits as [`Self::ended`] does.
    ///
    /// # Errors
    /// When the exit status is unknown.
    pub async fn keep_running(&mut self, stopped: &CancellationToken) -> io::Result<ExitStatus> {
        self.ended(stopped).await
    }

    /// Kills all processes of the program at once. Returns the exit status of the program.
    ///
    /// # Errors
    /// When the exit status is unknown.
    pub async fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Err(error) = self.program.end() {
            tracing::debug!(%error, "a job cannot be ended: nothing is left in it");
        }
        self.program.ended().await
    }

    /// Waits until all processes of the program have ended, soon after `stopped` or its lifeline
    /// is cancelled. Returns the exit status of the program.
    ///
    /// # Errors
    /// When the exit status is unknown.
    pub async fn ended(&mut self, stopped: &CancellationToken) -> io::Result<ExitStatus> {
        let released = async {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = self.release.cancelled() => {}
            }
            if self.guarded != Guarded::Command {
                // Its stdin has ended, or its terminal was closed.
                tokio::time::sleep(EXIT_GRACE).await;
            }
        };
        let mut released = std::pin::pin!(released);
        let exited = tokio::select! {
            status = self.program.exited() => Some(status?),
            () = &mut released => None,
        };
        if let Some(status) = exited {
            if let Some(reports) = &self.reports {
                let code = status.code().unwrap_or_default();
                // The receiver may be gone.
                reports.send(GuardReport::Exited(code.cast_unsigned())).unwrap_or_default();
            }
            if self.guarded == Guarded::Command {
                // Background processes of a command go on.
                tokio::select! {
                    _ = self.program.ended() => {}
                    () = &mut released => {}
                }
            }
        }
        if let Err(error) = self.program.end() {
            tracing::debug!(%error, "a job cannot be ended: nothing is left in it");
        }
        let status = self.program.ended().await;
        self.reports = None;
        status
    }
}
