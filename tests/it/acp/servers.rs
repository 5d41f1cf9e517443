//! MCP servers of the operator: which of them an agent is given, and how they do there.

use super::*;
use crate::process::wait_until;

/// Secret that servers need; no output of the host may have it.
const SECRET: &str = "c0ffee-c0ffee-1";

const OTHER_SECRET: &str = "7ea-7ea-7ea-2";

/// A section of the configuration for a server of the tests on stdio.
fn section(name: &str, members: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/mcp_server.py");
    format!("[mcp.{name}]\ncommand = \"python3\"\nargs = [{script:?}]\n{members}\n")
}

/// Starts a host with these servers, a log that has all messages, and secrets.
fn start(arguments: &[&str], servers: &str, flags: &[&str]) -> Watched {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), format!("{OTHER_SECRET}\n")).unwrap();
    let mut setting = Setting::with(arguments).limit(servers);
    setting.log = Some("trace");
    setting.flags =
        flags.iter().map(|flag| flag.replace("FOLDER", folder.path().to_str().unwrap())).collect();
    let (mut host, cookie) = setting.command(folder.path());
    host.env("MCP_TEST_SECRET", SECRET);
    host.stderr(Stdio::from(fs::File::create(folder.path().join("log")).unwrap()));
    Watched::start(host, cookie, folder)
}

impl Watched {
    /// The servers in the state of the session, by name: the kind of the state, and its error.
    fn servers(&mut self) -> Vec<(String, String, String)> {
        self.say(json!({ "id": 70, "method": "subscribe", "params": { "channel": SESSION } }));
        let mut found = Vec::new();
        self.process.until(|message| {
            let servers = message["result"]["snapshot"]["state"]["customizations"].as_array();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            found = servers
                .into_iter()
                .flatten()
                .map(|server| {
                    let state = &server["state"];
                    (text(&server["name"]), text(&state["kind"]), text(&state["error"]["message"]))
                })
                .collect();
            message["id"] == 70
        });
        found
    }

    fn server(&mut self, name: &str) -> (String, String) {
        let servers = self.servers().into_iter();
        servers.filter(|server| server.0 == name).map(|server| (server.1, server.2)).next().unwrap()
    }

    fn ask_session(&mut self, action: Value) {
        self.sequence += 1;
        self.say(json!({ "method": "dispatchAction", "params":
            { "channel": SESSION, "clientSeq": self.sequence, "action": action } }));
    }

    fn toggle(&mut self, name: &str, enabled: bool) {
        self.ask_session(json!({ "type": "session/customizationToggled", "id": format!("mcp:{name}"),
            "enablement": [{ "kind": "session", "enabled": enabled }] }));
    }

    /// Waits until a server is in this state.
    fn until_server(&mut self, name: &str, kind: &str) {
        self.action_where(|action| {
            action["type"] == "session/mcpServerStateChanged"
                && action["id"] == format!("mcp:{name}")
                && action["state"]["kind"] == kind
        });
    }
}

/// Checks that no file of the folder has a secret, but for those that the test itself has written.
fn check_no_secrets(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check_no_secrets(&path);
        } else if path.is_file() && !path.ends_with("secret") && !path.ends_with("config.toml") {
            let bytes = fs::read(&path).unwrap();
            for secret in [SECRET, OTHER_SECRET, "literal-secret"] {
                let has = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
                assert!(!has, "{} has `{secret}`", path.display());
            }
        }
    }
}

#[test]
fn agent_gets_the_servers_that_it_supports_and_uses_their_tools() {
    let servers = [
        section("one", "env = { KEY = { env = \"MCP_TEST_SECRET\" } }"),
        section("two", "env = { KEY = { file = \"secret\" }, L = \"literal-secret\" }"),
        section("unset", "env = { KEY = { env = \"MCP_TEST_UNSET\" } }"),
        section("elsewhere", "agents = [\"other\"]"),
        section("off", "enabled = false"),
        "[mcp.absent]\ncommand = \"no-such-server\"\n".to_owned(),
        "[mcp.web]\nurl = \"http://127.0.0.1:1/\"\n".to_owned(),
        "[mcp.wrong]\ncommand = 7\n".to_owned(),
    ];
    let mut watched = start(&[], &servers.concat(), &["--state-dir", "FOLDER/state"]);
    watched.session();
    watched.until_ready();
    assert_eq!(watched.turn("t1", "given"), "one:stdio two:stdio");
    let states = watched.servers();
    let kinds: Vec<(&str, &str)> = states.iter().map(|(name, kind, _)| (&**name, &**kind)).collect();
    let expected = [
        ("absent", "error"),
        ("off", "stopped"),
        ("one", "ready"),
        ("two", "ready"),
        ("unset", "error"),
        ("web", "error"),
        ("wrong", "error"),
    ];
    assert_eq!(kinds, expected, "{states:?}");
    let problem = |name: &str| states.iter().find(|server| server.0 == name).unwrap().2.clone();
    assert!(problem("absent").contains("no-such-server"), "{states:?}");
    assert!(problem("unset").contains("`MCP_TEST_UNSET` is not set"), "{states:?}");
    assert!(problem("web").contains("does not support MCP servers over HTTP"), "{states:?}");
    assert!(problem("wrong").contains("`command` must be a text"), "{states:?}");
    assert_eq!(watched.turn("t2", "use one length"), format!("a key of {}", SECRET.len()));
    assert_eq!(watched.turn("t3", "use two length"), format!("a key of {}", OTHER_SECRET.len()));
    let folder = watched.leave().unwrap();
    assert!(fs::read_to_string(folder.path().join("log")).unwrap().contains("MCP_TEST_UNSET"));
    check_no_secrets(folder.path());
}

