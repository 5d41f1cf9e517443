//! Reads from the store for clients.
//!
//! Owns: the reading threads, which also build sessions from what they read, so that a long chat, a
//! long list or old actions delay only the requesting client; and the queue for them.
//! Never: decides what to read, or interprets the result.

use std::collections::BTreeMap;
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};

use super::held::Tick;
use super::queue::{FairQueue, QueuedJob};
use crate::backend::AnsweredAgentSessions;
use crate::host;
use crate::host::effects::{
    AgentSessionsFailure, ConnectionId, Frame, KnownConversation, Listed, OpenFailure, Page, Past,
};
use crate::host::limits::Limits;
use crate::host::{LoadedSession, StoredSummary};
use crate::state::texts::TurnText;
use crate::store::errors::StoreError;
use crate::store::reader::{FoundSession, Reader};
use crate::sync::lock;
use crate::versions::dialect::Dialect;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::RequestId;

/// Number of jobs that each thread may have, so that it goes on while the loop is busy.
const JOBS_PER_THREAD: usize = 2;

/// Request for what a message needs from the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// Client whose last version is needed.
    pub client: Option<String>,
    /// Number after which actions are needed.
    pub past: Option<u64>,
    /// URIs of the needed sessions, or of chats in them.
    pub uris: Vec<String>,
    /// Set if the list of sessions is needed.
    pub kept: bool,
    /// Texts of turns that must be in memory.
    pub texts: Vec<TurnText>,
}

impl ReadRequest {
    /// Returns whether nothing is needed.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Result of a [`ReadRequest`].
#[derive(Debug, Default)]
pub struct ReadResult {
    /// Version of the client, if requested; the inner `None` means unknown.
    pub version: Option<Option<Dialect>>,
    /// Actions, if requested; the inner `None` means that the store lacks some of them.
    pub past: Option<Option<Past>>,
    /// Existing sessions among the requested ones, each once.
    pub sessions: Vec<LoadedSession>,
    /// URIs that exist and cannot be read, with the reason.
    pub unreadable: Vec<(String, String)>,
    /// URIs of all sessions, each with its provider, if requested.
    pub kept: Option<Vec<(String, String)>>,
    /// Requested texts. They stay in memory as long as a copy of the bytes exists.
    pub texts: Vec<Bytes>,
}

/// Result of a read for a connection.
#[derive(Debug)]
pub enum FinishedRead {
    /// Result for a held message.
    Found(ReadResult),
    /// Page of the list of sessions.
    Listed(Box<ListRead>),
    /// Conversations of stored sessions, for an agent's answer about its own.
    Conversations(Box<AnsweredAgentSessions>, Vec<KnownConversation>),
    /// Answer, ready to be sent.
    Answer(Frame),
}

/// Request for a page of the list of sessions.
#[derive(Debug, Clone)]
pub struct ListRequest {
    /// Id of the client's request.
    pub id: RequestId,
    /// Requested page.
    pub page: Page,
    /// Start of the read; `None` if a commit was pending then.
    pub began: Option<Tick>,
}

/// Page of the list that was read for a request.
#[derive(Debug)]
pub struct ListRead {
    /// Request that the page answers.
    pub asked: ListRequest,
    /// Sessions that were read.
    pub listed: Listed,
    /// Answer to send if the list has not changed since the read began.
    pub answer: Frame,
}

/// Job for a reading thread.
#[derive(Debug)]
pub struct ReadJob {
    connection: ConnectionId,
    task: Task,
}

impl QueuedJob for ReadJob {
    fn bytes(&self) -> usize {
        let texts = match &self.task {
            Task::List(ListRequest { id, .. }) => id.as_json().len(),
            // The held message, or the answer of an agent, has its texts.
            Task::Recall(_) | Task::Conversations(_) => 0,
        };
        size_of::<Self>() + texts
    }
}

#[derive(Debug)]
enum Task {
    Recall(ReadRequest),
    List(ListRequest),
    Conversations(Box<AnsweredAgentSessions>),
}

/// Reading threads and their queue of jobs.
#[derive(Debug)]
pub struct Readers {
    /// Readers of the threads, before the threads start.
    at_rest: Vec<Reader>,
    limits: Limits,
    waiting: FairQueue<ReadJob>,
    /// Connection whose job was given to the threads last.
    last_served: Option<ConnectionId>,
    jobs: Sender<ReadJob>,
    to_do: Arc<Mutex<Receiver<ReadJob>>>,
    results: UnboundedSender<(ConnectionId, FinishedRead)>,
    running: usize,
    running_max: usize,
}

impl Task {
    fn failing(&self) -> Box<dyn FnOnce() -> FinishedRead> {
        match self {
            Self::Recall(wanted) => {
                let why = "an internal error occurred while it was read; the log has the details";
                let unreadable = wanted.uris.iter().map(|uri| (uri.clone(), why.to_owned()));
                let nothing = ReadResult {
                    version: wanted.client.as_ref().map(|_| None),
                    past: wanted.past.map(|_| None),
                    sessions: Vec::new(),
                    unreadable: unreadable.collect(),
                    kept: wanted.kept.then(Vec::new),
                    texts: Vec::new(),
                };
                Box::new(|| FinishedRead::Found(nothing))
            }
            Self::List(ListRequest { id, .. }) => {
                let id = Some(id.clone());
                Box::new(|| {
                    let error = RpcError::internal("an internal error occurred while the store was read; the log of the host has the details");
                    FinishedRead::Answer(Frame::Error { id, error })
                })
            }
            Self::Conversations(answered) => {
                let unknown = unknown(answered, "an internal error occurred while the store was read");
                Box::new(|| FinishedRead::Conversations(unknown, Vec::new()))
            }
        }
    }
}

impl Readers {
    /// Creates the queue for threads that start later, and the receiver of the results.
    pub fn new(
        at_rest: Vec<Reader>,
        limits: Limits,
    ) -> (Self, UnboundedReceiver<(ConnectionId, FinishedRead)>) {
        let (jobs, to_do) = channel();
        let (results, receiver) = unbounded_channel();
        let readers = Self {
            running_max: JOBS_PER_THREAD * at_rest.len(),
            at_rest,
            limits,
            waiting: FairQueue::default(),
            last_served: None,
            jobs,
            to_do: Arc::new(Mutex::new(to_do)),
            results,
            running: 0,
        };
        (readers, receiver)
    }

