//! Repair of redundant or dispensable parts of a damaged database.
//!
//! Owns: rebuilding indexes from their tables, rebuilding tables without session data from their
//! readable rows, and recreating missing tables.
//! Never: changes a row of a session, or frees a page that a damaged page names, since the page may
//! be in use elsewhere. Rewriting the database frees such space.

use std::collections::BTreeSet;

use rusqlite::types::Value;
use rusqlite::{params, params_from_iter, Connection, ErrorCode, OptionalExtension};

use super::errors::StoreError;
use super::numbers::{last_key, last_reserved, KEY_LEAP, LAST_KEY};
use super::rows::{self, signed};
use super::schema::{self, pragma};
use super::upgrade;
use super::use_counts::{self, TextUses};

/// Tables without session data: a host can do without any of their rows.
const DISPENSABLE: [&str; 6] = ["meta", "lives", "trials", "agents", "channels", "clients"];

struct SchemaObject {
    name: String,
    table: String,
    sql: String,
    is_index: bool,
}

#[derive(Default)]
pub(super) struct Plan {
    version: usize,
    /// Last sequence number that may have been sent.
    marked: u64,
    /// Tables, each with its future rows.
    tables: Vec<(SchemaObject, Vec<Vec<Value>>)>,
    /// Bound on the last assigned key, if the stored one is damaged.
    last_key: Option<u64>,
    /// Chats with a running turn, if the log lacks actions.
    spoiled: Vec<i64>,
    indexes: Vec<SchemaObject>,
    /// Recounted use counts of texts, if the stored ones are damaged.
    uses: Vec<(i64, TextUses)>,
}

/// Finds repairable damage and logs each finding. Must be called outside a transaction: one that
/// meets damage can no longer write. When a process starts, `marked` is the last sequence number
/// that may have been sent, and the log of actions is repaired, too.
pub(super) fn plan(connection: &Connection, marked: Option<u64>) -> Result<Plan, StoreError> {
    let version = usize::try_from(pragma(connection, "user_version")?).unwrap_or(0);
    let (indexes, tables): (Vec<_>, Vec<_>) =
        objects(&schema::model(version)?)?.into_iter().partition(|object| object.is_index);
    let mut plan = Plan { version, marked: marked.unwrap_or(0), ..Plan::default() };
    for table in tables {
        let is_there = is_there(connection, &table.name)?;
        match table.name.as_str() {
            "sessions" if !is_there => {
                return Err(StoreError::Damaged("the store (its table of sessions is missing)".to_owned()));
            }
            name if DISPENSABLE.contains(&name) => {
                let (rows, all) = if is_there { readable(connection, name) } else { (Vec::new(), false) };
                if !all {
                    tracing::warn!(
                        table = name,
                        rows = rows.len(),
                        "a table is damaged: it is rebuilt from its readable rows"
                    );
                }
                if !all && name == "meta" {
                    // Leaves room, so that no key of a purged session is assigned again.
                    plan.last_key = Some(last_key_in(connection).saturating_add(KEY_LEAP));
                }
                plan.tables.push((table, rows));
            }
            "actions" if marked.is_some() => {
                let (rows, all) =
                    if is_there { readable(connection, "actions") } else { (Vec::new(), false) };
                if !all {
                    plan.spoiled = running(connection);
                }
                if !all || version == schema::NEWEST && !can_append(connection)? {
                    tracing::warn!(
                        rows = rows.len(),
                        "the log of actions is damaged: it is rebuilt from its readable rows"
                    );
                    plan.tables.push((table, rows));
                }
            }
            // The counts are recomputed, since a missing row cannot be detected.
            "shared_texts" if !is_there || !readable(connection, "shared_texts").1 => {
                tracing::warn!("the table of texts that turns share is damaged: it is rebuilt");
                if self::is_there(connection, "turns")? {
                    plan.uses = use_counts::count(connection)?;
                }
                plan.tables.push((table, Vec::new()));
            }
            // Without these rows, a content that is already stored is stored once more.
            "contents" if !is_there || !readable(connection, "contents").1 => {
                tracing::warn!(
                    "the index of large contents is damaged: it is emptied, and contents may be stored twice"
                );
                plan.tables.push((table, Vec::new()));
            }
            name if !is_there => {
                tracing::error!(
                    table = name,
                    "a table of the store is missing: its data is lost, and it is created empty"
                );
                plan.tables.push((table, Vec::new()));
            }
            _ => {}
        }
    }
    // Dropping a table also drops its indexes.
    let of_table_again =
        |index: &SchemaObject| plan.tables.iter().any(|(table, _)| table.name == index.table);
    let again = |index: &SchemaObject| of_table_again(index) || should_be_made_again(connection, index);
    plan.indexes = indexes.into_iter().filter(again).collect();
    Ok(plan)
}

/// Carries out a plan, in a transaction that has not read damaged parts.
pub(super) fn carry_out(connection: &Connection, plan: &Plan) -> Result<(), StoreError> {
    drop_damaged(connection, plan)?;
    make_all(connection, plan)
}

