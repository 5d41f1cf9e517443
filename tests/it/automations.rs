//! Automations, of the program over pipes and of the core alone.
//!
//! Owns: that they are off without configuration; a manual run from its request to its end, over
//! restarts and kills after each of its steps; an agent that does not start; a run without a
//! client, and beyond its time limit; and what clients of older versions receive.
//! Never: waits for a schedule: the tests of the owner have a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ahp_sidecar::host::effects::{
    AutomationRunKey, ChannelId, ChannelRow, ChatKey, Command, ConnectionId, Event, Input, OpenFailure,
    Output, Record, RunId, Shutdown, TextKind, Timer, ToolGate, TurnEnd, TurnEvent,
};
use ahp_sidecar::host::{Findings, Start};
use ahp_sidecar::wire::uris::default_chat_of;
use serde_json::{json, Value};

use crate::support::core::Core;
use crate::support::world::World;
use crate::support::Process;

const LIST: &str = "ahp-automations://";
const AUTOMATION: &str = "ahp-automation:/a";

/// A state folder beside a configuration that turns automations on.
struct Place {
    outer: tempfile::TempDir,
}

impl Place {
    fn new(configuration: &str) -> Self {
        let outer = tempfile::tempdir().unwrap();
        fs::write(outer.path().join("config.toml"), configuration).unwrap();
        Self { outer }
    }

    fn state(&self) -> PathBuf {
        self.outer.path().join("state")
    }

    /// Starts the program and shakes hands. Returns the capabilities, too.
    fn start(&self, version: &str) -> (Client, Value) {
        let config = self.outer.path().join("config.toml");
        let process = Process::start_on(&self.state(), &["--config", config.to_str().unwrap()]);
        let mut client = Client { process, id: 0 };
        let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": [version] });
        let mut answer = client.ask("initialize", hello);
        (client, answer["result"]["automations"].take())
    }
}

struct Client {
    process: Process,
    id: u64,
}

impl Client {
    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.id += 1;
        let id = self.id;
        self.process
            .say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
        id
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.process.until(|message| message["id"] == id).pop().unwrap()
    }

    /// Dispatches an action. Returns all that comes up to its acknowledgement.
    fn dispatch(&mut self, channel: &str, action: Value) -> Vec<Value> {
        self.id += 1;
        let seq = self.id;
        let params = json!({ "channel": channel, "clientSeq": seq, "action": action });
        let line = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
        self.process.say(&line.to_string());
        self.process.until(|message| message["params"]["origin"]["clientSeq"] == seq)
    }

    fn create(&mut self, text: &str) {
        let definition = json!({
            "title": "Title",
            "message": { "text": text, "origin": { "kind": "automation" } },
            "session": { "provider": "script" },
            "enabled": true,
            "triggers": [],
        });
        let action =
            json!({ "type": "automation/createRequested", "resource": AUTOMATION, "definition": definition });
        let ack = self.dispatch(LIST, action).pop().unwrap();
        assert!(ack["params"].get("rejectionReason").is_none(), "{ack}");
    }

    /// Requests a run and subscribes to its channel. Returns its URI.
    fn run(&mut self, request: &str) -> String {
        let params = json!({ "channel": LIST, "automation": AUTOMATION, "requestId": request });
        let answer = self.ask("runAutomation", params);
        let uri = answer["result"]["resource"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        assert!(uri.starts_with("ahp-automation-run:/"));
        uri
    }

    fn state(&mut self, channel: &str) -> Value {
        self.ask("subscribe", json!({ "channel": channel }))["result"]["snapshot"]["state"].take()
    }

    /// Waits until the only run of the list has this status. Returns it.
    fn wait_for(&mut self, status: &str) -> Value {
        let run = |message: &Value| message["params"]["action"]["automation"]["runs"][0].clone();
        let state = self.state(LIST);
        let known = state["entries"][0]["runs"][0].clone();
        if known["lifecycle"]["status"] == status {
            return known;
        }
        run(self.process.until(|message| run(message)["lifecycle"]["status"] == status).last().unwrap())
    }
}

