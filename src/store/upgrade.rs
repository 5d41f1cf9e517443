//! The steps to a newer schema that SQL alone cannot take.
//!
//! Owns: moving rows of an older version into the tables of the next one, each with its checksum.
//! Never: blesses a row that was damaged before, or loses one.

use rusqlite::{params, Connection};

use super::pack::packs;
use super::rows::{self, unsigned};
use super::sqlite::StoreError;
use crate::host::effects::{ActionLine, Record};

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

/// To version 2, whose rows of the log have several actions each.
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
        let record = [Record::Action(rows::target_of(channel), line)];
        for pack in packs(&record) {
            rows::put_actions(connection, &pack)?;
        }
        if !sound {
            let spoil = "UPDATE actions SET sum = sum + 1 WHERE last = ?1";
            connection.execute(spoil, params![rows::signed(server_seq)])?;
        }
    }
    drop(old);
    drop(statement);
    Ok(connection.execute_batch("DROP TABLE actions_one_by_one")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::schema::{migrate, VERSION_1};

    const LINES: [(u64, i64, &str); 3] =
        [(7, 0, "root\n"), (8, 2, "a chat's\n"), (9, 2, "the same chat's\n")];

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
        let sound = |at: usize| {
            let (seq, channel, line) = LINES[at];
            (rows::target_of(channel), vec![(seq, line.to_owned())])
        };
        assert_eq!(lines.len(), LINES.len());
        assert_eq!(lines[0].as_ref().unwrap(), &sound(0));
        assert!(matches!(&lines[1], Err(StoreError::Damaged(_))), "{:?}", lines[1]);
        assert_eq!(lines[2].as_ref().unwrap(), &sound(2));
    }
}
