//! Client actions on a chat's channel.
//!
//! Owns: their conditions, and the effect of each accepted action.
//! Never: implements the effects; those are in `turns`, `calls` and `pending`.

use std::collections::{BTreeMap, HashMap, HashSet};

use ahp_types::actions::{
    ActionOrigin, ChatInputAnswerChangedAction, ChatPendingMessageSetAction,
    ChatQueuedMessagesReorderedAction, ChatToolCallConfirmedAction, ChatToolCallResultConfirmedAction,
    ChatTurnStartedAction, StateAction,
};
use ahp_types::state::{
    ActiveTurn, ChatInputAnswer, ChatInputRequest, PendingMessageKind, ToolCallCancellationReason,
    ToolCallConfirmationReason, ToolCallState,
};

use crate::host::actions::answers::{check_answer, question_of};
use crate::host::actions::Verdict;
use crate::host::agents::AgentRegistry;
use crate::host::chats::{attached, calls, pending};
use crate::host::configuration::selection;
use crate::host::effects::{ChatKey, Command, PermissionKind, PermissionOption};
use crate::host::ledger::Ledger;
use crate::host::limits::{check_id, ID_BYTES_MAX};
use crate::host::model::Chat;
use crate::host::refusal::Refusal;
use crate::host::{actions, catalogue, Step};

/// Maximum number of queued messages in a chat.
pub(super) const QUEUED_MAX: usize = 1000;

/// Queues the turn of a client that was not aware of a turn which the agent had started by itself.
/// The queued turn keeps its id and starts when that one ends; until then it is a queued message,
/// sent as the answer to the client's action.
pub(crate) fn client_turn_waits(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: ChatKey,
    action: ChatTurnStartedAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let ChatTurnStartedAction { turn_id: id, message, .. } = action;
    let queued = ChatPendingMessageSetAction { kind: PendingMessageKind::Queued, id: id.clone(), message };
    let verdict = client_sets_pending(ledger, agents, step, key, queued, origin)?;
    if let Some(chat) = ledger.channels.chats.known_mut(key) {
        chat.turns_queued.insert(id);
    }
    ledger.chat_row_due(key);
    Ok(verdict)
}

pub(crate) fn client_sets_pending(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    key: ChatKey,
    mut action: ChatPendingMessageSetAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let chat = actions::tools::known_chat(ledger, key)?;
    check_id("id", &action.id, ID_BYTES_MAX)?;
    if chat.consumed.contains(&action.id) {
        return Err(Refusal::PendingTakenUp(action.id));
    }
    // A turn that starts with this id would remove both messages, because the reducers search all
    // pending messages for the id.
    let state = chat.conversation.state();
    let taken = match action.kind {
        PendingMessageKind::Steering => state.queued_messages.iter().flatten().any(|m| m.id == action.id),
        PendingMessageKind::Queued => state.steering_message.iter().any(|m| m.id == action.id),
    };
    if taken || chat.conversation.steering_messages().iter().any(|m| m.id == action.id) {
        return Err(Refusal::PendingOfOtherKind(action.id));
    }
    let queued = state.queued_messages.as_deref().unwrap_or_default();
    let adds = action.kind == PendingMessageKind::Queued && !queued.iter().any(|m| m.id == action.id);
    if adds && queued.len() >= QUEUED_MAX {
        return Err(Refusal::QueueFull(QUEUED_MAX));
    }
    agents.check_tokens_for_turn(ledger, step, key, &origin.client_id)?;
    selection::check_message(ledger, agents, chat.session, &action.message)?;
    let (kind, id, as_sent) = (action.kind, action.id.clone(), action.message.clone());
    let sender = origin.client_id.clone();
    let attached = attached::resolve_attached(ledger, &mut action.message)?;
    attached::check_room(ledger, key, &id, &attached)?;
    speak_as(ledger, key, &origin.client_id);
    let mut replaced = None;
    if kind == PendingMessageKind::Steering {
        replaced = pending::undelivered_in_slot(ledger, key, &id);
        pending::note_undelivered_steering(ledger, key, &id);
    }
    let fixed = action.message != as_sent;
    let action = StateAction::ChatPendingMessageSet(action);
    let verdict = if fixed {
        // An acknowledgement would show the client's message instead of the adjusted one.
        ledger.sequence(step, key, action, Some(origin));
        Verdict::Done
    } else {
        sequence_if_changed(ledger, step, key, action, origin)?
    };
    if matches!(verdict, Verdict::Done) {
        pending::note_sender(ledger, key, &id, sender);
    }
    attached::attach_to_pending(ledger, key, &id, attached);
    pending::release_queue(ledger, key);
    if kind == PendingMessageKind::Steering {
        pending::queue_steering(ledger, step, key, replaced.into_iter().collect(), 0);
        pending::send_steering(ledger, agents, step, key);
    }
    Ok(verdict)
}

