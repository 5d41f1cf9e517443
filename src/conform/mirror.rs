//! Mirror of a channel, as a client holds it: a snapshot, and the actions after it.
//!
//! Owns: applying actions with the official reducers, and the comparison of a mirror with a fresh
//! snapshot, with the one list of members that no action carries.
//! Never: sends or receives a message.

use std::collections::BTreeSet;

use ahp::reducers::{
    apply_action_to_annotations, apply_action_to_automation, apply_action_to_automation_run,
    apply_action_to_canvas, apply_action_to_changeset, apply_action_to_chat, apply_action_to_resource_watch,
    apply_action_to_root, apply_action_to_session, apply_action_to_terminal, ReduceOutcome,
};
use ahp_types::actions::{ActionEnvelope, StateAction};
use ahp_types::state::{Snapshot, SnapshotState};
use anyhow::{ensure, Context, Result};
use serde_json::Value;

/// Bits 0–4 of a status: the activity.
pub const ACTIVITY: u32 = 31;

/// State of a channel, as a client holds it.
#[derive(Debug, Clone)]
pub struct ChannelMirror {
    /// State after the last applied action.
    pub state: SnapshotState,
    /// `serverSeq` of the last applied action, or of the snapshot.
    pub seen: i64,
}

impl ChannelMirror {
    /// Creates a mirror of a snapshot.
    pub fn new(snapshot: Snapshot) -> Self {
        Self { state: snapshot.state, seen: snapshot.from_seq }
    }

    /// Applies an action that is newer than everything applied before; returns `None` for others.
    ///
    /// # Errors
    /// When the reducer finds the action invalid.
    pub fn apply(&mut self, envelope: &ActionEnvelope) -> Result<Option<ReduceOutcome>> {
        let seq = i64::try_from(envelope.server_seq)?;
        // Loaded turns are no change: they come with the number of the last one.
        let loads = matches!(envelope.action, StateAction::ChatTurnsLoaded(_));
        if seq < self.seen || seq == self.seen && !loads {
            return Ok(None);
        }
        self.seen = seq;
        let outcome = reduce(&mut self.state, &envelope.action);
        ensure!(!matches!(outcome, ReduceOutcome::Invalid(_)), "{outcome:?} by {:?}", envelope.action);
        Ok(Some(outcome))
    }
}

/// Applies an action with the official reducer of the state.
fn reduce(state: &mut SnapshotState, action: &StateAction) -> ReduceOutcome {
    match state {
        SnapshotState::Root(state) => apply_action_to_root(state, action),
        SnapshotState::Session(state) => apply_action_to_session(state, action),
        SnapshotState::Chat(state) => apply_action_to_chat(state, action),
        SnapshotState::Canvas(state) => apply_action_to_canvas(state, action),
        SnapshotState::Terminal(state) => apply_action_to_terminal(state, action),
        SnapshotState::Changeset(state) => apply_action_to_changeset(state, action),
        SnapshotState::ResourceWatch(state) => apply_action_to_resource_watch(state, action),
        SnapshotState::Annotations(state) => apply_action_to_annotations(state, action),
        SnapshotState::Automations(state) => apply_action_to_automation(state, action),
        SnapshotState::AutomationRun(state) => apply_action_to_automation_run(state, action),
    }
}

/// Returns a state without what no action of the protocol carries. Nothing else is masked.
pub fn masked(state: &SnapshotState) -> SnapshotState {
    let mut state = state.clone();
    match &mut state {
        SnapshotState::Session(session) => {
            session.status &= !ACTIVITY;
            // The possible choices; actions carry the chosen ones.
            if let Some(config) = &mut session.config {
                config.schema.properties.clear();
            }
            // Counts, which the summary has too.
            if let Some(annotations) = &mut session.annotations {
                (annotations.annotation_count, annotations.entry_count) = (0, 0);
            }
        }
        SnapshotState::Chat(chat) => {
            chat.title.clear();
            (chat.changes, chat.interactivity) = (None, None);
        }
        _ => {}
    }
    state
}

/// Returns a state without the times of changes, which reducers of some versions do not set.
pub fn without_times(mut state: SnapshotState) -> SnapshotState {
    match &mut state {
        SnapshotState::Session(session) => {
            session.chats.iter_mut().for_each(|chat| chat.modified_at.clear());
        }
        SnapshotState::Chat(chat) => chat.modified_at.clear(),
        _ => {}
    }
    state
}

/// Adds to a chat, as a client with a window holds it, the turns that it does not hold: a cursor
/// exists exactly if there are any.
///
/// # Errors
/// When the mirror has more turns than exist, or a cursor without a reason, or none.
pub fn complete(held: &mut SnapshotState, shown: &SnapshotState) -> Result<()> {
    let (SnapshotState::Chat(held), SnapshotState::Chat(shown)) = (held, shown) else { return Ok(()) };
    let missing =
        shown.turns.len().checked_sub(held.turns.len()).context("it has more turns than there are")?;
    ensure!(
        held.turns_next_cursor.is_some() == (missing > 0),
        "{missing} missing, {:?}",
        held.turns_next_cursor
    );
    held.turns_next_cursor = None;
    held.turns.splice(..0, shown.turns[..missing].iter().cloned());
    Ok(())
}

/// Checks that a mirror equals a fresh snapshot.
///
/// # Errors
/// When it does not: the differing members, by path.
pub fn check_equal(held: &SnapshotState, shown: &SnapshotState) -> Result<()> {
    let (mut held, shown) = (masked(held), masked(shown));
    complete(&mut held, &shown)?;
    ensure!(held == shown, "{}", difference(&held, &shown)?);
    Ok(())
}

/// Returns the differences between two states, one member per line.
///
/// # Errors
/// When a state cannot be written as JSON.
pub fn difference(held: &SnapshotState, shown: &SnapshotState) -> Result<String> {
    fn walk(path: &str, held: &Value, shown: &Value, found: &mut String) {
        match (held, shown) {
            (Value::Object(a), Value::Object(b)) => {
                let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
                for key in keys {
                    walk(&format!("{path}.{key}"), &held[key], &shown[key], found);
                }
            }
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
                for (at, (held, shown)) in a.iter().zip(b).enumerate() {
                    walk(&format!("{path}[{at}]"), held, shown, found);
                }
            }
            _ if held == shown => {}
            _ => found.push_str(&format!("\n  {path}: the mirror has {held}, the snapshot {shown}")),
        }
    }
    let mut found = String::new();
    walk("", &serde_json::to_value(held)?, &serde_json::to_value(shown)?, &mut found);
    Ok(found)
}
