//! Agents that speak ACP, through the whole program: a scripted agent (`agent.py`) that can
//! misbehave in every way that we know of, and a client that watches.
//!
//! Owns: that agent, described in a configuration file, and one session with it.
//! Never: looks inside of the host.
#![cfg(target_os = "linux")]

mod adding;
mod adopting;
mod asking;
mod attaching;
mod checking;
mod client_tools;
mod configuring;
mod coping;
mod dying;
mod editing;
mod failing;
mod files;
mod forking;
mod going_on;
mod junk;
mod keeping;
mod leaving;
mod limits;
mod login;
mod meeting;
mod orphans;
mod own_turns;
mod plugins;
mod providers;
mod remembering;
mod servers;
mod talking;
mod terminals;
mod unattended;
mod waiting;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use ahp_sidecar::wire::uris::default_chat_of;
use serde_json::{json, Value};

use crate::guard::{bearers, COOKIE};
use crate::support::{can_be_done_within, program, window_on, write_program, Process, HUNG};

const SESSION: &str = "ahp-session:/s";

/// Folder of the host's socket, in a test's folder.
const RUNTIME: &str = "run";

/// Settings of the agent and of the host.
#[derive(Default)]
struct Setting {
    /// Arguments of the agent.
    arguments: Vec<String>,
    /// More lines of its description.
    limits: String,
    /// Further variables of the agent, as members of a TOML table, each after a comma.
    variables: &'static str,
    /// The host's own.
    flags: Vec<String>,
    /// Number of agents, all alike: `a0`, `a1` …
    agents: usize,
    /// Log filter of the host; errors by default.
    log: Option<&'static str>,
    /// The agent is started by a shell that does not want to leave either.
    wrapped: bool,
    /// The shell ends when the agent has.
    wrapper_ends: bool,
    /// The program that starts the agent, which is told how.
    by: Option<PathBuf>,
}

impl Setting {
    fn with(arguments: &[&str]) -> Self {
        Self {
            arguments: arguments.iter().map(|it| (*it).to_owned()).collect(),
            agents: 1,
            ..Self::default()
        }
    }

    fn limit(mut self, limits: &str) -> Self {
        self.limits = limits.to_owned();
        self
    }

    fn start(self) -> Watched {
        let folder = tempfile::tempdir().unwrap();
        self.start_in(folder)
    }

    fn start_in(self, folder: tempfile::TempDir) -> Watched {
        let (host, cookie) = self.command(folder.path());
        Watched::start(host, cookie, folder)
    }

    /// Starts the host, which logs to the file `log` of the folder.
    fn start_with_log(self, folder: tempfile::TempDir) -> Watched {
        let (mut host, cookie) = self.command(folder.path());
        host.stderr(Stdio::from(fs::File::create(folder.path().join("log")).unwrap()));
        Watched::start(host, cookie, folder)
    }

    /// The host, and the cookie that its agents bear.
    fn command(self, folder: &Path) -> (Command, String) {
        let cookie = uuid::Uuid::new_v4().to_string();
        let config = folder.join("config.toml");
        let mut text = String::new();
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/agent.py");
        let mut command = vec!["python3".to_owned(), agent.to_str().unwrap().to_owned()];
        command.extend(self.arguments);
        if self.wrapped {
            let after = if self.wrapper_ends { "exit $?" } else { "while :; do sleep 0.1; done" };
            let script = format!("trap '' TERM INT HUP; \"$@\"; {after}");
            command = ["/bin/sh".to_owned(), "-c".to_owned(), script, "sh".to_owned()]
                .into_iter()
                .chain(command)
                .collect();
        }
        if let Some(by) = self.by {
            command.insert(0, by.into_os_string().into_string().unwrap());
        }
        for number in 0..self.agents {
            writeln!(
                text,
                "[agents.a{number}]\ncommand = {:?}\nargs = {:?}\nenv = {{ {COOKIE} = {cookie:?}{} }}\n{}",
                command[0],
                &command[1..],
                self.variables,
                self.limits
            )
            .unwrap();
        }
        fs::write(&config, text).unwrap();
        let mut host: Command = program();
        let runtime = folder.join(RUNTIME);
        fs::create_dir_all(&runtime).unwrap();
        host.env("XDG_RUNTIME_DIR", runtime);
        let log = self.log.unwrap_or("error");
        host.args(["--log", log, "--config"]).arg(&config).env("PATH", std::env::var("PATH").unwrap());
        if self.flags.is_empty() {
            host.arg("--ephemeral");
        }
        if self.flags.iter().any(|flag| flag == "--state-dir") {
            // What is done to the process is done to the host.
            host.arg("--exclusive");
        }
        host.args(&self.flags);
        (host, cookie)
    }
}

