//! The state of a chat and how actions change it: the same for the core and for older versions of
//! the protocol, which reduce chats as their clients do.
//!
//! Owns: a chat's state with the reducers on it ([`reduce`]), its completed turns ([`history`]) and
//! where their texts are ([`texts`]), the edits of files in them ([`edits`]), and the bits of a
//! status (`status`).
//! Never: decides whether an action is allowed, numbers it, or knows who is told. It does no I/O,
//! reads no clock, and uses nothing of the crate but [`wire`](crate::wire).
#![deny(clippy::disallowed_methods)]

pub mod edits;
pub mod history;
pub mod reduce;
pub(crate) mod status;
pub mod texts;