#[test]
fn without_configuration_there_are_no_automations() {
    let (mut client, announced) = Place::new("").start("1.0.0");
    assert_eq!(announced, Value::Null);
    for method in ["listAutomationTriggerDefinitions", "runAutomation", "fetchAutomationRuns"] {
        let params = json!({ "channel": LIST, "automation": AUTOMATION, "requestId": "r" });
        assert_eq!(client.ask(method, params)["error"]["code"], -32601);
    }
    assert_eq!(client.ask("subscribe", json!({ "channel": LIST }))["error"]["code"], -32008);
}

#[test]
fn manual_run_has_a_session_and_is_remembered_over_a_restart() {
    let place = Place::new("[automations]\nmin_interval_minutes = 5\n");
    let (mut client, announced) = place.start("1.0.0");
    let expected = json!({ "create": {}, "schedules": { "minIntervalMinutes": 5 }, "runCancellation": {},
        "runHistoryLimit": 50 });
    assert_eq!(announced, expected);
    client.create("Hello");
    let run = client.run("request");
    let ended = client.wait_for("completed");
    let session = ended["primarySession"].as_str().unwrap().to_owned();
    assert_eq!((&ended["resource"], &ended["sessionCount"]), (&json!(run), &json!(1)));
    let state = client.state(&run);
    assert_eq!((&state["sessions"], &state["origin"]), (&json!([session]), &json!({ "kind": "manual" })));
    let origin = json!({ "kind": "automation", "automation": AUTOMATION, "run": run });
    let of_session = client.state(&session);
    assert_eq!(of_session["origin"], origin);
    let chat = client.state(of_session["defaultChat"].as_str().unwrap());
    assert_eq!(chat["turns"][0]["message"]["origin"]["kind"], "automation");
    drop(client);

    let (mut client, _) = place.start("1.0.0");
    assert_eq!(client.wait_for("completed"), ended);
    assert_eq!(client.run("request"), run);
    let listed = client.ask("listSessions", json!({ "channel": "ahp-root://" }));
    assert_eq!(listed["result"]["items"][0]["origin"], origin);
    // A disposed session leaves its run.
    client.ask("disposeSession", json!({ "channel": session }));
    assert_eq!(client.state(&run)["sessions"], json!([]));
    let items = client.ask("listAutomationTriggerDefinitions", json!({ "channel": "ahp-root://" }));
    assert_eq!(items["result"], json!({ "items": [] }));
    let fetched = client.ask("fetchAutomationRuns", json!({ "channel": LIST, "automation": AUTOMATION }));
    assert_eq!(fetched["result"], json!({}));
}

#[test]
fn failed_turn_fails_the_run_and_a_cancelled_one_cancels_it() {
    let place = Place::new("[automations]\n");
    let (mut client, _) = place.start("1.0.0");
    client.create("/error it broke");
    client.run("first");
    let failed = client.wait_for("failed");
    assert!(failed["lifecycle"]["error"]["message"].as_str().unwrap().contains("it broke"), "{failed}");

    let changes = json!({ "message": { "text": "/sleep 600000", "origin": { "kind": "automation" } } });
    client.dispatch(
        LIST,
        json!({ "type": "automation/updateRequested", "resource": AUTOMATION, "changes": changes }),
    );
    let run = client.run("second");
    client.wait_for("running");
    let cancel = json!({ "type": "automationRun/cancelRequested" });
    client.dispatch(&run, cancel.clone());
    client.wait_for("cancelled");
    let refused = client.dispatch(&run, cancel).pop().unwrap();
    assert!(refused["params"]["rejectionReason"].is_string(), "{refused}");
}

#[test]
fn killed_process_leaves_a_failed_run() {
    let place = Place::new("[automations]\n");
    let (mut client, _) = place.start("1.0.0");
    client.create("/sleep 600000");
    let run = client.run("request");
    client.wait_for("running");
    client.process.child.kill().unwrap();
    client.process.child.wait().unwrap();
    let (mut client, _) = place.start("1.0.0");
    let failed = client.wait_for("failed");
    assert_eq!(
        (&failed["resource"], &failed["lifecycle"]["error"]["errorType"]),
        (&json!(run), &json!("interrupted"))
    );
}

