//! The configuration file.
//!
//! Owns: where the real program looks for one that is not named, that it is not needed, and what
//! becomes of a running host when the file changes.
//! Never: reads the one of whoever runs it; each test has a home of its own.
// Elsewhere the folder has another name.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{json, Value};
use tempfile::TempDir;

use crate::support::{sidecar, window_on, Process};
use crate::windows::{check_no_leftovers, host_of, refused, Window};

/// The agents of a host with this environment and these arguments, but for the built-in one.
fn agents(environment: &[(&str, &Path)], arguments: &[&str]) -> Vec<String> {
    let mut command = sidecar();
    command.envs(environment.iter().copied()).args(arguments);
    let mut process = Process::spawn(command);
    let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"],
        "initialSubscriptions": ["ahp-root://"] });
    process.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello }).to_string());
    let root = process.next()["result"]["snapshots"][0]["state"].take();
    process.end();
    assert_eq!(process.wait().code(), Some(0));
    let agents = root["agents"].as_array().unwrap().iter();
    let names = agents.map(|agent| agent["provider"].as_str().unwrap().to_owned());
    names.filter(|name| name != "script").collect()
}

/// Makes the file below a folder for configuration, with one agent.
fn write(folder: &Path, agent: &str) {
    fs::create_dir_all(folder.join("ahp-sidecar")).unwrap();
    let text = format!("[agents.{agent}]\ncommand = '/no/such/{agent}'");
    fs::write(folder.join("ahp-sidecar/config.toml"), text).unwrap();
}

#[test]
fn config_file_is_found_in_the_xdg_config_folder() {
    let outer = TempDir::new().unwrap();
    let (home, config) = (outer.path().join("home"), outer.path().join("config"));
    let named = outer.path().join("named.toml");
    fs::write(&named, "[agents.named]\ncommand = 'named'").unwrap();
    assert_eq!(agents(&[("HOME", &home)], &[]), [""; 0]);
    write(&home.join(".config"), "home");
    write(&config, "config");
    assert_eq!(agents(&[("HOME", &home)], &[]), ["home"]);
    assert_eq!(agents(&[("HOME", &home), ("XDG_CONFIG_HOME", &config)], &[]), ["config"]);
    assert_eq!(agents(&[("HOME", &home), ("XDG_CONFIG_HOME", Path::new("config"))], &[]), ["home"]);
    assert_eq!(agents(&[("HOME", &home)], &["--config", named.to_str().unwrap()]), ["named"]);
    assert_eq!(agents(&[("HOME", &home)], &["--config", "/dev/null"]), [""; 0]);
    assert_eq!(agents(&[("HOME", &home)], &["--agent", "flag=x", "--agent", "home=y"]), ["flag", "home"]);
    // A relative home is none.
    assert_eq!(agents(&[("HOME", Path::new("home"))], &[]), [""; 0]);
}

#[test]
fn invalid_config_file_or_missing_named_one_is_refused() {
    let home = TempDir::new().unwrap();
    let refused = |arguments: &[&str]| {
        let mut command = sidecar();
        let output = command.env("HOME", home.path()).args(arguments).stdin(Stdio::null()).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let missing = home.path().join("no/such.toml");
    assert!(refused(&["--config", missing.to_str().unwrap()]).contains("no/such.toml"));
    let pipe = home.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for (file, why) in [
        (&*pipe, "nobody has written anything to it"),
        (home.path(), "directory"),
        (Path::new("/dev/zero"), "larger than"),
    ] {
        let told = refused(&["--config", file.to_str().unwrap()]);
        assert!(told.contains(&format!("`{}`", file.display())) && told.contains(why), "{told}");
    }
    write(&home.path().join(".config"), "a]\nwrong = [");
    assert!(refused(&[]).contains(".config/ahp-sidecar/config.toml"));
}

/// Windows on one state folder, with one configuration file.
struct Windows {
    outer: TempDir,
    folder: PathBuf,
    config: PathBuf,
}

impl Windows {
    /// With this configuration.
    fn with(text: &str) -> Self {
        let outer = TempDir::new().unwrap();
        let (folder, config) = (outer.path().join("state"), outer.path().join("config.toml"));
        fs::write(&config, text).unwrap();
        Self { outer, folder, config }
    }

    fn command(&self) -> Command {
        let mut command = window_on(&self.folder);
        command.arg("--config").arg(&self.config).env("PATH", std::env::var_os("PATH").unwrap());
        command
    }

    fn open(&self, client: &str) -> Window {
        Window::of(self.command(), client)
    }

    /// Writes another content as editors do, in the place of the file.
    fn write(&self, text: &str) {
        let new = self.outer.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &self.config).unwrap();
    }
}

