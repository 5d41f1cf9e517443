//! `ahp-sidecar run`: turns of an agent from a shell or a CI job.
//!
//! A run is an ordinary client of the protocol: it starts this program again, which joins the host
//! of the state folder, and talks to it over pipes. So other clients of the folder see the run.
//!
//! Owns: [`arguments`] (flags), [`connection`] (the pipes to the host), [`events`] (all that a run
//! waits for), [`client`] (opening the session, following turns), [`decisions`] (on permissions and
//! questions), [`policy`] (rules for permissions) with [`commands`], `lines` (their grammar),
//! [`patterns`] (of paths), [`inputs`] and [`patched`] (what calls and patches name), [`answers`]
//! (to questions), [`printer`] (stdout), [`output`] (written files), [`changes`] and [`patch`]
//! (changed files), and [`summary`] (the result).
//! Never: starts an agent, stores anything, or knows the core: it knows what the protocol says.

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Instant;

use anyhow::Context;
use tokio::runtime::Runtime;

use self::arguments::{RunArguments, RunJob};
use self::client::RunClient;
use self::events::{RunEvents, RunSignals};
use self::printer::Printer;
use self::summary::{RunFailure, RunResult, RunSummary};
use crate::status::{EXIT_DENIED, EXIT_FAILURE, EXIT_OUTPUT, EXIT_USAGE};

pub mod answers;
pub mod arguments;
pub mod changes;
pub mod client;
pub mod commands;
pub mod connection;
pub mod decisions;
pub mod events;
pub mod inputs;
mod lines;
pub mod output;
pub mod patch;
pub mod patched;
pub mod patterns;
pub mod policy;
pub mod printer;
pub mod summary;
mod windows_shells;
mod xargs;

/// Text of [`RunStop::Disposed`].
const DISPOSED: &str = "the session or its chat was disposed of by another client";

