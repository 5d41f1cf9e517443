//! The tool calls of a turn.
//!
//! Owns: one account of each call, whichever of the three messages names it first; which of them wait for a
//! permission, each by the agent's own request; and what of a call is told when. `clients` has those that clients carry
//! out.
//! Never: touches a call of a turn that is over, unless the agent begins it anew.

mod clients;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use agent_client_protocol_schema::{Diff, ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolKind};
use ahp_types::common::JsonObject;
use ahp_types::state::{ResponsePart, ToolResultContent, ToolResultTextContent};
use serde::{Deserialize, Serialize};
use serde_json::value::{to_raw_value, RawValue};
use serde_json::{json, Value};

use super::client_tools::Offered;
use super::edits::Moment;
use super::peer::AgentRequest;
use super::terminals::screen::Screen;
use super::terminals::Screens;
use super::{besides, content};
use crate::host::effects::{Besides, PermissionKind, PermissionOption, ToolGate, ToolOutcome, TurnEvent};
use crate::host::reduce::tool_call_id;

/// So many calls of turns that are over are remembered.
const PAST_MAX: usize = 10_000;

/// What agents call the command that they run.
const COMMANDS: [&str; 2] = ["command", "cmd"];

/// What agents call the text of an output that has more to say, the fullest first.
const PRINTED: [&str; 6] =
    ["formatted_output", "aggregated_output", "output", "content", "stdout", "message"];

/// So much of a terminal's output is kept, in bytes: the latest of it.
const TERMINAL_BYTES_MAX: usize = 1 << 20;

/// The calls of a conversation.
#[derive(Debug, Default)]
pub struct Calls {
    /// The terminals that calls may refer to.
    pub screens: Screens,
    calls: BTreeMap<String, Call>,
    /// Calls of turns that are over, as the agent calls them.
    past: BTreeSet<String>,
    /// Calls that have another name in the turn than the agent's, by that.
    renamed: BTreeMap<String, String>,
    /// The tools that clients carry out.
    offered: Arc<Offered>,
}

#[derive(Debug, Default)]
struct Call {
    name: Option<String>,
    kind: ToolKind,
    /// The kind, as the agent calls it.
    kind_name: Option<String>,
    title: Option<String>,
    input: Option<Value>,
    output: Option<Value>,
    locations: Vec<ToolCallLocation>,
    content: Vec<ToolResultContent>,
    /// What of its content has no place.
    content_rest: Vec<Value>,
    /// The changes of files in its content.
    diffs: Vec<Diff>,
    /// The terminals of ours that it shows.
    screens: Vec<Arc<Screen>>,
    /// That content came with the question about the call, and may be all that it is about.
    is_of_question: bool,
    /// What a terminal of the agent's own showed.
    terminal: String,
    /// What else the agent said of that terminal.
    terminal_info: JsonObject,
    /// The agent's own `_meta`.
    meta: JsonObject,
    stage: Stage,
    /// Clients know of it.
    told: bool,
    /// What they were shown last of what it has produced.
    shown: Vec<ToolResultContent>,
    /// What they were told last besides.
    meta_told: JsonObject,
    /// The tool that a client carries out, as that calls it.
    client_tool: Option<String>,
    /// The agent waits for what comes of that, or has it.
    wanted: bool,
    /// The user has denied it.
    denied: bool,
    /// It was shown because the agent wants the result, and the agent's own account of it has not come yet.
    unclaimed: bool,
    /// Requests for a permission, the one that the user is shown first.
    asked: VecDeque<(AgentRequest, Vec<Offer>)>,
    /// What the agent said of the options that the user was shown last, besides what is shown of them: by their ids.
    options: JsonObject,
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
    tool_call: Said,
    options: Vec<Offer>,
}

/// What one message says of a call: the schema's type, and what that does not know.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Box<RawValue>")]
pub struct Said {
    update: ToolCallUpdate,
    more: More,
}

/// What the schema does not know, or leaves out when it does not understand it.
#[derive(Debug, Default, Deserialize)]
struct More {
    name: Option<String>,
    kind: Option<String>,
    content: Option<Vec<Box<RawValue>>>,
}

impl TryFrom<Box<RawValue>> for Said {
    type Error = serde_json::Error;

    fn try_from(raw: Box<RawValue>) -> Result<Self, Self::Error> {
        let update = serde_json::from_str(raw.get())?;
        Ok(Self { update, more: serde_json::from_str(raw.get()).unwrap_or_default() })
    }
}

