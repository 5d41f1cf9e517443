//! The host's ends of the pipes of guarded programs.
//!
//! Owns: an agent's stdin, a command's output, and the reports of a guard.
//! Never: interprets the output of a program.

use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{pipe, OwnedReadHalf, OwnedWriteHalf};
use tokio::net::UnixStream;

use crate::os::process::{CommandOutput, GuardReport};

/// Pipe to an agent's stdin.
pub type AgentPipe = pipe::Sender;

/// Host's end of a lifeline: its end is the end of the program.
pub type Lifeline = OwnedWriteHalf;

/// Connection to the guard of a command. Dropping it ends the command.
#[derive(Debug)]
pub struct Control {
    reports: Lines<BufReader<OwnedReadHalf>>,
    lifeline: OwnedWriteHalf,
}

impl Control {
    /// Creates the host's end of the connection.
    pub fn new(stream: UnixStream) -> Self {
        let (reports, lifeline) = stream.into_split();
        Self { reports: BufReader::new(reports).lines(), lifeline }
    }

    /// Receives the next report; `None` if the guard has ended. Cancel safe.
    pub async fn next(&mut self) -> Option<GuardReport> {
        loop {
            let line = self.reports.next_line().await.ok().flatten()?;
            if let Some(report) = GuardReport::of_line(&line) {
                return Some(report);
            }
            tracing::warn!("the guard process of a command sent an unknown report");
        }
    }

    /// Ends the command. Its remaining reports can still be received.
    pub async fn close(&mut self) {
        if let Err(error) = self.lifeline.shutdown().await {
            tracing::debug!(%error, "the guard of a command is gone");
        }
    }
}

/// Pipe from a command.
pub type OutputPipe = pipe::Receiver;

impl CommandOutput {
    pub(super) fn new(reader: PipeReader) -> io::Result<Self> {
        Ok(Self(pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?))
    }

    /// Reads bytes that are available, without waiting.
    ///
    /// # Errors
    /// When nothing is available, or the pipe cannot be read.
    pub fn read_available(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, buffer)?)
    }
}
