//! Turns: how they begin, continue and end.
//!
//! Owns: each start, resume, truncation, cancellation and end of a turn, with the commands to the
//! agent; and a chat's next work: its queue, its command, its own turn.
//! Never: ends a turn twice: each accepted start or resume has exactly one end.

use ahp_types::actions::{
    ActionOrigin, ChatTruncatedAction, ChatTurnResumeAction, ChatTurnStartedAction, StateAction,
};
use ahp_types::state::PendingMessage;

use crate::host::agents::conversations;
use crate::host::catalogue::ahead;
use crate::host::catalogue::chats::reopen_session;
use crate::host::changes::checkpoints;
use crate::host::chats::pending::PendingPlace;
use crate::host::chats::turns::{Ending, TRIAL};
use crate::host::chats::{attached, pending, turns};
use crate::host::configuration::selection;
use crate::host::effects::{ChatKey, Command, Output, Record, Timer, TurnCause};
use crate::host::facts::Fact;
use crate::host::model::{AgentLink, Chat, Run, RunPhase, Session, TitleBy};
use crate::host::terminals::commands;
use crate::host::{catalogue, clients, limits, Host, Step};
use crate::state::history::CompletedTurn;
use crate::wire::text::human_size;

impl Host {
    /// Ends a chat's turn if it exceeds the size limit.
    pub(super) fn end_if_too_large(&mut self, step: &mut Step<'_>, key: ChatKey) {
        if limits::is_too_large(&self.ledger, key) {
            let chat = self.ledger.channels.chats.known(key).map(|chat| &chat.channel.uri);
            let limit = human_size(self.ledger.limits.turn_bytes);
            tracing::warn!(chat, limit, "a turn was ended: it exceeds the size limit");
            self.end_turn(step, key, limits::too_large(&self.ledger), None);
        }
    }

    /// Opens a turn for an agent's own work, at once or when nothing else runs in its chat.
    pub(super) fn agent_begins_turn(&mut self, step: &mut Step<'_>, key: ChatKey, cause: TurnCause) {
        let Some(chat) = self.ledger.channels.chats.known_mut(key) else { return };
        // The agent was sent a turn before this report, so its work belongs to that turn.
        let is_started = chat.run.as_ref().is_some_and(|run| run.phase == RunPhase::Started);
        if chat.agent != AgentLink::Open || is_started || chat.cancelled_run.is_some() {
            return;
        }
        chat.own_turn_cause = Some(cause);
        if !self.clients.is_cancelling(&self.ledger, key) {
            self.open_own_turn(step, key);
        }
    }

    /// Opens the own turn that a chat's agent waits for if nothing runs. Returns whether it did.
    pub(super) fn open_own_turn(&mut self, step: &mut Step<'_>, key: ChatKey) -> bool {
        let Some(chat) = self.ledger.channels.chats.known_mut(key).filter(|chat| chat.run.is_none()) else {
            return false;
        };
        let Some(cause) = chat.own_turn_cause.take() else { return false };
        let turn_id = pending::fresh_turn_id(&self.ledger, step, key);
        let turn = turns::turn_started(turn_id, turns::message_of(cause), None);
        self.begin_turn(step, key, turn, None, true);
        true
    }

    /// Begins an accepted turn: it becomes active, and its agent starts when ready. If `is_own`,
    /// the agent has begun it already.
    pub(super) fn begin_turn(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        mut action: ChatTurnStartedAction,
        origin: Option<ActionOrigin>,
        is_own: bool,
    ) {
        let run = self.ledger.fresh_run();
        let Some(chat) = self.ledger.channels.chats.known_mut(key) else { return };
        action.started_at = step.timestamp();
        chat.consumed.extend(action.queued_message_id.clone());
        let mut run = Run::new(run, action.turn_id.clone(), step.now.monotonic_ms);
        let sender = action.queued_message_id.as_ref().and_then(|id| chat.senders.remove(id));
        run.by = origin.as_ref().map(|origin| origin.client_id.clone()).or(sender);
        run.is_own = is_own;
        // A client that is gone has no tokens: the agent keeps those of the client before.
        let presence = &self.ledger.presence;
        let is_there = |client: &String| presence.connections_of(client).next().is_some();
        chat.requesting_client =
            run.by.clone().filter(is_there).or(chat.requesting_client.take()).or(run.by.clone());
        chat.run = Some(run);
        let title = catalogue::title_from(&action.message.text);
        let (session, unnamed) = (chat.session, chat.title_by == TitleBy::Nobody);
        self.ledger.sequence(step, key, StateAction::ChatTurnStarted(action), origin);
        match title.filter(|_| unnamed && !is_own) {
            Some(title) => {
                catalogue::name_chat(&mut self.ledger, step, key, &title, TitleBy::FirstMessage);
                if self
                    .ledger
                    .channels
                    .sessions
                    .known(session)
                    .is_some_and(|session| session.title_by == TitleBy::Nobody)
                {
                    catalogue::name_session(&mut self.ledger, step, session, &title, TitleBy::FirstMessage);
                }
            }
            None => catalogue::sync_chat(&mut self.ledger, step, key),
        }
        ahead::begin_session(&mut self.ledger, step, session);
        self.changes.checkpoints.checkpoint_before_turn(&mut self.ledger, step, key);
        self.advance(step, key);
    }

