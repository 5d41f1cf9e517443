//! The process that runs git for the host.
//!
//! Jobs and reports are lines of JSON on its pipes, each with a number. A guard ends the process,
//! and all programs it runs, when the host ends.
//!
//! Owns: which jobs run concurrently. For directories of which one contains the other, at most one
//! checkpoint runs at once, for the same directories at most one other job, and in all at most two
//! of each kind. A job that changes files runs while no other job has directories in, above or
//! below its own. Other jobs queue, and fail when their deadline passes.
//! Never: starts a job past its deadline.

use std::collections::VecDeque;
use std::fs::{File, TryLockError};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base64::prelude::{Engine, BASE64_STANDARD};
use serde::{Deserialize, Serialize};

use super::isolation::private_folder;
use super::large::FileLimits;
use super::program::{Deadline, Git, GitError};
use super::repository::{NoRepository, Repository};
use super::{checkpoints, commit, contents, incomparable, reverting, status, steps};
use crate::files::folders::PathRefusal;
use crate::files::uris::{overlap, path_of};
use crate::host::effects::{GitJob, GitReport, GitWork, RevertOutcome};
use crate::os::{facts, limits, private};
use crate::sync::lock;

/// Maximum number of concurrent jobs of one kind.
const AT_ONCE: usize = 2;

/// Number of threads: one for each running job, and one that reports queued jobs past their
/// deadline.
const THREADS: usize = 2 * AT_ONCE + 1;

/// Time for uninterruptible steps after the host has ended; shorter than the guard's grace period.
const EXIT_WITHIN: Duration = Duration::from_millis(400);

/// Time to wait for an earlier worker to end; longer than its guard lets it live.
const OTHERS_WITHIN: Duration = Duration::from_millis(1500);

/// Time limit for finishing one commit of an earlier worker.
const RECOVERY_WITHIN: Duration = Duration::from_secs(5);

/// Maximum memory that this process, or one run of git, allocates, in bytes. Git reads refs, ignore
/// rules and other files of a repository to their ends, whatever their size. In a repository with
/// millions of files or commits it needs 1 to 2 GiB; its packs are mapped, and do not count.
const MEMORY_BYTES_MAX: u64 = 4 << 30;

const PANICKED: &str = "the git worker failed because of a bug in it; the host's log has the details";

/// A job with its number.
#[derive(Debug, Serialize, Deserialize)]
pub struct NumberedJob {
    /// Number that the report repeats.
    pub number: u64,
    /// Work to do.
    pub job: GitJob,
}

/// Report about a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobReport {
    /// The number of the job.
    pub number: u64,
    /// Outcome of the job.
    pub report: GitReport,
}

#[derive(Debug)]
struct WaitingJob {
    number: u64,
    job: GitJob,
    place: JobPlace,
    until: Deadline,
}

/// Facts that decide which jobs may run concurrently.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JobPlace {
    /// Set if the job makes a checkpoint of the folder.
    keeps: bool,
    /// Set if the job changes files in the folder: a checkpoint or status made during the change
    /// would show an intermediate state.
    changes: bool,
    /// Directories of the job, as paths, since a URI can be spelled in several ways. Links are not
    /// resolved: a file system may hang.
    directories: Vec<PathBuf>,
}

impl JobPlace {
    fn of(job: &GitJob) -> Self {
        Self {
            keeps: matches!(job.work, GitWork::Checkpoint { .. }),
            changes: matches!(job.work, GitWork::Revert { .. } | GitWork::Commit { .. }),
            directories: job
                .directories
                .iter()
                .map(|uri| path_of(uri).unwrap_or_else(|_| uri.into()))
                .collect(),
        }
    }

    /// Returns whether one of the two jobs must wait for the other.
    fn conflicts_with(&self, other: &Self) -> bool {
        // Checkpoints of one repository may name its folder and a folder in it.
        if self.changes || other.changes || (self.keeps && other.keeps) {
            return overlap(&self.directories, &other.directories);
        }
        self.keeps == other.keeps && self.directories == other.directories
    }
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<WaitingJob>,
    running: Vec<JobPlace>,
    is_over: bool,
}

