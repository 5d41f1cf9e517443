//! The database as people see and mend it while no host is running.
//!
//! Owns: every session, listed or in the trash; reading one as far as it can be read; bringing one back or in,
//! and removing one for good.
//! Never: knows what the JSON text in a row means, or gives a sequence number.

use std::collections::HashMap;
use std::path::Path;

use bytes::Bytes;
use rusqlite::{params, Connection, Transaction};

use super::errors::StoreError;
use super::mark::Mark;
use super::reader::{find, list_all};
use super::rows::{self, unsigned};
use super::turns::SharedTexts;
use super::{agents, check, mend, schema, space, trash, turns, ways};
use crate::host::effects::{ActionLine, ChannelId, ChatKey, SavedChat, SavedSession, SessionKey};
use crate::state::history::CompletedTurn;

/// Why something cannot be done to a session.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// There is none.
    #[error("there is no session {0}{1}")]
    NotFound(String, &'static str),
    /// Its URI or that of one of its chats names another session that is listed.
    #[error("{0} is in use: dispose of that session first")]
    InUse(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A session in the list for people.
#[derive(Debug, Clone, PartialEq)]
pub struct ArchivedSession {
    /// Its key.
    pub key: SessionKey,
    /// When it was put into the trash, in milliseconds since 1970, if it was.
    pub removed_at: Option<i64>,
    /// Its summary (JSON text); that of one which is damaged says so.
    pub summary: Bytes,
    /// How many turns there are in its chats; none when something in it is damaged.
    pub turns: Option<u64>,
}

/// A chat, as far as it can be read.
#[derive(Debug)]
pub struct Salvaged {
    /// Its row and the actions that the row does not know of.
    pub chat: SavedChat,
    /// Its completed turns, oldest first.
    pub turns: Vec<Result<CompletedTurn, StoreError>>,
    /// Why the actions that its row does not know of are not there.
    pub behind: Option<StoreError>,
}

/// The database, for one who holds the state folder.
#[derive(Debug)]
pub struct Archive {
    connection: Connection,
    /// Sequence numbers up to this one may have been told, as far as the mark beside the database knows.
    told: u64,
}

impl Archive {
    /// Whether a database was made at this place, as far as can be told without it.
    pub fn was_at(path: &Path) -> bool {
        !matches!(Mark::read(path), Ok(Mark::Absent))
    }

    /// Opens a database and brings it up to date.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let (mut connection, mark) = schema::open_or_make(path)?;
        let transaction = connection.transaction()?;
        schema::migrate(&transaction)?;
        transaction.commit()?;
        Ok(Self { connection, told: mark.reserved() })
    }

    /// Opens a database to look into it: nothing is changed, also in one of an older version.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn look_into(path: &Path) -> Result<Self, StoreError> {
        let mark = Mark::read(path)
            .map_err(|error| StoreError::Mark(super::mark::path_of(path).display().to_string(), error))?;
        schema::refuse_what_is_lost(path, mark)?;
        let (connection, version) = schema::look_into(path)?;
        if version == 0 {
            return Err(StoreError::Lost(path.display().to_string(), "holds nothing"));
        }
        if version < schema::NEWEST {
            if let Err(error) = bring_up_to_date(&connection, mark.reserved()) {
                if !error.is_damage() {
                    return Err(error);
                }
                // What lists sessions has not changed since the first version. What ran in them is told as damaged.
                tracing::warn!(%error, "an older store is damaged: it is read as it is");
                if !connection.is_autocommit() {
                    connection.execute_batch("ROLLBACK")?;
                }
                schema::put_up_with_damage(&connection)?;
            }
        }
        Ok(Self { connection, told: mark.reserved() })
    }

    /// What every agent has said of itself that was ever here, by its provider id; JSON text.
    pub fn agents(&self) -> Vec<(String, Bytes)> {
        agents::all(&self.connection)
    }

    /// Keeps what an agent has said of itself; JSON text.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn agent_said(&self, provider: &str, said: &[u8]) -> Result<(), StoreError> {
        agents::put(&self.connection, provider, said)
    }

    /// Every session: the listed ones, newest first, then those in the trash, the newest removed first.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn list(&self) -> Result<Vec<ArchivedSession>, StoreError> {
        let entries = list_all(&self.connection)?.into_iter().map(|(key, removed_at, summary)| {
            let turns = check::turns(&self.connection, key).ok();
            ArchivedSession { key, removed_at, summary, turns }
        });
        Ok(entries.collect())
    }

    /// The session of this URI: the one that is listed, else the one in the trash that was removed last.
    ///
    /// # Errors
    /// When there is none, or it cannot be looked for.
    pub fn find(&self, uri: &str) -> Result<SessionKey, ArchiveError> {
        let listed = self.keys("SELECT key FROM sessions WHERE uri = ?1 AND removed_at IS NULL", uri)?;
        match listed.first() {
            Some(key) => Ok(*key),
            None => self.find_removed(uri).map_err(|error| match error {
                ArchiveError::NotFound(uri, _) => ArchiveError::NotFound(uri, ""),
                error => error,
            }),
        }
    }

    /// The session of this URI in the trash that was removed last.
    ///
    /// # Errors
    /// When there is none, or it cannot be looked for.
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

    /// A session with everything that belongs to it, listed or not.
    ///
    /// # Errors
    /// When something of it cannot be read.
    pub fn load(&self, key: SessionKey) -> Result<SavedSession, ArchiveError> {
        rows::whole_session(&self.connection, key, &mut |_, _| true)?
            .ok_or_else(|| ArchiveError::NotFound(key.0.to_string(), ""))
    }

    /// The chats of a session, each as far as it can be read.
    ///
    /// # Errors
    /// When it cannot be told which there are.
    pub fn salvage(&self, key: SessionKey) -> Result<Vec<Result<Salvaged, StoreError>>, StoreError> {
        let chats = rows::chat_keys(&self.connection, key)?;
        let mut shared = SharedTexts::new();
        Ok(chats.into_iter().map(|chat| self.salvage_chat(key, chat, &mut shared)).collect())
    }

    fn salvage_chat(
        &self,
        session: SessionKey,
        key: ChatKey,
        shared: &mut SharedTexts,
    ) -> Result<Salvaged, StoreError> {
        let mut chat = rows::chat(&self.connection, session, key)?;
        let turns = chat.turns(&self.connection, shared).collect();
        let behind = match chat.actions(&self.connection, &mut |_| true) {
            Ok(actions) => {
                chat.saved.actions = actions;
                None
            }
            Err(error) => Some(error),
        };
        Ok(Salvaged { chat: chat.saved, turns, behind })
    }

    /// The actions on a session and its chats that are still there, in the order in which they happened.
    ///
    /// # Errors
    /// When they cannot be read.
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

    /// The number behind which the next host's sequence begins: every cursor that a client has is below it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn next_head(&self) -> Result<u64, StoreError> {
        Ok(super::sqlite::last_reserved(&self.connection)?.max(self.told))
    }

    /// Brings a session out of the trash, with these rows in place of those that it has.
    ///
    /// # Errors
    /// When it cannot be listed beside those that are.
    pub fn bring_back(&mut self, session: &SavedSession) -> Result<(), ArchiveError> {
        let transaction = self.connection.transaction().map_err(StoreError::from)?;
        keep_all(&transaction, session)?;
        commit(transaction)
    }

    /// Brings in a session from elsewhere, under new keys.
    ///
    /// # Errors
    /// When it cannot be listed beside those that are.
    pub fn bring_in(&mut self, mut session: SavedSession) -> Result<(), ArchiveError> {
        let transaction = self.connection.transaction().map_err(StoreError::from)?;
        let mut keys = super::sqlite::last_key(&transaction)? + 1..;
        session.row.key = SessionKey(keys.next().unwrap_or(u64::MAX));
        for chat in &mut session.chats {
            chat.row.session = session.row.key;
            chat.row.key = ChatKey(keys.next().unwrap_or(u64::MAX));
        }
        keep_all(&transaction, &session)?;
        commit(transaction)
    }

    /// Removes everything in the trash for good, or what is there under one URI. Returns how many sessions
    /// those were.
    ///
    /// # Errors
    /// When there is nothing under that URI, or something cannot be removed.
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

    /// Gives back all disk space that nothing needs any more.
    ///
    /// # Errors
    /// When that fails; nothing is lost then.
    pub fn give_back_space(&self) -> Result<(), StoreError> {
        space::give_back_all(&self.connection)
    }
}

