//! The database.
//!
//! Owns: one transaction for each batch of records, the blocks of sequence numbers, what is removed when it
//! is old, and what a host reads back.
//! Never: knows what is in a row, or decides what is saved.
//!
//! Sequence numbers are drawn from blocks that are reserved by a synced write before any of them is told to
//! anybody, and each life of a host begins with a new block. So no number ever means two things, even when a
//! loss of power takes the newest commits, which need not be synced, away.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rusqlite::{params, Connection, ErrorCode, OpenFlags};
use rustix::process::{getrlimit, Resource};

use super::rows::{self, signed, unsigned};
use super::{clients, pack, schema, space, trash, trials, Listed, StoreOptions};
use crate::host::effects::{
    ActionLine, ChatKey, Page, Place, Record, SavedSession, SessionKey, SessionRow, Target,
};
use crate::host::log::Window;
use crate::host::Start;

/// The database's name in the state folder.
pub const FILE_NAME: &str = "sessions.sqlite";

/// How many sequence numbers are reserved at once.
const BLOCK: u64 = 1 << 20;

/// How far the numbers jump when it cannot be read which ones were reserved: further than any life gets.
const LEAP: u64 = 1 << 40;

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It was written by a newer program.
    #[error("the store {0} was written by a newer version of this program (schema {1}); it was not touched")]
    Newer(String, i64),
    /// It was written by another program.
    #[error("{0} is not a store of this program; it was not touched")]
    Foreign(String),
    /// A row is not what was written.
    #[error("{0} is damaged: it is not what was written")]
    Damaged(String),
    /// A file of it was moved or removed while it was open.
    #[error("{0} is gone: it was moved or removed while it was in use ({1})")]
    Gone(String, io::Error),
    /// Anything else that SQLite says.
    #[error("the store failed: {0}{limit}", limit = file_limit(.0))]
    Sqlite(#[from] rusqlite::Error),
}

impl StoreError {
    /// The same, saying of damage what it was found in.
    pub(super) fn on(self, what: impl Fn() -> String) -> Self {
        match self {
            Self::Damaged(row) => Self::Damaged(format!("{row}, of {},", what())),
            Self::Sqlite(error) => rows::damaged_if(what)(error),
            other => other,
        }
    }
}

/// What to add to an error of SQLite, which does not tell a disk that fails from a file that may not grow.
fn file_limit(error: &rusqlite::Error) -> String {
    let may_be_it = matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::DiskFull | ErrorCode::CannotOpen)
    );
    match getrlimit(Resource::Fsize).current.filter(|_| may_be_it) {
        Some(bytes) => {
            format!(" (no file of this process may be larger than {bytes} bytes, see `ulimit -f`)")
        }
        None => String::new(),
    }
}

/// The one connection that writes.
#[derive(Debug)]
pub struct Writer {
    connection: Connection,
    files: Vec<OpenFile>,
    /// Numbers up to this one are reserved.
    reserved: u64,
    options: StoreOptions,
    /// What was written since old actions were last removed; none when that is not known.
    unpruned: Option<Unpruned>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Unpruned {
    actions: usize,
    bytes: usize,
}

impl Writer {
    /// Opens the database, makes it or brings it up to date, begins a new life of the sequence, and empties
    /// the trash of what is old.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(path: &Path, options: StoreOptions) -> Result<(Self, Start), StoreError> {
        schema::check(path)?;
        let mut connection = schema::open(path)?;
        let transaction = connection.transaction()?;
        let version = schema::migrate(&transaction)?;
        let head = last_reserved(&transaction)?;
        let start = Start {
            head,
            last_key: last_key(&transaction)?,
            sessions: number(&transaction, "SELECT count(*) FROM sessions WHERE removed_at IS NULL")?,
            continues: version > 0,
            agents: rows::number(&transaction, "agents")?.and_then(|sum| u32::try_from(sum).ok()),
        };
        rows::put_life(&transaction, head)?;
        trials::begin_life(&transaction, options.deaths_max)?;
        let reserved = head + BLOCK;
        rows::put_number(&transaction, "reserved", reserved)?;
        transaction.commit()?;
        connection.pragma_update(None, "synchronous", "normal")?;
        let files =
            [path.to_owned(), log_of(path)].into_iter().map(OpenFile::of).collect::<Result<_, _>>()?;
        // What cannot be removed now is removed another time.
        if let Err(error) = trash::purge_old(&mut connection, unix_ms(), options.trash) {
            tracing::warn!(%error, "the trash cannot be emptied");
        }
        Ok((Self { connection, files, reserved, options, unpruned: None }, start))
    }

