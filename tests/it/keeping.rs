//! Bad days of the state folder, seen by a client of the real program.
//!
//! Owns: a disk that is full, a database that is locked, folders that cannot be used, rows that are
//! damaged, sessions that left memory, who holds the folder, and who may look into it.
//! Never: waits for a time and hopes; it waits until something is so.
// It looks into `/proc` and sets limits of another process.
#![cfg(target_os = "linux")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine;
use rusqlite::{params, Connection};
use rustix::process::{prlimit, Pid, Resource, Rlimit};
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::support::{is_kept_program, shell, sidecar_on, Process, HUNG};

pub(crate) const ROOT: &str = "ahp-root://";
pub(crate) const DATABASE: &str = "sessions.sqlite";

/// JSON-RPC and AHP codes.
pub(crate) const UNAVAILABLE: i64 = -32603;
const ALREADY_EXISTS: i64 = -32003;

pub(crate) fn chat_of(session: &str) -> String {
    format!("ahp-chat://default/{}", URL_SAFE_NO_PAD.encode(session))
}

/// A client, and everything that it was sent without having asked.
pub(crate) struct Client {
    pub(crate) process: Process,
    /// Ids of requests and numbers of dispatches.
    last: u64,
    pub(crate) heard: Vec<Value>,
}

impl Client {
    pub(crate) fn start(folder: &Path) -> Self {
        Self::of(Process::start_on(folder, &[]))
    }

    /// A program that a shell starts after having done this.
    fn start_after(preparation: &str, folder: &Path) -> Self {
        Self::of(Process::spawn(after(preparation, folder)))
    }

    /// A program to which nobody has said anything.
    pub(crate) fn before_the_handshake(process: Process) -> Self {
        Self { process, last: 0, heard: Vec::new() }
    }

    pub(crate) fn of(process: Process) -> Self {
        let mut client = Self::before_the_handshake(process);
        let hello = json!({ "channel": ROOT, "clientId": "me", "protocolVersions": ["1.0.0"],
            "initialSubscriptions": [ROOT] });
        let answer = client.ask("initialize", hello);
        assert!(answer["result"].is_object(), "{answer}");
        client
    }

    pub(crate) fn say(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let id = self.last;
        self.process
            .say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
        id
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.say(method, params);
        self.answer(id)
    }

