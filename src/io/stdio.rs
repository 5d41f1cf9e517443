//! The two pipes of the protocol.
//!
//! Owns: taking stdin and stdout for the protocol alone, and a thread on each, so that a reader or
//! writer that is slow, stuck or gone holds up nobody else.
//! Never: reads a line's meaning.

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

/// Maximum number of bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// Takes stdin and stdout away from everything else in this process and its children: what anybody
/// else prints goes to stderr, and whoever reads stdin finds it empty.
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

/// A copy that no child inherits and that stays when the original is replaced.
fn private(file: impl AsFd) -> rustix::io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(file, 3)
}

/// Reads lines on a thread of their own, until the input ends or fails, or the other side of `stop`
/// is gone.
///
/// # Errors
/// When the system gives us none.
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
            // Somebody who shares the pipe has made it non-blocking.
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
            // When nobody listens any more, nobody wants to know.
            failure.map(|error| heard.send_blocking(Err(error)));
            return;
        }
    }
}

/// Waits until there is something to read, or its end; false when the other side of `stop` is gone.
fn has_something(stdin: &File, stop: &PipeReader) -> bool {
    let mut files = [PollFd::new(stdin, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
    while poll(&mut files, None) == Err(Errno::INTR) {}
    files[1].revents().is_empty()
}

/// Returns whether a read failed because the other side is gone: of a terminal, or of a socket that
/// was not read to its end.
fn is_an_end(error: &io::Error) -> bool {
    let ends = [Errno::IO, Errno::CONNRESET];
    ends.iter().any(|end| error.raw_os_error() == Some(end.raw_os_error()))
}

/// A chunk of up to this size is written without the thread if the pipe takes it at once.
const AT_ONCE_MAX: usize = 4 << 10;

/// The way to the thread that writes.
#[derive(Debug)]
pub struct Stdout {
    texts: Sender<Bytes>,
    file: File,
}

impl Stdout {
    /// Writes on a thread of its own.
    ///
    /// # Errors
    /// When the process can open no more files, or the system gives us no thread.
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
    /// An answer to a client that waits for it is spared the way over another thread.
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

/// Copies short lines together, so that one call writes many. That is done by the thread that made
/// them: the allocator is slow with memory that is freed by another one.
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

/// Writes what can be written without waiting, and returns how much that was. What the file thinks
/// of blocking does not matter, and is not changed. Errors are left to the thread, which meets them
/// again.
#[cfg(target_os = "linux")]
fn write_at_once(stdout: &File, bytes: &[u8]) -> usize {
    use rustix::io::{pwritev2, ReadWriteFlags};
    /// "Where the file stands."
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

/// Waits until a file that does not block can go on.
fn wait_for(file: &File, what: PollFlags) {
    if let Err(error) = poll(&mut [PollFd::new(file, what)], None) {
        tracing::debug!(%error, "waiting for a pipe has failed");
    }
}
