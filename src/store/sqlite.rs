//! Writer of the database.
//!
//! Owns: one transaction for each batch of records, blocks of sequence numbers, and pruning of old
//! actions.
//! Never: knows what is in a row, or decides what is saved.
//!
//! Sequence numbers come from blocks that are reserved by a synced write before any of them is
//! sent; each process begins with a new block. So no number is used twice, even if a power loss
//! takes the newest commits, which need not be synced.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{params, Connection, ErrorCode, OptionalExtension, TransactionBehavior};

use super::errors::StoreError;
use super::mark::{self, Mark};
use super::numbers::{last_key, last_reserved, number, BLOCK, KEY_BLOCK, LAST_KEY};
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

/// Name of the database in the state folder.
pub const FILE_NAME: &str = "sessions.sqlite";

/// Number of pages of the write-ahead log (16 MiB) from which on a commit is followed by a
/// checkpoint, even if others wait. The process behind a killed one reads the whole log before it
/// answers: some 20 ms.
pub const LOG_PAGES_MAX: u32 = 1024;

/// Number of pages (4 MiB) from which on a checkpoint is made while no commit waits.
pub const IDLE_LOG_PAGES_MAX: u32 = 256;

/// Maximum number of records committed on the main thread.
const RECORDS_AT_ONCE_MAX: usize = 8;

/// Minimum pause of commits on the main thread after a slow one.
const SLOW_FOR: Duration = Duration::from_secs(1);

/// Ratio of the rest of that pause to the duration of the slow commit, so that such commits take a
/// small share of the time.
const SLOW_FOR_TIMES: u32 = 100;

