//! One guard for all programs in terminals of a host.
//!
//! A process of ours costs more memory than all else that a terminal takes while nothing happens in
//! it, so the terminals of a host share one guard. It is started with the first of them, and ends
//! with the last, or with the host. Of each terminal it holds one end of a socket, over which it
//! gets what to start there, and over which it tells what becomes of that, as any guard of a
//! command does. When the other end is gone, by the host's will or with its death, all that
//! descends from the program is asked to leave and then killed, and nothing of another terminal's.
//!
//! Who has left its session and its parents becomes a child of the guard, which has such children
//! of all terminals. They are told apart by a number (`marks`) that a program gets before it
//! begins, and that all who descend from it inherit.
//!
//! In reading order: this file (what a program is started with, and how that is said to the guard),
//! `host` (the host's side), `marks`, `families` (who belongs to which terminal), `guard` (the
//! guard's process).
//!
//! Where one guard cannot do this, each terminal has a guard of its own: where orphans cannot be
//! adopted (only Linux lets one), where `/proc` does not show them, or where there is no number
//! left to give.
//!
//! Owns: that nothing of a terminal outlives it, and that nothing of another one ends with it.
//! Never: reads or writes a byte of a program's; guards an agent.

#[cfg(target_os = "linux")]
mod families;
#[cfg(target_os = "linux")]
pub mod guard;
pub mod host;
#[cfg(target_os = "linux")]
pub mod marks;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Argument that makes this program the guard that terminals share.
pub const SHARED: &str = "--terminals";

/// Reply of the guard when it has a terminal, and knows the program to start there.
const TAKEN: &[u8] = b"taken\n";

/// Message of the guard about a terminal that it is about to end: it shows that the guard is at
/// work.
#[cfg(target_os = "linux")]
const ENDING: &str = "ending";

/// Message of the guard about a terminal that was to end, when nothing of it is left.
const GONE: &str = "gone";

/// Terminator of each text that is sent to the guard: the system takes no text that contains it.
const END: u8 = 0;

/// A program that is to be started in a terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TerminalProgram {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Complete environment of the program.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory of the program; `None` for the host's.
    pub directory: Option<PathBuf>,
}

impl TerminalProgram {
    /// Itself in bytes.
    fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let directory = self.directory.as_ref().map_or(OsStr::new(""), |path| path.as_os_str());
        let count = OsString::from(self.command.len().to_string());
        let mut texts = vec![directory, count.as_os_str()];
        texts.extend(self.command.iter().map(OsString::as_os_str));
        texts.extend(self.environment.iter().flat_map(|(name, value)| [name.as_os_str(), value.as_os_str()]));
        let mut bytes = Vec::new();
        for text in texts {
            if text.as_bytes().contains(&END) {
                let why = "a byte of zero is in what the program is to be told";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(END);
        }
        Ok(bytes)
    }

    /// Parses the bytes of [`Self::to_bytes`]; `None` if they do not fit.
    #[cfg(target_os = "linux")]
    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let mut texts = bytes.strip_suffix(&[END])?.split(|byte| *byte == END);
        let mut next = || texts.next().map(|text| OsString::from_vec(text.to_owned()));
        let directory = next().map(PathBuf::from)?;
        let count: usize = next()?.to_str()?.parse().ok()?;
        let command = (0..count).map(|_| next()).collect::<Option<Vec<_>>>()?;
        let mut environment = Vec::new();
        while let Some(name) = next() {
            environment.push((name, next()?));
        }
        let directory = (!directory.as_os_str().is_empty()).then_some(directory);
        Some(Self { command, environment, directory })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_is_started_with_is_said_to_the_guard_as_it_is() {
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_owned());
        let whole = TerminalProgram {
            command: vec![text(b"/bin/sh"), text(b""), text(b"-c\n\xff")],
            environment: vec![(text(b"A"), text(b"")), (text(b"B"), text(b"b=\xfe\n"))],
            directory: Some("/a b".into()),
        };
        for program in [whole.clone(), TerminalProgram { directory: None, environment: vec![], ..whole }] {
            let bytes = program.to_bytes().unwrap();
            assert_eq!(TerminalProgram::of_bytes(&bytes), Some(program));
            assert_eq!(TerminalProgram::of_bytes(&bytes[..bytes.len() - 1]), None);
        }
        // Nothing can be said behind the end of a text.
        let two = TerminalProgram { command: vec![text(b"a\0b")], ..TerminalProgram::default() };
        assert_eq!(two.to_bytes().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
