//! Changesets, where a transcript cannot go: what follows from edits that an agent says in any order.
//!
//! Owns: a host in memory, an agent that says what a test has it say, and the mirrors of a client.
//! Never: touches a file.

use std::collections::BTreeMap;

use ahp::reducers::apply_action_to_changeset;
use ahp_sidecar::host::effects::{
    ChatKey, Command, ConnectionId, Event, FileTaken, Frame, Input, Output, Resource, RunId, TakenFile,
    ToolGate, ToolOutcome, TurnEnd, TurnEvent,
};
use ahp_sidecar::state::edits::inline;
use ahp_types::actions::ActionEnvelope;
use ahp_types::state::{
    ChangesetState, FileEditSide, Snapshot, SnapshotState, ToolResultContent, ToolResultFileEditContent,
};
use proptest::prelude::*;
use serde_json::{json, Value};

use crate::support::core::{opened, said, Core, CHAT, SESSION};

const CLIENT: ConnectionId = ConnectionId(1);
const OBSERVER: ConnectionId = ConnectionId(2);
const FORK: &str = "ahp-chat:/fork";

fn session_changes() -> String {
    format!("{SESSION}/changeset/session")
}

fn turn_changes(turn: &str) -> String {
    format!("{SESSION}/changeset/turn/{turn}")
}

struct World {
    core: Core,
    /// The agents' sides of the chats, by their URIs.
    chats: BTreeMap<&'static str, (ChatKey, RunId)>,
    outputs: Vec<Output>,
    calls: u32,
    seq: u32,
    /// What the client was told of the changesets that it follows, reduced.
    mirrors: BTreeMap<String, ChangesetState>,
    actions: Vec<Value>,
}

/// What is in files, by their names.
struct Disk(BTreeMap<&'static str, &'static str>);

impl Disk {
    /// As who works with files does it.
    fn take_back(&mut self, file: &TakenFile) -> FileTaken {
        let name = file.uri().strip_prefix("file:///w/").unwrap();
        let found = self.0.get(name).map(|text| (*text).to_owned());
        let (now, wanted) = (file.now.clone().unwrap(), file.wanted.clone().unwrap());
        if found != now && found != wanted {
            return FileTaken::Refused("changed".to_owned());
        }
        match wanted {
            Some(text) => self.0.insert(name.to_owned().leak(), text.leak()),
            None => self.0.remove(name),
        };
        FileTaken::Done { bytes: None }
    }
}

/// An edit of a file: its name, what was in it and what is in it; nothing where it was not or is not there.
type Edit<'a> = (&'a str, &'a str, &'a str);

