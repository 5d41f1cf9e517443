//! `ahp-sidecar trace FILE`: prints what took how long.
//!
//! Owns: its arguments, and the files that it reads and writes.
//! Never: starts a host, or overwrites a file.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
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

/// Returns the table of a trace or a log.
///
/// # Errors
/// When the file is neither, or a file cannot be read or written.
pub fn run(arguments: &TraceArgs) -> anyhow::Result<String> {
    let name = || format!("`{}`", arguments.file.display());
    let text = fs::read_to_string(&arguments.file).with_context(name)?;
    let timings = Timings::read(&text).with_context(name)?;
    if let Some(file) = &arguments.events {
        let context = || format!("--events: `{}`", file.display());
        let mut written = private::options().write(true).create_new(true).open(file).with_context(context)?;
        let events =
            if timings.events.is_empty() { text } else { Value::from(timings.events.clone()).to_string() };
        written.write_all(events.as_bytes()).with_context(context)?;
    }
    Ok(timings.table())
}
