//! Migration steps to a newer schema that need more than SQL.
//!
//! Owns: moving rows of an older version into the tables of the next one, each with its checksum.
//! Never: makes a damaged row valid, or loses a row.

use bytes::Bytes;
use rusqlite::{params, Connection};

use super::errors::StoreError;
use super::pack::packs;
use super::rows::{self, signed, unsigned, ChannelName};
use super::turns;
use crate::host::effects::{ActionLine, ChannelId, ChatKey, Record, SessionKey};
use crate::state::history::CompletedTurn;

const VERSION_2: &str = "
    ALTER TABLE actions RENAME TO actions_one_by_one;
    -- Each row has the actions of one channel from one number to another; they had so many bytes on the wire.
    CREATE TABLE actions (
        last INTEGER PRIMARY KEY, first INTEGER NOT NULL, channel INTEGER NOT NULL, line_bytes INTEGER NOT NULL,
        sum INTEGER NOT NULL, packed BLOB NOT NULL
    );
    -- Which version of the protocol each client spoke last.
    CREATE TABLE clients (place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, version TEXT NOT NULL);
";

/// Migrates to version 2, with several actions in a row of the log.
pub(super) fn to_version_2(connection: &Connection) -> Result<(), StoreError> {
    connection.execute_batch(VERSION_2)?;
    let mut statement =
        connection.prepare("SELECT seq, channel, sum, line FROM actions_one_by_one ORDER BY seq")?;
    let mut old = statement.query([])?;
    while let Some(row) = old.next()? {
        let (server_seq, channel, expected): (u64, i64, u32) =
            (unsigned(row.get(0)?), row.get(1)?, row.get(2)?);
        let line: Vec<u8> = row.get(3)?;
        let sound = rows::sum(&[&server_seq.to_le_bytes(), &channel.to_le_bytes(), &line]) == expected;
        let line = ActionLine { line: line.into(), server_seq, delta: None };
        // Packing does not depend on the channel.
        for pack in packs(&[Record::Action(ChannelId::ROOT, line)]) {
            let sum = numbered_sum(pack.first, pack.last, channel, &pack.packed);
            connection.prepare_cached("INSERT INTO actions VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?.execute(
                params![
                    signed(pack.last),
                    signed(pack.first),
                    channel,
                    signed(pack.line_bytes),
                    if sound { sum } else { sum.wrapping_add(1) },
                    pack.packed,
                ],
            )?;
        }
    }
    drop(old);
    drop(statement);
    Ok(connection.execute_batch("DROP TABLE actions_one_by_one")?)
}

const VERSION_4: &str = "
    ALTER TABLE actions RENAME TO actions_by_number;
    -- Each row has the actions of one channel from one number to another; they had so many bytes on the wire. A channel
    -- is named by its kind and by its key among those of that kind.
    CREATE TABLE actions (
        last INTEGER PRIMARY KEY, first INTEGER NOT NULL, kind TEXT NOT NULL, key INTEGER NOT NULL,
        line_bytes INTEGER NOT NULL, sum INTEGER NOT NULL, packed BLOB NOT NULL
    );
    -- Channels of the kinds that have no table of their own.
    CREATE TABLE channels (
        kind TEXT NOT NULL, key INTEGER NOT NULL, sum INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, key)
    ) WITHOUT ROWID;
";

/// Migrates to version 4, whose log names channels by kind and key. Before, each channel had a
/// number.
pub(super) fn to_version_4(connection: &Connection) -> Result<(), StoreError> {
    connection.execute_batch(VERSION_4)?;
    let sql = "SELECT last, first, channel, line_bytes, sum, packed FROM actions_by_number ORDER BY last";
    let mut statement = connection.prepare(sql)?;
    let mut old = statement.query([])?;
    while let Some(row) = old.next()? {
        // Unreadable columns of a damaged row are lost; the row stays, so that its actions count as
        // missing.
        let last = unsigned(row.get(0)?);
        let first = row.get(1).map(unsigned).unwrap_or(last);
        let channel: i64 = row.get(2).unwrap_or_default();
        let line_bytes: i64 = row.get(3).unwrap_or_default();
        let packed = row.get_ref(5)?.as_blob().unwrap_or_default();
        let sound = row.get(4) == Ok(numbered_sum(first, last, channel, packed));
        let channel = ChannelName::of(channel_of_number(channel));
        let sum = rows::actions_sum(first, last, channel, packed);
        connection.prepare_cached("INSERT INTO actions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?.execute(
            params![
                signed(last),
                signed(first),
                channel.kind,
                channel.key,
                line_bytes,
                if sound { sum } else { sum.wrapping_add(1) },
                packed,
            ],
        )?;
    }
    drop(old);
    drop(statement);
    Ok(connection.execute_batch("DROP TABLE actions_by_number")?)
}

