//! Protocol versions: which one a connection speaks, and how its messages differ.
//!
//! Owns: negotiation, and translation between a connection's version and the newest one, which is
//! the only one that the core knows. [`Edges`] stands between connections and core.
//! Never: decides what happens in a session; a version changes only messages.
//!
//! In reading order: [`dialect`] (the versions, and which one a client means), [`step`] (the
//! difference between two neighbours), a module for each difference, [`chain`] (all differences in
//! order), [`node`] (the pieces of a message), `translation` (state that connections of a version
//! share), `names` (their names of sessions), [`quirks`] (needs of certain clients), `integer` and
//! `draft` (version 1, by its crate and by its first page), and `edge` (the way of one connection
//! through all of it).
#![doc = include_str!("README.md")]
#![deny(clippy::disallowed_methods)]

pub mod chain;
pub mod dialect;
mod draft;
mod edge;
mod integer;
mod names;
pub mod node;
pub mod quirks;
pub mod step;
mod translation;
mod v0_1_0;
mod v0_2_0;
mod v0_3_0;
mod v0_4_0;
mod v0_5_0;
mod v0_5_1;
mod v0_5_2;
mod v0_6_0;
mod v0_7_0;
mod v0_8_0;
mod v0_9_0;
mod v1_0_0;

use std::time::Duration;

use bytes::Bytes;

pub use edge::{DeferredMessage, Edges};

use crate::host::effects::DeltaRun;

/// Message to a client.
#[derive(Debug)]
pub enum Outgoing {
    /// Line that is written already, with its newline.
    Line(Bytes),
    /// Lines of deltas, and how long the client lets the host hold them back.
    Deltas(DeltaRun, Option<Duration>),
    /// Message that takes long to write.
    Unwritten(Box<DeferredMessage>),
}

impl Outgoing {
    /// Returns the approximate size of the message, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Line(line) => line.len(),
            Self::Deltas(run, _) => run.lines.lines().len(),
            Self::Unwritten(unwritten) => unwritten.bytes,
        }
    }

    /// Returns the text of the message, and writes it first if it is not written.
    pub fn now(self) -> Bytes {
        match self {
            Self::Line(line) => line,
            Self::Deltas(run, _) => run.lines.lines().clone(),
            Self::Unwritten(unwritten) => unwritten.text(),
        }
    }
}

impl From<Bytes> for Outgoing {
    fn from(bytes: Bytes) -> Self {
        Self::Line(bytes)
    }
}
