//! Turns that were cut by the end of the host or of the agent, and go on when they are resumed.

use super::*;

/// Script of the agent for an interrupted turn: it reuses the id of a call of the turn.
const GOES_ON: &str = "say  and done\nask\ntool c1\nremembers";

/// A host that keeps its sessions in its folder, with an agent that can so much and keeps a memory.
fn setting(folder: &Path, can: &str) -> Setting {
    let memory = memory(folder);
    let arguments = ["--can", can, "--memory", memory.to_str().unwrap(), "--goes-on", GOES_ON];
    on_disk(folder, Setting::with(&arguments))
}

fn on_disk(folder: &Path, mut setting: Setting) -> Setting {
    let state = folder.join("state");
    setting.flags = vec!["--state-dir".to_owned(), state.to_str().unwrap().to_owned()];
    setting
}

/// Ends the host in the middle of what it does; nothing of the agent is left.
fn kill(mut watched: Watched) -> tempfile::TempDir {
    watched.process.child.kill().unwrap();
    watched.process.wait();
    watched.wait_for_agents(0);
    watched.folder.take().unwrap()
}

impl Watched {
    /// The chat, as a fresh snapshot shows it.
    fn chat(&mut self) -> Value {
        self.say(
            json!({ "id": 70, "method": "subscribe", "params": { "channel": default_chat_of(SESSION) } }),
        );
        let told = self.process.until(|message| message["id"] == 70);
        told.last().unwrap()["result"]["snapshot"]["state"].clone()
    }

    fn resume(&mut self, turn: &str) {
        self.heard.clear();
        self.dispatch(json!({ "type": "chat/turnResume", "turnId": turn }));
    }

    /// Why an action is refused that has just been dispatched.
    fn refusal(&mut self) -> String {
        let told = self.process.until(|message| message["params"]["rejectionReason"].is_string());
        told.last().unwrap()["params"]["rejectionReason"].as_str().unwrap().to_owned()
    }

    /// Begins a turn and lets it come as far as its tool call.
    fn begin_with_a_call(&mut self, after: &str) {
        self.begin("t1", &format!("say begun\ntool_left_open c1\n{after}"));
        self.action_where(|action| action["type"] == "chat/toolCallReady");
    }

    /// Goes on with the turn, and looks at what has become of it.
    fn go_on(&mut self) {
        self.resume("t1");
        let asked = self.action("chat/toolCallReady");
        self.decide("t1", asked["toolCallId"].as_str().unwrap(), true, "yes");
        assert_eq!(self.ending("t1")["type"], "chat/turnComplete");
        let chat = self.chat();
        let turn = &chat["turns"][0];
        assert_eq!(chat["turns"].as_array().unwrap().len(), 1, "{chat}");
        let parts = turn["responseParts"].as_array().unwrap();
        let calls: Vec<_> = parts.iter().filter(|part| part["kind"] == "toolCall").collect();
        let ids: Vec<_> = calls.iter().map(|part| part["toolCall"]["toolCallId"].as_str().unwrap()).collect();
        assert_eq!(ids, ["c1", "ask_1", "c1+2"], "{turn}");
        let said: String = parts.iter().filter_map(|part| part["content"].as_str()).collect();
        assert!(said.starts_with("begun and done"), "{said}");
        assert!(!said.contains("replay"), "{said}");
        // It was prompted once, and once again.
        assert!(said.contains("| say begun\n") && said.matches(" | ").count() == 2, "{said}");
        self.resume("t1");
        assert!(self.refusal().contains("did not fail"));
    }
}

/// The error that a turn ended with.
fn error_of(chat: &Value) -> Value {
    let turn = &chat["turns"].as_array().unwrap().last().unwrap();
    assert_eq!(turn["state"], "error", "{turn}");
    let parts = turn["responseParts"].as_array().unwrap();
    for part in parts.iter().filter(|part| part["kind"] == "toolCall") {
        assert_eq!(part["toolCall"]["status"], "completed", "{part}");
        assert_eq!(part["toolCall"]["success"], false, "{part}");
    }
    parts.last().unwrap().clone()
}

#[test]
fn turn_interrupted_by_a_host_crash_is_resumable_if_the_agent_can_resume() {
    for (can, resumable) in [("resume", true), ("load", true), ("nothing", false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut watched = setting(folder.path(), can).start_in(folder);
        watched.session();
        watched.begin_with_a_call("hang");
        let folder = kill(watched);

        let mut watched = setting(folder.path(), can).start_in(folder);
        let error = error_of(&watched.chat());
        assert_eq!(error["error"]["errorType"], "interrupted");
        assert_eq!(error["resumable"], resumable, "{can}");
        assert!(watched.agents().is_empty(), "nothing runs by itself");
        if resumable {
            watched.go_on();
        } else {
            watched.resume("t1");
            assert!(watched.refusal().contains("not resumable"));
        }
        assert!(watched.turn("t2", "say ok").ends_with("ok"));
        watched.leave();
    }
}

#[test]
fn turn_interrupted_by_agent_death_is_resumable_if_the_agent_can_resume() {
    for (can, resumable) in [("resume", true), ("load", true), ("nothing", false)] {
        for death in ["kill", "die 3", "half"] {
            let folder = tempfile::tempdir().unwrap();
            let mut watched = setting(folder.path(), can).start_in(folder);
            watched.session();
            watched.begin_with_a_call(death);
            let ending = watched.ending("t1");
            assert_eq!(ending["part"]["error"]["errorType"], "agentDied", "{ending}");
            assert_eq!(ending["part"]["resumable"], resumable, "{can}, {death}");
            error_of(&watched.chat());
            if resumable {
                watched.go_on();
            } else {
                watched.resume("t1");
                assert!(watched.refusal().contains("not resumable"));
            }
            watched.leave();
        }
    }
}

#[test]
fn turn_resumed_and_interrupted_again_can_be_resumed_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut watched = setting(folder.path(), "resume").start_in(folder);
    watched.session();
    watched.begin_with_a_call("kill");
    watched.ending("t1");
    watched.resume("t1");
    // It asks, and nobody answers.
    watched.action("chat/toolCallReady");
    let folder = kill(watched);
    let mut watched = setting(folder.path(), "resume").start_in(folder);
    watched.chat();
    watched.resume("t1");
    let asked = watched.action("chat/toolCallReady");
    assert_eq!(asked["toolCallId"], "ask_1+2", "{asked}");
    watched.decide("t1", "ask_1+2", true, "yes");
    assert_eq!(watched.ending("t1")["type"], "chat/turnComplete");
    assert!(watched.answer_text().contains("answered yes"), "{}", watched.answer_text());
    watched.leave();
}

