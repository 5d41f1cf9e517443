//! Calls of ended turns.
//!
//! Owns: which of their ids are remembered, and which of them the agent may continue.
//! Never: takes longer for one call if more are remembered.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::TrackedCall;

/// Maximum number of remembered call ids of ended turns.
pub(super) const PAST_MAX: usize = 10_000;

/// Maximum number of remembered calls that the agent may continue after their turns.
pub(super) const LEFT_OPEN_MAX: usize = 100;

/// Latest calls of ended turns, each with a number that grows from call to call.
#[derive(Debug, Default)]
pub(super) struct PastCalls {
    /// Numbers of the calls, by the agent's ids.
    numbers: BTreeMap<Arc<str>, u64>,
    /// The agent's ids, oldest call first.
    pub(super) ids: BTreeMap<u64, Arc<str>>,
    /// Calls that were open when the agent ended its turn: it may go on with them in another.
    left_open: BTreeMap<u64, TrackedCall>,
    /// Number of the latest call.
    latest: u64,
}

impl PastCalls {
    /// Adds a call of a turn that ends. Evicts the oldest call if there are too many.
    pub(super) fn add(&mut self, id: String, left_open: Option<TrackedCall>) {
        self.remove(&id);
        let id: Arc<str> = id.into();
        self.latest += 1;
        self.numbers.insert(Arc::clone(&id), self.latest);
        self.ids.insert(self.latest, id);
        self.left_open.extend(left_open.map(|call| (self.latest, call)));
        if self.left_open.len() > LEFT_OPEN_MAX {
            self.left_open.pop_first();
        }
        if self.ids.len() > PAST_MAX {
            let oldest = self.ids.first_key_value().map(|(_, id)| Arc::clone(id));
            oldest.and_then(|id| self.remove(&id));
        }
    }

    /// Removes a call. Returns it if it was left open.
    pub(super) fn remove(&mut self, id: &str) -> Option<TrackedCall> {
        let number = self.numbers.remove(id)?;
        self.ids.remove(&number);
        self.left_open.remove(&number)
    }

    /// Returns whether a call is of an ended turn, and the call if it was left open.
    pub(super) fn get(&self, id: &str) -> Option<Option<&TrackedCall>> {
        self.numbers.get(id).map(|number| self.left_open.get(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_that_ends_in_a_later_turn_again_is_evicted_after_older_calls() {
        let mut past = PastCalls::default();
        past.add("again".to_owned(), Some(TrackedCall::default()));
        (1..PAST_MAX).for_each(|number| past.add(number.to_string(), None));
        past.add("again".to_owned(), None);
        assert_eq!(past.ids.len(), PAST_MAX);
        assert!(past.left_open.is_empty());
        past.add("new".to_owned(), Some(TrackedCall::default()));
        assert!(past.get("1").is_none() && past.get("2").is_some());
        assert!(past.get("again").is_some_and(|open| open.is_none()));
        (1..PAST_MAX).for_each(|number| past.add(format!("next {number}"), None));
        assert!(past.get("again").is_none() && past.get("new").is_some());
        past.add("last".to_owned(), None);
        assert!(past.get("new").is_none() && past.left_open.is_empty());
        assert_eq!((past.numbers.len(), past.ids.len()), (PAST_MAX, PAST_MAX));
    }
}
