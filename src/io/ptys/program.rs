//! One program in a pseudo terminal.
//!
//! Owns: the program's task, which interprets and batches output, and writes input and answers.
//! Never: runs on the loop's thread, or reads more output while the previous one is unreported.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, OwnedSemaphorePermit};
use tokio::task::yield_now;
use tokio::time::{sleep, sleep_until, Instant};
use tokio_util::sync::CancellationToken;

use super::foreground::Foreground;
use super::integration::{ShellScript, ShellScripts};
use super::listener::{OutputPiece, PtyListener};
use super::opening::{open, OpenPty};
use super::typing::InputQueue;
use super::PtyReports;
use crate::host::effects::{PtyCommand, PtyEvent, PtyLaunch};
use crate::os::limits::limit_behind;
use crate::os::process::{Control, Guard, GuardProgram, GuardReport};
use crate::os::pty::{self, seems_to_await_input, set_size, Printed, Typing};
use crate::os::shell;
use crate::sync::CountedEntry;
use crate::wire::escapes::take_text;

/// Minimum interval of output reports, unless [`REPORT_BYTES_MAX`] is reached before.
const REPORT_INTERVAL: Duration = Duration::from_millis(8);

/// Size of unreported output, in bytes, at which a report is due at once and reading pauses.
const REPORT_BYTES_MAX: usize = 64 << 10;

/// Maximum bytes per read; Linux never returns more from a terminal.
const READ_BYTES_MAX: usize = 4 << 10;

/// Size of unreported output, in bytes, at which reading pauses with `reports_at_end`.
const END_REPORT_BYTES_MAX: usize = 1 << 20;

/// Silence after the end of a program after which its output counts as complete.
const DRAINED_AFTER: Duration = Duration::from_millis(500);

/// Maximum bytes read after the program has ended: other processes may go on printing there.
const DRAINED_BYTES_MAX: usize = 1 << 20;

/// Silence after which the foreground program is checked.
const CALM_AFTER: Duration = Duration::from_millis(200);

/// Silence of a command after which it is checked whether it waits for input.
const WAITS_AFTER: Duration = Duration::from_secs(5);

/// Pause before a terminal that no process has open is read again.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct ProgramControl {
    /// Commands for the program. Closing the queue ends the program.
    pub commands: mpsc::UnboundedReceiver<PtyCommand>,
    pub stop: CancellationToken,
    /// Dropped when no process of the program is left.
    pub counted: CountedEntry,
    pub reports_at_end: bool,
}

pub async fn start(
    guards: Option<&GuardProgram>,
    scripts: Option<&ShellScripts>,
    launch: &PtyLaunch,
    reports: PtyReports,
    attended: ProgramControl,
) {
    let shell = shell::of_user();
    match open(guards, scripts, launch, &shell) {
        Ok((guard, pty)) => {
            let name = shell.file_name().unwrap_or(shell.as_os_str()).to_string_lossy().into_owned();
            let program = Program::new(pty, reports, (shell, name), attended.reports_at_end);
            program.attend(guard, attended).await;
        }
        Err(error) => reports.send(not_started(&shell, &error), None),
    }
}

fn not_started(shell: &Path, why: &dyn std::fmt::Display) -> PtyEvent {
    PtyEvent::NotStarted(format!("`{}` cannot be started in a terminal: {why}", shell.display()))
}

/// Returns the event for a program whose thread cannot be started.
pub fn not_attended_to(why: &io::Error) -> PtyEvent {
    let limit = limit_behind(why);
    not_started(&shell::of_user(), &format_args!("a thread cannot be started{limit}: {why}"))
}

/// Returns whether a failed read or write is to be retried later.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProgramStage {
    Starting,
    Running,
    /// Exit code, `None` if it is unknown. Remaining output is still read.
    Ended(Option<i64>),
}

