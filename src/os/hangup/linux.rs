//! Linux: `poll`, and a handle of the parent, without wakeups while nothing happens.
//!
//! Owns: the wait.
//! Never: decides what an end means.

use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::AsFd;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, PidfdFlags};

use super::unix::{check_parent, report_closed_reader, Parent, PARENT_EVERY};
use super::LeaveReason;

pub(super) fn watch(
    stdout: Option<&File>,
    mut parent: Option<Parent>,
    stop: Option<&PipeReader>,
    report: &impl Fn(LeaveReason) -> bool,
) -> io::Result<()> {
    let is_gone =
        |file: &PollFd<'_>| file.revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
    // A pidfd becomes readable when the process ends. Old kernels lack it.
    let handle = parent.and_then(|parent| pidfd_open(parent.0, PidfdFlags::empty()).ok());
    let timeout = Timespec { tv_sec: PARENT_EVERY.as_secs().try_into().unwrap_or(1), tv_nsec: 0 };
    loop {
        if !check_parent(&mut parent, report) {
            return Ok(());
        }
        let closable = stdout.map(AsFd::as_fd).into_iter().chain(stop.map(AsFd::as_fd));
        let mut files: Vec<PollFd<'_>> =
            closable.map(|file| PollFd::from_borrowed_fd(file, PollFlags::empty())).collect();
        let closable = files.len();
        if let (Some(_), Some(handle)) = (parent, &handle) {
            files.push(PollFd::new(handle, PollFlags::IN));
        }
        if files.is_empty() && parent.is_none() {
            return Ok(());
        }
        let timeout = (parent.is_some() && handle.is_none()).then_some(&timeout);
        match poll(&mut files, timeout) {
            Ok(_) if files[..closable].iter().any(is_gone) => {
                if stdout.is_some() && is_gone(&files[0]) {
                    report_closed_reader(report);
                }
                return Ok(());
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