impl Jobs {
    fn add(&mut self, NumberedJob { number, job }: NumberedJob) {
        let until = Deadline::after(Duration::from_millis(job.within_ms));
        self.waiting.push_back(WaitingJob { number, place: JobPlace::of(&job), job, until });
    }

    /// Takes a job that may run now, or whose deadline has passed.
    fn take(&mut self) -> Option<WaitingJob> {
        let places = || self.waiting.iter().map(|waiting| &waiting.place);
        let may_run = |at: usize, place: &JobPlace| {
            let of_kind = self.running.iter().filter(|running| running.keeps == place.keeps).count();
            // A job does not overtake one that it would have to wait for.
            let mut before = self.running.iter().chain(places().take(at));
            of_kind < AT_ONCE && !before.any(|other| place.conflicts_with(other))
        };
        let is_next = |(at, job): (usize, &WaitingJob)| job.until.left().is_zero() || may_run(at, &job.place);
        let next = self.waiting.iter().enumerate().position(is_next)?;
        let job = self.waiting.remove(next)?;
        self.running.push(job.place.clone());
        Some(job)
    }

    fn end(&mut self, place: &JobPlace) {
        if let Some(at) = self.running.iter().position(|running| running == place) {
            self.running.swap_remove(at);
        }
    }
}