/// Returns a start timeout in seconds that is long on a machine as busy as this one is now.
fn long_for_a_start() -> u64 {
    static SECONDS: OnceLock<u64> = OnceLock::new();
    *SECONDS.get_or_init(|| {
        let mut watched = Setting::with(&[]).limit("start_seconds = 100").start();
        let start = Instant::now();
        watched.session();
        watched.until_ready();
        let took = start.elapsed();
        watched.leave();
        // It may get busier.
        (took * 20).as_secs() + 4
    })
}

/// A host, its agent, and a client that hears everything.
struct Watched {
    process: Process,
    cookie: String,
    sequence: u64,
    folder: Option<tempfile::TempDir>,
    /// Actions that were heard since the last turn began, by the client's own mirror of the turn.
    heard: Vec<Value>,
}

impl Watched {
    fn start(host: Command, cookie: String, folder: tempfile::TempDir) -> Self {
        let process = Process::spawn(host);
        let mut watched = Self { process, cookie, sequence: 0, folder: Some(folder), heard: Vec::new() };
        watched.say(json!({ "id": 1, "method": "initialize", "params":
            { "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"],
              "initialSubscriptions": ["ahp-root://"] } }));
        watched
    }

    fn say(&mut self, mut message: Value) {
        message["jsonrpc"] = "2.0".into();
        self.process.say(&message.to_string());
    }

    /// A session with the first agent.
    fn session(&mut self) -> &mut Self {
        self.create(SESSION, "a0");
        self.subscribe(SESSION);
        self
    }

    fn create(&mut self, session: &str, provider: &str) {
        let folder = self.folder.as_ref().unwrap().path().to_str().unwrap().to_owned();
        self.say(json!({ "id": 2, "method": "createSession", "params":
            { "channel": session, "provider": provider, "workingDirectories": [format!("file://{folder}")] } }));
    }

    fn subscribe(&mut self, session: &str) {
        for channel in [session.to_owned(), default_chat_of(session)] {
            self.say(json!({ "id": 3, "method": "subscribe", "params": { "channel": channel } }));
        }
    }

    fn dispatch(&mut self, action: Value) {
        self.sequence += 1;
        self.say(json!({ "method": "dispatchAction", "params":
            { "channel": default_chat_of(SESSION), "clientSeq": self.sequence, "action": action } }));
    }

    /// Starts a turn.
    fn begin(&mut self, turn: &str, script: &str) {
        self.heard.clear();
        self.dispatch(
            json!({ "type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00Z",
            "message": { "text": script, "origin": { "kind": "user" } } }),
        );
    }

    /// The next action of a type.
    fn action(&mut self, kind: &str) -> Value {
        self.action_where(|action| action["type"] == kind)
    }

    /// Waits until the session is ready, which may have happened before it was subscribed to.
    fn until_ready(&mut self) {
        loop {
            let message = self.process.next();
            assert!(message.get("error").is_none(), "{message}");
            let shown = &message["result"]["snapshot"]["state"]["lifecycle"];
            if message["params"]["action"]["type"] == "session/ready" || shown == "ready" {
                return;
            }
        }
    }

    /// Why the creation of the session fails, which may have happened before it was subscribed to.
    fn creation_failure(&mut self) -> Value {
        let mut failure = Value::Null;
        self.process.until(|message| {
            let action = &message["params"]["action"];
            let shown = &message["result"]["snapshot"]["state"]["creationError"];
            failure =
                if action["type"] == "session/creationFailed" { &action["error"] } else { shown }.clone();
            !failure.is_null()
        });
        failure
    }

    fn action_where(&mut self, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let message = self.process.next();
            assert!(message.get("error").is_none(), "{message}");
            let action = &message["params"]["action"];
            if message["method"] == "action" {
                assert!(message["params"].get("rejectionReason").is_none(), "{message}");
                self.heard.push(action.clone());
                if wanted(action) {
                    return action.clone();
                }
            }
        }
    }

    /// How the turn ended.
    fn ending(&mut self, turn: &str) -> Value {
        let endings = ["chat/turnComplete", "chat/turnCancelled", "chat/error"];
        let ending = self.action_where(|action| endings.iter().any(|kind| action["type"] == *kind));
        assert_eq!(ending["turnId"], turn);
        ending
    }

    /// Runs a turn; what was said in it.
    fn turn(&mut self, turn: &str, script: &str) -> String {
        self.begin(turn, script);
        let ending = self.ending(turn);
        assert_eq!(ending["type"], "chat/turnComplete", "{ending}");
        self.answer_text()
    }

    /// Lets the agent go on that waits until the end of its turn was heard.
    fn release_agent(&self) {
        fs::write(self.folder.as_ref().unwrap().path().join("turn-has-ended"), "").unwrap();
    }

    /// Runs a turn behind whose end the agent asks something, and waits until that was answered:
    /// begun before, the next turn would be the one that the question belongs to.
    fn turn_and_question(&mut self, turn: &str, script: &str) {
        self.turn(turn, script);
        self.release_agent();
        self.action_where(|action| {
            action["title"].as_str().is_some_and(|title| title.starts_with("Answered behind turn "))
        });
    }

    /// The text of the turn.
    fn answer_text(&self) -> String {
        self.text_of("markdown")
    }

    fn text_of(&self, kind: &str) -> String {
        let delta = if kind == "markdown" { "chat/delta" } else { "chat/reasoning" };
        let text = self.heard.iter().filter_map(|action| match action["type"].as_str().unwrap() {
            "chat/responsePart" if action["part"]["kind"] == kind => action["part"]["content"].as_str(),
            name if name == delta => action["content"].as_str(),
            _ => None,
        });
        text.collect()
    }

    fn received(&self, kind: &str) -> Vec<&Value> {
        self.heard.iter().filter(|action| action["type"] == kind).collect()
    }

    fn decide(&mut self, turn: &str, call: &str, approved: bool, option: &str) {
        self.dispatch(json!({ "type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": call,
            "approved": approved, "selectedOptionId": option }));
    }

    fn cancel(&mut self, turn: &str) {
        self.dispatch(json!({ "type": "chat/turnCancelled", "turnId": turn, "duration": 0 }));
    }

    /// The agent's processes, as they are called.
    fn agents(&self) -> Vec<String> {
        bearers(&self.cookie)
    }

    /// Number of processes of the agent, each of which has a guard.
    fn agent_count(&self) -> usize {
        self.agents().iter().filter(|command| command.contains(" guard-agent ")).count()
    }

    fn wait_for_agents(&self, count: usize) {
        let start = Instant::now();
        while self.agents().len() != count {
            assert!(start.elapsed() < HUNG, "there are not {count}, but {:?}", self.agents());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the host's input; when it has ended, no agent is left.
    fn leave(mut self) -> Option<tempfile::TempDir> {
        self.process.end();
        self.process.rest();
        assert_eq!(self.process.wait().code(), Some(0));
        self.check_no_agents();
        self.folder.take()
    }

    /// Checks that no agent is left behind a host that has exited. Hosts exit in time, and guards
    /// that are late on a busy machine go on.
    fn check_no_agents(&self) {
        self.wait_for_agents(0);
    }
}

/// The file in which an agent remembers its sessions.
fn memory(folder: &Path) -> PathBuf {
    folder.join("memory.json")
}