impl Said {
    /// What the host itself says of a call, in the words of the agent's protocol.
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
struct Offer {
    option_id: String,
    name: String,
    kind: String,
    #[serde(rename = "_meta", default)]
    meta: Option<Value>,
}

impl Offer {
    fn option(&self) -> PermissionOption {
        let kind = match self.kind.as_str() {
            "allow_once" => PermissionKind::AllowOnce,
            "reject_once" => PermissionKind::RejectOnce,
            // What is allowed by a kind that nobody knows is at least not taken for a single call.
            kind if kind.starts_with("allow") => PermissionKind::AllowAlways,
            _ => PermissionKind::RejectAlways,
        };
        PermissionOption { id: self.option_id.clone(), label: Some(self.name.clone()), kind }
    }

    /// What no option of the host's has a place for.
    fn rest(&self) -> Value {
        let mut rest = json!({ "kind": self.kind });
        if let Some(meta) = self.meta.as_ref().filter(|meta| !meta.is_null()) {
            rest["_meta"] = meta.clone();
        }
        rest
    }
}

impl Calls {
    /// A `tool_call`.
    pub fn begun(&mut self, mut said: Said) -> Vec<TurnEvent> {
        let id = self.name_anew(&said);
        // What it was asked with before is not taken away by a beginning that does not say it.
        said.more.content = said.more.content.filter(|content| !content.is_empty());
        let status = said.update.fields.status;
        self.merge(&id, said).tell(&id, status)
    }

    /// A `tool_call_update`.
    pub fn updated(&mut self, said: Said) -> Vec<TurnEvent> {
        let id = &*said.update.tool_call_id.0;
        if self.past.contains(id) {
            tracing::debug!(id, "an update of a call of a turn that is over was ignored");
            return Vec::new();
        }
        let id = self.name_anew(&said);
        let status = said.update.fields.status;
        self.merge(&id, said).tell(&id, status)
    }

