//! The number by which it is known to which terminal a process belongs, wherever it has gone.
//!
//! It is the limit of file locks (`RLIMIT_LOCKS`), which Linux has not enforced since 2.4.25 and
//! everybody may read (`Max file locks` in `/proc/PID/limits`). Who descends from a process
//! inherits it, through `fork`, `exec` and `setsid`, with an empty environment, and when its
//! parents end. Only the superuser can raise it. Nothing that a program does by itself changes it;
//! one that lowers it on purpose and then leaves its session and its parents is not known any more,
//! and ends with the last terminal.
//!
//! A host can run in a terminal of another host, and gives out lower numbers than its own, of a
//! range that belongs to its own: so the outer host knows, too, whose they are.
//!
//! Owns: which numbers there are, and reading that of a process.
//! Never: takes one for another's.

use std::fs;
use std::io;

use rustix::process::{getpid, getrlimit, setrlimit, RawPid, Resource, Rlimit};

/// A digit of so many bits of a number says which terminal of a host it is; those below it are for
/// hosts in that terminal.
const DIGIT_BITS: u32 = 16;

/// Number that stands in for that of a host that has none.
const TOP: u64 = 1 << 62;

/// The number of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TerminalMark(u64);

impl TerminalMark {
    /// Returns the count of numbers, from this one down, that belong to this terminal.
    fn width(self) -> u64 {
        1 << self.0.trailing_zeros()
    }

    /// Returns whether a process with this limit belongs to the terminal.
    pub fn has(self, limit: u64) -> bool {
        limit <= self.0 && self.0 - limit < self.width()
    }

    /// The number as it is said to the leader of a session.
    pub fn text(self) -> String {
        self.0.to_string()
    }

    /// A number that was said so.
    pub fn of_text(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number| *number > 0).map(Self)
    }

    /// Gives this process the number, and all who will descend from it.
    ///
    /// # Errors
    /// When it does not have it then.
    pub fn put_on(self) -> io::Result<()> {
        setrlimit(Resource::Locks, Rlimit { current: Some(self.0), maximum: Some(self.0) })?;
        if limits_of(getpid().as_raw_pid()) == Some((Some(self.0), Some(self.0))) {
            Ok(())
        } else {
            Err(io::Error::other("the limit of file locks cannot be read back"))
        }
    }
}

/// The numbers that a host has for its terminals.
#[derive(Debug)]
pub struct TerminalMarks {
    top: u64,
    given: u64,
}

impl TerminalMarks {
    /// Returns the numbers of this process; `None` if there is no room for any below its own.
    pub fn ours() -> Option<Self> {
        Self::below(getrlimit(Resource::Locks).maximum)
    }

    fn below(limit: Option<u64>) -> Option<Self> {
        let top = limit.unwrap_or(TOP);
        (top > 0 && top.trailing_zeros() >= DIGIT_BITS).then_some(Self { top, given: 0 })
    }

    /// The next one that is not `taken`; none when all are.
    pub fn next(&mut self, taken: impl Fn(TerminalMark) -> bool) -> Option<TerminalMark> {
        // The last bit of the digit is always set, so that a number tells how long its own digits
        // are.
        let digits = 1 << (DIGIT_BITS - 1);
        (0..digits).find_map(|_| {
            let digit = 2 * (self.given % digits) + 1;
            self.given += 1;
            let mark = TerminalMark(self.top - (digit << (self.top.trailing_zeros() - DIGIT_BITS)));
            (!taken(mark)).then_some(mark)
        })
    }
}

/// Returns whether processes can be told apart by their numbers here: there are some, and one that
/// is set can be read back.
pub fn are_possible() -> bool {
    let before = getrlimit(Resource::Locks);
    let Some(mark) = TerminalMarks::below(before.maximum).and_then(|mut marks| marks.next(|_| false)) else {
        return false;
    };
    let tried = setrlimit(Resource::Locks, Rlimit { current: Some(mark.0), maximum: before.maximum });
    let read = limits_of(getpid().as_raw_pid());
    let back = setrlimit(Resource::Locks, before);
    tried.is_ok() && back.is_ok() && read == Some((Some(mark.0), before.maximum))
}

/// The number of a process, if it has any.
pub fn limit_of(process: RawPid) -> Option<u64> {
    limits_of(process).and_then(|(_, maximum)| maximum)
}

/// Both limits of file locks, each none where it is not limited.
fn limits_of(process: RawPid) -> Option<(Option<u64>, Option<u64>)> {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    let mut fields = line.split_whitespace().map(|field| match field {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    });
    Some((fields.next()??, fields.next()??))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_of_terminals_and_of_hosts_in_them_are_told_apart() {
        let mut outer = TerminalMarks::below(None).unwrap();
        let all: Vec<TerminalMark> =
            (0..1 << (DIGIT_BITS - 1)).map(|_| outer.next(|_| false).unwrap()).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        for mark in [all[0], all[1], all[7], all[all.len() - 1]] {
            // A host there, one in a terminal of that one, and so on, as long as there is room.
            let (mut own, mut depth) = (mark, 0);
            while let Some(mut inner) = TerminalMarks::below(Some(own.0)) {
                let marks: Vec<TerminalMark> =
                    (0..1 << (DIGIT_BITS - 1)).map(|_| inner.next(|_| false).unwrap()).collect();
                let last = marks[marks.len() - 1];
                for inner in [marks[0], marks[1], marks[1000], last] {
                    let owners: Vec<_> = all.iter().filter(|mark| mark.has(inner.0)).collect();
                    assert_eq!(owners, [&mark], "{inner:?}");
                    assert!(inner.0 < own.0 && own.has(inner.0) && !inner.has(own.0));
                }
                (own, depth) = (last, depth + 1);
            }
            assert_eq!(depth, 2, "{mark:?}");
        }
        assert!(!all.iter().any(|mark| mark.has(TOP) || mark.has(u64::MAX) || mark.has(0)));
    }

    #[test]
    fn a_number_is_given_to_one_terminal_at_a_time_and_not_where_there_is_none() {
        let mut marks = TerminalMarks::below(Some(1 << DIGIT_BITS)).unwrap();
        let mut taken = BTreeSet::new();
        while let Some(mark) = marks.next(|mark| taken.contains(&mark)) {
            assert!(mark.0 > 0 && taken.insert(mark));
        }
        assert_eq!(taken.len(), 1 << (DIGIT_BITS - 1));
        let free = taken.pop_first().unwrap();
        assert_eq!(marks.next(|mark| taken.contains(&mark)), Some(free));
        for limit in [0, 1, 12_345, (1 << DIGIT_BITS) - 1, 3 << (DIGIT_BITS - 1)] {
            assert!(TerminalMarks::below(Some(limit)).is_none(), "{limit}");
        }
    }

    #[test]
    fn limits_are_read_as_they_are_and_left_so() {
        let before = getrlimit(Resource::Locks);
        let read = limits_of(getpid().as_raw_pid());
        assert_eq!(read, Some((before.current, before.maximum)));
        assert_eq!(are_possible(), TerminalMarks::below(before.maximum).is_some());
        assert_eq!(getrlimit(Resource::Locks), before);
        assert_eq!(limits_of(RawPid::MAX), None);
    }
}
