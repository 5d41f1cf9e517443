//! Prompts to an agent, and its updates.

use super::*;

#[test]
fn agent_is_listed_before_its_start_and_started_by_the_first_session() {
    let mut watched = Setting::with(&[]).limit("title = \"Agent A\"\ndescription = \"For tests\"\n").start();
    let hello = watched.process.next();
    let agents = hello["result"]["snapshots"][0]["state"]["agents"].as_array().unwrap();
    let agent = agents.iter().find(|agent| agent["provider"] == "a0").unwrap();
    assert_eq!((&agent["displayName"], &agent["description"]), (&json!("Agent A"), &json!("For tests")));
    watched.say(json!({ "id": 5, "method": "listSessions", "params": { "channel": "ahp-root://" } }));
    watched.process.until(|message| message["id"] == 5);
    assert!(watched.agents().is_empty());

    watched.session().until_ready();
    // The guard and the agent.
    assert_eq!(watched.agents().len(), 1 + 1 - usize::from(!watched.agents()[0].contains("guard")));
    let said = watched.turn("t1", "say Hello\nremembers");
    let cwd = watched.folder.as_ref().unwrap().path().to_str().unwrap().to_owned();
    assert!(said.starts_with("Hello") && said.contains(&cwd), "{said}");
    watched.leave();
}

#[test]
fn text_and_thoughts_arrive_in_parts_without_loss_or_duplication() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let script =
        "think one \nthink two\nmessage m1 Hello\nmessage m1 , you\nmessage m2 Again\nsay !\nstream 500 100";
    let said = watched.turn("t1", script);
    assert_eq!(watched.text_of("reasoning"), "one two");
    let numbers: String = (0..500)
        .map(|n| format!("{n:09} ").chars().chain(".".repeat(90).chars()).collect::<String>())
        .collect();
    assert_eq!(said, format!("Hello, you\n\nAgain\n\n!{numbers}"));
    let parts = watched.received("chat/responsePart");
    let parts: Vec<&str> = parts.iter().filter_map(|part| part["part"]["content"].as_str()).collect();
    assert!(parts.contains(&"Hello") && parts.contains(&"\n\nAgain"), "{parts:?}");
    watched.leave();
}

#[test]
fn updates_without_a_response_part_are_shown_in_other_ways() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let script = [
        r#"block {"type":"resource_link","name":"a file","uri":"file:///x"}"#,
        r#"block {"type":"image","mimeType":"image/png","data":"AAAA"}"#,
        r#"block {"type":"a block that nobody knows"}"#,
        r#"update {"sessionUpdate":"an update that nobody knows","x":1}"#,
        r#"update {"sessionUpdate":"plan","entries":[{"content":"think","priority":"high","status":"completed"},{"content":"work","priority":"low","status":"in_progress"}]}"#,
        r#"update {"sessionUpdate":"usage_update","used":10,"size":100,"cost":{"amount":0.5,"currency":"EUR"}}"#,
        r#"update {"sessionUpdate":"session_info_update","title":"A good title"}"#,
        r#"usage {"totalTokens":12,"inputTokens":7,"outputTokens":5,"cachedReadTokens":3}"#,
    ];
    let said = watched.turn("t1", &script.join("\n"));
    assert_eq!(said, "[a file](file:///x)![image](data:image/png;base64,AAAA)");
    assert_eq!(watched.received("chat/activityChanged")[0]["activity"], "work");
    assert_eq!(watched.received("session/titleChanged").last().unwrap()["title"], "A good title");
    let context = json!({ "used": 10, "size": 100, "cost": { "amount": 0.5, "currency": "EUR" } });
    let meta = json!({ "acp.context": context, "acp.usage": { "totalTokens": 12 } });
    assert_eq!(
        watched.received("chat/usage").last().unwrap()["usage"],
        json!({ "inputTokens": 7, "outputTokens": 5, "cacheReadTokens": 3, "_meta": meta })
    );
    watched.leave();
}

