//! One program in a terminal of the system's.
//!
//! Owns: opening the terminal, starting the program there under a guard, and the task that attends to it: what it prints is
//! gathered for a moment, what is typed is written when it reads.
//! Never: waits for it on the loop's thread, or reads on while what it has printed is not heard.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::io::ioctl_fionbio;
use rustix::pty::{grantpt, openpt, unlockpt, OpenptFlags};
use rustix::termios::{tcgetattr, tcsetattr, tcsetwinsize, InputModes, OptionalActions, Winsize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::{pipe, OwnedReadHalf, OwnedWriteHalf};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until, Instant};
use tokio_util::sync::CancellationToken;

use super::{shell, PtyReports};
use crate::backend::acp::guards::{Guard, GuardProgram};
use crate::backend::acp::terminals::guard::CommandNews;
use crate::files::uris::path_of;
use crate::host::effects::{PtyCommand, PtyEvent, PtyLaunch, ScreenSize};
use crate::wire::escapes::take_text;

/// What is said to the guard before the program.
const PTY: &str = "--pty";

/// What is printed within this time is told at once.
const GATHERED: Duration = Duration::from_millis(8);

/// So much is told at once, in bytes.
const TOLD_BYTES_MAX: usize = 64 << 10;

/// The same of what is told at the end.
const TOLD_AT_END_BYTES_MAX: usize = 1 << 20;

/// When nothing has come for so long from a program that has ended, nothing more comes.
const DRAINED_AFTER: Duration = Duration::from_millis(500);

/// So much is still read of what others print there after it has ended, in bytes.
const DRAINED_BYTES_MAX: usize = 1 << 20;

/// How long it is waited for somebody to open a terminal again that nobody has open.
const PAUSE: Duration = Duration::from_millis(50);

/// What every program in a terminal is told of it.
const ENVIRONMENT: [(&str, &str); 3] =
    [("TERM", "xterm-256color"), ("COLORTERM", "truecolor"), ("TERM_PROGRAM", env!("CARGO_PKG_NAME"))];

/// What other terminals say of themselves in the environment.
const NOT_OURS: [&str; 4] = ["COLUMNS", "LINES", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID"];

/// A program that has not quite ended.
#[derive(Debug)]
pub struct CountedProgram(watch::Sender<usize>);

impl CountedProgram {
    /// One more of these.
    pub fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for CountedProgram {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// How a program is attended to from outside.
#[derive(Debug)]
pub struct Attended {
    /// What it is told. It ends when it can be told nothing more.
    pub commands: mpsc::UnboundedReceiver<PtyCommand>,
    /// Ends it, too.
    pub stop: CancellationToken,
    /// Until nothing of it is left.
    pub counted: CountedProgram,
    /// What it prints is told when it has ended, all at once.
    pub tells_at_end: bool,
}

/// Starts a program, and tells what becomes of it.
pub fn start(guard: Option<&GuardProgram>, launch: &PtyLaunch, reports: PtyReports, attended: Attended) {
    let shell = shell::of_user();
    match open(guard, launch, &shell) {
        Ok((guard, pty)) => {
            let name = shell.file_name().unwrap_or(shell.as_os_str()).to_string_lossy().into_owned();
            let program = Program::new(pty, reports, (shell, name), attended.tells_at_end);
            tokio::spawn(program.attend(guard, attended));
        }
        Err(error) => reports.tell(not_started(&shell, &error), None),
    }
}

fn not_started(shell: &Path, why: &dyn std::fmt::Display) -> PtyEvent {
    PtyEvent::NotStarted(format!("`{}` cannot be started in a terminal: {why}", shell.display()))
}

/// The host's side of a terminal with a program in it. It is read and written like a pipe.
struct OpenPty {
    printed: pipe::Receiver,
    typing: pipe::Sender,
    /// The guard's lifeline.
    control: UnixStream,
}

/// Opens a terminal and has a guard start the program there.
fn open(guard: Option<&GuardProgram>, launch: &PtyLaunch, shell: &Path) -> io::Result<(Guard, OpenPty)> {
    let program = guard.ok_or_else(|| io::Error::other("this host starts no programs"))?;
    let directory = launch.directory.as_deref().map(path_of).transpose();
    let directory = directory.map_err(|error| io::Error::other(error.message))?;
    // Else it is the guard that cannot be started, it seems.
    if let Some(directory) = &directory {
        std::fs::metadata(directory).map_err(|error| in_directory(directory, &error))?;
    }
    let (master, terminal) = open_terminal()?;
    set_size(&master, launch.size)?;
    let (ours, theirs) = Socket::pair()?;
    ours.set_nonblocking(true)?;
    let mut command = program.command();
    command.arg(PTY).arg("--").arg(shell);
    match &launch.command {
        Some(line) => command.arg("-c").arg(line),
        None => command.args(shell::arguments(shell)),
    };
    command.envs(ENVIRONMENT).env("SHELL", shell);
    for name in NOT_OURS {
        command.env_remove(name);
    }
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::from(terminal)).stderr(Stdio::null());
    let guard = program.start(&mut command)?;
    // Only the guard has the other ends from here on.
    drop(command);
    ioctl_fionbio(&master, true)?;
    let printed = pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?;
    let typing = pipe::Sender::from_owned_fd_unchecked(master)?;
    Ok((guard, OpenPty { printed, typing, control: UnixStream::from_std(ours)? }))
}

fn in_directory(directory: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("`{}`: {error}", directory.display()))
}

/// A new terminal: our side, and that of programs.
fn open_terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    #[cfg(target_os = "linux")]
    let (master, terminal) = {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let terminal = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
        (master, terminal)
    };
    #[cfg(not(target_os = "linux"))]
    let (master, terminal) = {
        use rustix::fs::{Mode, OFlags};
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = rustix::pty::ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(name, flags, Mode::empty())?;
        (master, terminal)
    };
    // What is typed is taken back by characters.
    let mut modes = tcgetattr(&terminal)?;
    modes.input_modes |= InputModes::IUTF8;
    tcsetattr(&terminal, OptionalActions::Now, &modes)?;
    Ok((master, terminal))
}

