//! The tree of a repository's folder, made with a copy of the user's index.
//!
//! The user's index knows most files and their modification times, so only files changed since are
//! added to the copy.
//!
//! Owns: the copy, the output of `git status`, and the limits on new files.
//! Never: writes the user's index, or stores anything but regular files and links.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::flags::FlaggedFile;
use super::isolation::private_folder;
use super::large::{
    open_regular, version_in, version_of, LargeEntry, LargeFiles, Versions, WantedContents, IN_TREE,
};
use super::program::{GitError, GitRun};
use super::repository::Repository;
use super::scan::StatusScope;
use super::settings;
use crate::os::facts;
use crate::os::paths::from_bytes;

/// Maximum number of untracked files whose contents are checkpointed; for further ones only names
/// are.
pub const UNTRACKED_MAX: usize = 2000;

/// Maximum number of files that are checkpointed by name only; with more, the checkpoint fails.
const NAMES_MAX: usize = 10_000;

/// Maximum size of an index that is copied, in bytes: that of some 10 million files.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// Number of bytes of an index that are copied before the deadline is checked again.
const COPIED_AT_ONCE: u64 = 16 << 20;

/// Maximum number of attempts to add files that change while they are read.
pub const TRIES: usize = 3;

/// Maximum number of files that git may refuse; with more, the cause is not in the files.
const REFUSED_MAX: usize = 16;

/// Arguments of `git status`.
pub const STATUS: [&str; 7] = [
    "status",
    "--porcelain=v2",
    "-z",
    "--branch",
    "--untracked-files=all",
    "--ignore-submodules=all",
    "--no-renames",
];

/// A private folder for temporary files; dropping it removes them.
#[derive(Debug)]
pub struct Scratch {
    /// Path of the folder.
    pub path: PathBuf,
}

impl Scratch {
    /// Makes a new folder below this one.
    pub fn new(below: &Path) -> io::Result<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = below.join(format!("{}-{number}", std::process::id()));
        private_folder(below)?;
        private_folder(&path)?;
        Ok(Self { path })
    }

    /// Writes a file in the folder and opens it for reading.
    pub fn file(&self, name: &str, content: &[u8]) -> io::Result<File> {
        let path = self.path.join(name);
        File::create(&path)?.write_all(content)?;
        File::open(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::debug!(%error, "temporary files of the host cannot be removed");
        }
    }
}

/// A copy of the user's index, brought up to date.
#[derive(Debug)]
pub struct CopiedIndex<'a> {
    repository: &'a Repository,
    path: PathBuf,
    /// Set if the copy replaces the user's index in the end.
    is_to_stay: bool,
}

/// Output of `git status`.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Id of the commit that is checked out; `None` before the first commit.
    pub head: Option<String>,
    /// Checked-out branch; `None` if `HEAD` is detached.
    pub branch: Option<String>,
    /// Set if no branch is checked out.
    pub is_detached: bool,
    /// Upstream branch; `None` if none is set.
    pub upstream: Option<String>,
    /// Number of commits that only this branch has, and that only the upstream has; `None` without
    /// an upstream.
    pub ahead_behind: Option<(u64, u64)>,
    /// Number of files that differ from the commit.
    pub uncommitted: u64,
    /// Set if a file has merge conflicts.
    pub has_conflicts: bool,
    /// Files in the folder that differ from the index.
    pub changed: Vec<Vec<u8>>,
    /// Untracked files.
    pub untracked: Vec<Vec<u8>>,
    /// Index entries of files that are staged or changed.
    pub entries: Vec<IndexEntry>,
}

impl Status {
    /// Returns the number of untracked files without those that are only removed from the index,
    /// which have an entry, too.
    pub(super) fn new_files(&self) -> u64 {
        let entries: HashSet<&[u8]> = self.entries.iter().map(|entry| &*entry.path).collect();
        self.untracked.iter().filter(|path| !entries.contains(&***path)).count() as u64
    }
}

/// Index entry of a file.
#[derive(Debug, Clone)]
pub struct IndexEntry {
    /// Path of the file in the repository.
    pub path: Vec<u8>,
    /// Mode in octal digits; only zeros if the index has no such file.
    pub mode: String,
    /// Object id of the content.
    pub id: String,
    /// Set if the entry differs from the commit.
    pub is_staged: bool,
}

