//! Reading from the database, for a host and for `sessions`.
//!
//! Owns: a connection of its own, on which everything that belongs together is read from one
//! snapshot, and what is told of rows that are damaged.
//! Never: writes, or fails as a whole because of one row where the others can be told.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rusqlite::{params, Connection, OpenFlags, OptionalExtension};
use serde::Deserialize;

use super::errors::{damaged_if, StoreError};
use super::rows::{self, signed, unsigned};
use super::texts::Texts;
use super::trials::{self, TrialVerdict};
use super::turns::TextReading;
use super::{clients, indexes, schema, trash};
use crate::host::effects::{
    summary_of_abandoned_session, summary_of_damaged_session, ActionLine, ChannelId, ChatKey, ChatRow,
    ListPosition, Listed, Page, SavedSession, SessionKey, SessionRow,
};
use crate::host::log::ReplayWindow;

/// A connection that reads what is safe.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    window: ReplayWindow,
    /// Set once it is known whether the indexes name every row; shared by the readers of a host.
    indexes_are_complete: Arc<OnceLock<bool>>,
    /// Source of turn texts that are read when they are needed; `None` if they are read with their
    /// sessions.
    texts: Option<Arc<Texts>>,
}

/// Fate of a session.
#[derive(Debug)]
pub struct FoundSession {
    /// Key.
    pub key: SessionKey,
    /// Row; `None` if it was removed for good.
    pub row: Option<SessionRow>,
    /// Set if it is in the trash.
    pub is_removed: bool,
}

impl Reader {
    /// Opens a second connection to a database that a [`Writer`](super::sqlite::Writer) has made.
    pub fn open(path: &Path, window: ReplayWindow) -> Result<Self, StoreError> {
        let connection = schema::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        schema::detect_damage(&connection)?;
        schema::open_files(&connection)?;
        Ok(Self { connection, window, indexes_are_complete: Arc::default(), texts: None })
    }

    /// Has the texts of turns read when somebody needs them.
    pub fn with_texts(self, texts: &Arc<Texts>) -> Self {
        Self { texts: Some(Arc::clone(texts)), ..self }
    }

    /// Opens another reader of the same database, for another thread.
    pub fn another(&self, path: &Path) -> Result<Self, StoreError> {
        let indexes_are_complete = Arc::clone(&self.indexes_are_complete);
        Ok(Self { indexes_are_complete, texts: self.texts.clone(), ..Self::open(path, self.window)? })
    }

    fn reading(&self) -> TextReading {
        self.texts.clone().map_or_else(TextReading::whole, TextReading::Later)
    }

