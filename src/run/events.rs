//! Events that a run waits for.
//!
//! Owns: their sources: the host, signals, the time limit, the terminal, and the clock of the
//! status line.
//! Never: reacts to an event.

use std::io::{self, BufRead, Read};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{interval, sleep_until, Interval};

use super::arguments::RunJob;
use super::connection::{HostConnection, HostMessage};
use super::printer::REDRAWN_EVERY;
use super::RunStop;
use crate::os::hangup::LeaveReason;
use crate::os::{signals, stdio};

/// An event.
#[derive(Debug)]
pub enum RunEvent {
    /// Message of the host.
    Host(HostMessage),
    /// Signal that asks to leave.
    Signal(&'static str),
    /// Expired time limit.
    Expired,
    /// Line that was typed; `None` at the end of the input.
    Typed(Option<String>),
    /// Time to redraw the status line.
    Tick,
}

/// Signals that ask a run to leave.
#[derive(Debug)]
pub struct RunSignals(mpsc::UnboundedReceiver<LeaveReason>);

impl RunSignals {
    /// Listens to signals from now on, on an event loop that the run goes on with. A signal that
    /// comes before the run is ready is not lost.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub fn catch() -> anyhow::Result<(Runtime, Self)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start an event loop")?;
        let (sender, signals) = mpsc::unbounded_channel();
        let entered = runtime.enter();
        signals::catch_signals(&sender)?;
        drop(entered);
        Ok((runtime, Self(signals)))
    }

    /// Waits for the next signal, and returns its name.
    async fn next(&mut self) -> &'static str {
        loop {
            match self.0.recv().await {
                Some(LeaveReason::Asked(name)) => return name,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Reads all of stdin, unless a signal comes before its end.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn read_stdin(&mut self) -> anyhow::Result<Result<String, RunStop>> {
        let (sender, read) = oneshot::channel();
        // A blocked read cannot be cancelled; the thread ends with the process.
        std::thread::spawn(move || {
            let mut text = String::new();
            let read = io::stdin().read_to_string(&mut text).map(|_| text);
            // Nothing waits for it after a signal.
            drop(sender.send(read));
        });
        tokio::select! {
            biased;
            name = self.next() => Ok(Err(RunStop::Signal(name))),
            read = read => Ok(Ok(read??)),
        }
    }
}

/// Sources of events.
#[derive(Debug)]
pub struct RunEvents {
    host: HostConnection,
    signals: RunSignals,
    deadline: Option<Instant>,
    /// Lines from the terminal; `None` until a line is wanted.
    typed: Option<mpsc::UnboundedReceiver<String>>,
    is_typing_over: bool,
    ticks: Interval,
}

impl RunEvents {
    /// Starts the process that joins the host.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub fn open(job: &RunJob, signals: RunSignals, start: Instant) -> anyhow::Result<Self> {
        Ok(Self {
            host: HostConnection::open(job.host.iter().cloned())?,
            signals,
            deadline: job.timeout.map(|limit| start + limit),
            typed: None,
            is_typing_over: false,
            ticks: interval(REDRAWN_EVERY),
        })
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// When the host is gone.
    pub async fn next(&mut self) -> Result<RunEvent, RunStop> {
        let deadline = self.deadline.map(tokio::time::Instant::from_std);
        let expires = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let types = async {
            match &mut self.typed {
                Some(typed) if !self.is_typing_over => typed.recv().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            name = self.signals.next() => Ok(RunEvent::Signal(name)),
            () = expires => {
                self.deadline = None;
                Ok(RunEvent::Expired)
            }
            message = self.host.receive() => message.map(RunEvent::Host),
            line = types => {
                self.is_typing_over = line.is_none();
                Ok(RunEvent::Typed(line))
            }
            _ = self.ticks.tick() => Ok(RunEvent::Tick),
        }
    }

    /// Sets the time limit anew, counted from now.
    pub fn expire_in(&mut self, limit: Duration) {
        self.deadline = Some(Instant::now() + limit);
    }

    /// Reads lines from the terminal from now on, without those that were typed before: they answer
    /// nothing that is asked now. On Windows, lines that were typed before the first call are still
    /// read. Returns false if the input of the terminal has ended.
    pub fn listen_to_terminal(&mut self) -> bool {
        stdio::discard_typed();
        if let Some(typed) = &mut self.typed {
            while typed.try_recv().is_ok() {}
        } else {
            let (sender, typed) = mpsc::unbounded_channel();
            self.typed = Some(typed);
            // A blocked read cannot be cancelled; the thread ends with the process.
            std::thread::spawn(move || {
                for line in io::stdin().lock().lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        !self.is_typing_over
    }

    /// Sends a request, and returns its id.
    pub async fn request(&mut self, method: &str, params: Value) -> Result<u64, RunStop> {
        self.host.request(method, params).await
    }

    /// Asks for a change of a channel's state, and returns the number of the action.
    pub async fn dispatch(&mut self, channel: &str, action: Value) -> Result<i64, RunStop> {
        self.host.dispatch(channel, action).await
    }

    /// Ends the connection to the host, and waits for its end unless another signal comes.
    pub async fn close(mut self) {
        tokio::select! {
            () = self.host.close() => {}
            _ = self.signals.next() => {}
        }
    }
}
