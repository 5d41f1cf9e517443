//! Conversion of an agent's `session/update`s to events.
//!
//! Owns: the text, tool calls, plan and usage of the running turn.
//! Never: lets updates between turns change a turn.

use std::borrow::Cow;

use agent_client_protocol_schema::v1::{
    ContentBlock, ContentChunk, PlanEntryStatus, SessionInfoUpdate, SessionUpdate, Usage,
};
use agent_client_protocol_schema::MaybeUndefined;
use ahp_types::common::JsonObject;
use ahp_types::state::UsageInfo;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::Value;

use super::settings::is_of_session;
use super::AcpConversation;
use crate::backend::acp::{calls, content, extra_meta};
use crate::host::effects::{CallExtras, Event, TextKind, TurnEvent};
use crate::wire::text;

/// Updates of the session for which the protocol has no place.
#[derive(Default)]
pub(super) struct UpdateNotes {
    /// Members of the session's info other than its title.
    info: JsonObject,
    /// Latest update of each unknown kind.
    unknown: JsonObject,
}

#[derive(Deserialize)]
struct AnyUpdate {
    #[serde(rename = "sessionUpdate")]
    kind: String,
    #[serde(flatten)]
    rest: JsonObject,
}

/// Members of an update that determine its meaning.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UpdateMembers<'a> {
    #[serde(borrow)]
    pub(super) session_update: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) tool_call_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) status: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) config_options: Option<&'a RawValue>,
    pub(super) current_mode_id: Option<String>,
    #[serde(borrow, default)]
    pub(super) available_commands: Option<&'a RawValue>,
    #[serde(rename = "_meta", default)]
    pub(super) meta: Option<Value>,
}

/// Piece of the answer or of the thoughts that consists of text only. Nearly all updates are such
/// pieces; parsing them alone avoids trying each kind of update.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct PlainChunk<'a> {
    #[serde(borrow)]
    session_update: Cow<'a, str>,
    #[serde(borrow)]
    content: PlainText<'a>,
    #[serde(default)]
    message_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainText<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    text: String,
}

impl PlainChunk<'_> {
    fn kind(&self) -> Option<TextKind> {
        match (&*self.content.kind, &*self.session_update) {
            ("text", "agent_message_chunk") => Some(TextKind::Markdown),
            ("text", "agent_thought_chunk") => Some(TextKind::Reasoning),
            _ => None,
        }
    }
}

