//! Unsent output of a terminal.
//!
//! Owns: the bytes until they are told, as text of whole characters, and what is left out where
//! there are too many of them.
//! Never: knows where they come from, or when it is time to tell them.

use crate::host::effects::{Event, TerminalEvent};
use crate::wire::escapes::{cut_position, take_text};

/// Maximum size of the unsent output, in bytes: of more, the latest is kept.
const UNTOLD_BYTES_MAX: usize = 64 << 10;

/// From so many bytes on a terminal is told of less often.
const CHATTY_BYTES: u64 = 1 << 20;

/// Unsent output and events of a terminal.
#[derive(Debug, Default)]
pub struct TerminalFeed {
    /// The call in which it was told that it is there.
    is_open: bool,
    /// Set once the end of the terminal was sent.
    is_over: bool,
    untold: Vec<u8>,
    /// Set when output was left out: the unsent bytes do not follow those that were sent.
    is_torn: bool,
    told_bytes: u64,
    /// The command can go on when its call is over.
    detaches: bool,
}

impl TerminalFeed {
    /// Makes the feed of a command of ours, which can go on when its call is over.
    pub fn detaching() -> Self {
        Self { detaches: true, ..Self::default() }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.untold.extend_from_slice(bytes);
        // Room is made for much at once.
        if self.untold.len() > 2 * UNTOLD_BYTES_MAX {
            self.leave_out();
        }
    }

    /// Leaves out what is too much: the oldest of it.
    fn leave_out(&mut self) {
        let excess = self.untold.len().saturating_sub(UNTOLD_BYTES_MAX);
        if excess == 0 {
            return;
        }
        self.untold.drain(..cut_position(&self.untold, excess));
        self.is_torn = true;
    }

    /// Returns whether the opening of the terminal was sent, and its end was not.
    pub fn is_open(&self) -> bool {
        self.is_open && !self.is_over
    }

    /// Returns whether so many bytes were sent that further ones are not sent at once.
    pub fn is_chatty(&self) -> bool {
        self.told_bytes > CHATTY_BYTES
    }

    /// Returns the events to send of the terminal of this name, now that a call shows it. `end` is
    /// the exit code of its command, where it has one, once the command has ended.
    pub fn tell_in(&mut self, call: &str, name: &str, title: &str, end: Option<Option<i64>>) -> Vec<Event> {
        let mut told = Vec::new();
        if !std::mem::replace(&mut self.is_open, true) {
            let (call, title, detaches) = (call.to_owned(), title.to_owned(), self.detaches);
            let event = TerminalEvent::Opened { call, title, detaches };
            told.push(Event::Terminal { name: name.to_owned(), event });
        }
        told.extend(self.tell(name, end));
        told
    }

    /// Returns the unsent events of the terminal of this name; none before a call has shown it.
    pub fn tell(&mut self, name: &str, end: Option<Option<i64>>) -> Vec<Event> {
        if !self.is_open() {
            return Vec::new();
        }
        let mut events = Vec::new();
        self.leave_out();
        let text = take_text(&mut self.untold, end.is_some());
        if std::mem::take(&mut self.is_torn) {
            events.push(TerminalEvent::Cleared);
        }
        self.told_bytes += text.len() as u64;
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
        assert_eq!(feed.tell("t", None), []);
        assert_eq!(feed.tell_in("c", "t", "x", None).len(), 1);
        feed
    }

    #[test]
    fn every_character_is_told_whole_wherever_it_is_read() {
        let all = "aä€𝄞b";
        for at in 0..=all.len() {
            let mut feed = open();
            feed.write(&all.as_bytes()[..at]);
            let mut told = texts(feed.tell("t", None));
            feed.write(&all.as_bytes()[at..]);
            told.extend(texts(feed.tell("t", None)));
            assert_eq!(told.concat(), all, "{at}");
        }
        let mut feed = open();
        feed.write(b"a\xe2\x82");
        assert_eq!(texts(feed.tell("t", None)), ["a"]);
        assert_eq!(texts(feed.tell("t", Some(None))), ["\u{fffd}", "Exited(None)"]);
        feed.write(b"late");
        assert_eq!(texts(feed.tell("t", Some(None))), Vec::<String>::new());
    }

    #[test]
    fn of_too_much_the_latest_is_told() {
        let mut feed = open();
        feed.write(&[b'x'; UNTOLD_BYTES_MAX]);
        assert_eq!(texts(feed.tell("t", None)), ["x".repeat(UNTOLD_BYTES_MAX)]);
        for _ in 0..10 {
            feed.write("ä".repeat(UNTOLD_BYTES_MAX).as_bytes());
            feed.write(b"y");
        }
        let told = texts(feed.tell("t", Some(Some(0))));
        assert!(told[0] == "Cleared" && told[1].len() <= UNTOLD_BYTES_MAX && told[2] == "Exited(Some(0))");
        assert!(told[1].ends_with("äy") && told[1].starts_with('ä'));
        // That something is missing before what is told first is told, too.
        let mut feed = TerminalFeed::default();
        feed.write(&[b'x'; UNTOLD_BYTES_MAX + 1]);
        let told = feed.tell_in("c", "t", "x", None);
        assert_eq!(texts(told)[1..], ["Cleared".to_owned(), "x".repeat(UNTOLD_BYTES_MAX)]);
    }

    #[test]
    fn what_is_left_out_tears_no_line_and_no_escape_sequence() {
        let mut feed = open();
        feed.write(format!("torn \x1b[31m line\n{}", "x".repeat(UNTOLD_BYTES_MAX - 5)).as_bytes());
        assert_eq!(texts(feed.tell("t", None)), ["Cleared".to_owned(), "x".repeat(UNTOLD_BYTES_MAX - 5)]);
        feed.write(format!("\x1b]0;a title\x07{}", "x".repeat(UNTOLD_BYTES_MAX - 5)).as_bytes());
        assert_eq!(texts(feed.tell("t", None)), ["Cleared".to_owned(), "x".repeat(UNTOLD_BYTES_MAX - 5)]);
    }
}
