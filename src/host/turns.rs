//! The life of a turn, which is the host's and not the agent's.
//!
//! Owns: starting, resuming and ending turns, opening and closing conversations, and the law that
//! each accepted start or resume is followed by exactly one ending. What an agent reports meanwhile
//! is made into actions by `reports`.
//! Never: lets an agent decide when a turn is over for clients.

use crate::host::ahead;
use crate::host::calls;
use crate::host::checkpoints;
use crate::host::clients;
use crate::host::commands;
use crate::host::conversations;
use crate::host::ledger::Ledger;
use crate::host::limits;
use crate::host::pending;
use crate::host::refusal;
use crate::host::selection;
use crate::wire::channels::ChannelKind;
use std::time::Duration;

use ahp_types::actions::{
    ActionOrigin, ChatErrorAction, ChatTruncatedAction, ChatTurnCancelledAction, ChatTurnCompleteAction,
    ChatTurnResumeAction, ChatTurnStartedAction, StateAction,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{AgentInfo, ErrorResponsePart, Message, MessageKind, MessageOrigin};

use super::config::is_no_choice;
use super::effects::{ChatKey, Command, Output, Record, Timer, TurnCause};
use super::facts::Fact;
use super::model::{AgentLink, Chat, Run, RunPhase, Session, TitleBy};
use super::{catalogue, Host, Step};
use crate::state::history::CompletedTurn;

/// A turn that was taken up again and has not brought the process down within this time will not.
const TRIAL: Duration = Duration::from_secs(2);

/// How a turn ends for clients.
#[derive(Debug)]
pub(super) enum Ending {
    Complete,
    Cancelled { meta: Option<JsonObject> },
    Failed { kind: String, message: String, resumable: bool },
}

/// A message without what its client shows but an agent does not know: a choice of no model.
pub(super) fn as_agent_hears(agent: Option<&AgentInfo>, message: &Message) -> Message {
    let mut message = message.clone();
    message.model = message.model.filter(|model| !agent.is_some_and(|agent| is_no_choice(agent, model)));
    message
}

/// Returns the message of a turn that an agent begins by itself. The host says it: clients that
/// know the origins of messages (VS Code) show such a one as a notification, and any other but the
/// user's as if the user had said it.
fn message_of(cause: TurnCause) -> Message {
    let text = match cause {
        TurnCause::Agent => "The agent goes on by itself.",
        TurnCause::Background => "What the agent had left in the background has ended.",
    };
    Message {
        text: text.to_owned(),
        origin: MessageOrigin { kind: MessageKind::SystemNotification },
        attachments: None,
        model: None,
        agent: None,
        meta: None,
    }
}

/// Returns whether an agent has begun the turn of this message by itself.
pub(super) fn is_begun_by_agent(message: &Message) -> bool {
    message.origin.kind == MessageKind::SystemNotification
}

impl Host {
    /// Ends a chat's turn if it has become too large.
    pub(super) fn end_if_too_large(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let is_too_large = self.ledger.channels.chats.known(key).is_some_and(|chat| {
            chat.run.is_some() && chat.conversation.turn_bytes() > self.ledger.limits.turn_bytes
        });
        if is_too_large {
            tracing::warn!(?key, "a turn was ended: it is larger than a turn may be");
            self.end_turn(step, key, limits::too_large(&self.ledger), None);
        }
    }

    /// Opens a turn for what an agent does by itself, at once or when nothing else runs in its
    /// chat.
    pub(super) fn agent_begins(&mut self, step: &mut Step<'_>, key: ChatKey, cause: TurnCause) {
        let Some(chat) = self.ledger.channels.chats.known_mut(key) else { return };
        // The agent was told of a turn meanwhile: what it does is of that.
        let is_told = chat.run.as_ref().is_some_and(|run| run.phase == RunPhase::Started);
        if chat.agent != AgentLink::Open || is_told || chat.settling.is_some() {
            return;
        }
        chat.begins = Some(cause);
        if !self.clients.is_cancelling(&self.ledger, key) {
            self.open_own_turn(step, key);
        }
    }

    /// Opens the turn that the agent of a chat waits for, if nothing runs there. Returns whether it
    /// did.
    pub(super) fn open_own_turn(&mut self, step: &mut Step<'_>, key: ChatKey) -> bool {
        let Some(chat) = self.ledger.channels.chats.known_mut(key).filter(|chat| chat.run.is_none()) else {
            return false;
        };
        let Some(cause) = chat.begins.take() else { return false };
        let action = ChatTurnStartedAction {
            turn_id: pending::fresh_turn_id(&self.ledger, step, key),
            // Replaced by the host's clock.
            started_at: String::new(),
            message: message_of(cause),
            queued_message_id: None,
            meta: None,
        };
        self.begin_turn(step, key, action, None, true);
        true
    }

    /// Makes an accepted start of a turn true: the turn is active, and its agent starts as soon as
    /// it can.
    pub(super) fn start_turn(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        action: ChatTurnStartedAction,
        origin: Option<ActionOrigin>,
    ) {
        self.begin_turn(step, key, action, origin, false);
    }

    fn begin_turn(
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
        run.by = origin.as_ref().map(|origin| origin.client_id.clone());
        run.is_own = is_own;
        chat.sponsor = run.by.clone().or(chat.sponsor.take());
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
        self.changes.checkpoints.keep_folder_before(&mut self.ledger, step, key);
        self.advance(step, key);
    }

    /// Makes an accepted resume true: the failed turn is active again.
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
        // The end of a turn is told as its start and how long it took, so the time that it was
        // given up counts; a wall clock that was set back must not take any of it away.
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
        chat.sponsor = run.by.clone().or(chat.sponsor.take());
        chat.run = Some(run);
        // What ended the turn before may do so again, and the process with it.
        let session = chat.session;
        step.say(Output::Record(Record::Trial(session)));
        step.say(Output::Timer(Timer::Trial(session), TRIAL));
        self.ledger.sequence(step, key, StateAction::ChatTurnResume(action), origin);
        checkpoints::turn_goes_on(&mut self.ledger, key);
        catalogue::sync_chat(&mut self.ledger, step, key);
        self.advance(step, key);
    }

    /// Removes turns. A running turn is cancelled first, and the agent forgets the conversation: it
    /// is opened anew, with what is left of it, for the next turn.
    pub(super) fn truncate(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        action: ChatTruncatedAction,
        origin: Option<ActionOrigin>,
    ) {
        end_turn_quietly(&mut self.ledger, step, key, Ending::Cancelled { meta: None }, None);
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
            // What the agent calls by it is longer than what is left.
            chat.handle = None;
        }
        catalogue::sync_chat(&mut self.ledger, step, key);
        if !conversations::is_creating(&self.ledger, key) {
            conversations::close_conversation(&mut self.ledger, step, key);
        }
        self.take_next_queued(step, key);
    }

    /// Cancels the chat's turn if one runs.
    pub(super) fn cancel_turn(&mut self, step: &mut Step<'_>, key: ChatKey) {
        end_turn_quietly(&mut self.ledger, step, key, Ending::Cancelled { meta: None }, None);
        self.deliver(step);
    }

    /// Ends the running turn, once, and lets the queue go on.
    pub(super) fn end_turn(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        ending: Ending,
        origin: Option<ActionOrigin>,
    ) {
        let held = matches!(ending, Ending::Failed { resumable: true, .. });
        end_turn_quietly(&mut self.ledger, step, key, ending, origin);
        self.deliver(step);
        if held {
            if let Some(chat) = self.ledger.channels.chats.known_mut(key) {
                chat.queue_held = true;
            }
        }
        self.take_next_queued(step, key);
    }

    /// Starts the waiting run if its agent is ready for it.
    pub(super) fn advance(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let creating = conversations::is_creating(&self.ledger, key);
        let waits = |chat: &Chat| {
            chat.run.as_ref().is_some_and(|run| run.phase == RunPhase::Waiting { resume: false })
        };
        if self.ledger.channels.chats.known(key).is_some_and(waits) && self.begins_command(step, key) {
            return;
        }
        self.agents.tell_tokens(&mut self.ledger, step, key);
        clients::tell_tools(&mut self.ledger, step, key);
        let agent = self.agents.agent_of(&self.ledger, key).map(|agent| agent.info.clone());
        let commands = self.ledger.channels.chats.known(key).filter(|chat| waits(chat));
        let commands = commands.and_then(|chat| commands::told_of_commands(&self.ledger, chat));
        let Some(chat) = self.ledger.channels.chats.known_mut(key) else { return };
        let Some(run) = chat.run.as_mut() else { return };
        let RunPhase::Waiting { resume } = run.phase else { return };
        if chat.settling.is_some() {
            return;
        }
        match chat.agent {
            AgentLink::Opening => {}
            // What its session waits for comes first.
            AgentLink::Closed if creating => {}
            AgentLink::Closed => conversations::open_conversation(&mut self.ledger, &self.agents, step, key),
            AgentLink::Open if run.kept_by.is_some() => {}
            AgentLink::Open => {
                let Some(turn) = &chat.conversation.state().active_turn else { return };
                run.phase = RunPhase::Started;
                chat.begins = None;
                if run.is_own {
                    let run = run.id;
                    step.tell_agent(key, Command::OwnTurn { run });
                    self.changes.checkpoints.note_overlaps(&mut self.ledger, key, true);
                    pending::hand_over_steering(&mut self.ledger, &self.agents, step, key);
                    return;
                }
                let (run, message) = (run.id, as_agent_hears(agent.as_ref(), &turn.message));
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
                step.tell_agent(key, command);
                self.changes.checkpoints.note_overlaps(&mut self.ledger, key, true);
                pending::hand_over_steering(&mut self.ledger, &self.agents, step, key);
            }
        }
    }
}

