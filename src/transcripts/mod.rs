//! Transcripts of conversations between a client and a host: `record` and `replay`.
//!
//! In reading order: [`form`] (the lines of a file), [`names`], `naming` and `placeholders` (names
//! for values that differ from run to run), `folders` (of a played transcript), `process` (a host
//! as a child), [`player`] (says the client's lines) with `early` (subscriptions that it makes
//! sooner), `comparison`, [`differences`] (reports), `tokens` (which stay secret), `recorder`,
//! `jsonl` (logs), [`record`] and [`replay`] (the commands). The page `README.md` specifies the
//! form.
//!
//! Owns: the form of transcripts, and all that reads, writes or plays them.
//! Never: knows what a host should say: that is in the files.

mod comparison;
pub mod differences;
mod early;
mod folders;
pub mod form;
mod jsonl;
mod names;
mod naming;
mod placeholders;
pub mod player;
pub(crate) mod process;
pub mod record;
pub(crate) mod recorder;
pub mod replay;
mod tokens;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::connect::AS_HOST;
use crate::os::exe;

/// Word in a host command that stands for a state folder.
pub(crate) const STATE: &str = "{state}";

/// Failure to start a host.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the host cannot be started: {0}")]
pub struct HostFailure(String);

impl HostFailure {
    /// Creates a failure for this reason.
    pub(crate) fn new(why: String) -> Self {
        Self(why)
    }
}

/// Returns whether a host command is an address.
fn is_address(words: &[OsString]) -> bool {
    let is_one = |word: &str| word.starts_with("ws://") || word.starts_with("unix:");
    words.first().and_then(|word| word.to_str()).is_some_and(is_one)
}

/// Returns the failure of a process that has connected to no host.
fn unreachable(words: &[OsString]) -> HostFailure {
    let address = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    HostFailure(format!("`{address}` cannot be reached"))
}

/// Returns the command that starts a host: this program without words, and as a client of an
/// address.
pub(crate) fn host_command(words: &[OsString], state: Option<&Path>) -> Command {
    let state = state.map(|folder| folder.display().to_string()).unwrap_or_default();
    let filled = |word: &OsString| match word.to_str() {
        Some(text) if text.contains(STATE) => text.replace(STATE, &state).into(),
        _ => word.clone(),
    };
    let Some((program, arguments)) = words.split_first() else { return exe::command() };
    let mut command = if is_address(words) {
        let mut command = exe::command();
        command.arg("connect").arg(format!("--{AS_HOST}")).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(arguments.iter().map(filled));
    command
}
