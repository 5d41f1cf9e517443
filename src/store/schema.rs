//! Schema of the database, and its migrations.
//!
//! Owns: the tables, the schema version, the migration steps, and refusing a database that this
//! program did not write or is too old to know, before anything is written.
//! Never: interprets a row; the steps in `upgrade` do.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::errors::StoreError;
use super::mark::{self, Mark};
use super::sqlite::log_of;
use super::{space, turns, upgrade, use_counts};
use crate::os::{facts, private};

/// Id that identifies databases of this program: "AHPS".
const APPLICATION_ID: i64 = 0x4148_5053;

/// Page size, in bytes. A stream of small actions fills pages one after the other, and each is
/// written twice: with pages of 4 KiB most of the time of a commit goes into so many writes.
const PAGE_BYTES: u32 = 16 << 10;

/// Time to wait for another reader of the database.
pub(super) const BUSY: Duration = Duration::from_secs(5);

/// Step from one version to the next.
enum Migration {
    Sql(&'static str),
    Code(fn(&Connection) -> Result<(), StoreError>),
}

/// Steps from each version to the next; the first one is from nothing to version 1.
const STEPS: &[Migration] = &[
    Migration::Sql(VERSION_1),
    Migration::Code(upgrade::to_version_2),
    Migration::Sql(VERSION_3),
    Migration::Code(upgrade::to_version_4),
    Migration::Code(upgrade::to_version_5),
    Migration::Sql(upgrade::VERSION_6),
    Migration::Sql(upgrade::VERSION_7),
];

// Small columns come before large ones, so that SQLite reads the former without the latter.
// Checksums cover what must not change unnoticed; the module of each table says which columns.
pub(super) const VERSION_1: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;
    -- The number before the first one of each life.
    CREATE TABLE lives (start INTEGER PRIMARY KEY, sum INTEGER NOT NULL);
    CREATE TABLE sessions (
        key INTEGER PRIMARY KEY, uri TEXT NOT NULL, modified_at TEXT NOT NULL, removed_at INTEGER,
        chats INTEGER NOT NULL, chats_sum INTEGER NOT NULL,
        summary_sum INTEGER NOT NULL, sum INTEGER NOT NULL, summary BLOB NOT NULL, body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX sessions_by_uri ON sessions (uri) WHERE removed_at IS NULL;
    CREATE INDEX sessions_by_time ON sessions (modified_at DESC, key DESC) WHERE removed_at IS NULL;
    CREATE INDEX sessions_removed ON sessions (removed_at, uri) WHERE removed_at IS NOT NULL;
    CREATE TABLE chats (
        key INTEGER PRIMARY KEY, session INTEGER NOT NULL, uri TEXT NOT NULL, running INTEGER NOT NULL,
        as_of INTEGER NOT NULL, turns INTEGER NOT NULL, progress INTEGER, progress_sum INTEGER,
        sum INTEGER NOT NULL, body BLOB NOT NULL
    );
    CREATE INDEX chats_by_session ON chats (session);
    CREATE INDEX chats_by_uri ON chats (uri);
    CREATE INDEX chats_running ON chats (key) WHERE running;
    CREATE TABLE turns (
        chat INTEGER NOT NULL, place INTEGER NOT NULL, sum INTEGER NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (chat, place)
    ) WITHOUT ROWID;
    CREATE TABLE actions (
        seq INTEGER PRIMARY KEY, channel INTEGER NOT NULL, sum INTEGER NOT NULL, line BLOB NOT NULL
    );
    -- Sessions that may have ended the process, how often, whether they are being tried now, and whether they
    -- are given up (1) or left alone (2).
    CREATE TABLE trials (
        session INTEGER PRIMARY KEY, deaths INTEGER NOT NULL, open INTEGER NOT NULL, given_up INTEGER NOT NULL
    );
";

const VERSION_3: &str = "
    -- What each agent has said of itself.
    CREATE TABLE agents (provider TEXT PRIMARY KEY, sum INTEGER NOT NULL, said BLOB NOT NULL);
";

/// Opens a database for writing, or makes an empty one if none ever existed. Also returns the mark
/// that was found beside it.
pub(super) fn open_or_make(path: &Path) -> Result<(Connection, Mark), StoreError> {
    let unmarked = mark::failed(path);
    let mark = Mark::read(path).map_err(&unmarked)?;
    refuse_what_is_lost(path, mark)?;
    if fs::metadata(path).map_or(true, |file| file.len() == 0) {
        Mark::Making.put(path).map_err(&unmarked)?;
        private::file(path).map_err(unmarked)?;
    }
    Ok((open(path, mark)?, mark))
}

/// Refuses a path whose store was removed or emptied.
pub(super) fn refuse_what_is_lost(path: &Path, mark: Mark) -> Result<(), StoreError> {
    let lost = |how| Err(StoreError::Lost(path.display().to_string(), how));
    let bytes_of = |path: &Path| fs::metadata(path).map(|file| file.len());
    let was_made = matches!(mark, Mark::Made { .. });
    // An older version, which left no mark, was writing into it.
    let was_written = || mark == Mark::Absent && bytes_of(&log_of(path)).is_ok_and(|bytes| bytes > 0);
    match bytes_of(path) {
        Ok(0) if was_made || was_written() => lost("is empty"),
        Err(error) if error.kind() == io::ErrorKind::NotFound && (was_made || was_written()) => {
            lost("does not exist")
        }
        _ => Ok(()),
    }
}

/// Returns whether this folder holds a store or a mark of one that belong to this user.
pub(super) fn is_in(folder: &Path) -> bool {
    let is_ours = |path: &Path| facts::at(path).is_ok_and(|file| file.is_file() && private::is_ours(&file));
    let database = folder.join(super::sqlite::FILE_NAME);
    if is_ours(&mark::path_of(&database)) {
        return true;
    }
    let mut header = Vec::new();
    let mut read = || fs::File::open(&database)?.take(100).read_to_end(&mut header);
    let expected = u32::try_from(APPLICATION_ID).unwrap_or_default().to_be_bytes();
    is_ours(&database) && read().is_ok() && (header.is_empty() || header.get(68..72) == Some(&expected[..]))
}

/// Opens a connection to the file at this path. The path is never taken for a URI or for memory.
pub(super) fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let named = |error| StoreError::Gone(path.display().to_string(), error);
    // SQLite takes a path that begins with `file:` for a URI. No absolute path does.
    let path = std::path::absolute(path).map_err(named)?;
    Ok(Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?)
}

/// Opens a database for writing, with every commit synced. Writes nothing to one that is foreign,
/// newer, or unexpectedly empty.
pub(super) fn open(path: &Path, mark: Mark) -> Result<Connection, StoreError> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    detect_damage(&connection)?;
    // Else the last connection that closes writes the log into the database.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let version = version_of(&connection, path)?;
    if version == 0 && matches!(mark, Mark::Made { .. }) {
        return Err(StoreError::Lost(path.display().to_string(), "contains no tables"));
    }
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    turns::register_functions(&connection)?;
    use_counts::register_functions(&connection)?;
    if version == 0 {
        connection.pragma_update(None, "page_size", PAGE_BYTES)?;
        space::prepare(&connection)?;
    }
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    // On macOS a sync leaves what is written in the memory of the drive, unless a full sync is
    // requested. Other systems need no such request.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    // Removed rows are overwritten, except on free pages.
    connection.pragma_update_and_check(None, "secure_delete", "fast", |_| Ok(()))?;
    space::limit_log(&connection)?;
    Ok(connection)
}

