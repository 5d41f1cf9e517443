//! Logging in to an agent, with what clients push for that.

use super::*;

const BROWSER: &str = "acp-login:/a0/browser";
const KEY: &str = "acp-login:/a0/key";
const GOOD_KEY: &str = "good-c0ffee-is-no-secret";

impl Watched {
    /// Asks, and returns the answer; what is told meanwhile is in `told`.
    fn answer_to(&mut self, id: u64, method: &str, params: Value, told: &mut Vec<Value>) -> Value {
        self.say(json!({ "id": id, "method": method, "params": params }));
        told.extend(self.process.until(|message| message["id"] == id));
        told.pop().unwrap()
    }

    fn push(&mut self, resource: &str, token: &str) {
        let params = json!({ "channel": "ahp-root://", "resource": resource, "token": token });
        let answer = self.answer_to(90, "authenticate", params, &mut Vec::new());
        assert!(answer["error"].is_null(), "{answer}");
    }

    /// The error with which a session is not even begun.
    fn refused_session(&mut self, name: &str) -> Value {
        let params = json!({ "channel": format!("ahp-session:/{name}"), "provider": "a0" });
        self.answer_to(91, "createSession", params, &mut Vec::new())["error"].take()
    }

    /// Begins a session that fails: why, and which tokens were asked for.
    fn failed_session(&mut self, name: &str) -> (String, Vec<String>) {
        let session = format!("ahp-session:/{name}");
        let mut told = Vec::new();
        let params = json!({ "channel": session, "provider": "a0" });
        assert!(self.answer_to(92, "createSession", params, &mut told)["error"].is_null());
        let answer = self.answer_to(93, "subscribe", json!({ "channel": session }), &mut told);
        // It may have failed already: before the subscription, or before its answer came.
        let mut error = answer["result"]["snapshot"]["state"]["creationError"].clone();
        if error.is_null() {
            let failed = |message: &Value| message["params"]["action"]["type"] == "session/creationFailed";
            if !told.iter().any(failed) {
                told.extend(self.process.until(failed));
            }
            error = told.iter().find(|message| failed(message)).unwrap()["params"]["action"]["error"].clone();
        }
        let why = error["message"].as_str().unwrap().to_owned();
        (why, asked_for(&told))
    }

    /// A session that works.
    fn session_works(&mut self) {
        self.session();
        self.until_ready();
        assert_eq!(self.turn("t1", "say ok"), "ok");
    }
}

impl Watched {
    /// Begins a session whose client wants to know how far its opening is.
    fn begin_session(&mut self, name: &str) {
        let session = format!("ahp-session:/{name}");
        self.say(json!({ "id": 80, "method": "createSession", "params":
            { "channel": session, "provider": "a0", "progressToken": "p" } }));
        self.subscribe(&session);
    }

    /// Hears until the chat says that it waits for the user to open the page; what was told.
    fn until_page(&mut self) -> Vec<Value> {
        self.process.until(|message| {
            let action = &message["params"]["action"];
            // The host may have got so far before it hears who follows the chat.
            let shown = &message["result"]["snapshot"]["state"]["activity"];
            action["type"] == "chat/activityChanged" && action["activity"] == PAGE || shown == PAGE
        })
    }
}

const PAGE: &str = "Enter the code AB-12 at https://login.example/device";

fn notes_of(notes: &Path, what: &str) -> usize {
    fs::read_to_string(notes).unwrap_or_default().lines().filter(|line| line.contains(what)).count()
}

/// A login that waits for a page to be opened, as an agent with this door and these notes.
fn by_device(folder: tempfile::TempDir, login: &str, limit: &str) -> (Watched, PathBuf, PathBuf) {
    let (door, notes) = (folder.path().join("door"), folder.path().join("notes"));
    let (said_door, said_notes) = (door.to_str().unwrap().to_owned(), notes.to_str().unwrap().to_owned());
    let arguments =
        ["--login", login, "--way", "device", "--door", &said_door, "--notes", &said_notes, "--can", "load"];
    (Setting::with(&arguments).limit(limit).start_in(folder), door, notes)
}

