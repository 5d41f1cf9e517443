//! Commits of the user's changes on behalf of a client.
//!
//! All changes in the folder are committed, staged or not, with the identity that git is configured
//! to use. This is the only module that writes the user's own index: by git's own rules, with its
//! lock, and only if the index has not changed since it was read.
//!
//! Owns: the reasons to refuse (a merge in progress, files that have changed since a client saw
//! them, files with a filter), and atomicity: the next worker finishes or undoes an interrupted
//! commit.
//! Never: runs hooks, or filters that the operator has not named; signs; overwrites a concurrent
//! change.

use crate::os::{facts, write};
use crate::state::edits::FileDiff;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::compare::{compared, HOW};
use super::conversions::{self, Attribute};
use super::flags::{stamp_of, IndexStamp};
use super::index::{CopiedIndex, Status};
use super::isolation::{branch_in, head_of};
use super::large::version_of;
use super::program::{Deadline, Git, GitError};
use super::repository::{NoRepository, Repository};
use super::steps;
use crate::files::uris::uri_of;
use crate::host::effects::{GitCommit, GitContent, GitReport, CHANGED_SINCE};

/// Files of a git directory that exist during an operation whose changes would become part of the
/// commit, each with the operation's name.
const IN_PROGRESS: [(&str, &str); 5] = [
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase"),
];

/// Mode of a file that is not in the index.
const GONE: &str = "000000";

/// Time limit for moving a branch, whatever is left of the job's: git must not be killed in it.
const MOVE_WITHIN: Duration = Duration::from_secs(10);

/// Number of digits of a commit id sent to clients.
const SHORT: usize = 10;

enum CommitFailure {
    /// The repository's state does not allow a commit; the text is the reason, for people.
    Refused(String),
    Failed(GitError),
}

impl<E: Into<GitError>> From<E> for CommitFailure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, CommitFailure> {
    Err(CommitFailure::Refused(why.into()))
}

/// Commits all uncommitted changes, if they are those that the client was `shown`. Staged contents
/// that differ from the files are first kept reachable under the ref `staged_retained`: the new
/// index does not have them.
///
/// # Errors
/// When git fails, or not in time. Nothing is committed then, unless the error says so.
pub fn commit(
    repository: &Repository,
    message: &str,
    shown: &[FileDiff<GitContent>],
    staged_retained: (&str, u64),
) -> Result<GitReport, GitError> {
    match try_to_commit(repository, message, shown, staged_retained) {
        Ok(commit) => Ok(GitReport::Committed(commit)),
        Err(CommitFailure::Refused(why)) => Ok(GitReport::NotCommitted(why)),
        Err(CommitFailure::Failed(error)) => Err(error),
    }
}

fn try_to_commit(
    repository: &Repository,
    message: &str,
    shown: &[FileDiff<GitContent>],
    staged_retained: (&str, u64),
) -> Result<GitCommit, CommitFailure> {
    must_not_be_in_progress(repository)?;
    if let Some(link) = link_in_reflogs(repository) {
        return refused(format!(
            "`{}` is a symbolic link, and git would write to its target",
            link.display()
        ));
    }
    let stamp = stamp_of(repository);
    let index = CopiedIndex::for_commit(repository)?;
    let status = index.status()?;
    if status.has_conflicts {
        return refused("the repository has conflicts");
    }
    filters_must_be_off(repository, &status)?;
    let tree = index.whole_tree(&status)?;
    let nothing = repository.empty_tree()?;
    let head = status.head.as_deref();
    let run = repository.run(["diff-tree"]).with(HOW).with([head.unwrap_or(&nothing), &tree]);
    let changes = compared(repository, run)?;
    if changes.is_empty() {
        return refused("there is nothing to commit");
    }
    // Versions are checked after the contents are read, so that no other version was read.
    if !is_as_shown(&sides_of(&changes), &sides_of(shown)) || !are_still(repository, shown) {
        return refused(CHANGED_SINCE);
    }
    must_know_who_commits(repository)?;
    let commit = written(repository, message, (head, &tree))?;
    back_up_staged(repository, &status, staged_retained)?;
    let kind = if head.is_some() { "commit" } else { "commit (initial)" };
    let subject = message.trim().lines().next().unwrap_or_default();
    let note = format!("{kind}: {subject}");
    let made = MadeCommit { head, id: &commit, note: &note, index: &index, stamp };
    steps::whole(|| move_head(repository, &made))?;
    let short = commit.get(..SHORT).unwrap_or(&commit).to_owned();
    Ok(GitCommit { commit: short, branch: status.branch })
}

