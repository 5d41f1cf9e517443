//! Turns that the agent begins by itself, without a prompt: Claude and Qwen Code continue when a
//! background command has ended.
//!
//! Owns: which messages of an agent need a turn; holding them until one is open; and the end of a
//! turn that the agent has begun: when the agent reports it, else when no call or question is open
//! in it and the agent is silent.
//! Never: opens a turn itself, or requests one for messages about the session (its commands, modes,
//! options, title, usage and plan).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokio::time::Instant;

use super::run::{PromptRun, RunOrigin};
use super::updates::UpdateMembers;
use super::{questions, AcpConversation, Next};
use crate::backend::acp::agent::AgentLease;
use crate::backend::acp::peer::{AgentRequest, PeerMessage};
use crate::host::effects::{Event, RunId, TurnCause, TurnEnd, TurnEvent};

/// Silence after which an own turn without open calls or questions is over.
const SILENCE: Duration = Duration::from_secs(2);

/// Silence after which an own turn is over if the agent reports the end of its work. In between,
/// its model may think for that long.
const SILENCE_BEFORE_END: Duration = Duration::from_secs(30);

/// Maximum time for which a command counts as running in the background: not every agent reports
/// its end.
const BACKGROUND_AT_MOST: Duration = Duration::from_secs(2 * 60 * 60);

/// Maximum number of messages held until they have a turn. Beyond it, the agent is not read.
const HELD_MAX: usize = 64;

/// Method by which Qwen Code announces an own turn: a request, or (about a goal) a notification.
pub(super) const START_TURN: &str = "_qwencode/start_turn";

/// Method by which Qwen Code reports the end of an own turn.
const END_TURN: &str = "_qwencode/end_turn";

/// Member of the `_meta` of a usage update by which Claude reports the end of an own turn, and its
/// cause.
const CLAUDE_ORIGIN: &str = "_claude/origin";

/// Member of the `_meta` of an update by which Qwen Code reports that a background command has
/// ended.
const QWEN_TASK: &str = "backgroundTask";

const BACKGROUND_MAX: usize = 100;

/// Beginning of a piece of an answer in which Gemini reports a change of its mode.
const GEMINI_MODE: &str = "[MODE_UPDATE]";

/// State of the turns that the agent begins by itself: messages that wait for one, and the last one
/// if it was cancelled.
#[derive(Debug, Default)]
pub(super) struct OwnTurns {
    /// Messages to handle in the next turn, in order.
    held: VecDeque<PeerMessage>,
    /// Turn that the host was asked for, until a turn begins.
    asked: Option<AskedTurn>,
    /// Last own turn, if it was cancelled: further messages belong to it.
    cancelled: Option<CancelledOwnTurn>,
    /// Commands that the agent has left running in the background, oldest first.
    background: VecDeque<BackgroundWork>,
    /// Lease that keeps the agent running while background commands run.
    needed: Option<AgentLease>,
}

#[derive(Debug)]
struct AskedTurn {
    /// Lease that keeps the agent running; `None` if it was being stopped.
    used: Option<AgentLease>,
    /// Set if the agent has ended; the held messages are handled first.
    agent_has_ended: bool,
}

/// Command that runs in the background, by the id of the call that started it.
#[derive(Debug)]
struct BackgroundWork {
    call: String,
    label: String,
    until: Instant,
}

/// Time in which the agent may still send messages about a cancelled turn of its own.
#[derive(Debug, Clone, Copy)]
struct CancelledOwnTurn {
    /// Time at which the turn counts as over if the agent stays silent until then.
    silent: Instant,
    /// Time at which the turn counts as over in any case.
    at_most: Instant,
}

#[derive(Debug)]
pub(super) struct OwnRun {
    /// Time of the last message in either direction.
    last_message_at: Instant,
    /// Set if the agent reports the end of its work.
    reports_end: bool,
}

#[derive(Deserialize)]
struct ChunkText<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Cow<'a, str>,
}

impl OwnTurns {
    /// Returns the time at which the next background command no longer counts as running.
    pub(super) fn background_until(&self) -> Option<Instant> {
        self.background.iter().map(|work| work.until).min()
    }

    pub(super) fn has_background(&self) -> bool {
        !self.background.is_empty()
    }

    /// Notes that the agent has ended. Returns whether a turn must begin first, for its held
    /// messages.
    pub(super) fn note_agent_end(&mut self) -> bool {
        let Some(asked) = &mut self.asked else { return false };
        asked.agent_has_ended = true;
        true
    }

    pub(super) fn drop_held(&mut self) {
        self.held.clear();
    }

    /// Drops a held call of a client's tool that the agent has cancelled.
    pub(super) fn drop_held_call(&mut self, number: u64) {
        self.held.retain(|held| !matches!(held, PeerMessage::Called(called) if called.number == number));
    }

