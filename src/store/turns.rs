//! The completed turns of chats.
//!
//! Owns: their rows, which are small, and their texts, which are apart from them: looking for a
//! turn reads no other one. Chats that began as others did share texts with them; a text goes with
//! the last turn that has it (`use_counts`), and what is large in it is kept once (`contents`).
//! Never: knows what is in a turn. The text that a damaged row names stays.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::types::ValueRef;
use rusqlite::{params, Connection, Row};

use super::compress::compressed;
use super::contents;
use super::errors::{damaged_if, StoreError};
use super::rows::{signed, sum, unsigned, PURE};
use super::texts::{TextName, Texts};
use super::use_counts::{use_all_once_more, use_once_less, uses};
use crate::host::effects::ChatKey;
use crate::state::history::CompletedTurn;
use crate::state::texts::{TurnFacts, TurnText, WeakTurnText};
use crate::wire::rpc::to_json;

const BY_PLACE: &str = "INDEXED BY turns_by_place";

/// Columns of a row, as [`TurnRow::read`] reads it.
const COLUMNS: &str = "place, id, text, bytes, text_sum, sum, facts, content_bytes";

/// A turn's row.
pub(super) struct TurnRow {
    pub(super) place: u64,
    id: String,
    text: TextName,
    /// Facts about the turn that are known without its text.
    facts: Option<TurnFacts>,
    /// Size of the contents of its text, in bytes.
    content_bytes: u64,
    is_sound: bool,
}

impl TurnRow {
    fn read(chat: ChatKey, row: &Row<'_>) -> rusqlite::Result<Self> {
        let (place, id): (u64, String) = (unsigned(row.get(0)?), row.get(1)?);
        let text = TextName { key: row.get(2)?, bytes: unsigned(row.get(3)?), sum: row.get(4)? };
        let is_sound = row_sum(chat, place, &id, text) == row.get::<_, u32>(5)?;
        let content_bytes = row.get(7).map(unsigned).unwrap_or_default();
        Ok(Self { place, id, text, facts: facts_of(row.get_ref(6)?), content_bytes, is_sound })
    }
}

impl TextName {
    /// Returns whether this is the text that was written under it.
    fn is_of(self, text: &[u8]) -> bool {
        text.len() as u64 == self.bytes && sum(&[text]) == self.sum
    }
}

fn row_sum(chat: ChatKey, place: u64, id: &str, text: TextName) -> u32 {
    sum(&[
        &chat.0.to_le_bytes(),
        &place.to_le_bytes(),
        id.as_bytes(),
        &text.key.to_le_bytes(),
        &text.bytes.to_le_bytes(),
        &text.sum.to_le_bytes(),
    ])
}

/// Has statements call the checksum of a row `turn_sum`: of its chat, place, id, and the key, size
/// and sum of its text.
pub(super) fn register_functions(connection: &Connection) -> rusqlite::Result<()> {
    connection.create_scalar_function("turn_sum", 6, PURE, |row| {
        let name = TextName { key: row.get(3)?, bytes: unsigned(row.get(4)?), sum: row.get(5)? };
        let id = row.get_raw(2).as_str().map_err(rusqlite::Error::from)?;
        Ok(row_sum(ChatKey(unsigned(row.get(0)?)), unsigned(row.get(1)?), id, name))
    })
}

/// Facts as their column has them: their checksum, and behind it JSON text.
fn kept_facts(facts: &TurnFacts) -> Vec<u8> {
    let json = to_json(facts);
    [&sum(&[&json]).to_le_bytes()[..], &json].concat()
}

/// Parses stored facts; `None` if there are none or they are damaged, which shows when the text is
/// read.
fn facts_of(kept: ValueRef<'_>) -> Option<TurnFacts> {
    let (expected, json) = kept.as_blob().ok()?.split_first_chunk::<4>()?;
    if sum(&[json]).to_le_bytes() != *expected {
        return None;
    }
    // Most turns have none, and a chat may have many turns.
    if json == b"{}" {
        return Some(TurnFacts::default());
    }
    serde_json::from_slice(json).ok()
}

/// Keeps a completed turn. Returns under which name its text is found.
pub(super) fn put(
    connection: &Connection,
    chat: ChatKey,
    place: u64,
    turn: &CompletedTurn,
) -> Result<TextName, StoreError> {
    let (text, facts) = (turn.text(), Some(turn.facts().clone()));
    cut_from_to(connection, chat, place, place)?;
    let (kept, content_bytes) = contents::keep(connection, &text)?;
    let text = put_text(connection, &text, &kept)?;
    let id = turn.id().to_owned();
    put_row(connection, chat, &TurnRow { place, id, text, facts, content_bytes, is_sound: true })?;
    Ok(text)
}

/// Puts a text into the table as version 5 has it.
pub(super) fn put_text_of_version_5(connection: &Connection, text: &[u8]) -> Result<TextName, StoreError> {
    put_text(connection, text, &compressed(text))
}

