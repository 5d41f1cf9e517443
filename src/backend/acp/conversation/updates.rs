//! What an agent's `session/update`s become.
//!
//! Owns: the text, the tool calls, the plan and the usage of the turn that runs.
//! Never: lets what is said between turns touch a turn.

use agent_client_protocol_schema::{MaybeUndefined, PlanEntryStatus, SessionUpdate};
use ahp_types::state::UsageInfo;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::Conversation;
use crate::backend::acp::content;
use crate::host::effects::{Event, TextKind, TurnEvent};

/// What the schema does not know of a tool call.
#[derive(Deserialize)]
struct Named {
    name: Option<String>,
}

impl Conversation {
    /// Takes in a `session/update`.
    pub(super) fn updated(&mut self, raw: &RawValue) {
        let update = match serde_json::from_str(raw.get()) {
            Ok(update) => update,
            Err(error) => {
                tracing::debug!(agent = self.agent.spec.name, %error, "an update that nobody knows: {raw}");
                return;
            }
        };
        if let SessionUpdate::SessionInfoUpdate(info) = update {
            if let MaybeUndefined::Value(title) = info.title {
                self.pending.push_back(Event::Title(title));
            }
            return;
        }
        if self.run.as_ref().is_none_or(|run| run.cancelled.is_some()) {
            tracing::debug!(agent = self.agent.spec.name, "an update outside of a turn: {raw}");
            return;
        }
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                let id = chunk.message_id.map(|id| id.to_string());
                self.speak(TextKind::Markdown, id, content::markdown(chunk.content));
            }
            SessionUpdate::AgentThoughtChunk(chunk) => {
                let id = chunk.message_id.map(|id| id.to_string());
                self.speak(TextKind::Reasoning, id, content::markdown(chunk.content));
            }
            SessionUpdate::ToolCall(call) => {
                // Newer than the schema.
                let name = serde_json::from_str::<Named>(raw.get()).ok().and_then(|named| named.name);
                let told = self.calls.begun(call, name);
                self.tell_of_calls(told);
            }
            SessionUpdate::ToolCallUpdate(update) => {
                let told = self.calls.updated(update);
                self.tell_of_calls(told);
            }
            SessionUpdate::Plan(plan) => {
                let at_work = plan.entries.into_iter().find(|it| it.status == PlanEntryStatus::InProgress);
                self.tell(TurnEvent::Activity(at_work.map(|entry| entry.content)));
            }
            SessionUpdate::UsageUpdate(usage) => {
                // The size of the context and the cost have no place of their own.
                let context = json!({ "used": usage.used, "size": usage.size, "cost": usage.cost });
                self.tell_usage(|known| {
                    known.meta.get_or_insert_default().insert("acp.context".to_owned(), context);
                });
            }
            _ => tracing::debug!(agent = self.agent.spec.name, "an update that is not shown: {raw}"),
        }
    }

    pub(super) fn tell_of_calls(&mut self, told: Vec<TurnEvent>) {
        if told.iter().any(|event| matches!(event, TurnEvent::ToolStarted { .. })) {
            if let Some(run) = &mut self.run {
                run.speaking = None;
            }
        }
        self.tell_all(told);
        self.answer_unanswered(false);
    }

    /// More of the answer, or of the thoughts that led to it: a message with another name begins a new part.
    pub(super) fn speak(&mut self, kind: TextKind, message: Option<String>, text: String) {
        if text.is_empty() {
            return;
        }
        let Some(run) = &mut self.run else { return };
        let goes_on = match &run.speaking {
            Some((before, name)) => *before != kind || *name == message,
            None => true,
        };
        run.speaking = Some((kind, message));
        self.tell(if goes_on { TurnEvent::Text(kind, text) } else { TurnEvent::Part(kind, text) });
    }

    /// Tells all that is known of the turn's usage, now that more is.
    pub(super) fn tell_usage(&mut self, learn: impl FnOnce(&mut UsageInfo)) {
        let Some(run) = &mut self.run else { return };
        learn(&mut run.usage);
        let usage = run.usage.clone();
        self.tell(TurnEvent::Usage(usage));
    }
}