    /// Returns whether messages of the agent wait for a turn.
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    pub(super) fn has_room(&self) -> bool {
        self.held.len() < HELD_MAX
    }
}

impl AcpConversation {
    /// Returns whether the agent's next message may be read.
    pub(super) fn may_receive(&self) -> bool {
        let agent_has_ended = self.own_turns.asked.as_ref().is_some_and(|asked| asked.agent_has_ended);
        self.events.is_empty() && self.own_turns.has_room() && !agent_has_ended
    }

    /// Holds a message that needs a turn if none is open, and asks the host for one; otherwise
    /// returns the message.
    pub(super) fn hold_for_turn(&mut self, message: PeerMessage) -> Option<PeerMessage> {
        self.note_activity();
        if self.run.is_some() {
            return self.hold_behind_answer(message);
        }
        let follows = !self.own_turns.held.is_empty()
            && (matches!(message, PeerMessage::Withdrawn(_)) || reports_end(&message));
        if !follows {
            let Some(cause) = self.needs_turn(&message) else { return Some(message) };
            if self.extend_cancelled() {
                return Some(message);
            }
            self.ask_for_turn(cause);
        }
        self.own_turns.held.push_back(message);
        None
    }

    /// Holds a message that follows the answer to a prompt and needs a running turn, until the run
    /// has ended; otherwise returns the message. Text still belongs to the run: some agents answer
    /// before the rest of their output.
    fn hold_behind_answer(&mut self, message: PeerMessage) -> Option<PeerMessage> {
        if !self.holds_behind_answer() {
            return Some(message);
        }
        let follows = !self.own_turns.held.is_empty();
        let holds = match &message {
            PeerMessage::Update(_) => follows && self.needs_turn(&message).is_some(),
            PeerMessage::Withdrawn(_) => follows,
            _ => self.needs_turn(&message).is_some(),
        };
        if !holds {
            return Some(message);
        }
        self.own_turns.held.push_back(message);
        None
    }

    /// Returns whether the agent has answered its prompt in a run that has not ended, and a message
    /// can be held. The last place stays free: if all were taken, the agent would not be read, and
    /// the run would never end.
    fn holds_behind_answer(&self) -> bool {
        let is_over = self.run.as_ref().is_some_and(|run| run.is_answered() && !run.is_cancelled());
        is_over && self.own_turns.held.len() + 1 < HELD_MAX
    }

    /// Handles the messages held behind the answer of a cancelled run, which refuses them.
    pub(super) fn refuse_all_held(&mut self) {
        for message in std::mem::take(&mut self.own_turns.held) {
            // No held message ends the conversation.
            self.receive(message);
        }
    }

    /// Begins the run of a turn that the host has opened for the agent's own work.
    pub(super) fn begin_own(&mut self, run: RunId) -> Next {
        let Some(AskedTurn { used, .. }) = self.own_turns.asked.take() else {
            self.events.push(Event::Turn(run, TurnEvent::Ended(TurnEnd::Complete)));
            return Next::Hear;
        };
        let reports_end = self.running.quirks.ends_own_turns;
        let origin = RunOrigin::Own(OwnRun { last_message_at: Instant::now(), reports_end });
        self.run = Some(PromptRun::new(run, origin, used, self.agent.spec.turn_limit));
        self.replay_held()
    }

    pub(super) fn replay_held(&mut self) -> Next {
        self.own_turns.asked = None;
        self.own_turns.cancelled = None;
        for message in std::mem::take(&mut self.own_turns.held) {
            if matches!(self.receive(message), Next::Leave) {
                return Next::Leave;
            }
        }
        Next::Hear
    }

    /// Records the background command that a completed call has left running, if any.
    pub(super) fn note_background(&mut self, call: String) {
        let Some(command) = self.calls.in_background(&call) else { return };
        if self.own_turns.background.len() >= BACKGROUND_MAX {
            return;
        }
        let (label, until) = (command.label.clone(), Instant::now() + BACKGROUND_AT_MOST);
        self.own_turns.background.push_back(BackgroundWork { call: call.clone(), label, until });
        if self.own_turns.needed.is_none() {
            self.own_turns.needed = self.running.lease();
        }
        self.events.push(Event::Background { id: call, command: Some(command) });
    }

    /// Ends the oldest background command that `is_it` matches.
    fn background_has_ended(&mut self, is_it: impl Fn(&BackgroundWork) -> bool) {
        let background = &mut self.own_turns.background;
        let at = background.iter().position(is_it);
        if let Some(BackgroundWork { call, .. }) = at.and_then(|at| background.remove(at)) {
            self.events.push(Event::Background { id: call, command: None });
        }
        if self.own_turns.background.is_empty() {
            self.own_turns.needed = None;
        }
    }