    /// Makes the failed turn of an accepted resume active again.
    pub(super) fn resume_turn(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        action: ChatTurnResumeAction,
        origin: Option<ActionOrigin>,
    ) {
        let run = self.ledger.fresh_run();
        let Some(chat) = self.ledger.channels.chats.known_mut(key) else { return };
        let never_begun = self.ledger.channels.sessions.known(chat.session).is_some_and(Session::has_failed);
        // Clients compute a turn's end as its start plus its duration, so the duration includes the
        // time until the resume. A wall clock that was set back must not shorten it.
        let turn = chat.conversation.history().last().and_then(CompletedTurn::read);
        let lasted_ms = turn.map_or(0, |turn| {
            let before = u64::try_from(turn.duration.unwrap_or(0)).unwrap_or(0);
            step.lasted_since(turn.started_at.as_deref()).max(before)
        });
        let turn_id = action.turn_id.clone();
        let mut run = Run::again(run, turn_id, step.now.monotonic_ms, lasted_ms);
        run.by = origin.as_ref().map(|origin| origin.client_id.clone());
        if never_begun {
            (run.phase, run.resumes) = (RunPhase::Waiting { resume: false }, false);
        }
        chat.requesting_client = run.by.clone().or(chat.requesting_client.take());
        chat.run = Some(run);
        // The failure may recur and end the process.
        let session = chat.session;
        step.emit(Output::Record(Record::Trial(session)));
        step.emit(Output::Timer(Timer::Trial(session), TRIAL));
        self.ledger.sequence(step, key, StateAction::ChatTurnResume(action), origin);
        checkpoints::reopen_turn_checkpoints(&mut self.ledger, key);
        catalogue::sync_chat(&mut self.ledger, step, key);
        self.advance(step, key);
    }

    /// Removes turns, and cancels a running one first. The conversation is closed; the next turn
    /// opens a new one with the remaining turns.
    pub(super) fn truncate(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        action: ChatTruncatedAction,
        origin: Option<ActionOrigin>,
    ) {
        turns::end_turn_without_advance(&mut self.ledger, step, key, Ending::Cancelled { meta: None }, None);
        self.deliver(step);
        if let Some(chat) = self.ledger.channels.chats.known_mut(key) {
            let history = chat.conversation.history();
            let kept = action.turn_id.as_ref().and_then(|id| history.through(id)).unwrap_or_default().len();
            chat.removed_turns.extend(history.since(kept).iter().map(|turn| turn.id().to_owned()));
        }
        self.ledger.sequence(step, key, StateAction::ChatTruncated(action), origin);
        if let Some(chat) = self.ledger.channels.chats.known_mut(key) {
            let history = chat.conversation.history();
            chat.progress.retain(|id, _| history.contains(id));
            // The agent's conversation has more turns than remain.
            chat.handle = None;
        }
        catalogue::sync_chat(&mut self.ledger, step, key);
        conversations::close_conversation(&mut self.ledger, step, key);
        // Turns wait for a session that is being created, so its creation goes on.
        if let Some(session) = self.ledger.channels.chats.known(key).map(|chat| chat.session) {
            reopen_session(&mut self.ledger, &self.agents, step, session);
        }
        self.take_next_queued(step, key);
    }

    pub(super) fn cancel_turn(&mut self, step: &mut Step<'_>, key: ChatKey) {
        turns::end_turn_without_advance(&mut self.ledger, step, key, Ending::Cancelled { meta: None }, None);
        self.deliver(step);
    }

    /// Ends the running turn, once, and continues with the queue.
    pub(super) fn end_turn(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        ending: Ending,
        origin: Option<ActionOrigin>,
    ) {
        // Before the facts are delivered: an earlier one may continue the queue.
        if matches!(ending, Ending::Failed { resumable: true, .. }) {
            if let Some(chat) = self.ledger.channels.chats.known_mut(key) {
                chat.queue_held = true;
            }
        }
        turns::end_turn_without_advance(&mut self.ledger, step, key, ending, origin);
        self.deliver(step);
        step.facts.push_back(Fact::QueueMayContinue(key));
    }

