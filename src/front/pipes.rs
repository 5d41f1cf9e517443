//! stdin and stdout, as they are lent to a host.
//!
//! A pipe, a socket or a file is lent itself. A terminal is not: it belongs to the jobs of its
//! session, and the host is in another one, so the system would let it read what is typed while the
//! front is stopped (`^Z`) or in the background, when it is meant for the shell. In its place the
//! host gets a pipe, and the front carries the bytes: when the system stops the front, nothing is
//! read from the terminal and nothing is printed on it.
//!
//! Owns: those pipes, and the threads that carry.
//! Never: looks at a byte.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{channel, Receiver};
use std::thread;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags};

/// Maximum number of bytes carried at once.
const CARRIED_BYTES: usize = 64 << 10;

/// Pipes that are lent in the place of stdin and stdout, where those are terminals.
#[derive(Debug)]
pub struct LentPipes {
    stdin: Option<(PipeReader, PipeWriter)>,
    stdout: Option<(PipeReader, PipeWriter)>,
}

/// Ends when everything is printed that the host has said.
#[derive(Debug)]
pub struct Printing(Option<Receiver<()>>);

impl LentPipes {
    /// Makes a pipe for each terminal. Nothing is carried yet.
    ///
    /// # Errors
    /// When no more files can be opened.
    pub fn prepare() -> io::Result<Self> {
        let pipe = |is_terminal: bool| is_terminal.then(io::pipe).transpose();
        Ok(Self { stdin: pipe(io::stdin().is_terminal())?, stdout: pipe(io::stdout().is_terminal())? })
    }

    /// Calls this with what the host is to have of stdin and stdout.
    pub fn with_ends<T>(&self, lend: impl FnOnce([BorrowedFd<'_>; 2]) -> T) -> T {
        let (stdin, stdout) = (io::stdin(), io::stdout());
        let read = self.stdin.as_ref().map_or(stdin.as_fd(), |(read, _)| read.as_fd());
        let write = self.stdout.as_ref().map_or(stdout.as_fd(), |(_, write)| write.as_fd());
        lend([read, write])
    }

    /// Begins to carry, between these and the host that has the other ends. What is not a terminal
    /// is closed: when the host closes it, nobody holds it open.
    ///
    /// # Errors
    /// When the system gives us no thread.
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
    /// Waits until all is printed, but no longer than this: a terminal may be stopped (`^S`).
    pub fn finish(self, within: Duration) {
        if let Some(printed) = self.0 {
            // Nothing is ever sent: the thread ends.
            if printed.recv_timeout(within) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                tracing::debug!("the terminal takes too long to print the last lines");
            }
        }
    }
}

/// Carries bytes until there are no more, or nobody takes them.
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

/// Returns whether an error is none; waits where somebody who shares the terminal has made it
/// non-blocking.
fn is_transient(error: &io::Error, file: &impl AsFd, what: PollFlags) -> bool {
    match error.kind() {
        ErrorKind::Interrupted => true,
        ErrorKind::WouldBlock => poll(&mut [PollFd::new(file, what)], None).is_ok(),
        _ => false,
    }
}
