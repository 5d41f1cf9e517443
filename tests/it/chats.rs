//! Several chats of a session, where a transcript cannot go: clients of two versions at once, and more chats
//! than anybody would write down.
//!
//! Owns: a host in memory behind the version edge, with a connection for each client, and an agent that says
//! what a test has it say.
//! Never: runs a real agent.

use ahp_sidecar::host::effects::{
    ChatKey, Command, ConnectionId, Event, Input, Output, Record, RunId, TextKind, ToolGate, Transcript,
    TurnEnd, TurnEvent,
};
use ahp_sidecar::versions::Edges;
use ahp_sidecar::wire::rpc::Incoming;
use serde_json::{json, Value};

use crate::support::core::{said, Core, SESSION};

const NEW: ConnectionId = ConnectionId(1);
const OLD: ConnectionId = ConnectionId(2);
const ROOT: &str = "ahp-root://";

/// A host, a client of 1.0.0 and one of another version, and what each was told since it was last asked for.
struct World {
    core: Core,
    edges: Edges,
    /// The agents that were told to open, the newest last, and the runs that were started.
    opened: Vec<ChatKey>,
    runs: Vec<RunId>,
    /// What was attached to the message of the newest run.
    attached: Vec<Transcript>,
    /// How large the largest row of a chat was.
    row_bytes_max: usize,
    told: Vec<(ConnectionId, Value)>,
}

impl World {
    fn new(old: &str) -> Self {
        let mut world = Self {
            core: Core::new(),
            edges: Edges::new(vec!["script".to_owned()]),
            opened: Vec::new(),
            runs: Vec::new(),
            attached: Vec::new(),
            row_bytes_max: 0,
            told: Vec::new(),
        };
        for (connection, version) in [(NEW, "1.0.0"), (OLD, old)] {
            world.feed(Input::Opened { connection, default_directory: None });
            let hello = json!({ "channel": ROOT, "clientId": version, "protocolVersions": [version],
                "initialSubscriptions": [ROOT] });
            assert!(world.ask(connection, "initialize", hello)["result"].is_object());
        }
        world.ask(NEW, "createSession", json!({ "channel": SESSION }));
        world.agent(Event::Opened);
        world
    }

    fn feed(&mut self, input: Input) {
        let mut outputs = self.core.feed(input);
        outputs.extend(self.core.feed_and_save(Input::Settled));
        for output in outputs {
            match output {
                Output::Frame(connection, frame) => {
                    let mut lines = Vec::new();
                    self.edges.down(connection, &frame, &mut lines);
                    let told = lines.iter().map(|line| serde_json::from_slice(&line.bytes).unwrap());
                    self.told.extend(told.map(|line| (connection, line)));
                }
                Output::Agent(chat, command) => match *command {
                    Command::Open(_) => self.opened.push(chat),
                    Command::StartTurn { run, attached, .. } => {
                        self.runs.push(run);
                        self.attached = attached;
                    }
                    _ => {}
                },
                Output::Record(Record::Chat(row)) => {
                    self.row_bytes_max = self.row_bytes_max.max(row.body.len());
                }
                _ => {}
            }
        }
    }

    fn say(&mut self, connection: ConnectionId, mut message: Value) {
        message["jsonrpc"] = "2.0".into();
        let mut fed = Vec::new();
        self.edges.up(connection, Incoming::parse(&message.to_string().into()), &mut fed);
        self.edges.take_records();
        for message in fed {
            self.feed(Input::said(connection, message));
        }
    }

    /// Asks, and takes the answer out of what was told.
    fn ask(&mut self, connection: ConnectionId, method: &str, params: Value) -> Value {
        self.say(connection, json!({ "id": "asked", "method": method, "params": params }));
        let at = self.told.iter().position(|(to, line)| *to == connection && line["id"] == "asked");
        self.told.remove(at.unwrap_or_else(|| panic!("{method} was not answered"))).1
    }

    /// The agent of the chat that was opened last reports.
    fn agent(&mut self, event: Event) {
        let chat = *self.opened.last().unwrap();
        self.feed(Input::Agent(chat, event));
    }

