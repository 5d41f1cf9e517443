//! Which texts of turns a message is about to need.
//!
//! Owns: finding those that are not in memory, so that they are read before the message is handled,
//! while others are heard.
//! Never: decides anything by them, or reads one; looks for those that are told: each is read when
//! it is written. A text that is not found here and needed all the same is read when it is:
//! everybody waits for that.

use super::model::Chat;
use crate::state::history::CompletedTurn;

/// So many bytes of texts are read ahead where it is not known which of them are needed.
pub(in crate::host) const BYTES_MAX: usize = 32 << 20;

/// So many bytes of the newest turns of an attached chat are read ahead: not all of it is told.
pub(in crate::host) const ATTACHED_BYTES_MAX: usize = 1 << 20;

pub(super) fn newest_first(chat: &Chat) -> impl Iterator<Item = &CompletedTurn> {
    chat.conversation.history().turns().iter().rev()
}
