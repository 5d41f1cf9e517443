//! Portable: the event queue of the system, because `poll` on macOS does not report a closed reader
//! unless data is awaited. Wakes also when the reader has made room.
//!
//! Owns: the wait.
//! Never: decides what an end means.

use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::AsFd;

use tokio::io::{unix::AsyncFd, Interest};

use super::unix::{check_parent, report_closed_reader, Parent, PARENT_EVERY};
use super::LeaveReason;

pub(super) fn watch(
    stdout: Option<&File>,
    mut parent: Option<Parent>,
    stop: Option<&PipeReader>,
    report: &impl Fn(LeaveReason) -> bool,
) -> io::Result<()> {
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
            if !check_parent(&mut parent, report) {
                return Ok(());
            }
            if stdout.is_none() && stop.is_none() && parent.is_none() {
                return Ok(());
            }
            tokio::select! {
                gone = &mut reader_is_gone => {
                    gone.map_err(|error: io::Error| error)?;
                    report_closed_reader(report);
                    return Ok(());
                }
                stopped = &mut is_stopped => return stopped,
                () = tokio::time::sleep(PARENT_EVERY), if parent.is_some() => {}
            }
        }
    })
}