#[test]
fn tool_call_has_one_start_and_its_id_may_be_reused_in_the_next_turn() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    for turn in ["t1", "t2"] {
        watched.turn(turn, "tool\nsay done");
        assert_eq!(watched.received("chat/toolCallStart").len(), 1);
        let ready = watched.received("chat/toolCallReady");
        assert_eq!(
            (&ready[0]["toolInput"], &ready[0]["confirmed"]),
            (&json!(r#"{"path":"/x"}"#), &json!("not-needed"))
        );
        assert_eq!(watched.received("chat/toolCallContentChanged")[0]["content"][0]["text"], "some");
        let done = watched.received("chat/toolCallComplete");
        assert_eq!(done[0]["result"]["content"], json!([{ "type": "text", "text": "some more" }]));
        assert_eq!(done[0]["result"]["success"], true);
    }
    watched.leave();
}

#[test]
fn unfinished_tool_call_ends_with_its_turn_and_stays_ended() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.turn("t1", "tool_left_open call_1");
    assert_eq!(watched.received("chat/toolCallComplete")[0]["result"]["success"], false);
    // What is said of it in the next turn is of the turn that is over.
    let late = r#"update {"sessionUpdate":"tool_call_update","toolCallId":"call_1","status":"completed"}"#;
    watched.turn("t2", late);
    assert!(
        watched.received("chat/toolCallStart").is_empty()
            && watched.received("chat/toolCallComplete").is_empty()
    );
    watched.leave();
}

#[test]
fn permission_is_answered_with_the_chosen_option() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", "ask");
    let ready = watched.action("chat/toolCallReady");
    let labels: Vec<&Value> =
        ready["options"].as_array().unwrap().iter().map(|option| &option["id"]).collect();
    assert_eq!(labels, ["yes", "yes/project", "yes/user", "no"]);
    watched.decide("t1", "ask_1", true, "yes/user");
    assert_eq!(watched.ending("t1")["type"], "chat/turnComplete");
    assert_eq!(watched.answer_text(), "answered yes/user");
    let diff = &watched.received("chat/toolCallComplete")[0]["result"]["content"][0]["text"];
    assert_eq!(diff, "--- /x\n+++ /x\n@@ -1,1 +1,1 @@\n-a\n+b\n");

    watched.begin("t2", "ask");
    watched.action("chat/toolCallReady");
    watched.decide("t2", "ask_1", false, "no");
    watched.ending("t2");
    assert_eq!(watched.answer_text(), "answered no");
    watched.leave();
}

#[test]
fn concurrent_permissions_are_answered_separately() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", "ask_thrice");
    for _ in 0..3 {
        let ready = watched.action("chat/toolCallReady");
        assert!(ready["options"].is_array(), "a status wiped a question: {ready}");
    }
    for (number, approved, option) in [(2, true, "yes"), (3, false, "no"), (1, true, "yes/project")] {
        watched.decide("t1", &format!("ask_{number}"), approved, option);
    }
    watched.ending("t1");
    assert_eq!(watched.answer_text(), "2: yes; 3: no; 1: yes/project; ");
    watched.leave();
}

/// ACP has no word for steering an agent: what the user adds while it works is said to it when it
/// is done.
#[test]
fn steering_message_becomes_the_next_turn_of_an_agent_that_cannot_be_steered() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", "say first\nhang");
    watched.action_where(|action| action["part"]["content"] == "first");
    let pending = |kind: &str, text: &str| {
        json!({ "type": "chat/pendingMessageSet", "kind": kind, "id": kind,
            "message": { "text": text, "origin": { "kind": "user" } } })
    };
    watched.dispatch(pending("queued", "say third"));
    watched.dispatch(pending("steering", "say second"));
    watched.action_where(|action| action["kind"] == "steering");
    watched.cancel("t1");
    for (kind, text) in [("steering", "second"), ("queued", "third")] {
        let begun = watched.action("chat/turnStarted");
        assert_eq!(
            (&begun["queuedMessageId"], &begun["message"]["text"]),
            (&json!(kind), &json!(format!("say {text}")))
        );
        assert_eq!(watched.action("chat/responsePart")["part"]["content"], text);
    }
    watched.leave();
}

#[test]
fn attachments_are_sent_in_the_form_that_the_agent_supports() {
    // The one decodes the URIs of files, the other one does not.
    for (name, uri) in [("agent.py", "file:///a%20b/%C3%A4.txt"), ("qwen-code", "file:///a b/ä.txt")] {
        let mut watched = Setting::with(&["--name", name]).start();
        watched.session();
        attach(&mut watched, uri);
        watched.leave();
    }
}

