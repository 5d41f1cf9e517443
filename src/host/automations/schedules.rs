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
use super::{end_date, now, runs, set_entry, Bookkeeping};
use crate::host::channels::Automations;
use crate::host::effects::{AutomationsKey, Output, Timer};
use crate::host::ledger::Ledger;
use crate::host::refusal::error_info;
use crate::host::Step;

/// Longest time between two looks at the clock.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Delay from which an occurrence counts as missed.
const MISSED: SignedDuration = SignedDuration::from_secs(60);

/// Time by which a clock must have been set back for schedules to begin anew: it was wrong before.
const SET_BACK: SignedDuration = SignedDuration::from_hours(24);

/// Number of runs that have not ended, of all automations, from which on no scheduled run begins.
/// Requested runs are not limited: of each automation, one is active.
const ACTIVE_MAX: usize = 4;

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
    let next = |trigger| {
        let (cron, handled) = position(list, &entry.resource, trigger)?;
        cron.next_after(handled)
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

/// Begins the runs that are due, and sets the timer for the next ones.
pub(in crate::host) fn timer_expired(ledger: &mut Ledger, step: &mut Step<'_>, number: u64) {
    let list = ledger.channels.automations.get_mut(&AutomationsKey::LIST);
    let Some(list) = list.filter(|list| list.bookkeeping.awake && list.bookkeeping.timer == number) else {
        return;
    };
    let all: Vec<String> = list.entries().iter().map(|entry| entry.resource.clone()).collect();
    if !std::mem::replace(&mut list.bookkeeping.settled, true) {
        correct_next_runs(ledger, step);
        runs::begin_left(ledger, step);
    }
    // Nothing may run that cannot be recorded.
    if ledger.failing().is_none() {
        for automation in all {
            look_at(ledger, step, &automation);
        }
    }
    arm(ledger, step, false);
}

/// Computes anew what is stored, since the rules of a time zone may have changed meanwhile.
fn correct_next_runs(ledger: &mut Ledger, step: &mut Step<'_>) {
    let Some(list) = ledger.channels.automations.get(&AutomationsKey::LIST) else { return };
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
fn begin_anew(bookkeeping: &mut Bookkeeping, automation: &str, now: Timestamp) -> bool {
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

fn look_at(ledger: &mut Ledger, step: &mut Step<'_>, automation: &str) {
    let now = now(step);
    let is_full = runs::active_runs(ledger) >= ACTIVE_MAX;
    let Some(list) = ledger.channels.automations.get_mut(&AutomationsKey::LIST) else { return };
    let Some(mut entry) = list.get(automation).filter(|entry| entry.definition.enabled).cloned() else {
        return;
    };
    if begin_anew(&mut list.bookkeeping, automation, now) {
        return set_entry(ledger, step, entry);
    }
    let max = runs_max(&entry.definition);
    let is_over = end_date(entry.definition.disable_conditions.as_ref()).is_some_and(|date| date <= now);
    if is_over || max.is_some_and(|max| entry.run_count.unwrap_or(0) >= max) {
        entry.definition.enabled = false;
        entry.modified_at = step.timestamp();
        return set_entry(ledger, step, entry);
    }
    if stored_next_run(&entry).is_none_or(|next| next > now) {
        return;
    }
    let due = schedules(&entry.definition).filter_map(|trigger| {
        let (cron, handled) = position(&*list, automation, trigger)?;
        let first = cron.next_after(handled).filter(|first| *first <= now)?;
        Some((first, latest(&cron, handled, first, now), trigger))
    });
    let Some((_, scheduled, trigger)) = due.min_by_key(|(first, ..)| *first) else { return };
    // It waits for the end of the run.
    if is_full || entry.runs.iter().any(|run| runs::is_active(&run.lifecycle)) {
        return;
    }
    let trigger = trigger.clone();
    let times = list.bookkeeping.handled_until.entry(automation.to_owned()).or_default();
    times.insert(trigger.id.clone(), scheduled.as_millisecond());
    let is_missed = now.duration_since(scheduled) >= MISSED;
    let origin = AutomationRunOrigin::Trigger(AutomationTriggeredRunOrigin {
        trigger_id: trigger.id,
        scheduled_for: Some(format!("{scheduled:.3}")),
        catch_up: is_missed.then_some(true),
        event: None,
    });
    if is_missed && trigger.misfire_policy == Some(AutomationMisfirePolicy::Skip) {
        return runs::record_skipped(ledger, step, entry, origin, Ok(()));
    }
    if runs_within_an_hour(&entry, now) >= HOURLY_MAX {
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
    runs::record(ledger, step, entry, origin);
}

fn runs_within_an_hour(entry: &AutomationEntry, now: Timestamp) -> usize {
    let is_recent = |created_at: &str| {
        let created = created_at.parse::<Timestamp>();
        // The clock may have been set back since.
        created.is_ok_and(|created| now.duration_since(created).abs() < SignedDuration::from_hours(1))
    };
    let scheduled = entry.runs.iter().filter(|run| matches!(run.origin, AutomationRunOrigin::Trigger(_)));
    let begun = scheduled.filter(|run| run.meta.is_none());
    begun.filter(|run| is_recent(runs::created_at(&run.lifecycle))).count()
}

/// Sets the timer for the next occurrence or end date, if there is one; for now if `at_once`.
pub(in crate::host) fn arm(ledger: &mut Ledger, step: &mut Step<'_>, at_once: bool) {
    let now = now(step);
    let list = ledger.channels.automations.get_mut(&AutomationsKey::LIST);
    let Some(list) = list.filter(|list| list.bookkeeping.awake) else { return };
    let enabled = list.entries().iter().filter(|entry| entry.definition.enabled);
    let next = enabled.flat_map(|entry| {
        let date = end_date(entry.definition.disable_conditions.as_ref());
        [stored_next_run(entry), date]
    });
    let left = || ledger.channels.automation_runs.values().any(|run| runs::is_active(&run.state.lifecycle));
    let next: Vec<_> = next.flatten().collect();
    if next.is_empty() && (list.bookkeeping.settled || !left()) {
        return;
    }
    // What is due and has not begun waits for something, and does not delay what is due later.
    let ahead = next.into_iter().filter(|time| *time > now).min();
    let delay = match ahead.map(|time| Duration::try_from(time.duration_since(now))) {
        // A process that lives for less time, as in a shell's pipe, sets nothing off.
        _ if !list.bookkeeping.settled => LOOK_EVERY,
        _ if at_once => Duration::ZERO,
        Some(Ok(delay)) => delay.min(LOOK_EVERY),
        _ => LOOK_EVERY,
    };
    list.bookkeeping.timer += 1;
    step.emit(Output::Timer(Timer::Automations(list.bookkeeping.timer), delay));
}
