//! Use counts: turns per text, and texts per content.
//!
//! Owns: the counts, and removing texts and contents without uses.
//! Never: removes a text that a damaged row names, or whose count is not known.

use std::collections::HashMap;

use rusqlite::{params, Connection, OptionalExtension, ToSql};

use super::contents;
use super::errors::{damaged_if, StoreError};
use super::rows::{sum, PURE};

/// Removes a use of a text. The last use removes the text, and its uses of contents.
pub(super) fn use_once_less(
    connection: &Connection,
    text: i64,
    has_contents: bool,
) -> Result<(), StoreError> {
    if let Some(shared) = uses(connection, text)? {
        return put_uses(connection, text, shared.but_one());
    }
    // A text may be large, so it is read only if it has contents.
    let contents = if has_contents { contents_of(connection, text)? } else { Vec::new() };
    let delete = "DELETE FROM texts WHERE key = ?1";
    connection.prepare_cached(delete)?.execute(params![text])?;
    for content in contents {
        match uses(connection, content)? {
            Some(shared) => put_uses(connection, content, shared.but_one())?,
            None => {
                connection.prepare_cached(delete)?.execute(params![content])?;
                contents::forget(connection, content)?;
            }
        }
    }
    Ok(())
}

/// Returns the contents of a text; none if it is damaged, so that they stay.
fn contents_of(connection: &Connection, text: i64) -> Result<Vec<i64>, StoreError> {
    let contents = connection
        .prepare_cached("SELECT text FROM texts WHERE key = ?1")?
        .query_row(params![text], |row| {
            Ok(row.get_ref(0)?.as_blob().map(contents::named_in).unwrap_or_default())
        })
        .optional();
    match contents.map_err(damaged_if(|| format!("the text {text}"))) {
        Err(error) if !error.is_damage() => Err(error),
        contents => Ok(contents.ok().flatten().unwrap_or_default()),
    }
}

pub(super) fn use_once_more(connection: &Connection, text: i64) -> Result<(), StoreError> {
    let uses = uses(connection, text)?;
    put_uses(connection, text, uses.unwrap_or(TextUses::KNOWN_ONE).and_one())
}

/// Adds a use of each text that this statement returns.
pub(super) fn use_all_once_more(
    connection: &Connection,
    texts: &str,
    parameters: &[&dyn ToSql],
) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO shared_texts SELECT text, 2, uses_sum(text, 2) FROM ({texts}) WHERE true
        ON CONFLICT (key) DO UPDATE
        SET uses = one_more(key, uses, sum), sum = uses_sum(key, one_more(key, uses, sum))"
    );
    connection
        .prepare_cached(&sql)?
        .execute(parameters)
        .map_err(damaged_if(|| "the table of use counts".to_owned()))?;
    Ok(())
}

/// Defines the SQL functions `uses_sum`, the checksum of a use count, and `one_more`, the
/// incremented count.
pub(super) fn register_functions(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .create_scalar_function("uses_sum", 2, PURE, |row| Ok(TextUses(row.get(1)?).sum(row.get(0)?)))?;
    connection.create_scalar_function("one_more", 3, PURE, |row| {
        let uses = row.get(1).map(TextUses).unwrap_or(TextUses::UNKNOWN);
        Ok(uses.checked(row.get(0)?, row.get(2).ok()).and_one().0)
    })
}

/// Number of turns with a text, or of texts with a content; only counts above one are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextUses(i64);

impl TextUses {
    const KNOWN_ONE: Self = Self(1);
    /// Count of a damaged row: the text is never removed.
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

    /// Returns the count, or [`Self::UNKNOWN`] if the checksum differs.
    fn checked(self, text: i64, expected: Option<u32>) -> Self {
        if expected == Some(self.sum(text)) {
            self
        } else {
            Self::UNKNOWN
        }
    }

    fn sum(self, text: i64) -> u32 {
        sum(&[&text.to_le_bytes(), &self.0.to_le_bytes()])
    }
}

/// Returns the stored use count of a text; `None` if it has one use, which is not stored.
pub(super) fn uses(connection: &Connection, text: i64) -> Result<Option<TextUses>, StoreError> {
    let found = connection
        .prepare_cached("SELECT uses, sum FROM shared_texts WHERE key = ?1")?
        .query_row(params![text], |row| Ok((TextUses(row.get(0)?), row.get::<_, u32>(1)?)))
        .optional();
    match found.map_err(damaged_if(|| format!("the use count of the text {text}"))) {
        Ok(found) => Ok(found.map(|(uses, sum)| uses.checked(text, Some(sum)))),
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

/// Recounts the uses of shared texts and contents. Must be called outside a transaction, because it
/// may meet damage.
pub(super) fn count(connection: &Connection) -> Result<Vec<(i64, TextUses)>, StoreError> {
    let sql = "SELECT text, count(*) FROM turns NOT INDEXED GROUP BY text HAVING count(*) > 1";
    let mut statement = connection.prepare(sql)?;
    let shared = statement.query_map([], |row| Ok((row.get(0)?, TextUses(row.get(1)?))))?;
    let shared: Vec<_> = shared.collect::<Result<_, _>>()?;
    let mut contents: HashMap<i64, TextUses> = HashMap::new();
    let counted = contents::each_frame(connection, |kept| {
        for key in contents::named_in(kept) {
            contents.entry(key).and_modify(|uses| *uses = uses.and_one()).or_insert(TextUses::KNOWN_ONE);
        }
    });
    // An unreadable text may have any of the contents.
    if let Err(error) = counted {
        tracing::warn!(%error, "the use counts of large contents cannot be recounted: unused ones are never removed");
        let found = contents::found(connection).unwrap_or_else(|error| {
            tracing::warn!(%error, "the large contents cannot be listed");
            Vec::new()
        });
        let found = found.into_iter().chain(contents.into_keys());
        contents = found.map(|key| (key, TextUses::UNKNOWN)).collect();
    }
    Ok(shared.into_iter().chain(contents).collect())
}

pub(super) fn put(connection: &Connection, counted: &[(i64, TextUses)]) -> Result<(), StoreError> {
    counted.iter().try_for_each(|(key, uses)| put_uses(connection, *key, *uses))
}
