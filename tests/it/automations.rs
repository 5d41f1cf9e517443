//! Automations, of the program over pipes and of the core alone.
//!
//! Owns: that they are off without configuration; a manual run from its request to its end, over
//! restarts and kills; a run without a client, and beyond its time limit; and what clients of older
//! versions receive.
//! Never: waits for a schedule: the tests of the owner have a clock.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ahp_sidecar::host::effects::{
    AutomationRunKey, ChatKey, Command, ConnectionId, Event, Input, Output, RunId, Shutdown, Timer, ToolGate,
    TurnEvent,
};
use ahp_sidecar::host::Findings;
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
fn clients_before_0_9_0_see_no_automations() {
    let place = Place::new("[automations]\n");
    let (mut client, announced) = place.start("0.9.0");
    assert!(announced.is_object());
    client.create("Hello");
    client.run("request");
    client.wait_for("completed");
    drop(client);

    let (mut client, announced) = place.start("0.8.0");
    assert_eq!(announced, Value::Null);
    let params = json!({ "channel": LIST, "automation": AUTOMATION, "requestId": "r" });
    assert_eq!(client.ask("runAutomation", params)["error"]["code"], -32601);
    assert!(client.ask("subscribe", json!({ "channel": LIST }))["result"]["snapshot"].is_null());
    let listed = client.ask("listSessions", json!({ "channel": "ahp-root://" }));
    let session = &listed["result"]["items"][0];
    assert!(session.is_object() && session.get("origin").is_none(), "{session}");
}

/// A run in the core: its agent works on the turn.
struct Working {
    world: World,
    key: AutomationRunKey,
    uri: String,
    chat: ChatKey,
    run: RunId,
}

const ME: ConnectionId = ConnectionId(1);

impl Working {
    fn new() -> Self {
        let mut world = World::saving(Core::with_automations());
        world.arrive(ME, "me");
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
        let request = json!({ "channel": LIST, "automation": AUTOMATION, "requestId": "r" });
        let answer = world.ask(ME, "runAutomation", request).unwrap();
        // Nothing is done before the record of the run is committed.
        assert_eq!(world.commands().count(), 0);
        let key = world.outputs.iter().find_map(|output| match output {
            Output::CheckDirectories(key, directories) if directories.is_empty() => Some(*key),
            _ => None,
        });
        let key = key.unwrap();
        world.feed(Input::DirectoriesChecked(key, Findings::new()));
        let chat = world.opened();
        world.agent(chat, Event::Opened);
        let run = world.started();
        let uri = answer["resource"].as_str().unwrap().to_owned();
        Self { world, key, uri, chat, run }
    }

    fn leave(&mut self) {
        let how = Shutdown::Drain(Duration::from_secs(1));
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

    fn lifecycle(&mut self) -> Value {
        let other = ConnectionId(2);
        self.world.arrive(other, "other");
        self.world.state(other, &self.uri)["lifecycle"].take()
    }
}

#[test]
fn permission_in_a_run_waits_for_a_client_and_is_declined_without_one() {
    let mut attended = Working::new();
    attended.ask_permission();
    assert!(!attended.is_declined());

    let mut alone = Working::new();
    alone.leave();
    alone.ask_permission();
    assert!(alone.is_declined());
    // The run goes on: it belongs to no client.
    assert_eq!(alone.lifecycle()["status"], "running");
}

#[test]
fn run_beyond_its_time_limit_fails_and_its_agent_is_stopped() {
    let mut working = Working::new();
    let limit = Duration::from_secs(30 * 60);
    let timer = Timer::AutomationRun(working.key);
    assert!(working.world.timers().any(|asked| asked == (timer, limit)));
    working.world.take();
    working.world.feed(Input::Timer(timer));
    let is_end = |command: &Command| matches!(command, Command::Cancel { .. } | Command::Close);
    assert!(working.world.commands().any(is_end));
    let lifecycle = working.lifecycle();
    assert_eq!(
        (&lifecycle["status"], &lifecycle["error"]["errorType"]),
        (&json!("failed"), &json!("timeLimit"))
    );
}
