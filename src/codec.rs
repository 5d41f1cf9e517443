//! Splitting of bytes into lines.
//!
//! Owns: framing. A line ends with LF; CRLF, blank lines and a byte order mark are tolerated. A
//! line over the limit is reported once and skipped to its end; a line without an end is an error.
//! The text of a message has no raw line end, however it arrives: parts of a message are repeated
//! to other clients, in lines that these would otherwise split.
//! Never: interprets a line.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio_util::codec::Decoder;

/// Line of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputLine {
    /// Line without its end, and without a line end inside.
    Complete(Bytes),
    /// Bytes behind the last line end when the input ended, without a CR.
    Unterminated(Bytes),
    /// Line that was longer than the limit, and was dropped.
    TooLong {
        /// First byte of the line that is not white space; `None` if it came later than the limit.
        first: Option<u8>,
    },
}

impl InputLine {
    /// Returns the length of the line, in bytes; 0 for a dropped line.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            Self::Complete(line) | Self::Unterminated(line) => line.len(),
            Self::TooLong { .. } => 0,
        }
    }
}

/// Decoder of lines.
#[derive(Debug)]
pub struct LineCodec {
    /// Maximum length of a line without its end, in bytes.
    line_bytes_max: usize,
    /// Number of bytes at the start of the buffer that contain no line end.
    scanned: usize,
    /// Number of bytes at the start of the buffer that contain no CR. Few lines have one, so all
    /// lines of a buffer are searched at once.
    without_cr: usize,
    /// Number of skipped bytes while inside a line that was reported as too long.
    skipped: Option<usize>,
}

/// Length from which a line counts as endless, as a multiple of the maximum length.
const ENDLESS_LINE: usize = 16;

/// Minimum of that length, in bytes: a long line to a host with small limits causes only an error.
const ENDLESS_BYTES_MIN: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Maximum bytes of a line besides its content: a byte order mark and a CR.
const SLACK: usize = BYTE_ORDER_MARK.len() + 1;

impl LineCodec {
    /// Creates a decoder of lines of up to `line_bytes_max` bytes.
    pub fn new(line_bytes_max: usize) -> Self {
        Self { line_bytes_max, scanned: 0, without_cr: 0, skipped: None }
    }

    /// Skips the received part of a line that is too long; returns the report on it, if that is
    /// due. Fails if the line counts as endless.
    fn skip(&mut self, buffer: &mut BytesMut) -> io::Result<Option<InputLine>> {
        let skipped = self.line_bytes_with(buffer.len())?;
        let first = first_of(buffer);
        // A new buffer, so that the memory is freed.
        *buffer = BytesMut::new();
        (self.scanned, self.without_cr) = (0, 0);
        let was_reported = self.skipped.replace(skipped).is_some();
        Ok((!was_reported).then_some(InputLine::TooLong { first }))
    }

    /// Returns the length of the skipped line with `more` bytes. Fails if it counts as endless,
    /// even if its end has arrived: the result must not depend on how the bytes are split.
    fn line_bytes_with(&self, more: usize) -> io::Result<usize> {
        let bytes = self.skipped.unwrap_or(0).saturating_add(more);
        let most = self.line_bytes_max.saturating_mul(ENDLESS_LINE).max(ENDLESS_BYTES_MIN);
        if bytes <= most {
            return Ok(bytes);
        }
        let why = format!(
            "more than {most} bytes came without a line end; a line may have {} bytes",
            self.line_bytes_max
        );
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// Returns whether a CR is among the first `end` bytes of the buffer.
    fn has_cr(&mut self, buffer: &[u8], end: usize) -> bool {
        if self.without_cr < end {
            let found = memchr::memchr(b'\r', &buffer[self.without_cr..]);
            self.without_cr = found.map_or(buffer.len(), |at| self.without_cr + at);
        }
        self.without_cr < end
    }

    /// Returns the content of a line; `None` if it is blank.
    fn content(&self, mut line: Bytes, has_cr: bool) -> Option<Result<Bytes, InputLine>> {
        if line.starts_with(BYTE_ORDER_MARK) {
            line.advance(BYTE_ORDER_MARK.len());
        }
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        if line.len() > self.line_bytes_max {
            return Some(Err(InputLine::TooLong { first: first_of(&line) }));
        }
        (!line.iter().all(u8::is_ascii_whitespace))
            .then(|| Ok(if has_cr { without_line_ends(line) } else { line }))
    }
}

/// Replaces raw line ends in a message by tabs. In JSON both are white space, or, in a string, an
/// error.
pub fn without_line_ends(message: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &message).is_none() {
        return message;
    }
    let mut message = BytesMut::from(message);
    message.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b'\t');
    message.freeze()
}

fn first_of(line: &[u8]) -> Option<u8> {
    let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
    line.iter().find(|byte| !byte.is_ascii_whitespace()).copied()
}

