//! One tool call and its events.
//!
//! Owns: the call's stages, and its name, command, output and metadata from the agent's data.
//! Never: knows of other calls, or of the turn.

use std::collections::BTreeSet;
use std::path::PathBuf;

use agent_client_protocol_schema::v1::{Diff, ToolCallStatus, ToolKind};
use ahp_types::common::JsonObject;
use ahp_types::state::{ToolResultContent, ToolResultTextContent};
use serde_json::value::RawValue;
use serde_json::{json, Value};

use super::{CallStage, PermissionOffer, TrackedCall};
use crate::backend::acp::terminals::screen::SHOWN_BYTES_MAX;
use crate::backend::acp::{content, extra_meta};
use crate::host::effects::{BackgroundCommand, CallExtras, Event, ToolGate, ToolOutcome, TurnEvent};
use crate::wire::text;
use crate::wire::tool_calls::LEFT_OUT;

/// Members of a call's input that hold the command line.
const COMMANDS: [&str; 2] = ["command", "cmd"];

/// Members of a call's input that keep the command running after the call (Claude; Qwen Code).
const IN_BACKGROUND: [&str; 2] = ["run_in_background", "is_background"];

/// Members of a call's output that hold its text, most complete first.
const PRINTED: [&str; 6] =
    ["formatted_output", "aggregated_output", "output", "content", "stdout", "message"];

/// Maximum size of a terminal's retained output, in bytes; the oldest is dropped.
const TERMINAL_BYTES_MAX: usize = 1 << 20;

impl TrackedCall {
    /// Returns whether the agent may continue the call after its turn: the call is open, the user
    /// was not asked, and neither a client nor the host carries it out.
    pub(super) fn may_be_left_open(&self) -> bool {
        let is_agents = self.client_tool.is_none() && self.screens.is_empty() && !self.feed.is_open();
        self.is_sent && is_agents && matches!(self.stage, CallStage::Begun | CallStage::Running)
    }

    /// Returns what is known of the call for another turn, in which it is shown anew.
    pub(super) fn left(self) -> Self {
        let Self { name, kind, kind_name, title, input, locations, diffs, .. } = self;
        Self { name, kind, kind_name, title, input, locations, diffs, ..Self::default() }
    }

    /// Returns the command that continues in the background, if the agent's input asks for that.
    pub(super) fn in_background(&self) -> Option<BackgroundCommand> {
        let input = self.input.as_ref()?;
        let is_to = IN_BACKGROUND.iter().any(|name| input.get(name) == Some(&Value::Bool(true)));
        let line = self.command().filter(|_| is_to && self.stage == CallStage::Over && !self.denied)?;
        let purpose = input.get("description").and_then(Value::as_str).filter(|it| !it.trim().is_empty());
        let label = text::message(purpose.unwrap_or(line));
        Some(BackgroundCommand { label, line: line.to_owned() })
    }

    pub(super) fn changes_files(&self) -> bool {
        !self.diffs.is_empty()
    }

