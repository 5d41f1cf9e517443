//! The task of a program, with the test in place of the program and its guard.
//!
//! Owns: a terminal whose program side the test holds.
//! Never: starts a program.

use std::io::{Read, Write};

use rustix::io::ioctl_fionbio;
use rustix::termios::{tcgetattr, tcsetattr, OptionalActions, Termios};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::super::PtyReport;
use super::*;
use crate::host::effects::{ScreenSize, TerminalKey, TypedText};
use crate::os::pty::{ends_of, open_terminal};

/// Terminal in which the test acts as the program and its guard.
struct Opened {
    terminal: std::fs::File,
    guard: UnixStream,
    commands: mpsc::UnboundedSender<PtyCommand>,
    reports: mpsc::UnboundedReceiver<PtyReport>,
}

impl Opened {
    async fn new() -> Self {
        let (master, terminal) = open_terminal().unwrap();
        let mut modes: Termios = tcgetattr(&terminal).unwrap();
        modes.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &modes).unwrap();
        ioctl_fionbio(&terminal, true).unwrap();
        let (control, mut guard) = UnixStream::pair().unwrap();
        let (printed, typing) = ends_of(master).unwrap();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let reports = PtyReports::new(TerminalKey(1), sender);
        let size = ScreenSize { cols: 80, rows: 24 };
        let pty = OpenPty {
            printed,
            typing,
            control: Control::new(control),
            word: None,
            script: None,
            size,
            is_command: false,
        };
        let mut program = Program::new(pty, reports, ("/x".into(), "x".to_owned()), false);
        let (commands, mut queue) = mpsc::unbounded_channel();
        tokio::spawn(async move { program.run(&mut queue).await });
        guard.write_all(b"started\n").await.unwrap();
        assert_eq!(receiver.recv().await.unwrap().event, PtyEvent::Started { program: "x".to_owned() });
        Self { terminal: terminal.into(), guard, commands, reports: receiver }
    }

    /// Prints up to `max` bytes until none are accepted for a while; returns their number.
    async fn print(&mut self, max: usize) -> usize {
        let (mut printed, mut idle) = (0, 0);
        while printed < max && idle < 40 {
            // Lines of eight bytes that contain their own position.
            let line = format!("{:07}\n", printed / 8);
            match self.terminal.write(&line.as_bytes()[printed % 8..]) {
                Ok(count) => (printed, idle) = (printed + count, 0),
                Err(error) => {
                    assert!(is_transient(&error), "{error}");
                    idle += 1;
                    sleep(Duration::from_millis(5)).await;
                }
            }
        }
        printed
    }
}

#[tokio::test]
async fn output_is_not_read_while_reports_are_not_received_and_none_is_lost() {
    let mut opened = Opened::new().await;
    let printed = opened.print(4 << 20).await;
    assert!(printed > 0 && printed <= 4 * REPORT_BYTES_MAX, "{printed} bytes wait");
    opened.guard.write_all(b"exited 3\n").await.unwrap();
    drop(opened.terminal);
    let mut all = String::new();
    loop {
        match opened.reports.recv().await.unwrap().event {
            PtyEvent::Data(data) => {
                assert!(data.len() <= REPORT_BYTES_MAX + 4096, "{}", data.len());
                all.push_str(&data);
            }
            PtyEvent::Exited(code) => {
                assert_eq!(code, Some(3));
                break;
            }
            event => panic!("{event:?}"),
        }
    }
    let expected: String = (0..printed / 8 + 1).map(|number| format!("{number:07}\n")).collect();
    assert_eq!(all, expected[..printed]);
}

#[tokio::test]
async fn what_is_typed_waits_until_the_program_reads() {
    let mut opened = Opened::new().await;
    let typed: String = (0..40_000).map(|number| format!("{number:05}\n")).collect();
    let text = TypedText(typed.clone());
    opened.commands.send(PtyCommand::Type(text)).unwrap();
    opened.commands.send(PtyCommand::Resize(ScreenSize { cols: 7, rows: 5 })).unwrap();
    let (mut read, mut taken) = (Vec::new(), 0);
    let mut buffer = [0; 4096];
    while read.len() < typed.len() {
        match opened.terminal.read(&mut buffer) {
            Ok(count) => read.extend_from_slice(&buffer[..count]),
            Err(error) => {
                assert!(is_transient(&error), "{error}");
                let PtyEvent::Took(count) = opened.reports.recv().await.unwrap().event else { panic!() };
                taken += count;
            }
        }
    }
    while taken < typed.len() {
        let PtyEvent::Took(count) = opened.reports.recv().await.unwrap().event else { panic!() };
        taken += count;
    }
    assert_eq!(String::from_utf8(read).unwrap(), typed);
    let size = rustix::termios::tcgetwinsize(&opened.terminal).unwrap();
    assert_eq!((size.ws_col, size.ws_row), (7, 5));
}

/// Another process may keep the terminal open and print forever.
#[tokio::test]
async fn of_what_is_printed_behind_the_end_only_so_much_is_read() {
    let mut opened = Opened::new().await;
    opened.guard.write_all(b"exited 0\n").await.unwrap();
    let (mut printed, mut reported) = (0, 0);
    let line = [b'x'; 4 << 10];
    loop {
        // The terminal is closed when the task has read enough, which happens while the test waits.
        printed += opened.terminal.write(&line).unwrap_or(0);
        tokio::task::yield_now().await;
        match opened.reports.try_recv().map(|report| report.event) {
            Ok(PtyEvent::Data(data)) => reported += data.len(),
            Ok(PtyEvent::Exited(code)) => {
                assert_eq!(code, Some(0));
                break;
            }
            Ok(event) => panic!("{event:?}"),
            Err(_) => {}
        }
    }
    // Bytes read before the reported end are not counted.
    let most = DRAINED_BYTES_MAX + 4 * REPORT_BYTES_MAX;
    assert!((DRAINED_BYTES_MAX..most).contains(&reported), "{reported} of {printed}");
}
