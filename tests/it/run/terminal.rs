//! A person at a terminal: what is shown, and who is asked.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{channel, Receiver};
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};

use super::agents::AGENT;
use super::fleeting;
use crate::support::HUNG;

/// A run whose stdin, stdout and stderr are a terminal.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    shown: String,
}

impl Terminal {
    fn start(command: &mut Command) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let open =
            || rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let [stdin, stdout, stderr]: [OwnedFd; 3] = [open(), open(), open()];
        let child = command.stdin(stdin).stdout(stdout).stderr(stderr).spawn().unwrap();
        // The command holds its descriptors open otherwise.
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        let mut reader = File::from(ours.try_clone().unwrap());
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keyboard: File::from(ours), screen, shown: String::new() }
    }

    fn until(&mut self, text: &str) {
        while !self.shown.contains(text) {
            let bytes = self
                .screen
                .recv_timeout(HUNG)
                .unwrap_or_else(|_| panic!("{text:?} is not shown: {:?}", self.shown));
            self.shown += &String::from_utf8_lossy(&bytes);
        }
    }

    fn enter(&mut self, line: &str) {
        self.keyboard.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap().code();
        while let Ok(bytes) = self.screen.recv_timeout(HUNG) {
            self.shown += &String::from_utf8_lossy(&bytes);
        }
        (status, self.shown)
    }
}

#[test]
fn person_is_asked_with_the_options_of_the_agent() {
    for (line, status) in [("1", 0), ("2", 0), ("3", 11), ("", 11), ("y", 0), ("9", 11)] {
        let mut terminal = Terminal::start(&mut fleeting("/ask rm {\"path\":\"x\"}\n/say after"));
        terminal.until("1: Allow once, 2: Allow always, 3: Reject");
        assert!(
            terminal.shown.contains("rm asks: Run rm") && terminal.shown.contains("/x"),
            "{}",
            terminal.shown
        );
        terminal.enter(line);
        let (ended, shown) = terminal.end();
        assert_eq!(ended, Some(status), "{line:?}: {shown}");
        assert!(shown.contains("after"), "{shown}");
    }
}

#[test]
fn person_sees_each_text_of_the_agent_in_one_line() {
    let mut terminal = Terminal::start(&mut fleeting("/ask rm {\"path\":\"x\\n1: Harmless\"}"));
    terminal.until("/x ⏎ 1: Harmless");
    terminal.enter("");
    assert_eq!(terminal.end().0, Some(11));
}

#[test]
fn line_typed_before_a_question_is_no_answer_to_it() {
    let agent = format!("a=python3 {AGENT}");
    let mut terminal = Terminal::start(fleeting("ask_thrice").args(["--agent", &agent]));
    terminal.until("Number 1");
    terminal.enter("1\n1\n1");
    for number in [2, 3] {
        terminal.until(&format!("Number {number}"));
        terminal.enter("4");
    }
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(11), "{shown}");
    for outcome in ["1: yes", "2: no", "3: no"] {
        assert!(shown.contains(outcome), "{shown}");
    }
}

#[test]
fn line_typed_before_the_first_question_is_no_answer_to_it() {
    let mut terminal = Terminal::start(&mut fleeting("/ask rm"));
    terminal.enter("1");
    terminal.until("3: Reject");
    terminal.enter("3");
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(11), "{shown}");
}

#[test]
fn person_is_not_asked_where_a_rule_decides() {
    let terminal = Terminal::start(fleeting("/ask rm\n/say after").args(["--allow", "tool=rm"]));
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(0), "{shown}");
    assert!(!shown.contains("asks"), "{shown}");
}

#[test]
fn terminal_shows_calls_and_a_status_line_that_is_erased() {
    let mut terminal = Terminal::start(&mut fleeting("/tool ls\n/fail cp no room\n/hang"));
    terminal.until("✓ Ran ls");
    terminal.until("✗ ");
    // The status line shows that the run is at work.
    terminal.until("s)");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(terminal.child.id().try_into().unwrap()).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(130), "{shown}");
    let last = shown.rfind("s)").unwrap();
    assert!(shown[last..].contains("\r\u{1b}[K"), "{shown:?}");
}

#[test]
fn text_for_a_terminal_has_no_control_characters() {
    let terminal = Terminal::start(&mut fleeting("/say a\u{1b}]0;title\u{7}b"));
    let (status, shown) = terminal.end();
    assert_eq!(status, Some(0));
    assert!(shown.contains("a]0;titleb"), "{shown:?}");
}

#[test]
fn run_without_a_prompt_at_a_terminal_is_wrong_usage() {
    let mut command = super::run_of(["--ephemeral", "--config", "/dev/null"]);
    let (status, shown) = Terminal::start(&mut command).end();
    assert_eq!(status, Some(2), "{shown}");
    assert!(shown.contains("there is no prompt"), "{shown}");
}
