//! The texts of turns: all of them in the database, some in memory.
//!
//! Owns: reading a text on demand, and a cache of recently used texts, limited in bytes. A text
//! that is about to be removed from the database is read first if it is in use.
//! Never: knows which turn a text belongs to, or writes one.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use rusqlite::hooks::Action;
use rusqlite::{Connection, OpenFlags};

use bytes::Bytes;

use super::errors::StoreError;
use super::{schema, turns};
use crate::state::texts::{TextSource, TurnFacts, TurnText, WeakTurnText};
use crate::sync::lock;

/// Name of a text, with its size in bytes and its checksum for verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TextName {
    pub(super) key: i64,
    pub(super) bytes: u64,
    pub(super) sum: u32,
}

/// Reader and cache of the texts of a database.
#[derive(Debug)]
pub struct Texts {
    /// Connection that reads one text at a time.
    reader: Mutex<Connection>,
    bytes_max: usize,
    held: Mutex<HeldTexts>,
}

#[derive(Debug, Default)]
struct HeldTexts {
    /// Known texts by key, including some that are no longer in use. In a damaged database, the key
    /// of a lost text can be given to another one.
    known: HashMap<i64, (TextName, WeakTurnText)>,
    /// Number of known texts at which unused ones are dropped.
    known_max: usize,
    /// Cached texts that can be read again, in the order of their eviction, with their sizes in
    /// bytes.
    queue: VecDeque<(WeakTurnText, usize)>,
    bytes: usize,
}

#[derive(Debug)]
struct StoredText {
    name: TextName,
    texts: Arc<Texts>,
}

impl TextSource for StoredText {
    fn read(&self) -> Result<Bytes, String> {
        let reader = lock(&self.texts.reader);
        match turns::text_of(&reader, self.name) {
            Ok(Some(text)) => Ok(text),
            Ok(None) => Err("its text is damaged".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn was_read(&self, text: &TurnText) {
        self.texts.take_in(text);
    }
}

impl Texts {
    /// Opens the database of a [`Writer`](super::sqlite::Writer) at this path; caches up to
    /// `bytes_max` bytes of texts.
    pub fn open(path: &Path, bytes_max: usize) -> Result<Arc<Self>, StoreError> {
        let reader = schema::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        schema::detect_damage(&reader)?;
        schema::open_files(&reader)?;
        Ok(Arc::new(Self { reader: Mutex::new(reader), bytes_max, held: Mutex::default() }))
    }

    fn held(&self) -> MutexGuard<'_, HeldTexts> {
        lock(&self.held)
    }

    /// Returns the text of this name, which is not read yet.
    pub(super) fn named(self: &Arc<Self>, name: TextName, facts: Option<TurnFacts>) -> TurnText {
        let mut held = self.held();
        let known = held.known.get(&name.key).filter(|(of, _)| *of == name);
        if let Some(text) = known.and_then(|(_, text)| text.upgrade()) {
            return text;
        }
        let bytes = usize::try_from(name.bytes).unwrap_or(usize::MAX);
        let text = TurnText::there(bytes, facts, Arc::new(StoredText { name, texts: Arc::clone(self) }));
        held.know(name, &text);
        text
    }

    /// Makes a text that was stored under this name evictable.
    pub(super) fn written(self: &Arc<Self>, text: &TurnText, name: TextName) {
        if !text.set_source(Arc::new(StoredText { name, texts: Arc::clone(self) })) {
            return;
        }
        self.held().know(name, text);
        self.take_in(text);
    }

    /// Adds a text to the cache, and evicts others beyond the limit.
    fn take_in(&self, text: &TurnText) {
        let mut held = self.held();
        held.queue.push_back((text.downgrade(), text.bytes()));
        held.bytes += text.bytes();
        // A text that was read since its last check is kept for another round (second chance).
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

    /// Pins texts that this connection removes in memory while they are in use. Only one
    /// connection writes to a database.
    pub(super) fn register_hooks(self: &Arc<Self>, writer: &mut Connection) -> Result<(), StoreError> {
        let removed = Arc::new(Mutex::new(Vec::new()));
        let all = |removed: &Mutex<Vec<i64>>| std::mem::take(&mut *lock(removed));
        let remove = Arc::clone(&removed);
        writer.update_hook(Some(move |action, _: &str, table: &str, key| {
            if action == Action::SQLITE_DELETE && table == "texts" {
                lock(&remove).push(key);
            }
        }))?;
        let (texts, commit) = (Arc::clone(self), Arc::clone(&removed));
        // Until the commit is done, other connections still read the removed texts.
        writer.commit_hook(Some(move || {
            texts.are_leaving(&all(&commit));
            false
        }))?;
        writer.rollback_hook(Some(move || drop(all(&removed))))?;
        Ok(())
    }

    fn are_leaving(&self, keys: &[i64]) {
        let mut held = self.held();
        let texts: Vec<TurnText> =
            keys.iter().filter_map(|key| held.known.remove(key)?.1.upgrade()).collect();
        drop(held);
        texts.iter().for_each(TurnText::pin_in_memory);
    }
}

impl HeldTexts {
    fn know(&mut self, name: TextName, text: &TurnText) {
        if self.known.len() >= self.known_max {
            self.known.retain(|_, (_, text)| text.upgrade().is_some());
            self.known_max = (2 * self.known.len()).max(1024);
        }
        self.known.insert(name.key, (name, text.downgrade()));
    }
}
