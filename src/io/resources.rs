//! The `resource*` methods: reading and changing files of this machine, and reading `data:` URIs.
//!
//! Owns: the threads for these jobs, a few at a time, because a file system may block for long or
//! forever; which contents git reads now; and their order: a client's jobs on the same files run in
//! order, unless both only read.
//! Never: decides what may be read or changed; [`reading`] and [`changing`] do.

mod changing;
mod reading;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use ahp_types::commands::{ContentEncoding, CreateResourceWatchResult};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::completions;
use super::git::{ContentReader, GitQueue};
use super::queue::{FairQueue, QueuedJob};
use crate::files::folders::HostFile;
use crate::files::uris::{overlap, path_of};
use crate::host::effects::{
    Change, ConnectionId, Frame, GitWork, Input, Resource, RevertOutcome, RevertRequest,
};
use crate::watches::engine;
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{to_json, RequestId};
pub use changing::WritableFolders;

/// Maximum number of queued requests of all clients.
const WAITING_MAX: usize = 1024;

/// Maximum size of the queued requests of all clients, in bytes.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Number of requests that each client may always queue, even if the queue is full.
const ASSURED: usize = 64;

/// Size of the requests that each client may always queue, in bytes.
const ASSURED_BYTES: usize = 32 << 20;

/// Maximum number of queued requests per client that are considered for the next start.
const CONSIDERED_MAX: usize = 64;

/// Maximum number of concurrent reads per client and lane. It leaves room for others: a file system
/// may block a read, and git may queue one behind a long job.
const READS_OF_A_CLIENT_MAX: usize = 3;

/// Group of jobs with a limit on how many run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobLane {
    Reads,
    /// Reads of contents by git.
    Contents,
    /// Writes of files and creation of folders.
    Writes,
    /// Moves, copies and removals of trees, which may take long.
    Trees,
}

impl JobLane {
    const ALL: [Self; 4] = [Self::Reads, Self::Contents, Self::Writes, Self::Trees];

    fn of(resource: &Resource) -> Self {
        match resource {
            Resource::GitContent { .. } => Self::Contents,
            Resource::Read { .. }
            | Resource::List { .. }
            | Resource::Resolve { .. }
            | Resource::Watch(_)
            | Resource::Files(_) => Self::Reads,
            Resource::Revert { .. } => Self::Writes,
            Resource::Change { change, .. } => match **change {
                Change::Write(_) | Change::Mkdir(_) => Self::Writes,
                Change::Copy(_) | Change::Move(_) | Change::Delete(_) => Self::Trees,
                Change::Ask(_) => Self::Reads,
            },
        }
    }

    fn at_once(self) -> usize {
        match self {
            Self::Reads | Self::Contents => 4,
            Self::Writes => 1,
            Self::Trees => 2,
        }
    }
}

/// Answer to a request for a resource.
#[derive(Debug)]
pub struct ResourceAnswer {
    /// Connection that has sent the request.
    pub connection: ConnectionId,
    /// Outcome to send or feed to the core.
    pub answer: JobOutcome,
    /// Number of the job; `None` if it was not queued here, or not started.
    pub job: Option<u64>,
}

/// Outcome of a request.
#[derive(Debug)]
pub enum JobOutcome {
    /// Answer for the client.
    Frame(Frame),
    /// Input for the core, which answers the request.
    Core(RequestId, Box<Input>),
}

#[derive(Debug)]
struct ResourceJob {
    /// Sequence number of the request.
    number: u64,
    connection: ConnectionId,
    id: RequestId,
    resource: Resource,
    lane: JobLane,
    about: JobPaths,
    /// Size in memory, in bytes.
    bytes: usize,
}

impl QueuedJob for ResourceJob {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[derive(Debug)]
struct RunningJob {
    number: u64,
    connection: ConnectionId,
    lane: JobLane,
    about: JobPaths,
    /// Size in memory, in bytes.
    bytes: usize,
}

#[derive(Debug, Default)]
struct JobPaths {
    paths: Vec<PathBuf>,
    changes: bool,
}

impl JobPaths {
    fn of(resource: &Resource) -> Self {
        let read = |uri: &String| Self { paths: named([uri]), changes: false };
        match resource {
            Resource::Read { uri, .. } | Resource::List { uri } | Resource::Resolve { uri, .. } => read(uri),
            Resource::Files(_) | Resource::Watch(_) | Resource::GitContent { .. } => Self::default(),
            Resource::Revert { request: taken, .. } => {
                let paths = taken.files.iter().filter_map(|file| path_of(file.uri()).ok());
                Self { paths: paths.collect(), changes: true }
            }
            Resource::Change { change, .. } => {
                let paths = match &**change {
                    Change::Write(write) => named([&write.uri]),
                    Change::Mkdir(mkdir) => named([&mkdir.uri]),
                    Change::Delete(delete) => named([&delete.uri]),
                    Change::Move(moved) => named([&moved.source, &moved.destination]),
                    Change::Copy(copy) => named([&copy.source, &copy.destination]),
                    Change::Ask(asked) => return read(&asked.uri),
                };
                Self { paths, changes: true }
            }
        }
    }

