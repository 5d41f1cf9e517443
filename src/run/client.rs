//! The client of a run: opens the session, starts the turns, and follows them.
//!
//! Owns: the mirrors of the session and the chat, the cancellation of a turn, `opening` (of the
//! session) and `collecting` (of the changes).
//! Never: writes to stdout, decides what an agent may, or knows how the host works inside.

mod collecting;
mod opening;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ahp::reducers::{
    apply_action_to_changeset, apply_action_to_chat, apply_action_to_root, apply_action_to_session,
};
use ahp_types::actions::{ActionEnvelope, StateAction};
use ahp_types::commands::SubscribeResult;
use ahp_types::common::ROOT_RESOURCE_URI;
use ahp_types::state::{
    ChangesetState, ChatState, ErrorInfo, ResponsePart, RootState, SessionState, SnapshotState, Turn,
    TurnState,
};
use anyhow::{anyhow, Context};
use serde_json::{json, Value};
use uuid::Uuid;

use super::arguments::{ChosenSession, RunJob};
use super::connection::{HostMessage, RequestFailure};
use super::decisions::{DecisionStep, RunDecisions};
use super::events::{RunEvent, RunEvents};
use super::printer::Printer;
use super::summary::{RunResult, RunSummary, TurnSummary, UsageSummary};
use super::RunStop;
use crate::files::uris::path_of;
use crate::os::paths::canonical;

/// Time for a cancelled turn to end.
const CANCELLED_WITHIN: Duration = Duration::from_secs(5);

/// Time for the changes of the turns to be known, after a cancellation.
const CHANGES_WITHIN: Duration = Duration::from_secs(10);

/// Kind of an agent's error that asks for a login.
const AUTH_REQUIRED: &str = "authRequired";

/// Advice to a person whose agent requires a login.
const LOGIN_ADVICE: &str = "log in with the agent's own program, or pass its key in the environment";

/// Client of a run.
#[derive(Debug)]
pub struct RunClient<'a> {
    job: &'a RunJob,
    events: RunEvents,
    printer: &'a mut Printer,
    summary: &'a mut RunSummary,
    client_id: String,
    /// Folder that the agent works in, as far as it is known.
    directory: PathBuf,
    root: Mirror<RootState>,
    session: Mirror<SessionState>,
    chat: Mirror<ChatState>,
    changeset: Mirror<ChangesetState>,
    /// Rejections of this client's actions, by their numbers.
    rejections: BTreeMap<i64, String>,
    decisions: RunDecisions<'a>,
    /// Reason for which the running turn is cancelled.
    cancels: Option<RunStop>,
    /// Set if the last cancellation was one that no client has asked for.
    is_cancelled_by_agent: bool,
    /// Set if a turn was cancelled by this client.
    has_cancelled: bool,
    /// Set if a second signal has come.
    leaves_at_once: bool,
    /// Set if the host has asked for a login.
    needs_login: bool,
    /// Set if the session was disposed of: no action on its channels follows.
    is_disposed: bool,
}

/// State of a channel, with its URI and the number of the last action in it.
#[derive(Debug)]
struct Mirror<T> {
    channel: String,
    state: Option<T>,
    seen: i64,
}

impl<T> Mirror<T> {
    fn new() -> Self {
        Self { channel: String::new(), state: None, seen: 0 }
    }

    fn set(&mut self, channel: &str, seen: i64, state: T) {
        *self = Self { channel: channel.to_owned(), state: Some(state), seen };
    }

    /// Applies an action on the channel; returns whether it is on this channel.
    fn apply(&mut self, envelope: &ActionEnvelope, reduce: impl Fn(&mut T, &StateAction)) -> bool {
        if envelope.channel != self.channel {
            return false;
        }
        let number = i64::try_from(envelope.server_seq).unwrap_or(i64::MAX);
        if let Some(state) = self.state.as_mut().filter(|_| number > self.seen) {
            self.seen = number;
            reduce(state, &envelope.action);
        }
        true
    }
}

impl Mirror<ChatState> {
    /// Returns the parts of a turn if it is the active one.
    fn parts_of(&self, turn: &str) -> &[ResponsePart] {
        let active = self.state.as_ref().and_then(|state| state.active_turn.as_ref());
        active.filter(|active| active.id == turn).map_or(&[], |active| &active.response_parts)
    }
}

