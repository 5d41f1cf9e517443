//! Tool calls and questions: what an agent reports of them, and what the host decides about them itself.
//!
//! Owns: mapping those reports to actions, refusing what does not fit a call's state, and closing what is
//! still open when a turn ends.
//! Never: decides when a turn is over, or checks what a client asks; that is in `turns` and in `actions`.

use ahp_types::actions::{
    ChatInputCompletedAction, ChatInputRequestedAction, ChatToolCallCompleteAction,
    ChatToolCallConfirmedAction, ChatToolCallContentChangedAction, ChatToolCallDeltaAction,
    ChatToolCallReadyAction, ChatToolCallResultConfirmedAction, ChatToolCallStartAction, StateAction,
};
use ahp_types::state::{
    ChatInputRequest, ChatInputResponseKind, ConfirmationOption, ConfirmationOptionKind,
    ToolCallCancellationReason, ToolCallConfirmationReason, ToolCallResult, ToolCallState, ToolInput,
};
use serde_json::json;

use super::effects::{ChatKey, Command, PermissionKind, PermissionOption, ToolGate, ToolOutcome, TurnEvent};
use super::model::Target;
use super::reduce::tool_call_id;
use super::{Host, Step};

/// The option that denies just one call.
pub(super) fn rejection_among(options: &[PermissionOption]) -> Option<String> {
    let once = options.iter().find(|option| option.kind == PermissionKind::RejectOnce);
    once.map(|option| option.id.clone())
}

impl Host {
    /// Takes in what an agent reports of a tool call, or a question that it asks.
    pub(super) fn call_reports(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        turn_id: String,
        event: TurnEvent,
    ) {
        match event {
            TurnEvent::ToolStarted { id, name, display_name } => {
                if self.call(key, &id).is_some() {
                    tracing::warn!(?key, id, "an agent began the same tool call twice");
                    return;
                }
                self.end_part(key);
                let action = StateAction::ChatToolCallStart(ChatToolCallStartAction {
                    turn_id,
                    tool_call_id: id,
                    meta: None,
                    tool_name: name,
                    display_name,
                    intention: None,
                    contributor: None,
                });
                self.sequence(step, Target::Chat(key), action, None);
            }
            TurnEvent::ToolInput { id, delta } => {
                if !matches!(self.call(key, &id), Some(ToolCallState::Streaming(_))) {
                    tracing::debug!(?key, id, "input for a tool call that takes none was ignored");
                    return;
                }
                let action = StateAction::ChatToolCallDelta(ChatToolCallDeltaAction {
                    turn_id,
                    tool_call_id: id,
                    meta: None,
                    content: Some(delta),
                    invocation_message: None,
                });
                self.sequence(step, Target::Chat(key), action, None);
            }
            TurnEvent::ToolReady { id, input, message, gate } => {
                // A status report must not wipe out a question that the user is looking at.
                let asked = matches!(self.call(key, &id), Some(ToolCallState::PendingConfirmation(_)));
                if asked && !matches!(gate, ToolGate::Ask(_)) {
                    return;
                }
                self.ready_call(step, key, turn_id, id, input, message, gate);
            }
            TurnEvent::ToolContent { id, content } => {
                if !matches!(self.call(key, &id), Some(ToolCallState::Running(_))) {
                    tracing::debug!(?key, id, "content for a tool call that does not run was ignored");
                    return;
                }
                let action = StateAction::ChatToolCallContentChanged(ChatToolCallContentChangedAction {
                    turn_id,
                    tool_call_id: id,
                    meta: None,
                    content,
                });
                self.sequence(step, Target::Chat(key), action, None);
            }
            TurnEvent::ToolDone { id, outcome, review } => {
                self.finish_call(step, key, &turn_id, id.clone(), outcome, review);
                self.decline_if_alone(step, key, &id);
            }
            TurnEvent::Question { id, questions } => {
                let request = ChatInputRequest {
                    id: id.clone(),
                    message: None,
                    url: None,
                    questions: Some(questions),
                    answers: None,
                };
                self.end_part(key);
                let action = StateAction::ChatInputRequested(ChatInputRequestedAction { request });
                self.sequence(step, Target::Chat(key), action, None);
                self.question_changed(step, key, &id);
                self.decline_if_alone(step, key, &id);
            }
            _ => tracing::error!(?key, "a report that is about no call was taken for one"),
        }
    }

    fn call(&self, key: ChatKey, id: &str) -> Option<&ToolCallState> {
        self.chats.get(&key)?.conversation.tool(id)
    }

    pub(super) fn close_call(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        turn_id: &str,
        call: &ToolCallState,
    ) {
        let id = tool_call_id(call).to_owned();
        match call {
            ToolCallState::PendingConfirmation(_) => {
                let reason = ToolCallCancellationReason::Skipped;
                self.refuse_call(step, key, turn_id, id, None, reason, None);
            }
            ToolCallState::PendingResultConfirmation(_) => self.refuse_result(step, key, turn_id, id),
            _ => {
                let outcome = ToolOutcome {
                    success: false,
                    message: "Stopped before it was done".into(),
                    content: match call {
                        ToolCallState::Running(call) => call.content.clone().unwrap_or_default(),
                        _ => Vec::new(),
                    },
                    error: Some("the turn ended before the call did".to_owned()),
                };
                self.finish_call(step, key, turn_id, id, outcome, false);
            }
        }
    }

