//! What clients read and change of this machine's files, and read of `data:` URIs: the `resource*` methods.
//!
//! Owns: doing it on threads of its own, a few at a time, because a file system may take its time or for ever: what is
//! read as many at once as there is room for, what is written one after the other in the order in which it was asked for.
//! Never: decides what may be read or changed; that is in [`reading`] and [`changing`].

mod changing;
mod reading;

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::files;
use crate::host::effects::{Change, ConnectionId, Frame, Resource};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{to_json, RequestId};
pub use changing::Ground;

/// So many requests wait.
const WAITING_MAX: usize = 1024;

/// And so many bytes of what they bring.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// What is done one beside the other, or one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// What is read.
    Reads,
    /// Files that are written and folders that are made, in order.
    Writes,
    /// What is moved, copied and removed, which may take long.
    Trees,
}

impl Lane {
    const ALL: [Self; 3] = [Self::Reads, Self::Writes, Self::Trees];

    fn of(resource: &Resource) -> Self {
        match resource {
            Resource::Read { .. } | Resource::List { .. } | Resource::Resolve { .. } | Resource::Files(_) => {
                Self::Reads
            }
            Resource::Change { change, .. } => match **change {
                Change::Write(_) | Change::Mkdir(_) => Self::Writes,
                Change::Copy(_) | Change::Move(_) | Change::Delete(_) => Self::Trees,
                Change::Ask(_) => Self::Reads,
            },
        }
    }

    /// So many are done at the same time.
    fn at_once(self) -> usize {
        match self {
            Self::Reads => 4,
            Self::Writes => 1,
            Self::Trees => 2,
        }
    }
}

/// An answer, and whose it is.
#[derive(Debug)]
pub struct Answered {
    /// Who has asked.
    pub connection: ConnectionId,
    /// The answer.
    pub frame: Frame,
    lane: Lane,
}

/// Something that waits to be done.
#[derive(Debug)]
struct Job {
    connection: ConnectionId,
    id: RequestId,
    resource: Resource,
    lane: Lane,
}

/// What is read or changed, and what waits to be.
#[derive(Debug)]
pub struct Resources {
    waiting: VecDeque<Job>,
    waiting_bytes: usize,
    /// How many run, by their lanes.
    running: [usize; Lane::ALL.len()],
    ground: Arc<Ground>,
    answers: mpsc::UnboundedSender<Answered>,
}

impl Resources {
    /// Begins with nothing to do; answers come out of the receiver.
    pub fn new(ground: Ground) -> (Self, mpsc::UnboundedReceiver<Answered>) {
        let (answers, answered) = mpsc::unbounded_channel();
        let (waiting, ground) = (VecDeque::new(), Arc::new(ground));
        (Self { waiting, waiting_bytes: 0, running: [0; 3], ground, answers }, answered)
    }

    /// Takes a request; [`Resources::start`] begins with it when there is room.
    pub fn take(&mut self, connection: ConnectionId, id: RequestId, resource: Resource) {
        let lane = Lane::of(&resource);
        let bytes = bytes_of(&resource);
        if self.waiting.len() >= WAITING_MAX || self.waiting_bytes.saturating_add(bytes) > WAITING_BYTES_MAX {
            let error = RpcError::unavailable("too many requests about files wait already");
            self.running[lane as usize] += 1;
            let frame = Frame::Error { id: Some(id), error };
            return send(&self.answers, Answered { connection, frame, lane });
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(Job { connection, id, resource, lane });
    }

    /// Begins with what waits, as far as no more than a few run, and its connection has room for what is read.
    pub fn start(&mut self, mut has_room: impl FnMut(ConnectionId) -> bool) {
        for lane in Lane::ALL {
            while self.running[lane as usize] < lane.at_once() {
                let next = self
                    .waiting
                    .iter()
                    .position(|job| job.lane == lane && (lane != Lane::Reads || has_room(job.connection)));
                let Some(job) = next.and_then(|at| self.waiting.remove(at)) else { break };
                self.waiting_bytes -= bytes_of(&job.resource);
                self.begin(job);
            }
        }
    }

    fn begin(&mut self, job: Job) {
        let Job { connection, id, resource, lane } = job;
        let (answers, ground, asked) = (self.answers.clone(), Arc::clone(&self.ground), id.clone());
        let work = move || {
            // A panic is logged where it happens.
            let answered = catch_unwind(AssertUnwindSafe(|| answer(asked.clone(), resource, &ground)));
            let failed = |_| Frame::Error { id: Some(asked), error: RpcError::internal() };
            send(&answers, Answered { connection, frame: answered.unwrap_or_else(failed), lane });
        };
        self.running[lane as usize] += 1;
        if let Err(error) = thread::Builder::new().name("resource".to_owned()).spawn(work) {
            tracing::error!(%error, "no thread to work with a resource");
            let frame = Frame::Error { id: Some(id), error: RpcError::internal() };
            send(&self.answers, Answered { connection, frame, lane });
        }
    }

    /// An answer has arrived.
    pub fn answered(&mut self, answered: &Answered) {
        self.running[answered.lane as usize] -= 1;
    }

    /// Nothing is done, and nothing waits to be.
    pub fn is_idle(&self) -> bool {
        self.running.iter().all(|running| *running == 0) && self.waiting.is_empty()
    }
}

/// How much a request brings that is to be written, in bytes.
fn bytes_of(resource: &Resource) -> usize {
    match resource {
        Resource::Change { change, .. } => match &**change {
            Change::Write(write) => write.data.len(),
            _ => 0,
        },
        _ => 0,
    }
}

fn send(answers: &mpsc::UnboundedSender<Answered>, answered: Answered) {
    if answers.send(answered).is_err() {
        tracing::debug!("nobody waits for a resource any more");
    }
}

fn answer(id: RequestId, resource: Resource, ground: &Ground) -> Frame {
    let (method, result) = match resource {
        Resource::Read { uri, encoding } => {
            let read = reading::read(&uri, encoding.as_ref());
            (Method::ResourceRead, read.map(|result| to_json(&result)))
        }
        Resource::List { uri } => (Method::ResourceList, reading::list(&uri).map(|result| to_json(&result))),
        Resource::Resolve { uri, content, follows_links } => {
            let resolved = reading::resolve(&uri, content.as_deref(), follows_links);
            (Method::ResourceResolve, resolved.map(|result| to_json(&result)))
        }
        Resource::Files(meant) => (Method::Completions, Ok(to_json(&files::find(&meant)))),
        Resource::Change { change, below } => {
            let changed = changing::change(&change, &ground.folders(&below));
            (method_of(&change), changed.map(|()| b"{}".to_vec()))
        }
    };
    match result {
        Ok(result) => Frame::result(id, method, Bytes::from(result)),
        Err(error) => Frame::Error { id: Some(id), error },
    }
}

fn method_of(change: &Change) -> Method {
    match change {
        Change::Write(_) => Method::ResourceWrite,
        Change::Mkdir(_) => Method::ResourceMkdir,
        Change::Delete(_) => Method::ResourceDelete,
        Change::Move(_) => Method::ResourceMove,
        Change::Copy(_) => Method::ResourceCopy,
        Change::Ask(_) => Method::ResourceRequest,
    }
}
