//! Output of `git status`, for the whole folder or for the files touched since the last scan.
//!
//! Git compares each file of the index with the folder, which takes most of the time in a large
//! repository. If the file watcher has reported the touched files, git examines only those, and the
//! rest of the last status stays valid: as long as the index and the checked-out commit are the
//! same, and no touched file affects how git treats other files. Tracked files that are not watched
//! are always examined.
//!
//! Owns: the last status of each repository, and whether it can be updated in parts.
//! Never: caches a status of flagged files, or with conflicts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use super::flags::{stamp_of, FlaggedFile, IndexStamp};
use super::index::{read_status, Status, STATUS};
use super::program::{GitError, GitRun};
use super::repository::Repository;
use crate::host::effects::UNWATCHED;
use crate::os::paths::from_bytes;
use crate::sync::lock;

/// Maximum number of cached statuses, one per repository.
const REMEMBERED_MAX: usize = 16;

/// Maximum number of paths in a cached status.
const PATHS_MAX: usize = 10_000;

/// Files that determine how git treats other files.
const GOVERNING: [&str; 3] = [".git", ".gitattributes", ".gitignore"];

/// Maximum number of tracked but unwatched files that are examined each time; with more, all files
/// are.
const UNWATCHED_MAX: usize = 100;

#[derive(Debug, Clone)]
struct KnownStatus {
    status: Status,
    begun: Instant,
    index: Option<IndexStamp>,
    /// Tracked files that are not watched; `None` if they are not listed yet.
    unwatched: Option<Vec<OsString>>,
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
        let known = known_status(repository, index);
        let mut unwatched = known.as_ref().and_then(|known| known.unwatched.clone());
        let known = known.zip(touched).and_then(|(known, mut touched)| {
            let listed = unwatched.take().or_else(|| unwatched_files(repository).ok())?;
            touched.extend_from_slice(&listed);
            (unwatched.insert(listed).len() <= UNWATCHED_MAX).then_some((known.status, touched))
        });
        let status = match known {
            None => whole()?,
            Some((known, touched)) => match run(&STATUS).with(["--"]).with(&touched).output() {
                Err(GitError::Failed { .. }) => whole()?,
                output => match known.updated(read_status(&output?), &touched) {
                    Some(status) => status,
                    None => whole()?,
                },
            },
        };
        let now = KnownStatus { status: status.clone(), begun, index, unwatched };
        remember(&mut lock(&KNOWN), &repository.root, now);
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

/// Returns the tracked files that are not watched.
fn unwatched_files(repository: &Repository) -> Result<Vec<OsString>, GitError> {
    let pattern = format!(":(glob){UNWATCHED}");
    let run = repository.run(["ls-files", "-z", "--", &pattern]).env("GIT_LITERAL_PATHSPECS", "0");
    let listed = run.output()?;
    let paths = listed.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    Ok(paths.map(|path| from_bytes(path).into_owned()).collect())
}

fn known_status(repository: &Repository, index: Option<IndexStamp>) -> Option<KnownStatus> {
    let known = lock(&KNOWN);
    known.get(&repository.root).filter(|known| known.index == index).cloned()
}

fn remember(known: &mut BTreeMap<PathBuf, KnownStatus>, root: &Path, now: KnownStatus) {
    // Scans may overlap. A change that the later one has missed is reported for the next one.
    if known.get(root).is_some_and(|known| known.begun > now.begun) {
        return;
    }
    known.remove(root);
    if now.status.has_conflicts || now.status.entries.len() + now.status.untracked.len() > PATHS_MAX {
        return;
    }
    if known.len() >= REMEMBERED_MAX {
        let oldest = known.iter().min_by_key(|(_, known)| known.begun).map(|(root, _)| root.clone());
        oldest.and_then(|oldest| known.remove(&oldest));
    }
    known.insert(root.to_owned(), now);
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
        let mut status = Self { changed, untracked, entries, ..now };
        status.uncommitted = status.entries.len() as u64 + status.new_files();
        Some(status)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const IDS: &str = "100644 000000 000000 0000000000000000000000000000000000000000 0000000000000000000000000000000000000000";

    #[test]
    fn oldest_status_is_evicted_first() {
        let mut known = BTreeMap::new();
        let root = |number: usize| PathBuf::from(format!("/{:02}", 99 - number));
        let begin = Instant::now();
        for number in 0..=REMEMBERED_MAX {
            let begun = begin + Duration::from_secs(number as u64);
            let now = KnownStatus { status: Status::default(), begun, index: None, unwatched: None };
            remember(&mut known, &root(number), now);
        }
        assert_eq!(known.len(), REMEMBERED_MAX);
        assert!(!known.contains_key(&root(0)) && known.contains_key(&root(1)));
    }

    #[test]
    fn file_that_is_removed_from_the_index_alone_counts_once() {
        let whole = read_status(format!("1 D. N... {IDS} a\0? a\0? b\0").as_bytes());
        assert_eq!(whole.uncommitted, 2);
        let later = read_status(format!("1 D. N... {IDS} a\0? a\0").as_bytes());
        assert_eq!(whole.updated(later, &["a".into()]).unwrap().uncommitted, 2);
    }
}
