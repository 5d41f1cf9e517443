//! Reverting files to earlier contents.
//!
//! Owns: replacing a file's content if the file is as expected.
//! Never: writes outside the permitted folders, or over an unknown content.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backups::back_up;
use super::contents::{bytes_of, content_up_to, is_id};
use super::conversions::{self, may_change};
use super::flags::flagged;
use super::grafts;
use super::index::{is_behind_link, listed, FolderTree};
use super::large::{not_checkpointed, version_in, Versions, WantedContents};
use super::program::GitError;
use super::repository::Repository;
use super::scan::StatusScope;
use super::settings::read_regular;
use super::steps;
use crate::files::facts::etag;
use crate::files::folders::{Folders, HostFile, PathRefusal, WorkFolder};
use crate::files::replacement::Replacement;
use crate::files::reverting::{revert_text, RevertedText, UNKNOWN_SIDE};
use crate::files::uris::path_of;
use crate::files::writing::{WriteRequest, PERMISSIONS};
use crate::host::effects::{GitContent, GitRevert, ReportedFile, RevertOutcome};
use crate::os::facts::{self, Facts};
use crate::os::paths::from_bytes;

/// Refusal of a file that has changed.
pub const CHANGED_SINCE: &str = "it was changed since";

const BATCH_FILES_MAX: usize = 200;

/// Maximum length of a content that is read in a batch, in bytes.
const SHORT_BYTES_MAX: usize = 128 << 10;

const PROGRAM: u32 = 0o100_755;

/// Returns the folders below which files may be changed, without the host's own files.
pub fn folders(below: &[String], own: &[String]) -> Folders {
    let folders = below.iter().filter_map(|uri| WorkFolder::find(path_of(uri).ok()?).ok());
    let own = own.iter().flat_map(|path| HostFile::find(Path::new(path)));
    Folders::of(folders.map(Arc::new).collect(), own.collect())
}

/// Reverts files, each independently: a file that is not as expected is left alone. With
/// `bytes_retained`, the current contents are retained under that name and number first, and also
/// their bytes if git would not give those back.
///
/// # Errors
/// When git fails before the first change.
pub fn revert(
    repository: &mut Repository,
    files: &[GitRevert],
    folders: &Folders,
    bytes_retained: Option<(&str, u64)>,
) -> Result<Vec<RevertOutcome>, GitError> {
    // The metadata comes first: a file that changes later is not examined again, and must be left
    // alone.
    let seen = all_metadata_of(repository, files);
    let found = repository.examine(|repository| FoundFiles::of(repository, files))?;
    let repository = &*repository;
    let standing =
        |(file, seen): (&GitRevert, &Option<Facts>)| revert_state_of(repository, file, &found, seen.as_ref());
    let each: Vec<RevertState> = files.iter().zip(&seen).map(standing).collect();
    let mut kept = HashMap::new();
    if let Some(by) = bytes_retained {
        let changed = each.iter().zip(files).filter_map(|(standing, file)| match standing {
            RevertState::IsNow(path) => Some((path.as_path(), file)),
            _ => None,
        });
        kept = back_up(repository, (changed.collect(), &found.contents), by)?;
    }
    let mut each: Vec<_> = each.into_iter().zip(files).enumerate().collect();
    // Removals come first: a file may be in the place of a wanted folder, and a folder in the place
    // of a wanted file.
    each.sort_by_key(|(_, (_, file))| file.wanted.is_some());
    let mut outcomes = BTreeMap::new();
    for part in each.chunks(BATCH_FILES_MAX) {
        let made = part.iter().filter_map(|(_, (standing, file))| match standing {
            RevertState::IsNow(path) => Some((path.as_path(), *file)),
            _ => None,
        });
        let made: Vec<_> = made.filter(|(_, file)| file.wanted.is_some()).collect();
        let contents = short_contents(repository, &made).unwrap_or_else(|error| {
            tracing::debug!(%error, "contents cannot be read in one batch, so they are read one by one");
            HashMap::new()
        });
        for (at, (standing, file)) in part {
            let outcome = match standing {
                RevertState::Refused(why) => RevertOutcome::Refused(why.clone()),
                RevertState::IsWanted => RevertOutcome::Already,
                RevertState::IsNow(path) => {
                    let content = contents.get(path.as_path()).map(Vec::as_slice);
                    let make = || make(repository, folders, file, seen[*at].as_ref(), content);
                    match steps::whole(make) {
                        Ok(mode) => RevertOutcome::Done { bytes: kept.remove(path), mode },
                        Err(why) => RevertOutcome::Refused(why),
                    }
                }
            };
            outcomes.insert(*at, outcome);
        }
    }
    // In the order of `files`.
    Ok(outcomes.into_values().collect())
}