    /// Keeps records in one transaction: all of them, or none.
    ///
    /// # Errors
    /// When nothing was kept.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), StoreError> {
        self.files.iter().try_for_each(OpenFile::check)?;
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
        if written.is_err() {
            // Where no file may grow, the next attempt has the room that the log takes now.
            space::empty_log(&self.connection)
                .unwrap_or_else(|error| tracing::debug!(%error, "the log cannot be emptied either"));
        }
        if sync {
            // What is synced too often is safe too.
            self.connection.pragma_update(None, "synchronous", "normal").unwrap_or_else(
                |error| tracing::warn!(%error, "every commit is synced until the next one that must be"),
            );
        }
        written?;
        self.reserved = reserve_up_to.unwrap_or(self.reserved);
        self.prune(records);
        Ok(())
    }

    /// Gives a little of the disk space back that nothing needs any more, but for what old actions have left: new
    /// ones take it. Returns whether there is more.
    ///
    /// # Errors
    /// When that fails; nothing is lost then.
    pub fn give_back_some(&self) -> Result<bool, StoreError> {
        space::give_back_some(&self.connection, self.options.window.bytes_max)
    }

    /// Lets the database grow to so many pages only, until told otherwise.
    ///
    /// # Errors
    /// When SQLite does not take it.
    pub fn limit_pages(&self, pages: u32) -> Result<(), StoreError> {
        Ok(self.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?)
    }

    fn write(&mut self, records: &[Record], reserve_up_to: Option<u64>) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        for record in records {
            keep(&transaction, record, &self.options)?;
        }
        for pack in pack::packs(records) {
            rows::put_actions(&transaction, &pack)?;
        }
        if let Some(up_to) = reserve_up_to {
            rows::put_number(&transaction, "reserved", up_to)?;
        }
        Ok(transaction.commit()?)
    }

    /// Removes old actions when there may be twice as many as can be replayed, and at the first commit of a
    /// life, which does not know how many there are. The records are safe by now: what fails here is done
    /// another time.
    fn prune(&mut self, records: &[Record]) {
        let lines = || {
            records.iter().filter_map(|record| match record {
                Record::Action(_, line) => Some(line.line.len()),
                _ => None,
            })
        };
        let window = self.options.window;
        if let Some(unpruned) = &mut self.unpruned {
            unpruned.actions += lines().count();
            unpruned.bytes += lines().sum::<usize>();
            if unpruned.actions <= window.actions_max && unpruned.bytes <= window.bytes_max {
                return;
            }
        }
        self.unpruned = Some(Unpruned::default());
        if let Err(error) = remove_old_actions(&mut self.connection, &window) {
            tracing::warn!(%error, "old actions cannot be removed");
        }
    }
}

/// A file of the database as it was when it was opened.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl OpenFile {
    fn of(path: PathBuf) -> Result<Self, StoreError> {
        // Wherever the process goes.
        match std::path::absolute(&path).and_then(|path| Ok((fs::metadata(&path)?, path))) {
            Ok((file, path)) => Ok(Self { path, device: file.dev(), inode: file.ino() }),
            Err(error) => Err(StoreError::Gone(path.display().to_string(), error)),
        }
    }

    /// Checks that what is written into the open file can be found under its path.
    fn check(&self) -> Result<(), StoreError> {
        let error = match fs::metadata(&self.path) {
            Ok(file) if (file.dev(), file.ino()) == (self.device, self.inode) => return Ok(()),
            Ok(_) => io::Error::other("another file is in its place"),
            Err(error) => error,
        };
        Err(StoreError::Gone(self.path.display().to_string(), error))
    }
}

/// The write-ahead log beside a database.
fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// The last number that was reserved.
pub(super) fn last_reserved(connection: &Connection) -> Result<u64, StoreError> {
    match rows::number(connection, "reserved") {
        Err(StoreError::Damaged(what)) => {
            tracing::error!(
                what,
                "a damaged row: the sequence goes on far behind every number that was given"
            );
            let known = "SELECT max(ifnull((SELECT max(last) FROM actions), 0), ifnull((SELECT max(start) FROM lives), 0))";
            Ok(number(connection, known)? + LEAP)
        }
        found => Ok(found?.unwrap_or(0)),
    }
}

/// The last key that was given, to sessions that are gone too.
pub(super) fn last_key(connection: &Connection) -> Result<u64, StoreError> {
    let there =
        "SELECT max(ifnull((SELECT max(key) FROM sessions), 0), ifnull((SELECT max(key) FROM chats), 0))";
    let there = number(connection, there)?;
    // What may be purged is remembered before it is; what cannot be read does not matter then.
    let purged = rows::number(connection, "last_key").ok().flatten().unwrap_or(0);
    Ok(there.max(purged))
}

