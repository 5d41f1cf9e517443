//! How many turns have a text, and how many texts a content.
//!
//! Owns: counting that, and removing what nobody has any more.
//! Never: removes what a row names that is damaged, or of which it is not known how many have it.

use std::collections::HashMap;

use rusqlite::{params, Connection, OptionalExtension};

use super::contents;
use super::errors::{damaged_if, StoreError};
use super::rows::sum;

/// Lets go of a text, and of what is in it, if nobody else has it.
pub(super) fn use_once_less(connection: &Connection, text: i64) -> Result<(), StoreError> {
    if let Some(shared) = uses(connection, text)? {
        return put_uses(connection, text, shared.but_one());
    }
    let contents = connection
        .prepare_cached("SELECT text FROM texts WHERE key = ?1")?
        .query_row(params![text], |row| {
            Ok(row.get_ref(0)?.as_blob().map(contents::named_in).unwrap_or_default())
        })
        .optional();
    // The contents of a text that is damaged stay.
    let contents = match contents.map_err(damaged_if(|| format!("the text {text}"))) {
        Err(error) if !error.is_damage() => return Err(error),
        contents => contents.ok().flatten().unwrap_or_default(),
    };
    connection.prepare_cached("DELETE FROM texts WHERE key = ?1")?.execute(params![text])?;
    for content in contents {
        match uses(connection, content)? {
            Some(shared) => put_uses(connection, content, shared.but_one())?,
            None => {
                connection.prepare_cached("DELETE FROM texts WHERE key = ?1")?.execute(params![content])?;
                contents::forget(connection, content)?;
            }
        }
    }
    Ok(())
}

/// One more has a text, or a content of texts.
pub(super) fn use_once_more(connection: &Connection, text: i64) -> Result<(), StoreError> {
    let uses = uses(connection, text)?;
    put_uses(connection, text, uses.unwrap_or(TextUses::KNOWN_ONE).and_one())
}

/// How many turns have a text that several have had, or how many texts a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextUses(i64);

impl TextUses {
    const KNOWN_ONE: Self = Self(1);
    /// Its row is damaged: the text stays for good.
    const UNKNOWN: Self = Self(i64::MAX);

    fn and_one(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    fn but_one(self) -> Self {
        if self == Self::UNKNOWN {
            self
        } else {
            Self(self.0 - 1)
        }
    }

    fn sum(self, text: i64) -> u32 {
        sum(&[&text.to_le_bytes(), &self.0.to_le_bytes()])
    }
}

/// How many turns have this text; none when it is one, which goes without saying.
pub(super) fn uses(connection: &Connection, text: i64) -> Result<Option<TextUses>, StoreError> {
    let found = connection
        .prepare_cached("SELECT uses, sum FROM shared_texts WHERE key = ?1")?
        .query_row(params![text], |row| Ok((TextUses(row.get(0)?), row.get::<_, u32>(1)?)))
        .optional();
    match found.map_err(damaged_if(|| format!("the number of the turns that have the text {text}"))) {
        Ok(found) => {
            Ok(found.map(|(uses, sum)| if uses.sum(text) == sum { uses } else { TextUses::UNKNOWN }))
        }
        Err(error) if error.is_damage() => Ok(Some(TextUses::UNKNOWN)),
        Err(error) => Err(error),
    }
}

fn put_uses(connection: &Connection, text: i64, uses: TextUses) -> Result<(), StoreError> {
    if uses.0 <= 1 {
        connection.prepare_cached("DELETE FROM shared_texts WHERE key = ?1")?.execute(params![text])?;
        return Ok(());
    }
    connection
        .prepare_cached("INSERT OR REPLACE INTO shared_texts VALUES (?1, ?2, ?3)")?
        .execute(params![text, uses.0, uses.sum(text)])?;
    Ok(())
}

/// Which texts several turns have, counted anew. To be called when their table is made again.
pub(super) fn count_uses(connection: &Connection) -> Result<(), StoreError> {
    let sql = "SELECT text, count(*) FROM turns NOT INDEXED GROUP BY text HAVING count(*) > 1";
    let mut statement = connection.prepare(sql)?;
    let mut shared = statement.query([])?;
    while let Some(row) = shared.next()? {
        put_uses(connection, row.get(0)?, TextUses(row.get(1)?))?;
    }
    let mut contents: HashMap<i64, i64> = HashMap::new();
    contents::each_frame(connection, |kept| {
        contents::named_in(kept).into_iter().for_each(|key| *contents.entry(key).or_default() += 1);
    })?;
    contents.into_iter().try_for_each(|(key, uses)| put_uses(connection, key, TextUses(uses)))
}
