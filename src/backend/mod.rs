//! Backends: the trait behind which an agent is put, and the tasks that run conversations.
//!
//! [`probe`] gets to know an agent before there is any, [`byte_budget`] bounds what waits.
//!
//! Owns: one task for each open conversation, the bounded channel on which all of them report, and
//! the promise that nothing of a closed conversation is heard.
//! Never: sees the core's state. Whether a report still means something is the core's decision.
//!
//! To add a backend: implement [`Backend`], answer every [`Command`] as its documentation says, and
//! put it in the list that `io::run` is given. A conversation reads its commands at all times, also
//! while it waits for room to report in, because a cancellation may be among them.
#![doc = include_str!("README.md")]

pub mod acp;
pub mod byte_budget;
pub mod probe;
pub mod script;
pub mod secrets;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use self::byte_budget::{ByteBudget, ByteReservation};
use self::probe::ProbeResult;
use crate::host::effects::{
    AgentDescription, ChatKey, Command, Event, OpenConversation, OpenFailure, Tokens, TurnEvent,
};

/// Maximum number of queued reports; conversations wait while the queue is full.
const REPORTS_MAX: usize = 256;

/// Maximum size of the queued reports of all conversations, in bytes; conversations wait while it
/// is reached.
const REPORTS_BYTES_MAX: usize = 4 << 20;

/// Time for which an agent that is no longer offered goes on when its last conversation is closed.
const RETIRED_LINGER: Duration = Duration::from_secs(2);

/// A kind of agent.
pub trait Backend: Send {
    /// Returns the description of the agent that clients receive. Starts nothing.
    fn describe(&self) -> AgentDescription;

    /// A conversation, as a task that lasts until its commands end.
    ///
    /// It first reports [`Event::Opened`] or [`Event::OpenFailed`]. When it returns an error before
    /// it is told to close, that is reported as its death.
    fn converse(&self, open: OpenConversation, line: HostLine) -> RunningConversation;

    /// Ends whatever it has started outside of this process, for good.
    fn stop(&self) -> Stopping {
        Box::pin(std::future::ready(()))
    }
}

/// A running conversation.
pub type RunningConversation = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// The end of a backend: ready when nothing of it is left.
pub type Stopping = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A conversation's line to the host.
#[derive(Debug)]
pub struct HostLine {
    /// Commands from the host. The channel ends when the conversation is closed.
    pub commands: mpsc::UnboundedReceiver<Command>,
    /// Sender for the conversation's reports.
    pub reports: ReportSender,
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
    /// The chat that it reports of.
    pub fn chat(&self) -> ChatKey {
        self.chat
    }

