//! The database.
//!
//! Owns: the schema and its version, one transaction for each batch of records, the blocks of sequence
//! numbers, and reading rows back, each against its checksum.
//! Never: knows what is in a row, or decides what is saved.
//!
//! Sequence numbers are drawn from blocks that are reserved by a synced write before any of them is told to
//! anybody, and each life of a host begins with a new block. So no number ever means two things, even when a
//! loss of power takes the newest commits, which need not be synced, away.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rusqlite::{params, Connection, OpenFlags, OptionalExtension, Row};

use super::Listed;
use crate::host::effects::{
    ActionLine, ChatKey, ChatRow, Page, Place, Record, SavedChat, SavedSession, SessionKey, SessionRow,
    Target,
};
use crate::host::log::Window;
use crate::host::Start;

/// The database's name in the state folder.
pub const FILE_NAME: &str = "sessions.sqlite";

/// The version of the schema that this program writes.
const SCHEMA_VERSION: i64 = 1;

/// How many sequence numbers are reserved at once.
const BLOCK: u64 = 1 << 20;

const SCHEMA: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    -- The number before the first one of each life.
    CREATE TABLE lives (start INTEGER PRIMARY KEY);
    CREATE TABLE sessions (
        key INTEGER PRIMARY KEY, uri TEXT NOT NULL, modified_at TEXT NOT NULL, removed_at INTEGER,
        summary BLOB NOT NULL, body BLOB NOT NULL, sum INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX sessions_by_uri ON sessions (uri) WHERE removed_at IS NULL;
    CREATE INDEX sessions_by_time ON sessions (modified_at DESC, key DESC) WHERE removed_at IS NULL;
    CREATE TABLE chats (
        key INTEGER PRIMARY KEY, session INTEGER NOT NULL, uri TEXT NOT NULL, running INTEGER NOT NULL,
        as_of INTEGER NOT NULL, progress INTEGER, body BLOB NOT NULL, sum INTEGER NOT NULL
    );
    CREATE INDEX chats_by_session ON chats (session);
    CREATE INDEX chats_by_uri ON chats (uri);
    CREATE INDEX chats_running ON chats (key) WHERE running;
    CREATE TABLE turns (
        chat INTEGER NOT NULL, place INTEGER NOT NULL, body BLOB NOT NULL, sum INTEGER NOT NULL,
        PRIMARY KEY (chat, place)
    ) WITHOUT ROWID;
    CREATE TABLE actions (
        seq INTEGER PRIMARY KEY, channel INTEGER NOT NULL, line BLOB NOT NULL, sum INTEGER NOT NULL
    );
";

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It was written by a newer program.
    #[error("the store {0} was written by a newer version of this program (schema {1}); it was not touched")]
    Newer(String, i64),
    /// A row is not what was written.
    #[error("{0} is damaged: its checksum does not match")]
    Damaged(String),
    /// Anything else that SQLite says.
    #[error("the store failed: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

/// The one connection that writes.
#[derive(Debug)]
pub struct Writer {
    connection: Connection,
    /// Numbers up to this one are reserved.
    reserved: u64,
    window: Window,
    /// How many actions were written since the old ones were last removed.
    unpruned: usize,
}

impl Writer {
    /// Opens the database, makes it or brings it up to date, and begins a new life of the sequence.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(path: &Path, window: Window) -> Result<(Self, Start), StoreError> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version > SCHEMA_VERSION {
            return Err(StoreError::Newer(path.display().to_string(), version));
        }
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        let transaction = connection.transaction()?;
        if version == 0 {
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        }
        let head = number(&transaction, "SELECT value FROM meta WHERE name = 'reserved'")?;
        let keys =
            "SELECT max(ifnull((SELECT max(key) FROM sessions), 0), ifnull((SELECT max(key) FROM chats), 0))";
        let start = Start {
            head,
            last_key: number(&transaction, keys)?,
            sessions: number(&transaction, "SELECT count(*) FROM sessions WHERE removed_at IS NULL")?,
            continues: version > 0,
        };
        transaction.execute("INSERT OR REPLACE INTO lives VALUES (?1)", params![signed(head)])?;
        let reserved = head + BLOCK;
        reserve(&transaction, reserved)?;
        transaction.commit()?;
        connection.pragma_update(None, "synchronous", "normal")?;
        Ok((Self { connection, reserved, window, unpruned: 0 }, start))
    }

    /// Keeps records in one transaction: all of them, or none.
    ///
    /// # Errors
    /// When nothing was kept.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), StoreError> {
        let last = records.iter().filter_map(|record| match record {
            Record::Action(_, line) => Some(line.server_seq),
            _ => None,
        });
        let reserve_up_to =
            last.max().filter(|last| last + BLOCK / 2 > self.reserved).map(|last| last + BLOCK);
        let sync = reserve_up_to.is_some() || records.contains(&Record::Sync);
        if sync {
            self.connection.pragma_update(None, "synchronous", "full")?;
        }
        let written = self.write(records, reserve_up_to);
        if sync {
            self.connection.pragma_update(None, "synchronous", "normal")?;
        }
        written?;
        self.reserved = reserve_up_to.unwrap_or(self.reserved);
        Ok(())
    }

    fn write(&mut self, records: &[Record], reserve_up_to: Option<u64>) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        for record in records {
            keep(&transaction, record)?;
        }
        if let Some(up_to) = reserve_up_to {
            reserve(&transaction, up_to)?;
        }
        let actions = records.iter().filter(|record| matches!(record, Record::Action(..))).count();
        let unpruned = self.unpruned + actions;
        let prune = unpruned > self.window.actions_max;
        if prune {
            remove_old_actions(&transaction, &self.window)?;
        }
        transaction.commit()?;
        self.unpruned = if prune { 0 } else { unpruned };
        Ok(())
    }
}

