//! Files that the user names to be written as a whole: a configuration, a patch.
//!
//! Owns: writing one at once, so that a reader or a crash finds the old or the new content.
//! Never: writes to anything but a regular file, waits for a reader of a pipe, or writes outside of
//! the file's folder, whatever is at its path by then.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::facts::etag;
use super::folders::{must_be_file, Folders, PathRefusal};
use super::replacement::Replacement;
use super::writing::WriteRequest;
use crate::os::facts::{self, FileKind};
use crate::os::paths::canonical;

/// Permission bits of which at least one allows writing.
const WRITABLE: u32 = 0o222;

/// Content that a file must have to be written.
#[derive(Debug, Clone, Copy)]
pub enum Expected<'a> {
    /// No content: the file does not exist.
    Nothing,
    /// Content of this version.
    Version(&'a str),
}

/// Returns the version of the content of an open file.
///
/// # Errors
/// When the system does not report it.
pub fn version_of(file: &File) -> io::Result<String> {
    Ok(etag(&facts::of(file)?))
}

/// Returns the path of a file that may be replaced, in the folder that its name leads to now.
///
/// # Errors
/// When there is no such folder, or something other than a file or a link has the name.
pub fn place(path: &Path) -> Result<PathBuf, PathRefusal> {
    let whole = std::path::absolute(path)?;
    let (Some(folder), Some(name)) = (whole.parent(), whole.file_name()) else {
        return Err(PathRefusal::NotAFile("a folder"));
    };
    let place = canonical(folder)?.join(name);
    is_link(&place)?;
    Ok(place)
}

/// Returns whether there is a link at a path; false if there is a file or nothing.
fn is_link(path: &Path) -> Result<bool, PathRefusal> {
    match facts::at(path) {
        Ok(known) if known.kind == FileKind::Link => Ok(true),
        Ok(known) => must_be_file(&known).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Writes the file at a path of [`place`]. A link there is replaced; a file keeps its attributes.
///
/// # Errors
/// When it cannot be written, or is no file any more.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), PathRefusal> {
    let folders = folders_of(path);
    match is_link(path)? {
        true => folders.replace(path, Replacement::File(content)),
        false => folders.put(path, &WriteRequest::whole(content)),
    }
}

/// Writes a file that must have the expected content. An existing file keeps its attributes and its
/// owner; a new one has `mode`.
///
/// # Errors
/// With [`PathRefusal::Changed`] or [`PathRefusal::Exists`] when it has another content; otherwise
/// when it may not be written.
pub fn change(path: &Path, content: &[u8], expected: Expected<'_>, mode: u32) -> Result<(), PathRefusal> {
    let whole = WriteRequest::whole(content);
    let writing = match expected {
        Expected::Nothing => WriteRequest { create_only: true, mode: Some(mode), ..whole },
        Expected::Version(version) => WriteRequest { if_match: Some(version), ..whole },
    };
    must_be_changeable(path)?;
    folders_of(path).put(path, &writing)
}

/// Checks that a path has a file that may be changed, or nothing.
///
/// # Errors
/// When it has something else, or the file is read-only. The superuser could write such a file, but
/// its owner does not want it to be written.
pub fn must_be_changeable(path: &Path) -> Result<(), PathRefusal> {
    match facts::at(path) {
        Ok(known) if known.is_file() && known.mode & WRITABLE == 0 => {
            Err(PathRefusal::Unfit("it is read-only: make it writable first".to_owned()))
        }
        Ok(known) => must_be_file(&known),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn folders_of(path: &Path) -> Folders {
    Folders::new(path.parent().map(Path::to_owned).into_iter().collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{symlink, PermissionsExt};
    use std::process::Command;

    use super::*;

    #[test]
    fn link_is_replaced_and_its_target_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("target"), "old").unwrap();
        for target in ["target", "missing"] {
            symlink(target, at("link")).unwrap();
            replace(&place(&at("link")).unwrap(), b"new").unwrap();
            assert_eq!(fs::read_to_string(at("link")).unwrap(), "new");
            assert!(!at("link").is_symlink() && !at("missing").exists());
            fs::remove_file(at("link")).unwrap();
        }
        assert_eq!(fs::read_to_string(at("target")).unwrap(), "old");
    }

    #[test]
    fn pipe_and_folder_are_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&pipe, folder.path(), Path::new("/dev/full"), &folder.path().join("no/such")] {
            assert!(place(path).is_err(), "{}", path.display());
        }
        let place = canonical(folder.path()).unwrap().join("pipe");
        assert!(matches!(replace(&place, b"x"), Err(PathRefusal::NotAFile(_))));
    }

    #[test]
    fn file_with_another_content_or_without_permission_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = canonical(folder.path()).unwrap().join("file");
        change(&path, b"one", Expected::Nothing, 0o600).unwrap();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        let version = version_of(&File::open(&path).unwrap()).unwrap();
        assert!(matches!(change(&path, b"x", Expected::Nothing, 0o600), Err(PathRefusal::Exists)));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let version_now = version_of(&File::open(&path).unwrap()).unwrap();
        let changed = change(&path, b"x", Expected::Version(&version), 0o600);
        assert!(matches!(changed, Err(PathRefusal::Changed)));
        change(&path, b"two", Expected::Version(&version_now), 0o600).unwrap();
        assert_eq!((mode(), fs::read_to_string(&path).unwrap().as_str()), (0o640, "two"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o440)).unwrap();
        let version = version_of(&File::open(&path).unwrap()).unwrap();
        let refused = change(&path, b"x", Expected::Version(&version), 0o600).unwrap_err();
        assert!(refused.to_string().contains("read-only"), "{refused}");
    }
}
