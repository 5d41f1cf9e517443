//! Sessions that were removed.

use std::time::Duration;

use ahp_sidecar::host::effects::{ChatKey, Record, SessionKey};
use ahp_sidecar::store::space::Due;
use ahp_sidecar::store::StoreOptions;

use super::{action, chat, large_turn, load, open, place, reader, session, titles, uri, whole, Writer};

const REMOVED: Record = Record::SessionRemoved(SessionKey(1));

/// A store that has had time to empty its trash.
fn with_trash(path: &std::path::Path, trash: Duration) -> Writer {
    let mut writer = Writer::open(path, StoreOptions { trash, ..StoreOptions::default() }).unwrap().0;
    while writer.tidy_some().unwrap() == Due::Now {}
    writer
}

fn rows(path: &std::path::Path) -> i64 {
    let sql = "SELECT (SELECT count(*) FROM sessions) + (SELECT count(*) FROM chats)
        + (SELECT count(*) FROM turns)";
    rusqlite::Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn removed_session_is_unlisted_and_its_rows_stay() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[whole(1), whole(2)].concat()).unwrap();
    let before = rows(&path);
    writer.commit(&[REMOVED]).unwrap();
    let reader = reader(&path);
    assert_eq!(titles(&reader), ["session 2"]);
    assert_eq!(reader.find(&uri(1)).unwrap(), None);
    assert_eq!(reader.find("ahp-chat:/1").unwrap(), None);
    assert!(load(&reader, 1).unwrap().is_none());
    assert_eq!(rows(&path), before);
    drop(writer);
    assert_eq!(open(&path).1.sessions, 1);
    // Its URI may be used again.
    writer = open(&path).0;
    let again = Record::Session(super::SessionRow { uri: uri(1), ..super::session_row(3) });
    writer.commit(&[again]).unwrap();
    assert_eq!(reader.find(&uri(1)).unwrap(), Some(SessionKey(3)));
    assert_eq!(rows(&path), before + 1);
}

#[test]
fn removed_session_is_deleted_at_once_without_a_trash() {
    let (_folder, path) = place();
    let mut writer = with_trash(&path, Duration::ZERO);
    writer.commit(&whole(1)).unwrap();
    writer.commit(&[REMOVED]).unwrap();
    assert_eq!(rows(&path), 0);
}

#[test]
fn oldest_trash_is_deleted_only_as_far_as_space_requires() {
    let (_folder, path) = place();
    let options = StoreOptions { bytes_max: Some(5 << 19), ..StoreOptions::default() };
    let mut writer = Writer::open(&path, options).unwrap().0;
    let removed = |key| Record::SessionRemoved(SessionKey(key));
    for key in 1..=3 {
        let large = Record::Turn(ChatKey(1000 + key), 3, large_turn());
        writer.commit(&[vec![session(key), large], whole(key)].concat()).unwrap();
    }
    writer.commit(&[removed(1), removed(2)]).unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("UPDATE sessions SET removed_at = removed_at - 1000 WHERE key = 2").unwrap();
    while writer.tidy_some().unwrap() == Due::Now {}
    let left = |column: &str| -> String {
        let sql = format!("SELECT group_concat(key) FROM sessions WHERE removed_at IS {column} NULL");
        connection.query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!((left("NOT"), left("")), ("1".to_owned(), "3".to_owned()));
}

#[test]
fn expired_trash_is_deleted_when_idle() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[whole(1), whole(2), vec![REMOVED]].concat()).unwrap();
    let before = rows(&path);
    drop(writer);
    drop(with_trash(&path, Duration::from_secs(60)));
    assert_eq!(rows(&path), before);
    // As if it had been removed an hour ago.
    let sql = "UPDATE sessions SET removed_at = removed_at - 3600000 WHERE removed_at IS NOT NULL";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    drop(with_trash(&path, Duration::from_secs(3700)));
    assert_eq!(rows(&path), before);
    drop(with_trash(&path, Duration::from_secs(3500)));
    assert_eq!(rows(&path), before / 2);
    assert_eq!(titles(&reader(&path)), ["session 2"]);
}

