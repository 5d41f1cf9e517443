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
        self.answer_to(93, "subscribe", json!({ "channel": session }), &mut told);
        // It may have failed already.
        let state = |message: &Value| message["params"]["action"]["type"] == "session/creationFailed";
        if !told.iter().any(state) {
            told.extend(self.process.until(state));
        }
        let failed = told.iter().find(|message| state(message)).unwrap();
        let why = failed["params"]["action"]["error"]["message"].as_str().unwrap().to_owned();
        (why, asked_for(&told))
    }

    /// A session that works.
    fn session_works(&mut self) {
        self.session();
        self.action("session/ready");
        assert_eq!(self.turn("t1", "say ok"), "ok");
    }
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
fn an_agent_that_is_logged_in_needs_nothing_though_it_could_be_logged_in_to() {
    let mut watched = Setting::with(&["--login", "in"]).start();
    watched.session_works();
    let root = watched.answer_to(94, "subscribe", json!({ "channel": "ahp-root://" }), &mut Vec::new());
    assert_eq!(
        root["result"]["snapshot"]["state"]["agents"][1]["protectedResources"],
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
fn an_agent_that_needs_a_login_gets_it_in_the_way_that_a_client_chooses() {
    for (resource, token) in [(BROWSER, "go on"), (KEY, GOOD_KEY)] {
        let mut watched = Setting::with(&["--login", "out"]).start();
        let (why, asked) = watched.failed_session("first");
        assert!(why.contains("log in to it first"), "{why}");
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
fn a_token_that_is_there_already_is_used_when_the_agent_needs_it() {
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
fn a_login_that_fails_is_told() {
    let mut watched = Setting::with(&["--login", "refuse"]).start();
    watched.failed_session("first");
    watched.push(BROWSER, "go on");
    let (why, asked) = watched.failed_session("second");
    assert!(why.contains("`authenticate` with: the browser was closed"), "{why}");
    assert_eq!(asked, [format!("{BROWSER} expired"), format!("{KEY} required")]);
    // Another way still leads in.
    watched.push(KEY, GOOD_KEY);
    watched.session_works();
    watched.leave();
}

#[test]
fn a_login_that_ends_in_mid_session_is_renewed_and_the_turn_goes_on() {
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
                let said = watched.said();
                assert!(said.starts_with("on") && said.contains("| say the first | say begun"), "{said}");
            } else {
                let said = watched.turn("t4", "prompt");
                assert!(said.contains("The user:\\nsay the first"), "{said}");
            }
            watched.leave();
        }
    }
}

/// Who comes back knows what the agent needs before it is started, and though it does not start.
#[test]
fn how_an_agent_is_logged_in_to_is_known_to_the_next_host() {
    let mut folder = tempfile::tempdir().unwrap();
    // The second one is given no time to say anything.
    for (limits, failure) in [
        ("", Some("log in to it first")),
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
fn a_token_for_an_agent_is_in_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut setting = Setting::with(&["--login", "out"]);
    setting.log = Some("trace");
    let mut watched = setting.start_with_log(folder);
    watched.failed_session("first");
    watched.push(KEY, GOOD_KEY);
    watched.session_works();
    let folder = watched.leave().unwrap();
    let logged = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(logged.contains("session/new") && !logged.contains(GOOD_KEY), "{logged}");
}
