//! Stores of which something is gone or was changed: what can be made again is, a store that is
//! gone is not begun anew, and nothing that was said is silently missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ahp_sidecar::host::effects::{ActionLine, ChannelId, ChannelRow, ChatKey, Output, Record, SessionKey};
use ahp_sidecar::host::log::ReplayWindow;
use ahp_sidecar::io::persistence::Persistence;
use ahp_sidecar::store::archive::{Archive, ArchivedSession};
use ahp_sidecar::store::errors::StoreError;
use ahp_sidecar::store::reader::Reader;
use ahp_sidecar::store::space::Due;
use ahp_sidecar::store::sqlite::Writer;
use ahp_sidecar::store::StoreOptions;

use super::{
    action, assert_whole, beside, chat, copy, everything, large_turn, load, open, place, reader, session,
    titles, uri, whole,
};
use crate::support::HUNG;

const SESSIONS: u64 = 6;

/// The session with a turn that runs.
const RUNNING: u64 = 7;

fn sql(path: &Path, sql: &str) {
    ::rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

fn try_open(path: &Path) -> Result<(Writer, ahp_sidecar::host::Start), StoreError> {
    Writer::open(path, StoreOptions::default())
}

fn on_running(seq: u64) -> Record {
    action(ChannelId::from(ChatKey(1000 + RUNNING)), seq, 10)
}

/// Fills a store: six sessions of three turns, one of them with a large one besides, one with a
/// turn that runs, and something in every other table.
fn fill(writer: &mut Writer) {
    for key in 1..=SESSIONS {
        writer.commit(&whole(key)).unwrap();
    }
    let said = bytes::Bytes::from_static(b"{}");
    let client = Record::Client { id: "me".to_owned(), version: "1.0.0" };
    let agent = Record::AgentDescribed { provider: "script".to_owned(), description: said.clone() };
    let channel = Record::Channel(ChannelRow { id: ChannelId::ROOT, body: said });
    writer.commit(&[client, agent, channel, Record::Agents(7), Record::Trial(SessionKey(3))]).unwrap();
    writer.commit(&super::actions(1..=20)).unwrap();
    writer.commit(&[session(RUNNING), chat(RUNNING, true, 20), on_running(21), on_running(22)]).unwrap();
    let large = (23..60).map(|seq| {
        let line = bytes::Bytes::from(format!("{seq}{}", "x".repeat(2000)));
        Record::Action(ChannelId::ROOT, ActionLine { line, server_seq: seq, delta: None })
    });
    writer.commit(&large.collect::<Vec<_>>()).unwrap();
}

/// The last number in it.
const LAST: u64 = 59;

/// Makes a store look as one of an earlier version.
fn to_layout(path: &Path, layout: usize) {
    let version = |connection: ::rusqlite::Connection| -> i64 {
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
    };
    if layout < 7 && version(::rusqlite::Connection::open(path).unwrap()) == 7 {
        put_contents_into_texts(&::rusqlite::Connection::open(path).unwrap());
    }
    if layout < 6 && version(::rusqlite::Connection::open(path).unwrap()) == 6 {
        sql(path, "ALTER TABLE turns DROP COLUMN facts; PRAGMA user_version = 5");
    }
    if layout < 5 {
        put_texts_into_turns(&::rusqlite::Connection::open(path).unwrap());
    }
    if layout < 4 {
        number_channels(&::rusqlite::Connection::open(path).unwrap());
    }
    if layout < 3 {
        sql(path, "DROP TABLE IF EXISTS agents; PRAGMA user_version = 2");
    }
    if layout < 2 {
        sql(
            path,
            "DROP TABLE actions; DROP TABLE IF EXISTS clients;
            CREATE TABLE actions (seq INTEGER PRIMARY KEY, channel INTEGER NOT NULL, sum INTEGER NOT NULL,
                line BLOB NOT NULL);
            PRAGMA user_version = 1",
        );
        let connection = ::rusqlite::Connection::open(path).unwrap();
        for seq in 1..=22_i64 {
            let channel = if seq > 20 { i64::try_from(1000 + RUNNING).unwrap() * 2 } else { 0 };
            let line = format!("{seq:010}");
            let sum = sum(&[&seq.to_le_bytes(), &channel.to_le_bytes(), line.as_bytes()]);
            connection
                .execute(
                    "INSERT INTO actions VALUES (?1, ?2, ?3, ?4)",
                    ::rusqlite::params![seq, channel, sum, line.as_bytes()],
                )
                .unwrap();
        }
    }
    fs::remove_file(path.with_file_name("sessions.made")).ok();
}

fn sum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// Has the texts of a store hold their contents, as they did before version 7.
fn put_contents_into_texts(connection: &::rusqlite::Connection) {
    let plain = |kept: &[u8]| match kept.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        true => zstd::decode_all(kept).unwrap(),
        false => kept.to_vec(),
    };
    let mut all = connection.prepare("SELECT key, text FROM texts ORDER BY key").unwrap();
    let texts: BTreeMap<i64, Vec<u8>> =
        all.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect();
    for (key, kept) in texts.iter().filter(|(_, kept)| kept.starts_with(b"\0con")) {
        let number = |at: usize| u64::from_le_bytes(kept[at..at + 8].try_into().unwrap());
        let count = u32::from_le_bytes(kept[8..12].try_into().unwrap()) as usize;
        let frame = plain(&kept[12 + 16 * count..]);
        let (mut text, mut end) = (Vec::new(), 0);
        for at in (0..count).map(|place| 12 + 16 * place) {
            let (content, place) = (number(at) as i64, number(at + 8) as usize);
            text.extend_from_slice(&frame[end..place]);
            text.extend_from_slice(&plain(&texts[&content]));
            end = place;
        }
        text.extend_from_slice(&frame[end..]);
        let values = ::rusqlite::params![key, text];
        connection.execute("UPDATE texts SET text = ?2 WHERE key = ?1", values).unwrap();
    }
    drop(all);
    let drop = "DELETE FROM texts WHERE key NOT IN (SELECT text FROM turns);
        DELETE FROM shared_texts WHERE key NOT IN (SELECT text FROM turns);
        DROP TABLE contents; ALTER TABLE turns DROP COLUMN content_bytes; PRAGMA user_version = 6";
    connection.execute_batch(drop).unwrap();
}

