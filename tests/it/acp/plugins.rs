//! MCP servers in plugins of clients: which of them an agent is given.

use super::*;

/// Secret in a plugin; no output of the host may have it.
const SECRET: &str = "c0ffee-c0ffee-3";

const ID: &str = "the plugin";

/// Starts a host that logs everything, with these lines at the beginning of its configuration.
fn start(lines: &str) -> Watched {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--can", "http", "--can", "resume", "--can", "close"];
    let mut setting = Setting::with(&arguments).limit("[mcp.mine]\ncommand = \"true\"\n");
    setting.log = Some("trace");
    setting.flags = vec!["--state-dir".to_owned(), folder.path().join("state").to_str().unwrap().to_owned()];
    let (mut host, cookie) = setting.command(folder.path());
    let config = folder.path().join("config.toml");
    fs::write(&config, lines.to_owned() + &fs::read_to_string(&config).unwrap()).unwrap();
    host.stderr(Stdio::from(fs::File::create(folder.path().join("log")).unwrap()));
    Watched::start(host, cookie, folder)
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
        self.dispatch_session(json!({ "type": "session/activeClientSet", "activeClient": { "clientId": "me",
            "tools": [], "customizations": [{ "type": "plugin", "id": ID, "uri": "virtual:/p", "name": "P",
            "nonce": nonce }] } }));
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
