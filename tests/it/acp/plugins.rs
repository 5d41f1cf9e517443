//! MCP servers in plugins of clients: which of them an agent is given, and hosts that are killed
//! while they fetch a plugin.

use std::collections::{BTreeSet, VecDeque};

use super::*;
use crate::support::is_kept_program;

/// Secret in a plugin; no output of the host may have it.
const SECRET: &str = "c0ffee-c0ffee-3";

const ID: &str = "the plugin";

/// Starts a host that logs everything, with these lines at the beginning of its configuration.
fn start(lines: &str) -> Watched {
    let folder = tempfile::tempdir().unwrap();
    let (host, cookie) = command(folder.path(), lines);
    Watched::start(host, cookie, folder)
}

/// Returns the command of such a host, with its cookie.
fn command(folder: &Path, lines: &str) -> (Command, String) {
    let arguments = ["--can", "http", "--can", "resume", "--can", "close"];
    let mut setting = Setting::with(&arguments).limit("[mcp.mine]\ncommand = \"true\"\n");
    setting.log = Some("trace");
    setting.flags = vec!["--state-dir".to_owned(), folder.join("state").to_str().unwrap().to_owned()];
    let (mut host, cookie) = setting.command(folder);
    let config = folder.join("config.toml");
    fs::write(&config, lines.to_owned() + &fs::read_to_string(&config).unwrap()).unwrap();
    host.stderr(Stdio::from(fs::File::create(folder.join("log")).unwrap()));
    (host, cookie)
}

/// A plugin with a server at a URL, a program, and a server with the name of the operator's.
fn servers() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/mcp_server.py");
    let servers = json!({ "mcpServers": {
        "web": { "type": "http", "url": format!("http://127.0.0.1:1/{SECRET}"), "headers": { "KEY": SECRET } },
        "run": { "command": "python3", "args": [script], "env": { "KEY": SECRET } },
        "mine": { "url": "http://127.0.0.1:1/" } } });
    servers.to_string()
}

impl Watched {
    /// Publishes a plugin with this file of servers, serves it, and waits until it is loaded.
    /// Returns it as it is shown then.
    fn publish(&mut self, nonce: &str, servers: &str) -> Value {
        self.publish_only(nonce);
        loop {
            let message = self.process.next();
            assert!(message.get("error").is_none(), "{message}");
            let result = match message["method"].as_str() {
                Some("resourceList") => json!({ "entries": [{ "name": ".mcp.json", "type": "file" }] }),
                Some("resourceRead") => json!({ "data": servers, "encoding": "utf-8" }),
                _ => {
                    let shown = &message["params"]["action"]["customization"];
                    if shown["id"] == ID && shown["load"]["kind"] != "loading" {
                        return shown.clone();
                    }
                    continue;
                }
            };
            self.say(json!({ "id": message["id"], "result": result }));
        }
    }

    fn publish_only(&mut self, nonce: &str) {
        self.dispatch_session(json!({ "type": "session/activeClientSet", "activeClient": { "clientId": "me",
            "tools": [], "customizations": [{ "type": "plugin", "id": ID, "uri": "virtual:/p", "name": "P",
            "nonce": nonce }] } }));
    }

    fn dispatch_session(&mut self, action: Value) {
        self.sequence += 1;
        self.say(json!({ "method": "dispatchAction", "params":
            { "channel": SESSION, "clientSeq": self.sequence, "action": action } }));
    }
}

/// Checks that no file that the host has written has the secret.
fn check_no_secret(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check_no_secret(&path);
        } else if path.is_file() {
            let bytes = fs::read(&path).unwrap();
            let has = bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
            assert!(!has, "{} has the secret", path.display());
        }
    }
}

#[test]
fn servers_of_a_plugin_reach_the_agent_as_far_as_the_operator_allows() {
    for (allowed, given, refused) in [
        ("", "mine:stdio", ["web", "run", "mine"].as_slice()),
        ("client_mcp = \"http\"\n", "mine:stdio web:http", &["run", "mine"]),
        ("client_mcp = \"all\"\n", "mine:stdio run:stdio web:http", &["mine"]),
    ] {
        let mut watched = start(allowed);
        watched.session();
        watched.until_ready();
        let shown = watched.publish("1", &servers());
        assert_eq!(shown["load"]["kind"], "degraded", "{shown}");
        for name in ["web", "run", "mine"] {
            let why = format!("the server `{name}` is not given");
            let says = shown["load"]["message"].as_str().unwrap().contains(&why);
            assert_eq!(says, refused.contains(&name), "{shown}");
        }
        assert!(!shown.to_string().contains(SECRET), "{shown}");
        assert_eq!(watched.turn("t1", "given"), given);
        if allowed.contains("all") {
            assert_eq!(watched.turn("t2", "use run length"), format!("a key of {}", SECRET.len()));
        }
        check_no_secret(watched.leave().unwrap().path());
    }
}

