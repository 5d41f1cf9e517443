//! A chat's state and the reducers that change it.
//!
//! Owns: applying an action to a chat at a cost that does not grow with the length of the turn.
//! Each action means what it means to the official reducers (crate `ahp`). They walk all parts of a
//! turn for each action, so they get only the part that the action names, and this module itself
//! applies the two actions that append text. Of completed turns, which are text (see `history`),
//! they get only the named one. A property test compares both ways.
//! Never: decides whether an action is allowed, or assigns its number.

use std::collections::{HashMap, HashSet};

use ahp::reducers::{apply_action_to_chat, ReduceOutcome};
use ahp_types::actions::{ChatTurnStartedAction, StateAction};
use ahp_types::state::{
    ActiveTurn, ChangesSummary, ChatState, InputRequestResponsePart, PendingMessage, ResponsePart,
    SessionStatus, ToolCallState,
};
use serde_json::Value;

use super::history::{empty_completed, CompletedTurn, History};
use super::status::with_activity;
use super::steering::SteeringChange;
use crate::wire::rpc::json_bytes;
use crate::wire::text::{escaped_bytes, first_escaped_bytes};
use crate::wire::tool_calls::tool_call_id;

/// A chat's state, with an index of the active turn's parts.
#[derive(Debug)]
pub struct Conversation {
    state: ChatState,
    /// Messages for the agent during a turn, as clients of 1.1.0 list them.
    steering: Vec<PendingMessage>,
    history: History,
    index: PartIndex,
}

#[derive(Debug, Default)]
struct PartIndex {
    /// First part with this id: markdown parts, reasoning parts and tool calls share one id space.
    by_id: HashMap<String, usize>,
    tools: HashMap<String, usize>,
    /// Unanswered input requests.
    questions: HashMap<String, usize>,
    /// Parts that wait for the user.
    blocking: HashSet<usize>,
    /// Approximate length of each part's JSON text, in bytes.
    bytes: Vec<usize>,
    bytes_in_all: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum StreamedText {
    Markdown,
    Reasoning,
}

/// End of a part's text, for appending.
#[derive(Debug)]
pub(crate) struct TextEnd<'a> {
    /// The text; `None` for a part of another kind, which does not change although the official
    /// reducer reports the action as applied.
    text: Option<&'a mut String>,
    bytes: &'a mut usize,
    bytes_in_all: &'a mut usize,
}

impl TextEnd<'_> {
    /// Appends text, which takes `json_bytes` bytes inside a JSON string.
    pub(crate) fn push(&mut self, text: &str, json_bytes: usize) {
        if let Some(content) = &mut self.text {
            content.push_str(text);
            *self.bytes += json_bytes;
            *self.bytes_in_all += json_bytes;
        }
    }

    /// Returns the result of [`Conversation::turn_bytes`].
    pub(crate) fn turn_bytes(&self) -> usize {
        *self.bytes_in_all
    }
}

fn append(end: Option<TextEnd<'_>>, text: &str) -> ReduceOutcome {
    let Some(mut end) = end else { return ReduceOutcome::NoOp };
    end.push(text, escaped_bytes(text));
    ReduceOutcome::Applied
}

impl Conversation {
    /// Makes a conversation from a state. Completed turns in the state are appended to `history`.
    pub fn new(state: ChatState, history: History) -> Self {
        let index = PartIndex::of(&state);
        let mut conversation = Self { state, steering: Vec::new(), history, index };
        conversation.take_completed();
        conversation
    }

    /// Returns the state, without completed turns.
    pub fn state(&self) -> &ChatState {
        &self.state
    }

    /// Sets the list of steering messages.
    #[must_use]
    pub fn with_steering_messages(self, steering: Vec<PendingMessage>) -> Self {
        Self { steering, ..self }
    }

    /// Returns the list of steering messages; the single one of older versions is in the state.
    pub fn steering_messages(&self) -> &[PendingMessage] {
        &self.steering
    }

    /// Returns the completed turns.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns the approximate length of the JSON text of the active turn's parts, in bytes.
    pub fn turn_bytes(&self) -> usize {
        self.index.bytes_in_all
    }