    fn bytes(&self) -> usize {
        self.paths.iter().map(|path| path.as_os_str().len()).sum()
    }

    /// Returns whether the two jobs must not run at the same time.
    fn touches(&self, other: &Self) -> bool {
        (self.changes || other.changes) && overlap(&self.paths, &other.paths)
    }
}

fn named<const COUNT: usize>(uris: [&String; COUNT]) -> Vec<PathBuf> {
    uris.into_iter().filter_map(|uri| path_of(uri).ok()).collect()
}

/// Queued and running jobs.
#[derive(Debug)]
pub struct Resources {
    waiting: FairQueue<ResourceJob>,
    /// Connection whose job was started last, by lane.
    last_served: [Option<ConnectionId>; JobLane::ALL.len()],
    running: Vec<RunningJob>,
    last_number: u64,
    writable: Arc<WritableFolders>,
    answers: mpsc::UnboundedSender<ResourceAnswer>,
}

impl Resources {
    /// Creates an empty queue, and the receiver of the answers.
    pub fn new(writable: WritableFolders) -> (Self, mpsc::UnboundedReceiver<ResourceAnswer>) {
        let (answers, answered) = mpsc::unbounded_channel();
        let resources = Self {
            waiting: FairQueue::default(),
            last_served: Default::default(),
            running: Vec::new(),
            last_number: 0,
            writable: Arc::new(writable),
            answers,
        };
        (resources, answered)
    }

    /// Returns the files of the host that clients may not change.
    pub fn own(&self) -> Arc<[HostFile]> {
        self.writable.own()
    }

    /// Adds files of the host that clients may not change.
    pub fn keep_from_clients(&self, files: Vec<PathBuf>) {
        self.writable.keep_from_clients(files);
    }

    /// Queues a request for [`Resources::start`], or answers it with an error if the queue is full.
    pub fn take(&mut self, connection: ConnectionId, id: RequestId, resource: Resource) {
        let (lane, about) = (JobLane::of(&resource), JobPaths::of(&resource));
        let bytes = id.as_json().len() + bytes_of(&resource) + about.bytes();
        if !self.has_room_for(connection, bytes) {
            let error = RpcError::unavailable("too many requests about files wait already");
            let answer = failed(id, taken_by(&resource), error);
            return send(&self.answers, ResourceAnswer { connection, answer, job: None });
        }
        self.last_number += 1;
        let number = self.last_number;
        let job = ResourceJob { number, connection, id, resource, lane, about, bytes };
        self.waiting.push(connection, job);
    }

    fn has_room_for(&self, connection: ConnectionId, bytes: usize) -> bool {
        let fits = |queued: usize, max: usize| queued.saturating_add(bytes) <= max;
        let is_assured = self.waiting.of(connection).count() < ASSURED
            && fits(self.waiting.bytes_of(connection), ASSURED_BYTES)
            // Changes of closed connections are still made, so connections may have any number.
            && fits(self.waiting.bytes(), 2 * WAITING_BYTES_MAX);
        is_assured || self.waiting.count() < WAITING_MAX && fits(self.waiting.bytes(), WAITING_BYTES_MAX)
    }

    /// Drops the queued reads of a closed connection. Changes are still made: the host has accepted
    /// them.
    pub fn connection_closed(&mut self, connection: ConnectionId) {
        self.waiting.retain(connection, |job| job.about.changes);
    }

    /// Returns the size of a connection's queued and running requests, in bytes.
    pub fn bytes_of(&self, connection: ConnectionId) -> usize {
        let running = self.running.iter().filter(|job| job.connection == connection).map(|job| job.bytes);
        self.waiting.bytes_of(connection) + running.sum::<usize>()
    }

