//! Deviations of real agents from the specification, and behaviour that it leaves open: each case
//! has the order and shape of the messages of a real agent.

use super::*;

/// The lines with which the agent says these updates.
fn updates(updates: &[Value]) -> String {
    updates.iter().map(|update| format!("update {update}\n")).collect()
}

fn text_update(kind: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
}

/// The types of the actions that a turn consists of, its session's and its chat's rows left out.
fn kinds(watched: &Watched) -> Vec<&str> {
    let kinds = watched.heard.iter().map(|action| action["type"].as_str().unwrap());
    kinds.filter(|kind| kind.starts_with("chat/")).collect()
}

#[test]
fn housekeeping_between_turns_opens_no_turn() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let command = json!({ "name": "x", "description": "d" });
    let stray = [
        text_update("agent_message_chunk", "\n"),
        text_update("agent_message_chunk", "[MODE_UPDATE] plan"),
        text_update("user_message_chunk", "an echo"),
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": "call_1", "status": "completed" }),
        json!({ "sessionUpdate": "plan", "entries": [{ "content": "x", "priority": "low", "status": "in_progress" }] }),
        json!({ "sessionUpdate": "usage_update", "used": 1, "size": 2 }),
        json!({ "sessionUpdate": "available_commands_update", "availableCommands": [command] }),
        json!({ "sessionUpdate": "current_mode_update", "currentModeId": "plan" }),
        json!({ "sessionUpdate": "config_option_update", "configOptions": [] }),
        json!({ "sessionUpdate": "session_info_update", "_meta": { "piAcp": { "running": false } } }),
    ];
    for turn in ["t1", "t2"] {
        let all_said = json!({ "sessionUpdate": "session_info_update", "title": format!("after {turn}") });
        watched.turn(
            turn,
            &format!("tool_left_open call_1\nsay ok\nfinish\n{}{}", updates(&stray), updates(&[all_said])),
        );
        watched.release_agent();
        watched.action_where(|action| action["title"] == format!("after {turn}"));
        assert_eq!(watched.answer_text(), "ok");
        assert_eq!(kinds(&watched).last(), Some(&"chat/turnComplete"), "{:?}", watched.heard);
        assert_eq!(watched.received("chat/turnStarted").len(), 1, "{:?}", watched.heard);
    }
    watched.leave();
}

#[test]
fn notices_and_compaction_summaries_are_separated_from_the_answer() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let can: Value = serde_json::from_str(&watched.turn("t0", "can")).unwrap();
    assert_eq!(can["session"]["notices"], json!({}));
    assert_eq!(can["session"]["compaction"], json!({}));

    let text = |text: &str| json!({ "type": "text", "text": text });
    let compaction = |id: &str, status: &str| json!({ "sessionUpdate": "compaction_update", "compactionId": id, "status": status });
    let piece = |piece: &str| json!({ "sessionUpdate": "compaction_summary_chunk", "compactionId": "c1", "content": text(piece) });
    let mut fails = compaction("c2", "failed");
    fails["error"] = "no room".into();
    let said = [
        text_update("agent_message_chunk", "before"),
        json!({ "sessionUpdate": "notice", "severity": "warning", "title": "Quota", "description": "Nearly used up.",
            "_meta": { "left": 3 } }),
        compaction("c1", "in_progress"),
        piece("They said "),
        piece("hello."),
        compaction("c1", "completed"),
        // As Claude does.
        compaction("c1", "completed"),
        fails,
        text_update("agent_message_chunk", "behind"),
    ];
    assert_eq!(watched.turn("t1", &updates(&said)), "beforebehind");
    let parts: Vec<&Value> =
        watched.received("chat/responsePart").into_iter().map(|action| &action["part"]).collect();
    let kinds: Vec<&str> = parts.iter().map(|part| part["kind"].as_str().unwrap()).collect();
    let notice = "systemNotification";
    assert_eq!(kinds, ["markdown", notice, notice, notice, "markdown"]);
    assert_eq!(parts[1]["content"], "Quota\n\nNearly used up.");
    assert_eq!(parts[1]["_meta"], json!({ "acp.severity": "warning", "acp.meta": { "left": 3 } }));
    assert_eq!(
        parts[2]["content"],
        "The conversation so far was summarized to free room in the model's context.\n\nThey said hello."
    );
    assert_eq!(parts[3]["content"], "The conversation so far could not be summarized.\n\nno room");
    let activities: Vec<&Value> =
        watched.received("chat/activityChanged").into_iter().map(|action| &action["activity"]).collect();
    assert_eq!(activities, [&json!("Summarizing the conversation"), &Value::Null]);
    watched.leave();
}

