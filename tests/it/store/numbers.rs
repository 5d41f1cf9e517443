//! Sequence numbers: reserved before they are told, never used twice; and what a cursor gets.

use ahp_sidecar::host::effects::{ChannelId, ChatKey, Record, SessionKey};

use super::{action, actions, chat, copy, numbers, open, open_with, place, reader, session, whole};

#[test]
fn each_start_begins_beyond_every_number_that_may_have_been_sent() {
    let (_folder, path) = place();
    let mut last = 0;
    for life in 0..4 {
        let (mut writer, start) = open(&path);
        assert_eq!(start.continues, life > 0);
        assert!(life == 0 || start.head >= last, "life {life} begins at {} after {last}", start.head);
        last = start.head + 3;
        writer.commit(&actions(start.head + 1..=last)).unwrap();
    }
}

#[test]
fn power_loss_never_reuses_a_number() {
    let (_folder, path) = place();
    let (mut writer, start) = open(&path);
    let mut last = start.head;
    // What the disk may hold after a loss of power: everything up to the last commit that was
    // synced.
    let mut synced = copy(&path);
    // Jumps far into a block and over its end.
    for jump in [1, 1 << 18, 1 << 19, 5, 1 << 20, (1 << 21) + 1, 1] {
        last += jump;
        let told_before = last;
        writer.commit(&actions([last])).unwrap();
        let reserved = {
            let lost = copy(&synced.1);
            open(&lost.1).1.head
        };
        let now = copy(&path);
        if reserved < told_before {
            // This number was outside of the block: its commit must have been a synced one.
            assert!(open(&copy(&now.1).1).1.head >= last, "{last} is not reserved");
            synced = now;
        }
    }
    let head = open(&copy(&synced.1).1).1.head;
    assert!(head >= last, "{last} was told, and the next life begins at {head}");
}

#[test]
fn cursor_returns_all_later_actions_or_none() {
    let (_folder, path) = place();
    let (mut writer, first) = open(&path);
    writer.commit(&actions(1..=3)).unwrap();
    drop(writer);
    let (writer, second) = open(&path);
    drop(writer);
    let (mut writer, third) = open(&path);
    let (s, t) = (second.head, third.head);
    writer.commit(&actions([t + 1, t + 2])).unwrap();
    let reader = reader(&path);
    let of = |cursor| numbers(&reader, cursor);
    assert_eq!(first.head, 0);
    assert_eq!(of(0), Some(vec![1, 2, 3, t + 1, t + 2]), "the start of the first life");
    assert_eq!(of(1), Some(vec![2, 3, t + 1, t + 2]), "a stored number");
    assert_eq!(of(3), Some(vec![t + 1, t + 2]), "the last number of a life");
    assert_eq!(of(s), Some(vec![t + 1, t + 2]), "the start of a life in which nothing happened");
    assert_eq!(of(t), Some(vec![t + 1, t + 2]), "the start of a life");
    assert_eq!(of(t + 2), Some(vec![]), "the head");
    for (cursor, what) in
        [(4, "never given"), (s - 1, "skipped"), (s + 1, "skipped"), (t + 3, "beyond the head")]
    {
        assert_eq!(of(cursor), None, "{cursor}: {what}");
    }
    assert_eq!(of(u64::MAX), None);
}

#[test]
fn actions_packed_in_one_row_are_read_one_by_one() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    let on_chat = |seq| action(ChannelId::from(ChatKey(1001)), seq, 10);
    let mixed = [actions(1..=3), vec![on_chat(4), on_chat(5)], actions(6..=3000)].concat();
    writer.commit(&mixed).unwrap();
    let reader = reader(&path);
    for cursor in [0, 1, 3, 4, 5, 1500, 2999, 3000] {
        let since = reader.actions_since(cursor).unwrap().unwrap();
        let since: Vec<Record> =
            since.into_iter().map(|(target, line)| Record::Action(target, line)).collect();
        assert!(since == mixed[usize::try_from(cursor).unwrap()..], "{cursor}");
    }
    assert_eq!(numbers(&reader, 3001), None);
}

