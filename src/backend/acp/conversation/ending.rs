//! The end of a turn: by the agent's answer, the agent's death, or cancellation.
//!
//! Owns: the outcome of each of these for clients.
//! Never: ends a turn twice, or begins one.

use agent_client_protocol_schema::v1::{PromptResponse, StopReason};
use anyhow::bail;
use serde_json::value::RawValue;
use serde_json::Value;

use super::{updates, AcpConversation, Next, PromptRun};
use crate::backend::acp::errors::code;
use crate::backend::acp::peer::AgentError;
use crate::backend::acp::{extra_meta, login};
use crate::host::effects::{Event, TurnEnd, TurnEvent};

impl AcpConversation {
    /// Returns whether the agent has lost a session that it knew, and so has not acted on the
    /// prompt.
    pub(super) fn has_forgotten(&self, answer: &Result<Box<RawValue>, AgentError>) -> bool {
        let Err(failure) = answer else { return false };
        let refused = match failure.code {
            code::RESOURCE_NOT_FOUND => true,
            // The message may be invalid instead: a session that cannot be resumed is kept then.
            code::INVALID_PARAMS => names_session(failure) || self.can_be_taken_up(),
            _ => false,
        };
        let untouched = self.run.as_ref().is_some_and(PromptRun::is_untouched);
        if self.session.is_known() && refused && untouched {
            tracing::info!(agent = self.agent.spec.name, %failure, "the agent no longer knows its session: the session is resumed, loaded or created again");
            return true;
        }
        false
    }

    pub(super) fn answered(&mut self, answer: Result<Box<RawValue>, AgentError>) {
        let end = match answer {
            Ok(answer) => {
                self.agent.history().deaths = 0;
                self.session.note_success();
                let answered = serde_json::from_str::<PromptResponse>(answer.get());
                // An agent drops the prompt that it ends so, with the texts before it.
                let is_dropped = matches!(&answered, Ok(end) if end.stop_reason == StopReason::Refusal);
                if !is_dropped && self.run.as_ref().is_some_and(|run| !run.is_cancelled()) {
                    self.note_introduced();
                }
                match answered {
                    Ok(answer) => self.apply_prompt_answer(answer),
                    Err(error) => {
                        // The answer ends the turn, although its stop reason is unknown.
                        tracing::warn!(agent = self.agent.spec.name, %error, "the agent's answer to `session/prompt` is invalid: {answer}");
                        TurnEnd::Complete
                    }
                }
            }
            Err(failure) if login::is_required(&failure) => {
                self.agent.require_login(&self.running);
                self.events.push(Event::LoginRequired);
                let why = login::LoginRequired(failure.to_string());
                let message = format!("{why}. {}", self.running.login.advice());
                let resumable = self.can_be_taken_up();
                TurnEnd::Failed { kind: "authRequired".to_owned(), message, resumable }
            }
            Err(failure) => TurnEnd::Failed {
                kind: "agentError".to_owned(),
                message: failure.to_string(),
                resumable: false,
            },
        };
        self.answer_unanswered(true);
        // The turn ends once all messages sent before the answer are handled. Some agents answer
        // before the rest of their output, which must neither be lost nor count for the next turn.
        if let Some(run) = &mut self.run {
            run.note_answer(end);
        }
    }

    /// Applies the usage and `_meta` of an answer to a prompt. Returns the outcome of the turn.
    pub(super) fn apply_prompt_answer(&mut self, answer: PromptResponse) -> TurnEnd {
        let PromptResponse { stop_reason, usage, meta, .. } = answer;
        if usage.is_some() || meta.is_some() {
            self.send_usage(|known| {
                if let Some(usage) = usage {
                    // Serialising plain data cannot fail.
                    let raw = serde_json::to_value(&usage).unwrap_or_default();
                    updates::add_usage(known, &usage, raw);
                }
                extra_meta::put(
                    known.meta.get_or_insert_default(),
                    extra_meta::META,
                    meta.map(Value::Object),
                );
            });
        }
        match (stop_reason, &self.run) {
            // The user refused a call and did not cancel the turn; some agents end the turn in this
            // way.
            (StopReason::Cancelled, Some(run)) if run.has_refused => TurnEnd::Complete,
            (reason, _) => ending(reason),
        }
    }

    pub(super) fn end(&mut self, end: TurnEnd) {
        self.show_user_message();
        self.answer_unanswered(true);
        self.refuse_client_tools("the turn has ended");
        self.check_client_tools();
        // The next message with attachments is sent as it is.
        self.agent.history().without_attachments.remove(&self.chat);
        self.show_alone();
        let cancelled = matches!(end, TurnEnd::Cancelled);
        let events = self.calls.end_turn(cancelled);
        self.events.extend(events);
        if let Some(mut run) = self.run.take() {
            self.events.extend(run.steering.unanswered(run.id));
            self.events.push(Event::Turn(run.id, TurnEvent::Ended(end)));
            self.retry_turn_request();
        }
    }

    /// Handles the end of the agent, which also ends a running turn.
    pub(super) async fn agent_has_ended(&mut self) -> anyhow::Result<Next> {
        let how = self.running.ended().await;
        if self.run.is_some() {
            // Answers to the agent's held requests could not be received.
            self.own_turns.drop_held();
        }
        match self.run.as_ref().and_then(PromptRun::outcome) {
            Some(end) => self.end(end),
            // The own turn has no open calls or questions.
            None if self.silent_at().is_some() => self.end(TurnEnd::Complete),
            None if self.run.is_some() || self.settings.are_waited_for() => bail!(how),
            None => {
                tracing::info!(agent = self.agent.spec.name, how, "the agent has ended while no turn ran")
            }
        }
        Ok(Next::Leave)
    }
}

/// Returns whether an error is about the session, by its message or its data.
fn names_session(failure: &AgentError) -> bool {
    let data = failure.data.as_ref().map(Value::to_string).unwrap_or_default();
    [&failure.message, &data].iter().any(|text| text.to_lowercase().contains("session"))
}

fn ending(reason: StopReason) -> TurnEnd {
    let (kind, message) = match reason {
        StopReason::Cancelled => return TurnEnd::Cancelled,
        StopReason::MaxTokens => ("maxTokens", "the answer reached the token limit of the model"),
        StopReason::MaxTurnRequests => {
            ("maxTurnRequests", "the turn reached the agent's limit of model requests")
        }
        StopReason::Refusal => ("refusal", "the agent refused to continue"),
        _ => return TurnEnd::Complete,
    };
    TurnEnd::Failed { kind: kind.to_owned(), message: message.to_owned(), resumable: false }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invalid_params_are_about_the_session_if_the_message_or_the_data_names_it() {
        let failure = |message: &str, data| {
            names_session(&AgentError { code: code::INVALID_PARAMS, message: message.to_owned(), data })
        };
        assert!(failure("Invalid params", Some(json!("Unknown sessionId: x"))));
        assert!(failure("Invalid params", Some(json!({ "sessionId": "x" }))));
        assert!(failure("Session not found", None));
        assert!(!failure("Invalid params", Some(json!("the message exceeds 1000 tokens"))));
        assert!(!failure("the message is too long", None));
    }
}