struct Program {
    printed: Printed,
    screen: Typing,
    /// Connection to the guard. Closing it makes the guard end the program.
    control: Control,
    reports: PtyReports,
    path: PathBuf,
    name: String,
    stage: ProgramStage,
    listener: PtyListener,
    /// Script of the shell, until the shell has read it.
    script: Option<ShellScript>,
    /// Set if output was received since the last report.
    has_news: bool,
    reported_at: Option<Instant>,
    printed_at: Instant,
    drained_bytes: usize,
    /// Set once a read after the end has found nothing: later output is of others and not waited
    /// for.
    is_drained: bool,
    /// Set while no process has the terminal open.
    is_closed: bool,
    typing: InputQueue,
    foreground: Foreground,
    /// Time of the last reported title; reports are limited, since programs change titles often.
    titled_at: Option<Instant>,
    /// Times of the next check of the foreground program, and of whether a command waits for input.
    calm_at: Option<Instant>,
    waits_at: Option<Instant>,
    is_command: bool,
    reports_at_end: bool,
}

enum ProgramEvent {
    Command(Option<PtyCommand>),
    Guard(Option<GuardReport>),
    Readable,
    Written(io::Result<usize>),
    Opened,
    ReportDue(Option<OwnedSemaphorePermit>),
    Calm,
    Waits,
    Drained,
}

impl Program {
    fn new(pty: OpenPty, reports: PtyReports, (path, name): (PathBuf, String), reports_at_end: bool) -> Self {
        Self {
            printed: pty.printed,
            screen: pty.typing,
            control: pty.control,
            reports,
            path,
            name,
            stage: ProgramStage::Starting,
            listener: PtyListener::new(pty.size, pty.word),
            script: pty.script,
            has_news: false,
            reported_at: None,
            printed_at: Instant::now(),
            drained_bytes: 0,
            is_drained: false,
            is_closed: false,
            typing: InputQueue::default(),
            foreground: Foreground::default(),
            titled_at: None,
            calm_at: None,
            waits_at: None,
            is_command: pty.is_command,
            reports_at_end,
        }
    }

    /// Serves the program until no process of it is left.
    async fn attend(mut self, mut guard: Guard, mut attended: ProgramControl) {
        let released = CancellationToken::new();
        let run = async {
            tokio::select! {
                () = self.run(&mut attended.commands) => {}
                () = attended.stop.cancelled() => {}
            }
            // Closing the terminal hangs up its processes, and the guard ends those that stay.
            drop(self);
            released.cancel();
        };
        let ((), status) = tokio::join!(run, guard.keep_running(&released));
        if let Err(error) = status {
            tracing::warn!(%error, "the exit of a terminal's guard cannot be determined");
        }
        drop(attended.counted);
    }

    /// Carries input and output until the program has ended or is to be ended.
    async fn run(&mut self, commands: &mut mpsc::UnboundedReceiver<PtyCommand>) {
        loop {
            match self.next(commands).await {
                ProgramEvent::Command(None) => return,
                ProgramEvent::Command(Some(command)) => self.obey(command),
                ProgramEvent::Guard(news) => {
                    if !self.receive_guard_report(news) {
                        return;
                    }
                }
                ProgramEvent::Readable => {
                    self.read();
                    yield_now().await;
                }
                ProgramEvent::Written(written) => self.receive_written(written),
                ProgramEvent::Opened => self.is_closed = false,
                ProgramEvent::ReportDue(None) => return,
                ProgramEvent::ReportDue(Some(room)) => {
                    self.has_news = false;
                    self.reported_at = Some(Instant::now());
                    self.report_pending(Some(room));
                }
                ProgramEvent::Calm => self.refresh_title(),
                ProgramEvent::Waits => {
                    self.waits_at = None;
                    if seems_to_await_input(&self.screen) {
                        self.reports.send(PtyEvent::Waits, None);
                    }
                }
                ProgramEvent::Drained => {
                    self.listener.finish();
                    self.report_pending(None);
                    if let ProgramStage::Ended(code) = self.stage {
                        self.reports.send(PtyEvent::Exited(code), None);
                    }
                    return;
                }
            }
        }
    }

