//! Steps that a script schedules for after its turn: `/later`.
//!
//! Owns: the scheduled steps, their deadlines, and the request to the host for a turn.
//! Never: runs a step during another turn.

use std::time::Duration;

use tokio::time::{sleep_until, Instant};

use super::{number, ScriptAgent, Stop, Turn};
use crate::host::effects::{Command, Event, RunId, TurnCause};

#[derive(Debug, Default)]
pub(super) struct LaterSteps {
    /// Steps of the running turn; their delay starts when the turn ends.
    of_turn: Vec<(Duration, String)>,
    /// Scheduled steps, earliest first.
    due: Vec<(Instant, String)>,
    /// Set once the host was asked for a turn for the first step.
    asked: bool,
}

impl LaterSteps {
    /// Starts the delays of the steps that the ended turn has scheduled.
    pub(super) fn turn_has_ended(&mut self) {
        let now = Instant::now();
        self.due.extend(self.of_turn.drain(..).map(|(after, step)| (now + after, step)));
        self.due.sort_by_key(|(at, _)| *at);
    }

    /// Notes that a turn has started that was not asked for; the host is asked again after it.
    pub(super) fn another_has_begun(&mut self) {
        self.asked = false;
    }

    /// Waits until the host must be asked for a turn. Cancel safe.
    async fn due(&self) {
        match self.due.first().filter(|_| !self.asked) {
            Some((at, _)) => sleep_until(*at).await,
            None => std::future::pending().await,
        }
    }
}

impl ScriptAgent {
    /// Schedules a step for after the turn.
    pub(super) fn do_later(&mut self, rest: &str) -> Result<(), Stop> {
        let (ms, step) = rest.split_once(' ').unwrap_or((rest, ""));
        let after = Duration::from_millis(number("/later", ms)?);
        self.own_turns.of_turn.push((after, step.replace("\\n", "\n")));
        Ok(())
    }

    /// Waits for the next command; asks the host for a turn whenever a step is due.
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

    /// Runs the earliest due step in a turn of its own. Returns whether the conversation continues.
    pub(super) async fn run_own(&mut self, run: RunId) -> anyhow::Result<bool> {
        self.turn = Turn::new(run);
        self.own_turns.asked = false;
        let steps =
            if self.own_turns.due.is_empty() { String::new() } else { self.own_turns.due.remove(0).1 };
        self.run_to_end(&steps).await
    }
}
