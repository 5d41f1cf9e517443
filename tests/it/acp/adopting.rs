//! Sessions that an agent has from elsewhere: listed, adopted with their history, gone on with,
//! closed and deleted.

use std::process::Output;

use super::*;

/// Session that the agent has from elsewhere, with a history of every kind.
const OTHER: &str = "other-1";

/// A folder with an agent that has sessions from elsewhere, and a state folder.
struct Adopting {
    folder: tempfile::TempDir,
    cookie: String,
}

fn update(kind: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
}

fn history() -> Value {
    json!([
        update("user_message_chunk", "Read "),
        update("user_message_chunk", "the file"),
        update("agent_thought_chunk", "Where is it?"),
        update("agent_message_chunk", "I look"),
        { "sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Reading", "kind": "read", "status": "completed",
          "content": [{ "type": "content", "content": { "type": "text", "text": "some text" } }] },
        { "sessionUpdate": "tool_call", "toolCallId": "c2", "title": "Running", "kind": "execute",
          "rawInput": { "command": "ls" }, "status": "in_progress" },
        update("agent_message_chunk", "Done"),
        { "sessionUpdate": "usage_update", "used": 1, "size": 2 },
        update("user_message_chunk", "Thanks"),
        update("agent_message_chunk", "Welcome"),
    ])
}

impl Adopting {
    /// Starts nothing. The agent can list, load, close, delete and log out, unless `can` says
    /// otherwise.
    fn new(can: &[&str], sessions: &Value, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::in_folder(folder, can, sessions, more)
    }

    fn in_folder(folder: tempfile::TempDir, can: &[&str], sessions: &Value, more: &[&str]) -> Self {
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("elsewhere"), sessions.to_string()).unwrap();
        let (elsewhere, notes, memory) = (path("elsewhere"), path("notes"), path("memory.json"));
        let mut arguments = vec!["--elsewhere", &elsewhere, "--notes", &notes, "--memory", &memory];
        arguments.extend(can.iter().flat_map(|can| ["--can", can]));
        arguments.extend(more);
        let (_, cookie) = Setting::with(&arguments).limit("start_seconds = 5").command(folder.path());
        Self { folder, cookie }
    }

    /// With the usual session, in the test's own folder.
    fn usual() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path().to_str().unwrap().to_owned();
        let sessions = json!([
            { "id": "other-2", "cwd": "/nowhere", "title": "Elsewhere", "history": [] },
            { "id": "other-3", "cwd": cwd, "title": "Third", "history": [] },
            { "id": OTHER, "cwd": cwd, "title": "From\u{1b}[31m the terminal\nprogram", "history": history(),
              "updatedAt": "2026-01-01T00:00:00Z" },
        ]);
        Self::in_folder(folder, &["list", "load", "close", "delete", "logout"], &sessions, &[])
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn notes(&self, name: &str) -> Vec<Value> {
        let notes = fs::read_to_string(self.path("notes")).unwrap_or_default();
        let notes = notes.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        notes.filter_map(|note| note.get(name).cloned()).collect()
    }

    /// Runs `agents` to its end, at which no agent is left.
    fn command(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let Output { status, stdout, stderr } = self.agents(arguments).output().unwrap();
        assert_eq!(bearers(&self.cookie), Vec::<String>::new());
        (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }

    fn agents(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command.arg("agents").args(arguments).args(["--config", &self.path("config.toml")]);
        if ["sessions", "adopt"].contains(&arguments[0]) {
            command.args(["--state-dir", &self.path("state")]);
        }
        command.env("PATH", std::env::var("PATH").unwrap());
        command
    }

    fn adopt(&self, session: &str) -> String {
        let (status, told, error) = self.command(&["adopt", "a0", session]);
        assert_eq!((status, error.as_str()), (Some(0), ""), "{told}");
        told.trim_end().to_owned()
    }

    /// A host on the state folder.
    fn host(self) -> Watched {
        let mut host = program();
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        host.args(["--log", "warn", "--exclusive", "--config", &self.path("config.toml")]);
        host.args(["--state-dir", &self.path("state")]).stderr(Stdio::from(log));
        host.env("PATH", std::env::var("PATH").unwrap());
        Watched::start(host, self.cookie, self.folder)
    }
}

