//! Sequencing: the one place where actions change the state of a channel.
//!
//! Owns: reducing, numbering, logging and sending an action, in one step; and the lines that go to
//! a single client.
//! Never: decides whether an action should happen.

use ahp::reducers::ReduceOutcome;
use ahp_types::actions::{ActionOrigin, StateAction, TerminalDataAction};
use bytes::Bytes;
use serde_json::value::RawValue;

use crate::host::effects::{
    ActionLine, ChannelId, ChatKey, ConnectionId, DeltaRun, Frame, Output, PartKey, Record, TextKind,
};
use crate::host::ledger::contents::action_for_clients;
use crate::host::ledger::Ledger;
use crate::host::model::Chat;
use crate::host::refusal::Refusal;
use crate::host::Step;
use crate::state::reduce::StreamedText;
use crate::wire::action_lines::{action_json, envelope_line, DeltaWriter};
use crate::wire::rpc::to_sorted_json;
use crate::wire::text;

/// Maximum bytes of lines that are sent as one batch; a single line may exceed it. Small batches
/// keep the count of bytes queued for a client precise.
const RUN_BYTES_MAX: usize = 32 << 10;

impl Ledger {
    /// Applies an action to a channel's state, numbers it, logs it, and sends it to the channel's
    /// subscribers. State that actions carry changes only here.
    ///
    /// An action that the reducer ignores is a bug of the host: it is logged and has no effect.
    pub(in crate::host) fn sequence(
        &mut self,
        step: &mut Step<'_>,
        target: impl Into<ChannelId>,
        action: StateAction,
        origin: Option<ActionOrigin>,
    ) {
        self.sequence_on(step, target.into(), &action, origin.as_ref());
    }

    fn sequence_on(
        &mut self,
        step: &mut Step<'_>,
        target: ChannelId,
        action: &StateAction,
        origin: Option<&ActionOrigin>,
    ) {
        self.send_turns_before(step, target, action);
        let is_persistent = self.channels.is_persistent(target);
        let Some((outcome, channel)) = self.channels.reduce(target, action) else {
            tracing::error!(
                ?target,
                "bug in this program: an action for a channel that does not exist was dropped"
            );
            return;
        };
        if outcome != ReduceOutcome::Applied {
            // Log the type only: content of users and agents does not belong in the log.
            let name = serde_json::to_value(action).unwrap_or_default()["type"].take();
            tracing::error!(
                ?outcome,
                %name,
                "bug in this program: the reducer ignored an action of the host, so no client receives it"
            );
            return;
        }
        self.head += 1;
        channel.last_seq = self.head;
        let line_of = |action: &StateAction| {
            let line = envelope_line(&channel.uri, &action_json(action), self.head, origin, None);
            ActionLine { line, server_seq: self.head, delta: None }
        };
        let whole = line_of(action);
        let line =
            action_for_clients(&channel.uri, action).map_or_else(|| whole.clone(), |shown| line_of(&shown));
        // A number is stored even without its action: it must never be reused, also after a crash.
        let kept = if is_persistent { whole } else { line_of(&nothing()) };
        let stored_bytes = kept.line.len();
        self.log.push(target, line.clone());
        step.emit(Output::Record(Record::Action(target, kept)));
        for &connection in &channel.subscribers {
            step.emit(Output::Frame(connection, Frame::Action(line.clone())));
        }
        self.note_windows(target, action);
        self.note_row(step, target, action, stored_bytes);
        self.derive(target, action);
    }

    /// Sequences texts, each as an action that appends to the open part of a chat's run, until the
    /// turn exceeds its size limit. Queued deltas may be merged. No state is derived from them.
    pub(in crate::host) fn append_texts(&mut self, step: &mut Step<'_>, key: ChatKey, texts: &[String]) {
        let Some(Chat { channel, conversation, run: Some(run), .. }) = self.channels.chats.known_mut(key)
        else {
            return;
        };
        let Some(open) = &run.open_part else { return };
        let (action, kind) = match open.kind {
            TextKind::Markdown => ("chat/delta", StreamedText::Markdown),
            TextKind::Reasoning => ("chat/reasoning", StreamedText::Reasoning),
        };
        let Some(mut end) = conversation.text_end(&run.turn_id, &open.id, kind) else {
            tracing::error!(?key, "bug in this program: text for a part that does not exist was dropped");
            return;
        };
        let part = PartKey { run: run.id, part: open.number };
        let mut writer = DeltaWriter::new(&channel.uri, action, &run.turn_id, &open.id);
        let (mut rest, mut line_bytes) = (texts, 0);
        while !rest.is_empty() && (rest.len() == texts.len() || end.turn_bytes() <= self.limits.turn_bytes) {
            let first_seq = self.head + 1;
            let count = writer.make_room(rest, RUN_BYTES_MAX);
            let (now, behind) = rest.split_at(count);
            rest = behind;
            for text in now {
                self.head += 1;
                end.push(text, writer.push(text, self.head));
                if end.turn_bytes() > self.limits.turn_bytes {
                    break;
                }
            }
            channel.last_seq = self.head;
            let sent = DeltaRun { part, first_seq, lines: writer.take() };
            line_bytes += sent.lines.lines().len();
            step.out.reserve(count + channel.subscribers.len());
            for line in sent.actions() {
                self.log.push(key.into(), line.clone());
                step.emit(Output::Record(Record::Action(key.into(), line)));
            }
            for &connection in &channel.subscribers {
                let how = self.subscriptions.get(connection, key.into());
                let frame = Frame::Deltas(sent.clone(), how.and_then(|how| how.delay_ms));
                step.emit(Output::Frame(connection, frame));
            }
        }
        if self.channels.chats.known_mut(key).is_some_and(|chat| chat.note_lines(line_bytes)) {
            self.mark_dirty(key.into());
        }
    }

    /// Answers a client's action to its sender alone: with the reason of a refusal, or with an
    /// acknowledgement if it changed nothing. The answer is neither numbered nor replayed.
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

    pub(in crate::host) fn notify_root(
        &self,
        step: &mut Step<'_>,
        method: &'static str,
        params: impl serde::Serialize,
    ) {
        self.notify_root_of(step, method, &to_sorted_json(&params).into());
    }

    /// Sends a notification with params in JSON text to the subscribers of the root channel.
    pub(in crate::host) fn notify_root_of(&self, step: &mut Step<'_>, method: &'static str, params: &Bytes) {
        for &connection in &self.channels.root.channel.subscribers {
            step.emit(Output::Frame(connection, Frame::Notification { method, params: params.clone() }));
        }
    }
}

/// Returns the empty action that is stored in place of one on a channel that is not persistent.
fn nothing() -> StateAction {
    StateAction::TerminalData(TerminalDataAction { data: String::new() })
}

/// Returns the line of an action that changes no state and has no number of its own.
pub(in crate::host) fn unsequenced_line(channel: &str, action: &StateAction, server_seq: u64) -> Bytes {
    envelope_line(channel, &action_json(action), server_seq, None, None)
}
