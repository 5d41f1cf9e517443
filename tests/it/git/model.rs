//! Differences found by git in a folder, compared with those of full copies of it.
//!
//! Owns: folders in which anything may have happened, and a model that knows each file's bytes.
//! Never: starts a host: what keeps, compares and takes back is asked directly.

use ahp_sidecar::state::edits::FileDiff;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ahp_sidecar::files::uris::path_of;
use ahp_sidecar::git::large::FileLimits;
use ahp_sidecar::git::program::{Deadline, Git};
use ahp_sidecar::git::worker::carry_out;
use ahp_sidecar::host::effects::{
    Checkpoint, GitContent, GitJob, GitReport, GitRevert, GitWork, RepositoryStatus, RevertOutcome,
};
use base64::prelude::{Engine, BASE64_STANDARD};
use proptest::prelude::*;

use super::histories::brief;
use super::{uri, Repository};

/// Some of them cannot be there at the same time: where one of two is made, the other one goes.
pub const NAMES: [&str; 10] =
    ["a", "b.crlf", "dir/c", "dir/d e\n", "dir/sub/f", "g", "-h", "\u{e4}*[x]", "g/x", "dir"];

/// Change of files in the folder.
#[derive(Debug, Clone)]
pub enum Deed {
    Write(usize, u8),
    Binary(usize),
    Remove(usize),
    Rename(usize, usize),
    Link(usize),
    Program(usize),
    Ignored,
    Stage,
    Commit,
    /// The user goes elsewhere: see [`MOVES`].
    Move(usize),
    /// Rewrites a file with the same content, which changes only its times.
    Touch(usize),
    /// A large file, of one of [`LARGE_BYTES`].
    Large(usize, usize),
    /// Something without content: a pipe, or else a socket.
    Special(usize, bool),
    /// Git is told to take it as unchanged.
    Flag(usize),
}

/// Size above which the content of a file is not kept in these tests, in bytes; a file is large
/// above a tenth of it.
pub const LIMIT: u64 = 20_000;

/// Sizes of large files; the last one is not kept.
const LARGE_BYTES: [usize; 3] = [2_500, 12_000, 25_000];

/// Tells whether a file is too large for a checkpoint.
pub fn is_beyond(bytes: &[u8]) -> bool {
    bytes.len() as u64 > LIMIT
}

pub fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let name = || 0..NAMES.len();
    let deed = prop_oneof![
        4 => (name(), any::<u8>()).prop_map(|(name, text)| Deed::Write(name, text)),
        1 => name().prop_map(Deed::Binary),
        2 => name().prop_map(Deed::Remove),
        2 => (name(), name()).prop_map(|(from, to)| Deed::Rename(from, to)),
        1 => name().prop_map(Deed::Link),
        1 => name().prop_map(Deed::Program),
        1 => Just(Deed::Ignored),
        1 => Just(Deed::Stage),
        1 => Just(Deed::Commit),
        1 => name().prop_map(Deed::Touch),
        1 => (0..MOVES.len()).prop_map(Deed::Move),
        2 => (name(), 0..LARGE_BYTES.len()).prop_map(|(name, size)| Deed::Large(name, size)),
        1 => (name(), any::<bool>()).prop_map(|(name, is_pipe)| Deed::Special(name, is_pipe)),
    ];
    proptest::collection::vec(deed, 0..8)
}

/// Deeds, and flags of the index: what is not committed does not show files with flags.
fn deeds_and_flags() -> impl Strategy<Value = Vec<Deed>> {
    let flag = proptest::option::weighted(0.4, (0..8_usize, 0..NAMES.len()));
    (deeds(), flag).prop_map(|(mut deeds, flag)| {
        if let Some((at, name)) = flag {
            deeds.insert(at.min(deeds.len()), Deed::Flag(name));
        }
        deeds
    })
}

/// Ways in which the user makes another commit the one that is checked out, as far as they can be
/// gone.
pub const MOVES: [&[&str]; 6] = [
    &["reset", "-q", "--hard", "HEAD~1"],
    &["reset", "-q", "--soft", "HEAD~1"],
    &["reset", "-q", "HEAD~1"],
    &["checkout", "-q", "-f", "-B", "aside", "HEAD~1"],
    &["checkout", "-q", "--detach"],
    &["rebase", "-q", "--force-rebase", "HEAD~1"],
];

