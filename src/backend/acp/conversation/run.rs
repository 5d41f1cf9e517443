//! The run of a conversation: one attempt of the agent at a turn, for a prompt or by itself.
//!
//! Owns: the state of the run, and its phases: the agent works on it, has answered, or must cancel
//! it. A cancelled run stays cancelled, and the outcome of an answered one changes only by that.
//! Never: sends or reports anything.

use std::time::Duration;

use ahp_types::state::UsageInfo;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attachments::SentAttachments;
use super::notices::Compactions;
use super::own_turns::OwnRun;
use super::questions::Questions;
use super::steering::Steering;
use super::user_messages::UserMessages;
use crate::backend::acp::agent::AgentLease;
use crate::backend::acp::peer::{AgentConnection, PausableTimeout};
use crate::host::effects::{RunId, TextKind, TurnEnd};

pub(super) struct PromptRun {
    pub(super) id: RunId,
    pub(super) origin: RunOrigin,
    /// Lease that keeps the agent running; `None` if it was being stopped when the run began.
    _use: Option<AgentLease>,
    phase: AnswerPhase,
    /// Notifies requests of the run about its cancellation.
    pub(super) cancelling: CancellationToken,
    pub(super) usage: UsageInfo,
    pub(super) has_refused: bool,
    pub(super) questions: Questions,
    pub(super) steering: Steering,
    pub(super) user_messages: UserMessages,
    /// Kind and message id of the last text, which the next text may continue.
    pub(super) speaking: Option<(TextKind, Option<String>)>,
    pub(super) compactions: Compactions,
    /// Set once part of the answer was reported, or an action.
    pub(super) has_reported: bool,
}

/// Beginning of a run.
pub(super) enum RunOrigin {
    /// Prompt of the host, by its request id; `attachments` is `None` if all of them are text.
    Prompt { request: u64, attachments: Option<SentAttachments> },
    /// Work that the agent began by itself.
    Own(OwnRun),
}

enum AnswerPhase {
    /// The agent works, until the end of the time limit if there is one.
    Working { deadline: Option<Instant> },
    /// The agent has answered; the run ends once everything sent before the answer is handled.
    Answered(TurnEnd),
    Cancelled {
        /// Deadline for the answer; `None` if the agent has answered.
        deadline: Option<Instant>,
        timeout: PausableTimeout,
        /// Time limit that the turn has exceeded; `None` if the user has cancelled it.
        exceeded: Option<Duration>,
    },
}

impl PromptRun {
    pub(super) fn new(
        id: RunId,
        origin: RunOrigin,
        used: Option<AgentLease>,
        turn_limit: Option<Duration>,
    ) -> Self {
        Self {
            id,
            origin,
            _use: used,
            phase: AnswerPhase::Working { deadline: turn_limit.map(|limit| Instant::now() + limit) },
            cancelling: CancellationToken::new(),
            usage: UsageInfo::default(),
            has_refused: false,
            questions: Questions::default(),
            steering: Steering::default(),
            user_messages: UserMessages::default(),
            speaking: None,
            compactions: Compactions::default(),
            has_reported: false,
        }
    }

    /// Returns whether this is the run of the prompt with this request id.
    pub(super) fn is_prompt(&self, id: u64) -> bool {
        matches!(self.origin, RunOrigin::Prompt { request, .. } if request == id)
    }

    /// Returns whether the agent began the run by itself.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.origin, RunOrigin::Own(_))
    }

    pub(super) fn goes_on(&self) -> bool {
        matches!(self.phase, AnswerPhase::Working { .. })
    }

    pub(super) fn is_cancelled(&self) -> bool {
        matches!(self.phase, AnswerPhase::Cancelled { .. })
    }

    /// Returns whether the agent has answered the prompt, also of a cancelled run.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.phase, AnswerPhase::Answered(_) | AnswerPhase::Cancelled { deadline: None, .. })
    }

    /// Returns whether the agent has neither reported anything in the run nor must cancel it.
    pub(super) fn is_untouched(&self) -> bool {
        !self.has_reported && !self.is_cancelled()
    }

    /// Returns the time at which the agent must have answered; `None` if it has, or without a
    /// limit.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            AnswerPhase::Working { deadline } | AnswerPhase::Cancelled { deadline, .. } => deadline,
            AnswerPhase::Answered(_) => None,
        }
    }

    /// Cancels the run. `limit` is the time in which the agent must answer, if it has not.
    pub(super) fn cancel(&mut self, limit: Duration, exceeded: Option<Duration>) {
        let deadline = self.goes_on().then(|| Instant::now() + limit);
        self.phase = AnswerPhase::Cancelled { deadline, timeout: PausableTimeout::default(), exceeded };
        self.cancelling.cancel();
    }

    /// Sets the next deadline of a cancelled run. Returns whether the agent had no chance to meet
    /// the last one, because the host did not read its output.
    pub(super) fn extend_cancelled(&mut self, connection: &AgentConnection, limit: Duration) -> bool {
        let AnswerPhase::Cancelled { deadline, timeout, .. } = &mut self.phase else { return true };
        let more = timeout.extend(connection, limit, true);
        *deadline = Some(Instant::now() + more.unwrap_or(limit));
        more.is_some()
    }

    /// Notes the agent's answer, which does not change the outcome of a cancelled run.
    pub(super) fn note_answer(&mut self, end: TurnEnd) {
        match &mut self.phase {
            AnswerPhase::Cancelled { deadline, .. } => *deadline = None,
            phase => *phase = AnswerPhase::Answered(end),
        }
    }

    /// Returns the outcome of the run; `None` while the agent works on it.
    pub(super) fn outcome(&self) -> Option<TurnEnd> {
        match &self.phase {
            AnswerPhase::Working { .. } => None,
            AnswerPhase::Answered(end) => Some(end.clone()),
            AnswerPhase::Cancelled { exceeded: None, .. } => Some(TurnEnd::Cancelled),
            AnswerPhase::Cancelled { exceeded: Some(limit), .. } => Some(TurnEnd::Failed {
                kind: "turnTimedOut".to_owned(),
                message: format!("the turn exceeded its time limit of {limit:?}"),
                resumable: false,
            }),
        }
    }
}
