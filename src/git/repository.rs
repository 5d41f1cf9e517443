//! Which repository folders are in, and whether it is used.
//!
//! Owns: finding it, the reasons for which one is left alone, and which of its settings name programs.
//! Never: makes one.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::large::FileLimits;
use super::program::{Git, GitError, GitRun, Until};
use crate::files::uris::{path_of, uri_of};

/// A repository that is used.
#[derive(Debug, Clone)]
pub struct Repository {
    git: Git,
    /// Where its files are.
    pub root: PathBuf,
    /// Where what is its own is: of this folder of files, and of all that share the repository.
    pub own: PathBuf,
    /// Of all that share it.
    pub common: PathBuf,
    /// Settings that keep its filters from running.
    settings: Vec<(OsString, OsString)>,
    /// How large files may be whose contents are checkpointed.
    pub limits: FileLimits,
}

/// Why there is none.
#[derive(Debug)]
pub enum NoRepository {
    /// There is none.
    None,
    /// There is one that is not used; why, for people.
    Unusable(String),
    /// It cannot be looked for.
    Failed(GitError),
}

impl From<GitError> for NoRepository {
    fn from(error: GitError) -> Self {
        Self::Failed(error)
    }
}

impl Repository {
    /// The one that all of these folders (`file:` URIs) are in.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(git: &Git, directories: &[String], until: Until) -> Result<Self, NoRepository> {
        let folders = directories.iter().filter_map(|uri| path_of(uri).ok());
        let mut folders: Vec<PathBuf> = folders.filter_map(|path| path.canonicalize().ok()).collect();
        folders.dedup();
        if folders.is_empty() || folders.len() > 1 && folders.len() != directories.len() {
            return Err(NoRepository::None);
        }
        let (settings, places) = std::thread::scope(|scope| {
            // What is configured is the same in all folders of one repository.
            let settings = scope.spawn(|| without_filters(git, &folders[0], until));
            let places = places_of_all(git, &folders, until);
            (settings.join(), places)
        });
        let Places { root, own, common } = places?;
        let home = std::env::var_os("HOME").and_then(|home| Path::new(&home).canonicalize().ok());
        if root == Path::new("/") || home.is_some_and(|home| home == root) {
            let why = "the repository is the whole home folder, or the whole disk".to_owned();
            return Err(NoRepository::Unusable(why));
        }
        if !folders.iter().all(|folder| folder.starts_with(&root)) {
            let why = "the repository keeps its files elsewhere".to_owned();
            return Err(NoRepository::Unusable(why));
        }
        let panicked = |_| GitError::from(std::io::Error::other("what reads the configuration has panicked"));
        let settings = settings.map_err(panicked)??;
        Ok(Self { git: git.clone(), root, own, common, settings, limits: FileLimits::default() })
    }

    /// A run in it.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> GitRun<'_> {
        self.git.run(&self.root, arguments).set(&self.settings)
    }

    /// The names of the filters that are configured, and do not run.
    pub fn filters(&self) -> BTreeSet<&[u8]> {
        let names = self
            .settings
            .iter()
            .filter_map(|(name, _)| name.as_bytes().strip_prefix(b"filter.")?.strip_suffix(b".clean"));
        names.collect()
    }

    /// The `file:` URI of its folder.
    pub fn uri(&self) -> String {
        uri_of(&self.root)
    }

    /// The `file:` URI of a file in it.
    pub fn uri_of(&self, path: &[u8]) -> String {
        uri_of(&self.root.join(OsStr::from_bytes(path)))
    }

    /// What a file (a `file:` URI) is called in it; none when it is not in it.
    pub fn path_of(&self, uri: &str) -> Option<PathBuf> {
        let path = path_of(uri).ok()?;
        let below = path.strip_prefix(&self.root).ok()?;
        let is_plain = |part| matches!(part, std::path::Component::Normal(_));
        (below.components().next().is_some() && below.components().all(is_plain)).then(|| below.to_owned())
    }
}

