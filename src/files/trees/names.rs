//! The names of files and folders: given, taken and given back, each in one step.
//!
//! Owns: what is in the way of a name, and how that is said.
//! Never: copies or removes what has a name.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{fstat, renameat, renameat_with, statat, AtFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::walk::{is_empty, is_folder, open_folder};
use crate::files::folders::{identity, PathRefusal, ResolvedPath};

/// Gives something another name, and says what is in its way.
pub(super) fn put_in_place(
    from: &OwnedFd,
    name: &OsString,
    to: &OwnedFd,
    new: &OsString,
    only_if_free: bool,
) -> Result<(), PathRefusal> {
    let moved = match only_if_free {
        true => match renameat_with(from, name, to, new, RenameFlags::NOREPLACE) {
            // Not every file system can do that; it was free just now.
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

/// Returns whether two names are different names of one file.
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
            // Who may not look will be told in the end.
            _ => Ok(()),
        },
    }
}

/// Gives something a name beside its own, for as long as it is moved.
pub(super) fn put_aside(folder: &OwnedFd, name: &OsString, aside: &OsString) -> Result<(), Errno> {
    renameat(folder, name, folder, aside)
}

/// Gives back the name that something had, unless somebody else has it by now, and says why it was
/// not moved.
pub(super) fn put_back(
    place: &ResolvedPath,
    aside: &OsString,
    name: &OsString,
    why: PathRefusal,
) -> Result<(), PathRefusal> {
    // Where the system cannot take care of that, this does nearly.
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
