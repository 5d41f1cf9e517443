//! Operations of clients on changesets: reverting, restoring and committing files.
//!
//! Owns: which operations a changeset offers, and the queue of `invokeChangesetOperation` requests.
//! Never: touches a file: each request carries the expected and the wanted content, and the outcome
//! comes back. A file with another content than expected stays as it is.
//!
//! An operation waits until the previous one has finished, pending git jobs have reported, and an
//! unwatched repository was scanned, so that no operation works from a stale list. Changes that the
//! client has not seen are safe: a file that was changed since is not reverted, and a commit is
//! refused if the client is subscribed to the list of files and no other operation has changed it.
//! A request that equals the newest unfinished operation of the session shares its answer, so that
//! two windows or two clicks do not repeat it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use ahp_types::commands::{ChangesetOperationTarget, InvokeChangesetOperationParams};
use ahp_types::state::{
    ChangesetFile, ChangesetOperation, ChangesetOperationScope, ChangesetOperationStatus, ChangesetStatus,
    ErrorInfo, FileEdit,
};
use bytes::Bytes;
use serde_json::json;

use crate::host::changes::changesets::FILES_MAX;
use crate::host::changes::commits::{commit_operation, RequestedCommit, COMMIT};
use crate::host::changes::comparisons::{checkpoints_of_scope, Comparison};
use crate::host::changes::edits::scope_key;
use crate::host::changes::reverts::{
    files_to_discard, files_to_restore, last_reverted, record_pending_reverts, requested_revert,
};
use crate::host::changes::sides::SideContent;
use crate::host::changes::statuses::shows_status;
use crate::host::changes::Changes;
use crate::host::effects::{
    ChangesetKey, ConnectionId, Frame, Output, Resource, RevertRequest, CHANGED_SINCE,
};
use crate::host::ledger::Ledger;
use crate::host::model::SessionKey;
use crate::host::refusal::error_info;
use crate::host::Step;
use crate::state::edits::FileDiff;
use crate::wire::changesets::{parse_changeset_uri, ChangesetScope};
use crate::wire::errors::RpcError;
use crate::wire::methods::Method;
use crate::wire::rpc::{to_json, RequestId};

const DISCARD: &str = "discard-changes";

/// Operation that restores the last reverted files.
const RESTORE: &str = "restore-changes";

/// Maximum number of pending operations of a session.
const WAITING_MAX: usize = 100;

/// Maximum number of requests that share the answer of one operation.
const SHARED_MAX: usize = 100;

type Requester = (ConnectionId, RequestId);

/// Operations that clients have requested.
#[derive(Debug, Default)]
pub(in crate::host) struct Operations {
    /// Pending operations, in the order of their requests.
    pending: VecDeque<PendingOperation>,
    running: BTreeMap<SessionKey, RunningOperation>,
    /// Last failed operation on a changeset, with its error.
    failed: BTreeMap<(SessionKey, String), (String, ErrorInfo)>,
}

impl Operations {
    /// Drops the requests of a closed connection. Operations in progress continue.
    pub(in crate::host) fn remove_requester(&mut self, connection: ConnectionId) {
        let pending = self.pending.iter_mut().map(|pending| &mut pending.requesters);
        let running = self.running.values_mut().map(|running| &mut running.requesters);
        pending
            .chain(running)
            .for_each(|requesters| requesters.retain(|(requester, _)| *requester != connection));
    }
}

#[derive(Debug)]
struct RunningOperation {
    /// Requests to answer at the end.
    requesters: Vec<Requester>,
    scope: ChangesetScope,
    params: InvokeChangesetOperationParams,
}

/// Operation that waits until the files of its changeset are known.
#[derive(Debug)]
struct PendingOperation {
    /// Requests to answer; the first one started the operation.
    requesters: Vec<Requester>,
    params: InvokeChangesetOperationParams,
    /// Lowest number of a repository refresh that it waits for.
    refresh: Option<u64>,
    /// Files that the client saw in a changeset of the repository's status when it sent the
    /// request; `None` if it saw none.
    seen: Option<Vec<ChangesetFile>>,
}

