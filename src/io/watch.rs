//! Those that we depend on: the reader of our stdout, and the process that started us.
//!
//! Owns: the reasons to leave ([`Loss`]), and noticing that one of the two is gone, also while there is nothing to write and a sibling holds the
//! pipe open.
//! Never: decides what follows from it.

use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{getppid, Pid};
use tokio::sync::mpsc::UnboundedSender;

/// How often the parent is looked for where the system cannot tell of its end.
const PARENT_EVERY: Duration = Duration::from_secs(1);

/// Why we cannot go on.
#[derive(Debug)]
pub enum Loss {
    /// Nobody can read what we write any more.
    Reader,
    /// The process that started us is gone.
    Parent,
    /// This signal asked us to leave.
    Asked(&'static str),
}

/// The process that started us, unless that is the first process of all, which adopts orphans.
pub fn parent() -> Option<Pid> {
    getppid().filter(|parent| !parent.is_init())
}

/// Watches from a thread of its own: the reader of `stdout` always, the parent if there is one to watch.
pub fn start(stdout: OwnedFd, parent: Option<Pid>, losses: UnboundedSender<Loss>) {
    thread::spawn(move || watch(&stdout, parent, &losses));
}

fn watch(stdout: &OwnedFd, mut parent: Option<Pid>, losses: &UnboundedSender<Loss>) {
    let handle = parent.and_then(handle_of);
    let timeout = Timespec { tv_sec: PARENT_EVERY.as_secs().try_into().unwrap_or(1), tv_nsec: 0 };
    loop {
        let gone = parent.is_some() && getppid() != parent;
        if gone {
            parent = None;
            if losses.send(Loss::Parent).is_err() {
                return;
            }
        }
        let mut watched = vec![PollFd::new(stdout, PollFlags::empty())];
        if let (Some(_), Some(handle)) = (parent, &handle) {
            watched.push(PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN));
        }
        let timeout = (parent.is_some() && handle.is_none()).then_some(&timeout);
        if let Err(error) = poll(&mut watched, timeout) {
            if error != rustix::io::Errno::INTR {
                tracing::error!(%error, "the reader of stdout cannot be watched");
                return;
            }
            continue;
        }
        if watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            if losses.send(Loss::Reader).is_err() {
                tracing::debug!("the process ends already");
            }
            return;
        }
    }
}

/// A handle that becomes readable when the process ends, where the system has such.
#[cfg(target_os = "linux")]
fn handle_of(process: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn handle_of(_process: Pid) -> Option<OwnedFd> {
    None
}