    /// Returns a reader for use before the threads begin.
    pub fn at_rest(&self) -> Option<&Reader> {
        self.at_rest.first()
    }

    /// Starts the threads.
    pub fn begin(&mut self) -> io::Result<()> {
        for reader in self.at_rest.drain(..) {
            let (to_do, results, limits) = (Arc::clone(&self.to_do), self.results.clone(), self.limits);
            let work = move || read_all(&reader, limits, &to_do, &results);
            thread::Builder::new().name("read".to_owned()).spawn(work)?;
        }
        Ok(())
    }

    /// Replaces the threads by a reader that tests control.
    #[cfg(test)]
    pub fn by_hand(&mut self) -> ManualReaders {
        let reader = self.at_rest.pop().expect("the threads have not begun");
        ManualReaders {
            reader,
            limits: self.limits,
            to_do: Arc::clone(&self.to_do),
            results: self.results.clone(),
        }
    }

    /// Queues a read for the held message of this connection.
    pub fn recall(&mut self, connection: ConnectionId, wanted: ReadRequest) {
        self.read(ReadJob { connection, task: Task::Recall(wanted) });
    }

    /// Queues a read of the conversations of stored sessions, for an agent's answer about its own.
    pub fn conversations(&mut self, answered: AnsweredAgentSessions) {
        self.read(ReadJob { connection: answered.connection, task: Task::Conversations(Box::new(answered)) });
    }

    /// Queues a request for a page of the list of sessions.
    pub fn list(&mut self, connection: ConnectionId, asked: ListRequest) {
        self.read(ReadJob { connection, task: Task::List(asked) });
    }

    fn read(&mut self, job: ReadJob) {
        self.waiting.push(job.connection, job);
        self.start();
    }

