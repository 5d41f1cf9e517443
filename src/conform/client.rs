//! Client that judges: what it says, and what it receives.
//!
//! Owns: one connection with its requests, the recording of it, and the laws that hold for every
//! message: its form, and one answer per request and action.
//! Never: decides what to say.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ahp_types::actions::ActionEnvelope;
use ahp_types::commands::ReconnectResult;
use ahp_types::errors::ahp_error_codes::UNSUPPORTED_PROTOCOL_VERSION;
use ahp_types::errors::json_rpc_error_codes::METHOD_NOT_FOUND;
use anyhow::Context;
use serde_json::{json, Value};

use super::followed::FollowedChannels;
use super::mirror::ChannelMirror;
use super::stop::{broken, must, not_offered, CheckStop, Judged};
use super::summaries::HeldSummaries;
use super::types::{check_notice, check_result, SESSION_ADDED, SESSION_REMOVED, SUMMARY_CHANGED};
use crate::transcripts::form::TranscriptLine;
use crate::transcripts::process::{HostOutput, PlayedHost};
use crate::transcripts::recorder::{Recorder, Side};

/// URI of the root channel.
pub const ROOT: &str = "ahp-root://";

/// Maximum number of bytes that a host may send to a client during a check.
const RECEIVED_BYTES_MAX: usize = 256 << 20;

/// Time in which a host may send its last messages after the end of its input. A host need not exit
/// then, and is killed.
const CLOSING: Duration = Duration::from_secs(3);

/// Maximum length of a quoted message, in characters.
const QUOTED_CHARS: usize = 200;

/// Recording of a client, shared with the report.
pub type SharedRecorder = Rc<RefCell<Recorder<Vec<u8>>>>;

/// Error with which a host has answered.
#[derive(Debug, Clone)]
pub struct AnsweredError {
    /// Code of the error.
    pub code: i64,
    /// Error object, as it was answered.
    pub error: Value,
}

/// Answer to a request.
pub type HostAnswer = Result<Value, AnsweredError>;

/// Connected client.
#[derive(Debug)]
pub struct JudgeClient {
    host: PlayedHost,
    recorder: SharedRecorder,
    deadline: Instant,
    /// Id of the client in the protocol.
    pub id: String,
    last_request: u64,
    last_action: i64,
    /// Methods of requests that have no answer yet, by their ids as JSON text.
    asked: BTreeMap<String, String>,
    /// Number of answers without an id that may come, because what was said had none.
    answers_without_id_allowed: usize,
    received: usize,
    /// Messages that nothing has taken yet.
    inbox: VecDeque<Value>,
    /// Channels that it follows, with their states.
    pub channels: FollowedChannels,
    /// Summaries of sessions, as notifications of this connection have said them.
    pub summaries: HeldSummaries,
    /// Actions of this client that wait for their echo or rejection.
    pub pending: BTreeSet<i64>,
}

/// Returns a message for a report.
pub fn quoted(message: &Value) -> String {
    let text = message.to_string();
    let shown: String = text.chars().take(QUOTED_CHARS).collect();
    let cut = if shown.len() < text.len() { "…" } else { "" };
    format!("`{shown}{cut}`")
}

impl JudgeClient {
    /// Creates a client of a connected host.
    pub fn new(host: PlayedHost, id: String, recorder: SharedRecorder, deadline: Instant) -> Self {
        Self {
            host,
            recorder,
            deadline,
            id,
            last_request: 0,
            last_action: 0,
            asked: BTreeMap::new(),
            answers_without_id_allowed: 0,
            received: 0,
            inbox: VecDeque::new(),
            channels: FollowedChannels::default(),
            summaries: HeldSummaries::default(),
            pending: BTreeSet::new(),
        }
    }

    /// Goes on with another connection, as the same client that holds the same mirrors.
    pub fn resume_on(&mut self, host: PlayedHost, recorder: SharedRecorder) {
        let id = self.id.clone();
        let before = std::mem::replace(self, Self::new(host, id, recorder, self.deadline));
        self.channels = before.channels.on_another_connection();
        (self.last_request, self.last_action) = (before.last_request, before.last_action);
    }