const VERSION_5: &str = "
    ALTER TABLE turns RENAME TO turns_with_texts;
    -- What stands in the index is enough to find a turn; its text is read alone.
    CREATE TABLE turns (
        key INTEGER PRIMARY KEY, chat INTEGER NOT NULL, place INTEGER NOT NULL, id TEXT NOT NULL,
        text INTEGER NOT NULL, bytes INTEGER NOT NULL, text_sum INTEGER NOT NULL, sum INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX turns_by_place ON turns (chat, place);
    CREATE TABLE texts (key INTEGER PRIMARY KEY, text BLOB NOT NULL);
    -- How many turns have a text, where that is not one.
    CREATE TABLE shared_texts (key INTEGER PRIMARY KEY, uses INTEGER NOT NULL, sum INTEGER NOT NULL);
";

/// Migrates to version 5, with separate rows for the texts of turns.
pub(super) fn to_version_5(connection: &Connection) -> Result<(), StoreError> {
    connection.execute_batch(VERSION_5)?;
    let mut statement = connection.prepare("SELECT chat, place, sum, body FROM turns_with_texts")?;
    let mut old = statement.query([])?;
    while let Some(row) = old.next()? {
        let (chat, place) = (ChatKey(unsigned(row.get(0)?)), unsigned(row.get(1)?));
        let text = row.get_ref(3)?.as_bytes().unwrap_or_default();
        let sum = rows::sum(&[&chat.0.to_le_bytes(), &place.to_le_bytes(), text]);
        // An invalid turn was invalid before, too.
        let turn = CompletedTurn::from_stored(Bytes::copy_from_slice(text));
        let id = turn.as_ref().map(CompletedTurn::id).unwrap_or_default();
        let text = turns::put_text_of_version_5(connection, text)?;
        turns::put_row_of_version_5(connection, chat, place, id, text, row.get(2) == Ok(sum))?;
    }
    drop(old);
    drop(statement);
    Ok(connection.execute_batch("DROP TABLE turns_with_texts")?)
}

/// Migrates to version 6, with facts about turns. For older turns, they follow from the text when
/// it is read.
pub(super) const VERSION_6: &str = "ALTER TABLE turns ADD COLUMN facts BLOB";

/// Migrates to version 7, which stores large contents once. Older texts keep theirs.
pub(super) const VERSION_7: &str = "
    -- Where a content of texts is found.
    CREATE TABLE contents (hash BLOB PRIMARY KEY, text INTEGER NOT NULL) WITHOUT ROWID;
    CREATE INDEX contents_by_text ON contents (text);
    -- How many bytes the contents of a turn's text take.
    ALTER TABLE turns ADD COLUMN content_bytes INTEGER;
";

fn numbered_sum(first: u64, last: u64, channel: i64, packed: &[u8]) -> u32 {
    rows::sum(&[&first.to_le_bytes(), &last.to_le_bytes(), &channel.to_le_bytes(), packed])
}

/// Returns the channel of a number before version 4: 0 for the root channel, odd for a session,
/// even for a chat.
fn channel_of_number(number: i64) -> ChannelId {
    match number {
        0 => ChannelId::ROOT,
        odd if odd % 2 != 0 => SessionKey(unsigned(odd.saturating_add(1) / 2)).into(),
        even => ChatKey(unsigned(even / 2)).into(),
    }
}

/// Returns the number of a chat before version 4.
pub(super) fn number_of_chat(key: i64) -> i64 {
    key.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::schema::{migrate, VERSION_1};

    const LINES: [(u64, i64, &str); 4] =
        [(7, 0, "root\n"), (8, 2, "a chat's\n"), (9, 2, "the same chat's\n"), (10, 5, "a session's\n")];

    /// A database of version 1 with some actions, of which one is damaged.
    fn version_1(damaged: u64) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(VERSION_1).unwrap();
        for (seq, channel, line) in LINES {
            let sum = rows::sum(&[&seq.to_le_bytes(), &channel.to_le_bytes(), line.as_bytes()]);
            let sum = if seq == damaged { sum ^ 1 } else { sum };
            connection
                .execute(
                    "INSERT INTO actions VALUES (?1, ?2, ?3, ?4)",
                    params![rows::signed(seq), channel, sum, line.as_bytes()],
                )
                .unwrap();
        }
        connection.pragma_update(None, "user_version", 1).unwrap();
        connection
    }

    #[test]
    fn the_log_is_the_same_afterwards_and_what_was_damaged_is() {
        let connection = version_1(8);
        assert_eq!(migrate(&connection).unwrap(), 1);
        let mut statement = connection.prepare(rows::ACTIONS_BEHIND).unwrap();
        let mut found = statement.query(params![0]).unwrap();
        let mut lines = Vec::new();
        while let Some(row) = found.next().unwrap() {
            lines.push(rows::actions(row).map(|(target, actions)| {
                let all =
                    actions.iter().map(|it| (it.server_seq, String::from_utf8(it.line.to_vec()).unwrap()));
                (target, all.collect::<Vec<_>>())
            }));
        }
        let sound = |at: usize, channel: ChannelId| {
            let (seq, _, line) = LINES[at];
            (channel, vec![(seq, line.to_owned())])
        };
        assert_eq!(lines.len(), LINES.len());
        assert_eq!(lines[0].as_ref().unwrap(), &sound(0, ChannelId::ROOT));
        assert!(matches!(&lines[1], Err(StoreError::Damaged(_))), "{:?}", lines[1]);
        assert_eq!(lines[2].as_ref().unwrap(), &sound(2, ChatKey(1).into()));
        assert_eq!(lines[3].as_ref().unwrap(), &sound(3, SessionKey(3).into()));
    }
}
