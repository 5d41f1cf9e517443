//! Chats: the life of turns, and what is in them.
//!
//! Owns: what is sequenced on a chat while a turn runs and when it ends: reports of agents, tool
//! calls and questions, messages that wait, and chats that are attached to messages.
//! Never: decides which client or agent may do something: `actions` and the router do.

pub(super) mod attached;
pub(super) mod calls;
pub(super) mod pending;
pub(super) mod reports;
#[cfg(test)]
mod tests;
pub(super) mod turns;