    /// Returns the length of the state's JSON text without its turns, in bytes, with or without its
    /// draft.
    pub(crate) fn bytes_without_turns(&mut self, with_draft: bool) -> usize {
        let active = self.state.active_turn.take();
        let draft = if with_draft { None } else { self.state.draft.take() };
        let listed = if self.steering.is_empty() { 0 } else { json_bytes(&self.steering) };
        let bytes = json_bytes(&self.state) + listed;
        self.state.active_turn = active;
        self.state.draft = draft.or(self.state.draft.take());
        bytes
    }

    /// Truncates the active turn to `bytes_max` bytes of JSON text, without an action: for a stored
    /// turn that exceeds the limit. Returns whether anything was removed.
    pub(crate) fn cut_active_turn(&mut self, bytes_max: usize) -> bool {
        let Some(active) = self.state.active_turn.as_mut().filter(|_| self.index.bytes_in_all > bytes_max)
        else {
            return false;
        };
        let (mut room, mut kept) = (bytes_max, 0);
        for (part, bytes) in active.response_parts.iter_mut().zip(&self.index.bytes) {
            if *bytes > room {
                let text = match part {
                    ResponsePart::Markdown(part) => Some(&mut part.content),
                    ResponsePart::Reasoning(part) => Some(&mut part.content),
                    _ => None,
                };
                if let Some(text) = text {
                    let besides = bytes.saturating_sub(escaped_bytes(text));
                    let length = first_escaped_bytes(text, room.saturating_sub(besides)).len();
                    text.truncate(length);
                    text.shrink_to_fit();
                    kept += 1;
                }
                break;
            }
            room -= bytes;
            kept += 1;
        }
        active.response_parts.truncate(kept);
        self.index = PartIndex::of(&self.state);
        true
    }

    /// Sets the title. The protocol has no action for it on this channel; clients receive it with
    /// the session's catalogue.
    pub(crate) fn set_title(&mut self, title: String) {
        self.state.title = title;
    }

    /// Sets the summary of changes. The protocol has no action for it on this channel; clients
    /// receive it with the session's catalogue.
    pub(crate) fn set_changes(&mut self, changes: Option<ChangesSummary>) {
        self.state.changes = changes;
    }

    pub(crate) fn has_part(&self, id: &str) -> bool {
        self.index.by_id.contains_key(id)
    }

    /// Returns the tool call of the active turn with this id.
    pub fn tool(&self, id: &str) -> Option<&ToolCallState> {
        let active = self.state.active_turn.as_ref()?;
        match active.response_parts.get(*self.index.tools.get(id)?)? {
            ResponsePart::ToolCall(part) => Some(&part.tool_call),
            _ => None,
        }
    }

    pub(crate) fn tools(&self) -> impl Iterator<Item = &ToolCallState> {
        let parts = self.state.active_turn.iter().flat_map(|turn| &turn.response_parts);
        parts.filter_map(|part| match part {
            ResponsePart::ToolCall(part) => Some(&part.tool_call),
            _ => None,
        })
    }

    /// Returns the unanswered input request of the active turn with this id.
    pub fn question(&self, id: &str) -> Option<&InputRequestResponsePart> {
        let active = self.state.active_turn.as_ref()?;
        match active.response_parts.get(*self.index.questions.get(id)?)? {
            ResponsePart::InputRequest(part) => Some(part),
            _ => None,
        }
    }

