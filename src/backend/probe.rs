//! Probes: conversations without a turn, by which the host learns what an agent offers.
//!
//! Owns: one probe, and the decision when the agent has reported enough.
//! Never: starts a turn.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use ahp_types::common::JsonObject;
use ahp_types::state::SessionConfigState;
use tokio::sync::mpsc;
use tokio::time::{timeout_at, Instant};

use super::byte_budget::ByteBudget;
use super::{Backend, HostLine, Report, ReportSender, RunningConversation, REPORTS_BYTES_MAX, REPORTS_MAX};
use crate::host::effects::{ChatKey, Command, Event, OpenConversation, OpenFailure, SelfDescription, Tokens};

/// Duration of a probe after opening: some agents report their commands only then.
const LINGER: Duration = Duration::from_millis(700);

/// Result of probing an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeResult {
    /// Description that the agent reported of itself.
    pub description: SelfDescription,
    /// Configuration of a new session; `None` if no session could be opened.
    pub config: Option<SessionConfigState>,
    /// Kind of the failure, and its reason for people; `None` if nothing failed.
    pub failure: Option<(OpenFailure, String)>,
}

/// Probes an agent with these tokens, in a conversation that works in the agent's own folder.
/// Nothing runs before the first poll.
pub fn run(backend: &dyn Backend, tokens: Tokens) -> impl Future<Output = ProbeResult> + Send + 'static {
    let open = OpenConversation {
        client_tools: Vec::new(),
        mcp_servers: Vec::new(),
        client_mcp_servers: Vec::new(),
        provider: backend.describe().info.provider,
        working_directories: Vec::new(),
        config: JsonObject::new(),
        tokens,
        history: Vec::new(),
        handle: None,
        copy_of: None,
        attached: BTreeMap::new(),
        selection: None,
    };
    let (commands, receiver) = mpsc::unbounded_channel();
    let (sender, reports) = mpsc::channel(REPORTS_MAX);
    // No chat has this key, and no report of it goes elsewhere.
    let bytes = ByteBudget::new(REPORTS_BYTES_MAX);
    let line = HostLine {
        commands: receiver,
        reports: ReportSender { chat: ChatKey(0), conversation: 0, sender, bytes },
        servers: Vec::new(),
    };
    receive(backend.converse(open, line), reports, commands)
}

/// Receives the reports of a conversation that only probes its agent.
async fn receive(
    conversation: RunningConversation,
    mut reports: mpsc::Receiver<Report>,
    commands: mpsc::UnboundedSender<Command>,
) -> ProbeResult {
    let task = tokio::spawn(conversation);
    let mut met = ProbeResult { description: SelfDescription::default(), config: None, failure: None };
    let mut until = None;
    loop {
        let report = match until {
            None => reports.recv().await,
            Some(until) => timeout_at(until, reports.recv()).await.unwrap_or_default(),
        };
        let Some(Report { event, .. }) = report else { break };
        match event {
            Event::Described(news) => drop(met.description.learn(*news)),
            Event::Configured { config, .. } => met.config = Some(*config),
            Event::Opened => until = Some(Instant::now() + LINGER),
            Event::OpenFailed { kind, reason } => {
                met.failure = Some((kind, reason));
                break;
            }
            Event::Died { reason } => {
                met.failure = Some((OpenFailure::Unavailable, reason));
                break;
            }
            _ => {}
        }
    }
    // The conversation is closed; it must not wait for a receiver of its last reports.
    drop((commands, reports));
    match task.await {
        Ok(Err(error)) if met.failure.is_none() => {
            met.failure = Some((OpenFailure::Unavailable, format!("{error:#}")));
        }
        Ok(_) => {}
        Err(error) => tracing::error!(%error, "the task that asks an agent what it is has failed"),
    }
    met
}
