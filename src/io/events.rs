//! Events that wake the loop.
//!
//! Owns: the closed list of causes ([`LoopEvent`]), and waiting for the next event that is wanted.
//! Never: decides about the consequences of an event.

use std::future::ready;

use tokio::sync::mpsc;
use tokio::time::{sleep_until, Instant};

use super::fronts::JoinRequest;
use super::git::GitProcessEvent;
use super::link;
use super::persistence::CommitEvent;
use super::ptys::PtyReport;
use super::readers::FinishedRead;
use super::resources::ResourceAnswer;
use super::states::Piece;
use super::telemetry::LogExports;
use super::upkeep::UpkeepEvent;
use super::watches::{StartedWatches, WatchEvents};
use crate::backend::probe::ProbeResult;
use crate::backend::{AgentReceivers, AnsweredAgentSessions, Report};
use crate::host::effects::ConnectionId;
use crate::host::Findings;
use crate::io::directories::CheckFor;
use crate::os::hangup::LeaveReason;
use crate::watches::engine::WatchReport;

/// Maximum number of agent reports handled in one step.
const REPORTS_AT_ONCE: usize = 256;

/// Event that wakes the loop.
#[derive(Debug)]
pub enum LoopEvent {
    /// Event of a connection.
    Link(link::TransportEvent),
    /// Reports of agents, in order.
    Reports(Vec<Report>),
    /// Result of probing an agent, with its provider id.
    Probed(String, Box<ProbeResult>),
    /// Answer of an agent about the sessions that it stores.
    AgentSessions(Box<AnsweredAgentSessions>),
    /// Event of the committing thread.
    Committed(CommitEvent),
    /// Result of reading the store for a connection.
    Read(ConnectionId, FinishedRead),
    /// Findings about the directories that a connection's message, or a run, names.
    DirectoriesFound(CheckFor, Findings),
    /// Answer to a connection's request for a resource.
    Resource(ResourceAnswer),
    /// Watches that were started, or refused, for a connection's message.
    WatchesStarted(ConnectionId, StartedWatches),
    /// Changes of watched files.
    Changed(WatchReport),
    /// Start of the core's own watch on this channel, or its failure.
    OwnWatch(String, bool),
    /// Report of a program in a terminal.
    Pty(PtyReport),
    /// Event of the process that runs git.
    Git(GitProcessEvent),
    /// Piece of a large message that another thread writes.
    Piece(Piece),
    /// Hello of a front.
    FrontJoins(Box<JoinRequest>),
    /// Change of a file that others may change under a running host.
    Upkeep(UpkeepEvent),
    /// Log records for clients have become pending.
    LogsPending,
    /// Reason to leave.
    Leave(LeaveReason),
    /// Expired timer or deadline.
    TimerDue,
    /// Pending input of clients, while no other event has occurred.
    InputPending,
}

/// Optional events that the loop wants now; all others are always wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Interests {
    /// Set for reports of agents and changes of watched files.
    pub reports: bool,
    /// Set for reports of programs in terminals.
    pub ptys: bool,
    /// Time of the next timer; `None` if there is none.
    pub due: Option<Instant>,
    /// Set if received input of clients is not handled yet.
    pub unhandled_input: bool,
}

/// Receivers of all events.
#[derive(Debug)]
pub struct Events {
    /// Events of connections.
    pub links: mpsc::UnboundedReceiver<link::TransportEvent>,
    /// Receivers for reports of agents.
    pub agents: AgentReceivers,
    /// Events of the committing thread.
    pub committed: mpsc::UnboundedReceiver<CommitEvent>,
    /// Results of reading the store.
    pub read: mpsc::UnboundedReceiver<(ConnectionId, FinishedRead)>,
    /// Findings about working directories.
    pub directories: mpsc::UnboundedReceiver<(CheckFor, Findings)>,
    /// Answers about resources.
    pub resources: mpsc::UnboundedReceiver<ResourceAnswer>,
    /// Results of starting watches, and changes of watched files.
    pub watches: WatchEvents,
    /// Reports of programs in terminals.
    pub ptys: mpsc::UnboundedReceiver<PtyReport>,
    /// Events of the process that runs git.
    pub git: mpsc::UnboundedReceiver<GitProcessEvent>,
    /// Pieces of large messages that other threads write.
    pub pieces: mpsc::UnboundedReceiver<Piece>,
    /// Fronts whose first line has arrived.
    pub join_requests: mpsc::UnboundedReceiver<JoinRequest>,
    /// Changes of files that others may change under a running host.
    pub upkeep: mpsc::UnboundedReceiver<UpkeepEvent>,
    /// Streams in which clients receive the log.
    pub log_exports: LogExports,
    /// Reasons to leave.
    pub leave_reasons: mpsc::UnboundedReceiver<LeaveReason>,
}

impl Events {
    /// Waits for the next event. Cancel safe: no event is lost.
    pub async fn next(&mut self, wants: Interests) -> LoopEvent {
        let mut reports = Vec::with_capacity(self.agents.reports.len().min(REPORTS_AT_ONCE));
        tokio::select! {
            Some(news) = self.links.recv() => LoopEvent::Link(news),
            Some((provider, met)) = self.agents.probed.recv() => LoopEvent::Probed(provider, Box::new(met)),
            Some(answered) = self.agents.sessions.recv() => LoopEvent::AgentSessions(Box::new(answered)),
            Some(kept) = self.committed.recv() => LoopEvent::Committed(kept),
            Some((connection, read)) = self.read.recv() => LoopEvent::Read(connection, read),
            Some((reason, findings)) = self.directories.recv() => LoopEvent::DirectoriesFound(reason, findings),
            Some(answered) = self.resources.recv() => LoopEvent::Resource(answered),
            Some((connection, begun)) = self.watches.begun.recv() => LoopEvent::WatchesStarted(connection, begun),
            Some((channel, has_begun)) = self.watches.begun_own.recv() => LoopEvent::OwnWatch(channel, has_begun),
            Some(report) = self.watches.reports.recv(), if wants.reports => LoopEvent::Changed(report),
            Some(report) = self.ptys.recv(), if wants.ptys => LoopEvent::Pty(report),
            Some(news) = self.git.recv() => LoopEvent::Git(news),
            Some(piece) = self.pieces.recv() => LoopEvent::Piece(piece),
            Some(join_request) = self.join_requests.recv() => LoopEvent::FrontJoins(Box::new(join_request)),
            Some(news) = self.upkeep.recv() => LoopEvent::Upkeep(news),
            () = self.log_exports.pending(), if self.log_exports.has_streams() => LoopEvent::LogsPending,
            Some(loss) = self.leave_reasons.recv() => LoopEvent::Leave(loss),
            _ = self.agents.reports.recv_many(&mut reports, REPORTS_AT_ONCE), if wants.reports => LoopEvent::Reports(reports),
            () = sleep_until(wants.due.unwrap_or_else(Instant::now)), if wants.due.is_some() => LoopEvent::TimerDue,
            () = ready(()), if wants.unhandled_input => LoopEvent::InputPending,
        }
    }

    /// Returns an event that is ready, without waiting; `None` if there is none.
    pub async fn now(&mut self, wants: Interests) -> Option<LoopEvent> {
        tokio::select! {
            biased;
            event = self.next(wants) => Some(event),
            () = ready(()) => None,
        }
    }
}