impl<'a> RunClient<'a> {
    /// Creates the client of a job.
    pub fn new(
        job: &'a RunJob,
        events: RunEvents,
        printer: &'a mut Printer,
        summary: &'a mut RunSummary,
    ) -> Self {
        Self {
            job,
            events,
            printer,
            summary,
            client_id: format!("ahp-sidecar-run-{}", Uuid::new_v4()),
            root: Mirror::new(),
            session: Mirror::new(),
            chat: Mirror::new(),
            changeset: Mirror::new(),
            directory: job.directory.clone(),
            rejections: BTreeMap::new(),
            decisions: RunDecisions::new(job.policy.clone(), &job.answers),
            cancels: None,
            is_cancelled_by_agent: false,
            has_cancelled: false,
            leaves_at_once: false,
            needs_login: false,
            is_disposed: false,
        }
    }

    /// Runs all turns, and collects their changes if they are asked for.
    ///
    /// # Errors
    /// The reason why the turns are not complete.
    pub async fn run_all(&mut self) -> Result<(), RunStop> {
        self.initialize().await?;
        self.open_session().await?;
        self.check_model(self.job.session == ChosenSession::New).await?;
        let mut ended = Ok(());
        for prompt in &self.job.prompts {
            if let Some(loss) = self.printer.loss() {
                ended = Err(loss.stop());
            } else if let Some(stop) = self.cancels.take() {
                // The turn before was complete before it could be cancelled.
                ended = Err(stop);
            } else {
                ended = self.run_turn(prompt).await;
            }
            if ended.is_err() {
                break;
            }
        }
        let is_gone = self.leaves_at_once || matches!(ended, Err(RunStop::Gone(_)));
        if !is_gone && ended.is_ok() {
            ended = self.check_model(true).await;
        }
        let wants_changes = self.job.patch.is_some() || self.job.summary.is_some();
        if !wants_changes || is_gone {
            return ended;
        }
        if self.has_cancelled {
            self.events.expire_in(CHANGES_WITHIN);
        }
        match self.collect_changes().await {
            Ok(()) => {}
            Err(stop) if ended.is_ok() => return Err(stop),
            Err(RunStop::Output(error)) => self.printer.note(&format!("{error:#}")),
            Err(_) => self.summary.changes_unknown = Some("the run ended before they were known".to_owned()),
        }
        ended
    }

    /// Ends the connection. A second signal does not wait for the host.
    pub async fn close(self, ended: &Result<(), RunStop>) {
        if !matches!(ended, Err(RunStop::Gone(_))) && !self.leaves_at_once {
            self.events.close().await;
        }
    }

    async fn initialize(&mut self) -> Result<(), RunStop> {
        let params = json!({
            "channel": ROOT_RESOURCE_URI,
            "clientId": self.client_id,
            "clientInfo": { "name": "ahp-sidecar-run", "version": env!("CARGO_PKG_VERSION") },
            "protocolVersions": ["1.0.0"],
            "initialSubscriptions": [ROOT_RESOURCE_URI],
        });
        let opened = self.ask("initialize", params).await?.map_err(|error| anyhow!(error.message))?;
        let root = &opened["snapshots"][0];
        let state = serde_json::from_value(root["state"].clone()).context("the state of the root channel")?;
        self.root.set(ROOT_RESOURCE_URI, root["fromSeq"].as_i64().unwrap_or_default(), state);
        Ok(())
    }

    /// Sends a request, and handles other events until its answer.
    async fn ask(&mut self, method: &str, params: Value) -> Result<Result<Value, RequestFailure>, RunStop> {
        let id = self.events.request(method, params).await?;
        loop {
            match self.next().await? {
                Some(HostMessage::Answer(answered, result)) if answered == id => return Ok(result),
                _ => {}
            }
        }
    }

