//! Access to sessions and chats by index, or by scanning tables if an index is damaged.
//!
//! Owns: the check that indexes name every row, and the list of all sessions that some table or
//! index still names.
//! Never: writes, or fails because of damage as long as another table or index still names a
//! session.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rusqlite::{params, Connection, OptionalExtension};

use super::errors::StoreError;
use super::rows::unsigned;
use crate::host::effects::SessionKey;

/// An index that rows are found by.
struct RowIndex {
    table: &'static str,
    name: &'static str,
    column: &'static str,
    /// Condition of the rows that it contains.
    of: &'static str,
}

const INDEXES: [RowIndex; 3] = [
    RowIndex { table: "sessions", name: "sessions_by_uri", column: "uri", of: "removed_at IS NULL" },
    RowIndex { table: "sessions", name: "sessions_by_time", column: "modified_at", of: "removed_at IS NULL" },
    RowIndex { table: "chats", name: "chats_by_uri", column: "uri", of: "key IS NOT NULL" },
];

/// Returns whether the indexes name every readable row. If so, a row that they do not name does not
/// exist.
fn are_complete(connection: &Connection) -> Result<bool, StoreError> {
    for index in INDEXES {
        // From both ends, to check the rows after a damaged one, too.
        for order in ["ASC", "DESC"] {
            match misses_a_row(connection, &index, order) {
                Ok(true) => {
                    tracing::error!(index = index.name, "an index is damaged: it lacks entries");
                    return Ok(false);
                }
                Ok(false) => break,
                Err(error) if error.is_damage() => {
                    tracing::debug!(%error, index = index.name, "an index cannot be checked");
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(true)
}

/// Returns what [`are_complete`] has returned, which reads every row, and stores it in `known`.
pub(super) fn are_complete_once(connection: &Connection, known: &OnceLock<bool>) -> Result<bool, StoreError> {
    match known.get() {
        Some(known) => Ok(*known),
        None => are_complete(connection).map(|found| *known.get_or_init(|| found)),
    }
}

fn misses_a_row(connection: &Connection, index: &RowIndex, order: &str) -> Result<bool, StoreError> {
    let RowIndex { table, name, column, of } = index;
    let sql = format!(
        "SELECT 1 FROM {table} AS line NOT INDEXED WHERE {of} AND NOT EXISTS
            (SELECT 1 FROM {table} AS entry INDEXED BY {name}
            WHERE {of} AND entry.{column} = line.{column} AND entry.key = line.key)
        ORDER BY line.key {order} LIMIT 1"
    );
    Ok(connection.query_row(&sql, [], |_| Ok(())).optional()?.is_some())
}

/// A session that a table or an index names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedSession {
    pub(super) key: SessionKey,
    /// Time of removal, in milliseconds since 1970; `None` if the session is listed.
    pub(super) removed_at: Option<i64>,
    pub(super) modified_at: String,
}

/// Returns all sessions that the table or one of its indexes names, even if their rows are
/// unreadable: listed ones first, newest first, then those in the trash.
///
/// # Errors
/// When every access path is damaged and none has found a session.
pub(super) fn named(connection: &Connection) -> Result<Vec<NamedSession>, StoreError> {
    // The first entry of a session wins, so rows come before indexes.
    const WAYS: [&str; 5] = [
        "SELECT key, removed_at, CAST(modified_at AS BLOB) FROM sessions NOT INDEXED ORDER BY key",
        "SELECT key, removed_at, CAST(modified_at AS BLOB) FROM sessions NOT INDEXED ORDER BY key DESC",
        "SELECT key, NULL, CAST(modified_at AS BLOB) FROM sessions INDEXED BY sessions_by_time
            WHERE removed_at IS NULL",
        "SELECT key, NULL, x'' FROM sessions INDEXED BY sessions_by_uri WHERE removed_at IS NULL",
        "SELECT key, removed_at, x'' FROM sessions INDEXED BY sessions_removed WHERE removed_at IS NOT NULL",
    ];
    let (mut all, mut led, mut failure) = (BTreeMap::new(), false, None);
    for way in WAYS {
        match follow(connection, way, &mut all) {
            Ok(()) => led = true,
            Err(error) => {
                tracing::debug!(%error, way, "a table or index that sessions are found by is damaged");
                failure = Some(error);
            }
        }
    }
    if let Some(failure) = failure.filter(|_| !led && all.is_empty()) {
        return Err(failure.into());
    }
    let mut all: Vec<NamedSession> = all.into_values().collect();
    all.sort_by(|a, b| {
        let place = |it: &NamedSession| (it.removed_at, it.modified_at.clone(), it.key.0);
        (a.removed_at.is_some().cmp(&b.removed_at.is_some())).then_with(|| place(b).cmp(&place(a)))
    });
    Ok(all)
}

fn follow(connection: &Connection, way: &str, all: &mut BTreeMap<u64, NamedSession>) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(way)?;
    let mut rows = statement.query(params![])?;
    while let Some(row) = rows.next()? {
        let key = SessionKey(unsigned(row.get(0)?));
        let modified_at =
            String::from_utf8_lossy(row.get_ref(2)?.as_bytes().unwrap_or_default()).into_owned();
        let removed_at = row.get(1).unwrap_or_default();
        all.entry(key.0).or_insert(NamedSession { key, removed_at, modified_at });
    }
    Ok(())
}
