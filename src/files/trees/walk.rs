//! Traversal of folders.
//!
//! Owns: the limits of entries, bytes and depth, and the refusal of mounts inside a folder.
//! Never: changes a file.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;

use crate::files::folders::{PathRefusal, DEPTH_MAX};
use crate::os::facts::Facts;
use crate::os::walk::{Folder, MountId};

/// Maximum number of files and folders that one operation copies or removes.
pub(super) const ENTRIES_MAX: u64 = 100_000;

pub(super) const BYTES_MAX: u64 = 4 << 30;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) entries: u64,
    bytes: u64,
}

impl Tally {
    pub(super) fn add_entry(&mut self) -> Result<(), PathRefusal> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(PathRefusal::Unfit(format!("it has more than {ENTRIES_MAX} files and folders")));
        }
        Ok(())
    }

    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(super) fn must_not_be_too_much(&self) -> Result<(), PathRefusal> {
        match self.bytes > BYTES_MAX {
            true => Err(too_many_bytes()),
            false => Ok(()),
        }
    }
}

pub(super) fn too_many_bytes() -> PathRefusal {
    PathRefusal::Unfit(format!("it has more than {BYTES_MAX} bytes"))
}

/// Mount that contains a file. The device alone is not enough, since a file system may be mounted
/// again inside itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mount {
    device: u64,
    id: MountId,
}

impl Mount {
    pub(super) fn of(folder: &Folder) -> Result<Self, PathRefusal> {
        Ok(Self { device: folder.facts()?.identity.0, id: folder.mount()? })
    }

    /// Returns the metadata of a name in a folder, if it exists. Refuses another mount.
    pub(super) fn metadata_of(self, folder: &Folder, name: &OsStr) -> Result<Option<Facts>, PathRefusal> {
        let found = folder.facts_of(name).and_then(|known| Ok((known, folder.mount_of(name)?)));
        let (known, id) = match found {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        self.must_be(Self { device: known.identity.0, id })?;
        Ok(Some(known))
    }

    pub(super) fn open_folder(self, folder: &Folder, name: &OsStr) -> Result<Folder, PathRefusal> {
        let opened = folder.open_folder(name)?;
        self.must_be(Self::of(&opened)?)?;
        Ok(opened)
    }

    pub(super) fn must_be(self, other: Self) -> Result<(), PathRefusal> {
        match self == other {
            true => Ok(()),
            false => Err(PathRefusal::Unfit("another file system is mounted in it".to_owned())),
        }
    }
}

pub(super) fn deeper(depth: usize) -> Result<usize, PathRefusal> {
    match depth + 1 {
        deep if deep < DEPTH_MAX => Ok(deep),
        _ => Err(PathRefusal::Unfit(format!("folders are more than {DEPTH_MAX} deep in it"))),
    }
}

pub(super) fn names_in(folder: &Folder, tally: &mut Tally) -> Result<Vec<OsString>, PathRefusal> {
    let mut names = Vec::new();
    for name in folder.names()? {
        tally.add_entry()?;
        names.push(name?);
    }
    Ok(names)
}

/// Returns whether a folder is empty, without listing a large one.
pub(super) fn is_empty(folder: &Folder) -> Result<bool, PathRefusal> {
    Ok(folder.names()?.next().transpose()?.is_none())
}
