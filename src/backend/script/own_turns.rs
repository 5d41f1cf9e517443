//! Steps that a script takes after its turn has ended: `/later`.
//!
//! Owns: the steps that are yet to be taken, when each is due, and asking the host for a turn for
//! them.
//! Never: takes one while another turn runs.

use std::time::Duration;

use tokio::time::{sleep_until, Instant};

use super::{number, ScriptAgent, Stop, Turn};
use crate::host::effects::{Command, Event, RunId, TurnCause};

/// The steps that are to be taken by and by.
#[derive(Debug, Default)]
pub(super) struct LaterSteps {
    /// Steps of the turn that runs: their time begins when it ends.
    of_turn: Vec<(Duration, String)>,
    /// Steps that wait for their time, the first one first.
    due: Vec<(Instant, String)>,
    /// The host was asked for a turn for the first one.
    asked: bool,
}

impl LaterSteps {
    /// A turn is over: the time of what is to be done then begins.
    pub(super) fn turn_has_ended(&mut self) {
        let now = Instant::now();
        self.due.extend(self.of_turn.drain(..).map(|(after, step)| (now + after, step)));
        self.due.sort_by_key(|(at, _)| *at);
    }

    /// A turn has begun that the host was not asked for: it is asked again when that is over.
    pub(super) fn another_has_begun(&mut self) {
        self.asked = false;
    }

    /// Waits until the host is to be asked for a turn. May be dropped half-way.
    async fn due(&self) {
        match self.due.first().filter(|_| !self.asked) {
            Some((at, _)) => sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }
}

impl ScriptAgent {
    /// Leaves a step to be taken when the turn is over.
    pub(super) fn do_later(&mut self, rest: &str) -> Result<(), Stop> {
        let (ms, step) = rest.split_once(' ').unwrap_or((rest, ""));
        let after = Duration::from_millis(number("/later", ms)?);
        self.own_turns.of_turn.push((after, step.replace("\\n", "\n")));
        Ok(())
    }

    /// Waits for the next command; asks for a turn meanwhile when something is to be done.
    pub(super) async fn next_command(&mut self) -> Option<Command> {
        loop {
            tokio::select! {
                biased;
                command = self.line.commands.recv() => return command,
                () = self.own_turns.due() => {
                    self.own_turns.asked = true;
                    self.line.reports.report(Event::Begins(TurnCause::Agent)).await;
                }
            }
        }
    }

    /// Takes the first step whose time has come, in a turn of its own. Returns whether the
    /// conversation goes on.
    pub(super) async fn run_own(&mut self, run: RunId) -> anyhow::Result<bool> {
        self.turn = Turn::new(run);
        self.own_turns.asked = false;
        let steps =
            if self.own_turns.due.is_empty() { String::new() } else { self.own_turns.due.remove(0).1 };
        self.run_to_end(&steps).await
    }
}
