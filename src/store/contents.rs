//! The large contents of texts, such as the output of a tool, an edited file or an image. Each
//! content is stored once, however many turns have it.
//!
//! A text with contents is stored as a frame, the text without them, with the keys and positions of
//! its contents. A content is found by its hash.
//!
//! Owns: the extraction of contents, and assembling texts.
//! Never: interprets a content, or trusts one: the reader of a text verifies its checksum, and a
//! content found by its hash is compared with the new one.

use std::borrow::Cow;
use std::ops::Range;

use rusqlite::{params, Connection, OptionalExtension};
use sha2::{Digest, Sha256};

use super::compress::{compressed, restored};
use super::errors::{damaged_if, StoreError};
use super::rows::{sum, unsigned};
use super::use_counts;

/// Minimum size of a JSON string that is stored as a content, in bytes: one that fills pages of the
/// database of its own.
const CONTENT_BYTES_MIN: usize = 16 << 10;

/// Prefix of the stored form of a text with contents. Neither a plain text nor a compressed one
/// begins with it.
const MAGIC: [u8; 4] = *b"\0con";

/// Key of a content's row, and its offset in the frame.
type ContentPosition = (i64, usize);

/// Stored form of a text with contents.
struct TextFrame<'a> {
    seams: Vec<ContentPosition>,
    rest: &'a [u8],
}

impl<'a> TextFrame<'a> {
    /// Parses the stored form; `None` if the text has no contents, or is damaged.
    fn read(kept: &'a [u8]) -> Option<Self> {
        let rest = kept.strip_prefix(&MAGIC)?;
        let (expected, rest) = rest.split_first_chunk::<4>()?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (seams, rest) = rest.split_at_checked(count.checked_mul(16)?)?;
        if sum(&[seams]).to_le_bytes() != *expected {
            return None;
        }
        let (seams, _) = seams.as_chunks::<8>();
        let (seams, _) = seams.as_chunks::<2>();
        let seam = |[key, at]: &[[u8; 8]; 2]| {
            Some((i64::from_le_bytes(*key), usize::try_from(u64::from_le_bytes(*at)).ok()?))
        };
        Some(Self { seams: seams.iter().map(seam).collect::<Option<_>>()?, rest })
    }

    fn kept(&self) -> Vec<u8> {
        let seams: Vec<u8> = self
            .seams
            .iter()
            .flat_map(|(key, at)| [key.to_le_bytes(), (*at as u64).to_le_bytes()])
            .flatten()
            .collect();
        let count = u32::try_from(self.seams.len()).unwrap_or(u32::MAX);
        [&MAGIC[..], &sum(&[&seams]).to_le_bytes(), &count.to_le_bytes(), &seams, self.rest].concat()
    }
}

/// Stores the contents of a text. Returns the stored form of the text, and the size of its contents
/// in bytes.
pub(super) fn keep<'a>(connection: &Connection, text: &'a [u8]) -> Result<(Cow<'a, [u8]>, u64), StoreError> {
    let contents = contents_in(text);
    if contents.is_empty() {
        return Ok((compressed(text), 0));
    }
    let (mut frame, mut seams, mut end, mut bytes) = (Vec::new(), Vec::new(), 0, 0);
    for content in contents {
        frame.extend_from_slice(&text[end..content.start]);
        end = content.end;
        let (key, kept_bytes) = keep_content(connection, &text[content])?;
        seams.push((key, frame.len()));
        bytes += kept_bytes;
    }
    frame.extend_from_slice(&text[end..]);
    Ok((TextFrame { seams, rest: &compressed(&frame) }.kept().into(), bytes))
}

