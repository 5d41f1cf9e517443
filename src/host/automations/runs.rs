//! Runs of automations, from their record to their end.
//!
//! Owns: the record of a run, its lifecycle, requests of manual runs, and which runs are kept.
//! Never: decides when a scheduled run is due.

use std::time::Duration;

use ahp_types::actions::{
    AutomationRunLifecycleChangedAction, AutomationRunPrimarySessionChangedAction,
    AutomationRunSessionRemovedAction, AutomationRunSessionSetAction, StateAction,
};
use ahp_types::commands::{FetchAutomationRunsParams, RunAutomationParams};
use ahp_types::common::JsonObject;
use ahp_types::state::{
    AutomationCancelledRunLifecycle, AutomationCompletedRunLifecycle, AutomationDefinition, AutomationEntry,
    AutomationFailedRunLifecycle, AutomationManualRunOrigin, AutomationPendingRunLifecycle,
    AutomationRunLifecycle, AutomationRunOrigin, AutomationRunState, AutomationRunningRunLifecycle,
    ErrorInfo, ResponsePart, Turn, TurnState, UsageInfo,
};

use super::{
    has_reason_to_run, note_bookkeeping, remove_row, schedules, set_entry, FailedStarts, HostPhase,
    RunRequest, ENDED_RUNS_MAX,
};
use crate::host::channels::{summary_of_run, AutomationRun};
use crate::host::effects::{AutomationRunKey, ChatKey, Output, Timer};
use crate::host::ledger::Ledger;
use crate::host::limits::check_id;
use crate::host::model::Channel;
use crate::host::refusal::error_info;
use crate::host::Step;
use crate::wire::errors::RpcError;
use crate::wire::uris::automation_run_uri;

/// Time for which the id of a request is remembered, in milliseconds: 30 days.
const REQUEST_MS: i64 = 30 * 24 * 3_600_000;

/// Maximum number of remembered requests; the oldest are forgotten first.
const REQUESTS_MAX: usize = 10_000;

/// Maximum length of the id of a request, in bytes.
const REQUEST_BYTES_MAX: usize = 256;

/// Delays before the second and the third try to start the agent of a run, which are all.
const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(5 * 60)];

/// End of a run.
pub(in crate::host) enum Outcome {
    Completed(Option<UsageInfo>),
    Failed(ErrorInfo),
    Cancelled,
}

impl Outcome {
    pub(in crate::host) fn failed(kind: &str, message: &str) -> Self {
        Self::Failed(error_info(kind.to_owned(), message))
    }

    /// Returns the end of a run that the end of the host has cut off.
    pub(in crate::host) fn interrupted() -> Self {
        Self::failed("interrupted", "the host ended while the run was in progress")
    }

    /// Returns the end of the run whose turn has ended like this.
    pub(in crate::host) fn of_turn(turn: Option<Turn>) -> Self {
        let Some(turn) = turn else { return Self::failed("internal", "the turn of the run is gone") };
        match turn.state {
            TurnState::Complete => Self::Completed(turn.usage),
            TurnState::Cancelled => Self::Cancelled,
            TurnState::Error => {
                let last = turn.response_parts.into_iter().rev().find_map(|part| match part {
                    ResponsePart::Error(part) => Some(part.error),
                    _ => None,
                });
                last.map_or_else(|| Self::failed("agentFailed", "the agent has failed"), Self::Failed)
            }
        }
    }
}

/// Returns whether a run has not ended.
pub(in crate::host) fn is_active(lifecycle: &AutomationRunLifecycle) -> bool {
    matches!(lifecycle, AutomationRunLifecycle::Pending(_) | AutomationRunLifecycle::Running(_))
}

/// Returns the number of runs that have not ended, of all automations.
pub(super) fn active_runs(ledger: &Ledger) -> usize {
    ledger.channels.automation_runs.values().filter(|run| is_active(&run.state.lifecycle)).count()
}

