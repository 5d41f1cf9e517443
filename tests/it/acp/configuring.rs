//! Descriptions and options of agents and their sessions, and choices of clients.

use super::*;

const OPTIONS: &[&str] = &["--has", "options"];

fn with(more: &[&str]) -> Setting {
    Setting::with(&[OPTIONS, more].concat())
}

/// A host that keeps what it knows in its folder.
fn stored(folder: &Path, mut setting: Setting) -> Setting {
    let state = folder.join("state");
    setting.flags = vec!["--state-dir".to_owned(), state.to_str().unwrap().to_owned()];
    setting
}

impl Watched {
    /// Asks and waits for the answer, whatever else is said.
    fn answer(&mut self, method: &str, params: Value) -> Value {
        self.say(json!({ "id": 40, "method": method, "params": params }));
        let told = self.process.until(|message| message["id"] == 40);
        told.last().unwrap().clone()
    }

    fn state(&mut self, channel: &str) -> Value {
        self.answer("subscribe", json!({ "channel": channel }))["result"]["snapshot"]["state"].take()
    }

    /// How the session is configured, as a fresh snapshot shows it.
    fn values(&mut self) -> Value {
        self.state(SESSION)["config"]["values"].take()
    }

    /// A session with the first agent, open, with these settings chosen.
    pub(super) fn configured(&mut self, config: &Value) -> &mut Self {
        let folder = self.folder.as_ref().unwrap().path().to_str().unwrap().to_owned();
        self.say(json!({ "id": 2, "method": "createSession", "params":
            { "channel": SESSION, "provider": "a0", "workingDirectories": [format!("file://{folder}")],
              "config": config } }));
        self.subscribe(SESSION);
        self.until_ready();
        self
    }

    /// Changes the session's configuration, as a client does.
    fn configure(&mut self, config: Value) {
        self.sequence += 1;
        let action = json!({ "type": "session/configChanged", "config": config });
        self.say(json!({ "method": "dispatchAction", "params":
            { "channel": SESSION, "clientSeq": self.sequence, "action": action } }));
    }

    /// The values that the host tells next by itself.
    fn next_config(&mut self) -> Value {
        self.action_where(|action| action["type"] == "session/configChanged" && action["replace"] == true)
            ["config"]
            .take()
    }

    fn begin_with(&mut self, turn: &str, script: &str, model: &str) {
        self.heard.clear();
        self.dispatch(json!({ "type": "chat/turnStarted", "turnId": turn,
            "message": { "text": script, "origin": { "kind": "user" }, "model": { "id": model } } }));
    }

    /// Runs a turn in another chat; what was said in it.
    pub(super) fn turn_in(&mut self, chat: &str, turn: &str, script: &str) -> String {
        self.heard.clear();
        self.sequence += 1;
        self.say(json!({ "method": "dispatchAction", "params": { "channel": chat,
            "clientSeq": self.sequence, "action": { "type": "chat/turnStarted", "turnId": turn,
            "message": { "text": script, "origin": { "kind": "user" } } } } }));
        self.ending(turn);
        self.answer_text()
    }

    pub(super) fn notices(&self) -> Vec<&str> {
        let parts = self.received("chat/responsePart").into_iter().map(|action| &action["part"]);
        let notices = parts.filter(|part| part["kind"] == "systemNotification");
        notices.map(|part| part["content"].as_str().unwrap()).collect()
    }
}

/// Extracts the options that were set from the agent's answer.
fn asked(said: &str) -> &str {
    said.strip_prefix("asked ").unwrap().split_once("; is ").unwrap().0
}