#[test]
fn api_key_reaches_the_agent_with_authenticate_in_the_form_that_it_reads() {
    const API_KEY: &str = "acp-login:/a0/api%2Dkey";
    for name in ["agent.py", "gemini-cli"] {
        let mut watched = Setting::with(&["--login", "out", "--way", "api-key", "--name", name]).start();
        let (_, asked) = watched.failed_session("first");
        assert!(asked.contains(&format!("{API_KEY} required")), "{asked:?}");
        watched.push(API_KEY, "bad");
        let (why, asked) = watched.failed_session("second");
        assert!(why.contains("rejected `authenticate`: the key is no good"), "{why}");
        assert!(asked.contains(&format!("{API_KEY} expired")), "{asked:?}");
        watched.push(API_KEY, GOOD_KEY);
        watched.session_works();
        watched.leave();
    }
}

/// However much is logged: a log is shown to others.
#[test]
fn api_key_is_in_no_log() {
    let mut setting = Setting::with(&["--login", "out", "--way", "api-key"]);
    setting.log = Some("trace");
    let mut watched = setting.start_with_log(tempfile::tempdir().unwrap());
    let bad = "bad-c0ffee-is-no-secret";
    for (name, key) in [("first", ""), ("second", bad)] {
        if !key.is_empty() {
            watched.push("acp-login:/a0/api%2Dkey", key);
        }
        watched.failed_session(name);
    }
    watched.push("acp-login:/a0/api%2Dkey", GOOD_KEY);
    watched.session_works();
    let folder = watched.leave().unwrap();
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("authenticate") && log.contains("session/prompt"), "not everything is logged");
    assert!(
        log.contains("got the key (secret)") && log.contains("\"key\": \"(secret)\""),
        "not what it says back: {log}"
    );
    // Not the beginning of it either.
    for key in [&bad[..8], &GOOD_KEY[..8]] {
        assert!(!log.contains(key), "{:?}", log.lines().find(|line| line.contains(key)));
    }
}

#[test]
fn pending_login_shows_its_instructions_until_it_completes() {
    let (mut watched, door, _) = by_device(tempfile::tempdir().unwrap(), "out", "");
    watched.failed_session("first");
    watched.push("acp-login:/a0/device", "go on");
    watched.begin_session("s");
    let told = watched.until_page();
    let progress: Vec<&str> = told
        .iter()
        .filter(|message| message["method"] == "root/progress")
        .map(|message| message["params"]["message"].as_str().unwrap())
        .collect();
    assert_eq!(progress, ["Waiting for the login: Device code", PAGE]);
    fs::write(door, "").unwrap();
    let told = watched.process.until(|message| message["params"]["action"]["type"] == "session/ready");
    let done = |message: &&Value| message["params"]["action"]["type"] == "chat/activityChanged";
    assert!(told.iter().any(|it| done(&it) && it["params"]["action"]["activity"].is_null()), "{told:?}");
    assert_eq!(watched.turn("t1", "say ok"), "ok");
    watched.leave();
}

#[test]
fn pending_login_is_cancelled_when_its_session_is_disposed_and_can_be_retried() {
    // With a process of its own, the session's process goes with it.
    for limit in ["", "one_session = true\n"] {
        let (mut watched, door, notes) = by_device(tempfile::tempdir().unwrap(), "out", limit);
        watched.failed_session("first");
        watched.push("acp-login:/a0/device", "go on");
        watched.begin_session("given-up");
        watched.until_page();
        let params = json!({ "channel": "ahp-session:/given-up" });
        let answer = watched.answer_to(95, "disposeSession", params, &mut Vec::new());
        assert!(answer["error"].is_null(), "{answer}");
        if !limit.is_empty() {
            watched.wait_for_agents(0);
        }
        watched.begin_session("s");
        watched.until_page();
        assert_eq!(notes_of(&notes, "cancelled"), 1);
        fs::write(door, "").unwrap();
        watched.process.until(|message| message["params"]["action"]["type"] == "session/ready");
        assert_eq!(watched.turn("t1", "say ok"), "ok");
        watched.leave();
    }
}