/// Answers the run of a request: that of the same request before, the active one, or a new one.
pub(in crate::host) fn request_run(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    params: RunAutomationParams,
) -> Result<String, RpcError> {
    ledger.check_store()?;
    let RunAutomationParams { automation, request_id, .. } = params;
    let list = ledger.channels.automation_list_mut();
    let list = list.ok_or_else(|| RpcError::method_not_found("runAutomation"))?;
    let entry = list.get(&automation).cloned().ok_or_else(|| RpcError::resource_not_found(&automation))?;
    check_id("requestId", &request_id, REQUEST_BYTES_MAX).map_err(RpcError::invalid_params)?;
    let now = step.now.unix_ms;
    let requests = &mut list.bookkeeping.requests;
    requests.retain(|request| now.saturating_sub(request.at) < REQUEST_MS);
    let known = requests.iter().find(|request| request.automation == automation && request.id == request_id);
    if let Some(known) = known {
        return Ok(known.run.clone());
    }
    let surplus = (requests.len() + 1).saturating_sub(REQUESTS_MAX);
    requests.drain(..surplus);
    let active = entry.runs.iter().find(|run| is_active(&run.lifecycle)).map(|run| run.resource.clone());
    let run = active.unwrap_or_else(|| {
        record_run(ledger, step, entry, AutomationRunOrigin::Manual(AutomationManualRunOrigin {}))
    });
    if let Some(list) = ledger.channels.automation_list_mut() {
        let request = RunRequest { automation, id: request_id, run: run.clone(), at: now };
        list.bookkeeping.requests.push(request);
    }
    note_bookkeeping(ledger);
    Ok(run)
}

/// Checks a request for further runs. Every entry has all of its runs, so there is no further page.
pub(in crate::host) fn fetch_runs(
    ledger: &Ledger,
    params: &FetchAutomationRunsParams,
) -> Result<(), RpcError> {
    let list = ledger.channels.automation_list();
    let list = list.ok_or_else(|| RpcError::method_not_found("fetchAutomationRuns"))?;
    if list.get(&params.automation).is_none() {
        return Err(RpcError::resource_not_found(&params.automation));
    }
    match params.cursor {
        Some(_) => Err(RpcError::invalid_params("`cursor` was not issued by this host")),
        None => Ok(()),
    }
}

/// Records a run that is to begin. Returns its URI.
pub(super) fn record_run(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    entry: AutomationEntry,
    origin: AutomationRunOrigin,
) -> String {
    let created_at = step.timestamp();
    let lifecycle = AutomationRunLifecycle::Pending(AutomationPendingRunLifecycle { created_at });
    let directories = entry.definition.session.working_directories.clone().unwrap_or_default();
    let (key, uri) = insert(ledger, step, entry, origin, lifecycle, None);
    step.emit(Output::CheckDirectories(key, directories));
    uri
}

/// Records that an occurrence of a schedule was left out, as a run that has ended.
pub(super) fn record_skipped(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    entry: AutomationEntry,
    origin: AutomationRunOrigin,
    failure: Result<(), ErrorInfo>,
) {
    let (created_at, completed_at) = (step.timestamp(), step.timestamp());
    let lifecycle = match failure {
        Err(error) => AutomationRunLifecycle::Failed(AutomationFailedRunLifecycle {
            created_at,
            started_at: None,
            completed_at,
            error,
        }),
        Ok(()) => AutomationRunLifecycle::Cancelled(AutomationCancelledRunLifecycle {
            created_at,
            started_at: None,
            completed_at,
        }),
    };
    let skipped = JsonObject::from_iter([("ahp-sidecar.skipped".to_owned(), true.into())]);
    insert(ledger, step, entry, origin, lifecycle, Some(skipped));
}

fn insert(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    mut entry: AutomationEntry,
    origin: AutomationRunOrigin,
    lifecycle: AutomationRunLifecycle,
    meta: Option<JsonObject>,
) -> (AutomationRunKey, String) {
    let uri = automation_run_uri(&step.ids.fresh());
    let key = AutomationRunKey(ledger.fresh_key());
    let state = AutomationRunState {
        resource: uri.clone(),
        automation: entry.resource.clone(),
        origin,
        lifecycle,
        sessions: Vec::new(),
        primary_session: None,
        meta,
    };
    entry.runs.insert(0, summary_of_run(&state));
    let channel = Channel::new(uri.clone(), ledger.head() + 1);
    ledger.channels.by_uri.insert(uri.clone(), key.into());
    ledger.channels.automation_runs.insert(key, AutomationRun { channel, state });
    ledger.mark_dirty(key.into());
    cut_history(ledger, step, &mut entry);
    set_entry(ledger, step, entry);
    (key, uri)
}

