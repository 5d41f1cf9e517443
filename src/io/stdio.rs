//! The two pipes of the protocol.
//!
//! Owns: stdin and stdout, and a thread on each, so that a slow or stuck peer blocks nothing else.
//! Never: interprets a line.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use anyhow::Context;
use bytes::{Buf, Bytes, BytesMut};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use tokio_util::codec::Decoder;

use super::descriptors::limit_behind;
use super::link::{ClientLines, LineSink, Receipts, WriteOutcome, CHUNK_BYTES, COPY_BELOW};
use crate::codec::LineCodec;

const READ_BYTES: usize = 64 << 10;

/// Reserves stdin and stdout for the protocol. Other output of this process and its children goes
/// to stderr, and other reads of stdin find it empty.
///
/// # Errors
/// When stdin or stdout is not open.
pub fn take() -> anyhow::Result<(File, File)> {
    let stdin = private(io::stdin()).context("stdin is not open")?;
    let stdout = private(io::stdout()).context("stdout is not open")?;
    let null = File::open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdin(&null).context("cannot replace stdin")?;
    match private(io::stderr()) {
        Ok(stderr) => rustix::stdio::dup2_stdout(stderr),
        Err(_) => rustix::stdio::dup2_stdout(File::create("/dev/null").context("cannot open /dev/null")?),
    }
    .context("cannot replace stdout")?;
    Ok((stdin.into(), stdout.into()))
}

/// Duplicates a descriptor for this process alone; the copy survives a replaced original.
fn private(file: impl AsFd) -> rustix::io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(file, 3)
}

/// Starts a thread that reads lines until the input ends or the other end of `stop` is closed.
///
/// # Errors
/// When the system starts no thread.
pub fn read_lines(
    stdin: File,
    line_bytes_max: usize,
    heard: ClientLines,
    stop: Option<PipeReader>,
) -> io::Result<()> {
    let work = move || read_all(stdin, LineCodec::new(line_bytes_max), &heard, stop.as_ref());
    thread::Builder::new().name("stdin".to_owned()).spawn(work).map(drop)
}

fn read_all(mut stdin: File, mut codec: LineCodec, heard: &ClientLines, stop: Option<&PipeReader>) {
    let mut chunk = vec![0; READ_BYTES];
    let mut buffer = BytesMut::new();
    loop {
        let mut failure = None;
        if stop.is_some_and(|stop| !has_something(&stdin, stop)) {
            return;
        }
        let read = match stdin.read(&mut chunk) {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // Another process that shares the pipe has made it nonblocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_for(&stdin, PollFlags::IN);
                continue;
            }
            Err(error) => {
                failure = Some(error).filter(|error| !is_an_end(error));
                0
            }
        };
        buffer.extend_from_slice(&chunk[..read]);
        let mut lines = Vec::new();
        let mut stop = read == 0;
        loop {
            match if read == 0 { codec.decode_eof(&mut buffer) } else { codec.decode(&mut buffer) } {
                Ok(Some(line)) => lines.push(line),
                Ok(None) => break,
                Err(error) => {
                    (failure, stop) = (Some(error), true);
                    break;
                }
            }
        }
        heard.received().set_unfinished(buffer.len());
        let listens = lines.is_empty() || heard.send_blocking(Ok(lines));
        if !listens || stop {
            // The result does not matter: the connection may be closed.
            failure.map(|error| heard.send_blocking(Err(error)));
            return;
        }
    }
}