/// Has the turns of a store hold their texts, as they did before version 5.
pub fn put_texts_into_turns(connection: &::rusqlite::Connection) {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    if version < 5 {
        return;
    }
    if version == 7 {
        put_contents_into_texts(connection);
    }
    let create = "DROP INDEX turns_by_place;
        ALTER TABLE turns RENAME TO apart;
        CREATE TABLE turns (
            chat INTEGER NOT NULL, place INTEGER NOT NULL, sum INTEGER NOT NULL, body BLOB NOT NULL,
            PRIMARY KEY (chat, place)
        ) WITHOUT ROWID;";
    connection.execute_batch(create).unwrap();
    let sql = "SELECT chat, place, x.text FROM apart a JOIN texts x ON x.key = a.text";
    let mut apart = connection.prepare(sql).unwrap();
    let mut rows = apart.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (chat, place): (i64, i64) = (row.get(0).unwrap(), row.get(1).unwrap());
        let mut body: Vec<u8> = row.get(2).unwrap();
        if !body.starts_with(b"{") && !body.starts_with(b"x") {
            body = zstd::decode_all(&body[..]).unwrap();
        }
        let sum = sum(&[&chat.to_le_bytes(), &place.to_le_bytes(), &body]);
        let values = ::rusqlite::params![chat, place, sum, body];
        connection.execute("INSERT INTO turns VALUES (?1, ?2, ?3, ?4)", values).unwrap();
    }
    drop(rows);
    drop(apart);
    let drop = "DROP TABLE apart; DROP TABLE texts; DROP TABLE shared_texts; PRAGMA user_version = 4";
    connection.execute_batch(drop).unwrap();
}

