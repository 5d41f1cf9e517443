//! Effects of a runaway session on other sessions, and of an unwritable store on requests, seen by
//! a client of the real program.
//!
//! Owns: turns that never end, stores that such turns were left in, turns that end the host again
//! and again, and answers to whom the disk fails, for a while or for good.
//! Never: waits for a time and hopes; it waits until something is so.
// It looks at limits of another process.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::keeping::{assert_unavailable, chat_of, Client, DATABASE, ROOT, UNAVAILABLE};
use crate::support::{shell, sidecar_on, Process};

const BUSY: &str = "ahp-session:/busy";
const QUIET: &str = "ahp-session:/quiet";

fn started(folder: &Path, arguments: &[&str]) -> Client {
    Client::of(Process::start_on(folder, arguments))
}

/// Sessions that a client follows.
fn create(client: &mut Client, sessions: &[&str]) {
    for session in sessions {
        client.create(session);
        client.state(session);
        client.state(&chat_of(session));
    }
}

/// The text of a turn.
fn text_of(turn: &Value) -> String {
    let parts = turn["responseParts"].as_array().unwrap();
    parts.iter().filter_map(|part| part["content"].as_str()).collect()
}

fn error_of(turn: &Value) -> &Value {
    turn["responseParts"].as_array().unwrap().last().unwrap()
}

/// Comes back as somebody who has heard everything up to this number.
fn reconnect(client: &mut Client, seen: u64, channels: &[&str]) -> Value {
    let params = json!({ "channel": ROOT, "clientId": "me", "lastSeenServerSeq": seen,
        "subscriptions": channels });
    let mut answer = client.ask("reconnect", params);
    assert!(answer["error"].is_null(), "{answer}");
    answer["result"].take()
}

/// The endings of turns among replayed envelopes.
fn endings(replay: &Value) -> Vec<Value> {
    assert_eq!(replay["type"], "replay", "{replay}");
    let actions = replay["actions"].as_array().unwrap().iter().map(|envelope| envelope["action"].clone());
    let ends = ["chat/turnComplete", "chat/turnCancelled", "chat/error"];
    actions.filter(|action| ends.iter().any(|kind| action["type"] == *kind)).collect()
}

#[test]
fn turn_over_its_byte_limit_ends_without_affecting_other_sessions() {
    let limited = ["--max-turn-bytes", "2000000"];
    let both = || {
        let folder = TempDir::new().unwrap();
        let mut client = started(folder.path(), &limited);
        create(&mut client, &[BUSY, QUIET]);
        client.start_turn(&chat_of(BUSY), "t1", "/stream 1000000 1000");
        client.start_turn(&chat_of(QUIET), "t1", "/say fine");
        let ended = client.until("chat/error");
        let is_complete = |it: &Value| it["params"]["action"]["type"] == "chat/turnComplete";
        client.heard.iter().any(is_complete).then_some((folder, client, ended))
    };
    // The second message may be sent late on a busy machine.
    let (folder, mut client, ended) = (0..10).find_map(|_| both()).expect("the quiet turn goes on");
    assert_eq!((&ended["channel"], &ended["action"]["turnId"]), (&chat_of(BUSY).into(), &"t1".into()));
    let why = ended["action"]["part"]["error"]["message"].as_str().unwrap();
    assert!(why.contains("2000000 bytes"), "{why}");
    let told = client.text();
    assert!((1_990_000..2_002_000).contains(&told.len()), "{} bytes were told", told.len());
    client.turn(&chat_of(BUSY), "t2", "/say again");
    client.turn(&chat_of(QUIET), "t2", "/say again");
    let shown = client.state(&chat_of(BUSY));
    assert!(text_of(&shown["turns"][0]) == told, "what was told is not what is shown");
    client.kill();
    let mut client = started(folder.path(), &limited);
    assert_eq!(client.state(&chat_of(BUSY))["turns"], shown["turns"]);
}

