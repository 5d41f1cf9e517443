//! Text that is shown to people although somebody else wrote it.
//!
//! Owns: taking out of it what a terminal would obey, and cutting it to a length that can be shown.
//! Never: changes what is data: messages, parts, tool calls and their results go through as they came.

/// The longest error message, in characters; it may hold the last lines of an agent's log.
const MESSAGE_CHARS_MAX: usize = 4000;

/// A text as an error message: no control characters but line ends and tabs, and not longer than
/// can be read.
pub fn message(text: &str) -> String {
    let shows = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    let mut shown = text.chars().filter(shows);
    let mut message: String = shown.by_ref().take(MESSAGE_CHARS_MAX).collect();
    if shown.next().is_some() {
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_holds_nothing_that_a_terminal_obeys() {
        assert_eq!(message("one\n\ttwo ä"), "one\n\ttwo ä");
        assert_eq!(message("\u{1b}[31mred\u{7}\u{9b}2J\r"), "[31mred2J");
    }

    #[test]
    fn the_length_of_a_message_is_exact() {
        let longest = "ä".repeat(MESSAGE_CHARS_MAX);
        assert_eq!(message(&longest), longest);
        assert_eq!(message(&format!("{longest}ä")), format!("{longest}…"));
    }
}
