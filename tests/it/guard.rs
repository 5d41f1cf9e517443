//! The guard of an agent: whatever happens, nothing is left.
//!
//! Owns: real processes that leave, that do not want to leave, and that leave others behind.
//! Never: speaks a protocol.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ahp_sidecar::os::process::lifeline;

use crate::support::{can_be_done_within, program, shell, skipped, HUNG};

/// Shell script that ignores polite signals. What a failed test leaves ends after some minutes, by
/// its limit of processor time.
const STUBBORN: &str = "ulimit -t 2; trap '' TERM INT HUP PIPE; echo ready; while :; do sleep 0.05; done";

/// The name of the variable that marks all descendants of a test's agent.
pub const COOKIE: &str = "AHP_SIDECAR_TEST";

/// A guarded shell; its script must say a line when it is ready.
struct Guarded {
    guard: Child,
    lifeline: Option<UnixStream>,
    stdin: Option<PipeWriter>,
    stdout: BufReader<ChildStdout>,
    cookie: String,
}

impl Guarded {
    fn start(script: &str) -> Self {
        Self::start_by(program(), script)
    }

    /// Starts a guard by a command that runs this program with further arguments.
    fn start_by(mut command: Command, script: &str) -> Self {
        let cookie = uuid::Uuid::new_v4().to_string();
        command.args(["guard-agent", "--", "/bin/sh", "-c", script]).env("PATH", "/usr/bin:/bin");
        command.env(COOKIE, &cookie).process_group(0);
        let (lifeline, theirs, stdin) = lifeline_and_stdin();
        command.stdin(theirs).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guard = command.spawn().unwrap();
        let stdout = BufReader::new(guard.stdout.take().unwrap());
        let mut guarded = Self { guard, lifeline: Some(lifeline), stdin: Some(stdin), stdout, cookie };
        let mut line = String::new();
        guarded.stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        guarded
    }

    /// The processes that bear the cookie, but for those that have ended and wait to be reaped.
    fn alive(&self) -> Vec<String> {
        bearers(&self.cookie)
    }

    fn disconnect(&mut self) {
        (self.lifeline, self.stdin) = (None, None);
    }

    fn end(&mut self) -> i32 {
        self.disconnect();
        self.wait()
    }

    fn wait(&mut self) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(status) = self.guard.try_wait().unwrap() {
                return status.code().unwrap_or_else(|| panic!("{status}"));
            }
            assert!(start.elapsed() < HUNG, "the guard did not end; there are {:?}", self.alive());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Both ends of a lifeline, over which comes what the agent reads, and the other end of that.
fn lifeline_and_stdin() -> (UnixStream, OwnedFd, PipeWriter) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    lifeline::send(&ours, reader.as_fd()).unwrap();
    (ours, theirs.into(), writer)
}

/// The running processes whose environment holds this cookie.
pub fn bearers(cookie: &str) -> Vec<String> {
    let mark = format!("{COOKIE}={cookie}");
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let bears = |path: &std::path::Path| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let command = |path: std::path::PathBuf| {
        let line = fs::read(path.join("cmdline")).ok()?;
        Some(format!("{}: {}", path.display(), String::from_utf8_lossy(&line).replace('\0', " ")))
    };
    processes.filter(|path| bears(path)).filter_map(command).collect()
}

#[test]
fn agent_that_exits_on_its_own_after_eof_is_given_time() {
    assert!(can_end_with(7, "echo ready; cat >/dev/null; sleep 0.1; exit 7"));
}

#[test]
fn agent_receives_sigterm_before_sigkill() {
    assert!(can_end_with(9, "ulimit -t 2; trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"));
}

/// Returns whether an agent can end itself with this status when it is disconnected. On a busy
/// machine the time that it is given may be too short.
fn can_end_with(status: i32, script: &str) -> bool {
    (0..10).any(|_| {
        let mut guarded = Guarded::start(script);
        let ended = guarded.end();
        assert!(guarded.alive().is_empty());
        ended == status
    })
}

