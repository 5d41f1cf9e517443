//! Changesets, where a transcript cannot go: what follows from edits that an agent says in any
//! order.
//!
//! Owns: a host in memory, an agent that says what a test has it say, and the mirrors of a client.
//! Never: touches a file.

use std::collections::BTreeMap;

use ahp::reducers::apply_action_to_changeset;
use ahp_sidecar::host::effects::{
    ChatKey, ConnectionId, Event, FileRevert, Frame, Input, Output, Resource, RevertOutcome, RunId, ToolGate,
    ToolOutcome, TurnEnd, TurnEvent,
};
use ahp_sidecar::state::edits::inline;
use ahp_types::actions::ActionEnvelope;
use ahp_types::state::{
    ChangesetState, FileEditSide, Snapshot, SnapshotState, ToolResultContent, ToolResultFileEditContent,
};
use proptest::prelude::*;
use serde_json::{json, Value};

use crate::support::core::{Core, CHAT, SESSION};
use crate::support::world::{line, World, ROOT};

const CLIENT: ConnectionId = ConnectionId(1);
const OBSERVER: ConnectionId = ConnectionId(2);
const FORK: &str = "ahp-chat:/fork";

fn session_changes() -> String {
    format!("{SESSION}/changeset/session")
}

fn turn_changes(turn: &str) -> String {
    format!("{SESSION}/changeset/turn/{turn}")
}

/// The changesets of a session, a client that follows some of them, and somebody who looks at them.
struct Review {
    world: World,
    /// The agents' sides of the chats, by their URIs.
    chats: BTreeMap<&'static str, (ChatKey, RunId)>,
    calls: u32,
    /// Mirrors of the subscribed changesets, built by the reducers.
    mirrors: BTreeMap<String, ChangesetState>,
    /// Actions received by the client.
    actions: Vec<Value>,
}

/// Contents of the files on disk, by name.
struct Disk(BTreeMap<&'static str, &'static str>);

impl Disk {
    /// As who works with files does it.
    fn revert(&mut self, file: &FileRevert) -> RevertOutcome {
        let name = file.uri().strip_prefix("file:///w/").unwrap();
        let found = self.0.get(name).map(|text| (*text).to_owned());
        let (now, wanted) = (file.now.clone().unwrap(), file.wanted.clone().unwrap());
        if found == wanted {
            return RevertOutcome::Already;
        }
        if found != now {
            return RevertOutcome::Refused("changed".to_owned());
        }
        match wanted {
            Some(text) => self.0.insert(name.to_owned().leak(), text.leak()),
            None => self.0.remove(name),
        };
        RevertOutcome::Done { bytes: None, mode: None }
    }
}

/// An edit of a file: its name, what was in it and what is in it; nothing where it was not or is
/// not there.
type Edit<'a> = (&'a str, &'a str, &'a str);

fn edit((name, before, after): Edit<'_>) -> ToolResultContent {
    let side = |text: &str| {
        let (uri, content) = (format!("file:///w/{name}"), inline(text));
        (!text.is_empty()).then_some(FileEditSide { uri, content })
    };
    let (before, after) = (side(before), side(after));
    ToolResultContent::FileEdit(ToolResultFileEditContent { before, after, diff: None })
}

