//! Notifications of the system about watched folders.
//!
//! Owns: registration of folders, once for all watches and within the limits; and the received
//! notifications: changed paths, or a loss of notifications.
//! Never: scans a folder, or registers more than one folder per call.

use std::io;
use std::path::Path;

use crate::os::walk::is_too_long;
use crate::os::watch::WatchError;
pub use crate::os::watch::{Notifier, Registration, SystemReport};

/// Reason why something cannot be watched.
#[derive(Debug)]
pub enum WatchTrouble {
    /// The path does not exist.
    Gone,
    /// Missing permission to read.
    Denied,
    /// Path of the host's own files.
    Own,
    /// Exhausted limit of watched folders.
    Folders(usize),
    /// Exhausted limit of files and folders in one watch.
    Entries(usize),
    /// Exhausted limit of files and folders in all watches together.
    AllEntries(usize),
    /// Path that is longer than the system allows.
    TooLong,
    /// Exhausted limit of the system, with the setting that raises it.
    NoRoom(&'static str),
    /// Other error of the file system.
    Failed(io::Error),
}

impl WatchTrouble {
    /// Returns the trouble that an error of the file system means.
    pub fn of(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Gone,
            io::ErrorKind::PermissionDenied => Self::Denied,
            _ if is_too_long(&error) => Self::TooLong,
            _ => Self::Failed(error),
        }
    }
}

impl From<WatchError> for WatchTrouble {
    fn from(error: WatchError) -> Self {
        match error {
            WatchError::Gone => Self::Gone,
            WatchError::Full(folders_max) => Self::Folders(folders_max),
            WatchError::NoRoom(setting) => Self::NoRoom(setting),
            WatchError::Failed(error) => Self::of(error),
        }
    }
}

/// Notifier of changes in folders.
pub trait System: std::fmt::Debug {
    /// Returns whether it ever reports anything; otherwise all watches must be polled.
    fn notifies(&self) -> bool;

    /// Watches a folder and its direct entries. Counts the calls for each folder.
    ///
    /// # Errors
    /// When the folder cannot be watched.
    fn register(&mut self, folder: &Path) -> Result<Registration, WatchTrouble>;

    /// Undoes one `register`; the last one ends the watch.
    fn release(&mut self, folder: &Path);

    /// Watches a path on the way to a watched one for being moved or removed. Counts the calls.
    ///
    /// # Errors
    /// When the path cannot be watched.
    fn pass(&mut self, _step: &Path) -> Result<Registration, WatchTrouble> {
        Ok(Registration::default())
    }

    /// Undoes one `pass`; the last one ends the watch.
    fn leave(&mut self, _step: &Path) {}

    /// Returns the notifier of the system, to wait for it; `None` without any.
    fn notifier(&self) -> Option<&Notifier> {
        None
    }

    /// Waits until all earlier changes are pending notifications.
    #[cfg(test)]
    fn catch_up(&self) {}

    /// Returns the number of folders registered for their content.
    #[cfg(test)]
    fn count(&self) -> usize {
        0
    }

    /// Adds the pending notifications to `report`.
    ///
    /// # Errors
    /// When the notifications cannot be read any more.
    fn read_events(&mut self, report: &mut SystemReport) -> io::Result<()>;
}

/// Notifier of a system that reports nothing.
#[derive(Debug)]
pub struct NoNotifier;

impl System for NoNotifier {
    fn notifies(&self) -> bool {
        false
    }

    fn register(&mut self, _: &Path) -> Result<Registration, WatchTrouble> {
        Ok(Registration::default())
    }

    fn release(&mut self, _: &Path) {}

    fn read_events(&mut self, _: &mut SystemReport) -> io::Result<()> {
        Ok(())
    }
}

impl System for Notifier {
    fn notifies(&self) -> bool {
        true
    }

    fn register(&mut self, folder: &Path) -> Result<Registration, WatchTrouble> {
        Ok(self.register(folder)?)
    }

    fn release(&mut self, folder: &Path) {
        self.release(folder);
    }

    fn pass(&mut self, step: &Path) -> Result<Registration, WatchTrouble> {
        Ok(self.pass(step)?)
    }

    fn leave(&mut self, step: &Path) {
        self.leave(step);
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(self)
    }

    #[cfg(test)]
    fn catch_up(&self) {
        self.catch_up();
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.count()
    }

    fn read_events(&mut self, report: &mut SystemReport) -> io::Result<()> {
        self.read_events(report)
    }
}