impl PendingOperation {
    fn changeset(&self) -> Option<(&str, ChangesetScope)> {
        parse_changeset_uri(&self.params.channel)
    }
}

enum FirstStep {
    Revert(RevertRequest),
    Commit(RequestedCommit),
}

/// Returns an operation that is offered and idle.
pub(in crate::host) fn operation(
    id: &str,
    label: &str,
    icon: &str,
    scopes: Vec<ChangesetOperationScope>,
) -> ChangesetOperation {
    ChangesetOperation {
        id: id.to_owned(),
        label: label.to_owned(),
        description: None,
        scopes,
        confirmation: None,
        icon: Some(icon.to_owned()),
        group: None,
        status: ChangesetOperationStatus::Idle,
        error: None,
    }
}

impl Changes {
    /// Returns the operations that a changeset offers, with their status; all are disabled while a
    /// turn runs in its session.
    pub(in crate::host) fn operations_of(
        &self,
        ledger: &Ledger,
        session: SessionKey,
        scope: &ChangesetScope,
        has_files: bool,
    ) -> Option<Vec<ChangesetOperation>> {
        if matches!(scope, ChangesetScope::Branch | ChangesetScope::Compare(..)) {
            return None;
        }
        let mut operations = Vec::new();
        if has_files {
            use ChangesetOperationScope::{Changeset, Resource};
            let discard = operation(DISCARD, "Discard Changes", "discard", vec![Changeset, Resource]);
            let confirmation =
                "The files get their earlier content back. Files that have changed since stay as they are.";
            operations.push(ChangesetOperation { confirmation: Some(confirmation.into()), ..discard });
            if *scope == ChangesetScope::Uncommitted {
                operations.push(commit_operation());
            }
        }
        if last_reverted(ledger, session, scope).next().is_some() {
            let scopes = vec![ChangesetOperationScope::Changeset];
            operations.push(operation(RESTORE, "Restore Discarded Changes", "redo", scopes));
        }
        let running = self.operations.running.get(&session).filter(|it| it.scope == *scope);
        let failed = self.operations.failed.get(&(session, scope_key(scope)));
        let works = |chat| ledger.channels.chats.known(chat).is_some_and(|chat| chat.run.is_some());
        let is_disabled = ledger.channels.chats_in(session).into_iter().any(works);
        for operation in &mut operations {
            if is_disabled {
                operation.status = ChangesetOperationStatus::Disabled;
            } else if running.is_some_and(|running| running.params.operation_id == operation.id) {
                operation.status = ChangesetOperationStatus::Running;
            } else if let Some((_, why)) = failed.filter(|(id, _)| *id == operation.id) {
                (operation.status, operation.error) = (ChangesetOperationStatus::Error, Some(why.clone()));
            }
        }
        (!operations.is_empty()).then_some(operations)
    }

    /// Queues an operation until the files of its changeset are known.
    pub(in crate::host) fn queue_operation(
        &mut self,
        ledger: &Ledger,
        step: &mut Step<'_>,
        (connection, id): Requester,
        params: InvokeChangesetOperationParams,
    ) {
        let waiting = self.pending_of_session(&params.channel);
        let error = match self.newest_of_session(ledger, &params.channel) {
            Some((last, requesters)) if *last == params => {
                if requesters.len() < SHARED_MAX {
                    return requesters.push((connection, id));
                }
                RpcError::unavailable(format_args!(
                    "{SHARED_MAX} requests wait for this operation already; try again when it is done"
                ))
            }
            _ if waiting < WAITING_MAX => {
                let seen = self.files_shown_to_client(ledger, connection, &params);
                let pending =
                    PendingOperation { requesters: vec![(connection, id)], params, refresh: None, seen };
                return self.operations.pending.push_back(pending);
            }
            _ => RpcError::unavailable(format_args!(
                "{WAITING_MAX} operations of this session wait already; try again when one is done"
            )),
        };
        step.emit(Output::Frame(connection, Frame::Error { id: Some(id), error }));
    }

