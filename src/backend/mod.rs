//! Backends: the trait that every kind of agent implements, and the tasks that run conversations.
//!
//! [`probe`] learns what an agent offers before a session uses it; [`byte_budget`] bounds queues;
//! [`mcp`] describes the MCP servers that agents are given.
//!
//! Owns: one task per open conversation, the bounded channel for all reports, and the guarantee
//! that reports of a closed conversation are dropped.
//! Never: sees the core's state. The core decides whether a report is still relevant.
//!
//! To add a backend: implement [`Backend`], handle every [`Command`] as documented, and add the
//! backend to the list in `src/main.rs`. A conversation must read its commands at all times,
//! even while it waits for room to report, because one of them may be a cancellation.
#![doc = include_str!("README.md")]

pub mod acp;
pub mod byte_budget;
pub mod mcp;
pub mod probe;
pub mod script;
pub mod secrets;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, Semaphore};
use tokio_util::sync::CancellationToken;

use self::byte_budget::{ByteBudget, ByteReservation};
use self::mcp::McpServer;
use self::probe::ProbeResult;
use crate::host::effects::{
    AgentDescription, AgentSessionsAnswer, AgentSessionsFailure, AgentSessionsQuery, AgentSessionsRequest,
    ChatKey, Command, ConnectionId, Event, OpenConversation, OpenFailure, Tokens, TurnEvent,
};
use crate::wire::rpc::RequestId;

/// Maximum number of queued reports; conversations wait while the queue is full.
const REPORTS_MAX: usize = 256;

/// Maximum size of all queued reports, in bytes; conversations wait while it is reached.
const REPORTS_BYTES_MAX: usize = 4 << 20;

/// Time from the end of a retired agent's last conversation until the agent is stopped.
const RETIRED_LINGER: Duration = Duration::from_secs(2);

/// A kind of agent.
pub trait Backend: Send {
    /// Returns the description of the agent that clients receive. Starts nothing.
    fn describe(&self) -> AgentDescription;

    /// Returns the task of a conversation; the task runs until its command channel closes.
    ///
    /// The task first reports [`Event::Opened`] or [`Event::OpenFailed`]. An error that the task
    /// returns before it is closed is reported as [`Event::Died`].
    fn converse(&self, open: OpenConversation, line: HostLine) -> RunningConversation;

    /// Returns the task that answers a query about the sessions that the agent stores. What it
    /// reports concerns no chat. Nothing runs before the first poll.
    fn stored_sessions(
        &self,
        _query: AgentSessionsQuery,
        _tokens: Tokens,
        _reports: ReportSender,
    ) -> PendingAgentSessions {
        let reason = "this agent stores no sessions of its own".to_owned();
        let failure = AgentSessionsFailure { kind: OpenFailure::Unavailable, reason };
        Box::pin(std::future::ready(Err(failure)))
    }

    /// Permanently stops all external processes of the backend.
    fn stop(&self) -> Stopping {
        Box::pin(std::future::ready(()))
    }
}

/// A running conversation.
pub type RunningConversation = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// Future with the answer to a query about the sessions that an agent stores.
pub type PendingAgentSessions =
    Pin<Box<dyn Future<Output = Result<AgentSessionsAnswer, AgentSessionsFailure>> + Send>>;

/// Answer to a client's request about the sessions that an agent stores.
#[derive(Debug)]
pub struct AnsweredAgentSessions {
    /// Connection of the request.
    pub connection: ConnectionId,
    /// Id of the request.
    pub id: RequestId,
    /// Request.
    pub request: Box<AgentSessionsRequest>,
    /// Answer.
    pub answer: Result<AgentSessionsAnswer, AgentSessionsFailure>,
}

/// Future that completes when a backend has stopped completely.
pub type Stopping = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Channels between a conversation and the host.
#[derive(Debug)]
pub struct HostLine {
    /// Commands from the host. The channel ends when the conversation is closed.
    pub commands: mpsc::UnboundedReceiver<Command>,
    /// Sender for the conversation's reports.
    pub reports: ReportSender,
    /// MCP servers that the agent is given.
    pub servers: Vec<Arc<McpServer>>,
}

