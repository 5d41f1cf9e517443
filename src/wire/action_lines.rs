//! The line that tells of an action: its envelope, and a notification around it.
//!
//! Owns: how it is written, where the envelope is in it, and how lines of deltas are merged.
//! Never: numbers an action, or decides who is told.

use std::ops::Range;

use ahp_types::actions::{ActionOrigin, StateAction};
use bytes::Bytes;

use super::rpc::{to_json, to_sorted_json};

/// Text of an action's line before its params, and behind them.
const LINE_HEAD: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"action\",\"params\":";
const LINE_TAIL: &[u8] = b"}\n";

/// The envelope (JSON text) inside an action's line.
pub fn envelope_of(line: &Bytes) -> Bytes {
    line.slice(LINE_HEAD.len()..line.len() - LINE_TAIL.len())
}

/// An action's JSON text, the same for the same action: straight from its type where that has no
/// `HashMap` inside, which is so for everything that streams; else sorted.
pub fn action_json(action: &StateAction) -> Vec<u8> {
    match action {
        StateAction::ChatDelta(_)
        | StateAction::ChatReasoning(_)
        | StateAction::ChatToolCallStart(_)
        | StateAction::ChatToolCallDelta(_)
        | StateAction::ChatToolCallComplete(_)
        | StateAction::ChatToolCallContentChanged(_)
        | StateAction::ChatUsage(_)
        | StateAction::ChatActivityChanged(_)
        | StateAction::TerminalData(_) => to_json(action),
        _ => to_sorted_json(action),
    }
}

/// The line of an action (its JSON text); where it is refused, with why.
pub fn envelope_line(
    channel: &str,
    action: &[u8],
    server_seq: u64,
    origin: Option<&ActionOrigin>,
    refusal: Option<&str>,
) -> Bytes {
    let mut line = Vec::with_capacity(action.len() + channel.len() + 120);
    begin_line(&mut line, channel);
    line.extend_from_slice(action);
    end_line(&mut line, server_seq, origin, refusal);
    line.into()
}

/// Writes the text of such a line before the action.
pub fn begin_line(line: &mut Vec<u8>, channel: &str) {
    line.extend_from_slice(LINE_HEAD);
    line.extend_from_slice(b"{\"channel\":");
    line.extend_from_slice(&to_json(channel));
    line.extend_from_slice(b",\"action\":");
}

/// Writes the text of such a line behind the action.
pub fn end_line(line: &mut Vec<u8>, server_seq: u64, origin: Option<&ActionOrigin>, refusal: Option<&str>) {
    line.extend_from_slice(b",\"serverSeq\":");
    line.extend_from_slice(&to_json(&server_seq));
    if let Some(origin) = origin {
        line.extend_from_slice(b",\"origin\":");
        line.extend_from_slice(&to_json(origin));
    }
    if let Some(refusal) = refusal {
        line.extend_from_slice(b",\"rejectionReason\":");
        line.extend_from_slice(&to_json(refusal));
    }
    line.push(b'}');
    line.extend_from_slice(LINE_TAIL);
}

/// Lines of deltas of one part, merged while they wait: the texts of all, everything else of the
/// last.
///
/// The text is the last member of a delta's action, and a quote inside a string never stands
/// without a backslash, so the first `,"content":"` is where the text begins.
#[derive(Debug)]
pub struct MergedDeltas {
    line: Vec<u8>,
    text_end: usize,
}

impl MergedDeltas {
    /// Begins with one line; none when it is not what a delta's line looks like.
    pub fn new(first: &[u8]) -> Option<Self> {
        let text = text_range(first)?;
        Some(Self { line: first.to_vec(), text_end: text.end })
    }

    /// Takes the next line in, at the cost of its own length; false, and nothing is changed, when
    /// it is no delta's line or the whole would be longer than `line_bytes_max`.
    pub fn append(&mut self, next: &[u8], line_bytes_max: usize) -> bool {
        let Some(text) = text_range(next) else { return false };
        if self.text_end + (next.len() - text.start) > line_bytes_max {
            return false;
        }
        self.line.truncate(self.text_end);
        self.line.extend_from_slice(&next[text.start..]);
        self.text_end += text.len();
        true
    }

    /// Length of the line, in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Returns the line.
    pub fn into_line(self) -> Bytes {
        self.line.into()
    }
}

/// Returns where the text of a delta's line is, without its quotes; `None` if the line is not one
/// of a delta.
pub fn text_range(line: &[u8]) -> Option<Range<usize>> {
    const BEFORE: &[u8] = b",\"content\":\"";
    const AFTER: &[u8] = b"\"},\"serverSeq\":";
    let start = line.windows(BEFORE.len()).position(|window| window == BEFORE)? + BEFORE.len();
    let end = line.windows(AFTER.len()).rposition(|window| window == AFTER)?;
    (start <= end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ahp_types::actions::{ActionEnvelope, ChatDeltaAction};
    use ahp_types::messages::JsonRpcNotification;

    fn line_of(text: &str, server_seq: u64) -> Bytes {
        let action = StateAction::ChatDelta(ChatDeltaAction {
            turn_id: r#"t","content":"x"#.to_owned(),
            part_id: "p".to_owned(),
            content: text.to_owned(),
            meta: None,
        });
        envelope_line(r#"ahp-chat:/"},"serverSeq":"#, &action_json(&action), server_seq, None, None)
    }

    #[test]
    fn merged_deltas_hold_both_texts_and_the_later_number() {
        for (first, second) in
            [("a", "b"), ("", ""), ("\"},\"serverSeq\":1", ",\"content\":\""), ("\\", "\"ä\n")]
        {
            let mut merged = MergedDeltas::new(&line_of(first, 6)).unwrap();
            assert!(merged.append(&line_of("", 7), 1000) && merged.append(&line_of(second, 8), 1000));
            assert_eq!(merged.len(), line_of(&format!("{first}{second}"), 8).len());
            let notification: JsonRpcNotification = serde_json::from_slice(&merged.into_line()).unwrap();
            let envelope: ActionEnvelope = serde_json::from_value(notification.params.unwrap()).unwrap();
            assert_eq!(envelope.server_seq, 8);
            let StateAction::ChatDelta(delta) = envelope.action else { panic!("no delta") };
            assert_eq!(delta.content, format!("{first}{second}"));
        }
    }

    #[test]
    fn the_envelope_is_what_the_line_delivers() {
        let envelope: ActionEnvelope = serde_json::from_slice(&envelope_of(&line_of("x", 3))).unwrap();
        assert_eq!(envelope.server_seq, 3);
    }
}
