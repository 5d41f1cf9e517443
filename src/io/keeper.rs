//! What keeps the records of each step, and holds back what the step says until they are safe.
//!
//! Owns: the threads that commit and list, so that a slow disk holds up nobody who is not waiting for it; the order of
//! what is held back; trying again while nothing can be committed; when there is time to give disk space back.
//! Never: lets a frame or a command out before the records of its step are safe, or drops either.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};

use crate::host::effects::{Output, Page, Record};
use crate::host::Start;
use crate::store::folder::Folder;
use crate::store::memory::Memory;
use crate::store::reader::Reader;
use crate::store::sqlite::{self, StoreError, Writer};
use crate::store::{Listed, StoreOptions};
use crate::wire::rpc::RequestId;

/// How long a commit that failed waits before it is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// From so many bytes on that wait to be committed, agents are not read: what a client says then would wait behind all
/// of them. Several transactions long, so that the disk is never idle.
const AGENTS_ABOVE: usize = 4 * TRANSACTION_BYTES;

/// A transaction that has so many bytes takes no more steps, so that the first of them is not safe much later than it
/// could be.
const TRANSACTION_BYTES: usize = 512 << 10;

/// When nothing was to be committed for so long, there is time to give disk space back.
const CALM_AFTER: Duration = Duration::from_secs(1);

/// What the thread that commits tells.
#[derive(Debug)]
pub enum Kept {
    /// Every step up to this one is safe.
    Safe(u64),
    /// Nothing can be committed, for this reason; it is tried again.
    Failing(String),
    /// A page of the list of sessions that was asked for.
    Listed(RequestId, Result<Listed, StoreError>),
}

/// Keeps everything in memory, or in a state folder.
#[derive(Debug)]
pub enum Keeper {
    /// Nothing outlives the process.
    Memory(Memory),
    /// Everything does.
    Disk(Box<Disk>),
}

/// A state folder, and what waits for it.
#[derive(Debug)]
pub struct Disk {
    reader: Reader,
    /// Held by the thread that commits while it does.
    writer: Arc<Mutex<Writer>>,
    steps: Sender<Step>,
    last_step: u64,
    lists: Sender<(RequestId, Page)>,
    /// How many pages were asked for and have not come.
    lists_due: usize,
    /// What each step says, in order, until it is safe.
    held: VecDeque<Held>,
    held_bytes: usize,
    /// How many of the held steps a client has caused.
    held_of_clients: usize,
    /// The last sequence number that is safe.
    safe: u64,
    /// Nothing can be committed now.
    failing: bool,
    _folder: Folder,
}

/// What is to be committed of a step.
#[derive(Debug)]
struct Step {
    number: u64,
    records: Vec<Record>,
    /// See [`Held::bytes`].
    bytes: usize,
}

/// What one step says.
#[derive(Debug)]
struct Held {
    step: u64,
    /// Something that a client said has caused it, at least in part.
    of_client: bool,
    outputs: Vec<Output>,
    /// What the step takes up in memory until it is safe, nearly.
    bytes: usize,
    /// The last sequence number of the step, if it has any.
    head: Option<u64>,
    /// The sessions and chats whose rows it changes.
    uris: Vec<String>,
}

impl Keeper {
    /// A keeper for this folder, where its last life ended, and the channel on which it tells.
    ///
    /// # Errors
    /// When the folder or the database in it cannot be used.
    pub fn open(
        folder: &Path,
        options: StoreOptions,
    ) -> anyhow::Result<(Self, Start, UnboundedReceiver<Kept>)> {
        let folder = Folder::hold(folder)?;
        let path = folder.private_file(sqlite::FILE_NAME)?;
        let unusable = |error| anyhow::anyhow!("{} cannot be used: {error}", path.display());
        let (writer, start) = Writer::open(&path, options).map_err(unusable)?;
        let reader = Reader::open(&path, options.window).map_err(unusable)?;
        let lister = Reader::open(&path, options.window).map_err(unusable)?;
        let writer = Arc::new(Mutex::new(writer));
        let committing = Arc::clone(&writer);
        let (steps, receiver) = channel();
        let (lists, asked) = channel();
        let (tell, told) = unbounded_channel();
        let answer = tell.clone();
        thread::spawn(move || commit_all(&committing, &receiver, &tell));
        thread::spawn(move || list_all(&lister, &asked, &answer));
        let disk = Disk {
            reader,
            writer,
            steps,
            last_step: 0,
            lists,
            lists_due: 0,
            held: VecDeque::new(),
            held_bytes: 0,
            held_of_clients: 0,
            safe: start.head,
            failing: false,
            _folder: folder,
        };
        Ok((Self::Disk(Box::new(disk)), start, told))
    }

