//! The turns of a session that an agent replays.
//!
//! Owns: the beginning and end of replayed turns, the limits of their size and number, and which
//! turns are left out.
//! Never: asks the agent anything, reads a file, or shows a terminal: the commands have ended.

use std::collections::{HashMap, VecDeque};

use agent_client_protocol_schema::v1::{ContentChunk, SessionUpdate};
use agent_client_protocol_schema::MaybeUndefined;
use ahp::reducers::apply_action_to_chat;
use ahp_types::actions::{
    ChatToolCallCompleteAction, ChatToolCallContentChangedAction, ChatToolCallReadyAction,
    ChatToolCallStartAction, StateAction,
};
use ahp_types::common::{JsonObject, StringOrMarkdown};
use ahp_types::state::{
    ActiveTurn, ChatState, MarkdownResponsePart, Message, MessageKind, MessageOrigin, ReasoningResponsePart,
    ResponsePart, SystemNotificationResponsePart, ToolCallConfirmationReason, ToolCallResult, ToolCallState,
    ToolInput, ToolResultContent, Turn, TurnState,
};
use serde_json::json;
use serde_json::value::RawValue;

use super::calls::{CallReport, Calls};
use super::content;
use crate::host::effects::{CallExtras, TextKind, ToolGate, ToolOutcome, TurnEvent};
use crate::state::history::CompletedTurn;
use crate::wire::tool_calls::tool_call_id;

/// Maximum size of all turns that are kept, in bytes of JSON; the oldest are left out.
const TURNS_BYTES_MAX: usize = 64 << 20;

/// Maximum number of turns that are kept; the oldest are left out.
const TURNS_MAX: usize = 20_000;

/// Maximum size of the updates of one turn, in bytes; the rest of the turn is left out.
const TURN_BYTES_MAX: usize = 16 << 20;

/// Message of a turn for which the agent has replayed none.
const NO_MESSAGE: &str = "(The agent has stored no message for this turn.)";

/// Reason of a call whose end the agent has not replayed.
const NO_END: &str = "the agent has stored no end of this call";

/// Maximum number of parts of one turn; the rest of the turn is left out.
const TURN_PARTS_MAX: usize = 5000;

/// Notice in a turn that is too large.
const CUT: &str = "The rest of this turn is not shown, because it is too large.";

/// Turns of a session, in the making.
#[derive(Debug)]
pub struct Replay {
    limits: ReplayLimits,
    /// Completed turns, oldest first.
    turns: VecDeque<CompletedTurn>,
    /// Size of these turns, in bytes.
    bytes: usize,
    omitted: u64,
    /// Latest title of the session.
    title: Option<String>,
    calls: Calls,
    current: Option<ReplayedTurn>,
}

/// Limits of a replay; the constants of this module, except in tests.
#[derive(Debug, Clone, Copy)]
pub struct ReplayLimits {
    turns_bytes: usize,
    turns: usize,
    turn_bytes: usize,
    turn_parts: usize,
}

impl Default for ReplayLimits {
    fn default() -> Self {
        Self {
            turns_bytes: TURNS_BYTES_MAX,
            turns: TURNS_MAX,
            turn_bytes: TURN_BYTES_MAX,
            turn_parts: TURN_PARTS_MAX,
        }
    }
}

/// Turns of a session, complete.
#[derive(Debug, Default)]
pub struct ReplayedTurns {
    /// Latest turns, oldest first.
    pub turns: Vec<CompletedTurn>,
    /// Number of older turns that were left out.
    pub omitted: u64,
    /// Title of the session, if it was replayed.
    pub title: Option<String>,
}

