//! Resolution of paths below the working folders, and nowhere else in the file system.
//!
//! This module, not the system, resolves a path: one component after the other, each opened
//! relative to the previous folder and never through a symbolic link ([`crate::os::walk`]). A
//! link is read instead, and its target is resolved in the same way, from the top if it is
//! absolute. Thus no file can be swapped between a check and its use: a file that is not found
//! below one of the folders cannot be opened at all. (`openat2` with `RESOLVE_BENEATH` does less,
//! on Linux alone, and not in every container; the crate `cap-std` refuses absolute links and would
//! add a dozen dependencies for one function.)
//!
//! Owns: resolution of paths, and opening files for reading.
//! Never: opens anything but regular files, changes anything but missing folders that are to be
//! created, enters the host's own files, or decides who has access.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::unfinished::{TemporaryName, Unfinished, UnfinishedNote};
use super::uris::PATH_BYTES_MAX;
use crate::os::facts::{self, Facts, FileKind, Identity};
use crate::os::paths::canonical;
use crate::os::walk::{self, FileAccess, Folder};

/// Maximum nesting depth of folders that are created, copied or removed.
pub(super) const DEPTH_MAX: usize = 128;

/// Maximum number of symbolic links followed in one path, as in the kernel.
pub const LINKS_MAX: usize = 40;

/// Reason to refuse a path.
#[derive(Debug, thiserror::Error)]
pub enum PathRefusal {
    /// Relative path.
    #[error("it is not an absolute path")]
    Relative,
    /// Path that leads out of the folders.
    #[error("it is outside of the session's working directories")]
    Outside,
    /// A folder, or a device, pipe or socket; the text says which.
    #[error("it is {0}")]
    NotAFile(&'static str),
    /// One of the host's own files, or a folder that contains one.
    #[error("it belongs to the host")]
    Own,
    /// The path exists already.
    #[error("it is there already")]
    Exists,
    /// File that has changed since the caller read it.
    #[error("it has changed")]
    Changed,
    /// File of a kind that does not fit the operation, or beyond a limit; the text says why.
    #[error("{0}")]
    Unfit(String),
    /// Refusal of the second of two paths.
    #[error("{0}")]
    Destination(Box<PathRefusal>),
    /// Operation that failed midway: the completed part, and the reason.
    #[error("{1}, after {0}")]
    Partly(String, Box<PathRefusal>),
    /// Other error of the file system.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

impl PathRefusal {
    /// Returns whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Failed(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Working folders, below which files may be read and changed.
#[derive(Debug, Default)]
pub struct Folders {
    folders: Vec<Arc<WorkFolder>>,
    /// Files of the host itself, to which access is refused.
    own: Arc<[HostFile]>,
    /// Record of operations in progress; `None` if there is no folder for it.
    unfinished: Option<Arc<Unfinished>>,
}

/// Working folder, fixed to the path that its name led to when it was given.
#[derive(Debug)]
pub struct WorkFolder {
    /// Path as it was given.
    named: PathBuf,
    /// Canonical path at that time.
    real: PathBuf,
    /// Symbolic links on the way there.
    links: Vec<PathBuf>,
}

impl WorkFolder {
    /// Resolves a working folder.
    ///
    /// # Errors
    /// When the folder does not exist.
    pub fn find(named: PathBuf) -> io::Result<Self> {
        let real = canonical(&named)?;
        let mut links = links_and_target(&named);
        links.pop();
        Ok(Self { named, real, links })
    }

    /// Returns whether a path uses a name of the folder that leads elsewhere by now.
    fn leads_elsewhere(&self, path: &Path) -> bool {
        let is_by_name = self.named != self.real && !path.starts_with(&self.real);
        is_by_name && !canonical(&self.named).is_ok_and(|real| real == self.real)
    }
}

/// File or folder of the host's own.
#[derive(Debug)]
pub struct HostFile {
    /// Canonical path, as far as it exists.
    path: PathBuf,
    /// Identity; `None` if the file did not exist.
    known: Option<Identity>,
}

impl HostFile {
    /// Returns the file at a path, whether it exists or not, and the links on the way to it:
    /// changing one of them would replace the file.
    pub fn find(path: &Path) -> Vec<Self> {
        let Ok(path) = std::path::absolute(path) else { return Vec::new() };
        links_and_target(&path).into_iter().map(Self::at).collect()
    }

    /// Returns the canonical path, as far as it exists.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a canonical path is this file or below it.
    pub fn holds(&self, path: &Path) -> bool {
        path.starts_with(&self.path)
    }

    /// Returns whether `known` identifies this file, under any name.
    pub fn is(&self, known: Identity) -> bool {
        self.known == Some(known)
    }

    fn at(path: PathBuf) -> Self {
        let known = facts::at(&path).ok().map(|known| known.identity);
        Self { path, known }
    }
}

/// Folds the case of a path, to compare it on file systems that ignore case.
fn folded(path: &Path) -> PathBuf {
    path.to_string_lossy().to_lowercase().into()
}

/// Treatment of missing folders on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingFolders {
    Fails,
    IsMade,
}

/// Treatment of a link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinalLink {
    Followed,
    Itself,
}

/// Result of resolving a path.
pub(super) struct ResolvedPath {
    pub(super) folder: Folder,
    /// Name in that folder; `None` if the path is the working folder itself.
    pub(super) name: Option<OsString>,
    pub(super) path: PathBuf,
}

impl ResolvedPath {
    /// Checks that the file is writable or, if it does not exist, that its folder is.
    fn must_be_writable(&self) -> Result<(), PathRefusal> {
        let may = |name: &OsStr| self.folder.may_write(name);
        Ok(match self.name.as_deref().map(may) {
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => may(OsStr::new(".")),
            None => may(OsStr::new(".")),
            Some(outcome) => outcome,
        }?)
    }
}

struct PathWalk<'a> {
    top: &'a WorkFolder,
    start: Folder,
    /// Folders entered below `start`, with their names.
    passed: Vec<(OsString, Folder)>,
    /// Remaining components, the next one last.
    ahead: Vec<OsString>,
}

