//! Mirror of a client: the states that the official reducers build from its messages.
//!
//! Owns: applying actions, comparing states except for what no action can carry, and what must be
//! true of a chat whatever happened to it.
//! Never: speaks to a host.

use std::collections::{BTreeMap, BTreeSet};

use ahp::reducers::{
    apply_action_to_annotations, apply_action_to_chat, apply_action_to_root, apply_action_to_session,
    ReduceOutcome,
};
use ahp_sidecar::conform::mirror;
use ahp_types::actions::ActionEnvelope;
use ahp_types::state::{
    Annotation, ChatState, Message, ResponsePart, SessionStatus, Snapshot, SnapshotState, ToolCallState,
    TurnState,
};
use serde_json::{json, Value};

use super::cast::times_done;

/// Mirrors of a client and the last sequence number that it has seen.
#[derive(Debug, Clone, Default)]
pub struct Mirrors {
    pub cursor: u64,
    pub states: BTreeMap<String, SnapshotState>,
}

impl Mirrors {
    pub fn uris(&self) -> Vec<String> {
        self.states.keys().cloned().collect()
    }

    pub fn chats(&self) -> impl Iterator<Item = (&String, &ChatState)> {
        self.states.iter().filter_map(|(uri, state)| match state {
            SnapshotState::Chat(chat) => Some((uri, &**chat)),
            _ => None,
        })
    }

    pub fn chat(&self, uri: &str) -> Option<&ChatState> {
        match self.states.get(uri) {
            Some(SnapshotState::Chat(chat)) => Some(chat),
            _ => None,
        }
    }

    pub fn annotations(&self, uri: &str) -> &[Annotation] {
        match self.states.get(uri) {
            Some(SnapshotState::Annotations(state)) => &state.annotations,
            _ => &[],
        }
    }

    pub fn put(&mut self, snapshot: Snapshot) {
        self.cursor = self.cursor.max(u64::try_from(snapshot.from_seq).unwrap());
        self.states.insert(snapshot.resource, snapshot.state);
    }

    /// Takes in an action that was sequenced, if it is new to this client.
    pub fn apply(&mut self, envelope: &ActionEnvelope) {
        if envelope.server_seq <= self.cursor {
            return;
        }
        self.cursor = envelope.server_seq;
        let action = &envelope.action;
        let outcome = match self.states.get_mut(&envelope.channel) {
            Some(SnapshotState::Root(state)) => apply_action_to_root(state, action),
            Some(SnapshotState::Session(state)) => apply_action_to_session(state, action),
            Some(SnapshotState::Chat(state)) => apply_action_to_chat(state, action),
            Some(SnapshotState::Annotations(state)) => apply_action_to_annotations(state, action),
            _ => panic!("an action on a channel that nobody subscribed to: {envelope:?}"),
        };
        assert_eq!(outcome, ReduceOutcome::Applied, "not taken by the reducer: {envelope:?}");
    }
}

/// Returns a state as it is compared: without what no action can carry.
pub fn masked(state: &SnapshotState) -> Value {
    serde_json::to_value(mirror::masked(state)).unwrap()
}

/// A turn, over or not.
struct AnyTurn<'a> {
    id: &'a str,
    message: &'a Message,
    parts: &'a [ResponsePart],
    state: Option<TurnState>,
}

fn turns_of(chat: &ChatState) -> Vec<AnyTurn<'_>> {
    let over = chat.turns.iter().map(|turn| AnyTurn {
        id: &turn.id,
        message: &turn.message,
        parts: &turn.response_parts,
        state: Some(turn.state),
    });
    let active = chat.active_turn.iter().map(|turn| AnyTurn {
        id: &turn.id,
        message: &turn.message,
        parts: &turn.response_parts,
        state: None,
    });
    over.chain(active).collect()
}

/// Checks the invariants of a chat: no turn and no message occurs twice, and no step of a script
/// was done twice, or is missing in a completed turn.
pub fn check_chat(uri: &str, chat: &ChatState) {
    let (mut ids, mut texts) = (BTreeSet::new(), BTreeSet::new());
    let turns = turns_of(chat);
    for turn in &turns {
        assert!(ids.insert(turn.id), "{uri}: the turn {} is there twice", turn.id);
        assert!(texts.insert(&turn.message.text), "{uri}: a message was run twice: {:?}", turn.message.text);
    }
    for queued in chat.queued_messages.iter().flatten() {
        assert!(texts.insert(&queued.message.text), "{uri}: queued and run: {:?}", queued.message.text);
    }
    for turn in turns {
        for step in turn.message.text.lines() {
            let Some(done) = times_done(step, turn.parts) else { continue };
            assert!(done <= 1, "{uri}: {} did `{step}` {done} times: {:#?}", turn.id, turn.parts);
            let complete = turn.state == Some(TurnState::Complete);
            assert!(
                done == 1 || !complete,
                "{uri}: {} is complete without `{step}`: {:?} {:#?}",
                turn.id,
                turn.message.text,
                turn.parts
            );
        }
    }
}

