//! The life of a turn, which is the host's and not the agent's.
//!
//! Owns: starting, resuming and ending turns, opening and closing conversations, mapping what an agent
//! reports to actions (`calls` does it for tool calls and questions), and the law that each accepted start or
//! resume is followed by exactly one ending.
//! Never: lets an event of a finished run touch state, or an agent decide when a turn is over for clients.

use std::time::Duration;

use ahp_types::actions::{
    ActionOrigin, ChatActivityChangedAction, ChatDeltaAction, ChatErrorAction, ChatReasoningAction,
    ChatResponsePartAction, ChatTruncatedAction, ChatTurnCancelledAction, ChatTurnCompleteAction,
    ChatTurnResumeAction, ChatTurnStartedAction, ChatUsageAction, SessionCreationFailedAction,
    SessionReadyAction, StateAction,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{
    AgentInfo, ChatInputRequest, ChatOrigin, ErrorInfo, ErrorResponsePart, MarkdownResponsePart, Message,
    ReasoningResponsePart, ResponsePart, SessionLifecycle, SystemNotificationResponsePart,
};

use super::calls::{CallRef, Readiness};
use super::clients::{tools_of_clients, Errand};
use super::config::is_no_choice;
use super::effects::{
    Besides, ChatKey, Command, Event, OpenConversation, Output, PartKey, Record, RunId, TextKind, Timer,
    TurnEnd, TurnEvent,
};
use super::model::{AgentLink, OpenPart, Run, RunPhase, SessionKey, TitleBy};
use super::save::lasted_since;
use super::{catalogue, Host, Step};
use crate::wire::text;

/// A turn that was taken up again and has not brought the process down within this time will not.
const TRIAL: Duration = Duration::from_secs(2);

/// How a turn ends for clients.
#[derive(Debug)]
pub(super) enum Ending {
    Complete,
    Cancelled { meta: Option<JsonObject> },
    Failed { kind: String, message: String, resumable: bool },
}

/// Some of the text of a turn.
struct Passage {
    turn_id: String,
    kind: TextKind,
    content: String,
    meta: Option<JsonObject>,
}

/// An error as clients are told it.
fn error_info(error_type: String, message: &str) -> ErrorInfo {
    ErrorInfo { error_type, message: text::message(message), stack: None, meta: None }
}

/// A message without what its client shows but an agent does not know: a choice of no model.
pub(super) fn as_agent_hears(agent: Option<&AgentInfo>, message: &Message) -> Message {
    let mut message = message.clone();
    message.model = message.model.filter(|model| !agent.is_some_and(|agent| is_no_choice(agent, model)));
    message
}

impl Host {
    /// Makes an accepted start of a turn true: the turn is active, and its agent starts as soon as it can.
    pub(super) fn start_turn(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        mut action: ChatTurnStartedAction,
        origin: Option<ActionOrigin>,
    ) {
        let run = self.fresh_run();
        let Some(chat) = self.channels.chats.known_mut(key) else { return };
        action.started_at = step.timestamp();
        chat.turn_ids.insert(action.turn_id.clone());
        chat.consumed.extend(action.queued_message_id.clone());
        let mut run = Run::new(run, action.turn_id.clone(), step.now.monotonic_ms);
        run.by = origin.as_ref().map(|origin| origin.client_id.clone());
        chat.sponsor = run.by.clone().or(chat.sponsor.take());
        chat.run = Some(run);
        self.runs += 1;
        let title = catalogue::title_from(&action.message.text);
        let (session, unnamed) = (chat.session, chat.title_by == TitleBy::Nobody);
        self.sequence(step, key, StateAction::ChatTurnStarted(action), origin);
        match title.filter(|_| unnamed) {
            Some(title) => {
                self.name_chat(step, key, &title, TitleBy::FirstMessage);
                if self
                    .channels
                    .sessions
                    .known(session)
                    .is_some_and(|session| session.title_by == TitleBy::Nobody)
                {
                    self.name_session(step, session, &title, TitleBy::FirstMessage);
                }
            }
            None => self.sync_chat(step, key),
        }
        self.begin_session(step, session);
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
        let run = self.fresh_run();
        let never_begun = self.channels.chats.known(key).is_some_and(|chat| self.has_failed(chat.session));
        let Some(chat) = self.channels.chats.known_mut(key) else { return };
        // The end of a turn is told as its start and how long it took, so the time that it was given up
        // counts; a wall clock that was set back must not take any of it away.
        let turn = chat.conversation.state().turns.last();
        let lasted_ms = turn.map_or(0, |turn| {
            let before = u64::try_from(turn.duration.unwrap_or(0)).unwrap_or(0);
            lasted_since(step, turn.started_at.as_deref()).max(before)
        });
        let turn_id = action.turn_id.clone();
        let mut run = Run::again(run, turn_id, step.now.monotonic_ms, lasted_ms);
        run.by = origin.as_ref().map(|origin| origin.client_id.clone());
        if never_begun {
            (run.phase, run.resumes) = (RunPhase::Waiting { resume: false }, false);
        }
        chat.sponsor = run.by.clone().or(chat.sponsor.take());
        chat.run = Some(run);
        self.runs += 1;
        // What ended the turn before may do so again, and the process with it.
        let session = chat.session;
        step.say(Output::Record(Record::Trial(session)));
        step.say(Output::Timer(Timer::Trial(session), TRIAL));
        self.sequence(step, key, StateAction::ChatTurnResume(action), origin);
        self.sync_chat(step, key);
        self.advance(step, key);
    }

    /// Removes turns. A running turn is cancelled first, and the agent forgets the conversation: it is
    /// opened anew, with what is left of it, for the next turn.
    pub(super) fn truncate(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        action: ChatTruncatedAction,
        origin: Option<ActionOrigin>,
    ) {
        self.end_turn_quietly(step, key, Ending::Cancelled { meta: None }, None);
        self.sequence(step, key, StateAction::ChatTruncated(action), origin);
        if let Some(chat) = self.channels.chats.known_mut(key) {
            let turns = &chat.conversation.state().turns;
            chat.progress.retain(|id, _| turns.iter().any(|turn| turn.id == *id));
            // What the agent calls by it is longer than what is left.
            chat.handle = None;
        }
        self.sync_chat(step, key);
        if !self.is_creating(key) {
            self.close_conversation(step, key);
        }
        self.take_next_queued(step, key);
    }

    /// Cancels the chat's turn if one runs.
    pub(super) fn cancel_turn(&mut self, step: &mut Step<'_>, key: ChatKey) {
        self.end_turn_quietly(step, key, Ending::Cancelled { meta: None }, None);
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
        self.end_turn_quietly(step, key, ending, origin);
        if held {
            if let Some(chat) = self.channels.chats.known_mut(key) {
                chat.queue_held = true;
            }
        }
        self.take_next_queued(step, key);
    }

    /// Ends the running turn, once: everything in it that is open is closed before its ending.
    pub(super) fn end_turn_quietly(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        ending: Ending,
        origin: Option<ActionOrigin>,
    ) {
        let Some(chat) = self.channels.chats.known_mut(key) else { return };
        let Some(run) = chat.run.take() else { return };
        self.runs -= 1;
        if !matches!(ending, Ending::Failed { resumable: true, .. }) {
            chat.progress.remove(&run.turn_id);
        }
        self.close_open_parts(step, key, &run.turn_id);
        self.set_activity(step, key, None);
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
                part: ErrorResponsePart { error: error_info(kind, &message), resumable: Some(resumable) },
                meta: None,
            }),
        };
        self.sequence(step, key, action, origin);
        self.mark_unread(step, key);
        self.sync_chat(step, key);
        self.put_back_steering(step, key, run.handed_over);
        self.forget_followers(key);
        self.select_what_waits(step, key);
        if let Some(chat) = self.channels.chats.known(key).filter(|_| !run.interrupted) {
            step.say(Output::Record(Record::Survived(chat.session)));
        }
        if cancelled
            && self.channels.chats.known(key).is_some_and(|chat| chat.awaits)
            && !self.is_creating(key)
        {
            // What the user is asked to do was for this turn.
            self.close_conversation(step, key);
        }
        let open = self.channels.chats.known_mut(key).filter(|chat| chat.agent == AgentLink::Open);
        if let Some(chat) = open.filter(|_| run.phase == RunPhase::Started) {
            // The agent does not know yet that it is over.
            chat.settling = Some(run.id);
            self.tell_agent(step, key, Command::Cancel { run: run.id });
        }
    }

    /// Has the agent open the chat's conversation.
    pub(super) fn open_conversation(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let working_directories = self.effective_directories(key);
        let tokens = self.tokens_for(step, key);
        let copy_of = self.copyable_origin(key);
        let Some(chat) = self.channels.chats.known_mut(key) else { return };
        let Some(session) = self.channels.sessions.known(chat.session) else { return };
        let client_tools = tools_of_clients(session);
        chat.agent = AgentLink::Opening;
        let state = chat.conversation.state();
        chat.directories_told.clone_from(&working_directories);
        chat.tokens_told.clone_from(&tokens);
        chat.tools_told.clone_from(&client_tools);
        chat.settings_told = Default::default();
        let open = OpenConversation {
            provider: session.state.provider.clone(),
            working_directories,
            tokens,
            config: session.config.clone(),
            history: chat.context.iter().chain(&state.turns).cloned().collect(),
            attached: chat.attached.turns.clone(),
            selection: match &state.origin {
                Some(ChatOrigin::SideChat { selection, .. }) => selection.as_ref().map(|it| it.text.clone()),
                _ => None,
            },
            copy_of,
            handle: chat.handle.as_ref().map(|handle| handle.name.clone()),
            client_tools,
        };
        step.say(Output::Agent(key, Box::new(Command::Open(open))));
    }

    /// Has the agent of a session that is being created open a conversation, its default chat's: the session
    /// is ready when that is open, and turns in its other chats wait for it too.
    pub(super) fn open_session(&mut self, step: &mut Step<'_>, key: SessionKey) {
        let Some(session) = self.channels.sessions.known(key) else { return };
        let default = session.state.default_chat.as_ref().and_then(|uri| self.channels.by_uri.get(uri));
        if let Some(chat) = default.and_then(|id| id.chat()) {
            self.open_conversation(step, chat);
        }
    }

    /// Has the agent forget the chat's conversation.
    pub(super) fn close_conversation(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let Some(chat) = self.channels.chats.known_mut(key) else { return };
        if chat.agent != AgentLink::Closed {
            chat.agent = AgentLink::Closed;
            chat.settling = None;
            chat.awaits = false;
            step.say(Output::Agent(key, Box::new(Command::Close)));
        }
    }

    pub(super) fn tell_agent(&self, step: &mut Step<'_>, key: ChatKey, command: Command) {
        step.say(Output::Agent(key, Box::new(command)));
    }

    /// Starts the waiting run if its agent is ready for it.
    fn advance(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let creating = self.is_creating(key);
        self.tell_tokens(step, key);
        self.tell_tools(step, key);
        let agent = self.agent_of(key).map(|agent| agent.info.clone());
        let Some(chat) = self.channels.chats.known_mut(key) else { return };
        let Some(run) = chat.run.as_mut() else { return };
        let RunPhase::Waiting { resume } = run.phase else { return };
        if chat.settling.is_some() {
            return;
        }
        match chat.agent {
            AgentLink::Opening => {}
            // What its session waits for comes first.
            AgentLink::Closed if creating => {}
            AgentLink::Closed => self.open_conversation(step, key),
            AgentLink::Open => {
                let Some(turn) = &chat.conversation.state().active_turn else { return };
                run.phase = RunPhase::Started;
                let (run, message) = (run.id, as_agent_hears(agent.as_ref(), &turn.message));
                let attached = chat.attached.turns.get(&turn.id).cloned().unwrap_or_default();
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
                self.tell_agent(step, key, command);
                self.hand_over_steering(step, key);
            }
        }
    }

    fn is_creating(&self, key: ChatKey) -> bool {
        let session =
            self.channels.chats.known(key).and_then(|chat| self.channels.sessions.known(chat.session));
        session.is_some_and(|session| session.state.lifecycle == SessionLifecycle::Creating)
    }

    /// Whether no agent has started in this session yet, and one was tried.
    fn has_failed(&self, key: SessionKey) -> bool {
        self.channels
            .sessions
            .known(key)
            .is_some_and(|session| session.state.lifecycle == SessionLifecycle::Failed)
    }

    /// Takes in what an agent reports.
    pub(super) fn agent_reports(&mut self, step: &mut Step<'_>, key: ChatKey, event: Event) {
        // What its agent had said before it heard of that may still arrive.
        let Some(chat) = self.channels.chats.get_mut(&key) else {
            tracing::debug!(?key, "an event for a chat that is gone was ignored");
            return;
        };
        match event {
            Event::Opening { done, total, message } => {
                self.opening_goes_on(step, key, done, total, message);
            }
            Event::Opened => {
                if chat.agent != AgentLink::Opening {
                    return;
                }
                chat.agent = AgentLink::Open;
                let session = chat.session;
                self.nothing_is_awaited(step, key);
                self.opening_is_over(step, key);
                if self.is_creating(key) || self.has_failed(session) {
                    let ready = StateAction::SessionReady(SessionReadyAction {});
                    self.sequence(step, session, ready, None);
                    for other in self.chats_of(session).into_iter().filter(|other| *other != key) {
                        self.advance(step, other);
                    }
                }
                self.tell_directories(step, key);
                self.tell_due_settings(step, key);
                self.advance(step, key);
            }
            Event::Awaits { what } => self.opening_awaits(step, key, what),
            Event::OpenFailed { kind, reason } => self.agent_is_gone(step, key, kind.name(), &reason),
            Event::Died { reason } => self.agent_is_gone(step, key, "agentDied", &reason),
            Event::Handle(handle) => {
                if chat.handle != handle {
                    chat.handle = handle;
                    chat.saved.row_due = true;
                    self.unsaved.insert(key.into());
                }
            }
            Event::Configured { config, spreads, heard } => {
                self.agent_is_configured(step, key, *config, spreads, heard);
            }
            Event::Described(news) => self.agent_describes_itself(step, key, *news),
            Event::Left => self.agent_has_left(step, key),
            Event::Title(title) => {
                let session = chat.session;
                if let Some(title) = catalogue::title_from(&title) {
                    self.name_chat(step, key, &title, TitleBy::Agent);
                    if self.is_default(key) {
                        self.name_session(step, session, &title, TitleBy::Agent);
                    }
                }
            }
            Event::Note { name, value } => self.note(step, key, name, value),
            Event::LoginRequired => self.login_is_required(step, key),
            Event::TokenRefused { resource } => self.token_was_refused(step, key, &resource),
            Event::Turn(run, event) if chat.settling == Some(run) => {
                if matches!(event, TurnEvent::Ended(_)) {
                    chat.settling = None;
                    self.advance(step, key);
                }
            }
            Event::Turn(run, event) => match &chat.run {
                Some(current) if current.id == run && current.phase == RunPhase::Started => {
                    self.turn_reports(step, key, run, event, Besides::default());
                    self.end_if_too_large(step, key);
                }
                _ => tracing::debug!(?key, ?run, "an event of a finished run was ignored"),
            },
        }
    }

    /// The agent has closed the conversation while nothing ran in it: what was started since is started again.
    fn agent_has_left(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let fresh = self.fresh_run();
        let Some(chat) = self.channels.chats.known_mut(key).filter(|chat| chat.agent == AgentLink::Open)
        else {
            return;
        };
        chat.agent = AgentLink::Closed;
        chat.settling = None;
        if let Some(run) = chat.run.as_mut().filter(|run| run.phase == RunPhase::Started) {
            run.id = fresh;
            run.phase = RunPhase::Waiting { resume: run.resumes };
        }
        self.advance(step, key);
    }

    /// The agent could not be started, or is gone: whatever waited for it fails.
    fn agent_is_gone(&mut self, step: &mut Step<'_>, key: ChatKey, kind: &str, reason: &str) {
        let Some(chat) = self.channels.chats.known_mut(key) else { return };
        if chat.agent == AgentLink::Closed {
            return;
        }
        chat.agent = AgentLink::Closed;
        chat.settling = None;
        let session = chat.session;
        let gone =
            |resumable| Ending::Failed { kind: kind.to_owned(), message: reason.to_owned(), resumable };
        tracing::warn!(chat = chat.channel.uri, kind, reason, "an agent is gone");
        self.nothing_is_awaited(step, key);
        self.opening_is_over(step, key);
        if self.is_creating(key) {
            let error = error_info(kind.to_owned(), reason);
            let failed = StateAction::SessionCreationFailed(SessionCreationFailedAction { error });
            self.sequence(step, session, failed, None);
            for other in self.chats_of(session).into_iter().filter(|other| *other != key) {
                self.end_turn(step, other, gone(true), None);
            }
        }
        // Where no agent has ever started, trying again is beginning.
        let resumable = self.has_failed(session) || self.can_be_taken_up(key);
        self.end_turn(step, key, gone(resumable), None);
    }

    /// Whether the agent can go on with what it was doing in this chat when it, or we, had ended.
    pub(super) fn can_be_taken_up(&self, key: ChatKey) -> bool {
        self.channels
            .chats
            .known(key)
            .and_then(|chat| chat.handle.as_ref())
            .is_some_and(|handle| handle.resumes)
    }

    fn turn_reports(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        run: RunId,
        event: TurnEvent,
        besides: Besides,
    ) {
        let Some(turn_id) =
            self.channels.chats.known(key).and_then(|chat| Some(chat.run.as_ref()?.turn_id.clone()))
        else {
            return;
        };
        let meta = || Some(besides.meta.clone()).filter(|meta| !meta.is_empty());
        match event {
            TurnEvent::Text(kind, content) => {
                self.append_text(step, key, run, Passage { turn_id, kind, content, meta: meta() });
            }
            TurnEvent::Part(kind, content) => {
                let content = self.set_apart(key, kind, content);
                self.open_part(step, key, Passage { turn_id, kind, content, meta: meta() });
            }
            TurnEvent::With(event, besides) => self.turn_reports(step, key, run, *event, besides),
            TurnEvent::Notice(text) => self.notice(step, key, turn_id, text, meta()),
            TurnEvent::Activity(activity) => self.set_activity(step, key, activity),
            TurnEvent::Steered(id) => self.steering_arrived(key, &id),
            TurnEvent::Progress(progress) => {
                if let Some(chat) = self.channels.chats.known_mut(key) {
                    chat.progress.insert(turn_id, progress);
                    step.say(Output::Record(Record::Progress(key, progress)));
                }
            }
            TurnEvent::Last(event, progress) => {
                self.turn_reports(step, key, run, *event, besides);
                self.turn_reports(step, key, run, TurnEvent::Progress(progress), Besides::default());
            }
            TurnEvent::Usage(usage) => {
                let action = StateAction::ChatUsage(ChatUsageAction { turn_id, usage, meta: None });
                self.sequence(step, key, action, None);
            }
            TurnEvent::ToolStarted { id, name, display_name } => {
                self.start_call(step, CallRef { key, turn_id, id }, name, display_name, meta());
            }
            TurnEvent::ToolInput { id, delta } => {
                self.append_input(step, CallRef { key, turn_id, id }, delta);
            }
            TurnEvent::ToolReady { id, input, message, gate } => {
                let ready = Readiness { input, message, gate, besides };
                self.call_is_ready(step, CallRef { key, turn_id, id }, ready);
            }
            TurnEvent::ClientToolStarted { id, name } => {
                self.start_client_call(step, &CallRef { key, turn_id, id }, name, meta());
            }
            TurnEvent::ClientTool { id, name, input, message } => {
                let errand = Errand { tool: name, input, message };
                self.call_on_client(step, CallRef { key, turn_id, id }, errand);
            }
            TurnEvent::ToolContent { id, content } => {
                self.set_content(step, CallRef { key, turn_id, id }, content, meta());
            }
            TurnEvent::ToolDone { id, outcome, review } => {
                let call = CallRef { key, turn_id, id: id.clone() };
                self.finish_call(step, &call, outcome, review, besides);
                self.decline_if_alone(step, key, &id);
            }
            TurnEvent::Question { id, message, url, questions } => {
                let questions = Some(questions);
                self.ask(step, key, ChatInputRequest { id, message, url, questions, answers: None });
            }
            TurnEvent::QuestionWithdrawn { id } => self.question_was_withdrawn(step, key, &id),
            TurnEvent::Ended(end) => {
                let ending = match end {
                    TurnEnd::Complete => Ending::Complete,
                    TurnEnd::Cancelled => Ending::Cancelled { meta: None },
                    TurnEnd::Failed { kind, message, resumable } => {
                        Ending::Failed { kind, message, resumable }
                    }
                };
                if let Some(run) = self.channels.chats.known_mut(key).and_then(|chat| chat.run.as_mut()) {
                    run.phase = RunPhase::Over;
                }
                self.end_turn(step, key, ending, None);
            }
        }
    }

    /// Text goes on in the part at the end if that is of its kind; else it begins one.
    fn append_text(&mut self, step: &mut Step<'_>, key: ChatKey, run: RunId, passage: Passage) {
        let open = self.channels.chats.known(key).and_then(|chat| chat.run.as_ref()?.open_part.as_ref());
        let Some(open) = open.filter(|open| open.kind == passage.kind) else {
            return self.open_part(step, key, passage);
        };
        let part_id = open.id.clone();
        let Passage { turn_id, kind, content, meta } = passage;
        // What is told besides would be lost when it is merged with others.
        let delta = meta.is_none().then_some(PartKey { run, part: open.number });
        let action = match kind {
            TextKind::Markdown => StateAction::ChatDelta(ChatDeltaAction { turn_id, part_id, content, meta }),
            TextKind::Reasoning => {
                StateAction::ChatReasoning(ChatReasoningAction { turn_id, part_id, content, meta })
            }
        };
        self.sequence_part(step, key.into(), action, None, delta);
    }

    /// The beginning of a new message: what shows the parts of an answer as one text would run it into the one before.
    fn set_apart(&self, key: ChatKey, kind: TextKind, content: String) -> String {
        let turn =
            self.channels.chats.known(key).and_then(|chat| chat.conversation.state().active_turn.as_ref());
        let before = turn.and_then(|turn| turn.response_parts.last());
        match (kind, before) {
            (TextKind::Markdown, Some(ResponsePart::Markdown(_))) => format!("\n\n{content}"),
            _ => content,
        }
    }

    fn open_part(&mut self, step: &mut Step<'_>, key: ChatKey, passage: Passage) {
        let Passage { turn_id, kind, content, meta } = passage;
        let Some(chat) = self.channels.chats.known_mut(key) else { return };
        let Some(run) = chat.run.as_mut() else { return };
        // Numbered by place, so that ids stay apart in a turn that was resumed. An agent's tool call may
        // have taken the name: calls and parts are found by the same ids.
        let place =
            chat.conversation.state().active_turn.as_ref().map_or(0, |turn| turn.response_parts.len());
        let mut number = u32::try_from(place).unwrap_or(u32::MAX);
        let id = loop {
            let id = format!("part-{number}");
            if !chat.conversation.has_part(&id) {
                break id;
            }
            number = number.wrapping_add(1);
        };
        run.open_part = Some(OpenPart { kind, id: id.clone(), number });
        let part = match kind {
            TextKind::Markdown => ResponsePart::Markdown(MarkdownResponsePart { id, content }),
            TextKind::Reasoning => ResponsePart::Reasoning(ReasoningResponsePart { id, content }),
        };
        let action = StateAction::ChatResponsePart(ChatResponsePartAction { turn_id, part, meta });
        self.sequence(step, key, action, None);
    }

    fn notice(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        turn_id: String,
        text: String,
        meta: Option<JsonObject>,
    ) {
        self.end_part(key);
        let part = SystemNotificationResponsePart { content: text.into(), meta };
        let part = ResponsePart::SystemNotification(part);
        let action = StateAction::ChatResponsePart(ChatResponsePartAction { turn_id, part, meta: None });
        self.sequence(step, key, action, None);
    }

    /// Text that follows begins a new part.
    pub(super) fn end_part(&mut self, key: ChatKey) {
        if let Some(run) = self.channels.chats.known_mut(key).and_then(|chat| chat.run.as_mut()) {
            run.open_part = None;
        }
    }

    pub(super) fn set_activity(&mut self, step: &mut Step<'_>, key: ChatKey, activity: Option<String>) {
        let now = self.channels.chats.known(key).map(|chat| chat.conversation.state().activity.clone());
        if now.is_some_and(|now| now != activity) {
            let action = StateAction::ChatActivityChanged(ChatActivityChangedAction { activity });
            self.sequence(step, key, action, None);
            self.sync_chat(step, key);
        }
    }
}
