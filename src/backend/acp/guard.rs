//! The guard: this program again, in a hidden mode, as the parent of one agent and leader of its process
//! group.
//!
//! Owns: that nothing of an agent outlives us. The agent's stdin is a pipe that we alone write to; when it
//! ends, by our will or with our death, the agent has a moment to leave, then its whole group is asked to, then
//! it is killed. What an agent that has ended leaves behind goes the same way. Also says how the agent ended.
//! Never: reads or writes a byte of the agent's. A descendant that leaves the group is not found.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::process::{
    getpid, getppid, kill_process_group, setpgid, test_kill_process_group, wait, Pid, Signal, WaitOptions,
    WaitStatus,
};
use tokio::signal::unix::{signal, SignalKind};

/// How long an agent has to leave after its stdin has ended, and again after it was asked to leave.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// What is added to the number of the signal that ended an agent, as shells do, to make it an exit status.
pub const BY_SIGNAL: i32 = 128;

/// The exit status when the agent cannot be started.
const NOT_STARTED: i32 = 127;

/// How often what is left of a group is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Starts this command and guards it; gives back how it ended, as an exit status.
///
/// The process leads a group of its own from then on. Its stdin must be the pipe to the agent.
pub fn run(command: &[OsString]) -> u8 {
    let status = match guard(command) {
        Ok(status) => status,
        Err(error) => {
            let name = command.first().map(|name| name.display().to_string()).unwrap_or_default();
            // Nobody may be left to read it: the exit status says it too.
            writeln!(io::stderr(), "`{name}` cannot be started: {error}").unwrap_or_default();
            NOT_STARTED
        }
    };
    u8::try_from(status).unwrap_or(u8::MAX)
}

/// Leads a group of its own, whose other members can be ended without it.
pub(super) fn lead() -> io::Result<Pid> {
    let group = getpid();
    // It does already, unless somebody else has started it.
    if setpgid(None, None).is_err() {
        return Err(io::Error::other("the guard cannot lead a group of its own"));
    }
    // What is done to the group is done to its leader too. (Once there was a listener, the signal does nothing
    // else.)
    let listener = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let listening = listener.enter();
    let asked = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    // A group in the background of a terminal is stopped when one of it reads from there.
    let stopped =
        [Signal::TSTP, Signal::TTIN, Signal::TTOU].map(|signal| SignalKind::from_raw(signal.as_raw()));
    for kind in asked.into_iter().chain(stopped) {
        signal(kind).map(drop)?;
    }
    drop(listening);
    adopt_orphans(group);
    Ok(group)
}

/// Starts a command with our stdout and stderr, which are its alone from then on.
pub(super) fn start(command: &[OsString], stdin: Stdio) -> io::Result<Pid> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let started = Command::new(program).args(arguments).stdin(stdin).spawn()?;
    // Its output ends when it and its children say so.
    let nothing = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(i32::try_from(started.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?)
}

fn guard(command: &[OsString]) -> io::Result<i32> {
    let group = lead()?;
    let agent = start(command, Stdio::inherit())?;

    thread::spawn(move || {
        wait_for_the_end_of_stdin();
        thread::sleep(PATIENCE);
        clear(group, Reaps::No);
    });
    let status = as_exit_status(wait_for(agent)?);
    clear(group, Reaps::Yes);
    Ok(status)
}

/// Has what agents leave behind become our children, so that it is reaped, where the system can do that.
fn adopt_orphans(guard: Pid) {
    #[cfg(target_os = "linux")]
    if rustix::process::set_child_subreaper(Some(guard)).is_err() {
        // The first process of all reaps them.
    }
    #[cfg(not(target_os = "linux"))]
    let _: Pid = guard;
}

/// Waits until nobody can write to stdin any more, whether or not all of it has been read.
fn wait_for_the_end_of_stdin() {
    loop {
        let stdin = rustix::stdio::stdin();
        let mut watched = [PollFd::new(&stdin, PollFlags::empty())];
        match poll(&mut watched, None) {
            Ok(_) if watched[0].revents().is_empty() => {}
            Ok(_) => return,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Waits for a child, reaping all others.
pub(super) fn wait_for(agent: Pid) -> io::Result<WaitStatus> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((child, status))) if child == agent => return Ok(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn as_exit_status(status: WaitStatus) -> i32 {
    let by_signal = || status.terminating_signal().map(|signal| BY_SIGNAL + signal);
    status.exit_status().or_else(by_signal).unwrap_or(NOT_STARTED)
}

/// Who does what in this process: only one thread may reap, or the agent's end would go unnoticed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaps {
    /// This one.
    Yes,
    /// Another one.
    No,
}

/// Asks all of a group to leave, and kills what has not.
pub(super) fn clear(group: Pid, reaps: Reaps) {
    // A group can be killed, and how its agent ended still be told, by one who has left it.
    let other = getppid().and_then(group_of);
    let left = other.is_some_and(|other| setpgid(None, Some(other)).is_ok());
    for signal in [Signal::TERM, Signal::KILL] {
        if kill_process_group(group, signal).is_err() {
            // Nobody is left.
            return;
        }
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if left && test_kill_process_group(group).is_err() {
                return;
            }
            // What has ended stays in its group until it is reaped.
            let reaped = reaps == Reaps::Yes && matches!(wait(WaitOptions::NOHANG), Ok(Some(_)));
            if !reaped {
                thread::sleep(LOOK_EVERY);
            }
        }
    }
}

/// The group of a process, if it can be named: in a container it may be one of outside.
#[cfg(target_os = "linux")]
fn group_of(process: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    // The name before it stands in parentheses: then the state, the parent, and the group.
    let (_, rest) = stat.rsplit_once(") ")?;
    let group: i32 = rest.split(' ').nth(2)?.parse().ok()?;
    Some(group).filter(|group| *group > 0).and_then(Pid::from_raw)
}

#[cfg(not(target_os = "linux"))]
fn group_of(process: Pid) -> Option<Pid> {
    rustix::process::getpgid(Some(process)).ok()
}
