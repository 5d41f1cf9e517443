//! Automations with a ledger and no other owner.
//!
//! Owns: a clock that the tests move, and a store that outlives the ledger.
//! Never: creates a session.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ahp_types::state::{AutomationRunLifecycle, AutomationRunOrigin};
use serde_json::{json, Value};

use super::*;
use crate::host::effects::{AutomationRunKey, ChannelRow, Now, Timer};
use crate::host::testing::{agent, config, origin, registry, step_at_time, ME, MY_ID};
use crate::host::{Config, Start};
use runs::Outcome;
use schedules::CLOCK_CHECK_INTERVAL;

const AUTOMATION: &str = "ahp-automation:/a";

/// A ledger with its clock, and what the host was asked for.
struct Bench {
    ledger: Ledger,
    now: Timestamp,
    /// Runs that were to begin, in their order.
    begun: Vec<AutomationRunKey>,
    /// Latest timer of the schedules, with its time.
    timer: Option<(u64, Timestamp)>,
    /// Stored rows.
    rows: BTreeMap<ChannelId, ChannelRow>,
    ids: u64,
    zones: TwoZones,
    /// Set if the host goes on without clients; there is none.
    stays: bool,
}

use crate::host::effects::ChannelId;

struct Counted<'a>(&'a mut u64);

impl crate::host::effects::Ids for Counted<'_> {
    fn fresh(&mut self) -> String {
        *self.0 += 1;
        self.0.to_string()
    }
}

/// Two zones, and the names that were looked up.
#[derive(Debug, Clone, Default)]
struct TwoZones(Arc<Mutex<BTreeSet<String>>>);

impl ZoneDatabase for TwoZones {
    fn zone(&self, name: &str) -> Option<TimeZone> {
        self.0.lock().unwrap().insert(name.to_owned());
        ["UTC", "Europe/Berlin"].contains(&name).then(|| TimeZone::get(name).unwrap())
    }
}

impl TwoZones {
    /// Returns the names that were looked up since the last call.
    fn looked_up(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter().collect()
    }
}

fn ledger_of(rows: Vec<ChannelRow>, zones: &TwoZones, stays: bool) -> Ledger {
    let last_key = rows.iter().map(|row| row.id.key).max().unwrap_or(0);
    let rules = serde_json::from_value(json!({})).unwrap();
    let zones = TimeZones::new(zones.clone());
    let start = Start { channels: rows, last_key, continues: true, ..Start::default() };
    Ledger::at_start(&Config {
        automations: Some(AutomationSettings { rules, zones, stays }),
        start,
        ..config()
    })
}

impl Bench {
    /// One whose scheduled runs may start from this time on.
    fn at(time: &str) -> Self {
        let zones = TwoZones::default();
        let mut bench = Self {
            ledger: ledger_of(Vec::new(), &zones, true),
            now: time.parse().unwrap(),
            begun: Vec::new(),
            timer: None,
            rows: BTreeMap::new(),
            ids: 0,
            zones,
            stays: true,
        };
        let settled = bench.now;
        bench.now = settled - CLOCK_CHECK_INTERVAL;
        bench.wake();
        bench.look(settled);
        bench.timer = None;
        bench
    }

    /// Lets the first client shake hands.
    fn wake(&mut self) {
        self.step(runs::wake);
        assert_eq!(self.timer.unwrap().1, self.now + CLOCK_CHECK_INTERVAL);
    }

