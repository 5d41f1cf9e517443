//! File of the state folder that names the addresses a host listens on.
//!
//! Owns: that file, which only its owner can read, since it holds the token; it is there while
//! somebody listens, or was killed when he did.
//! Never: prints it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The name of the file.
const FILE: &str = "listening.json";

/// Process that listens, and its addresses.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenNotice {
    /// The process that listens.
    pub process: u32,
    /// URLs, each with the token if one is needed.
    pub listening: Vec<String>,
}

impl ListenNotice {
    /// Reads the notice of a state folder; `None` if there is none, since no host has listened or
    /// the last one has ended.
    pub fn read(folder: &Path) -> io::Result<Option<Self>> {
        match fs::read(folder.join(FILE)) {
            Ok(told) => Ok(Some(serde_json::from_slice(&told)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Publishes it in a state folder, until what is returned is dropped.
    pub fn publish(&self, folder: &Path) -> io::Result<PublishedFile> {
        PublishedFile::write(folder.join(FILE), &serde_json::to_vec(self)?)
    }
}

/// File that tells others of a listener. Only its owner can read it, since it holds the token; it
/// is removed when this is dropped.
#[derive(Debug)]
pub struct PublishedFile(Option<PathBuf>);

impl PublishedFile {
    /// Puts this content in the place of what is there.
    pub(super) fn write(path: PathBuf, content: &[u8]) -> io::Result<Self> {
        let new = path.with_extension("new");
        // A process that was killed may have left it. What is made anew has the mode that is asked
        // for.
        fs::remove_file(&new).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&new)?.write_all(content)?;
        fs::rename(&new, &path)?;
        Ok(Self(Some(path)))
    }

    /// Leaves the file there: it has another content, which another value removes.
    pub(super) fn was_replaced(mut self) {
        self.0 = None;
    }
}

impl Drop for PublishedFile {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        if let Err(error) = fs::remove_file(path) {
            let path = path.display();
            tracing::debug!(%error, %path, "the file that tells of a listener cannot be removed");
        }
    }
}
