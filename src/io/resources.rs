//! What clients read of this machine's files, and of `data:` URIs: `resourceRead` and `resourceList`.
//!
//! Owns: doing it on threads of its own, a few at a time, because a file system may take its time or for ever;
//! and what is an error.
//! Never: writes, and never reads what is no regular file: a pipe or a device may have no end.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::thread;

use ahp_types::commands::{ContentEncoding, DirectoryEntry, ResourceListResult, ResourceReadResult};
use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use bytes::Bytes;
use percent_encoding::{percent_decode_str, percent_encode, AsciiSet, NON_ALPHANUMERIC};
use tokio::sync::mpsc;

use super::files;
use crate::host::effects::{ConnectionId, Frame, Resource};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{to_json, RequestId};

/// So many are read at the same time.
const AT_ONCE: usize = 4;

/// The longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// An answer, and whose it is.
pub type Answered = (ConnectionId, Frame);

/// What is read, and what waits to be.
#[derive(Debug)]
pub struct Resources {
    waiting: VecDeque<(ConnectionId, RequestId, Resource)>,
    running: usize,
    answers: mpsc::UnboundedSender<Answered>,
}

impl Resources {
    /// Begins with nothing to do; answers come out of the receiver.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Answered>) {
        let (answers, answered) = mpsc::unbounded_channel();
        (Self { waiting: VecDeque::new(), running: 0, answers }, answered)
    }

    /// Takes a request; [`Resources::start`] begins with it when there is room.
    pub fn take(&mut self, connection: ConnectionId, id: RequestId, resource: Resource) {
        self.waiting.push_back((connection, id, resource));
    }

    /// Begins with what waits, as far as no more than a few run and its connection has room for the answer.
    pub fn start(&mut self, mut has_room: impl FnMut(ConnectionId) -> bool) {
        while self.running < AT_ONCE {
            let next = self.waiting.iter().position(|(connection, ..)| has_room(*connection));
            let Some((connection, id, resource)) = next.and_then(|at| self.waiting.remove(at)) else {
                return;
            };
            let answers = self.answers.clone();
            let asked = id.clone();
            let work = move || {
                // A panic is logged where it happens.
                let answered = catch_unwind(AssertUnwindSafe(|| answer(asked.clone(), &resource)));
                let failed = |_| Frame::Error { id: Some(asked), error: RpcError::internal() };
                send(&answers, connection, answered.unwrap_or_else(failed));
            };
            self.running += 1;
            if let Err(error) = thread::Builder::new().name("resource".to_owned()).spawn(work) {
                tracing::error!(%error, "no thread to read a resource with");
                let failed = Frame::Error { id: Some(id), error: RpcError::internal() };
                send(&self.answers, connection, failed);
            }
        }
    }

    /// An answer has arrived.
    pub fn answered(&mut self) {
        self.running -= 1;
    }

    /// Nothing is read, and nothing waits to be.
    pub fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }
}

fn send(answers: &mpsc::UnboundedSender<Answered>, connection: ConnectionId, frame: Frame) {
    if answers.send((connection, frame)).is_err() {
        tracing::debug!("nobody waits for a resource any more");
    }
}

fn answer(id: RequestId, resource: &Resource) -> Frame {
    let (method, result) = match resource {
        Resource::Read { uri, encoding } => {
            (Method::ResourceRead, read(uri, encoding.as_ref()).map(|result| to_json(&result)))
        }
        Resource::List { uri } => (Method::ResourceList, list(uri).map(|result| to_json(&result))),
        Resource::Files(meant) => (Method::Completions, Ok(to_json(&files::find(meant)))),
    };
    match result {
        Ok(result) => Frame::result(id, method, Bytes::from(result)),
        Err(error) => Frame::Error { id: Some(id), error },
    }
}

/// A file's content: as text where it is text, unless asked otherwise.
fn read(uri: &str, encoding: Option<&ContentEncoding>) -> Result<ResourceReadResult, RpcError> {
    let (content, content_type) = match uri.strip_prefix("data:") {
        Some(data) => {
            inline(data).ok_or_else(|| RpcError::invalid_params("this `data:` URI cannot be read"))?
        }
        None => (read_file(uri)?, None),
    };
    let text = if encoding == Some(&ContentEncoding::Base64) { Err(content) } else { as_text(content) };
    let (data, encoding) = match text {
        Ok(text) => (text, ContentEncoding::Utf8),
        Err(content) => (STANDARD.encode(content), ContentEncoding::Base64),
    };
    Ok(ResourceReadResult { data, encoding, content_type })
}