    /// Applies an action, exactly as the official reducer would.
    pub fn apply(&mut self, action: &StateAction) -> ReduceOutcome {
        match action {
            StateAction::ChatDelta(a) => {
                append(self.text_end(&a.turn_id, &a.part_id, StreamedText::Markdown), &a.content)
            }
            StateAction::ChatReasoning(a) => {
                append(self.text_end(&a.turn_id, &a.part_id, StreamedText::Reasoning), &a.content)
            }
            StateAction::ChatToolCallDelta(a) => self.focus(self.tool_at(&a.tool_call_id), action),
            StateAction::ChatToolCallReady(a) => self.focus(self.tool_at(&a.tool_call_id), action),
            StateAction::ChatToolCallConfirmed(a) => self.focus(self.tool_at(&a.tool_call_id), action),
            StateAction::ChatToolCallComplete(a) => self.focus(self.tool_at(&a.tool_call_id), action),
            StateAction::ChatToolCallResultConfirmed(a) => self.focus(self.tool_at(&a.tool_call_id), action),
            StateAction::ChatToolCallContentChanged(a) => self.focus(self.tool_at(&a.tool_call_id), action),
            StateAction::ChatToolCallAuthRequired(a) => self.focus(self.tool_at(&a.tool_call_id), action),
            StateAction::ChatToolCallAuthResolved(a) => self.focus(self.tool_at(&a.tool_call_id), action),
            StateAction::ChatInputAnswerChanged(a) => self.focus(self.question_at(&a.request_id), action),
            StateAction::ChatInputCompleted(a) => self.focus(self.question_at(&a.request_id), action),
            StateAction::ChatInputRequested(a) => self.focus(self.question_at(&a.request.id), action),
            StateAction::ChatResponsePart(_) | StateAction::ChatToolCallStart(_) => self.focus(None, action),
            StateAction::ChatTurnResume(a) => self.resume(&a.turn_id, action),
            StateAction::ChatTruncated(a) => self.truncate(a.turn_id.as_deref(), action),
            StateAction::ChatTurnsLoaded(_) => {
                let outcome = apply_action_to_chat(&mut self.state, action);
                let later = std::mem::take(&mut self.history);
                self.take_completed();
                let earlier = std::mem::replace(&mut self.history, later);
                self.prepend(earlier.turns());
                outcome
            }
            StateAction::ChatTurnStarted(_)
            | StateAction::ChatTurnComplete(_)
            | StateAction::ChatTurnCancelled(_)
            | StateAction::ChatError(_) => {
                let outcome = apply_action_to_chat(&mut self.state, action);
                self.index = PartIndex::of(&self.state);
                self.take_completed();
                if let StateAction::ChatTurnStarted(ChatTurnStartedAction {
                    queued_message_id: Some(id),
                    ..
                }) = action
                {
                    self.steering.retain(|message| message.id != *id);
                }
                outcome
            }
            StateAction::Unknown(_) => match SteeringChange::of(action) {
                Some(change) => change.apply(&mut self.steering),
                None => apply_action_to_chat(&mut self.state, action),
            },
            _ => apply_action_to_chat(&mut self.state, action),
        }
    }

    /// Prepends earlier turns and sets the cursor for those before them, as `chat/turnsLoaded`
    /// does.
    pub fn load(&mut self, earlier: &[CompletedTurn], next_cursor: Option<String>) {
        self.prepend(earlier);
        self.state.turns_next_cursor = next_cursor;
    }

    fn prepend(&mut self, earlier: &[CompletedTurn]) {
        let later = std::mem::take(&mut self.history);
        let lacked = earlier.iter().filter(|turn| !later.contains(turn.id()));
        self.history = lacked.chain(later.turns()).cloned().collect();
    }

    /// Moves turns that a reducer has completed to the history, as text.
    fn take_completed(&mut self) {
        for turn in std::mem::take(&mut self.state.turns) {
            self.history.end(turn);
        }
    }

    fn resume(&mut self, turn_id: &str, action: &StateAction) -> ReduceOutcome {
        let last =
            self.history.last().filter(|last| last.id() == turn_id && self.state.active_turn.is_none());
        self.state.turns = last.and_then(CompletedTurn::read).into_iter().collect();
        let outcome = apply_action_to_chat(&mut self.state, action);
        if outcome == ReduceOutcome::Applied {
            self.history.truncate(self.history.len() - 1);
            self.index = PartIndex::of(&self.state);
        }
        self.state.turns.clear();
        outcome
    }

