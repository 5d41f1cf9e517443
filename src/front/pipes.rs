//! stdin and stdout, as they are lent to a host.
//!
//! A pipe, a socket or a file is lent itself, a terminal is not. Terminals belong to the jobs of
//! their session, and the host is in another one: it could read input while the front is stopped
//! (`^Z`) or in the background, when that is meant for the shell. Therefore the host gets a pipe,
//! and the front copies the bytes: while the front is stopped, the terminal is neither read nor
//! written.
//!
//! Owns: the pipes, and the threads that copy.
//! Never: interprets a byte.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{channel, Receiver};
use std::thread;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags};

const CARRIED_BYTES: usize = 64 << 10;

/// Pipes lent in place of stdin and stdout; `None` for each that is no terminal.
#[derive(Debug)]
pub struct LentPipes {
    stdin: Option<(PipeReader, PipeWriter)>,
    stdout: Option<(PipeReader, PipeWriter)>,
}

/// Signal that all output of the host is printed; `None` if stdout is no terminal.
#[derive(Debug)]
pub struct Printing(Option<Receiver<()>>);

impl LentPipes {
    /// Creates a pipe for each terminal. Copying begins later.
    ///
    /// # Errors
    /// When no more files can be opened.
    pub fn prepare() -> io::Result<Self> {
        let pipe = |is_terminal: bool| is_terminal.then(io::pipe).transpose();
        Ok(Self { stdin: pipe(io::stdin().is_terminal())?, stdout: pipe(io::stdout().is_terminal())? })
    }

    /// Calls `lend` with the files that the host uses as stdin and stdout.
    pub fn with_ends<T>(&self, lend: impl FnOnce([BorrowedFd<'_>; 2]) -> T) -> T {
        let (stdin, stdout) = (io::stdin(), io::stdout());
        let read = self.stdin.as_ref().map_or(stdin.as_fd(), |(read, _)| read.as_fd());
        let write = self.stdout.as_ref().map_or(stdout.as_fd(), |(_, write)| write.as_fd());
        lend([read, write])
    }

    /// Starts copying between the given terminals and the host, which has the other ends of the
    /// pipes. A file that is no terminal is closed, so that this process does not keep it open
    /// after the host has closed it.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn carry(self, (stdin, stdout): (File, File)) -> io::Result<Printing> {
        if let Some((_, to_host)) = self.stdin {
            thread::Builder::new().name("stdin".to_owned()).spawn(move || carry(&stdin, &to_host))?;
        }
        let Some((from_host, _)) = self.stdout else { return Ok(Printing(None)) };
        let (all, printed) = channel();
        let print = move || {
            carry(&from_host, &stdout);
            drop((from_host, all));
        };
        thread::Builder::new().name("stdout".to_owned()).spawn(print)?;
        Ok(Printing(Some(printed)))
    }
}

impl Printing {
    /// Waits until all output is printed, up to `within`: a terminal may be stopped (`^S`).
    pub fn finish(self, within: Duration) {
        if let Some(printed) = self.0 {
            // The channel carries no message: it closes when the thread ends.
            if printed.recv_timeout(within) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                tracing::debug!("the terminal takes too long to print the last lines");
            }
        }
    }
}

/// Copies bytes until the input ends or the output fails.
fn carry<'a, R: AsFd, W: AsFd>(from: &'a R, to: &'a W)
where
    &'a R: Read,
    &'a W: Write,
{
    let (mut reader, mut writer) = (from, to);
    let mut buffer = vec![0; CARRIED_BYTES];
    loop {
        let read = match reader.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if is_transient(&error, from, PollFlags::IN) => continue,
            Err(_) => return,
        };
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            match writer.write(rest) {
                Ok(0) => return,
                Ok(written) => rest = &rest[written..],
                Err(error) if is_transient(&error, to, PollFlags::OUT) => {}
                Err(_) => return,
            }
        }
    }
}

/// Returns whether to retry. Waits if another process that shares the terminal made it
/// non-blocking.
fn is_transient(error: &io::Error, file: &impl AsFd, what: PollFlags) -> bool {
    match error.kind() {
        ErrorKind::Interrupted => true,
        ErrorKind::WouldBlock => poll(&mut [PollFd::new(file, what)], None).is_ok(),
        _ => false,
    }
}
