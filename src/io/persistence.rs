//! Commits of the records of each step. Outputs of a step are held back until its records are
//! committed. After a power loss, only steps with `Record::Sync` are guaranteed to be stored.
//!
//! Owns: the committing thread, so that a slow disk delays only those who wait for a commit (small
//! steps are committed by the loop while the disk is fast); the order of held outputs; retries
//! while commits fail; maintenance while idle; closing the store.
//! Never: releases a frame or command before the records of its step are committed, except outputs
//! that are independent of the store and time limits of disconnects; drops either, unless nothing
//! can be stored any more.

use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};

use crate::host::effects::{Output, Record};
use crate::host::Start;
use crate::io::descriptors::no_thread;
use crate::io::store_failure::{FailureAnswer, StoreFailure};
use crate::store::folder::StateFolder;
use crate::store::memory::Memory;
use crate::store::reader::Reader;
use crate::store::space::Due;
use crate::store::sqlite::{self, Writer, IDLE_LOG_PAGES_MAX, LOG_PAGES_MAX};
use crate::store::texts::Texts;
use crate::store::StoreOptions;
use crate::sync::lock;

/// Delay before a failed commit is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// Size of uncommitted steps above which agents are not read, in bytes: input of clients would
/// queue behind all of them. Several transactions, so that the disk is never idle.
const AGENTS_ABOVE: usize = 4 * TRANSACTION_BYTES;

/// Size from which no more steps join a transaction, in bytes, so that its first is not delayed.
const TRANSACTION_BYTES: usize = 512 << 10;

/// Time without a step after which a long log is copied into the database.
const CHECKPOINT_AFTER: Duration = Duration::from_millis(5);

/// Time without a commit after which maintenance begins.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Time to wait for a step between two parts of maintenance.
const IDLE_PAUSE: Duration = Duration::from_millis(10);

/// Maximum interval of maintenance, such as removing expired sessions, even if never idle.
const TIDY_EVERY: Duration = Duration::from_secs(15 * 60);

/// Event of the committing thread.
#[derive(Debug)]
pub enum CommitEvent {
    /// All steps up to this one are committed. Their records come back to be dropped by the thread
    /// that made them: the allocator of glibc has one lock for memory of a thread that others free,
    /// and both threads would wait for it.
    Safe(u64, Vec<Record>),
    /// Failure to commit.
    Failing(StoreFailure),
}

/// Storage of all sessions, in memory or in a state folder.
#[derive(Debug)]
pub enum Persistence {
    /// Storage in memory, which ends with the process.
    Memory(Memory),
    /// Storage in a state folder, which outlives the process.
    Disk(Box<Disk>),
}

/// Store in a state folder, and the outputs that wait for it.
#[derive(Debug)]
pub struct Disk {
    /// Locked by the committing thread while it commits.
    writer: Arc<Mutex<Writer>>,
    steps: Sender<StepToCommit>,
    last_step: u64,
    /// Outputs of uncommitted steps, in order.
    held: VecDeque<HeldOutputs>,
    held_bytes: usize,
    /// Number of held steps that clients have caused.
    held_of_clients: usize,
    /// Last committed sequence number.
    safe: u64,
    /// Failure while commits fail; `None` otherwise.
    trouble: Option<StoreFailure>,
    /// Disconnected when the committing thread has closed the store.
    closed: Receiver<()>,
    folder: StateFolder,
}

#[derive(Debug)]
struct StepToCommit {
    number: u64,
    records: Vec<Record>,
    bytes: usize,
}

#[derive(Debug)]
struct HeldOutputs {
    step: u64,
    /// Set if a message of a client has caused it, at least in part.
    of_client: bool,
    outputs: Vec<Output>,
    /// Approximate memory that the step takes until it is committed, in bytes.
    bytes: usize,
    /// Last sequence number of the step, if it has any.
    head: Option<u64>,
    uris: Vec<String>,
    /// Set if it was made while commits failed, so that its answers contain only committed state.
    in_trouble: bool,
}

/// Opened persistence, with its readers and events.
#[derive(Debug)]
pub struct OpenedPersistence {
    /// Storage for the steps of the core.
    pub persistence: Persistence,
    /// State at the end of the last process.
    pub start: Start,
    /// Events of the committing thread; none if everything is in memory.
    pub events: UnboundedReceiver<CommitEvent>,
    /// Readers of the store; empty if everything is in memory.
    pub readers: Vec<Reader>,
}

