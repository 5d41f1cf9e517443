//! Persistent sessions.
//!
//! Owns: the state folder ([`folder`]), the database in it ([`sqlite`] writes, [`reader`] reads;
//! its `schema` and `upgrade`, `repair`, `check`, `indexes`, `rows`, `running`, `turns`,
//! `use_counts`, `contents`, `texts`, `pack`, `compress`, `clients`, `agents`, `trash`, `space` and
//! `mark`; and [`archive`], for people), and its stand-in for a host that keeps everything in
//! memory ([`memory`]).
//! Never: knows what a row means; rows are JSON text with a few columns beside it that they are
//! found by.
#![doc = include_str!("README.md")]

mod agents;
pub mod archive;
mod channels;
pub mod check;
mod clients;
mod compress;
mod contents;
pub mod errors;
pub mod folder;
mod indexes;
mod mark;
pub mod memory;
mod pack;
pub mod reader;
mod repair;
mod rows;
mod running;
mod schema;
pub mod space;
pub mod sqlite;
pub mod texts;
mod trash;
mod trials;
mod turns;
mod upgrade;
mod use_counts;

use std::path::PathBuf;
use std::time::Duration;

use crate::host::log::ReplayWindow;

/// Place of the sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatePlace {
    /// In memory: nothing outlives the process.
    Memory,
    /// In this folder; in the platform's when none is named.
    Folder(Option<PathBuf>),
}

/// Retention of what is over.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// Number and size of the newest actions that are kept.
    pub window: ReplayWindow,
    /// For how long sessions that were removed; not at all when zero.
    pub trash: Duration,
    /// From how many bytes of the database on those that were removed first are kept no longer;
    /// however many they are when that is not said.
    pub bytes_max: Option<u64>,
    /// A turn that has ended so many processes in a row is given up, and after as many more its
    /// session is left alone; never when 0.
    pub deaths_max: u32,
    /// Maximum duration of a small commit on a fast disk. After a slower one, commits are left for
    /// a while to the thread that can wait.
    pub at_once_within: Duration,
    /// Maximum size of unused turn texts in memory, in bytes.
    pub text_bytes_max: usize,
    /// Time for which a request may wait for a failing store.
    pub patience: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            window: ReplayWindow::default(),
            trash: Duration::from_secs(30 * 24 * 60 * 60),
            bytes_max: None,
            deaths_max: 3,
            at_once_within: Duration::from_millis(2),
            text_bytes_max: 64 << 20,
            patience: Duration::from_secs(20),
        }
    }
}
