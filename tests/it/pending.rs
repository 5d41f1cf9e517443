//! Messages that wait, where a transcript cannot go: a steering message that its agent may or may
//! not have taken in when the turn ends, and a long queue.
//!
//! Owns: a host in memory, one chat of it, and an agent that says what a test has it say.
//! Never: runs a real agent; when that says what is chance.

use std::time::Duration;

use ahp_sidecar::backend::script::{GuardedScript, Script};
use ahp_sidecar::backend::Backend;
use ahp_sidecar::host::effects::{
    AgentDescription, ChatKey, Command, ConnectionId, Event, Handle, Input, Output, Record, RunId, Shutdown,
    Timer, TurnCause, TurnEnd, TurnEvent,
};
use ahp_sidecar::host::{LoadedSession, Start};
use serde_json::{json, Value};

use crate::support::core::{saved, Core, CHAT, SESSION};
use crate::support::world::World;

const CLIENT: ConnectionId = ConnectionId(1);
const OTHER: ConnectionId = ConnectionId(2);

/// Resource that the guarded agent requires a token for.
const RESOURCE: &str = "https://api.example";

/// A chat whose agent is open, and its one client.
struct Chat {
    world: World,
    key: ChatKey,
}

impl Chat {
    fn new() -> Self {
        Self::with(Core::new())
    }

    fn with(core: Core) -> Self {
        Self::of(World::new(core))
    }

    fn of(mut world: World) -> Self {
        world.arrive(CLIENT, "me");
        let key = world.open_session(CLIENT);
        Self { world, key }
    }

    /// Creates a saved chat whose agent requires a token. Two clients have one each, which is the
    /// client's name.
    fn guarded() -> Self {
        let mut world = World::saving(Core::with(guarded_agent()));
        for (connection, client) in [(CLIENT, "me"), (OTHER, "other")] {
            arrive_with_token(&mut world, connection, client);
        }
        let key = world.open_session(CLIENT);
        Self { world, key }
    }

    /// Restores the chat in a host that starts after this one was killed.
    fn after_restart(&self, agent: AgentDescription) -> Self {
        let start = Start { head: 100, last_key: 100, ..Start::default() };
        let mut world = World::saving(Core::after(start, vec![agent]));
        let restored = LoadedSession::of(saved(&self.world.outputs), &Default::default());
        world.feed(Input::Restored(Box::new(restored)));
        Self { world, key: self.key }
    }

    /// Begins a turn of the agent's own.
    fn begin_own_turn(&mut self) -> RunId {
        self.world.agent(self.key, Event::Begins(TurnCause::Agent));
        let run = self.world.commands().rev().find_map(|command| match command {
            Command::OwnTurn { run } => Some(*run),
            _ => None,
        });
        run.expect("the agent's own turn was started")
    }

    /// Returns the token that the agent was last sent.
    fn token(&self) -> Option<String> {
        let tokens = self.world.commands().rev().find_map(|command| match command {
            Command::Open(open) => Some(&open.tokens),
            Command::Tokens(tokens) => Some(tokens),
            _ => None,
        });
        Some(tokens?.get(RESOURCE)?.secret().to_owned())
    }

    /// Completes each turn until none starts, and returns the messages of the later ones.
    fn texts_of_turns_after(&mut self, mut run: RunId) -> Vec<String> {
        let mut texts = Vec::new();
        loop {
            self.world.take();
            self.report(run, TurnEvent::Ended(TurnEnd::Complete));
            let started = self.world.commands().find_map(|command| match command {
                Command::StartTurn { run, message, .. } => Some((*run, message.text.clone())),
                _ => None,
            });
            let Some((next, text)) = started else { return texts };
            texts.push(text);
            run = next;
        }
    }

    fn dispatch(&mut self, action: Value) -> Option<String> {
        self.world.dispatch(CLIENT, CHAT, action)
    }

    fn start(&mut self, turn: &str) -> RunId {
        self.world.start(CLIENT, CHAT, turn, "go");
        self.world.started()
    }

    fn steer(&mut self, id: &str) -> Option<String> {
        self.world.pend(CLIENT, CHAT, "steering", id, id)
    }

    fn queue(&mut self, id: &str) -> Option<String> {
        self.world.pend(CLIENT, CHAT, "queued", id, id)
    }

    fn report(&mut self, run: RunId, event: TurnEvent) {
        self.world.report(self.key, run, event);
    }

