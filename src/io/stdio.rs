//! The two pipes of the protocol.
//!
//! Owns: stdin and stdout, and a thread on each, so that a slow or stuck peer blocks nothing else.
//! Never: interprets a line.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use bytes::{Buf, Bytes, BytesMut};
use tokio_util::codec::Decoder;

use super::link::{ClientLines, LineSink, Receipts, WriteOutcome, CHUNK_BYTES, COPY_BELOW};
use crate::codec::LineCodec;
use crate::os::limits::limit_behind;
use crate::os::stdio::{
    is_closed, is_end, wait_for_input, wait_until_readable, wait_until_writable, write_at_once,
};

const READ_BYTES: usize = 64 << 10;

/// Maximum bytes of reads until one of them is full: clearing a large buffer takes longer than the
/// rest of a reader's start, and many clients never fill it.
const FIRST_READ_BYTES: usize = 4 << 10;

/// Starts a thread that reads lines until the input ends or the other end of `stop` is closed.
///
/// # Errors
/// When the system starts no thread.
pub fn read_lines(
    stdin: File,
    line_bytes_max: usize,
    client: ClientLines,
    stop: Option<PipeReader>,
) -> io::Result<()> {
    let work = move || read_all(stdin, LineCodec::new(line_bytes_max), &client, stop.as_ref());
    thread::Builder::new().name("stdin".to_owned()).spawn(work).map(drop)
}

fn read_all(mut stdin: File, mut codec: LineCodec, client: &ClientLines, stop: Option<&PipeReader>) {
    let mut chunk = vec![0; FIRST_READ_BYTES];
    let mut buffer = BytesMut::new();
    loop {
        let mut failure = None;
        if stop.is_some_and(|stop| !wait_for_input(&stdin, stop)) {
            return;
        }
        let read = match stdin.read(&mut chunk) {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // Another process that shares the pipe has made it nonblocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                note_failure(wait_until_readable(&stdin));
                continue;
            }
            Err(error) => {
                failure = Some(error).filter(|error| !is_end(error));
                0
            }
        };
        buffer.extend_from_slice(&chunk[..read]);
        if read == chunk.len() {
            chunk.resize(READ_BYTES, 0);
        }
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
        client.received().set_unfinished(buffer.len());
        let listens = lines.is_empty() || client.send_blocking(Ok(lines));
        if !listens || stop {
            // The result does not matter: the connection may be closed.
            failure.map(|error| client.send_blocking(Err(error)));
            return;
        }
    }
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
                Err(error) if is_closed(&error) => WriteOutcome::Gone,
                Err(error) => WriteOutcome::Failed(error),
            };
            let goes_on = matches!(outcome, WriteOutcome::Bytes(_));
            if !receipts.send(outcome) || !goes_on {
                return;
            }
        }
    }
}

fn write_patiently(stdout: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stdout.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                note_failure(wait_until_writable(stdout));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn note_failure(waited: io::Result<()>) {
    if let Err(error) = waited {
        tracing::debug!(%error, "waiting for a pipe has failed");
    }
}
