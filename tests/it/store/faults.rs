//! Disks that are full and folders that are gone: nothing is kept, which is said, and later
//! everything is.

use std::fs;

use ahp_sidecar::host::effects::{ActionLine, ChannelId, Record};
use ahp_sidecar::store::errors::StoreError;

use super::{assert_whole, beside, load, noise, numbers, open, place, reader, titles, whole, FILE_NAME};

#[test]
fn full_store_commits_all_of_a_batch_or_nothing() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&whole(1)).unwrap();
    // Smaller than it is: it cannot grow.
    writer.limit_pages(1).unwrap();
    // Lines that share no beginning, so that none of them gets small.
    let large = |seq: u64| {
        let noise = (0..500).map(|at| format!("{:08x}", noise(500 * u32::try_from(seq).unwrap() + at)));
        let line = format!("{seq}{}", noise.collect::<String>()).into();
        Record::Action(ChannelId::ROOT, ActionLine { line, server_seq: seq, delta: None })
    };
    let large: Vec<Record> = (1..=50).map(large).collect();
    let records = [whole(2), large, vec![Record::Sync]].concat();
    for _ in 0..3 {
        let refused = writer.commit(&records).unwrap_err();
        assert!(refused.to_string().contains("full"), "{refused}");
        // Reading goes on, and shows nothing of it.
        let reader = reader(&path);
        assert_eq!(titles(&reader), ["session 1"]);
        assert_whole(&load(&reader, 1).unwrap().unwrap(), 1);
        assert_eq!(numbers(&reader, 0), Some(vec![]));
        assert_eq!(reader.interrupted().unwrap(), []);
    }
    writer.limit_pages(u32::MAX - 1).unwrap();
    writer.commit(&records).unwrap();
    let reader = reader(&path);
    assert_whole(&load(&reader, 2).unwrap().unwrap(), 2);
    assert_eq!(numbers(&reader, 0).unwrap().len(), 50);
}

#[test]
fn commit_fails_while_its_folder_is_moved_away_and_succeeds_afterwards() {
    let outer = tempfile::tempdir().unwrap();
    let (here, away) = (outer.path().join("state"), outer.path().join("elsewhere"));
    fs::create_dir(&here).unwrap();
    let path = here.join(FILE_NAME);
    let (mut writer, _) = open(&path);
    let reader = reader(&path);
    writer.commit(&whole(1)).unwrap();
    fs::rename(&here, &away).unwrap();
    let moved = fs::read(beside(&away.join(FILE_NAME), "-wal")).unwrap();
    for _ in 0..2 {
        let refused = writer.commit(&whole(2)).unwrap_err();
        assert!(matches!(refused, StoreError::Gone(..)), "{refused}");
        assert!(refused.to_string().contains(path.to_str().unwrap()), "{refused}");
    }
    // Another folder in its place is not it.
    fs::create_dir(&here).unwrap();
    fs::write(&path, "").unwrap();
    assert!(matches!(writer.commit(&whole(2)), Err(StoreError::Gone(..))));
    assert_eq!(titles(&reader), ["session 1"]);
    assert!(fs::read(beside(&away.join(FILE_NAME), "-wal")).unwrap() == moved, "it was written to");
    fs::remove_dir_all(&here).unwrap();
    fs::rename(&away, &here).unwrap();
    writer.commit(&whole(2)).unwrap();
    assert_eq!(titles(&reader), ["session 2", "session 1"]);
}

#[test]
fn commit_fails_when_its_files_are_removed() {
    for suffix in ["", "-wal"] {
        let (_folder, path) = place();
        let (mut writer, _) = open(&path);
        writer.commit(&whole(1)).unwrap();
        let reader = reader(&path);
        assert_eq!(titles(&reader), ["session 1"]);
        fs::remove_file(beside(&path, suffix)).unwrap();
        let refused = writer.commit(&whole(2)).unwrap_err();
        assert!(refused.to_string().contains("moved or removed"), "{refused}");
        assert_eq!(titles(&reader), ["session 1"], "what was read before can be read");
    }
}

#[test]
fn folder_in_place_of_the_database_is_an_error() {
    let (_folder, path) = place();
    fs::create_dir(&path).unwrap();
    assert!(super::Writer::open(&path, super::StoreOptions::default()).is_err());
}
