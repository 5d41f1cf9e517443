//! The rows of the database, each with its checksum.
//!
//! Owns: the columns that a checksum covers, writing rows, and verifying them when they are read.
//! Never: opens a database, begins a transaction, or interprets the JSON text in a row.

use bytes::Bytes;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{FromSql, FromSqlResult, ValueRef};
use rusqlite::{params, Connection, OptionalExtension, Row};

use super::compress::{compressed, restored};
use super::errors::{damaged_if, StoreError};
use super::pack::{self, unpack, Pack};
use super::turns::TextReading;
use super::{running, turns};
use crate::host::effects::{
    ActionLine, ChannelId, ChatKey, ChatRow, SavedChat, SavedSession, SessionKey, SessionRow,
};
use crate::state::history::CompletedTurn;
use crate::wire::channels::ChannelKind;

pub(super) struct Blob(pub(super) Bytes);

impl FromSql for Blob {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(Bytes::copy_from_slice(value.as_blob()?)))
    }
}

/// Reads the rows of a dispensable table. Skips damaged ones and logs them.
pub(super) fn readable<T>(
    connection: &Connection,
    sql: &str,
    read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Vec<T> {
    let rows = || -> Result<Vec<_>, StoreError> {
        let mut statement = connection.prepare(sql)?;
        let rows = statement.query_and_then([], read)?;
        Ok(rows.collect())
    };
    let rows = rows().unwrap_or_else(|error| vec![Err(error)]);
    let sound = rows.into_iter().filter_map(|row| {
        row.map_err(|error| tracing::error!(%error, sql, "a damaged row of the store is skipped")).ok()
    });
    sound.collect()
}

pub(super) fn put_number(connection: &Connection, name: &str, value: u64) -> Result<(), StoreError> {
    connection.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2, ?3)")?.execute(params![
        name,
        signed(value),
        number_sum(name, value)
    ])?;
    Ok(())
}

/// Returns a named number; `None` if it was never stored.
pub(super) fn number(connection: &Connection, name: &str) -> Result<Option<u64>, StoreError> {
    let damaged = || format!("the number `{name}`");
    let found: Option<(u64, u32)> = connection
        .prepare_cached("SELECT value, sum FROM meta WHERE name = ?1")?
        .query_row(params![name], |row| Ok((unsigned(row.get(0)?), row.get(1)?)))
        .optional()
        .map_err(damaged_if(damaged))?;
    match found {
        Some((value, sum)) if number_sum(name, value) != sum => Err(StoreError::Damaged(damaged())),
        found => Ok(found.map(|(value, _)| value)),
    }
}

fn number_sum(name: &str, value: u64) -> u32 {
    sum(&[name.as_bytes(), &value.to_le_bytes()])
}

/// Stores the number before the first one of a process.
pub(super) fn put_process_start(connection: &Connection, start: u64) -> Result<(), StoreError> {
    connection.execute(
        "INSERT OR REPLACE INTO lives VALUES (?1, ?2)",
        params![signed(start), sum(&[&start.to_le_bytes()])],
    )?;
    Ok(())
}

/// Returns whether a process began its numbers after this one.
pub(super) fn is_process_start(connection: &Connection, start: u64) -> Result<bool, StoreError> {
    let found: Option<u32> = connection
        .prepare_cached("SELECT sum FROM lives WHERE start = ?1")?
        .query_row(params![signed(start)], |row| row.get(0))
        .optional()?;
    Ok(found == Some(sum(&[&start.to_le_bytes()])))
}

pub(super) fn put_actions(connection: &Connection, pack: &Pack<'_>) -> Result<(), StoreError> {
    let channel = ChannelName::of(pack.target);
    let packed = compressed(&pack.packed);
    connection.prepare_cached("INSERT INTO actions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?.execute(
        params![
            signed(pack.last),
            signed(pack.first),
            channel.kind,
            channel.key,
            signed(pack.line_bytes),
            actions_sum(pack.first, pack.last, channel, &packed),
            packed,
        ],
    )?;
    Ok(())
}

/// Query with the columns that [`actions`] reads, for rows with an action after `?1`.
pub(super) const ACTIONS_BEHIND: &str =
    "SELECT last, first, kind, key, sum, packed FROM actions WHERE last > ?1";