#[derive(Debug)]
struct ReplayedTurn {
    /// State of a chat in which only this turn runs.
    chat: ChatState,
    /// Id of the user's message, if the agent has given it one.
    message_id: Option<String>,
    /// Text that belongs to no part yet, with its kind and the id of its message.
    text: String,
    speaking: Option<(TextKind, Option<String>)>,
    /// Size of the updates so far, in bytes.
    bytes: usize,
    is_cut: bool,
    /// Set once something has followed the user's message, even if it was left out.
    is_answered: bool,
    /// Number of parts that are text.
    text_parts: u64,
    /// Position of each call among the parts, by its id.
    calls: HashMap<String, usize>,
}

impl Replay {
    /// Creates a replay without turns.
    pub fn new(limits: ReplayLimits) -> Self {
        Self {
            limits,
            turns: VecDeque::new(),
            bytes: 0,
            omitted: 0,
            title: None,
            calls: Calls::default(),
            current: None,
        }
    }

    /// Applies an update of the session.
    pub fn update(&mut self, raw: &RawValue) {
        let Ok(update) = serde_json::from_str(raw.get()) else {
            return tracing::debug!("a replayed update is unknown or invalid: it is left out: {raw}");
        };
        match update {
            SessionUpdate::UserMessageChunk(chunk) => self.add_user_chunk(chunk, raw.get().len()),
            SessionUpdate::SessionInfoUpdate(info) => match info.title {
                MaybeUndefined::Value(title) => self.title = Some(title),
                MaybeUndefined::Null => self.title = None,
                MaybeUndefined::Undefined => {}
            },
            SessionUpdate::AgentMessageChunk(chunk) => self.add_agent_chunk(TextKind::Markdown, chunk, raw),
            SessionUpdate::AgentThoughtChunk(chunk) => self.add_agent_chunk(TextKind::Reasoning, chunk, raw),
            SessionUpdate::ToolCall(_) | SessionUpdate::ToolCallUpdate(_) => {
                let Ok(report) = CallReport::try_from(raw.to_owned()) else { return };
                let begins = matches!(update, SessionUpdate::ToolCall(_));
                if !self.reserve_room(raw) {
                    return;
                }
                let events = if begins { self.calls.begun(report) } else { self.calls.updated(report) };
                if !events.is_empty() {
                    let turn = self.turn();
                    events.into_iter().for_each(|event| turn.call_event(event, CallExtras::default()));
                }
            }
            SessionUpdate::Notice(notice) if self.reserve_room(raw) => {
                let description = notice.description.filter(|it| !it.is_empty());
                let texts: Vec<String> = [notice.title].into_iter().chain(description).collect();
                self.turn().notice(texts.join("\n\n"));
            }
            // Plans, usage, commands, modes and options are of now, not of a turn.
            _ => {}
        }
    }

    /// Ends the last turn, and returns the turns. `mark` is a notice at their end.
    pub fn finish(mut self, mark: &str) -> ReplayedTurns {
        if let Some(turn) = &mut self.current {
            turn.notice(mark.to_owned());
        }
        self.end_turn();
        let mut turns: Vec<CompletedTurn> = self.turns.into();
        if self.omitted > 0 {
            let first = turns.first_mut().and_then(|first| Some((first.read()?, first)));
            if let Some((mut read, first)) = first {
                let omitted = format!("{} earlier turns of this session are not shown.", self.omitted);
                read.response_parts.insert(0, notification(omitted));
                *first = CompletedTurn::of(&read);
            }
        }
        ReplayedTurns { turns, omitted: self.omitted, title: self.title }
    }

    fn add_user_chunk(&mut self, chunk: ContentChunk, bytes: usize) {
        let id = chunk.message_id.map(|id| id.to_string());
        let goes_on = self.current.as_ref().is_some_and(|turn| {
            let is_other = matches!((&turn.message_id, &id), (Some(one), Some(other)) if one != other);
            (turn.is_only_message() || turn.is_cut && !turn.is_answered) && !is_other
        });
        if !goes_on {
            self.end_turn();
            self.current = Some(ReplayedTurn::new(self.next_number(), MessageKind::User));
        }
        let max = self.limits.turn_bytes;
        let turn = self.turn();
        turn.message_id = id.or(turn.message_id.take());
        turn.bytes += bytes;
        if turn.bytes > max {
            return turn.cut();
        }
        let text = content::markdown(chunk.content);
        if let Some(active) = &mut turn.chat.active_turn {
            active.message.text.push_str(&text);
        }
    }