#[test]
fn clients_of_0_9_0_see_no_conditions_and_keep_them() {
    let place = Place::new("[automations]\n");
    let conditions = json!([{ "kind": "afterRuns", "max": 3 }]);
    let kind = "automation/updateRequested";
    let update = |changes: Value| json!({ "type": kind, "resource": AUTOMATION, "changes": changes });
    let (mut client, _) = place.start("1.0.0");
    client.create("Hello");
    client.dispatch(LIST, update(json!({ "disableConditions": conditions })));
    drop(client);

    let (mut client, announced) = place.start("0.9.0");
    assert!(announced.is_object());
    let entry = client.state(LIST)["entries"][0].take();
    assert_eq!(
        (entry.get("runCount"), entry["definition"].get("disableConditions")),
        (None, None),
        "{entry}"
    );
    // What the version does not have is ignored.
    let changes = json!({ "title": "Other", "disableConditions": [] });
    let said = client.dispatch(LIST, update(changes));
    let set = said.iter().find(|message| message["params"]["action"]["type"] == "automation/set").unwrap();
    let entry = &set["params"]["action"]["automation"];
    assert_eq!(entry["definition"]["title"], "Other");
    assert_eq!(
        (entry.get("runCount"), entry["definition"].get("disableConditions")),
        (None, None),
        "{entry}"
    );
    client.run("request");
    client.wait_for("completed");
    drop(client);

    let (mut client, _) = place.start("1.0.0");
    let entry = client.state(LIST)["entries"][0].take();
    assert_eq!((&entry["runCount"], &entry["definition"]["disableConditions"]), (&json!(0), &conditions));
}

#[test]
fn clients_before_0_9_0_see_no_automations() {
    let place = Place::new("[automations]\n");
    let (mut client, _) = place.start("1.0.0");
    client.create("Hello");
    let run = client.run("request");
    client.wait_for("completed");
    drop(client);

    for version in ["0.8.0", "0.2.0"] {
        let (mut client, announced) = place.start(version);
        assert_eq!(announced, Value::Null);
        let params = json!({ "channel": LIST, "automation": AUTOMATION, "requestId": "r" });
        assert_eq!(client.ask("runAutomation", params)["error"]["code"], -32601);
        // These are channels like any that the version does not know.
        for channel in [LIST, &run, "ahp-unknown:/c"] {
            let answer = client.ask("subscribe", json!({ "channel": channel }));
            assert_eq!(answer["error"]["code"], -32001, "{version}: {channel}: {answer}");
        }
        let listed = client.ask("listSessions", json!({ "channel": "ahp-root://" }));
        let session = &listed["result"]["items"][0];
        assert!(session.is_object() && session.get("origin").is_none(), "{session}");
    }
}

const ME: ConnectionId = ConnectionId(1);

/// A run in the core, with its agent.
struct Working {
    world: World,
    key: AutomationRunKey,
    uri: String,
    chat: ChatKey,
    run: RunId,
}

/// Defines an automation.
fn define(world: &mut World) {
    let definition = json!({
        "title": "Title",
        "message": { "text": "Hello", "origin": { "kind": "automation" } },
        "session": {},
        "enabled": true,
        "triggers": [],
    });
    let create =
        json!({ "type": "automation/createRequested", "resource": AUTOMATION, "definition": definition });
    assert_eq!(world.dispatch(ME, LIST, create), None);
}

/// Requests a run, always by the same request. Returns its URI.
fn request(world: &mut World) -> String {
    let request = json!({ "channel": LIST, "automation": AUTOMATION, "requestId": "r" });
    world.ask(ME, "runAutomation", request).unwrap()["resource"].as_str().unwrap().to_owned()
}

/// Takes the runs that are to begin, or to start their agent again.
fn take_begun(world: &mut World) -> Vec<AutomationRunKey> {
    let begun = world.take().into_iter().filter_map(|output| match output {
        Output::CheckDirectories(key, directories) if directories.is_empty() => Some(key),
        _ => None,
    });
    begun.collect()
}

