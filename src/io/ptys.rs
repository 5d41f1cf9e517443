//! Programs in terminals of the system's, into which clients type.
//!
//! Each has a guard of its own, as agents have, under which it is started (`opening`), and a task that attends to it
//! (`program`). `shell` says which program it is, and `integration` how it tells of its commands. What it prints is taken
//! apart (`scanner`) and listened to (`listener`): it is answered what it asks of its terminal (`questions`), of which as much is
//! known as that takes (`screen`). `typing` is what waits to be written, `foreground` who would read it.
//!
//! Owns: which of them run, what each is told, and what is heard of them.
//! Never: drops a byte of what they print: they wait while clients do not read.

mod foreground;
mod integration;
mod listener;
mod opening;
mod program;
mod questions;
mod scanner;
mod screen;
mod shell;
mod typing;

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::backend::acp::guards::GuardProgram;
use crate::host::effects::{PtyCommand, PtyEvent, TerminalKey};
pub use integration::ShellScripts;

/// Something that was heard of a program.
#[derive(Debug)]
pub struct PtyReport {
    terminal: TerminalKey,
    event: PtyEvent,
    /// Until it is heard, its program is told of no more.
    _taken: Option<OwnedSemaphorePermit>,
}

/// Where it is told what becomes of a program.
#[derive(Debug)]
struct PtyReports {
    terminal: TerminalKey,
    sender: mpsc::UnboundedSender<PtyReport>,
    /// What it has printed is told once it was heard what it had printed before: so no program is heard more often than
    /// another, and those of clients that do not read wait.
    room: Arc<Semaphore>,
}

impl PtyReports {
    fn new(terminal: TerminalKey, sender: mpsc::UnboundedSender<PtyReport>) -> Self {
        Self { terminal, sender, room: Arc::new(Semaphore::new(1)) }
    }

    /// Waits until what was told last of what is printed was heard. None when nobody listens any more.
    async fn room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).acquire_owned().await.ok()
    }

    fn tell(&self, event: PtyEvent, taken: Option<OwnedSemaphorePermit>) {
        let report = PtyReport { terminal: self.terminal, event, _taken: taken };
        if self.sender.send(report).is_err() {
            tracing::debug!("nobody listens to terminals any more");
        }
    }
}

/// All programs in terminals.
#[derive(Debug)]
pub struct Ptys {
    guard: Option<GuardProgram>,
    /// The scripts that have shells tell of their commands; without them they do not.
    scripts: Option<ShellScripts>,
    /// What a program prints is told when it has ended, all at once: the same each time.
    tells_at_end: bool,
    /// What each of them is to be told.
    commands: HashMap<TerminalKey, mpsc::UnboundedSender<PtyCommand>>,
    /// Those of which it is not known whether they can be started; where all is told at the end, also those that run by
    /// themselves.
    starting: HashMap<TerminalKey, bool>,
    reports: mpsc::UnboundedSender<PtyReport>,
    stop: CancellationToken,
    running: watch::Sender<usize>,
}

impl Ptys {
    /// None yet, and where it is heard what becomes of them.
    pub fn new(
        guard: Option<GuardProgram>,
        scripts: Option<ShellScripts>,
        tells_at_end: bool,
    ) -> (Self, mpsc::UnboundedReceiver<PtyReport>) {
        let (reports, heard) = mpsc::unbounded_channel();
        let (running, _) = watch::channel(0);
        let (commands, starting, stop) = (HashMap::new(), HashMap::new(), CancellationToken::new());
        (Self { guard, scripts, tells_at_end, commands, starting, reports, stop, running }, heard)
    }

    /// Does what is asked. Must be called inside a tokio runtime.
    pub fn carry_out(&mut self, terminal: TerminalKey, command: PtyCommand) {
        match command {
            PtyCommand::Start(launch) => {
                let (sender, commands) = mpsc::unbounded_channel();
                let reports = PtyReports::new(terminal, self.reports.clone());
                let attended = program::Attended {
                    commands,
                    stop: self.stop.child_token(),
                    counted: program::CountedProgram::new(&self.running),
                    tells_at_end: self.tells_at_end,
                };
                self.commands.insert(terminal, sender);
                self.starting.insert(terminal, launch.command.is_some());
                program::start(self.guard.as_ref(), self.scripts.as_ref(), &launch, reports, attended);
            }
            PtyCommand::End => {
                // It ends when it can be told nothing more.
                self.commands.remove(&terminal);
                self.starting.remove(&terminal);
            }
            command => {
                if self.commands.get(&terminal).is_some_and(|program| program.send(command).is_err()) {
                    tracing::debug!(?terminal, "a program has ended meanwhile");
                }
            }
        }
    }

    /// Takes a report in; gives it back unless its program was ended.
    pub fn hear(&mut self, report: PtyReport) -> Option<(TerminalKey, PtyEvent)> {
        let PtyReport { terminal, event, _taken } = report;
        self.commands.get(&terminal)?;
        match &event {
            PtyEvent::Started { .. } => {
                let ends_by_itself = self.starting.get(&terminal) == Some(&true);
                if !self.tells_at_end || !ends_by_itself {
                    self.starting.remove(&terminal);
                }
            }
            PtyEvent::NotStarted(_) | PtyEvent::Exited(_) => {
                self.starting.remove(&terminal);
                self.commands.remove(&terminal);
            }
            _ => {}
        }
        Some((terminal, event))
    }

    /// Whether nothing is to be waited for.
    pub fn are_settled(&self) -> bool {
        self.starting.is_empty()
    }

    /// Ends all of them, for good; done when nothing of them is left.
    pub async fn stop(&self) {
        self.stop.cancel();
        // Cannot fail: the sender is ours.
        self.running.subscribe().wait_for(|count| *count == 0).await.map(drop).unwrap_or_default();
    }
}
