//! Leaving while there is much to do.
//!
//! Owns: what a process does that is asked to leave, or cannot write any more, in the middle of its
//! work.
//! Never: looks at what a conversation holds.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};

use crate::process::{wait_until, wait_until_idle, wait_until_stuck};
use crate::support::{can_be_done_within, sidecar, Process};

const SESSION: &str = "ahp-session:/1";
const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246LzE";

fn initialize() -> String {
    let params = json!({ "channel": "ahp-root://", "clientId": "tester", "protocolVersions": ["1.0.0"] });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }).to_string()
}

fn turn(id: &str, program: &str) -> String {
    let message = json!({ "text": program, "origin": { "kind": "user" } });
    let action = json!({ "type": "chat/turnStarted", "turnId": id, "message": message });
    let params = json!({ "channel": CHAT, "clientSeq": 1, "action": action });
    json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params }).to_string()
}

fn open_chat(process: &mut Process) {
    process.say(&initialize());
    for (id, method, channel) in [(2, "createSession", SESSION), (3, "subscribe", CHAT)] {
        let params = json!({ "channel": channel });
        process.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
    }
}

fn terminate(process: &Process) {
    let pid = Pid::from_raw(i32::try_from(process.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

fn count(messages: &[Value], action: &str) -> usize {
    messages.iter().filter(|message| message["params"]["action"]["type"] == action).count()
}

/// Returns the CPU time of a process, in hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let numbers = stat.rsplit_once(") ").unwrap().1.split(' ');
    numbers.skip(11).take(2).map(|number| number.parse::<u64>().unwrap()).sum()
}

#[test]
fn signal_interrupts_a_deterministic_script_that_never_pauses() {
    let mut process = Process::start(&["--deterministic"]);
    open_chat(&mut process);
    process.until(|message| message["id"] == 3);
    // Nothing of it comes before it pauses: that it runs is seen by the work that it is.
    let before = ticks(process.child.id());
    process.say(&turn("t", "/stream 1000000000 10"));
    wait_until("the script runs", || ticks(process.child.id()) > before + 20);
    terminate(&process);
    let rest = process.rest();
    assert_eq!(process.wait().code(), Some(0));
    assert_eq!((count(&rest, "chat/turnStarted"), count(&rest, "chat/turnCancelled")), (1, 1));
}

#[test]
fn turn_started_after_sigterm_is_not_accepted() {
    // If nobody reads, the process leaves soon after the signal: on a busy machine before it is
    // asked.
    can_be_done_within(Duration::from_secs(1), try_to_start_a_turn_after_sigterm);
}

/// Starts a turn in a process that has received SIGTERM and waits for its output to be read.
/// Returns the time from the signal until it was read.
fn try_to_start_a_turn_after_sigterm() -> Duration {
    let mut command = sidecar();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut say = |line: String| std::io::Write::write_all(&mut stdin, (line + "\n").as_bytes());
    say(initialize()).unwrap();
    let create =
        json!({ "jsonrpc": "2.0", "id": 2, "method": "createSession", "params": { "channel": SESSION } });
    say(create.to_string()).unwrap();
    say(json!({ "jsonrpc": "2.0", "id": 3, "method": "subscribe", "params": { "channel": CHAT } })
        .to_string())
    .unwrap();
    // More than a pipe holds, and nobody reads: the process has something to write when it is
    // asked.
    say(turn("first", "/stream 100 10000\n/hang")).unwrap();
    wait_until_stuck(child.id(), child.stdout.as_ref().unwrap());
    let start = Instant::now();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    wait_until_idle(child.id());
    if say(turn("second", "/hang")).is_err() {
        child.wait().unwrap();
        return Duration::MAX;
    }
    wait_until_idle(child.id());
    let took = start.elapsed();
    let output = child.wait_with_output().unwrap();
    let messages: Vec<Value> = output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    assert_eq!(count(&messages, "chat/turnStarted"), 1);
    if took < Duration::from_secs(1) {
        assert_eq!(count(&messages, "chat/turnCancelled"), 1);
    }
    took
}

#[test]
fn lost_output_is_a_failure() {
    let mut command = sidecar();
    let mut child = command.stdin(Stdio::piped()).stdout(File::create("/dev/full").unwrap()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), (initialize() + "\n").as_bytes()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
