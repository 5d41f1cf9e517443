//! Messages whose attachments an agent cannot take.

use super::*;

impl Watched {
    /// Begins a turn with a picture, and with a text that the agent does as it does any message.
    fn begin_with_picture(&mut self, turn: &str, steps: &str) {
        let picture = json!({ "type": "embeddedResource", "label": "a.png", "data": "AAAA", "contentType": "image/png" });
        self.begin_attached(turn, &picture, steps);
    }

    /// Begins a turn with an attachment, and with a text that the agent does as it does any
    /// message.
    fn begin_attached(&mut self, turn: &str, attachment: &Value, steps: &str) {
        self.heard.clear();
        self.dispatch(
            json!({ "type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00Z",
            "message": { "text": "Look", "origin": { "kind": "user" }, "attachments": [
                attachment,
                { "type": "simple", "label": "steps", "modelRepresentation": steps },
            ] } }),
        );
    }
}

/// Returns the number of refused prompts, and the number of sessions with refusals.
fn refusals(notes: &Path) -> (usize, usize) {
    let notes = fs::read_to_string(notes).unwrap();
    let mut refused: Vec<&str> = notes.lines().filter(|line| line.contains("refused")).collect();
    let count = refused.len();
    refused.dedup();
    (count, refused.len())
}

const WHY: &str = "The agent rejected the message with its attachments (`a.png`): 'file part media type \
    image/png' functionality not supported. (-32603). The message was sent again without them.";

#[test]
fn message_refused_for_its_attachments_is_sent_again_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let arguments = ["--refuses", "attachments", "--notes", notes.to_str().unwrap()];
    let mut watched = Setting::with(&arguments).start_in(folder);
    watched.session();
    watched.turn("t1", "say one");
    watched.begin_with_picture("t2", "remembers\nprompt");
    assert_eq!(watched.ending("t2")["type"], "chat/turnComplete");
    assert_eq!(watched.notices(), [WHY]);
    let said = watched.answer_text();
    assert!(said.contains("| say one | "), "{said}");
    assert!(said.contains("attached \\\"a.png\\\", of type image/png, which cannot be shown here"), "{said}");
    assert_eq!(refusals(&notes), (1, 1));
    watched.leave();
}

#[test]
fn message_refused_for_a_linked_picture_is_sent_again_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let arguments = ["--refuses", "attachments", "--notes", notes.to_str().unwrap()];
    let mut watched = Setting::with(&arguments).start_in(folder);
    watched.session();
    let picture =
        json!({ "type": "resource", "label": "a.png", "uri": "file:///b/a.png", "contentType": "image/png" });
    watched.begin_attached("t1", &picture, "prompt");
    assert_eq!(watched.ending("t1")["type"], "chat/turnComplete");
    assert_eq!(watched.notices(), [WHY]);
    let said = watched.answer_text();
    assert!(said.contains("attached \\\"a.png\\\", which is `/b/a.png`"), "{said}");
    assert_eq!(refusals(&notes), (1, 1));
    watched.leave();
}

#[test]
fn session_broken_by_an_attachment_is_replaced_by_one_with_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let (notes, memory) = (folder.path().join("notes"), memory(folder.path()));
    let (said_notes, said_memory) = (notes.to_str().unwrap().to_owned(), memory.to_str().unwrap().to_owned());
    let arguments =
        ["--refuses", "for-ever", "--can", "resume", "--notes", &said_notes, "--memory", &said_memory];
    let mut watched = Setting::with(&arguments).start_in(folder);
    watched.session();
    watched.turn("t1", "say one");
    watched.begin_with_picture("t2", "prompt");
    assert_eq!(watched.ending("t2")["type"], "chat/turnComplete");
    let anew = "The agent could not resume this conversation. It received the conversation so far as text.";
    assert_eq!(watched.notices(), [WHY, anew]);
    let said = watched.answer_text();
    assert!(said.contains("The user:\\nsay one"), "{said}");
    assert!(said.contains("attached \\\"a.png\\\", of type image/png, which cannot be shown here"), "{said}");
    assert_eq!(refusals(&notes), (2, 1));
    assert_eq!(watched.turn("t3", "say on"), "on");
    // A later picture is tried again: the model may be another.
    watched.begin_with_picture("t4", "say seen");
    watched.ending("t4");
    assert_eq!(refusals(&notes), (4, 2));
    watched.leave();
}

#[test]
fn failure_unrelated_to_attachments_ends_the_turn() {
    let mut watched = Setting::with(&[]).start();
    watched.session();
    for (turn, steps, message) in [
        ("t1", "error -32603 503 Service Unavailable", "503 Service"),
        // The agent has begun with it.
        ("t2", "say x\nerror -32603 bad picture", "bad picture"),
    ] {
        watched.begin_with_picture(turn, steps);
        let ending = watched.ending(turn);
        assert!(ending["part"]["error"]["message"].as_str().unwrap().starts_with(message), "{ending}");
        assert_eq!(watched.notices(), [""; 0]);
    }
    watched.leave();
}