#[test]
fn notices_inside_the_answer_text_are_separated_from_the_answer() {
    let (retries, resumes) = ("Retrying (attempt 1/3, waiting 2s)...", "Retry finished, resuming.");
    let steps = format!("say Hello\nsay {retries}\nsay , and \nsay good bye\nsay {resumes}");
    for (name, said, notices) in [
        ("pi-acp", "Hello, and good bye".to_owned(), vec![retries, resumes]),
        ("agent.py", format!("Hello{retries}, and good bye{resumes}"), Vec::new()),
    ] {
        let mut watched = Setting::with(&["--name", name]).start();
        watched.session();
        assert_eq!(watched.turn("t1", &steps), said, "{name}");
        assert_eq!(watched.notices(), notices, "{name}");
        let parts = watched.received("chat/responsePart").len();
        assert_eq!(parts, if notices.is_empty() { 1 } else { 4 }, "the answer goes on in a part of its own");
        watched.leave();
    }
}

#[test]
fn two_sessions_of_one_agent_may_run_turns_concurrently() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.until_ready();
    let other = "ahp-session:/other";
    watched.create(other, "a0");
    watched.subscribe(other);
    watched.until_ready();
    watched.begin("t1", "duet 50");
    // Which of two prompts comes first is not said where they are of two sessions.
    watched.action_where(|action| action["part"]["content"] == "waits ");
    let (first, second) = (default_chat_of(SESSION), default_chat_of(other));
    let start = json!({ "type": "chat/turnStarted", "turnId": "o1", "startedAt": "2026-01-01T00:00:00Z",
        "message": { "text": "go on", "origin": { "kind": "user" } } });
    watched.say(json!({ "method": "dispatchAction",
        "params": { "channel": second, "clientSeq": 9, "action": start } }));
    let mut said = std::collections::BTreeMap::<String, String>::new();
    let mut running = 2;
    while running > 0 {
        let message = watched.process.next();
        let (channel, action) = (&message["params"]["channel"], &message["params"]["action"]);
        let text = action["part"]["content"].as_str().or(action["content"].as_str()).unwrap_or_default();
        said.entry(channel.as_str().unwrap_or_default().to_owned()).or_default().push_str(text);
        running -= usize::from(action["type"] == "chat/turnComplete");
    }
    let numbers: String = (0..50).map(|number| format!("{number} ")).collect();
    assert_eq!((&said[&first], &said[&second]), (&numbers, &numbers));
    watched.leave();
}

/// Some agents drop a session, and the turn that runs in it, when another one is opened.
#[test]
fn agent_with_one_session_at_a_time_gets_a_process_per_session() {
    let mut watched = Setting::with(&["--can", "one-session"]).limit("one_session = true\n").start();
    watched.session();
    watched.turn("t1", "say one");
    let processes = watched.agents().len();
    let other = "ahp-session:/other";
    watched.create(other, "a0");
    watched.subscribe(other);
    watched.until_ready();
    assert_eq!(watched.agents().len(), 2 * processes);
    assert_eq!(watched.turn("t2", "say two"), "two");
    watched.say(json!({ "id": 7, "method": "disposeSession", "params": { "channel": other } }));
    watched.wait_for_agents(processes);
    assert_eq!(watched.turn("t3", "say three"), "three");
    watched.begin("t4", "die 3");
    assert_eq!(watched.ending("t4")["type"], "chat/error");
    assert_eq!(watched.turn("t5", "say five"), "five");
    watched.leave();
}

