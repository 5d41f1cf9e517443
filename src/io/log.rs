//! The log on stderr, which may be read by nobody.
//!
//! Owns: writing log lines on a thread of their own, one line each whatever they quote. When stderr is
//! stuck, lines are dropped and counted; the protocol never waits for the log.
//! Never: writes to stdout.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How many lines may wait.
const LINES_MAX: usize = 1024;

/// How much of a line is kept, in bytes: a line may quote a whole message of a client.
const LINE_BYTES_MAX: usize = 8 << 10;

/// How long the end of the process waits for the last lines.
const FLUSH_MAX: Duration = Duration::from_millis(500);

/// Starts the log with this filter: a level, or `target=level` pairs separated by commas. Panics are logged
/// too, instead of being printed.
///
/// # Errors
/// When the system gives us no thread to write it.
pub fn start(filter: Targets) -> io::Result<Log> {
    let (sender, receiver) = sync_channel(LINES_MAX);
    let state = Arc::new(State::default());
    let log = Log { sender, state: Arc::clone(&state) };
    thread::Builder::new().name("log".to_owned()).spawn(move || write_lines(&receiver, &state))?;
    let layer = tracing_subscriber::fmt::layer().with_writer(log.clone()).with_ansi(false);
    tracing_subscriber::registry().with(filter).with(layer).init();
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(log)
}

/// The way to the thread that writes.
#[derive(Debug, Clone)]
pub struct Log {
    sender: SyncSender<Vec<u8>>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
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
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let count = match self.sender.try_send(one_line(line)) {
            Ok(()) => &self.state.accepted,
            Err(_) => &self.state.dropped,
        };
        count.fetch_add(1, Ordering::AcqRel);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
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

fn write_lines(lines: &Receiver<Vec<u8>>, state: &State) {
    let mut stderr = io::stderr();
    for line in lines {
        let dropped = state.dropped.swap(0, Ordering::AcqRel);
        let written = if dropped > 0 {
            writeln!(stderr, "({dropped} lines of this log were dropped: nobody read stderr)")
        } else {
            Ok(())
        };
        let written = written.and_then(|()| stderr.write_all(&line));
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
