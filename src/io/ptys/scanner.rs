//! Splitting of a program's output into text and sequences for the terminal.
//!
//! Owns: where a sequence begins and ends, also where it comes in pieces. All pieces together are
//! what came, byte for byte.
//! Never: says what a sequence means.

/// The longest control sequence that is waited for to its end, in bytes.
const SEQUENCE_BYTES_MAX: usize = 256;

/// Longest string that is held until its end, in bytes.
const STRING_BYTES_MAX: usize = 64 << 10;

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;
/// Bytes that end any sequence at once: CAN and SUB.
const CANCELS: [u8; 2] = [0x18, 0x1a];

/// A piece of what a program says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scanned<'a> {
    /// Text, with what moves the cursor by single bytes. A character may go on in the next piece.
    Text(&'a [u8]),
    /// An escape or control sequence, with all its bytes.
    Sequence(&'a [u8]),
    /// A command of the operating system's: all its bytes, and what stands between their ends.
    Osc {
        /// All bytes.
        whole: &'a [u8],
        /// Bytes between introducer and terminator.
        says: &'a [u8],
    },
    /// A device control string, as for [`Scanned::Osc`].
    Dcs {
        /// All bytes.
        whole: &'a [u8],
        /// Bytes between introducer and terminator.
        says: &'a [u8],
    },
    /// Bytes that are no text, and are not interpreted here.
    Opaque(&'a [u8]),
}

/// State of the scanner between two bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScannerState {
    Text,
    /// Behind an escape, and perhaps what narrows it.
    Escape,
    Csi,
    /// A string that is held until its end.
    Osc,
    Dcs,
    /// A string that is not read.
    Opaque,
}

/// Takes apart what one program says.
#[derive(Debug)]
pub struct OutputScanner {
    inside: ScannerState,
    /// Bytes of the sequence that has not ended yet.
    held: Vec<u8>,
    /// In a string: the last byte was an escape, which may begin its end.
    may_end: bool,
}

impl OutputScanner {
    /// A program that has said nothing.
    pub fn new() -> Self {
        Self { inside: ScannerState::Text, held: Vec::new(), may_end: false }
    }

    /// Takes more of it apart.
    pub fn scan(&mut self, mut bytes: &[u8], mut take: impl FnMut(Scanned<'_>)) {
        while !bytes.is_empty() {
            bytes = match self.inside {
                ScannerState::Text => self.scan_text(bytes, &mut take),
                ScannerState::Opaque => self.scan_opaque(bytes, &mut take),
                _ => self.scan_sequence(bytes, &mut take),
            };
        }
    }

    /// Ends the output: gives out everything that is still held.
    pub fn finish(&mut self, mut take: impl FnMut(Scanned<'_>)) {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            take(Scanned::Opaque(&held));
        }
        *self = Self::new();
    }

    fn scan_text<'a>(&mut self, bytes: &'a [u8], take: &mut impl FnMut(Scanned<'_>)) -> &'a [u8] {
        let end = memchr::memchr(ESCAPE, bytes).unwrap_or(bytes.len());
        let (text, rest) = bytes.split_at(end);
        if !text.is_empty() {
            take(Scanned::Text(text));
        }
        let Some((escape, rest)) = rest.split_first() else { return rest };
        self.held.push(*escape);
        self.inside = ScannerState::Escape;
        rest
    }

    /// Lets a string through until it ends: at an escape, whether or not that is the first half of
    /// its terminator.
    fn scan_opaque<'a>(&mut self, bytes: &'a [u8], take: &mut impl FnMut(Scanned<'_>)) -> &'a [u8] {
        let ends = bytes.iter().position(|byte| *byte == ESCAPE || CANCELS.contains(byte));
        let (string, rest) = match ends {
            Some(at) if bytes[at] != ESCAPE => bytes.split_at(at + 1),
            Some(at) => bytes.split_at(at),
            None => (bytes, &[][..]),
        };
        if ends.is_some() {
            self.inside = ScannerState::Text;
        }
        if !string.is_empty() {
            take(Scanned::Opaque(string));
        }
        rest
    }

    fn scan_sequence<'a>(&mut self, bytes: &'a [u8], take: &mut impl FnMut(Scanned<'_>)) -> &'a [u8] {
        for (at, byte) in bytes.iter().enumerate() {
            let is_string = matches!(self.inside, ScannerState::Osc | ScannerState::Dcs);
            if *byte == ESCAPE && !is_string {
                // What came before has no end, and another one begins.
                self.give(take, |bytes| Scanned::Opaque(bytes));
                (self.inside, self.held) = (ScannerState::Escape, vec![ESCAPE]);
                return &bytes[at + 1..];
            }
            if self.may_end && *byte != b'\\' {
                // The escape has ended the string, as in any terminal, and begins something else.
                self.held.pop();
                self.give_string(take, 0);
                (self.inside, self.held) = (ScannerState::Escape, vec![ESCAPE]);
                return &bytes[at..];
            }
            self.held.push(*byte);
            if CANCELS.contains(byte) {
                self.give(take, |bytes| Scanned::Opaque(bytes));
                return &bytes[at + 1..];
            }
            match self.inside {
                ScannerState::Escape => match byte {
                    b'[' if self.held.len() == 2 => self.inside = ScannerState::Csi,
                    b']' if self.held.len() == 2 => self.inside = ScannerState::Osc,
                    b'P' if self.held.len() == 2 => self.inside = ScannerState::Dcs,
                    b'X' | b'^' | b'_' if self.held.len() == 2 => {
                        self.give(take, |bytes| Scanned::Opaque(bytes));
                        self.inside = ScannerState::Opaque;
                        return &bytes[at + 1..];
                    }
                    // What narrows it, or a control character within it.
                    0..=0x2f => {}
                    _ => {
                        self.give(take, |bytes| Scanned::Sequence(bytes));
                        return &bytes[at + 1..];
                    }
                },
                ScannerState::Csi if matches!(byte, 0x40..=0x7e) => {
                    self.give(take, |bytes| Scanned::Sequence(bytes));
                    return &bytes[at + 1..];
                }
                ScannerState::Osc | ScannerState::Dcs => {
                    let is_osc = self.inside == ScannerState::Osc;
                    if self.may_end || (*byte == BELL && is_osc) {
                        self.give_string(take, if self.may_end { 2 } else { 1 });
                        return &bytes[at + 1..];
                    }
                    self.may_end = *byte == ESCAPE;
                    if !is_osc && self.held.len() == 4 && !is_read(&self.held[2..]) {
                        self.let_through(take);
                        return &bytes[at + 1..];
                    }
                }
                _ => {}
            }
            let max = if is_string { STRING_BYTES_MAX } else { SEQUENCE_BYTES_MAX };
            if self.held.len() > max {
                self.let_through(take);
                return &bytes[at + 1..];
            }
        }
        &[]
    }

    /// Gives out what was held as something that has come to its end.
    fn give(&mut self, take: &mut impl FnMut(Scanned<'_>), of: impl FnOnce(&[u8]) -> Scanned<'_>) {
        let held = std::mem::take(&mut self.held);
        take(of(&held));
        (self.inside, self.may_end) = (ScannerState::Text, false);
    }

    /// Gives out the string that was held, whose terminator has this many bytes.
    fn give_string(&mut self, take: &mut impl FnMut(Scanned<'_>), terminator: usize) {
        let is_osc = self.inside == ScannerState::Osc;
        self.give(take, |whole| {
            let says = &whole[2..whole.len() - terminator];
            if is_osc {
                Scanned::Osc { whole, says }
            } else {
                Scanned::Dcs { whole, says }
            }
        });
    }

    /// Gives out the beginning of something whose end is not waited for.
    fn let_through(&mut self, take: &mut impl FnMut(Scanned<'_>)) {
        // An OSC that is too long ends with BEL, too, and what is seen behind that is text either
        // way.
        let goes_on =
            if self.inside == ScannerState::Dcs { ScannerState::Opaque } else { ScannerState::Text };
        // An escape at its end may be the first half of the terminator, or begin something else.
        let escape = if self.may_end { self.held.pop() } else { None };
        self.give(take, |bytes| Scanned::Opaque(bytes));
        self.inside = goes_on;
        if let Some(escape) = escape {
            (self.inside, self.held) = (ScannerState::Escape, vec![escape]);
        }
    }
}

/// Returns whether a device control string that begins like this is held and read: it asks
/// something.
fn is_read(begins: &[u8]) -> bool {
    matches!(begins, b"+q" | b"$q")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Scans these pieces; returns the results, each with a letter for its kind.
    fn scanned(pieces: &[&[u8]]) -> Vec<(char, String)> {
        let mut scanner = OutputScanner::new();
        let mut all: Vec<(char, String)> = Vec::new();
        let mut take = |piece: Scanned<'_>| {
            let (kind, bytes) = match piece {
                Scanned::Text(bytes) => ('t', bytes),
                Scanned::Sequence(bytes) => ('s', bytes),
                Scanned::Osc { says, .. } => ('o', says),
                Scanned::Dcs { says, .. } => ('d', says),
                Scanned::Opaque(bytes) => ('x', bytes),
            };
            let text = String::from_utf8_lossy(bytes).into_owned();
            match all.last_mut() {
                Some((last, said)) if *last == kind && matches!(kind, 't' | 'x') => said.push_str(&text),
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
    fn what_is_said_is_taken_apart_wherever_it_was_cut() {
        let said = b"a\x1b[31mb\x1b]0;t\x07c\x1b]8;;x\x1b\\d\x1bP+q544e\x1b\\e\x1bP1;2q~~\x1b\\f\x1b(Bg\x1b_k\x1b\\h";
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
        assert_eq!(scanned(&[said]), expected);
        for at in 1..said.len() {
            assert_eq!(scanned(&[&said[..at], &said[at..]]), expected, "cut at {at}");
        }
        let single: Vec<&[u8]> = said.chunks(1).collect();
        assert_eq!(scanned(&single), expected);
    }

    #[test]
    fn what_has_no_end_is_let_out() {
        for (said, expected) in [
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
            assert_eq!(scanned(&[said.as_bytes()]), expected, "{said:?}");
        }
        let of = |bytes: usize| format!("\x1b]52;{}\x07", "x".repeat(bytes - 6));
        assert_eq!(scanned(&[of(STRING_BYTES_MAX).as_bytes()])[0].0, 'o');
        assert_eq!(scanned(&[of(STRING_BYTES_MAX + 1).as_bytes()])[0].0, 'o', "its end is not counted");
        assert_eq!(scanned(&[of(STRING_BYTES_MAX + 2).as_bytes()])[0].0, 'x');
        // The last of its bytes counts here: it may be any of many.
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
        fn no_byte_is_lost(said in prop::collection::vec(prop_oneof![Just(0x1b_u8), Just(b'['), Just(b']'),
            Just(b'P'), Just(b'\\'), Just(7), Just(0x18), Just(b'm'), Just(b'0'), any::<u8>()], 0..200), cut in 0..200_usize)
        {
            let mut scanner = OutputScanner::new();
            let mut all = Vec::new();
            let mut take = |piece: Scanned<'_>| match piece {
                Scanned::Text(bytes) | Scanned::Sequence(bytes) | Scanned::Opaque(bytes) => all.extend_from_slice(bytes),
                Scanned::Osc { whole, .. } | Scanned::Dcs { whole, .. } => all.extend_from_slice(whole),
            };
            let at = cut.min(said.len());
            scanner.scan(&said[..at], &mut take);
            scanner.scan(&said[at..], &mut take);
            scanner.finish(&mut take);
            prop_assert_eq!(all, said);
        }
    }
}
