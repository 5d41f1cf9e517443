//! Events of agents.
//!
//! Owns: passing each event to the owner that turns it into actions, and the consequences of an
//! agent that closes a conversation or dies.
//! Never: lets an event of a finished run change state.

use ahp_types::actions::{ChatUsageAction, SessionCreationFailedAction, SessionReadyAction, StateAction};
use ahp_types::state::ChatInputRequest;

use crate::host::agents::{conversations, progress};
use crate::host::catalogue::notes;
use crate::host::chats::calls::{CallRef, Readiness};
use crate::host::chats::reports::TextSegment;
use crate::host::chats::turns::Ending;
use crate::host::chats::{calls, pending, reports};
use crate::host::configuration::{directories, settings};
use crate::host::effects::{
    CallExtras, ChatKey, Event, Output, PageUrl, Record, RunId, ToolGate, TurnEnd, TurnEvent,
};
use crate::host::facts::Fact;
use crate::host::model::{AgentLink, Chat, RunPhase, Session, TitleBy};
use crate::host::refusal::error_info;
use crate::host::terminals::background;
use crate::host::{canvases, catalogue, customizations, terminals, Host, Step};

impl Host {
    /// Handles an event of an agent.
    pub(in crate::host) fn agent_reports(&mut self, step: &mut Step<'_>, key: ChatKey, event: Event) {
        // An agent may report until it learns that its chat is gone.
        let Some(chat) = self.ledger.channels.chats.get_mut(&key) else {
            tracing::debug!(?key, "an event of an agent was ignored: its chat no longer exists");
            return;
        };
        match event {
            Event::Opening { done, total, message } => {
                progress::opening_progressed(&mut self.ledger, step, key, done, total, message);
            }
            Event::Opened => {
                if chat.agent != AgentLink::Opening {
                    return;
                }
                chat.agent = AgentLink::Open;
                let session = chat.session;
                customizations::conversation_changed(&self.ledger, step, key);
                progress::clear_opening_wait(&mut self.ledger, step, key);
                progress::opening_finished(&mut self.ledger, step, key);
                let session_of = self.ledger.channels.sessions.known(session);
                if session_of.is_some_and(|session| session.is_creating() || session.has_failed()) {
                    let ready = StateAction::SessionReady(SessionReadyAction {});
                    self.ledger.sequence(step, session, ready, None);
                    for other in
                        self.ledger.channels.chats_in(session).into_iter().filter(|other| *other != key)
                    {
                        self.advance(step, other);
                    }
                }
                directories::send_directories(&mut self.ledger, step, key);
                customizations::conversation_opened(&mut self.ledger, step, key);
                settings::send_due_settings(&mut self.ledger, step, key);
                self.advance(step, key);
            }
            Event::Awaits { what } => progress::opening_waits_for_user(&mut self.ledger, step, key, what),
            Event::OpenFailed { kind, reason } => self.agent_failed(step, key, kind.name(), &reason),
            Event::Died { reason } => self.agent_failed(step, key, "agentDied", &reason),
            Event::Handle(handle) => {
                // A conversation that was closed may report until it learns that.
                if chat.handle != handle && chat.agent != AgentLink::Closed {
                    chat.handle = handle;
                    self.ledger.chat_row_due(key);
                }
            }
            Event::Configured { config, spreads, acknowledged } => {
                settings::agent_is_configured(
                    &mut self.ledger,
                    &self.agents,
                    step,
                    key,
                    *config,
                    spreads,
                    acknowledged,
                );
            }
            Event::Described(news) => self.agents.agent_describes_itself(&mut self.ledger, step, key, *news),
            Event::Left => self.agent_closed(step, key),
            Event::Begins(cause) => self.agent_begins_turn(step, key, cause),
            Event::Background { id, command } => {
                background::background_work_reported(&mut self.ledger, step, key, &id, command)
            }
            Event::Title(title) => {
                let session = chat.session;
                if let Some(title) = catalogue::title_from(&title) {
                    catalogue::name_chat(&mut self.ledger, step, key, &title, TitleBy::Agent);
                    if self.ledger.channels.is_default(key) {
                        catalogue::name_session(&mut self.ledger, step, session, &title, TitleBy::Agent);
                    }
                }
            }
            Event::McpServers(reports) => {
                customizations::servers_reported(&mut self.ledger, step, key, reports)
            }
            Event::Note { name, value } => notes::note(&mut self.ledger, step, key, name, value),
            Event::LoginRequired => self.agents.login_is_required(&mut self.ledger, step, key),
            Event::TokenRefused { resource } => {
                self.agents.token_was_refused(&mut self.ledger, step, key, &resource)
            }
            Event::Canvas { name, url } => {
                canvases::canvas_reported(&mut self.ledger, step, key, name, url.map(|PageUrl(url)| url))
            }
            Event::Terminal { name, event } => {
                terminals::terminal_reports(&mut self.ledger, step, key, name, event)
            }
            Event::Turn(run, event) if chat.cancelled_run == Some(run) => {
                if matches!(event, TurnEvent::Ended(_)) {
                    chat.cancelled_run = None;
                    self.advance(step, key);
                }
            }
            Event::Turn(run, event) => match &chat.run {
                Some(current) if current.id == run && current.phase == RunPhase::Started => {
                    self.turn_reports(step, key, run, event, CallExtras::default());
                    self.end_if_too_large(step, key);
                }
                _ => tracing::debug!(?key, ?run, "an event of an agent was ignored: its turn is over"),
            },
        }
    }

