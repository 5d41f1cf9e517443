//! Commits of all uncommitted changes, on request of a client.
//!
//! The protocol has no member for a commit message, so clients can set one in the request's
//! `_meta`; otherwise the message is the name of the session, as the operation's confirmation says.
//!
//! Owns: the operation, its message, and its answer.
//! Never: commits a change that the changeset does not show, or while a turn runs.

use ahp_types::commands::InvokeChangesetOperationParams;
use ahp_types::state::{ChangesetOperation, ChangesetOperationScope};
use serde_json::Value;

use crate::host::changes::checkpoints::{why_failed, JobPurpose};
use crate::host::changes::operations::operation;
use crate::host::changes::Changes;
use crate::host::effects::{GitContent, GitReport, GitWork};
use crate::host::ledger::Ledger;
use crate::host::model::{SessionKey, TitleBy};
use crate::host::Step;
use crate::state::edits::FileDiff;
use crate::wire::errors::RpcError;

/// Id of the operation.
pub(in crate::host) const COMMIT: &str = "commit";

const MESSAGE: &str = "message";

const MESSAGE_BYTES_MAX: usize = 64 << 10;

const COMMIT_WITHIN_MS: u64 = 60_000;

#[derive(Debug)]
pub(in crate::host) struct RequestedCommit {
    /// Session whose repository the commit is made in.
    pub(in crate::host) session: SessionKey,
    root: String,
    message: String,
    shown: Vec<FileDiff<GitContent>>,
}

/// Returns the operation as it is offered.
pub(in crate::host) fn commit_operation() -> ChangesetOperation {
    let commit = operation(COMMIT, "Commit", "git-commit", vec![ChangesetOperationScope::Changeset]);
    let confirmation =
        "All shown files are committed, with the title of the session as the message. No hooks run, and the commit is not signed.";
    ChangesetOperation { confirmation: Some(confirmation.into()), group: Some(COMMIT.to_owned()), ..commit }
}

impl Changes {
    /// Validates a request for a commit, which needs a message.
    pub(in crate::host) fn requested_commit(
        &self,
        ledger: &Ledger,
        session: SessionKey,
        params: &InvokeChangesetOperationParams,
    ) -> Result<RequestedCommit, RpcError> {
        let gone = || RpcError::resource_not_found(&params.channel);
        let of_session = ledger.channels.sessions.known(session).ok_or_else(gone)?;
        let message = match params.meta.as_ref().and_then(|meta| meta.get(MESSAGE)) {
            None if of_session.title_by == TitleBy::Nobody => "",
            None => of_session.state.title.as_str(),
            Some(Value::String(message)) => message,
            Some(_) => return Err(RpcError::invalid_params("`_meta.message` must be a string")),
        };
        if message.trim().is_empty() || message.len() > MESSAGE_BYTES_MAX || message.contains('\0') {
            return Err(RpcError::invalid_params(format_args!(
                "`_meta.message`: a commit needs a message, of at most {MESSAGE_BYTES_MAX} bytes and without NUL"
            )));
        }
        let root = of_session.checkpoints.root().cloned().ok_or_else(gone)?;
        let seen = self.statuses.known_status(session).ok_or_else(gone)?;
        let shown = seen.uncommitted.clone();
        Ok(RequestedCommit { session, root, message: message.to_owned(), shown })
    }

    /// Requests a commit from git.
    pub(in crate::host) fn run_git_commit(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        wanted: RequestedCommit,
    ) {
        let RequestedCommit { session, root, message, shown } = wanted;
        let Some(of_session) = ledger.channels.sessions.known_mut(session) else { return };
        let staged_retained = of_session.checkpoints.next_ref();
        ledger.mark_dirty(session.into());
        let work = GitWork::Commit { message, shown, staged_retained };
        self.checkpoints.run_git(
            ledger,
            step,
            (vec![root], COMMIT_WITHIN_MS),
            work,
            JobPurpose::Commit(session),
        );
    }

    /// Answers the clients that wait for a commit, by the report of git.
    pub(in crate::host) fn finish_commit(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
        report: GitReport,
    ) {
        if ledger.channels.sessions.contains_key(&session) {
            ledger.note_edited(session, true);
            self.statuses.request_refresh(ledger, session);
        }
        let outcome = match report {
            GitReport::Committed(done) => {
                let place =
                    done.branch.map_or_else(|| "no branch".to_owned(), |branch| format!("`{branch}`"));
                Ok(Some(format!("Committed {} on {place}", done.commit)))
            }
            GitReport::NotCommitted(why) => Err(RpcError::not_committed(&why)),
            report => Err(RpcError::unavailable(why_failed(report))),
        };
        self.finish_operation(ledger, step, session, outcome);
    }
}