/// Reverts files whose two sides tool calls have reported, each independently. `explain` turns the
/// refusal for a URI into a reason for people.
pub fn revert_reported(
    files: &[ReportedFile],
    folders: &Folders,
    explain: impl Fn(&str, PathRefusal) -> String,
) -> Vec<RevertOutcome> {
    let each = files.iter().map(|file| {
        let Some((now, wanted)) = &file.sides else { return RevertOutcome::Refused(UNKNOWN_SIDE.to_owned()) };
        let path = match path_of(&file.file) {
            Ok(path) => path,
            Err(error) => return RevertOutcome::Refused(error.message),
        };
        let sides = (now.as_deref(), wanted.as_deref());
        match steps::whole(|| revert_text(folders, &path, sides, file.mode_wanted)) {
            Ok(RevertedText::Already) => RevertOutcome::Already,
            Ok(RevertedText::Done { mode }) => RevertOutcome::Done { bytes: None, mode },
            Ok(RevertedText::ChangedSince) => RevertOutcome::Refused(CHANGED_SINCE.to_owned()),
            Err(refusal) => RevertOutcome::Refused(explain(&file.file, refusal)),
        }
    });
    each.collect()
}

/// State of the folder before the first change.
struct FoundFiles {
    contents: HashMap<PathBuf, GitContent>,
    /// Versions of large files, and of those whose contents are not known.
    versions: Versions,
}

impl FoundFiles {
    /// Scans the folder. Contents of large files are stored only for those to be reverted.
    fn of(repository: &Repository, files: &[GitRevert]) -> Result<Self, GitError> {
        let paths = files.iter().filter_map(|file| repository.path_of(&file.file));
        let paths: HashSet<Vec<u8>> = paths.map(|path| path.into_os_string().into_encoded_bytes()).collect();
        let mut flagged = flagged(repository)?;
        flagged.retain(|file| paths.contains(&file.entry.path));
        let wanted = WantedContents::Of(&paths);
        let FolderTree { tree, versions, .. } =
            grafts::folder_tree(repository, wanted, StatusScope::Whole(&flagged))?;
        let listed = repository.run(["ls-tree", "-r", "-z", "--full-tree", &tree]).output()?;
        Ok(Self { contents: contents_in(&listed), versions })
    }

    /// Returns whether a file with this metadata is one side of a change. The side may name only
    /// its version, or its bytes.
    fn is(
        &self,
        path: &Path,
        seen: Option<&Facts>,
        side: Option<&GitContent>,
        bytes: Option<&String>,
    ) -> bool {
        let found = self.contents.get(path);
        match (side, found) {
            (Some(side), Some(found)) if !side.is_stored() => {
                let is_version = seen.is_some_and(|seen| version_in(seen) == side.blob);
                is_version || (bytes == Some(&found.blob) && side.mode == found.mode)
            }
            (side, found) => side == found,
        }
    }
}

enum RevertState {
    /// The file is as expected; with its path in the repository.
    IsNow(PathBuf),
    IsWanted,
    /// The file is left alone, for this reason (for people).
    Refused(String),
}

