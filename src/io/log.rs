//! The log on stderr, which may be read by nobody.
//!
//! Owns: writing log lines on a thread of their own, one line each whatever they quote. When stderr is
//! stuck, lines are dropped and counted; the protocol never waits for the log.
//! Never: writes to stdout, or shows a secret that this process has given away.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::Layer;

use crate::backend::secrets::hide;

/// How many lines may wait.
const LINES_MAX: usize = 1024;

/// How much of a line is kept, in bytes: a line may quote a whole message of a client.
const LINE_BYTES_MAX: usize = 8 << 10;

/// How large a file with the log gets, in bytes, before it is put aside in the place of the one before.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How long the end of the process waits for the last lines.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Starts the log with this filter: a level, or `target=level` pairs separated by commas. Panics are logged
/// too, instead of being printed. Who joins the audience reads it as well.
///
/// # Errors
/// When the system gives us no thread to write it.
pub fn start(filter: Targets, audience: Audience) -> io::Result<Log> {
    start_to(filter, Sink::Stderr, audience)
}

/// The same, into a file of bounded size, and to those who join the audience. What would be printed on stderr goes into
/// the file, too.
///
/// # Errors
/// When the system gives us no thread to write it.
pub fn start_in(filter: Targets, file: PathBuf, audience: Audience) -> io::Result<Log> {
    start_to(filter, Sink::open(file), audience)
}

fn start_to(filter: Targets, sink: Sink, audience: Audience) -> io::Result<Log> {
    let (sender, receiver) = sync_channel(LINES_MAX);
    let state = Arc::new(LogState::default());
    let log = Log { sender, state: Arc::clone(&state) };
    thread::Builder::new().name("log".to_owned()).spawn(move || write_lines(&receiver, &state, sink))?;
    let to_all = Lectern { log: log.clone(), audience };
    let layer = tracing_subscriber::fmt::layer().with_writer(to_all).with_ansi(false);
    tracing_subscriber::registry().with(filter).with(Concerned).with(layer).init();
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(log)
}

/// The way to the thread that writes.
#[derive(Debug, Clone)]
pub struct Log {
    sender: SyncSender<Vec<u8>>,
    state: Arc<LogState>,
}

#[derive(Debug, Default)]
struct LogState {
    accepted: AtomicU64,
    written: AtomicU64,
    dropped: AtomicU64,
}

impl Log {
    /// Waits until everything is written, but not for long.
    pub fn flush_briefly(&self) {
        let deadline = Instant::now() + FLUSH_MAX;
        while self.state.written.load(Ordering::Acquire) < self.state.accepted.load(Ordering::Acquire)
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes a line of another process's log, as it is.
    pub fn pass_on(&self, line: Vec<u8>) {
        let count = match self.sender.try_send(line) {
            Ok(()) => &self.state.accepted,
            Err(_) => &self.state.dropped,
        };
        count.fetch_add(1, Ordering::AcqRel);
    }
}

/// Who reads the log besides: each sees what concerns its connection and what concerns none, as far as it wants to.
#[derive(Debug, Clone, Default)]
pub struct Audience(Arc<Mutex<BTreeMap<u32, LogReader>>>);

/// One of them.
pub struct LogReader {
    filter: Targets,
    tell: Box<dyn Fn(String) + Send>,
}

impl LogReader {
    /// Who wants to see what passes this filter. What it is told by must neither wait nor log.
    pub fn new(filter: Targets, tell: impl Fn(String) + Send + 'static) -> Self {
        Self { filter, tell: Box::new(tell) }
    }
}

impl fmt::Debug for LogReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("filter", &self.filter).finish_non_exhaustive()
    }
}

impl Audience {
    /// The reader of a connection joins.
    pub fn join(&self, connection: u32, reader: LogReader) {
        self.readers().insert(connection, reader);
    }

    /// The reader of a connection leaves.
    pub fn leave(&self, connection: u32) {
        self.readers().remove(&connection);
    }

    /// Those who want to see what is about to be logged.
    fn who_wants(&self, meta: &Metadata<'_>) -> Vec<u32> {
        let concerns = CONCERNS.get();
        let wants = |(connection, reader): (&u32, &LogReader)| {
            let may = concerns.is_none_or(|it| it == *connection);
            (may && reader.filter.would_enable(meta.target(), meta.level())).then_some(*connection)
        };
        self.readers().iter().filter_map(wants).collect()
    }

