//! File requests of an agent: `fs/read_text_file`, `fs/write_text_file`, and finding the folder and
//! program of a command.
//!
//! Owns: doing it on other threads, one thing after the other in the order in which a conversation
//! asks for it; how much may wait; lines, limits and what is text.
//! Never: answers the agent, or touches a file in another way than [`Folders`] does.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_client_protocol_schema::v1::{ReadTextFileRequest, WriteTextFileRequest};
use tokio::sync::{mpsc, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::blocking::on_a_thread;
use super::errors::RequestError;
use super::peer::{AgentConnection, AgentRequest};
use super::terminals::Launch;
use crate::files::folders::Folders;

/// The longest text that is read or written, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Maximum number of bytes of a file that are skipped to reach a line of it.
const PASSED_BYTES_MAX: u64 = 256 << 20;

/// A change that is to be shown with what was there before shows that up to this size, in bytes.
const SHOWN_BYTES_MAX: u64 = 256 << 10;

/// Unit in which the size of queued requests is counted, in bytes: a request takes at least one.
const PIECE_BYTES: usize = 1 << 10;
const PIECES_MAX: usize = (64 << 20) / PIECE_BYTES;

/// Interval at which an agent with many unread answers is checked for reading on.
const RECHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Queue of a conversation's file requests, which are carried out in order.
pub struct Files {
    jobs: mpsc::UnboundedSender<FileJob>,
    room: Arc<Semaphore>,
    done: mpsc::Receiver<FileOutcome>,
    worker: AbortHandle,
}

/// Something that was asked for.
#[derive(Debug)]
pub enum FileRequest {
    /// Read a file.
    Read(AgentRequest, ReadTextFileRequest),
    /// Write one.
    Write {
        /// Id of the request.
        request: AgentRequest,
        /// Path and content to write.
        write: WriteTextFileRequest,
        /// The call that it is shown as, if it is one of its own.
        call: Option<String>,
        /// Token that is cancelled when the write must not be done any more.
        cancelled: CancellationToken,
    },
    /// Find where a command runs, and its program.
    Find(AgentRequest, Box<Launch>),
}

/// Result of a [`FileRequest`].
#[derive(Debug)]
pub enum FileOutcome {
    /// A file was read.
    Read(AgentRequest, Result<String, RequestError>),
    /// A file was written.
    Written {
        /// Id of the request.
        request: AgentRequest,
        /// Result of the write.
        result: Result<(), RequestError>,
        /// The call that it is shown as, and the change.
        shown: Option<(String, FileChange)>,
    },
    /// A command can be started.
    Found(AgentRequest, Result<Box<Launch>, RequestError>),
}

/// Former content of a file that is not known.
#[derive(Debug)]
pub struct UnknownContent;

/// A change of a file.
#[derive(Debug)]
pub struct FileChange {
    /// The file.
    pub path: PathBuf,
    /// Former content, `None` if the file did not exist; unknown if it was not text, or too long.
    pub before: Result<Option<String>, UnknownContent>,
    /// New content.
    pub after: String,
}

struct FileJob {
    work: FileWork,
    _room: Option<OwnedSemaphorePermit>,
}

enum FileWork {
    In(Vec<PathBuf>),
    Do(FileRequest),
}

impl Files {
    /// The files of a conversation that works in these folders.
    pub fn new(folders: Vec<PathBuf>, connection: AgentConnection) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        let (sender, done) = mpsc::channel(1);
        let worker = tokio::spawn(work(queue, sender, connection)).abort_handle();
        let files = Self { jobs, room: Arc::new(Semaphore::new(PIECES_MAX)), done, worker };
        files.work_in(folders);
        files
    }

    /// From what is asked next on, the folders are these, as they are by then.
    pub fn work_in(&self, folders: Vec<PathBuf>) {
        self.queue(FileWork::In(folders), None);
    }

    fn queue(&self, work: FileWork, room: Option<OwnedSemaphorePermit>) {
        if self.jobs.send(FileJob { work, _room: room }).is_err() {
            tracing::error!("the thread that reads and writes files for agents has ended");
        }
    }

    /// Asks for something.
    ///
    /// # Errors
    /// When it is too much.
    pub fn ask(&self, asked: FileRequest) -> Result<(), (AgentRequest, RequestError)> {
        let bytes = match &asked {
            FileRequest::Read(_, read) => read.path.as_os_str().len(),
            FileRequest::Write { write, .. } => write.content.len(),
            FileRequest::Find(_, launch) => launch.bytes(),
        };
        let room = u32::try_from(1 + bytes / PIECE_BYTES)
            .ok()
            .filter(|_| bytes <= TEXT_BYTES_MAX)
            .and_then(|pieces| Arc::clone(&self.room).try_acquire_many_owned(pieces).ok());
        match (room, asked) {
            (Some(room), asked) => {
                self.queue(FileWork::Do(asked), Some(room));
                Ok(())
            }
            (
                None,
                FileRequest::Read(id, _) | FileRequest::Write { request: id, .. } | FileRequest::Find(id, _),
            ) => Err((id, RequestError::TextTooLong(TEXT_BYTES_MAX))),
        }
    }

    /// Returns whether the queue has room for any request.
    pub fn have_room(&self) -> bool {
        self.room.available_permits() > 2 * TEXT_BYTES_MAX / PIECE_BYTES
    }

    /// The next thing that is done. May be dropped half-way.
    pub async fn done(&mut self) -> Option<FileOutcome> {
        self.done.recv().await
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // What was begun is done, what waits is not.
        self.worker.abort();
    }
}

