//! Files that are cut off or changed: what is given back is what was written, or it is said that it
//! is not.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ahp_sidecar::host::effects::{ChannelId, ChatKey, SessionKey};
use ahp_sidecar::host::log::ReplayWindow;
use ahp_sidecar::store::errors::StoreError;
use ahp_sidecar::store::reader::Reader;
use ahp_sidecar::store::sqlite::Writer;
use ahp_sidecar::store::StoreOptions;

use super::{
    actions, assert_whole, beside, copy, everything, listed, load, numbers, open, place, reader, titles, uri,
    whole,
};

/// A header of 24 bytes and a page.
const FRAME: u64 = 24 + 4096;

fn is_damaged<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Damaged(_)))
}

fn rusqlite(path: &Path, sql: &str) {
    ::rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn wal_truncated_in_its_newest_commit_loses_at_most_that_commit() {
    let (_folder, path) = place();
    let (mut writer, start) = open(&path);
    writer.commit(&[whole(1), actions(1..=3)].concat()).unwrap();
    let before = fs::metadata(beside(&path, "-wal")).unwrap().len();
    writer.commit(&[whole(2), actions(4..=6)].concat()).unwrap();
    let (_copied, path) = copy(&path);
    let end = fs::metadata(beside(&path, "-wal")).unwrap().len();
    assert!(end > before + FRAME, "the commit has one frame only");
    // Every byte of the newest frame, and many of the others.
    let cuts = (before..=end).rev().filter(|cut| *cut + FRAME >= end || cut % 31 == 0);
    for cut in cuts {
        let log = OpenOptions::new().write(true).open(beside(&path, "-wal")).unwrap();
        log.set_len(cut).unwrap();
        fs::remove_file(beside(&path, "-shm")).ok();
        let reader = reader(&path);
        assert_whole(&load(&reader, 1).unwrap().unwrap(), 1);
        if cut == end {
            assert_whole(&load(&reader, 2).unwrap().unwrap(), 2);
            assert_eq!(numbers(&reader, 0), Some(vec![1, 2, 3, 4, 5, 6]));
        } else {
            assert!(load(&reader, 2).unwrap().is_none(), "half of the commit is there, cut at {cut}");
            assert_eq!(titles(&reader), ["session 1"], "cut at {cut}");
            assert_eq!(numbers(&reader, 0), Some(vec![1, 2, 3]), "cut at {cut}");
        }
        drop(reader);
        if cut % 512 == 0 {
            let (_again, path) = copy(&path);
            let (mut writer, next) = open(&path);
            assert!(next.head > start.head + 6);
            writer.commit(&whole(3)).unwrap();
            assert_whole(&load(&super::reader(&path), 1).unwrap().unwrap(), 1);
        }
    }
}

#[test]
fn wal_with_a_changed_byte_ends_before_it() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    for key in 1..=4 {
        writer.commit(&whole(key)).unwrap();
    }
    let (_copied, path) = copy(&path);
    let sound = fs::read(beside(&path, "-wal")).unwrap();
    for at in (0..sound.len()).step_by(149) {
        let mut log = sound.clone();
        log[at] ^= 1 << (at % 8);
        fs::write(beside(&path, "-wal"), log).unwrap();
        fs::remove_file(beside(&path, "-shm")).ok();
        let Ok(reader) = Reader::open(&path, ReplayWindow::default()) else { continue };
        let Ok(page) = reader.list(&everything()) else { continue };
        let there = u64::try_from(page.sessions.len()).unwrap();
        for key in 1..=4 {
            match load(&reader, key).unwrap() {
                Some(saved) => assert_whole(&saved, key),
                None => assert!(key > there, "{key} is missing, and what came later is not (byte {at})"),
            }
        }
    }
}

/// Outcome for the sessions of a database with one changed byte.
#[derive(Debug, Default)]
struct Toll {
    refused: usize,
    told: usize,
    unseen: usize,
}

