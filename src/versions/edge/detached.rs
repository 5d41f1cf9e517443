//! Completed turns that are kept apart from a state or an action while the rest is translated.
//!
//! Owns: the placeholders for such turns, and their replacement, turn by turn, when the line is
//! written. The turns of a long chat are never in memory all at once, in any version.
//! Never: defines how a version differs in a turn; its step does.

use bytes::{Buf, Bytes};
use memchr::memmem;
use serde_json::Value;

use crate::host::effects::Rope;
use crate::state::history::CompletedTurn;
use crate::versions::chain::Chain;
use crate::versions::node::Node;
use crate::versions::step::OutgoingState;
use crate::versions::translation::{CoreState, FoundState};
use crate::wire::rpc::{sorted, to_json, RequestId};

/// Member of a state with its completed turns.
const TURNS: &str = "turns";

/// Returns where the second text begins in the first one; `None` if it is not in it.
type Find<'a> = dyn FnMut(&[u8], &[u8]) -> Option<usize> + 'a;

/// Turns that are represented by placeholders.
pub(super) struct DetachedTurns {
    /// Steps to the version in which they are sent.
    chain: Chain,
    /// Prefix of the placeholders.
    word: String,
    lists: Vec<DetachedTurnList>,
}

struct DetachedTurnList {
    /// Placeholder, as JSON text.
    word: String,
    chat: String,
    turns: Vec<CompletedTurn>,
}

impl DetachedTurns {
    /// Starts without turns. `others` are the JSON texts around them, which contain no placeholder.
    pub(super) fn new(chain: Chain, others: &[Vec<u8>]) -> Self {
        let is_said = |word: &String| others.iter().any(|text| memmem::find(text, word.as_bytes()).is_some());
        let mut words = (0_u64..).map(|number| format!("turns apart {number}"));
        let word = words.find(|word| !is_said(word)).unwrap_or_default();
        Self { chain, word, lists: Vec::new() }
    }

    /// Prepares states for the steps. All completed turns of a chat but the last, which steps may
    /// need, become a placeholder. The `id` and the `rest` are sent in the same line.
    pub(super) fn of_states(
        chain: Chain,
        found: Vec<FoundState>,
        id: &RequestId,
        rest: &Value,
    ) -> (Vec<OutgoingState>, Self) {
        let (mut outgoing_states, earlier): (Vec<OutgoingState>, Vec<_>) =
            found.into_iter().map(shot_of).unzip();
        if earlier.iter().all(Vec::is_empty) {
            return (outgoing_states, Self::new(chain, &[]));
        }
        let of_shot = |outgoing: &OutgoingState| [to_json(&outgoing.state), to_json(&outgoing.summary)];
        let others = outgoing_states.iter().flat_map(of_shot).chain([to_json(rest), id.as_json().to_vec()]);
        let mut apart = Self::new(chain, &others.collect::<Vec<_>>());
        for (outgoing, turns) in outgoing_states.iter_mut().zip(earlier) {
            let word = apart.set(&outgoing.channel, turns);
            if let (Some(word), Some(Value::Array(shown))) = (word, outgoing.state.get_mut(TURNS)) {
                shown.insert(0, word);
            }
        }
        (outgoing_states, apart)
    }

    /// Adds turns of a chat. Returns their placeholder; `None` if there are no turns.
    pub(super) fn set(&mut self, chat: &str, turns: Vec<CompletedTurn>) -> Option<Value> {
        if turns.is_empty() {
            return None;
        }
        let word = format!("{}, {}", self.word, self.lists.len());
        self.lists.push(DetachedTurnList { word: format!("\"{word}\""), chat: chat.to_owned(), turns });
        Some(word.into())
    }

    /// Passes a line to `take` in pieces, with each turn's text as `said` returns it, until `take`
    /// returns false.
    pub(super) fn write(
        &self,
        mut line: Bytes,
        said: &mut dyn FnMut(Bytes) -> Bytes,
        take: &mut dyn FnMut(Bytes) -> bool,
    ) {
        while let Some((at, list)) = self.next_in(&line, &mut memmem::find) {
            if !take(line.split_to(at)) || !Rope::items(&list.chat, list.turns.clone()).write(said, take) {
                return;
            }
            line.advance(list.word.len());
        }
        take(line);
    }

    /// Returns where the first placeholder of a text begins, with its turns. `find` searches for
    /// the beginning that all placeholders share: a line can have those of thousands of chats.
    fn next_in(&self, text: &[u8], find: &mut Find<'_>) -> Option<(usize, &DetachedTurnList)> {
        let prefix = format!("\"{}, ", self.word);
        let mut searched = 0;
        loop {
            let at = searched + find(text.get(searched..)?, prefix.as_bytes())?;
            searched = at + prefix.len();
            let digits = text[searched..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number = std::str::from_utf8(&text[searched..searched + digits]).ok();
            let list = number.and_then(|number| self.lists.get(number.parse::<usize>().ok()?));
            if let Some(list) = list.filter(|list| text[at..].starts_with(list.word.as_bytes())) {
                return Some((at, list));
            }
        }
    }

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

/// Returns a state with only the last of its completed turns, and the earlier turns.
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

/// Translated line with placeholders for turns.
pub(super) struct DetachedLine {
    pub(super) line: Bytes,
    pub(super) apart: DetachedTurns,
}

impl DetachedLine {
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
        let mut apart =
            DetachedTurns::new(Chain::to(Dialect::V0_9_0, Dialect::NEWEST), std::slice::from_ref(&others));
        assert_eq!(apart.set("c", Vec::new()), None);
        let words = [vec![turn("a"), turn("b")], vec![turn("c")]].map(|turns| apart.set("c", turns).unwrap());
        let line = to_json(&[&words[1], &serde_json::from_slice(&others).unwrap(), &words[0]]);
        let text = DetachedLine { line: line.into(), apart }.into_text();
        let others = String::from_utf8(others).unwrap();
        assert_eq!(text, format!(r#"[{{"id":"c"}},{others},{{"id":"a"}},{{"id":"b"}}]"#));
    }

    #[test]
    fn each_byte_of_a_line_is_searched_once_however_many_chats_it_has() {
        let searched_bytes = |chats: usize| {
            let turn = CompletedTurn::from_stored(br#"{"id":"t"}"#.to_vec().into()).unwrap();
            let mut apart = DetachedTurns::new(Chain::to(Dialect::V0_9_0, Dialect::NEWEST), &[]);
            let words: Vec<Value> = (0..chats).filter_map(|_| apart.set("c", vec![turn.clone()])).collect();
            let mut line = Bytes::from(to_json(&words));
            let (bytes, mut searched, mut found) = (line.len(), 0, 0);
            let mut find = |text: &[u8], word: &[u8]| {
                let at = memmem::find(text, word);
                searched += at.map_or(text.len(), |at| at + word.len());
                at
            };
            while let Some((at, list)) = apart.next_in(&line, &mut find) {
                line.advance(at + list.word.len());
                found += 1;
            }
            assert_eq!(found, chats);
            assert!(searched <= bytes, "{searched} bytes of {bytes} with {chats} chats");
        };
        [1, 50, 200].into_iter().for_each(searched_bytes);
    }
}
