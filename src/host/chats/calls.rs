//! Tool calls and questions: reports of agents, and the host's own decisions about them.
//!
//! Owns: mapping those reports to actions, refusing reports that do not fit a call's state, and
//! closing open parts when a turn ends.
//! Never: decides when a turn is over (see `turns`), or checks requests of clients (see `actions`).

use ahp_types::actions::{
    ChatInputCompletedAction, ChatInputRequestedAction, ChatToolCallCompleteAction,
    ChatToolCallConfirmedAction, ChatToolCallContentChangedAction, ChatToolCallDeltaAction,
    ChatToolCallReadyAction, ChatToolCallResultConfirmedAction, ChatToolCallStartAction, StateAction,
};
use ahp_types::common::{JsonObject, StringOrMarkdown};
use ahp_types::state::{
    ChatInputRequest, ChatInputResponseKind, ConfirmationOption, ConfirmationOptionKind, FileEditCollection,
    ResponsePart, ToolCallCancellationReason, ToolCallClientContributor, ToolCallConfirmationReason,
    ToolCallContributor, ToolCallResult, ToolCallState, ToolInput, ToolResultContent,
};
use serde_json::json;

use crate::host::changes::edits;
use crate::host::chats::reports;
use crate::host::effects::{
    CallExtras, ChatKey, Command, PermissionKind, PermissionOption, RunId, ToolGate, ToolOutcome,
};
use crate::host::facts::Fact;
use crate::host::ledger::Ledger;
use crate::host::locale::Language;
use crate::host::{catalogue, terminals, Step};
use crate::state::edits::EDITED_AT;
use crate::wire::tool_calls::{client_of_call, tool_call_id};

/// A tool call of the running turn.
#[derive(Debug, Clone)]
pub(crate) struct CallRef {
    pub(crate) key: ChatKey,
    pub(crate) turn_id: String,
    pub(crate) id: String,
}

/// Report of an agent on a call whose input is complete.
#[derive(Debug)]
pub(crate) struct Readiness {
    pub(crate) input: String,
    pub(crate) message: StringOrMarkdown,
    pub(crate) gate: ToolGate,
    pub(crate) extras: CallExtras,
}

/// Denial of a call by the host itself.
#[derive(Debug)]
pub(crate) struct Denial {
    /// Option of the agent that expresses the denial; `None` if it offered none.
    pub(crate) option: Option<String>,
    pub(crate) reason: ToolCallCancellationReason,
    pub(crate) why: Option<&'static str>,
}

/// Returns the option that denies a single call; `None` if the agent does not offer it.
pub(crate) fn rejection_among(options: &[PermissionOption]) -> Option<String> {
    let once = options.iter().find(|option| option.kind == PermissionKind::RejectOnce);
    once.map(|option| option.id.clone())
}

/// Converts an option to its form for clients, with a label in `language` if the agent has none.
fn shown(option: &PermissionOption, language: Language) -> ConfirmationOption {
    let approves = option.kind.approves();
    ConfirmationOption {
        id: option.id.clone(),
        label: option.label.clone().unwrap_or_else(|| language.label_of(option.kind).to_owned()),
        kind: if approves { ConfirmationOptionKind::Approve } else { ConfirmationOptionKind::Deny },
        group: None,
    }
}

/// Applies an agent's report that a call's input is complete.
pub(crate) fn call_is_ready(ledger: &mut Ledger, step: &mut Step<'_>, call: CallRef, ready: Readiness) {
    // A status report must not replace a question that the user sees.
    let asked = matches!(call_state(ledger, &call), Some(ToolCallState::PendingConfirmation(_)));
    if !asked || matches!(ready.gate, ToolGate::Ask(_)) {
        ready_call(ledger, step, call, ready);
    }
}

/// Sequences a question of an agent to the user.
pub(crate) fn ask(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, request: ChatInputRequest) {
    let id = request.id.clone();
    reports::end_part(ledger, key);
    let action = StateAction::ChatInputRequested(ChatInputRequestedAction { request });
    ledger.sequence(step, key, action, None);
    question_changed(ledger, step, key, &id);
    step.facts.push_back(Fact::MayWait { chat: key, id, is_question: true });
}

