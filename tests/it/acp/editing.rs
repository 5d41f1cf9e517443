//! An agent's changes of files, as clients can show them.

use super::*;

const BEFORE: &str = "one\ntwo\nthree\n";
const AFTER: &str = "one\n2\nthree\n";

/// Reads the content of one side of a change.
fn read(watched: &mut Watched, side: &Value) -> Value {
    watched.say(json!({ "id": 88, "method": "resourceRead", "params":
        { "channel": "ahp-root://", "uri": side["content"]["uri"] } }));
    watched.process.until(|message| message["id"] == 88).pop().unwrap()["result"]["data"].clone()
}

/// Has the agent change a file that it says like this; the change that it asks about, and what it
/// has done.
fn change(watched: &mut Watched, turn: &str, path: &str, diffs: &Value) -> (Value, Value) {
    let script = json!({ "path": path, "diffs": diffs, "after": AFTER });
    watched.begin(turn, &format!("edit {script}"));
    let asked = watched.action("chat/toolCallReady");
    watched.decide(turn, "edit_1", true, "yes");
    assert_eq!(watched.ending(turn)["type"], "chat/turnComplete");
    (asked, watched.received("chat/toolCallComplete")[0]["result"].clone())
}

#[test]
fn file_edit_is_shown_with_whole_contents_whatever_diff_the_agent_sends() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let path = watched.folder.as_ref().unwrap().path().join("a b.txt");
    let uri = format!("file://{}", path.to_str().unwrap().replace(' ', "%20"));
    let said = [
        json!([{ "oldText": BEFORE, "newText": AFTER }]),
        json!([{ "oldText": "two\nthree\n", "newText": "2\nthree\n" }]),
        json!([{ "oldText": "two", "newText": "2" }]),
    ];
    for (number, diffs) in said.iter().enumerate() {
        fs::write(&path, BEFORE).unwrap();
        let (asked, done) = change(&mut watched, &format!("t{number}"), "a b.txt", diffs);
        let preview = &asked["edits"]["items"];
        let shown = &done["content"];
        assert_eq!((preview.as_array().unwrap().len(), shown.as_array().unwrap().len()), (1, 2), "{done}");
        // As text too, for clients that show no changes.
        assert_eq!((&shown[0]["type"], &shown[1]["type"]), (&json!("text"), &json!("fileEdit")));
        for edit in [&preview[0], &shown[1]] {
            assert_eq!((&edit["before"]["uri"], &edit["after"]["uri"]), (&json!(uri), &json!(uri)));
            for side in ["before", "after"] {
                // Real clients take a path for the file's.
                let called = edit[side]["content"]["uri"].as_str().unwrap();
                assert!(called.starts_with("ahp-content:/"), "{called}");
                assert!(
                    called.ends_with(&format!("/{side}{}", uri.strip_prefix("file://").unwrap())),
                    "{called}"
                );
            }
            assert_eq!(
                preview[0]["after"]["content"], shown[1]["after"]["content"],
                "it is the same content"
            );
            assert_eq!(read(&mut watched, &edit["before"]), BEFORE);
            assert_eq!(read(&mut watched, &edit["after"]), AFTER);
        }
    }
    watched.leave();
}

#[test]
fn new_file_has_no_before_content_and_an_unmatched_diff_is_shown_as_text() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let said = [
        json!([{ "newText": AFTER }]),
        json!([{ "oldText": null, "newText": AFTER }]),
        json!([{ "oldText": "", "newText": AFTER }]),
    ];
    for (number, diffs) in said.iter().enumerate() {
        let (asked, done) = change(&mut watched, &format!("t{number}"), &format!("new-{number}"), diffs);
        for edit in [&asked["edits"]["items"][0], &done["content"][1]] {
            assert!(edit.get("before").is_none(), "{edit}");
            assert_eq!(read(&mut watched, &edit["after"]), AFTER);
        }
    }
    let path = watched.folder.as_ref().unwrap().path().join("other");
    fs::write(&path, BEFORE).unwrap();
    let diffs = json!([{ "oldText": "four", "newText": "4" }]);
    let (asked, done) = change(&mut watched, "u", "other", &diffs);
    assert!(asked.get("edits").is_none(), "{asked}");
    assert_eq!(done["content"].as_array().unwrap().len(), 1, "{done}");
    watched.leave();
}

