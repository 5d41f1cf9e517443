//! A chat's conversation with an agent: one ACP session.
//!
//! In reading order: this file (its life: commands, prompts, cancelling, the end of a turn), `opening` (how it comes
//! to be), `updates` (what the agent tells), `requests` (what the agent asks), `questions`
//! (what it asks the user).
//!
//! Owns: one prompt at a time, and what ends it.
//! Never: waits without hearing a cancellation.

mod opening;
mod questions;
mod requests;
mod updates;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::{
    CancelNotification, CloseSessionRequest, ContentBlock, PromptRequest, PromptResponse, SessionId,
    StopReason,
};
use ahp_types::common::JsonObject;
use ahp_types::state::{FileEdit, Message, ToolResultContent, ToolResultFileEditContent, UsageInfo};
use anyhow::{bail, Context};
use serde_json::value::RawValue;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{sleep_until, Instant};

use self::opening::refused;
use self::questions::Questions;
use super::agent::{Agent, Own, Running, Use};
use super::calls::Calls;
use super::peer::{Ear, Failure, Said};
use super::{besides, content, edits};
use crate::backend::{Line, Reports};
use crate::host::effects::{
    Besides, Command, Event, OpenConversation, RunId, TextKind, Transcript, TurnEnd, TurnEvent,
};

/// ACP: the user must log in first.
const AUTH_REQUIRED: i64 = -32000;
/// JSON-RPC: no such method.
const METHOD_NOT_FOUND: i64 = -32601;
/// ACP: what is asked for is not there.
const RESOURCE_NOT_FOUND: i64 = -32002;
/// JSON-RPC: the parameters do not fit.
const INVALID_PARAMS: i64 = -32602;
/// JSON-RPC: the request was withdrawn.
const WITHDRAWN: i64 = -32800;

/// How often it is looked whether an agent that we do not read is read again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What the user sees when the agent has to be told what was said before.
const TOLD_ANEW: &str = "The agent did not remember this conversation and was told what had been said in it.";