fn keep(connection: &Connection, record: &Record) -> Result<(), StoreError> {
    match record {
        Record::Action(target, line) => {
            connection.prepare_cached("INSERT INTO actions VALUES (?1, ?2, ?3, ?4)")?.execute(params![
                signed(line.server_seq),
                channel_of(*target),
                &line.line[..],
                sum(&[&line.line])
            ])?;
        }
        Record::Session(row) => {
            connection
                .prepare_cached("INSERT OR REPLACE INTO sessions VALUES (?1, ?2, ?3, NULL, ?4, ?5, ?6)")?
                .execute(params![
                    signed(row.key.0),
                    row.uri,
                    row.modified_at,
                    &row.summary[..],
                    &row.body[..],
                    session_sum(row),
                ])?;
        }
        Record::SessionRemoved(SessionKey(key)) => {
            connection
                .prepare_cached("UPDATE sessions SET removed_at = ?2 WHERE key = ?1")?
                .execute(params![signed(*key), unix_ms()])?;
            connection
                .prepare_cached("UPDATE chats SET running = 0 WHERE session = ?1")?
                .execute(params![signed(*key)])?;
        }
        Record::Chat(row) => {
            connection
                .prepare_cached("INSERT OR REPLACE INTO chats VALUES (?1, ?2, ?3, ?4, ?5, NULL, ?6, ?7)")?
                .execute(params![
                    signed(row.key.0),
                    signed(row.session.0),
                    row.uri,
                    row.running,
                    signed(row.as_of),
                    &row.body[..],
                    sum(&[row.uri.as_bytes(), &row.body]),
                ])?;
        }
        Record::Turn(ChatKey(chat), place, turn) => {
            connection
                .prepare_cached("INSERT OR REPLACE INTO turns VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![signed(*chat), signed(*place), &turn[..], sum(&[turn])])?;
        }
        Record::TurnsCut(ChatKey(chat), keep) => {
            connection
                .prepare_cached("DELETE FROM turns WHERE chat = ?1 AND place >= ?2")?
                .execute(params![signed(*chat), signed(*keep)])?;
        }
        Record::Progress(ChatKey(chat), progress) => {
            connection
                .prepare_cached("UPDATE chats SET progress = ?2 WHERE key = ?1")?
                .execute(params![signed(*chat), signed(*progress)])?;
        }
        Record::Trial(_) | Record::Survived(_) | Record::Sync => {}
    }
    Ok(())
}

/// Removes actions that nobody can ask for any more and that no running chat needs to be rebuilt.
fn remove_old_actions(connection: &Connection, window: &Window) -> Result<(), StoreError> {
    let horizon = "SELECT min(ifnull((SELECT seq FROM actions ORDER BY seq DESC LIMIT 1 OFFSET ?1), 0),
        ifnull((SELECT min(as_of) FROM chats WHERE running), 9223372036854775807))";
    let offset = i64::try_from(window.actions_max).unwrap_or(i64::MAX);
    let horizon: i64 = connection.query_row(horizon, params![offset], |row| row.get(0))?;
    connection.execute("DELETE FROM actions WHERE seq <= ?1", params![horizon])?;
    Ok(())
}

