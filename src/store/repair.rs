//! Making again what a damaged database has twice, or can do without.
//!
//! Owns: indexes, which are made again from their tables; tables in which nothing of sessions is,
//! which keep the rows that can be read; and tables that are not there any more.
//! Never: changes a row of a session, or gives back a page that a damaged page names: it may be in
//! use elsewhere. Space that is lost this way comes back when the database is written anew.

use std::collections::BTreeSet;

use rusqlite::types::Value;
use rusqlite::{params, params_from_iter, Connection, ErrorCode, OptionalExtension};

use super::errors::StoreError;
use super::rows::{self, signed};
use super::schema::{self, pragma};
use super::sqlite::{last_key, last_reserved, LEAP};
use super::upgrade;
use super::use_counts::{self, TextUses};

/// Tables in which nothing of sessions is: a host can do without any of their rows.
const DISPENSABLE: [&str; 6] = ["meta", "lives", "trials", "agents", "channels", "clients"];

/// A table or an index that belongs into the database.
struct SchemaObject {
    name: String,
    table: String,
    sql: String,
    is_index: bool,
}

/// Objects to be made again.
pub(super) struct Plan {
    version: usize,
    /// A number up to which actions may have been told.
    told: u64,
    /// Tables, each with the rows that it will have.
    tables: Vec<(SchemaObject, Vec<Vec<Value>>)>,
    /// The last key that may have been given, when it is not known any more which one was.
    last_key: Option<u64>,
    /// The chats with a turn that runs, when the log misses actions.
    spoiled: Vec<i64>,
    indexes: Vec<SchemaObject>,
    /// Use counts of texts, where they are not known any more.
    uses: Vec<(i64, TextUses)>,
}

/// Finds out what is damaged and can be made again, with a log line about each. To be called
/// outside of a transaction: one that has met damage cannot write any more. When a life begins,
/// `told` is a number up to which actions may have been told, and the log of actions is mended too.
pub(super) fn plan(connection: &Connection, told: Option<u64>) -> Result<Plan, StoreError> {
    let version = usize::try_from(pragma(connection, "user_version")?).unwrap_or(0);
    let (indexes, tables): (Vec<_>, Vec<_>) =
        objects(&schema::model(version)?)?.into_iter().partition(|object| object.is_index);
    let (tables_again, last_key, spoiled) = (Vec::new(), None, Vec::new());
    let mut plan = Plan {
        version,
        told: told.unwrap_or(0),
        tables: tables_again,
        last_key,
        spoiled,
        indexes: Vec::new(),
        uses: Vec::new(),
    };
    for table in tables {
        let is_there = is_there(connection, &table.name)?;
        match table.name.as_str() {
            "sessions" if !is_there => {
                return Err(StoreError::Damaged("the table of sessions is missing, so the store".to_owned()));
            }
            name if DISPENSABLE.contains(&name) => {
                let (rows, all) = if is_there { readable(connection, name) } else { (Vec::new(), false) };
                if !all {
                    tracing::warn!(table = name, rows = rows.len(), "a table is damaged: it is made again");
                }
                if !all && name == "meta" {
                    // No key of a session that is gone is given again.
                    plan.last_key = Some(last_key_in(connection).saturating_add(LEAP));
                }
                plan.tables.push((table, rows));
            }
            "actions" if told.is_some() => {
                let (rows, all) =
                    if is_there { readable(connection, "actions") } else { (Vec::new(), false) };
                if !all {
                    plan.spoiled = running(connection);
                }
                if !all || version == schema::NEWEST && !can_append(connection)? {
                    tracing::warn!(rows = rows.len(), "the log of actions is damaged: it is made again");
                    plan.tables.push((table, rows));
                }
            }
            // It is counted anew: whether one of its rows is missing cannot be told.
            "shared_texts" if !is_there || !readable(connection, "shared_texts").1 => {
                tracing::warn!("the table of what turns share is damaged: it is made again");
                if self::is_there(connection, "turns")? {
                    plan.uses = use_counts::count(connection)?;
                }
                plan.tables.push((table, Vec::new()));
            }
            // Without its rows, what comes is kept once more.
            "contents" if !is_there || !readable(connection, "contents").1 => {
                tracing::warn!("the table of where contents are found is damaged: it is made again");
                plan.tables.push((table, Vec::new()));
            }
            name if !is_there => {
                tracing::error!(
                    table = name,
                    "a table is gone from the store, and with it what sessions had in it"
                );
                plan.tables.push((table, Vec::new()));
            }
            _ => {}
        }
    }
    // With a table, its indexes are forgotten.
    let of_table_again =
        |index: &SchemaObject| plan.tables.iter().any(|(table, _)| table.name == index.table);
    let again = |index: &SchemaObject| of_table_again(index) || should_be_made_again(connection, index);
    plan.indexes = indexes.into_iter().filter(again).collect();
    Ok(plan)
}

/// Makes again what is planned; to be called in a transaction that has not read what is damaged.
pub(super) fn carry_out(connection: &Connection, plan: &Plan) -> Result<(), StoreError> {
    drop_damaged(connection, plan)?;
    make_all(connection, plan)
}

/// Has the database forget what is to be made again.
pub(super) fn drop_damaged(connection: &Connection, plan: &Plan) -> Result<(), StoreError> {
    for (table, _) in &plan.tables {
        forget(connection, "tbl_name", &table.name)?;
        if table.sql.contains("AUTOINCREMENT") {
            forget(connection, "name", "sqlite_sequence")?;
        }
    }
    plan.indexes.iter().try_for_each(|index| forget(connection, "name", &index.name))
}