fn edit((name, before, after): Edit<'_>) -> ToolResultContent {
    let side = |text: &str| {
        let (uri, content) = (format!("file:///w/{name}"), inline(text));
        (!text.is_empty()).then_some(FileEditSide { uri, content })
    };
    let (before, after) = (side(before), side(after));
    ToolResultContent::FileEdit(ToolResultFileEditContent { before, after, diff: None })
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            core: Core::new(),
            chats: BTreeMap::new(),
            outputs: Vec::new(),
            calls: 0,
            seq: 0,
            mirrors: BTreeMap::new(),
            actions: Vec::new(),
        };
        for (connection, client) in [(CLIENT, "me"), (OBSERVER, "other")] {
            world.feed(Input::Opened { connection, default_directory: None });
            let hello =
                json!({ "channel": "ahp-root://", "clientId": client, "protocolVersions": ["1.0.0"] });
            world.feed(said(connection, json!({ "id": 1, "method": "initialize", "params": hello })));
        }
        world.say(json!({ "id": 2, "method": "createSession", "params": { "channel": SESSION } }));
        let chat = opened(&world.outputs);
        world.chats.insert(CHAT, (chat, RunId(0)));
        world.feed(Input::Agent(chat, Event::Opened));
        world.outputs.clear();
        world
    }

    fn feed(&mut self, input: Input) {
        self.outputs.extend(self.core.feed(input));
    }

    fn say(&mut self, message: Value) {
        self.feed(said(CLIENT, message));
    }

    fn dispatch(&mut self, channel: &str, action: &Value) {
        self.seq += 1;
        let params = json!({ "channel": channel, "clientSeq": self.seq, "action": action });
        self.say(json!({ "method": "dispatchAction", "params": params }));
    }

    fn start(&mut self, chat: &'static str, turn: &str) {
        self.hear();
        let message = json!({ "text": "go", "origin": { "kind": "user" } });
        self.dispatch(chat, &json!({ "type": "chat/turnStarted", "turnId": turn, "message": message }));
        if !self.chats.contains_key(chat) {
            let key = opened(&self.outputs);
            self.chats.insert(chat, (key, RunId(0)));
            self.feed(Input::Agent(key, Event::Opened));
        }
        let started = self.outputs.iter().rev().find_map(|output| match output {
            Output::Agent(_, command) => match &**command {
                Command::StartTurn { run, .. } => Some(*run),
                _ => None,
            },
            _ => None,
        });
        let run = started.expect("the turn has started");
        self.chats.get_mut(chat).unwrap().1 = run;
    }

    fn report(&mut self, chat: &str, event: TurnEvent) {
        let (key, run) = self.chats[chat];
        self.feed(Input::Agent(key, Event::Turn(run, event)));
    }

    fn call(&mut self, chat: &str, success: bool, edits: &[Edit<'_>]) {
        self.calls += 1;
        let id = format!("call-{}", self.calls);
        let (name, display_name) = ("edit".to_owned(), "edit".to_owned());
        self.report(chat, TurnEvent::ToolStarted { id: id.clone(), name, display_name });
        let (input, message) = ("x".to_owned(), "x".into());
        self.report(chat, TurnEvent::ToolReady { id: id.clone(), input, message, gate: ToolGate::Open });
        let content = edits.iter().map(|it| edit(*it)).collect();
        let outcome = ToolOutcome { success, message: "x".into(), content, error: None };
        self.report(chat, TurnEvent::ToolDone { id, outcome, review: false });
    }

    fn end(&mut self, chat: &str) {
        self.report(chat, TurnEvent::Ended(TurnEnd::Complete));
    }

    /// A turn with one call.
    fn turn(&mut self, chat: &'static str, turn: &str, edits: &[Edit<'_>]) {
        self.start(chat, turn);
        self.call(chat, true, edits);
        self.end(chat);
    }

    /// Takes in what was put out.
    fn hear(&mut self) -> Vec<Value> {
        let outputs = std::mem::take(&mut self.outputs);
        let mut answers = Vec::new();
        for output in outputs {
            match output {
                Output::Frame(CLIENT, Frame::Action(action)) => {
                    let line: Value = serde_json::from_slice(&action.line).unwrap();
                    self.actions.push(line["params"].clone());
                    let channel = line["params"]["channel"].as_str().unwrap().to_owned();
                    if let Some(mirror) = self.mirrors.get_mut(&channel) {
                        let envelope: ActionEnvelope =
                            serde_json::from_value(line["params"].clone()).unwrap();
                        apply_action_to_changeset(mirror, &envelope.action);
                    }
                }
                Output::Frame(CLIENT, Frame::Answer(line)) => {
                    let line: Value = serde_json::from_slice(&line).unwrap();
                    self.actions.push(line["params"].clone());
                }
                Output::Frame(_, Frame::Notification { method, params }) => {
                    let params: Value = serde_json::from_slice(&params).unwrap();
                    self.actions.push(json!({ "notification": method, "params": params }));
                }
                Output::Frame(_, Frame::Result { result, .. }) => {
                    answers.push(serde_json::from_slice(&result).unwrap());
                }
                Output::Frame(_, Frame::Error { error, .. }) => answers.push(json!({ "error": error.code })),
                _ => {}
            }
        }
        answers
    }

    /// Has somebody subscribe, and tells what is answered.
    fn subscribe(&mut self, connection: ConnectionId, channel: &str) -> Value {
        self.hear();
        self.feed(said(
            connection,
            json!({ "id": 4, "method": "subscribe", "params": { "channel": channel } }),
        ));
        self.hear().pop().unwrap()
    }

    /// The state of a changeset, as somebody sees it who has seen nothing before.
    fn fresh(&mut self, uri: &str) -> ChangesetState {
        let answer = self.subscribe(OBSERVER, uri);
        let unsubscribe = json!({ "method": "unsubscribe", "params": { "channel": uri } });
        self.feed(said(OBSERVER, unsubscribe));
        let Ok(read) = serde_json::from_value::<Snapshot>(answer["snapshot"].clone()) else {
            panic!("{uri}: {answer}")
        };
        let SnapshotState::Changeset(state) = read.state else { panic!("no changeset: {answer}") };
        *state
    }

    /// The client follows a changeset from now on.
    fn follow(&mut self, uri: &str) {
        let state = self.fresh(uri);
        self.subscribe(CLIENT, uri);
        self.mirrors.insert(uri.to_owned(), state);
    }

    /// What a changeset shows: of each file its name, its two contents and its counts. The mirror shows the same.
    fn files(&mut self, uri: &str) -> Vec<(String, String, String, (i64, i64))> {
        let state = self.fresh(uri);
        if let Some(mirror) = self.mirrors.get(uri) {
            assert_eq!(*mirror, state, "the mirror of {uri}");
        }
        let read = |world: &mut Self, side: Option<&FileEditSide>| match side {
            Some(side) => world.read(&side.content.uri),
            None => String::new(),
        };
        let files = state.files.iter().map(|file| {
            let diff = file.edit.diff.as_ref().unwrap();
            let (before, after) =
                (read(self, file.edit.before.as_ref()), read(self, file.edit.after.as_ref()));
            let name = file.id.strip_prefix("file:///w/").unwrap().to_owned();
            (name, before, after, (diff.added.unwrap(), diff.removed.unwrap()))
        });
        files.collect()
    }

    /// The content that a URI of the host's calls.
    fn read(&mut self, uri: &str) -> String {
        self.hear();
        let params = json!({ "channel": "ahp-root://", "uri": uri });
        self.feed(said(OBSERVER, json!({ "id": 5, "method": "resourceRead", "params": params })));
        let asked = self.outputs.iter().find_map(|output| match output {
            Output::Resource(_, _, resource) => Some(format!("{resource:?}")),
            _ => None,
        });
        let asked = asked.unwrap_or_else(|| panic!("{uri} is not there"));
        let encoded = asked.split("base64,").nth(1).unwrap().split('"').next().unwrap();
        let text = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, encoded).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// Has an operation carried out on these files; what is answered.
    fn invoke(&mut self, uri: &str, operation: &str, disk: &mut Disk) -> Value {
        self.hear();
        let params = json!({ "channel": uri, "operationId": operation });
        self.say(json!({ "id": 11, "method": "invokeChangesetOperation", "params": params }));
        let asked = self.outputs.iter().find_map(|output| match output {
            Output::Resource(connection, id, Resource::TakeBack { taken, .. }) => {
                Some((*connection, id.clone(), taken.clone()))
            }
            _ => None,
        });
        if let Some((connection, id, taken)) = asked {
            let outcomes = taken.files.iter().map(|file| disk.take_back(file)).collect();
            self.feed(Input::TakenBack { connection, id, taken, outcomes });
        }
        self.hear().pop().unwrap()
    }

    /// The operations that a changeset offers.
    fn offered(&mut self, uri: &str) -> Vec<String> {
        let operations = self.fresh(uri).operations.into_iter().flatten();
        operations.map(|operation| operation.id).collect()
    }

    /// How much was changed, as the row of the chat says it.
    fn told_changes(&mut self) -> Value {
        self.feed(Input::Settled);
        self.hear();
        self.say(json!({ "id": 6, "method": "subscribe", "params": { "channel": SESSION } }));
        let state = self.hear().pop().unwrap();
        self.say(json!({ "method": "unsubscribe", "params": { "channel": SESSION } }));
        state["snapshot"]["state"]["chats"][0]["changes"].clone()
    }
}