    /// Returns the steering messages passed to the agent since the last call, and the types of the
    /// sequenced actions.
    fn happened(&mut self) -> (Vec<(RunId, String)>, Vec<String>) {
        let (mut handed, mut sequenced) = (Vec::new(), Vec::new());
        for output in self.world.take() {
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
        let state = self.world.state(CLIENT, CHAT);
        self.world.take();
        state["steeringMessage"]["id"].as_str().map(str::to_owned)
    }
}

fn guarded_agent() -> AgentDescription {
    GuardedScript { resource: RESOURCE.to_owned() }.describe()
}

/// Connects a client whose token is its name.
fn arrive_with_token(world: &mut World, connection: ConnectionId, client: &str) {
    world.arrive(connection, client);
    world.ask(connection, "authenticate", json!({ "resource": RESOURCE, "token": client })).unwrap();
}

fn endings() -> [TurnEnd; 4] {
    let failed = |resumable| TurnEnd::Failed { kind: "x".to_owned(), message: "x".to_owned(), resumable };
    [TurnEnd::Complete, TurnEnd::Cancelled, failed(true), failed(false)]
}

#[test]
fn unconsumed_steering_message_is_passed_to_the_next_run() {
    for end in endings() {
        let mut chat = Chat::new();
        let first = chat.start("t1");
        chat.steer("m");
        assert_eq!(chat.happened().0, [(first, "m".to_owned())]);
        // It was on its way already.
        chat.report(first, TurnEvent::Ended(end));
        let (handed, sequenced) = chat.happened();
        assert!(handed.is_empty());
        assert_eq!(sequenced.last().unwrap(), "chat/pendingMessageSet", "after the ending: {sequenced:?}");
        assert_eq!(chat.shown().as_deref(), Some("m"));
        let second = chat.start("t2");
        assert_eq!(chat.happened().0, [(second, "m".to_owned())]);
        assert_eq!(chat.shown(), None);
        chat.report(second, TurnEvent::Steered("m".to_owned()));
        chat.report(second, TurnEvent::Ended(TurnEnd::Complete));
        assert_eq!(chat.shown(), None);
    }
}

#[test]
fn consumed_steering_message_is_not_passed_again() {
    for end in endings() {
        let mut chat = Chat::new();
        let first = chat.start("t1");
        chat.steer("m");
        chat.report(first, TurnEvent::Steered("m".to_owned()));
        chat.report(first, TurnEvent::Ended(end));
        assert_eq!(chat.shown(), None);
        chat.start("t2");
        assert_eq!(chat.happened().0, []);
    }
}

#[test]
fn steering_message_without_agent_support_precedes_the_queue() {
    for end in endings() {
        let held = matches!(end, TurnEnd::Failed { resumable: true, .. });
        let mut chat = Chat::with(Core::with(AgentDescription { steers: false, ..Script.describe() }));
        let first = chat.start("t1");
        chat.queue("q");
        chat.steer("m");
        assert_eq!(chat.happened().0, []);
        assert_eq!(chat.shown().as_deref(), Some("m"));
        chat.report(first, TurnEvent::Ended(end));
        if held {
            assert_eq!(chat.shown().as_deref(), Some("m"));
            continue;
        }
        let second = chat.world.started();
        assert_eq!(chat.shown(), None);
        chat.report(second, TurnEvent::Ended(TurnEnd::Complete));
        chat.world.started();
    }
    // Nothing runs: it is taken up at once.
    let mut chat = Chat::with(Core::with(AgentDescription { steers: false, ..Script.describe() }));
    chat.steer("m");
    chat.world.started();
    assert_eq!(chat.shown(), None);
}

#[test]
fn queued_turn_that_begins_at_once_receives_the_steering_message() {
    let mut chat = Chat::new();
    let first = chat.start("t1");
    chat.queue("q");
    chat.steer("m");
    chat.happened();
    chat.report(first, TurnEvent::Ended(TurnEnd::Complete));
    let second = chat.world.started();
    assert_ne!(first, second);
    assert_eq!(chat.happened().0, [(second, "m".to_owned())]);
}

#[test]
fn unconsumed_steering_messages_start_turns_in_order_before_the_queue() {
    for refused in [&[][..], &["a"], &["a", "b"], &["a", "b", "c"]] {
        let mut chat = Chat::new();
        let first = chat.start("t1");
        chat.queue("q1");
        chat.queue("q2");
        for id in ["a", "b", "c", "d"] {
            chat.steer(id);
        }
        for id in refused {
            chat.report(first, TurnEvent::NotSteered((*id).to_owned()));
        }
        chat.report(first, TurnEvent::Steered("d".to_owned()));
        // It takes the place of a refused one.
        chat.steer("e");
        chat.report(first, TurnEvent::Steered("e".to_owned()));
        assert_eq!(chat.texts_of_turns_after(first), ["a", "b", "c", "q1", "q2"], "{refused:?}");
        assert_eq!(chat.shown(), None);
    }
}

#[test]
fn steering_message_is_requeued_after_cancellation_and_agent_death() {
    let mut chat = Chat::new();
    chat.start("t1");
    chat.steer("m");
    chat.dispatch(json!({ "type": "chat/turnCancelled", "turnId": "t1" }));
    assert_eq!(chat.shown().as_deref(), Some("m"));

    let mut chat = Chat::new();
    chat.start("t1");
    chat.steer("m");
    chat.world.agent(chat.key, Event::Died { reason: "x".to_owned() });
    assert_eq!(chat.shown().as_deref(), Some("m"));
}

#[test]
fn requeued_steering_message_can_be_changed_and_removed() {
    let mut chat = Chat::new();
    let first = chat.start("t1");
    chat.steer("m");
    chat.report(first, TurnEvent::Ended(TurnEnd::Complete));
    chat.happened();
    chat.world.pend(CLIENT, CHAT, "steering", "m", "other words");
    assert_eq!(chat.happened().1, ["chat/pendingMessageSet"]);
    chat.dispatch(json!({ "type": "chat/pendingMessageRemoved", "kind": "steering", "id": "m" }));
    assert_eq!(chat.happened().1, ["chat/pendingMessageRemoved"]);
}

#[test]
fn steering_message_of_a_disposed_session_is_not_requeued() {
    let mut chat = Chat::new();
    chat.start("t1");
    chat.steer("m");
    chat.happened();
    chat.world.ask(CLIENT, "disposeSession", json!({ "channel": SESSION })).unwrap();
    let (_, sequenced) = chat.happened();
    assert_eq!(sequenced, ["chat/turnCancelled"]);
}

#[test]
fn queue_length_is_limited() {
    let mut chat = Chat::new();
    chat.start("t1");
    for number in 0..999 {
        chat.queue(&format!("m{number}"));
    }
    chat.happened();
    chat.queue("the last one");
    assert_eq!(chat.happened().1, ["chat/pendingMessageSet"]);
    let reason = "this chat has 1000 queued messages already, the maximum";
    assert_eq!(chat.queue("one too many").as_deref(), Some(reason));
    assert_eq!(chat.happened().1, [""; 0]);
    // What is there may be changed, what is no queued message may be set, and room that is made is
    // room.
    chat.world.pend(CLIENT, CHAT, "queued", "m7", "other words");
    chat.steer("m");
    chat.dispatch(json!({ "type": "chat/pendingMessageRemoved", "kind": "queued", "id": "m7" }));
    chat.queue("one more");
    let [set, removed] = ["chat/pendingMessageSet", "chat/pendingMessageRemoved"];
    assert_eq!(chat.happened().1, [set, set, removed, removed, set]);
}

#[test]
fn message_queued_behind_the_turn_of_a_leaving_client_starts_when_it_has_left() {
    for (others_stay, returns) in [(true, false), (false, false), (false, true)] {
        let mut chat = Chat::new();
        let leaves = ConnectionId(2);
        chat.world.arrive(leaves, "leaves");
        chat.world.start(leaves, CHAT, "t1", "go");
        let first = chat.world.started();
        chat.queue("q");
        if !others_stay {
            chat.world.feed(Input::Closed(CLIENT));
        }
        chat.happened();
        chat.world.feed(Input::Ended { connection: leaves, how: Shutdown::Cancel, expected: None });
        chat.report(first, TurnEvent::Ended(TurnEnd::Cancelled));
        assert!(!chat.happened().1.contains(&"chat/turnStarted".to_owned()), "its client is still there");
        if returns {
            chat.world.arrive(ConnectionId(3), "leaves");
        }
        chat.world.feed(Input::BatchEnded);
        let started = chat.happened().1.contains(&"chat/turnStarted".to_owned());
        assert_eq!(started, others_stay || returns);
    }
}

#[test]
fn queued_message_runs_with_the_token_of_its_sender() {
    for (waits_for_own_turn, leaves) in [(false, false), (false, true), (true, false)] {
        let mut chat = Chat::guarded();
        let mut first = chat.start("t1");
        if waits_for_own_turn {
            chat.report(first, TurnEvent::Ended(TurnEnd::Complete));
            first = chat.begin_own_turn();
            // The host queues the start of a turn.
            chat.world.start(OTHER, CHAT, "t2", "go");
        } else {
            assert_eq!(chat.world.pend(OTHER, CHAT, "queued", "q", "go"), None);
        }
        assert_eq!(chat.token().as_deref(), Some("me"));
        if leaves {
            chat.world.feed(Input::Closed(CLIENT));
        }
        chat.report(first, TurnEvent::Ended(TurnEnd::Complete));
        assert_ne!(chat.world.started(), first);
        assert_eq!(chat.token().as_deref(), Some("other"));
    }
}

#[test]
fn queued_message_of_a_client_that_is_gone_runs_with_the_token_that_the_agent_has() {
    let mut chat = Chat::guarded();
    let first = chat.start("t1");
    assert_eq!(chat.world.pend(OTHER, CHAT, "queued", "q", "go"), None);
    chat.world.feed(Input::Closed(OTHER));
    chat.report(first, TurnEvent::Ended(TurnEnd::Complete));
    assert_ne!(chat.world.started(), first);
    assert_eq!(chat.token().as_deref(), Some("me"));
}

#[test]
fn queued_message_runs_with_the_token_of_its_sender_after_a_restart() {
    for waits_for_own_turn in [false, true] {
        let mut chat = Chat::guarded();
        let first = chat.start("t1");
        if waits_for_own_turn {
            chat.report(first, TurnEvent::Ended(TurnEnd::Complete));
            chat.begin_own_turn();
            chat.world.start(OTHER, CHAT, "q", "go");
        } else {
            chat.world.pend(OTHER, CHAT, "queued", "q", "go");
        }
        let mut chat = chat.after_restart(guarded_agent());
        arrive_with_token(&mut chat.world, OTHER, "other");
        chat.world.dispatch(OTHER, CHAT, json!({ "type": "chat/queuedMessagesReordered", "order": ["q"] }));
        chat.world.agent(chat.key, Event::Opened);
        chat.world.started();
        assert_eq!(chat.token().as_deref(), Some("other"));
    }
}

#[test]
fn queued_message_of_a_leaving_client_starts_when_it_has_left() {
    let mut chat = Chat::new();
    chat.world.arrive(OTHER, "leaves");
    let first = chat.start("t1");
    chat.world.pend(OTHER, CHAT, "queued", "q", "go");
    chat.world.feed(Input::Ended { connection: OTHER, how: Shutdown::Cancel, expected: None });
    chat.happened();
    chat.report(first, TurnEvent::Ended(TurnEnd::Complete));
    assert!(!chat.happened().1.contains(&"chat/turnStarted".to_owned()), "its turns are cancelled");
    chat.world.feed(Input::BatchEnded);
    let left = |output: &Output| matches!(output, Output::Disconnected { connection: OTHER, cut: false });
    assert!(chat.world.outputs.iter().any(left));
    assert!(chat.happened().1.contains(&"chat/turnStarted".to_owned()));
}

#[test]
fn turn_of_a_queued_message_does_not_end_with_the_client_of_the_turn_before() {
    let mut chat = Chat::new();
    chat.world.arrive(OTHER, "leaves");
    chat.world.start(OTHER, CHAT, "t1", "go");
    let first = chat.world.started();
    chat.queue("q");
    let how = Shutdown::Drain(Duration::from_secs(4));
    chat.world.feed(Input::Ended { connection: OTHER, how, expected: None });
    chat.report(first, TurnEvent::Ended(TurnEnd::Complete));
    chat.world.feed(Input::BatchEnded);
    chat.world.feed(Input::Timer(Timer::Disconnect(OTHER)));
    chat.world.feed(Input::BatchEnded);
    let left = chat.world.outputs.iter().find_map(|output| match output {
        Output::Disconnected { connection, cut } => Some((*connection, *cut)),
        _ => None,
    });
    assert_eq!(left, Some((OTHER, false)));
    assert!(!chat.happened().1.contains(&"chat/turnCancelled".to_owned()));
}

#[test]
fn unaccepted_steering_message_is_pending_again_after_a_crash() {
    for is_accepted in [false, true] {
        let mut chat = Chat::of(World::saving(Core::new()));
        let first = chat.start("t1");
        chat.steer("m");
        if is_accepted {
            chat.report(first, TurnEvent::Steered("m".to_owned()));
        }
        let mut chat = chat.after_restart(Script.describe());
        chat.world.arrive(CLIENT, "me");
        assert_eq!(chat.shown().as_deref(), (!is_accepted).then_some("m"));
        assert_eq!(chat.steer("m").is_some(), is_accepted);
    }
}

#[test]
fn late_handle_of_a_closed_conversation_is_not_resumed() {
    let handle = |name: &str| Event::Handle(Some(Handle { name: name.to_owned(), resumes: true }));
    let opened_with = |chat: &Chat| {
        let opened = chat.world.commands().rev().find_map(|command| match command {
            Command::Open(open) => Some(open.handle.clone()),
            _ => None,
        });
        opened.expect("a conversation was opened")
    };
    let mut chat = Chat::new();
    let run = chat.start("t1");
    chat.world.agent(chat.key, handle("first"));
    chat.report(run, TurnEvent::Ended(TurnEnd::Complete));
    chat.dispatch(json!({ "type": "chat/truncated" }));
    chat.world.agent(chat.key, handle("first"));
    chat.world.start(CLIENT, CHAT, "t2", "go");
    assert_eq!(opened_with(&chat), None);
}