#[test]
fn turn_can_be_cancelled_while_its_edit_is_being_resolved() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    let path = watched.folder.as_ref().unwrap().path().join("x");
    fs::write(&path, BEFORE).unwrap();
    for turn in 0..20 {
        let turn = format!("t{turn}");
        let script = json!({ "path": "x", "diffs": [{ "oldText": "two", "newText": "2" }], "after": AFTER });
        watched.begin(&turn, &format!("edit {script}"));
        watched.action("chat/turnStarted");
        watched.cancel(&turn);
        assert_eq!(watched.ending(&turn)["type"], "chat/turnCancelled");
    }
    assert_eq!(watched.turn("u", "say ok"), "ok");
    watched.leave();
}

/// Reads a content and returns the answer.
fn answer(watched: &mut Watched, uri: &Value, encoding: &str) -> Value {
    watched.say(json!({ "id": 89, "method": "resourceRead", "params":
        { "channel": "ahp-root://", "uri": uri, "encoding": encoding } }));
    watched.process.until(|message| message["id"] == 89).pop().unwrap()
}

/// Has the agent draw a picture of so many bytes of base64; what its call has produced.
fn draw(watched: &mut Watched, turn: &str, bytes: usize) -> Value {
    watched.heard.clear();
    watched.begin(turn, &format!("draw {turn}-call {bytes}"));
    assert_eq!(watched.ending(turn)["type"], "chat/turnComplete");
    watched.received("chat/toolCallComplete")[0]["result"]["content"][0].clone()
}

#[test]
fn edit_contents_survive_a_restart_and_are_deleted_with_their_session() {
    let folder = tempfile::tempdir().unwrap();
    let setting = |folder: &tempfile::TempDir| {
        let state = folder.path().join("state").to_str().unwrap().to_owned();
        Setting { flags: vec!["--state-dir".to_owned(), state], ..Setting::with(&[]) }
    };
    let mut watched = setting(&folder).start_in(folder);
    watched.session();
    fs::write(watched.folder.as_ref().unwrap().path().join("x"), BEFORE).unwrap();
    let diffs = json!([{ "oldText": "two", "newText": "2" }]);
    let (_, done) = change(&mut watched, "t1", "x", &diffs);
    let edit = done["content"][1].clone();
    let drawn = draw(&mut watched, "t2", 64 << 10);
    assert_eq!(drawn["type"], "embeddedResource", "small enough to be where it is shown");
    let drawn = draw(&mut watched, "t3", (64 << 10) + 4);
    let picture = drawn["uri"].as_str().unwrap();
    assert!(picture.starts_with("ahp-content:/") && picture.ends_with("/produced/image.png"), "{picture}");
    let told = json!({ "type": "resource", "uri": picture, "contentType": "image/png", "sizeHint": 49155 });
    assert_eq!(drawn, told);
    let folder = watched.leave().unwrap();

    let mut watched = setting(&folder).start_in(folder);
    let read_picture = |watched: &mut Watched, uri: &Value| {
        let read = answer(watched, uri, "utf-8")["result"].take();
        assert_eq!(
            (&read["encoding"], &read["contentType"]),
            (&json!("base64"), &json!("image/png")),
            "{read}"
        );
        assert_eq!(read["data"], "iVBO".repeat((16 << 10) + 1));
    };
    read_picture(&mut watched, &drawn["uri"]);
    assert_eq!(read(&mut watched, &edit["before"]), BEFORE, "nobody has opened the chat yet");
    let encoded = answer(&mut watched, &edit["after"]["content"]["uri"], "base64");
    assert_eq!(
        encoded["result"],
        json!({ "data": "b25lCjIKdGhyZWUK", "encoding": "base64", "contentType": "text/plain" })
    );
    // The state and what is replayed out of the store name it alike.
    let chat = default_chat_of(SESSION);
    for (method, params) in [
        ("subscribe", json!({ "channel": chat })),
        (
            "reconnect",
            json!({ "channel": "ahp-root://", "clientId": "me", "lastSeenServerSeq": 3,
            "subscriptions": [chat] }),
        ),
    ] {
        watched.say(json!({ "id": 90, "method": method, "params": params }));
        let told = watched.process.until(|message| message["id"] == 90).pop().unwrap();
        assert_ne!(told["result"]["type"], "snapshot", "{told}");
        let told = told.to_string();
        assert!(told.contains(&edit["before"]["content"]["uri"].to_string()), "{method}: {told}");
        assert!(told.contains(&drawn["uri"].to_string()), "{method}: {told}");
        assert!(!told.contains("data:text"), "{method}: {told}");
    }
    // A fork has them under names of its own.
    let source = json!({ "kind": "fork", "chat": chat, "turnId": "t3" });
    let params = json!({ "channel": SESSION, "chat": "ahp-chat:/fork", "source": source });
    watched.say(json!({ "id": 92, "method": "createChat", "params": params }));
    watched.say(json!({ "id": 93, "method": "subscribe", "params": { "channel": "ahp-chat:/fork" } }));
    let told = watched.process.until(|message| message["id"] == 93).pop().unwrap();
    let turns = &told["result"]["snapshot"]["state"]["turns"];
    let parts = turns[2]["responseParts"].as_array().unwrap();
    let part = parts.iter().find(|part| part["kind"] == "toolCall").unwrap();
    let forked = &part["toolCall"]["content"][0];
    assert_ne!(forked["uri"], drawn["uri"]);
    read_picture(&mut watched, &forked["uri"]);
    watched.say(json!({ "id": 91, "method": "disposeSession", "params": { "channel": SESSION } }));
    let gone = answer(&mut watched, &edit["after"]["content"]["uri"], "utf-8");
    assert_eq!(gone["error"]["code"], -32008, "{gone}");
    watched.leave();
}

