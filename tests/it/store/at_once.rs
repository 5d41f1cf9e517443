//! Small commits that wait for nothing, and what is left to whoever can wait.

use ahp_sidecar::host::effects::{ConnectionId, Frame, Output};
use ahp_sidecar::io::persistence::{CommitEvent, OpenedPersistence, Persistence};
use ahp_sidecar::store::sqlite::LOG_PAGES_MAX;
use rusqlite::Connection;

use super::*;
use crate::support::HUNG;

/// A disk that no machine is too busy for.
fn options() -> StoreOptions {
    StoreOptions { at_once_within: Duration::MAX, ..StoreOptions::default() }
}

/// Number of pages in the WAL until it is checkpointed, and a few more.
const LONG: u64 = LOG_PAGES_MAX as u64;

/// A writer that has made its first commit, and the number of that.
fn begun(path: &Path, options: StoreOptions) -> (Writer, u64) {
    let (mut writer, start) = Writer::open(path, options).unwrap();
    let first = start.head + 1;
    assert!(!writer.commit_at_once(&actions([first])), "it begins a log, and removes old actions");
    writer.commit(&actions([first])).unwrap();
    (writer, first)
}

#[test]
fn small_batch_of_actions_is_committed_inline_and_larger_work_is_not() {
    let (_folder, path) = place();
    let (mut writer, first) = begun(&path, options());
    assert!(writer.commit_at_once(&actions([first + 1, first + 2])));
    let stopped = copy(&path);
    let is = |path: &Path, last: u64| {
        assert_eq!(numbers(&reader(path), first), Some((first + 1..=last).collect()));
    };
    is(&stopped.1, first + 2);
    let next = || actions([first + 3]);
    for (records, why) in [
        ([next(), vec![Record::Sync]].concat(), "it must be synced"),
        ([next(), whole(1)].concat(), "it is more than text"),
        (actions(first + 3..first + 50), "it is much"),
        (actions([first + (1 << 20)]), "its number must be reserved"),
    ] {
        assert!(!writer.commit_at_once(&records), "{why}");
    }
    is(&path, first + 2);
    assert!(titles(&reader(&path)).is_empty());
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(!writer.commit_at_once(&next()), "somebody else is at the database");
    other.execute_batch("COMMIT").unwrap();
    assert!(writer.commit_at_once(&next()));
    is(&path, first + 3);
}

#[test]
fn inline_commit_never_checkpoints_the_wal() {
    let (_folder, path) = place();
    let (mut writer, first) = begun(&path, options());
    let size = || fs::metadata(&path).unwrap().len();
    let before = size();
    let mut last = first;
    while writer.commit_at_once(&actions([last + 1])) {
        last += 1;
        assert!(last < first + LONG, "the log grows for ever");
    }
    assert_eq!(size(), before);
    // Whoever can wait does it, and begins the log anew; then it goes on.
    writer.checkpoint_from(LOG_PAGES_MAX);
    assert!(size() > before);
    assert!(!writer.commit_at_once(&actions([last + 1])), "it would begin the log");
    writer.commit(&actions([last + 1])).unwrap();
    assert!(writer.commit_at_once(&actions([last + 2])));
    assert!(fs::metadata(beside(&path, "-wal")).unwrap().len() < 2 * LONG * (16 << 10));
    assert_eq!(numbers(&reader(&path), first), Some((first + 1..=last + 2).collect()));
}

#[test]
fn inline_commit_never_prunes_old_actions() {
    let (_folder, path) = place();
    let window = ReplayWindow { actions_max: 10, bytes_max: 1 << 20 };
    let (mut writer, first) = begun(&path, StoreOptions { window, ..options() });
    let mut last = first;
    while writer.commit_at_once(&actions([last + 1])) {
        last += 1;
        assert!(last < first + 100, "old actions stay for ever");
    }
    writer.commit(&actions([last + 1])).unwrap();
    assert_eq!(numbers(&reader(&path), first), None, "they are gone");
    assert!(writer.commit_at_once(&actions([last + 2])));
}

#[test]
fn slow_disk_disables_inline_commits() {
    let (_folder, path) = place();
    let options = StoreOptions { at_once_within: Duration::ZERO, ..StoreOptions::default() };
    let (mut writer, first) = begun(&path, options);
    assert!(writer.commit_at_once(&actions([first + 1])), "nobody knows before");
    assert!(!writer.commit_at_once(&actions([first + 2])));
}

fn pong() -> Vec<Output> {
    vec![Output::Frame(ConnectionId(0), Frame::Answer(Bytes::from_static(b"pong")))]
}

fn step(records: Vec<Record>) -> Vec<Output> {
    records.into_iter().map(Output::Record).chain(pong()).collect()
}

#[test]
fn inline_commit_never_overtakes_a_pending_step() {
    let folder = tempfile::tempdir().unwrap();
    let OpenedPersistence { mut persistence, start, events: mut kept, .. } =
        Persistence::open(folder.path(), options()).unwrap();
    let first = start.head + 1;
    let mut commit = |persistence: &mut Persistence| match kept.blocking_recv() {
        Some(CommitEvent::Safe(step, _)) => persistence.release(step).count(),
        other => panic!("{other:?}"),
    };
    assert!(persistence.keep(step(actions([first])), false).is_empty());
    assert_eq!(commit(&mut persistence), 1);
    // The thread may still hold the writer for a moment.
    let mut last = first + 1;
    while persistence.keep(step(actions([last])), false).is_empty() {
        assert_eq!(commit(&mut persistence), 1);
        last += 1;
    }
    assert!(persistence.is_settled());
    let path = folder.path().join(FILE_NAME);
    assert_eq!(numbers(&reader(&path), first), Some((first + 1..=last).collect()));

    let other = Connection::open(&path).unwrap();
    other.busy_timeout(HUNG).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(persistence.keep(step(whole(1)), false).is_empty());
    assert!(persistence.keep(step(actions([last + 1])), false).is_empty(), "it has overtaken a step");
    assert!(persistence.may_be_overtaken() && persistence.has_room_for_agents(0));
    assert!(persistence.keep(step(actions([last + 2])), true).is_empty());
    assert!(!persistence.may_be_overtaken(), "a client has caused it");
    let much = (last + 3..last + 73).map(|seq| action(ChannelId::ROOT, seq, 60_000)).collect();
    assert!(persistence.keep(step(much), false).is_empty());
    assert!(!persistence.has_room_for_agents(0), "what clients say would wait behind it");
    other.execute_batch("COMMIT").unwrap();
    let mut released = 0;
    while released < 4 {
        released += commit(&mut persistence);
    }
    assert!(persistence.is_settled() && persistence.may_be_overtaken() && persistence.has_room_for_agents(0));
}
