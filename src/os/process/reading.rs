//! Reading both outputs of a child process until they end or time is up.
//!
//! Owns: the order of reads, so that neither pipe can block the child.
//! Never: keeps what is read.

use std::io;
use std::process::{ChildStderr, ChildStdout};
use std::time::Instant;

/// Size of a read, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// One of the two outputs of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipeName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Passes both outputs to `receive` until both have ended. Returns false if time is up before.
///
/// # Errors
/// When a pipe cannot be read, or with the error of `receive`.
pub fn read_both<E: From<io::Error>>(
    stdout: ChildStdout,
    stderr: ChildStderr,
    until: Instant,
    receive: impl FnMut(PipeName, &[u8]) -> Result<(), E>,
) -> Result<bool, E> {
    half::read_both(stdout, stderr, until, receive)
}

#[cfg(unix)]
mod half {
    use std::io::{self, ErrorKind, Read};
    use std::os::fd::AsFd;
    use std::process::{ChildStderr, ChildStdout};
    use std::time::Instant;

    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::io::{ioctl_fionbio, Errno};

    use super::{PipeName, CHUNK_BYTES};

    pub fn read_both<E: From<io::Error>>(
        mut stdout: ChildStdout,
        mut stderr: ChildStderr,
        until: Instant,
        mut receive: impl FnMut(PipeName, &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        for pipe in [stdout.as_fd(), stderr.as_fd()] {
            ioctl_fionbio(pipe, true).map_err(io::Error::from)?;
        }
        let (mut stdout_is_open, mut stderr_is_open) = (true, true);
        while stdout_is_open || stderr_is_open {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut pipes = Vec::with_capacity(2);
            if stdout_is_open {
                pipes.push(PollFd::new(&stdout, PollFlags::IN));
            }
            if stderr_is_open {
                pipes.push(PollFd::new(&stderr, PollFlags::IN));
            }
            match poll(&mut pipes, Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            stdout_is_open =
                stdout_is_open && read_available(&mut stdout, |bytes| receive(PipeName::Stdout, bytes))?;
            stderr_is_open =
                stderr_is_open && read_available(&mut stderr, |bytes| receive(PipeName::Stderr, bytes))?;
        }
        Ok(true)
    }

    /// Reads all available bytes. Returns `false` at the end of the pipe.
    fn read_available<E: From<io::Error>>(
        pipe: &mut impl Read,
        mut receive: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            match pipe.read(&mut chunk) {
                Ok(0) => return Ok(false),
                Ok(count) => receive(&chunk[..count])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Windows: pipes cannot be waited for together, so each has a thread.
#[cfg(windows)]
mod half {
    use std::io::{self, Read};
    use std::process::{ChildStderr, ChildStdout};
    use std::sync::mpsc::{sync_channel, RecvTimeoutError, SyncSender};
    use std::thread;
    use std::time::Instant;

    use super::{PipeName, CHUNK_BYTES};

    type ReadChunk = (PipeName, io::Result<Vec<u8>>);

    pub fn read_both<E: From<io::Error>>(
        stdout: ChildStdout,
        stderr: ChildStderr,
        until: Instant,
        mut receive: impl FnMut(PipeName, &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let (sender, chunks) = sync_channel(2);
        let to = sender.clone();
        thread::Builder::new().spawn(move || carry(PipeName::Stdout, stdout, &to))?;
        thread::Builder::new().spawn(move || carry(PipeName::Stderr, stderr, &sender))?;
        loop {
            match chunks.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((name, chunk)) => receive(name, &chunk?)?,
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(RecvTimeoutError::Disconnected) => return Ok(true),
            }
        }
    }

    fn carry(name: PipeName, mut pipe: impl Read, to: &SyncSender<ReadChunk>) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = match pipe.read(&mut chunk) {
                Ok(0) => return,
                Ok(count) => Ok(chunk[..count].to_vec()),
                Err(error) => Err(error),
            };
            let goes_on = read.is_ok();
            if to.send((name, read)).is_err() || !goes_on {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    fn read(script: &str, within: Duration) -> (io::Result<bool>, [usize; 2]) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let mut read = [0, 0];
        let ended = read_both::<io::Error>(stdout, stderr, Instant::now() + within, |name, bytes| {
            read[usize::from(name == PipeName::Stderr)] += bytes.len();
            Ok(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        (ended, read)
    }

    #[test]
    fn full_pipe_does_not_block_the_other() {
        let script = "head -c 300000 /dev/zero >&2; head -c 200000 /dev/zero; echo end >&2";
        let (ended, read) = read(script, Duration::from_secs(60));
        assert!(ended.unwrap());
        assert_eq!(read, [200_000, 300_004]);
    }

    #[test]
    fn child_that_goes_on_is_left_in_time() {
        let (ended, read) = read("echo begin; exec sleep 1000", Duration::from_millis(300));
        assert!(!ended.unwrap());
        assert_eq!(read[1], 0);
    }
}
