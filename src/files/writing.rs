//! Writing a file, in whole or in part.
//!
//! A changed file is written beside the old one and takes its place in one step: a reader, or a
//! process that is killed midway, leaves either the old or the new file, complete. The old file is
//! changed in place only if it is large and the change is at its end, or if no file can be created
//! in its folder; never if it has another name (a hard link), which may be outside the folders. A
//! failed change in place is undone, unless that would take too many bytes to keep.
//!
//! Owns: writing files below [`Folders`].
//! Never: writes to anything but regular files, or to file systems of the kernel.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::facts::etag;
use super::folders::{must_be_file, FinalLink, Folders, MissingFolders, PathRefusal, ResolvedPath};
use super::replacement::ReplacementFile;
use crate::os::facts::{self, Facts};
use crate::os::walk::{self, FileAccess, Folder};
use crate::os::write::sync;

/// Size, in bytes, above which a file is changed in place if the change is at its end.
const NEW_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of unchanged bytes that are copied because others have changed.
const KEPT_BYTES_MAX: u64 = 4 << 30;

/// Request to write to a file.
#[derive(Debug, Clone, Copy)]
pub struct WriteRequest<'a> {
    /// Bytes to write.
    pub content: &'a [u8],
    /// Position in the file.
    pub put: WritePosition,
    /// Fail if the file exists.
    pub create_only: bool,
    /// Fail unless the file has this version token; `None` for any version.
    pub if_match: Option<&'a str>,
    /// Permissions of a new file, within [`PERMISSIONS`]; `None` for the default.
    pub mode: Option<u32>,
}

impl<'a> WriteRequest<'a> {
    /// Returns a request to write a whole file.
    pub fn whole(content: &'a [u8]) -> Self {
        let put = WritePosition::Truncate(0);
        Self { content, put, create_only: false, if_match: None, mode: None }
    }
}

/// Position in a file. A position beyond the end is the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePosition {
    /// After this number of bytes; the rest is cut off.
    Truncate(u64),
    /// Before this number of bytes from the end, which follow.
    Append(u64),
    /// After this number of bytes; the rest follows.
    Insert(u64),
}

struct ExistingFile {
    file: File,
    known: Facts,
}

/// Permission bits of a file's mode.
pub const PERMISSIONS: u32 = 0o777;

/// Ranges of the existing file that stay: the bytes before `before`, and those from `from` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeptRanges {
    pub(super) before: u64,
    pub(super) from: u64,
    pub(super) size: u64,
}

impl KeptRanges {
    /// Ranges for a new file.
    pub(super) const NOTHING: Self = Self { before: 0, from: 0, size: 0 };

    fn of(put: WritePosition, size: u64) -> Self {
        let (before, from) = match put {
            WritePosition::Truncate(position) => (position.min(size), size),
            WritePosition::Append(back) => (size - back.min(size), size - back.min(size)),
            WritePosition::Insert(position) => (position.min(size), position.min(size)),
        };
        Self { before, from, size }
    }

    fn bytes(self) -> u64 {
        self.before + (self.size - self.from)
    }
}

impl Folders {
    /// Creates a file, and the missing folders above it. `mode` is as in [`WriteRequest::mode`].
    ///
    /// # Errors
    /// When it exists, may not be created, or is outside the folders; created folders may remain.
    pub fn create(&self, path: &Path, content: &[u8], mode: Option<u32>) -> Result<(), PathRefusal> {
        let writing = WriteRequest { create_only: true, mode, ..WriteRequest::whole(content) };
        self.write_at(path, MissingFolders::IsMade, &writing)
    }

    /// Writes a file, and creates the missing folders above it.
    ///
    /// # Errors
    /// When it is no file, not writable, or outside the folders; created folders may remain.
    pub fn write(&self, path: &Path, content: &[u8]) -> Result<(), PathRefusal> {
        self.write_at(path, MissingFolders::IsMade, &WriteRequest::whole(content))
    }

    /// Writes a file, or a part of it, in an existing folder.
    ///
    /// # Errors
    /// As [`Folders::write`]; also when the file exists or has changed and the request excludes
    /// that.
    pub fn put(&self, path: &Path, writing: &WriteRequest<'_>) -> Result<(), PathRefusal> {
        self.write_at(path, MissingFolders::Fails, writing)
    }

