//! The texts of turns that are over.
//!
//! Owns: where such a text is: in memory, in the store, or in both; and what is known of its turn
//! without reading it.
//! Never: changes a text, or decides which ones stay in memory: whoever keeps them elsewhere does.
//!
//! A text is the same wherever it is, so nothing that the host does depends on that, but for how
//! long it takes.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::edits::{may_hold_sides, TurnEdits};
use crate::wire::terminals;

/// How large data is, in bytes of base64, that is still told where it is. What is larger is called
/// by a URI.
pub const INLINE_CONTENT_BYTES_MAX: usize = 64 << 10;

/// Sign in JSON text of embedded data of a tool call.
const EMBEDDED: &[u8] = b"embeddedResource";

/// Source from which a text can be read again.
pub trait TextSource: fmt::Debug + Send + Sync {
    /// Reads it, which takes as long as the disk does.
    ///
    /// # Errors
    /// Why it is not what was kept, for people.
    fn read(&self) -> Result<Bytes, String>;

    /// Notes that a text was read into memory, where it stays until [`TurnText::evict`].
    fn was_read(&self, text: &TurnText);
}

/// Facts that the host needs about a completed turn without reading its text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnFacts {
    /// There may be contents in it that clients are told the URIs of.
    #[serde(skip_serializing_if = "is_false")]
    pub contents: bool,
    /// Set if it may show terminals of tool calls.
    #[serde(skip_serializing_if = "is_false")]
    pub terminals: bool,
    /// The edits of files that its calls have said.
    #[serde(skip_serializing_if = "TurnEdits::is_empty")]
    pub edits: TurnEdits,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl TurnFacts {
    /// Returns the facts about the turn with this text.
    pub fn of(text: &[u8]) -> Self {
        let (contents, terminals) = (may_hold_contents(text), has(text, terminals::SCHEME));
        Self { contents, terminals, edits: TurnEdits::of(text) }
    }
}

/// Returns whether JSON text may hold contents.
pub fn may_hold_contents(text: &[u8]) -> bool {
    may_hold_sides(text) || text.len() > INLINE_CONTENT_BYTES_MAX && has(text, EMBEDDED)
}

fn has(text: &[u8], what: impl AsRef<[u8]>) -> bool {
    memmem::find(text, what.as_ref()).is_some()
}

/// A text, shared by all who have it.
#[derive(Debug, Clone)]
pub struct TurnText(Arc<TextCell>);

/// A text, as long as somebody else has it.
#[derive(Debug, Clone)]
pub struct WeakTurnText(Weak<TextCell>);

#[derive(Debug)]
struct TextCell {
    bytes: usize,
    facts: OnceLock<TurnFacts>,
    place: Mutex<TextLocation>,
    /// Set if it was read in memory since the flag was last taken.
    is_used: AtomicBool,
}

/// At least one of the two is there.
#[derive(Debug)]
struct TextLocation {
    here: Option<Bytes>,
    source: Option<Arc<dyn TextSource>>,
}

impl TurnText {
    /// One that is in memory alone.
    pub fn here(text: Bytes) -> Self {
        let bytes = text.len();
        Self::at(bytes, None, TextLocation { here: Some(text), source: None })
    }

    /// One of so many bytes that can be read from there, and these facts where they are known.
    pub fn there(bytes: usize, facts: Option<TurnFacts>, source: Arc<dyn TextSource>) -> Self {
        Self::at(bytes, facts, TextLocation { here: None, source: Some(source) })
    }

    fn at(bytes: usize, facts: Option<TurnFacts>, place: TextLocation) -> Self {
        let facts = facts.map(OnceLock::from).unwrap_or_default();
        Self(Arc::new(TextCell { bytes, facts, place: Mutex::new(place), is_used: AtomicBool::default() }))
    }

    fn place(&self) -> MutexGuard<'_, TextLocation> {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its size in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Returns whether it is in memory. Returns false while somebody reads it: the caller must not
    /// wait for the disk.
    pub fn is_in_memory(&self) -> bool {
        self.0.place.try_lock().is_ok_and(|place| place.here.is_some())
    }

    /// The text, read first if it is not in memory.
    ///
    /// # Errors
    /// Why it is not what was kept, for people.
    pub fn get(&self) -> Result<Bytes, String> {
        let mut place = self.place();
        if let Some(here) = &place.here {
            self.0.is_used.store(true, Ordering::Relaxed);
            return Ok(here.clone());
        }
        let source = place.source.clone().ok_or("it is nowhere")?;
        let text = source.read()?;
        place.here = Some(text.clone());
        drop(place);
        source.was_read(self);
        Ok(text)
    }

    /// Returns the facts about its turn. Reads the text unless they are known.
    pub fn facts(&self) -> &TurnFacts {
        // Of what cannot be read, nothing is known.
        self.0.facts.get_or_init(|| TurnFacts::of(&self.get().unwrap_or_default()))
    }

    /// Returns the facts about its turn if they are known.
    pub fn known_facts(&self) -> Option<&TurnFacts> {
        self.0.facts.get()
    }

    /// Sets the source from which it can be read. Returns false if it had one already, which stays.
    pub fn set_source(&self, source: Arc<dyn TextSource>) -> bool {
        let mut place = self.place();
        let is_new = place.source.is_none();
        place.source.get_or_insert(source);
        is_new
    }

    /// Removes its source, which is about to go, and reads it into memory before if need be.
    pub fn pin_in_memory(&self) {
        let mut place = self.place();
        if let (None, Some(source)) = (&place.here, &place.source) {
            match source.read() {
                Ok(text) => place.here = Some(text),
                // It reads as one that is damaged, later.
                Err(why) => {
                    tracing::error!(why, "a text cannot be read that somebody has");
                    return;
                }
            }
        }
        place.source = None;
    }

    /// Leaves memory, unless it is nowhere else, or somebody has it in their hands. Returns whether
    /// it did.
    pub fn evict(&self) -> bool {
        let Ok(mut place) = self.0.place.try_lock() else { return false };
        let may = place.source.is_some() && place.here.as_ref().is_some_and(Bytes::is_unique);
        if may {
            place.here = None;
        }
        may
    }

    /// Takes the flag that it was read in memory.
    pub fn take_read_flag(&self) -> bool {
        self.0.is_used.swap(false, Ordering::Relaxed)
    }

    /// Returns a weak handle, for an owner that does not need it.
    pub fn downgrade(&self) -> WeakTurnText {
        WeakTurnText(Arc::downgrade(&self.0))
    }
}

impl PartialEq for TurnText {
    /// Compares by identity: equal texts may be different ones.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for TurnText {}

impl WeakTurnText {
    /// The text, if somebody else has it.
    pub fn upgrade(&self) -> Option<TurnText> {
        self.0.upgrade().map(TurnText)
    }
}
