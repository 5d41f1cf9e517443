//! The database.
//!
//! Owns: one transaction for each batch of records, the blocks of sequence numbers, and what is
//! removed when it is old.
//! Never: knows what is in a row, or decides what is saved.
//!
//! Sequence numbers are drawn from blocks that are reserved by a synced write before any of them is
//! told to anybody, and each life of a host begins with a new block. So no number ever means two
//! things, even when a loss of power takes the newest commits, which need not be synced, away.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{params, Connection, ErrorCode, TransactionBehavior};

use super::errors::StoreError;
use super::mark::Mark;
use super::rows::{self, signed, unsigned};
use super::space::Due;
use super::texts::Texts;
use super::{
    agents, channels, clients, indexes, pack, repair, schema, space, trash, trials, turns, StoreOptions,
};
use crate::host::effects::{Record, SessionKey, SessionRow};
use crate::host::log::ReplayWindow;
use crate::host::Start;
use crate::os::facts::{self, Identity};
use crate::wire::channels::ChannelKind;

/// The database's name in the state folder.
pub const FILE_NAME: &str = "sessions.sqlite";

/// Number of sequence numbers reserved at once.
const BLOCK: u64 = 1 << 20;

/// Number of pages of the write-ahead log (16 MiB) from which on a commit is followed by a
/// checkpoint, even if others wait. The process behind a killed one reads the whole log before it
/// answers: some 20 ms.
pub const LOG_PAGES_MAX: u32 = 1024;

/// Number of pages (4 MiB) from which on a checkpoint is made while no commit waits.
pub const IDLE_LOG_PAGES_MAX: u32 = 256;

/// A commit of more records than these is not tried at once.
const RECORDS_AT_ONCE_MAX: usize = 8;

/// After a commit at once that took long, nothing is committed at once for so long, and for so many
/// times the time that it took: no more than a small share of all time goes into such commits.
const SLOW_FOR: Duration = Duration::from_secs(1);
const SLOW_FOR_TIMES: u32 = 100;

/// Jump of the sequence numbers when the last reservation cannot be read: further than any process
/// gets.
pub(super) const LEAP: u64 = 1 << 40;

/// The only connection that writes.
#[derive(Debug)]
pub struct Writer {
    connection: Connection,
    files: Vec<OpenFile>,
    path: PathBuf,
    /// Numbers up to this one are reserved.
    reserved: u64,
    options: StoreOptions,
    /// Amount written since old actions were removed last; `None` if it is not known.
    unpruned: Option<Unpruned>,
    /// Something was kept since damage was last mended.
    may_mend: bool,
    /// Damaged sessions in the trash, which are not removed from it.
    stays: BTreeSet<SessionKey>,
    /// Number of pages of the write-ahead log after the last commit.
    log_pages: Arc<AtomicU32>,
    /// The log was written into the database: the next commit may begin it anew, which syncs it.
    log_may_begin: bool,
    /// Texts of turns that may leave memory.
    texts: Option<Arc<Texts>>,
    /// Until when the disk is taken for slow.
    slow_until: Option<Instant>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Unpruned {
    actions: usize,
    bytes: usize,
}

impl Unpruned {
    fn and(mut self, records: &[Record]) -> Self {
        for record in records {
            if let Record::Action(_, line) = record {
                self.actions += 1;
                self.bytes += line.line.len();
            }
        }
        self
    }

    /// Returns whether these figures are within the window.
    fn fits(self, window: &ReplayWindow) -> bool {
        self.actions <= window.actions_max && self.bytes <= window.bytes_max
    }
}

impl Writer {
    /// Opens the database, makes it or brings it up to date, and begins a new life of the sequence.
    /// What is damaged and can be made again is.
    pub fn open(path: &Path, options: StoreOptions) -> Result<(Self, Start), StoreError> {
        let (mut connection, mark) =
            schema::open_or_make(path).map_err(|error| beyond_mending(error, path))?;
        let begun = begin(&mut connection, &options, mark.reserved()).or_else(|error| {
            if !error.is_damage() {
                return Err(error);
            }
            tracing::error!(%error, "the store is damaged and is being repaired");
            mend_all(&mut connection, Some(mark.reserved()))?;
            begin(&mut connection, &options, mark.reserved())
        });
        let start = begun.map_err(|error| beyond_mending(error, path))?;
        let reserved = start.head + BLOCK;
        let made = Mark::Made { reserved };
        let marked = if matches!(mark, Mark::Made { .. }) { made.update(path) } else { made.put(path) };
        marked.map_err(|error| StoreError::Mark(super::mark::path_of(path).display().to_string(), error))?;
        connection.pragma_update(None, "synchronous", "normal")?;
        let log_pages = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&log_pages);
        // In place of SQLite's own, which writes the log into the database in the middle of a
        // commit.
        connection.wal_hook(Some(move |_: &mut _, pages| {
            count.store(u32::try_from(pages).unwrap_or_default(), Ordering::Relaxed);
            Ok(())
        }))?;
        let files =
            [path.to_owned(), log_of(path)].into_iter().map(OpenFile::of).collect::<Result<_, _>>()?;
        let writer = Self {
            connection,
            files,
            path: path.to_owned(),
            reserved,
            options,
            unpruned: None,
            may_mend: true,
            stays: BTreeSet::new(),
            log_pages,
            log_may_begin: true,
            texts: None,
            slow_until: None,
        };
        Ok((writer, start))
    }

