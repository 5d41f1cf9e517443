//! Removed sessions, until they are purged.
//!
//! Owns: moving sessions into the trash and out of it, and purging one, at once or in parts.
//! Never: begins a long transaction, or reads texts of a session to remove it.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{params, Connection, OptionalExtension};

use super::check;
use super::errors::{damaged_if, StoreError};
use super::numbers::LAST_KEY;
use super::rows::{self, signed, unsigned};
use super::turns;
use crate::host::effects::{ChannelId, ChatKey, SessionKey};

/// Moves a listed session into the trash, or out of it (`None`), without changing its rows.
pub(super) fn put(
    connection: &Connection,
    key: SessionKey,
    removed_at_ms: Option<i64>,
) -> Result<(), StoreError> {
    connection
        .prepare_cached("UPDATE sessions SET removed_at = ?2 WHERE key = ?1")?
        .execute(params![signed(key.0), removed_at_ms])?;
    Ok(())
}

pub(super) fn has(connection: &Connection, key: SessionKey) -> Result<bool, StoreError> {
    let removed = connection
        .prepare_cached("SELECT removed_at IS NOT NULL FROM sessions WHERE key = ?1")?
        .query_row(params![signed(key.0)], |row| row.get(0))
        .optional()
        .map_err(damaged_if(|| format!("the session {}", key.0)))?;
    Ok(removed.unwrap_or(false))
}

pub(super) fn purge(connection: &Connection, key: SessionKey) -> Result<(), StoreError> {
    // Keys of sessions and chats are numbers of one sequence and are never reused.
    let chats = rows::chat_keys(connection, key)?;
    retire(connection, chats.iter().map(|chat| chat.0).max().unwrap_or(0).max(key.0))?;
    for chat in &chats {
        turns::cut(connection, *chat, 0)?;
    }
    let is_its = |id: ChannelId| {
        id.session_of_key() == Some(key) || id.chat().is_some_and(|chat| chats.contains(&chat))
    };
    forget(connection, is_its)?;
    connection.prepare_cached("DELETE FROM chats WHERE session = ?1")?.execute(params![signed(key.0)])?;
    connection.prepare_cached("DELETE FROM sessions WHERE key = ?1")?.execute(params![signed(key.0)])?;
    Ok(())
}

pub(super) fn purge_chat(connection: &Connection, chat: ChatKey) -> Result<(), StoreError> {
    retire(connection, chat.0)?;
    turns::cut(connection, chat, 0)?;
    forget(connection, |id| id.chat() == Some(chat))?;
    let session: Option<i64> = connection
        .prepare_cached("DELETE FROM chats WHERE key = ?1 RETURNING session")?
        .query_row(params![signed(chat.0)], |row| row.get(0))
        .optional()?;
    session.map_or(Ok(()), |session| rows::count_chats(connection, SessionKey(unsigned(session))))
}

/// Empties logged actions on channels that no longer exist.
fn forget(connection: &Connection, is_gone: impl Fn(ChannelId) -> bool) -> Result<(), StoreError> {
    match rows::empty_actions(connection, is_gone) {
        Err(error) if error.is_damage() => {
            tracing::warn!(%error, "the log of actions is damaged: actions of a removed session may stay in it until they are pruned");
            Ok(())
        }
        emptied => emptied,
    }
}

/// Stores this key as the last assigned one, unless a higher one is stored. A damaged one stays:
/// the next process skips ahead because of it.
fn retire(connection: &Connection, key: u64) -> Result<(), StoreError> {
    match rows::number(connection, LAST_KEY) {
        Ok(last) if last.is_none_or(|last| last < key) => rows::put_number(connection, LAST_KEY, key),
        Err(error) if !error.is_damage() => Err(error),
        _ => Ok(()),
    }
}

/// Time of removal of a session that is being purged in parts and cannot be restored.
const GOING: i64 = -1;

/// Maximum size of turns removed in one transaction, in bytes, unless one turn is larger.
const BYTES_AT_ONCE: u64 = 4 << 20;

/// Maximum number of turns removed in one transaction.
const TURNS_AT_ONCE: u32 = 1000;

/// Maximum number of sessions examined in one transaction.
const SESSIONS_AT_ONCE: u32 = 16;

/// Purges a part of the sessions that have been in the trash for at least `after`; if `lacks_room`,
/// one session that was removed first. Returns whether there is more. Damaged sessions stay until a
/// person purges them; `stays` collects those found by this process.
pub(super) fn purge_some(
    connection: &mut Connection,
    now_ms: i64,
    after: Duration,
    lacks_room: bool,
    stays: &mut BTreeSet<SessionKey>,
) -> Result<bool, StoreError> {
    if let Some(key) = removed(connection, "removed_at < 0", 0, 1)?.first() {
        let transaction = connection.transaction()?;
        purge_a_little(&transaction, *key)?;
        transaction.commit()?;
        return Ok(true);
    }
    let after = if lacks_room { 0 } else { i64::try_from(after.as_millis()).unwrap_or(i64::MAX) };
    let limit = SESSIONS_AT_ONCE.saturating_add(u32::try_from(stays.len()).unwrap_or(u32::MAX));
    let until = now_ms.saturating_sub(after);
    let mut old = removed(connection, "removed_at BETWEEN 0 AND ?1", until, limit)?;
    old.retain(|key| !stays.contains(key));
    if lacks_room {
        // One session may free enough space.
        old.truncate(1);
    }
    let transaction = connection.transaction()?;
    for key in &old {
        match check::extent(&transaction, *key) {
            // From here on, the session cannot be read, so no partial state is visible.
            Ok(_) => put(&transaction, *key, Some(GOING))?,
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, key = key.0, "a damaged session stays in the trash; `sessions purge URI` removes it");
                stays.insert(*key);
            }
            Err(error) => return Err(error),
        }
    }
    transaction.commit()?;
    Ok(!old.is_empty())
}

/// Returns sessions in the trash, the first removed first.
fn removed(
    connection: &Connection,
    condition: &str,
    until: i64,
    limit: u32,
) -> Result<Vec<SessionKey>, StoreError> {
    let sql = format!(
        "SELECT key FROM sessions WHERE removed_at IS NOT NULL AND {condition} AND ?1 = ?1
        ORDER BY removed_at LIMIT ?2"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let keys = statement.query_map(params![until, limit], |row| Ok(SessionKey(unsigned(row.get(0)?))))?;
    Ok(keys.collect::<Result<_, _>>()?)
}

/// Removes the last turns of a session, or the session itself once it has none.
fn purge_a_little(connection: &Connection, key: SessionKey) -> Result<(), StoreError> {
    for chat in rows::chat_keys(connection, key)? {
        let (mut bytes, mut keep) = (0_u64, None);
        for (place, its_bytes) in turns::last(connection, chat, TURNS_AT_ONCE)? {
            if bytes >= BYTES_AT_ONCE {
                break;
            }
            keep = Some(place);
            bytes = bytes.saturating_add(its_bytes);
        }
        if let Some(keep) = keep {
            return turns::cut(connection, chat, keep);
        }
    }
    purge(connection, key)
}
