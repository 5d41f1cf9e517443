//! Programs in pseudo terminals, into which clients type.
//!
//! Owns: [`PtyCommand`] and [`PtyEvent`].
//! Never: runs anything.

use std::fmt;

/// Command to the program in a terminal.
#[derive(Debug, Clone, PartialEq)]
pub enum PtyCommand {
    /// Start of the program. Answered by [`PtyEvent::Started`] or [`PtyEvent::NotStarted`].
    Start(PtyLaunch),
    /// Typed text. Answered by one or more [`PtyEvent::Took`].
    Type(TypedText),
    /// New screen size.
    Resize(ScreenSize),
    /// Termination of the program and all that it has started; no event follows.
    End,
}

/// Typed text. Its `Debug` output hides the text, which may be a password.
#[derive(Clone, PartialEq, Eq)]
pub struct TypedText(pub String);

impl fmt::Debug for TypedText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.0.len())
    }
}

/// Size of a screen, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScreenSize {
    /// Number of columns.
    pub cols: u16,
    /// Number of rows.
    pub rows: u16,
}

/// Program to start in a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtyLaunch {
    /// Command line for the user's shell; `None` for an interactive shell.
    pub command: Option<String>,
    /// `file:` URI of the working directory; `None` for that of the host.
    pub directory: Option<String>,
    /// Initial screen size.
    pub size: ScreenSize,
}

/// Event of the program in a terminal.
#[derive(Clone, PartialEq, Eq)]
pub enum PtyEvent {
    /// Successful start.
    Started {
        /// Name of the program, for people.
        program: String,
    },
    /// Failure to start, with the reason; the last event.
    NotStarted(String),
    /// Output of the program.
    Data(String),
    /// Title that the program or the shell has set.
    Title(String),
    /// Working directory of the shell, as a `file:` URI.
    Directory(String),
    /// Report that the shell marks where its commands begin and end.
    DetectsCommands,
    /// Start of a command line in the shell; empty if the shell did not report the line.
    CommandBegun(String),
    /// End of the shell's last command line; `None` if the shell did not report an exit code.
    CommandDone(Option<i64>),
    /// Silence: the program seems to wait for input.
    Waits,
    /// Number of bytes of typed text that were written to the program.
    Took(usize),
    /// Exit of the program, with its code; `None` if a signal ended it. The last event.
    Exited(Option<i64>),
}

impl fmt::Debug for PtyEvent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { program } => write!(formatter, "started {program}"),
            Self::NotStarted(why) => write!(formatter, "not started: {why}"),
            Self::Data(data) => write!(formatter, "{} bytes printed", data.len()),
            Self::Title(title) => write!(formatter, "a title of {} bytes", title.len()),
            Self::Directory(uri) => write!(formatter, "a directory of {} bytes", uri.len()),
            Self::DetectsCommands => formatter.write_str("it tells commands apart"),
            Self::CommandBegun(line) => write!(formatter, "a command of {} bytes", line.len()),
            Self::CommandDone(code) => write!(formatter, "a command is done: {code:?}"),
            Self::Waits => formatter.write_str("it seems to wait"),
            Self::Took(bytes) => write!(formatter, "{bytes} bytes taken"),
            Self::Exited(code) => write!(formatter, "exited: {code:?}"),
        }
    }
}