/// Returns the actions in a row, oldest first.
pub(super) fn actions(row: &Row<'_>) -> Result<(ChannelId, Vec<ActionLine>), StoreError> {
    let last = unsigned(row.get(0)?);
    let damaged = || format!("the log up to the action {last}");
    let read = || {
        let channel = ChannelName { kind: row.get_ref(2)?.as_str()?, key: row.get(3)? };
        Ok((unsigned(row.get(1)?), channel, row.get::<_, u32>(4)?, row.get_ref(5)?.as_blob()?))
    };
    let (first, channel, expected, packed) = read().map_err(damaged_if(damaged))?;
    if actions_sum(first, last, channel, packed) != expected {
        return Err(StoreError::Damaged(damaged()));
    }
    let unpacked = restored(packed, u64::MAX).and_then(|packed| unpack(first, last, &packed));
    let lines = unpacked.ok_or_else(|| StoreError::Damaged(damaged()))?;
    let id = channel.id().ok_or_else(|| {
        StoreError::Damaged(format!("{} (its channel has the unknown kind `{}`)", damaged(), channel.kind))
    })?;
    Ok((id, lines))
}

/// Empties logged actions on purged channels. Their numbers stay: a missing number counts as a lost
/// action.
pub(super) fn empty_actions(
    connection: &Connection,
    is_gone: impl Fn(ChannelId) -> bool,
) -> Result<(), StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT last, first, kind, key FROM actions WHERE line_bytes > 0")?;
    let mut found = statement.query([])?;
    let mut emptied = Vec::new();
    while let Some(row) = found.next().map_err(damaged_if(|| "the log of actions".to_owned()))? {
        let (last, first) = (unsigned(row.get(0)?), row.get(1).map(unsigned).unwrap_or_default());
        let channel = ChannelName { kind: row.get_ref(2)?.as_str().unwrap_or_default(), key: row.get(3)? };
        if channel.id().is_some_and(&is_gone) {
            let packed = pack::emptied(first, last);
            emptied.push((last, actions_sum(first, last, channel, &packed), packed));
        }
    }
    let mut put = connection
        .prepare_cached("UPDATE actions SET line_bytes = 0, sum = ?2, packed = ?3 WHERE last = ?1")?;
    for (last, sum, packed) in emptied {
        put.execute(params![signed(last), sum, packed])?;
    }
    Ok(())
}

pub(super) fn actions_sum(first: u64, last: u64, channel: ChannelName<'_>, packed: &[u8]) -> u32 {
    let ChannelName { kind, key } = channel;
    sum(&[&first.to_le_bytes(), &last.to_le_bytes(), kind.as_bytes(), &key.to_le_bytes(), packed])
}

/// Stores a session. A new one is listed; one in the trash stays there.
pub(super) fn put_session(connection: &Connection, row: &SessionRow) -> Result<(), StoreError> {
    let sql = "INSERT INTO sessions VALUES (?1, ?2, ?3, NULL, 0, ?8, ?4, ?5, ?6, ?7)
        ON CONFLICT (key) DO UPDATE SET uri = ?2, modified_at = ?3,
            summary_sum = ?4, sum = ?5, summary = ?6, body = ?7";
    connection.prepare_cached(sql)?.execute(params![
        signed(row.key.0),
        row.uri,
        row.modified_at,
        summary_sum(row.key, &row.uri, &row.modified_at, &row.summary),
        session_sum(row),
        &row.summary[..],
        &row.body[..],
        chats_sum(row.key, 0),
    ])?;
    Ok(())
}

/// Updates the number of chats in a session's row.
pub(super) fn count_chats(connection: &Connection, key: SessionKey) -> Result<(), StoreError> {
    let chats = chat_keys(connection, key)?.len() as u64;
    connection
        .prepare_cached("UPDATE sessions SET chats = ?2, chats_sum = ?3 WHERE key = ?1")?
        .execute(params![signed(key.0), signed(chats), chats_sum(key, chats)])?;
    Ok(())
}

fn check_chats(connection: &Connection, key: SessionKey, there: usize) -> Result<(), StoreError> {
    let damaged = || format!("the list of chats of the session {}", key.0);
    let (chats, expected): (u64, u32) = connection
        .prepare_cached("SELECT chats, chats_sum FROM sessions WHERE key = ?1")?
        .query_row(params![signed(key.0)], |row| Ok((unsigned(row.get(0)?), row.get(1)?)))
        .map_err(damaged_if(damaged))?;
    if chats_sum(key, chats) == expected && chats == there as u64 {
        Ok(())
    } else {
        Err(StoreError::Damaged(damaged()))
    }
}

