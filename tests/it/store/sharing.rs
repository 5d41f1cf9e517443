//! Texts that several turns share.
//!
//! Owns: how long such a text stays.
//! Never: looks at what a turn is; that is the core's.

use ahp_sidecar::host::effects::{ChatKey, ChatRow, Record, SessionKey};
use ahp_sidecar::store::archive::{Archive, ArchiveError, SessionPiece};

use super::{chat, load, open, place, reader, session, turn, turn_text, whole};

/// The session 2, whose chat begins with so many turns of that of the session 1.
fn beginning_as_1(count: u64) -> Vec<Record> {
    let chat = ChatRow {
        key: ChatKey(1002),
        session: SessionKey(2),
        uri: "ahp-chat:/2".to_owned(),
        running: false,
        as_of: 0,
        body: "chat of 2".into(),
    };
    vec![
        session(2),
        Record::TurnsShared { from: ChatKey(1001), to: ChatKey(1002), places: 0..count },
        Record::Turn(ChatKey(1002), count, turn_text(2, count)),
        Record::Chat(chat),
    ]
}

fn counts(path: &std::path::Path) -> (i64, i64, i64) {
    let connection = rusqlite::Connection::open(path).unwrap();
    let sql = "SELECT (SELECT count(*) FROM turns), (SELECT count(*) FROM texts), (SELECT count(*) FROM shared_texts)";
    connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
}

/// Checks that the second session is unchanged.
fn assert_second_session_is_intact(path: &std::path::Path) {
    let saved = load(&reader(path), 2).unwrap().unwrap();
    assert_eq!(saved.chats[0].turns, [turn_text(1, 0), turn_text(1, 1), turn_text(2, 2)]);
}

#[test]
fn shared_text_is_deleted_with_its_last_turn() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[whole(1), beginning_as_1(2)].concat()).unwrap();
    assert_eq!(counts(&path), (6, 4, 2));
    assert_second_session_is_intact(&path);
    writer.commit(&[Record::TurnsCut(ChatKey(1001), 1)]).unwrap();
    assert_eq!(counts(&path), (4, 3, 1));
    assert_second_session_is_intact(&path);
    // Another turn comes into the place of one whose text is still in use.
    writer.commit(&[Record::Turn(ChatKey(1001), 1, turn_text(7, 1))]).unwrap();
    assert_second_session_is_intact(&path);
    writer.commit(&[Record::TurnsCut(ChatKey(1001), 0), Record::TurnsCut(ChatKey(1002), 0)]).unwrap();
    assert_eq!(counts(&path), (0, 0, 0));
}

#[test]
fn shared_text_with_unknown_use_count_is_not_deleted() {
    for damage in
        ["UPDATE shared_texts SET uses = 1", "UPDATE shared_texts SET sum = 'x'", "DROP TABLE shared_texts"]
    {
        let (_folder, path) = place();
        let (mut writer, _) = open(&path);
        writer.commit(&[whole(1), beginning_as_1(2)].concat()).unwrap();
        drop(writer);
        rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        // One that is gone is counted anew.
        let (mut writer, _) = open(&path);
        writer.commit(&[Record::TurnsCut(ChatKey(1001), 0)]).unwrap();
        assert_second_session_is_intact(&path);
    }
}

#[test]
fn damaged_turn_row_deletes_no_text_of_another_turn() {
    for damage in [
        "UPDATE turns SET text = (SELECT text FROM turns WHERE chat = 1002 AND place = 2) WHERE chat = 1001",
        "UPDATE turns SET text = (SELECT text FROM turns WHERE chat = 1002 AND place = 0), sum = 'x' WHERE chat = 1001",
    ] {
        let (_folder, path) = place();
        let (mut writer, _) = open(&path);
        writer.commit(&[whole(1), beginning_as_1(2)].concat()).unwrap();
        rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        writer.commit(&[Record::TurnsCut(ChatKey(1001), 0)]).unwrap();
        assert_second_session_is_intact(&path);
    }
}

