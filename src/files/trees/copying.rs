//! Copies of files, folders and links under temporary names.
//!
//! Owns: the record of the copied versions; the modes of copied folders.
//! Never: gives a copy its final name, or removes a file.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    fchmod, fstat, mkdirat, openat, readlinkat, statat, symlinkat, AtFlags, FileType, Mode, OFlags, Stat,
};

use super::walk::{
    deeper, is_folder, mode_of, names_in, open_folder, too_many_bytes, Mount, Tally, BYTES_MAX,
};
use crate::files::folders::{identity, must_be_file, Identity, PathRefusal, NONBLOCKING};

/// Copied files, each with the version that was copied.
#[derive(Debug, Default)]
pub(super) struct CopyRecord(HashMap<Identity, FileVersion>);

/// Modification time and size of a file; `None` for a folder, which is checked by its entries, and
/// for a link, which never changes.
pub(super) type FileVersion = Option<(i128, i128, i128)>;

impl CopyRecord {
    pub(super) fn add(&mut self, known: &Stat) {
        self.0.insert(identity(known), version(known));
    }

    pub(super) fn must_hold(&self, known: &Stat) -> Result<(), PathRefusal> {
        match self.0.get(&identity(known)) {
            Some(copied) if *copied == version(known) => Ok(()),
            _ => Err(PathRefusal::Changed),
        }
    }
}

pub(super) fn version(known: &Stat) -> FileVersion {
    let is_file = FileType::from_raw_mode(known.st_mode) == FileType::RegularFile;
    is_file.then(|| (known.st_mtime.into(), known.st_mtime_nsec.into(), known.st_size.into()))
}

#[derive(Default)]
pub(super) struct CreatedCopy {
    pub(super) record: CopyRecord,
    /// Created folder; `None` if a file or link was copied.
    pub(super) made: Option<OwnedFd>,
    /// Modes that deny the owner access to copied folders, the innermost first. They are set last,
    /// since they would prevent a cleanup.
    to_close: Vec<PendingMode>,
}

pub(super) struct PendingMode {
    pub(super) way: Vec<OsString>,
    which: Identity,
    mode: Mode,
}

impl CreatedCopy {
    /// Sets the modes that were postponed.
    pub(super) fn close(&self) -> Result<(), PathRefusal> {
        let Some(made) = &self.made else { return Ok(()) };
        for PendingMode { way, which, mode } in &self.to_close {
            let mut inner = None;
            for name in way {
                inner = Some(open_folder(inner.as_ref().unwrap_or(made), name)?);
            }
            let folder = inner.as_ref().unwrap_or(made);
            if identity(&fstat(folder)?) != *which {
                return Err(PathRefusal::Changed);
            }
            fchmod(folder, *mode)?;
        }
        Ok(())
    }
}

pub(super) enum CopySource {
    File(File, Stat),
    Folder(OwnedFd),
    Link(Vec<u8>, Stat),
}

impl CopySource {
    pub(super) fn open(folder: impl AsFd, name: impl AsRef<Path>) -> Result<Self, PathRefusal> {
        let (folder, name) = (folder.as_fd(), name.as_ref());
        let known = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if is_folder(&known) {
            return Ok(Self::Folder(open_folder(folder, name)?));
        }
        must_be_file(&known)?;
        let file = openat(folder, name, OFlags::RDONLY | NONBLOCKING, Mode::empty())?;
        let known = fstat(&file)?;
        must_be_file(&known)?;
        Ok(Self::File(file.into(), known))
    }
}

pub(super) struct Copying {
    pub(super) mount: Mount,
    /// Identity of the copy, so that it is not copied into itself.
    pub(super) made: Identity,
    /// Names on the way to the folder that is copied now.
    pub(super) way: Vec<OsString>,
    pub(super) done: Tally,
    pub(super) copy: CreatedCopy,
}

impl Copying {
    pub(super) fn copy_below(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        depth: usize,
    ) -> Result<(), PathRefusal> {
        for name in names_in(from, &mut self.done)? {
            let Some(known) = self.mount.metadata_of(from, &name)? else { continue };
            if identity(&known) == self.made {
                continue;
            }
            match FileType::from_raw_mode(known.st_mode) {
                FileType::Directory => {
                    let below = self.mount.open_folder(from, &name)?;
                    let known = fstat(&below)?;
                    self.copy.record.add(&known);
                    mkdirat(to, &name, Mode::RWXU)?;
                    let made = open_folder(to, &name)?;
                    self.way.push(name);
                    self.copy_below(below.as_fd(), made.as_fd(), deeper(depth)?)?;
                    self.end(&made, &known)?;
                    self.way.pop();
                }
                FileType::Symlink => {
                    self.copy.record.add(&known);
                    symlinkat(readlinkat(from, &name, Vec::new())?, to, &name)?;
                }
                _ => match CopySource::open(from, &name)? {
                    CopySource::File(file, known) => {
                        self.copy.record.add(&known);
                        drop(copy_file(&file, &known, to, &name, &mut self.done)?);
                    }
                    CopySource::Folder(_) | CopySource::Link(..) => return Err(PathRefusal::Changed),
                },
            }
        }
        Ok(())
    }

    /// Sets the mode of a copied folder, but postpones one that denies the owner access.
    pub(super) fn end(&mut self, made: &OwnedFd, known: &Stat) -> Result<(), PathRefusal> {
        let mode = mode_of(known);
        if !mode.contains(Mode::RWXU) {
            let which = identity(&fstat(made)?);
            self.copy.to_close.push(PendingMode { way: self.way.clone(), which, mode });
        }
        Ok(fchmod(made, mode | Mode::RWXU)?)
    }
}

pub(super) fn copy_file(
    file: &File,
    known: &Stat,
    folder: impl AsFd,
    name: &OsString,
    done: &mut Tally,
) -> Result<File, PathRefusal> {
    done.add_bytes(u64::try_from(known.st_size).unwrap_or(0));
    done.must_not_be_too_much()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | NONBLOCKING;
    let mut copy = File::from(openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?);
    let copied = io::copy(&mut file.take(BYTES_MAX + 1), &mut copy)?;
    if copied > BYTES_MAX {
        return Err(too_many_bytes());
    }
    fchmod(&copy, mode_of(known))?;
    Ok(copy)
}
