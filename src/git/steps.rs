//! Steps that are not broken off when the host ends: what is half done then would be left to the
//! user.
//!
//! Owns: which of them are being done, and that none begins when the process is about to leave.
//! Never: says how a step is done, or waits for one for ever: it may hang in git.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// Lock that steps in progress share; leaving takes it exclusively.
static STEPS: RwLock<()> = RwLock::new(());

/// The process is about to leave.
static IS_LEAVING: AtomicBool = AtomicBool::new(false);

/// Interval of checks whether all steps are done.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Does a step to its end. Does not come back where the process is about to leave.
pub fn whole<T>(step: impl FnOnce() -> T) -> T {
    let doing = STEPS.read().unwrap_or_else(PoisonError::into_inner);
    if IS_LEAVING.load(Ordering::SeqCst) {
        drop(doing);
        loop {
            thread::park();
        }
    }
    step()
}

/// Lets no step begin any more, and waits for so long until those that have begun are done.
pub fn leave(within: Duration) {
    IS_LEAVING.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    while STEPS.try_write().is_err() && begun.elapsed() < within {
        thread::sleep(CHECK_INTERVAL);
    }
}