fn set_size(master: impl AsFd, size: ScreenSize) -> io::Result<()> {
    let ScreenSize { cols, rows } = size;
    Ok(tcsetwinsize(master, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })?)
}

/// Whether it will be possible later.
fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// How far a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Starting,
    Running,
    /// It has ended in this way; what it has printed is still read.
    Ended(Option<i64>),
}

/// A program, as its task sees it.
struct Program {
    printed: pipe::Receiver,
    typing: pipe::Sender,
    told: Lines<BufReader<OwnedReadHalf>>,
    /// The guard ends all when this is gone.
    _lifeline: OwnedWriteHalf,
    reports: PtyReports,
    path: PathBuf,
    name: String,
    stage: Stage,
    /// What it has printed and is not told.
    untold: Vec<u8>,
    /// Something was printed since the last time that was told.
    has_news: bool,
    told_at: Option<Instant>,
    /// When something was printed last, and how much since it has ended.
    printed_at: Instant,
    drained_bytes: usize,
    /// Nobody has the terminal open.
    is_closed: bool,
    typed: VecDeque<u8>,
    tells_at_end: bool,
}

/// What happens next.
enum Happens {
    Told(Option<PtyCommand>),
    Guard(Option<CommandNews>),
    Readable,
    Writable,
    Opened,
    TimeToTell(Option<tokio::sync::OwnedSemaphorePermit>),
    Drained,
}

impl Program {
    fn new(pty: OpenPty, reports: PtyReports, (path, name): (PathBuf, String), tells_at_end: bool) -> Self {
        let (told, lifeline) = pty.control.into_split();
        Self {
            printed: pty.printed,
            typing: pty.typing,
            told: BufReader::new(told).lines(),
            _lifeline: lifeline,
            reports,
            path,
            name,
            stage: Stage::Starting,
            untold: Vec::new(),
            has_news: false,
            told_at: None,
            printed_at: Instant::now(),
            drained_bytes: 0,
            is_closed: false,
            typed: VecDeque::new(),
            tells_at_end,
        }
    }

    /// Attends to it until nothing of it is left.
    async fn attend(mut self, mut guard: Guard, mut attended: Attended) {
        let gone = CancellationToken::new();
        tokio::select! {
            () = self.run(&mut attended.commands) => {}
            () = attended.stop.cancelled() => {}
        }
        // The system tells those who have the terminal that it is gone, and the guard ends who stays.
        drop(self);
        gone.cancel();
        if let Err(error) = guard.ended(&gone).await {
            tracing::warn!(%error, "how the guard of a terminal ended is not known");
        }
        drop(attended.counted);
    }