/// Removes the oldest ended runs beyond the limit.
fn cut_history(ledger: &mut Ledger, step: &mut Step<'_>, entry: &mut AutomationEntry) {
    let mut ended = 0;
    let (kept, surplus): (Vec<_>, Vec<_>) = std::mem::take(&mut entry.runs).into_iter().partition(|run| {
        ended += usize::from(!is_active(&run.lifecycle));
        is_active(&run.lifecycle) || ended <= ENDED_RUNS_MAX
    });
    entry.runs = kept;
    for run in surplus {
        remove_run(ledger, step, &run.resource);
    }
}

/// Removes a run that is no longer listed.
pub(super) fn remove_run(ledger: &mut Ledger, step: &mut Step<'_>, uri: &str) {
    let Some(key) = ledger.find(uri).and_then(|id| id.automation_run()) else { return };
    ledger.unlink(key.into());
    ledger.channels.automation_runs.remove(&key);
    ledger.mark_clean(key.into());
    remove_row(step, key);
}

/// Returns the definition of a run that may begin now, or whose agent may be started again. A run
/// for which there is no client begins when one is back.
pub(in crate::host) fn startable_run(
    ledger: &mut Ledger,
    key: AutomationRunKey,
) -> Option<(AutomationRunState, AutomationDefinition)> {
    let may_run = has_reason_to_run(ledger, ledger.channels.automation_list()?);
    let list = ledger.channels.automation_list_mut().filter(|list| list.bookkeeping.phase.is_awake())?;
    list.bookkeeping.has_left_runs |= !may_run;
    if !may_run {
        return None;
    }
    let list = ledger.channels.automation_list()?;
    let run = &ledger.channels.automation_runs.get(&key)?.state;
    let may_begin = match run.lifecycle {
        AutomationRunLifecycle::Pending(_) => true,
        AutomationRunLifecycle::Running(_) => is_retried(ledger, key),
        _ => false,
    };
    may_begin.then(|| Some((run.clone(), list.get(&run.automation)?.definition.clone())))?
}

/// Returns whether a running run waits for its agent to be started again.
fn is_retried(ledger: &Ledger, key: AutomationRunKey) -> bool {
    let list = ledger.channels.automation_list();
    list.and_then(|list| list.bookkeeping.failed_starts.get(&key)).is_some_and(|failed| failed.is_waiting)
}

/// Sets the time at which the agent of a run, which has not started, is started again. Returns
/// whether there is such a time.
pub(in crate::host) fn retry_later(ledger: &mut Ledger, step: &mut Step<'_>, key: AutomationRunKey) -> bool {
    let Some(list) = ledger.channels.automation_list_mut() else { return false };
    let failed = list.bookkeeping.failed_starts.entry(key).or_default();
    let Some(after) = RETRY_AFTER.get(failed.count) else { return false };
    *failed = FailedStarts { count: failed.count + 1, is_waiting: true, is_overdue: false };
    step.emit(Output::Timer(Timer::AutomationRetry(key), *after));
    true
}

/// Starts the agent of a run again, if the run still waits for that; without a client, once one is
/// back.
pub(in crate::host) fn retry(ledger: &mut Ledger, step: &mut Step<'_>, key: AutomationRunKey) {
    if let Some((_, definition)) = startable_run(ledger, key) {
        let directories = definition.session.working_directories.unwrap_or_default();
        return step.emit(Output::CheckDirectories(key, directories));
    }
    let list = ledger.channels.automation_list_mut();
    let failed = list.and_then(|list| list.bookkeeping.failed_starts.get_mut(&key));
    if let Some(failed) = failed.filter(|failed| failed.is_waiting) {
        failed.is_overdue = true;
    }
}

/// Notes that a run no longer waits for its agent to be started again: it is, in a new session.
pub(in crate::host) fn stop_waiting(ledger: &mut Ledger, key: AutomationRunKey) {
    let list = ledger.channels.automation_list_mut();
    if let Some(failed) = list.and_then(|list| list.bookkeeping.failed_starts.get_mut(&key)) {
        (failed.is_waiting, failed.is_overdue) = (false, false);
    }
}