#[test]
fn edit_preview_stays_readable_after_the_call_was_decided() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    fs::write(watched.folder.as_ref().unwrap().path().join("x"), BEFORE).unwrap();
    let script = json!({ "path": "x", "diffs": [{ "oldText": "two", "newText": "2" }], "after": AFTER });
    watched.begin("t1", &format!("edit {script}"));
    let asked = watched.action("chat/toolCallReady");
    watched.decide("t1", "edit_1", false, "no");
    watched.ending("t1");
    // It is in the state no more, and its preview is on the screen.
    assert_eq!(read(&mut watched, &asked["edits"]["items"][0]["after"]), AFTER);
    watched.leave();
}

/// A file that git ignores, of which the agent says nothing but that it has changed it.
#[test]
fn ignored_file_written_by_an_agent_is_listed_but_cannot_be_reverted() {
    let mut watched = Setting { flags: vec!["--ephemeral".to_owned()], ..Setting::with(&[]) }.start();
    let folder = watched.folder.as_ref().unwrap().path().canonicalize().unwrap();
    fs::write(folder.join(".gitignore"), "*\n").unwrap();
    let made = Command::new("git").args(["init", "-q"]).current_dir(&folder).status().unwrap();
    assert!(made.success());
    fs::write(folder.join(".env"), "SECRET=2\n").unwrap();
    watched.session();
    let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": "Edit", "kind": "edit",
        "status": "completed", "locations": [{ "path": folder.join(".env") }] });
    watched.turn("t1", &format!("update {call}"));
    let channel = format!("{SESSION}/changeset/turn/t1");
    let begun = Instant::now();
    let file = loop {
        watched.say(json!({ "id": 91, "method": "subscribe", "params": { "channel": channel } }));
        let answer = watched.process.until(|message| message["id"] == 91).pop().unwrap();
        let state = answer["result"]["snapshot"]["state"].clone();
        if state["status"] == "ready" && state["files"].as_array().is_some_and(|files| !files.is_empty()) {
            break state["files"][0].clone();
        }
        assert!(begun.elapsed() < HUNG, "{answer}");
        thread::sleep(Duration::from_millis(20));
    };
    let uri = ahp_sidecar::files::uris::uri_of(&folder.join(".env"));
    assert_eq!((&file["id"], &file["edit"]["after"]["content"]["uri"]), (&json!(uri), &json!(uri)));
    assert!(file["edit"]["before"]["content"]["uri"].as_str().unwrap().starts_with("ahp-content:"), "{file}");
    watched.say(json!({ "id": 92, "method": "invokeChangesetOperation",
        "params": { "channel": channel, "operationId": "discard-changes" } }));
    let answer = watched.process.until(|message| message["id"] == 92).pop().unwrap();
    let told = "its content was not checkpointed (the agent did not report it), so it cannot be reverted";
    assert!(answer["error"]["message"].as_str().unwrap().contains(told), "{answer}");
    assert_eq!(fs::read_to_string(folder.join(".env")).unwrap(), "SECRET=2\n");
    watched.leave();
}