/// Returns the ranges of the large strings in a JSON text, without their quotes.
fn contents_in(text: &[u8]) -> Vec<Range<usize>> {
    let (mut contents, mut at) = (Vec::new(), 0);
    if text.len() < CONTENT_BYTES_MIN {
        return contents;
    }
    while let Some(quote) = memchr::memchr(b'"', &text[at..]) {
        let start = at + quote + 1;
        let mut end = start;
        loop {
            match memchr::memchr2(b'"', b'\\', text.get(end..).unwrap_or_default()) {
                Some(found) if text[end + found] == b'"' => {
                    end += found;
                    break;
                }
                // Skips the escaped character.
                Some(found) => end += found + 2,
                // The text is not JSON.
                None => return contents,
            }
        }
        if end - start >= CONTENT_BYTES_MIN {
            contents.push(start..end);
        }
        at = end + 1;
    }
    contents
}

/// Stores a content, unless it is stored already. Returns the key of its row, and its stored size
/// in bytes.
fn keep_content(connection: &Connection, content: &[u8]) -> Result<(i64, u64), StoreError> {
    let hash = Sha256::digest(content);
    let found: Option<(i64, i64)> = connection
        .prepare_cached(
            "SELECT x.key, length(x.text) FROM contents c JOIN texts x ON x.key = c.text WHERE c.hash = ?1",
        )?
        .query_row(params![&hash[..]], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((key, bytes)) = found {
        // A damaged one stays with its users.
        if content_of(connection, key, content.len()).is_ok_and(|kept| kept.as_deref() == Some(content)) {
            use_counts::use_once_more(connection, key)?;
            return Ok((key, unsigned(bytes)));
        }
    }
    let kept = compressed(content);
    connection.prepare_cached("INSERT INTO texts (text) VALUES (?1)")?.execute(params![kept])?;
    let key = connection.last_insert_rowid();
    connection
        .prepare_cached("INSERT OR REPLACE INTO contents (hash, text) VALUES (?1, ?2)")?
        .execute(params![&hash[..], key])?;
    Ok((key, kept.len() as u64))
}

/// Returns a text from its stored form, with its contents. `None` if it is damaged, or larger than
/// `bytes`.
pub(super) fn whole(connection: &Connection, kept: &[u8], bytes: u64) -> Result<Option<Vec<u8>>, StoreError> {
    if !kept.starts_with(&MAGIC) {
        return Ok(restored(kept, bytes).map(Cow::into_owned));
    }
    let Some(TextFrame { seams, rest }) = TextFrame::read(kept) else { return Ok(None) };
    let Some(frame) = restored(rest, bytes) else { return Ok(None) };
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let (mut text, mut end) = (Vec::new(), 0);
    for (key, at) in seams {
        let Some(before) = frame.get(end..at) else { return Ok(None) };
        text.extend_from_slice(before);
        end = at;
        let left = bytes.saturating_sub(text.len());
        let Some(content) = content_of(connection, key, left)? else { return Ok(None) };
        text.extend_from_slice(&content);
    }
    text.extend_from_slice(&frame[end..]);
    Ok(Some(text))
}

/// Returns a content; `None` if it does not exist, or is larger than `bytes_max`.
fn content_of(connection: &Connection, key: i64, bytes_max: usize) -> Result<Option<Vec<u8>>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT text FROM texts WHERE key = ?1")?;
    let kept = statement.query_row(params![key], |row| {
        let kept = row.get_ref(0)?.as_blob()?;
        let bytes = u64::try_from(bytes_max).unwrap_or(u64::MAX);
        Ok(restored(kept, bytes).map(Cow::into_owned))
    });
    let kept = kept.optional().map_err(damaged_if(|| format!("the content {key}")))?.flatten();
    Ok(kept.filter(|content| content.len() <= bytes_max))
}

/// Returns the keys of the contents of a text in stored form, with duplicates; none if it is
/// damaged.
pub(super) fn named_in(kept: &[u8]) -> Vec<i64> {
    let frame = TextFrame::read(kept);
    frame.map(|frame| frame.seams.into_iter().map(|(key, _)| key).collect()).unwrap_or_default()
}

/// Returns the keys of all contents that can be found by hash.
pub(super) fn found(connection: &Connection) -> Result<Vec<i64>, StoreError> {
    let mut statement = connection.prepare("SELECT text FROM contents")?;
    let keys = statement.query_map([], |row| row.get(0))?;
    Ok(keys.collect::<Result<_, _>>()?)
}

