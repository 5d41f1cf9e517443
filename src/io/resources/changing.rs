//! Changes that clients make to files of this machine.
//!
//! Owns: the folders in which changes are allowed, and the mapping of failures to errors.
//! Never: touches a file other than through [`Folders`].

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use ahp_types::commands::{ContentEncoding, ResourceRequestParams, ResourceWriteMode, ResourceWriteParams};
use base64::engine::general_purpose::STANDARD;
use base64::Engine;

use crate::files::folders::{Folders, HostFile, PathRefusal, WorkFolder};
use crate::files::unfinished::Unfinished;
use crate::files::uris::path_of;
use crate::files::writing::{WritePosition, WriteRequest};
use crate::git::reverting::revert_reported;
use crate::host::effects::{Change, FileRevert, ReportedFile, RevertOutcome, RevertRequest};
use crate::os::walk::{is_too_long, is_too_many_links};
use crate::sync::lock;
use crate::wire::errors::RpcError;

/// Maximum size of one write, in bytes.
const WRITTEN_BYTES_MAX: usize = 16 << 20;

/// Folders in which clients may change files.
#[derive(Debug, Default)]
pub struct WritableFolders {
    granted: Vec<Arc<WorkFolder>>,
    /// Files of the host, which clients may never change.
    own: Mutex<HostFiles>,
    /// Files among them that clients may not watch either: those from the start.
    unwatched: Arc<[HostFile]>,
    /// Folders of sessions, as found at the first change in each: later replacements are ignored.
    known: Mutex<HashMap<String, Arc<WorkFolder>>>,
    /// Record of files under temporary names; `None` if no record is written.
    unfinished: Option<Arc<Unfinished>>,
}

#[derive(Debug, Default)]
struct HostFiles {
    named: Vec<PathBuf>,
    found: Arc<[HostFile]>,
}

impl HostFiles {
    fn find(named: Vec<PathBuf>) -> Self {
        let found = named.iter().flat_map(|path| HostFile::find(path)).collect();
        Self { named, found }
    }
}

impl WritableFolders {
    /// Finds the granted folders and the host's own files. Skips folders that cannot be opened.
    pub fn new(granted: &[PathBuf], own: &[PathBuf]) -> Self {
        let granted = granted.iter().filter_map(|path| match WorkFolder::find(path.clone()) {
            Ok(folder) => Some(Arc::new(folder)),
            Err(error) => {
                tracing::warn!(%error, "clients cannot change files in `{}`, because it cannot be opened", path.display());
                None
            }
        });
        let own = HostFiles::find(own.to_vec());
        let unwatched = Arc::clone(&own.found);
        Self { granted: granted.collect(), own: Mutex::new(own), unwatched, ..Self::default() }
    }

    /// Records files under temporary names in this folder, for the case that the host ends before a
    /// change is finished. Cleans up after an earlier host, on a separate thread.
    pub fn remembering(self, folder: PathBuf) -> Self {
        let shown = folder.display().to_string();
        let begun = Unfinished::open(folder).and_then(|(unfinished, left)| {
            if left.is_empty() {
                return Ok(unfinished);
            }
            let put_right = move || left.recover();
            thread::Builder::new().name("unfinished".to_owned()).spawn(put_right).map(|_| unfinished)
        });
        match begun {
            Ok(unfinished) => Self { unfinished: Some(unfinished), ..self },
            Err(error) => {
                tracing::warn!(%error, "operations in progress cannot be recorded in `{shown}`");
                self
            }
        }
    }

    /// Returns the files that clients may never change.
    pub fn own(&self) -> Arc<[HostFile]> {
        Arc::clone(&lock(&self.own).found)
    }

    /// Returns the files that clients may not watch.
    pub fn unwatched(&self) -> Arc<[HostFile]> {
        Arc::clone(&self.unwatched)
    }

    /// Adds files of the host that clients may not change, but may watch.
    pub fn keep_from_clients(&self, files: Vec<PathBuf>) {
        let mut own = lock(&self.own);
        let new: Vec<PathBuf> = files.into_iter().filter(|file| !own.named.contains(file)).collect();
        if !new.is_empty() {
            *own = HostFiles::find([std::mem::take(&mut own.named), new].concat());
        }
    }

    pub(super) fn folders(&self, sessions: &[String]) -> Folders {
        let known = || lock(&self.known);
        known().retain(|uri, _| sessions.contains(uri));
        let mut folders = self.granted.clone();
        for uri in sessions {
            let before = known().get(uri).cloned();
            // Searched without the lock, because that may block.
            let folder = before.or_else(|| {
                // Not logged: a missing folder is searched again with each change.
                let folder = Arc::new(WorkFolder::find(path_of(uri).ok()?).ok()?);
                Some(Arc::clone(known().entry(uri.clone()).or_insert(folder)))
            });
            folders.extend(folder);
        }
        Folders::of(folders, self.own()).remembering(self.unfinished.clone())
    }
}