#[test]
fn session_options_are_sent_to_clients_once_the_agent_reports_them() {
    let mut watched = with(&[]).start();
    let before = watched.answer("resolveSessionConfig", json!({ "provider": "a0" }));
    assert_eq!(before["result"]["schema"]["properties"], json!({}));
    watched.configured(&json!({}));
    // Nothing that was not chosen is asked for.
    assert_eq!(asked(&watched.turn("t1", "asked")), "");
    let config = watched.state(SESSION)["config"].take();
    let values =
        json!({ "mode": "ask", "model": "large", "effort": "low", "theme": "light", "brave": false });
    assert_eq!(config["values"], values);
    let properties = &config["schema"]["properties"];
    assert_eq!(
        properties["theme"],
        json!({ "type": "string", "title": "Theme", "enum": ["light", "dark"],
                "enumLabels": ["Day: Light", "Night: Dark"], "sessionMutable": true, "default": "light" })
    );
    assert_eq!(
        properties["brave"],
        json!({ "type": "boolean", "title": "Brave", "sessionMutable": true, "default": false })
    );
    assert_eq!(properties["effort"]["enumDescriptions"], json!(["It is low", "It is high"]));
    assert_eq!(properties.as_object().unwrap().len(), 5, "{properties}");

    let agents = watched.state("ahp-root://")["agents"].take();
    assert_eq!(agents[0]["displayName"], "The tests' agent");
    let models: Vec<&str> =
        agents[0]["models"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(models, ["large", "small"]);
    let after =
        watched.answer("resolveSessionConfig", json!({ "provider": "a0", "config": { "mode": "plan" } }));
    assert_eq!(after["result"]["schema"]["properties"], *properties);
    assert_eq!(after["result"]["values"]["mode"], "plan");
    // What is no setting of the agent's is left out.
    let made = watched.answer(
        "createSession",
        json!({ "channel": "ahp-session:/t", "provider": "a0", "config": { "made": 1, "mode": "plan" } }),
    );
    assert!(made["error"].is_null(), "{made}");
    let values = watched.state("ahp-session:/t")["config"]["values"].take();
    assert_eq!((&values["mode"], &values["made"]), (&json!("plan"), &Value::Null));
    watched.leave();
}

#[test]
fn chosen_options_are_applied_before_the_first_turn() {
    let mut watched = with(&[]).start();
    watched.configured(&json!({ "mode": "plan", "theme": "light", "brave": true, "model": "small" }));
    // The model first, since others depend on it; and nothing that is so already.
    assert_eq!(
        watched.turn("t1", "asked"),
        "asked model=\"small\" mode=\"plan\" brave=true; is {\"mode\": \"plan\", \"model\": \"small\", \
         \"effort\": \"low\", \"theme\": \"light\", \"brave\": true}"
    );
    let config = watched.state(SESSION)["config"].take();
    assert_eq!(
        config["values"],
        json!({ "mode": "plan", "model": "small", "theme": "light", "brave": true })
    );
    // With this model there is none.
    assert_eq!(config["schema"]["properties"].get("effort"), None);
    watched.leave();
}

#[test]
fn configured_starting_values_apply_unless_a_client_chooses() {
    let starting = "[agents.a0.config]\nmode = \"plan\"\nbrave = true\n";
    let mut watched = with(&[]).limit(starting).start();
    watched.configured(&json!({ "brave": false }));
    assert_eq!(asked(&watched.turn("t1", "asked")), "mode=\"plan\"");
    let properties = watched.state(SESSION)["config"]["schema"]["properties"].take();
    assert_eq!(
        (&properties["mode"]["default"], &properties["brave"]["default"]),
        (&json!("plan"), &json!(true))
    );
    let resolved = watched.answer("resolveSessionConfig", json!({ "provider": "a0" }))["result"].take();
    assert_eq!(
        (&resolved["values"]["mode"], &resolved["values"]["theme"]),
        (&json!("plan"), &json!("light"))
    );
    // It is a starting value only.
    watched.configure(json!({ "mode": "code" }));
    watched.begin("t2", "die");
    assert_eq!(watched.ending("t2")["type"], "chat/error");
    assert!(watched.turn("t3", "asked").starts_with("asked mode=\"code\""));
    assert_eq!(watched.values()["mode"], "code");
    watched.leave();
}

#[test]
fn unknown_starting_value_is_reported_with_the_available_ones() {
    let starting = "[agents.a0.config]\nmode = \"fly\"\nspeed = true\n";
    let mut setting = with(&[]).limit(starting);
    setting.log = Some("warn");
    let mut watched = setting.start_with_log(tempfile::tempdir().unwrap());
    watched.configured(&json!({}));
    assert_eq!(watched.values()["mode"], "ask");
    watched.turn("t1", "say hello");
    let why = [
        "the option `mode` does not allow \"fly\"; allowed: \"ask\", \"plan\", \"code\", \"locked\", \"autopilot\"; \
         its value is still \"ask\"",
        "the agent has no option `speed`; its options: `mode`, `model`, `effort`, `theme`, `brave`",
    ];
    let answer = [" (Unknown value for mode (-32602))", ""];
    let notice = |at: usize| {
        format!("A configured setting of the agent `a0` cannot be applied: {}{}.", why[at], answer[at])
    };
    assert_eq!(watched.notices(), [notice(0), notice(1)]);
    let folder = watched.leave().unwrap();
    let logged = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(why.iter().all(|why| logged.contains(why)), "{logged}");
}

#[test]
fn unknown_options_are_ignored_at_session_creation() {
    let mut watched = with(&[]).start();
    // As real clients say it, whatever the agent has.
    watched.configured(&json!({ "isolation": "folder", "autoApprove": "default", "theme": "light" }));
    let values = watched.values();
    assert_eq!((&values["theme"], &values["mode"]), (&json!("light"), &json!("ask")));
    assert_eq!((values.get("isolation"), values.get("autoApprove")), (None, None));
    watched.turn("t1", "say hello");
    assert_eq!(watched.notices(), [""; 0]);
    watched.leave();
}

#[test]
fn refused_option_is_reported_and_the_turn_continues() {
    let mut watched = with(&[]).start();
    watched.configured(&json!({ "mode": "locked", "color": "red", "theme": "dark" }));
    assert_eq!(watched.values()["mode"], "ask");
    assert_eq!(watched.values().get("color"), None);
    watched.turn("t1", "say hello");
    let notices = watched.notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(
        notices[0].contains("`mode` = \"locked\"") && notices[0].contains("Unknown value"),
        "{notices:?}"
    );
    // In a session that is there.
    watched.configure(json!({ "mode": "locked" }));
    assert_eq!(watched.next_config()["mode"], "ask");
    let said = watched.turn("t2", "asked");
    assert!(said.ends_with("\"dark\", \"brave\": false}"), "{said}");
    assert_eq!(watched.notices().len(), 1);
    watched.turn("t3", "say hello");
    assert!(watched.notices().is_empty(), "{:?}", watched.notices());
    watched.leave();
}

#[test]
fn option_changed_during_a_turn_is_applied_after_the_turn() {
    let mut watched = with(&[]).start();
    watched.configured(&json!({}));
    watched.begin("t1", "ask\nasked");
    watched.action("chat/toolCallReady");
    watched.configure(json!({ "mode": "plan", "effort": "high" }));
    watched.configure(json!({ "mode": "code" }));
    // The agent changes something else meanwhile: both are so.
    watched.action_where(|action| action["config"]["mode"] == "code");
    watched.decide("t1", "ask_1", true, "yes");
    watched.ending("t1");
    assert!(watched.answer_text().contains("asked ; is"), "{}", watched.answer_text());
    assert_eq!(asked(&watched.turn("t2", "asked")), "mode=\"code\" effort=\"high\"");
    let values = watched.values();
    assert_eq!((&values["mode"], &values["effort"]), (&json!("code"), &json!("high")));
    watched.leave();
}

#[test]
fn option_changed_while_the_session_opens_is_applied() {
    let folder = tempfile::tempdir().unwrap();
    let slow = || with(&["--before-new", "0.3"]);
    let mut watched = stored(folder.path(), slow()).start_in(folder);
    watched.configured(&json!({}));
    watched.turn("t1", "say hello");
    let folder = watched.leave().unwrap();
    // What can be chosen is known before the agent runs.
    let mut watched = stored(folder.path(), slow()).start_in(folder);
    let second = "ahp-session:/second";
    watched.create(second, "a0");
    watched.subscribe(second);
    watched.sequence += 1;
    let action = json!({ "type": "session/configChanged", "config": { "mode": "plan" } });
    watched.say(json!({ "method": "dispatchAction", "params":
        { "channel": second, "clientSeq": watched.sequence, "action": action } }));
    assert_eq!(asked(&watched.turn_in(&default_chat_of(second), "t1", "asked")), "mode=\"plan\"");
    assert_eq!(watched.state(second)["config"]["values"]["mode"], "plan");
    watched.leave();
}

#[test]
fn unchanged_options_are_not_sent_to_the_agent() {
    let mut watched = with(&[]).start();
    watched.configured(&json!({ "mode": "ask", "effort": "low" }));
    watched.configure(json!({ "mode": "ask" }));
    watched.process.until(|message| {
        message["params"]["action"]["type"] == "session/configChanged"
            && message["params"]["origin"].is_object()
    });
    watched.begin_with("t1", "asked", "large");
    watched.ending("t1");
    assert_eq!(asked(&watched.answer_text()), "");
    watched.leave();
}

#[test]
fn option_changed_by_the_agent_is_sent_to_clients() {
    let mut watched = with(&[]).start();
    watched.configured(&json!({}));
    watched.begin("t1", "set mode \"code\"\nask");
    assert_eq!(watched.next_config()["mode"], "code");
    watched.action("chat/toolCallReady");
    // One that is yet to be asked for is not lost by what the agent says.
    watched.configure(json!({ "effort": "high" }));
    watched.action("session/configChanged");
    watched.decide("t1", "ask_1", true, "yes");
    watched.ending("t1");
    let said = watched.turn("t2", "asked\nset theme \"dark\"");
    assert!(said.starts_with("asked effort=\"high\""), "{said}");
    let values = watched.values();
    assert_eq!([&values["mode"], &values["effort"], &values["theme"]], ["code", "high", "dark"]);
    watched.leave();
}

#[test]
fn changed_option_may_change_or_remove_others() {
    let mut watched = with(&[]).start();
    watched.configured(&json!({}));
    watched.configure(json!({ "mode": "autopilot" }));
    assert_eq!(watched.next_config()["brave"], true);
    watched.configure(json!({ "model": "small" }));
    assert_eq!(watched.next_config().get("effort"), None);
    // A setting that is not there any more cannot be changed.
    watched.configure(json!({ "effort": "high" }));
    let refused = watched.process.until(|message| message["params"]["rejectionReason"].is_string());
    let reason = refused.last().unwrap()["params"]["rejectionReason"].as_str().unwrap();
    assert_eq!(reason, "`config.effort` is no setting of this agent");
    watched.configure(json!({ "model": "large" }));
    assert_eq!(watched.next_config()["effort"], "low");
    watched.leave();
}

#[test]
fn option_changes_are_understood_in_the_forms_of_older_agents() {
    for how in ["crossed", "bare"] {
        let mut watched = with(&["--has", "older", "--sets", how]).start();
        watched.configured(&json!({ "mode": "plan" }));
        assert_eq!(asked(&watched.turn("t1", "asked")), "mode=\"plan\"", "{how}");
        watched.configure(json!({ "mode": "code" }));
        let said = watched.turn("t2", "asked");
        assert_eq!(asked(&said), "mode=\"code\"", "{how}");
        assert!(!said.contains("MODE_UPDATE"), "{said}");
        let config = watched.state(SESSION)["config"].take();
        // One mode and one model, though it has both ways.
        assert_eq!(config["schema"]["properties"].as_object().unwrap().len(), 5, "{config}");
        assert_eq!(config["values"]["mode"], "code");
        watched.leave();
    }
    // What it says of one setting does not answer what it was asked about another.
    let mut watched = Setting::with(&["--has", "older", "--sets", "mentions"]).start();
    watched.configured(&json!({ "mode": "plan", "model": "small" }));
    assert_eq!(watched.values(), json!({ "mode": "plan", "model": "small" }));
    assert_eq!(asked(&watched.turn("t1", "asked")), "model=\"small\" mode=\"plan\"");
    assert!(watched.notices().is_empty(), "{:?}", watched.notices());
    watched.leave();
    let mut watched = with(&["--sets", "stays"]).start();
    watched.configured(&json!({ "mode": "plan" }));
    watched.turn("t1", "say hello");
    assert_eq!(watched.notices(), ["The agent did not accept `mode` = \"plan\": its value is still \"ask\""]);
    watched.leave();
}

#[test]
fn older_agents_have_modes_and_models_as_options() {
    let mut watched = Setting::with(&["--has", "older", "--sets", "bare"]).start();
    watched.configured(&json!({ "mode": "plan" }));
    let config = watched.state(SESSION)["config"].take();
    assert_eq!(config["values"], json!({ "mode": "plan", "model": "large" }));
    assert_eq!(config["schema"]["properties"]["model"]["enumLabels"], json!(["Large", "Small"]));
    watched.begin_with("t1", "asked", "small");
    watched.ending("t1");
    assert_eq!(asked(&watched.answer_text()), "mode=\"plan\" model=\"small\"");
    assert_eq!(watched.values()["model"], "small");
    watched.begin("t2", "set mode \"code\"");
    assert_eq!(watched.next_config()["mode"], "code");
    watched.ending("t2");
    watched.leave();
}

#[test]
fn model_of_a_message_is_set_before_its_turn_and_stays_for_the_session() {
    let mut watched = with(&[]).start();
    watched.configured(&json!({}));
    watched.begin_with("t1", "asked", "small");
    assert_eq!(watched.next_config()["model"], "small");
    watched.ending("t1");
    assert_eq!(asked(&watched.answer_text()), "model=\"small\"");
    assert_eq!(asked(&watched.turn("t2", "asked")), "");
    watched.begin_with("t3", "asked", "huge");
    let refused = watched.process.until(|message| message["params"]["rejectionReason"].is_string());
    let reason = refused.last().unwrap()["params"]["rejectionReason"].as_str().unwrap();
    assert_eq!(reason, "the agent `a0` has no model `huge`");
    watched.leave();
}

#[test]
fn options_apply_to_all_chats_of_a_session() {
    let mut watched = with(&[]).start();
    watched.configured(&json!({ "mode": "plan" }));
    let other = "ahp-chat:/other";
    watched.answer("createChat", json!({ "channel": SESSION, "chat": other }));
    watched.answer("subscribe", json!({ "channel": other }));
    let in_other = |watched: &mut Watched, turn: &str, script: &str| watched.turn_in(other, turn, script);
    assert_eq!(asked(&in_other(&mut watched, "o1", "asked")), "mode=\"plan\"");
    // What a client changes, what an agent changes by itself, and the model of a message.
    watched.configure(json!({ "effort": "high" }));
    assert_eq!(asked(&in_other(&mut watched, "o2", "asked")), "effort=\"high\"");
    in_other(&mut watched, "o3", "set mode \"code\"");
    let said = watched.turn("t1", "asked");
    assert_eq!(asked(&said), "mode=\"plan\" effort=\"high\" mode=\"code\"");
    watched.begin_with("t2", "asked", "small");
    watched.ending("t2");
    assert_eq!(asked(&in_other(&mut watched, "o4", "asked")), "model=\"small\"");
    // What one agent does not take is not asked of the other again.
    watched.configure(json!({ "mode": "locked" }));
    assert_eq!(watched.next_config()["mode"], "code");
    let (one, two) = (watched.turn("t3", "asked"), in_other(&mut watched, "o5", "asked"));
    assert_eq!((asked(&one), asked(&two)), ("mode=\"locked\"", "mode=\"locked\""));
    watched.leave();
}

#[test]
fn options_survive_the_death_of_the_agent() {
    for can in ["nothing", "load", "resume"] {
        let folder = tempfile::tempdir().unwrap();
        let memory = memory(folder.path());
        let mut watched = with(&["--can", can, "--memory", memory.to_str().unwrap()]).start_in(folder);
        watched.configured(&json!({ "theme": "dark" }));
        watched.configure(json!({ "effort": "high" }));
        watched.turn("t1", "set mode \"code\"");
        watched.begin("t2", "die 1");
        watched.ending("t2");
        let said = watched.turn("t3", "asked");
        assert!(said.starts_with("asked mode=\"code\" effort=\"high\" theme=\"dark\"; is"), "{can}: {said}");
        assert_eq!(watched.values()["mode"], "code");
        watched.leave();
    }
}

#[test]
fn option_is_refused_when_the_agent_does_not_answer_in_time() {
    let seconds = long_for_a_start();
    let mut watched = with(&["--sets", "silent"]).limit(&format!("start_seconds = {seconds}")).start();
    watched.configured(&json!({}));
    watched.configure(json!({ "mode": "plan" }));
    watched.turn("t1", "say hello");
    let notice = format!("The agent did not accept `mode` = \"plan\": it did not answer within {seconds}s");
    assert_eq!(watched.notices(), [notice]);
    assert_eq!(watched.values()["mode"], "ask");
    watched.leave();
}

#[test]
fn turn_that_waits_for_an_option_can_be_cancelled() {
    let mut watched = with(&["--sets", "silent"]).start();
    watched.configured(&json!({}));
    watched.begin_with("t1", "say hello", "small");
    watched.action("chat/turnStarted");
    watched.cancel("t1");
    let ending = watched.ending("t1");
    assert_eq!(ending["type"], "chat/turnCancelled");
    watched.leave();
}

#[test]
fn agent_that_dies_while_setting_an_option_ends_the_waiting_turn() {
    let mut watched = with(&["--sets", "dies"]).start();
    watched.configured(&json!({}));
    watched.begin_with("t1", "say hello", "small");
    let ending = watched.ending("t1");
    assert_eq!(ending["part"]["error"]["errorType"], "agentDied", "{ending}");
    assert_eq!(watched.turn("t2", "say hello"), "hello");
    watched.leave();

    let mut watched = with(&["--sets", "dies"]).start();
    let folder = watched.folder.as_ref().unwrap().path().to_str().unwrap().to_owned();
    watched
        .say(json!({ "id": 2, "method": "createSession", "params": { "channel": SESSION, "provider": "a0",
        "workingDirectories": [format!("file://{folder}")], "config": { "mode": "plan" } } }));
    watched.subscribe(SESSION);
    let failed = watched.creation_failure();
    assert!(failed["message"].as_str().unwrap().contains("status 9"), "{failed}");
    watched.leave();
}

#[test]
fn slash_commands_of_the_agent_are_offered_as_completions_per_session() {
    let mut watched = with(&[]).start();
    watched.session();
    watched.turn("t1", "say hello");
    let typed =
        |text: &str| json!({ "channel": SESSION, "kind": "userMessage", "text": text, "offset": text.len() });
    // Said before the session had a name.
    let items = watched.answer("completions", typed("/"))["result"]["items"].take();
    assert_eq!(items.as_array().unwrap().len(), 2, "{items}");
    assert_eq!(items[0]["insertText"], "/plan ");
    assert_eq!(
        items[0]["attachment"]["_meta"],
        json!({ "command": "plan", "description": "Makes a plan", "argumentHint": "what for" })
    );
    assert_eq!(items[1]["insertText"], "/clear");
    let command = json!([{ "name": "/deploy", "description": "Deploys" }]);
    watched.turn("t2", &format!("commands {command}"));
    let items = watched.answer("completions", typed("/"))["result"]["items"].take();
    assert_eq!(items.as_array().unwrap().len(), 1, "{items}");
    assert_eq!(items[0]["insertText"], "/deploy");
    // Another session may be elsewhere, and have others.
    let other = "ahp-session:/other";
    watched.create(other, "a0");
    watched.subscribe(other);
    let command = json!([{ "name": "test", "description": "Tests" }]);
    watched.turn_in(&default_chat_of(other), "o1", &format!("commands {command}"));
    let typed_there = json!({ "channel": other, "kind": "userMessage", "text": "/", "offset": 1 });
    let items = watched.answer("completions", typed_there)["result"]["items"].take();
    assert_eq!(items[0]["insertText"], "/test");
    let items = watched.answer("completions", typed("/"))["result"]["items"].take();
    assert_eq!(items[0]["insertText"], "/deploy");
    watched.leave();
}

#[test]
fn description_of_an_agent_is_restored_by_the_next_host_without_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let setting = stored(folder.path(), with(&[]));
    let mut watched = setting.start_in(folder);
    watched.configured(&json!({ "mode": "plan" }));
    watched.turn("t1", "say hello");
    let known = watched.answer("resolveSessionConfig", json!({ "provider": "a0" }));
    let config = watched.state(SESSION)["config"].take();
    let agents = watched.state("ahp-root://")["agents"].take();
    let folder = watched.leave().unwrap();

    let mut watched = stored(folder.path(), with(&[])).start_in(folder);
    assert_eq!(watched.state("ahp-root://")["agents"], agents);
    assert_eq!(watched.answer("resolveSessionConfig", json!({ "provider": "a0" })), known);
    assert_eq!(watched.state(SESSION)["config"], config);
    let typed = json!({ "channel": SESSION, "kind": "userMessage", "text": "/", "offset": 1 });
    let items = watched.answer("completions", typed)["result"]["items"].take();
    assert_eq!(items[0]["insertText"], "/plan ");
    let chosen = json!({ "provider": "a0", "config": { "mode": "fly" } });
    assert_eq!(watched.answer("resolveSessionConfig", chosen), known, "there is no such mode");
    watched.answer("ping", json!({}));
    assert!(watched.agents().is_empty());
    // It has forgotten the session, which is as it was all the same.
    watched.subscribe(SESSION);
    assert_eq!(asked(&watched.turn("t2", "asked")), "mode=\"plan\"");
    let folder = watched.leave().unwrap();

    // Another program under that name is another agent; one that is not configured is not there.
    let mut watched = stored(folder.path(), Setting::with(&[])).start_in(folder);
    let agents = watched.state("ahp-root://")["agents"].take();
    assert_eq!((&agents[0]["displayName"], &agents[0]["models"][0]["id"]), (&json!("a0"), &json!("default")));
    let folder = watched.leave().unwrap();
    let mut setting = stored(folder.path(), with(&[]));
    setting.agents = 0;
    let mut watched = setting.start_in(folder);
    assert_eq!(watched.state("ahp-root://")["agents"].as_array().unwrap().len(), 1);
    watched.leave();
}