#[test]
fn a_turn_and_its_session_show_what_calls_have_said() {
    let mut world = World::new();
    world.start(CHAT, "t1");
    world.follow(&turn_changes("t1"));
    world.follow(&session_changes());
    assert_eq!(world.files(&turn_changes("t1")), []);
    assert_eq!(
        world.fresh(&turn_changes("t1")).status.clone(),
        serde_json::from_value(json!("computing")).unwrap()
    );
    world.call(CHAT, true, &[("b", "1\n", "2\n"), ("a", "", "x\ny\n")]);
    // What has failed has changed nothing.
    world.call(CHAT, false, &[("c", "", "x\n")]);
    let first = [
        ("b".to_owned(), "1\n".to_owned(), "2\n".to_owned(), (1, 1)),
        ("a".to_owned(), String::new(), "x\ny\n".to_owned(), (2, 0)),
    ];
    assert_eq!(world.files(&turn_changes("t1")), first);
    world.call(CHAT, true, &[("b", "2\n", "2\n3\n"), ("a", "x\ny\n", "")]);
    let b = [("b".to_owned(), "1\n".to_owned(), "2\n3\n".to_owned(), (2, 1))];
    assert_eq!(world.files(&turn_changes("t1")), b);
    assert_eq!(world.files(&session_changes()), b);
    world.end(CHAT);
    assert_eq!(world.files(&turn_changes("t1")), b);
    assert_eq!(json!(world.fresh(&turn_changes("t1")).status), "ready");
    world.turn(CHAT, "t2", &[("b", "2\n3\n", "3\n")]);
    assert_eq!(world.files(&turn_changes("t1")), b);
    let second = ("b".to_owned(), "2\n3\n".to_owned(), "3\n".to_owned(), (0, 1));
    assert_eq!(world.files(&turn_changes("t2")), [second]);
    let both = ("b".to_owned(), "1\n".to_owned(), "3\n".to_owned(), (1, 1));
    assert_eq!(world.files(&session_changes()), [both]);
    assert_eq!(world.told_changes(), json!({ "additions": 1, "deletions": 1, "files": 1 }));
}