/// A written commit that is to be checked out.
struct MadeCommit<'a> {
    /// The commit that was checked out before; `None` if there was none.
    head: Option<&'a str>,
    id: &'a str,
    note: &'a str,
    index: &'a CopiedIndex<'a>,
    /// Stamp of the user's index when it was copied; see [`stamp_of`].
    stamp: Option<IndexStamp>,
}

/// Moves the branch, or `HEAD`, to a commit and replaces the user's index, unless either has
/// changed since the commit was prepared.
fn move_head(repository: &Repository, made: &MadeCommit<'_>) -> Result<(), CommitFailure> {
    let theirs = repository.own.join("index");
    let index_lock = Lock::of(&theirs)?.ok_or_else(|| {
        CommitFailure::Refused("another process is using the repository: its `index.lock` exists".to_owned())
    })?;
    let head_lock = match repository.has_head_file() {
        true => Some(
            Lock::of(&repository.own.join("HEAD"))?.ok_or(CommitFailure::Refused(IS_LOCKED.to_owned()))?,
        ),
        false => None,
    };
    remember_begun((&index_lock, head_lock.as_ref()), repository, made.id)?;
    index_lock.fill(made.index.path(), &theirs)?;
    if stamp_of(repository) != made.stamp {
        return refused("another process has changed the index meanwhile");
    }
    if is_elsewhere(repository)? {
        return refused(MOVED_MEANWHILE);
    }
    // An operation may have begun before the locks were taken.
    must_not_be_in_progress(repository)?;
    // Git does not create these folders through a link.
    for git_dir in [&repository.own, &repository.common] {
        if repository.has_head_file() {
            fs::create_dir_all(git_dir.join("logs"))?;
        }
    }
    // `HEAD` must still be the same commit, or still have none (an id of zeros).
    let before = made.head.map_or_else(|| "0".repeat(made.id.len()), str::to_owned);
    let moves = repository.run(["update-ref", "-m", made.note, "HEAD", made.id, &before]);
    match moves.within(Deadline::after(MOVE_WITHIN)).output() {
        Ok(_) => {}
        Err(GitError::Failed { trouble, .. }) => {
            tracing::debug!(trouble, "git refused to move a branch, so nothing is committed");
            return refused(why_not_moved(repository, made.head)?);
        }
        Err(error) => return Err(error.into()),
    }
    // With a detached `HEAD`, git has changed only the host's copy of it.
    let copy = head_of(&repository.isolated.path)?;
    if let Some(lock) = head_lock.filter(|_| copy != repository.isolated.head) {
        lock.write(&copy)?;
        lock.replace()?;
    }
    index_lock.replace().map_err(|error| {
        let why =
            format!("`{}` was committed, but the index is the old one ({error}): run `git reset`", made.id);
        CommitFailure::Failed(GitError::Beyond(why))
    })
}

