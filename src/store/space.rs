//! Disk space that the database does not need any more.
//!
//! Owns: giving it back to the system, all of it when asked, or a little at a time.
//! Never: removes a row.

use rusqlite::Connection;

use super::schema::pragma;
use super::sqlite::StoreError;

/// What SQLite calls being able to give back pages without writing the database anew.
const INCREMENTAL: i64 = 2;

/// How many pages are given back at once: so few that a commit which comes meanwhile waits for some milliseconds.
const PAGES_AT_ONCE: i64 = 128;

/// The same when nobody waits: so few that the log stays small, also where there is hardly any room left.
const PAGES_IN_PEACE: i64 = 1024;

/// Lets a database give back pages. One that has tables already heeds it when it is written anew.
pub(super) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)
}

/// Gives back everything that is free.
pub(super) fn give_back_all(connection: &Connection) -> Result<(), StoreError> {
    if pragma(connection, "auto_vacuum")? != INCREMENTAL {
        prepare(connection)?;
        connection.execute_batch("VACUUM")?;
    }
    while remove_pages(connection, PAGES_IN_PEACE)? {
        shrink_files(connection, "truncate")?;
    }
    shrink_files(connection, "truncate")
}

/// Gives back a little of what is free beyond so many bytes. Returns whether there is more.
pub(super) fn give_back_some(connection: &Connection, keep_bytes: usize) -> Result<bool, StoreError> {
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

/// Removes so many free pages from the end of the database, having moved there what is in use. Returns whether any
/// was removed.
fn remove_pages(connection: &Connection, count: i64) -> Result<bool, StoreError> {
    let before = pragma(connection, "freelist_count")?;
    let mut statement = connection.prepare(&format!("PRAGMA incremental_vacuum({count})"))?;
    // Each page that was removed is a row.
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(pragma(connection, "freelist_count")? < before)
}

/// Writes the log into the database, as far as nobody reads from it, so that it can be written from its start again.
pub(super) fn empty_log(connection: &Connection) -> Result<(), StoreError> {
    shrink_files(connection, "passive")
}

/// Writes the log into the database, which is what makes its file smaller.
fn shrink_files(connection: &Connection, mode: &str) -> Result<(), StoreError> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    Ok(connection.query_row(&sql, [], |_| Ok(()))?)
}