    fn add_agent_chunk(&mut self, kind: TextKind, chunk: ContentChunk, raw: &RawValue) {
        let text = content::markdown(chunk.content);
        // Some agents send an empty text, or a line end, behind a turn or before the first.
        if text.is_empty() || (self.current.is_none() && text.trim().is_empty()) || !self.reserve_room(raw) {
            return;
        }
        let now = (kind, chunk.message_id.map(|id| id.to_string()));
        let turn = self.turn();
        if turn.speaking.as_ref() != Some(&now) {
            turn.end_part();
            turn.speaking = Some(now);
        }
        turn.text.push_str(&text);
    }

    /// Counts an update for the current turn, and cuts the turn if it exceeds a limit. Returns
    /// whether it has room.
    fn reserve_room(&mut self, raw: &RawValue) -> bool {
        let limits = self.limits;
        let turn = self.turn();
        turn.is_answered = true;
        turn.bytes += raw.get().len();
        if turn.bytes > limits.turn_bytes || turn.part_count() >= limits.turn_parts {
            turn.cut();
        }
        !turn.is_cut
    }

    /// Returns the current turn; begins one if there is none.
    fn turn(&mut self) -> &mut ReplayedTurn {
        let number = self.next_number();
        self.current.get_or_insert_with(|| {
            let mut turn = ReplayedTurn::new(number, MessageKind::SystemNotification);
            if let Some(active) = &mut turn.chat.active_turn {
                active.message.text = NO_MESSAGE.to_owned();
            }
            turn
        })
    }

    fn next_number(&self) -> u64 {
        self.omitted + self.turns.len() as u64 + 1
    }

    fn end_turn(&mut self) {
        self.calls.end_turn(true);
        let Some(turn) = self.current.take().and_then(ReplayedTurn::end) else { return };
        let turn = CompletedTurn::of(&turn);
        self.bytes += turn.bytes();
        self.turns.push_back(turn);
        while self.turns.len() > self.limits.turns
            || (self.bytes > self.limits.turns_bytes && self.turns.len() > 1)
        {
            let Some(oldest) = self.turns.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.omitted += 1;
        }
    }
}

impl ReplayedTurn {
    fn new(number: u64, origin: MessageKind) -> Self {
        let message = Message {
            text: String::new(),
            origin: MessageOrigin { kind: origin },
            attachments: None,
            model: None,
            agent: None,
            meta: None,
        };
        let active = ActiveTurn {
            id: format!("adopted-{number}"),
            started_at: String::new(),
            message,
            response_parts: Vec::new(),
            usage: None,
        };
        Self {
            chat: chat_with(active),
            message_id: None,
            text: String::new(),
            speaking: None,
            bytes: 0,
            is_cut: false,
            is_answered: false,
            text_parts: 0,
            calls: HashMap::new(),
        }
    }

    /// Returns whether the agent has not answered yet.
    fn is_only_message(&self) -> bool {
        let is_empty = self.chat.active_turn.as_ref().is_some_and(|turn| turn.response_parts.is_empty());
        is_empty && self.text.is_empty()
    }

    fn part_count(&self) -> usize {
        self.chat.active_turn.as_ref().map_or(0, |turn| turn.response_parts.len())
    }

    fn push(&mut self, part: ResponsePart) {
        if let Some(turn) = &mut self.chat.active_turn {
            turn.response_parts.push(part);
        }
    }