/// Checks that a chat in which nothing can run has nothing open.
pub fn check_idle_chat(uri: &str, chat: &ChatState) {
    assert!(chat.active_turn.is_none(), "{uri}: a turn runs that nobody asked for");
    for part in chat.turns.iter().flat_map(|turn| &turn.response_parts) {
        match part {
            ResponsePart::ToolCall(part) => {
                let over =
                    matches!(part.tool_call, ToolCallState::Completed(_) | ToolCallState::Cancelled(_));
                assert!(over, "{uri}: a call is open in a turn that is over: {part:?}");
            }
            ResponsePart::InputRequest(part) => {
                assert!(
                    part.response.is_some(),
                    "{uri}: a question is open in a turn that is over: {part:?}"
                );
            }
            _ => {}
        }
    }
}

/// Not what is going on, and not whether it was read: the end of a turn is new to everybody.
const KEPT_FLAGS: u32 = !(SessionStatus::IsRead.bits() | ((1 << 5) - 1));

/// Checks that the earlier state of a channel is retained, where only snapshots are sent: no
/// request about it may be in flight.
pub fn check_retained(uri: &str, before: &SnapshotState, after: &SnapshotState) {
    match (before, after) {
        (SnapshotState::Session(before), SnapshotState::Session(after)) => {
            // The agent may have given it another one; not when the user has named it.
            if before.title.starts_with("title-") {
                assert_eq!(before.title, after.title, "{uri}: its title");
            }
            assert_eq!(before.status & KEPT_FLAGS, after.status & KEPT_FLAGS, "{uri}: its flags");
            assert_eq!(before.default_chat, after.default_chat, "{uri}: its default chat");
        }
        (SnapshotState::Annotations(before), SnapshotState::Annotations(after)) => {
            assert_eq!(before.annotations, after.annotations, "{uri}");
        }
        (SnapshotState::Chat(before), SnapshotState::Chat(after)) => {
            assert_eq!(before.draft, after.draft, "{uri}: its draft");
            assert_eq!(before.status & KEPT_FLAGS, after.status & KEPT_FLAGS, "{uri}: its flags");
            for turn in &before.turns {
                let kept = after.turns.iter().find(|kept| kept.id == turn.id);
                assert_eq!(kept, Some(turn), "{uri}: its turn {}", turn.id);
            }
            let now = turns_of(after);
            if let Some(running) = &before.active_turn {
                let kept = now.iter().find(|kept| kept.id == running.id).map(|turn| turn.parts);
                check_parts(uri, &running.response_parts, kept.unwrap_or_default());
            }
            for message in before.queued_messages.iter().flatten() {
                let queued = after.queued_messages.iter().flatten().any(|queued| queued == message);
                let run = now.iter().any(|turn| turn.message.text == message.message.text);
                assert!(queued || run, "{uri}: its queued message {}", message.id);
            }
        }
        (SnapshotState::Root(_), SnapshotState::Root(_)) => {}
        _ => panic!("{uri} has become something else"),
    }
}

/// Texts are kept, and answers.
fn check_parts(uri: &str, before: &[ResponsePart], after: &[ResponsePart]) {
    assert!(before.len() <= after.len(), "{uri}: parts of the interrupted turn are gone");
    for (before, after) in before.iter().zip(after) {
        match (before, after) {
            (ResponsePart::Markdown(before), ResponsePart::Markdown(after)) => {
                assert!(after.content.starts_with(&before.content), "{uri}: the text of {}", before.id);
            }
            (ResponsePart::InputRequest(before), ResponsePart::InputRequest(after)) => {
                assert_eq!(before.request.id, after.request.id, "{uri}");
                if before.response.is_some() {
                    assert_eq!(before, after, "{uri}: the answer to {}", before.request.id);
                }
            }
            (ResponsePart::ToolCall(_), ResponsePart::ToolCall(_)) => {}
            (before, after) => assert_eq!(json!(before), json!(after), "{uri}"),
        }
    }
}
