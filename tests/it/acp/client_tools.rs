//! Tools of clients, as the agent uses them: through the MCP server that it is given.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;

use super::*;

const OTHER: &str = "ahp-chat:/other";

/// Result of the client tool `look`.
const SEEN: &str = "three files";

impl Watched {
    /// The client offers these tools in the session.
    fn offer(&mut self, tools: Value) {
        let client = json!({ "clientId": "me", "tools": tools });
        self.dispatch_to(SESSION, json!({ "type": "session/activeClientSet", "activeClient": client }));
    }

    fn dispatch_to(&mut self, channel: &str, action: Value) {
        self.sequence += 1;
        self.say(json!({ "method": "dispatchAction", "params":
            { "channel": channel, "clientSeq": self.sequence, "action": action } }));
    }

    /// Waits for a call that this client is to carry out: the call, as it was begun and as it is
    /// ready.
    fn call(&mut self) -> (Value, Value) {
        let begun = self.action("chat/toolCallStart");
        let id = begun["toolCallId"].clone();
        let ready =
            self.action_where(|action| action["type"] == "chat/toolCallReady" && action["toolCallId"] == id);
        (begun, ready)
    }

    fn carry_out(&mut self, channel: &str, turn: &str, call: &Value, text: &str) {
        let result = json!({ "success": true, "pastTenseMessage": "Looked",
            "content": [{ "type": "text", "text": text }] });
        self.dispatch_to(
            channel,
            json!({ "type": "chat/toolCallComplete", "turnId": turn, "toolCallId": call["toolCallId"],
                    "result": result }),
        );
    }