#[test]
fn agent_that_ignores_signals_is_killed_with_its_children() {
    let mut guarded = Guarded::start(&format!("(({STUBBORN}) & ({STUBBORN}) &) >/dev/null & {STUBBORN}"));
    let start = Instant::now();
    while guarded.alive().len() < 4 {
        assert!(start.elapsed() < HUNG, "there are only {:?}", guarded.alive());
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(guarded.end(), 128 + 9);
    assert!(guarded.alive().is_empty(), "{:?}", guarded.alive());
}

#[test]
fn children_that_outlive_their_agent_are_killed() {
    let mut guarded = Guarded::start(&format!("({STUBBORN}) & read line; exit 3"));
    guarded.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(guarded.wait(), 3);
    assert!(guarded.alive().is_empty(), "{:?}", guarded.alive());
}

#[test]
fn guard_that_cannot_find_processes_reports_the_status_of_its_agent() {
    let hidden = || {
        let mut command = Command::new("unshare");
        let hide = "mount -t tmpfs none /proc && exec \"$@\"";
        command.args(["--user", "--map-root-user", "--mount", "/bin/sh", "-c", hide, "sh"]);
        command
    };
    if !hidden().arg("true").output().is_ok_and(|output| output.status.success()) {
        return skipped("a way to hide `/proc`");
    }
    let mut command = hidden();
    command.arg(program().get_program());
    let mut guarded = Guarded::start_by(command, &format!("({STUBBORN}) & read line; exit 3"));
    guarded.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(guarded.wait(), 3);
    assert!(guarded.alive().is_empty(), "{:?}", guarded.alive());
}

/// Set if a process is ended that has another number, group and session every moment. Where no
/// process can adopt orphans, only luck finds it in a list of processes.
pub const ENDS_HOPPERS: bool = !cfg!(feature = "portable");

/// Ways to get away from one's group, one's session and one's parent.
const AWAY: &[&str] = ALL_AWAY.split_at(if ENDS_HOPPERS { 5 } else { 4 }).0;

const ALL_AWAY: &[&str] = &[
    // In a session of its own, its parent alive.
    "setsid sh -c \"$STUBBORN\" session &",
    // A daemon: its parents have ended.
    "(setsid sh -c \"setsid sh -c \\\"\\$STUBBORN\\\" daemon &\" &)",
    // What has been left running in the background.
    "sh -c \"nohup sh -c \\\"\\$STUBBORN\\\" background >/dev/null 2>&1 &\"",
    // In the group of somebody who has a session of its own.
    "setsid sh -c \"sh -c \\\"\\$STUBBORN\\\" grandchild & wait\" &",
    // It starts another one in a session of its own, some 30,000 times, and is gone.
    "next='trap \"\" TERM; [ $1 = 0 ] || setsid sh -c \"$0\" \"$0\" $(($1 - 1)) &'; setsid sh -c \"$next\" \"$next\" 30000 &",
];

#[test]
fn daemonized_descendants_are_killed() {
    let away = format!(
        "export STUBBORN={:?}; {}",
        "ulimit -t 2; trap '' TERM INT HUP; while :; do sleep 0.05; done",
        AWAY.join("\n")
    );
    let names = ["session", "daemon", "background", "grandchild"];
    // The agent ends by itself, it ends with its input, and it does not want to.
    for (rest, status) in [("read line; exit 3", 3), ("cat; exit 4", 4), (STUBBORN, 128 + 9)] {
        let end = || {
            let mut guarded =
                Guarded::start(&format!("{away}\necho ready; {}", rest.replace("echo ready;", "")));
            let start = Instant::now();
            while !names.iter().all(|name| guarded.alive().iter().any(|it| it.contains(name))) {
                assert!(start.elapsed() < HUNG, "there are only {:?}", guarded.alive());
                thread::sleep(Duration::from_millis(5));
            }
            let ended = if status == 3 {
                guarded.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
                guarded.wait()
            } else {
                guarded.end()
            };
            assert!(guarded.alive().is_empty(), "after {rest}: {:?}", guarded.alive());
            ended
        };
        // On a busy machine it may be killed before it has read the end of its input.
        assert!((0..10).any(|_| end() == status), "{rest}");
    }
}

/// Returns whether one of these processes is a guard that is stopped, with all of its threads.
pub fn guard_is_stopped(bearers: &[String]) -> bool {
    let is_stopped = |bearer: &String| {
        let Ok(mut threads) = fs::read_dir(format!("{}/task", bearer.split(':').next().unwrap())) else {
            return false;
        };
        threads.all(|thread| {
            let stat = fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
            stat.contains(") T ")
        })
    };
    bearers.iter().filter(|bearer| bearer.contains("guard-agent")).any(is_stopped)
}

/// The guard may be stopped when its host dies: the death of the host continues it.
#[test]
fn stopped_guard_continues_when_its_host_dies() {
    let cookie = uuid::Uuid::new_v4().to_string();
    let mut command = program();
    command.args(["guard-agent", "--", "/bin/sh", "-c", &format!("kill -STOP $PPID; {STUBBORN}")]);
    let mut shell = shell("exec 3<&0; \"$@\" <&3 3<&- & exec 3<&-; wait", &command);
    shell.env(COOKIE, &cookie).env("PATH", "/usr/bin:/bin").process_group(0);
    let (lifeline, theirs, stdin) = lifeline_and_stdin();
    let mut shell = shell.stdin(theirs).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // Only on Linux, the guard itself is woken. Elsewhere, a group that has lost its parent is
    // continued if a process in it is stopped, which takes a moment.
    while cfg!(feature = "portable") && !guard_is_stopped(&bearers(&cookie)) {
        thread::sleep(Duration::from_millis(5));
    }
    shell.kill().unwrap();
    shell.wait().unwrap();
    drop((lifeline, stdin));
    let start = Instant::now();
    while !bearers(&cookie).is_empty() {
        assert!(start.elapsed() < HUNG, "there are {:?}", bearers(&cookie));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn twenty_agents_that_ignore_signals_are_killed_in_the_time_of_one() {
    // One takes a second; twenty after each other would take twenty.
    can_be_done_within(Duration::from_secs(8), || {
        let mut all: Vec<Guarded> = (0..20).map(|_| Guarded::start(STUBBORN)).collect();
        let start = Instant::now();
        for guarded in &mut all {
            guarded.disconnect();
        }
        for guarded in &mut all {
            assert_eq!(guarded.wait(), 128 + 9);
            assert!(guarded.alive().is_empty());
        }
        start.elapsed()
    });
}

/// The guard is asked, like all of its group, and stays: it has to see to it that the others go.
#[test]
fn guard_survives_signals_to_its_process_group() {
    let mut guarded = Guarded::start(STUBBORN);
    let group = rustix::process::Pid::from_raw(guarded.guard.id().try_into().unwrap()).unwrap();
    use rustix::process::Signal;
    // The last ones are what a group in the background of a terminal may get.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::TSTP, Signal::TTIN, Signal::TTOU] {
        rustix::process::kill_process_group(group, signal).unwrap();
    }
    assert_eq!(guarded.end(), 128 + 9);
    assert!(guarded.alive().is_empty());
}

/// The guard's parent is a shell that is killed; whoever adopts the guard may be in a group that
/// has no name.
#[test]
fn agent_of_a_killed_host_is_killed() {
    let cookie = uuid::Uuid::new_v4().to_string();
    let mut command = program();
    command.args(["guard-agent", "--", "/bin/sh", "-c", STUBBORN]);
    // The other end of the lifeline outlives the shell.
    let mut shell = shell("exec 3<&0; \"$@\" <&3 3<&- & exec 3<&-; wait", &command);
    shell.env(COOKIE, &cookie).env("PATH", "/usr/bin:/bin").process_group(0);
    let (lifeline, theirs, stdin) = lifeline_and_stdin();
    let mut shell = shell.stdin(theirs).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    shell.kill().unwrap();
    shell.wait().unwrap();
    drop((lifeline, stdin));
    let start = Instant::now();
    while !bearers(&cookie).is_empty() {
        assert!(start.elapsed() < HUNG, "there are {:?}", bearers(&cookie));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn missing_program_is_reported_with_status_127() {
    let mut command = program();
    let (_lifeline, theirs, _stdin) = lifeline_and_stdin();
    command.args(["guard-agent", "--", "/no/such/program"]).process_group(0).stdin(theirs);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("`/no/such/program` cannot be started"), "{said}");
}
