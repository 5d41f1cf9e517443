//! Files that a run writes: the patch and the summary.
//!
//! Owns: their places, which are settled before the agent starts.
//! Never: writes through a link, or waits for a reader.

use std::path::{Path, PathBuf};

use anyhow::{bail, Context};

use super::printer::Printer;
use crate::files::named;
use crate::os::paths::NULL_DEVICE;

/// Names of stdout.
const STDOUT: [&str; 2] = ["-", "/dev/stdout"];

/// File of a run's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputFile {
    /// Stdout, behind the answer.
    Stdout,
    /// The null device.
    Null,
    /// Path of a regular file, which may not exist yet.
    File(PathBuf),
}

impl OutputFile {
    /// Returns the file that a flag names.
    ///
    /// # Errors
    /// When it cannot be a regular file.
    pub fn of(path: &Path) -> anyhow::Result<Self> {
        if STDOUT.iter().any(|name| path.as_os_str() == *name) {
            return Ok(Self::Stdout);
        }
        if path.as_os_str() == NULL_DEVICE {
            return Ok(Self::Null);
        }
        named::place(path).map(Self::File).with_context(|| format!("`{}`", path.display()))
    }

    /// Writes the content.
    ///
    /// # Errors
    /// When the file cannot be written. A failure of stdout is the printer's.
    pub fn write(&self, content: &[u8], printer: &mut Printer) -> anyhow::Result<()> {
        match self {
            Self::Stdout => printer.document(content),
            Self::Null => {}
            Self::File(path) => {
                named::replace(path, content).with_context(|| format!("`{}`", path.display()))?;
            }
        }
        Ok(())
    }
}

/// Refuses two outputs in one file.
///
/// # Errors
/// When they are the same file, in which one would hide the other.
pub fn must_differ(patch: Option<&OutputFile>, summary: Option<&OutputFile>) -> anyhow::Result<()> {
    if patch.is_some() && patch == summary && patch != Some(&OutputFile::Null) {
        bail!("--patch and --summary name the same file");
    }
    Ok(())
}