#[test]
fn database_with_a_changed_byte_returns_original_data_or_an_error() {
    const SESSIONS: u64 = 12;
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    for key in 1..=SESSIONS {
        writer.commit(&whole(key)).unwrap();
    }
    for first in [1, 11, 21, 31] {
        writer.commit(&actions(first..=first + 9)).unwrap();
    }
    drop(writer);
    assert!(!beside(&path, "-wal").exists());
    let sound = fs::read(&path).unwrap();
    let mut toll = Toll::default();
    let mut looked = 0;
    for at in (0..sound.len()).step_by(37) {
        // Most of a page has never been written to.
        if sound[at] == 0 && at % 16 > 0 {
            continue;
        }
        looked += 1;
        write_at(&path, at, sound[at] ^ (1 << (at % 8)));
        if at % 8 == 0 {
            // Opening for writing may fail, but not fall over; nor is anything removed by it.
            if let Ok((mut writer, _)) = Writer::open(&path, StoreOptions::default()) {
                writer.commit(&[]).ok();
            }
            fs::remove_file(beside(&path, "-wal")).ok();
        }
        check_reads(&path, SESSIONS, &mut toll, at);
        fs::remove_file(beside(&path, "-shm")).ok();
        if at % 8 == 0 {
            fs::write(&path, &sound).unwrap();
        } else {
            write_at(&path, at, sound[at]);
        }
    }
    assert!(toll.told > 20, "{toll:?}");
    // What is known of a session by an index alone has no checksum: one whose key is damaged there
    // may not be found under its URI. It is in the database still.
    assert!(toll.unseen * 100 < looked, "{toll:?} of {looked}");
}

/// Changes one byte of a file.
fn write_at(path: &Path, at: usize, byte: u8) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[byte], at as u64).unwrap();
}

fn check_reads(path: &Path, sessions: u64, toll: &mut Toll, at: usize) {
    let Ok(reader) = Reader::open(path, ReplayWindow::default()) else {
        toll.refused += 1;
        return;
    };
    let mut unseen = false;
    for key in 1..=sessions {
        match reader.load(SessionKey(key)) {
            Ok(Some(saved)) => assert_whole(&saved, key),
            Ok(None) => unseen = true,
            Err(_) => toll.told += 1,
        }
    }
    if let Ok(Some(actions)) = reader.actions_since(0) {
        let lines: Vec<_> = actions.iter().map(|(_, action)| action.line.clone()).collect();
        let expected: Vec<_> = (1..=40).map(|seq| format!("{seq:010}")).collect();
        // The end may be missing as if it had never been there; nothing else may.
        assert!(lines.len() <= 40 && expected[..lines.len()] == lines, "{lines:?} (byte {at})");
    }
    match reader.list(&everything()) {
        Ok(page) => {
            for (_, json) in &page.sessions {
                let summary: serde_json::Value = serde_json::from_slice(json).unwrap();
                let title = summary["title"].as_str().unwrap();
                assert!(
                    title.contains("cannot be read")
                        || (1..=sessions).any(|key| super::session_row(key).summary == *json),
                    "{summary} (byte {at})"
                );
            }
            unseen |= (page.sessions.len() as u64) < sessions;
        }
        Err(_) => toll.told += 1,
    }
    if unseen {
        toll.unseen += 1;
    }
}

#[test]
fn damage_is_reported_only_for_its_session() {
    for sql in [
        "UPDATE sessions SET body = x'78' WHERE key = 2",
        "UPDATE sessions SET body = 7 WHERE key = 2",
        "UPDATE sessions SET uri = uri || 'x' WHERE key = 2",
        "UPDATE sessions SET chats = 0 WHERE key = 2",
        "UPDATE chats SET body = x'78' WHERE session = 2",
        "UPDATE chats SET as_of = 1 WHERE session = 2",
        "UPDATE chats SET running = 1 WHERE session = 2",
        "UPDATE chats SET uri = 'x' WHERE session = 2",
        "UPDATE chats SET uri = CAST(x'ff' AS TEXT) WHERE session = 2",
        "UPDATE chats SET session = 3 WHERE session = 2",
        "UPDATE chats SET progress = 3 WHERE session = 2",
        "DELETE FROM chats WHERE session = 2",
        "UPDATE texts SET text = x'78' WHERE key = (SELECT text FROM turns WHERE chat = 1002 AND place = 1)",
        "DELETE FROM texts WHERE key = (SELECT text FROM turns WHERE chat = 1002 AND place = 1)",
        "UPDATE turns SET text = text + 1 WHERE chat = 1002 AND place = 1",
        "UPDATE turns SET id = 'x' WHERE chat = 1002 AND place = 1",
        "UPDATE turns SET place = 7 WHERE chat = 1002 AND place = 1",
        "UPDATE turns SET place = place + 1000 WHERE chat = 1002",
        "DELETE FROM turns WHERE chat = 1002 AND place = 2",
        "DELETE FROM turns WHERE chat = 1002",
        "INSERT INTO turns SELECT NULL, chat, 3, id, text, bytes, text_sum, sum, NULL, NULL FROM turns WHERE chat = 1002 AND place = 2",
    ] {
        let (_folder, path) = place();
        let (mut writer, _) = open(&path);
        writer.commit(&[whole(1), whole(2), whole(4)].concat()).unwrap();
        rusqlite(&path, sql);
        let reader = reader(&path);
        assert!(is_damaged(&load(&reader, 2)), "{sql}: {:?}", load(&reader, 2));
        assert_whole(&load(&reader, 1).unwrap().unwrap(), 1);
        assert_whole(&load(&reader, 4).unwrap().unwrap(), 4);
        assert_eq!(listed(&reader).len(), 3, "{sql}");
        writer.commit(&whole(5)).unwrap();
    }
}

