//! The state folder.
//!
//! Owns: where it is unless somebody says otherwise, making it for us alone, and holding it against
//! a second process with a lock of the operating system, which ends with the process that holds it,
//! however that ends.
//! Never: looks into the database, except to see whose it is; changes a folder that is somebody
//! else's, or that is only to be looked into.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{geteuid, test_kill_process, Pid};

use super::schema;
use crate::places;

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is none, because nobody says where.
    #[error(
        "no home folder is known that sessions could be kept in: give a folder with --state-dir, or serve without one with --ephemeral"
    )]
    Homeless,
    /// Another process holds it.
    #[error(
        "the state folder {folder} is held by {holder}: end that, give another folder with --state-dir, or serve without one with --ephemeral"
    )]
    Held {
        /// The folder.
        folder: String,
        /// Process that holds it, as far as it has said so.
        holder: String,
    },
    /// Folder of another user.
    #[error("the state folder {folder} {what}: give another one with --state-dir, or serve without one with --ephemeral")]
    Foreign {
        /// The folder.
        folder: String,
        /// Reason.
        what: &'static str,
    },
    /// Folder with other content that other users can read.
    #[error(
        "the state folder {folder} has another purpose: it is open to others (mode {mode:03o}), and no sessions are in it; it was left as it is: if it is meant for sessions, `chmod 700` it, else name a folder with --state-dir that is not there yet, or serve without one with --ephemeral"
    )]
    Open {
        /// The folder.
        folder: String,
        /// Mode of the folder.
        mode: u32,
    },
    /// Folder that cannot be created or opened.
    #[error(
        "the state folder {folder} cannot be used ({error}): give another one with --state-dir, or serve without one with --ephemeral"
    )]
    Io {
        /// The folder.
        folder: String,
        /// Why.
        error: io::Error,
    },
}

/// The folder that was asked for, else the default one: `ahp-sidecar` in the platform's folder for
/// the state of programs.
///
/// # Errors
/// When none was asked for and no home is known.
pub fn chosen(asked: Option<&Path>) -> Result<PathBuf, FolderError> {
    match asked {
        Some(folder) => Ok(folder.to_owned()),
        None => places::state_folder().ok_or(FolderError::Homeless),
    }
}

/// Returns the holder of a folder; `None` if there is none, or no folder.
pub fn holder_now(folder: &Path) -> io::Result<Option<Holder>> {
    let holder = Holder::of(folder)?;
    // To look at the lock is to have it for a moment, which must not be in the way of a process
    // that takes hold.
    if !holder.lives() {
        return Ok(None);
    }
    match File::open(folder.join(LOCK))?.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(holder)),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// A folder that is ours until this is dropped.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    was_held: bool,
    /// Locked while it is open; none where the folder is only looked into, and nobody holds it or
    /// somebody else does.
    lock: Option<File>,
}

/// Content of the lock file while the folder is held: one line for each field.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The process that holds it, or did.
    pub process: Option<u32>,
    /// Place at which others can join it; empty while that is not known.
    pub host: Option<PathBuf>,
    /// Set if nobody has held the folder before.
    is_first: bool,
}

