//! Scrollback: the retained output of a terminal.
//!
//! Owns: trimming it at the beginning when it exceeds a limit: whole parts first, then within a
//! part without splitting a line or an escape sequence.
//! Never: trims the end, drops the part of a running command, or notifies clients: their copy may
//! be longer, and ends the same.

use ahp_types::state::TerminalContentPart;

use crate::wire::escapes::cut_position;

pub(crate) fn text_of(part: &TerminalContentPart) -> &str {
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

/// Maximum number of parts, and the number left after trimming; limited because lines without
/// output take memory, too.
const PARTS_MAX: usize = 1000;
const PARTS_LEFT: usize = 750;

/// Trims content of more than `bytes_max` bytes of text to about `bytes_left`; returns whether
/// anything was trimmed.
pub(crate) fn cut(content: &mut Vec<TerminalContentPart>, bytes_max: usize, bytes_left: usize) -> bool {
    let bytes: usize = content.iter().map(|part| text_of(part).len()).sum();
    let oldest = if content.len() > PARTS_MAX { content.len() - PARTS_LEFT } else { 0 };
    if bytes <= bytes_max && oldest == 0 {
        return false;
    }
    let of_oldest: usize = content[..oldest].iter().map(|part| text_of(part).len()).sum();
    let excess = if bytes <= bytes_max { 0 } else { bytes - bytes_left.min(bytes_max) };
    let mut excess = excess.max(of_oldest);
    let last = content.len().saturating_sub(1);
    let mut at = 0;
    content.retain_mut(|part| {
        let (is_last, length) = (at == last, text_of(part).len());
        at += 1;
        if excess == 0 && at > oldest {
            return true;
        }
        if length <= excess && !is_last && !runs(part) {
            excess -= length;
            return false;
        }
        if let Some(text) = text_of_mut(part) {
            text.drain(..cut_position(text.as_bytes(), excess.min(length)));
        }
        excess = excess.saturating_sub(length);
        true
    });
    true
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
