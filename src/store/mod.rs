//! Where sessions outlive the process.
//!
//! Owns: the state folder ([`folder`]), the database in it ([`sqlite`]), and its stand-in for a host that
//! keeps everything in memory ([`memory`]).
//! Never: knows what a row means; rows are JSON text with a few columns beside it that they are found by.

pub mod folder;
pub mod memory;
pub mod sqlite;

use bytes::Bytes;

use crate::host::effects::Place;

/// A page of the list of sessions.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Listed {
    /// The summaries (JSON text), newest first.
    pub summaries: Vec<Bytes>,
    /// The place of the last one, when there are more behind it.
    pub next: Option<Place>,
}
