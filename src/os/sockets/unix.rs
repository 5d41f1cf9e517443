//! Unix: sockets in the file system.
//!
//! Owns: the mode of a socket's file.
//! Never: removes a file.

use std::fs::{self, File};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::geteuid;
use tokio::net::TcpStream;

use crate::os::private;

pub use std::os::unix::net::{UnixListener as LocalListener, UnixStream as BlockingStream};
pub use tokio::net::unix::{OwnedReadHalf as LocalReadHalf, OwnedWriteHalf as LocalWriteHalf};
pub use tokio::net::{UnixListener as AsyncListener, UnixStream as Stream};

/// Set if clients can connect to sockets in the file system, which requires that they can end one
/// direction alone.
pub const SERVE_CLIENTS: bool = true;

/// Binds a socket that only this user can connect to.
///
/// # Errors
/// When the path is in use, too long, or in no folder of this user.
pub fn bind(path: &Path) -> io::Result<LocalListener> {
    let listener = LocalListener::bind(path)?;
    // A client that connects before the mode is set is still checked by its user id.
    private::restrict_file(path)?;
    Ok(listener)
}

/// Returns the listener for use in the current runtime.
///
/// # Errors
/// When the system refuses the mode without blocking.
pub fn listen(listener: LocalListener) -> io::Result<AsyncListener> {
    listener.set_nonblocking(true)?;
    AsyncListener::from_std(listener)
}

/// Returns the listener that this process got from another as a file.
///
/// # Errors
/// On systems without such sockets.
pub fn take_over(listener: File) -> io::Result<LocalListener> {
    Ok(LocalListener::from(OwnedFd::from(listener)))
}

/// Connects to a socket, for use in the current runtime.
///
/// # Errors
/// When no process listens, or the system refuses.
pub async fn connect(path: &Path) -> io::Result<Stream> {
    Stream::connect(path).await
}

/// Connects to a socket, for blocking use.
///
/// # Errors
/// When no process listens, or the system refuses.
pub fn connect_now(path: &Path) -> io::Result<BlockingStream> {
    BlockingStream::connect(path)
}

/// Limits the duration of each read and write; `None` for no limit.
///
/// # Errors
/// When the limit is zero.
pub fn set_timeouts(stream: &BlockingStream, limit: Option<Duration>) -> io::Result<()> {
    stream.set_read_timeout(limit)?;
    stream.set_write_timeout(limit)
}

/// Ends both directions.
///
/// # Errors
/// When the peer is gone.
pub fn shut_down(stream: &BlockingStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Both)
}

/// Returns the stream for use in the current runtime.
///
/// # Errors
/// When the system refuses the mode without blocking.
pub fn into_async(stream: BlockingStream) -> io::Result<Stream> {
    stream.set_nonblocking(true)?;
    Stream::from_std(stream)
}

/// Splits a stream into its two directions.
pub fn split(stream: Stream) -> (LocalReadHalf, LocalWriteHalf) {
    stream.into_split()
}

/// Has the system check that the peer of an idle connection still exists.
///
/// # Errors
/// When the system refuses.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_keepalive(stream, true)?)
}

/// Returns whether the path names a socket.
pub fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket())
}

/// Returns whether a process listens on a socket.
pub fn has_listener(path: &Path) -> bool {
    let gone = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
    !BlockingStream::connect(path).is_err_and(|error| gone.contains(&error.kind()))
}

/// Returns the user id of a peer's process if that is another user's; `None` if it is this user's.
///
/// # Errors
/// When the system does not know the peer's user.
pub fn foreign_peer(stream: &Stream) -> io::Result<Option<u32>> {
    let user = stream.peer_cred()?.uid();
    Ok((user != geteuid().as_raw()).then_some(user))
}

/// Returns whether the peer has closed its reading side, too, and not only its writing side.
pub fn has_stopped_reading(stream: &LocalReadHalf) -> bool {
    // macOS reports nothing to a process that asks for nothing.
    let mut seen = [PollFd::new(stream.as_ref(), PollFlags::OUT)];
    poll(&mut seen, Some(&Timespec::default())).is_ok() && seen[0].revents().contains(PollFlags::HUP)
}
