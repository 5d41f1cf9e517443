//! Schedules of automations.
//!
//! Owns: when an occurrence is due, what becomes of missed ones, the conditions under which an
//! automation disables itself, and the timer.
//! Never: reads a clock: time is that of the step, compared at least every 30 seconds, because the
//! machine may sleep and its clock may be set.

use std::collections::BTreeMap;
use std::time::Duration;

use ahp_types::state::{
    AutomationDefinition, AutomationEntry, AutomationMisfirePolicy, AutomationRunOrigin,
    AutomationScheduleTrigger, AutomationTrigger, AutomationTriggeredRunOrigin,
};
use jiff::{SignedDuration, Timestamp};

use super::cron::Cron;
use super::definitions::{cron_of, runs_max};
use super::{end_date, has_reason_to_run, now, runs, set_entry, Bookkeeping, HostPhase};
use crate::host::channels::Automations;
use crate::host::effects::{Output, Timer};
use crate::host::ledger::Ledger;
use crate::host::refusal::error_info;
use crate::host::Step;

/// Longest time between two comparisons with the clock, and that before the first scheduled run.
pub(super) const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Delay from which an occurrence counts as missed.
const MISSED: SignedDuration = SignedDuration::from_secs(60);

/// Time by which a clock must have been set back for schedules to begin anew: it was wrong before.
const SET_BACK: SignedDuration = SignedDuration::from_hours(24);

/// Number of runs that have not ended, of all automations, from which on no scheduled run begins.
/// Requested runs are not limited: of each automation, one is active.
const ACTIVE_MAX: usize = 4;

/// An hour, in milliseconds.
const HOUR_MS: u64 = 3_600_000;

/// Maximum number of scheduled runs of an automation within an hour.
const HOURLY_MAX: usize = 20;

fn schedules(definition: &AutomationDefinition) -> impl Iterator<Item = &AutomationScheduleTrigger> {
    definition.triggers.iter().filter_map(|trigger| match trigger {
        AutomationTrigger::Schedule(trigger) => Some(trigger),
        AutomationTrigger::Event(_) => None,
    })
}

/// Starts the triggers of an automation now, except for those that it had before.
pub(super) fn follow_triggers(
    bookkeeping: &mut Bookkeeping,
    entry: &AutomationEntry,
    before: Option<&AutomationDefinition>,
    now: Timestamp,
) {
    let known = bookkeeping.handled_until.remove(&entry.resource).unwrap_or_default();
    let schedule_before =
        |id: &str| before.and_then(|before| schedules(before).find(|it| it.id == id)).map(|it| &it.schedule);
    let times = schedules(&entry.definition).map(|trigger| {
        let stays = schedule_before(&trigger.id) == Some(&trigger.schedule);
        let handled = known.get(&trigger.id).copied().filter(|_| stays);
        (trigger.id.clone(), handled.unwrap_or(now.as_millisecond()))
    });
    bookkeeping.handled_until.insert(entry.resource.clone(), times.collect());
}

/// Returns the time up to which a trigger's occurrences are handled, with its expression.
fn position(
    list: &Automations,
    automation: &str,
    trigger: &AutomationScheduleTrigger,
) -> Option<(Cron, Timestamp)> {
    let handled = list.bookkeeping.handled_until.get(automation)?.get(&trigger.id)?;
    let cron = cron_of(&trigger.schedule, &list.settings.zones).ok()?;
    Some((cron, Timestamp::from_millisecond(*handled).ok()?))
}

/// Returns the earliest occurrence that is not handled.
pub(super) fn next_run(list: &Automations, entry: &AutomationEntry) -> Option<Timestamp> {
    if !entry.definition.enabled {
        return None;
    }
    let end = end_date(entry.definition.disable_conditions.as_ref());
    let next = |trigger| {
        let (cron, handled) = position(list, &entry.resource, trigger)?;
        cron.next_after(handled).filter(|next| end.is_none_or(|end| *next <= end))
    };
    schedules(&entry.definition).filter_map(next).min()
}