    fn pending_of_session(&self, changeset: &str) -> usize {
        let session = parse_changeset_uri(changeset).map(|(session, _)| session);
        let pending = self.operations.pending.iter();
        pending.filter(|pending| pending.changeset().map(|(session, _)| session) == session).count()
    }

    /// Returns the newest unfinished operation of the changeset's session, with its requests.
    fn newest_of_session(
        &mut self,
        ledger: &Ledger,
        changeset: &str,
    ) -> Option<(&InvokeChangesetOperationParams, &mut Vec<Requester>)> {
        let (uri, _) = parse_changeset_uri(changeset)?;
        let session = ledger.find_session(uri)?;
        let Operations { pending, running, .. } = &mut self.operations;
        let is_of =
            |pending: &&mut PendingOperation| pending.changeset().is_some_and(|(session, _)| session == uri);
        match pending.iter_mut().rev().find(is_of) {
            Some(pending) => Some((&pending.params, &mut pending.requesters)),
            None => running.get_mut(&session).map(|running| (&running.params, &mut running.requesters)),
        }
    }

    /// Returns the files of a repository status as this client sees them, if it is subscribed and
    /// offered the operation. `None` while an operation other than a discard is unfinished, whose
    /// outcome the client cannot know. A discard on these files only removes some of them.
    fn files_shown_to_client(
        &self,
        ledger: &Ledger,
        connection: ConnectionId,
        params: &InvokeChangesetOperationParams,
    ) -> Option<Vec<ChangesetFile>> {
        let changeset = ledger.channels.changesets.get(&ledger.find(&params.channel)?.changeset()?)?;
        let mut offered = changeset.state.operations.iter().flatten();
        let session = &ledger.channels.sessions.known(changeset.session)?.channel.uri;
        let sees = shows_status(&changeset.scope)
            && self.operations_in(ledger, session).all(|operation| operation.operation_id == DISCARD)
            && matches!(changeset.state.status, ChangesetStatus::Ready | ChangesetStatus::Recomputing)
            && offered.any(|operation| operation.id == params.operation_id)
            && changeset.channel.subscribers.contains(&connection);
        sees.then(|| changeset.state.files.clone())
    }

    /// Starts the operations whose files are known, one at a time per session, in order.
    pub(super) fn start_ready_operations(&mut self, ledger: &mut Ledger, step: &mut Step<'_>) {
        let mut waiting = BTreeSet::new();
        for mut pending in std::mem::take(&mut self.operations.pending) {
            let Some((connection, id)) = pending.requesters.first().cloned() else { continue };
            let of = pending.changeset().and_then(|(uri, scope)| Some((ledger.find_session(uri)?, scope)));
            if let Some((session, scope)) = of {
                let is_first = !waiting.contains(&session);
                if !is_first || !self.are_files_known(ledger, session, &scope, &mut pending.refresh) {
                    waiting.insert(session);
                    self.operations.pending.push_back(pending);
                    continue;
                }
            }
            let PendingOperation { requesters, params, seen, .. } = pending;
            match self.invoke_changeset_operation(ledger, &params, seen.as_deref()) {
                Ok(FirstStep::Revert(mut request)) => {
                    self.begin_operation(ledger, step, request.session, requesters, params);
                    record_pending_reverts(ledger, &mut request, step.now.unix_ms);
                    let below = ledger.channels.folders_of_sessions();
                    let revert = Resource::Revert { request: request.into(), below };
                    step.emit(Output::Resource(connection, id, revert));
                }
                Ok(FirstStep::Commit(wanted)) => {
                    self.begin_operation(ledger, step, wanted.session, requesters, params);
                    self.run_git_commit(ledger, step, wanted);
                }
                Err(error) => self.answer_operation(step, requesters, Err(error)),
            }
        }
    }