    fn step<T>(&mut self, act: impl FnOnce(&mut Ledger, &mut Step<'_>) -> T) -> T {
        let now = Now { unix_ms: self.now.as_millisecond(), monotonic_ms: 0 };
        let (ledger, ids) = (&mut self.ledger, &mut self.ids);
        let mut result = None;
        let (outputs, _) = step_at_time(now, |step| {
            let mut counted = Counted(ids);
            let mut step = Step {
                now: step.now,
                ids: &mut counted,
                out: step.out,
                past: None,
                findings: Default::default(),
                refused_watches: Default::default(),
                facts: Default::default(),
            };
            result = Some(act(ledger, &mut step));
            for id in ledger.take_dirty() {
                match id.automation_run() {
                    Some(key) => ledger.channels.automation_runs[&key].save(&mut step, key),
                    None if id == AutomationsKey::LIST.into() => {
                        ledger.channels.automations[&AutomationsKey::LIST].save(&mut step)
                    }
                    None => {}
                }
            }
        });
        for output in outputs {
            match output {
                Output::CheckDirectories(run, _) => self.begun.push(run),
                Output::Timer(Timer::Automations(number), delay) => {
                    assert!(delay <= Duration::from_secs(30), "{delay:?}");
                    self.timer = Some((number, self.now + delay));
                }
                Output::Record(Record::Channel(row)) => drop(self.rows.insert(row.id, row)),
                Output::Record(Record::ChannelRemoved(id)) => drop(self.rows.remove(&id)),
                _ => {}
            }
        }
        result.unwrap()
    }

    fn ask(&mut self, action: Value) -> Result<Verdict, Refusal> {
        let action = serde_json::from_value(action).unwrap();
        let agents = registry(&[agent("script", "script")]);
        self.step(|ledger, step| change_list(ledger, &agents, step, action, origin()))
    }

    fn create(&mut self, definition: Value) -> Result<Verdict, Refusal> {
        self.ask(
            json!({ "type": "automation/createRequested", "resource": AUTOMATION, "definition": definition }),
        )
    }

    fn update(&mut self, changes: Value) {
        let asked =
            json!({ "type": "automation/updateRequested", "resource": AUTOMATION, "changes": changes });
        self.ask(asked).unwrap();
    }

    fn entry(&self) -> &AutomationEntry {
        self.ledger.channels.automations[&AutomationsKey::LIST].get(AUTOMATION).unwrap()
    }

    fn next(&self) -> Option<Timestamp> {
        self.entry().next_run_at.as_ref().map(|next| next.parse().unwrap())
    }

    /// Lets the latest timer expire at this time.
    fn look(&mut self, time: Timestamp) {
        self.now = time;
        let (number, _) = self.timer.unwrap();
        self.step(|ledger, step| schedules::timer_expired(ledger, step, number));
    }

    fn lifecycle(&self, run: AutomationRunKey) -> &AutomationRunLifecycle {
        &self.ledger.channels.automation_runs[&run].state.lifecycle
    }

    fn begin(&mut self, run: AutomationRunKey) {
        self.step(|ledger, step| runs::begin(ledger, step, run, "ahp-session:/s", ChatKey(run.0)));
    }

    fn complete(&mut self, run: AutomationRunKey) {
        self.begin(run);
        self.step(|ledger, step| runs::end(ledger, step, run, Outcome::Completed(None)));
    }

    fn request(&mut self, id: &str) -> String {
        let params = json!({ "channel": "ahp-automations://", "automation": AUTOMATION, "requestId": id });
        let params = serde_json::from_value(params).unwrap();
        self.step(|ledger, step| runs::request_run(ledger, step, params)).unwrap()
    }

    /// Ends the process and starts another one on the same store.
    fn restart(&mut self) {
        self.begun.clear();
        self.timer = None;
        self.ledger = ledger_of(self.rows.values().cloned().collect(), &self.zones, self.stays);
        self.step(runs::recover);
        self.wake();
        assert!(self.begun.is_empty(), "nothing begins at once");
        self.look(self.timer.unwrap().1);
    }
}

fn schedule(expression: &str, zone: &str) -> Value {
    json!({ "kind": "schedule", "id": "t", "schedule": { "expression": expression, "timeZone": zone } })
}

fn definition(triggers: &[Value]) -> Value {
    json!({
        "title": "Title",
        "message": { "text": "Hello", "origin": { "kind": "automation" } },
        "session": {},
        "enabled": true,
        "triggers": triggers,
    })
}

fn with(mut definition: Value, member: &str, value: Value) -> Value {
    definition[member] = value;
    definition
}

#[test]
fn zones_that_no_definition_names_are_not_read() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    assert!(bench.zones.looked_up().is_empty());
    let unknown = bench.create(definition(&[schedule("0 3 * * *", "Mars/Olympus")])).err().unwrap();
    assert_eq!(unknown.to_string(), "`Mars/Olympus` is no known time zone");
    assert_eq!(bench.zones.looked_up(), ["Mars/Olympus"]);
    bench.create(definition(&[schedule("0 3 * * *", "Europe/Berlin")])).unwrap();
    bench.restart();
    assert_eq!(bench.zones.looked_up(), ["Europe/Berlin"]);
}