/// Returns the metadata of files; `None` for a file that does not exist.
fn all_metadata_of(repository: &Repository, files: &[GitRevert]) -> Vec<Option<Facts>> {
    let mut is_link = HashMap::new();
    let seen = files.iter().map(|file| {
        let path = repository.path_of(&file.file)?;
        let is_elsewhere =
            is_behind_link(&repository.root, path.as_os_str().as_encoded_bytes(), &mut is_link);
        (!is_elsewhere).then(|| metadata_of(&repository.root.join(path))).flatten()
    });
    seen.collect()
}

fn metadata_of(path: &Path) -> Option<Facts> {
    facts::at(path).ok().filter(|known| !known.is_folder())
}

/// Returns whether a file is still the same version. Removing another hard link to the file changes
/// its metadata, but not the file.
fn is_still(seen: &Facts, now: &Facts) -> bool {
    let facts = |known: &Facts| (known.identity, known.size, known.modified, known.mode);
    etag(seen) == etag(now) || (seen.links > 1 && facts(seen) == facts(now))
}

fn revert_state_of(
    repository: &Repository,
    file: &GitRevert,
    found: &FoundFiles,
    seen: Option<&Facts>,
) -> RevertState {
    let exists = seen.is_some();
    let refused = |why: &str| RevertState::Refused(why.to_owned());
    let not_kept = |version: &str| RevertState::Refused(not_checkpointed(version, repository.limits));
    let Some(path) = repository.path_of(&file.file) else {
        let unknown = file.wanted.as_ref().filter(|wanted| !wanted.is_stored());
        return unknown.map_or_else(|| refused("it is not in the repository"), |it| not_kept(&it.blob));
    };
    let is_wanted = found.is(&path, seen, file.wanted.as_ref(), file.bytes_wanted.as_ref());
    if is_wanted && exists == file.wanted.is_some() {
        return RevertState::IsWanted;
    }
    if let Some(wanted) =
        file.wanted.as_ref().filter(|wanted| !wanted.is_stored() && file.bytes_wanted.is_none())
    {
        return not_kept(&wanted.blob);
    }
    match (found.contents.get(&path), found.versions.get(path.as_os_str().as_encoded_bytes())) {
        (None, Some(version)) if exists => return not_kept(version),
        (None, _) if exists => {
            return refused("a file that git ignores, or something that is not a regular file, is there now");
        }
        _ => {}
    }
    if !found.is(&path, seen, file.now.as_ref(), file.bytes_now.as_ref()) {
        return refused(CHANGED_SINCE);
    }
    RevertState::IsNow(path)
}

/// Parses the output of `git ls-tree -z`.
fn contents_in(tree: &[u8]) -> HashMap<PathBuf, GitContent> {
    let entries = tree.split(|byte| *byte == 0).filter_map(|entry| {
        let (facts, path) = listed(entry)?;
        let mut facts = facts.split(' ');
        let mode = u32::from_str_radix(facts.next()?, 8).ok()?;
        let blob = facts.nth(1)?.to_owned();
        Some((PathBuf::from(from_bytes(path).into_owned()), GitContent { blob, mode }))
    });
    entries.collect()
}

