//! With which status the process ends.
//!
//! Owns: the numbers, which scripts and editors know.
//! Never: ends a process.

/// Failed inside.
pub const EXIT_FAILURE: u8 = 1;
/// Wrong usage or unreadable configuration.
pub const EXIT_USAGE: u8 = 2;
/// The state folder is unusable or held by another process, or its host does not serve us.
pub const EXIT_STATE: u8 = 3;
/// Done, but something was declined or cut because nobody was left to answer.
pub const EXIT_CUT: u8 = 4;
/// The host that served us is gone.
pub const EXIT_GONE: u8 = 5;
