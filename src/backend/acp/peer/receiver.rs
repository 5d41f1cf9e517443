//! Receiver for the answers to one conversation's requests and for messages about its sessions.
//!
//! Owns: the queue of messages, limited by number and bytes; requests, answers and subscriptions of
//! the receiver, and their cleanup when it is dropped; the distinction between an agent that times
//! out and one that is not being read.
//! Never: receives messages of other conversations.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::anyhow;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{AgentConnection, AgentError, AgentRequest, PeerMessage, Routes};
use crate::backend::acp::errors::RequestError;
use crate::backend::byte_budget::{ByteBudget, ByteReservation};

/// Maximum number of queued messages; reading from the agent stops while the queue is full.
const INBOX_MAX: usize = 64;

/// Maximum number of closed sessions of a connection whose late updates are recognised.
const LEFT_MAX: usize = 1000;

pub(super) const INBOX_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Clone)]
pub(super) struct Inbox {
    messages: mpsc::Sender<(PeerMessage, ByteReservation)>,
    bytes: ByteBudget,
}

impl Inbox {
    pub(super) fn try_put(&self, message: PeerMessage) -> Result<(), PeerMessage> {
        let (Some(mut taken), Ok(place)) = (self.bytes.try_reserve(), self.messages.try_reserve()) else {
            return Err(message);
        };
        taken.grow_to(message.bytes());
        place.send((message, taken));
        Ok(())
    }

    /// Queues a message, waiting for room; returns false if the receiver is gone.
    pub(super) async fn put(&self, message: PeerMessage) -> bool {
        let Some(mut taken) = self.bytes.reserve().await else { return false };
        let Ok(place) = self.messages.reserve().await else { return false };
        taken.grow_to(message.bytes());
        place.send((message, taken));
        true
    }
}

#[derive(Debug)]
pub struct PeerReceiver {
    connection: AgentConnection,
    id: u64,
    inbox: mpsc::Receiver<(PeerMessage, ByteReservation)>,
    bytes: ByteBudget,
}

impl PeerReceiver {
    pub(super) fn new(connection: AgentConnection, id: u64) -> (Self, Inbox) {
        let (messages, inbox) = mpsc::channel(INBOX_MAX);
        let bytes = ByteBudget::new(INBOX_BYTES_MAX);
        (Self { connection, id, inbox, bytes: bytes.clone() }, Inbox { messages, bytes })
    }

