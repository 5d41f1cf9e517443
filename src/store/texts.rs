//! The texts of turns, of which memory has some and the database all.
//!
//! Owns: reading a text when somebody needs it, and how many stay in memory behind that: those that
//! were used lately, up to a number of bytes. A text that the database is about to lose while
//! somebody has it is read before.
//! Never: knows whose text it is, or writes one.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::hooks::Action;
use rusqlite::{Connection, OpenFlags};

use bytes::Bytes;

use super::errors::StoreError;
use super::{schema, turns};
use crate::state::texts::{TextSource, TurnFacts, TurnText, WeakTurnText};

/// How a text is found, and known to be the one that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextName {
    /// The key of its row.
    pub(super) key: i64,
    /// How large it is.
    pub(super) bytes: u64,
    /// Checksum.
    pub(super) sum: u32,
}

/// The texts of a database.
#[derive(Debug)]
pub struct Texts {
    /// Connection for reading, one text at a time.
    reader: Mutex<Connection>,
    bytes_max: usize,
    held: Mutex<HeldTexts>,
}

/// Texts that somebody holds.
#[derive(Debug, Default)]
struct HeldTexts {
    /// By their keys; some of them nobody has any more.
    known: HashMap<i64, WeakTurnText>,
    /// Number of known texts at which unused ones are dropped.
    known_max: usize,
    /// Texts in memory that can be read again, in the order of their eviction, with their sizes.
    queue: VecDeque<(WeakTurnText, usize)>,
    /// The sizes together.
    bytes: usize,
}

/// Source of one text.
#[derive(Debug)]
struct StoredText {
    name: TextName,
    texts: Arc<Texts>,
}

impl TextSource for StoredText {
    fn read(&self) -> Result<Bytes, String> {
        let reader = self.texts.reader.lock().unwrap_or_else(PoisonError::into_inner);
        match turns::text_of(&reader, self.name) {
            Ok(Some(text)) => Ok(text),
            Ok(None) => Err("its text is not what was written".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn was_read(&self, text: &TurnText) {
        self.texts.take_in(text);
    }
}

impl Texts {
    /// Opens the texts of the database at this place, made by a [`Writer`](super::sqlite::Writer);
    /// keeps up to `bytes_max` bytes of used ones in memory.
    pub fn open(path: &Path, bytes_max: usize) -> Result<Arc<Self>, StoreError> {
        let reader = schema::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        schema::detect_damage(&reader)?;
        schema::open_files(&reader)?;
        Ok(Arc::new(Self { reader: Mutex::new(reader), bytes_max, held: Mutex::default() }))
    }

    fn held(&self) -> MutexGuard<'_, HeldTexts> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text of this name, which was not read.
    pub(super) fn named(self: &Arc<Self>, name: TextName, facts: Option<TurnFacts>) -> TurnText {
        let mut held = self.held();
        if let Some(text) = held.known.get(&name.key).and_then(WeakTurnText::upgrade) {
            return text;
        }
        let bytes = usize::try_from(name.bytes).unwrap_or(usize::MAX);
        let text = TurnText::there(bytes, facts, Arc::new(StoredText { name, texts: Arc::clone(self) }));
        held.know(name.key, &text);
        text
    }

    /// This text was written under this name.
    pub(super) fn written(self: &Arc<Self>, text: &TurnText, name: TextName) {
        if !text.set_source(Arc::new(StoredText { name, texts: Arc::clone(self) })) {
            return;
        }
        self.held().know(name.key, text);
        self.take_in(text);
    }

    /// This text is in memory now: others leave it, if they are too many.
    fn take_in(&self, text: &TurnText) {
        let mut held = self.held();
        held.queue.push_back((text.downgrade(), text.bytes()));
        held.bytes += text.bytes();
        // Who was used since it was asked last is asked once more.
        for _ in 0..2 * held.queue.len() {
            if held.bytes <= self.bytes_max {
                break;
            }
            let Some((asked, bytes)) = held.queue.pop_front() else { break };
            let stays = asked.upgrade().is_some_and(|text| text.take_read_flag() || !text.evict());
            if stays {
                held.queue.push_back((asked, bytes));
            } else {
                held.bytes -= bytes;
            }
        }
    }

    /// Has what this connection removes stay with those who have it. Of a database, one connection
    /// writes.
    pub(super) fn watch(self: &Arc<Self>, writer: &mut Connection) -> Result<(), StoreError> {
        let removed = Arc::new(Mutex::new(Vec::new()));
        let all = |removed: &Mutex<Vec<i64>>| {
            std::mem::take(&mut *removed.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let remove = Arc::clone(&removed);
        writer.update_hook(Some(move |action, _: &str, table: &str, key| {
            if action == Action::SQLITE_DELETE && table == "texts" {
                remove.lock().unwrap_or_else(PoisonError::into_inner).push(key);
            }
        }))?;
        let (texts, commit) = (Arc::clone(self), Arc::clone(&removed));
        // Until the commit is done, every other connection reads what there was before.
        writer.commit_hook(Some(move || {
            texts.are_leaving(&all(&commit));
            false
        }))?;
        writer.rollback_hook(Some(move || drop(all(&removed))))?;
        Ok(())
    }

    fn are_leaving(&self, keys: &[i64]) {
        let mut held = self.held();
        let texts: Vec<TurnText> = keys.iter().filter_map(|key| held.known.remove(key)?.upgrade()).collect();
        drop(held);
        texts.iter().for_each(TurnText::pin_in_memory);
    }
}

impl HeldTexts {
    fn know(&mut self, key: i64, text: &TurnText) {
        if self.known.len() >= self.known_max {
            self.known.retain(|_, text| text.upgrade().is_some());
            self.known_max = (2 * self.known.len()).max(1024);
        }
        self.known.insert(key, text.downgrade());
    }
}
