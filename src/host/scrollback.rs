//! What a terminal has shown, as far as it is kept.
//!
//! Owns: cutting it at its beginning when it has become too much: whole parts first, and inside a part where no line and no
//! escape sequence is torn.
//! Never: cuts what comes last, drops the part of a command that runs, or tells anybody: what clients hold of it may be
//! longer, and ends like this.

use ahp_types::state::TerminalContentPart;

/// How far behind the place where it must be cut at the earliest the end of a line is looked for, in bytes.
const LINE_BYTES_MAX: usize = 4 << 10;

/// The text of a part.
pub(super) fn text_of(part: &TerminalContentPart) -> &str {
    match part {
        TerminalContentPart::Unclassified(part) => &part.value,
        TerminalContentPart::Command(part) => &part.output,
        TerminalContentPart::Unknown(_) => "",
    }
}

fn text_of_mut(part: &mut TerminalContentPart) -> Option<&mut String> {
    match part {
        TerminalContentPart::Unclassified(part) => Some(&mut part.value),
        TerminalContentPart::Command(part) => Some(&mut part.output),
        TerminalContentPart::Unknown(_) => None,
    }
}

fn runs(part: &TerminalContentPart) -> bool {
    matches!(part, TerminalContentPart::Command(command) if !command.is_complete)
}

/// Cuts content of more than `bytes_max` bytes of text to about `bytes_left`; returns whether anything was cut.
pub(super) fn cut(content: &mut Vec<TerminalContentPart>, bytes_max: usize, bytes_left: usize) -> bool {
    let bytes: usize = content.iter().map(|part| text_of(part).len()).sum();
    if bytes <= bytes_max {
        return false;
    }
    let mut excess = bytes - bytes_left.min(bytes_max);
    let last = content.len().saturating_sub(1);
    let mut at = 0;
    content.retain_mut(|part| {
        let (is_last, length) = (at == last, text_of(part).len());
        at += 1;
        if excess == 0 {
            return true;
        }
        if length <= excess && !is_last && !runs(part) {
            excess -= length;
            return false;
        }
        if let Some(text) = text_of_mut(part) {
            text.drain(..place_to_cut(text, excess.min(length)));
        }
        excess = excess.saturating_sub(length);
        true
    });
    true
}

/// Where a program is in what it says to its terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
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

impl Within {
    fn then(self, char: char) -> Self {
        match (self, char) {
            (Self::Str, '\x07') | (_, '\x18' | '\x1a') => Self::Text,
            (Self::Str, '\x1b') => Self::StrEscape,
            (Self::Str, _) => Self::Str,
            (Self::StrEscape, '\\') => Self::Text,
            (_, '\x1b') => Self::Escape,
            (Self::Escape | Self::StrEscape, '[') => Self::Sequence,
            (Self::Escape | Self::StrEscape, ']' | 'P' | 'X' | '^' | '_') => Self::Str,
            (Self::Escape | Self::StrEscape, ' '..='/') => Self::Escape,
            (Self::Escape | Self::StrEscape, _) => Self::Text,
            (Self::Sequence, '@'..='~') => Self::Text,
            (Self::Sequence, _) => Self::Sequence,
            (Self::Text, _) => Self::Text,
        }
    }
}

/// Where to cut a text that must lose so many bytes: behind the end of a line, if one is near, and within no escape
/// sequence.
fn place_to_cut(text: &str, excess: usize) -> usize {
    let mut within = Within::Text;
    let mut found = None;
    for (at, char) in text.char_indices() {
        if at >= excess && found.is_none() && within == Within::Text {
            found = Some(at);
        }
        if at > excess + LINE_BYTES_MAX {
            break;
        }
        within = within.then(char);
        let end = at + char.len_utf8();
        if char == '\n' && end >= excess && within == Within::Text {
            return end;
        }
    }
    let boundary = || (excess..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    found.unwrap_or_else(boundary)
}

#[cfg(test)]
mod tests {
    use ahp_types::state::{TerminalCommandPart, TerminalUnclassifiedPart};
    use proptest::prelude::*;

    use super::*;

    fn plain(value: &str) -> TerminalContentPart {
        TerminalContentPart::Unclassified(TerminalUnclassifiedPart { value: value.to_owned() })
    }

    fn command(output: &str, is_complete: bool) -> TerminalContentPart {
        TerminalContentPart::Command(TerminalCommandPart {
            command_id: "c".to_owned(),
            command_line: "x".to_owned(),
            output: output.to_owned(),
            timestamp: 0,
            is_complete,
            exit_code: None,
            duration_ms: None,
        })
    }

    fn joined(content: &[TerminalContentPart]) -> String {
        content.iter().map(text_of).collect()
    }

    #[test]
    fn it_is_cut_only_past_its_limit() {
        let mut content = vec![plain(&"x".repeat(10))];
        assert!(!cut(&mut content, 10, 5) && joined(&content).len() == 10);
        content[0] = plain(&"x".repeat(11));
        assert!(cut(&mut content, 10, 5));
        assert_eq!(joined(&content).len(), 5);
    }

    #[test]
    fn whole_parts_go_first_and_a_command_that_runs_stays() {
        let mut content =
            vec![plain("prompt"), command("old", true), command("runs on", false), plain("tail")];
        cut(&mut content, 10, 7);
        assert_eq!(
            content,
            [command("s on", false), plain("tail")].map(|part| match part {
                TerminalContentPart::Command(_) => command(" on", false),
                part => part,
            })
        );
        let mut content = vec![command("0123456789", false), plain("tail")];
        cut(&mut content, 5, 3);
        assert_eq!(content, [command("", false), plain("ail")]);
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
        ] {
            assert_eq!(&text[place_to_cut(text, excess)..], left, "{text:?} {excess}");
        }
    }

    proptest! {
        #[test]
        fn what_is_left_is_the_end_of_it(texts in prop::collection::vec("[a\\nä\\x1b\\]\\[m;]{0,30}", 1..6), max in 0..80_usize, left in 0..80_usize) {
            let mut content: Vec<_> = texts.iter().map(|text| plain(text)).collect();
            let whole = joined(&content);
            let was_cut = cut(&mut content, max, left);
            prop_assert!(whole.ends_with(&joined(&content)));
            prop_assert_eq!(was_cut, whole.len() > max);
            prop_assert!(joined(&content).len() <= max.max(whole.len().min(left)));
        }
    }
}
