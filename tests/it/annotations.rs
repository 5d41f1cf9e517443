//! Annotations, where a transcript cannot go: as many and as large as there may be.
//!
//! Owns: a host in memory, and what it says to one client of what it asks for.
//! Never: repeats what transcripts show.

use ahp_sidecar::host::effects::{ConnectionId, Frame, Input, Output};
use ahp_sidecar::wire::annotations::annotations_uri;
use serde_json::{json, Value};

use crate::support::core::{said, Core, SESSION};

const CLIENT: ConnectionId = ConnectionId(1);

struct World {
    core: Core,
    seq: u32,
}

impl World {
    fn new() -> Self {
        let mut world = Self { core: Core::new(), seq: 0 };
        world.core.feed(Input::Opened { connection: CLIENT, default_directory: None });
        let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
        world.say(json!({ "id": 1, "method": "initialize", "params": hello }));
        world.say(json!({ "id": 2, "method": "createSession", "params": { "channel": SESSION } }));
        world.ask("subscribe");
        world
    }

    fn say(&mut self, message: Value) -> Vec<Value> {
        let outputs = self.core.feed_and_save(said(CLIENT, message));
        let told = outputs.into_iter().filter_map(|output| match output {
            Output::Frame(CLIENT, Frame::Action(action)) => Some(action.line),
            Output::Frame(CLIENT, Frame::Answer(line)) => Some(line),
            Output::Frame(CLIENT, Frame::Result { result, .. }) => Some(result),
            _ => None,
        });
        told.map(|line| serde_json::from_slice(&line).unwrap()).collect()
    }

    fn ask(&mut self, method: &str) -> Value {
        let params = json!({ "channel": annotations_uri(SESSION) });
        self.say(json!({ "id": 3, "method": method, "params": params })).pop().unwrap()
    }

    /// The annotations that there are.
    fn there(&mut self) -> Vec<Value> {
        let answer = self.ask("subscribe");
        answer["snapshot"]["state"]["annotations"].as_array().unwrap().clone()
    }

    /// Why an action is refused; none when it is not.
    fn dispatch(&mut self, action: Value) -> Option<String> {
        self.seq += 1;
        let params = json!({ "channel": annotations_uri(SESSION), "clientSeq": self.seq, "action": action });
        let told = self.say(json!({ "method": "dispatchAction", "params": params }));
        assert_eq!(told.len(), 1, "{told:?}");
        told[0]["params"]["rejectionReason"].as_str().map(str::to_owned)
    }

    #[track_caller]
    fn is_taken(&mut self, action: Value) {
        assert_eq!(self.dispatch(action), None);
    }

    #[track_caller]
    fn is_refused(&mut self, action: Value, why: &str) {
        assert_eq!(self.dispatch(action).as_deref(), Some(why));
    }
}

fn entry(id: &str, text: &str) -> Value {
    json!({ "id": id, "text": text })
}

fn set(id: &str, entries: &[Value]) -> Value {
    let annotation = json!({ "id": id, "origin": { "session": SESSION }, "resource": "file:///x", "resolved": false,
        "entries": entries });
    json!({ "type": "annotations/set", "annotation": annotation })
}

fn entry_set(id: &str, entry: Value) -> Value {
    json!({ "type": "annotations/entrySet", "annotationId": id, "entry": entry })
}

#[test]
fn a_session_has_1000_annotations() {
    let mut world = World::new();
    for number in 0..999 {
        world.is_taken(set(&number.to_string(), &[entry("e", "x")]));
    }
    world.is_taken(set("last", &[entry("e", "x")]));
    let full = "1000 annotations are in this session, which is all that it holds";
    world.is_refused(set("more", &[entry("e", "x")]), full);
    // One that is there may become another.
    world.is_taken(set("last", &[entry("e", "y")]));
    world.is_taken(json!({ "type": "annotations/removed", "annotationId": "5" }));
    world.is_taken(set("more", &[entry("e", "x")]));
    world.is_refused(set("5", &[entry("e", "x")]), full);
    assert_eq!(world.there().len(), 1000);
}

