//! The completed turns of chats.
//!
//! Owns: their rows, which are small, and their texts, which are separate, so that finding a turn
//! reads no other one. Forked chats share texts. A text is removed with the last turn that has it
//! (`use_counts`), and its large parts are stored once (`contents`).
//! Never: interprets a turn, or removes the text that a damaged row names.

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

const COLUMNS: &str = "place, id, text, bytes, text_sum, sum, facts, content_bytes";

pub(super) struct TurnRow {
    pub(super) place: u64,
    id: String,
    text: TextName,
    /// Facts about the turn that are known without its text; `None` if none are stored, or they are
    /// damaged.
    facts: Option<TurnFacts>,
    /// Size of the separately stored contents of its text, in bytes.
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

/// Defines the SQL function `turn_sum`: the checksum of a row with this chat, place, id, and key,
/// size and sum of its text.
pub(super) fn register_functions(connection: &Connection) -> rusqlite::Result<()> {
    connection.create_scalar_function("turn_sum", 6, PURE, |row| {
        let name = TextName { key: row.get(3)?, bytes: unsigned(row.get(4)?), sum: row.get(5)? };
        let id = row.get_raw(2).as_str().map_err(rusqlite::Error::from)?;
        Ok(row_sum(ChatKey(unsigned(row.get(0)?)), unsigned(row.get(1)?), id, name))
    })
}

/// Encodes facts for their column: a checksum, then JSON text.
fn kept_facts(facts: &TurnFacts) -> Vec<u8> {
    let json = to_json(facts);
    [&sum(&[&json]).to_le_bytes()[..], &json].concat()
}

/// Decodes facts; `None` if there are none or they are damaged. Damage shows when the text is read.
fn facts_of(kept: ValueRef<'_>) -> Option<TurnFacts> {
    let (expected, json) = kept.as_blob().ok()?.split_first_chunk::<4>()?;
    if sum(&[json]).to_le_bytes() != *expected {
        return None;
    }
    // A shortcut: most turns have no facts, and a chat may have many turns.
    if json == b"{}" {
        return Some(TurnFacts::default());
    }
    serde_json::from_slice(json).ok()
}

/// Stores a completed turn. Returns the name of its text.
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

pub(super) fn put_text_of_version_5(connection: &Connection, text: &[u8]) -> Result<TextName, StoreError> {
    put_text(connection, text, &compressed(text))
}

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

/// Stores a turn's row in the format of version 5. A damaged row stays damaged.
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

/// Copies the rows of a chat's completed turns at these places to another chat, which shares their
/// texts. A damaged row stays damaged; an unreadable one is missing in the copy.
pub(super) fn share(
    connection: &Connection,
    from: ChatKey,
    to: ChatKey,
    places: &Range<u64>,
) -> Result<(), StoreError> {
    if let Some(last) = places.clone().last() {
        cut_from_to(connection, to, places.start, last)?;
    }
    // One statement copies all rows, since there may be very many.
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

/// Removes a chat's completed turns from the place `keep` on.
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
        // A damaged row may name the text of another turn.
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

/// Returns the number of completed turns of a chat, by their highest place.
pub(super) fn there(connection: &Connection, chat: ChatKey) -> Result<u64, StoreError> {
    let sql = "SELECT ifnull(max(place) + 1, 0) FROM turns WHERE chat = ?1";
    let turns = connection.prepare_cached(sql)?.query_row(params![signed(chat.0)], |row| row.get(0))?;
    Ok(unsigned(turns))
}

/// Returns the number of a chat's turns that have a text, and the size of these texts in bytes,
/// without reading any.
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

/// Returns the places and sizes in bytes of the last `count` turns of a chat, the last one first.
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

/// Mode of reading the texts of turns.
pub(super) enum TextReading {
    /// Texts are read with their turns. The map has the texts in use, so that a text of several
    /// turns is in memory once.
    Whole(HashMap<TextName, WeakTurnText>),
    /// Each text is read on demand.
    Later(Arc<Texts>),
}

impl TextReading {
    pub(super) fn whole() -> Self {
        Self::Whole(HashMap::new())
    }
}

/// Returns the completed turns of a chat, oldest first; each may be damaged or missing. `count` is
/// their expected number, and `name` describes the chat in error messages.
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
        // The index may be damaged. The read without it takes longer.
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

/// Returns the readable rows of a chat's turns at these places, oldest first.
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
        // A damaged row is noticed as missing at its place.
        found.extend(TurnRow::read(chat, row).ok());
    }
    Ok(found)
}

/// Returns the turn of a row; `None` if its text is damaged.
fn turn_of(
    connection: &Connection,
    row: &TurnRow,
    reading: &mut TextReading,
) -> Result<Option<CompletedTurn>, StoreError> {
    let text = match reading {
        TextReading::Later(texts) => texts.named(row.text, row.facts.clone()),
        TextReading::Whole(shared) => match shared.get(&row.text).and_then(WeakTurnText::upgrade) {
            Some(text) => text,
            None => {
                let Some(text) = text_of(connection, row.text)? else { return Ok(None) };
                let text = TurnText::here(text);
                if uses(connection, row.text.key)?.is_some() {
                    shared.insert(row.text, text.downgrade());
                }
                text
            }
        },
    };
    Ok(Some(CompletedTurn::at(&row.id, text)))
}

/// Returns a text; `None` if it is damaged.
pub(super) fn text_of(connection: &Connection, name: TextName) -> Result<Option<Bytes>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT text FROM texts WHERE key = ?1")?;
    let mut rows = statement.query(params![name.key])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    // While this row is open, all reads see one snapshot, so the text's contents still exist.
    let kept = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
    let text = contents::whole(connection, kept, name.bytes)?;
    Ok(text.filter(|text| name.is_of(text)).map(Bytes::from))
}