#[test]
fn changesets_are_offered_from_the_first_edit_on() {
    let mut world = World::new();
    world.subscribe(CLIENT, SESSION);
    world.subscribe(CLIENT, CHAT);
    world.turn(CHAT, "t1", &[]);
    world.hear();
    assert!(!world.actions.iter().any(|action| action.to_string().contains("changeset")));
    world.turn(CHAT, "t2", &[("a", "", "x\n")]);
    world.turn(CHAT, "t3", &[("a", "x\n", "y\n")]);
    world.hear();
    let rows = |world: &World, name: &str| -> Vec<Value> {
        let of_name = world.actions.iter().filter(|action| action["action"]["type"] == name);
        of_name.flat_map(|action| action["action"]["changesets"].as_array().unwrap().clone()).collect()
    };
    let kinds = |rows: &[Value]| -> Vec<Value> { rows.iter().map(|row| row["changeKind"].clone()).collect() };
    let session = rows(&world, "session/changesetsChanged");
    assert_eq!(kinds(&session), ["session", "turn"]);
    assert_eq!(session[0]["uriTemplate"], session_changes());
    assert_eq!(session[1]["uriTemplate"], turn_changes("{turnId}"));
    assert_eq!(kinds(&rows(&world, "chat/changesetsChanged")), ["turn"]);
    // Each of them is told what it comes to.
    let updated = world.actions.iter().filter(|it| it["action"]["type"] == "session/chatUpdated");
    let changes: Vec<Value> = updated.map(|it| it["action"]["changes"]["changes"].clone()).collect();
    assert!(changes.contains(&json!({ "additions": 1, "deletions": 0, "files": 1 })), "{changes:?}");
}

#[test]
fn a_turn_whose_changes_nobody_knows_is_never_ready_and_empty() {
    let mut world = World::new();
    world.turn(CHAT, "t1", &[]);
    let state = world.fresh(&turn_changes("t1"));
    assert_eq!((json!(state.status), state.files.len()), (json!("error"), 0));
    assert_eq!(state.error.unwrap().error_type, "changesUnknown");
    world.start(CHAT, "t2");
    world.end(CHAT);
    let state = world.fresh(&turn_changes("t2"));
    assert_eq!((json!(state.status), state.error), (json!("ready"), None));
    // Here a call says something, though it comes to nothing.
    world.turn(CHAT, "t3", &[("a", "", "1\n"), ("a", "1\n", "")]);
    let state = world.fresh(&turn_changes("t3"));
    assert_eq!((json!(state.status), state.files.len()), (json!("ready"), 0));
    assert_eq!(world.subscribe(CLIENT, &turn_changes("none")), json!({ "error": -32008 }));
    assert_eq!(world.subscribe(CLIENT, "ahp-session:/none/changeset/session"), json!({ "error": -32008 }));
}

