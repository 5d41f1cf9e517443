//! The tool calls of a turn.
//!
//! Owns: one record per call, whichever of the three messages mentions the call first; pending
//! permission requests, by the agent's request ids. `call` is one call and its events; `clients`
//! has the calls that clients carry out, and `past` those of ended turns.
//! Never: changes a call of an ended turn, unless the agent starts it again.

mod call;
mod clients;
mod past;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use agent_client_protocol_schema::v1::{Diff, ToolCallLocation, ToolCallUpdate, ToolKind};
use ahp_types::common::JsonObject;
use ahp_types::state::{ResponsePart, ToolResultContent};
use serde::{Deserialize, Serialize};
use serde_json::value::{to_raw_value, RawValue};
use serde_json::{json, Value};

use self::past::PastCalls;
use super::client_tools::OfferedTools;
use super::edits::EditPhase;
use super::extra_meta;
use super::peer::AgentRequest;
use super::terminals::feed::TerminalFeed;
use super::terminals::screen::Screen;
use super::terminals::Screens;
use crate::host::effects::{BackgroundCommand, Event, PermissionKind, PermissionOption, ToolGate, TurnEvent};
use crate::wire::tool_calls::tool_call_id;

#[derive(Debug, Default)]
pub struct Calls {
    pub screens: Screens,
    calls: BTreeMap<String, TrackedCall>,
    past: PastCalls,
    /// Calls that have another name in the turn than the agent's, by that.
    renamed: BTreeMap<String, String>,
    offered: Arc<OfferedTools>,
    own_terminals: u64,
}

#[derive(Debug, Default)]
struct TrackedCall {
    name: Option<String>,
    kind: ToolKind,
    /// Kind in the agent's words, including kinds unknown to the schema.
    kind_name: Option<String>,
    title: Option<String>,
    input: Option<Value>,
    output: Option<Value>,
    locations: Vec<ToolCallLocation>,
    content: Vec<ToolResultContent>,
    /// Unplaced members of the content, with the index of the content.
    content_rest: Vec<Value>,
    diffs: Vec<Diff>,
    /// Terminals of the host that the call shows.
    screens: Vec<Arc<Screen>>,
    /// Set when the content came with the permission request, and may only describe the question.
    is_of_question: bool,
    terminal: String,
    /// Set if `terminal` lacks the beginning of the output.
    terminal_is_cut: bool,
    /// Host's name of the agent's own terminal; `None` before its first output.
    terminal_name: Option<String>,
    feed: TerminalFeed,
    /// Members reported about the agent's own terminal, besides the output.
    terminal_info: JsonObject,
    meta: JsonObject,
    stage: CallStage,
    /// Set once the call was sent to clients.
    is_sent: bool,
    shown: Vec<ToolResultContent>,
    meta_sent: JsonObject,
    /// Name of the tool if a client carries it out, as that client calls it.
    client_tool: Option<String>,
    /// Set once the agent has requested the result of the client's tool.
    wanted: bool,
    denied: bool,
    /// Set when the call is shown because its result was requested, but not reported yet.
    unclaimed: bool,
    /// Pending permission requests; the first one is shown to the user.
    asked: VecDeque<(AgentRequest, Vec<PermissionOffer>)>,
    /// Unplaced members of the last shown permission options, by option id.
    options: JsonObject,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum CallStage {
    #[default]
    Begun,
    Asked,
    Running,
    Over,
}

/// Parameters of `session/request_permission`. The schema's type rejects unknown option kinds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    pub tool_call: CallReport,
    options: Vec<PermissionOffer>,
}

impl PermissionRequest {
    /// Makes the title of a request to execute its input, where it has none.
    pub fn take_command_from_title(&mut self) {
        let fields = &mut self.tool_call.update.fields;
        let title = fields.title.as_ref().filter(|_| fields.kind == Some(ToolKind::Execute));
        if let (None, Some(title)) = (&fields.raw_input, title) {
            fields.raw_input = Some(json!({ "command": title }));
        }
    }
}

/// Report of a call in one message: the schema's type, plus members that it does not know.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Box<RawValue>")]
pub struct CallReport {
    update: ToolCallUpdate,
    more: LenientMembers,
}

/// Members of a report that the schema's type lacks, or drops if it does not understand them.
#[derive(Debug, Default, Deserialize)]
struct LenientMembers {
    name: Option<String>,
    kind: Option<String>,
    content: Option<Vec<Box<RawValue>>>,
}

impl TryFrom<Box<RawValue>> for CallReport {
    type Error = serde_json::Error;

    fn try_from(raw: Box<RawValue>) -> Result<Self, Self::Error> {
        let update = serde_json::from_str(raw.get())?;
        Ok(Self { update, more: serde_json::from_str(raw.get()).unwrap_or_default() })
    }
}

