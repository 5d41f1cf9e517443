//! The tool calls of a turn.
//!
//! Owns: one account of each call, whichever of the three messages names it first; which of them wait for a
//! permission, each by the agent's own request; and what of a call is told when.
//! Never: touches a call of a turn that is over, unless the agent begins it anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use agent_client_protocol_schema::{Meta, ToolCall, ToolCallStatus, ToolCallUpdate, ToolKind};
use ahp_types::state::{ToolResultContent, ToolResultTextContent};
use serde::Deserialize;
use serde_json::Value;

use super::content;
use super::peer::AgentRequest;
use super::terminals::screen::Screen;
use super::terminals::Screens;
use crate::host::effects::{PermissionKind, PermissionOption, ToolGate, ToolOutcome, TurnEvent};

/// So many calls of turns that are over are remembered.
const PAST_MAX: usize = 10_000;

/// So much of a terminal's output is kept, in bytes: the latest of it.
const TERMINAL_BYTES_MAX: usize = 1 << 20;

/// The calls of a conversation.
#[derive(Debug, Default)]
pub struct Calls {
    /// The terminals that calls may refer to.
    pub screens: Screens,
    calls: BTreeMap<String, Call>,
    /// Calls of turns that are over.
    past: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Call {
    name: Option<String>,
    kind: ToolKind,
    title: Option<String>,
    input: Option<Value>,
    output: Option<Value>,
    content: Vec<ToolResultContent>,
    /// The terminals of ours that it shows.
    screens: Vec<Arc<Screen>>,
    /// What a terminal of the agent's own showed.
    terminal: String,
    stage: Stage,
    /// Clients know of it.
    told: bool,
    /// What they were shown last of what it has produced.
    shown: Vec<ToolResultContent>,
    /// Requests for a permission, the one that the user is shown first.
    asked: VecDeque<(AgentRequest, Vec<PermissionOption>)>,
}

/// How far a call has got, as it was told.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Begun,
    Asked,
    Running,
    Over,
}

/// A `session/request_permission`. Not the schema's type, since that knows all kinds of options that there are.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Asks {
    tool_call: ToolCallUpdate,
    options: Vec<Offer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Offer {
    option_id: String,
    name: String,
    kind: String,
}

impl Offer {
    fn option(self) -> PermissionOption {
        let kind = match self.kind.as_str() {
            "allow_once" => PermissionKind::AllowOnce,
            "reject_once" => PermissionKind::RejectOnce,
            // What is allowed by a kind that nobody knows is at least not taken for a single call.
            kind if kind.starts_with("allow") => PermissionKind::AllowAlways,
            _ => PermissionKind::RejectAlways,
        };
        PermissionOption { id: self.option_id, label: Some(self.name), kind }
    }
}

impl Calls {
    /// A `tool_call`.
    pub fn begun(&mut self, call: ToolCall, name: Option<String>) -> Vec<TurnEvent> {
        let id = call.tool_call_id.to_string();
        self.past.remove(&id);
        let known = self.calls.entry(id.clone()).or_default();
        known.name = name.or(known.name.take());
        known.kind = call.kind;
        known.title = Some(call.title).filter(|title| !title.is_empty()).or(known.title.take());
        known.input = call.raw_input.or(known.input.take());
        known.output = call.raw_output.or(known.output.take());
        if !call.content.is_empty() {
            known.screens = self.screens.in_content(&call.content);
            known.content = call.content.into_iter().filter_map(content::produced).collect();
        }
        known.take_terminal(call.meta.as_ref());
        known.tell(&id, Some(call.status))
    }

    /// A `tool_call_update`.
    pub fn updated(&mut self, update: ToolCallUpdate) -> Vec<TurnEvent> {
        let id = update.tool_call_id.to_string();
        if self.past.contains(&id) {
            tracing::debug!(id, "an update of a call of a turn that is over was ignored");
            return Vec::new();
        }
        let status = update.fields.status;
        self.merge(&id, update).tell(&id, status)
    }

