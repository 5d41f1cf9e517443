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

#[cfg(unix)]
mod half {
    pub(super) use std::os::unix::fs::symlink as create;
}

#[cfg(windows)]
mod half {
    use std::fs;
    use std::io;
    use std::os::windows::fs::{symlink_dir, symlink_file};
    use std::path::Path;

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
}