    fn write_at(
        &self,
        path: &Path,
        missing: MissingFolders,
        writing: &WriteRequest<'_>,
    ) -> Result<(), PathRefusal> {
        if missing == MissingFolders::IsMade {
            self.must_be_made_on_a_disk(path)?;
        }
        let last = if writing.create_only { FinalLink::Itself } else { FinalLink::Followed };
        let place = self.find(path, missing, last).map_err(|refusal| match refusal {
            gone if gone.is_missing() && writing.if_match.is_some() => PathRefusal::Changed,
            refusal => refusal,
        })?;
        let Some(name) = &place.name else { return Err(PathRefusal::NotAFile("a folder")) };
        self.must_not_be_own(&place)?;
        must_be_on_a_disk(&place.folder)?;
        let before = match place.folder.facts_of(name) {
            Ok(_) if writing.create_only => return Err(PathRefusal::Exists),
            Ok(known) => {
                must_be_file(&known)?;
                Some(open_before(&place.folder, name, writing)?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        if !is_expected(before.as_ref(), writing)? {
            return Err(PathRefusal::Changed);
        }
        match before {
            None => make(self, &place, name, writing),
            Some(before) => change(self, &place, name, before, writing),
        }
    }

    /// Refuses to create folders on a file system of the kernel, where they have another meaning.
    pub(super) fn must_be_made_on_a_disk(&self, path: &Path) -> Result<(), PathRefusal> {
        for above in path.ancestors().skip(1) {
            let folder = match self.find(above, MissingFolders::Fails, FinalLink::Followed) {
                Ok(ResolvedPath { folder, name: Some(name), .. }) => folder.pass(&name).unwrap_or(folder),
                Ok(ResolvedPath { folder, .. }) => folder,
                Err(refusal) if refusal.is_missing() => continue,
                // The caller resolves the path again, and reports the error.
                Err(_) => return Ok(()),
            };
            return must_be_on_a_disk(&folder);
        }
        Ok(())
    }
}

/// Opens a file that is to be changed. A file that is not writable must not be replaced either.
fn open_before(
    folder: &Folder,
    name: &OsString,
    writing: &WriteRequest<'_>,
) -> Result<ExistingFile, PathRefusal> {
    let file = match folder.open(name, FileAccess::Both) {
        // The whole file is replaced, so it need not be readable.
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                && writing.put == WritePosition::Truncate(0) =>
        {
            folder.open(name, FileAccess::Write)?
        }
        file => file?,
    };
    let known = facts::of(&file)?;
    // Another file may have taken the name in the meantime.
    must_be_file(&known)?;
    Ok(ExistingFile { file, known })
}

fn is_expected(before: Option<&ExistingFile>, writing: &WriteRequest<'_>) -> Result<bool, PathRefusal> {
    match (writing.if_match, before) {
        (None, _) => Ok(true),
        (Some(_), None) => Ok(false),
        (Some(expected), Some(before)) => Ok(etag(&facts::of(&before.file)?) == expected),
    }
}

fn make(
    folders: &Folders,
    place: &ResolvedPath,
    name: &OsString,
    writing: &WriteRequest<'_>,
) -> Result<(), PathRefusal> {
    let new = ReplacementFile::of(folders, place, name)?;
    if let Some(mode) = writing.mode {
        new.permit(mode & PERMISSIONS)?;
    }
    new.fill(writing.content, None, KeptRanges::NOTHING)?;
    if !writing.create_only {
        return Ok(new.replace_target(name)?);
    }
    match new.create_target(name) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(PathRefusal::Exists),
        // Not every file system supports that.
        Err(error) if walk::is_unsupported(&error) => make_at_once(place, name, writing.content),
        Err(error) => Err(error.into()),
    }
}

/// Creates a file under its final name, where readers may see a part of it. Never replaces a file.
fn make_at_once(place: &ResolvedPath, name: &OsString, content: &[u8]) -> Result<(), PathRefusal> {
    let mut file = place.folder.create(name, 0o666).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => PathRefusal::Exists,
        _ => error.into(),
    })?;
    let written = file.write_all(content).and_then(|()| sync(&file));
    if written.is_err() {
        if let Err(error) = place.folder.remove(name) {
            tracing::warn!(%error, "a file that was written in part cannot be removed: it is left at `{}`", place.path.display());
        }
    }
    Ok(written?)
}

