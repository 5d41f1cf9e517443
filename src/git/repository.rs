//! The repository of working directories, and whether the host uses it.
//!
//! The host finds it by git's rules but without git, which would read the repository's
//! configuration.
//!
//! Owns: finding a repository, and the reasons not to use one.
//! Never: creates one, or starts a program to find one.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::index::Scratch;
use super::isolation::{branch_in, head_of, ref_in, GitDirs, IsolatedGitDir, REF_BYTES_MAX};
use super::large::FileLimits;
use super::program::{Deadline, Git, GitError, GitRun};
use super::settings::{
    files_of_the_user, path_in, read_all, read_config, read_regular, GitSetting, GitSettings, IncludedFor,
};
use crate::files::uris::{path_of, uri_of};
use crate::os::paths::{canonical, from_bytes, home, with_slashes};
use crate::os::{facts, private};

/// Prefix of a `.git` file that names a git directory.
const GIT_FILE: &[u8] = b"gitdir: ";

const GIT_FILE_BYTES_MAX: u64 = 1 << 20;

/// Repository format extensions that do not affect this module.
const EXTENSIONS: [&str; 7] = [
    "noop",
    "noop-v1",
    "partialclone",
    "preciousobjects",
    "relativeworktrees",
    "submodulepathconfig",
    "worktreeconfig",
];

/// Extensions that git must know of, too, with their allowed values.
const EXTENSIONS_COPIED: [(&str, &[&str]); 3] = [
    ("compatobjectformat", &["sha1", "sha256"]),
    ("objectformat", &["sha1", "sha256"]),
    ("refstorage", &["files", "reftable"]),
];

const FILTER_PROGRAMS: [&str; 3] = ["clean", "smudge", "process"];

/// The filter that stores contents in the folder `lfs` of the git directory.
const LFS: &[u8] = b"lfs";

/// A repository that the host uses.
#[derive(Debug)]
pub struct Repository {
    git: Git,
    /// Root of the working tree.
    pub root: PathBuf,
    /// Git directory of this working tree.
    pub own: PathBuf,
    /// Git directory that all working trees share.
    pub common: PathBuf,
    /// The git directory in which git runs.
    pub isolated: IsolatedGitDir,
    settings: GitSettings,
    filters_on: HashSet<Vec<u8>>,
    /// Set if refs, `HEAD` included, are stored in a table (reftable).
    has_reftable: bool,
    /// Limits on the sizes of files whose contents are checkpointed.
    pub limits: FileLimits,
    /// Folder for temporary files of the job.
    pub scratch: Scratch,
    /// Deadline of the job.
    pub until: Deadline,
    /// Folder for new objects that are discarded; `None` if they go to the repository's own store.
    objects_aside: Option<PathBuf>,
}

/// Reason why no repository is used.
#[derive(Debug)]
pub enum NoRepository {
    /// The folders are in no repository.
    None,
    /// The repository is not used; the text is the reason, for people.
    Unusable(String),
    /// Failed search.
    Failed(GitError),
}