/// Returns wanted contents by path, read by few runs of git: only short ones, of files that git
/// does not convert.
fn short_contents<'a>(
    repository: &Repository,
    files: &[(&'a Path, &GitRevert)],
) -> Result<HashMap<&'a Path, Vec<u8>>, GitError> {
    let paths: Vec<PathBuf> = files.iter().map(|(path, _)| (*path).to_owned()).collect();
    let changing: HashSet<PathBuf> = may_change(repository, &paths)?.into_iter().collect();
    let plain = files.iter().filter(|(path, _)| !changing.contains(*path));
    let wanted: Vec<(&Path, &str)> =
        plain.filter_map(|(path, file)| Some((*path, file.wanted.as_ref()?.blob.as_str()))).collect();
    let mut asked: Vec<&str> = wanted.iter().map(|(_, blob)| *blob).filter(|blob| is_id(blob)).collect();
    asked.sort_unstable();
    asked.dedup();
    if asked.is_empty() {
        return Ok(HashMap::new());
    }
    let lines = |blobs: &[&str]| {
        blobs.iter().flat_map(|blob| [blob, "\n"].concat().into_bytes()).collect::<Vec<u8>>()
    };
    let sizes = repository.objects("--batch-check", &lines(&asked))?;
    let sizes = String::from_utf8_lossy(&sizes);
    let is_short = |size: &str| size.parse::<usize>().is_ok_and(|size| size <= SHORT_BYTES_MAX);
    let short = sizes.lines().filter_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
        [blob, "blob", size] if is_short(size) => Some(blob),
        _ => None,
    });
    let short: Vec<&str> = short.collect();
    let output = repository.objects("--batch", &lines(&short))?;
    let contents = contents_given(&output);
    let found = wanted.into_iter().filter_map(|(path, blob)| Some((path, contents.get(blob)?.to_vec())));
    Ok(found.collect())
}

/// Parses the output of `git cat-file --batch`: contents by object id.
fn contents_given(mut output: &[u8]) -> HashMap<&str, &[u8]> {
    let mut contents = HashMap::new();
    while let Some(end) = output.iter().position(|byte| *byte == b'\n') {
        let (head, rest) = (&output[..end], &output[end + 1..]);
        output = rest;
        let Ok(head) = std::str::from_utf8(head) else { break };
        let [blob, "blob", size] = head.split(' ').collect::<Vec<_>>()[..] else { continue };
        let content =
            size.parse::<usize>().ok().and_then(|size| Some((rest.get(..size)?, rest.get(size + 1..)?)));
        let Some((content, behind)) = content else { break };
        contents.insert(blob, content);
        output = behind;
    }
    contents
}

/// Reverts one file, if it is still the version that was `seen`. Returns the permissions of a
/// removed file.
fn make(
    repository: &Repository,
    folders: &Folders,
    file: &GitRevert,
    seen: Option<&Facts>,
    content: Option<&[u8]>,
) -> Result<Option<u32>, String> {
    let path = path_of(&file.file).map_err(|error| error.message)?;
    let in_words = |error: &dyn std::fmt::Display| error.to_string();
    let must_be_as_seen = || match (seen, metadata_of(&path)) {
        (None, None) => Ok(None),
        (Some(seen), Some(now)) if is_still(seen, &now) => Ok(Some(etag(&now))),
        _ => Err(CHANGED_SINCE.to_owned()),
    };
    let Some(wanted) = &file.wanted else {
        let Some(version) = must_be_as_seen()? else { return Ok(None) };
        folders.remove_version(&path, &version).map_err(|refusal| match refusal {
            PathRefusal::Changed => CHANGED_SINCE.to_owned(),
            refusal => in_words(&refusal),
        })?;
        return Ok(seen.map(|seen| seen.mode & PERMISSIONS));
    };
    // The exact bytes may have been removed with old checkpoints; git's content remains.
    let bytes = file.bytes_wanted.as_ref().and_then(|bytes| bytes_of(repository, bytes).ok());
    let content = match (bytes, content) {
        (Some(bytes), _) => bytes,
        (None, Some(content)) => content.to_vec(),
        (None, None) => content_up_to(repository.limits.each, repository, wanted, &file.file)
            .map_err(|error| in_words(&error))?,
    };
    if !wanted.is_link() && conversions::is_pointer(&content) {
        must_not_be_for_a_filter(repository, &path, &content)?;
    }
    if file.now.is_none() {
        way_must_be_free(repository, &path)?;
        make_room(folders, &path)?;
    }
    let token = must_be_as_seen()?;
    if wanted.is_link() && token.is_some() {
        let link = from_bytes(&content).into_owned();
        return folders
            .replace(&path, Replacement::Link(&link))
            .map(|()| None)
            .map_err(|refusal| in_words(&refusal));
    }
    if wanted.is_link() {
        let link = from_bytes(&content).into_owned();
        return folders.create_link(&path, &link).map(|()| None).map_err(|refusal| in_words(&refusal));
    }
    match (&file.now, &token) {
        (Some(now), Some(_)) if !now.is_link() => {
            let if_match = token.as_deref();
            folders.put(&path, &WriteRequest { if_match, ..WriteRequest::whole(&content) })
        }
        (Some(_), Some(_)) => folders.replace(&path, Replacement::File(&content)),
        // The parent folder may have been removed with the file.
        _ => folders.create(&path, &content, file.mode_wanted),
    }
    .map_err(|refusal| in_words(&refusal))?;
    set_mode(folders, &path, wanted.mode == PROGRAM).map(|()| None)
}

