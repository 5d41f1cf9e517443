//! Turns that agents begin on their own, and steering messages of the user.

use super::*;

impl Watched {
    /// Runs a turn, and lets the agent go on by itself behind it. Returns the id of the turn that
    /// is opened for that.
    fn begin_own_turn(&mut self, script: &str) -> String {
        self.turn("t1", script);
        self.heard.clear();
        self.release_agent();
        self.own_turn()
    }

    /// Returns the id of the turn that begins next, which the agent has begun.
    fn own_turn(&mut self) -> String {
        let began = self.action("chat/turnStarted");
        assert_eq!(began["message"]["origin"]["kind"], "systemNotification", "{began}");
        began["turnId"].as_str().unwrap().to_owned()
    }

    /// Hears a turn to its end, which must be this.
    fn ends(&mut self, turn: &str, how: &str) {
        let ending = self.ending(turn);
        assert_eq!(ending["type"], how, "{ending}");
    }

    fn add(&mut self, kind: &str, id: &str, text: &str) {
        let message = json!({ "text": text, "origin": { "kind": "user" } });
        self.dispatch(
            json!({ "type": "chat/pendingMessageSet", "kind": kind, "id": id, "message": message }),
        );
    }

    fn snapshot(&mut self, channel: &str) -> Value {
        self.say(json!({ "id": 90, "method": "subscribe", "params": { "channel": channel } }));
        let told = self.process.until(|message| message["id"] == 90);
        told.last().unwrap()["result"]["snapshot"]["state"].clone()
    }
}

#[test]
fn text_after_the_answer_opens_an_agent_turn_that_ends_after_silence() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let own = watched.begin_own_turn("say first\nthen 0.6\nsay later\nthink why");
    watched.ends(&own, "chat/turnComplete");
    assert_eq!((watched.answer_text(), watched.text_of("reasoning")), ("later".to_owned(), "why".to_owned()));
    // The one that is said then is one of its own again, and the chat is called by what the user
    // has said.
    assert_eq!(watched.turn("t2", "say second"), "second");
    let chat = watched.snapshot(&default_chat_of(SESSION));
    let turns = chat["turns"].as_array().unwrap().iter().map(|turn| turn["id"].as_str().unwrap());
    assert_eq!(turns.collect::<Vec<_>>(), ["t1", own.as_str(), "t2"], "{chat}");
    assert_eq!(chat["title"], "An early title");
    watched.leave();
}

#[test]
fn file_written_after_the_answer_is_shown_in_a_call() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let own = watched.begin_own_turn("say first\nthen\nwrite $CWD/new.txt words\nsay written");
    watched.ends(&own, "chat/turnComplete");
    let done = &watched.received("chat/toolCallComplete")[0]["result"];
    let edit = done["content"].as_array().unwrap().iter().find(|it| it["type"] == "fileEdit");
    assert!(edit.is_some_and(|edit| edit["after"]["uri"].as_str().unwrap().ends_with("/new.txt")), "{done}");
    assert_eq!(watched.answer_text(), "written");
    watched.leave();
}

#[test]
fn permission_requested_after_the_answer_waits_for_the_user() {
    let mut watched = Setting::with(&[]).limit("idle_seconds = 1\n").start();
    watched.session();
    let own = watched.begin_own_turn("say first\nthen\nask\nsay done");
    let asked = watched.action("session/inputNeededSet");
    assert_eq!(asked["request"]["turnId"], own.as_str(), "{asked}");
    // Longer than the agent's silence that ends a turn, and than an agent may be idle.
    thread::sleep(Duration::from_millis(2500));
    watched.decide(&own, "ask_1", true, "yes");
    watched.ends(&own, "chat/turnComplete");
    assert_eq!(watched.received("session/inputNeededRemoved").len(), 1);
    assert!(watched.answer_text().contains("yes"), "{}", watched.answer_text());
    assert_eq!(watched.agents().iter().filter(|it| it.contains("agent.py")).count(), 2);
    watched.leave();
}

#[test]
fn permission_requested_while_the_session_opens_waits_for_the_user() {
    let mut watched = Setting::with(&["--has", "options", "--sets", "asks"]).start();
    watched.configured(&json!({ "mode": "plan" }));
    let own = watched.own_turn();
    watched.action("chat/toolCallReady");
    watched.decide(&own, "ask_1", false, "no");
    watched.ends(&own, "chat/turnComplete");
    watched.leave();
}