#[test]
fn hole_in_the_action_log_is_damage() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&actions([1, 2, 4])).unwrap();
    let reader = reader(&path);
    assert!(reader.actions_since(1).is_err());
    assert_eq!(numbers(&reader, 4), Some(vec![]));
}

#[test]
fn replay_beyond_the_window_is_refused() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&actions(1..=5)).unwrap();
    let window = |actions_max, bytes_max| ahp_sidecar::host::log::ReplayWindow { actions_max, bytes_max };
    for (window, cursor, expected) in [
        (window(3, 1000), 2, Some(3)),
        (window(3, 1000), 1, None),
        (window(9, 30), 2, Some(3)),
        (window(9, 30), 1, None),
    ] {
        let reader = ahp_sidecar::store::reader::Reader::open(&path, window).unwrap();
        assert_eq!(numbers(&reader, cursor).map(|numbers| numbers.len()), expected, "{window:?} {cursor}");
    }
}

#[test]
fn old_actions_are_pruned_and_cursors_before_them_return_nothing() {
    for (actions_max, bytes_max) in [(10, 10_000), (1_000, 100)] {
        let (_folder, path) = place();
        let (mut writer, _) = open_with(&path, actions_max, bytes_max);
        for seq in 1..=200 {
            writer.commit(&actions([seq])).unwrap();
            let there = count(&path);
            assert!(there <= 21, "{there} actions are kept of {seq}");
            // Whatever is left: each cursor gets all that followed it, or nothing.
            if seq % 7 == 0 {
                let reader = reader(&path);
                for cursor in 0..=seq {
                    let all = numbers(&reader, cursor);
                    assert!(
                        all.is_none_or(|all| all == Vec::from_iter(cursor + 1..=seq)),
                        "{cursor} of {seq}"
                    );
                }
                assert!(
                    numbers(&reader, seq.saturating_sub(10)).is_some(),
                    "the window does not reach back by 10"
                );
            }
        }
    }
}

#[test]
fn actions_of_many_short_runs_are_pruned() {
    let (_folder, path) = place();
    for _ in 0..20 {
        let (mut writer, start) = open_with(&path, 10, 10_000);
        writer.commit(&actions(start.head + 1..=start.head + 9)).unwrap();
        assert!(count(&path) <= 20, "{} actions are kept", count(&path));
    }
}

#[test]
fn actions_of_the_last_process_are_pruned_when_idle() {
    let (_folder, path) = place();
    let (mut writer, start) = open_with(&path, 10, 10_000);
    writer.commit(&actions(start.head + 1..=start.head + 9)).unwrap();
    writer.commit(&actions(start.head + 10..=start.head + 19)).unwrap();
    drop(writer);
    let (mut writer, _) = open_with(&path, 10, 10_000);
    writer.commit(&[Record::Client { id: "me".to_owned(), version: "1.0.0" }]).unwrap();
    assert_eq!(count(&path), 19, "a handshake waits for this commit");
    writer.tidy_some().unwrap();
    assert_eq!(count(&path), 10);
}

#[test]
fn actions_of_a_running_chat_are_not_pruned() {
    let (_folder, path) = place();
    let (mut writer, _) = open_with(&path, 10, 10_000);
    let on_chat = |seq| action(ChannelId::from(ChatKey(1001)), seq, 10);
    writer.commit(&[session(1), chat(1, true, 2), on_chat(1), on_chat(2), on_chat(3)]).unwrap();
    // Every eleventh action, old ones are removed: the last of these is one.
    commit_singly(&mut writer, 4..=50);
    writer.commit(&[on_chat(51)]).unwrap();
    commit_singly(&mut writer, 52..=102);
    let reader = reader(&path);
    let lines =
        |reader: &super::Reader| reader.load(SessionKey(1)).unwrap().unwrap().chats[0].actions.clone();
    assert_eq!(lines(&reader), ["0000000003", "0000000051"]);
    assert_eq!(count(&path), 3 + 1 + 10, "the row of three and one of the chat, and ten of the window");
    // What was kept for the chat is no place to go on from.
    assert_eq!(numbers(&reader, 3), None);
    assert_eq!(numbers(&reader, 51), None);
    assert_eq!(numbers(&reader, 92).unwrap().len(), 10);
    writer.commit(&[chat(1, false, 102)]).unwrap();
    commit_singly(&mut writer, 103..=113);
    assert_eq!(count(&path), 10);
    assert!(lines(&reader).is_empty());
}