fn change(
    folders: &Folders,
    place: &ResolvedPath,
    name: &OsString,
    before: ExistingFile,
    writing: &WriteRequest<'_>,
) -> Result<(), PathRefusal> {
    let ExistingFile { file, known } = before;
    let kept = KeptRanges::of(writing.put, known.size);
    let has_one_name = known.links == 1;
    let is_at_the_end = kept.from == kept.size && kept.before > 0;
    // A change in place that cannot be undone is the last resort.
    let is_undone = kept.size - kept.before <= NEW_BYTES_MAX || kept.bytes() > KEPT_BYTES_MAX;
    if kept.size > NEW_BYTES_MAX && is_at_the_end && has_one_name && is_undone {
        return change_in_place(file, writing.content, kept);
    }
    if kept.bytes() > KEPT_BYTES_MAX {
        return Err(PathRefusal::Unfit(format!("more than {KEPT_BYTES_MAX} bytes of it would be rewritten")));
    }
    let made = ReplacementFile::of(folders, place, name).and_then(|new| {
        new.fill(writing.content, Some((&file, &known)), kept)?;
        Ok(new)
    });
    let placed = made.map_err(PathRefusal::from).and_then(|new| {
        // Checked as late as possible.
        if let Some(expected) = writing.if_match {
            let now = place.folder.open(name, FileAccess::Read).and_then(|now| facts::of(&now));
            if !now.is_ok_and(|now| etag(&now) == expected) {
                return Err(PathRefusal::Changed);
            }
        }
        Ok(new.replace_target(name)?)
    });
    match placed {
        Err(PathRefusal::Failed(error)) if has_one_name && takes_nothing_new(&error) => {
            change_in_place(file, writing.content, kept)
        }
        placed => placed,
    }
}

/// Returns whether no file can be created beside this one, although it may be writable itself.
fn takes_nothing_new(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::ResourceBusy
            | io::ErrorKind::CrossesDevices
            | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Changes a file in place, and restores it if that fails.
fn change_in_place(file: File, content: &[u8], kept: KeptRanges) -> Result<(), PathRefusal> {
    let replaced = match kept.size - kept.before <= NEW_BYTES_MAX {
        true => read_at_end(&file, kept.before),
        false => Err(io::ErrorKind::FileTooLarge.into()),
    };
    // The bytes that stay behind the change are all bytes from its beginning on.
    let rest = match &replaced {
        _ if kept.from >= kept.size => &[][..],
        Ok(replaced) => replaced,
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            return Err(PathRefusal::Unfit(format!("more than {NEW_BYTES_MAX} bytes of it would be moved")));
        }
        Err(_) => return replaced.map(drop).map_err(PathRefusal::from),
    };
    let Err(error) = replace_end(&file, kept.before, &[content, rest]) else { return Ok(()) };
    let restored = replaced.and_then(|replaced| {
        // Excess bytes are cut off first, since the disk may be full.
        file.set_len(kept.size)?;
        (&file).seek(SeekFrom::Start(kept.before))?;
        (&file).write_all(&replaced)?;
        sync(&file)
    });
    match restored {
        Ok(()) => Err(error.into()),
        Err(why) => {
            tracing::warn!(error = %why, "a file was changed in part and cannot be restored");
            let done = format!("a part of it was changed, which could not be undone ({why})");
            Err(PathRefusal::Partly(done, Box::new(error.into())))
        }
    }
}

fn read_at_end(mut file: &File, position: u64) -> io::Result<Vec<u8>> {
    let mut found = Vec::new();
    file.seek(SeekFrom::Start(position))?;
    file.take(NEW_BYTES_MAX).read_to_end(&mut found)?;
    Ok(found)
}

fn replace_end(mut file: &File, position: u64, parts: &[&[u8]]) -> io::Result<()> {
    file.seek(SeekFrom::Start(position))?;
    for part in parts {
        file.write_all(part)?;
    }
    let end = file.stream_position()?;
    file.set_len(end)?;
    sync(file)
}

/// Refuses folders in file systems of the kernel.
pub(super) fn must_be_on_a_disk(folder: &Folder) -> Result<(), PathRefusal> {
    match folder.is_of_kernel()? {
        true => Err(PathRefusal::NotAFile("one of those that the kernel shows")),
        false => Ok(()),
    }
}
