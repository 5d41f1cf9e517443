//! Line of an action: its envelope in a notification.
//!
//! Owns: its text, the position of the envelope, and merging lines of deltas.
//! Never: numbers an action, or decides who gets it.

use std::sync::LazyLock;

use ahp_types::actions::{ActionOrigin, StateAction};
use bytes::Bytes;
use memchr::{memchr, memmem, memrchr};

use super::rpc::{to_json, to_sorted_json};
use super::text::push_escaped;

/// Text of an action's line before and behind its params.
const LINE_HEAD: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"action\",\"params\":";
const LINE_TAIL: &[u8] = b"}\n";

/// Text of a delta's line before and behind the delta's text.
const BEFORE_TEXT: &[u8] = b",\"content\":\"";
const BEHIND_TEXT: &[u8] = b"\"},\"serverSeq\":";

/// Maximum length of a delta's line behind its text, in bytes.
const TAIL_BYTES_MAX: usize = BEHIND_TEXT.len() + 20 + 1 + LINE_TAIL.len();

/// Returns the envelope in an action's line, as JSON text; empty if the action was emptied, because
/// its channel was purged.
pub fn envelope_of(line: &Bytes) -> Bytes {
    let end = line.len().saturating_sub(LINE_TAIL.len());
    line.slice(LINE_HEAD.len().min(end)..end)
}

/// Returns an action's JSON text, which is equal for equal actions. Types of streamed actions
/// contain no `HashMap` and need no sorting.
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

/// Makes the line of an action from its JSON text; `refusal` is the reason if it is refused.
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

/// Writes the part of an action's line before the action.
pub fn begin_line(line: &mut Vec<u8>, channel: &str) {
    line.extend_from_slice(LINE_HEAD);
    line.extend_from_slice(b"{\"channel\":");
    line.extend_from_slice(&to_json(channel));
    line.extend_from_slice(b",\"action\":");
}

/// Writes the part of an action's line behind the action.
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

/// Lines of consecutive deltas of one part.
///
/// Before their texts the lines are equal. The text is the last member of a delta's action, and
/// only the number behind it differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaLines {
    lines: Bytes,
    /// Length of each line before its text, in bytes.
    head: usize,
    /// Length of all texts in JSON, in bytes.
    text_bytes: usize,
    tail: usize,
}

impl DeltaLines {
    /// Reads a delta's line; `None` if it has another form. The text begins at the first
    /// `,"content":"`, because quotes inside strings have a backslash.
    pub fn read(line: Bytes) -> Option<Self> {
        // Building a finder takes longer than finding in one line.
        static FINDER: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(BEFORE_TEXT));
        let head = FINDER.find(&line)? + BEFORE_TEXT.len();
        let end = text_end(&line).filter(|end| line[*end..].starts_with(BEHIND_TEXT))?;
        let text_bytes = end.checked_sub(head)?;
        Some(Self { head, text_bytes, tail: line.len() - end, lines: line })
    }

    /// Returns the lines.
    pub fn lines(&self) -> &Bytes {
        &self.lines
    }

    /// Returns each line.
    pub fn each(&self) -> impl Iterator<Item = Bytes> + '_ {
        split_lines(&self.lines)
    }

    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.lines[..];
        std::iter::from_fn(move || {
            let end = memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
            let (line, behind) = rest.split_at(end);
            rest = behind;
            line.get(self.head..text_end(line)?)
        })
    }

    /// Appends the texts of all lines, escaped as in JSON.
    pub fn push_texts(&self, text: &mut Vec<u8>) {
        self.texts().for_each(|own| text.extend_from_slice(own));
    }

    /// Returns the lines with `head` before each text.
    #[must_use]
    pub fn with_head(&self, head: &[u8]) -> Self {
        let lines: Vec<u8> =
            self.each().flat_map(|line| [head, line.get(self.head..).unwrap_or_default()].concat()).collect();
        Self { lines: lines.into(), head: head.len(), ..*self }
    }

    /// Returns the part of each line before its text.
    pub fn head(&self) -> &[u8] {
        &self.lines[..self.head]
    }

    /// Returns the part of the last line behind its text.
    pub fn tail(&self) -> &[u8] {
        &self.lines[self.lines.len() - self.tail..]
    }

    /// Returns the length of all texts in JSON, in bytes.
    pub fn text_bytes(&self) -> usize {
        self.text_bytes
    }
}

/// Returns the end of the text of a delta's line: the last quote is in the member behind it.
fn text_end(line: &[u8]) -> Option<usize> {
    memrchr(b'"', line)?.checked_sub(BEHIND_TEXT.len() - 2)
}

/// Splits text into its lines, with their line ends.
pub fn split_lines(lines: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    let mut rest = lines.clone();
    std::iter::from_fn(move || {
        let end = memchr(b'\n', &rest).map_or(rest.len(), |at| at + 1);
        Some(rest.split_to(end)).filter(|line| !line.is_empty())
    })
}

