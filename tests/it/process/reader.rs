//! The reader of stdout: it may go away, or stall for as long as it likes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::thread;

use serde_json::{json, Value};

use super::{
    line, opening, ping, resident, say, turn, wait, wait_until, wait_until_idle, wait_until_stuck, within,
    Guard, Heard, CHAT,
};
use crate::guard::{bearers, COOKIE};
use crate::support::sidecar;

fn start() -> (Guard, ChildStdin, ChildStdout) {
    let mut command = sidecar();
    // A turn may be larger than all that may wait.
    command.args(["--max-turn-bytes", &(256 << 20).to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut guard = Guard(command.spawn().unwrap());
    let (stdin, stdout) = (guard.0.stdin.take().unwrap(), guard.0.stdout.take().unwrap());
    (guard, stdin, stdout)
}

/// Waits until it has answered, so that it is past its start.
fn greet(stdin: &mut ChildStdin, mut stdout: ChildStdout) -> ChildStdout {
    stdin.write_all(ping(1).as_bytes()).unwrap();
    within("it answers", move || {
        stdout.read_exact(&mut [0; 10]).unwrap();
        stdout
    })
}

#[test]
fn idle_host_exits_when_its_reader_disconnects() {
    let (mut guard, mut stdin, stdout) = start();
    let stdout = greet(&mut stdin, stdout);
    wait_until_idle(guard.0.id());
    drop(stdout);
    // Its input stays open.
    assert_eq!(wait(&mut guard.0).code(), Some(0));
    drop(stdin);
}

#[test]
fn host_in_a_turn_exits_when_its_reader_disconnects() {
    for script in ["/hang", "/stream 100000 1000", "/stream 10000 10 1"] {
        let (mut guard, mut stdin, stdout) = start();
        let stdout = greet(&mut stdin, stdout);
        stdin.write_all((opening() + &turn(script)).as_bytes()).unwrap();
        within("the turn starts", || {
            let mut lines = BufReader::new(stdout).lines();
            lines.any(|line| line.unwrap().contains("chat/turnStarted"))
        });
        assert_eq!(wait(&mut guard.0).code(), Some(0), "{script}");
    }
}

#[test]
fn draining_host_exits_when_its_reader_disconnects() {
    let (mut guard, mut stdin, stdout) = start();
    let stdout = greet(&mut stdin, stdout);
    stdin.write_all((opening() + &turn("/hang")).as_bytes()).unwrap();
    drop(stdin);
    wait_until_idle(guard.0.id());
    drop(stdout);
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

#[test]
fn host_blocked_on_a_full_pipe_exits_when_the_reader_disconnects() {
    let (mut guard, mut stdin, stdout) = start();
    stdin.write_all((opening() + &turn("/stream 100 10000\n/hang")).as_bytes()).unwrap();
    wait_until_stuck(guard.0.id(), &stdout);
    drop(stdout);
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

/// A pipe takes answers one by one until it is full; those that do not fit any more follow later.
#[test]
fn pipe_that_fills_answer_by_answer_loses_none() {
    let (mut guard, mut stdin, stdout) = start();
    rustix::pipe::fcntl_setpipe_size(&stdout, 4096).unwrap();
    let mut pings = 0;
    let waiting = || rustix::io::ioctl_fionread(&stdout).unwrap();
    while waiting() < 4000 {
        let before = waiting();
        stdin.write_all(ping(1000 + pings).as_bytes()).unwrap();
        wait_until("it is answered", || waiting() > before);
        pings += 1;
    }
    for _ in 0..10 {
        stdin.write_all(ping(1000 + pings).as_bytes()).unwrap();
        wait_until_idle(guard.0.id());
        pings += 1;
    }
    drop(stdin);
    let expected: Vec<u64> = (1000..).take(pings).collect();
    assert_eq!(Heard::all(stdout).pings, expected);
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

/// Pending output is bounded, clients are served meanwhile, and nothing is lost, torn, or
/// reordered.
#[test]
fn stalled_reader_costs_bounded_memory_and_loses_nothing() {
    const COUNT: usize = 14_000;
    const SIZE: usize = 10_000;
    let (mut guard, mut stdin, stdout) = start();
    let script = format!("/stream {COUNT} {SIZE}");
    stdin.write_all((opening() + &turn(&script)).as_bytes()).unwrap();
    wait_until_stuck(guard.0.id(), &stdout);
    // 64 MiB wait, the chat holds as much text, the replay window 32 MiB. Unbounded it would be
    // over 300.
    let bytes = resident(guard.0.id());
    assert!(bytes < 256 << 20, "{bytes} bytes while {} wait to be streamed", COUNT * SIZE);

    // More than fits into a pipe: this returns because it is read.
    let pings: String = (0..20_000).map(ping).collect();
    drop(say(stdin, pings));
    wait_until_idle(guard.0.id());
    assert!(resident(guard.0.id()) < 256 << 20, "answers took too much");

    let heard = Heard::all(stdout);
    assert_eq!(heard.text, COUNT * SIZE);
    assert_eq!(heard.pings, (0..20_000).collect::<Vec<_>>());
    assert_eq!(heard.endings, ["chat/turnComplete"]);
    assert!((100 * SIZE..=1 << 20).contains(&heard.longest), "the longest line has {}", heard.longest);
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

/// A program's output waits for the reader, then the program is paused. Nothing is lost, up to its
/// last byte and its exit.
#[test]
fn terminal_program_is_paused_by_a_stalled_reader_without_loss() {
    // As JSON each takes six bytes: together more than may wait.
    const BYTES: usize = 12_500_000;
    const TERMINAL: &str = "agenthost-terminal:///one";
    let cookie = "a-reader-stalls";
    let mut command = sidecar();
    command.env("SHELL", "/bin/sh").env(COOKIE, cookie);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut guard = Guard(command.spawn().unwrap());
    let (mut stdin, stdout) = (guard.0.stdin.take().unwrap(), guard.0.stdout.take().unwrap());
    let claim = json!({ "kind": "client", "clientId": "me" });
    let create =
        json!({ "id": "c", "method": "createTerminal", "params": { "channel": TERMINAL, "claim": claim } });
    let subscribe = json!({ "id": "s", "method": "subscribe", "params": { "channel": TERMINAL } });
    let prints = format!("head -c {BYTES} /dev/zero | tr '\\0' '\\1'; echo all to\"\"ld; exit 3\r");
    let input = json!({ "type": "terminal/input", "data": prints });
    let types = json!({ "method": "dispatchAction",
        "params": { "channel": TERMINAL, "clientSeq": 1, "action": input } });
    stdin.write_all((opening() + &line(create) + &line(subscribe) + &line(types)).as_bytes()).unwrap();
    wait_until_stuck(guard.0.id(), &stdout);
    // The host, the guard, the shell, and who prints.
    assert!(bearers(cookie).len() > 3, "it has ended, and not waited");
    let bytes = resident(guard.0.id());
    assert!(bytes < 256 << 20, "{bytes} bytes while nobody reads");

    let (printed, tail, code) = within("the terminal ends", move || {
        let (mut printed, mut tail) = (0, String::new());
        for line in BufReader::new(stdout).lines() {
            let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let action = &message["params"]["action"];
            if let Some(data) = action["data"].as_str() {
                printed += data.bytes().filter(|byte| *byte == 1).count();
                tail.push_str(data);
                let cut = tail.len().saturating_sub(200);
                tail.drain(..cut);
            }
            if action["type"] == "terminal/exited" {
                return (printed, tail, action["exitCode"].as_i64());
            }
        }
        (printed, tail, None)
    });
    assert_eq!((printed, code), (BYTES, Some(3)), "{tail:?}");
    assert!(tail.contains("\u{1}all told\r\n"), "{tail:?}");
    drop(stdin);
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

/// Runs a command of the user's to the end of its turn; returns the lines of the host.
fn run_command(arguments: &[&str], command: &str) -> Vec<String> {
    let mut host = sidecar();
    host.args(arguments).env("SHELL", "/bin/sh");
    host.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    host.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut guard = Guard(host.spawn().unwrap());
    let (mut stdin, stdout) = (guard.0.stdin.take().unwrap(), guard.0.stdout.take().unwrap());
    stdin.write_all((opening() + &turn(&format!("!{command}"))).as_bytes()).unwrap();
    let lines = within("the turn ends", move || {
        let mut lines = Vec::new();
        for line in BufReader::new(stdout).lines().map(Result::unwrap) {
            let is_end = line.contains(r#""chat/turnComplete""#);
            lines.push(line);
            if is_end {
                break;
            }
        }
        lines
    });
    drop(stdin);
    assert_eq!(wait(&mut guard.0).code(), Some(0));
    let call = lines.iter().find(|line| line.contains(r#""chat/toolCallComplete""#)).unwrap();
    assert!(call.contains("all told"), "{call}");
    lines
}

/// Output is reported at the end of a command there, but a command with more of it than is held
/// back gets to its end, too.
#[test]
fn command_with_much_output_ends_in_a_deterministic_host_the_same_each_time() {
    // Lines of an odd length, so that the system cuts the output in other places each time.
    let line = "head -c 7001 /dev/zero | tr '\\0' y; echo";
    let command = format!("i=0; while [ $i -lt 300 ]; do i=$((i+1)); {line}; done; echo all to\"\"ld");
    let first = run_command(&["--deterministic"], &command);
    for _ in 0..3 {
        assert!(run_command(&["--deterministic"], &command) == first);
    }
}

/// Without a rule for it, the command would wait for hours, until a mebibyte has been printed.
#[test]
fn command_ends_although_a_background_process_of_it_goes_on_printing() {
    let prints = "(trap '' HUP; while :; do echo x; sleep 0.1; done) & sleep 0.3; echo all to\"\"ld";
    run_command(&[], prints);
}

/// Once far more waits than anybody reads, clients are not heard either, line by line.
#[test]
fn clients_are_not_read_while_too_much_output_is_pending() {
    const MEGABYTES: usize = 31;
    const REPLAYS: usize = 20;
    let (mut guard, mut stdin, stdout) = start();
    let script = format!("/stream {MEGABYTES} 1000000");
    stdin.write_all((opening() + &turn(&script)).as_bytes()).unwrap();
    wait_until_stuck(guard.0.id(), &stdout);
    // The whole turn lies in the replay window: each answer is as long.
    let replay = line(json!({ "id": "replay", "method": "reconnect", "params":
        { "clientId": "me", "lastSeenServerSeq": 2, "subscriptions": [CHAT] } }));
    // All of them are read at once, and not all of them are heard.
    stdin.write_all(replay.repeat(REPLAYS).as_bytes()).unwrap();
    wait_until_idle(guard.0.id());
    let bytes = resident(guard.0.id());
    assert!(bytes < 450 << 20, "{bytes} bytes while {REPLAYS} answers of {MEGABYTES} MB are asked for");
    let pings: String = (0..20_000).map(ping).collect();
    let writer = thread::spawn(move || stdin.write_all(pings.as_bytes()).unwrap());
    wait_until_idle(guard.0.id());
    assert!(!writer.is_finished(), "it was read");

    let (heard, replays) = within("the output ends", || {
        let (mut heard, mut replays) = (Heard::default(), 0);
        for line in BufReader::new(stdout).lines() {
            let line = line.unwrap();
            if line.starts_with(r#"{"jsonrpc":"2.0","id":"replay","result":{"type":"replay","#) {
                assert!(line.len() > MEGABYTES * 1_000_000 && line.ends_with("}}"), "a torn answer");
                replays += 1;
            } else {
                heard.add_line(&line);
            }
        }
        (heard, replays)
    });
    writer.join().unwrap();
    assert_eq!((heard.text, replays), (MEGABYTES * 1_000_000, REPLAYS));
    assert_eq!(heard.pings, (0..20_000).collect::<Vec<_>>());
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}