    /// Ends the input, and takes what still comes.
    pub fn close(&mut self) -> Judged<()> {
        self.host.end();
        self.note(&TranscriptLine::End);
        let until = self.deadline.min(Instant::now() + CLOSING);
        loop {
            match self.host.next_line(until) {
                HostOutput::Line(line) => {
                    let message = self.take_line(line)?;
                    self.inbox.push_back(message);
                }
                HostOutput::End => break,
                HostOutput::Late => {
                    self.host.kill();
                    break;
                }
            }
        }
        // An exit status is the host's own matter.
        self.host.wait(self.deadline)?;
        Ok(())
    }

    /// Kills the process that this client speaks to.
    pub fn kill(&mut self) {
        self.host.kill();
        self.note(&TranscriptLine::Kill);
    }

    /// Returns the recording of this connection.
    pub fn recorder(&self) -> SharedRecorder {
        Rc::clone(&self.recorder)
    }

    /// Notes a step in the recording.
    pub fn note(&self, line: &TranscriptLine) {
        // A recording in memory does not fail.
        self.recorder.borrow_mut().note(line).unwrap_or_default();
    }

    /// Sends bytes in one write.
    pub fn say_bytes(&mut self, bytes: Vec<u8>) -> Judged<()> {
        self.recorder.borrow_mut().take(Side::Client, &bytes).context("the conversation is too long")?;
        let lines = bytes.split(|byte| *byte == b'\n');
        lines.for_each(|line| self.channels.note_line(line, self.last_request));
        must!(self.host.say(bytes), "the host has ended");
        Ok(())
    }

    /// Sends bytes that no client should send, which may be answered without an id.
    pub fn say_wrong(&mut self, bytes: Vec<u8>) -> Judged<()> {
        self.answers_without_id_allowed += 1;
        self.say_bytes(bytes)
    }

    /// Sends a message.
    pub fn say(&mut self, message: &Value) -> Judged<()> {
        self.say_bytes(format!("{message}\n").into_bytes())
    }

    /// Returns a request with the next id, which is then expected to be answered.
    pub fn prepare(&mut self, method: &str, params: Value) -> (u64, Value) {
        self.last_request += 1;
        let id = self.last_request;
        self.asked.insert(id.to_string(), method.to_owned());
        (id, json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
    }

    /// Expects an answer with this id, whose result is not judged.
    pub fn expect(&mut self, id: &Value) {
        self.asked.insert(id.to_string(), String::new());
    }

    /// Sends a request, and returns its answer.
    pub fn ask(&mut self, method: &str, params: Value) -> Judged<HostAnswer> {
        let (id, request) = self.prepare(method, params);
        self.say(&request)?;
        self.answer_to(&json!(id))
    }

    /// Sends a request whose answer must be a result.
    pub fn must_ask(&mut self, method: &str, params: Value) -> Judged<Value> {
        match self.ask(method, params)? {
            Ok(result) => Ok(result),
            Err(error) => broken(format!("`{method}` is answered with the error {}", quoted(&error.error))),
        }
    }

    /// Sends a request about something that a host need not have.
    pub fn try_ask(&mut self, method: &str, params: Value) -> Judged<HostAnswer> {
        let answer = self.ask(method, params)?;
        match &answer {
            Err(error) if error.code == i64::from(METHOD_NOT_FOUND) => {
                Err(CheckStop::NotOffered(format!("`{method}` is not served")))
            }
            _ => Ok(answer),
        }
    }

    /// Waits for the answer to the request with this id.
    pub fn answer_to(&mut self, id: &Value) -> Judged<HostAnswer> {
        let what = format!("an answer to the request {id}");
        let answer =
            self.wait_for(&what, |message| message.get("method").is_none() && message["id"] == *id)?;
        Ok(answered(&answer))
    }

    /// Waits for a message, and takes it out of those that have come.
    pub fn wait_for(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Judged<Value> {
        if let Some(at) = self.inbox.iter().position(&wanted) {
            return Ok(self.inbox.remove(at).unwrap_or_default());
        }
        loop {
            let Some(message) = self.read(what)? else {
                return broken(format!("the host has ended before it sent {what}"));
            };
            if wanted(&message) {
                return Ok(message);
            }
            self.inbox.push_back(message);
        }
    }

    /// Takes a message out of those that have come.
    pub fn take(&mut self, wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        let at = self.inbox.iter().position(wanted)?;
        self.inbox.remove(at)
    }

    /// Waits for the answer to a `ping`: all that was said before has been read by then.
    pub fn sync(&mut self) -> Judged<()> {
        self.must_ask("ping", json!({ "channel": ROOT })).map(drop)
    }

    /// Asks for a change of a channel's state, and returns the number of the action.
    pub fn dispatch(&mut self, channel: &str, action: Value) -> Judged<i64> {
        self.last_action += 1;
        let seq = self.last_action;
        self.pending.insert(seq);
        let params = json!({ "channel": channel, "clientSeq": seq, "action": action });
        self.say(&json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params }))?;
        Ok(seq)
    }

