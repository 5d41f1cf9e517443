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
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(folder: &Path) -> io::Result<Option<Self>> {
        match fs::read(folder.join(FILE)) {
            Ok(told) => Ok(Some(serde_json::from_slice(&told)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Puts it up, until what is returned is dropped.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn publish(&self, folder: &Path) -> io::Result<PublishedNotice> {
        let (path, new) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
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
        let mut file = options.open(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&new, &path)?;
        Ok(PublishedNotice(Some(path)))
    }
}

/// A notice that is put up.
#[derive(Debug)]
pub struct PublishedNotice(Option<PathBuf>);

impl PublishedNotice {
    /// Leaves the file there: another notice is in it.
    pub fn was_replaced(mut self) {
        self.0 = None;
    }
}

impl Drop for PublishedNotice {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        if let Err(error) = fs::remove_file(path) {
            tracing::debug!(%error, "the file that tells of listeners cannot be removed from the state folder");
        }
    }
}