/// Returns the latest occurrence up to `now`, of which there is one after `handled`.
fn latest(cron: &Cron, handled: Timestamp, first: Timestamp, now: Timestamp) -> Timestamp {
    // The search begins close to now: years of minutes may have been missed.
    let hours = [1, 24, 31 * 24, 400 * 24];
    let from = hours.into_iter().find_map(|hours| {
        let from = now.checked_sub(SignedDuration::from_hours(hours)).ok()?.max(handled);
        cron.next_after(from).filter(|next| *next <= now)
    });
    let following = |time: &Timestamp| cron.next_after(*time).filter(|next| *next <= now);
    std::iter::successors(Some(from.unwrap_or(first)), following).last().unwrap_or(first)
}

/// Lets scheduled runs start after the first interval.
pub(super) fn settle_later(bookkeeping: &mut Bookkeeping, step: &mut Step<'_>) {
    bookkeeping.phase = HostPhase::Settling;
    bookkeeping.set_timer(step, CLOCK_CHECK_INTERVAL);
}

/// Begins the runs that are due, and sets the timer for the next ones.
pub(in crate::host) fn timer_expired(ledger: &mut Ledger, step: &mut Step<'_>, number: u64) {
    let Some(list) = ledger.channels.automation_list_mut() else { return };
    if list.bookkeeping.timer != number || !list.bookkeeping.phase.is_awake() {
        return;
    }
    if std::mem::replace(&mut list.bookkeeping.phase, HostPhase::Settled) == HostPhase::Settling {
        list.bookkeeping.has_left_runs = true;
        correct_next_runs(ledger, step);
    }
    let list = ledger.channels.automation_list().filter(|list| has_reason_to_run(ledger, list));
    // Nothing may run that cannot be recorded.
    if let Some(list) = list.filter(|_| ledger.failing().is_none()) {
        // The one that has waited longest is first; of several, that with the fewest runs.
        let scheduled = &list.bookkeeping.scheduled_runs;
        let mut all: Vec<&AutomationEntry> = list.entries().iter().collect();
        all.sort_by_key(|it| (stored_next_run(it), scheduled.get(&it.resource).map_or(0, Vec::len)));
        let all: Vec<String> = all.into_iter().map(|entry| entry.resource.clone()).collect();
        let has_left = ledger
            .channels
            .automation_list_mut()
            .is_some_and(|list| std::mem::take(&mut list.bookkeeping.has_left_runs));
        if has_left {
            runs::start_left_runs(ledger, step);
        }
        for automation in all {
            start_due_run(ledger, step, &automation);
        }
    }
    arm(ledger, step, false);
}

/// Computes anew what is stored, since the rules of a time zone may have changed meanwhile.
fn correct_next_runs(ledger: &mut Ledger, step: &mut Step<'_>) {
    let Some(list) = ledger.channels.automation_list() else { return };
    let is_wrong = |entry: &&AutomationEntry| next_run(list, entry) != stored_next_run(entry);
    let wrong: Vec<AutomationEntry> = list.entries().iter().filter(is_wrong).cloned().collect();
    for entry in list.entries().iter().filter(|entry| entry.definition.enabled) {
        let failed =
            |trigger: &AutomationScheduleTrigger| cron_of(&trigger.schedule, &list.settings.zones).err();
        if let Some(why) = schedules(&entry.definition).find_map(failed) {
            let automation = &entry.resource;
            tracing::warn!(
                automation,
                "a schedule of this automation has lost its meaning ({why}): it begins no run"
            );
        }
    }
    wrong.into_iter().for_each(|entry| set_entry(ledger, step, entry));
}

/// Returns the earliest occurrence as it is stored: computing it may take long.
fn stored_next_run(entry: &AutomationEntry) -> Option<Timestamp> {
    entry.next_run_at.as_ref().filter(|_| entry.definition.enabled)?.parse().ok()
}

