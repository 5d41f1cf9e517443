//! Reads from the database, for a host and for `ahp-sidecar sessions`.
//!
//! Owns: a separate connection, which reads related rows from one snapshot, and placeholders for
//! damaged rows.
//! Never: writes, or fails as a whole because of one damaged row.

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
use super::{clients, conversations, indexes, schema, trash};
use crate::host::effects::{
    summary_of_abandoned_session, summary_of_damaged_session, ActionLine, ChannelId, ChatKey, ChatRow,
    KnownConversation, ListPosition, Listed, Page, SavedSession, SessionKey, SessionRow,
};
use crate::host::log::ReplayWindow;

/// A read-only connection to the database.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    window: ReplayWindow,
    /// Result of the check that the indexes name every row, empty until it is done; shared by the
    /// readers of a host.
    indexes_are_complete: Arc<OnceLock<bool>>,
    /// Source of turn texts that are read on demand; `None` if texts are read with their sessions.
    texts: Option<Arc<Texts>>,
}

/// Session of a channel.
#[derive(Debug)]
pub struct FoundSession {
    /// Key in the database.
    pub key: SessionKey,
    /// Row; `None` if the session was purged.
    pub row: Option<SessionRow>,
    /// Set if the session is in the trash.
    pub is_removed: bool,
}

impl Reader {
    /// Opens a second connection to the database of a [`Writer`](super::sqlite::Writer).
    pub fn open(path: &Path, window: ReplayWindow) -> Result<Self, StoreError> {
        let connection = schema::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        schema::detect_damage(&connection)?;
        schema::open_files(&connection)?;
        Ok(Self { connection, window, indexes_are_complete: Arc::default(), texts: None })
    }

    /// Switches to reading the texts of turns on demand.
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

    /// Returns the sessions with a turn that ran when their process ended, except unreadable ones
    /// and those that are not restored any more. Each has the number of consecutive processes that
    /// ended while it was restored; those with the fewest come first.
    pub fn interrupted(&self) -> Result<Vec<(u32, SessionKey)>, StoreError> {
        // Without the hint, SQLite may scan all chats.
        let sql = "SELECT key FROM chats INDEXED BY chats_running WHERE running";
        let mut statement = self.connection.prepare(sql)?;
        let chats: Vec<ChatKey> =
            statement.query_map([], |row| Ok(ChatKey(unsigned(row.get(0)?))))?.collect::<Result<_, _>>()?;
        // Rows are read one by one, so that a damaged one does not hide the others.
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

    /// Returns the session of a URI, which may also be the URI of one of its chats.
    pub fn find(&self, uri: &str) -> Result<Option<SessionKey>, StoreError> {
        find(&self.connection, uri, || self.trusts_indexes())
    }

    /// Returns the session of a URI (its own or that of one of its chats) with all of its data.
    /// `None` if there is none, or `is_known` returns true for it.
    pub fn look_up(
        &self,
        uri: &str,
        is_known: impl Fn(SessionKey) -> bool,
    ) -> Result<Option<SavedSession>, StoreError> {
        // One snapshot for the lookup and the read.
        let snapshot = self.connection.unchecked_transaction()?;
        let damaged = || StoreError::Damaged(format!("the session of {uri}"));
        let Some(key) = find(&snapshot, uri, || self.trusts_indexes())?.filter(|key| !is_known(*key)) else {
            return Ok(None);
        };
        let saved = load_from(&snapshot, key, &mut |_, _| true, &mut self.reading())?.ok_or_else(damaged)?;
        if saved.row.uri == uri || saved.chats.iter().any(|chat| chat.row.uri == uri) {
            return Ok(Some(saved));
        }
        // The index is damaged: it led to another session.
        let meant = find_by_rows(&snapshot, uri)?.filter(|key| !is_known(*key));
        meant
            .map(|key| load_from(&snapshot, key, &mut |_, _| true, &mut self.reading())?.ok_or_else(damaged))
            .transpose()
    }

    /// Returns whether the indexes name every row. The check reads every row, so it is made once.
    pub fn trusts_indexes(&self) -> Result<bool, StoreError> {
        indexes::are_complete_once(&self.connection, &self.indexes_are_complete)
    }

    /// Returns the protocol version that a client spoke last.
    pub fn client_version(&self, client: &str) -> Result<Option<String>, StoreError> {
        clients::get(&self.connection, client)
    }

    /// Returns a session with all of its data.
    pub fn load(&self, key: SessionKey) -> Result<Option<SavedSession>, StoreError> {
        self.load_sifted(key, |_, _| true)
    }

    /// Returns a session with all of its data, except logged actions that `is_needed` rejects.
    ///
    /// # Errors
    /// When it cannot be read, something in it is damaged, or it is not restored any more.
    pub fn load_sifted(
        &self,
        key: SessionKey,
        mut is_needed: impl FnMut(&ChatRow, &Bytes) -> bool,
    ) -> Result<Option<SavedSession>, StoreError> {
        // One snapshot for all rows.
        let snapshot = self.connection.unchecked_transaction()?;
        load_from(&snapshot, key, &mut is_needed, &mut self.reading())
    }

    /// Returns a page of the list of sessions, with placeholders for damaged ones.
    pub fn list(&self, page: &Page) -> Result<Listed, StoreError> {
        self.trusts_indexes()?;
        self.list_at_once(page)
    }

    /// Returns a page of the list without the check of the indexes. Call [`Reader::trusts_indexes`]
    /// afterwards.
    pub fn list_at_once(&self, page: &Page) -> Result<Listed, StoreError> {
        let snapshot = self.connection.unchecked_transaction()?;
        let is_damaged = self.indexes_are_complete.get() == Some(&false);
        let listed = if is_damaged { Ok(None) } else { list_by_time(&snapshot, page) };
        match listed {
            // The index is damaged. The list without it takes longer.
            Err(error) if !error.is_damage() => Err(error),
            Ok(Some(listed)) => Ok(listed),
            Ok(None) | Err(_) => list_what_is_named(&snapshot, page),
        }
    }

    /// Returns the URIs of all listed sessions with their providers.
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

    /// Returns the agents' conversations that stored sessions go on with.
    pub fn conversations(&self) -> Result<Vec<KnownConversation>, StoreError> {
        conversations::all(&self.connection)
    }

    /// Returns all actions after `cursor`, oldest first; `None` if the cursor was never assigned,
    /// or is beyond the replay window.
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
                // Numbers are skipped only where another process began.
                if action.server_seq != last + 1 && !rows::is_process_start(&snapshot, action.server_seq - 1)?
                {
                    return Err(StoreError::Damaged(format!("the log after the action {last}")));
                }
                last = action.server_seq;
                actions.push((target, action));
            }
        }
        Ok(Some(actions))
    }

    /// Returns the sessions of these channels. Damaged ones are left out.
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
                let session = of_chat.query_row(params![signed(chat)], |row| row.get(0)).optional();
                match session.map_err(damaged_if(|| format!("the chat {chat}"))) {
                    Ok(session) => keys.extend(session.map(|key| SessionKey(unsigned(key)))),
                    Err(StoreError::Damaged(what)) => tracing::error!(what, "a row of the store is damaged"),
                    Err(error) => return Err(error),
                }
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

    /// Returns whether the number was assigned and all later actions are stored.
    fn knows(&self, cursor: u64) -> Result<bool, StoreError> {
        let pruned = rows::number(&self.connection, "pruned")?.unwrap_or(0);
        if cursor <= pruned {
            return Ok(cursor == pruned);
        }
        let sql =
            "SELECT ifnull((SELECT first FROM actions WHERE last >= ?1 ORDER BY last LIMIT 1) <= ?1, 0)";
        let given = self.connection.query_row(sql, params![signed(cursor)], |row| row.get(0))?;
        Ok(given || rows::is_process_start(&self.connection, cursor)?)
    }
}

