//! Completed turns that stand apart from a state or an action while the rest of it is translated.
//!
//! Owns: what stands for them meanwhile, and putting them back, each translated when it is written.
//! So nobody holds all the turns of a long chat at once, in whatever version they are told.
//! Never: decides what a version says of a turn; that is up to its step.

use bytes::{Buf, Bytes};
use memchr::memmem;
use serde_json::Value;

use crate::host::effects::Rope;
use crate::state::history::CompletedTurn;
use crate::versions::chain::Chain;
use crate::versions::node::Node;
use crate::versions::step::OutgoingState;
use crate::versions::translation::{CoreState, FoundState};
use crate::wire::rpc::{sorted, to_json};

/// Member of a state that holds its completed turns.
const TURNS: &str = "turns";

/// Turns that stand apart.
pub(super) struct DetachedTurns {
    /// The way to the version in which they are told.
    chain: Chain,
    /// Prefix of the words that stand for them.
    word: String,
    lists: Vec<DetachedTurnList>,
}

/// Turns of one chat.
struct DetachedTurnList {
    /// Placeholder, as JSON text.
    word: String,
    chat: String,
    turns: Vec<CompletedTurn>,
}

impl DetachedTurns {
    /// None so far. `others`: all the JSON text that they will stand in, so that nothing in it is
    /// taken for them.
    pub(super) fn new(chain: Chain, others: &[Vec<u8>]) -> Self {
        let is_said = |word: &String| others.iter().any(|text| memmem::find(text, word.as_bytes()).is_some());
        let mut words = (0_u64..).map(|number| format!("turns apart {number}"));
        let word = words.find(|word| !is_said(word)).unwrap_or_default();
        Self { chain, word, lists: Vec::new() }
    }

    /// States as the steps take them down, their completed turns set apart but for the last one of
    /// each chat: of that the steps may want to know what it was about. `besides`: what is said
    /// with them.
    pub(super) fn of_states(
        chain: Chain,
        found: Vec<FoundState>,
        besides: &Value,
    ) -> (Vec<OutgoingState>, Self) {
        let (mut outgoing_states, earlier): (Vec<OutgoingState>, Vec<_>) =
            found.into_iter().map(shot_of).unzip();
        if earlier.iter().all(Vec::is_empty) {
            return (outgoing_states, Self::new(chain, &[]));
        }
        let of_shot = |outgoing: &OutgoingState| [to_json(&outgoing.state), to_json(&outgoing.summary)];
        let others = outgoing_states.iter().flat_map(of_shot).chain([to_json(besides)]);
        let mut apart = Self::new(chain, &others.collect::<Vec<_>>());
        for (outgoing, turns) in outgoing_states.iter_mut().zip(earlier) {
            let word = apart.set(&outgoing.channel, turns);
            if let (Some(word), Some(Value::Array(shown))) = (word, outgoing.state.get_mut(TURNS)) {
                shown.insert(0, word);
            }
        }
        (outgoing_states, apart)
    }

    /// Sets these turns of a chat apart; what stands in their place in a list.
    pub(super) fn set(&mut self, chat: &str, turns: Vec<CompletedTurn>) -> Option<Value> {
        if turns.is_empty() {
            return None;
        }
        let word = format!("{}, {}", self.word, self.lists.len());
        self.lists.push(DetachedTurnList { word: format!("\"{word}\""), chat: chat.to_owned(), turns });
        Some(word.into())
    }

    /// Hands out a line with its turns put back, in pieces, in order, until one is not taken; each
    /// turn's text as `said` says it. Returns whether all were taken.
    pub(super) fn write(
        &self,
        mut line: Bytes,
        said: &mut dyn FnMut(Bytes) -> Bytes,
        take: &mut dyn FnMut(Bytes) -> bool,
    ) -> bool {
        loop {
            let found = self.lists.iter().map(|list| (memmem::find(&line, list.word.as_bytes()), list));
            let next = found.filter_map(|(at, list)| Some((at?, list))).min_by_key(|(at, _)| *at);
            let Some((at, list)) = next else { return take(line) };
            if !take(line.split_to(at)) || !Rope::items(&list.chat, list.turns.clone()).write(said, take) {
                return false;
            }
            line.advance(list.word.len());
        }
    }

    /// A turn's text, translated.
    pub(super) fn translated(&self, turn: Bytes) -> Bytes {
        match serde_json::from_slice(&turn) {
            Ok(Value::Object(mut object)) => {
                self.chain.node_down(Node::Turn, &mut object);
                sorted(object).into()
            }
            _ => turn,
        }
    }
}

/// A state as the steps take it down, with the last of its completed turns; and those before that
/// one.
fn shot_of(found: FoundState) -> (OutgoingState, Vec<CompletedTurn>) {
    let (state, earlier) = match found.state {
        CoreState::Parsed(state) => (state, Vec::new()),
        CoreState::Core(mut told) => {
            let mut state = told.to_object();
            if let Some(last) = told.turns.pop() {
                let last = serde_json::from_slice(&Rope::turn(&told.channel, &last)).unwrap_or_default();
                state.insert(TURNS.to_owned(), Value::Array(vec![last]));
            }
            (state, told.turns)
        }
    };
    let (kind, from_seq, summary) = (found.kind, found.from_seq, found.summary);
    (
        OutgoingState {
            kind,
            resource: found.channel.clone(),
            channel: found.channel,
            state,
            summary,
            from_seq,
        },
        earlier,
    )
}

/// A translated line whose turns stand apart.
pub(super) struct DetachedLine {
    pub(super) line: Bytes,
    pub(super) apart: DetachedTurns,
}

impl DetachedLine {
    /// Returns its whole text.
    pub(super) fn into_text(self) -> Bytes {
        let mut whole = Vec::new();
        self.apart.write(self.line, &mut |turn| self.apart.translated(turn), &mut |piece| {
            whole.extend_from_slice(&piece);
            true
        });
        whole.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versions::dialect::Dialect;

    #[test]
    fn what_others_say_is_not_taken_for_turns() {
        let turn = |id: &str| CompletedTurn::from_stored(format!(r#"{{"id":"{id}"}}"#).into()).unwrap();
        let others = br#"["turns apart 0","turns apart 0, 0","turns apart 1, 0"]"#.to_vec();
        let mut apart = DetachedTurns::new(Chain::to(Dialect::V0_9_0), std::slice::from_ref(&others));
        assert_eq!(apart.set("c", Vec::new()), None);
        let words = [vec![turn("a"), turn("b")], vec![turn("c")]].map(|turns| apart.set("c", turns).unwrap());
        let line = to_json(&[&words[1], &serde_json::from_slice(&others).unwrap(), &words[0]]);
        let text = DetachedLine { line: line.into(), apart }.into_text();
        let others = String::from_utf8(others).unwrap();
        assert_eq!(text, format!(r#"[{{"id":"c"}},{others},{{"id":"a"}},{{"id":"b"}}]"#));
    }
}
