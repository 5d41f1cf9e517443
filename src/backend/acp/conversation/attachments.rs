//! Messages whose attachments the agent refuses: they are sent again without them.
//!
//! Owns: recognising such a failure, and the remedy: the message is sent again in the same session,
//! and if the attachments have spoiled that, in a new session, which gets the transcript. The user
//! gets a notice.
//! Never: repeats a message on which the agent has acted.

use agent_client_protocol_schema::v1::ContentBlock;
use ahp_types::state::Message;
use serde_json::value::RawValue;
use serde_json::Value;

use super::run::RunOrigin;
use super::{send_prompt, AcpConversation, Next};
use crate::backend::acp::content::{self, PromptSupport};
use crate::backend::acp::login;
use crate::backend::acp::peer::AgentError;
use crate::host::effects::{Event, Transcript, TurnEvent};
use crate::wire::text;

/// Words of failures that are unrelated to the content: the same message may succeed later.
const TRANSIENT: [&str; 6] = ["overloaded", "timeout", "timed", "unavailable", "quota", "throttled"];

/// Words behind which a number is a status of HTTP, as it is where a sentence begins.
const BEFORE_STATUS: [&str; 4] = ["status", "code", "http", "error"];

/// Content of a prompt, with what is sent if the agent refuses its attachments.
pub(super) struct Prompt {
    pub(super) blocks: Vec<ContentBlock>,
    /// Attachments that are not text; `None` if there are none.
    pub(super) attachments: Option<SentAttachments>,
}

/// Attachments of a prompt that are not text.
#[derive(Debug)]
pub(super) struct SentAttachments {
    /// The prompt with these attachments replaced by their names.
    without: Vec<ContentBlock>,
    names: String,
    is_sent_again: bool,
}

impl Prompt {
    pub(super) fn prepend(&mut self, blocks: Vec<ContentBlock>) {
        if let Some(sent) = &mut self.attachments {
            sent.without.splice(..0, blocks.iter().cloned());
        }
        self.blocks.splice(..0, blocks);
    }
}

impl AcpConversation {
    /// Returns the prompt for a message, after an optional text of the host.
    pub(super) fn prompt_of(
        &self,
        before: Option<String>,
        message: &Message,
        attached: &[Transcript],
    ) -> Prompt {
        let only_text = self.agent.history().without_attachments.contains(&self.chat);
        let takes = PromptSupport { only_text, ..self.running.prompt_support() };
        let prompt = |takes| {
            let words = before.as_deref().map(ContentBlock::from);
            words.into_iter().chain(content::prompt(message, attached, takes)).collect::<Vec<_>>()
        };
        let blocks = prompt(takes);
        let attachments = blocks.iter().any(content::is_binary).then(|| SentAttachments {
            without: prompt(PromptSupport { only_text: true, ..takes }),
            names: content::binaries(message, takes).join(", "),
            is_sent_again: false,
        });
        Prompt { blocks, attachments }
    }

    /// Sends the message again without its attachments if the agent has failed because of them;
    /// `None` if it has not.
    pub(super) fn retry_without_attachments(
        &mut self,
        answer: &Result<Box<RawValue>, AgentError>,
    ) -> Option<Next> {
        let Err(failure) = answer else { return None };
        if login::is_required(failure) || is_transient(failure) {
            return None;
        }
        let run = self.run.as_mut().filter(|run| run.is_untouched())?;
        let RunOrigin::Prompt { request, attachments: Some(sent) } = &mut run.origin else { return None };
        let agent = &self.agent.spec.name;
        if !sent.is_sent_again {
            sent.is_sent_again = true;
            tracing::warn!(agent, %failure, prompt = request, "the agent has rejected a message with attachments; it is sent again without them");
            let notice = format!(
                "The agent rejected the message with its attachments ({}): {failure}. The message was sent again \
                 without them.",
                sent.names
            );
            self.events.push(Event::Turn(run.id, TurnEvent::Notice(text::message(&notice))));
            let without = std::mem::take(&mut sent.without);
            *request = send_prompt(&self.receiver, &self.session.id, without);
            return Some(Next::Hear);
        }
        tracing::warn!(agent, %failure, "a new session of the agent is opened: rejected attachments have made the present one unusable");
        self.agent.history().without_attachments.insert(self.chat);
        self.close();
        // The turn starts again in a new session, which gets the transcript.
        self.run = None;
        self.events.push(Event::Handle(None));
        Some(Next::Leave)
    }
}

/// Returns whether a failure may be temporary, for the same message.
fn is_transient(failure: &AgentError) -> bool {
    let is_status = |status: i64| status == 429 || (500..600).contains(&status);
    let details = failure.data.as_ref().and_then(Value::as_object);
    let statuses = ["status", "statusCode", "code"].into_iter();
    let mut statuses = statuses.filter_map(|name| details?.get(name)?.as_i64()).chain([failure.code]);
    let text = failure.to_string().to_ascii_lowercase();
    let words = |text: &str| {
        let words = text.split(|character: char| !character.is_alphanumeric());
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let names_status = |sentence: &str| {
        let words = words(sentence);
        let mut places = words.iter().enumerate().filter(|(_, word)| word.len() == 3);
        places.any(|(at, word)| {
            let before = at.checked_sub(1).map(|at| words[at].as_str());
            word.parse().is_ok_and(is_status) && before.is_none_or(|word| BEFORE_STATUS.contains(&word))
        })
    };
    statuses.any(is_status)
        || text.split([':', '.', '\n', '{', '(']).any(names_status)
        || words(&text).iter().any(|word| TRANSIENT.contains(&word.as_str()))
        || words(&text).windows(2).any(|two| two[0] == "rate" && two[1].starts_with("limit"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failure_of_the_model_is_not_blamed_on_attachments() {
        let failure = |code, message: &str, data| AgentError { code, message: message.to_owned(), data };
        for transient in [
            failure(-32603, "Internal error: 503 Service", None),
            failure(429, "", None),
            failure(-32603, "Rate limit reached", None),
            failure(-32603, "request failed with status code 502", None),
            failure(-32603, "x", Some(json!({ "details": "rate_limited" }))),
            failure(-32603, "x", Some(json!({ "statusCode": 529 }))),
            failure(-32603, "x", Some(json!({ "details": "the request timed out" }))),
        ] {
            assert!(is_transient(&transient), "{transient}");
        }
        let message =
            "Internal error: 'file part media type application/octet-stream' functionality not supported.";
        assert!(!is_transient(&failure(-32603, message, Some(json!({ "errorName": "UnknownError" })))));
        for refusal in [
            "400 invalid image of 500000 bytes",
            "image must be at most 512 pixels",
            "sample rate not supported",
        ] {
            assert!(!is_transient(&failure(-32603, refusal, None)), "{refusal}");
        }
    }
}