    /// Starts the waiting run if its agent is ready.
    pub(super) fn advance(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let creating = conversations::is_creating(&self.ledger, key);
        let waits = |chat: &Chat| {
            chat.run.as_ref().is_some_and(|run| run.phase == RunPhase::Waiting { resume: false })
        };
        if self.ledger.channels.chats.known(key).is_some_and(waits) && self.start_pending_command(step, key) {
            return;
        }
        self.agents.send_tokens(&mut self.ledger, step, key);
        clients::send_tools(&mut self.ledger, step, key);
        let agent = self.agents.agent_of(&self.ledger, key).map(|agent| agent.info.clone());
        let commands = self.ledger.channels.chats.known(key).filter(|chat| waits(chat));
        let commands = commands.and_then(commands::transcript_of_commands);
        let Some(chat) = self.ledger.channels.chats.known_mut(key) else { return };
        let Some(run) = chat.run.as_mut() else { return };
        let RunPhase::Waiting { resume } = run.phase else { return };
        if chat.cancelled_run.is_some() {
            return;
        }
        match chat.agent {
            AgentLink::Opening => {}
            // The session's own conversation opens first.
            AgentLink::Closed if creating => {}
            AgentLink::Closed => conversations::open_conversation(&mut self.ledger, &self.agents, step, key),
            AgentLink::Open if run.awaited_checkpoint.is_some() => {}
            AgentLink::Open => {
                let Some(turn) = &chat.conversation.state().active_turn else { return };
                run.phase = RunPhase::Started;
                chat.own_turn_cause = None;
                if run.is_own {
                    let run = run.id;
                    step.send_to_agent(key, Command::OwnTurn { run });
                    self.changes.checkpoints.note_overlaps(&mut self.ledger, key, true);
                    pending::send_steering(&mut self.ledger, &self.agents, step, key);
                    return;
                }
                let (run, message) = (run.id, turns::message_for_agent(agent.as_ref(), &turn.message));
                let attached = chat.attached.turns.get(&turn.id).cloned().unwrap_or_default();
                let attached = commands.into_iter().chain(attached).collect();
                let command = if resume {
                    Command::ResumeTurn {
                        run,
                        message,
                        attached,
                        so_far: turn.response_parts.clone(),
                        progress: chat.progress.get(&turn.id).copied(),
                    }
                } else {
                    Command::StartTurn { run, message, attached }
                };
                step.send_to_agent(key, command);
                self.changes.checkpoints.note_overlaps(&mut self.ledger, key, true);
                pending::send_steering(&mut self.ledger, &self.agents, step, key);
            }
        }
    }

    /// Starts a turn with the first queued message if nothing runs and the queue is not held.
    /// Steering messages that are commands, or that the agent refuses, precede the queue.
    pub(super) fn take_next_queued(&mut self, step: &mut Step<'_>, key: ChatKey) {
        if self.clients.is_cancelling(&self.ledger, key) || self.open_own_turn(step, key) {
            return;
        }
        let Some(chat) =
            self.ledger.channels.chats.known(key).filter(|chat| chat.run.is_none() && !chat.queue_held)
        else {
            return;
        };
        let state = chat.conversation.state();
        let mut steering = pending::steering_of(&self.ledger, chat);
        let steering = steering.find(|(_, it)| {
            let is_refused = chat.undelivered_steering.contains(&it.id);
            is_refused
                || !pending::steers(&self.ledger, &self.agents, key)
                || commands::command_in(&self.ledger, &it.message.text).is_some()
        });
        let queued = || state.queued_messages.iter().flatten().next().cloned();
        let next = steering.or_else(|| Some((PendingPlace::Queue, queued()?)));
        let Some((place, PendingMessage { id, mut message })) = next else { return };
        let sender = chat.senders.get(&id);
        if sender.is_some_and(|sender| self.clients.is_cancelling_turns_of(&self.ledger, sender)) {
            return;
        }
        if chat.following.contains(&id) {
            selection::address(&self.ledger, &self.agents, key, &mut message);
        }
        let turn_id = pending::turn_id_of_queued(&mut self.ledger, step, key, &id);
        attached::attached_by_queue(&mut self.ledger, key, &id, &turn_id);
        pending::consume(&mut self.ledger, step, key, place, id.clone());
        self.begin_turn(step, key, turns::turn_started(turn_id, message, Some(id)), None, false);
    }
}