    async fn next(&mut self, commands: &mut mpsc::UnboundedReceiver<PtyCommand>) -> ProgramEvent {
        let has_ended = matches!(self.stage, ProgramStage::Ended(_));
        let has_room = self.has_room();
        let reads = self.stage != ProgramStage::Starting && has_room && !self.is_closed;
        // With `reports_at_end`, a full buffer is reported early: else the program would block.
        let may_report = !self.reports_at_end || !has_room;
        let reports_now = self.has_news && self.listener.has_pending() && may_report;
        let is_full = self.listener.pending_bytes() >= REPORT_BYTES_MAX;
        let due = self.reported_at.filter(|_| !is_full).map(|at| at + REPORT_INTERVAL);
        let is_over = self.is_closed || self.drained_bytes >= DRAINED_BYTES_MAX;
        let drained = has_ended && !reports_now;
        let drained_at = self.printed_at + DRAINED_AFTER;
        let (calm_at, waits_at) = (self.calm_at, self.waits_at);
        let (reports, printed, screen, control) =
            (&self.reports, &mut self.printed, &mut self.screen, &mut self.control);
        tokio::select! {
            command = commands.recv() => ProgramEvent::Command(command),
            report = control.next(), if !has_ended => ProgramEvent::Guard(report),
            room = async {
                if let Some(due) = due {
                    sleep_until(due).await;
                }
                reports.room().await
            }, if reports_now => ProgramEvent::ReportDue(room),
            _ = printed.readable(), if reads => ProgramEvent::Readable,
            written = pty::write(screen, self.typing.next()), if !self.typing.is_empty() => {
                ProgramEvent::Written(written)
            }
            () = until(calm_at), if calm_at.is_some() && !has_ended => ProgramEvent::Calm,
            () = until(waits_at), if waits_at.is_some() && !has_ended => ProgramEvent::Waits,
            () = sleep(PAUSE), if self.is_closed && !has_ended => ProgramEvent::Opened,
            () = async {
                if !is_over {
                    sleep_until(drained_at).await;
                }
            }, if drained => ProgramEvent::Drained,
        }
    }

    fn has_room(&self) -> bool {
        let max = if self.reports_at_end { END_REPORT_BYTES_MAX } else { REPORT_BYTES_MAX };
        self.listener.pending_bytes() < max && self.drained_bytes < DRAINED_BYTES_MAX
    }

    fn obey(&mut self, command: PtyCommand) {
        match command {
            PtyCommand::Type(typed) => {
                self.typing.typed(typed.0.as_bytes());
                self.expect_output();
            }
            PtyCommand::Resize(size) => {
                self.listener.resize(size);
                if let Err(error) = set_size(&self.screen, (size.cols, size.rows)) {
                    tracing::debug!(%error, "the size of a terminal cannot be changed");
                }
            }
            PtyCommand::Start(_) | PtyCommand::End => {}
        }
    }

    /// Handles a report of the guard; returns whether the task goes on.
    fn receive_guard_report(&mut self, news: Option<GuardReport>) -> bool {
        self.stage = match news {
            Some(GuardReport::Started) => {
                self.reports.send(PtyEvent::Started { program: self.name.clone() }, None);
                self.expect_output();
                ProgramStage::Running
            }
            Some(GuardReport::NotStarted(why)) => {
                self.reports.send(not_started(&self.path, &why), None);
                return false;
            }
            None if self.stage == ProgramStage::Starting => {
                self.reports.send(not_started(&self.path, &"its guard has ended"), None);
                return false;
            }
            Some(GuardReport::Exited(code)) => ProgramStage::Ended(Some(i64::from(code))),
            // The exit code is unknown if the guard was killed.
            Some(GuardReport::Killed(_)) | None => ProgramStage::Ended(None),
        };
        self.printed_at = Instant::now();
        true
    }

