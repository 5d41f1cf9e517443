//! Agents that are known before there is any session with them: by `agents check`, and because a client wants to know
//! what can be chosen. And which of several is the default.

use std::process::Output;

use super::*;

/// A folder with a configuration file, in which these agents have notes.
struct Checked {
    folder: tempfile::TempDir,
    cookie: String,
}

impl Checked {
    fn new(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes");
        let mut all = arguments.to_vec();
        all.extend(["--notes", notes.to_str().unwrap()]);
        // Writes the file.
        let (_, cookie) = Setting::with(&all).command(folder.path());
        Self { folder, cookie }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn starts(&self) -> usize {
        let notes = fs::read_to_string(self.path("notes")).unwrap_or_default();
        notes.lines().filter(|line| line.contains("started")).count()
    }

    /// `agents check` with this; its status, and what it printed on stdout and stderr.
    fn check(&self, flags: &[&str]) -> (Option<i32>, String, String) {
        let mut command = program();
        command.args(["agents", "check", "--config", &self.path("config.toml")]).args(flags);
        command.env("PATH", std::env::var("PATH").unwrap());
        let Output { status, stdout, stderr } = command.output().unwrap();
        assert_eq!(bearers(&self.cookie), Vec::<String>::new());
        (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }

    /// A host on the state folder, with this said first.
    fn host(&self, flags: &[&str]) -> (Process, Value) {
        let mut host = program();
        host.args(["--log", "error", "--exclusive", "--config", &self.path("config.toml")]).args(flags);
        host.env("PATH", std::env::var("PATH").unwrap());
        let mut process = Process::spawn(host);
        let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
            { "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"],
              "initialSubscriptions": ["ahp-root://"] } });
        process.say(&hello.to_string());
        let told = process.until(|message| message["id"] == 1);
        let root = told.last().unwrap()["result"]["snapshots"][0]["state"].clone();
        (process, root)
    }
}

fn providers(root: &Value) -> Vec<&str> {
    root["agents"].as_array().unwrap().iter().map(|agent| agent["provider"].as_str().unwrap()).collect()
}

fn ended(mut process: Process) {
    process.end();
    process.rest();
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn a_check_says_what_an_agent_is_and_the_next_host_knows_it_at_once() {
    let checked = Checked::new(&["--has", "options"]);
    let state = checked.path("state");
    let (status, said, complaints) = checked.check(&["--state-dir", &state]);
    assert_eq!((status, complaints.as_str()), (Some(0), ""), "{said}");
    for line in [
        "a0\n",
        "found     /",
        "is        The tests' agent 1\n",
        "models    Large (large), Small (small)\n",
        "modes     ask, plan, code, locked, autopilot\n",
        "commands  /plan, /clear\n",
    ] {
        assert!(said.contains(line), "{line:?} in {said}");
    }
    assert_eq!(checked.starts(), 1);
    let (process, root) = checked.host(&["--state-dir", &state]);
    assert_eq!(root["agents"][0]["displayName"], "The tests' agent");
    assert_eq!(root["agents"][0]["models"][0]["id"], "large");
    ended(process);
    // Without a word of the agent.
    assert_eq!(checked.starts(), 1);
}

#[test]
fn a_check_that_finds_something_wrong_says_so_with_its_status() {
    let checked = Checked::new(&["--login", "out"]);
    let (status, said, _) = checked.check(&["--ephemeral"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("login     NEEDED: the agent `a0`: you must log in to it first"), "{said}");
    assert!(said.contains("What can be done: have your client log in"), "{said}");
    assert!(said.contains("is        The tests' agent 1\n"), "{said}");
    let (status, said, _) = checked.check(&["--ephemeral", "--agent", "none=no-such-agent --acp", "none"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.starts_with("none\n  FAILS     the agent `none`: it is not installed"), "{said}");
    let (status, _, complaint) = checked.check(&["--ephemeral", "other"]);
    assert_eq!(status, Some(2), "{complaint}");
    assert!(complaint.contains("there is no agent `other`; there are: a0"), "{complaint}");
}

#[test]
fn a_check_while_a_host_runs_says_what_agents_are_and_that_it_is_not_remembered() {
    let checked = Checked::new(&[]);
    let state = checked.path("state");
    let (process, _) = checked.host(&["--state-dir", &state]);
    let (status, said, complaint) = checked.check(&["--state-dir", &state]);
    assert_eq!(status, Some(3), "{complaint}");
    assert!(said.contains("is        The tests' agent 1"), "{said}");
    assert!(complaint.contains("nothing of this is remembered") && complaint.contains("is held by another"));
    ended(process);
}

#[test]
fn a_client_that_wants_to_know_what_can_be_chosen_has_the_agent_asked_in_the_background() {
    let checked = Checked::new(&["--has", "options"]);
    let (mut process, root) = checked.host(&["--ephemeral"]);
    // None is known: one stands for whatever the agent takes.
    assert_eq!(
        root["agents"][0]["models"],
        json!([{ "id": "default", "name": "Default", "provider": "a0" }])
    );
    let resolve = |id: u64| {
        json!({ "jsonrpc": "2.0", "id": id, "method": "resolveSessionConfig", "params":
            { "channel": "ahp-root://", "provider": "a0", "config": {} } })
        .to_string()
    };
    process.say(&resolve(2));
    // At once, and the same in between.
    process.say(&resolve(3));
    let told = process.until(|message| message["id"] == 3);
    assert_eq!(told.last().unwrap()["result"]["schema"]["properties"], json!({}), "{told:?}");
    process.until(|message| {
        let action = &message["params"]["action"];
        action["type"] == "root/agentsChanged" && action["agents"][0]["models"][0]["id"] == "large"
    });
    process.say(&resolve(4));
    let told = process.until(|message| message["id"] == 4);
    let schema = &told.last().unwrap()["result"]["schema"]["properties"];
    assert_eq!(schema["mode"]["enum"][1], "plan", "{schema}");
    ended(process);
    assert_eq!(checked.starts(), 1);
    assert_eq!(bearers(&checked.cookie), Vec::<String>::new());
}

#[test]
fn the_built_in_agent_is_not_the_default_where_there_are_others_and_can_be_left_out() {
    let checked = Checked::new(&[]);
    let (process, root) = checked.host(&["--ephemeral"]);
    assert_eq!(providers(&root), ["a0", "script"]);
    ended(process);
    let (mut process, root) = checked.host(&["--ephemeral", "--no-script"]);
    assert_eq!(providers(&root), ["a0"]);
    process.say(
        &json!({ "jsonrpc": "2.0", "id": 2, "method": "createSession", "params":
            { "channel": SESSION, "provider": "script" } })
        .to_string(),
    );
    let told = process.until(|message| message["id"] == 2);
    assert_eq!(told.last().unwrap()["error"]["code"], -32002, "{told:?}");
    ended(process);
}
