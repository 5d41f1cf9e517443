//! Output of programs to terminals: text with escape sequences.
//!
//! Owns: the extent of sequences, the text outside, and the positions where text may be cut.
//! Never: executes or interprets a sequence.

/// Maximum distance in which a line end is searched behind the earliest cut position, in bytes.
const LINE_BYTES_MAX: usize = 4 << 10;

/// First byte of every sequence.
pub const ESCAPE: u8 = 0x1b;

/// Maximum length of a UTF-8 character, in bytes.
pub const CHARACTER_BYTES_MAX: usize = 4;

/// Position in a program's output relative to its escape sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SequenceState {
    /// Position outside of sequences.
    #[default]
    Text,
    /// Position behind an escape.
    Escape,
    /// Position behind an escape and an intermediate byte or a control character.
    Intermediate,
    /// Position in the parameters of a control sequence.
    Csi,
    /// Position in an operating system command, which BEL ends, too.
    Osc,
    /// Position in another string, which only an escape and a backslash end.
    Str,
    /// Position behind an escape in a string.
    StrEscape,
}

impl SequenceState {
    /// Returns the position behind one more byte.
    pub fn then(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Osc, 0x07) | (Self::StrEscape, b'\\') | (_, 0x18 | 0x1a) => Self::Text,
            (Self::Osc | Self::Str, ESCAPE) => Self::StrEscape,
            (_, ESCAPE) => Self::Escape,
            (Self::Text | Self::Osc | Self::Str, _) => self,
            (Self::Escape | Self::StrEscape, b'[') => Self::Csi,
            (Self::Escape | Self::StrEscape, b']') => Self::Osc,
            (Self::Escape | Self::StrEscape, b'P' | b'X' | b'^' | b'_') => Self::Str,
            (Self::Escape | Self::StrEscape | Self::Intermediate, ..=b'/') => Self::Intermediate,
            (Self::Csi, ..=b'?' | 0x7f..) => Self::Csi,
            _ => Self::Text,
        }
    }

    /// Returns the position behind one more character.
    fn then_char(self, char: char) -> Self {
        match u8::try_from(char) {
            Ok(byte @ ..=0x7f) => self.then(byte),
            // A C1 control stands for an escape and a byte.
            Ok(byte @ ..=0x9f) => Self::Escape.then(byte - 0x40),
            // No other character ends a control sequence.
            _ => self.then(b'0'),
        }
    }
}

/// Returns the position to cut a text that must lose `excess` bytes: behind a line end if one is
/// near, and not inside an escape sequence or a character.
pub fn cut_position(text: &[u8], excess: usize) -> usize {
    let (mut state, mut found, mut at) = (SequenceState::Text, None, 0);
    while at < text.len() && at <= excess.saturating_add(LINE_BYTES_MAX) {
        if state == SequenceState::Text && at + 1 < excess {
            // The state stays until the next sequence, and no cut is due before `excess`.
            let before = &text[at..(excess - 1).min(text.len())];
            at += memchr::memchr(ESCAPE, before).unwrap_or(before.len());
        }
        let Some(&byte) = text.get(at) else { break };
        if at >= excess && found.is_none() && state == SequenceState::Text && is_char_start(text, at) {
            found = Some(at);
        }
        state = state.then(byte);
        at += 1;
        if byte == b'\n' && at >= excess && state == SequenceState::Text {
            return at;
        }
    }
    let boundary = || (excess..text.len()).find(|at| is_char_start(text, *at)).unwrap_or(text.len());
    found.unwrap_or_else(boundary)
}

/// Takes the text from bytes, except an incomplete character at the end unless `is_all` is set.
pub fn take_text(bytes: &mut Vec<u8>, is_all: bool) -> String {
    let end = if is_all { bytes.len() } else { whole_characters(bytes).len() };
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    bytes.drain(..end);
    text
}

