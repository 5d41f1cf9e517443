//! Protocol versions: which one a connection speaks, and what that means for its messages.
//!
//! Owns: negotiation, and the translation of messages between the version of a connection and the
//! newest one, which is the only one that the core knows. [`Edges`] stands between the connections
//! and the core.
//! Never: decides what happens in a session; a version changes how things are said, not what is so.
//!
//! In reading order: [`dialect`] (the versions, and which one a client means), [`step`] (what a
//! difference between two neighbours is), one module for each difference, [`chain`] (the way
//! through them), [`node`] (where the pieces of a message lie), `translation` (what connections of
//! one version share), `names` (what they call sessions), [`quirks`] (what some clients need
//! besides), and `edge` (one connection's way through all of it).
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

use std::time::Duration;

use bytes::Bytes;

pub use edge::{DeferredMessage, Edges};

use crate::host::effects::DeltaRun;

/// A line for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The line, its newline included.
    pub bytes: Bytes,
}

/// Message to a client.
#[derive(Debug)]
pub enum Outgoing {
    /// This.
    Line(Line),
    /// Lines of deltas, and for how long the client has said that they may be held back.
    Deltas(DeltaRun, Option<Duration>),
    /// Message that takes long to write.
    Unwritten(Box<DeferredMessage>),
}

impl Outgoing {
    /// Returns its line, or lines of deltas, and writes it now if need be.
    pub fn now(self) -> Line {
        match self {
            Self::Line(line) => line,
            Self::Deltas(run, _) => Line::of(run.lines.lines().clone()),
            Self::Unwritten(unwritten) => Line::of(unwritten.text()),
        }
    }
}

impl From<Bytes> for Outgoing {
    fn from(bytes: Bytes) -> Self {
        Self::Line(Line::of(bytes))
    }
}

impl Line {
    fn of(bytes: Bytes) -> Self {
        Self { bytes }
    }
}