#[test]
fn agent_with_several_working_directories_receives_them_all() {
    let folder = tempfile::tempdir().unwrap();
    let folders: Vec<String> = ["one", "two", "three"]
        .iter()
        .map(|name| {
            let path = folder.path().canonicalize().unwrap().join(name);
            fs::create_dir(&path).unwrap();
            path.to_str().unwrap().to_owned()
        })
        .collect();
    let uri = |at: usize| format!("file://{}", folders[at]);
    for can in ["resume", "load", "nothing"] {
        let memory = memory(folder.path());
        let arguments = ["--can", can, "--can", "directories", "--memory", memory.to_str().unwrap()];
        let mut watched = Setting::with(&arguments).start();
        let several = json!({ "channel": SESSION, "provider": "a0", "workingDirectories": [uri(0), uri(1)] });
        // Not known before it was started.
        assert_eq!(watched.answer("createSession", several.clone())["error"]["code"], -32602, "{can}");
        watched.create("ahp-session:/first", "a0");
        watched.subscribe("ahp-session:/first");
        watched.until_ready();
        let created = watched.answer("createSession", several);
        if can == "nothing" {
            assert_eq!(created["error"]["code"], -32602);
            watched.leave();
            continue;
        }
        watched.subscribe(SESSION);
        assert_eq!(watched.turn("t1", "where"), format!("{} {}", folders[0], folders[1]), "{can}");
        watched.sequence += 1;
        let action = json!({ "type": "session/workingDirectorySet", "directory": uri(2) });
        watched.say(json!({ "method": "dispatchAction", "params":
            { "channel": SESSION, "clientSeq": watched.sequence, "action": action } }));
        assert_eq!(watched.turn("t2", "where"), folders.join(" "), "{can}");
        let said = watched.turn("t3", "remembers");
        assert!(said.ends_with("| where | where | remembers"), "{can}: {said}");
        watched.leave();
    }
}