    /// Asks for a change, and waits for its echo or rejection.
    pub fn dispatch_and_wait(&mut self, channel: &str, action: Value) -> Judged<Value> {
        let what = format!("the echo of `{}`", action["type"].as_str().unwrap_or_default());
        let seq = self.dispatch(channel, action)?;
        let id = self.id.clone();
        self.wait_for(&what, |message| is_echo(message, &id, seq))
    }

    /// Asks for a change that a host must accept, and returns its echo.
    pub fn change(&mut self, channel: &str, action: Value) -> Judged<Value> {
        let echo = self.dispatch_and_wait(channel, action)?;
        must!(
            echo["params"].get("rejectionReason").is_none(),
            "a valid action is rejected: {}",
            quoted(&echo["params"])
        );
        Ok(echo)
    }

    /// Opens the connection, and follows these channels from the first answer on.
    pub fn initialize(&mut self, versions: &[String], channels: &[&str]) -> Judged<Value> {
        let params = json!({
            "channel": ROOT, "clientId": self.id, "protocolVersions": versions,
            "initialSubscriptions": channels,
        });
        let result = match self.ask("initialize", params)? {
            Ok(result) => result,
            Err(error) => return refused(versions, &error),
        };
        must!(result.is_object(), "the result of `initialize` is no object: {}", quoted(&result));
        let head = result["serverSeq"].as_i64();
        for snapshot in result["snapshots"].as_array().into_iter().flatten() {
            self.channels.store_snapshot(snapshot)?;
            must!(
                head.is_none_or(|head| snapshot["fromSeq"].as_i64().is_none_or(|from| from <= head)),
                "a snapshot of {} comes with the number {}: {}",
                snapshot["fromSeq"],
                result["serverSeq"],
                quoted(snapshot)
            );
        }
        self.channels.begin(head, result["protocolVersion"].as_str());
        Ok(result)
    }

    /// Opens the connection again as a client that was connected before; takes what it has missed.
    pub fn reconnect(&mut self, last_seen: i64) -> Judged<HostAnswer> {
        let channels: Vec<String> = self.channels.mirrors.keys().cloned().collect();
        let params = json!({
            "channel": ROOT, "clientId": self.id, "lastSeenServerSeq": last_seen, "subscriptions": channels,
        });
        let answer = self.ask("reconnect", params)?;
        let Ok(result) = &answer else { return Ok(answer) };
        match serde_json::from_value::<ReconnectResult>(result.clone()) {
            Err(error) => return broken(format!("the result of `reconnect` is no such result: {error}")),
            Ok(ReconnectResult::Replay(replay)) => {
                for (action, envelope) in
                    result["actions"].as_array().into_iter().flatten().zip(&replay.actions)
                {
                    let is_own = self.is_own(envelope);
                    self.channels.apply(envelope, action, is_own)?;
                }
                replay.missing.iter().for_each(|channel| drop(self.channels.mirrors.remove(channel)));
            }
            Ok(ReconnectResult::Snapshot(_)) => {
                self.channels.mirrors.clear();
                for snapshot in result["snapshots"].as_array().into_iter().flatten() {
                    self.channels.store_snapshot(snapshot)?;
                }
            }
        }
        Ok(answer)
    }

    /// Subscribes to a channel, and returns the answer.
    pub fn subscribe(&mut self, channel: &str) -> Judged<HostAnswer> {
        let params = json!({ "channel": channel, "delivery": { "maxLatencyMs": 0 } });
        let answer = self.ask("subscribe", params)?;
        if let Some(snapshot) = answer.as_ref().ok().and_then(|result| result.get("snapshot")) {
            must!(
                snapshot["resource"] == channel,
                "the snapshot of `{channel}` is that of {}",
                snapshot["resource"]
            );
            self.channels.store_snapshot(snapshot)?;
        }
        Ok(answer)
    }