impl Watched {
    fn ask(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.say(json!({ "id": id, "method": method, "params": params }));
        let told = self.process.until(|message| message["id"] == id);
        told.last().unwrap().clone()
    }

    fn state_of(&mut self, channel: &str) -> Value {
        let answer = self.ask(71, "subscribe", json!({ "channel": channel }));
        answer["result"]["snapshot"]["state"].clone()
    }

    fn adopt(&mut self, uri: &str, config: Value) -> Value {
        self.ask(72, "createSession", json!({ "channel": uri, "provider": "a0", "config": config }))
    }

    fn adoptable(&mut self, query: &str) -> Vec<String> {
        let answer = self.ask(
            73,
            "sessionConfigCompletions",
            json!({ "channel": "ahp-root://", "provider": "a0", "property": "adoptSession", "query": query }),
        );
        let items = answer["result"]["items"].as_array().unwrap_or_else(|| panic!("{answer}"));
        items.iter().map(|item| item["value"].as_str().unwrap().to_owned()).collect()
    }

    fn wait_until_open(&mut self, session: &str) {
        let state = self.state_of(session);
        if state["lifecycle"] == "creating" {
            self.action("session/ready");
        }
    }
}

fn texts(turn: &Value, kind: &str) -> Vec<String> {
    let parts = turn["responseParts"].as_array().unwrap().iter().filter(|part| part["kind"] == kind);
    parts.map(|part| part["content"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn sessions_from_elsewhere_are_listed_and_the_hosts_own_are_not() {
    let adopting = Adopting::usual();
    let (status, told, error) = adopting.command(&["sessions", "a0", "--all"]);
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let lines: Vec<Vec<&str>> = told.lines().map(|line| line.split('\t').collect()).collect();
    let ids: Vec<&str> = lines.iter().map(|line| line[0]).collect();
    assert_eq!(ids, ["other-2", "other-3", OTHER], "{told}");
    assert_eq!(lines[2][1], "From the terminal program");
    assert!(lines[2][2].starts_with("2026-01-01T00:00:00Z file:///"), "{told}");
    let here = adopting.folder.path().to_str().unwrap();
    let (_, told, _) = adopting.command(&["sessions", "a0", "--dir", here]);
    assert_eq!(told.lines().count(), 2, "{told}");

    let mut watched = adopting.host();
    watched.session().until_ready();
    watched.turn("t1", "say hello");
    assert_eq!(watched.adoptable("").len(), 3, "the host has begun the fourth");
    assert_eq!(watched.adoptable("terminal"), [OTHER]);
    let resolved =
        watched.ask(74, "resolveSessionConfig", json!({ "channel": "ahp-root://", "provider": "a0" }));
    let property = &resolved["result"]["schema"]["properties"]["adoptSession"];
    assert_eq!(property["enumDynamic"], true, "{resolved}");
    watched.leave();
}

#[test]
fn listed_folder_that_is_relative_and_time_that_is_none_are_left_out() {
    let sessions = json!([{ "id": OTHER, "cwd": "relative", "title": "a\u{202e}b", "history": history(),
                            "updatedAt": "\u{1b}[31myesterday" }]);
    let adopting = Adopting::new(&["list", "load"], &sessions, &[]);
    let (status, told, error) = adopting.command(&["sessions", "a0", "--all"]);
    assert_eq!((status, error.as_str()), (Some(0), ""));
    assert_eq!(told.trim_end().split('\t').collect::<Vec<_>>(), [OTHER, "ab"], "{told}");
    let (status, _, error) = adopting.command(&["adopt", "a0", OTHER]);
    assert!(status == Some(1) && error.contains("without a folder; name its folder"), "{status:?}: {error}");
}

#[test]
fn adopted_session_has_its_history_and_goes_on() {
    let adopting = Adopting::usual();
    let uri = adopting.adopt(OTHER);
    let (status, again, _) = adopting.command(&["adopt", "a0", OTHER]);
    assert_eq!((status, again.trim_end()), (Some(0), uri.as_str()), "it is adopted once");
    assert_eq!(adopting.notes("closed"), [OTHER], "after its history was read");
    let (_, told, _) = adopting.command(&["sessions", "a0", "--all"]);
    assert!(!told.contains(OTHER), "{told}");

    let mut watched = adopting.host();
    let session = watched.state_of(&uri);
    assert_eq!(session["title"], "From the terminal");
    let chat_uri = default_chat_of(&uri);
    let data = &session["_meta"]["adoptedSession"][&chat_uri];
    assert_eq!(*data, json!({ "id": OTHER, "turns": 2, "omittedTurns": 0 }));
    let chat = watched.state_of(&chat_uri);
    let turns = chat["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 2, "{chat}");
    assert_eq!(turns[0]["message"]["text"], "Read the file");
    assert_eq!(turns[0]["message"]["origin"]["kind"], "user");
    let kinds: Vec<_> = turns[0]["responseParts"].as_array().unwrap().iter().map(|it| &it["kind"]).collect();
    assert_eq!(kinds, ["reasoning", "markdown", "toolCall", "toolCall", "markdown"]);
    assert_eq!(texts(&turns[0], "markdown"), ["I look", "Done"]);
    assert_eq!(texts(&turns[0], "reasoning"), ["Where is it?"]);
    let calls: Vec<_> = turns[0]["responseParts"].as_array().unwrap()[2..4].iter().collect();
    assert_eq!(
        (&calls[0]["toolCall"]["status"], &calls[0]["toolCall"]["success"]),
        (&json!("completed"), &json!(true))
    );
    assert_eq!(calls[0]["toolCall"]["content"][0]["text"], "some text");
    assert_eq!(
        (&calls[1]["toolCall"]["toolInput"], &calls[1]["toolCall"]["success"]),
        (&json!("ls"), &json!(false))
    );
    assert_eq!(turns[1]["message"]["text"], "Thanks");
    let mark = texts(&turns[1], "systemNotification");
    assert!(mark[0].contains("begun outside of this host") && mark[0].contains(OTHER), "{mark:?}");

    // The first turn goes to the agent's own session.
    watched.say(
        json!({ "method": "dispatchAction", "params": { "channel": chat_uri, "clientSeq": 1, "action":
        { "type": "chat/turnStarted", "turnId": "t1", "startedAt": "2026-01-01T00:00:00Z",
          "message": { "text": "remembers", "origin": { "kind": "user" } } } } }),
    );
    watched.ending("t1");
    assert!(watched
        .received("chat/responsePart")
        .iter()
        .all(|part| part["part"]["kind"] != "systemNotification"));
    let folder = watched.leave().unwrap();
    let notes = fs::read_to_string(folder.path().join("notes")).unwrap();
    assert!(notes.contains("\"prompt\": \"remembers\""), "{notes}");
    assert!(notes.matches("\"load\": \"other-1\"").count() >= 3, "{notes}");
}

#[test]
fn session_is_adopted_once_even_by_another_uri() {
    let mut watched = Adopting::usual().host();
    let config = json!({ "adoptSession": OTHER });
    assert_eq!(watched.adopt("ahp-session:/one", config.clone())["result"], Value::Null);
    watched.wait_until_open("ahp-session:/one");
    let refused = watched.adopt("ahp-session:/other", config.clone());
    assert_eq!(refused["error"]["data"]["session"], "ahp-session:/one", "{refused}");
    assert_eq!(refused["error"]["code"], -32003);
    let refused = watched.adopt("ahp-session:/one", config);
    assert_eq!(refused["error"]["code"], -32003, "{refused}");
    assert!(!watched.adoptable("").contains(&OTHER.to_owned()));
    watched.leave();
}

#[test]
fn disposed_session_can_be_adopted_again_and_is_not_listed_meanwhile() {
    let mut watched = Adopting::usual().host();
    let config = json!({ "adoptSession": OTHER });
    watched.adopt("ahp-session:/one", config.clone());
    watched.wait_until_open("ahp-session:/one");
    watched.ask(75, "disposeSession", json!({ "channel": "ahp-session:/one" }));
    assert!(!watched.adoptable("").contains(&OTHER.to_owned()), "it is in the trash");
    let notes = fs::read_to_string(watched.folder.as_ref().unwrap().path().join("notes")).unwrap();
    assert_eq!(notes.matches("\"closed\": \"other-1\"").count(), 2, "also by the disposal: {notes}");
    assert!(!notes.contains("deleted"), "{notes}");
    let again = watched.adopt("ahp-session:/two", config);
    assert_eq!(again["result"], Value::Null, "{again}");
    assert_eq!(watched.state_of(&default_chat_of("ahp-session:/two"))["turns"].as_array().unwrap().len(), 2);
    watched.leave();
}

#[test]
fn session_that_cannot_be_adopted_leaves_nothing() {
    let adopting = Adopting::usual();
    let mut watched = adopting.host();
    for (name, why) in [
        (json!("unknown"), "it lists no session `unknown`"),
        (json!("other-2"), "the session's folder `/nowhere` does not exist"),
        (json!(7), "must be of type string"),
    ] {
        let refused = watched.adopt("ahp-session:/x", json!({ "adoptSession": name }));
        let message = refused["error"]["message"].as_str().unwrap_or_else(|| panic!("{refused}"));
        assert!(message.contains(why), "{message}");
    }
    let listed = watched.ask(76, "listSessions", json!({ "channel": "ahp-root://" }));
    assert_eq!(listed["result"]["items"], json!([]));
    watched.leave();
}

#[test]
fn agent_that_fails_while_it_loads_leaves_nothing_and_can_be_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().to_str().unwrap().to_owned();
    let begun = update("user_message_chunk", "Begun");
    let sessions = json!([
        { "id": "dies", "cwd": cwd, "history": [begun, "die"] },
        { "id": "hangs", "cwd": cwd, "history": [begun, "silence"] },
        { "id": "sound", "cwd": cwd, "history": [begun] },
    ]);
    let adopting = Adopting::in_folder(folder, &["list", "load"], &sessions, &[]);
    for (name, why) in [
        ("dies", "it ended before it answered `session/load`"),
        ("hangs", "it did not answer `session/load` within 5s"),
    ] {
        let (status, told, error) = adopting.command(&["adopt", "a0", name]);
        assert_eq!((status, told.as_str()), (Some(1), ""), "{error}");
        assert!(error.contains(why), "{error}");
    }
    let uri = adopting.adopt("sound");
    let mut watched = adopting.host();
    let listed = watched.ask(76, "listSessions", json!({ "channel": "ahp-root://" }));
    let listed = listed["result"]["items"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((&listed[0]["resource"], &listed[0]["title"]), (&json!(uri), &json!("Begun")));
    watched.leave();
}

/// One history is read at a time, and this one has no end.
#[test]
fn adoption_ends_with_its_client_so_that_another_one_begins() {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().to_str().unwrap().to_owned();
    let begun = update("user_message_chunk", "Begun");
    let sessions = json!([
        { "id": "hangs", "cwd": cwd, "history": [begun, "silence"] },
        { "id": "sound", "cwd": cwd, "history": [begun] },
    ]);
    let adopting = Adopting::in_folder(folder, &["list", "load"], &sessions, &[]);
    let config = fs::read_to_string(adopting.path("config.toml")).unwrap();
    let config = config.replace("start_seconds = 5", "start_seconds = 600");
    let another = config.replace("[agents.a0]", "[agents.a1]");
    assert_ne!(config, another);
    fs::write(adopting.path("config.toml"), config + &another).unwrap();
    // The host outlives the client whose adoption hangs.
    let mut window = window_on(adopting.path("state").as_ref());
    window.args(["--config", &adopting.path("config.toml")]).env("PATH", std::env::var("PATH").unwrap());
    let mut window = Process::spawn(window);
    let hello = json!({ "clientId": "window", "protocolVersions": ["1.0.0"] });
    window.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello }).to_string());
    window.next();
    let mut first = adopting.agents(&["adopt", "a0", "hangs"]);
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    crate::process::wait_until("the history is read", || {
        adopting.notes("load").iter().any(|id| id == "hangs")
    });
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(Process::spawn(adopting.agents(&["adopt", "a1", "sound"])).wait().success());
    window.end();
    assert!(window.wait().success());
}

#[test]
fn agent_that_cannot_list_or_load_says_so() {
    let none = json!([{ "id": OTHER, "cwd": "/", "history": [] }]);
    for can in [&["list"][..], &["load"], &[]] {
        let adopting = Adopting::new(can, &none, &[]);
        let (status, _, error) = adopting.command(&["sessions", "a0", "--all"]);
        assert_eq!(status, Some(1), "{error}");
        assert!(error.contains("does not list its sessions"), "{error}");
        let (status, _, error) = adopting.command(&["adopt", "a0", OTHER]);
        assert_eq!(status, Some(1), "{error}");
    }
    let (status, _, error) = Adopting::new(&[], &none, &[]).command(&["sessions", "script"]);
    assert_eq!((status, error.contains("`adoptSession` is no setting")), (Some(1), true), "{error}");
}

#[test]
fn long_history_is_adopted_whole_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().to_str().unwrap().to_owned();
    let sessions = json!([{ "id": "long", "cwd": cwd, "history": [10_000] }]);
    let adopting = Adopting::in_folder(folder, &["list", "load"], &sessions, &[]);
    let uri = adopting.adopt("long");
    let mut watched = adopting.host();
    let chat = default_chat_of(&uri);
    let view = json!({ "channel": chat, "view": { "turns": 2 } });
    let shown = watched.ask(77, "subscribe", view)["result"]["snapshot"]["state"]["turns"].clone();
    let shown: Vec<&str> =
        shown.as_array().unwrap().iter().map(|turn| turn["message"]["text"].as_str().unwrap()).collect();
    assert_eq!(shown, ["message 9998", "message 9999"]);
    let session = watched.state_of(&uri);
    assert_eq!(session["_meta"]["adoptedSession"][&chat]["turns"], 10_000);
    watched.leave();
}