/// Sender for the reports of one conversation, bounded by their number and bytes.
#[derive(Debug, Clone)]
pub struct ReportSender {
    chat: ChatKey,
    conversation: u64,
    sender: mpsc::Sender<Report>,
    bytes: ByteBudget,
}

impl ReportSender {
    /// Creates a sender without a receiver: its reports are dropped.
    pub fn detached() -> Self {
        let (sender, _) = mpsc::channel(1);
        let bytes = ByteBudget::new(REPORTS_BYTES_MAX);
        Self { chat: ChatKey(0), conversation: 0, sender, bytes }
    }

    /// Returns the chat to which the reports belong.
    pub fn chat(&self) -> ChatKey {
        self.chat
    }

    /// Waits for room and returns a permit; `None` if the process is shutting down. Cancel safe, so
    /// that a conversation can do other work while it waits.
    pub async fn reserve(&self) -> Option<ReportPermit<'_>> {
        let taken = self.bytes.reserve().await?;
        let permit = self.sender.reserve().await.ok()?;
        Some(ReportPermit { permit, taken, chat: self.chat, conversation: self.conversation })
    }

    /// Returns a permit if the queue has room now; never waits.
    pub fn try_reserve(&self) -> Option<ReportPermit<'_>> {
        let taken = self.bytes.try_reserve()?;
        let permit = self.sender.try_reserve().ok()?;
        Some(ReportPermit { permit, taken, chat: self.chat, conversation: self.conversation })
    }

    /// Sends a report, waiting for room.
    pub async fn report(&self, event: Event) {
        match self.reserve().await {
            Some(room) => room.report(event),
            None => tracing::debug!("an event of an agent was dropped: the host is shutting down"),
        }
    }
}

/// Permit to send one report.
#[derive(Debug)]
pub struct ReportPermit<'a> {
    permit: mpsc::Permit<'a, Report>,
    taken: ByteReservation,
    chat: ChatKey,
    conversation: u64,
}

impl ReportPermit<'_> {
    /// Sends the report without waiting.
    pub fn report(self, event: Event) {
        let Self { permit, mut taken, chat, conversation } = self;
        taken.grow_to(event.bytes());
        permit.send(Report { chat, conversation, event, taken });
    }
}

/// Event reported by a conversation.
#[derive(Debug)]
pub struct Report {
    chat: ChatKey,
    /// Number of the reporting conversation: a chat may have several, one after another.
    conversation: u64,
    event: Event,
    /// Queue room that the report occupies until it is received.
    taken: ByteReservation,
}

/// Agent to offer after a configuration change.
pub enum OfferedAgent {
    /// Existing backend, by its provider id, unchanged.
    AsBefore(String),
    /// New or changed backend.
    New(Box<dyn Backend>),
}

struct OfferedBackend {
    provider: String,
    backend: Box<dyn Backend>,
    /// Set once the backend is replaced or removed; running probes then drop their result.
    is_retired: Arc<AtomicBool>,
}

impl OfferedBackend {
    fn new(backend: Box<dyn Backend>) -> Self {
        Self { provider: backend.describe().info.provider, backend, is_retired: Arc::default() }
    }
}

/// Every backend and every open conversation.
pub struct Agents {
    backends: Vec<OfferedBackend>,
    /// Backends that are no longer offered but still have open conversations.
    retired: Vec<OfferedBackend>,
    open: BTreeMap<ChatKey, OpenHandle>,
    reports: mpsc::Sender<Report>,
    reports_bytes: ByteBudget,
    last_conversation: u64,
    probed: mpsc::UnboundedSender<(String, ProbeResult)>,
    /// MCP servers of the operator.
    servers: Vec<Arc<McpServer>>,
    /// Permit to read a session that an agent stores: its history may be large, so there is one at
    /// a time.
    asking: Arc<Semaphore>,
    answered: mpsc::UnboundedSender<AnsweredAgentSessions>,
    /// Connections that have asked about stored sessions; a token is cancelled when its connection
    /// closes.
    asking_connections: HashMap<ConnectionId, CancellationToken>,
    /// Number of requests about stored sessions that are not answered yet.
    unanswered: usize,
}

