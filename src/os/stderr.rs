//! The standard error stream of this process.
//!
//! Owns: leading it into a file.
//! Never: writes to it.

use std::fs::File;
use std::io;

/// Leads stderr, for example the message of a panic, into a file from now on. Does nothing on
/// Windows, whose standard streams cannot be replaced in safe code.
///
/// # Errors
/// When the system refuses.
#[cfg(unix)]
pub fn redirect(file: &File) -> io::Result<()> {
    Ok(rustix::stdio::dup2_stderr(file)?)
}

#[cfg(windows)]
#[allow(missing_docs, clippy::unnecessary_wraps)]
pub fn redirect(_: &File) -> io::Result<()> {
    Ok(())
}