impl Review {
    fn new() -> Self {
        let mut world = World::new(Core::new());
        world.arrive(CLIENT, "me");
        world.arrive(OBSERVER, "other");
        let chats = BTreeMap::from([(CHAT, (world.open_session(CLIENT), RunId(0)))]);
        world.take();
        Self { world, chats, calls: 0, mirrors: BTreeMap::new(), actions: Vec::new() }
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value, i32> {
        self.world.ask(CLIENT, method, params).map_err(|error| error.code)
    }

    fn dispatch(&mut self, channel: &str, action: Value) -> Option<String> {
        self.world.dispatch(CLIENT, channel, action)
    }

    fn start(&mut self, chat: &'static str, turn: &str) {
        self.hear();
        self.world.start(CLIENT, chat, turn, "go");
        if !self.chats.contains_key(chat) {
            let key = self.world.opened();
            self.chats.insert(chat, (key, RunId(0)));
            self.world.agent(key, Event::Opened);
        }
        self.chats.get_mut(chat).unwrap().1 = self.world.started();
    }

    fn report(&mut self, chat: &str, event: TurnEvent) {
        let (key, run) = self.chats[chat];
        self.world.report(key, run, event);
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

    /// Takes in what was put out; what was answered.
    fn hear(&mut self) -> Vec<Result<Value, i64>> {
        let mut answers = Vec::new();
        for output in self.world.take() {
            let Output::Frame(to, frame) = output else { continue };
            let line = line(&frame);
            let params = &line["params"];
            if let Some(error) = line.get("error") {
                answers.push(Err(error["code"].as_i64().unwrap()));
            } else if let Some(result) = line.get("result") {
                answers.push(Ok(result.clone()));
            } else if line["method"] != "action" {
                self.actions.push(line);
            } else if to == CLIENT {
                let mirror = self.mirrors.get_mut(params["channel"].as_str().unwrap());
                // What is told to one client alone is no change.
                if let (Some(mirror), Frame::Action(_)) = (mirror, &frame) {
                    let envelope: ActionEnvelope = serde_json::from_value(params.clone()).unwrap();
                    apply_action_to_changeset(mirror, &envelope.action);
                }
                self.actions.push(params.clone());
            }
        }
        answers
    }

    /// The state of a changeset, as somebody sees it who has seen nothing before.
    fn fresh(&mut self, uri: &str) -> ChangesetState {
        self.hear();
        let snapshot = self.world.fresh(OBSERVER, uri).unwrap();
        let Ok(read) = serde_json::from_value::<Snapshot>(snapshot.clone()) else {
            panic!("{uri}: {snapshot}")
        };
        let SnapshotState::Changeset(state) = read.state else { panic!("no changeset: {snapshot}") };
        *state
    }

    /// The client follows a changeset from now on.
    fn follow(&mut self, uri: &str) {
        let state = self.fresh(uri);
        self.world.subscribe(CLIENT, uri);
        self.mirrors.insert(uri.to_owned(), state);
    }

    /// Why nobody can follow this channel: a code.
    fn refused(&mut self, uri: &str) -> i32 {
        self.ask("subscribe", json!({ "channel": uri })).unwrap_err()
    }

    /// Returns the files of a changeset, each with its name, both contents and its counts, after
    /// checking that the mirror shows the same.
    fn files(&mut self, uri: &str) -> Vec<(String, String, String, (i64, i64))> {
        let state = self.fresh(uri);
        if let Some(mirror) = self.mirrors.get(uri) {
            assert_eq!(*mirror, state, "the mirror of {uri}");
        }
        let read = |review: &mut Self, side: Option<&FileEditSide>| match side {
            Some(side) => review.read(&side.content.uri),
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
        self.world.request(OBSERVER, "resourceRead", json!({ "channel": ROOT, "uri": uri }));
        let asked = self.world.outputs.iter().find_map(|output| match output {
            Output::Resource(_, _, resource) => Some(format!("{resource:?}")),
            _ => None,
        });
        let asked = asked.unwrap_or_else(|| panic!("{uri} is not there"));
        let encoded = asked.split("base64,").nth(1).unwrap().split('"').next().unwrap();
        let text = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, encoded).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// Has an operation carried out on these files; what is answered.
    fn invoke(&mut self, uri: &str, operation: &str, disk: &mut Disk) -> Result<Value, i64> {
        self.hear();
        let params = json!({ "channel": uri, "operationId": operation });
        self.world.request(CLIENT, "invokeChangesetOperation", params);
        let asked = self.world.outputs.iter().find_map(|output| match output {
            Output::Resource(_, _, Resource::Revert { request: taken, .. }) => Some(taken.clone()),
            _ => None,
        });
        if let Some(taken) = asked {
            let outcomes = taken.files.iter().map(|file| disk.revert(file)).collect();
            self.world.feed(Input::Reverted { request: taken, outcomes });
        }
        self.hear().pop().unwrap()
    }

    /// The operations that a changeset offers.
    fn offered(&mut self, uri: &str) -> Vec<String> {
        let operations = self.fresh(uri).operations.into_iter().flatten();
        operations.map(|operation| operation.id).collect()
    }

    /// Returns the change counts in the row of the chat.
    fn change_counts(&mut self) -> Value {
        self.world.feed(Input::BatchEnded);
        self.world.fresh(CLIENT, SESSION).unwrap()["state"]["chats"][0]["changes"].take()
    }
}

#[test]
fn changesets_of_turn_and_session_contain_the_edits_of_calls() {
    let mut review = Review::new();
    review.start(CHAT, "t1");
    review.follow(&turn_changes("t1"));
    review.follow(&session_changes());
    assert_eq!(review.files(&turn_changes("t1")), []);
    assert_eq!(
        review.fresh(&turn_changes("t1")).status.clone(),
        serde_json::from_value(json!("computing")).unwrap()
    );
    review.call(CHAT, true, &[("b", "1\n", "2\n"), ("a", "", "x\ny\n")]);
    // What has failed has changed nothing.
    review.call(CHAT, false, &[("c", "", "x\n")]);
    let first = [
        ("b".to_owned(), "1\n".to_owned(), "2\n".to_owned(), (1, 1)),
        ("a".to_owned(), String::new(), "x\ny\n".to_owned(), (2, 0)),
    ];
    assert_eq!(review.files(&turn_changes("t1")), first);
    review.call(CHAT, true, &[("b", "2\n", "2\n3\n"), ("a", "x\ny\n", "")]);
    let b = [("b".to_owned(), "1\n".to_owned(), "2\n3\n".to_owned(), (2, 1))];
    assert_eq!(review.files(&turn_changes("t1")), b);
    assert_eq!(review.files(&session_changes()), b);
    review.end(CHAT);
    assert_eq!(review.files(&turn_changes("t1")), b);
    assert_eq!(json!(review.fresh(&turn_changes("t1")).status), "ready");
    review.turn(CHAT, "t2", &[("b", "2\n3\n", "3\n")]);
    assert_eq!(review.files(&turn_changes("t1")), b);
    let second = ("b".to_owned(), "2\n3\n".to_owned(), "3\n".to_owned(), (0, 1));
    assert_eq!(review.files(&turn_changes("t2")), [second]);
    let both = ("b".to_owned(), "1\n".to_owned(), "3\n".to_owned(), (1, 1));
    assert_eq!(review.files(&session_changes()), [both]);
    assert_eq!(review.change_counts(), json!({ "additions": 1, "deletions": 1, "files": 1 }));
}

#[test]
fn changesets_are_offered_from_the_first_edit_on() {
    let mut review = Review::new();
    review.world.subscribe(CLIENT, SESSION);
    review.world.subscribe(CLIENT, CHAT);
    review.turn(CHAT, "t1", &[]);
    review.hear();
    assert!(!review.actions.iter().any(|action| action.to_string().contains("changeset")));
    review.turn(CHAT, "t2", &[("a", "", "x\n")]);
    review.turn(CHAT, "t3", &[("a", "x\n", "y\n")]);
    review.hear();
    let rows = |review: &Review, name: &str| -> Vec<Value> {
        let of_name = review.actions.iter().filter(|action| action["action"]["type"] == name);
        of_name.flat_map(|action| action["action"]["changesets"].as_array().unwrap().clone()).collect()
    };
    let kinds = |rows: &[Value]| -> Vec<Value> { rows.iter().map(|row| row["changeKind"].clone()).collect() };
    let session = rows(&review, "session/changesetsChanged");
    assert_eq!(kinds(&session), ["session", "turn"]);
    assert_eq!(session[0]["uriTemplate"], session_changes());
    assert_eq!(session[1]["uriTemplate"], turn_changes("{turnId}"));
    assert_eq!(kinds(&rows(&review, "chat/changesetsChanged")), ["turn"]);
    // Each of them is told what it comes to.
    let updated = review.actions.iter().filter(|it| it["action"]["type"] == "session/chatUpdated");
    let changes: Vec<Value> = updated.map(|it| it["action"]["changes"]["changes"].clone()).collect();
    assert!(changes.contains(&json!({ "additions": 1, "deletions": 0, "files": 1 })), "{changes:?}");
}

#[test]
fn changeset_of_a_turn_with_unknown_changes_is_an_error() {
    let mut review = Review::new();
    review.turn(CHAT, "t1", &[]);
    let state = review.fresh(&turn_changes("t1"));
    assert_eq!((json!(state.status), state.files.len()), (json!("error"), 0));
    assert_eq!(state.error.unwrap().error_type, "changesUnknown");
    review.start(CHAT, "t2");
    review.end(CHAT);
    let state = review.fresh(&turn_changes("t2"));
    assert_eq!((json!(state.status), state.error), (json!("ready"), None));
    // Here a call says something, though it comes to nothing.
    review.turn(CHAT, "t3", &[("a", "", "1\n"), ("a", "1\n", "")]);
    let state = review.fresh(&turn_changes("t3"));
    assert_eq!((json!(state.status), state.files.len()), (json!("ready"), 0));
    assert_eq!(review.refused(&turn_changes("none")), -32008);
    assert_eq!(review.refused("ahp-session:/none/changeset/session"), -32008);
}

#[test]
fn changeset_operation_reports_its_progress_and_its_result() {
    let mut review = Review::new();
    review.turn(CHAT, "t1", &[("a", "1\n", "2\n")]);
    review.follow(&turn_changes("t1"));
    review.hear();
    let statuses = |review: &mut Review| -> Vec<String> {
        let actions = std::mem::take(&mut review.actions);
        let told = actions.iter().filter(|it| it["action"]["type"] == "changeset/operationsChanged");
        let of = |operation: &Value| {
            let why = operation["error"]["message"].as_str().unwrap_or_default();
            format!("{} {} {why}", operation["id"].as_str().unwrap(), operation["status"].as_str().unwrap())
        };
        told.map(|it| {
            let operations = it["action"]["operations"].as_array().into_iter().flatten();
            operations.map(of).collect::<Vec<_>>().join(", ")
        })
        .collect()
    };
    statuses(&mut review);
    // It is not what it was.
    let mut disk = Disk(BTreeMap::from([("a", "3\n")]));
    let turn = turn_changes("t1");
    assert_eq!(review.invoke(&turn, "discard-changes", &mut disk), Err(-32011));
    let told = statuses(&mut review);
    assert_eq!(told[0], "discard-changes running ");
    let failed = "discard-changes error all files stay as they are: `file:///w/a`: changed";
    assert_eq!(told.last().unwrap(), failed);
    // What has failed is forgotten when it is tried again.
    disk.0.insert("a", "2\n");
    assert_eq!(review.invoke(&turn, "discard-changes", &mut disk), Ok(json!({})));
    let told = statuses(&mut review);
    assert!(told[0].starts_with("discard-changes running "), "{told:?}");
    assert_eq!(told.last().unwrap(), "restore-changes idle ");
    assert_eq!(review.files(&turn), []);
}

#[test]
fn changeset_operation_of_a_disposed_session_is_refused() {
    let (mut review, mut disk) = (Review::new(), Disk(BTreeMap::new()));
    review.turn(CHAT, "t1", &[("a", "", "1\n")]);
    review.ask("disposeSession", json!({ "channel": SESSION })).unwrap();
    for uri in [session_changes(), turn_changes("t1")] {
        assert_eq!(review.invoke(&uri, "discard-changes", &mut disk), Err(-32001), "{uri}");
    }
}

#[test]
fn truncated_turns_remove_their_changes() {
    let mut review = Review::new();
    review.turn(CHAT, "t1", &[("a", "", "1\n")]);
    review.turn(CHAT, "t2", &[("a", "1\n", "2\n"), ("b", "", "2\n")]);
    review.follow(&session_changes());
    review.follow(&turn_changes("t2"));
    review.dispatch(CHAT, json!({ "type": "chat/truncated", "turnId": "t1" }));
    let a = ("a".to_owned(), String::new(), "1\n".to_owned(), (1, 0));
    assert_eq!(review.files(&session_changes()), [a]);
    assert_eq!(review.change_counts(), json!({ "additions": 1, "deletions": 0, "files": 1 }));
    let cleared = json!({ "type": "changeset/cleared" });
    assert!(review.actions.iter().any(|it| it["channel"] == turn_changes("t2") && it["action"] == cleared));
    assert_eq!(review.refused(&turn_changes("t2")), -32008);
    review.dispatch(CHAT, json!({ "type": "chat/truncated" }));
    assert_eq!(review.files(&session_changes()), []);
    assert_eq!(review.change_counts(), json!({ "additions": 0, "deletions": 0, "files": 0 }));
}

#[test]
fn turn_shared_with_a_fork_counts_once() {
    let mut review = Review::new();
    review.turn(CHAT, "t1", &[("a", "", "1\n")]);
    review.turn(CHAT, "t2", &[("a", "1\n", "2\n")]);
    review.follow(&session_changes());
    let source = json!({ "kind": "fork", "chat": CHAT, "turnId": "t1" });
    let params = json!({ "channel": SESSION, "chat": FORK, "source": source });
    review.ask("createChat", params).unwrap();
    let a = ("a".to_owned(), String::new(), "2\n".to_owned(), (1, 0));
    assert_eq!(review.files(&session_changes()), [a]);
    // It goes on by itself, and what each of the two does is told apart.
    review.start(CHAT, "t3");
    review.start(FORK, "t4");
    review.call(CHAT, true, &[("b", "", "3\n")]);
    review.call(FORK, true, &[("c", "", "4\n")]);
    let new = |name: &str, text: &str| (name.to_owned(), String::new(), text.to_owned(), (1, 0));
    assert_eq!(review.files(&turn_changes("t3")), [new("b", "3\n")]);
    assert_eq!(review.files(&turn_changes("t4")), [new("c", "4\n")]);
    assert_eq!(review.files(&session_changes()), [new("a", "2\n"), new("b", "3\n"), new("c", "4\n")]);
    review.end(CHAT);
    review.end(FORK);
    review.ask("disposeChat", json!({ "channel": FORK })).unwrap();
    assert_eq!(review.files(&session_changes()), [new("a", "2\n"), new("b", "3\n")]);
}

#[test]
fn file_stays_reviewed_until_it_changes_again() {
    let mut review = Review::new();
    review.turn(CHAT, "t1", &[("a", "", "1\n"), ("b", "", "1\n")]);
    review.follow(&session_changes());
    let mark = |files: Value, reviewed: bool| json!({ "type": "changeset/filesReviewChanged", "files": files, "reviewed": reviewed });
    let marks = |review: &mut Review| {
        review.files(&session_changes());
        let files = review.fresh(&session_changes()).files;
        files.iter().map(|file| file.reviewed == Some(true)).collect::<Vec<_>>()
    };
    review.dispatch(&session_changes(), mark(json!(["file:///w/a", "file:///w/none"]), true));
    assert_eq!(marks(&mut review), [true, false]);
    let refused = review.dispatch(&session_changes(), mark(json!(["file:///w/none"]), true));
    assert_eq!(refused.as_deref(), Some("`files` names none that is in the changeset"));
    review.turn(CHAT, "t2", &[("b", "1\n", "2\n")]);
    assert_eq!(marks(&mut review), [true, false]);
    review.dispatch(&session_changes(), mark(json!(["file:///w/b"]), true));
    assert_eq!(marks(&mut review), [true, true]);
    review.turn(CHAT, "t3", &[("a", "1\n", "2\n")]);
    assert_eq!(marks(&mut review), [false, true]);
    // What has fallen stays so, also when the file is again what it was.
    review.dispatch(CHAT, json!({ "type": "chat/truncated", "turnId": "t2" }));
    assert_eq!(marks(&mut review), [false, true]);
    review.dispatch(&session_changes(), mark(json!(["file:///w/b"]), false));
    assert_eq!(marks(&mut review), [false, false]);
}

#[test]
fn reconnecting_client_receives_missed_changeset_actions() {
    let mut review = Review::new();
    review.start(CHAT, "t1");
    review.call(CHAT, true, &[("a", "", "1\n")]);
    review.follow(&session_changes());
    review.hear();
    let seen = review.actions.iter().filter_map(|action| action["serverSeq"].as_u64()).max();
    let head = review.world.subscribe(OBSERVER, &session_changes())["fromSeq"].as_u64();
    let seen = seen.max(head).unwrap();
    review.world.feed(Input::Closed(CLIENT));
    review.call(CHAT, true, &[("b", "", "2\n")]);
    review.hear();
    review.world.open(CLIENT);
    let params = json!({ "channel": "ahp-root://", "clientId": "me", "lastSeenServerSeq": seen,
        "subscriptions": [session_changes()] });
    let answer = review.ask("reconnect", params).unwrap();
    assert_eq!(answer["type"], "replay", "{answer}");
    for envelope in answer["actions"].as_array().unwrap() {
        let envelope: ActionEnvelope = serde_json::from_value(envelope.clone()).unwrap();
        apply_action_to_changeset(review.mirrors.get_mut(&session_changes()).unwrap(), &envelope.action);
    }
    assert_eq!(review.files(&session_changes()).len(), 2);
}

#[test]
fn discarded_changes_can_be_restored() {
    let mut review = Review::new();
    review.turn(CHAT, "t1", &[("a", "", "1\n"), ("b", "1\n", "2\n")]);
    review.turn(CHAT, "t2", &[("b", "2\n", "3\n"), ("c", "1\n", "")]);
    let mut disk = Disk(BTreeMap::from([("a", "1\n"), ("b", "3\n")]));
    let changed = disk.0.clone();
    review.follow(&session_changes());
    review.follow(&turn_changes("t1"));
    review.follow(&turn_changes("t2"));
    let before = review.files(&session_changes());
    assert_eq!(review.offered(&session_changes()), ["discard-changes"]);
    // The last turn.
    assert_eq!(review.invoke(&turn_changes("t2"), "discard-changes", &mut disk), Ok(json!({})));
    assert_eq!(disk.0, BTreeMap::from([("a", "1\n"), ("b", "2\n"), ("c", "1\n")]));
    assert_eq!(review.files(&turn_changes("t2")), []);
    assert_eq!(review.files(&session_changes()).len(), 2);
    assert_eq!(review.files(&turn_changes("t1")).len(), 2);
    assert_eq!(review.offered(&turn_changes("t2")), ["restore-changes"]);
    // Then all of the session.
    assert_eq!(review.invoke(&session_changes(), "discard-changes", &mut disk), Ok(json!({})));
    assert_eq!(disk.0, BTreeMap::from([("b", "1\n"), ("c", "1\n")]));
    assert_eq!(review.files(&session_changes()), []);
    assert_eq!(review.change_counts(), json!({ "additions": 0, "deletions": 0, "files": 0 }));
    // And all of it back, in the other order.
    assert_eq!(review.invoke(&session_changes(), "restore-changes", &mut disk), Ok(json!({})));
    assert_eq!(review.invoke(&turn_changes("t2"), "restore-changes", &mut disk), Ok(json!({})));
    assert_eq!(disk.0, changed);
    assert_eq!(review.files(&session_changes()), before);
    assert_eq!(review.offered(&session_changes()), ["discard-changes"]);
}

#[test]
fn batch_of_1200_discarded_files_can_be_restored() {
    let mut review = Review::new();
    let names: Vec<&'static str> = (0..1200).map(|at| &*format!("f{at:04}").leak()).collect();
    let edits: Vec<Edit<'_>> = names.iter().map(|name| (*name, "1\n", "2\n")).collect();
    review.turn(CHAT, "t1", &[("a", "1\n", "2\n")]);
    review.turn(CHAT, "t2", &edits);
    let mut disk = Disk(names.iter().chain(&["a"]).map(|name| (*name, "2\n")).collect());
    let changed = disk.0.clone();
    let (first, second) = (turn_changes("t1"), turn_changes("t2"));
    assert_eq!(review.invoke(&first, "discard-changes", &mut disk), Ok(json!({})));
    assert_eq!(review.invoke(&second, "discard-changes", &mut disk), Ok(json!({})));
    assert!(disk.0.values().all(|text| *text == "1\n"));
    assert_eq!(review.offered(&second), ["restore-changes"]);
    assert_eq!(review.invoke(&second, "restore-changes", &mut disk), Ok(json!({})));
    assert_eq!(disk.0.remove("a"), Some("1\n"));
    disk.0.insert("a", "2\n");
    assert_eq!(disk.0, changed);
    // Of many that stay some are named.
    for name in &names[..1150] {
        disk.0.insert(name, "another\n");
    }
    let answer = review.invoke(&second, "discard-changes", &mut disk).unwrap();
    let message = answer["message"].as_str().unwrap();
    assert_eq!(message.matches("file:///w/").count(), 100, "{message}");
    assert!(message.ends_with("; and 1050 other files"), "{message}");
}

#[test]
fn changeset_beyond_the_file_limit_cannot_be_discarded() {
    let mut review = Review::new();
    let names: Vec<&'static str> = (0..5001).map(|at| &*format!("f{at:04}").leak()).collect();
    let edits: Vec<Edit<'_>> = names.iter().map(|name| (*name, "", "2\n")).collect();
    review.turn(CHAT, "t1", &edits);
    let mut disk = Disk(names.iter().map(|name| (*name, "2\n")).collect());
    let changed = disk.0.clone();
    assert_eq!(review.offered(&turn_changes("t1")), [""; 0]);
    assert_eq!(review.invoke(&turn_changes("t1"), "discard-changes", &mut disk), Err(-32602));
    assert_eq!(disk.0, changed);
}

#[test]
fn file_changed_since_the_turn_is_not_discarded() {
    let mut review = Review::new();
    review.turn(CHAT, "t1", &[("a", "", "1\n"), ("b", "1\n", "2\n")]);
    review.follow(&session_changes());
    let mut disk = Disk(BTreeMap::from([("a", "1\n"), ("b", "mine\n")]));
    let answer = review.invoke(&session_changes(), "discard-changes", &mut disk);
    assert_eq!(answer.unwrap()["message"], "some files stay as they are: `file:///w/b`: changed");
    assert_eq!(disk.0, BTreeMap::from([("b", "mine\n")]));
    let files = review.files(&session_changes());
    assert_eq!(files.iter().map(|it| it.0.as_str()).collect::<Vec<_>>(), ["b"]);
    let answer = review.invoke(&session_changes(), "discard-changes", &mut disk);
    assert_eq!(answer, Err(-32011));
    // What an agent does behind it counts from what is there.
    review.turn(CHAT, "t2", &[("a", "", "5\n")]);
    let a = ("a".to_owned(), String::new(), "5\n".to_owned(), (1, 0));
    assert!(review.files(&session_changes()).contains(&a));
    // What was taken back goes with its turns.
    review.dispatch(CHAT, json!({ "type": "chat/truncated" }));
    assert_eq!(review.files(&session_changes()), []);
}

#[test]
fn discard_is_refused_during_a_turn_and_when_repeated() {
    let mut review = Review::new();
    review.turn(CHAT, "t1", &[("a", "", "1\n")]);
    review.follow(&session_changes());
    review.follow(&turn_changes("t1"));
    let mut disk = Disk(BTreeMap::from([("a", "1\n")]));
    review.start(CHAT, "t2");
    let offered = review.fresh(&session_changes()).operations.unwrap();
    let told: Vec<Value> = offered.iter().map(|it| json!([it.id, it.status, it.error])).collect();
    assert_eq!(told, [json!(["discard-changes", "disabled", null])]);
    let refused = Err(-32602);
    assert_eq!(review.invoke(&session_changes(), "discard-changes", &mut disk), refused);
    review.end(CHAT);
    assert_eq!(review.invoke(&session_changes(), "discard-changes", &mut disk), Ok(json!({})));
    assert_eq!(review.invoke(&session_changes(), "discard-changes", &mut disk), refused);
    assert_eq!(review.files(&session_changes()), []);
    assert_eq!(review.invoke(&session_changes(), "restore-changes", &mut disk), Ok(json!({})));
    assert_eq!(review.invoke(&session_changes(), "restore-changes", &mut disk), refused);
    assert_eq!(disk.0, BTreeMap::from([("a", "1\n")]));
    assert_eq!(review.files(&session_changes()).len(), 1);
}

/// Requests operations in this order before any is answered, on behalf of these clients, some of
/// which disconnect meanwhile. Returns the number of operations carried out and the answer to each
/// client that is still connected.
fn invoke_concurrently(
    review: &mut Review,
    asked: &[(ConnectionId, &str)],
    gone: &[ConnectionId],
    disk: &mut Disk,
) -> (usize, Vec<(ConnectionId, Value)>) {
    review.hear();
    for (client, operation) in asked {
        let params = json!({ "channel": session_changes(), "operationId": operation });
        review.world.request(*client, "invokeChangesetOperation", params);
    }
    for client in gone {
        review.world.feed(Input::Closed(*client));
    }
    let (mut begun, mut answers) = (0, Vec::new());
    loop {
        let outputs = review.world.take();
        let answer = |output: &Output| match output {
            Output::Frame(to, frame @ Frame::Result { .. }) => Some((*to, line(frame)["result"].take())),
            Output::Frame(to, frame @ Frame::Error { .. }) => {
                Some((*to, line(frame)["error"]["code"].take()))
            }
            _ => None,
        };
        answers.extend(outputs.iter().filter_map(answer));
        let taken = outputs.into_iter().find_map(|output| match output {
            Output::Resource(_, _, Resource::Revert { request: taken, .. }) => Some(taken),
            _ => None,
        });
        let Some(taken) = taken else { return (begun, answers) };
        begun += 1;
        let outcomes = taken.files.iter().map(|file| disk.revert(file)).collect();
        review.world.feed(Input::Reverted { request: taken, outcomes });
    }
}

#[test]
fn identical_pending_operations_run_once_and_each_requester_is_answered() {
    let mut review = Review::new();
    review.turn(CHAT, "t1", &[("a", "", "1\n")]);
    let mut disk = Disk(BTreeMap::from([("a", "1\n")]));
    let done = || json!({});
    let [discard, restore] = ["discard-changes", "restore-changes"];
    let twice = invoke_concurrently(&mut review, &[(CLIENT, discard), (OBSERVER, discard)], &[], &mut disk);
    assert_eq!(twice, (1, vec![(CLIENT, done()), (OBSERVER, done())]));
    assert_eq!(disk.0, BTreeMap::new());
    // Another one in between is done in between.
    let asked = [(CLIENT, restore), (CLIENT, restore), (CLIENT, discard), (CLIENT, restore)];
    let answers = invoke_concurrently(&mut review, &asked, &[], &mut disk);
    assert_eq!(answers, (3, vec![(CLIENT, done()); 4]));
    assert_eq!(disk.0, BTreeMap::from([("a", "1\n")]));
    // There is a limit to both.
    let mut many = vec![(CLIENT, discard); 101];
    many.extend([restore, discard].repeat(50).into_iter().map(|operation| (CLIENT, operation)));
    many.push((CLIENT, restore));
    let (begun, answers) = invoke_concurrently(&mut review, &many, &[], &mut disk);
    assert_eq!((begun, answers.len()), (101, many.len()));
    let failed: Vec<&Value> = answers.iter().map(|(_, answer)| answer).filter(|it| **it != done()).collect();
    assert_eq!(failed, [&json!(-32603), &json!(-32603)]);
    assert_eq!(review.invoke(&session_changes(), restore, &mut disk), Ok(done()));
    // Who has gone is not answered, and what others have asked for is done.
    let left =
        invoke_concurrently(&mut review, &[(CLIENT, discard), (OBSERVER, discard)], &[CLIENT], &mut disk);
    assert_eq!(left, (1, vec![(OBSERVER, done())]));
}

/// Random step in a session of two chats.
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

    /// Whoever applies what is told has what a fresh state shows, and that is what a model of the
    /// files says.
    #[test]
    fn changeset_built_from_actions_equals_a_fresh_snapshot_and_the_model(steps in steps()) {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        const TEXTS: [&str; 4] = ["", "1\n", "1\n2\n", "3\n"];
        const CHATS: [&str; 2] = [CHAT, FORK];
        let mut review = Review::new();
        let params = json!({ "channel": SESSION, "chat": FORK });
        review.ask("createChat", params).unwrap();
        review.follow(&session_changes());
        let mut turns: [Vec<ModelTurn>; 2] = Default::default();
        let mut now = [0_usize; 3];
        let mut count = 0;
        let mut cut = false;
        for chat in 0..2 {
            count += 1;
            let id = format!("t{count}");
            review.start(CHATS[chat], &id);
            review.follow(&turn_changes(&id));
            turns[chat].push((id, Vec::new()));
        }
        for step in steps {
            match step {
                Step::Edit { chat, file, after } => {
                    if now[file] == after { continue; }
                    review.call(CHATS[chat], true, &[(NAMES[file], TEXTS[now[file]], TEXTS[after])]);
                    turns[chat].last_mut().unwrap().1.push((file, now[file], after));
                    now[file] = after;
                }
                Step::Turn { chat } => {
                    review.end(CHATS[chat]);
                    count += 1;
                    let id = format!("t{count}");
                    review.start(CHATS[chat], &id);
                    review.follow(&turn_changes(&id));
                    turns[chat].push((id, Vec::new()));
                }
                Step::Cut { chat, turns: kept } => {
                    let kept = kept.min(turns[chat].len() - 1);
                    let mut action = json!({ "type": "chat/truncated" });
                    if kept > 0 { action["turnId"] = json!(turns[chat][kept - 1].0); }
                    review.hear();
                    for (id, _) in turns[chat].drain(kept..) { review.mirrors.remove(&turn_changes(&id)); }
                    review.dispatch(CHATS[chat], action);
                    review.report(CHATS[chat], TurnEvent::Ended(TurnEnd::Cancelled));
                    review.chats.remove(CHATS[chat]);
                    count += 1;
                    let id = format!("t{count}");
                    review.start(CHATS[chat], &id);
                    turns[chat].push((id, Vec::new()));
                    cut = true;
                }
                Step::Review { file, reviewed } => {
                    let files = json!([format!("file:///w/{}", NAMES[file])]);
                    let action = json!({ "type": "changeset/filesReviewChanged", "files": files, "reviewed": reviewed });
                    review.dispatch(&session_changes(), action);
                }
            }
            review.hear();
            for of_chat in &turns {
                for (id, edits) in of_chat {
                    let mut net: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
                    for (file, before, after) in edits {
                        net.entry(*file).and_modify(|it| it.1 = *after).or_insert((*before, *after));
                    }
                    net.retain(|_, (before, after)| before != after);
                    let mut shown = review.files(&turn_changes(id));
                    shown.sort();
                    let shown: Vec<_> = shown.into_iter().map(|(name, before, after, _)| (name, before, after)).collect();
                    let wanted: Vec<_> = net.into_iter().map(|(file, (before, after))| {
                        (NAMES[file].to_owned(), TEXTS[before].to_owned(), TEXTS[after].to_owned())
                    }).collect();
                    prop_assert_eq!(shown, wanted);
                }
            }
            let mut shown: Vec<_> = review.files(&session_changes()).into_iter().map(|it| (it.0, it.1, it.2)).collect();
            shown.sort();
            // Turns that are gone take their edits along, so only without that is it what the files
            // are.
            if !cut {
                let wanted: Vec<_> = (0..3).filter(|file| now[*file] != 0).map(|file| {
                    (NAMES[file].to_owned(), String::new(), TEXTS[now[file]].to_owned())
                }).collect();
                prop_assert_eq!(shown, wanted);
            }
        }
    }
}