    /// A turn in which the client carries a call out that nobody is asked about; what was said.
    fn turn_with_call(&mut self, turn: &str, script: &str) -> String {
        self.begin(turn, script);
        let (begun, ready) = self.call();
        assert_eq!(begun["contributor"], json!({ "kind": "client", "clientId": "me" }), "{begun}");
        assert_eq!(ready["confirmed"], "not-needed");
        assert_eq!(ready["toolInput"], r#"{"x":1}"#);
        self.carry_out(&default_chat_of(SESSION), turn, &begun, SEEN);
        assert_eq!(self.ending(turn)["type"], "chat/turnComplete");
        self.answer_text()
    }
}

fn looks() -> Value {
    json!([{ "name": "look", "title": "Look around", "description": "Looks.",
             "inputSchema": { "type": "object", "properties": { "x": { "type": "number" } } } }])
}

/// A session whose agent uses MCP like this, with a client that offers a tool from the beginning.
fn begun(arguments: &[&str]) -> Watched {
    begun_with(Setting::with(arguments))
}

#[test]
fn agent_that_quotes_the_token_of_client_tools_does_not_spread_it() {
    let mut watched = begun(&["--mcp", "always", "--at", "session/new=quote"]);
    let failure = watched.creation_failure().to_string();
    assert!(failure.contains("AHP_SIDECAR_TOOLS_TOKEN") && failure.contains("(secret)"), "{failure}");
    watched.leave();
}

fn begun_with(setting: Setting) -> Watched {
    let mut watched = setting.start();
    let folder = watched.folder.as_ref().unwrap().path().to_str().unwrap().to_owned();
    watched.say(json!({ "id": 2, "method": "createSession", "params":
        { "channel": SESSION, "provider": "a0", "workingDirectories": [format!("file://{folder}")],
          "activeClient": { "clientId": "me", "tools": looks() } } }));
    watched.subscribe(SESSION);
    watched
}

#[test]
fn connections_without_a_token_do_not_exhaust_the_descriptors() {
    let mut watched = begun(&["--mcp", "always"]);
    watched.turn("t1", "knows");
    let files = |watched: &Watched| {
        std::fs::read_dir(format!("/proc/{}/fd", watched.process.child.id())).unwrap().count()
    };
    let before = files(&watched);
    watched.turn("t2", "client_strangers 200");
    assert!(files(&watched) < before + 50, "{} files are open, {before} before", files(&watched));
    watched.leave();
}

#[test]
fn client_tool_reaches_the_agent_unchanged_and_runs_in_the_client() {
    let mut watched = begun(&["--mcp", "always"]);
    let known: Value = serde_json::from_str(&watched.turn("t1", "knows")).unwrap();
    assert_eq!(known, looks());
    let said = watched.turn_with_call("t2", r#"client silent look {"x":1}"#);
    assert_eq!(said, format!("got {SEEN}"));
    let start = watched.received("chat/toolCallStart")[0].clone();
    assert_eq!((&start["toolName"], &start["displayName"]), (&json!("look"), &json!("Look around")));
    watched.leave();
}

#[test]
fn client_tool_call_of_an_agent_that_shares_servers_stays_in_its_session() {
    let sharing =
        ["--name", "OpenCode", "--shares-servers", "--mcp", "always", "--can", "resume", "--can", "close"];
    let mut watched = begun(&sharing);
    watched.turn("t1", "knows");
    // Without tools, sessions share a process.
    for session in ["ahp-session:/two", "ahp-session:/three"] {
        watched.create(session, "a0");
        watched.subscribe(session);
        watched.turn_in(&default_chat_of(session), "t1", "say hello");
    }
    assert_eq!(watched.agent_count(), 2);
    let client = json!({ "clientId": "me", "tools": looks() });
    let offers = json!({ "type": "session/activeClientSet", "activeClient": client });
    watched.dispatch_to("ahp-session:/two", offers);
    watched.turn_in(&default_chat_of("ahp-session:/two"), "t2", "knows");
    assert_eq!(watched.agent_count(), 3);
    let said = watched.turn_with_call("t2", r#"client opencode look {"x":1}"#);
    assert_eq!(said, format!("got {SEEN}"));
    watched.leave();
}

#[test]
fn client_tool_call_is_shown_once_whatever_updates_the_agent_sends() {
    for how in ["silent", "late", "claude", "codex", "zed", "opencode", "qwen"] {
        let mut watched = begun(&["--mcp", "always"]);
        for turn in ["t1", "t2"] {
            let said = watched.turn_with_call(turn, &format!(r#"client {how} look {{"x":1}}"#));
            assert_eq!(said, format!("got {SEEN}"), "{how}");
            for kind in ["chat/toolCallStart", "chat/toolCallReady", "chat/toolCallComplete"] {
                assert_eq!(watched.received(kind).len(), 1, "{how}: {:?}", watched.heard);
            }
        }
        watched.leave();
    }
}

#[test]
fn client_tool_called_again_by_a_resumed_turn_runs_again() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(folder.path());
    let script = r#"client silent look {"x":1}"#;
    let resumes = ["--can", "resume", "--memory", memory.to_str().unwrap(), "--goes-on", script];
    let mut watched = begun(&[&["--mcp", "always"], &resumes[..]].concat());
    watched.begin("t1", &format!("{script}\nkill"));
    let (first, _) = watched.call();
    watched.carry_out(&default_chat_of(SESSION), "t1", &first, "before");
    let ending = watched.ending("t1");
    assert_eq!(ending["part"]["resumable"], true, "{ending}");
    watched.heard.clear();
    watched.dispatch(json!({ "type": "chat/turnResume", "turnId": "t1" }));
    let (second, _) = watched.call();
    assert_ne!(first["toolCallId"], second["toolCallId"]);
    watched.carry_out(&default_chat_of(SESSION), "t1", &second, SEEN);
    assert_eq!(watched.ending("t1")["type"], "chat/turnComplete");
    assert_eq!(watched.answer_text(), format!("got {SEEN}"));
    watched.leave();
}

#[test]
fn client_tool_call_with_a_permission_runs_after_approval() {
    for how in ["claude", "codex", "zed", "gemini", "qwen"] {
        let mut watched = begun(&["--mcp", "always"]);
        let script = format!(r#"client {how}+ask look {{"x":1}}"#);
        watched.begin("t1", &script);
        let (begun, asked) = watched.call();
        assert_eq!(begun["contributor"]["clientId"], "me", "{how}");
        assert_eq!((&asked["confirmed"], &asked["toolInput"]), (&Value::Null, &json!(r#"{"x":1}"#)), "{how}");
        let id = begun["toolCallId"].as_str().unwrap().to_owned();
        watched.decide("t1", &id, true, "yes");
        watched.action("chat/toolCallConfirmed");
        // Whether or not the agent has called by then.
        watched.carry_out(&default_chat_of(SESSION), "t1", &begun, SEEN);
        assert_eq!(watched.ending("t1")["type"], "chat/turnComplete");
        assert_eq!(watched.answer_text(), format!("got {SEEN}"), "{how}");
        assert_eq!(watched.received("chat/toolCallStart").len(), 1, "{how}");

        watched.begin("t2", &script);
        let (begun, _) = watched.call();
        watched.decide("t2", begun["toolCallId"].as_str().unwrap(), false, "no");
        assert_eq!(watched.ending("t2")["type"], "chat/turnComplete");
        assert_eq!(watched.answer_text(), "was refused", "{how}");
        watched.leave();
    }
}

#[test]
fn concurrent_client_tool_calls_are_matched_by_their_arguments() {
    let mut watched = begun(&["--mcp", "always"]);
    watched.begin("t1", r#"clients look {"x":1} {"x":2} {"x":3}"#);
    for _ in 0..3 {
        let ready = watched.action("chat/toolCallReady");
        let input = ready["toolInput"].as_str().unwrap().to_owned();
        watched.carry_out(&default_chat_of(SESSION), "t1", &ready, &input);
    }
    assert_eq!(watched.ending("t1")["type"], "chat/turnComplete");
    assert_eq!(watched.answer_text(), r#"{"x":1} {"x":2} {"x":3}"#);
    assert_eq!(watched.received("chat/toolCallStart").len(), 3);
    watched.leave();
}

#[test]
fn changed_client_tools_reach_an_agent_that_lists_them_again() {
    let mut watched = Setting::with(&["--mcp", "always"]).start();
    watched.session();
    assert_eq!(watched.turn("t1", "knows"), "[]");
    watched.offer(looks());
    watched.turn("t2", "until_tool look");
    assert_eq!(watched.turn_with_call("t3", r#"client claude look {"x":1}"#), format!("got {SEEN}"));
    watched.offer(json!([{ "name": "other" }]));
    watched.turn("t4", "until_no_tool look\nuntil_tool other");
    let said = watched.turn("t5", r#"client claude look {"x":1}"#);
    assert!(said.contains("no active client of this session offers the tool `look`"), "{said}");
    watched.leave();
}

#[test]
fn client_tools_added_later_reach_an_agent_that_lists_them_once() {
    for can in [&[][..], &["resume", "close"], &["load", "close"]] {
        let arguments: Vec<&str> = can.iter().flat_map(|can| ["--can", *can]).collect();
        let mut watched = Setting::with(&[&["--mcp", "once"], &arguments[..]].concat()).start();
        watched.session();
        watched.until_ready();
        if !can.is_empty() {
            assert_eq!(watched.turn("before", "has_tool look"), "False");
        }
        watched.offer(looks());
        // It is given some time to ask by itself. An agent that could not take the session up is
        // told before it has said anything only.
        if can.is_empty() {
            // The host counts it from when it has received the offer, which may be later.
            let mut within = Duration::from_millis(1100);
            let mut has_tool = |turn: &str| {
                thread::sleep(within);
                within *= 2;
                watched.turn(turn, "has_tool look") == "True"
            };
            assert!(has_tool("t0") || has_tool("t1"), "{can:?}");
        } else {
            let start = Instant::now();
            let mut turns = 0;
            while watched.turn(&format!("t{turns}"), "has_tool look") != "True" {
                turns += 1;
                assert!(start.elapsed() < HUNG);
                thread::sleep(Duration::from_millis(100));
            }
        }
        let said = watched.turn_with_call("call", r#"client codex look {"x":1}"#);
        assert_eq!(said, format!("got {SEEN}"));
        watched.leave();
    }
}

#[test]
fn client_tool_call_of_a_cancelled_turn_is_refused() {
    let mut watched = begun(&["--mcp", "always"]);
    watched.begin("t1", "client_and_hang look");
    let (begun, _) = watched.call();
    watched.cancel("t1");
    assert_eq!(watched.ending("t1")["type"], "chat/turnCancelled");
    assert_eq!(watched.received("chat/toolCallComplete").len(), 1, "{begun}");
    assert_eq!(watched.turn("t2", "client_answers"), "error: the turn was cancelled");

    watched.leave();
}

#[test]
fn client_tool_call_beyond_the_limit_of_1000_pending_calls_fails() {
    let mut watched = begun(&["--mcp", "always"]);
    let said = watched.turn("t1", "client_nag look 1001");
    assert_eq!(said, "error: too many calls of clients' tools are in progress");
    assert_eq!(watched.received("chat/toolCallStart").len(), 1000);
    watched.leave();
}

#[test]
fn client_tool_call_withdrawn_by_the_agent_ends() {
    let mut watched = begun(&["--mcp", "always"]);
    watched.begin("t1", "client_and_withdraw look");
    // The question and the call come in whichever order.
    let mut begun = json!({});
    let mut asked = false;
    watched.action_where(|action| {
        asked |= action["type"] == "chat/toolCallReady" && action["toolCallId"] == "ask_1";
        if action["contributor"].is_object() {
            begun = action.clone();
        }
        asked && begun["toolCallId"].is_string()
    });
    watched.decide("t1", "ask_1", true, "yes");
    let over = watched.action_where(|action| {
        action["type"] == "chat/toolCallComplete" && action["toolCallId"] == begun["toolCallId"]
    });
    assert_eq!(over["result"]["error"]["message"], "the agent has cancelled the call");
    assert_eq!(watched.ending("t1")["type"], "chat/turnComplete");
    watched.leave();
}

#[test]
fn client_tool_call_fails_when_its_client_leaves_and_the_turn_continues() {
    let mut watched = begun(&["--mcp", "always"]);
    for (turn, script) in
        [("t1", r#"client claude look {"x":1}"#), ("t2", r#"client claude+ask look {"x":1}"#)]
    {
        watched.offer(looks());
        watched.turn(&format!("{turn}-before"), "until_tool look");
        watched.begin(turn, script);
        watched.call();
        watched.dispatch_to(SESSION, json!({ "type": "session/activeClientRemoved", "clientId": "me" }));
        let over = watched.action("chat/toolCallComplete");
        assert_eq!(over["result"]["success"], false, "{over}");
        assert_eq!(watched.ending(turn)["type"], "chat/turnComplete");
        let said = watched.answer_text();
        assert!(said == "got error: the client that ran the tool has disconnected" || turn == "t2", "{said}");
    }
    watched.leave();
}

#[test]
fn client_tool_calls_of_two_chats_are_separate() {
    let mut watched = begun(&["--mcp", "always"]);
    watched.until_ready();
    watched.say(json!({ "id": 80, "method": "createChat", "params": { "channel": SESSION, "chat": OTHER } }));
    watched.say(json!({ "id": 81, "method": "subscribe", "params": { "channel": OTHER } }));
    watched.turn("t1", "until_tool look");
    let message = json!({ "text": r#"client silent look {"in":"other"}"#, "origin": { "kind": "user" } });
    watched.dispatch_to(OTHER, json!({ "type": "chat/turnStarted", "turnId": "o1", "message": message }));
    let (other, ready) = watched.call();
    assert_eq!((&other["turnId"], &ready["toolInput"]), (&json!("o1"), &json!(r#"{"in":"other"}"#)));
    watched.carry_out(OTHER, "o1", &other, "in the other");
    assert_eq!(watched.ending("o1")["type"], "chat/turnComplete");
    assert_eq!(watched.answer_text(), "got in the other");
    assert_eq!(watched.turn_with_call("t2", r#"client codex look {"x":1}"#), format!("got {SEEN}"));
    watched.leave();
}

#[test]
fn session_metadata_says_while_client_tools_do_not_reach_the_agent() {
    let why = |watched: &mut Watched| {
        let told = watched.action_where(|action| {
            action["type"] == "session/metaChanged" && action["_meta"]["acp.clientTools"].is_object()
        });
        let told = told["_meta"]["acp.clientTools"][default_chat_of(SESSION)].clone();
        assert_eq!((&told["reach"], &told["tools"]), (&json!(false), &json!(["look"])), "{told}");
        told["why"].as_str().unwrap().to_owned()
    };
    let mut watched = begun(&[]);
    watched.begin("t1", "say hello");
    assert!(why(&mut watched).contains("has not started the MCP server"));
    watched.leave();

    let mut watched = begun_with(Setting::with(&["--mcp", "always"]).limit("client_tools = false\n"));
    assert!(why(&mut watched).contains("client_tools = false"));
    assert_eq!(watched.turn("t1", "server"), "null");
    watched.offer(json!([]));
    watched.action_where(|action| {
        action["type"] == "session/metaChanged" && action["_meta"]["acp.clientTools"].is_null()
    });
    watched.leave();
}

#[test]
fn client_tool_server_speaks_only_mcp() {
    let mut watched = begun(&["--mcp", "always"]);
    let mut ask = |method: &str, params: Value| -> Value {
        let turn = uuid::Uuid::new_v4().to_string();
        serde_json::from_str(&watched.turn(&turn, &format!("mcp {method} {params}"))).unwrap()
    };
    assert_eq!(ask("ping", json!({})), json!({ "result": {} }));
    for (asked, spoken) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2099-01-01", "2025-11-25"),
    ] {
        let hello = ask("initialize", json!({ "protocolVersion": asked }));
        assert_eq!(hello["result"]["protocolVersion"], spoken);
        assert_eq!(hello["result"]["capabilities"], json!({ "tools": { "listChanged": true } }));
    }
    // As newer agents ask first.
    assert_eq!(ask("server/discover", json!({}))["error"]["code"], -32601);
    assert_eq!(ask("tools/call", json!([1]))["error"]["code"], -32602);
    assert_eq!(ask("tools/call", json!({ "name": "no-such-tool" }))["result"]["isError"], true);
    assert_eq!(ask("prompts/list", json!("x"))["error"]["code"], -32601);
    watched.leave();
}

/// Returns the socket and the token that the agent received.
fn entry(watched: &mut Watched) -> (PathBuf, String) {
    let entry: Value = serde_json::from_str(&watched.turn("entry", "server")).unwrap();
    let variable = |number: usize| entry["env"][number]["value"].as_str().unwrap().to_owned();
    (variable(0).into(), variable(1))
}

/// Sends text to the host's socket and reads the answer to the end.
fn answer_of(socket: &Path, said: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(HUNG)).unwrap();
    stream.write_all(said.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut heard = String::new();
    stream.read_to_string(&mut heard).unwrap();
    heard
}

#[test]
fn client_tool_server_refuses_connections_without_the_token_of_an_open_session() {
    let mut watched = begun(&["--mcp", "always", "--can", "close"]);
    let (socket, token) = entry(&mut watched);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
    let list = "\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}\n";
    assert!(answer_of(&socket, &format!("{token}{list}")).contains("look"));
    for wrong in ["", "x", &token[1..], &"x".repeat(1 << 20)] {
        // One who says too much may be cut off in the middle.
        let heard = std::panic::catch_unwind(|| answer_of(&socket, &format!("{wrong}{list}")));
        assert!(heard.is_ok_and(|heard| heard.is_empty()) || wrong.len() > 100, "{wrong}");
    }
    // Nor another user, who would need the folder to be open first. Only root can be somebody else.
    if rustix::process::geteuid().is_root() {
        for (path, mode) in [(socket.parent().unwrap(), 0o711), (&*socket, 0o666)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let connect = "import socket, sys\n\
            s = socket.socket(socket.AF_UNIX)\n\
            s.connect(sys.argv[1])\n\
            try: s.sendall(sys.argv[2].encode()); s.shutdown(socket.SHUT_WR); print(s.makefile().read())\n\
            except (BrokenPipeError, ConnectionResetError): pass\n\
            print('connected')";
        let mut other = Command::new("python3");
        other.args(["-c", connect]).arg(&socket).arg(format!("{token}{list}"));
        let other = other.current_dir("/").uid(65534).gid(65534).output().unwrap();
        let heard = String::from_utf8_lossy(&other.stdout);
        assert!(heard.contains("connected") && !heard.contains("look"), "{heard}{other:?}");
    }
    // What disturbs one connection disturbs no other.
    assert_eq!(watched.turn_with_call("t1", r#"client zed look {"x":1}"#), format!("got {SEEN}"));
    watched.say(json!({ "id": 90, "method": "disposeSession", "params": { "channel": SESSION } }));
    watched.process.until(|message| message["id"] == 90);
    let start = Instant::now();
    while answer_of(&socket, &format!("{token}{list}")).contains("look") {
        assert!(start.elapsed() < HUNG);
    }
    watched.leave();
    assert!(!socket.parent().unwrap().exists(), "the host has left its folder behind");
}

#[test]
fn client_tool_socket_of_a_killed_host_is_removed_by_the_next_host() {
    let mut watched = begun(&["--mcp", "always"]);
    let (socket, _) = entry(&mut watched);
    watched.begin("t1", "client_and_hang look");
    watched.call();
    let relays = |watched: &Watched| {
        watched.agents().into_iter().filter(|name| name.contains("relay-client-tools")).count()
    };
    assert_eq!(relays(&watched), 1, "{:?}", watched.agents());
    watched.process.child.kill().unwrap();
    watched.process.child.wait().unwrap();
    watched.wait_for_agents(0);
    assert!(socket.exists());
    let folder = watched.folder.take().unwrap();
    drop(watched);

    let mut watched = Setting::with(&["--mcp", "always"]).start_in(folder);
    watched.session();
    let (other, _) = entry(&mut watched);
    assert!(other.exists() && !socket.parent().unwrap().exists());
    watched.leave();
}
