//! Messages that wait, where a transcript cannot go: a steering message that its agent may or may not have
//! taken in when the turn ends, and a long queue.
//!
//! Owns: a host in memory, one chat of it, and an agent that says what a test has it say.
//! Never: runs a real agent; when that says what is chance.

use ahp_sidecar::backend::{script::Script, Backend};
use ahp_sidecar::host::effects::{
    AgentDescription, ChatKey, Command, ConnectionId, Event, Frame, Input, Output, Record, RunId, TurnEnd,
    TurnEvent,
};
use serde_json::{json, Value};

use crate::support::core::{opened, said, Core, CHAT, SESSION};

const CLIENT: ConnectionId = ConnectionId(1);

/// A host with one chat, and everything that it put out since it was last asked for.
struct World {
    core: Core,
    chat: ChatKey,
    outputs: Vec<Output>,
}

impl World {
    /// A chat whose agent is open.
    fn new() -> Self {
        Self::with(Core::new())
    }

    fn with(core: Core) -> Self {
        let mut world = Self { core, chat: ChatKey(0), outputs: Vec::new() };
        world.feed(Input::Opened { connection: CLIENT, default_directory: None });
        let hello = json!({ "channel": "ahp-root://", "clientId": "me", "protocolVersions": ["1.0.0"] });
        world.say(json!({ "id": 1, "method": "initialize", "params": hello }));
        world.say(json!({ "id": 2, "method": "createSession", "params": { "channel": SESSION } }));
        world.chat = opened(&world.outputs);
        world.hear(Event::Opened);
        world
    }

    fn feed(&mut self, input: Input) {
        self.outputs.extend(self.core.feed(input));
    }

    fn say(&mut self, message: Value) {
        self.feed(said(CLIENT, message));
    }

    fn dispatch(&mut self, action: Value) {
        let params = json!({ "channel": CHAT, "clientSeq": 1, "action": action });
        self.say(json!({ "method": "dispatchAction", "params": params }));
    }

    fn start(&mut self, turn: &str) -> RunId {
        let message = json!({ "text": "go", "origin": { "kind": "user" } });
        self.dispatch(json!({ "type": "chat/turnStarted", "turnId": turn, "message": message }));
        self.started()
    }

    fn steer(&mut self, id: &str) {
        let message = json!({ "text": id, "origin": { "kind": "user" } });
        self.dispatch(
            json!({ "type": "chat/pendingMessageSet", "kind": "steering", "id": id, "message": message }),
        );
    }

    fn queue(&mut self, id: &str) {
        let message = json!({ "text": id, "origin": { "kind": "user" } });
        self.dispatch(
            json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": id, "message": message }),
        );
    }

    fn hear(&mut self, event: Event) {
        self.feed(Input::Agent(self.chat, event));
    }

    fn report(&mut self, run: RunId, event: TurnEvent) {
        self.hear(Event::Turn(run, event));
    }

    /// The run that the agent was told to start last.
    fn started(&self) -> RunId {
        let mut commands = self.outputs.iter().rev();
        let run = commands.find_map(|output| match output {
            Output::Agent(_, command) => match **command {
                Command::StartTurn { run, .. } | Command::ResumeTurn { run, .. } => Some(run),
                _ => None,
            },
            _ => None,
        });
        run.expect("a run was started")
    }

    /// What the agent was handed since the last time, and the types of what was sequenced.
    fn happened(&mut self) -> (Vec<(RunId, String)>, Vec<String>) {
        let (mut handed, mut sequenced) = (Vec::new(), Vec::new());
        for output in self.outputs.drain(..) {
            match output {
                Output::Agent(_, command) => {
                    if let Command::Steer { run, id, message, .. } = *command {
                        assert_eq!(message.text, id);
                        handed.push((run, id));
                    }
                }
                Output::Record(Record::Action(_, action)) => {
                    let line: Value = serde_json::from_slice(&action.line).unwrap();
                    let kind = line["params"]["action"]["type"].as_str().unwrap();
                    sequenced.extend(kind.starts_with("chat/").then(|| kind.to_owned()));
                }
                _ => {}
            }
        }
        (handed, sequenced)
    }

    /// The id of the steering message that the chat's state shows.
    fn shown(&mut self) -> Option<String> {
        self.say(json!({ "id": 3, "method": "subscribe", "params": { "channel": CHAT } }));
        let answer = self.outputs.iter().rev().find_map(|output| match output {
            Output::Frame(_, Frame::Result { result, .. }) => Some(result),
            _ => None,
        });
        let answer: Value = serde_json::from_slice(answer.unwrap()).unwrap();
        self.outputs.clear();
        answer["snapshot"]["state"]["steeringMessage"]["id"].as_str().map(str::to_owned)
    }
}

fn endings() -> [TurnEnd; 4] {
    let failed = |resumable| TurnEnd::Failed { kind: "x".to_owned(), message: "x".to_owned(), resumable };
    [TurnEnd::Complete, TurnEnd::Cancelled, failed(true), failed(false)]
}

#[test]
fn what_the_agent_did_not_take_in_is_handed_to_the_next_run() {
    for end in endings() {
        let mut world = World::new();
        let first = world.start("t1");
        world.steer("m");
        assert_eq!(world.happened().0, [(first, "m".to_owned())]);
        // It was on its way already.
        world.report(first, TurnEvent::Ended(end));
        let (handed, sequenced) = world.happened();
        assert!(handed.is_empty());
        assert_eq!(sequenced.last().unwrap(), "chat/pendingMessageSet", "after the ending: {sequenced:?}");
        assert_eq!(world.shown().as_deref(), Some("m"));
        let second = world.start("t2");
        assert_eq!(world.happened().0, [(second, "m".to_owned())]);
        assert_eq!(world.shown(), None);
        world.report(second, TurnEvent::Steered("m".to_owned()));
        world.report(second, TurnEvent::Ended(TurnEnd::Complete));
        assert_eq!(world.shown(), None);
    }
}