fn keep(connection: &Connection, record: &Record, options: &StoreOptions) -> Result<(), StoreError> {
    match record {
        Record::Session(row) => keep_session(connection, row),
        Record::SessionRemoved(key) if options.trash.is_zero() => trash::purge(connection, *key),
        Record::SessionRemoved(key) => trash::put(connection, *key, unix_ms()),
        Record::Chat(row) => rows::put_chat(connection, row),
        Record::ChatRemoved { key, .. } => trash::purge_chat(connection, *key),
        Record::Turn(chat, place, turn) => rows::put_turn(connection, *chat, *place, turn),
        Record::TurnsCut(chat, keep) => rows::cut_turns(connection, *chat, *keep),
        Record::Progress(chat, progress) => rows::put_progress(connection, *chat, *progress),
        Record::Trial(session) => trials::begin(connection, *session),
        Record::Recovered(session) => trials::pause(connection, *session),
        Record::Survived(session) => trials::end(connection, *session),
        Record::Client { id, version } => clients::put(connection, id, version),
        Record::Agents(sum) => rows::put_number(connection, "agents", u64::from(*sum)),
        // Actions are kept in packs.
        Record::Action(..) | Record::Sync => Ok(()),
    }
}

/// Keeps a session. One that could not be found under its URI, or the new one would not have been made, goes
/// to the trash: nothing is overwritten.
fn keep_session(connection: &Connection, row: &SessionRow) -> Result<(), StoreError> {
    match rows::put_session(connection, row) {
        Err(StoreError::Sqlite(error))
            if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) =>
        {
            let sql = "SELECT key FROM sessions WHERE uri = ?1 AND removed_at IS NULL";
            let other = connection.query_row(sql, params![row.uri], |row| row.get(0))?;
            tracing::error!(uri = row.uri, "two sessions of one URI: the older one is put into the trash");
            trash::put(connection, SessionKey(unsigned(other)), unix_ms())?;
            rows::put_session(connection, row)
        }
        kept => kept,
    }
}

/// Removes actions that nobody can ask for any more and that no running chat needs to be rebuilt.
fn remove_old_actions(connection: &mut Connection, window: &Window) -> Result<(), StoreError> {
    let transaction = connection.transaction()?;
    if let Some(horizon) = horizon(&transaction, window)? {
        // When the old number is damaged, this one mends it.
        let pruned = rows::number(&transaction, "pruned").ok().flatten().unwrap_or(0).max(horizon);
        rows::put_number(&transaction, "pruned", pruned)?;
        let sql = "DELETE FROM actions WHERE last <= ?1 AND NOT (channel % 2 = 0 AND EXISTS
            (SELECT 1 FROM chats WHERE key = channel / 2 AND running AND as_of < last))";
        transaction.execute(sql, params![signed(pruned)])?;
        transaction.execute("DELETE FROM lives WHERE start < ?1", params![signed(pruned)])?;
    }
    Ok(transaction.commit()?)
}

