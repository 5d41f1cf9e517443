//! Chats that go on from others: by a copy that the agent makes of its session where that is all
//! that was said, else by telling it.

use super::*;

const FORK: &str = "ahp-chat:/fork";

/// Result of a turn in a chat: its text, and the number of notices of the host in it.
struct Told {
    said: String,
    notices: usize,
}

impl Watched {
    fn create_chat(&mut self, source: Value) {
        self.say(json!({ "id": 80, "method": "createChat", "params":
            { "channel": SESSION, "chat": FORK, "source": source } }));
        let told = self.process.until(|message| message["id"] == 80);
        assert!(told.last().unwrap()["error"].is_null(), "{told:?}");
        self.say(json!({ "id": 81, "method": "subscribe", "params": { "channel": FORK } }));
    }

    fn fork(&mut self, turn: &str) {
        let source = json!({ "kind": "fork", "chat": default_chat_of(SESSION), "turnId": turn });
        self.create_chat(source);
    }

    fn in_fork(&mut self, action: Value) {
        self.sequence += 1;
        self.say(json!({ "method": "dispatchAction", "params":
            { "channel": FORK, "clientSeq": self.sequence, "action": action } }));
    }

    /// Runs a turn in the new chat.
    fn turn_in_fork(&mut self, turn: &str, script: &str) -> Told {
        self.heard.clear();
        self.in_fork(
            json!({ "type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00Z",
            "message": { "text": script, "origin": { "kind": "user" } } }),
        );
        let ending = self.ending(turn);
        assert_eq!(ending["type"], "chat/turnComplete", "{ending}");
        let parts = self.received("chat/responsePart");
        let notices = parts.iter().filter(|action| action["part"]["kind"] == "systemNotification").count();
        let said = self.answer_text();
        assert!(!said.contains("replay"), "{said}");
        Told { said, notices }
    }
}

/// A session with an agent that can so much, in which two turns were run.
fn begun(can: &[&str]) -> Watched {
    let arguments: Vec<&str> = can.iter().flat_map(|can| ["--can", *can]).collect();
    let mut watched = Setting::with(&arguments).start();
    watched.session();
    watched.turn("t1", "say the first");
    watched.turn("t2", "say the second");
    watched
}

#[test]
fn fork_at_the_end_is_copied_by_an_agent_that_can_fork() {
    let mut watched = begun(&["fork"]);
    watched.fork("t2");
    let told = watched.turn_in_fork("f1", "remembers");
    assert!(told.said.ends_with("| say the first | say the second | forked | remembers"), "{}", told.said);
    assert_eq!(told.notices, 0);
    // Neither knows what is said in the other.
    assert!(watched.turn("t3", "remembers").ends_with("| say the first | say the second | remembers"));
    assert!(watched.turn_in_fork("f2", "remembers").said.ends_with("forked | remembers | remembers"));
    watched.leave();
}

#[test]
fn fork_of_a_turn_with_a_terminal_is_copied_by_an_agent_that_can_fork() {
    let mut watched = begun(&["fork"]);
    let updates = [
        json!({ "sessionUpdate": "tool_call", "toolCallId": "x", "title": "make", "kind": "execute",
            "status": "in_progress", "content": [{ "type": "terminal", "terminalId": "t" }],
            "_meta": { "terminal_info": { "terminal_id": "t", "cwd": "/w" } } }),
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": "x",
            "_meta": { "terminal_output": { "terminal_id": "t", "data": "a\n" } } }),
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": "x", "status": "completed",
            "_meta": { "terminal_exit": { "terminal_id": "t", "exit_code": 0, "signal": null } } }),
    ];
    let script: Vec<String> = updates.iter().map(|update| format!("update {update}")).collect();
    watched.turn("t3", &script.join("\n"));
    assert_eq!(watched.received("chat/toolCallComplete")[0]["result"]["content"][0]["type"], "terminal");
    watched.fork("t3");
    let told = watched.turn_in_fork("f1", "remembers");
    assert!(told.said.ends_with("| forked | remembers"), "{}", told.said);
    assert_eq!(told.notices, 0);
    watched.leave();
}