    /// Waits for the next event, and applies it to the mirrors; a request to leave is an error.
    async fn next(&mut self) -> Result<Option<HostMessage>, RunStop> {
        match self.events.next().await? {
            RunEvent::Host(message) => {
                self.receive(&message);
                Ok(Some(message))
            }
            RunEvent::Signal(name) => Err(RunStop::Signal(name)),
            RunEvent::Expired => Err(RunStop::TimedOut),
            RunEvent::Typed(_) => Ok(None),
            RunEvent::Tick => {
                if !self.decisions.is_asking() {
                    self.printer.draw();
                }
                Ok(None)
            }
        }
    }

    /// Applies a message to the mirrors, and prints it.
    fn receive(&mut self, message: &HostMessage) {
        let (envelope, text) = match message {
            HostMessage::Action(envelope, text) => (envelope, text),
            HostMessage::Notice(method, params) => {
                self.needs_login |= method == "auth/required";
                self.is_disposed |=
                    method == "root/sessionRemoved" && params["session"] == self.session.channel;
                if let Some(progress) = params["message"].as_str().filter(|_| method == "root/progress") {
                    self.printer.note(progress);
                }
                return;
            }
            HostMessage::Answer(..) => return,
        };
        if let Some(reason) = &envelope.rejection_reason {
            let own = envelope.origin.as_ref().filter(|origin| origin.client_id == self.client_id);
            self.rejections.extend(own.map(|origin| (origin.client_seq, reason.clone())));
            return;
        }
        self.root.apply(envelope, |state, action| {
            apply_action_to_root(state, action);
        });
        let of_session = self.session.apply(envelope, |state, action| {
            apply_action_to_session(state, action);
        });
        let of_chat = self.chat.apply(envelope, |state, action| {
            apply_action_to_chat(state, action);
        });
        self.changeset.apply(envelope, |state, action| {
            apply_action_to_changeset(state, action);
        });
        if of_chat && matches!(envelope.action, StateAction::ChatTurnCancelled(_)) {
            self.is_cancelled_by_agent = envelope.origin.is_none();
        }
        if of_session || of_chat {
            self.printer.action(&envelope.action, text);
        }
    }

    /// Checks that the session exists, and the chat once it was opened.
    ///
    /// # Errors
    /// When another client has disposed of one of them.
    fn check_not_disposed(&self) -> Result<(), RunStop> {
        let chats = self.session.state.iter().flat_map(|state| &state.chats);
        let has_chat =
            self.chat.state.is_none() || chats.map(|chat| &chat.resource).any(|it| *it == self.chat.channel);
        match self.is_disposed || !has_chat {
            true => Err(RunStop::Disposed),
            false => Ok(()),
        }
    }

    /// Subscribes to a channel, and returns its state with its number.
    async fn subscribe(
        &mut self,
        channel: &str,
    ) -> Result<Result<(SnapshotState, i64), RequestFailure>, RunStop> {
        let params = json!({ "channel": channel, "view": { "turns": 1 } });
        let result = match self.ask("subscribe", params).await? {
            Ok(result) => result,
            Err(error) => return Ok(Err(error)),
        };
        let result: SubscribeResult = serde_json::from_value(result).with_context(|| channel.to_owned())?;
        let snapshot = result.snapshot.with_context(|| format!("`{channel}` has no state"))?;
        Ok(Ok((snapshot.state, snapshot.from_seq)))
    }

    async fn ping(&mut self) -> Result<(), RunStop> {
        self.ask("ping", json!({ "channel": ROOT_RESOURCE_URI })).await.map(drop)
    }

    /// Has relative paths of the rules and of calls count below the folder that the agent works in:
    /// the first one of the chat, or else of the session.
    ///
    /// # Errors
    /// When a rule has a relative path, and the chat has no folder of this machine.
    fn follow_directory(&mut self) -> Result<(), RunStop> {
        let chosen = self.chat.state.as_ref().and_then(|chat| chat.working_directories.as_ref());
        let of_session = self.session.state.as_ref().and_then(|state| state.working_directories.as_ref());
        let first = chosen.or(of_session).and_then(|folders| folders.first());
        let directory = first.and_then(|uri| path_of(uri).ok());
        let directory = directory.map(|path| canonical(&path).unwrap_or(path));
        let policy = self.job.policy.below(directory.as_deref().unwrap_or(Path::new("")));
        self.decisions.set_policy(policy.map_err(|error| RunStop::Usage(format!("{error:#}")))?);
        if let Some(directory) = directory {
            self.summary.directory = directory.display().to_string();
            self.directory = directory;
        }
        Ok(())
    }