fn must_know_who_commits(repository: &Repository) -> Result<(), CommitFailure> {
    for who in ["GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"] {
        match repository.run(["var", who]).output() {
            Ok(_) => {}
            Err(GitError::Failed { .. }) => {
                return refused(
                    "git has no identity for commits: set `user.name` and `user.email` in its configuration",
                );
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes a commit of a tree, with `head` as its parent. Returns its id.
fn written(
    repository: &Repository,
    message: &str,
    (head, tree): (Option<&str>, &str),
) -> Result<String, GitError> {
    let message = repository.input(format!("{}\n", message.trim()).as_bytes())?;
    let run = repository.run(["commit-tree", "--no-gpg-sign", "-F", "-"]).reads(message);
    let run = match head {
        Some(head) => run.with(["-p", head]),
        None => run,
    };
    run.with([tree]).line()
}

/// Refuses to commit during a merge or another operation of the user.
fn must_not_be_in_progress(repository: &Repository) -> Result<(), CommitFailure> {
    for (name, what) in IN_PROGRESS {
        // With a reftable, most of these names are refs and not files.
        let is_ref = !repository.has_head_file() && name.ends_with("_HEAD");
        let exists = repository.own.join(name).exists()
            || is_ref
                && match repository.run(["rev-parse", "--verify", "--quiet", name]).output() {
                    Ok(_) => true,
                    Err(GitError::Failed { .. }) => false,
                    Err(error) => return Err(error.into()),
                };
        if exists {
            return refused(format!("{what} is in progress in the repository"));
        }
    }
    Ok(())
}

/// Returns a symbolic link on the path to a reflog that a commit is appended to. Git follows links,
/// so the repository's author could have the text of a commit appended to any file.
fn link_in_reflogs(repository: &Repository) -> Option<PathBuf> {
    let branch = branch_in(&repository.isolated.head);
    let of_branch = branch.map(|branch| (&repository.common, format!("logs/refs/heads/{branch}")));
    let logs = [(&repository.own, "logs/HEAD".to_owned())].into_iter().chain(of_branch);
    let mut paths = logs.flat_map(|(git_dir, name)| {
        let below = |path: &&Path| *path != Path::new("");
        Path::new(&name).ancestors().take_while(below).map(|path| git_dir.join(path)).collect::<Vec<_>>()
    });
    paths.find(|path| path.is_symlink())
}

/// Retains staged contents that are in no commit and no file, by the ref `kept`.
fn back_up_staged(repository: &Repository, status: &Status, kept: (&str, u64)) -> Result<(), GitError> {
    let staged = status.entries.iter().filter(|entry| entry.is_staged && entry.mode != GONE);
    let lost: BTreeSet<&String> =
        staged.filter(|entry| status.changed.contains(&entry.path)).map(|entry| &entry.id).collect();
    if lost.is_empty() {
        return Ok(());
    }
    let lost: Vec<String> = lost.into_iter().cloned().collect();
    conversions::keep_reachable(repository, kept, &lost)
}

const IS_LOCKED: &str = "git cannot move the branch: another process is using the repository, or has left a lock of `HEAD` or of the branch behind";

const MOVED_MEANWHILE: &str = "something else was committed or checked out meanwhile";

/// Returns the reason why git did not move the branch from `head`, for people.
fn why_not_moved(repository: &Repository, head: Option<&str>) -> Result<&'static str, GitError> {
    let now = match repository.run(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).line() {
        Ok(now) => Some(now),
        Err(GitError::Failed { .. }) => None,
        Err(error) => return Err(error),
    };
    Ok(if now.as_deref() == head { IS_LOCKED } else { MOVED_MEANWHILE })
}

/// Returns whether `HEAD` has changed since the isolated git directory was made.
fn is_elsewhere(repository: &Repository) -> io::Result<bool> {
    Ok(repository.has_head_file() && head_of(&repository.own)? != repository.isolated.head)
}

/// Refuses changed files that have a filter which does not run: the filter's output should be
/// committed, not the file as it is.
fn filters_must_be_off(repository: &Repository, status: &Status) -> Result<(), CommitFailure> {
    let configured = repository.filters();
    if configured.is_empty() {
        return Ok(());
    }
    let paths = status.changed.iter().chain(&status.untracked).map(Vec::as_slice);
    let filters = conversions::attributes(repository, paths, &["filter"])?;
    let is_off =
        |filter: &&Attribute| configured.contains(&*filter.value) && !repository.runs_filter(&filter.value);
    match filters.iter().find(is_off) {
        Some(found) => {
            let [path, filter] = [&found.path, &found.value].map(|text| String::from_utf8_lossy(text));
            refused(format!(
                "`{path}` needs the filter `{filter}`, which the host does not run: commit with git"
            ))
        }
        None => Ok(()),
    }
}

/// Content of each file before and after, by URI.
type SidesOf<'a> = BTreeMap<&'a str, (Option<&'a GitContent>, Option<&'a GitContent>)>;

fn sides_of(changes: &[FileDiff<GitContent>]) -> SidesOf<'_> {
    let mut sides = SidesOf::new();
    for change in changes {
        let from = change.renamed_from.as_ref().unwrap_or(&change.file);
        if let Some(before) = &change.before {
            sides.entry(from).or_default().0 = Some(before);
        }
        if let Some(after) = &change.after {
            sides.entry(&change.file).or_default().1 = Some(after);
        }
    }
    sides
}

/// Returns whether files that were shown without a stored content still have the shown versions.
fn are_still(repository: &Repository, shown: &[FileDiff<GitContent>]) -> bool {
    let seen = shown.iter().filter_map(|change| Some((&change.file, change.after.as_ref()?)));
    let mut versions = seen.filter(|(_, after)| !after.is_stored());
    versions.all(|(file, after)| {
        let path = repository.path_of(file);
        path.and_then(|path| version_of(&repository.root.join(path))).as_ref() == Some(&after.blob)
    })
}

/// Returns whether the changes are those that clients were shown. A file without a stored content
/// is compared by name alone; [`are_still`] compares its version.
fn is_as_shown(found: &SidesOf<'_>, shown: &SidesOf<'_>) -> bool {
    let is_side = |(found, shown): (Option<&GitContent>, Option<&GitContent>)| match (found, shown) {
        (Some(_), Some(shown)) if !shown.is_stored() => true,
        (found, shown) => found == shown,
    };
    let is_file = |(path, sides): (&&str, &(Option<&GitContent>, Option<&GitContent>))| {
        shown.get(path).is_some_and(|of| is_side((sides.0, of.0)) && is_side((sides.1, of.1)))
    };
    let names = |sides: &SidesOf<'_>| sides.keys().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    names(found) == names(shown) && found.iter().all(is_file)
}

/// Record of a commit in progress, for the next worker if this one is killed.
#[derive(Debug, Serialize, Deserialize)]
struct BegunCommit {
    root: PathBuf,
    /// Locked files, the index first, each with the device and inode of its lock file.
    locks: Vec<(PathBuf, (u64, u64))>,
    commit: String,
}

const BEGUN: &str = "begun-commit";

/// Returns whether a commit was begun with this scratch folder and is not finished.
pub fn is_begun(scratch: &Path) -> bool {
    scratch.join(BEGUN).exists()
}

/// Names the commit recorded in a scratch folder, and the lock that it holds, for people.
pub fn begun_in(scratch: &Path) -> String {
    let record = fs::read(scratch.join(BEGUN)).ok();
    match record.and_then(|record| serde_json::from_slice::<BegunCommit>(&record).ok()) {
        Some(BegunCommit { root, commit, .. }) => {
            format!("the commit {commit} in `{}`, which may still be locked by `index.lock`,", root.display())
        }
        None => format!("the commit recorded in `{}`", scratch.display()),
    }
}

fn remember_begun(
    (index, head): (&Lock, Option<&Lock>),
    repository: &Repository,
    commit: &str,
) -> io::Result<()> {
    let locks = std::iter::once(index)
        .chain(head)
        .map(|lock| Ok((lock.file.clone(), facts::at(&lock.path)?.identity)));
    let (root, locks) = (repository.root.clone(), locks.collect::<io::Result<_>>()?);
    let begun = BegunCommit { root, locks, commit: commit.to_owned() };
    repository.scratch.file(BEGUN, &crate::wire::rpc::to_json(&begun)).map(drop)
}

/// Finishes the commit recorded in a scratch folder: if the commit is checked out already, its
/// index becomes the user's; otherwise nothing changes. Temporary files are made below `folder`.
/// Locks that another process has taken since are left alone.
pub fn end_begun(git: &Git, scratch: &Path, folder: &Path, until: Deadline) -> Result<(), GitError> {
    let Ok(begun) = serde_json::from_slice::<BegunCommit>(&fs::read(scratch.join(BEGUN))?) else {
        // The record is incomplete, so the repository was not changed.
        return Ok(());
    };
    // Until all is known, an error leaves the locks, and the index in one, to the next start.
    let mut locks = Vec::new();
    for (file, known) in &begun.locks {
        let lock = Lock { path: lock_of(file), file: file.clone(), is_ours: false };
        match facts::at(&lock.path) {
            Ok(found) if found.identity == *known => locks.push(lock),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    let index = begun.locks.first().map(|(file, _)| file);
    if let Some(at) = locks.iter().position(|lock| Some(&lock.file) == index) {
        if is_checked_out(git, &begun, folder, until)? {
            locks.remove(at).replace()?;
        }
    }
    locks.iter_mut().for_each(|lock| lock.is_ours = true);
    Ok(())
}

/// Returns whether the recorded commit is that of the repository's `HEAD`.
fn is_checked_out(git: &Git, begun: &BegunCommit, folder: &Path, until: Deadline) -> Result<bool, GitError> {
    let repository = match Repository::find(git, &[uri_of(&begun.root)], folder, until) {
        Ok(repository) => repository,
        Err(NoRepository::Failed(error)) => return Err(error),
        Err(NoRepository::None | NoRepository::Unusable(_)) => return Ok(false),
    };
    match repository.run(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).line() {
        Ok(now) => Ok(now == begun.commit),
        Err(GitError::Failed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn lock_of(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(".lock");
    PathBuf::from(path)
}

/// Git's lock of a file: only its holder may write the file. Dropping it removes the lock file.
struct Lock {
    path: PathBuf,
    file: PathBuf,
    is_ours: bool,
}

impl Lock {
    /// Takes the lock; `None` if another process holds it.
    fn of(file: &Path) -> io::Result<Option<Self>> {
        let path = lock_of(file);
        match File::options().write(true).create_new(true).open(&path) {
            Ok(_) => Ok(Some(Self { path, file: file.to_owned(), is_ours: true })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Copies an index into the lock file, with permissions of the user's index. The modification
    /// time is copied, too: git compares it with those of files.
    fn fill(&self, index: &Path, theirs: &Path) -> io::Result<()> {
        fs::copy(index, &self.path)?;
        if let Ok(known) = fs::metadata(theirs) {
            fs::set_permissions(&self.path, known.permissions())?;
        }
        File::options().write(true).open(&self.path)?.set_modified(fs::metadata(index)?.modified()?)
    }

    fn write(&self, content: &[u8]) -> io::Result<()> {
        let mut file = File::options().write(true).truncate(true).open(&self.path)?;
        file.write_all(content)?;
        write::sync_all(&file)
    }

    /// Renames the lock file to the locked file, which releases the lock.
    fn replace(mut self) -> io::Result<()> {
        fs::rename(&self.path, &self.file)?;
        self.is_ours = false;
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, "the lock `{}` cannot be removed: git refuses to work there until you remove it", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    /// Returns a repository, its commit, and a second commit that is not checked out.
    fn with_a_written_commit(top: &Path) -> (Repository, String, String) {
        let root = top.join("repository");
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.args(["-c", "user.name=A", "-c", "user.email=a@b"]).args(arguments).current_dir(&root);
            let ran = git.output().unwrap();
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            String::from_utf8(ran.stdout).unwrap().trim().to_owned()
        };
        fs::create_dir(&root).unwrap();
        git(&["init", "-q"]);
        fs::write(root.join("a"), "1\n").unwrap();
        git(&["add", "a"]);
        git(&["commit", "-q", "-m", "first"]);
        let head = git(&["rev-parse", "HEAD"]);
        let next = git(&["commit-tree", "-p", "HEAD", "-m", "next", "HEAD^{tree}"]);
        let until = Deadline::after(Duration::from_secs(60));
        let found = Git::find(std::env::var_os("PATH").as_deref(), until).unwrap();
        let repository = Repository::find(&found, &[uri_of(&root)], &top.join("work"), until).unwrap();
        (repository, head, next)
    }

    fn head_in(repository: &Repository) -> String {
        let git = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(&repository.root).output();
        String::from_utf8(git.unwrap().stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn branch_move_begun_at_the_deadline_is_completed() {
        let top = tempfile::tempdir().unwrap();
        let (mut repository, head, next) = with_a_written_commit(top.path());
        repository.until = Deadline::after(Duration::ZERO);
        let (index, stamp) = (CopiedIndex::for_commit(&repository).unwrap(), stamp_of(&repository));
        let (head, id, index) = (Some(head.as_str()), next.as_str(), &index);
        let made = MadeCommit { head, id, note: "commit: next", index, stamp };
        assert!(move_head(&repository, &made).is_ok());
        assert_eq!(head_in(&repository), next);
        assert!(!repository.own.join("index.lock").exists());
    }

    #[test]
    fn index_replaced_meanwhile_by_one_of_the_same_size_and_time_is_not_overwritten() {
        let top = tempfile::tempdir().unwrap();
        let (repository, head, next) = with_a_written_commit(top.path());
        let (index, stamp) = (CopiedIndex::for_commit(&repository).unwrap(), stamp_of(&repository));
        let [theirs, other] = ["index", "other"].map(|name| repository.own.join(name));
        fs::copy(&theirs, &other).unwrap();
        let modified = fs::metadata(&theirs).unwrap().modified().unwrap();
        File::options().write(true).open(&other).unwrap().set_modified(modified).unwrap();
        fs::rename(&other, &theirs).unwrap();
        let (before, id, index) = (Some(head.as_str()), next.as_str(), &index);
        let made = MadeCommit { head: before, id, note: "commit: next", index, stamp };
        assert!(matches!(move_head(&repository, &made), Err(CommitFailure::Refused(_))));
        assert_eq!(head_in(&repository), head);
    }

    #[test]
    fn interrupted_commit_that_cannot_be_finished_keeps_its_index_for_the_next_start() {
        let top = tempfile::tempdir().unwrap();
        let (repository, head, _) = with_a_written_commit(top.path());
        let (index, scratch) = (repository.own.join("index"), top.path().join("scratch"));
        let lock = lock_of(&index);
        fs::create_dir(&scratch).unwrap();
        fs::write(&lock, "index of the commit").unwrap();
        let identity = facts::at(&lock).unwrap().identity;
        let record = |locks| {
            let begun = BegunCommit { root: repository.root.clone(), locks, commit: head.clone() };
            fs::write(scratch.join(BEGUN), serde_json::to_vec(&begun).unwrap()).unwrap();
        };
        let end = || {
            let until = Deadline::after(Duration::from_secs(60));
            let git = Git::find(std::env::var_os("PATH").as_deref(), until).unwrap();
            end_begun(&git, &scratch, &top.path().join("work"), until)
        };
        // Nothing can be looked up below a file.
        record(vec![(index.clone(), identity), (repository.root.join("a/HEAD"), identity)]);
        assert!(end().is_err() && lock.exists());
        record(vec![(index.clone(), identity)]);
        end().unwrap();
        assert_eq!(fs::read_to_string(&index).unwrap(), "index of the commit");
        assert!(!lock.exists());
    }
}
