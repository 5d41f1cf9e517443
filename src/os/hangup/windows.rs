//! Windows: nothing is watched. stdin ends with the parent, and the next write fails without a
//! reader.
//!
//! Owns: nothing.
//! Never: starts a thread.

use std::fs::File;
use std::io::{self, PipeReader};

use super::LeaveReason;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent(());

pub fn parent() -> Option<Parent> {
    None
}

pub fn start(
    _stdout: Option<File>,
    _parent: Option<Parent>,
    _stop: Option<PipeReader>,
    _report: impl Fn(LeaveReason) -> bool + Send + 'static,
) -> io::Result<()> {
    Ok(())
}
