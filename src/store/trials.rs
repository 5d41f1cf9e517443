//! Sessions whose interrupted turn, when it is taken up again, may end the process.
//!
//! Owns: counting how often in a row that has happened to each, across processes.
//! Never: knows why. A process that was killed from outside meanwhile counts too: nobody can tell.

use rusqlite::{params, Connection, OptionalExtension};

use super::errors::StoreError;
use super::rows::signed;
use crate::host::effects::SessionKey;

/// Treatment of a session whose turn ran when its process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrialVerdict {
    /// End of the turn, which may be resumed.
    TakeUp,
    /// End of the turn for good, because it has ended the process too often.
    EndForGood,
    /// No treatment, because that has ended the process just as often.
    LeaveAlone,
}

/// How a session has fared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    /// Number of processes in a row that have ended while it was on trial.
    pub(super) deaths: u32,
    pub(super) verdict: TrialVerdict,
}

/// Counts the process that ended before this one against every session that was on trial in it,
/// judges them by how often that may happen, and puts those with a turn that is to be ended now on
/// trial; but for those that have ended a process before: they are to be put on trial one by one,
/// so that each is judged by itself. To be called once in the life of a process, before any is
/// taken up.
pub(super) fn begin_process(connection: &Connection, deaths_max: u32) -> Result<(), StoreError> {
    // Where no turn runs, it was ended, and the process outlived that; it may have ended before
    // this was noted.
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

/// A session is on trial from now on.
pub(super) fn begin(connection: &Connection, session: SessionKey) -> Result<(), StoreError> {
    let sql = "INSERT INTO trials VALUES (?1, 0, 1, 0) ON CONFLICT (session) DO UPDATE SET open = 1";
    connection.prepare_cached(sql)?.execute(params![signed(session.0)])?;
    Ok(())
}

/// A session's interrupted turn was ended. What it did before still counts: it may go on with that
/// turn.
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

/// How a session has fared so far.
pub(super) fn of(connection: &Connection, session: SessionKey) -> Result<Trial, StoreError> {
    let sql = "SELECT deaths, given_up FROM trials WHERE session = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row(params![signed(session.0)], |row| Ok((row.get(0)?, row.get(1)?)));
    let (deaths, given_up): (u32, u32) = found.optional()?.unwrap_or_default();
    let verdict = match given_up {
        0 => TrialVerdict::TakeUp,
        1 => TrialVerdict::EndForGood,
        _ => TrialVerdict::LeaveAlone,
    };
    Ok(Trial { deaths, verdict })
}