/// Settings without which a filter of the user's would have something to do.
pub const NO_FILTER: [&str; 6] =
    ["-c", "filter.lfs.clean=", "-c", "filter.lfs.smudge=", "-c", "filter.lfs.required=false"];

/// How a repository is.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Plain,
    NoCommits,
    Detached,
    Conflict,
    Worktree,
    Submodule,
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Plain),
        Just(Kind::NoCommits),
        Just(Kind::Detached),
        Just(Kind::Conflict),
        Just(Kind::Worktree),
        Just(Kind::Submodule)
    ]
}

pub fn made(kind: Kind) -> Repository {
    let mut repository = Repository::empty();
    repository.limit = Some(LIMIT);
    repository.write(".gitattributes", "*.crlf text eol=crlf\n* filter=lfs\n");
    repository.write(".gitignore", "ignored\n");
    repository.git(&["config", "filter.lfs.clean", "false"]);
    for (number, name) in NAMES.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
        do_in(&repository, &Deed::Write(number, 7), name);
    }
    if matches!(kind, Kind::NoCommits) {
        return repository;
    }
    repository.commit();
    match kind {
        Kind::Detached => drop(repository.git(&["checkout", "-q", "--detach"])),
        Kind::Conflict => repository.merge_with_conflict(),
        Kind::Worktree => {
            let other = repository.home.join("other tree");
            repository.git(&["worktree", "add", "-q", "-b", "other", other.to_str().unwrap()]);
            repository.root = other;
        }
        Kind::Submodule => {
            let below = Repository::with(&[("x", "1\n")]);
            repository.git(&["submodule", "--quiet", "add", below.root.to_str().unwrap(), "below"]);
            repository.commit();
        }
        _ => {}
    }
    repository
}

/// A few lines, with the ends that belong to a file of this name.
pub fn lines_of(name: &str, text: u8) -> String {
    let end = if name.ends_with(".crlf") { "\r\n" } else { "\n" };
    (0..text % 6).map(|line| format!("{}{end}", (text / 6 + line) % 5)).collect()
}

/// Returns the target of a link of this name; the one of `dir` is a folder that may exist.
pub fn target_of(name: &str) -> &'static str {
    if name == "dir" {
        "g"
    } else {
        "nowhere"
    }
}

/// Removes anything at the path, and files in the place of its parent folders.
fn clear_path(repository: &Repository, path: &Path) {
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|known| !known.is_dir());
    let above = path.ancestors().skip(1).take_while(|above| *above != repository.root);
    for taken in above.filter(|above| is_file(above)) {
        fs::remove_file(taken).unwrap();
    }
    if is_file(path) {
        fs::remove_file(path).unwrap();
    } else if path.is_dir() {
        fs::remove_dir_all(path).unwrap();
    }
}