pub(super) fn drop_damaged(connection: &Connection, plan: &Plan) -> Result<(), StoreError> {
    for (table, _) in &plan.tables {
        forget(connection, "tbl_name", &table.name)?;
        if table.sql.contains("AUTOINCREMENT") {
            forget(connection, "name", "sqlite_sequence")?;
        }
    }
    plan.indexes.iter().try_for_each(|index| forget(connection, "name", &index.name))
}

pub(super) fn make_all(connection: &Connection, plan: &Plan) -> Result<(), StoreError> {
    for (table, rows) in &plan.tables {
        make_table(connection, table, rows)?;
    }
    if let Some(last_key) = plan.last_key {
        rows::put_number(connection, LAST_KEY, last_key)?;
    }
    use_counts::put(connection, &plan.uses)?;
    if !plan.spoiled.is_empty() {
        spoil(connection, plan)?;
    }
    for index in &plan.indexes {
        make_index(connection, index)?;
    }
    Ok(())
}

fn last_key_in(connection: &Connection) -> u64 {
    last_key(connection).unwrap_or_else(|error| {
        tracing::debug!(%error, "the last assigned key cannot be read");
        0
    })
}

/// Returns the chats with a running turn, as far as they are readable.
fn running(connection: &Connection) -> Vec<i64> {
    let read = || -> rusqlite::Result<Vec<i64>> {
        let mut statement = connection.prepare("SELECT key FROM chats NOT INDEXED WHERE running")?;
        let keys = statement.query_map([], |row| row.get(0))?;
        Ok(keys.map_while(Result::ok).collect())
    };
    read().unwrap_or_default()
}

/// Returns whether actions can be appended to the log.
fn can_append(connection: &Connection) -> Result<bool, StoreError> {
    let appended = probe(connection).is_ok();
    if !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    Ok(appended)
}

pub(super) fn check_complete(connection: &Connection) -> Result<(), StoreError> {
    let mut statement = connection.prepare("SELECT name FROM sqlite_schema")?;
    let names = statement.query_map([], |row| row.get(0))?;
    let names: BTreeSet<String> = names.collect::<Result<_, _>>()?;
    match schema::OBJECTS.iter().find(|name| !names.contains(**name)) {
        None => Ok(()),
        Some(name) => Err(StoreError::Damaged(format!("the schema of the store (`{name}` is missing)"))),
    }
}

/// Returns the objects of this database: tables first, unique indexes last, since they need sound
/// tables.
fn objects(connection: &Connection) -> Result<Vec<SchemaObject>, StoreError> {
    let sql = "SELECT name, tbl_name, sql, type = 'index' FROM sqlite_schema
        WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY type DESC, sql LIKE 'CREATE UNIQUE%', name";
    let mut statement = connection.prepare(sql)?;
    let objects = statement.query_map([], |row| {
        Ok(SchemaObject { name: row.get(0)?, table: row.get(1)?, sql: row.get(2)?, is_index: row.get(3)? })
    })?;
    Ok(objects.collect::<Result<_, _>>()?)
}

fn is_there(connection: &Connection, name: &str) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE name = ?1";
    Ok(connection.query_row(sql, params![name], |_| Ok(())).optional()?.is_some())
}

fn make_table(connection: &Connection, table: &SchemaObject, rows: &[Vec<Value>]) -> Result<(), StoreError> {
    connection.execute_batch(&table.sql)?;
    for row in rows {
        let places: Vec<String> = (1..=row.len()).map(|place| format!("?{place}")).collect();
        let sql = format!("INSERT OR IGNORE INTO {} VALUES ({})", table.name, places.join(", "));
        match connection.prepare_cached(&sql)?.execute(params_from_iter(row)) {
            // Rows with a value of the wrong type are skipped.
            Err(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == ErrorCode::TypeMismatch => {}
            inserted => {
                inserted?;
            }
        }
    }
    Ok(())
}

/// Returns the readable rows of a table, from its start and its end, and whether these are all
/// rows.
fn readable(connection: &Connection, table: &str) -> (Vec<Vec<Value>>, bool) {
    let mut rows = Vec::new();
    let mut read = |order: &str| -> rusqlite::Result<()> {
        let mut statement = connection.prepare(&format!("SELECT * FROM {table} NOT INDEXED {order}"))?;
        let columns = statement.column_count();
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            // Invalid UTF-8 is read as bytes; the checksum of such a row is wrong, too.
            let value = |at| match row.get_ref(at)? {
                rusqlite::types::ValueRef::Text(text) => Ok(match std::str::from_utf8(text) {
                    Ok(text) => Value::Text(text.to_owned()),
                    Err(_) => Value::Blob(text.to_vec()),
                }),
                other => Ok(other.try_into().unwrap_or(Value::Null)),
            };
            rows.push((0..columns).map(value).collect::<rusqlite::Result<_>>()?);
        }
        Ok(())
    };
    let all = read("").is_ok();
    if !all {
        // Rows after the damage. Duplicates are ignored on insertion.
        read("ORDER BY 1 DESC").unwrap_or_else(|error| tracing::debug!(%error, table, "a table is damaged"));
    }
    (rows, all)
}

