//! The log on stderr or in a file, and its copies for fronts.
//!
//! Owns: writing log lines on a separate thread, each entry as one line. If stderr is stuck, lines
//! are dropped and counted; the protocol never waits for the log. A repeated warning is written
//! once and then counted ([`Repeats`]).
//! Never: writes to stdout, or shows a secret that this process has given to an agent.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tracing::callsite::rebuild_interest_cache;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;

use crate::backend::secrets::redact;
use crate::io::telemetry::LogExports;
use crate::os::{private, stderr};
use crate::sync::lock;

/// Maximum number of lines queued for the writing thread; further lines are dropped.
const LINES_MAX: usize = 1024;

/// Maximum length of a line, in bytes; the rest is cut off. A line may quote a whole message.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Size above which the log file is rotated, in bytes. One older file is retained.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum time that the end of the process waits for the last lines.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Starts the log on stderr with this filter: a level, or `target=level` pairs separated by commas.
/// Panics are logged instead of printed. Log readers that join receive entries, too.
///
/// # Errors
/// When the system starts no thread.
pub fn start(filter: Targets, log_readers: LogReaders) -> io::Result<Log> {
    start_to(filter, Sink::Stderr, log_readers)
}

/// Starts the log as [`start`] does, but in a file of bounded size, to which stderr is redirected.
///
/// # Errors
/// When the system starts no thread.
pub fn start_in(filter: Targets, file: PathBuf, log_readers: LogReaders) -> io::Result<Log> {
    start_to(filter, Sink::open(file), log_readers)
}

fn start_to(filter: Targets, sink: Sink, log_readers: LogReaders) -> io::Result<Log> {
    let (sender, receiver) = sync_channel(LINES_MAX);
    let state = Arc::new(LogState::default());
    let log = Log { sender, state: Arc::clone(&state), log_readers, exports: LogExports::default() };
    let of_thread = log.clone();
    thread::Builder::new().name("log".to_owned()).spawn(move || of_thread.write_lines(&receiver, sink))?;
    let subscriber = LogSubscriber { filter, log: log.clone() };
    tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
    std::panic::set_hook(Box::new(|panic| tracing::error!("a panic: {panic}")));
    Ok(log)
}

/// Handle of the thread that writes the log.
#[derive(Debug, Clone)]
pub struct Log {
    sender: SyncSender<Vec<u8>>,
    state: Arc<LogState>,
    log_readers: LogReaders,
    exports: LogExports,
}

#[derive(Debug, Default)]
struct LogState {
    accepted: AtomicU64,
    written: AtomicU64,
    dropped: AtomicU64,
    repeats: Mutex<Repeats>,
}

impl Log {
    /// Returns the streams in which clients receive the log.
    pub fn exports(&self) -> LogExports {
        self.exports.clone()
    }

    /// Waits until all lines are written, for at most half a second.
    pub fn flush_briefly(&self) {
        let counted = self.state.repeats().take_all();
        self.write_counts(counted);
        let deadline = Instant::now() + FLUSH_MAX;
        while self.state.written.load(Ordering::Acquire) < self.state.accepted.load(Ordering::Acquire)
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Queues a line of another process's log unchanged, or drops it if the queue is full.
    pub fn forward(&self, line: Vec<u8>) {
        let count = match self.sender.try_send(line) {
            Ok(()) => &self.state.accepted,
            Err(_) => &self.state.dropped,
        };
        count.fetch_add(1, Ordering::AcqRel);
    }
}

/// Additional readers of the log, one per connection. Each receives the entries that pass its
/// filter and concern its connection or no connection.
#[derive(Debug, Clone, Default)]
pub struct LogReaders(Arc<Mutex<BTreeMap<u32, LogReader>>>);

/// Reader of the log with a filter of its own.
pub struct LogReader {
    filter: Targets,
    sink: Box<dyn Fn(String) + Send>,
}

impl LogReader {
    /// Creates a reader of entries that pass this filter. `sink` must neither block nor log.
    pub fn new(filter: Targets, sink: impl Fn(String) + Send + 'static) -> Self {
        Self { filter, sink: Box::new(sink) }
    }
}

impl fmt::Debug for LogReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("filter", &self.filter).finish_non_exhaustive()
    }
}