impl<E: Into<GitError>> From<E> for NoRepository {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

fn unusable<T>(why: impl Into<String>) -> Result<T, NoRepository> {
    Err(NoRepository::Unusable(why.into()))
}

impl Repository {
    /// Finds the repository that contains all of these folders (`file:` URIs), for a job with this
    /// deadline. Temporary files are made below `folder`.
    pub fn find(
        git: &Git,
        directories: &[String],
        folder: &Path,
        until: Deadline,
    ) -> Result<Self, NoRepository> {
        let folders = directories.iter().filter_map(|uri| path_of(uri).ok());
        let mut folders: Vec<PathBuf> = folders.filter_map(|path| canonical(&path).ok()).collect();
        let is_incomplete = folders.len() != directories.len();
        folders.dedup();
        if folders.is_empty() || folders.len() > 1 && is_incomplete {
            return Err(NoRepository::None);
        }
        let Places { root, dot_git, own, common } = places_of_all(&folders)?;
        let format = Format::of(&own, &common)?;
        let found = root;
        let root = format.root(found.clone(), &own)?;
        let home = home().and_then(|home| canonical(&home).ok());
        if root.parent().is_none() || home.is_some_and(|home| home == root) {
            return unusable("the repository is the whole home folder, or the whole disk");
        }
        if !folders.iter().all(|folder| folder.starts_with(&root)) {
            return elsewhere();
        }
        let head = head_of(&own)?;
        let included_for = IncludedFor { git_dir: &own, branch: branch_in(&head) };
        let mut files = files_of_the_user(git.system_config());
        let of_the_user = read_all(&files, included_for).map_err(NoRepository::Unusable)?;
        let is_trusted = |path: &PathBuf| facts::at(path).is_ok_and(|known| private::is_trusted(&known));
        if ![&root, &dot_git, &own, &common].into_iter().all(is_trusted) && !is_safe(&of_the_user, &root) {
            return unusable(
                "git does not trust this repository: it belongs to another user (see `safe.directory`)",
            );
        }
        if root != found {
            return elsewhere();
        }
        files.push(common.join("config"));
        files.extend(format.has_own_settings.then(|| own.join("config.worktree")));
        let settings = read_all(&files, included_for).map_err(NoRepository::Unusable)?;
        must_be_regular(&own, &common, &settings)?;
        must_lead_to_a_commit(&own, &common, &head)?;
        let origin = GitDirs { own: &own, common: &common };
        let mut copied = format.copied.clone();
        copied.extend(of_the_user.iter().filter(|setting| is_of_filter(git, setting)).cloned());
        let on = of_the_user.subsections("filter", &FILTER_PROGRAMS).into_iter();
        let filters_on: HashSet<Vec<u8>> =
            on.filter(|name| git.runs_filter(name)).map(<[u8]>::to_vec).collect();
        if filters_on.contains(LFS) {
            let folder = common.join("lfs");
            if folder.is_symlink() {
                let folder = folder.display();
                return unusable(format!("`{folder}` is a symbolic link, and LFS would write to its target"));
            }
            fs::create_dir_all(folder)?;
            // A URL without a host takes precedence over that of the repository's `.lfsconfig`, so
            // that nothing is downloaded.
            copied.push(setting("lfs.url", b"http:///"));
        }
        let isolated = IsolatedGitDir::find(git.spare(), folder, origin, &copied, &settings)?;
        let has_reftable = format.has_reftable();
        let (git, limits) = (git.clone(), FileLimits::default());
        Ok(Self {
            git,
            root,
            own,
            common,
            isolated,
            settings,
            filters_on,
            has_reftable,
            limits,
            objects_aside: None,
            scratch: Scratch::new(folder)?,
            until,
        })
    }

    /// Returns the id of the tree without entries, in the repository's hash function.
    ///
    /// # Errors
    /// When git fails.
    pub fn empty_tree(&self) -> Result<String, GitError> {
        self.run(["hash-object", "-t", "tree", "--stdin"]).line()
    }

    /// Returns a run of git in this repository.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> GitRun<'_> {
        let run = self.git.run(&self.root, arguments, self.until).env("GIT_DIR", &self.isolated.path);
        let run = run.env("GIT_WORK_TREE", &self.root).env("GIT_INDEX_FILE", self.own.join("index"));
        match &self.objects_aside {
            Some(objects) => run
                .env("GIT_OBJECT_DIRECTORY", objects)
                .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", quoted(&self.common.join("objects"))),
            None => run,
        }
    }

    /// Runs `git cat-file` with this option, which reads object names, one per line.
    pub fn objects(&self, option: &str, lines: &[u8]) -> Result<Vec<u8>, GitError> {
        self.run(["cat-file", option]).reads(self.input(lines)?).output()
    }

    /// Writes a temporary file with this content and opens it, as input of the next run.
    pub fn input(&self, content: &[u8]) -> io::Result<File> {
        self.scratch.file("input", content)
    }

    /// Examines the repository. New objects go to the scratch folder and are discarded with it.
    pub fn examine<T>(
        &mut self,
        examination: impl FnOnce(&Self) -> Result<T, GitError>,
    ) -> Result<T, GitError> {
        let objects = self.scratch.path.join("objects");
        fs::create_dir_all(&objects)?;
        self.objects_aside = Some(objects);
        let found = examination(self);
        self.objects_aside = None;
        found
    }

    /// Returns the names of the configured filters.
    pub fn filters(&self) -> HashSet<&[u8]> {
        self.settings.subsections("filter", &FILTER_PROGRAMS)
    }

    /// Returns whether a filter runs: the operator has named it, and the user's own configuration
    /// defines its programs.
    pub fn runs_filter(&self, name: &[u8]) -> bool {
        self.filters_on.contains(name)
    }

    /// Returns whether git converts line endings of files without attributes.
    pub fn changes_line_ends(&self) -> bool {
        // The value `input` counts as true.
        self.settings.is_true("core.autocrlf") == Some(true)
    }

