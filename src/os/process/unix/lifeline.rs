//! The lifeline between the host and a guard: a socket that is the guard's stdin.
//!
//! Reading detects the end of the socket: not all systems report it to a process that only polls.
//! An agent's stdin is sent to its guard over the lifeline.
//!
//! Owns: sending and receiving a file over the socket, and detecting its end.
//! Never: carries messages between the agent and the host.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{fcntl_setfd, retry_on_intr, FdFlags};
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Byte that accompanies a file, and that acknowledges one.
const WORD: &[u8] = b".";

/// Sends a file, which must stay open here until it is acknowledged: some systems lose it
/// otherwise.
///
/// # Errors
/// When the file cannot be sent.
pub fn send(socket: impl AsFd, file: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    if !attached.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(WORD)], &mut attached, SendFlags::empty())?;
    Ok(())
}

/// Waits for a file, and acknowledges it.
///
/// # Errors
/// When a message without a file arrives, or when the socket fails.
pub fn receive(mut socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; WORD.len()];
    retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(&mut word)], &mut attached, RecvFlags::empty()))?;
    let mut files = attached.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let Some(file) = files.next().and_then(|mut files| files.next()) else {
        return Err(io::Error::other("the host sent no stdin"));
    };
    fcntl_setfd(&file, FdFlags::CLOEXEC)?;
    // The sender may have exited.
    io::Write::write_all(&mut socket, WORD).unwrap_or_default();
    Ok(file)
}

/// Waits until the other side has exited or closed its writing direction.
pub fn wait_for_the_end(mut socket: impl Read) {
    // No data is expected; only the end matters.
    io::copy(&mut socket, &mut io::sink()).unwrap_or_default();
}
