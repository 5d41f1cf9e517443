//! Host as a child process, addressed line by line.
//!
//! A thread writes to the host and another reads from it, so that a host that does neither holds
//! nothing up.
//!
//! Owns: the process, its pipes and their threads. The process ends with its owner.
//! Never: interprets a line.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, sync_channel, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::HostFailure;

/// Maximum length of a line, in bytes; a longer one is cut into several.
pub(crate) const LINE_BYTES_MAX: usize = 256 << 20;

/// Maximum number of lines that wait to be compared; the host waits while there are as many.
const LINES_MAX: usize = 1000;

/// Interval between looks at whether the process has ended.
const POLL: Duration = Duration::from_millis(2);

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
    child: Child,
    /// `None` when the input has ended.
    stdin: Option<Sender<Vec<u8>>>,
    lines: Receiver<String>,
}

impl PlayedHost {
    /// Starts a host.
    ///
    /// # Errors
    /// When the command cannot be started.
    pub(crate) fn start(mut command: Command) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| HostFailure(format!("`{name}`: {error}")))?;
        let mut stdin = child.stdin.take().context("the host has no stdin")?;
        let mut stdout = BufReader::new(child.stdout.take().context("the host has no stdout")?);
        let (says, said) = channel::<Vec<u8>>();
        let (sends, lines) = sync_channel(LINES_MAX);
        thread::Builder::new().spawn(move || {
            // A host that has ended shows by the end of its output.
            said.into_iter().try_for_each(|bytes| stdin.write_all(&bytes)).unwrap_or_default();
        })?;
        thread::Builder::new().spawn(move || loop {
            let mut line = Vec::new();
            // A read error is the end of the output.
            let read = (&mut stdout).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line).unwrap_or(0);
            if read == 0 {
                break;
            }
            if line.ends_with(b"\n") {
                line.truncate(line.len() - if line.ends_with(b"\r\n") { 2 } else { 1 });
            }
            if sends.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        })?;
        Ok(Self { child, stdin: Some(says), lines })
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
            Ok(line) => HostOutput::Line(line),
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
        loop {
            let status = self.child.try_wait().context("the host cannot be waited for")?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = killed {
            tracing::warn!(%error, "the host cannot be killed");
        }
    }
}

impl Drop for PlayedHost {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.kill();
        }
    }
}
