//! Actions of clients on chats.
//!
//! Owns: the conditions and consequences of each action on a chat: a turn is started, resumed,
//! cancelled or truncated, or an answer goes to the agent that asked. `host::actions::chat` has the
//! conditions that need only the ledger.
//! Never: begins or ends a turn itself: `turns` does.

use ahp_types::actions::{
    ActionOrigin, ChatInputCompletedAction, ChatTruncatedAction, ChatTurnCancelledAction,
    ChatTurnResumeAction, ChatTurnStartedAction, StateAction,
};
use ahp_types::state::{ChatInputAnswer, PendingMessageKind, ResponsePart, SessionStatus, TurnState};

use crate::host::actions::answers::check_answers;
use crate::host::actions::Verdict;
use crate::host::chats::turns::Ending;
use crate::host::chats::{attached, calls, pending};
use crate::host::configuration::{directories, selection};
use crate::host::effects::{ChatKey, Command};
use crate::host::limits::{check_id, ID_BYTES_MAX};
use crate::host::refusal::Refusal;
use crate::host::{actions, catalogue, Host, Step};
use crate::state::history::CompletedTurn;
use crate::state::status::status_is;
use crate::state::steering::SteeringChange;

impl Host {
    pub(super) fn change_chat(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        action: StateAction,
        origin: ActionOrigin,
    ) -> Result<Verdict, Refusal> {
        match action {
            StateAction::ChatTurnStarted(a) => self.client_starts_turn(step, key, a, origin),
            StateAction::ChatTurnCancelled(a) => self.client_cancels_turn(step, key, a, origin),
            StateAction::ChatTurnResume(a) => self.client_resumes_turn(step, key, a, origin),
            StateAction::ChatTruncated(a) => self.client_truncates(step, key, a, origin),
            StateAction::ChatToolCallConfirmed(a) => {
                actions::chat::client_decides_call(&mut self.ledger, step, key, a, origin)
            }
            StateAction::ChatToolCallResultConfirmed(a) => {
                actions::chat::client_reviews_result(&mut self.ledger, step, key, a, origin)
            }
            StateAction::ChatToolCallComplete(a) => {
                actions::tools::client_completes_call(&mut self.ledger, step, key, a, origin)
            }
            StateAction::ChatToolCallContentChanged(a) => {
                actions::tools::client_changes_content(&mut self.ledger, step, key, a, origin)
            }
            StateAction::ChatInputAnswerChanged(a) => {
                actions::chat::client_drafts_answer(&mut self.ledger, step, key, a, origin)
            }
            StateAction::ChatInputCompleted(a) => self.client_answers(step, key, a, origin),
            StateAction::ChatPendingMessageSet(a) => {
                actions::chat::client_sets_pending(&mut self.ledger, &self.agents, step, key, a, origin)
            }
            StateAction::ChatQueuedMessagesReordered(a) => {
                actions::chat::client_reorders(&mut self.ledger, step, key, a, origin)
            }
            StateAction::ChatPendingMessageRemoved(ref a) => {
                let state = actions::tools::known_chat(&self.ledger, key)?.conversation.state();
                let there = match a.kind {
                    PendingMessageKind::Steering => state.steering_message.iter().any(|m| m.id == a.id),
                    PendingMessageKind::Queued => {
                        state.queued_messages.iter().flatten().any(|m| m.id == a.id)
                    }
                };
                if !there {
                    return Err(Refusal::NoSuchPending(a.id.clone()));
                }
                actions::chat::sequence_if_changed(&mut self.ledger, step, key, action, origin)
            }
            StateAction::Unknown(_) => match SteeringChange::of(&action) {
                Some(change) => {
                    let (ledger, agents) = (&mut self.ledger, &self.agents);
                    actions::steering::client_changes_list(ledger, agents, step, key, change, origin)
                }
                None => Err(Refusal::NotServedOn("a chat's channel")),
            },
            StateAction::ChatDraftChanged(_) => {
                actions::chat::sequence_if_changed(&mut self.ledger, step, key, action, origin)
            }
            StateAction::ChatIsReadChanged(_) | StateAction::ChatIsArchivedChanged(_) => {
                let verdict =
                    actions::chat::sequence_if_changed(&mut self.ledger, step, key, action, origin)?;
                catalogue::sync_chat(&mut self.ledger, step, key);
                Ok(verdict)
            }
            StateAction::ChatWorkingDirectorySet(_) | StateAction::ChatWorkingDirectoryRemoved(_) => {
                directories::client_chooses_directories(
                    &mut self.ledger,
                    &self.agents,
                    step,
                    key,
                    action,
                    origin,
                )
            }
            _ => Err(Refusal::NotServedOn("a chat's channel")),
        }
    }

