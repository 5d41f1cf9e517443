//! Stores of which something was changed or taken away at random places, as a client of the real
//! program sees them.
//!
//! Owns: stores of every layout that real hosts have made, damage to any of their files, and what
//! must be so whatever it is: every request is answered, and nothing that was said is silently
//! missing.
//! Never: knows what can be mended; where nothing can be, the program says what people can still
//! do.
// It looks at how processes end.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ahp_sidecar::host::effects::{ActionLine, ChannelId};
use ahp_sidecar::host::log::ReplayWindow;
use ahp_sidecar::store::reader::Reader;
use ahp_sidecar::wire::channels::ChannelKind;
use ahp_sidecar::wire::uris::default_chat_of;
use rusqlite::{params, Connection};
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::keeping::{Client, DATABASE};
use crate::store::mending::{corrupt, number_channels, put_texts_into_turns, Dice};
use crate::support::{program, sidecar_on, Process};

/// Sessions whose turns are all over; one more has a turn that runs.
const SESSIONS: usize = 6;

const NOT_FOUND: i64 = -32003;

fn session(number: usize) -> String {
    format!("ahp-session:/{number}")
}

/// Returns the text of a turn; some texts do not fit on a page.
fn text(number: usize, turn: usize) -> String {
    format!("{number}-{turn}{}", " and so on".repeat(if turn == 1 { 3 } else { 700 * number }))
}

fn turns(number: usize) -> Vec<String> {
    (1..=1 + number % 3).map(|turn| text(number, turn)).collect()
}

/// Returns the turns that each session must have when it is loaded.
fn expected() -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<_, _> = (1..=SESSIONS).map(|number| (session(number), turns(number))).collect();
    all.insert(session(SESSIONS + 1), vec!["begun".to_owned()]);
    all
}

/// The files of a state folder.
type Files = BTreeMap<String, Vec<u8>>;

fn files_of(folder: &Path) -> Files {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let files = files.filter(|path| path.is_file());
    files
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()))
        .collect()
}