#[test]
fn an_annotation_has_100_entries() {
    let mut world = World::new();
    let entries = |count: usize| (0..count).map(|at| entry(&at.to_string(), "x")).collect::<Vec<_>>();
    world.is_taken(set("a", &entries(99)));
    world.is_taken(entry_set("a", entry("last", "x")));
    world.is_refused(entry_set("a", entry("more", "x")), "an annotation has at most 100 entries");
    world.is_taken(entry_set("a", entry("last", "y")));
    world.is_taken(set("b", &entries(100)));
    world.is_refused(set("b", &entries(101)), "an annotation has at most 100 entries");
    let counts: Vec<usize> = world.there().iter().map(|it| it["entries"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [100, 100]);
}

#[test]
fn an_entry_has_64_kib_of_text_and_an_id_256_bytes() {
    const MAX: usize = 64 << 10;
    let mut world = World::new();
    let text = |bytes: usize| "ä".repeat(bytes / 2) + &"x".repeat(bytes % 2);
    for bytes in [MAX - 1, MAX] {
        world.is_taken(set("a", &[entry("e", &text(bytes))]));
        world.is_taken(entry_set("a", json!({ "id": "m", "text": { "markdown": text(bytes) } })));
    }
    let large = "the text of the entry `e` has more than 65536 bytes";
    world.is_refused(set("a", &[entry("e", &text(MAX + 1))]), large);
    world.is_refused(entry_set("a", json!({ "id": "e", "text": { "markdown": text(MAX + 1) } })), large);
    for bytes in [255, 256] {
        world.is_taken(set(&"i".repeat(bytes), &[entry(&"j".repeat(bytes), "x")]));
        world.is_taken(entry_set("a", entry(&"j".repeat(bytes), "x")));
    }
    let long = |name: &str| format!("`{name}` must not be longer than 256 bytes");
    world.is_refused(set(&"i".repeat(257), &[entry("e", "x")]), &long("annotation.id"));
    world.is_refused(set("b", &[entry(&"j".repeat(257), "x")]), &long("entry.id"));
    world.is_refused(entry_set("a", entry(&"j".repeat(257), "x")), &long("entry.id"));
    let mut far = set("b", &[entry("e", "x")]);
    for (bytes, fits) in [(4095, true), (4096, true), (4097, false)] {
        far["annotation"]["resource"] = "r".repeat(bytes).into();
        assert_eq!(world.dispatch(far.clone()).is_none(), fits, "{bytes}");
    }
}

#[test]
fn all_annotations_of_a_session_have_4_mib() {
    const MAX: usize = 4 << 20;
    let mut world = World::new();
    let text = "x".repeat(60_000);
    for number in 0..69 {
        world.is_taken(set(&format!("a-{number}"), &[entry("e", &text)]));
    }
    let bytes = |world: &mut World| -> usize { world.there().iter().map(|it| it.to_string().len()).sum() };
    world.is_taken(set("last", &[entry("e", "")]));
    let room = MAX - bytes(&mut world);
    assert!(room < 60_000, "{room}");
    let full = "there is no room for it: the annotations of a session have at most 4 MiB";
    for (more, fits) in [(room - 1, true), (room, true), (room + 1, false)] {
        let said = set("last", &[entry("e", &"x".repeat(more))]);
        match fits {
            true => world.is_taken(said),
            false => world.is_refused(said, full),
        }
    }
    assert_eq!(bytes(&mut world), MAX);
    world.is_refused(set("more", &[entry("e", "")]), full);
    world.is_refused(entry_set("a-3", entry("f", "")), full);
    let resolved =
        |resolved| json!({ "type": "annotations/updated", "annotationId": "a-3", "resolved": resolved });
    // What is smaller than before has room.
    world.is_taken(resolved(true));
    world.is_taken(set("a-4", &[entry("e", "x")]));
    world.is_taken(entry_set("a-3", entry("f", "")));
    world.is_taken(resolved(false));
}
