//! State folders on bad days, seen by who starts the real program.
//!
//! Owns: what the program says and leaves alone when a store is gone, a folder has another purpose
//! or an odd name, or hardly any file may be opened; and what `sessions` says of damage.
//! Never: looks at rows; the tests of the store do.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{json, Value};
use tempfile::TempDir;

use crate::support::{program, shell, sidecar_on, Process, NO_HOME};

const SESSION: &str = "ahp-session:/s";

/// A host on this folder that makes a session with a turn and ends.
fn use_folder(command: Command) {
    let mut host = Process::spawn(command);
    let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
    ask(&mut host, "initialize", hello);
    ask(&mut host, "createSession", json!({ "channel": SESSION }));
    host.end();
    host.rest();
    assert_eq!(host.wait().code(), Some(0));
}

fn ask(host: &mut Process, method: &str, params: Value) -> Value {
    host.say(&json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params }).to_string());
    host.until(|message| message["id"] == method).pop().unwrap()
}

fn run(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// The program leaves with this status and one line on stderr, which is returned.
fn refused(command: Command, status: i32) -> String {
    let output = run(command);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

fn sessions(verb: &str, folder: &Path) -> Command {
    let mut command = program();
    command.args(["sessions", verb, "--state-dir"]).arg(folder);
    command
}

#[test]
fn missing_or_empty_store_is_refused_and_left_unchanged() {
    for cut in [false, true] {
        // A version before this one left no mark.
        for marked in [true, false] {
            let outer = TempDir::new().unwrap();
            let folder = outer.path().join("state");
            use_folder(sidecar_on(&folder));
            let database = folder.join("sessions.sqlite");
            if cut {
                fs::write(&database, "").unwrap();
            } else {
                fs::remove_file(&database).unwrap();
            }
            if !marked {
                fs::remove_file(folder.join("sessions.made")).unwrap();
            }
            if marked || cut {
                for command in [sidecar_on(&folder), sessions("purge", &folder), sessions("list", &folder)] {
                    let stderr = refused(command, 3);
                    assert!(stderr.contains("sessions.sqlite"), "{stderr}");
                }
                assert_eq!(fs::read(&database).ok(), cut.then(Vec::new), "it was not left alone");
            }
            fs::remove_dir_all(&folder).unwrap();
            use_folder(sidecar_on(&folder));
        }
    }
}

#[test]
fn folder_with_another_purpose_is_refused_and_not_changed() {
    let outer = TempDir::new().unwrap();
    let folder = outer.path().join("shared");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), "somebody's").unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o1777)).unwrap();
    let stderr = refused(sidecar_on(&folder), 3);
    assert!(stderr.contains("for something else") && stderr.contains("--ephemeral"), "{stderr}");
    refused(sessions("list", &folder), 3);
    refused(sessions("purge", &folder), 3);
    assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o7777, 0o1777);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    // A folder of ours that was opened is not closed by who only looks into it.
    let ours = outer.path().join("ours");
    use_folder(sidecar_on(&ours));
    fs::set_permissions(&ours, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(run(sessions("list", &ours)).status.code(), Some(0));
    assert_eq!(fs::metadata(&ours).unwrap().mode() & 0o777, 0o755);
    use_folder(sidecar_on(&ours));
    assert_eq!(fs::metadata(&ours).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn state_folder_name_is_always_a_path_and_never_a_uri() {
    let outer = TempDir::new().unwrap();
    for name in ["file:x", "file:x?mode=memory", ":memory:", "a b%20c#d"] {
        let mut command = sidecar_on(Path::new(name));
        command.current_dir(outer.path());
        use_folder(command);
        let folder = outer.path().join(name);
        assert!(folder.join("sessions.sqlite").metadata().unwrap().len() > 0, "{name}");
        let listed = run(sessions("list", &folder));
        assert!(listed.stdout.starts_with(SESSION.as_bytes()), "{name}: {listed:?}");
    }
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 4, "something was made beside the folders");
}

#[test]
fn too_low_descriptor_limit_is_reported() {
    let outer = TempDir::new().unwrap();
    for limit in (5..=40).step_by(5).chain([7, 8, 9]) {
        let script = format!(r#"ulimit -n {limit}; exec "$@""#);
        for command in [sidecar_on(&outer.path().join("new")), crate::support::sidecar()] {
            let stderr = refused(shell(&script, &command), 1);
            assert!(stderr.contains("ulimit -n"), "{limit}: {stderr}");
        }
    }
    assert!(!outer.path().join("new").exists());
}

#[test]
fn too_low_thread_limit_is_reported() {
    // User without other processes, whose threads would count too, also those of another run of the
    // tests. Only root can run as another user.
    let user = 1_000_000 + std::process::id();
    let is_root = rustix::process::geteuid().is_root();
    let outer = TempDir::new().unwrap();
    let program = outer.path().join("program");
    crate::support::copy_program(&program);
    fs::set_permissions(outer.path(), Permissions::from_mode(0o755)).unwrap();
    if is_root {
        std::os::unix::fs::chown(outer.path(), Some(user), None).unwrap();
    }
    let (mut refusals, mut enough) = (0, false);
    for limit in 1..=12 {
        for arguments in [&["--ephemeral"][..], &["--exclusive", "--state-dir", "state"]] {
            let mut host = Command::new(&program);
            host.args(arguments).env("HOME", NO_HOME);
            // Shells do not agree on its name.
            let script = format!(r#"ulimit -u {limit} 2>/dev/null || ulimit -p {limit} || exit; exec "$@""#);
            let mut command = shell(&script, &host);
            command.current_dir(outer.path());
            if is_root {
                command.uid(user).gid(user);
            }
            let output = run(command);
            let stderr = String::from_utf8(output.stderr).unwrap();
            enough = output.status.success();
            if !enough {
                // The store's own thread is said to be the trouble of the state folder.
                assert!(matches!(output.status.code(), Some(1 | 3)), "{limit}: {} {stderr}", output.status);
                assert!(stderr.contains("ulimit -u") && stderr.lines().count() == 1, "{limit}: {stderr}");
                refusals += 1;
            }
        }
    }
    assert!(refusals > 2 && (enough || !is_root), "{refusals} refusals");
}

#[test]
fn damaged_chat_is_listed_as_damaged() {
    let outer = TempDir::new().unwrap();
    let folder = outer.path().join("state");
    for damage in ["UPDATE chats SET body = x'00'", "DELETE FROM chats", "UPDATE chats SET turns = 3"] {
        use_folder(sidecar_on(&folder));
        let list = || String::from_utf8(run(sessions("list", &folder)).stdout).unwrap();
        assert_eq!(list().split('\t').nth(3), Some("0"), "{}", list());
        let database = rusqlite::Connection::open(folder.join("sessions.sqlite")).unwrap();
        database.execute_batch(damage).unwrap();
        drop(database);
        assert_eq!(list().split('\t').nth(3), Some("damaged"), "{damage}: {}", list());
        fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn channels_of_a_damaged_session_are_unavailable_and_their_uris_are_taken() {
    let outer = TempDir::new().unwrap();
    let folder = outer.path().join("state");
    use_folder(sidecar_on(&folder));
    let listed = String::from_utf8(run(sessions("list", &folder)).stdout).unwrap();
    let session = listed.split('\t').next().unwrap();
    let database = rusqlite::Connection::open(folder.join("sessions.sqlite")).unwrap();
    database.execute_batch("UPDATE chats SET body = x'00'").unwrap();
    drop(database);
    let mut host = Process::spawn(sidecar_on(&folder));
    let mut code_of = |method: &str, params: Value| {
        host.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string());
        let answer = host.until(|message| message["id"] == 1).pop().unwrap();
        answer["error"]["code"].clone()
    };
    let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
    assert_eq!(code_of("initialize", hello), Value::Null);
    for channel in ["", "/annotations", "/changeset/session"] {
        let channel = json!({ "channel": format!("{session}{channel}") });
        assert_eq!(code_of("subscribe", channel.clone()), -32603, "{channel}");
        assert_eq!(code_of("createSession", channel.clone()), -32003, "{channel}");
    }
}
