//! Cost of the checkpoint before a turn, compared with `git status` in the same run.
//!
//! Owns: a clone of the repository that this is built from, and one of many files; and what is done
//! in either.
//! Never: counts the start of the process that runs git, which happens once.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ahp_sidecar::files::uris::uri_of;
use ahp_sidecar::git::large::FileLimits;
use ahp_sidecar::git::program::{Deadline, Git};
use ahp_sidecar::git::worker::carry_out;
use ahp_sidecar::host::effects::{Checkpoint, GitJob, GitReport, GitWork};

use super::stored::folder;
use super::{median, milliseconds, Outcome, Table};

/// Number of files in the large repository, and files per folder.
const MANY: usize = 100_000;
const IN_A_FOLDER: usize = 100;
/// Repetitions of each measurement.
const TIMES: usize = 15;
/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(120);

/// Measures all of it.
pub fn measure(table: &mut Table) -> Outcome<()> {
    let folder = folder()?;
    let top = folder.path().canonicalize()?;
    let here = top.join("here");
    let here_name = here.to_str().ok_or("a path that is no text")?;
    git(&top, &["clone", "-q", "--no-hardlinks", env!("CARGO_MANIFEST_DIR"), here_name])?;
    rows(table, "this repository", &top, &here, "30 ms")?;
    let large = top.join("large");
    for number in 0..MANY {
        let path = large.join(format!("{}/{number}", number / IN_A_FOLDER));
        if number % IN_A_FOLDER == 0 {
            fs::create_dir_all(path.parent().ok_or("a path without a folder")?)?;
        }
        fs::write(path, format!("{number}\n"))?;
    }
    git(&large, &["init", "-q"])?;
    git(&large, &["add", "-A"])?;
    git(&large, &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x"])?;
    rows(table, "100,000 files", &top, &large, "300 ms")
}

fn rows(table: &mut Table, which: &str, top: &Path, root: &Path, aim: &str) -> Outcome<()> {
    let edited = root.join("edited");
    let status = || git(root, &["status", "--porcelain"]);
    status()?;
    let program = Git::find(std::env::var_os("PATH").as_deref(), Deadline::after(LONG))?;
    let mut last: Option<Checkpoint> = None;
    let (mut kept, mut looked, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    let mut seen_in_part = Vec::new();
    for number in 0..TIMES as u64 {
        fs::write(&edited, format!("{number}\n"))?;
        looked.push(timed(status)?);
        let ask = |work| {
            let job = GitJob { directories: vec![uri_of(root)], within_ms: 0, work };
            carry_out(&program, FileLimits::default(), job, &top.join("scratch"), Deadline::after(LONG))
        };
        let start = Instant::now();
        let work = GitWork::Checkpoint {
            namespace: "k".to_owned(),
            number,
            last: last.take(),
            since: Vec::new(),
            reported: Vec::new(),
        };
        last = match ask(work) {
            GitReport::Checkpointed { checkpoint, .. } => Some(checkpoint),
            other => return Err(format!("not kept: {other:?}").into()),
        };
        kept.push(start.elapsed());
        for (touched, times) in [(None, &mut seen), (Some(vec![uri_of(&edited)]), &mut seen_in_part)] {
            fs::write(&edited, format!("{number}, {}\n", touched.is_some()))?;
            let start = Instant::now();
            match ask(GitWork::Status { base: None, files: true, touched }) {
                GitReport::Status(_) => times.push(start.elapsed()),
                other => return Err(format!("not seen: {other:?}").into()),
            }
        }
    }
    table.row(&format!("a folder kept before a turn, {which}"), milliseconds(median(kept)), aim, "")?;
    table.row("  `git status` there", milliseconds(median(looked)), "", "")?;
    table.row("  what is not committed found after one edit", milliseconds(median(seen)), "", "")?;
    let edited = "    where the file system says which file";
    table.row(edited, milliseconds(median(seen_in_part)), "50 ms", "")
}

fn timed(mut work: impl FnMut() -> Outcome<()>) -> Outcome<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn git(folder: &Path, arguments: &[&str]) -> Outcome<()> {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(folder).stdout(Stdio::null());
    match git.status()?.success() {
        true => Ok(()),
        false => Err(format!("git {arguments:?} has failed").into()),
    }
}
