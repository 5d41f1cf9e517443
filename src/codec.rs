//! Bytes to lines.
//!
//! Owns: framing. A line ends with LF; CRLF, blank lines and a byte order mark are tolerated; a line over
//! the limit is reported once and skipped up to its end, whatever its length.
//! Never: looks into a line.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio_util::codec::Decoder;

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputLine {
    /// A line, without its end.
    Complete(Bytes),
    /// What stood behind the last line end when the input ended.
    Unterminated(Bytes),
    /// A line that was longer than the limit, and is not kept.
    TooLong,
}

/// The decoder.
#[derive(Debug)]
pub struct LineCodec {
    /// The longest line that is let through, in bytes, its end not counted.
    line_bytes_max: usize,
    /// How much of the buffer is known to hold no line end.
    scanned: usize,
    /// Inside a line that was reported as too long.
    skipping: bool,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What a line may have beside its content before its length can be judged: a mark and a CR.
const SLACK: usize = BYTE_ORDER_MARK.len() + 1;

impl LineCodec {
    /// A codec that lets lines of up to `line_bytes_max` bytes through.
    pub fn new(line_bytes_max: usize) -> Self {
        Self { line_bytes_max, scanned: 0, skipping: false }
    }

    /// A line's content; none when it is blank.
    fn content(&self, mut line: Bytes) -> Option<Result<Bytes, InputLine>> {
        if line.starts_with(BYTE_ORDER_MARK) {
            line.advance(BYTE_ORDER_MARK.len());
        }
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        if line.len() > self.line_bytes_max {
            return Some(Err(InputLine::TooLong));
        }
        (!line.iter().all(u8::is_ascii_whitespace)).then_some(Ok(line))
    }
}

impl Decoder for LineCodec {
    type Item = InputLine;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<InputLine>> {
        loop {
            let Some(end) = memchr::memchr(b'\n', &buffer[self.scanned..]).map(|at| self.scanned + at) else {
                if self.skipping || buffer.len() > self.line_bytes_max.saturating_add(SLACK) {
                    // A new buffer, so that the memory goes back too.
                    *buffer = BytesMut::new();
                    self.scanned = 0;
                    let reported = std::mem::replace(&mut self.skipping, true);
                    return Ok((!reported).then_some(InputLine::TooLong));
                }
                self.scanned = buffer.len();
                return Ok(None);
            };
            self.scanned = 0;
            let mut line = buffer.split_to(end + 1).freeze();
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            line.truncate(end);
            match self.content(line) {
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
        self.scanned = 0;
        Ok(self.content(rest).map(|line| line.map_or_else(|too_long| too_long, InputLine::Unterminated)))
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
    fn the_limit_is_exact_and_what_follows_a_long_line_is_served() {
        for size in [1, 2, 7, 1000] {
            assert_eq!(decode(b"1234\nx\n", size, 5), vec![complete("1234"), complete("x")]);
            assert_eq!(decode(b"12345\r\nx\n", size, 5), vec![complete("12345"), complete("x")]);
            assert_eq!(decode(b"123456\nx\n", size, 5), vec![InputLine::TooLong, complete("x")]);
            assert_eq!(decode(b"123456", size, 5), vec![InputLine::TooLong]);
            let endless = [&[b'y'; 300][..], b"\nx\n"].concat();
            assert_eq!(decode(&endless, size, 5), vec![InputLine::TooLong, complete("x")]);
        }
    }

    #[test]
    fn a_long_line_is_not_kept() {
        let mut codec = LineCodec::new(10);
        let mut buffer = BytesMut::new();
        for _ in 0..1000 {
            buffer.extend_from_slice(&[b'y'; 100]);
            while codec.decode(&mut buffer).unwrap().is_some() {}
            assert!(buffer.capacity() < 1000);
        }
    }
}
