//! `record`: stands between a client and a host, and writes down what they say.
//!
//! Owns: starting the host, passing on every byte at once, and the end of both sides.
//! Never: changes or holds back a byte: what cannot be recorded is passed on all the same.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Sender};
use std::thread;

use anyhow::Context;
use clap::Args;

use super::recorder::{Recorder, Side};
use super::{host_command, HostFailure};
use crate::os::private;
use crate::os::process::BY_SIGNAL;
use crate::os::stdio::is_closed;

/// Size of a buffer for passing on, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

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
enum Passed {
    Bytes(Side, Vec<u8>),
    End(Side),
    Exited(io::Result<ExitStatus>),
}

/// Runs a host for the client on stdin and stdout, and records the conversation. Returns the exit
/// status of the host.
///
/// # Errors
/// When the file cannot be created or written, or the host cannot be started.
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
    let (events, passed) = channel();
    let (up, down) = (events.clone(), events.clone());
    thread::Builder::new().name("up".to_owned()).spawn(move || pass_up(to_host, &up))?;
    thread::Builder::new().name("down".to_owned()).spawn(move || pass_down(from_host, &down))?;
    thread::Builder::new().name("exit".to_owned()).spawn(move || {
        // The main thread may have ended.
        events.send(Passed::Exited(host.wait())).unwrap_or_default();
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
    let (mut status, mut host_is_silent) = (None, false);
    while status.is_none() || !host_is_silent {
        match passed.recv().context("the conversation cannot be followed")? {
            Passed::Bytes(side, bytes) => note(&|recorder| recorder.take(side, &bytes)),
            Passed::End(side) => {
                host_is_silent |= side == Side::Host;
                note(&|recorder| recorder.end(side));
            }
            Passed::Exited(exited) => status = Some(exited.context("the host cannot be waited for")?),
        }
    }
    for event in passed.try_iter() {
        if let Passed::Bytes(side, bytes) = event {
            note(&|recorder| recorder.take(side, &bytes));
        }
    }
    let status = status.and_then(|status| status.code());
    note(&|recorder| recorder.exit(status.unwrap_or(-1)));
    recorder.map(drop).with_context(|| format!("`{name}` is not complete"))?;
    let by_signal = u8::try_from(BY_SIGNAL).unwrap_or(u8::MAX);
    Ok(status.map_or(by_signal, |status| u8::try_from(status).unwrap_or(u8::MAX)))
}

/// Passes on what the client says, and its end.
///
/// Each side is recorded before it is passed on, so that no answer precedes its request.
fn pass_up(mut to_host: ChildStdin, events: &Sender<Passed>) {
    let passed = pass(&mut io::stdin().lock(), &mut to_host, |bytes| send(events, Side::Client, bytes));
    note_error("stdin of the host", passed);
    drop(to_host);
    // The main thread may have ended.
    events.send(Passed::End(Side::Client)).unwrap_or_default();
}

/// Passes on what the host sends. Its pipe is closed when the client reads no more, as if the
/// client had closed it.
fn pass_down(mut from_host: ChildStdout, events: &Sender<Passed>) {
    let passed = pass(&mut from_host, &mut io::stdout().lock(), |bytes| send(events, Side::Host, bytes));
    note_error("stdout", passed);
    drop(from_host);
    events.send(Passed::End(Side::Host)).unwrap_or_default();
}

fn send(events: &Sender<Passed>, side: Side, bytes: &[u8]) {
    events.send(Passed::Bytes(side, bytes.to_owned())).unwrap_or_default();
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

fn note_error(what: &str, passed: io::Result<()>) {
    if let Some(error) = passed.err().filter(|error| !is_closed(error)) {
        // stderr may be closed.
        writeln!(io::stderr(), "error: {what}: {error}").unwrap_or_default();
    }
}