#[test]
fn invalid_definitions_are_refused() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    let good = definition(&[schedule("0 3 * * *", "Europe/Berlin")]);
    let event = json!({ "kind": "event", "id": "e", "type": "push", "title": "Push", "events": [] });
    let runs = json!({ "kind": "afterRuns", "max": 1 });
    let plugin = json!({ "type": "plugin", "id": "p", "uri": "virtual:/p", "name": "p" });
    let chat = json!([{ "type": "chat", "label": "c", "resource": "ahp-chat:/c" }]);
    let misspelt = with(schedule("0 3 * * *", "UTC"), "misfirePolicy", json!("Skip"));
    for bad in [
        with(good.clone(), "title", json!("")),
        with(good.clone(), "title", json!("x".repeat(70 << 10))),
        with(good.clone(), "message", json!({ "text": "Hello", "origin": { "kind": "user" } })),
        with(
            good.clone(),
            "message",
            json!({ "text": "Hello", "origin": { "kind": "automation" }, "attachments": chat }),
        ),
        with(good.clone(), "session", json!({ "provider": "absent" })),
        with(good.clone(), "session", json!({ "customizations": [plugin] })),
        with(good.clone(), "triggers", json!([event])),
        with(good.clone(), "triggers", json!([schedule("0 3 * *", "UTC")])),
        with(good.clone(), "triggers", json!([schedule("0 3 * * *", "Mars/Olympus")])),
        with(good.clone(), "triggers", json!([schedule("0 3 * * *", "UTC"), schedule("0 4 * * *", "UTC")])),
        with(good.clone(), "triggers", json!(vec![schedule("0 3 * * *", "UTC"); 17])),
        with(good.clone(), "triggers", json!([misspelt])),
        with(good.clone(), "disableConditions", json!([{ "kind": "afterRuns", "max": 0 }])),
        with(good.clone(), "disableConditions", json!([runs, runs])),
        with(good.clone(), "disableConditions", json!([{ "kind": "afterDate", "date": "tomorrow" }])),
    ] {
        assert!(bench.create(bad.clone()).is_err(), "{bad}");
    }
    assert_eq!(bench.ledger.head(), 0);
    bench.create(good.clone()).unwrap();
    assert_eq!(bench.ledger.head(), 1);
    // The same definition again changes nothing; another one under this URI is refused.
    bench.create(good.clone()).unwrap();
    assert!(bench.create(with(good, "title", json!("Other"))).is_err());
    assert_eq!(bench.ledger.head(), 1);
}

#[test]
fn automation_that_is_not_valid_any_more_can_be_disabled() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[schedule("* * * * *", "UTC")])).unwrap();
    let list = bench.ledger.channels.automation_list_mut().unwrap();
    list.settings.rules.min_interval_minutes = NonZeroU32::new(30).unwrap();
    let change = |changes: Value| json!({ "type": "automation/updateRequested", "resource": AUTOMATION, "changes": changes });
    assert!(bench.ask(change(json!({ "title": "Other" }))).is_err());
    bench.ask(change(json!({ "enabled": false }))).unwrap();
    assert!(!bench.entry().definition.enabled);
    assert!(bench.ask(change(json!({ "enabled": true }))).is_err());
}

