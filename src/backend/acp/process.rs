//! An agent's process: its guard, its pipes, and its stderr.
//!
//! Owns: start and stop, the exit status, and the last lines of stderr, which is read continuously.
//! Never: reads its stdout or writes to its stdin; both are passed on.

use std::collections::{BTreeMap, VecDeque};
use std::process::ExitStatus;

use anyhow::Context;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{ChildStdout, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{program, AgentSpec};
use crate::backend::secrets::redact;
use crate::host::effects::Token;
use crate::os::process::{signal_of, AgentStdin, Guard, GuardProgram, Guarded, BY_SIGNAL, EXIT_GRACE};
use crate::wire::text;

/// Maximum number of retained lines of an agent's stderr.
const LINES_MAX: usize = 20;

/// Maximum length of a retained line, in bytes.
const LINE_BYTES_MAX: usize = 500;

/// Maximum bytes read of one line; secrets are hidden before it is cut to [`LINE_BYTES_MAX`].
const LINE_BYTES_READ: usize = 8 << 10;

const SIGNALS_MAX: i32 = 64;

#[derive(Debug)]
pub struct Process {
    guard: Guard,
    stderr: JoinHandle<()>,
    last_lines: watch::Receiver<VecDeque<String>>,
}

impl Process {
    /// Starts an agent under its guard, with these variables added to those of its operator.
    pub fn start(
        guard: &GuardProgram,
        agent: &AgentSpec,
        secrets: &BTreeMap<String, Token>,
    ) -> anyhow::Result<(Self, AgentStdin, ChildStdout)> {
        let mut command = guard.command(Guarded::Agent, &agent.program);
        command.args(&agent.arguments).envs(&agent.environment);
        // A script installed by npm must find the `node` beside it.
        let found = program::find(&agent.program, agent.directory.as_deref(), &agent.environment);
        if let Some(path) = found.ok().and_then(|found| program::search_path_of(&found, &agent.environment)) {
            command.env("PATH", path);
        }
        command.envs(secrets.iter().map(|(name, token)| (name, token.secret())));
        let name = agent.program.display();
        if let Some(directory) = &agent.directory {
            if !directory.is_dir() {
                let directory = directory.display();
                anyhow::bail!(
                    "`{name}` cannot be started: its working directory `{directory}` is not a folder"
                );
            }
            command.current_dir(directory);
        }
        Self::begin(guard, command, &agent.name)
    }

    /// Starts a guard with this command line; `name` identifies the program in the log.
    pub fn begin(
        program: &GuardProgram,
        command: Command,
        name: &str,
    ) -> anyhow::Result<(Self, AgentStdin, ChildStdout)> {
        let (guard, input, stdout, stderr) =
            program.start_agent(command).with_context(|| format!("`{name}` cannot be started"))?;
        let (lines, last_lines) = watch::channel(VecDeque::new());
        let stderr = tokio::spawn(drain(stderr, name.to_owned(), lines));
        Ok((Self { guard, stderr, last_lines }, input, stdout))
    }

    /// Waits until the agent and all of its processes have ended, which happens soon after its
    /// stdin is closed and `stopped` is cancelled; returns the reason, for people.
    pub async fn ended(mut self, stopped: CancellationToken) -> String {
        let status = self.guard.ended(&stopped).await;
        // A process that is no longer a descendant may hold stderr open.
        if tokio::time::timeout(EXIT_GRACE, &mut self.stderr).await.is_err() {
            self.stderr.abort();
        }
        let how = status.map_or_else(|error| error.to_string(), how_it_ended);
        let lines = self.last_lines.borrow();
        if lines.is_empty() {
            return how;
        }
        let shown: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!("{how}; its last output on stderr:\n{}", shown.join("\n"))
    }
}

fn how_it_ended(status: ExitStatus) -> String {
    match (status.code(), signal_of(status)) {
        (Some(code), _) if (1..=SIGNALS_MAX).contains(&(code - BY_SIGNAL)) => {
            format!("it ended with status {code} (signal {})", code - BY_SIGNAL)
        }
        (Some(code), _) => format!("it ended with status {code}"),
        (None, Some(signal)) => format!("it was killed by signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}

async fn drain(
    mut stream: impl AsyncRead + Unpin,
    agent: String,
    last_lines: watch::Sender<VecDeque<String>>,
) {
    let mut chunk = vec![0; 8 << 10];
    let mut line = Vec::new();
    let end_line = |line: &mut Vec<u8>| {
        let mut text = redact(String::from_utf8_lossy(line).trim_end()).into_owned();
        text.truncate(text::first_bytes(&text, LINE_BYTES_MAX).len());
        line.clear();
        if !text.is_empty() {
            tracing::info!(agent, "stderr: {text}");
            last_lines.send_modify(|lines| {
                lines.push_back(text);
                if lines.len() > LINES_MAX {
                    lines.pop_front();
                }
            });
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
        let mut stderr: Vec<u8> = (0..100).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        stderr.extend(vec![b'x'; 3 * LINE_BYTES_MAX]);
        stderr.extend(b"\n\xff\nend");
        let (sender, lines) = watch::channel(VecDeque::new());
        drain(&stderr[..], "a".to_owned(), sender).await;
        let lines = lines.borrow();
        assert_eq!(lines.len(), LINES_MAX);
        assert_eq!(lines[0], "line 83");
        assert_eq!(lines[LINES_MAX - 3].len(), LINE_BYTES_MAX);
        assert_eq!(lines.range(LINES_MAX - 2..).collect::<Vec<_>>(), ["\u{fffd}", "end"]);
    }
}