#[test]
fn cancelling_a_turn_that_waits_for_a_login_cancels_the_login() {
    let (mut watched, door, notes) = by_device(tempfile::tempdir().unwrap(), "in", "");
    watched.session();
    watched.turn("t1", "say one");
    watched.begin("t2", "logout");
    assert_eq!(watched.ending("t2")["part"]["error"]["errorType"], "authRequired");
    watched.push("acp-login:/a0/device", "go on");
    watched.begin("t3", "say never");
    watched.until_page();
    watched.cancel("t3");
    assert_eq!(watched.ending("t3")["type"], "chat/turnCancelled");
    watched.begin("t4", "say in");
    watched.until_page();
    assert_eq!(notes_of(&notes, "cancelled"), 1);
    fs::write(door, "").unwrap();
    assert_eq!(watched.ending("t4")["type"], "chat/turnComplete");
    assert_eq!(watched.answer_text(), "in");
    watched.leave();
}

#[test]
fn login_method_that_needs_a_terminal_is_explained_but_is_no_resource() {
    let mut watched = Setting::with(&["--login", "out", "--way", "terminal"]).start();
    let (why, asked) = watched.failed_session("first");
    assert_eq!(asked, [format!("{BROWSER} required"), format!("{KEY} required")]);
    assert!(
        why.contains("log in with \"Terminal\" outside of the host: Run `agent login` in a terminal"),
        "{why}"
    );
    let state =
        watched.answer_to(96, "subscribe", json!({ "channel": "ahp-session:/first" }), &mut Vec::new());
    let state = &state["result"]["snapshot"]["state"];
    assert_eq!(state["creationError"]["errorType"], "authRequired", "{state}");
    watched.leave();
}

#[test]
fn unauthorized_error_of_the_model_requires_a_login_whatever_its_code() {
    let mut watched = Setting::with(&["--login", "in"]).start();
    watched.session();
    watched.begin("t1", "error -32603 unexpected status 401 Unauthorized");
    let error = &watched.ending("t1")["part"]["error"];
    assert_eq!(error["errorType"], "authRequired", "{error}");
    let why = error["message"].as_str().unwrap();
    assert!(why.contains("401 Unauthorized (-32603). Ways to log in"), "{why}");
    watched.leave();
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", "error -32603 something else");
    assert_eq!(watched.ending("t1")["part"]["error"]["errorType"], "agentError");
    watched.leave();
}

/// The tokens that a client was asked for, and why.
fn asked_for(told: &[Value]) -> Vec<String> {
    let asked = told.iter().filter(|message| message["method"] == "auth/required");
    let name = |message: &Value| {
        let params = &message["params"];
        format!("{} {}", params["resource"]["resource"].as_str().unwrap(), params["reason"].as_str().unwrap())
    };
    asked.map(name).collect()
}

#[test]
fn logged_in_agent_requires_no_login_but_offers_its_login_methods() {
    let mut watched = Setting::with(&["--login", "in"]).start();
    watched.session_works();
    let root = watched.answer_to(94, "subscribe", json!({ "channel": "ahp-root://" }), &mut Vec::new());
    assert_eq!(
        root["result"]["snapshot"]["state"]["agents"][0]["protectedResources"],
        json!([
            { "resource": BROWSER, "resource_name": "Log in with a browser", "required": false },
            { "resource": KEY, "resource_name": "Key", "required": false },
        ])
    );
    watched.create("ahp-session:/t", "a0");
    let told = watched.process.until(|message| message["id"] == 2);
    assert!(told.last().unwrap()["error"].is_null(), "{told:?}");
    watched.leave();
}