#[test]
fn interval_below_that_of_the_operator_is_refused() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    let list = bench.ledger.channels.automations.get_mut(&AutomationsKey::LIST).unwrap();
    list.settings.rules.min_interval_minutes = NonZeroU32::new(30).unwrap();
    assert!(bench.create(definition(&[schedule("0,29 * * * *", "UTC")])).is_err());
    bench.create(definition(&[schedule("*/30 * * * *", "UTC")])).unwrap();
    let told = capabilities(&bench.ledger).unwrap();
    assert_eq!(told.schedules.unwrap().min_interval_minutes, Some(30));
}

#[test]
fn year_of_a_daily_schedule_has_one_run_for_each_occurrence() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[schedule("30 2 * * *", "Europe/Berlin")])).unwrap();
    let end: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    while let Some(next) = bench.next().filter(|next| *next < end) {
        // Nothing begins before its time.
        bench.look(next - SignedDuration::from_millis(1));
        let before = bench.begun.len();
        bench.look(next + SignedDuration::from_secs(2));
        assert_eq!(bench.begun.len(), before + 1, "{next}");
        bench.complete(*bench.begun.last().unwrap());
    }
    // One night lacks this time, another one has it twice.
    assert_eq!(bench.begun.len(), 365);
    assert_eq!(bench.entry().runs.len(), ENDED_RUNS_MAX);
    // The rows of forgotten runs are gone, too.
    assert_eq!(bench.rows.keys().filter(|id| id.automation_run().is_some()).count(), ENDED_RUNS_MAX);
}

use jiff::SignedDuration;

#[test]
fn missed_occurrences_are_caught_up_once_or_recorded_as_skipped() {
    for (policy, lifecycle) in [(json!("runOnce"), "pending"), (json!("skip"), "cancelled")] {
        let mut bench = Bench::at("2026-01-01T00:00:00Z");
        let mut trigger = schedule("0 * * * *", "UTC");
        trigger["misfirePolicy"] = policy;
        bench.create(definition(&[trigger])).unwrap();
        // The machine sleeps for five hours, or no process runs.
        bench.restart();
        bench.look("2026-01-01T05:30:00Z".parse().unwrap());
        let [run] = &bench.entry().runs[..] else { panic!("{:?}", bench.entry().runs) };
        assert_eq!(serde_json::to_value(&run.lifecycle).unwrap()["status"], lifecycle);
        let AutomationRunOrigin::Trigger(origin) = &run.origin else { panic!("{run:?}") };
        assert_eq!(origin.scheduled_for.as_deref(), Some("2026-01-01T05:00:00.000Z"));
        assert_eq!(origin.catch_up, Some(true));
        assert_eq!(bench.entry().next_run_at.as_deref(), Some("2026-01-01T06:00:00.000Z"));
        assert_eq!(bench.begun.len(), usize::from(lifecycle == "pending"));
    }
}

#[test]
fn occurrence_during_a_run_waits_for_its_end() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[schedule("* * * * *", "UTC")])).unwrap();
    bench.look("2026-01-01T00:01:00Z".parse().unwrap());
    bench.begin(bench.begun[0]);
    for time in ["2026-01-01T00:02:00Z", "2026-01-01T00:03:00Z"] {
        bench.look(time.parse().unwrap());
    }
    assert_eq!((bench.begun.len(), bench.entry().runs.len()), (1, 1));
    // `nextRunAt` is the time that waits, and the next look is not at once.
    assert_eq!(bench.entry().next_run_at.as_deref(), Some("2026-01-01T00:02:00.000Z"));
    assert_eq!(bench.timer.unwrap().1, bench.now + Duration::from_secs(30));
    bench.complete(bench.begun[0]);
    bench.look(bench.now);
    assert_eq!(bench.begun.len(), 2);
}

