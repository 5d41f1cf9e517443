//! Blocking work on a thread of its own.
//!
//! Owns: reporting the outcome to the caller, even if no thread can be started or the work panics.
//! Never: cancels work that has started: a thread cannot be stopped.

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// Runs blocking work on a new thread. Errors if no thread can be started or the work panics.
pub async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (sender, result) = oneshot::channel();
    let work = move || {
        if sender.send(work()).is_err() {
            tracing::debug!("the result of blocking work was dropped: nobody waits for it any more");
        }
    };
    thread::Builder::new().name("blocking".to_owned()).spawn(work)?;
    result.await.map_err(|_| io::Error::other("an internal error occurred; the log has the details"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_of_the_work_is_returned_as_error() {
        assert_eq!(on_a_thread(|| 7).await.unwrap(), 7);
        let failed: io::Result<()> = on_a_thread(|| panic!("a defect")).await;
        assert!(failed.unwrap_err().to_string().contains("internal error"));
    }
}
