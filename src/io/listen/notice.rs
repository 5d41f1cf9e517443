//! File of the state folder with the addresses that a host listens on.
//!
//! Owns: the file, which only its owner can read, since it holds the token. It exists while a
//! listener is active, and is left behind if the process is killed.
//! Never: prints the token.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::os::facts::{self, Facts};
use crate::os::private;

const FILE: &str = "listening.json";

/// Process that listens, and its addresses.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenNotice {
    /// Id of the process.
    pub process: u32,
    /// URLs, each with the token if one is needed.
    pub listening: Vec<String>,
}

impl ListenNotice {
    /// Reads the notice of a state folder; `None` if no host has listened or the last one has
    /// exited.
    pub fn read(folder: &Path) -> io::Result<Option<Self>> {
        match fs::read(folder.join(FILE)) {
            Ok(content) => Ok(Some(serde_json::from_slice(&content)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Publishes the notice in a state folder, until the result is dropped.
    pub fn publish(&self, folder: &Path) -> io::Result<PublishedFile> {
        PublishedFile::write(folder.join(FILE), &serde_json::to_vec(self)?)
    }
}

/// File that publishes a listener, for its owner only, since it holds the token. Removed on drop,
/// unless another file has replaced it: a newer one, or that of another host.
#[derive(Debug)]
pub struct PublishedFile {
    path: PathBuf,
    /// Facts about the file once it was written; its name may have changed since.
    written: Facts,
}

impl PublishedFile {
    pub(super) fn write(path: PathBuf, content: &[u8]) -> io::Result<Self> {
        let new = path.with_extension("new");
        // A killed process may have left this file, and only a new file gets the requested mode.
        fs::remove_file(&new).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        private::options().write(true).create_new(true).open(&new)?.write_all(content)?;
        let written = facts::at(&new)?;
        fs::rename(&new, &path)?;
        Ok(Self { path, written })
    }

    fn is_present(&self) -> bool {
        // The system may give the inode of a removed file to a new one.
        let key = |facts: &Facts| (facts.identity, facts.modified);
        facts::at(&self.path).is_ok_and(|present| key(&present) == key(&self.written))
    }
}

impl Drop for PublishedFile {
    fn drop(&mut self) {
        let path = self.path.display();
        if !self.is_present() {
            tracing::debug!(%path, "the file that tells of a listener was replaced or removed");
        } else if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, %path, "the file that tells of a listener cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_file_that_another_host_has_replaced_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let notice = |process| ListenNotice { process, listening: vec![format!("unix:/{process}")] };
        let first = notice(1).publish(folder.path()).unwrap();
        let second = notice(2).publish(folder.path()).unwrap();
        drop(first);
        assert_eq!(ListenNotice::read(folder.path()).unwrap(), Some(notice(2)));
        drop(second);
        assert_eq!(ListenNotice::read(folder.path()).unwrap(), None);
    }
}