    async fn run_turn(&mut self, prompt: &str) -> Result<(), RunStop> {
        self.follow_directory()?;
        let turn = Uuid::new_v4().to_string();
        let start = Instant::now();
        let mut message = json!({ "text": prompt, "origin": { "kind": "user" } });
        if let Some(model) = &self.job.model {
            message["model"] = json!({ "id": model });
        }
        if self.summary.turns.is_empty() && !self.job.attachments.is_empty() {
            message["attachments"] = self.job.attachments.iter().map(|uri| attachment(uri)).collect();
        }
        let now = jiff::Timestamp::now().to_string();
        self.needs_login = false;
        let action =
            json!({ "type": "chat/turnStarted", "turnId": turn, "startedAt": now, "message": message });
        let chat = self.chat.channel.clone();
        let number = self.events.dispatch(&chat, action).await?;
        let ended = loop {
            if let Some(reason) = self.rejections.remove(&number) {
                return Err(self.refused(reason));
            }
            if let Some(ended) = self.ended_turn(&turn) {
                break ended;
            }
            self.check_not_disposed()?;
            if let Some(loss) = self.printer.loss().filter(|_| !self.has_cancelled) {
                self.cancel(&turn, loss.stop()).await?;
            }
            self.withdraw_rejected_decisions(&turn)?;
            self.decide(&turn).await?;
            match self.events.next().await? {
                RunEvent::Host(message) => self.receive(&message),
                RunEvent::Signal(name) => self.cancel(&turn, RunStop::Signal(name)).await?,
                RunEvent::Expired => self.cancel(&turn, RunStop::TimedOut).await?,
                RunEvent::Typed(line) => {
                    let steps = self.decisions.decide_as_typed(&turn, line.as_deref());
                    self.carry_out(steps).await?;
                }
                RunEvent::Tick if !self.decisions.is_asking() => self.printer.draw(),
                RunEvent::Tick => {}
            }
        };
        self.printer.end_turn();
        self.add_turn(ended, start)
    }

    /// Returns the reason why the host has refused a turn.
    fn refused(&self, reason: String) -> RunStop {
        if self.needs_login {
            return unusable(Some(ErrorInfo {
                error_type: AUTH_REQUIRED.to_owned(),
                message: reason,
                stack: None,
                meta: None,
            }));
        }
        RunStop::Failed(anyhow!("the host refuses the message: {reason}"))
    }

    /// Returns the turn if it has ended.
    fn ended_turn(&self, turn: &str) -> Option<Turn> {
        let state = self.chat.state.as_ref()?;
        if state.active_turn.as_ref().is_some_and(|active| active.id == turn) {
            return None;
        }
        state.turns.iter().rev().find(|ended| ended.id == turn).cloned()
    }

    /// Adds a turn to the summary; an end other than success is an error.
    fn add_turn(&mut self, turn: Turn, start: Instant) -> Result<(), RunStop> {
        let error = turn.response_parts.iter().rev().find_map(|part| match part {
            ResponsePart::Error(part) => Some(part.error.clone()),
            _ => None,
        });
        let (result, ended) = match turn.state {
            TurnState::Cancelled => {
                let other = match self.is_cancelled_by_agent {
                    true => RunStop::CancelledByAgent,
                    false => RunStop::CancelledElsewhere,
                };
                (RunResult::Cancelled, Err(self.cancels.take().unwrap_or(other)))
            }
            TurnState::Error => (RunResult::Error, Err(failed_turn(error))),
            _ => (RunResult::Completed, Ok(())),
        };
        let duration = turn.duration.and_then(|duration| u64::try_from(duration).ok());
        self.summary.add_turn(TurnSummary {
            answer: answer_of(&turn.response_parts),
            usage: turn.usage.as_ref().and_then(UsageSummary::of),
            id: turn.id,
            result,
            duration_ms: duration.unwrap_or_else(|| start.elapsed().as_millis() as u64),
        });
        ended
    }