/// Ends the running turn, once: everything in it that is open is closed before its ending.
pub(super) fn end_turn_quietly(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: ChatKey,
    ending: Ending,
    origin: Option<ActionOrigin>,
) {
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    let Some(run) = chat.run.take() else { return };
    ledger.touch(ChannelKind::Terminal);
    commands::end_commands_of(ledger, step, key);
    let Some(chat) = ledger.channels.chats.known_mut(key) else { return };
    if !matches!(ending, Ending::Failed { resumable: true, .. }) {
        chat.progress.remove(&run.turn_id);
    }
    calls::close_open_parts(ledger, step, key, &run.turn_id);
    catalogue::set_activity(ledger, step, key, None);
    let elapsed_ms = step.now.monotonic_ms.saturating_sub(run.accepted_ms);
    let duration = i64::try_from(run.lasted_ms.saturating_add(elapsed_ms)).unwrap_or(i64::MAX);
    let turn_id = run.turn_id;
    let cancelled = matches!(ending, Ending::Cancelled { .. });
    let action = match ending {
        Ending::Complete => {
            StateAction::ChatTurnComplete(ChatTurnCompleteAction { turn_id, duration, meta: None })
        }
        Ending::Cancelled { meta } => {
            StateAction::ChatTurnCancelled(ChatTurnCancelledAction { turn_id, duration, meta })
        }
        Ending::Failed { kind, message, resumable } => StateAction::ChatError(ChatErrorAction {
            turn_id,
            duration,
            part: ErrorResponsePart {
                error: refusal::error_info(kind, &message),
                resumable: Some(resumable),
            },
            meta: None,
        }),
    };
    ledger.sequence(step, key, action, origin);
    step.facts.push_back(Fact::TurnEnded(key));
    catalogue::mark_unread(ledger, step, key);
    catalogue::sync_chat(ledger, step, key);
    pending::put_back_steering(ledger, step, key, run.handed_over);
    selection::forget_followers(ledger, key);
    selection::select_what_waits(ledger, step, key);
    if let Some(chat) = ledger.channels.chats.known(key).filter(|_| !run.interrupted) {
        step.say(Output::Record(Record::Survived(chat.session)));
    }
    if cancelled
        && ledger.channels.chats.known(key).is_some_and(|chat| chat.awaits)
        && !conversations::is_creating(ledger, key)
    {
        // What the user is asked to do was for this turn.
        conversations::close_conversation(ledger, step, key);
    }
    let open = ledger.channels.chats.known_mut(key).filter(|chat| chat.agent == AgentLink::Open);
    if let Some(chat) = open.filter(|_| run.phase == RunPhase::Started) {
        // The agent does not know yet that it is over.
        chat.settling = Some(run.id);
        step.tell_agent(key, Command::Cancel { run: run.id });
    }
}
