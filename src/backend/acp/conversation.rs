//! A chat's conversation with an agent: one ACP session.
//!
//! In reading order: this file (its life: commands, prompts, cancelling, the end of a turn), `opening` (how it comes
//! to be), `settings` (how the session is configured), `resuming` (going on with a turn that was cut), `updates` (what
//! the agent tells), `requests` (what the agent asks).
//!
//! Owns: one prompt at a time, and what ends it.
//! Never: waits without hearing a cancellation.

mod opening;
mod requests;
mod resuming;
mod settings;
mod updates;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::{
    CancelNotification, CloseSessionRequest, ContentBlock, PromptRequest, PromptResponse, SessionId,
    StopReason,
};
use ahp_types::state::{Message, UsageInfo};
use anyhow::{bail, Context};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{sleep_until, Instant};

pub(super) use self::opening::ask;
use self::opening::refused;
use self::settings::Settings;
use super::agent::{Agent, Running, Use};
use super::calls::Calls;
use super::content;
use super::login;
use super::peer::{Ear, Failure, Said};
use crate::backend::{Line, Reports};
use crate::host::effects::{
    Command, Event, OpenConversation, RunId, SelfDescription, TextKind, Tokens, Transcript, TurnEnd,
    TurnEvent,
};

/// JSON-RPC: no such method.
const METHOD_NOT_FOUND: i64 = -32601;
/// JSON-RPC: the parameters do not fit.
const INVALID_PARAMS: i64 = -32602;
/// JSON-RPC: the request was withdrawn.
const WITHDRAWN: i64 = -32800;

/// How often it is looked whether an agent that we do not read is read again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What the user sees when the agent has to be told what was said before.
const TOLD_ANEW: &str = "The agent did not remember this conversation and was told what had been said in it.";

/// What the agent is told before the part that a side chat is about.
const ABOUT: &str =
    "The user has chosen this part of what was said, and the message that follows is about it:";

/// Runs a conversation until it is closed.
///
/// # Errors
/// When the agent dies during a turn: how it did.
pub async fn converse(agent: Arc<Agent>, open: OpenConversation, line: Line) -> anyhow::Result<()> {
    let Line { mut commands, reports } = line;
    let name = agent.spec.name.clone();
    let (had_a_name, config) = (open.handle.is_some(), open.config.clone());
    let opened = tokio::select! {
        opened = Conversation::open(&agent, &open) => opened,
        () = closed(&mut commands) => return Ok(()),
    };
    let protected_resources = agent.ways().map(|ways| login::resources(&ways));
    let of_itself = SelfDescription { protected_resources, ..SelfDescription::default() };
    let described = Event::Described(Box::new(of_itself));
    match opened {
        Ok((mut conversation, used)) => {
            conversation.pending.push_back(described);
            conversation.open_with(config, had_a_name, used);
            for update in std::mem::take(&mut conversation.early) {
                conversation.updated(&update);
            }
            let ended = conversation.serve(commands, reports).await;
            ended.with_context(|| format!("the agent `{name}` has died"))
        }
        Err(error) => {
            reports.report(described).await;
            if error.is::<login::Required>() {
                reports.report(Event::LoginRequired).await;
            }
            reports.report(Event::OpenFailed { reason: format!("the agent `{name}`: {error:#}") }).await;
            Ok(())
        }
    }
}

/// Waits until the conversation is closed.
async fn closed(commands: &mut mpsc::UnboundedReceiver<Command>) {
    while !matches!(commands.recv().await, None | Some(Command::Close)) {}
}

struct Conversation {
    agent: Arc<Agent>,
    running: Arc<Running>,
    ear: Ear,
    session: SessionId,
    /// What the agent said of the session before we knew of it.
    early: Vec<Box<RawValue>>,
    /// What the agent has to be told before the next prompt, because it does not remember it.
    transcript: Option<String>,
    /// The part of what was said that the conversation is about, until the agent has been told.
    selection: Option<String>,
    /// The agent has just made the session: it has heard nothing of what was said in the chat.
    is_new: bool,
    /// The host does not know the session's id yet, because the agent does not know what was said.
    unnamed: bool,
    /// What clients have pushed for logging in to the agent.
    tokens: Tokens,
    /// It is to work in other folders than it was told.
    moved: bool,
    settings: Settings,
    calls: Calls,
    run: Option<Run>,
    /// What is to be reported, in order. While there is any, the agent is not heard.
    pending: VecDeque<Event>,
}