    /// Carries what is typed and what is printed, until it has ended or is to.
    async fn run(&mut self, commands: &mut mpsc::UnboundedReceiver<PtyCommand>) {
        loop {
            match self.next(commands).await {
                Happens::Told(None) => return,
                Happens::Told(Some(command)) => self.obey(command),
                Happens::Guard(news) => {
                    if !self.hear_guard(news) {
                        return;
                    }
                }
                Happens::Readable => self.read(),
                Happens::Writable => self.write(),
                Happens::Opened => self.is_closed = false,
                Happens::TimeToTell(None) => return,
                Happens::TimeToTell(Some(room)) => {
                    self.has_news = false;
                    self.told_at = Some(Instant::now());
                    let text = take_text(&mut self.untold, false);
                    if !text.is_empty() {
                        self.reports.tell(PtyEvent::Data(text), Some(room));
                    }
                }
                Happens::Drained => {
                    let rest = take_text(&mut self.untold, true);
                    if !rest.is_empty() {
                        self.reports.tell(PtyEvent::Data(rest), None);
                    }
                    if let Stage::Ended(code) = self.stage {
                        self.reports.tell(PtyEvent::Exited(code), None);
                    }
                    return;
                }
            }
        }
    }

    async fn next(&mut self, commands: &mut mpsc::UnboundedReceiver<PtyCommand>) -> Happens {
        let has_ended = matches!(self.stage, Stage::Ended(_));
        let has_room = self.has_room();
        let reads = self.stage != Stage::Starting && has_room && !self.is_closed;
        let tells = self.has_news && !self.untold.is_empty() && !self.tells_at_end;
        let is_full = self.untold.len() >= TOLD_BYTES_MAX;
        let due = self.told_at.filter(|_| !is_full).map(|at| at + GATHERED);
        let is_over = self.is_closed || self.drained_bytes >= DRAINED_BYTES_MAX;
        let drained = has_ended && !tells;
        let drained_at = self.printed_at + DRAINED_AFTER;
        let (reports, printed, typing, told) = (&self.reports, &self.printed, &self.typing, &mut self.told);
        tokio::select! {
            command = commands.recv() => Happens::Told(command),
            line = told.next_line(), if !has_ended => {
                Happens::Guard(line.ok().flatten().as_deref().and_then(CommandNews::of_line))
            }
            room = async {
                if let Some(due) = due {
                    sleep_until(due).await;
                }
                reports.room().await
            }, if tells => Happens::TimeToTell(room),
            _ = printed.readable(), if reads => Happens::Readable,
            _ = typing.writable(), if !self.typed.is_empty() => Happens::Writable,
            () = sleep(PAUSE), if self.is_closed && !has_ended => Happens::Opened,
            () = async {
                if !is_over {
                    sleep_until(drained_at).await;
                }
            }, if drained => Happens::Drained,
        }
    }

    /// Whether more may be read.
    fn has_room(&self) -> bool {
        let max = if self.tells_at_end { TOLD_AT_END_BYTES_MAX } else { TOLD_BYTES_MAX };
        self.untold.len() < max && self.drained_bytes < DRAINED_BYTES_MAX
    }

    fn obey(&mut self, command: PtyCommand) {
        match command {
            PtyCommand::Type(typed) => self.typed.extend(typed.0.as_bytes()),
            PtyCommand::Resize(size) => {
                if let Err(error) = set_size(&self.typing, size) {
                    tracing::debug!(%error, "a terminal has kept its size");
                }
            }
            PtyCommand::Start(_) | PtyCommand::End => {}
        }
    }

    /// What its guard says of it; returns whether there is anything to attend to.
    fn hear_guard(&mut self, news: Option<CommandNews>) -> bool {
        self.stage = match news {
            Some(CommandNews::Started) => {
                self.reports.tell(PtyEvent::Started { program: self.name.clone() }, None);
                Stage::Running
            }
            Some(CommandNews::NotStarted(why)) => {
                self.reports.tell(not_started(&self.path, &why), None);
                return false;
            }
            None if self.stage == Stage::Starting => {
                self.reports.tell(not_started(&self.path, &"its guard has ended"), None);
                return false;
            }
            Some(CommandNews::Exited(code)) => Stage::Ended(Some(i64::from(code))),
            // Of one whose guard was killed nothing is known.
            Some(CommandNews::Killed(_)) | None => Stage::Ended(None),
        };
        self.printed_at = Instant::now();
        true
    }

