//! Chats: the life of turns, and their content.
//!
//! Owns: the actions on a chat while a turn runs and when it ends: reports of agents, tool calls
//! and questions, pending messages, and chats that are attached to messages.
//! Never: decides which client or agent may do something; `actions` and the router do.

pub(super) mod attached;
pub(super) mod calls;
pub(super) mod pending;
pub(super) mod reports;
#[cfg(test)]
mod tests;
pub(super) mod turns;
