//! Unused disk space of the database and its write-ahead log.
//!
//! Owns: returning it to the system, all at once or in parts, and limits on the log's size.
//! Never: removes a row.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use super::errors::StoreError;
use super::schema::{pragma, BUSY};

/// Value of `auto_vacuum` with which free pages can be returned without rewriting the database.
const INCREMENTAL: i64 = 2;

/// Maximum number of pages returned at once while commits may wait; they then wait for some
/// milliseconds.
const PAGES_AT_ONCE: i64 = 128;

/// Maximum number of pages returned at once while no commit waits. The log stays small, also on a
/// nearly full disk.
const IDLE_PAGES_AT_ONCE: i64 = 1024;

/// Size to which the next commit truncates the log file after a full checkpoint, in bytes.
const LOG_BYTES_MAX: i64 = 32 << 20;

/// Size of the log file above which it is emptied when the store is idle, in bytes.
const IDLE_LOG_BYTES_MAX: u64 = 1 << 20;

/// Time for the next maintenance run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// At once.
    Now,
    /// In a while: a reader is in the way.
    Soon,
    /// After the next change, or some time.
    Later,
}

/// Enables returning pages. A database with tables needs a rewrite for that.
pub(super) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)
}

pub(super) fn limit_log(connection: &Connection) -> Result<(), StoreError> {
    Ok(connection.pragma_update_and_check(None, "journal_size_limit", LOG_BYTES_MAX, |_| Ok(()))?)
}

/// Returns all free pages to the system.
pub(super) fn free_all_pages(connection: &Connection) -> Result<(), StoreError> {
    if pragma(connection, "auto_vacuum")? != INCREMENTAL {
        write_anew(connection)?;
    }
    loop {
        match remove_pages(connection, IDLE_PAGES_AT_ONCE) {
            Ok(true) => checkpoint(connection, "truncate").map(|_| ())?,
            Ok(false) => break,
            // Pages that no table refers to are in the way.
            Err(error) if error.is_damage() => {
                write_anew(connection)?;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    checkpoint(connection, "truncate").map(|_| ())
}

/// Rewrites the whole database, with `auto_vacuum` enabled.
pub(super) fn write_anew(connection: &Connection) -> Result<(), StoreError> {
    prepare(connection)?;
    Ok(connection.execute_batch("VACUUM")?)
}

pub(super) fn used(connection: &Connection) -> Result<u64, StoreError> {
    let pages = pragma(connection, "page_count")?.saturating_sub(pragma(connection, "freelist_count")?);
    Ok(u64::try_from(pages.saturating_mul(pragma(connection, "page_size")?)).unwrap_or_default())
}

/// Returns a part of the free space beyond `keep_bytes` to the system. Returns whether there is
/// more.
pub(super) fn free_some_pages(connection: &Connection, keep_bytes: usize) -> Result<bool, StoreError> {
    let page_bytes = pragma(connection, "page_size")?.max(1);
    let keep = i64::try_from(keep_bytes).unwrap_or(i64::MAX) / page_bytes;
    let spare = pragma(connection, "freelist_count")?.saturating_sub(keep);
    if spare <= 0 || !remove_pages(connection, spare.min(PAGES_AT_ONCE))? {
        return Ok(false);
    }
    if spare > PAGES_AT_ONCE {
        return Ok(true);
    }
    checkpoint(connection, "passive")?;
    Ok(false)
}

/// Empties a log with a large file, unless a reader is in the way.
pub(super) fn truncate_if_large(connection: &Connection, log: &Path) -> Result<Due, StoreError> {
    if fs::metadata(log).map_or(0, |log| log.len()) <= IDLE_LOG_BYTES_MAX {
        return Ok(Due::Later);
    }
    checkpoint_truncate(connection)
}

/// Empties the log, unless a reader is in the way.
pub(super) fn checkpoint_truncate(connection: &Connection) -> Result<Due, StoreError> {
    // No wait for readers, so that commits do not wait either.
    connection.busy_timeout(std::time::Duration::ZERO)?;
    let emptied = checkpoint(connection, "truncate");
    connection.busy_timeout(BUSY)?;
    Ok(if emptied? { Due::Later } else { Due::Soon })
}

/// Removes up to `count` free pages from the end of the database, after SQLite has moved used ones
/// away. Returns whether any was removed.
fn remove_pages(connection: &Connection, count: i64) -> Result<bool, StoreError> {
    let before = pragma(connection, "freelist_count")?;
    let mut statement = connection.prepare(&format!("PRAGMA incremental_vacuum({count})"))?;
    // Each removed page is a row.
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(pragma(connection, "freelist_count")? < before)
}

/// Copies the log into the database, as far as readers permit, so that it is overwritten from its
/// start.
pub(super) fn checkpoint_passive(connection: &Connection) -> Result<(), StoreError> {
    checkpoint(connection, "passive").map(|_| ())
}

/// Copies the log into the database, which shrinks its file. Returns `false` if a reader was in the
/// way.
fn checkpoint(connection: &Connection, mode: &str) -> Result<bool, StoreError> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    Ok(connection.query_row(&sql, [], |row| row.get::<_, i64>(0))? == 0)
}
