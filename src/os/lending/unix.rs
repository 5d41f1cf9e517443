//! Unix: descriptors are sent over the socket.
//!
//! Owns: the pipes in place of terminals, and the threads that copy.
//! Never: interprets a byte.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::io::Interest;

use super::Printing;
use crate::os::sockets::{BlockingStream, LocalListener, Stream};
use crate::os::stdio::{wait_until_readable, wait_until_writable};

/// File that a front has lent.
pub type LentFile = OwnedFd;

const CARRIED_BYTES: usize = 64 << 10;

/// Pipes lent in place of stdin and stdout; `None` for each that is no terminal.
#[derive(Debug)]
pub struct LentPipes {
    stdin: Option<(PipeReader, PipeWriter)>,
    stdout: Option<(PipeReader, PipeWriter)>,
}

impl LentPipes {
    /// Creates a pipe for each terminal. Copying begins later.
    ///
    /// # Errors
    /// When no more files can be opened.
    pub fn prepare() -> io::Result<Self> {
        let pipe = |is_terminal: bool| is_terminal.then(io::pipe).transpose();
        Ok(Self { stdin: pipe(io::stdin().is_terminal())?, stdout: pipe(io::stdout().is_terminal())? })
    }

    /// Sends a line to a host, with the files to use as stdin and stdout attached to its first
    /// bytes.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn lend(&self, stream: &BlockingStream, line: &[u8]) -> io::Result<()> {
        let (stdin, stdout) = (io::stdin(), io::stdout());
        let read = self.stdin.as_ref().map_or(stdin.as_fd(), |(read, _)| read.as_fd());
        let write = self.stdout.as_ref().map_or(stdout.as_fd(), |(_, write)| write.as_fd());
        let files = [read, write];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        if !attached.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(io::Error::other("stdin and stdout cannot be passed to the host"));
        }
        let sent = sendmsg(stream, &[IoSlice::new(line)], &mut attached, SendFlags::empty())?;
        let mut stream = stream;
        stream.write_all(line.get(sent..).unwrap_or_default())
    }

    /// Starts copying between the given terminals and the host, which has the other ends of the
    /// pipes. A file that is no terminal is closed, so that this process does not keep it open
    /// after the host has closed it.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn carry(self, (stdin, stdout): (File, File)) -> io::Result<Printing> {
        if let Some((_, to_host)) = self.stdin {
            thread::Builder::new()
                .name("stdin".to_owned())
                .spawn(move || carry::<File, PipeWriter>(&stdin, &to_host))?;
        }
        let Some((from_host, _)) = self.stdout else { return Ok(Printing(None)) };
        let (all, printed) = channel();
        let print = move || {
            carry::<PipeReader, File>(&from_host, &stdout);
            drop((from_host, all));
        };
        thread::Builder::new().name("stdout".to_owned()).spawn(print)?;
        Ok(Printing(Some(printed)))
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
            Err(error) if is_transient(&error, || wait_until_readable(from)) => continue,
            Err(_) => return,
        };
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            match writer.write(rest) {
                Ok(0) => return,
                Ok(written) => rest = &rest[written..],
                Err(error) if is_transient(&error, || wait_until_writable(to)) => {}
                Err(_) => return,
            }
        }
    }
}

/// Returns whether to retry. Waits if another process that shares the terminal made it
/// non-blocking.
fn is_transient(error: &io::Error, wait: impl FnOnce() -> io::Result<()>) -> bool {
    match error.kind() {
        ErrorKind::Interrupted => true,
        ErrorKind::WouldBlock => wait().is_ok(),
        _ => false,
    }
}

/// Reads bytes from a front, and the files that are attached to them. `WouldBlock` if there is
/// nothing to read.
///
/// # Errors
/// When the front cannot be read.
pub fn receive(stream: &Stream, line: &mut Vec<u8>, lent: &mut Vec<LentFile>) -> io::Result<usize> {
    stream.try_io(Interest::READABLE, || receive_now(stream, line, lent))
}

fn receive_now(stream: &Stream, line: &mut Vec<u8>, lent: &mut Vec<LentFile>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4096];
    #[cfg(target_os = "linux")]
    let flags = RecvFlags::CMSG_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = RecvFlags::empty();
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut files, flags)?;
    for message in files.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            for file in files {
                rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::CLOEXEC)?;
                lent.push(file);
            }
        }
    }
    line.extend_from_slice(&bytes[..received.bytes]);
    Ok(received.bytes)
}

/// Hands the lock of a folder and a listener over to a host that is about to start.
pub fn hand_over(command: &mut Command, lock: File, listener: LocalListener) {
    command.stdin(lock).stdout(OwnedFd::from(listener)).stderr(Stdio::null());
}