    /// Subscribes to a channel that exists, and returns its snapshot.
    pub fn must_subscribe(&mut self, channel: &str) -> Judged<Value> {
        match self.subscribe(channel)? {
            Ok(result) if result.get("snapshot").is_some() => Ok(result["snapshot"].clone()),
            Ok(result) => broken(format!("`{channel}` has no snapshot: {}", quoted(&result))),
            Err(error) => broken(format!("`{channel}` cannot be subscribed to: {}", quoted(&error.error))),
        }
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, channel: &str) -> Judged<()> {
        self.channels.mirrors.remove(channel);
        let params = json!({ "channel": channel });
        self.say(&json!({ "jsonrpc": "2.0", "method": "unsubscribe", "params": params }))
    }

    /// Checks that the mirror of a channel equals a fresh snapshot, which replaces it.
    pub fn compare(&mut self, channel: &str) -> Judged<()> {
        let Some((held, shown)) = self.refresh(channel)? else { return Ok(()) };
        self.channels.check_same(channel, held, shown)
    }

    /// Replaces the mirror of a channel by a fresh snapshot; returns the mirror as it was when the
    /// snapshot came, and the new one.
    pub fn refresh(&mut self, channel: &str) -> Judged<Option<(ChannelMirror, ChannelMirror)>> {
        let params = json!({ "channel": channel, "delivery": { "maxLatencyMs": 0 } });
        let result = self.must_ask("subscribe", params)?;
        let Some(held) = self.channels.mirrors.get(channel).cloned() else { return Ok(None) };
        self.channels.store_snapshot(&result["snapshot"])?;
        Ok(self.channels.mirrors.get(channel).map(|shown| (held, shown.clone())))
    }

    /// Returns the state of a mirrored channel, as JSON; null if there is none.
    pub fn state_of(&self, channel: &str) -> Value {
        self.channels.state_of(channel)
    }

    /// Returns the next message, whether or not something has read it before.
    pub fn next(&mut self, what: &str) -> Judged<Value> {
        if let Some(message) = self.inbox.pop_front() {
            return Ok(message);
        }
        match self.read(what)? {
            Some(message) => Ok(message),
            None => broken(format!("the host has ended before it sent {what}")),
        }
    }

    /// Reads the next message, and checks what holds for each; `None` at the end of the output.
    fn read(&mut self, what: &str) -> Judged<Option<Value>> {
        match self.host.next_line(self.deadline) {
            HostOutput::Line(line) => self.take_line(line).map(Some),
            HostOutput::End => Ok(None),
            HostOutput::Late => broken(format!("the host has not sent {what} in time")),
        }
    }

    fn take_line(&mut self, line: String) -> Judged<Value> {
        self.received += line.len();
        must!(self.received <= RECEIVED_BYTES_MAX, "the host has sent more than {RECEIVED_BYTES_MAX} bytes");
        let recorded = self.recorder.borrow_mut().take(Side::Host, format!("{line}\n").as_bytes());
        recorded.context("the conversation is too long")?;
        let message: Value = match serde_json::from_str(&line) {
            Ok(message) => message,
            Err(_) => return broken(format!("a line of the host is no JSON: {}", quoted(&line.into()))),
        };
        self.check(&message)?;
        Ok(message)
    }

    fn check(&mut self, message: &Value) -> Judged<()> {
        must!(message.is_object(), "a message is no object: {}", quoted(message));
        must!(message["jsonrpc"] == "2.0", "a message lacks `\"jsonrpc\":\"2.0\"`: {}", quoted(message));
        match (message.get("method"), message.get("id")) {
            (Some(method), Some(id)) if method.is_string() => {
                let error = json!({ "code": METHOD_NOT_FOUND, "message": "not served" });
                self.say(&json!({ "jsonrpc": "2.0", "id": id, "error": error }))
            }
            (Some(method), None) if method.is_string() => {
                must!(
                    message["params"]["channel"].is_string(),
                    "a notification names no channel: {}",
                    quoted(message)
                );
                self.take_notification(method.as_str().unwrap_or_default(), &message["params"])
            }
            (Some(_), _) => broken(format!("a method is no text: {}", quoted(message))),
            (None, id) => self.check_answer(message, id),
        }
    }

