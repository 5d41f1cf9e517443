//! Sessions whose interrupted turn, when it is taken up again, may end the process.
//!
//! Owns: counting how often in a row that has happened to each, across processes.
//! Never: knows why. A process that was killed from outside meanwhile counts too: nobody can tell.

use ahp_types::state::SessionStatus;
use bytes::Bytes;
use rusqlite::{params, Connection};
use serde_json::Value;

use super::rows::signed;
use super::sqlite::StoreError;
use crate::host::effects::SessionKey;
use crate::wire::rpc::to_json;

/// Counts the process that ended before this one against every session that was on trial in it, and puts
/// those that are to be taken up now on trial. To be called once in the life of a process, before any is.
pub(super) fn begin_life(connection: &Connection, deaths_max: u32) -> Result<(), StoreError> {
    connection.execute("UPDATE trials SET deaths = deaths + open, open = 0", [])?;
    connection.execute("UPDATE trials SET given_up = (?1 > 0 AND deaths >= ?1)", params![deaths_max])?;
    connection.execute(
        "INSERT INTO trials SELECT DISTINCT session, 0, 1, 0 FROM chats INDEXED BY chats_running WHERE running
            ON CONFLICT (session) DO UPDATE SET open = NOT given_up",
        [],
    )?;
    Ok(())
}

/// A session is on trial from now on.
pub(super) fn begin(connection: &Connection, session: SessionKey) -> Result<(), StoreError> {
    let sql = "INSERT INTO trials VALUES (?1, 0, 1, 0) ON CONFLICT (session) DO UPDATE SET open = 1";
    connection.prepare_cached(sql)?.execute(params![signed(session.0)])?;
    Ok(())
}

/// A session's interrupted turn was ended. What it did before still counts: it may go on with that turn.
pub(super) fn pause(connection: &Connection, session: SessionKey) -> Result<(), StoreError> {
    let sql = "UPDATE trials SET open = 0 WHERE session = ?1";
    connection.prepare_cached(sql)?.execute(params![signed(session.0)])?;
    Ok(())
}

/// The process has survived a session.
pub(super) fn end(connection: &Connection, session: SessionKey) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM trials WHERE session = ?1")?
        .execute(params![signed(session.0)])?;
    Ok(())
}

/// Whether a session is not taken up any more.
pub(super) fn is_quarantined(connection: &Connection, session: SessionKey) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM trials WHERE session = ?1 AND given_up)";
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_row(params![signed(session.0)], |row| row.get(0))?)
}

/// The summary of a session that is not taken up any more: it and its chats failed, and nothing runs in it.
pub(super) fn quarantined_summary(summary: &[u8]) -> Bytes {
    let mut summary: Value = serde_json::from_slice(summary).unwrap_or_default();
    let chats = summary["chats"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let failed = |status: &Value| {
        let flags = status.as_u64().unwrap_or(0) & !ACTIVITY_BITS;
        Value::from(flags | u64::from(SessionStatus::Error.bits()))
    };
    summary["status"] = failed(&summary["status"]);
    let chats = chats.into_iter().map(|mut chat| {
        chat["status"] = failed(&chat["status"]);
        chat
    });
    summary["chats"] = chats.collect();
    if let Some(members) = summary.as_object_mut() {
        members.remove("activity");
    }
    to_json(&summary).into()
}

/// Bits 0–4 of a status: what is going on.
const ACTIVITY_BITS: u64 = (1 << 5) - 1;