/// Writer of lines of consecutive deltas of one part.
#[derive(Debug)]
pub struct DeltaWriter {
    head: Vec<u8>,
    lines: Vec<u8>,
    text_bytes: usize,
    tail: usize,
}

impl DeltaWriter {
    /// Creates a writer; `action` is `chat/delta` or `chat/reasoning`.
    pub fn new(channel: &str, action: &str, turn_id: &str, part_id: &str) -> Self {
        let mut head =
            Vec::with_capacity(LINE_HEAD.len() + channel.len() + turn_id.len() + part_id.len() + 100);
        head.extend_from_slice(LINE_HEAD);
        head.extend_from_slice(b"{\"channel\":\"");
        push_escaped(&mut head, channel);
        head.extend_from_slice(b"\",\"action\":{\"type\":\"");
        head.extend_from_slice(action.as_bytes());
        head.extend_from_slice(b"\",\"turnId\":\"");
        push_escaped(&mut head, turn_id);
        head.extend_from_slice(b"\",\"partId\":\"");
        push_escaped(&mut head, part_id);
        head.push(b'"');
        head.extend_from_slice(BEFORE_TEXT);
        Self { head, lines: Vec::new(), text_bytes: 0, tail: 0 }
    }

    /// Reserves memory for the first texts, and returns their number: as many as fit into
    /// `bytes_max` without escapes, at least one.
    pub fn make_room(&mut self, texts: &[String], bytes_max: usize) -> usize {
        let (mut count, mut bytes) = (0, 0);
        for text in texts {
            let more = self.head.len() + text.len() + TAIL_BYTES_MAX;
            if count > 0 && bytes + more > bytes_max {
                break;
            }
            (count, bytes) = (count + 1, bytes + more);
        }
        self.lines.reserve_exact(bytes);
        count
    }

    /// Writes a line. Returns the length of its text in JSON, in bytes.
    pub fn push(&mut self, text: &str, server_seq: u64) -> usize {
        self.lines.extend_from_slice(&self.head);
        let bytes = push_escaped(&mut self.lines, text);
        let end = self.lines.len();
        self.lines.extend_from_slice(BEHIND_TEXT);
        push_number(&mut self.lines, server_seq);
        self.lines.push(b'}');
        self.lines.extend_from_slice(LINE_TAIL);
        self.tail = self.lines.len() - end;
        self.text_bytes += bytes;
        bytes
    }

    /// Takes the lines written so far.
    pub fn take(&mut self) -> DeltaLines {
        let lines = std::mem::take(&mut self.lines).into();
        let text_bytes = std::mem::take(&mut self.text_bytes);
        DeltaLines { lines, head: self.head.len(), text_bytes, tail: self.tail }
    }
}

/// Merged lines of deltas of one part: the texts of all, otherwise the last line.
#[derive(Debug)]
pub struct MergedDeltas {
    line: Vec<u8>,
    head: usize,
    text_end: usize,
}

impl MergedDeltas {
    /// Starts with these lines.
    pub fn new(first: &DeltaLines) -> Self {
        let mut line = Vec::with_capacity(first.head + first.text_bytes + first.tail);
        line.extend_from_slice(first.head());
        let mut merged = Self { head: line.len(), text_end: line.len(), line };
        merged.push(first);
        merged
    }

    /// Appends lines; returns false and changes nothing if the line would exceed `line_bytes_max`.
    pub fn append(&mut self, next: &DeltaLines, line_bytes_max: usize) -> bool {
        let fits = self.text_end + next.text_bytes + next.tail <= line_bytes_max;
        if fits {
            self.push(next);
        }
        fits
    }

    fn push(&mut self, next: &DeltaLines) {
        self.line.truncate(self.text_end);
        next.push_texts(&mut self.line);
        self.text_end = self.line.len();
        self.line.extend_from_slice(next.tail());
    }

    /// Returns the length of the line, in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Returns the merged line.
    pub fn into_lines(self) -> DeltaLines {
        let Self { line, head, text_end } = self;
        DeltaLines { head, text_bytes: text_end - head, tail: line.len() - text_end, lines: line.into() }
    }
}

/// Merges runs of deltas of one part among lines, each into lines of at most `line_bytes_max` bytes
/// where its own lines are not longer. Applying the result leads to the same state.
pub fn merge_runs(lines: &[Bytes], line_bytes_max: usize) -> Vec<Bytes> {
    let is_text = |delta: &DeltaLines| {
        let is = |action: &[u8]| memmem::find(delta.head(), action).is_some();
        is(b",\"action\":{\"type\":\"chat/delta\",") || is(b",\"action\":{\"type\":\"chat/reasoning\",")
    };
    let mut merged = Vec::new();
    let mut run: Option<MergedDeltas> = None;
    for line in lines {
        let delta = DeltaLines::read(line.clone());
        if let (Some(run), Some(delta)) = (&mut run, &delta) {
            if run.line[..run.head] == *delta.head() && run.append(delta, line_bytes_max) {
                continue;
            }
        }
        merged.extend(run.take().map(|run| run.line.into()));
        match delta.filter(is_text) {
            Some(delta) => run = Some(MergedDeltas::new(&delta)),
            None => merged.push(line.clone()),
        }
    }
    merged.extend(run.map(|run| run.line.into()));
    merged
}

