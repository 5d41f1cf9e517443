//! The texts of completed turns.
//!
//! Owns: the location of each text (in memory, in the store, or in both), and the facts that are
//! known without reading it.
//! Never: changes a text, or decides which ones stay in memory: the store does.
//!
//! A text is the same wherever it is, so its location affects only the time that a read takes.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, Weak};

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::edits::{may_hold_sides, TurnEdits};
use crate::sync::lock;
use crate::wire::terminals;

/// Maximum size of data that is sent inline, in bytes of base64. Larger data is referred to by a
/// URI.
pub const INLINE_CONTENT_BYTES_MAX: usize = 64 << 10;

/// Mark of a tool call's embedded data in JSON text.
const EMBEDDED: &[u8] = b"embeddedResource";

/// Source from which a text can be read again.
pub trait TextSource: fmt::Debug + Send + Sync {
    /// Reads the text, which blocks on the disk.
    ///
    /// # Errors
    /// When the text is not what was stored; the message is for people.
    fn read(&self) -> Result<Bytes, String>;

    /// Receives the notice that a text was read into memory, where it stays until
    /// [`TurnText::evict`].
    fn was_read(&self, text: &TurnText);
}

/// Facts about a completed turn that the host needs without reading its text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnFacts {
    /// Set if the turn may hold contents that clients read by URI.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub contents: bool,
    /// Set if the turn may show terminals of tool calls.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub terminals: bool,
    /// File edits that its calls report.
    #[serde(skip_serializing_if = "TurnEdits::is_empty")]
    pub edits: TurnEdits,
}

impl TurnFacts {
    /// Derives the facts from a turn's text.
    pub fn of(text: &[u8]) -> Self {
        let (contents, terminals) = (may_hold_contents(text), has(text, terminals::SCHEME));
        Self { contents, terminals, edits: TurnEdits::of(text) }
    }
}

/// Returns whether a turn's JSON text may hold contents that clients read by URI.
pub fn may_hold_contents(text: &[u8]) -> bool {
    may_hold_sides(text) || text.len() > INLINE_CONTENT_BYTES_MAX && has(text, EMBEDDED)
}

fn has(text: &[u8], what: impl AsRef<[u8]>) -> bool {
    memmem::find(text, what.as_ref()).is_some()
}

/// Shared handle of a text.
#[derive(Debug, Clone)]
pub struct TurnText(Arc<TextCell>);

/// Weak handle of a text.
#[derive(Debug, Clone)]
pub struct WeakTurnText(Weak<TextCell>);

#[derive(Debug)]
struct TextCell {
    bytes: usize,
    facts: OnceLock<TurnFacts>,
    place: Mutex<TextLocation>,
    /// Set if the text in memory was read since the flag was last taken.
    is_used: AtomicBool,
}

/// Location of a text; at least one of the two is set.
#[derive(Debug)]
struct TextLocation {
    here: Option<Bytes>,
    source: Option<Arc<dyn TextSource>>,
}

impl TurnText {
    /// Makes a text that is in memory only.
    pub fn here(text: Bytes) -> Self {
        let bytes = text.len();
        Self::at(bytes, None, TextLocation { here: Some(text), source: None })
    }

    /// Makes a text of `bytes` bytes that can be read from `source`; `facts` if they are known.
    pub fn there(bytes: usize, facts: Option<TurnFacts>, source: Arc<dyn TextSource>) -> Self {
        Self::at(bytes, facts, TextLocation { here: None, source: Some(source) })
    }

    fn at(bytes: usize, facts: Option<TurnFacts>, place: TextLocation) -> Self {
        let facts = facts.map(OnceLock::from).unwrap_or_default();
        Self(Arc::new(TextCell { bytes, facts, place: Mutex::new(place), is_used: AtomicBool::default() }))
    }

