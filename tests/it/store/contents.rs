//! Large contents in the texts of turns, which are stored once.
//!
//! Owns: how long such a content stays, and what a damaged one takes with it.
//! Never: looks at what a content is.

use std::path::Path;

use ahp_sidecar::host::effects::{ChatKey, Record};
use ahp_sidecar::state::history::CompletedTurn;

use super::{chat, load, open, place, reader, whole};

/// A content that gets no smaller than half.
fn large() -> String {
    noise(0..40_000)
}

fn noise(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|number| format!("{:08x}", crc32fast::hash(&number.to_le_bytes()))).collect()
}

/// A turn that has said a content twice, with something between.
fn turn(id: &str, content: &str) -> CompletedTurn {
    let text = serde_json::json!({ "id": id, "output": content, "between": "\"", "again": content });
    CompletedTurn::new(id, text.to_string().into())
}

fn sql(path: &Path, sql: &str) -> i64 {
    rusqlite::Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

fn count(path: &Path, table: &str) -> i64 {
    sql(path, &format!("SELECT count(*) FROM {table}"))
}

/// The last turns of the sessions 1 and 2; none where one is damaged.
fn last_turns(path: &Path) -> [Option<CompletedTurn>; 2] {
    [1, 2].map(|session| load(&reader(path), session).ok()?.unwrap().chats[0].turns.last().cloned())
}

/// Two sessions whose last turns have a content in common.
fn filled(path: &Path) -> [CompletedTurn; 2] {
    let turns = [turn("one", &large()), turn("other", &large())];
    let [one, other] = turns.clone();
    let last = [Record::Turn(ChatKey(1001), 3, one), Record::Turn(ChatKey(1002), 3, other)];
    let chats = vec![chat(1, false, 0), chat(2, false, 0)];
    open(path).0.commit(&[whole(1), whole(2), last.to_vec(), chats].concat()).unwrap();
    turns
}

#[test]
fn shared_content_is_stored_once_and_deleted_with_its_last_turn() {
    let (_folder, path) = place();
    let (mut writer, _) = open(&path);
    writer.commit(&[whole(1), whole(2)].concat()).unwrap();
    let before = (count(&path, "texts"), count(&path, "shared_texts"));
    drop(writer);
    let turns = filled(&path);
    assert_eq!(last_turns(&path), turns.map(Some));
    let (mut writer, _) = open(&path);
    assert_eq!(count(&path, "contents"), 1);
    let bytes = sql(&path, "SELECT sum(length(text)) FROM texts");
    assert!(bytes < i64::try_from(large().len() * 3 / 2).unwrap(), "{bytes} bytes for four times the same");
    let content_bytes = sql(&path, "SELECT content_bytes FROM turns WHERE chat = 1001 AND place = 3");
    assert!((bytes..3 * bytes).contains(&content_bytes), "{content_bytes} of {bytes}");
    writer.commit(&[Record::TurnsCut(ChatKey(1001), 3)]).unwrap();
    assert_eq!(last_turns(&path)[1], Some(turn("other", &large())));
    writer.commit(&[Record::TurnsCut(ChatKey(1002), 3)]).unwrap();
    assert_eq!((count(&path, "texts"), count(&path, "shared_texts")), before);
    assert_eq!(count(&path, "contents"), 0);
}

#[test]
fn shared_content_survives_damage_to_its_reference_tables() {
    for damage in [
        "DROP TABLE contents",
        "DROP TABLE shared_texts",
        "UPDATE shared_texts SET sum = 'x'",
        "UPDATE contents SET text = (SELECT text FROM turns WHERE chat = 1002 AND place = 1)",
        "UPDATE contents SET hash = 'x'",
        "DELETE FROM contents",
    ] {
        let (_folder, path) = place();
        filled(&path);
        rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        let (mut writer, _) = open(&path);
        let again = Record::Turn(ChatKey(1001), 3, turn("third", &large()));
        writer.commit(&[Record::TurnsCut(ChatKey(1001), 0), again]).unwrap();
        let found = last_turns(&path);
        assert_eq!(found[1], Some(turn("other", &large())), "{damage}");
        writer.commit(&[Record::TurnsCut(ChatKey(1001), 0)]).unwrap();
        assert_eq!(last_turns(&path)[1], Some(turn("other", &large())), "{damage}");
    }
}

/// Breaks the chain of pages of a blob that is found by this.
fn break_chain(path: &Path, sql: &str) {
    const PAGE: usize = 16 << 10;
    let connection = rusqlite::Connection::open(path).unwrap();
    let blob: Vec<u8> = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(connection);
    let mut file = std::fs::read(path).unwrap();
    let part = &blob[2 * PAGE..2 * PAGE + 64];
    let at = memchr::memmem::find(&file, part).expect("it is in the file");
    file[at / PAGE * PAGE..][..4].fill(0xff);
    std::fs::write(path, file).unwrap();
}

#[test]
fn content_with_unknown_reference_count_is_not_deleted() {
    let (_folder, path) = place();
    filled(&path);
    let two = serde_json::json!({ "id": "both", "output": large(), "alone": noise(50_000..90_000) });
    let both = Record::Turn(ChatKey(1001), 3, CompletedTurn::new("both", two.to_string().into()));
    open(&path).0.commit(&[both, chat(1, false, 0)]).unwrap();
    // Of the content that this turn has alone a part is lost, and so is who has what.
    break_chain(&path, "SELECT text FROM texts WHERE key = (SELECT max(text) FROM contents)");
    rusqlite::Connection::open(&path).unwrap().execute_batch("DROP TABLE shared_texts").unwrap();
    let (mut writer, _) = open(&path);
    writer.commit(&[Record::TurnsCut(ChatKey(1001), 0)]).unwrap();
    assert_eq!(last_turns(&path)[1], Some(turn("other", &large())));
}

#[test]
fn store_without_countable_references_is_opened() {
    for lost in ["turns", "texts", "contents"] {
        let (_folder, path) = place();
        filled(&path);
        let damage = format!("DROP TABLE shared_texts; DROP TABLE {lost}");
        rusqlite::Connection::open(&path).unwrap().execute_batch(&damage).unwrap();
        let (mut writer, _) = open(&path);
        writer.commit(&[Record::Turn(ChatKey(1001), 0, turn("anew", &large()))]).unwrap();
    }
}

#[test]
fn damaged_content_is_reported_and_not_shared_again() {
    let (_folder, path) = place();
    filled(&path);
    let damage = "UPDATE texts SET text = 'x' || substr(text, 2) WHERE key IN (SELECT text FROM contents)";
    rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
    let whole = |session| {
        let turns = load(&reader(&path), session).map(|found| found.unwrap().chats.remove(0).turns);
        turns.is_ok_and(|turns| turns.iter().all(|turn| turn.read().is_some()))
    };
    assert!(!whole(1) && !whole(2), "what is damaged is not told as if it were whole");
    let (mut writer, _) = open(&path);
    writer.commit(&[Record::Turn(ChatKey(1001), 3, turn("third", &large()))]).unwrap();
    assert_eq!(last_turns(&path)[0], Some(turn("third", &large())));
}