    /// Restarts a run that started after the agent had closed its idle conversation. Ignores the
    /// end of an earlier conversation while the next one is being opened.
    pub(super) fn agent_closed(&mut self, step: &mut Step<'_>, key: ChatKey) {
        let chat = self.ledger.channels.chats.known(key);
        if chat.is_none_or(|chat| chat.agent != AgentLink::Open)
            || !conversations::conversation_ended(&mut self.ledger, step, key)
        {
            return;
        }
        let fresh = self.ledger.fresh_run();
        let Some(chat) = self.ledger.channels.chats.known_mut(key) else { return };
        let is_own = chat.run.as_ref().is_some_and(|run| run.is_own);
        if let Some(run) = chat.run.as_mut().filter(|run| run.phase == RunPhase::Started) {
            run.id = fresh;
            run.phase = RunPhase::Waiting { resume: run.resumes };
        }
        if is_own {
            // Only this conversation could continue the agent's own turn.
            return self.end_turn(step, key, Ending::Complete, None);
        }
        self.advance(step, key);
    }

    /// Fails everything that waits for an agent that could not be started or has died.
    pub(super) fn agent_failed(&mut self, step: &mut Step<'_>, key: ChatKey, kind: &str, reason: &str) {
        if !conversations::conversation_ended(&mut self.ledger, step, key) {
            return;
        }
        let Some(chat) = self.ledger.channels.chats.known(key) else { return };
        let session = chat.session;
        let gone =
            |resumable| Ending::Failed { kind: kind.to_owned(), message: reason.to_owned(), resumable };
        tracing::warn!(
            chat = chat.channel.uri,
            kind,
            reason,
            "an agent has failed to start or has ended unexpectedly"
        );
        progress::opening_finished(&mut self.ledger, step, key);
        if conversations::is_creating(&self.ledger, key) {
            let error = error_info(kind.to_owned(), reason);
            let failed = StateAction::SessionCreationFailed(SessionCreationFailedAction { error });
            self.ledger.sequence(step, session, failed, None);
            for other in self.ledger.channels.chats_in(session).into_iter().filter(|other| *other != key) {
                self.end_turn(step, other, gone(true), None);
            }
        }
        let run = self.ledger.channels.chats.known(key).and_then(|chat| chat.run.as_ref());
        if run.is_some_and(|run| run.phase == RunPhase::Command) {
            return;
        }
        let is_own = run.is_some_and(|run| run.is_own);
        // If the agent has never started, a resume is a first start.
        let has_failed = self.ledger.channels.sessions.known(session).is_some_and(Session::has_failed);
        let resumable = has_failed || self.ledger.channels.chats.known(key).is_some_and(Chat::can_resume);
        self.end_turn(step, key, gone(resumable && !is_own), None);
    }

