//! An agent's process, as we see it: its guard, its pipes, and what it says on stderr.
//!
//! Owns: starting it, stopping it, and what is known when it has ended: the exit status and the last lines of
//! its stderr, which is read at all times.
//! Never: reads its stdout or writes to its stdin; those are given away.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{kill_process_group, Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::guard;
use super::AgentSpec;
use crate::host::effects::Token;

/// So much of an agent's stderr is kept.
const LINES_MAX: usize = 20;

/// A line of stderr is cut here, in bytes.
const LINE_BYTES_MAX: usize = 500;

/// No signal has a greater number.
const SIGNALS_MAX: i32 = 64;

/// How long a guard may take when it has to end its agent, which it does by kindness, and then by force.
const GUARD_WITHIN: Duration = guard::PATIENCE.saturating_mul(3);

/// How the guard of an agent is started: this program, and what it is told first.
#[derive(Debug, Clone)]
pub struct GuardProgram {
    /// The program.
    pub path: PathBuf,
    /// The arguments before the agent's command.
    pub arguments: Vec<String>,
}

/// A started agent, its pipes given away.
#[derive(Debug)]
pub struct Process {
    guard: Child,
    stderr: JoinHandle<()>,
    last_lines: LastLines,
}

impl Process {
    /// Starts an agent under its guard, with these variables besides those of its operator.
    pub fn start(
        program: &GuardProgram,
        agent: &AgentSpec,
        secrets: &BTreeMap<String, Token>,
    ) -> anyhow::Result<(Self, ChildStdin, ChildStdout)> {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).arg("--").arg(&agent.program).args(&agent.arguments);
        command.envs(&agent.environment).process_group(0);
        command.envs(secrets.iter().map(|(name, token)| (name, token.secret())));
        if let Some(directory) = &agent.directory {
            command.current_dir(directory);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guard =
            command.spawn().with_context(|| format!("`{}` cannot be started", agent.program.display()))?;
        let stdin = guard.stdin.take().context("the agent has no stdin")?;
        let stdout = guard.stdout.take().context("the agent has no stdout")?;
        let stderr = guard.stderr.take().context("the agent has no stderr")?;
        let last_lines = LastLines::default();
        let stderr = tokio::spawn(drain(stderr, agent.name.clone(), last_lines.clone()));
        Ok((Self { guard, stderr, last_lines }, stdin, stdout))
    }

    /// Waits until the agent and all that it started have ended, which they do soon after its stdin was
    /// closed, and that after it was `stopped`; says how it ended, for people.
    pub async fn ended(mut self, stopped: CancellationToken) -> String {
        let group = self.guard.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let overdue = async {
            stopped.cancelled().await;
            tokio::time::sleep(GUARD_WITHIN).await;
        };
        let status = tokio::select! {
            status = self.guard.wait() => status,
            () = overdue => {
                // It has not been reaped, so the group is its own.
                kill_all(group);
                self.guard.wait().await
            }
        };
        if status.as_ref().is_ok_and(|status| status.code().is_none()) {
            // It was killed itself. The group keeps its name while there is anybody in it.
            kill_all(group);
        }
        // Somebody outside of the group may hold it open.
        if tokio::time::timeout(guard::PATIENCE, &mut self.stderr).await.is_err() {
            self.stderr.abort();
        }
        let how = status.map_or_else(|error| error.to_string(), how_it_ended);
        match self.last_lines.text() {
            said if said.is_empty() => how,
            said => format!("{how}; the last that it said on stderr:\n{said}"),
        }
    }
}

/// Does what a guard would have done that cannot: it was stopped or killed by its agent.
fn kill_all(group: Option<Pid>) {
    if let Some(Err(error)) = group.map(|group| kill_process_group(group, Signal::KILL)) {
        tracing::debug!(%error, "nothing of an agent is left to be killed");
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
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
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
            } else if line.len() < LINE_BYTES_MAX {
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
