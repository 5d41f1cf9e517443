//! Foreign text, prepared for where it is shown or stored.
//!
//! Owns: removing terminal controls from error messages, cutting texts, and escaping them for JSON.
//! Never: changes data: messages, parts, and tool calls with their results stay as they are.

use ahp_types::common::StringOrMarkdown;

use super::escapes::outside_sequences;
use super::rpc::to_json;

/// Maximum length of an error message, in characters; it may hold the last lines of an agent's log.
const MESSAGE_CHARS_MAX: usize = 4000;

/// Returns a text as an error message, of limited length, without escape sequences and control
/// characters except line ends and tabs. An unterminated sequence extends to the end of its line.
pub fn message(text: &str) -> String {
    let shows = |c: &char| !reorders(*c) && (!c.is_control() || matches!(c, '\n' | '\t'));
    let lines = text.split('\n').enumerate();
    let chars =
        lines.flat_map(|(at, line)| (at > 0).then_some('\n').into_iter().chain(outside_sequences(line)));
    let mut shown = chars.filter(shows);
    let mut message: String = shown.by_ref().take(MESSAGE_CHARS_MAX).collect();
    if shown.next().is_some() {
        message.push('…');
    }
    message
}

/// Returns the text without control characters, which could break a line or affect a terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || reorders(c) { ' ' } else { c }).collect()
}

/// Returns whether a character ends a line or changes the order of what follows, without being a
/// control character.
fn reorders(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the longest beginning of a text with at most `bytes_max` bytes and no split character.
pub fn first_bytes(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns the longest end of a text with at most `bytes_max` bytes and no split character.
pub fn last_bytes(text: &str, bytes_max: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// Returns the length of a text inside a JSON string, in bytes.
pub fn escaped_bytes(text: &str) -> usize {
    text.bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
            0..=0x1f => 6,
            _ => 1,
        })
        .sum()
}

/// Appends a text, escaped for a JSON string. Returns the appended length in bytes.
pub fn push_escaped(json: &mut Vec<u8>, text: &str) -> usize {
    let begin = json.len();
    // No early exit, so that the compiler can vectorize the loop.
    let is_plain = |byte: u8| (byte >= 0x20) & (byte != b'"') & (byte != b'\\');
    if text.bytes().fold(true, |plain, byte| plain & is_plain(byte)) {
        json.extend_from_slice(text.as_bytes());
    } else {
        let quoted = to_json(text);
        json.extend_from_slice(&quoted[1..quoted.len() - 1]);
    }
    json.len() - begin
}

/// Returns the longest beginning of a text with at most `bytes_max` bytes inside a JSON string.
pub fn first_escaped_bytes(text: &str, bytes_max: usize) -> &str {
    let mut bytes = 0;
    let end = text.char_indices().find(|(at, char)| {
        let fits = bytes + escaped_bytes(&text[*at..*at + char.len_utf8()]);
        let is_end = fits > bytes_max;
        bytes = fits;
        is_end
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

/// Returns backticks that can enclose a text: more in sequence than the text contains.
pub fn fence(text: &str) -> String {
    let ticks = text.split(|character| character != '`').map(str::len).max().unwrap_or_default();
    "`".repeat((ticks + 1).max(3))
}

/// Returns the text of a message that is plain or Markdown.
pub fn plain(text: &StringOrMarkdown) -> &str {
    match text {
        StringOrMarkdown::Plain(text) => text,
        StringOrMarkdown::Markdown { markdown } => markdown,
    }
}

/// Formats a number of bytes for people.
pub fn human_size(bytes: usize) -> String {
    match bytes >> 20 {
        mib if mib << 20 == bytes && mib > 0 => format!("{mib} MiB"),
        _ => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rpc::json_bytes;
    use proptest::prelude::*;

    #[test]
    fn no_character_is_cut_in_two() {
        let (text, lengths) = ("aä€𝄞", [0, 1, 3, 6, 10]);
        for bytes_max in 0..12 {
            let fits = |length: &&usize| **length <= bytes_max;
            let first = lengths.iter().rfind(fits).unwrap();
            assert_eq!(first_bytes(text, bytes_max), &text[..*first]);
            let last = lengths.iter().find(|start| 10 - **start <= bytes_max).unwrap();
            assert_eq!(last_bytes(text, bytes_max), &text[*last..]);
        }
    }

    #[test]
    fn a_message_holds_nothing_that_a_terminal_obeys() {
        assert_eq!(message("one\n\ttwo ä"), "one\n\ttwo ä");
        assert_eq!(message("\u{1b}[31mred\u{7}\u{9b}2J\r"), "red");
        assert_eq!(message("a\u{202e}b\u{2066}c\u{2028}d"), "abcd");
        assert_eq!(one_line("a\nb\u{1b}c\u{2028}d\u{202e}"), "a b c d ");
        for (text, shown) in [
            ("\u{1b}]0;title\u{7}a\u{1b}]8;;https://x\u{1b}\\b", "ab"),
            ("\u{1b}Pq no end\nnext", "\nnext"),
            ("\u{1b}(Ba\u{1b}7b\u{1b}\nc\u{1b}[1;3", "ab\nc"),
            ("\u{1b}\u{1b}[1mbold\u{1b}", "bold"),
            ("\u{9d}x\u{9c}[0m is text", "[0m is text"),
        ] {
            assert_eq!(message(text), shown, "{text:?}");
        }
    }

    #[test]
    fn the_length_of_a_message_is_exact() {
        let longest = "ä".repeat(MESSAGE_CHARS_MAX);
        assert_eq!(message(&longest), longest);
        assert_eq!(message(&format!("{longest}ä")), format!("{longest}…"));
    }

    proptest! {
        #[test]
        fn a_text_is_as_long_as_it_is_written(text in any::<String>(), max in 0..40_usize) {
            prop_assert_eq!(json_bytes(&text), escaped_bytes(&text) + 2);
            let mut json = b"\"".to_vec();
            prop_assert_eq!(push_escaped(&mut json, &text), escaped_bytes(&text));
            json.push(b'"');
            prop_assert_eq!(json, to_json(&text));
            let cut = first_escaped_bytes(&text, max);
            prop_assert!(text.starts_with(cut) && escaped_bytes(cut) <= max);
            let next = text[cut.len()..].chars().next();
            prop_assert!(next.is_none_or(|next| escaped_bytes(cut) + escaped_bytes(&next.to_string()) > max));
        }
    }

    #[test]
    fn controls_are_counted_as_they_are_written() {
        let text: String = (0..=0x7f_u8).map(char::from).collect();
        assert_eq!(json_bytes(&text), escaped_bytes(&text) + 2);
    }
}