async fn work(
    mut queue: mpsc::UnboundedReceiver<FileJob>,
    done: mpsc::Sender<FileOutcome>,
    connection: AgentConnection,
) {
    let mut folders = Arc::<Folders>::default();
    while let Some(FileJob { work, _room }) = queue.recv().await {
        // Answers that nobody reads are not added to.
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
            FileWork::Do(asked) => {
                let known = Arc::clone(&folders);
                let (request, failed) = asked.failed();
                let result = on_a_thread(move || carry_out(&known, asked)).await;
                let result = result.unwrap_or_else(|error| failed(request, RequestError::NotTried(error)));
                if done.send(result).await.is_err() {
                    return;
                }
            }
        }
    }
}

impl FileRequest {
    /// Returns the id of the request, and the function that makes its result if it could not be
    /// tried.
    fn failed(&self) -> (AgentRequest, fn(AgentRequest, RequestError) -> FileOutcome) {
        match self {
            Self::Read(id, _) => (id.clone(), |id, why| FileOutcome::Read(id, Err(why))),
            Self::Write { request, .. } => (request.clone(), |request, why| FileOutcome::Written {
                request,
                result: Err(why),
                shown: None,
            }),
            Self::Find(id, _) => (id.clone(), |id, why| FileOutcome::Found(id, Err(why))),
        }
    }
}

fn carry_out(folders: &Folders, asked: FileRequest) -> FileOutcome {
    match asked {
        FileRequest::Read(request, read) => {
            let text = folders.open(&read.path).map_err(|refusal| RequestError::of_path(&read.path, refusal));
            let text = text.and_then(|file| {
                lines(file, read.line, read.limit).map_err(|why| read_error(&read.path, why))
            });
            FileOutcome::Read(request, text)
        }
        FileRequest::Write { request, write, call, cancelled } => {
            let WriteTextFileRequest { path, content, .. } = write;
            let before = if call.is_some() { text_of(folders, &path) } else { Err(UnknownContent) };
            let result = if cancelled.is_cancelled() {
                Err(RequestError::TurnCancelled)
            } else {
                folders
                    .write(&path, content.as_bytes())
                    .map_err(|refusal| RequestError::of_path(&path, refusal))
            };
            let shown = call.map(|call| (call, FileChange { path, before, after: content }));
            FileOutcome::Written { request, result, shown }
        }
        FileRequest::Find(request, launch) => FileOutcome::Found(request, launch.find(folders).map(Box::new)),
    }
}

