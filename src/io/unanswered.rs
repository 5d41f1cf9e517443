//! Requests of one connection that files, git or the store answer instead of the core.
//!
//! Owns: which of them are pending, so that each is answered exactly once.
//! Never: makes or sends an answer.

use std::collections::HashMap;

use crate::wire::rpc::RequestId;

/// Pending requests of one connection. Each id has a count, because a client may reuse it.
#[derive(Debug, Default)]
pub struct UnansweredRequests(HashMap<RequestId, usize>);

impl UnansweredRequests {
    pub fn add(&mut self, id: RequestId) {
        *self.0.entry(id).or_default() += 1;
    }

    /// Notes that a request is answered. Returns false if none with this id is pending.
    #[must_use]
    pub fn settle(&mut self, id: &RequestId) -> bool {
        let Some(count) = self.0.get_mut(id) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(id);
        }
        true
    }

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