    /// A request for a permission; false with it when nobody can be asked.
    pub fn asks(&mut self, request: AgentRequest, asks: Asks) -> (bool, Vec<TurnEvent>) {
        let id = asks.tool_call.tool_call_id.to_string();
        self.past.remove(&id);
        let call = self.merge(&id, asks.tool_call);
        let mut told = call.tell(&id, None);
        if call.stage == Stage::Over || asks.options.is_empty() {
            return (false, told);
        }
        call.asked.push_back((request, asks.options.into_iter().map(Offer::option).collect()));
        if call.asked.len() == 1 {
            told.extend(call.ask(&id));
        }
        (true, told)
    }

    /// The user has decided about a call: the request that is answered by it, and what follows.
    pub fn decided(&mut self, id: &str, approved: bool) -> Option<(AgentRequest, Vec<TurnEvent>)> {
        let call = self.calls.get_mut(id)?;
        let (request, _) = call.asked.pop_front()?;
        if !approved {
            call.stage = Stage::Over;
            return Some((request, Vec::new()));
        }
        call.stage = Stage::Running;
        let told = call.ask(id).into_iter().chain(call.shown(id)).collect();
        Some((request, told))
    }

    /// The agent does not want to know any more.
    pub fn withdrawn(&mut self, request: &AgentRequest) -> Vec<TurnEvent> {
        let asked = |call: &Call| call.asked.iter().position(|(asked, _)| asked == request);
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
        call.stage = Stage::Over;
        vec![call.done(id, false, Some("the agent does not ask any more".to_owned()))]
    }

    /// Requests that nobody will answer any more, of calls that are over, or of all.
    pub fn unanswered(&mut self, all: bool) -> Vec<AgentRequest> {
        let calls = self.calls.values_mut().filter(|call| all || call.stage == Stage::Over);
        calls.flat_map(|call| call.asked.drain(..)).map(|(request, _)| request).collect()
    }

    /// The turn is over.
    pub fn end_turn(&mut self) {
        self.past.extend(std::mem::take(&mut self.calls).into_keys());
        self.screens.end_turn();
        while self.past.len() > PAST_MAX {
            self.past.pop_first();
        }
    }

    /// Whether any call is not over.
    pub fn any_open(&self) -> bool {
        self.calls.values().any(|call| call.stage != Stage::Over)
    }

    /// Terminals may show something else: what is to be told of it.
    pub fn screens_changed(&mut self) -> Vec<TurnEvent> {
        let running = self.calls.iter_mut().filter(|(_, call)| call.stage == Stage::Running);
        running.filter(|(_, call)| !call.screens.is_empty()).filter_map(|(id, call)| call.shown(id)).collect()
    }

    fn merge(&mut self, id: &str, update: ToolCallUpdate) -> &mut Call {
        let call = self.calls.entry(id.to_owned()).or_default();
        let fields = update.fields;
        call.kind = fields.kind.unwrap_or(call.kind);
        call.title = fields.title.or(call.title.take());
        call.input = fields.raw_input.or(call.input.take());
        call.output = fields.raw_output.or(call.output.take());
        if let Some(content) = fields.content {
            call.screens = self.screens.in_content(&content);
            call.content = content.into_iter().filter_map(content::produced).collect();
        }
        call.take_terminal(update.meta.as_ref());
        call
    }
}

impl Call {
    /// What clients are to be told, now that something about the call has changed.
    fn tell(&mut self, id: &str, status: Option<ToolCallStatus>) -> Vec<TurnEvent> {
        let mut told = Vec::new();
        if !std::mem::replace(&mut self.told, true) {
            let (name, display_name) = (self.tool_name(), self.display_name());
            told.push(TurnEvent::ToolStarted { id: id.to_owned(), name, display_name });
        }
        let over = matches!(status, Some(ToolCallStatus::Completed | ToolCallStatus::Failed));
        // What has a terminal does run, whatever the agent says of it.
        let runs = status == Some(ToolCallStatus::InProgress) || !self.screens.is_empty();
        if self.stage == Stage::Begun && (over || runs) {
            self.stage = Stage::Running;
            told.push(self.ready(id, ToolGate::Open));
        }
        match (self.stage, status) {
            (Stage::Over, _) => {}
            (_, Some(ToolCallStatus::Completed)) => told.push(self.done(id, true, None)),
            (_, Some(ToolCallStatus::Failed)) => told.push(self.done(id, false, None)),
            (Stage::Running, _) => told.extend(self.shown(id)),
            (Stage::Begun | Stage::Asked, _) => {}
        }
        told
    }

