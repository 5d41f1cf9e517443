//! Disk space that nothing needs any more.
//!
//! Owns: that the files become smaller, when, and that nothing else changes.
//! Never: starts a process.

use std::thread::sleep;
use std::time::Instant;

use ahp_sidecar::host::effects::Output;
use ahp_sidecar::io::persistence::{OpenedPersistence, Persistence};
use ahp_sidecar::store::archive::Archive;
use ahp_sidecar::store::space::Due;

use super::*;
use crate::support::HUNG;

/// A store that keeps nothing of what is over.
fn options() -> StoreOptions {
    StoreOptions {
        window: ReplayWindow { actions_max: 10, bytes_max: 100_000 },
        trash: Duration::ZERO,
        ..StoreOptions::default()
    }
}

/// A session whose one chat has twenty megabytes, between two that have next to nothing.
fn records() -> Vec<Record> {
    let large = |place| Record::Turn(ChatKey(1002), place, large_turn());
    [whole(1), vec![session(2)], (0..20).map(large).collect(), vec![chat(2, false, 0)], whole(3)].concat()
}

const REMOVED: Record = Record::SessionRemoved(SessionKey(2));

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// Checks that the space of the large session was released and that the other sessions are present.
fn assert_small(path: &Path, window: ReplayWindow) {
    assert!(size(path) < 1 << 20, "{} bytes are left", size(path));
    let reader = Reader::open(path, window).unwrap();
    assert_eq!(titles(&reader), ["session 3", "session 1"]);
    for key in [1, 3] {
        assert_whole(&load(&reader, key).unwrap().unwrap(), key);
    }
    let connection = rusqlite::Connection::open(path).unwrap();
    let verdict: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}

#[test]
fn free_space_is_released_in_small_steps() {
    let (_folder, path) = place();
    let (mut writer, _) = Writer::open(&path, options()).unwrap();
    writer.commit(&records()).unwrap();
    assert_ne!(writer.tidy_some().unwrap(), Due::Now, "there is nothing to give back");
    writer.commit(&[REMOVED]).unwrap();
    let mut times = 1;
    while writer.tidy_some().unwrap() == Due::Now {
        times += 1;
    }
    assert!((10..100).contains(&times), "it took {times} times");
    assert_small(&path, options().window);
}

#[test]
fn space_needed_for_new_actions_is_not_released() {
    let (_folder, path) = place();
    let window = ReplayWindow { actions_max: 10, bytes_max: 40 << 20 };
    let (mut writer, _) = Writer::open(&path, StoreOptions { window, ..options() }).unwrap();
    writer.commit(&records()).unwrap();
    writer.commit(&[REMOVED]).unwrap();
    assert_ne!(writer.tidy_some().unwrap(), Due::Now);
}

#[test]
fn idle_host_releases_free_space() {
    let folder = tempfile::tempdir().unwrap();
    let OpenedPersistence { mut persistence, mut events, .. } =
        Persistence::open(folder.path(), options()).unwrap();
    for step in [records(), vec![REMOVED]] {
        persistence.keep(step.into_iter().map(Output::Record).collect(), false);
        assert!(events.blocking_recv().is_some());
    }
    let path = folder.path().join(FILE_NAME);
    let start = Instant::now();
    // Nothing more is said to it.
    while size(&path) > 1 << 20 {
        assert!(start.elapsed() < HUNG, "{} bytes are left", size(&path));
        sleep(Duration::from_millis(50));
    }
    assert_small(&path, options().window);
}

#[test]
fn compaction_on_request_releases_all_space_also_of_older_databases() {
    for before in ["", "PRAGMA auto_vacuum = 0; VACUUM"] {
        let (_folder, path) = place();
        let (mut writer, _) = Writer::open(&path, options()).unwrap();
        writer.commit(&records()).unwrap();
        drop(writer);
        rusqlite::Connection::open(&path).unwrap().execute_batch(before).unwrap();
        let (mut writer, _) = Writer::open(&path, options()).unwrap();
        writer.commit(&[REMOVED]).unwrap();
        drop(writer);
        assert!(size(&path) > 20 << 20);
        let archive = Archive::open(&path).unwrap();
        archive.give_back_space().unwrap();
        assert!(fs::metadata(beside(&path, "-wal")).is_ok_and(|log| log.len() == 0), "the log is long");
        drop(archive);
        assert_small(&path, options().window);
        // From now on it can do so by itself.
        let sql = "PRAGMA auto_vacuum";
        let kind: i64 =
            rusqlite::Connection::open(&path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(kind, 2, "after `{before}`");
    }
}