#[test]
fn damaged_session_is_not_deleted_from_the_trash() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[whole(1), vec![REMOVED]].concat()).unwrap();
    drop(writer);
    let sql =
        "UPDATE texts SET text = 'something else' WHERE key IN (SELECT text FROM turns WHERE place = 1)";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    drop(with_trash(&path, Duration::ZERO));
    assert_eq!(rows(&path), 5);
}

#[test]
fn running_turn_of_a_removed_session_is_not_interrupted() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[session(1), chat(1, true, 0), session(2), chat(2, true, 0)]).unwrap();
    assert_eq!(reader(&path).interrupted().unwrap(), [(0, SessionKey(1)), (0, SessionKey(2))]);
    writer.commit(&[REMOVED]).unwrap();
    assert_eq!(reader(&path).interrupted().unwrap(), [(0, SessionKey(2))]);
}

#[test]
fn late_record_of_a_removed_session_does_not_restore_it() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&whole(1)).unwrap();
    writer.commit(&[REMOVED, session(1)]).unwrap();
    assert_eq!(titles(&reader(&path)), Vec::<String>::new());
    assert!(load(&reader(&path), 1).unwrap().is_none());
}

#[test]
fn two_sessions_with_one_uri_do_not_overwrite_each_other() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[whole(1), whole(2)].concat()).unwrap();
    let before = rows(&path);
    let again = Record::Session(super::SessionRow { uri: uri(1), ..super::session_row(3) });
    writer.commit(&[again]).unwrap();
    assert_eq!(reader(&path).find(&uri(1)).unwrap(), Some(SessionKey(3)));
    assert_eq!(rows(&path), before + 1, "a session was overwritten");
}

#[test]
fn deleted_session_leaves_no_content_in_the_log_and_no_gap_in_its_numbers() {
    let (_folder, path) = place();
    let mut writer = with_trash(&path, Duration::ZERO);
    let channels = [SessionKey(1).into(), ChatKey(1001).into(), SessionKey(2).into(), ChatKey(1002).into()];
    let said = channels.iter().zip(1..).map(|(channel, seq)| action(*channel, seq, 30));
    writer.commit(&[whole(1), whole(2), said.collect()].concat()).unwrap();
    let lines = || {
        let actions = reader(&path).actions_since(0).unwrap().unwrap();
        assert!(actions.iter().map(|(_, action)| action.server_seq).eq(1..=4));
        actions.into_iter().map(|(channel, action)| (channel, action.line.len())).collect::<Vec<_>>()
    };
    let sizes = |of: [usize; 4]| channels.into_iter().zip(of).collect::<Vec<_>>();
    assert_eq!(lines(), sizes([30, 30, 30, 30]));
    writer.commit(&[REMOVED]).unwrap();
    assert_eq!(lines(), sizes([0, 0, 30, 30]));
    writer.commit(&[Record::ChatRemoved { key: ChatKey(1002), uri: "ahp-chat:/2".to_owned() }]).unwrap();
    assert_eq!(lines(), sizes([0, 0, 30, 0]));
}

#[test]
fn last_actions_of_what_is_deleted_in_the_same_commit_are_emptied() {
    let (_folder, path) = place();
    let mut writer = with_trash(&path, Duration::ZERO);
    writer.commit(&[whole(1), whole(2)].concat()).unwrap();
    let late = |seq, key| action(ChatKey(key).into(), seq, 30);
    let chat_removed = Record::ChatRemoved { key: ChatKey(1002), uri: "ahp-chat:/2".to_owned() };
    writer.commit(&[late(1, 1001), REMOVED, late(2, 1002), chat_removed]).unwrap();
    let actions = reader(&path).actions_since(0).unwrap().unwrap();
    let sizes: Vec<usize> = actions.iter().map(|(_, action)| action.line.len()).collect();
    assert_eq!(sizes, [0, 0]);
}
