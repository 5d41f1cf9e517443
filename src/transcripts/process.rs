//! Host as a child process under a guard, addressed line by line.
//!
//! A thread with an event loop of its own writes to the host and reads from it, so that a host that
//! does neither holds nothing up.
//!
//! Owns: the process, its pipes and their thread. The process ends with its owner, and so does what
//! it has started.
//! Never: interprets a line.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::HostFailure;
use crate::os::process::{AgentStdin, Guard, GuardProgram, Guarded, Lifeline, EXIT_GRACE};
use crate::os::programs::program_at;

/// Maximum length of a line, in bytes; a longer one is cut into several.
pub(crate) const LINE_BYTES_MAX: usize = 256 << 20;

/// Maximum number of lines that wait to be compared; the host waits while there are as many.
const LINES_MAX: usize = 1000;

/// Output of a host.
#[derive(Debug)]
pub(crate) enum HostOutput {
    /// Line without its end. What is not UTF-8 is replaced.
    Line(String),
    /// The output has ended.
    End,
    /// Silence up to the deadline.
    Late,
}

/// Running host.
#[derive(Debug)]
pub(crate) struct PlayedHost {
    /// `None` when the input has ended.
    stdin: Option<UnboundedSender<Vec<u8>>>,
    lines: Receiver<String>,
    /// Right to queue another line.
    capacity: Arc<Semaphore>,
    exits: Receiver<io::Result<ExitStatus>>,
    /// Cancelled when the host is to be killed.
    killed: CancellationToken,
    /// Cancelled when the rest of the output is of no use any more.
    dropped: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl PlayedHost {
    /// Starts a host, under a guard if there is one. A guard ends with the host all that it has
    /// started: also a host that others share.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub(crate) fn start(
        command: &Command,
        guards: Option<&GuardProgram>,
        shows_stderr: bool,
    ) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        if !exists(command) {
            return Err(HostFailure(format!("`{name}`: there is no such program")).into());
        }
        let program = command.get_program();
        let mut guarded = match guards {
            Some(guards) => guards.command(Guarded::Agent, program),
            None => tokio::process::Command::new(program),
        };
        guarded.args(command.get_args());
        for (variable, value) in command.get_envs() {
            match value {
                Some(value) => guarded.env(variable, value),
                None => guarded.env_remove(variable),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            guarded.current_dir(folder);
        }
        let (says, said) = unbounded_channel();
        let (sends, lines) = mpsc::channel();
        let (tells_start, started) = mpsc::channel();
        let (tells_exit, exits) = mpsc::channel();
        let (capacity, killed) = (Arc::new(Semaphore::new(LINES_MAX)), CancellationToken::new());
        let dropped = CancellationToken::new();
        let (permits, guards) = (Arc::clone(&capacity), guards.cloned());
        let (stop, leave) = (killed.clone(), dropped.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("host".to_owned()).spawn(move || {
            runtime.block_on(async {
                let (mut process, pipe, stdout, stderr) = match HostChild::start(guards, guarded) {
                    Ok(parts) => {
                        tells_start.send(Ok(())).unwrap_or_default();
                        parts
                    }
                    // The starting thread waits for it.
                    Err(error) => return tells_start.send(Err(error)).unwrap_or_default(),
                };
                tokio::spawn(write(pipe, said));
                let reading = tokio::spawn(read(stdout, sends, permits));
                let errors = tokio::spawn(pass_on(stderr, shows_stderr));
                let exited = tokio::select! {
                    status = process.ended() => Some(status),
                    () = stop.cancelled() => None,
                };
                let exited = match exited {
                    Some(status) => status,
                    None => process.kill().await,
                };
                drop(process);
                // The owner may be gone.
                tells_exit.send(exited).unwrap_or_default();
                // A process out of reach of the guard may hold the pipes open.
                timeout(EXIT_GRACE, errors).await.map(drop).unwrap_or_default();
                tokio::select! {
                    _ = reading => {}
                    () = leave.cancelled() => {}
                }
            });
            runtime.shutdown_background();
        })?;
        started
            .recv()
            .context("the host cannot be started")?
            .map_err(|error| HostFailure(format!("`{name}`: {error}")))?;
        Ok(Self { stdin: Some(says), lines, capacity, exits, killed, dropped, thread: Some(thread) })
    }

    /// Sends bytes to the host; returns whether it still reads.
    pub(crate) fn say(&self, bytes: Vec<u8>) -> bool {
        self.stdin.as_ref().is_some_and(|stdin| stdin.send(bytes).is_ok())
    }

    /// Ends the host's stdin, after all that was sent before.
    pub(crate) fn end(&mut self) {
        self.stdin = None;
    }

    /// Returns the next line.
    pub(crate) fn next_line(&mut self, deadline: Instant) -> HostOutput {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // A host that never stops would always have another line.
            return HostOutput::Late;
        }
        match self.lines.recv_timeout(left) {
            Ok(line) => {
                self.capacity.add_permits(1);
                HostOutput::Line(line)
            }
            Err(RecvTimeoutError::Disconnected) => HostOutput::End,
            Err(RecvTimeoutError::Timeout) => HostOutput::Late,
        }
    }