    /// Makes a part of the text so far.
    fn end_part(&mut self) {
        let content = std::mem::take(&mut self.text);
        let Some((kind, _)) = self.speaking.take().filter(|_| !content.is_empty()) else { return };
        self.text_parts += 1;
        let id = format!("part-{}", self.text_parts);
        self.push(match kind {
            TextKind::Markdown => ResponsePart::Markdown(MarkdownResponsePart { id, content }),
            TextKind::Reasoning => ResponsePart::Reasoning(ReasoningResponsePart { id, content }),
        });
    }

    fn notice(&mut self, text: String) {
        self.end_part();
        self.push(notification(text));
    }

    fn cut(&mut self) {
        if !std::mem::replace(&mut self.is_cut, true) {
            self.notice(CUT.to_owned());
        }
    }

    /// Applies an event of a tool call.
    fn call_event(&mut self, event: TurnEvent, extras: CallExtras) {
        let turn_id = self.chat.active_turn.as_ref().map(|turn| turn.id.clone()).unwrap_or_default();
        let meta = Some(extras.meta).filter(|meta: &JsonObject| !meta.is_empty());
        let call = match &event {
            TurnEvent::ToolStarted { id, .. }
            | TurnEvent::ToolReady { id, .. }
            | TurnEvent::ToolContent { id, .. }
            | TurnEvent::ToolDone { id, .. } => id.clone(),
            _ => String::new(),
        };
        let action = match event {
            TurnEvent::With(event, extras) => return self.call_event(*event, extras),
            TurnEvent::ToolStarted { id, name, display_name } => {
                self.end_part();
                StateAction::ChatToolCallStart(ChatToolCallStartAction {
                    turn_id,
                    tool_call_id: id,
                    meta,
                    tool_name: name,
                    display_name,
                    intention: None,
                    contributor: None,
                })
            }
            TurnEvent::ToolReady { id, input, message, .. } => {
                StateAction::ChatToolCallReady(ChatToolCallReadyAction {
                    turn_id,
                    tool_call_id: id,
                    meta,
                    contributor: None,
                    intention: None,
                    invocation_message: message,
                    tool_input: (!input.is_empty()).then_some(ToolInput::Inline(input)),
                    confirmation_title: None,
                    risk_assessment: None,
                    edits: None,
                    editable: None,
                    confirmed: Some(ToolCallConfirmationReason::NotNeeded),
                    options: None,
                })
            }
            TurnEvent::ToolContent { id, content } => {
                StateAction::ChatToolCallContentChanged(ChatToolCallContentChangedAction {
                    turn_id,
                    tool_call_id: id,
                    meta,
                    content: without_terminals(content),
                })
            }
            TurnEvent::ToolDone { id, outcome, .. } => {
                let ToolOutcome { success, message, content, error } = outcome;
                let content = without_terminals(content);
                StateAction::ChatToolCallComplete(ChatToolCallCompleteAction {
                    turn_id,
                    tool_call_id: id,
                    meta,
                    result: ToolCallResult {
                        success,
                        past_tense_message: message,
                        content: Some(content).filter(|content| !content.is_empty()),
                        structured_content: extras.structured,
                        error: error.map(|message| json!({ "message": message })),
                    },
                    requires_result_confirmation: None,
                })
            }
            _ => return,
        };
        self.apply_to_call(&call, &action);
    }

    /// Applies an action to a call, by a reducer that looks through all parts that it is given.
    fn apply_to_call(&mut self, call: &str, action: &StateAction) {
        let Some(turn) = &mut self.chat.active_turn else { return };
        let mut parts = std::mem::take(&mut turn.response_parts);
        let at = self.calls.get(call).copied();
        turn.response_parts
            .extend(at.map(|at| std::mem::replace(&mut parts[at], notification(String::new()))));
        apply_action_to_chat(&mut self.chat, action);
        let Some(turn) = &mut self.chat.active_turn else { return };
        let changed = std::mem::replace(&mut turn.response_parts, parts).pop();
        match (at, changed) {
            (Some(at), Some(changed)) => turn.response_parts[at] = changed,
            (None, Some(started)) => {
                self.calls.insert(call.to_owned(), turn.response_parts.len());
                turn.response_parts.push(started);
            }
            (_, None) => {}
        }
    }