#[test]
fn attached_chat_is_sent_as_text_beside_the_message() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    // The agent does what each line of its last block says, which is what was said here.
    assert!(watched.turn("t1", "say a blue sky\nprompt").starts_with("a blue sky"));
    watched.heard.clear();
    watched.dispatch(
        json!({ "type": "chat/turnStarted", "turnId": "t2", "startedAt": "2026-01-01T00:00:00Z",
        "message": { "text": "Look", "origin": { "kind": "user" }, "attachments": [
            { "type": "chat", "label": "the sky", "resource": default_chat_of(SESSION), "endTurn": "t1" },
        ] } }),
    );
    watched.ending("t2");
    let said = watched.answer_text();
    let blocks = &said[said.find('[').expect("the blocks")..];
    let blocks: Vec<Value> =
        serde_json::Deserializer::from_str(blocks).into_iter().next().expect("the blocks").unwrap();
    let texts: Vec<&str> = blocks.iter().map(|block| block["text"].as_str().unwrap()).collect();
    let [message, attached] = texts[..] else { panic!("{texts:?}") };
    assert_eq!(message, "Look");
    let heading = "This was said in the conversation \"the sky\", which the user has attached:";
    assert!(attached.starts_with(heading) && attached.contains("a blue sky\nprompt\n"), "{attached}");
    watched.leave();
}

fn attach(watched: &mut Watched, linked: &str) {
    watched.heard.clear();
    watched.dispatch(
        json!({ "type": "chat/turnStarted", "turnId": "t1", "startedAt": "2026-01-01T00:00:00Z",
        "message": { "text": "Look", "origin": { "kind": "user" }, "attachments": [
            { "type": "resource", "label": "x.txt", "uri": "file:///a%20b/%C3%A4.txt", "contentType": "text/plain",
              "selection": { "range": { "start": { "line": 2, "character": 0 }, "end": { "line": 4, "character": 7 } } } },
            { "type": "embeddedResource", "label": "pic", "data": "AAAA", "contentType": "image/png" },
            { "type": "embeddedResource", "label": "note", "data": "aGVsbG8=", "contentType": "text/plain" },
            { "type": "embeddedResource", "label": "tune", "data": "/w==", "contentType": "audio/ogg" },
            { "type": "simple", "label": "label" },
            { "type": "simple", "label": "last", "modelRepresentation": "prompt" },
        ] } }),
    );
    watched.ending("t1");
    // What is set apart is a step of its own, between two that only say themselves.
    let said = watched.answer_text();
    let (_, said) = said.split_once("```").unwrap();
    let (said, _) = said.rsplit_once("```").unwrap();
    let blocks: Value = serde_json::from_str(said).unwrap();
    assert_eq!(
        blocks,
        json!([
            { "type": "text", "text": "Look" },
            { "type": "resource_link", "name": "x.txt", "uri": linked, "mimeType": "text/plain" },
            { "type": "text", "text": "(The user has selected x.txt from line 3, column 1 to line 5, column 8.)" },
            { "type": "image", "mimeType": "image/png", "data": "AAAA" },
            { "type": "text", "text": "(The user has attached \"note\". This is what is in it:)\n```\nhello\n```" },
            { "type": "text", "text": "(The user has attached \"tune\", of type audio/ogg, which cannot be shown here.)" },
            { "type": "text", "text": "(The user has attached \"label\".)" },
            { "type": "text", "text": "(The user has attached \"last\". This is what is in it:)\n```\nprompt\n```" },
        ])
    );
}

#[test]
fn early_late_and_unrelated_updates_do_not_change_the_running_turn() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    // Said before the session was answered for.
    assert_eq!(watched.action("session/titleChanged")["title"], "An early title");
    watched.begin("t1", "update_other nobody\ntool\nsay The e\nafter nd.|Too late.");
    watched.ending("t1");
    assert_eq!(watched.answer_text(), "The end.");
    watched.release_agent();
    // Nothing that comes then is lost: it is in a turn of its own.
    watched.heard.clear();
    let own = watched.action("chat/turnStarted");
    assert_eq!(own["message"]["origin"]["kind"], "systemNotification");
    assert_eq!(watched.ending(own["turnId"].as_str().unwrap())["type"], "chat/turnComplete");
    assert_eq!(watched.answer_text(), "Too late.");
    assert!(watched.received("chat/toolCallStart").is_empty());
    assert_eq!(watched.turn("t2", "say ok"), "ok");
    watched.leave();
}