#[test]
fn agent_turn_ends_after_a_command_that_cannot_be_started() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let own = watched.begin_own_turn("say first\nthen\ncall terminal/create {\"command\":\"./none\"}");
    watched.ends(&own, "chat/turnComplete");
    let done = &watched.received("chat/toolCallComplete")[0]["result"];
    let error = done["error"]["message"].as_str().unwrap();
    assert!(done["success"] == false && error.contains("No such file"), "{done}");
    watched.leave();
}

#[test]
fn question_and_file_writes_after_the_answer_are_served() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let write = r#"call fs/write_text_file {"path":"$CWD/a.txt","content":"new"}"#;
    let own = watched
        .begin_own_turn(&format!("say first\nthen\n{write}\ncall terminal/create {{\"command\":\"true\"}}"));
    watched.ends(&own, "chat/turnComplete");
    assert_eq!(watched.answer_text(), "{}\n{\"terminalId\": \"terminal-1\"}\n");
    assert_eq!(watched.received("chat/toolCallStart")[0]["toolName"], "fs/write_text_file");
    watched.leave();
}

#[test]
fn cancelled_agent_turn_is_cancelled_at_the_agent_and_the_next_prompt_works() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let own = watched.begin_own_turn("say first\nthen\nsay later\ntool_left_open call_1\nhang");
    watched.action("chat/toolCallReady");
    watched.cancel(&own);
    watched.ends(&own, "chat/turnCancelled");
    assert_eq!(watched.turn("t2", "say second"), "second");
    watched.leave();
}

#[test]
fn text_after_a_cancelled_agent_turn_opens_no_turn() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let title = json!({ "sessionUpdate": "session_info_update", "title": "All is said" });
    let own = watched
        .begin_own_turn(&format!("say first\nthen\nsay later\nuncancelled\nsay too late\nupdate {title}"));
    watched.action_where(|action| action["part"]["content"] == "later");
    watched.heard.clear();
    watched.cancel(&own);
    watched.action_where(|action| action["title"] == "All is said");
    assert_eq!(watched.received("chat/turnCancelled").len(), 1, "{:?}", watched.heard);
    assert_eq!(watched.received("chat/turnStarted").len(), 0, "{:?}", watched.heard);
    assert_eq!(watched.turn("t2", "say second"), "second");
    watched.leave();
}

#[test]
fn user_messages_are_queued_behind_an_agent_turn() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let own = watched.begin_own_turn("say first\nthen\nsay later\nwait_for $CWD/go\nsay end");
    watched.action_where(|action| action["part"]["content"] == "later");
    watched.add("queued", "q1", "say queued");
    // A client that has not heard of the turn yet.
    watched
        .dispatch(json!({ "type": "chat/turnStarted", "turnId": "mine", "startedAt": "2026-01-01T00:00:00Z",
        "message": { "text": "say mine", "origin": { "kind": "user" } } }));
    let queued = watched.action_where(|action| action["id"] == "mine");
    assert_eq!((&queued["type"], &queued["kind"]), (&json!("chat/pendingMessageSet"), &json!("queued")));
    fs::write(watched.folder.as_ref().unwrap().path().join("go"), "").unwrap();
    watched.ends(&own, "chat/turnComplete");
    assert_eq!(watched.answer_text(), "laterend");
    let next = watched.action("chat/turnStarted");
    assert_eq!(next["queuedMessageId"], "q1");
    let last = watched.action("chat/turnStarted");
    assert_eq!((&last["turnId"], &last["queuedMessageId"]), (&json!("mine"), &json!("mine")));
    watched.ends("mine", "chat/turnComplete");
    watched.leave();
}

#[test]
fn agent_turn_with_explicit_bounds_begins_and_ends_there() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let start = Instant::now();
    let own = watched.begin_own_turn("say first\nthen\nbegin\nsleep 2.5\nsay later\ndone\nsay another");
    watched.ends(&own, "chat/turnComplete");
    assert_eq!(watched.answer_text(), r#"{"accepted": true}later"#);
    assert!(start.elapsed() < Duration::from_secs(25), "its end was not heard");
    watched.heard.clear();
    let other = watched.own_turn();
    watched.ends(&other, "chat/turnComplete");
    assert_eq!(watched.answer_text(), "another");
    watched.leave();
}