    /// Removes the turns after the named one, or all. The reducer gets an empty turn with that id,
    /// because its other effects depend only on whether the turn exists.
    fn truncate(&mut self, named: Option<&str>, action: &StateAction) -> ReduceOutcome {
        let kept = match named.map(|id| self.history.position_of(id)) {
            None => 0,
            Some(Some(place)) => place + 1,
            Some(None) => return ReduceOutcome::NoOp,
        };
        self.state.turns = named.map(empty_completed).into_iter().collect();
        let outcome = apply_action_to_chat(&mut self.state, action);
        self.state.turns.clear();
        self.history.truncate(kept);
        self.index = PartIndex::of(&self.state);
        outcome
    }

    /// Returns whether the official reducer would change anything. Runs it on a copy of the state
    /// with only the parts that the action can affect, so it must not be used for actions that
    /// start, end or remove turns.
    pub(crate) fn would_change(&self, action: &StateAction) -> bool {
        let mut before = without_turns(&self.state);
        let queued = self.state.queued_messages.as_ref();
        match action {
            StateAction::ChatInputAnswerChanged(a) => {
                if let (Some(at), Some(active)) = (self.question_at(&a.request_id), &self.state.active_turn) {
                    let response_parts = active.response_parts.get(at).cloned().into_iter().collect();
                    before.active_turn = Some(ActiveTurn { response_parts, ..empty_turn(active) });
                }
            }
            StateAction::ChatPendingMessageSet(a) => {
                before.queued_messages = queued.map(|queued| queued_message(queued, &a.id));
            }
            StateAction::ChatPendingMessageRemoved(a) => {
                before.queued_messages = queued.map(|queued| queued_message(queued, &a.id));
            }
            StateAction::ChatQueuedMessagesReordered(_) => before.queued_messages = queued.cloned(),
            _ => {}
        }
        let mut after = before.clone();
        apply_action_to_chat(&mut after, action);
        after != before
    }

    fn tool_at(&self, id: &str) -> Option<usize> {
        self.index.tools.get(id).copied()
    }

    fn question_at(&self, id: &str) -> Option<usize> {
        self.index.questions.get(id).copied()
    }

    /// Returns the end of a part's text, if the active turn has this id and contains the part.
    pub(crate) fn text_end(
        &mut self,
        turn_id: &str,
        part_id: &str,
        kind: StreamedText,
    ) -> Option<TextEnd<'_>> {
        let at = *self.index.by_id.get(part_id)?;
        let active = self.state.active_turn.as_mut().filter(|active| active.id == turn_id)?;
        let text = match (active.response_parts.get_mut(at)?, kind) {
            (ResponsePart::Markdown(part), StreamedText::Markdown) => Some(&mut part.content),
            (ResponsePart::Reasoning(part), StreamedText::Reasoning) => Some(&mut part.content),
            _ => None,
        };
        let PartIndex { bytes, bytes_in_all, .. } = &mut self.index;
        Some(TextEnd { text, bytes: bytes.get_mut(at)?, bytes_in_all })
    }

    /// Applies an action with only the part at `at` visible to the reducer. A part that the action
    /// adds is appended.
    fn focus(&mut self, at: Option<usize>, action: &StateAction) -> ReduceOutcome {
        let Some(active) = &mut self.state.active_turn else {
            return apply_action_to_chat(&mut self.state, action);
        };
        let mut parts = std::mem::take(&mut active.response_parts);
        if let Some(part) = at.and_then(|at| parts.get_mut(at)) {
            active.response_parts.push(std::mem::replace(part, ResponsePart::Unknown(Value::Null)));
        }
        let outcome = apply_action_to_chat(&mut self.state, action);
        let Some(active) = &mut self.state.active_turn else { return outcome };
        let mut shown = std::mem::take(&mut active.response_parts).into_iter();
        if let Some((at, slot)) = at.and_then(|at| Some((at, parts.get_mut(at)?))) {
            if let Some(part) = shown.next() {
                self.index.note_blocking(at, &part);
                match action {
                    // Counting all of the input for each delta would be slow.
                    StateAction::ChatToolCallDelta(a) => {
                        self.index.grow(at, a.content.as_deref().map_or(0, escaped_bytes));
                    }
                    _ => self.index.update_size(at, &part),
                }
                if matches!(&part, ResponsePart::InputRequest(question) if question.response.is_some()) {
                    self.index.questions.retain(|_, open_at| *open_at != at);
                }
                *slot = part;
            }
        }
        for part in shown {
            self.index.add(parts.len(), &part);
            parts.push(part);
        }
        active.response_parts = parts;
        // The reducer derived the status from the one part it saw. (It leaves the status alone when
        // a part is added.)
        if !self.index.blocking.is_empty() && !matches!(action, StateAction::ChatResponsePart(_)) {
            self.state.status = with_activity(self.state.status, SessionStatus::InputNeeded.bits());
        }
        outcome
    }
}

