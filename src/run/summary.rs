//! Result of a run, as its exit status and as the summary in JSON.
//!
//! Owns: the members of the summary, on which scripts rely, and the exit status of a result.
//! Never: does anything but describe.

use std::path::Path;

use ahp_types::state::UsageInfo;
use anyhow::Context;
use serde::Serialize;

use super::decisions::DecisionSummary;
use super::policy::PolicyRequest;
use crate::status::{
    EXIT_CANCELLED, EXIT_DENIED, EXIT_FAILURE, EXIT_TIMED_OUT, EXIT_TURN_FAILED, EXIT_UNUSABLE,
};

/// Version of the summary. Members may be added within a version.
const SCHEMA: u32 = 1;

/// Result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunResult {
    /// All turns are complete.
    Completed,
    /// All turns are complete, but something was denied or declined.
    Denied,
    /// A turn ended with an error of the agent.
    Error,
    /// A signal or another client has cancelled a turn.
    Cancelled,
    /// The time limit expired.
    TimedOut,
    /// The agent cannot be used.
    Unusable,
    /// The run itself failed.
    Failed,
}

/// The summary.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    schema: u32,
    /// Result of the run.
    pub result: RunResult,
    /// Exit status of the process.
    pub exit_status: u8,
    /// Reason of a result other than completed and denied.
    pub error: Option<RunFailure>,
    /// Name of the agent; `None` if no session was opened.
    pub agent: Option<String>,
    /// Model that was asked for.
    pub model: Option<String>,
    /// URI of the session; `None` if none was opened.
    pub session: Option<String>,
    /// Folder that the agent works in.
    pub directory: String,
    /// Final answer of the last turn.
    pub answer: String,
    /// Turns, in order.
    pub turns: Vec<TurnSummary>,
    /// Tokens of all turns; `None` if the agent reports none.
    pub usage: Option<UsageSummary>,
    /// Permissions that were decided, in order.
    pub permissions: Vec<PermissionSummary>,
    /// Questions of the agent, in order.
    pub questions: Vec<QuestionSummary>,
    /// Changed files; `None` if they were not asked for, or are unknown.
    pub changes: Option<Vec<ChangedFileSummary>>,
    /// Reason why changes are unknown or incomplete.
    pub changes_unknown: Option<String>,
    /// Duration of the run, in milliseconds.
    pub duration_ms: u64,
}

/// Reason of a failure.
#[derive(Debug, Clone, Serialize)]
pub struct RunFailure {
    /// Kind of the error, as the agent or the host names it.
    pub kind: String,
    /// Reason, for people.
    pub message: String,
}

/// A turn.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnSummary {
    /// Id of the turn.
    pub id: String,
    /// Result of the turn: `completed`, `error` or `cancelled`.
    pub result: RunResult,
    /// Final answer.
    pub answer: String,
    /// Tokens of the turn.
    pub usage: Option<UsageSummary>,
    /// Duration, in milliseconds.
    pub duration_ms: u64,
}

/// Numbers of tokens; `None` for a number that the agent does not report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageSummary {
    input_tokens: Option<i64>,
    output_tokens: Option<i64>,
    cache_read_tokens: Option<i64>,
}

impl UsageSummary {
    /// Returns the numbers that an agent has reported; `None` if there are none.
    pub fn of(usage: &UsageInfo) -> Option<Self> {
        let UsageInfo { input_tokens, output_tokens, cache_read_tokens, .. } = *usage;
        Some(Self { input_tokens, output_tokens, cache_read_tokens }).filter(|it| *it != Self::default())
    }

    fn plus(self, other: Self) -> Self {
        let sum = |one: Option<i64>, other: Option<i64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        Self {
            input_tokens: sum(self.input_tokens, other.input_tokens),
            output_tokens: sum(self.output_tokens, other.output_tokens),
            cache_read_tokens: sum(self.cache_read_tokens, other.cache_read_tokens),
        }
    }
}

/// Origin of a decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecidedBy {
    /// A rule.
    Rule,
    /// No rule applies, so the permission is denied.
    #[default]
    Default,
    /// The person at the terminal.
    User,
}

/// A decision about a permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionSummary {
    /// Id of the turn.
    pub turn: String,
    /// Name of the tool.
    pub tool: String,
    /// Kind of the tool.
    pub kind: Option<String>,
    /// Purpose of the call.
    pub title: String,
    /// Command line.
    pub command: Option<String>,
    /// Files that the call concerns.
    pub paths: Vec<String>,
    /// Set if the permission was granted.
    pub allowed: bool,
    /// Origin of the decision.
    pub by: DecidedBy,
    /// Text of the rule.
    pub rule: Option<String>,
    /// Reason of the decision, where the rule does not say it.
    pub reason: Option<String>,
}