fn do_in(repository: &Repository, deed: &Deed, name: &str) {
    let path = repository.path(name);
    let is_file = fs::symlink_metadata(&path).is_ok_and(|known| known.is_file());
    let clear = |path: &Path| clear_path(repository, path);
    match deed {
        Deed::Write(_, text) => {
            clear(&path);
            repository.write(name, lines_of(name, *text));
        }
        // What is said to be text is no other.
        Deed::Binary(_) if !name.ends_with(".crlf") => {
            clear(&path);
            repository.write(name, b"\0\xff\n\0");
        }
        Deed::Remove(_) => clear(&path),
        Deed::Rename(_, to) => {
            let to = repository.path(NAMES[*to]);
            let is_within = path.starts_with(&to) || to.starts_with(&path);
            let is_crlf = name.ends_with(".crlf") || to.ends_with("b.crlf");
            if fs::symlink_metadata(&path).is_ok() && !is_crlf && !is_within {
                clear(&to);
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::rename(&path, to).unwrap();
            }
        }
        Deed::Link(_) if !name.ends_with(".crlf") => {
            clear(&path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target_of(name), path).unwrap();
        }
        Deed::Large(_, size) if !name.ends_with(".crlf") => {
            static WRITTEN: AtomicU64 = AtomicU64::new(0);
            clear(&path);
            // No two of them are the same: one that is not kept is told from others by its times.
            let mut content = format!("{} ", WRITTEN.fetch_add(1, Ordering::Relaxed)).into_bytes();
            content.resize(LARGE_BYTES[*size], b'x');
            repository.write(name, content);
        }
        Deed::Special(_, is_pipe) => {
            clear(&path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if *is_pipe {
                assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            } else {
                drop(UnixListener::bind(&path).unwrap());
            }
        }
        Deed::Flag(_) => {
            repository.try_git_in(&repository.root, &["update-index", "--assume-unchanged", name]);
        }
        Deed::Program(_) if is_file => {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Deed::Ignored => repository.write("ignored", "x"),
        Deed::Touch(_) if is_file => {
            let content = fs::read(&path).unwrap();
            fs::write(path, content).unwrap();
        }
        _ => {}
    }
}

pub fn do_all(repository: &Repository, deeds: &[Deed]) {
    // The filter is the user's own, and has nothing to do here. Where a pipe has the name of a file
    // git adds the others; where that file has conflicts git does not commit.
    let user = |arguments: &[&str]| {
        let all = [&["-c", "filter.lfs.clean="], arguments].concat();
        repository.try_git_in(&repository.root, &all);
    };
    let add = || user(&["add", "-A", "--ignore-errors"]);
    for deed in deeds {
        match deed {
            Deed::Stage => add(),
            Deed::Commit => {
                add();
                user(&["commit", "-q", "--allow-empty", "-m", "x"]);
            }
            // Where the repositories below are listed in no file that is committed, that file is a
            // new one, and no copy has it.
            Deed::Move(_) if repository.path(".gitmodules").exists() => {}
            Deed::Move(how) => {
                repository.try_git_in(&repository.root, &[&NO_FILTER, MOVES[*how]].concat());
            }
            Deed::Write(name, _)
            | Deed::Binary(name)
            | Deed::Remove(name)
            | Deed::Rename(name, _)
            | Deed::Link(name)
            | Deed::Touch(name)
            | Deed::Large(name, _)
            | Deed::Special(name, _)
            | Deed::Flag(name)
            | Deed::Program(name) => do_in(repository, deed, NAMES[*name]),
            Deed::Ignored => do_in(repository, deed, ""),
        }
    }
}

/// Each file's mode and bytes, as git would say the mode.
pub type FullCopy = BTreeMap<String, (u32, Vec<u8>)>;

pub fn copy_of(repository: &Repository) -> FullCopy {
    copy_in(&repository.root)
}

pub fn copy_in(root: &Path) -> FullCopy {
    let mut copy = FullCopy::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let known = fs::symlink_metadata(&path).unwrap();
            if [".git", "ignored", "below", ".gitmodules"].contains(&name.as_str()) {
                continue;
            }
            if known.is_dir() {
                folders.push(path);
            } else if known.is_symlink() {
                let to = fs::read_link(&path).unwrap().to_str().unwrap().as_bytes().to_vec();
                copy.insert(name, (0o120_000, to));
            } else if known.is_file() {
                let mode = if known.permissions().mode() & 0o100 != 0 { 0o100_755 } else { 0o100_644 };
                copy.insert(name, (mode, fs::read(&path).unwrap()));
            }
        }
    }
    copy
}

pub struct Asker<'a> {
    git: Git,
    repository: &'a Repository,
}

impl<'a> Asker<'a> {
    pub fn new(repository: &'a Repository) -> Self {
        Self::found_in(repository, std::ffi::OsStr::new(super::PATH))
    }

    /// With the git that is found in these folders.
    pub fn found_in(repository: &'a Repository, path: &std::ffi::OsStr) -> Self {
        let git = Git::find(Some(path), Deadline::after(Duration::from_secs(60))).unwrap();
        Self { git, repository }
    }

    pub fn ask(&self, work: GitWork) -> GitReport {
        self.ask_in(vec![uri(&self.repository.root)], work)
    }