impl Working {
    /// A run whose agent has been told to start.
    fn starting() -> Self {
        Self::starting_in(true)
    }

    /// A run whose agent has been told to start, in a host that goes on without clients or not.
    fn starting_in(stays: bool) -> Self {
        let mut world = World::saving(Core::with_automations(Start::default(), stays));
        world.arrive(ME, "me");
        define(&mut world);
        let uri = request(&mut world);
        // Nothing is done before the record of the run is committed.
        assert_eq!(world.commands().count(), 0);
        let begun = take_begun(&mut world);
        let mut working = Self { world, key: begun[0], uri, chat: ChatKey(0), run: RunId(0) };
        working.begin();
        working
    }

    /// A run whose agent works on the turn.
    fn new() -> Self {
        Self::new_in(true)
    }

    fn new_in(stays: bool) -> Self {
        let mut working = Self::starting_in(stays);
        working.world.agent(working.chat, Event::Opened);
        working.run = working.world.started();
        working
    }

    fn begin(&mut self) {
        self.world.feed(Input::DirectoriesChecked(self.key, Findings::new()));
        self.chat = self.world.opened();
    }

    fn fail_to_start(&mut self) {
        let reason = "no such program".to_owned();
        self.world.agent(self.chat, Event::OpenFailed { kind: OpenFailure::Unavailable, reason });
    }

    /// Returns the delay of the next try, if there is one.
    fn retry_after(&self) -> Option<u64> {
        let is_retry = |(timer, _): &(Timer, Duration)| *timer == Timer::AutomationRetry(self.key);
        self.world.timers().find(is_retry).map(|(_, after)| after.as_secs())
    }

    fn retry(&mut self) -> Vec<AutomationRunKey> {
        self.world.take();
        self.world.feed(Input::Timer(Timer::AutomationRetry(self.key)));
        take_begun(&mut self.world)
    }

    fn leave(&mut self, how: Shutdown) {
        self.world.feed(Input::Ended { connection: ME, how, expected: None });
        self.world.feed(Input::Closed(ME));
        self.world.take();
    }

    fn ask_permission(&mut self) {
        let (id, name) = ("call".to_owned(), "rm".to_owned());
        let started = TurnEvent::ToolStarted { id: id.clone(), name: name.clone(), display_name: name };
        self.world.report(self.chat, self.run, started);
        let gate = ToolGate::Ask(Vec::new());
        let ready = TurnEvent::ToolReady { id, input: "{}".to_owned(), message: "Run".into(), gate };
        self.world.report(self.chat, self.run, ready);
    }

    fn is_declined(&self) -> bool {
        let is_refusal = |command: &Command| matches!(command, Command::Permission { approved: false, .. });
        self.world.commands().any(is_refusal)
    }

    fn state(&mut self) -> Value {
        let other = ConnectionId(2);
        self.world.arrive(other, "other");
        self.world.state(other, &self.uri)
    }

    fn lifecycle(&mut self) -> Value {
        self.state()["lifecycle"].take()
    }
}

#[test]
fn agent_that_does_not_start_is_tried_three_times_within_ten_minutes() {
    let mut working = Working::starting();
    let mut delays = Vec::new();
    let mut chats = BTreeSet::from([working.chat]);
    for _ in 1..3 {
        working.fail_to_start();
        assert_eq!(working.lifecycle()["status"], "running");
        delays.extend(working.retry_after());
        assert_eq!(working.retry(), [working.key]);
        working.begin();
        assert!(chats.insert(working.chat), "another session");
    }
    assert!(delays.len() == 2 && delays.iter().sum::<u64>() < 600, "{delays:?}");
    working.world.take();
    working.fail_to_start();
    assert_eq!(working.retry_after(), None);
    let state = working.state();
    assert_eq!(state["lifecycle"]["status"], "failed");
    let why = state["lifecycle"]["error"]["message"].as_str().unwrap();
    assert!(why.contains("no such program"), "{why}");
    // The sessions of the first tries are gone; the last one shows the failure.
    assert_eq!(
        (state["sessions"].as_array().unwrap().len(), &state["sessions"][0]),
        (1, &state["primarySession"])
    );
}

