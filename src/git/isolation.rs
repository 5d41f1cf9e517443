//! The isolated git directory: git runs in a directory of the host's own.
//!
//! Opening, watching, comparing, reverting or committing in a folder executes no program that the
//! folder's own files or configuration name. A repository's configuration is data: an allow list of
//! settings is copied, and the git process never sees the rest. So a future git with another way to
//! run programs finds nothing to run.
//!
//! The directory is in a private folder, and one job at a time uses it. Its `config` is written
//! here. History (objects, refs, reflogs) and plain data (ignored paths, attributes, sparse
//! patterns) are links to the repository's own; hooks and all else are left out. `HEAD` must be a
//! file, so it is a copy, and [`super::commit`] writes the real one.
//!
//! A filter runs if the operator has named it, with the programs of the user's own configuration.
//!
//! Owns: the allow list, and the layout of the directory.
//! Never: decides whether a repository is used.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::index::Scratch;
use super::settings::{read_regular, GitSetting, GitSettings};
use crate::os::{facts, links, private};
use crate::sync::lock;

/// Settings that are copied. None of them names a program, or a file from which git would take a
/// program. Settings that make git compare less of a file's status (`core.trustctime`,
/// `core.checkStat`) are left out: git would take a changed file for unchanged, and its content
/// would be lost.
const COPIED: [&str; 34] = [
    "author.email",
    "author.name",
    "committer.email",
    "committer.name",
    "core.attributesfile",
    "core.autocrlf",
    "core.bigfilethreshold",
    "core.checkroundtripencoding",
    "core.compression",
    "core.createobject",
    "core.eol",
    "core.excludesfile",
    "core.filemode",
    "core.fsync",
    "core.fsyncmethod",
    "core.ignorecase",
    "core.loosecompression",
    "core.precomposeunicode",
    "core.preloadindex",
    "core.protecthfs",
    "core.protectntfs",
    "core.sharedrepository",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "core.symlinks",
    "core.untrackedcache",
    "diff.algorithm",
    "diff.indentheuristic",
    "index.sparse",
    "index.threads",
    "index.version",
    "user.email",
    "user.name",
    "user.useconfigonly",
];

/// Settings of branches and remotes that define a branch's upstream.
const FOLLOWED: [(&str, &str); 3] = [("branch.", ".merge"), ("branch.", ".remote"), ("remote.", ".fetch")];

/// Files and folders of the shared git directory that are linked, those of filters included.
const LINKED: [&str; 10] = [
    "objects",
    "refs",
    "packed-refs",
    "shallow",
    "logs",
    "reftable",
    "info/exclude",
    "info/attributes",
    "lfs",
    "git-crypt",
];

/// Maximum size of the file of a ref, `HEAD` included, in bytes: the name of a ref or the id of a
/// commit.
pub const REF_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of git directories retained for reuse.
const SPARE_MAX: usize = 16;

/// Git directories of a repository from which its isolated one is made.
#[derive(Debug, Clone, Copy)]
pub struct GitDirs<'a> {
    /// Git directory of the working tree.
    pub own: &'a Path,
    /// Git directory that all working trees share; equal to `own` in the main working tree.
    pub common: &'a Path,
}

/// A git directory of the host's own, for one repository.
#[derive(Debug)]
pub struct IsolatedGitDir {
    /// Path of the directory, for `GIT_DIR`.
    pub path: PathBuf,
    /// Content of its `HEAD`, copied from the repository.
    pub head: Vec<u8>,
    own: PathBuf,
    common: PathBuf,
    config: Vec<u8>,
    shared_indexes: BTreeSet<OsString>,
    /// Targets of the links, with their paths here.
    links: Vec<(PathBuf, PathBuf)>,
    scratch: Scratch,
}

/// Idle git directories, for reuse with the same repository: creating and removing folders takes
/// most of the time here.
#[derive(Debug, Default)]
pub struct SpareGitDirs(Mutex<Vec<IsolatedGitDir>>);

impl SpareGitDirs {
    /// Adds a directory whose job is done; evicts the oldest beyond the limit.
    pub fn put(&self, git_dir: IsolatedGitDir) {
        let mut spare = lock(&self.0);
        spare.push(git_dir);
        let too_many = spare.len().saturating_sub(SPARE_MAX);
        spare.drain(..too_many);
    }

    fn take(&self, below: &Path, origin: GitDirs<'_>) -> Option<IsolatedGitDir> {
        let mut spare = lock(&self.0);
        let is_its = |git_dir: &IsolatedGitDir| {
            git_dir.own == origin.own
                && git_dir.common == origin.common
                && git_dir.scratch.path.parent() == Some(below)
        };
        let at = spare.iter().rposition(is_its)?;
        Some(spare.remove(at))
    }
}

impl IsolatedGitDir {
    /// Reuses an idle directory, or makes one in a private folder below `below`.
    pub fn find(
        spare: &SpareGitDirs,
        below: &Path,
        origin: GitDirs<'_>,
        format: &[GitSetting],
        settings: &GitSettings,
    ) -> io::Result<Self> {
        let config = config_of(format, settings);
        let head = head_of(origin.own)?;
        let shared_indexes = shared_indexes_of(origin.own)?;
        if let Some(mut git_dir) = spare.take(below, origin) {
            match git_dir.refresh(&config, &head, &shared_indexes) {
                Ok(()) => return Ok(git_dir),
                // Another process may have removed it.
                Err(error) => {
                    tracing::debug!(%error, "an isolated git directory cannot be reused, so a new one is made")
                }
            }
        }
        let mut git_dir = Self::make(Scratch::new(below)?, origin)?;
        git_dir.refresh(&config, &head, &shared_indexes)?;
        Ok(git_dir)
    }