/// Switches the host's own texts in a chat to the language of this client.
pub(crate) fn speak_as(ledger: &mut Ledger, key: ChatKey, client_id: &str) {
    let client = ledger.presence.connections_of(client_id).next();
    let language = client.map(|(_, client)| client.language).unwrap_or_default();
    if let Some(chat) = ledger.channels.chats.known_mut(key) {
        chat.language = language;
    }
}

/// Sequences an action that only affects the state, if it changes the state.
pub(crate) fn sequence_if_changed(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    action: StateAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    if !actions::tools::known_chat(ledger, key)?.conversation.would_change(&action) {
        return Ok(Verdict::Unchanged);
    }
    ledger.sequence(step, key, action, Some(origin));
    Ok(Verdict::Done)
}

pub(crate) fn client_decides_call(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    mut action: ChatToolCallConfirmedAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let chat = actions::tools::known_chat(ledger, key)?;
    active_turn(chat, &action.turn_id)?;
    let call = match chat.conversation.tool(&action.tool_call_id) {
        Some(ToolCallState::PendingConfirmation(call)) => call,
        Some(_) => return Err(Refusal::NoPermissionWanted(action.tool_call_id)),
        None => return Err(Refusal::NoSuchCall(action.tool_call_id)),
    };
    if action.edited_tool_input.is_some() && call.editable != Some(true) {
        return Err(Refusal::InputNotEditable);
    }
    let run = chat.run.as_ref();
    let offered = run.and_then(|run| run.permissions.get(&action.tool_call_id));
    let option = choose(
        offered.map(Vec::as_slice).unwrap_or_default(),
        action.selected_option_id.as_deref(),
        action.approved,
    )?;
    action.selected_option_id.clone_from(&option);
    if action.approved {
        action.reason = None;
        action.confirmed.get_or_insert(ToolCallConfirmationReason::UserAction);
    } else {
        action.confirmed = None;
        action.reason.get_or_insert(ToolCallCancellationReason::Denied);
    }
    let tool_call_id = action.tool_call_id.clone();
    let approved = action.approved;
    let run = run.map(|run| run.id);
    ledger.sequence(step, key, StateAction::ChatToolCallConfirmed(action), Some(origin));
    calls::tool_changed(ledger, step, key, &tool_call_id);
    if let Some(run) = run {
        step.send_to_agent(key, Command::Permission { run, tool_call_id, option, approved });
    }
    Ok(Verdict::Done)
}

pub(crate) fn client_reviews_result(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    action: ChatToolCallResultConfirmedAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let chat = actions::tools::known_chat(ledger, key)?;
    active_turn(chat, &action.turn_id)?;
    match chat.conversation.tool(&action.tool_call_id) {
        Some(ToolCallState::PendingResultConfirmation(_)) => {}
        Some(_) => return Err(Refusal::NoResultToConfirm(action.tool_call_id)),
        None => return Err(Refusal::NoSuchCall(action.tool_call_id)),
    }
    let run = chat.run.as_ref().map(|run| run.id);
    let tool_call_id = action.tool_call_id.clone();
    let approved = action.approved;
    let action = StateAction::ChatToolCallResultConfirmed(action);
    ledger.sequence(step, key, action, Some(origin));
    calls::tool_changed(ledger, step, key, &tool_call_id);
    if let Some(run) = run {
        let command = calls::reviewed(ledger, key, run, tool_call_id, approved);
        step.send_to_agent(key, command);
    }
    Ok(Verdict::Done)
}

pub(crate) fn client_drafts_answer(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    mut action: ChatInputAnswerChangedAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let request = open_question(actions::tools::known_chat(ledger, key)?, &action.request_id)?;
    let question = question_of(request, &action.question_id)?;
    check_answer(question, &action.question_id, action.answer.as_mut())?;
    let request_id = action.request_id.clone();
    let verdict =
        sequence_if_changed(ledger, step, key, StateAction::ChatInputAnswerChanged(action), origin)?;
    catalogue::sync_question_request(ledger, step, key, &request_id);
    Ok(verdict)
}

