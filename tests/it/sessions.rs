//! `ahp-sidecar sessions`, and who may use a state folder: the real program on folders that it
//! filled itself.
//!
//! Owns: what the commands print, what survives an export, and with which exit status they end.
//! Never: looks into the database, except to damage it.
// The lints let tests panic, but not what they share.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ahp_sidecar::wire::annotations::annotations_uri;
use ahp_types::state::SessionStatus;
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::keeping::{chat_of, Client, ROOT};
use crate::support::{copy_program, is_kept_program, program, shell, sidecar_on, Process, NO_HOME};

const SESSION: &str = "ahp-session:/s";
const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246L3M";

/// A state folder that is not there yet.
struct State(TempDir);

impl State {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn serve(&self, options: &[&str]) -> Process {
        Process::start_on(&self.path(), options)
    }

    /// A host that has heard these lines and ended. Returns what it said.
    fn run_host(&self, lines: &[Value]) -> Vec<Value> {
        self.run_host_with(&[], lines)
    }

    fn run_host_with(&self, options: &[&str], lines: &[Value]) -> Vec<Value> {
        let mut process = self.serve(options);
        say_all(&mut process, lines);
        process.end();
        let said = process.rest();
        assert_eq!(process.wait().code(), Some(0), "{said:?}");
        said
    }