/// Waits for the next job to answer. Returns `None` when the process is to end.
fn next_job((jobs, bell): &(Mutex<Jobs>, Condvar)) -> Option<WaitingJob> {
    let mut jobs = lock(jobs);
    loop {
        if jobs.is_over {
            return None;
        }
        if let Some(job) = jobs.take() {
            // Others may be ready, too: the end of one job can free several.
            bell.notify_one();
            return Some(job);
        }
        let left = jobs.waiting.iter().map(|job| job.until.left()).min();
        let woken = bell.wait_timeout(jobs, left.unwrap_or(Duration::MAX));
        jobs = woken.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Runs the jobs that arrive on stdin until it closes. Temporary files are made in `folder`,
/// contents of files are checkpointed within `file_limits`, and git runs only the named `filters`
/// of the user's configuration.
pub fn run(folder: PathBuf, file_limits: FileLimits, filters: &[String]) -> io::Result<()> {
    limits::limit_memory(MEMORY_BYTES_MAX);
    let folder_lock = wait_for_others(&folder);
    match &folder_lock {
        Ok(Some(_)) => {
            finish_begun_commits(&folder);
            remove_old(&folder);
        }
        Ok(None) => tracing::warn!("another process still runs git for this host: its files are left alone"),
        Err(error) => tracing::warn!(%error, "the folder of the git worker cannot be locked"),
    }
    let shared = Arc::new((Mutex::new(Jobs::default()), Condvar::new()));
    let folder = Arc::new(folder);
    let git = Arc::new(Mutex::new(None));
    let filters: Arc<[String]> = filters.into();
    for _ in 0..THREADS {
        let (shared, folder, git) = (Arc::clone(&shared), Arc::clone(&folder), Arc::clone(&git));
        let filters = Arc::clone(&filters);
        thread::Builder::new()
            .name("git".to_owned())
            .spawn(move || work(&shared, &folder, (&git, &filters), file_limits))?;
    }
    for line in io::stdin().lock().lines() {
        let job = serde_json::from_slice(line?.as_bytes())?;
        let (jobs, bell) = &*shared;
        lock(jobs).add(job);
        bell.notify_one();
    }
    lock(&shared.0).is_over = true;
    steps::stop_within(EXIT_WITHIN);
    // Returning ends the process, and threads that hang with it.
    if !matches!(folder_lock, Ok(Some(_))) {
        return Ok(());
    }
    remove_old(&folder);
    if let Err(error) = std::fs::remove_dir(&*folder) {
        tracing::debug!(%error, "the folder of the git worker cannot be removed");
    }
    Ok(())
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Locks this folder, once no other worker uses it: a worker whose host was killed lives on for a
/// moment. The folder stays locked while the returned file is open. `None` if another worker still
/// uses it after [`OTHERS_WITHIN`].
fn wait_for_others(folder: &Path) -> io::Result<Option<File>> {
    let begun = Instant::now();
    loop {
        private_folder(folder)?;
        let (opened, path) = private::open_folder_lock(folder)?;
        let is_locked = match opened.try_lock() {
            Err(TryLockError::WouldBlock) => false,
            // If the file system has no locks, no worker can be waited for.
            _ => true,
        };
        // The previous holder may have removed the folder after it was opened here.
        let is_there = || io::Result::Ok(facts::behind(&path)?.identity == facts::of(&opened)?.identity);
        if is_locked && is_there().unwrap_or(false) {
            return Ok(Some(opened));
        }
        if begun.elapsed() >= OTHERS_WITHIN {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Finishes commits that an earlier worker was killed in.
fn finish_begun_commits(folder: &Path) {
    for scratch in folders_in(folder).iter().filter(|scratch| commit::is_begun(scratch)) {
        let until = Deadline::after(RECOVERY_WITHIN);
        let git = Git::find(std::env::var_os("PATH").as_deref(), until);
        let ended = git.and_then(|git| commit::end_begun(&git, scratch, folder, until));
        let ended = ended.and_then(|()| Ok(std::fs::remove_dir_all(scratch)?));
        if let Err(error) = ended {
            let commit = commit::begun_in(scratch);
            tracing::warn!(%error, "an interrupted change cannot be finished: {commit}; the next start tries again");
        }
    }
}

/// Removes temporary files of this and earlier workers, but not the folder itself, which is locked.
/// An unfinished commit is left to the next worker.
fn remove_old(folder: &Path) {
    for scratch in folders_in(folder).iter().filter(|scratch| !commit::is_begun(scratch)) {
        if let Err(error) = std::fs::remove_dir_all(scratch) {
            tracing::debug!(%error, "temporary files of the host cannot be removed");
        }
    }
}

/// The program, `None` until it is found, and the filters that it runs.
type GitToFind<'a> = (&'a Mutex<Option<Git>>, &'a Arc<[String]>);

fn work(shared: &(Mutex<Jobs>, Condvar), folder: &Path, git: GitToFind<'_>, limits: FileLimits) {
    while let Some(WaitingJob { number, job, place, until }) = next_job(shared) {
        let after_panic = report_after_panic(&job.work);
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            answer((job, until), folder, git, limits)
        }));
        let report = done.unwrap_or(after_panic);
        let mut line = crate::wire::rpc::to_json(&JobReport { number, report });
        line.push(b'\n');
        let mut stdout = io::stdout().lock();
        if stdout.write_all(&line).and_then(|()| stdout.flush()).is_err() {
            // The host is gone, and the guard ends this process.
            return;
        }
        drop(stdout);
        // The report of a job that waits for this one comes after this one's.
        lock(&shared.0).end(&place);
        shared.1.notify_one();
    }
}

/// Returns the report for work that may have panicked midway.
fn report_after_panic(work: &GitWork) -> GitReport {
    match work {
        GitWork::Revert { files, reported, .. } => {
            let unknown = RevertOutcome::Unknown(PANICKED.to_owned());
            GitReport::Reverted(vec![unknown; files.len() + reported.len()])
        }
        _ => GitReport::Failed(PANICKED.to_owned()),
    }
}

fn answer(
    (job, until): (GitJob, Deadline),
    folder: &Path,
    (git, filters): GitToFind<'_>,
    limits: FileLimits,
) -> GitReport {
    if let Err(late) = until.check() {
        return GitReport::Failed(format!("{late}: an earlier job is not finished"));
    }
    let known = lock(git).clone();
    let git = match known.map_or_else(|| Git::find(std::env::var_os("PATH").as_deref(), until), Ok) {
        Ok(found) => {
            let found = found.running(Arc::clone(filters));
            *lock(git) = Some(found.clone());
            found
        }
        Err(error @ GitError::Missing(_)) => return GitReport::Unusable(error.to_string()),
        Err(error) => return GitReport::Failed(error.to_string()),
    };
    carry_out(&git, limits, job, folder, until)
}

/// Runs a job with this program.
pub fn carry_out(git: &Git, limits: FileLimits, job: GitJob, folder: &Path, until: Deadline) -> GitReport {
    let found = || {
        let find = || Repository::find(git, &job.directories, folder, until);
        match find() {
            // The repository may have been removed during the search.
            Err(NoRepository::Failed(error)) => match find() {
                Err(NoRepository::None) => Err(NoRepository::None),
                _ => Err(NoRepository::Failed(error)),
            },
            found => found,
        }
    };
    let mut repository = match found() {
        Ok(repository) => repository,
        Err(NoRepository::None) => return GitReport::NoRepository,
        Err(NoRepository::Unusable(why)) => return GitReport::Unusable(why),
        Err(NoRepository::Failed(error)) => return GitReport::Failed(error.to_string()),
    };
    repository.limits = limits;
    match do_in(&mut repository, job.work) {
        Ok(report) => {
            repository.release();
            report
        }
        // The repository existed when the job began.
        Err(error) => match found() {
            Err(NoRepository::None) => GitReport::NoRepository,
            _ => GitReport::Failed(error.to_string()),
        },
    }
}

fn do_in(repository: &mut Repository, work: GitWork) -> Result<GitReport, GitError> {
    Ok(match work {
        GitWork::Checkpoint { namespace, number, last, since, reported } => {
            let checkpoint = checkpoints::checkpoint(repository, (&namespace, number), last.as_ref())?;
            let compared = since.iter().map(|before| {
                // `None` is reported if the comparison fails; the host can request it again.
                checkpoints::compare(repository, before, &checkpoint).ok()
            });
            let since = compared.collect();
            let incomparable = incomparable::incomparable(repository, reported).unwrap_or_else(|error| {
                tracing::warn!(%error, "changes of ignored files are not shown, because git cannot list them");
                Vec::new()
            });
            GitReport::Checkpointed { root: repository.uri(), checkpoint, since, incomparable }
        }
        GitWork::Compare { before, after } => {
            GitReport::Compared(checkpoints::compare(repository, &before, &after)?)
        }
        GitWork::Status { base, files, touched } => {
            let wanted = (files, touched.as_deref());
            let look =
                |repository: &Repository| status::repository_status(repository, base.as_deref(), wanted);
            GitReport::Status(Box::new(repository.examine(look)?))
        }
        GitWork::Import { namespace, checkpoints, contents } => {
            checkpoints::copy_checkpoints(repository, &namespace, (&checkpoints, &contents))?;
            GitReport::Done
        }
        GitWork::RemoveCheckpoints { namespace } => {
            checkpoints::remove_all(repository, &namespace)?;
            GitReport::Done
        }
        GitWork::Commit { message, shown, staged_retained: (namespace, number) } => {
            commit::commit(repository, &message, &shown, (&namespace, number))?
        }
        GitWork::Read { content, file } => match contents::content_of(repository, &content, &file) {
            Ok(content) => GitReport::Content(Some(BASE64_STANDARD.encode(content))),
            // Git's answer about an object that is no longer in the repository, or too large.
            Err(GitError::Beyond(why) | GitError::Failed { trouble: why, status: Some(_) })
                if !why.to_lowercase().contains("out of memory") =>
            {
                tracing::debug!(why, "a content cannot be read");
                GitReport::Content(None)
            }
            Err(error) => return Err(error),
        },
        GitWork::Revert { files, reported, below, own, checkpoint_first, bytes_retained } => {
            if let Some((namespace, number)) = checkpoint_first {
                checkpoints::checkpoint(repository, (&namespace, number), None)?;
            }
            let folders = reverting::folders(&below, &own);
            let bytes_retained =
                bytes_retained.as_ref().map(|(namespace, number)| (namespace.as_str(), *number));
            let mut outcomes = reverting::revert(repository, &files, &folders, bytes_retained)?;
            outcomes.extend(reverting::revert_reported(&reported, &folders, |_, refusal| match refusal {
                PathRefusal::Changed => reverting::CHANGED_SINCE.to_owned(),
                refusal => refusal.to_string(),
            }));
            GitReport::Reverted(outcomes)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use serde_json::json;

    use super::*;

    fn place(directory: &str, work: GitWork) -> JobPlace {
        JobPlace::of(&GitJob { directories: vec![directory.to_owned()], within_ms: 0, work })
    }

    #[test]
    fn job_that_changes_files_conflicts_with_all_jobs_above_and_below_its_folder() {
        let commit = |directory| {
            let staged_retained = (String::new(), 1);
            place(directory, GitWork::Commit { message: String::new(), shown: Vec::new(), staged_retained })
        };
        let look = |directory| place(directory, GitWork::Status { base: None, files: false, touched: None });
        let changes = commit("file:///a/b%2Bc");
        for other in ["file:///a/b%2Bc", "file:///a/b+c", "file:///a/b+c/d", "file:///a", "file:///"] {
            assert!(changes.conflicts_with(&look(other)) && look(other).conflicts_with(&changes), "{other}");
        }
        for other in ["file:///a/b", "file:///a/b+cd", "file:///b"] {
            assert!(!changes.conflicts_with(&look(other)), "{other}");
        }
    }

    #[test]
    fn checkpoints_of_a_repository_and_of_a_folder_in_it_are_taken_one_after_the_other() {
        let checkpoint = |directory| {
            let (namespace, since, reported) = (String::new(), Vec::new(), Vec::new());
            place(directory, GitWork::Checkpoint { namespace, number: 1, last: None, since, reported })
        };
        let look = place("file:///a", GitWork::Status { base: None, files: false, touched: None });
        assert!(checkpoint("file:///a").conflicts_with(&checkpoint("file:///a/b")));
        assert!(checkpoint("file:///a/b").conflicts_with(&checkpoint("file:///a")));
        assert!(!checkpoint("file:///a").conflicts_with(&checkpoint("file:///b")));
        assert!(!checkpoint("file:///a").conflicts_with(&look));
    }

    #[test]
    fn queued_job_past_its_deadline_fails_while_the_job_before_it_continues() {
        let shared = (Mutex::new(Jobs::default()), Condvar::new());
        let add = |number, within_ms, work| {
            let job = GitJob { directories: vec!["file:///a".to_owned()], within_ms, work };
            lock(&shared.0).add(NumberedJob { number, job });
        };
        let staged_retained = (String::new(), 1);
        add(1, 60_000, GitWork::Commit { message: String::new(), shown: Vec::new(), staged_retained });
        add(2, 100, GitWork::RemoveCheckpoints { namespace: String::new() });
        add(3, 60_000, GitWork::RemoveCheckpoints { namespace: String::new() });
        let commit = next_job(&shared).unwrap();
        let late = next_job(&shared).unwrap();
        assert_eq!((commit.number, late.number), (1, 2));
        assert!(commit.until.check().is_ok());
        let no_git = (&Mutex::new(None), &Arc::from([]));
        let report = answer((late.job, late.until), Path::new("/"), no_git, FileLimits::default());
        assert!(matches!(&report, GitReport::Failed(why) if why.contains("100 ms")), "{report:?}");
        let mut jobs = lock(&shared.0);
        jobs.end(&late.place);
        assert!(jobs.take().is_none(), "the commit still runs");
        jobs.end(&commit.place);
        assert_eq!(jobs.take().map(|job| job.number), Some(3));
    }

    #[test]
    fn interrupted_commit_that_cannot_be_finished_is_kept_and_others_are_finished() {
        let top = tempfile::tempdir().unwrap();
        let (folder, root) = (top.path().join("work"), top.path().join("repository"));
        assert!(Command::new("git").args(["init", "-q"]).arg(&root).status().unwrap().success());
        let (file, lock) = (top.path().join("file"), root.join(".git/index.lock"));
        for path in [&file, &lock] {
            std::fs::write(path, "").unwrap();
        }
        let known = facts::at(&lock).unwrap().identity;
        // The lock of a file in a file cannot be examined.
        let locks = [file.join("index"), root.join(".git/index"), file.join("index")];
        for (number, index) in locks.iter().enumerate() {
            let scratch = folder.join(number.to_string());
            std::fs::create_dir_all(&scratch).unwrap();
            let record = json!({ "root": root, "locks": [[index, known]], "commit": "0" });
            std::fs::write(scratch.join("begun-commit"), record.to_string()).unwrap();
        }
        finish_begun_commits(&folder);
        remove_old(&folder);
        assert!(!lock.exists());
        let mut left = folders_in(&folder);
        left.sort();
        assert_eq!(left, [folder.join("0"), folder.join("2")]);
    }
}
