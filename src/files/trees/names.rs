//! Renaming files and folders in one step.
//!
//! Owns: the obstacles to a name, and their error messages.
//! Never: copies or removes a file.

use std::ffi::OsString;
use std::io::{self, ErrorKind};

use super::walk::is_empty;
use crate::files::folders::{PathRefusal, ResolvedPath};
use crate::files::unfinished::UnfinishedNote;
use crate::os::facts::Facts;
use crate::os::walk::{is_unsupported, Folder};

/// Renames an entry, and reports an obstacle at the new name.
pub(super) fn put_in_place(
    from: &Folder,
    name: &OsString,
    to: &Folder,
    new: &OsString,
    only_if_free: bool,
) -> Result<(), PathRefusal> {
    let moved = match only_if_free {
        true => match from.rename_if_free(name, to, new) {
            // Not every file system supports that; the name was free at the last check.
            Err(error) if is_unsupported(&error) => from.rename(name, to, new),
            moved => moved,
        },
        false => from.rename(name, to, new),
    };
    let unfit = |why: &str| Err(of_destination(PathRefusal::Unfit(why.to_owned())));
    let Err(error) = moved else { return Ok(()) };
    match error.kind() {
        ErrorKind::AlreadyExists if only_if_free => Err(of_destination(PathRefusal::Exists)),
        ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty => {
            unfit("a folder is there that is not empty")
        }
        ErrorKind::IsADirectory => unfit("a folder is there"),
        ErrorKind::NotADirectory => unfit("a file is there"),
        ErrorKind::InvalidInput => unfit("a folder cannot be moved into itself"),
        _ => Err(error.into()),
    }
}

/// Returns whether the two entries are different hard links to one file.
pub(super) fn is_another_name(
    source: &ResolvedPath,
    name: &OsString,
    known: &Facts,
    target: &ResolvedPath,
    there: &OsString,
) -> Result<bool, PathRefusal> {
    let other = match target.folder.facts_of(there) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let is_one_name = name == there && source.folder.facts()?.identity == target.folder.facts()?.identity;
    Ok(!known.is_folder() && known.links > 1 && known.identity == other.identity && !is_one_name)
}

/// Returns whether the target is the source's entry under another name.
pub(super) fn is_same_entry(
    source: &ResolvedPath,
    name: &OsString,
    target: &ResolvedPath,
) -> io::Result<bool> {
    let Some(there) = target.name.as_ref().filter(|there| *there != name) else { return Ok(false) };
    if source.folder.facts()?.identity != target.folder.facts()?.identity {
        return Ok(false);
    }
    let known = [source.folder.facts_of(name).ok(), target.folder.facts_of(there).ok()];
    Ok(matches!(known, [Some(one), Some(other)] if has_one_entry(&one, &other)))
}

/// Returns whether the facts under two names in one folder are of one entry, since the file has no
/// other one.
fn has_one_entry(one: &Facts, other: &Facts) -> bool {
    one.identity == other.identity && (one.is_folder() || one.links == 1)
}

/// Refuses before anything is copied if the target could not be replaced in the end.
pub(super) fn must_be_replaceable(
    by_folder: bool,
    place: &ResolvedPath,
    name: &OsString,
) -> Result<(), PathRefusal> {
    let known = match place.folder.facts_of(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        known => known?,
    };
    let unfit = |why: &str| Err(of_destination(PathRefusal::Unfit(why.to_owned())));
    match (by_folder, known.is_folder()) {
        (false, false) => Ok(()),
        (false, true) => unfit("a folder is there"),
        (true, false) => unfit("a file is there"),
        (true, true) => match place.folder.open_folder(name).map(|folder| is_empty(&folder)) {
            Ok(Ok(false)) => unfit("a folder is there that is not empty"),
            // If the folder cannot be read, the final rename reports the obstacle.
            _ => Ok(()),
        },
    }
}

pub(super) fn put_aside(folder: &Folder, name: &OsString, aside: &OsString) -> io::Result<()> {
    folder.rename(name, folder, aside)
}

