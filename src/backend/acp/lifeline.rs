//! The lifeline between the host and a guard: a socket that is the guard's stdin.
//!
//! Its end is found by reading, since not all systems tell it to one who only waits. What a guard
//! is to give its agent as stdin comes over it.
//!
//! Owns: sending and receiving a file over it, and hearing its end.
//! Never: carries anything of what the agent and the host say to each other.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{fcntl_setfd, retry_on_intr, FdFlags};
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Byte that is sent with a file, and to acknowledge one.
const WORD: &[u8] = b".";

/// Sends a file.
///
/// It must stay open here until the other side says that it has it: on some systems it is lost
/// else.
///
/// # Errors
/// When it cannot be sent.
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

/// Result of a receive.
#[derive(Debug)]
pub enum LifelineEvent {
    /// A file.
    File(OwnedFd),
    /// Something without a file: there may be no room for another one.
    Nothing,
    /// End of the stream.
    End,
}

/// Takes what was sent next. Where nothing is to be waited for, that is an error.
///
/// # Errors
/// When it cannot be received.
pub fn take(socket: impl AsFd) -> io::Result<LifelineEvent> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; WORD.len()];
    let received = retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(&mut word)], &mut attached, RecvFlags::empty())
    })?;
    let mut files = attached.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    match files.next().and_then(|mut files| files.next()) {
        Some(file) => {
            fcntl_setfd(&file, FdFlags::CLOEXEC)?;
            Ok(LifelineEvent::File(file))
        }
        None if received.bytes == 0 => Ok(LifelineEvent::End),
        None => Ok(LifelineEvent::Nothing),
    }
}

/// Waits for a file, and says that it is here.
///
/// # Errors
/// When something else comes, or nothing more can.
pub fn receive(mut socket: &UnixStream) -> io::Result<OwnedFd> {
    let LifelineEvent::File(file) = take(socket)? else {
        return Err(io::Error::other("no stdin was handed over"));
    };
    // Nobody may be left to hear it.
    io::Write::write_all(&mut socket, WORD).unwrap_or_default();
    Ok(file)
}

/// Waits until the other side is gone, or has said that nothing more comes.
pub fn wait_for_the_end(mut socket: impl Read) {
    // Nothing is said any more.
    io::copy(&mut socket, &mut io::sink()).unwrap_or_default();
}
