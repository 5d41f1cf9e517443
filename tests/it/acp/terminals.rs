//! Commands that an agent runs in terminals of the host.
//!
//! Owns: real processes that end, that do not want to end, and that leave others behind.
//! Never: looks at more of them than their answers, and whether they are gone.

use rustix::process::{kill_process, Pid, Signal};

use super::*;

/// A `terminal/create` of a shell that runs this.
fn shell(script: &str) -> String {
    format!("call_silently terminal/create {}", json!({ "command": "sh", "args": ["-c", script] }))
}

pub fn create(params: Value) -> String {
    format!("call terminal/create {params}")
}

pub fn about(method: &str) -> String {
    format!(r#"call terminal/{method} {{"terminalId":"$TERMINAL"}}"#)
}

/// A shell that is not to be ended by kindness, and that is as far.
fn stubborn() -> String {
    shell(STUBBORN) + "\nuntil_output ready"
}

const STUBBORN: &str = "ulimit -t 2; trap '' TERM INT HUP; echo ready; while :; do sleep 0.05; done";

impl Watched {
    fn says(&mut self, turn: &str, steps: &[String]) -> Vec<Value> {
        let said = self.turn(turn, &steps.join("\n"));
        let parsed = said.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| line.into()));
        parsed.collect()
    }

    /// Runs until nothing but the agent and its guard is left.
    fn wait_for_commands(&self) {
        let start = Instant::now();
        while self.agents().iter().any(|process| !process.contains("agent.py")) {
            assert!(start.elapsed() < HUNG, "there are {:?}", self.agents());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn command_runs_and_reports_its_output_and_exit_status() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let folder = watched.folder.as_ref().unwrap().path().canonicalize().unwrap();
    fs::create_dir(folder.join("sub")).unwrap();
    let script = "pwd; echo \"$A $1\"; echo error >&2; echo more; exit 3";
    let command = json!({ "command": "sh", "args": ["-c", script, "sh", "a b"], "cwd": "$CWD/sub",
        "env": [{ "name": "A", "value": "b c" }] });
    let steps = [create(command), about("wait_for_exit"), about("output"), about("release"), about("output")];
    let said = watched.says("t1", &steps);
    assert_eq!(said[0], json!({ "terminalId": "terminal-1" }));
    assert_eq!(said[1], json!({ "exitCode": 3, "signal": null }));
    let output = format!("{}/sub\nb c a b\nerror\nmore\n", folder.display());
    assert_eq!(
        said[2],
        json!({ "output": output, "truncated": false, "exitStatus": { "exitCode": 3, "signal": null } })
    );
    assert_eq!(said[3], json!({}));
    assert_eq!(said[4], "error -32602: there is no terminal `terminal-1`");
    watched.wait_for_commands();
    watched.leave();
}

#[test]
fn command_has_empty_stdin_and_no_shell_expansion() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let steps = [
        create(json!({ "command": "cat" })),
        about("wait_for_exit"),
        create(json!({ "command": "echo", "args": ["$HOME; ls"] })),
        about("wait_for_exit"),
        about("output"),
    ];
    let said = watched.says("t1", &steps);
    assert_eq!((&said[1]["exitCode"], &said[4]["output"]), (&json!(0), &json!("$HOME; ls\n")));
    watched.leave();
}

#[test]
fn command_that_cannot_be_started_is_an_error() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    fs::write(watched.folder.as_ref().unwrap().path().join("ls-of-mine"), "#!/bin/sh\n").unwrap();
    let file = watched.folder.as_ref().unwrap().path().join("ls-of-mine");
    let mut mode = fs::metadata(&file).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    fs::set_permissions(&file, mode).unwrap();
    let path = json!([{ "name": "PATH", "value": ":.:/usr/bin:/bin" }]);
    let refused = [
        (json!({ "command": "no-such-program" }), "no such program on the search path"),
        (json!({ "command": "" }), "no such program"),
        (json!({ "command": "./no-such-program" }), "cannot be started: No such file"),
        (json!({ "command": "/" }), "cannot be started"),
        (json!({ "command": "true", "cwd": "/usr" }), "it is outside of the session's working directories"),
        (json!({ "command": "true", "cwd": "sub" }), "it is not an absolute path"),
        (json!({ "command": "true", "cwd": "$CWD/none" }), "No such file"),
        (
            json!({ "command": "true", "env": [{ "name": "A=B", "value": "" }] }),
            "the environment variable `A=B` has an invalid name or value",
        ),
        (json!({ "command": "ls-of-mine", "env": path }), "no such program on the search path"),
        (json!({ "args": [] }), "the params are invalid"),
    ];
    let steps: Vec<String> = refused.iter().map(|(command, _)| create(command.clone())).collect();
    for (said, (command, why)) in watched.says("t1", &steps).iter().zip(&refused) {
        let said = said.as_str().unwrap_or_else(|| panic!("{command}: {said}"));
        assert!(said.starts_with("error -32") && said.contains(why), "{command}: {said}");
    }
    let calls = watched.received("chat/toolCallComplete");
    assert!(!calls.is_empty() && calls.iter().all(|call| call["result"]["success"] == false), "{calls:?}");
    // A path is the agent's own choice.
    let said = watched.says("t2", &[create(json!({ "command": "./ls-of-mine" })), about("wait_for_exit")]);
    assert_eq!(said[1]["exitCode"], 0);
    watched.leave();
}