/// Has the log of a store call channels by numbers, as it did before version 4: 0 is the root, an
/// odd number a session and an even one a chat.
pub fn number_channels(connection: &::rusqlite::Connection) {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    if version < 4 {
        return;
    }
    let create = "ALTER TABLE actions RENAME TO named;
        CREATE TABLE actions (
            last INTEGER PRIMARY KEY, first INTEGER NOT NULL, channel INTEGER NOT NULL, line_bytes INTEGER NOT NULL,
            sum INTEGER NOT NULL, packed BLOB NOT NULL
        );";
    connection.execute_batch(create).unwrap();
    let mut named =
        connection.prepare("SELECT last, first, kind, key, line_bytes, packed FROM named").unwrap();
    let mut rows = named.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (last, first): (i64, i64) = (row.get(0).unwrap(), row.get(1).unwrap());
        let (kind, key): (String, i64) = (row.get(2).unwrap(), row.get(3).unwrap());
        let (line_bytes, packed): (i64, Vec<u8>) = (row.get(4).unwrap(), row.get(5).unwrap());
        let channel = match kind.as_str() {
            "root" => 0,
            "session" => key * 2 - 1,
            "chat" => key * 2,
            other => panic!("before version 4 there was no channel of the kind {other}"),
        };
        let sum = sum(&[&first.to_le_bytes(), &last.to_le_bytes(), &channel.to_le_bytes(), &packed]);
        let values = ::rusqlite::params![last, first, channel, line_bytes, sum, packed];
        connection.execute("INSERT INTO actions VALUES (?1, ?2, ?3, ?4, ?5, ?6)", values).unwrap();
    }
    drop(rows);
    drop(named);
    connection.execute_batch("DROP TABLE named; DROP TABLE channels; PRAGMA user_version = 3").unwrap();
}

/// Puts a closed store back.
fn put_back(path: &Path, bytes: &[u8]) {
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(path, suffix)).ok();
    }
    fs::write(path, bytes).unwrap();
}

/// Writes zeroes over the first page of a table or an index.
fn wipe(path: &Path, name: &str) {
    let connection = ::rusqlite::Connection::open(path).unwrap();
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let number = |sql: &str| usize::try_from(number(sql)).unwrap();
    let page = number(&format!("SELECT rootpage FROM sqlite_schema WHERE name = '{name}'"));
    let size = number("PRAGMA page_size");
    drop(connection);
    let mut bytes = fs::read(path).unwrap();
    bytes[(page - 1) * size..page * size].fill(0);
    fs::write(path, bytes).unwrap();
}

/// Checks that all content is present and that the store is usable.
fn assert_as_before(path: &Path, what: &str) {
    let (mut writer, start) = try_open(path).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(start.head >= LAST, "{what}: numbers begin at {}", start.head);
    let reader = reader(path);
    for key in 1..=SESSIONS {
        assert_whole(&load(&reader, key).unwrap().unwrap(), key);
        assert_eq!(reader.find(&uri(key)).unwrap(), Some(SessionKey(key)), "{what}");
        assert_eq!(reader.find(&format!("ahp-chat:/{key}")).unwrap(), Some(SessionKey(key)), "{what}");
    }
    assert_eq!(titles(&reader).len(), 7, "{what}");
    assert_eq!(reader.find("ahp-session:/new").unwrap(), None, "{what}");
    writer.commit(&whole(50)).unwrap_or_else(|error| panic!("{what}: {error}"));
    writer.commit(&[Record::SessionRemoved(SessionKey(50)), Record::Sync]).unwrap();
    drop(writer);
    // Mended once, it is sound.
    drop(try_open(path).unwrap());
}