impl Decoder for LineCodec {
    type Item = InputLine;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<InputLine>> {
        loop {
            let Some(end) = memchr::memchr(b'\n', &buffer[self.scanned..]).map(|at| self.scanned + at) else {
                if self.skipped.is_some() || buffer.len() > self.line_bytes_max.saturating_add(SLACK) {
                    return self.skip(buffer);
                }
                self.scanned = buffer.len();
                return Ok(None);
            };
            self.line_bytes_with(end)?;
            let has_cr = self.has_cr(buffer, end);
            self.scanned = 0;
            self.without_cr = self.without_cr.saturating_sub(end + 1);
            let mut line = buffer.split_to(end + 1).freeze();
            if self.skipped.take().is_some() {
                continue;
            }
            line.truncate(end);
            match self.content(line, has_cr) {
                Some(Ok(line)) => return Ok(Some(InputLine::Complete(line))),
                Some(Err(too_long)) => return Ok(Some(too_long)),
                None => {}
            }
        }
    }

    fn decode_eof(&mut self, buffer: &mut BytesMut) -> io::Result<Option<InputLine>> {
        if let Some(line) = self.decode(buffer)? {
            return Ok(Some(line));
        }
        let rest = std::mem::take(buffer).freeze();
        (self.scanned, self.without_cr) = (0, 0);
        Ok(self
            .content(rest, true)
            .map(|line| line.map_or_else(|too_long| too_long, InputLine::Unterminated)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `input` given in chunks of `size` bytes.
    fn decode(input: &[u8], size: usize, limit: usize) -> Vec<InputLine> {
        let mut codec = LineCodec::new(limit);
        let (mut buffer, mut lines) = (BytesMut::new(), Vec::new());
        for chunk in input.chunks(size) {
            buffer.extend_from_slice(chunk);
            while let Some(line) = codec.decode(&mut buffer).unwrap() {
                lines.push(line);
            }
        }
        while let Some(line) = codec.decode_eof(&mut buffer).unwrap() {
            lines.push(line);
        }
        lines
    }

    fn too_long(first: u8) -> InputLine {
        InputLine::TooLong { first: Some(first) }
    }

    fn complete(text: &str) -> InputLine {
        InputLine::Complete(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_arrive() {
        let input = "\u{feff}one\r\n\n \t\r\ntwo ä\nthree".as_bytes();
        let expected =
            vec![complete("one"), complete("two ä"), InputLine::Unterminated(Bytes::from_static(b"three"))];
        for size in 1..=input.len() {
            assert_eq!(decode(input, size, 100), expected, "in chunks of {size}");
        }
    }

    #[test]
    fn line_end_inside_a_message_becomes_a_tab() {
        let expected = [complete("{\t\t1}"), complete("2"), complete("{\t3}"), complete("4")];
        for size in [1, 2, 3, 7, 100] {
            assert_eq!(decode(b"{\r\r1}\r\n2\n{\r3}\n4\n", size, 100), expected, "in chunks of {size}");
        }
        assert_eq!(decode(b"\r{\r}", 100, 100), [InputLine::Unterminated(Bytes::from_static(b"\t{\t}"))]);
        assert_eq!(without_line_ends(Bytes::from_static(b"{\r\n\"\n\"}")), "{\t\t\"\t\"}");
    }

    #[test]
    fn the_limit_is_exact_and_what_follows_a_long_line_is_served() {
        for size in [1, 2, 7, 1000] {
            assert_eq!(decode(b"1234\nx\n", size, 5), vec![complete("1234"), complete("x")]);
            assert_eq!(decode(b"12345\r\nx\n", size, 5), vec![complete("12345"), complete("x")]);
            assert_eq!(decode(b"123456\nx\n", size, 5), vec![too_long(b'1'), complete("x")]);
            assert_eq!(decode(b"123456", size, 5), vec![too_long(b'1')]);
            let long = [&[b'y'; 80][..], b"\nx\n"].concat();
            assert_eq!(decode(&long, size, 5), vec![too_long(b'y'), complete("x")]);
        }
    }

    #[test]
    fn a_long_line_is_not_kept() {
        let mut codec = LineCodec::new(10_000);
        let mut buffer = BytesMut::new();
        for _ in 0..1000 {
            buffer.extend_from_slice(&[b'y'; 100]);
            while codec.decode(&mut buffer).unwrap().is_some() {}
            assert!(buffer.capacity() < 40_000);
        }
    }

    #[test]
    fn line_without_an_end_is_an_error_after_sixteen_times_the_limit() {
        let mut codec = LineCodec::new(100_000);
        let mut read = |bytes: usize| codec.decode(&mut BytesMut::from(&vec![0; bytes][..]));
        assert_eq!(read(1_000_000).unwrap(), Some(too_long(0)));
        assert_eq!(read(600_000).unwrap(), None, "1.6 MB may have an end");
        let error = read(1).unwrap_err();
        assert!(error.to_string().starts_with("more than 1600000 bytes came without a line end"), "{error}");
    }

    #[test]
    fn line_of_a_megabyte_is_skipped_whatever_the_limit() {
        let (most, over) =
            ([vec![b'y'; ENDLESS_BYTES_MIN], b"\nx\n".to_vec()].concat(), ENDLESS_BYTES_MIN + 1);
        for size in [1000, most.len()] {
            assert_eq!(decode(&most, size, 60), vec![too_long(b'y'), complete("x")]);
            let mut codec = LineCodec::new(60);
            let longer = [vec![b'y'; over], b"\n".to_vec()].concat();
            let mut read = longer.chunks(size).map(|chunk| codec.decode(&mut BytesMut::from(chunk)));
            assert!(read.any(|line| line.is_err()), "in chunks of {size}");
        }
    }
}