#[test]
fn server_over_http_is_given_to_an_agent_that_supports_it() {
    let mut server = Command::new("python3");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/mcp_server.py");
    let place = tempfile::tempdir().unwrap();
    let port = place.path().join("port");
    let mut server = server.arg(script).arg("--http").arg(&port).spawn().unwrap();
    wait_until("the server listens", || port.exists());
    let url = format!("http://127.0.0.1:{}/", fs::read_to_string(&port).unwrap());
    let web = format!("[mcp.web]\nurl = {url:?}\nheaders = {{ KEY = {{ env = \"MCP_TEST_SECRET\" }} }}\n");
    let mut watched = start(&["--can", "http"], &web, &[]);
    watched.session();
    assert_eq!(watched.turn("t1", "given\nuse web length"), format!("web:httpa key of {}", SECRET.len()));
    server.kill().unwrap();
    server.wait().unwrap();
    check_no_secrets(watched.leave().unwrap().path());
}

#[test]
fn server_that_crashes_takes_nothing_else_along() {
    let servers = section("one", "") + &section("two", "");
    let mut watched = start(&[], &servers, &[]);
    watched.session();
    assert_eq!(watched.turn("t1", "use one crash"), "the server is gone");
    assert_eq!(watched.turn("t2", "use two length"), "a key of 0");
    watched.leave();
}

#[test]
fn servers_are_switched_between_turns_of_an_agent_that_resumes() {
    let servers = section("one", "") + &section("two", "");
    let mut watched = start(&["--can", "resume", "--can", "close"], &servers, &[]);
    watched.session();
    assert_eq!(watched.turn("t1", "given"), "one:stdio two:stdio");
    watched.toggle("one", false);
    watched.until_server("one", "stopped");
    watched.until_server("two", "ready");
    assert_eq!(watched.turn("t2", "given"), "two:stdio");
    // Within a turn, it stays until the next one.
    watched.begin("t3", "say waiting, \nwait_for $CWD/go\ngiven");
    watched.action("chat/responsePart");
    watched.toggle("one", true);
    watched.toggle("two", false);
    watched.action_where(|action| action["id"] == "mcp:two");
    fs::write(watched.folder.as_ref().unwrap().path().join("go"), "").unwrap();
    assert_eq!(watched.ending("t3")["type"], "chat/turnComplete");
    assert_eq!(watched.answer_text(), "waiting, two:stdio");
    assert_eq!(watched.turn("t4", "given"), "one:stdio");
    assert_eq!((watched.server("one").0, watched.server("two").0), ("ready".into(), "stopped".into()));
    watched.leave();
}

#[test]
fn sessions_of_an_agent_that_shares_servers_have_a_process_each_if_their_servers_differ() {
    let servers = section("one", "") + &section("two", "");
    let sharing = ["--name", "OpenCode", "--shares-servers", "--can", "resume", "--can", "close"];
    let mut watched = start(&sharing, &servers, &[]);
    let other = "ahp-session:/other";
    watched.session();
    assert_eq!(watched.turn("t1", "given"), "one:stdio two:stdio");
    watched.create(other, "a0");
    watched.subscribe(other);
    let of_other = default_chat_of(other);
    assert_eq!(watched.turn_in(&of_other, "o1", "given"), "one:stdio two:stdio");
    assert_eq!(watched.agent_count(), 1);
    watched.toggle("one", false);
    watched.until_server("one", "stopped");
    assert_eq!(watched.turn("t2", "given"), "two:stdio");
    assert_eq!(watched.turn_in(&of_other, "o2", "given"), "one:stdio two:stdio");
    assert_eq!(watched.agent_count(), 2);
    watched.toggle("one", true);
    watched.until_server("one", "ready");
    assert_eq!(watched.turn("t3", "given"), "one:stdio two:stdio");
    watched.leave();
}

