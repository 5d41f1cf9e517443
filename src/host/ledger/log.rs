//! The latest sequenced actions, for clients that reconnect.
//!
//! Owns: the replay window, bounded in actions and in bytes.
//! Never: knows who is subscribed, or what an action means.

use std::collections::VecDeque;

use crate::host::effects::{ActionLine, ChannelId};

/// Bounds of the replay log.
#[derive(Debug, Clone, Copy)]
pub struct ReplayWindow {
    /// Maximum number of actions.
    pub actions_max: usize,
    /// Maximum bytes of all actions, as sent on the wire.
    pub bytes_max: usize,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { actions_max: 10_000, bytes_max: 32 << 20 }
    }
}

/// Consecutive actions that end at the head of the sequence.
#[derive(Debug)]
pub(super) struct ReplayLog {
    window: ReplayWindow,
    entries: VecDeque<(ChannelId, ActionLine)>,
    bytes: usize,
    /// Sequence number before that of the first entry: the oldest cursor that can be replayed.
    floor: u64,
}

impl ReplayLog {
    pub(super) fn new(window: ReplayWindow, head: u64) -> Self {
        Self { window, entries: VecDeque::new(), bytes: 0, floor: head }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn push(&mut self, target: ChannelId, line: ActionLine) {
        self.bytes += line.line.len();
        self.entries.push_back((target, line));
        while self.entries.len() > self.window.actions_max || self.bytes > self.window.bytes_max {
            let Some((_, oldest)) = self.entries.pop_front() else { break };
            self.bytes -= oldest.line.len();
            self.floor = oldest.server_seq;
        }
    }

    /// Returns the actions after `cursor`, oldest first; `None` if the log does not reach back to
    /// it or `cursor` lies beyond the head.
    pub(super) fn since(&self, cursor: u64) -> Option<impl Iterator<Item = &(ChannelId, ActionLine)>> {
        let skip = usize::try_from(cursor.checked_sub(self.floor)?).ok()?;
        (skip <= self.entries.len()).then(|| self.entries.range(skip..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn filled(window: ReplayWindow, head: u64, actions: u64) -> ReplayLog {
        let mut log = ReplayLog::new(window, head);
        for server_seq in head + 1..=head + actions {
            let line = ActionLine { line: Bytes::from_static(&[0; 10]), server_seq, delta: None };
            log.push(ChannelId::ROOT, line);
        }
        log
    }

    fn seqs(log: &ReplayLog, cursor: u64) -> Option<Vec<u64>> {
        log.since(cursor).map(|entries| entries.map(|(_, line)| line.server_seq).collect())
    }

    #[test]
    fn a_cursor_inside_the_window_gets_exactly_what_follows_it() {
        let log = filled(ReplayWindow::default(), 40, 3);
        assert_eq!(seqs(&log, 40), Some(vec![41, 42, 43]));
        assert_eq!(seqs(&log, 42), Some(vec![43]));
        assert_eq!(seqs(&log, 43), Some(vec![]));
    }

    #[test]
    fn a_cursor_outside_gets_nothing() {
        let log = filled(ReplayWindow::default(), 40, 3);
        assert_eq!(seqs(&log, 39), None);
        assert_eq!(seqs(&log, 44), None);
    }

    #[test]
    fn the_window_holds_its_limits_exactly() {
        let by_count = ReplayWindow { actions_max: 3, bytes_max: 1000 };
        assert_eq!(seqs(&filled(by_count, 0, 2), 0), Some(vec![1, 2]));
        assert_eq!(seqs(&filled(by_count, 0, 3), 0), Some(vec![1, 2, 3]));
        assert_eq!(seqs(&filled(by_count, 0, 4), 0), None);
        assert_eq!(seqs(&filled(by_count, 0, 4), 1), Some(vec![2, 3, 4]));
        let by_bytes = ReplayWindow { actions_max: 100, bytes_max: 30 };
        assert_eq!(seqs(&filled(by_bytes, 0, 3), 0), Some(vec![1, 2, 3]));
        assert_eq!(seqs(&filled(by_bytes, 0, 4), 0), None);
    }
}