fn put(files: &Files, folder: &Path) {
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

/// State folders as hosts have left them: killed, with a log; the same without one; and as earlier
/// versions would have.
fn left_behind() -> Vec<(&'static str, Files)> {
    let folder = TempDir::new().unwrap();
    let mut client = Client::of(Process::start_on(folder.path(), &[]));
    for number in 1..=SESSIONS {
        // All but the last one are in the database when the log begins anew.
        if number == SESSIONS {
            client.kill();
            without_log(folder.path());
            client = Client::of(Process::start_on(folder.path(), &[]));
        }
        client.create(&session(number));
        let chat = default_chat_of(&session(number));
        client.state(&chat);
        for (at, text) in turns(number).iter().enumerate() {
            client.turn(&chat, &format!("t{at}"), &format!("/say {text}"));
        }
    }
    client.create(&session(SESSIONS + 1));
    let chat = default_chat_of(&session(SESSIONS + 1));
    client.state(&chat);
    client.start_turn(&chat, "running", "/say begun\n/hang");
    client.until("chat/responsePart");
    client.kill();
    let killed = files_of(folder.path());
    without_log(folder.path());
    let closed = files_of(folder.path());
    let mut all = vec![("killed", killed), ("closed", closed)];
    let log = Reader::open(&folder.path().join(DATABASE), ReplayWindow::default()).unwrap();
    let log = log.actions_since(0).unwrap().unwrap();
    for (name, layout) in [("layout 3", 3), ("layout 2", 2), ("layout 1", 1)] {
        to_layout(folder.path(), layout, &log);
        all.push((name, files_of(folder.path())));
    }
    all
}

/// Has all that is in the log be in the database.
fn without_log(folder: &Path) {
    Connection::open(folder.join(DATABASE))
        .unwrap()
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
}

/// Makes a store that has this log as an earlier version has left it.
fn to_layout(folder: &Path, layout: u32, log: &[(ChannelId, ActionLine)]) {
    let database = Connection::open(folder.join(DATABASE)).unwrap();
    if layout == 3 {
        put_texts_into_turns(&database);
        number_channels(&database);
        return;
    }
    fs::remove_file(folder.join("sessions.made")).ok();
    if layout == 2 {
        database.execute_batch("DROP TABLE agents; PRAGMA user_version = 2").unwrap();
        return;
    }
    database
        .execute_batch(
            "DROP TABLE actions; DROP TABLE clients;
            CREATE TABLE actions (seq INTEGER PRIMARY KEY, channel INTEGER NOT NULL, sum INTEGER NOT NULL,
                line BLOB NOT NULL);
            PRAGMA user_version = 1",
        )
        .unwrap();
    for (target, ActionLine { line, server_seq, .. }) in log {
        let channel = match (target.kind, target.key) {
            (ChannelKind::Root, _) => 0,
            (ChannelKind::Session, key) => key * 2 - 1,
            (ChannelKind::Chat, key) => key * 2,
            // What is told on it is in no log.
            (ChannelKind::Watch | ChannelKind::Terminal | ChannelKind::Canvas, _) => continue,
            (
                ChannelKind::Changeset
                | ChannelKind::Annotations
                | ChannelKind::Automations
                | ChannelKind::AutomationRun,
                _,
            ) => continue,
        };
        let mut sum = crc32fast::Hasher::new();
        [&server_seq.to_le_bytes()[..], &channel.to_le_bytes(), line]
            .iter()
            .for_each(|part| sum.update(part));
        let row = params![*server_seq as i64, channel as i64, sum.finalize(), &line[..]];
        database.execute("INSERT INTO actions VALUES (?1, ?2, ?3, ?4)", row).unwrap();
    }
}

/// Changes something in a file or takes it away. Returns what was done, and whether the newest of
/// what was said may be missing as if it had never been: that is what a log is without its end.
fn damage(folder: &Path, dice: &mut Dice) -> (String, bool) {
    let log = format!("{DATABASE}-wal");
    let has_log = folder.join(&log).exists();
    let others = [log, format!("{DATABASE}-shm"), "sessions.made".to_owned()];
    let there: Vec<&String> = others.iter().filter(|name| folder.join(name).exists()).collect();
    if there.is_empty() || dice.roll(4) > 0 && !(has_log && dice.roll(2) == 0) {
        // Of a store with a log, what is in both is read from the log.
        return (corrupt(&folder.join(DATABASE), dice), has_log);
    }
    let name = there[dice.roll(there.len())];
    let path = folder.join(name);
    let mut bytes = fs::read(&path).unwrap();
    let what = match dice.roll(4) {
        0 => {
            fs::remove_file(&path).unwrap();
            return (format!("{name} is gone"), has_log);
        }
        1 => {
            bytes.truncate(dice.roll(bytes.len() + 1));
            format!("{name} is cut at {}", bytes.len())
        }
        _ if bytes.is_empty() => format!("{name} is empty"),
        2 => {
            let at = dice.roll(bytes.len());
            bytes[at] ^= 1 << dice.roll(8);
            format!("{name}: bit at {at}")
        }
        _ => {
            let start = dice.roll(bytes.len());
            let end = (start + 1 + dice.roll(5000)).min(bytes.len());
            bytes[start..end].iter_mut().for_each(|byte| *byte = dice.roll(256) as u8);
            format!("{name}: {start} to {end} is noise")
        }
    };
    fs::write(&path, bytes).unwrap();
    (what, has_log)
}

/// A client that takes it that the host may end.
struct Visitor {
    host: Process,
    asked: u64,
}

/// The host has ended.
struct Ended;

impl Visitor {
    fn ask(&mut self, method: &str, params: Value) -> Result<Value, Ended> {
        self.asked += 1;
        let id = self.asked;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        if self.host.try_say(&request.to_string()).is_err() {
            return Err(Ended);
        }
        loop {
            let line = self.host.next_line().ok_or(Ended)?;
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                return Ok(message);
            }
        }
    }

    /// Returns the turns of a chat, without those that are shown as damaged, or `None` if an error
    /// says that the chat cannot be shown.
    fn turns(&mut self, session: &str, what: &str) -> Result<Option<Vec<ShownTurn>>, Ended> {
        let mut told = self.ask("subscribe", json!({ "channel": session }))?;
        if told["error"].is_null() {
            told = self.ask("subscribe", json!({ "channel": default_chat_of(session) }))?;
        }
        if let Some(error) = told.get("error") {
            assert_ne!(error["code"], NOT_FOUND, "{what}: {session} is silently gone");
            return Ok(None);
        }
        let chat = &told["result"]["snapshot"]["state"];
        assert!(chat["activeTurn"].is_null(), "{what}: {chat}");
        let shown = |turn: &Value| -> ShownTurn {
            let parts = turn["responseParts"].as_array().unwrap();
            if parts.iter().any(|part| part["error"]["errorType"] == "damaged") {
                return None;
            }
            Some(parts.iter().filter_map(|part| part["content"].as_str()).collect())
        };
        Ok(Some(chat["turns"].as_array().unwrap().iter().map(shown).collect()))
    }
}

