//! The process that started us: when it dies we leave, even if a sibling holds the pipe open.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

use super::{ping, wait_until, wait_until_idle, within};
use crate::support::{shell, sidecar};

/// A program whose parent is a shell of ours. Our own ends of the pipes outlive the shell.
struct Orphan {
    shell: Child,
    pid: u32,
    stdin: Option<File>,
    stdout: Option<BufReader<File>>,
}

impl Orphan {
    fn start(arguments: &[&str]) -> Self {
        let (child_stdin, stdin) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (stdout, child_stdout) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let mut sidecar = sidecar();
        sidecar.args(arguments);
        // A shell gives what runs in the background no stdin, except when told to.
        let mut shell = shell(r#"exec 3<&0; "$@" <&3 3<&- & echo $! >&2; exec >&-; wait"#, &sidecar);
        let mut shell = shell.stdin(child_stdin).stdout(child_stdout).stderr(Stdio::piped()).spawn().unwrap();
        let mut pid = String::new();
        BufReader::new(shell.stderr.take().unwrap()).read_line(&mut pid).unwrap();
        let (stdin, stdout) = (Some(File::from(stdin)), Some(BufReader::new(File::from(stdout))));
        Self { shell, pid: pid.trim().parse().unwrap(), stdin, stdout }
    }

    fn answers(&mut self) {
        self.stdin.as_mut().unwrap().write_all(ping(1).as_bytes()).unwrap();
        let mut stdout = self.stdout.take().unwrap();
        let (stdout, line) = within("it answers", move || {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            (stdout, line)
        });
        self.stdout = Some(stdout);
        assert_eq!(line, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}\n");
    }

    /// Returns when its parent is another process.
    fn kill_parent(&mut self) {
        let shell = self.shell.id();
        self.shell.kill().unwrap();
        self.shell.wait().unwrap();
        let pid = self.pid;
        wait_until("it has another parent", || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            !status.contains(&format!("PPid:\t{shell}\n"))
        });
    }

    /// Waits until stdout is closed, which means that the process has exited.
    fn ends(&mut self) {
        let stdout = self.stdout.take().unwrap();
        let rest = within("it ends", || stdout.bytes().count());
        assert_eq!(rest, 0);
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // Without its pipes it ends, whatever it thinks of its parent.
        self.stdin = None;
        self.shell.kill().ok();
        self.shell.wait().ok();
    }
}

#[test]
fn host_exits_when_its_parent_dies() {
    let mut orphan = Orphan::start(&[]);
    orphan.answers();
    orphan.kill_parent();
    orphan.ends();
    assert!(orphan.stdin.is_some(), "its input is still open");
}

#[test]
fn host_survives_its_parent_with_no_parent_watch() {
    let mut orphan = Orphan::start(&["--no-parent-watch"]);
    orphan.answers();
    orphan.kill_parent();
    wait_until_idle(orphan.pid);
    orphan.answers();
    orphan.stdin = None;
    orphan.ends();
}