#[test]
fn store_with_an_oversized_turn_is_loaded_at_once_and_truncated() {
    let folder = TempDir::new().unwrap();
    let mut client = started(folder.path(), &[]);
    create(&mut client, &[BUSY, QUIET]);
    client.turn(&chat_of(QUIET), "t1", "/say kept");
    client.start_turn(&chat_of(BUSY), "t1", "/stream 3000 1000\n/hang");
    while client.text().len() < 2_999_000 {
        client.until("chat/delta");
    }
    let seen = *client.numbers().last().unwrap();
    client.kill();

    // To this one it was too much long ago.
    let limited = ["--max-turn-bytes", "500000"];
    let mut turns = Value::Null;
    for start in 0..3 {
        let mut client = Client::before_the_handshake(Process::start_on(folder.path(), &limited));
        // What its client has is more than what is left: only a state can say that.
        let answer = reconnect(&mut client, seen, &[&chat_of(BUSY)]);
        assert_eq!(answer["type"], "snapshot", "{start}");
        let chat = &answer["snapshots"][0]["state"];
        assert!(chat["activeTurn"].is_null());
        let turn = &chat["turns"][0];
        assert_eq!(error_of(turn)["error"]["errorType"], "turnTooLarge");
        assert!((499_000..500_000).contains(&text_of(turn).len()), "{} bytes are left", text_of(turn).len());
        if start > 0 {
            assert_eq!(chat["turns"], turns, "it was changed again");
        }
        turns = chat["turns"].clone();
        assert_eq!(text_of(&client.state(&chat_of(QUIET))["turns"][0]), "kept");
        if start == 2 {
            client.turn(&chat_of(BUSY), "t2", "/say goes on");
        }
        client.kill();
    }
}

/// Says of every session with a turn that runs that so many processes have ended because of it.
fn blame(folder: &Path, deaths: u32) {
    let database = Connection::open(folder.join(DATABASE)).unwrap();
    let sql = "INSERT OR REPLACE INTO trials SELECT session, ?1, 0, 0 FROM chats WHERE running";
    assert_eq!(database.execute(sql, [deaths]).unwrap(), 1);
}

/// A folder in which a turn was cut short; with everything that was told of it, and the number of
/// the last of it.
fn cut_short() -> (TempDir, String, u64) {
    let folder = TempDir::new().unwrap();
    let mut client = started(folder.path(), &[]);
    create(&mut client, &[BUSY, QUIET]);
    client.start_turn(&chat_of(BUSY), "t1", "/say begin\n/stream 800 1000\n/hang");
    while client.text().len() < 799_000 {
        client.until("chat/delta");
    }
    let (text, seen) = (client.state(&chat_of(BUSY)), *client.numbers().last().unwrap());
    client.kill();
    let text = text_of(&text["activeTurn"]);
    // The second message is set apart from the first one by a blank line.
    assert_eq!(text.len(), "begin".len() + 2 + 800_000);
    (folder, text, seen)
}

#[test]
fn turn_that_ended_the_host_too_often_ends_once_in_replay_and_state() {
    for (after, deaths, times) in [("3", 3, "3 times"), ("1", 1, "once")] {
        let (folder, text, seen) = cut_short();
        blame(folder.path(), deaths);
        let quarantine = ["--quarantine-after", after];
        for _ in 0..2 {
            let mut client = Client::before_the_handshake(Process::start_on(folder.path(), &quarantine));
            let replay = reconnect(&mut client, seen, &[BUSY, &chat_of(BUSY)]);
            let [ending] = &endings(&replay)[..] else { panic!("{replay}") };
            let why = ending["part"]["error"]["message"].as_str().unwrap();
            assert!(why.contains(times), "{why}");
            let chat = client.state(&chat_of(BUSY));
            assert!(chat["activeTurn"].is_null());
            assert_eq!(text_of(&chat["turns"][0]), text, "what was told is not shown");
            assert_eq!(error_of(&chat["turns"][0])["error"], ending["part"]["error"]);
            assert_eq!(error_of(&chat["turns"][0])["resumable"], false);
            client.kill();
        }
        // That is all: it goes on.
        let mut client = started(folder.path(), &quarantine);
        client.state(&chat_of(BUSY));
        client.turn(&chat_of(BUSY), "t2", "/say on");
        client.end();
    }
}