    /// Returns whether git may spell a file name differently from the file system.
    pub fn folds_names(&self) -> bool {
        let is_on = |key| self.settings.is_true(key) == Some(true);
        is_on("core.ignorecase") || is_on("core.precomposeunicode")
    }

    /// Returns whether `HEAD` is a separate file, which the host must update when git writes its
    /// copy.
    pub fn has_head_file(&self) -> bool {
        !self.has_reftable
    }

    /// Makes the isolated git directory available to the next job. No git may be running in it.
    pub fn release(self) {
        self.git.spare().put(self.isolated);
    }

    /// Returns the `file:` URI of the root.
    pub fn uri(&self) -> String {
        uri_of(&self.root)
    }

    /// Returns the `file:` URI of a file in the repository.
    pub fn uri_of(&self, path: &[u8]) -> String {
        uri_of(&self.root.join(from_bytes(path)))
    }

    /// Returns the path of a file (a `file:` URI) relative to the root; `None` if it is outside.
    pub fn path_of(&self, uri: &str) -> Option<PathBuf> {
        let path = path_of(uri).ok()?;
        let below = path.strip_prefix(&self.root).ok()?;
        let is_plain = |part| matches!(part, std::path::Component::Normal(_));
        let is_below = below.components().next().is_some() && below.components().all(is_plain);
        is_below.then(|| with_slashes(below).into_owned())
    }
}

/// Quotes a path for a list whose entries are separated by colons.
fn quoted(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_encoded_bytes();
    if !bytes.iter().any(|byte| b":\"\\\n".contains(byte)) {
        return path.as_os_str().to_owned();
    }
    let mut quoted = b"\"".to_vec();
    for byte in bytes {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', *byte]),
            b'\n' => quoted.extend(b"\\n"),
            _ => quoted.push(*byte),
        }
    }
    quoted.push(b'"');
    from_bytes(&quoted).into_owned()
}

/// Files of the shared git directory that git reads to their ends.
const READ_WHOLE: [&str; 5] =
    ["packed-refs", "shallow", "info/exclude", "info/attributes", "objects/info/alternates"];

/// Maximum number of refs that name each other, from `HEAD` on; git follows as many.
const REF_STEPS_MAX: usize = 5;

/// Settings that name files which git reads to their ends.
const FILES_NAMED: [&str; 2] = ["core.attributesfile", "core.excludesfile"];

/// Refuses a repository with a device or a pipe where git reads a file: git would read without end,
/// or block.
fn must_be_regular(own: &Path, common: &Path, settings: &GitSettings) -> Result<(), NoRepository> {
    let of_git = READ_WHOLE.iter().map(|name| common.join(name));
    let of_own = ["index", "info/sparse-checkout"].map(|name| own.join(name));
    let named = FILES_NAMED.iter().filter_map(|key| path_in(settings.get(key)?));
    for path in of_git.chain(of_own).chain(named) {
        if fs::metadata(&path).is_ok_and(|known| !known.is_file() && !known.is_dir()) {
            return unusable(format!("`{}` is not a regular file", path.display()));
        }
    }
    Ok(())
}

/// Refuses a repository in which git would read without end, or much, to find the checked-out
/// commit: `head` may name a ref, which may name another one.
fn must_lead_to_a_commit(own: &Path, common: &Path, head: &[u8]) -> Result<(), NoRepository> {
    let mut content = head.to_vec();
    for _ in 0..REF_STEPS_MAX {
        let Some(name) = content.strip_prefix(b"ref:") else { return Ok(()) };
        let name = from_bytes(name.trim_ascii()).into_owned();
        let mut next = None;
        // Few refs are in the git directory of one working tree.
        for file in [common.join(&name), own.join(&name)] {
            match fs::metadata(&file) {
                Ok(known) if !known.is_file() && !known.is_dir() => {
                    return unusable(format!("`{}` is not a regular file", file.display()));
                }
                Ok(known) if known.is_file() && known.len() > REF_BYTES_MAX => {
                    return unusable(format!("the ref `{}` has more than 64 KiB", file.display()));
                }
                _ => next = next.or(ref_in(&file).ok()),
            }
        }
        // The ref is in a file with others, or not there.
        let Some(next) = next else { return Ok(()) };
        content = next;
    }
    unusable(format!("more than {REF_STEPS_MAX} refs name each other, from `HEAD` on"))
}

#[derive(PartialEq, Eq)]
struct Places {
    /// Folder that contains `.git`.
    root: PathBuf,
    dot_git: PathBuf,
    own: PathBuf,
    common: PathBuf,
}

