//! Sequencing: the one place where actions change the state of a channel.
//!
//! Owns: reducing an action, numbering it, logging it and sending it to subscribers, in one step;
//! and the lines that go to one client alone.
//! Never: decides whether an action should happen.

use ahp::reducers::ReduceOutcome;
use ahp_types::actions::{ActionOrigin, StateAction, TerminalDataAction};
use bytes::Bytes;
use serde_json::value::RawValue;

use crate::host::effects::{ActionLine, ChannelId, ConnectionId, Frame, Output, PartKey, Record};
use crate::host::ledger::contents::action_for_clients;
use crate::host::ledger::Ledger;
use crate::host::refusal::Refusal;
use crate::host::Step;
use crate::wire::action_lines::{action_json, envelope_line};
use crate::wire::rpc::to_sorted_json;
use crate::wire::text;

impl Ledger {
    /// Applies an action to a channel's state, gives it the next number, logs it, and sends it to
    /// the channel's subscribers. Nothing else changes what an action
    /// can carry.
    ///
    /// An action that the reducer ignores is a bug of the host: it is logged and has no effect.
    pub(in crate::host) fn sequence(
        &mut self,
        step: &mut Step<'_>,
        target: impl Into<ChannelId>,
        action: StateAction,
        origin: Option<ActionOrigin>,
    ) {
        self.sequence_part(step, target.into(), &action, origin.as_ref(), None);
    }

    /// Sequences an action, which appends to this response part if there is one: it may be merged
    /// with others of that part while it waits to be sent.
    pub(in crate::host) fn sequence_part(
        &mut self,
        step: &mut Step<'_>,
        target: ChannelId,
        action: &StateAction,
        origin: Option<&ActionOrigin>,
        part: Option<PartKey>,
    ) {
        self.send_turns_before(step, target, action);
        let is_persistent = self.channels.is_persistent(target);
        let Some((outcome, channel)) = self.channels.reduce(target, action) else {
            tracing::error!(
                ?target,
                "a mistake of this program: an action is meant for a channel that is not there"
            );
            return;
        };
        if outcome != ReduceOutcome::Applied {
            // Its name only: what people and agents say does not belong in the log.
            let name = serde_json::to_value(action).unwrap_or_default()["type"].take();
            tracing::error!(?outcome, %name, "a mistake of this program: the reducer has ignored an action of the host");
            return;
        }
        self.head += 1;
        channel.last_seq = self.head;
        let line_of = |action: &StateAction| {
            let line = envelope_line(&channel.uri, &action_json(action), self.head, origin, None);
            ActionLine { line, server_seq: self.head, delta: part }
        };
        let whole = line_of(action);
        let line =
            action_for_clients(&channel.uri, action).map_or_else(|| whole.clone(), |told| line_of(&told));
        // The number is kept in any case: it is given once, also when this process ends.
        let kept = if is_persistent { whole } else { line_of(&nothing()) };
        self.log.push(target, line.clone());
        step.emit(Output::Record(Record::Action(target, kept)));
        for &connection in &channel.subscribers {
            // Only text is ever held back, so nothing else is asked about.
            let subscription =
                part.and_then(|_| self.subscriptions.get(connection, target)).and_then(|it| it.delay_ms);
            step.emit(Output::Frame(
                connection,
                match subscription {
                    None => Frame::Action(line.clone()),
                    Some(delay_ms) => Frame::Delta(line.clone(), delay_ms),
                },
            ));
        }
        self.note_windows(target, action);
        self.note_row(step, target, action, line.line.len());
        if part.is_none() {
            // Nothing is derived from the text of a part.
            self.derive(target, action);
        }
    }

    /// Answers a client's action to its sender alone: refused for a reason, or acknowledged because
    /// it changed nothing. The answer has no number of its own and is not replayed.
    pub(in crate::host) fn answer_action(
        &self,
        step: &mut Step<'_>,
        connection: ConnectionId,
        channel: &str,
        action: &RawValue,
        origin: &ActionOrigin,
        refusal: Option<&Refusal>,
    ) {
        let refusal = refusal.map(|refusal| text::message(&refusal.to_string()));
        let line = envelope_line(
            channel,
            action.get().as_bytes(),
            self.committed_head(),
            Some(origin),
            refusal.as_deref(),
        );
        step.emit(Output::Frame(connection, Frame::Answer(line)));
    }

    /// Sends a protocol notification to the subscribers of the root channel.
    pub(in crate::host) fn notify_root(
        &self,
        step: &mut Step<'_>,
        method: &'static str,
        params: impl serde::Serialize,
    ) {
        self.notify_root_of(step, method, &to_sorted_json(&params).into());
    }

    /// Sends a protocol notification whose params are JSON text already to the subscribers of the
    /// root channel.
    pub(in crate::host) fn notify_root_of(&self, step: &mut Step<'_>, method: &'static str, params: &Bytes) {
        for &connection in &self.channels.root.channel.subscribers {
            step.emit(Output::Frame(connection, Frame::Notification { method, params: params.clone() }));
        }
    }
}

/// Returns the action that is stored in place of one that must not be.
fn nothing() -> StateAction {
    StateAction::TerminalData(TerminalDataAction { data: String::new() })
}

/// Returns the line of an action that changes no state and has no number of its own.
pub(in crate::host) fn unsequenced_line(channel: &str, action: &StateAction, server_seq: u64) -> Bytes {
    envelope_line(channel, &action_json(action), server_seq, None, None)
}
