//! Automations: messages that the host sends by itself to new sessions, asked for or scheduled.
//!
//! Owns: definitions and their limits (`definitions`), runs from their record to their end
//! (`runs`), when the next run is due (`schedules`, `cron`), and the bookkeeping beside the list.
//! Never: creates a session or begins a turn (`router::automation_steps` does), or reads a clock or
//! a database of time zones: the caller lends both.
//!
//! A run is recorded, and committed, before anything is done for it.

mod cron;
mod definitions;
pub(super) mod runs;
pub(super) mod schedules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use ahp_types::actions::{ActionOrigin, AutomationSetAction, StateAction};
use ahp_types::commands::{
    AutomationCapabilities, AutomationCreateCapability, AutomationRunCancellationCapability,
    AutomationScheduleCapabilities,
};
use ahp_types::state::{
    AutomationDefinition, AutomationDisableCondition, AutomationEntry, AutomationOperation,
};
use jiff::tz::TimeZone;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::actions::Verdict;
use super::agents::AgentRegistry;
use super::channels::Automations;
use super::effects::{AutomationRunKey, AutomationsKey, ChatKey, Output, Record};
use super::ledger::Ledger;
use super::refusal::Refusal;
use super::Step;

/// Maximum number of automations.
const AUTOMATIONS_MAX: usize = 100;

/// Maximum number of ended runs that each automation keeps.
const ENDED_RUNS_MAX: usize = 50;

/// Rules of the operator's configuration for automations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutomationRules {
    /// Time limit of a run, in minutes.
    #[serde(default = "run_minutes")]
    pub run_minutes: NonZeroU32,
    /// Smallest time between two occurrences of a schedule, in minutes.
    #[serde(default = "min_interval_minutes")]
    pub min_interval_minutes: NonZeroU32,
}

fn run_minutes() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(29)
}

fn min_interval_minutes() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Settings of automations, fixed at the start of the host.
#[derive(Debug, Clone)]
pub struct AutomationSettings {
    /// Rules of the operator.
    pub rules: AutomationRules,
    /// Time zones in which schedules can be read.
    pub zones: TimeZones,
    /// Set if the host goes on without clients, as `serve` does: schedules go on, too.
    pub stays: bool,
}

/// Database of time zones, which the caller lends. It has the same answer for a name each time.
pub trait ZoneDatabase: std::fmt::Debug + Send + Sync {
    /// Returns the zone of this name, in any case; `None` if none can be read.
    fn zone(&self, name: &str) -> Option<TimeZone>;
}

/// Time zones by the names in definitions: only those that a schedule names are read.
#[derive(Debug, Clone)]
pub struct TimeZones(Arc<dyn ZoneDatabase>);

impl TimeZones {
    /// Uses this database.
    pub fn new(database: impl ZoneDatabase + 'static) -> Self {
        Self(Arc::new(database))
    }

    pub(crate) fn get(&self, name: &str) -> Option<TimeZone> {
        self.0.zone(name)
    }
}

/// Data of the host about automations that clients do not see.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Bookkeeping {
    /// Requests of manual runs, by which a repeated one is recognized.
    requests: Vec<RunRequest>,
    /// Time up to which each trigger's occurrences are handled, in milliseconds since 1970, by
    /// automation and trigger.
    #[serde(rename = "cursors")]
    handled_until: BTreeMap<String, BTreeMap<String, i64>>,
    /// Times at which scheduled runs were recorded in the last hour, in milliseconds since 1970, by
    /// automation.
    #[serde(default)]
    scheduled_runs: BTreeMap<String, Vec<i64>>,
    /// Chats of running runs.
    #[serde(skip)]
    active: BTreeMap<ChatKey, AutomationRunKey>,
    /// Running runs whose agent has not started.
    #[serde(skip)]
    failed_starts: BTreeMap<AutomationRunKey, FailedStarts>,
    /// Set once the runs that the previous process left are ended.
    #[serde(skip)]
    recovered: bool,
    /// Phase of the process, by which runs may start.
    #[serde(skip)]
    phase: HostPhase,
    /// Set if runs may be pending that the previous process, or the last client, has left.
    #[serde(skip)]
    has_left_runs: bool,
    /// Number of the latest timer; earlier ones are void.
    #[serde(skip)]
    timer: u64,
}