    fn start(&mut self) {
        while self.running < self.running_max {
            let Some(job) = self.waiting.take(&mut self.last_served, |_, _| Some(0)) else { return };
            self.running += 1;
            // Cannot fail: `self` holds the receiver.
            self.jobs.send(job).unwrap_or_default();
        }
    }

    /// Notes that a result has arrived.
    pub fn answered(&mut self) {
        self.running = self.running.saturating_sub(1);
        self.start();
    }

    /// Drops the queued reads of a closed connection, except those that the answer of an agent
    /// waits for: the core must receive it.
    pub fn connection_closed(&mut self, connection: ConnectionId) {
        self.waiting.retain(connection, |job| matches!(job.task, Task::Conversations(_)));
    }

    /// Returns the size of a connection's queued reads, in bytes.
    pub fn bytes_of(&self, connection: ConnectionId) -> usize {
        self.waiting.bytes_of(connection)
    }

    /// Returns whether no read is pending.
    pub fn is_idle(&self) -> bool {
        self.running == 0
    }
}

fn read_all(
    reader: &Reader,
    limits: Limits,
    to_do: &Mutex<Receiver<ReadJob>>,
    results: &UnboundedSender<(ConnectionId, FinishedRead)>,
) {
    loop {
        let job = lock(to_do).recv();
        let Ok(job) = job else { return };
        let is_list = matches!(job.task, Task::List(_));
        if results.send(job.answered_by(|job| job.read(reader, &limits))).is_err() {
            return;
        }
        // Checked after the answer: visiting every row would delay the first page of a long list.
        // If an index is damaged, later lists are made without it.
        if is_list {
            // A panic, which is logged where it happens, must not end the thread.
            let checked = catch_unwind(AssertUnwindSafe(|| reader.trusts_indexes()));
            if let Ok(Err(error)) = checked {
                tracing::error!(%error, "the indexes of the store cannot be checked");
            }
        }
    }
}

impl ReadJob {
    /// Runs the job with `read`. A panic, which is logged where it happens, becomes a failure.
    fn answered_by(
        self,
        read: impl FnOnce(Self) -> (ConnectionId, FinishedRead),
    ) -> (ConnectionId, FinishedRead) {
        let (connection, failing) = (self.connection, self.task.failing());
        catch_unwind(AssertUnwindSafe(|| read(self))).unwrap_or_else(|_| (connection, failing()))
    }