    /// Takes what a step left behind, and gives back what may go out now. `of_client`: something that a client said has
    /// caused it, at least in part.
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
            // While nothing can be committed the core changes nothing and tells only what is safe: that
            // need not wait.
            Self::Disk(disk) if (disk.held.is_empty() || disk.failing) && !outputs.iter().any(is_record) => {
                outputs
            }
            Self::Disk(disk) => disk.keep(outputs, of_client),
        }
    }

    /// What may go out because every step up to this one is safe.
    pub fn release(&mut self, up_to: u64) -> impl Iterator<Item = Output> {
        let mut released = Vec::new();
        if let Self::Disk(disk) = self {
            disk.failing = false;
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

    /// Nothing can be committed now. Returns the last sequence number that is safe.
    pub fn fail(&mut self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Disk(disk) => {
                disk.failing = true;
                disk.safe
            }
        }
    }

    /// Whether nothing can be committed now.
    pub fn is_failing(&self) -> bool {
        matches!(self, Self::Disk(disk) if disk.failing)
    }

    /// Whether what stands alone may go out before what is held back. Not before what clients have caused: a client can
    /// rely on it that what it said was heard when something that it said later is answered.
    pub fn may_be_overtaken(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Disk(disk) => disk.failing || disk.held_of_clients == 0,
        }
    }

    /// Whether there is room for what agents say, when so many bytes more are on their way here.
    pub fn has_room_for_agents(&self, coming: usize) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Disk(disk) => !disk.failing && disk.held_bytes + coming < AGENTS_ABOVE,
        }
    }

    /// Bytes that are held back, nearly.
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Memory(_) => 0,
            Self::Disk(disk) => disk.held_bytes,
        }
    }

    /// Whether the store does not know a session or chat as it is yet.
    pub fn holds(&self, uri: &str) -> bool {
        matches!(self, Self::Disk(disk) if disk.held.iter().any(|held| held.uris.iter().any(|it| it == uri)))
    }

    /// Whether nothing is held back, and no page of a list is due.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Disk(disk) => disk.held.is_empty() && disk.lists_due == 0,
        }
    }

    /// Reads a page of the list of sessions, as far as they are safe: at once from memory, else on a thread of
    /// its own, so that a long list holds up nobody; then it comes as [`Kept::Listed`].
    pub fn list(&mut self, id: RequestId, page: Page) -> Option<Kept> {
        match self {
            Self::Memory(memory) => Some(Kept::Listed(id, Ok(memory.list(&page)))),
            Self::Disk(disk) => {
                disk.lists_due += 1;
                if disk.lists.send((id, page)).is_err() {
                    tracing::error!("the thread that lists sessions has ended");
                }
                None
            }
        }
    }

    /// A page that was asked for has come.
    pub fn listed(&mut self) {
        if let Self::Disk(disk) = self {
            disk.lists_due = disk.lists_due.saturating_sub(1);
        }
    }

    /// The store to read from, if there is one.
    pub fn reader(&self) -> Option<&Reader> {
        match self {
            Self::Memory(_) => None,
            Self::Disk(disk) => Some(&disk.reader),
        }
    }
}

impl Disk {
    /// Commits a small step at once, if nothing is before it and nothing has to be waited for: text that comes alone is
    /// spared the way over another thread. Any other waits for that thread. Returns what may go out now.
    fn keep(&mut self, outputs: Vec<Output>, of_client: bool) -> Vec<Output> {
        // Of what streams, each action is one of either.
        let each = outputs.len() / 2 + 1;
        let (mut records, mut rest) = (Vec::with_capacity(each), Vec::with_capacity(each));
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
        if self.held.is_empty() && !self.failing {
            let kept = self.writer.try_lock().is_ok_and(|mut writer| writer.commit_at_once(&records));
            if kept {
                self.safe = head.unwrap_or(self.safe);
                return rest;
            }
        }
        self.last_step += 1;
        // A frame shares its bytes with its record; a chat that nobody follows has records alone.
        let frames = rest.iter().map(Output::frame_bytes).sum::<usize>();
        let bytes = frames.max(records.iter().map(Record::bytes).sum());
        self.held_bytes += bytes;
        self.held_of_clients += usize::from(of_client);
        let uris = records.iter().filter_map(|record| match record {
            Record::Session(row) => Some(row.uri.clone()),
            Record::Chat(row) => Some(row.uri.clone()),
            Record::ChatRemoved { uri, .. } => Some(uri.clone()),
            _ => None,
        });
        let uris = uris.collect();
        self.held.push_back(Held { step: self.last_step, of_client, outputs: rest, bytes, head, uris });
        if self.steps.send(Step { number: self.last_step, records, bytes }).is_err() {
            tracing::error!("the thread that commits has ended; nothing goes out any more");
        }
        Vec::new()
    }
}

/// Reads every page that is asked for.
fn list_all(reader: &Reader, asked: &Receiver<(RequestId, Page)>, answer: &UnboundedSender<Kept>) {
    for (id, page) in asked {
        if answer.send(Kept::Listed(id, reader.list(&page))).is_err() {
            return;
        }
    }
}

/// Commits the steps that wait, many in one transaction, and tells when they are safe.
fn commit_all(writer: &Mutex<Writer>, steps: &Receiver<Step>, tell: &UnboundedSender<Kept>) {
    while let Some(Step { number: mut last, mut records, mut bytes }) = next_step(writer, steps) {
        while bytes < TRANSACTION_BYTES {
            let Ok(step) = steps.try_recv() else { break };
            last = step.number;
            records.extend(step.records);
            bytes += step.bytes;
        }
        let mut said = String::new();
        let mut writer = lock(writer);
        while let Err(error) = writer.commit(&records) {
            let reason = error.to_string();
            if said != reason {
                tracing::error!(reason, "nothing can be committed; it is tried again");
                said = reason;
            }
            if tell.send(Kept::Failing(error.to_string())).is_err() {
                return;
            }
            thread::sleep(RETRY_AFTER);
        }
        if tell.send(Kept::Safe(last)).is_err() {
            return;
        }
        writer.empty_long_log();
    }
}

fn lock(writer: &Mutex<Writer>) -> MutexGuard<'_, Writer> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the next step, and uses the time to give disk space back; none when there will be no other.
fn next_step(writer: &Mutex<Writer>, steps: &Receiver<Step>) -> Option<Step> {
    loop {
        match steps.recv_timeout(CALM_AFTER) {
            Ok(step) => return Some(step),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let more = lock(writer).give_back_some().unwrap_or_else(|error| {
            tracing::warn!(%error, "disk space cannot be given back");
            false
        });
        if !more {
            return steps.recv().ok();
        }
    }
}
