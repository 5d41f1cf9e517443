//! The state of a chat and how actions change it, for the core and for older protocol versions,
//! which reduce chats as their clients do.
//!
//! Owns: a chat's state with its reducers ([`reduce`]), its completed turns ([`history`]), the
//! locations of their texts ([`texts`]), the file edits in them ([`edits`]), the bits of a status
//! (`status`), and the list of steering messages (`steering`).
//! Never: decides whether an action is allowed, assigns its number, or knows its subscribers. It
//! does no I/O, reads no clock, and uses nothing of the crate but [`wire`](crate::wire).
#![deny(clippy::disallowed_methods)]

pub mod edits;
pub mod history;
pub mod reduce;
pub(crate) mod status;
pub(crate) mod steering;
pub mod texts;