    /// Starts queued jobs within the limits of their lanes; connections take turns. Reads start
    /// only if `has_room` says that their connection has room for the answer.
    pub fn start(&mut self, git: &mut GitQueue, mut has_room: impl FnMut(ConnectionId) -> bool) {
        for lane in JobLane::ALL {
            let is_read = matches!(lane, JobLane::Reads | JobLane::Contents);
            while self.running.iter().filter(|running| running.lane == lane).count() < lane.at_once() {
                let running = &self.running;
                let next = self.waiting.take(&mut self.last_served[lane as usize], |connection, jobs| {
                    let of_same = |of: &&RunningJob| (of.lane, of.connection) == (lane, connection);
                    let is_full = || running.iter().filter(of_same).count() >= READS_OF_A_CLIENT_MAX;
                    if is_read && (is_full() || !has_room(connection)) {
                        return None;
                    }
                    // A job waits for running ones and earlier ones of its client. Queued jobs of
                    // other clients do not count: their client may not read.
                    let must_wait = |at: usize, job: &ResourceJob| {
                        running.iter().any(|running| running.about.touches(&job.about))
                            || jobs.iter().take(at).any(|before| before.about.touches(&job.about))
                    };
                    let of_lane = jobs.iter().enumerate().filter(|(_, job)| job.lane == lane);
                    let mut considered = of_lane.take(CONSIDERED_MAX);
                    considered.find(|(at, job)| !must_wait(*at, job)).map(|(at, _)| at)
                });
                let Some(job) = next else { break };
                self.begin(job, git);
            }
        }
    }

    fn begin(&mut self, job: ResourceJob, git: &mut GitQueue) {
        let ResourceJob { number, connection, id, resource, lane, about, bytes } = job;
        self.running.push(RunningJob { number, connection, lane, about, bytes });
        let resource = match resource {
            Resource::GitContent { uri, root, content, file, encoding } => {
                let reader = ContentReader { connection, id, job: number, uri, encoding };
                return git.read(reader, root, GitWork::Read { content, file });
            }
            resource => resource,
        };
        let job = Some(number);
        let (answers, writable, asked) = (self.answers.clone(), Arc::clone(&self.writable), id.clone());
        // The core is always answered, even after a panic.
        let of_core = taken_by(&resource);
        let failing = of_core.clone();
        let work = move || {
            let answered = catch_unwind(AssertUnwindSafe(|| match resource {
                Resource::Revert { request: taken, below } => {
                    let outcomes = changing::revert(&taken, &writable.folders(&below));
                    JobOutcome::Core(asked.clone(), Box::new(Input::Reverted { request: taken, outcomes }))
                }
                resource => JobOutcome::Frame(answer(asked.clone(), resource, &writable)),
            }));
            let panicked = |_| {
                let error = RpcError::internal("an internal error occurred while the request was handled; the log of the host has the details");
                match failing {
                    Some(taken) => reverted(asked, taken, RevertOutcome::Unknown(error.message)),
                    None => failed(asked, None, error),
                }
            };
            send(&answers, ResourceAnswer { connection, answer: answered.unwrap_or_else(panicked), job });
        };
        if let Err(error) = thread::Builder::new().name("resource".to_owned()).spawn(work) {
            let error = RpcError::internal(format_args!("no thread to work with a file or folder: {error}"));
            let answer = failed(id, of_core, error);
            send(&self.answers, ResourceAnswer { connection, answer, job });
        }
    }

    /// Notes that a job has ended.
    pub fn answered(&mut self, answered: &ResourceAnswer) {
        self.running.retain(|running| answered.job != Some(running.number));
    }

    /// Makes all later reads of files wait.
    #[cfg(test)]
    pub fn occupy_reads(&mut self) {
        for _ in 0..JobLane::Reads.at_once() {
            let (number, connection, lane, bytes) = (0, ConnectionId(u32::MAX), JobLane::Reads, 0);
            self.running.push(RunningJob { number, connection, lane, about: JobPaths::default(), bytes });
        }
    }

    /// Returns whether no job runs or is queued.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.count() == 0
    }
}

fn taken_by(resource: &Resource) -> Option<Box<RevertRequest>> {
    match resource {
        Resource::Revert { request: taken, .. } => Some(taken.clone()),
        _ => None,
    }
}

/// Makes the outcome of a failed request: an input for the core if it was to revert files.
fn failed(id: RequestId, taken: Option<Box<RevertRequest>>, error: RpcError) -> JobOutcome {
    match taken {
        Some(taken) => reverted(id, taken, RevertOutcome::Refused(error.message)),
        None => JobOutcome::Frame(Frame::Error { id: Some(id), error }),
    }
}

/// Makes the outcome of a revert with the same result for each file.
fn reverted(id: RequestId, taken: Box<RevertRequest>, each: RevertOutcome) -> JobOutcome {
    let outcomes = vec![each; taken.files.len()];
    JobOutcome::Core(id, Box::new(Input::Reverted { request: taken, outcomes }))
}