/// Waits for input or its end. Returns false if the other end of `stop` is closed.
fn has_something(stdin: &File, stop: &PipeReader) -> bool {
    let mut files = [PollFd::new(stdin, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    while poll(&mut files, None) == Err(Errno::INTR) {}
    files[1].revents().is_empty()
}

/// Returns whether the peer is gone: a closed terminal, or a socket closed with unread data.
fn is_an_end(error: &io::Error) -> bool {
    let ends = [Errno::IO, Errno::CONNRESET];
    ends.iter().any(|end| error.raw_os_error() == Some(end.raw_os_error()))
}

/// Maximum size of a chunk that is written without the thread, in bytes.
const AT_ONCE_MAX: usize = 4 << 10;

/// Handle of the thread that writes to stdout.
#[derive(Debug)]
pub struct Stdout {
    texts: Sender<Bytes>,
    file: File,
}

impl Stdout {
    /// Starts the writing thread.
    ///
    /// # Errors
    /// When no more files can be opened, or the system starts no thread.
    pub fn start(stdout: File, receipts: Receipts) -> io::Result<Self> {
        let (texts, receiver) = std::sync::mpsc::channel();
        let writer = Self { texts, file: stdout.try_clone()? };
        let work = move || write_all(stdout, &receiver, &receipts);
        let spawned = thread::Builder::new().name("stdout".to_owned()).spawn(work);
        spawned.map_err(|error| {
            io::Error::other(format!("no thread to write with{}: {error}", limit_behind(&error)))
        })?;
        Ok(writer)
    }
}

impl LineSink for Stdout {
    /// Writes a small chunk at once if possible, which saves an answer the detour over the thread.
    fn write(&mut self, chunk: Vec<Bytes>) -> usize {
        let mut written = 0;
        let mut texts = joined(chunk);
        if let [text] = &mut texts[..] {
            if text.len() <= AT_ONCE_MAX {
                written = write_at_once(&self.file, text);
                text.advance(written);
            }
        }
        for text in texts.into_iter().filter(|text| !text.is_empty()) {
            if self.texts.send(text).is_err() {
                tracing::debug!("bytes were dropped: the thread that writes to stdout has ended");
            }
        }
        written
    }
}

/// Copies short lines into one buffer, so that one call writes many. Runs on the thread that made
/// the lines, because the allocator is slow with memory that another thread frees.
fn joined(lines: Vec<Bytes>) -> Vec<Bytes> {
    let is_short = |line: &&Bytes| line.len() < COPY_BELOW;
    let short_bytes = lines.iter().filter(is_short).map(Bytes::len).sum();
    let (mut texts, mut short) = (Vec::new(), Vec::with_capacity(short_bytes));
    for line in lines {
        if is_short(&&line) {
            short.extend_from_slice(&line);
        } else {
            if !short.is_empty() {
                texts.push(Bytes::from(std::mem::take(&mut short)));
            }
            texts.push(line);
        }
    }
    if !short.is_empty() {
        texts.push(short.into());
    }
    texts
}

fn write_all(mut stdout: File, texts: &Receiver<Bytes>, receipts: &Receipts) {
    for text in texts {
        for part in text.chunks(CHUNK_BYTES) {
            let outcome = match write_patiently(&mut stdout, part) {
                Ok(()) => WriteOutcome::Bytes(part.len()),
                Err(error) if error.kind() == ErrorKind::BrokenPipe => WriteOutcome::Gone,
                Err(error) => WriteOutcome::Failed(error),
            };
            let goes_on = matches!(outcome, WriteOutcome::Bytes(_));
            if !receipts.send(outcome) || !goes_on {
                return;
            }
        }
    }
}

/// Writes as much as fits without blocking, and returns the number of bytes. Neither needs nor
/// changes the blocking mode of the file. Errors recur on the thread, which reports them.
#[cfg(target_os = "linux")]
fn write_at_once(stdout: &File, bytes: &[u8]) -> usize {
    use rustix::io::{pwritev2, ReadWriteFlags};
    /// Offset that stands for the current position of the file.
    const HERE: u64 = u64::MAX;
    pwritev2(stdout, &[io::IoSlice::new(bytes)], HERE, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
fn write_at_once(_stdout: &File, _bytes: &[u8]) -> usize {
    0
}

fn write_patiently(stdout: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stdout.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait_for(stdout, PollFlags::OUT),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_for(file: &File, what: PollFlags) {
    if let Err(error) = poll(&mut [PollFd::new(file, what)], None) {
        tracing::debug!(%error, "waiting for a pipe has failed");
    }
}
