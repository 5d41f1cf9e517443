//! Output of an agent on its stdout that is not messages.
//!
//! Owns: logging it at a limited rate, and the decision that a stream is junk throughout.
//! Never: looks into a message.

use std::time::{Duration, Instant};

/// Minimum time between two log entries about junk.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// A stream that has held so many lines or bytes of junk, and no message, holds none.
const LINES_MAX: u64 = 1000;
const BYTES_MAX: usize = 1 << 20;

/// Maximum number of bytes of junk that are quoted.
const QUOTED_BYTES_MAX: usize = 400;

/// The junk of one agent.
#[derive(Debug)]
pub struct Junk {
    agent: String,
    /// The beginning of it, while there was no message.
    quoted: String,
    lines: u64,
    bytes: usize,
    heard: bool,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Junk {
    /// Of this agent, which has said nothing yet.
    pub fn new(agent: &str) -> Self {
        Self {
            agent: agent.to_owned(),
            quoted: String::new(),
            lines: 0,
            bytes: 0,
            heard: false,
            logged: None,
            unlogged: 0,
        }
    }

    /// A message was among it.
    pub fn reset(&mut self) {
        if !self.heard {
            self.heard = true;
            self.quoted = String::new();
        }
    }

    /// Takes note of a line; says why the agent is given up when all of its stream is like this.
    pub fn note(&mut self, line: &[u8]) -> Option<String> {
        self.log(line, "a line that is no message was skipped");
        if self.heard {
            return None;
        }
        self.lines += 1;
        self.bytes += line.len();
        if self.quoted.len() < QUOTED_BYTES_MAX {
            self.quoted.push_str(&readable(line));
            self.quoted.push('\n');
        }
        (self.lines > LINES_MAX || self.bytes > BYTES_MAX).then(|| self.reason())
    }

    /// Takes note of a line that holds more than one message.
    pub fn inside(&mut self, line: &[u8]) {
        self.log(line, "messages that are not alone on a line were taken out of it");
    }

    /// Why the stream is of no use, at its end: when junk was all that it held.
    pub fn all(&self) -> Option<String> {
        (!self.heard && self.lines > 0).then(|| self.reason())
    }

    fn reason(&self) -> String {
        format!("it does not speak ACP, it said:\n{}", self.quoted.trim_end())
    }

    fn log(&mut self, line: &[u8], what: &str) {
        if self.logged.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            self.unlogged += 1;
            return;
        }
        let (agent, unlogged) = (&self.agent, std::mem::take(&mut self.unlogged));
        tracing::warn!(agent, unlogged, "{what}: {}", readable(line));
        self.logged = Some(Instant::now());
    }
}

/// The beginning of a line, as text.
fn readable(line: &[u8]) -> String {
    let cut = &line[..line.len().min(QUOTED_BYTES_MAX / 2)];
    let mut text = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < line.len() {
        text.push('…');
    }
    text
}