    /// Reads what is there, as far as there is room for it.
    fn read(&mut self) {
        let mut buffer = [0; 4 << 10];
        while self.has_room() {
            match self.printed.try_read(&mut buffer) {
                Ok(count @ 1..) => {
                    self.untold.extend_from_slice(&buffer[..count]);
                    self.has_news = true;
                    self.printed_at = Instant::now();
                    if matches!(self.stage, Stage::Ended(_)) {
                        self.drained_bytes += count;
                    }
                }
                Err(error) if is_for_now(&error) => return,
                // Linux says so when nobody has it open.
                Ok(_) | Err(_) => {
                    self.is_closed = true;
                    return;
                }
            }
        }
    }

    /// Writes what is typed, as far as the program reads.
    fn write(&mut self) {
        let (typed, _) = self.typed.as_slices();
        let written = match self.typing.try_write(typed) {
            Ok(count) => count,
            Err(error) if is_for_now(&error) => return,
            Err(error) => {
                tracing::debug!(%error, "what was typed is not taken any more");
                self.typed.len()
            }
        };
        self.typed.drain(..written);
        self.reports.tell(PtyEvent::Took(written), None);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustix::termios::Termios;
    use tokio::io::AsyncWriteExt;

    use super::super::PtyReport;
    use super::*;
    use crate::host::effects::{TerminalKey, TypedText};

    /// A terminal in which the test is the program, and the guard.
    struct Opened {
        terminal: std::fs::File,
        guard: UnixStream,
        commands: mpsc::UnboundedSender<PtyCommand>,
        heard: mpsc::UnboundedReceiver<PtyReport>,
    }

    impl Opened {
        async fn new() -> Self {
            let (master, terminal) = open_terminal().unwrap();
            let mut modes: Termios = tcgetattr(&terminal).unwrap();
            modes.make_raw();
            tcsetattr(&terminal, OptionalActions::Now, &modes).unwrap();
            ioctl_fionbio(&terminal, true).unwrap();
            ioctl_fionbio(&master, true).unwrap();
            let (control, mut guard) = UnixStream::pair().unwrap();
            let printed = pipe::Receiver::from_owned_fd_unchecked(master.try_clone().unwrap()).unwrap();
            let typing = pipe::Sender::from_owned_fd_unchecked(master).unwrap();
            let (sender, mut heard) = mpsc::unbounded_channel();
            let reports = PtyReports::new(TerminalKey(1), sender);
            let pty = OpenPty { printed, typing, control };
            let mut program = Program::new(pty, reports, ("/x".into(), "x".to_owned()), false);
            let (commands, mut told) = mpsc::unbounded_channel();
            tokio::spawn(async move { program.run(&mut told).await });
            guard.write_all(b"started\n").await.unwrap();
            assert_eq!(heard.recv().await.unwrap().event, PtyEvent::Started { program: "x".to_owned() });
            Self { terminal: terminal.into(), guard, commands, heard }
        }

        /// Prints until nothing more is taken for a while; how many bytes that were, at most so many.
        async fn print(&mut self, max: usize) -> usize {
            let (mut printed, mut idle) = (0, 0);
            while printed < max && idle < 40 {
                // Lines of eight bytes that say which one they are.
                let line = format!("{:07}\n", printed / 8);
                match self.terminal.write(&line.as_bytes()[printed % 8..]) {
                    Ok(count) => (printed, idle) = (printed + count, 0),
                    Err(error) => {
                        assert!(is_for_now(&error), "{error}");
                        idle += 1;
                        sleep(Duration::from_millis(5)).await;
                    }
                }
            }
            printed
        }
    }

    #[tokio::test]
    async fn what_is_not_heard_is_not_read_and_nothing_is_lost() {
        let mut opened = Opened::new().await;
        let printed = opened.print(4 << 20).await;
        assert!(printed > 0 && printed <= 4 * TOLD_BYTES_MAX, "{printed} bytes wait");
        opened.guard.write_all(b"exited 3\n").await.unwrap();
        drop(opened.terminal);
        let mut all = String::new();
        loop {
            match opened.heard.recv().await.unwrap().event {
                PtyEvent::Data(data) => {
                    assert!(data.len() <= TOLD_BYTES_MAX + 4096, "{}", data.len());
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
                    assert!(is_for_now(&error), "{error}");
                    let PtyEvent::Took(count) = opened.heard.recv().await.unwrap().event else { panic!() };
                    taken += count;
                }
            }
        }
        while taken < typed.len() {
            let PtyEvent::Took(count) = opened.heard.recv().await.unwrap().event else { panic!() };
            taken += count;
        }
        assert_eq!(String::from_utf8(read).unwrap(), typed);
        let size = rustix::termios::tcgetwinsize(&opened.terminal).unwrap();
        assert_eq!((size.ws_col, size.ws_row), (7, 5));
    }
}