    /// Runs the job.
    pub fn read(self, reader: &Reader, limits: &Limits) -> (ConnectionId, FinishedRead) {
        let read = match self.task {
            Task::Recall(wanted) => FinishedRead::Found(look_up(reader, limits, wanted)),
            Task::Conversations(answered) => match reader.conversations() {
                Ok(known) => FinishedRead::Conversations(answered, known),
                Err(error) => {
                    tracing::error!(%error, "the conversations of stored sessions cannot be read");
                    FinishedRead::Conversations(unknown(&answered, &error.to_string()), Vec::new())
                }
            },
            Task::List(asked) => match reader.list_at_once(&asked.page) {
                Ok(listed) => {
                    let answer = listing(asked.id.clone(), &listed);
                    FinishedRead::Listed(Box::new(ListRead { asked, listed, answer }))
                }
                Err(error) => {
                    tracing::error!(%error, "the list of sessions cannot be read");
                    FinishedRead::Answer(Frame::Error {
                        id: Some(asked.id),
                        error: RpcError::unavailable(error),
                    })
                }
            },
        };
        (self.connection, read)
    }
}

/// Returns an answer that fails because the store could not be read.
fn unknown(answered: &AnsweredAgentSessions, why: &str) -> Box<AnsweredAgentSessions> {
    let reason = format!("it is not known which sessions of the agent are here already: {why}");
    Box::new(AnsweredAgentSessions {
        connection: answered.connection,
        id: answered.id.clone(),
        request: answered.request.clone(),
        answer: Err(AgentSessionsFailure { kind: OpenFailure::Unavailable, reason }),
    })
}

fn look_up(reader: &Reader, limits: &Limits, wanted: ReadRequest) -> ReadResult {
    let version = wanted.client.map(|client| match reader.client_version(&client) {
        Ok(version) => version.as_deref().and_then(Dialect::from_name),
        Err(error) => {
            tracing::error!(%error, "the stored version of a client cannot be read");
            None
        }
    });
    let past = wanted.past.map(|cursor| {
        past_since(reader, cursor).unwrap_or_else(|error| {
            tracing::error!(%error, "old actions cannot be read");
            None
        })
    });
    let kept = wanted.kept.then(|| {
        reader.providers().unwrap_or_else(|error| {
            tracing::error!(%error, "the URIs of the stored sessions cannot be read");
            Vec::new()
        })
    });
    // An unreadable text is reported where it is used.
    let texts = wanted.texts.iter().filter_map(|text| text.get().ok()).collect();
    let mut found = ReadResult { version, past, kept, texts, ..ReadResult::default() };
    for uri in wanted.uris {
        let is_there = |key| found.sessions.iter().any(|loaded| loaded.key() == key);
        let read = reader.look_up(&uri, is_there);
        match read {
            Ok(saved) => found.sessions.extend(saved.map(|saved| LoadedSession::of(saved, limits))),
            Err(error) => {
                tracing::error!(%error, uri, "a session cannot be read");
                found.unreadable.push((uri, error.to_string()));
            }
        }
    }
    found
}

/// Returns the actions after a number, if all are stored. Skips sessions that cannot be read.
fn past_since(reader: &Reader, cursor: u64) -> Result<Option<Past>, StoreError> {
    let Some(actions) = reader.actions_since(cursor)? else { return Ok(None) };
    let mut sessions = BTreeMap::new();
    for FoundSession { key, row, is_removed } in
        reader.sessions_of(actions.iter().map(|(channel, _)| *channel))?
    {
        match row.map(|row| StoredSummary::of(&row, is_removed)).transpose() {
            Ok(kept) => {
                sessions.insert(key, kept);
            }
            Err(reason) => tracing::error!(key = key.0, reason, "a session cannot be read"),
        }
    }
    Ok(Some(Past { actions, sessions }))
}

/// Returns the answer to a request for a page of the list of sessions.
pub fn listing(id: RequestId, listed: &Listed) -> Frame {
    Frame::result(id, Method::ListSessions, host::listing(listed))
}

/// Stand-in for the threads that runs one job at a time.
#[cfg(test)]
#[derive(Debug)]
pub struct ManualReaders {
    reader: Reader,
    limits: Limits,
    to_do: Arc<Mutex<Receiver<ReadJob>>>,
    results: UnboundedSender<(ConnectionId, FinishedRead)>,
}

#[cfg(test)]
impl ManualReaders {
    /// Returns the next job, if any.
    pub fn next(&self) -> Option<ReadJob> {
        self.to_do.lock().unwrap().try_recv().ok()
    }

    /// Runs a job.
    pub fn read(&self, job: ReadJob) -> (ConnectionId, FinishedRead) {
        job.read(&self.reader, &self.limits)
    }

    /// Sends a result to the loop.
    pub fn deliver(&self, read: (ConnectionId, FinishedRead)) {
        self.results.send(read).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_something_is_read_is_an_answer() {
        let connection = ConnectionId(3);
        let wanted = ReadRequest {
            client: None,
            past: Some(7),
            uris: vec!["ahp-session:/s".to_owned()],
            kept: true,
            texts: Vec::new(),
        };
        let job = ReadJob { connection, task: Task::Recall(wanted) };
        let (asker, FinishedRead::Found(found)) = job.answered_by(|_| panic!("a defect")) else { panic!() };
        assert_eq!((asker, found.unreadable.len()), (connection, 1));
        assert!(matches!((found.version, found.past), (None, Some(None))));

        let page = Page { after: None, limit: 1 };
        let asked = ListRequest { id: RequestId::inner(1), page, began: None };
        let job = ReadJob { connection, task: Task::List(asked) };
        let (_, FinishedRead::Answer(frame)) = job.answered_by(|_| panic!("a defect")) else { panic!() };
        assert!(matches!(frame, Frame::Error { id: Some(id), .. } if id == RequestId::inner(1)));
    }
}