#[test]
fn agent_turn_ends_once_when_the_host_is_killed_and_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state").to_str().unwrap().to_owned();
    let memory = memory(folder.path());
    let setting = || {
        let mut setting = Setting::with(&["--can", "load", "--memory", memory.to_str().unwrap()]);
        setting.flags = vec!["--state-dir".to_owned(), state.clone()];
        setting
    };
    let mut watched = setting().start_in(folder);
    watched.session();
    let own = watched.begin_own_turn("say first\nthen\nsay later\nask");
    watched.action("chat/toolCallReady");
    watched.process.child.kill().unwrap();
    watched.process.wait();
    watched.wait_for_agents(0);
    let mut watched = setting().start_in(watched.folder.take().unwrap());
    let chat = watched.snapshot(&default_chat_of(SESSION));
    let turn = chat["turns"].as_array().unwrap().last().unwrap();
    assert_eq!((&turn["id"], &turn["state"]), (&json!(own), &json!("error")), "{chat}");
    let parts = turn["responseParts"].as_array().unwrap();
    let error = parts.last().unwrap();
    assert_eq!((&error["kind"], &error["resumable"]), (&json!("error"), &json!(false)), "{error}");
    assert_eq!(parts[0]["content"], "later");
    // What the agent replays of it is of no turn.
    watched.subscribe(SESSION);
    assert_eq!(watched.turn("t2", "say second"), "second");
    watched.leave();
}

#[test]
fn background_command_is_shown_until_it_ends_and_prevents_the_idle_stop() {
    let mut watched = Setting::with(&[]).limit("idle_seconds = 0.3\n").start();
    watched.session();
    watched.turn("t1", "background make all\nthen 1\ntask_ends make all\nsay built");
    let set = watched.heard.iter().rposition(|action| action["type"] == "chat/backgroundWorkSet").unwrap();
    let work = watched.heard[set]["work"].clone();
    assert_eq!((&work["kind"], &work["command"]), (&json!("shell"), &json!("make all")));
    assert_eq!(watched.received("chat/activityChanged")[0]["activity"], "In the background: make all");
    watched.release_agent();
    let own = watched.action("chat/turnStarted");
    assert_eq!(own["message"]["text"], "A background task of the agent has ended.");
    let removed = watched.action("chat/backgroundWorkRemoved");
    assert_eq!(removed["id"], work["id"]);
    watched.ends(own["turnId"].as_str().unwrap(), "chat/turnComplete");
    let chat = watched.snapshot(&default_chat_of(SESSION));
    let left = chat["backgroundWork"].as_array().map_or(0, Vec::len);
    assert!(chat.get("activity").is_none() && left == 0, "{chat}");
    // Nothing needs it any more.
    watched.wait_for_agents(0);
    watched.leave();
}

#[test]
fn usage_update_with_an_origin_ends_an_agent_turn_and_its_background_work() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    // As Claude says that it is done: nothing before says what it goes on for.
    let over = json!({ "sessionUpdate": "usage_update", "used": 1, "size": 2,
        "_meta": { "_claude/origin": { "kind": "task-notification" } } });
    watched.turn("t1", &format!("background make all\nthen\nsay built\nupdate {over}\nsay another"));
    let work = watched.received("chat/backgroundWorkSet")[0]["work"]["id"].clone();
    watched.heard.clear();
    watched.release_agent();
    let own = watched.action("chat/turnStarted");
    assert_eq!(own["message"]["text"], "A background task of the agent has ended.");
    watched.ends(own["turnId"].as_str().unwrap(), "chat/turnComplete");
    assert_eq!(watched.answer_text(), "built");
    assert_eq!(watched.received("chat/backgroundWorkRemoved")[0]["id"], work);
    watched.heard.clear();
    let other = watched.own_turn();
    watched.ends(&other, "chat/turnComplete");
    assert_eq!(watched.answer_text(), "another");
    watched.leave();
}

#[test]
fn agent_that_dies_in_an_agent_turn_ends_it_with_an_error() {
    let mut watched = Setting::with(&["--can", "load"]).start();
    watched.session();
    let own = watched.begin_own_turn("say first\nthen\ntool_left_open call_1\ndie");
    let ending = watched.ending(&own);
    assert_eq!((&ending["type"], &ending["part"]["resumable"]), (&json!("chat/error"), &json!(false)));
    watched.leave();
}

