//! What each method does: a function each, a file per group.
//!
//! Owns: reading the state for an answer, and the requests that change the set of channels.
//! Never: changes a channel's state other than through `sequence`.

pub(super) mod catalogue;
pub(super) mod chats;
pub(super) mod completions;
pub(super) mod config;
pub(super) mod connection;
pub(super) mod forks;
pub(super) mod moves;
pub(super) mod resources;
