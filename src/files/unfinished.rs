//! Files under temporary names: copies in progress, and files put aside while they are moved.
//!
//! Owns: a record of each such file, in a folder of the host's own; and recovery at the next start,
//! which removes unfinished copies and gives files put aside their names back.
//! Never: touches a file without a record, or removes a file put aside.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::folders::{Folders, PathRefusal};
use super::trees::rename_back;
use crate::os::paths::from_bytes;
use crate::os::private;
use crate::os::walk::Folder;

/// Reason why a file has a temporary name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemporaryName {
    Copy,
    /// File put aside while it is moved.
    Aside,
}

impl TemporaryName {
    fn word(self) -> &'static [u8] {
        match self {
            Self::Copy => b"copy",
            Self::Aside => b"aside",
        }
    }
}

/// Record of the operations in progress of hosts on this state folder.
#[derive(Debug)]
pub struct Unfinished {
    folder: PathBuf,
}

/// Record of one file, removed on drop.
#[derive(Debug)]
pub(super) struct UnfinishedNote(Option<PathBuf>);

/// Operations that an earlier host has not finished.
#[derive(Debug)]
pub struct UnfinishedOperations(Vec<PathBuf>);

impl Unfinished {
    /// Uses this folder, created when needed. Also returns the records of an earlier host.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn open(folder: PathBuf) -> io::Result<(Arc<Self>, UnfinishedOperations)> {
        let left = match fs::read_dir(&folder) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok((Arc::new(Self { folder }), UnfinishedOperations(left)))
    }

    /// Records that a file in `folder` has the temporary name `has` and is meant for `name`. If the
    /// record cannot be written, the operation proceeds without it.
    pub(super) fn remember(
        &self,
        why: TemporaryName,
        folder: &Path,
        has: &OsStr,
        name: &OsStr,
    ) -> UnfinishedNote {
        let note = self.folder.join(Path::new(has).file_stem().unwrap_or(has));
        let paths = [folder.as_os_str(), has, name].map(OsStr::as_encoded_bytes);
        let parts = [why.word(), paths[0], paths[1], paths[2]];
        let text = parts.join(&0);
        let written = fs::write(&note, &text).or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            private::create_folders(&self.folder)?;
            fs::write(&note, &text)
        });
        match written {
            Ok(()) => UnfinishedNote(Some(note)),
            Err(error) => {
                tracing::warn!(%error, "the record of a temporary file cannot be written: if the host is killed now, `{}` stays in `{}`", has.display(), folder.display());
                UnfinishedNote(None)
            }
        }
    }
}

impl UnfinishedNote {
    /// Keeps the record, so that the next host recovers the file.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for UnfinishedNote {
    fn drop(&mut self) {
        let Some(note) = &self.0 else { return };
        if let Err(error) = fs::remove_file(note) {
            tracing::warn!(%error, "the record `{}` of a finished operation cannot be removed: the next start removes it", note.display());
        }
    }
}

impl UnfinishedOperations {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Recovers the recorded files. A record whose recovery fails is kept for the next host.
    pub fn recover(self) {
        for note in self.0 {
            let put = fs::read(&note).map_err(PathRefusal::from).and_then(|left| recover_one(&left));
            let put = put.and_then(|()| Ok(fs::remove_file(&note)?));
            if let Err(refusal) = put {
                tracing::warn!("the operation recorded in `{}`, which an earlier host began, cannot be undone: {refusal}; the next start tries again", note.display());
            }
        }
    }
}

fn recover_one(note: &[u8]) -> Result<(), PathRefusal> {
    let mut parts = note.split(|byte| *byte == 0).map(|part| from_bytes(part).into_owned());
    // A record is written before its operation starts, so an incomplete one has nothing to undo.
    let (Some(why), Some(folder), Some(has), Some(name)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Ok(());
    };
    let folder = Path::new(&folder);
    let opened = match Folder::at(folder) {
        Ok(opened) => opened,
        // The folder was removed, and the file with it.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    if opened.facts_of(&has).is_err() {
        return Ok(());
    }
    if why.as_encoded_bytes() == TemporaryName::Copy.word() {
        Folders::default().remove_copy(&opened, &has)?;
        tracing::info!("a copy that was not finished was removed: `{}`", folder.join(&has).display());
        return Ok(());
    }
    let renamed = rename_back(&opened, &has, &name);
    let (has, name) = (folder.join(&has), folder.join(&name));
    match renamed {
        Ok(()) => {
            tracing::warn!("`{}` was being moved when the host ended, and is where it was", name.display());
        }
        Err(PathRefusal::Destination(why)) => {
            tracing::error!(%why, "`{}` was being moved when the host ended: it is left at `{}`", name.display(), has.display());
        }
        Err(refusal) => return Err(refusal),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names_in(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn begin(notes: &Path) -> Arc<Unfinished> {
        let (unfinished, left) = Unfinished::open(notes.to_owned()).unwrap();
        left.recover();
        unfinished
    }

    #[test]
    fn what_was_not_finished_is_put_right_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let (notes, work) = (folder.path().join("notes"), folder.path().join("work"));
        fs::create_dir(&work).unwrap();
        let unfinished = begin(&notes);
        let leave = |why, has: &str, name: &str| {
            unfinished.remember(why, &work, OsStr::new(has), OsStr::new(name)).keep();
        };
        fs::create_dir_all(work.join(".1.tmp/deep")).unwrap();
        fs::write(work.join(".1.tmp/deep/file"), "x").unwrap();
        fs::write(folder.path().join("outside"), "outside").unwrap();
        symlink("../../outside", work.join(".1.tmp/link")).unwrap();
        leave(TemporaryName::Copy, ".1.tmp", "a");
        fs::write(work.join(".2.tmp"), "moved").unwrap();
        leave(TemporaryName::Aside, ".2.tmp", "b");
        fs::write(work.join(".3.tmp"), "moved").unwrap();
        fs::write(work.join("c"), "other").unwrap();
        leave(TemporaryName::Aside, ".3.tmp", "c");
        // The name `c` is taken, so `.3.tmp` keeps its name; `.4.tmp` does not exist.
        leave(TemporaryName::Copy, ".4.tmp", "d");
        fs::write(work.join(".5.tmp"), "mine").unwrap();
        // This operation was complete.
        drop(unfinished.remember(TemporaryName::Copy, &work, OsStr::new(".5.tmp"), OsStr::new("e")));
        // An incomplete record, and one for a removed folder, have no effect.
        fs::write(notes.join("half"), "copy\0").unwrap();
        unfinished
            .remember(TemporaryName::Copy, &folder.path().join("gone"), OsStr::new(".6.tmp"), OsStr::new("f"))
            .keep();
        // A file whose name cannot be examined stays, and its record with it.
        fs::write(work.join(".7.tmp"), "moved").unwrap();
        leave(TemporaryName::Aside, ".7.tmp", &"g".repeat(300));
        begin(&notes);
        assert_eq!(names_in(&work), [".3.tmp", ".5.tmp", ".7.tmp", "b", "c"]);
        assert_eq!(fs::read_to_string(work.join("b")).unwrap(), "moved");
        assert_eq!(fs::read_to_string(work.join("c")).unwrap(), "other");
        assert_eq!(fs::read_to_string(folder.path().join("outside")).unwrap(), "outside");
        assert_eq!(names_in(&notes), [".7"]);
    }
}
