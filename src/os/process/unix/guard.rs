//! The guard: this program in a hidden mode, as the parent of one program and leader of its process
//! group.
//!
//! The program is an agent, or a command in a terminal. The guard's stdin is the [`lifeline`] to
//! the host. When the lifeline ends, because the host closed it or died, all descendants of the
//! program are asked to exit and then killed.
//!
//! An agent receives its stdin over the lifeline, and may exit by itself after the lifeline ends.
//! When it exits, its remaining descendants are ended, and the guard exits with its status. A
//! command without a pty has no stdin. The guard reports a command's state, one line each, and its
//! background processes continue until the lifeline ends.
//!
//! A command with a pty has the guard's stdout as its terminal. A leader, which is this program in
//! another mode, starts a session there and executes the command.
//!
//! Owns: ending all processes of a program with the host, and reporting how the program ended.
//! Never: reads or writes the program's data.

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
use std::time::{Duration, Instant};

use rustix::process::{
    getpgid, getpid, getppid, ioctl_tiocsctty, kill_process_group, setpgid, setsid, test_kill_process_group,
    wait, Pid, Signal, WaitOptions, WaitStatus,
};
use tokio::signal::unix::{signal, SignalKind};

use super::{half, lifeline};
use crate::os::process::{GuardReport, Guarded, BY_SIGNAL, EXIT_GRACE};
use crate::os::{exe, limits};

/// First argument of this program when it has started itself as a guard.
pub const GUARD: &str = "guard-agent";

/// Beginning of the argument behind [`GUARD`] with the limit of open files of the guard and its
/// program.
const GIVEN_FILES: &str = "--files=";

const LEADER: &str = "--leader";

/// Role of this program when it has started itself with [`GUARD`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GuardRole {
    Guard(Guarded),
    /// No guard: it turns into the program, as the leader of a session whose terminal is stdin.
    Leader,
}

/// Returns the arguments that start this program as a guard with this limit of open files; `None`
/// for that of this process.
pub fn arguments(files_max: Option<u64>) -> Vec<String> {
    let given = files_max.map(|files| format!("{GIVEN_FILES}{files}"));
    [GUARD.to_owned()].into_iter().chain(given).collect()
}

/// Returns the argument that selects what a guard guards.
pub(super) fn flag(guarded: Guarded) -> Option<&'static str> {
    match guarded {
        Guarded::Agent => None,
        Guarded::Command => Some("--terminal"),
        Guarded::InTerminal => Some("--pty"),
    }
}

/// Runs as a guard if the arguments of this program say so; returns the exit status. There is a
/// guard for each agent, command and terminal, so this parses without the definition of all flags.
pub fn run_if_asked(arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    let (role, files_max, command) = parse(arguments)?;
    files_max.into_iter().for_each(limits::lower);
    Some(match role {
        GuardRole::Guard(Guarded::Agent) => run(&command),
        GuardRole::Guard(Guarded::Command) => run_command(&command),
        GuardRole::Guard(Guarded::InTerminal) => {
            let mut leader = exe::command();
            leader.args([GUARD, LEADER]);
            run_in_terminal(leader, &command)
        }
        GuardRole::Leader => lead_session(&command),
    })
}

fn parse(arguments: impl Iterator<Item = OsString>) -> Option<(GuardRole, Option<u64>, Vec<OsString>)> {
    let mut arguments = arguments.skip(1).peekable();
    arguments.next().filter(|it| it == GUARD)?;
    let given = arguments.peek().and_then(|it| it.to_str()?.strip_prefix(GIVEN_FILES)?.parse().ok());
    if given.is_some() {
        arguments.next();
    }
    let flagged = [Guarded::Command, Guarded::InTerminal];
    let first = arguments.next()?;
    let role = match first.to_str()? {
        "--" => GuardRole::Guard(Guarded::Agent),
        LEADER => GuardRole::Leader,
        other => GuardRole::Guard(flagged.into_iter().find(|guarded| flag(*guarded) == Some(other))?),
    };
    let is_separated = first == "--" || arguments.next().is_some_and(|it| it == "--");
    let command: Vec<OsString> = arguments.collect();
    (is_separated && !command.is_empty()).then_some((role, given, command))
}

const NOT_STARTED: i32 = 127;