impl Folders {
    /// Resolves these working folders. A missing folder is logged and skipped.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        let there = folders.into_iter().filter_map(|named| match WorkFolder::find(named.clone()) {
            Ok(folder) => Some(Arc::new(folder)),
            Err(error) => {
                tracing::warn!(%error, "no files below `{}` are served: it cannot be opened", named.display());
                None
            }
        });
        Self { folders: there.collect(), own: Arc::default(), unfinished: None }
    }

    /// Uses folders that were resolved before, with the host's own files to exclude.
    pub fn of(folders: Vec<Arc<WorkFolder>>, own: Arc<[HostFile]>) -> Self {
        Self { folders, own, unfinished: None }
    }

    /// Returns these folders with a record of operations in progress.
    pub fn remembering(self, unfinished: Option<Arc<Unfinished>>) -> Self {
        Self { unfinished, ..self }
    }

    /// Records that a file has the temporary name `has` and is meant for `name`.
    pub(super) fn remember(
        &self,
        why: TemporaryName,
        place: &ResolvedPath,
        has: &OsStr,
        name: &OsStr,
    ) -> Option<UnfinishedNote> {
        let folder = place.path.parent()?;
        Some(self.unfinished.as_ref()?.remember(why, folder, has, name))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// When it is not a regular file, or is outside the folders.
    pub fn open(&self, path: &Path) -> Result<File, PathRefusal> {
        let ResolvedPath { folder, name: Some(name), .. } =
            self.find(path, MissingFolders::Fails, FinalLink::Followed)?
        else {
            return Err(PathRefusal::NotAFile("a folder"));
        };
        must_be_file(&folder.facts_of(&name)?)?;
        let file = folder.open(&name, FileAccess::Read)?;
        // Another file may have taken the name in the meantime.
        must_be_file(&facts::of(&file)?)?;
        Ok(file)
    }

    /// Checks that a path may be changed, whether it exists or not.
    ///
    /// # Errors
    /// When it is outside the folders, not writable, or one of the host's own files.
    pub fn may_change(&self, path: &Path) -> Result<(), PathRefusal> {
        match self.find(path, MissingFolders::Fails, FinalLink::Followed) {
            Ok(place) => {
                self.must_not_be_own(&place)?;
                place.must_be_writable()
            }
            // A missing path may be created, unless its `..` could lead out of the folders.
            Err(PathRefusal::Failed(error))
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                if path.components().any(|part| part == Component::ParentDir) {
                    return Err(PathRefusal::Outside);
                }
                self.must_not_be_in_own(&real_as_far_as_there(path).ok_or(PathRefusal::Outside)?)?;
                let there = path.ancestors().find(|above| above.symlink_metadata().is_ok());
                Ok(walk::may_write(there.ok_or(PathRefusal::Outside)?)?)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Returns the canonical path of a folder.
    ///
    /// # Errors
    /// When it is no folder, or is outside the folders.
    pub fn folder(&self, path: &Path) -> Result<PathBuf, PathRefusal> {
        let ResolvedPath { folder, name, path } =
            self.find(path, MissingFolders::Fails, FinalLink::Followed)?;
        if let Some(name) = name {
            folder.pass(&name)?;
        }
        Ok(path)
    }

    /// Resolves a path. Fails if it leads out of the folders or into the host's own files.
    pub(super) fn find(
        &self,
        path: &Path,
        missing: MissingFolders,
        last: FinalLink,
    ) -> Result<ResolvedPath, PathRefusal> {
        let mut walk = self.enter(path)?;
        let mut links = 0;
        while let Some(part) = walk.ahead.pop() {
            if part == ".." {
                if walk.passed.pop().is_none() {
                    // The parent may be in another working folder.
                    let above = walk.top.real.parent().ok_or(PathRefusal::Outside)?;
                    walk = self.enter(&above.join(walk.rest()))?;
                }
                continue;
            }
            if walk.ahead.is_empty() && last == FinalLink::Itself {
                return walk.end(Some(part));
            }
            let folder = walk.here();
            let found = if walk.ahead.is_empty() {
                // The last component is not entered; it matters only whether it is a link.
                Err(io::ErrorKind::NotADirectory.into())
            } else {
                match folder.pass(&part) {
                    Err(error)
                        if error.kind() == io::ErrorKind::NotFound && missing == MissingFolders::IsMade =>
                    {
                        let path = walk.path_with(Some(&part));
                        self.must_not_be_in_own(&path)?;
                        self.must_not_be_too_deep(&path)?;
                        make_folder(folder, &part)
                    }
                    passed => passed,
                }
            };
            let link = match found {
                Ok(folder) => {
                    self.must_not_lead_into_own(&folder)?;
                    walk.passed.push((part, folder));
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => folder.read_link(&part),
                Err(error) => return Err(error.into()),
            };
            match link {
                Ok(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(walk::too_many_links().into());
                    }
                    let target = PathBuf::from(target);
                    if target.is_absolute() {
                        walk = self.enter(&target.join(walk.rest()))?;
                    } else {
                        walk.ahead.extend(parts(&target).rev());
                    }
                }
                // The last component is no link, or does not exist.
                Err(error) => match error.kind() {
                    io::ErrorKind::InvalidInput | io::ErrorKind::NotFound if walk.ahead.is_empty() => {
                        return walk.end(Some(part));
                    }
                    io::ErrorKind::InvalidInput => return Err(walk::no_folder().into()),
                    _ => return Err(error.into()),
                },
            }
        }
        walk.end(None)
    }

    /// Starts resolution at the working folder that contains an absolute path.
    fn enter(&self, path: &Path) -> Result<PathWalk<'_>, PathRefusal> {
        if !path.is_absolute() {
            return Err(PathRefusal::Relative);
        }
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(walk::too_long().into());
        }
        let (top, rest) = match self.above(path) {
            // The folder's name leads elsewhere by now: a change there would be unexpected.
            Some((top, _)) if top.leads_elsewhere(path) => return Err(PathRefusal::Outside),
            Some((top, rest)) => (top, rest.to_owned()),
            // The path may be another name of a working folder. This lookup is not trusted: the
            // path is resolved step by step all the same.
            None => {
                let real = real_as_far_as_there(path).ok_or(PathRefusal::Outside)?;
                let (top, rest) = self.above(&real).ok_or(PathRefusal::Outside)?;
                (top, rest.to_owned())
            }
        };
        let mut start = Folder::root_of(&top.real)?;
        for part in parts(&top.real) {
            start = start.pass(&part).map_err(|error| match error.kind() {
                // A link has replaced a folder since.
                io::ErrorKind::NotADirectory => PathRefusal::Outside,
                _ => error.into(),
            })?;
            self.must_not_lead_into_own(&start)?;
        }
        Ok(PathWalk { top, start, passed: Vec::new(), ahead: parts(&rest).rev().collect() })
    }

    /// Returns the innermost working folder that contains a path by name, and the rest of the path.
    fn above<'p>(&self, path: &'p Path) -> Option<(&WorkFolder, &'p Path)> {
        let below = self.folders.iter().flat_map(|folder| {
            [&folder.named, &folder.real]
                .into_iter()
                .filter_map(move |name| Some((&**folder, path.strip_prefix(name).ok()?)))
        });
        below.min_by_key(|(_, rest)| rest.components().count())
    }

    /// Refuses to create a folder nested so deep that a recursive removal would refuse it.
    pub(super) fn must_not_be_too_deep(&self, path: &Path) -> Result<(), PathRefusal> {
        match self.above(path).is_some_and(|(_, rest)| rest.components().count() > DEPTH_MAX) {
            true => Err(PathRefusal::Unfit(format!("folders are created at most {DEPTH_MAX} deep"))),
            false => Ok(()),
        }
    }

    /// Refuses to enter a folder of the host's own, by any name.
    fn must_not_lead_into_own(&self, folder: &Folder) -> Result<(), PathRefusal> {
        if self.own.is_empty() {
            return Ok(());
        }
        self.must_not_be_one_of_own(&folder.facts()?)
    }

    /// Refuses to move or remove a working folder, a folder above one, or a link to one, by any
    /// name that the file system takes for it.
    pub(super) fn must_hold_no_top(&self, place: &ResolvedPath) -> Result<(), PathRefusal> {
        let tops = || self.folders.iter().flat_map(|folder| folder.links.iter().chain([&folder.real]));
        let is_named = tops().any(|top| top.starts_with(&place.path));
        let known = place.name.as_ref().and_then(|name| place.folder.facts_of(name).ok());
        let known = known.filter(|known| matches!(known.kind, FileKind::Folder | FileKind::Link));
        let identity_at = |path: &Path| facts::at(path).ok().map(|known| known.identity);
        match is_named || known.is_some_and(|known| leads_to(known.identity, tops(), identity_at)) {
            true => Err(PathRefusal::Unfit(
                "the folder, or one below it, is a working directory of a session".to_owned(),
            )),
            false => Ok(()),
        }
    }

    pub(super) fn must_not_be_one_of_own(&self, known: &Facts) -> Result<(), PathRefusal> {
        match self.own.iter().any(|own| own.is(known.identity)) {
            true => Err(PathRefusal::Own),
            false => Ok(()),
        }
    }

    /// Refuses to create one of the host's own files, or a path in a folder of its own.
    pub(super) fn must_not_be_in_own(&self, path: &Path) -> Result<(), PathRefusal> {
        let path = folded(path);
        match self.own.iter().any(|own| path.starts_with(folded(&own.path))) {
            true => Err(PathRefusal::Own),
            false => Ok(()),
        }
    }

    /// Refuses to change a file of the host's own by any name, its path, or a folder that contains
    /// it.
    pub(super) fn must_not_be_own(&self, place: &ResolvedPath) -> Result<(), PathRefusal> {
        let path = folded(&place.path);
        let own = self.own.iter().map(|own| folded(&own.path));
        if own.into_iter().any(|own| path.starts_with(&own) || own.starts_with(&path)) {
            return Err(PathRefusal::Own);
        }
        match &place.name {
            Some(name) => match place.folder.facts_of(name) {
                Ok(known) => self.must_not_be_one_of_own(&known),
                Err(_) => Ok(()),
            },
            None => Ok(()),
        }
    }
}

