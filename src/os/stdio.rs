//! The files behind stdin and stdout.
//!
//! Owns: reserving them for the protocol, waiting for them where another process has made them
//! nonblocking, writing to them without waiting, and discarding what was typed at a terminal.
//! Never: interprets a byte.

pub use half::{
    discard_typed, is_closed, is_end, take, wait_for_input, wait_until_readable, wait_until_writable,
    write_at_once,
};

#[cfg(unix)]
mod half {
    use std::fs::File;
    use std::io::{self, PipeReader};
    use std::os::fd::{AsFd, OwnedFd};

    use anyhow::Context;
    use rustix::event::{poll, PollFd, PollFlags};
    use rustix::io::Errno;
    use rustix::termios::{tcflush, QueueSelector};

    /// Reserves stdin and stdout for the protocol. Other output of this process and its children
    /// goes to stderr, and other reads of stdin find it empty.
    ///
    /// # Errors
    /// When stdin or stdout is not open.
    pub fn take() -> anyhow::Result<(File, File)> {
        let stdin = private(io::stdin()).context("stdin is not open")?;
        let stdout = private(io::stdout()).context("stdout is not open")?;
        let null = File::open("/dev/null").context("cannot open /dev/null")?;
        rustix::stdio::dup2_stdin(&null).context("cannot replace stdin")?;
        match private(io::stderr()) {
            Ok(stderr) => rustix::stdio::dup2_stdout(stderr),
            Err(_) => rustix::stdio::dup2_stdout(File::create("/dev/null").context("cannot open /dev/null")?),
        }
        .context("cannot replace stdout")?;
        Ok((stdin.into(), stdout.into()))
    }

    /// Discards input of the terminal behind stdin that was typed, but not yet read. Does nothing
    /// on Windows, which has no safe interface for this.
    pub fn discard_typed() {
        // Without a terminal, nothing was typed.
        _ = tcflush(io::stdin(), QueueSelector::IFlush);
    }

    /// Duplicates a descriptor for this process alone; the copy survives a replaced original.
    fn private(file: impl AsFd) -> rustix::io::Result<OwnedFd> {
        rustix::io::fcntl_dupfd_cloexec(file, 3)
    }

    /// Waits for input or its end. Returns false if the other end of `stop` is closed.
    pub fn wait_for_input(stdin: &File, stop: &PipeReader) -> bool {
        let mut files = [PollFd::new(stdin, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        while poll(&mut files, None) == Err(Errno::INTR) {}
        files[1].revents().is_empty()
    }

    /// Returns whether a failed read means that the peer is gone: a closed terminal, or a socket
    /// closed with unread data.
    pub fn is_end(error: &io::Error) -> bool {
        let ends = [Errno::IO, Errno::CONNRESET];
        ends.iter().any(|end| error.raw_os_error() == Some(end.raw_os_error()))
    }

    /// Returns whether a failed write means that the reader has closed the pipe.
    pub fn is_closed(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::BrokenPipe
    }

    /// Waits until a nonblocking file has something to read.
    ///
    /// # Errors
    /// When the system cannot wait for the file.
    pub fn wait_until_readable(file: &impl AsFd) -> io::Result<()> {
        poll(&mut [PollFd::new(file, PollFlags::IN)], None)?;
        Ok(())
    }

    /// Waits until a nonblocking file has room.
    ///
    /// # Errors
    /// When the system cannot wait for the file.
    pub fn wait_until_writable(file: &impl AsFd) -> io::Result<()> {
        poll(&mut [PollFd::new(file, PollFlags::OUT)], None)?;
        Ok(())
    }

    /// Writes as much as fits without blocking, and returns the number of bytes. Neither needs nor
    /// changes the blocking mode of the file. Errors recur at the next write that may block.
    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    pub fn write_at_once(stdout: &File, bytes: &[u8]) -> usize {
        use rustix::io::{pwritev2, ReadWriteFlags};
        /// Offset that stands for the current position of the file.
        const HERE: u64 = u64::MAX;
        pwritev2(stdout, &[io::IoSlice::new(bytes)], HERE, ReadWriteFlags::NOWAIT).unwrap_or(0)
    }

    /// Writes nothing: the system cannot write without blocking unless the file's mode is changed.
    #[cfg(any(feature = "portable", not(target_os = "linux")))]
    pub fn write_at_once(_stdout: &File, _bytes: &[u8]) -> usize {
        0
    }
}

/// Windows: files are always blocking.
#[cfg(windows)]
mod half {
    use std::fs::File;
    use std::io::{self, PipeReader};
    use std::os::windows::io::AsHandle;

    use anyhow::Context;

    /// Duplicates stdin and stdout. The originals cannot be replaced: no code may use them.
    pub fn take() -> anyhow::Result<(File, File)> {
        let stdin = io::stdin().as_handle().try_clone_to_owned().context("stdin is not open")?;
        let stdout = io::stdout().as_handle().try_clone_to_owned().context("stdout is not open")?;
        Ok((stdin.into(), stdout.into()))
    }

    pub fn discard_typed() {}

    pub fn wait_for_input(_stdin: &File, _stop: &PipeReader) -> bool {
        true
    }

    pub fn is_end(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::ConnectionReset || is_disconnected(error)
    }

    pub fn is_closed(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::BrokenPipe || is_disconnected(error)
    }

    /// Returns whether the peer has disconnected a named pipe, such as those of Node.
    fn is_disconnected(error: &io::Error) -> bool {
        const PIPE_NOT_CONNECTED: i32 = 233;
        error.raw_os_error() == Some(PIPE_NOT_CONNECTED)
    }

    pub fn wait_until_readable<T>(_file: &T) -> io::Result<()> {
        Ok(())
    }

    pub fn wait_until_writable<T>(_file: &T) -> io::Result<()> {
        Ok(())
    }

    pub fn write_at_once(_stdout: &File, _bytes: &[u8]) -> usize {
        0
    }
}
