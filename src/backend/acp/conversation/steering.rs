//! Messages that the user adds during a turn, for agents that accept them: those with `steering` in
//! the `_meta` of their answer to `initialize` (Claude, Codex).
//!
//! Owns: passing each message to the agent, and reporting its outcome once.
//! Never: lets the agent begin a turn with such a message: if the agent is idle, the host does.

use std::collections::BTreeMap;

use ahp_types::state::Message;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::AcpConversation;
use crate::backend::acp::content;
use crate::backend::acp::peer::AgentError;
use crate::host::effects::{Event, RunId, Transcript, TurnEvent};

const METHOD: &str = "_session/steering";

/// Messages that the agent has not accepted or refused yet, by request id.
#[derive(Debug, Default)]
pub(super) struct Steering(BTreeMap<u64, SteeringMessage>);

#[derive(Debug)]
struct SteeringMessage {
    id: String,
    text: String,
}

/// Outcome of a steering message, as the agent reports it.
#[derive(Deserialize)]
struct SteeringOutcome<'a> {
    outcome: &'a str,
}

impl Steering {
    /// Returns, at the end of a run, the events for unanswered messages.
    pub(super) fn unanswered(&mut self, run: RunId) -> Vec<Event> {
        let left = std::mem::take(&mut self.0).into_values();
        left.map(|added| Event::Turn(run, TurnEvent::NotSteered(added.id))).collect()
    }
}

impl AcpConversation {
    /// Passes a message of the user to the agent during a run.
    pub(super) fn steer(&mut self, id: String, message: &Message, attached: &[Transcript]) {
        let prompt = content::prompt(message, attached, self.running.prompt_support());
        let goes_on = self.run.as_ref().is_some_and(super::PromptRun::goes_on);
        if !self.running.steers || !goes_on {
            return self.queue_event(TurnEvent::NotSteered(id));
        }
        // An agent that is idle by then must not begin a turn by itself.
        let params = json!({
            "sessionId": self.session.id, "prompt": prompt,
            "_meta": { "steering": { "idleBehavior": "promptRequired" } },
        });
        let request = self.receiver.request(METHOD, &params);
        if let Some(run) = &mut self.run {
            run.user_messages.note_sent(message.text.clone());
            run.steering.0.insert(request, SteeringMessage { id, text: message.text.clone() });
        }
    }

    /// Handles an answer if it is to a steering message. Returns whether it was.
    pub(super) fn steering_answered(
        &mut self,
        request: u64,
        answer: &Result<Box<RawValue>, AgentError>,
    ) -> bool {
        let added = self.run.as_mut().and_then(|run| run.steering.0.remove(&request));
        let Some(SteeringMessage { id, text }) = added else { return false };
        let outcome = answer.as_ref().map(|answer| serde_json::from_str::<SteeringOutcome<'_>>(answer.get()));
        if outcome.is_ok_and(|outcome| outcome.is_ok_and(|it| it.outcome == "injected")) {
            if let Some(run) = &mut self.run {
                run.speaking = None;
            }
            self.queue_event(TurnEvent::Notice(format!("The user added: {text}")));
            self.queue_event(TurnEvent::Steered(id));
        } else {
            tracing::info!(
                agent = self.agent.spec.name,
                "the agent has not accepted a message during its turn: the message begins the next turn: {answer:?}"
            );
            self.queue_event(TurnEvent::NotSteered(id));
        }
        true
    }
}