/// Returns bytes without an incomplete character at their end.
pub fn whole_characters(bytes: &[u8]) -> &[u8] {
    let tail = bytes.len().saturating_sub(CHARACTER_BYTES_MAX - 1);
    let begins = |at: &usize| {
        let no_text = std::str::from_utf8(&bytes[*at..]).err();
        no_text.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    &bytes[..(tail..bytes.len()).find(begins).unwrap_or(bytes.len())]
}

/// Returns the characters of a text outside of its escape sequences. A stray escape hides no text,
/// unless it forms a sequence that programs use.
pub fn outside_sequences(text: &str) -> impl Iterator<Item = char> + '_ {
    let mut state = SequenceState::Text;
    text.chars().filter(move |char| {
        let is_second = matches!(char, ' '..='_' | 'c' | '\u{1b}');
        let before = match state {
            SequenceState::Escape if !is_second => SequenceState::Text,
            state => state,
        };
        state = before.then_char(*char);
        before == SequenceState::Text && state == SequenceState::Text
    })
}

/// Returns output as plain text: no escape sequences, no control characters except tabs and line
/// ends, and only the last version of an overwritten line.
pub fn plain_text(text: &str) -> String {
    let (mut plain, mut line, mut starts_over) = (String::new(), String::new(), false);
    for char in outside_sequences(text) {
        match char {
            '\n' => {
                plain.push_str(&line);
                plain.push('\n');
                line.clear();
                starts_over = false;
            }
            '\r' => starts_over = true,
            '\x08' => {
                line.pop();
            }
            char if char.is_control() && char != '\t' => {}
            char => {
                if std::mem::take(&mut starts_over) {
                    line.clear();
                }
                line.push(char);
            }
        }
    }
    plain.push_str(&line);
    plain
}

/// Returns whether a character begins here. Invalid text may be cut behind three continuations.
fn is_char_start(text: &[u8], at: usize) -> bool {
    let goes_on = |byte: &u8| byte & 0xC0 == 0x80;
    let before = at.checked_sub(3).and_then(|start| text.get(start..at));
    !text.get(at).is_some_and(goes_on) || before.is_some_and(|before| before.iter().all(goes_on))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_is_plain_without_what_a_terminal_obeys() {
        for (text, plain) in [
            ("\x1b[31mred\x1b[m\r\nx", "red\nx"),
            ("\x1b]0;title\x07a\x1b]8;;x\x1b\\b\x1b(Bc", "abc"),
            ("10%\r20%\rdone\r\n", "done\n"),
            ("ab\x08c\tä\x07", "ac\tä"),
            ("\x1b]0;ä\x1b\\€", "€"),
            ("\x1bstray \x1b\tä\x1bä", "stray \tää"),
            ("a\x1bPq\x07x\x1b\\b\u{9b}2Jc\u{9d}0;t\u{9c}d", "abcd"),
        ] {
            assert_eq!(plain_text(text), plain, "{text:?}");
        }
    }

    #[test]
    fn no_line_and_no_escape_sequence_is_torn() {
        for (text, excess, left) in [
            ("one\ntwo\nthree", 2, "two\nthree"),
            ("one\ntwo\nthree", 4, "two\nthree"),
            ("one\ntwo\nthree", 5, "three"),
            ("a\x1b[31mred", 3, "red"),
            ("a\x1b]0;ti\ntle\x07b", 4, "b"),
            ("a\x1b]0;ti\ntle\x1b\\b", 4, "b"),
            ("a\x1b(Bb", 3, "b"),
            ("aäb", 2, "b"),
            ("one", 9, ""),
        ] {
            assert_eq!(&text[cut_position(text.as_bytes(), excess)..], left, "{text:?} {excess}");
        }
        assert_eq!(cut_position(&[0x80; 10], 5), 5, "what is no text is cut all the same");
    }

    proptest! {
        #[test]
        fn no_character_is_torn(text in "[a\\nä€𝄞\\x1b\\]\\[m;]{0,60}", excess in 0..200_usize) {
            let at = cut_position(text.as_bytes(), excess);
            prop_assert!(text.is_char_boundary(at) && at >= excess.min(text.len()));
        }
    }
}
