//! A connection to an agent: JSON-RPC, one message a line, on its stdin and stdout.
//!
//! Owns: giving each message to the one [`PeerReceiver`] that it is for, in order; keeping what is
//! said of a session before anybody has heard of it; bounds. `receiver` is the receiving end of one
//! conversation, `pipes` reads and writes.
//! Never: knows what a method means, beyond which members name the session or request that it is
//! about. A message that nobody takes is not read past: the agent waits as long as we do.

mod pipes;
mod receiver;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use crate::wire::text;

const LINE_BYTES_MAX: usize = 64 << 20;

const READ_BYTES: usize = 64 << 10;

/// Maximum number of successive failed attempts to find the beginning of a message in a line.
const BRACES_MAX: usize = 8;

/// Maximum number, and bytes, of kept updates of sessions that no conversation follows yet.
const UNCLAIMED_MAX: usize = 1000;
const UNCLAIMED_BYTES_MAX: usize = 4 << 20;

/// The longest id of a request of an agent's, in bytes: it is kept until the request is answered.
const REQUEST_ID_BYTES_MAX: usize = 1 << 10;

/// An agent that lets so many bytes of answers wait does not read any more.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// While so many bytes of answers wait for an agent to read them, none is added that can wait
/// itself.
const BEHIND_BYTES: usize = WAITING_BYTES_MAX / 4;

/// No pipe that an agent writes to holds more bytes than this (on Linux, unless a privileged agent
/// makes it larger).
const PIPE_BYTES_MAX: usize = 1 << 20;

/// Notification of Claude and Codex that says whether they are logged in, and the kind of login
/// that is none.
const LOGIN_STATUS: &str = "_auth/status_update";
const NOT_LOGGED_IN: &str = "none";

/// Time after an agent's end for which its output is still read.
const OUTPUT_AFTER_EXIT: Duration = Duration::from_millis(500);

/// A message from the agent, for one listener.
#[derive(Debug)]
pub enum PeerMessage {
    /// A `session/update`: its `update`.
    Update(Box<RawValue>),
    /// A request about a session.
    Request {
        /// To be given back with the answer.
        id: AgentRequest,
        method: String,
        params: Box<RawValue>,
    },
    /// Another notification about a session.
    Notified { method: String, params: Box<RawValue> },
    /// The agent does not want to have this request answered any more.
    Withdrawn(AgentRequest),
    /// The answer to a request of ours.
    Answer(u64, Result<Box<RawValue>, AgentError>),
    /// Follows each answer, once everything has been given that could be read from the agent when
    /// the answer was taken in.
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

/// The id of a request of the agent's, as it wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentRequest(String);

#[cfg(test)]
impl AgentRequest {
    /// Returns the id of a request that no agent has sent.
    pub fn test() -> Self {
        Self("1".to_owned())
    }
}

/// An error that was answered.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentError {
    /// JSON-RPC's code, or the agent's own; 0 where there is none.
    pub code: i64,
    /// Message of the error, for people.
    pub message: String,
    pub data: Option<Value>,
}

impl AgentError {
    /// Parses the `error` of an answer. Any value is accepted: whoever waits for the answer must
    /// have one.
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

impl std::fmt::Display for AgentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let said = if self.message.is_empty() { "the agent answered with an error" } else { &self.message };
        write!(f, "{said}")?;
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
        match details.filter(|details| *details != said) {
            Some(details) => write!(f, ": {details}"),
            None => Ok(()),
        }
    }
}

/// A connection; it ends with the last clone of it, or with the agent.
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
    /// The reader waits for a listener.
    held_up: AtomicBool,
    /// Number of messages that were handed to listeners.
    taken: AtomicU64,
    /// The agent has left something unanswered for too long.
    given_up: AtomicBool,
    /// Login status that the agent last reported; `None` if it has not reported any.
    login: Mutex<Option<LoginStatus>>,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Routes {
    last_request: u64,
    last_receiver: u64,
    inboxes: HashMap<u64, Inbox>,
    /// Listeners of the requests in flight to the agent, by request id.
    requests: HashMap<u64, u64>,
    /// Answers that were given and not followed by [`PeerMessage::Drained`] yet: to which listener,
    /// to which request.
    fresh_answers: Vec<(u64, u64)>,
    /// Whom the agent's requests were given to that are not answered yet.
    asked: HashMap<AgentRequest, u64>,
    sessions: HashMap<String, u64>,
    /// Sessions that nobody wants to hear of any more.
    left: HashSet<String>,
    unclaimed: VecDeque<(String, Box<RawValue>)>,
    unclaimed_bytes: usize,
    /// Set once the agent has ended: no more messages will come.
    closed: bool,
}

