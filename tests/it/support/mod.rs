//! Shared helpers of the tests: the real program as a child process, addressed line by line.
//!
//! Owns: a hermetic command that says where its sessions live, and reading with a limit after which
//! a test has hung.
//! Never: judges what it reads.

pub mod core;
pub mod edged;
pub mod followers;
pub mod mirrors;
pub mod world;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// After this time a test has hung. Not a measure of speed.
pub const HUNG: Duration = Duration::from_secs(120);

/// Number of attempts for an operation that must be quick.
const TRIES: usize = 10;

/// Says that something is not tried here, because this is not installed.
pub fn skipped(name: &str) {
    let skipped = format!("{name} is not installed here: what it does is not tried\n");
    std::io::stderr().write_all(skipped.as_bytes()).unwrap();
}

/// Asserts that something, which tells how long it took, can be done in less than this. On a busy
/// machine one try may take any time; where something waits that should not, none is quick.
pub fn can_be_done_within(limit: Duration, mut attempt: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    while took.len() < TRIES {
        let time = attempt();
        if time < limit {
            return;
        }
        took.push(time);
    }
    panic!("none of these is less than {limit:?}: {took:?}");
}

/// A home in which nothing can be kept. A test that forgets to say where sessions live fails,
/// rather than reaching into the home of whoever runs it.
pub const NO_HOME: &str = "/dev/null";

/// The program with no argument, nothing inherited but a path, and a fixed starting folder.
pub fn program() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("ahp-sidecar"));
    command.env_clear().env("HOME", NO_HOME).current_dir("/");
    command
}

/// The program with its sessions in memory.
pub fn sidecar() -> Command {
    let mut command = program();
    command.arg("--ephemeral");
    command
}

/// The program with its sessions in this folder, which it has for itself: what is done to the
/// process is done to the host.
pub fn sidecar_on(folder: &Path) -> Command {
    let mut command = window_on(folder);
    command.arg("--exclusive");
    command
}

/// The program with its sessions in this folder, which it shares with others: their host is another
/// process.
pub fn window_on(folder: &Path) -> Command {
    let mut command = program();
    command.arg("--state-dir").arg(folder);
    command
}

/// Copies the program to where it can be started from. Another process does it: while this one has
/// the copy open for writing, a child that another test starts at that moment has it open, too, and
/// a program that is open for writing cannot be started ("Text file busy").
pub fn copy_program(to: &Path) {
    let copied = Command::new("/bin/cp").arg(program().get_program()).arg(to).status().unwrap();
    assert!(copied.success(), "{copied}");
}

/// Writes an executable script. Another process does it, for the reason in [`copy_program`].
pub fn write_program(path: &Path, content: &str) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(content.as_bytes()).unwrap();
    let written = shell.wait().unwrap();
    assert!(written.success(), "{written}");
}

/// A shell that runs a script in which `"$@"` is this command.
pub fn shell(script: &str, command: &Command) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir("/");
    shell
}

/// A running program with pipes on both sides.
pub struct Process {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// Starts the program with its sessions in memory.
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = sidecar();
        command.args(arguments);
        Self::spawn(command)
    }

    /// Starts the program with its sessions in this folder.
    pub fn start_on(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = sidecar_on(folder);
        command.args(arguments);
        Self::spawn(command)
    }

    /// Starts a command with stdin and stdout piped; its stderr is that of the test.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines() {
                if sender.send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        Self { stdin: child.stdin.take(), child, lines }
    }

    /// Says a line, as it is.
    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin has been closed");
        stdin.write_all(line.as_bytes()).unwrap();
        stdin.write_all(b"\n").unwrap();
    }

    /// Says a line to a program that may have ended.
    ///
    /// # Errors
    /// When it has.
    pub fn try_say(&mut self, line: &str) -> std::io::Result<()> {
        self.try_say_bytes(format!("{line}\n").as_bytes())
    }

    /// Says bytes, as they are, to a program that may have ended.
    ///
    /// # Errors
    /// When it has.
    pub fn try_say_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stdin.as_mut().expect("stdin has been closed").write_all(bytes)
    }

    /// Says bytes, as they are.
    pub fn say_bytes(&mut self, bytes: &[u8]) {
        self.try_say_bytes(bytes).unwrap();
    }

    /// Ends the program's input.
    pub fn end(&mut self) {
        self.stdin = None;
    }

    /// The next line; none when the output has ended.
    pub fn next_line(&mut self) -> Option<String> {
        match self.lines.recv_timeout(HUNG) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing came within {HUNG:?}"),
        }
    }

    /// The next message.
    pub fn next(&mut self) -> Value {
        let line = self.next_line().expect("the output has ended");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("not JSON ({error}): {line}"))
    }

    /// The next message, if one comes within this time.
    pub fn next_within(&mut self, time: Duration) -> Option<Value> {
        match self.lines.recv_timeout(time) {
            Ok(line) => Some(serde_json::from_str(&line).unwrap()),
            Err(RecvTimeoutError::Disconnected) => panic!("the output has ended"),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }

    /// Returns all messages up to and including the first one that `wanted` accepts.
    pub fn until(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            messages.push(self.next());
            if wanted(messages.last().unwrap()) {
                return messages;
            }
        }
    }

    /// Returns all messages up to the end of the output.
    pub fn rest(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.next_line())
            .map(|line| {
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("not JSON ({error}): {line}"))
            })
            .collect()
    }

    /// Waits for the program to end.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < HUNG, "the program did not end within {HUNG:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that failed half-way leaves nothing behind.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// Returns whether this is the program that a host keeps in its state folder, where the system
/// cannot start a program that was replaced meanwhile. It has the mode of the original.
pub fn is_kept_program(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("program-"))
}

/// Returns the fields of `/proc/PID/stat` of a living process: its state, its parent, and more.
/// A process that has ended may wait for long until the system's first process has reaped it.
pub fn stat(process: i32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<String> = stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect();
    (fields[0] != "Z" && fields[0] != "X").then_some(fields)
}