#[test]
fn damaged_action_of_a_running_chat_is_reported_as_damage() {
    use super::{action, chat, session};
    let on_chat = |key: u64, seq| {
        let key = ahp_sidecar::host::effects::ChatKey(1000 + key);
        action(key.into(), seq, 10)
    };
    for sql in [
        "UPDATE actions SET packed = x'00' WHERE last = 3",
        "UPDATE actions SET packed = packed || x'00' WHERE last = 3",
        "UPDATE actions SET packed = 'text' WHERE last = 3",
        "UPDATE actions SET first = 3 WHERE last = 3",
        "UPDATE actions SET last = 4 WHERE last = 3",
        "UPDATE actions SET sum = sum + 1 WHERE last = 3",
    ] {
        let (_folder, path) = place();
        let (mut writer, _) = open(&path);
        writer.commit(&[session(1), chat(1, true, 0), session(2), chat(2, true, 0)]).unwrap();
        writer.commit(&[on_chat(1, 1)]).unwrap();
        writer.commit(&[on_chat(1, 2), on_chat(1, 3)]).unwrap();
        writer.commit(&[on_chat(2, 4), on_chat(2, 5)]).unwrap();
        assert_eq!(load(&reader(&path), 1).unwrap().unwrap().chats[0].actions.len(), 3);
        rusqlite(&path, sql);
        assert!(is_damaged(&load(&reader(&path), 1)), "{sql}");
        assert!(is_damaged(&reader(&path).actions_since(0)), "{sql}");
        let actions = load(&reader(&path), 2).unwrap().unwrap().chats[0].actions.clone();
        assert_eq!(actions, ["0000000004", "0000000005"], "{sql}");
        assert_eq!(reader(&path).interrupted().unwrap(), [(0, SessionKey(1)), (0, SessionKey(2))]);
    }
}

#[test]
fn damaged_session_is_listed_as_damaged() {
    for sql in [
        "UPDATE sessions SET summary = CAST('{}' AS BLOB) WHERE key = 2",
        "UPDATE sessions SET summary = 1.5 WHERE key = 2",
        "UPDATE sessions SET summary_sum = 'x' WHERE key = 2",
    ] {
        let (_folder, path) = place();
        let (mut writer, _) = open(&path);
        writer.commit(&[whole(1), whole(2), whole(3)].concat()).unwrap();
        rusqlite(&path, sql);
        let reader = reader(&path);
        let summary = listed(&reader)[1].clone();
        let parsed: ahp_types::state::SessionSummary = serde_json::from_value(summary).unwrap();
        assert_eq!(parsed.resource, uri(2), "{sql}");
        assert!(parsed.title.contains("cannot be read"), "{sql}");
        assert_eq!((parsed.provider.as_str(), parsed.status), ("unknown", 2));
        assert_eq!(parsed.modified_at, "2026-01-01T00:00:00.002Z");
        assert_eq!(parsed.created_at, parsed.modified_at);
        assert_eq!(titles(&reader)[0], "session 3");
        assert_eq!(titles(&reader)[2], "session 1");
        assert!(is_damaged(&load(&reader, 2)), "{sql}");
        // Pages of one meet it too.
        let mut page = ahp_sidecar::host::effects::Page { after: None, limit: 1 };
        for expected in 0..3 {
            let listed = reader.list(&page).unwrap();
            assert_eq!(listed.sessions.len(), 1, "{expected}");
            page.after = listed.next;
        }
        assert_eq!(page.after, None);
    }
}