#[test]
fn session_that_cannot_be_quarantined_is_loaded_only_on_request() {
    let (folder, text, _) = cut_short();
    blame(folder.path(), 6);
    for _ in 0..2 {
        let mut client = started(folder.path(), &[]);
        assert_eq!(client.sessions(), [BUSY, QUIET]);
        for channel in [BUSY, &chat_of(BUSY)] {
            let answer = client.about("subscribe", channel);
            assert_unavailable(&answer, "6 times");
            assert_unavailable(&answer, "--quarantine-after 0");
        }
        client.state(&chat_of(QUIET));
        client.turn(&chat_of(QUIET), &format!("t{}", client.process.child.id()), "/say fine");
        client.kill();
    }
    let mut client = started(folder.path(), &["--quarantine-after", "0"]);
    let chat = client.state(&chat_of(BUSY));
    assert_eq!(text_of(&chat["turns"][0]), text);
    assert_eq!(error_of(&chat["turns"][0])["resumable"], true);
}

#[test]
fn first_request_on_a_full_disk_is_answered() {
    let folder = TempDir::new().unwrap();
    let mut client = Client::before_the_handshake(Process::start_on(folder.path(), &["--store-wait", "0"]));
    assert!(client.about("ping", ROOT)["error"].is_null());
    client.fill_disk(true);
    let hello = json!({ "channel": ROOT, "clientId": "me", "protocolVersions": ["1.0.0"],
        "initialSubscriptions": [ROOT] });
    let answer = client.ask("initialize", hello);
    assert_eq!(answer["result"]["protocolVersion"], "1.0.0", "{answer}");
    client.fill_disk(false);
    let wait_until_it_is_kept = |client: &mut Client| {
        while client.about("disposeSession", "ahp-session:/none")["error"]["code"] == UNAVAILABLE {
            sleep(Duration::from_millis(20));
        }
    };
    wait_until_it_is_kept(&mut client);
    client.create(QUIET);
    // What else the host has to keep may notice first: then the request is refused, and nothing
    // will be done.
    loop {
        client.fill_disk(true);
        let answer = client.about("createSession", BUSY);
        assert_unavailable(&answer, "disk");
        if answer["error"]["message"].as_str().unwrap().contains("the request takes effect once") {
            break;
        }
        client.fill_disk(false);
        wait_until_it_is_kept(&mut client);
    }
    assert_unavailable(&client.about("createSession", "ahp-session:/third"), "disk");
    assert_eq!(client.sessions(), [QUIET], "what is not safe was listed");
    client.fill_disk(false);
    // It is done after all, as it was said.
    let added = |message: &Value| {
        message["method"] == "root/sessionAdded" && message["params"]["summary"]["resource"] == BUSY
    };
    if !client.heard.iter().any(added) {
        client.process.until(added);
    }
    assert_eq!(client.sessions(), [BUSY, QUIET]);
    client.end();
}

#[test]
fn broken_store_is_logged_once_and_every_request_is_answered() {
    for early in [true, false] {
        let folder = TempDir::new().unwrap();
        let log = folder.path().join("log");
        let script = format!(r#"exec "$@" 2> '{}'"#, log.display());
        let process = Process::spawn(shell(&script, &sidecar_on(&folder.path().join("state"))));
        let mut client = Client::before_the_handshake(process);
        assert!(client.about("ping", ROOT)["error"].is_null());
        let break_it = || {
            let database = Connection::open(folder.path().join("state").join(DATABASE)).unwrap();
            let sql = "PRAGMA writable_schema = ON;
                UPDATE sqlite_schema SET sql = 'nonsense' WHERE name = 'sessions';
                PRAGMA schema_version = 1000";
            database.execute_batch(sql).unwrap();
        };
        if early {
            break_it();
        }
        let hello = json!({ "channel": ROOT, "clientId": "me", "protocolVersions": ["1.0.0"] });
        let answer = client.ask("initialize", hello);
        assert_eq!(answer["result"]["protocolVersion"], "1.0.0", "{answer}");
        if !early {
            client.create(QUIET);
            break_it();
            // The first one to notice.
            assert_unavailable(&client.about("disposeSession", QUIET), "malformed");
        }
        for session in [BUSY, QUIET, BUSY] {
            assert_unavailable(&client.about("createSession", session), "malformed");
        }
        assert!(client.about("ping", ROOT)["error"].is_null());
        assert_unavailable(&client.about("listSessions", ROOT), "malformed");
        client.process.end();
        client.process.rest();
        assert_eq!(client.process.wait().code(), Some(1), "nothing of it was kept");
        let log = fs::read_to_string(log).unwrap();
        assert_eq!(log.matches("changes cannot be stored").count(), 1, "{log}");
    }
}