    /// The question that the user is to be shown, if there is one.
    fn ask(&mut self, id: &str) -> Option<TurnEvent> {
        let (_, options) = self.asked.front()?;
        let gate = ToolGate::Ask(options.clone());
        self.stage = Stage::Asked;
        Some(self.ready(id, gate))
    }

    fn ready(&self, id: &str, gate: ToolGate) -> TurnEvent {
        TurnEvent::ToolReady {
            id: id.to_owned(),
            input: self.input.as_ref().map(Value::to_string).unwrap_or_default(),
            message: self.message().into(),
            gate,
        }
    }

    /// What it has produced so far, when that is not what was told last.
    fn shown(&mut self, id: &str) -> Option<TurnEvent> {
        let content = self.produced();
        if content == self.shown {
            return None;
        }
        self.shown.clone_from(&content);
        Some(TurnEvent::ToolContent { id: id.to_owned(), content })
    }

    fn done(&mut self, id: &str, success: bool, why: Option<String>) -> TurnEvent {
        self.stage = Stage::Over;
        let mut content = self.produced();
        if let Some(output) = self.output.take().filter(|_| content.is_empty()) {
            content.push(content::text(match output {
                Value::String(text) => text,
                output => format!("{output:#}"),
            }));
        }
        let first_text = content.iter().find_map(|content| match content {
            ToolResultContent::Text(ToolResultTextContent { text }) => Some(text.clone()),
            _ => None,
        });
        let error =
            why.or(first_text).unwrap_or_else(|| "the agent says that the call has failed".to_owned());
        let outcome = ToolOutcome {
            success,
            message: self.message().into(),
            content,
            error: (!success).then_some(error),
        };
        TurnEvent::ToolDone { id: id.to_owned(), outcome, review: false }
    }

    fn produced(&self) -> Vec<ToolResultContent> {
        let mut content = self.content.clone();
        content.extend(self.screens.iter().flat_map(|screen| screen.content()));
        if !self.terminal.is_empty() {
            content.push(content::text(self.terminal.clone()));
        }
        content
    }

    /// Takes in what an agent says of a terminal of its own: the output comes in pieces.
    fn take_terminal(&mut self, meta: Option<&Meta>) {
        let Some(meta) = meta else { return };
        for name in ["terminal_output_delta", "terminal_output"] {
            let output = meta.get(name).and_then(|output| output.get("data").unwrap_or(output).as_str());
            self.terminal.push_str(output.unwrap_or_default());
        }
        if self.terminal.len() > TERMINAL_BYTES_MAX {
            let mut cut = self.terminal.len() - TERMINAL_BYTES_MAX / 2;
            while !self.terminal.is_char_boundary(cut) {
                cut += 1;
            }
            self.terminal.drain(..cut);
        }
    }

    fn message(&self) -> String {
        self.title.clone().unwrap_or_else(|| self.display_name())
    }

    fn tool_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| kind_name(self.kind).to_owned())
    }

    fn display_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| {
            let mut name = kind_name(self.kind).replace('_', " ");
            name[..1].make_ascii_uppercase();
            name
        })
    }
}

/// A kind of tool, as ACP calls it.
fn kind_name(kind: ToolKind) -> &'static str {
    match kind {
        ToolKind::Read => "read",
        ToolKind::Edit => "edit",
        ToolKind::Delete => "delete",
        ToolKind::Move => "move",
        ToolKind::Search => "search",
        ToolKind::Execute => "execute",
        ToolKind::Think => "think",
        ToolKind::Fetch => "fetch",
        ToolKind::SwitchMode => "switch_mode",
        _ => "tool",
    }
}