#[test]
fn agent_that_starts_at_the_second_try_completes_the_run() {
    let mut working = Working::starting();
    working.fail_to_start();
    assert_eq!(working.retry(), [working.key]);
    working.begin();
    working.world.agent(working.chat, Event::Opened);
    let run = working.world.started();
    working.world.report(working.chat, run, TurnEvent::Ended(TurnEnd::Complete));
    assert_eq!(working.lifecycle()["status"], "completed");
    assert_eq!(working.retry(), [], "the timer is void");
}

#[test]
fn run_that_waits_for_another_try_can_be_cancelled_and_has_its_time_limit() {
    let mut working = Working::starting();
    working.fail_to_start();
    let (uri, cancel) = (working.uri.clone(), json!({ "type": "automationRun/cancelRequested" }));
    assert_eq!(working.world.dispatch(ME, &uri, cancel), None);
    assert_eq!(working.lifecycle()["status"], "cancelled");
    assert_eq!(working.retry(), []);

    let mut working = Working::starting();
    working.fail_to_start();
    working.world.feed(Input::Timer(Timer::AutomationRun(working.key)));
    assert_eq!(working.lifecycle()["error"]["errorType"], "timeLimit");
    assert_eq!(working.retry(), []);
}

#[test]
fn run_whose_session_is_disposed_of_is_cancelled() {
    let mut working = Working::new();
    let session = working.state()["primarySession"].take();
    working.world.ask(ME, "disposeSession", json!({ "channel": session })).unwrap();
    assert_eq!(working.lifecycle()["status"], "cancelled");
}

/// Rows of the store.
type Rows = BTreeMap<ChannelId, ChannelRow>;

/// Commits the records of all outputs, and returns the runs that are to begin.
fn commit(rows: &mut Rows, outputs: Vec<Output>) -> Vec<AutomationRunKey> {
    let mut begun = Vec::new();
    for output in outputs {
        match output {
            Output::Record(Record::Channel(row)) => drop(rows.insert(row.id, row)),
            Output::Record(Record::ChannelRemoved(id)) => drop(rows.remove(&id)),
            Output::CheckDirectories(key, _) => begun.push(key),
            _ => {}
        }
    }
    begun
}

/// Starts a host on these rows, with a client.
fn start_on(rows: &Rows, life: u64) -> World {
    let channels = rows.values().cloned().collect();
    let (head, last_key) = (life << 20, life * 1000);
    let start = Start { channels, head, last_key, continues: true, ..Start::default() };
    let mut world = World::saving(Core::with_automations(start, true));
    world.arrive(ME, "me");
    world
}

/// Carries out the first steps of a run, each of which is one commit.
fn steps_of_a_run(count: usize) -> (Rows, Option<String>) {
    let (mut rows, mut uri, mut begun, mut chat) = (Rows::new(), None, Vec::new(), ChatKey(0));
    let mut run = RunId(0);
    let mut world = start_on(&rows, 0);
    for step in 0..count {
        match step {
            0 => define(&mut world),
            1 => uri = Some(request(&mut world)),
            2 => {
                world.feed(Input::DirectoriesChecked(begun[0], Findings::new()));
                chat = world.opened();
            }
            3 => {
                world.agent(chat, Event::Opened);
                run = world.started();
            }
            4 => world.report(chat, run, TurnEvent::Text(TextKind::Markdown, "Hi".to_owned())),
            _ => world.report(chat, run, TurnEvent::Ended(TurnEnd::Complete)),
        }
        begun.extend(commit(&mut rows, world.take()));
    }
    (rows, uri)
}

