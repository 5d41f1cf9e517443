//! Receiver for an agent's answers to one conversation's requests, and for messages about its
//! sessions.
//!
//! Owns: telling an agent that says too much from one that nobody hears; what waits to be heard,
//! bounded by number and bytes; what a listener asks, answers and follows, and what is left of it
//! when it leaves.
//! Never: hears what is another's.

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

/// Maximum number of queued messages per listener; the agent is not read while a queue is full.
const INBOX_MAX: usize = 64;

pub(super) const INBOX_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Clone)]
pub(super) struct Inbox {
    messages: mpsc::Sender<(PeerMessage, ByteReservation)>,
    bytes: ByteBudget,
}

impl Inbox {
    /// Puts a message in, if there is room; else gives it back.
    pub(super) fn try_put(&self, said: PeerMessage) -> Result<(), PeerMessage> {
        let (Some(mut taken), Ok(place)) = (self.bytes.try_reserve(), self.messages.try_reserve()) else {
            return Err(said);
        };
        taken.grow_to(said.bytes());
        place.send((said, taken));
        Ok(())
    }

    /// Puts a message in when there is room; false when nobody takes it any more.
    pub(super) async fn put(&self, said: PeerMessage) -> bool {
        let Some(mut taken) = self.bytes.reserve().await else { return false };
        let Ok(place) = self.messages.reserve().await else { return false };
        taken.grow_to(said.bytes());
        place.send((said, taken));
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

    /// Sends a request; the answer is heard under the id that this gives back.
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

    /// Sends a request and waits for the answer, until everything was heard that the agent had said
    /// when it answered; all else that it says meanwhile goes to `other`. `None` if it ends
    /// instead.
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
                    Some(said) => other(self, said),
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

    /// Answers a request of the agent's, once.
    pub fn answer(&self, id: &AgentRequest, answer: Result<Value, RequestError>) {
        if self.connection.shared.routes().asked.remove(id).is_some() {
            self.connection.shared.answer(id, answer);
        }
    }

    /// Returns the number of the agent's unanswered requests, over all listeners.
    pub fn unanswered(&self) -> usize {
        self.connection.shared.routes().asked.len()
    }

    /// Subscribes to the updates of a session; returns those that arrived before.
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

    /// Receives the next message; `None` once the agent has ended and all that it had said was
    /// heard.
    pub async fn recv(&mut self) -> Option<PeerMessage> {
        let (said, _) = self.inbox.recv().await?;
        Some(said)
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
        left.extend(sessions.extract_if(|_, receiver| *receiver == id).map(|(session, _)| session));
        let open: Vec<_> = asked.extract_if(|_, receiver| *receiver == id).collect();
        drop(routes);
        for (request, _) in open {
            shared.answer(&request, Err(RequestError::SessionClosed));
        }
    }
}

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