#[test]
fn rebuildable_tables_and_indexes_are_rebuilt() {
    let (_folder, path) = place();
    fill(&mut open(&path).0);
    let sound = fs::read(&path).unwrap();
    for damage in [
        "DROP TABLE trials",
        "DROP TABLE lives",
        "DROP TABLE agents",
        "DROP TABLE clients",
        "DROP TABLE meta",
        "DELETE FROM meta",
        "UPDATE meta SET sum = sum + 1",
        "UPDATE meta SET value = 'x'",
        "UPDATE lives SET sum = sum + 1",
        "DROP TABLE trials; DROP TABLE lives; DROP TABLE meta",
        "DROP INDEX sessions_by_uri",
        "DROP INDEX sessions_by_time",
        "DROP INDEX sessions_removed",
        "DROP INDEX chats_by_session",
        "DROP INDEX chats_by_uri",
        "DROP INDEX chats_running",
    ] {
        put_back(&path, &sound);
        sql(&path, damage);
        assert_as_before(&path, damage);
    }
    for name in [
        "trials",
        "lives",
        "agents",
        "channels",
        "sqlite_autoindex_agents_1",
        "clients",
        "sqlite_autoindex_clients_1",
        "sqlite_sequence",
        "meta",
        "sessions_by_uri",
        "sessions_by_time",
        "sessions_removed",
        "chats_by_session",
        "chats_by_uri",
        "chats_running",
        "actions",
    ] {
        put_back(&path, &sound);
        wipe(&path, name);
        assert_as_before(&path, name);
        // What ran needs the log: it is told that it is damaged, if it is.
        match load(&reader(&path), RUNNING) {
            Ok(saved) => assert_eq!(saved.unwrap().chats[0].actions.len(), 2, "{name}"),
            Err(error) => assert!(name == "actions" && matches!(error, StoreError::Damaged(_)), "{error}"),
        }
    }
}

#[test]
fn unrebuildable_store_can_still_be_listed_and_exported() {
    let (_folder, path) = place();
    fill(&mut open(&path).0);
    let sound = fs::read(&path).unwrap();
    for name in ["chats", "turns", "texts"] {
        put_back(&path, &sound);
        wipe(&path, name);
        if let Err(error) = try_open(&path) {
            assert!(error.to_string().contains("sessions export"), "{error}");
        }
        let listed = Archive::look_into(&path).unwrap().list().unwrap();
        assert_eq!(listed.len(), 7, "{name}");
        // In the last one nothing is over: nothing of it is gone with turns.
        let has_turns = |entry: &ArchivedSession| entry.key != SessionKey(RUNNING) || name == "chats";
        assert!(listed.iter().filter(|it| has_turns(it)).all(|it| it.extent.is_none()), "{name}: {listed:?}");
        for key in 1..=SESSIONS {
            assert!(reader(&path).load(SessionKey(key)).is_err(), "{name}: {key}");
        }
    }
    put_back(&path, &sound);
    sql(&path, "DROP TABLE sessions");
    let refused = try_open(&path).unwrap_err().to_string();
    assert!(refused.contains("no session in it is readable"), "{refused}");
}

#[test]
fn lost_store_is_not_replaced_by_a_new_one() {
    let (folder, path) = place();
    fill(&mut open(&path).0);
    let empty = folder.path().join("empty");
    sql(&empty, "VACUUM");
    let emptied = fs::read(&empty).unwrap();
    for (contents, said) in
        [(None, "does not exist"), (Some(&[][..]), "is empty"), (Some(&emptied), "contains no tables")]
    {
        fs::remove_file(&path).ok();
        if let Some(contents) = contents {
            fs::write(&path, contents).unwrap();
        }
        let refused = try_open(&path).unwrap_err().to_string();
        assert!(refused.contains(said) && refused.contains("start without sessions"), "{refused}");
        assert!(Archive::look_into(&path).is_err() && Archive::open(&path).is_err());
        assert_eq!(fs::read(&path).ok().as_deref(), contents, "it was not left alone");
    }
    // Without the mark it is a place where nothing was.
    fs::remove_file(path.with_file_name("sessions.made")).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!open(&path).1.continues);
}

#[test]
fn store_that_lost_its_wal_is_not_replaced_by_a_new_one() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    fill(&mut writer);
    let (_copied, killed) = copy(&path);
    fs::copy(path.with_file_name("sessions.made"), killed.with_file_name("sessions.made")).unwrap();
    fs::remove_file(beside(&killed, "-wal")).unwrap();
    let refused = try_open(&killed).unwrap_err().to_string();
    assert!(refused.contains("contains no tables"), "{refused}");
    // The same of a version that left no mark.
    let (_copied, killed) = copy(&path);
    fs::remove_file(&killed).unwrap();
    assert!(try_open(&killed).unwrap_err().to_string().contains("does not exist"));
    assert!(beside(&killed, "-wal").exists());
}