impl PartIndex {
    fn of(state: &ChatState) -> Self {
        let mut index = Self::default();
        for (at, part) in state.active_turn.iter().flat_map(|turn| turn.response_parts.iter().enumerate()) {
            index.add(at, part);
        }
        index
    }

    fn add(&mut self, at: usize, part: &ResponsePart) {
        match part {
            ResponsePart::Markdown(part) => {
                self.by_id.entry(part.id.clone()).or_insert(at);
            }
            ResponsePart::Reasoning(part) => {
                self.by_id.entry(part.id.clone()).or_insert(at);
            }
            ResponsePart::ToolCall(part) => {
                let id = tool_call_id(&part.tool_call);
                self.by_id.entry(id.to_owned()).or_insert(at);
                self.tools.entry(id.to_owned()).or_insert(at);
            }
            ResponsePart::InputRequest(part) if part.response.is_none() => {
                self.questions.entry(part.request.id.clone()).or_insert(at);
            }
            _ => {}
        }
        self.note_blocking(at, part);
        self.update_size(at, part);
    }

    fn update_size(&mut self, at: usize, part: &ResponsePart) {
        if self.bytes.len() <= at {
            self.bytes.resize(at + 1, 0);
        }
        if let Some(bytes) = self.bytes.get_mut(at) {
            let before = std::mem::replace(bytes, json_bytes(part));
            self.bytes_in_all = self.bytes_in_all - before + *bytes;
        }
    }

    fn grow(&mut self, at: usize, by: usize) {
        if let Some(bytes) = self.bytes.get_mut(at) {
            *bytes += by;
            self.bytes_in_all += by;
        }
    }

    fn note_blocking(&mut self, at: usize, part: &ResponsePart) {
        let blocks = match part {
            ResponsePart::ToolCall(part) => matches!(
                part.tool_call,
                ToolCallState::PendingConfirmation(_)
                    | ToolCallState::PendingResultConfirmation(_)
                    | ToolCallState::AuthRequired(_)
            ),
            ResponsePart::InputRequest(part) => part.response.is_none(),
            _ => false,
        };
        if blocks {
            self.blocking.insert(at);
        } else {
            self.blocking.remove(&at);
        }
    }
}

fn empty_turn(turn: &ActiveTurn) -> ActiveTurn {
    ActiveTurn {
        id: turn.id.clone(),
        started_at: turn.started_at.clone(),
        message: turn.message.clone(),
        response_parts: Vec::new(),
        usage: None,
    }
}

fn queued_message(queued: &[PendingMessage], id: &str) -> Vec<PendingMessage> {
    queued.iter().find(|message| message.id == id).cloned().into_iter().collect()
}

/// Returns a state without its turns, queued messages and descriptive members.
fn without_turns(state: &ChatState) -> ChatState {
    ChatState {
        resource: String::new(),
        title: String::new(),
        status: state.status,
        activity: state.activity.clone(),
        modified_at: String::new(),
        changes: None,
        origin: None,
        movable: state.movable,
        interactivity: state.interactivity,
        working_directories: state.working_directories.clone(),
        changesets: None,
        background_work: None,
        canvases: None,
        turns: Vec::new(),
        turns_next_cursor: None,
        active_turn: None,
        steering_message: state.steering_message.clone(),
        queued_messages: None,
        draft: state.draft.clone(),
        meta: None,
    }
}