#[test]
fn nothing_is_done_for_a_session_that_is_gone() {
    let (mut world, mut disk) = (World::new(), Disk(BTreeMap::new()));
    world.turn(CHAT, "t1", &[("a", "", "1\n")]);
    world.say(json!({ "id": 7, "method": "disposeSession", "params": { "channel": SESSION } }));
    for uri in [session_changes(), turn_changes("t1")] {
        assert_eq!(world.invoke(&uri, "discard-changes", &mut disk), json!({ "error": -32001 }), "{uri}");
    }
}

#[test]
fn turns_that_are_removed_take_their_changes_along() {
    let mut world = World::new();
    world.turn(CHAT, "t1", &[("a", "", "1\n")]);
    world.turn(CHAT, "t2", &[("a", "1\n", "2\n"), ("b", "", "2\n")]);
    world.follow(&session_changes());
    world.follow(&turn_changes("t2"));
    world.dispatch(CHAT, &json!({ "type": "chat/truncated", "turnId": "t1" }));
    let a = ("a".to_owned(), String::new(), "1\n".to_owned(), (1, 0));
    assert_eq!(world.files(&session_changes()), [a]);
    assert_eq!(world.told_changes(), json!({ "additions": 1, "deletions": 0, "files": 1 }));
    let cleared = json!({ "type": "changeset/cleared" });
    assert!(world.actions.iter().any(|it| it["channel"] == turn_changes("t2") && it["action"] == cleared));
    assert_eq!(world.subscribe(CLIENT, &turn_changes("t2")), json!({ "error": -32008 }));
    world.dispatch(CHAT, &json!({ "type": "chat/truncated" }));
    assert_eq!(world.files(&session_changes()), []);
    assert_eq!(world.told_changes(), json!({ "additions": 0, "deletions": 0, "files": 0 }));
}

#[test]
fn a_turn_that_a_fork_has_too_counts_once() {
    let mut world = World::new();
    world.turn(CHAT, "t1", &[("a", "", "1\n")]);
    world.turn(CHAT, "t2", &[("a", "1\n", "2\n")]);
    world.follow(&session_changes());
    let source = json!({ "kind": "fork", "chat": CHAT, "turnId": "t1" });
    let params = json!({ "channel": SESSION, "chat": FORK, "source": source });
    world.say(json!({ "id": 7, "method": "createChat", "params": params }));
    let a = ("a".to_owned(), String::new(), "2\n".to_owned(), (1, 0));
    assert_eq!(world.files(&session_changes()), [a]);
    // It goes on by itself, and what each of the two does is told apart.
    world.start(CHAT, "t3");
    world.start(FORK, "t4");
    world.call(CHAT, true, &[("b", "", "3\n")]);
    world.call(FORK, true, &[("c", "", "4\n")]);
    let new = |name: &str, text: &str| (name.to_owned(), String::new(), text.to_owned(), (1, 0));
    assert_eq!(world.files(&turn_changes("t3")), [new("b", "3\n")]);
    assert_eq!(world.files(&turn_changes("t4")), [new("c", "4\n")]);
    assert_eq!(world.files(&session_changes()), [new("a", "2\n"), new("b", "3\n"), new("c", "4\n")]);
    world.end(CHAT);
    world.end(FORK);
    let dispose = json!({ "channel": FORK });
    world.say(json!({ "id": 8, "method": "disposeChat", "params": dispose }));
    assert_eq!(world.files(&session_changes()), [new("a", "2\n"), new("b", "3\n")]);
}