/// What is in a `data:` URI (RFC 2397), and of which type. Some clients give it back with more of it encoded,
/// and with the slash of a path before it.
fn inline(data: &str) -> Option<(Vec<u8>, Option<String>)> {
    let data: Vec<u8> = percent_decode_str(data.trim_start_matches('/')).collect();
    let comma = data.iter().position(|byte| *byte == b',')?;
    let kind = std::str::from_utf8(&data[..comma]).ok()?;
    let content = data[comma + 1..].to_vec();
    let (kind, content) = match kind.strip_suffix(";base64") {
        Some(kind) => (kind, STANDARD.decode(content).ok()?),
        None => (kind, content),
    };
    let kind = kind.split(';').next().filter(|kind| !kind.is_empty());
    Some((content, kind.map(str::to_owned)))
}

fn read_file(uri: &str) -> Result<Vec<u8>, RpcError> {
    let path = path_of(uri)?;
    let failed = |error| refusal(uri, &error);
    let file = fs::metadata(&path).map_err(failed)?;
    if !file.is_file() {
        return Err(RpcError::invalid_params(format_args!("`{uri}` is no file")));
    }
    let mut content = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content))
        .map_err(failed)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(RpcError::invalid_params(format_args!("`{uri}` is larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(content)
}

fn as_text(content: Vec<u8>) -> Result<String, Vec<u8>> {
    String::from_utf8(content).map_err(|error| error.into_bytes())
}

/// What is in a folder, by name. What a symbolic link leads to is what counts.
fn list(uri: &str) -> Result<ResourceListResult, RpcError> {
    let path = path_of(uri)?;
    let failed = |error| refusal(uri, &error);
    let mut entries = fs::read_dir(&path)
        .and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry_of(&entry.path()))).collect::<Result<Vec<_>, _>>()
        })
        .map_err(failed)?;
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(ResourceListResult { entries })
}

fn entry_of(path: &Path) -> DirectoryEntry {
    DirectoryEntry {
        name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        r#type: if path.is_dir() { "directory" } else { "file" }.to_owned(),
    }
}

fn refusal(uri: &str, error: &std::io::Error) -> RpcError {
    match error.kind() {
        ErrorKind::NotFound => RpcError::resource_not_found(uri),
        ErrorKind::PermissionDenied => RpcError::permission_denied(uri),
        ErrorKind::NotADirectory => RpcError::invalid_params(format_args!("`{uri}` is no directory")),
        _ => RpcError::unavailable(format_args!("`{uri}`: {error}")),
    }
}

/// What stays as it is in the path of a URI.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The `file:` URI of an absolute path.
pub(crate) fn uri_of(path: &Path) -> String {
    format!("file://{}", percent_encode(path.as_os_str().as_bytes(), PATH))
}

/// The path of a `file:` URI.
pub(crate) fn path_of(uri: &str) -> Result<PathBuf, RpcError> {
    let rest = uri.strip_prefix("file:").ok_or_else(|| RpcError::resource_not_found(uri))?;
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
        None => rest,
    };
    if !path.starts_with('/') {
        return Err(RpcError::invalid_params(format_args!("`{uri}` names no file of this machine")));
    }
    let bytes: Vec<u8> = percent_decode_str(path).collect();
    if bytes.contains(&0) {
        return Err(RpcError::invalid_params("a path holds no NUL"));
    }
    Ok(PathBuf::from(OsStr::from_bytes(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_uri_is_what_it_holds() {
        let read = |uri| read(uri, None).map(|read| (read.data, read.content_type)).map_err(|it| it.code);
        let text = Ok(("a\u{e4}\n".to_owned(), Some("text/plain".to_owned())));
        assert_eq!(read("data:text/plain;charset=utf-8;base64,YcOkCg=="), text);
        assert_eq!(read("data:/text/plain%3Bcharset%3Dutf-8%3Bbase64%2CYcOkCg%3D%3D"), text);
        assert_eq!(read("data:,a%C3%A4%0A"), Ok(("a\u{e4}\n".to_owned(), None)));
        assert_eq!(read("data:;base64,?"), Err(-32602));
        assert_eq!(read("data:nothing"), Err(-32602));
    }

    #[test]
    fn uris_become_paths() {
        let path = |uri| path_of(uri).map_err(|error| error.code);
        assert_eq!(path("file:///a%20b/%C3%A4%25.txt"), Ok(PathBuf::from("/a b/ä%.txt")));
        assert_eq!(path("file://localhost/x"), Ok(PathBuf::from("/x")));
        assert_eq!(path("file:/x"), Ok(PathBuf::from("/x")));
        assert_eq!(path("file://other/x"), Err(-32602));
        assert_eq!(path("file:///x%00"), Err(-32602));
        assert_eq!(path("https://x/"), Err(-32008));
    }
}