/// Interval between questions whether processes still exist.
pub(in crate::os::process) const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl GuardReport {
    pub(super) fn line(&self) -> String {
        match self {
            Self::Started => "started\n".to_owned(),
            Self::NotStarted(why) => format!("failed {}\n", why.replace('\n', " ")),
            Self::Exited(status) => format!("exited {status}\n"),
            Self::Killed(signal) => format!("killed {signal}\n"),
        }
    }

    /// Parses a line from a guard; `None` if it is unknown.
    pub(super) fn of_line(line: &str) -> Option<Self> {
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

/// Starts an agent and guards it; returns its exit status.
///
/// The calling process becomes the leader of its own group. Its stdin must be the lifeline.
fn run(command: &[OsString]) -> u8 {
    let status = guard(true, |host| spawn(command, Stdio::from(lifeline::receive(host)?)));
    let status = status.unwrap_or_else(|error| {
        let name = command.first().map(|name| name.display().to_string()).unwrap_or_default();
        // Stderr may have no reader any more; the exit status reports the failure too.
        writeln!(io::stderr(), "`{name}` cannot be started: {error}").unwrap_or_default();
        NOT_STARTED
    });
    u8::try_from(status).unwrap_or(u8::MAX)
}

/// Starts and guards a command until all of its processes have ended. Stdin must be the lifeline.
fn run_command(command: &[OsString]) -> u8 {
    u8::from(guard(false, |_| spawn(command, Stdio::null())).is_err())
}

/// Guards a program whose terminal is the guard's stdout. `leader` starts this program as the
/// session leader; the command is appended to it.
fn run_in_terminal(leader: Command, command: &[OsString]) -> u8 {
    u8::from(guard(false, |_| spawn_by(leader, command)).is_err())
}

/// Executes a command as the leader of a session whose terminal is stdin and stdout. On failure,
/// writes the reason to stderr, which is closed when the command starts.
fn lead_session(command: &[OsString]) -> u8 {
    let lead = || -> io::Result<Command> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        setsid()?;
        ioctl_tiocsctty(io::stdin())?;
        rustix::stdio::dup2_stderr(io::stdin())?;
        let mut command = Command::new(program);
        command.args(arguments);
        Ok(command)
    };
    if let Ok(reason) = io::stderr().as_fd().try_clone_to_owned() {
        let error = lead().map_or_else(|error| error, |mut command| command.exec());
        // The guard is waiting for the reason, or has exited.
        File::from(reason).write_all(error.to_string().as_bytes()).unwrap_or_default();
    }
    NOT_STARTED as u8
}

/// Processes that a guard must end.
#[derive(Debug, Clone, Copy)]
pub(in crate::os::process) struct ProcessTree {
    /// Process group that the guard leads; the guard ignores the group's requests to exit.
    pub(in crate::os::process) group: Pid,
    /// Set when orphans are adopted: the tree has ended when no child is left.
    pub(in crate::os::process) adopts: bool,
}

/// Becomes the leader of a process group, and adopts orphaned descendants.
fn lead() -> io::Result<ProcessTree> {
    let group = getpid();
    // Changes nothing if the host has started the guard, which then already leads a group.
    if setpgid(None, None).is_err() {
        return Err(io::Error::other("the guard process cannot create its process group"));
    }
    // Signals to the group reach its leader too. An installed handler makes them harmless, even
    // after its runtime is dropped.
    let listener = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let listening = listener.enter();
    let asked = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    // A background group is stopped when one of its processes reads from the terminal.
    let stopped =
        [Signal::TSTP, Signal::TTIN, Signal::TTOU].map(|signal| SignalKind::from_raw(signal.as_raw()));
    for kind in asked.into_iter().chain(stopped) {
        signal(kind).map(drop)?;
    }
    drop(listening);
    Ok(ProcessTree { group, adopts: half::adopt_for_guard() })
}

/// Moves the guard to the group of its host, if that lives, so that it survives signals to its own
/// group and reports how its program exited. Returns whether it has left its group.
pub(in crate::os::process) fn leave_group() -> bool {
    let host = getppid().filter(|parent| !parent.is_init());
    let other = host.and_then(|host| getpgid(Some(host)).ok());
    other.is_some_and(|other| setpgid(None, Some(other)).is_ok())
}

/// Kills a group that the guard has left, and waits until its processes have ended, for a limited
/// time, because an unreaped process exists for ever. Kills the guard as well if it could not leave
/// the group.
pub(in crate::os::process) fn kill_group(group: Pid, within: Duration) {
    // Fails if the group is empty.
    kill_process_group(group, Signal::KILL).unwrap_or_default();
    let start = Instant::now();
    while start.elapsed() < within && test_kill_process_group(group).is_ok() {
        thread::sleep(POLL_INTERVAL);
    }
}

/// Starts a command with the guard's stdout and stderr, and closes the guard's own copies.
fn spawn(command: &[OsString], stdin: Stdio) -> io::Result<Pid> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut program = Command::new(program);
    half::mark(&mut program);
    let started = program.args(arguments).stdin(stdin).spawn()?;
    leave_folder();
    close_output()?;
    Ok(Pid::from_child(&started))
}