/// The last number of the newest row of which nothing fits into the window.
fn horizon(connection: &Connection, window: &Window) -> Result<Option<u64>, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT last, first, line_bytes FROM actions ORDER BY last DESC")?;
    let mut rows = statement.query([])?;
    let (mut actions, mut bytes) = (0, 0);
    while let Some(row) = rows.next()? {
        let (last, first) = (unsigned(row.get(0)?), unsigned(row.get(1)?));
        if actions >= window.actions_max as u64 || bytes >= window.bytes_max as u64 {
            return Ok(Some(last));
        }
        actions += (last + 1).saturating_sub(first);
        bytes += unsigned(row.get(2)?);
    }
    Ok(None)
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
        schema::be_careful(&connection)?;
        // Opens every file now, so that reading goes on when they are moved away.
        connection.query_row("SELECT count(*) FROM sessions WHERE key = 0", [], |_| Ok(()))?;
        Ok(Self { connection, window })
    }

    /// The sessions with a turn that ran when their process ended, as far as they can be told, but for those
    /// that are not taken up any more.
    ///
    /// # Errors
    /// When they cannot be looked for.
    pub fn interrupted(&self) -> Result<Vec<SessionKey>, StoreError> {
        // Left to itself, SQLite may read every chat.
        let sql = "SELECT key FROM chats INDEXED BY chats_running WHERE running";
        let mut statement = self.connection.prepare(sql)?;
        let chats: Vec<ChatKey> =
            statement.query_map([], |row| Ok(ChatKey(unsigned(row.get(0)?))))?.collect::<Result<_, _>>()?;
        // One row that cannot be read must not hide the others.
        let sql = "SELECT s.key FROM chats c JOIN sessions s ON s.key = c.session
            WHERE c.key = ?1 AND s.removed_at IS NULL";
        let mut sessions: Vec<SessionKey> = Vec::new();
        for chat in chats {
            match self.connection.prepare_cached(sql)?.query_row(params![signed(chat.0)], |row| row.get(0)) {
                Ok(key) => sessions.push(SessionKey(unsigned(key))),
                Err(rusqlite::Error::QueryReturnedNoRows) => {}
                Err(error) => tracing::error!(%error, chat = chat.0, "an interrupted chat cannot be read"),
            }
        }
        sessions.sort_unstable();
        sessions.dedup();
        let mut taken_up = Vec::with_capacity(sessions.len());
        for session in sessions {
            if !trials::is_quarantined(&self.connection, session)? {
                taken_up.push(session);
            }
        }
        Ok(taken_up)
    }

    /// The session that a URI names: its own or that of one of its chats.
    ///
    /// # Errors
    /// When it cannot be looked for.
    pub fn find(&self, uri: &str) -> Result<Option<SessionKey>, StoreError> {
        find(&self.connection, uri)
    }

    /// The version of the protocol that a client spoke last.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn client_version(&self, client: &str) -> Result<Option<String>, StoreError> {
        clients::get(&self.connection, client)
    }

    /// A session with everything that belongs to it.
    ///
    /// # Errors
    /// When it cannot be read, or something in it is damaged.
    pub fn load(&self, key: SessionKey) -> Result<Option<SavedSession>, StoreError> {
        // What it consists of must not change in between.
        let snapshot = self.connection.unchecked_transaction()?;
        if trash::has(&snapshot, key)? {
            return Ok(None);
        }
        let quarantined = trials::is_quarantined(&snapshot, key)?;
        let saved = rows::whole_session(&snapshot, key)?;
        Ok(saved.map(|saved| SavedSession { quarantined, ..saved }))
    }

    /// A page of the list of sessions. One that is damaged is listed as that.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn list(&self, page: &Page) -> Result<Listed, StoreError> {
        let snapshot = self.connection.unchecked_transaction()?;
        match list_by(&snapshot, page, "INDEXED BY sessions_by_time") {
            // The index is damaged: without it, it takes longer.
            Ok(None) | Err(StoreError::Damaged(_)) => {
                list_by(&snapshot, page, "NOT INDEXED").map(Option::unwrap_or_default)
            }
            listed => listed.map(Option::unwrap_or_default),
        }
    }

    /// Every action after `cursor`, oldest first; none when the cursor is no number that was given, or lies
    /// too far back.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn actions_since(&self, cursor: u64) -> Result<Option<Vec<(Target, ActionLine)>>, StoreError> {
        let snapshot = self.connection.unchecked_transaction()?;
        if !self.knows(cursor)? {
            return Ok(None);
        }
        let mut statement = snapshot.prepare_cached(&format!("{} ORDER BY last", rows::ACTIONS_BEHIND))?;
        let mut rows = statement.query(params![signed(cursor)])?;
        let (mut actions, mut size, mut last) = (Vec::new(), 0, cursor);
        while let Some(row) = rows.next()? {
            let (target, lines) = rows::actions(row)?;
            for action in lines.into_iter().filter(|action| action.server_seq > cursor) {
                size += action.line.len();
                if actions.len() == self.window.actions_max || size > self.window.bytes_max {
                    return Ok(None);
                }
                // Numbers are skipped where a new life begins only.
                if action.server_seq != last + 1 && !rows::is_life(&snapshot, action.server_seq - 1)? {
                    return Err(StoreError::Damaged(format!("the log behind the action {last}")));
                }
                last = action.server_seq;
                actions.push((target, action));
            }
        }
        Ok(Some(actions))
    }

    /// Whether everything after a number is there, and the number was given.
    fn knows(&self, cursor: u64) -> Result<bool, StoreError> {
        let pruned = rows::number(&self.connection, "pruned")?.unwrap_or(0);
        if cursor <= pruned {
            return Ok(cursor == pruned);
        }
        let sql =
            "SELECT ifnull((SELECT first FROM actions WHERE last >= ?1 ORDER BY last LIMIT 1) <= ?1, 0)";
        let given = self.connection.query_row(sql, params![signed(cursor)], |row| row.get(0))?;
        Ok(given || rows::is_life(&self.connection, cursor)?)
    }
}