#[test]
fn row_in_which_the_window_begins_is_not_pruned() {
    let (_folder, path) = place();
    let (mut writer, _) = open_with(&path, 10, 10_000);
    for first in (1..=100).step_by(4) {
        writer.commit(&actions(first..=first + 3)).unwrap();
    }
    // Whichever commit it was that removed something: nothing of the window went, and no half of a
    // row.
    let kept = count(&path);
    assert!((10..=24).contains(&kept) && kept % 4 == 0, "{kept} actions are kept");
    let cut = 100 - u64::try_from(kept).unwrap();
    let reader = reader(&path);
    assert_eq!(numbers(&reader, cut), Some(Vec::from_iter(cut + 1..=100)));
    assert_eq!(numbers(&reader, cut + 2), Some(Vec::from_iter(cut + 3..=100)));
    assert_eq!(numbers(&reader, cut - 1), None);
}

#[test]
fn damaged_number_record_makes_the_sequence_jump() {
    let (_folder, path) = place();
    let (mut writer, start) = open(&path);
    writer.commit(&actions(start.head + 1..=5)).unwrap();
    drop(writer);
    rusqlite(&path, "UPDATE meta SET value = 3 WHERE name = 'reserved'");
    let (_, start) = open(&path);
    assert!(start.head > 1 << 40, "the sequence goes on at {}", start.head);
}

#[test]
fn no_key_is_assigned_twice() {
    let (_folder, path) = place();
    let (mut writer, _) = open_with(&path, 10, 10_000);
    let gone = [whole(7), vec![Record::SessionRemoved(SessionKey(7))]].concat();
    writer.commit(&gone).unwrap();
    drop(writer);
    let options = ahp_sidecar::store::StoreOptions { trash: std::time::Duration::ZERO, ..Default::default() };
    let (mut writer, start) = super::Writer::open(&path, options).unwrap();
    let before = start.last_key;
    assert!(before >= 1007);
    while writer.tidy_some().unwrap() == ahp_sidecar::store::space::Due::Now {}
    assert!(super::load(&reader(&path), 7).unwrap().is_none());
    drop(writer);
    let after = open(&path).1.last_key;
    // Most keys are in no row.
    assert!(
        after >= before + (1 << 32),
        "{after} after {before}: keys of the last process are assigned again"
    );
    rusqlite(&path, "UPDATE meta SET value = 3 WHERE name = 'last_key'");
    assert!(open(&path).1.last_key > after, "keys are assigned again behind a damaged number");
}

#[test]
fn purge_keeps_a_damaged_last_key_as_it_is() {
    let (_folder, path) = place();
    let options = ahp_sidecar::store::StoreOptions { trash: std::time::Duration::ZERO, ..Default::default() };
    let (mut writer, start) = super::Writer::open(&path, options).unwrap();
    writer.commit(&whole(7)).unwrap();
    rusqlite(&path, "UPDATE meta SET value = 3 WHERE name = 'last_key'");
    writer.commit(&[Record::SessionRemoved(SessionKey(7))]).unwrap();
    while writer.tidy_some().unwrap() == ahp_sidecar::store::space::Due::Now {}
    assert!(super::load(&reader(&path), 7).unwrap().is_none());
    drop(writer);
    let after = open(&path).1.last_key;
    assert!(
        after > start.last_key + (1 << 52),
        "{after} after {}: the damage was not noticed",
        start.last_key
    );
}

/// Commits consecutive actions, each by itself.
fn commit_singly(writer: &mut super::Writer, numbers: std::ops::RangeInclusive<u64>) {
    numbers.for_each(|seq| writer.commit(&actions([seq])).unwrap());
}

/// Returns the number of stored actions.
fn count(path: &std::path::Path) -> i64 {
    let connection = ::rusqlite::Connection::open(path).unwrap();
    connection
        .query_row("SELECT ifnull(sum(last - first + 1), 0) FROM actions", [], |row| row.get(0))
        .unwrap()
}

/// Does something to the database behind the store's back.
fn rusqlite(path: &std::path::Path, sql: &str) {
    ::rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
}