impl<'a> CopiedIndex<'a> {
    /// Copies the user's index into the scratch folder.
    pub fn new(repository: &'a Repository) -> Result<Self, GitError> {
        let path = repository.scratch.path.join("index");
        match settings::open_followed(&repository.own.join("index")) {
            Ok(mut theirs) => {
                let mut copy = File::create(&path)?;
                if theirs.metadata()?.len() > INDEX_BYTES_MAX {
                    return Err(GitError::Beyond(
                        "the index of the repository has more than 1 GiB".to_owned(),
                    ));
                }
                let mut left = INDEX_BYTES_MAX;
                loop {
                    let copied = io::copy(&mut (&mut theirs).take(left.min(COPIED_AT_ONCE)), &mut copy)?;
                    left -= copied;
                    if copied < COPIED_AT_ONCE {
                        break;
                    }
                    repository.until.check()?;
                }
                // Git decides by the index's modification time whether a file may have changed
                // since.
                copy.set_modified(theirs.metadata()?.modified()?)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self { repository, path, is_to_stay: false })
    }

    /// Makes a copy that is to become the user's own index.
    pub fn for_commit(repository: &'a Repository) -> Result<Self, GitError> {
        Ok(Self { is_to_stay: true, ..Self::new(repository)? })
    }

    /// Returns a run of git with this index.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> GitRun<'_> {
        let mut run = self.repository.run(arguments).env("GIT_INDEX_FILE", &self.path);
        if !self.is_to_stay {
            // The checksum takes half of the time to write a large index, and nothing verifies it
            // in a temporary copy.
            run = run.set(&[(OsString::from("index.skipHash"), OsString::from("true"))]);
        }
        run
    }

    /// Runs `git status`.
    pub fn status(&self) -> Result<Status, GitError> {
        Ok(read_status(&self.run(STATUS).output()?))
    }

    /// Updates the copy and writes the tree of the folder.
    pub fn tree(&self, wanted: WantedContents<'_>, scope: StatusScope<'_>) -> Result<FolderTree, GitError> {
        let mut tries = 0;
        let (status, (versions, stored)) = loop {
            let status = scope.status(self.repository, |arguments| self.run(arguments), tries == 0)?;
            let is_last = tries + 1 == TRIES;
            match self.add_changed_files(&status, wanted, is_last) {
                // A file has changed its kind while it was read.
                Err(GitError::Failed { .. }) if !is_last => tries += 1,
                taken => break (status, taken?),
            }
        };
        let tree = self.run(["write-tree", "--missing-ok"]).line()?;
        Ok(FolderTree { tree, status, versions, stored })
    }

    /// Writes the tree of all files, without limits on size or number.
    pub fn whole_tree(&self, status: &Status) -> Result<String, GitError> {
        self.update(&[&status.changed[..], &status.untracked[..]].concat())?;
        self.run(["write-tree"]).line()
    }

    /// Makes git examine these files, too, although they are marked assume-unchanged or
    /// skip-worktree.
    pub fn unhide(&self, flagged: &[FlaggedFile]) -> Result<(), GitError> {
        let paths = |is_meant: fn(&FlaggedFile) -> bool| -> Vec<&Vec<u8>> {
            flagged.iter().filter(|file| is_meant(file)).map(|file| &file.entry.path).collect()
        };
        self.change(
            &["--no-assume-unchanged", "--stdin"],
            &nul_terminated(paths(|file| file.is_assumed_unchanged)),
        )?;
        self.change(&["--no-skip-worktree", "--stdin"], &nul_terminated(paths(|file| file.is_elsewhere)))
    }

    fn change(&self, how: &[&str], input: &[u8]) -> Result<(), GitError> {
        if input.is_empty() {
            return Ok(());
        }
        let run = self.run(["update-index", "-z"]).with(how).reads(self.repository.input(input)?);
        run.output().map(drop)
    }