/// Refuses to replace a file with an LFS pointer: the filter that fetches the content does not run,
/// and the content at the time of the commit is not known. A file that is a pointer already is not
/// refused.
fn must_not_be_for_a_filter(repository: &Repository, path: &Path, content: &[u8]) -> Result<(), String> {
    if read_regular(path, conversions::POINTER.len() as u64)
        .is_ok_and(|found| conversions::is_pointer(&found))
    {
        return Ok(());
    }
    let below = path.strip_prefix(&repository.root).unwrap_or(path);
    match conversions::is_for_a_filter(repository, below, content) {
        Ok(false) => Ok(()),
        Ok(true) => {
            Err("it needs a filter (LFS), which the host does not run: use `git checkout`".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Refuses a file below something that is not a folder: through a link, another file would be
/// written.
fn way_must_be_free(repository: &Repository, path: &Path) -> Result<(), String> {
    let above = path.ancestors().skip(1).take_while(|above| *above != repository.root);
    let is_taken = |above: &Path| fs::symlink_metadata(above).is_ok_and(|known| !known.is_dir());
    match above.into_iter().find(|above| above.starts_with(&repository.root) && is_taken(above)) {
        Some(above) => Err(format!("`{}` is in the place of its folder", above.display())),
        None => Ok(()),
    }
}

/// Removes a folder in the place of a wanted file if it contains only folders.
fn make_room(folders: &Folders, path: &Path) -> Result<(), String> {
    if !fs::symlink_metadata(path).is_ok_and(|known| known.is_dir()) {
        return Ok(());
    }
    let in_words = |error: &dyn std::fmt::Display| error.to_string();
    let mut found = vec![path.to_owned()];
    let mut listed = 0;
    while let Some(folder) = found.get(listed) {
        let mut below = Vec::new();
        for entry in fs::read_dir(folder).map_err(|error| in_words(&error))? {
            let entry = entry.map_err(|error| in_words(&error))?;
            if !entry.file_type().map_err(|error| in_words(&error))?.is_dir() {
                return Err("a folder with other files in it has taken its place".to_owned());
            }
            below.push(entry.path());
        }
        found.extend(below);
        listed += 1;
    }
    found
        .iter()
        .rev()
        .try_for_each(|folder| folders.remove(folder, false))
        .map_err(|refusal| in_words(&refusal))
}

fn set_mode(folders: &Folders, path: &Path, is_program: bool) -> Result<(), String> {
    let set = || -> Result<(), crate::files::folders::PathRefusal> {
        let file = folders.open(path)?;
        let mode = facts::of(&file)?.mode;
        if (mode & 0o100 != 0) != is_program {
            let wanted = if is_program { mode | (mode & 0o444) >> 2 } else { mode & !0o111 };
            facts::set_mode(&file, wanted)?;
        }
        Ok(())
    };
    set().map_err(|refusal| refusal.to_string())
}
