//! Windows: a pseudo console, to which the system connects two pipes and a job.
//!
//! The system creates the program inside its job, so nothing that it starts can be outside. The
//! console itself is a process of the system, which ends when its pipes are closed.
//!
//! Owns: opening a console with a program, its pipes, and its size.
//! Never: waits for the console to close, which takes until its programs have ended.

use std::io;
use std::path::Path;

use bytes::{Buf, BufMut, BytesMut};
use conpty_oxide::tokio::{OwnedReadHalf, OwnedWriteHalf, SessionParts};
use conpty_oxide::{ConPtyBackend, PtyController, SessionOptions, Size};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::PtySize;
use crate::os::process::{Control, Guard, GuardProgram};
use crate::os::shell;

/// Maximum bytes that are read at once.
const READ_BYTES_MAX: usize = 4 << 10;

/// Maximum bytes that are written at once: the pipe keeps them until the console reads.
const WRITE_BYTES_MAX: usize = 4 << 10;

#[derive(Debug)]
pub struct Printed {
    pipe: OwnedReadHalf,
    unread: BytesMut,
    has_ended: bool,
}

#[derive(Debug)]
pub struct Typing {
    pipe: OwnedWriteHalf,
    console: PtyController,
}

/// Never there: the system does not report which program of a console is in the foreground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForegroundGroup {}

impl Printed {
    pub async fn readable(&mut self) -> io::Result<()> {
        if self.unread.is_empty() && !self.has_ended {
            self.unread.reserve(READ_BYTES_MAX);
            let mut room = (&mut self.unread).limit(READ_BYTES_MAX);
            match self.pipe.read_buf(&mut room).await {
                Ok(count) => self.has_ended = count == 0,
                Err(error) => {
                    tracing::debug!(%error, "a terminal cannot be read any more");
                    self.has_ended = true;
                }
            }
        }
        Ok(())
    }

    pub fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.unread.is_empty() && !self.has_ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = buffer.len().min(self.unread.len());
        self.unread.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

pub fn open(
    _guards: &GuardProgram,
    command: Command,
    size: PtySize,
) -> io::Result<(Guard, Control, Printed, Typing)> {
    // Always that of the system: no file beside this program takes its place.
    let backend = ConPtyBackend::system().map_err(io::Error::other)?;
    let options = SessionOptions::new().size(size_of(size)?).backend(backend);
    let session = in_console(&command).spawn_with(options).map_err(cause)?;
    let SessionParts { child, output, input, controller, .. } = session.into_parts();
    let (guard, control) = Guard::in_terminal(child);
    let printed = Printed { pipe: output, unread: BytesMut::new(), has_ended: false };
    Ok((guard, control, printed, Typing { pipe: input, console: controller }))
}

/// Returns the command in the form that a console starts.
fn in_console(command: &Command) -> conpty_oxide::tokio::Command {
    let command = command.as_std();
    let program = Path::new(command.get_program());
    let mut started = conpty_oxide::tokio::Command::new(program);
    for argument in command.get_args() {
        match shell::takes_line_as_it_is(program) {
            true => started.raw_arg(argument),
            false => started.arg(argument),
        };
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => started.env(name, value),
            None => started.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        started.current_dir(directory);
    }
    started
}

fn size_of((cols, rows): PtySize) -> io::Result<Size> {
    Size::try_new(cols, rows).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Returns the error of the system inside an error of the console, or else the latter.
fn cause(error: conpty_oxide::Error) -> io::Error {
    match error.io_error() {
        Some(source) => io::Error::new(source.kind(), source.to_string()),
        None => io::Error::other(error),
    }
}

pub fn set_size(terminal: &Typing, size: PtySize) -> io::Result<()> {
    terminal.console.resize(size_of(size)?).map_err(cause)
}

pub async fn write(terminal: &mut Typing, bytes: &[u8]) -> io::Result<usize> {
    terminal.pipe.write(&bytes[..bytes.len().min(WRITE_BYTES_MAX)]).await
}

pub fn foreground(_terminal: &Typing) -> Option<ForegroundGroup> {
    None
}

pub fn name_of(group: ForegroundGroup) -> Option<String> {
    match group {}
}

/// Returns false: the modes of a console are those of its programs, which do not show them.
pub fn seems_to_await_input(_terminal: &Typing) -> bool {
    false
}