#[test]
fn adopted_session_survives_a_killed_host() {
    let adopting = Adopting::usual();
    let cookie = adopting.cookie.clone();
    let mut watched = adopting.host();
    watched.adopt("ahp-session:/one", json!({ "adoptSession": OTHER }));
    // The answer is the promise.
    watched.process.child.kill().unwrap();
    watched.process.wait();
    watched.wait_for_agents(0);
    let mut watched = Adopting { folder: watched.folder.take().unwrap(), cookie }.host();
    let chat = watched.state_of(&default_chat_of("ahp-session:/one"));
    assert_eq!(chat["turns"].as_array().unwrap().len(), 2, "{chat}");
    let refused = watched.adopt("ahp-session:/two", json!({ "adoptSession": OTHER }));
    assert_eq!(refused["error"]["code"], -32003, "{refused}");
    watched.leave();
}

#[test]
fn session_is_deleted_and_the_agent_logged_out_by_command() {
    let adopting = Adopting::usual();
    let (status, told, error) = adopting.command(&["delete-session", "a0", OTHER]);
    assert_eq!((status, told.as_str(), error.as_str()), (Some(0), "", ""));
    assert_eq!(adopting.notes("deleted"), [OTHER]);
    assert_eq!(adopting.notes("closed"), [OTHER]);
    let (status, told, error) = adopting.command(&["logout", "a0"]);
    assert_eq!((status, told.as_str(), error.as_str()), (Some(0), "", ""));
    assert_eq!(adopting.notes("logged_out"), [json!(true)]);
    let unable = Adopting::new(&[], &json!([]), &[]);
    let (status, _, error) = unable.command(&["delete-session", "a0", OTHER]);
    assert!(status == Some(1) && error.contains("does not delete sessions"), "{error}");
    let (status, _, error) = unable.command(&["logout", "a0"]);
    assert!(status == Some(1) && error.contains("it has no `logout`"), "{error}");
    let (status, _, error) = unable.command(&["logout", "nobody"]);
    assert!(status == Some(1) && error.contains("there is no agent `nobody`"), "{error}");
}

