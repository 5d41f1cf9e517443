//! Sessions whose interrupted turn may end the process again when it is restored.
//!
//! Owns: the number of consecutive processes that each such session has ended.
//! Never: knows the reason. A process that was killed from outside counts, too, since it cannot be
//! distinguished.

use rusqlite::{params, Connection, OptionalExtension};

use super::errors::StoreError;
use super::rows::signed;
use crate::host::effects::SessionKey;

/// Treatment of a session whose turn ran when its process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrialVerdict {
    /// End the turn; it may be resumed.
    TakeUp,
    /// End the turn permanently, because it has ended the process too often.
    EndForGood,
    /// Do not restore the session, because ending the turn has ended the process as often.
    LeaveAlone,
    /// Restore the session if it is readable, which it was not at the start of this process.
    Unreadable,
}

/// Stored form of [`TrialVerdict::Unreadable`], until the next process judges anew.
const UNREADABLE: u32 = 3;

#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    /// Number of consecutive processes that have ended while the session was on trial.
    pub(super) deaths: u32,
    pub(super) verdict: TrialVerdict,
}

/// Begins the trials of this process; call once, before any session is restored. Each session that
/// was on trial in the last process counts its end and gets a verdict. Then all sessions with an
/// interrupted turn are put on trial, except those that have ended a process before: these follow
/// one at a time, so that each is judged alone.
pub(super) fn begin_process(connection: &Connection, deaths_max: u32) -> Result<(), StoreError> {
    // A session without a running turn has survived: its turn was ended, even if the process exited
    // before the trial's end was stored.
    let over = "session NOT IN (SELECT session FROM chats INDEXED BY chats_running WHERE running)";
    connection.execute(&format!("DELETE FROM trials WHERE given_up AND {over}"), [])?;
    connection.execute(&format!("UPDATE trials SET open = 0 WHERE {over}"), [])?;
    connection.execute("UPDATE trials SET deaths = deaths + open, open = 0", [])?;
    let sql = &format!("UPDATE trials SET given_up = iif(?1 = 0 OR {over}, 0, min(deaths / ?1, 2))");
    connection.execute(sql, params![deaths_max])?;
    connection.execute(
        "INSERT INTO trials SELECT DISTINCT session, 0, 1, 0 FROM chats INDEXED BY chats_running WHERE running
            ON CONFLICT (session) DO UPDATE SET open = (deaths = 0)",
        [],
    )?;
    Ok(())
}

pub(super) fn begin(connection: &Connection, session: SessionKey) -> Result<(), StoreError> {
    let sql = "INSERT INTO trials VALUES (?1, 0, 1, 0) ON CONFLICT (session) DO UPDATE SET open = 1";
    connection.prepare_cached(sql)?.execute(params![signed(session.0)])?;
    Ok(())
}

/// Stores that the interrupted turn of a session was ended. Earlier counts stay, because the turn
/// may be resumed.
pub(super) fn pause(connection: &Connection, session: SessionKey) -> Result<(), StoreError> {
    let sql = "UPDATE trials SET open = 0, given_up = iif(given_up = ?2, 0, given_up) WHERE session = ?1";
    connection.prepare_cached(sql)?.execute(params![signed(session.0), UNREADABLE])?;
    Ok(())
}

/// Stores that a session could not be read, so that its turn was not ended, and the process goes
/// on.
pub(super) fn skip(connection: &Connection, session: SessionKey) -> Result<(), StoreError> {
    let sql = "UPDATE trials SET open = 0, given_up = ?2 WHERE session = ?1";
    connection.prepare_cached(sql)?.execute(params![signed(session.0), UNREADABLE])?;
    Ok(())
}

/// Stores that the process has survived a session.
pub(super) fn end(connection: &Connection, session: SessionKey) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM trials WHERE session = ?1")?
        .execute(params![signed(session.0)])?;
    Ok(())
}

pub(super) fn of(connection: &Connection, session: SessionKey) -> Result<Trial, StoreError> {
    let sql = "SELECT deaths, given_up FROM trials WHERE session = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row(params![signed(session.0)], |row| Ok((row.get(0)?, row.get(1)?)));
    let (deaths, given_up): (u32, u32) = found.optional()?.unwrap_or_default();
    let verdict = match given_up {
        0 => TrialVerdict::TakeUp,
        1 => TrialVerdict::EndForGood,
        UNREADABLE => TrialVerdict::Unreadable,
        _ => TrialVerdict::LeaveAlone,
    };
    Ok(Trial { deaths, verdict })
}