impl AcpConversation {
    pub(super) fn updated(&mut self, raw: &RawValue) {
        let runs = self.run.as_ref().is_some_and(|run| !run.is_cancelled());
        if runs && self.take_plain_text(raw) {
            return;
        }
        let update = match serde_json::from_str(raw.get()) {
            Ok(update) => update,
            Err(error) => {
                if is_of_session(raw) {
                    // The schema crate knows fewer members of such an update.
                    return self.session_updated(raw);
                }
                tracing::debug!(agent = self.agent.spec.name, %error, "an update of the agent is unknown or invalid: it is kept in the session's `_meta` only: {raw}");
                return self.keep_unknown_update(raw);
            }
        };
        if let SessionUpdate::AvailableCommandsUpdate(_)
        | SessionUpdate::CurrentModeUpdate(_)
        | SessionUpdate::ConfigOptionUpdate(_) = update
        {
            return self.session_updated(raw);
        }
        match update {
            SessionUpdate::SessionInfoUpdate(info) => self.apply_session_info(info, raw),
            SessionUpdate::Plan(plan) => {
                let at_work = plan.entries.iter().find(|it| it.status == PlanEntryStatus::InProgress);
                self.queue_event(TurnEvent::Activity(at_work.map(|entry| text::message(&entry.content))));
                self.note(extra_meta::PLAN, unplaced(raw).filter(|_| !plan.entries.is_empty()));
            }
            SessionUpdate::UsageUpdate(_) if runs => {
                let context = unplaced(raw);
                self.send_usage(|known| {
                    extra_meta::put(known.meta.get_or_insert_default(), extra_meta::CONTEXT, context);
                });
            }
            SessionUpdate::UsageUpdate(_) => self.note(extra_meta::CONTEXT, unplaced(raw)),
            // Text before the first prompt, or after a cancelled own turn. It is not shown, so the
            // warning helps users who miss it.
            SessionUpdate::AgentMessageChunk(chunk) if self.run.is_none() && !is_blank(&chunk) => {
                tracing::warn!(
                    agent = self.agent.spec.name,
                    "text of the agent is not shown: no turn is running: {raw}"
                );
            }
            SessionUpdate::Notice(notice) if !runs => {
                let (title, why) = (&notice.title, notice.description.as_deref().unwrap_or_default());
                tracing::warn!(
                    agent = self.agent.spec.name,
                    "a notice of the agent is not shown: no turn is running: {title} {why}"
                );
            }
            _ if !runs => tracing::debug!(
                agent = self.agent.spec.name,
                "an update of the agent was ignored: no turn is running: {raw}"
            ),
            SessionUpdate::AgentMessageChunk(chunk) => self.handle_chunk(TextKind::Markdown, chunk, raw),
            SessionUpdate::AgentThoughtChunk(chunk) => self.handle_chunk(TextKind::Reasoning, chunk, raw),
            SessionUpdate::UserMessageChunk(chunk) => self.add_user_chunk(chunk),
            SessionUpdate::ToolCall(_) => {
                let events = report_in(raw).map(|report| self.calls.begun(report)).unwrap_or_default();
                self.send_call_events(events);
            }
            SessionUpdate::ToolCallUpdate(_) => {
                let events = report_in(raw).map(|report| self.calls.updated(report)).unwrap_or_default();
                self.send_call_events(events);
            }
            SessionUpdate::Notice(notice) => self.show_notice(notice),
            SessionUpdate::CompactionUpdate(update) => self.update_compaction(update),
            SessionUpdate::CompactionSummaryChunk(chunk) => self.append_summary(chunk),
            _ => {
                tracing::debug!(agent = self.agent.spec.name, "an update of a kind that is not shown: {raw}")
            }
        }
    }

    /// Appends an update that is plain text to the running turn. Returns whether it is.
    fn take_plain_text(&mut self, raw: &RawValue) -> bool {
        let Ok(chunk) = serde_json::from_str::<PlainChunk<'_>>(raw.get()) else { return false };
        let Some(kind) = chunk.kind() else { return false };
        if kind == TextKind::Markdown && self.running.quirks.is_notice(&chunk.content.text) {
            self.send_notice(chunk.content.text, JsonObject::new());
        } else {
            self.speak(kind, chunk.message_id, chunk.content.text, None);
        }
        true
    }

    /// Stores a note about the conversation for which the protocol has no member.
    pub(super) fn note(&mut self, name: &str, value: Option<Value>) {
        let value = value.map(extra_meta::kept);
        self.events.push(Event::Note { name: name.to_owned(), value });
    }

    /// Applies the session's info: the title is reported, and each other member is stored until its
    /// next value.
    fn apply_session_info(&mut self, info: SessionInfoUpdate, raw: &RawValue) {
        if let MaybeUndefined::Value(title) = info.title {
            self.events.push(Event::Title(title));
        }
        let Some(Value::Object(mut more)) = unplaced(raw) else { return };
        more.remove("title");
        if more.is_empty() {
            return;
        }
        extra_meta::add(&mut self.notes.info, more);
        self.notes.info.retain(|_, value| !value.is_null());
        let info = Some(self.notes.info.clone()).filter(|info| !info.is_empty());
        self.note(extra_meta::SESSION_INFO, info.map(Value::Object));
    }

    /// Stores an update of an unknown kind in place of the last one of its kind.
    fn keep_unknown_update(&mut self, raw: &RawValue) {
        let Ok(AnyUpdate { kind, rest }) = serde_json::from_str(raw.get()) else { return };
        extra_meta::add(&mut self.notes.unknown, [(kind, Value::Object(rest))].into_iter().collect());
        self.note(extra_meta::UPDATES, Some(Value::Object(self.notes.unknown.clone())));
    }