fn chats_sum(key: SessionKey, chats: u64) -> u32 {
    sum(&[&key.0.to_le_bytes(), &chats.to_le_bytes()])
}

/// Returns a session's row, listed or removed.
pub(super) fn session(connection: &Connection, key: SessionKey) -> Result<Option<SessionRow>, StoreError> {
    let name = || format!("the session {}", uri_of(connection, key).unwrap_or_else(|| key.0.to_string()));
    let sql = "SELECT uri, modified_at, summary_sum, sum, summary, body FROM sessions WHERE key = ?1";
    let read = |row: &Row<'_>| {
        let session = SessionRow {
            key,
            uri: row.get(0)?,
            modified_at: row.get(1)?,
            summary: row.get::<_, Blob>(4)?.0,
            body: row.get::<_, Blob>(5)?.0,
        };
        Ok((session, row.get::<_, u32>(2)?, row.get::<_, u32>(3)?))
    };
    let found = connection.prepare_cached(sql)?.query_row(params![signed(key.0)], read).optional();
    let Some((row, of_summary, of_row)) = found.map_err(damaged_if(name))? else { return Ok(None) };
    let sound = summary_sum(key, &row.uri, &row.modified_at, &row.summary) == of_summary
        && session_sum(&row) == of_row;
    if sound {
        Ok(Some(row))
    } else {
        Err(StoreError::Damaged(name()))
    }
}

/// Summary with the date that orders the list.
#[derive(Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) modified_at: String,
    pub(super) json: Bytes,
}

/// Returns a session's summary, listed or removed.
pub(super) fn summary(connection: &Connection, key: SessionKey) -> Result<Option<Summary>, StoreError> {
    let name = || format!("the session {}", key.0);
    let sql = "SELECT uri, modified_at, summary_sum, summary FROM sessions WHERE key = ?1";
    let read = |row: &Row<'_>| {
        let uri: String = row.get(0)?;
        let found = Summary { modified_at: row.get(1)?, json: row.get::<_, Blob>(3)?.0 };
        Ok((uri, row.get::<_, u32>(2)?, found))
    };
    let found = connection.prepare_cached(sql)?.query_row(params![signed(key.0)], read).optional();
    match found.map_err(damaged_if(name))? {
        Some((uri, of_summary, found))
            if summary_sum(key, &uri, &found.modified_at, &found.json) == of_summary =>
        {
            Ok(Some(found))
        }
        Some(_) => Err(StoreError::Damaged(name())),
        None => Ok(None),
    }
}

/// Returns the URI of a session whose row may be damaged: the indexes have it, too.
pub(super) fn uri_of(connection: &Connection, key: SessionKey) -> Option<String> {
    let read = |sql| {
        let row = connection.query_row(sql, params![signed(key.0)], |row| {
            Ok(row.get_ref(0)?.as_bytes().map(|uri| String::from_utf8_lossy(uri).into_owned()))
        });
        row.ok().and_then(Result::ok)
    };
    // `+key` makes SQLite search the index and not the row.
    read("SELECT uri FROM sessions INDEXED BY sessions_by_uri WHERE removed_at IS NULL AND +key = ?1")
        .or_else(|| {
            read("SELECT uri FROM sessions INDEXED BY sessions_removed WHERE removed_at IS NOT NULL AND +key = ?1")
        })
        .or_else(|| read("SELECT uri FROM sessions WHERE key = ?1"))
}

fn summary_sum(key: SessionKey, uri: &str, modified_at: &str, summary: &[u8]) -> u32 {
    sum(&[&key.0.to_le_bytes(), uri.as_bytes(), modified_at.as_bytes(), summary])
}

fn session_sum(row: &SessionRow) -> u32 {
    summary_sum(row.key, &row.uri, &row.modified_at, &row.body)
}

/// Stores a chat, after its completed turns: the row has their number.
pub(super) fn put_chat(connection: &Connection, row: &ChatRow) -> Result<(), StoreError> {
    let turns = turns::there(connection, row.key)?;
    let was_of: Option<i64> = connection
        .prepare_cached("SELECT session FROM chats WHERE key = ?1")?
        .query_row(params![signed(row.key.0)], |row| row.get(0))
        .optional()?;
    connection
        .prepare_cached("INSERT OR REPLACE INTO chats VALUES (?1, ?2, ?3, ?4, ?5, ?6, NULL, NULL, ?7, ?8)")?
        .execute(params![
            signed(row.key.0),
            signed(row.session.0),
            row.uri,
            row.running,
            signed(row.as_of),
            signed(turns),
            chat_sum(row, turns),
            &row.body[..],
        ])?;
    if was_of != Some(signed(row.session.0)) {
        count_chats(connection, row.session)?;
        if let Some(before) = was_of {
            count_chats(connection, SessionKey(unsigned(before)))?;
        }
    }
    Ok(())
}

