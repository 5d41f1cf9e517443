//! Locks and counts that threads and tasks share.
//!
//! Owns: the meaning of a poisoned lock, and counts of what still runs.
//! Never: knows what is locked or counted.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Locks a mutex. A value whose lock another thread's panic has poisoned is used as it is: the
/// owners change their values in single statements.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entry in a count of what still runs, until it is dropped.
#[derive(Debug)]
pub struct CountedEntry(watch::Sender<usize>);

impl CountedEntry {
    /// Adds an entry to a count.
    pub fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for CountedEntry {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