#[test]
fn a_file_stays_reviewed_until_it_is_changed_again() {
    let mut world = World::new();
    world.turn(CHAT, "t1", &[("a", "", "1\n"), ("b", "", "1\n")]);
    world.follow(&session_changes());
    let review = |files: Value, reviewed: bool| json!({ "type": "changeset/filesReviewChanged", "files": files, "reviewed": reviewed });
    let marks = |world: &mut World| {
        world.files(&session_changes());
        let files = world.fresh(&session_changes()).files;
        files.iter().map(|file| file.reviewed == Some(true)).collect::<Vec<_>>()
    };
    world.dispatch(&session_changes(), &review(json!(["file:///w/a", "file:///w/none"]), true));
    assert_eq!(marks(&mut world), [true, false]);
    world.dispatch(&session_changes(), &review(json!(["file:///w/none"]), true));
    world.hear();
    let refused = world.actions.last().unwrap();
    assert_eq!(refused["rejectionReason"], "`files` names none that is in the changeset");
    world.turn(CHAT, "t2", &[("b", "1\n", "2\n")]);
    assert_eq!(marks(&mut world), [true, false]);
    world.dispatch(&session_changes(), &review(json!(["file:///w/b"]), true));
    assert_eq!(marks(&mut world), [true, true]);
    world.turn(CHAT, "t3", &[("a", "1\n", "2\n")]);
    assert_eq!(marks(&mut world), [false, true]);
    // What has fallen stays so, also when the file is again what it was.
    world.dispatch(CHAT, &json!({ "type": "chat/truncated", "turnId": "t2" }));
    assert_eq!(marks(&mut world), [false, true]);
    world.dispatch(&session_changes(), &review(json!(["file:///w/b"]), false));
    assert_eq!(marks(&mut world), [false, false]);
}

#[test]
fn a_client_that_comes_back_is_told_what_it_missed_of_a_changeset() {
    let mut world = World::new();
    world.start(CHAT, "t1");
    world.call(CHAT, true, &[("a", "", "1\n")]);
    world.follow(&session_changes());
    world.hear();
    let seen = world.actions.iter().filter_map(|action| action["serverSeq"].as_u64()).max();
    let head = world.subscribe(OBSERVER, &session_changes())["snapshot"]["fromSeq"].as_u64();
    let seen = seen.max(head).unwrap();
    world.feed(Input::Closed(CLIENT));
    world.call(CHAT, true, &[("b", "", "2\n")]);
    world.hear();
    world.feed(Input::Opened { connection: CLIENT, default_directory: None });
    let params = json!({ "channel": "ahp-root://", "clientId": "me", "lastSeenServerSeq": seen,
        "subscriptions": [session_changes()] });
    world.say(json!({ "id": 9, "method": "reconnect", "params": params }));
    let answer = world.hear().pop().unwrap();
    assert_eq!(answer["type"], "replay", "{answer}");
    for envelope in answer["actions"].as_array().unwrap() {
        let envelope: ActionEnvelope = serde_json::from_value(envelope.clone()).unwrap();
        apply_action_to_changeset(world.mirrors.get_mut(&session_changes()).unwrap(), &envelope.action);
    }
    assert_eq!(world.files(&session_changes()).len(), 2);
}

#[test]
fn what_was_changed_is_taken_back_and_that_too() {
    let mut world = World::new();
    world.turn(CHAT, "t1", &[("a", "", "1\n"), ("b", "1\n", "2\n")]);
    world.turn(CHAT, "t2", &[("b", "2\n", "3\n"), ("c", "1\n", "")]);
    let mut disk = Disk(BTreeMap::from([("a", "1\n"), ("b", "3\n")]));
    let changed = disk.0.clone();
    world.follow(&session_changes());
    world.follow(&turn_changes("t1"));
    world.follow(&turn_changes("t2"));
    let before = world.files(&session_changes());
    assert_eq!(world.offered(&session_changes()), ["discard-changes"]);
    // The last turn.
    assert_eq!(world.invoke(&turn_changes("t2"), "discard-changes", &mut disk), json!({}));
    assert_eq!(disk.0, BTreeMap::from([("a", "1\n"), ("b", "2\n"), ("c", "1\n")]));
    assert_eq!(world.files(&turn_changes("t2")), []);
    assert_eq!(world.files(&session_changes()).len(), 2);
    assert_eq!(world.files(&turn_changes("t1")).len(), 2);
    assert_eq!(world.offered(&turn_changes("t2")), ["restore-changes"]);
    // Then all of the session.
    assert_eq!(world.invoke(&session_changes(), "discard-changes", &mut disk), json!({}));
    assert_eq!(disk.0, BTreeMap::from([("b", "1\n"), ("c", "1\n")]));
    assert_eq!(world.files(&session_changes()), []);
    assert_eq!(world.told_changes(), json!({ "additions": 0, "deletions": 0, "files": 0 }));
    // And all of it back, in the other order.
    assert_eq!(world.invoke(&session_changes(), "restore-changes", &mut disk), json!({}));
    assert_eq!(world.invoke(&turn_changes("t2"), "restore-changes", &mut disk), json!({}));
    assert_eq!(disk.0, changed);
    assert_eq!(world.files(&session_changes()), before);
    assert_eq!(world.offered(&session_changes()), ["discard-changes"]);
}

