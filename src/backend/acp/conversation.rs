//! A chat's conversation with an agent: one ACP session.
//!
//! In reading order: this file (commands, prompts, cancellation), `opening`, `session` (of ACP),
//! `events` (for the host), `run` (the running turn), `ending` (of turns), `settings` (of the
//! session), `resuming` (an interrupted turn), `updates` (messages of the agent), `notices` (of the
//! agent, about the conversation), `own_turns` (turns that the agent begins by itself), `steering`
//! and `user_messages` (of the user during a turn), `requests` (of the agent), `questions` and
//! `forms` (for the user), `attachments` (that the agent refuses), `workspace` (files and
//! terminals), `servers` (MCP servers of the operator), `client_tools` (calls that run on clients).
//!
//! Owns: one prompt at a time.
//! Never: waits without receiving cancellations.

mod attachments;
mod client_tools;
mod ending;
mod events;
mod forms;
mod notices;
mod opening;
mod own_turns;
mod questions;
mod requests;
mod resuming;
mod run;
mod servers;
mod session;
mod settings;
mod steering;
mod updates;
mod user_messages;
mod workspace;

use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{
    CancelNotification, CloseSessionRequest, ContentBlock, PromptRequest, SessionId,
};
use ahp_types::state::Message;
use anyhow::Context;
use tokio::sync::mpsc;
use tokio::time::{sleep_until, Instant};

use self::attachments::Prompt;
use self::client_tools::ClientTools;
use self::events::EventQueue;
pub(super) use self::opening::refused;
use self::own_turns::OwnTurns;
pub(super) use self::questions::page_to_open;
pub(super) use self::requests::too_early_answer;
use self::run::{PromptRun, RunOrigin};
use self::servers::{GivenServers, ReadServers};
use self::session::{AcpSession, Introduction};
use self::settings::Settings;
use self::updates::UpdateNotes;
use self::user_messages::UserMessages;
use self::workspace::Workspace;
use super::agent::{Agent, DedicatedProcess, RunningAgent};
use super::calls::Calls;
use super::errors::RequestError;
use super::login;
use super::peer::{PeerMessage, PeerReceiver};
use crate::backend::{HostLine, ReportSender};
use crate::host::effects::{
    ChatKey, Command, Event, OpenConversation, OpenFailure, RunId, Tokens, Transcript, TurnEnd, TurnEvent,
};

/// Notice to the user that the agent received the conversation so far as text.
const TOLD_ANEW: &str =
    "The agent could not resume this conversation. It received the conversation so far as text.";

/// Text for the agent before the selected part that a side chat is about.
const ABOUT: &str =
    "The user has chosen this part of what was said, and the message that follows is about it:";

/// Runs a conversation until it is closed.
pub async fn converse(agent: Arc<Agent>, open: OpenConversation, line: HostLine) -> anyhow::Result<()> {
    let HostLine { mut commands, reports, servers } = line;
    let name = agent.spec.name.clone();
    let (had_a_name, config) = (open.handle.is_some(), open.config.clone());
    let servers = ReadServers::new(servers).await?;
    let opened = tokio::select! {
        opened = AcpConversation::open(&agent, &open, &reports, &servers) => opened,
        () = closed(&mut commands) => return Ok(()),
    };
    let described = Event::Described(Box::new(agent.self_description()));
    match opened {
        Ok((mut conversation, used, early)) => {
            conversation.events.push(described);
            conversation.events.extend(conversation.servers.report());
            conversation.open_with(config, had_a_name, used);
            for update in early {
                conversation.updated(&update);
            }
            let ended = conversation.serve(commands, reports).await;
            ended.with_context(|| format!("the agent `{name}` has ended unexpectedly"))
        }
        Err(error) => {
            reports.report(described).await;
            // The agent may repeat what it was given.
            let mut reason = servers.redact(format!("the agent `{name}`: {error:#}"));
            let kind = if error.is::<login::LoginRequired>() {
                reports.report(Event::LoginRequired).await;
                reason = format!("{reason}. {}", agent.login_advice());
                OpenFailure::LoginRequired
            } else {
                OpenFailure::Unavailable
            };
            reports.report(Event::OpenFailed { kind, reason }).await;
            Ok(())
        }
    }
}