    /// Denies a call that waits for a permission, on the host's own behalf.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn refuse_call(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        turn_id: &str,
        tool_call_id: String,
        option: Option<String>,
        reason: ToolCallCancellationReason,
        why: Option<&str>,
    ) {
        let action = ChatToolCallConfirmedAction {
            turn_id: turn_id.to_owned(),
            tool_call_id: tool_call_id.clone(),
            meta: None,
            approved: false,
            confirmed: None,
            reason: Some(reason),
            edited_tool_input: None,
            user_suggestion: None,
            reason_message: why.map(Into::into),
            selected_option_id: option,
        };
        self.sequence(step, Target::Chat(key), StateAction::ChatToolCallConfirmed(action), None);
        self.tool_changed(step, key, &tool_call_id);
    }

    /// Denies a result that waits to be confirmed, on the host's own behalf.
    pub(super) fn refuse_result(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        turn_id: &str,
        tool_call_id: String,
    ) {
        let action = ChatToolCallResultConfirmedAction {
            turn_id: turn_id.to_owned(),
            tool_call_id: tool_call_id.clone(),
            meta: None,
            approved: false,
        };
        self.sequence(step, Target::Chat(key), StateAction::ChatToolCallResultConfirmed(action), None);
        self.tool_changed(step, key, &tool_call_id);
    }

    /// Settles a question on the host's own behalf.
    pub(super) fn settle_question(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        request_id: String,
        response: ChatInputResponseKind,
    ) {
        let action = ChatInputCompletedAction { request_id: request_id.clone(), response, answers: None };
        self.sequence(step, Target::Chat(key), StateAction::ChatInputCompleted(action), None);
        self.question_changed(step, key, &request_id);
    }

    #[allow(clippy::too_many_arguments)]
    fn ready_call(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        turn_id: String,
        id: String,
        input: String,
        message: ahp_types::common::StringOrMarkdown,
        gate: ToolGate,
    ) {
        let takes = self.call(key, &id).is_some_and(|call| {
            matches!(
                call,
                ToolCallState::Streaming(_)
                    | ToolCallState::Running(_)
                    | ToolCallState::PendingConfirmation(_)
            )
        });
        if !takes {
            tracing::debug!(?key, id, "a tool call that is unknown or over cannot be ready");
            // Nobody can be shown the question, so the agent must not wait for an answer.
            let run = self.chats.get(&key).and_then(|chat| Some(chat.run.as_ref()?.id));
            if let (ToolGate::Ask(options), Some(run)) = (gate, run) {
                let option = rejection_among(&options);
                let refused = Command::Permission { run, tool_call_id: id, option, approved: false };
                self.tell_agent(step, key, refused);
            }
            return;
        }
        let (confirmed, options) = match gate {
            ToolGate::Open => (Some(ToolCallConfirmationReason::NotNeeded), None),
            ToolGate::AllowedBefore => (Some(ToolCallConfirmationReason::Setting), None),
            ToolGate::Ask(options) => {
                let shown = options.iter().map(|option| ConfirmationOption {
                    id: option.id.clone(),
                    label: option.label.clone(),
                    kind: if option.kind.approves() {
                        ConfirmationOptionKind::Approve
                    } else {
                        ConfirmationOptionKind::Deny
                    },
                    group: None,
                });
                let shown = shown.collect();
                if let Some(run) = self.chats.get_mut(&key).and_then(|chat| chat.run.as_mut()) {
                    run.permissions.insert(id.clone(), options);
                }
                (None, Some(shown))
            }
        };
        let action = StateAction::ChatToolCallReady(ChatToolCallReadyAction {
            turn_id,
            tool_call_id: id.clone(),
            meta: None,
            contributor: None,
            intention: None,
            invocation_message: message,
            tool_input: Some(ToolInput::Inline(input)),
            confirmation_title: None,
            risk_assessment: None,
            edits: None,
            editable: None,
            confirmed,
            options,
        });
        self.sequence(step, Target::Chat(key), action, None);
        self.tool_changed(step, key, &id);
        self.decline_if_alone(step, key, &id);
    }

    fn finish_call(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        turn_id: &str,
        id: String,
        outcome: ToolOutcome,
        review: bool,
    ) {
        match self.call(key, &id) {
            Some(ToolCallState::Running(_) | ToolCallState::PendingConfirmation(_)) => {}
            // A call can only be over after it was ready.
            Some(ToolCallState::Streaming(call)) => {
                let message =
                    call.invocation_message.clone().unwrap_or_else(|| call.display_name.clone().into());
                let input = call.partial_input.clone().unwrap_or_default();
                self.ready_call(step, key, turn_id.to_owned(), id.clone(), input, message, ToolGate::Open);
            }
            _ => {
                tracing::debug!(?key, id, "a tool call that is unknown or over cannot end");
                return;
            }
        }
        let action = StateAction::ChatToolCallComplete(ChatToolCallCompleteAction {
            turn_id: turn_id.to_owned(),
            tool_call_id: id.clone(),
            meta: None,
            result: ToolCallResult {
                success: outcome.success,
                past_tense_message: outcome.message,
                content: Some(outcome.content).filter(|content| !content.is_empty()),
                structured_content: None,
                error: outcome.error.map(|message| json!({ "message": message })),
            },
            requires_result_confirmation: review.then_some(true),
        });
        self.sequence(step, Target::Chat(key), action, None);
        self.tool_changed(step, key, &id);
    }

    /// What follows from any change of a tool call's state.
    pub(super) fn tool_changed(&mut self, step: &mut Step<'_>, key: ChatKey, tool_call_id: &str) {
        self.sync_chat(step, key);
        self.sync_tool_request(step, key, tool_call_id);
    }

    /// What follows from any change of a question's state.
    pub(super) fn question_changed(&mut self, step: &mut Step<'_>, key: ChatKey, request_id: &str) {
        self.sync_chat(step, key);
        self.sync_question_request(step, key, request_id);
    }
}