    /// Has the texts that are written leave memory when it has too many, and those that are removed
    /// stay with whoever has them.
    pub fn with_texts(mut self, texts: &Arc<Texts>) -> Result<Self, StoreError> {
        texts.watch(&mut self.connection)?;
        self.texts = Some(Arc::clone(texts));
        Ok(self)
    }

    /// Keeps records in one transaction: all of them, or none.
    ///
    /// # Errors
    /// When nothing was kept.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), StoreError> {
        self.files.iter().try_for_each(OpenFile::check)?;
        let reserve_up_to = self.reserve_for(records);
        let sync = reserve_up_to.is_some() || records.contains(&Record::Sync);
        if sync {
            self.connection.pragma_update(None, "synchronous", "full")?;
        }
        let mut written = self.write(records, reserve_up_to);
        if written.as_ref().is_err_and(StoreError::is_damage) && std::mem::take(&mut self.may_mend) {
            tracing::error!("the store is damaged and is being repaired");
            written = mend_all(&mut self.connection, None).and_then(|()| self.write(records, reserve_up_to));
        }
        self.may_mend |= written.is_ok();
        if written.is_err() {
            // Where no file may grow, the next attempt has the room that the log takes now.
            space::empty_log(&self.connection)
                .unwrap_or_else(|error| tracing::debug!(%error, "the write-ahead log of the store cannot be checkpointed after a failed commit"));
        }
        if sync {
            // What is synced too often is safe too.
            self.connection.pragma_update(None, "synchronous", "normal").unwrap_or_else(
                |error| tracing::warn!(%error, "`PRAGMA synchronous` cannot be reset: further commits are synced to disk, and slower"),
            );
        }
        written?;
        self.log_may_begin = false;
        if let Some(reserved) = reserve_up_to {
            self.reserved = reserved;
            Mark::Made { reserved }.update(&self.path).unwrap_or_else(
                |error| tracing::warn!(%error, "`sessions.made`, beside the store, cannot be updated"),
            );
        }
        self.prune(records);
        Ok(())
    }

    /// Does a little of what can be done while nothing else is to do: removes for good what has
    /// been in the trash for long enough, or longest where there is no room, then gives disk space
    /// back that nothing needs any more, but for what old actions have left: new ones take it.
    /// Returns when there is something to do again.
    pub fn tidy_some(&mut self) -> Result<Due, StoreError> {
        self.log_may_begin = true;
        if self.unpruned.is_none() {
            self.remove_old_actions();
        }
        let lacks_room = match self.options.bytes_max {
            Some(max) => space::used(&self.connection)? > max,
            None => false,
        };
        let trash = self.options.trash;
        if trash::purge_some(&mut self.connection, unix_ms(), trash, lacks_room, &mut self.stays)?
            || space::free_some_pages(&self.connection, self.options.window.bytes_max)?
        {
            return Ok(Due::Now);
        }
        space::shorten_log(&self.connection, &log_of(&self.path))
    }

    /// Empties the log, when nothing more will be kept.
    pub fn finish(&self) {
        if let Err(error) = space::cut_log(&self.connection) {
            tracing::debug!(%error, "SQLite's log cannot be emptied");
        }
    }

    /// Keeps a few records if that takes nothing but writing them into the system's cache of the
    /// disk: nothing is synced, removed, or waited for. Returns whether they are kept; if not,
    /// nothing was.
    pub fn commit_at_once(&mut self, records: &[Record]) -> bool {
        let begin = Instant::now();
        let is_small = records.len() <= RECORDS_AT_ONCE_MAX
            && records.iter().all(|record| matches!(record, Record::Action(..) | Record::Progress(..)));
        let unpruned = self.unpruned.map(|unpruned| unpruned.and(records));
        let is_pruned = unpruned.is_some_and(|unpruned| unpruned.fits(&self.options.window));
        let is_slow = self.slow_until.is_some_and(|until| begin < until);
        let has_log = !self.log_may_begin && self.log_pages.load(Ordering::Relaxed) < LOG_PAGES_MAX;
        if !is_small || !is_pruned || is_slow || !has_log || self.reserve_for(records).is_some() {
            return false;
        }
        let is_kept = self.write_without_waiting(records).unwrap_or_else(|error| {
            tracing::debug!(%error, "a commit on the main thread failed: the commit thread repeats it");
            false
        });
        let took = begin.elapsed();
        if took > self.options.at_once_within {
            let pause = took.saturating_mul(SLOW_FOR_TIMES).saturating_add(SLOW_FOR);
            self.slow_until = begin.checked_add(pause);
        }
        if is_kept {
            self.unpruned = unpruned;
        }
        is_kept
    }

    /// Copies the write-ahead log into the database if it has at least this many pages.
    pub fn checkpoint_from(&mut self, pages: u32) {
        if self.log_pages.load(Ordering::Relaxed) < pages {
            return;
        }
        self.log_may_begin = true;
        if let Err(error) = space::empty_log(&self.connection) {
            tracing::warn!(%error, "the write-ahead log of the store cannot be checkpointed: it grows");
        }
    }

    /// The last of the numbers to be reserved before these records may be told.
    fn reserve_for(&self, records: &[Record]) -> Option<u64> {
        let last = records.iter().filter_map(|record| match record {
            Record::Action(_, line) => Some(line.server_seq),
            _ => None,
        });
        last.max().filter(|last| last + BLOCK / 2 > self.reserved).map(|last| last + BLOCK)
    }

    /// Returns false when another program is at the database.
    fn write_without_waiting(&mut self, records: &[Record]) -> Result<bool, StoreError> {
        self.files.iter().try_for_each(OpenFile::check)?;
        self.connection.busy_timeout(Duration::ZERO)?;
        let written = self.write(records, None);
        schema::wait_for_others(&self.connection)?;
        match written {
            Ok(()) => Ok(true),
            Err(StoreError::Sqlite(error)) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Lets the database grow to so many pages only, until told otherwise.
    pub fn limit_pages(&self, pages: u32) -> Result<(), StoreError> {
        Ok(self.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?)
    }

    fn write(&mut self, records: &[Record], reserve_up_to: Option<u64>) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        let mut written = Vec::new();
        for record in records {
            match record {
                Record::Turn(chat, place, turn) => {
                    written.push((turn.place(), turns::put(&transaction, *chat, *place, turn)?));
                }
                record => keep(&transaction, record, &self.options)?,
            }
        }
        for pack in pack::packs(records) {
            rows::put_actions(&transaction, &pack)?;
        }
        if let Some(up_to) = reserve_up_to {
            rows::put_number(&transaction, "reserved", up_to)?;
        }
        transaction.commit()?;
        if let Some(texts) = &self.texts {
            written.into_iter().for_each(|(text, name)| texts.written(text, name));
        }
        Ok(())
    }

    /// Removes old actions when there may be twice as many as can be replayed, and with the first
    /// actions of a life, which does not know how many there are. The records are safe by now: what
    /// fails here is done another time.
    fn prune(&mut self, records: &[Record]) {
        if !records.iter().any(|record| matches!(record, Record::Action(..))) {
            return;
        }
        self.unpruned = self.unpruned.map(|unpruned| unpruned.and(records));
        if !self.unpruned.is_some_and(|unpruned| unpruned.fits(&self.options.window)) {
            self.remove_old_actions();
        }
    }

    fn remove_old_actions(&mut self) {
        self.unpruned = Some(Unpruned::default());
        if let Err(error) = remove_old_actions(&mut self.connection, &self.options.window) {
            tracing::warn!(%error, "actions beyond the replay window cannot be removed from the store");
        }
    }
}

