//! Questions of an agent to the user, and their answers.

use super::*;

/// A form with a field of every type.
fn form() -> Value {
    json!({ "mode": "form", "message": "A few questions", "requestedSchema": {
        "type": "object", "title": "Setup", "required": ["name", "colours"], "properties": {
            "name": { "type": "string", "title": "Name", "description": "What is it called?",
                "minLength": 1, "maxLength": 9, "pattern": "^a", "default": "abc" },
            "mail": { "type": "string", "format": "email" },
            "count": { "type": "integer", "title": "How many?", "minimum": 1, "maximum": 5, "default": 2 },
            "ratio": { "type": "number", "minimum": 0.5 },
            "fast": { "type": "boolean", "default": true },
            "plan": { "type": "string", "default": "b",
                "oneOf": [{ "const": "a", "title": "Plan A" }, { "const": "b", "title": "Plan B", "description": "Better" }] },
            "size": { "type": "string", "enum": ["s", "l"] },
            "colours": { "type": "array", "minItems": 1, "maxItems": 2, "default": ["red"],
                "items": { "anyOf": [{ "const": "red", "title": "Red" }, { "const": "blue", "title": "Blue" }] } },
            "tags": { "type": "array", "items": { "type": "string", "enum": ["x", "y"] } },
        } } })
}

/// Returns the form as text, its fields in an order that no sorting produces.
fn form_text() -> String {
    let mut text = String::from(
        r#"{"mode":"form","message":"A few questions","requestedSchema":{"type":"object","title":"Setup","required":["name","colours"],"properties":{"#,
    );
    let form = form();
    let fields = form["requestedSchema"]["properties"].as_object().unwrap();
    let fields: Vec<String> = ORDER.iter().map(|name| format!("{name:?}:{}", fields[*name])).collect();
    text.push_str(&fields.join(","));
    text.push_str("}}}");
    text
}

const ORDER: [&str; 9] = ["name", "mail", "count", "ratio", "fast", "plan", "size", "colours", "tags"];

fn answer(watched: &mut Watched, request: &str, response: &str, answers: Value) {
    watched.dispatch(json!({ "type": "chat/inputCompleted", "requestId": request, "response": response,
        "answers": answers }));
}

fn submitted(kind: &str, value: Value) -> Value {
    json!({ "state": "submitted", "value": { "kind": kind, "value": value } })
}