/// Runs a conversation until it is closed.
///
/// # Errors
/// When the agent dies during a turn: how it did.
pub async fn converse(agent: Arc<Agent>, open: OpenConversation, line: Line) -> anyhow::Result<()> {
    let Line { mut commands, reports } = line;
    let name = agent.spec.name.clone();
    let opened = tokio::select! {
        opened = Conversation::open(&agent, open) => opened,
        () = closed(&mut commands) => return Ok(()),
    };
    match opened {
        Ok(mut conversation) => {
            conversation.pending.push_back(Event::Opened);
            conversation.pending.push_back(Event::Handle(conversation.session.to_string()));
            for update in std::mem::take(&mut conversation.early) {
                conversation.updated(&update);
            }
            let ended = conversation.serve(commands, reports).await;
            ended.with_context(|| format!("the agent `{name}` has died"))
        }
        Err(error) => {
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
    _own: Option<Own>,
    ear: Ear,
    session: SessionId,
    /// What the agent said of the session before we knew of it.
    early: Vec<Box<RawValue>>,
    /// What the agent has to be told before the next prompt, because it does not remember it.
    transcript: Option<String>,
    calls: Calls,
    /// What the agent says of its session besides the title.
    session_info: JsonObject,
    /// The last update of each kind that nobody knows.
    unknown_updates: JsonObject,
    run: Option<Run>,
    /// What is to be reported, in order. While there is any, the agent is not heard.
    pending: VecDeque<Event>,
    /// A prompt has been answered well: the agent knows the session, or has known it.
    is_known: bool,
    /// What is found out for the first of them.
    looking: Looking,
}

/// Finding out what the changes that are told with an event are changes of.
enum Looking {
    NotYet,
    For(Pin<Box<dyn Future<Output = Vec<FileEdit>> + Send>>),
    Done,
}

impl Looking {
    /// What was found; for ever not while nothing is looked for.
    async fn found(&mut self) -> Vec<FileEdit> {
        match self {
            Self::For(looking) => looking.await,
            Self::NotYet | Self::Done => std::future::pending().await,
        }
    }
}

struct Run {
    id: RunId,
    /// The prompt that the agent has not answered.
    prompt: u64,
    _use: Use,
    /// By when it must have been given up, once it was cancelled.
    cancelled: Option<Instant>,
    usage: UsageInfo,
    /// The user has refused a call.
    has_refused: bool,
    questions: Questions,
    /// What text goes on.
    speaking: Option<(TextKind, Option<String>)>,
    /// Something was told of it.
    told: bool,
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
            let deadline = self.run.as_ref().and_then(|run| run.cancelled);
            let next = tokio::select! {
                biased;
                command = commands.recv() => match command {
                    None | Some(Command::Close) => {
                        self.close();
                        return Ok(());
                    }
                    Some(command) => self.obey(command),
                },
                found = self.looking.found(), if matches!(self.looking, Looking::For(_)) => {
                    self.looking = Looking::Done;
                    if let Some(event) = self.pending.pop_front() {
                        self.pending.push_front(with_edits(event, found));
                    }
                    Next::Hear
                }
                room = reports.room(), if !self.pending.is_empty() && !matches!(self.looking, Looking::For(_)) => {
                    let Some(room) = room else { return Ok(()) };
                    if !self.looks() {
                        self.looking = Looking::NotYet;
                        if let Some(event) = self.pending.pop_front() {
                            room.report(event);
                        }
                    }
                    Next::Hear
                }
                said = self.ear.hear(), if self.pending.is_empty() => match said {
                    Some(said) => self.hear(said),
                    None => self.agent_has_ended().await?,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    self.cancelled_for_too_long();
                    Next::Hear
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

    /// Begins to find out what the first event that is to be reported needs; false when it needs nothing.
    fn looks(&mut self) -> bool {
        let changes = match (self.pending.front(), &self.looking) {
            (Some(Event::Turn(_, event)), Looking::NotYet) => self.calls.changes(event),
            _ => None,
        };
        let Some((diffs, moment)) = changes else { return false };
        self.looking = Looking::For(Box::pin(edits::find(diffs, moment)));
        true
    }

    fn obey(&mut self, command: Command) -> Next {
        let current = self.run.as_ref().map(|run| run.id);
        match command {
            Command::StartTurn { run, message, attached } => return self.start(run, &message, &attached),
            Command::ResumeTurn { run, .. } => {
                // No turn of an agent is ever said to be resumable.
                self.fail(run, "cannotResume", "this agent cannot go on with a turn".to_owned());
            }
            Command::Cancel { run } if current == Some(run) => self.cancel(),
            Command::Permission { run, tool_call_id, option, approved } if current == Some(run) => {
                self.decided(&tool_call_id, option, approved);
            }
            Command::Answer { run, request_id, response, answers } if current == Some(run) => {
                self.answered_by_user(&request_id, response, &answers);
            }
            Command::Steer { run, id, message, attached } if current == Some(run) => {
                if let Some(run) = &mut self.run {
                    run.steering.push_back((id, message, attached));
                }
            }
            command => tracing::debug!(?command, "a command that does not fit the turn was ignored"),
        }
        Next::Hear
    }

    fn start(&mut self, run: RunId, message: &Message, attached: &[Transcript]) -> Next {
        let Some(used) = self.running.begin_use() else {
            // It is being stopped: the turn is started again when it has been.
            return Next::Leave;
        };
        let mut blocks: Vec<ContentBlock> = Vec::new();
        if let Some(transcript) = self.transcript.take() {
            blocks.push(transcript.as_str().into());
            self.pending.push_back(Event::Turn(run, TurnEvent::Notice(TOLD_ANEW.to_owned())));
        }
        blocks.extend(content::prompt(message, attached, &self.running.capabilities.prompt_capabilities));
        let prompt = self.prompt(blocks);
        self.run = Some(Run {
            id: run,
            prompt,
            _use: used,
            cancelled: None,
            usage: UsageInfo {
                input_tokens: None,
                output_tokens: None,
                model: None,
                cache_read_tokens: None,
                meta: None,
            },
            has_refused: false,
            questions: Questions::default(),
            speaking: None,
            told: false,
            steering: VecDeque::new(),
        });
        Next::Hear
    }

    fn prompt(&self, blocks: Vec<ContentBlock>) -> u64 {
        self.ear.request("session/prompt", &PromptRequest::new(self.session.clone(), blocks))
    }

    fn cancel(&mut self) {
        let limit = self.agent.spec.cancel_limit;
        let Some(run) = self.run.as_mut().filter(|run| run.cancelled.is_none()) else { return };
        run.cancelled = Some(Instant::now() + limit);
        run.steering.clear();
        // Nobody wants to hear of the run any more.
        self.pending.retain(|event| !matches!(event, Event::Turn(..)));
        self.looking = Looking::NotYet;
        self.answer_unanswered(true);
        self.ear.notify("session/cancel", &CancelNotification::new(self.session.clone()));
    }

    /// The agent goes on with what was cancelled: it is ended. While we do not hear it, it cannot be blamed.
    fn cancelled_for_too_long(&mut self) {
        let Some(run) = &mut self.run else { return };
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
            Said::Withdrawn(request) if self.question_was_withdrawn(&request) => {}
            Said::Withdrawn(request) => {
                let told = self.calls.withdrawn(&request);
                self.ear.answer(&request, Err((WITHDRAWN, "withdrawn")));
                self.tell_all(told);
            }
            Said::Answer(id, answer) => {
                if self.run.as_ref().is_some_and(|run| run.prompt == id) {
                    if self.has_forgotten(&answer) {
                        // The turn is started again when the session has been taken up again.
                        self.run = None;
                        return Next::Leave;
                    }
                    self.answered(answer);
                }
            }
        }
        Next::Hear
    }

    fn tell(&mut self, event: TurnEvent) {
        if let Some(run) = self.run.as_mut().filter(|run| run.cancelled.is_none()) {
            run.told = true;
            self.pending.push_back(Event::Turn(run.id, event));
        }
    }

    fn tell_all(&mut self, events: Vec<TurnEvent>) {
        for event in events {
            self.tell(event);
        }
    }

    /// Whether the agent knew the session once and does not any more: it has done nothing with the prompt then.
    fn has_forgotten(&self, answer: &Result<Box<RawValue>, Failure>) -> bool {
        let Err(failure) = answer else { return false };
        let refused = matches!(failure.code, RESOURCE_NOT_FOUND | INVALID_PARAMS);
        let untouched = self.run.as_ref().is_some_and(|run| !run.told && run.cancelled.is_none());
        if self.is_known && refused && untouched {
            tracing::info!(agent = self.agent.spec.name, %failure, "a session that was forgotten is taken up again");
            return true;
        }
        false
    }

    /// The agent is done with a prompt. What the user has added meanwhile is the next, in the same turn.
    fn answered(&mut self, answer: Result<Box<RawValue>, Failure>) {
        let end = match answer {
            Ok(answer) => {
                self.agent.has_worked();
                self.is_known = true;
                match serde_json::from_str::<PromptResponse>(answer.get()) {
                    Ok(answer) => self.learn_from_answer(answer),
                    Err(error) => {
                        // It has answered, so it is done; why it stopped is not known.
                        tracing::warn!(agent = self.agent.spec.name, %error, "an answer to a prompt: {answer}");
                        TurnEnd::Complete
                    }
                }
            }
            Err(failure) if failure.code == AUTH_REQUIRED => {
                let message = refused("session/prompt", &failure).to_string();
                TurnEnd::Failed { kind: "authRequired".to_owned(), message, resumable: false }
            }
            Err(failure) => TurnEnd::Failed {
                kind: "agentError".to_owned(),
                message: failure.to_string(),
                resumable: false,
            },
        };
        let Some(run) = &mut self.run else { return };
        if run.cancelled.is_some() {
            return self.end(TurnEnd::Cancelled);
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

    /// Takes in what an answer to a prompt tells besides the end; how the turn has ended.
    fn learn_from_answer(&mut self, answer: PromptResponse) -> TurnEnd {
        let PromptResponse { stop_reason, usage, meta, .. } = answer;
        if usage.is_some() || meta.is_some() {
            self.tell_usage(|known| {
                if let Some(usage) = usage {
                    // Cannot fail: it is plain data.
                    let raw = serde_json::to_value(&usage).unwrap_or_default();
                    updates::learn_usage(known, &usage, raw);
                }
                besides::put(known.meta.get_or_insert_default(), besides::META, meta.map(Value::Object));
            });
        }
        match (stop_reason, &self.run) {
            // The user has not cancelled the turn, but refused a call; some agents end it like this then.
            (StopReason::Cancelled, Some(run)) if run.has_refused => TurnEnd::Complete,
            (reason, _) => ending(reason),
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
            Some(run) if run.cancelled.is_some() => self.end(TurnEnd::Cancelled),
            Some(_) => bail!(how),
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

/// An event, and the changes of files that it tells: in what a call has produced, behind what it says itself, or
/// besides its question.
fn with_edits(event: Event, edits: Vec<FileEdit>) -> Event {
    let Event::Turn(run, event) = event else { return event };
    let (mut event, mut besides) = match event {
        TurnEvent::With(event, besides) => (*event, besides),
        event => (event, Besides::default()),
    };
    match &mut event {
        TurnEvent::ToolDone { outcome, .. } => outcome.content.extend(edits.into_iter().map(|edit| {
            let FileEdit { before, after, diff } = edit;
            ToolResultContent::FileEdit(ToolResultFileEditContent { before, after, diff })
        })),
        _ => besides.edits = edits,
    }
    let event = if besides == Besides::default() { event } else { TurnEvent::With(Box::new(event), besides) };
    Event::Turn(run, event)
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
