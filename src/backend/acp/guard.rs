//! The guard: this program again, in a hidden mode, as the parent of one program and leader of its
//! process group.
//!
//! The program is an agent, or a command in a terminal. The guard's stdin is the [`lifeline`] to
//! the host. When that ends, by the host's will or with its death, all that descends from the
//! program is asked to leave and then killed. An agent reads what comes over the lifeline first,
//! has a moment to leave by itself then, and what it leaves behind is ended when it has; the guard
//! ends with its status. A command reads nothing; the guard reports what becomes of it, one line
//! each, and what it has left running goes on until the host has enough.
//!
//! A program that is typed into has a terminal of the system's, which is our stdout. It leads a
//! session of its own there, into which it is brought by a leader: this program in a further mode,
//! which turns into it.
//!
//! Owns: that nothing of a program outlives the host, and telling how the program ended by itself.
//! Never: reads or writes a byte of the program's. Where orphans cannot be adopted (only Linux lets
//! one), who has left the group is not found.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{
    getpid, ioctl_tiocsctty, kill_process_group, setpgid, setsid, wait, Pid, Signal, WaitOptions, WaitStatus,
};
use tokio::signal::unix::{signal, SignalKind};

use super::lifeline;

/// Time for an agent to exit after its stdin has ended, and for all programs after they were asked
/// to exit.
pub const EXIT_GRACE: Duration = Duration::from_millis(500);

/// Offset that makes an exit status of the number of the signal that ended an agent, as shells do.
pub const BY_SIGNAL: i32 = 128;

const NOT_STARTED: i32 = 127;

/// News of a command, from its guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardReport {
    /// Start of the command.
    Started,
    /// Reason for which the command cannot be started.
    NotStarted(String),
    /// Exit status of the command.
    Exited(u32),
    /// Number of the signal that ended the command.
    Killed(i32),
}

impl GuardReport {
    fn line(&self) -> String {
        match self {
            Self::Started => "started\n".to_owned(),
            Self::NotStarted(why) => format!("failed {}\n", why.replace('\n', " ")),
            Self::Exited(status) => format!("exited {status}\n"),
            Self::Killed(signal) => format!("killed {signal}\n"),
        }
    }

    /// Parses a line from a guard.
    pub fn of_line(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "started" => Some(Self::Started),
            "failed" => Some(Self::NotStarted(rest.to_owned())),
            "exited" => Some(Self::Exited(rest.parse().ok()?)),
            "killed" => Some(Self::Killed(rest.parse().ok()?)),
            _ => None,
        }
    }

    fn of_status(status: WaitStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (None, Some(signal)) => Self::Killed(signal),
            (status, _) => Self::Exited(status.and_then(|it| u32::try_from(it).ok()).unwrap_or(0)),
        }
    }
}

/// Starts an agent and guards it; returns how it ended, as an exit status.
///
/// The process leads a group of its own from then on. Its stdin must be the lifeline.
pub fn run(command: &[OsString]) -> u8 {
    let status = guard(true, |host| spawn(command, Stdio::from(lifeline::receive(host)?)));
    let status = status.unwrap_or_else(|error| {
        let name = command.first().map(|name| name.display().to_string()).unwrap_or_default();
        // Nobody may be left to read it: the exit status says it too.
        writeln!(io::stderr(), "`{name}` cannot be started: {error}").unwrap_or_default();
        NOT_STARTED
    });
    u8::try_from(status).unwrap_or(u8::MAX)
}

/// Starts a command and guards it, until nothing of it is left. Its stdin must be the lifeline.
pub fn run_command(command: &[OsString]) -> u8 {
    u8::from(guard(false, |_| spawn(command, Stdio::null())).is_err())
}

/// Guards a program that has the terminal which is our stdout. `leader` is how this program is
/// started as its leader, before the command.
pub fn run_in_terminal(leader: Command, command: &[OsString]) -> u8 {
    u8::from(guard(false, |_| spawn_by(leader, command)).is_err())
}

/// Turns into a command, as the leader of a session whose terminal is our stdin and stdout. The
/// reason why that is not possible is written to stderr, which closes when the command runs.
pub fn lead_session(command: &[OsString]) -> u8 {
    let lead = || -> io::Result<Command> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        setsid()?;
        ioctl_tiocsctty(io::stdin())?;
        rustix::stdio::dup2_stderr(io::stdin())?;
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(command)
    };
    if let Ok(told) = io::stderr().as_fd().try_clone_to_owned() {
        let error = lead().map_or_else(|error| error, |mut command| command.exec());
        // The guard waits for it, or is gone.
        File::from(told).write_all(error.to_string().as_bytes()).unwrap_or_default();
    }
    NOT_STARTED as u8
}

