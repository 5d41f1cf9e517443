//! Limits of what clients and agents make: so large that nobody who works notices, and so small
//! that nothing is too much for memory, for a row of the store, or for everybody else.
//!
//! Owns: the limits, and what is counted against them.
//! Never: refuses an action or ends a turn itself; the router asks, before and after it sequences
//! one. What brings a turn past its limit is still shown.

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

/// Maximum length of an id that a client gives, in bytes: it is remembered for as long as its chat
/// exists.
pub(super) const ID_BYTES_MAX: usize = 1024;

/// Maximum length of the URI of a session or chat, in bytes: it is sent with each action.
pub(super) const URI_BYTES_MAX: usize = 4096;

/// How large things may get, in bytes of JSON text unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The parts of a turn, all together. One that has more ends.
    pub turn_bytes: usize,
    /// The state of a session, and that of a chat without its turns. A client cannot make it
    /// larger.
    pub state_bytes: usize,
    /// Maximum number of programs at once in terminals that clients type into; 0: clients have no
    /// such terminals.
    pub ptys: usize,
    /// Time after which a terminal whose client is gone is closed, in milliseconds.
    pub terminal_grace_ms: u64,
    /// Maximum time that a turn waits for the checkpoint of its folder, in milliseconds; 0: folders
    /// have no checkpoints, and git is not run.
    pub checkpoint_timeout_ms: u64,
    /// Size above which git does not keep the content of a file, in bytes.
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

/// Returns whether a chat's turn has become too large.
pub(super) fn is_too_large(ledger: &Ledger, key: ChatKey) -> bool {
    ledger
        .channels
        .chats
        .known(key)
        .is_some_and(|chat| chat.run.is_some() && chat.conversation.turn_bytes() > ledger.limits.turn_bytes)
}

/// How a turn ends that is too large.
pub(super) fn too_large(ledger: &Ledger) -> Ending {
    let message = format!("the turn was ended: it had more than {}", human_size(ledger.limits.turn_bytes));
    Ending::Failed { kind: TOO_LARGE.to_owned(), message, resumable: false }
}

/// Tells which of the saved actions of a chat are needed to take it up: all, but for what a turn
/// that is too large has said behind its limit. Such turns are in stores that a program without
/// limits has written.
#[derive(Debug)]
pub struct ReplayFilter {
    limits: Limits,
    chat: Option<ChatKey>,
    /// Bytes of lines that are admitted in any case.
    room: usize,
}

impl ReplayFilter {
    /// For a session that is read with these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, chat: None, room: 0 }
    }

    /// Counts the next line of a chat; returns whether it is admitted.
    pub fn admits(&mut self, row: &ChatRow, line: &Bytes) -> bool {
        if self.chat != Some(row.key) {
            self.chat = Some(row.key);
            // Nobody leaves more behind a row whose turn is not too large.
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

/// Returns whether an action on a chat adds to its turn.
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

/// Checks the length of an id that a client gives.
pub(super) fn check_id(name: &'static str, id: &str) -> Result<(), Refusal> {
    match id.len() {
        0 => Err(Refusal::EmptyId(name)),
        1..=ID_BYTES_MAX => Ok(()),
        _ => Err(Refusal::LongId { name, max: ID_BYTES_MAX }),
    }
}
