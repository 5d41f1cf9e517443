//! The folders that a session works in, and nothing else of the file system.
//!
//! A path is followed here rather than by the system: one component after the other, each opened relative to the
//! folder before it and never through a symbolic link (`openat`, `O_NOFOLLOW`). A link is read instead, and where it
//! leads is followed in the same way, from the top when it is absolute. So there is no moment between a check and a
//! use in which something could be swapped: what is not found below one of the folders cannot be opened at all.
//! (`openat2` with `RESOLVE_BENEATH` does less, on Linux alone, and not in every container; the crate `cap-std`
//! refuses absolute links and would bring a dozen crates for what is one function here.)
//!
//! Owns: finding, reading and writing files below those folders. A write is a new file that takes the place of the
//! old one: a crash leaves one of the two, whole.
//! Never: opens what is no regular file, changes what another name of the same file (a hard link) shows, or decides
//! who may.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    fchmod, fchown, fstat, mkdirat, openat, readlinkat, renameat, statat, unlinkat, AtFlags, FileType, Gid,
    Mode, OFlags, Stat, Uid, CWD,
};
use rustix::io::Errno;

/// So many symbolic links are followed in one path.
const LINKS_MAX: usize = 40;

/// Folders are only passed through, which needs no right to list them.
#[cfg(target_os = "linux")]
const PASS: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const PASS: OFlags = OFlags::RDONLY;

/// Whatever it is, opening it waits for nobody and takes no terminal.
const CAREFULLY: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Why a path is not served.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is not absolute.
    #[error("it is not an absolute path")]
    Relative,
    /// It leads out of the folders.
    #[error("it is outside of the session's working directories")]
    Outside,
    /// A folder, or something that is no file.
    #[error("it is {0}")]
    NotAFile(&'static str),
    /// Whatever the file system says.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::Failed(error.into())
    }
}

impl Refusal {
    /// Whether there is no such file.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Failed(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Folders that somebody works in.
#[derive(Debug, Default)]
pub struct Folders(Vec<Folder>);

#[derive(Debug)]
struct Folder {
    /// As it was named.
    named: PathBuf,
    /// Where it was then: no component of this is a link.
    real: PathBuf,
}

/// Where a path has led.
struct Place {
    /// The folder that it is in.
    folder: OwnedFd,
    /// Its name there; none when it is that folder itself. No link had this name.
    name: Option<OsString>,
    /// Its path, without links.
    path: PathBuf,
}

/// A way that is being followed.
struct Walk<'a> {
    top: &'a Folder,
    /// That folder, opened.
    start: OwnedFd,
    /// The folders that were passed below it, and their names.
    passed: Vec<(OsString, OwnedFd)>,
    /// What is left, the next one last.
    ahead: Vec<OsString>,
}

