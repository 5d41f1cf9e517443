//! Files that clients change: what a transcript cannot show.
//!
//! Owns: the host's own files, links and folders that come and go, order, limits, and a process
//! that is killed.
//! Never: repeats what the transcripts show.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{json, Value};
use tempfile::TempDir;

use crate::support::{Process, HUNG};

const WRITE: &str = "resourceWrite";

fn uri(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn request(id: u64, method: &str, params: &Value) -> String {
    let mut params = params.clone();
    params["channel"] = "ahp-root://".into();
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

fn ask(process: &mut Process, method: &str, params: &Value) -> Value {
    process.say(&request(9, method, params));
    loop {
        let answer = process.next();
        if answer["id"] == 9 {
            return answer;
        }
    }
}

fn opened(mut process: Process) -> Process {
    let hello = json!({ "clientId": "me", "protocolVersions": ["1.0.0"] });
    assert!(ask(&mut process, "initialize", &hello)["result"].is_object());
    process
}

/// Has a session work in a folder.
fn work_in(process: &mut Process, session: &str, folder: &Path) {
    let params = json!({ "channel": session, "workingDirectories": [uri(folder)] });
    let line = json!({ "jsonrpc": "2.0", "id": 8, "method": "createSession", "params": params });
    process.say(&line.to_string());
    while process.next()["id"] != 8 {}
}

fn text(path: &Path, data: &str) -> Value {
    json!({ "uri": uri(path), "data": data, "encoding": "utf-8" })
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or(0)
}

fn folder() -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

#[test]
fn write_root_grants_a_folder_except_the_state_of_the_host() {
    let (_folder, top) = folder();
    let (state, config, token) = (top.join("state"), top.join("config.toml"), top.join("token"));
    fs::write(&config, "").unwrap();
    fs::write(&token, "x".repeat(64)).unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let socket = top.join("socket");
    let listen = format!("unix:{}", socket.display());
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let arguments = [
        "--write-root",
        &name(&top),
        "--config",
        &name(&config),
        "--listen",
        &listen,
        "--token-file",
        &name(&token),
    ];
    let mut process = opened(Process::start_on(&state, &arguments));
    assert_eq!(code(&ask(&mut process, WRITE, &text(&top.join("file"), "x"))), 0);
    for own in [&config, &token, &socket, &state.join("new"), &state] {
        let answer = ask(&mut process, WRITE, &text(own, "x"));
        assert_eq!((code(&answer), &answer["error"]["data"]), (-32009, &json!({})), "{own:?} {answer}");
        let answer = ask(&mut process, "resourceDelete", &json!({ "uri": uri(own), "recursive": true }));
        assert_eq!(code(&answer), -32009, "{own:?} {answer}");
        let moved = json!({ "source": uri(&top.join("file")), "destination": uri(own) });
        assert_eq!(code(&ask(&mut process, "resourceMove", &moved)), -32009, "{own:?}");
    }
    assert_eq!(fs::read_to_string(&config).unwrap(), "");
    assert!(socket.exists() && state.exists());
    process.end();
    process.rest();
}

#[test]
fn files_that_the_configuration_names_are_kept_from_clients() {
    let (_folder, top) = folder();
    let (config, first, late) = (top.join("config.toml"), top.join("first.json"), top.join("late.json"));
    for servers in [&first, &late] {
        fs::write(servers, "{ \"mcpServers\": {} }").unwrap();
    }
    fs::write(&config, "mcp_files = ['first.json']").unwrap();
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let arguments = ["--write-root", &name(&top), "--config", &name(&config)];
    let mut process = opened(Process::start_on(&top.join("state"), &arguments));
    let answer = ask(&mut process, WRITE, &text(&first, "x"));
    assert_eq!((code(&answer), &answer["error"]["data"]), (-32009, &json!({})), "{answer}");
    let watch = ask(&mut process, "createResourceWatch", &json!({ "uri": uri(&first) }));
    assert_eq!(code(&watch), 0, "{watch}");
    let mut may_change = |path: &Path| {
        code(&ask(&mut process, "resourceRequest", &json!({ "uri": uri(path), "write": true })))
    };
    assert_eq!((may_change(&late), may_change(&first)), (0, -32009));
    fs::write(&config, "mcp_files = ['late.json']").unwrap();
    let deadline = Instant::now() + HUNG;
    while may_change(&late) == 0 {
        assert!(Instant::now() < deadline, "the changed configuration is not applied");
        thread::sleep(Duration::from_millis(50));
    }
    process.end();
    process.rest();
}

#[test]
fn write_access_ends_with_its_session_and_does_not_follow_links() {
    let (_folder, top) = folder();
    let (work, outside) = (top.join("work"), top.join("outside"));
    fs::create_dir(&work).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "outside").unwrap();
    let mut process = opened(Process::start(&[]));
    assert_eq!(code(&ask(&mut process, WRITE, &text(&work.join("file"), "x"))), -32009);
    work_in(&mut process, "ahp-session:/s", &work);
    assert_eq!(code(&ask(&mut process, WRITE, &text(&work.join("file"), "x"))), 0);
    symlink(&outside, work.join("link")).unwrap();
    for path in ["link/file", "link/new", "../outside/file"] {
        let answer = ask(&mut process, WRITE, &text(&work.join(path), "x"));
        assert_eq!(code(&answer), -32009, "{answer}");
        assert_eq!(answer["error"]["data"]["request"]["write"], true);
    }
    fs::rename(&work, top.join("gone")).unwrap();
    symlink(&outside, &work).unwrap();
    assert_eq!(code(&ask(&mut process, WRITE, &text(&work.join("file"), "x"))), -32009);
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "outside");
    fs::remove_file(&work).unwrap();
    fs::rename(top.join("gone"), &work).unwrap();
    assert_eq!(code(&ask(&mut process, WRITE, &text(&work.join("file"), "y"))), 0);
    process
        .say(r#"{"jsonrpc":"2.0","id":7,"method":"disposeSession","params":{"channel":"ahp-session:/s"}}"#);
    while process.next()["id"] != 7 {}
    assert_eq!(code(&ask(&mut process, WRITE, &text(&work.join("file"), "z"))), -32009);
    assert_eq!(fs::read_to_string(work.join("file")).unwrap(), "y");
}

#[test]
fn appends_to_one_file_are_done_in_request_order() {
    let (_folder, top) = folder();
    let mut process = opened(Process::start(&[]));
    work_in(&mut process, "ahp-session:/s", &top);
    let mut expected = String::new();
    for number in 0..200 {
        let mut params = text(&top.join("file"), &format!("{number} "));
        params["mode"] = "append".into();
        process.say(&request(100 + number, WRITE, &params));
        expected.push_str(&format!("{number} "));
    }
    // What was begun is finished and answered, although nothing more is said.
    process.end();
    let answers = process.rest();
    let answered: Vec<u64> = answers.iter().filter_map(|answer| answer["id"].as_u64()).collect();
    assert_eq!(answered, (100..300).collect::<Vec<_>>());
    assert!(answers.iter().all(|answer| answer["error"].is_null()), "{answers:?}");
    assert_eq!(fs::read_to_string(top.join("file")).unwrap(), expected);
    assert_eq!(process.wait().code(), Some(0));
}

/// Sequence of an editor that saves a file: it writes a temporary file and renames it.
#[test]
fn mixed_operations_on_the_same_files_are_done_in_request_order() {
    let (_folder, top) = folder();
    let mut process = opened(Process::start(&[]));
    work_in(&mut process, "ahp-session:/s", &top);
    let large = "x".repeat(3 << 20);
    let between =
        |from: &str, to: &str| json!({ "source": uri(&top.join(from)), "destination": uri(&top.join(to)) });
    for round in 0..20 {
        let [file, beside] = ["file", "beside"].map(|name| format!("{name}-{round}"));
        let said = [
            (WRITE, text(&top.join(&beside), &large)),
            ("resourceMove", between(&beside, &file)),
            (WRITE, text(&top.join(&beside), "y")),
            ("resourceCopy", between(&file, &format!("copy-{round}"))),
            ("resourceDelete", json!({ "uri": uri(&top.join(&beside)) })),
            ("resourceRead", json!({ "uri": uri(&top.join(&file)) })),
            ("resourceDelete", json!({ "uri": uri(&top.join(&file)) })),
        ];
        for (number, (method, params)) in said.iter().enumerate() {
            process.say(&request(100 + number as u64, method, params));
        }
        for _ in &said {
            let answer = process.next();
            assert!(answer["error"].is_null(), "{answer}");
        }
        assert!(!top.join(&file).exists() && !top.join(&beside).exists());
        assert_eq!(fs::metadata(top.join(format!("copy-{round}"))).unwrap().len(), large.len() as u64);
    }
}

#[test]
fn resource_write_is_limited_to_16_mib() {
    let (_folder, top) = folder();
    let path = top.join("file");
    let mut process = opened(Process::start(&[]));
    work_in(&mut process, "ahp-session:/s", &top);
    let most = 16 << 20;
    for (bytes, expected) in [(most, 0), (most + 1, -32602)] {
        assert_eq!(code(&ask(&mut process, WRITE, &text(&path, &"x".repeat(bytes)))), expected);
        assert_eq!(fs::metadata(&path).unwrap().len(), most as u64);
    }
    let encoded = json!({ "uri": uri(&path), "data": "A".repeat((most + 3) / 3 * 4), "encoding": "base64" });
    assert_eq!(code(&ask(&mut process, WRITE, &encoded)), -32602);
}

/// Wherever the process is killed, a file is one that was asked for, whole.
#[test]
fn killed_host_leaves_a_file_with_its_old_or_new_content() {
    const BYTES: usize = 1 << 20;
    let (_folder, top) = folder();
    let path = top.join("file");
    fs::write(&path, "-".repeat(BYTES)).unwrap();
    for round in 0..12 {
        let mut process = opened(Process::start(&[]));
        work_in(&mut process, "ahp-session:/s", &top);
        for (number, letter) in ('a'..'m').enumerate() {
            let whole = text(&path, &letter.to_string().repeat(BYTES));
            process.say(&request(100 + number as u64, WRITE, &whole));
        }
        let mut last = None;
        for _ in 0..round {
            let answer = process.next();
            assert_eq!(code(&answer), 0, "{answer}");
            last = answer["id"].as_u64();
        }
        process.child.kill().unwrap();
        process.wait();
        let found = fs::read_to_string(&path).unwrap();
        let letter = found.chars().next().unwrap();
        assert!(found.len() == BYTES && found.chars().all(|it| it == letter), "round {round}: {letter}…");
        if let Some(last) = last {
            // What was answered is there, or what was asked for behind it.
            assert!(u64::from(u32::from(letter) - u32::from('a')) >= last - 100, "{letter} after {last}");
        }
    }
}

/// The names in a folder that say that something is not finished.
fn unfinished_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".tmp")).collect()
}