/// Returns the size of the texts of a request, in bytes.
fn bytes_of(resource: &Resource) -> usize {
    let all = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
    match resource {
        Resource::Read { uri, .. } | Resource::List { uri } => uri.len(),
        Resource::Resolve { uri, content, .. } => uri.len() + content.as_ref().map_or(0, String::len),
        Resource::GitContent { uri, root, file, .. } => uri.len() + root.len() + file.len(),
        Resource::Watch(watched) => watched.channel().len(),
        Resource::Files(query) => query.typed.len() + all(&query.directories),
        Resource::Revert { request, below } => {
            let texts = request.files.iter().flat_map(|file| [&file.now, &file.wanted]);
            texts.flatten().flatten().map(String::len).sum::<usize>() + all(below)
        }
        Resource::Change { change, below } => {
            let texts = match &**change {
                Change::Write(write) => write.uri.len() + write.data.len(),
                Change::Mkdir(mkdir) => mkdir.uri.len(),
                Change::Delete(delete) => delete.uri.len(),
                Change::Move(moved) => moved.source.len() + moved.destination.len(),
                Change::Copy(copy) => copy.source.len() + copy.destination.len(),
                Change::Ask(asked) => asked.uri.len(),
            };
            texts + all(below)
        }
    }
}

fn send(answers: &mpsc::UnboundedSender<ResourceAnswer>, answered: ResourceAnswer) {
    if answers.send(answered).is_err() {
        tracing::debug!("the answer to a request for files was dropped: the host has left");
    }
}

fn answer(id: RequestId, resource: Resource, writable: &WritableFolders) -> Frame {
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
        Resource::Watch(watched) => {
            let created = CreateResourceWatchResult { channel: watched.channel() };
            let checked = engine::check(&watched, &writable.unwatched());
            (Method::CreateResourceWatch, checked.map(|()| to_json(&created)))
        }
        Resource::Files(meant) => (Method::Completions, Ok(to_json(&completions::find(&meant)))),
        Resource::GitContent { .. } => {
            let error = RpcError::internal(
                "an internal error: a checkpointed content was requested from the file system",
            );
            (Method::ResourceRead, Err(error))
        }
        Resource::Revert { .. } => {
            let error = RpcError::internal("an internal error: a revert was answered twice");
            (Method::InvokeChangesetOperation, Err(error))
        }
        Resource::Change { change, below } => {
            let changed = changing::change(&change, &writable.folders(&below));
            (method_of(&change), changed.map(|()| b"{}".to_vec()))
        }
    };
    match result {
        Ok(result) => Frame::result(id, method, Bytes::from(result)),
        Err(error) => Frame::Error { id: Some(id), error },
    }
}