/// Asks an open question again under a new id. Real clients neither show an answered question
/// again, whatever became of the answer, nor another one with its id.
pub(crate) fn ask_again(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    mut request: ChatInputRequest,
) {
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let Some(run) = chat.run.as_mut() else { return };
    let first = run.first_id(&request.id).to_owned();
    let is_free = |id: &String| !run.asked_again.contains_key(id) && !chat.conversation.has_part(id);
    let Some(id) = (1_u64..).map(|times| format!("{first}~{times}")).find(is_free) else { return };
    run.asked_again.insert(id.clone(), first);
    let before = std::mem::replace(&mut request.id, id);
    settle_question(ledger, step, key, before, ChatInputResponseKind::Cancel);
    ask(ledger, step, key, request);
}

/// Cancels questions, refuses waiting calls and fails running ones when a turn ends.
pub(super) fn close_open_parts(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, turn_id: &str) {
    enum Open {
        Question(String),
        Call(Box<ToolCallState>),
    }
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let parts = chat.conversation.state().active_turn.iter().flat_map(|turn| &turn.response_parts);
    let open: Vec<Open> = parts
        .filter_map(|part| match part {
            ResponsePart::InputRequest(part) if part.response.is_none() => {
                Some(Open::Question(part.request.id.clone()))
            }
            ResponsePart::ToolCall(part) => match &part.tool_call {
                ToolCallState::Completed(_) | ToolCallState::Cancelled(_) | ToolCallState::Unknown(_) => None,
                call => Some(Open::Call(Box::new(call.clone()))),
            },
            _ => None,
        })
        .collect();
    for open in open {
        match open {
            Open::Question(id) => settle_question(ledger, step, key, id, ChatInputResponseKind::Cancel),
            Open::Call(state) => {
                let id = tool_call_id(&state).to_owned();
                close_call(ledger, step, CallRef { key, turn_id: turn_id.to_owned(), id }, &state);
            }
        }
    }
}

fn close_call(ledger: &mut Ledger, step: &mut Step<'_>, call: CallRef, state: &ToolCallState) {
    match state {
        ToolCallState::PendingConfirmation(_) => {
            let reason = ToolCallCancellationReason::Skipped;
            refuse_call(ledger, step, call, Denial { option: None, reason, why: None });
        }
        ToolCallState::PendingResultConfirmation(_) => refuse_result(ledger, step, call),
        _ => {
            let why = "the turn ended before the call did";
            fail_call(ledger, step, &call, "Stopped before it was done", why);
        }
    }
}

/// Ends a call that cannot finish, with what it has produced so far.
pub(crate) fn fail_call(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    call: &CallRef,
    message: &'static str,
    why: &str,
) {
    let content = match call_state(ledger, call) {
        Some(ToolCallState::Running(state)) => state.content.clone().unwrap_or_default(),
        _ => Vec::new(),
    };
    let (message, error) = (message.into(), Some(why.to_owned()));
    let outcome = ToolOutcome { success: false, message, content, error };
    finish_call(ledger, step, call, outcome, false, CallExtras::default());
}

fn ready_call(ledger: &mut Ledger, step: &mut Step<'_>, call: CallRef, ready: Readiness) {
    use ToolCallState::{PendingConfirmation, Running, Streaming};
    if !matches!(call_state(ledger, &call), Some(Streaming(_) | Running(_) | PendingConfirmation(_))) {
        tracing::debug!(?call, "a tool call was not made ready: it is unknown or over");
        return refuse_unshown(ledger, step, call, ready.gate);
    }
    let CallRef { key, turn_id, id } = call;
    let (confirmed, options) = match ready.gate.clone() {
        ToolGate::Open => (Some(ToolCallConfirmationReason::NotNeeded), None),
        ToolGate::AllowedBefore => (Some(ToolCallConfirmationReason::Setting), None),
        ToolGate::Ask(options) => {
            let language =
                ledger.channels.chats.known(call.key).map(|chat| chat.language).unwrap_or_default();
            let shown = options.iter().map(|option| shown(option, language)).collect();
            if let Some(run) = ledger.channels.chats.known_mut(key).and_then(|chat| chat.run.as_mut()) {
                run.permissions.insert(id.clone(), options);
            }
            (None, Some(shown))
        }
    };
    let call = CallRef { key, turn_id, id: id.clone() };
    sequence_ready(ledger, step, &call, ready, confirmed, options);
    tool_changed(ledger, step, key, &id);
    step.facts.push_back(Fact::MayWait { chat: key, id, is_question: false });
}