/// Returns a session with all of its data; `None` if it does not exist or is in the trash.
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
        TrialVerdict::TakeUp | TrialVerdict::Unreadable => 0,
        TrialVerdict::EndForGood => trial.deaths,
        TrialVerdict::LeaveAlone => return Err(StoreError::LeftAlone(trial.deaths)),
    };
    let saved = rows::whole_session(connection, key, sieve, reading)?;
    Ok(saved.map(|saved| SavedSession { deaths, ..saved }))
}

/// Returns the session of a URI, its own or that of one of its chats. If `trusts_indexes` returns
/// true, a row that the indexes do not name does not exist.
pub(super) fn find(
    connection: &Connection,
    uri: &str,
    trusts_indexes: impl FnOnce() -> Result<bool, StoreError>,
) -> Result<Option<SessionKey>, StoreError> {
    match find_by(connection, uri, "INDEXED BY sessions_by_uri", "INDEXED BY chats_by_uri") {
        Ok(Some(key)) => Ok(Some(key)),
        Ok(None) if trusts_indexes()? => Ok(None),
        Err(error) if !error.is_damage() => Err(error),
        // An index is damaged. The lookup without it takes longer.
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

fn begin_of(page: &Page) -> (&str, u64) {
    match &page.after {
        Some(place) => (&place.modified_at, place.key.0),
        // Sorts after every date.
        None => ("~", u64::MAX),
    }
}

/// Returns a page of the list, read by its index; `None` if the index is inconsistent with the
/// rows.
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

/// Returns a page of the list from all tables and indexes that name a session, if the list's index
/// is damaged.
fn list_what_is_named(connection: &Connection, page: &Page) -> Result<Listed, StoreError> {
    let (modified_at, key) = begin_of(page);
    let named = indexes::named(connection)?
        .into_iter()
        .filter(|it| it.removed_at.is_none() && (it.modified_at.as_str(), it.key.0) < (modified_at, key));
    let places = named.map(|it| ListPosition { modified_at: it.modified_at, key: it.key }).collect();
    Ok(page_of(connection, page, places, false)?.unwrap_or_default())
}

/// Returns the page of the sessions at these positions. With `by_index`, `None` if a row is missing
/// or differs from its position.
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

/// Returns a session's summary, which says so if the session cannot be restored, or is not restored
/// any more.
fn as_listed(connection: &Connection, key: SessionKey, summary: rows::Summary) -> Result<Bytes, StoreError> {
    let verdict = trials::of(connection, key)?.verdict;
    let has_failed = matches!(verdict, TrialVerdict::LeaveAlone | TrialVerdict::Unreadable);
    Ok(if has_failed { summary_of_abandoned_session(&summary.json) } else { summary.json })
}

/// Returns all sessions with the time of their removal and their summary: listed ones first, newest
/// first, then those in the trash.
pub(super) fn list_all(connection: &Connection) -> Result<Vec<(SessionKey, Option<i64>, Bytes)>, StoreError> {
    // A time before 1970 marks a session that is being purged.
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
    tracing::error!(
        uri,
        key = key.0,
        "the row of a session is damaged: the list of sessions has a placeholder for it"
    );
    summary_of_damaged_session(uri, modified_at)
}