    /// A request for a permission; false with it when nobody can be asked.
    pub fn asks(&mut self, request: AgentRequest, asks: Asks) -> (bool, Vec<TurnEvent>) {
        let has_content = asks.tool_call.more.content.is_some();
        let id = self.name_anew(&asks.tool_call);
        let call = self.merge(&id, asks.tool_call);
        call.is_of_question |= has_content;
        let mut told = call.tell(&id, None);
        if call.stage == Stage::Over || asks.options.is_empty() {
            return (false, told);
        }
        call.asked.push_back((request, asks.options));
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
            call.denied = true;
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

    /// The changes of files that a call is to make when it asks for a permission, or has made when it is done;
    /// none when an event is neither.
    pub fn changes(&self, event: &TurnEvent) -> Option<(Vec<Diff>, Moment)> {
        let event = match event {
            TurnEvent::With(event, _) => event,
            event => event,
        };
        let (id, moment) = match event {
            TurnEvent::ToolReady { id, gate: ToolGate::Ask(_), .. } => (id, Moment::Before),
            TurnEvent::ToolDone { id, outcome, .. } if outcome.success => (id, Moment::After),
            _ => return None,
        };
        let diffs = self.calls.get(id).map(|call| call.diffs.clone()).filter(|diffs| !diffs.is_empty())?;
        Some((diffs, moment))
    }

    /// The turn that begins holds calls already, of another process: agents use names again.
    pub fn stay_apart_from(&mut self, parts: &[ResponsePart]) {
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

    /// What a call that is not over is called in the turn.
    fn name_anew(&mut self, said: &Said) -> String {
        let id = &*said.update.tool_call_id.0;
        self.past.remove(id);
        if !self.renamed.contains_key(id) && !self.calls.contains_key(id) {
            if let Some(shown) = self.shown_before(said) {
                self.renamed.insert(id.to_owned(), shown);
            }
        }
        self.renamed.get(id).cloned().unwrap_or_else(|| id.to_owned())
    }

    /// The turn is over.
    pub fn end_turn(&mut self) {
        let renamed = std::mem::take(&mut self.renamed);
        let own = |id: String| {
            renamed.iter().find(|(_, name)| **name == id).map(|(own, _)| own.clone()).unwrap_or(id)
        };
        self.past.extend(std::mem::take(&mut self.calls).into_keys().map(own));
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

    fn merge(&mut self, id: &str, said: Said) -> &mut Call {
        let tool = self.client_tool(&said);
        let call = self.calls.entry(id.to_owned()).or_default();
        if !call.told {
            call.client_tool = tool.or(call.client_tool.take());
        }
        let Said { update, more } = said;
        let fields = update.fields;
        call.name = more.name.or(call.name.take());
        call.kind = fields.kind.unwrap_or(call.kind);
        call.kind_name = more.kind.or(call.kind_name.take());
        call.title = fields.title.filter(|title| !title.is_empty()).or(call.title.take());
        if call.client_tool.is_some() {
            call.learn_arguments(fields.raw_input.as_ref(), fields.content.as_deref());
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
        call
    }
}

impl Call {
    /// What clients are to be told, now that something about the call has changed.
    fn tell(&mut self, id: &str, status: Option<ToolCallStatus>) -> Vec<TurnEvent> {
        let mut told = Vec::new();
        if !std::mem::replace(&mut self.told, true) {
            let started = match &self.client_tool {
                Some(tool) => TurnEvent::ClientToolStarted { id: id.to_owned(), name: tool.clone() },
                None => TurnEvent::ToolStarted {
                    id: id.to_owned(),
                    name: self.tool_name(),
                    display_name: self.display_name(),
                },
            };
            told.push(self.with(started));
        }
        let over = matches!(status, Some(ToolCallStatus::Completed | ToolCallStatus::Failed));
        // What has a terminal does run, whatever the agent says of it.
        let has_terminal = !self.terminal.is_empty() || !self.screens.is_empty();
        let runs = status == Some(ToolCallStatus::InProgress) || has_terminal;
        // A client begins with it as soon as it runs: it runs when the agent waits for the result.
        if self.stage == Stage::Begun && (over || runs) && self.client_tool.is_none() {
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
        self.options = options.iter().map(|offer| (offer.option_id.clone(), offer.rest())).collect();
        let gate = ToolGate::Ask(options.iter().map(Offer::option).collect());
        self.stage = Stage::Asked;
        Some(self.ready(id, gate))
    }

    fn ready(&mut self, id: &str, gate: ToolGate) -> TurnEvent {
        let whole = || self.input.as_ref().map(Value::to_string);
        let input = self.command().map(str::to_owned).or_else(whole).unwrap_or_default();
        self.with(TurnEvent::ToolReady { id: id.to_owned(), input, message: self.message().into(), gate })
    }

    /// What it has produced so far, when that is not what was told last.
    fn shown(&mut self, id: &str) -> Option<TurnEvent> {
        // A client says itself what its tool has produced.
        if self.client_tool.is_some() {
            return None;
        }
        let content = self.produced();
        if content == self.shown && self.meta_told == self.besides() {
            return None;
        }
        self.shown.clone_from(&content);
        Some(self.with(TurnEvent::ToolContent { id: id.to_owned(), content }))
    }

    fn done(&mut self, id: &str, success: bool, why: Option<String>) -> TurnEvent {
        self.stage = Stage::Over;
        let mut content = self.produced();
        let mut structured = None;
        let printed = self.output.as_ref().and_then(printed).map(ToOwned::to_owned);
        let says_itself = printed.is_none();
        if let Some(text) = printed.filter(|text| !text.is_empty()) {
            if content.is_empty() || self.is_of_question {
                content.push(content::text(text));
            }
        }
        match self.output.take() {
            Some(output) if content.is_empty() && says_itself => {
                content.push(content::text(format!("{output:#}")))
            }
            // Said twice.
            Some(Value::String(text)) if content.contains(&content::text(text.clone())) => {}
            Some(output) => match besides::kept(output) {
                Value::Object(output) => structured = Some(output),
                output => self.output = Some(output),
            },
            None => {}
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
        self.with_all(TurnEvent::ToolDone { id: id.to_owned(), outcome, review: false }, structured)
    }

    /// An event, with what is told besides if clients do not know it yet.
    fn with(&mut self, event: TurnEvent) -> TurnEvent {
        self.with_all(event, None)
    }

    fn with_all(&mut self, event: TurnEvent, structured: Option<JsonObject>) -> TurnEvent {
        let mut meta = self.besides();
        if meta == self.meta_told {
            meta.clear();
        } else {
            self.meta_told.clone_from(&meta);
        }
        if meta.is_empty() && structured.is_none() {
            return event;
        }
        TurnEvent::With(Box::new(event), Besides { meta, structured, ..Besides::default() })
    }

    /// All that has no place.
    fn besides(&self) -> JsonObject {
        let mut meta = JsonObject::new();
        let some = |value: Value| Some(value).filter(|value| *value != json!([]) && *value != json!({}));
        let kind = self.kind_name.as_deref().unwrap_or_else(|| kind_name(self.kind));
        besides::put(&mut meta, besides::TOOL_KIND, self.known_kind().map(Value::from));
        if self.command().is_some() {
            let more = self.input.clone().and_then(|input| besides::rest(input, &COMMANDS));
            besides::put(&mut meta, besides::RAW_INPUT, more.map(Value::Object));
        }
        besides::put(&mut meta, besides::KIND, Some(kind.into()));
        besides::put(&mut meta, besides::LOCATIONS, some(json!(self.locations)));
        besides::put(&mut meta, besides::CONTENT, some(json!(self.content_rest)));
        besides::put(&mut meta, besides::TERMINAL, some(json!(self.terminal_info)));
        besides::put(&mut meta, besides::OPTIONS, some(json!(self.options)));
        besides::put(&mut meta, besides::META, some(json!(self.meta)));
        if self.stage == Stage::Over {
            besides::put(&mut meta, besides::RAW_OUTPUT, self.output.clone());
        }
        meta
    }

    fn produced(&self) -> Vec<ToolResultContent> {
        let mut content = self.content.clone();
        content.extend(self.screens.iter().flat_map(|screen| screen.content()));
        if !self.terminal.is_empty() {
            content.push(content::text(self.terminal.clone()));
        }
        content
    }

    /// The command that is run, where the agent says it like that: it is what people know as the input.
    fn command(&self) -> Option<&str> {
        let is_command = self.kind == ToolKind::Execute && self.client_tool.is_none();
        let input = self.input.as_ref().filter(|_| is_command)?;
        COMMANDS.iter().find_map(|name| input.get(name)?.as_str())
    }

    /// The kind of tool, as clients that follow VS Code call it, of those that they know. They take the input of
    /// what they know as a terminal for a command.
    fn known_kind(&self) -> Option<&'static str> {
        match self.kind {
            ToolKind::Execute => self.command().map(|_| "terminal"),
            ToolKind::Search => Some("search"),
            ToolKind::Read => Some("read"),
            _ => None,
        }
    }

    fn take_content(&mut self, content: &[Box<RawValue>]) {
        self.content.clear();
        self.content_rest.clear();
        self.diffs.clear();
        for raw in content {
            let produced = content::produced(raw);
            if let Some(mut rest) = produced.rest {
                rest.insert("index".to_owned(), self.content.len().into());
                self.content_rest.push(rest.into());
            }
            self.content.extend(produced.content);
            self.diffs.extend(produced.diff);
        }
    }

    /// Takes in the agent's own `_meta`, and what it says there of a terminal of its own: the output comes in
    /// pieces.
    fn take_meta(&mut self, mut meta: JsonObject) {
        for name in ["terminal_output_delta", "terminal_output"] {
            let Some(output) = meta.remove(name) else { continue };
            let text = output.get("data").unwrap_or(&output).as_str();
            self.terminal.push_str(text.unwrap_or_default());
        }
        for name in ["terminal_info", "terminal_exit"] {
            if let Some(Value::Object(info)) = meta.remove(name) {
                besides::add(&mut self.terminal_info, info);
            }
        }
        besides::add(&mut self.meta, meta);
        if self.terminal.len() > TERMINAL_BYTES_MAX {
            let mut cut = self.terminal.len() - TERMINAL_BYTES_MAX / 2;
            while !self.terminal.is_char_boundary(cut) {
                cut += 1;
            }
            self.terminal.drain(..cut);
        }
    }

    fn message(&self) -> String {
        let of_client = self.client_tool.as_ref().map(|tool| format!("Run {tool}"));
        of_client.or_else(|| self.title.clone()).unwrap_or_else(|| self.display_name())
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

/// What an output is for people, where it says so.
fn printed(output: &Value) -> Option<&str> {
    let named = || PRINTED.iter().find_map(|name| output.get(name)?.as_str());
    output.as_str().or_else(named)
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
