//! Large files: which of them are checkpointed, and how versions without a content are identified.
//!
//! Each large file gets a run of git and a deadline of its own, and only if its content is needed.
//! The version (kind, size and modification time) is recorded beside the tree, so that the next
//! checkpoint does not read the same version again.
//!
//! Owns: the limits, the names of versions, and storing the content of a large file.
//! Never: puts the content of another version into a tree: a file whose content is not stored is in
//! no tree.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;

use super::index::Status;
use super::program::GitError;
use super::repository::Repository;
use crate::host::effects::CHECKPOINT_FILE_BYTES_MAX;
use crate::os::facts::{self, Facts};
use crate::os::paths::from_bytes;
use crate::os::walk;

/// Modes of a plain file and of an executable one.
const MODES: [&str; 2] = ["100644", "100755"];

/// Size limits of checkpoints, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimits {
    /// Size above which a file is large.
    pub large: u64,
    /// Size above which a file's content is not checkpointed.
    pub each: u64,
    /// Maximum total size of large files that the checkpoints of one session store.
    pub session: u64,
}

impl FileLimits {
    /// Derives all limits from the size above which a file is not checkpointed.
    pub fn of(each: u64) -> Self {
        Self { large: each / 10, each, session: each.saturating_mul(10) }
    }
}

impl Default for FileLimits {
    fn default() -> Self {
        Self::of(CHECKPOINT_FILE_BYTES_MAX)
    }
}

/// Versions of files by path. A version that begins with [`IN_TREE`] has its content in the tree.
pub type Versions = BTreeMap<Vec<u8>, String>;

/// Prefix of a version whose content is in the tree.
pub const IN_TREE: &str = "=";

/// Mode and object id of a large file in a tree.
pub type LargeEntry = (String, String);

/// Large files whose contents are stored.
#[derive(Debug, Clone, Copy)]
pub enum WantedContents<'a> {
    /// No file: a scan needs versions only.
    None,
    /// All files, as far as the limits and the time allow.
    All {
        /// Versions that are already stored, by path.
        known: &'a BTreeMap<Vec<u8>, (String, LargeEntry)>,
        /// Number of bytes that may still be stored.
        room: u64,
    },
    /// Only these files.
    Of(&'a HashSet<Vec<u8>>),
}

/// Large files of a folder.
#[derive(Debug, Default)]
pub struct LargeFiles {
    /// Stored contents, for the tree.
    pub entries: BTreeMap<Vec<u8>, LargeEntry>,
    /// Versions of all large files.
    pub versions: Versions,
    /// Number of bytes stored.
    pub stored: u64,
}

impl LargeFiles {
    /// Stores the wanted contents of these files.
    ///
    /// # Errors
    /// When git fails for another reason than a deadline.
    pub fn take(
        repository: &Repository,
        paths: &[Vec<u8>],
        status: &Status,
        wanted: WantedContents<'_>,
    ) -> Result<Self, GitError> {
        let mut files = Self::default();
        if paths.is_empty() {
            return Ok(files);
        }
        let modes = match wanted {
            WantedContents::None => None,
            _ => Some(FileModes::of(repository, status)?),
        };
        for path in paths {
            let at = repository.root.join(from_bytes(path));
            let Some(version) = version_of(&at) else { continue };
            let size = size_in(&version).unwrap_or(u64::MAX);
            let has_room = match wanted {
                WantedContents::None => false,
                WantedContents::All { known, room } => match known.get(path) {
                    Some((stored, entry)) if *stored == version => {
                        files.entries.insert(path.clone(), entry.clone());
                        files.versions.insert(path.clone(), format!("{IN_TREE}{version}"));
                        continue;
                    }
                    _ => files.stored.saturating_add(size) <= room,
                },
                WantedContents::Of(these) => these.contains(path),
            };
            let id = match (has_room && size <= repository.limits.each, wanted) {
                (false, _) => None,
                // Half of the time is left for the steps that follow.
                (true, WantedContents::All { .. }) => match store(repository, path, &version, true) {
                    Err(GitError::Late(_)) => None,
                    stored => stored?,
                },
                (true, _) => store(repository, path, &version, false)?,
            };
            match (id, &modes) {
                (Some(id), Some(modes)) => {
                    files.entries.insert(path.clone(), (modes.of_file(path, &version), id));
                    files.versions.insert(path.clone(), format!("{IN_TREE}{version}"));
                    files.stored = files.stored.saturating_add(size);
                }
                _ => drop(files.versions.insert(path.clone(), version)),
            }
        }
        Ok(files)
    }
}

/// Modes of files: `core.fileMode` decides whether those of the folder count.
struct FileModes<'a> {
    status: &'a Status,
    counts: bool,
}