/// One tool call that is asked about, as an agent tells it.
struct Asked {
    agent: &'static str,
    /// Updates before the question, and after its answer.
    before: &'static [&'static str],
    question: &'static str,
    after: &'static [&'static str],
    /// Question to the user: name of the tool, message, input.
    shown: [&'static str; 3],
    /// Text in the final content of the call.
    produced: &'static str,
}

const ASKED: &[Asked] = &[
    Asked {
        agent: "says all in pieces, its status hardly ever",
        before: &[
            r#"{"sessionUpdate":"tool_call","toolCallId":"c","title":"Terminal","kind":"execute","status":"pending","rawInput":{}}"#,
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","title":"ls","rawInput":{"command":"ls"}}"#,
        ],
        question: r#"{"toolCallId":"c","title":"ls","rawInput":{"command":"ls"}}"#,
        after: &[
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","_meta":{"own":{"x":1}}}"#,
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","content":[{"type":"content","content":{"type":"text","text":"a file"}}]}"#,
        ],
        shown: ["execute", "ls", "ls"],
        produced: "a file",
    },
    Asked {
        agent: "asks of a call that it never announces",
        before: &[],
        question: r#"{"toolCallId":"c","title":"Write x","kind":"edit","status":"pending","content":[{"type":"diff","path":"/x","oldText":"","newText":"neu\n"}]}"#,
        after: &[
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","content":[{"type":"diff","path":"/x","oldText":"","newText":"neu\n"}]}"#,
        ],
        shown: ["edit", "Write x", ""],
        produced: "neu",
    },
    Asked {
        agent: "asks first and announces then",
        before: &[],
        question: r#"{"toolCallId":"c","title":"ls","kind":"execute","rawInput":{"command":"ls"},"content":[{"type":"content","content":{"type":"text","text":"Why?"}}]}"#,
        after: &[
            r#"{"sessionUpdate":"tool_call","toolCallId":"c","title":"ls","kind":"execute","status":"in_progress","rawInput":{"command":"ls"}}"#,
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","rawOutput":{"exit_code":0,"stdout":"","formatted_output":"a file"}}"#,
        ],
        shown: ["execute", "ls", "ls"],
        produced: r#""text":"a file""#,
    },
    Asked {
        agent: "begins with an update, under a long name",
        before: &[
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"plan-review:01a1fdf0-e745-73f0-90a4-48fd8c1066e6:call_b33cb1_10_0","title":"Ready to code?","kind":"switch_mode","content":[{"type":"content","content":{"type":"text","text":"the plan"}}]}"#,
        ],
        question: r#"{"toolCallId":"plan-review:01a1fdf0-e745-73f0-90a4-48fd8c1066e6:call_b33cb1_10_0"}"#,
        after: &[
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"plan-review:01a1fdf0-e745-73f0-90a4-48fd8c1066e6:call_b33cb1_10_0","status":"completed"}"#,
        ],
        shown: ["switch_mode", "Ready to code?", ""],
        produced: "the plan",
    },
    Asked {
        agent: "asks in other words, and without the change",
        before: &[
            r#"{"sessionUpdate":"tool_call","toolCallId":"c","title":"Edit file","kind":"edit","rawInput":{"path":"/x"},"content":[{"type":"diff","path":"/x","oldText":"alt","newText":"neu"}]}"#,
        ],
        question: r#"{"toolCallId":"c","title":"Edit /x?","kind":"edit","rawInput":{"fileName":"/x"}}"#,
        after: &[r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed"}"#],
        shown: ["edit", "Edit /x?", r#"{"fileName":"/x"}"#],
        produced: "neu",
    },
    Asked {
        agent: "asks while it is at work already",
        before: &[
            r#"{"sessionUpdate":"tool_call","toolCallId":"c","title":"ls","kind":"execute","status":"in_progress","rawInput":{"command":"ls"}}"#,
        ],
        question: r#"{"toolCallId":"c","title":"ls"}"#,
        after: &[
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"in_progress","content":[{"type":"content","content":{"type":"text","text":"a"}}]}"#,
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","content":[{"type":"content","content":{"type":"text","text":"a file"}}]}"#,
        ],
        shown: ["execute", "ls", "ls"],
        produced: "a file",
    },
    Asked {
        agent: "has its output in a member of the raw one",
        before: &[
            r#"{"sessionUpdate":"tool_call","toolCallId":"c","title":"Viewing /x","kind":"read","rawInput":{"path":"/x"}}"#,
        ],
        question: r#"{"toolCallId":"c"}"#,
        after: &[
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","rawOutput":{"content":"one","detailedContent":"one, and more"}}"#,
        ],
        shown: ["read", "Viewing /x", r#"{"path":"/x"}"#],
        produced: r#""text":"one""#,
    },
    Asked {
        agent: "asks the user something in this way",
        before: &[],
        question: r#"{"toolCallId":"c","title":"Which colour?","kind":"think","_meta":{"questions":[{"question":"Which colour?"}]}}"#,
        after: &[
            r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","rawOutput":"blue"}"#,
        ],
        shown: ["think", "Which colour?", ""],
        produced: "blue",
    },
];

/// Options of a permission: the permanent ones come first, twice and with different scopes.
const OPTIONS: &str = r#"[{"optionId":"always/project","name":"Always here","kind":"allow_always"},{"optionId":"always/user","name":"Always","kind":"allow_always"},{"optionId":"once","name":"Allow","kind":"allow_once"},{"optionId":"cancel","name":"Reject","kind":"reject_once"}]"#;

impl Asked {
    fn begin(&self, watched: &mut Watched, turn: &str, rest: &str) -> Value {
        let say = |said: &[&str]| said.iter().map(|said| format!("update {said}\n")).collect::<String>();
        let question = format!(r#"permission {{"toolCall":{},"options":{OPTIONS}}}"#, self.question);
        let script = format!("{}{question}\n{}{rest}", say(self.before), say(self.after));
        watched.begin(turn, &script);
        watched.action_where(|action| action["type"] == "chat/toolCallReady" && action["options"].is_array())
    }
}

#[test]
fn tool_call_is_one_call_with_one_question_however_the_agent_announces_it() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    for (number, case) in ASKED.iter().enumerate() {
        let turn = format!("t{number}");
        let ready = case.begin(&mut watched, &turn, "");
        let agent = case.agent;
        let options = ready["options"].as_array().unwrap();
        let options: Vec<_> = options.iter().map(|it| it["id"].as_str().unwrap()).collect();
        assert_eq!(options, ["always/project", "always/user", "once", "cancel"], "{agent}");
        let [name, message, input] = case.shown;
        assert_eq!(watched.received("chat/toolCallStart")[0]["toolName"], name, "{agent}");
        assert_eq!(ready["invocationMessage"], message, "{agent}");
        let input = (!input.is_empty()).then_some(input);
        assert_eq!(ready.get("toolInput").map(|input| input.as_str().unwrap()), input, "{agent}");
        // Without an option it is this call only that is allowed.
        let call = &ready["toolCallId"];
        let approve = json!({ "type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": call,
            "approved": true });
        watched.dispatch(approve);
        assert_eq!(watched.ending(&turn)["type"], "chat/turnComplete", "{agent}");
        assert_eq!(watched.answer_text(), "once", "{agent}");
        assert_eq!(watched.received("chat/toolCallStart").len(), 1, "{agent}");
        let asked = watched.received("chat/toolCallReady");
        assert_eq!(asked.iter().filter(|ready| ready["options"].is_array()).count(), 1, "{agent}");
        let done = watched.received("chat/toolCallComplete");
        assert_eq!((done.len(), &done[0]["result"]["success"]), (1, &json!(true)), "{agent}");
        let content = done[0]["result"]["content"].to_string();
        assert!(content.contains(case.produced), "{agent}: {content}");
    }
    watched.leave();
}

/// Some say no more of a call that was refused, some that it has failed, some end the turn with it,
/// and some call that cancelled although nobody cancelled it.
#[test]
fn refused_tool_call_stays_ended_whatever_the_agent_sends_later() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let failed = r#"update {"sessionUpdate":"tool_call_update","toolCallId":"c","status":"failed","rawOutput":{"code":"rejected"}}"#;
    for (number, case) in ASKED.iter().filter(|case| !case.question.contains("plan-review")).enumerate() {
        for (way, rest, ending) in [
            ("silent", "say I see", "chat/turnComplete"),
            ("failed", failed, "chat/turnComplete"),
            ("over", "end cancelled", "chat/turnComplete"),
        ] {
            let turn = format!("{way}-{number}");
            let refused = Asked { after: &[], ..*case };
            let ready = refused.begin(&mut watched, &turn, rest);
            watched.decide(&turn, ready["toolCallId"].as_str().unwrap(), false, "cancel");
            assert_eq!(watched.ending(&turn)["type"], ending, "{}, {way}", case.agent);
            assert!(watched.received("chat/toolCallComplete").is_empty(), "{}, {way}", case.agent);
            assert_eq!(watched.received("chat/toolCallConfirmed").len(), 1, "{}, {way}", case.agent);
        }
    }
    watched.leave();
}

