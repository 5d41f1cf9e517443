//! The completed turns of a chat.
//!
//! Owns: their order, id and JSON text (in memory, or in the store: see `texts`), and the lookup by
//! id.
//! Never: changes a turn. A turn that is resumed is removed, and added again when it ends.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use ahp_types::state::{
    ErrorInfo, ErrorResponsePart, Message, MessageKind, MessageOrigin, ResponsePart, Turn, TurnState,
};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::Deserialize;

use super::edits::TurnEdits;
use super::texts::{TurnFacts, TurnText};
use crate::wire::rpc::to_sorted_json;

/// Memory accounted for a turn whose text is in the store, in bytes.
pub const INDEX_BYTES: usize = 256;

/// A completed turn. Clones share its text.
#[derive(Debug, Clone)]
pub struct CompletedTurn {
    id: Arc<str>,
    text: TurnText,
}

impl CompletedTurn {
    /// Serializes a turn that has just ended.
    pub fn of(turn: &Turn) -> Self {
        Self::new(&turn.id, to_sorted_json(turn).into())
    }

    /// Makes a turn from its id and its JSON text.
    pub fn new(id: &str, text: Bytes) -> Self {
        Self::at(id, TurnText::here(text))
    }

    /// Makes a turn from its id and the handle of its JSON text.
    pub fn at(id: &str, text: TurnText) -> Self {
        Self { id: id.into(), text }
    }

    /// Makes a turn from stored JSON text.
    ///
    /// # Errors
    /// When the text has no id; the message is for people.
    pub fn from_stored(text: Bytes) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Named {
            id: String,
        }
        match serde_json::from_slice::<Named>(&text) {
            Ok(Named { id }) => Ok(Self::new(&id, text)),
            Err(error) => Err(format!("the stored turn cannot be read: {error}")),
        }
    }

    /// Returns the id of the turn.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the size of the JSON text in bytes.
    pub fn bytes(&self) -> usize {
        self.text.bytes()
    }

    /// Returns the JSON text; equal turns have equal texts. May read it from the store, which
    /// blocks. If the store has lost it, returns a turn that says so.
    pub fn text(&self) -> Bytes {
        self.text.get().unwrap_or_else(|why| {
            tracing::error!(
                why,
                turn = &*self.id,
                "a turn cannot be read: it is shown as one that is damaged"
            );
            damaged(&self.id, &why)
        })
    }

    /// Returns the handle of the JSON text.
    pub fn place(&self) -> &TurnText {
        &self.text
    }

    /// Returns whether the JSON text is in memory.
    pub fn is_in_memory(&self) -> bool {
        self.text.is_in_memory()
    }

    /// Returns whether the turn may hold contents that clients read by URI; true if that is not
    /// known without its text.
    pub fn may_hold_contents(&self) -> bool {
        self.text.known_facts().is_none_or(|facts| facts.contents)
    }

    /// Returns whether the turn may show terminals of tool calls; true if that is not known without
    /// its text.
    pub fn may_show_terminals(&self) -> bool {
        self.text.known_facts().is_none_or(|facts| facts.terminals)
    }

    /// Returns the file edits that its calls report.
    pub fn edits(&self) -> &TurnEdits {
        &self.facts().edits
    }

    /// Returns the facts about the turn. Reads its text unless they are known.
    pub fn facts(&self) -> &TurnFacts {
        self.text.facts()
    }

    pub(crate) fn shares_text(&self, other: &Self) -> bool {
        self.text == other.text
    }

    /// Parses the whole turn. Logs invalid text and returns `None`.
    pub fn read(&self) -> Option<Turn> {
        self.read_as()
    }

    /// Returns the user's message that began the turn; `None` if the text is invalid.
    pub fn message(&self) -> Option<Message> {
        #[derive(Deserialize)]
        struct Begun {
            message: Message,
        }
        self.read_as().map(|Begun { message }| message)
    }

    /// Returns whether the turn was cancelled or failed before any response of the agent.
    pub fn is_unanswered(&self) -> bool {
        #[derive(Deserialize)]
        struct Part {
            kind: String,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Ended {
            state: TurnState,
            response_parts: Vec<Part>,
        }
        self.read_as().is_some_and(|Ended { state, response_parts }| {
            let is_answer = |part: &Part| !matches!(&*part.kind, "error" | "systemNotification");
            state != TurnState::Complete && !response_parts.iter().any(is_answer)
        })
    }

    fn read_as<T: DeserializeOwned>(&self) -> Option<T> {
        let read = serde_json::from_slice(&self.text());
        read.map_err(|error| tracing::error!(%error, turn = &*self.id, "a turn cannot be read")).ok()
    }
}