    /// Makes the files that are equal in all jobs of a repository.
    fn make(scratch: Scratch, GitDirs { own, common }: GitDirs<'_>) -> io::Result<Self> {
        let top = scratch.path.clone();
        private_folder(&top.join("info"))?;
        let link_to = |(from, to): (&Path, &Path), name: &str| (from.join(name), to.join(name));
        let mut links: Vec<_> = LINKED.iter().map(|name| link_to((common, &top), name)).collect();
        let path = if own == common {
            top
        } else {
            let path = top.join("worktrees/it");
            private_folder(&path.join("info"))?;
            fs::write(path.join("commondir"), "../..\n")?;
            links.extend(["refs", "logs", "reftable"].map(|name| link_to((own, &path), name)));
            path
        };
        links.push(link_to((own, &path), "info/sparse-checkout"));
        for (target, link) in &links {
            links::create(target, link)?;
        }
        let (own, common) = (own.to_owned(), common.to_owned());
        let (head, config, shared_indexes) = (Vec::new(), Vec::new(), BTreeSet::new());
        Ok(Self { path, head, own, common, config, shared_indexes, links, scratch })
    }

    fn refresh(&mut self, config: &[u8], head: &[u8], shared: &BTreeSet<OsString>) -> io::Result<()> {
        if self.config != config {
            fs::write(self.scratch.path.join("config"), config)?;
            config.clone_into(&mut self.config);
        }
        for name in self.shared_indexes.difference(shared) {
            fs::remove_file(self.path.join(name))?;
        }
        for name in shared.difference(&self.shared_indexes) {
            links::create(&self.own.join(name), &self.path.join(name))?;
        }
        shared.clone_into(&mut self.shared_indexes);
        for (target, link) in &self.links {
            links::renew(target, link)?;
        }
        // Git writes `HEAD` in a commit without a branch, and leaves a lock if it is killed.
        for name in ["HEAD", "HEAD.lock"] {
            match fs::remove_file(self.path.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::write(self.path.join("HEAD"), head)?;
        head.clone_into(&mut self.head);
        Ok(())
    }
}

/// Returns the names of shared index files, the larger parts of a split index, which are beside it.
fn shared_indexes_of(own: &Path) -> io::Result<BTreeSet<OsString>> {
    let names = fs::read_dir(own)?.map(|entry| Ok(entry?.file_name()));
    let names: BTreeSet<OsString> = names.collect::<io::Result<_>>()?;
    Ok(names.into_iter().filter(|name| name.as_encoded_bytes().starts_with(b"sharedindex.")).collect())
}

/// Returns the content of `HEAD` of a git directory. Old versions of git made it a symbolic link.
pub fn head_of(git_dir: &Path) -> io::Result<Vec<u8>> {
    ref_in(&git_dir.join("HEAD"))
}

/// Returns the content of a file of a ref, up to [`REF_BYTES_MAX`].
pub fn ref_in(file: &Path) -> io::Result<Vec<u8>> {
    match fs::read_link(file) {
        Ok(target) if target.starts_with("refs") => {
            Ok([b"ref: ", target.as_os_str().as_encoded_bytes(), b"\n"].concat())
        }
        _ => read_regular(file, REF_BYTES_MAX),
    }
}

/// Returns the branch in the content of a `HEAD`; `None` if it is detached.
pub fn branch_in(head: &[u8]) -> Option<&str> {
    let named = std::str::from_utf8(head).ok()?.strip_prefix("ref:")?.trim();
    named.strip_prefix("refs/heads/")
}

/// Returns the content of `config`: the format, and the allowed settings.
fn config_of(format: &[GitSetting], settings: &GitSettings) -> Vec<u8> {
    let allowed = settings.iter().filter(|setting| is_allowed(&setting.key));
    let mut config: Vec<u8> = format.iter().chain(allowed).filter_map(GitSetting::lines).flatten().collect();
    // Git writes reflogs of branches and `HEAD` by default, unless the user has switched them off.
    if settings.is_true("core.logallrefupdates") == Some(false) {
        config.extend(b"[core]\nlogAllRefUpdates = false\n");
    }
    config
}

/// Returns whether a setting of a repository or of the user is copied, by its key.
pub fn is_allowed(key: &[u8]) -> bool {
    let is_followed = |(section, name): &(&str, &str)| {
        key.starts_with(section.as_bytes())
            && key.ends_with(name.as_bytes())
            && key.len() > section.len() + name.len()
    };
    COPIED.iter().any(|allowed| allowed.as_bytes() == key) || FOLLOWED.iter().any(is_followed)
}

/// Makes a folder that only this user may write to, or checks that an existing one is such: git
/// takes its configuration from there.
///
/// # Errors
/// When it cannot be made, belongs to another user, or others may write to it.
pub fn private_folder(path: &Path) -> io::Result<()> {
    private::create_folders(path)?;
    let known = facts::at(path)?;
    if known.is_folder() && private::is_ours(&known) && private::mode_for_others(&known) & 0o022 == 0 {
        return Ok(());
    }
    let why = format!("other users can write to `{}`, so the host runs no git there", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}