    /// Drops background commands that have exceeded their maximum time.
    pub(super) fn drop_overdue_background(&mut self) -> Next {
        let now = Instant::now();
        self.background_has_ended(|work| work.until <= now);
        Next::Hear
    }

    /// Ends a background command if an update of Qwen Code reports its end.
    pub(super) fn note_background_update(&mut self, update: &RawValue) {
        if self.own_turns.background.is_empty() || !update.get().contains(QWEN_TASK) {
            return;
        }
        let Ok(UpdateMembers { meta: Some(meta), .. }) = serde_json::from_str(update.get()) else { return };
        let field = |name: &str| meta.get(QWEN_TASK)?.get(name)?.as_str();
        // The agent's answer to the report has this member, too.
        if meta.get("source").and_then(Value::as_str) != Some("background_notification") {
            return;
        }
        if field("kind") == Some("shell") && field("status") != Some("running") {
            let (call, label) = (field("toolUseId"), field("commandLabel"));
            let is_it = |work: &BackgroundWork| Some(&*work.call) == call || label == Some(&*work.label);
            self.background_has_ended(is_it);
        }
    }

    /// Requests a turn for held messages after a turn has ended or was cancelled.
    pub(super) fn retry_turn_request(&mut self) {
        if !self.own_turns.held.is_empty() {
            self.ask_for_turn(TurnCause::Agent);
        }
    }

    /// Restarts the silence of an own turn, after a message in either direction.
    pub(super) fn note_activity(&mut self) {
        if let Some(PromptRun { origin: RunOrigin::Own(own), .. }) = &mut self.run {
            own.last_message_at = Instant::now();
        }
    }

    /// Returns the time at which an own turn is over if no message arrives before; `None` if no own
    /// turn runs, or if a call or question is open in it.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        let run = self.run.as_ref().filter(|run| !run.is_cancelled())?;
        let RunOrigin::Own(own) = &run.origin else { return None };
        let is_open = self.calls.any_open() || !run.questions.is_empty() || !run.compactions.is_empty();
        if is_open || self.workspace.has_command_alone() || !self.events.is_empty() {
            return None;
        }
        Some(own.last_message_at + if own.reports_end { SILENCE_BEFORE_END } else { SILENCE })
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent_at().is_some_and(|at| at <= Instant::now())
    }

    /// Ends a cancelled own turn, since there is no prompt that the agent would answer.
    pub(super) fn end_cancelled_own_turn(&mut self) {
        let own = self.run.as_ref().filter(|run| run.is_own());
        if let Some(end) = own.and_then(PromptRun::outcome) {
            let now = Instant::now();
            let at_most = now + self.agent.spec.cancel_limit;
            self.own_turns.cancelled = Some(CancelledOwnTurn { silent: now + SILENCE, at_most });
            self.end(end);
        }
    }

    /// Handles a notification of an extension.
    pub(super) fn notified(&mut self, method: &str, params: &RawValue) -> Next {
        match method {
            START_TURN => self.reports_end(),
            END_TURN if self.run.as_ref().is_some_and(PromptRun::is_own) => {
                self.end(TurnEnd::Complete);
                return self.settle();
            }
            method => tracing::debug!(
                agent = self.agent.spec.name,
                method,
                "a notification of the agent was ignored: its method is unknown, or no turn of its own runs: {params}"
            ),
        }
        Next::Hear
    }

    /// Answers an agent that asks whether it may begin an own turn.
    pub(super) fn answer_begin_request(&mut self, request: &AgentRequest) {
        self.reports_end();
        let accepted = self.run.as_ref().is_some_and(PromptRun::is_own);
        self.receiver.answer(request, Ok(json!({ "accepted": accepted })));
    }

    fn reports_end(&mut self) {
        if let Some(PromptRun { origin: RunOrigin::Own(own), .. }) = &mut self.run {
            own.reports_end = true;
        }
    }

    /// Handles the report of Claude, in an update, that its own work is done. Returns whether that
    /// ends an own turn.
    pub(super) fn note_own_end(&mut self, update: &RawValue) -> bool {
        if !update.get().contains(CLAUDE_ORIGIN) {
            return false;
        }
        let Ok(UpdateMembers { session_update, meta: Some(meta), .. }) = serde_json::from_str(update.get())
        else {
            return false;
        };
        let Some(origin) = meta.get(CLAUDE_ORIGIN).filter(|_| session_update == "usage_update") else {
            return false;
        };
        if origin.get("kind").and_then(Value::as_str) == Some("task-notification") {
            // Claude does not report which one has ended.
            self.background_has_ended(|_| true);
        }
        self.run.as_ref().is_some_and(PromptRun::is_own)
    }

    /// Extends the time in which messages may follow a cancelled own turn, for one that belongs to
    /// it. Returns whether the message does.
    fn extend_cancelled(&mut self) -> bool {
        let now = Instant::now();
        let Some(cancelled) = &mut self.own_turns.cancelled else { return false };
        if now < cancelled.silent {
            cancelled.silent = (now + SILENCE).min(cancelled.at_most);
            return true;
        }
        self.own_turns.cancelled = None;
        false
    }

    /// Asks the host for a turn once, unless a turn is about to begin.
    fn ask_for_turn(&mut self, cause: TurnCause) {
        // Agents that give no cause continue because a background command has ended.
        let cause = if self.own_turns.has_background() { TurnCause::Background } else { cause };
        if self.own_turns.asked.is_none() && !self.settings.are_waited_for() {
            self.own_turns.asked = Some(AskedTurn { used: self.running.lease(), agent_has_ended: false });
            self.events.push(Event::Begins(cause));
        }
    }

    /// Returns the cause of the turn that a message needs; `None` if it needs none.
    fn needs_turn(&self, message: &PeerMessage) -> Option<TurnCause> {
        match message {
            PeerMessage::Update(raw) if self.session.was_prompted() => {
                let sign: UpdateMembers<'_> = serde_json::from_str(raw.get()).ok()?;
                let needs = match &*sign.session_update {
                    "agent_message_chunk" | "agent_thought_chunk" => has_content(&sign),
                    "tool_call_update" => {
                        let has_more = sign.content.is_some();
                        let id = sign.tool_call_id.as_ref().filter(|_| has_more || sign.status.is_some());
                        id.is_some_and(|id| self.calls.may_go_on(id, has_more))
                    }
                    "tool_call" | "notice" | "compaction_update" | "compaction_summary_chunk" => true,
                    _ => false,
                };
                let of_task = sign.meta.as_ref().is_some_and(|meta| meta.get(QWEN_TASK).is_some());
                needs.then_some(if of_task { TurnCause::Background } else { TurnCause::Agent })
            }
            PeerMessage::Request { method, params, .. } => match method.as_str() {
                "session/request_permission" | questions::METHOD => Some(TurnCause::Agent),
                "fs/write_text_file" if self.running.offers.writing => Some(TurnCause::Agent),
                "terminal/create" if self.running.offers.terminals => Some(TurnCause::Agent),
                START_TURN => Some(cause_of(params)),
                _ => None,
            },
            PeerMessage::Notified { method, params } if method == START_TURN => Some(cause_of(params)),
            PeerMessage::Called(_) => Some(TurnCause::Agent),
            _ => None,
        }
    }
}