    /// Reads one piece. The task then handles other events before the next read, which may be slow.
    fn read(&mut self) {
        let mut buffer = [0; READ_BYTES_MAX];
        // Deterministic reports must not depend on the size of single reads.
        let room = match self.reports_at_end {
            true => END_REPORT_BYTES_MAX.saturating_sub(self.listener.pending_bytes()).max(1),
            false => READ_BYTES_MAX,
        };
        match self.printed.try_read(&mut buffer[..room.min(READ_BYTES_MAX)]) {
            Ok(count @ 1..) => {
                self.listener.read_output(&buffer[..count]);
                if self.listener.has_shell_integration() {
                    self.script = None;
                }
                self.has_news = true;
                if !self.is_drained {
                    self.printed_at = Instant::now();
                }
                self.calm_at = (!self.reports_at_end).then(|| self.printed_at + CALM_AFTER);
                if matches!(self.stage, ProgramStage::Ended(_)) {
                    self.drained_bytes += count;
                } else {
                    self.typing.answer(&self.listener.take_answers());
                    self.expect_output();
                }
            }
            Err(error) if is_transient(&error) => {
                self.is_drained |= matches!(self.stage, ProgramStage::Ended(_));
            }
            // Linux returns an error if no process has the terminal open.
            Ok(_) | Err(_) => self.is_closed = true,
        }
    }

    fn receive_written(&mut self, written: io::Result<usize>) {
        let written = match written {
            Ok(count) => count,
            Err(error) if is_transient(&error) => return,
            Err(error) => {
                tracing::debug!(%error, "typed bytes were dropped: the program reads no more");
                self.typing.next().len()
            }
        };
        let of_clients = self.typing.written(written);
        if of_clients > 0 {
            self.reports.send(PtyEvent::Took(of_clients), None);
        }
    }

    fn report_pending(&mut self, room: Option<OwnedSemaphorePermit>) {
        if self.titled_at.is_none_or(|at| at.elapsed() >= CALM_AFTER) {
            self.report_title();
        }
        let is_all = room.is_none();
        let mut events = Vec::new();
        let pieces = self.listener.take_pending();
        let last_text = pieces.iter().rposition(|piece| matches!(piece, OutputPiece::Text(_)));
        let goes_on = |at: usize| {
            let behind = pieces[at + 1..].iter();
            !behind.clone().any(|piece| matches!(piece, OutputPiece::Event(event) if is_in_order(event)))
        };
        let open = last_text.filter(|at| !is_all && goes_on(*at));
        for (at, piece) in pieces.into_iter().enumerate() {
            match piece {
                OutputPiece::Text(mut bytes) => {
                    let text = take_text(&mut bytes, open != Some(at));
                    self.listener.put_back(bytes);
                    events.extend((!text.is_empty()).then_some(PtyEvent::Data(text)));
                }
                OutputPiece::Event(event) => events.push(event),
            }
        }
        let last = events.pop();
        for event in events {
            self.reports.send(event, None);
        }
        if let Some(event) = last {
            self.reports.send(event, room);
        }
    }

    /// Reports the title that the program has set, valid while that program is in the foreground.
    fn report_title(&mut self) {
        if let Some(title) = self.listener.take_title() {
            self.titled_at = Some(Instant::now());
            self.foreground.is_called(&self.screen);
            self.reports.send(PtyEvent::Title(title), None);
        }
    }

    /// Updates the title after a pause in the output, since the foreground program may have
    /// changed.
    fn refresh_title(&mut self) {
        self.calm_at = None;
        self.report_title();
        if let Some(title) = self.foreground.refresh(&self.screen) {
            self.reports.send(PtyEvent::Title(title), None);
        }
    }

    /// Starts the wait for output of a command.
    fn expect_output(&mut self) {
        let waits = self.is_command && !self.reports_at_end;
        self.waits_at = waits.then(|| Instant::now() + WAITS_AFTER);
    }
}

/// Returns whether the position of an event within the output matters.
fn is_in_order(event: &PtyEvent) -> bool {
    !matches!(event, PtyEvent::Title(_) | PtyEvent::Directory(_))
}

/// Waits until this time; forever if there is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