/// Text of a turn; `None` if it is shown as damaged.
type ShownTurn = Option<String>;

/// Turns of each readable session, and whether a new session works; `None` when the host refused
/// the store.
type Seen = Option<(BTreeMap<String, Vec<ShownTurn>>, bool)>;

fn visit(folder: &Path, round: u32, what: &str, may_miss: bool) -> Seen {
    let complaints = folder.with_extension("log");
    let mut command = sidecar_on(folder);
    command.stderr(Stdio::from(File::create(&complaints).unwrap()));
    let mut visitor = Visitor { host: Process::spawn(command), asked: 0 };
    let seen = visit_all(&mut visitor, round, what, may_miss);
    visitor.host.end();
    while visitor.host.next_line().is_some() {}
    let status = visitor.host.wait();
    let complaints = fs::read_to_string(complaints).unwrap();
    assert!(status.signal().is_none() && status.code() != Some(101), "{what}: {status}\n{complaints}");
    assert!(!complaints.contains("panicked"), "{what}: {complaints}");
    match seen {
        Ok(seen) => Some(seen),
        Err(Ended) => {
            assert_eq!(status.code(), Some(3), "{what}: {complaints}");
            let way_out = ["sessions list", "start without sessions", "was not touched", "cannot be used"];
            assert!(way_out.iter().any(|way| complaints.contains(way)), "{what}: {complaints}");
            if complaints.contains("sessions list") {
                let mut list = program();
                list.args(["sessions", "list", "--state-dir"]).arg(folder).stdin(Stdio::null());
                let list = list.output().unwrap();
                let complaints = String::from_utf8_lossy(&list.stderr);
                assert_eq!(list.status.code(), Some(0), "{what}: `sessions list` works not: {complaints}");
            }
            None
        }
    }
}

fn visit_all(
    visitor: &mut Visitor,
    round: u32,
    what: &str,
    may_miss: bool,
) -> Result<(BTreeMap<String, Vec<ShownTurn>>, bool), Ended> {
    let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
    visitor.ask("initialize", hello)?;
    let listed = visitor.ask("listSessions", json!({ "channel": "ahp-root://" }))?;
    let items = listed["result"]["items"].as_array().cloned();
    let mut seen = BTreeMap::new();
    for (session, expected) in expected() {
        if let Some(items) = items.as_ref().filter(|_| !may_miss) {
            // The URI of one that is damaged may not be known.
            let is_listed = items.iter().any(|item| item["resource"] == *session)
                || items.iter().any(|item| item["title"].as_str().unwrap_or("").contains("cannot be read"));
            assert!(is_listed, "{what}: {session} is not listed: {listed}");
        }
        let Some(turns) = visitor.turns_unless_missing(&session, what, may_miss)? else { continue };
        let is_right = is_whole(&turns, &expected) || may_miss && is_older(&turns, &expected);
        assert!(is_right, "{what}: of {session} there is {turns:?}");
        seen.insert(session, turns);
    }
    let new = format!("ahp-session:/new-{round}");
    let created = visitor.ask("createSession", json!({ "channel": new }))?;
    let message = json!({ "text": "/say new", "origin": { "kind": "user" } });
    let action = json!({ "type": "chat/turnStarted", "turnId": "t", "message": message,
        "startedAt": "2026-01-01T00:00:00Z" });
    let params = json!({ "channel": default_chat_of(&new), "clientSeq": 1, "action": action });
    let turn = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
    visitor.host.try_say(&turn.to_string()).map_err(|_| Ended)?;
    visitor.ask("ping", json!({ "channel": "ahp-root://" }))?;
    Ok((seen, created["error"].is_null()))
}

