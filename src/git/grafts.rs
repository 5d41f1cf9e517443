//! The tree of a large repository's folder, made without writing an index of all its files.
//!
//! The last commit has a tree already, and `git status` lists the files that differ from it. Only
//! these go through a small index, so that git converts their line endings as always; then they are
//! grafted into the trees of their folders.
//!
//! Owns: which repositories this pays for, and the trees of changed folders.
//! Never: reads the tree of a folder without changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::flags::{self, FlaggedFile};
use super::index::{
    is_left_out, small_index, sort_changed_files, ChosenFiles, CopiedIndex, FolderTree, Status, TRIES,
};
use super::large::{LargeFiles, WantedContents};
use super::program::GitError;
use super::repository::Repository;
use super::scan::StatusScope;

/// Minimum size of an index, in bytes, for which writing it takes longer than a few more runs of
/// git.
const INDEX_BYTES_MIN: u64 = 1 << 20;

const FOLDER: &[u8] = b"40000";

/// File of attributes; git reads it from the index if the folder has none.
const ATTRIBUTES: &[u8] = b".gitattributes";

/// Entry of a tree or an index: its mode and object id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    mode: Vec<u8>,
    id: String,
}

/// A folder whose entries are changed: `kept` are unchanged entries, `open` subfolders with
/// changes.
#[derive(Debug, Default)]
struct OpenFolder {
    kept: BTreeMap<Vec<u8>, TreeEntry>,
    open: BTreeMap<Vec<u8>, OpenFolder>,
}

/// Folders of the checked-out commit by path, as far as they are needed.
type CommittedFolders = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, TreeEntry>>;

/// Returns whether a repository's index is so large that grafting is cheaper than writing it.
fn is_grafting_cheaper(repository: &Repository) -> bool {
    fs::metadata(repository.own.join("index")).is_ok_and(|index| index.len() >= INDEX_BYTES_MIN)
}

/// Returns the tree of the folder, by the cheaper method.
pub fn folder_tree(
    repository: &Repository,
    wanted: WantedContents<'_>,
    scope: StatusScope<'_>,
) -> Result<FolderTree, GitError> {
    if is_grafting_cheaper(repository) {
        if let Some(found) = tree(repository, wanted, scope)? {
            return Ok(found);
        }
    }
    let index = CopiedIndex::new(repository)?;
    index.unhide(scope.flagged())?;
    index.tree(wanted, scope)
}

/// Writes the tree of the folder by grafting. Returns `None` if that is impossible: there is no
/// commit yet, there are conflicts, a name has a line break, or a flagged file is too large to be
/// checkpointed. Only an index without flags can tell whether such a file is as it was staged; then
/// git has its content.
pub fn tree(
    repository: &Repository,
    wanted: WantedContents<'_>,
    scope: StatusScope<'_>,
) -> Result<Option<FolderTree>, GitError> {
    let mut tries = 0;
    loop {
        let mut status = scope.status(repository, |arguments| repository.run(arguments), tries == 0)?;
        flags::add_to(&mut status, scope.flagged());
        match graft(repository, status, scope.flagged(), wanted) {
            // A file has changed while it was read.
            Err(GitError::Failed { .. }) if tries + 1 < TRIES => tries += 1,
            // The index of all files finds the file that git refuses.
            Err(GitError::Failed { .. }) => return Ok(None),
            done => return done,
        }
    }
}

