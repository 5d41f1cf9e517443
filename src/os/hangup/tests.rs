//! Tests of the half that is built.
//!
//! Owns: noticing a reader and a parent that are gone, and nothing else.
//! Never: starts a process.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::process::Pid;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};

use super::*;

type Ends = (Box<dyn Read>, OwnedFd);

fn pipe() -> Ends {
    let (reader, writer) = io::pipe().unwrap();
    (Box::new(reader), writer.into())
}

fn pair() -> Ends {
    let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
    (Box::new(reader), writer.into())
}

fn watching(
    stdout: Option<File>,
    parent: Option<Parent>,
    stop: Option<io::PipeReader>,
) -> UnboundedReceiver<LeaveReason> {
    let (losses, lost) = unbounded_channel();
    start(stdout, parent, stop, move |loss| losses.send(loss).is_ok()).unwrap();
    lost
}

#[test]
fn reader_that_leaves_is_noticed() {
    for (mut ours, theirs) in [pipe(), pair()] {
        let mut writer = File::from(theirs);
        let mut lost = watching(Some(writer.try_clone().unwrap()), None, None);
        // It is full, and then it has room again; neither means anything.
        writer.write_all(&[b'x'; 1000]).unwrap();
        ours.read_exact(&mut [0; 1000]).unwrap();
        assert!(lost.try_recv().is_err());
        drop(ours);
        assert!(matches!(lost.blocking_recv(), Some(LeaveReason::Reader)));
        assert!(lost.blocking_recv().is_none(), "the watch ends with the reader");
    }
}

#[test]
fn watch_ends_when_it_is_stopped() {
    let (_reader, writer) = pipe();
    let (stopped, stop) = io::pipe().unwrap();
    let mut lost = watching(Some(writer.into()), None, Some(stopped));
    assert!(lost.try_recv().is_err());
    drop(stop);
    assert!(lost.blocking_recv().is_none());
}

#[test]
fn parent_that_is_gone_is_noticed() {
    let (reader, writer) = pipe();
    let mut lost = watching(Some(writer.into()), Some(Parent(Pid::INIT)), None);
    assert!(matches!(lost.blocking_recv(), Some(LeaveReason::Parent)));
    drop(reader);
    assert!(matches!(lost.blocking_recv(), Some(LeaveReason::Reader)));
}
