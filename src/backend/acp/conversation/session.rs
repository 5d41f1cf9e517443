//! ACP session of a conversation.
//!
//! Owns: the session's id, and how far its agent knows the chat and its folders.
//! Never: sends or reports anything.

use agent_client_protocol_schema::v1::SessionId;

pub(super) struct AcpSession {
    pub(super) id: SessionId,
    progress: SessionProgress,
    /// Texts that the agent lacks, until its first event or success in a turn. If there are any,
    /// only then the host gets the session's id: a resumed session is not introduced.
    introduction: Introduction,
    /// Set if the working folders have changed since the agent last received them.
    pub(super) moved: bool,
}

/// Texts for the agent before the first prompt of a new session that the agent does not refuse.
#[derive(Default)]
pub(super) struct Introduction {
    /// Conversation so far, if the agent does not know it.
    pub(super) transcript: Option<String>,
    /// Selected part that the conversation is about.
    pub(super) selection: Option<String>,
}

enum SessionProgress {
    /// The agent has created the session for this conversation, which has had no prompt.
    New,
    /// The agent has resumed or loaded the session, which has had no prompt since.
    Resumed,
    Prompted,
    /// A prompt has succeeded: the agent knows the session, or has known it.
    Known,
}

impl AcpSession {
    /// Creates the record of an opened session; without an introduction if it was resumed.
    pub(super) fn new(id: SessionId, introduction: Option<Introduction>) -> Self {
        let progress = introduction.as_ref().map_or(SessionProgress::Resumed, |_| SessionProgress::New);
        Self { id, progress, introduction: introduction.unwrap_or_default(), moved: false }
    }

    pub(super) fn is_new(&self) -> bool {
        matches!(self.progress, SessionProgress::New)
    }

    /// Returns whether the next prompt tells the agent the conversation so far.
    pub(super) fn has_transcript(&self) -> bool {
        self.introduction.transcript.is_some()
    }

    /// Returns whether the next prompt tells the agent anything that it lacks.
    pub(super) fn has_introduction(&self) -> bool {
        self.introduction.transcript.is_some() || self.introduction.selection.is_some()
    }

    /// Returns whether the agent received a prompt in this conversation. Earlier messages replay an
    /// earlier conversation.
    pub(super) fn was_prompted(&self) -> bool {
        matches!(self.progress, SessionProgress::Prompted | SessionProgress::Known)
    }

    pub(super) fn is_known(&self) -> bool {
        matches!(self.progress, SessionProgress::Known)
    }

    /// Notes a prompt. Returns the texts that must precede it.
    pub(super) fn note_prompt(&mut self) -> &Introduction {
        if !self.is_known() {
            self.progress = SessionProgress::Prompted;
        }
        &self.introduction
    }

    /// Drops the texts that preceded the prompt: the agent has received them. Returns whether there
    /// were any.
    pub(super) fn note_introduced(&mut self) -> bool {
        let were_any = self.has_introduction();
        self.introduction = Introduction::default();
        were_any
    }

    pub(super) fn note_success(&mut self) {
        self.progress = SessionProgress::Known;
    }
}