    fn run(&mut self, event: TurnEvent) {
        let run = *self.runs.last().unwrap();
        self.agent(Event::Turn(run, event));
    }

    /// What a connection was told since this was last asked.
    fn heard(&mut self, connection: ConnectionId) -> Vec<Value> {
        let all = std::mem::take(&mut self.told);
        all.into_iter().filter(|(to, _)| *to == connection).map(|(_, line)| line).collect()
    }
}

fn message(text: &str) -> Value {
    json!({ "text": text, "origin": { "kind": "user" } })
}

#[test]
fn a_client_of_one_conversation_learns_of_other_chats_by_the_status_alone() {
    for version in ["0.2.0", "0.3.0"] {
        let mut world = World::new(version);
        world.ask(OLD, "subscribe", json!({ "channel": SESSION }));
        world.heard(OLD);
        let first = json!({ "channel": SESSION, "chat": "ahp-chat:/other", "initialMessage": message("hi") });
        assert!(world.ask(NEW, "createChat", first)["error"].is_null());
        world.agent(Event::Opened);
        world.run(TurnEvent::Text(TextKind::Markdown, "elsewhere".to_owned()));
        let (id, name) = ("call".to_owned(), "rm".to_owned());
        world.run(TurnEvent::ToolStarted { id: id.clone(), name: name.clone(), display_name: name });
        let gate = ToolGate::Ask(Vec::new());
        world.run(TurnEvent::ToolReady { id, input: "{}".to_owned(), message: "Run".into(), gate });
        world.run(TurnEvent::Ended(TurnEnd::Complete));
        world.ask(
            NEW,
            "moveChat",
            json!({ "channel": "ahp-chat:/other",
            "destination": { "kind": "session", "session": SESSION } }),
        );
        let default = json!({ "type": "session/defaultChatChanged", "defaultChat": "ahp-chat:/other" });
        world.say(
            NEW,
            json!({ "method": "dispatchAction",
            "params": { "channel": SESSION, "clientSeq": 1, "action": default } }),
        );

        let heard = world.heard(OLD);
        let text = format!("{heard:?}");
        assert!(!text.contains("ahp-chat:") && !text.contains("elsewhere"), "{version}: {heard:#?}");
        let turns = heard.iter().filter(|line| line["params"]["action"]["type"] != "session/titleChanged");
        assert!(turns.clone().all(|line| line["method"] != "action"), "{version}: {heard:#?}");
        let changes = heard.iter().map(|line| line["params"]["changes"]["status"].clone());
        let statuses: Vec<Value> = changes.filter(Value::is_u64).collect();
        assert_eq!(statuses, [24, 1], "{version}: {heard:#?}");
        assert!(!text.contains("\"changes\": Object {}"), "{version} is told that nothing has changed");
        // What it follows is one conversation, and that is the first chat whichever is the default one.
        let state = world.ask(OLD, "subscribe", json!({ "channel": SESSION }));
        assert_eq!(state["result"]["snapshot"]["state"]["turns"], json!([]), "{version}: {state}");
        for method in ["createChat", "disposeChat", "moveChat"] {
            let params = json!({ "channel": SESSION, "chat": "ahp-chat:/c" });
            assert_eq!(world.ask(OLD, method, params)["error"]["code"], -32601, "{version}: {method}");
        }
    }
}