#[test]
fn interrupted_store_creation_is_completed() {
    for is_there in [false, true] {
        let (_folder, path) = place();
        let mark = path.with_file_name("sessions.made");
        fs::write(&mark, "making\n").unwrap();
        if is_there {
            fs::write(&path, "").unwrap();
        }
        assert!(!open(&path).1.continues);
        assert!(fs::read_to_string(&mark).unwrap().contains("made, numbers"));
    }
}

#[test]
fn store_without_a_creation_mark_gets_one() {
    let (_folder, path) = place();
    fill(&mut open(&path).0);
    to_layout(&path, 1);
    assert_as_before(&path, "version 1");
    fs::remove_file(&path).unwrap();
    assert!(matches!(try_open(&path), Err(StoreError::Lost(..))));
}

#[test]
fn older_copy_of_a_store_reuses_no_number() {
    let (_folder, path) = place();
    drop(open(&path));
    let older = fs::read(&path).unwrap();
    let heads: Vec<u64> = (0..3).map(|_| open(&path).1.head).collect();
    put_back(&path, &older);
    let head = open(&path).1.head;
    assert!(head > heads[2], "{head} after {heads:?}");
}

#[test]
fn long_wal_is_checkpointed_when_idle_and_emptied_on_close() {
    let folder = tempfile::tempdir().unwrap();
    let opened = Persistence::open(folder.path(), StoreOptions::default()).unwrap();
    let (mut persistence, mut kept) = (opened.persistence, opened.events);
    let path = folder.path().join(super::FILE_NAME);
    let log = || fs::metadata(beside(&path, "-wal")).map_or(0, |log| log.len());
    let large = |place| Record::Turn(ChatKey(1002), place, large_turn());
    let records =
        [whole(1), vec![session(2)], (0..40).map(large).collect(), vec![chat(2, false, 0)]].concat();
    persistence.keep(records.into_iter().map(Output::Record).collect(), false);
    assert!(kept.blocking_recv().is_some());
    assert!(log() > 40 << 20);
    let start = std::time::Instant::now();
    while log() > 1 << 20 {
        assert!(start.elapsed() < HUNG, "the log has {} bytes", log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    persistence.keep(vec![Output::Record(session(3))], false);
    assert!(kept.blocking_recv().is_some());
    persistence.close(HUNG);
    assert_eq!(log(), 0);
    assert_whole(&load(&reader(&path), 1).unwrap().unwrap(), 1);
}

#[test]
fn expired_trash_is_deleted_in_small_steps() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    let large = |place| Record::Turn(ChatKey(1002), place, large_turn());
    writer.commit(&whole(1)).unwrap();
    let records = [vec![session(2)], (0..20).map(large).collect(), vec![chat(2, false, 0)]].concat();
    writer.commit(&records).unwrap();
    writer.commit(&[Record::SessionRemoved(SessionKey(2))]).unwrap();
    drop(writer);
    let options = || StoreOptions { trash: std::time::Duration::ZERO, ..StoreOptions::default() };
    let turns = || -> i64 {
        let connection = ::rusqlite::Connection::open(&path).unwrap();
        connection.query_row("SELECT count(*) FROM turns WHERE chat = 1002", [], |row| row.get(0)).unwrap()
    };
    // Opening the store removes nothing; a process that ends in the middle leaves nothing behind
    // for good.
    let (mut writer, _) = Writer::open(&path, options()).unwrap();
    assert_eq!(turns(), 20);
    let mut times = 0;
    while turns() > 10 {
        assert_eq!(writer.tidy_some().unwrap(), Due::Now);
        times += 1;
    }
    assert!(times > 2, "it took {times} times");
    drop(writer);
    assert_eq!(Archive::look_into(&path).unwrap().list().unwrap().len(), 1, "it can be seen half removed");
    let (mut writer, _) = Writer::open(&path, options()).unwrap();
    while writer.tidy_some().unwrap() == Due::Now {}
    assert_eq!(turns(), 0);
    let sql = "SELECT (SELECT count(*) FROM sessions) + (SELECT count(*) FROM chats)";
    let rows: i64 =
        ::rusqlite::Connection::open(&path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 2);
    assert_whole(&load(&reader(&path), 1).unwrap().unwrap(), 1);
}

#[test]
fn reading_an_archive_changes_no_file_of_any_layout() {
    let (folder, path) = place();
    fill(&mut open(&path).0);
    let files = || {
        let files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = files.map(|file| (file.clone(), fs::read(file).unwrap())).collect();
        files.sort();
        files
    };
    for layout in [6, 5, 4, 3, 2, 1] {
        to_layout(&path, layout);
        assert!(!beside(&path, "-wal").exists());
        let before = files();
        let archive = Archive::look_into(&path).unwrap();
        assert_eq!(archive.list().unwrap().len(), 7);
        assert_eq!(archive.actions(SessionKey(RUNNING)).unwrap().len(), 2, "layout {layout}");
        drop(archive);
        assert!(files() == before, "layout {layout}");
    }
}

/// Numbers that look random, and are the same for the same seed.
pub struct Dice(u64);

impl Dice {
    /// The first numbers of seeds that follow each other are alike.
    pub fn of(seed: u64) -> Self {
        let mut dice = Self(seed);
        dice.roll(2);
        dice
    }

    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % sides as u64).unwrap()
    }
}

