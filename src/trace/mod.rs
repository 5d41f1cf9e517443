//! Trace of a host: what took how long, message by message.
//!
//! The file is a JSON array of trace events, as Perfetto and Chrome's tracing open it: each line is
//! an event, written at once, and the closing bracket is missing, as the format allows. While no
//! trace is written, each place that is traced costs one check of a flag.
//!
//! Owns: the file, the clock of the trace, and which message is in which stage.
//! Never: writes what people or agents say, an id or a URI: methods, kinds of actions and channels,
//! sizes and times alone. Never delays or changes a message on purpose, or fails one because the
//! trace cannot be written.

mod command;
mod table;
mod tracks;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::Context;
use serde_json::{json, Value};

pub use self::command::{run, TraceArgs};
use self::tracks::{Tracks, PROCESS};
use crate::os::private;
use crate::shapes::Shape;
use crate::sync::lock;

/// Minimum time of a step of the core that no client has caused, in microseconds; shorter ones are
/// left out.
const OWN_STEP_US_MIN: f64 = 100.0;

/// True while a trace is written.
static IS_ON: AtomicBool = AtomicBool::new(false);

static RECORDER: Mutex<Option<TraceRecorder>> = Mutex::new(None);

/// Stage of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// From the line of a client to the core: parsing, lookups, translation.
    In,
    Core,
    /// From the end of a step to its commit.
    Stored,
    /// Translation of a frame for its client, and queueing it.
    Out,
    /// Writing a chunk to a client.
    Written,
    ToAgent,
    FromAgent,
}

impl Stage {
    const ALL: [Self; 7] =
        [Self::In, Self::Core, Self::Stored, Self::Out, Self::Written, Self::ToAgent, Self::FromAgent];

    /// Returns the name, which is also the category of the events.
    fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Core => "core",
            Self::Stored => "stored",
            Self::Out => "out",
            Self::Written => "written",
            Self::ToAgent => "to agent",
            Self::FromAgent => "from agent",
        }
    }
}

/// Line of a client that the core has not handled yet.
#[derive(Debug)]
struct PendingLine {
    number: u64,
    shape: Shape,
    at: Instant,
}

/// Message in the core.
#[derive(Debug)]
pub struct CoreSpan {
    at: Instant,
    line: Option<PendingLine>,
}

/// Step whose outputs wait for its commit.
#[derive(Debug)]
struct UncommittedStep {
    step: u64,
    at: Instant,
    lines: Vec<u64>,
}

#[derive(Debug)]
struct TraceRecorder {
    file: File,
    begin: Instant,
    /// Number of the last line of a client.
    last: u64,
    /// Lines that are not handled yet, by connection: each connection has one at most.
    pending: BTreeMap<u32, PendingLine>,
    /// Lines that the current step has handled.
    step: Vec<u64>,
    uncommitted: VecDeque<UncommittedStep>,
    tracks: Tracks,
}

impl TraceRecorder {
    fn micros(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.begin).as_nanos() as f64 / 1000.0
    }

    /// Writes an event that lasts from one moment to another.
    fn span(&mut self, stage: Stage, name: &str, from: Instant, until: Instant, details: Value) {
        let lasts = until.saturating_duration_since(from).as_nanos() as f64 / 1000.0;
        let (from, until) = (self.micros(from), self.micros(until));
        let (track, introduction) = self.tracks.place(stage.name(), from, until);
        if let Some(introduction) = introduction {
            self.write(&introduction);
        }
        self.write(&json!({ "name": name, "cat": stage.name(), "ph": "X", "ts": from, "dur": lasts,
            "pid": PROCESS, "tid": track, "args": details }));
    }

    fn write(&mut self, event: &Value) {
        if let Err(error) = self.file.write_all(format!("{event},\n").as_bytes()) {
            IS_ON.store(false, Ordering::Relaxed);
            tracing::warn!(%error, "the trace ends here: it cannot be written");
        }
    }
}

/// Starts writing a trace into a file, which must not exist.
///
/// # Errors
/// When the file cannot be created or written.
pub fn start(file: &Path) -> anyhow::Result<()> {
    let name = || format!("--trace: `{}`", file.display());
    private::write_new(file, b"[\n").with_context(name)?;
    let file = File::options().append(true).open(file).with_context(name)?;
    let mut recorder = TraceRecorder {
        file,
        begin: Instant::now(),
        last: 0,
        pending: BTreeMap::new(),
        step: Vec::new(),
        uncommitted: VecDeque::new(),
        tracks: Tracks::default(),
    };
    IS_ON.store(true, Ordering::Relaxed);
    recorder.write(
        &json!({ "name": "process_name", "ph": "M", "pid": PROCESS, "args": { "name": "ahp-sidecar" } }),
    );
    *lock(&RECORDER) = Some(recorder);
    Ok(())
}