impl CallReport {
    /// Creates a report by the host itself, in the form of the agent's protocol.
    pub fn by_host(update: &impl Serialize, name: Option<&str>) -> serde_json::Result<Self> {
        let mut update = serde_json::to_value(update)?;
        if let Some(name) = name {
            update["name"] = name.into();
        }
        to_raw_value(&update)?.try_into()
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PermissionOffer {
    option_id: String,
    name: String,
    kind: String,
    #[serde(rename = "_meta", default)]
    meta: Option<Value>,
}

impl PermissionOffer {
    fn option(&self) -> PermissionOption {
        let kind = match self.kind.as_str() {
            "allow_once" => PermissionKind::AllowOnce,
            "reject_once" => PermissionKind::RejectOnce,
            // An unknown kind of allowance must not be taken for one that covers a single call.
            kind if kind.starts_with("allow") => PermissionKind::AllowAlways,
            _ => PermissionKind::RejectAlways,
        };
        PermissionOption { id: self.option_id.clone(), label: Some(self.name.clone()), kind }
    }

    /// Returns the members of the option without a counterpart in the host's protocol.
    fn rest(&self) -> Value {
        let mut rest = json!({ "kind": self.kind });
        if let Some(meta) = self.meta.as_ref().filter(|meta| !meta.is_null()) {
            rest["_meta"] = meta.clone();
        }
        rest
    }
}

impl Calls {
    /// Applies a `tool_call`.
    pub fn begun(&mut self, mut report: CallReport) -> Vec<TurnEvent> {
        let id = self.current_id(&report);
        // A `tool_call` without content keeps the content of an earlier permission request.
        report.more.content = report.more.content.filter(|content| !content.is_empty());
        let status = report.update.fields.status;
        self.merge(&id, report).take_events(&id, status)
    }

    /// Applies a `tool_call_update`.
    pub fn updated(&mut self, report: CallReport) -> Vec<TurnEvent> {
        let id = &*report.update.tool_call_id.0;
        let has_content = report.more.content.is_some();
        if !self.may_go_on(id, has_content) {
            tracing::debug!(id, "an update of a tool call was ignored: its turn is over");
            return Vec::new();
        }
        if let Some(call) = self.past.remove(id) {
            self.calls.insert(id.to_owned(), call);
        }
        let id = self.current_id(&report);
        let status = report.update.fields.status;
        self.merge(&id, report).take_events(&id, status)
    }

    /// Applies a permission request; returns its events, and false if the user cannot be asked.
    pub fn asks(&mut self, request: AgentRequest, asks: PermissionRequest) -> (bool, Vec<TurnEvent>) {
        let has_content = asks.tool_call.more.content.is_some();
        let id = self.current_id(&asks.tool_call);
        let call = self.merge(&id, asks.tool_call);
        call.is_of_question |= has_content;
        let mut events = call.take_events(&id, None);
        if call.stage == CallStage::Over || asks.options.is_empty() {
            return (false, events);
        }
        call.asked.push_back((request, asks.options));
        if call.asked.len() == 1 {
            events.extend(call.ask(&id));
        }
        (true, events)
    }

    /// Applies the user's decision on a call; returns the request that it answers, and the events.
    pub fn decided(&mut self, id: &str, approved: bool) -> Option<(AgentRequest, Vec<TurnEvent>)> {
        let call = self.calls.get_mut(id)?;
        let (request, _) = call.asked.pop_front()?;
        if !approved {
            call.stage = CallStage::Over;
            call.denied = true;
            return Some((request, Vec::new()));
        }
        call.stage = CallStage::Running;
        let events = call.ask(id).into_iter().chain(call.shown(id)).collect();
        Some((request, events))
    }

    pub fn withdrawn(&mut self, request: &AgentRequest) -> Vec<TurnEvent> {
        let asked = |call: &TrackedCall| call.asked.iter().position(|(asked, _)| asked == request);
        let Some((id, call)) = self.calls.iter_mut().find(|(_, call)| asked(call).is_some()) else {
            return Vec::new();
        };
        let first = asked(call) == Some(0);
        call.asked.retain(|(asked, _)| asked != request);
        if !first {
            return Vec::new();
        }
        if let Some(next) = call.ask(id) {
            return vec![next];
        }
        call.stage = CallStage::Over;
        vec![call.done(id, false, Some("the agent has withdrawn its permission request".to_owned()))]
    }

    /// Removes and returns the permission requests that get no answer: of ended calls, or all.
    pub fn unanswered(&mut self, all: bool) -> Vec<AgentRequest> {
        let calls = self.calls.values_mut().filter(|call| all || call.stage == CallStage::Over);
        calls.flat_map(|call| call.asked.drain(..)).map(|(request, _)| request).collect()
    }

    /// Returns the diffs of a call that asks for permission or has succeeded; `None` otherwise.
    pub fn changes(&self, event: &TurnEvent) -> Option<(Vec<Diff>, EditPhase)> {
        let (id, phase) = match extra_meta::bare(event) {
            TurnEvent::ToolReady { id, gate: ToolGate::Ask(_), .. } => (id, EditPhase::Before),
            TurnEvent::ToolDone { id, outcome, .. } if outcome.success => (id, EditPhase::After),
            _ => return None,
        };
        let diffs = self.calls.get(id).map(|call| call.diffs.clone()).filter(|diffs| !diffs.is_empty())?;
        Some((diffs, phase))
    }

    /// Renames the turn's calls whose ids occur in `parts`: agents reuse ids after a restart.
    pub fn rename_reused_ids(&mut self, parts: &[ResponsePart]) {
        let ids = || {
            parts.iter().filter_map(|part| match part {
                ResponsePart::ToolCall(part) => Some(tool_call_id(&part.tool_call)),
                _ => None,
            })
        };
        let free = |id: &str| {
            let mut names = (2_u64..).map(|number| format!("{id}+{number}"));
            names.find(|name| !ids().any(|taken| taken == name))
        };
        self.renamed = ids().filter_map(|id| Some((id.to_owned(), free(id)?))).collect();
    }

    /// Returns the id of a reported call in the turn, and removes it from those of ended turns.
    fn current_id(&mut self, report: &CallReport) -> String {
        let id = &*report.update.tool_call_id.0;
        self.past.remove(id);
        if !self.renamed.contains_key(id) && !self.calls.contains_key(id) {
            if let Some(shown) = self.shown_before(report) {
                self.renamed.insert(id.to_owned(), shown);
            }
        }
        self.renamed.get(id).cloned().unwrap_or_else(|| id.to_owned())
    }

    /// Returns whether a new turn would show anything of a call: the call is unknown, or it was
    /// left open and has new content or file changes.
    pub fn may_go_on(&self, id: &str, has_content: bool) -> bool {
        let may = |call: &TrackedCall| has_content || call.changes_files();
        self.past.get(id).is_none_or(|left_open| left_open.is_some_and(may))
    }

    /// Ends the turn; returns the events that close the agent's own terminals. A cancelled turn
    /// leaves no call open, whatever the agent reports later.
    pub fn end_turn(&mut self, cancelled: bool) -> Vec<Event> {
        let mut events = Vec::new();
        for (id, call) in self.calls.iter_mut().filter(|(_, call)| call.feed.is_open()) {
            call.stage = CallStage::Over;
            events.extend(call.agent_terminal_events(id));
        }
        let (renamed, calls) = (std::mem::take(&mut self.renamed), std::mem::take(&mut self.calls));
        for (id, call) in calls {
            let is_open = !cancelled && call.may_be_left_open();
            let own = renamed.iter().find(|(_, name)| **name == id).map(|(own, _)| own.clone());
            self.past.add(own.unwrap_or(id), is_open.then(|| call.left()));
        }
        self.screens.end_turn();
        events
    }

    /// Returns the command that an ended call has left running in the background, if any.
    pub fn in_background(&self, id: &str) -> Option<BackgroundCommand> {
        self.calls.get(id)?.in_background()
    }

    pub fn any_open(&self) -> bool {
        self.calls.values().any(|call| call.stage != CallStage::Over)
    }

    /// Returns the events for running calls whose terminals may have new output.
    pub fn screens_changed(&mut self) -> Vec<TurnEvent> {
        let running = self.calls.iter_mut().filter(|(_, call)| call.stage == CallStage::Running);
        running.filter(|(_, call)| !call.screens.is_empty()).filter_map(|(id, call)| call.shown(id)).collect()
    }

    fn merge(&mut self, id: &str, report: CallReport) -> &mut TrackedCall {
        let tool = self.client_tool(&report);
        let call = self.calls.entry(id.to_owned()).or_default();
        if !call.is_sent {
            call.client_tool = tool.or(call.client_tool.take());
        }
        let CallReport { update, more } = report;
        let fields = update.fields;
        call.name = more.name.or(call.name.take());
        call.kind = fields.kind.unwrap_or(call.kind);
        call.kind_name = more.kind.or(call.kind_name.take());
        call.title = fields.title.filter(|title| !title.is_empty()).or(call.title.take());
        if call.client_tool.is_some() {
            call.note_arguments(fields.raw_input.as_ref(), fields.content.as_deref());
        } else {
            call.input = fields.raw_input.or(call.input.take());
        }
        call.output = fields.raw_output.or(call.output.take());
        call.locations = fields.locations.unwrap_or(std::mem::take(&mut call.locations));
        if let Some(content) = more.content {
            call.screens = self.screens.in_content(&fields.content.unwrap_or_default());
            call.take_content(&content);
            call.is_of_question = false;
        }
        call.take_meta(update.meta.unwrap_or_default());
        if call.terminal_name.is_none() && !call.terminal.is_empty() {
            self.own_terminals += 1;
            call.terminal_name = Some(format!("own-terminal-{}", self.own_terminals));
        }
        call
    }

    /// Returns the terminal events that must precede this event of a call.
    pub fn terminal_events_for(&mut self, event: &TurnEvent) -> Vec<Event> {
        let (TurnEvent::ToolContent { id, .. } | TurnEvent::ToolDone { id, .. }) = extra_meta::bare(event)
        else {
            return Vec::new();
        };
        let Some(call) = self.calls.get_mut(id) else { return Vec::new() };
        let mut events: Vec<Event> =
            call.screens.iter().flat_map(|screen| screen.take_unsent_in(id)).collect();
        events.extend(call.agent_terminal_events(id));
        events
    }

    /// Returns unsent output of shown terminals; of those with very much output only if `due`.
    pub fn terminal_events(&mut self, due: bool) -> Vec<Event> {
        let mut events = self.screens.take_unsent(due);
        for (id, call) in self.calls.iter_mut().filter(|(_, call)| call.feed.is_open()) {
            events.extend(call.agent_terminal_events(id));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::past::{LEFT_OPEN_MAX, PAST_MAX};
    use super::*;

    fn report(id: &str, status: &str) -> CallReport {
        let update = json!({ "toolCallId": id, "title": "t", "status": status });
        to_raw_value(&update).unwrap().try_into().unwrap()
    }

    /// Runs a turn with calls of these ids, which end with it or are left open.
    fn turn(calls: &mut Calls, ids: impl IntoIterator<Item = String>, status: &str) {
        for id in ids {
            calls.begun(report(&id, "in_progress"));
            calls.updated(report(&id, status));
        }
        assert!(calls.end_turn(false).is_empty());
    }

    #[test]
    fn oldest_calls_of_ended_turns_are_forgotten_first() {
        let mut calls = Calls::default();
        turn(&mut calls, ["z".to_owned()], "completed");
        turn(&mut calls, (1..PAST_MAX).map(|number| format!("b{number}")), "completed");
        assert!(!calls.may_go_on("z", true) && !calls.may_go_on("b1", true));
        turn(&mut calls, ["a".to_owned()], "completed");
        assert!(calls.may_go_on("z", true) && !calls.may_go_on("b1", true) && !calls.may_go_on("a", true));
        assert_eq!(calls.past.ids.len(), PAST_MAX);
    }

    #[test]
    fn output_of_the_agents_terminal_without_its_beginning_is_marked() {
        let mut calls = Calls::default();
        calls.begun(report("c", "in_progress"));
        let data = "x".repeat(600 << 10);
        let update = json!({ "toolCallId": "c", "_meta": { "terminal_output_delta": { "data": data } } });
        for _ in 0..2 {
            calls.updated(to_raw_value(&update).unwrap().try_into().unwrap());
        }
        let events = calls.updated(report("c", "completed"));
        assert!(format!("{events:?}").contains("(Earlier output is omitted.)"));
    }

    #[test]
    fn update_without_content_leaves_an_earlier_call_open() {
        let mut calls = Calls::default();
        turn(&mut calls, ["x".to_owned()], "in_progress");
        assert!(calls.updated(report("x", "in_progress")).is_empty());
        let content = [json!({ "type": "content", "content": { "type": "text", "text": "done" } })];
        let update = json!({ "toolCallId": "x", "status": "completed", "content": content });
        let events = calls.updated(to_raw_value(&update).unwrap().try_into().unwrap());
        assert!(
            matches!(events.last().map(extra_meta::bare), Some(TurnEvent::ToolDone { .. })),
            "{events:?}"
        );
    }

    #[test]
    fn oldest_calls_that_were_left_open_are_closed_first() {
        let mut calls = Calls::default();
        turn(&mut calls, ["z".to_owned()], "in_progress");
        turn(&mut calls, (1..LEFT_OPEN_MAX).map(|number| format!("b{number}")), "in_progress");
        assert!(calls.may_go_on("z", true) && calls.may_go_on("b1", true));
        turn(&mut calls, ["a".to_owned()], "in_progress");
        assert!(!calls.may_go_on("z", true) && calls.may_go_on("b1", true) && calls.may_go_on("a", true));
    }
}
