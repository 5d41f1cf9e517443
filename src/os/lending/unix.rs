//! Unix: descriptors are sent over the socket.
//!
//! Owns: the pipes in place of terminals, and the threads that copy.
//! Never: interprets a byte.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::io::Interest;

use super::Printing;
use crate::os::sockets::{self, BlockingStream, LocalListener, Stream};
use crate::os::stdio::{self, wait_until_readable, wait_until_writable};

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
    pub fn lend(&mut self, stream: &BlockingStream, line: &[u8]) -> io::Result<()> {
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
                .spawn(move || carry::<File, PipeWriter>(&stdin, &to_host, || {}))?;
        }
        let Some((from_host, _)) = self.stdout else { return Ok(Printing(None)) };
        let (chunks, printed) = channel();
        let print = move || {
            carry::<PipeReader, File>(&from_host, &stdout, || chunks.send(()).unwrap_or_default());
            drop((from_host, chunks));
        };
        thread::Builder::new().name("stdout".to_owned()).spawn(print)?;
        Ok(Printing(Some(printed)))
    }
}

/// Copies bytes until the input ends or the output fails. Calls `after_each` after each part.
fn carry<'a, R: AsFd, W: AsFd>(from: &'a R, to: &'a W, mut after_each: impl FnMut())
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
        after_each();
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

/// Reads bytes from a front, and the files that it lends. 0 bytes are the end.
///
/// # Errors
/// When the front cannot be read.
pub async fn receive(stream: &mut Stream, line: &mut Vec<u8>, lent: &mut Vec<LentFile>) -> io::Result<usize> {
    stream.async_io(Interest::READABLE, || receive_now(stream, line, lent)).await
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

/// Set if a host gets the lock of its folder and its listener from the front that starts it. Else
/// it locks the folder itself.
pub const HANDS_OVER: bool = true;

/// Host that this process has started.
#[derive(Debug)]
pub struct StartedHost(Child);

impl StartedHost {
    /// Starts a host, and hands the lock of a folder and a listener over to it.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(mut command: Command, handed_over: Option<(File, LocalListener)>) -> io::Result<Self> {
        if let Some((lock, listener)) = handed_over {
            command.stdin(lock).stdout(OwnedFd::from(listener));
        }
        command.stderr(Stdio::null()).spawn().map(Self)
    }

    /// Returns how the host has ended; `None` if it runs.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn exit_status(&mut self) -> io::Result<Option<String>> {
        Ok(self.0.try_wait()?.map(|status| status.to_string()))
    }

    /// Waits until the host has ended, as far as the system keeps a record of it until then.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn wait(mut self) -> io::Result<()> {
        self.0.wait().map(drop)
    }
}

/// Returns what a front has handed over to this process, its host; `None` if the system cannot.
///
/// # Errors
/// When stdin or stdout is not open.
pub fn take_over() -> anyhow::Result<Option<(File, LocalListener)>> {
    let (lock, listener) = stdio::take()?;
    Ok(Some((lock, sockets::take_over(listener)?)))
}
