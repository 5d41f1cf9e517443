//! Agents that are known before there is any session with them: by `agents check`, and because a
//! client wants to know what can be chosen. And which of several is the default.

use std::process::Output;

use super::*;

/// A folder with a configuration file, in which these agents have notes.
struct Checked {
    folder: tempfile::TempDir,
    cookie: String,
    /// The configuration file as it was written first, if it was changed.
    config: Option<String>,
}

impl Checked {
    fn new(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes");
        let mut all = arguments.to_vec();
        all.extend(["--notes", notes.to_str().unwrap()]);
        // Writes the file.
        let (_, cookie) = Setting::with(&all).command(folder.path());
        Self { folder, cookie, config: None }
    }

    /// Adds to the configuration file, in place of what was added before.
    fn configure(&mut self, text: &str) {
        let file = self.path("config.toml");
        let config = self.config.get_or_insert_with(|| fs::read_to_string(&file).unwrap());
        fs::write(&file, format!("{config}\n{text}")).unwrap();
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
fn agents_check_describes_the_agent_and_the_next_host_reuses_the_result() {
    let checked = Checked::new(&["--has", "options"]);
    let state = checked.path("state");
    let (status, said, complaints) = checked.check(&["--state-dir", &state]);
    assert_eq!((status, complaints.as_str()), (Some(0), ""), "{said}");
    for line in [
        "a0\n",
        "found     /",
        "is        The tests' agent 1\n",
        "models    Large (large), Small (small)\n",
        "modes     ask (current), plan, code, locked, autopilot*\n",
        "          * changes files or runs commands without asking you first\n",
        "settings  effort = low (of low, high)\n            theme = light (of light, dark)\n",
        "          brave = false (of true, false)\n",
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
fn agents_check_reports_each_problem_with_its_exit_status() {
    let checked = Checked::new(&["--login", "out"]);
    let (status, said, _) = checked.check(&["--ephemeral"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("login     NEEDED: the agent `a0`: it requires a login: "), "{said}");
    assert!(said.contains("Ways to log in: log in with "), "{said}");
    assert!(said.contains("is        The tests' agent 1\n"), "{said}");
    let (status, said, _) = checked.check(&["--ephemeral", "--agent", "none=no-such-agent --acp", "none"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.starts_with("none\n  FAILS     the agent `none`: it is not installed"), "{said}");
    let (status, _, complaint) = checked.check(&["--ephemeral", "other"]);
    assert_eq!(status, Some(2), "{complaint}");
    assert!(complaint.contains("there is no agent `other`; there are: a0"), "{complaint}");
}

#[test]
fn agents_check_warns_when_a_session_begins_in_a_mode_without_permissions() {
    let mut checked = Checked::new(&["--has", "options"]);
    checked.configure("[agents.a0.config]\nmode = \"autopilot\"\n");
    let (status, said, _) = checked.check(&["--ephemeral"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("modes     ask, plan, code, locked, autopilot* (current)\n"), "{said}");
    let warning = "  ASKS NOT  a new session begins in the mode `autopilot`, in which the agent does not ask: to be asked, write\n\
                   \x20           [agents.a0.config]\n            mode = \"ask\"\n";
    assert!(said.contains(warning), "{said}");
    // One that the agent does not have: it would begin in another mode than its operator believes.
    checked.configure("[agents.a0.config]\nmode = \"aks\"\n");
    let (status, said, _) = checked.check(&["--ephemeral"]);
    assert_eq!(status, Some(1), "{said}");
    let why = "CONFIG    the option `mode` does not allow \"aks\"; allowed: \"ask\", \"plan\", ";
    assert!(said.contains(why) && said.contains("correct it in `[agents.a0.config]`\n"), "{said}");
    assert!(!said.contains("ASKS NOT"), "{said}");
}

#[test]
fn agents_check_reports_a_slow_agent_as_starting_and_waits_until_the_timeout() {
    let mut checked = Checked::new(&["--before-new", "0.3"]);
    checked.configure("start_seconds = 0.05\n");
    let (status, said, _) = checked.check(&["--ephemeral"]);
    assert_eq!(status, Some(1), "{said}");
    let waiting = "  WAITING   it is still starting after 0.1 s: wait longer with `--timeout SECONDS`. A host waits 0.05 s \
                   for each";
    assert!(said.contains(waiting) && !said.contains("FAILS"), "{said}");
    let (status, said, _) = checked.check(&["--ephemeral", "--timeout", "600"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("is        The tests' agent 1") && said.contains("SLOW      it took"), "{said}");
}

#[test]
fn agents_check_shows_the_login_status_that_the_agent_reports() {
    for (kind, login) in [
        ("none", "login     NEEDED, unless it is given a key in another way: it says \"Who knows\". Log in with the"),
        ("account", "login     not needed to open a session\n"),
    ] {
        let (status, said, _) = Checked::new(&["--says-login", kind]).check(&["--ephemeral"]);
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains(login), "{said}");
    }
}

#[test]
fn agents_check_prints_each_agent_as_soon_as_its_probe_ends() {
    let mut checked = Checked::new(&[]);
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/agent.py");
    let env = format!("env = {{ {COOKIE} = {:?} }}", checked.cookie);
    checked.configure(&format!(
        "[agents.never]\ncommand = \"python3\"\nargs = [{agent:?}, \"--before-hello\", \"silence\"]\n{env}\n"
    ));
    let mut command = program();
    command.args([
        "agents",
        "check",
        "--ephemeral",
        "--timeout",
        "600",
        "--config",
        &checked.path("config.toml"),
    ]);
    command.env("PATH", std::env::var("PATH").unwrap());
    let mut process = Process::spawn(command);
    let mut said = Vec::new();
    while !said.iter().any(|line: &String| line.starts_with("  commands")) {
        said.push(process.next_line().expect("a line"));
    }
    assert_eq!(said[0], "a0");
    // The other one is waited for still.
    assert!(process.child.try_wait().unwrap().is_none());
    process.child.kill().unwrap();
    process.wait();
    let start = Instant::now();
    while !bearers(&checked.cookie).is_empty() {
        assert!(start.elapsed() < HUNG);
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn agents_check_shows_progress_on_a_terminal_and_strips_escape_sequences() {
    let checked = Checked::new(&[
        "--title",
        r"\x1b]0;owned\x07Evil \x1b[31mred\x1b[0m \x9b2Jagent",
        "--before-new",
        "0.5",
    ]);
    // Nothing but text where stdout is no terminal.
    let (_, said, complaints) = checked.check(&["--ephemeral"]);
    assert!(said.contains("is        Evil red agent 1\n") && !said.contains('\u{1b}'), "{said:?}");
    assert_eq!(complaints, "");
    let plain = program();
    let mut command = Command::new("python3");
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["-c", "import pty, sys; pty.spawn(sys.argv[1:])"]).arg(plain.get_program());
    command.args(["agents", "check", "--ephemeral", "--config", &checked.path("config.toml")]);
    command.env("PATH", std::env::var("PATH").unwrap());
    let shown = String::from_utf8(command.stdin(Stdio::null()).output().unwrap().stdout).unwrap();
    assert!(
        shown.contains("\r\u{1b}[K| waiting for a0 (0 s)") && shown.contains("\u{1b}[K/ waiting"),
        "{shown:?}"
    );
    // The line is gone when the agent is told of, and no other sequence is there.
    assert!(shown.contains("\r\u{1b}[Ka0\r\n") && shown.contains("Evil red agent 1"), "{shown:?}");
    assert_eq!(shown.matches('\u{1b}').count(), shown.matches("\r\u{1b}[K").count(), "{shown:?}");
}

#[test]
fn agents_check_answers_each_wrong_configuration_with_the_correction() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("agent");
    write_program(&script, "#!/usr/bin/env no-such-node\n");
    let (script, folder) = (script.to_str().unwrap(), folder.path());
    let config = folder.join("config.toml");
    for (text, status, advice) in [
        ("[agents.x]\ncommand = \"no-such acp\"", 1, r#"write `command = "no-such"` and `args = ["acp"]`"#),
        ("[agents.script]\ncommand = \"x\"", 2, "the name `script` is reserved for the built-in agent"),
        ("[agents]\nx = \"no-such acp\"", 2, "write\n\n[agents.x]\ncommand = \"no-such\"\nargs = [\"…\"]"),
        (&format!("[agents.x]\ncommand = {script:?}"), 1, "`no-such-node`, which is not on the search path"),
        (
            &format!("[agents.x]\ncommand = {folder:?}"),
            1,
            "is a folder: configure the path of the program in it",
        ),
    ] {
        fs::write(&config, text).unwrap();
        let mut command = program();
        command
            .args(["agents", "check", "--ephemeral", "--config"])
            .arg(&config)
            .env("PATH", "/usr/bin:/bin");
        let Output { status: ended, stdout, stderr } = command.output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert_eq!(ended.code(), Some(status), "{said}");
        assert!(said.contains(advice), "{text}: {said}");
    }
}

#[test]
fn agents_check_beside_a_running_host_warns_that_nothing_is_stored() {
    let checked = Checked::new(&[]);
    let state = checked.path("state");
    let (process, _) = checked.host(&["--state-dir", &state]);
    let (status, said, complaint) = checked.check(&["--state-dir", &state]);
    assert_eq!(status, Some(3), "{complaint}");
    assert!(said.contains("is        The tests' agent 1"), "{said}");
    assert!(complaint.contains("the results were not stored") && complaint.contains("is in use by another"));
    ended(process);
}

#[test]
fn config_request_for_an_unprobed_agent_starts_a_probe_in_the_background() {
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
fn script_agent_is_not_the_default_beside_others_and_can_be_disabled() {
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