impl AgentConnection {
    /// Creates a connection over these pipes; what is given with the input is dropped with it.
    /// `ending` says how the agent ended, once it has; when its output ends before, its input is
    /// ended too. Told `stop`, its input ends.
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
            stop,
        });
        tokio::spawn(write(input, lines, Arc::clone(&shared)));
        tokio::spawn(live(output, ending, Arc::clone(&shared), sender));
        Self { shared, ended }
    }

    /// Creates a receiver.
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

    /// Closes the agent's input, which ends it.
    pub fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// The agent has left something unanswered for too long: it is of no use to those who have not
    /// begun.
    pub fn give_up(&self) {
        self.shared.given_up.store(true, Ordering::Release);
    }

    pub fn is_given_up(&self) -> bool {
        self.shared.given_up.load(Ordering::Acquire)
    }

    /// Returns whether the agent is being ended or has ended.
    pub fn is_over(&self) -> bool {
        self.shared.stop.is_cancelled() || self.ended.borrow().is_some()
    }

    pub fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Returns the words in which the agent said last that nobody is logged in; `None` if it has
    /// not said so.
    pub fn logged_out(&self) -> Option<String> {
        let login = self.shared.login.lock().unwrap_or_else(PoisonError::into_inner);
        login.as_ref().filter(|login| login.kind == NOT_LOGGED_IN).map(|login| text::message(&login.label))
    }

    /// Returns whether the reader waits for a listener to take a message.
    pub fn is_held_up(&self) -> bool {
        self.shared.held_up.load(Ordering::Acquire)
    }

    /// Returns whether the agent has many bytes of messages yet to read.
    pub fn is_behind(&self) -> bool {
        self.shared.waiting_bytes.load(Ordering::Acquire) > BEHIND_BYTES
    }

    /// Waits until the agent has ended; says how it did.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        let told = ended.wait_for(Option::is_some).await.map(|how| how.clone());
        told.ok().flatten().unwrap_or_else(|| "it ended".to_owned())
    }
}

impl Shared {
    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
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
        // It came as JSON.
        let id: Value = serde_json::from_str(&id.0).unwrap_or_default();
        self.send(&match answer {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(error) => {
                let error = json!({ "code": error.code(), "message": error.to_string() });
                json!({ "jsonrpc": "2.0", "id": id, "error": error })
            }
        });
    }

    /// Gives a message to a listener, waiting for it to take it.
    async fn deliver(&self, receiver: u64, said: PeerMessage) {
        let Some(inbox) = self.routes().inboxes.get(&receiver).cloned() else { return };
        let is_taken = match inbox.try_put(said) {
            Ok(()) => true,
            Err(said) => {
                self.held_up.store(true, Ordering::Release);
                let is_taken = inbox.put(said).await;
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

    /// Keeps what is said of a session that nobody has heard of yet.
    fn keep_unclaimed(&self, session: &str, update: &RawValue) {
        let mut routes = self.routes();
        if routes.left.contains(session) {
            let agent = &self.agent;
            return tracing::debug!(agent, session, "an update was ignored: the host has left its session");
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

    /// Takes in a message; false when it is none.
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

    /// Returns whether an answer was taken in since [`Self::notify_drained`].
    fn has_fresh_answers(&self) -> bool {
        !self.routes().fresh_answers.is_empty()
    }

    /// Notifies listeners that all output was taken in that could be read when their answers were.
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
                    tracing::warn!(agent = self.agent, "an update of the agent was ignored: it does not fit");
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
                    *self.login.lock().unwrap_or_else(PoisonError::into_inner) = Some(auth_status);
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
                // About something that we wait for an answer to.
                None => request.and_then(|id| routes.requests.get(&id.get().parse().ok()?).copied()),
            }
        };
        match receiver {
            Some(receiver) => {
                let is_open = self.routes().asked.insert(id.clone(), receiver).is_some();
                if is_open {
                    return self.answer(&id, Err(RequestError::IdTaken));
                }
                self.deliver(receiver, PeerMessage::Request { id, method, params: params.to_owned() }).await;
            }
            None => self.answer(&id, Err(RequestError::NoSuchSession)),
        }
    }

    /// Drops all routes, since no more messages will come.
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

/// Members of params that tell what a message is about.
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