async fn closed(commands: &mut mpsc::UnboundedReceiver<Command>) {
    while !matches!(commands.recv().await, None | Some(Command::Close)) {}
}

struct AcpConversation {
    agent: Arc<Agent>,
    chat: ChatKey,
    running: Arc<RunningAgent>,
    _own: Option<DedicatedProcess>,
    receiver: PeerReceiver,
    session: AcpSession,
    tokens: Tokens,
    settings: Settings,
    calls: Calls,
    notes: UpdateNotes,
    workspace: Workspace,
    client_tools: ClientTools,
    servers: GivenServers,
    run: Option<PromptRun>,
    own_turns: OwnTurns,
    events: EventQueue,
}

enum Next {
    Hear,
    Leave,
}

impl AcpConversation {
    async fn serve(
        &mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        reports: ReportSender,
    ) -> anyhow::Result<()> {
        loop {
            self.events.report_what_there_is_room_for(&reports, &self.calls);
            let deadline = self.deadline();
            let setting = self.settings.deadline();
            let background = self.own_turns.background_until();
            let next = tokio::select! {
                biased;
                command = commands.recv() => match command {
                    None | Some(Command::Close) => {
                        self.close();
                        return Ok(());
                    }
                    Some(command) => self.obey(command),
                },
                () = self.events.edits_found() => Next::Hear,
                room = reports.reserve(), if self.events.is_ready() => {
                    let Some(room) = room else { return Ok(()) };
                    self.events.report_next(room, &self.calls);
                    Next::Hear
                }
                () = self.workspace.terminals.settled(), if !self.workspace.terminals.are_quiet() => {
                    self.answer_settled();
                    Next::Hear
                }
                Some(done) = self.workspace.files.done() => {
                    self.done(done);
                    Next::Hear
                }
                () = self.workspace.terminals.due(), if self.events.is_empty() && !self.workspace.terminals.are_quiet() => {
                    self.show_terminals();
                    Next::Hear
                }
                message = self.receiver.recv(), if self.may_receive() && self.workspace.files.have_room() => match message {
                    Some(message) => self.receive(message),
                    None if self.own_turns.note_agent_end() => Next::Hear,
                    None => self.agent_has_ended().await?,
                },
                event = self.client_tools.next_event(), if self.may_receive() => self.handle_tool_event(event),
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => self.time_is_up(),
                () = sleep_until(setting.unwrap_or_else(Instant::now)), if setting.is_some() => {
                    self.setting_timed_out()
                }
                () = sleep_until(background.unwrap_or_else(Instant::now)), if background.is_some() => {
                    self.drop_overdue_background()
                }
            };
            if matches!(next, Next::Leave) {
                break;
            }
        }
        // Report the remaining events; nothing follows them.
        self.events.push(if self.settings.is_opening() {
            let reason = "the conversation was closed before it was open".to_owned();
            Event::OpenFailed { kind: OpenFailure::Unavailable, reason }
        } else {
            Event::Left
        });
        while let Some(event) = self.events.pop() {
            reports.report(event).await;
        }
        Ok(())
    }

    /// Returns the time at which the run needs attention even if no message arrives.
    fn deadline(&self) -> Option<Instant> {
        let limit = self.run.as_ref()?.deadline();
        limit.into_iter().chain(self.silent_at()).min()
    }

    fn obey(&mut self, command: Command) -> Next {
        self.note_activity();
        match self.after_settings(command) {
            Ok(command) => self.obey_at_once(command),
            Err(next) => next,
        }
    }