    /// Closes what is open, and returns the turn; `None` if the turn is empty.
    fn end(mut self) -> Option<Turn> {
        self.end_part();
        let parts = self.chat.active_turn.iter().flat_map(|turn| &turn.response_parts);
        let open: Vec<_> = parts.filter_map(open_call).collect();
        for (id, ready, content) in open {
            let extras = CallExtras::default;
            if let Some(message) = ready {
                let gate = ToolGate::Open;
                let ready = TurnEvent::ToolReady { id: id.clone(), input: String::new(), message, gate };
                self.call_event(ready, extras());
            }
            let message = "Stopped before it was done".into();
            let outcome = ToolOutcome { success: false, message, content, error: Some(NO_END.to_owned()) };
            self.call_event(TurnEvent::ToolDone { id, outcome, review: false }, extras());
        }
        let ActiveTurn { id, message, response_parts, .. } = self.chat.active_turn?;
        let is_empty = message.text.is_empty() && response_parts.is_empty();
        (!is_empty).then_some(Turn {
            id,
            started_at: None,
            duration: None,
            message,
            response_parts,
            usage: None,
            state: TurnState::Complete,
        })
    }
}

type OpenCall = (String, Option<StringOrMarkdown>, Vec<ToolResultContent>);

/// Returns the id of an unfinished call, with its message if it is not ready, and its content.
fn open_call(part: &ResponsePart) -> Option<OpenCall> {
    let ResponsePart::ToolCall(part) = part else { return None };
    let id = tool_call_id(&part.tool_call).to_owned();
    match &part.tool_call {
        ToolCallState::Streaming(call) => {
            let message = call.invocation_message.clone();
            Some((id, Some(message.unwrap_or_else(|| call.display_name.clone().into())), Vec::new()))
        }
        ToolCallState::Running(call) => Some((id, None, call.content.clone().unwrap_or_default())),
        _ => None,
    }
}

/// Returns the content without terminals, whose output is in the content as text, too.
fn without_terminals(mut content: Vec<ToolResultContent>) -> Vec<ToolResultContent> {
    content.retain(|content| !matches!(content, ToolResultContent::Terminal(_)));
    content
}

fn notification(text: String) -> ResponsePart {
    ResponsePart::SystemNotification(SystemNotificationResponsePart { content: text.into(), meta: None })
}

