//! The database for commands of people, while no host is running.
//!
//! Owns: listing all sessions, the trash included; reading one as far as it is readable; restoring,
//! importing and purging one.
//! Never: interprets the JSON text in a row, or assigns a sequence number.

use std::collections::hash_map::{Entry, HashMap};
use std::path::Path;
use std::sync::OnceLock;

use bytes::Bytes;
use rusqlite::{params, Connection, Transaction};
use sha2::{Digest, Sha256};

use super::check::Extent;
use super::errors::StoreError;
use super::mark::{self, Mark};
use super::reader::{find, list_all};
use super::rows::{self, unsigned};
use super::turns::TextReading;
use super::{agents, check, indexes, repair, schema, space, trash, turns};
use crate::host::effects::{ActionLine, ChannelId, ChatKey, ChatRow, SavedChat, SessionKey, SessionRow};
use crate::state::history::CompletedTurn;

/// Reason why a command on a session failed.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// There is no such session.
    #[error("there is no session {0}{1}")]
    NotFound(String, &'static str),
    /// The URI of the session, or of one of its chats, belongs to another listed session.
    #[error("an existing session uses the URI {0}: dispose of that session first")]
    InUse(String),
    /// Failure of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Entry of the list of all sessions.
#[derive(Debug, Clone, PartialEq)]
pub struct ArchivedSession {
    /// Key in the database.
    pub key: SessionKey,
    /// Time of removal, in milliseconds since 1970; `None` if the session is listed.
    pub removed_at: Option<i64>,
    /// Summary (JSON text); a damaged session has one that says so.
    pub summary: Bytes,
    /// Size; `None` if a part of the session is damaged.
    pub extent: Option<Extent>,
}

/// The readable parts of a chat.
#[derive(Debug)]
pub struct Salvaged {
    /// Row, and the actions since it was written.
    pub chat: SavedChat,
    /// Completed turns, oldest first.
    pub turns: Vec<Result<CompletedTurn, StoreError>>,
    /// Reason why these actions cannot be read; `None` if they can.
    pub behind: Option<StoreError>,
}

/// Piece of a session, as [`Archive::walk`] returns them.
#[derive(Debug)]
pub enum SessionPiece {
    /// Row of the session: the first piece.
    Session(SessionRow),
    /// Row of a chat and the actions since it was written, without completed turns.
    Chat(SavedChat),
    /// Next completed turn of the latest chat.
    Turn(CompletedTurn),
}

/// The database, for a process that holds the state folder.
#[derive(Debug)]
pub struct Archive {
    connection: Connection,
    /// Last sequence number that may have been sent, as far as the mark beside the database knows.
    marked: u64,
    /// Set if the database has an older schema, so that reading it locks the database.
    is_older: bool,
}

impl Archive {
    /// Returns whether a database was made at this path, without opening it.
    pub fn was_at(path: &Path) -> bool {
        !matches!(Mark::read(path), Ok(Mark::Absent))
    }

    /// Opens a database and migrates it to the newest schema.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let (mut connection, mark) = schema::open_or_make(path)?;
        let transaction = connection.transaction()?;
        schema::migrate(&transaction)?;
        transaction.commit()?;
        Ok(Self { connection, marked: mark.reserved(), is_older: false })
    }

    /// Opens a database for reading: what it has now, whatever a host commits meanwhile. Nothing is
    /// changed, not even the schema of an older version.
    pub fn look_into(path: &Path) -> Result<Self, StoreError> {
        let mark = Mark::read(path).map_err(mark::failed(path))?;
        schema::refuse_what_is_lost(path, mark)?;
        let (connection, version) = schema::look_into(path)?;
        if version == 0 {
            return Err(StoreError::Lost(path.display().to_string(), "contains no tables"));
        }
        let is_older = version < schema::NEWEST;
        if is_older {
            if let Err(error) = bring_up_to_date(&connection, mark.reserved()) {
                if !error.is_damage() {
                    return Err(error);
                }
                // The columns that list sessions are the same in all versions. Running turns count
                // as damaged.
                tracing::warn!(%error, "a store of an older version is damaged and cannot be migrated: it is read in its old format");
                if !connection.is_autocommit() {
                    connection.execute_batch("ROLLBACK")?;
                }
                schema::tolerate_damage(&connection)?;
            }
        }
        if connection.is_autocommit() {
            connection.execute_batch("BEGIN")?;
        }
        Ok(Self { connection, marked: mark.reserved(), is_older })
    }

    /// Returns whether no host may commit while this database is read.
    pub fn excludes_hosts(&self) -> bool {
        self.is_older
    }

    /// Returns the stored descriptions (JSON text) of all agents, by provider id.
    pub fn agents(&self) -> Vec<(String, Bytes)> {
        agents::all(&self.connection)
    }

    /// Stores the description of an agent (JSON text).
    pub fn store_description(&self, provider: &str, description: &[u8]) -> Result<(), StoreError> {
        agents::put(&self.connection, provider, description)
    }

    /// Returns all sessions: listed ones first, newest first, then those in the trash, the latest
    /// removed first.
    pub fn list(&self) -> Result<Vec<ArchivedSession>, StoreError> {
        let entries = list_all(&self.connection)?.into_iter().map(|(key, removed_at, summary)| {
            let extent = check::extent(&self.connection, key).ok();
            ArchivedSession { key, removed_at, summary, extent }
        });
        Ok(entries.collect())
    }

    /// Returns the session of a URI: the listed one, else the latest removed one in the trash.
    pub fn find(&self, uri: &str) -> Result<SessionKey, ArchiveError> {
        let sql = "SELECT key FROM sessions WHERE uri = ?1 AND ifnull(removed_at, 0) >= 0
            ORDER BY removed_at IS NOT NULL, removed_at DESC, key DESC";
        let found = self.keys(sql, uri)?;
        found.first().copied().ok_or_else(|| ArchiveError::NotFound(uri.to_owned(), ""))
    }

    /// Returns the latest removed session of a URI in the trash.
    pub fn find_removed(&self, uri: &str) -> Result<SessionKey, ArchiveError> {
        let removed = self.removed(uri)?;
        removed.first().copied().ok_or_else(|| ArchiveError::NotFound(uri.to_owned(), " in the trash"))
    }

    fn removed(&self, uri: &str) -> Result<Vec<SessionKey>, StoreError> {
        let sql = "SELECT key FROM sessions WHERE uri = ?1 AND removed_at >= 0
            ORDER BY removed_at DESC, key DESC";
        self.keys(sql, uri)
    }

    fn keys(&self, sql: &str, uri: &str) -> Result<Vec<SessionKey>, StoreError> {
        let mut statement = self.connection.prepare(sql)?;
        let keys = statement.query_map(params![uri], |row| Ok(SessionKey(unsigned(row.get(0)?))))?;
        Ok(keys.collect::<Result<_, _>>()?)
    }

    /// Passes a session, listed or not, to `take` piece by piece, so that memory holds one piece at
    /// a time. Logged actions that the rows include are left out.
    pub fn walk<E: From<ArchiveError>>(
        &self,
        key: SessionKey,
        take: &mut dyn FnMut(SessionPiece) -> Result<(), E>,
    ) -> Result<(), E> {
        let row = rows::session(&self.connection, key).map_err(ArchiveError::from)?;
        let row = row.ok_or_else(|| ArchiveError::NotFound(key.0.to_string(), ""))?;
        take(SessionPiece::Session(row))?;
        let mut reading = TextReading::whole();
        for chat in rows::all_chat_keys(&self.connection, key).map_err(ArchiveError::from)? {
            let mut chat = rows::chat(&self.connection, key, chat).map_err(ArchiveError::from)?;
            let actions = chat.actions(&self.connection, &mut |_| true);
            chat.saved.actions = actions.map_err(ArchiveError::from)?;
            take(SessionPiece::Chat(chat.saved.clone()))?;
            for turn in chat.turns(&self.connection, &mut reading) {
                take(SessionPiece::Turn(turn.map_err(ArchiveError::from)?))?;
            }
        }
        Ok(())
    }

    /// Checks that all pieces of a session are readable.
    pub fn check(&self, key: SessionKey) -> Result<(), ArchiveError> {
        self.walk(key, &mut |_| Ok(()))
    }

    /// Returns the chats of a session, each as far as it is readable.
    pub fn salvage(&self, key: SessionKey) -> Result<Vec<Result<Salvaged, StoreError>>, StoreError> {
        let chats = rows::chat_keys(&self.connection, key)?;
        let mut reading = TextReading::whole();
        Ok(chats.into_iter().map(|chat| self.salvage_chat(key, chat, &mut reading)).collect())
    }

    fn salvage_chat(
        &self,
        session: SessionKey,
        key: ChatKey,
        reading: &mut TextReading,
    ) -> Result<Salvaged, StoreError> {
        let mut chat = rows::chat(&self.connection, session, key)?;
        let turns = chat.turns(&self.connection, reading).collect();
        let behind = match chat.actions(&self.connection, &mut |_| true) {
            Ok(actions) => {
                chat.saved.actions = actions;
                None
            }
            Err(error) => Some(error),
        };
        Ok(Salvaged { chat: chat.saved, turns, behind })
    }

    /// Returns the logged actions on a session and its chats, in sequence order.
    pub fn actions(&self, key: SessionKey) -> Result<Vec<ActionLine>, StoreError> {
        let chats = rows::chat_keys(&self.connection, key)?;
        let targets = chats.into_iter().map(ChannelId::from).chain([key.into()]);
        let mut lines = Vec::new();
        for target in targets {
            lines.extend(rows::actions_on(&self.connection, target, 0, &mut |_| true)?);
        }
        lines.sort_by_key(|line| line.server_seq);
        Ok(lines)
    }

    /// Returns the number after which the next host's sequence begins; no client's cursor is above
    /// it.
    pub fn next_head(&self) -> Result<u64, StoreError> {
        Ok(super::numbers::last_reserved(&self.connection)?.max(self.marked))
    }

    /// Moves a session out of the trash and replaces its row and the rows of its chats.
    pub fn restore(&mut self, session: &SessionRow, chats: &[SavedChat]) -> Result<(), ArchiveError> {
        let transaction = self.connection.transaction().map_err(StoreError::from)?;
        let indexes_are_complete = OnceLock::new();
        for uri in std::iter::once(&session.uri).chain(chats.iter().map(|chat| &chat.row.uri)) {
            check_free(&transaction, &indexes_are_complete, uri)?;
        }
        put_listed(&transaction, session)?;
        for chat in chats {
            put_listed_chat(&transaction, &chat.row, chat.progress)?;
        }
        commit(transaction)
    }

    /// Begins the import of a session, under new keys.
    pub fn begin_import(&mut self) -> Result<Import<'_>, ArchiveError> {
        let transaction = self.connection.transaction().map_err(StoreError::from)?;
        let last_key = super::numbers::last_key(&transaction)?;
        let indexes_are_complete = OnceLock::new();
        let (session, chat, kept) = (None, None, HashMap::new());
        Ok(Import { transaction, indexes_are_complete, last_key, session, chat, kept })
    }

    /// Purges the trash, or all sessions of one URI in it. Returns the number of sessions.
    ///
    /// # Errors
    /// When no session in the trash has that URI, or the store fails.
    pub fn purge(&mut self, uri: Option<&str>) -> Result<usize, ArchiveError> {
        let keys = match uri {
            Some(uri) => {
                self.find_removed(uri)?;
                self.removed(uri)?
            }
            None => self.keys("SELECT key FROM sessions WHERE removed_at IS NOT NULL AND ?1 = ''", "")?,
        };
        let transaction = self.connection.transaction().map_err(StoreError::from)?;
        for key in &keys {
            trash::purge(&transaction, *key)?;
        }
        commit(transaction)?;
        Ok(keys.len())
    }

    /// Returns all unused disk space to the system.
    pub fn give_back_space(&self) -> Result<(), StoreError> {
        space::free_all_pages(&self.connection)
    }
}

