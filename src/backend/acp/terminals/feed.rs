//! Unsent output of a terminal.
//!
//! Owns: unsent bytes, their conversion to text at character boundaries, and dropping the oldest
//! when there are too many.
//! Never: knows the source of the output, or when it is due.

use crate::host::effects::{Event, TerminalEvent};
use crate::wire::escapes::{cut_position, take_text};

/// Maximum size of the unsent output, in bytes; the oldest is dropped.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// Number of sent bytes from which on output is sent less often.
const CHATTY_BYTES: u64 = 1 << 20;

#[derive(Debug, Default)]
pub struct TerminalFeed {
    /// Set once the opening of the terminal was sent.
    is_open: bool,
    /// Set once the end of the terminal was sent.
    is_over: bool,
    unsent: Vec<u8>,
    /// Set when output was dropped, so the unsent bytes do not follow the sent ones.
    is_torn: bool,
    sent_bytes: u64,
    /// Set if the command can continue after its call.
    detaches: bool,
}

impl TerminalFeed {
    pub fn detaching() -> Self {
        Self { detaches: true, ..Self::default() }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
        // Truncates rarely, so that the cost is amortized.
        if self.unsent.len() > 2 * UNSENT_BYTES_MAX {
            self.leave_out();
        }
    }

    /// Drops the oldest output beyond the limit.
    fn leave_out(&mut self) {
        let excess = self.unsent.len().saturating_sub(UNSENT_BYTES_MAX);
        if excess == 0 {
            return;
        }
        self.unsent.drain(..cut_position(&self.unsent, excess));
        self.is_torn = true;
    }

    /// Returns whether the opening of the terminal was sent, and its end was not.
    pub fn is_open(&self) -> bool {
        self.is_open && !self.is_over
    }

    pub fn is_chatty(&self) -> bool {
        self.sent_bytes > CHATTY_BYTES
    }

    /// Returns the unsent events of a terminal that a call shows, with its opening if needed. `end`
    /// is set once the command has ended, to its exit code if known.
    pub fn take_unsent_in(
        &mut self,
        call: &str,
        name: &str,
        title: &str,
        end: Option<Option<i64>>,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.is_open, true) {
            let (call, title, detaches) = (call.to_owned(), title.to_owned(), self.detaches);
            let event = TerminalEvent::Opened { call, title, detaches };
            events.push(Event::Terminal { name: name.to_owned(), event });
        }
        events.extend(self.take_unsent(name, end));
        events
    }

    /// Returns the unsent events of a terminal; none until a call has shown it.
    pub fn take_unsent(&mut self, name: &str, end: Option<Option<i64>>) -> Vec<Event> {
        if !self.is_open() {
            return Vec::new();
        }
        let mut events = Vec::new();
        self.leave_out();
        let text = take_text(&mut self.unsent, end.is_some());
        if std::mem::take(&mut self.is_torn) {
            events.push(TerminalEvent::Cleared);
        }
        self.sent_bytes += text.len() as u64;
        events.extend((!text.is_empty()).then_some(TerminalEvent::Data(text)));
        if let Some(code) = end {
            self.is_over = true;
            events.push(TerminalEvent::Exited(code));
        }
        events.into_iter().map(|event| Event::Terminal { name: name.to_owned(), event }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(events: Vec<Event>) -> Vec<String> {
        let of = |event| match event {
            Event::Terminal { event: TerminalEvent::Data(text), .. } => text,
            Event::Terminal { event, .. } => format!("{event:?}"),
            event => panic!("{event:?}"),
        };
        events.into_iter().map(of).collect()
    }

    fn open() -> TerminalFeed {
        let mut feed = TerminalFeed::default();
        assert_eq!(feed.take_unsent("t", None), []);
        assert_eq!(feed.take_unsent_in("c", "t", "x", None).len(), 1);
        feed
    }

    #[test]
    fn every_character_is_sent_whole_wherever_it_is_read() {
        let all = "aä€𝄞b";
        for at in 0..=all.len() {
            let mut feed = open();
            feed.write(&all.as_bytes()[..at]);
            let mut sent = texts(feed.take_unsent("t", None));
            feed.write(&all.as_bytes()[at..]);
            sent.extend(texts(feed.take_unsent("t", None)));
            assert_eq!(sent.concat(), all, "{at}");
        }
        let mut feed = open();
        feed.write(b"a\xe2\x82");
        assert_eq!(texts(feed.take_unsent("t", None)), ["a"]);
        assert_eq!(texts(feed.take_unsent("t", Some(None))), ["\u{fffd}", "Exited(None)"]);
        feed.write(b"late");
        assert_eq!(texts(feed.take_unsent("t", Some(None))), Vec::<String>::new());
    }

    #[test]
    fn latest_output_is_sent_when_it_exceeds_the_limit() {
        let mut feed = open();
        feed.write(&[b'x'; UNSENT_BYTES_MAX]);
        assert_eq!(texts(feed.take_unsent("t", None)), ["x".repeat(UNSENT_BYTES_MAX)]);
        for _ in 0..10 {
            feed.write("ä".repeat(UNSENT_BYTES_MAX).as_bytes());
            feed.write(b"y");
        }
        let sent = texts(feed.take_unsent("t", Some(Some(0))));
        assert!(sent[0] == "Cleared" && sent[1].len() <= UNSENT_BYTES_MAX && sent[2] == "Exited(Some(0))");
        assert!(sent[1].ends_with("äy") && sent[1].starts_with('ä'));
        // Dropped output is reported even before the first events.
        let mut feed = TerminalFeed::default();
        feed.write(&[b'x'; UNSENT_BYTES_MAX + 1]);
        let sent = feed.take_unsent_in("c", "t", "x", None);
        assert_eq!(texts(sent)[1..], ["Cleared".to_owned(), "x".repeat(UNSENT_BYTES_MAX)]);
    }

    #[test]
    fn what_is_left_out_tears_no_line_and_no_escape_sequence() {
        let mut feed = open();
        feed.write(format!("torn \x1b[31m line\n{}", "x".repeat(UNSENT_BYTES_MAX - 5)).as_bytes());
        assert_eq!(
            texts(feed.take_unsent("t", None)),
            ["Cleared".to_owned(), "x".repeat(UNSENT_BYTES_MAX - 5)]
        );
        feed.write(format!("\x1b]0;a title\x07{}", "x".repeat(UNSENT_BYTES_MAX - 5)).as_bytes());
        assert_eq!(
            texts(feed.take_unsent("t", None)),
            ["Cleared".to_owned(), "x".repeat(UNSENT_BYTES_MAX - 5)]
        );
    }
}