/// Removes the hash of a content that is no longer stored.
pub(super) fn forget(connection: &Connection, key: i64) -> Result<(), StoreError> {
    connection.prepare_cached("DELETE FROM contents WHERE text = ?1")?.execute(params![key])?;
    Ok(())
}

/// Visits the stored forms of all texts with contents.
pub(super) fn each_frame(connection: &Connection, mut visit: impl FnMut(&[u8])) -> Result<(), StoreError> {
    let mut statement = connection.prepare("SELECT text FROM texts WHERE substr(text, 1, 4) = ?1")?;
    let mut rows = statement.query(params![&MAGIC[..]])?;
    while let Some(row) = rows.next()? {
        visit(row.get_ref(0)?.as_blob().unwrap_or_default());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::mark::Mark;
    use crate::store::schema;

    fn text(strings: &[(usize, String)]) -> Vec<u8> {
        let strings: Vec<String> = strings.iter().map(|(times, text)| text.repeat(*times)).collect();
        serde_json::to_vec(&strings).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_text_is_put_together_again(
            strings in prop::collection::vec((0..3_000_usize, "[a-c\"\\\\\n ä漢]{0,20}"), 0..6),
        ) {
            let connection = schema::model(schema::NEWEST).unwrap();
            let text = text(&strings);
            let large = contents_in(&text).len();
            let (kept, _) = keep(&connection, &text).unwrap();
            prop_assert_eq!(named_in(&kept).len(), large);
            let bytes = text.len() as u64;
            prop_assert_eq!(whole(&connection, &kept, bytes).unwrap(), Some(text.clone()));
        }

        #[test]
        fn what_is_damaged_is_no_other_text_and_names_no_other_content(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let connection = schema::model(schema::NEWEST).unwrap();
            let text = text(&[(3_000, "one of them".to_owned()), (3_000, "the other".to_owned())]);
            let mut kept = keep(&connection, &text).unwrap().0.into_owned();
            let names = named_in(&kept);
            let at = at.index(kept.len());
            kept[at] ^= 1 << bit;
            prop_assert!(named_in(&kept).is_empty() || named_in(&kept) == names);
            let found = whole(&connection, &kept, text.len() as u64).unwrap();
            prop_assert!(found.is_none_or(|found| sum(&[&found]) != sum(&[&text]) || found == text));
        }
    }

    /// `turns` has the row of a text open while its contents are read.
    #[test]
    fn a_text_and_its_contents_are_read_as_of_one_moment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "").unwrap();
        let open = || schema::open(&path, Mark::Making).unwrap();
        let (writer, reader) = (open(), open());
        schema::migrate(&writer).unwrap();
        let text = text(&[(10_000, "much".to_owned())]);
        let (kept, _) = keep(&writer, &text).unwrap();
        writer.execute("INSERT INTO texts VALUES (100, ?1)", params![kept]).unwrap();
        let mut statement = reader.prepare("SELECT text FROM texts WHERE key = 100").unwrap();
        let mut rows = statement.query([]).unwrap();
        let row = rows.next().unwrap().unwrap();
        writer.execute("DELETE FROM texts", []).unwrap();
        let kept = row.get_ref(0).unwrap().as_blob().unwrap();
        let bytes = text.len() as u64;
        assert_eq!(whole(&reader, kept, bytes).unwrap(), Some(text));
        let kept = kept.to_vec();
        drop(rows);
        assert_eq!(whole(&reader, &kept, bytes).unwrap(), None, "it is gone");
    }

    #[test]
    fn no_text_that_is_damaged_takes_more_room_than_it_had() {
        let connection = schema::model(schema::NEWEST).unwrap();
        let text = text(&[(10_000, "much".to_owned())]);
        let (kept, _) = keep(&connection, &text).unwrap();
        assert_eq!(whole(&connection, &kept, 100).unwrap(), None);
    }
}