pub(crate) fn empty_message() -> Message {
    Message {
        text: String::new(),
        origin: MessageOrigin { kind: MessageKind::User },
        attachments: None,
        model: None,
        agent: None,
        meta: None,
    }
}

pub(super) fn empty_completed(id: &str) -> Turn {
    Turn {
        id: id.to_owned(),
        started_at: None,
        duration: None,
        message: empty_message(),
        response_parts: Vec::new(),
        usage: None,
        state: TurnState::Complete,
    }
}

/// Returns the text of a turn that replaces one whose text is lost.
fn damaged(id: &str, why: &str) -> Bytes {
    let error = ErrorInfo {
        error_type: "damaged".to_owned(),
        message: format!("this turn is damaged in the store and cannot be shown: {why}"),
        stack: None,
        meta: None,
    };
    let response_parts = vec![ResponsePart::Error(ErrorResponsePart { error, resumable: Some(false) })];
    let turn = Turn { response_parts, state: TurnState::Error, ..empty_completed(id) };
    to_sorted_json(&turn).into()
}

impl PartialEq for CompletedTurn {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && (self.shares_text(other) || self.text() == other.text())
    }
}

/// The completed turns of a chat, oldest first.
#[derive(Debug, Clone, Default)]
pub struct History {
    turns: Vec<CompletedTurn>,
    /// Positions by id; of two turns with one id, that of the first.
    places: HashMap<Arc<str>, usize>,
    /// Positions of the turns that may have edited files, as far as is known without their texts.
    edited: Vec<usize>,
    /// Message that began the last turn. Summaries need it often, and the turn may be large.
    last_message: OnceCell<Option<Message>>,
    /// Text of the last turn, once its message was read; pinned in memory, because the turn may be
    /// resumed.
    last_text: OnceCell<Bytes>,
}

impl History {
    /// Returns the number of turns.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Returns whether there are no turns.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Returns the approximate memory that cannot be evicted to the store, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.turns.len() * INDEX_BYTES + self.last_text.get().map_or(0, Bytes::len)
    }

    /// Returns all turns, oldest first.
    pub fn turns(&self) -> &[CompletedTurn] {
        &self.turns
    }

    /// Returns the turns in which files were edited, oldest first.
    pub fn edited(&self) -> impl Iterator<Item = &CompletedTurn> {
        let turns = self.edited.iter().filter_map(|place| self.turns.get(*place));
        turns.filter(|turn| !turn.edits().is_empty())
    }

    /// Returns the turns from this position on.
    pub fn since(&self, place: usize) -> &[CompletedTurn] {
        self.turns.get(place..).unwrap_or_default()
    }

    /// Returns the turns up to the one with this id, inclusive; `None` if there is no such turn.
    pub fn through(&self, id: &str) -> Option<&[CompletedTurn]> {
        self.turns.get(..=self.position_of(id)?)
    }

    /// Returns the latest turn.
    pub fn last(&self) -> Option<&CompletedTurn> {
        self.turns.last()
    }

    /// Returns the user's message that began the latest turn.
    pub fn last_message(&self) -> Option<&Message> {
        let last = self.last()?;
        self.last_text.get_or_init(|| last.text());
        self.last_message.get_or_init(|| last.message()).as_ref()
    }

    /// Returns the turn with this id.
    pub fn get(&self, id: &str) -> Option<&CompletedTurn> {
        self.turns.get(self.position_of(id)?)
    }

    /// Returns the position of the turn with this id.
    pub fn position_of(&self, id: &str) -> Option<usize> {
        self.places.get(id).copied()
    }

    /// Returns whether there is a turn with this id.
    pub fn contains(&self, id: &str) -> bool {
        self.places.contains_key(id)
    }

    /// Adds a turn that has just ended; its text stays in memory.
    pub fn end(&mut self, turn: Turn) {
        let ended = CompletedTurn::of(&turn);
        let text = ended.text();
        self.push(ended);
        (self.last_message, self.last_text) = (Some(turn.message).into(), text.into());
    }

    /// Adds a completed turn.
    pub fn push(&mut self, turn: CompletedTurn) {
        (self.last_message, self.last_text) = (OnceCell::new(), OnceCell::new());
        self.places.entry(turn.id.clone()).or_insert(self.turns.len());
        if turn.place().known_facts().is_none_or(|facts| !facts.edits.is_empty()) {
            self.edited.push(self.turns.len());
        }
        self.turns.push(turn);
    }

    /// Retains only the `count` oldest turns.
    pub fn truncate(&mut self, count: usize) {
        (self.last_message, self.last_text) = (OnceCell::new(), OnceCell::new());
        for turn in self.turns.drain(count.min(self.turns.len())..) {
            if self.places.get(&turn.id).is_some_and(|place| *place >= count) {
                self.places.remove(&turn.id);
            }
        }
        self.edited.retain(|place| *place < count);
    }
}

