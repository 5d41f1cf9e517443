//! Splitting of a program's output into text and sequences for the terminal.
//!
//! Owns: which sequences are held until they are complete, even if they arrive in pieces, and up to
//! which length. The pieces add up to the input, byte for byte.
//! Never: interprets a sequence.

use crate::wire::escapes::{SequenceState, ESCAPE};

/// Longest control sequence that is held until its end, in bytes.
const SEQUENCE_BYTES_MAX: usize = 256;

/// Longest string that is held until its end, in bytes.
const STRING_BYTES_MAX: usize = 64 << 10;

/// Bytes that end any sequence at once: CAN and SUB.
const CANCELS: [u8; 2] = [0x18, 0x1a];

/// Piece of a terminal's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scanned<'a> {
    /// Text with control bytes. A character may continue in the next piece.
    Text(&'a [u8]),
    /// An escape or control sequence, with all its bytes.
    Sequence(&'a [u8]),
    /// Operating system command.
    Osc {
        /// All its bytes.
        whole: &'a [u8],
        /// Bytes between introducer and terminator.
        content: &'a [u8],
    },
    /// Device control string.
    Dcs {
        /// All its bytes.
        whole: &'a [u8],
        /// Bytes between introducer and terminator.
        content: &'a [u8],
    },
    /// Bytes that are neither text nor a sequence to interpret.
    Opaque(&'a [u8]),
}

/// Divides output into text and sequences, however it is split.
#[derive(Debug, Default)]
pub struct OutputScanner {
    state: SequenceState,
    /// Bytes of the unfinished sequence; empty in text, and in a string that is passed through.
    held: Vec<u8>,
}

impl OutputScanner {
    /// Scans the next bytes, and passes on each complete piece.
    pub fn scan(&mut self, mut bytes: &[u8], mut take: impl FnMut(Scanned<'_>)) {
        while !bytes.is_empty() {
            bytes = match self.state {
                SequenceState::Text => self.scan_text(bytes, &mut take),
                SequenceState::Str if self.held.is_empty() => self.scan_opaque(bytes, &mut take),
                _ => self.scan_sequence(bytes, &mut take),
            };
        }
    }

    /// Ends the output: emits the bytes that are still held.
    pub fn finish(&mut self, mut take: impl FnMut(Scanned<'_>)) {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            take(Scanned::Opaque(&held));
        }
        *self = Self::default();
    }

    fn scan_text<'a>(&mut self, bytes: &'a [u8], take: &mut impl FnMut(Scanned<'_>)) -> &'a [u8] {
        let end = memchr::memchr(ESCAPE, bytes).unwrap_or(bytes.len());
        let (text, rest) = bytes.split_at(end);
        if !text.is_empty() {
            take(Scanned::Text(text));
        }
        let Some((_, rest)) = rest.split_first() else { return rest };
        self.begin();
        rest
    }

    fn begin(&mut self) {
        self.held.clear();
        self.held.push(ESCAPE);
        self.state = SequenceState::Escape;
    }

    /// Passes a string through until an escape, even one that does not begin the terminator.
    fn scan_opaque<'a>(&mut self, bytes: &'a [u8], take: &mut impl FnMut(Scanned<'_>)) -> &'a [u8] {
        let ends = bytes.iter().position(|byte| *byte == ESCAPE || CANCELS.contains(byte));
        let (string, rest) = match ends {
            Some(at) if bytes[at] != ESCAPE => bytes.split_at(at + 1),
            Some(at) => bytes.split_at(at),
            None => (bytes, &[][..]),
        };
        if ends.is_some() {
            self.state = SequenceState::Text;
        }
        if !string.is_empty() {
            take(Scanned::Opaque(string));
        }
        rest
    }

    fn scan_sequence<'a>(&mut self, bytes: &'a [u8], take: &mut impl FnMut(Scanned<'_>)) -> &'a [u8] {
        for (at, byte) in bytes.iter().enumerate() {
            let before = self.state;
            if before == SequenceState::StrEscape && *byte != b'\\' {
                // The escape ends the string, as in any terminal, and begins another sequence.
                self.held.pop();
                self.give_string(take, 0);
                self.begin();
                return &bytes[at..];
            }
            self.state = before.then(*byte);
            if self.state == SequenceState::Escape {
                // The previous sequence is incomplete, and another one begins.
                self.give(take, |bytes| Scanned::Opaque(bytes));
                self.begin();
                return &bytes[at + 1..];
            }
            self.held.push(*byte);
            match (before, self.state) {
                (_, SequenceState::Text) if CANCELS.contains(byte) => {
                    self.give(take, |bytes| Scanned::Opaque(bytes));
                }
                (SequenceState::StrEscape, SequenceState::Text) => self.give_string(take, 2),
                (SequenceState::Osc, SequenceState::Text) => self.give_string(take, 1),
                (_, SequenceState::Text) => self.give(take, |bytes| Scanned::Sequence(bytes)),
                (_, state) if is_held(state, &self.held) => continue,
                _ => self.let_through(take),
            }
            return &bytes[at + 1..];
        }
        &[]
    }

    /// Emits the held bytes as a complete piece.
    fn give(&mut self, take: &mut impl FnMut(Scanned<'_>), of: impl FnOnce(&[u8]) -> Scanned<'_>) {
        take(of(&self.held));
        // Long strings are rare and terminals are many, so the buffer shrinks.
        self.held.clear();
        self.held.shrink_to(SEQUENCE_BYTES_MAX);
    }

    /// Emits the held string, whose terminator has `terminator` bytes.
    fn give_string(&mut self, take: &mut impl FnMut(Scanned<'_>), terminator: usize) {
        self.give(take, |whole| {
            let content = &whole[2..whole.len() - terminator];
            match whole[1] {
                b']' => Scanned::Osc { whole, content },
                _ => Scanned::Dcs { whole, content },
            }
        });
    }

    /// Emits the beginning of a sequence whose end is not waited for.
    fn let_through(&mut self, take: &mut impl FnMut(Scanned<'_>)) {
        // A trailing escape may be the first half of the terminator, or begin another sequence.
        let escape = self.held.pop_if(|_| self.state == SequenceState::StrEscape);
        self.give(take, |bytes| Scanned::Opaque(bytes));
        match self.state {
            _ if escape.is_some() => self.begin(),
            SequenceState::Str => {}
            // An OSC that is too long ends with BEL, too; the bytes behind it are text either way.
            _ => self.state = SequenceState::Text,
        }
    }
}

/// Returns whether a sequence with this beginning is held until its end.
fn is_held(state: SequenceState, begun: &[u8]) -> bool {
    match state {
        SequenceState::Osc | SequenceState::Str | SequenceState::StrEscape => {
            // A string other than an OSC is interpreted only if it is a query.
            let reads =
                matches!(begun, [_, b']', ..] | [_, b'P'] | [_, b'P', _] | [_, b'P', b'+' | b'$', b'q', ..]);
            reads && begun.len() <= STRING_BYTES_MAX
        }
        _ => begun.len() <= SEQUENCE_BYTES_MAX,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Scans these pieces; returns the results, each with a letter for its kind.
    fn scanned(pieces: &[&[u8]]) -> Vec<(char, String)> {
        let mut scanner = OutputScanner::default();
        let mut all: Vec<(char, String)> = Vec::new();
        let mut take = |piece: Scanned<'_>| {
            let (kind, bytes) = match piece {
                Scanned::Text(bytes) => ('t', bytes),
                Scanned::Sequence(bytes) => ('s', bytes),
                Scanned::Osc { content, .. } => ('o', content),
                Scanned::Dcs { content, .. } => ('d', content),
                Scanned::Opaque(bytes) => ('x', bytes),
            };
            let text = String::from_utf8_lossy(bytes).into_owned();
            match all.last_mut() {
                Some((last, last_text)) if *last == kind && matches!(kind, 't' | 'x') => {
                    last_text.push_str(&text)
                }
                _ => all.push((kind, text)),
            }
        };
        for piece in pieces {
            scanner.scan(piece, &mut take);
        }
        scanner.finish(&mut take);
        all
    }

    #[test]
    fn output_is_split_the_same_wherever_it_was_cut() {
        let printed = b"a\x1b[31mb\x1b]0;t\x07c\x1b]8;;x\x1b\\d\x1bP+q544e\x1b\\e\x1bP1;2q~~\x1b\\f\x1b(Bg\x1b_k\x1b\\h";
        let expected: Vec<(char, String)> = [
            ('t', "a"),
            ('s', "\x1b[31m"),
            ('t', "b"),
            ('o', "0;t"),
            ('t', "c"),
            ('o', "8;;x"),
            ('t', "d"),
            ('d', "+q544e"),
            ('t', "e"),
            ('x', "\x1bP1;2q~~"),
            ('s', "\x1b\\"),
            ('t', "f"),
            ('s', "\x1b(B"),
            ('t', "g"),
            ('x', "\x1b_k"),
            ('s', "\x1b\\"),
            ('t', "h"),
        ]
        .map(|(kind, text)| (kind, text.to_owned()))
        .to_vec();
        assert_eq!(scanned(&[printed]), expected);
        for at in 1..printed.len() {
            assert_eq!(scanned(&[&printed[..at], &printed[at..]]), expected, "cut at {at}");
        }
        let single: Vec<&[u8]> = printed.chunks(1).collect();
        assert_eq!(scanned(&single), expected);
    }

    #[test]
    fn what_has_no_end_is_let_out() {
        for (printed, expected) in [
            ("\x1b", vec![('x', "\x1b")]),
            ("\x1b[3\x1b[4m", vec![('x', "\x1b[3"), ('s', "\x1b[4m")]),
            ("\x1b]0;a\x1b[4m", vec![('o', "0;a"), ('s', "\x1b[4m")]),
            ("\x1bPabc\x1b[4m", vec![('x', "\x1bPabc"), ('s', "\x1b[4m")]),
            ("\x1bP+qab\x1b[4m", vec![('d', "+qab"), ('s', "\x1b[4m")]),
            ("\x1bP\x1b]0;a\x07", vec![('d', ""), ('o', "0;a")]),
            ("\x1bXa\x1b]0;b\x07c", vec![('x', "\x1bXa"), ('o', "0;b"), ('t', "c")]),
            ("\x1b^a\x1b\x1b]0;b\x07", vec![('x', "\x1b^a\x1b"), ('o', "0;b")]),
            ("\x1b_a\x1ab", vec![('x', "\x1b_a\x1a"), ('t', "b")]),
            ("\x1b]0;a\x18b", vec![('x', "\x1b]0;a\x18"), ('t', "b")]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(kind, text)| (kind, text.to_owned())).collect();
            assert_eq!(scanned(&[printed.as_bytes()]), expected, "{printed:?}");
        }
        let of = |bytes: usize| format!("\x1b]52;{}\x07", "x".repeat(bytes - 6));
        assert_eq!(scanned(&[of(STRING_BYTES_MAX).as_bytes()])[0].0, 'o');
        assert_eq!(scanned(&[of(STRING_BYTES_MAX + 1).as_bytes()])[0].0, 'o', "its end is not counted");
        assert_eq!(scanned(&[of(STRING_BYTES_MAX + 2).as_bytes()])[0].0, 'x');
        // Here the final byte counts, too, since many bytes can be the final one.
        let of = |bytes: usize| format!("\x1b[{}m", "1".repeat(bytes - 3));
        for (bytes, kind) in [(SEQUENCE_BYTES_MAX - 1, 's'), (SEQUENCE_BYTES_MAX, 's')] {
            assert_eq!(scanned(&[of(bytes).as_bytes()])[0].0, kind, "{bytes}");
        }
        let longer = of(SEQUENCE_BYTES_MAX + 2);
        let (held, rest) = longer.split_at(SEQUENCE_BYTES_MAX + 1);
        assert_eq!(scanned(&[longer.as_bytes()]), [('x', held.to_owned()), ('t', rest.to_owned())]);
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(printed in prop::collection::vec(prop_oneof![Just(0x1b_u8), Just(b'['), Just(b']'),
            Just(b'P'), Just(b'\\'), Just(7), Just(0x18), Just(b'm'), Just(b'0'), any::<u8>()], 0..200), cut in 0..200_usize)
        {
            let mut scanner = OutputScanner::default();
            let mut all = Vec::new();
            let mut take = |piece: Scanned<'_>| match piece {
                Scanned::Text(bytes) | Scanned::Sequence(bytes) | Scanned::Opaque(bytes) => all.extend_from_slice(bytes),
                Scanned::Osc { whole, .. } | Scanned::Dcs { whole, .. } => all.extend_from_slice(whole),
            };
            let at = cut.min(printed.len());
            scanner.scan(&printed[..at], &mut take);
            scanner.scan(&printed[at..], &mut take);
            scanner.finish(&mut take);
            prop_assert_eq!(all, printed);
        }
    }
}