#[test]
fn older_clients_open_and_close_chats_and_do_not_move_them() {
    for version in ["0.4.0", "0.5.0", "0.5.1", "0.6.0", "0.7.0", "0.9.0"] {
        let mut world = World::new(version);
        let turn = json!({ "type": "chat/turnStarted", "turnId": "t1", "message": message("hi") });
        let state = world.ask(NEW, "subscribe", json!({ "channel": SESSION }));
        let chat = state["result"]["snapshot"]["state"]["defaultChat"].as_str().unwrap().to_owned();
        world.say(
            NEW,
            json!({ "method": "dispatchAction",
            "params": { "channel": chat, "clientSeq": 1, "action": turn } }),
        );
        world.run(TurnEvent::Ended(TurnEnd::Complete));
        // A source without a kind is a fork: there was nothing else.
        let source = json!({ "chat": chat, "turnId": "t1", "kind": "fork" });
        let mut params = json!({ "channel": SESSION, "chat": "ahp-chat:/c", "source": source });
        if version < "0.7.0" {
            params["source"].as_object_mut().unwrap().remove("kind");
        }
        let answer = world.ask(OLD, "createChat", params);
        assert!(answer["error"].is_null(), "{version}: {answer}");
        let state = world.ask(OLD, "subscribe", json!({ "channel": "ahp-chat:/c" }));
        assert_eq!(state["result"]["snapshot"]["state"]["turns"][0]["id"], "t1", "{version}: {state}");
        let to = json!({ "channel": "ahp-chat:/c", "destination": { "kind": "newSession" } });
        assert_eq!(world.ask(OLD, "moveChat", to)["error"]["code"], -32601, "{version}");
        let gone = world.ask(OLD, "disposeChat", json!({ "channel": "ahp-chat:/c" }));
        assert!(gone["error"].is_null(), "{version}: {gone}");
    }
}

#[test]
fn a_model_that_is_chosen_for_a_chat_is_its_next_messages() {
    let mut world = World::new("0.4.0");
    let params = json!({ "channel": SESSION, "chat": "ahp-chat:/c", "model": { "id": "m" } });
    assert!(world.ask(OLD, "createChat", params)["error"].is_null());
    while let Some((connection, message)) = world.edges.take_later() {
        world.feed(Input::said(connection, message));
    }
    let state = world.ask(NEW, "subscribe", json!({ "channel": "ahp-chat:/c" }));
    assert_eq!(state["result"]["snapshot"]["state"]["draft"]["model"]["id"], "m", "{state}");
    let params = json!({ "channel": SESSION, "chat": "ahp-chat:/d", "model": { "id": "m" },
        "initialMessage": message("hi") });
    assert!(world.ask(OLD, "createChat", params)["error"].is_null());
    let state = world.ask(NEW, "subscribe", json!({ "channel": "ahp-chat:/d" }));
    let said = &state["result"]["snapshot"]["state"]["activeTurn"]["message"];
    assert_eq!(said["model"]["id"], "m", "{state}");
}

#[test]
fn a_session_holds_so_many_chats_and_no_more() {
    let mut world = World::new("0.9.0");
    // Nothing is saved in between: each row of the session would have all of its chats.
    let mut open = |number: u32| {
        let params = json!({ "channel": SESSION, "chat": format!("ahp-chat:/{number}") });
        let message = json!({ "id": number, "method": "createChat", "params": params });
        let mut lines = Vec::new();
        for output in world.core.feed(said(NEW, message)) {
            match output {
                Output::Frame(to, frame) if to == NEW => world.edges.down(to, &frame, &mut lines),
                _ => {}
            }
        }
        let mut told = lines.iter().map(|line| serde_json::from_slice::<Value>(&line.bytes).unwrap());
        let answer = told.find(|line| line["id"] == number).expect("it is answered");
        answer["error"]["code"].as_i64()
    };
    // With the first one it has 1,000.
    for number in 1..1000 {
        assert_eq!(open(number), None);
    }
    assert_eq!(open(1000), Some(-32602));
}

#[test]
fn while_a_session_is_being_created_its_agent_opens_one_conversation() {
    let mut world = World::new("0.9.0");
    let creating = "ahp-session:/creating";
    world.ask(NEW, "createSession", json!({ "channel": creating }));
    let before = world.opened.len();
    let params = json!({ "channel": creating, "chat": "ahp-chat:/c", "initialMessage": message("hi") });
    assert!(world.ask(NEW, "createChat", params)["error"].is_null());
    assert_eq!(world.opened.len(), before, "what may fail is tried once");
    world.agent(Event::Opened);
    assert_eq!(world.opened.len(), before + 1, "now the turn's own one is opened");
    world.agent(Event::Opened);
    assert_eq!(world.runs.len(), 1);
}