#[test]
fn agent_is_logged_in_with_the_method_that_the_client_chooses() {
    let one_session = "one_session = true\n";
    for (resource, token, limit) in [
        (BROWSER, "go on", ""),
        (KEY, GOOD_KEY, ""),
        (BROWSER, "go on", one_session),
        (KEY, GOOD_KEY, one_session),
    ] {
        let mut watched = Setting::with(&["--login", "out"]).limit(limit).start();
        let (why, asked) = watched.failed_session("first");
        assert!(why.contains("it requires a login"), "{why}");
        // What the agent says, and what to do.
        assert!(why.contains("Authentication required (-32000). Ways to log in: log in with"), "{why}");
        assert!(why.contains("enter the key for \"Key\" in your client"), "{why}");
        assert_eq!(asked, [format!("{BROWSER} required"), format!("{KEY} required")]);
        let error = watched.refused_session("second");
        assert_eq!(error["code"], -32007, "{error}");
        assert_eq!(error["data"]["resources"][0]["resource"], BROWSER);
        assert_eq!(error["data"]["resources"][1]["resource"], KEY);
        watched.push(resource, token);
        watched.session_works();
        let length = if resource == KEY { token.len() } else { 0 };
        assert_eq!(watched.turn("t2", "variable AGENT_KEY"), format!("{length} characters"));
        let agents = watched.agents();
        assert!(agents.iter().all(|agent| !agent.contains(token)), "{agents:?}");
        watched.leave();
    }
}

#[test]
fn token_pushed_before_the_agent_needs_it_is_used() {
    let mut watched = Setting::with(&["--login", "out"]).start();
    watched.failed_session("first");
    watched.push(KEY, "bad");
    // It was no good, and is asked for again.
    let (_, asked) = watched.failed_session("second");
    assert_eq!(asked, [format!("{BROWSER} required"), format!("{KEY} expired")]);
    assert_eq!(watched.refused_session("third")["code"], -32007);
    watched.push(KEY, GOOD_KEY);
    watched.session_works();
    watched.leave();
}

#[test]
fn failed_login_is_reported_and_another_method_still_works() {
    let mut watched = Setting::with(&["--login", "refuse"]).start();
    watched.failed_session("first");
    watched.push(BROWSER, "go on");
    let (why, asked) = watched.failed_session("second");
    assert!(why.contains("rejected `authenticate`: the browser was closed"), "{why}");
    assert_eq!(asked, [format!("{BROWSER} expired"), format!("{KEY} required")]);
    // Another way still leads in.
    watched.push(KEY, GOOD_KEY);
    watched.session_works();
    watched.leave();
}

#[test]
fn login_that_expires_during_a_session_is_renewed_and_the_turn_continues() {
    for (resource, token) in [(BROWSER, "go on"), (KEY, GOOD_KEY)] {
        for can in ["load", "nothing"] {
            let folder = tempfile::tempdir().unwrap();
            let memory = memory(folder.path());
            let memory = memory.to_str().unwrap();
            let arguments =
                ["--login", "in", "--can", can, "--memory", memory, "--goes-on", "say on\nremembers"];
            let mut watched = Setting::with(&arguments).start_in(folder);
            watched.session();
            watched.turn("t1", "say the first");
            watched.begin("t2", "say begun\nlogout");
            let told = watched.process.until(|message| message["params"]["action"]["type"] == "chat/error");
            assert_eq!(asked_for(&told), [format!("{BROWSER} required"), format!("{KEY} required")]);
            let part = &told.last().unwrap()["params"]["action"]["part"];
            assert_eq!(part["error"]["errorType"], "authRequired", "{part}");
            assert_eq!(part["resumable"], can == "load", "{part}");
            watched.begin("t3", "say not yet");
            let told = watched.process.until(|message| message["params"]["rejectionReason"].is_string());
            assert_eq!(asked_for(&told).len(), 2, "{told:?}");
            watched.push(resource, token);
            if can == "load" {
                watched.heard.clear();
                watched.dispatch(json!({ "type": "chat/turnResume", "turnId": "t2" }));
                assert_eq!(watched.ending("t2")["type"], "chat/turnComplete");
                let said = watched.answer_text();
                assert!(said.starts_with("on") && said.contains("| say the first | say begun"), "{said}");
            } else {
                let said = watched.turn("t4", "prompt");
                assert!(said.contains("The user:\\nsay the first"), "{said}");
            }
            watched.leave();
        }
    }
}

