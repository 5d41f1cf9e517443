//! Pipes that are named like files.
//!
//! Owns: recognising them, and waiting for their writers.
//! Never: reads from one.

use std::fs::File;
use std::io;
use std::time::Duration;

/// Returns whether an open file is a pipe. Windows has none among its files.
///
/// # Errors
/// When the system does not report it.
pub fn is_pipe(file: &File) -> io::Result<bool> {
    half::is_pipe(file)
}

/// Waits until a file can be read without blocking, or this time has passed.
///
/// # Errors
/// When the system cannot wait for it.
pub fn wait_readable(file: &File, timeout: Duration) -> io::Result<()> {
    half::wait_readable(file, timeout)
}

#[cfg(unix)]
mod half {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileTypeExt;
    use std::time::Duration;

    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::io::Errno;

    pub(super) fn is_pipe(file: &File) -> io::Result<bool> {
        Ok(file.metadata()?.file_type().is_fifo())
    }

    pub(super) fn wait_readable(file: &File, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(windows)]
mod half {
    use std::fs::File;
    use std::io;
    use std::time::Duration;

    pub(super) fn is_pipe(_: &File) -> io::Result<bool> {
        Ok(false)
    }

    pub(super) fn wait_readable(_: &File, _: Duration) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