#[test]
fn what_was_changed_since_stays() {
    let mut world = World::new();
    world.turn(CHAT, "t1", &[("a", "", "1\n"), ("b", "1\n", "2\n")]);
    world.follow(&session_changes());
    let mut disk = Disk(BTreeMap::from([("a", "1\n"), ("b", "mine\n")]));
    let answer = world.invoke(&session_changes(), "discard-changes", &mut disk);
    assert_eq!(answer["message"], "some files stay as they are: `file:///w/b`: changed");
    assert_eq!(disk.0, BTreeMap::from([("b", "mine\n")]));
    let files = world.files(&session_changes());
    assert_eq!(files.iter().map(|it| it.0.as_str()).collect::<Vec<_>>(), ["b"]);
    let answer = world.invoke(&session_changes(), "discard-changes", &mut disk);
    assert_eq!(answer, json!({ "error": -32011 }));
    // What an agent does behind it counts from what is there.
    world.turn(CHAT, "t2", &[("a", "", "5\n")]);
    let a = ("a".to_owned(), String::new(), "5\n".to_owned(), (1, 0));
    assert!(world.files(&session_changes()).contains(&a));
    // What was taken back goes with its turns.
    world.dispatch(CHAT, &json!({ "type": "chat/truncated" }));
    assert_eq!(world.files(&session_changes()), []);
}

#[test]
fn nothing_is_taken_back_while_a_turn_runs_and_nothing_twice() {
    let mut world = World::new();
    world.turn(CHAT, "t1", &[("a", "", "1\n")]);
    world.follow(&session_changes());
    world.follow(&turn_changes("t1"));
    let mut disk = Disk(BTreeMap::from([("a", "1\n")]));
    world.start(CHAT, "t2");
    assert_eq!(world.offered(&session_changes()), [""; 0]);
    let refused = json!({ "error": -32602 });
    assert_eq!(world.invoke(&session_changes(), "discard-changes", &mut disk), refused);
    world.end(CHAT);
    // Both ask before either is answered.
    let ask = |world: &mut World, uri: &str| {
        let params = json!({ "channel": uri, "operationId": "discard-changes" });
        world.say(json!({ "id": 12, "method": "invokeChangesetOperation", "params": params }));
    };
    world.hear();
    ask(&mut world, &session_changes());
    ask(&mut world, &session_changes());
    let asked: Vec<Output> = std::mem::take(&mut world.outputs);
    let mut begun = 0;
    for output in asked {
        let Output::Resource(connection, id, Resource::TakeBack { taken, .. }) = output else { continue };
        begun += 1;
        let outcomes = taken.files.iter().map(|file| disk.take_back(file)).collect();
        world.feed(Input::TakenBack { connection, id, taken, outcomes });
        // The other one has waited for it, and finds nothing left to be done.
        assert_eq!(world.hear(), [json!({}), refused.clone()]);
    }
    assert_eq!(begun, 1);
    assert_eq!(world.files(&session_changes()), []);
    assert_eq!(world.invoke(&session_changes(), "restore-changes", &mut disk), json!({}));
    assert_eq!(world.invoke(&session_changes(), "restore-changes", &mut disk), refused);
    assert_eq!(disk.0, BTreeMap::from([("a", "1\n")]));
    assert_eq!(world.files(&session_changes()).len(), 1);
}

/// What may happen in a session of two chats.
#[derive(Debug, Clone)]
enum Step {
    Edit { chat: usize, file: usize, after: usize },
    Turn { chat: usize },
    Cut { chat: usize, turns: usize },
    Review { file: usize, reviewed: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..2_usize, 0..3_usize, 0..4_usize)
            .prop_map(|(chat, file, after)| Step::Edit { chat, file, after }),
        3 => (0..2_usize).prop_map(|chat| Step::Turn { chat }),
        1 => (0..2_usize, 0..3_usize).prop_map(|(chat, turns)| Step::Cut { chat, turns }),
        2 => (0..3_usize, any::<bool>()).prop_map(|(file, reviewed)| Step::Review { file, reviewed }),
    ];
    prop::collection::vec(step, 1..25)
}

