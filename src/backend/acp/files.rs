//! File requests of an agent: `fs/read_text_file`, `fs/write_text_file`, and the lookup of a
//! command's folder and program.
//!
//! Owns: sequential execution on other threads, in the order of the requests; limits on queue,
//! lines and text.
//! Never: answers the agent, or accesses a file by other means than [`Folders`].

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{ReadTextFileRequest, WriteTextFileRequest};
use serde_json::{json, Value};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::errors::RequestError;
use super::peer::{AgentConnection, AgentRequest};
use super::terminals::Launch;
use crate::backend::byte_budget::{ByteBudget, ByteReservation};
use crate::files::folders::Folders;
use crate::os::blocking::on_a_thread;

/// Maximum size of a text that is read or written, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Maximum number of bytes skipped to reach a line of a file.
const PASSED_BYTES_MAX: u64 = 256 << 20;

/// Maximum size of a file's former content that is shown with its change, in bytes.
const SHOWN_BYTES_MAX: u64 = 256 << 10;

/// Maximum size of all queued requests, in bytes.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Interval between checks whether an agent has read its pending answers.
const RECHECK_INTERVAL: Duration = Duration::from_millis(10);

pub struct Files {
    jobs: mpsc::UnboundedSender<FileJob>,
    room: ByteBudget,
    done: mpsc::Receiver<FileOutcome>,
    worker: AbortHandle,
}

#[derive(Debug)]
pub enum FileRequest {
    Read(ReadTextFileRequest),
    Write {
        write: WriteTextFileRequest,
        /// Call that shows the write; `None` if none does.
        call: Option<String>,
        /// Cancelled when the write must not be done any more.
        cancelled: CancellationToken,
    },
    /// Lookup of a command's folder and program.
    Find(Box<Launch>),
}

#[derive(Debug)]
pub struct FileOutcome {
    pub request: AgentRequest,
    pub result: Result<FileAnswer, RequestError>,
    pub shown: Option<(String, FileChange)>,
}

#[derive(Debug)]
pub enum FileAnswer {
    Json(Value),
    Found(Box<Launch>),
}

#[derive(Debug)]
pub struct FileChange {
    pub path: PathBuf,
    /// Former content: `None` if unknown (not text, too long), `Some(None)` if there was no file.
    pub before: Option<Option<String>>,
    pub after: String,
}

/// Queued work, with the room that it takes in the queue.
type FileJob = (FileWork, Option<ByteReservation>);

enum FileWork {
    In(Vec<PathBuf>),
    Do(AgentRequest, FileRequest),
}

impl Files {
    pub fn new(folders: Vec<PathBuf>, connection: AgentConnection) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        let (sender, done) = mpsc::channel(1);
        let worker = tokio::spawn(work(queue, sender, connection)).abort_handle();
        let files = Self { jobs, room: ByteBudget::new(QUEUE_BYTES_MAX), done, worker };
        files.work_in(folders);
        files
    }

    /// Changes the folders for later requests.
    pub fn work_in(&self, folders: Vec<PathBuf>) {
        self.queue(FileWork::In(folders), None);
    }

    fn queue(&self, work: FileWork, room: Option<ByteReservation>) {
        if self.jobs.send((work, room)).is_err() {
            tracing::error!("file requests of an agent are no longer served: their task has failed");
        }
    }

    /// Queues a request. Errors if its text is too long or the queue is full.
    pub fn ask(&self, request: AgentRequest, asked: FileRequest) -> Result<(), RequestError> {
        let bytes = match &asked {
            FileRequest::Read(read) => read.path.as_os_str().len(),
            FileRequest::Write { write, .. } => write.content.len(),
            FileRequest::Find(launch) => launch.bytes(),
        };
        if bytes > TEXT_BYTES_MAX {
            return Err(RequestError::TextTooLong(TEXT_BYTES_MAX));
        }
        let mut room = self.room.try_reserve().ok_or(RequestError::TooManyRequests)?;
        room.grow_to(bytes);
        self.queue(FileWork::Do(request, asked), Some(room));
        Ok(())
    }

    /// Returns whether the queue has room for any request.
    pub fn have_room(&self) -> bool {
        self.room.free_bytes() > 2 * TEXT_BYTES_MAX
    }

    /// Waits for the next result. Cancel safe.
    pub async fn done(&mut self) -> Option<FileOutcome> {
        self.done.recv().await
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Running work is completed; queued work is dropped.
        self.worker.abort();
    }
}