struct Run {
    id: RunId,
    /// The prompt that the agent has not answered.
    prompt: u64,
    _use: Use,
    /// When its time is up, if it has a limit.
    deadline: Option<Instant>,
    /// By when it must have been given up, once it was cancelled.
    cancelled: Option<Instant>,
    /// It was cancelled because its time was up.
    overdue: bool,
    usage: UsageInfo,
    /// What text goes on.
    speaking: Option<(TextKind, Option<String>)>,
    /// What the user has added, for when the agent is done with what it does.
    steering: VecDeque<(String, Message, Vec<Transcript>)>,
}

/// What a conversation does next.
enum Next {
    Hear,
    Leave,
}

impl Conversation {
    async fn serve(
        &mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        reports: Reports,
    ) -> anyhow::Result<()> {
        loop {
            let deadline = self.run.as_ref().and_then(|run| run.cancelled.or(run.deadline));
            let setting = self.settings.deadline();
            let next = tokio::select! {
                biased;
                command = commands.recv() => match command {
                    None | Some(Command::Close) => {
                        self.close();
                        return Ok(());
                    }
                    Some(command) => self.obey(command),
                },
                room = reports.room(), if !self.pending.is_empty() => {
                    let Some(room) = room else { return Ok(()) };
                    if let Some(event) = self.pending.pop_front() {
                        room.report(event);
                    }
                    Next::Hear
                }
                said = self.ear.hear(), if self.pending.is_empty() => match said {
                    Some(said) => self.hear(said),
                    None => self.agent_has_ended().await?,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    self.time_is_up();
                    Next::Hear
                }
                () = sleep_until(setting.unwrap_or_else(Instant::now)), if setting.is_some() => {
                    self.asked_for_too_long()
                }
            };
            if matches!(next, Next::Leave) {
                break;
            }
        }
        // What is left to be told, and that nothing follows.
        self.pending.push_back(Event::Left);
        while let Some(event) = self.pending.pop_front() {
            reports.report(event).await;
        }
        Ok(())
    }