/// Begins the schedules of an automation anew if the clock was set back far, and returns whether
/// it was.
fn restart_if_set_back(bookkeeping: &mut Bookkeeping, automation: &str, now: Timestamp) -> bool {
    let times = bookkeeping.handled_until.get_mut(automation).into_iter().flat_map(BTreeMap::values_mut);
    let mut has_changed = false;
    for handled in times {
        if Timestamp::from_millisecond(*handled).is_ok_and(|handled| handled.duration_since(now) > SET_BACK) {
            *handled = now.as_millisecond();
            has_changed = true;
        }
    }
    has_changed
}

/// Occurrences of a trigger that are due and have one run together.
struct Occurrence {
    first: Timestamp,
    latest: Timestamp,
    trigger: AutomationScheduleTrigger,
}

impl Occurrence {
    /// Returns whether the first one was missed.
    fn is_missed(&self, now: Timestamp) -> bool {
        now.duration_since(self.first) >= MISSED
    }
}

/// Returns what of each trigger is due at this time and is not handled.
fn due_occurrences(list: &Automations, entry: &AutomationEntry, until: Timestamp) -> Vec<Occurrence> {
    let due = schedules(&entry.definition).filter_map(|trigger| {
        let (cron, handled) = position(list, &entry.resource, trigger)?;
        let first = cron.next_after(handled).filter(|first| *first <= until)?;
        let latest = latest(&cron, handled, first, until);
        Some(Occurrence { first, latest, trigger: trigger.clone() })
    });
    due.collect()
}

impl Bookkeeping {
    /// Sets the timer of schedules, and makes earlier ones void.
    fn set_timer(&mut self, step: &mut Step<'_>, delay: Duration) {
        self.timer += 1;
        step.emit(Output::Timer(Timer::Automations(self.timer), delay));
    }

    /// Notes that occurrences are handled, and returns the origin of their run.
    fn handle(&mut self, automation: &str, due: &Occurrence, now: Timestamp) -> AutomationRunOrigin {
        let handled = self.handled_until.entry(automation.to_owned()).or_default();
        handled.insert(due.trigger.id.clone(), due.latest.as_millisecond());
        AutomationRunOrigin::Trigger(AutomationTriggeredRunOrigin {
            trigger_id: due.trigger.id.clone(),
            scheduled_for: Some(format!("{:.3}", due.latest)),
            catch_up: due.is_missed(now).then_some(true),
            event: None,
        })
    }

    /// Counts a scheduled run, and returns whether the automation may have one more within an hour.
    fn count_scheduled_run(&mut self, automation: &str, now: Timestamp) -> bool {
        let now = now.as_millisecond();
        let times = self.scheduled_runs.entry(automation.to_owned()).or_default();
        // The clock may have been set back since.
        times.retain(|time| now.abs_diff(*time) < HOUR_MS);
        let may_begin = times.len() < HOURLY_MAX;
        if may_begin {
            times.push(now);
        }
        may_begin
    }
}