#[test]
fn login_done_outside_of_the_host_is_noticed_after_an_agent_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (door, notes) = (folder.path().join("door"), folder.path().join("notes"));
    let arguments =
        ["--login", "outside", "--door", door.to_str().unwrap(), "--notes", notes.to_str().unwrap()];
    let mut watched = Setting::with(&arguments).start_in(folder);
    watched.failed_session("first");
    fs::write(door, "").unwrap();
    // For a while nobody is asked.
    let start = Instant::now();
    while watched.refused_session("s")["code"] == -32007 {
        assert!(start.elapsed() < HUNG);
        thread::sleep(Duration::from_millis(100));
    }
    watched.subscribe("ahp-session:/s");
    watched.until_ready();
    assert_eq!(watched.turn("t1", "say in"), "in");
    // In a session that is there: the turn fails, and the next one begins with another process.
    watched.begin("t2", "logout");
    assert_eq!(watched.ending("t2")["part"]["error"]["errorType"], "authRequired");
    let before = notes_of(&notes, "started");
    let start = Instant::now();
    loop {
        watched.begin("t3", "say in again");
        let told = watched.process.until(|message| {
            message["params"]["rejectionReason"].is_string()
                || message["params"]["action"]["type"] == "chat/turnComplete"
        });
        if told.last().unwrap()["params"]["rejectionReason"].is_null() {
            break;
        }
        assert!(start.elapsed() < HUNG);
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!((before, notes_of(&notes, "started")), (2, 3));
    watched.leave();
}

/// A returning client sees the login methods before the agent starts, and even if it does not
/// start.
#[test]
fn login_methods_of_an_agent_are_restored_by_the_next_host() {
    let mut folder = tempfile::tempdir().unwrap();
    // The second one is given no time to say anything.
    for (limits, failure) in [
        ("", Some("it requires a login")),
        ("start_seconds = 0.001\n", Some("did not answer `initialize`")),
        ("", None),
    ] {
        let state = folder.path().join("state");
        let mut setting = Setting::with(&["--login", "out"]).limit(limits);
        setting.flags = vec!["--state-dir".to_owned(), state.to_str().unwrap().to_owned()];
        let mut watched = setting.start_in(folder);
        if let Some(failure) = failure {
            let name = uuid::Uuid::new_v4().to_string();
            let (why, _) = watched.failed_session(&name);
            assert!(why.contains(failure), "{why}");
        } else {
            watched.push(KEY, GOOD_KEY);
            watched.session_works();
        }
        folder = watched.leave().unwrap();
    }
}

#[test]
fn token_in_a_variable_leaves_running_turns_in_the_old_process() {
    let mut watched = Setting::with(&["--login", "in"]).start();
    watched.session();
    watched.begin("t1", "serve_logged_out");
    watched.action_where(|action| action["part"]["content"] == "serves");
    watched.failed_session("first");
    watched.push(KEY, GOOD_KEY);
    let second = "ahp-session:/second";
    watched.create(second, "a0");
    watched.subscribe(second);
    assert_eq!(watched.turn_in(&default_chat_of(second), "o1", "variable AGENT_KEY"), "24 characters");
    assert_eq!(watched.agent_count(), 2);
    watched.heard.clear();
    watched.release_agent();
    assert_eq!(watched.ending("t1")["type"], "chat/turnComplete");
    assert_eq!(watched.answer_text(), " and goes on");
    // The first session goes on in the other process, too.
    assert_eq!(watched.turn("t2", "variable AGENT_KEY"), "24 characters");
    watched.leave();
}

#[test]
fn token_for_an_agent_is_in_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut setting = Setting::with(&["--login", "out"]);
    setting.log = Some("trace");
    let mut watched = setting.start_with_log(folder);
    watched.failed_session("first");
    watched.push(KEY, GOOD_KEY);
    watched.session_works();
    let folder = watched.leave().unwrap();
    let logged = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(logged.contains("the key is (secret)") && !logged.contains(GOOD_KEY), "{logged}");
    // The token of the MCP server that each session is given.
    let variable = "{\"name\":\"AHP_SIDECAR_TOOLS_TOKEN\",\"value\":";
    let given: Vec<&str> = logged.split(variable).skip(1).map(|rest| &rest[..10]).collect();
    assert!(!given.is_empty() && given.iter().all(|value| *value == "\"(secret)\""), "{given:?}");
}