    /// Returns the path of the copy.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn update(&self, paths: &[Vec<u8>]) -> Result<(), GitError> {
        // Below a folder that has become a link, no file exists for git, which refuses to follow
        // links. A file that has become a folder is gone, too; git does not notice that for a file
        // with conflicts.
        let root = &self.repository.root;
        let mut is_link = HashMap::new();
        let (gone, there): (Vec<_>, Vec<_>) = paths
            .iter()
            .partition(|path| is_behind_link(root, path, &mut is_link) || is_no_content(root, path));
        self.remove(gone)?;
        self.change(&["--add", "--remove", "--replace", "--stdin"], &nul_terminated(there))
    }

    /// Adds these files as they are, and returns those that git refuses: their bytes are not in the
    /// encoding that an attribute names, or a link has the name of a file that git obeys.
    fn update_accepted(&self, paths: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, GitError> {
        let mut refused = Vec::new();
        let mut parts = vec![paths];
        while let Some(part) = parts.pop() {
            match (self.update(part), part) {
                (Err(GitError::Failed { .. }), [path]) if refused.len() < REFUSED_MAX => {
                    refused.push(path.clone());
                }
                (Err(GitError::Failed { .. }), [_, _, ..]) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                (updated, _) => updated?,
            }
        }
        Ok(refused)
    }

    /// Removes files from the index, whether or not they exist in the folder.
    fn remove(&self, paths: Vec<&Vec<u8>>) -> Result<(), GitError> {
        self.change(&["--force-remove", "--stdin"], &nul_terminated(paths))
    }

    /// Adds the changed files of the folder; on the last try, without those that git refuses.
    /// Returns the versions of large, refused and surplus files, and the number of bytes stored.
    fn add_changed_files(
        &self,
        status: &Status,
        wanted: WantedContents<'_>,
        is_last: bool,
    ) -> Result<(Versions, u64), GitError> {
        let ChosenFiles { left_out: mut versions, taken, large } =
            sort_changed_files(self.repository, status)?;
        let large = LargeFiles::take(self.repository, &large, status, wanted)?;
        versions.extend(large.versions);
        let refused = match is_last {
            true => self.update_accepted(&taken)?,
            false => self.update(&taken).map(|()| Vec::new())?,
        };
        let version = |path: &Vec<u8>| version_of(&self.repository.root.join(from_bytes(path)));
        versions.extend(refused.iter().filter_map(|path| Some((path.clone(), version(path)?))));
        // The index still has an earlier content of such a file.
        let gone =
            status.changed.iter().filter(|path| is_left_out(&versions, path) || refused.contains(path));
        self.remove(gone.collect())?;
        let entries: Vec<u8> = large.entries.iter().flat_map(index_line).collect();
        self.change(&["--index-info"], &entries)?;
        Ok((versions, large.stored))
    }
}

/// Tree of a folder.
#[derive(Debug)]
pub struct FolderTree {
    /// Object id of the tree.
    pub tree: String,
    /// Output of `git status` from which it was made.
    pub status: Status,
    /// Versions of large files and of surplus ones.
    pub versions: Versions,
    /// Number of bytes of large files stored for it.
    pub stored: u64,
}

/// Returns whether the content of a file is in no tree.
pub fn is_left_out(versions: &Versions, path: &[u8]) -> bool {
    versions.get(path).is_some_and(|version| !version.starts_with(IN_TREE))
}

/// Formats an entry for `git update-index -z --index-info`.
fn index_line((path, (mode, id)): (&Vec<u8>, &LargeEntry)) -> Vec<u8> {
    [format!("{mode} {id}\t").as_bytes(), path, b"\0"].concat()
}

/// Returns these paths, each terminated by a NUL.
fn nul_terminated<'a>(paths: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    paths.into_iter().flat_map(|path| [path, &b"\0"[..]].concat()).collect()
}

/// Returns whether one of the folders above a path is a symbolic link. Caches the findings in
/// `is_link`.
pub fn is_behind_link(root: &Path, path: &[u8], is_link: &mut HashMap<PathBuf, bool>) -> bool {
    let path = from_bytes(path);
    let above = Path::new(&path).ancestors().skip(1);
    above.filter(|above| !above.as_os_str().is_empty()).any(|above| {
        let look = || fs::symlink_metadata(root.join(above)).is_ok_and(|known| known.is_symlink());
        *is_link.entry(above.to_owned()).or_insert_with(look)
    })
}

/// Returns whether git stores no content for a path: a folder that is no repository, a pipe, a
/// socket or a device.
fn is_no_content(root: &Path, path: &[u8]) -> bool {
    let path = root.join(from_bytes(path));
    match fs::symlink_metadata(&path) {
        Ok(known) if known.is_dir() => !path.join(".git").exists(),
        Ok(known) => !known.is_file() && !known.is_symlink(),
        Err(_) => false,
    }
}

/// Files that differ from the index, by treatment.
#[derive(Debug, Default)]
pub struct ChosenFiles {
    /// Versions of files that are surplus or cannot be read.
    pub left_out: Versions,
    /// Files that are added as they are.
    pub taken: Vec<Vec<u8>>,
    /// Large files.
    pub large: Vec<Vec<u8>>,
}

/// Sorts the files that differ from the index.
pub fn sort_changed_files(repository: &Repository, status: &Status) -> Result<ChosenFiles, GitError> {
    let ChosenFiles { mut left_out, mut taken, mut large } = ChosenFiles::default();
    let mut is_link = HashMap::new();
    let untracked = status.untracked.iter().enumerate().map(|(at, path)| (path, at >= UNTRACKED_MAX));
    for (path, is_too_many) in status.changed.iter().map(|path| (path, false)).chain(untracked) {
        let at = repository.root.join(from_bytes(path));
        match facts::at(&at) {
            // The link leads to another file.
            Ok(_) if is_behind_link(&repository.root, path, &mut is_link) => {}
            Ok(known) if known.is_file() => {
                if is_too_many || open_regular(&at).is_err() {
                    left_out.insert(path.clone(), version_in(&known));
                    continue;
                }
                if known.size > repository.limits.large {
                    large.push(path.clone());
                    continue;
                }
            }
            // A folder or a pipe has taken the file's name, so the file no longer exists.
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(_) => continue,
        }
        taken.push(path.clone());
    }
    if left_out.len() > NAMES_MAX {
        let count = left_out.len();
        return Err(GitError::Beyond(format!(
            "{count} new files are too many for a checkpoint (limit {NAMES_MAX})"
        )));
    }
    Ok(ChosenFiles { left_out, taken, large })
}

