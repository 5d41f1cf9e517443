//! Rows of the store that an action leaves out of date.
//!
//! Owns: which rows must be saved, and which actions must be on disk before any later output.
//! Never: writes a row; `router::persistence` does, before anything of the step is sent.
//!
//! While a turn runs, the stored actions make up for an outdated chat row. The row is saved again
//! only when their size exceeds a multiple of the row's, within [`UNSAVED_BYTES_MIN`] and
//! [`UNSAVED_BYTES_MAX`].

use ahp_types::actions::StateAction;

use crate::host::effects::{ChannelId, ChatKey, Output, Record};
use crate::host::ledger::Ledger;
use crate::host::model::Chat;
use crate::host::Step;

/// Minimum bytes of actions after which the row of a chat with a running turn is saved again.
const UNSAVED_BYTES_MIN: usize = 1 << 20;

/// Maximum ratio of actions to their row: the store compresses actions, and writes each row twice.
pub(in crate::host) const UNSAVED_TIMES: usize = 4;

/// Maximum bytes of actions after a row: a process that loads the chat holds them all in memory.
pub(in crate::host) const UNSAVED_BYTES_MAX: usize = 64 << 20;

/// Effect of an action on the row of its channel.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::host) struct RowNote {
    pub(in crate::host) is_due: bool,
    /// The action must be on disk before any later output is sent.
    pub(in crate::host) is_sync: bool,
}

impl Chat {
    /// Records an action of `line_bytes` that was applied to the chat.
    pub(in crate::host) fn note_row(&mut self, action: &StateAction, line_bytes: usize) -> RowNote {
        let saved = &mut self.saved;
        let mut is_sync = false;
        match action {
            StateAction::ChatTurnResume(_) | StateAction::ChatTruncated(_) => {
                saved.turns_valid = saved.turns_valid.min(self.conversation.history().len());
                saved.row_due = true;
            }
            StateAction::ChatTurnStarted(_) => saved.row_due = true,
            StateAction::ChatTurnComplete(_)
            | StateAction::ChatTurnCancelled(_)
            | StateAction::ChatError(_) => {
                saved.row_due = true;
                is_sync = true;
            }
            StateAction::ChatToolCallConfirmed(_) | StateAction::ChatInputCompleted(_) => is_sync = true,
            _ => {}
        }
        RowNote { is_due: self.note_lines(line_bytes), is_sync }
    }

    /// Counts bytes of actions that were applied. Returns whether the chat's row must be saved.
    pub(super) fn note_lines(&mut self, line_bytes: usize) -> bool {
        let saved = &mut self.saved;
        saved.unsaved_bytes += line_bytes;
        let behind_max = (UNSAVED_TIMES * saved.row_bytes).clamp(UNSAVED_BYTES_MIN, UNSAVED_BYTES_MAX);
        saved.row_due |= self.run.is_none() || saved.unsaved_bytes > behind_max;
        saved.row_due
    }
}

impl Ledger {
    /// Records the effect of an applied action on the rows of the store.
    pub(super) fn note_row(
        &mut self,
        step: &mut Step<'_>,
        target: ChannelId,
        action: &StateAction,
        line_bytes: usize,
    ) {
        let RowNote { is_due, is_sync } = self.channels.note_row(target, action, line_bytes);
        if is_sync {
            step.emit(Output::Record(Record::Sync));
        }
        if is_due {
            self.mark_dirty(target);
        }
    }

    /// Marks the row of a chat as out of date, after a change that no action carries.
    pub(in crate::host) fn chat_row_due(&mut self, key: ChatKey) {
        if let Some(chat) = self.channels.chats.known_mut(key) {
            chat.saved.row_due = true;
            self.mark_dirty(key.into());
        }
    }
}
