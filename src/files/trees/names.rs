//! Renaming files and folders in one step.
//!
//! Owns: the obstacles to a name, and their error messages.
//! Never: copies or removes a file.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{fstat, renameat, renameat_with, statat, AtFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::walk::{is_empty, is_folder, open_folder};
use crate::files::folders::{identity, PathRefusal, ResolvedPath};

/// Renames an entry, and reports an obstacle at the new name.
pub(super) fn put_in_place(
    from: &OwnedFd,
    name: &OsString,
    to: &OwnedFd,
    new: &OsString,
    only_if_free: bool,
) -> Result<(), PathRefusal> {
    let moved = match only_if_free {
        true => match renameat_with(from, name, to, new, RenameFlags::NOREPLACE) {
            // Not every file system supports that; the name was free at the last check.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => renameat(from, name, to, new),
            moved => moved,
        },
        false => renameat(from, name, to, new),
    };
    let unfit = |why: &str| Err(of_destination(PathRefusal::Unfit(why.to_owned())));
    match moved {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) if only_if_free => Err(of_destination(PathRefusal::Exists)),
        Err(Errno::EXIST | Errno::NOTEMPTY) => unfit("a folder is there that is not empty"),
        Err(Errno::ISDIR) => unfit("a folder is there"),
        Err(Errno::NOTDIR) => unfit("a file is there"),
        Err(Errno::INVAL) => unfit("a folder cannot be moved into itself"),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the two entries are different hard links to one file.
pub(super) fn is_another_name(
    source: &ResolvedPath,
    name: &OsString,
    known: &Stat,
    target: &ResolvedPath,
    there: &OsString,
) -> Result<bool, PathRefusal> {
    let other = match statat(&target.folder, there, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        other => other?,
    };
    let is_one_name = name == there && identity(&fstat(&source.folder)?) == identity(&fstat(&target.folder)?);
    Ok(!is_folder(known) && known.st_nlink > 1 && identity(known) == identity(&other) && !is_one_name)
}

/// Refuses before anything is copied if the target could not be replaced in the end.
pub(super) fn must_be_replaceable(
    by_folder: bool,
    place: &ResolvedPath,
    name: &OsString,
) -> Result<(), PathRefusal> {
    let known = match statat(&place.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        known => known?,
    };
    let unfit = |why: &str| Err(of_destination(PathRefusal::Unfit(why.to_owned())));
    match (by_folder, is_folder(&known)) {
        (false, false) => Ok(()),
        (false, true) => unfit("a folder is there"),
        (true, false) => unfit("a file is there"),
        (true, true) => match open_folder(&place.folder, name).map(|folder| is_empty(folder.as_fd())) {
            Ok(Ok(false)) => unfit("a folder is there that is not empty"),
            // If the folder cannot be read, the final rename reports the obstacle.
            _ => Ok(()),
        },
    }
}

pub(super) fn put_aside(folder: &OwnedFd, name: &OsString, aside: &OsString) -> Result<(), Errno> {
    renameat(folder, name, folder, aside)
}

/// Gives an entry its name back, unless that is taken, and returns `why`, the reason of the
/// failure.
pub(super) fn put_back(
    place: &ResolvedPath,
    aside: &OsString,
    name: &OsString,
    why: PathRefusal,
) -> Result<(), PathRefusal> {
    // For file systems that cannot rename without replacing, this check comes close.
    let put = match statat(&place.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => put_in_place(&place.folder, aside, &place.folder, name, true),
        Ok(_) => Err(PathRefusal::Exists),
        Err(error) => Err(error.into()),
    };
    match put {
        Ok(()) => Err(why),
        Err(error) => {
            let left = place.path.with_file_name(aside);
            tracing::warn!(%error, "a file that could not be removed cannot be put back: `{}` is left at `{}`", place.path.display(), left.display());
            Err(PathRefusal::Partly(
                format!("what is left of it was put at `{}`", left.display()),
                why.into(),
            ))
        }
    }
}

pub(super) fn of_destination(refusal: PathRefusal) -> PathRefusal {
    PathRefusal::Destination(refusal.into())
}

pub(super) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