    /// Waits until there is room to report in, so that a conversation can do something else
    /// meanwhile. May be dropped half-way. None when the process ends and nobody listens any more.
    pub async fn reserve(&self) -> Option<ReportPermit<'_>> {
        let taken = self.bytes.reserve().await?;
        let permit = self.sender.reserve().await.ok()?;
        Some(ReportPermit { permit, taken, chat: self.chat, conversation: self.conversation })
    }

    /// Returns a permit to send a report if there is room at once; never waits.
    pub fn try_reserve(&self) -> Option<ReportPermit<'_>> {
        let taken = self.bytes.try_reserve()?;
        let permit = self.sender.try_reserve().ok()?;
        Some(ReportPermit { permit, taken, chat: self.chat, conversation: self.conversation })
    }

    /// Reports, waiting for room.
    pub async fn report(&self, event: Event) {
        match self.reserve().await {
            Some(room) => room.report(event),
            None => tracing::debug!("an event of an agent was dropped: the host has left"),
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
    /// Reports, at once.
    pub fn report(self, event: Event) {
        let Self { permit, mut taken, chat, conversation } = self;
        taken.grow_to(event.bytes());
        permit.send(Report { chat, conversation, event, taken });
    }
}

/// Something that a conversation reported.
#[derive(Debug)]
pub struct Report {
    chat: ChatKey,
    /// Number of the conversation that reported: a chat may have several, one after another.
    conversation: u64,
    event: Event,
    /// Room that the report takes up until it is received.
    taken: ByteReservation,
}

/// An agent that is offered from now on.
pub enum OfferedAgent {
    /// The backend of this provider id, as it is.
    AsBefore(String),
    /// Backend that is new, or was changed.
    New(Box<dyn Backend>),
}

/// A backend, and whether it has been replaced or removed.
struct OfferedBackend {
    provider: String,
    backend: Box<dyn Backend>,
    /// Seen also by probes that are in progress, whose results mean nothing then.
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
    /// Backends that are no longer offered, until the last conversation with them has ended.
    retired: Vec<OfferedBackend>,
    open: BTreeMap<ChatKey, OpenHandle>,
    reports: mpsc::Sender<Report>,
    reports_bytes: ByteBudget,
    last_conversation: u64,
    met: mpsc::UnboundedSender<(String, ProbeResult)>,
}

struct OpenHandle {
    conversation: u64,
    /// The backend that it is with.
    is_retired: Arc<AtomicBool>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Agents {
    /// The agents of these backends, the channel on which all conversations report, and the one on
    /// which probes do.
    pub fn new(
        backends: Vec<Box<dyn Backend>>,
    ) -> (Self, mpsc::Receiver<Report>, mpsc::UnboundedReceiver<(String, ProbeResult)>) {
        let (reports, receiver) = mpsc::channel(REPORTS_MAX);
        let (met, probes) = mpsc::unbounded_channel();
        let reports_bytes = ByteBudget::new(REPORTS_BYTES_MAX);
        let agents = Self {
            backends: backends.into_iter().map(OfferedBackend::new).collect(),
            retired: Vec::new(),
            open: BTreeMap::new(),
            reports,
            reports_bytes,
            last_conversation: 0,
            met,
        };
        (agents, receiver, probes)
    }

    /// Probes an agent, in the background, with these tokens. Must be called inside a tokio
    /// runtime.
    pub fn probe(&self, provider: String, tokens: Tokens) {
        let Some(known) = self.known(&provider) else { return };
        let (begun, met) = (probe::run(&*known.backend, tokens), self.met.clone());
        let is_retired = Arc::clone(&known.is_retired);
        tokio::spawn(async move {
            let probe = begun.await;
            if is_retired.load(Ordering::Acquire) {
                tracing::debug!(provider, "what an agent said of itself was dropped: it was replaced");
            } else if met.send((provider, probe)).is_err() {
                tracing::debug!("what an agent said of itself was dropped: the host has left");
            }
        });
    }

    fn known(&self, provider: &str) -> Option<&OfferedBackend> {
        self.backends.iter().find(|known| known.provider == provider)
    }

    /// Returns the description of each offered backend, in order.
    pub fn describe(&self) -> Vec<AgentDescription> {
        self.backends.iter().map(|known| known.backend.describe()).collect()
    }

    /// Offers these agents from now on, in this order. Conversations with others go on until they
    /// are closed; then what those agents have started is ended. Must be called inside a tokio
    /// runtime.
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

    /// Ends what retired agents have started with which nobody talks any more.
    fn stop_idle_retired(&mut self) {
        let open = &self.open;
        self.retired.retain(|known| {
            let is_used = open.values().any(|open| Arc::ptr_eq(&open.is_retired, &known.is_retired));
            if !is_used {
                let stopping = known.backend.stop();
                tokio::spawn(async move {
                    // Its last conversation may be saying goodbye.
                    tokio::time::sleep(RETIRED_LINGER).await;
                    stopping.await;
                });
            }
            is_used
        });
    }

    /// Forgets a conversation that is over.
    fn close(&mut self, chat: ChatKey) {
        self.open.remove(&chat);
        if !self.retired.is_empty() {
            self.stop_idle_retired();
        }
    }

    /// Carries out what the core asks. Must be called inside a tokio runtime.
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

    /// Returns the event of a report, with its chat; `None` if its conversation has been closed, or
    /// if it describes an agent that was replaced.
    pub fn accept(&mut self, report: Report) -> Option<(ChatKey, Event)> {
        self.accept_event(report.chat, report.conversation, report.event)
    }

    fn accept_event(&mut self, chat: ChatKey, conversation: u64, event: Event) -> Option<(ChatKey, Event)> {
        let open = self.open.get(&chat).filter(|open| open.conversation == conversation)?;
        if matches!(event, Event::Described(_)) && open.is_retired.load(Ordering::Acquire) {
            // It is not true of the agent that has its name now.
            return None;
        }
        if matches!(event, Event::OpenFailed { .. } | Event::Left | Event::Died { .. }) {
            self.close(chat);
        }
        Some((chat, event))
    }

    /// Accepts reports, in order. Texts that follow each other, of one kind in one run, become one
    /// event.
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

    /// Has every backend end what it has started, all at once; ready when nothing of it is left.
    /// Must be called inside a tokio runtime.
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

    fn open(&mut self, chat: ChatKey, open: OpenConversation) {
        self.last_conversation += 1;
        let conversation = self.last_conversation;
        let (commands, receiver) = mpsc::unbounded_channel();
        let reports = ReportSender {
            chat,
            conversation,
            sender: self.reports.clone(),
            bytes: self.reports_bytes.clone(),
        };
        let line = HostLine { commands: receiver, reports: reports.clone() };
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
            // Not heard when the conversation was closed before.
            reports.report(Event::Died { reason }).await;
        });
    }
}

/// Joins an event with the one before it if both are texts of one kind in one run; else gives it
/// back.
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