    /// The sessions with a turn that ran when their process ended, as far as they can be told, but
    /// for those that are left alone. Each with how many processes in a row have ended while it was
    /// taken up, those with the fewest first.
    pub fn interrupted(&self) -> Result<Vec<(u32, SessionKey)>, StoreError> {
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
            let trial = trials::of(&self.connection, session)?;
            if trial.verdict != TrialVerdict::LeaveAlone {
                taken_up.push((trial.deaths, session));
            }
        }
        taken_up.sort_unstable();
        Ok(taken_up)
    }

    /// The session that a URI names: its own or that of one of its chats.
    pub fn find(&self, uri: &str) -> Result<Option<SessionKey>, StoreError> {
        find(&self.connection, uri, || self.trusts_indexes())
    }

    /// The session that a URI names, its own or that of one of its chats, with everything that
    /// belongs to it; none when there is none, or it is known already.
    ///
    /// # Errors
    /// When that cannot be told, or the session cannot be read: see [`Reader::load_sifted`].
    pub fn look_up(
        &self,
        uri: &str,
        is_known: impl Fn(SessionKey) -> bool,
    ) -> Result<Option<SavedSession>, StoreError> {
        // Nothing comes or goes between finding it and reading it.
        let snapshot = self.connection.unchecked_transaction()?;
        let damaged = || StoreError::Damaged(format!("the session of {uri}"));
        let Some(key) = find(&snapshot, uri, || self.trusts_indexes())?.filter(|key| !is_known(*key)) else {
            return Ok(None);
        };
        let saved = load_from(&snapshot, key, &mut |_, _| true, &mut self.reading())?.ok_or_else(damaged)?;
        if saved.row.uri == uri || saved.chats.iter().any(|chat| chat.row.uri == uri) {
            return Ok(Some(saved));
        }
        // The index is damaged: it names another session.
        let meant = find_by_rows(&snapshot, uri)?.filter(|key| !is_known(*key));
        meant
            .map(|key| load_from(&snapshot, key, &mut |_, _| true, &mut self.reading())?.ok_or_else(damaged))
            .transpose()
    }

    /// Returns whether the indexes name every row. Checked once, since that takes reading every
    /// row.
    pub fn trusts_indexes(&self) -> Result<bool, StoreError> {
        match self.indexes_are_complete.get() {
            Some(is_so) => Ok(*is_so),
            None => {
                let is_so = indexes::are_complete(&self.connection)?;
                Ok(*self.indexes_are_complete.get_or_init(|| is_so))
            }
        }
    }

    /// The version of the protocol that a client spoke last.
    pub fn client_version(&self, client: &str) -> Result<Option<String>, StoreError> {
        clients::get(&self.connection, client)
    }

    /// A session with everything that belongs to it.
    pub fn load(&self, key: SessionKey) -> Result<Option<SavedSession>, StoreError> {
        self.load_sifted(key, |_, _| true)
    }

    /// A session with everything that belongs to it, but for actions on its chats that are not
    /// needed to take them up.
    ///
    /// # Errors
    /// When it cannot be read, something in it is damaged, or it is left alone.
    pub fn load_sifted(
        &self,
        key: SessionKey,
        mut is_needed: impl FnMut(&ChatRow, &Bytes) -> bool,
    ) -> Result<Option<SavedSession>, StoreError> {
        // What it consists of must not change in between.
        let snapshot = self.connection.unchecked_transaction()?;
        load_from(&snapshot, key, &mut is_needed, &mut self.reading())
    }

    /// A page of the list of sessions. One that is damaged is listed as that.
    pub fn list(&self, page: &Page) -> Result<Listed, StoreError> {
        self.trusts_indexes()?;
        self.list_at_once(page)
    }

    /// A page of the list, without looking for damage of the indexes first: call
    /// [`Reader::trusts_indexes`] behind it.
    pub fn list_at_once(&self, page: &Page) -> Result<Listed, StoreError> {
        let snapshot = self.connection.unchecked_transaction()?;
        let is_damaged = self.indexes_are_complete.get() == Some(&false);
        let listed = if is_damaged { Ok(None) } else { list_by_time(&snapshot, page) };
        match listed {
            // The index is damaged: without it, it takes longer.
            Err(error) if !error.is_damage() => Err(error),
            Ok(Some(listed)) => Ok(listed),
            Ok(None) | Err(_) => list_what_is_named(&snapshot, page),
        }
    }

    /// The URIs of all sessions that can be listed, each with its provider.
    pub fn providers(&self) -> Result<Vec<(String, String)>, StoreError> {
        #[derive(Deserialize)]
        struct Summary {
            resource: String,
            provider: String,
        }
        let listed = self.list(&Page { after: None, limit: usize::MAX })?;
        let summaries =
            listed.sessions.iter().filter_map(|(_, json)| serde_json::from_slice::<Summary>(json).ok());
        Ok(summaries.map(|summary| (summary.resource, summary.provider)).collect())
    }

    /// Every action after `cursor`, oldest first; none when the cursor is no number that was given,
    /// or lies too far back.
    pub fn actions_since(&self, cursor: u64) -> Result<Option<Vec<(ChannelId, ActionLine)>>, StoreError> {
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

    /// The sessions that these channels are or belong to. One that is damaged is left out.
    pub fn sessions_of(
        &self,
        channels: impl Iterator<Item = ChannelId>,
    ) -> Result<Vec<FoundSession>, StoreError> {
        let snapshot = self.connection.unchecked_transaction()?;
        let mut of_chat = snapshot.prepare_cached("SELECT session FROM chats WHERE key = ?1")?;
        let mut keys = BTreeSet::new();
        for channel in channels.collect::<BTreeSet<_>>() {
            keys.extend(channel.session_of_key());
            if let Some(ChatKey(chat)) = channel.chat() {
                let session = of_chat.query_row(params![signed(chat)], |row| row.get(0)).optional()?;
                keys.extend(session.map(|key| SessionKey(unsigned(key))));
            }
        }
        let mut sessions = Vec::with_capacity(keys.len());
        for key in keys {
            let read = rows::session(&snapshot, key).and_then(|row| Ok((row, trash::has(&snapshot, key)?)));
            match read {
                Ok((row, is_removed)) => sessions.push(FoundSession { key, row, is_removed }),
                Err(StoreError::Damaged(what)) => tracing::error!(what, "a row of the store is damaged"),
                Err(error) => return Err(error),
            }
        }
        Ok(sessions)
    }

    /// Returns whether the number was assigned and everything after it is there.
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

/// A session with everything that belongs to it; none when it is not there or in the trash.
fn load_from(
    connection: &Connection,
    key: SessionKey,
    sieve: rows::SieveFn<'_>,
    reading: &mut TextReading,
) -> Result<Option<SavedSession>, StoreError> {
    if trash::has(connection, key)? {
        return Ok(None);
    }
    let trial = trials::of(connection, key)?;
    let deaths = match trial.verdict {
        TrialVerdict::TakeUp => 0,
        TrialVerdict::EndForGood => trial.deaths,
        TrialVerdict::LeaveAlone => return Err(StoreError::LeftAlone(trial.deaths)),
    };
    let saved = rows::whole_session(connection, key, sieve, reading)?;
    Ok(saved.map(|saved| SavedSession { deaths, ..saved }))
}

/// The session that a URI names: its own or that of one of its chats. `trusts_indexes`: what they
/// do not name is not there.
pub(super) fn find(
    connection: &Connection,
    uri: &str,
    trusts_indexes: impl FnOnce() -> Result<bool, StoreError>,
) -> Result<Option<SessionKey>, StoreError> {
    match find_by(connection, uri, "INDEXED BY sessions_by_uri", "INDEXED BY chats_by_uri") {
        Ok(Some(key)) => Ok(Some(key)),
        Ok(None) if trusts_indexes()? => Ok(None),
        Err(error) if !error.is_damage() => Err(error),
        // An index is damaged: without it, it takes longer.
        Ok(None) | Err(_) => find_by_rows(connection, uri),
    }
}

fn find_by_rows(connection: &Connection, uri: &str) -> Result<Option<SessionKey>, StoreError> {
    find_by(connection, uri, "NOT INDEXED", "NOT INDEXED")
}

fn find_by(
    connection: &Connection,
    uri: &str,
    way: &str,
    way_of_chats: &str,
) -> Result<Option<SessionKey>, StoreError> {
    let sql = format!(
        "SELECT key, 1 FROM sessions {way} WHERE uri = ?1 AND removed_at IS NULL
        UNION ALL SELECT c.session, s.key IS NOT NULL FROM chats c {way_of_chats}
            LEFT JOIN sessions s ON s.key = c.session
        WHERE c.uri = ?1 AND s.removed_at IS NULL"
    );
    let found = connection
        .prepare_cached(&sql)?
        .query_row(params![uri], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    match found {
        None => Ok(None),
        Some((key, true)) => Ok(Some(SessionKey(unsigned(key)))),
        Some((_, false)) => Err(StoreError::Damaged(format!("the session of the chat {uri}"))),
    }
}

/// Returns the date and key behind which a page of the list begins.
fn begin_of(page: &Page) -> (&str, u64) {
    match &page.after {
        Some(place) => (&place.modified_at, place.key.0),
        // Behind every date.
        None => ("~", u64::MAX),
    }
}

/// A page of the list, found by its index; none when that has led astray.
fn list_by_time(connection: &Connection, page: &Page) -> Result<Option<Listed>, StoreError> {
    let sql = "SELECT key, modified_at FROM sessions INDEXED BY sessions_by_time
        WHERE removed_at IS NULL AND (modified_at, key) < (?1, ?2)
        ORDER BY modified_at DESC, key DESC LIMIT ?3";
    let (modified_at, key) = begin_of(page);
    let limit = i64::try_from(page.limit.saturating_add(1)).unwrap_or(-1);
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_map(params![modified_at, signed(key), limit], |row| {
        let modified_at = String::from_utf8_lossy(row.get_ref(1)?.as_bytes().unwrap_or_default());
        Ok(ListPosition { modified_at: modified_at.into_owned(), key: SessionKey(unsigned(row.get(0)?)) })
    });
    let places = found.and_then(|rows| rows.collect::<Result<Vec<_>, _>>());
    let places = places.map_err(damaged_if(|| "the list of sessions".to_owned()))?;
    page_of(connection, page, places, true)
}

/// A page of the list where the index is damaged: of everything that is named anywhere.
fn list_what_is_named(connection: &Connection, page: &Page) -> Result<Listed, StoreError> {
    let (modified_at, key) = begin_of(page);
    let named = indexes::named(connection)?
        .into_iter()
        .filter(|it| it.removed_at.is_none() && (it.modified_at.as_str(), it.key.0) < (modified_at, key));
    let places = named.map(|it| ListPosition { modified_at: it.modified_at, key: it.key }).collect();
    Ok(page_of(connection, page, places, false)?.unwrap_or_default())
}

/// Returns the page of the sessions at these places. `by_index`: none if a row says something else
/// than its place, or is missing.
fn page_of(
    connection: &Connection,
    page: &Page,
    places: Vec<ListPosition>,
    by_index: bool,
) -> Result<Option<Listed>, StoreError> {
    let mut listed = Listed::default();
    for place in places {
        if listed.sessions.len() == page.limit {
            listed.next = listed.sessions.last().map(|(place, _)| place.clone());
            break;
        }
        let summary = match rows::summary(connection, place.key) {
            Ok(Some(summary)) if !by_index || summary.modified_at == place.modified_at => {
                as_listed(connection, place.key, summary)?
            }
            Ok(_) if by_index => return Ok(None),
            Ok(_) | Err(StoreError::Damaged(_)) => damaged_summary(connection, place.key, &place.modified_at),
            Err(error) => return Err(error),
        };
        listed.sessions.push((place, summary));
    }
    Ok(Some(listed))
}

/// A session's summary, which says so if it is left alone.
fn as_listed(connection: &Connection, key: SessionKey, summary: rows::Summary) -> Result<Bytes, StoreError> {
    let is_left_alone = trials::of(connection, key)?.verdict == TrialVerdict::LeaveAlone;
    Ok(if is_left_alone { summary_of_abandoned_session(&summary.json) } else { summary.json })
}

/// Every session with the time of its removal and its summary: the listed ones, newest first, then
/// those in the trash.
pub(super) fn list_all(connection: &Connection) -> Result<Vec<(SessionKey, Option<i64>, Bytes)>, StoreError> {
    // A time before 1970 says that it is being removed for good.
    let named = indexes::named(connection)?.into_iter().filter(|it| it.removed_at.unwrap_or(0) >= 0);
    let mut all = Vec::new();
    for indexes::NamedSession { key, removed_at, modified_at } in named {
        let summary = match rows::summary(connection, key) {
            Ok(Some(summary)) => summary.json,
            Ok(None) | Err(StoreError::Damaged(_)) => damaged_summary(connection, key, &modified_at),
            Err(error) => return Err(error),
        };
        all.push((key, removed_at, summary));
    }
    Ok(all)
}

fn damaged_summary(connection: &Connection, key: SessionKey, modified_at: &str) -> Bytes {
    let uri = rows::uri_of(connection, key);
    tracing::error!(uri, key = key.0, "the row of a session is damaged: the list says so");
    summary_of_damaged_session(uri, modified_at)
}