/// Migrates a database in a transaction that is never committed and ends with the connection.
fn bring_up_to_date(connection: &Connection, marked: u64) -> Result<(), StoreError> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    match schema::migrate(connection) {
        Err(error) if error.is_damage() => {}
        migrated => return migrated.map(drop),
    }
    connection.execute_batch("ROLLBACK")?;
    let plan = repair::plan(connection, Some(marked))?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    repair::carry_out(connection, &plan)?;
    schema::migrate(connection).map(drop)
}

/// Import of a session, piece by piece. The session exists once it is finished.
#[derive(Debug)]
pub struct Import<'a> {
    transaction: Transaction<'a>,
    /// Set once the indexes were checked, which reads every row.
    indexes_are_complete: OnceLock<bool>,
    last_key: u64,
    session: Option<SessionKey>,
    /// Chat whose turns arrive, with its progress and the number of turns so far.
    chat: Option<(ChatRow, Option<u64>, u64)>,
    /// Chats by position and hash of a turn's text: copied chats share such texts.
    kept: HashMap<(u64, [u8; 32]), ChatKey>,
}

impl Import<'_> {
    fn next_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    /// Imports the session's row.
    ///
    /// # Errors
    /// When its URI is in use, or the store fails.
    pub fn session(&mut self, mut row: SessionRow) -> Result<(), ArchiveError> {
        check_free(&self.transaction, &self.indexes_are_complete, &row.uri)?;
        row.key = SessionKey(self.next_key());
        self.session = Some(row.key);
        put_listed(&self.transaction, &row)
    }

    /// Imports the row of a chat, with the progress of its agent. Returns `false` if no session
    /// came before it.
    pub fn chat(&mut self, mut row: ChatRow, progress: Option<u64>) -> Result<bool, ArchiveError> {
        self.end_chat()?;
        let Some(session) = self.session else { return Ok(false) };
        check_free(&self.transaction, &self.indexes_are_complete, &row.uri)?;
        (row.key, row.session) = (ChatKey(self.next_key()), session);
        self.chat = Some((row, progress, 0));
        Ok(true)
    }

    /// Imports the next turn of the latest chat. Returns `false` if no chat came before it.
    pub fn turn(&mut self, turn: &CompletedTurn) -> Result<bool, ArchiveError> {
        let Some((row, _, turns)) = &mut self.chat else { return Ok(false) };
        let place = *turns;
        *turns += 1;
        match self.kept.entry((place, Sha256::digest(turn.text()).into())) {
            Entry::Occupied(other) => {
                turns::share(&self.transaction, *other.get(), row.key, &(place..place + 1))?;
            }
            Entry::Vacant(place_of_text) => {
                turns::put(&self.transaction, row.key, place, turn)?;
                place_of_text.insert(row.key);
            }
        }
        Ok(true)
    }

    fn end_chat(&mut self) -> Result<(), ArchiveError> {
        match self.chat.take() {
            Some((row, progress, _)) => put_listed_chat(&self.transaction, &row, progress),
            None => Ok(()),
        }
    }

    /// Commits the import.
    pub fn finish(mut self) -> Result<(), ArchiveError> {
        self.end_chat()?;
        commit(self.transaction)
    }
}

fn check_free(
    connection: &Connection,
    indexes_are_complete: &OnceLock<bool>,
    uri: &str,
) -> Result<(), ArchiveError> {
    match find(connection, uri, || indexes::are_complete_once(connection, indexes_are_complete))? {
        Some(_) => Err(ArchiveError::InUse(uri.to_owned())),
        None => Ok(()),
    }
}

fn put_listed(connection: &Connection, row: &SessionRow) -> Result<(), ArchiveError> {
    rows::put_session(connection, row)?;
    Ok(trash::put(connection, row.key, None)?)
}

/// Stores a chat, whose turns must already be stored.
fn put_listed_chat(
    connection: &Connection,
    row: &ChatRow,
    progress: Option<u64>,
) -> Result<(), ArchiveError> {
    rows::put_chat(connection, row)?;
    if let Some(progress) = progress {
        rows::put_progress(connection, row.key, progress)?;
    }
    Ok(())
}

fn commit(transaction: Transaction<'_>) -> Result<(), ArchiveError> {
    Ok(transaction.commit().map_err(StoreError::from)?)
}