    pub(super) fn client_starts_turn(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        mut action: ChatTurnStartedAction,
        origin: ActionOrigin,
    ) -> Result<Verdict, Refusal> {
        let chat = actions::tools::known_chat(&self.ledger, key)?;
        let state = chat.conversation.state();
        if chat.has_had_turn(&action.turn_id) {
            return Err(Refusal::TurnKnown(action.turn_id));
        }
        if let Some(active) = &state.active_turn {
            let waits = chat.run.as_ref().is_some_and(|run| run.is_own) && action.queued_message_id.is_none();
            if waits && !chat.turns_queued.contains(&action.turn_id) {
                return actions::chat::client_turn_waits(
                    &mut self.ledger,
                    &self.agents,
                    step,
                    key,
                    action,
                    origin,
                );
            }
            return Err(Refusal::TurnRunsQueueInstead(active.id.clone()));
        }
        check_id("turnId", &action.turn_id, ID_BYTES_MAX)?;
        selection::check_message(&self.ledger, &self.agents, chat.session, &action.message)?;
        let attached = attached::resolve_attached(&self.ledger, &mut action.message)?;
        if let Some(id) = &action.queued_message_id {
            let listed = chat.conversation.steering_messages();
            let mut pending =
                state.queued_messages.iter().flatten().chain(&state.steering_message).chain(listed);
            if !pending.any(|message| message.id == *id) {
                return Err(Refusal::NoSuchPending(id.clone()));
            }
        }
        self.agents.check_tokens_for_turn(&self.ledger, step, key, &origin.client_id)?;
        actions::chat::speak_as(&mut self.ledger, key, &origin.client_id);
        pending::release_queue(&mut self.ledger, key);
        attached::attach_to_turn(&mut self.ledger, key, &action.turn_id, attached);
        self.begin_turn(step, key, action, Some(origin), false);
        Ok(Verdict::Done)
    }

    pub(super) fn client_cancels_turn(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        action: ChatTurnCancelledAction,
        origin: ActionOrigin,
    ) -> Result<Verdict, Refusal> {
        actions::chat::active_turn(actions::tools::known_chat(&self.ledger, key)?, &action.turn_id)?;
        self.end_turn(step, key, Ending::Cancelled { meta: action.meta }, Some(origin));
        Ok(Verdict::Done)
    }

    pub(super) fn client_resumes_turn(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        action: ChatTurnResumeAction,
        origin: ActionOrigin,
    ) -> Result<Verdict, Refusal> {
        let chat = actions::tools::known_chat(&self.ledger, key)?;
        let state = chat.conversation.state();
        if let Some(active) = &state.active_turn {
            return Err(Refusal::TurnRuns(active.id.clone()));
        }
        let latest = chat.conversation.history().last().filter(|turn| turn.id() == action.turn_id);
        match latest.and_then(CompletedTurn::read) {
            Some(turn) if turn.state == TurnState::Error => match turn.response_parts.last() {
                Some(ResponsePart::Error(error)) if error.resumable == Some(true) => {}
                _ => return Err(Refusal::NotResumable(action.turn_id)),
            },
            Some(_) => return Err(Refusal::DidNotFail(action.turn_id)),
            None => return Err(Refusal::NotLatestTurn(action.turn_id)),
        }
        self.agents.check_tokens_for_turn(&self.ledger, step, key, &origin.client_id)?;
        actions::chat::speak_as(&mut self.ledger, key, &origin.client_id);
        pending::release_queue(&mut self.ledger, key);
        self.resume_turn(step, key, action, Some(origin));
        Ok(Verdict::Done)
    }

    pub(super) fn client_truncates(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        action: ChatTruncatedAction,
        origin: ActionOrigin,
    ) -> Result<Verdict, Refusal> {
        let conversation = &actions::tools::known_chat(&self.ledger, key)?.conversation;
        let (state, history) = (conversation.state(), conversation.history());
        if let Some(id) = &action.turn_id {
            let active = state.active_turn.iter().any(|turn| turn.id == *id);
            if !active && !history.contains(id) {
                return Err(Refusal::NoSuchTurn(id.clone()));
            }
        }
        let last = history.last().map(CompletedTurn::id);
        // No turn would be removed, and the status, which a truncation sets to idle, is already
        // idle.
        let idle = status_is(state.status, SessionStatus::Idle);
        if state.active_turn.is_none() && last == action.turn_id.as_deref() && idle {
            return Ok(Verdict::Unchanged);
        }
        pending::release_queue(&mut self.ledger, key);
        self.truncate(step, key, action, Some(origin));
        Ok(Verdict::Done)
    }

    pub(super) fn client_answers(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        mut action: ChatInputCompletedAction,
        origin: ActionOrigin,
    ) -> Result<Verdict, Refusal> {
        let request =
            actions::chat::open_question(actions::tools::known_chat(&self.ledger, key)?, &action.request_id)?;
        if let Err(why) = check_answers(request, &mut action) {
            let request = request.clone();
            calls::ask_again(&mut self.ledger, step, key, request);
            self.end_if_too_large(step, key);
            return Err(Refusal::AskedAgain(Box::new(why)));
        }
        let chat = actions::tools::known_chat(&self.ledger, key)?;
        let request = actions::chat::open_question(chat, &action.request_id)?;
        let run = chat.run.as_ref().map(|run| (run.id, run.first_id(&action.request_id).to_owned()));
        let mut answers = actions::chat::sorted(request.answers.as_ref());
        answers.extend(actions::chat::sorted(action.answers.as_ref()));
        answers.retain(|_, answer| !matches!(answer, ChatInputAnswer::Draft(_)));
        let answers = answers.into_iter().map(|(id, answer)| (id.clone(), answer.clone())).collect();
        let (shown_id, response) = (action.request_id.clone(), action.response);
        self.ledger.sequence(step, key, StateAction::ChatInputCompleted(action), Some(origin));
        calls::question_changed(&mut self.ledger, step, key, &shown_id);
        if let Some((run, request_id)) = run {
            step.send_to_agent(key, Command::Answer { run, request_id, response, answers });
        }
        Ok(Verdict::Done)
    }
}
