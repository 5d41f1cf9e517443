//! Before an agent does anything: whether it is there, and what it is offered as the one that it
//! is.

use super::*;

/// Returns the number of starts in the agent's notes.
fn starts(notes: &Path) -> usize {
    fs::read_to_string(notes).unwrap().lines().filter(|line| line.contains("started")).count()
}

/// An agent that calls itself so, and what it is told that it may do with files, in its first
/// session and in the first one of its next process.
fn offered(name: &str, limits: &str) -> ([Value; 2], usize) {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let arguments = ["--name", name, "--notes", notes.to_str().unwrap()];
    let mut watched = Setting::with(&arguments).limit(limits).start_in(folder);
    watched.session();
    let told = |watched: &mut Watched, turn| {
        let can: Value = serde_json::from_str(&watched.turn(turn, "can")).unwrap();
        can["fs"].clone()
    };
    let first = told(&mut watched, "t1");
    watched.begin("t2", "die");
    assert_eq!(watched.ending("t2")["type"], "chat/error");
    let second = told(&mut watched, "t3");
    let started = starts(&notes);
    watched.leave();
    ([first, second], started)
}

#[test]
fn agent_with_broken_file_reading_is_not_offered_it_from_the_first_session() {
    let not = json!({ "readTextFile": false, "writeTextFile": true });
    let all = json!({ "readTextFile": true, "writeTextFile": true });
    // Once to hear what it is, once for the session, once after its death.
    assert_eq!(offered("gemini-cli", ""), ([not.clone(), not], 3));
    assert_eq!(offered("agent.py", ""), ([all.clone(), all.clone()], 2));
    // The operator has said so.
    assert_eq!(offered("gemini-cli", "read_files = true\n"), ([all.clone(), all], 2));
}

#[test]
fn agent_finds_the_programs_that_are_beside_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut setting = Setting::with(&[]);
    let wrapper = folder.path().join("wrapper");
    write_program(&wrapper, "#!/bin/sh\nexec \"$@\"\n");
    setting.by = Some(wrapper);
    let beside = folder.path().to_str().unwrap().to_owned();
    let mut watched = setting.start_in(folder);
    watched.session();
    assert_eq!(watched.turn("t1", "last_folder"), beside);
    watched.leave();
}

#[test]
fn program_known_by_name_as_a_quirky_agent_is_started_once() {
    for (name, reads) in [("gemini-cli", false), ("agent.py", true)] {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes");
        let mut setting = Setting::with(&["--name", name, "--notes", notes.to_str().unwrap()]);
        setting.log = Some("info");
        // A wrapper that is called as the agent is.
        let wrapper = folder.path().join("gemini");
        write_program(&wrapper, "#!/bin/sh\nexec \"$@\"\n");
        setting.by = Some(wrapper);
        let mut watched = setting.start_in(folder);
        watched.session();
        let can: Value = serde_json::from_str(&watched.turn("t1", "can")).unwrap();
        assert_eq!(can["fs"]["readTextFile"], reads);
        // It is something else than was expected.
        assert_eq!(starts(&notes), 1 + usize::from(reads));
        watched.leave();
    }
}

#[test]
fn agent_that_is_not_installed_is_reported_with_the_searched_path() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let here = folder.path().join("bin");
    fs::create_dir(&here).unwrap();
    let text = format!("[agents.a0]\ncommand = \"no-such-agent\"\nargs = [\"--key\", \"s3cret\"]\nenv = {{ PATH = {here:?} }}\n");
    fs::write(&config, text).unwrap();
    let mut host: Command = program();
    host.args(["--log", "error", "--ephemeral", "--config"]).arg(&config);
    let process = Process::spawn(host);
    let mut watched =
        Watched { process, cookie: "none".to_owned(), sequence: 0, folder: Some(folder), heard: Vec::new() };
    watched.say(json!({ "id": 1, "method": "initialize", "params":
        { "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] } }));
    // As often as it is tried: it has not died.
    for session in ["ahp-session:/s", "ahp-session:/t", "ahp-session:/u", "ahp-session:/v", "ahp-session:/w"]
    {
        watched.create(session, "a0");
        watched.subscribe(session);
        let failed = watched.process.until(|message| {
            message["params"]["action"]["type"] == "session/creationFailed"
                || message["result"]["snapshot"]["state"]["creationError"].is_object()
        });
        let why = failed.last().unwrap().to_string();
        assert!(why.contains("it is not installed: the command `no-such-agent`"), "{why}");
        assert!(why.contains(here.to_str().unwrap()) && !why.contains("s3cret"), "{why}");
    }
    watched.leave();
}