    /// Asks the host to cancel the turn. A second reason ends the run at once.
    async fn cancel(&mut self, turn: &str, why: RunStop) -> Result<(), RunStop> {
        if let Some(first) = self.cancels.take() {
            // A second signal came, or the turn does not end in time.
            self.leaves_at_once = matches!(why, RunStop::Signal(_));
            return Err(if self.leaves_at_once { why } else { first });
        }
        if let RunStop::Signal(name) = &why {
            self.printer.note(&format!("{name}: the turn is being cancelled; another one leaves at once"));
        }
        self.cancels = Some(why);
        self.has_cancelled = true;
        self.decisions.stop_asking();
        self.events.expire_in(CANCELLED_WITHIN);
        let action = json!({ "type": "chat/turnCancelled", "turnId": turn, "duration": 0 });
        let chat = self.chat.channel.clone();
        self.events.dispatch(&chat, action).await.map(drop)
    }

    /// Decides about the calls and questions that wait.
    async fn decide(&mut self, turn: &str) -> Result<(), RunStop> {
        if self.cancels.is_some() {
            return Ok(());
        }
        let Self { decisions, events, chat, .. } = self;
        let has_person =
            || io::stdin().is_terminal() && io::stderr().is_terminal() && events.listen_to_terminal();
        let steps = decisions.decide(turn, chat.parts_of(turn), has_person);
        self.carry_out(steps).await
    }

    async fn carry_out(&mut self, steps: Vec<DecisionStep>) -> Result<(), RunStop> {
        for step in steps {
            match step {
                DecisionStep::Note(note) => self.printer.note(&note),
                DecisionStep::Send(mut decision) => {
                    let number = self.events.dispatch(&self.chat.channel, decision.action.take()).await?;
                    self.summary.add_decision(decision.summary.clone());
                    self.decisions.was_sent(number, *decision);
                }
            }
        }
        Ok(())
    }

    /// Takes back the decisions that the host has refused. What still waits is decided again.
    ///
    /// # Errors
    /// When the host takes no decision at all.
    fn withdraw_rejected_decisions(&mut self, turn: &str) -> Result<(), RunStop> {
        for (number, reason) in std::mem::take(&mut self.rejections) {
            match self.decisions.was_refused(number, &reason, self.chat.parts_of(turn)) {
                Some(Ok(summary)) => self.summary.remove_decision(&summary),
                Some(Err(why)) => return Err(RunStop::Failed(anyhow!(why))),
                None => {}
            }
        }
        Ok(())
    }
}

fn attachment(uri: &str) -> Value {
    let label = uri.rsplit('/').next().unwrap_or(uri);
    let label = percent_encoding::percent_decode_str(label).decode_utf8_lossy();
    json!({ "type": "resource", "label": label, "displayKind": "document", "uri": uri })
}

/// Returns the error of a turn: of the agent, or that it cannot be used.
fn failed_turn(error: Option<ErrorInfo>) -> RunStop {
    match error {
        Some(error) if error.error_type == AUTH_REQUIRED => unusable(Some(error)),
        Some(error) => RunStop::TurnFailed(error.error_type, error.message),
        None => RunStop::TurnFailed("unknown".to_owned(), "the turn ended with an error".to_owned()),
    }
}

fn unusable(error: Option<ErrorInfo>) -> RunStop {
    let (kind, message) = match error {
        Some(error) => (error.error_type, error.message),
        None => ("unknown".to_owned(), "the agent could not open a session".to_owned()),
    };
    let advice = if kind == AUTH_REQUIRED { format!(" ({LOGIN_ADVICE})") } else { String::new() };
    RunStop::Unusable(kind, message + &advice)
}

/// Returns the final answer of a turn: the text behind its last call, or else its last text.
fn answer_of(parts: &[ResponsePart]) -> String {
    let mut answer: Vec<&str> = Vec::new();
    for part in parts.iter().rev() {
        match part {
            ResponsePart::Markdown(part) if !part.content.trim().is_empty() => answer.push(&part.content),
            ResponsePart::ToolCall(_) | ResponsePart::InputRequest(_) if !answer.is_empty() => break,
            _ => {}
        }
    }
    answer.reverse();
    answer.concat().trim().to_owned()
}