#[test]
fn conditions_disable_an_automation_and_enabling_it_counts_anew() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    let hourly = definition(&[schedule("0 * * * *", "UTC")]);
    let twice = json!([{ "kind": "afterRuns", "max": 2 }]);
    bench.create(with(hourly, "disableConditions", twice)).unwrap();
    for count in 1..=2 {
        bench.look(bench.next().unwrap());
        assert_eq!(bench.entry().run_count, Some(count));
        bench.complete(*bench.begun.last().unwrap());
    }
    assert!(!bench.entry().definition.enabled);
    assert_eq!(bench.next(), None);
    // A manual run is never blocked.
    bench.request("manual");
    bench.complete(*bench.begun.last().unwrap());
    assert_eq!((bench.begun.len(), bench.entry().run_count), (3, Some(2)));
    bench.update(json!({ "enabled": true }));
    assert_eq!(bench.entry().run_count, Some(0));
    let date = json!([{ "kind": "afterDate", "date": "2026-01-01T03:30:00Z" }]);
    bench.update(json!({ "disableConditions": date }));
    bench.look("2026-01-01T03:30:00Z".parse().unwrap());
    assert!(!bench.entry().definition.enabled);
    assert_eq!((bench.begun.len(), bench.entry().run_count), (3, None));
}

#[test]
fn occurrence_that_waits_for_a_run_does_not_delay_those_of_other_automations() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    let each_minute = definition(&[schedule("* * * * *", "UTC")]);
    bench.create(each_minute.clone()).unwrap();
    bench.look(bench.next().unwrap());
    bench.begin(bench.begun[0]);
    bench.look("2026-01-01T00:02:50Z".parse().unwrap());
    assert_eq!(bench.begun.len(), 1, "it waits for its run");
    bench
        .ask(json!({
            "type": "automation/createRequested", "resource": "ahp-automation:/b", "definition": each_minute,
        }))
        .unwrap();
    assert_eq!(bench.timer.unwrap().1, "2026-01-01T00:03:00Z".parse().unwrap());
}

#[test]
fn scheduled_runs_beyond_twenty_an_hour_are_recorded_as_failed() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[schedule("* * * * *", "UTC")])).unwrap();
    // More runs than are kept, and a restart in the middle.
    for minute in 1..=60 {
        bench.look(bench.next().unwrap());
        if let Some(run) = bench.begun.last().copied() {
            bench.complete(run);
        }
        let last = serde_json::to_value(&bench.entry().runs[0].lifecycle).unwrap();
        let failure = last["error"]["errorType"].as_str();
        assert_eq!(failure, (minute > 20).then_some("tooManyRuns"), "minute {minute}");
        if minute == 30 {
            bench.restart();
        }
    }
    assert_eq!(bench.entry().runs.len(), ENDED_RUNS_MAX);
    bench.look(bench.next().unwrap());
    assert_eq!(bench.begun.len(), 1, "the first run was an hour ago");
}

#[test]
fn change_within_thirty_seconds_of_a_start_delays_nothing() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[schedule("0 * * * *", "UTC")])).unwrap();
    bench.now = "2026-01-01T01:00:00Z".parse().unwrap();
    bench.ledger = ledger_of(bench.rows.values().cloned().collect(), &bench.zones, true);
    bench.wake();
    let due = bench.timer.unwrap();
    bench.update(json!({ "title": "Other" }));
    assert_eq!(bench.timer.unwrap(), due);
    bench.look(due.1);
    assert_eq!(bench.begun.len(), 1);
}

#[test]
fn nothing_begins_once_the_input_has_ended() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[schedule("0 * * * *", "UTC")])).unwrap();
    bench.step(|ledger, _| runs::sleep(ledger));
    bench.step(runs::wake);
    bench.look("2026-01-01T01:00:00Z".parse().unwrap());
    assert!(bench.begun.is_empty());
    bench.request("one");
    let run = bench.begun[0];
    assert!(runs::startable_run(&mut bench.ledger, run).is_none(), "it begins in the next process");
    bench.restart();
    assert!(bench.begun.contains(&run));
}