    pub(crate) fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.process.next();
            if message["id"] == id {
                return message;
            }
            self.heard.push(message);
        }
    }

    /// Asks something about a channel.
    pub(crate) fn about(&mut self, method: &str, channel: &str) -> Value {
        self.ask(method, json!({ "channel": channel }))
    }

    pub(crate) fn create(&mut self, session: &str) {
        let answer = self.about("createSession", session);
        assert!(answer["result"].is_null() && answer["error"].is_null(), "{answer}");
    }

    /// Subscribes; returns the channel's state.
    pub(crate) fn state(&mut self, channel: &str) -> Value {
        let mut answer = self.about("subscribe", channel);
        let state = answer["result"]["snapshot"]["state"].take();
        assert!(state.is_object(), "{channel}: {answer}");
        state
    }

    pub(crate) fn sessions(&mut self) -> Vec<String> {
        let answer = self.about("listSessions", ROOT);
        let items = answer["result"]["items"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let mut uris: Vec<String> =
            items.iter().map(|item| item["resource"].as_str().unwrap().to_owned()).collect();
        uris.sort();
        uris
    }

    /// Dispatches an action; returns its number.
    pub(crate) fn dispatch(&mut self, channel: &str, action: Value) -> u64 {
        self.last += 1;
        let params = json!({ "channel": channel, "clientSeq": self.last, "action": action });
        self.process
            .say(&json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params }).to_string());
        self.last
    }

    pub(crate) fn start_turn(&mut self, chat: &str, id: &str, script: &str) {
        let message = json!({ "text": script, "origin": { "kind": "user" } });
        let started = "2026-01-01T00:00:00.000Z";
        self.dispatch(
            chat,
            json!({ "type": "chat/turnStarted", "turnId": id, "startedAt": started, "message": message }),
        );
    }

    /// Waits for an action that comes after everything that was heard.
    pub(crate) fn until(&mut self, kind: &str) -> Value {
        loop {
            let message = self.process.next();
            self.heard.push(message.clone());
            if message["params"]["action"]["type"] == kind {
                return message["params"].clone();
            }
        }
    }

    /// A turn from its start to its end.
    pub(crate) fn turn(&mut self, chat: &str, id: &str, script: &str) {
        self.start_turn(chat, id, script);
        self.until("chat/turnComplete");
    }

    /// Asks for something that cannot be until that is refused because nothing can be kept. Until
    /// the program has noticed, what it says is held back.
    pub(crate) fn wait_until_commits_fail(&mut self) {
        let (first, start) = (self.last + 1, Instant::now());
        loop {
            assert!(start.elapsed() < HUNG, "nothing was refused within {HUNG:?}");
            self.say("disposeSession", json!({ "channel": "ahp-session:/none" }));
            while let Some(message) = self.process.next_within(Duration::from_millis(20)) {
                let probed = message["id"].as_u64().is_some_and(|id| id >= first);
                if probed && message["error"]["code"] == UNAVAILABLE {
                    return;
                }
                self.heard.push(message);
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process.child)
    }

    /// From now on, no file can be written (or any can), as when the disk is full; and the process
    /// gets a signal that ends those that do not expect it.
    pub(crate) fn fill_disk(&self, full: bool) {
        let limit = Rlimit { current: full.then_some(0), maximum: None };
        prlimit(Some(self.pid()), Resource::Fsize, limit).unwrap();
    }

    /// Waits until the loop hardly ever wakes up. While a script streams it does, a thousand times
    /// a second.
    fn wait_until_agents_pause(&self) {
        let path = format!("/proc/{0}/task/{0}/status", self.process.child.id());
        let wakings = || -> u64 {
            let status = fs::read_to_string(&path).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            line.trim().parse().unwrap()
        };
        let start = Instant::now();
        loop {
            let before = wakings();
            sleep(Duration::from_millis(500));
            if wakings() - before < 50 {
                return;
            }
            assert!(start.elapsed() < HUNG, "agents did not pause within {HUNG:?}");
        }
    }

    /// The numbers of all actions that were sent, but for those that only answer their sender.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let sequenced = self.heard.iter().filter(|message| message["method"] == "action");
        let sequenced = sequenced.filter(|message| message["params"]["rejectionReason"].is_null());
        sequenced.map(|message| message["params"]["serverSeq"].as_u64().unwrap()).collect()
    }

    /// All text that was streamed.
    pub(crate) fn text(&self) -> String {
        let actions = self.heard.iter().map(|message| &message["params"]["action"]);
        let deltas = actions.filter(|action| action["type"] == "chat/delta");
        deltas.map(|action| action["content"].as_str().unwrap()).collect()
    }

    pub(crate) fn end(mut self) {
        self.process.end();
        self.process.rest();
        assert_eq!(self.process.wait().code(), Some(0));
    }

    pub(crate) fn kill(mut self) {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
    }
}

