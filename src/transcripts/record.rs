//! `record`: stands between a client and a host, and writes down what they say.
//!
//! Owns: starting the host, passing on every byte at once, the queue to the recorder, and how both
//! sides end.
//! Never: changes or holds back a byte: what cannot be recorded is passed on all the same.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread;

use anyhow::Context;
use clap::Args;

use super::recorder::{Recorder, Side};
use super::{host_command, is_address, unreachable, HostFailure};
use crate::os::private;
use crate::os::process::BY_SIGNAL;
use crate::os::stdio::is_closed;
use crate::status::EXIT_NO_HOST;

/// Size of a buffer for passing on, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Maximum size of what has passed and is not written yet, in bytes.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Run a host for the client on stdin and stdout, and record the conversation as a transcript.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// File that is written; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write a log of one message per line, as VS Code does, in place of a transcript
    #[arg(long)]
    jsonl: bool,

    /// Command that starts the host, or its address: ws://HOST:PORT or unix:PATH [default: this
    /// program]
    #[arg(last = true, value_name = "HOST COMMAND")]
    host: Vec<OsString>,
}

/// Event of the conversation.
#[derive(Debug)]
enum Passed {
    Bytes(Side, Vec<u8>),
    End(Side),
    /// Output of the host that could not be passed on, with the reason.
    Lost(io::Error),
    Exited(io::Result<ExitStatus>),
    /// More has passed than can wait; what follows is not recorded.
    Overflow,
}

/// Memory of an event besides its bytes.
const EVENT_BYTES: usize = 128;

/// Sender of events to the recorder. It never blocks: a full queue ends the recording.
#[derive(Debug, Clone)]
struct PassedQueue {
    events: Sender<Passed>,
    waiting: Arc<WaitingBytes>,
}

/// Bytes that have passed and are not written yet.
#[derive(Debug, Default)]
struct WaitingBytes {
    count: AtomicUsize,
    overflowed: AtomicBool,
}

impl PassedQueue {
    fn new() -> (Self, Receiver<Passed>) {
        let (events, passed) = channel();
        (Self { events, waiting: Arc::default() }, passed)
    }

    fn send(&self, event: Passed) {
        // The main thread may have ended.
        self.events.send(event).unwrap_or_default();
    }

    fn send_bytes(&self, side: Side, bytes: &[u8]) {
        let WaitingBytes { count, overflowed } = &*self.waiting;
        let is_full = count.load(Ordering::Relaxed) + bytes.len() + EVENT_BYTES > QUEUE_BYTES_MAX;
        if is_full && !overflowed.swap(true, Ordering::Relaxed) {
            self.send(Passed::Overflow);
        }
        if !overflowed.load(Ordering::Relaxed) {
            count.fetch_add(bytes.len() + EVENT_BYTES, Ordering::Relaxed);
            self.send(Passed::Bytes(side, bytes.to_owned()));
        }
    }
}

impl WaitingBytes {
    fn are_written(&self, bytes: &[u8]) {
        self.count.fetch_sub(bytes.len() + EVENT_BYTES, Ordering::Relaxed);
    }
}

