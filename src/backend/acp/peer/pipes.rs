//! The two ends of a connection to an agent: writing to its stdin and reading its stdout, in order.
//!
//! Owns: reading to the end of the output, awaiting the agent's exit, separating messages from
//! junk, rate-limited logging of junk, and giving up an agent that writes nothing but junk.
//! Never: reads past a message that its receiver has not taken.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use memchr::memchr;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio_util::codec::Decoder;

use super::{
    Shared, BRACES_MAX, LINE_BYTES_MAX, OUTPUT_AFTER_EXIT, PIPE_BYTES_MAX, READ_BYTES, WAITING_BYTES_MAX,
};
use crate::codec::{InputLine, LineCodec};
use crate::os::process::EXIT_GRACE;
use crate::trace;

/// Writes queued messages until the connection stops, then closes the agent's stdin. Messages from
/// before the stop still reach an agent that reads within [`EXIT_GRACE`]: only the agent can undo
/// what a cancelled login has begun.
pub(super) async fn write(
    (mut input, _lifeline): (impl AsyncWrite + Unpin, impl Send),
    mut lines: mpsc::UnboundedReceiver<Bytes>,
    shared: Arc<Shared>,
) {
    let writing = async {
        loop {
            let line = tokio::select! {
                () = shared.stop.cancelled(), if !lines.is_closed() => {
                    lines.close();
                    continue;
                }
                line = lines.recv() => line,
            };
            let Some(line) = line else { return };
            if trace::is_on() {
                trace::agent_line(true, &line);
            }
            if let Err(error) = input.write_all(&line).await {
                tracing::debug!(agent = shared.agent, %error, "the agent's stdin cannot be written to any more");
                return;
            }
            shared.waiting_bytes.fetch_sub(line.len(), Ordering::AcqRel);
        }
    };
    let late = async {
        shared.stop.cancelled().await;
        tokio::time::sleep(EXIT_GRACE).await;
    };
    tokio::select! {
        () = late => {
            tracing::debug!(agent = shared.agent, "messages to the agent were dropped: it does not read its stdin");
        }
        () = writing => {}
    }
    // A broken pipe does not mean that the agent has ended, but its input is closed in any case.
}

/// Reads until the agent has ended, and then publishes the reason.
pub(super) async fn live(
    output: impl AsyncRead + Unpin,
    ending: impl std::future::Future<Output = String>,
    shared: Arc<Shared>,
    ended: watch::Sender<Option<String>>,
) {
    let how = {
        let mut reading = std::pin::pin!(read(output, &shared));
        let mut ending = std::pin::pin!(ending);
        tokio::select! {
            why = &mut reading => {
                shared.stop.cancel();
                let how = ending.await;
                why.map_or_else(|| how.clone(), |why| format!("{why}; {how}"))
            }
            how = &mut ending => loop {
                // Remaining output is still in the pipe, which another process may hold open.
                match tokio::time::timeout(OUTPUT_AFTER_EXIT, &mut reading).await {
                    Ok(Some(why)) => break format!("{why}; {how}"),
                    Ok(None) => break how,
                    // If the host has stopped the agent, the receiver may be gone.
                    Err(_) if shared.held_up.load(Ordering::Acquire) && !shared.stop.is_cancelled() => {}
                    Err(_) => break how,
                }
            }
        }
    };
    shared.stop.cancel();
    ended.send_replace(Some(how));
    shared.close();
}

/// Reads to the end of the output; returns the reason if reading stops before.
async fn read(mut output: impl AsyncRead + Unpin, shared: &Shared) -> Option<String> {
    let (mut codec, mut buffer) = (LineCodec::new(LINE_BYTES_MAX), BytesMut::with_capacity(READ_BYTES));
    let mut junk = Junk::new(&shared.agent);
    let mut more = true;
    // Number of bytes read since the last answer was delivered.
    let mut behind_answer = 0;
    while more {
        buffer.reserve(READ_BYTES);
        let is_answered = shared.has_fresh_answers();
        let read = if is_answered {
            read_what_is_there(&mut output, &mut buffer).await
        } else {
            Some(output.read_buf(&mut buffer).await)
        };
        let count = match read {
            Some(Ok(count)) => count,
            Some(Err(error)) => return Some(format!("its output cannot be read: {error}")),
            None => {
                shared.notify_drained().await;
                continue;
            }
        };
        more = count > 0;
        loop {
            let line = if more { codec.decode(&mut buffer) } else { codec.decode_eof(&mut buffer) };
            match line {
                Ok(None) => break,
                Ok(Some(InputLine::Complete(line) | InputLine::Unterminated(line))) => {
                    if let Some(reason) = read_line(&line, shared, &mut junk).await {
                        return Some(reason);
                    }
                }
                // The lost message may be an answer or the text of one.
                Ok(Some(InputLine::TooLong { first: Some(b'{') })) => {
                    let limit = LINE_BYTES_MAX >> 20;
                    return Some(format!("it sent a message of more than {limit} MiB"));
                }
                Ok(Some(InputLine::TooLong { .. })) => {
                    if let Some(reason) = junk.note(b"(a line that is too long)") {
                        return Some(reason);
                    }
                }
                Err(error) => return Some(format!("its output cannot be read: {error}")),
            }
        }
        behind_answer = if is_answered { behind_answer + count } else { 0 };
        if behind_answer > PIPE_BYTES_MAX || !more {
            shared.notify_drained().await;
        }
        if shared.waiting_bytes.load(Ordering::Acquire) > WAITING_BYTES_MAX {
            return Some("it does not read its stdin".to_owned());
        }
    }
    junk.all()
}