/// An error that says, where it is damage to the database at this place, what can still be done.
fn beyond_mending(error: StoreError, path: &Path) -> StoreError {
    if !error.is_damage() {
        return error;
    }
    // What is said to work was tried.
    match schema::look_into(path).and_then(|(connection, _)| indexes::named(&connection)) {
        Ok(_) => StoreError::BeyondMending(Box::new(error)),
        Err(other) => {
            tracing::debug!(error = %other, "the sessions of the damaged store cannot be listed");
            StoreError::BeyondReading(Box::new(error))
        }
    }
}

/// A file of the database as it was when it was opened.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    identity: Identity,
}

impl OpenFile {
    fn of(path: PathBuf) -> Result<Self, StoreError> {
        // Wherever the process goes.
        match std::path::absolute(&path).and_then(|path| Ok((facts::behind(&path)?, path))) {
            Ok((file, path)) => Ok(Self { path, identity: file.identity }),
            Err(error) => Err(StoreError::Gone(path.display().to_string(), error)),
        }
    }

    /// Checks that what is written into the open file can be found under its path.
    fn check(&self) -> Result<(), StoreError> {
        let error = match facts::behind(&self.path) {
            Ok(file) if file.identity == self.identity => return Ok(()),
            Ok(_) => io::Error::other("its path now leads to another file"),
            Err(error) => error,
        };
        Err(StoreError::Gone(self.path.display().to_string(), error))
    }
}