#[derive(PartialEq, Eq)]
struct Places {
    root: PathBuf,
    own: PathBuf,
    common: PathBuf,
}

/// The places of the repository that all of these folders are in.
fn places_of_all(git: &Git, folders: &[PathBuf], until: Until) -> Result<Places, NoRepository> {
    let mut found: Option<Places> = None;
    for folder in folders {
        let places = match places_of(git, folder, until) {
            Err(NoRepository::None) if found.is_some() => return Err(not_all_in_one()),
            Err(NoRepository::None) if folders.len() > 1 => return Err(none_or_some(git, folders, until)),
            places => places?,
        };
        if found.as_ref().is_some_and(|found| *found != places) {
            return Err(not_all_in_one());
        }
        found = Some(places);
    }
    found.ok_or(NoRepository::None)
}

fn not_all_in_one() -> NoRepository {
    NoRepository::Unusable("the working directories are not all in one repository".to_owned())
}

/// The first folder is in no repository.
fn none_or_some(git: &Git, folders: &[PathBuf], until: Until) -> NoRepository {
    let is_none = |folder: &PathBuf| matches!(places_of(git, folder, until), Err(NoRepository::None));
    if folders.iter().all(is_none) {
        return NoRepository::None;
    }
    not_all_in_one()
}

fn places_of(git: &Git, folder: &Path, until: Until) -> Result<Places, NoRepository> {
    let asked =
        ["rev-parse", "--show-toplevel", "--absolute-git-dir", "--path-format=absolute", "--git-common-dir"];
    let said = match git.run(folder, asked).output(until) {
        Ok(said) => said,
        Err(GitError::Failed { trouble, .. }) => return Err(refused(&trouble)),
        Err(error) => return Err(error.into()),
    };
    let lines: Vec<&[u8]> = said.strip_suffix(b"\n").unwrap_or(&said).split(|byte| *byte == b'\n').collect();
    let [root, own, common] = lines[..] else {
        return Err(NoRepository::Unusable("the path of the repository has a line break in it".to_owned()));
    };
    let path = |bytes: &[u8]| {
        let path = PathBuf::from(OsStr::from_bytes(bytes));
        path.canonicalize().unwrap_or(path)
    };
    Ok(Places { root: path(root), own: path(own), common: path(common) })
}

/// What follows from what git says about a folder that it finds no repository for.
fn refused(trouble: &str) -> NoRepository {
    let first = trouble.lines().next().unwrap_or_default();
    if first.contains("not a git repository") {
        return NoRepository::None;
    }
    NoRepository::Unusable(if first.contains("dubious ownership") {
        "git does not trust this repository: it belongs to somebody else (`safe.directory`)".to_owned()
    } else if first.contains("must be run in a work tree") {
        "the repository is bare".to_owned()
    } else {
        format!("git says: {first}")
    })
}

/// Settings with which no filter runs, of those that are configured anywhere.
fn without_filters(git: &Git, root: &Path, until: Until) -> Result<Vec<(OsString, OsString)>, GitError> {
    let asked = ["config", "--null", "--name-only", "--get-regexp", r"^filter\."];
    let names = match git.run(root, asked).output(until) {
        Ok(names) => names,
        // There is none.
        Err(GitError::Failed { status: Some(1), .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let filter_of = |name: &[u8]| name.iter().rposition(|byte| *byte == b'.').map(|dot| name[..dot].to_vec());
    let filters: BTreeSet<Vec<u8>> = names.split(|byte| *byte == 0).filter_map(filter_of).collect();
    let off = [("clean", ""), ("smudge", ""), ("process", ""), ("required", "false")];
    let settings = filters.iter().flat_map(|filter| {
        off.iter().map(move |(name, value)| {
            let name = [filter.as_slice(), b".", name.as_bytes()].concat();
            (OsString::from_vec(name), OsString::from(*value))
        })
    });
    Ok(settings.collect())
}