#[test]
fn switched_servers_wait_for_the_next_session_of_an_agent_that_cannot_resume() {
    let mut watched = start(&[], &section("one", ""), &[]);
    watched.session();
    assert_eq!(watched.turn("t1", "given"), "one:stdio");
    watched.toggle("one", false);
    assert_eq!(watched.turn("t2", "given"), "one:stdio");
    assert_eq!(watched.server("one").0, "ready", "the agent still has it");
    watched.leave();
}

#[test]
fn server_that_the_agent_cannot_start_has_an_error_until_it_is_started_again() {
    let arguments = ["--can", "resume", "--can", "close"];
    let mut watched = start(&arguments, &section("one", ""), &[]);
    watched.session();
    watched.turn("t1", "failed_server one");
    watched.release_agent();
    watched.until_server("one", "error");
    assert_eq!(watched.server("one").1, "it exited at once");
    watched.ask_session(json!({ "type": "session/mcpServerStartRequested", "id": "mcp:one" }));
    watched.until_server("one", "ready");
    assert_eq!(watched.turn("t2", "use one length"), "a key of 0");
    watched.leave();
}

#[test]
fn agent_that_repeats_a_secret_in_its_refusal_does_not_spread_it() {
    let servers = section("one", "env = { KEY = { env = \"MCP_TEST_SECRET\" } }");
    let mut watched = start(&["--at", "session/new=quote"], &servers, &["--state-dir", "FOLDER/state"]);
    watched.session();
    let failure = watched.creation_failure().to_string();
    assert!(failure.contains("No good") && failure.contains("(secret)"), "{failure}");
    assert!(!failure.contains(SECRET), "{failure}");
    check_no_secrets(watched.leave().unwrap().path());
}

#[test]
fn secret_stays_hidden_as_long_as_the_agent_that_knows_it_runs_and_without_its_prefix() {
    let bearer = "env = { KEY = { env = \"MCP_TEST_SECRET\", prefix = \"Bearer \" } }";
    let flags = ["--state-dir", "FOLDER/state"];
    let mut watched = start(&["--can", "resume", "--can", "close"], &section("one", bearer), &flags);
    watched.session();
    watched.until_ready();
    watched.turn("t1", "repeat");
    watched.toggle("one", false);
    assert_eq!(watched.turn("t2", "given"), "", "the session is another one");
    watched.turn("t3", "repeat");
    let folder = watched.leave().unwrap();
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert_eq!(log.matches("stderr: it was given (secret)").count(), 2, "{log}");
    check_no_secrets(folder.path());
}

#[test]
fn server_that_is_configured_later_reaches_an_open_session() {
    let mut watched = start(&["--can", "resume", "--can", "close"], "", &[]);
    watched.session();
    assert_eq!(watched.turn("t1", "given"), "");
    let config = watched.folder.as_ref().unwrap().path().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(config.with_extension("new"), text + &section("one", "")).unwrap();
    fs::rename(config.with_extension("new"), &config).unwrap();
    watched.action("session/customizationsChanged");
    watched.until_server("one", "ready");
    assert_eq!(watched.turn("t2", "use one length"), "a key of 0");
    watched.leave();
}

#[test]
fn files_of_other_programs_are_read_where_the_operator_names_them() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/acp/mcp_server.py");
    let file = json!({ "mcpServers": { "theirs": { "command": "python3", "args": [script],
        "env": { "KEY": "${MCP_TEST_SECRET}" } },
        "hidden": { "command": "/${MCP_TEST_SECRET}/x" } } });
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("theirs.json"), format!("\u{feff}{file}")).unwrap();
    let (mut host, cookie) = Setting::with(&[]).command(folder.path());
    let config = folder.path().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("mcp_files = [\"theirs.json\", \"absent.json\"]\n{text}")).unwrap();
    host.env("MCP_TEST_SECRET", SECRET);
    let mut watched = Watched::start(host, cookie, folder);
    watched.session();
    assert_eq!(watched.turn("t1", "use theirs length"), format!("a key of {}", SECRET.len()));
    let absent = watched.server("absent.json");
    assert!(absent.0 == "error" && absent.1.contains("cannot be read"), "{absent:?}");
    let hidden = watched.server("hidden");
    assert!(hidden.0 == "error" && hidden.1.contains("`(secret)` does not exist"), "{hidden:?}");
    watched.leave();
}
