//! Unix: a pair of files, of which the program has one.
//!
//! Owns: opening the pair, and the modes and the foreground process group of a terminal.
//! Never: starts the program; its guard does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::ioctl_fionbio;
use rustix::process::Pid;
use rustix::pty::{grantpt, openpt, unlockpt, OpenptFlags};
use rustix::termios::{
    tcgetattr, tcgetpgrp, tcsetattr, tcsetwinsize, InputModes, LocalModes, OptionalActions, Winsize,
};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::PtySize;
use crate::os::process::{Control, Guard, GuardProgram};

/// Output of a terminal. Its end is an error on Linux.
pub type Printed = pipe::Receiver;

/// Input of a terminal, which stands for the terminal itself.
pub type Typing = pipe::Sender;

/// Process group in the foreground of a terminal.
pub type ForegroundGroup = Pid;

/// Starts a program in a new terminal of this size. Requires a runtime.
///
/// # Errors
/// When the system has no more terminals, or this program cannot be started again.
pub fn open(
    guards: &GuardProgram,
    command: Command,
    size: PtySize,
) -> io::Result<(Guard, Control, Printed, Typing)> {
    let (master, terminal) = open_terminal()?;
    set_size(&master, size)?;
    let (printed, typing) = ends_of(master)?;
    let (guard, control) = guards.start_in_terminal(command, terminal)?;
    Ok((guard, control, printed, typing))
}

/// Returns both directions of the host side of a terminal.
///
/// # Errors
/// When no more files can be opened.
pub fn ends_of(master: OwnedFd) -> io::Result<(Printed, Typing)> {
    ioctl_fionbio(&master, true)?;
    let printed = pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?;
    Ok((printed, pipe::Sender::from_owned_fd_unchecked(master)?))
}

/// Opens a pseudo terminal; returns the host side and the program side.
///
/// # Errors
/// When the system has no more terminals.
pub fn open_terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    let (master, terminal) = {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let terminal = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
        (master, terminal)
    };
    #[cfg(any(feature = "portable", not(target_os = "linux")))]
    let (master, terminal) = {
        use rustix::fs::{Mode, OFlags};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = rustix::pty::ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(name, flags, Mode::empty())?;
        (master, terminal)
    };
    // Erasing deletes whole UTF-8 characters, not bytes.
    let mut modes = tcgetattr(&terminal)?;
    modes.input_modes |= InputModes::IUTF8;
    tcsetattr(&terminal, OptionalActions::Now, &modes)?;
    Ok((master, terminal))
}

/// Changes the size of a terminal, and notifies its programs.
///
/// # Errors
/// When the terminal is closed.
pub fn set_size(terminal: impl AsFd, (cols, rows): PtySize) -> io::Result<()> {
    Ok(tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })?)
}

/// Writes at least one byte, once the terminal takes some; returns their number. Nothing is written
/// if the future is dropped before its end.
///
/// # Errors
/// When the terminal is closed.
pub async fn write(terminal: &mut Typing, bytes: &[u8]) -> io::Result<usize> {
    terminal.write(bytes).await
}

/// Returns the process group in the foreground; `None` if there is none.
pub fn foreground(terminal: &Typing) -> Option<ForegroundGroup> {
    tcgetpgrp(terminal).ok()
}

/// Returns the name of the program that leads a process group; `None` if it has ended.
#[cfg(all(target_os = "linux", not(feature = "portable")))]
pub fn name_of(group: ForegroundGroup) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{}/comm", group.as_raw_pid())).ok()
}

/// Returns the name of the program that leads a process group; `None` if it has ended.
#[cfg(any(feature = "portable", not(target_os = "linux")))]
pub fn name_of(group: ForegroundGroup) -> Option<String> {
    use std::process::{Command, Stdio};
    // The programs that a user starts change seldom: a process for each change is cheap enough.
    let mut ps = Command::new("/bin/ps");
    ps.args(["-o", "comm=", "-p", &group.as_raw_pid().to_string()]).stdin(Stdio::null());
    let output = String::from_utf8(ps.output().ok()?.stdout).ok()?;
    // macOS has the whole path, and the name of a login shell begins with a dash.
    output.trim().rsplit('/').next().map(|name| name.trim_start_matches('-').to_owned())
}

/// Returns whether the foreground program seems to wait for input: it reads single characters,
/// or echo is off. A program that reads a line in the usual way cannot be distinguished from one
/// that works.
pub fn seems_to_await_input(terminal: &Typing) -> bool {
    let modes = tcgetattr(terminal).map(|modes| modes.local_modes);
    modes.is_ok_and(|modes| !modes.contains(LocalModes::ICANON) || !modes.contains(LocalModes::ECHO))
}
