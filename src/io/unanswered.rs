//! Requests of one connection whose answers are made outside of the core: by files, git or the
//! store.
//!
//! Owns: which of them are pending, so that each is answered exactly once.
//! Never: makes or sends an answer.

use std::collections::HashMap;

use crate::wire::rpc::RequestId;

/// Pending requests of one connection. A client may use an id again before it is answered, so each
/// id has a count.
#[derive(Debug, Default)]
pub struct UnansweredRequests(HashMap<RequestId, usize>);

impl UnansweredRequests {
    /// Notes that a request is pending.
    pub fn add(&mut self, id: RequestId) {
        *self.0.entry(id).or_default() += 1;
    }

    /// Notes that a request is answered. Returns false if it is not pending: it was answered
    /// before, or never asked.
    #[must_use]
    pub fn settle(&mut self, id: &RequestId) -> bool {
        let Some(count) = self.0.get_mut(id) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(id);
        }
        true
    }

    /// Returns whether no request is pending.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_settled_as_often_as_it_was_asked() {
        let mut requests = UnansweredRequests::default();
        let (one, other) = (RequestId::inner(1), RequestId::inner(2));
        assert!(!requests.settle(&one));
        requests.add(one.clone());
        requests.add(one.clone());
        requests.add(other.clone());
        assert!(requests.settle(&one) && requests.settle(&one) && !requests.settle(&one));
        assert!(!requests.is_empty() && requests.settle(&other) && requests.is_empty());
    }
}
