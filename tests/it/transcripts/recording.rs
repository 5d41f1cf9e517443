//! `record`: every byte passes, and what was recorded replays.
//!
//! Owns: conversations through the command, with copies of the bytes on both sides of it.
//! Never: judges what a host says.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{json, Value};

use super::replaying::replay;
use crate::client::hold_conversation;
use crate::process::wait_until;
use crate::support::{program, Process};

/// A shell in this folder, in which `$1` is the program, and `$2` and so on are these.
fn shell(folder: &Path, script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "sh"]).arg(program().get_program()).args(arguments).current_dir(folder);
    command.env_clear().env("HOME", "/dev/null").env("PATH", "/usr/bin:/bin");
    command
}

/// Runs `record` into this file with a shell script as the host, and says this to it.
fn record(file: &Path, host: &str, said: &[u8], arguments: &[&str]) -> Output {
    let mut command = program();
    command.arg("record").arg(file).args(arguments).args(["--", "/bin/sh", "-c", host]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The host may end without reading.
    child.stdin.take().unwrap().write_all(said).ok();
    child.wait_with_output().unwrap()
}

fn assert_same(replayed: &Output) {
    let printed = String::from_utf8_lossy(&replayed.stdout);
    assert!(replayed.status.success() && printed.ends_with(": same\n"), "{printed}{replayed:?}");
}

#[tokio::test]
async fn recorded_conversation_passes_byte_by_byte_and_replays() {
    let folder = tempfile::tempdir().unwrap();
    // Copies of what comes and goes on both sides.
    let script = "tee client.in | \"$1\" record a.txt -- sh -c 'tee host.in | \"$1\" --ephemeral --deterministic | tee host.out' sh \"$1\" \
                  | tee client.out";
    hold_conversation(shell(folder.path(), script, &[])).await;
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    assert!(read("client.in") == read("host.in") && read("client.out") == read("host.out"));
    assert!(read("client.out").len() > 1000);

    let path = folder.path().join("a.txt");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"${time}\"") && text.ends_with("@ end\n@ exit 0\n"), "{text}");
    assert_same(&replay(&[&path], &[]).output().unwrap());
    let mut anew = replay(&[&path], &["--"]);
    anew.arg(program().get_program()).args(["--ephemeral", "--deterministic"]);
    assert_same(&anew.output().unwrap());
}

#[tokio::test]
async fn recorded_log_replays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    hold_conversation(shell(
        folder.path(),
        "exec \"$1\" record --jsonl a.jsonl -- \"$1\" --ephemeral --deterministic",
        &[],
    ))
    .await;
    let text = fs::read_to_string(&path).unwrap();
    for line in text.lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        let log = &message["_ahpLog"];
        assert!(message["jsonrpc"] == "2.0" && log["ts"].as_str().unwrap().ends_with('Z'), "{line}");
        assert_eq!(
            log["dir"],
            if message
                .get("method")
                .is_some_and(|it| it != "action" && !it.as_str().unwrap().starts_with("root/"))
            {
                "c2s"
            } else {
                "s2c"
            },
            "{line}"
        );
    }
    assert_same(&replay(&[&path], &[]).output().unwrap());

    fs::write(&path, text.replacen("\"script\"", "\"other\"", 1)).unwrap();
    let replayed = replay(&[&path], &[]).output().unwrap();
    let report = String::from_utf8(replayed.stdout).unwrap();
    assert_eq!(replayed.status.code(), Some(20));
    let number = text.lines().position(|line| line.contains("\"script\"")).unwrap() + 1;
    assert!(
        report.contains(&format!("  line {number}: ")) && report.contains("expected \"other\""),
        "{report}"
    );
    let blessed = replay(&[&path], &["--bless"]).output().unwrap();
    assert_eq!(blessed.status.code(), Some(20));
    assert!(String::from_utf8(blessed.stdout).unwrap().contains("a log is not rewritten"));
}

#[test]
fn junk_of_both_sides_passes_and_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let said = b"\xff\xfe\n\nno end";
    let recorded = record(&path, "cat; printf 'more\\377'; exit 7", said, &[]);
    assert_eq!(recorded.stdout, [&said[..], b"more\xff"].concat());
    assert_eq!(recorded.status.code(), Some(7), "the status of the host");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("@ say-raw \\xff\\xfe\\n\n@ say-raw \\n\n"), "{text}");
    assert!(text.contains("@ say-raw no end\n@ end\n"), "{text}");
    assert!(text.contains("< no endmore\u{fffd}\n") && text.ends_with("@ exit 7\n"), "{text}");
    let mut again = replay(&[&path], &["--", "/bin/sh", "-c"]);
    assert_same(&again.arg("cat; printf 'more\\377'; exit 7").output().unwrap());
}

#[test]
fn each_byte_passes_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program();
    command.arg("record").arg(folder.path().join("a.txt")).args(["--", "/bin/sh", "-c"]);
    // A byte comes back before a line is complete.
    command.arg("dd bs=1 count=1 2>/dev/null; echo; cat");
    let mut process = Process::spawn(command);
    process.say_bytes(b"x");
    assert_eq!(process.next_line().as_deref(), Some("x"));
    process.say_bytes(b"y\n");
    assert_eq!(process.next_line().as_deref(), Some("y"));
    // What has passed is written down without another line, or the end.
    let is_written = || {
        let text = fs::read_to_string(folder.path().join("a.txt")).unwrap();
        text.ends_with("\n< x\n\n> xy\n< y\n")
    };
    wait_until("the lines are written down", is_written);
    process.end();
    assert!(process.wait().success());
}