    pub(super) fn send_call_events(&mut self, events: Vec<TurnEvent>) {
        use TurnEvent::{ClientTool, ClientToolStarted, ToolDone, ToolStarted};
        let mut over = Vec::new();
        for event in events.iter().map(extra_meta::bare) {
            match (event, &mut self.run) {
                (ToolStarted { .. } | ClientToolStarted { .. } | ClientTool { .. }, Some(run)) => {
                    run.speaking = None;
                }
                (ToolDone { id, outcome, .. }, _) if outcome.success => over.push(id.clone()),
                _ => {}
            }
        }
        self.send_to_host(events);
        for id in over {
            self.note_background(id);
        }
        self.events.extend(self.calls.terminal_events(true));
        self.answer_unanswered(false);
    }

    fn handle_chunk(&mut self, kind: TextKind, chunk: ContentChunk, raw: &RawValue) {
        let rest = content::rest_of_chunk(&chunk, raw);
        let id = chunk.message_id.map(|id| id.to_string());
        let text = content::markdown(chunk.content);
        match chunk.meta {
            Some(meta) if text.is_empty() => self.apply_chunk_usage(meta),
            _ => self.speak(kind, id, text, rest),
        }
    }

    /// Applies the usage that some agents report in the `_meta` of an empty piece of the answer.
    fn apply_chunk_usage(&mut self, mut meta: JsonObject) {
        let usage = meta.get("usage").and_then(|usage| Usage::deserialize(usage).ok());
        let raw = usage.as_ref().and_then(|_| meta.remove("usage"));
        self.send_usage(|known| {
            if let (Some(usage), Some(raw)) = (usage, raw) {
                add_usage(known, &usage, raw);
            }
            let meta = Some(meta).filter(|meta| !meta.is_empty()).map(Value::Object);
            extra_meta::put(known.meta.get_or_insert_default(), extra_meta::META, meta);
        });
    }

    /// Appends text to the answer. A message with another id begins a new part.
    fn speak(&mut self, kind: TextKind, message: Option<String>, text: String, rest: Option<JsonObject>) {
        if text.is_empty() {
            return;
        }
        let Some(run) = &mut self.run else { return };
        let now = (kind, message);
        let (goes_on, begins) = match &run.speaking {
            Some(before) => (before.0 != now.0 || before.1 == now.1, *before != now),
            None => (true, true),
        };
        let mut meta = JsonObject::new();
        extra_meta::put(&mut meta, extra_meta::CHUNK, rest);
        if begins {
            extra_meta::put(&mut meta, extra_meta::MESSAGE_ID, now.1.clone());
            run.speaking = Some(now);
        }
        let event = if goes_on { TurnEvent::Text(kind, text) } else { TurnEvent::Part(kind, text) };
        self.queue_event(extra_meta::with(event, CallExtras { meta, ..CallExtras::default() }));
    }

    /// Applies new usage, and reports the turn's usage so far.
    pub(super) fn send_usage(&mut self, learn: impl FnOnce(&mut UsageInfo)) {
        let Some(run) = &mut self.run else { return };
        learn(&mut run.usage);
        run.usage.meta = run.usage.meta.take().filter(|meta| !meta.is_empty());
        let usage = run.usage.clone();
        self.queue_event(TurnEvent::Usage(usage));
    }
}

fn is_blank(chunk: &ContentChunk) -> bool {
    matches!(&chunk.content, ContentBlock::Text(text) if text.text.trim().is_empty())
}

fn report_in(raw: &RawValue) -> Option<calls::CallReport> {
    calls::CallReport::try_from(raw.to_owned()).ok()
}

/// Returns the members of an update for which the protocol has no place.
fn unplaced(raw: &RawValue) -> Option<Value> {
    let AnyUpdate { rest, .. } = serde_json::from_str(raw.get()).ok()?;
    Some(Value::Object(rest))
}

/// Applies counts of tokens; those without a member of their own are stored in `_meta`.
pub(super) fn add_usage(known: &mut UsageInfo, usage: &Usage, raw: Value) {
    let count = |tokens: u64| i64::try_from(tokens).ok();
    known.input_tokens = count(usage.input_tokens);
    known.output_tokens = count(usage.output_tokens);
    known.cache_read_tokens = usage.cached_read_tokens.and_then(count);
    let rest = extra_meta::rest(raw, &["inputTokens", "outputTokens", "cachedReadTokens"]);
    extra_meta::put(known.meta.get_or_insert_default(), extra_meta::USAGE, rest);
}