/// Takes something away from a closed store, or changes it. Returns what was done.
pub fn corrupt(path: &Path, dice: &mut Dice) -> String {
    const OBJECTS: [&str; 16] = [
        "meta",
        "lives",
        "trials",
        "clients",
        "actions",
        "turns",
        "chats",
        "sessions",
        "agents",
        "channels",
        "sessions_by_uri",
        "sessions_by_time",
        "sessions_removed",
        "chats_by_session",
        "chats_by_uri",
        "chats_running",
    ];
    let mut bytes = fs::read(path).unwrap();
    let pages = (bytes.len() / PAGE).max(1);
    let what = match dice.roll(8) {
        0 | 1 => {
            let at = dice.roll(bytes.len());
            bytes[at] ^= 1 << dice.roll(8);
            format!("bit at {at}")
        }
        2 => {
            let page = dice.roll(pages);
            bytes[page * PAGE..(page + 1) * PAGE].fill(0);
            format!("page {page} is zeroes")
        }
        3 => {
            let page = dice.roll(pages);
            bytes[page * PAGE..(page + 1) * PAGE].iter_mut().for_each(|byte| *byte = dice.roll(256) as u8);
            format!("page {page} is noise")
        }
        4 => {
            let (from, to) = (dice.roll(pages), dice.roll(pages));
            let page = bytes[from * PAGE..(from + 1) * PAGE].to_vec();
            bytes[to * PAGE..(to + 1) * PAGE].copy_from_slice(&page);
            format!("page {from} is also page {to}")
        }
        5 => {
            let length = dice.roll(bytes.len());
            bytes.truncate(length);
            format!("cut at {length}")
        }
        6 => {
            let start = dice.roll(bytes.len());
            let end = (start + 1 + dice.roll(3000)).min(bytes.len());
            bytes[start..end].fill(0xff);
            format!("{start} to {end} is wiped")
        }
        _ => {
            let name = OBJECTS[dice.roll(OBJECTS.len())];
            let kind = if name.contains('_') { "INDEX" } else { "TABLE" };
            let connection = ::rusqlite::Connection::open(path).unwrap();
            connection.execute_batch(&format!("DROP {kind} IF EXISTS {name}")).unwrap();
            return format!("{name} is dropped");
        }
    };
    fs::write(path, bytes).unwrap();
    what
}

const PAGE: usize = 16 << 10;

