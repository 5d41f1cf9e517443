//! Default location of the state folder.
//!
//! Owns: the default state folder of the real program: where it is, who may look into it, what is
//! found there later, and what is said when there is none.
//! Never: reaches into the home of whoever runs it; each test has a home of its own.
// Elsewhere the folder has another name.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{json, Value};
use tempfile::TempDir;

use crate::support::{program, shell, sidecar, Process, NO_HOME};

const SESSION: &str = "ahp-session:/s";

/// The program with this environment alone.
fn with(environment: &[(&str, &Path)]) -> Command {
    let mut command = program();
    command.env_remove("HOME").envs(environment.iter().copied());
    command
}

/// Asks, and returns the answer.
fn ask(process: &mut Process, id: u64, method: &str, params: Value) -> Value {
    process.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
    let mut said = process.until(|message| message["id"] == id);
    said.pop().map(|mut answer| answer["result"].take()).unwrap_or_default()
}

/// A host that has shaken hands.
fn serve(command: Command) -> Process {
    let mut process = Process::spawn(command);
    let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
    ask(&mut process, 1, "initialize", hello);
    process
}

fn create(process: &mut Process) {
    ask(process, 2, "createSession", json!({ "channel": SESSION }));
}

fn listed(process: &mut Process) -> Vec<String> {
    let list = ask(process, 3, "listSessions", json!({ "channel": "ahp-root://" }));
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["resource"].as_str().unwrap().to_owned()).collect()
}

fn end(mut process: Process) {
    process.end();
    process.rest();
    assert_eq!(process.wait().code(), Some(0));
}

/// The program does not start: status 3, nothing on stdout, and one line on stderr, which is
/// returned.
fn refused(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("--state-dir") && stderr.contains("--ephemeral"), "no way out is told: {stderr}");
    stderr
}

/// Every folder and file below a folder.
fn entries_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(entries_below(&path));
        }
        found.push(path);
    }
    found
}

#[test]
fn session_outlives_the_process_without_any_flag() {
    let outer = TempDir::new().unwrap();
    let (home, state) = (outer.path().join("home"), outer.path().join("state/of/programs"));
    let in_home = home.join(".local/state/ahp-sidecar");
    for (environment, folder) in [
        (vec![("HOME", home.as_path())], &in_home),
        (vec![("XDG_STATE_HOME", &state)], &state.join("ahp-sidecar")),
        // The one that is meant for it goes first, and one that is no path does not count.
        (vec![("HOME", Path::new(NO_HOME)), ("XDG_STATE_HOME", &state)], &state.join("ahp-sidecar")),
        (vec![("HOME", &home), ("XDG_STATE_HOME", Path::new("state"))], &in_home),
    ] {
        if !folder.exists() {
            let mut first = serve(with(&environment));
            create(&mut first);
            first.child.kill().unwrap();
            first.wait();
        }
        let mut second = serve(with(&environment));
        assert_eq!(listed(&mut second), [SESSION], "{environment:?}");
        assert!(folder.join("sessions.sqlite").exists(), "{environment:?}");
        end(second);
        let output = with(&environment).args(["sessions", "list"]).output().unwrap();
        assert!(output.stdout.starts_with(SESSION.as_bytes()), "{environment:?}: {output:?}");
    }
    let mut top: Vec<_> =
        fs::read_dir(outer.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    top.sort();
    assert_eq!(top, ["home", "state"]);
}

#[test]
fn created_folders_and_files_are_private_whatever_the_umask() {
    for umask in ["000", "377"] {
        let outer = TempDir::new().unwrap();
        let home = outer.path().join("home");
        let mut host = serve(shell(&format!(r#"umask {umask}; exec "$@""#), &with(&[("HOME", &home)])));
        create(&mut host);
        end(host);
        let made = entries_below(outer.path());
        assert!(made.contains(&home.join(".local/state/ahp-sidecar/sessions.sqlite")), "{made:?}");
        for path in made {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, expected, "{umask}: {}", path.display());
        }
    }
}

#[test]
fn missing_home_folder_requires_a_state_dir_or_ephemeral() {
    for environment in [
        &[][..],
        &[("HOME", Path::new(""))],
        &[("HOME", Path::new("somewhere")), ("XDG_STATE_HOME", Path::new("state"))],
    ] {
        assert!(refused(with(environment)).contains("no home"), "{environment:?}");
        let mut sessions = with(environment);
        sessions.args(["sessions", "list"]);
        refused(sessions);
        let mut in_memory = with(environment);
        in_memory.arg("--ephemeral");
        end(serve(in_memory));
    }
}

#[test]
fn unwritable_home_folder_is_reported() {
    assert!(refused(program()).contains("/dev/null/.local/state/ahp-sidecar"));
}

#[test]
fn ephemeral_host_leaves_no_file() {
    let home = TempDir::new().unwrap();
    let start = || {
        let mut command = sidecar();
        command.env("HOME", home.path());
        serve(command)
    };
    let mut first = start();
    create(&mut first);
    end(first);
    assert_eq!(entries_below(home.path()), Vec::<PathBuf>::new());
    assert!(listed(&mut start()).is_empty());
}

#[test]
fn default_state_folder_is_shared_unless_a_host_is_exclusive() {
    let home = TempDir::new().unwrap();
    let alone = || {
        let mut command = with(&[("HOME", home.path())]);
        command.arg("--exclusive");
        command
    };
    let mut first = serve(with(&[("HOME", home.path())]));
    create(&mut first);
    let mut second = serve(with(&[("HOME", home.path())]));
    assert_eq!(listed(&mut second), [SESSION]);
    refused(alone());
    end(first);
    end(second);
    let mut holds = serve(alone());
    let holder = format!("process {}", holds.child.id());
    assert!(refused(with(&[("HOME", home.path())])).contains(&holder));
    assert_eq!(listed(&mut holds), [SESSION]);
}