/// Returns whether these are all turns of the session, each whole or shown as damaged.
fn is_whole(turns: &[ShownTurn], all: &[String]) -> bool {
    turns.len() == all.len() && is_begin(turns, all)
}

/// Returns whether these turns equal an earlier state of the session; the last one may be
/// incomplete.
fn is_older(turns: &[ShownTurn], all: &[String]) -> bool {
    let Some((last, before)) = turns.split_last() else { return true };
    let is_begin_of = |whole: &String| last.as_ref().is_none_or(|last| whole.starts_with(last));
    is_begin(before, all) && all.get(before.len()).is_some_and(is_begin_of)
}

fn is_begin(turns: &[ShownTurn], all: &[String]) -> bool {
    turns.len() <= all.len()
        && turns.iter().zip(all).all(|(turn, text)| turn.as_ref().is_none_or(|it| it == text))
}

impl Visitor {
    fn turns_unless_missing(
        &mut self,
        session: &str,
        what: &str,
        may_miss: bool,
    ) -> Result<Option<Vec<ShownTurn>>, Ended> {
        if may_miss {
            let told = self.ask("subscribe", json!({ "channel": session }))?;
            if told["error"]["code"] == NOT_FOUND {
                return Ok(None);
            }
        }
        self.turns(session, what)
    }
}

fn try_one(left: &[(&str, Files)], seed: u64) -> (String, Seen) {
    let mut dice = Dice::of(seed);
    let (name, files) = &left[dice.roll(left.len())];
    let outer = TempDir::new().unwrap();
    let folder = outer.path().join("state");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    put(files, &folder);
    let (what, may_miss) = damage(&folder, &mut dice);
    let what = format!("RUINS_SEED={seed} RUINS_CASES=1, {name}: {what}");
    let seen = visit(&folder, 1, &what, may_miss);
    if let (Some((before, _)), 0) = (&seen, dice.roll(3)) {
        // What could be read is still there.
        let (again, _) = visit(&folder, 2, &what, may_miss).unwrap_or_default();
        assert_eq!(&again, before, "{what}: the second time");
    }
    (what, seen)
}

#[test]
fn damaged_store_serves_every_request_and_loses_no_session_silently() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let cases = number("RUINS_CASES").unwrap_or(40);
    let seed = number("RUINS_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::from(now.subsec_nanos())
    });
    println!("RUINS_SEED={seed}");
    let left = left_behind();
    let next = AtomicU64::new(0);
    let (whole, usable, refused) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let count = |number: &AtomicU64, is: bool| number.fetch_add(u64::from(is), Ordering::Relaxed);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| loop {
                let case = next.fetch_add(1, Ordering::Relaxed);
                if case >= cases {
                    return;
                }
                let (what, seen) = try_one(&left, seed.wrapping_add(case));
                let all = seen.as_ref().is_some_and(|(sessions, _)| sessions.len() == SESSIONS + 1);
                println!(
                    "{what}: {}",
                    seen.as_ref().map_or("refused".to_owned(), |it| it.0.len().to_string())
                );
                count(&whole, all);
                count(&usable, seen.as_ref().is_some_and(|(_, new)| *new));
                count(&refused, seen.is_none());
            });
        }
    });
    println!("{whole:?} of {cases} whole, {usable:?} usable, {refused:?} refused");
    // Damage to one place leaves most stores of use.
    assert!(cases < 20 || usable.into_inner() * 2 >= cases, "hardly any store could be used");
}
