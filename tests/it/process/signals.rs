//! Signals: an orderly exit, and one at once when asked again.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};

use super::{kind, opening, turn, wait, wait_until_stuck, Guard};
use crate::support::{can_be_done_within, sidecar, Process};

fn send(signal: Signal, pid: u32) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

/// A program whose turn runs, and whose output nobody reads: far more waits than its pipe takes.
fn stalled(arguments: &[&str]) -> Guard {
    let mut command: Command = sidecar();
    command.args(arguments);
    let guard = Guard(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let input = opening() + &turn("/stream 100 10000\n/hang");
    guard.0.stdin.as_ref().unwrap().write_all(input.as_bytes()).unwrap();
    wait_until_stuck(guard.0.id(), guard.0.stdout.as_ref().unwrap());
    guard
}

#[test]
fn signal_cancels_running_turns_with_an_action() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut process = Process::start(&[]);
        process.say_bytes((opening() + &turn("/hang")).as_bytes());
        process.until(|message| kind(message) == "chat/turnStarted");
        send(signal, process.child.id());
        assert_eq!(process.rest().last().map(kind), Some("chat/turnCancelled"), "{signal:?}");
        assert_eq!(process.wait().code(), Some(0), "{signal:?}");
    }
}

#[test]
fn signal_during_a_drain_cancels_the_turn() {
    let mut process = Process::start(&[]);
    process.say_bytes((opening() + &turn("/hang")).as_bytes());
    process.end();
    process.until(|message| kind(message) == "chat/turnStarted");
    send(Signal::TERM, process.child.id());
    assert_eq!(process.rest().last().map(kind), Some("chat/turnCancelled"));
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn stalled_reader_does_not_delay_the_exit() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut guard = stalled(&[]);
        send(signal, guard.0.id());
        assert_eq!(wait(&mut guard.0).code(), Some(0), "{signal:?}");
    }
}

#[test]
fn signal_ends_a_deterministic_host_that_waits_for_its_reader() {
    // The output exceeds what may wait while the agent is read.
    let mut guard = stalled(&["--deterministic", "--client-memory", "200000"]);
    send(Signal::TERM, guard.0.id());
    assert_eq!(wait(&mut guard.0).code(), Some(0));
}

/// The orderly exit from a stalled pipe takes its full time. That the second signal cuts it short
/// is seen when one exit of many is quicker: however slow the machine, none is when it does not.
#[test]
fn second_signal_ends_the_host_at_once() {
    can_be_done_within(Duration::from_secs(1), || {
        let mut guard = stalled(&[]);
        let start = Instant::now();
        send(Signal::TERM, guard.0.id());
        send(Signal::INT, guard.0.id());
        assert_eq!(wait(&mut guard.0).code(), Some(0));
        start.elapsed()
    });
}