pub(crate) fn client_reorders(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    action: ChatQueuedMessagesReorderedAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let chat = actions::tools::known_chat(ledger, key)?;
    let queued = chat.conversation.state().queued_messages.iter().flatten();
    let before: Vec<&String> = queued.map(|message| &message.id).collect();
    if before.is_empty() {
        return Err(Refusal::NothingQueued);
    }
    // Unnamed messages follow in their previous order. Reducers differ in where they put them, so
    // the complete order is sent. Unknown ids are ignored: the message may just have become a turn.
    let mut left: HashSet<&String> = before.iter().copied().collect();
    let named = action.order.iter().chain(before.iter().copied());
    let full: Vec<String> = named.filter(|id| left.remove(id)).cloned().collect();
    let partial = full != action.order;
    let verdict =
        sequence_if_changed(ledger, step, key, StateAction::ChatQueuedMessagesReordered(action), origin)?;
    if partial {
        let order =
            StateAction::ChatQueuedMessagesReordered(ChatQueuedMessagesReorderedAction { order: full });
        if actions::tools::known_chat(ledger, key)?.conversation.would_change(&order) {
            ledger.sequence(step, key, order, None);
        }
    }
    pending::release_queue(ledger, key);
    Ok(verdict)
}

/// Returns the active turn if it has this id.
pub(crate) fn active_turn<'a>(chat: &'a Chat, turn_id: &str) -> Result<&'a ActiveTurn, Refusal> {
    match &chat.conversation.state().active_turn {
        Some(active) if active.id == turn_id => Ok(active),
        Some(active) => Err(Refusal::OtherTurnRuns { runs: active.id.clone(), named: turn_id.to_owned() }),
        None => Err(Refusal::NoTurnRuns),
    }
}

pub(crate) fn open_question<'a>(chat: &'a Chat, request_id: &str) -> Result<&'a ChatInputRequest, Refusal> {
    match chat.conversation.question(request_id) {
        Some(question) => Ok(&question.request),
        None => Err(Refusal::NoOpenQuestion(request_id.to_owned())),
    }
}

/// Returns the option for a decision: the named one, which must be offered and agree with
/// `approved`, or else the option that decides this call only. `None` if the agent offered no
/// options.
fn choose(
    offered: &[PermissionOption],
    selected: Option<&str>,
    approved: bool,
) -> Result<Option<String>, Refusal> {
    if let Some(id) = selected {
        return match offered.iter().find(|option| option.id == id) {
            Some(option) if option.kind.approves() == approved => Ok(Some(id.to_owned())),
            Some(_) => Err(Refusal::OptionSaysOtherwise { option: id.to_owned(), approved }),
            None => Err(Refusal::OptionNotOffered(id.to_owned())),
        };
    }
    let once = if approved { PermissionKind::AllowOnce } else { PermissionKind::RejectOnce };
    match offered.iter().find(|option| option.kind == once) {
        Some(option) => Ok(Some(option.id.clone())),
        None if approved && !offered.is_empty() => Err(Refusal::OptionNeeded),
        None => Ok(None),
    }
}

/// Returns answers in the order of their ids, for deterministic output.
pub(crate) fn sorted(
    answers: Option<&HashMap<String, ChatInputAnswer>>,
) -> BTreeMap<&String, &ChatInputAnswer> {
    answers.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(id: &str, kind: PermissionKind) -> PermissionOption {
        PermissionOption { id: id.to_owned(), label: None, kind }
    }

    #[test]
    fn a_plain_answer_decides_this_call_only() {
        let always = option("always", PermissionKind::AllowAlways);
        let never = option("never", PermissionKind::RejectAlways);
        let all = [
            always.clone(),
            never.clone(),
            option("yes", PermissionKind::AllowOnce),
            option("no", PermissionKind::RejectOnce),
        ];
        let chosen = |offered: &[PermissionOption], approved| choose(offered, None, approved);
        assert_eq!(chosen(&all, true), Ok(Some("yes".to_owned())));
        assert_eq!(chosen(&all, false), Ok(Some("no".to_owned())));
        assert_eq!(choose(&all, Some("always"), true), Ok(Some("always".to_owned())));
        // Where nothing says just this call, a yes has to be chosen, and a no is said without an
        // option.
        assert!(chosen(&[always.clone(), never.clone()], true).is_err());
        assert_eq!(chosen(&[always, never], false), Ok(None));
        assert_eq!(chosen(&[], true), Ok(None));
    }
}