#[test]
fn occurrence_that_waits_until_the_end_date_is_recorded_as_skipped() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    let hourly = definition(&[schedule("0 * * * *", "UTC")]);
    let date = json!([{ "kind": "afterDate", "date": "2026-01-01T03:30:00Z" }]);
    bench.create(with(hourly, "disableConditions", date)).unwrap();
    bench.look("2026-01-01T01:00:00Z".parse().unwrap());
    bench.begin(bench.begun[0]);
    bench.look("2026-01-01T04:30:00Z".parse().unwrap());
    let [skipped, running] = &bench.entry().runs[..] else { panic!("{:?}", bench.entry().runs) };
    assert!(matches!(running.lifecycle, AutomationRunLifecycle::Running(_)), "{running:?}");
    let AutomationRunOrigin::Trigger(origin) = &skipped.origin else { panic!("{skipped:?}") };
    assert_eq!(origin.scheduled_for.as_deref(), Some("2026-01-01T03:00:00.000Z"));
    assert!(matches!(skipped.lifecycle, AutomationRunLifecycle::Cancelled(_)), "{skipped:?}");
    assert!(!bench.entry().definition.enabled);
    assert_eq!(bench.begun.len(), 1);
}

#[test]
fn occurrence_of_another_trigger_beyond_the_last_run_is_recorded_as_skipped() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    let mut other = schedule("0 * * * *", "UTC");
    other["id"] = "other".into();
    let once = json!([{ "kind": "afterRuns", "max": 1 }]);
    bench
        .create(with(definition(&[schedule("0 * * * *", "UTC"), other]), "disableConditions", once))
        .unwrap();
    bench.look("2026-01-01T01:00:00Z".parse().unwrap());
    let kinds: Vec<Value> = bench
        .entry()
        .runs
        .iter()
        .map(|run| json!([serde_json::to_value(&run.lifecycle).unwrap()["status"], run.meta.is_some()]))
        .collect();
    assert_eq!(kinds, [json!(["cancelled", true]), json!(["pending", false])]);
    assert!(!bench.entry().definition.enabled);
}

#[test]
fn missed_occurrences_leave_a_trace_also_if_the_latest_is_in_time() {
    for (policy, expected) in
        [("runOnce", &["pending", "catchUp"][..]), ("skip", &["pending", "", "cancelled", "catchUp"])]
    {
        let mut bench = Bench::at("2026-01-01T00:00:00Z");
        let mut trigger = schedule("* * * * *", "UTC");
        trigger["misfirePolicy"] = policy.into();
        bench.create(definition(&[trigger])).unwrap();
        bench.look("2026-01-01T03:00:20Z".parse().unwrap());
        let mut found = Vec::new();
        for run in &bench.entry().runs {
            let AutomationRunOrigin::Trigger(origin) = &run.origin else { panic!("{run:?}") };
            let status = serde_json::to_value(&run.lifecycle).unwrap()["status"].take();
            found.push(status.as_str().unwrap().to_owned());
            found.push(origin.catch_up.map_or("", |_| "catchUp").to_owned());
        }
        assert_eq!(found, expected, "{policy}");
    }
}

#[test]
fn automation_that_has_waited_longest_is_the_next_to_run() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    let names: Vec<String> = (0..6).map(|name| format!("{AUTOMATION}{name}")).collect();
    for resource in &names {
        let definition = definition(&[schedule("* * * * *", "UTC")]);
        bench
            .ask(json!({ "type": "automation/createRequested", "resource": resource, "definition": definition }))
            .unwrap();
    }
    for minute in 1..=8 {
        bench.look(format!("2026-01-01T00:0{minute}:00Z").parse().unwrap());
        for run in std::mem::take(&mut bench.begun) {
            bench.complete(run);
        }
    }
    let list = bench.ledger.channels.automation_list().unwrap();
    let runs: Vec<usize> = names.iter().map(|name| list.get(name).unwrap().runs.len()).collect();
    assert!(runs.iter().all(|count| *count >= 5), "{runs:?}");
    assert_eq!(runs.iter().sum::<usize>(), 8 * 4);
}