/// Returns the state of a chat in which this turn runs, for the official reducer.
fn chat_with(turn: ActiveTurn) -> ChatState {
    ChatState {
        resource: String::new(),
        title: String::new(),
        status: 0,
        activity: None,
        modified_at: String::new(),
        changes: None,
        origin: None,
        movable: None,
        interactivity: None,
        working_directories: None,
        changesets: None,
        background_work: None,
        canvases: None,
        turns: Vec::new(),
        turns_next_cursor: None,
        active_turn: Some(turn),
        steering_message: None,
        queued_messages: None,
        draft: None,
        meta: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;
    use serde_json::Value;

    use super::*;

    /// Replays these updates; returns the turns as JSON, and the number of omitted ones.
    fn replayed(limits: ReplayLimits, updates: &[Value]) -> (Vec<Value>, u64) {
        let mut replay = Replay::new(limits);
        for update in updates {
            replay.update(&to_raw_value(update).unwrap());
        }
        let ReplayedTurns { turns, omitted, .. } = replay.finish("the mark");
        (turns.iter().map(|turn| json!(turn.read().unwrap())).collect(), omitted)
    }

    fn chunk(kind: &str, text: &str) -> Value {
        json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
    }

    fn turns(count: usize) -> Vec<Value> {
        let turn = |number: usize| {
            let user = chunk("user_message_chunk", &format!("m{number}"));
            [user, chunk("agent_message_chunk", &"a".repeat(1000))]
        };
        (0..count).flat_map(turn).collect()
    }

    fn messages(turns: &[Value]) -> Vec<&str> {
        turns.iter().map(|turn| turn["message"]["text"].as_str().unwrap()).collect()
    }

    #[test]
    fn oldest_turns_beyond_the_limits_are_left_out_with_a_notice() {
        let limits = ReplayLimits::default();
        let few = ReplayLimits { turns: 3, ..limits };
        let small = ReplayLimits { turns_bytes: 4000, ..limits };
        for limits in [few, small] {
            let (turns, omitted) = replayed(limits, &turns(10));
            assert_eq!((messages(&turns), omitted), (vec!["m7", "m8", "m9"], 7));
            assert_eq!(turns[0]["id"], "adopted-8");
            let notice = &turns[0]["responseParts"][0];
            assert_eq!(notice["content"], "7 earlier turns of this session are not shown.");
            assert_eq!(turns[2]["responseParts"][1]["content"], "the mark");
        }
        let (turns, omitted) = replayed(limits, &turns(10));
        assert_eq!((turns.len(), omitted), (10, 0));
    }

    #[test]
    fn turn_beyond_its_limit_is_cut_and_the_next_one_is_whole() {
        let limits = ReplayLimits { turn_bytes: 3000, ..ReplayLimits::default() };
        let long = chunk("agent_message_chunk", &"b".repeat(1000));
        let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": "t" });
        let user = chunk("user_message_chunk", "m");
        let mut updates = vec![user.clone(), long.clone(), long.clone(), long.clone(), call, long];
        updates.extend([user, chunk("agent_message_chunk", "short")]);
        let (turns, _) = replayed(limits, &updates);
        let parts = turns[0]["responseParts"].as_array().unwrap();
        assert_eq!(parts.len(), 2, "{parts:?}");
        assert_eq!((&parts[0]["content"], &parts[1]["content"]), (&json!("b".repeat(2000)), &json!(CUT)));
        assert_eq!(turns[1]["responseParts"][0]["content"], "short");
    }

    #[test]
    fn rest_of_a_message_beyond_the_limit_is_no_turn_of_its_own() {
        let limits = ReplayLimits { turn_bytes: 3000, ..ReplayLimits::default() };
        let piece = chunk("user_message_chunk", &"b".repeat(1000));
        let mut updates = vec![piece.clone(), piece.clone(), piece.clone(), piece];
        updates.extend([chunk("agent_message_chunk", "left out"), chunk("user_message_chunk", "next")]);
        let (turns, _) = replayed(limits, &updates);
        assert_eq!(messages(&turns), ["b".repeat(2000).as_str(), "next"]);
    }

    #[test]
    fn turn_with_too_many_calls_is_cut() {
        let limits = ReplayLimits { turn_parts: 3, ..ReplayLimits::default() };
        let call = |id| json!({ "sessionUpdate": "tool_call", "toolCallId": id, "title": "t" });
        let mut updates = vec![chunk("user_message_chunk", "m")];
        updates.extend(["1", "2", "3", "4", "5"].map(call));
        let (turns, _) = replayed(limits, &updates);
        let parts = turns[0]["responseParts"].as_array().unwrap();
        assert_eq!((parts.len(), &parts[3]["content"]), (5, &json!(CUT)), "with the mark: {parts:?}");
    }

    #[test]
    fn message_ids_separate_messages_that_follow_one_another() {
        let message = |id: &str, text: &str| {
            let mut chunk = chunk("user_message_chunk", text);
            chunk["messageId"] = id.into();
            chunk
        };
        let updates = [message("1", "a"), message("1", "b"), message("2", "c")];
        let (turns, _) = replayed(ReplayLimits::default(), &updates);
        assert_eq!(messages(&turns), ["ab", "c"]);
        assert!(replayed(ReplayLimits::default(), &[]).0.is_empty());
    }
}