/// Opens a database for reading, without a visible change. Returns its schema version.
pub(super) fn look_into(path: &Path) -> Result<(Connection, usize), StoreError> {
    let had_log = fs::metadata(log_of(path)).is_ok_and(|log| log.len() > 0);
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    tolerate_damage(&connection)?;
    // The last connection that closes removes the files that it has made, and writes a log into the
    // database.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, had_log)?;
    detect_damage(&connection)?;
    let version = version_of(&connection, path)?;
    Ok((connection, usize::try_from(version).unwrap_or(0)))
}

/// Lets SQLite read as much as possible of a truncated file, or of one with an unknown schema
/// entry; otherwise it refuses the file.
pub(super) fn tolerate_damage(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "writable_schema", true)
}

/// Sets the busy timeout, and makes SQLite check each page that it reads.
pub(super) fn detect_damage(connection: &Connection) -> rusqlite::Result<()> {
    wait_for_others(connection)?;
    connection.pragma_update(None, "cell_size_check", true)
}

/// Opens all files of the database, so that reads continue after they are moved. The first
/// statement that needs the schema reads it.
pub(super) fn open_files(connection: &Connection) -> rusqlite::Result<()> {
    pragma(connection, "user_version").map(drop)
}

/// Sets the timeout for locks of other connections.
pub(super) fn wait_for_others(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)
}

/// Migrates the database to the newest version, or creates its tables. Must be called in a
/// transaction. Returns the version before; 0 for a new one.
pub(super) fn migrate(connection: &Connection) -> Result<usize, StoreError> {
    migrate_by(STEPS, connection)
}