fn places_of_all(folders: &[PathBuf]) -> Result<Places, NoRepository> {
    let mut found: Option<Places> = None;
    for folder in folders {
        let places = match places_of(folder) {
            Err(NoRepository::None) if found.is_some() => return not_all_in_one(),
            Err(NoRepository::None) if folders.len() > 1 => return none_or_some(folders),
            places => places?,
        };
        if found.as_ref().is_some_and(|found| *found != places) {
            return not_all_in_one();
        }
        found = Some(places);
    }
    found.ok_or(NoRepository::None)
}

fn not_all_in_one<T>() -> Result<T, NoRepository> {
    unusable("the working directories are not all in one repository")
}

/// Decides between "no repository" and "not all in one" when the first folder is in none.
fn none_or_some<T>(folders: &[PathBuf]) -> Result<T, NoRepository> {
    if folders.iter().all(|folder| matches!(places_of(folder), Err(NoRepository::None))) {
        return Err(NoRepository::None);
    }
    not_all_in_one()
}

/// Searches a folder and its ancestors on one file system for a repository, as git does.
fn places_of(folder: &Path) -> Result<Places, NoRepository> {
    let device = |path: &Path| facts::behind(path).map(|known| known.identity.0);
    let at_first = device(folder)?;
    for root in folder.ancestors() {
        if device(root)? != at_first {
            break;
        }
        let dot_git = root.join(".git");
        let own = match fs::metadata(&dot_git) {
            Ok(known) if known.is_file() => Some(named_by(&dot_git)?),
            Ok(known) if known.is_dir() => Some(dot_git.clone()),
            _ => None,
        };
        if let Some(own) = own {
            if let Some(common) = common_of(&own) {
                let root = root.to_owned();
                return Ok(Places { root, dot_git, own: canonical(&own)?, common: canonical(&common)? });
            }
            if !dot_git.is_dir() {
                return Err(NoRepository::None);
            }
        }
        if common_of(root).is_some() {
            return bare();
        }
    }
    Err(NoRepository::None)
}

fn bare<T>() -> Result<T, NoRepository> {
    unusable("the repository is bare")
}

fn elsewhere<T>() -> Result<T, NoRepository> {
    unusable("the working tree of the repository is elsewhere (`core.worktree`)")
}

/// Returns the git directory that a `.git` file names.
fn named_by(file: &Path) -> Result<PathBuf, NoRepository> {
    let text = first_of(file)?;
    match text.strip_prefix(GIT_FILE) {
        Some(named) => Ok(joined(file.parent().unwrap_or(file), named)),
        None => unusable(format!("`{}` does not name a git directory", file.display())),
    }
}

fn first_of(file: &Path) -> io::Result<Vec<u8>> {
    read_regular(file, GIT_FILE_BYTES_MAX)
}

/// Resolves the path that a file in this folder names.
fn joined(folder: &Path, named: &[u8]) -> PathBuf {
    let end = named.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |at| at + 1);
    folder.join(from_bytes(&named[..end]))
}

/// Returns the git directory that shares its objects and refs with this one, possibly itself;
/// `None` if this is not a git directory.
fn common_of(own: &Path) -> Option<PathBuf> {
    let head = head_of(own).ok()?;
    let leads_somewhere =
        head.strip_prefix(b"ref:").is_some_and(|name| name.trim_ascii().starts_with(b"refs/"));
    let is_commit = head.len() >= 40 && head[..40].iter().all(u8::is_ascii_hexdigit);
    let common = match first_of(&own.join("commondir")) {
        Ok(named) => joined(own, &named),
        Err(error) if error.kind() == io::ErrorKind::NotFound => own.to_owned(),
        Err(_) => return None,
    };
    let is_git_dir = common.join("objects").is_dir() && common.join("refs").is_dir();
    ((leads_somewhere || is_commit) && is_git_dir).then_some(common)
}

/// Repository format, as far as git must know it.
struct Format {
    copied: Vec<GitSetting>,
    has_own_settings: bool,
    is_bare: bool,
    /// Path of the working tree; `None` if the configuration names none.
    worktree: Option<PathBuf>,
}

