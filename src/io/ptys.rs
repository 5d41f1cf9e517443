//! Programs that run in pseudo terminals, into which clients type.
//!
//! Each program is started under its own guard (`opening`) and is served by one task (`program`).
//! `shell` selects the program, and `integration` defines how a shell reports its commands.
//! `scanner` splits the output into text and sequences, and `listener` interprets them. `questions`
//! answers the program's queries to its terminal from the model in `screen`. `typing` queues the
//! input, and `foreground` finds the program that would read it.
//!
//! The tasks run on a thread of their own. A read from a pseudo terminal can block even in
//! non-blocking mode: the kernel first moves the output to the reading side, which takes as long as
//! the printing program occupies the processor. On the main loop this would delay all clients.
//!
//! Owns: the running programs, their command queues, and their reports.
//! Never: drops a byte of output: programs wait while clients do not read.

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

/// Report on one program.
#[derive(Debug)]
pub struct PtyReport {
    terminal: TerminalKey,
    event: PtyEvent,
    /// Permit held until the report is handled; until then, the program sends no other output.
    _taken: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct PtyReports {
    terminal: TerminalKey,
    sender: mpsc::UnboundedSender<PtyReport>,
    /// Permit of the output report that is in flight. Each program has one, so that no program
    /// reports more often than another, and programs whose clients do not read wait.
    room: Arc<Semaphore>,
}

impl PtyReports {
    fn new(terminal: TerminalKey, sender: mpsc::UnboundedSender<PtyReport>) -> Self {
        Self { terminal, sender, room: Arc::new(Semaphore::new(1)) }
    }

    /// Waits until the previous output report was handled. `None` if the receiver is closed.
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

/// Thread that runs the tasks of all programs. Dropping it ends the thread and the programs.
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

/// All programs in pseudo terminals.
#[derive(Debug)]
pub struct Ptys {
    thread: Option<PtyThread>,
    guards: Option<GuardProgram>,
    /// Scripts that make shells report their commands; without them, shells do not.
    scripts: Option<ShellScripts>,
    /// Set to report all output of a program when it has ended, so that reports are deterministic.
    tells_at_end: bool,
    commands: HashMap<TerminalKey, mpsc::UnboundedSender<PtyCommand>>,
    /// Programs that may not have started yet; with `tells_at_end`, also running commands. The
    /// value is true for a command, which ends by itself.
    starting: HashMap<TerminalKey, bool>,
    reports: mpsc::UnboundedSender<PtyReport>,
    stop: CancellationToken,
    running: watch::Sender<usize>,
}

impl Ptys {
    /// Returns an empty set of programs, and the receiver of their reports.
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

    /// Returns the runtime of the thread, which the first call starts.
    fn thread(&mut self) -> io::Result<Handle> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => PtyThread::begin()?,
        };
        Ok(self.thread.insert(thread).handle.clone())
    }

    /// Executes a command for one terminal.
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
                // Closing the command queue ends the program.
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

    /// Applies a report, and returns its event unless the program was ended before.
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

    /// Ends all programs for good, and returns when no process of theirs is left.
    pub async fn stop(&self) {
        self.stop.cancel();
        // Cannot fail: `self` holds the sender.
        self.running.subscribe().wait_for(|count| *count == 0).await.map(drop).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::effects::{PtyLaunch, ScreenSize};

    #[test]
    fn terminals_do_not_wait_for_the_loop_nor_the_loop_for_them() {
        // The guard ends at once, and no event loop runs.
        let guard = GuardProgram::new("true".into(), Vec::new());
        let (mut ptys, mut heard) = Ptys::new(Some(guard), None, false);
        let size = ScreenSize { cols: 80, rows: 24 };
        let launch = PtyLaunch { command: None, directory: None, size };
        ptys.carry_out(TerminalKey(1), PtyCommand::Start(launch));
        let report = heard.blocking_recv().unwrap();
        assert!(matches!(&report.event, PtyEvent::NotStarted(why) if why.ends_with("its guard has ended")));
    }
}