#[test]
fn nothing_begins_without_clients_in_a_host_that_leaves_with_them() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[schedule("0 * * * *", "UTC")])).unwrap();
    bench.stays = false;
    bench.restart();
    bench.look("2026-01-01T01:00:00Z".parse().unwrap());
    assert!(bench.begun.is_empty());
    bench.request("one");
    let run = bench.begun.pop().unwrap();
    assert!(runs::startable_run(&mut bench.ledger, run).is_none());
    // A client comes before the host has left.
    crate::host::testing::connect(&mut bench.ledger, ME, MY_ID);
    bench.step(runs::wake);
    assert_eq!(bench.timer.unwrap().1, bench.now, "at once");
    bench.look(bench.now);
    assert_eq!(bench.begun, [run]);
    assert!(runs::startable_run(&mut bench.ledger, run).is_some());
}

#[test]
fn condition_that_is_changed_disables_at_once_and_no_run_is_announced_beyond_it() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    let hourly = definition(&[schedule("0 * * * *", "UTC")]);
    let never = json!([{ "kind": "afterDate", "date": "9999-12-31T23:59:59Z" }]);
    bench.create(with(hourly.clone(), "disableConditions", never)).unwrap();
    assert!(bench.next().is_some());
    // The same definition, with and without an empty list.
    bench.update(json!({ "disableConditions": [] }));
    bench.create(with(hourly, "disableConditions", json!([]))).unwrap();
    let soon = json!([{ "kind": "afterDate", "date": "2026-01-01T00:30:00Z" }]);
    bench.update(json!({ "disableConditions": soon }));
    assert_eq!(bench.next(), None);
    bench.look(bench.now);
    bench.update(json!({ "disableConditions": [{ "kind": "afterDate", "date": "2025-01-01T00:00:00Z" }] }));
    assert_eq!(bench.timer.unwrap().1, bench.now);
    bench.look(bench.now);
    assert!(!bench.entry().definition.enabled);
}

#[test]
fn session_that_is_disposed_of_cancels_a_run_that_waits_for_its_agent() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[])).unwrap();
    let dispose = |ledger: &mut Ledger, step: &mut Step<'_>| {
        runs::session_disposed(ledger, step, "ahp-session:/s");
    };
    for is_replaced in [true, false] {
        bench.request(if is_replaced { "one" } else { "two" });
        let run = *bench.begun.last().unwrap();
        bench.begin(run);
        bench.step(|ledger, _| runs::take_active(ledger, ChatKey(run.0)));
        assert!(bench.step(|ledger, step| runs::retry_later(ledger, step, run)));
        if is_replaced {
            bench.step(|ledger, _| runs::stop_waiting(ledger, run));
        }
        bench.step(dispose);
        let lifecycle = bench.lifecycle(run);
        assert_eq!(matches!(lifecycle, AutomationRunLifecycle::Running(_)), is_replaced, "{lifecycle:?}");
        bench.step(|ledger, step| runs::end(ledger, step, run, Outcome::Cancelled));
    }
}

#[test]
fn request_is_remembered_for_thirty_days_also_without_its_run() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[])).unwrap();
    let first = bench.request("one");
    bench.complete(bench.begun[0]);
    for name in 0..ENDED_RUNS_MAX {
        bench.request(&name.to_string());
        bench.complete(*bench.begun.last().unwrap());
    }
    assert!(bench.entry().runs.iter().all(|run| run.resource != first));
    bench.now = "2026-01-30T00:00:00Z".parse().unwrap();
    assert_eq!(bench.request("one"), first);
    bench.now = "2026-02-01T00:00:00Z".parse().unwrap();
    assert_ne!(bench.request("one"), first);
}

#[test]
fn clock_that_is_set_back_repeats_no_run() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[schedule("0 * * * *", "UTC")])).unwrap();
    bench.look("2026-01-01T01:00:00Z".parse().unwrap());
    bench.complete(bench.begun[0]);
    bench.look("2026-01-01T00:30:00Z".parse().unwrap());
    bench.look("2026-01-01T01:00:00Z".parse().unwrap());
    assert_eq!(bench.begun.len(), 1);
}

#[test]
fn nothing_begins_within_thirty_seconds_of_a_start() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[schedule("0 * * * *", "UTC")])).unwrap();
    bench.now = "2026-01-01T00:59:55Z".parse().unwrap();
    // It begins at the time that the restart expects, not in five seconds.
    bench.restart();
    assert_eq!(bench.begun.len(), 1);
}