impl PathWalk<'_> {
    fn here(&self) -> &Folder {
        self.passed.last().map_or(&self.start, |(_, folder)| folder)
    }

    fn rest(&self) -> PathBuf {
        self.ahead.iter().rev().collect()
    }

    /// Returns the path of the current folder, with a name in it.
    fn path_with(&self, name: Option<&OsString>) -> PathBuf {
        let mut path = self.top.real.clone();
        path.extend(self.passed.iter().map(|(name, _)| name));
        path.extend(name);
        path
    }

    fn end(mut self, name: Option<OsString>) -> Result<ResolvedPath, PathRefusal> {
        let path = self.path_with(name.as_ref());
        let folder = self.passed.pop().map_or(self.start, |(_, folder)| folder);
        Ok(ResolvedPath { folder, name, path })
    }
}

/// Returns whether one of these paths is the entry of this identity, or below it.
fn leads_to<'a>(
    entry: Identity,
    mut paths: impl Iterator<Item = &'a PathBuf>,
    identity_at: impl Fn(&Path) -> Option<Identity>,
) -> bool {
    paths.any(|path| path.ancestors().any(|above| identity_at(above) == Some(entry)))
}

/// Returns the links on the way of an absolute path, and last its target, even if that is missing.
fn links_and_target(path: &Path) -> Vec<PathBuf> {
    let mut ways = Vec::new();
    let (mut done, mut links) = (root_of(path), 0);
    let mut ahead: Vec<OsString> = parts(path).rev().collect();
    while let Some(part) = ahead.pop() {
        if part == ".." {
            done.pop();
            continue;
        }
        let here = done.join(part);
        match here.read_link() {
            Ok(target) if links < LINKS_MAX => {
                links += 1;
                if target.is_absolute() {
                    done = root_of(&target);
                }
                ahead.extend(parts(&target).rev());
                ways.push(here);
            }
            _ => done = here,
        }
    }
    ways.push(done);
    ways
}

