//! Detection of the end of the reader of stdout, and of the parent process.
//!
//! Owns: the reasons to leave ([`LeaveReason`]), and noticing that reader or parent is gone, even
//! while nothing is written and a sibling process holds the pipe open.
//! Never: decides about the consequences.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use rustix::process::{getppid, Pid};

/// Interval of checks for the parent where the system cannot report its end.
const PARENT_EVERY: Duration = Duration::from_secs(1);

/// Reason why the process must leave.
#[derive(Debug)]
pub enum LeaveReason {
    /// Closed reader of stdout.
    Reader,
    /// End of the parent process.
    Parent,
    /// Signal or other request, by its name in the log.
    Asked(&'static str),
}

/// Returns the parent process, unless that is the init process, which adopts orphans.
pub fn parent() -> Option<Pid> {
    getppid().filter(|parent| !parent.is_init())
}

/// Starts a thread that watches the reader of `stdout` and the parent, if given. Ends when the
/// other end of `stop` is closed, or when `tell` returns false.
pub fn start(
    stdout: Option<OwnedFd>,
    parent: Option<Pid>,
    stop: Option<OwnedFd>,
    tell: impl Fn(LeaveReason) -> bool + Send + 'static,
) -> io::Result<()> {
    let work = move || {
        if let Err(error) = watch(stdout.as_ref(), parent, stop.as_ref(), &tell) {
            tracing::error!(%error, "neither the reader of stdout nor the parent can be watched");
        }
    };
    thread::Builder::new().name("watch".to_owned()).spawn(work).map(drop)
}

/// Reports the end of the parent, once. Returns false if the receiver is gone.
fn check_parent(parent: &mut Option<Pid>, tell: &impl Fn(LeaveReason) -> bool) -> bool {
    let gone = parent.is_some() && getppid() != *parent;
    if gone {
        *parent = None;
    }
    !gone || tell(LeaveReason::Parent)
}

fn report_closed_reader(tell: &impl Fn(LeaveReason) -> bool) {
    if !tell(LeaveReason::Reader) {
        tracing::debug!("the end of the parent or the reader was ignored: the process is leaving");
    }
}

/// Watches with `poll`, without wakeups while nothing happens.
#[cfg(target_os = "linux")]
fn watch(
    stdout: Option<&OwnedFd>,
    mut parent: Option<Pid>,
    stop: Option<&OwnedFd>,
    tell: &impl Fn(LeaveReason) -> bool,
) -> io::Result<()> {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::process::{pidfd_open, PidfdFlags};
    let is_gone =
        |file: &PollFd<'_>| file.revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
    // A pidfd becomes readable when the process ends. Old kernels lack it.
    let handle = parent.and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
    let timeout = Timespec { tv_sec: PARENT_EVERY.as_secs().try_into().unwrap_or(1), tv_nsec: 0 };
    loop {
        if !check_parent(&mut parent, tell) {
            return Ok(());
        }
        let mut watched: Vec<PollFd<'_>> =
            stdout.into_iter().chain(stop).map(|file| PollFd::new(file, PollFlags::empty())).collect();
        let closable = watched.len();
        if let (Some(_), Some(handle)) = (parent, &handle) {
            watched.push(PollFd::new(handle, PollFlags::IN));
        }
        if watched.is_empty() && parent.is_none() {
            return Ok(());
        }
        let timeout = (parent.is_some() && handle.is_none()).then_some(&timeout);
        match poll(&mut watched, timeout) {
            Ok(_) if watched[..closable].iter().any(is_gone) => {
                if stdout.is_some() && is_gone(&watched[0]) {
                    report_closed_reader(tell);
                }
                return Ok(());
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn watch(
    stdout: Option<&OwnedFd>,
    parent: Option<Pid>,
    stop: Option<&OwnedFd>,
    tell: &impl Fn(LeaveReason) -> bool,
) -> io::Result<()> {
    watch_by_events(stdout, parent, stop, tell)
}

/// Watches with the event queue of the system, because `poll` on macOS does not report a closed
/// reader unless data is awaited. Wakes also when the reader has made room.
#[cfg(any(test, not(target_os = "linux")))]
fn watch_by_events(
    stdout: Option<&OwnedFd>,
    mut parent: Option<Pid>,
    stop: Option<&OwnedFd>,
    tell: &impl Fn(LeaveReason) -> bool,
) -> io::Result<()> {
    use std::os::fd::AsFd;
    use tokio::io::{unix::AsyncFd, Interest};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Deprecated because it cannot enforce that the file stays open, as it does here.
        #[allow(deprecated)]
        let reader = stdout.map(|stdout| AsyncFd::with_interest(stdout.as_fd(), Interest::WRITABLE));
        #[allow(deprecated)]
        let stop = stop.map(|stop| AsyncFd::with_interest(stop.as_fd(), Interest::READABLE)).transpose()?;
        let is_stopped = async {
            match &stop {
                Some(stop) => stop.readable().await.map(drop),
                None => std::future::pending().await,
            }
        };
        let mut is_stopped = std::pin::pin!(is_stopped);
        let reader_is_gone = async {
            match &reader {
                None => std::future::pending().await,
                Some(Ok(reader)) => loop {
                    let mut ready = reader.ready(Interest::WRITABLE).await?;
                    if ready.ready().is_write_closed() {
                        return Ok(());
                    }
                    ready.clear_ready();
                },
                Some(Err(error)) => {
                    tracing::debug!(%error, "the reader of stdout is not watched: stdout is no pipe or socket");
                    std::future::pending().await
                }
            }
        };
        let mut reader_is_gone = std::pin::pin!(reader_is_gone);
        loop {
            if !check_parent(&mut parent, tell) {
                return Ok(());
            }
            tokio::select! {
                gone = &mut reader_is_gone => {
                    gone.map_err(|error: io::Error| error)?;
                    report_closed_reader(tell);
                    return Ok(());
                }
                stopped = &mut is_stopped => return stopped,
                () = tokio::time::sleep(PARENT_EVERY), if parent.is_some() => {}
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The way of other systems; the tests of the whole program take that of the one that they run
    /// on.
    #[test]
    fn a_reader_that_leaves_is_noticed_by_events_too() {
        use std::io::Write;
        for (mut ours, theirs) in [pipe(), pair()] {
            let (losses, mut lost) = tokio::sync::mpsc::unbounded_channel();
            let watched = theirs.try_clone().unwrap();
            let watching = thread::spawn(move || {
                watch_by_events(Some(&watched), None, None, &|loss| losses.send(loss).is_ok())
            });
            // It is full, and then it has room again; neither means anything.
            let mut writer = std::fs::File::from(theirs);
            writer.write_all(&[b'x'; 1000]).unwrap();
            ours.as_mut().unwrap().read_exact(&mut [0; 1000]).unwrap();
            assert!(!watching.is_finished() && lost.try_recv().is_err());
            drop(ours.take());
            watching.join().unwrap().unwrap();
            assert!(matches!(lost.try_recv(), Ok(LeaveReason::Reader)));
        }
    }

    type Ends = (Option<Box<dyn Read>>, OwnedFd);

    fn pipe() -> Ends {
        let (reader, writer) = io::pipe().unwrap();
        (Some(Box::new(reader)), writer.into())
    }

    fn pair() -> Ends {
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        (Some(Box::new(reader)), writer.into())
    }

    #[test]
    fn a_parent_that_is_gone_is_noticed_by_events_too() {
        let (losses, mut lost) = tokio::sync::mpsc::unbounded_channel();
        let (reader, writer) = io::pipe().unwrap();
        let watching = thread::spawn(move || {
            let tell = |loss| losses.send(loss).is_ok();
            watch_by_events(Some(&writer.into()), Some(Pid::INIT), None, &tell)
        });
        assert!(matches!(lost.blocking_recv(), Some(LeaveReason::Parent)));
        drop(reader);
        watching.join().unwrap().unwrap();
    }
}