/// Starts a command by way of `leader`, with the guard's stdout as its terminal.
fn spawn_by(mut leader: Command, command: &[OsString]) -> io::Result<Pid> {
    let (mut reason, writer) = io::pipe()?;
    let terminal = || io::stdout().as_fd().try_clone_to_owned();
    half::mark(&mut leader);
    leader.arg("--").args(command);
    leader.stdin(Stdio::from(terminal()?)).stdout(Stdio::from(terminal()?)).stderr(writer);
    let mut started = leader.spawn()?;
    leave_folder();
    // Only the command may hold the terminal and the write end of the pipe.
    drop(leader);
    close_output()?;
    let mut why = String::new();
    reason.read_to_string(&mut why)?;
    if why.is_empty() {
        return Ok(Pid::from_child(&started));
    }
    started.wait()?;
    Err(io::Error::other(why))
}

/// Leaves the command's folder, so that the guard does not keep its file system busy.
fn leave_folder() {
    if let Err(error) = std::env::set_current_dir("/") {
        tracing::debug!(%error, "a guard stays in the folder of its command");
    }
}

/// Closes the guard's stdout and stderr, so that they end with the processes that inherited them.
fn close_output() -> io::Result<()> {
    let nothing = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}

/// Guards the program that `start` starts; returns its exit status.
fn guard(is_agent: bool, start: impl FnOnce(&UnixStream) -> io::Result<Pid>) -> io::Result<i32> {
    let host = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let report = |news: &GuardReport| {
        if !is_agent {
            // A host that has exited is noticed through the lifeline.
            (&host).write_all(news.line().as_bytes()).unwrap_or_default();
        }
    };
    let (exited, exit_status) = channel();
    let started = lead().and_then(|family| {
        // The thread must exist before the program does, so that no program runs unguarded.
        let (has_begun, begins) = channel();
        let lifeline = host.try_clone()?;
        let ending = thread::Builder::new().spawn(move || {
            if begins.recv().is_err() {
                return;
            }
            lifeline::wait_for_the_end(lifeline);
            let status = if is_agent { exit_status.recv_timeout(EXIT_GRACE).ok() } else { Some(0) };
            half::end(family);
            // A process that cannot be killed may remain, but not the agent itself.
            if let Some(status) = status.or_else(|| exit_status.recv().ok()) {
                std::process::exit(status);
            }
        })?;
        let program = start(&host)?;
        // The thread waits for this message.
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
        // The agent's remaining processes are ended as if the host, which may be gone, had closed
        // the lifeline.
        exited.send(code).unwrap_or_default();
        host.shutdown(Shutdown::Read).unwrap_or_default();
    }
    family.wait(ending);
    Ok(code)
}

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
    /// Reaps all processes of the tree; without adoption, waits for the thread that ends them.
    fn wait(self, ending: JoinHandle<()>) {
        while matches!(wait(WaitOptions::empty()), Ok(_) | Err(rustix::io::Errno::INTR)) {}
        if !self.adopts {
            // A panicked thread has ended too.
            ending.join().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_arguments_name_its_role_and_its_command() {
        let read = |line: &str| parse(line.split(' ').map(OsString::from));
        for (line, mode) in [
            ("x guard-agent -- sh -- a", Some(GuardRole::Guard(Guarded::Agent))),
            ("x guard-agent --terminal -- sh -- a", Some(GuardRole::Guard(Guarded::Command))),
            ("x guard-agent --pty -- sh -- a", Some(GuardRole::Guard(Guarded::InTerminal))),
            ("x guard-agent --leader -- sh -- a", Some(GuardRole::Leader)),
            ("x guard-agent --", None),
            ("x guard-agent", None),
            ("x guard-agent --pty sh -- a", None),
            ("x guard-agent --other -- sh -- a", None),
            ("x serve -- sh -- a", None),
            ("x", None),
        ] {
            let command = ["sh", "--", "a"].map(OsString::from).to_vec();
            assert_eq!(read(line), mode.map(|mode| (mode, None, command)), "{line}");
        }
        assert_eq!(
            read("x guard-agent --files=7 -- sh"),
            Some((GuardRole::Guard(Guarded::Agent), Some(7), vec!["sh".into()]))
        );
    }
}
