//! Receiver for an agent's answers to one conversation's requests, and for messages about its
//! sessions.
//!
//! Owns: what waits to be heard, bounded by number and bytes; what a listener asks, answers and
//! follows, and what is left of it when it leaves.
//! Never: hears what is another's.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokio::sync::mpsc;

use super::{AgentConnection, AgentRequest, PeerMessage};
use crate::backend::acp::errors::RequestError;
use crate::backend::byte_budget::{ByteBudget, ByteReservation};

/// Maximum number of queued messages per listener; the agent is not read while a queue is full.
const INBOX_MAX: usize = 64;

/// Maximum size of the queued messages per listener, in bytes.
pub(super) const INBOX_BYTES_MAX: usize = 4 << 20;

/// Sending end of a [`PeerReceiver`].
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

/// Receiver for the answers to its own requests and for messages about its sessions.
#[derive(Debug)]
pub struct PeerReceiver {
    connection: AgentConnection,
    id: u64,
    inbox: mpsc::Receiver<(PeerMessage, ByteReservation)>,
    bytes: ByteBudget,
}

impl PeerReceiver {
    /// Creates a receiver with this number, and the inbox that feeds it.
    pub(super) fn new(connection: AgentConnection, id: u64) -> (Self, Inbox) {
        let (messages, inbox) = mpsc::channel(INBOX_MAX);
        let bytes = ByteBudget::new(INBOX_BYTES_MAX);
        (Self { connection, id, inbox, bytes: bytes.clone() }, Inbox { messages, bytes })
    }

    /// Sends a request; the answer is heard under the id that this gives back.
    pub fn request(&self, method: &str, params: &impl Serialize) -> u64 {
        let id = self.next_request();
        self.connection
            .shared
            .send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    fn next_request(&self) -> u64 {
        let mut routes = self.connection.shared.routes();
        routes.last_request += 1;
        let id = routes.last_request;
        routes.requests.insert(id, self.id);
        id
    }

    /// Sends a notification.
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

    /// The connection.
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
        let left: Vec<String> = routes
            .sessions
            .iter()
            .filter(|(_, receiver)| **receiver == id)
            .map(|(name, _)| name.clone())
            .collect();
        for session in left {
            routes.sessions.remove(&session);
            routes.left.insert(session);
        }
        let open: Vec<AgentRequest> = routes
            .asked
            .iter()
            .filter(|(_, receiver)| **receiver == id)
            .map(|(request, _)| request.clone())
            .collect();
        for request in &open {
            routes.asked.remove(request);
        }
        drop(routes);
        for request in open {
            shared.answer(&request, Err(RequestError::SessionClosed));
        }
    }
}
