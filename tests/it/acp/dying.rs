//! Agents that die, that do not obey, and that cannot be started.

use super::*;

#[test]
fn agent_death_ends_the_turn_with_its_reason_and_the_next_turn_works() {
    for (script, how) in [
        ("say a\nstderr no more money\ndie 3", ["status 3", "no more money"]),
        ("tool_left_open c1\nkill", ["signal 9", "ended unexpectedly"]),
        ("say a\nhalf", ["status 0", "ended unexpectedly"]),
        ("ask_and_finish\nclose_stdout", ["ended unexpectedly", "a0"]),
        ("child\ndie 4", ["status 4", "ended unexpectedly"]),
    ] {
        let mut watched = Setting::with(&[]).start();
        watched.session();
        watched.begin("t1", script);
        let ending = watched.ending("t1");
        assert_eq!(ending["part"]["error"]["errorType"], "agentDied", "{ending}");
        let message = ending["part"]["error"]["message"].as_str().unwrap();
        assert!(how.iter().all(|part| message.contains(part)), "{script}: {message}");
        assert!(watched.turn("t2", "say ok").ends_with("ok"), "after {script}");
        watched.leave();
    }
}

#[test]
fn key_in_the_environment_of_an_agent_is_in_no_error_and_no_log() {
    let mut setting = Setting::with(&[]);
    setting.variables = ", X_Api_Key = 'sk-c0ffee-0123', MODE = 'read-only', MY_TOKENS = '64000'";
    setting.log = Some("warn");
    let mut watched = setting.start_with_log(tempfile::tempdir().unwrap());
    watched.session();
    watched.begin("t1", "stderr invalid key sk-c0ffee-0123 (read-only, 64000)\ndie 1");
    let ending = watched.ending("t1");
    let message = ending["part"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("invalid key (secret) (read-only, 64000)"), "{message}");
    let folder = watched.leave().unwrap();
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("invalid key (secret)") && !log.contains("c0ffee"), "{log}");
}

#[test]
fn opening_fails_if_the_agent_is_stopped_while_a_setting_is_pending() {
    let mut watched = Setting::with(&["--has", "options"]).limit("cancel_seconds = 0.3\n").start();
    watched.session();
    watched.begin("t1", "set_at_end");
    let says =
        |action: &Value, words: &str| (action["content"].as_str()).is_some_and(|text| text.contains(words));
    watched.action_where(|action| says(&action["part"], "serves") || says(action, "serves"));
    let second = "ahp-session:/second";
    watched.say(json!({ "id": 2, "method": "createSession", "params": { "channel": second, "provider": "a0",
        "config": { "mode": "plan", "theme": "dark" } } }));
    watched.subscribe(second);
    watched.action_where(|action| says(action, "holds"));
    watched.cancel("t1");
    let failure = watched.creation_failure();
    assert!(failure["message"].as_str().unwrap().contains("did not end a cancelled turn"), "{failure}");
    assert_eq!(watched.turn("t2", "say ok"), "ok");
    watched.leave();
}

#[test]
fn turn_is_complete_if_the_agent_dies_right_after_its_answer() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    assert_eq!(watched.turn("t1", "say One.\nlast_words  Two."), "One. Two.");
    // It may be so near to its death that it is sent another turn.
    watched.begin("t2", "say ok");
    let ending = watched.ending("t2");
    if ending["type"] != "chat/turnComplete" {
        assert_eq!(ending["part"]["error"]["errorType"], "agentDied", "{ending}");
    }
    assert!(watched.turn("t3", "say ok").ends_with("ok"));
    watched.leave();
}

#[test]
fn cancelled_turn_ends_at_once_and_the_agent_runs_the_next_turn() {
    for script in ["hang", "say a\nhang", "tool_left_open c\nhang", "ask", "ask_thrice", "chatty", "deaf"] {
        let mut watched = Setting::with(&["--can", "load"]).limit("cancel_seconds = 0.3\n").start();
        watched.session();
        watched.until_ready();
        watched.begin("t1", &format!("say begun\n{script}"));
        if script.starts_with("ask") {
            watched.action("chat/toolCallReady");
        } else {
            watched
                .action_where(|action| action["part"]["content"] == "begun" || action["content"] == "begun");
        }
        watched.cancel("t1");
        assert_eq!(watched.ending("t1")["type"], "chat/turnCancelled", "{script}");
        let said = watched.turn("t2", "say ok");
        assert!(said.ends_with("ok"), "after {script}: {said}");
        watched.leave();
    }
}

#[test]
fn agent_that_dies_repeatedly_is_not_restarted_forever() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let mut ends = Vec::new();
    for turn in 1..=6 {
        watched.begin(&format!("t{turn}"), "die 1");
        let ending = watched.ending(&format!("t{turn}"));
        ends.push(ending["part"]["error"]["message"].as_str().unwrap().to_owned());
    }
    assert!(
        ends[..4].iter().all(|end| end.contains("has ended unexpectedly: it ended with status 1")),
        "{ends:#?}"
    );
    assert!(ends[4..].iter().all(|end| end.contains("4 times in a row and is not restarted")), "{ends:#?}");
    watched.leave();
}

#[test]
fn missing_program_fails_session_creation_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = program();
    host.args(["--ephemeral", "--agent", "none=/no/such/program --flag"]);
    let mut watched = Watched {
        process: Process::spawn(host),
        cookie: uuid::Uuid::new_v4().to_string(),
        sequence: 0,
        folder: Some(folder),
        heard: Vec::new(),
    };
    watched.say(json!({ "id": 1, "method": "initialize", "params":
        { "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] } }));
    watched.create(SESSION, "none");
    watched.subscribe(SESSION);
    let failed = watched.creation_failure();
    assert!(
        failed["message"].as_str().unwrap().contains("the command `/no/such/program` does not exist"),
        "{failed}"
    );
    watched.leave();
}

#[test]
fn missing_working_directory_is_reported_instead_of_a_missing_program() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("gone");
    fs::create_dir(&directory).unwrap();
    let mut watched = Setting::with(&[]).limit(&format!("directory = {directory:?}\n")).start_in(folder);
    watched.process.until(|message| message["id"] == 1);
    fs::remove_dir(&directory).unwrap();
    watched.session();
    let failed = watched.creation_failure();
    let said = failed["message"].as_str().unwrap();
    assert!(said.contains("gone` is not a folder"), "{said}");
    watched.leave();
}