impl FromIterator<CompletedTurn> for History {
    fn from_iter<T: IntoIterator<Item = CompletedTurn>>(turns: T) -> Self {
        let mut history = Self::default();
        turns.into_iter().for_each(|turn| history.push(turn));
        history
    }
}

impl PartialEq for History {
    fn eq(&self, other: &Self) -> bool {
        self.turns == other.turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(id: &str, text: &str) -> CompletedTurn {
        CompletedTurn::from_stored(format!(r#"{{"id":"{id}","message":{{"text":"{text}"}}}}"#).into())
            .unwrap()
    }

    #[test]
    fn a_turn_is_found_by_its_id_as_long_as_it_is_there() {
        let all = [turn("a", "1"), turn("b", "2"), turn("a", "3")];
        let mut history: History = all.iter().cloned().collect();
        assert_eq!(
            (history.position_of("a"), history.position_of("b"), history.position_of("c")),
            (Some(0), Some(1), None)
        );
        assert_eq!(history.through("b"), Some(&all[..2]));
        assert_eq!(history.since(2), &all[2..]);
        assert_eq!(history.since(4), &[]);
        history.truncate(1);
        assert_eq!((history.position_of("a"), history.contains("b")), (Some(0), false));
        history.truncate(0);
        assert!(history.is_empty() && !history.contains("a"));
    }

    #[test]
    fn the_last_message_is_that_of_the_turn_that_is_last_now() {
        let turn = |id: &str, text: &str| -> Turn {
            let message = serde_json::json!({ "text": text, "origin": { "kind": "user" } });
            let turn =
                serde_json::json!({ "id": id, "message": message, "responseParts": [], "state": "complete" });
            serde_json::from_value(turn).unwrap()
        };
        let text = |history: &History| history.last_message().map(|message| message.text.clone());
        let mut history = History::default();
        assert_eq!(text(&history), None);
        history.end(turn("a", "one"));
        assert_eq!(text(&history).as_deref(), Some("one"));
        history.push(CompletedTurn::of(&turn("b", "two")));
        assert_eq!(text(&history).as_deref(), Some("two"));
        history.truncate(1);
        assert_eq!(text(&history).as_deref(), Some("one"));
        history.truncate(0);
        assert_eq!(text(&history), None);
    }

    #[test]
    fn what_is_no_turn_is_refused_when_it_comes_and_logged_when_it_is_read() {
        let error = CompletedTurn::from_stored(Bytes::from_static(b"{}")).unwrap_err();
        assert!(error.starts_with("the stored turn cannot be read: "), "{error}");
        assert_eq!(turn("a", "1").read(), None, "a message has more to it");
    }
}