    fn obey_at_once(&mut self, command: Command) -> Next {
        let current = self.run.as_ref().map(|run| run.id);
        match command {
            Command::StartTurn { run, message, attached } => return self.start(run, &message, &attached),
            Command::ResumeTurn { run, message, attached, so_far, .. } => {
                return self.resume(run, &message, &attached, &so_far);
            }
            Command::OwnTurn { run } => return self.begin_own(run),
            Command::Cancel { run } if current == Some(run) => self.cancel(),
            Command::Permission { run, tool_call_id, option, approved } if current == Some(run) => {
                self.decided(&tool_call_id, option, approved);
            }
            Command::Answer { run, request_id, response, answers } if current == Some(run) => {
                self.answered_by_user(&request_id, response, &answers);
            }
            Command::ToolResult { run, tool_call_id, result } if current == Some(run) => {
                self.finish_tool_call(&tool_call_id, &result);
            }
            Command::Steer { run, id, message, attached } if current == Some(run) => {
                self.steer(id, &message, &attached);
            }
            Command::ClientTools { tools } => self.offer_client_tools(tools),
            Command::Tokens(tokens) => self.tokens = tokens,
            Command::McpServers { servers, restart } => return self.change_servers(servers, restart),
            Command::Background { terminal } => {
                self.workspace.terminals.let_go_on(&terminal);
                self.answer_settled();
            }
            Command::WorkIn { directories } => {
                // The agent receives its folders only when the session is opened or resumed.
                self.session.moved = true;
                self.workspace.work_in(&directories);
            }
            command => tracing::debug!(?command, "a command of the host was ignored: its turn is over"),
        }
        Next::Hear
    }

    fn start(&mut self, run: RunId, message: &Message, attached: &[Transcript]) -> Next {
        let prompt = self.prompt_of(None, message, attached);
        self.begin(run, prompt)
    }

    fn begin(&mut self, run: RunId, mut prompt: Prompt) -> Next {
        let login = &self.running.login;
        let is_left = || self.running.is_superseded() || self.running.end_for_login(0);
        if login.is_needed() && (login.can_be_helped(&self.tokens) || is_left()) {
            // Opening the session again logs in, or starts the agent anew.
            return Next::Leave;
        }
        let must_reopen =
            !self.session.moved && (self.must_reopen_for_tools() || self.must_reopen_for_servers());
        if must_reopen {
            self.leave_for_reopening();
            return Next::Leave;
        }
        if self.session.moved {
            self.close();
            return Next::Leave;
        }
        let Some(used) = self.running.lease() else {
            // The agent is being stopped; the turn starts again after that.
            return Next::Leave;
        };
        let mut blocks: Vec<ContentBlock> = Vec::new();
        let Introduction { transcript, selection } = self.session.note_prompt();
        if let Some(transcript) = transcript {
            blocks.push(transcript.as_str().into());
            self.events.push(Event::Turn(run, TurnEvent::Notice(TOLD_ANEW.to_owned())));
        }
        if let Some(selection) = selection {
            blocks.push(format!("{ABOUT}\n\n{selection}").as_str().into());
        }
        prompt.prepend(blocks);
        let Prompt { blocks, attachments } = prompt;
        let user_messages = UserMessages::of_prompt(&blocks);
        let request = send_prompt(&self.receiver, &self.session.id, blocks);
        let origin = RunOrigin::Prompt { request, attachments };
        let mut run = PromptRun::new(run, origin, Some(used), self.agent.spec.turn_limit);
        run.user_messages = user_messages;
        self.run = Some(run);
        self.replay_held()
    }

    fn cancel(&mut self) {
        self.withdraw(None);
        // Further events of the run are of no interest.
        self.events.drop_turn_events();
        self.end_cancelled_own_turn();
    }

    /// Asks the agent to cancel its work. `exceeded` is the time limit that the turn has exceeded.
    fn withdraw(&mut self, exceeded: Option<Duration>) {
        let Some(run) = self.run.as_mut().filter(|run| !run.is_cancelled()) else { return };
        let is_working = run.goes_on();
        run.cancel(self.agent.spec.cancel_limit, exceeded);
        self.workspace.terminals.kill_those_of(run.id);
        self.refuse_all_held();
        self.answer_unanswered(true);
        self.refuse_client_tools("the turn was cancelled");
        if is_working {
            self.receiver.notify("session/cancel", &CancelNotification::new(self.session.id.clone()));
        }
    }

