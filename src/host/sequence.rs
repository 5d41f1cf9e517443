//! The one place where state changes, and how it is shown.
//!
//! Owns: reducing an action, numbering it, logging it and fanning it out, in one step; snapshots;
//! and the answers that go to the sender of an action alone.
//! Never: decides whether an action should happen.

use ahp::reducers::ReduceOutcome;
use ahp_types::actions::{ActionOrigin, StateAction, TerminalDataAction};
use bytes::Bytes;
use serde_json::value::RawValue;

use super::contents::{tell_state, told_action};
use super::effects::ChannelId;
use super::effects::ToldState;
use super::effects::{ActionLine, ConnectionId, Frame, Output, PartKey, Record};
use super::model::Subscription;
use super::refusal::Refusal;
use super::{Host, Step};
use crate::wire::action_lines::{action_json, envelope_line};
use crate::wire::channels::ChannelKind;
use crate::wire::errors::RpcError;
use crate::wire::rpc::to_sorted_json;
use crate::wire::text;

impl Host {
    /// Applies an action to a channel's state, gives it the next number, logs it, and sends it to
    /// the channel's subscribers. Nothing else changes a channel's state.
    ///
    /// An action that the reducer does not take is a mistake of ours: it
    /// is reported in the log and has no effect.
    pub(super) fn sequence(
        &mut self,
        step: &mut Step<'_>,
        target: impl Into<ChannelId>,
        action: StateAction,
        origin: Option<ActionOrigin>,
    ) {
        self.sequence_part(step, target.into(), action, origin, None);
    }

    /// [`Host::sequence`] for an action that may be merged with others of the same part while it
    /// waits.
    pub(super) fn sequence_part(
        &mut self,
        step: &mut Step<'_>,
        target: ChannelId,
        action: StateAction,
        origin: Option<ActionOrigin>,
        delta: Option<PartKey>,
    ) {
        self.before_action(step, target, &action);
        let is_written_down = self.channels.is_written_down(target);
        let Some((outcome, channel)) = self.channels.reduce(target, &action) else {
            tracing::error!(
                ?target,
                "a mistake of this program: an action is meant for a channel that is not there"
            );
            return;
        };
        if outcome != ReduceOutcome::Applied {
            // Its name only: what people and agents say does not belong in the log.
            let name = serde_json::to_value(&action).unwrap_or_default()["type"].take();
            tracing::error!(?outcome, %name, "a mistake of this program: the reducer has ignored an action of the host");
            return;
        }
        self.head += 1;
        channel.last_seq = self.head;
        let line_of = |action: &StateAction| {
            let line = envelope_line(&channel.uri, &action_json(action), self.head, origin.as_ref(), None);
            ActionLine { line, server_seq: self.head, delta }
        };
        let whole = line_of(&action);
        let line = told_action(&channel.uri, &action).map_or_else(|| whole.clone(), |told| line_of(&told));
        // The number is kept in any case: it is given once, also when this process ends.
        let kept = if is_written_down { whole } else { line_of(&nothing()) };
        self.log.push(target, line.clone());
        step.say(Output::Record(Record::Action(target, kept)));
        for &connection in &channel.subscribers {
            // Only text is ever held back, so nothing else is asked about.
            let subscription =
                delta.and_then(|_| self.connections.get(&connection)?.subscriptions.get(&target));
            step.say(Output::Frame(
                connection,
                match subscription.and_then(|subscription| subscription.delay_ms) {
                    None => Frame::Action(line.clone()),
                    Some(delay_ms) => Frame::Delta(line.clone(), delay_ms),
                },
            ));
        }
        self.after_action(step, target, &action, line.line.len());
    }

