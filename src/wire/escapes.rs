//! Output of programs to terminals: text with escape sequences.
//!
//! Owns: where such text may be cut, and which of its bytes are whole characters.
//! Never: obeys a sequence, or says what one means.

/// Maximum distance from the earliest place to cut at which the end of a line is looked for, in
/// bytes.
const LINE_BYTES_MAX: usize = 4 << 10;

const ESCAPE: u8 = 0x1b;

/// A character has no more bytes.
const CHARACTER_BYTES_MAX: usize = 4;

/// Position of a program's output relative to escape sequences.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EscapeState {
    Text,
    /// Behind an escape.
    Escape,
    /// In parameters.
    Sequence,
    /// In a string, which ends with BEL or an escape and a backslash.
    Str,
    /// Behind an escape in such a string.
    StrEscape,
}

impl EscapeState {
    fn then(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Str, 0x07) | (_, 0x18 | 0x1a) => Self::Text,
            (Self::Str, ESCAPE) => Self::StrEscape,
            (Self::Str, _) => Self::Str,
            (Self::StrEscape, b'\\') => Self::Text,
            (_, ESCAPE) => Self::Escape,
            (Self::Escape | Self::StrEscape, b'[') => Self::Sequence,
            (Self::Escape | Self::StrEscape, b']' | b'P' | b'X' | b'^' | b'_') => Self::Str,
            (Self::Escape | Self::StrEscape, b' '..=b'/') => Self::Escape,
            (Self::Escape | Self::StrEscape, _) => Self::Text,
            (Self::Sequence, b'@'..=b'~') => Self::Text,
            (Self::Sequence, _) => Self::Sequence,
            (Self::Text, _) => Self::Text,
        }
    }
}

/// Returns the place to cut a text that must lose a number of bytes: behind the end of a line, if
/// one is near, and within no escape sequence or character.
pub fn cut_position(text: &[u8], excess: usize) -> usize {
    let (mut within, mut found, mut at) = (EscapeState::Text, None, 0);
    while at < text.len() && at <= excess.saturating_add(LINE_BYTES_MAX) {
        if within == EscapeState::Text && at + 1 < excess {
            // Until there is a sequence, there is nothing to see before the last byte that must go.
            let before = &text[at..(excess - 1).min(text.len())];
            at += memchr::memchr(ESCAPE, before).unwrap_or(before.len());
        }
        let Some(&byte) = text.get(at) else { break };
        if at >= excess && found.is_none() && within == EscapeState::Text && is_char_start(text, at) {
            found = Some(at);
        }
        within = within.then(byte);
        at += 1;
        if byte == b'\n' && at >= excess && within == EscapeState::Text {
            return at;
        }
    }
    let boundary = || (excess..text.len()).find(|at| is_char_start(text, *at)).unwrap_or(text.len());
    found.unwrap_or_else(boundary)
}

/// Takes the text that these bytes are, but for a character that has no end yet, unless nothing
/// follows them. What is no text is shown as such.
pub fn take_text(bytes: &mut Vec<u8>, is_all: bool) -> String {
    let tail = bytes.len().saturating_sub(CHARACTER_BYTES_MAX - 1);
    let begins = |at: &usize| {
        let no_text = std::str::from_utf8(&bytes[*at..]).err();
        no_text.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    let end = (tail..bytes.len()).find(begins).filter(|_| !is_all).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    bytes.drain(..end);
    text
}

/// Returns such a text without terminal features: no escape sequences, no control characters but
/// tabs and line ends, and of a line that was overwritten the last version.
pub fn plain_text(text: &str) -> String {
    let (mut within, mut plain, mut line) = (EscapeState::Text, String::new(), String::new());
    let mut starts_over = false;
    for char in text.chars() {
        let before = within;
        // No character beyond ASCII ends a sequence.
        within = within.then(u8::try_from(char).ok().filter(u8::is_ascii).unwrap_or(b'0'));
        if before != EscapeState::Text || within != EscapeState::Text {
            continue;
        }
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

/// Returns whether a UTF-8 character begins here. Invalid text may be cut anywhere after some
/// bytes.
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