    /// Cancels an overdue turn, or ends an agent that has not ended a cancelled one in time. The
    /// deadline is extended while the host does not read the agent's output.
    fn time_is_up(&mut self) -> Next {
        if self.is_silent() {
            self.end(TurnEnd::Complete);
            return self.settle();
        }
        let Some(run) = &mut self.run else { return Next::Hear };
        if !run.is_cancelled() {
            self.withdraw(self.agent.spec.turn_limit);
            self.end_cancelled_own_turn();
        } else if !run.extend_cancelled(&self.running.connection, self.agent.spec.cancel_limit) {
            tracing::warn!(
                agent = self.agent.spec.name,
                "the agent is stopped: it did not cancel its turn in time"
            );
            self.running.end("it did not end a cancelled turn in time, and was stopped");
        }
        Next::Hear
    }

    /// Closes the session, to open it again.
    fn leave_for_reopening(&mut self) {
        if self.session.is_new() {
            // The session has no turns, so a new one is equivalent.
            self.events.push(Event::Handle(None));
        }
        self.close();
    }

    fn receive(&mut self, message: PeerMessage) -> Next {
        if self.take_failed_server(&message) {
            return Next::Hear;
        }
        let Some(message) = self.hold_for_turn(message) else { return Next::Hear };
        match message {
            PeerMessage::Update(update) => {
                self.note_background_update(&update);
                self.updated(&update);
                if self.note_own_end(&update) {
                    self.end(TurnEnd::Complete);
                    return self.settle();
                }
            }
            PeerMessage::Request { id, method, params } => self.asked(id, &method, &params),
            PeerMessage::Notified { method, params } => return self.notified(&method, &params),
            PeerMessage::Withdrawn(request) if self.question_was_withdrawn(&request) => {}
            PeerMessage::Withdrawn(request) => {
                let events = self.calls.withdrawn(&request);
                self.workspace.terminals.withdrawn(&request);
                self.receiver.answer(&request, Err(RequestError::Withdrawn));
                self.send_to_host(events);
            }
            PeerMessage::Answer(id, answer) => {
                if self.run.as_ref().is_some_and(|run| run.is_prompt(id) && !run.is_answered()) {
                    if self.has_forgotten(&answer) {
                        // The turn starts again when the session has been resumed.
                        self.run = None;
                        return Next::Leave;
                    }
                    if let Some(next) = self.retry_without_attachments(&answer) {
                        return next;
                    }
                    self.answered(answer);
                } else if !self.steering_answered(id, &answer) {
                    self.setting_answered(id, &answer);
                }
                return self.settle();
            }
            PeerMessage::Called(called) => self.handle_tool_call(*called),
            PeerMessage::Drained(id) => {
                let run = self.run.as_ref().filter(|run| run.is_prompt(id) && run.is_answered());
                if let Some(end) = run.and_then(PromptRun::outcome) {
                    self.end(end);
                    return self.settle();
                }
            }
        }
        Next::Hear
    }

    fn queue_event(&mut self, event: TurnEvent) {
        self.show_user_message();
        let Some(run) = self.run.as_mut().filter(|run| !run.is_cancelled()) else { return };
        run.has_reported |= !matches!(event, TurnEvent::Usage(_) | TurnEvent::Activity(_));
        let of_terminals = self.calls.terminal_events_for(&event);
        let is_own = run.is_own();
        let event = Event::Turn(run.id, event);
        if !is_own {
            self.note_introduced();
        }
        self.events.extend(of_terminals);
        self.events.push(event);
    }

    fn send_to_host(&mut self, events: Vec<TurnEvent>) {
        for event in events {
            self.queue_event(event);
        }
    }

    fn close(&mut self) {
        self.answer_unanswered(true);
        if self.run.as_ref().is_some_and(PromptRun::goes_on) {
            self.receiver.notify("session/cancel", &CancelNotification::new(self.session.id.clone()));
        }
        if self.running.capabilities.session_capabilities.close.is_some() {
            self.receiver.request("session/close", &CloseSessionRequest::new(self.session.id.clone()));
        }
    }
}

/// Sends a prompt. Returns the id of the request.
fn send_prompt(receiver: &PeerReceiver, session: &SessionId, blocks: Vec<ContentBlock>) -> u64 {
    receiver.request("session/prompt", &PromptRequest::new(session.clone(), blocks))
}