/// Checks that each written session is either returned or reported as damaged. Returns the number
/// of sessions that are missing without a report.
fn assert_honest(path: &Path, what: &str) -> usize {
    let opened = try_open(path);
    let archive = Archive::look_into(path).and_then(|archive| archive.list());
    let Ok((mut writer, start)) = opened else { return 0 };
    assert!(start.head >= LAST, "{what}: numbers begin at {}", start.head);
    let listed = archive.map_or(usize::MAX, |listed| listed.len());
    let Ok(reader) = Reader::open(path, ReplayWindow::default()) else { return 0 };
    let mut unseen = 0;
    for round in 0..2 {
        for key in 1..=SESSIONS {
            match reader.load(SessionKey(key)) {
                Ok(Some(saved)) => assert_whole(&saved, key),
                Ok(None) => unseen += 1,
                Err(_) => {}
            }
        }
        if let Ok(Some(saved)) = reader.load(SessionKey(RUNNING)) {
            if saved.chats[0].row.running {
                // A page of the log that looks like a sound one, but is another, is not noticed.
                let actions = &saved.chats[0].actions;
                assert!(
                    actions.iter().all(|line| [&b"0000000021"[..], b"0000000022"].contains(&&line[..])),
                    "{what}"
                );
                unseen += 2 - actions.len();
            }
        }
        reader.list(&everything()).ok();
        reader.find("ahp-session:/new").ok();
        reader.actions_since(5).ok();
        if round == 0 && writer.commit(&whole(50)).is_ok() {
            // Where two trees share a page, what is written into one of them is damaged by the
            // other.
            if let Ok(saved) = reader.load(SessionKey(50)) {
                assert_whole(&saved.unwrap(), 50);
            }
        }
        writer.tidy_some().ok();
    }
    // What no list has is not silently missing where it can be counted.
    if unseen > 0 && listed > 6 {
        return 0;
    }
    unseen
}

#[test]
fn random_damage_is_reported_and_never_silently_loses_data() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let cases = number("DAMAGE_CASES").unwrap_or(120);
    let seed = number("DAMAGE_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::from(now.subsec_nanos())
    });
    println!("DAMAGE_SEED={seed}");
    let mut layouts = Vec::new();
    for layout in [6, 5, 4, 3, 2, 1] {
        let (_folder, path) = place();
        fill(&mut open(&path).0);
        let mark = fs::read(path.with_file_name("sessions.made")).unwrap();
        to_layout(&path, layout);
        layouts.push((fs::read(&path).unwrap(), (layout >= 4).then_some(mark)));
    }
    let mut unseen = 0;
    for case in 0..cases {
        let mut dice = Dice::of(seed.wrapping_add(case));
        let layout = dice.roll(layouts.len());
        let (bytes, mark) = &layouts[layout];
        let (_folder, path) = place();
        fs::write(&path, bytes).unwrap();
        if let Some(mark) = mark {
            fs::write(path.with_file_name("sessions.made"), mark).unwrap();
        }
        let what = corrupt(&path, &mut dice);
        let what = format!("DAMAGE_SEED={} layout {}: {what}", seed.wrapping_add(case), 6 - layout);
        if assert_honest(&path, &what) > 0 {
            println!("not seen any more: {what}");
            unseen += 1;
        }
    }
    // What is known of a row by its place alone has no checksum.
    assert!(unseen * 20 <= cases, "{unseen} of {cases}");
}

/// Changes the table of sessions behind the back of its indexes.
fn change_rows_alone(path: &Path, before: &str, change: &str) {
    sql(
        path,
        &format!(
            "{before}; CREATE TEMP TABLE kept AS SELECT * FROM sqlite_schema
                WHERE type = 'index' AND tbl_name = 'sessions';
            PRAGMA writable_schema = ON;
            DELETE FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'sessions';
            PRAGMA writable_schema = RESET;
            {change};
            PRAGMA writable_schema = ON; INSERT INTO sqlite_schema SELECT * FROM kept;
            PRAGMA writable_schema = RESET"
        ),
    );
}

