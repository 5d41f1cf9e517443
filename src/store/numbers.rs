//! Numbers that are assigned once in the life of a store: sequence numbers, and keys.
//!
//! Owns: the sizes of the blocks that each process reserves, and which number may have been
//! assigned last, also if the record of that is damaged.
//! Never: reserves a block; the writer does.

use rusqlite::Connection;

use super::errors::StoreError;
use super::rows::{self, unsigned};

/// Number of sequence numbers reserved at once.
pub(super) const BLOCK: u64 = 1 << 20;

/// Number of keys that a process may assign. Each process begins above those of the one before it:
/// keys of terminals are in URIs, and no row has them.
pub(super) const KEY_BLOCK: u64 = 1 << 32;

/// Jump of the keys when the last one cannot be read: the blocks of a million processes.
pub(super) const KEY_LEAP: u64 = KEY_BLOCK << 20;

/// Name of a number in the table `meta`: the highest purged key, or the one before the first key of
/// the last process if that is higher.
pub(super) const LAST_KEY: &str = "last_key";

/// Jump of the sequence numbers when the last reservation cannot be read: further than any process
/// gets.
pub(super) const LEAP: u64 = 1 << 40;

/// Returns the last reserved sequence number.
pub(super) fn last_reserved(connection: &Connection) -> Result<u64, StoreError> {
    let lost = match rows::number(connection, "reserved") {
        Ok(Some(reserved)) => return Ok(reserved),
        Err(StoreError::Damaged(what)) => what,
        Err(error) => return Err(error),
        Ok(None) => {
            let sql = "SELECT EXISTS (SELECT 1 FROM lives) OR EXISTS (SELECT 1 FROM actions)
                OR EXISTS (SELECT 1 FROM sessions)";
            if number(connection, sql)? == 0 {
                return Ok(0);
            }
            "the number `reserved` is missing".to_owned()
        }
    };
    tracing::error!(lost, "the last reserved sequence number is damaged or missing: the sequence skips ahead, so that no number is assigned twice");
    let known =
        "SELECT max(ifnull((SELECT max(last) FROM actions), 0), ifnull((SELECT max(start) FROM lives), 0))";
    Ok(number(connection, known)?.saturating_add(LEAP))
}

/// Returns the highest key of a session or chat, purged ones included, or the one before the first
/// key of the last process if that is higher.
pub(super) fn last_key(connection: &Connection) -> Result<u64, StoreError> {
    let there =
        "SELECT max(ifnull((SELECT max(key) FROM sessions), 0), ifnull((SELECT max(key) FROM chats), 0))";
    let there = number(connection, there)?;
    match rows::number(connection, LAST_KEY) {
        Ok(stored) => Ok(there.max(stored.unwrap_or(0))),
        Err(error) if error.is_damage() => {
            tracing::error!(%error, "the last key is damaged: keys skip ahead, so that none is assigned twice");
            Ok(there.saturating_add(KEY_LEAP))
        }
        Err(error) => Err(error),
    }
}

/// Returns the number that a query without parameters selects.
pub(super) fn number(connection: &Connection, sql: &str) -> Result<u64, StoreError> {
    Ok(connection.query_row(sql, [], |row| row.get(0)).map(unsigned)?)
}