/// Processes that a guard is to end.
#[derive(Debug, Clone, Copy)]
struct ProcessTree {
    /// Process group that the guard leads. A signal to the group reaches the guard too, which
    /// ignores the request to exit.
    group: Pid,
    /// Orphans stay in it, so that it has ended when there is no child left.
    adopts: bool,
}

/// Leads a group of its own, and adopts those below whose parents end.
fn lead() -> io::Result<ProcessTree> {
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

/// Starts a command with our stdout and stderr, which are its alone from then on.
fn spawn(command: &[OsString], stdin: Stdio) -> io::Result<Pid> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let started = Command::new(program).args(arguments).stdin(stdin).spawn()?;
    leave_folder();
    close_output()?;
    Ok(Pid::from_child(&started))
}

/// Starts a command that has the terminal which is our stdout, by way of `leader`.
fn spawn_by(mut leader: Command, command: &[OsString]) -> io::Result<Pid> {
    let (mut told, tells) = io::pipe()?;
    let terminal = || io::stdout().as_fd().try_clone_to_owned();
    leader.arg("--").args(command);
    leader.stdin(Stdio::from(terminal()?)).stdout(Stdio::from(terminal()?)).stderr(tells);
    let mut started = leader.spawn()?;
    leave_folder();
    // Nobody but the command has the terminal, and the other end of what is told.
    drop(leader);
    close_output()?;
    let mut why = String::new();
    told.read_to_string(&mut why)?;
    if why.is_empty() {
        return Ok(Pid::from_child(&started));
    }
    started.wait()?;
    Err(io::Error::other(why))
}

/// Leaves the folder that the command was started in: a guard keeps no file system busy that its
/// command has left.
fn leave_folder() {
    if let Err(error) = std::env::set_current_dir("/") {
        tracing::debug!(%error, "a guard stays in the folder of its command");
    }
}

/// Lets go of our stdout and stderr: they end when those say so to whom they were given.
fn close_output() -> io::Result<()> {
    let nothing = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}

/// Guards what `start` starts; returns how that ended, as an exit status.
fn guard(is_agent: bool, start: impl FnOnce(&UnixStream) -> io::Result<Pid>) -> io::Result<i32> {
    let host = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let report = |news: &GuardReport| {
        if !is_agent {
            // A host that is gone is noticed by the lifeline.
            (&host).write_all(news.line().as_bytes()).unwrap_or_default();
        }
    };
    let (tell, ended) = channel();
    let started = lead().and_then(|family| {
        // The thread is there before the program is: nothing runs that nobody could end.
        let (has_begun, begins) = channel();
        let lifeline = host.try_clone()?;
        let ending = thread::Builder::new().spawn(move || {
            if begins.recv().is_err() {
                return;
            }
            lifeline::wait_for_the_end(lifeline);
            let status = if is_agent { ended.recv_timeout(EXIT_GRACE).ok() } else { Some(0) };
            family.end();
            // There may be somebody who cannot be killed, but it is not the agent.
            if let Some(status) = status.or_else(|| ended.recv().ok()) {
                std::process::exit(status);
            }
        })?;
        let program = start(&host)?;
        // The thread waits for it.
        has_begun.send(()).unwrap_or_default();
        Ok((family, ending, program))
    });
    let (family, ending, program) =
        started.inspect_err(|error| report(&GuardReport::NotStarted(error.to_string())))?;
    report(&GuardReport::Started);
    let status = wait_for(program)?;
    report(&GuardReport::of_status(status));
    let code = as_exit_status(status);
    if is_agent {
        // What it has left behind is ended as if the host had enough. The host may be gone.
        tell.send(code).unwrap_or_default();
        host.shutdown(Shutdown::Read).unwrap_or_default();
    }
    family.wait(ending);
    Ok(code)
}

/// Waits for a child, reaping all others.
fn wait_for(agent: Pid) -> io::Result<WaitStatus> {
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
    fn wait(self, ending: JoinHandle<()>) {
        while matches!(wait(WaitOptions::empty()), Ok(_) | Err(rustix::io::Errno::INTR)) {}
        if !self.adopts {
            // A thread that panics has ended, too.
            ending.join().unwrap_or_default();
        }
    }

    /// Asks all of it to leave, and kills who has not; done when nobody is left, or nobody else can
    /// be killed.
    #[cfg(target_os = "linux")]
    fn end(self) {
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
    fn end(self) {
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
