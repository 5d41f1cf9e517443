//! The bits of a session's and a chat's status.
//!
//! Owns: the division into activity bits and flags.
//! Never: decides on the activity.

use ahp_types::state::SessionStatus;

/// Bits 0–4 of a status: the activity. The others are flags.
const ACTIVITY_BITS: u32 = (1 << 5) - 1;

pub(crate) fn activity_of(status: u32) -> u32 {
    status & ACTIVITY_BITS
}

/// Returns whether the activity is this one. `InputNeeded` contains the bit of `InProgress`, so the
/// bits are compared as a whole.
pub(crate) fn status_is(status: u32, activity: SessionStatus) -> bool {
    activity_of(status) == activity.bits()
}

/// Replaces the activity bits of a status.
pub(crate) fn with_activity(status: u32, activity: u32) -> u32 {
    (status & !ACTIVITY_BITS) | activity
}