async fn work(
    mut queue: mpsc::UnboundedReceiver<FileJob>,
    done: mpsc::Sender<FileOutcome>,
    connection: AgentConnection,
) {
    let mut folders = Arc::<Folders>::default();
    while let Some((work, _room)) = queue.recv().await {
        // An agent that does not read its answers gets no more of them.
        while connection.is_behind() && !connection.is_over() {
            tokio::time::sleep(RECHECK_INTERVAL).await;
        }
        match work {
            FileWork::In(named) => match on_a_thread(move || Folders::new(named)).await {
                Ok(now) => folders = Arc::new(now),
                Err(error) => {
                    tracing::error!(%error, "the folders of a conversation cannot be opened");
                    folders = Arc::default();
                }
            },
            FileWork::Do(request, asked) => {
                let known = Arc::clone(&folders);
                let tried = on_a_thread(move || carry_out(&known, asked)).await;
                let (result, shown) =
                    tried.unwrap_or_else(|error| (Err(RequestError::NotTried(error)), None));
                if done.send(FileOutcome { request, result, shown }).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Executes a request; returns also the change to show.
fn carry_out(
    folders: &Folders,
    asked: FileRequest,
) -> (Result<FileAnswer, RequestError>, Option<(String, FileChange)>) {
    let mut shown = None;
    let result = match asked {
        FileRequest::Read(ReadTextFileRequest { path, line, limit, .. }) => folders
            .open(&path)
            .map_err(|refusal| RequestError::of_path(&path, refusal))
            .and_then(|file| lines(&path, file, line, limit))
            .map(|text| FileAnswer::Json(json!({ "content": text }))),
        FileRequest::Write { write: WriteTextFileRequest { path, content, .. }, call, cancelled } => {
            let before = call.as_ref().and_then(|_| text_of(folders, &path));
            let result = if cancelled.is_cancelled() {
                Err(RequestError::TurnCancelled)
            } else {
                let written = folders.write(&path, content.as_bytes());
                written.map_err(|refusal| RequestError::of_path(&path, refusal))
            };
            shown = call.map(|call| (call, FileChange { path, before, after: content }));
            result.map(|()| FileAnswer::Json(json!({})))
        }
        FileRequest::Find(launch) => launch.find(folders).map(|found| FileAnswer::Found(Box::new(found))),
    };
    (result, shown)
}

/// Reads up to `limit` lines with their ends from `line` (1-based) on; empty beyond the end.
fn lines(
    path: &Path,
    file: impl Read,
    line: Option<u32>,
    limit: Option<u32>,
) -> Result<String, RequestError> {
    let path = || path.to_owned();
    let failed = |error| RequestError::Read { path: path(), error };
    let mut file = BufReader::new(file);
    let mut passed = (&mut file).take(PASSED_BYTES_MAX);
    for _ in 1..line.unwrap_or(1) {
        if passed.skip_until(b'\n').map_err(failed)? == 0 {
            break;
        }
    }
    if passed.limit() == 0 {
        return Err(RequestError::LineTooFar { path: path(), max: PASSED_BYTES_MAX });
    }
    let mut text = Vec::new();
    let mut rest = file.take(TEXT_BYTES_MAX as u64 + 1);
    if limit.is_none() {
        rest.read_to_end(&mut text).map_err(failed)?;
    }
    for _ in 0..limit.unwrap_or(0) {
        if rest.read_until(b'\n', &mut text).map_err(failed)? == 0 {
            break;
        }
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(RequestError::FileTooLong { path: path(), max: TEXT_BYTES_MAX });
    }
    String::from_utf8(text).map_err(|_| RequestError::NotText(path()))
}

/// Reads the former content of a file that is to be written, as [`FileChange::before`].
fn text_of(folders: &Folders, path: &Path) -> Option<Option<String>> {
    let file = match folders.open(path) {
        Ok(file) => file,
        Err(refusal) => return refusal.is_missing().then_some(None),
    };
    let mut text = String::new();
    let read = file.take(SHOWN_BYTES_MAX + 1).read_to_string(&mut text).ok()?;
    (read as u64 <= SHOWN_BYTES_MAX).then_some(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one_and_keep_their_ends() {
        let lines = |text: &'static [u8], line, limit| lines(Path::new("x"), text, line, limit);
        let read = |line, limit| lines(b"a\nb\r\n\nd", line, limit).unwrap();
        assert_eq!(read(None, None), "a\nb\r\n\nd");
        assert_eq!((read(Some(0), Some(1)), read(Some(1), Some(1))), ("a\n".to_owned(), "a\n".to_owned()));
        assert_eq!(read(Some(2), Some(2)), "b\r\n\n");
        assert_eq!(read(Some(4), Some(u32::MAX)), "d");
        assert_eq!(read(Some(2), None), "b\r\n\nd");
        assert_eq!(
            (read(Some(5), None), read(Some(u32::MAX), Some(1)), read(None, Some(0))),
            Default::default()
        );
        assert!(matches!(lines(b"a\nb\xff", None, None), Err(RequestError::NotText(_))));
        assert_eq!(lines(b"a\nb\xff", None, Some(1)).unwrap(), "a\n");
    }

    /// Writes `text` to this path and returns the result.
    async fn written(
        files: &mut Files,
        path: &Path,
        cancelled: &CancellationToken,
    ) -> Result<(), RequestError> {
        let write = WriteTextFileRequest::new("s", path, "text");
        let asked = FileRequest::Write { write, call: None, cancelled: cancelled.clone() };
        files.ask(AgentRequest::test(), asked).unwrap();
        files.done().await.unwrap().result.map(drop)
    }

    #[tokio::test]
    async fn the_folders_may_change_and_what_was_cancelled_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        for folder in [&one, &other] {
            std::fs::create_dir(folder).unwrap();
        }
        let ending = std::future::pending::<String>();
        let (sink, empty, stop) = (tokio::io::sink(), tokio::io::empty(), CancellationToken::new());
        let connection = AgentConnection::start("a".to_owned(), (sink, ()), empty, stop, ending);
        let mut files = Files::new(vec![one.clone()], connection);
        let going_on = CancellationToken::new();
        written(&mut files, &one.join("a"), &going_on).await.unwrap();
        assert!(written(&mut files, &other.join("a"), &going_on).await.is_err());
        files.work_in(vec![other.clone()]);
        written(&mut files, &other.join("a"), &going_on).await.unwrap();
        assert!(written(&mut files, &one.join("b"), &going_on).await.is_err());
        files.work_in(vec![one.clone(), other.clone()]);
        written(&mut files, &one.join("c"), &going_on).await.unwrap();
        written(&mut files, &other.join("c"), &going_on).await.unwrap();
        going_on.cancel();
        let why = written(&mut files, &one.join("d"), &going_on).await.unwrap_err();
        assert!(matches!(why, RequestError::TurnCancelled), "{why}");
        assert!(!one.join("b").exists() && !one.join("d").exists());
        assert!(files.have_room());
    }

    #[test]
    fn a_text_may_be_so_long_and_no_longer() {
        let lines =
            |bytes: u64, line, limit| lines(Path::new("x"), std::io::repeat(b'x').take(bytes), line, limit);
        let max = TEXT_BYTES_MAX as u64;
        assert_eq!(lines(max, None, None).unwrap().len(), TEXT_BYTES_MAX);
        for limit in [None, Some(1)] {
            assert!(matches!(lines(max + 1, None, limit), Err(RequestError::FileTooLong { .. })));
        }
        assert!(matches!(lines(u64::MAX, Some(2), None), Err(RequestError::LineTooFar { .. })));
    }
}
