//! Sessions that were removed, until they are gone for good.
//!
//! Owns: putting sessions into the trash and out of it, and removing what belongs to one.
//! Never: begins a transaction that spans more than one session.

use std::time::Duration;

use rusqlite::{params, Connection, OptionalExtension};

use super::rows::{self, signed, unsigned};
use super::sqlite::StoreError;
use crate::host::effects::{ChatKey, SessionKey};

/// Puts a listed session into the trash. Its rows stay as they are.
pub(super) fn put(connection: &Connection, key: SessionKey, now_ms: i64) -> Result<(), StoreError> {
    connection
        .prepare_cached("UPDATE sessions SET removed_at = ?2 WHERE key = ?1")?
        .execute(params![signed(key.0), now_ms])?;
    Ok(())
}

/// Takes a session out of the trash.
pub(super) fn take_out(connection: &Connection, key: SessionKey) -> Result<(), StoreError> {
    connection.execute("UPDATE sessions SET removed_at = NULL WHERE key = ?1", params![signed(key.0)])?;
    Ok(())
}

/// Whether a session is in the trash.
pub(super) fn has(connection: &Connection, key: SessionKey) -> Result<bool, StoreError> {
    let removed = connection
        .prepare_cached("SELECT removed_at IS NOT NULL FROM sessions WHERE key = ?1")?
        .query_row(params![signed(key.0)], |row| row.get(0))
        .optional()
        .map_err(rows::damaged_if(|| format!("the session {}", key.0)))?;
    Ok(removed.unwrap_or(false))
}

/// Removes a session with everything that belongs to it, for good. Its actions go when they are old.
pub(super) fn purge(connection: &Connection, key: SessionKey) -> Result<(), StoreError> {
    // Keys of sessions and chats come from one row of numbers; none is given again.
    let chats = rows::chat_keys(connection, key)?;
    retire(connection, chats.iter().map(|chat| chat.0).max().unwrap_or(0).max(key.0))?;
    for chat in chats {
        rows::cut_turns(connection, chat, 0)?;
    }
    connection.prepare_cached("DELETE FROM chats WHERE session = ?1")?.execute(params![signed(key.0)])?;
    connection.prepare_cached("DELETE FROM sessions WHERE key = ?1")?.execute(params![signed(key.0)])?;
    Ok(())
}

/// Removes a chat of a session that stays, for good. Its actions go when they are old.
pub(super) fn purge_chat(connection: &Connection, chat: ChatKey) -> Result<(), StoreError> {
    retire(connection, chat.0)?;
    rows::cut_turns(connection, chat, 0)?;
    let session: Option<i64> = connection
        .prepare_cached("DELETE FROM chats WHERE key = ?1 RETURNING session")?
        .query_row(params![signed(chat.0)], |row| row.get(0))
        .optional()?;
    session.map_or(Ok(()), |session| rows::count_chats(connection, SessionKey(unsigned(session))))
}

/// Remembers that this key was given, when nothing else tells so any more.
fn retire(connection: &Connection, key: u64) -> Result<(), StoreError> {
    let last = rows::number(connection, "last_key").ok().flatten();
    if last.is_none_or(|last| last < key) {
        rows::put_number(connection, "last_key", key)?;
    }
    Ok(())
}

/// Removes for good what has been in the trash for so long. What cannot be read stays, until a person says
/// otherwise.
pub(super) fn purge_old(connection: &mut Connection, now_ms: i64, after: Duration) -> Result<(), StoreError> {
    let after = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
    let until = now_ms.saturating_sub(after);
    let sql = "SELECT key FROM sessions WHERE removed_at IS NOT NULL AND removed_at <= ?1";
    let old: Vec<SessionKey> = connection
        .prepare(sql)?
        .query_map(params![until], |row| Ok(SessionKey(unsigned(row.get(0)?))))?
        .collect::<Result<_, _>>()?;
    for key in old {
        let transaction = connection.transaction()?;
        match rows::whole_session(&transaction, key, &mut |_, _| true) {
            Ok(_) => purge(&transaction, key)?,
            Err(error) => {
                tracing::warn!(%error, "a damaged session stays in the trash");
                continue;
            }
        }
        transaction.commit()?;
    }
    Ok(())
}
