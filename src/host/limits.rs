//! Limits on the output of clients and agents: large enough for all regular work, small enough to
//! protect memory, rows of the store, and other clients.
//!
//! Owns: the limits, and what counts against them.
//! Never: refuses an action or ends a turn itself; the router checks before and after it sequences
//! an action. Output that exceeds a turn's limit is still shown.

use ahp_types::actions::{ActionEnvelope, StateAction};
use bytes::Bytes;

use super::chats::turns::Ending;
use super::effects::{ChatKey, ChatRow, CHECKPOINT_FILE_BYTES_MAX};
use super::ledger::{Ledger, UNSAVED_BYTES_MAX, UNSAVED_TIMES};
use super::refusal::Refusal;
use crate::wire::action_lines::envelope_of;
use crate::wire::text::human_size;

/// Error code of a turn that ended because it was too large.
const TOO_LARGE: &str = "turnTooLarge";

/// Maximum length of an id from a client, in bytes: it is remembered as long as its chat exists.
pub(super) const ID_BYTES_MAX: usize = 1024;

/// Maximum length of the URI of a session or chat, in bytes: it is sent with each action.
pub(super) const URI_BYTES_MAX: usize = 4096;

/// Size and time limits; sizes are in bytes of JSON text unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a turn's parts together; a turn that exceeds it is ended.
    pub turn_bytes: usize,
    /// Maximum size of a session's state, or a chat's without turns; clients cannot exceed it.
    pub state_bytes: usize,
    /// Maximum number of running programs in clients' terminals; 0 disables such terminals.
    pub ptys: usize,
    /// Time after which a terminal is closed whose client has disconnected, in milliseconds.
    pub terminal_grace_ms: u64,
    /// Maximum time that a turn waits for the checkpoint of its folder, in milliseconds; 0 disables
    /// checkpoints, so git does not run.
    pub checkpoint_timeout_ms: u64,
    /// Maximum size of a file whose content git checkpoints, in bytes of content.
    pub checkpoint_file_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            turn_bytes: 64 << 20,
            state_bytes: 64 << 20,
            ptys: 32,
            terminal_grace_ms: 600_000,
            checkpoint_timeout_ms: 0,
            checkpoint_file_bytes_max: CHECKPOINT_FILE_BYTES_MAX,
        }
    }
}

/// Returns whether a chat's running turn exceeds its size limit.
pub(super) fn is_too_large(ledger: &Ledger, key: ChatKey) -> bool {
    ledger
        .channels
        .chats
        .known(key)
        .is_some_and(|chat| chat.run.is_some() && chat.conversation.turn_bytes() > ledger.limits.turn_bytes)
}

/// Returns the ending of a turn that is too large.
pub(super) fn too_large(ledger: &Ledger) -> Ending {
    let message =
        format!("the turn was ended: it exceeds the limit of {}", human_size(ledger.limits.turn_bytes));
    Ending::Failed { kind: TOO_LARGE.to_owned(), message, resumable: false }
}

/// Selects the stored actions that are needed to load a chat: all except the output of an oversized
/// turn beyond its limit. Stores written by a version without limits contain such turns.
#[derive(Debug)]
pub struct ReplayFilter {
    limits: Limits,
    chat: Option<ChatKey>,
    /// Bytes of lines that are still admitted whatever their action.
    room: usize,
}

impl ReplayFilter {
    /// Creates a filter for a session that is read with these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, chat: None, room: 0 }
    }

    /// Counts the next line of a chat. Returns whether it is admitted.
    pub fn admits(&mut self, row: &ChatRow, line: &Bytes) -> bool {
        if self.chat != Some(row.key) {
            self.chat = Some(row.key);
            // A turn within the limit never leaves more bytes of actions after its row.
            let most =
                self.limits.turn_bytes.saturating_mul(UNSAVED_TIMES + 1).saturating_add(UNSAVED_BYTES_MAX);
            self.room = most.saturating_sub(row.body.len());
        }
        match self.room.checked_sub(line.len()) {
            Some(room) => {
                self.room = room;
                true
            }
            None => {
                self.room = 0;
                let envelope = serde_json::from_slice::<ActionEnvelope>(&envelope_of(line));
                envelope.map_or(true, |envelope| !is_output(&envelope.action))
            }
        }
    }
}

/// Returns whether an action on a chat adds to the size of its turn.
pub(super) fn is_output(action: &StateAction) -> bool {
    use StateAction as A;
    matches!(
        action,
        A::ChatDelta(_)
            | A::ChatReasoning(_)
            | A::ChatResponsePart(_)
            | A::ChatToolCallStart(_)
            | A::ChatToolCallDelta(_)
            | A::ChatToolCallReady(_)
            | A::ChatToolCallConfirmed(_)
            | A::ChatToolCallComplete(_)
            | A::ChatToolCallResultConfirmed(_)
            | A::ChatToolCallContentChanged(_)
            | A::ChatToolCallAuthRequired(_)
            | A::ChatToolCallAuthResolved(_)
            | A::ChatInputRequested(_)
            | A::ChatInputAnswerChanged(_)
            | A::ChatInputCompleted(_)
            | A::ChatUsage(_)
    )
}

/// Refuses an empty id, and one of more than `max` bytes.
pub(super) fn check_id(name: &'static str, id: &str, max: usize) -> Result<(), Refusal> {
    match id.len() {
        0 => Err(Refusal::EmptyId(name)),
        length if length <= max => Ok(()),
        _ => Err(Refusal::LongId { name, max }),
    }
}
