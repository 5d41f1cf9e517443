//! An agent's changes of files, as clients can show them.

use super::*;

const BEFORE: &str = "one\ntwo\nthree\n";
const AFTER: &str = "one\n2\nthree\n";

/// What a client reads of one side of a change.
fn read(watched: &mut Watched, side: &Value) -> Value {
    watched.say(json!({ "id": 88, "method": "resourceRead", "params":
        { "channel": "ahp-root://", "uri": side["content"]["uri"] } }));
    watched.process.until(|message| message["id"] == 88).pop().unwrap()["result"]["data"].clone()
}

/// Has the agent change a file that it says like this; the change that it asks about, and what it has done.
fn change(watched: &mut Watched, turn: &str, path: &str, diffs: &Value) -> (Value, Value) {
    let script = json!({ "path": path, "diffs": diffs, "after": AFTER });
    watched.begin(turn, &format!("edit {script}"));
    let asked = watched.action("chat/toolCallReady");
    watched.decide(turn, "edit_1", true, "yes");
    assert_eq!(watched.ending(turn)["type"], "chat/turnComplete");
    (asked, watched.heard("chat/toolCallComplete")[0]["result"].clone())
}

#[test]
fn a_change_is_shown_whole_however_the_agent_says_it() {
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
            assert_eq!(read(&mut watched, &edit["before"]), BEFORE);
            assert_eq!(read(&mut watched, &edit["after"]), AFTER);
        }
    }
    watched.leave();
}

#[test]
fn a_new_file_has_nothing_before_and_a_piece_that_is_not_found_is_text_only() {
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
fn a_turn_is_cancelled_while_it_is_found_out_what_a_change_is_of() {
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