fn graft(
    repository: &Repository,
    status: Status,
    flagged: &[FlaggedFile],
    wanted: WantedContents<'_>,
) -> Result<Option<FolderTree>, GitError> {
    let Some(head) = status.head.as_deref().filter(|_| !status.has_conflicts) else { return Ok(None) };
    let ChosenFiles { left_out: mut versions, taken, large } = sort_changed_files(repository, &status)?;
    let LargeFiles { entries: large, versions: of_large, stored } =
        LargeFiles::take(repository, &large, &status, wanted)?;
    versions.extend(of_large);
    if flagged.iter().any(|file| is_left_out(&versions, &file.entry.path)) {
        return Ok(None);
    }
    // The committed content of such a file is that of another version.
    let gone: Vec<&Vec<u8>> = status.changed.iter().filter(|path| is_left_out(&versions, path)).collect();
    let staged = status.entries.iter().filter(|entry| entry.is_staged);
    let others = taken.iter().chain(large.keys()).chain(gone.iter().copied()).map(Vec::as_slice);
    let paths: BTreeSet<&[u8]> = staged.clone().map(|entry| &*entry.path).chain(others).collect();
    if paths.iter().any(|path| path.contains(&b'\n')) {
        return Ok(None);
    }
    let folders = folders_of(repository, head, &paths)?;
    let mut root = OpenFolder::of(&folders, b"");
    let entry_of = |mode: &str, id: &str| {
        // `git status` prints six digits; trees have no leading zeros.
        let mode = mode.trim_start_matches('0');
        (!mode.is_empty()).then(|| TreeEntry { mode: mode.as_bytes().to_vec(), id: id.to_owned() })
    };
    let mut changes: BTreeMap<&[u8], Option<TreeEntry>> =
        staged.map(|entry| (&*entry.path, entry_of(&entry.mode, &entry.id))).collect();
    let attributes = folders.iter().filter_map(|(folder, entries)| {
        Some((joined(folder, ATTRIBUTES), entries.get(ATTRIBUTES).filter(|entry| entry.mode != FOLDER)?))
    });
    let mut known: BTreeMap<Vec<u8>, TreeEntry> =
        attributes.map(|(path, entry)| (path, entry.clone())).collect();
    for entry in &status.entries {
        match entry_of(&entry.mode, &entry.id) {
            Some(its) => drop(known.insert(entry.path.clone(), its)),
            None => drop(known.remove(&entry.path)),
        }
    }
    let seeds = known
        .iter()
        .map(|(path, entry)| [&entry.mode, &b" "[..], entry.id.as_bytes(), b"\t", path, b"\0"].concat());
    let found = small_index(repository, &seeds.collect::<Vec<_>>().concat(), &taken)?;
    for path in &taken {
        let entry = found.get(path).and_then(|(mode, id)| entry_of(mode, id));
        changes.insert(path, entry);
    }
    changes.extend(large.iter().map(|(path, (mode, id))| (&**path, entry_of(mode, id))));
    changes.extend(gone.into_iter().map(|path| (&**path, None)));
    // Removals come first: a new file may need the name of a removed folder.
    for (path, _) in changes.iter().filter(|(_, entry)| entry.is_none()) {
        root.set(&folders, b"", path, None);
    }
    for (path, entry) in changes.into_iter().filter(|(_, entry)| entry.is_some()) {
        root.set(&folders, b"", path, entry);
    }
    root.without_empty();
    if root.kept.is_empty() && root.open.is_empty() {
        return Ok(None);
    }
    let tree = written(repository, root)?;
    Ok(Some(FolderTree { tree, status, versions, stored }))
}

/// Returns the committed folders above these paths.
fn folders_of(
    repository: &Repository,
    head: &str,
    paths: &BTreeSet<&[u8]>,
) -> Result<CommittedFolders, GitError> {
    let mut wanted: BTreeSet<&[u8]> = BTreeSet::from([&b""[..]]);
    for path in paths {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        wanted.extend(slashes.map(|(at, _)| &path[..at]));
    }
    let mut asked = Vec::new();
    for folder in &wanted {
        asked.extend_from_slice(head.as_bytes());
        asked.push(b':');
        asked.extend_from_slice(folder);
        // A trailing slash matches only a folder.
        asked.extend_from_slice(if folder.is_empty() { b"\n" } else { b"/\n" });
    }
    let output = repository.objects("--batch", &asked)?;
    let mut rest = output.as_slice();
    let mut folders = CommittedFolders::new();
    for folder in wanted {
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return Err(misunderstood()) };
        let (line, behind) = (String::from_utf8_lossy(&rest[..end]).into_owned(), &rest[end + 1..]);
        let facts: Vec<&str> = line.split(' ').collect();
        rest = match facts[..] {
            [.., "missing"] => behind,
            [id, "tree", size] => {
                let size = size.parse::<usize>().ok().filter(|size| *size < behind.len());
                let size = size.ok_or_else(misunderstood)?;
                let entries = entries_in(&behind[..size], id.len() / 2).ok_or_else(misunderstood)?;
                folders.insert(folder.to_vec(), entries);
                &behind[size + 1..]
            }
            _ => return Err(misunderstood()),
        };
    }
    Ok(folders)
}

fn misunderstood() -> GitError {
    GitError::Beyond("the output of git about a folder cannot be parsed".to_owned())
}