/// Wherever the process is killed, a folder is copied or it is not; what it has left is removed by
/// the next one.
#[test]
fn killed_host_leaves_no_partial_copy_of_a_folder() {
    let (_folder, top) = folder();
    let (_state, state) = folder();
    let (from, work) = (top.join("from"), top.join("work"));
    fs::create_dir(&work).unwrap();
    for number in 0..40 {
        let folder = from.join(format!("{number}"));
        fs::create_dir_all(&folder).unwrap();
        (0..50).for_each(|file| fs::write(folder.join(format!("{file}")), "x".repeat(4096)).unwrap());
    }
    let mut left = 0;
    for round in 0..6 {
        let mut process = opened(Process::start_on(&state, &[]));
        work_in(&mut process, &format!("ahp-session:/{round}"), &work);
        let to = work.join(format!("to-{round}"));
        process.say(&request(9, "resourceCopy", &json!({ "source": uri(&from), "destination": uri(&to) })));
        // It is killed when it has begun, or when it has ended.
        while unfinished_in(&work).is_empty() && !to.exists() {
            std::thread::yield_now();
        }
        process.child.kill().unwrap();
        process.wait();
        left += unfinished_in(&work).len();
        if to.exists() {
            assert_eq!(fs::read_dir(&to).unwrap().count(), 40, "round {round}");
        }
        let begun = std::time::Instant::now();
        let mut next = opened(Process::start_on(&state, &[]));
        while !unfinished_in(&work).is_empty() {
            assert!(begun.elapsed() < HUNG, "left: {:?}", unfinished_in(&work));
            assert!(ask(&mut next, "ping", &json!({}))["result"].is_null());
        }
        next.end();
        next.rest();
    }
    assert!(left > 0, "the process was never killed in the middle");
    assert_eq!(fs::read_dir(&from).unwrap().count(), 40);
}

