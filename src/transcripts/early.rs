//! Subscription to a session that was ready when the recorded client subscribed to it.
//!
//! No line of a host shows that before the client subscribes, so the session is subscribed to
//! before the recorded request, and the request waits until it is ready.
//!
//! Owns: for which requests that is done, and which lines of the host belong to it.
//! Never: sends or compares a line.

use serde_json::Value;

use super::form::TranscriptLine;

/// Methods by which a client subscribes.
const SUBSCRIBING: [&str; 3] = ["subscribe", "initialize", "reconnect"];

/// Subscription to a session before the request for it in the transcript.
#[derive(Debug)]
pub(super) struct EarlySubscription {
    channel: Value,
    /// Id of the request in the transcript.
    request: Value,
    is_creating: bool,
}

impl EarlySubscription {
    /// Creates the subscription to a channel, before the request with this id.
    pub(super) fn new(channel: Value, request: Value) -> Self {
        Self { channel, request, is_creating: false }
    }

    pub(super) fn channel(&self) -> &Value {
        &self.channel
    }

    /// Notes the answer to the subscription.
    pub(super) fn begin(&mut self, answer: &Value) {
        self.is_creating = answer["result"]["snapshot"]["state"]["lifecycle"] == "creating";
    }

    /// Returns whether the session is neither ready nor failed.
    pub(super) fn is_creating(&self) -> bool {
        self.is_creating
    }

    /// Returns whether a line is an action of the session, which the snapshot in the answer to the
    /// recorded request includes.
    pub(super) fn covers(&mut self, line: &str) -> bool {
        let Some(message) = parsed_if(line, "\"action\"") else { return false };
        let params = &message["params"];
        if message["method"] != "action" || params["channel"] != self.channel {
            return false;
        }
        let ends = ["session/ready", "session/creationFailed"];
        self.is_creating &= !ends.iter().any(|end| params["action"]["type"] == *end);
        true
    }

    /// Returns whether a line answers the recorded request.
    pub(super) fn is_answered_by(&self, line: &str) -> bool {
        let message = parsed_if(line, "\"id\"");
        message.is_some_and(|message| message["id"] == self.request && message.get("method").is_none())
    }
}

/// Returns whether a line is the first subscription to a session, which its answer shows as ready.
pub(super) fn begins_with_ready(lines: &[TranscriptLine], at: usize) -> bool {
    let TranscriptLine::Say(request) = &lines[at] else { return false };
    let Some(request) = parsed_if(request, "\"subscribe\"") else { return false };
    let Some(channel) = request["params"]["channel"].as_str() else { return false };
    let subscribes = |line: &TranscriptLine| match line {
        TranscriptLine::Say(text) => parsed_if(text, channel)
            .is_some_and(|message| SUBSCRIBING.iter().any(|method| message["method"] == *method)),
        _ => false,
    };
    let shows_ready = |line: &TranscriptLine| match line {
        TranscriptLine::Host(text) => parsed_if(text, "\"ready\"").is_some_and(|answer| {
            answer["id"] == request["id"] && answer["result"]["snapshot"]["state"]["lifecycle"] == "ready"
        }),
        _ => false,
    };
    // Actions of a session that is followed already are compared.
    !request["id"].is_null() && !lines[..at].iter().any(subscribes) && lines[at + 1..].iter().any(shows_ready)
}

/// Returns the message of a line, if it has this text.
pub(super) fn parsed_if(line: &str, text: &str) -> Option<Value> {
    line.contains(text).then(|| serde_json::from_str(line).ok()).flatten()
}