    /// Returns whether the current files of a changeset are known; requests them if not.
    fn are_files_known(
        &mut self,
        ledger: &Ledger,
        session: SessionKey,
        scope: &ChangesetScope,
        refresh: &mut Option<u64>,
    ) -> bool {
        if self.operations.running.contains_key(&session) {
            return false;
        }
        if shows_status(scope) {
            return self.statuses.refreshed_since(ledger, session, refresh);
        }
        let turn = match scope {
            ChangesetScope::Turn(id) => Some(id.as_str()),
            _ => None,
        };
        if self.checkpoints.is_checkpoint_in_flight(session, turn) {
            return false;
        }
        let states = checkpoints_of_scope(ledger, session, scope);
        states.is_none_or(|states| {
            !matches!(self.checkpoints.compared.get_or_request(&states), Comparison::Pending)
        })
    }

    /// Returns whether this connection, or any if `None`, has an unfinished operation.
    pub(in crate::host) fn has_operations_for(&self, of: Option<ConnectionId>) -> bool {
        let operations = &self.operations;
        let pending = operations.pending.iter().map(|pending| &pending.requesters);
        let mut requesters =
            pending.chain(operations.running.values().map(|running| &running.requesters)).flatten();
        requesters.any(|(connection, _)| of.is_none_or(|of| of == *connection))
    }

    /// Returns whether the session with this URI has an unfinished operation.
    pub(in crate::host) fn has_operations_in(&self, ledger: &Ledger, uri: &str) -> bool {
        self.operations_in(ledger, uri).next().is_some()
    }