/// Returns whether a message may report the end of the agent's work. If it were handled before the
/// held messages, it would end no turn, and theirs would last until the agent is silent.
fn reports_end(message: &PeerMessage) -> bool {
    match message {
        PeerMessage::Update(update) => update.get().contains(CLAUDE_ORIGIN),
        PeerMessage::Notified { method, .. } => method == END_TURN,
        _ => false,
    }
}

/// Returns the cause of an own turn of Qwen Code.
fn cause_of(params: &RawValue) -> TurnCause {
    #[derive(Deserialize)]
    struct Begins<'a> {
        #[serde(borrow, default)]
        source: Cow<'a, str>,
    }
    match serde_json::from_str::<Begins<'_>>(params.get()) {
        Ok(begins) if begins.source == "background_notification" => TurnCause::Background,
        _ => TurnCause::Agent,
    }
}

/// Returns whether a piece of an answer has visible content: some agents report usage in empty
/// pieces, and Gemini its mode in a piece of its own.
fn has_content(update: &UpdateMembers<'_>) -> bool {
    let text = update.content.and_then(|raw| serde_json::from_str::<ChunkText<'_>>(raw.get()).ok());
    let is_empty = |text: &str| text.trim().is_empty() || text.starts_with(GEMINI_MODE);
    !text.is_some_and(|it| it.kind == "text" && is_empty(&it.text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::acp::client_tools::ClientToolCall;

    #[test]
    fn cancelled_call_of_a_clients_tool_is_held_no_longer() {
        let (results, _) = tokio::sync::mpsc::unbounded_channel();
        let call = |number| {
            let (tool, arguments, results) = ("t".to_owned(), Value::Null, results.clone());
            let called = ClientToolCall { number, tool, arguments, mentions: Vec::new(), results };
            PeerMessage::Called(Box::new(called))
        };
        let held = [call(1), PeerMessage::Drained(1), call(2)].into();
        let mut own_turns = OwnTurns { held, ..OwnTurns::default() };
        own_turns.drop_held_call(1);
        let held: Vec<PeerMessage> = own_turns.held.into();
        let [PeerMessage::Drained(1), PeerMessage::Called(called)] = &held[..] else { panic!("{held:?}") };
        assert_eq!(called.number, 2);
    }
}
