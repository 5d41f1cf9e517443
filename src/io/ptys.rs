//! Programs in terminals of the system's, into which clients type.
//!
//! Each is started under a guard of its own (`opening`), and has a task that attends to it
//! (`program`). `shell` says which program it is, and `integration` how it tells of
//! its commands. What it prints is taken apart (`scanner`) and listened to (`listener`): it is
//! answered what it asks of its terminal (`questions`), of which as much is known as that takes
//! (`screen`). `typing` is what waits to be written, `foreground` who would read it.
//!
//! All this happens on a thread of its own: reading from a terminal of the system's waits, also
//! where it is told not to, until the system has moved what was printed to the side that is read,
//! for as long as the program that prints keeps the processor. The loop would answer nobody
//! meanwhile.
//!
//! Owns: which of them run, what each is told, and what is heard of them.
//! Never: drops a byte of what they print: they wait while clients do not read.

mod foreground;
mod integration;
mod listener;
mod opening;
mod program;
mod questions;
mod redactor;
mod scanner;
mod screen;
mod shell;
mod typing;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, watch, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

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

/// Sender of the reports of one program.
#[derive(Debug)]
struct PtyReports {
    terminal: TerminalKey,
    sender: mpsc::UnboundedSender<PtyReport>,
    /// Permit of the report on printed text that is in flight. There is one at a time, so that no
    /// program is heard more often than another, and programs of clients that do not read wait.
    room: Arc<Semaphore>,
}

impl PtyReports {
    fn new(terminal: TerminalKey, sender: mpsc::UnboundedSender<PtyReport>) -> Self {
        Self { terminal, sender, room: Arc::new(Semaphore::new(1)) }
    }

    /// Waits until what was told last of what is printed was heard. None when nobody listens any
    /// more.
    async fn room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).acquire_owned().await.ok()
    }

    fn tell(&self, event: PtyEvent, taken: Option<OwnedSemaphorePermit>) {
        let report = PtyReport { terminal: self.terminal, event, _taken: taken };
        if self.sender.send(report).is_err() {
            tracing::debug!("a report of a terminal was dropped: the host is leaving");
        }
    }
}

/// The thread on which programs are attended to. When this is dropped, it ends, and so do they.
#[derive(Debug)]
struct PtyThread {
    handle: Handle,
    _ends: DropGuard,
}

impl PtyThread {
    fn begin() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, ends) = (runtime.handle().clone(), CancellationToken::new());
        let ended = ends.clone();
        thread::Builder::new()
            .name("terminals".to_owned())
            .spawn(move || runtime.block_on(ended.cancelled()))?;
        Ok(Self { handle, _ends: ends.drop_guard() })
    }
}

/// All programs in terminals.
#[derive(Debug)]
pub struct Ptys {
    /// None before the first of them.
    thread: Option<PtyThread>,
    guards: Option<GuardProgram>,
    /// The scripts that have shells tell of their commands; without them they do not.
    scripts: Option<ShellScripts>,
    /// Set where the output of a program is reported all at once when it has ended, so that the
    /// reports are the same each time.
    tells_at_end: bool,
    /// Command queues of the programs.
    commands: HashMap<TerminalKey, mpsc::UnboundedSender<PtyCommand>>,
    /// Programs that may not have started yet; where output is reported at the end, also commands
    /// that run. The value is true for a command, which ends by itself.
    starting: HashMap<TerminalKey, bool>,
    reports: mpsc::UnboundedSender<PtyReport>,
    stop: CancellationToken,
    running: watch::Sender<usize>,
}

impl Ptys {
    /// None yet, and where it is heard what becomes of them.
    pub fn new(
        guards: Option<GuardProgram>,
        scripts: Option<ShellScripts>,
        tells_at_end: bool,
    ) -> (Self, mpsc::UnboundedReceiver<PtyReport>) {
        let (reports, heard) = mpsc::unbounded_channel();
        let (running, _) = watch::channel(0);
        let (commands, starting, stop) = (HashMap::new(), HashMap::new(), CancellationToken::new());
        let thread = None;
        (Self { thread, guards, scripts, tells_at_end, commands, starting, reports, stop, running }, heard)
    }

    /// The thread, which the first program begins.
    fn thread(&mut self) -> io::Result<Handle> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => PtyThread::begin()?,
        };
        Ok(self.thread.insert(thread).handle.clone())
    }

    /// Does what is asked.
    pub fn carry_out(&mut self, terminal: TerminalKey, command: PtyCommand) {
        match command {
            PtyCommand::Start(launch) => {
                let (sender, commands) = mpsc::unbounded_channel();
                let reports = PtyReports::new(terminal, self.reports.clone());
                let attended = program::ProgramControl {
                    commands,
                    stop: self.stop.child_token(),
                    counted: program::LiveProgram::new(&self.running),
                    tells_at_end: self.tells_at_end,
                };
                self.commands.insert(terminal, sender);
                self.starting.insert(terminal, launch.command.is_some());
                let (guards, scripts) = (self.guards.clone(), self.scripts.clone());
                match self.thread() {
                    Ok(thread) => {
                        thread.spawn(async move {
                            program::start(guards.as_ref(), scripts.as_ref(), &launch, reports, attended)
                                .await;
                        });
                    }
                    Err(error) => reports.tell(program::not_attended_to(&error), None),
                }
            }
            PtyCommand::End => {
                // It ends when it can be told nothing more.
                self.commands.remove(&terminal);
                self.starting.remove(&terminal);
            }
            command => {
                if self.commands.get(&terminal).is_some_and(|program| program.send(command).is_err()) {
                    tracing::debug!(?terminal, "a command for a terminal was dropped: its program has ended");
                }
            }
        }
    }

    /// Takes a report in; gives it back unless its program was ended.
    pub fn accept(&mut self, report: PtyReport) -> Option<(TerminalKey, PtyEvent)> {
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

    /// Returns whether no program is waited for.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::{PtyLaunch, ScreenSize};

    #[test]
    fn terminals_do_not_wait_for_the_loop_nor_the_loop_for_them() {
        // A guard that ends at once, where no loop runs at all.
        let guard = GuardProgram::new("true".into(), Vec::new());
        let (mut ptys, mut heard) = Ptys::new(Some(guard), None, false);
        let size = ScreenSize { cols: 80, rows: 24 };
        let launch = PtyLaunch { command: None, directory: None, size };
        ptys.carry_out(TerminalKey(1), PtyCommand::Start(launch));
        let report = heard.blocking_recv().unwrap();
        assert!(matches!(&report.event, PtyEvent::NotStarted(why) if why.ends_with("its guard has ended")));
    }
}