#[test]
fn clock_that_was_far_ahead_stops_no_schedule() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[schedule("0 * * * *", "UTC")])).unwrap();
    bench.look("2027-01-01T00:00:00Z".parse().unwrap());
    bench.complete(bench.begun[0]);
    // The clock is set right.
    bench.look("2026-01-01T00:30:00Z".parse().unwrap());
    assert_eq!(bench.entry().next_run_at.as_deref(), Some("2026-01-01T01:00:00.000Z"));
    bench.look("2026-01-01T01:00:00Z".parse().unwrap());
    assert_eq!(bench.begun.len(), 2);
}

#[test]
fn runs_of_a_lost_automation_are_removed() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[])).unwrap();
    bench.request("one");
    let list = bench.rows.get_mut(&AutomationsKey::LIST.into()).unwrap();
    list.body = "damaged".into();
    bench.restart();
    assert!(bench.ledger.channels.automation_runs.is_empty());
    assert!(bench.rows.keys().all(|id| id.automation_run().is_none()));
}

#[test]
fn four_runs_are_active_at_most() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    for name in 0..6 {
        let definition = definition(&[schedule("0 * * * *", "UTC")]);
        let resource = format!("{AUTOMATION}{name}");
        let create =
            json!({ "type": "automation/createRequested", "resource": resource, "definition": definition });
        bench.ask(create).unwrap();
    }
    bench.look("2026-01-01T01:00:00Z".parse().unwrap());
    assert_eq!(bench.begun.len(), 4);
    bench.complete(bench.begun[0]);
    bench.look(bench.now);
    assert_eq!(bench.begun.len(), 5);
}

#[test]
fn automations_beyond_a_hundred_are_refused() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    for name in 0..=AUTOMATIONS_MAX {
        let resource = format!("{AUTOMATION}{name}");
        let definition = definition(&[]);
        let create =
            json!({ "type": "automation/createRequested", "resource": resource, "definition": definition });
        assert_eq!(bench.ask(create).is_ok(), name < AUTOMATIONS_MAX, "{name}");
    }
}

#[test]
fn request_of_a_run_has_one_run_also_after_a_restart() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[])).unwrap();
    assert_eq!(bench.timer, None, "nothing is scheduled");
    let first = bench.request("one");
    // While a run is active, another request is answered with it.
    assert_eq!(bench.request("two"), first);
    assert_eq!(bench.begun.len(), 1);
    bench.complete(bench.begun[0]);
    bench.restart();
    assert_eq!((bench.request("one"), bench.request("two")), (first.clone(), first.clone()));
    assert!(bench.begun.is_empty());
    assert_ne!(bench.request("three"), first);
}

#[test]
fn restart_fails_a_running_run_and_begins_a_pending_one() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[])).unwrap();
    bench.request("one");
    let run = bench.begun[0];
    bench.restart();
    assert_eq!(bench.begun, [run], "a run that was recorded begins");
    bench.begin(run);
    bench.restart();
    assert!(bench.begun.is_empty());
    let AutomationRunLifecycle::Failed(failed) = bench.lifecycle(run) else {
        panic!("{:?}", bench.lifecycle(run))
    };
    assert_eq!(failed.error.error_type, "interrupted");
    assert_eq!(bench.entry().runs[0].lifecycle, *bench.lifecycle(run));
}

#[test]
fn automation_with_an_active_run_is_not_removed() {
    let mut bench = Bench::at("2026-01-01T00:00:00Z");
    bench.create(definition(&[])).unwrap();
    bench.request("one");
    let remove = json!({ "type": "automation/removed", "resource": AUTOMATION });
    assert!(bench.ask(remove.clone()).is_err());
    bench.complete(bench.begun[0]);
    bench.ask(remove).unwrap();
    assert!(bench.ledger.channels.automation_runs.is_empty());
    let stored: Vec<ChannelId> = bench.rows.keys().copied().collect();
    assert_eq!(stored, [AutomationsKey::LIST.into()]);
}