fn described(agents: &[&str]) -> String {
    agents.iter().map(|agent| format!("[agents.{agent}]\ncommand = '/no/such/{agent}'\n")).collect()
}

fn names(agents: &Value) -> Vec<String> {
    agents.as_array().unwrap().iter().map(|agent| agent["provider"].as_str().unwrap().to_owned()).collect()
}

/// The agents that a window is shown, which follows them from then on.
fn offered(window: &mut Window) -> Vec<String> {
    names(
        &window.ask("subscribe", json!({ "channel": "ahp-root://" }))["result"]["snapshot"]["state"]
            ["agents"],
    )
}

fn announced_agents(window: &mut Window) -> Vec<String> {
    names(&window.until("root/agentsChanged").pop().unwrap()["params"]["action"]["agents"])
}

#[test]
fn agents_of_a_changed_config_file_reach_new_and_open_windows() {
    let windows = Windows::with(&described(&["a", "b"]));
    let mut first = windows.open("first");
    let host = host_of(&windows.folder);
    assert_eq!(offered(&mut first), ["a", "b", "script"]);
    for agents in [&["a", "b", "c"][..], &["c"], &[], &["b"]] {
        windows.write(&described(agents));
        let expected = [agents, &["script"]].concat();
        let mut next = windows.open("next");
        assert_eq!(offered(&mut next), expected, "it is shown at once");
        assert_eq!(announced_agents(&mut first), expected);
        assert_eq!(next.end(), Some(0));
    }
    assert_eq!(host_of(&windows.folder), host);
    assert_eq!(first.end(), Some(0));
    check_no_leftovers(&windows.folder);
}

#[test]
fn changed_config_file_is_reloaded_without_a_new_window() {
    let windows = Windows::with(&described(&["a"]));
    let mut only = windows.open("only");
    assert_eq!(offered(&mut only), ["a", "script"]);
    windows.write(&described(&["a", "b"]));
    assert_eq!(announced_agents(&mut only), ["a", "b", "script"]);
    // In place, and a link that is turned.
    fs::write(&windows.config, described(&["b"])).unwrap();
    assert_eq!(announced_agents(&mut only), ["b", "script"]);
    let other = windows.outer.path().join("other.toml");
    fs::write(&other, described(&["c"])).unwrap();
    fs::remove_file(&windows.config).unwrap();
    std::os::unix::fs::symlink(&other, &windows.config).unwrap();
    assert_eq!(announced_agents(&mut only), ["c", "script"]);
    fs::write(&other, described(&["d"])).unwrap();
    assert_eq!(announced_agents(&mut only), ["d", "script"]);
    assert_eq!(only.end(), Some(0));
}

#[test]
fn created_or_removed_default_config_file_is_reloaded_by_every_kind_of_host() {
    let home = TempDir::new().unwrap();
    let file = home.path().join(".config/ahp-sidecar/config.toml");
    for arguments in [&["--ephemeral"][..], &["--exclusive", "--state-dir", "s"], &["--state-dir", "s"]] {
        let mut command = crate::support::program();
        command.env("HOME", home.path()).current_dir(home.path()).args(arguments);
        let mut window = Window::of(command, "me");
        assert_eq!(offered(&mut window), ["script"]);
        write(&home.path().join(".config"), "late");
        assert_eq!(announced_agents(&mut window), ["late", "script"]);
        fs::remove_file(&file).unwrap();
        assert_eq!(announced_agents(&mut window), ["script"]);
        assert_eq!(window.end(), Some(0));
    }
}

#[test]
fn invalid_changed_config_file_is_reported_and_windows_still_start() {
    let windows = Windows::with("[agents.");
    let alone = refused(windows.command(), 2);
    assert!(alone.contains("config.toml"), "{alone}");
    assert!(!windows.folder.exists(), "there was nothing to join");
    windows.write(&described(&["a"]));
    let mut first = windows.open("first");
    assert_eq!(offered(&mut first), ["a", "script"]);
    windows.write("[agents.b]\ncommand = '/no/such/b'\nworking = 1");
    for round in 0..2 {
        let mut command = windows.command();
        command.stderr(Stdio::piped());
        let mut next = Window::of(command, "next");
        assert_eq!(offered(&mut next), ["a", "script"]);
        let mut stderr = next.process.child.stderr.take().unwrap();
        assert_eq!(next.end(), Some(0));
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        let told = said.lines().filter(|line| line.contains("config.toml")).collect::<Vec<_>>();
        assert!(told.len() == 1 && told[0].contains("is not applied"), "round {round}: {said}");
    }
    let log = fs::read_to_string(windows.folder.join("host.log")).unwrap();
    assert_eq!(log.matches("is not applied").count(), 1, "{log}");
    windows.write(&described(&["b"]));
    assert_eq!(announced_agents(&mut first), ["b", "script"]);
    assert_eq!(first.end(), Some(0));
    // A process that has nobody to go on says so, and leaves nothing behind that a later one
    // stumbles over.
    windows.write("[agents.");
    refused(windows.command(), 2);
    windows.write(&described(&["b"]));
    assert_eq!(windows.open("last").end(), Some(0));
}