/// Keeps a text as this.
fn put_text(connection: &Connection, text: &[u8], kept: &[u8]) -> Result<TextName, StoreError> {
    connection.prepare_cached("INSERT INTO texts (text) VALUES (?1)")?.execute(params![kept])?;
    Ok(TextName { key: connection.last_insert_rowid(), bytes: text.len() as u64, sum: sum(&[text]) })
}

fn put_row(connection: &Connection, chat: ChatKey, row: &TurnRow) -> Result<(), StoreError> {
    let sql = "INSERT INTO turns (chat, place, id, text, bytes, text_sum, sum, facts, content_bytes)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    connection.prepare_cached(sql)?.execute(params![
        signed(chat.0),
        signed(row.place),
        row.id,
        row.text.key,
        signed(row.text.bytes),
        row.text.sum,
        row_sum(chat, row.place, &row.id, row.text),
        row.facts.as_ref().map(kept_facts),
        signed(row.content_bytes),
    ])?;
    Ok(())
}

/// Puts a turn's row into the table as version 5 has it. One that was damaged stays so.
pub(super) fn put_row_of_version_5(
    connection: &Connection,
    chat: ChatKey,
    place: u64,
    id: &str,
    text: TextName,
    is_sound: bool,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO turns (chat, place, id, text, bytes, text_sum, sum)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let sum = row_sum(chat, place, id, text);
    connection.prepare_cached(sql)?.execute(params![
        signed(chat.0),
        signed(place),
        id,
        text.key,
        signed(text.bytes),
        text.sum,
        if is_sound { sum } else { sum.wrapping_add(1) },
    ])?;
    Ok(())
}

/// Has a chat have the completed turns that another one has at these places. A row that was damaged
/// stays so, and one that cannot be read is missed where it should be.
pub(super) fn share(
    connection: &Connection,
    from: ChatKey,
    to: ChatKey,
    places: &Range<u64>,
) -> Result<(), StoreError> {
    if let Some(last) = places.clone().last() {
        cut_from_to(connection, to, places.start, last)?;
    }
    // The database copies them by itself: there may be very many.
    let copy = "INSERT INTO turns (chat, place, id, text, bytes, text_sum, sum, facts, content_bytes)
        SELECT ?2, place, id, text, bytes, text_sum,
            CASE WHEN sum = turn_sum(?1, place, id, text, bytes, text_sum)
                THEN turn_sum(?2, place, id, text, bytes, text_sum)
                ELSE turn_sum(?2, place, id, text, bytes, text_sum) + 1 & 0xffffffff END,
            facts, content_bytes
        FROM turns INDEXED BY turns_by_place
        WHERE chat = ?1 AND place >= ?3 AND place < ?4 AND typeof(id) = 'text' AND typeof(text) = 'integer'
            AND typeof(bytes) = 'integer' AND text_sum BETWEEN 0 AND 0xffffffff
        ORDER BY place";
    let (start, end) = (signed(places.start), signed(places.end));
    connection
        .prepare_cached(copy)?
        .execute(params![signed(from.0), signed(to.0), start, end])
        .map_err(damaged_if(|| format!("the turns of the chat {}", from.0)))?;
    let shared = "SELECT text FROM turns INDEXED BY turns_by_place
        WHERE chat = ?1 AND place >= ?2 AND place < ?3
            AND sum = turn_sum(chat, place, id, text, bytes, text_sum)";
    use_all_once_more(connection, shared, params![signed(to.0), start, end])
}

/// Removes a chat's completed turns from this place on.
pub(super) fn cut(connection: &Connection, chat: ChatKey, keep: u64) -> Result<(), StoreError> {
    cut_from_to(connection, chat, keep, u64::MAX)
}

fn cut_from_to(connection: &Connection, chat: ChatKey, first: u64, last: u64) -> Result<(), StoreError> {
    let range = params![signed(chat.0), signed(first), signed(last)];
    let sql = format!("SELECT {COLUMNS} FROM turns WHERE chat = ?1 AND place BETWEEN ?2 AND ?3");
    let mut texts = Vec::new();
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(range)?;
    while let Some(row) = rows.next()? {
        // What a damaged row calls its text may be that of another turn.
        texts.extend(TurnRow::read(chat, row).ok().filter(|row| row.is_sound));
    }
    for TurnRow { text, content_bytes, .. } in texts {
        use_once_less(connection, text.key, content_bytes > 0)?;
    }
    connection
        .prepare_cached("DELETE FROM turns WHERE chat = ?1 AND place BETWEEN ?2 AND ?3")?
        .execute(range)?;
    Ok(())
}

/// Returns the number of completed turns of a chat, by their places.
pub(super) fn there(connection: &Connection, chat: ChatKey) -> Result<u64, StoreError> {
    let sql = "SELECT ifnull(max(place) + 1, 0) FROM turns WHERE chat = ?1";
    let turns = connection.prepare_cached(sql)?.query_row(params![signed(chat.0)], |row| row.get(0))?;
    Ok(unsigned(turns))
}

