//! Messages that wait: the queue, taken up one by one between turns, and the steering message, handed to
//! the agent while it works.
//!
//! Owns: when each is taken up, in the two steps of the protocol ("Pending Message Consumption" on the chat
//! channel page of the specification).
//! Never: pushes the queue into an agent.

use ahp_types::actions::{ChatPendingMessageRemovedAction, ChatTurnStartedAction, StateAction};
use ahp_types::state::{PendingMessage, PendingMessageKind, SessionLifecycle};

use super::effects::{ChatKey, Command};
use super::model::{RunPhase, Target};
use super::{Host, Step};

impl Host {
    /// A client asked for something on this chat: the queue may go on after what stopped it.
    pub(super) fn release_queue(&mut self, key: ChatKey) {
        if let Some(chat) = self.chats.get_mut(&key) {
            chat.queue_held = false;
        }
    }

    /// Starts a turn with the first queued message, if nothing runs and nothing holds the queue.
    pub(super) fn take_next_queued(&mut self, step: &mut Step<'_>, key: ChatKey) {
        if self.is_cancelling() {
            return;
        }
        let Some(chat) = self.chats.get(&key).filter(|chat| chat.run.is_none() && !chat.queue_held) else {
            return;
        };
        // In a session that could not be created nothing runs; what is queued stays to be seen.
        let session = self.sessions.get(&chat.session);
        if session.is_some_and(|session| session.state.lifecycle == SessionLifecycle::Failed) {
            return;
        }
        let mut queued = chat.conversation.state().queued_messages.iter().flatten();
        let Some(PendingMessage { id, message }) = queued.next().cloned() else { return };
        self.consume(step, key, PendingMessageKind::Queued, id.clone());
        let turn = ChatTurnStartedAction {
            turn_id: step.ids.fresh(),
            // Replaced by the host's clock.
            started_at: String::new(),
            message,
            queued_message_id: Some(id),
            meta: None,
        };
        self.start_turn(step, key, turn, None);
    }

    /// Hands the steering message to the agent, if it works on something.
    pub(super) fn hand_over_steering(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let Some(chat) = self.chats.get(&key) else { return };
        let Some(run) = chat.run.as_ref().filter(|run| run.phase == RunPhase::Started) else { return };
        let run = run.id;
        let Some(PendingMessage { id, message }) = chat.conversation.state().steering_message.clone() else {
            return;
        };
        self.consume(step, key, PendingMessageKind::Steering, id);
        self.tell_agent(step, key, Command::Steer { run, message });
    }

    fn consume(&mut self, step: &mut Step<'_>, key: ChatKey, kind: PendingMessageKind, id: String) {
        if let Some(chat) = self.chats.get_mut(&key) {
            chat.consumed.insert(id.clone());
        }
        let removed = ChatPendingMessageRemovedAction { kind, id };
        self.sequence(step, Target::Chat(key), StateAction::ChatPendingMessageRemoved(removed), None);
    }
}