    fn place(&self) -> MutexGuard<'_, TextLocation> {
        lock(&self.0.place)
    }

    /// Returns the size of the text in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Returns whether the text is in memory. Returns false during a concurrent read, so that the
    /// caller does not wait for the disk.
    pub fn is_in_memory(&self) -> bool {
        self.0.place.try_lock().is_ok_and(|place| place.here.is_some())
    }

    /// Returns the text. Reads it first if it is not in memory.
    ///
    /// # Errors
    /// When the text is not what was stored; the message is for people.
    pub fn get(&self) -> Result<Bytes, String> {
        let mut place = self.place();
        if let Some(here) = &place.here {
            self.0.is_used.store(true, Ordering::Relaxed);
            return Ok(here.clone());
        }
        let source = place.source.clone().ok_or("its text is neither in memory nor in the store")?;
        let text = source.read()?;
        place.here = Some(text.clone());
        drop(place);
        source.was_read(self);
        Ok(text)
    }

    /// Returns the facts about the turn. Reads the text unless they are known; an unreadable text
    /// has none.
    pub fn facts(&self) -> &TurnFacts {
        static NONE: LazyLock<TurnFacts> = LazyLock::new(TurnFacts::default);
        if let Some(known) = self.0.facts.get() {
            return known;
        }
        match self.get() {
            Ok(text) => self.0.facts.get_or_init(|| TurnFacts::of(&text)),
            // A later read may succeed.
            Err(why) => {
                tracing::error!(why, "a turn's edits and contents are left out: its text cannot be read");
                &NONE
            }
        }
    }

    /// Returns the facts about the turn if they are known.
    pub fn known_facts(&self) -> Option<&TurnFacts> {
        self.0.facts.get()
    }

    /// Sets the source of the text. Returns false if it has one already, which stays.
    pub fn set_source(&self, source: Arc<dyn TextSource>) -> bool {
        let mut place = self.place();
        let is_new = place.source.is_none();
        place.source.get_or_insert(source);
        is_new
    }

    /// Reads the text into memory, if it is not there, and removes its source, which is about to
    /// lose it.
    pub fn pin_in_memory(&self) {
        let mut place = self.place();
        if let (None, Some(source)) = (&place.here, &place.source) {
            match source.read() {
                Ok(text) => place.here = Some(text),
                // Later reads fail, and the turn is shown as damaged.
                Err(why) => {
                    tracing::error!(why, "the text of a turn in use cannot be read before its row is removed: the turn will be shown as damaged");
                    return;
                }
            }
        }
        place.source = None;
    }

    /// Removes the text from memory, unless it has no source or is in use. Returns whether it did.
    pub fn evict(&self) -> bool {
        let Ok(mut place) = self.0.place.try_lock() else { return false };
        let may = place.source.is_some() && place.here.as_ref().is_some_and(Bytes::is_unique);
        if may {
            place.here = None;
        }
        may
    }

    /// Returns and clears the flag that the text was read in memory.
    pub fn take_read_flag(&self) -> bool {
        self.0.is_used.swap(false, Ordering::Relaxed)
    }

    /// Returns a weak handle, which does not keep the text alive.
    pub fn downgrade(&self) -> WeakTurnText {
        WeakTurnText(Arc::downgrade(&self.0))
    }
}

impl PartialEq for TurnText {
    /// Compares by identity: distinct texts may be equal.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for TurnText {}

impl WeakTurnText {
    /// Returns the text, if it is still in use.
    pub fn upgrade(&self) -> Option<TurnText> {
        self.0.upgrade().map(TurnText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text that cannot be read the first time.
    #[derive(Debug, Default)]
    struct ReadableOnRetry(AtomicBool);

    impl TextSource for ReadableOnRetry {
        fn read(&self) -> Result<Bytes, String> {
            let text = Bytes::from(format!(r#"{{"terminal":"{}:/1"}}"#, terminals::SCHEME));
            self.0.swap(true, Ordering::Relaxed).then_some(text).ok_or("input/output error".to_owned())
        }

        fn was_read(&self, _text: &TurnText) {}
    }

    #[test]
    fn facts_of_a_text_that_could_not_be_read_are_read_again() {
        let text = TurnText::there(9, None, Arc::new(ReadableOnRetry::default()));
        assert_eq!(*text.facts(), TurnFacts::default());
        assert!(text.facts().terminals);
    }
}