/// The write-ahead log beside a database.
pub(super) fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// Begins a life: no number that may have been told before is told again in it.
fn begin(connection: &mut Connection, options: &StoreOptions, told: u64) -> Result<Start, StoreError> {
    // A transaction that reads before it writes fails at once if another connection, which may be
    // closing, has written in between; this one waits.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version = schema::migrate(&transaction)?;
    repair::check_complete(&transaction)?;
    let reserved = last_reserved(&transaction)?;
    if told > reserved {
        tracing::warn!(
            "the store lacks the newest changes that clients have received, for example because a backup was \
             restored: reconnecting clients get snapshots"
        );
    }
    let head = reserved.max(told);
    let channels = channels::all(&transaction);
    let of_channels = channels.iter().map(|row| row.id.key).max().unwrap_or(0);
    let start = Start {
        head,
        last_key: last_key(&transaction)?.max(of_channels),
        sessions: number(&transaction, "SELECT count(*) FROM sessions WHERE removed_at IS NULL")?,
        continues: version > 0,
        agents: last_agents(&transaction)?,
        said: agents::all(&transaction),
        channels,
    };
    rows::put_life(&transaction, head)?;
    trials::begin_process(&transaction, options.deaths_max)?;
    rows::put_number(&transaction, "reserved", head + BLOCK)?;
    repair::probe(&transaction)?;
    transaction.commit()?;
    Ok(start)
}

/// Makes again what can be made again. Where damaged pages are in the way of that, the rest of the
/// database is written anew first, when a life begins.
fn mend_all(connection: &mut Connection, told: Option<u64>) -> Result<(), StoreError> {
    let plan = repair::plan(connection, told)?;
    let Err(error) = in_transaction(connection, |now| repair::carry_out(now, &plan)) else { return Ok(()) };
    // What was rolled back is still in the schema that the connection knows.
    connection.execute_batch("PRAGMA writable_schema = RESET")?;
    if told.is_none() || !error.is_damage() {
        return Err(error);
    }
    tracing::error!(%error, "the repair failed on damaged pages: the database is rewritten from its readable rows");
    in_transaction(connection, |now| repair::drop_damaged(now, &plan))?;
    space::write_anew(connection)?;
    in_transaction(connection, |now| repair::make_all(now, &plan))
}

fn in_transaction(
    connection: &mut Connection,
    work: impl FnOnce(&Connection) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    work(&transaction)?;
    Ok(transaction.commit()?)
}

/// Returns the checksum of the agents of the last process; `None` if it is not known.
fn last_agents(connection: &Connection) -> Result<Option<u32>, StoreError> {
    match rows::number(connection, "agents") {
        Err(StoreError::Damaged(what)) => {
            tracing::warn!(
                what,
                "the stored checksum of the agents is damaged: the agents are sent to clients again"
            );
            Ok(None)
        }
        found => Ok(found?.and_then(|sum| u32::try_from(sum).ok())),
    }
}

/// Refuses an empty database in a folder that a process has held before. Whoever makes one leaves a
/// mark first, but older versions did not.
///
/// # Errors
/// When it is such a one.
pub fn refuse_what_was_cut(path: &Path) -> Result<(), StoreError> {
    let is_empty = fs::metadata(path).is_ok_and(|file| file.len() == 0);
    if is_empty && matches!(Mark::read(path), Ok(Mark::Absent)) {
        return Err(StoreError::Lost(path.display().to_string(), "is empty"));
    }
    Ok(())
}