    /// Tells a client alone what became of its action: refused for a reason, or acknowledged
    /// because it changed nothing. Moves nothing and is not replayed.
    pub(super) fn answer_action(
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
            self.told_head(),
            Some(origin),
            refusal.as_deref(),
        );
        step.say(Output::Frame(connection, Frame::Answer(line)));
    }

    /// The last sequence number that may be told: the head, unless the store does not take it.
    pub(super) fn told_head(&self) -> u64 {
        self.failing.as_ref().map_or(self.head, |failing| failing.safe)
    }

    /// Whether anything may be changed: not while the store takes nothing.
    ///
    /// # Errors
    /// `-32603`, saying why not.
    pub(super) fn check_keeping(&self) -> Result<(), RpcError> {
        match &self.failing {
            Some(failing) => Err(RpcError::unavailable(&failing.reason)),
            None => Ok(()),
        }
    }

    /// Whether all of a channel's state may be told. What the store does not take yet may not: a
    /// process that starts anew would not know it.
    ///
    /// # Errors
    /// `-32603`, saying why not.
    pub(super) fn check_safe(&self, target: ChannelId) -> Result<(), RpcError> {
        match &self.failing {
            Some(failing)
                if self.channels.get(target).is_some_and(|channel| channel.last_seq > failing.safe) =>
            {
                Err(RpcError::unavailable(&failing.reason))
            }
            _ => Ok(()),
        }
    }

    /// The channel's state now; a chat's with its turns from this one on.
    pub(super) fn told_state(&self, target: ChannelId, first_turn: usize) -> Option<ToldState> {
        let (mut state, turns) = self.channels.state(target, first_turn)?;
        tell_state(&mut state);
        let channel = self.channels.get(target)?.uri.clone();
        let from_seq = i64::try_from(self.told_head()).unwrap_or(i64::MAX);
        Some(ToldState { kind: target.kind, channel, state, turns: turns.to_vec(), from_seq })
    }

    /// Delivers a channel to a connection from now on, like this.
    pub(super) fn subscribe(&mut self, connection: ConnectionId, target: ChannelId, how: Subscription) {
        let Some(client) = self.connections.get_mut(&connection) else { return };
        let client_id = client.client_id.clone();
        self.watches_changed |= target.kind == ChannelKind::Watch;
        self.terminals_changed |= target.kind == ChannelKind::Terminal;
        if client.subscriptions.insert(target, how).is_none() {
            if let Some(channel) = self.channels.get_mut(target) {
                channel.subscribers.push(connection);
            }
        }
        self.sight_is_followed(target);
        self.compared_is_followed(target);
        if let Some(client_id) = client_id {
            self.is_followed(target, &client_id);
        }
    }

    /// Delivers it no more.
    pub(super) fn unsubscribe(&mut self, connection: ConnectionId, target: ChannelId) {
        self.watches_changed |= target.kind == ChannelKind::Watch;
        self.terminals_changed |= target.kind == ChannelKind::Terminal;
        self.sight_is_left(target);
        if let Some(client) = self.connections.get_mut(&connection) {
            client.subscriptions.remove(&target);
        }
        if let Some(channel) = self.channels.get_mut(target) {
            channel.subscribers.retain(|&subscriber| subscriber != connection);
        }
        if let Some(session) = self.channels.session_of(target) {
            self.note_use(session);
        }
    }

    /// Sends a protocol notification to the subscribers of the root channel.
    pub(super) fn notify_root(
        &self,
        step: &mut Step<'_>,
        method: &'static str,
        params: impl serde::Serialize,
    ) {
        self.notify_root_of(step, method, &to_sorted_json(&params).into());
    }

    /// The same, with params that are written already.
    pub(super) fn notify_root_of(&self, step: &mut Step<'_>, method: &'static str, params: &Bytes) {
        for &connection in &self.channels.root.channel.subscribers {
            step.say(Output::Frame(connection, Frame::Notification { method, params: params.clone() }));
        }
    }
}

/// What is written down in the place of what is not to be.
fn nothing() -> StateAction {
    StateAction::TerminalData(TerminalDataAction { data: String::new() })
}

/// The line of an action that is no change of a state: nothing is counted by it.
pub(super) fn unsequenced_line(channel: &str, action: &StateAction, server_seq: u64) -> Bytes {
    envelope_line(channel, &action_json(action), server_seq, None, None)
}
