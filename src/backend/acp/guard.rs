//! The guard: this program again, in a hidden mode, as the parent of one agent and leader of its
//! process group.
//!
//! Owns: that nothing of an agent outlives us. Its stdin is the [`lifeline`] to the
//! host, over which it gets what the agent reads; when that ends, by our will or with our death,
//! the agent has a moment to leave, then all that descends from it is asked to, then it is killed.
//! What an agent that has ended leaves behind goes the same way. Also says how the agent ended.
//! Never: reads or writes a byte of the agent's. Where orphans cannot be adopted (only Linux lets
//! one), who has left the group is not found.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{getpid, kill_process_group, setpgid, wait, Pid, Signal, WaitOptions, WaitStatus};
use tokio::signal::unix::{signal, SignalKind};

use super::lifeline;

/// Time for an agent to exit after its stdin has ended, and again after it was asked to exit.
pub const EXIT_GRACE: Duration = Duration::from_millis(500);

/// Offset that makes an exit status of the number of the signal that ended an agent, as shells do.
pub const BY_SIGNAL: i32 = 128;

/// The exit status when the agent cannot be started.
const NOT_STARTED: i32 = 127;

/// Starts this command and guards it; gives back how it ended, as an exit status.
///
/// The process leads a group of its own from then on. Its stdin must be the lifeline.
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

/// Processes that a guard is to end.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessTree {
    /// Process group that the guard leads. A signal to the group reaches the guard too, which
    /// ignores the request to exit.
    group: Pid,
    /// Orphans stay in it, so that it has ended when there is no child left.
    adopts: bool,
}

/// Leads a group of its own, and adopts those below whose parents end.
pub(super) fn lead() -> io::Result<ProcessTree> {
    let group = getpid();
    // It does already, unless somebody else has started it.
    if setpgid(None, None).is_err() {
        return Err(io::Error::other("the guard cannot lead a group of its own"));
    }
    // What is done to the group is done to its leader too. (Once there was a listener, the signal
    // does nothing else.)
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
    Ok(ProcessTree { group, adopts: adopt_orphans() })
}