#[test]
fn steering_message_reaches_the_running_turn_of_an_agent_that_supports_it() {
    let mut watched = Setting::with(&["--can", "steer"]).start();
    watched.session();
    watched.begin("t1", "say first \nsteered\nsay  last");
    watched.action_where(|action| action["part"]["content"] == "first ");
    watched.add("steering", "s1", "and this");
    let removed = watched.action("chat/pendingMessageRemoved");
    assert_eq!((&removed["id"], &removed["kind"]), (&json!("s1"), &json!("steering")));
    watched.ends("t1", "chat/turnComplete");
    let notice = watched.heard.iter().find(|action| action["part"]["kind"] == "systemNotification");
    assert_eq!(notice.unwrap()["part"]["content"], "The user added: and this");
    assert!(watched.answer_text().contains("and this"), "{}", watched.answer_text());
    watched.leave();
}

#[test]
fn steering_message_refused_by_the_agent_becomes_the_next_turn() {
    let mut watched = Setting::with(&["--can", "steer"]).start();
    watched.session();
    watched.begin("t1", "say first\nsteered refuse\nsay last");
    watched.action_where(|action| action["part"]["content"] == "first");
    watched.add("steering", "s1", "say next");
    watched.action("chat/pendingMessageRemoved");
    // Put back, so that everybody sees that it waits.
    assert_eq!(watched.action("chat/pendingMessageSet")["id"], "s1");
    watched.ends("t1", "chat/turnComplete");
    watched.heard.clear();
    let next = watched.action("chat/turnStarted");
    assert_eq!(next["queuedMessageId"], "s1");
    watched.ends(next["turnId"].as_str().unwrap(), "chat/turnComplete");
    assert_eq!(watched.answer_text(), "next");
    watched.leave();
}

#[test]
fn request_sent_with_the_answer_is_served_in_an_agent_turn() {
    let call = r#"{"toolCallId":"ask_1","title":"T"}"#;
    let options = r#"[{"optionId":"yes","name":"Yes","kind":"allow_once"}]"#;
    let permission = format!(r#"session/request_permission {{"toolCall":{call},"options":{options}}}"#);
    let form = r#"{"type":"object","properties":{"a":{"type":"string"}}}"#;
    let question =
        format!(r#"elicitation/create {{"mode":"form","message":"Say","requestedSchema":{form}}}"#);
    let write = r#"fs/write_text_file {"path":"$CWD/a.txt","content":"new"}"#;
    let terminal = r#"terminal/create {"command":"true"}"#;
    for (asks, said) in [
        (permission.as_str(), r#""optionId": "yes""#),
        (question.as_str(), r#""action": "accept""#),
        (write, "{}"),
        (terminal, "terminal-1"),
    ] {
        let mut watched = Setting::with(&[]).start();
        watched.session();
        watched.turn("t1", &format!("say first\nat_once {asks}"));
        watched.heard.clear();
        let own = watched.own_turn();
        if asks.starts_with("session") {
            watched.action("chat/toolCallReady");
            watched.decide(&own, "ask_1", true, "yes");
        } else if asks.starts_with("elicitation") {
            let asked = watched.action("chat/inputRequested");
            watched.dispatch(json!({ "type": "chat/inputCompleted", "requestId": asked["request"]["id"],
                "response": "accept" }));
        }
        watched.ends(&own, "chat/turnComplete");
        assert!(watched.answer_text().contains(said), "{asks}: {}", watched.answer_text());
        watched.leave();
    }
}

#[test]
fn late_answer_to_a_question_of_an_earlier_turn_answers_no_other() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let script = r#"question {"mode":"url","message":"Open","elicitationId":"e","url":"https://x/"}"#;
    watched.begin("t1", script);
    let first = watched.action("chat/inputRequested")["request"]["id"].clone();
    watched.cancel("t1");
    watched.ends("t1", "chat/turnCancelled");
    watched.begin("t2", script);
    let second = watched.action("chat/inputRequested")["request"]["id"].clone();
    assert_ne!(first, second);
    watched.cancel("t2");
    watched.ends("t2", "chat/turnCancelled");
    watched.leave();
}

#[test]
fn steering_message_while_idle_begins_a_turn_at_once() {
    let mut watched = Setting::with(&["--can", "steer"]).start();
    watched.session();
    watched.turn("t1", "say first");
    watched.heard.clear();
    watched.add("steering", "s1", "say steered");
    let next = watched.action("chat/turnStarted");
    assert_eq!(next["queuedMessageId"], "s1");
    watched.ends(next["turnId"].as_str().unwrap(), "chat/turnComplete");
    assert_eq!(watched.answer_text(), "steered");
    watched.leave();
}