/// Runs a host for the client on stdin and stdout, and records the conversation. Returns the exit
/// status of the host.
///
/// # Errors
/// When the file or stdout cannot be written, or the host cannot be started.
pub fn record(arguments: &RecordArgs) -> anyhow::Result<u8> {
    let name = arguments.file.display();
    // A conversation may contain secrets.
    let file = private::options().write(true).create_new(true).open(&arguments.file);
    let file = file.with_context(|| format!("`{name}` cannot be created"))?;
    let mut host = host_command(&arguments.host, None);
    host.stdin(Stdio::piped()).stdout(Stdio::piped());
    let program = host.get_program().to_string_lossy().into_owned();
    let mut host = match host.spawn() {
        Ok(host) => host,
        Err(error) => {
            fs::remove_file(&arguments.file).with_context(|| format!("`{name}` cannot be removed"))?;
            return Err(HostFailure(format!("`{program}`: {error}")).into());
        }
    };
    let to_host = host.stdin.take().context("the host has no stdin")?;
    let from_host = host.stdout.take().context("the host has no stdout")?;
    let (events, passed) = PassedQueue::new();
    let (up, down, waiting) = (events.clone(), events.clone(), Arc::clone(&events.waiting));
    thread::Builder::new().name("up".to_owned()).spawn(move || pass_up(to_host, &up))?;
    thread::Builder::new().name("down".to_owned()).spawn(move || pass_down(from_host, &down))?;
    thread::Builder::new().name("exit".to_owned()).spawn(move || {
        events.send(Passed::Exited(host.wait()));
    })?;

    let begin = || if arguments.jsonl { Ok(Recorder::jsonl(file)) } else { Recorder::transcript(file) };
    let mut recorder = begin();
    let mut note = |what: &dyn Fn(&mut Recorder<_>) -> io::Result<()>| {
        if let Ok(open) = &mut recorder {
            if let Err(error) = what(open) {
                recorder = Err(error);
            }
        }
    };
    let (mut status, mut host_is_silent, mut lost) = (None, false, None);
    while status.is_none() || !host_is_silent {
        match passed.recv().context("the conversation cannot be followed")? {
            Passed::Bytes(side, bytes) => {
                note(&|recorder| recorder.take(side, &bytes));
                waiting.are_written(&bytes);
            }
            Passed::Overflow => note(&|_| Err(overflow())),
            Passed::End(side) => {
                host_is_silent |= side == Side::Host;
                note(&|recorder| recorder.end(side));
            }
            Passed::Lost(error) => lost = Some(error),
            Passed::Exited(exited) => status = Some(exited.context("the host cannot be waited for")?),
        }
    }
    for event in passed.try_iter() {
        match event {
            Passed::Bytes(side, bytes) => note(&|recorder| recorder.take(side, &bytes)),
            Passed::Overflow => note(&|_| Err(overflow())),
            Passed::End(_) | Passed::Lost(_) | Passed::Exited(_) => {}
        }
    }
    let status = status.and_then(|status| status.code());
    if is_address(&arguments.host) && status == Some(i32::from(EXIT_NO_HOST)) {
        drop(recorder);
        fs::remove_file(&arguments.file).with_context(|| format!("`{name}` cannot be removed"))?;
        return Err(unreachable(&arguments.host).into());
    }
    note(&|recorder| recorder.exit(status.unwrap_or(-1)));
    recorder.map(drop).or_else(|error| {
        // A recording of nothing would only be in the way of the next one.
        if fs::metadata(&arguments.file).is_ok_and(|file| file.len() == 0) {
            fs::remove_file(&arguments.file).with_context(|| format!("`{name}` cannot be removed"))?;
        }
        Err(error).with_context(|| format!("`{name}` is not complete"))
    })?;
    lost.map_or(Ok(()), Err).context("stdout cannot be written")?;
    let by_signal = u8::try_from(BY_SIGNAL).unwrap_or(u8::MAX);
    Ok(status.map_or(by_signal, |status| u8::try_from(status).unwrap_or(u8::MAX)))
}

/// Passes on what the client says, and its end.
///
/// Each side is recorded before it is passed on, so that no answer precedes its request.
fn pass_up(mut to_host: ChildStdin, events: &PassedQueue) {
    let passed = pass(&mut io::stdin().lock(), &mut to_host, |bytes| events.send_bytes(Side::Client, bytes));
    if let Some(error) = passed.err().filter(|error| !is_closed(error)) {
        // stderr may be closed.
        writeln!(io::stderr(), "error: stdin of the host: {error}").unwrap_or_default();
    }
    drop(to_host);
    events.send(Passed::End(Side::Client));
}

/// Passes on what the host sends. Its pipe is closed when the client reads no more, as if the
/// client had closed it.
fn pass_down(mut from_host: ChildStdout, events: &PassedQueue) {
    let passed = pass(&mut from_host, &mut io::stdout().lock(), |bytes| events.send_bytes(Side::Host, bytes));
    drop(from_host);
    if let Some(error) = passed.err().filter(|error| !is_closed(error)) {
        events.send(Passed::Lost(error));
    }
    events.send(Passed::End(Side::Host));
}

/// Returns the reason of a recording that could not keep up.
fn overflow() -> io::Error {
    let mebibytes = QUEUE_BYTES_MAX >> 20;
    io::Error::other(format!(
        "the recording stopped when {mebibytes} MiB waited to be written; everything was passed on"
    ))
}

/// Copies bytes until either side ends.
fn pass(from: &mut dyn Read, to: &mut dyn Write, before: impl Fn(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if length == 0 {
            return Ok(());
        }
        before(&buffer[..length]);
        to.write_all(&buffer[..length])?;
        to.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_that_falls_behind_stops_and_holds_up_nobody() {
        let (queue, passed) = PassedQueue::new();
        let part = vec![0; QUEUE_BYTES_MAX / 4 - EVENT_BYTES];
        // Each call returns although the events are not received.
        (0..8).for_each(|_| queue.send_bytes(Side::Host, &part));
        let events: Vec<Passed> = passed.try_iter().collect();
        assert_eq!(events.len(), 5);
        assert!(events[..4].iter().all(|event| matches!(event, Passed::Bytes(..))));
        assert!(matches!(events[4], Passed::Overflow));
        // A gap in the middle would be worse than an early end.
        (0..4).for_each(|_| queue.waiting.are_written(&part));
        queue.send_bytes(Side::Host, &part);
        assert!(passed.try_recv().is_err());
    }
}