/// Only connection that writes.
#[derive(Debug)]
pub struct Writer {
    connection: Connection,
    files: Vec<OpenFile>,
    path: PathBuf,
    /// Last reserved sequence number.
    reserved: u64,
    options: StoreOptions,
    /// Actions written since the last pruning; `None` if unknown.
    unpruned: Option<Unpruned>,
    /// Set if a commit succeeded since the last repair.
    may_repair: bool,
    /// Damaged sessions in the trash, which are not purged.
    stays: BTreeSet<SessionKey>,
    /// Number of pages of the write-ahead log after the last commit.
    log_pages: Arc<AtomicU32>,
    /// Set after a checkpoint: the next commit may restart the log, which syncs it.
    log_may_begin: bool,
    /// Cache of turn texts, which is notified of texts that are evictable.
    texts: Option<Arc<Texts>>,
    /// Time until which commits on the main thread are not tried.
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
    /// Opens or creates the database, migrates and repairs it, and begins a new block of sequence
    /// numbers.
    pub fn open(path: &Path, options: StoreOptions) -> Result<(Self, Start), StoreError> {
        let (mut connection, mark) =
            schema::open_or_make(path).map_err(|error| describe_damage(error, path))?;
        let begun = begin(&mut connection, &options, mark.reserved()).or_else(|error| {
            if !error.is_damage() {
                return Err(error);
            }
            tracing::error!(%error, "the store is damaged and is being repaired");
            repair_all(&mut connection, Some(mark.reserved()))?;
            begin(&mut connection, &options, mark.reserved())
        });
        let start = begun.map_err(|error| describe_damage(error, path))?;
        let reserved = start.head + BLOCK;
        let made = Mark::Made { reserved };
        let marked = if matches!(mark, Mark::Made { .. }) { made.update(path) } else { made.put(path) };
        marked.map_err(mark::failed(path))?;
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
            may_repair: true,
            stays: BTreeSet::new(),
            log_pages,
            log_may_begin: true,
            texts: None,
            slow_until: None,
        };
        Ok((writer, start))
    }

    /// Makes stored texts evictable, and pins removed ones in memory while they are in use.
    pub fn with_texts(mut self, texts: &Arc<Texts>) -> Result<Self, StoreError> {
        texts.register_hooks(&mut self.connection)?;
        self.texts = Some(Arc::clone(texts));
        Ok(self)
    }

    /// Commits records in one transaction.
    ///
    /// # Errors
    /// When nothing was committed.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), StoreError> {
        self.files.iter().try_for_each(OpenFile::check)?;
        let reserve_up_to = self.reserve_for(records);
        let sync = reserve_up_to.is_some() || records.contains(&Record::Sync);
        if sync {
            self.connection.pragma_update(None, "synchronous", "full")?;
        }
        let mut written = self.write(records, reserve_up_to);
        if written.as_ref().is_err_and(StoreError::is_damage) && std::mem::take(&mut self.may_repair) {
            tracing::error!("the store is damaged and is being repaired");
            written =
                repair_all(&mut self.connection, None).and_then(|()| self.write(records, reserve_up_to));
        }
        self.may_repair |= written.is_ok();
        if written.is_err() {
            // If no file may grow, the next attempt has the space that the log takes now.
            space::checkpoint_passive(&self.connection)
                .unwrap_or_else(|error| tracing::debug!(%error, "the write-ahead log of the store cannot be checkpointed after a failed commit"));
        }
        if sync {
            self.connection.pragma_update(None, "synchronous", "normal").unwrap_or_else(
                |error| tracing::warn!(%error, "`PRAGMA synchronous` cannot be reset: further commits are synced to disk, and slower"),
            );
        }
        written?;
        self.log_may_begin = false;
        if let Some(reserved) = reserve_up_to {
            self.reserved = reserved;
            Mark::Made { reserved }.update(&self.path).unwrap_or_else(
                |error| tracing::warn!(%error, "`sessions.made`, beside the store, cannot be updated: if the database is replaced by an older copy now, numbers may be used twice"),
            );
        }
        self.prune(records);
        Ok(())
    }

    /// Does a part of the maintenance: purges old sessions in the trash (the oldest early if the
    /// database is too large), then returns free pages beyond the size of the replay window.
    /// Returns when to call it again.
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
        space::truncate_if_large(&self.connection, &log_of(&self.path))
    }

    /// Empties the write-ahead log before the process exits.
    pub fn finish(&self) {
        if let Err(error) = space::checkpoint_truncate(&self.connection) {
            tracing::debug!(%error, "SQLite's log cannot be emptied");
        }
    }

    /// Commits a few records if that needs no sync, checkpoint or wait. Returns whether it did;
    /// otherwise nothing was written.
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
        if let Err(error) = space::checkpoint_passive(&self.connection) {
            tracing::warn!(%error, "the write-ahead log of the store cannot be checkpointed: it grows");
        }
    }

    /// Returns the last number to reserve before these records are sent; `None` if enough are
    /// reserved.
    fn reserve_for(&self, records: &[Record]) -> Option<u64> {
        let last = records.iter().filter_map(|record| match record {
            Record::Action(_, line) => Some(line.server_seq),
            _ => None,
        });
        last.max().filter(|last| last + BLOCK / 2 > self.reserved).map(|last| last + BLOCK)
    }

    /// Writes without waiting for a lock. Returns false if another connection holds it.
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

    /// Limits the database to this number of pages.
    pub fn limit_pages(&self, pages: u32) -> Result<(), StoreError> {
        Ok(self.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?)
    }

    fn write(&mut self, records: &[Record], reserve_up_to: Option<u64>) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        let mut written = Vec::new();
        // Before the records: a purge among them empties the actions of what it removes.
        for pack in pack::packs(records) {
            rows::put_actions(&transaction, &pack)?;
        }
        for record in records {
            match record {
                Record::Turn(chat, place, turn) => {
                    written.push((turn.place(), turns::put(&transaction, *chat, *place, turn)?));
                }
                record => keep(&transaction, record, &self.options)?,
            }
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

    /// Prunes old actions once twice the replay window may be stored, and after the first actions
    /// of a process, which does not know their number. Failures are logged and retried later.
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

/// Adds to an error about damage what can still be done.
fn describe_damage(error: StoreError, path: &Path) -> StoreError {
    if !error.is_damage() {
        return error;
    }
    // The error promises only what was tried here.
    match schema::look_into(path).and_then(|(connection, _)| indexes::named(&connection)) {
        Ok(_) => StoreError::BeyondMending(Box::new(error)),
        Err(other) => {
            tracing::debug!(error = %other, "the sessions of the damaged store cannot be listed");
            StoreError::BeyondReading(Box::new(error))
        }
    }
}

/// File of the database, with its identity when it was opened.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    identity: Identity,
}

impl OpenFile {
    fn of(path: PathBuf) -> Result<Self, StoreError> {
        // The current directory may change.
        match std::path::absolute(&path).and_then(|path| Ok((facts::behind(&path)?, path))) {
            Ok((file, path)) => Ok(Self { path, identity: file.identity }),
            Err(error) => Err(StoreError::Gone(path.display().to_string(), error)),
        }
    }

    /// Checks that the path still leads to the open file.
    fn check(&self) -> Result<(), StoreError> {
        let error = match facts::behind(&self.path) {
            Ok(file) if file.identity == self.identity => return Ok(()),
            Ok(_) => io::Error::other("its path now leads to another file"),
            Err(error) => error,
        };
        Err(StoreError::Gone(self.path.display().to_string(), error))
    }
}