fn push_number(json: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b'0'; 20];
    let mut first = digits.len() - 1;
    loop {
        digits[first] += (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
        first -= 1;
    }
    json.extend_from_slice(&digits[first..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ahp_types::actions::{ActionEnvelope, ChatDeltaAction};
    use ahp_types::messages::JsonRpcNotification;

    const CHANNEL: &str = r#"ahp-chat:/"},"serverSeq":"#;
    const TURN: &str = r#"t","content":"x"#;

    fn line_of(text: &str, server_seq: u64) -> Bytes {
        let action = StateAction::ChatDelta(ChatDeltaAction {
            turn_id: TURN.to_owned(),
            part_id: "p".to_owned(),
            content: text.to_owned(),
            meta: None,
        });
        envelope_line(CHANNEL, &action_json(&action), server_seq, None, None)
    }

    fn lines_of(texts: &[&str], first: u64) -> DeltaLines {
        let mut writer = DeltaWriter::new(CHANNEL, "chat/delta", TURN, "p");
        for (text, server_seq) in texts.iter().zip(first..) {
            assert_eq!(writer.push(text, server_seq) + 2, to_json(*text).len());
        }
        writer.take()
    }

    const TEXTS: [(&str, &str); 4] =
        [("a", "b"), ("", ""), ("\"},\"serverSeq\":1", ",\"content\":\""), ("\\", "\"ä\n")];

    #[test]
    fn lines_of_deltas_are_those_of_their_actions() {
        for (first, second) in TEXTS {
            for server_seq in [1, 9, 10, 99, 12_345, u64::MAX - 2] {
                let lines = [line_of(first, server_seq), line_of(second, server_seq + 1)];
                let written = lines_of(&[first, second], server_seq);
                assert_eq!(written.each().collect::<Vec<_>>(), lines);
                let alone = DeltaLines::read(lines[0].clone()).unwrap();
                assert_eq!(alone, lines_of(&[first], server_seq));
            }
        }
        assert_eq!(DeltaLines::read(Bytes::from("{}\n")), None);
    }

    #[test]
    fn merged_deltas_hold_all_texts_and_the_last_number() {
        for (first, second) in TEXTS {
            let mut merged = MergedDeltas::new(&lines_of(&[first, ""], 6));
            assert!(merged.append(&DeltaLines::read(line_of(second, 8)).unwrap(), 1000));
            assert_eq!(merged.len(), line_of(&format!("{first}{second}"), 8).len());
            let length = merged.len();
            assert!(!merged.append(&lines_of(&["x", "y"], 9), length + 1), "it is too long");
            let notification: JsonRpcNotification =
                serde_json::from_slice(merged.into_lines().lines()).unwrap();
            let envelope: ActionEnvelope = serde_json::from_value(notification.params.unwrap()).unwrap();
            assert_eq!(envelope.server_seq, 8);
            let StateAction::ChatDelta(delta) = envelope.action else { panic!("no delta") };
            assert_eq!(delta.content, format!("{first}{second}"));
        }
    }

    #[test]
    fn only_runs_of_deltas_of_one_part_are_merged() {
        let of = |action: &str, part: &str, text: &str, server_seq: u64| {
            let mut writer = DeltaWriter::new(CHANNEL, action, TURN, part);
            writer.push(text, server_seq);
            writer.take().lines().clone()
        };
        let other = Bytes::from("{}\n");
        let call = of("chat/toolCallDelta", "p", "c", 6);
        let lines = [
            line_of("a", 1),
            line_of("\"b", 2),
            of("chat/delta", "q", "c", 3),
            of("chat/reasoning", "q", "d", 4),
            other.clone(),
            line_of("e", 5),
            call.clone(),
            call.clone(),
            line_of("f", 9),
            line_of("g", 10),
        ];
        let expected = [
            line_of("a\"b", 2),
            lines[2].clone(),
            lines[3].clone(),
            other,
            lines[5].clone(),
            call.clone(),
            call,
            line_of("fg", 10),
        ];
        assert_eq!(merge_runs(&lines, 1000), expected);
        assert_eq!(merge_runs(&lines, lines[8].len()), lines, "merged lines would be too long");
    }

    #[test]
    fn the_envelope_is_what_the_line_delivers() {
        let envelope: ActionEnvelope = serde_json::from_slice(&envelope_of(&line_of("x", 3))).unwrap();
        assert_eq!(envelope.server_seq, 3);
    }
}