    fn check_answer(&mut self, message: &Value, id: Option<&Value>) -> Judged<()> {
        let halves = ["result", "error"].map(|half| usize::from(message.get(half).is_some()));
        must!(
            halves.iter().sum::<usize>() == 1,
            "an answer has not exactly one of `result` and `error`: {}",
            quoted(message)
        );
        if let Some(error) = message.get("error") {
            let is_error = error["code"].is_i64() && error["message"].is_string();
            must!(is_error, "an error lacks its code or message: {}", quoted(message));
        }
        let Some(id) = id else { return broken(format!("an answer has no id: {}", quoted(message))) };
        if id.is_null() && message.get("error").is_some() && self.answers_without_id_allowed > 0 {
            self.answers_without_id_allowed -= 1;
            return Ok(());
        }
        let Some(method) = self.asked.remove(&id.to_string()) else {
            return broken(format!("an answer that no request waits for: {}", quoted(message)));
        };
        if let Some(answered) = id.as_u64() {
            self.channels.note_answer(answered);
        }
        message.get("result").map_or(Ok(()), |result| check_result(&method, result))
    }

    fn take_notification(&mut self, method: &str, params: &Value) -> Judged<()> {
        match method {
            "action" => self.take_action(params),
            SESSION_ADDED | SESSION_REMOVED | SUMMARY_CHANGED => {
                check_notice(method, params)?;
                // A check of its own judges those that come to clients which do not follow.
                if self.channels.follows(params["channel"].as_str().unwrap_or_default()) {
                    self.summaries.take(method, params)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn take_action(&mut self, params: &Value) -> Judged<()> {
        let envelope: ActionEnvelope = match serde_json::from_value(params.clone()) {
            Ok(envelope) => envelope,
            Err(error) => return broken(format!("an action is no envelope ({error}): {}", quoted(params))),
        };
        if let Some(origin) = envelope.origin.as_ref().filter(|origin| origin.client_id == self.id) {
            must!(
                self.pending.remove(&origin.client_seq),
                "an action that this client did not send, or that was answered before: {}",
                quoted(params)
            );
        }
        let is_own = self.is_own(&envelope);
        if envelope.rejection_reason.is_some() {
            must!(is_own, "a rejection came to a client that did not send the action: {}", quoted(params));
            return Ok(());
        }
        self.channels.apply(&envelope, params, is_own)
    }

    /// Returns whether an action is one of this client.
    fn is_own(&self, envelope: &ActionEnvelope) -> bool {
        envelope.origin.as_ref().is_some_and(|origin| origin.client_id == self.id)
    }
}

/// Returns the end of a check whose `initialize` is answered with an error: a host need not serve
/// an offered version, unless it says that it does.
fn refused<T>(versions: &[String], error: &AnsweredError) -> Judged<T> {
    let supported = error.error["data"]["supportedVersions"].as_array().cloned().unwrap_or_default();
    let is_supported = versions.iter().any(|offered| supported.iter().any(|version| version == offered));
    let shown = quoted(&error.error);
    if error.code == i64::from(UNSUPPORTED_PROTOCOL_VERSION) && !is_supported {
        return not_offered(format!("the host serves none of {}: {shown}", versions.join(", ")));
    }
    broken(format!("`initialize` is answered with the error {shown}"))
}

/// Returns the result or error of an answer.
pub fn answered(answer: &Value) -> HostAnswer {
    match answer.get("error") {
        Some(error) => {
            Err(AnsweredError { code: error["code"].as_i64().unwrap_or_default(), error: error.clone() })
        }
        None => Ok(answer["result"].clone()),
    }
}

/// Returns whether a message is the echo or rejection of a client's action.
pub fn is_echo(message: &Value, client: &str, seq: i64) -> bool {
    let origin = &message["params"]["origin"];
    message["method"] == "action" && origin["clientId"] == client && origin["clientSeq"] == seq
}

/// Returns whether a message is an action of this type on this channel.
pub fn is_action(message: &Value, channel: &str, kind: &str) -> bool {
    let params = &message["params"];
    message["method"] == "action" && params["channel"] == channel && params["action"]["type"] == kind
}