impl Persistence {
    /// Creates a persistence in memory, which ends with the process.
    pub fn in_memory() -> OpenedPersistence {
        let (_, events) = unbounded_channel();
        OpenedPersistence {
            persistence: Self::Memory(Memory::default()),
            start: Start::default(),
            events,
            readers: Vec::new(),
        }
    }

    /// Locks this folder and opens the persistence in it.
    ///
    /// # Errors
    /// When the folder or the database in it cannot be used.
    pub fn open(folder: &Path, options: StoreOptions) -> anyhow::Result<OpenedPersistence> {
        Self::open_held(StateFolder::hold(folder)?, options)
    }

    /// Opens the persistence in a folder that this process has locked.
    ///
    /// # Errors
    /// When the database in it cannot be used.
    pub fn open_held(folder: StateFolder, options: StoreOptions) -> anyhow::Result<OpenedPersistence> {
        let path = folder.private_file(sqlite::FILE_NAME)?;
        let unusable = |error| anyhow::anyhow!("{} cannot be used: {error}", path.display());
        if folder.was_held() {
            sqlite::refuse_emptied_database(&path)?;
        }
        let (writer, start) = Writer::open(&path, options).map_err(unusable)?;
        let texts = Texts::open(&path, options.text_bytes_max).map_err(unusable)?;
        let writer = writer.with_texts(&texts).map_err(unusable)?;
        let reader = Reader::open(&path, options.window).map_err(unusable)?.with_texts(&texts);
        let readers = vec![reader.another(&path).map_err(unusable)?, reader];
        let (steps, receiver) = channel();
        let (sender, events) = unbounded_channel();
        let (open, closed) = channel::<()>();
        let writer = Arc::new(Mutex::new(writer));
        let committing = Arc::clone(&writer);
        let commit = move || {
            let survived = run_catching(&receiver, &sender, || {
                commit_all(&committing, &receiver, &sender, options.request_wait);
            });
            if survived {
                lock(&committing).finish();
            }
            drop((committing, open));
        };
        thread::Builder::new().name("commit".to_owned()).spawn(commit).map_err(no_thread)?;
        let disk = Disk {
            writer,
            steps,
            last_step: 0,
            held: VecDeque::new(),
            held_bytes: 0,
            held_of_clients: 0,
            safe: start.head,
            trouble: None,
            closed,
            folder,
        };
        Ok(OpenedPersistence { persistence: Self::Disk(Box::new(disk)), start, events, readers })
    }

    /// Stores the records of a step. Returns the outputs that may go out now; the others are held
    /// back. `of_client` is set if a message of a client has caused the step, at least in part.
    pub fn keep(&mut self, outputs: Vec<Output>, of_client: bool) -> Vec<Output> {
        let is_record = |output: &Output| matches!(output, Output::Record(_));
        match self {
            Self::Memory(memory) => {
                let mut rest = Vec::with_capacity(outputs.len());
                for output in outputs {
                    match output {
                        Output::Record(record) => memory.keep(record),
                        output => rest.push(output),
                    }
                }
                rest
            }
            // While commits fail, the core sends only committed state, which need not wait.
            Self::Disk(disk)
                if (disk.held.is_empty() || disk.trouble.is_some()) && !outputs.iter().any(is_record) =>
            {
                outputs
            }
            Self::Disk(disk) => disk.keep(outputs, of_client),
        }
    }

    /// Returns the number of the last step whose outputs are held; `None` if there is none.
    pub fn last_held(&self) -> Option<u64> {
        match self {
            Self::Memory(_) => None,
            Self::Disk(disk) => disk.held.back().map(|held| held.step),
        }
    }

    /// Notes that all steps up to this one are committed. Returns their outputs.
    pub fn release(&mut self, up_to: u64) -> impl Iterator<Item = Output> {
        let mut released = Vec::new();
        if let Self::Disk(disk) = self {
            disk.trouble = None;
            while disk.held.front().is_some_and(|held| held.step <= up_to) {
                let Some(held) = disk.held.pop_front() else { break };
                disk.safe = held.head.unwrap_or(disk.safe);
                disk.held_bytes -= held.bytes;
                disk.held_of_clients -= usize::from(held.of_client);
                released.push(held.outputs);
            }
        }
        released.into_iter().flatten()
    }

