//! Stored state of channels that have no table of their own.
//!
//! Owns: storing a channel by kind and key, and returning all of them at the start.
//! Never: interprets a state, or fails because of a damaged row: it is logged and skipped.

use rusqlite::{params, Connection};

use super::errors::StoreError;
use super::rows::{self, Blob, ChannelName};
use crate::host::effects::{ChannelId, ChannelRow};

pub(super) fn put(connection: &Connection, row: &ChannelRow) -> Result<(), StoreError> {
    let name = ChannelName::of(row.id);
    connection
        .prepare_cached("INSERT OR REPLACE INTO channels (kind, key, sum, body) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![name.kind, name.key, sum(name, &row.body), &row.body[..]])?;
    Ok(())
}

pub(super) fn remove(connection: &Connection, id: ChannelId) -> Result<(), StoreError> {
    let name = ChannelName::of(id);
    connection
        .prepare_cached("DELETE FROM channels WHERE kind = ?1 AND key = ?2")?
        .execute(params![name.kind, name.key])?;
    Ok(())
}

/// Returns all stored channels of known kinds.
pub(super) fn all(connection: &Connection) -> Vec<ChannelRow> {
    let sql = "SELECT kind, key, sum, body FROM channels ORDER BY kind, key";
    rows::readable(connection, sql, |row| {
        let (kind, Blob(body)): (String, _) = (row.get(0)?, row.get(3)?);
        let name = ChannelName { kind: &kind, key: row.get(1)? };
        match name.id() {
            _ if sum(name, &body) != row.get::<_, u32>(2)? => {
                Err(StoreError::Damaged(format!("the channel {} of the kind `{kind}`", name.key)))
            }
            Some(id) => Ok(ChannelRow { id, body }),
            None => {
                Err(StoreError::Damaged(format!("the channel {} of the unknown kind `{kind}`", name.key)))
            }
        }
    })
}

fn sum(name: ChannelName<'_>, body: &[u8]) -> u32 {
    rows::sum(&[name.kind.as_bytes(), &[0], &name.key.to_le_bytes(), body])
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn what_was_kept_last_comes_back_and_what_is_damaged_or_unknown_does_not() {
        let connection = Connection::open_in_memory().unwrap();
        crate::store::schema::migrate(&connection).unwrap();
        let row = |key, body: &'static str| ChannelRow {
            id: ChannelId { key, ..ChannelId::ROOT },
            body: Bytes::from(body),
        };
        for row in [row(1, "first"), row(2, "other"), row(1, "second"), row(3, "third")] {
            put(&connection, &row).unwrap();
        }
        assert_eq!(all(&connection), [row(1, "second"), row(2, "other"), row(3, "third")]);
        connection.execute("UPDATE channels SET body = x'00' WHERE key = 2", []).unwrap();
        let unknown = ChannelName { kind: "of tomorrow", key: 3 };
        connection
            .execute(
                "UPDATE channels SET kind = ?1, sum = ?2 WHERE key = 3",
                params![unknown.kind, sum(unknown, b"third")],
            )
            .unwrap();
        assert_eq!(all(&connection), [row(1, "second")]);
    }
}
