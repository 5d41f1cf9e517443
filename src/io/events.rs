//! Events that wake the loop.
//!
//! Owns: the closed list of causes ([`LoopEvent`]), and waiting for the next one of those that are
//! wanted.
//! Never: decides what follows from one.

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
use super::upkeep::UpkeepEvent;
use super::watch::LeaveReason;
use super::watches::{StartedWatches, WatchEvents};
use crate::backend::probe::ProbeResult;
use crate::backend::Report;
use crate::host::effects::ConnectionId;
use crate::host::Findings;
use crate::watches::engine::WatchReport;

/// Maximum number of agents' reports taken in one step.
const REPORTS_AT_ONCE: usize = 256;

/// Event that wakes the loop.
#[derive(Debug)]
pub enum LoopEvent {
    /// Something has happened on a connection.
    Link(link::TransportEvent),
    /// Reports of agents, in order.
    Reports(Vec<Report>),
    /// An agent was met that was to be, by its provider id.
    Met(String, Box<ProbeResult>),
    /// Outcome of a commit.
    Kept(CommitEvent),
    /// Something was read from the store for a connection.
    Read(ConnectionId, FinishedRead),
    /// Directories were looked at for a connection.
    Looked(ConnectionId, Findings),
    /// A connection's request for a resource is answered.
    Resource(ResourceAnswer),
    /// Watches were to begin for the message of a connection.
    Begun(ConnectionId, StartedWatches),
    /// Files have changed that are watched.
    Changed(WatchReport),
    /// The core's own watch of this channel has begun.
    BegunOwn(String),
    /// Something was heard of the program in a terminal.
    Pty(PtyReport),
    /// Something is heard of git.
    Git(GitProcessEvent),
    /// A piece of what takes long to write is there.
    Piece(Piece),
    /// A front has said hello.
    Knock(Box<JoinRequest>),
    /// Something has changed that others may change under a running host.
    Upkeep(UpkeepEvent),
    /// There is a reason to leave.
    Lost(LeaveReason),
    /// The time has come that was waited for.
    Due,
    /// Clients have said more than was heard, and nothing else has happened.
    Unheard,
}

/// Events that are wanted besides those that always are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Interests {
    /// Reports of agents, and changes of watched files.
    pub reports: bool,
    /// Reports of programs in terminals.
    pub ptys: bool,
    /// This time.
    pub due: Option<Instant>,
    /// Set if clients have sent more than was received.
    pub unheard: bool,
}

/// Sources of events.
#[derive(Debug)]
pub struct Events {
    /// Events of connections.
    pub links: mpsc::UnboundedReceiver<link::TransportEvent>,
    /// Reports of agents.
    pub reports: mpsc::Receiver<Report>,
    /// Results of probing agents.
    pub met: mpsc::UnboundedReceiver<(String, ProbeResult)>,
    /// Outcomes of commits.
    pub kept: mpsc::UnboundedReceiver<CommitEvent>,
    /// Results of reading the store.
    pub read: mpsc::UnboundedReceiver<(ConnectionId, FinishedRead)>,
    /// Findings about directories.
    pub looked: mpsc::UnboundedReceiver<(ConnectionId, Findings)>,
    /// Answers about resources.
    pub resources: mpsc::UnboundedReceiver<ResourceAnswer>,
    /// Reports of watches.
    pub watches: WatchEvents,
    /// Reports of programs in terminals.
    pub ptys: mpsc::UnboundedReceiver<PtyReport>,
    /// Reports of git.
    pub git: mpsc::UnboundedReceiver<GitProcessEvent>,
    /// Pieces of what takes long to write.
    pub pieces: mpsc::UnboundedReceiver<Piece>,
    /// Fronts that have said hello.
    pub join_requests: mpsc::UnboundedReceiver<JoinRequest>,
    /// Changes that others make under a running host.
    pub upkeep: mpsc::UnboundedReceiver<UpkeepEvent>,
    /// Reasons to leave.
    pub lost: mpsc::UnboundedReceiver<LeaveReason>,
}

impl Events {
    /// Waits for the next event. May be dropped half-way: nothing is lost.
    pub async fn next(&mut self, wants: Interests) -> LoopEvent {
        let mut reports = Vec::new();
        tokio::select! {
            Some(news) = self.links.recv() => LoopEvent::Link(news),
            Some((provider, met)) = self.met.recv() => LoopEvent::Met(provider, Box::new(met)),
            Some(kept) = self.kept.recv() => LoopEvent::Kept(kept),
            Some((connection, read)) = self.read.recv() => LoopEvent::Read(connection, read),
            Some((connection, findings)) = self.looked.recv() => LoopEvent::Looked(connection, findings),
            Some(answered) = self.resources.recv() => LoopEvent::Resource(answered),
            Some((connection, begun)) = self.watches.begun.recv() => LoopEvent::Begun(connection, begun),
            Some(channel) = self.watches.begun_own.recv() => LoopEvent::BegunOwn(channel),
            Some(told) = self.watches.told.recv(), if wants.reports => LoopEvent::Changed(told),
            Some(report) = self.ptys.recv(), if wants.ptys => LoopEvent::Pty(report),
            Some(news) = self.git.recv() => LoopEvent::Git(news),
            Some(piece) = self.pieces.recv() => LoopEvent::Piece(piece),
            Some(join_request) = self.join_requests.recv() => LoopEvent::Knock(Box::new(join_request)),
            Some(news) = self.upkeep.recv() => LoopEvent::Upkeep(news),
            Some(loss) = self.lost.recv() => LoopEvent::Lost(loss),
            _ = self.reports.recv_many(&mut reports, REPORTS_AT_ONCE), if wants.reports => LoopEvent::Reports(reports),
            () = sleep_until(wants.due.unwrap_or_else(Instant::now)), if wants.due.is_some() => LoopEvent::Due,
            () = ready(()), if wants.unheard => LoopEvent::Unheard,
        }
    }

    /// An event that is there already.
    pub async fn now(&mut self, wants: Interests) -> Option<LoopEvent> {
        tokio::select! {
            biased;
            event = self.next(wants) => Some(event),
            () = ready(()) => None,
        }
    }
}