pub(super) fn change(change: &Change, folders: &Folders) -> Result<(), RpcError> {
    match change {
        Change::Write(write) => self::write(write, folders),
        Change::Mkdir(mkdir) => {
            let path = writable(&mkdir.uri)?;
            folders.make_folder(&path).map_err(|refusal| failed(&mkdir.uri, refusal))
        }
        Change::Delete(delete) => {
            let path = writable(&delete.uri)?;
            let recursive = delete.recursive == Some(true);
            folders.remove(&path, recursive).map_err(|refusal| failed(&delete.uri, refusal))
        }
        Change::Move(moved) => {
            let (from, to) = (writable(&moved.source)?, writable(&moved.destination)?);
            let done = folders.rename(&from, &to, moved.fail_if_exists == Some(true));
            done.map_err(|refusal| failed_between(&moved.source, &moved.destination, refusal))
        }
        Change::Copy(copy) => {
            let (from, to) = (path_of(&copy.source)?, writable(&copy.destination)?);
            let done = folders.copy(&from, &to, copy.fail_if_exists == Some(true));
            done.map_err(|refusal| failed_between(&copy.source, &copy.destination, refusal))
        }
        Change::Ask(asked) => ask(asked, folders),
    }
}

/// Reverts files independently of each other. A file without the expected content stays as it is.
pub(super) fn revert(taken: &RevertRequest, folders: &Folders) -> Vec<RevertOutcome> {
    let files: Vec<ReportedFile> = taken.files.iter().map(FileRevert::reported).collect();
    revert_reported(&files, folders, |uri, refusal| failed(uri, refusal).message)
}

/// Checks whether a client may change a file. Reads are left to the file system to permit.
fn ask(asked: &ResourceRequestParams, folders: &Folders) -> Result<(), RpcError> {
    if asked.write != Some(true) {
        return match is_content(&asked.uri) {
            true => Ok(()),
            false => path_of(&asked.uri).map(|_| ()),
        };
    }
    let path = writable(&asked.uri)?;
    folders.may_change(&path).map_err(|refusal| failed(&asked.uri, refusal))
}

fn write(write: &ResourceWriteParams, folders: &Folders) -> Result<(), RpcError> {
    let path = writable(&write.uri)?;
    let too_long = || {
        let uri = &write.uri;
        RpcError::invalid_params(format_args!(
            "`{uri}`: at most {WRITTEN_BYTES_MAX} bytes can be written at once"
        ))
    };
    let decoded;
    let content = match write.encoding {
        ContentEncoding::Base64 if write.data.len() / 4 * 3 > WRITTEN_BYTES_MAX + 3 => return Err(too_long()),
        ContentEncoding::Base64 => {
            decoded = STANDARD.decode(&write.data).map_err(|error| {
                RpcError::invalid_params(format_args!("`data` is not valid base64: {error}"))
            })?;
            &decoded[..]
        }
        _ => write.data.as_bytes(),
    };
    if content.len() > WRITTEN_BYTES_MAX {
        return Err(too_long());
    }
    // A negative position was refused before.
    let position = u64::try_from(write.position.unwrap_or(0)).unwrap_or(0);
    let put = match write.mode {
        None | Some(ResourceWriteMode::Truncate) => WritePosition::Truncate(position),
        Some(ResourceWriteMode::Append) => WritePosition::Append(position),
        Some(ResourceWriteMode::Insert) => WritePosition::Insert(position),
    };
    let create_only = write.create_only == Some(true);
    let writing = WriteRequest { content, put, create_only, if_match: write.if_match.as_deref(), mode: None };
    folders.put(&path, &writing).map_err(|refusal| failed(&write.uri, refusal))
}

fn is_content(uri: &str) -> bool {
    ["data:", "ahp-content:"].iter().any(|scheme| uri.starts_with(scheme))
}

/// Returns the path of a file to change; an error for displayed content.
fn writable(uri: &str) -> Result<PathBuf, RpcError> {
    if is_content(uri) {
        return Err(RpcError::change_denied(uri, false));
    }
    path_of(uri)
}

fn failed_between(from: &str, to: &str, refusal: PathRefusal) -> RpcError {
    match refusal {
        PathRefusal::Destination(refusal) => failed(to, *refusal),
        refusal => failed(from, refusal),
    }
}

fn failed(uri: &str, refusal: PathRefusal) -> RpcError {
    match refusal {
        PathRefusal::Outside => RpcError::change_denied(uri, true),
        PathRefusal::Own => RpcError::own_file(uri),
        PathRefusal::Exists => RpcError::file_exists(uri),
        PathRefusal::Changed => RpcError::conflict(uri),
        PathRefusal::Failed(error) => by_errno(uri, &error),
        PathRefusal::Destination(refusal) => failed(uri, *refusal),
        PathRefusal::Partly(done, refusal) => {
            let mut error = failed(uri, *refusal);
            error.message = format!("{}, after {done}", error.message);
            error
        }
        refusal @ (PathRefusal::Relative | PathRefusal::NotAFile(_) | PathRefusal::Unfit(_)) => {
            RpcError::invalid_params(format_args!("`{uri}`: {refusal}"))
        }
    }
}

pub(super) fn by_errno(uri: &str, error: &io::Error) -> RpcError {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => RpcError::resource_not_found(uri),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => RpcError::permission_denied(uri),
        ErrorKind::AlreadyExists => RpcError::file_exists(uri),
        ErrorKind::DirectoryNotEmpty | ErrorKind::IsADirectory | ErrorKind::CrossesDevices => {
            RpcError::invalid_params(format_args!("`{uri}`: {error}"))
        }
        _ if is_too_long(error) || is_too_many_links(error) => {
            RpcError::invalid_params(format_args!("`{uri}`: {error}"))
        }
        _ => RpcError::unavailable(format_args!("`{uri}`: {error}")),
    }
}