#[test]
fn session_known_to_only_a_table_or_an_index_is_not_taken_for_missing() {
    const KEY: u64 = 2;
    let look_up = |path: &Path, uri: &str| reader(path).look_up(uri, |_| false);
    let by_its_chat = format!("ahp-chat:/{KEY}");
    let (_folder, path) = place();
    fill(&mut open(&path).0);
    let sound = fs::read(&path).unwrap();

    // The indexes alone know it: it cannot be read.
    change_rows_alone(&path, "SELECT 1", "DELETE FROM sessions WHERE key = 2");
    for uri in [&uri(KEY), &by_its_chat] {
        let found = look_up(&path, uri);
        assert!(matches!(found, Err(StoreError::Damaged(_))), "{uri}: {found:?}");
    }
    assert!(look_up(&path, "ahp-session:/new").unwrap().is_none());
    let listed = super::listed(&reader(&path));
    assert_eq!(listed.len(), 7, "{listed:?}");
    assert!(listed
        .iter()
        .any(|it| it["resource"] == *uri(KEY) && it["title"].as_str().unwrap().contains("cannot be read")));
    assert_eq!(Archive::look_into(&path).unwrap().list().unwrap().len(), 7);

    // The table alone knows it: it is there.
    put_back(&path, &sound);
    let before =
        "CREATE TEMP TABLE row AS SELECT * FROM sessions WHERE key = 2; DELETE FROM sessions WHERE key = 2";
    change_rows_alone(&path, before, "INSERT INTO sessions SELECT * FROM row");
    for uri in [&uri(KEY), &by_its_chat] {
        assert_whole(&look_up(&path, uri).unwrap().unwrap(), KEY);
    }
    assert!(look_up(&path, "ahp-session:/new").unwrap().is_none());
    assert_eq!(super::listed(&reader(&path)).len(), 7);

    // The index names another one.
    put_back(&path, &sound);
    change_rows_alone(&path, "SELECT 1", "UPDATE sessions SET uri = 'x' WHERE key = 2");
    assert!(look_up(&path, &uri(KEY)).is_err());
}

#[test]
fn readers_list_every_session_once_the_indexes_were_checked() {
    let (_folder, path) = place();
    fill(&mut open(&path).0);
    let before =
        "CREATE TEMP TABLE row AS SELECT * FROM sessions WHERE key = 2; DELETE FROM sessions WHERE key = 2";
    change_rows_alone(&path, before, "INSERT INTO sessions SELECT * FROM row");
    let reader = reader(&path);
    let other = reader.another(&path).unwrap();
    let count = |reader: &Reader| reader.list_at_once(&everything()).unwrap().sessions.len();
    assert_eq!(count(&reader), 6, "nobody waits for the check");
    assert!(!reader.trusts_indexes().unwrap());
    assert_eq!((count(&reader), count(&other)), (7, 7));
}

#[test]
fn missing_action_row_of_a_running_chat_is_reported_as_damage() {
    let damages = [
        "DELETE FROM actions WHERE last = 21".to_owned(),
        "DELETE FROM actions WHERE last = 22".to_owned(),
        "DELETE FROM actions WHERE last IN (21, 22)".to_owned(),
        // What its row knows of is gone with it.
        "DELETE FROM actions".to_owned(),
        // It seems to be another channel's.
        format!("UPDATE actions SET kind = 'root', key = 0 WHERE kind = 'chat' AND key = {}", 1000 + RUNNING),
        format!("UPDATE actions SET kind = 'session' WHERE kind = 'chat' AND key = {}", 1000 + RUNNING),
        format!("UPDATE actions SET kind = 'other' WHERE kind = 'chat' AND key = {}", 1000 + RUNNING),
    ];
    for damage in damages {
        let (_folder, path) = place();
        let (mut writer, _) = open(&path);
        writer.commit(&super::actions(1..=20)).unwrap();
        writer.commit(&[session(RUNNING), chat(RUNNING, true, 20), on_running(21)]).unwrap();
        writer.commit(&[on_running(22)]).unwrap();
        writer.commit(&super::actions(23..=30)).unwrap();
        assert_eq!(load(&reader(&path), RUNNING).unwrap().unwrap().chats[0].actions.len(), 2);
        sql(&path, &damage);
        let loaded = load(&reader(&path), RUNNING);
        assert!(matches!(loaded, Err(StoreError::Damaged(_))), "{damage}: {loaded:?}");
    }
}
