//! Connections that are about to be let in.
//!
//! Owns: how many there may be, and which one has to go when one more comes: those that say nothing
//! keep nobody out.
//! Never: lets anybody in.

use std::collections::VecDeque;
use std::future::Future;

use tokio::task::JoinHandle;

/// Maximum number of handshakes in progress. When one more begins, the oldest is ended.
const HALF_OPEN_MAX: usize = 128;

/// Handshakes that are not done. They end when this is dropped.
#[derive(Debug, Default)]
pub struct HalfOpen(VecDeque<JoinHandle<()>>);

impl HalfOpen {
    /// Begins one more. Must be called inside a runtime.
    pub fn begin(&mut self, handshake: impl Future<Output = ()> + Send + 'static) {
        self.0.retain(|handshake| !handshake.is_finished());
        while self.0.len() >= HALF_OPEN_MAX {
            if let Some(oldest) = self.0.pop_front() {
                tracing::debug!("the oldest unfinished handshake was ended: too many others have begun");
                oldest.abort();
            }
        }
        self.0.push_back(tokio::spawn(handshake));
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
