//! Configuration: models, settings and working directories of sessions and chats.
//!
//! Owns: which values a schema allows, what is selected for whom, and in which directories agents
//! work.
//! Never: asks an agent: it tells what has changed, and is told what the agent made of it.

pub(super) mod completions;
pub(super) mod directories;
pub(super) mod requests;
pub(super) mod selection;
pub(super) mod settings;
#[cfg(test)]
mod tests;
pub(super) mod values;
