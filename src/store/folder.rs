//! The state folder.
//!
//! Owns: where it is unless somebody says otherwise, making it for us alone, and holding it against a second
//! process with a lock of the operating system, which ends with the process that holds it, however that ends.
//! Never: looks into the database.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

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
        /// Who holds it, as far as it told.
        holder: String,
    },
    /// It is somebody else's.
    #[error("the state folder {folder} {what}: give another one with --state-dir, or serve without one with --ephemeral")]
    Foreign {
        /// The folder.
        folder: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It cannot be made or opened.
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

/// The folder that was asked for, else the default one: `ahp-sidecar` in the platform's folder for the state of
/// programs.
///
/// # Errors
/// When none was asked for and no home is known.
pub fn chosen(asked: Option<&Path>) -> Result<PathBuf, FolderError> {
    match asked {
        Some(folder) => Ok(folder.to_owned()),
        None => places::state_folder().ok_or(FolderError::Homeless),
    }
}

/// A folder that is ours until this is dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Locked while it is open.
    _lock: File,
}

impl Folder {
    /// Makes the folder and those above it that are not there, and takes hold of it.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn hold(path: &Path) -> Result<Self, FolderError> {
        if !path.exists() {
            make(path).map_err(|error| FolderError::Io { folder: path.display().to_string(), error })?;
        }
        Self::hold_existing(path)
    }

    /// Takes hold of a folder that is there.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn hold_existing(path: &Path) -> Result<Self, FolderError> {
        let folder = path.display().to_string();
        let failed = |error| FolderError::Io { folder: folder.clone(), error };
        let us = rustix::process::geteuid().as_raw();
        let is_link = fs::symlink_metadata(path).map_err(failed)?.is_symlink();
        let owner = fs::metadata(path).map_err(failed)?.uid();
        if owner != us {
            let what =
                if is_link { "is a symbolic link to somebody else's" } else { "belongs to somebody else" };
            return Err(FolderError::Foreign { folder, what });
        }
        // Whatever the umask, and whoever made it.
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(failed)?;
        let mut lock = private_file(&path.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                lock.read_to_string(&mut holder).map_err(failed)?;
                let holder = match holder.trim() {
                    "" => "another ahp-sidecar".to_owned(),
                    process => format!("another ahp-sidecar (process {process})"),
                };
                return Err(FolderError::Held { folder, holder });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        lock.set_len(0).and_then(|()| lock.rewind()).map_err(failed)?;
        write!(lock, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Whether this file is in the folder.
    pub fn has(&self, name: &str) -> bool {
        self.path.join(name).exists()
    }

    /// A file in the folder that only we can read, made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn private_file(&self, name: &str) -> Result<PathBuf, FolderError> {
        let path = self.path.join(name);
        private_file(&path)
            .map_err(|error| FolderError::Io { folder: self.path.display().to_string(), error })?;
        Ok(path)
    }
}

/// Makes a folder, and those above it that are not there: for us alone, whatever the umask, and still there after
/// a loss of power.
fn make(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    if !parent.exists() {
        make(parent)?;
    }
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