pub(crate) fn finish_call(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    call: &CallRef,
    outcome: ToolOutcome,
    review: bool,
    extras: CallExtras,
) {
    match call_state(ledger, call) {
        Some(ToolCallState::Running(_) | ToolCallState::PendingConfirmation(_)) => {}
        // A call must be ready before it can be over.
        Some(ToolCallState::Streaming(state)) => {
            let message = state.invocation_message.clone();
            let message = message.unwrap_or_else(|| state.display_name.clone().into());
            let input = state.partial_input.clone().unwrap_or_default();
            let gate = ToolGate::Open;
            let ready = Readiness { input, message, gate, extras: CallExtras::default() };
            if state.contributor.is_some() {
                // The client that contributes the tool would start on a running call.
                sequence_ready(ledger, step, call, ready, None, None);
            } else {
                ready_call(ledger, step, call.clone(), ready);
            }
        }
        _ => {
            tracing::debug!(?call, "the end of a tool call was ignored: the call is unknown or over");
            return;
        }
    }
    let content = terminals::place_terminals(ledger, call.key, outcome.content);
    terminals::mark_terminals_stored(ledger, &content);
    let meta = with_edit_time(ledger, step, call, extras.meta, &content);
    let action = StateAction::ChatToolCallComplete(ChatToolCallCompleteAction {
        turn_id: call.turn_id.clone(),
        tool_call_id: call.id.clone(),
        meta: Some(meta).filter(|meta| !meta.is_empty()),
        result: ToolCallResult {
            success: outcome.success,
            past_tense_message: outcome.message,
            content: Some(content).filter(|content| !content.is_empty()),
            structured_content: extras.structured,
            error: outcome.error.map(|message| json!({ "message": message })),
        },
        requires_result_confirmation: review.then_some(true),
    });
    ledger.sequence(step, call.key, action, None);
    tool_changed(ledger, step, call.key, &call.id);
}

fn call_state<'a>(ledger: &'a Ledger, call: &CallRef) -> Option<&'a ToolCallState> {
    ledger.channels.chats.known(call.key)?.conversation.tool(&call.id)
}

/// Starts a tool call of an agent; `client` executes it, if given.
pub(crate) fn start_call(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    call: CallRef,
    name: String,
    display: String,
    meta: Option<JsonObject>,
    client: Option<String>,
) {
    if call_state(ledger, &call).is_some() {
        tracing::warn!(?call, "an agent began the same tool call twice");
        return;
    }
    reports::end_part(ledger, call.key);
    let contributor =
        client.map(|client_id| ToolCallContributor::Client(ToolCallClientContributor { client_id }));
    let action = StateAction::ChatToolCallStart(ChatToolCallStartAction {
        turn_id: call.turn_id,
        tool_call_id: call.id,
        meta,
        tool_name: name,
        display_name: display,
        intention: None,
        contributor,
    });
    ledger.sequence(step, call.key, action, None);
}

/// Appends a delta to a call's streaming input.
pub(crate) fn append_input(ledger: &mut Ledger, step: &mut Step<'_>, call: CallRef, delta: String) {
    if !matches!(call_state(ledger, &call), Some(ToolCallState::Streaming(_))) {
        tracing::debug!(
            ?call,
            "input for a tool call was ignored: its input is complete, or the call is unknown"
        );
        return;
    }
    let action = StateAction::ChatToolCallDelta(ChatToolCallDeltaAction {
        turn_id: call.turn_id,
        tool_call_id: call.id,
        meta: None,
        content: Some(delta),
        invocation_message: None,
    });
    ledger.sequence(step, call.key, action, None);
}

/// Replaces the content that a running call has produced so far.
pub(crate) fn set_content(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    call: CallRef,
    content: Vec<ToolResultContent>,
    meta: Option<JsonObject>,
) {
    if !matches!(call_state(ledger, &call), Some(ToolCallState::Running(_))) {
        tracing::debug!(?call, "content for a tool call was ignored: the call does not run");
        return;
    }
    let content = terminals::place_terminals(ledger, call.key, content);
    let action = StateAction::ChatToolCallContentChanged(ChatToolCallContentChangedAction {
        turn_id: call.turn_id,
        tool_call_id: call.id,
        meta,
        content,
    });
    ledger.sequence(step, call.key, action, None);
}

