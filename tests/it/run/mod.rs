//! `ahp-sidecar run`, seen from a shell: what it prints, writes and returns.
//!
//! Owns: the real program with its arguments, against the agent `script` and the scripted agent of
//! the ACP tests.
//! Never: looks inside of the run or its host.
#![cfg(target_os = "linux")]
// The lints let tests panic, but not what they share.
#![allow(clippy::unwrap_used, clippy::panic)]

mod agents;
mod leaving;
mod outputs;
mod patches;
mod permissions;
mod sessions;
mod terminal;
mod turns;

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::program;

/// Result of a run.
#[derive(Debug)]
struct Ran {
    status: i32,
    out: String,
    err: String,
}

/// A run that keeps nothing and has no input.
fn fleeting(prompt: &str) -> Command {
    let mut command = run_of(["--ephemeral", prompt]);
    command.args(["--config", "/dev/null"]);
    command
}

/// A run with its session in this folder.
fn kept(folder: &Path, prompt: &str) -> Command {
    let mut command = run_of([OsStr::new("--state-dir"), folder.as_os_str(), prompt.as_ref()]);
    command.args(["--config", "/dev/null"]);
    command
}

fn run_of(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = program();
    command.arg("run").args(arguments).stdin(Stdio::null());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        status: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn ran_with_input(command: &mut Command, input: &str) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Ran {
        status: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a command with a summary, and returns both.
fn summed_up(command: &mut Command) -> (Ran, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("summary.json");
    let ran = ran(command.arg("--summary").arg(&file));
    let summary = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["exitStatus"], ran.status, "{summary}");
    (ran, summary)
}
