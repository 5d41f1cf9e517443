//! Exit status of the process.
//!
//! Owns: the numbers, on which scripts and editors rely.
//! Never: ends a process.

/// Internal failure; failure of stdin, stdout, a limit of the system or a command; unusable agent.
pub const EXIT_FAILURE: u8 = 1;
/// Wrong usage or unreadable configuration.
pub const EXIT_USAGE: u8 = 2;
/// The state folder is unusable or held by another process, or its host refuses this process.
pub const EXIT_STATE: u8 = 3;
/// Success, but requests were declined or turns cut short because no client was left to answer.
pub const EXIT_CUT: u8 = 4;
/// The host that served this process is gone.
pub const EXIT_GONE: u8 = 5;
/// `run`: a turn ended with an error of the agent.
pub const EXIT_TURN_FAILED: u8 = 10;
/// `run`: all turns are complete, but a permission was denied or a question declined.
pub const EXIT_DENIED: u8 = 11;
/// `run`: the time limit expired, and the turn was cancelled.
pub const EXIT_TIMED_OUT: u8 = 12;
/// `run`: the agent cannot be used: it is unknown, does not start, or requires a login.
pub const EXIT_UNUSABLE: u8 = 13;
/// `run`: the turn was cancelled, by a signal or by another client. `conform`: a signal has come.
pub const EXIT_CANCELLED: u8 = 130;
/// `run`: all turns are complete, but their output could not be written.
pub const EXIT_OUTPUT: u8 = 14;
/// `replay`: a host has said something else than a transcript.
pub const EXIT_DIFFERENT: u8 = 20;
/// `conform`: a host breaks a law of the protocol.
pub const EXIT_BROKEN: u8 = 22;
/// `record`, `replay` and `conform`: the host cannot be started.
pub const EXIT_NO_HOST: u8 = 21;