/// Maximum number of empty turns tried until one is quick; on a busy machine, many are not.
const QUICK_WITHIN: usize = 1000;

#[test]
fn turn_ends_with_the_answer_without_a_pause() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let mut durations = (0..QUICK_WITHIN).map(|turn| {
        let turn = format!("t{turn}");
        watched.begin(&turn, "");
        watched.ending(&turn)["duration"].as_i64().unwrap()
    });
    // On a busy machine any turn may take long, but a pause would be in all of them.
    assert!(durations.any(|duration| duration < 15), "each of {QUICK_WITHIN} turns has waited");
    drop(durations);
    watched.leave();
}

#[test]
fn agent_errors_and_stop_reasons_end_the_turn_with_their_error_type() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    for (script, kind, text) in [
        ("error -32603 The model is ill", "agentError", "The model is ill (-32603)"),
        ("error 401 Who are you", "authRequired", "Who are you (401)"),
        ("error -32000 Please log in", "authRequired", "log in"),
        ("end refusal", "refusal", "refused"),
        ("end max_tokens", "maxTokens", "reached the token limit of the model"),
        ("end max_turn_requests", "maxTurnRequests", "limit of model requests"),
    ] {
        let turn = script.replace(' ', "-");
        watched.begin(&turn, script);
        let ending = watched.ending(&turn);
        assert_eq!(ending["part"]["error"]["errorType"], kind, "{ending}");
        assert!(ending["part"]["error"]["message"].as_str().unwrap().contains(text), "{ending}");
    }
    watched.begin("c", "end cancelled");
    assert_eq!(watched.ending("c")["type"], "chat/turnCancelled");
    watched.begin("k", "end a_reason_that_nobody_knows");
    assert_eq!(watched.ending("k")["type"], "chat/turnComplete");
    assert_eq!(watched.turn("t", "say ok"), "ok");
    watched.leave();
}

#[test]
fn tool_call_may_have_a_name_and_a_terminal_of_the_agent() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let script = [
        r#"update {"sessionUpdate":"tool_call","toolCallId":"c","title":"ls","kind":"execute","name":"Bash","status":"in_progress","rawInput":{"command":"ls"},"content":[{"type":"terminal","terminalId":"t"}]}"#,
        r#"update {"sessionUpdate":"tool_call_update","toolCallId":"c","_meta":{"terminal_output_delta":{"terminal_id":"t","data":"a\n"}}}"#,
        r#"update {"sessionUpdate":"tool_call_update","toolCallId":"c","_meta":{"terminal_output_delta":{"terminal_id":"t","data":"b\n"}}}"#,
        r#"update {"sessionUpdate":"tool_call_update","toolCallId":"c","status":"failed","rawOutput":{"exit":1}}"#,
    ];
    watched.turn("t1", &script.join("\n"));
    assert_eq!(watched.received("chat/toolCallStart")[0]["toolName"], "Bash");
    let done = &watched.received("chat/toolCallComplete")[0]["result"];
    assert_eq!((&done["success"], &done["content"][1]["text"]), (&json!(false), &json!("a\nb\n")));
    // It is one of the host's, too, which ends with the call where the agent says nothing of its
    // end.
    assert_eq!(done["content"][0]["result"], json!({ "preview": "a\nb\n" }));
    watched.leave();
}

#[test]
fn question_withdrawn_by_the_agent_is_removed() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    assert_eq!(watched.turn("t1", "ask_and_withdraw"), "code -32800");
    assert_eq!(watched.received("chat/toolCallComplete")[0]["result"]["success"], false);
    watched.leave();
}

/// At the end of the input the turn goes on, and what nobody can answer any more is declined.
#[test]
fn permission_after_the_end_of_input_is_declined() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", "ask");
    watched.action("chat/toolCallReady");
    watched.process.end();
    let rest = watched.process.rest();
    assert!(
        rest.iter().any(|message| message["params"]["action"]["part"]["content"] == "answered no"),
        "{rest:?}"
    );
    assert!(
        rest.iter().any(|message| message["params"]["action"]["type"] == "chat/turnComplete"),
        "{rest:?}"
    );
    assert_eq!(watched.process.wait().code(), Some(4));
    assert_eq!(watched.agents(), Vec::<String>::new());
}