/// Creates an empty database of this version, in memory.
pub(super) fn model(version: usize) -> Result<Connection, StoreError> {
    let connection = Connection::open_in_memory()?;
    migrate_by(STEPS.get(..version).unwrap_or(STEPS), &connection)?;
    Ok(connection)
}

/// Newest version.
pub(super) const NEWEST: usize = STEPS.len();

/// Names of the tables and indexes of the newest version.
pub(super) const OBJECTS: [&str; 21] = [
    "actions",
    "agents",
    "channels",
    "chats",
    "chats_by_session",
    "chats_by_uri",
    "chats_running",
    "clients",
    "contents",
    "contents_by_text",
    "lives",
    "meta",
    "sessions",
    "sessions_by_time",
    "sessions_by_uri",
    "sessions_removed",
    "shared_texts",
    "texts",
    "trials",
    "turns",
    "turns_by_place",
];

fn migrate_by(steps: &[Migration], connection: &Connection) -> Result<usize, StoreError> {
    let before = usize::try_from(pragma(connection, "user_version")?).unwrap_or(usize::MAX);
    for step in steps.iter().skip(before) {
        match step {
            Migration::Sql(sql) => connection.execute_batch(sql)?,
            Migration::Code(take) => take(connection)?,
        }
    }
    if before < steps.len() {
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        connection.pragma_update(None, "user_version", i64::try_from(steps.len()).unwrap_or(i64::MAX))?;
    }
    Ok(before)
}

/// Returns the schema version. Fails for a foreign or a newer database.
fn version_of(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let version = pragma(connection, "user_version")?;
    let objects: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let is_new = version == 0 && objects == 0;
    if !is_new && pragma(connection, "application_id")? != APPLICATION_ID {
        return Err(StoreError::Foreign(path.display().to_string()));
    }
    if version > i64::try_from(STEPS.len()).unwrap_or(i64::MAX) {
        return Err(StoreError::Newer(path.display().to_string(), version));
    }
    Ok(version)
}

/// Returns the value of a pragma.
pub(super) fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Migration =
        Migration::Sql("CREATE TABLE things (name TEXT); INSERT INTO things VALUES ('old')");
    const SECOND: Migration = Migration::Sql("ALTER TABLE things ADD COLUMN size INTEGER NOT NULL DEFAULT 7");
    const THIRD: Migration =
        Migration::Code(|connection| Ok(connection.execute_batch("UPDATE things SET size = size + 1")?));

    fn version(connection: &Connection) -> i64 {
        pragma(connection, "user_version").unwrap()
    }

    #[test]
    fn a_database_takes_the_steps_that_it_has_not_taken() {
        let connection = Connection::open_in_memory().unwrap();
        assert_eq!(migrate_by(&[FIRST], &connection).unwrap(), 0);
        assert_eq!(version(&connection), 1);
        assert_eq!(migrate_by(&[FIRST, SECOND, THIRD], &connection).unwrap(), 1);
        assert_eq!(version(&connection), 3);
        assert_eq!(migrate_by(&[FIRST, SECOND, THIRD], &connection).unwrap(), 3);
        let row: (String, i64) = connection
            .query_row("SELECT name, size FROM things", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!(row, ("old".to_owned(), 8));
    }

    #[test]
    fn a_step_that_fails_leaves_the_database_as_it_was() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate_by(&[FIRST], &connection).unwrap();
        let transaction = connection.transaction().unwrap();
        assert!(migrate_by(&[FIRST, SECOND, Migration::Sql("nonsense")], &transaction).is_err());
        drop(transaction);
        assert_eq!(version(&connection), 1);
        assert!(connection.prepare("SELECT size FROM things").is_err(), "half a step was kept");
    }

    /// Checked on every system, as it does no harm, though it matters on macOS alone.
    #[test]
    fn a_sync_reaches_the_disk_on_macos_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "").unwrap();
        let connection = open(&path, Mark::Making).unwrap();
        for name in ["fullfsync", "checkpoint_fullfsync"] {
            assert_eq!(pragma(&connection, name).unwrap(), 1, "{name}");
        }
    }

    #[test]
    fn the_steps_make_the_objects_that_are_expected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "").unwrap();
        let connection = open(&path, Mark::Making).unwrap();
        migrate(&connection).unwrap();
        assert_eq!(version(&connection), i64::try_from(STEPS.len()).unwrap());
        let sql = "SELECT name FROM sqlite_schema WHERE sql IS NOT NULL AND name <> 'sqlite_sequence' ORDER BY name";
        let mut statement = connection.prepare(sql).unwrap();
        let names = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(names.map(Result::unwrap).collect::<Vec<_>>(), OBJECTS);
        open(&path, Mark::Made { reserved: 0 }).unwrap();
    }
}