    /// Returns the unfinished operations of the session with this URI.
    fn operations_in<'a>(
        &'a self,
        ledger: &Ledger,
        uri: &'a str,
    ) -> impl Iterator<Item = &'a InvokeChangesetOperationParams> {
        let operations = &self.operations;
        let is_of =
            move |pending: &&PendingOperation| pending.changeset().is_some_and(|(session, _)| session == uri);
        let pending = operations.pending.iter().filter(is_of).map(|pending| &pending.params);
        let running = ledger.find_session(uri).and_then(|key| operations.running.get(&key));
        pending.chain(running.map(|running| &running.params))
    }

    /// Validates an operation and returns its first step. Fails if the changeset does not offer it.
    fn invoke_changeset_operation(
        &mut self,
        ledger: &mut Ledger,
        params: &InvokeChangesetOperationParams,
        seen: Option<&[ChangesetFile]>,
    ) -> Result<FirstStep, RpcError> {
        self.restore_changesets(ledger, [&params.channel]);
        if let Some((session, _)) = parse_changeset_uri(&params.channel) {
            ledger.find_session(session).ok_or_else(|| RpcError::channel_not_found(session))?;
        }
        let key = ledger.find(&params.channel).and_then(|id| id.changeset());
        let found = key.and_then(|key| Some((key, ledger.channels.changesets.get(&key)?)));
        let (key, changeset) = found.ok_or_else(|| RpcError::resource_not_found(&params.channel))?;
        let (session, scope) = (changeset.session, changeset.scope.clone());
        let changed_since_seen =
            seen.map(|seen| files_changed_since_seen(ledger, key, seen)).unwrap_or_default();
        let id = params.operation_id.as_str();
        let mut files = self.changed_files(ledger, session, &scope).unwrap_or_default();
        if files.len() > FILES_MAX {
            // The list was not sent to clients.
            files.clear();
        }
        let offered = self.operations_of(ledger, session, &scope, !files.is_empty()).unwrap_or_default();
        let why_not = match offered.iter().find(|operation| operation.id == id) {
            None => Some(format!("the changeset does not offer `{id}` now")),
            Some(operation) if operation.status == ChangesetOperationStatus::Disabled => {
                Some(format!("`{id}` is not done while a turn runs"))
            }
            Some(_) => None,
        };
        if let Some(why) = why_not {
            return Err(RpcError::invalid_params(format_args!("`operationId`: {why}")));
        }
        let wanted = match &params.target {
            None => None,
            Some(ChangesetOperationTarget::Resource { resource, .. }) if id == DISCARD => Some(resource),
            Some(_) => {
                return Err(RpcError::invalid_params(format_args!(
                    "`target`: `{id}` does not apply to this target"
                )));
            }
        };
        if id == COMMIT {
            if !changed_since_seen.is_empty() {
                return Err(RpcError::not_committed(CHANGED_SINCE));
            }
            return Ok(FirstStep::Commit(self.requested_commit(ledger, session, params)?));
        }
        let reverted = match id == RESTORE {
            true => files_to_restore(ledger, session, &scope),
            false => {
                let is_meant = |file: &&FileDiff<SideContent>| wanted.is_none_or(|uri| file.is_called(uri));
                files_to_discard(ledger, &scope, files.iter().filter(is_meant), &changed_since_seen)
            }
        };
        Ok(FirstStep::Revert(requested_revert(ledger, session, scope, id == RESTORE, reverted)?))
    }

    fn begin_operation(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
        requesters: Vec<Requester>,
        params: InvokeChangesetOperationParams,
    ) {
        let Some((_, scope)) = parse_changeset_uri(&params.channel) else { return };
        self.operations.failed.remove(&(session, scope_key(&scope)));
        let running = RunningOperation { requesters, scope, params };
        self.operations.running.insert(session, running);
        self.sync_changesets(ledger, step, session);
    }

    /// Ends an operation. Subscribers receive the changes before the requesters are answered.
    pub(in crate::host) fn finish_operation(
        &mut self,
        ledger: &mut Ledger,
        step: &mut Step<'_>,
        session: SessionKey,
        outcome: Result<Option<String>, RpcError>,
    ) {
        let Some(running) = self.operations.running.remove(&session) else { return };
        let RunningOperation { requesters, scope, params } = running;
        if ledger.channels.sessions.contains_key(&session) {
            if let Err(error) = &outcome {
                let why = error_info("operationFailed".to_owned(), &error.message);
                let failed = &mut self.operations.failed;
                failed.insert((session, scope_key(&scope)), (params.operation_id, why));
            }
            self.sync_changesets(ledger, step, session);
        }
        self.answer_operation(step, requesters, outcome);
    }

    fn answer_operation(
        &self,
        step: &mut Step<'_>,
        requesters: Vec<Requester>,
        outcome: Result<Option<String>, RpcError>,
    ) {
        for (connection, id) in requesters {
            let frame = match &outcome {
                Ok(message) => {
                    let result = message.as_ref().map_or_else(|| json!({}), |it| json!({ "message": it }));
                    Frame::result(id, Method::InvokeChangesetOperation, Bytes::from(to_json(&result)))
                }
                Err(error) => Frame::Error { id: Some(id), error: error.clone() },
            };
            step.emit(Output::Frame(connection, frame));
        }
    }

    /// Drops the errors of a session that is deleted or evicted.
    pub(in crate::host) fn clear_failed_operations(&mut self, session: SessionKey) {
        self.operations.failed.retain(|(of, _), _| *of != session);
    }
}

fn files_changed_since_seen(ledger: &Ledger, key: ChangesetKey, seen: &[ChangesetFile]) -> Vec<String> {
    let Some(changeset) = ledger.channels.changesets.get(&key) else { return Vec::new() };
    let edits: HashMap<&str, &FileEdit> = seen.iter().map(|file| (file.id.as_str(), &file.edit)).collect();
    let files = changeset.state.files.iter();
    let changed_since_seen = files.filter(|file| edits.get(file.id.as_str()) != Some(&&file.edit));
    changed_since_seen.map(|file| file.id.clone()).collect()
}