impl Folders {
    /// These folders, as they are now. One that is not there is none.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        let there = folders.into_iter().filter_map(|named| match named.canonicalize() {
            Ok(real) => Some(Folder { named, real }),
            Err(error) => {
                tracing::warn!(%error, "no files are served in `{}`", named.display());
                None
            }
        });
        Self(there.collect())
    }

    /// Opens a file to be read.
    ///
    /// # Errors
    /// When there is no regular file, or it is outside.
    pub fn open(&self, path: &Path) -> Result<File, Refusal> {
        let Place { folder, name: Some(name), .. } = self.find(path, false)? else {
            return Err(Refusal::NotAFile("a folder"));
        };
        must_be_file(&statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?)?;
        let file = openat(&folder, &name, OFlags::RDONLY | CAREFULLY, Mode::empty())?;
        // It may be another one by now.
        must_be_file(&fstat(&file)?)?;
        Ok(file.into())
    }

    /// Writes a file, with the folders above it that are missing. One that was there keeps its mode, and its owner
    /// as far as we may say who that is.
    ///
    /// # Errors
    /// When there is something else, it may not be written, or it is outside. Then nothing has changed, but for the
    /// folders.
    pub fn write(&self, path: &Path, content: &[u8]) -> Result<(), Refusal> {
        let Place { folder, name: Some(name), .. } = self.find(path, true)? else {
            return Err(Refusal::NotAFile("a folder"));
        };
        let before = match statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(known) => {
                must_be_file(&known)?;
                // Nobody may replace what he may not write.
                let file = openat(&folder, &name, OFlags::WRONLY | CAREFULLY, Mode::empty())?;
                let known = fstat(&file)?;
                must_be_file(&known)?;
                Some(known)
            }
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        let mode = if before.is_some() { 0o600 } else { 0o666 };
        let new = OsString::from(format!(".{}.tmp", uuid::Uuid::new_v4()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | CAREFULLY;
        let file = File::from(openat(&folder, &new, flags, Mode::from_raw_mode(mode))?);
        let placed = fill(file, content, before.as_ref())
            .and_then(|()| renameat(&folder, &new, &folder, &name).map_err(io::Error::from));
        if placed.is_err() {
            if let Err(error) = unlinkat(&folder, &new, AtFlags::empty()) {
                tracing::warn!(%error, "`{}` is left in the folder of `{}`", new.display(), path.display());
            }
        }
        Ok(placed?)
    }

    /// The path of a folder, without links.
    ///
    /// # Errors
    /// When it is no folder, or outside.
    pub fn folder(&self, path: &Path) -> Result<PathBuf, Refusal> {
        let Place { folder, name, path } = self.find(path, false)?;
        if let Some(name) = name {
            pass(&folder, &name)?;
        }
        Ok(path)
    }

    /// Follows a path to its end; makes the folders on the way that are missing, if asked to.
    fn find(&self, path: &Path, make: bool) -> Result<Place, Refusal> {
        let mut walk = self.enter(path)?;
        let mut links = 0;
        while let Some(part) = walk.ahead.pop() {
            if part == ".." {
                if walk.passed.pop().is_none() {
                    // Above this folder there may be another one of ours.
                    let above = walk.top.real.parent().ok_or(Refusal::Outside)?;
                    walk = self.enter(&above.join(walk.rest()))?;
                }
                continue;
            }
            let folder = walk.here();
            let found = if walk.ahead.is_empty() {
                // Only a link leads on from here.
                Err(Errno::NOTDIR)
            } else {
                match pass(folder, &part) {
                    Err(Errno::NOENT) if make => make_folder(folder, &part),
                    passed => passed,
                }
            };
            let link = match found {
                Ok(folder) => {
                    walk.passed.push((part, folder));
                    continue;
                }
                Err(Errno::NOTDIR | Errno::LOOP) => readlinkat(folder, &part, Vec::new()),
                Err(error) => return Err(error.into()),
            };
            match link {
                Ok(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                    if target.is_absolute() {
                        walk = self.enter(&target.join(walk.rest()))?;
                    } else {
                        walk.ahead.extend(parts(&target).rev());
                    }
                }
                // It is no link, or not there.
                Err(Errno::INVAL | Errno::NOENT) if walk.ahead.is_empty() => return walk.end(Some(part)),
                Err(Errno::INVAL) => return Err(Errno::NOTDIR.into()),
                Err(error) => return Err(error.into()),
            }
        }
        walk.end(None)
    }

    /// Begins a way at the folder of ours that an absolute path is below of.
    fn enter(&self, path: &Path) -> Result<Walk<'_>, Refusal> {
        if !path.is_absolute() {
            return Err(Refusal::Relative);
        }
        let (top, rest) = match self.above(path) {
            Some((top, rest)) => (top, rest.to_owned()),
            // It may be another name of a folder of ours. Nothing is trusted here: the way is followed all the same.
            None => {
                let real = real_as_far_as_there(path).ok_or(Refusal::Outside)?;
                let (top, rest) = self.above(&real).ok_or(Refusal::Outside)?;
                (top, rest.to_owned())
            }
        };
        let mut start = openat(CWD, "/", PASS | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for part in parts(&top.real) {
            start = pass(&start, &part).map_err(|error| match error {
                // Somebody has put a link there since.
                Errno::NOTDIR | Errno::LOOP => Refusal::Outside,
                error => error.into(),
            })?;
        }
        Ok(Walk { top, start, passed: Vec::new(), ahead: parts(&rest).rev().collect() })
    }

    /// The innermost folder of ours that a path is below of by its name, and what follows.
    fn above<'p>(&self, path: &'p Path) -> Option<(&Folder, &'p Path)> {
        let below = self.0.iter().flat_map(|folder| {
            [&folder.named, &folder.real]
                .into_iter()
                .filter_map(move |name| Some((folder, path.strip_prefix(name).ok()?)))
        });
        below.min_by_key(|(_, rest)| rest.components().count())
    }
}

impl Walk<'_> {
    /// The folder that the way has come to.
    fn here(&self) -> BorrowedFd<'_> {
        self.passed.last().map_or(self.start.as_fd(), |(_, folder)| folder.as_fd())
    }

    /// What is left of the way.
    fn rest(&self) -> PathBuf {
        self.ahead.iter().rev().collect()
    }

    fn end(mut self, name: Option<OsString>) -> Result<Place, Refusal> {
        let mut path = self.top.real.clone();
        path.extend(self.passed.iter().map(|(name, _)| name));
        path.extend(&name);
        let folder = self.passed.pop().map_or(self.start, |(_, folder)| folder);
        Ok(Place { folder, name, path })
    }
}

/// The components of a path that lead somewhere.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// Opens a folder in a folder.
fn pass(folder: impl AsFd, name: &OsString) -> Result<OwnedFd, Errno> {
    openat(folder, name, PASS | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn make_folder(folder: impl AsFd, name: &OsString) -> Result<OwnedFd, Errno> {
    match mkdirat(folder.as_fd(), name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => pass(folder, name),
        Err(error) => Err(error),
    }
}

/// A path whose first components, as many as there are, are those that its links lead to.
fn real_as_far_as_there(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|above| {
        let rest = path.strip_prefix(above).ok()?;
        Some(above.canonicalize().ok()?.join(rest))
    })
}

fn must_be_file(known: &Stat) -> Result<(), Refusal> {
    match FileType::from_raw_mode(known.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Refusal::NotAFile("a folder")),
        FileType::Symlink => Err(Refusal::NotAFile("a link that was put there just now")),
        _ => Err(Refusal::NotAFile("a device, a pipe or a socket")),
    }
}

/// Makes a new file what the one before is to become.
fn fill(mut file: File, content: &[u8], before: Option<&Stat>) -> io::Result<()> {
    file.write_all(content)?;
    if let Some(before) = before {
        let made = fstat(&file)?;
        if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid) {
            let (user, group) = (Uid::from_raw(before.st_uid), Gid::from_raw(before.st_gid));
            if let Err(error) = fchown(&file, Some(user), Some(group)) {
                tracing::debug!(%error, "a file that was written belongs to us now");
            }
        }
        fchmod(&file, Mode::from_raw_mode(before.st_mode & 0o777))?;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests;