impl LogReaders {
    /// Adds the reader of a connection.
    pub fn join(&self, connection: u32, reader: LogReader) {
        self.readers().insert(connection, reader);
        rebuild_interest_cache();
    }

    /// Removes the reader of a connection.
    pub fn leave(&self, connection: u32) {
        if self.readers().remove(&connection).is_some() {
            rebuild_interest_cache();
        }
    }

    fn interested_readers(&self, meta: &Metadata<'_>, concerned: Option<u32>) -> Vec<u32> {
        let wants = |(connection, reader): (&u32, &LogReader)| {
            let may = concerned.is_none_or(|it| it == *connection);
            (may && reader.filter.would_enable(meta.target(), meta.level())).then_some(*connection)
        };
        self.readers().iter().filter_map(wants).collect()
    }

    fn send(&self, who: &[u32], line: &[u8]) {
        if who.is_empty() {
            return;
        }
        let readers = self.readers();
        for reader in who.iter().filter_map(|connection| readers.get(connection)) {
            (reader.sink)(String::from_utf8_lossy(line).into_owned());
        }
    }

    fn readers(&self) -> MutexGuard<'_, BTreeMap<u32, LogReader>> {
        lock(&self.0)
    }
}

/// Subscriber of the process's events. This program opens no spans.
struct LogSubscriber {
    filter: Targets,
    log: Log,
}

impl Subscriber for LogSubscriber {
    fn enabled(&self, meta: &Metadata<'_>) -> bool {
        self.writes(meta) || !self.log.log_readers.interested_readers(meta, None).is_empty()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let readers = self.log.log_readers.readers();
        let levels = readers.values().filter_map(|reader| max_level(&reader.filter));
        levels.chain(max_level(&self.filter)).max()
    }