/// A connection that reads what is safe.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    window: Window,
}

impl Reader {
    /// Opens a second connection to a database that a [`Writer`] has made.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path, window: Window) -> Result<Self, StoreError> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(std::time::Duration::from_secs(5))?;
        Ok(Self { connection, window })
    }

    /// The sessions with a turn that ran when their process ended.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn interrupted(&self) -> Result<Vec<SessionKey>, StoreError> {
        let sql = "SELECT DISTINCT session FROM chats WHERE running ORDER BY session";
        let mut statement = self.connection.prepare(sql)?;
        let keys = statement.query_map([], |row| Ok(SessionKey(unsigned(row.get(0)?))))?;
        Ok(keys.collect::<Result<_, _>>()?)
    }

    /// The session that a URI names: its own or that of one of its chats.
    ///
    /// # Errors
    /// When it cannot be looked for.
    pub fn find(&self, uri: &str) -> Result<Option<SessionKey>, StoreError> {
        let sql = "SELECT key FROM sessions WHERE uri = ?1 AND removed_at IS NULL
            UNION ALL SELECT s.key FROM chats c JOIN sessions s ON s.key = c.session
            WHERE c.uri = ?1 AND s.removed_at IS NULL";
        let key =
            self.connection.prepare_cached(sql)?.query_row(params![uri], |row| row.get(0)).optional()?;
        Ok(key.map(|key| SessionKey(unsigned(key))))
    }

    /// A session with everything that belongs to it.
    ///
    /// # Errors
    /// When it cannot be read, or something in it is damaged.
    pub fn load(&self, key: SessionKey) -> Result<Option<SavedSession>, StoreError> {
        let sql =
            "SELECT uri, modified_at, summary, body, sum FROM sessions WHERE key = ?1 AND removed_at IS NULL";
        let read = |row: &Row<'_>| {
            let session = SessionRow {
                key,
                uri: row.get(0)?,
                modified_at: row.get(1)?,
                summary: bytes(row, 2)?,
                body: bytes(row, 3)?,
            };
            Ok((session, row.get::<_, u32>(4)?))
        };
        let found =
            self.connection.prepare_cached(sql)?.query_row(params![signed(key.0)], read).optional()?;
        let Some((row, expected)) = found else { return Ok(None) };
        if session_sum(&row) != expected {
            return Err(StoreError::Damaged(format!("the session {}", row.uri)));
        }
        let sql =
            "SELECT key, uri, running, as_of, progress, body, sum FROM chats WHERE session = ?1 ORDER BY key";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![signed(key.0)])?;
        let mut chats = Vec::new();
        while let Some(row) = rows.next()? {
            chats.push(self.chat(key, row)?);
        }
        Ok(Some(SavedSession { row, chats, quarantined: false }))
    }

    fn chat(&self, session: SessionKey, row: &Row<'_>) -> Result<SavedChat, StoreError> {
        let chat = ChatRow {
            key: ChatKey(unsigned(row.get(0)?)),
            session,
            uri: row.get(1)?,
            running: row.get(2)?,
            as_of: unsigned(row.get(3)?),
            body: bytes(row, 5)?,
        };
        let progress = row.get::<_, Option<i64>>(4)?.map(unsigned);
        if sum(&[chat.uri.as_bytes(), &chat.body]) != row.get::<_, u32>(6)? {
            return Err(StoreError::Damaged(format!("the chat {}", chat.uri)));
        }
        let sql = "SELECT body, sum, place FROM turns WHERE chat = ?1 ORDER BY place";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![signed(chat.key.0)])?;
        let mut turns = Vec::new();
        while let Some(row) = rows.next()? {
            let turn = bytes(row, 0)?;
            if sum(&[&turn]) != row.get::<_, u32>(1)?
                || usize::try_from(row.get::<_, i64>(2)?).ok() != Some(turns.len())
            {
                return Err(StoreError::Damaged(format!("a turn of the chat {}", chat.uri)));
            }
            turns.push(turn);
        }
        let actions = if chat.running { self.actions_of(&chat)? } else { Vec::new() };
        Ok(SavedChat { row: chat, turns, actions, progress })
    }

    /// The lines of the actions on a chat that its row does not know of.
    fn actions_of(&self, chat: &ChatRow) -> Result<Vec<Bytes>, StoreError> {
        let sql = "SELECT line, sum FROM actions WHERE seq > ?1 AND channel = ?2 ORDER BY seq";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![signed(chat.as_of), channel_of(Target::Chat(chat.key))])?;
        let mut lines = Vec::new();
        while let Some(row) = rows.next()? {
            let line = bytes(row, 0)?;
            if sum(&[&line]) != row.get::<_, u32>(1)? {
                return Err(StoreError::Damaged(format!("an action on the chat {}", chat.uri)));
            }
            lines.push(line);
        }
        Ok(lines)
    }

    /// A page of the list of sessions. One that is damaged is listed as that.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn list(&self, page: &Page) -> Result<Listed, StoreError> {
        let sql = "SELECT key, modified_at, summary, uri FROM sessions
            WHERE removed_at IS NULL AND (modified_at, key) < (?1, ?2)
            ORDER BY modified_at DESC, key DESC LIMIT ?3";
        let (modified_at, key) = match &page.after {
            Some(place) => (place.modified_at.as_str(), signed(place.key.0)),
            // Behind every date.
            None => ("~", i64::MAX),
        };
        let limit = i64::try_from(page.limit.saturating_add(1)).unwrap_or(-1);
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![modified_at, key, limit])?;
        let (mut listed, mut last) = (Listed::default(), None);
        while let Some(row) = rows.next()? {
            if listed.summaries.len() == page.limit {
                listed.next = last;
                break;
            }
            listed.summaries.push(bytes(row, 2)?);
            last = Some(Place { modified_at: row.get(1)?, key: SessionKey(unsigned(row.get(0)?)) });
        }
        Ok(listed)
    }

    /// Every action after `cursor`, oldest first; none when the cursor is no number that was given, or lies
    /// too far back.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn actions_since(&self, cursor: u64) -> Result<Option<Vec<(Target, ActionLine)>>, StoreError> {
        // Where a life began, nothing that follows was removed if something older is there, or the very next.
        let known = "SELECT EXISTS (SELECT 1 FROM actions WHERE seq = ?1)
            OR (EXISTS (SELECT 1 FROM lives WHERE start = ?1)
                AND ifnull((SELECT min(seq) FROM actions), ?1 + 1) <= ?1 + 1)";
        if !self.connection.query_row(known, params![signed(cursor)], |row| row.get::<_, bool>(0))? {
            return Ok(None);
        }
        let sql = "SELECT seq, channel, line, sum FROM actions WHERE seq > ?1 ORDER BY seq";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![signed(cursor)])?;
        let (mut actions, mut size) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            let line = bytes(row, 2)?;
            size += line.len();
            if actions.len() == self.window.actions_max || size > self.window.bytes_max {
                return Ok(None);
            }
            if sum(&[&line]) != row.get::<_, u32>(3)? {
                return Err(StoreError::Damaged("an action".to_owned()));
            }
            let server_seq = unsigned(row.get(0)?);
            actions.push((target_of(row.get(1)?), ActionLine { line, server_seq, delta: None }));
        }
        Ok(Some(actions))
    }
}

fn reserve(connection: &Connection, up_to: u64) -> Result<(), StoreError> {
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('reserved', ?1)", params![signed(up_to)])?;
    Ok(())
}

fn number(connection: &Connection, sql: &str) -> Result<u64, StoreError> {
    Ok(connection.query_row(sql, [], |row| row.get(0)).optional()?.map_or(0, unsigned))
}

fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::from(row.get::<_, Vec<u8>>(column)?))
}

/// Numbers of ours are far from the sign bit.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn channel_of(target: Target) -> i64 {
    match target {
        Target::Root => 0,
        Target::Session(SessionKey(key)) => signed(key) * 2 - 1,
        Target::Chat(ChatKey(key)) => signed(key) * 2,
    }
}

fn target_of(channel: i64) -> Target {
    match channel {
        0 => Target::Root,
        odd if odd % 2 != 0 => Target::Session(SessionKey(unsigned((odd + 1) / 2))),
        even => Target::Chat(ChatKey(unsigned(even / 2))),
    }
}

fn sum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

fn session_sum(row: &SessionRow) -> u32 {
    sum(&[row.uri.as_bytes(), row.modified_at.as_bytes(), &row.summary, &row.body])
}

fn unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
