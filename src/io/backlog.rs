//! Counter of the bytes that are queued for clients; bytes that clients share count once.
//!
//! Owns: the number of queues that hold each line, and the shared text of merged deltas.
//! Never: decides who is disconnected when too much is queued, or the order in which lines go out.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::Bytes;

use crate::host::effects::PartKey;
use crate::sync::lock;
use crate::wire::action_lines::DeltaLines;

/// Maximum number of recent merged texts that are searched for one to share.
const RECENT_MAX: usize = 64;

/// Counter of the bytes that all queues of a host hold.
#[derive(Debug, Clone, Default)]
pub struct Backlog(Arc<Mutex<UnsentBytes>>);

#[derive(Debug, Default)]
struct UnsentBytes {
    bytes: usize,
    /// Number of queues that hold each line, by the address of its bytes.
    lines: HashMap<usize, usize>,
    /// The most recently begun texts, the newest at the end.
    recent: VecDeque<Weak<DeltaText>>,
}

/// A queued line that other queues may hold, too.
#[derive(Debug)]
pub struct SharedLine {
    line: Bytes,
    backlog: Backlog,
}

/// Consecutive deltas of one part, queued as one line: a range of a text that queues may share.
#[derive(Debug)]
pub struct SharedDeltas {
    text: Arc<DeltaText>,
    from: usize,
    to: usize,
    /// Bytes of the line before the text (from the first delta) and after it (from the last delta).
    head: Vec<u8>,
    tail: Vec<u8>,
}

/// Concatenated texts of consecutive deltas of one part, as JSON text.
#[derive(Debug)]
struct DeltaText {
    part: PartKey,
    deltas: Mutex<Deltas>,
    backlog: Backlog,
}

#[derive(Debug)]
struct Deltas {
    text: Vec<u8>,
    /// The lines that were appended last, and the offset at which their texts begin. Every queue
    /// appends the same lines in order, so a queue that lags behind another lags by these lines.
    last: (Bytes, usize),
}

impl Backlog {
    /// Returns the number of queued bytes. Lines that several queues share count once.
    pub fn bytes(&self) -> usize {
        self.waiting().bytes
    }

    /// Counts a line for the queue that holds the returned value.
    pub fn line(&self, line: Bytes) -> SharedLine {
        let mut waiting = self.waiting();
        let queues = waiting.lines.entry(line.as_ptr() as usize).or_default();
        *queues += 1;
        if *queues == 1 {
            waiting.bytes += line.len();
        }
        drop(waiting);
        SharedLine { line, backlog: self.clone() }
    }

    /// Starts a merged line. Shares a text to which another queue has just appended the same
    /// deltas.
    pub fn merge(&self, part: PartKey, lines: &DeltaLines) -> SharedDeltas {
        let recent: Vec<Arc<DeltaText>> =
            self.waiting().recent.iter().rev().filter_map(Weak::upgrade).collect();
        let shared = recent.into_iter().filter(|text| text.part == part).find_map(|text| {
            let range = {
                let deltas = text.deltas();
                let (last, from) = &deltas.last;
                is_same(last, lines.lines()).then(|| (*from, deltas.text.len()))
            };
            range.map(|range| (text, range))
        });
        let (text, (from, to)) = shared.unwrap_or_else(|| {
            let mut text = Vec::with_capacity(lines.text_bytes());
            lines.push_texts(&mut text);
            let to = text.len();
            let deltas = Mutex::new(Deltas { text, last: (lines.lines().clone(), 0) });
            let text = Arc::new(DeltaText { part, deltas, backlog: self.clone() });
            let mut waiting = self.waiting();
            waiting.bytes += to;
            if waiting.recent.len() == RECENT_MAX {
                waiting.recent.pop_front();
            }
            waiting.recent.push_back(Arc::downgrade(&text));
            (text, (0, to))
        });
        SharedDeltas { text, from, to, head: lines.head().to_vec(), tail: lines.tail().to_vec() }
    }

    fn waiting(&self) -> MutexGuard<'_, UnsentBytes> {
        lock(&self.0)
    }
}

fn is_same(one: &Bytes, other: &Bytes) -> bool {
    one.as_ptr() == other.as_ptr() && one.len() == other.len()
}

impl SharedLine {
    /// Returns the counted line.
    pub fn line(&self) -> &Bytes {
        &self.line
    }
}

impl Drop for SharedLine {
    fn drop(&mut self) {
        let mut waiting = self.backlog.waiting();
        let address = self.line.as_ptr() as usize;
        let Some(queues) = waiting.lines.get_mut(&address) else { return };
        *queues -= 1;
        if *queues == 0 {
            waiting.lines.remove(&address);
            waiting.bytes -= self.line.len();
        }
    }
}