/// Removes a table or an index from the schema without reading its pages.
fn forget(connection: &Connection, column: &str, name: &str) -> Result<(), StoreError> {
    connection.execute_batch("PRAGMA writable_schema = ON")?;
    let forgotten =
        connection.execute(&format!("DELETE FROM sqlite_schema WHERE {column} = ?1"), params![name]);
    // Reloads the schema.
    connection.execute_batch("PRAGMA writable_schema = RESET")?;
    forgotten?;
    Ok(())
}

/// Adds an unreadable action to the log of each chat with a running turn, so that the turn counts
/// as damaged.
fn spoil(connection: &Connection, plan: &Plan) -> Result<(), StoreError> {
    let mut last = last_reserved(connection)?.max(plan.marked);
    for chat in &plan.spoiled {
        last += 1;
        // The checksum 0 is wrong.
        let (sql, channel) = match plan.version {
            1 => (
                "INSERT INTO actions (seq, channel, sum, line) VALUES (?1, ?2, 0, x'00')",
                upgrade::number_of_chat(*chat),
            ),
            2 | 3 => (
                "INSERT INTO actions (last, first, channel, line_bytes, sum, packed)
                    VALUES (?1, ?1, ?2, 0, 0, x'00')",
                upgrade::number_of_chat(*chat),
            ),
            _ => (
                "INSERT INTO actions (last, first, kind, key, line_bytes, sum, packed)
                    VALUES (?1, ?1, 'chat', ?2, 0, 0, x'00')",
                *chat,
            ),
        };
        connection.execute(sql, params![signed(last), channel])?;
    }
    rows::put_number(connection, "reserved", last)
}

/// Tests whether a row of several pages can be appended to the log, without a trace. Must be called
/// in a transaction.
pub(super) fn probe(connection: &Connection) -> Result<(), StoreError> {
    let append = "SAVEPOINT probe; INSERT INTO actions VALUES (NULL, 0, 'root', 0, 0, 0, zeroblob(40000));
        ROLLBACK TO probe; RELEASE probe";
    Ok(connection.execute_batch(append)?)
}

fn make_index(connection: &Connection, index: &SchemaObject) -> Result<(), StoreError> {
    match connection.execute_batch(&index.sql) {
        Err(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == ErrorCode::ConstraintViolation => {
            // While the index was damaged, a second session was made with a URI that was in use.
            // The older session is moved to the trash, so nothing is overwritten.
            let sql = "UPDATE sessions SET removed_at = CAST(unixepoch('subsec') * 1000 AS INTEGER)
                WHERE removed_at IS NULL AND key NOT IN
                    (SELECT max(key) FROM sessions NOT INDEXED WHERE removed_at IS NULL GROUP BY uri)";
            let trashed = connection.execute(sql, [])?;
            tracing::error!(trashed, "two sessions have the same URI: the older one was moved to the trash");
            Ok(connection.execute_batch(&index.sql)?)
        }
        made => Ok(made?),
    }
}

/// Returns whether an index is damaged and its table is sound, so that it can be rebuilt.
fn should_be_made_again(connection: &Connection, index: &SchemaObject) -> bool {
    if is_sound(connection, index) {
        return false;
    }
    let sql = format!("SELECT count(*) FROM {} NOT INDEXED", index.table);
    let can_be = connection.query_row(&sql, [], |_| Ok(())).is_ok();
    if can_be {
        tracing::warn!(index = index.name, "an index is damaged: it is rebuilt");
    } else {
        tracing::error!(index = index.name, "an index cannot be rebuilt: its table is damaged too");
    }
    can_be
}

/// Returns whether an index is readable and consistent with the readable part of its table.
fn is_sound(connection: &Connection, index: &SchemaObject) -> bool {
    let SchemaObject { name, table, sql, .. } = index;
    let condition = sql.split_once(" WHERE ").map_or("1", |(_, condition)| condition);
    let count = |way: &str| -> rusqlite::Result<i64> {
        let sql = format!("SELECT count(*) FROM {table} {way} WHERE {condition}");
        connection.query_row(&sql, [], |row| row.get(0))
    };
    let Ok(entries) = count(&format!("INDEXED BY {name}")) else { return false };
    if count("NOT INDEXED").is_ok_and(|rows| rows != entries) {
        return false;
    }
    let complaints = || -> rusqlite::Result<Vec<String>> {
        let mut statement = connection.prepare(&format!("PRAGMA integrity_check({table})"))?;
        let complaints = statement.query_map([], |row| row.get(0))?;
        complaints.collect()
    };
    complaints().is_ok_and(|complaints| !complaints.iter().any(|complaint| complaint.contains(name.as_str())))
}