fn chat_sum(row: &ChatRow, turns: u64) -> u32 {
    sum(&[
        &row.key.0.to_le_bytes(),
        &row.session.0.to_le_bytes(),
        row.uri.as_bytes(),
        &[u8::from(row.running)],
        &row.as_of.to_le_bytes(),
        &turns.to_le_bytes(),
        &row.body,
    ])
}

pub(super) fn put_progress(connection: &Connection, chat: ChatKey, progress: u64) -> Result<(), StoreError> {
    connection.prepare_cached("UPDATE chats SET progress = ?2, progress_sum = ?3 WHERE key = ?1")?.execute(
        params![signed(chat.0), signed(progress), sum(&[&chat.0.to_le_bytes(), &progress.to_le_bytes()])],
    )?;
    Ok(())
}

/// Decides whether a logged action is needed to restore a chat.
pub(super) type SieveFn<'a> = &'a mut dyn FnMut(&ChatRow, &Bytes) -> bool;

/// Returns a session with all of its data, listed or removed.
pub(super) fn whole_session(
    connection: &Connection,
    key: SessionKey,
    sieve: SieveFn<'_>,
    reading: &mut TextReading,
) -> Result<Option<SavedSession>, StoreError> {
    let Some(row) = session(connection, key)? else { return Ok(None) };
    let chats = all_chat_keys(connection, key)?;
    let chats = chats.into_iter().map(|chat| whole_chat(connection, key, chat, sieve, reading));
    let chats = chats.collect::<Result<_, _>>()?;
    Ok(Some(SavedSession { row, chats, deaths: 0 }))
}

/// Returns the chats of a session, as many as its row says. If the index lacks some, the table is
/// scanned.
pub(super) fn all_chat_keys(connection: &Connection, key: SessionKey) -> Result<Vec<ChatKey>, StoreError> {
    let sound = |chats: Vec<ChatKey>| check_chats(connection, key, chats.len()).map(|()| chats);
    let by = |way| chat_keys_by(connection, key, way).and_then(sound);
    by(BY_SESSION).or_else(|error| if error.is_damage() { by("NOT INDEXED") } else { Err(error) })
}

const BY_SESSION: &str = "INDEXED BY chats_by_session";

/// Returns the chats of a session, as far as they can be found.
pub(super) fn chat_keys(connection: &Connection, session: SessionKey) -> Result<Vec<ChatKey>, StoreError> {
    let by = |way| chat_keys_by(connection, session, way);
    by(BY_SESSION).or_else(|error| if error.is_damage() { by("NOT INDEXED") } else { Err(error) })
}

fn chat_keys_by(connection: &Connection, session: SessionKey, way: &str) -> Result<Vec<ChatKey>, StoreError> {
    let sql = format!("SELECT key FROM chats {way} WHERE session = ?1 ORDER BY key");
    let mut statement = connection.prepare_cached(&sql)?;
    let keys = statement.query_map(params![signed(session.0)], |row| Ok(ChatKey(unsigned(row.get(0)?))))?;
    keys.collect::<Result<_, _>>().map_err(damaged_if(|| format!("the session {}", session.0)))
}

fn whole_chat(
    connection: &Connection,
    session: SessionKey,
    key: ChatKey,
    sieve: SieveFn<'_>,
    reading: &mut TextReading,
) -> Result<SavedChat, StoreError> {
    let mut chat = chat(connection, session, key)?;
    chat.saved.turns = chat.turns(connection, reading).collect::<Result<_, _>>()?;
    let row = &chat.saved.row;
    let mut sifted = false;
    chat.saved.actions = chat.actions(connection, &mut |line| {
        let is_needed = sieve(row, line);
        sifted |= !is_needed;
        is_needed
    })?;
    chat.saved.sifted = sifted;
    Ok(chat.saved)
}

/// A chat's row, and the expected number of its turns.
pub(super) struct StoredChat {
    pub(super) saved: SavedChat,
    pub(super) turns: u64,
    /// Name for error messages.
    name: String,
}