/// A turn, and its edits: which file, from which text to which.
type ModelTurn = (String, Vec<(usize, usize, usize)>);

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whoever applies what is told has what a fresh state shows, and that is what a model of the files says.
    #[test]
    fn a_mirror_of_a_changeset_is_what_the_files_are(steps in steps()) {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        const TEXTS: [&str; 4] = ["", "1\n", "1\n2\n", "3\n"];
        const CHATS: [&str; 2] = [CHAT, FORK];
        let mut world = World::new();
        let params = json!({ "channel": SESSION, "chat": FORK });
        world.say(json!({ "id": 3, "method": "createChat", "params": params }));
        world.follow(&session_changes());
        let mut turns: [Vec<ModelTurn>; 2] = Default::default();
        let mut now = [0_usize; 3];
        let mut count = 0;
        let mut cut = false;
        for chat in 0..2 {
            count += 1;
            let id = format!("t{count}");
            world.start(CHATS[chat], &id);
            world.follow(&turn_changes(&id));
            turns[chat].push((id, Vec::new()));
        }
        for step in steps {
            match step {
                Step::Edit { chat, file, after } => {
                    if now[file] == after { continue; }
                    world.call(CHATS[chat], true, &[(NAMES[file], TEXTS[now[file]], TEXTS[after])]);
                    turns[chat].last_mut().unwrap().1.push((file, now[file], after));
                    now[file] = after;
                }
                Step::Turn { chat } => {
                    world.end(CHATS[chat]);
                    count += 1;
                    let id = format!("t{count}");
                    world.start(CHATS[chat], &id);
                    world.follow(&turn_changes(&id));
                    turns[chat].push((id, Vec::new()));
                }
                Step::Cut { chat, turns: kept } => {
                    let kept = kept.min(turns[chat].len() - 1);
                    let mut action = json!({ "type": "chat/truncated" });
                    if kept > 0 { action["turnId"] = json!(turns[chat][kept - 1].0); }
                    world.hear();
                    for (id, _) in turns[chat].drain(kept..) { world.mirrors.remove(&turn_changes(&id)); }
                    world.dispatch(CHATS[chat], &action);
                    let (key, run) = world.chats[CHATS[chat]];
                    world.feed(Input::Agent(key, Event::Turn(run, TurnEvent::Ended(TurnEnd::Cancelled))));
                    world.chats.remove(CHATS[chat]);
                    count += 1;
                    let id = format!("t{count}");
                    world.start(CHATS[chat], &id);
                    turns[chat].push((id, Vec::new()));
                    cut = true;
                }
                Step::Review { file, reviewed } => {
                    let files = json!([format!("file:///w/{}", NAMES[file])]);
                    let action = json!({ "type": "changeset/filesReviewChanged", "files": files, "reviewed": reviewed });
                    world.dispatch(&session_changes(), &action);
                }
            }
            world.hear();
            for of_chat in &turns {
                for (id, edits) in of_chat {
                    let mut net: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
                    for (file, before, after) in edits {
                        net.entry(*file).and_modify(|it| it.1 = *after).or_insert((*before, *after));
                    }
                    net.retain(|_, (before, after)| before != after);
                    let mut shown = world.files(&turn_changes(id));
                    shown.sort();
                    let shown: Vec<_> = shown.into_iter().map(|(name, before, after, _)| (name, before, after)).collect();
                    let wanted: Vec<_> = net.into_iter().map(|(file, (before, after))| {
                        (NAMES[file].to_owned(), TEXTS[before].to_owned(), TEXTS[after].to_owned())
                    }).collect();
                    prop_assert_eq!(shown, wanted);
                }
            }
            let mut shown: Vec<_> = world.files(&session_changes()).into_iter().map(|it| (it.0, it.1, it.2)).collect();
            shown.sort();
            // Turns that are gone take their edits along, so only without that is it what the files are.
            if !cut {
                let wanted: Vec<_> = (0..3).filter(|file| now[*file] != 0).map(|file| {
                    (NAMES[file].to_owned(), String::new(), TEXTS[now[file]].to_owned())
                }).collect();
                prop_assert_eq!(shown, wanted);
            }
        }
    }
}