impl<'a> FileModes<'a> {
    fn of(repository: &Repository, status: &'a Status) -> Result<Self, GitError> {
        let value = repository.run(["config", "--type=bool", "--get", "core.fileMode"]).line();
        match value {
            Ok(value) => Ok(Self { status, counts: value != "false" }),
            Err(GitError::Failed { .. }) => Ok(Self { status, counts: true }),
            Err(error) => Err(error),
        }
    }

    fn of_file(&self, path: &[u8], version: &str) -> String {
        let is_it = |entry: &&super::index::IndexEntry| entry.path == path;
        let known = self.status.entries.iter().find(is_it).map(|entry| entry.mode.as_str());
        match known.filter(|mode| !self.counts && MODES.contains(mode)) {
            Some(mode) => mode.to_owned(),
            None if self.counts => format!("{:o}", mode_in(version)),
            None => MODES[0].to_owned(),
        }
    }
}

/// Stores the content of a file as git would have it in a tree, in half of the remaining time if
/// `in_half`. Returns its id; `None` if the file has changed.
fn store(
    repository: &Repository,
    path: &[u8],
    version: &str,
    in_half: bool,
) -> Result<Option<String>, GitError> {
    let is_it = |file: &File| facts::of(file).is_ok_and(|known| version_in(&known) == version);
    let Ok(file) = open_regular(&repository.root.join(from_bytes(path))) else { return Ok(None) };
    if !is_it(&file) {
        return Ok(None);
    }
    let mut named = OsString::from("--path=");
    named.push(from_bytes(path));
    let run = repository.run(["hash-object", "-w", "--stdin"]).with([named]).reads(file.try_clone()?);
    let id = if in_half { run.within(repository.until.half()) } else { run }.line()?;
    Ok(is_it(&file).then_some(id))
}

/// Opens a regular file for reading. Neither follows links nor blocks on a pipe.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = walk::open_nonblocking(path, false)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Returns the version of a file; `None` if it is not a regular file.
pub fn version_of(path: &Path) -> Option<String> {
    facts::at(path).ok().filter(Facts::is_file).map(|known| version_in(&known))
}

/// Returns the version of a file (kind, size, modification time), which identifies it without its
/// content. A version is not an object id.
pub fn version_in(known: &Facts) -> String {
    let kind = if known.mode & 0o100 != 0 { 'x' } else { 'f' };
    let (seconds, nanos) = known.modified;
    format!("{kind}.{:x}.{seconds:x}.{nanos:x}", known.size)
}

/// Returns the size in a version, in bytes; `None` if it is malformed.
pub fn size_in(version: &str) -> Option<u64> {
    let mut parts = version.strip_prefix(IN_TREE).unwrap_or(version).split('.').skip(1);
    u64::from_str_radix(parts.next()?, 16).ok()
}

/// Returns the file mode in a version.
pub fn mode_in(version: &str) -> u32 {
    let version = version.strip_prefix(IN_TREE).unwrap_or(version);
    if version.starts_with('x') {
        0o100_755
    } else {
        0o100_644
    }
}

/// Explains why a file is not reverted: a content was not checkpointed.
pub fn not_checkpointed(version: &str, limits: FileLimits) -> String {
    let why = match size_in(version) {
        Some(size) if size > limits.each => format!("{}, limit {}", shown(size), shown(limits.each)),
        Some(size) => {
            format!(
                "{}: git rejected it or took too long, it is unreadable, or there were too many files",
                shown(size)
            )
        }
        None => "the agent did not report it".to_owned(),
    };
    format!("its content was not checkpointed ({why}), so it cannot be reverted")
}

fn shown(bytes: u64) -> String {
    match bytes {
        0..=0x3ff => format!("{bytes} bytes"),
        0x400..=0xf_ffff => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn version_of_file_has_size_and_mode_and_is_no_id() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "12345").unwrap();
        let version = version_of(&path).unwrap();
        assert_eq!((size_in(&version), mode_in(&version)), (Some(5), 0o100_644));
        assert!(version.contains('.'), "it could be taken for an id: {version}");
        facts::set_mode(&File::open(&path).unwrap(), 0o700).unwrap();
        assert_eq!(mode_in(&format!("{IN_TREE}{}", version_of(&path).unwrap())), 0o100_755);
        assert_eq!(version_of(folder.path()), None);
    }

    #[test]
    fn size_above_the_limit_is_named() {
        let reason = not_checkpointed("f.c00001.0.0", FileLimits::of(10 << 20));
        assert_eq!(
            reason,
            "its content was not checkpointed (12 MiB, limit 10 MiB), so it cannot be reverted"
        );
    }
}
