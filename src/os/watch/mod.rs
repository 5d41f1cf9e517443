//! Notifications about changes in folders.
//!
//! A notification says which path has changed, not how, and may come without a change. None is lost
//! unless the report says so.
//!
//! On Linux, each folder has a watch of its own in the kernel, so that folders that are left out
//! cost nothing. Elsewhere, the crate `notify` carries it: macOS and Windows watch all that is
//! below a folder at once, and report by a thread.
//!
//! Owns: registration of folders, once for all users and within the limits; the pending
//! notifications; and waiting for them.
//! Never: scans a folder.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod linux;
#[cfg(not(all(target_os = "linux", not(feature = "portable"))))]
mod portable;
#[cfg(test)]
mod tests;

#[cfg(all(target_os = "linux", not(feature = "portable")))]
pub use linux::{Notifier, Wakeup};
#[cfg(not(all(target_os = "linux", not(feature = "portable"))))]
pub use portable::{Notifier, Wakeup};

/// Maximum number of changed paths that are remembered until they are read.
const TOUCHED_MAX: usize = 50_000;

/// Maximum number of watched folders, of all users together.
const FOLDERS_MAX: usize = 8192;

/// Reason why the system does not watch something.
#[derive(Debug)]
pub enum WatchError {
    /// The path leads elsewhere, for example to a folder that is watched by another path.
    Gone,
    /// Exhausted limit of watched folders.
    Full(usize),
    /// Exhausted limit of the system, with the setting that raises it.
    NoRoom(&'static str),
    /// Other error of the file system.
    Failed(io::Error),
}

/// Number of a folder's registration, which changes when another folder takes its path.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Registration(pub i64);

/// Notifications since the last report.
#[derive(Debug, Default)]
pub struct SystemReport {
    /// Changed paths.
    pub touched: BTreeSet<PathBuf>,
    /// Set if the system has dropped notifications.
    pub forgot: bool,
}

impl SystemReport {
    /// Returns whether no scan is needed.
    pub fn is_nothing(&self) -> bool {
        self.touched.is_empty() && !self.forgot
    }
}