/// Cancels a question that the agent has withdrawn; `id` is the agent's own.
pub(crate) fn question_was_withdrawn(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, id: &str) {
    let Some(chat) = ledger.channels.chats.known(key) else { return };
    let Some(run) = chat.run.as_ref() else { return };
    let is_open = |shown: &String| {
        let question = chat.conversation.question(shown);
        run.first_id(shown) == id && question.is_some_and(|question| question.response.is_none())
    };
    if let Some(shown) = calls_and_questions(ledger, key).into_iter().find(is_open) {
        settle_question(ledger, step, key, shown, ChatInputResponseKind::Cancel);
    }
}

/// Denies a call that waits for a permission, on the host's own behalf.
pub(crate) fn refuse_call(ledger: &mut Ledger, step: &mut Step<'_>, call: CallRef, denial: Denial) {
    let CallRef { key, turn_id, id } = call;
    let action = ChatToolCallConfirmedAction {
        turn_id,
        tool_call_id: id.clone(),
        meta: None,
        approved: false,
        confirmed: None,
        reason: Some(denial.reason),
        edited_tool_input: None,
        user_suggestion: None,
        reason_message: denial.why.map(Into::into),
        selected_option_id: denial.option,
    };
    ledger.sequence(step, key, StateAction::ChatToolCallConfirmed(action), None);
    tool_changed(ledger, step, key, &id);
}

/// Denies a result that waits for a confirmation, on the host's own behalf.
pub(crate) fn refuse_result(ledger: &mut Ledger, step: &mut Step<'_>, call: CallRef) {
    let CallRef { key, turn_id, id } = call;
    let action =
        ChatToolCallResultConfirmedAction { turn_id, tool_call_id: id.clone(), meta: None, approved: false };
    ledger.sequence(step, key, StateAction::ChatToolCallResultConfirmed(action), None);
    tool_changed(ledger, step, key, &id);
}

/// Returns the command that informs the agent of a reviewed result. A call that ran on a client is
/// over only now, so its agent gets the result itself.
pub(crate) fn reviewed(
    ledger: &Ledger,
    key: ChatKey,
    run: RunId,
    tool_call_id: String,
    approved: bool,
) -> Command {
    let call = ledger.channels.chats.known(key).and_then(|chat| chat.conversation.tool(&tool_call_id));
    let of_client = call.is_some_and(|call| client_of_call(call).is_some());
    of_client
        .then(|| result_for_agent(ledger, key, run, &tool_call_id))
        .flatten()
        .unwrap_or(Command::ResultConfirmed { run, tool_call_id, approved })
}

/// Settles a question on the host's own behalf.
pub(crate) fn settle_question(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    request_id: String,
    response: ChatInputResponseKind,
) {
    let action = ChatInputCompletedAction { request_id: request_id.clone(), response, answers: None };
    ledger.sequence(step, key, StateAction::ChatInputCompleted(action), None);
    question_changed(ledger, step, key, &request_id);
}

fn sequence_ready(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    call: &CallRef,
    ready: Readiness,
    confirmed: Option<ToolCallConfirmationReason>,
    options: Option<Vec<ConfirmationOption>>,
) {
    let CallExtras { meta, edits, .. } = ready.extras;
    let action = StateAction::ChatToolCallReady(ChatToolCallReadyAction {
        turn_id: call.turn_id.clone(),
        tool_call_id: call.id.clone(),
        meta: Some(meta).filter(|meta| !meta.is_empty()),
        contributor: None,
        intention: None,
        invocation_message: ready.message,
        tool_input: (!ready.input.is_empty()).then_some(ToolInput::Inline(ready.input)),
        confirmation_title: None,
        risk_assessment: None,
        edits: (!edits.is_empty()).then_some(FileEditCollection { items: edits }),
        editable: None,
        confirmed,
        options,
    });
    ledger.sequence(step, call.key, action, None);
}