    pub(super) fn turn_reports(
        &mut self,
        step: &mut Step<'_>,
        key: ChatKey,
        run: RunId,
        event: TurnEvent,
        extras: CallExtras,
    ) {
        let Some(turn_id) =
            self.ledger.channels.chats.known(key).and_then(|chat| Some(chat.run.as_ref()?.turn_id.clone()))
        else {
            return;
        };
        let meta = || Some(extras.meta.clone()).filter(|meta| !meta.is_empty());
        match event {
            TurnEvent::Text(kind, content) => match meta() {
                None => {
                    reports::append_texts(&mut self.ledger, step, key, kind, std::slice::from_ref(&content));
                }
                meta => {
                    let segment = TextSegment { turn_id, kind, content, meta };
                    reports::append_text(&mut self.ledger, step, key, segment);
                }
            },
            TurnEvent::Texts(kind, texts) => reports::append_texts(&mut self.ledger, step, key, kind, &texts),
            TurnEvent::Part(kind, content) => {
                let chat = self.ledger.channels.chats.known(key);
                let content = chat.map_or_else(String::new, |chat| chat.separate_message(kind, content));
                reports::open_part(
                    &mut self.ledger,
                    step,
                    key,
                    TextSegment { turn_id, kind, content, meta: meta() },
                );
            }
            TurnEvent::With(event, extras) => self.turn_reports(step, key, run, *event, extras),
            TurnEvent::Notice(text) => reports::notice(&mut self.ledger, step, key, turn_id, text, meta()),
            TurnEvent::Activity(activity) => catalogue::set_activity(&mut self.ledger, step, key, activity),
            TurnEvent::Steered(id) => pending::steering_arrived(&mut self.ledger, key, &id),
            TurnEvent::NotSteered(id) => pending::steering_was_refused(&mut self.ledger, step, key, &id),
            TurnEvent::Progress(progress) => {
                if let Some(chat) = self.ledger.channels.chats.known_mut(key) {
                    chat.progress.insert(turn_id, progress);
                    step.emit(Output::Record(Record::Progress(key, progress)));
                }
            }
            TurnEvent::Last(event, progress) => {
                self.turn_reports(step, key, run, *event, extras);
                self.turn_reports(step, key, run, TurnEvent::Progress(progress), CallExtras::default());
            }
            TurnEvent::Usage(usage) => {
                let action = StateAction::ChatUsage(ChatUsageAction { turn_id, usage, meta: None });
                self.ledger.sequence(step, key, action, None);
            }
            TurnEvent::ToolStarted { id, name, display_name } => {
                calls::start_call(
                    &mut self.ledger,
                    step,
                    CallRef { key, turn_id, id },
                    name,
                    display_name,
                    meta(),
                    None,
                );
            }
            TurnEvent::ToolInput { id, delta } => {
                calls::append_input(&mut self.ledger, step, CallRef { key, turn_id, id }, delta);
            }
            TurnEvent::ToolReady { id, input, message, gate } => {
                let ready = Readiness { input, message, gate, extras };
                calls::call_is_ready(&mut self.ledger, step, CallRef { key, turn_id, id }, ready);
            }
            TurnEvent::ClientToolStarted { id, name } => {
                self.clients.start_client_call(
                    &mut self.ledger,
                    step,
                    &CallRef { key, turn_id, id },
                    name,
                    meta(),
                );
            }
            TurnEvent::ClientTool { id, name, input, message } => {
                let (gate, extras) = (ToolGate::Open, CallExtras::default());
                let ready = Readiness { input, message, gate, extras };
                let call = CallRef { key, turn_id, id };
                self.clients.call_on_client(&mut self.ledger, step, call, name, ready);
            }
            TurnEvent::Command { id, line } => {
                self.run_for_agent(step, CallRef { key, turn_id, id }, line, run);
            }
            TurnEvent::ToolContent { id, content } => {
                calls::set_content(&mut self.ledger, step, CallRef { key, turn_id, id }, content, meta());
            }
            TurnEvent::ToolDone { id, outcome, review } => {
                let call = CallRef { key, turn_id, id: id.clone() };
                calls::finish_call(&mut self.ledger, step, &call, outcome, review, extras);
                step.facts.push_back(Fact::MayWait { chat: key, id, is_question: false });
            }
            TurnEvent::Question { id, message, url, questions } => {
                let questions = Some(questions);
                calls::ask(
                    &mut self.ledger,
                    step,
                    key,
                    ChatInputRequest { id, message, url, questions, answers: None },
                );
            }
            TurnEvent::QuestionWithdrawn { id } => {
                calls::question_was_withdrawn(&mut self.ledger, step, key, &id)
            }
            TurnEvent::Ended(end) => {
                let ending = match end {
                    TurnEnd::Complete => Ending::Complete,
                    TurnEnd::Cancelled => Ending::Cancelled { meta: None },
                    TurnEnd::Failed { kind, message, resumable } => {
                        Ending::Failed { kind, message, resumable }
                    }
                };
                if let Some(run) =
                    self.ledger.channels.chats.known_mut(key).and_then(|chat| chat.run.as_mut())
                {
                    run.phase = RunPhase::Over;
                }
                self.end_turn(step, key, ending, None);
            }
        }
    }
}