#[test]
fn servers_of_a_plugin_change_with_it_are_switched_and_leave_with_their_client() {
    let mut watched = start("client_mcp = \"all\"\n");
    watched.session();
    watched.until_ready();
    let server = |key: &str| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/mcp_server.py");
        json!({ "run": { "command": "python3", "args": [script], "env": { "KEY": key } } }).to_string()
    };
    assert_eq!(watched.publish("1", &server("x"))["load"]["kind"], "loaded");
    assert_eq!(watched.turn("t1", "use run length"), "a key of 1");
    // Its id is the same, but not its description.
    watched.publish("2", &server("long"));
    assert_eq!(watched.turn("t2", "use run length"), "a key of 4");
    let toggle = |enabled: bool| {
        json!({ "type": "session/customizationToggled", "id": ID,
            "enablement": [{ "kind": "session", "enabled": enabled }] })
    };
    watched.dispatch_session(toggle(false));
    assert_eq!(watched.turn("t3", "given"), "mine:stdio");
    watched.dispatch_session(toggle(true));
    assert_eq!(watched.turn("t4", "given"), "mine:stdio run:stdio");
    watched.dispatch_session(json!({ "type": "session/activeClientRemoved", "clientId": "me" }));
    assert_eq!(watched.turn("t5", "given"), "mine:stdio");
    watched.leave();
}

/// Configuration with which the host gives agents a plugin's servers at URLs.
const HTTP: &str = "client_mcp = \"http\"\n";

/// The client's side of the fetch of a plugin with a server and a prompt.
#[derive(Default)]
struct PluginClient {
    /// Requests that are not answered yet.
    open: VecDeque<Value>,
    /// Number of requests of the host.
    asked: usize,
    /// The plugin as it was shown last.
    shown: Value,
}

impl PluginClient {
    /// Reads messages until the plugin or a message is as wanted.
    fn until(&mut self, watched: &mut Watched, mut wanted: impl FnMut(&Self, &Value) -> bool) {
        loop {
            let message = watched.process.next();
            assert!(message.get("error").is_none(), "{message}");
            self.note_shown(&message);
            match message["method"].as_str() {
                Some("resourceList" | "resourceRead") => {
                    self.asked += 1;
                    self.open.push_back(message.clone());
                }
                Some("action") => watched.heard.push(message["params"]["action"].clone()),
                _ => {}
            }
            if wanted(self, &message) {
                return;
            }
        }
    }

    /// Notes the plugin wherever a message shows it, and checks that it is whole or has no parts.
    fn note_shown(&mut self, value: &Value) {
        if value["id"] == ID && value.get("load").is_some() {
            let parts = value["children"].as_array().into_iter().flatten();
            let names: Vec<&str> = parts.filter_map(|part| part["name"].as_str()).collect();
            let whole: &[&str] = if is_loaded(value) { &["greet", "web"] } else { &[] };
            assert_eq!(BTreeSet::from_iter(names), BTreeSet::from_iter(whole.iter().copied()), "{value}");
            self.shown = value.clone();
        }
        match value {
            Value::Object(members) => members.values().for_each(|value| self.note_shown(value)),
            Value::Array(items) => items.iter().for_each(|value| self.note_shown(value)),
            _ => {}
        }
    }

