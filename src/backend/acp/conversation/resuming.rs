//! Resuming a turn that was interrupted by the end of the agent or of the host.
//!
//! Owns: the text for the agent (ACP has no method for that), and the handle by which the
//! conversation is resumed.
//! Never: repeats anything of the turn by itself.

use ahp_types::state::{Message, ResponsePart};

use super::{AcpConversation, Next, TOLD_ANEW};
use crate::backend::acp::content::answer_text;
use crate::host::effects::{Event, Handle, RunId, Transcript, TurnEvent};
use crate::wire::text;

/// Maximum size of the answer so far that is repeated to the agent, in bytes; its end is repeated.
const SO_FAR_BYTES_MAX: usize = 64 << 10;

impl AcpConversation {
    /// Queues the first events of a conversation that has just been opened.
    pub(super) fn introduce(&mut self, had_a_name: bool) {
        self.events.push(Event::Opened);
        if !self.session.has_introduction() {
            self.name();
        } else if had_a_name {
            self.events.push(Event::Handle(None));
        }
    }

    /// Reports the handle by which the host can open this conversation again.
    pub(super) fn name(&mut self) {
        let handle = Handle { name: self.session.id.to_string(), resumes: self.can_be_taken_up() };
        self.events.push(Event::Handle(Some(handle)));
    }

    /// Notes that the agent has received the prompt, and the texts before it.
    pub(super) fn note_introduced(&mut self) {
        if self.session.note_introduced() {
            self.name();
        }
    }

    /// Returns whether the agent can resume or load this conversation later.
    pub(super) fn can_be_taken_up(&self) -> bool {
        let can = &self.running.capabilities;
        can.session_capabilities.resume.is_some() || can.load_session
    }

    pub(super) fn resume(
        &mut self,
        run: RunId,
        message: &Message,
        attached: &[Transcript],
        so_far: &[ResponsePart],
    ) -> Next {
        // The agent has no memory of the conversation. The transcript, if there is one, causes the
        // same notice when the prompt is sent.
        if self.session.is_new() && !self.session.has_transcript() {
            self.events.push(Event::Turn(run, TurnEvent::Notice(TOLD_ANEW.to_owned())));
        }
        let prompt = self.prompt_of(Some(interrupted(so_far)), message, attached);
        self.calls.rename_reused_ids(so_far);
        self.begin(run, prompt)
    }
}

/// Returns the text for the agent before the message of an interrupted turn. The agent may know all
/// of the turn, or only part of it.
fn interrupted(so_far: &[ResponsePart]) -> String {
    let answer = answer_so_far(so_far);
    let seen = if answer.is_empty() {
        "The user has not seen anything of an answer yet.".to_owned()
    } else {
        format!(
            "This is what the user has seen of your answer so far:\n\n{answer}\nThat was your answer so far."
        )
    };
    format!(
        "You were interrupted while you worked on the user's latest message, which follows again. Go on with it from \
         where you were. Do not say again what you have said, and do not do again what you have done. What was being \
         done then was cut off: look at what came of it before you rely on it.\n\n{seen} The user's message was:"
    )
}

/// Returns the answer so far, cut at its beginning if it is too long.
fn answer_so_far(so_far: &[ResponsePart]) -> String {
    let answer = answer_text(so_far);
    let shown = text::last_bytes(&answer, SO_FAR_BYTES_MAX);
    if shown.len() < answer.len() {
        return format!("(The beginning is left out.)\n{shown}");
    }
    answer
}