/// Reason for which the content of a file cannot be read.
enum ReadError {
    TooLong,
    TooFar,
    NoText,
    Failed(io::Error),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

fn read_error(path: &Path, wrong: ReadError) -> RequestError {
    let path = path.to_owned();
    match wrong {
        ReadError::TooLong => RequestError::FileTooLong { path, max: TEXT_BYTES_MAX },
        ReadError::TooFar => RequestError::LineTooFar { path, max: PASSED_BYTES_MAX },
        ReadError::NoText => RequestError::NotText(path),
        ReadError::Failed(error) => RequestError::Read { path, error },
    }
}

/// Lines of a file, with their ends, from this one on (the first is 1), at most so many; none where
/// it has fewer.
fn lines(file: impl Read, line: Option<u32>, limit: Option<u32>) -> Result<String, ReadError> {
    let mut file = BufReader::new(file);
    let mut passed = (&mut file).take(PASSED_BYTES_MAX);
    for _ in 1..line.unwrap_or(1) {
        if passed.skip_until(b'\n')? == 0 {
            break;
        }
    }
    if passed.limit() == 0 {
        return Err(ReadError::TooFar);
    }
    let mut text = Vec::new();
    let mut rest = file.take(TEXT_BYTES_MAX as u64 + 1);
    match limit {
        Some(limit) => {
            for _ in 0..limit {
                if rest.read_until(b'\n', &mut text)? == 0 {
                    break;
                }
            }
        }
        None => {
            rest.read_to_end(&mut text)?;
        }
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(ReadError::TooLong);
    }
    String::from_utf8(text).map_err(|_| ReadError::NoText)
}

/// Reads a file that is to be shown; `None` if it does not exist.
fn text_of(folders: &Folders, path: &Path) -> Result<Option<String>, UnknownContent> {
    let file = match folders.open(path) {
        Ok(file) => file,
        Err(refusal) if refusal.is_missing() => return Ok(None),
        Err(_) => return Err(UnknownContent),
    };
    let mut text = String::new();
    let read = file.take(SHOWN_BYTES_MAX + 1).read_to_string(&mut text).map_err(|_| UnknownContent)?;
    if read as u64 > SHOWN_BYTES_MAX {
        return Err(UnknownContent);
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one_and_keep_their_ends() {
        let read = |line, limit| lines(&b"a\nb\r\n\nd"[..], line, limit).ok().unwrap();
        assert_eq!(read(None, None), "a\nb\r\n\nd");
        assert_eq!((read(Some(0), Some(1)), read(Some(1), Some(1))), ("a\n".to_owned(), "a\n".to_owned()));
        assert_eq!(read(Some(2), Some(2)), "b\r\n\n");
        assert_eq!(read(Some(4), Some(u32::MAX)), "d");
        assert_eq!(read(Some(2), None), "b\r\n\nd");
        assert_eq!(
            (read(Some(5), None), read(Some(u32::MAX), Some(1)), read(None, Some(0))),
            Default::default()
        );
        assert!(matches!(lines(&b"a\nb\xff"[..], None, None), Err(ReadError::NoText)));
        assert_eq!(lines(&b"a\nb\xff"[..], None, Some(1)).ok().unwrap(), "a\n");
    }

    /// Writes `text` to this path and returns the result.
    async fn written(
        files: &mut Files,
        path: &Path,
        cancelled: &CancellationToken,
    ) -> Result<(), RequestError> {
        let write = WriteTextFileRequest::new("s", path, "text");
        let request = AgentRequest::test();
        let asked = FileRequest::Write { request, write, call: None, cancelled: cancelled.clone() };
        files.ask(asked).unwrap();
        let Some(FileOutcome::Written { result, .. }) = files.done().await else {
            panic!("it was not written")
        };
        result
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
        let connection = AgentConnection::start("a".to_owned(), sink, empty, stop, ending);
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
        let long = |bytes: usize| io::repeat(b'x').take(bytes as u64);
        assert_eq!(lines(long(TEXT_BYTES_MAX), None, None).ok().unwrap().len(), TEXT_BYTES_MAX);
        assert!(matches!(lines(long(TEXT_BYTES_MAX + 1), None, None), Err(ReadError::TooLong)));
        assert!(matches!(lines(long(TEXT_BYTES_MAX + 1), None, Some(1)), Err(ReadError::TooLong)));
        assert!(matches!(lines(io::repeat(b'x'), Some(2), None), Err(ReadError::TooFar)));
    }
}