#[test]
fn session_list_does_not_trust_its_index() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[whole(1), whole(2), whole(3)].concat()).unwrap();
    drop(writer);
    let sound = fs::read(&path).unwrap();
    let time = super::session_row(2).modified_at;
    let places: Vec<usize> =
        (0..sound.len()).filter(|at| sound[*at..].starts_with(time.as_bytes())).collect();
    assert!(places.len() >= 3, "in the row, in the summary, and in the index");
    let mut mended = 0;
    for at in places {
        let mut changed = sound.clone();
        changed[at + time.len() - 2] = b'9';
        fs::write(&path, changed).unwrap();
        let reader = reader(&path);
        let titles = titles(&reader);
        let mut uris: Vec<String> =
            listed(&reader).iter().map(|item| item["resource"].as_str().unwrap().to_owned()).collect();
        uris.sort();
        assert_eq!(uris, [uri(1), uri(2), uri(3)]);
        mended += u32::from(titles == ["session 3", "session 2", "session 1"]);
    }
    assert_eq!(mended, 1, "where the index alone is damaged, the list is as it was");
}

#[test]
fn foreign_or_newer_database_is_refused_and_left_unchanged() {
    let (_folder, newer) = place();
    drop(open(&newer));
    rusqlite(&newer, "PRAGMA user_version = 999");
    let (_folder, other) = place();
    rusqlite(&other, "CREATE TABLE t (x)");
    let (_folder, text) = place();
    fs::write(&text, "these are no sessions, but quite a few bytes of text. ".repeat(100)).unwrap();
    for (path, said) in [(&newer, "newer version"), (&other, "not a store"), (&text, "not a database")] {
        let before = fs::read(path).unwrap();
        let refused = Writer::open(path, StoreOptions::default()).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}");
        assert!(fs::read(path).unwrap() == before, "it was written to: {said}");
    }
    // One whose version is in its log only, as a process leaves it that was killed.
    let (_folder, path) = place();
    let holder = ::rusqlite::Connection::open(&path).unwrap();
    drop(open(&path));
    holder.execute_batch("PRAGMA user_version = 999").unwrap();
    let (_folder, killed) = copy(&path);
    let before = (fs::read(&killed).unwrap(), fs::read(beside(&killed, "-wal")).unwrap());
    let refused = Writer::open(&killed, StoreOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("newer version"), "{refused}");
    assert!((fs::read(&killed).unwrap(), fs::read(beside(&killed, "-wal")).unwrap()) == before);
}

#[test]
fn half_created_database_of_a_killed_process_is_completed() {
    let (_folder, path) = place();
    let connection = ::rusqlite::Connection::open(&path).unwrap();
    // A journal with something to undo: the first page, as it was before.
    connection
        .execute_batch(
            "PRAGMA user_version = 0; PRAGMA cache_size = 1; BEGIN;
            CREATE TABLE filler (x); INSERT INTO filler VALUES (zeroblob(100000));",
        )
        .unwrap();
    let (_copied, copied) = place();
    fs::copy(&path, &copied).unwrap();
    fs::copy(beside(&path, "-journal"), beside(&copied, "-journal")).unwrap();
    let (mut writer, start) = open(&copied);
    assert!(!start.continues);
    writer.commit(&whole(1)).unwrap();
}

#[test]
fn sessions_of_other_chats_are_found_beside_a_damaged_chat() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[whole(1), whole(2)].concat()).unwrap();
    rusqlite(&path, "UPDATE chats SET session = 'x' WHERE key = 1001");
    let chats = [1001, 1002].map(|key| ChannelId::from(ChatKey(key)));
    let found = reader(&path).sessions_of(chats.into_iter()).unwrap();
    assert_eq!(found.iter().map(|found| found.key).collect::<Vec<_>>(), [SessionKey(2)]);
}