#[test]
fn fork_without_a_copy_receives_the_history_up_to_the_fork_point_only() {
    let cases: [(&[&str], &str, bool); 5] = [
        (&[], "t2", false),
        (&["resume"], "t2", false),
        (&["fork", "refuse-forks"], "t2", false),
        // A copy would know the second turn too.
        (&["fork"], "t1", false),
        // The chat that it comes from has gone on.
        (&["fork"], "t2", true),
    ];
    for (can, turn, goes_on) in cases {
        let mut watched = begun(can);
        watched.fork(turn);
        if goes_on {
            watched.turn("t3", "say the third");
        }
        let told = watched.turn_in_fork("f1", "prompt");
        let knows = |words: &str| told.said.contains(&format!("The user:\\nsay {words}"));
        assert_eq!(
            (knows("the first"), knows("the second"), knows("the third"), told.notices),
            (true, turn == "t2", false, 1),
            "{can:?} at {turn}: {}",
            told.said
        );
        let again = watched.turn_in_fork("f2", "remembers");
        assert!(!again.said.contains("forked") && again.notices == 0, "{}", again.said);
        watched.leave();
    }
}

#[test]
fn side_chat_receives_the_history_and_the_selected_text() {
    for (can, notices) in [("fork", 0), ("nothing", 1)] {
        let mut watched = begun(&[can]);
        watched.create_chat(json!({ "kind": "sideChat", "chat": default_chat_of(SESSION), "turnId": "t2",
            "selection": { "text": "the chosen words" } }));
        let told = watched.turn_in_fork("f1", "prompt");
        assert!(told.said.contains("the chosen words"), "{}", told.said);
        assert_eq!((told.said.contains("say the first"), told.notices), (notices == 1, notices), "{can}");
        let again = watched.turn_in_fork("f2", "remembers\nprompt");
        assert_eq!(again.said.contains("say the second | forked"), can == "fork", "{}", again.said);
        assert!(!again.said.contains("chosen"), "once is enough: {}", again.said);
        watched.leave();
    }
}

#[test]
fn side_chat_whose_first_prompt_failed_receives_the_selected_text_after_a_death_of_its_agent() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(folder.path());
    let arguments = ["--memory", memory.to_str().unwrap(), "--can", "resume", "--can", "fork"];
    let mut watched = Setting::with(&arguments).start_in(folder);
    watched.session();
    watched.turn("t1", "say the first");
    watched.create_chat(json!({ "kind": "sideChat", "chat": default_chat_of(SESSION), "turnId": "t1",
        "selection": { "text": "the chosen words" } }));
    watched.in_fork(json!({ "type": "chat/turnStarted", "turnId": "f1", "startedAt": "2026-01-01T00:00:00Z",
        "message": { "text": "error -32603 the model is ill", "origin": { "kind": "user" } } }));
    assert_eq!(watched.ending("f1")["type"], "chat/error");
    watched.begin("t2", "die 1");
    watched.ending("t2");
    let told = watched.turn_in_fork("f2", "prompt");
    assert!(told.said.contains("the chosen words"), "{}", told.said);
    watched.leave();
}

#[test]
fn side_chat_of_a_running_turn_receives_its_text_so_far() {
    let mut watched = begun(&["fork"]);
    watched.begin("t3", "say so far\nhang");
    watched.action_where(|action| action["part"]["content"] == "so far");
    watched.create_chat(json!({ "kind": "sideChat", "chat": default_chat_of(SESSION), "turnId": "t3" }));
    watched.cancel("t3");
    watched.ending("t3");
    let told = watched.turn_in_fork("f1", "prompt");
    assert!(told.said.contains("You:\\nso far") && told.notices == 1, "{}", told.said);
    watched.leave();
}

#[test]
fn fork_with_truncated_turns_is_not_copied() {
    let mut watched = begun(&["fork"]);
    watched.fork("t2");
    watched.in_fork(json!({ "type": "chat/truncated", "turnId": "t1" }));
    watched.action("chat/truncated");
    let told = watched.turn_in_fork("f1", "prompt");
    assert!(told.said.contains("say the first") && !told.said.contains("say the second"), "{}", told.said);
    watched.leave();
}

#[test]
fn fork_continues_after_a_restart_of_the_host() {
    let mut folder = tempfile::tempdir().unwrap();
    for restarted in [false, true] {
        let memory = memory(folder.path());
        let state = folder.path().join("state");
        let mut setting =
            Setting::with(&["--can", "fork", "--can", "load", "--memory", memory.to_str().unwrap()]);
        setting.flags = vec!["--state-dir".to_owned(), state.to_str().unwrap().to_owned()];
        let mut watched = setting.start_in(folder);
        if restarted {
            // The copy is made by a process that has not held the session before.
            watched.say(json!({ "id": 81, "method": "subscribe", "params": { "channel": FORK } }));
            let told = watched.turn_in_fork("f1", "remembers");
            assert!(told.said.ends_with("| say the first | forked | remembers"), "{}", told.said);
            assert_eq!(told.notices, 0);
        } else {
            watched.session();
            watched.turn("t1", "say the first");
            watched.fork("t1");
        }
        folder = watched.leave().unwrap();
    }
}