#[test]
fn loaded_or_imported_session_still_shares_its_texts() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    let (from, to) = (ChatKey(1001), ChatKey(1003));
    let (uri, body) = ("ahp-chat:/fork".to_owned(), "the fork".into());
    let fork = ChatRow { key: to, session: SessionKey(1), uri, running: false, as_of: 0, body };
    let shares = Record::TurnsShared { from, to, places: 0..3 };
    writer.commit(&[whole(1), vec![shares, Record::Chat(fork)]].concat()).unwrap();
    assert_eq!(counts(&path), (6, 3, 3));
    let saved = load(&reader(&path), 1).unwrap().unwrap();
    let [one, other] = &saved.chats[..] else { panic!("{saved:?}") };
    assert_eq!(one.turns, other.turns);
    let in_one_place =
        one.turns.iter().zip(&other.turns).all(|(a, b)| a.text().as_ptr() == b.text().as_ptr());
    assert!(in_one_place, "a text is in memory once");
    writer.commit(&[Record::SessionRemoved(SessionKey(1))]).unwrap();
    drop(writer);
    let mut archive = Archive::open(&path).unwrap();
    archive.restore(&saved.row, &saved.chats).unwrap();
    drop(archive);
    assert_eq!(counts(&path), (6, 3, 3));
    assert_eq!(load(&reader(&path), 1).unwrap().unwrap().chats, saved.chats);
}

#[test]
fn archive_shows_one_state_while_a_host_commits() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&whole(1)).unwrap();
    let archive = Archive::look_into(&path).unwrap();
    let mut turns = 0;
    let walked: Result<(), ArchiveError> = archive.walk(SessionKey(1), &mut |piece| {
        match piece {
            SessionPiece::Chat(_) => writer.commit(&[turn(1, 3), chat(1, false, 9)]).unwrap(),
            SessionPiece::Turn(_) => turns += 1,
            SessionPiece::Session(_) => {}
        }
        Ok(())
    });
    walked.unwrap();
    assert_eq!(turns, 3);
}

#[test]
fn damaged_turn_stays_damaged_in_a_chat_that_shares_it() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&whole(1)).unwrap();
    let damage = "UPDATE turns SET text = (SELECT text FROM turns WHERE chat = 1001 AND place = 0)
        WHERE chat = 1001 AND place = 1";
    rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
    writer.commit(&beginning_as_1(2)).unwrap();
    let error = load(&reader(&path), 2).unwrap_err().to_string();
    assert!(error.contains("turn 2 of the chat ahp-chat:/2"), "{error}");
    // The first text is that of two turns, whatever the damaged rows say.
    writer.commit(&[Record::TurnsCut(ChatKey(1001), 0), Record::TurnsCut(ChatKey(1002), 1)]).unwrap();
    let text =
        "SELECT x.text FROM turns t JOIN texts x ON x.key = t.text WHERE t.chat = 1002 AND t.place = 0";
    let there: Result<Vec<u8>, _> =
        rusqlite::Connection::open(&path).unwrap().query_row(text, [], |row| row.get(0));
    assert!(there.is_ok(), "{there:?}");
    writer.commit(&[Record::TurnsCut(ChatKey(1002), 0)]).unwrap();
    // Those of the turns whose rows are damaged stay.
    assert_eq!(counts(&path), (0, 1, 0));
}

#[test]
fn text_shared_again_with_unknown_use_count_is_not_deleted() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[whole(1), beginning_as_1(2)].concat()).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch("UPDATE shared_texts SET uses = 1").unwrap();
    let again = Record::TurnsShared { from: ChatKey(1002), to: ChatKey(1003), places: 0..2 };
    writer.commit(&[again, Record::TurnsCut(ChatKey(1003), 0)]).unwrap();
    writer.commit(&[Record::TurnsCut(ChatKey(1001), 0)]).unwrap();
    assert_second_session_is_intact(&path);
}