/// Returns the number and size in bytes of a chat's turns with a text, as far as this is known
/// without reading one.
pub(super) fn with_text(connection: &Connection, chat: ChatKey) -> Result<(u64, u64), StoreError> {
    let sql = "SELECT count(*), ifnull(sum(length(x.text) + ifnull(t.content_bytes, 0)), 0)
        FROM turns t JOIN texts x ON x.key = t.text
        WHERE t.chat = ?1 AND t.place >= 0 AND typeof(x.text) = 'blob'";
    let whole = connection
        .prepare_cached(sql)?
        .query_row(params![signed(chat.0)], |row| Ok((unsigned(row.get(0)?), unsigned(row.get(1)?))))
        .map_err(damaged_if(|| format!("the turns of the chat {}", chat.0)))?;
    Ok(whole)
}

/// The rows of so many of a chat's last turns, the last one first: their places, and how large they
/// are.
pub(super) fn last(
    connection: &Connection,
    chat: ChatKey,
    count: u32,
) -> Result<Vec<(u64, u64)>, StoreError> {
    let sql = "SELECT place, bytes FROM turns WHERE chat = ?1 ORDER BY place DESC LIMIT ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params![signed(chat.0), count], |row| {
        Ok((unsigned(row.get(0)?), row.get(1).map(unsigned).unwrap_or(u64::MAX)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Treatment of the texts of turns that are read.
pub(super) enum TextReading {
    /// They are read, too. Those that several turns have are in memory once: these are those that
    /// somebody has.
    Whole(HashMap<i64, WeakTurnText>),
    /// Each is read when somebody needs it.
    Later(Arc<Texts>),
}

impl TextReading {
    /// They are read.
    pub(super) fn whole() -> Self {
        Self::Whole(HashMap::new())
    }
}

/// A chat's completed turns, oldest first; each of them may be damaged or missing. `count`: how
/// many there must be. `name`: of what they are, for people.
pub(super) fn read<'a>(
    connection: &'a Connection,
    chat: ChatKey,
    count: u64,
    name: &'a str,
    reading: &'a mut TextReading,
) -> impl Iterator<Item = Result<CompletedTurn, StoreError>> + 'a {
    let all = 0..u64::MAX;
    let mut found = rows(connection, chat, &all, BY_PLACE).unwrap_or_default();
    if !(found.iter().map(|row| row.place).eq(0..count) && found.iter().all(|row| row.is_sound)) {
        // The index may be damaged: without it, it takes longer.
        found = rows(connection, chat, &all, "NOT INDEXED").unwrap_or(found);
    }
    let places = 0..count.max(found.last().map_or(0, |last| last.place + 1));
    let mut found = found.into_iter().peekable();
    places.map(move |place| {
        let row = found.next_if(|row| row.place == place).filter(|row| row.is_sound && place < count);
        let damaged = || format!("turn {} of {name}", place + 1);
        let turn = row.map(|row| turn_of(connection, &row, reading).map_err(|error| error.on(damaged)));
        turn.transpose()?.flatten().ok_or_else(|| StoreError::Damaged(damaged()))
    })
}

/// The rows of a chat's turns at these places, oldest first; without those that cannot be read.
fn rows(
    connection: &Connection,
    chat: ChatKey,
    places: &Range<u64>,
    way: &str,
) -> Result<Vec<TurnRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM turns {way}
        WHERE chat = ?1 AND place >= ?2 AND place < ?3 ORDER BY place"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![signed(chat.0), signed(places.start), signed(places.end)])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(damaged_if(|| format!("the turns of the chat {}", chat.0)))? {
        // One that is damaged is missed where it should be.
        found.extend(TurnRow::read(chat, row).ok());
    }
    Ok(found)
}

/// The turn of a row; none when its text is read and not what was written.
fn turn_of(
    connection: &Connection,
    row: &TurnRow,
    reading: &mut TextReading,
) -> Result<Option<CompletedTurn>, StoreError> {
    let text = match reading {
        TextReading::Later(texts) => texts.named(row.text, row.facts.clone()),
        TextReading::Whole(shared) => match shared.get(&row.text.key).and_then(WeakTurnText::upgrade) {
            Some(text) => text,
            None => {
                let Some(text) = text_of(connection, row.text)? else { return Ok(None) };
                let text = TurnText::here(text);
                if uses(connection, row.text.key)?.is_some() {
                    shared.insert(row.text.key, text.downgrade());
                }
                text
            }
        },
    };
    Ok(Some(CompletedTurn::at(&row.id, text)))
}

/// A text; none when it is not what was written.
pub(super) fn text_of(connection: &Connection, name: TextName) -> Result<Option<Bytes>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT text FROM texts WHERE key = ?1")?;
    let mut rows = statement.query(params![name.key])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    // As long as this row is open, what is read is of the same moment: its contents are still
    // there.
    let kept = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
    let text = contents::whole(connection, kept, name.bytes)?;
    Ok(text.filter(|text| name.is_of(text)).map(Bytes::from))
}