    pub(super) fn take_events(&mut self, id: &str, status: Option<ToolCallStatus>) -> Vec<TurnEvent> {
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.is_sent, true) {
            let started = match &self.client_tool {
                Some(tool) => TurnEvent::ClientToolStarted { id: id.to_owned(), name: tool.clone() },
                None => TurnEvent::ToolStarted {
                    id: id.to_owned(),
                    name: self.tool_name(),
                    display_name: self.display_name(),
                },
            };
            events.push(self.with(started));
        }
        let over = matches!(status, Some(ToolCallStatus::Completed | ToolCallStatus::Failed));
        // A call with a terminal is running, whatever status the agent reports.
        let has_terminal = !self.terminal.is_empty() || !self.screens.is_empty();
        let runs = status == Some(ToolCallStatus::InProgress) || has_terminal;
        // A client starts a running call, so the call runs only when the agent wants the result.
        if self.stage == CallStage::Begun && (over || runs) && self.client_tool.is_none() {
            self.stage = CallStage::Running;
            events.push(self.ready(id, ToolGate::Open));
        }
        match (self.stage, status) {
            (CallStage::Over, _) => {}
            (_, Some(ToolCallStatus::Completed)) => events.push(self.done(id, true, None)),
            (_, Some(ToolCallStatus::Failed)) => events.push(self.done(id, false, None)),
            (CallStage::Running, _) => events.extend(self.shown(id)),
            (CallStage::Begun | CallStage::Asked, _) => {}
        }
        events
    }

    /// Returns the question of the first pending permission request; `None` if there is none.
    pub(super) fn ask(&mut self, id: &str) -> Option<TurnEvent> {
        let (_, options) = self.asked.front()?;
        self.options = options.iter().map(|offer| (offer.option_id.clone(), offer.rest())).collect();
        let gate = ToolGate::Ask(options.iter().map(PermissionOffer::option).collect());
        self.stage = CallStage::Asked;
        Some(self.ready(id, gate))
    }

    fn ready(&mut self, id: &str, gate: ToolGate) -> TurnEvent {
        let whole = || self.input.as_ref().map(Value::to_string);
        let input = self.command().map(str::to_owned).or_else(whole).unwrap_or_default();
        self.with(TurnEvent::ToolReady { id: id.to_owned(), input, message: self.message().into(), gate })
    }

    /// Returns the current content as an event; `None` if clients have it already.
    pub(super) fn shown(&mut self, id: &str) -> Option<TurnEvent> {
        // The client itself reports the output of its tool.
        if self.client_tool.is_some() {
            return None;
        }
        let content = self.produced();
        if content == self.shown && self.meta_sent == self.besides() {
            return None;
        }
        self.shown.clone_from(&content);
        Some(self.with(TurnEvent::ToolContent { id: id.to_owned(), content }))
    }

    pub(super) fn done(&mut self, id: &str, success: bool, why: Option<String>) -> TurnEvent {
        self.stage = CallStage::Over;
        let mut content = self.produced();
        let mut structured = None;
        let printed = self.output.as_ref().and_then(printed).map(ToOwned::to_owned);
        let prints_nothing = printed.is_none();
        if let Some(text) = printed.filter(|text| !text.is_empty()) {
            if content.is_empty() || self.is_of_question {
                content.push(content::text(text));
            }
        }
        match self.output.take() {
            Some(output) if content.is_empty() && prints_nothing => {
                content.push(content::text(format!("{output:#}")))
            }
            // The content has the same text already.
            Some(Value::String(text)) if content.contains(&content::text(text.clone())) => {}
            Some(output) => match extra_meta::kept(output) {
                Value::Object(output) => structured = Some(output),
                output => self.output = Some(output),
            },
            None => {}
        }
        let first_text = content.iter().find_map(|content| match content {
            ToolResultContent::Text(ToolResultTextContent { text }) => Some(text.clone()),
            _ => None,
        });
        let error = why
            .or(first_text)
            .unwrap_or_else(|| "the agent reported a failure of the call, without a reason".to_owned());
        let outcome = ToolOutcome {
            success,
            message: self.message().into(),
            content,
            error: (!success).then_some(error),
        };
        self.with_all(TurnEvent::ToolDone { id: id.to_owned(), outcome, review: false }, structured)
    }

    /// Adds extra metadata to an event if it has changed since it was last sent.
    fn with(&mut self, event: TurnEvent) -> TurnEvent {
        self.with_all(event, None)
    }

    fn with_all(&mut self, event: TurnEvent, structured: Option<JsonObject>) -> TurnEvent {
        let mut meta = self.besides();
        if meta == self.meta_sent {
            meta.clear();
        } else {
            self.meta_sent.clone_from(&meta);
        }
        extra_meta::with(event, CallExtras { meta, structured, ..CallExtras::default() })
    }

    fn besides(&self) -> JsonObject {
        let mut meta = JsonObject::new();
        let some = |value: Value| Some(value).filter(|value| *value != json!([]) && *value != json!({}));
        let kind = self.kind_name.as_deref().unwrap_or_else(|| kind_name(self.kind));
        extra_meta::put(&mut meta, extra_meta::TOOL_KIND, self.known_kind());
        if let Some((name, _)) = self.named_command() {
            let more = self.input.clone().and_then(|input| extra_meta::rest(input, &[name]));
            extra_meta::put(&mut meta, extra_meta::RAW_INPUT, more);
        }
        extra_meta::put(&mut meta, extra_meta::KIND, Some(kind));
        extra_meta::put(&mut meta, extra_meta::LOCATIONS, some(self.places()));
        extra_meta::put(&mut meta, extra_meta::CONTENT, some(json!(self.content_rest)));
        extra_meta::put(&mut meta, extra_meta::TERMINAL, some(json!(self.terminal_info)));
        extra_meta::put(&mut meta, extra_meta::OPTIONS, some(json!(self.options)));
        extra_meta::put(&mut meta, extra_meta::META, some(json!(self.meta)));
        if self.stage == CallStage::Over {
            extra_meta::put(&mut meta, extra_meta::RAW_OUTPUT, self.output.clone());
        }
        meta
    }

    /// Returns the locations, with the files of diffs that are not among them.
    fn places(&self) -> Value {
        let is_named = |diff: &&Diff| !self.locations.iter().any(|location| location.path == diff.path);
        let of_diffs: BTreeSet<&PathBuf> =
            self.diffs.iter().filter(is_named).map(|diff| &diff.path).collect();
        let locations = self.locations.iter().map(|location| json!(location));
        locations.chain(of_diffs.into_iter().map(|path| json!({ "path": path }))).collect()
    }

    fn produced(&self) -> Vec<ToolResultContent> {
        let mut content = self.content.clone();
        content.extend(self.screens.iter().flat_map(|screen| screen.content()));
        if let Some(name) = &self.terminal_name {
            content.push(content::terminal(name, &self.message()));
        }
        if !self.terminal.is_empty() {
            let is_over = self.stage == CallStage::Over;
            let shown = text::last_bytes(&self.terminal, if is_over { usize::MAX } else { SHOWN_BYTES_MAX });
            let is_cut = self.terminal_is_cut || shown.len() < self.terminal.len();
            content.push(content::text(if is_cut { format!("{LEFT_OUT}{shown}") } else { shown.to_owned() }));
        }
        content
    }

    /// Returns the unsent events of the agent's own terminal, which ends with the call or before.
    pub(super) fn agent_terminal_events(&mut self, id: &str) -> Vec<Event> {
        let Some(name) = self.terminal_name.clone() else { return Vec::new() };
        let has_ended = ["exit_code", "signal"].iter().any(|member| self.terminal_info.contains_key(*member));
        let code = self.terminal_info.get("exit_code").and_then(Value::as_i64);
        let end = (has_ended || self.stage == CallStage::Over).then_some(code);
        let title = self.message();
        self.feed.take_unsent_in(id, &name, &title, end)
    }

    /// Returns the command line of a call that executes one; clients show it as the input.
    fn command(&self) -> Option<&str> {
        self.named_command().map(|(_, line)| line)
    }

    /// Returns the command line with the name of its member.
    fn named_command(&self) -> Option<(&'static str, &str)> {
        let is_command = self.kind == ToolKind::Execute && self.client_tool.is_none();
        let input = self.input.as_ref().filter(|_| is_command)?;
        COMMANDS.iter().find_map(|name| Some((*name, input.get(name)?.as_str()?)))
    }

    /// Returns the kind of tool for clients that follow VS Code, if they know it. They take the
    /// input of a `terminal` for a command line.
    fn known_kind(&self) -> Option<&'static str> {
        match self.kind {
            ToolKind::Execute => self.command().map(|_| "terminal"),
            ToolKind::Search => Some("search"),
            ToolKind::Read => Some("read"),
            _ => None,
        }
    }

    pub(super) fn take_content(&mut self, content: &[Box<RawValue>]) {
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

    /// Applies the agent's `_meta`, which may contain output of its own terminal, in pieces.
    pub(super) fn take_meta(&mut self, mut meta: JsonObject) {
        for name in ["terminal_output_delta", "terminal_output"] {
            let Some(output) = meta.remove(name) else { continue };
            let text = output.get("data").unwrap_or(&output).as_str().unwrap_or_default();
            self.terminal.push_str(text);
            self.feed.write(text.as_bytes());
        }
        for name in ["terminal_info", "terminal_exit"] {
            if let Some(Value::Object(info)) = meta.remove(name) {
                extra_meta::add(&mut self.terminal_info, info);
            }
        }
        extra_meta::add(&mut self.meta, meta);
        if self.terminal.len() > TERMINAL_BYTES_MAX {
            self.terminal = text::last_bytes(&self.terminal, TERMINAL_BYTES_MAX / 2).to_owned();
            self.terminal_is_cut = true;
        }
    }

    pub(super) fn message(&self) -> String {
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

/// Returns the text of an output, for people; `None` if it has no text.
fn printed(output: &Value) -> Option<&str> {
    let named = || PRINTED.iter().find_map(|name| output.get(name)?.as_str());
    output.as_str().or_else(named)
}

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