/// Makes the answer with this content, or with its metadata only if `encoding` is `None`.
pub(super) fn content_frame(
    id: RequestId,
    uri: &str,
    content: Vec<u8>,
    encoding: Option<Option<ContentEncoding>>,
) -> Frame {
    let (method, result) = match encoding {
        Some(encoding) => {
            let read = reading::read_content(content, encoding.as_ref());
            (Method::ResourceRead, to_json(&read))
        }
        None => (Method::ResourceResolve, to_json(&reading::resolve_content(uri, content.len()))),
    };
    Frame::result(id, method, Bytes::from(result))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::GitContent;
    use ahp_types::commands::ResourceWriteParams;
    use serde_json::json;

    /// More than are looked at of one client.
    const MANY: u64 = CONSIDERED_MAX as u64 + 10;

    const HINDERED: ConnectionId = ConnectionId(1);
    const FREE: ConnectionId = ConnectionId(2);

    fn write(uri: &str) -> Resource {
        let params = json!({ "channel": "ahp-root://", "uri": uri, "data": "", "encoding": "utf-8" });
        let params: ResourceWriteParams = serde_json::from_value(params).unwrap();
        Resource::Change { change: Box::new(Change::Write(params)), below: Vec::new() }
    }

    fn content() -> Resource {
        let content = GitContent { blob: "1".to_owned(), mode: 0o100_644 };
        let (uri, root, file) = (String::new(), "file:///a".to_owned(), "file:///a/b".to_owned());
        Resource::GitContent { uri, root, content, file, encoding: None }
    }

    #[test]
    fn however_much_one_client_asks_for_another_one_may_wait() {
        let (mut resources, mut answered) = Resources::new(WritableFolders::default());
        let read = || Resource::Read { uri: "file:///nothing/here".to_owned(), encoding: None };
        for number in 0..WAITING_MAX as u64 {
            resources.take(HINDERED, RequestId::inner(number), read());
        }
        let mut refused = |resources: &mut Resources, connection| {
            resources.take(connection, RequestId::inner(0), read());
            answered.try_recv().is_ok()
        };
        assert!(refused(&mut resources, HINDERED));
        for _ in 0..ASSURED {
            assert!(!refused(&mut resources, FREE));
        }
        assert!(refused(&mut resources, FREE));
        let (mut resources, mut answered) = Resources::new(WritableFolders::default());
        resources.take(HINDERED, RequestId::inner(0), read());
        let full = resources.waiting.take(&mut None, |_, _| Some(0)).unwrap();
        resources.waiting.push(HINDERED, ResourceJob { bytes: WAITING_BYTES_MAX, ..full });
        let mut written = |bytes: usize| {
            let Resource::Change { mut change, below } = write("file:///x") else { unreachable!() };
            if let Change::Write(write) = &mut *change {
                write.data = "x".repeat(bytes);
            }
            resources.take(FREE, RequestId::inner(0), Resource::Change { change, below });
            answered.try_recv().is_err()
        };
        // The name of the file counts, too.
        assert!(written(ASSURED_BYTES - 1000) && !written(1000));
    }

    #[test]
    fn what_one_client_has_to_wait_for_is_nothing_to_wait_for_to_another_one() {
        let (mut resources, _answered) = Resources::new(WritableFolders::default());
        let (mut git, _events) = GitQueue::without_program();
        let read = || Resource::Read { uri: "file:///nothing/here".to_owned(), encoding: None };
        for number in 1..=MANY {
            resources.take(HINDERED, RequestId::inner(number), read());
        }
        resources.take(FREE, RequestId::inner(1), read());
        resources.start(&mut git, |connection| connection == FREE);
        assert_eq!(resources.waiting.of(FREE).count(), 0, "it was not begun");

        // A copy of a large folder, and many changes in it.
        let about = JobPaths { paths: vec!["/copied".into()], changes: true };
        let (number, connection, lane, bytes) = (0, HINDERED, JobLane::Trees, 0);
        resources.running.push(RunningJob { number, connection, lane, about, bytes });
        for number in 1..=MANY {
            resources.take(HINDERED, RequestId::inner(number), write("file:///copied/file"));
        }
        resources.take(FREE, RequestId::inner(2), write("file:///elsewhere/file"));
        resources.start(&mut git, |connection| connection == FREE);
        assert_eq!(resources.waiting.of(FREE).count(), 0, "it was not begun");
        assert_eq!(resources.waiting.of(HINDERED).count() as u64, 2 * MANY);
    }

    #[test]
    fn slow_reads_of_one_client_leave_room_for_another_one() {
        let (mut resources, _answered) = Resources::new(WritableFolders::default());
        let (mut git, _events) = GitQueue::without_program();
        let file = || Resource::Read { uri: "file:///nothing/here".to_owned(), encoding: None };
        for (connection, each) in [(HINDERED, 10), (FREE, 1)] {
            for number in 0..each {
                resources.take(connection, RequestId::inner(number), content());
                resources.take(connection, RequestId::inner(number), file());
            }
            resources.start(&mut git, |_| true);
        }
        let running =
            |connection| resources.running.iter().filter(|job| job.connection == connection).count();
        assert_eq!((running(HINDERED), running(FREE)), (6, 2));
    }

    #[test]
    fn connections_take_turns_and_a_closed_one_only_finishes_its_changes() {
        let (mut resources, _answered) = Resources::new(WritableFolders::default());
        let (mut git, _events) = GitQueue::without_program();
        for number in 0..MANY {
            resources.take(HINDERED, RequestId::inner(number), content());
        }
        resources.start(&mut git, |_| true);
        for number in 0..4 {
            resources.take(FREE, RequestId::inner(number), content());
        }
        resources.start(&mut git, |_| true);
        let started: Vec<ConnectionId> = (0..6)
            .map(|_| {
                resources.running.remove(0);
                resources.start(&mut git, |_| true);
                resources.running.last().unwrap().connection
            })
            .collect();
        assert_eq!(started, [HINDERED, FREE, HINDERED, FREE, HINDERED, FREE]);
        resources.take(HINDERED, RequestId::inner(MANY), write("file:///x"));
        resources.connection_closed(HINDERED);
        let lanes: Vec<JobLane> = resources.waiting.of(HINDERED).map(|job| job.lane).collect();
        assert_eq!(lanes, [JobLane::Writes]);
    }
}