#[test]
fn config_file_with_other_agents_is_refused_with_the_differences() {
    let windows = Windows::with(&described(&["a"]));
    let first = windows.open("first");
    let other = windows.outer.path().join("other.toml");
    let window = |text: &str| {
        fs::write(&other, text).unwrap();
        let mut command = window_on(&windows.folder);
        command.arg("--config").arg(&other).env("PATH", std::env::var_os("PATH").unwrap());
        command
    };
    let said = refused(window(&described(&["b"])), 3);
    for told in ["other.toml", "config.toml", "the agent `a`", "the agent `b`"] {
        assert!(said.contains(told), "`{told}` is not told: {said}");
    }
    assert_eq!(Window::of(window(&described(&["a"])), "alike").end(), Some(0));
    assert_eq!(first.end(), Some(0));
}

/// An agent that can say how long the variable is that tells its descriptions apart.
fn speaking(which: &str) -> String {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/agent.py");
    format!("[agents.a]\ncommand = 'python3'\nargs = [{agent:?}]\nenv = {{ WHICH = {which:?} }}\n")
}

#[test]
fn running_conversation_retains_its_agent_and_a_new_one_gets_the_changed_agent() {
    let windows = Windows::with(&speaking("old"));
    let mut window = windows.open("me");
    let chat = |name: &str| ahp_sidecar::wire::uris::default_chat_of(&format!("ahp-session:/{name}"));
    let make = |window: &mut Window, name: &str| {
        let session = json!({ "channel": format!("ahp-session:/{name}"), "provider": "a" });
        let answer = window.ask("createSession", session);
        assert!(answer["error"].is_null(), "{answer}");
        window.ask("subscribe", json!({ "channel": chat(name) }));
    };
    let dispatch = |window: &mut Window, name: &str, action: Value| {
        let params = json!({ "channel": chat(name), "clientSeq": 1, "action": action });
        let line = json!({ "jsonrpc": "2.0", "method": "dispatchAction", "params": params });
        window.process.say(&line.to_string());
    };
    let begin = |window: &mut Window, name: &str, turn: &str, steps: &str| {
        let message = json!({ "text": steps, "origin": { "kind": "user" } });
        dispatch(window, name, json!({ "type": "chat/turnStarted", "turnId": turn, "message": message }));
    };
    let said = |told: Vec<Value>| -> String {
        let texts = told.iter().filter_map(|told| {
            let action = &told["params"]["action"];
            action["content"].as_str().or(action["part"]["content"].as_str()).map(str::to_owned)
        });
        texts.collect()
    };
    make(&mut window, "one");
    begin(&mut window, "one", "t1", "ask\nvariable WHICH");
    let asked = window.until("chat/toolCallReady").pop().unwrap();
    offered(&mut window);
    windows.write(&speaking("newer"));
    // It looks the same to clients.
    assert_eq!(windows.open("other").end(), Some(0));
    make(&mut window, "two");
    begin(&mut window, "two", "t", "variable WHICH");
    let told = said(window.until("chat/turnComplete"));
    assert!(told.contains("5 characters"), "{told:?}");
    let confirmed = json!({ "type": "chat/toolCallConfirmed", "turnId": "t1", "approved": true,
        "toolCallId": asked["params"]["action"]["toolCallId"], "confirmed": "user-action" });
    dispatch(&mut window, "one", confirmed);
    assert!(said(window.until("chat/turnComplete")).contains("3 characters"), "its turn is over");
    // One that was removed is not offered any more; conversations with it go on.
    windows.write("");
    assert_eq!(announced_agents(&mut window), ["script"]);
    let refused = window.ask("createSession", json!({ "channel": "ahp-session:/three", "provider": "a" }));
    assert!(refused["error"].is_object(), "{refused}");
    for (name, which) in [("one", "3 characters"), ("two", "5 characters")] {
        begin(&mut window, name, "last", "variable WHICH");
        assert!(said(window.until("chat/turnComplete")).contains(which), "{name}");
    }
    assert_eq!(window.end(), Some(0));
    check_no_leftovers(&windows.folder);
}