/// Adds files to a small separate index and returns its entries: mode and object id by path. The
/// index starts with `entries`, in the format of `git update-index --index-info`.
pub fn small_index(
    repository: &Repository,
    entries: &[u8],
    taken: &[Vec<u8>],
) -> Result<BTreeMap<Vec<u8>, (String, String)>, GitError> {
    if taken.is_empty() {
        return Ok(BTreeMap::new());
    }
    let path = repository.scratch.path.join("small-index");
    let index = CopiedIndex { repository, path, is_to_stay: false };
    index.change(&["--index-info"], entries)?;
    index.update(taken)?;
    let output = index.run(["ls-files", "--stage", "-z"]).output()?;
    let found = output.split(|byte| *byte == 0).filter_map(|entry| {
        let (facts, path) = listed(entry)?;
        let (mode, id) = facts.split_once(' ')?;
        Some((path.to_vec(), (mode.to_owned(), id.split(' ').next()?.to_owned())))
    });
    Ok(found.collect())
}

/// Splits an entry of `git ls-files` or `git ls-tree` into its facts and its path.
pub fn listed(entry: &[u8]) -> Option<(String, &[u8])> {
    let tab = entry.iter().position(|byte| *byte == b'\t')?;
    Some((String::from_utf8_lossy(&entry[..tab]).into_owned(), &entry[tab + 1..]))
}

/// Parses the output of `git status` with [`STATUS`].
pub fn read_status(output: &[u8]) -> Status {
    let mut status = Status::default();
    for entry in output.split(|byte| *byte == 0) {
        match entry {
            [b'#', b' ', header @ ..] => read_header(&mut status, &String::from_utf8_lossy(header)),
            // A nested repository ends with a slash and is skipped.
            [b'?', b' ', path @ ..] if !path.ends_with(b"/") => status.untracked.push(path.to_vec()),
            [b'1', b' ', in_index, in_folder, b' ', rest @ ..] => {
                status.uncommitted += 1;
                status.entries.extend(entry_in(rest, *in_index != b'.'));
                // Six words precede the path: the submodule state, three modes, two ids.
                if let Some(path) = behind(rest, 6).filter(|_| *in_folder != b'.') {
                    status.changed.push(path.to_vec());
                }
            }
            [b'u', b' ', _, _, b' ', rest @ ..] => {
                status.uncommitted += 1;
                status.has_conflicts = true;
                status.changed.extend(behind(rest, 8).map(<[u8]>::to_vec));
            }
            _ => {}
        }
    }
    status.uncommitted += status.new_files();
    status
}

/// Parses a changed file's line of `git status` after its first words: submodule state; modes in
/// the commit, the index and the folder; object ids of the first two; path.
fn entry_in(rest: &[u8], is_staged: bool) -> Option<IndexEntry> {
    let path = behind(rest, 6)?.to_vec();
    let facts = String::from_utf8_lossy(&rest[..rest.len() - path.len()]).into_owned();
    let mut facts = facts.split(' ').map(str::to_owned);
    let mode = facts.nth(2)?;
    Some(IndexEntry { path, mode, id: facts.nth(2)?, is_staged })
}

fn read_header(status: &mut Status, header: &str) {
    match header.split_once(' ') {
        Some(("branch.oid", oid)) => status.head = (oid != "(initial)").then(|| oid.to_owned()),
        Some(("branch.head", name)) => {
            status.is_detached = name == "(detached)";
            status.branch = (!status.is_detached).then(|| name.to_owned());
        }
        Some(("branch.upstream", name)) => status.upstream = Some(name.to_owned()),
        Some(("branch.ab", counts)) => {
            let mut counts = counts.split(' ').map(|count| count.get(1..)?.parse().ok());
            if let (Some(Some(ahead)), Some(Some(behind))) = (counts.next(), counts.next()) {
                status.ahead_behind = Some((ahead, behind));
            }
        }
        _ => {}
    }
}

fn behind(mut text: &[u8], words: usize) -> Option<&[u8]> {
    for _ in 0..words {
        text = &text[text.iter().position(|byte| *byte == b' ')? + 1..];
    }
    Some(text)
}
