//! Kinds of stdin, stdout and stderr: pipes, files, sockets, closed, non-blocking, or without a
//! reader.

use std::fs::{self, File};
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::pipe::{pipe_with, PipeFlags};

use super::{opening, ping, say, turn, wait, wait_until_idle, wait_until_stuck, Guard, Heard};
use crate::support::{shell, sidecar, window_on};

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC).unwrap()
}

fn make_non_blocking(file: impl AsFd) {
    fcntl_setfl(&file, fcntl_getfl(&file).unwrap() | OFlags::NONBLOCK).unwrap();
}

fn is_non_blocking(file: impl AsFd) -> bool {
    fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK)
}

#[test]
fn regular_files_serve_as_stdin_and_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    fs::write(&input, opening() + &turn("/stream 1000 10") + &ping(1)).unwrap();
    let mut command = sidecar();
    command.stdin(File::open(&input).unwrap()).stdout(File::create(&output).unwrap());
    let mut guard = Guard(command.spawn().unwrap());
    assert_eq!(wait(&mut guard.0).code(), Some(0));
    let heard = Heard::all(File::open(&output).unwrap());
    assert_eq!((heard.text, heard.pings, heard.endings.len()), (10_000, vec![1], 1));
}

/// Whoever shares the pipe may make it non-blocking: it is waited for, without spinning.
#[test]
fn nonblocking_stdin_is_read_without_spinning() {
    let (theirs, ours) = pipe();
    let shared = theirs.try_clone().unwrap();
    make_non_blocking(&shared);
    let mut guard = Guard(sidecar().stdin(theirs).stdout(Stdio::piped()).spawn().unwrap());
    let mut ours = File::from(ours);
    for id in 0..3 {
        wait_until_idle(guard.0.id());
        let ping = ping(id);
        let (start, end) = ping.split_at(20);
        ours.write_all(start.as_bytes()).unwrap();
        wait_until_idle(guard.0.id());
        ours.write_all(end.as_bytes()).unwrap();
    }
    assert!(is_non_blocking(&shared), "it is not ours to change what others share");
    drop(ours);
    assert_eq!(Heard::all(guard.0.stdout.take().unwrap()).pings, [0, 1, 2]);
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

#[test]
fn nonblocking_stdout_loses_nothing() {
    let (ours, theirs) = pipe();
    let shared = theirs.try_clone().unwrap();
    make_non_blocking(&shared);
    let mut guard = Guard(sidecar().stdin(Stdio::piped()).stdout(theirs).spawn().unwrap());
    let input = opening() + &turn("/stream 1000 10000");
    guard.0.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    wait_until_stuck(guard.0.id(), &ours);
    assert!(is_non_blocking(&shared), "it is not ours to change what others share");
    drop(shared);
    let heard = Heard::all(File::from(ours));
    assert_eq!((heard.text, heard.endings.len()), (10_000_000, 1));
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

/// Node gives sockets to its children.
#[test]
fn sockets_serve_as_stdin_and_stdout() {
    let ((their_stdin, mut stdin), (their_stdout, stdout)) =
        (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let spawn = || {
        let (stdin, stdout): (OwnedFd, OwnedFd) = (their_stdin.into(), their_stdout.into());
        Guard(sidecar().stdin(stdin).stdout(stdout).spawn().unwrap())
    };
    let mut guard = spawn();
    stdin.write_all((opening() + &turn("/stream 1000 1000") + &ping(1)).as_bytes()).unwrap();
    stdin.shutdown(Shutdown::Write).unwrap();
    let heard = Heard::all(stdout);
    assert_eq!((heard.text, heard.pings, heard.endings.len()), (1_000_000, vec![1], 1));
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

#[test]
fn disconnected_socket_reader_ends_the_host() {
    let ((their_stdin, _stdin), (their_stdout, stdout)) =
        (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let (their_stdin, their_stdout): (OwnedFd, OwnedFd) = (their_stdin.into(), their_stdout.into());
    let mut guard = Guard(sidecar().stdin(their_stdin).stdout(their_stdout).spawn().unwrap());
    wait_until_idle(guard.0.id());
    drop(stdout);
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

/// A log that nobody reads is dropped; the conversation does not wait for it.
#[test]
fn unread_stderr_does_not_block_the_conversation() {
    let mut command = sidecar();
    command.args(["--log", "trace"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut guard = Guard(command.spawn().unwrap());
    let stdout = guard.0.stdout.take().unwrap();
    let reader = std::thread::spawn(|| Heard::all(stdout));
    // Each of these is worth a line of the log.
    let input = opening() + &turn("/stream 20000 10") + &"nonsense\n".repeat(20_000);
    let stdin = say(guard.0.stdin.take().unwrap(), input);
    wait_until_idle(guard.0.id());
    let stderr = guard.0.stderr.as_ref().unwrap();
    let (waiting, size) = (
        rustix::io::ioctl_fionread(stderr).unwrap(),
        rustix::pipe::fcntl_getpipe_size(stderr).unwrap() as u64,
    );
    assert!(waiting > size * 9 / 10, "the log has {waiting} bytes: nothing was held up");
    drop(say(stdin, ping(1)));
    let heard = reader.join().unwrap();
    assert_eq!((heard.text, heard.pings, heard.endings.len()), (200_000, vec![1], 1));
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

#[test]
fn closed_stderr_pipe_does_not_disturb_the_conversation() {
    let mut command = sidecar();
    command.args(["--log", "trace"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut guard = Guard(command.spawn().unwrap());
    drop(guard.0.stderr.take());
    let input = opening() + &turn("/stream 1000 10") + &"nonsense\n".repeat(1000) + &ping(1);
    guard.0.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let heard = Heard::all(guard.0.stdout.take().unwrap());
    assert_eq!((heard.text, heard.pings, heard.endings.len()), (10_000, vec![1], 1));
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

/// An unreadable stdin is no end of input: requests may be missing.
#[test]
fn unreadable_stdin_is_a_failure() {
    let output = sidecar().stdin(File::open("/").unwrap()).output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{log}");
    assert!(log.contains("stdin cannot be read"), "{log}");
}

/// A client that goes without having read everything that it was sent on the same socket.
#[test]
fn reset_stdin_socket_counts_as_end_of_input() {
    let (theirs, mut ours) = UnixStream::pair().unwrap();
    (&theirs).write_all(b"not read").unwrap();
    ours.write_all((opening() + &turn("/sleep 200\n/stream 10 10") + &ping(1)).as_bytes()).unwrap();
    drop(ours);
    let stdin: OwnedFd = theirs.into();
    let output = sidecar().stdin(stdin).output().unwrap();
    let heard = Heard::all(std::io::Cursor::new(output.stdout));
    assert_eq!((heard.text, heard.pings, heard.endings.len()), (100, vec![1], 1));
    assert_eq!(output.status.code(), Some(0));
}

/// Runs the program with some of its descriptors closed.
fn closed(redirections: &str) -> std::process::Output {
    let mut shell = shell(&format!(r#"exec "$@" --log info {redirections}"#), &sidecar());
    let mut child =
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A program whose stdin is closed does not read it.
    child.stdin.take().unwrap().write_all(ping(1).as_bytes()).ok();
    child.wait_with_output().unwrap()
}

#[test]
fn closed_stdin_counts_as_end_of_input() {
    let output = closed("<&-");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    assert!(String::from_utf8(output.stderr).unwrap().contains("stdin has ended"));
}

#[test]
fn closed_stdout_causes_no_panic() {
    for redirections in [">&-", "<&- >&-", "<&- >&- 2>&-"] {
        let output = closed(redirections);
        assert_eq!(output.status.code(), Some(0), "{redirections}");
        assert!(!String::from_utf8(output.stderr).unwrap().contains("panic"), "{redirections}");
    }
}

#[test]
fn closed_stderr_has_no_effect() {
    let output = closed("2>&-");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stdout, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}\n");
}

/// An input without an end of a line is left, rather than read for ever.
#[test]
fn stdin_without_a_newline_is_refused_at_the_frame_limit() {
    let folder = tempfile::tempdir().unwrap();
    let commands = [sidecar(), window_on(folder.path())];
    for mut command in commands {
        command.args(["--max-frame-bytes", "1000000"]).stdin(File::open("/dev/zero").unwrap());
        let output = command.output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains("bytes came without a line end") && log.contains("1000000 bytes"), "{log}");
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.lines().count() == 1 && told.contains("-32600"), "{told}");
    }
}