/// Makes what was forgotten.
pub(super) fn make_all(connection: &Connection, plan: &Plan) -> Result<(), StoreError> {
    for (table, rows) in &plan.tables {
        make_table(connection, table, rows)?;
    }
    if let Some(last_key) = plan.last_key {
        rows::put_number(connection, "last_key", last_key)?;
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
        tracing::debug!(%error, "the last key that was given cannot be read");
        0
    })
}

/// The chats with a turn that runs, as far as they can be told.
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

/// Checks that every table and index of the newest version exists.
pub(super) fn check_complete(connection: &Connection) -> Result<(), StoreError> {
    let mut statement = connection.prepare("SELECT name FROM sqlite_schema")?;
    let names = statement.query_map([], |row| row.get(0))?;
    let names: BTreeSet<String> = names.collect::<Result<_, _>>()?;
    match schema::OBJECTS.iter().find(|name| !names.contains(**name)) {
        None => Ok(()),
        Some(name) => Err(StoreError::Damaged(format!("the list of tables, in which `{name}` is missing,"))),
    }
}

/// Returns the objects of this database: tables first, and last those that need the others to be
/// sound.
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

/// Makes a table again with these rows.
fn make_table(connection: &Connection, table: &SchemaObject, rows: &[Vec<Value>]) -> Result<(), StoreError> {
    connection.execute_batch(&table.sql)?;
    for row in rows {
        let places: Vec<String> = (1..=row.len()).map(|place| format!("?{place}")).collect();
        let sql = format!("INSERT OR IGNORE INTO {} VALUES ({})", table.name, places.join(", "));
        match connection.prepare_cached(&sql)?.execute(params_from_iter(row)) {
            // A value that does not belong into its column.
            Err(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == ErrorCode::TypeMismatch => {}
            inserted => {
                inserted?;
            }
        }
    }
    Ok(())
}

/// The rows of a table that can be read, from its start and from its end, and whether those are
/// all.
fn readable(connection: &Connection, table: &str) -> (Vec<Vec<Value>>, bool) {
    let mut rows = Vec::new();
    let mut read = |order: &str| -> rusqlite::Result<()> {
        let mut statement = connection.prepare(&format!("SELECT * FROM {table} NOT INDEXED {order}"))?;
        let columns = statement.column_count();
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            // Text that is none is read as the bytes that it is: such a row has a wrong checksum,
            // too.
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
        // Those behind the damage. What is read twice is kept once.
        read("ORDER BY 1 DESC").unwrap_or_else(|error| tracing::debug!(%error, table, "a table is damaged"));
    }
    (rows, all)
}

/// Has the database forget a table or an index without looking at its pages.
fn forget(connection: &Connection, column: &str, name: &str) -> Result<(), StoreError> {
    connection.execute_batch("PRAGMA writable_schema = ON")?;
    let forgotten =
        connection.execute(&format!("DELETE FROM sqlite_schema WHERE {column} = ?1"), params![name]);
    // Reads the schema anew.
    connection.execute_batch("PRAGMA writable_schema = RESET")?;
    forgotten?;
    Ok(())
}

/// Has what ran miss an action that nobody can read: it is told as damaged.
fn spoil(connection: &Connection, plan: &Plan) -> Result<(), StoreError> {
    let mut last = last_reserved(connection)?.max(plan.told);
    for chat in &plan.spoiled {
        last += 1;
        // With a wrong checksum.
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

/// Sees whether a row of several pages can be appended to the log, and leaves nothing behind; to be
/// called in a transaction.
pub(super) fn probe(connection: &Connection) -> Result<(), StoreError> {
    let append = "SAVEPOINT probe; INSERT INTO actions VALUES (NULL, 0, 'root', 0, 0, 0, zeroblob(40000));
        ROLLBACK TO probe; RELEASE probe";
    Ok(connection.execute_batch(append)?)
}

/// Makes an index again from its table.
fn make_index(connection: &Connection, index: &SchemaObject) -> Result<(), StoreError> {
    match connection.execute_batch(&index.sql) {
        Err(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == ErrorCode::ConstraintViolation => {
            // While it was damaged, a second session was made under the URI of one that it did not
            // know: nothing is overwritten, the older one goes to the trash.
            let sql = "UPDATE sessions SET removed_at = CAST(unixepoch('subsec') * 1000 AS INTEGER)
                WHERE removed_at IS NULL AND key NOT IN
                    (SELECT max(key) FROM sessions NOT INDEXED WHERE removed_at IS NULL GROUP BY uri)";
            let trashed = connection.execute(sql, [])?;
            tracing::error!(
                trashed,
                "there are two sessions of one URI: the older one is put into the trash"
            );
            Ok(connection.execute_batch(&index.sql)?)
        }
        made => Ok(made?),
    }
}

/// Returns whether an index is damaged and its table is not: else it stays as it is.
fn should_be_made_again(connection: &Connection, index: &SchemaObject) -> bool {
    if is_sound(connection, index) {
        return false;
    }
    let sql = format!("SELECT count(*) FROM {} NOT INDEXED", index.table);
    let can_be = connection.query_row(&sql, [], |_| Ok(())).is_ok();
    if can_be {
        tracing::warn!(index = index.name, "an index is damaged: it is made again");
    } else {
        tracing::error!(index = index.name, "an index and its table are damaged: it cannot be made again");
    }
    can_be
}

/// Returns whether an index is readable and agrees with its table, as far as the table is readable.
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