/// The host goes on with the folder that it has opened, whatever that is called by now.
#[test]
fn state_folder_stays_protected_after_a_rename() {
    let (_folder, top) = folder();
    let (state, moved) = (top.join("state"), top.join("work/moved"));
    fs::create_dir(top.join("work")).unwrap();
    let mut process = opened(Process::start_on(&state, &["--write-root", top.to_str().unwrap()]));
    let database = "sessions.sqlite";
    fs::rename(&state, &moved).unwrap();
    let before = fs::read_dir(&moved).unwrap().count();
    fs::hard_link(moved.join(database), top.join("work/linked")).unwrap();
    let refused = |process: &mut Process, method: &str, params: Value| {
        let answer = ask(process, method, &params);
        assert_eq!((code(&answer), &answer["error"]["data"]), (-32009, &json!({})), "{method}: {answer}");
    };
    for path in [moved.join(database), moved.join("new"), moved.clone()] {
        refused(&mut process, WRITE, text(&path, "x"));
        refused(&mut process, "resourceDelete", json!({ "uri": uri(&path), "recursive": true }));
        let there = top.join("file");
        fs::write(&there, "x").unwrap();
        refused(&mut process, "resourceMove", json!({ "source": uri(&there), "destination": uri(&path) }));
        refused(&mut process, "resourceCopy", json!({ "source": uri(&there), "destination": uri(&path) }));
    }
    for path in [moved.join(database), moved.clone()] {
        let to = uri(&top.join("away"));
        refused(&mut process, "resourceMove", json!({ "source": uri(&path), "destination": to }));
    }
    refused(&mut process, "resourceMkdir", json!({ "uri": uri(&moved.join("new/deep")) }));
    // What holds it is not taken away either.
    refused(&mut process, "resourceDelete", json!({ "uri": uri(&top.join("work")), "recursive": true }));
    // Another name of one of its files becomes another file.
    let bytes = fs::metadata(moved.join(database)).unwrap().len();
    assert_eq!(code(&ask(&mut process, WRITE, &text(&top.join("work/linked"), "x"))), 0);
    assert!(fs::metadata(moved.join(database)).unwrap().len() >= bytes && bytes > 1);
    assert_eq!(fs::read_dir(&moved).unwrap().count(), before);
    assert_eq!(code(&ask(&mut process, WRITE, &text(&top.join("work/other"), "x"))), 0);
    process.end();
    process.rest();
}