impl Format {
    /// Reads the format. Like git, it ignores files that the configuration includes.
    fn of(own: &Path, common: &Path) -> Result<Self, NoRepository> {
        let read = |path: PathBuf| {
            let failed = |why: &dyn std::fmt::Display| {
                NoRepository::Unusable(format!("its configuration `{}`: {why}", path.display()))
            };
            match read_config(&path) {
                Ok(text) => GitSettings::parse(&text)
                    .map_err(|line| failed(&format_args!("line {line} cannot be read"))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(GitSettings::default()),
                Err(error) => Err(failed(&error)),
            }
        };
        let shared = read(common.join("config"))?;
        let version = shared.get("core.repositoryformatversion").unwrap_or(b"0");
        let is_newest = match version {
            b"0" => false,
            b"1" => true,
            version => {
                let version = String::from_utf8_lossy(version);
                return unusable(format!("the format `{version}` of the repository is not known"));
            }
        };
        let mut copied = vec![setting("core.repositoryformatversion", version)];
        for GitSetting { key, .. } in shared.iter() {
            let Some(name) = key.strip_prefix(b"extensions.") else { continue };
            let name = String::from_utf8_lossy(name);
            if EXTENSIONS.contains(&&*name) {
                continue;
            }
            let known = EXTENSIONS_COPIED.iter().find(|(known, _)| *known == name);
            let key = format!("extensions.{name}");
            let value = shared.get(&key).unwrap_or_default();
            let is_known = known.is_some_and(|(_, values)| {
                values.iter().any(|known| known.as_bytes() == value.to_ascii_lowercase())
            });
            match (is_newest, is_known) {
                (true, true) => copied.push(setting(&key, value)),
                (false, _) if known.is_none() => {}
                _ => return unusable(format!("the extension `{name}` of the repository is not known")),
            }
        }
        let has_own_settings = shared.is_true("extensions.worktreeconfig") == Some(true);
        let places = match (has_own_settings, own == common) {
            (true, _) => read(own.join("config.worktree"))?,
            (false, true) => GitSettings::default(),
            (false, false) => return Ok(Self { copied, has_own_settings, is_bare: false, worktree: None }),
        };
        let is_bare = places.is_true("core.bare").or(shared.is_true("core.bare")) == Some(true);
        let worktree = places.get("core.worktree").or(shared.get("core.worktree"));
        let worktree = worktree.map(|named| PathBuf::from(from_bytes(named).into_owned()));
        Ok(Self { copied, has_own_settings, is_bare, worktree })
    }

    /// Returns the root of the working tree; `found` is the folder that contains `.git`.
    fn root(&self, found: PathBuf, own: &Path) -> Result<PathBuf, NoRepository> {
        match &self.worktree {
            Some(worktree) => match canonical(&own.join(worktree)) {
                Ok(root) => Ok(root),
                Err(_) => elsewhere(),
            },
            None if self.is_bare => bare(),
            None => Ok(found),
        }
    }

    fn has_reftable(&self) -> bool {
        self.copied.iter().any(|setting| {
            setting.key == b"extensions.refstorage" && setting.value.as_deref() == Some(b"reftable")
        })
    }
}

fn is_of_filter(git: &Git, setting: &GitSetting) -> bool {
    let filter = setting.key.strip_prefix(b"filter.").and_then(|key| {
        let end = key.iter().rposition(|byte| *byte == b'.')?;
        let is_its = |name: &&str| name.as_bytes() == &key[end + 1..];
        FILTER_PROGRAMS.iter().chain(&["required"]).any(is_its).then_some(&key[..end])
    });
    filter.is_some_and(|name| git.runs_filter(name))
}

fn setting(key: &str, value: &[u8]) -> GitSetting {
    GitSetting { key: key.as_bytes().to_vec(), value: Some(value.to_vec()) }
}

/// Returns whether the user has declared a folder safe although it belongs to another user.
fn is_safe(of_the_user: &GitSettings, root: &Path) -> bool {
    let mut is_safe = false;
    for setting in of_the_user.iter().filter(|setting| setting.key == b"safe.directory") {
        let value = setting.value.as_deref().unwrap_or_default();
        is_safe = match value {
            b"" => false,
            b"*" => true,
            value => is_safe || path_in(value).is_some_and(|named| is_named(&named, root)),
        };
    }
    is_safe
}

/// Returns whether `named` is the folder itself, or ends with `/*` and is an ancestor of it.
fn is_named(named: &Path, root: &Path) -> bool {
    let real = |path: &Path| canonical(path).unwrap_or_else(|_| path.to_owned());
    match named.file_name() {
        Some(name) if name == "*" => {
            named.parent().is_some_and(|above| root != real(above) && root.starts_with(real(above)))
        }
        _ => real(named) == root,
    }
}