    /// Runs `sessions` with these arguments.
    fn sessions(&self, arguments: &[&str]) -> Output {
        let mut command = program();
        command.arg("sessions").args(arguments).arg("--state-dir").arg(self.path());
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a `sessions` command that must succeed and returns its output.
    fn printed(&self, arguments: &[&str]) -> String {
        let output = self.sessions(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
        assert_eq!(stderr, "", "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a `sessions` command that must fail with this status and returns its one-line error.
    fn refused(&self, status: i32, arguments: &[&str]) -> String {
        let output = self.sessions(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        stderr
    }

    /// The fields of each line of `sessions list`.
    fn list(&self) -> Vec<Vec<String>> {
        let lines = self.printed(&["list"]);
        lines.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }

    fn marks(&self) -> Vec<(String, String)> {
        self.list().into_iter().map(|fields| (fields[0].clone(), fields[4].clone())).collect()
    }

    fn damage(&self, sql: &str) {
        let database = self.path().join(ahp_sidecar::store::sqlite::FILE_NAME);
        rusqlite::Connection::open(database).unwrap().execute_batch(sql).unwrap();
    }
}

fn say_all(process: &mut Process, lines: &[Value]) {
    for line in lines {
        let mut line = line.clone();
        line["jsonrpc"] = "2.0".into();
        process.say(&line.to_string());
    }
}

fn hello() -> Value {
    json!({ "id": "hello", "method": "initialize", "params":
        { "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] } })
}

fn create(uri: &str) -> Value {
    json!({ "id": "create", "method": "createSession", "params": { "channel": uri } })
}

fn dispose(uri: &str) -> Value {
    json!({ "id": "dispose", "method": "disposeSession", "params": { "channel": uri } })
}

fn subscribe(uri: &str) -> Value {
    json!({ "id": "subscribe", "method": "subscribe", "params": { "channel": uri } })
}

fn turn(id: &str, text: &str) -> Value {
    let message = json!({ "text": text, "origin": { "kind": "user" } });
    let started = "2026-01-01T00:00:00.000Z";
    let action =
        json!({ "type": "chat/turnStarted", "turnId": id, "startedAt": started, "message": message });
    json!({ "method": "dispatchAction", "params": { "channel": CHAT, "clientSeq": 1, "action": action } })
}

fn result<'a>(said: &'a [Value], id: &str) -> &'a Value {
    let answer = said.iter().find(|message| message["id"] == id);
    &answer.unwrap_or_else(|| panic!("no answer to {id} in {said:?}"))["result"]
}

/// The state of the chat, as a new host tells it.
fn chat_state(state: &State) -> Value {
    result(&state.run_host(&[hello(), subscribe(CHAT)]), "subscribe")["snapshot"]["state"].clone()
}

/// A folder with one session of two turns.
fn with_two_turns() -> State {
    let state = State::new();
    state.run_host(&[hello(), create(SESSION), turn("t1", "Hello there\n/title A\ttitle\u{1b}[31m")]);
    state.run_host(&[hello(), turn("t2", "/think hm\n/tool ls {\"path\":\"/\"}\n/error it broke")]);
    state
}

#[test]
fn sessions_are_listed_shown_and_marked() {
    let state = with_two_turns();
    state.run_host(&[hello(), create("ahp-session:/other")]);
    let list = state.list();
    assert_eq!(list[0][0], "ahp-session:/other");
    let row: Vec<&str> = list[1].iter().map(String::as_str).collect();
    assert_eq!([row[0], row[1], row[3], row[4]], [SESSION, "Atitle[31m", "2", "-"]);
    assert!(row[2].parse::<jiff::Timestamp>().is_ok(), "{row:?}");
    let bytes = |row: &[String]| row[5].parse::<usize>().unwrap();
    assert!(bytes(&list[1]) > bytes(&list[0]), "{list:?}");
    let shown = state.printed(&["show", SESSION]);
    for said in
        ["> Hello there", "\nHello there\n", "[thinking: hm]", "[tool: ls ", "[error: it broke]", CHAT]
    {
        assert!(shown.contains(said), "{said:?} is not in {shown}");
    }
    assert!(!shown.contains('\u{1b}'), "it does things to the terminal");
    state.run_host(&[hello(), dispose(SESSION)]);
    assert_eq!(state.marks(), [("ahp-session:/other".into(), "-".into()), (SESSION.into(), "trash".into())]);
    assert!(state.printed(&["show", SESSION]).contains("in the trash"));
}

#[test]
fn session_is_restored_from_the_trash_unchanged() {
    let state = with_two_turns();
    let before = chat_state(&state);
    assert_eq!(before["turns"].as_array().unwrap().len(), 2);
    state.run_host(&[hello(), dispose(SESSION)]);
    state.run_host(&[hello(), create(SESSION)]);
    assert!(state.refused(1, &["restore", SESSION]).contains("an existing session uses"));
    state.run_host(&[hello(), dispose(SESSION)]);
    assert_eq!(state.list().len(), 2);
    // The newest one; the other one then cannot come back.
    state.printed(&["restore", SESSION]);
    assert_eq!(state.marks(), [(SESSION.into(), "-".into()), (SESSION.into(), "trash".into())]);
    state.refused(1, &["restore", SESSION]);
    state.run_host(&[hello(), dispose(SESSION)]);
    state.printed(&["purge", SESSION]);
    assert_eq!(state.list(), Vec::<Vec<String>>::new());

    let state = with_two_turns();
    state.run_host(&[hello(), dispose(SESSION)]);
    state.printed(&["restore", SESSION]);
    assert_eq!(chat_state(&state), before_as_of(&before, &chat_state(&state)));
    // It goes on.
    state.run_host(&[hello(), turn("t3", "more")]);
    assert_eq!(chat_state(&state)["turns"].as_array().unwrap().len(), 3);
    assert!(state.refused(1, &["restore", "ahp-session:/none"]).contains("ahp-session:/none"));
}

/// The expected state, but with the times of another run.
fn before_as_of(expected: &Value, run: &Value) -> Value {
    let mut expected = expected.clone();
    expected["modifiedAt"] = run["modifiedAt"].clone();
    for (turn, other) in
        expected["turns"].as_array_mut().unwrap().iter_mut().zip(run["turns"].as_array().unwrap())
    {
        for field in ["startedAt", "duration"] {
            turn[field] = other[field].clone();
        }
        let parts = turn["responseParts"].as_array_mut().unwrap();
        for (part, other) in parts.iter_mut().zip(other["responseParts"].as_array().unwrap()) {
            if let Some(id) = other.get("id") {
                part["id"] = id.clone();
            }
        }
    }
    expected
}

/// A session with a fork and a side chat, which is the newest of its chats.
fn with_three_chats() -> State {
    let state = with_two_turns();
    let chat = |id: &str, kind: &str, turn: &str| {
        let source = json!({ "kind": kind, "chat": CHAT, "turnId": turn });
        let first = json!({ "text": format!("said in {id}"), "origin": { "kind": "user" } });
        json!({ "id": id, "method": "createChat", "params": { "channel": SESSION,
            "chat": format!("ahp-chat:/{id}"), "source": source, "initialMessage": first } })
    };
    let said = state.run_host(&[hello(), chat("fork", "fork", "t1"), chat("aside", "sideChat", "t2")]);
    for id in ["fork", "aside"] {
        assert!(result(&said, id).is_null(), "{said:?}");
    }
    state
}

/// Returns the states of all channels of the session, without fields that differ between processes,
/// and the history that the agent of the side chat has.
fn all_states(state: &State) -> Vec<Value> {
    let channels = [SESSION, CHAT, "ahp-chat:/fork", "ahp-chat:/aside"];
    channels
        .iter()
        .map(|channel| {
            let said = state.run_host(&[hello(), subscribe(channel)]);
            result(&said, "subscribe")["snapshot"]["state"].clone()
        })
        .collect()
}

#[test]
fn every_chat_of_a_session_is_shown_exported_and_restored() {
    let state = with_three_chats();
    let before = all_states(&state);
    assert_eq!(before[2]["turns"].as_array().unwrap().len(), 2);
    assert_eq!(before[3]["turns"].as_array().unwrap().len(), 1);
    let shown = state.printed(&["show", SESSION]);
    let aside = shown.split("(ahp-chat:/aside)").nth(1).unwrap();
    assert!(aside.contains("[goes on from 2 turns of another chat]"), "{shown}");
    assert!(aside.contains("> said in aside") && !aside.contains("Hello there"), "{shown}");

    let export = state.path().with_extension("jsonl");
    fs::write(&export, state.printed(&["export", SESSION])).unwrap();
    state.run_host(&[hello(), dispose(SESSION)]);
    state.printed(&["restore", SESSION]);
    assert_eq!(all_states(&state), before);

    let other = State::new();
    other.run_host(&[hello()]);
    other.printed(&["restore", "--from", export.to_str().unwrap()]);
    assert_eq!(all_states(&other), before);
    let message = json!({ "text": "/recall", "origin": { "kind": "user" } });
    let action = json!({ "type": "chat/turnStarted", "turnId": "t9", "message": message });
    other.run_host(&[
        hello(),
        json!({ "method": "dispatchAction", "params":
        { "channel": "ahp-chat:/aside", "clientSeq": 1, "action": action } }),
    ]);
    let recalled = all_states(&other)[3]["turns"][1]["responseParts"][0]["content"].clone();
    assert!(recalled.as_str().unwrap().starts_with("Hello there\n"), "{recalled}");
}

/// Requests sent together form one step, whose records must be consistent.
#[test]
fn concurrent_changes_to_a_chat_and_its_sessions_are_stored_consistently() {
    let other = "ahp-session:/other";
    let open = |chat: &str| {
        json!({ "id": chat, "method": "createChat",
        "params": { "channel": SESSION, "chat": chat } })
    };
    let close = |chat: &str| json!({ "id": "close", "method": "disposeChat", "params": { "channel": chat } });
    let shift = |destination: Value| {
        json!({ "id": "move", "method": "moveChat",
        "params": { "channel": "ahp-chat:/a", "destination": destination } })
    };
    let to_other = || shift(json!({ "kind": "session", "session": other }));
    let chats_of = |state: &State, session: &str| -> Vec<String> {
        let said = state.run_host(&[hello(), subscribe(session)]);
        let session = &result(&said, "subscribe")["snapshot"]["state"];
        let rows = session["chats"].as_array().unwrap_or_else(|| panic!("{said:?}"));
        let uris: Vec<String> = rows.iter().map(|row| row["resource"].as_str().unwrap().to_owned()).collect();
        assert!(uris.contains(&session["defaultChat"].as_str().unwrap().to_owned()), "{session}");
        for uri in &uris {
            let said = state.run_host(&[hello(), subscribe(uri)]);
            assert!(result(&said, "subscribe")["snapshot"]["state"].is_object(), "{said:?}");
        }
        uris
    };
    let with_two_chats = || {
        let state = State::new();
        state.run_host(&[hello(), create(SESSION), create(other), open("ahp-chat:/a")]);
        state
    };

    // It moves, and the session that it moves to goes: it is in the trash with that one.
    let state = with_two_chats();
    state.run_host(&[hello(), to_other(), dispose(other)]);
    assert_eq!(chats_of(&state, SESSION), [CHAT]);
    state.printed(&["restore", other]);
    assert_eq!(chats_of(&state, other).len(), 2);
    assert_eq!(chats_of(&state, SESSION), [CHAT]);

    // The same with one that was made for it.
    let state = with_two_chats();
    let said = state.run_host(&[hello(), shift(json!({ "kind": "newSession" }))]);
    let made = result(&said, "move")["session"].as_str().unwrap().to_owned();
    assert_eq!(chats_of(&state, &made), ["ahp-chat:/a"]);
    state.run_host(&[hello(), dispose(&made), dispose(SESSION)]);
    state.printed(&["restore", &made]);
    assert_eq!(chats_of(&state, &made), ["ahp-chat:/a"]);

    // It moves and goes.
    let state = with_two_chats();
    state.run_host(&[hello(), to_other(), close("ahp-chat:/a")]);
    assert_eq!(chats_of(&state, SESSION), [CHAT]);
    assert_eq!(chats_of(&state, other).len(), 1);

    // One comes, one goes, and the session goes too: what comes back is what was there, all of it.
    let state = with_two_chats();
    let close_first = close(CHAT);
    state.run_host(&[hello(), open("ahp-chat:/b"), close_first, dispose(SESSION)]);
    state.printed(&["restore", SESSION]);
    let back = chats_of(&state, SESSION);
    assert!(back.contains(&"ahp-chat:/a".to_owned()) && !back.contains(&CHAT.to_owned()), "{back:?}");
}

#[test]
fn reconnecting_client_receives_a_snapshot_of_a_restored_session() {
    let state = with_two_turns();
    let said = state.run_host(&[hello(), subscribe(CHAT), dispose(SESSION)]);
    let cursor = result(&said, "hello")["serverSeq"].as_u64().unwrap();
    state.printed(&["restore", SESSION]);
    let reconnect = json!({ "id": "back", "method": "reconnect", "params": { "channel": "ahp-root://",
        "clientId": "me", "lastSeenServerSeq": cursor, "subscriptions": [CHAT] } });
    let said = state.run_host(&[reconnect]);
    assert_eq!(result(&said, "back")["type"], "snapshot", "{said:?}");
}

#[test]
fn turn_cancelled_by_disposal_is_complete_after_a_restore() {
    let state = State::new();
    let mut process = state.serve(&[]);
    say_all(&mut process, &[hello(), create(SESSION), subscribe(CHAT), turn("t1", "/say so far\n/hang")]);
    process.until(|message| message["params"]["action"]["type"] == "chat/responsePart");
    say_all(&mut process, &[dispose(SESSION)]);
    process.until(|message| message["id"] == "dispose");
    process.end();
    process.wait();
    assert!(state.printed(&["show", SESSION]).contains("so far"));
    state.printed(&["restore", SESSION]);
    let chat = chat_state(&state);
    assert_eq!(chat["turns"][0]["state"], "cancelled");
    assert_eq!(chat["turns"][0]["responseParts"][0]["content"], "so far");
    assert_eq!(chat["activeTurn"], Value::Null);
}

#[test]
fn export_is_imported_into_another_state_folder() {
    let state = with_two_turns();
    let before = chat_state(&state);
    let export = state.printed(&["export", SESSION]);
    let lines: Vec<Value> = export.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], json!({ "format": "ahp-sidecar session", "version": 1 }));
    assert_eq!(lines[1]["session"]["uri"], SESSION);
    assert_eq!(lines[2]["chat"]["uri"], CHAT);
    assert_eq!(lines[3]["turn"], before["turns"][0]);
    assert_eq!(lines[4]["turn"], before["turns"][1]);
    let numbers: Vec<u64> = lines.iter().filter_map(|line| line["envelope"]["serverSeq"].as_u64()).collect();
    assert!(numbers.len() > 10 && numbers.is_sorted(), "{numbers:?}");
    assert_eq!(lines.last().unwrap()["end"]["lines"], lines.len() - 2);
    assert_eq!(export, state.printed(&["export", SESSION]));

    let file = state.0.path().join("saved.jsonl");
    let file = file.to_str().unwrap();
    assert_eq!(state.printed(&["export", SESSION, "--output", file]), "");
    assert!(fs::read_to_string(file).unwrap() == export);
    assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, 0o600);
    state.refused(1, &["export", SESSION, "--output", file]);
    assert!(fs::read_to_string(file).unwrap() == export, "a file was overwritten");

    assert!(state.refused(1, &["restore", "--from", file]).contains("an existing session uses"));
    let elsewhere = State::new();
    elsewhere.run_host(&[hello(), create("ahp-session:/other")]);
    elsewhere.printed(&["restore", "--from", file]);
    assert_eq!(chat_state(&elsewhere), before);
    elsewhere.run_host(&[hello(), turn("t3", "more")]);
    assert_eq!(chat_state(&elsewhere)["turns"].as_array().unwrap().len(), 3);
    assert!(chat_state(&elsewhere)["turns"][0] == before["turns"][0]);
    assert_eq!(elsewhere.list()[1][0], "ahp-session:/other");
}

#[test]
fn truncated_or_invalid_export_is_refused() {
    let state = with_two_turns();
    let export = state.printed(&["export", SESSION]);
    let lines: Vec<&str> = export.lines().collect();
    let file = state.0.path().join("saved.jsonl");
    let elsewhere = State::new();
    elsewhere.run_host(&[hello()]);
    let without = |left_out: usize| {
        let kept: Vec<&str> = lines
            .iter()
            .enumerate()
            .filter(|(number, _)| *number != left_out)
            .map(|(_, line)| *line)
            .collect();
        kept.join("\n")
    };
    let mut broken: Vec<String> = (0..lines.len()).map(|count| lines[..count].join("\n")).collect();
    broken.extend((0..lines.len()).map(without));
    broken.push(export.replace("\"version\":1", "\"version\":2"));
    broken.push(export.replacen("\"lifecycle\"", "\"livecycle\"", 1));
    broken.push("\u{0}".to_owned());
    broken.push(format!("{export}{export}"));
    // One process per case is enough of a wait: every fourth, and the interesting ones.
    let last = broken.len() - 9;
    for (number, text) in broken.iter().enumerate().filter(|(number, _)| number % 9 == 0 || *number >= last) {
        fs::write(&file, text).unwrap();
        elsewhere.refused(1, &["restore", "--from", file.to_str().unwrap()]);
        assert!(elsewhere.list().is_empty(), "case {number} was brought in");
    }
}

#[test]
fn trash_is_purged_on_request_or_at_once() {
    let state = State::new();
    let uris = ["ahp-session:/a", "ahp-session:/b", "ahp-session:/c"];
    for uri in uris {
        state.run_host(&[hello(), create(uri)]);
        state.run_host(&[hello(), dispose(uri)]);
    }
    assert!(state.refused(1, &["purge", "ahp-session:/d"]).contains("in the trash"));
    assert_eq!(state.list().len(), 3);
    assert_eq!(state.printed(&["purge", uris[0]]), "purged: 1 session\n");
    assert_eq!(state.list().len(), 2);
    assert_eq!(state.printed(&["purge"]), "purged: 2 sessions\n");
    assert!(state.list().is_empty());
    state.run_host(&[hello(), create(uris[0])]);
    state.run_host_with(&["--trash-days", "0"], &[hello(), dispose(uris[0])]);
    assert!(state.list().is_empty());
}

#[test]
fn purged_session_frees_its_disk_space() {
    let state = State::new();
    let noise = (0..500_000_u32).map(|number| format!("{:08x}", crc32fast::hash(&number.to_le_bytes())));
    let noise: String = noise.collect();
    state.run_host(&[hello(), create(SESSION), subscribe(CHAT), turn("t1", &format!("/say {noise}"))]);
    state.run_host(&[hello(), dispose(SESSION)]);
    // With the log, where there is one.
    let size = || -> u64 {
        let files = fs::read_dir(state.path()).unwrap().map(|file| file.unwrap());
        let files = files.filter(|file| !file.path().to_string_lossy().ends_with("-shm"));
        files.map(|file| file.metadata().unwrap().len()).sum()
    };
    let before = size();
    state.printed(&["purge"]);
    assert!(size() + 3_000_000 < before, "{before} bytes became {}", size());
    state.run_host(&[hello(), create(SESSION)]);
    assert_eq!(state.list().len(), 1);
}

#[test]
fn purged_content_is_in_no_file() {
    let state = State::new();
    let other = "ahp-session:/other";
    state.run_host(&[hello(), create(SESSION), subscribe(CHAT), turn("t1", "/say swordfish"), create(other)]);
    let is_there = || {
        let files = fs::read_dir(state.path()).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
        files.filter(|kept| memchr::memmem::find(kept, b"swordfish").is_some()).count() > 0
    };
    state.run_host(&[hello(), dispose(SESSION)]);
    assert!(is_there());
    state.printed(&["purge"]);
    assert!(!is_there());
    // The others are what they were.
    assert_eq!(state.list()[0][0], other);
    state.run_host(&[hello(), subscribe(other)]);
}

#[test]
fn damaged_content_is_reported_and_the_rest_is_shown() {
    let state = with_two_turns();
    state.run_host(&[hello(), create("ahp-session:/other")]);
    state.damage("UPDATE texts SET text = 'nonsense' WHERE key IN (SELECT text FROM turns WHERE place = 0)");
    let output = state.sessions(&["show", SESSION]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        shown.contains("[not shown: turn 1 of the chat") && shown.contains("[error: it broke]"),
        "{shown}"
    );
    let file = state.0.path().join("saved.jsonl");
    let refused = state.refused(1, &["export", SESSION, "--output", file.to_str().unwrap()]);
    assert!(refused.contains("damaged") && !refused.contains("cannot write"), "{refused}");
    assert!(!file.exists(), "an incomplete export was left");
    assert!(state.refused(1, &["export", SESSION]).contains("damaged"));
    state.damage("UPDATE sessions SET summary = 'nonsense' WHERE uri = 'ahp-session:/s'");
    let list = state.list();
    assert_eq!(list.len(), 2);
    let row = list.iter().find(|row| row[0] == SESSION).expect("it is dropped");
    assert!(row[1].contains("cannot be read"), "{row:?}");
    // A host lists it too, refuses to open it, and serves everything else.
    let page = json!({ "id": "list", "method": "listSessions", "params": { "channel": "ahp-root://" } });
    let said = state.run_host(&[hello(), page, subscribe(SESSION)]);
    let items = result(&said, "list")["items"].as_array().unwrap();
    assert!(items.iter().any(|item| item["resource"] == SESSION && item["status"] == 2), "{items:?}");
    let refused = said.iter().find(|message| message["id"] == "subscribe").unwrap();
    assert!(refused["error"].is_object(), "{refused}");
}

#[test]
fn state_folder_has_one_owner_and_readers_are_admitted() {
    let state = State::new();
    let mut host = state.serve(&[]);
    say_all(&mut host, &[hello(), create(SESSION)]);
    host.until(|message| message["id"] == "create");
    let holder = format!("process {}", host.child.id());
    for arguments in [&["restore", SESSION][..], &["purge"]] {
        assert!(state.refused(3, arguments).contains(&holder));
    }
    // Who only looks may do so meanwhile.
    assert_eq!(state.list()[0][0], SESSION);
    for verb in ["show", "export"] {
        assert!(state.sessions(&[verb, SESSION]).status.success(), "{verb}");
    }
    let second = sidecar_on(&state.path()).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(3));
    assert_eq!((stderr.lines().count(), second.stdout.len()), (1, 0), "{stderr}");
    assert!(stderr.contains(&holder) && stderr.contains("--state-dir"), "{stderr}");
    // The lock dies with its holder, however that dies.
    host.child.kill().unwrap();
    host.wait();
    assert_eq!(state.list()[0][0], SESSION);
}

#[test]
fn export_that_is_not_read_keeps_no_host_from_starting() {
    let state = State::new();
    state.run_host(&[hello(), create(SESSION), turn("t", &format!("/say {}", "x".repeat(1 << 20)))]);
    let mut command = program();
    command.args(["sessions", "export", SESSION, "--state-dir"]).arg(state.path()).stdout(Stdio::piped());
    let mut export = command.spawn().unwrap();
    let mut output = export.stdout.take().unwrap();
    let mut first = [0];
    output.read_exact(&mut first).unwrap();
    state.run_host(&[hello(), turn("u", "more")]);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(export.wait().unwrap().success());
    assert!(rest.contains("\"t\"") && !rest.contains("\"u\""), "it shows one state of the session");
}

#[test]
fn unusable_state_folder_is_refused_with_status_3() {
    let state = State::new();
    let serve = |path: &Path| {
        let output = sidecar_on(path).stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert_eq!((stderr.lines().count(), output.stdout.len()), (1, 0), "{stderr}");
        stderr
    };
    assert!(state.refused(3, &["list"]).contains("there are no sessions"));
    assert!(!state.path().exists(), "a folder was made by looking into it");
    fs::write(state.path(), "a file").unwrap();
    serve(&state.path());
    state.refused(3, &["list"]);
    fs::remove_file(state.path()).unwrap();
    state.run_host(&[hello(), create(SESSION)]);
    state.damage("PRAGMA user_version = 999");
    let database = state.path().join(ahp_sidecar::store::sqlite::FILE_NAME);
    let before = fs::read(&database).unwrap();
    assert!(serve(&state.path()).contains("newer version"));
    assert!(state.refused(3, &["list"]).contains("newer version"));
    assert!(fs::read(&database).unwrap() == before);
    fs::write(&database, "no database at all, although it is long enough to be one").unwrap();
    serve(&state.path());
    assert!(fs::read_to_string(&database).unwrap().starts_with("no database"));
}

#[test]
fn read_only_database_is_refused() {
    let state = State::new();
    fs::create_dir(state.path()).unwrap();
    let database = state.path().join(ahp_sidecar::store::sqlite::FILE_NAME);
    fs::write(&database, "").unwrap();
    fs::set_permissions(&database, fs::Permissions::from_mode(0o400)).unwrap();
    let mut command = sidecar_on(&state.path());
    // For root no file is read-only: somebody else runs the program, and from there, because the
    // folder that it was built in may be closed to others.
    if rustix::process::geteuid().is_root() {
        let copy = state.0.path().join("ahp-sidecar");
        copy_program(&copy);
        for path in [state.0.path(), &state.path(), &database, &copy] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
        command = Command::new(copy);
        command.env_clear().env("HOME", NO_HOME).current_dir("/").uid(65534).gid(65534);
        command.arg("--state-dir").arg(state.path());
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("ermission denied"), "{stderr}");
}

#[test]
fn state_files_are_private_whatever_the_umask() {
    for umask in ["000", "277"] {
        let state = State::new();
        let script = format!(r#"umask {umask}; exec "$@""#);
        let mut host = Process::spawn(shell(&script, &sidecar_on(&state.path())));
        say_all(&mut host, &[hello(), create(SESSION)]);
        host.until(|message| message["id"] == "create");
        assert_eq!(fs::metadata(state.path()).unwrap().mode() & 0o777, 0o700);
        let mut files = 0;
        for entry in fs::read_dir(state.path()).unwrap() {
            let entry = entry.unwrap();
            if is_kept_program(&entry.path()) {
                continue;
            }
            assert_eq!(entry.metadata().unwrap().mode() & 0o777, 0o600, "{:?} by {umask}", entry.path());
            files += 1;
        }
        assert_eq!(
            files, 6,
            "the lock, the database, its mark, its log, the log's index and what git ignores"
        );
        host.end();
        host.wait();
    }
}

#[test]
fn sessions_command_checks_usage_and_tolerates_a_closed_pipe() {
    let state = with_two_turns();
    for arguments in [
        &["frobnicate"][..],
        &["show"],
        &["restore"],
        &["restore", SESSION, "--from", "x"],
        &["export"],
        &["list", "surplus"],
    ] {
        assert_eq!(state.sessions(arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert!(state.refused(1, &["show", "ahp-session:/none"]).contains("ahp-session:/none"));
    let mut command = program();
    command.args(["sessions", "export", SESSION, "--state-dir"]).arg(state.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}

/// Returns the only listed session.
fn only_listed(client: &mut Client) -> Value {
    let mut answer = client.about("listSessions", ROOT);
    let items = answer["result"]["items"].as_array_mut().unwrap();
    assert_eq!(items.len(), 1, "{items:?}");
    items.remove(0)
}

/// Starts a host with one session, whose turn has shown something and goes on.
fn with_running_turn(state: &State) -> Client {
    let mut client = Client::start(&state.path());
    client.create(SESSION);
    client.state(CHAT);
    client.start_turn(CHAT, "t", "/say words\n/hang");
    client.until("chat/responsePart");
    client
}

fn has_status(item: &Value, status: SessionStatus) -> bool {
    item["status"].as_u64().unwrap() & u64::from(status.bits()) != 0
}

#[test]
fn session_disposed_of_during_a_turn_is_restored_idle_and_not_quarantined() {
    let state = State::new();
    let mut client = with_running_turn(&state);
    client.dispatch(SESSION, json!({ "type": "session/titleChanged", "title": "mine" }));
    let disposed = client.about("disposeSession", SESSION);
    assert_eq!(disposed["error"], Value::Null, "{disposed}");
    client.end();
    state.printed(&["restore", SESSION]);
    for start in 0..4 {
        let mut client = Client::of(state.serve(&["--quarantine-after", "1"]));
        let item = only_listed(&mut client);
        for item in [&item, &item["chats"][0]] {
            assert!(has_status(item, SessionStatus::Idle), "start {start}: {item}");
        }
        assert_eq!(item["title"], "mine");
        let turns = client.state(CHAT)["turns"].take();
        assert_eq!((turns.as_array().unwrap().len(), &turns[0]["state"]), (1, &"cancelled".into()));
        client.end();
    }
}

#[test]
fn new_session_cannot_take_the_uri_of_a_stored_chat() {
    let (state, other) = (State::new(), "ahp-session:/other");
    let mut client = Client::start(&state.path());
    client.create(SESSION);
    client.create(other);
    let second = client.ask("createChat", json!({ "channel": SESSION, "chat": "ahp-chat:/second" }));
    assert_eq!(second["error"], Value::Null, "{second}");
    client.dispatch(
        SESSION,
        json!({ "type": "session/defaultChatChanged", "defaultChat": "ahp-chat:/second" }),
    );
    let destination = json!({ "kind": "session", "session": other });
    let moved = client.ask("moveChat", json!({ "channel": CHAT, "destination": destination }));
    assert_eq!(moved["result"]["session"], other, "{moved}");
    client.about("disposeSession", SESSION);
    client.end();

    let mut client = Client::start(&state.path());
    let refused = client.about("createSession", SESSION);
    assert_eq!(refused["error"]["code"], -32003, "{refused}");
    assert_eq!(client.state(other)["chats"].as_array().unwrap().len(), 2);
    client.end();
}

#[test]
fn session_with_a_damaged_interrupted_turn_is_listed_as_failed_for_one_reason() {
    let state = State::new();
    let client = with_running_turn(&state);
    client.kill();
    state.damage("UPDATE actions SET sum = 0 WHERE kind = 'chat'");
    let mut reasons = BTreeSet::new();
    for start in 0..4 {
        let mut client = Client::of(state.serve(&["--quarantine-after", "1"]));
        let item = only_listed(&mut client);
        for item in [&item, &item["chats"][0]] {
            assert!(has_status(item, SessionStatus::Error), "start {start}: {item}");
            assert!(!has_status(item, SessionStatus::InProgress), "start {start}: {item}");
        }
        reasons.insert(client.about("subscribe", CHAT)["error"]["message"].to_string());
        client.end();
    }
    assert_eq!(reasons.len(), 1, "{reasons:?}");
}

#[test]
fn deterministic_ids_are_not_reused_by_the_next_process() {
    let state = State::new();
    let mut uris = BTreeSet::from([SESSION.to_owned()]);
    for chat in ["ahp-chat:/a", "ahp-chat:/b"] {
        let mut client = Client::of(state.serve(&["--deterministic"]));
        if uris.len() == 1 {
            client.create(SESSION);
        }
        client.ask("createChat", json!({ "channel": SESSION, "chat": chat }));
        let destination = json!({ "kind": "newSession" });
        let moved = client.ask("moveChat", json!({ "channel": chat, "destination": destination }));
        let uri = moved["result"]["session"].as_str().unwrap_or_else(|| panic!("{moved}"));
        uris.insert(uri.to_owned());
        client.end();
    }
    assert_eq!(uris.len(), 3, "{uris:?}");
    let mut client = Client::start(&state.path());
    assert!(client.sessions().into_iter().eq(uris));
}

#[test]
fn provider_uri_of_a_session_means_the_same_in_every_request_after_a_restart() {
    let (session, chat) = ("script:/s", chat_of("script:/s"));
    let move_to = json!({ "kind": "session", "session": session });
    let requests = [
        ("subscribe", json!({ "channel": session })),
        ("subscribe", json!({ "channel": chat })),
        ("subscribe", json!({ "channel": annotations_uri(session) })),
        ("unsubscribe", json!({ "channel": session })),
        ("reconnect", json!({ "clientId": "me", "lastSeenServerSeq": -1, "subscriptions": [session, chat] })),
        ("completions", json!({ "channel": session, "kind": "userMessage", "text": "/", "offset": 1 })),
        ("createSession", json!({ "channel": session })),
        ("createChat", json!({ "channel": session, "chat": "ahp-chat:/second" })),
        ("moveChat", json!({ "channel": "ahp-chat:/second", "destination": move_to })),
        ("disposeChat", json!({ "channel": chat })),
        ("disposeSession", json!({ "channel": session })),
    ];
    let outcomes = |restarts: bool| {
        let state = State::new();
        let mut client = Client::start(&state.path());
        client.create(SESSION);
        client.state(CHAT);
        client.turn(CHAT, "t", "/say words");
        let mut outcomes = Vec::new();
        for (method, params) in &requests {
            if restarts {
                client.end();
                client = Client::start(&state.path());
            }
            let mut params = params.clone();
            if params["channel"].is_null() {
                params["channel"] = ROOT.into();
            }
            let answer = client.ask(method, params);
            let snapshots = answer["result"]["snapshots"].as_array().map(Vec::len);
            outcomes.push((*method, answer["error"]["code"].clone(), snapshots));
        }
        outcomes.push(("listed", client.sessions().into(), None));
        client.end();
        outcomes
    };
    let expected = outcomes(false);
    assert_eq!(expected[6].1, -32003, "the URI is taken");
    assert_eq!(expected.last().unwrap().1, json!([]));
    assert_eq!(outcomes(true), expected);
}