#[test]
fn message_of_the_user_is_shown_once_unless_the_host_has_sent_it() {
    let mut watched = Setting::with(&[]).start();
    watched.session().until_ready();
    let said = watched.turn("t1", "repeat\nsay one\nuser erom\nsay  two\nuser emos dna");
    assert_eq!(said, "one two");
    let parts = watched.received("chat/responsePart");
    let notices = parts.iter().filter(|part| part["part"]["kind"] == "systemNotification");
    let notices: Vec<_> = notices.map(|part| part["part"]["content"].as_str().unwrap()).collect();
    assert_eq!(notices, ["The user added: more", "The user added: and some"]);
    watched.leave();
}

/// Where a host is killed while it adopts a session.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// The agent is to list its sessions, or has replayed so much.
    AgentAt(&'static str),
    /// The client has received this.
    Told(&'static str),
}

#[test]
fn host_killed_at_any_step_of_an_adoption_has_the_whole_history_or_nothing() {
    let told = ["answer", "root/sessionAdded", "session/ready"].map(Moment::Told);
    let agents = ["\"list\"", "0", "1", "5", "9"].map(Moment::AgentAt);
    for moment in agents.into_iter().chain(told) {
        let adopting = Adopting::usual();
        let cookie = adopting.cookie.clone();
        let elsewhere = adopting.path("elsewhere");
        let sessions = fs::read_to_string(&elsewhere).unwrap();
        if let Moment::AgentAt(place) = moment {
            let mut changed: Value = serde_json::from_str(&sessions).unwrap();
            changed[2]["hangs_at"] = serde_json::from_str(place).unwrap();
            fs::write(&elsewhere, changed.to_string()).unwrap();
        }
        let mut watched = adopting.host();
        watched.ask(70, "subscribe", json!({ "channel": "ahp-root://" }));
        watched.say(json!({ "id": 72, "method": "createSession", "params":
            { "channel": "ahp-session:/one", "provider": "a0", "config": { "adoptSession": OTHER } } }));
        let notes = watched.folder.as_ref().unwrap().path().join("notes");
        match moment {
            Moment::AgentAt(_) => {
                let start = Instant::now();
                while !fs::read_to_string(&notes).is_ok_and(|notes| notes.contains("hangs")) {
                    assert!(start.elapsed() < HUNG, "{moment:?}");
                    thread::sleep(Duration::from_millis(10));
                }
            }
            Moment::Told("answer") => drop(watched.process.until(|message| message["id"] == 72)),
            Moment::Told("session/ready") => {
                watched.process.until(|message| message["id"] == 72);
                watched.wait_until_open("ahp-session:/one");
            }
            Moment::Told(method) => drop(watched.process.until(|message| message["method"] == method)),
        }
        watched.process.child.kill().unwrap();
        watched.process.wait();
        watched.wait_for_agents(0);
        fs::write(&elsewhere, sessions).unwrap();

        let mut watched = Adopting { folder: watched.folder.take().unwrap(), cookie }.host();
        let listed = watched.ask(76, "listSessions", json!({ "channel": "ahp-root://" }));
        let is_there = listed["result"]["items"].as_array().unwrap().len() == 1;
        assert_eq!(is_there, matches!(moment, Moment::Told(_)), "{moment:?}: {listed}");
        let again = watched.adopt("ahp-session:/one", json!({ "adoptSession": OTHER }));
        assert_eq!(again["error"]["code"], if is_there { json!(-32003) } else { Value::Null }, "{again}");
        let chat = watched.state_of(&default_chat_of("ahp-session:/one"));
        assert_eq!(chat["turns"].as_array().unwrap().len(), 2, "{moment:?}: {chat}");
        watched.leave();
    }
}

#[test]
fn hostile_sessions_and_updates_harm_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().to_str().unwrap().to_owned();
    let long = "x".repeat(2000);
    let updates = json!([
        update("agent_message_chunk", "\n"),
        update("agent_message_chunk", "before any message"),
        { "sessionUpdate": "of no known kind", "content": 1 },
        { "sessionUpdate": "user_message_chunk", "content": { "type": "text" } },
        update("user_message_chunk", "\u{0}\u{1b}[2J\u{202e}</script>{\"jsonrpc\":\"2.0\"}\n\r"),
        { "sessionUpdate": "tool_call_update", "toolCallId": "never begun", "status": "completed" },
        { "sessionUpdate": "tool_call", "toolCallId": "c", "title": "", "status": "no status" },
        { "sessionUpdate": "tool_call", "toolCallId": "c", "title": "again", "status": "pending" },
        { "sessionUpdate": "session_info_update", "title": "\u{1b}]0;x\u{7}Replayed" },
        "not an object",
    ]);
    let sessions = json!([
        { "id": "", "cwd": cwd, "history": [] },
        { "id": "line\nend", "cwd": cwd, "history": [] },
        { "id": long, "cwd": cwd, "history": [] },
        { "id": "twice", "cwd": cwd, "history": [] },
        { "id": "../../etc/passwd", "cwd": cwd, "title": ["no", "text"], "updatedAt": 7, "history": updates },
    ]);
    let adopting = Adopting::in_folder(folder, &["list", "load"], &sessions, &[]);
    let (_, told, _) = adopting.command(&["sessions", "a0", "--all"]);
    let ids: Vec<&str> = told.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(ids, ["twice", "../../etc/passwd"], "{told}");
    let uri = adopting.adopt("../../etc/passwd");
    let mut watched = adopting.host();
    assert_eq!(watched.state_of(&uri)["title"], "Replayed");
    let chat = watched.state_of(&default_chat_of(&uri));
    let turns = chat["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 2, "{chat}");
    assert_eq!(turns[0]["message"]["origin"]["kind"], "systemNotification");
    assert_eq!(texts(&turns[0], "markdown"), ["before any message"]);
    assert!(turns[1]["message"]["text"].as_str().unwrap().starts_with('\u{0}'), "as it was written");
    watched.leave();
}

#[test]
fn plugins_of_the_client_that_adopts_a_session_are_fetched() {
    let mut watched = Adopting::usual().host();
    let plugin = json!({ "type": "plugin", "id": "p", "uri": "virtual:/p", "name": "P" });
    let client = json!({ "clientId": "me", "tools": [], "customizations": [plugin] });
    watched.say(json!({ "id": 72, "method": "createSession", "params": { "channel": "ahp-session:/one",
        "provider": "a0", "config": { "adoptSession": OTHER }, "activeClient": client } }));
    watched.process.until(|message| message["method"] == "resourceList");
    watched.leave();
}

#[test]
fn session_keeps_its_folder_if_the_agent_lists_those_of_all_folders() {
    let (folder, current) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cwd = folder.path().to_str().unwrap().to_owned();
    let here = current.path().join(".");
    let sessions = json!([
        { "id": OTHER, "cwd": cwd, "title": "Other", "history": history(), "ignores_cwd": true },
        { "id": "here", "cwd": here, "title": "Here", "history": [] },
    ]);
    let adopting = Adopting::in_folder(folder, &["list", "load"], &sessions, &[]);
    let (_, listed, _) = adopting.command(&["sessions", "a0", "--dir", current.path().to_str().unwrap()]);
    let ids: Vec<&str> = listed.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(ids, ["here"], "{listed}");
    let mut command = adopting.agents(&["adopt", "a0", OTHER]);
    let Output { status, stdout, stderr } = command.current_dir(current.path()).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let uri = String::from_utf8(stdout).unwrap().trim_end().to_owned();
    let mut watched = adopting.host();
    let state = watched.state_of(&uri);
    assert_eq!(state["workingDirectories"], json!([format!("file://{cwd}")]), "{state}");
    watched.leave();
}