/// Gives an entry its name back, unless that is taken, and returns `why`, the reason of the
/// failure. If the entry cannot get it, its record is kept, so that the next host tries again.
pub(super) fn put_back(
    place: &ResolvedPath,
    aside: &OsString,
    name: &OsString,
    (remembered, why): (Option<UnfinishedNote>, PathRefusal),
) -> Result<(), PathRefusal> {
    match rename_back(&place.folder, aside, name) {
        Ok(()) => Err(why),
        Err(refusal) if refusal.is_missing() => Err(why),
        Err(error) => {
            remembered.into_iter().for_each(UnfinishedNote::keep);
            let left = place.path.with_file_name(aside);
            tracing::warn!(%error, "`{}` was renamed to be moved or removed, which failed, and cannot get its name back: it is at `{}`", place.path.display(), left.display());
            Err(PathRefusal::Partly(
                format!("what is left of it was put at `{}`", left.display()),
                why.into(),
            ))
        }
    }
}

/// Gives an entry of a folder its name back, unless that is taken.
pub(in crate::files) fn rename_back(
    folder: &Folder,
    aside: &OsString,
    name: &OsString,
) -> Result<(), PathRefusal> {
    // For file systems that cannot rename without replacing, this check comes close.
    match folder.facts_of(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => put_in_place(folder, aside, folder, name, true),
        Ok(_) => Err(of_destination(PathRefusal::Exists)),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn of_destination(refusal: PathRefusal) -> PathRefusal {
    PathRefusal::Destination(refusal.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::files::folders::{FinalLink, Folders, MissingFolders};
    use crate::files::unfinished::{TemporaryName, Unfinished};
    use crate::os::facts;

    #[test]
    fn names_are_of_one_entry_unless_they_are_hard_links() {
        let top = tempfile::tempdir().unwrap();
        let [file, folder] = ["file", "folder"].map(|name| top.path().join(name));
        fs::write(&file, "x").unwrap();
        fs::create_dir_all(folder.join("below")).unwrap();
        let [is_file, is_folder] = [&file, &folder].map(|path| facts::at(path).unwrap());
        assert!(has_one_entry(&is_file, &is_file) && has_one_entry(&is_folder, &is_folder));
        assert!(!has_one_entry(&is_file, &is_folder));
        fs::hard_link(&file, top.path().join("other")).unwrap();
        let is_file = facts::at(&file).unwrap();
        assert!(!has_one_entry(&is_file, &is_file));
        let folders = Folders::new(vec![top.path().to_owned()]);
        let refused = folders.rename(&file, &top.path().join("other"), true).unwrap_err();
        assert!(matches!(refused, PathRefusal::Destination(why) if matches!(*why, PathRefusal::Exists)));
    }

    #[test]
    fn record_of_an_entry_is_kept_if_the_entry_cannot_get_its_name_back() {
        let top = tempfile::tempdir().unwrap();
        let (notes, work) = (top.path().join("notes"), top.path().join("work"));
        fs::create_dir(&work).unwrap();
        let (unfinished, _) = Unfinished::open(notes.clone()).unwrap();
        let folders = Folders::new(vec![work.clone()]).remembering(Some(unfinished));
        let path = work.join("file");
        fs::write(&path, "mine").unwrap();
        let (name, aside) = (OsString::from("file"), OsString::from(".1.tmp"));
        let Ok(place) = folders.find(&path, MissingFolders::Fails, FinalLink::Itself) else { panic!() };
        for is_taken in [false, true] {
            let remembered = folders.remember(TemporaryName::Aside, &place, &aside, &name);
            put_aside(&place.folder, &name, &aside).unwrap();
            if is_taken {
                fs::write(&path, "of somebody else").unwrap();
            }
            put_back(&place, &aside, &name, (remembered, PathRefusal::Changed)).unwrap_err();
            assert_eq!(fs::read_dir(&notes).unwrap().count(), usize::from(is_taken));
            assert_eq!(work.join(&aside).exists(), is_taken);
        }
    }
}
