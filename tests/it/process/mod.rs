//! Life and death of the process, seen from outside: its input ends, its reader stalls or leaves,
//! its parent dies, somebody sends a signal.
//!
//! Owns: the real program with every kind of descriptor on its ends, and what it must do then.
//! Never: judges how fast something is, or what a conversation means beyond whether it came whole.
// They look into `/proc`.
#![cfg(target_os = "linux")]
// The lints let tests panic, but not what they share.
#![allow(clippy::unwrap_used, clippy::panic)]

mod command_line;
mod descriptors;
mod end_of_input;
mod families;
mod parent;
mod plain_shells;
mod programs;
mod reader;
mod shells;
mod signals;
#[cfg(target_os = "linux")]
mod stopped;
mod terminal;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use crate::support::HUNG;

/// The chat of the one session of these tests.
const CHAT: &str = "ahp-chat://default/YWhwLXNlc3Npb246L3M";

/// Opening messages of a client: the handshake, a session, and a subscription to its chat.
fn opening() -> String {
    let lines = [
        json!({ "id": "hello", "method": "initialize", "params":
            { "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] } }),
        json!({ "id": "create", "method": "createSession", "params": { "channel": "ahp-session:/s" } }),
        json!({ "id": "subscribe", "method": "subscribe", "params": { "channel": CHAT } }),
    ];
    lines.map(line).concat()
}

/// A turn that runs this script.
fn turn(script: &str) -> String {
    let message = json!({ "text": script, "origin": { "kind": "user" } });
    let started = "2026-01-01T00:00:00.000Z";
    let action =
        json!({ "type": "chat/turnStarted", "turnId": "t", "startedAt": started, "message": message });
    line(json!({ "method": "dispatchAction", "params":
        { "channel": CHAT, "clientSeq": 1, "action": action } }))
}

fn ping(id: usize) -> String {
    line(json!({ "id": id, "method": "ping", "params": { "channel": "ahp-root://" } }))
}

fn line(mut message: Value) -> String {
    message["jsonrpc"] = "2.0".into();
    format!("{message}\n")
}

/// The action's type, if the message is one.
fn kind(message: &Value) -> &str {
    message["params"]["action"]["type"].as_str().unwrap_or_default()
}

fn kinds(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(kind).collect()
}

/// Text that `/stream` repeats.
const DIGITS: &str = "01234567890123456789012345678901234567890123456789012345678901234567890123456789";

/// Summary of the output of a conversation, read to its end.
#[derive(Default)]
struct Heard {
    /// Number of streamed digits.
    text: usize,
    /// Answers to pings, in order.
    pings: Vec<u64>,
    /// How turns ended, in order.
    endings: Vec<String>,
    /// The longest line, in bytes.
    longest: usize,
    server_seq: u64,
}

impl Heard {
    /// Reads to the end. Each line must be a frame; streamed digits must go on where they stopped,
    /// and sequence numbers must grow.
    fn all(output: impl Read + Send + 'static) -> Self {
        within("the output ends", || {
            let mut heard = Self::default();
            for line in BufReader::new(output).lines() {
                heard.add_line(&line.unwrap());
            }
            heard
        })
    }

    fn add_line(&mut self, line: &str) {
        let start = &line[..line.len().min(200)];
        let message: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("not JSON ({error}): {start}"));
        assert_eq!(message["jsonrpc"], "2.0", "not a frame: {start}");
        self.longest = self.longest.max(line.len());
        self.pings.extend(message["id"].as_u64());
        let Some(server_seq) = message["params"]["serverSeq"].as_u64() else { return };
        assert!(server_seq > self.server_seq, "{server_seq} came after {}", self.server_seq);
        self.server_seq = server_seq;
        match kind(&message) {
            "chat/delta" => {
                let text = message["params"]["action"]["content"].as_str().unwrap();
                for piece in text.as_bytes().chunks(DIGITS.len() - 10) {
                    let expected = &DIGITS.as_bytes()[self.text % 10..][..piece.len()];
                    assert!(piece == expected, "the digits break off after {}: {start}", self.text);
                    self.text += piece.len();
                }
            }
            "chat/turnComplete" | "chat/turnCancelled" | "chat/error" => {
                self.endings.push(kind(&message).to_owned());
            }
            _ => {}
        }
    }
}

/// Does what may block, on a thread: when it blocks for ever, the test has failed.
fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(work);
    wait_until(what, || thread.is_finished());
    thread.join().unwrap()
}

/// Writes, and gives back what it wrote to.
fn say<W: Write + Send + 'static>(mut to: W, text: String) -> W {
    within("the program reads what is said", move || {
        to.write_all(text.as_bytes()).unwrap();
        to
    })
}

/// Waits until something is so.
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < HUNG, "not within {HUNG:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process has nothing left to do: all of its threads sleep, look after look, or it
/// has ended. A thread that only waits for its turn on the processor does not count as asleep.
pub fn wait_until_idle(pid: u32) {
    let mut quiet = 0;
    wait_until("the process has nothing to do", || {
        let asleep = fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            // The name before it stands in parentheses.
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['S', 'Z']))
        });
        quiet = if asleep { quiet + 1 } else { 0 };
        quiet == 10
    });
}

/// Waits until a process can do nothing before its pipe is read. (How much a full pipe holds
/// depends on the sizes of what was written.)
pub fn wait_until_stuck(pid: u32, pipe: impl AsFd) {
    let size = rustix::pipe::fcntl_getpipe_size(&pipe).unwrap() as u64;
    wait_until("the pipe fills", || rustix::io::ioctl_fionread(&pipe).unwrap() > size / 2);
    wait_until_idle(pid);
}

/// The memory that a process occupies, in bytes.
fn resident(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn wait(child: &mut Child) -> ExitStatus {
    let mut status = None;
    wait_until("the program ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

/// Kills the program when a test fails half-way.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            self.0.kill().ok();
            self.0.wait().ok();
        }
    }
}