/// Reads the bytes that are available without waiting; `None` if there are none.
async fn read_what_is_there(
    output: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Option<std::io::Result<usize>> {
    // Yielding resets the task's budget and lets the runtime poll the pipe. Afterwards only an
    // empty pipe makes the read wait, not an exhausted budget.
    tokio::task::yield_now().await;
    tokio::select! {
        biased;
        read = output.read_buf(buffer) => Some(read),
        () = std::future::ready(()) => None,
    }
}

/// Handles a line; returns the reason if the agent must be given up.
async fn read_line(line: &[u8], shared: &Shared, junk: &mut Junk) -> Option<String> {
    tracing::trace!(agent = shared.agent, "< {}", String::from_utf8_lossy(line));
    if trace::is_on() {
        trace::agent_line(false, line);
    }
    let line = &*with_whole_characters(line);
    let mut taken = false;
    if let Ok(frame) = serde_json::from_slice(line) {
        taken = shared.handle(frame).await;
    } else {
        let text = String::from_utf8_lossy(line);
        for message in messages_in(&text) {
            if let Ok(frame) = serde_json::from_str(message) {
                taken |= shared.handle(frame).await;
            }
        }
        if taken {
            junk.inside(line);
        }
    }
    if taken {
        junk.reset();
        return None;
    }
    junk.note(line)
}

/// Returns the line with a replacement character in place of each escaped surrogate that lacks its
/// other half, as agents write it that cut strings of UTF-16: it is JSON, but not Unicode text.
fn with_whole_characters(line: &[u8]) -> Cow<'_, [u8]> {
    let mut whole = Cow::Borrowed(line);
    let unit_at = |at: usize| {
        let digits = line.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut at = 0;
    while let Some(escape) = memchr(b'\\', &line[at..]).map(|found| at + found) {
        at = escape
            + match (unit_at(escape), unit_at(escape + 6)) {
                (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
                (Some(0xd800..=0xdfff), _) => {
                    whole.to_mut()[escape + 2..escape + 6].copy_from_slice(b"fffd");
                    6
                }
                _ => 2,
            };
        at = at.min(line.len());
    }
    whole
}

/// Returns the JSON objects in a line that is not exactly one message: several messages, a message
/// surrounded by other text such as escape codes, or a line that is not valid UTF-8.
fn messages_in(line: &str) -> Vec<&str> {
    let (mut found, mut rest, mut tries) = (Vec::new(), line, BRACES_MAX);
    while let Some(start) = rest.find('{').filter(|_| tries > 0) {
        rest = &rest[start..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
        match values.next() {
            Some(Ok(value)) => {
                found.push(value.get());
                rest = &rest[values.byte_offset()..];
                tries = BRACES_MAX;
            }
            _ => {
                rest = &rest[1..];
                tries -= 1;
            }
        }
    }
    found
}

const LOG_EVERY: Duration = Duration::from_secs(1);

/// Maximum lines and bytes of junk before the first message; beyond either, the agent is given up.
const LINES_MAX: u64 = 1000;
const BYTES_MAX: usize = 1 << 20;

const QUOTED_BYTES_MAX: usize = 400;

#[derive(Debug)]
struct Junk {
    agent: String,
    /// Start of the junk before the first message.
    quoted: String,
    lines: u64,
    bytes: usize,
    has_message: bool,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Junk {
    fn new(agent: &str) -> Self {
        Self {
            agent: agent.to_owned(),
            quoted: String::new(),
            lines: 0,
            bytes: 0,
            has_message: false,
            logged: None,
            unlogged: 0,
        }
    }

    fn reset(&mut self) {
        if !self.has_message {
            self.has_message = true;
            self.quoted = String::new();
        }
    }

    /// Records a line of junk; returns the reason once the agent must be given up for only junk.
    fn note(&mut self, line: &[u8]) -> Option<String> {
        self.log(line, "a line of the agent's output was skipped: it is not a JSON-RPC message");
        if self.has_message {
            return None;
        }
        self.lines += 1;
        self.bytes += line.len();
        if self.quoted.len() < QUOTED_BYTES_MAX {
            self.quoted.push_str(&readable(line));
            self.quoted.push('\n');
        }
        (self.lines > LINES_MAX || self.bytes > BYTES_MAX).then(|| self.reason())
    }

    fn inside(&mut self, line: &[u8]) {
        self.log(line, "the agent printed messages and other text on one line: the messages were extracted");
    }

    /// Returns the reason at the end of a stream that was nothing but junk.
    fn all(&self) -> Option<String> {
        (!self.has_message && self.lines > 0).then(|| self.reason())
    }

    fn reason(&self) -> String {
        format!("it does not speak ACP; its output:\n{}", self.quoted.trim_end())
    }

    fn log(&mut self, line: &[u8], what: &str) {
        if self.logged.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            self.unlogged += 1;
            return;
        }
        let (agent, unlogged) = (&self.agent, std::mem::take(&mut self.unlogged));
        tracing::warn!(agent, unlogged, "output of an agent: {what}: {}", readable(line));
        self.logged = Some(Instant::now());
    }
}

fn readable(line: &[u8]) -> String {
    let cut = &line[..line.len().min(QUOTED_BYTES_MAX / 2)];
    let mut text = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < line.len() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_objects_of_a_line_are_found() {
        let one = r#"{"a":{"b":1}}"#;
        for line in
            [format!("{one}{one}"), format!("\u{1b}[2K{one} {one}\r"), format!("{{{{ x {one},{one} {{")]
        {
            assert_eq!(messages_in(&line), [one, one], "{line}");
        }
        assert_eq!(messages_in(&format!("{}{one}", "{ ".repeat(BRACES_MAX))), Vec::<&str>::new());
        assert_eq!(messages_in("no object [1] null"), Vec::<&str>::new());
    }
}
