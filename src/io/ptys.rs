//! Programs in pseudo terminals, into which clients type.
//!
//! Each program starts under its own guard (`opening`) and has a task (`program`). `shell` chooses
//! the program, and `integration` makes it report its commands. Its output is parsed (`scanner`)
//! and interpreted (`listener`). `questions` answers its terminal queries, with the state of
//! `screen`. `typing` queues input, and `foreground` finds the process that would read it.
//!
//! The tasks run on a thread of their own: even a nonblocking read from a pseudo terminal waits
//! until the kernel has moved printed text to the reading side, for as long as the printing program
//! keeps the processor. On the loop's thread, this would block all clients.
//!
//! Owns: which programs run, the commands to each, and their reports.
//! Never: drops output of a running program, which blocks while clients do not read.

mod foreground;
mod integration;
mod listener;
mod opening;
mod program;
mod questions;
mod redactor;
pub mod scanner;
mod screen;
mod typing;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, watch, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::host::effects::{PtyCommand, PtyEvent, TerminalKey};
use crate::os::process::GuardProgram;
use crate::sync::CountedEntry;
pub use integration::ShellScripts;

/// Report of a program.
#[derive(Debug)]
pub struct PtyReport {
    terminal: TerminalKey,
    event: PtyEvent,
    /// Permit for the next report on output, released when this one is handled.
    _taken: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct PtyReports {
    terminal: TerminalKey,
    sender: mpsc::UnboundedSender<PtyReport>,
    /// Permit for the report in flight: programs get equal turns, and block while clients do not
    /// read.
    room: Arc<Semaphore>,
}

impl PtyReports {
    fn new(terminal: TerminalKey, sender: mpsc::UnboundedSender<PtyReport>) -> Self {
        Self { terminal, sender, room: Arc::new(Semaphore::new(1)) }
    }

    /// Waits until the last report on output is handled. Returns `None` if the host has left.
    async fn room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).acquire_owned().await.ok()
    }

    fn send(&self, event: PtyEvent, taken: Option<OwnedSemaphorePermit>) {
        let report = PtyReport { terminal: self.terminal, event, _taken: taken };
        if self.sender.send(report).is_err() {
            tracing::debug!("a report of a terminal was dropped: the host is leaving");
        }
    }
}

/// Thread that runs the tasks of all programs. Dropping this ends the thread and the programs.
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
    /// `None` before the first program starts.
    thread: Option<PtyThread>,
    guards: Option<GuardProgram>,
    /// Scripts that make shells report their commands; `None` to do without reports.
    scripts: Option<ShellScripts>,
    /// Set if a program's output is reported in one piece at its end, so that reports are
    /// deterministic.
    reports_at_end: bool,
    commands: HashMap<TerminalKey, mpsc::UnboundedSender<PtyCommand>>,
    /// Programs whose start is not reported yet and, with `reports_at_end`, commands that still
    /// run. The value is true for a command, which ends by itself.
    starting: HashMap<TerminalKey, bool>,
    reports: mpsc::UnboundedSender<PtyReport>,
    stop: CancellationToken,
    running: watch::Sender<usize>,
}

impl Ptys {
    /// Creates an empty set, and the receiver of reports to pass to [`Ptys::accept`].
    pub fn new(
        guards: Option<GuardProgram>,
        scripts: Option<ShellScripts>,
        reports_at_end: bool,
    ) -> (Self, mpsc::UnboundedReceiver<PtyReport>) {
        let (reports, receiver) = mpsc::unbounded_channel();
        let (running, _) = watch::channel(0);
        let (commands, starting, stop) = (HashMap::new(), HashMap::new(), CancellationToken::new());
        let thread = None;
        (
            Self { thread, guards, scripts, reports_at_end, commands, starting, reports, stop, running },
            receiver,
        )
    }

    fn thread(&mut self) -> io::Result<Handle> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => PtyThread::begin()?,
        };
        Ok(self.thread.insert(thread).handle.clone())
    }

    /// Carries out a command of the core.
    pub fn carry_out(&mut self, terminal: TerminalKey, command: PtyCommand) {
        match command {
            PtyCommand::Start(launch) => {
                let (sender, commands) = mpsc::unbounded_channel();
                let reports = PtyReports::new(terminal, self.reports.clone());
                let attended = program::ProgramControl {
                    commands,
                    stop: self.stop.child_token(),
                    counted: CountedEntry::new(&self.running),
                    reports_at_end: self.reports_at_end,
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
                    Err(error) => reports.send(program::not_attended_to(&error), None),
                }
            }
            PtyCommand::End => {
                // Closing its command queue ends the program.
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

    /// Handles a report. Returns it unless the program was ended before.
    pub fn accept(&mut self, report: PtyReport) -> Option<(TerminalKey, PtyEvent)> {
        let PtyReport { terminal, event, _taken } = report;
        self.commands.get(&terminal)?;
        match &event {
            PtyEvent::Started { .. } => {
                let ends_by_itself = self.starting.get(&terminal) == Some(&true);
                if !self.reports_at_end || !ends_by_itself {
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

    /// Returns whether no start of a program is pending.
    pub fn are_settled(&self) -> bool {
        self.starting.is_empty()
    }

    /// Ends all programs for good. Completes when they have ended.
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
    use crate::os::process::GuardProgram;

    #[test]
    fn terminals_do_not_wait_for_the_loop_nor_the_loop_for_them() {
        // The guard ends at once, and no event loop runs.
        let guard = GuardProgram::new("true".into(), Vec::new());
        let (mut ptys, mut receiver) = Ptys::new(Some(guard), None, false);
        let size = ScreenSize { cols: 80, rows: 24 };
        let launch = PtyLaunch { command: None, directory: None, size };
        ptys.carry_out(TerminalKey(1), PtyCommand::Start(launch));
        let report = receiver.blocking_recv().unwrap();
        assert!(matches!(&report.event, PtyEvent::NotStarted(why) if why.ends_with("its guard has ended")));
    }
}
