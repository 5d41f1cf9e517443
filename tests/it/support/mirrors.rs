//! Mirror of a terminal in a client.
//!
//! Owns: the mirror, made of what the client is told with the reducers of the protocol, and the law
//! for it: no action says that a terminal has forgotten its beginning, so a mirror may hold more,
//! and ends like a fresh snapshot.
//! Never: knows a host.

use ahp::reducers::apply_action_to_terminal;
use ahp_types::actions::ActionEnvelope;
use ahp_types::state::{Snapshot, SnapshotState, TerminalContentPart, TerminalState};
use serde_json::Value;

/// The state of a terminal, in its snapshot.
pub fn terminal_in(snapshot: &Value) -> TerminalState {
    let read: Snapshot = serde_json::from_value(snapshot.clone()).unwrap_or_else(|_| panic!("{snapshot}"));
    let SnapshotState::Terminal(state) = read.state else { panic!("no terminal") };
    *state
}

fn text_of_part(part: &TerminalContentPart) -> &str {
    match part {
        TerminalContentPart::Unclassified(part) => &part.value,
        TerminalContentPart::Command(part) => &part.output,
        part => panic!("an unknown part: {part:?}"),
    }
}

/// Returns the text that a terminal shows.
pub fn text_of_terminal(state: &TerminalState) -> String {
    state.content.iter().map(text_of_part).collect()
}

/// A part without its text.
fn without_text(part: &TerminalContentPart) -> TerminalContentPart {
    let mut part = part.clone();
    match &mut part {
        TerminalContentPart::Unclassified(part) => part.value.clear(),
        TerminalContentPart::Command(part) => part.output.clear(),
        _ => {}
    }
    part
}

/// Mirror of one terminal in one client.
#[derive(Debug, Default)]
pub struct TerminalMirror {
    /// The number of the last action that it knows.
    pub cursor: u64,
    /// State of the terminal; `None` before the first subscription.
    pub state: Option<TerminalState>,
}

impl TerminalMirror {
    /// Reads a line: an action, or an answer to `subscribe` or `reconnect`.
    pub fn read(&mut self, uri: &str, line: &Value, answer: &Value) {
        assert!(line.get("error").is_none(), "{line}");
        let mut envelopes = vec![line["params"].clone()];
        envelopes.extend(answer["actions"].as_array().into_iter().flatten().cloned());
        let snapshots = answer["snapshots"].as_array().into_iter().flatten();
        for snapshot in snapshots.chain(answer.get("snapshot")) {
            self.cursor = self.cursor.max(snapshot["fromSeq"].as_u64().unwrap());
            self.state = Some(terminal_in(snapshot));
        }
        for envelope in envelopes.iter().filter(|it| it["channel"] == *uri) {
            let envelope: ActionEnvelope = serde_json::from_value(envelope.clone()).unwrap();
            let (Some(state), None) = (&mut self.state, &envelope.rejection_reason) else { continue };
            if envelope.server_seq > self.cursor {
                apply_action_to_terminal(state, &envelope.action);
                self.cursor = envelope.server_seq;
            }
        }
    }

    /// Checks that the mirror's text ends like that of a fresh snapshot and that all other fields
    /// are equal.
    pub fn check(&self, fresh: &TerminalState) {
        let Some(state) = &self.state else { return };
        assert!(text_of_terminal(state).ends_with(&text_of_terminal(fresh)), "{state:?}\n{fresh:?}");
        let without_content = |state: &TerminalState| TerminalState { content: Vec::new(), ..state.clone() };
        assert_eq!(without_content(state), without_content(fresh));
        let forgotten = state.content.len().checked_sub(fresh.content.len()).expect("no part is lost");
        for (at, (held, told)) in state.content[forgotten..].iter().zip(&fresh.content).enumerate() {
            assert_eq!(without_text(held), without_text(told), "{state:?}\n{fresh:?}");
            // Only of the first the beginning may be forgotten.
            assert!(at == 0 || held == told, "{held:?}\n{told:?}");
        }
    }
}