/// Returns the path of the write-ahead log.
pub(super) fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// Begins the process: reserves a block of numbers above all that may have been sent.
fn begin(connection: &mut Connection, options: &StoreOptions, marked: u64) -> Result<Start, StoreError> {
    // A transaction that reads before it writes fails at once if another connection, which may be
    // closing, has written in between; this one waits.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version = schema::migrate(&transaction)?;
    repair::check_complete(&transaction)?;
    let reserved = last_reserved(&transaction)?;
    if marked > reserved {
        tracing::warn!(
            "the store lacks the newest changes that clients have received, for example because a backup was \
             restored: reconnecting clients get snapshots"
        );
    }
    let head = reserved.max(marked);
    let channels = channels::all(&transaction);
    let of_channels = channels.iter().map(|row| row.id.key).max().unwrap_or(0);
    let last_key = match last_key(&transaction)?.max(of_channels) {
        0 if version == 0 => 0,
        last => last.saturating_add(KEY_BLOCK),
    };
    rows::put_number(&transaction, LAST_KEY, last_key)?;
    let start = Start {
        head,
        last_key,
        sessions: number(&transaction, "SELECT count(*) FROM sessions WHERE removed_at IS NULL")?,
        continues: version > 0,
        agents: last_agents(&transaction)?,
        descriptions: agents::all(&transaction),
        channels,
    };
    rows::put_process_start(&transaction, head)?;
    trials::begin_process(&transaction, options.deaths_max)?;
    rows::put_number(&transaction, "reserved", head + BLOCK)?;
    repair::probe(&transaction)?;
    transaction.commit()?;
    Ok(start)
}

/// Repairs the database. If damaged pages prevent that at the start, rewrites the rest first.
fn repair_all(connection: &mut Connection, marked: Option<u64>) -> Result<(), StoreError> {
    let plan = repair::plan(connection, marked)?;
    let Err(error) = in_transaction(connection, |now| repair::carry_out(now, &plan)) else { return Ok(()) };
    // The connection's schema still has the changes that were rolled back.
    connection.execute_batch("PRAGMA writable_schema = RESET")?;
    if marked.is_none() || !error.is_damage() {
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

/// Refuses an empty database in a folder that a process has held: versions without a mark may have
/// lost it.
///
/// # Errors
/// When the database is empty and has no mark.
pub fn refuse_emptied_database(path: &Path) -> Result<(), StoreError> {
    let is_empty = fs::metadata(path).is_ok_and(|file| file.len() == 0);
    if is_empty && matches!(Mark::read(path), Ok(Mark::Absent)) {
        return Err(StoreError::Lost(path.display().to_string(), "is empty"));
    }
    Ok(())
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
        Record::Unreadable(session) => trials::skip(connection, *session),
        Record::Survived(session) => trials::end(connection, *session),
        Record::Client { id, version } => clients::put(connection, id, version),
        Record::Channel(row) => channels::put(connection, row),
        Record::ChannelRemoved(id) => channels::remove(connection, *id),
        Record::AgentDescribed { provider, description } => agents::put(connection, provider, description),
        Record::Agents(sum) => rows::put_number(connection, "agents", u64::from(*sum)),
        // Turns are stored separately, and actions in packs.
        Record::Turn(..) | Record::Action(..) | Record::Evicted(_) | Record::Sync => Ok(()),
    }
}

/// Stores a session. Another listed session with its URI (which a damaged index hid) goes to the
/// trash.
fn keep_session(connection: &Connection, row: &SessionRow) -> Result<(), StoreError> {
    match rows::put_session(connection, row) {
        Err(StoreError::Sqlite(error))
            if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) =>
        {
            let sql = "SELECT key FROM sessions WHERE uri = ?1 AND removed_at IS NULL AND key <> ?2";
            let of = params![row.uri, signed(row.key.0)];
            let Some(other) = connection.query_row(sql, of, |row| row.get(0)).optional()? else {
                return Err(error.into());
            };
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

/// Removes actions beyond the replay window that no running chat needs.
fn remove_old_actions(connection: &mut Connection, window: &ReplayWindow) -> Result<(), StoreError> {
    let transaction = connection.transaction()?;
    if let Some(horizon) = horizon(&transaction, window)? {
        // If the stored number is damaged, this one replaces it.
        let pruned = rows::number(&transaction, "pruned").ok().flatten().unwrap_or(0).max(horizon);
        rows::put_number(&transaction, "pruned", pruned)?;
        let sql = "DELETE FROM actions WHERE last <= ?1 AND NOT (kind = ?2 AND EXISTS
            (SELECT 1 FROM chats WHERE chats.key = actions.key AND running AND as_of < last))";
        transaction.execute(sql, params![signed(pruned), ChannelKind::Chat.name()])?;
        transaction.execute("DELETE FROM lives WHERE start < ?1", params![signed(pruned)])?;
    }
    Ok(transaction.commit()?)
}

/// Returns the last number of the newest row that is entirely beyond the window.
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

/// Returns the current time in milliseconds since 1970.
fn unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
