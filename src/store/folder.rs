//! The state folder.
//!
//! Owns: its default path, its creation for this user alone, and the lock of the operating system
//! that keeps a second host out and ends with its process.
//! Never: reads the database, except for its owner; changes a folder of another user, or one that
//! is only inspected.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::schema;
use crate::os::facts::{self, Identity};
use crate::os::{paths, private, write};
use crate::places;

/// Reason why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// No folder is named, and there is no home folder.
    #[error(
        "there is no default state folder, since no home folder is set: choose a folder with `--state-dir`, or run without stored sessions (`--ephemeral`)"
    )]
    Homeless,
    /// Another process holds the folder.
    #[error(
        "the state folder {folder} is in use by {holder}: end that process, choose another folder with `--state-dir`, or run without stored sessions (`--ephemeral`)"
    )]
    Held {
        /// Path of the folder.
        folder: String,
        /// Description of the process that holds it, as far as the lock file names one.
        holder: String,
    },
    /// The folder belongs to another user.
    #[error("the state folder {folder} {what}: choose another folder with `--state-dir`, or run without stored sessions (`--ephemeral`)")]
    Foreign {
        /// Path of the folder.
        folder: String,
        /// Owner, as the predicate of the message.
        what: &'static str,
    },
    /// Other users can read the folder, and it has content that is no store.
    #[error(
        "the state folder {folder} is accessible to other users (mode {mode:03o}) and contains no sessions, so it seems to be for something else. It was not changed. To use it, run `chmod 700` on it; otherwise choose a new folder with `--state-dir`, or run without stored sessions (`--ephemeral`)"
    )]
    Open {
        /// Path of the folder.
        folder: String,
        /// Permission bits of the folder.
        mode: u32,
    },
    /// The folder cannot be created or opened.
    #[error(
        "the state folder {folder} cannot be used ({error}): choose another folder with `--state-dir`, or run without stored sessions (`--ephemeral`)"
    )]
    Io {
        /// Path of the folder.
        folder: String,
        /// Failure of the operating system.
        error: io::Error,
    },
}

/// Returns the given folder, or the default: `ahp-sidecar` in the platform's folder for state.
pub fn chosen(asked: Option<&Path>) -> Result<PathBuf, FolderError> {
    match asked {
        Some(folder) => Ok(folder.to_owned()),
        None => places::state_folder().ok_or(FolderError::Homeless),
    }
}

/// Returns the holder of a folder; `None` if it is not held.
pub fn holder_now(folder: &Path) -> io::Result<Option<Holder>> {
    let holder = Holder::of(folder)?;
    // Checking the lock takes it for a moment, which could make another process fail to acquire it.
    // Therefore the named process is checked first.
    if !holder.lives() {
        return Ok(None);
    }
    match File::open(folder.join(LOCK))?.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(holder)),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// A state folder, held until this is dropped.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    was_held: bool,
    /// Lock file, locked while it is open. `None` if the folder is only inspected and has no lock
    /// file, or another process holds it.
    lock: Option<File>,
    /// Set once another process may have a copy of the lock.
    is_lent: AtomicBool,
}

/// Programs that other threads are starting have copies of the lock until they are executed. The
/// folder is released nevertheless, unless its lock was lent.
impl Drop for StateFolder {
    fn drop(&mut self) {
        let Some(lock) = self.lock.as_ref().filter(|_| !self.is_lent.load(Ordering::Relaxed)) else { return };
        if let Err(error) = lock.unlock() {
            tracing::debug!(folder = %self.path.display(), %error, "the lock of the state folder ends with its file");
        }
    }
}

/// Content of the lock file of a held folder, one line per field.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process that holds the folder, or held it last.
    pub process: Option<u32>,
    /// Path at which other processes can join the host; empty while it is not known.
    pub host: Option<PathBuf>,
    /// Set if no process has held the folder before.
    is_first: bool,
}

