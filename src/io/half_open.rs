//! Acceptance of connections, up to the end of their handshakes.
//!
//! Owns: refusing connections when files run out, and the maximum number of handshakes in progress.
//! Never: admits a connection.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::descriptors::{self, SpareFile};
use crate::os::limits::NumberedFile;
use crate::os::sockets::{AsyncListener, Stream};

/// Pause after a connection could not be accepted. A connection that ends may free a file.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) trait Accepts {
    type Stream: NumberedFile;

    async fn accept(&self) -> io::Result<Self::Stream>;
}

impl Accepts for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accepts for AsyncListener {
    type Stream = Stream;

    async fn accept(&self) -> io::Result<Stream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Waits for the next connection. Passes those that would use the last files to `refuse`.
pub(super) async fn accept<L: Accepts>(
    listener: &L,
    spare: &mut SpareFile,
    refuse: impl AsyncFn(L::Stream),
) -> L::Stream {
    loop {
        match listener.accept().await {
            Ok(stream) if descriptors::leaves_too_few(&stream) => {
                tracing::warn!("a connection is refused: too many files are open");
                refuse(stream).await;
            }
            Ok(stream) => return stream,
            Err(error) if spare.make_room(&error) => {
                tracing::warn!(%error, "a connection is refused");
                if let Ok(stream) = listener.accept().await {
                    refuse(stream).await;
                }
                spare.reclaim();
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Maximum number of handshakes in progress. One more aborts the oldest.
const HALF_OPEN_MAX: usize = 128;

/// Handshakes in progress. Dropping this aborts them.
#[derive(Debug, Default)]
pub struct HalfOpen(VecDeque<JoinHandle<()>>);

impl HalfOpen {
    /// Spawns a handshake. Must be called inside a runtime.
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
