//! Writes a conversation down, as a transcript or as a log of one message per line.
//!
//! Owns: cutting the bytes of both sides into lines, and the form of each line.
//! Never: passes a byte on.

use std::io::{self, Write};

use uuid::Uuid;

use super::form::TranscriptLine;
use super::jsonl::{self, Metadata};
use super::naming::Naming;
use super::process::LINE_BYTES_MAX;
use super::tokens::HiddenTokens;

/// First line of each transcript.
pub(crate) const NOTE: &str = "# The host answers as it did when this was recorded.";

/// Side of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Host,
}

/// Form of a recording.
#[derive(Debug)]
enum RecordingForm {
    Transcript,
    /// Log; its connection has an id.
    Jsonl(String, HiddenTokens),
}

/// Recording in progress.
#[derive(Debug)]
pub(crate) struct Recorder<W> {
    out: W,
    form: RecordingForm,
    naming: Naming,
    /// Bytes of a line that is not complete.
    from_client: Vec<u8>,
    from_host: Vec<u8>,
    /// True if the last line was one of the host.
    host_was_last: bool,
    client_has_ended: bool,
}

impl<W: Write> Recorder<W> {
    /// Begins a transcript.
    pub(crate) fn transcript(mut out: W) -> io::Result<Self> {
        write!(out, "{NOTE}\n@ names\n@ any-pace\n")?;
        Ok(Self::new(out, RecordingForm::Transcript))
    }

    /// Begins a log.
    pub(super) fn jsonl(out: W) -> Self {
        Self::new(out, RecordingForm::Jsonl(Uuid::new_v4().to_string(), HiddenTokens::default()))
    }

    fn new(out: W, form: RecordingForm) -> Self {
        Self {
            out,
            form,
            naming: Naming::default(),
            from_client: Vec::new(),
            from_host: Vec::new(),
            host_was_last: true,
            client_has_ended: false,
        }
    }

    /// Takes bytes of one side.
    ///
    /// # Errors
    /// When the recording cannot be written, or a line is too long for it.
    pub(crate) fn take(&mut self, side: Side, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let mut line = std::mem::take(self.buffer(side));
            line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            self.line(side, &line, true)?;
        }
        let buffer = self.buffer(side);
        buffer.extend_from_slice(rest);
        if buffer.len() > LINE_BYTES_MAX {
            let why = format!("a line has more than {LINE_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        self.out.flush()
    }

    /// Notes that one side says nothing more.
    ///
    /// # Errors
    /// When the recording cannot be written.
    pub(super) fn end(&mut self, side: Side) -> io::Result<()> {
        let line = std::mem::take(self.buffer(side));
        if !line.is_empty() {
            self.line(side, &line, false)?;
        }
        if side == Side::Client && !self.client_has_ended {
            self.client_has_ended = true;
            self.directive(&TranscriptLine::End)?;
        }
        self.out.flush()
    }

    /// Notes the exit status of the host, -1 for a signal.
    ///
    /// # Errors
    /// When the recording cannot be written.
    pub(super) fn exit(&mut self, status: i32) -> io::Result<()> {
        self.end(Side::Host)?;
        self.end(Side::Client)?;
        self.directive(&TranscriptLine::Exit(status))?;
        self.out.flush()
    }

    /// Notes a step that is no message.
    ///
    /// # Errors
    /// When the recording cannot be written.
    pub(crate) fn note(&mut self, line: &TranscriptLine) -> io::Result<()> {
        self.directive(line)
    }

    fn buffer(&mut self, side: Side) -> &mut Vec<u8> {
        match side {
            Side::Client => &mut self.from_client,
            Side::Host => &mut self.from_host,
        }
    }

    fn directive(&mut self, line: &TranscriptLine) -> io::Result<()> {
        match self.form {
            RecordingForm::Transcript => {
                self.part_from_host()?;
                writeln!(self.out, "{line}")
            }
            RecordingForm::Jsonl(..) => Ok(()),
        }
    }

    /// Separates what the client does from what the host has sent before.
    fn part_from_host(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.host_was_last) {
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn line(&mut self, side: Side, line: &[u8], is_complete: bool) -> io::Result<()> {
        match &mut self.form {
            RecordingForm::Jsonl(connection, tokens) => {
                let log = Metadata::now(side, connection.clone(), line.len());
                writeln!(self.out, "{}", jsonl::entry(line, &log, tokens))
            }
            RecordingForm::Transcript if side == Side::Host => {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                let text = self.naming.host_line(&String::from_utf8_lossy(line));
                self.host_was_last = true;
                writeln!(self.out, "{}", TranscriptLine::Host(text))
            }
            RecordingForm::Transcript => {
                self.part_from_host()?;
                let said = said_line(&mut self.naming, line, is_complete);
                writeln!(self.out, "{said}")
            }
        }
    }
}

impl Recorder<Vec<u8>> {
    /// Returns what was recorded in memory.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

/// Returns what a transcript has for bytes of the client.
pub(super) fn said_line(naming: &mut Naming, line: &[u8], is_complete: bool) -> TranscriptLine {
    let (line, end): (&[u8], &[u8]) = match line.strip_suffix(b"\r") {
        Some(line) if is_complete => (line, b"\r\n"),
        _ if is_complete => (line, b"\n"),
        _ => (line, b""),
    };
    match String::from_utf8(naming.client_bytes(line)) {
        Ok(text) if end == b"\n" && !text.is_empty() => TranscriptLine::Say(text),
        Ok(text) => TranscriptLine::SayRaw([text.as_bytes(), end].concat()),
        Err(bytes) => TranscriptLine::SayRaw([bytes.as_bytes(), end].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_the_lines_that_say_them_again() {
        let mut recorder = Recorder::transcript(Vec::new()).unwrap();
        recorder.take(Side::Client, b"{\"id\"").unwrap();
        recorder.take(Side::Host, b"junk \xff").unwrap();
        recorder.take(Side::Client, b":1}\n\r\n\xfe\nhalf").unwrap();
        recorder.take(Side::Host, b"\r\n[1]\n").unwrap();
        recorder.exit(3).unwrap();
        let text = String::from_utf8(recorder.out).unwrap();
        let (head, rest) = text.split_at(text.find("\n\n").unwrap());
        assert_eq!(head, format!("{NOTE}\n@ names\n@ any-pace"));
        assert_eq!(
            rest,
            "\n\n> {\"id\":1}\n@ say-raw \\r\\n\n@ say-raw \\xfe\\n\n< junk \u{fffd}\n< [1]\n\n\
             @ say-raw half\n@ end\n@ exit 3\n"
        );
        super::super::form::TranscriptFile::parse(&text).unwrap();
    }
}
