//! ACP session of a conversation.
//!
//! Owns: the session's id, and how far its agent knows the chat and its folders.
//! Never: sends or reports anything.

use agent_client_protocol_schema::v1::SessionId;

pub(super) struct AcpSession {
    pub(super) id: SessionId,
    progress: SessionProgress,
    /// Set if the agent lacks the conversation so far, until its first event in a turn: only then
    /// the host gets the session's id.
    pub(super) unnamed: bool,
    /// Set if the working folders have changed since the agent last received them.
    pub(super) moved: bool,
}

/// Texts for the agent before the first prompt of a new session.
#[derive(Default)]
pub(super) struct Introduction {
    /// Conversation so far, if the agent does not know it.
    pub(super) transcript: Option<String>,
    /// Selected part that the conversation is about.
    pub(super) selection: Option<String>,
}

enum SessionProgress {
    /// The agent has created the session for this conversation, which has had no prompt.
    New(Introduction),
    /// The agent has resumed or loaded the session, which has had no prompt since.
    Resumed,
    Prompted,
    /// A prompt has succeeded: the agent knows the session, or has known it.
    Known,
}

impl AcpSession {
    /// Creates the record of an opened session; without an introduction if it was resumed.
    pub(super) fn new(id: SessionId, introduction: Option<Introduction>) -> Self {
        let unnamed = introduction.as_ref().is_some_and(|it| it.transcript.is_some());
        Self {
            id,
            progress: introduction.map_or(SessionProgress::Resumed, SessionProgress::New),
            unnamed,
            moved: false,
        }
    }

    pub(super) fn is_new(&self) -> bool {
        matches!(self.progress, SessionProgress::New(_))
    }

    /// Returns whether the next prompt tells the agent the conversation so far.
    pub(super) fn has_transcript(&self) -> bool {
        matches!(&self.progress, SessionProgress::New(first) if first.transcript.is_some())
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
    pub(super) fn note_prompt(&mut self) -> Introduction {
        match std::mem::replace(&mut self.progress, SessionProgress::Prompted) {
            SessionProgress::New(introduction) => return introduction,
            SessionProgress::Known => self.progress = SessionProgress::Known,
            SessionProgress::Resumed | SessionProgress::Prompted => {}
        }
        Introduction::default()
    }

    pub(super) fn note_success(&mut self) {
        self.progress = SessionProgress::Known;
    }
}
