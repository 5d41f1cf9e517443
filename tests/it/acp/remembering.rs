//! Conversations that go on although the agent that held them has ended.

use super::*;

/// Runs a turn after the agent process has died; returns its text and the actions received.
fn after_a_death(can: &[&str]) -> (String, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(folder.path());
    let mut arguments = vec!["--memory", memory.to_str().unwrap()];
    arguments.extend(can.iter().flat_map(|can| ["--can", can]));
    if can.contains(&"replay-late") {
        // Of which it is known.
        arguments.extend(["--name", "gemini-cli"]);
    }
    let mut watched = Setting::with(&arguments).start_in(folder);
    watched.session();
    watched.turn("t1", "say the first answer");
    watched.begin("t2", "die 1");
    watched.ending("t2");
    let said = watched.turn("t3", "remembers");
    let heard = watched.heard.clone();
    watched.leave();
    (said, heard)
}

#[test]
fn restarted_agent_that_can_resume_or_load_continues_without_repeated_history() {
    for can in [&["resume"] as &[_], &["load"], &["load", "replay-with-answer"], &["load", "replay-late"]] {
        let (said, heard) = after_a_death(can);
        assert!(said.contains("| say the first answer | die 1 | remembers"), "{can:?}: {said}");
        let told = format!("{heard:?}");
        assert!(!told.contains("replay") && !told.contains("systemNotification"), "{can:?}: {told}");
    }
}

#[test]
fn restarted_agent_that_cannot_resume_receives_the_history_with_a_notice() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.turn("t1", "say the first answer");
    watched.begin("t2", "die 1");
    watched.ending("t2");
    let said = watched.turn("t3", "prompt");
    assert!(
        said.contains("The user:\\nsay the first answer") && said.contains("You:\\nthe first answer"),
        "{said}"
    );
    let notices: Vec<_> = watched
        .received("chat/responsePart")
        .into_iter()
        .filter(|it| it["part"]["kind"] == "systemNotification")
        .collect();
    assert_eq!(notices.len(), 1, "{:?}", watched.heard);
    // Once is enough.
    assert!(!watched.turn("t4", "prompt").contains("the first answer"));
    watched.leave();
}

#[test]
fn history_is_repeated_after_a_prompt_that_the_agent_refused() {
    for refusing in ["error -32603 the model is not available", "end refusal"] {
        let mut watched = Setting::with(&[]).start();
        watched.session();
        watched.turn("t1", "say the first answer");
        watched.begin("t2", "die 1");
        watched.ending("t2");
        watched.begin("t3", refusing);
        assert_eq!(watched.ending("t3")["type"], "chat/error");
        assert!(watched.turn("t4", "prompt").contains("You:\\nthe first answer"), "{refusing}");
        assert!(!watched.turn("t5", "prompt").contains("the first answer"));
        watched.leave();
    }
}

/// The way that keeps most is tried first, and one that the agent does not survive is not tried
/// again.
#[test]
fn conversation_continues_although_resuming_fails_in_the_agent() {
    for (can, wrong, told_anew) in [
        (&["resume", "load"] as &[_], "session/resume=error", false),
        (&["resume", "load"], "session/resume=die", false),
        (&["resume"], "session/resume=silence", true),
        (&["load"], "session/load=kill", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (memory, notes) = (memory(folder.path()), folder.path().join("notes"));
        let mut arguments = vec!["--memory", memory.to_str().unwrap(), "--notes", notes.to_str().unwrap()];
        arguments.extend(["--which", "2", "--at", wrong]);
        arguments.extend(can.iter().flat_map(|can| ["--can", can]));
        let seconds = if wrong.ends_with("silence") { long_for_a_start() } else { 100 };
        let limit = format!("start_seconds = {seconds}\n");
        let mut watched = Setting::with(&arguments).limit(&limit).start_in(folder);
        watched.session();
        watched.turn("t1", "say the first answer");
        watched.begin("t2", "die 1");
        watched.ending("t2");
        let said = watched.turn("t3", "remembers");
        assert_eq!(said.contains("| say the first answer"), !told_anew, "{can:?}, {wrong}: {said}");
        let notices = watched.received("chat/responsePart");
        let notices = notices.iter().filter(|it| it["part"]["kind"] == "systemNotification");
        assert_eq!(notices.count(), usize::from(told_anew), "{can:?}, {wrong}");
        watched.leave();
    }
}

/// Some agents keep one session at a time, and answer prompts of the others as prompts of none.
#[test]
fn session_dropped_by_a_living_agent_is_resumed_without_a_notice() {
    for (can, code) in [("resume", -32002), ("load", -32602)] {
        let mut watched = Setting::with(&["--can", can]).start();
        watched.session();
        watched.turn("t1", &format!("say the first answer\nforget {code}"));
        let said = watched.turn("t2", "remembers");
        assert!(said.contains("| say the first answer") && said.ends_with("| remembers"), "{said}");
        assert!(!format!("{:?}", watched.heard).contains("systemNotification"), "{:?}", watched.heard);
        watched.leave();
    }
}

/// A prompt that is refused for another reason is not sent for ever.
#[test]
fn refused_prompt_ends_the_turn_with_its_error_and_the_next_turn_works() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.turn("t1", "say ok");
    watched.begin("t2", "error -32602 I do not like it");
    let ending = watched.ending("t2");
    assert!(ending["part"]["error"]["message"].as_str().unwrap().contains("do not like it"), "{ending}");
    assert_eq!(watched.turn("t3", "say ok"), "ok");
    watched.leave();
}

