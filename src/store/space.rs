//! Disk space that the database and its log do not need any more.
//!
//! Owns: giving it back to the system, all of it when asked, or a little at a time; how long the
//! log may be.
//! Never: removes a row.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use super::errors::StoreError;
use super::schema::{pragma, BUSY};

/// Mode of SQLite in which free pages can be given back without rewriting the database.
const INCREMENTAL: i64 = 2;

/// Maximum number of pages given back at once while others wait: a commit then waits for some
/// milliseconds.
const PAGES_AT_ONCE: i64 = 128;

/// Maximum number of pages given back at once while nobody waits: the log stays small, also where
/// there is hardly any room left.
const IDLE_PAGES_AT_ONCE: i64 = 1024;

/// When everything in the log is in the database too, its file is cut to so many bytes by the next
/// commit.
const LOG_BYTES_MAX: i64 = 32 << 20;

/// A log that has more bytes than this is emptied when there is time.
const IDLE_LOG_BYTES_MAX: u64 = 1 << 20;

/// When there is something to do again for one who has time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// At once.
    Now,
    /// In a while: somebody is reading what should be removed.
    Soon,
    /// When something has changed, or some time has passed.
    Later,
}

/// Lets a database give back pages. One that has tables already heeds it when it is written anew.
pub(super) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)
}

/// Keeps the log's file from staying as long as it once was.
pub(super) fn limit_log(connection: &Connection) -> Result<(), StoreError> {
    Ok(connection.pragma_update_and_check(None, "journal_size_limit", LOG_BYTES_MAX, |_| Ok(()))?)
}

/// Gives back everything that is free.
pub(super) fn free_all_pages(connection: &Connection) -> Result<(), StoreError> {
    if pragma(connection, "auto_vacuum")? != INCREMENTAL {
        write_anew(connection)?;
    }
    loop {
        match remove_pages(connection, IDLE_PAGES_AT_ONCE) {
            Ok(true) => shrink_files(connection, "truncate").map(|_| ())?,
            Ok(false) => break,
            // Pages that nobody knows any more are in the way.
            Err(error) if error.is_damage() => {
                write_anew(connection)?;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    shrink_files(connection, "truncate").map(|_| ())
}

/// Writes the whole database anew, in which it becomes one that can give back pages.
pub(super) fn write_anew(connection: &Connection) -> Result<(), StoreError> {
    prepare(connection)?;
    Ok(connection.execute_batch("VACUUM")?)
}

/// Returns the size of the used part of the database, in bytes.
pub(super) fn used(connection: &Connection) -> Result<u64, StoreError> {
    let pages = pragma(connection, "page_count")?.saturating_sub(pragma(connection, "freelist_count")?);
    Ok(u64::try_from(pages.saturating_mul(pragma(connection, "page_size")?)).unwrap_or_default())
}

/// Gives back a little of what is free beyond so many bytes. Returns whether there is more.
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
    shrink_files(connection, "passive")?;
    Ok(false)
}

/// Empties a log whose file is long, unless somebody reads from it now.
pub(super) fn shorten_log(connection: &Connection, log: &Path) -> Result<Due, StoreError> {
    if fs::metadata(log).map_or(0, |log| log.len()) <= IDLE_LOG_BYTES_MAX {
        return Ok(Due::Later);
    }
    cut_log(connection)
}

/// Empties the log, unless somebody reads from it now.
pub(super) fn cut_log(connection: &Connection) -> Result<Due, StoreError> {
    // Whoever wants to commit meanwhile does not wait for one who reads.
    connection.busy_timeout(std::time::Duration::ZERO)?;
    let emptied = shrink_files(connection, "truncate");
    connection.busy_timeout(BUSY)?;
    Ok(if emptied? { Due::Later } else { Due::Soon })
}

/// Removes so many free pages from the end of the database, having moved there what is in use.
/// Returns whether any was removed.
fn remove_pages(connection: &Connection, count: i64) -> Result<bool, StoreError> {
    let before = pragma(connection, "freelist_count")?;
    let mut statement = connection.prepare(&format!("PRAGMA incremental_vacuum({count})"))?;
    // Each page that was removed is a row.
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(pragma(connection, "freelist_count")? < before)
}

/// Writes the log into the database, as far as nobody reads from it, so that it can be written from
/// its start again.
pub(super) fn empty_log(connection: &Connection) -> Result<(), StoreError> {
    shrink_files(connection, "passive").map(|_| ())
}

/// Writes the log into the database, which is what makes its file smaller. Returns whether nobody
/// was in the way.
fn shrink_files(connection: &Connection, mode: &str) -> Result<bool, StoreError> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    Ok(connection.query_row(&sql, [], |row| row.get::<_, i64>(0))? == 0)
}