#[test]
fn what_is_attached_is_bounded() {
    let mut world = World::new("0.9.0");
    let state = world.ask(NEW, "subscribe", json!({ "channel": SESSION }));
    let chat = state["result"]["snapshot"]["state"]["defaultChat"].as_str().unwrap().to_owned();
    let mut said = 0;
    let mut turn = |world: &mut World, attached: usize, answer: String| {
        said += 1;
        let mut message = message("hi");
        let attachment = json!({ "type": "chat", "label": "it", "resource": chat });
        message["attachments"] = vec![attachment; attached].into();
        let action = json!({ "type": "chat/turnStarted", "turnId": format!("t{said}"), "message": message });
        world.say(
            NEW,
            json!({ "method": "dispatchAction",
            "params": { "channel": chat, "clientSeq": said, "action": action } }),
        );
        world.run(TurnEvent::Text(TextKind::Markdown, answer));
        world.run(TurnEvent::Ended(TurnEnd::Complete));
    };
    // Of what is too much the end is kept, cut between two characters; several share the room.
    let room = 128 << 10;
    turn(&mut world, 0, format!("begin {} end", "ä".repeat(room)));
    for (attached, bytes_max) in [(1, room), (2, room / 2), (16, room / 16)] {
        turn(&mut world, attached, String::new());
        assert_eq!(world.attached.len(), attached);
        for Transcript { text, cut, .. } in &world.attached {
            assert!(*cut && text.len() <= bytes_max && text.len() > bytes_max - 4, "{}", text.len());
            assert!(text.contains(" end\n") && !text.contains("begin"));
        }
    }
    // One that just fits is whole.
    let params = json!({ "channel": SESSION, "chat": "ahp-chat:/c", "initialMessage": message("hi") });
    assert!(world.ask(NEW, "createChat", params)["error"].is_null());
    world.agent(Event::Opened);
    let frame = "User: hi\nAssistant: \n".len();
    world.run(TurnEvent::Text(TextKind::Markdown, "x".repeat(room - frame)));
    world.run(TurnEvent::Ended(TurnEnd::Complete));
    let chat = "ahp-chat:/c";
    let attach = |world: &mut World, number: usize| {
        let mut message = message("hi");
        message["attachments"] =
            json!([{ "type": "chat", "label": "it", "resource": chat, "endTurn": "fresh-1" }]);
        let action =
            json!({ "type": "chat/turnStarted", "turnId": format!("u{number}"), "message": message });
        world.say(
            NEW,
            json!({ "method": "dispatchAction",
            "params": { "channel": chat, "clientSeq": number, "action": action } }),
        );
        world.run(TurnEvent::Ended(TurnEnd::Complete));
    };
    attach(&mut world, 0);
    assert_eq!((world.attached[0].text.len(), world.attached[0].cut), (room, false));
    // And a chat keeps those of its newest messages.
    for number in 1..20 {
        attach(&mut world, number);
    }
    assert!(world.row_bytes_max > 7 * room && world.row_bytes_max < 9 * room, "{}", world.row_bytes_max);
    // So many wait, and no more; one that is changed takes no more room, and one without anything none.
    let hanging = json!({ "type": "chat/turnStarted", "turnId": "v", "message": message("hang") });
    world.say(
        NEW,
        json!({ "method": "dispatchAction",
        "params": { "channel": chat, "clientSeq": 0, "action": hanging } }),
    );
    let queue = |world: &mut World, id: usize, attached: bool| {
        world.told.clear();
        let mut message = message("hi");
        if attached {
            message["attachments"] =
                json!([{ "type": "chat", "label": "it", "resource": chat, "endTurn": "fresh-1" }]);
        }
        let action = json!({ "type": "chat/pendingMessageSet", "kind": "queued", "id": id.to_string(),
            "message": message });
        world.say(
            NEW,
            json!({ "method": "dispatchAction",
            "params": { "channel": chat, "clientSeq": id, "action": action } }),
        );
        !world.heard(NEW).iter().any(|line| line["params"]["rejectionReason"].is_string())
    };
    world.ask(NEW, "subscribe", json!({ "channel": chat }));
    assert!((1..=8).all(|id| queue(&mut world, id, true)), "there is room for eight");
    assert!(!queue(&mut world, 9, true) && queue(&mut world, 8, true) && queue(&mut world, 10, false));
}