impl SharedDeltas {
    /// Appends the next deltas of the part. Returns false and changes nothing if the line would be
    /// longer than `line_bytes_max`, or if other deltas were appended to the shared text.
    pub fn append(&mut self, lines: &DeltaLines, line_bytes_max: usize) -> bool {
        let (more, tail) = (lines.text_bytes(), lines.tail());
        if self.head.len() + (self.to - self.from) + more + tail.len() > line_bytes_max {
            return false;
        }
        let mut deltas = self.text.deltas();
        let begin = deltas.text.len();
        let (last, last_begin) = &deltas.last;
        let is_there = self.to == *last_begin && is_same(last, lines.lines());
        if !is_there {
            if self.to != begin || begin + more > line_bytes_max {
                return false;
            }
            let room = deltas.text.capacity() - begin;
            if room < more {
                // Doubled, as a `Vec` does by itself, but capped at the maximum length of a line.
                let more = more.max(begin).min(line_bytes_max - begin);
                deltas.text.reserve_exact(more);
            }
            lines.push_texts(&mut deltas.text);
            deltas.last = (lines.lines().clone(), begin);
        }
        let end = deltas.text.len();
        drop(deltas);
        if !is_there {
            self.text.backlog.waiting().bytes += end - begin;
        }
        self.to = end;
        self.tail.clear();
        self.tail.extend_from_slice(tail);
        true
    }

    /// Returns the length of the line, in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.head.len() + (self.to - self.from) + self.tail.len()
    }

    /// Builds the line from head, text and tail.
    pub fn to_line(&self) -> Bytes {
        let deltas = self.text.deltas();
        [&self.head, &deltas.text[self.from..self.to], &self.tail].concat().into()
    }
}

impl DeltaText {
    fn deltas(&self) -> MutexGuard<'_, Deltas> {
        lock(&self.deltas)
    }
}

impl Drop for DeltaText {
    fn drop(&mut self) {
        let bytes = self.deltas().text.len();
        self.backlog.waiting().bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::RunId;

    const PART: PartKey = PartKey { run: RunId(1), part: 0 };

    fn delta(text: &str, server_seq: u32) -> Bytes {
        format!(
            r#"{{"params":{{"action":{{"type":"chat/delta","content":"{text}"}},"serverSeq":{server_seq}}}}}"#
        )
        .into()
    }

    #[test]
    fn line_of_several_queues_counts_once_until_the_last_one_has_taken_it() {
        let (backlog, line) = (Backlog::default(), delta("a", 1));
        let (one, two) = (backlog.line(line.clone()), backlog.line(line.clone()));
        // An equal line elsewhere in memory is another one.
        let other = backlog.line(delta("a", 1));
        assert_eq!(backlog.bytes(), 2 * line.len());
        drop(one);
        assert_eq!(backlog.bytes(), 2 * line.len());
        drop((two, other));
        assert_eq!((backlog.bytes(), backlog.waiting().lines.len()), (0, 0));
    }

    #[test]
    fn queues_with_the_same_deltas_share_one_text_wherever_they_begin() {
        let backlog = Backlog::default();
        let of = |seq: u32| DeltaLines::read(delta(&seq.to_string().repeat(10), seq)).unwrap();
        let lines: Vec<DeltaLines> = (1..=4).map(of).collect();
        let (mut one, mut two) = (backlog.merge(PART, &lines[0]), backlog.merge(PART, &lines[0]));
        for deltas in [&mut one, &mut two] {
            assert!(deltas.append(&lines[1], 1000));
        }
        // One that begins later, and one whose delta is elsewhere in memory.
        let late = backlog.merge(PART, &lines[1]);
        assert_eq!(backlog.bytes(), 20, "each delta is there once");
        let own = backlog.merge(PART, &of(2));
        assert_eq!(backlog.bytes(), 20 + 10);
        for deltas in [&mut one, &mut two] {
            assert!(deltas.append(&lines[2], 1000));
        }
        assert!(one.append(&lines[3], 1000));
        let all: String = (1..=4).map(|seq| seq.to_string().repeat(10)).collect();
        assert_eq!(one.to_line(), delta(&all, 4));
        assert_eq!(two.to_line(), delta(&all[..30], 3));
        assert_eq!((late.to_line(), late.len()), (delta(&all[10..20], 2), delta(&all[10..20], 2).len()));
        assert_eq!(own.to_line(), late.to_line());
        drop((one, two, own));
        assert_eq!(backlog.bytes(), 40, "the text is there as long as anybody needs some of it");
        drop(late);
        assert_eq!(backlog.bytes(), 0);
    }

    #[test]
    fn text_that_went_on_in_another_way_is_not_appended_to() {
        let backlog = Backlog::default();
        let lines = |text, seq| DeltaLines::read(delta(text, seq)).unwrap();
        let first_lines = lines("ab", 2);
        let mut first = backlog.merge(PART, &first_lines);
        let mut second = backlog.merge(PART, &first_lines);
        assert!(first.append(&lines("c", 3), 1000));
        assert!(!second.append(&lines("d", 3), 1000));
        assert_eq!((first.to_line(), second.to_line()), (delta("abc", 3), delta("ab", 2)));
        let longest = delta("abcde", 4).len();
        assert!(first.append(&lines("de", 4), longest) && !first.append(&lines("f", 5), longest));
    }
}
