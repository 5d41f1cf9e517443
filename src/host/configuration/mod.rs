//! Configuration: models, settings and working directories of sessions and chats.
//!
//! Owns: which values a schema allows, what is selected for whom, and in which directories agents
//! work.
//! Never: asks an agent: it tells what has changed, and is told what the agent made of it.

pub(in crate::host) mod completions;
pub(in crate::host) mod directories;
pub(in crate::host) mod requests;
pub(in crate::host) mod selection;
pub(in crate::host) mod settings;
pub(in crate::host) mod values;
