//! Links from a folder of the host's own to files and folders of others.
//!
//! Owns: creating one where not every user may create symbolic links.
//! Never: follows or removes one.

use std::io;
use std::path::Path;

/// Creates a link at `link` that leads to `target`, which may be missing. On Windows, where
/// symbolic links are a privilege, it may be a junction of a folder or another name of a file
/// instead, and nothing for a missing target.
///
/// # Errors
/// When the path is taken, or the file system has none of these.
pub fn create(target: &Path, link: &Path) -> io::Result<()> {
    half::create(target, link)
}

/// Makes a link lead to what `target` is now. On Windows, another name of a file stays with a file
/// that has been replaced, and the target may have been missing.
///
/// # Errors
/// When the link cannot be removed or created.
pub fn renew(target: &Path, link: &Path) -> io::Result<()> {
    half::renew(target, link)
}

#[cfg(unix)]
mod half {
    use std::io;
    pub(super) use std::os::unix::fs::symlink as create;
    use std::path::Path;

    pub(super) fn renew(_: &Path, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(windows)]
mod half {
    use std::fs;
    use std::io;
    use std::os::windows::fs::{symlink_dir, symlink_file};
    use std::path::Path;

    use crate::os::facts;

    pub(super) fn create(target: &Path, link: &Path) -> io::Result<()> {
        match fs::metadata(target) {
            Ok(known) if known.is_dir() => {
                symlink_dir(target, link).or_else(|_| junction::create(target, link))
            }
            Ok(_) => symlink_file(target, link).or_else(|_| fs::hard_link(target, link)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Without the privilege, there is no link until the target exists.
                symlink_file(target, link).or(Ok(()))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn renew(target: &Path, link: &Path) -> io::Result<()> {
        match fs::symlink_metadata(link) {
            // A junction counts as a symbolic link, and no folder has a second name.
            Ok(known) if known.is_symlink() || known.is_dir() => return Ok(()),
            Ok(_) if facts::at(target).is_ok_and(|known| Some(known) == facts::at(link).ok()) => {
                return Ok(())
            }
            Ok(_) => fs::remove_file(link)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        create(target, link)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn link_leads_to_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("folder/file"), "text").unwrap();
        create(&at("folder"), &at("to folder")).unwrap();
        create(&at("folder/file"), &at("to file")).unwrap();
        create(&at("missing"), &at("to nothing")).unwrap();
        for path in ["to folder/file", "to file"] {
            assert_eq!(fs::read_to_string(at(path)).unwrap(), "text", "{path}");
        }
        assert!(create(&at("folder"), &at("folder/file")).is_err());
    }

    #[test]
    fn renewed_link_leads_to_the_file_that_has_replaced_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "old").unwrap();
        for name in ["file", "missing"] {
            create(&at(name), &at("to ").with_extension(name)).unwrap();
        }
        for name in ["file", "missing"] {
            fs::write(at("new"), "new").unwrap();
            fs::rename(at("new"), at(name)).unwrap();
            let link = at("to ").with_extension(name);
            renew(&at(name), &link).unwrap();
            assert_eq!(fs::read_to_string(link).unwrap(), "new", "{name}");
        }
    }
}