impl PermissionSummary {
    /// Describes a decision about a request, without rule and reason.
    pub fn of(turn: &str, request: PolicyRequest, allowed: bool, by: DecidedBy) -> Self {
        Self {
            turn: turn.to_owned(),
            paths: request.real_paths().map(|path| path.display().to_string()).collect(),
            tool: request.tool,
            kind: request.kind,
            title: request.title,
            command: request.command,
            allowed,
            by,
            rule: None,
            reason: None,
        }
    }
}

/// A question of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QuestionSummary {
    /// Id of the turn.
    pub turn: String,
    /// Texts of the question.
    pub texts: Vec<String>,
    /// Set if the file of answers had the answers.
    pub answered: bool,
}

/// Kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileChangeKind {
    /// New file.
    Added,
    /// File with another content or mode.
    Modified,
    /// Removed file.
    Deleted,
}

/// A changed file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangedFileSummary {
    /// Path relative to the root of the repository, else to the folder; absolute if outside.
    pub path: String,
    /// Kind of the change.
    pub change: FileChangeKind,
    /// Number of added lines; `None` if unknown.
    pub added: Option<i64>,
    /// Number of removed lines; `None` if unknown.
    pub removed: Option<i64>,
    /// Reason why the patch does not have the file; `None` if it has, or none was asked for.
    pub not_in_patch: Option<String>,
}

impl RunSummary {
    /// Creates the summary of a run that has not begun.
    pub fn new(directory: &Path, model: Option<&str>) -> Self {
        Self {
            schema: SCHEMA,
            result: RunResult::Completed,
            exit_status: 0,
            error: None,
            agent: None,
            model: model.map(str::to_owned),
            session: None,
            directory: directory.display().to_string(),
            answer: String::new(),
            turns: Vec::new(),
            usage: None,
            permissions: Vec::new(),
            questions: Vec::new(),
            changes: None,
            changes_unknown: None,
            duration_ms: 0,
        }
    }

    /// Adds a turn that has ended.
    pub fn add_turn(&mut self, turn: TurnSummary) {
        self.answer.clone_from(&turn.answer);
        self.usage = match (self.usage, turn.usage) {
            (Some(sum), Some(usage)) => Some(sum.plus(usage)),
            (sum, usage) => sum.or(usage),
        };
        self.turns.push(turn);
    }

    /// Adds the entry of a decision.
    pub fn add_decision(&mut self, decision: DecisionSummary) {
        match decision {
            DecisionSummary::Permission(permission) => self.permissions.push(permission),
            DecisionSummary::Question(question) => self.questions.push(question),
        }
    }

    /// Removes the entry of a decision that has had no effect.
    pub fn remove_decision(&mut self, decision: &DecisionSummary) {
        fn remove<T: PartialEq>(entries: &mut Vec<T>, entry: &T) {
            if let Some(at) = entries.iter().rposition(|it| it == entry) {
                entries.remove(at);
            }
        }
        match decision {
            DecisionSummary::Permission(permission) => remove(&mut self.permissions, permission),
            DecisionSummary::Question(question) => remove(&mut self.questions, question),
        }
    }

    /// Returns whether a permission was denied or a question declined.
    pub fn has_denials(&self) -> bool {
        let denied = self.permissions.iter().any(|permission| !permission.allowed);
        denied || self.questions.iter().any(|question| !question.answered)
    }

    /// Sets the result, and the exit status that it has unless `status` is another one.
    pub fn conclude(&mut self, result: RunResult, status: Option<u8>) {
        self.result = result;
        self.exit_status = status.unwrap_or(match result {
            RunResult::Completed => 0,
            RunResult::Denied => EXIT_DENIED,
            RunResult::Error => EXIT_TURN_FAILED,
            RunResult::Cancelled => EXIT_CANCELLED,
            RunResult::TimedOut => EXIT_TIMED_OUT,
            RunResult::Unusable => EXIT_UNUSABLE,
            RunResult::Failed => EXIT_FAILURE,
        });
    }

    /// Returns the summary as JSON.
    ///
    /// # Errors
    /// Never in practice: all members have a form in JSON.
    pub fn text(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self).context("the summary has no form in JSON")? + "\n")
    }
}
