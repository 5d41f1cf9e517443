//! A connection to an agent: JSON-RPC over its stdin and stdout, one message per line.
//!
//! Owns: routing each message, in order, to its one [`PeerReceiver`]; buffering updates of sessions
//! that have no subscriber yet; limits. `receiver` is the receiving end of one conversation;
//! `pipes` reads and writes.
//! Never: interprets a method beyond the members that name its session or request. Reading stops at
//! a message until its receiver takes it, so the agent is subject to backpressure.

mod pipes;
mod receiver;

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{json, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::pipes::{live, write};
use self::receiver::Inbox;
pub use self::receiver::{PausableTimeout, PeerReceiver};
use super::client_tools::ClientToolCall;
use super::errors::RequestError;
use crate::backend::secrets::{redact, Secret};
use crate::sync::lock;
use crate::wire::text;

const LINE_BYTES_MAX: usize = 64 << 20;

/// Maximum number of secrets that are hidden for an agent; the oldest are forgotten first.
const SECRETS_MAX: usize = 1000;

const READ_BYTES: usize = 64 << 10;

/// Maximum number of consecutive failed attempts to find the start of a message in a line.
const BRACES_MAX: usize = 8;

/// Maximum number and bytes of buffered updates of sessions that no conversation has subscribed to.
const UNCLAIMED_MAX: usize = 1000;
const UNCLAIMED_BYTES_MAX: usize = 4 << 20;

/// Maximum length of an agent's request id, in bytes; it is stored until the answer.
const REQUEST_ID_BYTES_MAX: usize = 1 << 10;

/// Maximum bytes of unread messages to an agent; beyond it, the agent is given up.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Bytes of unread messages to an agent from which on answers that can wait are held back.
const BEHIND_BYTES: usize = WAITING_BYTES_MAX / 4;

/// Maximum capacity of an agent's output pipe, in bytes, unless a privileged agent enlarges it.
const PIPE_BYTES_MAX: usize = 1 << 20;

/// Login status notification of Claude and Codex, and the kind that means no login.
const LOGIN_STATUS: &str = "_auth/status_update";
const NOT_LOGGED_IN: &str = "none";

/// Time after an agent's exit for which its output is still read.
const OUTPUT_AFTER_EXIT: Duration = Duration::from_millis(500);

/// Message from the agent for one receiver.
#[derive(Debug)]
pub enum PeerMessage {
    /// `update` member of a `session/update`.
    Update(Box<RawValue>),
    Request {
        /// Id to pass to the answer.
        id: AgentRequest,
        method: String,
        params: Box<RawValue>,
    },
    /// Any other notification about a session.
    Notified { method: String, params: Box<RawValue> },
    /// Cancellation of a request by the agent.
    Withdrawn(AgentRequest),
    /// Answer to a request of the host, with the request's id.
    Answer(u64, Result<Box<RawValue>, AgentError>),
    /// Follows each answer, by request id, after all output that was readable with the answer.
    Drained(u64),
    /// Call of a client's tool, which comes by the agent's MCP server.
    Called(Box<ClientToolCall>),
}

impl PeerMessage {
    /// Returns the approximate size of the message while it is queued, in bytes.
    fn bytes(&self) -> usize {
        match self {
            Self::Update(text)
            | Self::Request { params: text, .. }
            | Self::Notified { params: text, .. }
            | Self::Answer(_, Ok(text)) => text.get().len(),
            Self::Answer(_, Err(failure)) => {
                let data = failure.data.as_ref().map_or(0, |data| data.to_string().len());
                failure.message.len() + data
            }
            Self::Withdrawn(_) | Self::Drained(_) | Self::Called(_) => 0,
        }
    }
}

/// Id of an agent's request, as JSON text exactly as received.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentRequest(String);

#[cfg(test)]
impl AgentRequest {
    pub fn test() -> Self {
        Self("1".to_owned())
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct AgentError {
    /// Code of JSON-RPC, or of the agent; 0 if missing.
    pub code: i64,
    pub message: String,
    pub data: Option<Value>,
}

impl AgentError {
    /// Parses the `error` of an answer. Accepts any value, so that each request gets an answer.
    fn of(error: &RawValue) -> Self {
        match serde_json::from_str(error.get()).unwrap_or_default() {
            Value::Object(mut error) => Self {
                code: error.get("code").and_then(Value::as_i64).unwrap_or_default(),
                message: error.get("message").and_then(Value::as_str).unwrap_or_default().to_owned(),
                data: error.remove("data"),
            },
            Value::String(message) => Self { code: 0, message, data: None },
            error => Self { code: 0, message: error.to_string(), data: None },
        }
    }
}

/// Agents quote what they got in their errors, so secrets are hidden.
impl std::fmt::Display for AgentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = if self.message.is_empty() { "the agent answered with an error" } else { &self.message };
        write!(f, "{}", redact(text))?;
        if self.code != 0 {
            write!(f, " ({})", self.code)?;
        }
        let details = match &self.data {
            Some(Value::String(text)) => Some(text.as_str()),
            Some(Value::Object(data)) => {
                ["details", "message"].iter().find_map(|name| data.get(*name)?.as_str())
            }
            _ => None,
        };
        match details.filter(|details| *details != text) {
            Some(details) => write!(f, ": {}", redact(details)),
            None => Ok(()),
        }
    }
}

/// Connection to an agent; lasts until [`Self::stop`] or the end of the agent, even without clones.
#[derive(Debug, Clone)]
pub struct AgentConnection {
    shared: Arc<Shared>,
    ended: watch::Receiver<Option<String>>,
}

#[derive(Debug)]
struct Shared {
    agent: String,
    routes: Mutex<Routes>,
    outgoing: mpsc::UnboundedSender<Bytes>,
    waiting_bytes: AtomicUsize,
    /// Set while the reader waits for a receiver to take a message.
    held_up: AtomicBool,
    /// Number of messages handed to receivers.
    taken: AtomicU64,
    /// Set once the agent has left a request unanswered for too long.
    given_up: AtomicBool,
    /// Login status that the agent last reported; `None` before its first report.
    login: Mutex<Option<LoginStatus>>,
    /// Secrets that the agent was given: it may repeat them as long as it runs.
    secrets: Mutex<Vec<Arc<Secret>>>,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Routes {
    last_request: u64,
    last_receiver: u64,
    inboxes: HashMap<u64, Inbox>,
    /// Receiver of each request in flight to the agent, by request id.
    requests: HashMap<u64, u64>,
    /// Delivered answers that await [`PeerMessage::Drained`]: receiver and request id.
    fresh_answers: Vec<(u64, u64)>,
    /// Receiver of each unanswered request of the agent.
    asked: HashMap<AgentRequest, u64>,
    sessions: HashMap<String, u64>,
    /// Sessions whose receivers are gone.
    left: HashSet<String>,
    unclaimed: VecDeque<(String, Box<RawValue>)>,
    unclaimed_bytes: usize,
    closed: bool,
}

impl AgentConnection {
    /// Starts a connection over these pipes. The second part of `input` is dropped together with
    /// its first. `ending` resolves to the reason when the agent has ended. The input is closed
    /// when `stop` is cancelled or the output ends.
    pub fn start(
        agent: String,
        input: (impl AsyncWrite + Unpin + Send + 'static, impl Send + 'static),
        output: impl AsyncRead + Unpin + Send + 'static,
        stop: CancellationToken,
        ending: impl std::future::Future<Output = String> + Send + 'static,
    ) -> Self {
        let (outgoing, lines) = mpsc::unbounded_channel();
        let (sender, ended) = watch::channel(None);
        let shared = Arc::new(Shared {
            agent,
            routes: Mutex::default(),
            outgoing,
            waiting_bytes: AtomicUsize::new(0),
            held_up: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            login: Mutex::default(),
            secrets: Mutex::default(),
            stop,
        });
        tokio::spawn(write(input, lines, Arc::clone(&shared)));
        tokio::spawn(live(output, ending, Arc::clone(&shared), sender));
        Self { shared, ended }
    }

    /// Hides the secrets from the log that the agent is given, until it has ended.
    pub fn hide(&self, secrets: &[Arc<Secret>]) {
        let mut hidden = lock(&self.shared.secrets);
        for secret in secrets {
            if !hidden.contains(secret) {
                hidden.push(Arc::clone(secret));
            }
        }
        let surplus = hidden.len().saturating_sub(SECRETS_MAX);
        hidden.drain(..surplus);
    }

    /// Creates a receiver, which has no session yet.
    pub fn listen(&self) -> PeerReceiver {
        let mut routes = self.shared.routes();
        routes.last_receiver += 1;
        let id = routes.last_receiver;
        let (receiver, inbox) = PeerReceiver::new(self.clone(), id);
        if !routes.closed {
            routes.inboxes.insert(id, inbox);
        }
        receiver
    }

    /// Closes the agent's input, which makes the agent exit.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Marks the agent as unresponsive, so that it is stopped once its last lease is dropped.
    pub fn give_up(&self) {
        self.shared.given_up.store(true, Ordering::Release);
    }

    pub fn is_given_up(&self) -> bool {
        self.shared.given_up.load(Ordering::Acquire)
    }

    /// Returns whether the agent is being stopped or has ended.
    pub fn is_over(&self) -> bool {
        self.shared.stop.is_cancelled() || self.ended.borrow().is_some()
    }

    pub fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Returns the agent's words if its last login status was that no user is logged in.
    pub fn logged_out(&self) -> Option<String> {
        let login = lock(&self.shared.login);
        login.as_ref().filter(|login| login.kind == NOT_LOGGED_IN).map(|login| text::message(&login.label))
    }

    pub fn is_held_up(&self) -> bool {
        self.shared.held_up.load(Ordering::Acquire)
    }

    pub fn is_behind(&self) -> bool {
        self.shared.waiting_bytes.load(Ordering::Acquire) > BEHIND_BYTES
    }

    /// Waits until the agent has ended; returns the reason, for people.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        let reason = ended.wait_for(Option::is_some).await.map(|how| how.clone());
        reason.ok().flatten().unwrap_or_else(|| "it ended".to_owned())
    }
}

impl Shared {
    fn routes(&self) -> MutexGuard<'_, Routes> {
        lock(&self.routes)
    }

    fn send(&self, message: &Value) {
        let mut line = message.to_string();
        tracing::trace!(agent = self.agent, "> {line}");
        line.push('\n');
        self.waiting_bytes.fetch_add(line.len(), Ordering::AcqRel);
        if self.outgoing.send(line.into()).is_err() {
            let agent = &self.agent;
            tracing::debug!(agent, "a message to the agent was dropped: its connection is closed");
        }
    }

    fn answer(&self, id: &AgentRequest, answer: Result<Value, RequestError>) {
        // The id was received as JSON, so it can be parsed.
        let id: Value = serde_json::from_str(&id.0).unwrap_or_default();
        self.send(&match answer {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(error) => {
                let error = json!({ "code": error.code(), "message": error.to_string() });
                json!({ "jsonrpc": "2.0", "id": id, "error": error })
            }
        });
    }

    async fn deliver(&self, receiver: u64, message: PeerMessage) {
        let Some(inbox) = self.routes().inboxes.get(&receiver).cloned() else { return };
        let is_taken = match inbox.try_put(message) {
            Ok(()) => true,
            Err(message) => {
                self.held_up.store(true, Ordering::Release);
                let is_taken = inbox.put(message).await;
                self.held_up.store(false, Ordering::Release);
                is_taken
            }
        };
        self.taken.fetch_add(1, Ordering::AcqRel);
        if !is_taken {
            let agent = &self.agent;
            tracing::debug!(agent, "a message of the agent was dropped: nobody listens for it any more");
        }
    }

    fn keep_unclaimed(&self, session: &str, update: &RawValue) {
        let mut routes = self.routes();
        if routes.left.contains(session) {
            let agent = &self.agent;
            return tracing::debug!(agent, session, "an update was ignored: its session is closed");
        }
        routes.unclaimed_bytes += session.len() + update.get().len();
        routes.unclaimed.push_back((session.to_owned(), update.to_owned()));
        while routes.unclaimed.len() > UNCLAIMED_MAX || routes.unclaimed_bytes > UNCLAIMED_BYTES_MAX {
            let Some((session, lost)) = routes.unclaimed.pop_front() else { return };
            routes.unclaimed_bytes -= session.len() + lost.get().len();
            let session = text::message(&session);
            tracing::warn!(agent = self.agent, session, "an update was dropped: its session is unknown");
        }
    }

    /// Routes a message; returns false if it is neither request, notification nor answer.
    async fn handle(&self, frame: AgentMessage<'_>) -> bool {
        match (frame.method, frame.id) {
            (Some(method), None) => self.notified(&method, frame.params).await,
            (Some(method), Some(id)) => {
                let id = AgentRequest(id.get().to_owned());
                self.requested(id, method.into_owned(), frame.params).await;
            }
            (None, Some(id)) => {
                let answer = match frame.error {
                    Some(failure) => Err(AgentError::of(failure)),
                    None => Ok(frame.result.map_or_else(|| RawValue::NULL.to_owned(), ToOwned::to_owned)),
                };
                let asked = id.get().parse().ok().and_then(|id: u64| {
                    let receiver = self.routes().requests.remove(&id)?;
                    Some((id, receiver))
                });
                match asked {
                    Some((id, receiver)) => {
                        self.routes().fresh_answers.push((receiver, id));
                        self.deliver(receiver, PeerMessage::Answer(id, answer)).await;
                    }
                    None => {
                        tracing::debug!(
                            agent = self.agent,
                            id = id.get(),
                            "an answer of the agent was ignored: no request of its id is open"
                        )
                    }
                }
            }
            (None, None) => return false,
        }
        true
    }

    fn has_fresh_answers(&self) -> bool {
        !self.routes().fresh_answers.is_empty()
    }

    /// Notifies receivers that all output readable with their answers has been delivered.
    async fn notify_drained(&self) {
        let answers = std::mem::take(&mut self.routes().fresh_answers);
        for (receiver, id) in answers {
            self.deliver(receiver, PeerMessage::Drained(id)).await;
        }
    }

    async fn notified(&self, method: &str, params: Option<&RawValue>) {
        let about = || serde_json::from_str::<Subject<'_>>(params.map_or("", RawValue::get));
        match method {
            "session/update" => {
                let Ok(Subject { session: Some(session), update: Some(update), .. }) = about() else {
                    tracing::warn!(agent = self.agent, "an update of the agent was ignored: it is invalid");
                    return;
                };
                let receiver = self.routes().sessions.get(session.as_ref()).copied();
                match receiver {
                    Some(receiver) => self.deliver(receiver, PeerMessage::Update(update.to_owned())).await,
                    None => self.keep_unclaimed(&session, update),
                }
            }
            "$/cancel_request" => {
                let Ok(Subject { request: Some(request), .. }) = about() else { return };
                let request = AgentRequest(request.get().to_owned());
                let receiver = self.routes().asked.get(&request).copied();
                if let Some(receiver) = receiver {
                    self.deliver(receiver, PeerMessage::Withdrawn(request)).await;
                }
            }
            LOGIN_STATUS => {
                if let Some(Ok(LoginUpdate { auth_status })) = params.map(|it| serde_json::from_str(it.get()))
                {
                    *lock(&self.login) = Some(auth_status);
                }
            }
            method => {
                let session = about().ok().and_then(|about| about.session);
                let receiver = session.and_then(|session| self.routes().sessions.get(&*session).copied());
                match params.zip(receiver) {
                    Some((params, receiver)) => {
                        let (method, params) = (method.to_owned(), params.to_owned());
                        self.deliver(receiver, PeerMessage::Notified { method, params }).await;
                    }
                    None => tracing::debug!(
                        agent = self.agent,
                        method,
                        "a notification of the agent was ignored: its method is unknown, or its session"
                    ),
                }
            }
        }
    }

    async fn requested(&self, id: AgentRequest, method: String, params: Option<&RawValue>) {
        if id.0.len() > REQUEST_ID_BYTES_MAX {
            return self.answer(&id, Err(RequestError::IdTooLong));
        }
        let about = params
            .and_then(|params| Some((params, serde_json::from_str::<Subject<'_>>(params.get()).ok()?)))
            .filter(|(_, about)| about.session.is_some() || about.request.is_some());
        let Some((params, Subject { session, request, .. })) = about else {
            let agent = &self.agent;
            tracing::debug!(agent, method, "a request of the agent was refused: it names no session");
            return self.answer(&id, Err(RequestError::MethodNotServed));
        };
        let receiver = {
            let routes = self.routes();
            match session {
                Some(session) => routes.sessions.get(session.as_ref()).copied(),
                // A request of the agent that refers to a request of the host.
                None => request.and_then(|id| routes.requests.get(&id.get().parse().ok()?).copied()),
            }
        };
        match receiver {
            Some(receiver) => {
                let is_open = match self.routes().asked.entry(id.clone()) {
                    Entry::Occupied(_) => true,
                    Entry::Vacant(free) => {
                        free.insert(receiver);
                        false
                    }
                };
                if is_open {
                    return self.answer(&id, Err(RequestError::IdTaken));
                }
                self.deliver(receiver, PeerMessage::Request { id, method, params: params.to_owned() }).await;
            }
            None => self.answer(&id, Err(RequestError::NoSuchSession)),
        }
    }

    fn close(&self) {
        let mut routes = self.routes();
        routes.closed = true;
        routes.inboxes.clear();
        routes.requests.clear();
        routes.fresh_answers.clear();
        routes.asked.clear();
        routes.unclaimed.clear();
    }
}

#[derive(Deserialize)]
struct AgentMessage<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct LoginStatus {
    kind: String,
    #[serde(default)]
    label: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LoginUpdate {
    auth_status: LoginStatus,
}

/// Members of `params` that identify the subject of a message.
#[derive(Deserialize)]
struct Subject<'a> {
    #[serde(borrow, default, rename = "sessionId")]
    session: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "requestId")]
    request: Option<&'a RawValue>,
    #[serde(borrow, default)]
    update: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests;
