//! Configuration: models, settings and working directories of sessions and chats.
//!
//! Owns: valid values, selections, and the directories of agents.
//! Never: queries an agent: it sends changes, and receives the agent's result as an event.

pub(super) mod completions;
pub(super) mod directories;
pub(super) mod requests;
pub(super) mod selection;
pub(super) mod settings;
#[cfg(test)]
mod tests;
pub(super) mod values;