#[cfg(target_os = "linux")]
fn adopt_orphans() -> bool {
    use rustix::process::{set_child_subreaper, set_parent_process_death_signal};
    // Who is stopped when the host dies must go on: it does not even read the lifeline else.
    if set_parent_process_death_signal(Some(Signal::CONT)).is_err() {
        // It is stopped by nobody but what it guards.
    }
    set_child_subreaper(Some(getpid())).is_ok() && super::descendants::can_be_found()
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> bool {
    false
}

/// The lifeline, which is our stdin.
pub(super) fn lifeline_to_host() -> io::Result<UnixStream> {
    Ok(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Starts a command with our stdout and stderr, which are its alone from then on.
pub(super) fn start(command: &[OsString], stdin: Stdio) -> io::Result<Pid> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let started = Command::new(program).args(arguments).stdin(stdin).spawn()?;
    leave_folder();
    close_output()?;
    number_of(&started)
}

/// Leaves the folder that the command was started in: a guard keeps no file system busy that its
/// command has left.
pub(super) fn leave_folder() {
    if let Err(error) = std::env::set_current_dir("/") {
        tracing::debug!(%error, "a guard stays in the folder of its command");
    }
}

/// Lets go of our stdout and stderr: they end when those say so to whom they were given.
pub(super) fn close_output() -> io::Result<()> {
    let nothing = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}

/// The number of a process that we have started.
pub(super) fn number_of(child: &Child) -> io::Result<Pid> {
    Ok(i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?)
}

/// Reason for which a family is ended.
enum Reason {
    /// The host is gone, or has enough of the agent.
    Host,
    /// The agent has ended, with this status.
    Agent(i32),
}

fn guard(command: &[OsString]) -> io::Result<i32> {
    let mut host = lifeline_to_host()?;
    let family = lead()?;
    let stdin = Stdio::from(lifeline::receive(&host)?);

    // The threads are there before the agent is: nothing runs that nobody could end.
    let (tell, reasons) = channel();
    let agent_has_ended = tell.clone();
    let (has_begun, begins) = channel();
    thread::Builder::new().spawn(move || {
        if begins.recv().is_ok() {
            lifeline::wait_for_the_end(&mut host);
            // Nobody listens when we end already.
            tell.send(Reason::Host).unwrap_or_default();
        }
    })?;
    let ending = thread::Builder::new().spawn(move || end(family, &reasons))?;
    let agent = start(command, stdin)?;
    // The thread waits for it.
    has_begun.send(()).unwrap_or_default();
    let status = as_exit_status(wait_for(agent)?);
    agent_has_ended.send(Reason::Agent(status)).unwrap_or_default();
    family.wait(ending);
    Ok(status)
}

/// Ends a family when there is a reason to, and then the process, unless nobody of it is left
/// before.
fn end(family: ProcessTree, reasons: &Receiver<Reason>) {
    let mut status = None;
    match reasons.recv() {
        Ok(Reason::Agent(how)) => status = Some(how),
        Ok(Reason::Host) => {
            if let Ok(Reason::Agent(how)) = reasons.recv_timeout(EXIT_GRACE) {
                status = Some(how);
            }
        }
        Err(_) => return,
    }
    family.end();
    // There may be somebody who cannot be killed, but it is not the agent.
    while status.is_none() {
        match reasons.recv() {
            Ok(Reason::Agent(how)) => status = Some(how),
            Ok(Reason::Host) => {}
            Err(_) => return,
        }
    }
    std::process::exit(status.unwrap_or(NOT_STARTED));
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

impl ProcessTree {
    /// Waits until nobody of it is left, reaping all; where that cannot be seen, until another
    /// thread has ended it.
    pub(super) fn wait(self, ending: JoinHandle<()>) {
        while matches!(wait(WaitOptions::empty()), Ok(_) | Err(rustix::io::Errno::INTR)) {}
        if !self.adopts {
            // A thread that panics has ended, too.
            ending.join().unwrap_or_default();
        }
    }

    /// Asks all of it to leave, and kills who has not; done when nobody is left, or nobody else can
    /// be killed.
    #[cfg(target_os = "linux")]
    pub(super) fn end(self) {
        use super::descendants;
        // Nobody may be left in the group.
        kill_process_group(self.group, Signal::TERM).unwrap_or_default();
        if self.adopts {
            descendants::terminate(self.group);
        }
        thread::sleep(EXIT_GRACE);
        if !self.adopts || !descendants::can_be_found() {
            // The host sees to what is left.
            kill_process_group(self.group, Signal::KILL).unwrap_or_default();
        }
        if descendants::kill(descendants::ours, || (), EXIT_GRACE) {
            // It is for the one who reaps to say that nobody is left.
            loop {
                thread::park();
            }
        }
    }

    /// Asks all of its group to leave, and kills who has not; done when nobody is left, or nobody
    /// can be killed.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn end(self) {
        use std::time::Instant;
        /// Interval between two checks for remaining processes of a group.
        const POLL_INTERVAL: Duration = Duration::from_millis(5);
        // A group can be killed, and how its agent ended still be told, by one who has left it.
        let other = rustix::process::getppid().and_then(|host| rustix::process::getpgid(Some(host)).ok());
        let left = other.is_some_and(|other| setpgid(None, Some(other)).is_ok());
        for signal in [Signal::TERM, Signal::KILL] {
            if kill_process_group(self.group, signal).is_err() {
                // Nobody is left.
                return;
            }
            let start = Instant::now();
            while start.elapsed() < EXIT_GRACE {
                if left && rustix::process::test_kill_process_group(self.group).is_err() {
                    return;
                }
                thread::sleep(POLL_INTERVAL);
            }
        }
    }
}
