//! `ahp-sidecar trace FILE`: prints what took how long.
//!
//! Owns: its arguments, and the files that it reads and writes.
//! Never: starts a host, or overwrites a file.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{ensure, Context};
use clap::Args;
use serde_json::Value;

use super::table::Timings;
use crate::os::private;

/// Print what took how long, from a file of `--trace`, or from a log of one message per line.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Trace, or log of `record --jsonl` or VS Code
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write the messages of a log as trace events, which Perfetto and Chrome's tracing open; a
    /// trace is such a file already
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
}

/// Maximum size of a file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Returns the table of a trace or a log.
///
/// # Errors
/// When the file is neither, or a file cannot be read or written.
pub fn run(arguments: &TraceArgs) -> anyhow::Result<String> {
    let name = || format!("`{}`", arguments.file.display());
    let mut text = String::new();
    let mut file = File::open(&arguments.file).with_context(name)?.take(FILE_BYTES_MAX + 1);
    let bytes = file.read_to_string(&mut text).with_context(name)?;
    ensure!(bytes as u64 <= FILE_BYTES_MAX, "`{}` is larger than 1 GiB", arguments.file.display());
    let timings = Timings::read(&text).with_context(name)?;
    if let Some(file) = &arguments.events {
        let context = || format!("--events: `{}`", file.display());
        let events =
            if timings.events.is_empty() { text } else { Value::from(timings.events.clone()).to_string() };
        private::write_new(file, events.as_bytes()).with_context(context)?;
    }
    Ok(timings.table())
}
