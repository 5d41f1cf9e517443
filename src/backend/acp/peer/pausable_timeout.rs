//! Timeouts of an agent that do not count while nobody takes its output.
//!
//! Owns: telling an agent that says too much from one that nobody hears.
//! Never: looks at a clock; who asks is told how long to wait until it asks again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::AgentConnection;

/// Interval at which an agent whose output nobody takes is checked again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Timeout of an agent that is suspended while nobody takes its output.
#[derive(Debug, Default)]
pub struct PausableTimeout {
    /// Number of messages taken by the last check, and whether none had been taken since the check
    /// before.
    last_check: Option<(u64, bool)>,
}

impl PausableTimeout {
    /// Returns the time to wait for the agent once more; `None` if it has timed out. `limit` is the
    /// timeout, `heard` tells whether the caller takes the agent's messages.
    pub fn extend(&mut self, connection: &AgentConnection, limit: Duration, heard: bool) -> Option<Duration> {
        let taken = connection.shared.taken.load(Ordering::Acquire);
        self.check(!heard || connection.is_held_up(), taken, limit)
    }

    fn check(&mut self, is_held_up: bool, taken: u64, limit: Duration) -> Option<Duration> {
        let before = self.last_check.take();
        let is_stuck = before.is_some_and(|(count, _)| count == taken);
        if is_held_up && (before.is_none() || is_stuck) {
            self.last_check = Some((taken, is_stuck));
            return Some(RECHECK_INTERVAL);
        }
        // An agent that says more than we can hear at once is heard all the same. One that was not
        // is from now on.
        before.is_some_and(|(_, was_stuck)| was_stuck).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_blamed_when_it_was_heard_and_given_more_time_when_it_was_not() {
        let limit = Duration::from_secs(9);
        // It says more than can be heard at once.
        let mut patience = PausableTimeout::default();
        let looks = [(true, 1), (true, 2)].map(|(held_up, taken)| patience.check(held_up, taken, limit));
        assert_eq!(looks, [Some(RECHECK_INTERVAL), None]);
        // Nobody hears it for a while.
        let looks = [(true, 5), (true, 5), (true, 5), (true, 6), (false, 7)];
        let looks = looks.map(|(held_up, taken)| patience.check(held_up, taken, limit));
        assert_eq!(
            looks,
            [Some(RECHECK_INTERVAL), Some(RECHECK_INTERVAL), Some(RECHECK_INTERVAL), Some(limit), None]
        );
    }
}
