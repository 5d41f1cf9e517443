//! The mark beside the database: that a store was made here, and which sequence numbers it may have
//! given.
//!
//! Owns: a small file that is written before a database is made, and again when it is made.
//! Never: looks into the database; it only tells one that was never there from one that is gone or
//! was replaced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The mark's name, beside the database.
pub(super) const FILE_NAME: &str = "sessions.made";

/// Text for a person who opens the file.
const ABOUT: &str =
    "The sessions of ahp-sidecar are in the file sessions.sqlite beside this one. While this file \
    is here, no new store is begun when that one is gone or empty. To begin anew, remove the whole folder.\n";

/// Statement of the mark about the database beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// No mark. Stores of older versions have none.
    Absent,
    /// A database is being made, and holds nothing yet that anybody was told.
    Making,
    /// A database was made.
    Made {
        /// Sequence numbers up to this one may have been told, as far as this is known; 0 when it
        /// is not.
        reserved: u64,
    },
}

impl Mark {
    /// The mark beside a database. One that cannot be understood was one of a store that was made.
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

    /// The last sequence number that may have been told, as far as the mark knows.
    pub(super) fn reserved(self) -> u64 {
        match self {
            Self::Made { reserved } => reserved,
            Self::Absent | Self::Making => 0,
        }
    }

    /// Writes the mark, so that it is still there after a loss of power.
    pub(super) fn put(self, database: &Path) -> io::Result<()> {
        self.write(database)?.sync_all()?;
        let folder = path_of(database);
        let folder = folder.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }

    /// Writes other numbers into a mark that is there. They need not survive a loss of power: the
    /// database, which is synced, knows them too.
    pub(super) fn update(self, database: &Path) -> io::Result<()> {
        self.write(database).map(|_| ())
    }

    /// Marks of the same length, so that one is written over the other without an empty file in
    /// between.
    fn write(self, database: &Path) -> io::Result<File> {
        let says = match self {
            Self::Absent | Self::Making => "making".to_owned(),
            Self::Made { reserved } => format!("made, numbers up to {reserved:020}"),
        };
        let path = path_of(database);
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(format!("{ABOUT}{says:40}\n").as_bytes())?;
        Ok(file)
    }
}

/// Returns the path of a database's mark.
pub(super) fn path_of(database: &Path) -> PathBuf {
    database.with_file_name(FILE_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_what_was_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("x.sqlite");
        assert_eq!(Mark::read(&database).unwrap(), Mark::Absent);
        let reserved = u64::MAX;
        for mark in [Mark::Making, Mark::Made { reserved }, Mark::Made { reserved: 7 }, Mark::Making] {
            mark.put(&database).unwrap();
            assert_eq!(Mark::read(&database).unwrap(), mark);
        }
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