/// Brings a database up to date, in a transaction that ends with the connection and is never committed.
fn bring_up_to_date(connection: &Connection, told: u64) -> Result<(), StoreError> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    match schema::migrate(connection) {
        Err(error) if error.is_damage() => {}
        migrated => return migrated.map(drop),
    }
    connection.execute_batch("ROLLBACK")?;
    let plan = mend::plan(connection, Some(told))?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    mend::carry_out(connection, &plan)?;
    schema::migrate(connection).map(drop)
}

/// Keeps a session as one that is listed.
fn keep_all(connection: &Connection, session: &SavedSession) -> Result<(), ArchiveError> {
    let uris = std::iter::once(&session.row.uri).chain(session.chats.iter().map(|chat| &chat.row.uri));
    for uri in uris {
        if find(connection, uri, || ways::are_complete(connection))?.is_some() {
            return Err(ArchiveError::InUse(uri.clone()));
        }
    }
    rows::put_session(connection, &session.row)?;
    trash::take_out(connection, session.row.key)?;
    // Chats that have begun as others of the session did have the same texts at the same places.
    let mut kept: HashMap<(u64, &Bytes), ChatKey> = HashMap::new();
    for SavedChat { row, turns, progress, .. } in &session.chats {
        turns::cut(connection, row.key, 0)?;
        for (turn, place) in turns.iter().zip(0..) {
            match kept.get(&(place, turn.text())) {
                Some(other) => turns::share(connection, *other, row.key, &(place..place + 1))?,
                None => {
                    turns::put(connection, row.key, place, turn.id(), turn.text())?;
                    kept.insert((place, turn.text()), row.key);
                }
            }
        }
        rows::put_chat(connection, row)?;
        if let Some(progress) = progress {
            rows::put_progress(connection, row.key, *progress)?;
        }
    }
    Ok(())
}

fn commit(transaction: Transaction<'_>) -> Result<(), ArchiveError> {
    Ok(transaction.commit().map_err(StoreError::from)?)
}