#[test]
fn form_elicitation_shows_every_field_and_returns_typed_values() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", &format!("question {}", form_text()));
    let request = watched.action("chat/inputRequested")["request"].clone();
    assert_eq!(request["message"], "A few questions\n\nSetup");
    let questions = request["questions"].as_array().unwrap();
    let ids: Vec<&str> = questions.iter().map(|question| question["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ORDER);
    assert_eq!(
        questions[..5],
        [
            json!({ "kind": "text", "id": "name", "title": "Name", "required": true, "min": 1, "max": 9,
                "message": "What is it called? (must match `^a`)", "defaultValue": "abc" }),
            json!({ "kind": "text", "id": "mail", "message": "mail", "format": "email" }),
            json!({ "kind": "integer", "id": "count", "message": "How many?", "min": 1.0, "max": 5.0,
                "defaultValue": 2.0 }),
            json!({ "kind": "number", "id": "ratio", "message": "ratio", "min": 0.5 }),
            json!({ "kind": "boolean", "id": "fast", "message": "fast", "defaultValue": true }),
        ]
    );
    assert_eq!(
        questions[5..],
        [
            json!({ "kind": "single-select", "id": "plan", "message": "plan", "allowFreeformInput": false,
                "options": [{ "id": "a", "label": "Plan A" },
                    { "id": "b", "label": "Plan B", "description": "Better", "recommended": true }] }),
            json!({ "kind": "single-select", "id": "size", "message": "size", "allowFreeformInput": false,
                "options": [{ "id": "s", "label": "s" }, { "id": "l", "label": "l" }] }),
            json!({ "kind": "multi-select", "id": "colours", "message": "colours", "required": true, "min": 1,
                "max": 2, "allowFreeformInput": false, "options": [
                    { "id": "red", "label": "Red", "recommended": true }, { "id": "blue", "label": "Blue" }] }),
            json!({ "kind": "multi-select", "id": "tags", "message": "tags", "allowFreeformInput": false,
                "options": [{ "id": "x", "label": "x" }, { "id": "y", "label": "y" }] }),
        ]
    );
    let answers = json!({
        "name": submitted("text", "abc".into()), "count": submitted("number", 3.into()),
        "ratio": submitted("number", json!(1.5)), "fast": submitted("boolean", false.into()),
        "plan": submitted("selected", "a".into()), "colours": submitted("selected-many", json!(["red", "blue"])),
        "mail": { "state": "skipped" },
    });
    answer(&mut watched, request["id"].as_str().unwrap(), "accept", answers);
    watched.ending("t1");
    let content = json!({ "name": "abc", "count": 3, "ratio": 1.5, "fast": false, "plan": "a",
        "colours": ["red", "blue"] });
    let said: Value = serde_json::from_str(&watched.answer_text()).unwrap();
    assert_eq!(said, json!({ "action": "accept", "content": content }));
    watched.leave();
}

#[test]
fn url_elicitation_is_shown_and_concurrent_questions_are_answered_separately() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", "questions");
    let first = watched.action("chat/inputRequested")["request"].clone();
    assert_eq!((&first["url"], &first["message"]), (&json!("https://example.org/"), &json!("Open")));
    let second = watched.action("chat/inputRequested")["request"].clone();
    answer(&mut watched, second["id"].as_str().unwrap(), "decline", Value::Null);
    answer(&mut watched, first["id"].as_str().unwrap(), "accept", Value::Null);
    watched.ending("t1");
    assert_eq!(watched.answer_text(), "2: decline; 1: accept; ");
    watched.leave();
}

#[test]
fn unanswered_question_is_cancelled_however_the_turn_ends() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", "question_and_hang");
    watched.action("chat/inputRequested");
    watched.cancel("t1");
    assert_eq!(watched.ending("t1")["type"], "chat/turnCancelled");
    assert_eq!(watched.turn("t2", "answered"), "cancel");

    assert_eq!(watched.turn("t3", "question_and_withdraw"), "code -32800");
    assert_eq!(watched.received("chat/inputCompleted")[0]["response"], "cancel");

    assert_eq!(watched.turn("t4", "answered"), "cancel");
    watched.leave();
}

#[test]
fn question_before_session_creation_is_cancelled() {
    let mut watched = Setting::with(&["--can", "ask-early"]).start();
    watched.session();
    assert_eq!(watched.turn("t1", "answered"), "cancel");
    watched.leave();
}

#[test]
fn question_about_the_prompt_is_accepted_and_a_malformed_one_is_refused() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", r#"question_of_prompt {"mode":"url","message":"x","url":"https://x/"}"#);
    let request = watched.action("chat/inputRequested")["request"].clone();
    answer(&mut watched, request["id"].as_str().unwrap(), "cancel", Value::Null);
    watched.ending("t1");
    assert_eq!(watched.answer_text(), r#"{"action": "cancel"}"#);
    for wrong in [r#"{"mode":"dance","message":"x"}"#, r#"{"mode":"form","message":"x"}"#] {
        let said = watched.turn(wrong, &format!("question {wrong}"));
        assert!(said.contains("-32602"), "{said}");
    }
    let can: Value = serde_json::from_str(&watched.turn("t2", "can")).unwrap();
    assert_eq!(can["elicitation"], json!({ "form": {}, "url": {} }));
    watched.leave();
}