#[test]
fn what_the_agent_took_in_is_not_handed_over_again() {
    for end in endings() {
        let mut world = World::new();
        let first = world.start("t1");
        world.steer("m");
        world.report(first, TurnEvent::Steered("m".to_owned()));
        world.report(first, TurnEvent::Ended(end));
        assert_eq!(world.shown(), None);
        world.start("t2");
        assert_eq!(world.happened().0, []);
    }
}

#[test]
fn an_agent_that_cannot_be_steered_gets_it_as_its_next_message_before_the_queue() {
    for end in endings() {
        let held = matches!(end, TurnEnd::Failed { resumable: true, .. });
        let mut world = World::with(Core::with(AgentDescription { steers: false, ..Script.describe() }));
        let first = world.start("t1");
        world.queue("q");
        world.steer("m");
        assert_eq!(world.happened().0, []);
        assert_eq!(world.shown().as_deref(), Some("m"));
        world.report(first, TurnEvent::Ended(end));
        if held {
            assert_eq!(world.shown().as_deref(), Some("m"));
            continue;
        }
        let second = world.started();
        assert_eq!(world.shown(), None);
        world.report(second, TurnEvent::Ended(TurnEnd::Complete));
        world.started();
    }
    // Nothing runs: it is taken up at once.
    let mut world = World::with(Core::with(AgentDescription { steers: false, ..Script.describe() }));
    world.steer("m");
    world.started();
    assert_eq!(world.shown(), None);
}

#[test]
fn a_queued_turn_that_begins_at_once_gets_it() {
    let mut world = World::new();
    let first = world.start("t1");
    world.queue("q");
    world.steer("m");
    world.happened();
    world.report(first, TurnEvent::Ended(TurnEnd::Complete));
    let second = world.started();
    assert_ne!(first, second);
    assert_eq!(world.happened().0, [(second, "m".to_owned())]);
}

#[test]
fn of_several_the_newest_is_put_back() {
    let mut world = World::new();
    let first = world.start("t1");
    for id in ["a", "b", "c"] {
        world.steer(id);
    }
    world.report(first, TurnEvent::Steered("c".to_owned()));
    world.report(first, TurnEvent::Ended(TurnEnd::Complete));
    assert_eq!(world.shown().as_deref(), Some("b"));
}

#[test]
fn a_cancellation_by_a_client_and_a_death_put_it_back_too() {
    let mut world = World::new();
    world.start("t1");
    world.steer("m");
    world.dispatch(json!({ "type": "chat/turnCancelled", "turnId": "t1" }));
    assert_eq!(world.shown().as_deref(), Some("m"));

    let mut world = World::new();
    world.start("t1");
    world.steer("m");
    world.hear(Event::Died { reason: "x".to_owned() });
    assert_eq!(world.shown().as_deref(), Some("m"));
}

#[test]
fn one_that_was_put_back_may_be_changed_and_removed() {
    let mut world = World::new();
    let first = world.start("t1");
    world.steer("m");
    world.report(first, TurnEvent::Ended(TurnEnd::Complete));
    world.happened();
    let message = json!({ "text": "other words", "origin": { "kind": "user" } });
    world.dispatch(
        json!({ "type": "chat/pendingMessageSet", "kind": "steering", "id": "m", "message": message }),
    );
    assert_eq!(world.happened().1, ["chat/pendingMessageSet"]);
    world.dispatch(json!({ "type": "chat/pendingMessageRemoved", "kind": "steering", "id": "m" }));
    assert_eq!(world.happened().1, ["chat/pendingMessageRemoved"]);
}

#[test]
fn nothing_is_put_back_into_a_session_that_is_disposed_of() {
    let mut world = World::new();
    world.start("t1");
    world.steer("m");
    world.happened();
    world.say(json!({ "id": 9, "method": "disposeSession", "params": { "channel": SESSION } }));
    let (_, sequenced) = world.happened();
    assert_eq!(sequenced, ["chat/turnCancelled"]);
}

#[test]
fn a_queue_has_a_longest_length() {
    let mut world = World::new();
    world.start("t1");
    for number in 0..999 {
        world.queue(&format!("m{number}"));
    }
    world.happened();
    world.queue("the last one");
    assert_eq!(world.happened().1, ["chat/pendingMessageSet"]);
    world.queue("one too many");
    let refusal = world.outputs.iter().find_map(|output| match output {
        Output::Frame(_, Frame::Answer(line)) => serde_json::from_slice::<Value>(line).ok(),
        _ => None,
    });
    let reason = "1000 messages are queued in this chat, which is all that it holds";
    assert_eq!(refusal.unwrap()["params"]["rejectionReason"], reason);
    assert_eq!(world.happened().1, [""; 0]);
    // What is there may be changed, what is no queued message may be set, and room that is made is room.
    let message = json!({ "text": "other words", "origin": { "kind": "user" } });
    world.dispatch(
        json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": "m7", "message": message }),
    );
    world.steer("m");
    world.dispatch(json!({ "type": "chat/pendingMessageRemoved", "kind": "queued", "id": "m7" }));
    world.queue("one more");
    let [set, removed] = ["chat/pendingMessageSet", "chat/pendingMessageRemoved"];
    assert_eq!(world.happened().1, [set, set, removed, removed, set]);
}