/// Phases of a process, by what may start in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum HostPhase {
    /// No client has shaken hands: nothing starts.
    #[default]
    BeforeHandshake,
    /// Until the first timer expires, only runs that clients ask for start: a process that ends
    /// sooner, as in a shell's pipe, sets nothing off.
    Settling,
    /// Scheduled runs start, too.
    Settled,
    /// The host shuts down: nothing starts any more.
    Over,
}

impl HostPhase {
    /// Returns whether runs may start that clients ask for.
    fn is_awake(self) -> bool {
        matches!(self, Self::Settling | Self::Settled)
    }
}

/// Failed attempts to start the agent of a run.
#[derive(Debug, Clone, Copy, Default)]
struct FailedStarts {
    count: usize,
    /// Set while the run waits for the next attempt.
    is_waiting: bool,
    /// Set if the time of the next attempt has come when there was no client.
    is_overdue: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct RunRequest {
    automation: String,
    id: String,
    run: String,
    /// Time of the request, in milliseconds since 1970.
    at: i64,
}

/// Returns what clients may do with automations; `None` if they are off.
pub(super) fn capabilities(ledger: &Ledger) -> Option<AutomationCapabilities> {
    let list = ledger.channels.automation_list()?;
    let minutes = i64::from(list.settings.rules.min_interval_minutes.get());
    Some(AutomationCapabilities {
        create: Some(AutomationCreateCapability {}),
        schedules: Some(AutomationScheduleCapabilities {
            min_interval_minutes: (minutes > 1).then_some(minutes),
        }),
        run_cancellation: Some(AutomationRunCancellationCapability {}),
        run_history_limit: i64::try_from(ENDED_RUNS_MAX).ok(),
        customizations: None,
    })
}

/// Carries out what a client asks of the list of automations.
pub(super) fn change_list(
    ledger: &mut Ledger,
    agents: &AgentRegistry,
    step: &mut Step<'_>,
    action: StateAction,
    origin: ActionOrigin,
) -> Result<Verdict, Refusal> {
    let Some(list) = ledger.channels.automation_list_mut() else {
        return Ok(Verdict::Unchanged);
    };
    let now = now(step);
    let is_update = matches!(action, StateAction::AutomationUpdateRequested(_));
    match action {
        StateAction::AutomationCreateRequested(asked) => {
            definitions::check_uri(&asked.resource)?;
            let definition = definitions::checked(asked.definition, agents, &list.settings, now)?;
            match list.get(&asked.resource) {
                Some(known) if known.definition == definition => return Ok(Verdict::Unchanged),
                Some(_) => return Err(refuse("another automation has this URI already")),
                None if list.entries().len() >= AUTOMATIONS_MAX => {
                    return Err(refuse(format_args!(
                        "there are {AUTOMATIONS_MAX} automations already, the maximum"
                    )))
                }
                None => {}
            }
            let entry = AutomationEntry {
                resource: asked.resource,
                run_count: definitions::runs_max(&definition).map(|_| 0),
                definition,
                next_run_at: None,
                runs: Vec::new(),
                runs_next_cursor: None,
                operations: vec![
                    AutomationOperation::Update,
                    AutomationOperation::Remove,
                    AutomationOperation::Run,
                ],
                customizations: None,
                created_at: step.timestamp(),
                modified_at: step.timestamp(),
                meta: None,
            };
            schedules::follow_triggers(&mut list.bookkeeping, &entry, None, now);
            set_entry(ledger, step, entry);
        }
        StateAction::AutomationUpdateRequested(asked) => {
            let Some(before) = list.get(&asked.resource) else {
                return Err(refuse(format_args!("there is no automation `{}`", asked.resource)));
            };
            let changed = definitions::patched(before.definition.clone(), asked.changes);
            // What is not valid any more, since an agent or a rule of the operator has changed, can
            // be disabled.
            let disabled = AutomationDefinition { enabled: false, ..before.definition.clone() };
            let definition = match changed == disabled {
                true => disabled,
                false => definitions::checked(changed, agents, &list.settings, now)?,
            };
            if definition == before.definition {
                return Ok(Verdict::Unchanged);
            }
            let mut entry = AutomationEntry { definition, modified_at: step.timestamp(), ..before.clone() };
            let is_enabled_now = entry.definition.enabled && !before.definition.enabled;
            let count = before.run_count.filter(|_| !is_enabled_now);
            entry.run_count = definitions::runs_max(&entry.definition).map(|_| count.unwrap_or(0));
            let before = Some(before.definition.clone()).filter(|_| !is_enabled_now);
            schedules::follow_triggers(&mut list.bookkeeping, &entry, before.as_ref(), now);
            set_entry(ledger, step, entry);
        }
        StateAction::AutomationRemoved(removed) => {
            let Some(entry) = list.get(&removed.resource) else { return Ok(Verdict::Unchanged) };
            if entry.runs.iter().any(|run| runs::is_active(&run.lifecycle)) {
                return Err(refuse("a run of this automation is active: cancel it first"));
            }
            let runs: Vec<String> = entry.runs.iter().map(|run| run.resource.clone()).collect();
            list.bookkeeping.handled_until.remove(&removed.resource);
            list.bookkeeping.scheduled_runs.remove(&removed.resource);
            list.bookkeeping.requests.retain(|request| request.automation != removed.resource);
            for run in runs {
                runs::remove_run(ledger, step, &run);
            }
            let action = StateAction::AutomationRemoved(removed);
            ledger.sequence(step, AutomationsKey::LIST, action, Some(origin));
            schedules::arm(ledger, step, false);
            return Ok(Verdict::Done);
        }
        _ => return Ok(Verdict::Unchanged),
    }
    // A changed condition may disable the automation now.
    schedules::arm(ledger, step, is_update);
    // The list changes by `automation/set`; the request itself is acknowledged.
    Ok(Verdict::Unchanged)
}

/// Sends an automation as it is now to everybody.
fn set_entry(ledger: &mut Ledger, step: &mut Step<'_>, mut entry: AutomationEntry) {
    let Some(list) = ledger.channels.automation_list() else { return };
    entry.next_run_at = schedules::next_run(list, &entry).map(|next| format!("{next:.3}"));
    let action = StateAction::AutomationSet(Box::new(AutomationSetAction { automation: entry }));
    ledger.sequence(step, AutomationsKey::LIST, action, None);
}

/// Saves the list although no action has changed it.
fn note_bookkeeping(ledger: &mut Ledger) {
    ledger.mark_dirty(AutomationsKey::LIST.into());
}

fn refuse(why: impl std::fmt::Display) -> Refusal {
    Refusal::Automation(why.to_string())
}

fn now(step: &Step<'_>) -> Timestamp {
    Timestamp::from_millisecond(step.now.unix_ms).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns whether runs may begin: with a client, and where the host goes on without one.
fn has_reason_to_run(ledger: &Ledger, list: &Automations) -> bool {
    list.settings.stays || ledger.presence.has_clients()
}

/// Returns whether runs go on without clients.
pub(super) fn go_on_without_clients(ledger: &Ledger) -> bool {
    ledger.channels.automation_list().is_some_and(|list| list.settings.stays)
}

/// Returns whether the turn of this chat is that of a run.
pub(super) fn is_of_run(ledger: &Ledger, chat: ChatKey) -> bool {
    let list = ledger.channels.automation_list();
    list.is_some_and(|list| list.bookkeeping.active.contains_key(&chat))
}

/// Returns the time after which no schedule of a definition applies.
fn end_date(conditions: Option<&Vec<AutomationDisableCondition>>) -> Option<Timestamp> {
    conditions.into_iter().flatten().find_map(|condition| match condition {
        AutomationDisableCondition::AfterDate(after) => definitions::date_of(&after.date),
        AutomationDisableCondition::AfterRuns(_) => None,
    })
}

fn remove_row(step: &mut Step<'_>, run: AutomationRunKey) {
    step.emit(Output::Record(Record::ChannelRemoved(run.into())));
}