/// Begins the earliest run of an automation that is due, or disables the automation.
fn start_due_run(ledger: &mut Ledger, step: &mut Step<'_>, automation: &str) {
    let now = now(step);
    let is_full = runs::active_runs(ledger) >= ACTIVE_MAX;
    let Some(list) = ledger.channels.automation_list_mut() else { return };
    let Some(mut entry) = list.get(automation).filter(|entry| entry.definition.enabled).cloned() else {
        return;
    };
    if restart_if_set_back(&mut list.bookkeeping, automation, now) {
        return set_entry(ledger, step, entry);
    }
    let max = runs_max(&entry.definition);
    let end = end_date(entry.definition.disable_conditions.as_ref()).filter(|end| *end <= now);
    if end.is_some() || max.is_some_and(|max| entry.run_count.unwrap_or(0) >= max) {
        entry.definition.enabled = false;
        entry.modified_at = step.timestamp();
        set_entry(ledger, step, entry);
        return skip_due(ledger, step, automation, end.unwrap_or(now));
    }
    if stored_next_run(&entry).is_none_or(|next| next > now) {
        return;
    }
    let due = due_occurrences(list, &entry, now).into_iter().min_by_key(|due| due.first);
    let Some(due) = due else { return };
    // It waits for the end of the run.
    if is_full || entry.runs.iter().any(|run| runs::is_active(&run.lifecycle)) {
        return;
    }
    if due.is_missed(now) && due.trigger.misfire_policy == Some(AutomationMisfirePolicy::Skip) {
        let missed = due_occurrences(list, &entry, now.checked_sub(MISSED).unwrap_or(now));
        let missed = missed.into_iter().find(|missed| missed.trigger.id == due.trigger.id).unwrap_or(due);
        let origin = list.bookkeeping.handle(automation, &missed, now);
        runs::record_skipped(ledger, step, entry, origin, Ok(()));
        // The latest one may be in time.
        return start_due_run(ledger, step, automation);
    }
    let origin = list.bookkeeping.handle(automation, &due, now);
    if !list.bookkeeping.count_scheduled_run(automation, now) {
        let why =
            format!("this automation has begun {HOURLY_MAX} scheduled runs within an hour, the maximum");
        let error = error_info("tooManyRuns".to_owned(), &why);
        return runs::record_skipped(ledger, step, entry, origin, Err(error));
    }
    if let Some(max) = max {
        let count = entry.run_count.unwrap_or(0) + 1;
        entry.run_count = Some(count);
        if count >= max {
            entry.definition.enabled = false;
            entry.modified_at = step.timestamp();
        }
    }
    let is_last = !entry.definition.enabled;
    runs::record_run(ledger, step, entry, origin);
    if is_last {
        skip_due(ledger, step, automation, now);
    }
}

/// Records as skipped what of a disabled automation was due until this time: it has waited for
/// another run, or for a host.
fn skip_due(ledger: &mut Ledger, step: &mut Step<'_>, automation: &str, until: Timestamp) {
    let now = now(step);
    let Some(list) = ledger.channels.automation_list_mut() else { return };
    let Some(entry) = list.get(automation).cloned() else { return };
    let due = due_occurrences(list, &entry, until);
    let origins: Vec<_> = due.iter().map(|due| list.bookkeeping.handle(automation, due, now)).collect();
    for origin in origins {
        let entry = ledger.channels.automation_list().and_then(|list| list.get(automation)).cloned();
        if let Some(entry) = entry {
            runs::record_skipped(ledger, step, entry, origin, Ok(()));
        }
    }
}

/// Sets the timer for the next occurrence or end date, if there is one; for now if `at_once`.
pub(in crate::host) fn arm(ledger: &mut Ledger, step: &mut Step<'_>, at_once: bool) {
    let now = now(step);
    let list = ledger.channels.automation_list_mut();
    let Some(list) = list.filter(|list| list.bookkeeping.phase == HostPhase::Settled) else { return };
    let enabled = list.entries().iter().filter(|entry| entry.definition.enabled);
    let next = enabled.flat_map(|entry| {
        let date = end_date(entry.definition.disable_conditions.as_ref());
        [stored_next_run(entry), date]
    });
    let next: Vec<_> = next.flatten().collect();
    if next.is_empty() && !list.bookkeeping.has_left_runs {
        return;
    }
    // What is due and has not begun waits for something, and does not delay what is due later.
    let ahead = next.into_iter().filter(|time| *time > now).min();
    let delay = match ahead.map(|time| Duration::try_from(time.duration_since(now))) {
        _ if at_once => Duration::ZERO,
        Some(Ok(delay)) => delay.min(CLOCK_CHECK_INTERVAL),
        _ => CLOCK_CHECK_INTERVAL,
    };
    list.bookkeeping.set_timer(step, delay);
}
