//! The bits of a session's and a chat's status.
//!
//! Owns: which of them say what is going on, and which are flags.
//! Never: decides what is going on.

use ahp_types::state::SessionStatus;

/// Bits 0–4 of a status: what is going on. The others are flags.
const ACTIVITY_BITS: u32 = (1 << 5) - 1;

/// The activity bits of a status.
pub(crate) fn activity_of(status: u32) -> u32 {
    status & ACTIVITY_BITS
}

/// Returns whether the activity bits are these. `InputNeeded` contains `InProgress`, so bits are
/// compared whole.
pub(crate) fn status_is(status: u32, activity: SessionStatus) -> bool {
    activity_of(status) == activity.bits()
}

/// `status` with other activity bits.
pub(crate) fn with_activity(status: u32, activity: u32) -> u32 {
    (status & !ACTIVITY_BITS) | activity
}