/// The last number that was reserved.
pub(super) fn last_reserved(connection: &Connection) -> Result<u64, StoreError> {
    let lost = match rows::number(connection, "reserved") {
        Ok(Some(reserved)) => return Ok(reserved),
        Err(StoreError::Damaged(what)) => what,
        Err(error) => return Err(error),
        Ok(None) => {
            let sql = "SELECT EXISTS (SELECT 1 FROM lives) OR EXISTS (SELECT 1 FROM actions)
                OR EXISTS (SELECT 1 FROM sessions)";
            if number(connection, sql)? == 0 {
                return Ok(0);
            }
            "the number `reserved` is missing".to_owned()
        }
    };
    tracing::error!(lost, "the last reserved sequence number is damaged or missing: the sequence skips ahead, so that no number is assigned twice");
    let known =
        "SELECT max(ifnull((SELECT max(last) FROM actions), 0), ifnull((SELECT max(start) FROM lives), 0))";
    Ok(number(connection, known)?.saturating_add(LEAP))
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
        Record::SessionRemoved(key) => trash::put(connection, *key, Some(unix_ms())),
        Record::Chat(row) => rows::put_chat(connection, row),
        Record::ChatRemoved { key, .. } => trash::purge_chat(connection, *key),
        Record::TurnsShared { from, to, places } => turns::share(connection, *from, *to, places),
        Record::TurnsCut(chat, keep) => turns::cut(connection, *chat, *keep),
        Record::Progress(chat, progress) => rows::put_progress(connection, *chat, *progress),
        Record::Trial(session) => trials::begin(connection, *session),
        Record::Recovered(session) => trials::pause(connection, *session),
        Record::Survived(session) => trials::end(connection, *session),
        Record::Client { id, version } => clients::put(connection, id, version),
        Record::Channel(row) => channels::put(connection, row),
        Record::AgentSaid { provider, said } => agents::put(connection, provider, said),
        Record::Agents(sum) => rows::put_number(connection, "agents", u64::from(*sum)),
        // Turns are kept by their own, and actions in packs.
        Record::Turn(..) | Record::Action(..) | Record::Sync => Ok(()),
    }
}

/// Keeps a session. One that could not be found under its URI, or the new one would not have been
/// made, goes to the trash: nothing is overwritten.
fn keep_session(connection: &Connection, row: &SessionRow) -> Result<(), StoreError> {
    match rows::put_session(connection, row) {
        Err(StoreError::Sqlite(error))
            if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) =>
        {
            let sql = "SELECT key FROM sessions WHERE uri = ?1 AND removed_at IS NULL";
            let other = connection.query_row(sql, params![row.uri], |row| row.get(0))?;
            tracing::error!(
                uri = row.uri,
                "two sessions have the same URI: the older one was moved to the trash"
            );
            trash::put(connection, SessionKey(unsigned(other)), Some(unix_ms()))?;
            rows::put_session(connection, row)
        }
        kept => kept,
    }
}

/// Removes actions that nobody can ask for any more and that no running chat needs to be rebuilt.
fn remove_old_actions(connection: &mut Connection, window: &ReplayWindow) -> Result<(), StoreError> {
    let transaction = connection.transaction()?;
    if let Some(horizon) = horizon(&transaction, window)? {
        // When the old number is damaged, this one mends it.
        let pruned = rows::number(&transaction, "pruned").ok().flatten().unwrap_or(0).max(horizon);
        rows::put_number(&transaction, "pruned", pruned)?;
        let sql = "DELETE FROM actions WHERE last <= ?1 AND NOT (kind = ?2 AND EXISTS
            (SELECT 1 FROM chats WHERE chats.key = actions.key AND running AND as_of < last))";
        transaction.execute(sql, params![signed(pruned), ChannelKind::Chat.name()])?;
        transaction.execute("DELETE FROM lives WHERE start < ?1", params![signed(pruned)])?;
    }
    Ok(transaction.commit()?)
}

/// The last number of the newest row of which nothing fits into the window.
fn horizon(connection: &Connection, window: &ReplayWindow) -> Result<Option<u64>, StoreError> {
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

fn number(connection: &Connection, sql: &str) -> Result<u64, StoreError> {
    Ok(connection.query_row(sql, [], |row| row.get(0)).map(unsigned)?)
}

/// The wall clock's time in milliseconds since 1970.
fn unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
