//! Programs in terminals of their own, into which clients type: what the core has done with one,
//! and what it hears of it.
//!
//! Owns: [`PtyCommand`] and [`PtyEvent`].
//! Never: runs anything.

use std::fmt;

/// Command to the program in a terminal.
#[derive(Debug, Clone, PartialEq)]
pub enum PtyCommand {
    /// Start it. Answered by [`PtyEvent::Started`] or [`PtyEvent::NotStarted`].
    Start(PtyLaunch),
    /// Typed text. Answered by [`PtyEvent::Took`], in one piece or in several.
    Type(TypedText),
    /// New size of the screen.
    Resize(ScreenSize),
    /// End it, with all that it has started. Nothing more is heard of it.
    End,
}

/// Typed text. It may be a password: nothing prints it.
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
    /// In a row.
    pub cols: u16,
    /// Below each other.
    pub rows: u16,
}

/// A program that is to be started in a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtyLaunch {
    /// A line for the user's shell to run; none for the shell itself, in which its user types.
    pub command: Option<String>,
    /// The `file:` URI of the folder that it starts in; that of the host when there is none.
    pub directory: Option<String>,
    /// The size of its screen.
    pub size: ScreenSize,
}

/// Event of the program in a terminal.
#[derive(Clone, PartialEq, Eq)]
pub enum PtyEvent {
    /// Start.
    Started {
        /// The name of the program, for people.
        program: String,
    },
    /// Failure to start, with the reason; the last event.
    NotStarted(String),
    /// Output.
    Data(String),
    /// Title, from the program or the shell.
    Title(String),
    /// The shell in it works in this directory now, a `file:` URI.
    Directory(String),
    /// The shell tells its commands apart.
    DetectsCommands,
    /// The shell runs this line; it is empty where the shell has not said which.
    CommandBegun(String),
    /// The line that the shell ran last is done, with this exit code if it has said one.
    CommandDone(Option<i64>),
    /// Silence: the program seems to wait for input.
    Waits,
    /// Number of bytes of typed text that the program was given.
    Took(usize),
    /// End, with the exit code unless a signal has ended it; the last event.
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