#[test]
fn answer_that_violates_the_schema_is_requested_again() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let form = json!({ "mode": "form", "message": "Say", "requestedSchema": { "type": "object", "properties": {
        "name": { "type": "string", "pattern": "^a", "maxLength": 3 },
        "count": { "type": "integer", "maximum": 5 },
        "place": { "type": "object", "title": "Place" } } } });
    watched.begin("t1", &format!("question {form}"));
    let first = watched.action("chat/inputRequested")["request"].clone();
    assert_eq!((&first["message"], &first["questions"][2]["kind"]), (&json!("Say"), &json!("text")));
    let bad = json!({ "name": submitted("text", "bcde".into()), "count": submitted("number", 6.into()) });
    answer(&mut watched, first["id"].as_str().unwrap(), "accept", bad);
    let second = watched.action("chat/inputRequested")["request"].clone();
    let why = "The answer to `name` must have at most 3 characters.\nThe answer to `count` must be at most 5.\n\nSay";
    assert_eq!((&second["message"], &second["questions"]), (&json!(why), &first["questions"]));
    assert_ne!(second["id"], first["id"]);
    let good =
        json!({ "name": submitted("text", "abc".into()), "place": submitted("text", "{\"x\":1}".into()) });
    answer(&mut watched, second["id"].as_str().unwrap(), "accept", good);
    watched.ending("t1");
    let said: Value = serde_json::from_str(&watched.answer_text()).unwrap();
    assert_eq!(said, json!({ "action": "accept", "content": { "name": "abc", "place": { "x": 1 } } }));

    // A program that does not do better is not asked for ever.
    watched.begin("t2", &format!("question {form}"));
    for _ in 0..4 {
        let request = watched.action("chat/inputRequested")["request"].clone();
        let bad = json!({ "count": submitted("number", 6.into()) });
        answer(&mut watched, request["id"].as_str().unwrap(), "accept", bad);
    }
    watched.ending("t2");
    assert_eq!(watched.answer_text(), r#"{"action": "cancel"}"#);
    watched.leave();
}

