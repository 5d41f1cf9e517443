//! `conform`: what it says of this program, and of this program with defects built in.
//!
//! Owns: running the command, and reading its report.
//! Never: judges a host by itself.

mod defects;

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};

use ahp_sidecar::conform::checks::CHECKS;
use rustix::process::Signal;
use serde_json::Value;

use crate::process::wait_until;
use crate::support::{program, stat, HUNG};
use crate::windows::send;

/// Returns the command `conform`, with a time limit after which a test has hung.
fn conform() -> Command {
    conform_within(HUNG.as_secs())
}

/// Returns the command `conform`, with a time limit for each check, in seconds.
fn conform_within(limit: u64) -> Command {
    let mut command = program();
    command.args(["conform", "--seed", "7", "--timeout"]).arg(limit.to_string());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the results of checks by their names, as words.
fn outcomes(report: &Value) -> Vec<(String, String)> {
    let word = |check: &Value, name: &str| check[name].as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    checks.map(|check| (word(check, "name"), word(check, "outcome"))).collect()
}

#[test]
fn every_check_is_in_the_chapter() {
    let chapter = ahp_sidecar::help::text_of("conform").unwrap();
    let missing: Vec<&str> = CHECKS
        .iter()
        .map(|check| check.name)
        .filter(|name| !chapter.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    let names: BTreeSet<&str> = CHECKS.iter().map(|check| check.name).collect();
    assert_eq!(names.len(), CHECKS.len(), "a name is that of two checks");
}

#[test]
fn own_host_keeps_all_laws() {
    let output = conform().args(["--rounds", "3", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!((report["broken"].clone(), output.status.code()), (0.into(), Some(0)), "{report:#}");
    assert_eq!(
        (&report["host"]["name"], &report["protocolVersion"]),
        (&"ahp-sidecar".into(), &"1.0.0".into())
    );
    // What this host does not have is not called held.
    let offered: Vec<_> =
        outcomes(&report).into_iter().filter(|(_, outcome)| outcome == "not offered").collect();
    let names: Vec<&str> = offered.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["changesets", "automations"], "{report:#}");
}

#[test]
fn own_host_announces_changes_of_files() {
    let checks = ["--only", "changesets", "--only", "turn"];
    let output = conform().args(["--prompt", "/files made.txt=text"]).args(checks).output().unwrap();
    let table = stdout(&output);
    assert!(table.contains("changesets                   held\n"), "{table}");
    assert!(table.ends_with("2 held, 0 broken, 0 not offered; seed 7\n"), "{table}");
}

#[test]
fn older_version_is_judged_by_what_it_has() {
    let checks = ["turn", "reconnect-replay", "root-summaries", "root-changes", "completions", "play"];
    let checks = checks.iter().flat_map(|check| ["--only", check]);
    let output = conform().args(["--version", "0.9.0", "--json"]).args(checks).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["held"], &report["protocolVersion"]), (&6.into(), &"0.9.0".into()), "{report:#}");
}

#[test]
fn host_that_serves_one_client_is_not_blamed_for_that() {
    let own = program();
    let checks = ["--only", "subscribe-alone", "--only", "reconnect-killed", "--only", "turn"];
    let output = conform().args(checks).arg("--").arg(own.get_program()).arg("--ephemeral").output().unwrap();
    let table = stdout(&output);
    assert!(table.contains("subscribe-alone              not offered: the host has one client"), "{table}");
    assert!(table.contains("reconnect-killed             not offered: nothing says"), "{table}");
    assert_eq!(output.status.code(), Some(0), "{table}");
}

#[test]
fn host_that_listens_is_judged_through_its_address() {
    let own = program();
    let listen = ["serve", "--no-token", "--ephemeral", "--listen", "ws://127.0.0.1:{port}"];
    let checks = ["--only", "play", "--only", "transport-split", "--only", "turn"];
    let mut command = conform();
    command.args(["--connect", "ws://127.0.0.1:{port}"]).args(checks).arg("--");
    let output = command.arg(own.get_program()).args(listen).output().unwrap();
    let table = stdout(&output);
    assert!(table.contains("transport-split              not offered"), "{table}");
    assert!(table.contains("2 held, 0 broken, 1 not offered"), "{table}");
}

#[test]
fn host_that_cannot_be_started_has_a_status_of_its_own() {
    let output = conform().args(["--only", "turn", "--", "/no/such/host"]).output().unwrap();
    assert_eq!(output.status.code(), Some(21), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the host cannot be started: `/no/such/host`"), "{said}");
}

#[test]
fn hosts_end_with_all_that_they_have_started() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("process");
    let script = format!("setsid sleep 1000 & echo $! > {}; exec \"$@\"", file.display());
    let mut command = conform();
    command.args(["--only", "rpc-ids", "--", "/bin/sh", "-c", &script, "sh"]);
    let output = command.arg(program().get_program()).arg("--ephemeral").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let process = std::fs::read_to_string(&file).unwrap();
    assert!(stat(process.trim().parse().unwrap()).is_none(), "the process {process} is left");
}

#[test]
fn signal_ends_the_hosts_and_leaves_no_folder() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let (file, temporary) = (folder.path().join("process"), folder.path().join("temporary"));
        std::fs::create_dir(&temporary).unwrap();
        let script = format!("echo $$ > {0}.new && mv {0}.new {0}; exec sleep 1000", file.display());
        let mut command = conform();
        command.args(["--only", "rpc-ids", "--", "/bin/sh", "-c", &script]).env("TMPDIR", &temporary);
        let judge = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the host runs", || file.exists());
        let kept = || std::fs::read_dir(&temporary).unwrap().count();
        assert_eq!(kept(), 1);
        send(signal, judge.id());
        let output = judge.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("error: stopped by SIG"), "{output:?}");
        assert_eq!(kept(), 0, "a folder is left");
        let process = std::fs::read_to_string(&file).unwrap();
        assert!(stat(process.trim().parse().unwrap()).is_none(), "the process {process} is left");
    }
}

#[test]
fn unknown_check_is_refused_with_the_names_of_all() {
    let output = conform().args(["--only", "none"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("there is no check `none`; there are: transport-split, "), "{said}");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(conform().args(["--version", "0.5.0"]).output().unwrap().status.code(), Some(2));
}

/// A host that says nothing, one that ends at once, and one that never stops talking.
#[test]
fn silent_short_lived_and_endless_hosts_hold_nothing_up() {
    for (host, why) in [
        ("exec sleep 1000", "the host has not sent an answer to the request 1 in time"),
        ("exit 0", "the host has ended"),
        ("exec yes '{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{\"channel\":\"x\"}}'", "the host has "),
    ] {
        let mut command = conform_within(2);
        command.args(["--only", "rpc-ids", "--", "/bin/sh", "-c", host]);
        let output = command.output().unwrap();
        let table = stdout(&output);
        assert!(table.contains(&format!("broken: {why}")), "{host}: {table}");
        assert_eq!(output.status.code(), Some(22), "{table}");
    }
}

#[test]
fn report_that_cannot_be_written_is_a_failure() {
    for form in [&["--json"][..], &[]] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let output = conform().args(["--only", "initialize"]).args(form).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("stdout cannot be written: No space left"), "{said}");
    }
}
