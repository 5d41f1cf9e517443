//! An agent's process, as we see it: its guard, its pipes, and what it says on stderr.
//!
//! Owns: starting it, stopping it, and what is known when it has ended: the exit status and the
//! last lines of its stderr, which is read at all times.
//! Never: reads its stdout or writes to its stdin; those are given away.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use anyhow::Context as _;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::unix::{pipe, OwnedWriteHalf};
use tokio::net::UnixStream;
use tokio::process::{ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::guards::{Guard, GuardProgram};
use super::{guard, lifeline, program, AgentSpec};
use crate::backend::secrets::redact;
use crate::host::effects::Token;
use crate::wire::text;

/// Maximum number of lines of an agent's stderr that are kept: the latest.
const LINES_MAX: usize = 20;

/// A line of stderr is cut here, in bytes.
const LINE_BYTES_MAX: usize = 500;

/// Maximum number of bytes that are read of one line: a secret must be in it as a whole to be
/// found.
const LINE_BYTES_READ: usize = 8 << 10;

/// No signal has a greater number.
const SIGNALS_MAX: i32 = 64;

/// A started agent, its pipes given away.
#[derive(Debug)]
pub struct Process {
    guard: Guard,
    stderr: JoinHandle<()>,
    last_lines: LastLines,
}

/// Stdin of an agent. The agent ends when it is dropped: the lifeline of the agent's guard ends,
/// too.
#[derive(Debug)]
pub struct AgentStdin {
    pipe: pipe::Sender,
    _lifeline: OwnedWriteHalf,
}

impl AsyncWrite for AgentStdin {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

impl Process {
    /// Starts an agent under its guard, with these variables besides those of its operator.
    ///
    /// # Errors
    /// When its guard cannot be started. That it cannot be started itself is known when it has
    /// ended.
    pub fn start(
        guard: &GuardProgram,
        agent: &AgentSpec,
        secrets: &BTreeMap<String, Token>,
    ) -> anyhow::Result<(Self, AgentStdin, ChildStdout)> {
        let mut command = guard.command();
        command.arg("--").arg(&agent.program).args(&agent.arguments).envs(&agent.environment);
        // A script that npm has installed finds the node beside it.
        let found = program::find(&agent.program, agent.directory.as_deref(), &agent.environment);
        if let Some(path) = found.ok().and_then(|found| program::search_path_of(&found, &agent.environment)) {
            command.env("PATH", path);
        }
        command.envs(secrets.iter().map(|(name, token)| (name, token.secret())));
        let name = agent.program.display();
        if let Some(directory) = &agent.directory {
            if !directory.is_dir() {
                let directory = directory.display();
                anyhow::bail!("`{name}` cannot be started: `{directory}`, where it is to run, is no folder");
            }
            command.current_dir(directory);
        }
        Self::begin(guard, command, &agent.name)
    }

    /// Starts a guard by this command, which says what it is to start; that is called so in the
    /// log.
    ///
    /// # Errors
    /// When the guard cannot be started.
    pub fn begin(
        program: &GuardProgram,
        mut command: Command,
        name: &str,
    ) -> anyhow::Result<(Self, AgentStdin, ChildStdout)> {
        let (lifeline, theirs) = Socket::pair()?;
        let (reader, writer) = io::pipe()?;
        lifeline::send(&lifeline, reader.as_fd())?;
        lifeline.set_nonblocking(true)?;
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guard = program.start(&mut command).with_context(|| format!("`{name}` cannot be started"))?;
        // Only the guard has the other end from here on.
        drop(command);
        let stdout = guard.child.stdout.take().context("the agent has no stdout")?;
        let stderr = guard.child.stderr.take().context("the agent has no stderr")?;
        let (mut told, lifeline) = UnixStream::from_std(lifeline)?.into_split();
        tokio::spawn(async move {
            // It has its end of the pipe, or is gone.
            told.read(&mut [0]).await.map(drop).unwrap_or_default();
            drop(reader);
        });
        let input = AgentStdin { pipe: pipe::Sender::from_owned_fd(writer.into())?, _lifeline: lifeline };
        let last_lines = LastLines::default();
        let stderr = tokio::spawn(drain(stderr, name.to_owned(), last_lines.clone()));
        Ok((Self { guard, stderr, last_lines }, input, stdout))
    }

    /// Waits until the agent and all that it started have ended, which they do soon after its stdin
    /// was closed, and that after it was `stopped`; says how it ended, for people.
    pub async fn ended(mut self, stopped: CancellationToken) -> String {
        let status = self.guard.ended(&stopped).await;
        // Somebody who is no descendant any more may hold it open.
        if tokio::time::timeout(guard::EXIT_GRACE, &mut self.stderr).await.is_err() {
            self.stderr.abort();
        }
        let how = status.map_or_else(|error| error.to_string(), how_it_ended);
        match self.last_lines.text() {
            said if said.is_empty() => how,
            said => format!("{how}; the last that it said on stderr:\n{said}"),
        }
    }
}

fn how_it_ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) if (1..=SIGNALS_MAX).contains(&(code - guard::BY_SIGNAL)) => {
            format!("it ended with status {code} (signal {})", code - guard::BY_SIGNAL)
        }
        (Some(code), _) => format!("it ended with status {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}

/// The last lines of a stream.
#[derive(Debug, Clone, Default)]
pub struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

/// Reads a stream to its end, whatever is in it, and keeps its last lines.
async fn drain(mut stream: impl AsyncRead + Unpin, agent: String, last_lines: LastLines) {
    let mut chunk = vec![0; 8 << 10];
    let mut line = Vec::new();
    let end_line = |line: &mut Vec<u8>| {
        let mut text = redact(String::from_utf8_lossy(line).trim_end()).into_owned();
        text.truncate(text::first_bytes(&text, LINE_BYTES_MAX).len());
        line.clear();
        if !text.is_empty() {
            tracing::info!(agent, "stderr: {text}");
            last_lines.push(text);
        }
    };
    while let Ok(count @ 1..) = stream.read(&mut chunk).await {
        for &byte in &chunk[..count] {
            if byte == b'\n' {
                end_line(&mut line);
            } else if line.len() < LINE_BYTES_READ {
                line.push(byte);
            }
        }
    }
    end_line(&mut line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_lines_are_kept_and_nothing_more() {
        let mut said: Vec<u8> = (0..100).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        said.extend(vec![b'x'; 3 * LINE_BYTES_MAX]);
        said.extend(b"\n\xff\nend");
        let kept = LastLines::default();
        drain(&said[..], "a".to_owned(), kept.clone()).await;
        let text = kept.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), LINES_MAX);
        assert_eq!(lines[0], "line 83");
        assert_eq!(lines[LINES_MAX - 3].len(), LINE_BYTES_MAX);
        assert_eq!(lines[LINES_MAX - 2..], ["\u{fffd}", "end"]);
    }
}