    pub fn ask_in(&self, directories: Vec<String>, work: GitWork) -> GitReport {
        let job = GitJob { directories, within_ms: 60_000, work };
        let until = Deadline::after(Duration::from_secs(60));
        let limits = self.repository.limit.map(FileLimits::of).unwrap_or_default();
        carry_out(&self.git, limits, job, &self.repository.state, until)
    }

    pub fn checkpoint(&self, number: u64, last: Option<&Checkpoint>) -> Checkpoint {
        super::grafts::are_the_same(self.repository);
        let (namespace, last) = ("k".to_owned(), last.cloned());
        match self.ask(GitWork::Checkpoint {
            namespace,
            number,
            last,
            since: Vec::new(),
            reported: Vec::new(),
        }) {
            GitReport::Checkpointed { checkpoint, .. } => checkpoint,
            other => panic!("{other:?}"),
        }
    }

    /// Looks at the files that are not committed, where only the files of these names were touched
    /// since the last look.
    pub fn look(&self, touched: Option<Vec<&String>>) -> RepositoryStatus {
        let uri_of = |name: &String| uri(&self.repository.path(name));
        let touched = touched.map(|names| names.into_iter().map(uri_of).collect());
        match self.ask(GitWork::Status { base: None, files: true, touched }) {
            GitReport::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    pub fn compare(&self, before: &Checkpoint, after: &Checkpoint) -> Vec<FileDiff<GitContent>> {
        match self.ask(GitWork::Compare { before: before.clone(), after: after.clone() }) {
            GitReport::Compared(changes) => changes,
            other => panic!("{other:?}"),
        }
    }

    fn read(&self, content: &GitContent, file: &str) -> (u32, Vec<u8>) {
        if !content.is_stored() {
            return (content.mode, BEYOND.to_vec());
        }
        let work = GitWork::Read { content: content.clone(), file: file.to_owned() };
        match self.ask(work) {
            GitReport::Content(Some(text)) => {
                let bytes = BASE64_STANDARD.decode(text).unwrap();
                (content.mode, if is_beyond(&bytes) { BEYOND.to_vec() } else { bytes })
            }
            other => panic!("{other:?}"),
        }
    }

    /// Reads the contents of the changed files, before and after.
    fn sides(&self, changes: &[FileDiff<GitContent>]) -> (FullCopy, FullCopy) {
        let (mut before, mut after) = (FullCopy::new(), FullCopy::new());
        let name = |uri: &str| {
            let path = path_of(uri).unwrap();
            path.strip_prefix(&self.repository.root).unwrap().to_str().unwrap().to_owned()
        };
        for change in changes {
            let from = change.renamed_from.as_ref().unwrap_or(&change.file);
            if let Some(content) = &change.before {
                before.insert(name(from), self.read(content, from));
            }
            if let Some(content) = &change.after {
                after.insert(name(&change.file), self.read(content, &change.file));
            }
        }
        (before, after)
    }
}

/// Stands for the content of a file that is too large to be kept, and may have been committed all
/// the same.
const BEYOND: &[u8] = b"beyond the limit";

/// Returns the difference of two copies, on both sides, with [`BEYOND`] for files too large for a
/// checkpoint.
fn checkpointed_difference(one: &FullCopy, other: &FullCopy) -> (FullCopy, FullCopy) {
    let (mut before, mut after) = difference(one, other);
    for (_, bytes) in before.values_mut().chain(after.values_mut()) {
        if is_beyond(bytes) {
            *bytes = BEYOND.to_vec();
        }
    }
    (before, after)
}

/// Returns the difference of two copies, on both sides.
pub fn difference(one: &FullCopy, other: &FullCopy) -> (FullCopy, FullCopy) {
    let only = |one: &FullCopy, other: &FullCopy| -> FullCopy {
        let differs = one.iter().filter(|(name, file)| other.get(*name) != Some(file));
        differs.map(|(name, file)| (name.clone(), file.clone())).collect()
    };
    (only(one, other), only(other, one))
}

fn reverts_of(changes: &[FileDiff<GitContent>]) -> Vec<GitRevert> {
    let all = changes.iter().flat_map(|change| {
        let now = |file: &String, now: &Option<GitContent>, wanted: &Option<GitContent>| GitRevert {
            file: file.clone(),
            now: now.clone(),
            wanted: wanted.clone(),
            bytes_now: None,
            bytes_wanted: None,
            mode_wanted: None,
        };
        match &change.renamed_from {
            Some(from) => vec![now(&change.file, &change.after, &None), now(from, &None, &change.before)],
            None => vec![now(&change.file, &change.after, &change.before)],
        }
    });
    all.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn checkpoint_differences_equal_the_differences_of_full_copies(
        kind in kinds(),
        at_first in deeds_and_flags(),
        meanwhile in deeds_and_flags(),
        later in deeds_and_flags(),
    ) {
        let repository = made(kind);
        let asker = Asker::new(&repository);
        do_all(&repository, &at_first);
        let theirs = repository.of_the_user();
        let (first_copy, first) = (copy_of(&repository), asker.checkpoint(1, None));
        asker.look(None);
        prop_assert_eq!(repository.of_the_user(), theirs);
        do_all(&repository, &meanwhile);
        let (second_copy, second) = (copy_of(&repository), asker.checkpoint(2, Some(&first)));
        let (gone, new) = difference(&first_copy, &second_copy);
        let in_part = asker.look(Some(gone.keys().chain(new.keys()).collect()));
        prop_assert_eq!(in_part, asker.look(None));
        let changes = asker.compare(&first, &second);
        let mut sides = asker.sides(&changes);
        // Git has read it again, and nobody has kept what it was before.
        let is_same = |name: &String| {
            let file = first_copy.get(name).filter(|(_, bytes)| is_beyond(bytes));
            file.is_some() && file == second_copy.get(name)
        };
        sides.0.retain(|name, _| !is_same(name));
        sides.1.retain(|name, _| !is_same(name));
        prop_assert_eq!(sides, checkpointed_difference(&first_copy, &second_copy), "{:?}", changes);
        do_all(&repository, &later);
        let third_copy = copy_of(&repository);
        // What was changed since stays, the rest is as it was.
        let (taken, below) = (reverts_of(&changes), vec![uri(&repository.root)]);
        let report = asker.ask(GitWork::Revert {
            files: taken.clone(),
            below,
            own: Vec::new(),
            reported: Vec::new(),
            checkpoint_first: None,
            bytes_retained: Some(("k".to_owned(), 3)),
        });
        let GitReport::Reverted(outcomes) = report else { panic!("{report:?}") };
        let fourth_copy = copy_of(&repository);
        repository.has_lost_nothing(&third_copy);
        let mut wanted = third_copy.clone();
        for (file, outcome) in taken.iter().zip(&outcomes) {
            let path = path_of(&file.file).unwrap();
            let name = path.strip_prefix(&repository.root).unwrap().to_str().unwrap();
            let (now, before) = (third_copy.get(name), first_copy.get(name));
            let may = now == second_copy.get(name) || now == before;
            // Where a folder was is a file now, or the other way round.
            let is_done = matches!(outcome, RevertOutcome::Done { .. } | RevertOutcome::Already);
            let is_in_the_way =
                matches!(outcome, RevertOutcome::Refused(why) if !why.contains("changed since"));
            // A version whose content is not kept is told by its times, so a touched file is
            // another one.
            let may_be_another = now.is_some_and(|(_, bytes)| is_beyond(bytes));
            let is_right = is_done == may || is_in_the_way || (may_be_another && !is_done);
            prop_assert!(is_right, "{}: {:?}", name, outcome);
            if is_done {
                match before {
                    Some(before) => wanted.insert(name.to_owned(), before.clone()),
                    None => wanted.remove(name),
                };
            }
        }
        prop_assert_eq!(brief(&fourth_copy), brief(&wanted));
        prop_assert!(fourth_copy == wanted);
        asker.ask(GitWork::RemoveCheckpoints { namespace: "k".to_owned() });
        prop_assert_eq!(repository.our_refs(), [""; 0]);
    }
}

/// Each takes some hundred runs of git.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<u32>().ok());
    asked.map_or(24, |cases| cases / 10 + 1)
}
