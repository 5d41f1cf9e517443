//! Persistent sessions.
//!
//! Owns: the state folder ([`folder`]); the database in it ([`sqlite`] writes, [`reader`] reads,
//! [`archive`] serves the commands for people, and the private modules have its parts); and its
//! replacement for a host without a folder ([`memory`]).
//! Never: interprets a row. Rows are JSON text, with a few columns to find them by.
#![doc = include_str!("README.md")]

mod agents;
pub mod archive;
mod channels;
pub mod check;
mod clients;
mod compress;
mod contents;
mod conversations;
pub mod errors;
pub mod folder;
mod indexes;
mod mark;
pub mod memory;
mod numbers;
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

/// Location of the sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatePlace {
    /// In memory: nothing outlives the process.
    Memory,
    /// In this folder; `None` for the platform's default folder.
    Folder(Option<PathBuf>),
}

/// Limits of retention and time.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// Maximum number and size of the actions that are retained for replay.
    pub window: ReplayWindow,
    /// Time for which removed sessions stay in the trash; none at all if zero.
    pub trash: Duration,
    /// Size of the database, in bytes, above which the oldest sessions in the trash are purged
    /// early; `None` for no limit.
    pub bytes_max: Option<u64>,
    /// Number of consecutive processes that a turn may end before it is given up. After as many
    /// more, its session is no longer restored. 0 for no limit.
    pub deaths_max: u32,
    /// Maximum duration of a small commit on a fast disk. After a slower one, the commit thread
    /// takes over for a while.
    pub at_once_within: Duration,
    /// Maximum size of cached turn texts in memory, in bytes.
    pub text_bytes_max: usize,
    /// Time that a request may wait for a failing store.
    pub request_wait: Duration,
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
            request_wait: Duration::from_secs(20),
        }
    }
}