impl Holder {
    /// Returns the present or last holder of the folder; empty if there never was one.
    pub fn of(folder: &Path) -> io::Result<Self> {
        match fs::read(private::holder_path(&folder.join(LOCK))) {
            Ok(content) => Ok(Self::parse(&content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    fn parse(content: &[u8]) -> Self {
        let mut lines = content.split(|byte| *byte == b'\n');
        let process = lines.next().and_then(|line| std::str::from_utf8(line).ok()?.trim().parse().ok());
        let host = (lines.next() == Some(b"host")).then(|| lines.next().unwrap_or_default());
        let host = host.map(|place| PathBuf::from(paths::from_bytes(place).into_owned()));
        Self { process, host, is_first: lines.next() == Some(b"first") }
    }

    /// Writes the lines for the lock file at a path, which is held.
    fn write(&self, lock: &File, path: &Path) -> io::Result<()> {
        let mut content = self.process.map(|process| process.to_string()).unwrap_or_default().into_bytes();
        if let Some(place) = &self.host {
            content.extend_from_slice(b"\nhost\n");
            content.extend_from_slice(place.as_os_str().as_encoded_bytes());
            content.extend_from_slice(if self.is_first { b"\nfirst" } else { b"\n" });
        }
        let mut file = private::holder_file(lock, path)?;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&content)
    }

    /// Returns whether the named process exists.
    pub fn lives(&self) -> bool {
        self.process.is_some_and(private::process_exists)
    }
}

/// Identity of a lock file, which distinguishes it from later files at its path.
#[derive(Debug, Clone)]
pub struct LockId {
    path: PathBuf,
    identity: Identity,
}

/// State of a lock file that a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockPlace {
    /// The file is still at its path.
    There,
    /// The file was removed: another process could take hold of the folder.
    Removed,
    /// Another file is in its place, so another process may hold the folder.
    Replaced,
}

impl LockId {
    /// Returns the present state of the lock file.
    pub fn place(&self) -> LockPlace {
        match facts::at(&self.path) {
            Ok(there) if there.identity == self.identity => LockPlace::There,
            Err(error) if error.kind() == io::ErrorKind::NotFound => LockPlace::Removed,
            _ => LockPlace::Replaced,
        }
    }

    /// Creates and locks a new lock file in the place of a removed one. The folder is held while
    /// the returned file is open; `host` is the path at which others join.
    ///
    /// # Errors
    /// When another process is faster, or the folder no longer exists.
    pub fn renew(&mut self, host: &Path) -> io::Result<File> {
        let lock = private::options().write(true).create_new(true).open(&self.path)?;
        lock.try_lock()?;
        let process = Some(std::process::id());
        Holder { process, host: Some(host.to_owned()), is_first: false }.write(&lock, &self.path)?;
        self.identity = facts::of(&lock)?.identity;
        Ok(lock)
    }
}

impl StateFolder {
    /// Creates the folder, with its parents, and holds it.
    pub fn hold(path: &Path) -> Result<Self, FolderError> {
        make(path).map_err(failed_on(path))?;
        Self::hold_existing(path)
    }

    /// Creates the folder and holds it for a host that is about to start and that others can join.
    pub fn hold_for_host(path: &Path) -> Result<Self, FolderError> {
        make(path).map_err(failed_on(path))?;
        Self::hold_as(path, Some(PathBuf::new()))
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the path at which others can join the host into the lock file; `None` if they cannot.
    pub fn announce(&mut self, place: Option<&Path>) -> Result<(), FolderError> {
        let failed = failed_on(&self.path);
        let Some(lock) = &self.lock else { return Ok(()) };
        let process = Some(std::process::id());
        let holder = Holder { process, host: place.map(Path::to_owned), is_first: !self.was_held };
        holder.write(lock, &self.path.join(LOCK)).map_err(failed)
    }

    /// Returns a copy of the lock, for a process that takes over the folder; `None` if it is not
    /// held.
    pub fn lock(&self) -> io::Result<Option<File>> {
        self.is_lent.store(true, Ordering::Relaxed);
        self.lock.as_ref().map(File::try_clone).transpose()
    }

    /// Returns the identity of the lock file; `None` if the folder is not held.
    pub fn lock_id(&self) -> io::Result<Option<LockId>> {
        let Some(lock) = &self.lock else { return Ok(None) };
        Ok(Some(LockId { path: self.path.join(LOCK), identity: facts::of(lock)?.identity }))
    }

    /// Takes over a folder with the lock of another process. Returns also the path at which others
    /// can join.
    ///
    /// # Errors
    /// When the folder is not held by this lock, or the lock file cannot be read or written.
    pub fn take_over(path: &Path, mut lock: File) -> Result<(Self, Option<PathBuf>), FolderError> {
        let failed = failed_on(path);
        let (held, there) =
            (facts::of(&lock).map_err(&failed)?, facts::behind(&path.join(LOCK)).map_err(&failed)?);
        if held.identity != there.identity {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        // The lock belongs to this open file, so locking it again succeeds.
        take(path, &mut lock, File::try_lock)?;
        let holder = Holder::of(path).map_err(&failed)?;
        let mut folder = Self {
            path: path.to_owned(),
            was_held: !holder.is_first,
            lock: Some(lock),
            is_lent: AtomicBool::default(),
        };
        folder.announce(holder.host.as_deref())?;
        Ok((folder, holder.host))
    }

    /// Holds an existing folder.
    pub fn hold_existing(path: &Path) -> Result<Self, FolderError> {
        Self::hold_as(path, None)
    }

    fn hold_as(path: &Path, host: Option<PathBuf>) -> Result<Self, FolderError> {
        let failed = failed_on(path);
        let mode = mode_of_ours(path)?;
        if mode & 0o077 != 0 {
            // Either its mode has changed since the host made it, or the user made it for the host.
            // Otherwise it has another purpose.
            let is_shared = mode & STICKY != 0 || !is_empty(path).map_err(&failed)?;
            if is_shared && !schema::is_in(path) {
                return Err(FolderError::Open { folder: path.display().to_string(), mode });
            }
            private::restrict_folder(path).map_err(&failed)?;
        }
        let is_new = is_empty(path).map_err(&failed)?;
        let mut lock = private::file(&path.join(LOCK)).map_err(&failed)?;
        take(path, &mut lock, File::try_lock)?;
        let was_held = !is_empty_file(&private::holder_path(&path.join(LOCK))).map_err(&failed)?;
        if is_new {
            private::file(&path.join(GIT_IGNORE))
                .and_then(|mut file| file.write_all(b"*\n"))
                .map_err(&failed)?;
        }
        let mut folder =
            Self { path: path.to_owned(), was_held, lock: Some(lock), is_lent: AtomicBool::default() };
        folder.announce(host.as_deref())?;
        Ok(folder)
    }

    /// Inspects a folder without changing it, and keeps other processes from holding it. A process
    /// that holds it already goes on writing.
    pub fn look_into(path: &Path) -> Result<Self, FolderError> {
        mode_of_ours(path)?;
        let lock = match File::open(path.join(LOCK)) {
            Ok(mut lock) => match take(path, &mut lock, File::try_lock_shared) {
                Ok(()) => Some(lock),
                Err(FolderError::Held { .. }) => None,
                Err(error) => return Err(error),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed_on(path)(error)),
        };
        Ok(Self { path: path.to_owned(), was_held: true, lock, is_lent: AtomicBool::default() })
    }

    /// Returns whether any process has held this folder before.
    pub fn was_held(&self) -> bool {
        self.was_held
    }

    /// Returns the path of a file in the folder. If it exists, its permissions are restricted to
    /// this user.
    pub fn private_file(&self, name: &str) -> Result<PathBuf, FolderError> {
        let path = self.path.join(name);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => {
                private::restrict(&file).map_err(failed_on(&self.path))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed_on(&self.path)(error)),
        }
        Ok(path)
    }
}

/// Name of the lock file, which names its holder.
const LOCK: &str = "lock";

/// Name of the file by which git ignores the folder, which may be in a repository that agents
/// change.
const GIT_IGNORE: &str = ".gitignore";

/// Mode bit of folders that several users share.
const STICKY: u32 = 0o1000;

fn is_empty(folder: &Path) -> io::Result<bool> {
    Ok(fs::read_dir(folder)?.next().is_none())
}

fn is_empty_file(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        known => Ok(known?.len() == 0),
    }
}

fn failed_on(path: &Path) -> impl Fn(io::Error) -> FolderError {
    let folder = path.display().to_string();
    move |error| FolderError::Io { folder: folder.clone(), error }
}

fn mode_of_ours(path: &Path) -> Result<u32, FolderError> {
    let failed = failed_on(path);
    let is_link = fs::symlink_metadata(path).map_err(&failed)?.is_symlink();
    let found = facts::behind(path).map_err(&failed)?;
    if !private::is_ours(&found) {
        let what = if is_link {
            "is a symbolic link to a folder of another user"
        } else {
            "belongs to another user"
        };
        return Err(FolderError::Foreign { folder: path.display().to_string(), what });
    }
    if !found.is_folder() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    Ok(private::mode_for_others(&found))
}

/// Locks a folder, or fails with the name of its holder.
fn take(
    path: &Path,
    lock: &mut File,
    in_this_way: impl Fn(&File) -> Result<(), TryLockError>,
) -> Result<(), FolderError> {
    match in_this_way(lock) {
        Ok(()) => Ok(()),
        Err(TryLockError::Error(error)) => Err(failed_on(path)(error)),
        Err(TryLockError::WouldBlock) => {
            // A process that only inspects the folder does not write its id, so the file may name
            // an earlier holder.
            let holder = Holder::of(path).map_err(failed_on(path))?;
            let holder = match holder.process.filter(|_| holder.lives()) {
                None => "another ahp-sidecar".to_owned(),
                Some(process) => format!("another ahp-sidecar (process {process})"),
            };
            Err(FolderError::Held { folder: path.display().to_string(), holder })
        }
    }
}

/// Creates a missing folder and its parents for this user alone, whatever the umask, and syncs them
/// to disk.
fn make(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    make(parent)?;
    match private::create_folder(path) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
        made => made?,
    }
    private::restrict_folder(path)?;
    write::sync_folder(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that another thread forks has a copy of the lock until it executes its program.
    #[test]
    fn folder_is_free_once_released_whatever_a_fork_has_and_stays_held_for_whom_the_lock_was_lent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let held = StateFolder::hold(&path).unwrap();
        let of_fork = held.lock.as_ref().unwrap().try_clone().unwrap();
        drop(held);
        let held = StateFolder::hold(&path).unwrap();
        drop(of_fork);
        let lent = held.lock().unwrap();
        drop(held);
        assert!(matches!(StateFolder::hold(&path), Err(FolderError::Held { .. })));
        drop(lent);
        StateFolder::hold(&path).unwrap();
    }
}
