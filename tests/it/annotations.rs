//! Annotations, where a transcript cannot go: as many and as large as there may be.
//!
//! Owns: a host in memory, and what it says to one client of what it asks for.
//! Never: repeats what transcripts show.

use ahp_sidecar::host::effects::ConnectionId;
use ahp_sidecar::wire::annotations::annotations_uri;
use serde_json::{json, Value};

use crate::support::core::{Core, SESSION};
use crate::support::world::World;

const CLIENT: ConnectionId = ConnectionId(1);

/// A session whose annotations a client follows.
struct Annotated {
    world: World,
}

impl Annotated {
    fn new() -> Self {
        let mut world = World::saving(Core::new());
        world.arrive(CLIENT, "me");
        world.create_session(CLIENT);
        world.subscribe(CLIENT, &annotations_uri(SESSION));
        Self { world }
    }

    /// The annotations that there are.
    fn there(&mut self) -> Vec<Value> {
        self.world.state(CLIENT, &annotations_uri(SESSION))["annotations"].as_array().unwrap().clone()
    }

    /// Why an action is refused; none when it is not. The client is told of it once.
    fn dispatch(&mut self, action: Value) -> Option<String> {
        self.world.take();
        let refused = self.world.dispatch(CLIENT, &annotations_uri(SESSION), action);
        let told = self.world.actions(CLIENT);
        assert_eq!(told.len(), 1, "{told:?}");
        refused
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
fn annotations_per_session_are_limited_to_1000() {
    let mut session = Annotated::new();
    for number in 0..999 {
        session.is_taken(set(&number.to_string(), &[entry("e", "x")]));
    }
    session.is_taken(set("last", &[entry("e", "x")]));
    let full = "this session has 1000 annotations already, the maximum";
    session.is_refused(set("more", &[entry("e", "x")]), full);
    // One that is there may become another.
    session.is_taken(set("last", &[entry("e", "y")]));
    session.is_taken(json!({ "type": "annotations/removed", "annotationId": "5" }));
    session.is_taken(set("more", &[entry("e", "x")]));
    session.is_refused(set("5", &[entry("e", "x")]), full);
    assert_eq!(session.there().len(), 1000);
}

#[test]
fn entries_per_annotation_are_limited_to_100() {
    let mut session = Annotated::new();
    let entries = |count: usize| (0..count).map(|at| entry(&at.to_string(), "x")).collect::<Vec<_>>();
    session.is_taken(set("a", &entries(99)));
    session.is_taken(entry_set("a", entry("last", "x")));
    session.is_refused(entry_set("a", entry("more", "x")), "an annotation has at most 100 entries");
    session.is_taken(entry_set("a", entry("last", "y")));
    session.is_taken(set("b", &entries(100)));
    session.is_refused(set("b", &entries(101)), "an annotation has at most 100 entries");
    let counts: Vec<usize> =
        session.there().iter().map(|it| it["entries"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [100, 100]);
}

#[test]
fn annotation_range_must_be_nonnegative_and_ordered() {
    let mut session = Annotated::new();
    let range = |[line, character, to_line, to]: [i64; 4]| {
        let (start, end) =
            (json!({ "line": line, "character": character }), json!({ "line": to_line, "character": to }));
        let mut action = set("b", &[entry("e", "x")]);
        action["annotation"]["range"] = json!({ "start": start, "end": end });
        action
    };
    for of in [[-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 1, -1], [2, 0, 1, 0], [1, 2, 1, 1]] {
        session.is_refused(range(of), "`range` begins before the file does, or ends before it begins");
    }
    session.is_taken(range([1, 2, 1, 2]));
    session.is_taken(range([1, 2, 2, 0]));
}

#[test]
fn entry_text_is_limited_to_64_kib_and_ids_to_256_bytes() {
    const MAX: usize = 64 << 10;
    let mut session = Annotated::new();
    let text = |bytes: usize| "ä".repeat(bytes / 2) + &"x".repeat(bytes % 2);
    for bytes in [MAX - 1, MAX] {
        session.is_taken(set("a", &[entry("e", &text(bytes))]));
        session.is_taken(entry_set("a", json!({ "id": "m", "text": { "markdown": text(bytes) } })));
    }
    let large = "the text of the entry `e` has more than 65536 bytes";
    session.is_refused(set("a", &[entry("e", &text(MAX + 1))]), large);
    session.is_refused(entry_set("a", json!({ "id": "e", "text": { "markdown": text(MAX + 1) } })), large);
    for bytes in [255, 256] {
        session.is_taken(set(&"i".repeat(bytes), &[entry(&"j".repeat(bytes), "x")]));
        session.is_taken(entry_set("a", entry(&"j".repeat(bytes), "x")));
    }
    let long = |name: &str| format!("`{name}` must not be longer than 256 bytes");
    session.is_refused(set(&"i".repeat(257), &[entry("e", "x")]), &long("annotation.id"));
    session.is_refused(set("b", &[entry(&"j".repeat(257), "x")]), &long("entry.id"));
    session.is_refused(entry_set("a", entry(&"j".repeat(257), "x")), &long("entry.id"));
    let mut far = set("b", &[entry("e", "x")]);
    for (bytes, fits) in [(4095, true), (4096, true), (4097, false)] {
        far["annotation"]["resource"] = "r".repeat(bytes).into();
        assert_eq!(session.dispatch(far.clone()).is_none(), fits, "{bytes}");
    }
}

#[test]
fn annotations_of_a_session_are_limited_to_4_mib() {
    const MAX: usize = 4 << 20;
    let mut session = Annotated::new();
    let text = "x".repeat(60_000);
    for number in 0..69 {
        session.is_taken(set(&format!("a-{number}"), &[entry("e", &text)]));
    }
    let bytes =
        |session: &mut Annotated| -> usize { session.there().iter().map(|it| it.to_string().len()).sum() };
    session.is_taken(set("last", &[entry("e", "")]));
    let room = MAX - bytes(&mut session);
    assert!(room < 60_000, "{room}");
    let full = "there is no room for it: the annotations of a session have at most 4 MiB";
    for (more, fits) in [(room - 1, true), (room, true), (room + 1, false)] {
        let said = set("last", &[entry("e", &"x".repeat(more))]);
        match fits {
            true => session.is_taken(said),
            false => session.is_refused(said, full),
        }
    }
    assert_eq!(bytes(&mut session), MAX);
    session.is_refused(set("more", &[entry("e", "")]), full);
    session.is_refused(entry_set("a-3", entry("f", "")), full);
    let resolved =
        |resolved| json!({ "type": "annotations/updated", "annotationId": "a-3", "resolved": resolved });
    // What is smaller than before has room.
    session.is_taken(resolved(true));
    session.is_taken(set("a-4", &[entry("e", "x")]));
    session.is_taken(entry_set("a-3", entry("f", "")));
    session.is_taken(resolved(false));
}