#[test]
fn command_output_is_truncated_at_its_limit() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let command = json!({ "command": "sh", "args": ["-c", "printf 'ä€ä€'"], "outputByteLimit": 6 });
    let much =
        json!({ "command": "sh", "args": ["-c", "head -c 30000000 /dev/zero | tr '\\0' x; printf end"] });
    let ended = about("wait_for_exit");
    let steps = [create(command), ended.clone(), about("output"), create(much), ended, about("output")];
    let said = watched.says("t1", &steps);
    assert_eq!((&said[2]["output"], &said[2]["truncated"]), (&json!("ä€"), &json!(true)));
    let output = said[5]["output"].as_str().unwrap();
    assert_eq!((output.len(), &said[5]["truncated"]), (1 << 20, &json!(true)));
    assert!(output.ends_with("xend"));
    // As much as may be is all there, and of one byte more the first is left out.
    for (turn, bytes, is_cut) in
        [("t2", (1 << 20) - 1, false), ("t3", 1 << 20, false), ("t4", (1 << 20) + 1, true)]
    {
        let script = format!("printf a; head -c {} /dev/zero | tr '\\0' x", bytes - 1);
        let command = json!({ "command": "sh", "args": ["-c", script] });
        let said = watched.says(turn, &[create(command), about("wait_for_exit"), about("output")]);
        let output = said[2]["output"].as_str().unwrap();
        assert_eq!((output.len(), &said[2]["truncated"]), (bytes.min(1 << 20), &json!(is_cut)), "{turn}");
        assert_eq!(output.starts_with('a'), !is_cut, "{turn}");
    }
    watched.leave();
}

#[test]
fn killed_command_ends_with_all_its_descendants() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let steps = [
        shell("sleep 1000 & echo ready; sleep 1000"),
        "until_output ready".to_owned(),
        about("kill"),
        about("output"),
        about("wait_for_exit"),
        about("release"),
        shell(&format!("(({STUBBORN}) >/dev/null) & {STUBBORN}")),
        "until_output ready".to_owned(),
        about("kill"),
        about("wait_for_exit"),
        // It is gone already.
        about("kill"),
    ];
    let said = watched.says("t1", &steps);
    assert_eq!(said[0], json!({}));
    let by = |signal: &str| json!({ "exitCode": null, "signal": signal });
    assert_eq!((&said[1]["exitStatus"], &said[2]), (&by("SIGTERM"), &by("SIGTERM")));
    assert_eq!((&said[5], &said[6]), (&by("SIGKILL"), &json!({})));
    watched.wait_for_commands();
    watched.leave();
}

#[test]
fn released_terminal_is_killed_and_its_pending_waits_are_answered() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let wait = about("wait_for_exit").replacen("call", "send", 1);
    let steps = [
        stubborn(),
        wait.clone(),
        wait.clone(),
        "withdraw".to_owned(),
        about("release"),
        "answers".to_owned(),
    ];
    let said = watched.says("t1", &steps);
    assert_eq!(said[0], json!({}));
    let mut answers: Vec<&str> = said[1..].iter().map(|said| said.as_str().unwrap()).collect();
    answers.sort_unstable();
    assert_eq!(answers, [r#"0: {"exitCode": null, "signal": "SIGKILL"}"#, "1: error -32800: withdrawn"]);
    watched.wait_for_commands();
    watched.leave();
}

#[test]
fn background_processes_of_a_command_run_until_its_terminal_is_released() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let steps = [shell("sleep 1000 & echo started"), about("wait_for_exit"), about("output")];
    let said = watched.says("t1", &steps);
    assert_eq!((&said[0]["exitCode"], &said[1]["output"]), (&json!(0), &json!("started\n")));
    assert!(watched.agents().iter().any(|process| process.contains("sleep 1000")));
    watched.says("t2", &[about("release")]);
    watched.wait_for_commands();
    watched.leave();
}