    fn event(&self, event: &Event<'_>) {
        let meta = event.metadata();
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ");
        let begin = format!("{now} {:>5} {}:", meta.level(), meta.target());
        let mut entry = LogEntry { text: begin, connection: None };
        event.record(&mut entry);
        let line = one_line(redact(&entry.text).as_bytes());
        let who = self.log.log_readers.interested_readers(meta, entry.connection);
        let (is_new, who) = if *meta.level() <= Level::WARN {
            self.log.note(&line, who, self.writes(meta))
        } else {
            (true, who)
        };
        self.log.log_readers.send(&who, &line);
        if is_new && self.writes(meta) {
            self.log.exports.note(event, entry.connection);
            self.log.forward(line);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl LogSubscriber {
    /// Returns whether an entry belongs in the log itself, and not only in the copies of readers.
    fn writes(&self, meta: &Metadata<'_>) -> bool {
        self.filter.would_enable(meta.target(), meta.level())
    }
}

fn max_level(filter: &Targets) -> Option<LevelFilter> {
    filter.iter().map(|(_, level)| level).chain(filter.default_level()).max()
}

struct LogEntry {
    text: String,
    connection: Option<u32>,
}

impl Visit for LogEntry {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "connection" {
            self.connection = u32::try_from(value).ok();
        }
        self.record_debug(field, &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = match field.name() {
            "message" => format!(" {value:?}"),
            name => format!(" {name}={value:?}"),
        };
        self.text.push_str(&text);
    }
}

/// Maximum number of warnings that are remembered to recognize repetitions.
const REMEMBERED_MAX: usize = 64;

/// Interval at which the count of a repeated warning is written.
const COUNTED_FOR: Duration = Duration::from_secs(30);

/// Recent warnings, each with the number of its repetitions.
#[derive(Debug, Default)]
struct Repeats(VecDeque<Repeated>);

/// Warning without its timestamp.
#[derive(Debug)]
struct Repeated {
    text: Vec<u8>,
    /// Number of repetitions not yet written.
    count: u64,
    since: Instant,
    /// Readers that have received the warning.
    who: Vec<u32>,
    /// Set if the log has the warning, and not only its readers.
    is_written: bool,
}

/// Count of a repeated warning.
#[derive(Debug, PartialEq)]
struct RepeatCount {
    line: Vec<u8>,
    /// Readers to send it to.
    who: Vec<u32>,
    /// Set if the log has the warning, and not only its readers.
    is_written: bool,
}

impl Repeated {
    /// Returns the line with the count, if not zero, and restarts the counting.
    fn take(&mut self, now: Instant) -> Option<RepeatCount> {
        let (count, since) = (std::mem::take(&mut self.count), std::mem::replace(&mut self.since, now));
        let text = String::from_utf8_lossy(&self.text);
        let times = if count == 1 { "once more".to_owned() } else { format!("{count} more times") };
        let within = now.saturating_duration_since(since).as_secs().max(1);
        let line = format!("({times} within {within} s:{})\n", text.trim_end());
        let (line, who, is_written) = (line.into_bytes(), self.who.clone(), self.is_written);
        (count > 0).then_some(RepeatCount { line, who, is_written })
    }
}

impl Repeats {
    /// Records a line. Returns false if it repeats a recent one and must not be written, and the
    /// readers among these that have not received it.
    fn note(&mut self, line: &[u8], mut who: Vec<u32>, is_written: bool, now: Instant) -> (bool, Vec<u32>) {
        let text = line.iter().position(|byte| *byte == b' ').map_or(line, |at| &line[at..]);
        if let Some(repeated) = self.0.iter_mut().find(|repeated| repeated.text == text) {
            repeated.count += 1;
            who.retain(|reader| !repeated.who.contains(reader));
            repeated.who.extend(&who);
            return (false, who);
        }
        let new = || Repeated { text: text.to_vec(), count: 0, since: now, who: who.clone(), is_written };
        if self.0.len() < REMEMBERED_MAX {
            self.0.push_back(new());
        } else if let Some(at) = self.0.iter().position(|repeated| repeated.count == 0) {
            // Repeated warnings are retained until their count is written.
            self.0.remove(at);
            self.0.push_back(new());
        }
        (true, who)
    }

    /// Returns when the next count is due, if any.
    fn due(&self) -> Option<Instant> {
        let counted = self.0.iter().filter(|repeated| repeated.count > 0);
        counted.map(|repeated| repeated.since + COUNTED_FOR).min()
    }

    /// Returns the counts that are due, and drops warnings that have not repeated.
    fn take_due(&mut self, now: Instant) -> Vec<RepeatCount> {
        let is_due = |repeated: &Repeated| now.saturating_duration_since(repeated.since) >= COUNTED_FOR;
        self.0.retain(|repeated| repeated.count > 0 || !is_due(repeated));
        self.0.iter_mut().filter(|repeated| is_due(repeated)).filter_map(|it| it.take(now)).collect()
    }

    fn take_all(&mut self) -> Vec<RepeatCount> {
        self.0.drain(..).filter_map(|mut repeated| repeated.take(Instant::now())).collect()
    }
}

impl LogState {
    fn repeats(&self) -> MutexGuard<'_, Repeats> {
        lock(&self.repeats)
    }
}

impl Log {
    /// Records a warning. Returns whether to write it, rather than only count it, and the readers
    /// to send it to.
    fn note(&self, line: &[u8], who: Vec<u32>, is_written: bool) -> (bool, Vec<u32>) {
        let now = Instant::now();
        let mut repeats = self.state.repeats();
        let counted: Vec<_> = repeats.take_due(now);
        let (was_waiting, noted) = (repeats.due().is_some(), repeats.note(line, who, is_written, now));
        let wakes = !was_waiting && repeats.due().is_some();
        drop(repeats);
        self.write_counts(counted);
        if wakes {
            // Wakes the thread, which has a deadline now.
            self.forward(Vec::new());
        }
        noted
    }

    fn write_counts(&self, counts: Vec<RepeatCount>) {
        for RepeatCount { line, who, is_written } in counts {
            self.log_readers.send(&who, &line);
            if is_written {
                self.exports.note_repetition();
                self.forward(line);
            }
        }
    }
}

enum Sink {
    Stderr,
    /// File with its path and its size in bytes.
    File(PathBuf, File, u64),
}

impl Sink {
    /// Opens the file and redirects stderr to it. Falls back to stderr if that fails.
    fn open(path: PathBuf) -> Self {
        let file = private::options().create(true).append(true).open(&path);
        let opened = file.and_then(|file| {
            private::restrict(&file)?;
            stderr::redirect(&file)?;
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
            if let Some(new) = rotated(path, Self::open) {
                *self = new;
                return self.write(line);
            }
            // The file must stay bounded.
            file.set_len(0)?;
            *bytes = line.len() as u64;
        }
        file.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Moves the file aside, and opens a new one. `None` if either fails; then the present file remains
/// in use, under whichever name.
fn rotated(path: &Path, open: impl FnOnce(PathBuf) -> Sink) -> Option<Sink> {
    match fs::rename(path, path.with_extension("log.1")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => None,
        _ => Some(open(path.to_owned())).filter(|sink| matches!(sink, Sink::File(..))),
    }
}

/// Formats an entry as one line, with control characters escaped so that no terminal obeys them.
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

impl Log {
    fn write_lines(&self, lines: &Receiver<Vec<u8>>, mut sink: Sink) {
        loop {
            let due = self.state.repeats().due();
            let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
            let line =
                match wait.map_or_else(|| lines.recv().map_err(Into::into), |it| lines.recv_timeout(it)) {
                    Ok(line) => line,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        let counted = self.state.repeats().take_due(Instant::now());
                        self.write_counts(counted);
                        continue;
                    }
                };
            let dropped = self.state.dropped.swap(0, Ordering::AcqRel);
            let notice = match dropped {
                0 => Ok(()),
                _ => writeln!(
                    sink,
                    "({dropped} lines of this log were dropped: they could not be written in time)"
                ),
            };
            // A full disk, for one, may have room again.
            let lost = match notice.map(|()| sink.write_all(&line)) {
                Ok(Ok(())) => 0,
                Ok(Err(_)) => 1,
                Err(_) => dropped + 1,
            };
            self.state.written.fetch_add(1, Ordering::AcqRel);
            self.state.dropped.fetch_add(lost, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The count of the warning `a` for these readers.
    fn count_of(times: &str, who: Vec<u32>) -> RepeatCount {
        RepeatCount { line: format!("({times}: WARN a)\n").into_bytes(), who, is_written: true }
    }

    #[test]
    fn log_entry_is_one_line_without_control_characters() {
        assert_eq!(one_line("WARN ä \"x\\n\"\n".as_bytes()), "WARN ä \"x\\n\"\n".as_bytes());
        assert_eq!(one_line(b"a\nERROR \x1b[31mb\n"), b"a\\nERROR \\u{1b}[31mb\n");
    }

    #[test]
    fn file_that_cannot_be_renamed_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.log");
        fs::create_dir_all(path.with_extension("log.1").join("taken")).unwrap();
        let file = File::options().create(true).append(true).open(&path).unwrap();
        let mut sink = Sink::File(path.clone(), file, FILE_BYTES_MAX);
        sink.write_all(b"one\n").unwrap();
        sink.write_all(b"two\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\n");
        let Sink::File(.., bytes) = sink else { panic!("it is on stderr") };
        assert_eq!(bytes, 8);
    }

    #[test]
    fn log_file_stays_bounded_after_a_failed_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.log");
        fs::write(&path, "old").unwrap();
        assert!(rotated(&path, |_| Sink::Stderr).is_none(), "no new file can be opened");
        assert_eq!(fs::read(path.with_extension("log.1")).unwrap(), b"old");
        let opened = rotated(&path, |path| Sink::File(path.clone(), File::create(path).unwrap(), 0));
        assert!(opened.is_some() && path.exists(), "the next attempt succeeds");
    }

    #[test]
    fn long_log_entry_is_truncated() {
        let longest = [&[b'x'; LINE_BYTES_MAX][..], b"\n"].concat();
        assert_eq!(one_line(&longest), longest);
        assert_eq!(
            one_line(&[b'x'; LINE_BYTES_MAX + 1]),
            [&longest[..LINE_BYTES_MAX], "…\n".as_bytes()].concat()
        );
    }

    #[test]
    fn warning_that_repeats_is_written_once_and_then_counted() {
        let (mut repeats, begin) = (Repeats::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(repeats.note(b"10:00 WARN a\n", vec![1], true, begin), (true, vec![1]));
        assert!(repeats.due().is_none() && repeats.note(b"10:01 WARN b\n", vec![], true, begin).0);
        for second in 1..=20 {
            assert_eq!(repeats.note(b"10:02 WARN a\n", vec![1], true, at(second)), (false, vec![]));
        }
        assert_eq!((repeats.due(), repeats.take_due(at(29))), (Some(at(30)), Vec::new()));
        let counted = count_of("20 more times within 30 s", vec![1]);
        assert_eq!(repeats.take_due(at(30)), [counted]);
        assert!(!repeats.note(b"10:03 WARN a\n", vec![1], true, at(31)).0, "it is counted anew");
        assert!(
            repeats.note(b"10:03 WARN b\n", vec![], true, at(31)).0,
            "it was not repeated for long enough"
        );
        assert_eq!(repeats.take_all(), [count_of("once more within 1 s", vec![1])]);
    }

    #[test]
    fn warning_that_repeats_is_sent_once_to_a_later_reader() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        assert_eq!(repeats.note(b"10:00 WARN a\n", vec![1], true, now), (true, vec![1]));
        assert_eq!(repeats.note(b"10:01 WARN a\n", vec![1, 2], true, now), (false, vec![2]));
        assert_eq!(repeats.note(b"10:02 WARN a\n", vec![2], true, now), (false, vec![]));
        assert_eq!(repeats.take_all(), [count_of("2 more times within 1 s", vec![1, 2])]);
    }

    #[test]
    fn count_of_a_warning_that_the_log_leaves_out_is_only_sent_to_readers() {
        let (sender, lines) = sync_channel(LINES_MAX);
        let log = Log {
            sender,
            state: Arc::default(),
            log_readers: LogReaders::default(),
            exports: LogExports::default(),
        };
        let filtered = |level: LevelFilter| Targets::new().with_target(module_path!(), level);
        let (send, read) = std::sync::mpsc::channel();
        let reader = LogReader::new(filtered(LevelFilter::WARN), move |line| send.send(line).unwrap());
        log.log_readers.join(1, reader);
        let subscriber = LogSubscriber { filter: filtered(LevelFilter::ERROR), log: log.clone() };
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..3 {
                tracing::warn!("a warning for readers");
                tracing::error!("an error for all");
            }
        });
        log.flush_briefly();
        let counted = |line: &String| line.contains("2 more times");
        let read: Vec<String> = read.try_iter().collect();
        assert_eq!((read.len(), read.iter().filter(|it| counted(it)).count()), (4, 2), "{read:?}");
        let written: Vec<String> = lines
            .try_iter()
            .map(|line| String::from_utf8(line).unwrap())
            .filter(|line| !line.is_empty())
            .collect();
        assert_eq!((written.len(), written.iter().filter(|it| counted(it)).count()), (2, 1), "{written:?}");
        assert!(written.iter().all(|line| line.contains("an error for all")), "{written:?}");
    }

    #[test]
    fn distinct_warnings_take_bounded_memory() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let mut is_new = |line: &str| repeats.note(line.as_bytes(), vec![], true, now).0;
        assert!(is_new("0 WARN first\n") && !is_new("0 WARN first\n"));
        for number in 0..1000 {
            assert!(is_new(&format!("0 WARN {number}\n")));
        }
        assert_eq!(repeats.0.len(), REMEMBERED_MAX);
        assert!(!repeats.note(b"0 WARN first\n", vec![], true, now).0, "one that repeats is remembered");
    }
}
