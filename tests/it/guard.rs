//! The guard of an agent: whatever happens, nothing is left.
//!
//! Owns: real processes that leave, that do not want to leave, and that leave others behind.
//! Never: speaks a protocol.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{program, shell, HUNG};

/// What a shell does that is not to be stopped by kindness.
const STUBBORN: &str = "trap '' TERM INT HUP PIPE; echo ready; while :; do sleep 0.05; done";

/// The name of the variable that marks all descendants of a test's agent.
pub const COOKIE: &str = "AHP_SIDECAR_TEST";

/// A guarded shell; its script must say a line when it is ready.
struct Guarded {
    guard: Child,
    stdout: BufReader<ChildStdout>,
    cookie: String,
}

impl Guarded {
    fn start(script: &str) -> Self {
        let cookie = uuid::Uuid::new_v4().to_string();
        let mut command: Command = program();
        command.args(["guard-agent", "--", "/bin/sh", "-c", script]).env("PATH", "/usr/bin:/bin");
        command.env(COOKIE, &cookie).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guard = command.spawn().unwrap();
        let stdout = BufReader::new(guard.stdout.take().unwrap());
        let mut guarded = Self { guard, stdout, cookie };
        let mut line = String::new();
        guarded.stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        guarded
    }

    /// The processes that bear the cookie, but for those that have ended and wait to be reaped.
    fn alive(&self) -> Vec<String> {
        bearers(&self.cookie)
    }

    fn end(&mut self) -> i32 {
        drop(self.guard.stdin.take());
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
fn an_agent_that_leaves_by_itself_is_given_the_time() {
    let mut guarded = Guarded::start("echo ready; cat >/dev/null; sleep 0.1; exit 7");
    assert_eq!(guarded.end(), 7);
    assert!(guarded.alive().is_empty());
}

#[test]
fn an_agent_is_asked_to_leave_before_it_is_killed() {
    let mut guarded = Guarded::start("trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done");
    assert_eq!(guarded.end(), 9);
    assert!(guarded.alive().is_empty());
}

#[test]
fn an_agent_that_does_not_want_to_leave_is_gone_with_its_children() {
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
fn what_an_agent_leaves_behind_when_it_ends_is_gone_too() {
    let mut guarded = Guarded::start(&format!("({STUBBORN}) & read line; exit 3"));
    use std::io::Write;
    guarded.guard.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(guarded.wait(), 3);
    assert!(guarded.alive().is_empty(), "{:?}", guarded.alive());
}

#[test]
fn twenty_that_do_not_want_to_leave_are_gone_in_the_time_of_one() {
    let mut all: Vec<Guarded> = (0..20).map(|_| Guarded::start(STUBBORN)).collect();
    let start = Instant::now();
    for guarded in &mut all {
        drop(guarded.guard.stdin.take());
    }
    for guarded in &mut all {
        assert_eq!(guarded.wait(), 128 + 9);
        assert!(guarded.alive().is_empty());
    }
    // One takes a second; twenty after each other would take twenty.
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

/// The guard is asked, like all of its group, and stays: it has to see to it that the others go.
#[test]
fn the_guard_itself_is_not_ended_by_what_ends_or_stops_its_group() {
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

/// The guard's parent is a shell that is killed; whoever adopts the guard may be in a group that has no name.
#[test]
fn an_agent_whose_host_was_killed_is_gone() {
    let cookie = uuid::Uuid::new_v4().to_string();
    let mut command = program();
    command.args(["guard-agent", "--", "/bin/sh", "-c", STUBBORN]);
    // Its own writer keeps the agent's stdin open, until it is killed too.
    let mut shell = shell("sleep 1000 | \"$@\"", &command);
    shell.env(COOKIE, &cookie).env("PATH", "/usr/bin:/bin").process_group(0);
    let mut shell = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    shell.kill().unwrap();
    shell.wait().unwrap();
    let sleep = bearers(&cookie).into_iter().find(|process| process.contains("sleep 1000")).unwrap();
    let pid: i32 = sleep.trim_start_matches("/proc/").split(':').next().unwrap().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let start = Instant::now();
    while !bearers(&cookie).is_empty() {
        assert!(start.elapsed() < HUNG, "there are {:?}", bearers(&cookie));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_that_is_not_there_is_said_to_be_so() {
    let output = program().args(["guard-agent", "--", "/no/such/program"]).process_group(0).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("`/no/such/program` cannot be started"), "{said}");
}
