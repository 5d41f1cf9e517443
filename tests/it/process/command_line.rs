//! The command line: what is said where, and with which exit status.

use std::ffi::OsStr;
use std::io::{Cursor, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Output, Stdio};

use super::{opening, ping, turn, Heard};
use crate::support::{program, sidecar};

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn stdout_contains_only_frames_at_any_log_level() {
    let mut command = sidecar();
    command.args(["--log", "trace"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let input = opening() + "nonsense\n[]\n" + &turn("/say x\n/stream 100 10\n/die") + &ping(1);
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let heard = Heard::all(Cursor::new(output.stdout));
    assert_eq!((heard.text, heard.pings.len(), heard.endings.len()), (1000, 1, 1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("died without ending the turn"), "{log}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn log_is_empty_without_problems() {
    let mut command = sidecar();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let input = opening() + &turn("/say x\n/tool shell") + &ping(1);
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn help_and_version_are_printed_on_stdout() {
    for (argument, said) in [("--help", "Exit status:"), ("--version", env!("CARGO_PKG_VERSION"))] {
        let output = run(&[argument]);
        assert_eq!(output.status.code(), Some(0), "{argument}");
        assert!(String::from_utf8(output.stdout).unwrap().contains(said), "{argument}");
        assert!(output.stderr.is_empty(), "{argument}");
    }
}

#[test]
fn invalid_arguments_are_refused_with_status_2_before_anything_is_served() {
    for (arguments, said) in [
        (&["--frobnicate"][..], "--frobnicate"),
        (&["surplus"], "surplus"),
        (&["--on-eof", "later"], "later"),
        (&["--drain-timeout", "soon"], "soon"),
        (&["--max-frame-bytes", "-1"], "-1"),
        (&["--max-frame-bytes", "268435457"], "the maximum of 268435456 bytes"),
        (&["--max-turn-bytes", "268435457"], "the maximum of 268435456 bytes"),
        (&["--state-dir", "x", "--ephemeral"], "--ephemeral"),
        (&["--agent", "a"], "NAME=COMMAND LINE"),
        (&["--agent", "script=x"], "the name `script` is reserved for the built-in agent"),
        (&["--config", "/no/such/file"], "/no/such/file"),
        (&["--log", "ahp_sidecar=shout"], "--log"),
        (&["--default-directory", "/no/such/folder"], "/no/such/folder"),
        (&["--default-directory", "/dev/null"], "is not a folder"),
    ] {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn log_filter_is_read_from_the_environment() {
    let run = |filter: &str| sidecar().env("RUST_LOG", filter).stdin(Stdio::null()).output().unwrap();
    let output = run("info");
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stderr).unwrap().contains("stdin has ended"));
}

/// The variable may be meant for other programs.
#[test]
fn invalid_log_filter_in_the_environment_is_only_a_warning() {
    for filter in [OsStr::new("ahp_sidecar=shout"), OsStr::from_bytes(b"info\xff")] {
        let output = sidecar().env("RUST_LOG", filter).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{filter:?}");
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains("WARN") && log.contains("RUST_LOG"), "{log}");
    }
}