#[test]
fn resumed_turn_receives_its_message_and_partial_answer() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(folder.path());
    let arguments = ["--can", "load", "--memory", memory.to_str().unwrap(), "--goes-on", "prompt"];
    let mut watched = Setting::with(&arguments).start_in(folder);
    watched.session();
    watched.begin("t1", "say the first half\ntool c1\nkill");
    watched.ending("t1");
    watched.resume("t1");
    watched.ending("t1");
    let said = watched.answer_text();
    let told: Value = serde_json::from_str(&said).unwrap();
    let (before, request) = (told[0]["text"].as_str().unwrap(), told[1]["text"].as_str().unwrap());
    assert!(before.contains("the first half\n(You used the tool "), "{before}");
    assert_eq!(request, "say the first half\ntool c1\nkill");
    watched.leave();
}

#[test]
fn resumed_turn_of_an_agent_without_the_session_receives_the_history() {
    let folder = tempfile::tempdir().unwrap();
    // It says that it can, and remembers nothing.
    let forgetful =
        |folder: &Path| on_disk(folder, Setting::with(&["--can", "resume", "--goes-on", "prompt"]));
    let mut watched = forgetful(folder.path()).start_in(folder);
    watched.session();
    watched.turn("t0", "say the first");
    watched.begin_with_a_call("hang");
    let folder = kill(watched);
    let mut watched = forgetful(folder.path()).start_in(folder);
    assert_eq!(error_of(&watched.chat())["resumable"], true);
    watched.resume("t1");
    let ending = watched.ending("t1");
    assert_eq!(ending["type"], "chat/turnComplete", "{ending}");
    // It was told of the turn before, and of what this one holds.
    let said = watched.answer_text();
    assert!(said.contains("The user:\\nsay the first") && said.contains("You were interrupted"), "{said}");
    assert!(said.contains("begun\\n(You failed with the tool") && said.contains("\"say begun"), "{said}");
    let told_anew = |action: &&Value| action["part"]["kind"] == "systemNotification";
    assert_eq!(watched.heard.iter().filter(told_anew).count(), 1);
    // From then on it is known by its new name.
    let folder = watched.leave().unwrap();
    let mut watched = forgetful(folder.path()).start_in(folder);
    watched.chat();
    assert!(watched.turn("t3", "prompt").contains("begun"));
    watched.leave();
}

#[test]
fn resumption_that_fails_at_agent_start_can_be_retried() {
    let folder = tempfile::tempdir().unwrap();
    let mut watched = setting(folder.path(), "resume").start_in(folder);
    watched.session();
    watched.begin_with_a_call("hang");
    let folder = kill(watched);

    let mut broken = setting(folder.path(), "resume");
    broken.arguments.extend(["--before-hello".to_owned(), "die".to_owned()]);
    let mut watched = broken.start_in(folder);
    watched.chat();
    watched.resume("t1");
    let ending = watched.ending("t1");
    assert!(ending["part"]["error"]["message"].as_str().unwrap().contains("there is no model"), "{ending}");
    assert_eq!(ending["part"]["resumable"], true, "{ending}");
    let folder = watched.leave().unwrap();

    let mut watched = setting(folder.path(), "resume").start_in(folder);
    watched.chat();
    watched.go_on();
    watched.leave();
}

/// The agent may not have received the history in its first prompt.
#[test]
fn agent_interrupted_before_its_first_output_receives_the_history_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut watched = setting(folder.path(), "load").start_in(folder);
    watched.session();
    watched.turn("t1", "say one");
    watched.turn("t2", "say two");
    // From here on it has another session.
    watched.dispatch(json!({ "type": "chat/truncated", "turnId": "t1" }));
    watched.action("chat/truncated");
    watched.begin("t3", "hang");
    let memory = memory(watched.folder.as_ref().unwrap().path());
    let start = Instant::now();
    while !fs::read_to_string(&memory).is_ok_and(|memory| memory.contains("hang")) {
        assert!(start.elapsed() < HUNG);
        thread::sleep(Duration::from_millis(10));
    }
    let folder = kill(watched);
    let mut watched = setting(folder.path(), "load").start_in(folder);
    assert_eq!(error_of(&watched.chat())["resumable"], false);
    let said = watched.turn("t4", "prompt");
    assert!(said.contains("The user:\\nsay one") && !said.contains("say two"), "{said}");
    watched.leave();
}
