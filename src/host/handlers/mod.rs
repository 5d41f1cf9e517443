//! What each method does: a function each, a file per group.
//!
//! Owns: reading the state for an answer, and the requests that change the set of channels.
//! Never: changes a channel's state other than through `sequence`.

pub(super) mod catalogue;
mod chats;
pub(super) mod completions;
mod config;
pub(super) mod connection;
mod forks;
mod moves;
mod resources;