/// Notes the session of a run, and that the run begins. Its turn begins in this chat.
pub(in crate::host) fn begin(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: AutomationRunKey,
    session: &str,
    chat: ChatKey,
) {
    let Some(run) = ledger.channels.automation_runs.get(&key) else { return };
    let lifecycle = run.state.lifecycle.clone();
    let uri = session.to_owned();
    let set = StateAction::AutomationRunSessionSet(AutomationRunSessionSetAction { session: uri.clone() });
    ledger.sequence(step, key, set, None);
    let primary = AutomationRunPrimarySessionChangedAction { primary_session: Some(uri) };
    ledger.sequence(step, key, StateAction::AutomationRunPrimarySessionChanged(primary), None);
    if let Some(list) = ledger.channels.automation_list_mut() {
        list.bookkeeping.active.insert(chat, key);
    }
    let AutomationRunLifecycle::Pending(pending) = lifecycle else { return list_run(ledger, step, key) };
    let (created_at, started_at) = (pending.created_at, step.timestamp());
    let running = AutomationRunningRunLifecycle { created_at, started_at };
    change(ledger, step, key, AutomationRunLifecycle::Running(running));
    // The limit is that of all tries.
    if let Some(list) = ledger.channels.automation_list() {
        let limit = Duration::from_secs(60 * u64::from(list.settings.rules.run_minutes.get()));
        step.emit(Output::Timer(Timer::AutomationRun(key), limit));
    }
}

/// Ends a run that has not ended, once.
pub(in crate::host) fn end(ledger: &mut Ledger, step: &mut Step<'_>, key: AutomationRunKey, how: Outcome) {
    let Some(run) = ledger.channels.automation_runs.get(&key) else { return };
    let (created_at, started_at) = match run.state.lifecycle.clone() {
        AutomationRunLifecycle::Pending(pending) => (pending.created_at, None),
        AutomationRunLifecycle::Running(running) => (running.created_at, Some(running.started_at)),
        _ => return,
    };
    let completed_at = step.timestamp();
    let lifecycle = match how {
        Outcome::Completed(usage) => AutomationRunLifecycle::Completed(AutomationCompletedRunLifecycle {
            started_at: started_at.unwrap_or_else(|| created_at.clone()),
            created_at,
            completed_at,
            usage,
        }),
        Outcome::Failed(error) => AutomationRunLifecycle::Failed(AutomationFailedRunLifecycle {
            created_at,
            started_at,
            completed_at,
            error,
        }),
        Outcome::Cancelled => AutomationRunLifecycle::Cancelled(AutomationCancelledRunLifecycle {
            created_at,
            started_at,
            completed_at,
        }),
    };
    if let Some(list) = ledger.channels.automation_list_mut() {
        list.bookkeeping.active.retain(|_, active| *active != key);
        list.bookkeeping.failed_starts.remove(&key);
    }
    change(ledger, step, key, lifecycle);
    // An occurrence may have waited for this end.
    schedules::arm(ledger, step, true);
}

fn change(
    ledger: &mut Ledger,
    step: &mut Step<'_>,
    key: AutomationRunKey,
    lifecycle: AutomationRunLifecycle,
) {
    let action = AutomationRunLifecycleChangedAction { lifecycle };
    ledger.sequence(step, key, StateAction::AutomationRunLifecycleChanged(Box::new(action)), None);
    list_run(ledger, step, key);
}

/// Sends the automation of a run, which lists the run as it is now.
fn list_run(ledger: &mut Ledger, step: &mut Step<'_>, key: AutomationRunKey) {
    let Some(run) = ledger.channels.automation_runs.get(&key) else { return };
    let Some(list) = ledger.channels.automation_list() else { return };
    let Some(mut entry) = list.get(&run.state.automation).cloned() else { return };
    let listed = entry.runs.iter_mut().find(|listed| listed.resource == run.state.resource);
    if let Some(listed) = listed {
        *listed = summary_of_run(&run.state);
        cut_history(ledger, step, &mut entry);
        set_entry(ledger, step, entry);
    }
}

/// Returns whether the host ends, or leaves with its last client: its turns are cancelled by that.
pub(in crate::host) fn are_over(ledger: &Ledger) -> bool {
    let list = ledger.channels.automation_list();
    list.is_some_and(|list| list.bookkeeping.phase == HostPhase::Over || !has_reason_to_run(ledger, list))
}

