//! Steps that are not interrupted when the host ends: a half-done step would leave the user's files
//! in an intermediate state.
//!
//! Owns: the steps in progress, and that none begins once the process is exiting.
//! Never: defines a step, or waits for one without limit, since it may hang in git.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// Lock that steps in progress share; leaving takes it exclusively.
static STEPS: RwLock<()> = RwLock::new(());

static IS_LEAVING: AtomicBool = AtomicBool::new(false);

const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Runs a step to its end. Never returns if the process is about to exit.
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

/// Prevents further steps, and waits at most `within` for those in progress.
pub fn stop_within(within: Duration) {
    IS_LEAVING.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    while STEPS.try_write().is_err() && begun.elapsed() < within {
        thread::sleep(CHECK_INTERVAL);
    }
}