/// A client of an older version, and what it hears of the settings and models of its agent.
#[test]
fn clients_of_older_versions_see_the_options_that_their_version_has() {
    for (version, session, action) in
        [("0.9.0", SESSION, "chat"), ("0.3.0", SESSION, "session"), ("0.1.0", "a0:/s", "session")]
    {
        let folder = tempfile::tempdir().unwrap();
        let (host, cookie) = with(&[]).command(folder.path());
        let mut process = Process::spawn(host);
        // Each version has its own names for the channel.
        let others: &[&str] = if version == "0.1.0" { &["channel"] } else { &["session", "resource"] };
        let say = |process: &mut Process, mut message: Value| {
            message["jsonrpc"] = "2.0".into();
            let params = message["params"].as_object_mut().unwrap();
            params.retain(|name, _| !others.contains(&name.as_str()));
            process.say(&message.to_string());
        };
        say(
            &mut process,
            json!({ "id": 1, "method": "initialize", "params":
            { "channel": "ahp-root://", "clientId": "me", "protocolVersions": [version] } }),
        );
        say(
            &mut process,
            json!({ "id": 2, "method": "createSession", "params": { "channel": session,
            "session": session, "provider": "a0", "config": { "mode": "plan" } } }),
        );
        let subscribe =
            json!({ "id": 3, "method": "subscribe", "params": { "channel": session, "resource": session } });
        say(&mut process, subscribe.clone());
        let chat = if action == "chat" { default_chat_of(session) } else { session.to_owned() };
        if action == "chat" {
            say(&mut process, json!({ "id": 4, "method": "subscribe", "params": { "channel": chat } }));
        }
        let act = |sequence: u64, channel: &str, mut action: Value| {
            action["session"] = session.into();
            json!({ "method": "dispatchAction", "params": { "channel": channel, "clientSeq": sequence, "action": action } })
        };
        // What is said of it, by the action's name, wherever the version has it.
        let told = |process: &mut Process, name: &str| {
            let told = process.until(|message| message["params"]["action"]["type"] == name);
            told.last().unwrap()["params"]["action"].clone()
        };
        let changed = told(&mut process, "session/configChanged");
        assert_eq!(changed["config"]["mode"], "plan", "{version}");
        told(&mut process, "session/ready");
        say(
            &mut process,
            act(1, session, json!({ "type": "session/configChanged", "config": { "brave": true } })),
        );
        if action == "session" {
            let chosen = json!({ "type": "session/modelChanged", "model": { "id": "small" } });
            say(&mut process, act(2, session, chosen));
        }
        let message = json!({ "text": "asked", "origin": { "kind": "user" }, "model": { "id": "small" } });
        say(
            &mut process,
            act(
                3,
                &chat,
                json!({ "type": format!("{action}/turnStarted"), "turnId": "t1",
            "userMessage": { "text": "asked" }, "message": message, "startedAt": "2026-01-01T00:00:00Z" }),
            ),
        );
        let heard = process.until(|message| {
            message["params"]["action"]["type"] == format!("{action}/turnComplete").as_str()
        });
        let said = format!("{heard:?}");
        assert!(said.contains(r#"mode=\"plan\" brave=true model=\"small\""#), "{version}: {said}");
        say(
            &mut process,
            json!({ "id": 5, "method": "subscribe", "params": { "channel": session, "resource": session } }),
        );
        let state =
            process.until(|message| message["id"] == 5).pop().unwrap()["result"]["snapshot"]["state"].take();
        assert_eq!(
            state["config"]["values"],
            json!({ "mode": "plan", "model": "small", "theme": "light", "brave": true }),
            "{version}"
        );
        let root = if version == "0.1.0" { "agenthost:/root" } else { "ahp-root://" };
        say(
            &mut process,
            json!({ "id": 6, "method": "subscribe", "params": { "channel": root, "resource": root } }),
        );
        let state =
            process.until(|message| message["id"] == 6).pop().unwrap()["result"]["snapshot"]["state"].take();
        assert_eq!(state["agents"][0]["models"][1]["id"], "small", "{version}");
        process.end();
        process.rest();
        assert_eq!(process.wait().code(), Some(0));
        assert_eq!(bearers(&cookie), Vec::<String>::new());
    }
}