/// Parses a tree in git's binary format, with ids of `id_bytes` bytes.
fn entries_in(mut tree: &[u8], id_bytes: usize) -> Option<BTreeMap<Vec<u8>, TreeEntry>> {
    let mut entries = BTreeMap::new();
    while !tree.is_empty() {
        let space = tree.iter().position(|byte| *byte == b' ')?;
        let nul = tree.iter().position(|byte| *byte == 0)?;
        let id = tree.get(nul + 1..nul + 1 + id_bytes)?;
        let id = id.iter().fold(String::new(), |id, byte| id + &format!("{byte:02x}"));
        entries.insert(tree.get(space + 1..nul)?.to_vec(), TreeEntry { mode: tree[..space].to_vec(), id });
        tree = &tree[nul + 1 + id_bytes..];
    }
    Some(entries)
}

fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match folder {
        [] => name.to_vec(),
        folder => [folder, b"/", name].concat(),
    }
}

impl OpenFolder {
    fn of(folders: &CommittedFolders, path: &[u8]) -> Self {
        Self { kept: folders.get(path).cloned().unwrap_or_default(), open: BTreeMap::new() }
    }

    /// Sets the entry at `path` below this folder, whose own path is `here`; `None` removes it.
    fn set(&mut self, folders: &CommittedFolders, here: &[u8], path: &[u8], entry: Option<TreeEntry>) {
        let Some(slash) = path.iter().position(|byte| *byte == b'/') else {
            self.open.remove(path);
            self.kept.remove(path);
            self.kept.extend(entry.map(|entry| (path.to_vec(), entry)));
            return;
        };
        let (name, below) = (&path[..slash], &path[slash + 1..]);
        let there = joined(here, name);
        if !self.open.contains_key(name) {
            let is_folder = self.kept.get(name).is_some_and(|kept| kept.mode == FOLDER);
            if entry.is_none() && !is_folder {
                return;
            }
            let opened = if is_folder { Self::of(folders, &there) } else { Self::default() };
            self.kept.remove(name);
            self.open.insert(name.to_vec(), opened);
        }
        if let Some(folder) = self.open.get_mut(name) {
            folder.set(folders, &there, below, entry);
        }
    }

    /// Removes folders without files, which a tree does not have.
    fn without_empty(&mut self) {
        self.open.retain(|_, folder| {
            folder.without_empty();
            !folder.kept.is_empty() || !folder.open.is_empty()
        });
    }

    /// Lists this folder and its open ones by depth; the deepest level is last.
    fn by_depth<'a>(&'a self, depth: usize, path: Vec<u8>, all: &mut Vec<Vec<(Vec<u8>, &'a Self)>>) {
        if all.len() <= depth {
            all.resize_with(depth + 1, Vec::new);
        }
        for (name, folder) in &self.open {
            folder.by_depth(depth + 1, joined(&path, name), all);
        }
        all[depth].push((path, self));
    }
}

/// Writes the trees of these folders, the deepest first. Returns the id of the root.
fn written(repository: &Repository, root: OpenFolder) -> Result<String, GitError> {
    let mut levels = Vec::new();
    root.by_depth(0, Vec::new(), &mut levels);
    let mut ids: BTreeMap<Vec<u8>, String> = BTreeMap::new();
    for level in levels.iter().rev() {
        let mut lines = Vec::new();
        for (at, (path, folder)) in level.iter().enumerate() {
            if at > 0 {
                lines.push(0);
            }
            for (name, TreeEntry { mode, id }) in &folder.kept {
                let kind: &[u8] = match mode.as_slice() {
                    FOLDER => b"tree",
                    b"160000" => b"commit",
                    _ => b"blob",
                };
                lines.extend([mode, &b" "[..], kind, b" ", id.as_bytes(), b"\t", name, b"\0"].concat());
            }
            for name in folder.open.keys() {
                let id = ids.get(&joined(path, name)).ok_or_else(misunderstood)?;
                lines.extend([FOLDER, b" tree ", id.as_bytes(), b"\t", name, b"\0"].concat());
            }
        }
        let lines = repository.input(&lines)?;
        let output = repository.run(["mktree", "-z", "--missing", "--batch"]).reads(lines).text()?;
        let made: Vec<&str> = output.lines().collect();
        if made.len() != level.len() {
            return Err(misunderstood());
        }
        ids.extend(level.iter().zip(made).map(|((path, _), id)| (path.clone(), id.to_owned())));
    }
    ids.remove(&b""[..]).ok_or_else(misunderstood)
}