    fn tell(&self, who: &[u32], line: &[u8]) {
        if who.is_empty() {
            return;
        }
        let readers = self.readers();
        for reader in who.iter().filter_map(|connection| readers.get(connection)) {
            (reader.tell)(String::from_utf8_lossy(line).into_owned());
        }
    }

    fn readers(&self) -> MutexGuard<'_, BTreeMap<u32, LogReader>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// The connection that what is about to be logged concerns, if it concerns one.
    static CONCERNS: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Finds out what an entry concerns before it is written.
struct Concerned;

impl<S: Subscriber> Layer<S> for Concerned {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        struct Connection(Option<u32>);
        impl Visit for Connection {
            fn record_u64(&mut self, field: &Field, value: u64) {
                if field.name() == "connection" {
                    self.0 = u32::try_from(value).ok();
                }
            }

            fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
        }
        let mut connection = Connection(None);
        event.record(&mut connection);
        CONCERNS.set(connection.0);
    }
}

/// The way to the thread that writes, and to the audience.
struct Lectern {
    log: Log,
    audience: Audience,
}

/// An entry on its way, and who wants to see it besides.
struct LogEntry<'a>(&'a Lectern, Vec<u32>);

impl Write for LogEntry<'_> {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        let line = one_line(hide(&String::from_utf8_lossy(entry)).as_bytes());
        self.0.audience.tell(&self.1, &line);
        self.0.log.pass_on(line);
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lectern {
    type Writer = LogEntry<'a>;

    fn make_writer(&'a self) -> LogEntry<'a> {
        LogEntry(self, Vec::new())
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> LogEntry<'a> {
        LogEntry(self, self.audience.who_wants(meta))
    }
}

/// Where lines go.
enum Sink {
    Stderr,
    /// A file, and so many bytes are in it.
    File(PathBuf, File, u64),
}

impl Sink {
    /// This file, which stderr goes into from now on; stderr as it is where there can be no such file.
    fn open(path: PathBuf) -> Self {
        let file = File::options().create(true).append(true).mode(0o600).open(&path);
        let opened = file.and_then(|file| {
            file.set_permissions(Permissions::from_mode(0o600))?;
            rustix::stdio::dup2_stderr(&file)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        });
        match opened {
            Ok((file, bytes)) => Self::File(path, file, bytes),
            Err(_) => Self::Stderr,
        }
    }
}

impl Write for Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Self::File(path, file, bytes) = self else { return io::stderr().write(line) };
        *bytes += line.len() as u64;
        if *bytes > FILE_BYTES_MAX {
            fs::rename(&path, path.with_extension("log.1"))?;
            *self = Self::open(path.clone());
            return self.write(line);
        }
        file.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An entry of the log as one line without anything that a terminal would obey.
fn one_line(entry: &[u8]) -> Vec<u8> {
    let entry = entry.strip_suffix(b"\n").unwrap_or(entry);
    let kept = String::from_utf8_lossy(&entry[..entry.len().min(LINE_BYTES_MAX)]);
    let mut line = String::with_capacity(kept.len() + 4);
    for c in kept.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line.push_str(if entry.len() > LINE_BYTES_MAX { "…\n" } else { "\n" });
    line.into_bytes()
}

fn write_lines(lines: &Receiver<Vec<u8>>, state: &LogState, mut sink: Sink) {
    for line in lines {
        let dropped = state.dropped.swap(0, Ordering::AcqRel);
        let written = if dropped > 0 {
            writeln!(sink, "({dropped} lines of this log were dropped: nobody read them)")
        } else {
            Ok(())
        };
        let written = written.and_then(|()| sink.write_all(&line));
        state.written.fetch_add(1, Ordering::AcqRel);
        if written.is_err() {
            // Nobody will ever read it.
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_one_line_that_no_terminal_obeys() {
        assert_eq!(one_line("WARN ä \"x\\n\"\n".as_bytes()), "WARN ä \"x\\n\"\n".as_bytes());
        assert_eq!(one_line(b"a\nERROR \x1b[31mb\n"), b"a\\nERROR \\u{1b}[31mb\n");
    }

    #[test]
    fn a_long_entry_is_cut() {
        let longest = [&[b'x'; LINE_BYTES_MAX][..], b"\n"].concat();
        assert_eq!(one_line(&longest), longest);
        assert_eq!(
            one_line(&[b'x'; LINE_BYTES_MAX + 1]),
            [&longest[..LINE_BYTES_MAX], "…\n".as_bytes()].concat()
        );
    }
}