pub(super) fn chat(
    connection: &Connection,
    session: SessionKey,
    key: ChatKey,
) -> Result<StoredChat, StoreError> {
    let name = || format!("the chat {}", key.0);
    let sql = "SELECT session, uri, running, as_of, turns, progress, progress_sum, sum, body
        FROM chats WHERE key = ?1";
    let read = |row: &Row<'_>| {
        let chat = ChatRow {
            key,
            session: SessionKey(unsigned(row.get(0)?)),
            uri: row.get(1)?,
            running: row.get(2)?,
            as_of: unsigned(row.get(3)?),
            body: row.get::<_, Blob>(8)?.0,
        };
        let progress = row.get::<_, Option<i64>>(5)?.map(unsigned);
        let sums = (row.get::<_, u32>(7)?, row.get::<_, Option<u32>>(6)?);
        Ok((chat, unsigned(row.get(4)?), progress, sums))
    };
    let found = connection.prepare_cached(sql)?.query_row(params![signed(key.0)], read);
    let (row, turns, progress, (of_row, of_progress)) = match found {
        Err(rusqlite::Error::QueryReturnedNoRows) => return Err(StoreError::Damaged(name())),
        found => found.map_err(damaged_if(name))?,
    };
    let progress_sum = progress.map(|steps| sum(&[&key.0.to_le_bytes(), &steps.to_le_bytes()]));
    if chat_sum(&row, turns) != of_row || row.session != session || progress_sum != of_progress {
        return Err(StoreError::Damaged(format!("the chat {}", row.uri)));
    }
    Ok(StoredChat {
        name: format!("the chat {}", row.uri),
        saved: SavedChat { row, turns: Vec::new(), actions: Vec::new(), sifted: false, progress },
        turns,
    })
}

impl StoredChat {
    /// Returns the completed turns, oldest first; each of them may be damaged.
    pub(super) fn turns<'a>(
        &'a self,
        connection: &'a Connection,
        reading: &'a mut TextReading,
    ) -> impl Iterator<Item = Result<CompletedTurn, StoreError>> + 'a {
        turns::read(connection, self.saved.row.key, self.turns, &self.name, reading)
    }

    /// Returns the needed actions since the row was written; none if no turn runs.
    pub(super) fn actions(
        &self,
        connection: &Connection,
        is_needed: &mut dyn FnMut(&Bytes) -> bool,
    ) -> Result<Vec<Bytes>, StoreError> {
        let chat = &self.saved.row;
        if !chat.running {
            return Ok(Vec::new());
        }
        let target = chat.key.into();
        let lines = running::check(connection, target, chat.as_of)
            .and_then(|()| actions_on(connection, target, chat.as_of, is_needed))
            .map_err(|error| error.on(|| format!("the running turn of the chat {}", chat.uri)))?;
        Ok(lines.into_iter().map(|action| action.line).collect())
    }
}

/// Returns the needed actions on a channel after a number, oldest first.
pub(super) fn actions_on(
    connection: &Connection,
    target: ChannelId,
    after: u64,
    is_needed: &mut dyn FnMut(&Bytes) -> bool,
) -> Result<Vec<ActionLine>, StoreError> {
    let sql = format!("{ACTIONS_BEHIND} AND kind = ?2 AND key = ?3 ORDER BY last");
    let mut statement = connection.prepare_cached(&sql)?;
    let channel = ChannelName::of(target);
    let mut rows = statement.query(params![signed(after), channel.kind, channel.key])?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next()? {
        let behind = actions(row)?.1.into_iter().filter(|action| action.server_seq > after);
        lines.extend(behind.filter(|action| is_needed(&action.line)));
    }
    Ok(lines)
}

/// Converts a number for SQLite. All numbers of this program are far below the sign bit.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChannelName<'a> {
    pub(super) kind: &'a str,
    pub(super) key: i64,
}

impl ChannelName<'_> {
    pub(super) fn of(id: ChannelId) -> Self {
        Self { kind: id.kind.name(), key: signed(id.key) }
    }

    /// Returns the channel; `None` if this program does not know its kind.
    pub(super) fn id(self) -> Option<ChannelId> {
        Some(ChannelId { kind: ChannelKind::from_name(self.kind)?, key: unsigned(self.key) })
    }
}

/// Flags of functions in statements: deterministic, and not callable from the schema of an opened
/// file.
pub(super) const PURE: FunctionFlags = FunctionFlags::SQLITE_UTF8
    .union(FunctionFlags::SQLITE_DETERMINISTIC)
    .union(FunctionFlags::SQLITE_DIRECTONLY);

pub(super) fn sum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}