/// A cancelled command may run on, and its agent may go on telling of it.
#[test]
fn late_updates_of_a_cancelled_call_do_not_appear_in_the_next_turn() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", "tool_left_open c\nhang");
    watched.action("chat/toolCallReady");
    watched.cancel("t1");
    watched.ending("t1");
    let late = [
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "in_progress" }),
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c",
            "_meta": { "terminal_output_delta": { "terminal_id": "t", "data": "more" } } }),
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed",
            "rawOutput": "all of it" }),
    ];
    assert_eq!(watched.turn("t2", &format!("{}say ok", updates(&late))), "ok");
    assert_eq!(kinds(&watched), ["chat/turnStarted", "chat/responsePart", "chat/turnComplete"]);
    watched.leave();
}

#[test]
fn question_already_answered_by_a_cancellation_may_be_withdrawn() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    for turn in ["t1", "t2"] {
        watched.begin(turn, "ask_and_cancel_too c");
        watched.action("chat/toolCallReady");
        watched.cancel(turn);
        watched.ending(turn);
    }
    assert_eq!(watched.turn("t3", "say ok"), "ok");
    watched.leave();
}

/// Not all extensions begin with an underscore.
#[test]
fn unknown_methods_are_refused_if_they_are_requests() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let script =
        "notify _auth/status_update\nnotify qwen/notify/session/prompt-suggestion\nrequest craft/drain";
    assert_eq!(watched.turn("t1", script), "-32601");
    watched.leave();
}

#[test]
fn pending_questions_are_limited_and_further_ones_are_refused_at_once() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    assert_eq!(watched.turn("t1", "nag 520"), "40 of 1040");
    let asked = watched.received("chat/inputRequested").len() + watched.received("chat/toolCallStart").len();
    assert_eq!(asked, 1000);
    assert_eq!(watched.turn("t2", "say ok"), "ok");
    watched.leave();
}

#[test]
fn activity_text_is_truncated_to_its_limit() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let long = "\u{1b}x".repeat(5000);
    let entry = json!({ "content": long, "priority": "low", "status": "in_progress" });
    watched.turn("t1", &updates(&[json!({ "sessionUpdate": "plan", "entries": [entry] })]));
    let shown = format!("{}…", "x".repeat(4000));
    assert_eq!(watched.received("chat/activityChanged")[0]["activity"], shown.as_str());
    watched.leave();
}