/// Takes the run whose turn has ended in this chat.
pub(in crate::host) fn take_active(ledger: &mut Ledger, chat: ChatKey) -> Option<AutomationRunKey> {
    ledger.channels.automation_list_mut()?.bookkeeping.active.remove(&chat)
}

/// Returns the chat in which a run works.
pub(in crate::host) fn chat_of(ledger: &Ledger, key: AutomationRunKey) -> Option<ChatKey> {
    let list = ledger.channels.automation_list()?;
    list.bookkeeping.active.iter().find(|(_, active)| **active == key).map(|(chat, _)| *chat)
}

fn is_listed(ledger: &Ledger, run: &AutomationRunState) -> bool {
    let list = ledger.channels.automation_list();
    list.is_some_and(|list| list.get(&run.automation).is_some())
}

/// Ends the runs that the previous process has left in the middle.
pub(in crate::host) fn recover(ledger: &mut Ledger, step: &mut Step<'_>) {
    let Some(list) = ledger.channels.automation_list_mut() else { return };
    if std::mem::replace(&mut list.bookkeeping.recovered, true) {
        return;
    }
    // Runs of an automation whose record was damaged would count as active for ever.
    let runs = ledger.channels.automation_runs.values();
    let of_none = runs.filter(|run| !is_listed(ledger, &run.state));
    for run in of_none.map(|run| run.state.resource.clone()).collect::<Vec<_>>() {
        remove_run(ledger, step, &run);
    }
    let runs = ledger.channels.automation_runs.iter();
    let left = runs.filter(|(_, run)| matches!(run.state.lifecycle, AutomationRunLifecycle::Running(_)));
    for key in left.map(|(key, _)| *key).collect::<Vec<_>>() {
        end(ledger, step, key, Outcome::interrupted());
    }
}

/// Lets runs begin. Called after each request of a client that has shaken hands.
pub(in crate::host) fn wake(ledger: &mut Ledger, step: &mut Step<'_>) {
    let Some(list) = ledger.channels.automation_list_mut() else { return };
    match list.bookkeeping.phase {
        HostPhase::BeforeHandshake => schedules::settle_later(&mut list.bookkeeping, step),
        HostPhase::Settled if list.bookkeeping.has_left_runs => schedules::arm(ledger, step, true),
        _ => {}
    }
}

/// Starts the runs that were recorded and have not begun, and those whose agent was to be started
/// again without a client.
pub(super) fn start_left_runs(ledger: &Ledger, step: &mut Step<'_>) {
    let Some(list) = ledger.channels.automation_list() else { return };
    for (key, run) in ledger.channels.automation_runs.iter() {
        let failed = list.bookkeeping.failed_starts.get(key);
        let is_left = match run.state.lifecycle {
            AutomationRunLifecycle::Pending(_) => true,
            AutomationRunLifecycle::Running(_) => failed.is_some_and(|failed| failed.is_overdue),
            _ => false,
        };
        if is_left {
            let entry = list.get(&run.state.automation);
            let directories = entry.and_then(|entry| entry.definition.session.working_directories.clone());
            step.emit(Output::CheckDirectories(*key, directories.unwrap_or_default()));
        }
    }
}

/// Lets no further run begin: the host shuts down.
pub(in crate::host) fn sleep(ledger: &mut Ledger) {
    if let Some(list) = ledger.channels.automation_list_mut() {
        list.bookkeeping.phase = HostPhase::Over;
    }
}

/// Removes a session that was disposed of from the runs that it belongs to. Without it, a run that
/// waits for its agent to be started again is cancelled.
pub(in crate::host) fn session_disposed(ledger: &mut Ledger, step: &mut Step<'_>, session: &str) {
    let runs = ledger.channels.automation_runs.iter();
    let of_session = runs.filter(|(_, run)| run.state.sessions.iter().any(|uri| uri == session));
    for key in of_session.map(|(key, _)| *key).collect::<Vec<_>>() {
        let removed = AutomationRunSessionRemovedAction { session: session.to_owned() };
        ledger.sequence(step, key, StateAction::AutomationRunSessionRemoved(removed), None);
        list_run(ledger, step, key);
        if is_retried(ledger, key) {
            end(ledger, step, key, Outcome::Cancelled);
        }
    }
}