/// Receivers for what agents report.
#[derive(Debug)]
pub struct AgentReceivers {
    /// Reports of conversations.
    pub reports: mpsc::Receiver<Report>,
    /// Results of probes, by provider id.
    pub probed: mpsc::UnboundedReceiver<(String, ProbeResult)>,
    /// Answers about the sessions that agents store.
    pub sessions: mpsc::UnboundedReceiver<AnsweredAgentSessions>,
}

struct OpenHandle {
    conversation: u64,
    /// Retirement flag of the conversation's backend.
    is_retired: Arc<AtomicBool>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Agents {
    /// Returns the agents, and the receivers for what they report.
    pub fn new(backends: Vec<Box<dyn Backend>>) -> (Self, AgentReceivers) {
        let (reports, receiver) = mpsc::channel(REPORTS_MAX);
        let (answered, sessions) = mpsc::unbounded_channel();
        let (probed, probes) = mpsc::unbounded_channel();
        let reports_bytes = ByteBudget::new(REPORTS_BYTES_MAX);
        let agents = Self {
            backends: backends.into_iter().map(OfferedBackend::new).collect(),
            retired: Vec::new(),
            open: BTreeMap::new(),
            reports,
            reports_bytes,
            last_conversation: 0,
            probed,
            servers: Vec::new(),
            asking: Arc::new(Semaphore::new(1)),
            answered,
            asking_connections: HashMap::new(),
            unanswered: 0,
        };
        (agents, AgentReceivers { reports: receiver, probed: probes, sessions })
    }

    /// Asks an agent about the sessions that it stores, in the background. Must be called inside a
    /// tokio runtime.
    pub fn ask_sessions(
        &mut self,
        connection: ConnectionId,
        id: RequestId,
        request: Box<AgentSessionsRequest>,
    ) {
        self.unanswered += 1;
        let AgentSessionsRequest { provider, tokens, query, .. } = &*request;
        let asked = self.known(provider).map(|known| {
            known.backend.stored_sessions(query.clone(), tokens.clone(), ReportSender::detached())
        });
        let (answered, asking) = (self.answered.clone(), Arc::clone(&self.asking));
        let is_large = matches!(query, AgentSessionsQuery::Read { .. });
        let closed = self.asking_connections.entry(connection).or_default().clone();
        let unavailable = |reason: &str| {
            Err(AgentSessionsFailure { kind: OpenFailure::Unavailable, reason: reason.to_owned() })
        };
        tokio::spawn(async move {
            let answer = async {
                let _permit = if is_large { asking.acquire().await.ok() } else { None };
                match asked {
                    Some(asked) => asked.await,
                    None => unavailable("the agent is not offered any more"),
                }
            };
            let answer = tokio::select! {
                answer = answer => answer,
                () = closed.cancelled() => unavailable("its client is gone"),
            };
            let answer = AnsweredAgentSessions { connection, id, request, answer };
            if answered.send(answer).is_err() {
                tracing::debug!("an answer about an agent's sessions was dropped: the host is shutting down");
            }
        });
    }

    /// Ends the requests of a closed connection about stored sessions: others wait for their turn.
    pub fn connection_closed(&mut self, connection: ConnectionId) {
        if let Some(closed) = self.asking_connections.remove(&connection) {
            closed.cancel();
        }
    }

    /// Notes that an answer about stored sessions has arrived.
    pub fn sessions_answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// Returns whether no request about stored sessions is pending.
    pub fn has_answered(&self) -> bool {
        self.unanswered == 0
    }

    /// Probes an agent in the background, with these tokens. Must be called inside a tokio runtime.
    pub fn probe(&self, provider: String, tokens: Tokens) {
        let Some(known) = self.known(&provider) else { return };
        let (begun, probed) = (probe::run(&*known.backend, tokens), self.probed.clone());
        let is_retired = Arc::clone(&known.is_retired);
        tokio::spawn(async move {
            let probe = begun.await;
            if is_retired.load(Ordering::Acquire) {
                tracing::debug!(
                    provider,
                    "the result of a probe was dropped: the agent was replaced meanwhile"
                );
            } else if probed.send((provider, probe)).is_err() {
                tracing::debug!("the result of a probe was dropped: the host is shutting down");
            }
        });
    }

    fn known(&self, provider: &str) -> Option<&OfferedBackend> {
        self.backends.iter().find(|known| known.provider == provider)
    }

    /// Returns the provider id of each offered backend, in order.
    pub fn providers(&self) -> Vec<String> {
        self.backends.iter().map(|known| known.provider.clone()).collect()
    }

    /// Returns the description of each offered backend, in order, with its MCP servers.
    pub fn describe(&self) -> Vec<AgentDescription> {
        let described = self.backends.iter().map(|known| {
            let mut described = known.backend.describe();
            let servers = self.servers.iter().filter(|server| server.is_for(&known.provider));
            let servers: Vec<_> = servers.map(|server| server.customization()).collect();
            if !servers.is_empty() {
                described.info.customizations.get_or_insert_default().extend(servers);
            }
            described
        });
        described.collect()
    }

    /// Gives these MCP servers to conversations that open from now on.
    pub fn offer_servers(&mut self, servers: Vec<McpServer>) {
        self.servers = servers.into_iter().map(Arc::new).collect();
    }

    /// Offers these agents from now on, in this order. Conversations with other agents continue
    /// until they are closed; then those agents are stopped. Must be called inside a tokio runtime.
    pub fn replace(&mut self, offered: Vec<OfferedAgent>) {
        let mut before = std::mem::take(&mut self.backends);
        for offered in offered {
            match offered {
                OfferedAgent::New(backend) => self.backends.push(OfferedBackend::new(backend)),
                OfferedAgent::AsBefore(provider) => {
                    let at = before.iter().position(|known| known.provider == provider);
                    self.backends.extend(at.map(|at| before.remove(at)));
                }
            }
        }
        for known in &before {
            known.is_retired.store(true, Ordering::Release);
        }
        self.retired.extend(before);
        self.stop_idle_retired();
    }

    /// Stops the retired backends that have no open conversation.
    fn stop_idle_retired(&mut self) {
        let open = &self.open;
        self.retired.retain(|known| {
            let is_used = open.values().any(|open| Arc::ptr_eq(&open.is_retired, &known.is_retired));
            if !is_used {
                let stopping = known.backend.stop();
                tokio::spawn(async move {
                    // The last conversation may still be closing.
                    tokio::time::sleep(RETIRED_LINGER).await;
                    stopping.await;
                });
            }
            is_used
        });
    }

    fn close(&mut self, chat: ChatKey) {
        self.open.remove(&chat);
        if !self.retired.is_empty() {
            self.stop_idle_retired();
        }
    }

    /// Executes a command of the core. Must be called inside a tokio runtime.
    pub fn carry_out(&mut self, chat: ChatKey, command: Command) {
        match command {
            Command::Open(open) => self.open(chat, open),
            Command::Close => self.close(chat),
            command => {
                if let Some(open) = self.open.get(&chat) {
                    if open.commands.send(command).is_err() {
                        tracing::debug!(
                            ?chat,
                            "a command for an agent was dropped: its conversation has ended"
                        );
                    }
                }
            }
        }
    }

    /// Returns the event of a report, with its chat. `None` if the conversation was closed, or if
    /// the event describes an agent that was replaced.
    pub fn accept(&mut self, report: Report) -> Option<(ChatKey, Event)> {
        self.accept_event(report.chat, report.conversation, report.event)
    }

    fn accept_event(&mut self, chat: ChatKey, conversation: u64, event: Event) -> Option<(ChatKey, Event)> {
        let open = self.open.get(&chat).filter(|open| open.conversation == conversation)?;
        if matches!(event, Event::Described(_)) && open.is_retired.load(Ordering::Acquire) {
            // The description does not apply to the agent that now has this provider id.
            return None;
        }
        if matches!(event, Event::OpenFailed { .. } | Event::Left | Event::Died { .. }) {
            self.close(chat);
        }
        Some((chat, event))
    }

    /// Accepts reports in order, and merges consecutive texts of one kind in one run.
    pub fn accept_all(&mut self, reports: Vec<Report>) -> Vec<(ChatKey, Event)> {
        let (mut events, mut taken) = (Vec::new(), None::<ByteReservation>);
        for Report { chat, conversation, event, taken: room } in reports {
            match &mut taken {
                Some(taken) => taken.join(room),
                None => taken = Some(room),
            }
            let Some((chat, event)) = self.accept_event(chat, conversation, event) else { continue };
            let joined = match events.last_mut() {
                Some((before, last)) if *before == chat => join(last, event),
                _ => Some(event),
            };
            events.extend(joined.map(|event| (chat, event)));
        }
        events
    }

    /// Stops all backends concurrently, and completes when all have stopped. Needs a tokio runtime.
    pub fn stop(&self) -> Stopping {
        let all = self.backends.iter().chain(&self.retired);
        let all: Vec<_> = all.map(|known| tokio::spawn(known.backend.stop())).collect();
        Box::pin(async move {
            for stopping in all {
                if let Err(error) = stopping.await {
                    tracing::error!(%error, "an agent could not be stopped");
                }
            }
        })
    }

    fn open(&mut self, chat: ChatKey, mut open: OpenConversation) {
        self.last_conversation += 1;
        let conversation = self.last_conversation;
        let (commands, receiver) = mpsc::unbounded_channel();
        let reports = ReportSender {
            chat,
            conversation,
            sender: self.reports.clone(),
            bytes: self.reports_bytes.clone(),
        };
        let servers = self.servers.iter().filter(|server| open.mcp_servers.contains(&server.id()));
        let of_clients = std::mem::take(&mut open.client_mcp_servers).into_iter();
        let of_clients = of_clients.map(|server| Arc::new(McpServer::of_client(server)));
        let servers = servers.cloned().chain(of_clients).collect();
        let line = HostLine { commands: receiver, reports: reports.clone(), servers };
        let known = self.known(&open.provider);
        let is_retired = known.map(|known| Arc::clone(&known.is_retired)).unwrap_or_default();
        let provider = open.provider.clone();
        let begun = known.map(|known| tokio::spawn(known.backend.converse(open, line)));
        self.open.insert(chat, OpenHandle { conversation, is_retired, commands });
        let Some(conversation) = begun else {
            let reason = format!("no agent `{provider}` is configured");
            tokio::spawn(async move {
                reports.report(Event::OpenFailed { kind: OpenFailure::Unavailable, reason }).await
            });
            return;
        };
        tokio::spawn(async move {
            let reason = match conversation.await {
                Ok(Ok(())) => "the agent has ended".to_owned(),
                Ok(Err(error)) => format!("{error:#}"),
                Err(error) => format!("the agent's task failed: {error}"),
            };
            // Dropped if the conversation was closed before.
            reports.report(Event::Died { reason }).await;
        });
    }
}

/// Merges an event into the previous one if both are texts of one kind and run, or returns it.
fn join(last: &mut Event, event: Event) -> Option<Event> {
    let Event::Turn(run, TurnEvent::Text(kind, text)) = event else { return Some(event) };
    match last {
        Event::Turn(of, TurnEvent::Texts(like, texts)) if *of == run && *like == kind => texts.push(text),
        Event::Turn(of, TurnEvent::Text(like, first)) if *of == run && *like == kind => {
            let texts = vec![std::mem::take(first), text];
            *last = Event::Turn(run, TurnEvent::Texts(kind, texts));
        }
        _ => return Some(Event::Turn(run, TurnEvent::Text(kind, text))),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::{RunId, TextKind};

    #[tokio::test]
    async fn reports_that_wait_are_bounded_by_their_bytes() {
        let (sender, mut receiver) = mpsc::channel(REPORTS_MAX);
        let bytes = ByteBudget::new(REPORTS_BYTES_MAX);
        let reports = ReportSender { chat: ChatKey(1), conversation: 1, sender, bytes };
        let large = || Event::Turn(RunId(1), TurnEvent::Text(TextKind::Markdown, "x".repeat(1 << 20)));
        let mut waiting = 0;
        while let Some(room) = reports.try_reserve() {
            room.report(large());
            waiting += 1;
        }
        assert!((4..=5).contains(&waiting), "{waiting} reports of 1 MiB wait");
        drop(receiver.recv().await);
        reports.report(large()).await;
        assert!(reports.try_reserve().is_none());
    }
}