/// Declines a permission that cannot be shown, so that the agent does not wait for an answer.
fn refuse_unshown(ledger: &Ledger, step: &mut Step<'_>, call: CallRef, gate: ToolGate) {
    let run = ledger.channels.chats.known(call.key).and_then(|chat| Some(chat.run.as_ref()?.id));
    if let (ToolGate::Ask(options), Some(run)) = (gate, run) {
        let option = rejection_among(&options);
        let refused = Command::Permission { run, tool_call_id: call.id, option, approved: false };
        step.send_to_agent(call.key, refused);
    }
}

/// Adds the time of the edit to the `_meta` of a call's end if the call edited files.
fn with_edit_time(
    ledger: &Ledger,
    step: &Step<'_>,
    call: &CallRef,
    mut meta: JsonObject,
    content: &[ToolResultContent],
) -> JsonObject {
    let session = ledger.channels.chats.known(call.key).map(|chat| chat.session);
    let edits = content.iter().any(|content| matches!(content, ToolResultContent::FileEdit(_)));
    if let Some(session) = session.filter(|_| edits) {
        if meta.is_empty() {
            // The `_meta` of an action replaces the earlier one, so the earlier members are copied.
            let before = call_state(ledger, call).map(|call| json!(call)["_meta"].take());
            meta =
                before.and_then(|meta| meta.as_object().cloned()).unwrap_or_default().into_iter().collect();
        }
        meta.insert(EDITED_AT.to_owned(), edits::edit_time(ledger, session, step.now.unix_ms).into());
    }
    meta
}

/// Updates the state derived from a tool call.
pub(crate) fn tool_changed(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, tool_call_id: &str) {
    catalogue::sync_chat(ledger, step, key);
    catalogue::sync_tool_request(ledger, step, key, tool_call_id);
}

/// Updates the state derived from a question.
pub(crate) fn question_changed(ledger: &mut Ledger, step: &mut Step<'_>, key: ChatKey, request_id: &str) {
    catalogue::sync_chat(ledger, step, key);
    catalogue::sync_question_request(ledger, step, key, request_id);
}

/// Returns the result for the agent of a finished call on a client; `None` for other calls.
pub(crate) fn result_for_agent(
    ledger: &Ledger,
    key: ChatKey,
    run: RunId,
    tool_call_id: &str,
) -> Option<Command> {
    let result = match ledger.channels.chats.known(key)?.conversation.tool(tool_call_id)? {
        ToolCallState::Completed(call) => ToolCallResult {
            success: call.success,
            past_tense_message: call.past_tense_message.clone(),
            content: call.content.clone(),
            structured_content: call.structured_content.clone(),
            error: call.error.clone(),
        },
        // The user did not approve the result, so the agent must not see it.
        ToolCallState::Cancelled(call) => ToolCallResult {
            success: false,
            past_tense_message: call.invocation_message.clone(),
            content: None,
            structured_content: None,
            error: Some(json!({ "message": "the result was not approved" })),
        },
        _ => return None,
    };
    Some(Command::ToolResult { run, tool_call_id: tool_call_id.to_owned(), result })
}

/// Returns the ids of all tool calls and questions in running turns, each with its chat.
pub(crate) fn all_calls_and_questions(ledger: &Ledger) -> Vec<(ChatKey, String)> {
    let chats = running_chats(ledger).into_iter();
    chats.flat_map(|key| calls_and_questions(ledger, key).into_iter().map(move |id| (key, id))).collect()
}

/// Returns the ids of all tool calls and questions in the running turn, settled ones included.
pub(crate) fn calls_and_questions(ledger: &Ledger, key: ChatKey) -> Vec<String> {
    let turn =
        ledger.channels.chats.known(key).and_then(|chat| chat.conversation.state().active_turn.as_ref());
    let parts = turn.into_iter().flat_map(|turn| &turn.response_parts);
    parts
        .filter_map(|part| match part {
            ResponsePart::ToolCall(part) => Some(tool_call_id(&part.tool_call).to_owned()),
            ResponsePart::InputRequest(part) => Some(part.request.id.clone()),
            _ => None,
        })
        .collect()
}

pub(crate) fn running_chats(ledger: &Ledger) -> Vec<ChatKey> {
    ledger.channels.chats.iter().filter(|(_, chat)| chat.run.is_some()).map(|(&key, _)| key).collect()
}