    /// Waits for the process to end; returns `None` if it does not in time.
    ///
    /// # Errors
    /// When the system does not say.
    pub(crate) fn wait(&mut self, deadline: Instant) -> anyhow::Result<Option<ExitStatus>> {
        self.end();
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match self.exits.recv_timeout(left) {
            Ok(status) => Ok(Some(status.context("the host cannot be waited for")?)),
            Err(_) => Ok(None),
        }
    }

    /// Kills the process, and all that it has started.
    pub(crate) fn kill(&mut self) {
        self.killed.cancel();
        if let Ok(Err(error)) = self.exits.recv() {
            tracing::warn!(%error, "the host cannot be killed");
        }
    }
}

impl Drop for PlayedHost {
    fn drop(&mut self) {
        self.end();
        self.killed.cancel();
        self.dropped.cancel();
        // A panicked thread has ended, too; its guard ends the host.
        self.thread.take().map(JoinHandle::join).transpose().map(drop).unwrap_or_default();
    }
}

/// Process of a host.
enum HostChild {
    Guarded { guard: Guard, _lifeline: Lifeline },
    Alone(Child),
}

type HostPipes = (HostChild, Box<dyn AsyncWrite + Send + Unpin>, ChildStdout, ChildStderr);

impl HostChild {
    fn start(guards: Option<GuardProgram>, mut command: tokio::process::Command) -> io::Result<HostPipes> {
        if let Some(guards) = guards {
            let (guard, AgentStdin { pipe, lifeline }, stdout, stderr) = guards.start_agent(command)?;
            return Ok((Self::Guarded { guard, _lifeline: lifeline }, Box::new(pipe), stdout, stderr));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("it lacks a pipe"));
        };
        Ok((Self::Alone(child), Box::new(stdin), stdout, stderr))
    }

    async fn ended(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Guarded { guard, .. } => guard.ended(&CancellationToken::new()).await,
            Self::Alone(child) => child.wait().await,
        }
    }

    async fn kill(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Guarded { guard, .. } => guard.kill().await,
            Self::Alone(child) => {
                child.start_kill()?;
                child.wait().await
            }
        }
    }
}

/// Returns whether the program of a command exists, on the search path if it is a bare name.
fn exists(command: &Command) -> bool {
    let program = Path::new(command.get_program());
    if program.components().count() > 1 {
        return program_at(program).is_some();
    }
    let given = command.get_envs().find(|(name, _)| *name == OsStr::new("PATH"));
    let path = match given {
        Some((_, path)) => path.map(OsStr::to_owned),
        None => std::env::var_os("PATH"),
    };
    // Without a search path, the system uses its own default.
    path.is_none_or(|path| {
        std::env::split_paths(&path).any(|folder| program_at(&folder.join(program)).is_some())
    })
}

/// Writes what is said to the host. A host that has ended shows by the end of its output.
async fn write(mut pipe: impl AsyncWrite + Unpin, mut said: UnboundedReceiver<Vec<u8>>) {
    while let Some(bytes) = said.recv().await {
        if pipe.write_all(&bytes).await.is_err() {
            break;
        }
    }
}

/// Reads the lines of the host, as many as there are permits for. A read error is the end of the
/// output.
async fn read(output: impl AsyncRead + Unpin, sends: mpsc::Sender<String>, permits: Arc<Semaphore>) {
    let mut output = BufReader::new(output);
    loop {
        let mut line = Vec::new();
        let limit = LINE_BYTES_MAX as u64;
        let read = (&mut output).take(limit).read_until(b'\n', &mut line).await.unwrap_or(0);
        let Ok(permit) = permits.acquire().await else { break };
        permit.forget();
        if line.ends_with(b"\n") {
            line.truncate(line.len() - if line.ends_with(b"\r\n") { 2 } else { 1 });
        }
        if read == 0 || sends.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            break;
        }
    }
}

/// Copies what the host writes to stderr. It may be closed.
async fn pass_on(mut from: impl AsyncRead + Unpin, is_shown: bool) {
    let passed = if is_shown {
        tokio::io::copy(&mut from, &mut tokio::io::stderr()).await
    } else {
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await
    };
    passed.map(drop).unwrap_or_default();
}