    /// Notes that commits fail. Returns the last committed sequence number.
    pub fn fail(&mut self, trouble: StoreFailure) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Disk(disk) => {
                disk.trouble = Some(trouble);
                disk.safe
            }
        }
    }

    /// Takes the held answers that may go out while commits fail.
    pub fn take_answers(&mut self) -> Vec<FailureAnswer> {
        let Self::Disk(disk) = self else { return Vec::new() };
        let Some(trouble) = &disk.trouble else { return Vec::new() };
        let (mut answers, mut is_safe) = (Vec::new(), true);
        for held in &mut disk.held {
            is_safe &= held.head.is_none();
            answers.extend(trouble.take_answers(&mut held.outputs, is_safe || held.in_trouble));
        }
        if trouble.is_for_good {
            // The other outputs are never sent.
            disk.held.clear();
            disk.held_bytes = 0;
            disk.held_of_clients = 0;
        }
        answers
    }

    /// Returns whether commits fail at present.
    pub fn is_failing(&self) -> bool {
        matches!(self, Self::Disk(disk) if disk.trouble.is_some())
    }

    /// Returns whether commits have failed for good, so that held outputs are never sent.
    pub fn has_failed_for_good(&self) -> bool {
        matches!(self, Self::Disk(disk) if disk.trouble.as_ref().is_some_and(|it| it.is_for_good))
    }

    /// Returns whether an output that is independent of the store may overtake held outputs. Steps
    /// of clients are not overtaken: an answer tells a client that its earlier messages were
    /// received.
    pub fn may_be_overtaken(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Disk(disk) => disk.trouble.is_some() || disk.held_of_clients == 0,
        }
    }

    /// Returns whether there is room for reports of agents, with `coming` more bytes in flight.
    pub fn has_room_for_agents(&self, coming: usize) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Disk(disk) => disk.trouble.is_none() && disk.held_bytes + coming < AGENTS_ABOVE,
        }
    }

    /// Returns the approximate size of uncommitted steps, in bytes.
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Memory(_) => 0,
            Self::Disk(disk) => disk.held_bytes,
        }
    }

    /// Returns whether a session or chat has uncommitted changes, or left memory before the last
    /// uncommitted change of any.
    pub fn holds(&self, uri: &str) -> bool {
        matches!(self, Self::Disk(disk) if disk.held.iter().any(|held| held.uris.iter().any(|it| it == uri)))
    }

    /// Returns whether all steps are committed.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Disk(disk) => disk.held.is_empty(),
        }
    }

    /// Closes the store, so that its write-ahead log is empty. If that takes longer than `within`,
    /// the next process does it. Nothing is stored after this call.
    pub fn close(&mut self, within: Duration) {
        if let Self::Disk(disk) = std::mem::replace(self, Self::Memory(Memory::default())) {
            let Disk { steps, closed, folder, writer, .. } = *disk;
            drop(steps);
            if closed.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
                tracing::debug!("the host leaves before the store is closed: that takes too long");
            }
            drop(writer);
            drop(folder);
        }
    }

    /// Returns the sessions in memory; `None` if they are in a state folder.
    pub fn memory(&self) -> Option<&Memory> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Disk(_) => None,
        }
    }
}

impl Disk {
    /// Commits a small step on this thread if no step is before it and the writer is free, which
    /// saves single pieces of text the detour over the committing thread. Any other step is queued
    /// for that thread. Returns the outputs that may go out now.
    fn keep(&mut self, outputs: Vec<Output>, of_client: bool) -> Vec<Output> {
        // Deltas have a record each and one other output together.
        let (mut records, mut rest) = (Vec::with_capacity(outputs.len()), Vec::new());
        for output in outputs {
            match output {
                Output::Record(record) => records.push(record),
                output => rest.push(output),
            }
        }
        let head = records.iter().rev().find_map(|record| match record {
            Record::Action(_, line) => Some(line.server_seq),
            _ => None,
        });
        if self.held.is_empty() && self.trouble.is_none() {
            let kept = self.writer.try_lock().is_ok_and(|mut writer| writer.commit_at_once(&records));
            if kept {
                self.safe = head.unwrap_or(self.safe);
                return rest;
            }
        }
        self.last_step += 1;
        // A frame shares its bytes with its record. A chat without subscribers has records only.
        let frames = rest.iter().map(Output::frame_bytes).sum::<usize>();
        let bytes = frames.max(records.iter().map(Record::bytes).sum());
        self.held_bytes += bytes;
        self.held_of_clients += usize::from(of_client);
        let uris = records.iter().flat_map(|record| match record {
            Record::Session(row) => std::slice::from_ref(&row.uri),
            Record::Chat(row) => std::slice::from_ref(&row.uri),
            Record::ChatRemoved { uri, .. } => std::slice::from_ref(uri),
            Record::Evicted(uris) => uris,
            _ => &[],
        });
        let uris = uris.cloned().collect();
        self.held.push_back(HeldOutputs {
            step: self.last_step,
            of_client,
            outputs: rest,
            bytes,
            head,
            uris,
            in_trouble: self.trouble.is_some(),
        });
        if self.steps.send(StepToCommit { number: self.last_step, records, bytes }).is_err() {
            tracing::error!("the commit thread of the store has ended: clients receive no further changes; restart the host");
        }
        Vec::new()
    }
}