#[test]
fn message_refused_as_invalid_leaves_the_agent_its_session() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.turn("t1", "say ok");
    watched.begin("t2", "error -32602 the message is too long");
    assert_eq!(watched.ending("t2")["type"], "chat/error");
    let said = watched.turn("t3", "remembers");
    assert!(said.contains("| say ok | error -32602"), "{said}");
    watched.leave();
}

#[test]
fn agent_that_lost_a_session_receives_the_history() {
    // It says that it can load, and remembers nothing.
    let mut watched = Setting::with(&["--can", "load"]).start();
    watched.session();
    watched.turn("t1", "say the first answer");
    watched.begin("t2", "die 1");
    watched.ending("t2");
    assert!(watched.turn("t3", "prompt").contains("the first answer"));
    watched.leave();
}

#[test]
fn truncated_turns_are_not_in_the_history_that_the_agent_receives() {
    let mut watched = Setting::with(&["--can", "resume"]).start();
    watched.session();
    watched.turn("t1", "say one");
    watched.turn("t2", "say two");
    watched.dispatch(json!({ "type": "chat/truncated", "turnId": "t1" }));
    watched.action("chat/truncated");
    let said = watched.turn("t3", "prompt");
    assert!(said.contains("say one") && !said.contains("say two"), "{said}");
    watched.leave();
}

#[test]
fn conversation_continues_after_a_restart_of_the_host() {
    let mut folder = tempfile::tempdir().unwrap();
    for (turn, script, expected) in [("t1", "say one", "one"), ("t2", "remembers", "| say one | remembers")] {
        let memory = memory(folder.path());
        let state = folder.path().join("state");
        let mut setting = Setting::with(&["--can", "load", "--memory", memory.to_str().unwrap()]);
        setting.flags = vec!["--state-dir".to_owned(), state.to_str().unwrap().to_owned()];
        let mut watched = setting.start_in(folder);
        if turn == "t1" {
            watched.session();
        } else {
            watched.subscribe(SESSION);
        }
        let said = watched.turn(turn, script);
        assert!(said.ends_with(expected), "{said}");
        assert!(!said.contains("replay"), "{said}");
        folder = watched.leave().unwrap();
    }
}

/// A turn that the end of the host has cut is over; nothing runs twice by itself.
#[test]
fn interrupted_turn_is_ended_and_is_not_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(folder.path());
    let state = folder.path().join("state");
    let setting = || {
        let mut setting = Setting::with(&["--can", "load", "--memory", memory.to_str().unwrap()]);
        setting.flags = vec!["--state-dir".to_owned(), state.to_str().unwrap().to_owned()];
        setting
    };
    let mut watched = setting().start_in(folder);
    watched.session();
    watched.begin("t1", "say begun\nhang");
    watched.action_where(|action| action["part"]["content"] == "begun");
    watched.process.child.kill().unwrap();
    watched.process.wait();
    watched.wait_for_agents(0);
    let folder = watched.folder.take().unwrap();

    let mut watched = setting().start_in(folder);
    watched.say(json!({ "id": 7, "method": "subscribe", "params": { "channel": default_chat_of(SESSION) } }));
    let told = watched.process.until(|message| message["id"] == 7);
    let turn = &told.last().unwrap()["result"]["snapshot"]["state"]["turns"][0];
    assert_eq!(turn["state"], "error", "{turn}");
    assert!(watched.agents().is_empty());
    let said = watched.turn("t2", "remembers");
    assert_eq!(said.matches("hang").count(), 1, "{said}");
    watched.leave();
}