    fn answer_one(&mut self, watched: &mut Watched) {
        let Some(request) = self.open.pop_front() else { return };
        let result = match request["params"]["uri"].as_str().unwrap() {
            "virtual:/p" => json!({ "entries": [
                { "name": ".mcp.json", "type": "file" }, { "name": "commands", "type": "directory" }] }),
            "virtual:/p/commands" => json!({ "entries": [{ "name": "greet.md", "type": "file" }] }),
            "virtual:/p/.mcp.json" => {
                let web = json!({ "web": { "url": format!("http://127.0.0.1:1/{SECRET}") } });
                json!({ "data": json!({ "mcpServers": web }).to_string(), "encoding": "utf-8" })
            }
            "virtual:/p/commands/greet.md" => {
                json!({ "data": format!("Say {SECRET}"), "encoding": "utf-8" })
            }
            other => panic!("the host asks for {other}"),
        };
        watched.say(json!({ "id": request["id"], "result": result }));
    }

    /// Asks the agent which servers it was given.
    fn given(&mut self, watched: &mut Watched, turn: &str) -> String {
        watched.begin(turn, "given");
        self.until(watched, |_, message| message["params"]["action"]["type"] == "chat/turnComplete");
        watched.answer_text()
    }
}

fn is_loaded(plugin: &Value) -> bool {
    plugin["load"]["kind"] == "loaded"
}

/// Returns the files below a folder, by their paths, but for a kept program.
fn files_in(folder: &Path) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(
                files_in(&path).into_iter().map(|file| Path::new(path.file_name().unwrap()).join(file)),
            );
        } else if !is_kept_program(&path) {
            files.insert(path.file_name().unwrap().into());
        }
    }
    files
}

/// Publishes a plugin, and kills the host at a moment of the fetch: 0 when it is published, then by
/// turns when a request has come and when it has been answered. Returns the client's side.
fn kill_at(moment: usize, watched: &mut Watched) -> PluginClient {
    let mut client = PluginClient::default();
    watched.publish_only("1");
    for step in 1..=moment {
        if step % 2 == 0 {
            client.answer_one(watched);
        } else if client.open.is_empty() && !is_loaded(&client.shown) {
            client.until(watched, |client, _| !client.open.is_empty() || is_loaded(&client.shown));
        }
    }
    watched.process.child.kill().unwrap();
    watched.process.wait();
    watched.wait_for_agents(0);
    client
}

#[test]
fn host_killed_between_any_two_steps_of_a_fetch_shows_gives_and_stores_no_half_of_a_plugin() {
    let prepared = || {
        let mut watched = start(HTTP);
        watched.session();
        watched.until_ready();
        assert_eq!(watched.turn("t1", "given"), "mine:stdio");
        watched
    };
    let state = |watched: &Watched| watched.folder.as_ref().unwrap().path().join("state");
    let mut without = prepared();
    without.process.child.kill().unwrap();
    without.process.wait();
    let files = files_in(&state(&without));
    let mut is_over = false;
    for moment in 0.. {
        let mut watched = prepared();
        let first = kill_at(moment, &mut watched);
        is_over = is_over || is_loaded(&first.shown);
        assert_eq!(files_in(&state(&watched)), files, "moment {moment}");
        let folder = watched.folder.take().unwrap();
        check_no_secret(folder.path());

        let (host, cookie) = command(folder.path(), HTTP);
        let process = Process::spawn(host);
        let mut watched = Watched { process, cookie, sequence: 10, folder: Some(folder), heard: Vec::new() };
        let chat = default_chat_of(SESSION);
        watched.say(json!({ "id": 50, "method": "reconnect", "params": { "channel": "ahp-root://",
            "clientId": "me", "lastSeenServerSeq": 0, "subscriptions": ["ahp-root://", SESSION, chat] } }));
        let mut client = PluginClient::default();
        client.until(&mut watched, |_, message| message["id"] == 50 && message.get("result").is_some());
        assert_eq!(client.given(&mut watched, "t2"), "mine:stdio", "moment {moment}");
        watched.publish_only("1");
        // What was shown before the restart may have come again with the answer.
        client.shown = Value::Null;
        while !is_loaded(&client.shown) {
            if client.open.is_empty() {
                client.until(&mut watched, |client, _| !client.open.is_empty() || is_loaded(&client.shown));
            }
            client.answer_one(&mut watched);
        }
        assert!(client.asked > 0, "moment {moment}: nothing was fetched again");
        assert_eq!(client.given(&mut watched, "t3"), "mine:stdio web:http", "moment {moment}");
        check_no_secret(watched.leave().unwrap().path());
        if is_over {
            assert!(moment >= 8, "the fetch is over at moment {moment}");
            return;
        }
    }
}