#[test]
fn qwen_code_permission_with_questions_becomes_an_input_request() {
    let options = json!([
        { "optionId": "proceed_once", "name": "Submit", "kind": "allow_once" },
        { "optionId": "cancel", "name": "Cancel", "kind": "reject_once" },
    ]);
    let choice = |label: &str| json!({ "label": label, "description": "It is one" });
    let questions = json!([
        { "question": "Which one?", "header": "One", "options": [choice("a"), choice("b")], "multiSelect": false },
        { "question": "Which ones?", "header": "Many", "options": [choice("c"), choice("d")], "multiSelect": true },
        { "question": "What else?", "header": "Free", "options": [choice("e")] },
    ]);
    let call = json!({ "toolCallId": "c", "kind": "think", "title": "Ask user 3 questions",
        "_meta": { "toolName": "ask_user_question", "qwenInteractionKind": "user_question", "qwenQuestions": questions } });
    let asks = format!("decision {}", json!({ "toolCall": call, "options": options }));
    let mut watched = Setting::with(&["--name", "qwen-code"]).start();
    watched.session();
    watched.begin("t1", &asks);
    let request = watched.action("chat/inputRequested")["request"].clone();
    let option = |label: &str| json!({ "id": label, "label": label, "description": "It is one" });
    assert_eq!(
        request["questions"][0],
        json!({ "kind": "single-select", "id": "0", "title": "One", "message": "Which one?", "required": true,
            "allowFreeformInput": true, "options": [option("a"), option("b")] })
    );
    assert_eq!(request["questions"][1]["kind"], "multi-select");
    let free = json!({ "state": "submitted",
        "value": { "kind": "selected", "value": "", "freeformValues": ["anything"] } });
    let answers = json!({ "0": submitted("selected", "b".into()),
        "1": submitted("selected-many", json!(["c", "d"])), "2": free });
    answer(&mut watched, request["id"].as_str().unwrap(), "accept", answers);
    watched.ending("t1");
    let said: Value = serde_json::from_str(&watched.answer_text()).unwrap();
    assert_eq!(
        said,
        json!({ "outcome": { "outcome": "selected", "optionId": "proceed_once" },
            "answers": { "0": "b", "1": "c, d", "2": "anything" } })
    );
    for (turn, response, said) in [
        ("t2", "decline", r#"{"outcome": {"outcome": "selected", "optionId": "cancel"}}"#),
        ("t3", "cancel", r#"{"outcome": {"outcome": "cancelled"}}"#),
    ] {
        watched.begin(turn, &asks);
        let request = watched.action("chat/inputRequested")["request"].clone();
        answer(&mut watched, request["id"].as_str().unwrap(), response, Value::Null);
        watched.ending(turn);
        assert_eq!(watched.answer_text(), said);
    }
    watched.leave();
}

#[test]
fn permission_options_are_shown_in_order_and_no_other_option_can_be_chosen() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let options = json!([
        { "optionId": "p", "name": "Always in this project", "kind": "allow_always" },
        { "optionId": "u", "name": "Always", "kind": "allow_always" },
        { "optionId": "o", "name": "Once", "kind": "allow_once" },
        { "optionId": "n", "name": "No", "kind": "reject_once" },
        { "optionId": "z", "name": "Never", "kind": "reject_always" },
    ]);
    // qwen puts questions to the user like this.
    let call = json!({ "toolCallId": "c", "kind": "think", "title": "Which one?",
        "_meta": { "qwenQuestions": [{ "question": "?" }] } });
    watched.begin("t1", &format!("permission {}", json!({ "toolCall": call, "options": options })));
    let ready = watched.action("chat/toolCallReady");
    let shown = |id: &str, label: &str, kind: &str| json!({ "id": id, "label": label, "kind": kind });
    assert_eq!(
        ready["options"],
        json!([
            shown("p", "Always in this project", "approve"),
            shown("u", "Always", "approve"),
            shown("o", "Once", "approve"),
            shown("n", "No", "deny"),
            shown("z", "Never", "deny"),
        ])
    );
    // For a client, two that approve are alike but for this.
    let kind = |kind: &str| json!({ "kind": kind });
    let kinds = json!({ "p": kind("allow_always"), "u": kind("allow_always"), "o": kind("allow_once"),
        "n": kind("reject_once"), "z": kind("reject_always") });
    assert_eq!(ready["_meta"]["acp.options"], kinds, "{ready}");
    let start = watched.received("chat/toolCallStart")[0]["_meta"].clone();
    assert_eq!(start, json!({ "acp.kind": "think", "acp.meta": { "qwenQuestions": [{ "question": "?" }] } }));
    // One that was not offered is refused, and the question stays.
    watched.sequence += 1;
    let (channel, sequence) = (default_chat_of(SESSION), watched.sequence);
    watched.say(json!({ "method": "dispatchAction", "params": { "channel": channel, "clientSeq": sequence,
        "action": { "type": "chat/toolCallConfirmed", "turnId": "t1", "toolCallId": "c", "approved": true,
            "selectedOptionId": "yes" } } }));
    watched.process.until(|message| message["params"].get("rejectionReason").is_some());
    watched.decide("t1", "c", true, "u");
    watched.ending("t1");
    assert_eq!(watched.answer_text(), "u");
    watched.leave();
}

#[test]
fn pending_permissions_are_answered_as_cancelled_when_the_turn_is_cancelled() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", "ask_thrice_and_hang");
    for _ in 0..3 {
        watched.action("chat/toolCallReady");
    }
    watched.cancel("t1");
    assert_eq!(watched.ending("t1")["type"], "chat/turnCancelled");
    assert_eq!(watched.turn("t2", "answered"), "cancelled cancelled cancelled");
    watched.leave();
}

/// Some agents end a turn as cancelled when the user has refused a call. The user has cancelled
/// nothing.
#[test]
fn turn_that_ends_after_a_denied_call_is_not_cancelled() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    watched.begin("t1", "reject_and_end");
    watched.action("chat/toolCallReady");
    watched.decide("t1", "ask_1", false, "no");
    assert_eq!(watched.ending("t1")["type"], "chat/turnComplete");
    // In the next turn nothing was refused.
    watched.begin("t2", "end cancelled");
    assert_eq!(watched.ending("t2")["type"], "chat/turnCancelled");
    watched.leave();
}