#[test]
fn host_killed_after_any_step_of_a_run_loses_none_and_repeats_none() {
    // What the host shows after each step, and whether the run begins.
    let ends =
        [None, None, Some("pending"), Some("failed"), Some("failed"), Some("failed"), Some("completed")];
    for (count, expected) in ends.into_iter().enumerate() {
        let (mut rows, uri) = steps_of_a_run(count);
        // The next process may be killed, too.
        for life in 1..4 {
            let mut world = start_on(&rows, life);
            let state = world.state(ME, LIST);
            let runs = state["entries"].as_array().map_or_else(Vec::new, |entries| {
                entries.iter().flat_map(|entry| entry["runs"].as_array().unwrap().clone()).collect()
            });
            let shown: Vec<_> = runs.iter().map(|run| run["lifecycle"]["status"].as_str().unwrap()).collect();
            assert_eq!(shown, expected.into_iter().collect::<Vec<_>>(), "after {count} steps");
            let Some(uri) = &uri else { continue };
            assert_eq!(request(&mut world), *uri, "after {count} steps");
            let own = world.state(ME, uri)["lifecycle"].take();
            assert_eq!(own, runs[0]["lifecycle"], "after {count} steps");
            if expected == Some("failed") {
                assert_eq!(own["error"]["errorType"], "interrupted");
            }
            let looks: Vec<Timer> = world
                .timers()
                .map(|(timer, _)| timer)
                .filter(|it| matches!(it, Timer::Automations(_)))
                .collect();
            let mut begun = commit(&mut rows, world.take());
            assert_eq!(begun, [], "nothing begins at once");
            looks.iter().for_each(|timer| world.feed(Input::Timer(*timer)));
            begun.extend(commit(&mut rows, world.take()));
            assert_eq!(begun.len(), usize::from(expected == Some("pending")), "after {count} steps");
        }
    }
}

#[test]
fn permission_in_a_run_waits_for_a_client_and_is_declined_without_one() {
    let mut attended = Working::new();
    attended.ask_permission();
    assert!(!attended.is_declined());

    for how in [Shutdown::Drain(Duration::from_secs(1)), Shutdown::Cancel] {
        let mut alone = Working::new();
        alone.leave(how);
        alone.ask_permission();
        assert!(alone.is_declined(), "{how:?}");
        // The run goes on: it belongs to no client, not even to one whose turns are cancelled.
        assert_eq!(alone.lifecycle()["status"], "running", "{how:?}");
    }
}

#[test]
fn run_ends_with_the_last_client_of_a_host_that_leaves_with_it() {
    let mut working = Working::new_in(false);
    working.world.arrive(ConnectionId(3), "third");
    working.leave(Shutdown::Cancel);
    assert!(!working.world.commands().any(|command| matches!(command, Command::Cancel { .. })));
    working.world.feed(Input::Ended { connection: ConnectionId(3), how: Shutdown::Cancel, expected: None });
    let is_cancel = |command: &Command| matches!(command, Command::Cancel { run } if *run == working.run);
    assert!(working.world.commands().any(is_cancel));
    working.world.report(working.chat, working.run, TurnEvent::Ended(TurnEnd::Cancelled));
    assert_eq!(working.lifecycle()["error"]["errorType"], "interrupted");
    // Nothing more begins before a client is back.
    let mut left = Working::starting_in(false);
    left.world.feed(Input::Timer(Timer::Automations(1)));
    left.fail_to_start();
    left.leave(Shutdown::Cancel);
    assert_eq!(left.retry(), []);
    left.world.arrive(ConnectionId(9), "me");
    let of_automations = |(timer, _): &(Timer, Duration)| matches!(timer, Timer::Automations(_));
    let timer = left.world.timers().filter(of_automations).last().unwrap();
    assert_eq!(timer.1, Duration::ZERO);
    left.world.take();
    left.world.feed(Input::Timer(timer.0));
    assert_eq!(take_begun(&mut left.world), [left.key]);
}

#[test]
fn retry_of_a_run_leaves_the_session_in_which_a_user_has_gone_on() {
    let mut working = Working::starting();
    working.fail_to_start();
    let (session, chat) = (working.state()["primarySession"].take(), working.chat);
    let default = working.world.state(ME, session.as_str().unwrap())["defaultChat"].take();
    let message = json!({ "text": "I", "origin": { "kind": "user" } });
    let turn = json!({ "type": "chat/turnStarted", "turnId": "mine", "message": message });
    assert_eq!(working.world.dispatch(ME, default.as_str().unwrap(), turn), None);
    working.world.agent(chat, Event::Opened);
    assert_eq!(working.retry(), [working.key]);
    working.begin();
    assert_ne!(working.chat, chat, "the run has another session");
    let sessions = working.state()["sessions"].take();
    assert_eq!(sessions.as_array().unwrap().len(), 2, "{sessions}");
    let kept = working.world.state(ME, default.as_str().unwrap());
    assert_eq!(kept["activeTurn"]["id"], "mine", "{kept}");
}