/// The session that a URI names: its own or that of one of its chats.
pub(super) fn find(connection: &Connection, uri: &str) -> Result<Option<SessionKey>, StoreError> {
    let sql = "SELECT key FROM sessions WHERE uri = ?1 AND removed_at IS NULL
        UNION ALL SELECT s.key FROM chats c JOIN sessions s ON s.key = c.session
        WHERE c.uri = ?1 AND s.removed_at IS NULL";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params![uri])?;
    let key = rows.next()?.map(|row| row.get(0)).transpose()?;
    Ok(key.map(|key| SessionKey(unsigned(key))))
}

/// A page of the list, found in this way; none when that way has led astray.
fn list_by(connection: &Connection, page: &Page, way: &str) -> Result<Option<Listed>, StoreError> {
    let sql = format!(
        "SELECT key, modified_at FROM sessions {way}
        WHERE removed_at IS NULL AND (modified_at, key) < (?1, ?2)
        ORDER BY modified_at DESC, key DESC LIMIT ?3"
    );
    let (modified_at, key) = match &page.after {
        Some(place) => (place.modified_at.as_str(), signed(place.key.0)),
        // Behind every date.
        None => ("~", i64::MAX),
    };
    let limit = i64::try_from(page.limit.saturating_add(1)).unwrap_or(-1);
    let mut statement = connection.prepare_cached(&sql)?;
    let damaged = || rows::damaged_if(|| "the list of sessions".to_owned());
    let mut rows = statement.query(params![modified_at, key, limit]).map_err(damaged())?;
    let (mut listed, mut last) = (Listed::default(), None);
    while let Some(row) = rows.next().map_err(damaged())? {
        if listed.summaries.len() == page.limit {
            listed.next = last;
            break;
        }
        let key = SessionKey(unsigned(row.get(0).map_err(damaged())?));
        let modified_at =
            String::from_utf8_lossy(row.get_ref(1)?.as_bytes().unwrap_or_default()).into_owned();
        let summary = match rows::summary(connection, key) {
            Ok(Some(summary)) if summary.modified_at == modified_at => {
                if trials::is_quarantined(connection, key)? {
                    trials::quarantined_summary(&summary.json)
                } else {
                    summary.json
                }
            }
            Ok(_) => return Ok(None),
            Err(StoreError::Damaged(_)) => damaged_summary(connection, key, &modified_at),
            Err(error) => return Err(error),
        };
        listed.summaries.push(summary);
        last = Some(Place { modified_at, key });
    }
    Ok(Some(listed))
}

/// Every session with the time of its removal and its summary: the listed ones, newest first, then those in
/// the trash.
pub(super) fn list_all(connection: &Connection) -> Result<Vec<(SessionKey, Option<i64>, Bytes)>, StoreError> {
    let sql = "SELECT key, removed_at, CAST(modified_at AS BLOB) FROM sessions NOT INDEXED
        ORDER BY removed_at IS NOT NULL, removed_at DESC, modified_at DESC, key DESC";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let key = SessionKey(unsigned(row.get(0)?));
        let summary = match rows::summary(connection, key) {
            Ok(Some(summary)) => summary.json,
            Ok(None) => continue,
            Err(StoreError::Damaged(_)) => {
                let modified_at = row.get_ref(2)?.as_bytes().unwrap_or_default();
                damaged_summary(connection, key, &String::from_utf8_lossy(modified_at))
            }
            Err(error) => return Err(error),
        };
        all.push((key, row.get(1).unwrap_or_default(), summary));
    }
    Ok(all)
}

/// What a session that cannot be read says of itself.
pub(super) const UNREADABLE_TITLE: &str = "(this session is damaged and cannot be read)";

fn damaged_summary(connection: &Connection, key: SessionKey, modified_at: &str) -> Bytes {
    let uri = rows::uri_of(connection, key);
    tracing::error!(uri, key = key.0, "a session's row is damaged");
    let time = modified_at.parse::<jiff::Timestamp>().unwrap_or_default();
    let summary = serde_json::json!({
        "resource": uri.unwrap_or_default(),
        "provider": "unknown",
        "title": UNREADABLE_TITLE,
        "status": ahp_types::state::SessionStatus::Error,
        "createdAt": format!("{time:.3}"),
        "modifiedAt": format!("{time:.3}"),
    });
    summary.to_string().into()
}

fn number(connection: &Connection, sql: &str) -> Result<u64, StoreError> {
    Ok(connection.query_row(sql, [], |row| row.get(0)).map(unsigned)?)
}

/// The wall clock's time in milliseconds since 1970.
fn unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