impl Holder {
    /// Returns the present or last holder of the folder; empty if there never was one.
    pub fn of(folder: &Path) -> io::Result<Self> {
        match fs::read(folder.join(LOCK)) {
            Ok(said) => Ok(Self::parse(&said)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    fn parse(said: &[u8]) -> Self {
        let mut lines = said.split(|byte| *byte == b'\n');
        let process = lines.next().and_then(|line| std::str::from_utf8(line).ok()?.trim().parse().ok());
        let host = (lines.next() == Some(b"host")).then(|| lines.next().unwrap_or_default());
        let host = host.map(|place| PathBuf::from(OsStr::from_bytes(place)));
        Self { process, host, is_first: lines.next() == Some(b"first") }
    }

    fn write(&self, lock: &mut File) -> io::Result<()> {
        let mut said = self.process.map(|process| process.to_string()).unwrap_or_default().into_bytes();
        if let Some(place) = &self.host {
            said.extend_from_slice(b"\nhost\n");
            said.extend_from_slice(place.as_os_str().as_bytes());
            said.extend_from_slice(if self.is_first { b"\nfirst" } else { b"\n" });
        }
        lock.set_len(0)?;
        lock.rewind()?;
        lock.write_all(&said)
    }

    /// Returns whether the process exists that it names.
    pub fn lives(&self) -> bool {
        let process = self.process.and_then(|process| Pid::from_raw(i32::try_from(process).ok()?));
        process.is_some_and(|process| test_kill_process(process) != Err(Errno::SRCH))
    }
}

/// A lock by which a process holds a folder, told from every other file that is or will be in its
/// place.
#[derive(Debug, Clone)]
pub struct LockId {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Whereabouts of a lock that a process holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockPlace {
    /// The file is where it was.
    There,
    /// The file was removed: another process could take hold of the folder.
    Removed,
    /// Another file is in its place, so another process may hold the folder.
    Replaced,
}

impl LockId {
    /// Returns whether the file is where it was.
    pub fn place(&self) -> LockPlace {
        match fs::symlink_metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (self.device, self.inode) => LockPlace::There,
            Err(error) if error.kind() == io::ErrorKind::NotFound => LockPlace::Removed,
            _ => LockPlace::Replaced,
        }
    }

    /// Goes on holding the folder by another lock, in the place of one that was removed, as long as
    /// the file that is returned is open. Others join at this place.
    ///
    /// # Errors
    /// When another process is quicker, or the folder is gone.
    pub fn renew(&mut self, host: &Path) -> io::Result<File> {
        let mut lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path)?;
        lock.try_lock()?;
        let process = Some(std::process::id());
        Holder { process, host: Some(host.to_owned()), is_first: false }.write(&mut lock)?;
        let held = lock.metadata()?;
        (self.device, self.inode) = (held.dev(), held.ino());
        Ok(lock)
    }
}

impl StateFolder {
    /// Makes the folder and those above it that are not there, and takes hold of it.
    pub fn hold(path: &Path) -> Result<Self, FolderError> {
        make(path).map_err(failed_on(path))?;
        Self::hold_existing(path)
    }

    /// Creates the folder and holds it for a host that is to be started, and which others join.
    pub fn hold_for_host(path: &Path) -> Result<Self, FolderError> {
        make(path).map_err(failed_on(path))?;
        Self::hold_as(path, Some(PathBuf::new()))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells where others can join us; none: nowhere.
    pub fn announce(&mut self, place: Option<&Path>) -> Result<(), FolderError> {
        let failed = failed_on(&self.path);
        let Some(lock) = &mut self.lock else { return Ok(()) };
        let process = Some(std::process::id());
        let holder = Holder { process, host: place.map(Path::to_owned), is_first: !self.was_held };
        holder.write(lock).map_err(failed)
    }

    /// The lock, for a process that goes on holding the folder.
    pub fn lock(&self) -> io::Result<Option<File>> {
        self.lock.as_ref().map(File::try_clone).transpose()
    }

    /// Returns which lock holds the folder; `None` where it is only looked into.
    pub fn lock_id(&self) -> io::Result<Option<LockId>> {
        let Some(lock) = &self.lock else { return Ok(None) };
        let held = lock.metadata()?;
        Ok(Some(LockId { path: self.path.join(LOCK), device: held.dev(), inode: held.ino() }))
    }

    /// Goes on holding a folder that another process took hold of, and where others can join us.
    ///
    /// # Errors
    /// When it is not held, or that cannot be read or written.
    pub fn take_over(path: &Path, mut lock: File) -> Result<(Self, Option<PathBuf>), FolderError> {
        let failed = failed_on(path);
        let (held, there) =
            (lock.metadata().map_err(&failed)?, fs::metadata(path.join(LOCK)).map_err(&failed)?);
        if (held.dev(), held.ino()) != (there.dev(), there.ino()) {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        // It is the same lock, so that is ours.
        take(path, &mut lock, File::try_lock)?;
        let holder = Holder::of(path).map_err(&failed)?;
        let mut folder = Self { path: path.to_owned(), was_held: !holder.is_first, lock: Some(lock) };
        folder.announce(holder.host.as_deref())?;
        Ok((folder, holder.host))
    }

    /// Takes hold of a folder that is there.
    pub fn hold_existing(path: &Path) -> Result<Self, FolderError> {
        Self::hold_as(path, None)
    }

    fn hold_as(path: &Path, host: Option<PathBuf>) -> Result<Self, FolderError> {
        let failed = failed_on(path);
        let mode = mode_of_ours(path)?;
        if mode & 0o077 != 0 {
            // Somebody has opened it since we made it, or has made it for us; else it has another
            // purpose.
            let is_shared = mode & STICKY != 0 || !is_empty(path).map_err(&failed)?;
            if is_shared && !schema::is_in(path, geteuid().as_raw()) {
                return Err(FolderError::Open { folder: path.display().to_string(), mode });
            }
            fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(&failed)?;
        }
        let is_new = is_empty(path).map_err(&failed)?;
        let mut lock = private_file(&path.join(LOCK)).map_err(&failed)?;
        take(path, &mut lock, File::try_lock)?;
        let was_held = lock.metadata().map_err(&failed)?.len() > 0;
        if is_new {
            private_file(&path.join(GIT_IGNORE))
                .and_then(|mut file| file.write_all(b"*\n"))
                .map_err(&failed)?;
        }
        let mut folder = Self { path: path.to_owned(), was_held, lock: Some(lock) };
        folder.announce(host.as_deref())?;
        Ok(folder)
    }

    /// Keeps others from taking hold of a folder while it is looked into, and changes nothing in
    /// it. Who holds it already goes on writing to it.
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
        Ok(Self { path: path.to_owned(), was_held: true, lock })
    }

    /// Returns whether a process has held this folder before.
    pub fn was_held(&self) -> bool {
        self.was_held
    }

    /// Returns the path of a file in the folder. An existing file is made readable by this user
    /// alone.
    pub fn private_file(&self, name: &str) -> Result<PathBuf, FolderError> {
        let path = self.path.join(name);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => {
                file.set_permissions(Permissions::from_mode(0o600)).map_err(failed_on(&self.path))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed_on(&self.path)(error)),
        }
        Ok(path)
    }
}

/// The name of the file that is locked while somebody holds the folder. It says who.
const LOCK: &str = "lock";

/// The name of the file by which git ignores a folder that is ours alone: it may be in a
/// repository, and our files are not what an agent changes.
const GIT_IGNORE: &str = ".gitignore";

/// The bit of a folder's mode by which several users share it.
const STICKY: u32 = 0o1000;

fn is_empty(folder: &Path) -> io::Result<bool> {
    Ok(fs::read_dir(folder)?.next().is_none())
}

fn failed_on(path: &Path) -> impl Fn(io::Error) -> FolderError {
    let folder = path.display().to_string();
    move |error| FolderError::Io { folder: folder.clone(), error }
}

/// The mode of a folder that belongs to us.
fn mode_of_ours(path: &Path) -> Result<u32, FolderError> {
    let failed = failed_on(path);
    let is_link = fs::symlink_metadata(path).map_err(&failed)?.is_symlink();
    let found = fs::metadata(path).map_err(&failed)?;
    if found.uid() != geteuid().as_raw() {
        let what = if is_link { "is a symbolic link to somebody else's" } else { "belongs to somebody else" };
        return Err(FolderError::Foreign { folder: path.display().to_string(), what });
    }
    if !found.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    Ok(found.mode() & 0o7777)
}

/// Locks a folder, or says who has done so.
fn take(
    path: &Path,
    lock: &mut File,
    in_this_way: impl Fn(&File) -> Result<(), TryLockError>,
) -> Result<(), FolderError> {
    match in_this_way(lock) {
        Ok(()) => Ok(()),
        Err(TryLockError::Error(error)) => Err(failed_on(path)(error)),
        Err(TryLockError::WouldBlock) => {
            // Who only looks into the folder leaves the name of the last one that held it.
            let holder = Holder::of(path).map_err(failed_on(path))?;
            let holder = match holder.process.filter(|_| holder.lives()) {
                None => "another ahp-sidecar".to_owned(),
                Some(process) => format!("another ahp-sidecar (process {process})"),
            };
            Err(FolderError::Held { folder: path.display().to_string(), holder })
        }
    }
}

/// Makes a folder that is not there, and those above it: for us alone, whatever the umask, and
/// still there after a loss of power.
fn make(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    make(parent)?;
    match DirBuilder::new().mode(0o700).create(path) {
        // Another process has made it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
        made => made?,
    }
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    File::open(parent)?.sync_all()
}

fn private_file(path: &Path) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}
