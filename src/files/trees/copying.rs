//! Copies of files, folders and links under temporary names.
//!
//! Owns: the record of the copied versions; the modes of copied folders.
//! Never: gives a copy its final name, or removes a file.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::walk::{deeper, names_in, too_many_bytes, Mount, Tally, BYTES_MAX};
use crate::files::folders::{must_be_file, PathRefusal};
use crate::os::facts::{self, Facts, FileKind, Identity};
use crate::os::walk::{open_nonblocking, FileAccess, Folder};

/// Permission bits of the owner.
const OWNER: u32 = 0o700;

/// Copied files, each with the version that was copied.
#[derive(Debug, Default)]
pub(super) struct CopyRecord(HashMap<Identity, FileVersion>);

/// Modification time and size of a file; `None` for a folder, which is checked by its entries, and
/// for a link, which never changes.
pub(super) type FileVersion = Option<((i64, i64), u64)>;

impl CopyRecord {
    pub(super) fn add(&mut self, known: &Facts) {
        self.0.insert(known.identity, version(known));
    }

    pub(super) fn must_hold(&self, known: &Facts) -> Result<(), PathRefusal> {
        match self.0.get(&known.identity) {
            Some(copied) if *copied == version(known) => Ok(()),
            _ => Err(PathRefusal::Changed),
        }
    }
}

pub(super) fn version(known: &Facts) -> FileVersion {
    known.is_file().then_some((known.modified, known.size))
}

#[derive(Default)]
pub(super) struct CreatedCopy {
    pub(super) record: CopyRecord,
    /// Created folder; `None` if all modes are final, or a file or link was copied.
    pub(super) made: Option<Folder>,
    /// Modes that deny the owner access to copied folders, the innermost first. They are set last,
    /// since they would prevent a cleanup.
    pub(super) to_close: Vec<PendingMode>,
}

pub(super) struct PendingMode {
    pub(super) way: Vec<OsString>,
    which: Identity,
    mode: u32,
}

impl CreatedCopy {
    /// Sets the modes that were postponed.
    pub(super) fn close(&self) -> Result<(), PathRefusal> {
        let Some(made) = &self.made else { return Ok(()) };
        for PendingMode { way, which, mode } in &self.to_close {
            let mut inner = None;
            for name in way {
                inner = Some(inner.as_ref().unwrap_or(made).open_folder(name)?);
            }
            let folder = inner.as_ref().unwrap_or(made);
            if folder.facts()?.identity != *which {
                return Err(PathRefusal::Changed);
            }
            folder.set_mode(*mode)?;
        }
        Ok(())
    }
}

pub(super) enum CopySource {
    File(File, Facts),
    Folder(Folder),
    Link(OsString, Facts),
}

impl CopySource {
    pub(super) fn open(folder: &Folder, name: &OsString) -> Result<Self, PathRefusal> {
        let known = folder.facts_of(name)?;
        if known.is_folder() {
            return Ok(Self::Folder(folder.open_folder(name)?));
        }
        Self::of_file(&known, || folder.open(name, FileAccess::Read))
    }

    /// Opens the source at an absolute path.
    pub(super) fn at(path: &Path) -> Result<Self, PathRefusal> {
        let known = facts::at(path)?;
        if known.is_folder() {
            return Ok(Self::Folder(Folder::at(path)?));
        }
        Self::of_file(&known, || open_nonblocking(path, false))
    }

    fn of_file(known: &Facts, open: impl FnOnce() -> io::Result<File>) -> Result<Self, PathRefusal> {
        must_be_file(known)?;
        let file = open()?;
        let known = facts::of(&file)?;
        must_be_file(&known)?;
        Ok(Self::File(file, known))
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
    pub(super) fn copy_below(&mut self, from: &Folder, to: &Folder, depth: usize) -> Result<(), PathRefusal> {
        for name in names_in(from, &mut self.done)? {
            let Some(known) = self.mount.metadata_of(from, &name)? else { continue };
            if known.identity == self.made {
                continue;
            }
            match known.kind {
                FileKind::Folder => {
                    let below = self.mount.open_folder(from, &name)?;
                    let known = below.facts()?;
                    self.copy.record.add(&known);
                    to.create_folder(&name, OWNER)?;
                    let made = to.open_folder(&name)?;
                    self.way.push(name);
                    self.copy_below(&below, &made, deeper(depth)?)?;
                    self.end(&made, &known)?;
                    self.way.pop();
                }
                FileKind::Link => {
                    self.copy.record.add(&known);
                    to.create_link(&from.read_link(&name)?, &name)?;
                }
                FileKind::File | FileKind::Other => match CopySource::open(from, &name)? {
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
    pub(super) fn end(&mut self, made: &Folder, known: &Facts) -> Result<(), PathRefusal> {
        let mode = known.mode & 0o777;
        if mode & OWNER != OWNER {
            let which = made.facts()?.identity;
            self.copy.to_close.push(PendingMode { way: self.way.clone(), which, mode });
        }
        Ok(made.set_mode(mode | OWNER)?)
    }
}

pub(super) fn copy_file(
    file: &File,
    known: &Facts,
    folder: &Folder,
    name: &OsString,
    done: &mut Tally,
) -> Result<File, PathRefusal> {
    done.add_bytes(known.size);
    done.must_not_be_too_much()?;
    let mut copy = folder.create(name, 0o600)?;
    let copied = io::copy(&mut file.take(BYTES_MAX + 1), &mut copy)?;
    if copied > BYTES_MAX {
        return Err(too_many_bytes());
    }
    facts::set_mode(&copy, known.mode & 0o777)?;
    Ok(copy)
}
