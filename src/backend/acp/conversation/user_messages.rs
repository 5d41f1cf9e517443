//! Messages of the user that the agent reports during a turn: the prompt again, or messages that
//! the agent got in another way.
//!
//! Owns: telling these apart, and showing each of the latter once, as a notice.
//! Never: begins a turn.

use agent_client_protocol_schema::v1::{ContentBlock, ContentChunk};
use ahp_types::common::JsonObject;

use super::AcpConversation;
use crate::backend::acp::content;

/// Maximum length of a message that is collected from chunks, in bytes; the rest is shown apart.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Messages of the user in one turn.
#[derive(Debug, Default)]
pub(super) struct UserMessages {
    /// Texts that the agent got from the host.
    sent: Vec<String>,
    /// Message that is not shown yet, because more of it may follow; with its id.
    pending: Option<(Option<String>, String)>,
}

impl UserMessages {
    /// Creates the messages of a turn with this prompt.
    pub(super) fn of_prompt(prompt: &[ContentBlock]) -> Self {
        let texts = prompt.iter().map(|block| content::markdown(block.clone()));
        Self { sent: texts.collect(), pending: None }
    }

    /// Notes a message that was sent to the agent during the turn.
    pub(super) fn note_sent(&mut self, text: String) {
        self.sent.push(text);
    }

    fn is_echo(&self, text: &str) -> bool {
        let text = text.trim();
        text.is_empty() || self.sent.iter().any(|sent| sent.contains(text))
    }
}

impl AcpConversation {
    /// Handles a piece of a message of the user. Messages that the host has sent are not shown
    /// again, whole or in pieces.
    pub(super) fn add_user_chunk(&mut self, chunk: ContentChunk) {
        let id = chunk.message_id.map(|id| id.to_string());
        let text = content::markdown(chunk.content);
        let Some(run) = &mut self.run else { return };
        if run.user_messages.is_echo(&text) {
            return tracing::debug!(
                agent = self.agent.spec.name,
                "a message of the user that the agent repeats was ignored"
            );
        }
        match &mut run.user_messages.pending {
            Some((known, message)) if *known == id && message.len() < MESSAGE_BYTES_MAX => {
                message.push_str(&text);
            }
            _ => {
                self.show_user_message();
                if let Some(run) = &mut self.run {
                    run.user_messages.pending = Some((id, text));
                }
            }
        }
    }

    /// Shows the message that the agent has reported so far, if there is one.
    pub(super) fn show_user_message(&mut self) {
        let pending = self.run.as_mut().and_then(|run| run.user_messages.pending.take());
        if let Some((_, text)) = pending {
            self.send_notice(format!("The user added: {text}"), JsonObject::new());
        }
    }
}
