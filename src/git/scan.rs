//! Output of `git status`, for the whole folder or for the files touched since the last scan.
//!
//! Git compares each file of the index with the folder, which takes most of the time in a large
//! repository. If the file watcher has reported the touched files, git examines only those, and the
//! rest of the last status stays valid: as long as the index and the checked-out commit are the
//! same, and no touched file affects how git treats other files.
//!
//! Owns: the last status of each repository, and whether it can be updated in parts.
//! Never: caches a status of flagged files, or with conflicts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::flags::{stamp_of, FlaggedFile, IndexStamp};
use super::index::{read_status, Status, STATUS};
use super::program::{GitError, GitRun};
use super::repository::Repository;
use crate::os::paths::from_bytes;

/// Maximum number of cached statuses, one per repository.
const REMEMBERED_MAX: usize = 16;

/// Maximum number of paths in a cached status.
const PATHS_MAX: usize = 10_000;

/// Files that determine how git treats other files.
const GOVERNING: [&str; 3] = [".git", ".gitattributes", ".gitignore"];

#[derive(Debug)]
struct KnownStatus {
    status: Status,
    begun: Instant,
    index: Option<IndexStamp>,
}

static KNOWN: Mutex<BTreeMap<PathBuf, KnownStatus>> = Mutex::new(BTreeMap::new());

/// Files that a scan of a folder covers.
#[derive(Debug, Clone, Copy)]
pub enum StatusScope<'a> {
    /// All files, these flagged ones included.
    Whole(&'a [FlaggedFile]),
    /// Files that git's flags do not hide. Only these (`file:` URIs) may have changed since the
    /// last scan of this kind; `None` if any may have.
    Visible(Option<&'a [String]>),
}

impl<'a> StatusScope<'a> {
    /// Returns the flagged files that the scan covers.
    pub fn flagged(self) -> &'a [FlaggedFile] {
        match self {
            Self::Whole(flagged) => flagged,
            Self::Visible(_) => &[],
        }
    }

    /// Returns the status that `run` gives with these arguments. The first try examines only
    /// touched files; a further try examines all, because files have changed that were not reported
    /// yet.
    pub fn status<'r>(
        self,
        repository: &Repository,
        run: impl Fn(&[&str]) -> GitRun<'r>,
        is_first: bool,
    ) -> Result<Status, GitError> {
        let whole = || Ok(read_status(&run(&STATUS).output()?));
        let Self::Visible(touched) = self else { return whole() };
        let (begun, index) = (Instant::now(), stamp_of(repository));
        let touched = touched.filter(|_| is_first).and_then(|touched| paths_of(repository, touched));
        let known = touched.and_then(|touched| Some((known_status(repository, index)?, touched)));
        let status = match known {
            None => whole()?,
            Some((known, touched)) => match run(&STATUS).with(["--"]).with(&touched).output() {
                Err(GitError::Failed { .. }) => whole()?,
                said => match known.updated(read_status(&said?), &touched) {
                    Some(status) => status,
                    None => whole()?,
                },
            },
        };
        remember(repository, KnownStatus { status: status.clone(), begun, index });
        Ok(status)
    }
}

/// Returns the paths of files; `None` if the status of other files depends on one of them.
fn paths_of(repository: &Repository, touched: &[String]) -> Option<Vec<OsString>> {
    // Git may use another spelling of a name than the reported one.
    if touched.is_empty() || repository.folds_names() {
        return None;
    }
    let path = |uri: &String| {
        let path = repository.path_of(uri)?;
        let is_governing = path.iter().any(|name| GOVERNING.iter().any(|governing| name == *governing));
        (!is_governing).then(|| path.into_os_string())
    };
    touched.iter().map(path).collect()
}

fn known_status(repository: &Repository, index: Option<IndexStamp>) -> Option<Status> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    Some(known.get(&repository.root).filter(|known| known.index == index)?.status.clone())
}

fn remember(repository: &Repository, now: KnownStatus) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    // Scans may overlap. A change that the later one has missed is reported for the next one.
    if known.get(&repository.root).is_some_and(|known| known.begun > now.begun) {
        return;
    }
    known.remove(&repository.root);
    if now.status.has_conflicts || now.status.entries.len() + now.status.untracked.len() > PATHS_MAX {
        return;
    }
    while known.len() >= REMEMBERED_MAX {
        known.pop_first();
    }
    known.insert(repository.root.clone(), now);
}

impl Status {
    /// Returns this status, with the touched files replaced by those of `now`; `None` if the two
    /// are not consistent.
    fn updated(self, now: Self, touched: &[OsString]) -> Option<Self> {
        if now.has_conflicts || now.head != self.head {
            return None;
        }
        let stays = |path: &[u8]| {
            let path = from_bytes(path);
            !touched.iter().any(|touched| Path::new(&path).starts_with(touched))
        };
        let merged = |before: Vec<Vec<u8>>, now: Vec<Vec<u8>>| {
            let mut paths: Vec<_> = before.into_iter().filter(|path| stays(path)).chain(now).collect();
            paths.sort_unstable();
            paths
        };
        let entries = self.entries.into_iter().filter(|entry| stays(&entry.path));
        let mut entries: Vec<_> = entries.chain(now.entries).collect();
        entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        let (changed, untracked) = (merged(self.changed, now.changed), merged(self.untracked, now.untracked));
        let uncommitted = (entries.len() + untracked.len()) as u64;
        Some(Self { uncommitted, changed, untracked, entries, ..now })
    }
}
