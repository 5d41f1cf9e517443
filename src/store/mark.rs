//! The mark beside the database: evidence that a store was made, and the sequence numbers it may
//! have assigned.
//!
//! Owns: a small file, written before and after a database is made.
//! Never: reads the database. The mark distinguishes a database that never existed from one that
//! was removed or replaced.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::errors::StoreError;
use crate::os::{private, write};

/// Name of the mark, beside the database.
pub(super) const FILE_NAME: &str = "sessions.made";

const ABOUT: &str =
    "The sessions of ahp-sidecar are in the file sessions.sqlite in this folder. While this file exists, \
    ahp-sidecar does not create a new database if that file is missing or empty. To start without \
    sessions, remove the whole folder.\n";

/// State of the database, as the mark records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// No mark. Stores of older versions have none.
    Absent,
    /// A database is being made. No client has received anything that is in it.
    Making,
    Made {
        /// Last sequence number that may have been sent; 0 if it is not known.
        reserved: u64,
    },
}

impl Mark {
    /// Reads the mark beside a database. An unreadable text counts as that of a database that was
    /// made.
    pub(super) fn read(database: &Path) -> io::Result<Self> {
        let text = match fs::read(path_of(database)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Absent),
            text => text?,
        };
        let text = String::from_utf8_lossy(&text);
        Ok(match text.lines().last().unwrap_or_default().trim() {
            "making" => Self::Making,
            made => {
                let reserved =
                    made.strip_prefix("made, numbers up to ").and_then(|number| number.parse().ok());
                Self::Made { reserved: reserved.unwrap_or(0) }
            }
        })
    }

    /// Returns the last sequence number that may have been sent, or 0.
    pub(super) fn reserved(self) -> u64 {
        match self {
            Self::Made { reserved } => reserved,
            Self::Absent | Self::Making => 0,
        }
    }

    /// Writes the mark and syncs it to disk.
    pub(super) fn put(self, database: &Path) -> io::Result<()> {
        write::sync_all(&self.write(database)?)?;
        let folder = path_of(database);
        let folder = folder.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        write::sync_folder(folder)
    }

    /// Updates the numbers of an existing mark without a sync: the database, which is synced, has
    /// them, too.
    pub(super) fn update(self, database: &Path) -> io::Result<()> {
        self.write(database).map(|_| ())
    }

    /// Writes the mark. All marks of a version have the same length, so that overwriting one never
    /// leaves an empty file.
    fn write(self, database: &Path) -> io::Result<File> {
        let state = match self {
            Self::Absent | Self::Making => "making".to_owned(),
            Self::Made { reserved } => format!("made, numbers up to {reserved:020}"),
        };
        let mut file = private::file(&path_of(database))?;
        let text = format!("{ABOUT}{state:40}\n");
        file.write_all(text.as_bytes())?;
        // Another version's text may be longer.
        file.set_len(text.len() as u64)?;
        Ok(file)
    }
}

/// Returns the error of the store for a mark that cannot be read or written.
pub(super) fn failed(database: &Path) -> impl Fn(io::Error) -> StoreError {
    let path = path_of(database).display().to_string();
    move |error| StoreError::Mark(path.clone(), error)
}

pub(super) fn path_of(database: &Path) -> PathBuf {
    database.with_file_name(FILE_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_holds_the_state_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("x.sqlite");
        assert_eq!(Mark::read(&database).unwrap(), Mark::Absent);
        let reserved = u64::MAX;
        for mark in [Mark::Making, Mark::Made { reserved }, Mark::Made { reserved: 7 }, Mark::Making] {
            mark.put(&database).unwrap();
            assert_eq!(Mark::read(&database).unwrap(), mark);
        }
        // An older version may have had a longer text.
        fs::write(path_of(&database), format!("{ABOUT}{ABOUT}made, numbers up to 9\n")).unwrap();
        Mark::Made { reserved: 8 }.update(&database).unwrap();
        assert_eq!(Mark::read(&database).unwrap().reserved(), 8);
    }

    #[test]
    fn a_mark_that_cannot_be_understood_is_one_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("x.sqlite");
        for text in ["", "?", "made, numbers up to many\n"] {
            fs::write(path_of(&database), text).unwrap();
            assert_eq!(Mark::read(&database).unwrap(), Mark::Made { reserved: 0 }, "{text:?}");
        }
    }
}