/// Commits queued steps, several in one transaction, and reports when they are committed.
fn commit_all(
    writer: &Mutex<Writer>,
    steps: &Receiver<StepToCommit>,
    events: &UnboundedSender<CommitEvent>,
    request_wait: Duration,
) {
    let mut tidied = Instant::now();
    while let Some(StepToCommit { number: mut last, mut records, mut bytes }) =
        next_step(writer, steps, &mut tidied)
    {
        while bytes < TRANSACTION_BYTES {
            let Ok(step) = steps.try_recv() else { break };
            last = step.number;
            records.extend(step.records);
            bytes += step.bytes;
        }
        let (mut last_reason, began) = (String::new(), Instant::now());
        let mut writer = lock(writer);
        while let Err(error) = writer.commit(&records) {
            let (reason, is_for_good) = (error.to_string(), error.is_for_good());
            if last_reason != reason {
                let then = if is_for_good { "restart the host" } else { "the host tries again" };
                tracing::error!(reason, "changes cannot be stored; {then}");
                last_reason.clone_from(&reason);
            }
            let is_long = began.elapsed() >= request_wait;
            if events.send(CommitEvent::Failing(StoreFailure { reason, is_long, is_for_good })).is_err() {
                return;
            }
            if is_for_good {
                // Later steps are not stored either.
                while steps.recv().is_ok() {}
                return;
            }
            thread::sleep(RETRY_AFTER);
        }
        if events.send(CommitEvent::Safe(last, records)).is_err() {
            return;
        }
        writer.checkpoint_from(LOG_PAGES_MAX);
        if tidied.elapsed() > TIDY_EVERY && tidy_some(&mut writer) != Due::Now {
            tidied = Instant::now();
        }
    }
}

/// Runs the committing function. After a panic, which is logged where it happens, reports a
/// permanent failure, so that no client waits for held outputs. Returns whether no panic occurred.
fn run_catching(
    steps: &Receiver<StepToCommit>,
    events: &UnboundedSender<CommitEvent>,
    commit: impl FnOnce(),
) -> bool {
    if catch_unwind(AssertUnwindSafe(commit)).is_ok() {
        return true;
    }
    let reason = "an internal error occurred while changes were stored; the log has the details".to_owned();
    let trouble = StoreFailure { reason, is_long: true, is_for_good: true };
    if events.send(CommitEvent::Failing(trouble)).is_ok() {
        while steps.recv().is_ok() {}
    }
    false
}

/// Waits for the next step with maintenance while idle; `tidied` is when it was last complete.
/// Returns `None` when no step can come.
fn next_step(
    writer: &Mutex<Writer>,
    steps: &Receiver<StepToCommit>,
    tidied: &mut Instant,
) -> Option<StepToCommit> {
    if let Ok(step) = steps.recv_timeout(CHECKPOINT_AFTER) {
        return Some(step);
    }
    lock(writer).checkpoint_from(IDLE_LOG_PAGES_MAX);
    let mut pause = IDLE_AFTER;
    loop {
        match steps.recv_timeout(pause) {
            Ok(step) => return Some(step),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        pause = match tidy_some(&mut lock(writer)) {
            Due::Now => IDLE_PAUSE,
            Due::Soon => IDLE_AFTER,
            Due::Later => {
                *tidied = Instant::now();
                TIDY_EVERY
            }
        };
    }
}

fn tidy_some(writer: &mut Writer) -> Due {
    writer.tidy_some().unwrap_or_else(|error| {
        tracing::warn!(%error, "the store cannot be cleaned up; the host tries again later");
        Due::Later
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_the_commit_is_reported_and_nothing_is_stored_afterwards() {
        let (steps, receiver) = channel();
        let (sender, mut events) = unbounded_channel();
        let committing = thread::spawn(move || {
            run_catching(&receiver, &sender, || {
                receiver.recv().unwrap();
                panic!("a defect");
            })
        });
        for number in 1..=2 {
            steps.send(StepToCommit { number, records: Vec::new(), bytes: 0 }).unwrap();
        }
        let Some(CommitEvent::Failing(trouble)) = events.blocking_recv() else { panic!() };
        assert!(trouble.is_for_good && trouble.reason.contains("internal error"), "{trouble:?}");
        drop(steps);
        assert!(!committing.join().unwrap());
    }
}
