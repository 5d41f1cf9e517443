//! Queue of jobs for git, and the process that runs them.
//!
//! Owns: starting the process when needed, the pending jobs, and answering each exactly once.
//! Never: runs git by itself, or blocks the loop's thread.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ahp_types::commands::ContentEncoding;
use base64::prelude::{Engine, BASE64_STANDARD};
use tokio::io::{AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::process::ChildStdout;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::resources::{content_frame, JobOutcome, ResourceAnswer};
use crate::backend::acp::process::Process;
use crate::files::folders::HostFile;
use crate::git::worker::{JobReport, NumberedJob};
use crate::host::effects::{
    ConnectionId, FileRevert, Frame, GitJob, GitReport, GitRevert, GitWork, Input, Resource, RevertOutcome,
    RevertRequest,
};
use crate::os::process::{AgentStdin, GuardProgram, Guarded};
use crate::sync::CountedEntry;
use crate::wire::errors::RpcError;
use crate::wire::rpc::{to_json, RequestId};

/// Mode argument with which this program runs git jobs.
pub const MODE: &str = "run-git";

/// Additional time that the process has to answer, after the job's own time limit.
const GRACE: Duration = Duration::from_secs(5);

const READ_WITHIN_MS: u64 = 10_000;

const REVERT_WITHIN_MS: u64 = 60_000;

/// Event of the process.
#[derive(Debug)]
pub enum GitProcessEvent {
    /// Report about a job.
    Reported(JobReport),
    /// End of the process of this number.
    Ended(u64),
    /// Job of this number that git cannot finish, with the reason.
    Failed(u64, String),
}

#[derive(Debug)]
enum GitJobOrigin {
    /// The core, with the number of its job.
    Core(u64),
    /// Client that reads content.
    Reader(ContentReader),
    /// A client that reverts files.
    Reverter { connection: ConnectionId, id: RequestId, taken: Box<RevertRequest> },
}

/// Client's request for a content, or only for its metadata.
#[derive(Debug)]
pub struct ContentReader {
    /// Connection that has sent the request.
    pub connection: ConnectionId,
    /// Id of the request.
    pub id: RequestId,
    /// Number of its job in the queue of requests about files.
    pub job: u64,
    /// URI by which the client names the content.
    pub uri: String,
    /// Requested encoding, `Some(None)` if the client has no preference; `None` for metadata.
    pub encoding: Option<Option<ContentEncoding>>,
}

/// Outcome of a job.
#[derive(Debug)]
pub enum GitOutcome {
    /// Input for the core.
    Core(Input),
    /// Answer to a client's request.
    Client(ResourceAnswer),
}

/// Job without a report.
#[derive(Debug)]
struct WaitingGitJob {
    by: GitJobOrigin,
    /// Number of the process that has it; `None` if none could be started.
    process: Option<u64>,
}

#[derive(Debug)]
struct RunningGit {
    number: u64,
    /// Queue of the task that writes to the process.
    lines: mpsc::UnboundedSender<Vec<u8>>,
    /// Ends that task when it is dropped, and thereby the process.
    _end: DropGuard,
}

/// Program and settings of the process.
#[derive(Debug)]
pub struct GitProgram {
    /// Guard that the process runs under; `None` if this host starts no programs.
    pub guard: Option<GuardProgram>,
    /// Set if the operator lets the host use git. Sessions may remember repositories that were used
    /// before.
    pub is_on: bool,
    /// Folder for temporary files.
    pub folder: PathBuf,
    /// Size above which the content of a file is not checkpointed, in bytes.
    pub checkpoint_file_bytes_max: u64,
    /// Filters of the user's configuration that git runs.
    pub filters: Vec<String>,
}

/// Queue of jobs for git.
#[derive(Debug)]
pub struct GitQueue {
    program: GitProgram,
    process: Option<RunningGit>,
    waiting: BTreeMap<u64, WaitingGitJob>,
    last: u64,
    news: mpsc::UnboundedSender<GitProcessEvent>,
    stop: CancellationToken,
    running: watch::Sender<usize>,
}

impl GitQueue {
    /// Creates an empty queue, and the receiver of the events to pass to [`GitQueue::handle`].
    pub fn new(program: GitProgram) -> (Self, mpsc::UnboundedReceiver<GitProcessEvent>) {
        let (news, receiver) = mpsc::unbounded_channel();
        let (running, _) = watch::channel(0);
        let (waiting, stop) = (BTreeMap::new(), CancellationToken::new());
        let (process, last) = (None, 0);
        (Self { program, process, waiting, last, news, stop, running }, receiver)
    }

    /// Creates an empty queue that starts no process.
    #[cfg(test)]
    pub fn without_program() -> (Self, mpsc::UnboundedReceiver<GitProcessEvent>) {
        Self::new(GitProgram {
            guard: None,
            is_on: true,
            folder: PathBuf::new(),
            checkpoint_file_bytes_max: 0,
            filters: Vec::new(),
        })
    }

    /// Queues a job of the core. Must be called inside a tokio runtime.
    pub fn ask(&mut self, number: u64, job: GitJob) {
        self.send(GitJobOrigin::Core(number), job);
    }

    /// Queues a read of a content in the repository of the folder `root`.
    pub fn read(&mut self, reader: ContentReader, root: String, work: GitWork) {
        let job = GitJob { directories: vec![root], within_ms: READ_WITHIN_MS, work };
        self.send(GitJobOrigin::Reader(reader), job);
    }

    /// Queues a client's revert if git has to handle it. Returns any other request. `own` are the
    /// files of the host, which clients may not change.
    pub fn take(
        &mut self,
        connection: ConnectionId,
        id: RequestId,
        resource: Resource,
        own: &[HostFile],
    ) -> Option<Resource> {
        match resource {
            Resource::Revert { request: taken, below } => {
                let Some(root) = taken.root.clone() else {
                    return Some(Resource::Revert { request: taken, below });
                };
                let (checkpoint_first, bytes_retained) =
                    (taken.checkpoint_first.clone(), taken.bytes_retained.clone());
                let files: Vec<GitRevert> = taken.files.iter().filter_map(|file| file.git.clone()).collect();
                let reported = taken.files.iter().filter(|file| file.git.is_none()).map(FileRevert::reported);
                let own = own.iter().filter_map(|file| file.path().to_str().map(str::to_owned)).collect();
                let reported = reported.collect();
                let work = GitWork::Revert { files, below, own, reported, checkpoint_first, bytes_retained };
                let job = GitJob { directories: vec![root], within_ms: REVERT_WITHIN_MS, work };
                self.send(GitJobOrigin::Reverter { connection, id, taken }, job);
                None
            }
            other => Some(other),
        }
    }

    fn send(&mut self, by: GitJobOrigin, job: GitJob) {
        self.last += 1;
        let number = self.last;
        let within = Duration::from_millis(job.within_ms) + GRACE;
        let mut line = to_json(&NumberedJob { number, job });
        line.push(b'\n');
        let news = self.news.clone();
        let sent = self.started().and_then(|process| {
            process.lines.send(line)?;
            Ok(process.number)
        });
        self.waiting.insert(number, WaitingGitJob { by, process: sent.as_ref().ok().copied() });
        if let Err(error) = sent {
            let why = format!("git cannot be run: {error:#}");
            tracing::warn!("git: {why}");
            return send_event(&news, GitProcessEvent::Failed(number, why));
        }
        tokio::spawn(async move {
            tokio::time::sleep(within).await;
            let why = format!("git has not answered within {} seconds", within.as_secs());
            send_event(&news, GitProcessEvent::Failed(number, why));
        });
    }

    fn started(&mut self) -> anyhow::Result<&RunningGit> {
        let running = match self.process.take() {
            Some(running) if !running.lines.is_closed() => running,
            _ => {
                self.last += 1;
                let number = self.last;
                let GitProgram { guard, is_on, folder, checkpoint_file_bytes_max, filters } = &self.program;
                anyhow::ensure!(is_on, "this host does not use git (`--git off`)");
                let Some(guard) = guard else { anyhow::bail!("this host starts no programs") };
                let mut command = guard.command(Guarded::Agent, guard.program());
                command.arg(MODE);
                command.arg("--").arg(folder).arg(checkpoint_file_bytes_max.to_string()).args(filters);
                let (process, stdin, stdout) = Process::begin(guard, command, "git")?;
                let (lines, wanted) = mpsc::unbounded_channel();
                let end = self.stop.child_token();
                tokio::spawn(write(stdin, wanted, end.clone()));
                let counted = CountedEntry::new(&self.running);
                tokio::spawn(read_reports(
                    (number, process, counted),
                    stdout,
                    self.news.clone(),
                    self.stop.child_token(),
                ));
                RunningGit { number, lines, _end: end.drop_guard() }
            }
        };
        Ok(self.process.insert(running))
    }

    /// Handles an event of the process. Returns the outcomes of the jobs that end with it.
    pub fn handle(&mut self, news: GitProcessEvent) -> Vec<GitOutcome> {
        match news {
            GitProcessEvent::Reported(JobReport { number, report }) => {
                self.outcome(number, report).into_iter().collect()
            }
            GitProcessEvent::Failed(number, why) => {
                let Some(WaitingGitJob { process, .. }) = self.waiting.get(&number) else {
                    return Vec::new();
                };
                // The process that has it hangs. It is ended, and the next job starts another.
                self.process.take_if(|running| Some(running.number) == *process);
                self.fail(number, why).into_iter().collect()
            }
            GitProcessEvent::Ended(process) => {
                self.process.take_if(|running| running.number == process);
                let its = self.waiting.iter().filter(|(_, job)| job.process == Some(process));
                let lost: Vec<u64> = its.map(|(number, _)| *number).collect();
                let why = "the process that runs git has ended";
                lost.into_iter().filter_map(|number| self.fail(number, why.to_owned())).collect()
            }
        }
    }

    /// Ends a job that has no report.
    fn fail(&mut self, number: u64, why: String) -> Option<GitOutcome> {
        let report = match self.waiting.get(&number)? {
            // The process may have begun it.
            WaitingGitJob { by: GitJobOrigin::Reverter { taken, .. }, process: Some(_) } => {
                GitReport::Reverted(vec![RevertOutcome::Unknown(why); taken.files.len()])
            }
            _ => GitReport::Failed(why),
        };
        self.outcome(number, report)
    }

    fn outcome(&mut self, number: u64, report: GitReport) -> Option<GitOutcome> {
        Some(match self.waiting.remove(&number)?.by {
            GitJobOrigin::Core(number) => GitOutcome::Core(Input::Git(number, report)),
            GitJobOrigin::Reader(ContentReader { connection, id, job, uri, encoding }) => {
                let content = match report {
                    GitReport::Content(content) => Ok(content),
                    GitReport::Failed(why) | GitReport::Unusable(why) => Err(RpcError::unavailable(why)),
                    _ => Ok(None),
                };
                let content = content.and_then(|content| {
                    let content = content.and_then(|content| BASE64_STANDARD.decode(content).ok());
                    content.ok_or_else(|| RpcError::resource_not_found(&uri))
                });
                let frame = match content {
                    Ok(content) => content_frame(id, &uri, content, encoding),
                    Err(error) => Frame::Error { id: Some(id), error },
                };
                let answer = JobOutcome::Frame(frame);
                GitOutcome::Client(ResourceAnswer { connection, answer, job: Some(job) })
            }
            GitJobOrigin::Reverter { connection, id, taken } => {
                let outcomes = match report {
                    GitReport::Reverted(outcomes) => in_order(&taken, outcomes),
                    GitReport::Failed(why) | GitReport::Unusable(why) => {
                        vec![RevertOutcome::Refused(why); taken.files.len()]
                    }
                    _ => vec![RevertOutcome::Refused("there is no repository".to_owned()); taken.files.len()],
                };
                let input = Input::Reverted { request: taken, outcomes };
                let answer = JobOutcome::Core(id, Box::new(input));
                GitOutcome::Client(ResourceAnswer { connection, answer, job: None })
            }
        })
    }

    /// Returns whether no job is pending.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Stops the process for good. Completes when it has ended.
    pub async fn stop(&self) {
        self.stop.cancel();
        // Cannot fail: `self` holds the sender.
        self.running.subscribe().wait_for(|count| *count == 0).await.map(drop).unwrap_or_default();
    }
}

/// Restores the order of the files. Git reports checkpointed files first, then those of tool calls.
fn in_order(taken: &RevertRequest, outcomes: Vec<RevertOutcome>) -> Vec<RevertOutcome> {
    let of_git_count = taken.files.iter().filter(|file| file.git.is_some()).count();
    let mut of_git = outcomes;
    let mut of_calls = of_git.split_off(of_git_count.min(of_git.len())).into_iter();
    let mut of_git = of_git.into_iter();
    let each =
        taken.files.iter().map(|file| if file.git.is_some() { of_git.next() } else { of_calls.next() });
    each.map(|outcome| outcome.unwrap_or(RevertOutcome::Unknown("git did not report the outcome".to_owned())))
        .collect()
}

fn send_event(news: &mpsc::UnboundedSender<GitProcessEvent>, what: GitProcessEvent) {
    if news.send(what).is_err() {
        tracing::debug!("a report of git was dropped: the host has left");
    }
}

/// Writes lines to the process until it is stopped, even if it does not read. Dropping stdin then
/// ends the process.
async fn write(mut stdin: AgentStdin, lines: mpsc::UnboundedReceiver<Vec<u8>>, stop: CancellationToken) {
    write_all(&mut stdin.pipe, lines, &stop).await;
}

async fn write_all(
    pipe: &mut (impl AsyncWrite + Unpin),
    mut lines: mpsc::UnboundedReceiver<Vec<u8>>,
    stop: &CancellationToken,
) {
    let all = async {
        while let Some(line) = lines.recv().await {
            if pipe.write_all(&line).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = all => {}
        () = stop.cancelled() => {}
    }
}

async fn read_reports(
    (number, process, counted): (u64, Process, CountedEntry),
    stdout: ChildStdout,
    news: mpsc::UnboundedSender<GitProcessEvent>,
    stop: CancellationToken,
) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_slice(line.as_bytes()) {
            Ok(report) => send_event(&news, GitProcessEvent::Reported(report)),
            Err(error) => {
                tracing::error!(%error, "a report of the git worker cannot be parsed (a bug of this program)")
            }
        }
    }
    let how = process.ended(stop).await;
    tracing::debug!(how, "the process that runs git has ended");
    send_event(&news, GitProcessEvent::Ended(number));
    drop(counted);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::GitContent;
    use crate::io::resources::{Resources, WritableFolders};

    #[test]
    fn end_of_a_process_fails_its_own_jobs_and_ends_no_other_process() {
        let (mut queue, _events) = GitQueue::without_program();
        let (lines, _queue) = mpsc::unbounded_channel();
        let end = CancellationToken::new().drop_guard();
        queue.process = Some(RunningGit { number: 5, lines, _end: end });
        // The job that has started the newer process has a lower number than that.
        for (number, process) in [(1, 2), (3, 2), (4, 5), (6, 5)] {
            let by = GitJobOrigin::Core(number);
            queue.waiting.insert(number, WaitingGitJob { by, process: Some(process) });
        }
        let jobs = |outcomes: Vec<GitOutcome>| -> Vec<u64> {
            let number = |outcome| match outcome {
                GitOutcome::Core(Input::Git(number, GitReport::Failed(_))) => number,
                other => panic!("{other:?}"),
            };
            outcomes.into_iter().map(number).collect()
        };
        let late = GitProcessEvent::Failed(1, "it has not answered".to_owned());
        assert_eq!(jobs(queue.handle(late)), [1]);
        assert!(queue.process.is_some(), "that is another one");
        assert_eq!(jobs(queue.handle(GitProcessEvent::Ended(2))), [3]);
        assert!(queue.process.is_some());
        let late = GitProcessEvent::Failed(6, "it has not answered".to_owned());
        assert_eq!(jobs(queue.handle(late)), [6]);
        assert!(queue.process.is_none());
        assert_eq!(jobs(queue.handle(GitProcessEvent::Ended(5))), [4]);
    }

    #[tokio::test]
    async fn contents_of_a_client_are_read_three_at_a_time_and_fail_each_with_its_own_reason() {
        let (mut queue, _events) = GitQueue::without_program();
        let (lines, mut sent) = mpsc::unbounded_channel();
        let end = CancellationToken::new().drop_guard();
        queue.process = Some(RunningGit { number: 0, lines, _end: end });
        let (mut resources, _answers) = Resources::new(WritableFolders::default());
        for number in 0..200 {
            let content = GitContent { blob: "1".to_owned(), mode: 0o100_644 };
            let (uri, root, file) = (String::new(), "file:///a".to_owned(), "file:///a/b".to_owned());
            let read = Resource::GitContent { uri, root, content, file, encoding: None };
            resources.take(ConnectionId(1), RequestId::inner(number), read);
        }
        let mut running: Vec<u64> = Vec::new();
        let mut error_code_after = |report| {
            resources.start(&mut queue, |_| true);
            while let Ok(line) = sent.try_recv() {
                running.push(serde_json::from_slice::<NumberedJob>(&line).unwrap().number);
            }
            assert_eq!(running.len(), 3);
            let number = running.remove(0);
            let mut outcomes = queue.handle(GitProcessEvent::Reported(JobReport { number, report }));
            let Some(GitOutcome::Client(answered)) = outcomes.pop() else { panic!("an answer") };
            resources.answered(&answered);
            match answered.answer {
                JobOutcome::Frame(Frame::Error { error, .. }) => Some(error.code),
                _ => None,
            }
        };
        assert_eq!(error_code_after(GitReport::Content(Some("YQ==".to_owned()))), None);
        assert_eq!(error_code_after(GitReport::Content(None)), Some(-32008));
        assert_eq!(error_code_after(GitReport::NoRepository), Some(-32008));
        assert_eq!(error_code_after(GitReport::Failed("it is late".to_owned())), Some(-32603));
    }

    #[tokio::test]
    async fn process_that_does_not_read_can_be_stopped() {
        let (mut pipe, _unread) = tokio::io::duplex(1);
        let (lines, queue) = mpsc::unbounded_channel();
        lines.send(vec![b'x'; 100]).unwrap();
        let stop = CancellationToken::new();
        let mut written = std::pin::pin!(write_all(&mut pipe, queue, &stop));
        assert!(tokio::time::timeout(Duration::ZERO, &mut written).await.is_err(), "the pipe is full");
        stop.cancel();
        written.await;
    }
}