/// Returns the topmost folder of an absolute path.
pub fn root_of(path: &Path) -> PathBuf {
    path.ancestors().last().map(Path::to_owned).unwrap_or_default()
}

/// Returns the names and `..` of a path, without its root and `.`.
pub fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn make_folder(folder: &Folder, name: &OsStr) -> io::Result<Folder> {
    match folder.create_folder(name, 0o777) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => folder.pass(name),
    }
}

/// Returns a path with its existing part canonicalized; `None` if no part of it can be.
pub fn real_as_far_as_there(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|above| {
        let rest = path.strip_prefix(above).ok()?;
        Some(canonical(above).ok()?.join(rest))
    })
}

pub(super) fn must_be_file(known: &Facts) -> Result<(), PathRefusal> {
    match known.kind {
        FileKind::File => Ok(()),
        FileKind::Folder => Err(PathRefusal::NotAFile("a folder")),
        FileKind::Link => Err(PathRefusal::NotAFile("a link that was put there just now")),
        FileKind::Other => Err(PathRefusal::NotAFile("a device, a pipe or a socket")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_above_a_path_is_found_by_its_identity() {
        let numbers = [("/", 1), ("/home", 2), ("/home/Work", 3), ("/home/Work/a", 4), ("/home/other", 5)];
        let identity_at = |path: &Path| {
            let found = numbers.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, number)| (7, *number))
        };
        let tops = ["/home/Work/a", "/gone"].map(PathBuf::from);
        let found: Vec<u64> =
            (1..=6).filter(|number| leads_to((7, *number), tops.iter(), identity_at)).collect();
        assert_eq!(found, [1, 2, 3, 4]);
        assert!(!leads_to((8, 4), tops.iter(), identity_at));
    }
}