#[test]
fn client_that_stops_reading_ends_a_host_as_without_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let mut command = program();
    command.arg("record").arg(&path).arg("--").arg(program().get_program()).arg("--ephemeral");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    drop(child.stdout.take());
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    stdin.write_all(format!("{hello}\n").as_bytes()).unwrap();
    // Stdin stays open: the host ends because nobody reads.
    assert!(child.wait().unwrap().success());
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(&format!("> {hello}\n")) && text.ends_with("@ end\n@ exit 0\n"), "{text}");
}

#[test]
fn host_that_dies_ends_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let recorded =
        record(&path, "read line; echo '{\"id\":1}'; kill -9 $$", b"{\"id\":1,\"method\":\"x\"}\n", &[]);
    assert_eq!(recorded.status.code(), Some(128));
    assert_eq!(recorded.stdout, b"{\"id\":1}\n");
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains("\n< {\"id\":1}\n") && text.ends_with("@ exit -1\n"), "{text}");
}

#[test]
fn recording_that_cannot_begin_leaves_everything_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let mut command = program();
    let missing = command.arg("record").arg(&path).args(["--", "/no/such/host"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(21));
    assert!(!path.exists(), "nothing was recorded");

    fs::write(&path, "mine").unwrap();
    let existing = record(&path, "echo started >&2", b"", &[]);
    let said = String::from_utf8(existing.stderr).unwrap();
    assert!(existing.status.code() == Some(1) && said.contains("exists"), "{said}");
    assert!(!said.contains("started") && fs::read_to_string(&path).unwrap() == "mine");
}

#[test]
fn token_is_in_no_recording() {
    let folder = tempfile::tempdir().unwrap();
    let asked = json!({ "id": 1, "method": "authenticate", "params": { "token": "s3cret-7" } }).to_string();
    let host =
        "head -c 60 >/dev/null; echo '{\"id\":1,\"error\":{\"message\":\"no xs3cret-7\"}}'; echo 'no s3cret-7'; cat >/dev/null";
    let said = [
        format!("{asked}\n"),
        format!("{asked}\r\n"),
        format!("[{asked}]\n"),
        asked.clone(),
        format!("{asked}\n\"s3cret-7\"\njunk s3cret-7\n"),
    ];
    for (at, said) in said.iter().enumerate() {
        for arguments in [&[][..], &["--jsonl"]] {
            let path = folder.path().join(format!("{at}{}", arguments.len()));
            let recorded = record(&path, host, said.as_bytes(), arguments);
            assert!(recorded.status.success());
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains("authenticate") && !text.contains("s3cret"), "{said}: {text}");
            let mut again = replay(&[&path], &["--set", "token-1=s3cret-7"]);
            assert_same(&again.args(["--", "/bin/sh", "-c", host]).output().unwrap());
        }
    }
    // A part of a token is not shown, either.
    let path = folder.path().join("part");
    record(&path, "cat >/dev/null", &asked.as_bytes()[..asked.len() - 5], &[]);
    assert!(!fs::read_to_string(path).unwrap().contains("s3c"));
}

#[test]
fn junk_that_looks_like_a_name_replays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let host = "cat; echo 'cost ${id-1}'; echo '[\"${time}\"]'";
    let recorded = record(&path, host, b"say ${id-2}\r\n\xff${id-3}\n", &[]);
    assert!(recorded.status.success());
    let mut again = replay(&[&path], &["--", "/bin/sh", "-c"]);
    assert_same(&again.arg(host).output().unwrap());
    let mut other = replay(&[&path], &["--", "/bin/sh", "-c"]);
    let other = other.arg(host.replace("id-1", "id-9")).output().unwrap();
    assert_eq!(other.status.code(), Some(20));
}

#[test]
fn listening_host_is_recorded_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("s").display());
    let mut command = program();
    command.args(["serve", "--ephemeral", "--listen", &socket]).stderr(Stdio::null());
    let _host = Process::spawn(command);
    let script = "until [ -S s ]; do :; done; echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}' | \"$1\" record a.txt -- \"$2\"";
    let recorded = shell(folder.path(), script, &[&socket]).output().unwrap();
    assert_eq!(
        String::from_utf8(recorded.stdout).unwrap(),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}\n"
    );
    let path = folder.path().join("a.txt");
    assert_same(&replay(&[&path], &["--", &socket]).output().unwrap());
}

#[test]
fn recording_whose_stdout_is_full_fails_and_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.txt");
    let mut command = program();
    command.arg("record").arg(&path).args(["--", "/bin/sh", "-c", "echo '{\"id\":1}'"]);
    let full = fs::File::create("/dev/full").unwrap();
    let output = command.stdin(Stdio::null()).stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("stdout cannot be written: No space left").count(), 1, "{said}");
    assert!(fs::read_to_string(&path).unwrap().contains("{\"id\":1}"));
}
