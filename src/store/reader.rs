//! What a host and `sessions` read back from the database.
//!
//! Owns: a connection of its own, on which everything that belongs together is read from one snapshot, and what
//! is told of rows that are damaged.
//! Never: writes, or fails as a whole because of one row where the others can be told.

use std::path::Path;

use bytes::Bytes;
use rusqlite::{params, Connection, OpenFlags, OptionalExtension};

use super::rows::{self, signed, unsigned};
use super::sqlite::StoreError;
use super::trials::{self, Verdict};
use super::{clients, schema, trash, Listed};
use crate::host::effects::{ActionLine, ChatKey, ChatRow, Page, Place, SavedSession, SessionKey, Target};
use crate::host::log::Window;

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
        let connection = schema::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        schema::be_careful(&connection)?;
        // Opens every file now, so that reading goes on when they are moved away.
        connection.query_row("SELECT count(*) FROM sessions WHERE key = 0", [], |_| Ok(()))?;
        Ok(Self { connection, window })
    }

    /// The sessions with a turn that ran when their process ended, as far as they can be told, but for those
    /// that are left alone. Each with how many processes in a row have ended while it was taken up, those with the
    /// fewest first.
    ///
    /// # Errors
    /// When they cannot be looked for.
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
            if trial.verdict != Verdict::LeaveAlone {
                taken_up.push((trial.deaths, session));
            }
        }
        taken_up.sort_unstable();
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
    /// See [`Reader::load_sifted`].
    pub fn load(&self, key: SessionKey) -> Result<Option<SavedSession>, StoreError> {
        self.load_sifted(key, |_, _| true)
    }

    /// A session with everything that belongs to it, but for actions on its chats that are not needed to take them
    /// up.
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
        if trash::has(&snapshot, key)? {
            return Ok(None);
        }
        let trial = trials::of(&snapshot, key)?;
        let deaths = match trial.verdict {
            Verdict::TakeUp => 0,
            Verdict::GiveUp => trial.deaths,
            Verdict::LeaveAlone => return Err(StoreError::LeftAlone(trial.deaths)),
        };
        let saved = rows::whole_session(&snapshot, key, &mut is_needed)?;
        Ok(saved.map(|saved| SavedSession { deaths, ..saved }))
    }

    /// A page of the list of sessions. One that is damaged is listed as that.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn list(&self, page: &Page) -> Result<Listed, StoreError> {
        let snapshot = self.connection.unchecked_transaction()?;
        match list_by(&snapshot, page, "INDEXED BY sessions_by_time") {
            // The index is damaged: without it, it takes longer.
            Err(error) if !error.is_damage() => Err(error),
            Ok(Some(listed)) => Ok(listed),
            Ok(None) | Err(_) => list_by(&snapshot, page, "NOT INDEXED").map(Option::unwrap_or_default),
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
    match find_by(connection, uri, "INDEXED BY sessions_by_uri", "INDEXED BY chats_by_uri") {
        // An index is damaged: without it, it takes longer.
        Err(error) if error.is_damage() => find_by(connection, uri, "NOT INDEXED", "NOT INDEXED"),
        found => found,
    }
}

fn find_by(
    connection: &Connection,
    uri: &str,
    way: &str,
    way_of_chats: &str,
) -> Result<Option<SessionKey>, StoreError> {
    let sql = format!(
        "SELECT key FROM sessions {way} WHERE uri = ?1 AND removed_at IS NULL
        UNION ALL SELECT s.key FROM chats c {way_of_chats} JOIN sessions s ON s.key = c.session
        WHERE c.uri = ?1 AND s.removed_at IS NULL"
    );
    let key = connection.prepare_cached(&sql)?.query_row(params![uri], |row| row.get(0)).optional()?;
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
                if trials::of(connection, key)?.verdict == Verdict::LeaveAlone {
                    trials::summary_of_one_left_alone(&summary.json)
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
    // A time before 1970 says that it is being removed for good.
    let sql = "SELECT key, removed_at, CAST(modified_at AS BLOB) FROM sessions NOT INDEXED
        WHERE ifnull(removed_at, 0) >= 0 ORDER BY removed_at IS NOT NULL, removed_at DESC, modified_at DESC, key DESC";
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