    /// Sends a request; returns its id, under which [`PeerMessage::Answer`] follows.
    pub fn request(&self, method: &str, params: &impl Serialize) -> u64 {
        let shared = &self.connection.shared;
        let id = {
            let mut routes = shared.routes();
            routes.last_request += 1;
            let id = routes.last_request;
            routes.requests.insert(id, self.id);
            id
        };
        shared.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// Sends a request and waits for its answer and all output before it; passes other messages to
    /// `other`. `None` if the agent ends instead. A timeout is an error and marks the agent as
    /// unresponsive.
    pub async fn ask(
        &mut self,
        method: &str,
        params: &impl Serialize,
        limit: Duration,
        mut other: impl FnMut(&Self, PeerMessage),
    ) -> anyhow::Result<Option<Result<Box<RawValue>, AgentError>>> {
        let id = self.request(method, params);
        let answered = timeout(limit, async {
            let mut answered = None;
            loop {
                match self.recv().await {
                    Some(PeerMessage::Answer(about, answer)) if about == id => answered = Some(answer),
                    Some(PeerMessage::Drained(about)) if about == id => return answered,
                    Some(message) => other(self, message),
                    None => return answered,
                }
            }
        });
        let answered = answered.await;
        answered.map_err(|_| {
            self.connection.give_up();
            anyhow!("it did not answer `{method}` within {limit:?}")
        })
    }

    pub fn notify(&self, method: &str, params: &impl Serialize) {
        self.connection.shared.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Answers a request of the agent; does nothing if it is answered already.
    pub fn answer(&self, id: &AgentRequest, answer: Result<Value, RequestError>) {
        if self.connection.shared.routes().asked.remove(id).is_some() {
            self.connection.shared.answer(id, answer);
        }
    }

    /// Returns whether a request of the agent is neither answered nor withdrawn.
    pub fn is_open(&self, id: &AgentRequest) -> bool {
        self.connection.shared.routes().asked.contains_key(id)
    }

    /// Returns the number of the agent's unanswered requests, over all receivers.
    pub fn unanswered(&self) -> usize {
        self.connection.shared.routes().asked.len()
    }

    /// Subscribes to a session; returns the updates that arrived before.
    pub fn subscribe(&self, session: &str) -> Vec<Box<RawValue>> {
        let mut routes = self.connection.shared.routes();
        routes.left.remove(session);
        routes.sessions.insert(session.to_owned(), self.id);
        let all = std::mem::take(&mut routes.unclaimed);
        let (claimed, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| name == session);
        routes.unclaimed = others.into();
        let bytes = |(name, update): &(String, Box<RawValue>)| name.len() + update.get().len();
        routes.unclaimed_bytes = routes.unclaimed.iter().map(bytes).sum();
        claimed.into_iter().map(|(_, update)| update).collect()
    }

    /// Subscribes to a session that no other receiver has subscribed to, and drops its earlier
    /// updates. Returns whether it did.
    pub fn subscribe_if_free(&self, session: &str) -> bool {
        let is_free = !self.connection.shared.routes().sessions.contains_key(session);
        if is_free {
            self.subscribe(session);
        }
        is_free
    }

    /// Returns whether this receiver was the last to subscribe to the session.
    pub fn is_subscribed(&self, session: &str) -> bool {
        self.connection.shared.routes().sessions.get(session) == Some(&self.id)
    }

    /// Receives the next message; `None` once the agent has ended and the queue is empty.
    pub async fn recv(&mut self) -> Option<PeerMessage> {
        let (message, _) = self.inbox.recv().await?;
        Some(message)
    }

    pub fn connection(&self) -> &AgentConnection {
        &self.connection
    }
}

impl Drop for PeerReceiver {
    fn drop(&mut self) {
        self.bytes.close();
        let shared = &self.connection.shared;
        let mut routes = shared.routes();
        let id = self.id;
        routes.inboxes.remove(&id);
        routes.requests.retain(|_, receiver| *receiver != id);
        let Routes { sessions, left, asked, .. } = &mut *routes;
        if left.len() > LEFT_MAX {
            // Late updates of these sessions are buffered as those of unknown sessions are.
            left.clear();
        }
        left.extend(sessions.extract_if(|_, receiver| *receiver == id).map(|(session, _)| session));
        let open: Vec<_> = asked.extract_if(|_, receiver| *receiver == id).collect();
        drop(routes);
        for (request, _) in open {
            shared.answer(&request, Err(RequestError::SessionClosed));
        }
    }
}

/// Interval at which an agent whose output is not taken is checked again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Agent timeout that is suspended while the agent's output is not taken.
#[derive(Debug, Default)]
pub struct PausableTimeout {
    /// State of the last check: the number of messages taken so far, and whether it had not changed
    /// since the check before. `None` if the output was being taken.
    last_check: Option<(u64, bool)>,
}

impl PausableTimeout {
    /// Returns the additional time to wait for the agent; `None` if it has timed out. `limit` is
    /// the timeout; `is_listening` is set if the caller takes the agent's messages.
    pub fn extend(
        &mut self,
        connection: &AgentConnection,
        limit: Duration,
        is_listening: bool,
    ) -> Option<Duration> {
        let taken = connection.shared.taken.load(Ordering::Acquire);
        self.check(!is_listening || connection.is_held_up(), taken, limit)
    }

    fn check(&mut self, is_held_up: bool, taken: u64, limit: Duration) -> Option<Duration> {
        let before = self.last_check.take();
        let is_stuck = before.is_some_and(|(count, _)| count == taken);
        if is_held_up && (before.is_none() || is_stuck) {
            self.last_check = Some((taken, is_stuck));
            return Some(RECHECK_INTERVAL);
        }
        // Output that was taken, if slowly, means a timeout; output that was stuck restarts the
        // limit.
        before.is_some_and(|(_, was_stuck)| was_stuck).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_given_more_time_only_while_the_host_does_not_read_it() {
        let limit = Duration::from_secs(9);
        // The agent writes faster than the host reads.
        let mut timeout = PausableTimeout::default();
        let looks = [(true, 1), (true, 2)].map(|(held_up, taken)| timeout.check(held_up, taken, limit));
        assert_eq!(looks, [Some(RECHECK_INTERVAL), None]);
        // The agent's output is not taken for a while.
        let looks = [(true, 5), (true, 5), (true, 5), (true, 6), (false, 7)];
        let looks = looks.map(|(held_up, taken)| timeout.check(held_up, taken, limit));
        assert_eq!(
            looks,
            [Some(RECHECK_INTERVAL), Some(RECHECK_INTERVAL), Some(RECHECK_INTERVAL), Some(limit), None]
        );
    }
}