#[test]
fn tool_call_shows_its_terminal_during_the_command_and_after_the_release() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let call = r#"update {"sessionUpdate":"tool_call","toolCallId":"c","title":"Run","kind":"execute","content":[{"type":"terminal","terminalId":"$TERMINAL"}]}"#;
    let go = watched.folder.as_ref().unwrap().path().join("go");
    let script = format!("echo one; while [ ! -e {} ]; do sleep 0.02; done; echo two; exit 1", go.display());
    let steps = [
        shell(&script),
        call.to_owned(),
        about("wait_for_exit").replacen("call", "call_silently", 1),
        about("release").replacen("call", "call_silently", 1),
        r#"update {"sessionUpdate":"tool_call_update","toolCallId":"c","status":"failed"}"#.to_owned(),
    ];
    watched.begin("t1", &steps.join("\n"));
    let text = |content: &Value| {
        let parts = content.as_array().unwrap().iter().filter_map(|part| part["text"].as_str());
        parts.map(str::to_owned).collect::<Vec<String>>()
    };
    let shown = watched.action_where(|action| {
        action["type"] == "chat/toolCallContentChanged" && text(&action["content"]) == ["one\n"]
    });
    assert_eq!(shown["toolCallId"], "c");
    // Whoever follows the terminal is told what it prints.
    let terminal = shown["content"][0]["resource"].clone();
    watched.say(json!({ "id": 9, "method": "subscribe", "params": { "channel": terminal } }));
    let mut state = Value::Null;
    watched.process.until(|message| {
        state = message["result"]["snapshot"]["state"].clone();
        message["id"] == 9
    });
    assert_eq!(state["content"], json!([{ "type": "unclassified", "value": "one\n" }]));
    assert_eq!((&state["lifecycle"]["status"], &state["isPty"]), (&json!("running"), &json!(false)));
    assert_eq!(state["claim"]["toolCallId"], "c");
    fs::write(go, "").unwrap();
    watched.ending("t1");
    let done = watched.received("chat/toolCallComplete");
    assert_eq!(text(&done[0]["result"]["content"]), ["one\ntwo\n", "The command ended with status 1."]);
    let kept = &done[0]["result"]["content"][0];
    assert_eq!((&kept["type"], &kept["resource"]), (&json!("terminal"), &terminal));
    assert_eq!(kept["result"], json!({ "exitCode": 1, "preview": "one\ntwo\n" }));
    let told = watched.received("terminal/data").into_iter().map(|action| action["data"].as_str().unwrap());
    assert_eq!(told.collect::<String>(), "two\n");
    assert_eq!(watched.received("terminal/exited"), [&json!({ "type": "terminal/exited", "exitCode": 1 })]);
    assert_eq!(watched.received("chat/toolCallStart").len(), 1);
    watched.leave();
}