/// Reason to end a run before its turns are complete.
#[derive(Debug)]
pub enum RunStop {
    /// Signal, by its name.
    Signal(&'static str),
    /// Expired time limit.
    TimedOut,
    /// Closed reader of stdout.
    ReaderGone,
    /// Reason why the output of the run could not be written.
    Output(anyhow::Error),
    /// Disposal of the session or its chat by another client.
    Disposed,
    /// Cancellation by another client.
    CancelledElsewhere,
    /// Cancellation for which no client has asked directly.
    CancelledByAgent,
    /// Error with which a turn has ended: its kind and reason.
    TurnFailed(String, String),
    /// Reason why the agent cannot be used, with the kind of the error.
    Unusable(String, String),
    /// Wrong usage that only the host could notice.
    Usage(String),
    /// End of the process that joins the host, with its exit status.
    Gone(u8),
    /// Failure of the run itself.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for RunStop {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl RunStop {
    /// Returns the result of the run, its exit status where the result alone does not say it, and
    /// the reason.
    fn concluded(self) -> (RunResult, Option<u8>, RunFailure) {
        let failure = |kind: &str, message: String| RunFailure { kind: kind.to_owned(), message };
        match self {
            Self::Signal(name) => {
                (RunResult::Cancelled, None, failure("signal", format!("cancelled by {name}")))
            }
            Self::TimedOut => {
                (RunResult::TimedOut, None, failure("timeout", "the time limit has expired".to_owned()))
            }
            Self::ReaderGone => {
                let why = "the reader of stdout is gone, so the turn was cancelled";
                (RunResult::Cancelled, None, failure("readerGone", why.to_owned()))
            }
            Self::Disposed => (RunResult::Cancelled, None, failure("disposed", DISPOSED.to_owned())),
            Self::CancelledElsewhere => {
                let why = "the turn was cancelled by another client";
                (RunResult::Cancelled, None, failure("cancelled", why.to_owned()))
            }
            Self::CancelledByAgent => {
                let why = "the turn was cancelled by the agent, or with its chat by another client";
                (RunResult::Cancelled, None, failure("cancelled", why.to_owned()))
            }
            Self::TurnFailed(kind, message) => (RunResult::Error, None, failure(&kind, message)),
            Self::Unusable(kind, message) => (RunResult::Unusable, None, failure(&kind, message)),
            Self::Usage(message) => (RunResult::Failed, Some(EXIT_USAGE), failure("usage", message)),
            Self::Gone(status) => {
                let why = format!("the host cannot be used any more (exit status {status})");
                (RunResult::Failed, Some(status), failure("hostGone", why))
            }
            Self::Output(error) => {
                (RunResult::Failed, Some(EXIT_OUTPUT), failure("output", format!("{error:#}")))
            }
            Self::Failed(error) => (RunResult::Failed, None, failure("internal", format!("{error:#}"))),
        }
    }
}

/// Returns whether a command line asks for a run, before it is parsed.
pub fn is_asked_for(mut arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.nth(1).is_some_and(|command| command == "run")
}

/// Signals that were caught from the start of the program on.
#[derive(Debug)]
pub struct CaughtSignals(anyhow::Result<(Runtime, RunSignals)>);

/// Catches the signals that ask a run to leave. A failure is that of the run.
pub fn catch_signals() -> CaughtSignals {
    CaughtSignals(RunSignals::catch())
}

/// Runs the turns that the arguments describe, and returns the exit status. Signals may have been
/// caught already.
pub fn run(arguments: &RunArguments, caught: Option<CaughtSignals>) -> u8 {
    let (runtime, mut signals) = match caught.unwrap_or_else(catch_signals).0 {
        Ok(caught) => caught,
        Err(error) => return complain(&format!("{error:#}"), EXIT_FAILURE),
    };
    let mut job = match RunJob::new(arguments) {
        Ok(job) => job,
        Err(error) => return complain(&format!("{error:#}"), EXIT_USAGE),
    };
    let mut stopped = None;
    if job.reads_prompt {
        let read = runtime.block_on(signals.read_stdin()).context("the prompt on stdin cannot be read");
        let begun = read.and_then(|read| match read {
            Ok(prompt) => job.begin_with(prompt),
            Err(stop) => {
                stopped = Some(stop);
                Ok(())
            }
        });
        if let Err(error) = begun {
            return complain(&format!("{error:#}"), EXIT_USAGE);
        }
    }
    let status = runtime.block_on(perform(&job, signals, stopped));
    // A thread may be blocked in a read of the terminal.
    runtime.shutdown_background();
    status
}

/// Performs a job, unless it was stopped before.
async fn perform(job: &RunJob, signals: RunSignals, stopped: Option<RunStop>) -> u8 {
    let start = Instant::now();
    let mut summary = RunSummary::new(&job.directory, job.model.as_deref());
    let mut printer = Printer::new(job.form);
    let events = match stopped {
        None => RunEvents::open(job, signals, start).map_err(RunStop::Failed),
        Some(stop) => Err(stop),
    };
    let ended = match events {
        Ok(events) => {
            let mut client = RunClient::new(job, events, &mut printer, &mut summary);
            let ended = client.run_all().await;
            client.close(&ended).await;
            ended
        }
        Err(stop) => Err(stop),
    };
    printer.finish(&summary.answer);
    conclude(ended, &mut printer, &mut summary);
    summary.duration_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    if let Some(file) = &job.summary {
        let had_loss = printer.loss().is_some();
        let written = summary.text().and_then(|text| file.write(text.as_bytes(), &mut printer));
        // An earlier loss is the result of the run already.
        let loss = printer.loss().filter(|_| !had_loss).map(|loss| loss.reason());
        if let Some(error) = written.context("--summary").err().or(loss) {
            return complain(&format!("{error:#}"), status_without_output(summary.exit_status));
        }
    }
    summary.exit_status
}

/// Returns the exit status of a run whose summary is lost: a failure precedes the loss.
fn status_without_output(status: u8) -> u8 {
    match status {
        0 | EXIT_DENIED => EXIT_OUTPUT,
        failure => failure,
    }
}

/// Sets the result of a run, and prints the reason if it is a failure.
fn conclude(ended: Result<(), RunStop>, printer: &mut Printer, summary: &mut RunSummary) {
    let lost = printer.loss().filter(|_| ended.is_ok());
    let ended = lost.map_or(ended, |loss| Err(RunStop::Output(loss.reason())));
    // The process that joins the host has printed the reason.
    let is_printed = matches!(ended, Err(RunStop::Gone(_)));
    match ended {
        Ok(()) if summary.has_denials() => summary.conclude(RunResult::Denied, None),
        Ok(()) => summary.conclude(RunResult::Completed, None),
        Err(stop) => {
            let (result, status, failure) = stop.concluded();
            summary.conclude(result, status);
            summary.error = Some(failure);
        }
    }
    if let Some(failure) = summary.error.as_ref().filter(|_| !is_printed) {
        complain(&failure.message, summary.exit_status);
    }
}

/// Prints an error on stderr, and returns the exit status. A failure is ignored: stderr may be
/// closed, and the exit status still reports the failure.
fn complain(error: &str, status: u8) -> u8 {
    writeln!(io::stderr(), "error: {}", crate::wire::text::message(error)).unwrap_or_default();
    status
}