/// Returns the stage of an event of a trace, by its category; `None` for another word.
pub fn known_stage(category: &str) -> Option<&'static str> {
    Stage::ALL.into_iter().map(Stage::name).find(|name| *name == category)
}

/// Returns whether a trace is written.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Returns the time if a trace is written.
#[inline]
pub fn now() -> Option<Instant> {
    is_on().then(Instant::now)
}

fn with(note: impl FnOnce(&mut TraceRecorder)) {
    let mut recorder = lock(&RECORDER);
    if let Some(recorder) = recorder.as_mut().filter(|_| is_on()) {
        note(recorder);
    }
}

/// Notes a line of a client, which is handled from now on.
#[cold]
pub fn client_line(connection: u32, line: &[u8]) {
    let at = Instant::now();
    let shape = Shape::of_line(line);
    with(|recorder| {
        recorder.last += 1;
        let number = recorder.last;
        recorder.pending.insert(connection, PendingLine { number, shape, at });
    });
}

/// Notes that the core begins to handle an input: a message of this client, if any.
#[cold]
pub fn core_begins(client: Option<u32>) -> CoreSpan {
    let at = Instant::now();
    let mut line = None;
    with(|recorder| {
        line = client.and_then(|connection| recorder.pending.remove(&connection));
        if let Some(line) = &line {
            let details = json!({ "line": line.number, "bytes": line.shape.bytes, "channel": line.shape.channel,
                "connection": client });
            recorder.span(Stage::In, &line.shape.name, line.at, at, details);
        }
    });
    CoreSpan { at, line }
}

/// Notes that the core has handled an input.
#[cold]
pub fn core_ends(span: CoreSpan) {
    let until = Instant::now();
    with(|recorder| match span.line {
        Some(line) => {
            recorder.step.push(line.number);
            recorder.span(Stage::Core, &line.shape.name, span.at, until, json!({ "line": line.number }));
        }
        None if recorder.micros(until) - recorder.micros(span.at) >= OWN_STEP_US_MIN => {
            recorder.span(Stage::Core, "of the host", span.at, until, json!({}));
        }
        None => {}
    });
}

/// Notes that the records of a step were given to the store at this time. Its outputs are released
/// already, or wait for the commit of this step.
#[cold]
pub fn step_ends(at: Instant, waits_for: Option<u64>) {
    let until = Instant::now();
    with(|recorder| {
        let lines = std::mem::take(&mut recorder.step);
        match waits_for {
            Some(step) => recorder.uncommitted.push_back(UncommittedStep { step, at, lines }),
            None if lines.is_empty() => {}
            None => recorder.span(Stage::Stored, "step", at, until, json!({ "lines": lines })),
        }
    });
}

/// Notes that all steps up to this one are committed.
#[cold]
pub fn steps_are_committed(up_to: u64) {
    let until = Instant::now();
    with(|recorder| {
        while recorder.uncommitted.front().is_some_and(|step| step.step <= up_to) {
            let Some(step) = recorder.uncommitted.pop_front() else { break };
            recorder.span(Stage::Stored, "step", step.at, until, json!({ "lines": step.lines }));
        }
    });
}

/// Notes a frame that was translated and queued for a client since this time.
#[cold]
pub fn frame_is_queued(connection: u32, at: Instant, is_answer: bool, bytes: usize) {
    let until = Instant::now();
    let name = if is_answer { "answer" } else { "notification" };
    with(|recorder| {
        recorder.span(Stage::Out, name, at, until, json!({ "connection": connection, "bytes": bytes }));
    });
}

/// Notes a chunk that was given to the writer of a client since this time.
#[cold]
pub fn chunk_is_written(connection: u32, at: Instant, bytes: usize) {
    let until = Instant::now();
    with(|recorder| {
        let details = json!({ "connection": connection, "bytes": bytes });
        recorder.span(Stage::Written, "chunk", at, until, details);
    });
}

/// Notes a line to an agent, or from one.
#[cold]
pub fn agent_line(is_to_agent: bool, line: &[u8]) {
    let now = Instant::now();
    let shape = Shape::of_line(line);
    let stage = if is_to_agent { Stage::ToAgent } else { Stage::FromAgent };
    with(|recorder| recorder.span(stage, &shape.name, now, now, json!({ "bytes": shape.bytes })));
}