#[test]
fn withdrawn_command_does_not_run() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let create = r#"send_and_withdraw terminal/create {"command":"touch","args":["$CWD/ran"]}"#;
    // A command that is looked up behind it runs.
    let said = watched.turn("t1", &[create, r#"call terminal/create {"command":"true"}"#].join("\n"));
    assert!(said.starts_with("error -32800: ") && said.contains("terminalId"), "{said}");
    let calls = watched.received("chat/toolCallStart");
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert!(!watched.folder.as_ref().unwrap().path().join("ran").exists());
    watched.leave();
}

#[test]
fn command_claimed_by_the_user_continues_in_the_background() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let call = r#"update {"sessionUpdate":"tool_call","toolCallId":"c","title":"Run","kind":"execute","content":[{"type":"terminal","terminalId":"$TERMINAL"}]}"#;
    let go = watched.folder.as_ref().unwrap().path().join("go");
    let script = format!("echo one; while [ ! -e {} ]; do sleep 0.02; done; echo two", go.display());
    let steps = [
        shell(&script),
        call.to_owned(),
        about("wait_for_exit"),
        about("output"),
        about("release"),
        r#"update {"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed"}"#.to_owned(),
    ];
    watched.begin("t1", &steps.join("\n"));
    let shown = watched.action("chat/toolCallContentChanged");
    let terminal = shown["content"][0]["resource"].clone();
    watched.say(json!({ "id": 9, "method": "subscribe", "params": { "channel": terminal } }));
    let claim = json!({ "kind": "session", "session": SESSION, "chat": default_chat_of(SESSION) });
    let claimed = json!({ "type": "terminal/claimed", "claim": claim });
    watched.say(json!({ "method": "dispatchAction",
        "params": { "channel": terminal, "clientSeq": 77, "action": claimed } }));
    watched.ending("t1");
    let said = watched.answer_text();
    assert!(said.contains(r#"{"exitCode": null, "signal": null}"#), "{said}");
    assert!(said.contains("moved the command to the background"), "{said}");
    assert_eq!(watched.received("chat/backgroundWorkSet")[0]["work"]["terminal"], terminal);
    assert!(watched.received("chat/backgroundWorkRemoved").is_empty());
    // What a later turn does is nothing to it.
    watched.begin("t2", "hang");
    watched.cancel("t2");
    watched.ending("t2");
    fs::write(go, "").unwrap();
    watched.action("chat/backgroundWorkRemoved");
    assert_eq!(watched.received("terminal/exited"), [&json!({ "type": "terminal/exited", "exitCode": 0 })]);
    watched.wait_for_commands();
    watched.leave();
}

#[test]
fn command_without_a_tool_call_gets_one() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.says("t1", &[shell("echo hidden"), about("wait_for_exit"), about("release")]);
    let done = watched.received("chat/toolCallComplete");
    let content = &done[0]["result"]["content"];
    assert_eq!(
        (&content[0]["result"]["preview"], &content[1]["text"]),
        (&json!("hidden\n"), &json!("hidden\n"))
    );
    let start = watched.received("chat/toolCallStart");
    assert_eq!((start.len(), &start[0]["toolName"]), (1, &json!("terminal/create")));
    watched.leave();
}

#[test]
fn cancelled_turn_ends_its_commands() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", &[stubborn(), "say running".to_owned(), "hang".to_owned()].join("\n"));
    watched.action_where(|action| action["part"]["content"] == "running");
    watched.cancel("t1");
    watched.ending("t1");
    watched.wait_for_commands();
    // The terminal is there until it is released.
    let said = watched.says("t2", &[about("output"), about("release")]);
    assert_eq!(
        (&said[0]["output"], &said[0]["exitStatus"]["signal"]),
        (&json!("ready\n"), &json!("SIGKILL"))
    );
    watched.leave();
}

#[test]
fn agent_death_ends_its_commands() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", &[stubborn(), "die".to_owned()].join("\n"));
    assert_eq!(watched.ending("t1")["type"], "chat/error");
    watched.wait_for_commands();
    watched.leave();
}

#[test]
fn disposing_of_a_session_ends_its_commands() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.turn("t1", &stubborn());
    watched.say(json!({ "id": 7, "method": "disposeSession", "params": { "channel": SESSION } }));
    watched.wait_for_commands();
    watched.leave();
}

#[test]
fn host_end_or_death_leaves_no_command_running() {
    let running = || {
        let mut watched = Setting::with(&[]).start();
        watched.session();
        watched.turn("t1", &[stubborn(), shell("sleep 1000")].join("\n"));
        watched
    };
    // Nothing is left when it has ended.
    running().leave();

    let mut watched = running();
    let host = Pid::from_raw(watched.process.child.id().try_into().unwrap()).unwrap();
    kill_process(host, Signal::KILL).unwrap();
    watched.process.wait();
    watched.wait_for_agents(0);
}

#[test]
fn terminal_beyond_the_limit_of_64_is_refused() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let steps: Vec<String> = (0..65).map(|_| create(json!({ "command": "true" }))).collect();
    let said = watched.says("t1", &steps);
    assert_eq!(said[63], json!({ "terminalId": "terminal-64" }));
    assert_eq!(said[64], "error -32602: the session has 64 unreleased terminals, the maximum");
    let said = watched.says("t2", &[about("release"), create(json!({ "command": "true" }))]);
    assert_eq!(said[1], json!({ "terminalId": "terminal-65" }));
    watched.leave();
}