#[test]
fn automation_that_changes_before_its_run_begins_has_its_new_directories_checked() {
    let mut world = World::saving(Core::with_automations(Start::default(), true));
    world.arrive(ME, "me");
    define(&mut world);
    request(&mut world);
    let begun = take_begun(&mut world);
    let folder = json!({ "session": { "workingDirectories": ["file:///w"] } });
    let update = json!({ "type": "automation/updateRequested", "resource": AUTOMATION, "changes": folder });
    assert_eq!(world.dispatch(ME, LIST, update), None);
    world.take();
    world.feed(Input::DirectoriesChecked(begun[0], Findings::new()));
    let asked = world.take().into_iter().find_map(|output| match output {
        Output::CheckDirectories(key, directories) => Some((key, directories)),
        _ => None,
    });
    assert_eq!(asked, Some((begun[0], vec!["file:///w".to_owned()])));
    world.feed(Input::DirectoriesChecked(begun[0], Findings::from([("file:///w".to_owned(), Ok(()))])));
    world.opened();
}

#[test]
fn run_beyond_its_time_limit_fails_and_its_agent_is_stopped() {
    let mut working = Working::new();
    let limit = Duration::from_secs(30 * 60);
    let timer = Timer::AutomationRun(working.key);
    assert!(working.world.timers().any(|asked| asked == (timer, limit)));
    working.world.take();
    working.world.feed(Input::Timer(timer));
    // The turn is cancelled; an agent that does not obey is ended with its conversation.
    let is_cancel = |command: &Command| matches!(command, Command::Cancel { run } if *run == working.run);
    assert!(working.world.commands().any(is_cancel));
    assert!(working.world.commands().any(|command| matches!(command, Command::Close)));
    let lifecycle = working.lifecycle();
    assert_eq!(
        (&lifecycle["status"], &lifecycle["error"]["errorType"]),
        (&json!("failed"), &json!("timeLimit"))
    );
}

#[test]
fn message_queued_in_the_chat_of_a_run_starts_when_the_run_was_cut_off() {
    let cancel = |working: &mut Working| {
        let (uri, cancel) = (working.uri.clone(), json!({ "type": "automationRun/cancelRequested" }));
        assert_eq!(working.world.dispatch(ME, &uri, cancel), None);
    };
    let time_out = |working: &mut Working| {
        working.world.feed(Input::Timer(Timer::AutomationRun(working.key)));
    };
    for cut_off in [cancel as fn(&mut Working), time_out] {
        let mut working = Working::new();
        let session = working.state()["primarySession"].take();
        let chat = default_chat_of(session.as_str().unwrap());
        assert_eq!(working.world.pend(ME, &chat, "queued", "q", "next"), None);
        cut_off(&mut working);
        // The agent lets the turn end; one whose conversation was closed starts anew.
        working.world.report(working.chat, working.run, TurnEvent::Ended(TurnEnd::Cancelled));
        working.world.agent(working.chat, Event::Opened);
        let run = working.world.started();
        assert_ne!(run, working.run);
        let state = working.world.state(ME, &chat);
        assert_eq!(
            (&state["activeTurn"]["message"]["text"], &state["queuedMessages"]),
            (&"next".into(), &Value::Null)
        );
    }
}

#[test]
fn session_whose_run_timed_out_while_its_agent_opened_serves_later_turns() {
    let mut working = Working::starting();
    let session = working.state()["primarySession"].take();
    let chat = default_chat_of(session.as_str().unwrap());
    working.world.feed(Input::Timer(Timer::AutomationRun(working.key)));
    working.world.agent(working.chat, Event::Opened);
    working.world.start(ME, &chat, "later", "go on");
    working.world.started();
}