/// A command that a shell turns into after having done this.
fn after(preparation: &str, folder: &Path) -> Command {
    shell(&format!(r#"{preparation}; exec "$@""#), &sidecar_on(folder))
}

pub(crate) fn assert_unavailable(answer: &Value, cause: &str) {
    assert_eq!(answer["error"]["code"], UNAVAILABLE, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains(cause), "the cause is not told: {message}");
}

/// The program does not start: it ends with status 3, nothing on stdout, and one line on stderr,
/// which is returned.
fn refuses(mut command: Command) -> String {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
    stderr
}

const BUSY: &str = "ahp-session:/busy";
const QUIET: &str = "ahp-session:/quiet";

#[test]
fn full_disk_delays_unsaved_actions_and_loses_nothing() {
    let folder = TempDir::new().unwrap();
    let mut client = Client::start(folder.path());
    let (busy, quiet) = (chat_of(BUSY), chat_of(QUIET));
    for session in [BUSY, QUIET] {
        client.create(session);
        client.state(session);
        client.state(&chat_of(session));
    }
    client.turn(&quiet, "t0", "/say done");
    let before = client.heard.len();
    // A step of seven digits, so that one that is missing or doubled shows.
    client.start_turn(&busy, "t1", "/stream 1000000 7 1");
    client.until("chat/delta");

    client.fill_disk(true);
    client.wait_until_commits_fail();
    let told = client.numbers();
    let safe = *told.last().unwrap();
    let heard = client.heard.len();

    assert_unavailable(&client.about("createSession", "ahp-session:/new"), "disk");
    assert_unavailable(&client.about("disposeSession", QUIET), "disk");
    let number = client.dispatch(
        &quiet,
        json!({ "type": "chat/draftChanged", "draft": { "text": "not now",
            "origin": { "kind": "user" } } }),
    );
    let refusal = client.process.next();
    assert_eq!(refusal["params"]["origin"]["clientSeq"], number, "{refusal}");
    assert!(refusal["params"]["rejectionReason"].as_str().unwrap().contains("disk"), "{refusal}");
    assert_eq!(refusal["params"]["serverSeq"], safe, "a refusal takes no number");
    assert!(client.about("ping", ROOT)["error"].is_null());
    assert_eq!(client.sessions(), [BUSY, QUIET]);
    assert_eq!(client.state(&quiet)["turns"][0]["id"], "t0");
    assert_unavailable(&client.about("subscribe", &busy), "disk");
    client.wait_until_agents_pause();
    assert!(client.about("ping", ROOT)["error"].is_null());
    assert_eq!(client.numbers(), told, "something was told that is not safe");
    assert!(client.heard[heard..].iter().all(|message| message["method"] != "root/sessionAdded"));

    client.fill_disk(false);
    // Everything that was held back, and then what the agent says now that it goes on.
    client.until("chat/delta");
    while client.text().len() < 7_000 {
        client.until("chat/delta");
    }
    client.dispatch(&busy, json!({ "type": "chat/turnCancelled", "turnId": "t1" }));
    client.until("chat/turnCancelled");
    let answer = client.about("disposeSession", "ahp-session:/none");
    assert_ne!(answer["error"]["code"], UNAVAILABLE, "{answer}");
    client.create("ahp-session:/new");
    let numbers = client.numbers();
    let first = client.heard[before..].iter().find_map(|message| message["params"]["serverSeq"].as_u64());
    let start = numbers.iter().position(|&number| Some(number) == first).unwrap();
    let expected: Vec<u64> = (first.unwrap()..).take(numbers.len() - start).collect();
    assert_eq!(numbers[start..], expected, "numbers are missing, or came out of order");
    let text = client.text();
    let digits: String = "0123456789".chars().cycle().take(text.len()).collect();
    assert!(text == digits, "what was streamed is not whole");
    client.end();

    let mut client = Client::start(folder.path());
    assert_eq!(client.sessions(), [BUSY, "ahp-session:/new", QUIET]);
    let chat = client.state(&busy);
    assert_eq!(chat["turns"][0]["responseParts"][0]["content"], text);
    assert_eq!(chat["turns"][0]["state"], "cancelled");
}

/// A turn is killed while the disk is full, or when there is room again and it goes on.
fn kill_on_a_full_disk(goes_on: bool) {
    let folder = TempDir::new().unwrap();
    let mut client = Client::start(folder.path());
    client.create(BUSY);
    client.state(&chat_of(BUSY));
    client.start_turn(&chat_of(BUSY), "t1", "/stream 1000000 7 1");
    client.until("chat/delta");
    client.fill_disk(true);
    client.wait_until_commits_fail();
    client.wait_until_agents_pause();
    if goes_on {
        client.fill_disk(false);
        // More than what waited to be heard while the agent paused.
        while client.text().len() < 7_000 {
            client.until("chat/delta");
        }
    }
    let (told, text) = (client.numbers(), client.text());
    client.kill();

    let mut client = Client::start(folder.path());
    let chat = client.state(&chat_of(BUSY));
    assert_eq!(chat["turns"][0]["state"], "error");
    let kept = chat["turns"][0]["responseParts"][0]["content"].as_str().unwrap();
    // More may be there: what was safe and on its way out.
    assert!(kept.starts_with(&text), "{} bytes were told, {} are there", text.len(), kept.len());
    client.turn(&chat_of(BUSY), "t2", "/say x");
    assert!(client.numbers().first() > told.last(), "a number has two meanings");
}

#[test]
fn host_killed_while_the_disk_is_full_retains_all_sent_actions() {
    kill_on_a_full_disk(false);
}

#[test]
fn host_killed_after_the_disk_was_full_retains_all_sent_actions() {
    kill_on_a_full_disk(true);
}

/// A limit that the process was started with, and meets in the middle of its work.
#[test]
fn file_size_limit_is_handled_like_a_full_disk() {
    let folder = TempDir::new().unwrap();
    // In blocks of 512 bytes: 1 MiB.
    let mut client = Client::start_after("ulimit -f 2048", folder.path());
    client.create(QUIET);
    client.state(&chat_of(QUIET));
    client.turn(&chat_of(QUIET), "t1", "/say kept");
    client.create(BUSY);
    client.state(&chat_of(BUSY));
    // A little, and when that was told far more than fits.
    client.start_turn(&chat_of(BUSY), "t1", "/stream 10 10\n/ask more\n/stream 100 100000\n/hang");
    let asked = client.until("chat/toolCallReady")["action"].clone();
    client.dispatch(
        &chat_of(BUSY),
        json!({ "type": "chat/toolCallConfirmed", "turnId": "t1", "toolCallId": asked["toolCallId"],
            "approved": true, "confirmed": "user-action" }),
    );
    client.wait_until_commits_fail();
    let (told, text) = (client.numbers(), client.text());
    assert_unavailable(&client.about("createSession", "ahp-session:/new"), "1048576 bytes");
    client.dispatch(&chat_of(QUIET), json!({ "type": "session/titleChanged", "title": "not now" }));
    let refusal = client.process.next();
    let reason = refusal["params"]["rejectionReason"].as_str().unwrap_or_else(|| panic!("{refusal}"));
    assert!(reason.contains("ulimit -f"), "the cause is not told: {reason}");
    // It lives, and reads.
    assert!(client.about("ping", ROOT)["error"].is_null());
    assert_eq!(client.sessions(), [BUSY, QUIET]);
    assert_eq!(client.state(&chat_of(QUIET))["turns"][0]["responseParts"][0]["content"], "kept");
    assert_eq!(client.numbers(), told, "something was told that is not safe");
    client.kill();

    let mut client = Client::start(folder.path());
    assert_eq!(client.sessions(), [BUSY, QUIET]);
    let turn = client.state(&chat_of(BUSY))["turns"][0].take();
    let parts = turn["responseParts"].as_array().unwrap();
    let kept: String = parts.iter().filter_map(|part| part["content"].as_str()).collect();
    assert!(text.len() >= 100 && kept.starts_with(&text), "what was told is not there");
}

#[test]
fn store_that_cannot_be_created_for_lack_of_space_is_reported() {
    for limit in ["0", "1", "100"] {
        let folder = TempDir::new().unwrap();
        let stderr = refuses(after(&format!("ulimit -f {limit}"), folder.path()));
        assert!(stderr.contains("ulimit -f") || stderr.contains("File too large"), "{limit}: {stderr}");
    }
}

#[test]
fn locked_database_delays_answers_until_it_is_unlocked() {
    let folder = TempDir::new().unwrap();
    let mut client = Client::start(folder.path());
    client.create(QUIET);
    client.state(&chat_of(QUIET));
    // Now its agent is open and there is nothing more to keep.
    client.turn(&chat_of(QUIET), "t1", "/say x");
    let other = Connection::open(folder.path().join(DATABASE)).unwrap();
    other.busy_timeout(HUNG).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let created = client.say("createSession", json!({ "channel": BUSY }));
    client.wait_until_commits_fail();
    assert_unavailable(&client.about("createSession", "ahp-session:/new"), "locked");
    assert_eq!(client.sessions(), [QUIET], "what is not safe was listed");
    assert!(client.heard.iter().all(|message| message["id"] != created), "what is not safe was told");
    other.execute_batch("COMMIT").unwrap();
    let answer = client.answer(created);
    assert!(answer["result"].is_null() && answer["error"].is_null(), "{answer}");
    client.end();
    let mut client = Client::start(folder.path());
    assert_eq!(client.sessions(), [BUSY, QUIET]);
    assert_eq!(client.state(&chat_of(BUSY))["resource"], chat_of(BUSY));
}

/// Checks that a locked database blocks only messages that need a commit; `None` if the lock was
/// noticed meanwhile. What the agent has said before may be late.
fn serves_while_locked(client: &mut Client, busy: &str, other: &Connection) -> Option<()> {
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Until all that the agent says is held back.
    while let Some(message) = client.process.next_within(Duration::from_millis(50)) {
        client.heard.push(message);
    }
    let heard = client.heard.len();
    assert!(client.about("ping", ROOT)["error"].is_null());
    assert_eq!(client.about("nonsense", ROOT)["error"]["code"], -32601);
    let read = client.ask("resourceRead", json!({ "channel": ROOT, "uri": "data:,text" }));
    assert_eq!(read["result"]["data"], "text");
    client.process.say("nonsense");
    let refusal = loop {
        let message = client.process.next();
        if message["error"].is_object() {
            break message;
        }
        client.heard.push(message);
    };
    assert_eq!((&refusal["error"]["code"], &refusal["id"]), (&json!(-32700), &Value::Null));
    let is_late = client.heard.len() > heard;
    // What a client has caused itself is told before what it asks later.
    let draft = json!({ "text": "not yet", "origin": { "kind": "user" } });
    let number = client.dispatch(busy, json!({ "type": "chat/draftChanged", "draft": draft }));
    let ping = client.say("ping", json!({ "channel": ROOT }));
    other.execute_batch("COMMIT").unwrap();
    let echo = client.until("chat/draftChanged");
    assert_eq!(echo["origin"]["clientSeq"], number, "{echo}");
    assert!(client.heard.iter().all(|message| message["id"] != ping), "the ping was answered too early");
    assert!(client.answer(ping)["error"].is_null());
    (echo["rejectionReason"].is_null() && !is_late).then_some(())
}

#[test]
fn actions_that_need_no_commit_are_sent_while_the_database_is_locked() {
    let folder = TempDir::new().unwrap();
    let mut client = Client::start(folder.path());
    let busy = chat_of(BUSY);
    client.create(BUSY);
    client.state(&busy);
    client.start_turn(&busy, "t1", "/stream 1000000 7 1");
    client.until("chat/delta");
    let other = Connection::open(folder.path().join(DATABASE)).unwrap();
    other.busy_timeout(HUNG).unwrap();
    // On a machine that is very slow, the program gives the lock up before.
    let mut is_served = || {
        let served = serves_while_locked(&mut client, &busy, &other);
        client.until("chat/delta");
        served.is_some()
    };
    assert!((0..10).any(|_| is_served()), "something unsafe was told each time");
    client.until("chat/delta");
    client.dispatch(&busy, json!({ "type": "chat/turnCancelled", "turnId": "t1" }));
    client.until("chat/turnCancelled");
    let numbers = client.numbers();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    client.end();
}

#[test]
fn host_continues_after_its_state_folder_is_moved_away_and_back() {
    let parent = TempDir::new().unwrap();
    let (folder, elsewhere) = (parent.path().join("here"), parent.path().join("elsewhere"));
    let mut client = Client::start(&folder);
    client.create(QUIET);
    client.state(&chat_of(QUIET));
    // Now its agent is open and there is nothing more to keep.
    client.turn(&chat_of(QUIET), "t1", "/say x");
    fs::rename(&folder, &elsewhere).unwrap();
    let created = client.say("createSession", json!({ "channel": BUSY }));
    client.wait_until_commits_fail();
    assert!(client.about("ping", ROOT)["error"].is_null());
    fs::rename(&elsewhere, &folder).unwrap();
    assert!(client.answer(created)["error"].is_null());
    assert_eq!(client.sessions(), [BUSY, QUIET]);
    client.end();
}

#[test]
fn unusable_state_folder_is_refused() {
    let parent = TempDir::new().unwrap();
    // Nobody can make or change anything there, not even root.
    let stderr = refuses(sidecar_on(Path::new("/proc/self")));
    assert!(stderr.contains("/proc/self"), "{stderr}");
    let stderr = refuses(sidecar_on(Path::new("/proc/self/sessions")));
    assert!(stderr.contains("/proc/self/sessions"), "{stderr}");

    let file = parent.path().join("file");
    fs::write(&file, "mine").unwrap();
    let stderr = refuses(sidecar_on(&file));
    assert!(stderr.contains(file.to_str().unwrap()), "{stderr}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");

    // A full disk, from the start.
    let stderr = refuses(after("trap '' XFSZ; ulimit -f 0", &parent.path().join("full")));
    assert!(stderr.contains("full"), "{stderr}");
}

#[test]
fn link_to_a_folder_of_another_user_is_refused() {
    let parent = TempDir::new().unwrap();
    let (link, us) = (parent.path().join("link"), rustix::process::geteuid().as_raw());
    let target = if us == 0 {
        let theirs = parent.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
        theirs
    } else {
        "/".into()
    };
    let before = fs::metadata(&target).unwrap();
    assert_ne!(before.uid(), us);
    symlink(&target, &link).unwrap();
    let stderr = refuses(sidecar_on(&link));
    assert!(stderr.contains("another user"), "{stderr}");
    assert_eq!(fs::metadata(&target).unwrap().mode(), before.mode());
    if us == 0 {
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    }
}

#[test]
fn file_that_is_no_database_is_refused_and_left_unchanged() {
    let folder = TempDir::new().unwrap();
    let mut client = Client::start(folder.path());
    client.create(QUIET);
    client.end();
    Connection::open(folder.path().join(DATABASE))
        .unwrap()
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    let path = folder.path().join(DATABASE);
    let mut bytes = fs::read(&path).unwrap();
    bytes[..100].fill(b'#');
    fs::write(&path, &bytes).unwrap();
    let stderr = refuses(sidecar_on(folder.path()));
    assert!(stderr.contains(path.to_str().unwrap()), "{stderr}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

/// Changes one byte in the middle of a value.
fn damage(database: &Connection, table: &str, key: &str, session: &str) {
    let (select, update) = (
        format!("SELECT rowid, body FROM {table} WHERE {key}"),
        format!("UPDATE {table} SET body = ?2 WHERE rowid = ?1"),
    );
    let (row, mut body): (i64, Vec<u8>) =
        database.query_row(&select, params![session], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let middle = body.len() / 2;
    body[middle] ^= 1;
    assert_eq!(database.execute(&update, params![row, body]).unwrap(), 1);
}

const SESSION_ROW: &str = "uri = ?1";
const CHAT_ROW: &str = "session = (SELECT key FROM sessions WHERE uri = ?1)";

#[test]
fn damaged_row_affects_only_its_session_and_damaged_turn_only_itself() {
    let folder = TempDir::new().unwrap();
    let damaged = ["ahp-session:/row", "ahp-session:/chat"];
    const TURN: &str = "ahp-session:/turn";
    let mut client = Client::start(folder.path());
    for session in damaged.into_iter().chain([TURN, QUIET]) {
        client.create(session);
        client.state(&chat_of(session));
        client.turn(&chat_of(session), "t1", "/say here");
    }
    client.turn(&chat_of(TURN), "t2", "/say behind it");
    client.end();
    let path = folder.path().join(DATABASE);
    let database = Connection::open(&path).unwrap();
    damage(&database, "sessions", SESSION_ROW, damaged[0]);
    damage(&database, "chats", CHAT_ROW, damaged[1]);
    let sql = "SELECT x.key, x.text FROM texts x JOIN turns t ON t.text = x.key
        WHERE t.chat = (SELECT key FROM chats WHERE uri = ?1) AND t.place = 0";
    let (text, mut turn): (i64, Vec<u8>) =
        database.query_row(sql, params![chat_of(TURN)], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let middle = turn.len() / 2;
    turn[middle] ^= 1;
    database.execute("UPDATE texts SET text = ?2 WHERE key = ?1", params![text, turn]).unwrap();
    let rows = |database: &Connection| -> (i64, i64, i64) {
        let sql = "SELECT (SELECT count(*) FROM sessions WHERE removed_at IS NULL),
            (SELECT count(*) FROM chats), (SELECT count(*) FROM turns)";
        database.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
    };
    let before = rows(&database);
    drop(database);

    let mut client = Client::start(folder.path());
    let all = ["ahp-session:/chat", QUIET, "ahp-session:/row", "ahp-session:/turn"];
    for session in damaged {
        // Whatever is asked first.
        let answer = client.about("createSession", session);
        assert_eq!(answer["error"]["code"], ALREADY_EXISTS, "{answer}");
        for channel in [session.to_owned(), chat_of(session)] {
            assert_unavailable(&client.about("subscribe", &channel), "cannot be read");
        }
        assert_unavailable(&client.about("disposeSession", session), "cannot be read");
        client.start_turn(&chat_of(session), "t2", "/say no");
        let refusal = client.process.next();
        let reason = refusal["params"]["rejectionReason"].as_str().unwrap_or_else(|| panic!("{refusal}"));
        assert!(reason.contains("cannot be read"), "{reason}");
        assert_eq!(client.sessions(), all);
    }
    let chat = client.state(&chat_of(TURN));
    let said = |turn: usize| &chat["turns"][turn]["responseParts"][0];
    assert_eq!((&chat["turns"][0]["id"], &said(0)["error"]["errorType"]), (&json!("t1"), &json!("damaged")));
    assert_eq!(said(1)["content"], "behind it");
    client.turn(&chat_of(TURN), "t3", "/say there");
    assert!(client.about("disposeSession", TURN)["error"].is_null());
    let chat = client.state(&chat_of(QUIET));
    assert_eq!(chat["turns"][0]["responseParts"][0]["content"], "here");
    client.turn(&chat_of(QUIET), "t2", "/say there");
    client.create(BUSY);
    client.end();
    let after = rows(&Connection::open(&path).unwrap());
    // One more session than was removed.
    assert_eq!(after, (before.0, before.1 + 1, before.2 + 2), "something was deleted");
}

/// Sessions that nobody uses may take a megabyte in memory: some sixty of them in which nothing was
/// said.
const FORGETFUL: [&str; 3] = ["--deterministic", "--memory-budget", "1000000"];

#[test]
fn idle_sessions_are_evicted_and_reloaded_unchanged() {
    let folder = TempDir::new().unwrap();
    let mut client = Client::of(Process::start_on(folder.path(), &FORGETFUL));
    let name = |number: usize| format!("ahp-session:/{number}");
    let chat = chat_of(&name(0));
    client.create(&name(0));
    client.state(&chat);
    client.start_turn(&chat, "t1", "/say kept\n/ask rm");
    client.until("chat/toolCallReady");
    client.dispatch(
        &chat,
        json!({ "type": "chat/toolCallConfirmed", "turnId": "t1", "toolCallId": "call-1",
            "approved": true, "selectedOptionId": "allow-always" }),
    );
    client.until("chat/turnComplete");
    let session = client.state(&name(0));
    let before = client.state(&chat);
    for channel in [&name(0), &chat] {
        client.about("unsubscribe", channel);
    }
    for number in 1..=80 {
        client.create(&name(number));
    }
    // What is read from the store now is seen to be damaged.
    let database = Connection::open(folder.path().join(DATABASE)).unwrap();
    database.busy_timeout(HUNG).unwrap();
    for number in [1, 80] {
        damage(&database, "sessions", SESSION_ROW, &name(number));
    }
    assert_unavailable(&client.about("subscribe", &name(1)), "cannot be read");
    assert_eq!(client.state(&name(80))["lifecycle"], "ready", "what was just used is in memory");

    assert_eq!(client.state(&name(0)), session);
    assert_eq!(client.state(&chat), before);
    assert_eq!(client.sessions().len(), 81);
    // It is another agent that goes on: it does not know what was allowed for good.
    client.start_turn(&chat, "t2", "/ask rm");
    let asked = client.until("chat/toolCallReady");
    assert!(asked["action"]["confirmed"].is_null(), "the agent is the same: {asked}");
}

#[test]
fn session_with_several_chats_is_evicted_as_a_whole_and_not_while_one_runs() {
    let folder = TempDir::new().unwrap();
    let mut client = Client::of(Process::start_on(folder.path(), &FORGETFUL));
    let session = |number: usize| format!("ahp-session:/{number}");
    let chat = |number: usize| format!("ahp-chat:/{number}");
    for (number, script) in [(0, "/say kept"), (1, "/hang")] {
        client.create(&session(number));
        let first = json!({ "text": script, "origin": { "kind": "user" } });
        let params = json!({ "channel": session(number), "chat": chat(number), "initialMessage": first });
        assert!(client.ask("createChat", params)["error"].is_null());
    }
    let uris = [session(0), chat_of(&session(0)), chat(0)];
    let before: Vec<Value> = uris.iter().map(|uri| client.state(uri)).collect();
    for uri in &uris {
        client.about("unsubscribe", uri);
    }
    for number in 2..=90 {
        client.create(&session(number));
    }
    // What is read from the store now is seen to be damaged.
    let database = Connection::open(folder.path().join(DATABASE)).unwrap();
    database.busy_timeout(HUNG).unwrap();
    for number in [1, 2] {
        damage(&database, "sessions", SESSION_ROW, &session(number));
    }
    assert_unavailable(&client.about("subscribe", &session(2)), "cannot be read");
    assert!(client.state(&chat(1))["activeTurn"].is_object(), "a chat works, so its session is in memory");
    // Named by the URI of its second chat it comes back whole, in whichever order it is looked at.
    let after: Vec<Value> = uris.iter().rev().map(|uri| client.state(uri)).collect();
    assert!(after.iter().rev().eq(&before), "{after:?}");
    // What is in the store under the name of a chat is taken.
    let taken = json!({ "channel": session(90), "chat": chat(0) });
    assert_eq!(client.ask("createChat", taken)["error"]["code"], -32010);
}

#[test]
fn second_host_is_refused_with_the_process_id_of_the_first() {
    let folder = TempDir::new().unwrap();
    let mut first = Client::start(folder.path());
    first.create(QUIET);
    // Also one that logs nothing.
    for filter in ["warn", "off", "somebody_else=trace"] {
        let mut second = sidecar_on(folder.path());
        second.args(["--log", filter]);
        let stderr = refuses(second);
        let holder = first.process.child.id().to_string();
        for told in [folder.path().to_str().unwrap(), &holder, "--state-dir", "--ephemeral"] {
            assert!(stderr.contains(told), "`{told}` is not told: {stderr}");
        }
    }
    first.create(BUSY);
    first.kill();
    let mut next = Client::start(folder.path());
    assert_eq!(next.sessions(), [BUSY, QUIET]);
}

#[test]
fn state_folder_is_readable_by_its_owner_only() {
    let parent = TempDir::new().unwrap();
    let open = parent.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    for folder in [parent.path().join("new/folder"), open] {
        let mut client = Client::start_after("umask 000", &folder);
        client.create(QUIET);
        client.state(&chat_of(QUIET));
        client.turn(&chat_of(QUIET), "t1", "/say x");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if is_kept_program(&path) {
                continue;
            }
            assert_eq!(mode(&path), 0o600, "{}", path.display());
            names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
        names.sort();
        assert_eq!(
            names,
            [".gitignore", "lock", "sessions.made", DATABASE, "sessions.sqlite-shm", "sessions.sqlite-wal"]
        );
        client.end();
    }
}