    fn obey(&mut self, command: Command) -> Next {
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
            Command::Cancel { run } if current == Some(run) => self.cancel(),
            // Only a session that is taken up is told its folders.
            Command::WorkIn { .. } => self.moved = true,
            Command::Permission { run, tool_call_id, option, approved } if current == Some(run) => {
                self.decided(&tool_call_id, option, approved);
            }
            Command::Steer { run, id, message, attached } if current == Some(run) => {
                if let Some(run) = &mut self.run {
                    run.steering.push_back((id, message, attached));
                }
            }
            Command::Tokens(tokens) => self.tokens = tokens,
            command => tracing::debug!(?command, "a command that does not fit the turn was ignored"),
        }
        Next::Hear
    }

    fn start(&mut self, run: RunId, message: &Message, attached: &[Transcript]) -> Next {
        let blocks = content::prompt(message, attached, &self.running.capabilities.prompt_capabilities);
        self.begin(run, blocks)
    }

    fn begin(&mut self, run: RunId, request: Vec<ContentBlock>) -> Next {
        let login = &self.running.login;
        if login.is_needed() && login.can_be_helped(&self.tokens) {
            // Opening it again does that.
            return Next::Leave;
        }
        if self.moved {
            self.close();
            return Next::Leave;
        }
        let Some(used) = self.running.begin_use() else {
            // It is being stopped: the turn is started again when it has been.
            return Next::Leave;
        };
        let mut blocks: Vec<ContentBlock> = Vec::new();
        if let Some(transcript) = self.transcript.take() {
            blocks.push(transcript.as_str().into());
            self.pending.push_back(Event::Turn(run, TurnEvent::Notice(TOLD_ANEW.to_owned())));
        }
        if let Some(selection) = self.selection.take() {
            blocks.push(format!("{ABOUT}\n\n{selection}").as_str().into());
        }
        blocks.extend(request);
        let prompt = self.prompt(blocks);
        self.is_new = false;
        self.run = Some(Run {
            id: run,
            prompt,
            _use: used,
            deadline: self.agent.spec.turn_limit.map(|limit| Instant::now() + limit),
            cancelled: None,
            overdue: false,
            usage: UsageInfo {
                input_tokens: None,
                output_tokens: None,
                model: None,
                cache_read_tokens: None,
                meta: None,
            },
            speaking: None,
            steering: VecDeque::new(),
        });
        Next::Hear
    }

    fn prompt(&self, blocks: Vec<ContentBlock>) -> u64 {
        self.ear.request("session/prompt", &PromptRequest::new(self.session.clone(), blocks))
    }

    fn cancel(&mut self) {
        self.withdraw();
        // Nobody wants to hear of the run any more.
        self.pending.retain(|event| !matches!(event, Event::Turn(..)));
    }

    /// Has the agent give up what it does.
    fn withdraw(&mut self) {
        let limit = self.agent.spec.cancel_limit;
        let Some(run) = self.run.as_mut().filter(|run| run.cancelled.is_none()) else { return };
        run.cancelled = Some(Instant::now() + limit);
        run.steering.clear();
        self.answer_unanswered(true);
        self.ear.notify("session/cancel", &CancelNotification::new(self.session.clone()));
    }

    /// The turn has taken too long, and is cancelled. Or it was, and the agent goes on with it: it is ended. While we
    /// do not hear it, it cannot be blamed.
    fn time_is_up(&mut self) {
        let Some(run) = &mut self.run else { return };
        if run.cancelled.is_none() {
            run.overdue = true;
            return self.withdraw();
        }
        run.cancelled = Some(Instant::now() + LOOK_AGAIN);
        if !self.running.connection.is_held_up() {
            tracing::warn!(agent = self.agent.spec.name, "an agent that did not cancel its turn is stopped");
            self.running.end("it did not give up a turn that was cancelled, and was stopped");
        }
    }

    fn hear(&mut self, said: Said) -> Next {
        match said {
            Said::Update(update) => self.updated(&update),
            Said::Request { id, method, params } => self.asked(id, &method, &params),
            Said::Withdrawn(request) => {
                let told = self.calls.withdrawn(&request);
                self.ear.answer(&request, Err((WITHDRAWN, "withdrawn")));
                self.tell_all(told);
            }
            Said::Answer(id, answer) => {
                if self.run.as_ref().is_some_and(|run| run.prompt == id) {
                    self.answered(answer);
                } else {
                    self.setting_answered(id, &answer);
                }
                return self.settle();
            }
        }
        Next::Hear
    }

    fn tell(&mut self, event: TurnEvent) {
        let Some(run) = self.run.as_ref().filter(|run| run.cancelled.is_none()) else { return };
        let event = Event::Turn(run.id, event);
        if std::mem::take(&mut self.unnamed) {
            self.name();
        }
        self.pending.push_back(event);
    }

    fn tell_all(&mut self, events: Vec<TurnEvent>) {
        for event in events {
            self.tell(event);
        }
    }

    /// The agent is done with a prompt. What the user has added meanwhile is the next, in the same turn.
    fn answered(&mut self, answer: Result<Box<RawValue>, Failure>) {
        let end = match answer {
            Ok(answer) => {
                self.agent.has_worked();
                match serde_json::from_str::<PromptResponse>(answer.get()) {
                    Ok(answer) => {
                        if let Some(usage) = answer.usage {
                            let count = |tokens: u64| i64::try_from(tokens).ok();
                            self.tell_usage(|known| {
                                known.input_tokens = count(usage.input_tokens);
                                known.output_tokens = count(usage.output_tokens);
                                known.cache_read_tokens = usage.cached_read_tokens.and_then(count);
                            });
                        }
                        ending(answer.stop_reason)
                    }
                    Err(error) => {
                        // It has answered, so it is done; why it stopped is not known.
                        tracing::warn!(agent = self.agent.spec.name, %error, "an answer to a prompt: {answer}");
                        TurnEnd::Complete
                    }
                }
            }
            Err(failure) if login::is_required(&failure) => {
                self.running.login.set_needed(true);
                self.pending.push_back(Event::LoginRequired);
                let message = refused("session/prompt", &failure).to_string();
                let resumable = self.can_be_taken_up();
                TurnEnd::Failed { kind: "authRequired".to_owned(), message, resumable }
            }
            Err(failure) => TurnEnd::Failed {
                kind: "agentError".to_owned(),
                message: failure.to_string(),
                resumable: false,
            },
        };
        let Some(run) = &mut self.run else { return };
        if run.cancelled.is_some() {
            let end = self.end_of_cancelled();
            return self.end(end);
        }
        match run.steering.pop_front() {
            Some((id, message, attached)) if end == TurnEnd::Complete => {
                run.speaking = None;
                let blocks =
                    content::prompt(&message, &attached, &self.running.capabilities.prompt_capabilities);
                let prompt = self.prompt(blocks);
                if let Some(run) = &mut self.run {
                    run.prompt = prompt;
                }
                self.tell(TurnEvent::Steered(id));
            }
            _ => self.end(end),
        }
    }

    /// How a run ends that was cancelled, by the user or because its time was up.
    fn end_of_cancelled(&self) -> TurnEnd {
        let limit = self.agent.spec.turn_limit.filter(|_| self.run.as_ref().is_some_and(|run| run.overdue));
        match limit {
            Some(limit) => TurnEnd::Failed {
                kind: "turnTimedOut".to_owned(),
                message: format!("the turn took longer than {limit:?}, which is its limit"),
                resumable: false,
            },
            None => TurnEnd::Cancelled,
        }
    }

    fn end(&mut self, end: TurnEnd) {
        self.answer_unanswered(true);
        self.calls.end_turn();
        if let Some(run) = self.run.take() {
            self.pending.push_back(Event::Turn(run.id, TurnEvent::Ended(end)));
        }
    }

    fn fail(&mut self, run: RunId, kind: &str, message: String) {
        let end = TurnEnd::Failed { kind: kind.to_owned(), message, resumable: false };
        self.pending.push_back(Event::Turn(run, TurnEvent::Ended(end)));
    }

    /// What the end of the agent is for the conversation: a turn that runs ends with it.
    async fn agent_has_ended(&mut self) -> anyhow::Result<Next> {
        let how = self.running.ended().await;
        match &self.run {
            Some(run) if run.cancelled.is_some() => self.end(self.end_of_cancelled()),
            Some(_) => bail!(how),
            None if self.settings.are_waited_for() => bail!(how),
            None => tracing::info!(agent = self.agent.spec.name, how, "an agent has ended between turns"),
        }
        Ok(Next::Leave)
    }

    /// The conversation is closed: the agent need not keep it in mind.
    fn close(&mut self) {
        self.answer_unanswered(true);
        if self.run.as_ref().is_some_and(|run| run.cancelled.is_none()) {
            self.ear.notify("session/cancel", &CancelNotification::new(self.session.clone()));
        }
        if self.running.capabilities.session_capabilities.close.is_some() {
            self.ear.request("session/close", &CloseSessionRequest::new(self.session.clone()));
        }
    }
}

fn ending(reason: StopReason) -> TurnEnd {
    let (kind, message) = match reason {
        StopReason::Cancelled => return TurnEnd::Cancelled,
        StopReason::MaxTokens => ("maxTokens", "the agent has said as much as it may"),
        StopReason::MaxTurnRequests => {
            ("maxTurnRequests", "the agent has asked its model as often as it may")
        }
        StopReason::Refusal => ("refusal", "the agent refuses to go on"),
        _ => return TurnEnd::Complete,
    };
    TurnEnd::Failed { kind: kind.to_owned(), message: message.to_owned(), resumable: false }
}
